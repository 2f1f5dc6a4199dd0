import numpy as np
from numpy.typing import NDArray

from epfast._core._types import Array
from epfast._core.thread_pool import ThreadPool

def regress(
    index: NDArray[np.intp],
    tau: Array,
    nu: Array,
    mean: Array,
    variance: Array,
    K: Array | None = ...,
    X: Array | None = ...,
    Q: Array | None = ...,
    inputs: NDArray[np.intp] | None = ...,
    kind: int = ...,
    scale: float = ...,
    height: float = ...,
    pool: ThreadPool | None = ...,
) -> None: ...
