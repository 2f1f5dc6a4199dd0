"""Warm starts from fits of other models: the right answer, or that of no start."""

import numpy as np
import pytest

import epfast
from epfast import losses
from epfast.inference import loop
from tests.oracles.data import rbf

#: of each likelihood, numbers that are far from each other; the last are extreme
FAR = {
    "weibull": [losses.Weibull(shape) for shape in (0.01, 1.0, 30.0, 148.0, 1e3)],
    "gamma": [losses.GammaNoise(shape) for shape in (0.01, 1.0, 100.0, 5e3)],
    "negative_binomial": [losses.NegativeBinomial(size) for size in (1e-3, 1.0, 1e8)],
    "gaussian": [losses.Gaussian(variance) for variance in (1e-8, 1.0, 1e6)],
    "laplace_noise": [losses.LaplaceNoise(scale) for scale in (1e-4, 1.0, 1e4)],
    "quantile": [losses.Quantile(*given) for given in ((0.5, 1.0), (0.01, 1e-3), (0.99, 1e3))],
    "student_t": [
        losses.StudentT(*given) for given in ((4.0, 1.0), (1.01, 1e-3), (100.0, 1e-3), (1.01, 1e3))
    ],
    "censored": [losses.Censored(variance, upper=1.0) for variance in (1e-6, 1.0, 1e6)],
    "interval": [losses.Interval(variance) for variance in (1e-6, 1.0, 1e6)],
    "noisy_step": [losses.NoisyStep(noise) for noise in (1e-6, 0.1, 0.49)],
    "ordinal": [losses.Ordinal(cuts) for cuts in ((-1.0, 1.0), (-1e-3, 1e-3), (-50.0, 60.0))],
    "contaminated": [
        losses.Contaminated(losses.Gaussian(variance), share, -3.0)
        for variance, share in ((1.0, 0.1), (1e-6, 1e-6), (1e4, 0.5))
    ],
}
#: those whose fixed point is one
SINGLE = [name for name, kinds in FAR.items() if kinds[0].log_concave]
#: rows, their latent scale, and a prior variance
SETS = [(0, 1.0, 1.0), (1, 3.0, 100.0), (2, 0.3, 1e4)]


def given(name, seed, scale, n=60):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    h = scale * X @ np.array([0.5, -1.0, 0.2])
    if name in ("weibull", "gamma"):
        y = np.exp(h) * rng.weibull(1.0, n)
    elif name == "negative_binomial":
        y = rng.poisson(np.exp(np.minimum(h, 12.0)) * rng.gamma(1.0, 1.0, n))
    elif name == "ordinal":
        y = np.digitize(h, (-1.0, 1.0))
    elif name == "noisy_step":
        y = np.where(h > 0.0, 1.0, -1.0)
    elif name == "interval":
        y = np.column_stack([h - 0.5, h + 0.5])
    else:
        y = h + rng.standard_t(2, n)
        y = np.minimum(y, 1.0) if name == "censored" else y
    return X, y


def fits(door, X, y, variance):
    """The door as a function of loss and start."""
    if door == "process":
        K = variance * rbf(X)
        return lambda loss, start=None: epfast.fit_gp(K, y, loss=loss, start=start, jitter=1e-6)
    if door == "wide":
        X = np.random.default_rng(5).normal(size=(len(X), 2 * len(X)))
    kind = "full" if door == "wide" else door
    return lambda loss, start=None: epfast.fit_linear(
        X, y, loss=loss, prior_variance=variance, start=start, posterior=kind
    )


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("door", ["full", "factorized", "wide", "process"])
@pytest.mark.parametrize("name", FAR)
def test_a_far_start_ends_where_none_does(name, door):
    for seed, scale, variance in SETS if door == "full" else SETS[1:2]:
        fit = fits(door, *given(name, seed, scale), variance)
        cold = [fit(loss) for loss in FAR[name]]
        for i, loss in enumerate(FAR[name]):
            for j, start in enumerate(cold):
                if i == j:
                    continue
                warm = fit(loss, start)
                assert np.isfinite(warm.mean).all()
                assert np.isfinite(warm.log_evidence)
                assert warm.converged or not cold[i].converged, (seed, loss, start.loss)
                if name in SINGLE and cold[i].converged:
                    moved = (warm.mean - cold[i].mean) / np.sqrt(cold[i].variance)
                    assert np.abs(moved).max() < 1e-3, (seed, loss, start.loss)
                    off = abs(warm.log_evidence - cold[i].log_evidence)
                    assert off < 1e-3 + 1e-8 * abs(cold[i].log_evidence)


def test_every_likelihood_is_there():
    kinds = {type(loss[0]) for loss in FAR.values()}
    known = {kind for kind in losses.NAMED.values() if isinstance(kind, type)}
    assert {kind for kind in known if kind.learnable} <= kinds


@pytest.mark.filterwarnings("ignore")
def test_a_fit_that_goes_on_keeps_its_start():
    # it has not converged yet; that is no reason to begin anew
    X, y = given("weibull", 0, 1.0)
    few = epfast.EP(sweeps=1)
    post = epfast.fit_linear(X, y, loss="weibull", schedule=few)
    again = epfast.fit_linear(X, y, loss="weibull", schedule=few, start=post)
    assert again.n_sweeps == 2


@pytest.mark.filterwarnings("ignore")
def test_drift_is_removed_before_a_fit_ends():
    # all but the digits of sites that are taken away go: the mean was off by .05 sd
    X, y = given("weibull", 2, 0.3)
    start = epfast.fit_linear(X, y, loss=losses.Weibull(30.0), prior_variance=1e4)
    warm = epfast.fit_linear(X, y, loss="weibull", prior_variance=1e4, start=start)
    assert warm.converged
    assert warm.residual < 1e-4


@pytest.mark.filterwarnings("ignore")
def test_a_fit_that_is_kept_keeps_its_factor(monkeypatch):
    # the run that began anew wrote over the array of the fit that was the result
    monkeypatch.setattr(loop, "PATIENCE", 2)
    X, y = given("student_t", 0, 1.0)
    K = X @ X.T + np.eye(len(y))
    start = epfast.fit_gp(K, np.sign(y), loss="probit")
    schedule = epfast.EP(sweeps=3, tol=1e-12)
    post = epfast.fit_gp(K, y, loss="student_t", start=start, schedule=schedule)
    assert post.n_sweeps == start.n_sweeps + 3
    root = np.sqrt(np.maximum(post.sites.precision, 0.0))
    B = np.eye(len(y)) + root[:, None] * K * root
    np.testing.assert_allclose(np.tril(post.factor.T), np.linalg.cholesky(B), atol=1e-9)
