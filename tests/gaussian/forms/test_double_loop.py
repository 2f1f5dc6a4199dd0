"""DoubleLoop: descent to EP's fixed points."""

import signal

import numpy as np
import pytest
from scipy import special

import epfast
from epfast import EP, ConvergenceWarning, CustomSite, DoubleLoop, NoisyStep, fit_gp
from epfast.gaussian import double_loop
from epfast.gaussian.double_loop import DescentEngine
from epfast.gaussian.rows import Data
from epfast.gaussian.table import NO_KERNEL, Choices
from epfast.inference import Sites
from epfast.inference.runtime import no_tick
from epfast.schemes import Exact
from tests.oracles.data import clusters
from tests.oracles.triples import noisy_step


class Start:
    """Sites to go on from, as a posterior has them."""

    n_sweeps = 0

    def __init__(self, precision, shift):
        self.sites = Sites(precision, shift, np.zeros(len(shift)))


def descent(K, y, loss, power=1.0):
    schedule = DoubleLoop(start=EP(power=power)).filled(power=1.0, damping=1.0)
    chosen = Choices(loss, Exact(), schedule, "process", None)
    problem = chosen.problem(Data(None, loss.responses("y", y, len(y))), NO_KERNEL)
    return DescentEngine(problem.with_kernel(K.copy()))


def stepped(engine, state):
    """After a step that lowers F."""
    swept = engine.sweep(state, False, no_tick)
    assert not swept.stuck
    return swept.state


def mismatch(K, y, epsilon, sites, power=1.0):
    """Of tilted moments and marginals, in plain NumPy; sites are a fixed point where it is 0."""
    tau, nu = sites[:2]
    covariance = np.linalg.solve(np.eye(len(y)) + K * tau, K)
    mean, s = covariance @ nu, np.diag(covariance)
    v = 1 / (1 / s - power * tau)
    m = v * (mean / s - power * nu)
    _, g, h = noisy_step(epsilon)(y, m, v, power)
    return max(abs((m + v * g - mean) / np.sqrt(s)).max(), abs((v + v**2 * h) / s - 1).max())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("flips", [0.1, 0.2])
def test_ends_at_a_fixed_point_where_sweeps_do_not(flips, seed):
    K, y = clusters(120, flips, seed)
    fit = fit_gp(K, y, loss=NoisyStep(flips), schedule=DoubleLoop(EP(3, 1e-7)))
    assert fit.converged
    assert len(fit.history) > 3
    assert fit.n_sweeps == len(fit.history)
    assert fit.residual < 1e-6
    assert mismatch(K, y, flips, fit.sites) < 1e-6
    # sweeps do not look at the mismatch of moments, steps do
    assert [info.mismatch is None for info in fit.history[:4]] == [True] * 3 + [False]
    assert fit.history[-1].mismatch <= fit.schedule.match < fit.history[-2].mismatch
    # every step is one up the log evidence
    evidence = [info.log_evidence for info in fit.history[3:]]
    assert (np.diff(evidence) > -1e-9).all()
    assert fit.log_evidence == pytest.approx(evidence[-1], rel=1e-10)
    np.testing.assert_allclose(K @ fit.alpha, fit.mean, rtol=0, atol=1e-8)


@pytest.mark.parametrize("power", [1.0, 0.6])
@pytest.mark.parametrize("loss", ["probit", "logistic", "hinge", NoisyStep(0.3)])
def test_is_the_fixed_point_of_the_sweeps(loss, power):
    """Where these settle: a likelihood that is log-concave has one fixed point."""
    K, y = clusters(40, 0.0, 1)
    K *= 3.0
    sweeps = fit_gp(K, y, loss=loss, schedule=EP(2000, 1e-12, power=power, damping=0.7))
    descent = fit_gp(K, y, loss=loss, schedule=DoubleLoop(EP(1, 1e-12, power=power)))
    assert sweeps.converged
    assert descent.converged
    sd = np.sqrt(sweeps.variance)
    np.testing.assert_allclose(descent.mean / sd, sweeps.mean / sd, rtol=0, atol=1e-6)
    np.testing.assert_allclose(descent.variance, sweeps.variance, rtol=1e-6)
    assert descent.log_evidence == pytest.approx(sweeps.log_evidence, rel=1e-9)
    new = (K[:5] * 0.5, np.diag(K)[:5])
    np.testing.assert_allclose(
        descent.predict_proba(*new), sweeps.predict_proba(*new), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("power", [1.0, 0.7])
def test_slope_and_curvature_of_what_descends(power):
    """F's gradient and Hessian, which only show in the number of steps, by differences of F."""
    K, y = clusters(6, 0.3, 5)
    loss = NoisyStep(0.2)
    engine = descent(K, y, loss, power)
    state = engine.init(Start(np.full(6, 0.1), 0.2 * y))
    while state.point.mismatch > 1e-6:
        state = stepped(engine, state)
    # near to where the tilted moments match the marginals
    s = state.point.s * np.random.default_rng(0).uniform(0.97, 1.03, size=(2, 6))
    point = engine._inner(s, state.point.r, 1e-26)
    assert point is not None

    def at(move):
        found = engine._inner(s + move, point.r, 1e-26)
        return engine._value(found)

    size = 1e-3 * np.abs(s)
    first, second = np.empty(12), np.empty((12, 12))
    units = np.eye(12) * size.ravel()
    for i in range(12):
        up, down = (at((sign * units[i]).reshape(2, 6)) for sign in (1, -1))
        first[i] = (up - down) / (2 * size.ravel()[i])
        for j in range(12):
            corners = [
                at((a * units[i] + b * units[j]).reshape(2, 6)) * a * b
                for a in (1, -1)
                for b in (1, -1)
            ]
            second[i, j] = sum(corners) / (4 * size.ravel()[i] * size.ravel()[j])
    # Newton's step from these is the one that is taken with no ridge, to the error of differences
    eigenvalues = np.linalg.eigvalsh(second)
    assert eigenvalues.min() > 0
    expected = s + np.reshape(-np.linalg.solve(second, first), (2, 6))
    state = stepped(engine, state._replace(point=point, ridge=0.0))
    assert state.ridge == 0.0
    moved = (state.point.s - s) / np.abs(s)
    np.testing.assert_allclose(moved, (expected - s) / np.abs(s), rtol=0, atol=1e-4)
    assert np.abs(moved).max() > 0.01


def test_covariances_of_what_is_matched():
    """Of x and -x^2 / 2, by sums over distributions of nine points, far from the marginals."""
    rng = np.random.default_rng(0)
    f, w = rng.normal(size=(3, 9)), rng.dirichlet(np.ones(9), size=3)
    s = np.array([[0.5, -1.0, 0.0], [2.0, 0.3, 1.0]])
    mean = (w * f).sum(axis=1)
    second, third, fourth = ((w * (f - mean[:, None]) ** k).sum(axis=1) for k in (2, 3, 4))
    cumulants = mean, second, third, fourth - 3.0 * second**2
    found = double_loop._blocks(s, double_loop._Tilted(np.zeros(3), *cumulants))
    x = (f - (s[0] / s[1])[:, None]) * np.sqrt(s[1])[:, None]
    for k in range(3):
        want = np.cov([x[k], -0.5 * x[k] ** 2], aweights=w[k], ddof=0)
        np.testing.assert_allclose(found[:, k], want[[0, 0, 1], [0, 1, 1]], rtol=1e-9)


def test_systems_are_solved_by_blocks():
    """a H_q + H_r in matrices of order n, against matrices of order 2 n."""
    n, power = 7, 0.7
    K, y = clusters(n, 0.3, 5)
    engine = descent(K, y, NoisyStep(0.2), power)
    rng = np.random.default_rng(0)
    start = engine.init(Start(rng.uniform(0.1, 0.5, n), rng.normal(size=n))).point
    s = start.s * rng.uniform(0.9, 1.1, size=(2, n))
    point = engine._inner(s, start.r, 1e-10)
    unit = np.sqrt(s[1])
    S = engine._process(point.r)[1] * np.outer(unit, unit)
    T = np.eye(2 * n)
    T[n:, :n] = -np.diag((point.moments.mean - s[0] / s[1]) * unit)
    Hr = T @ np.block([[S, np.zeros((n, n))], [np.zeros((n, n)), 0.5 * S**2]]) @ T.T
    b11, b12, b22 = map(np.diag, point.blocks)
    Hq = np.block([[b11, b12], [b12, b22]])
    right = rng.normal(size=2 * n)
    M = power * Hq + Hr
    np.testing.assert_allclose(point.factor.solve(right), np.linalg.solve(M, right), rtol=1e-9)
    want = np.tril(Hq @ np.linalg.solve(M, Hq))
    np.testing.assert_allclose(np.tril(point.factor.between(point.blocks)), want, atol=1e-10)


@pytest.mark.parametrize("off", [1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
def test_goes_on_from_near_a_fixed_point(off):
    """Where F falls by less than what a coarse inner loop would leave of it."""
    K, y = clusters(40, 0.1, 1)
    loss = NoisyStep(0.3)
    fit = fit_gp(K, y, loss=loss, schedule=EP(200, 1e-13, damping=0.7))
    assert fit.converged
    engine = descent(K, y, loss)
    tau, nu, _ = fit.sites
    rng = np.random.default_rng(0)
    start = Start(tau + off * rng.normal(size=40), nu + off * rng.normal(size=40))
    state = engine.init(start)
    for _ in range(4):
        if state.point.mismatch > 1e-8:
            state = stepped(engine, state)
    point = state.point
    sd = np.sqrt(fit.variance)
    for found in (point.moments.mean, point.tilted.mean, point.s[0] / point.s[1]):
        np.testing.assert_allclose(found / sd, fit.mean / sd, rtol=0, atol=1e-6)
    for found in (point.moments.variance, point.tilted.variance, 1 / point.s[1]):
        np.testing.assert_allclose(found, fit.variance, rtol=1e-6)


def test_is_not_used_where_sweeps_settle():
    K, y = clusters(30, 0.0, 2)
    plain = fit_gp(K, y, schedule=EP(30))
    other = fit_gp(K, y, schedule=DoubleLoop(EP(30)))
    np.testing.assert_array_equal(plain.mean, other.mean)
    assert len(plain.history) == len(other.history)


def test_sites_of_ones_own():
    """Moments by a callable; third and fourth ones are differences."""
    K, y = clusters(25, 0.2, 3)

    def probit(mean, variance):
        z = mean / np.sqrt(1 + variance)
        ratio = np.exp(-0.5 * z**2 - special.log_ndtr(z)) / np.sqrt(2 * np.pi * (1 + variance))
        return special.log_ndtr(z), ratio, -ratio * (z / np.sqrt(1 + variance) + ratio)

    schedule = DoubleLoop(EP(1, 1e-9))
    own = fit_gp(K, y, loss=CustomSite(probit), schedule=schedule)
    known = fit_gp(K, y, loss="probit", schedule=schedule)
    assert own.converged
    np.testing.assert_allclose(own.mean, known.mean, rtol=0, atol=1e-7)


def test_resumes_and_stops_when_asked():
    K, y = clusters(60, 0.2, 0)
    schedule = DoubleLoop(EP(2, 1e-8))
    seen = []
    part = fit_gp(
        K, y, loss=NoisyStep(0.2), schedule=schedule, callback=lambda i, s: seen.append(i) or
        len(seen) == 5,
    )  # fmt: skip
    assert len(part.history) == 5
    assert not part.converged
    # asked to stop during the sweeps, it does not begin
    short = fit_gp(K, y, loss=NoisyStep(0.2), schedule=schedule, callback=lambda i, s: True)
    assert len(short.history) == 1
    with pytest.warns(ConvergenceWarning, match="no fixed point of EP was found: after 1 step"):
        one = fit_gp(K, y, loss=NoisyStep(0.2), schedule=DoubleLoop(EP(2, 1e-8), steps=1))
    assert not one.converged
    # from what it found a fit goes on
    rest = fit_gp(K, y, loss=NoisyStep(0.2), schedule=schedule, start=part)
    assert rest.converged
    assert rest.n_sweeps == len(part.history) + len(rest.history)


def test_a_step_depends_on_its_state_alone():
    """Whatever the engine did before; and states of before stay as they were."""
    K, y = clusters(40, 0.2, 0)
    engine = descent(K, y, NoisyStep(0.2))
    states = [engine.init(Start(np.zeros(40), np.zeros(40)))]
    for _ in range(3):
        states.append(stepped(engine, states[-1]))
    other = descent(K, y, NoisyStep(0.2))
    for before, after in zip(states[-2::-1], states[:0:-1], strict=True):
        again = stepped(other, before)
        np.testing.assert_array_equal(again.sites, after.sites)
        np.testing.assert_array_equal(again.moments.mean, after.moments.mean)
        assert (again.sweeps, again.ridge) == (after.sweeps, after.ridge)
        settled = other.finish(before)
        np.testing.assert_array_equal(settled.sites, before.sites)
        np.testing.assert_allclose(settled.moments.mean, before.moments.mean, rtol=0, atol=1e-9)


def test_interrupt_keeps_the_last_step():
    K, y = clusters(60, 0.2, 0)

    def interrupt(info, state):
        if info.sweep == 4:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(epfast.Interrupted) as caught:
        fit_gp(
            K, y, loss=NoisyStep(0.2), schedule=DoubleLoop(EP(2)), callback=interrupt
        )  # fmt: skip
    post = caught.value.posterior
    assert [info.sweep for info in post.history] == [1, 2, 3, 4]
    np.testing.assert_allclose(K @ post.alpha, post.mean, rtol=0, atol=1e-8)


def test_refusals():
    with pytest.raises(ValueError, match=r"start has tol=0.*allowed with DoubleLoop: tol > 0"):
        DoubleLoop(start=EP(tol=0.0))
    with pytest.raises(TypeError, match=r"start is ADF.*allowed: an epfast.EP"):
        DoubleLoop(start=epfast.ADF())
    for given in ({"steps": 0}, {"match": 0.0}, {"match": np.nan}):
        with pytest.raises(ValueError, match=f"^{next(iter(given))} is .*allowed"):
            DoubleLoop(**given)
    with pytest.raises(TypeError, match="fallback"):
        EP(fallback="double_loop")
    X = np.eye(3)
    for given in ({"X": X}, {"K": X, "rank": 2}):
        fit = fit_gp if "K" in given else epfast.fit_linear
        with pytest.raises(ValueError, match=r"schedule is DoubleLoop.*allowed with .*: EP"):
            fit(y=[1, -1, 1], schedule=DoubleLoop(), **given)
    with pytest.raises(ValueError, match="site_rule is 'keep'; not allowed with a process, EP"):
        fit_gp(X, [1, -1, 1], schedule=DoubleLoop(start=EP(site_rule="keep")))


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize(
    "loss",
    [
        lambda m: np.logaddexp(0.0, -m).astype("f4"),
        lambda m: np.where(m < -1.0, np.inf, np.logaddexp(0.0, -m)),
    ],
    ids=["single precision", "infinite"],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_loss_of_few_digits_ends(loss, seed):
    """The descent stops where its steps gain no more than the rounding of the loss."""
    rng, calls = np.random.default_rng(seed), []
    x = rng.normal(size=(8, 2))
    K = np.exp(-0.5 * ((x[:, None] - x) ** 2).sum(axis=-1)) + 1e-6 * np.eye(8)
    y = np.where(rng.normal(size=8) > 0, 1.0, -1.0)

    def counted(m):
        calls.append(len(m))
        assert len(calls) < 600_000
        return loss(m)

    post = fit_gp(K, y, loss=counted, schedule=DoubleLoop(start=EP(2, 1e-12)))
    assert post.history[-1].mismatch < 1e-3
