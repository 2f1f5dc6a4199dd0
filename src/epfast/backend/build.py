"""Facts about the build."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy

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
