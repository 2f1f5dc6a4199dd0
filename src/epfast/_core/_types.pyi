from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
AnyArray = NDArray[np.generic]
Indices = NDArray[np.intp]

class CSR(Protocol):
    """What is read of rows in the CSR format."""

    @property
    def data(self) -> Array: ...
    @property
    def indices(self) -> NDArray[np.integer]: ...
    @property
    def indptr(self) -> NDArray[np.integer]: ...
    @property
    def shape(self) -> tuple[int, int]: ...
