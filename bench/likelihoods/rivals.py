"""The peers of ``peers``: scikit-learn and statsmodels, with plug-in distributions where need be.

Each function returns a side of a contest (``contest.Side``). A peer's penalty is that of a prior
variance of 10, where it takes one; scikit-learn's linear models have an intercept of their own.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bench.likelihoods.contest import PRIOR, Array, Forecast, Side


def plug_in(distribution: Any, y: NDArray[Any]) -> Forecast:
    """Forecast by a frozen distribution of SciPy."""
    log = distribution.logpmf if hasattr(distribution.dist, "logpmf") else distribution.logpdf
    return Forecast(log(y), distribution.ppf)


def estimator(make: Callable[[int], Any], distribution: Callable[..., Any]) -> Side:
    """An estimator of scikit-learn; ``distribution(mean, model, residuals)`` of new rows."""

    def fit(X: Array, y: NDArray[Any]) -> Any:
        model = make(len(y)).fit(X[:, :-1], y)
        residuals = y - model.predict(X[:, :-1])
        return lambda Z, t: plug_in(distribution(model.predict(Z[:, :-1]), model, residuals), t)

    return fit


def statsmodel(make: Callable[[Array, NDArray[Any]], Any], distribution: Any) -> Side:
    """A fitted result of statsmodels; ``distribution(X, result, residuals)`` of new rows."""

    def fit(X: Array, y: NDArray[Any]) -> Any:
        result = make(X, y)
        residuals = y - X @ result.params[: X.shape[1]]
        return lambda Z, t: plug_in(distribution(Z, result, residuals), t)

    return fit


# ---- counts ----


def poisson_regressor() -> Side:
    from sklearn.linear_model import PoissonRegressor

    return estimator(
        lambda n: PoissonRegressor(alpha=1.0 / (PRIOR * n), max_iter=1000),
        lambda mean, *_: stats.poisson(mean),
    )


def _negative_binomial(mean: Array, size: float) -> Any:
    return stats.nbinom(size, size / (size + mean))


def poisson_glm() -> Side:
    import statsmodels.api as sm

    return statsmodel(
        lambda X, y: sm.GLM(y, X, family=sm.families.Poisson()).fit(),
        lambda Z, result, _: stats.poisson(result.predict(Z)),
    )


def negative_binomial_glm() -> Side:
    """Its size stays at 1, the default: this class does not fit it."""
    import statsmodels.api as sm

    return statsmodel(
        lambda X, y: sm.GLM(y, X, family=sm.families.NegativeBinomial(alpha=1.0)).fit(),
        lambda Z, result, _: _negative_binomial(result.predict(Z), 1.0),
    )


def negative_binomial() -> Side:
    """By maximum likelihood, the size too."""
    import statsmodels.api as sm

    return statsmodel(
        lambda X, y: sm.NegativeBinomial(y, X).fit(disp=0, maxiter=1000),
        lambda Z, result, _: _negative_binomial(result.predict(Z), 1.0 / result.params[-1]),
    )


# ---- real numbers ----


def gaussian_of(model: Any) -> Side:
    """A model of scikit-learn that predicts a standard deviation."""

    def fit(X: Array, y: Array) -> Any:
        fitted = model().fit(X[:, :-1], y)

        def predict(Z: Array, t: Array) -> Forecast:
            mean, sd = fitted.predict(Z[:, :-1], return_std=True)
            return plug_in(stats.norm(mean, sd), t)

        return predict

    return fit


def bayesian_ridge() -> Side:
    from sklearn.linear_model import BayesianRidge

    return gaussian_of(BayesianRidge)


def ard() -> Side:
    from sklearn.linear_model import ARDRegression

    return gaussian_of(ARDRegression)


def _normal(mean: Array, residuals: Array) -> Any:
    return stats.norm(mean, stats.median_abs_deviation(residuals, scale="normal"))


def _student(mean: Array, residuals: Array, df: float = 4.0) -> Any:
    """Student's t, its scale by maximum likelihood: more than users of these models have."""
    scale = stats.median_abs_deviation(residuals, scale="normal")
    for _ in range(200):
        weight = (df + 1.0) / (df + (residuals / scale) ** 2)
        scale = np.sqrt(np.mean(weight * residuals**2))
    return stats.t(df, mean, scale)


def huber(noise: str) -> Side:
    from sklearn.linear_model import HuberRegressor

    chosen = {"normal": _normal, "t": _student}[noise]
    return estimator(
        lambda _: HuberRegressor(max_iter=1000), lambda mean, _, residuals: chosen(mean, residuals)
    )


def robust_linear() -> Side:
    import statsmodels.api as sm

    return statsmodel(
        lambda X, y: sm.RLM(y, X, M=sm.robust.norms.HuberT()).fit(),
        lambda Z, result, residuals: _student(Z @ result.params, residuals),
    )


def student_linear() -> Side:
    """Maximum likelihood of the same model, at four degrees of freedom."""
    from statsmodels.miscmodels.tmodel import TLinearModel

    def fit(X: Array, y: Array) -> Any:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints
            return TLinearModel(y, X, fix_df=4.0).fit(disp=0, maxiter=2000, method="bfgs")

    return statsmodel(
        fit,
        lambda Z, result, _: stats.t(4.0, Z @ result.params[: Z.shape[1]], result.params[-1]),
    )


def least_squares(top: float, keep: Callable[[Array], NDArray[np.bool_]] | None = None) -> Side:
    """Least squares with normal noise, scored by densities below ``top`` and by P(y >= top) there.

    ``keep``: which rows are used, by y.
    """

    def fit(X: Array, y: Array) -> Any:
        rows = slice(None) if keep is None else keep(y)
        coef, *_ = np.linalg.lstsq(X[rows], y[rows], rcond=None)
        residuals = y[rows] - X[rows] @ coef
        sd = np.sqrt(residuals @ residuals / (len(residuals) - X.shape[1]))

        def predict(Z: Array, t: Array) -> Forecast:
            normal = stats.norm(Z @ coef, sd)
            density = np.where(t < top, normal.logpdf(t), normal.logsf(top))
            return Forecast(density, lambda level: np.minimum(normal.ppf(level), top))

        return predict

    return fit


# ---- classes ----


def _classes(p: Array, y: NDArray[Any]) -> Forecast:
    below = np.cumsum(p, axis=1)
    with np.errstate(divide="ignore"):
        density = np.log(p[np.arange(len(y)), y])
    return Forecast(density, lambda level: (below < level - 1e-12).sum(axis=1))


def ordered(link: str) -> Side:
    from statsmodels.miscmodels.ordinal_model import OrderedModel

    def fit(X: Array, y: NDArray[Any]) -> Any:
        result = OrderedModel(y, X, distr=link).fit(method="bfgs", disp=0, maxiter=1000)
        return lambda Z, t: _classes(np.asarray(result.model.predict(result.params, Z)), t)

    return fit


def multinomial() -> Side:
    from sklearn.linear_model import LogisticRegression

    def fit(X: Array, y: NDArray[Any]) -> Any:
        model = LogisticRegression(C=PRIOR, max_iter=5000).fit(X, y)

        def predict(Z: Array, t: NDArray[Any]) -> Forecast:
            p = np.full((len(Z), 1 + max(t.max(), y.max())), 1e-12)
            p[:, model.classes_] = model.predict_proba(Z)
            return _classes(p, t)

        return predict

    return fit


def logistic() -> Side:
    from sklearn.linear_model import LogisticRegression

    def fit(X: Array, y: Array) -> Any:
        model = LogisticRegression(C=PRIOR, max_iter=5000).fit(X[:, :-1], y)

        def predict(Z: Array, t: Array) -> Forecast:
            return Forecast(model.predict_log_proba(Z[:, :-1])[np.arange(len(t)), (t > 0) * 1])

        return predict

    return fit


# ---- times ----


def gamma_glm(keep: bool | None = None) -> Side:
    """Gamma GLM; y may be (n, 2), with events: None takes y (n,), True all, False events alone."""
    import statsmodels.api as sm

    def fit(X: Array, y: Array) -> Any:
        times = y if y.ndim == 1 else y[:, 0]
        rows = np.ones(len(X), bool) if keep is not False else y[:, 1] > 0.0
        family = sm.families.Gamma(sm.families.links.Log())
        result = sm.GLM(times[rows], X[rows], family=family).fit()
        shape = 1.0 / result.scale
        return lambda Z, t: plug_in(stats.gamma(shape, scale=result.predict(Z) / shape), t)

    return fit


def gamma_regressor() -> Side:
    from sklearn.linear_model import GammaRegressor

    def gamma(mean: Array, model: Any, residuals: Array) -> Any:
        fitted = model.fitted_
        shape = 1.0 / np.mean((residuals / fitted) ** 2)
        return stats.gamma(shape, scale=mean / shape)

    def fit(X: Array, y: Array) -> Any:
        model = GammaRegressor(alpha=1.0 / (PRIOR * len(y)), max_iter=1000).fit(X[:, :-1], y)
        model.fitted_ = model.predict(X[:, :-1])
        residuals = y - model.fitted_
        return lambda Z, t: plug_in(gamma(model.predict(Z[:, :-1]), model, residuals), t)

    return fit
