"""Likelihoods of one latent value: moments in 50 digits, limits, sites, predictions, quantiles."""

import warnings

import mpmath as mp
import numpy as np
import pytest
from scipy import integrate, stats

import epfast
from epfast import backend, fit_linear, losses, schedules
from tests.batteries import responses_of
from tests.oracles import fifty_digits as exact
from tests.oracles.brute_force import NODES, WEIGHTS

pytestmark = pytest.mark.simd

INF = np.inf
CUTS = (-INF, -1.0, 0.0, 0.001, INF)


#: a loss, a response, and log t in mpmath with the points where it changes, over lengths of unit
SITES = {
    "gaussian": (losses.Gaussian(0.3), 0.7, exact.gaussian(mp.mpf(0.7), mp.mpf(0.3)), (0.7,), 0.5),
    "gaussian, of its variance": (
        losses.Gaussian(2.0),
        (0.7, 1e-6),
        exact.gaussian(mp.mpf(0.7), 2 * mp.mpf(1e-6)),
        (0.7,),
        1e-3,
    ),
    "laplace": (losses.LaplaceNoise(0.1), 0.3, exact.laplace(0.3, 10, 10), (0.3,), 0.1),
    "quantile": (
        losses.Quantile(0.75, 2.0),
        0.3,
        exact.laplace(0.3, 0.125, 0.375),
        (0.3,),
        2.0,
    ),
    "between": (
        losses.Interval(1e-4),
        (-0.3, 0.5),
        exact.interval(-0.3, 0.5, 1e-4),
        (-0.3, 0.5),
        0.01,
    ),
    "a sliver": (losses.Interval(1.0), (0.0, 1e-6), exact.interval(0.0, 1e-6, 1.0), (0.0,), 1.0),
    "equal ends": (losses.Interval(0.2), (0.2, 0.2), exact.interval(0.2, 0.2, 0.2), (0.2,), 0.4),
    "above": (losses.Interval(0.2), (1.0, INF), exact.interval(1.0, INF, 0.2), (1.0,), 0.4),
    "censored": (
        losses.Censored(0.2, lower=-1.0),
        -3.0,
        exact.interval(-INF, -1.0, 0.2),
        (-1.0,),
        0.4,
    ),
    "first class": (losses.Ordinal(CUTS[1:-1]), 0, exact.interval(-INF, -1.0, 1.0), (-1.0,), 1.0),
    "narrow class": (losses.Ordinal(CUTS[1:-1]), 2, exact.interval(0.0, 0.001, 1.0), (0.0,), 1.0),
    "logit class": (
        losses.Ordinal(CUTS[1:-1], "logit"),
        1,
        exact.ordinal_logit(-1, 0),
        (-1.0, 0.0),
        1.0,
    ),
    "last logit class": (
        losses.Ordinal(CUTS[1:-1], "logit"),
        3,
        exact.ordinal_logit(CUTS[3], INF),
        (0.0,),
        1.0,
    ),
    "no count": (losses.NegativeBinomial(0.5), 0, exact.negative_binomial(0, 0.5), (0.0,), 1.0),
    "count": (losses.NegativeBinomial(2.0), 30, exact.negative_binomial(30, 2.0), (3.4,), 0.5),
    "nearly poisson": (
        losses.NegativeBinomial(1e8),
        30,
        exact.negative_binomial(30, 1e8),
        (3.4,),
        0.2,
    ),
    "gamma": (losses.GammaNoise(2.0), 0.7, exact.gamma(0.7, 1, 2.0), (-0.35,), 0.7),
    "weibull": (losses.Weibull(20.0), 0.7, exact.weibull(0.7, 1, 20.0), (-0.35,), 0.05),
    "survived": (losses.Weibull(0.5), (3.0, 0), exact.weibull(3.0, 0, 0.5), (1.1,), 2.0),
    "student": (losses.StudentT(4.0, 0.3), 0.5, exact.student(0.5, 4.0, 0.3), (0.5,), 0.3),
    "cauchy": (losses.StudentT(1.0, 0.01), 0.5, exact.student(0.5, 1.0, 0.01), (0.5,), 0.01),
}


def moments(loss, y, m, v, power=1.0):
    given = np.array([y], dtype=float)
    responses, found = loss.responses("y", given, 1), np.empty((3, 1))
    at = np.array([[m], [v], [power]])
    assert loss.tilted().many(responses, *at, *found) == 0
    return found[:, 0]


def assert_exact(loss, y, truth, m, v, power=1.0):
    """To 1e-9 of each, or of what the terms that it is the difference of are."""
    log_t, points, unit = truth
    others = points if isinstance(loss, losses.StudentT) else ()
    found = moments(loss, y, m, v, power)
    want = exact.tilted(log_t, m, v, points, unit, power, others)
    tight = 1e-8 if others else 1e-9
    for k, (a, b) in enumerate(zip(found, want, strict=True)):
        # where t is 1 to rounding, or at a mode
        floor = (1e-14, 1e-13 * max(abs(float(want[2])), 1.0), 0.0)[k]
        assert abs(a - b) <= tight * abs(b) + floor + 1e-30 + 1e-38 / v, (m, v, k, a, float(b))


@pytest.mark.parametrize(
    ("v", "k"), [(1e-12, -3.0), (1e-3, 1e3), (1.0, -0.5), (1.0, -30.0), (30.0, 10.0), (1e6, -1e3)]
)
@pytest.mark.parametrize("name", SITES)
def test_moments_in_fifty_digits(name, v, k):
    loss, y, *truth = SITES[name]
    assert_exact(loss, y, truth, truth[1][0] + k * np.sqrt(v), v)


WIDTHS = 1e-12, 1e-6, 1e-3, 0.1, 1.0, 30.0, 1e3, 1e6


@pytest.mark.full
@pytest.mark.parametrize("k", [-1e3, -3.0, 0.2, 1e3])
@pytest.mark.parametrize("v", WIDTHS)
@pytest.mark.parametrize("name", SITES)
def test_moments_everywhere(name, v, k):
    loss, y, *truth = SITES[name]
    assert_exact(loss, y, truth, truth[1][0] + k * np.sqrt(v), v)


@pytest.mark.parametrize(("v", "k"), [(0.01, -2.0), (4.0, 1.0)])
@pytest.mark.parametrize("power", [0.6, 1.7])
@pytest.mark.parametrize("name", SITES)
def test_powers(name, power, v, k):
    loss, y, log_t, points, unit = SITES[name]
    m = points[0] + k * np.sqrt(v)
    found = moments(loss, y, m, v, power)
    others = points if isinstance(loss, losses.StudentT) else ()
    want = [float(x) for x in exact.tilted(log_t, m, v, points, unit, power, others)]
    np.testing.assert_allclose(found, want, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(moments(loss.tempered(power), y, m, v), found, rtol=1e-10)


@pytest.mark.parametrize("shape", [0.05, 0.5, 1.0, 3.0, 80.0, 5e3])
def test_gamma_survival(shape):
    """Value, slope and curvature of -log Q."""
    loss = losses.GammaNoise(shape)
    h = (
        np.concatenate([np.linspace(-6.0, 6.0, 25), [-0.01, 0.01, -12.0, 12.0]])
        / (1 + shape) ** 0.4
    )
    y = np.column_stack([np.ones(h.size), np.zeros(h.size)])
    found = loss.evaluate(h, y)
    with mp.workdps(60):
        for i, at in enumerate(h):
            x = shape * mp.exp(-mp.mpf(float(at)))
            tail = mp.gammainc(shape, x, regularized=True)
            hazard = mp.exp(shape * mp.log(x) - x - mp.loggamma(shape)) / tail
            truth = -mp.log(tail), -hazard, hazard * (shape - x + hazard)
            for got, want in zip(found, truth, strict=True):
                assert abs(got[i] - want) <= (1e-11 + 1e-14 * shape) * abs(want) + 1e-60


@pytest.mark.parametrize("v", [0.01, 1.0, 50.0])
def test_gamma_survival_moments(v):
    loss, nodes = losses.GammaNoise(2.0), np.linspace(-14.0, 14.0, 200_001)
    for m in (-3.0, 0.5, 2.0):
        found = moments(loss, (0.7, 0), m, v)
        h = m + np.sqrt(v) * nodes
        log_t = stats.gamma.logsf(0.7, 2.0, scale=np.exp(h) / 2.0)
        f = np.exp(log_t) * stats.norm.pdf(nodes)
        mass = f.sum()
        mean = (f @ nodes) / mass
        square = f @ (nodes - mean) ** 2 / mass
        want = np.log(mass * (nodes[1] - nodes[0])), mean / np.sqrt(v), (square - 1.0) / v
        np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-9)


# ---- limits ----


def triples(one, other, y, other_y, n, seed=0):
    rng = np.random.default_rng(seed)
    m, v = rng.normal(0.0, 3.0, n), np.exp(rng.normal(0.0, 2.0, n))
    return [
        np.array(backend.tilted_moments(loss, at, m, v))
        for loss, at in ((one, y), (other, other_y))
    ], v


def test_limits():
    rng = np.random.default_rng(0)
    n = 300
    counts, signs = rng.poisson(2.0, n), np.where(rng.random(n) < 0.5, 1.0, -1.0)
    pairs = {
        "negative binomial of a large size": (
            *(losses.NegativeBinomial(1e8), losses.Poisson(), counts, counts),
            1e-6,
        ),
        "two classes": (losses.Ordinal((0.0,)), losses.Probit(), signs > 0, signs, 1e-12),
        "two logit classes": (
            *(losses.Ordinal((0.0,), "logit"), losses.Logistic(), signs > 0, signs),
            1e-9,
        ),
        "one trial": (
            *(losses.Binomial(), losses.Logistic()),
            np.column_stack([signs > 0, np.ones(n)]),
            signs,
            1e-9,
        ),
        "nothing censored": (losses.Censored(0.3), losses.Gaussian(0.3), counts, counts, 1e-14),
        "exponential": (losses.GammaNoise(1.0), losses.Weibull(1.0), counts + 1, counts + 1, 1e-9),
        "median": (losses.Quantile(0.5, 0.5), losses.LaplaceNoise(1.0), counts, counts, 1e-14),
        "many degrees of freedom": (
            *(losses.StudentT(1e12, 0.5), losses.Gaussian(0.25), signs, signs),
            1e-7,
        ),
    }
    for name, (one, other, y, other_y, tolerance) in pairs.items():
        (got, want), v = triples(one, other, y, other_y, n)
        for k, unit in enumerate((1.0, np.sqrt(v), v)):
            np.testing.assert_allclose(
                got[k] * unit, want[k] * unit, rtol=tolerance, atol=tolerance, err_msg=name
            )


def regression(n=30, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, X @ np.linspace(1.0, -1.0, d) + 0.3 * rng.normal(size=n)


@pytest.mark.parametrize("order", ["sequential", "parallel", "chunked"])
@pytest.mark.parametrize("noise", [1e-12, 0.09, 1e12])
def test_gaussian_rows_give_the_conjugate_posterior(noise, order):
    """Whatever the cavity, a site is its row: precision 1 / variance."""
    X, y = regression()
    share = np.geomspace(0.5, 2.0, len(y))
    for loss, given in (
        (losses.Gaussian(noise), np.column_stack([y, share])),
        (losses.Censored(noise, upper=1e9), y),
    ):
        precise = 1.0 / (noise * (share if given.ndim == 2 else np.ones(len(y))))
        post = fit_linear(X, given, loss=loss, schedule=schedules.EP(order=order))
        assert post.converged
        assert post.n_refused == 0
        np.testing.assert_allclose(post.sites.precision, precise, rtol=1e-12)
        np.testing.assert_allclose(post.sites.shift, precise * y, rtol=1e-12)
        if noise == 0.09:
            precision = np.eye(3) + X.T @ (X * precise[:, None])
            mean = np.linalg.solve(precision, X.T @ (precise * y))
            np.testing.assert_allclose(post.precision, precision, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(post.mean, mean, rtol=1e-12, atol=1e-13)
            covariance = X @ X.T + np.diag(1.0 / precise)
            log_evidence = stats.multivariate_normal(np.zeros(len(y)), covariance).logpdf(y)
            assert post.log_evidence == pytest.approx(log_evidence, rel=1e-12)


def test_gaussian_rows_with_weights_and_offsets():
    X, y = regression()
    weights, offset = np.tile([0.0, 0.5, 1.0, 3.0, 7.0], 6), np.linspace(-1.0, 1.0, 30)
    given = {"loss": losses.Gaussian(0.09), "weights": weights, "offset": offset}
    precision = np.eye(3) + X.T @ (X * (weights / 0.09)[:, None])
    mean = np.linalg.solve(precision, X.T @ (weights / 0.09 * (y - offset)))
    for order in ("sequential", "parallel"):
        post = fit_linear(X, y, schedule=schedules.EP(order=order), **given)
        np.testing.assert_allclose(post.mean, mean, rtol=1e-11, atol=1e-12)


LOG_CONCAVE = {name: kind() for name, kind in losses.NAMED.items() if kind().log_concave}


@pytest.mark.parametrize("name", LOG_CONCAVE)
def test_log_concave_sites_are_never_negative(name):
    rng = np.random.default_rng(1)
    loss, n = LOG_CONCAVE[name], 400
    y = responses_of(loss, rng.normal(0.0, 3.0, n), rng)
    m, v = rng.normal(0.0, 20.0, n), np.exp(rng.normal(0.0, 4.0, n))
    found = np.empty((3, n))
    assert loss.tilted().many(loss.responses("y", y, n), m, v, np.ones(n), *found) == 0
    assert (found[2] <= 1e-13 / v).all()


def test_log_concave_is_told():
    told = {name: kind().log_concave for name, kind in losses.NAMED.items()}
    assert [name for name, given in told.items() if given is False] == [
        "quasi01",
        "noisy_step",
        "contaminated",
        "student_t",
    ]
    assert all(given is not None for given in told.values())
    assert losses.CustomLoss(np.square).log_concave is None


# ---- predictions ----

N = 7
MEAN, VARIANCE = np.linspace(-1.5, 2.0, N), np.geomspace(1e-3, 4.0, N)
DRAWN = [
    losses.Gaussian(0.3),
    losses.LaplaceNoise(0.4),
    losses.Quantile(0.8, 0.3),
    losses.StudentT(8.0, 0.5),
    losses.Interval(0.3),
    losses.NegativeBinomial(3.0),
    losses.Poisson(),
    losses.GammaNoise(2.0),
    losses.Weibull(1.5),
    losses.Ordinal((-1.0, 0.5)),
    losses.Ordinal((-1.0, 0.5), "logit"),
]


@pytest.mark.parametrize("loss", DRAWN, ids=repr)
def test_draws_have_the_predicted_moments_and_quantiles(loss):
    rng, count, v = np.random.default_rng(3), 200_000, np.minimum(VARIANCE, 0.3)
    latent = MEAN + np.sqrt(v) * rng.standard_normal((count, N))
    y = loss.sample(latent, rng)
    assert y.shape == latent.shape
    mean, variance = y.mean(axis=0), y.var(axis=0)
    if not isinstance(loss, losses.Ordinal):
        error = np.sqrt(variance / count)
        assert (np.abs(mean - loss.predict(MEAN, v)) < 5 * error).all()
    np.testing.assert_allclose(loss.predict_variance(MEAN, v), variance, rtol=0.08)
    for level in (0.05, 0.5, 0.9):
        found = loss.predict_quantile(level, MEAN, v)
        spread = 5 * np.sqrt(level * (1 - level) / count)
        assert (np.mean(y <= found, axis=0) > level - spread).all()
        assert (np.mean(y < found, axis=0) < level + spread).all()


TAILED = {
    **{name: kind() for name, kind in losses.NAMED.items() if not kind().by_margin},
    "zeros": losses.Contaminated(losses.Poisson(), share=0.3, log_density="zero"),
}


@pytest.mark.parametrize("name", TAILED)
def test_tails_are_shares_of_draws(name):
    """At responses, and beyond all of them. They add up to 1."""
    loss, rng, count = TAILED[name], np.random.default_rng(4), 20_000
    y = loss.sample(0.4 + 0.8 * rng.standard_normal(count), rng)
    at = np.unique([-1.0, 0.0, 1.0, *np.quantile(y, [0.02, 0.5, 0.98]), y.max() + 2.0])
    low, high = loss.predict_tails(at, np.full(len(at), 0.4), np.full(len(at), 0.64))
    np.testing.assert_allclose(low + high, 1.0, atol=1e-12)
    share = np.mean(y <= at[:, None], axis=1)
    assert (np.abs(low - share) < 5.0 * (np.sqrt(low * high / count) + 1.0 / count)).all()


def below(loss, y, m, v):
    """P(Y <= y), by SciPy's distribution given h and dense quadrature."""
    z = np.concatenate([a + 0.05 * NODES for a in np.arange(-9.95, 10.0, 0.1)])
    weight = np.tile(0.05 * WEIGHTS, len(z) // len(NODES)) * stats.norm.pdf(z)
    h = m + np.sqrt(v) * z
    match loss:
        case losses.LaplaceNoise():
            given = stats.laplace.cdf(y, h, loss.scale), stats.laplace.sf(y, h, loss.scale)
        case losses.StudentT():
            given = (f(y, loss.df, h, loss.scale) for f in (stats.t.cdf, stats.t.sf))
        case losses.NegativeBinomial():
            p = loss.size / (loss.size + np.exp(h))
            given = stats.nbinom.cdf(y, loss.size, p), stats.nbinom.sf(y, loss.size, p)
        case losses.Poisson():
            given = stats.poisson.cdf(y, np.exp(h)), stats.poisson.sf(y, np.exp(h))
        case losses.GammaNoise():
            scale = np.exp(h) / loss.shape
            given = (f(y, loss.shape, scale=scale) for f in (stats.gamma.cdf, stats.gamma.sf))
        case losses.Weibull():
            kind = stats.weibull_min
            given = (f(y, loss.shape, scale=np.exp(h)) for f in (kind.cdf, kind.sf))
    return [weight @ part for part in given]


CONTINUOUS = [losses.LaplaceNoise(0.4), losses.StudentT(4.0, 0.5), losses.GammaNoise(2.0)]


@pytest.mark.parametrize("loss", [*CONTINUOUS, losses.Weibull(1.5)], ids=repr)
@pytest.mark.parametrize("level", [1e-10, 0.01, 0.3, 0.5, 0.99, 1 - 1e-9])
def test_quantiles_are_exact_in_the_tails(loss, level):
    found = loss.predict_quantile(level, MEAN, VARIANCE)
    for y, m, v in zip(found, MEAN, VARIANCE, strict=True):
        low, high = below(loss, y, m, v)
        part, want = (low, level) if level <= 0.5 else (high, 1.0 - level)
        # SciPy's Laplace has a kink that panels of the test do not end at
        allowed = 1e-3 if isinstance(loss, losses.LaplaceNoise) else 1e-6
        assert part == pytest.approx(want, rel=allowed, abs=0)


@pytest.mark.parametrize("loss", [losses.Poisson(), losses.NegativeBinomial(3.0)], ids=repr)
@pytest.mark.parametrize("level", [1e-6, 0.01, 0.3, 0.5, 0.99, 1 - 1e-9])
def test_quantiles_of_counts_are_the_least(loss, level):
    variance = np.minimum(VARIANCE, 0.3)
    found = loss.predict_quantile(level, MEAN + 1.0, variance)
    np.testing.assert_array_equal(found, np.floor(found))
    for k, m, v in zip(found, MEAN + 1.0, variance, strict=True):
        low, high = below(loss, k, m, v)
        assert low >= level * (1 - 1e-9) if level <= 0.5 else high <= (1 - level) * (1 + 1e-9)
        if k > 0:
            low, high = below(loss, k - 1.0, m, v)
            assert low < level if level <= 0.5 else high > 1 - level


@pytest.mark.parametrize("level", [1e-6, 0.05, 0.5, 0.999])
def test_quantiles_of_large_counts(level):
    """Poisson counts of a certain, large mean are normal."""
    mean = np.array([20.0, 30.0, 35.0])
    rate = np.exp(mean)
    found = losses.Poisson().predict_quantile(level, mean, np.full(3, 1e-30))
    np.testing.assert_allclose((found - rate) / np.sqrt(rate), stats.norm.ppf(level), atol=2e-4)


def test_quantiles_of_counts_take_few_looks(monkeypatch):
    """A count is found among whole numbers: each look costs 300 special functions."""
    looks, poisson = [], losses.Poisson()
    plain = losses.Poisson.tails_given

    def given(self, k, h):
        looks.append(len(k))
        return plain(self, k, h)

    monkeypatch.setattr(losses.Poisson, "tails_given", given)
    mean, variance = np.linspace(-3.0, 8.0, 200), np.full(200, 0.1)
    for level in (0.05, 0.5, 0.95):
        poisson.predict_quantile(level, mean, variance)
    assert sum(looks) < 3 * 200 * 8


def test_quantiles_of_labels_and_classes():
    p = losses.Probit().predict_proba(MEAN, VARIANCE)
    for level in (0.1, 0.5, 0.9):
        found = losses.Probit().predict_quantile(level, MEAN, VARIANCE)
        np.testing.assert_array_equal(found, np.where(1.0 - p >= level, -1.0, 1.0))
    loss = losses.Ordinal((-1.0, 0.0, 2.0), "logit")
    p = np.cumsum(loss.predict_proba(MEAN, VARIANCE), axis=1)
    found = loss.predict_quantile(0.6, MEAN, VARIANCE)
    np.testing.assert_array_equal(found, (p < 0.6).sum(axis=1))
    for wrong in (0.0, 1.0, np.nan, "a", None):
        with pytest.raises((ValueError, TypeError), match="level"):
            loss.predict_quantile(wrong, MEAN, VARIANCE)


def test_ordinal_probabilities():
    for link, kind in (("probit", stats.norm), ("logit", stats.logistic)):
        loss = losses.Ordinal((-1.0, 0.0, 2.0), link)
        found = loss.predict_proba(MEAN, VARIANCE)
        assert found.shape == (N, 4)
        for i in range(N):
            for k, cut in enumerate(loss.cuts):

                def f(z, cut=cut, i=i, kind=kind):
                    h = MEAN[i] + np.sqrt(VARIANCE[i]) * z
                    return kind.cdf(cut - h) * stats.norm.pdf(z)

                want = integrate.quad(f, -10, 10, epsabs=1e-12)[0]
                assert found[i, : k + 1].sum() == pytest.approx(want, abs=1e-9)
        np.testing.assert_array_equal(loss.predict(MEAN, VARIANCE), found.argmax(axis=1))


def test_moments_that_do_not_exist():
    variance = losses.StudentT(2.0).predict_variance(MEAN, VARIANCE)
    assert (variance == np.inf).all()
    cauchy = losses.StudentT(1.0)
    assert np.isnan(cauchy.predict(MEAN, VARIANCE)).all()
    assert np.isnan(cauchy.predict_variance(MEAN, VARIANCE)).all()
    np.testing.assert_allclose(cauchy.predict_quantile(0.5, MEAN, VARIANCE), MEAN, atol=1e-12)


def test_student_keeps_a_small_negative_site_far_out():
    """tau -> -(df + 1) / r^2."""
    for r in (1e3, 1e5):
        _, _, d2lZ = moments(losses.StudentT(4.0, 0.3), r, 0.0, 1.0)
        assert -d2lZ / (1.0 + d2lZ) == pytest.approx(-5.0 / r**2, rel=1e-4, abs=0)


def test_the_order_of_a_loss_that_is_not_log_concave():
    """Sequential, where chunks are the automatic order of others."""
    X, y = regression(800)
    y[::50] += 40.0
    post = fit_linear(X, y, loss=losses.StudentT(2.0, 0.1))
    again = fit_linear(
        X, y, loss=losses.StudentT(2.0, 0.1), schedule=schedules.EP(order="sequential")
    )
    assert post.converged
    assert (post.sites.precision < 0.0).any()
    np.testing.assert_array_equal(post.mean, again.mean)
    assert epfast.fit_linear(X, y, loss=losses.Gaussian(0.1)).converged


def test_a_third_of_outliers():
    """Where the first rows are outliers sequential sweeps get stuck, in the automatic order not."""
    stuck = 0
    for seed in range(12, 24):
        rng = np.random.default_rng(seed)
        Z = np.column_stack([rng.normal(size=12), np.ones(12)])
        y = Z @ rng.normal(size=2) + 0.1 * rng.normal(size=12)
        y[rng.choice(12, 4, replace=False)] += 6.0 * rng.choice([-1.0, 1.0], 4)
        given = {"loss": losses.StudentT(2.0, 0.1), "prior_variance": 10.0}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            order = schedules.EP(order="sequential")
            stuck += not fit_linear(Z, y, schedule=order, **given).converged
        post = fit_linear(Z, y, **given)
        assert post.converged
        assert post.n_refused < 12
    assert stuck > 0
