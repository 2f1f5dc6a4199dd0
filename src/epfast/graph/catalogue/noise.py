"""Gaussian noise of unknown precision: a form h ~ N(0, 1 / tau).

- Messages to tau and to the variables of h are those of the projected tilted belief about both,
  an integral over tau: given tau, h is Gaussian.
- The evidence is the log of this integral.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from epfast import _checks
from epfast._arrays import Array
from epfast._core.graph import GraphBatch
from epfast._core.graph_factors import (
    NoiseBatch,
)
from epfast.graph.arguments import Neighbour, form_of, neighbours_of, rows_of
from epfast.graph.factors import (
    MATCHES,
    Batch,
    Beliefs,
    Edges,
    Kind,
    chain_times,
    check_numbers,
    forms_at,
    log_normal,
    plain_batch,
)
from epfast.graph.variables import (
    Index,
    Linear,
    LinearForm,
    joined,
)


@dataclass(frozen=True, eq=False)
class Noise(Kind):
    """Gaussian noise of unknown precision: form ~ N(0, 1 / tau).

    Parameters
    ----------
    tau : Variables
        Gamma variables, or scales of :meth:`Graph.scale <epfast.Graph.scale>`. One for all forms,
        or an array that broadcasts with them.
    match : {"statistics", "moments"}, default="statistics"
        How the belief about tau is matched: "statistics" keeps E[log tau] and E[tau] (the
        projection of EP), "moments" the mean and variance.

    Notes
    -----
    Added as ``g.add(Noise(tau), form)``. For observations the form is ``y - form``, and for a
    random walk ``x[1:] - x[:-1]``. The moments are integrals over tau. If its prior is flat
    (``rate=0``), sweeps begin at the precision of what is known of the forms.

    One Gaussian neighbour may have a flat cavity, so that states need no prior of their own. As
    long as E[1 / tau] is infinite, the message to it has the variance 1 / E[tau], and counts as
    refused.

    The beliefs ignore correlations. Standard deviations of precisions are some 20 % too small in a
    local level model where both are unknown. With a block of d weights and n rows they are too
    large, by a factor of 1.13 for d / n = 0.2 and of 1.27 for 0.5. :func:`epfast.fit_hyper` avoids
    this.

    Examples
    --------
    >>> import numpy as np
    >>> from epfast.graph import Graph, Noise
    >>> y = np.array([2.1, 1.9, 2.2, 1.7, 2.0, 2.3])
    >>> g = Graph()
    >>> level, precision = g.gaussian(variance=100.0), g.gamma(shape=1.0, rate=0.1)
    >>> batch = g.add(Noise(precision), y - level)
    >>> post = g.fit()
    >>> post[level].mean.round(2), post[precision].mean.round(1)
    (np.float64(2.03), np.float64(16.6))

    References
    ----------
    West (1987), On scale mixtures of normal distributions: the integral is a Student-t density.
    """

    pattern: ClassVar[str] = "n+g"
    tau: Neighbour
    match: str = "statistics"

    def __post_init__(self) -> None:
        _checks.choice("match", self.match, MATCHES)

    def broadcast(self, form: Linear) -> tuple[LinearForm, Index]:
        """The form, and the numbers of the precisions of its entries, (..., 1)."""
        h = form_of("form", form, blocks=True)
        numbers = rows_of({"tau": (self.tau, "gamma")}, form=h.shape)
        return h.broadcast(numbers.shape[:-1]), numbers

    def attach(self, form: Linear) -> Batch:
        h, numbers = self.broadcast(form)
        (terms, parts), data = neighbours_of(h), {"offset": h.offset.copy()}
        batch = plain_batch(Noise(None, self.match), numbers, data)
        times = chain_times(batch._replace(terms=terms, parts=parts))
        return batch._replace(terms=joined(terms, batch.terms), parts=parts, times=times)

    def check(self, batch: Batch, families: Index, sizes: Index) -> None:
        super().check(batch, families, sizes)
        check_numbers(batch, offset=-np.inf)

    def first_sites(self, batch: Batch) -> Array | None:
        """The precision of the forms as far as they are known, as if these were alone."""
        away = batch.data["offset"] - batch.data["offset"].mean()
        if not away.any():
            return None
        sites = np.zeros((batch.terms.starts[-1], 2))
        sites[batch.last] = np.stack([np.full(batch.n, 0.5), 0.5 * away**2], axis=1)
        return sites

    def sweep(self, batch: Batch, edges: Edges, tied: bool) -> GraphBatch:
        numbers = batch.terms.coefficient, batch.data["offset"]
        return NoiseBatch(*edges, *numbers, self.match == "moments", tied)

    def log_density(self, batch: Batch, theta: Array) -> Array:
        h = forms_at(batch, theta, np.delete(np.arange(batch.terms.starts[-1]), batch.last))
        tau = theta[:, batch.terms.variables[batch.last]]
        return np.asarray(log_normal(h, 1.0 / tau).sum(axis=1))

    def predict(self, q: Beliefs, form: Linear) -> Array:
        return q.latent(self.broadcast(form)[0])[0]

    def log_predictive(self, q: Beliefs, form: Linear) -> Array:
        """Log density of form = 0 with the noise, integrated over tau."""
        log_z = q.log_z(self.attach(form))
        mean, variance = q.latent(self.broadcast(form)[0])
        # else the variance is infinite, or the noise vanishes beside it
        usual = np.isfinite(log_z) & np.isfinite(variance)
        return np.where(usual, log_z, log_normal(mean, variance))

    def predict_variance(self, q: Beliefs, form: Linear) -> Array:
        """Variance of the form plus E[1 / tau], infinite for a shape <= 1."""
        h, numbers = self.broadcast(form)
        variance = q.latent(h)[1]
        eta = q.natural_of(numbers[..., 0])
        with np.errstate(all="ignore"):
            of_noise = np.where(eta[..., 0] > 0.0, eta[..., 1] / eta[..., 0], np.inf)
        return np.asarray(variance + of_noise)
