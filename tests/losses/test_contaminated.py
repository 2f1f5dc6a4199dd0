"""Contaminated likelihoods: their mixture written out, quadrature, EP against brute force."""

import pickle

import numpy as np
import pytest
from scipy import integrate, special, stats

import epfast
from epfast import fit_gp, fit_linear, losses, schedules
from tests.oracles.plain_ep import plain_ep

BASES = {
    "probit": (losses.Probit(), None),
    "logistic": (losses.Logistic(), None),
    "poisson": (losses.Poisson(), "zero"),
    "counts": (losses.Poisson(), lambda y: -0.1 * np.asarray(y) - 2.4),
    "binomial": (losses.Binomial(), -1.5),
    "gaussian": (losses.Gaussian(0.5), -3.0),
    # a row of its core is a label, y and log c(y)
    "student": (losses.StudentT(scale=0.5), lambda y: -0.05 * np.abs(y) - 3.0),
}
SHARE = 0.2


def responses(loss, n, rng):
    if loss.by_margin:
        return np.where(rng.random(n) < 0.5, 1.0, -1.0)
    if loss.in_units_of_y:
        return rng.normal(size=n)
    count = rng.poisson(1.5, n).astype(float)
    if isinstance(loss.base, losses.Binomial):
        return np.column_stack([np.minimum(count, 5.0), np.full(n, 5.0)])
    return count


def log_density(loss, y):
    """log c(y) of each row."""
    if loss.by_margin:
        return np.full(len(y), np.log(0.5))
    if loss.log_density == "zero":
        return np.where(y == 0.0, 0.0, -np.inf)
    given = loss.log_density
    return given(y) if callable(given) else np.full(len(y), given)


@pytest.fixture(params=BASES)
def loss(request):
    base, given = BASES[request.param]
    return losses.Contaminated(base, SHARE, given)


@pytest.mark.parametrize("offset", [False, True])
def test_values_and_slopes(loss, offset):
    rng = np.random.default_rng(0)
    n = 40
    y, h, shift = responses(loss, n, rng), 2.0 * rng.normal(size=n), rng.normal(size=n)
    own = loss.with_offset() if offset else loss
    given = own.observed(y, n, shift if offset else None)
    at = h + shift if offset else h
    base = loss.base.values(at, loss.base.responses("y", y, n))
    with np.errstate(divide="ignore"):
        plain = -np.log((1 - SHARE) * np.exp(-base) + SHARE * np.exp(log_density(loss, y)))
    assert own.values(h, given) == pytest.approx(plain, rel=1e-13)
    value, slope, curvature = (np.empty(n) for _ in range(3))
    own.shifted_core().at(
        h * y if loss.by_margin and not offset else h,
        value,
        slope,
        curvature,
        None if loss.by_margin and not offset else given,
    )
    step = 1e-4
    up, down = (own.values(h + sign * step, given) for sign in (1.0, -1.0))
    sign = y if loss.by_margin and not offset else 1.0
    assert slope * sign == pytest.approx((up - down) / (2 * step), rel=1e-6, abs=1e-8)
    assert curvature == pytest.approx((up - 2 * value + down) / step**2, rel=1e-4, abs=1e-5)


def quadrature(loss, row, m, v, power):
    """log Z, and mean and variance of the tilted distribution."""

    def integrand(h, degree):
        t = np.exp(-power * loss.values(np.array([h]), row)[0])
        return h**degree * t * np.exp(-0.5 * (h - m) ** 2 / v) / np.sqrt(2 * np.pi * v)

    ends = m - 12 * np.sqrt(v), m + 12 * np.sqrt(v)
    Z, first, second = (
        integrate.quad(integrand, *ends, args=(k,), epsabs=1e-14, epsrel=1e-11, limit=200)[0]
        for k in range(3)
    )
    return np.log(Z), first / Z, second / Z - (first / Z) ** 2


@pytest.mark.parametrize(("m", "v"), [(0.3, 1.0), (-4.0, 0.1), (2.0, 9.0)])
def test_moments(loss, m, v):
    y = responses(loss, 12, np.random.default_rng(1))
    rows = loss.responses("y", y, 12)
    given = rows[:, 0] if loss.by_margin else y
    for power in (1.0, 0.4) if "powers" in loss.gives else (1.0,):
        lZ, dlZ, d2lZ = epfast.backend.tilted_moments(
            loss, given, np.full(12, m), np.full(12, v), power
        )
        exact = [quadrature(loss, rows[k : k + 1], m, v, power) for k in range(12)]
        log_Z, mean, variance = np.transpose(exact)
        assert lZ == pytest.approx(log_Z, abs=1e-9)
        assert m + v * dlZ == pytest.approx(mean, abs=1e-7)
        assert v + v * v * d2lZ == pytest.approx(variance, rel=1e-6)


def test_offsets_move_the_cavity(loss):
    rng = np.random.default_rng(6)
    n = 300
    y, m, v, shift = responses(loss, n, rng), rng.normal(size=n), rng.random(n), rng.normal(size=n)
    found = []
    for own, given, mean in ((loss, None, m + shift), (loss.with_offset(), shift, m)):
        triple = np.empty((3, n))
        assert own.tilted().many(own.observed(y, n, given), mean, v, np.ones(n), *triple) == 0
        found.append(triple)
    np.testing.assert_allclose(*found, rtol=1e-9, atol=1e-11)


def test_is_plain_ep(loss):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(30, 2))
    y = responses(loss, 30, rng)
    post = fit_linear(X, y, loss=loss, schedule=schedules.EP(order="sequential", tol=1e-11))
    assert post.converged
    triple = losses.Contaminated.tilted(loss)
    rows = loss.responses("y", y, 30)

    def moments(row, m, v, power):
        out = np.empty((3, len(m)))
        triple.many(np.ascontiguousarray(row), m, v, np.full(len(m), power), *out)
        return out

    mean, covariance, evidence = plain_ep(X, rows, moments, np.eye(2))
    assert post.mean == pytest.approx(mean, abs=1e-9)
    assert post.covariance == pytest.approx(covariance, abs=1e-9)
    assert post.log_evidence == pytest.approx(evidence, abs=1e-9)


def test_evidence_in_one_dimension(loss):
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=12), responses(loss, 12, rng)
    rows = loss.responses("y", y, 12)
    post = fit_linear(x[:, None], y, loss=loss)
    grid = np.linspace(-8, 8, 20001)
    log_joint = -0.5 * grid**2 - 0.5 * np.log(2 * np.pi)
    log_joint -= loss.values(x[:, None] * grid, rows).sum(axis=0)
    exact = special.logsumexp(log_joint) + np.log(grid[1] - grid[0])
    assert post.log_evidence == pytest.approx(exact, abs=0.05)
    assert fit_gp(np.outer(x, x) + 1e-9 * np.eye(12), y, loss=loss).log_evidence == pytest.approx(
        post.log_evidence, abs=1e-4
    )


def test_a_small_share_is_the_base(loss):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(30, 2))
    y = responses(loss, 30, rng)
    ours = fit_linear(X, y, loss=loss.with_parameters(share=1e-14))
    base = fit_linear(X, y, loss=loss.base)
    assert ours.mean == pytest.approx(base.mean, abs=1e-6)
    assert ours.log_evidence == pytest.approx(base.log_evidence, abs=1e-6)


def test_labels_that_are_flipped_equal_the_noisy_step():
    """Probit with a vanishing width is the step; a mixture of it with 1/2 is the noisy step."""
    noisy, loss = losses.NoisyStep(0.1), losses.Contaminated(losses.NoisyStep(1e-300), 0.2)
    m, v = np.linspace(-3, 3, 7), np.geomspace(0.1, 10, 7)
    y = np.ones(7)
    ours = epfast.backend.tilted_moments(loss, y, m, v)
    np.testing.assert_allclose(ours, epfast.backend.tilted_moments(noisy, y, m, v), atol=1e-12)
    assert loss.predict_proba(m, v) == pytest.approx(noisy.predict_proba(m, v), abs=1e-12)


def test_predictions():
    labels = losses.Contaminated(losses.Logistic(), SHARE)
    m, v = np.array([-1.0, 0.0, 3.0]), np.array([0.5, 1.0, 4.0])
    p = labels.predict_proba(m, v)
    assert p == pytest.approx(0.8 * losses.Logistic().predict_proba(m, v) + 0.1)
    assert p == pytest.approx(np.exp(labels.log_predictive(np.ones((3, 1)), m, v)), abs=1e-9)
    zeros = losses.Contaminated(losses.Poisson(), SHARE, "zero")
    drawn = zeros.sample(np.full(200_000, 0.7), np.random.default_rng(0))
    certain = np.array([0.7]), np.array([0.0])
    assert drawn.mean() == pytest.approx(zeros.predict(*certain)[0], rel=0.02)
    assert drawn.var() == pytest.approx(zeros.predict_variance(*certain)[0], rel=0.02)
    flips = labels.sample(np.full(200_000, 2.0), np.random.default_rng(0))
    assert (flips == 1.0).mean() == pytest.approx(0.8 * special.expit(2.0) + 0.1, abs=0.005)


def test_files(loss, tmp_path):
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(20, 2)), responses(loss, 20, rng)
    if not callable(loss.log_density):
        assert pickle.loads(pickle.dumps(loss)) == loss
    post = fit_linear(X, y, loss=loss)
    post.save(tmp_path / "post.npz")
    back = epfast.load(tmp_path / "post.npz")
    assert back.loss == (None if callable(loss.log_density) else loss)
    assert back.mean == pytest.approx(post.mean, rel=0, abs=0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"base": "probit"}, "base is"),
        ({"base": losses.Contaminated()}, "base is"),
        ({"base": losses.Probit(beta=2.0)}, "beta = 1"),
        ({"share": -0.1}, "share"),
        ({"share": 1.0}, "share"),
        ({"share": np.nan}, "share"),
        ({"base": losses.Poisson()}, "log_density is None"),
        ({"base": losses.Poisson(), "log_density": "one"}, "log_density"),
        ({"base": losses.Poisson(), "log_density": np.inf}, "log_density"),
        ({"log_density": -1.0}, "log_density is"),
        ({"base": losses.Poisson(), "log_density": "zero", "beta": 0.5}, "beta"),
    ],
)
def test_refused(given, message):
    with pytest.raises((ValueError, TypeError), match=message):
        losses.Contaminated(**given)


def test_callable_that_is_none():
    loss = losses.Contaminated(losses.Poisson(), 0.1, lambda y: np.full(len(y), np.nan))
    with pytest.raises(ValueError, match="log_density"):
        fit_linear(np.ones((3, 1)), [1, 2, 3], loss=loss)


@pytest.mark.parametrize("power", [1.0, 0.5])
@pytest.mark.parametrize("calls", [0, 40])
def test_an_error_of_the_base_is_told(power, calls):
    left = iter(range(calls))

    def value(m):
        if next(left, None) is None:
            raise KeyError("mine")
        return np.logaddexp(0.0, -m)

    loss = losses.Contaminated(losses.CustomLoss(value), 0.1)
    with pytest.raises(KeyError, match="mine"):
        fit_linear(np.ones((3, 1)), [1, -1, 1], loss=loss, schedule=schedules.EP(power=power))


@pytest.mark.parametrize("base", [losses.Poisson(), losses.Gaussian(0.5)], ids=["counts", "real"])
@pytest.mark.parametrize("level", [0.05, 0.3, 0.5, 0.65, 0.9])
def test_quantiles_with_zeros(base, level):
    """The least x with P(y <= x) >= level, by the distribution function of the mixture."""
    mean, variance = np.array([-0.7, 0.0, 0.4, 1.5]), np.array([0.1, 0.5, 1.0, 0.01])
    found = losses.Contaminated(base, 0.3, "zero").predict_quantile(level, mean, variance)
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    h = mean + np.sqrt(variance) * nodes[:, None]

    def below(x):
        """P(y <= x)."""
        counts = isinstance(base, losses.Poisson)
        given = stats.poisson.cdf(x, np.exp(h)) if counts else stats.norm.cdf(x, h, np.sqrt(0.5))
        return 0.7 * weights @ given / weights.sum() + 0.3 * (x >= 0.0)

    assert (below(found + 1e-9) >= level - 1e-9).all()
    step = 1.0 if isinstance(base, losses.Poisson) else 1e-6
    assert (below(found - step) <= level + 1e-9).all()


def test_quantiles_of_outliers_are_those_of_the_model():
    base = losses.Gaussian(0.5)
    mean, variance = np.array([0.0, 1.0]), np.array([1.0, 0.1])
    loss = losses.Contaminated(base, 0.1, -3.0)
    assert np.array_equal(
        loss.predict_quantile(0.9, mean, variance), base.predict_quantile(0.9, mean, variance)
    )


@pytest.mark.parametrize(
    ("base", "log_density"),
    [
        (losses.Probit(), None),
        (losses.Logistic(), None),
        (losses.Gaussian(0.5), -3.0),
        (losses.Poisson(), "zero"),
    ],
    ids=["probit", "logistic", "gaussian", "poisson"],
)
@pytest.mark.parametrize("scheme", ["exact", "laplace"])
def test_a_share_of_0_is_the_base(base, log_density, scheme):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    y = rng.poisson(np.exp(X[:, 0])) if base.name == "poisson" else X[:, 0] + rng.normal(size=80)
    y = np.sign(y) if base.by_margin else y
    posts = [
        epfast.fit_linear(X, y, loss=loss, scheme=scheme)
        for loss in (losses.Contaminated(base, 0.0, log_density), base)
    ]
    np.testing.assert_allclose(posts[0].mean, posts[1].mean, rtol=1e-12)
    np.testing.assert_allclose(posts[0].covariance, posts[1].covariance, rtol=1e-12)
    assert posts[0].log_evidence == pytest.approx(posts[1].log_evidence, rel=1e-12)
    assert "share" not in posts[0].loss_gradient()
