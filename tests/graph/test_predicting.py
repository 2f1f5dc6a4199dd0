"""Predictions of each kind of factor: closed forms, mpmath, draws from the beliefs; refusals."""

import mpmath
import numpy as np
import pytest
from scipy import special, stats

import epfast
from epfast import EP, Graph, losses
from epfast.graph import (
    Between,
    CompoundGamma,
    Factor,
    LogisticLink,
    Mixture,
    Noise,
    Product,
    Table,
    Transition,
    Walk,
)

DRAWS = 400_000


@pytest.fixture(scope="module")
def fitted():
    """A graph whose variables are told apart by some data."""
    rng = np.random.default_rng(0)
    g = Graph()
    x = g.gaussian(4, mean=[0.5, -1.0, 2.0, 0.3], variance=[1.0, 0.5, 2.0, 0.8])
    w = g.block(3)
    tau = g.gamma(2, shape=[3.0, 0.5], rate=[2.0, 0.4])
    h = g.categorical(3, probabilities=[[0.2, 0.8], [0.6, 0.4], [0.5, 0.5]])
    k = g.categorical(3, n=3)
    p = g.beta(4)
    z = g.gaussian(2, mean=1.0, variance=np.inf)
    g.add("probit", x[0] - x[1], 1)
    g.add("logistic", rng.normal(size=(5, 3)) @ w, [1, -1, 1, 1, -1])
    g.add(Table([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]]), h, k)
    g.add(Product(0.2), x[:2], x[2:], z)
    g.x, g.w, g.tau, g.h, g.k, g.p, g.z = x, w, tau, h, k, p, z
    return g, g.fit()


def draws(post, variables, rng):
    belief = post[variables]
    return belief.mean + belief.sd * rng.standard_normal((DRAWS, *variables.shape))


# ---- Between ----


def test_between_is_the_probability_of_the_interval(fitted):
    g, post = fitted
    form = np.array([1.0, -2.0]) * g.x[:2] + np.ones((2, 3)) @ g.w + 0.3
    lower, upper, noise = np.array([-1.0, -np.inf]), np.array([0.5, 2.0]), np.array([0.4, 0.0])
    mean, variance = post.predict_latent(form)
    sd = np.sqrt(variance + noise)
    expected = special.ndtr((upper - mean) / sd) - special.ndtr((lower - mean) / sd)
    kind = Between(lower, upper)
    np.testing.assert_allclose(post.predict_proba(kind, form, noise=noise), expected, rtol=1e-12)
    logs = post.log_predictive(kind, form, noise=noise)
    np.testing.assert_allclose(logs, np.log(expected), rtol=1e-12)


@pytest.mark.parametrize(
    ("lower", "width"), [(60.0, 1e-9), (-80.0, 3.0), (0.4, 1e-12), (40.0, np.inf)]
)
def test_between_far_out_and_narrow(fitted, lower, width):
    g, post = fitted
    upper = lower + width
    found = post.log_predictive(Between(lower, upper), g.x[0])
    mean, variance = (mpmath.mpf(float(v)) for v in post.predict_latent(g.x[0]))
    with mpmath.workdps(1500):
        a, b = ((mpmath.mpf(end) - mean) / mpmath.sqrt(variance) for end in (lower, upper))
        a, b = (-b, -a) if a > 0 else (a, b)
        expected = mpmath.log(mpmath.ncdf(b) - mpmath.ncdf(a))
    assert found == pytest.approx(float(expected), rel=1e-11)


def test_between_adds_up_and_is_what_the_factor_has_for_evidence(fitted):
    g, post = fitted
    ends = np.array([-np.inf, -1.0, 0.2, 3.0, np.inf])
    shares = post.predict_proba(Between(ends[:-1], ends[1:]), g.x[[0, 0, 0, 0]], noise=0.3)
    assert shares.sum() == pytest.approx(1.0, abs=1e-14)
    one = Graph()
    y = one.gaussian(mean=post[g.x[0]].mean, variance=post[g.x[0]].variance)
    one.add(Between(-1.0, 0.2), y, noise=0.3)
    assert one.fit().log_evidence == pytest.approx(np.log(shares[1]), abs=1e-12)


def test_between_of_a_flat_form_and_of_a_certain_one():
    g = Graph()
    tau = g.gamma()
    x, other, y = g.gaussian(variance=np.inf), g.gaussian(variance=np.inf), g.gaussian()
    g.add("probit", x - other, 1)
    g.add("probit", y, 1)
    with pytest.warns(epfast.ConvergenceWarning):
        post = g.fit()
    assert post[x].variance == np.inf
    assert post.log_predictive(Noise(tau), x) == -np.inf
    assert post.predict_variance(Product(), x, y) == np.inf
    for ends, share in (((-1.0, 1.0), 0.0), ((-np.inf, 3.0), 0.5), ((-np.inf, np.inf), 1.0)):
        assert post.predict_proba(Between(*ends), x) == pytest.approx(share, abs=1e-15)
    nothing = 0.0 * y + 0.5
    assert post.predict_proba(Between(0.0, 1.0), nothing) == 1.0
    assert post.predict_proba(Between(1.0, 2.0), nothing) == 0.0


# ---- Noise ----


def student(m, v, a, b):
    """By mpmath: log of int N(m; 0, v + 1 / tau) Ga(tau; a, b) dtau."""
    with mpmath.workdps(30):
        m, v, a, b = (mpmath.mpf(float(x)) for x in (m, v, a, b))
        c = mpmath.log(a / b)

        def f(u):
            s = v + mpmath.exp(-u)
            prior = a * u - b * mpmath.exp(u) + a * mpmath.log(b) - mpmath.loggamma(a)
            return mpmath.exp(prior - m * m / (2 * s)) / mpmath.sqrt(2 * mpmath.pi * s)

        low = min(c, -mpmath.log(m * m + b))
        ends = [low - 200, low - 40, low - 10, *mpmath.linspace(low - 5, c + 5, 25), c + 20]
        return float(mpmath.log(mpmath.quad(f, ends)))


@pytest.mark.full
def test_noise_is_integrated_over_the_precision(fitted):
    g, post = fitted
    form = np.array([[1.0], [-3.0]]) - g.x[:1] - 0.5 * g.x[1]
    found = post.log_predictive(Noise(g.tau), form)
    assert found.shape == (2, 2)
    mean, variance = post.predict_latent(form)
    shape, rate = post[g.tau].shape, post[g.tau].rate
    expected = [
        [student(mean[i, 0], variance[i, 0], shape[j], rate[j]) for j in range(2)] for i in range(2)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-11)
    # the same integral as in the core
    one = Graph()
    y, tau = one.gaussian(mean=mean[0, 0], variance=variance[0, 0]), one.gamma(1, shape[0], rate[0])
    one.add(Noise(tau), y.reshape(1))
    assert one.fit().log_evidence == pytest.approx(found[0, 0], abs=1e-9)


@pytest.mark.parametrize(
    ("m", "v", "a", "b"),
    [
        (0.3, 1.0, 2.0, 3.0),
        (10.0, 1e-4, 2000.0, 20.0),  # two modes: noise is small, and the value far out
        (40.0, 900.0, 0.15, 1.0),
        (0.0, 1e-8, 1.5, 1e3),
        (5.0, 0.01, 300.0, 1e-2),
        (1e3, 1e-3, 0.7, 1e-4),
    ],
)
def test_noise_density(m, v, a, b):
    g = Graph()
    x, tau = g.gaussian(variance=v), g.gamma(shape=a, rate=b)
    g.add(Noise(tau), x + m)
    beliefs = g.fit(EP(sweeps=1, tol=0.0, damping=1e-12))  # the priors, nearly
    found = beliefs.log_predictive(Noise(tau), x + m)
    m, v = m + beliefs[x].mean, beliefs[x].variance
    a, b = beliefs[tau].shape, beliefs[tau].rate
    # sums over a fine grid of log tau
    c, step = np.log(a / b), 0.1 / np.sqrt(a + 1.0)
    u = np.arange(min(c, -np.log(m * m + b)) - 30.0 - 60.0 / min(a, 1.0), c + 8.0, step)
    t, s = u - c, v + np.exp(-u)
    logs = -a * (np.expm1(t) - t) - 0.5 * np.log(2.0 * np.pi * s) - 0.5 * m * m / s
    norm = special.logsumexp(-a * (np.expm1(t) - t))
    assert found == pytest.approx(special.logsumexp(logs) - norm, rel=1e-9, abs=1e-9)


def test_noise_mean_and_variance(fitted):
    g, post = fitted
    mean, variance = post.predict_latent(g.x)
    np.testing.assert_array_equal(post.predict(Noise(g.tau[0]), g.x), mean)
    found = post.predict_variance(Noise(g.tau[0]), g.x)
    belief = post[g.tau[0]]
    np.testing.assert_allclose(found, variance + belief.rate / (belief.shape - 1.0), rtol=1e-14)
    # a shape below 1 has no E[1 / tau]
    assert (post.predict_variance(Noise(g.tau[1]), g.x) == np.inf).all()


# ---- Product, LogisticLink, Transition ----


def test_products(fitted):
    g, post = fitted
    rng = np.random.default_rng(1)
    x, y = g.x[:2].reshape(2, 1), g.x[2:].reshape(1, 2)
    kind = Product(np.array([0.3, 0.0]))
    assert post.predict(kind, x, y).shape == (2, 2)
    drawn = draws(post, x, rng) * draws(post, y, rng)
    mean, variance = post.predict(kind, x, y), post.predict_variance(kind, x, y)
    expected = drawn.var(axis=0) + kind.variance
    assert (abs(mean - drawn.mean(axis=0)) < 5.0 * np.sqrt(variance / DRAWS)).all()
    np.testing.assert_allclose(variance, expected, rtol=0.03)


def test_transitions(fitted):
    g, post = fitted
    factor, variance = np.array([0.5, -2.0, 1.0, 3.0]), 0.4
    kind, x = Transition(variance, factor=factor), post[g.x]
    np.testing.assert_allclose(post.predict(kind, g.x), factor * x.mean, rtol=1e-14)
    expected = factor**2 * x.variance + variance
    np.testing.assert_allclose(post.predict_variance(kind, g.x), expected, rtol=1e-14)


def test_transition_is_the_belief_about_one_more_state():
    y = np.array([0.3, 1.2, 0.8])
    beliefs = []
    for n in (3, 4):
        g = Graph()
        x = g.gaussian(n, variance=[1.0] + [np.inf] * (n - 1))
        g.add(Transition(0.3, factor=0.8), x[:-1], x[1:])
        g.add(losses.Gaussian(0.5), x[:3], y)
        beliefs.append((g.fit(), x))
    (post, x), (longer, all_x) = beliefs
    step = Transition(0.3, factor=0.8)
    assert post.predict(step, x[2]) == pytest.approx(longer[all_x[3]].mean, abs=1e-9)
    assert post.predict_variance(step, x[2]) == pytest.approx(longer[all_x[3]].variance, abs=1e-9)


def test_link_is_the_mean_of_the_logistic_function(fitted):
    g, post = fitted
    found = post.predict(LogisticLink(), g.x)
    drawn = special.expit(draws(post, g.x, np.random.default_rng(2)))
    np.testing.assert_allclose(found, drawn.mean(axis=0), atol=3e-3)


# ---- Table ----


def test_tables_are_sums(fitted):
    g, post = fitted
    rng = np.random.default_rng(3)
    p = rng.random((3, 2, 4, 3))  # a table for each row; 4 categories of what is predicted
    found = post.predict_proba(Table(p), g.h, None, g.k)
    a, b = post[g.h].probabilities, post[g.k].probabilities
    expected = np.zeros((3, 4))
    for n, i, j, c in np.ndindex(p.shape):
        expected[n, j] += p[n, i, j, c] * a[n, i] * b[n, c]
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    modes = post.predict(Table(p), g.h, None, g.k)
    np.testing.assert_array_equal(modes, expected.argmax(axis=1))
    # a single variable, and what is there without one
    each = post.predict_proba(Table(np.eye(3)), None, g.k)
    np.testing.assert_allclose(each, b, rtol=1e-13)
    np.testing.assert_allclose(post.predict_proba(Table([1.0, 3.0]), None), [0.25, 0.75])


def test_table_is_the_belief_about_one_more_state():
    stay, seen = np.array([[0.9, 0.1], [0.3, 0.7]]), [0.2, 0.8]
    found = []
    for n in (3, 4):
        g = Graph()
        h = g.categorical(n, n=2)
        g.add(Table(stay), h[:-1], h[1:])
        g.add(Table(seen), h[:3])
        found.append((g.fit(), h))
    (post, h), (longer, all_h) = found
    ahead = post.predict_proba(Table(stay), h[2], None)
    np.testing.assert_allclose(ahead, longer[all_h[3]].probabilities, atol=1e-9)


# ---- Mixture ----


def test_mixtures(fitted):
    g, post = fitted
    forms, noise = [g.x[:3], 1.5], np.array([0.1, 0.0, 0.3])
    kind = Mixture(g.h, (losses.Gaussian(0.5), losses.Gaussian(2.0)))
    share = post[g.h].probabilities
    mean, variance = post.predict_latent(g.x[:3])
    variance = variance + noise
    y = np.array([0.2, 5.0, -40.0])
    logs = np.logaddexp(
        np.log(share[:, 0]) + stats.norm.logpdf(y, mean, np.sqrt(variance + 0.5)),
        np.log(share[:, 1]) + stats.norm.logpdf(y, 1.5, np.sqrt(noise + 2.0)),
    )
    np.testing.assert_allclose(post.log_predictive(kind, forms, y, noise=noise), logs, rtol=1e-10)
    expected = share[:, 0] * mean + share[:, 1] * 1.5
    np.testing.assert_allclose(post.predict(kind, forms, noise=noise), expected, rtol=1e-13)
    square = share[:, 0] * (mean**2 + variance + 0.5) + share[:, 1] * (1.5**2 + noise + 2.0)
    found = post.predict_variance(kind, forms, noise=noise)
    np.testing.assert_allclose(found, square - expected**2, rtol=1e-12)


def test_mixture_of_vectors_and_of_labels(fitted):
    g, post = fitted
    share = post[g.h].probabilities
    kind = Mixture(g.h, losses.Gaussian(0.7), vectors=True)
    forms, y = [g.x[:2], g.x[2:]], np.array([[0.1, 0.4], [1.0, -1.0], [2.0, 0.0]])
    logs = []
    for k, form in enumerate(forms):
        mean, variance = post.predict_latent(form)
        sd = np.sqrt(variance + 0.7)
        logs.append(np.log(share[:, k]) + stats.norm.logpdf(y, mean, sd).sum(axis=1))
    expected = np.logaddexp(*logs)
    np.testing.assert_allclose(post.log_predictive(kind, forms, y), expected, rtol=1e-10)
    assert post.predict(kind, forms).shape == (3, 2)
    labels = Mixture(g.h, "probit")
    by_category = [post.predict_proba("probit", form) for form in (g.x[0], g.x[1])]
    found = post.predict_proba(labels, [g.x[0], g.x[1]])
    np.testing.assert_allclose(found, share @ by_category, rtol=1e-13)
    both = np.exp([post.log_predictive(labels, [g.x[0], g.x[1]], s) for s in (1, -1)])
    np.testing.assert_allclose(both.sum(axis=0), 1.0, rtol=1e-9)


# ---- refusals ----


def refused(call, *words, error=(ValueError, TypeError)):
    with pytest.raises(error) as caught:
        call()
    said = str(caught.value)
    assert all(word in said for word in words), said


def test_what_does_not_exist_is_refused_by_name(fitted):
    g, post = fitted
    own = Factor(lambda x: -(x**2), scheme="laplace")
    for kind, args, words in (
        (Between(0.0, 1.0), (g.x,), ("Between", "predict_proba, log_predictive")),
        (Walk(0.1), (g.x,), ("Walk", "Transition")),
        (CompoundGamma(), (g.tau,), ("CompoundGamma", "post[tau]")),
        (own, (g.x,), ("Factor", "draw from their beliefs")),
    ):
        refused(lambda kind=kind, args=args: post.predict(kind, *args), "predict", *words)
    refused(lambda: post.predict_proba(Noise(g.tau[0]), g.x), "predict_proba", "predict_variance")
    refused(lambda: post.log_predictive(Product(1.0), g.x[0], g.x[1], 1.0), "Product", "predict")
    refused(lambda: post.log_predictive(Transition(1.0), g.x[0], 1.0), "Transition")
    refused(lambda: post.predict_variance(Table([1.0, 2.0]), None), "Table", "predict_proba")
    refused(lambda: post.predict_variance(LogisticLink(), g.x), "LogisticLink")
    refused(lambda: post.predict(Mixture(g.h, "probit"), [g.x[0], 0.0]), "predict_proba")
    refused(lambda: post.predict(Mixture, [g.x[0], 0.0]), "class Mixture", error=TypeError)
    refused(lambda: post.predict(3, g.x), "loss")


def test_bad_arguments(fitted):
    g, post = fitted
    other = Graph()
    foreign, tau, h = other.gaussian(4), other.gamma(), other.categorical(n=2)
    inside = Between(0.0, 1.0)
    refused(lambda: post.predict_proba(inside), "form", "noise", error=TypeError)
    refused(lambda: post.predict_proba(inside, g.x, by=3), "by", error=TypeError)
    refused(lambda: post.predict("probit", g.x, 1), "allowed: predict(", error=TypeError)
    refused(lambda: post.log_predictive("probit", g.x), "'y'", error=TypeError)
    refused(lambda: post.predict_proba(inside, 3.0), "form")
    refused(lambda: post.predict_proba(inside, foreign), "another graph")
    refused(lambda: post.predict_proba(Between(1.0, 0.0), g.x), "lower")
    refused(lambda: post.predict_proba(inside, g.x, noise=-1.0), "noise", "-1")
    refused(lambda: post.predict(Noise(tau), g.x), "tau", "another graph")
    refused(lambda: post.predict(Noise(g.tau), g.x[:3]), "tau", "(2,)")
    refused(lambda: post.predict(Noise(g.x), g.x), "tau", "gamma")
    refused(lambda: post.predict(Product(), g.x, g.x), "twice")
    refused(lambda: post.predict(Product(-1.0), g.x[0], g.x[1]), "variance", "-1")
    refused(lambda: post.predict(Product(), g.x[:2], g.x[:3]), "(2,)", "(3,)")
    refused(lambda: post.predict(Product(), g.w, g.x[0]), "x is")
    refused(lambda: post.predict(LogisticLink(), g.p), "z is a beta")
    refused(lambda: post.predict(Transition([1.0, 2.0, 3.0]), g.x), "variance", "(4,)")
    refused(lambda: post.predict(Transition(1.0, factor=0.0), g.x), "factor")
    refused(lambda: post.predict(Transition(-1.0), g.x), "variance")
    table = Table(np.ones((2, 3)))
    refused(lambda: post.predict_proba(table, g.h, g.k), "None", "0 places")
    refused(lambda: post.predict_proba(table, None, None), "2 places")
    refused(lambda: post.predict_proba(table, g.k, None), "p has shape (2, 3)")
    refused(lambda: post.predict_proba(table, g.x, None), "h_1", "categorical")
    refused(
        lambda: post.predict_proba(Table(np.ones((2, 2, 3))), g.h, None), "leading axes of p (2,)"
    )
    refused(lambda: post.predict_proba(Table(-np.ones((2, 3))), g.h, None), "below 0")
    refused(lambda: post.predict_proba(Table(np.zeros((2, 3))), g.h, None), "excludes")
    refused(lambda: post.predict(Mixture(g.h, "gaussian"), [g.x[0]]), "forms", "1 of them")
    refused(lambda: post.predict(Mixture(h, "gaussian"), [g.x[0], 0.0]), "h is of another graph")
    refused(lambda: post.predict(Mixture(g.h, "gaussian"), [g.x[:2], 0.0]), "(2,)")
    refused(lambda: post.predict(Mixture(g.h, "gaussian"), [g.x[0], np.nan]), "forms[1]")


def test_variables_made_after_the_fit(fitted):
    g = Graph()
    x = g.gaussian(2)
    g.add("probit", x, 1)
    post = g.fit()
    late, tau, h = g.gaussian(2), g.gamma(), g.categorical(n=2)
    for call in (
        lambda: post.predict("probit", late),
        lambda: post.predict_proba(Between(0.0, 1.0), late),
        lambda: post.predict(Noise(tau), x),
        lambda: post.predict(Product(), x, late),
        lambda: post.predict(Transition(1.0), late),
        lambda: post.predict_proba(Table(np.ones((2, 2))), h, None),
        lambda: post.predict(Mixture(h, "gaussian"), [x[0], 0.0]),
        lambda: post.predict(Mixture(h, "gaussian"), [late[0], 0.0]),
    ):
        refused(call, "later", error=ValueError)


def test_losses_as_before(fitted):
    g, post = fitted
    mean, variance = post.predict_latent(g.x)
    loss = losses.Poisson()
    found = post.predict(loss, form=g.x, noise=0.2)
    np.testing.assert_array_equal(found, loss.predict(mean, variance + 0.2))
    assert epfast.graph.GraphPosterior.predict.__doc__


def test_log_predictive_leaves_the_posterior_as_it_is():
    """Also if its arrays are read-only, with a form over a block."""
    g = Graph()
    w, tau = g.block(2), g.gamma(shape=3.0, rate=2.0)
    g.add("probit", np.eye(2) @ w, 1)
    g.add(Noise(tau), 1.0 - g.gaussian())
    post = g.fit()
    block = post.state.blocks[0]
    before = [part.copy() for part in (post.state.beliefs, *block[:2])]
    for part in (post.state.beliefs, *block[:2]):
        part.setflags(write=False)
    post.log_predictive(Noise(tau), np.eye(2) @ w - 0.5)
    for part, old in zip((post.state.beliefs, *block[:2]), before, strict=True):
        np.testing.assert_array_equal(part, old)
