"""What stays fixed during a fit of a process: kernel, responses, loss, scheme, schedule."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from epfast import _checks
from epfast._arrays import Array
from epfast._core.kernel_matrix import KernelMatrix
from epfast._core.tilted import TiltedMoments
from epfast.inference import Sites, evidence_bound
from epfast.losses import Loss
from epfast.schemes import Scheme

#: an eigenvalue of K above minus this times the largest diagonal entry counts as rounding
ROUNDING = 1e-10


class Relaxed(NamedTuple):
    """The relaxation factors of relaxed EP: natural parameters of r_i at the fit of site i."""

    #: (n,), b_i of the paper; 0 if factor i was not relaxed
    precision: Array
    shift: Array


class GPState(NamedTuple):
    """The sites of a process and their sweeps: plain arrays, picklable."""

    #: precision, shift and log scale per observation, (n,) each
    sites: Sites
    #: sweeps done so far
    sweeps: int
    #: None except in relaxed EP
    relaxed: Relaxed | None = None


class Moments(NamedTuple):
    """Moments of the posterior of the latent values, given sites."""

    #: (n,), K^-1 mean
    alpha: Array
    mean: Array
    variance: Array
    #: log det(I + K diag(precision))
    log_determinant: float


class GPProblem(NamedTuple):
    """A fit of a process, checked: see :func:`epfast.fit_gp`."""

    #: K in one triangle of an array, whose other triangle the sweeps use; None after loading
    kernel: KernelMatrix | None
    #: (n, response_width)
    y: Array
    loss: Loss
    scheme: Scheme
    schedule: Any
    #: (n,), None: all 1; an observation of weight w counts as w copies, below 1 as t^w
    weights: Array | None = None

    @property
    def n(self) -> int:
        return len(self.y)

    @property
    def n_sites(self) -> int:
        """As engines have it, for warnings."""
        return self.n

    @property
    def remedy(self) -> str:
        """What to do about a fit that fails."""
        first = "" if self.scheme.integrates else "use scheme='exact', "
        return (
            f"{first}damp the sweeps (EP(damping=0.5)), allow more of them, descend to a fixed "
            "point (schedule=DoubleLoop()), or scale the kernel"
        )

    @property
    def evidence_bound(self) -> float:
        """See :func:`epfast.inference.evidence_bound`."""
        return evidence_bound(self.loss, self.n)

    @property
    def beta(self) -> float:
        return 1.0 if self.loss is None else self.loss.beta

    def tilted(self) -> TiltedMoments:
        return self.scheme.tilted(self.loss)

    def responses(self, which: Any = slice(None)) -> Array:
        """Responses of some observations, for the core."""
        return np.ascontiguousarray(self.y[which])

    def weights_of(self, which: Any) -> Array | None:
        """Weights of some observations, for the core."""
        return None if self.weights is None else np.ascontiguousarray(self.weights[which])

    def copies(self) -> Array | float:
        """(n,), how often the factor of each observation counts."""
        return 1.0 if self.weights is None else np.maximum(self.weights, 1.0)

    def with_kernel(self, K: Array) -> GPProblem:
        """The same fit with another kernel, whose array is overwritten.

        Only its shape is checked, on which the core relies.
        """
        if K.shape != (self.n, self.n):
            raise ValueError(f"K has shape {K.shape}; allowed: ({self.n}, {self.n})")
        return self._replace(kernel=KernelMatrix(K))


def log_evidence(sites: Sites, moments: Moments) -> float:
    """EP's log p(y), with all constants."""
    return float(
        sites.log_scale.sum() + 0.5 * (sites.shift @ moments.mean) - 0.5 * moments.log_determinant
    )


def with_alpha(sites: Sites, moments: Moments) -> Moments:
    """Moments whose alpha belongs to their mean, as sequential sweeps leave it behind. O(n)."""
    return moments._replace(alpha=sites.shift - sites.precision * moments.mean)


def moments_of(
    kernel: KernelMatrix,
    sites: Sites,
    covariance: bool,
    marginals: bool = True,
    small: float = 1e-3,
) -> Moments | None:
    """Moments from the sites; None if the posterior is improper. O(n^3).

    The other triangle of the array then holds the covariance if it is asked for; else R, or nothing
    if marginals are enough. small: as :meth:`KernelMatrix.covariance` has it.
    """
    alpha, mean, variance = np.empty((3, len(sites.shift)))
    cheap = marginals and not covariance and (sites.precision >= 0.0).all()
    fit = kernel.marginals if cheap else kernel.precision
    log_determinant = fit(sites.precision, sites.shift, alpha, mean, variance)
    if not (np.isfinite(log_determinant) and (variance >= 0.0).all()):
        return None
    if covariance:
        kernel.covariance(sites.precision, small)
    return Moments(alpha, mean, variance, log_determinant)


def square(name: str, shape: tuple[int, ...]) -> None:
    """Refuse rows of features in the place of a kernel matrix."""
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(
            f"{name} has shape {shape}; allowed: (n, n), a kernel matrix (for rows of features "
            "use epfast.GPClassifier, or give the kernel between them)"
        )


def kernel_at_door(K: Any, overwrite: bool, jitter: float) -> KernelMatrix:
    """Check K, and hold it in a copy or in its own memory. O(n^3 / 3)."""
    kernel = kernel_in_memory(K, overwrite, jitter)
    check_positive(kernel)
    return kernel


def kernel_in_memory(K: Any, overwrite: bool, jitter: float) -> KernelMatrix:
    """As :func:`kernel_at_door`, but for :func:`check_positive`. O(n^2)."""
    if overwrite:
        if not (
            isinstance(K, np.ndarray)
            and K.dtype == np.float64
            and K.flags.c_contiguous
            and K.flags.writeable
        ):
            raise ValueError(
                f"K is {_checks.describe(K)}; allowed with overwrite_K: a writeable C-contiguous "
                "float64 array"
            )
        array = K
    else:
        given = _checks.real_array("K", K)
        with np.errstate(over="ignore"):  # beyond the range of a double: found below
            array = np.array(given, dtype=np.float64, order="C")
    square("K", array.shape)
    _checks.covariance("K", array)
    array[np.diag_indices(len(array))] += jitter
    return KernelMatrix(array)


def check_positive(kernel: KernelMatrix) -> None:
    """Refuse a matrix that is not positive semi-definite to rounding. O(n^3 / 3)."""
    if not kernel.is_positive(ROUNDING * float(kernel.diagonal.max()) + 1e-300):
        raise ValueError(
            "K is not positive semi-definite; allowed: a covariance matrix (where rounding made it "
            "so, give jitter)"
        )
