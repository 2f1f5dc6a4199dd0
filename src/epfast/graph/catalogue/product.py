"""Products of two Gaussian variables: z = x y + N(0, variance).

- Messages are those of the projected tilted belief about x, y and z, an integral over x: given x,
  y and z are jointly Gaussian.
- The evidence is the log of this integral.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epfast import _checks
from epfast._arrays import Array
from epfast._core.graph import GraphBatch
from epfast._core.graph_factors import (
    ProductBatch,
)
from epfast.graph.arguments import Neighbour, numbers_of, rows_of
from epfast.graph.factors import (
    Batch,
    Beliefs,
    Edges,
    Kind,
    check_numbers,
    check_spread,
    log_normal,
    plain_batch,
)
from epfast.graph.variables import (
    Index,
    Variables,
)


@dataclass(frozen=True)
class Product(Kind):
    """A product of two Gaussian variables: z = x y + N(0, variance).

    Parameters
    ----------
    variance : float or array_like, default=0.0
        Variance of the noise, >= 0. It must be above 0 where z is observed. With 0 the factor is a
        constraint, for any power.

    Notes
    -----
    Added as ``g.add(Product(), x, y, z)`` with three arrays of variables. ``z`` may be an array of
    numbers instead, such as the entries of a matrix that is factorised. ``z`` may also be a
    variable without a prior of its own (``variance=inf``). The moments are integrals over x.

    If the priors of x and y have means of 0, (x, y) and (-x, -y) are equally probable, and means
    of 0 are a fixed point of EP. Give prior means other than 0 to break the symmetry.

    Raises
    ------
    ValueError
        When added, for a factor with the same variable twice, a variance < 0, or a variance of 0
        where z is numbers.

    Examples
    --------
    >>> import epfast
    >>> g = epfast.Graph()
    >>> x, y = g.gaussian(mean=1.0), g.gaussian(mean=3.0, variance=0.1)
    >>> batch = g.add(epfast.graph.Product(0.1), x, y, 6.0)
    >>> post = g.fit()
    >>> post[x].mean.round(2), post[y].mean.round(2)
    (np.float64(1.99), np.float64(3.04))

    References
    ----------
    Stern, Herbrich & Graepel (2009), Matchbox: large scale online Bayesian recommendations.
    """

    pattern: ClassVar[str] = "nnn?"
    variance: ArrayLike = 0.0

    def attach(
        self,
        x: Neighbour,
        y: Neighbour,
        z: Variables | ArrayLike | None,
    ) -> Batch:
        neighbours: dict[str, tuple[Neighbour, str]] = {"x": (x, "gaussian"), "y": (y, "gaussian")}
        if z is None:
            raise ValueError("z is None; allowed: Gaussian variables, or numbers")
        if isinstance(z, Variables):
            numbers = rows_of(neighbours | {"z": (z, "gaussian")})
            data = {"z": np.empty((numbers.size // 3, 0))}
        else:
            numbers = rows_of(neighbours, z=np.shape(z))
            data = {"z": numbers_of("z", z, numbers.shape[:-1])[:, None]}
        observed = not isinstance(z, Variables)
        data["variance"] = numbers_of("variance", self.variance, numbers.shape[:-1], 0.0, observed)
        return plain_batch(Product(), numbers, data)

    def check(self, batch: Batch, families: Index, sizes: Index) -> None:
        super().check(batch, families, sizes)
        check_numbers(batch, variance=0.0)
        width = 3 - batch.table.shape[1]
        z = batch.data["z"] = _checks.array("z", batch.data["z"], shape=(batch.n, width))
        if z.size and not batch.data["variance"].all():
            raise ValueError("variance holds 0 where z is observed")

    def sweep(self, batch: Batch, edges: Edges, tied: bool) -> GraphBatch:
        z = np.ascontiguousarray(batch.data["z"]).ravel()
        return ProductBatch(*edges, batch.data["variance"], z, tied)

    def log_density(self, batch: Batch, theta: Array) -> Array:
        check_spread(batch)
        names, z = batch.table, batch.data["z"]
        target = z[:, 0] if z.shape[1] else theta[:, names[:, 2]]
        gap = target - theta[:, names[:, 0]] * theta[:, names[:, 1]]
        return np.asarray(log_normal(gap, batch.data["variance"]).sum(axis=1))

    def symmetry(
        self, batch: Batch, prior: Callable[[Index], Array], alone: NDArray[np.bool_]
    ) -> str:
        pairs = batch.table[:, :2]
        centred = (prior(pairs.ravel())[:, 1] == 0.0).reshape(pairs.shape)
        if not (centred & alone[pairs]).all(axis=1).any():
            return ""
        return (
            "x and y of a Product have prior means of 0, and no factors of other kinds; (x, y) and "
            "(-x, -y) are equally probable, and EP stays at means of 0; give other prior means"
        )

    def moments(self, q: Beliefs, x: Variables, y: Variables) -> tuple[Array, ...]:
        """Means and variances of x and of y, and the variances of the noise."""
        shape = rows_of({"x": (x, "gaussian"), "y": (y, "gaussian")}).shape[:-1]
        noise = numbers_of("variance", self.variance, shape, least=0.0).reshape(shape)
        return q.of(x).mean, q.of(x).variance, q.of(y).mean, q.of(y).variance, noise

    def predict(self, q: Beliefs, x: Variables, y: Variables) -> Array:
        mean_x, _, mean_y, _, _ = self.moments(q, x, y)
        return np.asarray(mean_x * mean_y)

    def predict_variance(self, q: Beliefs, x: Variables, y: Variables) -> Array:
        """Variance of x y plus noise."""
        mean_x, v_x, mean_y, v_y, noise = self.moments(q, x, y)
        with np.errstate(all="ignore"):
            variance = noise + mean_x**2 * v_y + mean_y**2 * v_x + v_x * v_y
        return np.where(np.isinf(v_x) | np.isinf(v_y), np.inf, variance)
