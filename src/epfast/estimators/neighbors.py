"""The rows nearest to inputs, in the metric of a kernel, and the process given their sites."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from epfast._arrays import Array, pieces
from epfast._core.nearest import regress
from epfast._core.thread_pool import ThreadPool
from epfast.estimators.kernels import Stationary
from epfast.inference import Sites

#: rows that an input is given, and how many times as many in predictions. Of 8,000 rows of eight
#: columns 50 and 100 had the same log loss to 0.001, in 2 and 7 s. Predictions from 100, 200 and
#: 400 rows had 0.393, 0.384 and 0.376, and of a smoother process 0.283, 0.268 and 0.252
COUNT, AT_NEW = 50, 8
#: half of the rows of an input are the nearest of a random tenth of all, and so farther away, where
#: there are four times as many as it asks for. Of 8,000 rows of eight columns that took the log
#: loss from 0.267 to 0.254 with a length scale of 2.9, and from 0.373 to 0.376 with one of 1.2. The
#: nearest of a twentieth did 0.255 and 0.379
FEW, ROOM = 10, 4
#: values of a kernel at a time, 8 MB
NUMBERS = 1 << 20

Index = NDArray[np.intp]


class Neighbors:
    """Inputs, each with rows of X whose prior correlation with it is largest.

    Half of them are the nearest of a random tenth of the rows: some that are farther away say what
    the near ones leave open of a smooth process (Stein, Chi & Welty 2004). It is a
    :class:`epfast.gaussian.forms.nearest.Nearest`.
    """

    def __init__(
        self,
        kernel: Any,
        X: Array,
        inputs: Array,
        count: int,
        own: Index | None = None,
        pool: ThreadPool | None = None,
    ) -> None:
        """count: of rows for each input, all at most. own: which row each input is, not its own."""
        self.kernel, self.X, self.inputs, self.pool = kernel, X, inputs, pool
        self.diagonal = np.array(kernel.diag(inputs))
        self.shape = Stationary.of(kernel)
        if self.shape is not None:
            widths = self.shape.widths
            self.X = np.ascontiguousarray(X / widths)
            self.inputs = self.X if inputs is X else np.ascontiguousarray(inputs / widths)
        n = len(X)
        order, few = np.random.default_rng(0).permutation(n), n // FEW if ROOM * count <= n else 0
        parts = [(order[few:], count - (few and count // 2)), (order[:few], few and count // 2)]
        numbers = [self._among(np.sort(rows), some, own) for rows, some in parts]
        self.index = np.ascontiguousarray(np.concatenate(numbers, axis=1))
        self.count = self.index.shape[1]

    def _among(self, rows: Index, count: int, own: Index | None) -> Index:
        """So many of these rows that are nearest to each input, all at most."""
        more = int(own is not None)
        count = max(0, min(count, len(rows) - more))
        if count == 0:
            return np.empty((len(self.inputs), 0), dtype=np.intp)
        X = self.X[rows]
        by_distance = cKDTree(X) if self.shape is not None else None
        nearest = np.empty((len(self.inputs), count + more), dtype=np.intp)
        for part in pieces(len(nearest), len(X), NUMBERS):  # Ctrl-C falls between two of them
            some = self.inputs[part]
            if by_distance is None:
                nearest[part] = self._by_all(some, X, count + more)
            else:
                nearest[part] = by_distance.query(some, np.arange(1, count + more + 1))[1]
        index: Index = rows[nearest]
        if own is None:
            return index
        # itself; where it is not there, or copies of it are in its place, the farthest one
        out = index == own[:, None]
        out[~out.any(axis=1), -1] = True
        return np.reshape(index[~out], (-1, count))

    def _by_all(self, inputs: Array, X: Array, count: int) -> Index:
        """The rows of X from all values of the kernel, the farthest one last. O(n) an input."""
        with np.errstate(divide="ignore", invalid="ignore"):
            near = np.nan_to_num(np.abs(self.kernel(inputs, X)) / np.sqrt(self.kernel.diag(X)))
        return np.argpartition(-near, count - 1, axis=1)[:, :count]

    def at(self, which: Index, sites: Sites) -> tuple[Array, Array]:
        """Mean and variance of the process at some of the inputs. O(count^3 / 3) each."""
        index, (mean, variance) = self.index[which], np.empty((2, len(which)))
        known = sites.precision, sites.shift
        if self.shape is not None:
            regress(
                index,
                *known,
                mean,
                variance,
                X=self.X,
                Q=self.inputs,
                inputs=which,
                kind=self.shape.kind,
                scale=self.shape.scale,
                height=self.shape.height,
                pool=self.pool,
            )
            return mean, variance
        step = max(1, NUMBERS // (self.count + 1) ** 2)
        for first in range(0, len(which), step):
            part = slice(first, first + step)
            pairs = zip(which[part], index[part], strict=True)
            points = (np.concatenate([self.inputs[[i]], self.X[rows]]) for i, rows in pairs)
            K = np.array([self.kernel(some) for some in points], dtype=np.float64)
            regress(index[part], *known, mean[part], variance[part], K=K)
        return mean, variance
