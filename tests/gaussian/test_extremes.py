"""Fits at the ends of the range of doubles: a finite posterior or a clean refusal; never NaN."""

import warnings

import numpy as np
import pytest
from hypothesis import given, strategies as st

import epfast
from tests.oracles.extremes import (
    ANY_FULL_SCHEDULE,
    ANY_LOSS,
    ANY_ROW_SCHEME,
    ANY_SCHEDULE,
    ANY_SCHEME,
    CLEAN,
    POWERS,
    fuzz,
    problems,
)


def check_clean(error):
    """It says what is wrong in the words of the library, not of LAPACK."""
    assert not isinstance(error, np.linalg.LinAlgError)
    assert "infs or NaNs" not in str(error)


def check_finite_or_refuses(rows, labels, **arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", epfast.ConvergenceWarning)
        try:
            post = epfast.fit_linear(rows, labels, **arguments)
        except CLEAN as error:
            check_clean(error)
            return
        for part in (post.mean, post.variance, post.precision, post.shift):
            assert np.isfinite(part).all()
        assert (post.variance > 0).all()
        assert np.isfinite(post.log_evidence)
        assert not np.isnan([info.change for info in post.history]).any()
        try:
            probability = post.predict_proba(rows)
        except CLEAN:
            return
    assert ((probability >= 0.0) & (probability <= 1.0)).all()


@pytest.mark.full
@fuzz
@given(
    problem=problems(), loss=ANY_LOSS, scheme=ANY_SCHEME, schedule=ANY_SCHEDULE,
    beta=st.just(1.0) | POWERS, prior=st.just(25.0) | POWERS, batch_size=st.integers(1, 13),
    record=st.sampled_from([None, "cost", "factor"]),
)  # fmt: skip
def test_fit_is_finite_or_refuses(problem, prior, **arguments):
    check_finite_or_refuses(*problem, posterior="factorized", prior_variance=prior, **arguments)


@fuzz
@given(
    problem=problems(), loss=ANY_LOSS, scheme=ANY_ROW_SCHEME, schedule=ANY_FULL_SCHEDULE,
    beta=st.just(1.0) | POWERS, prior=st.just(25.0) | POWERS,
    batch_size=st.none() | st.integers(1, 13), record=st.sampled_from([None, "cost"]),
)  # fmt: skip
def test_full_fit_is_finite_or_refuses(problem, prior, **arguments):
    check_finite_or_refuses(*problem, posterior="full", prior_variance=prior, **arguments)
