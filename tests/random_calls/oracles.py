"""What counts as a failure, and the integrals that EP approximates."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial.legendre import leggauss
from scipy import LowLevelCallable, special

import epfast
from tests.random_calls.hostile import snapshots
from tests.random_calls.values import PlantedError, arguments

#: failures that only say how good an approximation is
NOTED = ("approximation",)

#: what NumPy, SciPy, Cython and the interpreter say of a wrong argument
RAW = re.compile(
    r"""could.not.convert | setting.an.array.element | must.not.contain.infs | [Ss]ingular.matrix
    | leading.minor | not.be.broadcast | not.aligned | cannot.reshape | Buffer.(dtype|has)
    | not.C-contiguous | read-only | has.no.len | unsupported.operand | not.supported.between
    | must.be.real.number | integer.is.required | cannot.convert.float | truth.value
    | only.\S*(length|dimensional|integer) | ufunc | Cannot.cast | zero-size.array
    | out.of.bounds | too.many.indices | math.domain | not.enough.values | too.many.values
    | interpreted.as.an.integer | too.large.to.convert | illegal.value | unhashable | not.iterable
    | has.no.attribute | not.subscriptable | not.callable | positional.argument | NoneType
    | allow_pickle | Matrix.is.not | could.not.find | [Ii]nput.operand | object.cannot.be
    | dimension.mismatch | index.pointer | 0-d.array | argument.must.be | cannot.unpack
    | is.ambiguous | inhomogeneous | assignment.destination | exceeds.the.limit""",
    re.VERBOSE,
)
#: how our own errors speak, beside the name of an argument
OURS = re.compile(
    r"\b(allowed|try|write|needs?|fit again|overflow\w*|improper|moments?|null byte|no fit)\b"
)
PACKAGES = re.compile(r"[/\\](numpy|scipy|sklearn|pandas|joblib|json|zipfile\w*|zlib)[/\\.]")

#: where the callables are that stand for a user's
FUNCTIONS = {"values.py", "hostile.py"}

#: estimators, whose first checks are those of scikit-learn, with its words
SKLEARN = (
    *("LinearClassifier", "GPClassifier", "NetworkClassifier", "NetworkRegressor"),
    "GaussianMixtureEP",
)
#: what is read of a result
READ = (
    *("mean", "variance", "log_evidence", "shift", "precision", "alpha", "bias", "dual_coef"),
    *("coef_", "intercept_", "log_evidence_", "G", "traces"),
)


class Failure(NamedTuple):
    """What went wrong, where, and in which words."""

    kind: str
    where: str
    what: str

    def key(self) -> str:
        """The same for failures that differ in their numbers alone, or after a double colon."""
        text = re.sub(
            r"'[^']*'|0x[0-9a-f]+|[-+]?\d[\d.]*(e[-+]?\d+)?", "#", self.what.split(" :: ")[0]
        )
        return f"{self.kind} | {self.where} | {text[:160]}"


@dataclass
class Case:
    """A call, and what is known of it."""

    where: str
    call: Callable[..., Any]
    given: dict[str, Any]
    #: arguments that the call may change
    changes: frozenset[str] = frozenset()
    #: names that an error may name, beyond those of the call
    names: frozenset[str] = frozenset()
    #: kinds of error allowed beyond the usual
    errors: tuple[type[BaseException], ...] = ()
    #: looks at what the call returned; yields failures
    check: Callable[[Any, list[Any]], Iterator[tuple[str, str]]] | None = None
    #: the same numbers as ``given`` in plain arrays, if the result should be the same
    plain: dict[str, Any] | None = None
    #: how close the results of the same numbers in other arrays are
    close: float = 1e-9
    #: NaN and infinity may come out
    may_be_infinite: bool = False
    outcome: str = "returned"
    found: list[Failure] = field(default_factory=list)
    error: BaseException | None = None

    def fail(self, kind: str, what: str, where: str = "") -> None:
        self.found.append(Failure(kind, where or self.where, what))


def run(case: Case) -> Case:
    """Make the call and judge it; ``found`` holds the failures."""
    before = snapshots(case.given)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step = ""
        try:
            result = case.call(**case.given)
            for step, array in read(result):
                if not case.may_be_infinite and not np.isfinite(array).all():
                    case.fail("not finite", f"{step} holds NaN or infinity")
            step = ""
            if case.check is not None:
                for kind, what in case.check(result, caught):
                    case.fail(kind, what)
            if case.plain is not None:
                _compare(case, result, case.call(**case.plain))
        except (Exception, epfast.Interrupted) as error:
            case.error = error
            case.outcome = type(error).__name__
            judge_error(case, error, step)
    for warning in caught:
        elsewhere = "sklearn" in warning.filename or FUNCTIONS & {Path(warning.filename).name}
        if not (issubclass(warning.category, UserWarning) or elsewhere):
            case.fail("leaked warning", f"{warning.category.__name__}: {warning.message}")
    after = snapshots(case.given)
    for name, value in before.items():
        asked = name == "K" and isinstance(case.given.get("overwrite_K"), bool | np.bool_)
        if name not in case.changes and after[name] != value and not asked:
            case.fail("input changed", f"{name} was changed")
    return case


@np.errstate(all="ignore")
def _compare(case: Case, result: Any, again: Any) -> None:
    if not getattr(result, "converged", True):  # a fit that has not settled may double what differs
        return
    found = dict(read(again))
    for name, one in read(result):
        other = found.get(name, one)  # labels that are whole numbers here are none there
        size = np.abs(other).max() if other.size else 0.0
        if one.shape != other.shape or (np.abs(one - other) > case.close * size + 1e-12).any():
            case.fail("depends on the kind of array", f"{name} differs")
            return


def read(result: Any, name: str = "result") -> Iterator[tuple[str, Any]]:
    """The numbers of a result, by name."""
    if isinstance(result, np.ndarray | np.generic | float):
        array = np.asarray(result)
        if array.dtype.kind in "fc":
            yield name, array
    elif isinstance(result, tuple | list):
        for k, part in enumerate(result):
            yield from read(part, f"{name}[{k}]")
    elif type(result).__module__.startswith("epfast") and not isinstance(result, type):
        for part in READ:
            value = getattr(result, part, None)
            if isinstance(value, np.ndarray | float):
                yield from read(value, part)


def judge_error(case: Case, error: BaseException, step: str = "") -> None:
    """Whether an error is one that users may meet."""
    kind, text = type(error), str(error)
    said = f"{kind.__name__}: {text[:300]}" + (f" (reading {step})" if step else "")
    if isinstance(error, (PlantedError, MemoryError, epfast.Interrupted, *case.errors)):
        return
    given = [*case.given.values()]
    given += [v.column for v in given if isinstance(v, epfast.KernelColumns)]
    if kind is RuntimeError and any(isinstance(v, LowLevelCallable) for v in given):
        return
    frame = innermost(error)
    # an exception of a callable of the user is passed on
    if any(map(_is_function, given)) or Path(frame).name in FUNCTIONS:
        return
    package = PACKAGES.search(frame)
    if package and package[1] in ("sklearn", "joblib") and case.where in SKLEARN:
        return
    if not isinstance(error, ValueError | TypeError | FloatingPointError):
        case.fail("wrong kind of error", said)
        return
    if case.where in SKLEARN:  # after the name of the argument come the words of scikit-learn
        text = text.split(" cannot be used: ")[0]
    if package or isinstance(error, np.linalg.LinAlgError) or RAW.search(text):
        case.fail("raw error", said)
        return
    names = {*arguments(case.call), *case.given, *case.names}
    words = set(re.findall(r"\w+", text))
    if not (names & words or OURS.search(text)):
        case.fail("unclear error", said)


def _is_function(value: Any) -> bool:
    ours = (type(value).__module__ or "").startswith("epfast")
    return callable(value) and not ours


def innermost(error: BaseException) -> str:
    """The file of the frame that raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else trace.tb_frame.f_code.co_filename


# ---- integrals ----

NODES, WEIGHTS = leggauss(16)


class Integral(NamedTuple):
    """log of an integral, and mean and variance of what is under it."""

    log: float
    mean: np.ndarray
    covariance: np.ndarray


def _panels(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of Gauss-Legendre between edges."""
    edges = np.unique(edges[np.isfinite(edges)])
    half = 0.5 * np.diff(edges)
    middle = edges[:-1] + half
    return (middle[:, None] + half[:, None] * NODES).ravel(), (half[:, None] * WEIGHTS).ravel()


def integrate_line(
    log_f: Callable[[np.ndarray], np.ndarray], scales: Mapping[float, tuple[float, float]]
) -> Integral | None:
    """Integrate exp(log_f) over a line; None where two ways do not agree to 1e-7.

    scales: places where something happens, with the least and the largest scale on which it does.
    """
    edges = [np.array(list(scales))]
    for place, (least, most) in scales.items():
        steps = np.geomspace(least, most, max(2, int(3 * np.log10(most / least)) + 1))
        edges += [place - steps, place + steps]
    coarse = np.unique(np.concatenate(edges))
    with np.errstate(all="ignore"):
        points, weights = _panels(coarse)
        values = log_f(points)
        inside = points[values > values.max() - 45.0]
        low = coarse[max(np.searchsorted(coarse, inside[0]) - 1, 0)]
        high = coarse[min(np.searchsorted(coarse, inside[-1], "right"), len(coarse) - 1)]
        kept = coarse[(coarse >= low) & (coarse <= high)]
        found = []
        for count in (48, 97):
            points, weights = _panels(np.concatenate([kept, np.linspace(low, high, count)]))
            values = log_f(points)
            top = values.max()
            mass = weights * np.exp(values - top)
            total = mass.sum()
            mean = mass @ points / total
            variance = mass @ (points - mean) ** 2 / total
            found.append((top + np.log(total), mean, variance))
    (log, mean, variance), fine = found
    close = abs(fine[0] - log) < 1e-7 and abs(fine[1] - mean) < 1e-7 * np.sqrt(variance)
    if not (close and abs(fine[2] - variance) < 1e-6 * variance):
        return None
    return Integral(float(fine[0]), np.array([fine[1]]), np.array([[fine[2]]]))


def integrate_plane(
    log_f: Callable[[np.ndarray], np.ndarray], mean: np.ndarray, covariance: np.ndarray
) -> Integral | None:
    """Integrate exp(log_f) over the plane, log-concave; None where two ways do not agree to 1e-4.

    log_f: of points (2, k); mean, covariance: a guess, of any quality.
    """
    with np.errstate(all="ignore"):
        root = np.linalg.cholesky(covariance)
        low, high = np.full(2, -8.0), np.full(2, 8.0)
        for size in (41, 61, 61):
            axes = [np.linspace(low[k], high[k], size) for k in (0, 1)]
            grid = np.stack(np.meshgrid(*axes, indexing="ij"))
            points = mean[:, None] + root @ grid.reshape(2, -1)
            values = log_f(points).reshape(size, size)
            inside = values > values.max() - 40.0
            if not np.isfinite(values.max()):
                return None
            for k in (0, 1):
                where = np.nonzero(inside.any(axis=1 - k))[0]
                step = axes[k][1] - axes[k][0]
                grow = 4.0 * (high[k] - low[k])
                low[k] = axes[k][where[0]] - (grow if where[0] == 0 else step)
                high[k] = axes[k][where[-1]] + (grow if where[-1] == size - 1 else step)
        found = []
        for size in (91, 133):
            axes = [np.linspace(low[k], high[k], size) for k in (0, 1)]
            grid = np.stack(np.meshgrid(*axes, indexing="ij")).reshape(2, -1)
            values = log_f(mean[:, None] + root @ grid)
            top = values.max()
            mass = np.exp(values - top)
            total = mass.sum()
            edge = (grid[0] == axes[0][0]) | (grid[0] == axes[0][-1])
            edge |= (grid[1] == axes[1][0]) | (grid[1] == axes[1][-1])
            if mass[edge].max() > 1e-12:
                return None
            center = grid @ mass / total
            away = grid - center[:, None]
            spread = (away * mass) @ away.T / total
            cell = (axes[0][1] - axes[0][0]) * (axes[1][1] - axes[1][0])
            log = top + np.log(total * cell) + np.log(np.diag(root)).sum()
            found.append((log, center, spread))
    (log, center, spread), fine = found
    sd = np.sqrt(np.diag(spread))
    if not (abs(fine[0] - log) < 1e-4 and (abs(fine[1] - center) < 1e-4 * sd).all()):
        return None
    return Integral(float(fine[0]), mean + root @ fine[1], root @ fine[2] @ root.T)


LOG_FACTORS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "logistic": lambda h: -np.logaddexp(0.0, -h),
    "probit": special.log_ndtr,
}


def tilted(name: str, power: float, y: float, mean: float, variance: float) -> Integral | None:
    """Tilted moments of a log-concave factor t(y h)^power under a cavity."""
    sd = np.sqrt(variance)
    log_t = LOG_FACTORS[name]
    far = 60.0 * sd + abs(mean)

    def log_f(h: np.ndarray) -> np.ndarray:
        normal = -0.5 * (h - mean) ** 2 / variance - 0.5 * np.log(2.0 * np.pi * variance)
        return np.asarray(power * log_t(y * h) + normal)

    width = min(1.0, sd) / (1.0 + power)
    return integrate_line(log_f, {mean: (1e-3 * sd, far), 0.0: (1e-3 * width, far)})


class Posterior(NamedTuple):
    """What a small linear model is: everything that its exact posterior depends on."""

    loss: str
    X: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    mean: np.ndarray
    variance: np.ndarray

    def log_density(self, theta: np.ndarray) -> np.ndarray:
        """Of points (d, k), with all constants."""
        away = theta - self.mean[:, None]
        prior = -0.5 * (away**2 / self.variance[:, None]).sum(0)
        prior -= 0.5 * np.log(2.0 * np.pi * self.variance).sum()
        margins = (self.X @ theta) * self.y[:, None]
        return np.asarray(prior + self.weights @ LOG_FACTORS[self.loss](margins))


def exact(problem: Posterior, mean: np.ndarray, covariance: np.ndarray) -> Integral | None:
    """The posterior of one or two weights by brute force; mean, covariance: a guess."""
    if len(mean) == 2:
        return integrate_plane(problem.log_density, mean, covariance)
    sd, center = float(np.sqrt(problem.variance[0])), float(problem.mean[0])
    slopes = np.abs(problem.X[:, 0]) * np.maximum(problem.weights, 1.0)
    steep = slopes[slopes > 0]
    far = 60.0 * sd + abs(center)
    least = min(1e-2 * sd, *(1e-2 / steep)) if len(steep) else 1e-2 * sd
    if not least > 1e-9 * far:
        return None
    scales = {center: (1e-3 * sd, far), 0.0: (least, far)}
    scales[float(mean[0])] = (1e-2 * float(np.sqrt(covariance[0, 0])), far)
    return integrate_line(lambda points: problem.log_density(points[None]), scales)
