"""Gaussian processes of low rank: f = G w, w ~ N(0, I), a linear model on the rows of a factor."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg

from epfast import _checks, losses, schemes
from epfast._checks import Array
from epfast.linear import fit_linear
from epfast.loop import Interrupted
from epfast.losses import Loss
from epfast.low_rank import LowRankFactor, incomplete_cholesky, kernel_columns
from epfast.posterior import (
    LOW_RANK_PROCESS,
    Data,
    FullPosterior,
    Sites,
    SweepInfo,
    label_probability,
    restore_linear,
    row_chunks,
    write,
)
from epfast.schedules import ADF, EP, Schedule
from epfast.schemes import Exact, Scheme
from epfast.sites import known_loss

__all__ = ["LowRankGPPosterior", "fit_low_rank"]


@dataclass(frozen=True, eq=False)
class LowRankGPPosterior:
    """The Gaussian posterior over the latent values of a Gaussian process of low rank.

    The prior is that of f = G w, w ~ N(0, I), whose covariance G G' stands for the kernel matrix.
    All that is kept is O(n r).

    Attributes
    ----------
    weights : FullPosterior
        Over w, (r,).
    factor : LowRankFactor
        G, its pivots, and what it leaves of the kernel.
    mean, variance : ndarray of shape (n,)
        Of the latent values f_i of the fit. O(n r^2), once.
    sites : Sites or None
        A number per observation, or what the schedule shares; None after ADF.
    y : ndarray of shape (n,)
        The labels.
    loss, scheme, beta, converged, history
        As in :class:`GPPosterior`.
    batch_size : int or None
        Rows per factor of Laplace propagation; None for scalar sites.
    """

    weights: FullPosterior = field(repr=False)
    factor: LowRankFactor = field(repr=False)

    @property
    def pivots(self) -> NDArray[np.intp]:
        """(r,), the inputs whose kernel with new ones prediction needs."""
        return self.factor.pivots

    @property
    def rank(self) -> int:
        return self.factor.rank

    @property
    def y(self) -> Array:
        assert self.weights.data is not None
        return self.weights.data.y

    @property
    def sites(self) -> Sites | None:
        return self.weights.sites

    @property
    def loss(self) -> Loss | None:
        return self.weights.loss

    @property
    def scheme(self) -> Scheme | None:
        assert self.weights.data is not None
        scheme: Scheme | None = self.weights.data.scheme
        return scheme

    @property
    def beta(self) -> float:
        return self.weights.beta

    @property
    def batch_size(self) -> int | None:
        return self.weights.batch_size

    @property
    def converged(self) -> bool:
        return self.weights.converged

    @property
    def history(self) -> list[SweepInfo]:
        return self.weights.history

    @property
    def n_sweeps(self) -> int:
        """Sweeps behind this posterior, those of warm starts included."""
        return self.weights.n_sweeps

    @property
    def n_refused(self) -> int:
        """Times that a site was not taken, since its cavity, fit or posterior was improper."""
        return self.weights.n_refused

    @property
    def log_evidence(self) -> float:
        """EP's log p(y) under the prior N(0, G G'); all constants kept."""
        return self.weights.log_evidence

    @cached_property
    def _latent(self) -> tuple[Array, Array]:
        return self.weights.predict_latent(_design(self.factor.G))

    @property
    def mean(self) -> Array:
        return self._latent[0]

    @property
    def variance(self) -> Array:
        return self._latent[1]

    @property
    def residual(self) -> float:
        """As :attr:`FullPosterior.residual` has it; NaN where the scheme is not known."""
        return float("nan") if self.scheme is None else self.weights.residual

    def loo_log_predictive(self) -> Array:
        """Leave-one-out log probability of each label, from the cavities: O(n r^2).

        Returns
        -------
        ndarray of shape (n,)
            log p(y_i | all other labels), as EP has it.

        Raises
        ------
        FloatingPointError
            If a cavity is improper.
        """
        return self.weights.loo_log_predictive()

    # -- prediction --

    def predict_latent(
        self, K_star: ArrayLike, k_star_diag: ArrayLike | None
    ) -> tuple[Array, Array]:
        """Mean and variance of the process at new inputs.

        The row of G at a new input is g = L^-1 k with L = G[pivots], and the process of low rank
        has variance g' S g there, S the posterior covariance of w. Far from the pivots that goes to
        0: certainty where nothing is known (the "subset of regressors" of Quiñonero-Candela &
        Rasmussen 2005, section 4). Given ``k_star_diag``, what the factor leaves of the prior
        variance, k_star_diag - g' g, is added (their "deterministic training conditional",
        section 5).

        Parameters
        ----------
        K_star : array_like of shape (m, r)
            Kernel between the new inputs and the pivots: of the kernel with all inputs of the fit
            the columns ``pivots``, in that order.
        k_star_diag : array_like of shape (m,), float, or None
            Kernel of each new input with itself. None: the variance of the process of low rank.

        Returns
        -------
        mean, variance : ndarray of shape (m,)
        """
        rows = _checks.array("K_star", K_star, shape=(None, self.rank))
        prior = None
        if k_star_diag is not None:
            prior = _checks.prior_variances("k_star_diag", k_star_diag, len(rows))
        mean, variance = np.empty((2, len(rows)))
        triangle = self.factor.G[self.pivots]
        for part in row_chunks(rows):
            some = self._rows_of_factor(triangle, rows[part])
            mean[part], variance[part] = self.weights.predict_latent(some)
            if prior is not None:
                # what rounding leaves of it is not below 0
                variance[part] += np.maximum(prior[part] - np.einsum("ij,ij->i", some, some), 0.0)
        return mean, variance

    @staticmethod
    def _rows_of_factor(triangle: Array, kernel: Array) -> Array:
        """G at new inputs, from their kernel with the pivots."""
        if len(triangle) == 0:
            return _design(kernel)
        return np.asarray(linalg.solve_triangular(triangle, kernel.T, lower=True).T)

    def predict_proba(self, K_star: ArrayLike, k_star_diag: ArrayLike | None) -> Array:
        """Probability of the label +1 at new inputs.

        Parameters
        ----------
        K_star, k_star_diag
            As in :meth:`predict_latent`.

        Returns
        -------
        ndarray of shape (m,)
            Closed form for probit and noisy step with beta = 1, else quadrature to about 1e-8.
        """
        loss = known_loss(self)
        return label_probability(loss, self.beta, *self.predict_latent(K_star, k_star_diag))

    def sample(self, size: int, rng: np.random.Generator | int) -> Array:
        """Draw the latent values of the fit from the posterior.

        Parameters
        ----------
        size : int
            Number of draws.
        rng : numpy.random.Generator or int
            A generator, or a seed for one.

        Returns
        -------
        ndarray of shape (size, n)
        """
        return self.weights.sample(size, rng) @ _design(self.factor.G).T

    # -- save --

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to an ``.npz`` file, n r numbers, which :func:`load` reads; nothing is pickled.

        A CustomLoss, CustomSite or LowLevelCallable cannot be written: give it to ``load`` again.
        """
        arrays, header = self.weights._contents()
        data = self.weights.data
        assert data is not None
        arrays |= {f"factor_{name}": value for name, value in vars(self.factor).items()}
        arrays["y"] = data.y
        if data.groups is not None:
            arrays["groups"] = data.groups
        header |= {
            "posterior": LOW_RANK_PROCESS,
            "exact": isinstance(data.scheme, Exact),
            "power": data.power,
        }
        write(path, arrays, header)

    def __getstate__(self) -> dict[str, Any]:
        # the weights leave their rows out
        return self.__dict__ | {"data": self.weights.data}

    def __setstate__(self, state: dict[str, Any]) -> None:
        data = state.pop("data")
        self.__dict__.update(state | {"weights": replace(state["weights"], data=data)})


def restore(
    arrays: dict[str, Array], header: dict[str, Any], loss: Loss | None
) -> LowRankGPPosterior:
    """Check and put together what ``save`` wrote."""
    weights = restore_linear(arrays, header | {"posterior": FullPosterior.kind}, loss)
    n, r = arrays["factor_G"].shape
    G = _checks.array("G", arrays["factor_G"], shape=(n, r))
    pivots = np.asarray(arrays["factor_pivots"], dtype=np.intp)
    if pivots.shape != (r,) or not ((pivots >= 0) & (pivots < n)).all():
        raise ValueError("pivots are not rows")
    residual = _checks.array("residual", arrays["factor_residual"], shape=(n,))
    traces = _checks.array("traces", arrays["factor_traces"], shape=(r + 1,))
    groups = arrays.get("groups")
    data = Data(
        _design(G),
        _checks.labels("y", arrays["y"], n),
        None,
        _checks.number("power", header["power"], above=0.0),
        None if groups is None else np.asarray(groups, dtype=np.intp),
        Exact() if header["exact"] else None,
    )
    if weights.shift.size != data.X.shape[1]:
        raise ValueError("the weights are not of the rank of the factor")
    return LowRankGPPosterior(
        replace(weights, data=data), LowRankFactor(G, pivots, residual, traces)
    )


# ---- the fit ----


def fit_low_rank(
    K: Any,
    y: ArrayLike,
    *,
    rank: int,
    rank_tol: float,
    batch_size: int | None,
    loss: Any,
    scheme: str | Scheme,
    schedule: Schedule | None,
    beta: float,
    start: Any,
    callback: Callable[[SweepInfo, Any], Any] | None,
    progress: bool,
) -> LowRankGPPosterior:
    """See :func:`epfast.fit_gp`. O(n r^2) for the factor and per sweep, n r numbers of memory."""
    schedule = EP() if schedule is None else schedule
    # what can be wrong is said before the factor takes its time
    if start is not None and not isinstance(start, LowRankGPPosterior):
        raise TypeError(
            f"start is {_checks.describe(start)}; allowed with rank: a LowRankGPPosterior or None"
        )
    if start is not None and isinstance(schedule, ADF):
        raise ValueError(
            "start is given; allowed with epfast.ADF: None, since its one pass counts every label"
        )
    if batch_size is not None:
        _checks.integer("batch_size", batch_size, least=1)
    found_loss = losses.resolve(loss)
    found_scheme = schemes.resolve(scheme, None, "exact", scalar=batch_size is None)
    found_scheme.check_loss(found_loss)
    _checks.number("beta", beta, above=0.0)
    _checks.number("rank_tol", rank_tol, least=0.0)
    _checks.integer("rank", rank, least=1)
    _checks.callback(callback)
    _checks.flag("progress", progress)
    kernel = kernel_columns("K", K)
    labels = _checks.labels("y", y, len(kernel.diagonal))
    factor = incomplete_cholesky(kernel, rank, tol=rank_tol)
    design = _design(factor.G)
    try:
        weights = fit_linear(
            design,
            labels,
            loss=found_loss,
            scheme=found_scheme,
            posterior="full",
            batch_size=batch_size,
            prior_variance=1.0,
            schedule=schedule,
            beta=beta,
            start=None if start is None else _weights_in(start, design.shape[1]),
            callback=callback,
            progress=progress,
        )
    except Interrupted as stopped:
        raise Interrupted(LowRankGPPosterior(stopped.posterior, factor)) from None
    assert isinstance(weights, FullPosterior)
    return LowRankGPPosterior(weights, factor)


def _design(G: Array) -> Array:
    """The rows of the linear model: a column of zeros where a kernel of zeros has rank 0."""
    return G if G.shape[1] else np.zeros((len(G), 1))


def _weights_in(start: LowRankGPPosterior, d: int) -> FullPosterior:
    """The start with its sites, for another factor; those that rows share are of the old one."""
    weights = start.weights
    if weights.sites is None or weights.sites.shift.ndim != 1:
        return weights
    # sums of sites are formed anew
    state = weights.state._replace(precision=np.eye(d), shift=np.zeros(d))
    return replace(weights, state=state)
