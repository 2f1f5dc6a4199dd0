"""The paper's settings of an operator: they are accepted, and learn where responses enter."""

import warnings

import numpy as np
import pytest

import epfast
from epfast.inference import DataWarning


def test_the_first_batch_may_exceed_the_cap_of_a_dictionary_that_there_is_not():
    settings = epfast.Learned(oracle="exact", paper=True, batch=500).operator
    assert (settings.batch, settings.features) == (500, ("fourier", 300, 500))
    with pytest.raises(ValueError, match="cap is 256; allowed: an integer from 500"):
        epfast.Learned(oracle="exact", batch=500)


@pytest.mark.parametrize("data_width", [0, 1])
def test_labels_folded_or_as_a_coordinate(data_width):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    y = np.where(X @ [1.0, -1.0, 0.0] + rng.logistic(size=60) > 0.0, 1, -1)
    schedule = epfast.EP(order="parallel", damping=1.0, sweeps=10, tol=0.0)
    scheme = epfast.Learned(
        oracle="exact",
        paper=True,
        targets="site",
        batch=60,
        features=("fourier", 100, 200),
        width=0.5,  # so few features do better with the widths of the authors' program
        data_width=data_width,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        warnings.simplefilter("ignore", epfast.ConvergenceWarning)
        post, exact = (
            epfast.fit_linear(
                X, y, loss="logistic", scheme=s, schedule=schedule, prior_variance=1.0
            )
            for s in (scheme, "exact")
        )
    assert post.operator.visits == 600
    assert 60 <= post.operator.calls < 400
    np.testing.assert_allclose(post.mean, exact.mean, atol=0.05 * np.sqrt(exact.covariance[0, 0]))
