"""Gamma and beta variables in a graph: noise of unknown precision, products, links, their doors."""

import copy
import pickle

import numpy as np
import pytest
from scipy import sparse, stats
from scipy.special import gammaln

import epfast
from epfast import losses
from epfast._core.graph import Program
from epfast.families import Gamma
from epfast.graph import CompoundGamma, Factor, Graph, LogisticLink, Mixture, Noise, Product
from epfast.graph.engine import GraphEngine
from epfast.graph.problem import legal, ready
from tests.oracles import tilted_factors as exact

TIGHT = epfast.EP(sweeps=500, tol=1e-11, damping=0.7)


def test_priors_are_what_was_given():
    g = Graph()
    tau = g.gamma((2, 3), shape=[1.0, 2.0, 3.0], rate=0.5)
    p = g.beta(alpha=[0.5, 2.0], beta=4.0)
    g.add(CompoundGamma(), g.gamma())
    with pytest.warns(epfast.inference.DataWarning):
        post = g.fit()
    np.testing.assert_allclose(post[tau].shape, [[1, 2, 3]] * 2)
    np.testing.assert_allclose(post[tau].rate, np.full((2, 3), 0.5))
    np.testing.assert_allclose(post[tau].mean, [[2, 4, 6]] * 2)
    np.testing.assert_allclose(post[tau].variance, [[4, 8, 12]] * 2)
    np.testing.assert_allclose(post[tau[1, 2]].sd, np.sqrt(12))
    law = stats.beta([0.5, 2.0], 4.0)
    np.testing.assert_allclose(post[p].alpha, [0.5, 2.0])
    np.testing.assert_allclose(post[p].beta, [4.0, 4.0])
    np.testing.assert_allclose(post[p].mean, law.mean())
    np.testing.assert_allclose(post[p].variance, law.var())
    with pytest.raises(AttributeError, match="alpha, beta"):
        _ = post[p].rate


def test_the_precision_of_known_residuals_is_conjugate():
    """With x all but known tau is Ga(a + n / 2, b + sum of squares / 2), the evidence Student's."""
    rng = np.random.default_rng(0)
    y, a, b = rng.normal(size=12), 1.5, 0.7
    g = Graph()
    x, tau = g.gaussian(12, variance=1e-14), g.gamma(shape=a, rate=b)
    g.add(Noise(tau), y - x)
    post = g.fit(TIGHT)
    shape, rate = a + 6.0, b + 0.5 * y @ y
    assert post.converged
    np.testing.assert_allclose([post[tau].shape, post[tau].rate], [shape, rate], rtol=1e-6)
    evidence = gammaln(shape) - gammaln(a) + a * np.log(b) - shape * np.log(rate)
    np.testing.assert_allclose(post.log_evidence, evidence - 6 * np.log(2 * np.pi), rtol=1e-9)


@pytest.mark.parametrize(("power", "damping"), [(1.0, 1.0), (1.0, 0.5), (0.5, 0.7)])
def test_a_fixed_point_has_the_moments_of_each_factor(power, damping):
    """And its evidence is that of the cavities: by brute force, factor by factor."""
    rng = np.random.default_rng(1)
    n = 8
    y = np.cumsum(rng.normal(size=n)) + rng.normal(size=n)
    g = Graph()
    variance = np.full(n, np.inf)
    variance[0] = 10.0
    x, o, s = g.gaussian(variance=variance), g.gamma(shape=2.0), g.gamma(shape=3.0, rate=2.0)
    first, second = g.add(Noise(o), y - x), g.add(Noise(s), x[1:] - x[:-1])
    post = g.fit(epfast.EP(sweeps=500, tol=1e-11, damping=damping, power=power))
    assert post.converged
    terms = 0.0
    for key, tau, states in ((first, o, 1), (second, s, 2)):
        rows, starts, sites, _ = post.by_batch[key]
        for row, start in zip(rows, starts[:-1], strict=True):
            site = sites[start : start + 2 * states + 2].reshape(-1, 2)
            numbers = [row] if states == 1 else [row + 1, row]
            belief = [post[x[numbers]].natural, post[tau].natural]
            cavity = np.concatenate(belief) - power * site
            sign = -1.0 if states == 1 else np.array([1.0, -1.0])
            m = np.sum(sign * cavity[:-1, 1] / cavity[:-1, 0]) + (y[row] if states == 1 else 0.0)
            v = np.sum(1.0 / cavity[:-1, 0])
            log_z, (mean, variance), (log, e) = exact.noise(
                m, v, cavity[-1, 0] + 1.0, cavity[-1, 1], power
            )
            np.testing.assert_allclose(Gamma.statistics(belief[1])[0], [log, e], rtol=1e-8)
            # of the form: belief of each neighbour from its distribution
            d, d2 = (mean - m) / v, (variance - v) / v**2
            s2 = 1.0 / cavity[:-1, 0]
            np.testing.assert_allclose(
                post[x[numbers]].mean, cavity[:-1, 1] * s2 + sign * s2 * d, rtol=1e-8
            )
            np.testing.assert_allclose(post[x[numbers]].variance, s2 + s2**2 * d2, rtol=1e-8)
            kinds = [*[epfast.families.Gaussian] * states, Gamma]
            for kind, eta in zip(kinds, cavity, strict=True):
                log_z += kind.log_partition(eta[None])[0]
            for kind, eta in zip(kinds, np.concatenate(belief), strict=True):
                log_z -= kind.log_partition(eta[None])[0]
            terms += log_z / power
    for v in (x, o, s):
        kind = epfast.families.FAMILIES[v.family]
        terms += kind.log_partition(post[v].natural).sum()
    terms -= kind.log_partition(np.array([[1.0, 1.0]]))[0]
    terms -= kind.log_partition(np.array([[2.0, 2.0]]))[0]
    terms -= 0.5 * np.log(2 * np.pi * 10.0)
    np.testing.assert_allclose(post.log_evidence, terms, rtol=1e-9)


def test_a_state_is_visited_with_its_observation():
    """The order follows the states, wherever the precisions were made."""
    rng = np.random.default_rng(2)
    y = np.cumsum(rng.normal(size=20))
    found = []
    for late in (False, True):
        g = Graph()
        o = None if late else g.gamma(shape=2.0)
        variance = np.full(20, np.inf)
        variance[0] = 10.0
        x = g.gaussian(variance=variance)
        o = g.gamma(shape=2.0) if late else o
        g.add(Noise(o), x[1:] - x[:-1])
        g.add(epfast.losses.Gaussian(1.0), x, y)
        found.append(g.fit(epfast.EP(sweeps=3, tol=0.0)))
    np.testing.assert_allclose(found[0].log_evidence, found[1].log_evidence, rtol=1e-12)
    assert found[0].history[0].change == pytest.approx(found[1].history[0].change)


def test_one_link_is_exact():
    g = Graph()
    z = g.gaussian(3, mean=[1.0, -1.0, 0.0], variance=[4.0, 1.0, 30.0])
    p = g.beta(3, alpha=[1.0, 3.0, 0.5], beta=2.0)
    g.add(LogisticLink(), z, p)
    post = g.fit()
    log_z = 0.0
    for k, (m, v, a) in enumerate([(1.0, 4.0, 1.0), (-1.0, 1.0, 3.0), (0.0, 30.0, 0.5)]):
        evidence, moments, logs, _ = exact.logistic(m, v, a, 2.0)
        log_z += evidence
        np.testing.assert_allclose([post[z].mean[k], post[z].variance[k]], moments, rtol=1e-9)
        natural = post[p[k]].natural
        np.testing.assert_allclose(epfast.families.Beta.statistics(natural)[0], logs, rtol=1e-9)
    assert post.converged
    np.testing.assert_allclose(post.log_evidence, log_z, rtol=1e-10)


def test_a_flat_precision_with_a_compound_gamma():
    """tau has no prior of its own; an unused flat one is refused."""
    g = Graph()
    tau = g.gamma(2, rate=0.0)
    g.add(CompoundGamma(2.0, 3.0, 1.5), tau[0])
    with pytest.raises(ValueError, match="neither a prior nor a factor"):
        g.fit()
    g.add(CompoundGamma(2.0, 3.0, 1.5), tau[1])
    post = g.fit()
    assert post.converged
    np.testing.assert_allclose(post[tau].mean, [4.5, 4.5], rtol=1e-9)
    np.testing.assert_allclose(post.log_evidence, 0.0, atol=1e-10)


def test_factors_that_leave_a_flat_precision_improper(tmp_path):
    """Their product cannot be integrated at 0. The belief is proper, and may be saved."""
    g = Graph()
    tau = g.gamma(rate=0.0)
    for s2 in (0.58, 0.347, 0.347):
        g.add(CompoundGamma(1.3, 3.1, s2), tau)
    with pytest.warns(epfast.ConvergenceWarning, match="refused"):
        post = g.fit()
    assert post[tau].variance > 0.0
    post.save(tmp_path / "post.npz")
    assert epfast.load(tmp_path / "post.npz")[tau].mean == post[tau].mean


@pytest.mark.parametrize("rows", [1, 5])
def test_a_flat_precision_of_noise(rows):
    """As with a prior that a factor takes off again; a scale of one's own may be its prior."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, rows))
    y = X @ rng.normal(size=rows) + rng.normal(size=100)
    fits = []
    for rate in (0.0, 8.0):
        g = Graph()
        w, tau = g.block(rows, variance=1e8), g.gamma(shape=1.0, rate=rate)
        half_cauchy = Factor(
            lambda t, rate=rate: rate * t - 1.5 * np.log(t) - np.log1p(1 / (6.25 * t)), "quadrature"
        )
        g.add(half_cauchy, tau)
        g.add(Noise(tau), y - X @ w)
        post = g.fit()
        assert post.converged
        fits.append(np.append(post[w].mean, post[tau].mean))
    np.testing.assert_allclose(*fits, rtol=1e-4)
    np.testing.assert_allclose(fits[0][:-1], np.linalg.lstsq(X, y, rcond=None)[0], atol=1e-3)


def test_a_matrix_of_rank_one():
    rng = np.random.default_rng(3)
    a, b = rng.uniform(0.5, 2.0, size=6), rng.uniform(0.5, 2.0, size=5)
    y = np.outer(a, b) + 0.1 * rng.normal(size=(6, 5))
    g = Graph()
    # the first entry of a fixes the scale
    u = g.gaussian(mean=np.append(a[0], np.ones(5)), variance=[1e-4, 1, 1, 1, 1, 1])
    v = g.gaussian(5, mean=1.0)
    g.add(Product(0.01), u[:, None], v[None], y)
    post = g.fit(epfast.EP(sweeps=300, damping=0.5, tol=1e-4))
    assert post.converged
    np.testing.assert_allclose(post[u].mean, a, atol=0.2)
    np.testing.assert_allclose(post[v].mean, b, atol=0.2)


def test_products_with_a_variable_that_they_define():
    """z = x y is flat by itself; an observation of it tells of x and y."""
    g = Graph()
    x, y, z = g.gaussian(mean=2.0), g.gaussian(mean=3.0), g.gaussian(variance=np.inf)
    g.add(Product(), x, y, z)
    g.add(epfast.losses.Gaussian(0.5), z, 7.0)
    post = g.fit(TIGHT)
    direct = Graph()
    u, v = direct.gaussian(mean=2.0), direct.gaussian(mean=3.0)
    direct.add(Product(0.5), u, v, 7.0)
    other = direct.fit(TIGHT)
    assert post.converged
    for a, b in ((x, u), (y, v)):
        np.testing.assert_allclose(post[a].mean, other[b].mean, rtol=1e-9)
        np.testing.assert_allclose(post[a].variance, other[b].variance, rtol=1e-9)
    np.testing.assert_allclose(post.log_evidence, other.log_evidence, rtol=1e-9)


def test_a_symmetric_product_is_said_to_be_stuck():
    g = Graph()
    x, y = g.gaussian(2), g.gaussian(2)
    g.add(Product(1.0), x, y, 3.0)
    with pytest.warns(epfast.inference.DataWarning, match="Product have prior means of 0"):
        post = g.fit()
    np.testing.assert_allclose(post[x].mean, [0.0, 0.0], atol=1e-12)
    g.add(epfast.losses.Gaussian(1.0), x, [1.0, 1.0])
    assert (g.fit(epfast.EP(sweeps=200, damping=0.5))[y].mean > 0.5).all()


def test_more_data_after_a_fit_and_less():
    rng = np.random.default_rng(4)
    y = rng.normal(size=30)
    g = Graph()
    x, tau = g.gaussian(variance=10.0), g.gamma(shape=2.0)
    forms = x + np.zeros(30)
    g.add(Noise(tau), y[:20] - forms[:20])
    first = g.fit(TIGHT)
    more = g.add(Noise(tau), y[20:] - forms[20:])
    warm, cold = g.fit(TIGHT, start=first), g.fit(TIGHT)
    np.testing.assert_allclose(warm[x].mean, cold[x].mean, rtol=1e-8)
    np.testing.assert_allclose(warm[tau].rate, cold[tau].rate, rtol=1e-8)
    np.testing.assert_allclose(warm.log_evidence, cold.log_evidence, rtol=1e-8)
    g.remove(more)
    np.testing.assert_allclose(g.fit(TIGHT, start=warm)[tau].rate, first[tau].rate, rtol=1e-8)
    again = pickle.loads(pickle.dumps(g)).fit(TIGHT)
    np.testing.assert_array_equal(again.state.beliefs, g.fit(TIGHT).state.beliefs)
    assert again.log_evidence == copy.deepcopy(g).fit(TIGHT).log_evidence


def test_results_do_not_depend_on_other_families_in_the_graph():
    rng = np.random.default_rng(5)
    y = rng.normal(size=10)
    beliefs = []
    for crowd in (False, True):
        g = Graph()
        if crowd:
            p, h = g.beta(3), g.categorical(2, n=4)
            g.add(LogisticLink(), g.gaussian(3), p)
            g.add(epfast.graph.Table(np.eye(4) + 1.0), h[0], h[1])
        x, tau = g.gaussian(10), g.gamma(shape=2.0)
        g.add(Noise(tau), y - x)
        post = g.fit(TIGHT)
        beliefs.append((post[x].mean, post[tau].shape, post[tau].rate))
    for a, b in zip(*beliefs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


def test_runs_of_factors_are_what_one_by_one_gives():
    """Every factor of the program by itself, in its order: the same numbers."""
    rng = np.random.default_rng(6)
    g = Graph()
    x = g.gaussian(12, mean=rng.normal(size=12))
    o, s = g.gamma(4, shape=2.0), g.gamma(shape=3.0)
    h = g.categorical(6, n=2)
    g.add(Noise(o[np.arange(12) % 4]), 1.0 - x)
    g.add(Noise(s), x[1:] - x[:-1])
    g.add(Product(0.5), x[:4], x[4:8], x[8:])
    g.add(Mixture(h, losses.Gaussian(1.0)), [x[:6], x[6:]], rng.normal(size=6))
    problem = ready(g._model, legal(epfast.EP()))
    engine = GraphEngine(problem)
    runs = engine.program.segments
    singles = [[k, i, i + 1] for k, first, stop in runs for i in range(first, stop)]
    assert len(singles) > len(runs)
    found = []
    for segments in (runs, np.array(singles, dtype=np.intp)):
        batches = [
            batch.factor.sweep(batch.select(rows), problem.edges(batch.select(rows)), False)
            for batch, rows in zip(problem.model.batches, engine.program.rows, strict=True)
        ]
        program = Program(batches, np.ascontiguousarray(segments))
        state = engine.init(None)
        for backward in (False, True):
            program.run(
                0,
                len(segments),
                backward,
                state.beliefs,
                state.beliefs,
                state.sites,
                state.sites,
                state.log_scale,
                1.0,
                1.0,
            )
        assert program.counts() == (0, 0)
        found.append(state)
    for name in ("beliefs", "sites", "log_scale"):
        np.testing.assert_allclose(*(getattr(v, name) for v in found), rtol=1e-12, atol=1e-12)


# ---- the door ----


def graph():
    g = Graph()
    return g, g.gaussian(3), g.gamma(3), g.beta(3), g.categorical(3, n=2)


def test_variables_that_cannot_be():
    g = Graph()
    for bad in (0.0, -1.0, np.nan, np.inf, [1.0, -2.0]):
        with pytest.raises(ValueError, match="shape holds"):
            g.gamma(shape=bad)
        with pytest.raises(ValueError, match="rate holds"):
            g.gamma(shape=2.0, rate=bad)
        with pytest.raises(ValueError, match="alpha holds"):
            g.beta(alpha=bad)
        with pytest.raises(ValueError, match="beta holds"):
            g.beta(beta=bad)
    with pytest.raises(ValueError, match="do not broadcast"):
        g.gamma(shape=[1.0, 2.0], rate=[1.0, 2.0, 3.0])
    with pytest.raises((TypeError, ValueError), match="shape"):
        g.gamma(shape="wide")
    with pytest.raises(ValueError, match="size"):
        g.beta(0)


CALLS = {
    "a form over precisions": (lambda g, x, t, p, h: g.add(Noise(t), t - 1.0), "scalar Gaussian"),
    "tau is Gaussian": (lambda g, x, t, p, h: g.add(Noise(x), x), "tau is a gaussian"),
    "tau is a number": (lambda g, x, t, p, h: g.add(Noise(2.0), x), "tau is"),
    "tau of another graph": (lambda g, x, t, p, h: g.add(Noise(Graph().gamma(3)), x), "another"),
    "shapes": (lambda g, x, t, p, h: g.add(Noise(t), x[:2]), "shapes of tau"),
    "no form": (
        lambda g, x, t, p, h: g.add(Noise(t)),
        r"missing .*: .form.; allowed: add\(Noise, form\)",
    ),
    "match": (lambda g, x, t, p, h: g.add(Noise(t, match="mean"), x), "match"),
    "product of one": (lambda g, x, t, p, h: g.add(Product(), x, x, x[[1, 2, 0]]), "twice"),
    "product of two": (lambda g, x, t, p, h: g.add(Product(), x[0], x[1]), "missing .*: .z."),
    "observed, no noise": (lambda g, x, t, p, h: g.add(Product(), x[0], x[1], 2.0), "> 0"),
    "NaN": (lambda g, x, t, p, h: g.add(Product(1.0), x[0], x[1], np.nan), "NaN"),
    "negative": (lambda g, x, t, p, h: g.add(Product(-1.0), x[0], x[1], x[2]), ">= 0"),
    "product of a beta": (lambda g, x, t, p, h: g.add(Product(), x[0], p[0], x[1]), "y is a beta"),
    "product's shapes": (
        lambda g, x, t, p, h: g.add(Product(), x[:2], x[2], x),
        "do not broadcast",
    ),
    "link to a gamma": (lambda g, x, t, p, h: g.add(LogisticLink(), x, t), "p is a gamma"),
    "link from a beta": (lambda g, x, t, p, h: g.add(LogisticLink(), p, p), "z is a beta"),
    "compound of a beta": (lambda g, x, t, p, h: g.add(CompoundGamma(), p), "tau is a beta"),
    "s1": (lambda g, x, t, p, h: g.add(CompoundGamma(0.0), t), "s1 holds 0"),
    "r1": (lambda g, x, t, p, h: g.add(CompoundGamma(1.0, [1.0, 2.0]), t), "r1 has shape"),
    "a loss on a gamma": (lambda g, x, t, p, h: g.add("probit", t, 1), "over gamma variables"),
}


@pytest.mark.parametrize("name", CALLS)
def test_factors_that_cannot_be(name):
    call, message = CALLS[name]
    g, *variables = graph()
    with pytest.raises((TypeError, ValueError), match=message):
        call(g, *variables)
    with pytest.raises(ValueError, match="no factor"):
        g.fit()


def test_read_only_and_single_precision_numbers():
    y = np.ones(3, dtype=np.float32)
    y.flags.writeable = False
    g, x, tau, _, _ = graph()
    g.add(Noise(tau), y - x)
    g.add(CompoundGamma(np.float32(2.0), y, 1), tau)
    g.add(Product(y[:1]), x[:1], x[1:2], x[2:])
    with pytest.warns(epfast.inference.DataWarning):
        assert g.fit(epfast.EP(sweeps=200, damping=0.5)).converged


def test_sparse_rows_times_variables():
    X = sparse.csr_array(np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]]))
    g = Graph()
    x = g.gaussian(3, mean=[1.0, 2.0, 3.0])
    for form in (X @ x, X.tocsc() @ x, X.toarray() @ x):
        g.add(losses.Gaussian(1e8), form, [0.0, 0.0])
        np.testing.assert_allclose(g.fit().predict_latent(form)[0], [7.0, 6.0], rtol=1e-6)


def test_coefficients_of_zero_are_no_terms():
    """A dense X and its sparse form, with a variable that is flat but for another factor."""
    X = np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0], [0.0, 0.0, 1.0]])
    found = []
    for rows in (X, sparse.csr_array(X)):
        g = Graph()
        x, tau = g.gaussian(3, variance=[1.0, np.inf, 1.0]), g.gamma(shape=3.0)
        g.add(losses.Gaussian(0.5), rows @ x, [1.0, 2.0, 0.0])
        g.add(Noise(tau), 1.0 - rows @ x)
        post = g.fit(TIGHT)
        assert post.converged
        found.append((post[x].mean, post[x].variance, post[tau].rate, post.log_evidence))
    for dense, few in zip(*found, strict=True):
        np.testing.assert_allclose(dense, few, rtol=1e-9, atol=1e-12)
