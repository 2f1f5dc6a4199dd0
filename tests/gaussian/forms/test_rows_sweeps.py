"""Sweeps over scalar sites: resumed, watched, interrupted, refreshed."""

import pickle

import numpy as np
import pytest

import epfast
from epfast import EP
from epfast.gaussian.fit_linear import fit_problem
from tests.oracles import full_fits
from tests.oracles.scalar_sites import (
    assert_near,
    data,
    fit,
)

# the automatic order is asked for by a tolerance, which a few sweeps do not reach
short = pytest.mark.filterwarnings("ignore:EP did not converge:epfast.ConvergenceWarning")


@pytest.mark.parametrize("order", ["sequential", "shuffled", "parallel"])
def test_resume_goes_on_as_if_it_had_not_stopped(order, tmp_path):
    X, y = data()
    eight, five = (EP(sweeps=n, tol=0, **full_fits.ordered(order, 7), damping=0.5) for n in (8, 5))
    seen, whole = [], fit(X, y, schedule=eight)
    half = fit(X, y, schedule=eight, callback=lambda i, s: seen.append(s.shift) or i.sweep == 3)
    assert (half.n_sweeps, len(seen), half.converged) == (3, 3, False)
    np.testing.assert_allclose(seen[-1], half.shift, rtol=1e-12, atol=1e-12)
    half.save(tmp_path / "half.npz")
    kept = pickle.dumps(half.state)
    for start in (half, epfast.load(tmp_path / "half.npz"), pickle.loads(pickle.dumps(half))):
        rest = fit(X, y, schedule=five, start=start)
        assert_near(rest, whole, 1e-10)
        assert [info.sweep for info in rest.history] == [4, 5, 6, 7, 8]
    assert pickle.dumps(half.state) == kept


@short
@pytest.mark.parametrize("order", ["auto", "sequential", "shuffled", "parallel"])
def test_states_that_a_callback_keeps_stay_as_they_were(order):
    """Sites are updated in place where nobody looks at the old ones, to the same end."""
    X, y = data(400, 5)
    schedule, states, copies = EP(5, 0.0, **full_fits.ordered(order, 3)), [], []
    if order == "auto":
        schedule = EP(5, 1e-300)

    def keep(info, state):
        states.append(state)
        copies.append(pickle.dumps(state))

    watched = fit(X, y, schedule=schedule, callback=keep)
    assert [pickle.dumps(state) for state in states] == copies
    assert pickle.dumps(watched.state) == pickle.dumps(fit(X, y, schedule=schedule).state)


@short
@pytest.mark.parametrize("order", ["auto", "sequential", "shuffled", "parallel"])
def test_an_interrupted_sweep_leaves_a_posterior_of_its_sites(order, monkeypatch):
    X, y = data(380, 5)
    schedule = EP(50, 1e-10, **full_fits.ordered(order, 3))
    whole, first = fit(X, y, schedule=schedule), fit(X, y, schedule=EP(1, 0.0))
    # 20 rows at a time, or 128
    a_sweep = 3 if order == "parallel" else 19
    problem, kept = whole.problem, pickle.dumps(first.state)
    monkeypatch.setattr("epfast.gaussian.problem.CHUNK", 5 * 20)
    for start, chunks in ((None, 0), (None, 7), (None, 30), (None, 50), (first, 7), (first, 44)):
        left = iter(range(chunks))

        def tick(rows, left=left):
            assert rows == (20 if a_sweep == 19 else min(rows, 128))
            if next(left, None) is None:
                raise KeyboardInterrupt

        with pytest.raises(epfast.Interrupted) as caught:
            fit_problem(problem, start, progress=tick)
        post = caught.value.posterior
        assert len(post.history) == post.n_sweeps - (start is not None) == chunks // a_sweep
        assert not post.converged
        tau, nu, _ = post.sites
        precision = post.prior_precision + X.T * tau @ X
        np.testing.assert_allclose(post.precision, precision, rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(post.shift, X.T @ nu, rtol=1e-10, atol=1e-10)
        assert_near(fit(X, y, schedule=schedule, start=post), whole, 1e-7)
    assert pickle.dumps(first.state) == kept


@pytest.mark.parametrize("d", [6, 300])
def test_drift_is_measured_and_small(d):
    X, y = full_fits.data(400, d)
    post = full_fits.fit(X, y, schedule=EP(8, 0.0, order="sequential"))
    assert all(info.drift < 1e-9 for info in post.history)


def test_a_vague_prior_costs_no_digits():
    """Variances that fall by many orders in the first sweep are computed anew from the sites."""
    X, y = full_fits.data(400, 6)
    post = full_fits.fit(
        X, y, prior_variance=1e12, schedule=EP(**full_fits.TIGHT, order="sequential")
    )
    assert post.history[0].drift is not None
    assert full_fits.residual(post, X, y, "probit") < 1e-8
