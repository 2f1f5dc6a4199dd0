import numpy as np
from numpy.typing import NDArray

from epfast._core._types import CSR, Array

class Rows:
    n: int
    d: int
    sparse: bool
    def __init__(self, X: Array | CSR) -> None: ...

class Units(Rows):
    def __init__(self, index: NDArray[np.intp], d: int) -> None: ...

class Duals(Rows):
    def __init__(self, rows: Array, variance: Array, offset: Array) -> None: ...
