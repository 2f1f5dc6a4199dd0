"""The automatic order: parallel sweeps where they contract, else sequential ones."""

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


def orders(schedule, **given):
    """That of the sweep after each sweep, and the fit."""
    seen = []
    X, y = data(60, 5, noise=2.0)
    post = fit(X, y, schedule=schedule, callback=lambda i, s: seen.append(s.order.order), **given)
    return seen, post


@pytest.mark.parametrize(
    "schedule",
    [EP(6, 0.0), EP(100, 1e-8, 0.7), EP(6, 0.0, order="sequential")],
    ids=["no tolerance", "damped", "asked for"],
)
def test_without_a_tolerance_or_with_damping_it_is_sequential(schedule):
    seen, post = orders(schedule)
    assert set(seen) == {"sequential"}
    in_order = EP(schedule.sweeps, schedule.tol, schedule.damping, order="sequential")
    np.testing.assert_array_equal(post.mean, orders(in_order)[1].mean)


def test_parallel_sweeps_that_do_not_contract_give_way_and_the_sequential_ones_begin_anew():
    seen, post = orders(EP(**TIGHT), prior_variance=1e3)
    wasted = seen.index("sequential") + 1
    assert 3 < wasted < 10
    assert seen == (wasted - 1) * ["parallel"] + (len(seen) - wasted + 1) * ["sequential"]
    again, anew = orders(EP(**TIGHT, order="sequential"), prior_variance=1e3)
    assert_same(post, anew, 1e-8)
    assert post.converged
    # from flat sites again, at no loss but that of the parallel sweeps
    assert len(seen) <= wasted + len(again) + 1
