"""Regressors that average over hyper-parameters, against brute force; and what is refused."""

import math
import pickle

import numpy as np
import pytest
from scipy import special, stats
from scipy.spatial import distance
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

import epfast
from epfast import (
    FullPosterior,
    GPClassifier,
    GPRegressor,
    IntegratedPosterior,
    IntegratedProcess,
    LinearClassifier,
    LinearRegressor,
    losses,
)
from epfast.priors import HalfCauchy

RNG = np.random.default_rng(3)
N, D = 18, 5
X = RNG.normal(size=(N, D))
Y = X @ RNG.normal(size=D) + 0.8 * RNG.normal(size=N) + 2.0
NEW = RNG.normal(size=(4, D))


def exact(X, Y, new, integrals):
    """Moments of weights and of y at new rows, P(y <= x) there, by sums over both variances.

    With the intercept's prior as the estimator has it, at the means of the columns.
    """
    center, unit = X.mean(axis=0), Y.std()
    total = X.var(axis=0).sum()
    location = Y.mean()
    rows, news = X - center, new - center
    wide = location**2 + 100.0 * unit**2
    u = np.linspace(-14.0, 10.0, 97) + 2.0 * math.log(unit)
    t = np.linspace(-6.0, 4.0, 81) + 2.0 * math.log(unit)
    logs, means, variances, latents = [], [], [], []
    of_sd, of_noise = HalfCauchy(2.5 * unit / math.sqrt(total)), HalfCauchy(2.5 * unit)
    for a in u:
        K = np.exp(a) * rows @ rows.T + wide
        values, vectors = np.linalg.eigh(K)
        along = vectors.T @ Y
        C = np.exp(a) * rows.T @ vectors
        cross = (np.exp(a) * news @ rows.T + wide) @ vectors
        for b in t:
            s = np.exp(b)
            whole = np.maximum(values, 0.0) + s
            value = -0.5 * (np.log(2.0 * np.pi * whole) + along**2 / whole).sum()
            logs.append(value + of_sd.over_log(a, 0.5)[0] + of_noise.over_log(b, 0.5)[0])
            means.append(C @ (along / whole))
            variances.append(np.exp(a) - (C**2 / whole).sum(axis=1))
            m = cross @ (along / whole)
            v = np.exp(a) * (news**2).sum(axis=1) + wide - (cross**2 / whole).sum(axis=1)
            latents.append((m, v + s))
    weight = special.softmax(logs)
    mean = weight @ means
    sd = np.sqrt(weight @ (np.array(variances) + (np.array(means) - mean) ** 2))
    m, v = np.array(latents).transpose(1, 0, 2)
    area = math.log((u[1] - u[0]) * (t[1] - t[0]))
    evidence = special.logsumexp(logs) + area
    cdf = [weight @ stats.norm.cdf(x, m, np.sqrt(v)) for x in integrals]
    noise = np.exp(0.5 * np.tile(t, len(u)))
    return mean, sd, evidence, np.array(cdf), weight @ m, weight @ noise


def test_gaussian_noise_is_that_of_brute_force():
    model = LinearRegressor(standardize=False).fit(X, Y)
    post = model.posterior_
    assert isinstance(post, IntegratedPosterior)
    assert post.hyper_names == ("prior_variance", "sd")
    levels = [0.05, 0.5, 0.95]
    quantiles = model.predict_quantile(NEW, levels)
    mean, sd, evidence, cdf, of_y, noise = exact(X, Y, NEW, quantiles.T)
    assert np.abs((post.mean[:D] - mean) / sd).max() < 0.02
    np.testing.assert_allclose(post.sd[:D], sd, rtol=0.02)
    assert model.log_evidence_ == pytest.approx(evidence, abs=0.05)
    np.testing.assert_allclose(cdf, np.tile(levels, (4, 1)).T, atol=0.006)
    np.testing.assert_allclose(model.predict(NEW), of_y, atol=0.02 * Y.std())
    assert post.hyper.loc["sd", "mean"] == pytest.approx(noise, rel=0.02)
    # no fit beside that of the mode
    assert post.n_fits == 1
    plain = LinearRegressor(integrate=False).fit(X, Y)
    assert isinstance(plain.posterior_, FullPosterior)
    assert (post.sd[:D] > 1.05 * np.sqrt(plain.posterior_.variance[:D])).any()


def test_points_are_fits():
    """Those that were made without a sweep."""
    rng = np.random.default_rng(0)
    wide = rng.normal(size=(40, 60)) / 8.0
    for rows in (X, wide):
        y = rows @ rng.normal(size=len(rows.T)) + rng.normal(size=len(rows))
        post = LinearRegressor(integrate=True).fit(rows, y).posterior_
        for k in (0, len(post.weights) - 1):
            one = post.posteriors[k]
            assert one.loss.variance == pytest.approx(post.points[k, 1] ** 2)
            again = epfast.gaussian.fit_problem(one.problem)
            np.testing.assert_allclose(one.mean, again.mean, rtol=1e-8, atol=1e-10)
            np.testing.assert_allclose(one.variance, again.variance, rtol=1e-7)
            assert one.log_evidence == pytest.approx(again.log_evidence)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::epfast.estimators.EvidenceWarning")  # counts are Poisson's
@pytest.mark.parametrize(
    "loss",
    [
        "gaussian",
        losses.StudentT(4.0),
        "laplace_noise",
        "poisson",
        losses.NegativeBinomial(2.0),
        losses.GammaNoise(2.0),
    ],
)
def test_predictions_are_those_of_the_mixture(loss):
    rng = np.random.default_rng(1)
    h = 0.5 * X[:, 0]
    y = h + 0.5 * rng.normal(size=N)
    if loss == "poisson" or isinstance(loss, losses.NegativeBinomial):
        y = rng.poisson(np.exp(h + 1.0)).astype(float)
    elif isinstance(loss, losses.GammaNoise):
        y = np.exp(y)
    model = LinearRegressor(loss=loss, integrate=True).fit(X, y)
    post = model.posterior_
    assert isinstance(post, IntegratedPosterior)
    np.testing.assert_allclose(model.score_samples(NEW, y[:4]), post.log_predictive(NEW, y[:4]))
    latents = [one.predict_latent(NEW) for one in post.posteriors]
    for level in (0.1, 0.6):
        found = model.predict_quantile(NEW, level)

        def below(x, latents=latents):
            parts = zip(post.posteriors, latents, strict=True)
            tails = [one.loss.predict_tails(x, *latent)[0] for one, latent in parts]
            return post.weights @ np.array(tails)

        if one_of_counts := post.loss.discrete:
            assert (below(found) >= level).all()
            assert (below(found - 1.0) < level).all()
        else:
            np.testing.assert_allclose(below(found), level, atol=1e-10)
        assert one_of_counts is post.loss.discrete
    mean, std = model.predict(NEW, return_std=True)
    if post.loss.in_units_of_y:
        np.testing.assert_allclose(mean, post.predict(NEW))
        np.testing.assert_allclose(std**2, post.predict_variance(NEW))
    else:  # over a prior of scales E[exp(h)] is infinite
        np.testing.assert_allclose(mean, post.best.predict(NEW))
    draws = model.sample_y(NEW, 4000, 0)
    np.testing.assert_allclose(
        np.mean(draws <= model.predict_quantile(NEW, 0.6)[:, None], axis=1) > 0.55, True
    )
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(NEW), model.predict(NEW))


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:the log evidence rises up to:epfast.estimators.EvidenceWarning")
def test_intervals_cover():
    """Of 300 data sets of the model's own class: 90 % intervals of the modes cover .84."""
    hits, of_y = [], []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(13, 5))
        spread, noise = np.abs(rng.standard_cauchy(2))
        w = spread * rng.normal(size=5)
        new = rng.normal(size=(30, 5))
        y, held = (rows @ w + noise * rng.normal(size=len(rows)) for rows in (X, new))
        model = LinearRegressor().fit(X, y)
        low, high = model.posterior_.credible_interval(0.9)[:5].T
        hits.append((low < w) & (w < high))
        low, high = model.predict_quantile(new, [0.05, 0.95]).T
        of_y.append((low < held) & (held < high))
    assert 0.86 < np.mean(hits) < 0.95
    assert 0.87 < np.mean(of_y) < 0.95


def test_the_mode_where_it_stands_for_the_average():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 3))
    y = rows @ [1.0, -1.0, 0.5] + rng.normal(size=400)
    for loss in ("gaussian", "student_t"):
        model, mode = (
            LinearRegressor(loss=loss, integrate=i).fit(rows, y) for i in ("auto", False)
        )
        assert isinstance(model.posterior_, FullPosterior)
        np.testing.assert_array_equal(model.coef_, mode.coef_)


def test_the_summary_has_the_hyper_parameters():
    post = LinearRegressor().fit(X, Y).posterior_
    table = post.summary(0.9)
    assert list(table.index) == [*post.labels, "prior_variance", "sd"]
    np.testing.assert_allclose(table.loc["sd", "5%"], post.hyper.loc["sd", "5%"])
    assert any("points, fits: 1" in line for line in table.attrs["notes"])


@pytest.mark.parametrize("kind", [LinearRegressor, GPRegressor, GPClassifier, LinearClassifier])
@pytest.mark.parametrize("given", ["yes", 1, None])
def test_what_integrate_may_be(kind, given):
    y = Y > 2.0 if kind in (GPClassifier, LinearClassifier) else Y
    with pytest.raises(ValueError, match=r"^integrate is .*allowed"):
        kind(integrate=given).fit(X, y)
    assert clone(kind(integrate=False)).get_params()["integrate"] is False


@pytest.mark.parametrize(
    "given",
    [
        {"prior_scale": None},
        {"prior_variance": 1.0, "learn": ()},
        {"prior_variance": "ard"},
        {"posterior": "factorized", "learn": ()},
        {"schedule": epfast.EP(5, 0.0)},
    ],
)
def test_where_there_is_no_average(given):
    with pytest.raises(ValueError, match="integrate is True; allowed"):
        LinearRegressor(integrate=True, **given).fit(X, Y)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::epfast.estimators.EvidenceWarning")
def test_processes():
    rng = np.random.default_rng(2)
    x = rng.uniform(-3.0, 3.0, size=(20, 1))
    y = np.sin(2.0 * x[:, 0]) + 0.3 * rng.normal(size=20)
    new = np.linspace(-3.0, 3.0, 7)[:, None]
    model = GPRegressor().fit(x, y)
    post = model.posterior_
    assert isinstance(post, IntegratedProcess)
    assert post.hyper_names == ("sd", "length_scale", "noise_sd")
    held = np.zeros(7)
    np.testing.assert_allclose(
        model.score_samples(new, held), post.log_predictive(new, held - model.mean_)
    )
    mean, std = model.predict(new, return_std=True)
    np.testing.assert_allclose(mean, model.predict(new))
    assert model.sample_y(new, 3).shape == (7, 3)
    assert model.predict(new, return_cov=True)[1].shape == (7, 7)
    quantiles = model.predict_quantile(new, [0.05, 0.95])
    assert ((quantiles[:, 0] < mean) & (mean < quantiles[:, 1])).all()
    # of y, not of the latent values alone
    assert (std > 0.2).all()
    mode = GPRegressor(integrate=False).fit(x, y)
    assert model.log_marginal_likelihood_value_ == mode.log_marginal_likelihood_value_
    classes = GPClassifier(integrate=True).fit(x, y > 0.0)
    assert isinstance(classes.posterior_, IntegratedProcess)
    p = classes.predict_proba(new)[:, 1]
    np.testing.assert_allclose(p, classes.posterior_.predict_proba(new), rtol=1e-8)
    np.testing.assert_array_equal(classes.predict(new), p > 0.5)
    assert classes.sample_y(new, 2).shape == (7, 2)
    with pytest.raises(ValueError, match="integrate is True; allowed for an exact process"):
        GPRegressor(integrate=True, rank=5).fit(x, y)


@pytest.mark.full
@pytest.mark.parametrize("n", [50, 100])
def test_the_log_evidence_of_an_average_is_an_integral(n):
    """On a grid: the noise and the length scale of a parabola are far from their priors' medians.

    The integral is therefore 11 to 14 nats below the largest evidence, which is no error.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 1))
    y = 25.0 * (x[:, 0] + 1.7) ** 2 / 9.0 + 0.1 * rng.normal(size=n)
    medians = 2.0 * y.std(), np.median(distance.pdist(x)), 2.5 * y.std()
    ranges = (0.3, 12.0), (-0.5, 8.0), (-3.0, -1.5)
    logs = [np.linspace(*ends, 80) for ends in ranges]
    value = np.empty((80, 80, 80))
    variance, noise = np.exp(2.0 * logs[0])[:, None, None], np.exp(2.0 * logs[2])[:, None]
    for j, length in enumerate(np.exp(logs[1])):
        w, U = np.linalg.eigh(np.exp(-0.5 * (x - x.T) ** 2 / length**2))
        whole = variance * np.maximum(w, 0.0) + noise
        z = U.T @ (y - y.mean())
        value[:, j] = -0.5 * (np.log(2.0 * np.pi * whole) + z**2 / whole).sum(axis=-1)
    largest = value.max()
    for axis, (u, median) in enumerate(zip(logs, medians, strict=True)):
        shape = [-1 if k == axis else 1 for k in range(3)]
        value += np.reshape(stats.halfcauchy(scale=median).logpdf(np.exp(u)) + u, shape)
    volume = np.prod([u[1] - u[0] for u in logs])
    model = GPRegressor(integrate=True).fit(x, y)
    expected = special.logsumexp(value) + np.log(volume)
    assert model.log_evidence_ == pytest.approx(expected, abs=0.2)
    assert largest - 15.0 < expected < largest - 10.0


@pytest.mark.full
def test_the_default_is_as_near_to_a_parabola_as_the_largest_evidence():
    """The function is known. Weak priors that cost the rows 13 nats are not averaged under."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 1))
    y = 25.0 * (x[:, 0] + 1.7) ** 2 / 9.0 + 0.1 * rng.normal(size=100)
    new = rng.normal(size=(200, 1))
    errors = [
        np.sqrt(np.mean((model.fit(x, y).predict(new) - 25.0 * (new[:, 0] + 1.7) ** 2 / 9.0) ** 2))
        for model in (GPRegressor(), GPRegressor(integrate=False))
    ]
    assert errors[0] < 1.1 * errors[1]


@pytest.mark.full
def test_many_length_scales():
    """More than eight hyper-parameters are held at their mode, which is said; True is refused."""
    kernel = ConstantKernel(1.0) * RBF(np.ones(8))
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(50, 8))
    y = rows[:, 0] + 0.5 * rng.normal(size=50)
    with pytest.warns(epfast.DataWarning, match="10 hyper-parameters, of which up to 8"):
        model = GPRegressor(kernel).fit(rows, y)
    assert not isinstance(model.posterior_, IntegratedPosterior)
    plain = GPRegressor(kernel, integrate=False).fit(rows, y)
    np.testing.assert_array_equal(model.predict(rows), plain.predict(rows))
    with pytest.raises(ValueError, match="integrate is True, and there are 10 hyper-parameters"):
        GPRegressor(kernel, integrate=True).fit(rows, y)
