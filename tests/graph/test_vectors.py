"""Vector kernels of runs of factors against a plain EP, one factor at a time in NumPy."""

import math

import numpy as np
import pytest
from scipy import special

import epfast
from epfast import EP, Graph, losses
from epfast._core.graph import compare, compare_forms
from epfast.graph import Between, Transition

pytestmark = pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")

LEAST = 1e-10
HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def log_partition(tau, nu):
    return 0.5 * nu * nu / tau - 0.5 * math.log(tau) + HALF_LOG_2PI


class Plain:
    """The same sweeps with Python's numbers: forward, backward, in the sequential order."""

    def __init__(self, problem):
        self.q = problem.prior.reshape(-1, 2).copy()
        self.prior, self.refused = self.q.copy(), 0
        self.power, self.damping = problem.schedule.power, problem.schedule.damping
        self.factors = [
            (batch, row, np.zeros((batch.terms.counts[row], 2)), [0.0])
            for batch in problem.model.batches
            for row in range(batch.n)
        ]
        self.order = problem.model.order()

    def sweep(self, backward):
        for f in self.order[::-1] if backward else self.order:
            batch, row, site, scale = self.factors[f]
            terms = batch.terms
            part = slice(terms.starts[row], terms.starts[row + 1])
            at, a = terms.variables[part], terms.coefficient[part]
            cavity = self.q[at] - self.power * site
            numbers = {name: value[row] for name, value in batch.data.items()}
            if isinstance(batch.factor, Transition):
                found = self.transition(numbers, cavity, self.q[at])
            else:
                found = self.form(batch.factor, numbers, a, cavity, self.q[at])
            if found is None:
                self.refused += 1
                continue
            new, g = found
            step = self.damping * (new - site)
            if not (np.isfinite(step).all() and (self.q[at, 0] + step[:, 0] > 0.0).all()):
                self.refused += 1
                continue
            self.q[at] += step
            site += step
            scale[0] += self.damping * (g / self.power - scale[0])

    def transition(self, numbers, cavity, q):
        cavity = np.where(np.abs(cavity[:, :1]) < LEAST * q[:, :1], 0.0, cavity)
        phi, s2 = numbers["factor"], numbers["variance"] / self.power
        (tau, nu), (next_tau, next_nu) = cavity
        D, E = phi * phi + s2 * tau, 1.0 + s2 * next_tau
        if not (D > 0.0 and E > 0.0):
            return None
        ahead = np.array([tau / D, phi * nu / D])
        back = np.array([phi * phi * next_tau / E, phi * next_nu / E])
        whole = cavity[1] + ahead
        if not whole[0] > 0.0:
            return None
        g = -0.5 * math.log(E) + 0.5 * next_nu**2 * s2 / E - log_partition(*whole)
        if self.power != 1.0:
            g += 0.5 * (math.log(s2) - self.power * math.log(s2 * self.power))
            g += (1.0 - self.power) * HALF_LOG_2PI
        return np.stack([back, ahead]) / self.power, g

    def form(self, factor, numbers, a, cavity, q):
        if not ((cavity[:, 0] > LEAST * q[:, 0]) & (cavity[:, 0] > 0.0)).all():
            return None
        s = 1.0 / cavity[:, 0]
        mu = cavity[:, 1] * s
        m, v = numbers["offset"] + a @ mu, numbers["noise"] + a * a @ s
        if isinstance(factor, Between):
            moments, power = losses.Interval(1e-150).tilted(), 1.0
        else:
            moments, power = factor.loss.tilted(), self.power
        lZ, d, d2 = (x[0] for x in moments.call(numbers["y"][None], [m], [v], power))
        shrink = 1.0 + a * a * s * d2
        if not (shrink > LEAST).all():
            return None
        mean = mu + a * s * d
        g = lZ - 0.5 * np.log(shrink).sum() + 0.5 * ((mu * mu - mean * mean / shrink) / s).sum()
        new = np.stack([-a * a * d2 / shrink, a * (d - a * mu * d2) / shrink], axis=1)
        return new / self.power, g

    @property
    def log_evidence(self):
        total = sum(scale[0] for *_, scale in self.factors)
        for q, prior in zip(self.q, self.prior, strict=True):
            total += log_partition(*q) - (log_partition(*prior) if prior[0] > 0.0 else 0.0)
        return total


def random_graph(seed, noise):
    """Chains, and forms of one to four terms of all kinds, some with outliers."""
    rng = np.random.default_rng(seed)
    g = Graph()
    n, steps = 23, 9
    x = g.gaussian(
        (n, steps), mean=rng.normal(size=(n, steps)), variance=rng.uniform(0.5, 3, (n, steps))
    )
    g.add(
        Transition(rng.uniform(0.1, 2.0, (n, steps - 1)), rng.normal(1.0, 0.3, (n, steps - 1))),
        x[:, :-1],
        x[:, 1:],
    )
    flat = x.reshape(-1)

    def some(k, terms):
        rows = np.stack([rng.permutation(flat.size)[:terms] for _ in range(k)])
        a = rng.normal(size=(k, terms)) * 0.5 + 0.1
        form = a[:, 0] * flat[rows[:, 0]]
        for j in range(1, terms):
            form = form + a[:, j] * flat[rows[:, j]]
        return form + rng.normal(size=k)

    def sign(k):
        return rng.choice([-1, 1], k)

    g.add("probit", some(61, 2), sign(61), noise=0.5)
    g.add("logistic", some(37, 1), sign(37))
    g.add("logistic", some(50, 3), sign(50))
    g.add("student_t", some(45, 2), rng.standard_t(1.5, size=45) * 20.0)
    g.add("poisson", some(19, 4), rng.poisson(1.0, 19))
    for terms in (1, 2, 3):
        # without noise narrow ends contradict each other, and precisions explode
        lower = rng.normal(size=40) * 0.5 - (0.5 if noise else 4.0)
        upper = lower + rng.choice([0.3 if noise else 6.0, 1.0 if noise else 7.0, 8.0, np.inf], 40)
        lower[::3] = -np.inf
        g.add(Between(lower, upper), some(40, terms), noise=noise)
    return g, x


@pytest.mark.parametrize(("power", "damping"), [(1.0, 1.0), (1.0, 0.6), (0.7, 1.0), (1.3, 0.5)])
@pytest.mark.parametrize("seed", range(3))
def test_runs_are_a_plain_ep(seed, power, damping):
    g, x = random_graph(seed, noise=0.3 if power == 1.0 else 0.0)
    if power != 1.0:
        g.remove(1)
        g.add("probit", x[:, 2] - 0.5 * x[:, 4], 1)
    post = g.fit(EP(sweeps=3, tol=0.0, power=power, damping=damping))
    plain = Plain(post.problem)
    for k in range(3):
        plain.sweep(backward=k == 1)
    q = post.state.beliefs.reshape(-1, 2)
    np.testing.assert_allclose(q[:, 0], plain.q[:, 0], rtol=1e-11)
    np.testing.assert_allclose(
        q[:, 1], plain.q[:, 1], rtol=1e-11, atol=1e-11 * np.abs(plain.q[:, 1]).max()
    )
    assert post.n_refused == plain.refused
    assert post.log_evidence == pytest.approx(plain.log_evidence, rel=1e-11)


def test_refused_lanes_leave_the_others_alone():
    """Outliers of Student's t make cavities improper: those factors wait, the run goes on."""
    refused = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        g = Graph()
        x = g.gaussian(40, variance=30.0)
        for _ in range(6):
            g.add("student_t", x, rng.standard_t(1.0, size=40) * 10.0)
        post = g.fit(EP(sweeps=4, tol=0.0, power=1.0))
        plain = Plain(post.problem)
        for k in range(4):
            plain.sweep(backward=k % 2 == 1)
        assert post.n_refused == plain.refused
        refused += plain.refused
        np.testing.assert_allclose(post.state.beliefs.reshape(-1, 2), plain.q, rtol=1e-9, atol=1e-9)
    assert refused > 0


@pytest.mark.parametrize("away", [-30.0, -6.5, -5.9, -0.3, 0.0, 0.4, 5.0, 38.0, 1e4])
def test_one_end_is_a_probit(away):
    """log Z and the posterior of N(x; m, v) cut at 0, against scipy, on both sides."""
    v = 2.5
    m = away * math.sqrt(v)
    for sign, ends in ((1.0, (0.0, np.inf)), (-1.0, (-np.inf, 0.0))):
        g = Graph()
        x = g.gaussian((), mean=sign * m, variance=v)
        g.add(Between(*ends), x)
        post = g.fit(EP(sweeps=1, tol=0.0))
        log_p = special.log_ndtr(away)
        h = math.exp(-0.5 * away * away - HALF_LOG_2PI - log_p)
        rounding = 1e-15 * (1.0 + away * away)
        assert post.log_evidence == pytest.approx(log_p, rel=1e-11, abs=rounding)
        mean = sign * (m + math.sqrt(v) * h)
        if away > -10.0:  # else the two cancel
            assert float(post[x].mean) == pytest.approx(mean, rel=1e-11)
            assert float(post[x].variance) == pytest.approx(v * (1 - h * (h + away)), rel=1e-9)


def test_moves_of_gaussians():
    rng = np.random.default_rng(0)
    for n in (1, 7, 8, 33, 1000):
        mean, old_mean = rng.normal(size=(2, n))
        tau, old = np.exp(rng.normal(size=(2, n)) * 3.0)
        before, after = (np.stack([t, t * m], 1).ravel() for t, m in ((old, old_mean), (tau, mean)))
        moved, total = compare(before, after, n)
        steps = np.maximum(np.abs(mean - old_mean) * np.sqrt(tau), 0.5 * np.abs(np.log(tau / old)))
        assert moved == pytest.approx(steps.max(), rel=1e-12)
        parts = 0.5 * (tau * mean**2 - np.log(tau) + math.log(2 * math.pi))
        assert total == pytest.approx(parts.sum(), rel=1e-12)
        at = 2 * np.arange(n)
        ones = compare_forms(before, after, np.arange(n + 1), at, np.ones(n))
        assert ones == pytest.approx(moved, rel=1e-12)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_moves_of_extreme_gaussians(size):
    before = np.array([size, 0.0] * 9)
    after = np.array([4.0 * size, 0.0] * 9)
    moved, total = compare(before, after, 9)
    assert moved == pytest.approx(math.log(2.0))
    assert total == pytest.approx(9 * (HALF_LOG_2PI - 0.5 * math.log(4.0 * size)))
    before[4] = 0.0
    assert compare(before, after, 9)[0] == 1e8
    after[7] = np.nan
    assert math.isnan(compare(before, after, 9)[0])


def test_watched_forms_go_to_their_limit():
    """Two groups that few factors tie: slow, and the same fixed point in fewer sweeps."""
    rng = np.random.default_rng(5)
    g = Graph()
    s = g.gaussian(60, variance=4.0)
    group = np.repeat([0, 1], 30)
    i, j = rng.integers(0, 60, (2, 3000))
    keep = (i != j) & (group[i] == group[j])
    i, j = np.append(i[keep], 3), np.append(j[keep], 40)
    g.add("probit", s[i] - s[j], rng.choice([-1, 1], len(i)), noise=1.0)
    form = s[i] - s[j]
    exact, variance = g.fit(EP(sweeps=3000, tol=1e-12)).predict_latent(form)
    post = g.fit(EP(sweeps=500, tol=1e-6), watch=form)
    plain = g.fit(EP(sweeps=len(post.history), tol=0.0))
    away = [np.abs(p.predict_latent(form)[0] - exact) / np.sqrt(variance) for p in (post, plain)]
    assert post.converged
    assert away[0].max() < 1e-5
    assert away[0].max() < 0.1 * away[1].max()


def test_one_step_ahead_is_the_chain_rule_of_a_gaussian_filter():
    """Probits of one variable: log p of each given those before it, by a plain filter."""
    rng = np.random.default_rng(6)
    y = rng.choice([-1, 1], 30)
    g = Graph()
    x = g.gaussian((), variance=2.0)
    key = g.add("probit", x, y)
    found = g.one_step_ahead()[key]
    m, v = 0.0, 2.0
    for label, log_p in zip(y, found, strict=True):
        lZ, d, d2 = (t[0] for t in epfast.backend.tilted_moments("probit", [label], [m], [v]))
        assert log_p == pytest.approx(lZ, rel=1e-12)
        m, v = m + v * d, v + v * v * d2
