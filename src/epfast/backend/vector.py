"""Elementary functions by the vector kernels, and facts about the build."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from epfast import _checks
from epfast._arrays import Array, to_float64
from epfast._core import vector


def build_config() -> dict[str, Any]:
    """Facts of this build: BLAS, instruction set, compiler.

    Returns
    -------
    dict
        The keys are version, lapack ("scipy" or "openblas"), lapack_version (if linked), simd (in
        use), simd_available (on this CPU), simd_width (in doubles), compiler, cython, buildtype,
        bounds_checks, sanitizer, numpy and scipy. The environment variable EPFAST_SIMD, read at
        import, selects a lower instruction set.
    """
    return vector.build_facts() | {"numpy": np.__version__, "scipy": scipy.__version__}


def _elementwise(name: str, x: ArrayLike) -> Array:
    given = _checks.real_array("x", x)
    flat = to_float64(given).ravel()
    out = np.empty_like(flat)
    vector.elementwise(name, flat, out)
    return out.reshape(given.shape)


def exp(x: ArrayLike) -> Array:
    """exp by the vector kernels, any shape. Within 2 ulp, subnormal results included."""
    return _elementwise("exp", x)


def expm1(x: ArrayLike) -> Array:
    """exp(x) - 1 by the vector kernels, any shape. Within 2 ulp."""
    return _elementwise("expm1", x)


def log(x: ArrayLike) -> Array:
    """Natural logarithm by the vector kernels, any shape. Within 4 ulp, NaN below 0."""
    return _elementwise("log", x)


def log1p(x: ArrayLike) -> Array:
    """log(1 + x) by the vector kernels, any shape. Within 4 ulp, NaN below -1."""
    return _elementwise("log1p", x)


def erfcx(x: ArrayLike) -> Array:
    """exp(x^2) erfc(x) by the vector kernels, any shape. Within 8 ulp for x >= 0."""
    return _elementwise("erfcx", x)


def log_ndtr(x: ArrayLike) -> Array:
    """log of the standard normal distribution function, any shape. Within 12 ulp."""
    return _elementwise("log_ndtr", x)
