"""What an outsider would write: schemes and a schedule of their own."""

import dataclasses
import math

import numpy as np

from epfast import EP
from epfast.schemes import Quadrature, Scheme


class WideQuadrature(Quadrature):
    """Another rule for gamma."""

    def core_arguments(self, d):
        return {"scheme": "quadrature", "gamma": math.sqrt(3.0 * d)}


@dataclasses.dataclass(frozen=True)
class FivePoints(Scheme):
    """Variational quadrature on its own points."""

    reach: float = 1.0

    def core_arguments(self, d):
        z, w = np.polynomial.hermite_e.hermegauss(5)
        points = np.vstack([self.reach * k * np.eye(d)[j] for j in range(d) for k in z])
        return {"scheme": "variational_rule", "points": points, "weights": np.tile(w / w.sum(), d)}


class Backwards(EP):
    """From the last factor to the first."""

    def visits(self, n_factors, sweep):
        return np.arange(n_factors)[::-1]
