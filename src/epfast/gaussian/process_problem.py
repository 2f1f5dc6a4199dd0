"""Kernel matrices at the door."""

from __future__ import annotations

from typing import Any

import numpy as np

from epfast import _checks
from epfast._core.kernel_matrix import KernelMatrix
from epfast._core.thread_pool import ThreadPool

#: an eigenvalue of K above minus this times the largest diagonal entry counts as rounding
ROUNDING = 1e-10


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
