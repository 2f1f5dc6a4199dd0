"""Every legal combination of loss, scheme, schedule and engine runs; the others are refused."""

import numpy as np
import pytest

from tests import batteries
from tests.batteries import Case

LEGAL = list(batteries.cases())
REFUSED = [
    case
    for wing, table in batteries.TABLES.items()
    for covariance, factor, stores in table
    for schedule in batteries.SCHEDULES[stores]
    for scheme in batteries.SCHEMES
    for loss in batteries.LOSSES
    # the loss says whether a row has several latents: nobody can ask for the other
    if (factor == "latents") == (batteries.LOSSES[loss].latents > 1)
    if not batteries.is_legal(*(case := Case(wing, covariance, factor, schedule, scheme, loss)))
]
quiet = pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")


def of_row(case):
    return case.wing, case.covariance, case.factor, case.schedule.stores


def of_factor(case):
    return case.scheme, case.loss, case.factor


@quiet
@pytest.mark.parametrize("case", batteries.sampled(LEGAL, lambda case: case.sweeps_of, of_factor))
def test_what_is_legal_gives_a_proper_posterior(case):
    post = batteries.fit(case)
    assert np.isfinite(post.mean).all()
    assert np.isfinite(post.log_evidence)
    covariance = post.covariance
    np.testing.assert_allclose(covariance, covariance.T, rtol=1e-12, atol=1e-300)
    assert (np.linalg.eigvalsh(covariance) > -1e-12 * covariance.max()).all()
    assert (post.variance > 0.0).all()
    assert 0 < len(post.history) == post.n_sweeps
    assert all(np.isfinite(info.change) for info in post.history)


@pytest.mark.parametrize("case", batteries.sampled(REFUSED, of_row, of_factor, rest=False))
def test_what_is_not_legal_is_refused_at_the_door(case):
    with pytest.raises(ValueError, match=r"allow(ed|s)"):
        batteries.fit(case)
