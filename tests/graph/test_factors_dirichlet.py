"""Unknown probabilities: Category and Table of Dirichlet variables, against plain EP and sums."""

import numpy as np
import pytest
from scipy.special import digamma, gammaln

import epfast
from epfast.graph import Category, Graph, GraphPosterior, Mixture, Table
from epfast.inference import DataWarning
from tests.oracles.dirichlet import (
    Choice,
    Model,
    by_logs,
    by_moments,
    enumerate_all,
    plain_ep,
)

TIGHT = epfast.EP(sweeps=3000, tol=1e-13)


def star(rng):
    """One p, and variables with weights of their own."""
    K = int(rng.integers(2, 4))
    w = rng.dirichlet(np.ones(K), 10 if K == 2 else 7)
    alpha = rng.uniform(0.5, 4.0, K)
    model = Model([alpha], list(w), [Choice([0], None, v) for v in range(len(w))])
    g = Graph()
    p, z = g.dirichlet(K, alpha), g.categorical(prior=w)
    return model, g, [p], z, [(Category, p, (z,))]


def raters(rng):
    """Classes of items, and what three raters say of each, four times of five the class."""
    K, R = int(rng.integers(2, 4)), 3
    n = 8 if K == 2 else 5
    truth = rng.integers(K, size=n)
    said = np.where(rng.random((n, R)) < 0.8, truth[:, None], rng.integers(K, size=(n, R)))
    rows = 1.0 + 4.0 * np.eye(K)
    choices = [Choice([0], None, v) for v in range(n)]
    for v in range(n):
        for r in range(R):
            choices.append(Choice([1 + r * K + k for k in range(K)], v, (int(said[v, r]),)))
    model = Model([np.ones(K), *np.tile(rows, (R, 1))], [np.ones(K)] * n, choices)
    g = Graph()
    share, confusion = g.dirichlet(K), g.dirichlet(K, rows, shape=(R, K))
    z = g.categorical(n, n=K)
    parts = [(Category, share, (z,)), (Table, confusion, (z[:, None], said))]
    return model, g, [share, confusion], z, parts


def chain(rng):
    """A hidden chain that stays where it is mostly, and shows its state mostly."""
    K, M = 2, 3
    n = 9
    state = np.cumsum(rng.random(n) < 0.2) % K
    shown = np.where(rng.random(n) < 0.85, state, rng.integers(M, size=n))
    steps, emissions = 1.0 + 3.0 * np.eye(K), 1.0 + 4.0 * np.eye(K, M)
    choices = [Choice([0, 1], v, v + 1) for v in range(n - 1)]
    choices += [Choice([2, 3], v, (int(shown[v]),)) for v in range(n)]
    model = Model([*steps, *emissions], [np.full(K, 1 / K), *([np.ones(K)] * (n - 1))], choices)
    g = Graph()
    P, E = g.dirichlet(K, steps), g.dirichlet(M, emissions)
    z = g.categorical(n, n=K)
    g.add(Table([0.5, 0.5]), z[0])
    return model, g, [P, E], z, [(Table, P, (z[:-1], z[1:])), (Table, E, (z, shown))]


def fitted(parts, g, schedule=TIGHT, **options):
    for kind, p, about in parts:
        g.add(kind(p, **options), *about)
    return g.fit(schedule)


def concentrations(post, ps):
    return [row for p in ps for row in np.atleast_2d(post[p].concentration.reshape(-1, p.width))]


# ---- what is exact ----


def test_observed_categories_are_counted():
    """The posterior and the evidence of a multinomial, in closed form, of 1e5 draws too."""
    rng = np.random.default_rng(0)
    for n in (1, 7, 100_000):
        alpha, z = rng.uniform(0.3, 3.0, 4), rng.integers(4, size=n)
        counts = np.bincount(z, minlength=4)
        g = Graph()
        p = g.dirichlet(4, alpha)
        g.add(Category(p), z)
        post = g.fit()
        np.testing.assert_allclose(post[p].concentration, alpha + counts, rtol=1e-10)
        after, before = (gammaln(a).sum() - gammaln(a.sum()) for a in (alpha + counts, alpha))
        np.testing.assert_allclose(post.log_evidence, after - before, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("seed", range(4))
def test_one_hidden_category_is_exact(seed):
    """All others are observed: probabilities, evidence and E log p, by the sum over one."""
    rng = np.random.default_rng(seed)
    K = 3
    alpha, w, z = rng.uniform(0.3, 3.0, K), rng.dirichlet(np.ones(K)), rng.integers(K, size=6)
    g = Graph()
    p, h = g.dirichlet(K, alpha), g.categorical(prior=w)
    g.add(Category(p), z)
    g.add(Category(p), h)
    post = g.fit(TIGHT)
    choices = [Choice([0], None, (int(k),)) for k in z] + [Choice([0], None, 0)]
    _, _, (share,), log_z = enumerate_all(Model([alpha], [w], choices))
    np.testing.assert_allclose(post[h].probabilities, share, rtol=1e-10)
    np.testing.assert_allclose(post.log_evidence, log_z, rtol=1e-10)
    each = alpha + np.bincount(z, minlength=K) + np.eye(K)
    logs = share @ (digamma(each) - digamma(each.sum(axis=1, keepdims=True)))
    found = post[p].concentration
    np.testing.assert_allclose(digamma(found) - digamma(found.sum()), logs, rtol=1e-10)


def test_observed_rows_are_counted():
    """Classes of supervised naive Bayes: x and z are observed, or x selects a row for z."""
    rng = np.random.default_rng(1)
    x, z = rng.integers(3, size=40), rng.integers(4, size=(40, 2))
    g = Graph()
    P = g.dirichlet(4, 0.7, shape=(2, 3))
    g.add(Table(P), x[:, None], z)
    post = g.fit()
    counts = np.zeros((2, 3, 4))
    for f in range(2):
        np.add.at(counts[f], (x, z[:, f]), 1.0)
    np.testing.assert_allclose(post[P].concentration, 0.7 + counts, rtol=1e-10)
    # a new one: posterior of its class by the means of the rows
    h = g.categorical(prior=[0.2, 0.3, 0.5])
    key = g.add(Table(P), h, [1, 2])
    post = g.fit(TIGHT)
    rows = (0.7 + counts) / (0.7 + counts).sum(axis=2, keepdims=True)
    exact = np.array([0.2, 0.3, 0.5]) * rows[0, :, 1] * rows[1, :, 2]
    np.testing.assert_allclose(post[h].probabilities, exact / exact.sum(), rtol=1e-10)
    g.remove(key)
    np.testing.assert_allclose(g.fit(TIGHT)[P].concentration, 0.7 + counts, rtol=1e-10)


# ---- plain EP, and sums over all categories ----


@pytest.mark.parametrize("make", [star, raters, chain])
@pytest.mark.parametrize(
    ("power", "match", "damping"),
    [(1.0, "statistics", 1.0), (0.5, "statistics", 1.0), (1.0, "moments", 0.8)],
)
@pytest.mark.parametrize("seed", range(2))
def test_the_fixed_point_is_that_of_plain_ep(make, power, match, damping, seed):
    plain, g, ps, z, parts = make(np.random.default_rng(seed))
    schedule = epfast.EP(sweeps=3000, tol=1e-13, power=power, damping=damping)
    post = fitted(parts, g, schedule, match=match)
    project = by_logs if match == "statistics" else by_moments
    alphas, probabilities, log_z = plain_ep(plain, power=power, project=project, tol=1e-10)
    assert post.converged
    for found, want in zip(concentrations(post, ps), alphas, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-8)
    np.testing.assert_allclose(post[z].probabilities, probabilities, atol=1e-8)
    np.testing.assert_allclose(post.log_evidence, log_z, atol=1e-8)


@pytest.mark.parametrize(
    ("make", "nats", "sds"), [(star, 0.05, 0.1), (raters, 0.05, 0.1), (chain, 0.2, 0.2)]
)
@pytest.mark.parametrize("seed", range(4))
def test_the_posterior_is_near_the_sum_over_all_categories(make, nats, sds, seed):
    """On the loops of a chain EP is further off."""
    plain, g, ps, z, parts = make(np.random.default_rng(seed))
    post = fitted(parts, g)
    means, variances, probabilities, log_z = enumerate_all(plain)
    assert abs(post.log_evidence - log_z) < nats
    for alpha, mean, variance in zip(concentrations(post, ps), means, variances, strict=True):
        found = alpha / alpha.sum()
        sd = np.sqrt(found * (1.0 - found) / (alpha.sum() + 1.0))
        assert (np.abs(found - mean) < sds * np.sqrt(variance)).all()
        np.testing.assert_allclose(sd, np.sqrt(variance), rtol=max(0.15, sds))
    np.testing.assert_allclose(post[z].probabilities, probabilities, atol=0.1)


def test_the_weights_of_a_mixture_are_learned():
    """Components that are known: a star of p and labels with the densities as weights."""
    rng = np.random.default_rng(3)
    means, alpha = np.array([-2.0, 0.5, 3.0]), np.array([1.0, 2.0, 0.7])
    y = means[rng.integers(3, size=7)] + rng.normal(size=7)
    g = Graph()
    p, h = g.dirichlet(3, alpha), g.categorical(7, n=3)
    centre = g.gaussian(mean=means, variance=1e-10)
    g.add(Category(p), h)
    g.add(Mixture(h, "gaussian"), list(centre), y)
    post = g.fit(epfast.EP(sweeps=3000, tol=1e-10))
    densities = np.exp(-0.5 * (y[:, None] - means) ** 2) / np.sqrt(2.0 * np.pi)
    model = Model([alpha], list(densities), [Choice([0], None, v) for v in range(7)])
    alphas, probabilities, log_z = plain_ep(model, tol=1e-11)
    np.testing.assert_allclose(post[p].concentration, alphas[0], rtol=1e-6)
    np.testing.assert_allclose(post[h].probabilities, probabilities, atol=1e-6)
    np.testing.assert_allclose(
        post.log_evidence, log_z, atol=2e-4
    )  # of centres with precision 1e10


@pytest.mark.parametrize("k", [2, 3, 40])
@pytest.mark.parametrize("size", [1e-2, 1.0, 1e4, 1e9])
def test_a_soft_category_changes_a_dirichlet_by_what_is_right(k, size):
    """E log p after one factor: of large concentrations by differences in 40 digits."""
    mpmath = pytest.importorskip("mpmath")
    rng = np.random.default_rng(k)
    alpha, w = size * rng.uniform(0.5, 2.0, k), rng.dirichlet(np.ones(k))
    g = Graph()
    p, z = g.dirichlet(k, alpha), g.categorical(prior=w)
    g.add(Category(p), z)
    post = g.fit(epfast.EP(sweeps=50, tol=1e-9))
    share = w * alpha / (w @ alpha)
    found = post[p].concentration - alpha
    # prior and site are known to rounding alone
    np.testing.assert_allclose(post[z].probabilities, share, rtol=1e-9)
    with mpmath.workdps(40):
        a = [mpmath.mpf(x) for x in alpha]
        b = [x + mpmath.mpf(d) for x, d in zip(a, post.state.sites[:k], strict=True)]
        for j in range(k):
            rise = mpmath.digamma(b[j]) - mpmath.digamma(sum(b))
            rise -= mpmath.digamma(a[j]) - mpmath.digamma(sum(a))
            exact = mpmath.mpf(share[j]) / a[j] - 1 / sum(a)
            assert abs(rise - exact) <= 1e-8 / sum(a) + 1e-8 * abs(exact)
    assert np.abs(found - post.state.sites[:k]).max() <= 1e-15 * alpha.max() + 1e-12


# ---- what a posterior has ----


def test_predictions_draws_and_checks():
    rng = np.random.default_rng(4)
    _, g, (share, confusion), z, parts = raters(rng)
    post = fitted(parts, g)
    K = share.width
    mean = post[confusion].mean
    np.testing.assert_allclose(post.predict_proba(Category(share)), post[share].mean)
    assert post.predict(Category(confusion)).shape == confusion.shape
    logs = post.log_predictive(Category(share), np.arange(K))
    np.testing.assert_allclose(logs, np.log(post[share].mean), rtol=1e-10)
    q = post[z].probabilities
    of_first = post.predict_proba(Table(confusion[0]), z, None)
    np.testing.assert_allclose(of_first, q @ mean[0], rtol=1e-10)
    back = post.predict_proba(Table(confusion[0]), None, z)
    want = q @ mean[0].T
    np.testing.assert_allclose(back, want / want.sum(axis=1, keepdims=True), rtol=1e-10)
    found = post.log_predictive(Table(confusion), z[:1], [1, 0, 1])
    np.testing.assert_allclose(found, np.log(q[0] @ mean[range(3), :, [1, 0, 1]].T), rtol=1e-9)
    draws = post.sample(4000, rng=0)
    assert draws["v1"].shape == (4000, *confusion.shape, K)
    np.testing.assert_allclose(draws["v1"].sum(axis=-1), 1.0)
    np.testing.assert_allclose(draws["v1"].mean(axis=0), mean, atol=0.02)
    assert "posterior" in str(post.to_arviz(draws=10))
    ends = post.credible_interval(confusion, 0.8)
    assert ends.shape == (*confusion.shape, K, 2)
    np.testing.assert_allclose(np.quantile(draws["v1"], 0.9, axis=0), ends[..., 1], atol=0.03)
    with pytest.raises(TypeError, match="variables are categorical; allowed"):
        post.credible_interval(z)


@pytest.mark.parametrize("make", [star, raters])
def test_the_check_finds_the_exact_posterior(make):
    plain, g, _, _, parts = make(np.random.default_rng(5))
    post = fitted(parts, g)
    check = post.check(draws=100_000)
    means, variances, probabilities, log_z = enumerate_all(plain)
    assert abs(check.log_evidence - log_z) < 0.1
    exact = np.concatenate([*means, *probabilities])
    assert check.mean.shape == exact.shape
    sds = np.sqrt(np.concatenate([*variances, *(p * (1.0 - p) for p in probabilities)]))
    assert (np.abs(check.mean - exact) < 0.1 * sds + 0.01).all()


def test_files_hold_all_of_it(tmp_path):
    _, g, ps, z, parts = chain(np.random.default_rng(6))
    post = fitted(parts, g, epfast.EP(sweeps=3, tol=0.0), match="moments")
    post.save(tmp_path / "post.npz")
    again = epfast.load(tmp_path / "post.npz")
    assert isinstance(again, GraphPosterior)
    for p in (*ps, z):
        np.testing.assert_array_equal(again[p].natural, post[p].natural)
    assert again.log_evidence == post.log_evidence
    more = [Graph.of(one).fit(epfast.EP(sweeps=4, tol=0.0), start=one) for one in (post, again)]
    np.testing.assert_array_equal(more[0].state.beliefs, more[1].state.beliefs)
    assert again.predict_proba(Category(ps[0])).shape == (2, 2)


def test_shared_sites_and_one_pass():
    z = np.array([0, 2, 2, 1, 2])
    for schedule in (epfast.SEP(sweeps=400, tol=1e-10), epfast.AEP(sweeps=400, tol=1e-10)):
        g = Graph()
        p = g.dirichlet(3, 2.0)
        g.add(Category(p), z)
        post = g.fit(schedule)
        np.testing.assert_allclose(post[p].concentration, [3.0, 3.0, 5.0], rtol=1e-7)
    ahead = g.one_step_ahead()[0]
    seen = np.eye(3)[z].cumsum(axis=0) - np.eye(3)[z] + 2.0
    exact = np.log(seen[np.arange(5), z] / seen.sum(axis=1))
    np.testing.assert_allclose(ahead, exact, rtol=1e-10)


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
def test_extreme_numbers_give_numbers():
    rng = np.random.default_rng(7)
    for _ in range(40):
        K, n = int(rng.integers(2, 5)), int(rng.integers(1, 6))
        alpha = 10.0 ** rng.uniform(-3, 9, (K, K))
        w = 10.0 ** rng.uniform(-200, 0, (n, K))
        g = Graph()
        P, z = g.dirichlet(K, alpha), g.categorical(prior=w)
        x = g.categorical(n, n=K)
        g.add(Table(P, match=str(rng.choice(["statistics", "moments"]))), x, z)
        post = g.fit(epfast.EP(sweeps=60, power=float(rng.choice([0.3, 1.0, 1.7]))))
        assert np.isfinite(post.log_evidence)
        assert np.isfinite(post[P].mean).all()
        assert (post[P].concentration > 0.0).all()


# ---- doors, and what is said ----


def test_the_door_of_variables():
    g = Graph()
    assert g.dirichlet(3).shape == ()
    assert g.dirichlet(3, [1.0, 2.0, 3.0], shape=4).shape == (4,)
    assert g.dirichlet(2, np.ones((5, 3, 2))).shape == (5, 3)
    for arguments, said in [
        ((1,), "k is 1; allowed: an integer from 2"),
        ((3, 0.0), "concentration holds 0; allowed: numbers > 0"),
        ((3, [1.0, 2.0]), r"concentration has shape \(2,\); allowed: a number, or \(..., 3\)"),
        ((3, np.nan), "concentration holds nan"),
        ((3, 1e200), "concentration holds 1e\\+200"),
        ((3, 1.0, 0), "allowed: one variable or more"),
        ((3, np.ones((2, 3)), 5), "concentration has shape"),
    ]:
        with pytest.raises(ValueError, match=said):
            g.dirichlet(*arguments)


def test_the_door_of_factors():
    g, other = Graph(), Graph()
    p, P, z = g.dirichlet(3), g.dirichlet(3, shape=2), g.categorical(4, n=3)
    two, x = g.categorical(4, n=2), g.gaussian(2)
    for factor, about, kind, said in [
        (Category(x), (z,), TypeError, "p is a gaussian variable; allowed: dirichlet"),
        (Category(p), (x,), TypeError, "z is a gaussian variable; allowed: categorical"),
        (Category(p), (two,), ValueError, "z has 2 categories; allowed: 3"),
        (Category(p), ([0, 3],), ValueError, "z holds 0 to 3; allowed: whole numbers from 0 to 2"),
        (Category(p), ([-1],), ValueError, "z holds -1"),
        (Category(p), ([0.0, 1.0],), TypeError, "allowed: categorical variables, or observed"),
        (Category(p), (None,), ValueError, "z is None"),
        (Category(p), (z, z), TypeError, "allowed: add\\(Category, z\\)"),
        (Category(other.dirichlet(3)), (z,), ValueError, "p is of another graph"),
        (Table(P), (z, z), ValueError, "x has 3 categories; allowed: 2"),
        (Table(P), (two,), ValueError, "h has 1 variables; allowed with Dirichlet variables: two"),
        (Table(p), (two, z), ValueError, "p is a single Dirichlet variable"),
        (Table(P), (two[:3], z), ValueError, "do not broadcast"),
        (Table(P), (other.categorical(4, n=2), z), ValueError, "h_1 is of another graph"),
        (Table(g.dirichlet(2, shape=2)), (two, two), ValueError, "a variable twice"),
    ]:
        with pytest.raises(kind, match=said):
            g.add(factor, *about)
    with pytest.raises(TypeError, match="p is a categorical variable; allowed: dirichlet"):
        Table(z)
    with pytest.raises(ValueError, match="match is 'means'; allowed: 'statistics', 'moments'"):
        Category(p, match="means")
    with pytest.raises(ValueError, match="match is 'moments' with a table of numbers"):
        Table([0.5, 0.5], match="moments")
    with pytest.raises(TypeError, match="a linear form is over dirichlet variables"):
        g.add("gaussian", p, 1.0)
    assert repr(g) == "Graph(15 variables, 0 factors)"


def test_impossible_categories_name_the_factor():
    g = Graph()
    p, z = g.dirichlet(2), g.categorical(prior=[1.0, 0.0])
    g.add(Category(p), z)
    g.add(Table([0.0, 1.0]), z)
    with pytest.raises(ValueError, match="evidence is 0"):
        g.fit()


def test_equal_priors_of_exchangeable_categories_are_said():
    """Rows that are alike stay alike; a diagonal, other factors or one unlike row break it."""
    rng = np.random.default_rng(8)
    said = rng.integers(3, size=(12, 4))
    for rows, shares, warns in [
        (1.0, 1.0, True),
        (1.0 + np.eye(3), 1.0, False),
        (1.0, [1.0, 2.0, 3.0], False),
    ]:
        g = Graph()
        share, confusion, z = (
            g.dirichlet(3, shares),
            g.dirichlet(3, rows, (4, 3)),
            g.categorical(12, n=3),
        )
        g.add(Category(share), z)
        g.add(Table(confusion), z[:, None], said)
        if warns:
            with pytest.warns(DataWarning, match="a permutation of the categories"):
                post = g.fit()
            np.testing.assert_allclose(post[z].probabilities, 1 / 3)
        else:
            g.fit(epfast.EP(sweeps=2000))
    g = Graph()
    P, z, x = g.dirichlet(2, shape=2), g.categorical(9, n=2), g.gaussian(mean=[-1.0, 1.0])
    g.add(Table(P), z[:-1], z[1:])
    g.add(Mixture(z, "gaussian"), list(x), rng.normal(size=9))
    g.fit(epfast.EP(sweeps=2000))  # without a warning


def test_the_core_refuses_arrays_that_do_not_fit():
    from epfast._core.graph_dirichlet import DirichletBatch

    def batch(kind, size, z=None, starts=None):
        edges = len(kind)
        starts = np.array([0, edges]) if starts is None else np.array(starts)
        at = np.concatenate([[0], np.cumsum(size)[:-1]]).astype(np.intp)
        return DirichletBatch(starts, at, kind, size, z, False, False)

    batch([4, 3], [3, 3])
    batch([4, 4, 3], [3, 3, 2], np.array([2]))
    for arguments, said in [
        (([3, 3], [3, 3]), "not rows, x and z"),
        (([4], [3]), "not rows, x and z"),
        (([4, 4, 3], [3, 3, 3], np.array([2])), "differ in their families or sizes"),
        (([4, 3], [3, 2]), "differ in their families or sizes"),
        (([4, 4], [3, 2], np.array([0, 0]), [0, 1, 2]), "differ in their families or sizes"),
        (([4], [3], np.array([3])), "z is not of the categories"),
        (([4], [3], np.array([-1])), "z is not of the categories"),
        (([4], [3], np.array([0, 1])), "z is not of the categories"),
    ]:
        with pytest.raises(ValueError, match=said):
            batch(*arguments)
