"""backend.log_evidence: the integral of the prior times all sites."""

import mpmath
import numpy as np
import pytest
from scipy import special, stats

import epfast
from epfast import EP, backend
from epfast.backend import log_evidence
from tests.oracles.data import classes, rbf

RNG = np.random.default_rng(0)


def swept(prior_mean, prior, A, y, sweeps=8, **given):
    """Sites, and mean and covariance, of so many sweeps from a prior."""
    n = len(prior) if A is None else len(A)
    mean, covariance, sites = prior_mean.copy(), prior.copy(), np.zeros((3, n))
    for _ in range(sweeps):
        backend.sweep(covariance, mean, A, y, *sites[:2], log_scale=sites[2], **given)
    return sites, mean, covariance


def moments_of(sites, A, prior_mean, prior):
    """Mean and covariance of a prior times sites on rows of A."""
    tau, nu, _ = sites
    before = np.linalg.inv(prior)
    covariance = np.linalg.inv(before + A.T @ (tau[:, None] * A))
    return covariance @ (before @ prior_mean + A.T @ nu), covariance


def in_60_digits(sites, A, prior_mean, prior):
    """The same integral: E exp(nu'h - h'T h / 2), h ~ N(A prior_mean, A prior A')."""
    with mpmath.workdps(60):
        A, prior, center, tau, nu, scale = (
            mpmath.matrix(np.asarray(part).tolist()) for part in (A, prior, prior_mean, *sites)
        )
        K, h, T = A * prior * A.T, A * center, mpmath.diag(list(tau))
        B, rest = mpmath.eye(len(tau)) + K * T, nu - T * h
        total = sum(scale) + (nu.T * h)[0] - (h.T * T * h)[0] / 2 - mpmath.log(mpmath.det(B)) / 2
        return float(total + (rest.T * mpmath.lu_solve(B, K * rest))[0] / 2)


def spread(d, seed=0):
    """A covariance."""
    root = np.random.default_rng(seed).normal(size=(d, d))
    return root @ root.T + 0.3 * np.eye(d)


# ---- the definition ----


@pytest.mark.parametrize("identity", [False, True])
def test_it_is_the_integral_over_a_plane(identity):
    """By the trapezoidal rule, of a negative site too: exact to rounding for Gaussians."""
    A = np.eye(2) if identity else np.array([[1.0, 0.5], [0.3, -1.0], [2.0, 1.0]])
    center, prior = np.array([0.4, -1.0]), np.array([[1.5, 0.6], [0.6, 0.8]])
    sites = np.array([[0.7, -0.2, 0.4], [0.3, -1.0, 0.5], [-0.1, 0.2, -2.0]])[:, : len(A)]
    line = np.linspace(-14.0, 14.0, 1401)
    theta = np.stack([part.ravel() for part in np.meshgrid(line, line)], axis=1)
    h = theta @ A.T
    factors = (sites[2] + sites[1] * h - 0.5 * sites[0] * h * h).sum(axis=1)
    density = stats.multivariate_normal(center, prior).logpdf(theta)
    truth = special.logsumexp(factors + density) + 2.0 * np.log(line[1] - line[0])
    found = log_evidence(sites, *moments_of(sites, A, center, prior), center, prior)
    assert found == pytest.approx(truth, rel=1e-10)


@pytest.mark.parametrize("power", [1.0, 0.5])
@pytest.mark.parametrize("process", [False, True])
def test_gaussian_responses_have_their_normal_density(process, power):
    """EP is exact then, whatever its power: y ~ N(A prior_mean, A prior A' + v I)."""
    A = np.eye(6) if process else RNG.normal(size=(9, 6))
    y, center, prior = RNG.normal(size=len(A)), RNG.normal(size=6), spread(6)
    loss = epfast.losses.Gaussian(0.7)
    given = {"loss": loss, "power": power}
    sites, mean, covariance = swept(center, prior, None if process else A, y, 40, **given)
    truth = stats.multivariate_normal(A @ center, A @ prior @ A.T + 0.7 * np.eye(len(A))).logpdf(y)
    assert log_evidence(sites, mean, covariance, center, prior) == pytest.approx(truth, rel=1e-9)


@pytest.mark.parametrize("prior", [4.0, np.array([4.0]), np.array([[4.0]])])
def test_one_probit_factor_is_exact(prior):
    sites, mean, covariance = swept(np.array([0.3]), np.full((1, 1), 4.0), np.ones((1, 1)), [1.0])
    truth = special.log_ndtr(0.3 / np.sqrt(5.0))
    for form in (covariance, covariance[0]):
        if np.ndim(prior) < 2 or form.ndim == 2:
            found = log_evidence(tuple(sites), mean, form, [0.3], prior)
            assert found == pytest.approx(truth, rel=1e-12)


# ---- fits ----


@pytest.mark.cover(lambda loss, **_: loss, lambda kind, **_: kind)
@pytest.mark.parametrize("loss", ["probit", "logistic", "hinge"])
@pytest.mark.parametrize("kind", ["number", "variances", "matrix", "mean"])
def test_it_is_that_of_fits_of_rows(loss, kind):
    X, y = classes(40, 5)
    prior = {"number": 3.0, "variances": np.linspace(0.5, 2.0, 5)}.get(kind, spread(5))
    center = RNG.normal(size=5) if kind == "mean" else None
    name = "prior_variance" if np.ndim(prior) < 2 else "prior_covariance"
    schedule = EP(6, 0.0, damping=0.8, power=0.9, order="sequential")
    given = {name: prior, "loss": loss, "schedule": schedule, "prior_mean": center}
    post = epfast.fit_linear(X, y, **given)
    found = log_evidence(post.sites, post.mean, post.covariance, center, prior)
    assert found == pytest.approx(post.log_evidence, rel=1e-10)
    matrix = prior if np.ndim(prior) == 2 else np.eye(5) * prior
    numbers = {"loss": loss, "damping": 0.8, "power": 0.9}
    ours = swept(np.zeros(5) if center is None else center, matrix, X, y, 6, **numbers)
    assert log_evidence(*ours, center, prior) == pytest.approx(post.log_evidence, rel=1e-10)


@pytest.mark.cover(lambda loss, **_: loss, lambda jitter, **_: jitter)
@pytest.mark.parametrize("jitter", [0.0, 1e-12, 1e-6, 1.0])
@pytest.mark.parametrize("loss", ["probit", "student_t"])
def test_it_is_that_of_processes(loss, jitter):
    """Whose kernel is singular to rounding, and whose sites may be negative (Student's t)."""
    x = RNG.uniform(-3.0, 3.0, size=(30, 1))
    K = rbf(x, variance=4.0) + jitter * np.eye(30)
    y = np.where(np.sin(x[:, 0]) + 0.3 * RNG.normal(size=30) > 0.0, 1.0, -1.0)
    y = y if loss == "probit" else np.where(np.arange(30) % 9, y, 8.0)
    given = {"loss": loss, "damping": 0.8}
    sites, mean, covariance = swept(np.zeros(30), K, None, y, 60, **given)
    assert loss == "probit" or (sites[0] < 0.0).any()
    found = log_evidence(sites, mean, covariance, None, K)
    assert found == pytest.approx(in_60_digits(sites, np.eye(30), np.zeros(30), K), rel=1e-11)
    schedule = EP(400, 1e-10, order="sequential", damping=0.8)
    post = epfast.fit_gp(K, y, loss=loss, schedule=schedule)
    assert found == pytest.approx(post.log_evidence, abs=1e-5)
    found = log_evidence(post.sites, post.mean, post.covariance, None, K)
    assert found == pytest.approx(post.log_evidence, rel=1e-10)


def test_a_process_with_a_mean():
    x = RNG.uniform(-3.0, 3.0, size=(12, 1))
    K, center = rbf(x, variance=2.0), np.sin(x[:, 0])
    y = np.where(RNG.random(12) < 0.5, 1.0, -1.0)
    sites, mean, covariance = swept(center, K, None, y, 30)
    found = log_evidence(sites, mean, covariance, center, K)
    assert found == pytest.approx(in_60_digits(sites, np.eye(12), center, K), rel=1e-12)
    fit = epfast.fit_gp(K, y, offset=center, schedule=EP(100, 1e-11))
    assert found == pytest.approx(fit.log_evidence, abs=1e-8)


@pytest.mark.parametrize("jitter", [1.0, 1e-4, 1e-8])
def test_rows_under_a_prior_that_is_nearly_singular(jitter):
    """A smooth prior of many weights; to 60 digits."""
    line = np.linspace(-3.0, 3.0, 20)[:, None]
    prior, X = rbf(line, variance=4.0) + jitter * np.eye(20), RNG.normal(size=(25, 20))
    y = np.sign(X[:, 0] + 0.5 * X[:, 9])
    sites, mean, covariance = swept(np.zeros(20), prior, X, y, 4)
    truth = in_60_digits(sites, X, np.zeros(20), prior)
    found = log_evidence(sites, mean, covariance, None, prior)
    assert found == pytest.approx(truth, abs=1e-6)
    rough = 0.3 * RNG.normal(size=20)
    sites, mean, covariance = swept(rough, prior, X, y, 4)
    if jitter < 1e-6:
        with pytest.raises(FloatingPointError, match="prior_covariance is nearly singular"):
            log_evidence(sites, mean, covariance, rough, prior)
    else:
        found = log_evidence(sites, mean, covariance, rough, prior)
        assert found == pytest.approx(in_60_digits(sites, X, rough, prior), abs=1e-6)


def test_minibatches_of_a_diagonal_posterior():
    """The sum of the sites of ADF: as fit_linear with minibatches, in the same order."""
    X, y = classes(60, 4)
    precision, shift, found = np.full(4, 1.0 / 3.0), np.full(4, 0.2), []
    for rows in np.split(np.arange(60), 12):
        given = y[rows, None] * X[rows], shift / precision, 1.0 / precision
        found.append(backend.fit_minibatch("logistic", *given, scheme="laplace"))
        precision, shift = precision + found[-1][0], shift + found[-1][1]
    sites = [np.array(part) for part in zip(*found, strict=True)]
    assert (sites[0] >= 0.0).all()
    given = {"posterior": "factorized", "batch_size": 5, "scheme": "laplace", "prior_variance": 3.0}
    given |= {"schedule": epfast.ADF(warm_up=0), "prior_mean": np.full(4, 0.6)}
    post = epfast.fit_linear(X, y, **given)
    ours = log_evidence(sites, shift / precision, 1.0 / precision, np.full(4, 0.6), 3.0)
    assert ours == pytest.approx(post.log_evidence, rel=1e-10)


# ---- the door ----


def example(d=3):
    """Arguments of a small process."""
    K = spread(d)
    sites, mean, covariance = swept(np.zeros(d), K, None, np.ones(d))
    return {
        "sites": tuple(sites),
        "mean": mean,
        "covariance": covariance,
        "prior_mean": np.zeros(d),
        "prior_covariance": K,
    }


BAD = np.array([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
ASKEW = np.eye(3) + np.array([[0.0, 0.1, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
ROWS_OF_TWO = (np.ones(2), np.ones(2), np.zeros(2))
WRONG = {
    "sites": [None, (np.ones(3), np.ones(3)), 1.0, "abc"],
    "sites.precision": [np.ones(2), np.full(3, np.nan), "a", np.ones((3, 2))],
    "sites.shift": [np.ones(2), np.full(3, np.inf), np.ones((3, 3))],
    "sites.log_scale": [np.ones((3, 1)), np.full(3, np.nan)],
    "mean": [np.ones((3, 1)), [np.nan, 0.0, 0.0], "a", [], 1.0],
    "prior_mean": [np.ones(2), [np.inf, 0.0, 0.0], "a", 0.0],
    "covariance": [np.eye(2), ASKEW, BAD, -np.eye(3), np.eye(3) * np.nan, 1.0, np.ones(3)],
    "prior_covariance": [
        np.eye(2),
        ASKEW,
        BAD,
        -np.eye(3),
        0.0,
        -1.0,
        np.nan,
        np.zeros(3),
        "a",
        [[1], [1, 2]],
    ],
}


@pytest.mark.cover(lambda name, **_: name)
@pytest.mark.parametrize(("name", "value"), [(k, v) for k in WRONG for v in WRONG[k]])
def test_bad_arguments_are_named(name, value):
    given = example()
    if "." in name:
        parts = dict(zip(("precision", "shift", "log_scale"), given["sites"], strict=True))
        given["sites"] = tuple((parts | {name.split(".")[1]: value}).values())
    else:
        given[name] = value
    with pytest.raises((ValueError, TypeError), match=rf"^{name}\b.*allowed"):
        log_evidence(**given)


def test_improper_matrices_are_refused_for_rows_and_values():
    given = example() | {"sites": ROWS_OF_TWO, "covariance": np.diag([1.0, 0.0, 1.0])}
    with pytest.raises(ValueError, match="covariance is not positive definite to rounding"):
        log_evidence(**given)
    given = example() | {"sites": ROWS_OF_TWO, "prior_covariance": BAD}
    with pytest.raises(ValueError, match="prior_covariance is not positive definite to rounding"):
        log_evidence(**given)
    flat = {"sites": np.zeros((3, 3)), "mean": np.zeros(3), "covariance": BAD}
    with pytest.raises(ValueError, match="prior_covariance is not positive semi-definite"):
        log_evidence(**flat, prior_mean=None, prior_covariance=BAD)
    zero = flat | {"covariance": np.zeros((3, 3)), "prior_mean": None}
    assert log_evidence(**zero, prior_covariance=np.zeros((3, 3))) == 0.0
    large = example() | {"sites": ROWS_OF_TWO, "mean": np.full(3, 1e200)}
    with pytest.raises(ValueError, match="overflows"):
        log_evidence(**large)


def test_arguments_are_not_changed():
    given = example()
    frozen = [*given["sites"], *(given[name] for name in given if name != "sites")]
    before = [part.copy() for part in frozen]
    for part in frozen:
        part.flags.writeable = False
    found = log_evidence(**given)
    for part, old in zip(frozen, before, strict=True):
        np.testing.assert_array_equal(part, old)
    lists = {name: np.asarray(part).tolist() for name, part in given.items()}
    assert log_evidence(**lists) == pytest.approx(found, rel=1e-12)
    turned = {name: np.asfortranarray(part) for name, part in given.items()}
    assert log_evidence(**turned) == pytest.approx(found, rel=1e-12)
