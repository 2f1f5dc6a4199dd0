"""Scalar sites with a factorised posterior: against plain NumPy, coordinate by coordinate."""

import numpy as np
import pytest

import epfast
from epfast import ADF, EP
from epfast.backend import tilted_moments
from epfast.schemes import NAMED
from tests.oracles.data import classes

MARGINS = [name for name, kind in epfast.losses.NAMED.items() if kind.by_margin]
# where t is not log-concave the rule sets precisions to 0
clipped = pytest.mark.filterwarnings("ignore:.*refused:epfast.ConvergenceWarning")


def fit(X, y, **given):
    return epfast.fit_linear(X, y, posterior="factorized", prior_variance=3.0, **given)


def plain_factorized(X, y, loss, sweeps, power=1.0, damping=1.0, variance=3.0, least=-np.inf):
    """EP with a diagonal posterior and a site per row, coordinate by coordinate."""
    n, d = X.shape
    tau, nu = np.zeros((n, d)), np.zeros((n, d))
    P, p = np.full(d, 1 / variance), np.zeros(d)
    for _ in range(sweeps):
        for i in range(n):
            precision, shift = P - power * tau[i], p - power * nu[i]
            v, mu = 1 / precision, shift / precision
            m, s = X[i] @ mu, X[i] ** 2 @ v
            _, d1, d2 = (part[0] for part in tilted_moments(loss, y[i : i + 1], [m], [s], power))
            mean, spread = mu + v * X[i] * d1, v + (v * X[i]) ** 2 * d2
            new_tau = np.maximum((1 / spread - precision) / power, least)
            # the rule keeps the slope where it clips the precision
            new_nu = (mean - mu) / spread / power + new_tau * mu
            change = damping * (new_tau - tau[i]), damping * (new_nu - nu[i])
            tau[i] += change[0]
            nu[i] += change[1]
            P, p = P + change[0], p + change[1]
    return P, p


@clipped
@pytest.mark.parametrize("loss", MARGINS)
@pytest.mark.parametrize("rule", [None, "nonnegative"])
@pytest.mark.parametrize(
    ("kind", "given"),
    [(EP, {"sweeps": 4}), (EP, {"sweeps": 3, "power": 0.7, "damping": 0.6}), (ADF, {"warm_up": 0})],
    ids=["EP", "PEP", "ADF"],
)
def test_factorized_scalar_sites(loss, rule, kind, given):
    """Negative precisions stay, unless the rule is named."""
    X, y = classes(30, 5)
    schedule = kind(**given, **({"tol": 0.0} if kind is EP else {}), site_rule=rule)
    post = fit(X, y, loss=loss, schedule=schedule)
    power, damping = given.get("power", 1.0), given.get("damping", 1.0)
    least = -np.inf if rule is None else 0.0
    P, p = plain_factorized(X, y, loss, schedule.sweeps, power, damping, least=least)
    if rule is None and post.n_refused:
        assert loss in ("quasi01", "noisy_step")  # not log-concave: sites may be improper
        return
    np.testing.assert_allclose(post.precision, P, rtol=1e-8)
    np.testing.assert_allclose(post.shift, p, rtol=1e-8, atol=1e-8)


def test_factorized_evidence_is_exact_for_rows_of_one_entry():
    """There the posterior factorises, and each coordinate is EP in one dimension."""
    rng = np.random.default_rng(1)
    X = np.zeros((12, 3))
    X[np.arange(12), np.arange(12) % 3] = rng.normal(size=12)
    y = rng.choice([-1.0, 1.0], 12)
    for loss in MARGINS:
        schedule = EP(300, 1e-12, order="sequential")
        a = fit(X, y, loss=loss, schedule=schedule)
        b = epfast.fit_linear(X, y, loss=loss, schedule=schedule, prior_variance=3.0)
        np.testing.assert_allclose(a.mean, b.mean, atol=1e-9)
        np.testing.assert_allclose(a.variance, b.variance, atol=1e-9)
        assert a.log_evidence == pytest.approx(b.log_evidence, abs=1e-8)
        assert a.sites.precision.shape == (12, 3)


def test_other_schemes_on_factorized_rows():
    X, y = classes(30, 5)
    for name, kind in NAMED.items():
        scheme = kind()
        if scheme.relaxes:
            continue
        post, again = (fit(X, y, scheme=scheme, schedule=EP(3, 0.0)) for _ in range(2))
        assert np.isfinite(post.log_evidence), name
        np.testing.assert_array_equal(post.mean, again.mean)
