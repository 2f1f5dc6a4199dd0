"""The vector kernels in use: their choice, what this build is, elementary functions on arrays."""

import os

import numpy as np

from epfast._core.arrays cimport Views, numbers, release, take


cdef extern from "build_config.h" nogil:
    const char *EPF_VERSION
    const char *EPF_COMPILER
    const char *EPF_CYTHON
    const char *EPF_LAPACK
    const char *EPF_LAPACK_VERSION
    const char *EPF_SANITIZE
    const char *EPF_BUILDTYPE
    bint EPF_BOUNDS_CHECKS


SIMD_AVAILABLE = tuple(epf_kernels_get(i).name.decode() for i in range(epf_kernels_count()))


cdef int select_kernels() except -1:
    global kernels
    wanted = os.environ.get("EPFAST_SIMD") or SIMD_AVAILABLE[len(SIMD_AVAILABLE) - 1]
    if wanted not in SIMD_AVAILABLE:
        raise ImportError(
            f"the environment variable EPFAST_SIMD is {wanted!r}; this build on this CPU allows "
            f"{', '.join(SIMD_AVAILABLE)}"
        )
    kernels = epf_kernels_get(SIMD_AVAILABLE.index(wanted))
    return 0


select_kernels()


def build_facts():
    """What this build is and what it uses: the raw material of ``backend.build_config``."""
    return {
        "version": EPF_VERSION.decode(),
        "lapack": EPF_LAPACK.decode(),
        "lapack_version": EPF_LAPACK_VERSION.decode(),
        "simd": kernels.name.decode(),
        "simd_available": list(SIMD_AVAILABLE),
        "simd_width": kernels.width,
        "compiler": EPF_COMPILER.decode(),
        "cython": EPF_CYTHON.decode(),
        "buildtype": EPF_BUILDTYPE.decode(),
        "bounds_checks": bool(EPF_BOUNDS_CHECKS),
        "sanitizer": EPF_SANITIZE.decode(),
    }


def elementwise(str name, const double[::1] x, double[::1] out):
    """out = f(x) by the vector kernels; name is exp, expm1, log, log1p, erfcx, log_ndtr, cos."""
    cdef epf_elementwise f
    cdef ptrdiff_t n = x.shape[0]
    if name == "exp":
        f = kernels.exp
    elif name == "expm1":
        f = kernels.expm1
    elif name == "log":
        f = kernels.log
    elif name == "log1p":
        f = kernels.log1p
    elif name == "erfcx":
        f = kernels.erfcx
    elif name == "log_ndtr":
        f = kernels.log_ndtr
    elif name == "cos":
        f = kernels.cos
    else:
        raise ValueError(f"no vector kernel is named {name!r}")
    if n == 0:
        return
    with nogil:
        f(n, &x[0], &out[0])


def column_sizes(X, double[::1] largest not None, double[::1] squares not None):
    """largest_j = max_k |x_kj|, NaN left out, and squares_j = sum_k x_kj^2, for a matrix (n, d) of
    float64 or float32 whose rows lie in memory without gaps; False, and nothing done, of
    another."""
    cdef const double[:, :] doubles
    cdef const float[:, :] floats
    cdef ptrdiff_t n = X.shape[0], d = X.shape[1], gap = X.strides[0], size = X.itemsize
    if size not in (4, 8) or X.dtype.kind != "f" or X.strides[1] != size or gap % size != 0:
        return False
    if largest.shape[0] != d or squares.shape[0] != d:
        raise ValueError(f"largest and squares have other shapes than ({d},)")
    if n == 0 or d == 0:
        largest[:], squares[:] = 0.0, 0.0
    elif size == 8:
        doubles = X
        with nogil:
            kernels.sizes(n, d, &doubles[0, 0], False, gap // size, &largest[0], &squares[0])
    else:
        floats = X
        with nogil:
            kernels.sizes(n, d, &floats[0, 0], True, gap // size, &largest[0], &squares[0])
    return True


cdef type ndarray = np.ndarray


def largest_move(old_mean, old_variance, mean, variance):
    """The largest of |mean - old_mean| / sqrt(variance) and |log(old_variance / variance)| / 2, for
    C-contiguous arrays of float64 of as many numbers; None of others.

    NaN where one of the former is; where one of the latter is, none of them counts.
    """
    cdef Views views
    cdef int i
    cdef Py_ssize_t size
    views.count = 0
    try:
        for array in (old_mean, old_variance, mean, variance):
            if not take(array, ndarray, False, &views):
                return None
        size = views.view[0].len
        for i in range(1, 4):
            if views.view[i].len != size:
                return None
        return kernels.largest_move(
            size // <Py_ssize_t> sizeof(double), numbers(&views, 0), numbers(&views, 1),
            numbers(&views, 2), numbers(&views, 3)
        )
    finally:
        release(&views)


def change(old, new):
    """The largest move of a mean, in standard deviations, or of the log of a standard deviation.

    old, new: tuples that begin with means and variances. What is certain does not move.
    """
    arrays = (*old[:2], *new[:2])
    moved = largest_move(*arrays)
    if moved is None:  # parts of larger arrays
        parts = np.broadcast_arrays(*arrays)
        arrays = [np.ascontiguousarray(part, np.float64) for part in parts]
        moved = largest_move(*arrays)
    if moved == moved or not (arrays[3] == 0.0).any():
        return moved
    before, after = (np.where(arrays[3] == 0.0, 1.0, arrays[k]) for k in (1, 3))
    return largest_move(arrays[0], before, arrays[2], after)
