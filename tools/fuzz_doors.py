"""The fuzzer's cheap calls: every public entry point, with legal and hostile arguments."""

import fuzz_doors_backend
import fuzz_doors_dask
import fuzz_doors_fits
import fuzz_doors_learned
import fuzz_doors_parametric
import fuzz_doors_results
from fuzz_calls import DOORS, draw_case

__all__ = [
    "DOORS",
    "draw_case",
    "fuzz_doors_backend",
    "fuzz_doors_dask",
    "fuzz_doors_fits",
    "fuzz_doors_learned",
    "fuzz_doors_parametric",
    "fuzz_doors_results",
]
