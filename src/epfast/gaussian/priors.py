"""The prior of a linear model, from the arguments of the user."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
from scipy import linalg, sparse

from epfast import _checks
from epfast._arrays import Array
from epfast.gaussian.problem import State, in_memory, inverse_of, prior_of

#: prior variance of an intercept: broad, a standard deviation of 10 in units of log odds, or of y.
#: With 1, 25 and 400 in its place the intercepts of 13 data sets of labels move by up to 1.2, .06
#: and .02 of their sd, and of 24 regressions by .04, .004 and .001
INTERCEPT_VARIANCE = 100.0
#: arguments of a normal prior
NORMAL = ("prior_variance", "prior_precision", "prior_covariance", "prior_mean")


def normal_prior(
    variance: Any,
    precision: Any,
    covariance: Any,
    mean: Any,
    d: int,
    full: bool,
    intercept: float | None = None,
    prefix: str = "prior_",
    center: Array | None = None,
) -> State:
    """The prior of the user's arguments. Each may be None, and one of three may be given.

    intercept: the prior variance of one more weight, of mean 0, at the row ``center``, see
    :func:`epfast.gaussian.problem.prior_of`. ``prefix`` begins the names of the arguments.
    """
    means = np.zeros(d) if mean is None else _checks.array(f"{prefix}mean", mean, shape=(d,))
    precision = _precision(variance, precision, covariance, d, full, prefix)
    if intercept is not None:
        means = np.append(means, 0.0)
        if precision.ndim == 1:
            precision = np.append(precision, 1.0 / intercept)
        else:
            precision = linalg.block_diag(precision, 1.0 / intercept)
    return prior_of(precision, means, full, center)


def sparse_prior(
    given: tuple[Any, Any, Any, Any],
    d: int,
    intercept: float | None,
    center: Array | None,
    prefix: str = "prior_",
) -> State:
    """As :func:`normal_prior`, with a precision that is a CSR array."""
    variance, precision, covariance, mean = given
    if covariance is not None:
        raise ValueError(
            f"prior_covariance is {_checks.describe(covariance)}; allowed with a sparse posterior: "
            "prior_precision, or prior_variance"
        )
    means = np.zeros(d) if mean is None else _checks.array(f"{prefix}mean", mean, shape=(d,))
    name = f"{prefix}precision"
    if precision is not None and variance is not None:
        raise ValueError(f"{name} is given beside {prefix}variance; allowed: one of them")
    if hasattr(precision, "tocsr"):
        matrix = _checks.sparse_symmetric(name, precision, d)
        _moderate(f"{name}'s diagonal", matrix.diagonal(), d)
    elif precision is not None:
        matrix = sparse.csr_array(_checks.definite(name, precision, d))
    else:
        matrix = sparse.diags_array(_precision(variance, None, None, d, False, prefix))
    if intercept is not None:
        means = np.append(means, 0.0)
        matrix = sparse.block_diag([matrix, sparse.csr_array([[1.0 / intercept]])])
    return prior_of(sparse.csr_array(matrix), means, True, center)


def refuse_normal(given: tuple[Any, Any, Any, Any], beside: str, allowed: str) -> None:
    """Refuse arguments of a normal prior beside what has another prior."""
    for name, value in zip(NORMAL, given, strict=True):
        if value is not None:
            raise ValueError(
                f"{name} is {_checks.describe(value)} beside {beside}; allowed{allowed}"
            )


def prior_of_fit(
    given: tuple[Any, Any, Any, Any],
    start: Any,
    schedule: Any,
    d: int,
    intercept: float | None,
    dense: bool,
    center: Array | None = None,
) -> State:
    """The prior that the arguments give. ADF with a start keeps the prior of the start.

    d: the number of weights, with that of the intercept, which has its prior at ``center``. dense:
    its precision is a matrix.
    """
    if start is None or schedule.stores != "none":
        features = d if intercept is None else d - 1
        return normal_prior(*given, features, dense, intercept, center=center)
    refuse_normal(given, "a start", " with ADF: None, the prior is that of the start")
    prior: State = start.problem.prior
    if prior.shift.size != d:
        raise ValueError(f"start has {prior.shift.size} dimensions; allowed: {d}")
    return prior


def _precision(
    variance: Any, precision: Any, covariance: Any, d: int, full: bool, prefix: str
) -> Array:
    """Precision of the prior, (d, d), or (d,) of a factorised one."""
    if precision is not None or covariance is not None:
        pairs = {"variance": variance, "precision": precision, "covariance": covariance}
        name, *more = [f"{prefix}{name}" for name, value in pairs.items() if value is not None]
        if more:
            raise ValueError(f"{more[0]} is given beside {name}; allowed: one of them")
        value = covariance if precision is None else precision
        if hasattr(value, "tocsr"):
            in_memory(name, d, "posterior='sparse' makes none of prior_precision")
            value = _checks.sparse_symmetric(name, value, d).toarray()
        matrix = _checks.definite(name, value, d)
        diagonal = _moderate(f"{name}'s diagonal", np.diag(matrix), d)
        if not full:
            if (matrix != np.diag(diagonal)).any():
                raise ValueError(
                    f"{name} is not diagonal; allowed with posterior='factorized': a diagonal "
                    "matrix"
                )
            return diagonal.copy() if covariance is None else 1.0 / diagonal
        if precision is not None:
            return matrix
        scale = np.sqrt(diagonal)  # of the correlations, whose inverse does not depend on units
        return inverse_of(matrix / scale / scale[:, None]) / scale / scale[:, None]
    if variance is None:
        return np.ones(d)
    if isinstance(variance, str):
        raise TypeError(
            f"prior_variance is {variance!r}; allowed: a number or an array of shape ({d},); "
            "LinearClassifier(prior_variance='evidence') finds one"
        )
    variance = checked_variances(variance, d, f"{prefix}variance")
    return np.full(d, 1.0 / variance) if np.ndim(variance) == 0 else 1.0 / variance


def checked_variances(variance: Any, d: int, name: str = "prior_variance") -> Any:
    """Prior variances, checked: a number, or (d,). Their inverses are normal numbers."""
    if not isinstance(variance, np.ndarray) and isinstance(variance, numbers.Number):
        return _checks.number(name, variance, least=1e-300, most=1e300)
    spread = _checks.real_array(name, variance)
    if spread.ndim == 0:
        return _checks.number(name, spread[()], least=1e-300, most=1e300)
    if spread.shape != (d,):
        raise ValueError(f"{name} has shape {spread.shape}; allowed: a number, or shape ({d},)")
    return _moderate(name, spread, d).copy()


def _moderate(name: str, value: Any, d: int) -> Array:
    result = _checks.array(name, value, shape=(d,), positive=True)
    if not ((result >= 1e-300) & (result <= 1e300)).all():
        raise ValueError(f"{name} holds {result.min():g}; allowed: from 1e-300 to 1e300")
    return result


def intercept_variance(given: Any) -> float | None:
    """Prior variance of the intercept. None: there is none."""
    if isinstance(given, bool | np.bool_):
        return INTERCEPT_VARIANCE if given else None
    return _checks.number("intercept", given, least=1e-150, most=1e150)
