"""Support vector machines: the dual by SMO, seeded by Laplace propagation over chunks of the rows.

With b_i = y_i alpha_i the dual is the program of ``_core/smo.pyx``, q = -y. See :func:`fit_svm`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epfast import _checks
from epfast._arrays import Array
from epfast._core.kernel_rows import KernelRows
from epfast._core.smo import Smo
from epfast.inference import ConvergenceWarning, Interrupted
from epfast.inference.records import warn_user
from epfast.inference.runtime import TimedPieces

__all__ = ["SVM", "SVMInfo", "fit_svm"]

KERNELS = ("rbf", "linear", "precomputed")
MEGABYTE = 1 << 20
#: ratios of |y'alpha| and the sum of alpha above which a start is refused, and corrected
UNBALANCED, ROUNDING = 1e-6, 1e-12
#: kernel entries that prediction computes at a time
ENTRIES = 1 << 21


class SVMInfo(NamedTuple):
    """The record of one stage of a fit."""

    #: "start": gradient of the given alpha. "chunks": a sweep of Laplace propagation. "whole": SMO
    stage: str
    #: pairs of dual variables updated
    iterations: int
    #: entries of the kernel matrix computed
    kernel_evaluations: int
    #: largest violation of the optimality conditions of the whole problem, after this stage
    violation: float
    #: alpha'Q alpha / 2 - sum(alpha) after this stage
    dual_objective: float
    seconds: float


@dataclass(frozen=True, eq=False)
class SVM:
    """A C-support vector machine: f(x) = sum_i y_i alpha_i k(x_i, x) + bias.

    Attributes
    ----------
    alpha : ndarray of shape (n,)
        Dual variables, 0 to C. The ``alpha`` of another fit may start from them.
    bias : float
        Mean over the rows with 0 < alpha < C. If there are none, the middle of the optimal values.
    dual_objective : float
        alpha'Q alpha / 2 - sum(alpha) with Q_ij = y_i y_j k(x_i, x_j), which the fit minimises.
    violation : float
        Largest violation of the optimality conditions by a pair of rows.
    converged : bool
        Whether the violation is within the tolerance.
    support : ndarray of shape (n_support,)
        Numbers of the support vectors, the rows with alpha > 0.
    support_vectors : ndarray or CSR matrix of shape (n_support, d), or None
        Support vectors. None for a precomputed kernel.
    dual_coef : ndarray of shape (n_support,)
        y_i alpha_i of the support vectors.
    C, kernel, gamma
        Parameters of the fit. gamma is a number, 0 for kernels without gamma.
    history : list of SVMInfo
        A record for each stage of the fit.
    """

    alpha: Array = field(repr=False)
    bias: float
    dual_objective: float
    violation: float
    converged: bool
    support: NDArray[np.intp] = field(repr=False)
    support_vectors: Any = field(repr=False)
    dual_coef: Array = field(repr=False)
    C: float
    kernel: str
    gamma: float
    history: list[SVMInfo] = field(repr=False)

    @property
    def n_support(self) -> int:
        """Number of rows with alpha > 0."""
        return len(self.support)

    @property
    def n_iter(self) -> int:
        """Pairs of dual variables updated, in chunks and as a whole."""
        return sum(info.iterations for info in self.history)

    @property
    def n_kernel_evaluations(self) -> int:
        """Entries of the kernel matrix computed."""
        return sum(info.kernel_evaluations for info in self.history)

    def decision_function(self, X: ArrayLike) -> Array:
        """f at new inputs, O(m n_support d).

        Parameters
        ----------
        X : array_like or sparse matrix of shape (m, d)
            New rows. For a precomputed kernel their kernel matrix with the rows of the fit, (m, n).

        Returns
        -------
        ndarray of shape (m,)
        """
        if self.kernel == "precomputed":
            K = _checks.array("X", X, shape=(None, len(self.alpha)))
            return np.asarray(K[:, self.support] @ self.dual_coef + self.bias)
        rows = _rows(X, self.support_vectors.shape[1])
        out, norms = np.empty(rows.shape[0]), _squares(self.support_vectors)
        step = max(1, ENTRIES // max(1, self.n_support))
        with np.errstate(over="ignore", invalid="ignore"):
            for first in range(0, len(out), step):
                part = rows[first : first + step]
                values = part @ self.support_vectors.T
                values = values.toarray() if hasattr(values, "toarray") else values
                if self.kernel == "rbf":
                    values = np.add.outer(_squares(part), norms) - 2.0 * values
                    values = np.exp(-self.gamma * np.maximum(values, 0.0))
                out[first : first + step] = values @ self.dual_coef
            out += self.bias
        if not np.isfinite(out).all():
            raise ValueError("X overflows in the kernel; allowed: finite numbers of moderate size")
        return out

    def predict(self, X: ArrayLike) -> Array:
        """The labels -1 and +1 of new inputs.

        Parameters
        ----------
        X
            As in :meth:`decision_function`.

        Returns
        -------
        ndarray of shape (m,)
        """
        return np.where(self.decision_function(X) >= 0.0, 1.0, -1.0)


@_checks.named
def fit_svm(
    X: ArrayLike,
    y: ArrayLike,
    *,
    C: float = 1.0,
    kernel: str = "rbf",
    gamma: float | str = "scale",
    tol: float = 1e-3,
    alpha: ArrayLike | None = None,
    chunks: int | ArrayLike | None = None,
    order: str = "serial",
    sweeps: int = 1,
    finish: bool = True,
    cache_size: float = 200.0,
    max_iter: int = 10_000_000,
) -> SVM:
    """Fit a C-support vector machine by SMO, from zero, from given dual variables or from chunks.

    The result is the mode of a posterior with the process prior N(0, K) and factors
    exp(-C max(0, 1 - y_i f_i)), and its bias. SMO minimises alpha'Q alpha / 2 - sum(alpha) over
    0 <= alpha <= C and y'alpha = 0, with Q_ij = y_i y_j k(x_i, x_j), two variables at a time
    (Platt 1998; Fan, Chen & Lin 2005).

    *Laplace propagation* (Smola, Vishwanathan & Eskin 2003, section 4.2) gives a start. A factor is
    a chunk of rows. The hinge is piecewise linear, so that the log of a factor is linear near a
    mode. Its message is therefore the function sum_j alpha_j y_j k(x_j, .) of its rows, and the
    number sum_j alpha_j y_j for the bias. The problem of a chunk, given the other messages, is the
    SVM of its rows with their function as an offset. This is the dual with the alpha of the other
    chunks fixed, also called "chunking".

    In serial order a chunk uses the latest messages, and a sweep never increases the dual
    objective. In parallel order all chunks use the messages from before the sweep. Their combined
    result may be far from the optimum. The sum of y_j alpha_j over a chunk does not change, and is
    0 from flat messages, since the message for the bias has no curvature. Sweeps alone therefore do
    not reach the optimum. SMO on all rows follows, and reuses their gradient and kernel rows.

    Parameters
    ----------
    X : array_like or sparse matrix of shape (n, d)
        Inputs. For a precomputed kernel the symmetric kernel matrix, (n, n).
    y : array_like of shape (n,)
        Labels -1 and +1. Both must occur.
    C : float, default=1.0
        Weight of the hinge losses, > 0.
    kernel : {"rbf", "linear", "precomputed"}, default="rbf"
        "rbf" is ``exp(-gamma |x - x'|^2)``. Distances are computed from inner products, so that
        columns whose mean is many times their spread should be centred.
    gamma : float or "scale", default="scale"
        > 0. "scale" is 1 / (d times the variance of the entries of X).
    tol : float, default=0.001
        Stop when no pair of rows violates the optimality conditions by more, also in chunks. > 0.
    alpha : array_like of shape (n,), optional
        Dual variables of the start, from 0 to C, with y'alpha = 0.
    chunks : int or array_like of shape (n,), optional
        Chunks of Laplace propagation before SMO. A number of chunks of consecutive rows with nearly
        equal sizes, or the chunk of each row, 0 to K - 1. Chunks should have rows of both classes.
        A chunk of a single class changes nothing. None: no chunks.
    order : {"serial", "parallel"}, default="serial"
        Order in which the chunks are updated.
    sweeps : int, default=1
        Sweeps over the chunks.
    finish : bool, default=True
        Whether SMO on all rows follows the chunks.
    cache_size : float, default=200.0
        Megabytes for kernel rows, > 0. While a chunk is solved, it may take as much again.
    max_iter : int, default=10000000
        Most updates of pairs of variables, in chunks and as a whole.

    Returns
    -------
    SVM

    Raises
    ------
    ValueError, TypeError
        For arguments that are not allowed.
    FloatingPointError
        If the kernel overflows.
    Interrupted
        On Ctrl-C, within about a second. Its ``posterior`` is the SVM so far. Continue with
        ``alpha=interrupted.posterior.alpha``. Before the gradient of a given ``alpha`` is known,
        its bias is NaN and its violation infinite.

    Warns
    -----
    ConvergenceWarning
        If the tolerance was not reached, because of ``max_iter`` or rounding errors.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> x = np.linspace(-3, 3, 40)[:, None]
    >>> y = np.where(np.abs(x[:, 0]) < 1.5, 1, -1)
    >>> svm = epfast.fit_svm(x, y, C=10.0, chunks=np.arange(40) % 4)
    >>> svm.predict([[0.0], [2.5]])
    array([ 1., -1.])
    >>> [info.stage for info in svm.history]
    ['chunks', 'whole']
    """
    _checks.choice("kernel", kernel, KERNELS)
    _checks.choice("order", order, ("serial", "parallel"))
    _checks.flag("finish", finish)
    C = _checks.number("C", C, above=0.0)
    tol = _checks.number("tol", tol, above=0.0)
    size = MEGABYTE * _checks.number("cache_size", cache_size, above=0.0)
    sweeps = _checks.integer("sweeps", sweeps, least=1)
    most = _checks.integer("max_iter", max_iter, least=1)
    if not finish and chunks is None:
        raise ValueError("finish is False and chunks is None; allowed: chunks, or finish=True")
    if kernel == "precomputed":
        rows = _checks.array("X", X, shape=(None, None))
        _checks.symmetric("X", rows)
        width = 0.0
    else:
        rows = _rows(X, None)
        width = _gamma(gamma, rows) if kernel == "rbf" else 0.0
    n = rows.shape[0]
    labels = _checks.labels("y", y, n)
    if abs(labels.sum()) == n:
        raise ValueError(f"y holds the label {labels[0]:g} alone; allowed: both -1 and +1")
    start = None if alpha is None else _start(alpha, labels, C)
    groups = None
    if chunks is not None:
        groups = _checks.group_labels("chunks", _checks.groups("chunks", chunks), n)

    visit: Any = slice(None)
    dual: _Dual | None = None

    def result() -> SVM:
        beta = np.zeros(n) if start is None else start
        bias, objective, violation = np.nan, np.nan, np.inf
        if dual is not None and dual.history:  # else the gradient of the start is unknown
            beta, bias = np.empty(n), dual.bias()
            beta[visit] = dual.beta
            violation, objective = dual.history[-1][3:5]
        support = np.flatnonzero(beta)
        return SVM(
            alpha=labels * beta,
            bias=bias,
            dual_objective=objective,
            violation=violation,
            converged=violation <= tol,
            support=support,
            support_vectors=None if kernel == "precomputed" else rows[support],
            dual_coef=beta[support],
            C=C,
            kernel=kernel,
            gamma=width,
            history=[] if dual is None else dual.history,
        )

    try:
        # sort the rows by chunk
        ordered = rows
        if groups is not None and (np.diff(groups) < 0).any():
            visit = np.argsort(groups, kind="stable")
            ordered = rows[np.ix_(visit, visit)] if kernel == "precomputed" else rows[visit]
        given = kernel == "precomputed"
        core = KernelRows(K=ordered) if given else KernelRows(ordered, _squares(ordered), width)
        dual = _Dual(core, np.ascontiguousarray(labels[visit]), C, tol, size, most)
        if start is not None:
            dual.start(start[visit])
        if groups is not None:
            for _ in range(sweeps):
                dual.sweep(np.cumsum(np.bincount(groups)), order == "parallel")
        if finish:
            dual.finish()
        last = dual.history[-1]
        if not np.isfinite(last[3:5]).all():
            raise FloatingPointError("the kernel overflowed; scale the columns of X")
        if finish and last.violation > tol:
            warn_user(
                f"SMO did not reach tol={tol:g}: after {dual.iterations} iterations the optimality "
                f"conditions are violated by {last.violation:.2g}; try a larger max_iter or tol, "
                "or scale the columns of X",
                ConvergenceWarning,
            )
        return result()
    except KeyboardInterrupt:
        if dual is not None and (start is None or dual.history):
            dual.stop()
        raise Interrupted(result()) from None


# ---- fit_svm ----


def _rows(X: Any, d: int | None) -> Any:
    """Rows of X as the core takes them: C-contiguous float64 or CSR, finite."""
    if hasattr(X, "tocsr"):
        result = _checks.sparse_design("X", X, d)
        if not np.isfinite(result.data).all():
            raise ValueError("X holds NaN or infinity; allowed: finite numbers")
        return result
    return _checks.array("X", _checks.design("X", X, d), shape=(None, d))


def _gamma(gamma: Any, rows: Any) -> float:
    if isinstance(gamma, str):
        _checks.choice("gamma", gamma, ("scale",))
        power = _squares(rows).mean() / rows.shape[1]
        variance = float(power - rows.mean() ** 2)
        # identical rows have no scale
        return 1.0 / (rows.shape[1] * variance) if variance > 0.0 else 1.0
    return _checks.number("gamma", gamma, above=0.0)


def _squares(rows: Any) -> Array:
    """Squared norm of each row, dense or sparse."""
    with np.errstate(over="ignore"):
        if hasattr(rows, "tocsr"):
            squares = np.asarray(rows.multiply(rows).sum(axis=1), dtype=np.float64).ravel()
        else:
            squares = np.asarray(np.einsum("ij,ij->i", rows, rows))
    if not np.isfinite(4.0 * squares.max(initial=0.0)):
        raise FloatingPointError("squares of the rows of X overflow; scale its columns")
    return squares


def _start(alpha: Any, labels: Array, C: float) -> Array:
    """y alpha of a feasible start. A sum that is not 0 from single precision is corrected."""
    given = _checks.array("alpha", alpha, shape=labels.shape)
    if not (given.min() >= 0.0 and given.max() <= C):
        raise ValueError(
            f"alpha has entries from {given.min():g} to {given.max():g}; allowed: 0 to C = {C:g}"
        )
    above, below = given[labels > 0].sum(), given[labels < 0].sum()
    if abs(above - below) > UNBALANCED * (above + below):
        raise ValueError(
            f"alpha has y'alpha = {above - below:g}; allowed: 0, within {UNBALANCED:g} of the sum "
            "of alpha"
        )
    beta = labels * given
    # not for rounding errors, since scaling moves alpha = C off its bound
    if abs(above - below) > ROUNDING * (above + below):
        beta[labels > 0] *= min(1.0, below / above)
        beta[labels < 0] *= min(1.0, above / below)
    return beta


# ---- the fit ----


class _Dual:
    """The dual of all rows, which are sorted by chunk."""

    def __init__(
        self, rows: KernelRows, y: Array, C: float, tol: float, size: float, most: int
    ) -> None:
        self.rows, self.y, self.tol, self.size, self.most = rows, y, tol, size, most
        self.lower, self.upper = np.minimum(0.0, C * y), np.maximum(0.0, C * y)
        self.beta, self.gradient = np.zeros(len(y)), -y
        self.whole = self._smo(slice(0, len(y)), self.beta, self.gradient)
        self.history: list[SVMInfo] = []
        self.iterations = 0
        #: the current stage: its name, the time when it began, and the iterations before it
        self.stage: tuple[str, tuple[float, int], int] | None = None

    def start(self, beta: Array) -> None:
        """Start from feasible variables. Each variable other than 0 needs a kernel row."""
        self._begin("start")
        self._move(beta, slice(0, len(beta)))
        self._record()

    def sweep(self, ends: NDArray[Any], parallel: bool) -> None:
        """One sweep of Laplace propagation. ``ends`` are the rows after each chunk."""
        self._begin("chunks")
        beta = self.beta.copy()
        first = evaluations = 0
        for end in map(int, ends):
            chunk = slice(first, end)
            # a copy, since messages change the gradient of this chunk too
            smo = self._smo(chunk, beta[chunk], self.gradient[chunk].copy())
            self._solve(smo)
            evaluations += smo.evaluations
            if not parallel:
                self._move(beta, chunk)
            first = end
        if parallel:
            self._move(beta, slice(0, first))
        self._record(evaluations)

    def finish(self) -> None:
        """Run SMO on all rows."""
        self._begin("whole")
        self._solve(self.whole)
        self._record()

    def stop(self) -> None:
        """Record the stage that Ctrl-C interrupted."""
        if self.stage is None and not self.history:
            self._begin("whole")
        if self.stage is not None:
            self._record()

    def bias(self) -> float:
        free = (self.beta > self.lower) & (self.beta < self.upper)
        if free.any():
            return float(-self.gradient[free].mean())
        least = self.gradient[self.beta < self.upper].min()
        most = self.gradient[self.beta > self.lower].max()
        return float(-0.5 * (least + most))

    def _smo(self, part: slice, beta: Array, gradient: Array) -> Smo:
        bounds = self.lower[part], self.upper[part]
        return Smo(self.rows, part.start, self.size, beta, gradient, *bounds)

    def _solve(self, smo: Smo) -> None:
        begun = self.iterations - smo.iterations
        for part in TimedPieces(self.most - self.iterations):
            more = smo.run(self.tol, part.stop - part.start)
            self.iterations = begun + smo.iterations
            if not more:
                break

    def _move(self, beta: Array, part: slice) -> None:
        """Set new variables, and update the gradient of all rows by their changes."""
        changes = beta[part] - self.beta[part]
        index = part.start + np.flatnonzero(changes)
        changes = changes[index - part.start]
        before = self.gradient.copy()
        try:
            for piece in TimedPieces(len(index)):
                self.whole.add(index[piece], changes[piece])
            self.beta[part] = beta[part]
        except KeyboardInterrupt:
            self.gradient[:] = before
            raise

    def _begin(self, stage: str) -> None:
        self.stage = stage, (time.perf_counter(), self.whole.evaluations), self.iterations

    def _record(self, evaluations: int = 0) -> None:
        """Append the record of the stage. evaluations: kernel entries computed for chunks."""
        assert self.stage is not None
        stage, (seconds, already), done = self.stage
        self.whole.measure()
        info = SVMInfo(
            stage,
            self.iterations - done,
            evaluations + self.whole.evaluations - already,
            # -infinity if no variable can move
            max(0.0, self.whole.violation),
            float(0.5 * (self.beta @ (self.gradient - self.y))),
            time.perf_counter() - seconds,
        )
        self.stage = None
        self.history.append(info)
