"""The automatic order: sequential for few rows, in chunks for many."""

import numpy as np
import pytest

from epfast import EP, losses
from tests.oracles.full_fits import TIGHT, assert_same, data, fit, residual

MARGINS = [name for name, kind in losses.NAMED.items() if kind.by_margin]


@pytest.mark.parametrize("loss", MARGINS)
@pytest.mark.parametrize(("n", "d"), [(2000, 4), (300, 20), (30, 40)])
def test_automatic_order_finds_the_fixed_point(n, d, loss):
    X, y = data(n, d, noise=2.0)
    post = fit(X, y, loss)
    assert post.converged
    assert residual(post, X, y, loss) < 1e-8
    assert post.residual < 1e-8
    if loss != "quasi01":  # which may have several
        assert_same(post, fit(X, y, loss, schedule=EP(**TIGHT, order="sequential")), 1e-7)


def test_automatic_order_saves_sweeps():
    X, y = data(8000, 10)
    counts = {}
    for order in ("auto", "parallel"):
        counts[order] = fit(X, y, schedule=EP(tol=1e-6, order=order)).n_sweeps
    assert counts["auto"] <= counts["parallel"] - 2


@pytest.mark.parametrize(
    "schedule",
    [EP(6, 0.0), EP(100, 1e-8, 0.7), EP(6, 0.0, order="sequential")],
    ids=["no tolerance", "damped", "asked for"],
)
def test_without_a_tolerance_or_with_damping_it_is_sequential(schedule):
    X, y = data(1000, 5, noise=2.0)
    seen = []
    post = fit(X, y, schedule=schedule, callback=lambda i, s: seen.append(s.memory.order))
    assert set(seen) == {"sequential"}
    in_order = EP(schedule.sweeps, schedule.tol, schedule.damping, order="sequential")
    np.testing.assert_array_equal(post.mean, fit(X, y, schedule=in_order).mean)


def test_a_schedule_with_an_order_of_its_own_keeps_it():
    class Backwards(EP):
        def visits(self, n, sweep):
            return np.arange(n)[::-1]

    X, y = data(1000, 5, noise=2.0)
    seen = []
    fit(X, y, schedule=Backwards(), callback=lambda i, s: seen.append(s.memory.order))
    assert set(seen) == {"sequential"}


def test_a_wide_prior_and_few_rows_lose_no_sweep():
    X, y = data(60, 5, noise=2.0)
    post, given = fit(X, y, prior_variance=1e3), {"prior_variance": 1e3}
    again = fit(X, y, schedule=EP(**TIGHT, order="sequential"), **given)
    assert post.converged
    assert post.n_sweeps == again.n_sweeps
