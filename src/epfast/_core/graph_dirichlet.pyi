import numpy as np
from numpy.typing import NDArray

from epfast._core.graph import GraphBatch

class DirichletBatch(GraphBatch):
    def __init__(
        self,
        starts: NDArray[np.intp],
        at: NDArray[np.intp],
        kind: NDArray[np.intc],
        size: NDArray[np.intp],
        z: NDArray[np.intp] | None,
        by_moments: bool,
        tied: bool,
    ) -> None: ...
