"""Checks of arguments: every error names the argument, what was given and what is allowed."""

from __future__ import annotations

import datetime
import difflib
import functools
import inspect
import math
import numbers
import os
import types
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from epfast._arrays import (
    CSR,
    AnyArray,
    Array,
    Given,
    Matrix,
    RowsGiven,
    SparseGiven,
    slices,
    to_float64,
)

if TYPE_CHECKING:
    from typing_extensions import TypeIs

P = ParamSpec("P")
T = TypeVar("T")

#: a number as a user gives it, not yet checked
NumberGiven = Given | numbers.Number | Hashable

#: relative rounding error of doubles
EPS = float(np.finfo(np.float64).eps)


def installed(module: str) -> bool:
    """Whether a module is installed. An error of its own import, or of what it imports, is one."""
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return False
    return True


@contextmanager
def needs(what: str, *modules: str) -> Iterator[None]:
    """Import from these modules within it. Where one is not installed ``what`` is said."""
    for module in modules:
        if not installed(module):
            raise ImportError(what, name=module)
    yield


def path(name: str, value: str | os.PathLike[str]) -> str:
    """A path to a file. Not a file descriptor."""
    try:
        return os.fsdecode(value)
    except TypeError:
        raise TypeError(f"{name} is {describe(value)}; allowed: a str or a path") from None


def describe(value: Any) -> str:
    """A short description of a value for error messages. Of arrays the shape and dtype."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    try:
        text = repr(value)
    except Exception:  # of an object that was taken apart: its error would hide ours
        text = object.__repr__(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def number(
    name: str,
    value: NumberGiven,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    most: float = math.inf,
) -> float:
    """A finite real number with ``value > above``, ``least <= value <= most``."""
    if type(value) is float and above < value < math.inf and least <= value <= most:
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is {describe(value)}; allowed: a real number")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not (math.isfinite(result) and result > above and least <= result <= most):
        limits = [f"> {above:g}"] if above > -math.inf else []
        limits += [f">= {least:g}"] if least > -math.inf else []
        limits += [f"<= {most:g}"] if most < math.inf else []
        raise ValueError(f"{name} is {value!r}; allowed: a finite number {' and '.join(limits)}")
    return result


def integer(name: str, value: NumberGiven, *, least: int, most: int = 2**62) -> int:
    """An integer with ``least <= value <= most``."""
    if type(value) is int and least <= value <= most:
        return value
    allowed = f"an integer from {least} to {most}" if most < 2**62 else f"an integer >= {least}"
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} is {describe(value)}; allowed: {allowed}")
    if not least <= int(value) <= most:
        allowed = allowed if int(value) < least else f"an integer from {least} to {most}"
        raise ValueError(f"{name} is {describe(value)}; allowed: {allowed}")
    return int(value)


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, NaT, or NA of pandas, which does not say whether it is NA."""
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):
        return True


def freeze(target: Any, **values: Any) -> None:
    """Set checked values on an instance of a frozen class."""
    for name, value in values.items():
        object.__setattr__(target, name, value)


#: names of choices in papers and in other packages, by ours
ALIASES = {
    "bernoulli": "binary logistic logit",
    "binomial": "beta_binomial",
    "censored": "tobit",
    "exact": "ep",
    "factorized": "diagonal mean_field",
    "fmin_l_bfgs_b": "lbfgs",
    "gamma_noise": "gamma",
    "gaussian": "l2 least_squares mse normal squared_error",
    "hinge": "svm",
    "laplace": "la",
    "laplace_noise": "absolute_error l1 laplace mae",
    "logistic": "bernoulli binary binary_crossentropy cross_entropy log_loss logit",
    "multiclass": "categorical multinomial softmax",
    "negative_binomial": "nb negbin negbinomial",
    "negativebinomial": "nb negbin negbinomial negative_binomial",
    "noisy_step": "step",
    "ordinal": "cumulative proportional_odds",
    "probit": "normal_cdf",
    "quadrature": "gq",
    "quantile": "asymmetric_laplace pinball",
    "quick_laplace": "qla",
    "sequential": "serial",
    "shuffled": "random",
    "student_t": "cauchy huber student t",
    "t": "cauchy student student_t",
    "variational": "vq",
    "weibull": "exponential",
}


def did_you_mean(value: Any, allowed: Iterable[str]) -> str:
    """A suggestion for the end of an error message. Empty if no name is similar."""
    if not isinstance(value, str):
        return ""
    wanted = value.lower().replace("-", "_").replace(" ", "_")
    names = list(allowed)
    near = [name for name in names if wanted in ALIASES.get(name, "").split()]
    near += difflib.get_close_matches(wanted, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


_EP = "schedule", "schedule=epfast.EP(sweeps=..., tol=...)"
_PENALTY = "prior_variance loss", "prior_variance=..., of the coefficients"
_SPARSE = (
    "prior prior_variance",
    "prior=..., such as epfast.losses.SpikeAndSlab() or Horseshoe()",
)
_OF_ROWS = (("class_weight", "sample_weight of fit(X, y)"), ("learn", "sample_weight of fit(X, y)"))
_RNG = "rng", "rng=..."
_RANDOM_STATE = "random_state", "random_state=..."
_SHUFFLED = "schedule", "schedule=epfast.EP(order='shuffled', seed=...)"

#: arguments of scikit-learn, statsmodels, brms, bambi, GPy and Keras. Each has pairs of arguments
#: that a function here has, and a suggestion. The first pair that applies is used
ARGUMENTS: dict[str, tuple[tuple[str, str], ...]] = {
    "C": (("prior_variance loss", "prior_variance=C, of the coefficients"),),
    "K": (("kernel", "kernel=..., of scikit-learn; fit_gp takes a matrix"),),
    "Y": (("y", "y"),),
    "alpha": (
        ("power sweeps", "power=alpha, the exponent of each factor"),
        ("kernel center", "loss=epfast.losses.Gaussian(alpha), the variance of the noise"),
        ("prior_variance loss", "prior_variance=1 / alpha, for noise of variance 1"),
    ),
    "chains draws iter tune warmup": (
        ("schedule", "schedule=epfast.EP(sweeps=...): nothing is sampled, there are no chains"),
        ("strategy", "strategy=...: nothing is sampled, there are no chains"),
    ),
    "class_weight": (
        (
            "random_state",
            "none: move the threshold, as by sklearn.model_selection.TunedThresholdClassifierCV",
        ),
        ("weights", "weights=..., a number per row"),
    ),
    "cores": (("n_jobs", "n_jobs=..."),),
    "cv lambda_ reg_param": (_PENALTY,),
    "damping order power": (("schedule", "schedule=epfast.EP(order=..., damping=..., power=...)"),),
    "deg_free": (("df", "df=..."),),
    "epochs iterations max_iter max_iters max_sweeps n_iter": (
        _EP,
        ("sweeps", "sweeps=..."),
        ("passes", "passes=..."),
    ),
    "exposure": (("offset", "offset=np.log(exposure)"),),
    "family likelihood": (("loss", "loss=..., as 'logistic', 'gaussian' or 'poisson'"),),
    "fit_intercept": (("intercept", "intercept=True"), ("center", "center=True")),
    "freq_weights sample_weight var_weights weight": (
        ("weights loss", "weights=..."),
        ("weights family", "weights=..."),
        *_OF_ROWS,
    ),
    "groups": (
        ("prior_groups", "prior_groups=..., a group for each column"),
        ("sds", "sds={'name': (columns, prior)}"),
    ),
    "hidden_layer_sizes": (("hidden", "hidden=(units, ...)"),),
    "inducing_variable num_inducing": (("rank", "rank=..., of an approximation of the kernel"),),
    "intercept": (("fit_intercept", "fit_intercept=True"),),
    "kernel": (("K", "K, the matrix kernel(X); epfast.GPClassifier takes a kernel"),),
    "l1_ratio": (
        _SPARSE,
        ("prior_scale", "none: fit_linear(X, y, prior=epfast.losses.Horseshoe()) is sparse"),
    ),
    "link": (
        ("loss", "loss=..., as 'logistic' or 'probit'"),
        ("family", "family=..., each of which has its link"),
    ),
    "lower_bound_tol solver sweeps tol": (_EP,),
    "multi_class": (
        ("loss", "loss='multiclass', or any loss of two labels, one against the rest"),
    ),
    "n_restarts": (("n_restarts_optimizer", "n_restarts_optimizer=..."),),
    "noise noise_var": (
        ("loss", "loss=..., with its noise, such as epfast.losses.Gaussian(variance)"),
    ),
    "normalize_y": (("center", "center=True, of the mean; the kernel has the scale"),),
    "offset": (("fit_intercept", "offset=... of fit(X, y), in regressions"),),
    "penalty": (_SPARSE, _PENALTY),
    "prior": (("priors", "priors={'x': ..., '1|g': ...}"), _PENALTY),
    "priors": (_SPARSE, _PENALTY, ("prior", "prior=...")),
    "random_seed seed": (_RNG, _RANDOM_STATE, _SHUFFLED),
    "random_state": (_RNG, _SHUFFLED),
    "rng": (_RANDOM_STATE, _SHUFFLED),
    "sigma": (("scale", "scale=..."), ("variance", "variance=sigma**2")),
    "sigma2": (("scale", "scale=sqrt(sigma2)"), ("variance", "variance=sigma2")),
    "verbose": (("progress", "progress=True"), ("schedule", "logging: sweeps are logged as INFO")),
    "warm_start": (("start", "start=..., a posterior"),),
    "weights": _OF_ROWS,
}


def meant(name: str, known: Iterable[str]) -> str:
    """A suggestion for an argument that a function does not have. Empty if there is none."""
    known = [one for one in known if one != "self"]
    pairs = next((pairs for names, pairs in ARGUMENTS.items() if name in names.split()), ())
    for needed, text in pairs:
        if set(needed.split()) <= set(known):
            return f"; there is {text}" if text.startswith("none") else f"; here that is {text}"
    near = difflib.get_close_matches(name.lower(), known, n=1)
    return f"; did you mean {near[0]}=?" if near else ""


def named(function: Callable[P, T]) -> Callable[P, T]:
    """Refuse arguments of other packages with a suggestion of the name here."""
    code = function.__code__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    names = frozenset(known)
    called = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def checked(*args: P.args, **given: P.kwargs) -> T:
        if not given.keys() <= names:
            name = next(iter(given.keys() - names))
            raise TypeError(
                f"{called}() got an unexpected keyword argument {name!r}{meant(name, known)}"
            )
        return function(*args, **given)

    return checked


def name_arguments(module: dict[str, Any]) -> None:
    """Let the public classes of a module refuse arguments as :func:`named` does."""
    for name in module["__all__"]:
        kind = module[name]
        own = vars(kind).get("__init__") if isinstance(kind, type) else None
        if isinstance(own, types.FunctionType):
            setattr(kind, "__init__", named(own))  # noqa: B010


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """One of the given strings."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(
            f"{name} is {describe(value)}; allowed: {', '.join(map(repr, allowed))}"
            + did_you_mean(value, allowed)
        )
    return str(value)


def schedule(value: Any, kind: type, names: str) -> None:
    """Check an instance of a class of schedules. A common mistake is the class itself."""
    if isinstance(value, kind):
        return
    if isinstance(value, type) and issubclass(value, kind):
        raise TypeError(
            f"schedule is the class {value.__name__}; allowed: an instance, {value.__name__}()"
        )
    raise TypeError(f"schedule is {describe(value)}; allowed: {names}")


def array(
    name: str,
    value: Given,
    *,
    shape: tuple[int | None, ...],
    positive: bool = False,
    finite: bool = True,
) -> Array:
    """A C-contiguous float64 array of the given shape (None: any length), finite by default.

    Copies only where dtype or order ask for it. Never modifies ``value``.
    """
    given = real_array(name, value)
    if given.ndim != len(shape) or any(
        k is not None and k != got for k, got in zip(shape, given.shape, strict=True)
    ):
        wanted = "(" + ", ".join("any" if k is None else str(k) for k in shape)
        wanted += ",)" if len(shape) == 1 else ")"
        raise ValueError(f"{name} has shape {given.shape}; allowed: {wanted}")
    result = to_float64(given)
    if finite and not np.isfinite(result).all():
        raise ValueError(f"{name} holds NaN or infinity; allowed: finite numbers")
    if positive and not (result > 0).all():
        raise ValueError(f"{name} has a minimum of {result.min():g}; allowed: numbers > 0")
    return result


def responses(name: str, value: Given, n: int, *widths: int, finite: bool = True) -> Array:
    """Real responses of n rows, (n,) for a width of 1, else (n, width). Not of dtype object."""
    if getattr(getattr(value, "dtype", None), "kind", "") == "O":
        no_times(name, value)
        raise TypeError(f"{name} has dtype object; allowed: real numbers")
    given = real_array(name, value)
    shapes: list[tuple[int, ...]] = [(n,) if width == 1 else (n, width) for width in widths]
    if given.shape not in shapes:
        raise ValueError(
            f"{name} has shape {given.shape}; allowed: {' or '.join(map(str, shapes))}"
        )
    return array(name, given, shape=given.shape, finite=finite)


def whole(name: str, given: Array, most: float, allowed: str) -> Array:
    """The same numbers, checked to be whole, from 0 to ``most``. ``allowed`` says so in words."""
    if not ((given >= 0.0) & (given <= most) & (given == np.floor(given))).all():
        raise ValueError(
            f"{name} holds numbers from {given.min():g} to {given.max():g}, or fractions; allowed: "
            f"{allowed}"
        )
    return given


def symmetric(
    name: str, given: AnyArray, tolerance: float | None = None, scale: Array | None = None
) -> float:
    """Check that a real array (n, n) is finite and symmetric to a relative tolerance.

    tolerance: None: half the digits of its dtype. scale: (n,); entry i, j is compared with
    scale_i scale_j. None: with the largest entry.

    Works by blocks of rows, O(n) memory. Returns the largest absolute value.
    """
    if given.ndim != 2 or given.shape[0] != given.shape[1] or given.size == 0:
        raise ValueError(f"{name} has shape {given.shape}; allowed: (n, n), n >= 1")
    size = 0.0
    for part in slices(len(given)):
        block = to_float64(given[part])
        if not np.isfinite(block).all():
            raise ValueError(f"{name} holds NaN or infinity; allowed: finite numbers")
        size = max(size, float(np.abs(block).max()))
    if scale is None:
        scale = np.full(len(given), math.sqrt(size))
    excess, pair = _asymmetry(given, scale, 4.0 * EPS * size)
    if excess > (half_digits(given) if tolerance is None else tolerance):
        raise _not_symmetric(name, given, pair)
    return size


def _asymmetry(
    given: AnyArray, scale: Array, rounding: float = 0.0
) -> tuple[float, tuple[int, int]]:
    """Largest difference, less rounding, of entries i, j and j, i over scale_i scale_j, and i, j.

    0 without any. Infinite where a scale is 0.
    """
    worst, pair = 0.0, (0, 0)
    for part in slices(len(given)):
        above = to_float64(given[: part.stop, part]).T
        with np.errstate(over="ignore"):
            gap = np.abs(to_float64(given[part, : part.stop]) - above) - rounding
        gap[gap < 0.0] = 0.0
        if gap.any():
            with np.errstate(all="ignore"):
                gap = np.where(gap > 0.0, gap / scale[part, None] / scale[: part.stop], 0.0)
            i, j = np.unravel_index(gap.argmax(), gap.shape)
            if gap[i, j] > worst:
                worst, pair = float(gap[i, j]), (part.start + int(i), int(j))
    return worst, pair


def half_digits(given: RowsGiven) -> float:
    """Half the digits of the numbers that were given: 1.5e-8, or 3.5e-4 of a float32."""
    kind = getattr(given, "dtype", np.dtype(np.float64))
    kind = kind if getattr(kind, "kind", "") == "f" else np.dtype(np.float64)
    return math.sqrt(max(float(np.finfo(kind).eps), EPS))


def _not_symmetric(name: str, given: AnyArray | CSR, pair: tuple[int, int]) -> ValueError:
    i, j = sorted(pair)
    return ValueError(
        f"{name} is not symmetric: {name}[{i}, {j}] is {float(given[i, j])!r} and {name}[{j}, {i}] "
        f"is {float(given[j, i])!r}; allowed: a symmetric matrix"
    )


def is_sparse_given(value: RowsGiven) -> TypeIs[SparseGiven]:
    """Whether a matrix is one of ``scipy.sparse``, of any format."""
    return hasattr(value, "tocsr")


def is_lazy(value: Any) -> bool:
    """Whether this is an array or a frame of Dask, whose numbers are not here yet."""
    return hasattr(value, "__dask_graph__") and any(
        base.__module__.startswith(("dask.array", "dask.dataframe", "dask_expr"))
        for base in type(value).__mro__
    )


def not_lazy(name: str, value: Any) -> None:
    """Refuse an array or a frame of Dask, which NumPy would compute here as a whole."""
    if hasattr(value, "__dask_graph__") and is_lazy(value):
        raise TypeError(
            f"{name} is a Dask {type(value).__name__}; allowed: what is in memory, as "
            f"{name}.compute() is; epfast.dask.fit_linear, epfast.dask.LinearClassifier and "
            "epfast.dask.LinearRegressor take collections of Dask"
        )


#: values that NumPy makes numbers of, in nanoseconds or another unit of its own
TIMES = datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64
#: what to do about them
NO_TIMES = (
    "allowed: numbers; subtract a date and divide by a unit, as "
    "(t - t.min()) / numpy.timedelta64(1, 'D')"
)


def holds_times(given: Any) -> bool:
    """Whether an array, or a column of a frame, holds dates, times, durations or periods."""
    kind = getattr(given.dtype, "kind", "O")  # types of pandas itself have one, too
    name = str(given.dtype).lower()
    if kind in "mM" or name.startswith("period"):
        return True
    return (kind == "O" and not name.startswith("str")) and any(  # text of pandas is no object
        isinstance(one, TIMES) or type(one).__name__ == "Period" for one in np.asarray(given).flat
    )


def no_times(name: str, value: Any) -> None:
    """Refuse dates, times, durations and periods. Of a frame the column is named."""
    if hasattr(value, "columns") and hasattr(value, "dtypes"):
        for column in value.columns:
            one = value[column]
            if hasattr(one, "dtype") and holds_times(one):
                raise TypeError(f"{name} has times in the column {column!r}; {NO_TIMES}")
    elif not hasattr(value, "tocsr"):
        # a class or a module has a dtype without a kind
        kind = getattr(getattr(value, "dtype", None), "kind", None)
        given = value if isinstance(kind, str) else np.asarray(value)
        if holds_times(given):
            raise TypeError(f"{name} holds times, of dtype {given.dtype}; {NO_TIMES}")


def real_array(name: str, value: RowsGiven) -> AnyArray:
    """``value`` as an array of integers, booleans or reals, without a copy where possible."""
    not_lazy(name, value)
    if hasattr(value, "tocsr"):
        raise TypeError(f"{name} is a sparse matrix; allowed: a dense array (use .toarray())")
    if np.ma.is_masked(value):
        raise TypeError(
            f"{name} has masked entries; allowed: an array without them (fill or drop them)"
        )
    try:
        result = np.asarray(value)
    except ValueError:
        raise ValueError(
            f"{name} is not a rectangular array; allowed: an array of real numbers"
        ) from None
    if result.dtype.kind in "OmM":
        no_times(name, value)
    if result.dtype == object:
        try:
            if any(item is None for item in result.flat):
                raise TypeError
            result = result.astype(np.float64)
        except (TypeError, ValueError):
            reason = "holds objects" if result.ndim else f"is {describe(value)}"
            raise TypeError(f"{name} {reason}; allowed: real numbers") from None
        except OverflowError:
            raise ValueError(f"{name} holds numbers out of range; allowed: doubles") from None
    if result.dtype.kind not in "fiub":
        raise TypeError(f"{name} has dtype {result.dtype}; allowed: real numbers")
    return result


def design(name: str, value: RowsGiven, d: int | None = None) -> Array:
    """A matrix of rows, (n, d): float64 and float32 stay as they are, others become float64.

    NaN and infinity are found by the core, where the margins are formed, not here: a pass over
    the data of its own would cost as much as a sweep.
    """
    result = real_array(name, value)
    if result.ndim != 2 or (d is not None and result.shape[1] != d):
        raise ValueError(
            f"{name} has shape {result.shape}; allowed: (n, {'d' if d is None else d})"
        )
    if d is None and 0 in result.shape:
        raise ValueError(f"{name} has shape {result.shape}; allowed: at least one row and column")
    usable = result.dtype.isnative and result.flags.aligned
    if result.dtype not in (np.float64, np.float32) or not usable:
        result = to_float64(result)
    return result.view()  # a view, whose shape may be set


def sparse_design(name: str, value: SparseGiven, d: int | None = None) -> CSR:
    """A sparse matrix of rows, (n, d), as canonical CSR of float64, whose numbers are not copied.

    Its indices are copies, checked as such: SciPy and the core follow them without a look, whatever
    another thread or a callback writes to ``value`` meanwhile.
    """
    if len(value.shape) != 2 or (d is not None and value.shape[1] != d):
        raise ValueError(f"{name} has shape {value.shape}; allowed: (n, {'d' if d is None else d})")
    if value.dtype.kind not in "fiub":
        raise TypeError(f"{name} has dtype {value.dtype}; allowed: real numbers")
    if 0 in value.shape:
        raise ValueError(f"{name} has shape {value.shape}; allowed: at least one row and column")
    given = _sound(name, value)
    numbers = np.ascontiguousarray(given.data, dtype=np.float64)
    kind: Callable[..., CSR] = type(given)
    result = kind((numbers, given.indices, given.indptr), shape=given.shape)
    if not result.has_canonical_format:  # duplicate entries are summed
        result = result.copy()
        result.sum_duplicates()
    return result


def _sound(name: str, value: Any) -> CSR:
    """A sparse matrix as CSR with indices of its own, none of which leads out of it. O(nnz)."""
    kind = getattr(value, "format", "")
    try:
        if kind == "coo":  # which SciPy checks as it is made
            places = value.row.copy(), value.col.copy()
            sound = type(value)((value.data, places), shape=value.shape)
        elif kind not in ("csr", "csc", "bsr"):
            sound = value.copy()
        else:
            parts = value.data, value.indices.copy(), value.indptr.copy()
            sound = type(value)(parts, shape=value.shape)
            sound.check_format()
            if (np.diff(sound.indptr) < 0).any():
                raise ValueError
    except ValueError as error:
        raise ValueError(
            f"{name} is not a valid {kind.upper()} matrix; allowed: increasing row pointers, one "
            "more than rows, as many indices as entries, rows 0 to n - 1 and columns 0 to d - 1"
        ) from error
    rows: CSR = sound.tocsr()
    return rows


def rows(name: str, value: RowsGiven, d: int | None = None) -> Matrix:
    """A matrix of rows, dense (:func:`design`) or sparse (:func:`sparse_design`)."""
    return sparse_design(name, value, d) if is_sparse_given(value) else design(name, value, d)


def covariance(name: str, given: AnyArray, tolerance: float | None = None) -> float:
    """Check that a real array (n, n) is a covariance matrix, except for positive definiteness.

    As :func:`symmetric`, entry by entry beside the standard deviations.
    """
    diagonal = to_float64(given.diagonal())
    largest = symmetric(name, given, tolerance, np.sqrt(np.abs(diagonal)))
    if (diagonal < 0.0).any():
        raise ValueError(f"{name} has a negative diagonal entry; allowed: a covariance matrix")
    return largest


def definite(name: str, value: Given, d: int) -> Array:
    """A positive definite matrix (d, d), a copy that is symmetric to the last bit. O(d^3).

    Entries are compared beside sqrt(m_ii m_jj), so that units of columns do not matter. What
    ``numpy.linalg.inv`` returns differs from its transpose by up to 0.15 eps times the condition
    number of the matrix of unit diagonal (covariances of 20 to 100 points, condition numbers from
    300 to 1e12). 4 eps times it pass, up to 1e-3, and half the digits in any case.
    """
    matrix = array(name, value, shape=(d, d))
    allowed = "a symmetric positive definite matrix"
    with np.errstate(invalid="ignore"):
        scale = np.sqrt(matrix.diagonal())
    if not (scale > 0.0).all():
        raise ValueError(
            f"{name} has {matrix.diagonal().min():g} on its diagonal; allowed: {allowed}"
        )
    gap, pair = _asymmetry(matrix, scale)
    result = 0.5 * matrix + 0.5 * matrix.T
    if gap > half_digits(value):
        close = gap <= 1e-3
        if not (close and gap <= 4.0 * EPS * np.linalg.cond(result / scale / scale[:, None])):
            raise _not_symmetric(name, matrix, pair)
    try:
        np.linalg.cholesky(result)
    except np.linalg.LinAlgError:
        raise ValueError(f"{name} is not positive definite; allowed: {allowed}") from None
    return result


def sparse_symmetric(name: str, value: SparseGiven, d: int) -> CSR:
    """A symmetric sparse matrix (d, d) of a positive diagonal, a CSR array of its own numbers.

    Entries are compared as those of :func:`definite`. Whether it is definite a factor says.
    """
    if value.shape != (d, d):
        raise ValueError(f"{name} has shape {value.shape}; allowed: {(d, d)}")
    matrix = sparse_design(name, value, d)
    if not np.isfinite(matrix.data).all():
        raise ValueError(f"{name} holds NaN or infinity; allowed: finite numbers")
    diagonal = matrix.diagonal()
    if not (diagonal > 0.0).all():
        raise ValueError(
            f"{name} has {diagonal.min():g} on its diagonal; allowed: a symmetric positive "
            "definite matrix"
        )
    scale, gap = np.sqrt(diagonal), abs(matrix - matrix.T).tocoo()
    with np.errstate(over="ignore"):
        excess = gap.data / scale[gap.row] / scale[gap.col]
    if excess.size and excess.max() > half_digits(value):
        at = int(excess.argmax())
        raise _not_symmetric(name, matrix, (int(gap.row[at]), int(gap.col[at])))
    return (0.5 * (matrix + matrix.T)).tocsr()


def prior_variances(name: str, value: Given, m: int) -> Array:
    """Numbers >= 0, (m,): one for each of m new inputs, or one for all."""
    result = to_float64(real_array(name, value))
    if result.shape not in ((), (m,)):
        raise ValueError(
            f"{name} has shape {result.shape}; allowed: ({m},), a number per row of K_star"
        )
    if not (np.isfinite(result).all() and (result >= 0.0).all()):
        raise ValueError(
            f"{name} holds NaN, infinity or a negative number; allowed: finite numbers >= 0"
        )
    return np.broadcast_to(result, (m,))


def labels(name: str, value: Given, n: int) -> Array:
    """Labels -1 and +1, (n,), as float64."""
    relabel = "use np.where({}, 1, -1), or LinearClassifier or GPClassifier, which take any labels"
    words = value if isinstance(value, np.ndarray) or hasattr(value, "dtype") else None
    if words is None and isinstance(value, list | tuple) and value:
        words = np.asarray(value) if isinstance(value[0], str | bool | np.bool_) else None
    if words is not None and not hasattr(value, "tocsr") and np.asarray(words).dtype.kind in "bUSO":
        flat = np.asarray(words).ravel()
        one = next((v for v in flat if isinstance(v, str | bool | np.bool_)), None)
        if one is not None:
            test = f"y == {str(one)!r}" if isinstance(one, str) else "y"
            raise TypeError(
                f"{name} has dtype {flat.dtype}; allowed: the numbers -1 and +1; "
                + relabel.format(test)
            )
    given = real_array(name, value)
    if given.shape != (n,):
        raise ValueError(f"{name} has shape {given.shape}; allowed: ({n},), a label per row")
    result = to_float64(given)
    if not (np.abs(result) == 1.0).all():
        distinct = np.unique(result)
        shown = ", ".join(f"{v:g}" for v in distinct[:4]) + (", ..." if distinct.size > 4 else "")
        raise ValueError(
            f"{name} has the labels {shown}; allowed: -1 and +1; "
            + relabel.format(f"y == {distinct[-1]:g}")
        )
    return result


def groups(name: str, given: Given) -> int | NDArray[np.intp]:
    """The number of groups, or the group of each row, as far as it can be checked without n."""
    if np.ndim(real_array(name, given)) == 0:
        return integer(name, given, least=1)
    labels = real_array(name, given)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or labels.size == 0:
        raise ValueError(
            f"{name} is {describe(labels)}; allowed: an integer >= 1, or labels 0 to "
            "K - 1 of integer dtype, one per row"
        )
    least, most = labels.min(), labels.max()
    whole = labels.astype(np.intp)
    if least < 0 or most >= whole.size or not np.bincount(whole).all():
        raise ValueError(
            f"{name} holds labels from {least} to {most}; allowed: 0 to K - 1, each for at least "
            "one row"
        )
    whole.flags.writeable = False
    return whole


def group_labels(name: str, given: Given, n: int) -> NDArray[np.intp]:
    """The group of each of n rows, from the result of :func:`groups`."""
    if isinstance(given, int):
        count = integer(name, given, least=1, most=n)
        return np.repeat(np.arange(count), np.diff(np.arange(count + 1) * n // count))
    labels = np.asarray(given)
    if labels.shape != (n,):
        raise ValueError(
            f"{name} has shape {labels.shape}; allowed: an integer, or ({n},), a label per row"
        )
    return labels


def flag(name: str, value: bool) -> bool:
    """True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} is {describe(value)}; allowed: True or False")
    return bool(value)


def callback(value: Any) -> None:
    """A function of a record and a state, or None."""
    if value is not None:
        function("callback", value, "info", "state", other=" or None")


def function(name: str, value: Any, *wanted: str, other: str = "") -> None:
    """A function of these arguments, by position, as far as Python tells; other: also allowed.

    Without arguments it is any function.
    """
    if not callable(value):
        raise TypeError(f"{name} is {describe(value)}; allowed: a callable{other}")
    if not wanted:
        return
    try:
        known = inspect.signature(value)
    except (TypeError, ValueError):  # of C
        return
    try:
        known.bind(*wanted)
    except TypeError:
        raise TypeError(
            f"{name} is a function of {known}; allowed: of ({', '.join(wanted)}){other}"
        ) from None


def progress(value: Any) -> None:
    """True, False, or a callable."""
    if not callable(value):
        flag("progress", value)


def seed(name: str, value: np.random.Generator | int | None) -> int:
    """A seed: as given, or (a generator, or None) drawn."""
    if value is None or hasattr(value, "integers"):
        return int(generator(name, value).integers(2**31))
    return integer(name, value, least=0)


def generator(name: str, value: np.random.Generator | int | None) -> np.random.Generator:
    """A random generator: as given, made from a seed, or (None) freshly seeded."""
    if value is None:
        return np.random.default_rng()
    if isinstance(value, np.random.Generator):
        return value
    return np.random.default_rng(integer(name, value, least=0))
