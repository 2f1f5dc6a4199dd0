"""Patches: messages of cheap exact factors, interpolated on boxes of (mean, log variance)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epfast import _checks
from epfast._arrays import Array
from epfast._core.patch_tree import PatchTree

#: d = (tilted mean - m) / sqrt(v), log(tilted variance / v) and lZ at cavities N(m, v), all (n,)
Moments = Callable[[Array, Array], Sequence[ArrayLike]]


class Patched(NamedTuple):
    """Targets at n cavities, (n,) each."""

    #: (tilted mean - m) / sqrt(v)
    shift: Array
    #: log of the tilted variance over v
    log_ratio: Array
    log_z: Array
    #: error of the first two, by the last coefficients. 0 where the function itself was asked
    error: Array


class Patches:
    """A tree of boxes in (m, log v) with 9 x 9 Chebyshev interpolation of a function's targets.

    A box is fitted when a cavity in it is first asked for, from 81 evaluations, and cut in two
    until the last two coefficients along each axis are below the tolerance.

    Parameters
    ----------
    moments : callable
        moments(m (n,), v (n,)) -> (d, rho, lZ) with d = (tilted mean - m) / sqrt(v) and rho = log
        of the tilted variance over v. It must be smooth and free of noise. NaN is allowed.
    tolerance : float, default=1e-06
        Of d and rho, and of lZ relative to its size where that is above 1.
    box : pair of pairs, default=((-16.0, 16.0), (-8.0, 8.0))
        Means and log variances that the first box spans. It is doubled as cavities need it.
    depth : int, default=16
        Most halvings of a side of the first box. Boxes of that size keep the error that they have.
    leaves : int, default=10000
        Most boxes with coefficients, 2.3 kB each. Beyond them the function itself is asked.

    Notes
    -----
    The error of a smooth function is well below the tolerance: the coefficients fall fast. A
    function with a kink is cut down to the smallest boxes about it.
    """

    def __init__(
        self,
        moments: Moments,
        tolerance: float = 1e-6,
        *,
        box: tuple[tuple[float, float], tuple[float, float]] = ((-16.0, 16.0), (-8.0, 8.0)),
        depth: int = 16,
        leaves: int = 10_000,
    ) -> None:
        if not callable(moments):
            raise TypeError(
                f"moments is {_checks.describe(moments)}; allowed: a function of (m, v)"
            )
        sides = _checks.array("box", box, shape=(2, 2))
        if not (sides[:, 0] < sides[:, 1]).all():
            raise ValueError(f"box is {box!r}; allowed: pairs (from, to), from < to")
        self._moments = moments
        self._asked = 0
        #: a model of the core, for a site
        self.core = PatchTree(
            self._evaluate,
            _checks.number("tolerance", tolerance, least=1e-13, most=1.0),
            sides.ravel().tolist(),
            _checks.integer("depth", depth, least=0, most=60),
            _checks.integer("leaves", leaves, least=0, most=10**7),
        )

    @property
    def leaves(self) -> int:
        """Boxes with coefficients."""
        return self.core.leaves

    @property
    def calls(self) -> int:
        """Evaluations of the function, of one cavity each."""
        return self._asked

    def predict(self, mean: ArrayLike, variance: ArrayLike) -> Patched:
        """Targets at cavities N(mean, variance), (n,) each. O(depth) for each that is not new.

        Raises FloatingPointError where the function has none.
        """
        m = _checks.array("mean", mean, shape=(None,))
        v = _checks.array("variance", variance, shape=(len(m),), positive=True)
        targets, spread = self.core.predict(np.stack([m, np.log(v)], axis=1))
        outside = np.isinf(spread)
        if outside.any():
            targets[outside] = self._evaluate(m[outside], v[outside]).T
            spread[outside] = 0.0
        failed = np.count_nonzero(~np.isfinite(targets).all(axis=1))
        if failed:
            raise FloatingPointError(f"moments are not finite at {failed} of {len(m)} cavities")
        shift, log_ratio, log_z = targets.T.copy()
        return Patched(shift, log_ratio, log_z, np.sqrt(spread))

    def _evaluate(self, m: Array, v: Array) -> Array:
        """The function's targets, (3, n), checked but for NaN."""
        self._asked += len(m)
        found: Any = self._moments(m, v)
        if not isinstance(found, (tuple, list, np.ndarray)) or len(found) != 3:
            raise ValueError(
                f"moments returned {_checks.describe(found)}; allowed: three arrays (d, rho, lZ)"
            )
        parts: list[NDArray[Any]] = [np.asarray(part) for part in found]
        for name, part in zip(("d", "rho", "lZ"), parts, strict=True):
            if part.dtype.kind not in "fiu" or part.shape != m.shape:
                raise ValueError(
                    f"moments returned {name}, {_checks.describe(part)}; allowed: real numbers of "
                    f"shape {m.shape}"
                )
        return np.array(parts, dtype=np.float64)
