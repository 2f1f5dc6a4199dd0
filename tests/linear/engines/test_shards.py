"""Distributed EP: EP within shards of the rows."""

import numpy as np
import pytest

from epfast import DEP, EP, fit_linear
from tests import batteries
from tests.oracles.full_fits import TIGHT, assert_same, data, fit, ordered


@pytest.mark.parametrize("order", ["sequential", "shuffled", "parallel"])
@pytest.mark.parametrize("shards", [1, 4, np.arange(60) % 3])
def test_distributed_ep_has_the_fixed_point_of_ep(order, shards):
    X, y = data()
    damping = 0.5 if order == "parallel" else 1.0
    schedule = DEP(shards, **TIGHT, **ordered(order), damping=damping)
    post = fit(X, y, "logistic", schedule=schedule, weights=np.linspace(0.5, 2.0, 60))
    assert post.converged
    assert_same(post, fit(X, y, "logistic", weights=np.linspace(0.5, 2.0, 60)), 1e-7)


def test_one_inner_sweep_in_one_shard_is_ep():
    X, y = data()
    inner = EP(1, 0.0, order="sequential", power=0.7)
    post = fit(X, y, schedule=DEP(1, 3, 0.0, inner=inner))
    assert_same(post, fit(X, y, schedule=EP(3, 0.0, power=0.7, order="sequential")), 1e-10)


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("sweeps", [1, 2, 3, 4, 20])
def test_what_has_converged_is_a_fixed_point(sweeps):
    """Sweeps of the automatic order may begin anew, but never end where they began."""
    X, y = batteries.rows(batteries.LOSSES["hinge"])
    inner = EP(sweeps=sweeps, tol=1e-9)
    given = {"loss": "hinge", "scheme": "laplace", "posterior": "full"}
    post = fit_linear(X, y, **given, schedule=DEP(3, 50, 1e-7, order="shuffled", inner=inner))
    assert post.converged
    assert post.residual < 1e-6
