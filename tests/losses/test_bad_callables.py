"""A user's own loss that is wrong, or odd: its error is passed on, nothing gives NaN or leaks."""

import numpy as np

import epfast
from epfast import EP, backend, fit_linear
from epfast.schemes import NAMED
from tests.oracles.bad_values import MU, VAR, X, Y

CLEAN = (ValueError, TypeError, FloatingPointError)
LOGISTIC = epfast.Logistic()
SCHEMES = [name for name, kind in NAMED.items() if kind().refuses(LOGISTIC, "minibatch") is None]
MINIBATCHES = {"posterior": "factorized", "scheme": "variational", "batch_size": 10}
MINIBATCHES |= {"prior_variance": 25.0}


def fit(X=X, y=Y, **arguments):
    return fit_linear(X, y, **(MINIBATCHES | {"schedule": EP(sweeps=2, tol=0.0)} | arguments))


def minibatch(loss="logistic", scheme="variational"):
    return backend.fit_minibatch(loss, X, MU, VAR, scheme)


def check_finite(post):
    assert np.isfinite([post.mean, post.variance]).all()
    assert np.isfinite(post.log_evidence)


def same(one, other, rtol=1e-12):
    for name in ("mean", "variance", "log_evidence", "n_refused", "n_sweeps"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol, err_msg=name)
