"""What an operator learns with: coordinates of messages, features, and their refit.

Both learners are a Bayesian linear regression on features of the messages. Those of
:class:`DictionaryLearner` are Cholesky features of a Gaussian kernel on a dictionary of tuples,
whose widths the evidence chooses. Those of :class:`FourierLearner` are the paper's (Jitkrittum et
al. 2015, Kernel-based just-in-time learning for passing expectation propagation messages).
Equations are those of this paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from epfast._arrays import Array
from epfast._core.operator import DictionaryModel, FourierModel, Model
from epfast.operators.messages import KINDS

#: largest value of an output, over that of all, below which it does not vary but by rounding
FIXED = 1e-12
#: noise variance of the paper's program
PAPER_NOISE = 1e-4
#: squared width of point masses over the variance of their places
POINTS = 10.0
#: stored tuples that choose widths and noise
MOST_SEEN = 160
#: overall widths of a first search, and of later ones, over the last
WIDE = np.exp2(np.arange(-1.5, 5.0, 0.5))
NEAR = np.exp2([-1.0, -0.5, 0.0, 0.5, 1.0])
#: widths of one kind of coordinate, over those of the others
APART = np.exp2([-2.0, -1.0, 1.0, 2.0])
#: variances of the noise over the amplitude: of an exact oracle, and of one with errors
ROUNDING = 10.0 ** np.arange(-10.0, -2.0, 2.0)
ERRORS = 10.0 ** np.arange(-7.0, 0.5, 0.5)
#: median of a chi-squared variable with one degree of freedom
MEDIAN = 0.4549364231195724
#: by which variances are larger than that: the process is too sure where there is no tuple yet
SAFETY = 12.0
#: a quantile of the squares of what is foreseen, and of a chi-squared variable
QUANTILE, TAIL = 0.9, 2.705543454095404


class Calibration(NamedTuple):
    """Units of the targets and of their predicted variances, (T,) each."""

    offset: Array
    scale: Array
    #: amplitudes of the standardised targets
    amplitude: Array
    #: by which predicted variances are too small
    inflation: Array
    #: variance of the noise of a tuple over the amplitude
    noise: float
    #: mean square of the standard errors that the noise is the variance of. 0: exact answers
    errors: float
    #: widths of the kernel (k,). Empty where features have no kernel
    widths: Array

    def noise_of(self, errors: Array) -> float:
        """The variance of the noise of a tuple with these standard errors (T,)."""
        if self.errors == 0.0:
            return self.noise
        return float(self.noise * np.clip((errors[:-1] ** 2).mean() / self.errors, 1e-6, 1e12))

    def targets(self, raw: Array) -> Array:
        """Targets of the model's numbers, (n, T)."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(self.offset + self.scale * raw)

    def sd(self, spread: Array) -> Array:
        """Standard deviations of the targets, (n, T)."""
        with np.errstate(over="ignore", invalid="ignore"):
            variance = np.outer(spread, self.amplitude * self.inflation)
            return np.asarray(self.scale * np.sqrt(np.maximum(variance, 0.0)))


#: a fitted model of the core, and its calibration
Fit = tuple[Model, Calibration]


def data_columns(data: Array | None, width: int) -> list[Array]:
    """The coordinates of the data, (n,) each: arcsinh of a column."""
    return [] if data is None else list(np.arcsinh(data[:, :width]).T)


@dataclass(frozen=True)
class DictionaryLearner:
    """A dictionary of tuples in coordinates without limits."""

    #: families of the messages
    inputs: tuple[str, ...]
    data_width: int
    seed: int
    #: most tuples in it
    cap: int
    #: share of a row of the kernel that it may leave out
    near: float

    def coordinates(self, messages: tuple[Array, ...], data: Array | None) -> Array:
        """What the model takes, (n, k)."""
        with np.errstate(all="ignore"):  # what is not finite is never sure
            parts = [KINDS[f].coordinates(p) for f, p in zip(self.inputs, messages, strict=True)]
        columns = data_columns(data, self.data_width)
        return np.ascontiguousarray(np.column_stack([*parts, *columns]))

    @property
    def kinds(self) -> Array:
        """Which coordinates share a width, (k,): 0 for centres, 1 for logs, each datum."""
        pairs = [(1, 1) if family == "gamma" else (0, 1) for family in self.inputs]
        return np.array([*np.ravel(pairs), *range(2, 2 + self.data_width)])

    def units(self, x: Array) -> Array:
        """Units of the widths: how far coordinates of a kind are spread, of logs 1."""
        unit, kinds = np.ones(x.shape[1]), self.kinds
        for at in np.flatnonzero(kinds == 0):
            # a centre means little beside the width of its own message
            unit[at] = np.sqrt(x[:, at].var() + np.exp(x[:, at + 1]).mean())
        for at in np.flatnonzero(kinds >= 2):
            unit[at] = x[:, at].std() or 1.0
        return unit

    def fit(self, x: Array, targets: Array, errors: Array, last: Calibration | None) -> Fit | None:
        """Fit features and weights to all tuples. None where they are alike, or too far apart.

        O(n cap^2).

        Parameters
        ----------
        x : ndarray of shape (n, k)
            Their coordinates.
        targets, errors : ndarray of shape (n, T)
        last : Calibration or None
            The calibration of the fit before this one.
        """
        with np.errstate(over="ignore"):
            units = self.units(x)
        if not (x != x[0]).any() or not np.isfinite(units).all():
            return None
        mean, sd = targets.mean(axis=0), targets.std(axis=0)
        # a target that does not vary but by rounding has no unit
        sd = np.where(sd <= 1e-14 * np.abs(targets).max(axis=0), 1.0, sd)
        z, squares = (targets - mean) / sd, (errors[:, :-1] ** 2).mean(axis=1)
        square = float(squares.mean())
        relative = np.maximum(squares / square, 1e-6) if square else np.ones(len(x))
        # the evidence needs no more than some tuples
        subset = np.sort(np.random.default_rng(self.seed).permutation(len(x))[:MOST_SEEN])
        before = None if last is None else last.widths / units
        noises = ERRORS if square else ROUNDING
        widths, noise, amplitude = choose_widths(
            x[subset] / units, z[subset], self.kinds, before, noises, relative[subset]
        )
        widths *= units
        scaled, variances = x / widths, noise * relative
        pivots, factor, left = self.dictionary(scaled)
        # what the dictionary leaves out of a row is noise to it
        batch = Ridge(factor, z, variances + left)
        model = DictionaryModel(x.shape[1], targets.shape[1], self.cap, self.near)
        model.set(widths, scaled[pivots], factor[pivots], batch.mean, batch.covariance())
        residual, variance = batch.left_out()
        unforeseen = np.median(residual**2 / (amplitude * variance[:, None]), axis=0) / MEDIAN
        inflation = np.maximum(unforeseen, self.foreseen(scaled, z, variances, amplitude))
        inflation = np.where(inflation > 1.0, inflation, 1.0) * (1.0 if square else SAFETY)
        return model, Calibration(mean, sd, amplitude, inflation, noise, square, widths)

    def dictionary(self, x: Array) -> tuple[NDArray[np.intp], Array, Array]:
        """At most cap of these rows, that explain the others' rows of the kernel."""

        def column(i: int) -> Array:
            away = x - x[i]
            return np.asarray(np.exp(-0.5 * np.einsum("nk,nk->n", away, away)))

        return pivoted_cholesky(column, np.ones(len(x)), self.cap, self.near)

    def foreseen(self, x: Array, z: Array, noise: Array, amplitude: Array) -> Array:
        """By how much the first half of the tuples was too sure of the second, (T,)."""
        half = len(x) // 2
        first = x[:half]
        pivots, factor, left = self.dictionary(first)
        batch = Ridge(factor, z[:half], noise[:half] + left)
        cross = x[half:, None] - first[pivots]
        kernel = np.exp(-0.5 * np.einsum("nrk,nrk->nr", cross, cross))
        phi = linalg.solve_triangular(factor[pivots], kernel.T, lower=True).T
        mean, spread = batch.predict(phi)
        variance = spread + np.maximum(1.0 - (phi**2).sum(axis=1), 0.0) + noise[half:]
        squares = (z[half:] - mean) ** 2 / (amplitude * variance[:, None])
        return np.asarray(np.quantile(squares, QUANTILE, axis=0) / TAIL)


def choose_widths(
    x: Array, z: Array, kinds: Array, last: Array | None, noises: Array, relative: Array
) -> tuple[Array, float, Array]:
    """Widths (k,), the noise and amplitudes (T,) of the largest evidence.

    Parameters
    ----------
    x : ndarray of shape (n, k)
        Coordinates in units of their spread.
    z : ndarray of shape (n, T)
        Standardised targets.
    kinds : ndarray of shape (k,)
        Which coordinates share a width.
    last : ndarray of shape (k,) or None
        The widths about which to search.
    noises : ndarray of shape (h,)
        Variances of the noise over the amplitude, of which one is chosen.
    relative : ndarray of shape (n,)
        Noise of the rows in relation to each other.
    """
    amplitude = np.ones(z.shape[1])
    varies = (z != z[0]).any(axis=0)
    if not varies.any():
        return np.ones(len(kinds)), noises[0], amplitude
    groups, first, of_kind = np.unique(kinds, return_index=True, return_inverse=True)
    squares = np.zeros((len(groups), len(x), len(x)))
    for group, column in zip(of_kind, x.T, strict=True):
        squares[group] += np.subtract.outer(column, column) ** 2

    best: tuple[float, Array, float] = -np.inf, np.ones(len(groups)), noises[0]

    def look(widths: Array) -> None:
        nonlocal best
        evidence, amplitudes = evidence_grid(squares, z[:, varies], widths, noises, relative)
        i, j = np.unravel_index(int(evidence.argmax()), evidence.shape)
        if evidence[i, j] > best[0]:
            best = float(evidence[i, j]), widths[i], float(noises[j])
            amplitude[varies] = amplitudes[i, j]

    look(np.outer(WIDE, best[1]) if last is None else np.outer(NEAR, last[first]))
    for _ in range(2 if len(groups) > 1 else 0):
        before = best[0]
        for j in range(len(groups)):
            tried = np.tile(best[1], (len(APART), 1))
            tried[:, j] *= APART
            look(tried)
        if best[0] <= before:
            break
    return best[1][of_kind], best[2], amplitude


@dataclass(frozen=True)
class FourierLearner:
    """The paper's two-stage random features of the kernel on joint embeddings (algorithm 1).

    Of the paper's mode, with which it leaves the library, median_widths and embedding_squares too.
    """

    #: families of the messages
    inputs: tuple[str, ...]
    data_width: int
    seed: int
    d_in: int
    d_out: int
    #: factor of the squared widths
    width: float

    def coordinates(self, messages: tuple[Array, ...], data: Array | None) -> Array:
        """Means, then variances. A datum is a point mass."""
        pairs = [KINDS[f].moments(p) for f, p in zip(self.inputs, messages, strict=True)]
        points = data_columns(data, self.data_width)
        means, variances = zip(*pairs, *((y, np.zeros(len(y))) for y in points), strict=True)
        return np.stack(means + variances, axis=1)

    def fit(self, x: Array, targets: Array, errors: Array, last: Calibration | None) -> Fit | None:
        """As that of a dictionary. Widths are those of these tuples, whatever came before."""
        half, T = x.shape[1] // 2, targets.shape[1]
        try:
            widths, outer = median_widths(x[:, :half], x[:, half:], self.width)
        except ValueError:  # of tuples that are alike
            return None
        rng = np.random.default_rng(self.seed)
        model = FourierModel(
            T,
            omega=rng.standard_normal((self.d_in, half)) / widths,
            b=rng.uniform(0.0, 2.0 * math.pi, self.d_in),
            nu=rng.standard_normal((self.d_out, self.d_in)) / outer,
            c=rng.uniform(0.0, 2.0 * math.pi, self.d_out),
        )
        for row, target in zip(x, targets, strict=True):
            model.update(row, target, PAPER_NOISE)
        ones = np.ones(T)
        return model, Calibration(0.0 * ones, ones, ones, ones, PAPER_NOISE, 0.0, np.empty(0))


def embedding_squares(
    widths: tuple[float, ...], a: tuple[Array, Array], b: tuple[Array, Array]
) -> Array:
    """Squared distances of the mean embeddings (5) of joint messages, (n, n').

    Parameters
    ----------
    widths : tuple of float
        Width of the Gaussian kernel on the variable of each neighbour.
    a, b : tuple of ndarray
        Means (n, c) and variances (n, c).
    """
    squares = np.square(widths)
    exponent, scale = np.zeros((2, len(a[0]), len(b[0])))
    scale += 1.0
    for j, square in enumerate(squares):
        total = square + a[1][:, j, None] + b[1][:, j]
        exponent -= 0.5 * (a[0][:, j, None] - b[0][:, j]) ** 2 / total
        scale *= square / total
    norms = [np.sqrt((squares / (2.0 * t[1] + squares)).prod(axis=1)) for t in (a, b)]
    product = np.sqrt(scale) * np.exp(exponent)
    # rounding may leave a negative number where tuples are equal
    return np.asarray(np.maximum(norms[0][:, None] - 2.0 * product + norms[1], 0.0))


def median_widths(
    mean: Array, variance: Array, factor: float = 1.0
) -> tuple[tuple[float, ...], float]:
    """Widths (c,) of the kernel that embeds, and gamma of that on embeddings: appendix A.

    Parameters
    ----------
    mean, variance : ndarray of shape (n, c)
        Messages of a first batch of tuples. A point mass has variance 0.
    factor : float, default=1.0
        What the squares of all widths are multiplied by. 1 in the paper.

    Raises
    ------
    ValueError
        Widths would be 0: all messages of a neighbour are the same point mass, or half of the pairs
        of tuples are equal.

    Notes
    -----
    sigma_l^2 is the mean variance of message l. Appendix A leaves out point masses: of these it is
    ten times the variance of their places, so that at the factor 0.5 the inner kernel of labels -1
    and 1 falls as that of the paper's messages Beta(1 + y, 2 - y). gamma^2 is the median of the
    squared distances of all pairs of embeddings, of a tuple with itself included. O(n^2).
    """
    squares = variance.mean(axis=0)
    squares = np.where(squares > 0.0, squares, POINTS * mean.var(axis=0))
    if not (squares > 0.0).all():
        raise ValueError(
            f"variance is 0 in column {int(squares.argmin())}, where all means are equal; allowed: "
            "messages with a variance, or means that differ"
        )
    tuples = mean, variance
    gamma = float(np.median(embedding_squares(tuple(np.sqrt(squares)), tuples, tuples)))
    if gamma <= 0.0:
        raise ValueError("half of the pairs of tuples are equal; allowed: tuples that differ")
    return tuple(np.sqrt(factor * squares).tolist()), math.sqrt(factor * gamma)


# ---- regression on shared features, and what chooses its kernel and its dictionary ----


class Ridge:
    """Weights w_o ~ N(0, I) of T outputs y_o = x^T w_o + noise, by a batch of rows: (12), (13).

    The triangle of a QR decomposition is the Cholesky factor of the precision in (12), with twice
    the digits that its Gram matrix would leave. A fit costs (n + D) D^2.

    Parameters
    ----------
    features : ndarray of shape (n, D)
    targets : ndarray of shape (n, T)
    noise : ndarray of shape (n,)
        Variances of the noise of the rows.
    """

    def __init__(self, features: Array, targets: Array, noise: Array) -> None:
        n, d = features.shape
        self.features, self.targets, self.noise = features, targets, noise
        root = np.sqrt(noise)[:, None]
        #: x_i / sigma_i = leverage_i R, R^T R the precision of the weights
        orthogonal, self.triangle = linalg.qr(
            np.concatenate([features / root, np.eye(d)]),
            mode="economic",
            overwrite_a=True,
            check_finite=False,
        )
        self._leverages = orthogonal[:n]
        #: (T, D)
        self.mean: Array = linalg.solve_triangular(
            self.triangle, self._leverages.T @ (targets / root), check_finite=False
        ).T

    def covariance(self) -> Array:
        """Covariance of the weights of each output, (D, D)."""
        inverse = self._inverse()
        return np.asarray(inverse @ inverse.T)

    def predict(self, features: Array) -> tuple[Array, Array]:
        """Outputs of rows (m, T), and x^T Sigma x (m,), which (15) has in common for all."""
        spread = ((features @ self._inverse()) ** 2).sum(axis=1)
        return features @ self.mean.T, np.asarray(spread)

    def left_out(self) -> tuple[Array, Array]:
        """Each row from the others: what is left of the outputs, (n, T), and its variance (n,)."""
        # share of a row's own output in its prediction: x^T Sigma x / noise
        own = np.minimum((self._leverages**2).sum(axis=1), 1.0 - 1e-15)
        residual = self.targets - self.features @ self.mean.T
        return residual / (1.0 - own)[:, None], self.noise / (1.0 - own)

    def _inverse(self) -> Array:
        identity = np.eye(len(self.triangle))
        return np.asarray(linalg.solve_triangular(self.triangle, identity, check_finite=False))


def pivoted_cholesky(
    kernel_column: Callable[[int], Array], diagonal: Array, rank: int, tol: float = 1e-6
) -> tuple[NDArray[np.intp], Array, Array]:
    """Take the row of a kernel matrix that the others explain least, again and again.

    An incomplete Cholesky factor, K ~ factor factor^T.

    Parameters
    ----------
    kernel_column : callable
        Column i of the matrix, (n,).
    diagonal : ndarray of shape (n,)
    rank : int
        Most rows taken.
    tol : float, default=1e-06
        Part of the largest diagonal entry below which nothing is left to explain.

    Returns
    -------
    pivots : ndarray of shape (r,)
        Rows in the order in which they were taken.
    factor : ndarray of shape (n, r)
        Its rows of the pivots are lower triangular: the Cholesky factor of their kernel matrix.
    residual : ndarray of shape (n,)
        What is left of the diagonal.

    Notes
    -----
    O(n r^2), and r columns of the kernel.
    """
    left = diagonal.copy()
    rank = min(rank, len(left))
    enough = max(tol, 4.0 * np.finfo(np.float64).eps) * left.max()
    factor = np.zeros((rank, len(left)))  # transposed: rows are appended
    pivots = np.zeros(rank, dtype=np.intp)
    for k in range(rank):
        i = int(left.argmax())
        if left[i] <= enough:
            return pivots[:k], factor[:k].T, left
        root = math.sqrt(left[i])
        row = (kernel_column(i) - factor[:k, i] @ factor[:k]) / root
        row[pivots[:k]] = 0.0
        row[i] = root
        pivots[k], factor[k] = i, row
        left = np.maximum(left - row * row, 0.0)
        left[pivots[: k + 1]] = 0.0
    return pivots, factor.T, left


def evidence_grid(
    squares: Array, targets: Array, widths: Array, noises: Array, relative: Array
) -> tuple[Array, Array]:
    """Log evidence of Gaussian processes with the kernels exp(-1/2 sum_k squares_k / w_k^2).

    Parameters
    ----------
    squares : ndarray of shape (k, n, n)
        Squared distances in each of k kinds of coordinates.
    targets : ndarray of shape (n, T)
        Outputs. Each has an amplitude a of its own: its covariance is a (K + noise diag(relative)).
        One that is 0 throughout says nothing.
    widths : ndarray of shape (g, k)
    noises : ndarray of shape (h,)
        Variances of the noise over the amplitude.
    relative : ndarray of shape (n,)
        Noise of the rows in relation to each other.

    Returns
    -------
    log_evidence : ndarray of shape (g, h)
        Summed over outputs.
    amplitude : ndarray of shape (g, h, T)
        The best amplitude of each output.

    Notes
    -----
    One eigendecomposition per width, g n^3, serves all noises and outputs. The amplitude that is
    best is the mean of (U^T z)^2 / (lambda + noise).
    """
    n = len(targets)
    root = np.sqrt(relative)
    size = np.abs(targets).max(axis=0)
    varies = size > FIXED * size.max()
    z = targets / root[:, None]
    log_evidence = np.empty((len(widths), len(noises)))
    amplitude = np.empty((*log_evidence.shape, z.shape[1]))
    for g, width in enumerate(widths):
        exponent = np.tensordot(-0.5 / width**2, squares, axes=1)
        kernel = np.exp(exponent, out=exponent)
        # K + noise diag(r) = r^1/2 (r^-1/2 K r^-1/2 + noise) r^1/2
        kernel /= root[:, None] * root
        eigenvalues, vectors = linalg.eigh(kernel, overwrite_a=True, check_finite=False)
        spectrum = np.maximum(eigenvalues, 0.0)[:, None] + noises  # (n, h)
        rotated = (vectors.T @ z) ** 2  # (n, T)
        amplitude[g] = (1.0 / spectrum).T @ rotated / n
        log_evidence[g] = -0.5 * (
            n * (np.log(2.0 * math.pi * amplitude[g][:, varies]) + 1.0).sum(axis=1)
            + varies.sum() * (np.log(spectrum).sum(axis=0) + np.log(relative).sum())
        )
    return log_evidence, amplitude
