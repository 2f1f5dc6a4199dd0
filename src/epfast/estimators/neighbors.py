"""The rows nearest to inputs, in the metric of a kernel, and the process given their sites."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

from epfast._arrays import Array
from epfast._core.nearest import regress
from epfast._core.thread_pool import ThreadPool
from epfast.estimators.kernels import Stationary
from epfast.inference import Sites

#: columns up to which a tree finds the rows: 100 of 8,000 in .18 s of 4 columns, .64 s of 8 and
#: 1.3 s of 20, where all distances take .34, .43 and .68 s, and 40 times as long with 50,000 rows
TREE_COLUMNS = 12
#: values of a kernel at a time, 8 MB
NUMBERS = 1 << 20

Index = NDArray[np.intp]


class Neighbors:
    """Inputs, each with the rows of X whose prior correlation with it is largest.

    That is a :class:`epfast.gaussian.engines.nearest.Regression`.
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
        self.count = min(count, len(X) - (own is not None))
        self.diagonal = np.array(kernel.diag(inputs))
        self.shape, widths = Stationary.stretched(kernel)
        if self.shape is not None:
            self.X = np.ascontiguousarray(X / widths)
            self.inputs = self.X if inputs is X else np.ascontiguousarray(inputs / widths)
        if self.shape is not None and self.X.shape[1] <= TREE_COLUMNS:
            self.index = self._by_tree(own)
        else:
            self.index = self._by_all(own)

    def _by_tree(self, own: Index | None) -> Index:
        if own is None:
            found = cKDTree(self.X).query(self.inputs, self.count)[1]
            return np.asarray(found, dtype=np.intp).reshape(-1, self.count)
        found = cKDTree(self.X).query(self.inputs, self.count + 1)[1].reshape(len(own), -1)
        # among more copies of a row it may be missing
        out = found == own[:, None]
        out[~out.any(axis=1), -1] = True
        return np.asarray(found[~out], dtype=np.intp).reshape(len(own), -1)

    def _by_all(self, own: Index | None) -> Index:
        """From all values of the kernel. O(n) an input."""
        n, index = len(self.X), np.empty((len(self.inputs), self.count), dtype=np.intp)
        spread = None if self.shape is not None else np.sqrt(self.kernel.diag(self.X))
        step = max(1, NUMBERS // n)
        for first in range(0, len(index), step):
            some = self.inputs[first : first + step]
            if spread is None:
                away = cdist(some, self.X, "sqeuclidean")
            else:
                with np.errstate(divide="ignore", invalid="ignore"):
                    away = -np.nan_to_num(np.abs(self.kernel(some, self.X)) / spread)
            if own is not None:
                away[np.arange(len(some)), own[first : first + step]] = np.inf
            if self.count < n:
                away = np.argpartition(away, self.count, axis=1)[:, : self.count]
                index[first : first + step] = away
            else:
                index[first : first + step] = np.arange(n)
        return index

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
