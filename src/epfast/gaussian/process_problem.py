"""What stays fixed during a fit of a process: kernel, responses, loss, scheme, schedule."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from epfast import _checks
from epfast._arrays import Array
from epfast._core.kernel_matrix import KernelMatrix
from epfast._core.thread_pool import ThreadPool
from epfast._core.tilted import TiltedMoments
from epfast.gaussian.problem import Data, exact_sites
from epfast.inference import Sites, evidence_bound
from epfast.losses import Loss
from epfast.schemes import Scheme

#: an eigenvalue of K above minus this times the largest diagonal entry counts as rounding
ROUNDING = 1e-10


class GPProblem(NamedTuple):
    """A fit of a process, checked: see :func:`epfast.fit_gp`."""

    #: K in one triangle of an array, whose other triangle the sweeps use, or one for each of
    #: several latents; None after loading
    kernel: Any
    #: (n, response_width)
    y: Array
    loss: Loss
    scheme: Scheme
    schedule: Any
    #: (n,), None: all 1; an observation of weight w counts as w copies, below 1 as t^w
    weights: Array | None = None
    #: (n, n), K where it is the same for several latents
    common: Array | None = None

    @property
    def n(self) -> int:
        return len(self.y)

    @property
    def n_rows(self) -> int:
        """As a linear model has it."""
        return self.n

    @property
    def n_sites(self) -> int:
        """As engines have it, for warnings."""
        return self.n

    @property
    def data(self) -> Data:
        """Responses and weights, as a linear model has them."""
        return Data(None, self.y, self.weights)

    @property
    def remedy(self) -> str:
        """What to do about a fit that fails."""
        if self.loss.latents > 1:
            return "damp the sweeps (EP(damping=0.5)), allow more of them, or scale the kernel"
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

    def exact_sites(self) -> Sites | None:
        """The sites where all factors are Gaussian, as EP has them; None where they are not.

        None, too, for a fixed number of sweeps, which are made as asked.
        """
        scheme, schedule = self.scheme, getattr(self.schedule, "start", self.schedule)
        if scheme is None or not scheme.integrates or scheme.relaxes or schedule.tol == 0.0:
            return None
        return exact_sites(self.loss, self.y, self.weights)

    def without_rows(self) -> GPProblem:
        """The problem without its kernel, as it is pickled."""
        return self._replace(kernel=None, common=None)

    def with_kernel(self, K: Array) -> GPProblem:
        """The same fit with another kernel, whose array is overwritten.

        Only its shape is checked, on which the core relies.
        """
        if K.shape != (self.n, self.n):
            raise ValueError(f"K has shape {K.shape}; allowed: ({self.n}, {self.n})")
        return self._replace(kernel=KernelMatrix(K))


def square(name: str, shape: tuple[int, ...]) -> None:
    """Refuse rows of features in the place of a kernel matrix."""
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(
            f"{name} has shape {shape}; allowed: (n, n), a kernel matrix (for rows of features "
            "use epfast.GPClassifier, or give the kernel between them)"
        )


def kernel_at_door(
    K: Any, overwrite: bool, jitter: float, pool: ThreadPool | None = None
) -> KernelMatrix:
    """Check K, and hold it in a copy or in its own memory. O(n^3 / 3), by the pool."""
    kernel = kernel_in_memory(K, overwrite, jitter)
    kernel.pool = pool
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
    _checks.covariance("K", array, _checks.half_digits(K))
    array[np.diag_indices(len(array))] += jitter
    return KernelMatrix(array)


def check_positive(kernel: KernelMatrix) -> None:
    """Refuse a matrix that is not positive semi-definite to rounding. O(n^3 / 3)."""
    if not kernel.is_positive(ROUNDING * float(kernel.diagonal.max()) + 1e-300):
        raise ValueError(
            "K is not positive semi-definite; allowed: a covariance matrix (where rounding made it "
            "so, give jitter)"
        )
