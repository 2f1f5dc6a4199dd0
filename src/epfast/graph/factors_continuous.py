"""Factors with gamma and beta neighbours, and products of variables."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from epfast import _checks
from epfast._arrays import Array
from epfast._core.graph import GraphBatch
from epfast._core.graph_factors import (
    CompoundGammaBatch,
    LogisticBatch,
    NoiseBatch,
    ProductBatch,
)
from epfast.graph.factors import (
    Batch,
    Beliefs,
    Edges,
    Kind,
    LinearFactor,
    Neighbour,
    chain_times,
    check_spread,
    form_of,
    forms_at,
    log_normal,
    neighbours_of,
    numbers_of,
    plain_batch,
    rows_of,
    variables_of,
)
from epfast.graph.variables import Index, Linear, LinearForm, Variables, joined

#: how a gamma or beta belief is fitted to the tilted marginal
MATCHES = ("statistics", "moments")


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
    >>> post[level].mean.round(2), q.of(precision).mean.round(1)
    (np.float64(2.03), np.float64(16.6))

    References
    ----------
    West (1987), On scale mixtures of normal distributions: the integral is a Student-t density.
    """

    pattern: ClassVar[str] = "n+g"
    numbers: ClassVar[dict[str, float]] = {"offset": -np.inf}
    tau: Neighbour
    match: str = "statistics"

    def __post_init__(self) -> None:
        _checks.choice("match", self.match, MATCHES)

    def known(self, form: Linear | None) -> tuple[LinearForm, Index]:
        """The form, and the numbers of the precisions of its entries, (..., 1)."""
        h = form_of("form", form, blocks=True)
        numbers = rows_of({"tau": (self.tau, "gamma")}, form=h.shape)
        return h.broadcast(numbers.shape[:-1]), numbers

    def attach(self, form: Linear | None = None) -> Batch:
        h, numbers = self.known(form)
        (terms, parts), data = neighbours_of(h), {"offset": h.offset.copy()}
        batch = plain_batch(Noise(None, self.match), numbers, data)
        times = chain_times(batch._replace(terms=terms, parts=parts))
        return batch._replace(terms=joined(terms, batch.terms), parts=parts, times=times)

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
        return q.latent(self.known(form)[0])[0]

    def log_predictive(self, q: Beliefs, form: Linear) -> Array:
        """Log density of form = 0 with the noise, integrated over tau."""
        log_z = q.log_z(self.attach(form))
        mean, variance = q.latent(self.known(form)[0])
        # else the variance is infinite, or the noise vanishes beside it
        usual = np.isfinite(log_z) & np.isfinite(variance)
        return np.where(usual, log_z, log_normal(mean, variance))

    def predict_variance(self, q: Beliefs, form: Linear) -> Array:
        """Variance of the form plus E[1 / tau], infinite for a shape <= 1."""
        h, numbers = self.known(form)
        variance = q.latent(h)[1]
        eta = q.natural_of(numbers[..., 0])
        with np.errstate(all="ignore"):
            of_noise = np.where(eta[..., 0] > 0.0, eta[..., 1] / eta[..., 0], np.inf)
        return np.asarray(variance + of_noise)


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
    >>> post[x].mean.round(2), q.of(y).mean.round(2)
    (np.float64(1.99), np.float64(3.04))

    References
    ----------
    Stern, Herbrich & Graepel (2009), Matchbox: large scale online Bayesian recommendations.
    """

    pattern: ClassVar[str] = "nnn?"
    numbers: ClassVar[dict[str, float]] = {"variance": 0.0}
    variance: ArrayLike = 0.0

    def attach(
        self,
        x: Neighbour = None,
        y: Neighbour = None,
        z: Variables | ArrayLike | None = None,
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

    def known(self, q: Beliefs, x: Variables, y: Variables) -> tuple[Array, ...]:
        """Means and variances of x and of y, and the variances of the noise."""
        shape = rows_of({"x": (x, "gaussian"), "y": (y, "gaussian")}).shape[:-1]
        noise = numbers_of("variance", self.variance, shape, least=0.0).reshape(shape)
        return q.of(x).mean, q.of(x).variance, q.of(y).mean, q.of(y).variance, noise

    def predict(self, q: Beliefs, x: Variables, y: Variables) -> Array:
        mean_x, _, mean_y, _, _ = self.known(q, x, y)
        return np.asarray(mean_x * mean_y)

    def predict_variance(self, q: Beliefs, x: Variables, y: Variables) -> Array:
        """Variance of x y plus noise."""
        mean_x, v_x, mean_y, v_y, noise = self.known(q, x, y)
        with np.errstate(all="ignore"):
            variance = noise + mean_x**2 * v_y + mean_y**2 * v_x + v_x * v_y
        return np.where(np.isinf(v_x) | np.isinf(v_y), np.inf, variance)


@dataclass(frozen=True)
class LogisticLink(Kind):
    """A probability as a function of its log odds: p = 1 / (1 + exp(-z)).

    Parameters
    ----------
    match : {"statistics", "moments"}, default="statistics"
        How the belief about p is matched: "statistics" keeps E[log p] and E[log(1 - p)] (the
        projection of EP), "moments" the mean and variance.

    Notes
    -----
    Added as ``g.add(LogisticLink(), z, p)`` with arrays of Gaussian and beta variables that
    broadcast. The factor is a constraint, for any power. The moments are integrals over z.

    Raises
    ------
    TypeError
        When added, for variables of other families.

    Examples
    --------
    >>> import epfast
    >>> g = epfast.Graph()
    >>> z, p = g.gaussian(variance=4.0), g.beta(alpha=8.0, beta=3.0)
    >>> batch = g.add(epfast.graph.LogisticLink(), z, p)
    >>> post = g.fit()
    >>> post[z].mean.round(2), q.of(p).mean.round(2)
    (np.float64(1.2), np.float64(0.74))

    References
    ----------
    Jitkrittum et al. (2015), Kernel-based just-in-time learning for passing expectation propagation
    messages, section 4.
    """

    pattern: ClassVar[str] = "nb"
    match: str = "statistics"

    def __post_init__(self) -> None:
        _checks.choice("match", self.match, MATCHES)

    def attach(self, z: Neighbour = None, p: Neighbour = None) -> Batch:
        numbers = rows_of({"z": (z, "gaussian"), "p": (p, "beta")})
        return plain_batch(self, numbers, {})

    def sweep(self, batch: Batch, edges: Edges, tied: bool) -> GraphBatch:
        return LogisticBatch(*edges, self.match == "moments", tied)

    def predict(self, q: Beliefs, z: Variables) -> Array:
        """Mean of the probability."""
        variables_of("z", z, "gaussian")
        return LinearFactor("logistic").predict_proba(q, z)


@dataclass(frozen=True)
class CompoundGamma(Kind):
    """A broad distribution of precisions: tau ~ Ga(s2, r) with r ~ Ga(s1, r1), r integrated out.

    Its density is that of r1 times a beta prime variable. It has heavier tails than any gamma
    distribution.

    Parameters
    ----------
    s1, r1, s2 : float or array_like, default=1.0
        Parameters of the two gamma distributions, > 0.
    match : {"statistics", "moments"}, default="statistics"
        How the belief about tau is matched: "statistics" keeps E[log tau] and E[tau] (the
        projection of EP), "moments" the mean and variance.

    Notes
    -----
    Added as ``g.add(CompoundGamma(s1, r1, s2), tau)``. It is a prior, so that ``tau`` itself may be
    ``g.gamma(rate=0)``. The moments are integrals over tau. Where tau has no mean yet (s1 <= 1),
    sweeps begin at the gamma distribution with r at its mean.

    Raises
    ------
    ValueError
        When added, for numbers that are not above 0 or do not broadcast with tau.

    Examples
    --------
    >>> import epfast
    >>> g = epfast.Graph()
    >>> level, tau = g.gaussian(variance=100.0), g.gamma(shape=1.0, rate=0.0)
    >>> prior = g.add(epfast.graph.CompoundGamma(2.0, 1.0, 1.0), tau)
    >>> noise = g.add(epfast.graph.Noise(tau), [2.1, 1.9, 2.2, 1.7, 2.0] - level)
    >>> g.fit()[tau].mean.round(1)
    np.float64(8.7)

    References
    ----------
    Jitkrittum et al. (2015), Kernel-based just-in-time learning for passing expectation propagation
    messages, section 4.
    """

    pattern: ClassVar[str] = "g"
    numbers: ClassVar[dict[str, float]] = dict.fromkeys(("s1", "r1", "s2"), math.ulp(0.0))
    instead: ClassVar[str] = "post[tau], as the factor is the prior of tau alone"
    s1: ArrayLike = 1.0
    r1: ArrayLike = 1.0
    s2: ArrayLike = 1.0
    match: str = "statistics"

    def __post_init__(self) -> None:
        _checks.choice("match", self.match, MATCHES)

    def attach(self, tau: Neighbour = None) -> Batch:
        numbers = rows_of({"tau": (tau, "gamma")})
        data = {
            name: numbers_of(name, getattr(self, name), numbers.shape[:-1], least=0.0, above=True)
            for name in self.numbers
        }
        return plain_batch(CompoundGamma(match=self.match), numbers, data)

    def first_sites(self, batch: Batch) -> Array:
        s1, r1, s2 = (batch.data[name] for name in self.numbers)
        return np.stack([s2 - 1.0, s1 / r1], axis=1)

    def sweep(self, batch: Batch, edges: Edges, tied: bool) -> GraphBatch:
        numbers = np.stack([batch.data[name] for name in self.numbers], axis=1)
        return CompoundGammaBatch(*edges, numbers, self.match == "moments", tied)

    def log_density(self, batch: Batch, theta: Array) -> Array:
        s1, r1, s2 = (batch.data[name] for name in self.numbers)
        tau = theta[:, batch.terms.variables]
        scale = s1 * np.log(r1) - special.betaln(s1, s2)
        logs = scale + (s2 - 1.0) * np.log(tau) - (s1 + s2) * np.log(r1 + tau)
        return np.asarray(logs.sum(axis=1))
