"""fit_hyper against closed forms, quadrature and brute force; and what it refuses."""

import math
import pickle
import warnings

import mpmath
import numpy as np
import pytest
from scipy import integrate, sparse, special, stats

import epfast
from epfast import DataWarning, losses, priors
from epfast.gaussian import fit_hyper

RNG = np.random.default_rng(5)
N, J = 60, 6
GROUP = RNG.integers(J, size=N)
X = np.column_stack([np.eye(J)[GROUP], np.ones(N), RNG.normal(size=N)])
LATENT = X @ np.append(0.8 * RNG.normal(size=J), [0.5, 1.0])
SDS = {"1|g": (slice(0, J), priors.HalfNormal(1.0))}
EYE = np.eye(N)
HALF, LKJ = priors.HalfNormal(1.0), priors.LKJ(2.0)
UNEVEN = {"a": (slice(0, 3), HALF), "b": (slice(3, 5), HALF)}
SINGULAR = priors.LKJ(2.0), np.ones((2, 2))
SCHOOLS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def averages(log_density, u):
    """Mean and sd of exp(u) from logs of a density over a grid of u, and its 5, 50, 95 %."""
    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    s = np.exp(u)
    mean = weight @ s
    ends = [s[np.searchsorted(np.cumsum(weight), q)] for q in (0.05, 0.5, 0.95)]
    return mean, math.sqrt(weight @ (s - mean) ** 2), ends


def test_the_noise_of_a_regression():
    """Under flat priors sigma^2 is inverse gamma, and the weights are Student-t: a closed form."""
    n, d = 25, 3
    rows = RNG.normal(size=(n, d)) + 5.0
    y = rows @ [1.0, -2.0, 0.3] + 0.7 * RNG.normal(size=n)
    post = epfast.fit_hyper(rows, y, learn={"sd": priors.Flat()}, prior_variance=1e10)
    best, rest = np.linalg.lstsq(rows, y, rcond=None)[:2]
    shape = 0.5 * (n - d - 1)
    of_variance = stats.invgamma(shape, scale=0.5 * rest[0])
    mean = of_variance.expect(np.sqrt)
    sd = math.sqrt(of_variance.mean() - mean**2)
    table = post.hyper
    assert table["mean"].iloc[0] == pytest.approx(mean, abs=0.01 * sd)
    assert table["sd"].iloc[0] == pytest.approx(sd, rel=0.01)
    for p, name in ((0.05, "5%"), (0.5, "50%"), (0.95, "95%")):
        assert table[name].iloc[0] == pytest.approx(math.sqrt(of_variance.ppf(p)), rel=2e-3)
    np.testing.assert_allclose(post.mean, best, atol=1e-3)
    spread = np.sqrt(np.diag(np.linalg.inv(rows.T @ rows)) * of_variance.mean())
    np.testing.assert_allclose(post.sd, spread, rtol=0.01)
    assert post.n_fits <= 30


PROPER = [
    priors.HalfNormal(1.0),
    priors.HalfStudentT(3.0, 2.5),
    priors.HalfCauchy(2.5),
    priors.Exponential(1.0),
    priors.InverseGamma(1.0, 1.0),
    priors.Gamma(2.0, 1.0),
    priors.Uniform(1e7),
    priors.PC(1.0, 0.05),
]


def exact_noise(rows, y, variance, prior):
    """Mean, sd and mode of the noise's sd: its marginal likelihood in closed form, on a grid."""
    U, S, _ = np.linalg.svd(rows, full_matrices=False)
    z = U.T @ y
    rest = ((y - U @ z) ** 2).sum()
    ends = math.log(1e-8 * y.std()), math.log(1e2 * y.std())
    for _ in range(3):
        u = np.linspace(*ends, 2001)
        noise = np.exp(2.0 * u)
        spread = variance * S**2 + noise[:, None]
        value = -0.5 * (np.log(spread) + z**2 / spread).sum(1) - 0.5 * rest / noise
        value -= (len(y) - len(S) - 1.0) * u  # the Jacobian of the logarithm, too
        value += [prior.log_density(s) if s < prior.most else -math.inf for s in np.exp(u)]
        inside = np.flatnonzero(value > value.max() - 40.0)
        ends = u[max(inside[0] - 1, 0)], u[min(inside[-1] + 1, 2000)]
    return *averages(value, u)[:2], math.exp(u[value.argmax()])


@pytest.mark.parametrize("strategy", fit_hyper.STRATEGIES)
@pytest.mark.parametrize("ratio", [1.0, 50.0, 2e3, 1e6])
@pytest.mark.parametrize("prior", PROPER, ids=lambda one: type(one).__name__)
def test_noise_far_below_the_response(prior, ratio, strategy):
    """y varies up to a million times as much as its noise, whose posterior is that of a grid.

    The search began at the sd of y, where the log density of the noise bends upwards, and a step of
    Newton's method led away from the mode, to an end of the range.
    """
    rng = np.random.default_rng(7)
    rows = rng.normal(size=(40, 3))
    latent = rows @ rng.normal(size=3)
    y = ratio * latent / latent.std() + rng.normal(size=40)
    variance = 100.0 * ratio**2
    post = epfast.fit_hyper(
        rows, y, learn={"sd": prior}, prior_variance=variance, strategy=strategy
    )
    mean, sd, mode = exact_noise(rows, y, variance, prior)
    assert post.mode[0] == pytest.approx(mode, rel=0.02)
    if strategy != "eb":
        assert post.hyper.loc["sd", "mean"] == pytest.approx(mean, rel=0.02)
        assert post.hyper.loc["sd", "sd"] == pytest.approx(sd, rel=0.1)


@pytest.mark.parametrize("ratio", [50.0, 1e4])
def test_noise_far_below_groups(ratio):
    """Two sds, against the marginal likelihood on a grid, in the unit of the noise."""
    rng = np.random.default_rng(3)
    y = ratio * LATENT + rng.normal(size=N)
    of_group, of_noise = priors.HalfNormal(2.0 * ratio), priors.HalfNormal(1.0)
    sds = {"1|g": (slice(0, J), of_group)}
    given = {"learn": {"sd": of_noise}, "prior_variance": 10.0 * ratio**2}
    post = epfast.fit_hyper(X, y, sds=sds, **given)
    logs = np.linspace(-3.0, 1.5, 60) + math.log(ratio), np.linspace(-0.6, 0.6, 60)
    value = np.empty((60, 60))
    known, own = 10.0 * ratio**2 * X[:, J:] @ X[:, J:].T, X[:, :J] @ X[:, :J].T
    for i, j in np.ndindex(60, 60):
        L = np.linalg.cholesky(known + np.exp(2 * logs[0][i]) * own + np.exp(2 * logs[1][j]) * EYE)
        half = np.linalg.solve(L, y)
        value[i, j] = -np.log(np.diag(L)).sum() - 0.5 * half @ half
        for prior, u in zip((of_group, of_noise), (logs[0][i], logs[1][j]), strict=True):
            value[i, j] += prior.log_density(math.exp(u)) + u
    for axis, name in enumerate(post.hyper_names):
        mean, sd, _ = averages(special.logsumexp(value, axis=1 - axis), logs[axis])
        assert post.hyper.loc[name, "mean"] == pytest.approx(mean, abs=0.05 * sd)
        assert post.hyper.loc[name, "sd"] == pytest.approx(sd, rel=0.05)


@pytest.mark.filterwarnings("ignore:.*left out. sd from:epfast.ConvergenceWarning")
@pytest.mark.parametrize("ratio", [1.0, 1e3, 1e6])
def test_evidence_of_noise_far_below_the_response(ratio):
    """The marginal density of y in 50 digits. Scales of sites lost eps ratio^2 of each row."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(12, 2))
    y = ratio * rows @ [1.0, -2.0] + rng.normal(size=12)
    variance = 4.0 * ratio**2
    post = epfast.fit_hyper(rows, y, learn={"sd": HALF}, prior_variance=variance, strategy="eb")
    s = float(post.points[0, 0])
    with mpmath.workdps(50):
        X = mpmath.matrix(rows.tolist())
        K = variance * X * X.T + mpmath.mpf(s) ** 2 * mpmath.eye(12)
        z = mpmath.lu_solve(K, mpmath.matrix(y.tolist()))
        quadratic = sum(a * b for a, b in zip(y.tolist(), z, strict=True))
        exact = -(quadratic + mpmath.log(mpmath.det(K)) + 12 * mpmath.log(2 * mpmath.pi)) / 2
    expected = float(exact) + HALF.over_log(math.log(s))[0]
    assert post.log_evidence == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("strategy", ["eb", "auto", "sobol"])
def test_little_noise_beside_a_prior_that_hardly_allows_the_weights(strategy):
    """Weights of 30 prior sds: two modes of the noise, of which a grid says that little has all.

    A search from the sd of y ends at the other one, 1,600 nats below.
    """
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(200, 5))
    latent = rows @ rng.normal(size=5)
    y = 1e6 * latent / latent.std() + rng.normal(size=200)
    prior = priors.InverseGamma(1.0, 1.0)
    post = epfast.fit_hyper(rows, y, learn={"sd": prior}, prior_variance=1e9, strategy=strategy)
    mean, _, mode = exact_noise(rows, y, 1e9, prior)
    assert mean == pytest.approx(1.0, rel=0.1)
    assert post.mode[0] == pytest.approx(mode, rel=0.02)
    assert post.hyper.loc["sd", "mean"] == pytest.approx(mean, rel=0.02)


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("strategy", ["eb", "auto"])
def test_a_mode_at_the_end_of_its_range_is_said(strategy):
    """A response without noise: the density of its sd rises down to where doubles end."""
    rows = RNG.normal(size=(30, 2))
    with pytest.warns(DataWarning, match="mode of 'sd' is at the lower end of its range"):
        epfast.fit_hyper(rows, rows[:, 0], learn={"sd": HALF}, strategy=strategy)


@pytest.mark.parametrize(("d", "seed"), [(3, 0), (5, 1)])
def test_a_search_never_ends_below_its_start(d, seed):
    """Its end is the highest of a hundred points about it and of the start, whatever the metric."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(60, 3 * d))
    sds = {f"w{k}": (slice(3 * k, 3 * k + 3), priors.HalfCauchy(1.0)) for k in range(d)}
    labels = np.where(rows[:, 0] + rng.logistic(size=60) > 0.0, 1, -1)
    of = target(rows, labels, loss="logistic", sds=sds)
    (mode,) = of.modes()
    near = (mode.u + 0.3 * rng.normal(size=d) for _ in range(100))
    values = [of.point(u, of.posterior_at(u, 1e-8, mode.fit)).value for u in (of.starts[0], *near)]
    assert max(values) < mode.value + 1e-4
    assert of.n_fits < 30 + 101


@pytest.mark.parametrize("seed", [2, 8])
@pytest.mark.filterwarnings("ignore:the sd of:epfast.DataWarning")
def test_lost_points_are_said_where_priors_are_proper(seed):
    """Student-t noise of two rows a level, whose fits do not converge at small scales.

    It was said that the posterior is not proper, which proper priors rule out.
    """
    rng = np.random.default_rng(seed)
    J = int(rng.integers(8, 25))
    level = np.repeat(np.arange(J), 2)
    rows = np.column_stack([np.eye(J)[level], np.ones(2 * J)])
    y = rng.normal(size=J)[level] + 0.5 * rng.standard_t(3, size=2 * J)
    given = {"sds": {"g": (slice(0, J), HALF)}, "learn": {"scale": HALF}}
    with pytest.warns(epfast.ConvergenceWarning, match=r"left out: g from .*, scale from 0\.[23]"):
        post = epfast.fit_hyper(rows, y, loss="student_t", **given)
    assert post.weights.sum() == pytest.approx(1.0)
    assert 0.3 < post.hyper.loc["scale", "mean"] < 0.9


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning", "ignore:the sd of")
def test_an_average_has_a_prediction(seed):
    """Points end where the loss has a mean: one with df below 1, of any weight, made all NaN."""
    rng = np.random.default_rng(seed)
    level = np.arange(24) % 6
    rows = np.column_stack([np.eye(6)[level], np.ones(24)])
    y = rng.normal(size=6)[level] + 0.3 * rng.standard_t(1.5, size=24)
    learn = {"df": priors.Gamma(2.0, 0.1), "scale": HALF}
    post = epfast.fit_hyper(rows, y, loss="student_t", sds={"g": (slice(0, 6), HALF)}, learn=learn)
    least, _ = losses.StudentT().range_of("df")
    assert (post.points[:, post.hyper_names.index("df")] >= least).all()
    assert np.isfinite(post.predict(rows)).all()
    assert np.isfinite(post.log_predictive(rows, y)).all()


def test_eight_schools():
    """One sd, against quadrature of its marginal likelihood (Rubin 1981; Gelman 2006)."""
    effect, error = SCHOOLS
    rows = np.column_stack([np.eye(8), np.ones(8)]) / error[:, None]
    post = epfast.fit_hyper(
        rows,
        effect / error,
        loss=losses.Gaussian(1.0),
        sds={"school": (slice(0, 8), priors.HalfCauchy(5.0))},
        prior_variance=25.0,
    )
    u = np.linspace(-11.0, 5.0, 8001)
    spread = np.exp(2.0 * u)[:, None] + error**2
    precision, shift = 1.0 / 25.0 + (1.0 / spread).sum(1), (effect / spread).sum(1)
    value = -0.5 * (np.log(spread).sum(1) + (effect**2 / spread).sum(1))
    value += 0.5 * (shift**2 / precision - np.log(precision)) + u
    value += [priors.HalfCauchy(5.0).log_density(s) for s in np.exp(u)]
    mean, sd, ends = averages(value, u)
    table = post.hyper.iloc[0]
    assert table["mean"] == pytest.approx(mean, abs=0.01 * sd)
    assert table["sd"] == pytest.approx(sd, rel=0.01)
    np.testing.assert_allclose(table[["5%", "50%", "95%"]].astype(float), ends, rtol=0.02)
    of_mu = shift / precision
    weight = special.softmax(value)
    assert post.mean[8] == pytest.approx(weight @ of_mu, abs=0.01)
    assert post.sd[8] == pytest.approx(
        math.sqrt(weight @ (1.0 / precision + (of_mu - weight @ of_mu) ** 2)), rel=0.01
    )
    # the evidence, with the constants that the fit has
    step = u[1] - u[0]
    constant = -4.0 * math.log(2.0 * math.pi) + np.log(error).sum() - 0.5 * math.log(25.0)
    assert post.log_evidence == pytest.approx(
        special.logsumexp(value) + math.log(step) + constant, abs=0.01
    )
    assert post.n_fits <= 25


@pytest.mark.parametrize("seed", [400, 402, 10])
def test_one_row_a_level(seed):
    """The priors alone tell the two sds apart: a crescent, whose arms are far from normal.

    Sums over a grid of logs of the marginal likelihood. With seeds 400 and 402 one arm lies between
    the rows of points that the mode asks for. Sds of effects were up to 52 % off.
    """
    rng, J, variance = np.random.default_rng(seed), 25, 4.0
    rows = np.column_stack([rng.normal(size=(J, 2)), np.eye(J)])
    effects = rng.normal(size=J + 2) * np.append([1.0, 1.0], np.full(J, 3.0))
    y = rows @ effects + 0.5 * rng.normal(size=J)
    of_group, of_noise = priors.HalfStudentT(3.0, 1.3), priors.HalfStudentT(3.0, 0.5)
    sds, learn = {"g": (slice(2, J + 2), of_group)}, {"sd": of_noise}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the sd of", DataWarning)
        post = epfast.fit_hyper(rows, y, sds=sds, learn=learn, prior_variance=variance)
    logs, noise = np.linspace(-11.0, 5.0, 140), np.linspace(-9.0, 4.0, 140)
    value, mean, square = (np.empty((140, 140, k)) for k in (1, J + 2, J + 2))
    for i, u in enumerate(logs):
        prior = np.append([variance] * 2, np.full(J, math.exp(2.0 * u)))
        w, U = np.linalg.eigh((rows * prior) @ rows.T)
        spread, z, P = w + np.exp(2.0 * noise)[:, None], U.T @ y, prior[:, None] * (rows.T @ U)
        value[i, :, 0] = -0.5 * (np.log(2.0 * np.pi * spread) + z**2 / spread).sum(1)
        value[i, :, 0] += of_group.over_log(u)[0] + [of_noise.over_log(t)[0] for t in noise]
        mean[i] = (z / spread) @ P.T
        square[i] = mean[i] ** 2 + prior - (1.0 / spread) @ (P**2).T
    weight = special.softmax(value)
    exact = (weight * mean).sum((0, 1))
    sd = np.sqrt((weight * square).sum((0, 1)) - exact**2)
    np.testing.assert_allclose(post.sd, sd, rtol=0.05)
    assert (np.abs(post.mean - exact) < 0.05 * sd).all()
    volume = math.log((logs[1] - logs[0]) * (noise[1] - noise[0]))
    assert post.log_evidence == pytest.approx(special.logsumexp(value) + volume, abs=0.02)
    weight, values = weight[..., 0], (np.exp(logs), np.exp(noise))
    for axis, s in enumerate(values):
        p = weight.sum(1 - axis)
        middle = p @ s
        assert post.hyper["mean"].iloc[axis] == pytest.approx(middle, rel=0.05)
        assert post.hyper["sd"].iloc[axis] == pytest.approx(
            math.sqrt(p @ (s - middle) ** 2), rel=0.1
        )


@pytest.mark.full
def test_two_sds_and_noise():
    """Three hyper-parameters with Gaussian noise, against the marginal likelihood on a grid."""
    rows = np.column_stack([X[:, : J + 1], np.eye(J)[GROUP] * X[:, -1:], X[:, -1]])
    y = LATENT + 0.5 * RNG.normal(size=N)
    prior = priors.HalfNormal(1.0)
    slopes = slice(J + 1, 2 * J + 1)
    post = epfast.fit_hyper(
        rows, y, sds={"1|g": (slice(0, J), prior), "x|g": (slopes, prior)}, learn={"sd": prior}
    )
    logs = [np.linspace(low, 1.5, 36) for low in (-4.0, -5.0, -1.3)]
    fixed = np.array([J, 2 * J + 1])
    known = 100.0 * rows[:, fixed] @ rows[:, fixed].T
    of_first = rows[:, :J] @ rows[:, :J].T
    of_slopes = rows[:, slopes] @ rows[:, slopes].T
    value = np.empty((36, 36, 36))
    for i, j, k in np.ndindex(value.shape):
        a, b, c = (logs[0][i], logs[1][j], logs[2][k])
        K = known + math.exp(2 * a) * of_first + math.exp(2 * b) * of_slopes
        L = np.linalg.cholesky(K + math.exp(2 * c) * np.eye(N))
        half = np.linalg.solve(L, y)
        value[i, j, k] = -np.log(np.diag(L)).sum() - 0.5 * half @ half
        value[i, j, k] += sum(prior.log_density(math.exp(u)) + u for u in (a, b, c))
    for axis, name in enumerate(post.hyper_names):
        others = tuple(k for k in range(3) if k != axis)
        mean, sd, _ = averages(special.logsumexp(value, axis=others), logs[axis])
        assert post.hyper.loc[name, "mean"] == pytest.approx(mean, abs=0.05 * sd)
        assert post.hyper.loc[name, "sd"] == pytest.approx(sd, rel=0.06)
    assert post.ess > 60
    assert post.n_fits < 170


@pytest.mark.full
def test_correlated_slopes():
    """Intercepts and slopes as in sleepstudy (Belenky et al. 2003), against their likelihood.

    All groups have the same rows, so that a grid over two sds, their correlation and the noise is
    at hand: V = Z C Z' + s^2 I for each, and least squares for the common weights.
    """
    rng, groups, day = np.random.default_rng(5), 18, np.arange(10.0)
    own = rng.multivariate_normal([0.0, 0.0], [[610.0, 87.0], [87.0, 35.0]], groups)
    Z = np.column_stack([np.ones(10), day])
    y = 251.0 + 10.5 * day + own @ Z.T + 25.6 * rng.normal(size=(groups, 10))
    rows = np.column_stack([np.kron(np.eye(groups), Z), np.tile(Z, (groups, 1))])
    wide, lkj = priors.HalfStudentT(4.0, 60.0), priors.LKJ(2.0)
    post = epfast.fit_hyper(
        rows,
        y.ravel(),
        sds={"1|g": (slice(0, 36, 2), wide), "x|g": (slice(1, 36, 2), wide)},
        correlations={("1|g", "x|g"): lkj},
        learn={"sd": wide},
        prior_variance=1e6,
    )
    logs = [
        np.linspace(*ends) for ends in ((-1, 4.5, 40), (0, 3.6, 30), (-3, 3, 40), (2.8, 3.8, 20))
    ]
    a, b, z, c = np.meshgrid(*logs, indexing="ij")
    C = np.empty((*a.shape, 2, 2))
    C[..., 0, 0], C[..., 1, 1] = np.exp(2.0 * a), np.exp(2.0 * b)
    C[..., 0, 1] = C[..., 1, 0] = np.tanh(z) * np.exp(a + b)
    noise, W, sums = np.exp(2.0 * c), Z.T @ Z, y @ Z
    D = np.linalg.inv(C) + W / noise[..., None, None]
    inverse = np.linalg.inv(D)
    value = -0.5 * groups * (np.linalg.slogdet(D)[1] + np.linalg.slogdet(C)[1] + 20.0 * c)
    value -= 0.5 * (y**2).sum() / noise
    value += 0.5 * np.einsum("ja,...ab,jb->...", sums, inverse, sums) / noise**2
    total, scale = sums.sum(0), noise[..., None, None]
    P = groups * (W / scale - W @ inverse @ W / scale**2) + 1e-6 * np.eye(2)
    h = total / scale[..., 0] - (W @ inverse @ total) / scale[..., 0] ** 2
    fixed = np.linalg.solve(P, h[..., None])[..., 0]
    value += 0.5 * (h * fixed).sum(-1) - 0.5 * np.linalg.slogdet(P)[1]
    value += 2.0 * np.log(1.0 - np.tanh(z) ** 2)
    for u in (a, b, c):
        value += np.vectorize(wide.log_density)(np.exp(u)) + u
    weight = special.softmax(value)
    values = np.exp(a), np.exp(b), np.tanh(z), np.exp(c)
    assert post.hyper_names == ("1|g", "x|g", "cor 1|g,x|g", "sd")
    for name, s in zip(post.hyper_names, values, strict=True):
        mean = (weight * s).sum()
        sd = math.sqrt((weight * (s - mean) ** 2).sum())
        assert post.hyper.loc[name, "mean"] == pytest.approx(mean, abs=0.05 * sd)
        assert post.hyper.loc[name, "sd"] == pytest.approx(sd, rel=0.05)
    mean = (weight[..., None] * fixed).reshape(-1, 2).sum(0)
    spread = np.diagonal(np.linalg.inv(P), axis1=-2, axis2=-1) + (fixed - mean) ** 2
    sd = np.sqrt((weight[..., None] * spread).reshape(-1, 2).sum(0))
    np.testing.assert_allclose(post.mean[-2:], mean, atol=0.01)
    np.testing.assert_allclose(post.sd[-2:], sd, rtol=0.02)
    constant = -90.0 * math.log(2.0 * math.pi) - math.log(1e6) + lkj.of_partial(0.0, 0)[0]
    volume = sum(math.log(one[1] - one[0]) for one in logs)
    exact = special.logsumexp(value) + volume + constant
    assert post.log_evidence == pytest.approx(exact, abs=0.06)
    assert post.n_fits <= 170


def test_correlations_of_three_effects():
    """LKJ by partial correlations is det(R)^(eta - 1) times their Jacobian; and the slopes."""
    prior, at = priors.LKJ(1.7), RNG.normal(size=(5, 3))
    i, j = np.tril_indices(3, -1)
    constants = []
    for z in at:
        steps = 1e-30j * np.eye(3)
        jacobian = np.array([fit_hyper.correlation(z + step)[i, j].imag for step in steps]) / 1e-30
        exact = (
            0.7 * np.linalg.slogdet(fit_hyper.correlation(z))[1] + np.linalg.slogdet(jacobian)[1]
        )
        pairs = zip(z, (1, 1, 0), strict=True)
        constants.append(sum(prior.of_partial(one, others)[0] for one, others in pairs) - exact)
    np.testing.assert_allclose(constants, constants[0])
    mass = integrate.quad(lambda z: math.exp(prior.of_partial(z, 1)[0]), -20.0, 20.0)[0]
    assert mass == pytest.approx(1.0)
    one_hot, (x, z) = np.eye(J)[GROUP], RNG.normal(size=(2, N))
    rows = np.column_stack([one_hot, one_hot * x[:, None], one_hot * z[:, None], np.ones(N), x])
    given = {
        "sds": {name: (slice(k * J, (k + 1) * J), HALF) for k, name in enumerate("abc")},
        "correlations": {tuple("abc"): prior},
    }
    of = target(rows, RNG.poisson(np.exp(0.5 * LATENT)), loss="poisson", **given)
    check_slopes(of)


@pytest.mark.parametrize("loss", ["gaussian", "poisson"])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_effects_that_are_turned(loss, form):
    """Effects T c with the hyper-parameters of c: the fit of the columns V T, whose effects are c.

    The change of variables is exact, so that evidences and moments differ by rounding alone.
    """
    one_hot, x, z = np.eye(J)[GROUP], 30.0 + RNG.normal(size=N), RNG.normal(size=N)
    T = np.array([[1.0, -30.0, 0.3], [0.0, 1.0, 0.0], [0.2, 0.0, 2.0]])
    effects = np.stack([one_hot, one_hot * x[:, None], one_hot * z[:, None]])
    turned = np.einsum("kl,knj->lnj", T, effects)
    y = RNG.poisson(np.exp(0.5 * LATENT)) if loss == "poisson" else LATENT + RNG.normal(size=N)
    given = {"loss": loss, "learn": {"sd": HALF} if loss == "gaussian" else {}, "strategy": "eb"}
    given["sds"] = {name: (slice(k * J, (k + 1) * J), HALF) for k, name in enumerate("abc")}
    fits = [
        epfast.fit_hyper(
            form(np.column_stack([*columns, np.ones(N)])),
            y,
            correlations={tuple("abc"): of},
            **given,
        )
        for columns, of in ((effects, (LKJ, T)), (turned, LKJ))
    ]
    post, other = fits
    assert post.log_evidence == pytest.approx(other.log_evidence, abs=1e-6)
    np.testing.assert_allclose(post.points, other.points, rtol=1e-4, atol=1e-5)
    for k in range(J):
        at = np.arange(3) * J + k
        right = T @ other.covariance[np.ix_(at, at)] @ T.T
        np.testing.assert_allclose(post.mean[at], T @ other.mean[at], rtol=1e-3, atol=1e-4)
        scale = np.sqrt(np.outer(right.diagonal(), right.diagonal()))
        np.testing.assert_allclose(
            post.covariance[np.ix_(at, at)] / scale, right / scale, atol=1e-4
        )
    assert post.n_fits <= other.n_fits + 2
    correlations = {tuple("abc"): (LKJ, T)}
    given = {name: given[name] for name in ("loss", "learn", "sds")}
    rows = np.column_stack([*effects, np.ones(N)])
    check_slopes(target(rows, y, correlations=correlations, **given))


def test_binary_rows_in_small_groups():
    """40 groups of two labels, against quadrature of each group, on a grid of sd and intercept.

    Laplace's approximation is .6 sd off there (hyper.md, section 1).
    """
    J, rng = 40, np.random.default_rng(2)
    group = np.repeat(np.arange(J), 2)
    y = np.where(rng.random(2 * J) < special.expit(rng.normal(size=J)[group]), 1, -1)
    rows = np.column_stack([np.eye(J)[group], np.ones(2 * J)])
    prior = priors.HalfNormal(1.0)
    post = epfast.fit_hyper(
        rows, y, loss="logistic", sds={"g": (slice(0, J), prior)}, prior_variance=4.0
    )
    node, weight = special.roots_hermitenorm(61)
    u, mu = np.linspace(-6.0, 1.5, 120), np.linspace(-3.0, 3.0, 61)
    counts = np.bincount((y.reshape(-1, 2) > 0).sum(1), minlength=3)
    value = np.empty((len(u), len(mu)))
    for i, s in enumerate(np.exp(u)):
        latent = mu[:, None] + s * node
        p = special.expit(latent)
        mass = [(1 - p) ** 2, p * (1 - p), p**2]
        value[i] = sum(
            count * np.log(m @ weight / weight.sum()) for count, m in zip(counts, mass, strict=True)
        )
        value[i] += -0.5 * mu**2 / 4.0 + prior.log_density(s) + u[i]
    mean, sd, _ = averages(special.logsumexp(value, axis=1), u)
    assert post.hyper.loc["g", "mean"] == pytest.approx(mean, abs=0.15 * sd)
    assert post.hyper.loc["g", "sd"] == pytest.approx(sd, rel=0.06)


@pytest.mark.parametrize(
    ("loss", "y", "learn"),
    [
        ("gaussian", LATENT + 0.5 * RNG.normal(size=N), {"sd": priors.Gamma(2.0, 1.0)}),
        (
            "student_t",
            LATENT + 0.5 * RNG.standard_t(4, size=N),
            {"df": priors.Gamma(2.0, 0.1), "scale": priors.Exponential(1.0)},
        ),
        ("negative_binomial", RNG.poisson(np.exp(LATENT)), {"size": priors.InverseGamma(1.0, 1.0)}),
        ("gamma_noise", RNG.gamma(2.0, np.exp(LATENT)), {"shape": priors.HalfStudentT(3.0, 2.0)}),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_slopes(loss, y, learn):
    """Of the log density by logs of hyper-parameters, against differences of it; 0 at the mode."""
    rows = problem(loss, y, learn)
    check_slopes(rows)
    mode = rows.modes()[0]
    np.testing.assert_allclose(rows.slopes(mode), 0.0, atol=0.1)


def check_slopes(rows):
    """Those at a fixed point, against differences of the log density."""
    u = rows.starts[0] + 0.3
    slopes = rows.slopes(rows.point(u, rows.posterior_at(u, 1e-10, None)))
    for k, step in enumerate(1e-4 * np.eye(len(u))):
        more, less = (
            rows.point(v, rows.posterior_at(v, 1e-10, None)).value for v in (u + step, u - step)
        )
        assert slopes[k] == pytest.approx((more - less) / 2e-4, rel=1e-5, abs=1e-5)


def problem(loss, y, learn):
    """The log density of one sd and numbers of the loss."""
    return target(X, y, loss=loss, sds=SDS, learn=learn)


def target(rows, y, **given):
    """The log density of hyper-parameters."""
    found = {}

    def keep(rows, strategy, seed):
        found["rows"] = rows

    original, fit_hyper.averaged = fit_hyper.averaged, keep
    try:
        epfast.fit_hyper(rows, y, **given)
    finally:
        fit_hyper.averaged = original
    return found["rows"]


def test_forms_of_the_same_rows():
    """CSR, an intercept, weights as copies, names, an offset, and fewer rows than columns."""
    y = RNG.poisson(np.exp(LATENT))
    given = {"loss": "poisson", "strategy": "eb"}
    post = epfast.fit_hyper(X, y, sds=SDS, **given)
    csr = epfast.fit_hyper(sparse.csr_matrix(X), y, sds=SDS, **given)
    np.testing.assert_allclose(csr.mean, post.mean, atol=1e-5)
    shifted = epfast.fit_hyper(X, y, sds=SDS, offset=X[:, -1] - 2.0, **given)
    moved = post.mean.copy()
    moved[-1] -= 1.0
    moved[J] += 2.0
    np.testing.assert_allclose(shifted.mean, moved, atol=0.05)
    counts = RNG.integers(1, 3, size=N)
    weighted = epfast.fit_hyper(X, y, sds=SDS, weights=counts, **given)
    copied = epfast.fit_hyper(np.repeat(X, counts, 0), np.repeat(y, counts), sds=SDS, **given)
    np.testing.assert_allclose(weighted.mean, copied.mean, atol=1e-4)
    np.testing.assert_allclose(weighted.points, copied.points, rtol=1e-3)
    pandas = pytest.importorskip("pandas")
    names = [f"g{k}" for k in range(J)] + ["one", "x"]
    named = {"1|g": (names[:J], SDS["1|g"][1])}
    frame = epfast.fit_hyper(pandas.DataFrame(X, columns=names), y, sds=named, **given)
    np.testing.assert_array_equal(frame.mean, post.mean)
    with_ones = epfast.fit_hyper(np.delete(X, J, 1), y, sds=SDS, intercept=100.0, **given)
    np.testing.assert_allclose(with_ones.mean[:J], post.mean[:J], atol=0.02)
    few = epfast.fit_hyper(X[:5], y[:5], sds=SDS, **given)
    assert few.mean.shape == (J + 2,)


def test_what_it_returns(tmp_path):
    """Methods of a posterior, a table, files; and the points are the weights' mixture."""
    y = LATENT + 0.5 * RNG.normal(size=N)
    post = epfast.fit_hyper(X, y, sds=SDS, learn={"sd": priors.HalfNormal(1.0)})
    assert post.hyper_names == ("1|g", "sd")
    assert post.points.shape == (len(post.weights), 2)
    assert post.weights.sum() == pytest.approx(1.0)
    assert post.probabilities.sum() == pytest.approx(1.0)
    draws = post.sample(20_000, rng=0)
    np.testing.assert_allclose(draws.mean(0), post.mean, atol=5.0 * post.sd.max() / 100.0)
    np.testing.assert_allclose(draws.std(0), post.sd, rtol=0.05)
    mean, variance = post.predict_latent(X[:3])
    assert np.isfinite(mean).all()
    assert (variance > 0.0).all()
    assert np.isfinite(post.log_predictive(X, y)).all()
    assert np.isfinite(post.loo_log_predictive()).all()
    assert post.check().verdict in ("good", "usable")
    post.save(tmp_path / "post.npz")
    for other in (epfast.load(tmp_path / "post.npz"), pickle.loads(pickle.dumps(post))):
        np.testing.assert_array_equal(other.mean, post.mean)
        assert str(other.hyper) == str(post.hyper)
    mode = epfast.fit_hyper(X, y, sds=SDS, learn={"sd": priors.HalfNormal(1.0)}, strategy="eb")
    np.testing.assert_allclose(mode.points[0], post.mode, rtol=1e-6)
    assert (post.sd > mode.sd - 1e-9).all()


@pytest.mark.parametrize("strategy", ["ccd", "sobol"])
def test_strategies_agree(strategy):
    y = RNG.negative_binomial(3, 3.0 / (3.0 + np.exp(LATENT + 1.0)))
    given = {"loss": "negative_binomial", "sds": SDS, "learn": {"size": priors.HalfNormal(10.0)}}
    post = epfast.fit_hyper(X, y, strategy="grid", **given)
    other = epfast.fit_hyper(X, y, strategy=strategy, **given)
    np.testing.assert_allclose(other.mean, post.mean, atol=0.08 * post.sd.min())
    np.testing.assert_allclose(other.sd, post.sd, rtol=0.05)
    assert other.log_evidence == pytest.approx(post.log_evidence, abs=0.1)


def test_groups_without_an_effect():
    """The sd is compatible with 0, which is said; its density is that of quadrature."""
    y = X[:, -1] + 0.5 * RNG.normal(size=N)
    with pytest.warns(DataWarning, match=r"'1\|g' is compatible with 0"):
        post = epfast.fit_hyper(X, y, loss=losses.Gaussian(0.25), sds=SDS)

    def density(s):
        K = s**2 * X[:, :J] @ X[:, :J].T + 100.0 * X[:, J:] @ X[:, J:].T + 0.25 * np.eye(N)
        value = stats.multivariate_normal.logpdf(y, cov=K) - post.log_evidence
        return math.exp(value + SDS["1|g"][1].log_density(s))

    mass = integrate.quad(density, 0.0, 5.0, limit=200)[0]
    mean = integrate.quad(lambda s: s * density(s), 0.0, 5.0, limit=200)[0]
    assert mass == pytest.approx(1.0, abs=0.02)
    assert post.hyper.loc["1|g", "mean"] == pytest.approx(mean / mass, rel=0.03)


def test_a_prior_that_ends():
    """Uniform, by quadrature; where the likelihood rises up to the end, that is said."""
    upper = 3.0
    y, prior = LATENT + 0.5 * RNG.normal(size=N), priors.Uniform(upper)
    post = epfast.fit_hyper(X, y, loss=losses.Gaussian(0.25), sds={"1|g": (slice(0, J), prior)})

    def density(s):
        K = s**2 * X[:, :J] @ X[:, :J].T + 100.0 * X[:, J:] @ X[:, J:].T + 0.25 * np.eye(N)
        return math.exp(stats.multivariate_normal.logpdf(y, cov=K) - post.log_evidence) / upper

    mass = integrate.quad(density, 0.0, upper)[0]
    mean = integrate.quad(lambda s: s * density(s), 0.0, upper)[0]
    assert mass == pytest.approx(1.0, abs=0.02)
    assert post.hyper.loc["1|g", "mean"] == pytest.approx(mean / mass, rel=0.05)
    assert (post.points <= upper).all()
    for unit in (1.0, 0.1):
        sds = {"1|g": (slice(0, J), priors.Uniform(0.2 / unit))}
        said = rf"posterior of '1\|g' leans on the end of its prior, {0.2 / unit:g}"
        with pytest.warns(DataWarning, match=said):
            epfast.fit_hyper(unit * X, y, loss=losses.Gaussian(0.25), sds=sds)


def test_a_mode_at_the_end_of_a_prior():
    """exp(log(3)) is above 3, where the density of Uniform(3) is 0: it was said to have no end."""
    rng = np.random.default_rng(1)
    rows = np.eye(6)[np.arange(24) % 6]
    y = rows @ (8.0 * rng.normal(size=6)) + 0.5 * rng.normal(size=24)
    given = {"loss": losses.Gaussian(0.25), "sds": {"g": (slice(0, 6), priors.Uniform(3.0))}}
    with pytest.warns(DataWarning, match="leans on the end of its prior, 3"):
        post = epfast.fit_hyper(rows, y, **given)
    assert post.mode[0] == pytest.approx(3.0)
    assert math.isfinite(post.log_evidence)


def test_improper_posteriors():
    """One label per group under a flat prior has no end."""
    labels = np.where(RNG.random(12) < 0.5, 1, -1)
    with pytest.raises(ValueError, match=r"posterior of g.* not proper"):
        epfast.fit_hyper(
            np.eye(12), labels, loss="probit", sds={"g": (slice(0, 12), priors.Flat())}
        )


@pytest.mark.parametrize(
    ("levels", "prior", "said"),
    [
        (1, priors.Flat(), "is not proper"),
        (1, priors.InverseGamma(1e-3, 1e-3), "has no finite sd"),
        (2, priors.Flat(), "has no finite sd"),
        (3, priors.Flat(), "has no finite sd"),
        (6, priors.Flat(), None),
        (2, HALF, None),
    ],
)
@pytest.mark.filterwarnings("ignore:the sd of:epfast.DataWarning")
@pytest.mark.filterwarnings("ignore:.*points carry the average:epfast.ConvergenceWarning")
def test_heavy_tails_of_few_groups(levels, prior, said):
    """The density over log s falls by J - 2 to J under a flat prior: of three unknowns, too."""
    few = GROUP % levels
    rows = np.column_stack([np.eye(levels)[few], X])
    y = LATENT + RNG.normal(size=levels)[few] + 0.5 * RNG.normal(size=N)
    sds = {"few": (slice(0, levels), prior), "1|g": (slice(levels, levels + J), HALF)}
    given = {"sds": sds, "learn": {"sd": priors.Flat()}, "prior_variance": 1e4}
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", "the posterior of", DataWarning)
        post = epfast.fit_hyper(rows, y, **given)
        epfast.fit_hyper(rows, y, **given, strategy="eb")
    texts = [str(one.message) for one in caught]
    assert len(texts) == (0 if said is None else 2)
    assert all(f"posterior of 'few' {said}" in text for text in texts)
    assert all("HalfNormal" in text for text in texts)
    # without a mode the search goes to the end of what it may search
    assert post.n_fits < (190 if levels == 1 else 170)


@pytest.mark.filterwarnings("ignore:the sd of:epfast.DataWarning")
@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
def test_improper_posteriors_of_three():
    """A label per level, and the size of counts that are no wider than Poisson's, have no end."""
    rng = np.random.default_rng(3)
    labels, counts = np.where(rng.random(N) < 0.5, 1, -1), rng.poisson(np.exp(0.5 * LATENT))
    rows = np.column_stack([np.eye(N), X])
    two = {"1|g": (slice(N, N + J), HALF), "slope": ([N + J + 1], HALF)}
    sds = {"row": (slice(0, N), priors.Flat()), **two}
    with pytest.warns(DataWarning, match="posterior of 'row' is not proper"):
        epfast.fit_hyper(rows, labels, loss="probit", sds=sds)
    sds, learn = {"1|g": SDS["1|g"], "slope": ([J + 1], HALF)}, {"size": priors.Flat()}
    with pytest.warns(DataWarning, match="posterior of 'size' is not proper"):
        epfast.fit_hyper(X, counts, loss="negative_binomial", sds=sds, learn=learn)


def test_many_hyper_parameters():
    rows = RNG.normal(size=(80, 9))
    sds = {f"g{k}": ([k], priors.HalfNormal(1.0)) for k in range(9)}
    y = rows[:, 0] + RNG.normal(size=80)
    with pytest.warns(DataWarning, match="9 hyper-parameters, which are held at their mode"):
        post = epfast.fit_hyper(rows, y, loss=losses.Gaussian(1.0), sds=sds)
    assert len(post.weights) == 1
    # the mode: nothing of the density is higher beside it
    of = target(rows, y, loss=losses.Gaussian(1.0), sds=sds)
    u = np.log(post.points[0])
    top = of.point(u, of.posterior_at(u, 1e-8, None)).value
    for step in 0.05 * np.eye(9):
        beside = (of.point(v, of.posterior_at(v, 1e-8, None)).value for v in (u - step, u + step))
        assert max(beside) < top + 1e-4
    with pytest.raises(ValueError, match="strategy is 'sobol' for 9"):
        epfast.fit_hyper(rows, y, loss=losses.Gaussian(1.0), sds=sds, strategy="sobol")


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({}, ValueError, "sds and learn are empty"),
        ({"sds": [1]}, TypeError, "sds is"),
        ({"sds": {"a": slice(0, 2)}}, TypeError, r"sds\['a'\] is slice"),
        ({"sds": {"a": (slice(0, 2), 1.0)}}, TypeError, r"sds\['a'\]\[1\] is 1.0.*HalfNormal"),
        ({"sds": {"a": ([99], HALF)}}, ValueError, r"sds\['a'\]\[0\] is .*8 columns"),
        ({"sds": {"a": ([], HALF)}}, ValueError, "has no column"),
        ({"sds": {"a": (0, HALF), "b": ([0, 1], HALF)}}, ValueError, "column 0 in 'a' and in 'b'"),
        ({"learn": {"scale": HALF}}, ValueError, "learn has 'scale'.*'sd', 'variance'"),
        ({"learn": {"sd": 1.0}}, TypeError, r"learn\['sd'\] is 1.0"),
        ({"learn": {"sd": HALF, "variance": HALF}}, ValueError, "one number"),
        ({"learn": {"sd": HALF}, "strategy": "nuts"}, ValueError, "strategy is 'nuts'"),
        ({"learn": {"sd": HALF}, "schedule": epfast.ADF()}, TypeError, "schedule is ADF"),
        ({"learn": {"sd": HALF}, "prior_variance": -1.0}, ValueError, "prior_variance"),
        ({"learn": {"sd": HALF}, "loss": "hinge"}, ValueError, "loss is Hinge"),
        ({"sds": SDS, "correlations": {"1|g": LKJ}}, TypeError, "has the key '1|g'"),
        ({"sds": SDS, "correlations": {("1|g", "a"): LKJ}}, ValueError, "names 'a'"),
        ({"sds": SDS, "correlations": {("1|g", "a"): HALF}}, TypeError, "allowed: epfast.priors.L"),
        ({"sds": UNEVEN, "correlations": {("a", "b"): LKJ}}, ValueError, "groups of 3, 2 columns"),
        ({"sds": UNEVEN, "correlations": {("a", "b"): (HALF, np.eye(2))}}, TypeError, "or a pair"),
        (
            {"sds": UNEVEN, "correlations": {("a", "b"): (LKJ, np.eye(3))}},
            ValueError,
            r"correlations\[\('a', 'b'\)\]\[1\] has shape \(3, 3\); allowed: \(2, 2\)",
        ),
        (
            {"sds": {"a": (0, HALF), "b": (1, HALF)}, "correlations": {tuple("ab"): SINGULAR}},
            ValueError,
            r"\[1\] is singular; allowed: a matrix with an inverse",
        ),
        ({"sds": SDS, "prior_mean": np.ones(J + 2)}, ValueError, "prior_mean is not 0"),
        ({"learn": {"sd": HALF}, "rng": -1}, ValueError, "rng"),
        ({"learn": {"sd": HALF}, "prior_precision": 1.0}, TypeError, "prior_precision is 1.0"),
        (
            {"sds": SDS, "prior_precision": (slice(None), np.eye(J + 2))},
            ValueError,
            "prior_precision has a column of the group",
        ),
        (
            {"learn": {"sd": HALF}, "prior_precision": ([0, 1], np.ones((2, 2)))},
            ValueError,
            r"prior_precision\[1\]",
        ),
        ({"learn": {"sd": HALF}, "X": X[:0], "y": LATENT[:0]}, ValueError, r"X has shape \(0, 8\)"),
        ({"learn": {"sd": HALF}, "X": X[:, 0]}, ValueError, r"X has shape \(60,\)"),
        ({"learn": {"sd": HALF}, "X": X * np.nan}, ValueError, "X holds NaN"),
    ],
)
def test_bad_input(given, error, said):
    with pytest.raises(error, match=said):
        epfast.fit_hyper(**{"X": X, "y": LATENT, **given})


def test_draws_for_arviz():
    """Each draw has its own noise: log likelihoods, and replicates, are of the draw's point."""
    pytest.importorskip("xarray")
    y = LATENT + 0.5 * RNG.normal(size=N)
    post = epfast.fit_hyper(X, y, sds=SDS, learn={"sd": HALF})
    data = post.to_arviz(1000)
    posterior = data["posterior"]
    sd = posterior["sd"].to_numpy().ravel()
    values = posterior[post.quantity[0]].to_numpy().reshape(1000, -1)
    exact = stats.norm.logpdf(y, values @ X.T, sd[:, None])
    np.testing.assert_allclose(data["log_likelihood"]["y"].to_numpy().reshape(1000, -1), exact)
    assert sd.mean() == pytest.approx(post.hyper.loc["sd", "mean"], rel=0.02)
    replicates = data["posterior_predictive"]["y"].to_numpy().reshape(1000, -1)
    spread = np.sqrt(post.predict_variance(X))
    np.testing.assert_allclose(replicates.std(0).mean(), spread.mean(), rtol=0.05)
    np.testing.assert_allclose(values.mean(0), post.mean, atol=5.0 * post.sd.max() / 30.0)
    with pytest.raises(ValueError, match="numbers of the likelihood differ"):
        post.log_likelihood(values)


@pytest.mark.parametrize("levels", [6, 40])
def test_a_prior_precision_of_some_weights(levels):
    """That of columns by a change of variables: X and its weights turned by one matrix."""
    rng = np.random.default_rng(2)
    g = np.arange(4 * levels) % levels
    x = rng.normal(size=(len(g), 2))
    y = x @ [1.0, -1.0] + rng.normal(size=levels)[g] + 0.3 * rng.normal(size=len(g))
    turn, dummies = np.array([[1.0, 0.7], [0.0, 2.0]]), np.eye(levels)[g]
    given = {"sds": {"g": (slice(2, None), HALF)}, "learn": {"sd": HALF}, "strategy": "eb"}
    plain = epfast.fit_hyper(np.hstack([x, dummies]), y, prior_variance=4.0, **given)
    precision = [1, 0], (turn.T @ turn / 4.0)[::-1, ::-1]
    turned = np.hstack([x @ turn, dummies])
    other = epfast.fit_hyper(turned, y, prior_precision=precision, **given)
    assert other.best.kind == "full"
    assert other.log_evidence == pytest.approx(plain.log_evidence, abs=1e-6)
    np.testing.assert_allclose(turn @ other.mean[:2], plain.mean[:2], atol=1e-5)
    np.testing.assert_allclose(other.points, plain.points, rtol=1e-3)
