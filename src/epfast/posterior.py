"""What a fit returns: natural parameters, moments, evidence, prediction, save and load."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg, special

from epfast import _checks, losses
from epfast._checks import Array
from epfast.losses import CustomLoss, CustomSite, Loss, NoisyStep, Probit

__all__ = [
    "FactorizedPosterior",
    "FullPosterior",
    "LinearPosterior",
    "Sites",
    "State",
    "SweepInfo",
    "load",
]

FORMAT = 1
#: what a file calls a GPPosterior
PROCESS = "process"
#: and a LowRankGPPosterior
LOW_RANK_PROCESS = "low_rank_process"


class Sites(NamedTuple):
    """Gaussian sites g_i(theta) = exp(log_scale_i + shift_i.theta - precision_i.theta^2 / 2)."""

    #: (n_factors, d), or (n,) for scalar sites: precision of each factor's site; or (K, d, d):
    #: sites that the N_k factors of a group share, so that each counts N_k times in the posterior
    precision: Array
    #: of the same shape, or (K, d): precision times mean, about the origin
    shift: Array
    #: (n_factors,) or (K,), log of the site at the origin
    log_scale: Array


class State(NamedTuple):
    """All that a schedule carries from sweep to sweep: plain arrays, picklable."""

    #: (d,) or (d, d), precision of the posterior
    precision: Array
    #: (d,), precision times mean of the posterior
    shift: Array
    #: the stored sites, or None (ADF)
    sites: Sites | None
    #: the sum of the log scales of all sites, one shared by N_k factors N_k times
    log_scale: float
    #: sweeps done so far
    sweeps: int


class SweepInfo(NamedTuple):
    """The record of one sweep."""

    #: number of the sweep, from 1
    sweep: int
    #: largest change of a mean (in posterior sd) or precision (relative), over the damping
    change: float
    #: times that a coordinate of a site was not taken as fitted
    n_refused: int
    #: factors whose fit failed as a whole (counted in n_refused d times each)
    n_failed: int
    #: log evidence after the sweep
    log_evidence: float
    #: wall-clock time
    seconds: float
    #: regularised cost at the posterior mean, where recorded
    cost: float | None = None
    #: (updates,), the same after every factor, where recorded
    factor_cost: Array | None = None
    #: largest error of the covariance and mean that sweeps had left, in standard deviations, where
    #: they were computed anew from the sites (scalar sites in sequential order)
    drift: float | None = None


class Data(NamedTuple):
    """The rows that a posterior was fitted to; by reference, so they cost no memory."""

    #: (n, d), an array or a CSR matrix
    X: Any
    #: (n,), -1 and +1
    y: Array
    #: (n,) or None for ones
    weights: Array | None
    #: the power of power EP
    power: float
    #: (n,) or None, the group of each row where rows share sites
    groups: NDArray[np.intp] | None = None
    #: the scheme of minibatch factors
    scheme: Any = None


@dataclass(frozen=True, eq=False)
class LinearPosterior:
    """A Gaussian posterior over the weights of a linear model; what both kinds share.

    Attributes
    ----------
    precision : ndarray of shape (d,) or (d, d)
        Of the posterior; shift (d,) is precision times mean.
    sites : Sites or None
        The stored sites; None after ADF.
    prior_precision : ndarray of shape (d,) or (d, d)
        The prior is N(0, 1 / prior_precision).
    loss : Loss or None
        None in a posterior that was loaded and whose loss cannot be saved.
    beta : float
        Inverse temperature of the factors exp(-beta loss).
    batch_size : int or None
        Rows per factor; None for scalar sites.
    converged : bool
        Whether the last sweep changed the posterior by less than the tolerance.
    history : list of SweepInfo
        One record per sweep of this fit.
    n_refused : int
        Times that a coordinate of a site was not taken as fitted: the site rule acted, its cavity
        was improper, or its fit was not finite.
    """

    state: State = field(repr=False)
    prior_precision: Array = field(repr=False)
    loss: Loss | None
    beta: float
    batch_size: int | None
    converged: bool
    history: list[SweepInfo] = field(repr=False)

    kind: ClassVar[str]

    # -- natural parameters and moments --

    @property
    def precision(self) -> Array:
        return self.state.precision

    @property
    def shift(self) -> Array:
        return self.state.shift

    @property
    def sites(self) -> Sites | None:
        return self.state.sites

    @property
    def mean(self) -> Array:
        """(d,), posterior mean of the weights."""
        raise NotImplementedError

    @property
    def variance(self) -> Array:
        """(d,), posterior variance of the weights."""
        raise NotImplementedError

    @property
    def covariance(self) -> Array:
        """(d, d), posterior covariance of the weights."""
        raise NotImplementedError

    def _latent_variance(self, rows: Array) -> Array:
        raise NotImplementedError

    def _color(self, noise: Array) -> Array:
        """Standard normal draws, (n, d), to draws with the posterior covariance."""
        raise NotImplementedError

    @property
    def n_sweeps(self) -> int:
        """Sweeps behind this posterior, those of warm starts included."""
        return self.state.sweeps

    @property
    def n_refused(self) -> int:
        return sum(info.n_refused for info in self.history)

    @property
    def log_evidence(self) -> float:
        """log of the integral of prior times sites, EP's log p(y); all constants kept."""
        return log_evidence(self.state, self.prior_precision)

    # -- prediction --

    def predict_latent(self, X: ArrayLike) -> tuple[Array, Array]:
        """Mean and variance of X theta.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n, d)

        Returns
        -------
        mean, variance : ndarray of shape (n,)
        """
        rows = _checks.rows("X", X, self.shift.size)
        is_sparse = hasattr(rows, "indptr")
        mean, variance = np.empty(rows.shape[0]), np.empty(rows.shape[0])
        with np.errstate(over="ignore", invalid="ignore"):
            for part in row_chunks(rows):
                some = rows[part].toarray() if is_sparse else rows[part]
                block = np.asarray(some, dtype=np.float64)
                mean[part] = block @ self.mean
                variance[part] = self._latent_variance(block)
        if not (np.isfinite(mean).all() and np.isfinite(variance).all()):
            raise ValueError("X holds NaN or infinity, or overflows; allowed: finite numbers")
        return mean, variance

    def predict_proba(self, X: ArrayLike) -> Array:
        """Probability of the label +1.

        E[t(h)] / (E[t(h)] + E[t(-h)]) with t = exp(-beta loss) and h = x.theta under the posterior.
        For logistic, probit and noisy step at beta = 1 this is the predictive probability; for the
        other losses, which are not log likelihoods, the two classes are normalised to sum to 1.
        With a CustomSite the two expectations are its own.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n, d)

        Returns
        -------
        ndarray of shape (n,)
            Closed form for probit with beta = 1, else quadrature to about 1e-8.
        """
        if self.loss is None:
            raise ValueError(
                "the loss of this posterior was not saved with it; use predict_latent, or load "
                "with the loss given"
            )
        return label_probability(self.loss, self.beta, *self.predict_latent(X))

    def sample(self, size: int, rng: np.random.Generator | int) -> Array:
        """Draw weights from the posterior.

        Parameters
        ----------
        size : int
            Number of draws.
        rng : numpy.random.Generator or int
            A generator, or a seed for one.

        Returns
        -------
        ndarray of shape (size, d)
        """
        size = _checks.integer("size", size, least=0)
        draws = _checks.generator("rng", rng)
        return self.mean + self._color(draws.standard_normal((size, self.shift.size)))

    # -- save --

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to an ``.npz`` file, which :func:`load` reads; nothing is pickled.

        A CustomLoss, CustomSite or LowLevelCallable cannot be written: give it to ``load`` again.
        The records of cost after every factor are not written.
        """
        write(path, *self._contents())

    def _contents(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a file holds: arrays, and the header."""
        arrays: dict[str, Any] = {
            "precision": self.precision,
            "shift": self.shift,
            "prior_precision": self.prior_precision,
        }
        if self.sites is not None:
            arrays |= {f"sites_{name}": value for name, value in self.sites._asdict().items()}
        header = {
            "format": FORMAT,
            "posterior": self.kind,
            "loss": None if self.loss is None else describe_loss(self.loss),
            "beta": self.beta,
            "batch_size": self.batch_size,
            "converged": self.converged,
            "log_scale": self.state.log_scale,
            "sweeps": self.state.sweeps,
            "history": [info._replace(factor_cost=None)._asdict() for info in self.history],
        }
        return arrays, header


@dataclass(frozen=True, eq=False)
class FactorizedPosterior(LinearPosterior):
    """A Gaussian posterior with diagonal covariance over the weights of a linear model.

    A factorised posterior keeps the means well but understates the standard deviations where
    columns of X are correlated, by up to 2 or 3 times. ``precision`` and ``prior_precision`` are
    (d,), ``sites`` holds (n_factors, d) arrays; see :class:`LinearPosterior`.
    """

    kind: ClassVar[str] = "factorized"

    @property
    def mean(self) -> Array:
        return self.shift / self.precision

    @property
    def variance(self) -> Array:
        return 1.0 / self.precision

    @property
    def covariance(self) -> Array:
        return np.diag(self.variance)

    def _latent_variance(self, rows: Array) -> Array:
        return np.asarray((rows * rows) @ self.variance)

    def _color(self, noise: Array) -> Array:
        return np.asarray(noise * np.sqrt(self.variance))


@dataclass(frozen=True, eq=False)
class FullPosterior(LinearPosterior):
    """A Gaussian posterior with full covariance over the weights of a linear model.

    ``precision`` and ``prior_precision`` are (d, d), ``sites`` holds a number per row of X, or a
    (d, d) matrix per group of rows that share a site; see :class:`LinearPosterior`. ``data`` refers
    to the rows that were fitted; it is left out where a posterior is pickled or saved.
    """

    data: Data | None = field(default=None, repr=False)

    kind: ClassVar[str] = "full"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"data": None}

    @cached_property
    def _factor(self) -> Array:
        """Lower Cholesky factor of the precision. O(d^3), once."""
        return np.asarray(linalg.cholesky(self.precision, lower=True))

    @cached_property
    def mean(self) -> Array:
        return np.asarray(linalg.cho_solve((self._factor, True), self.shift))

    @property
    def variance(self) -> Array:
        return np.diag(self.covariance).copy()

    @cached_property
    def covariance(self) -> Array:
        return np.asarray(linalg.cho_solve((self._factor, True), np.eye(self.shift.size)))

    @cached_property
    def residual(self) -> float:
        """How far this is from a fixed point of EP; NaN where no sites are stored. O(n d^2), once.

        For scalar sites the largest mismatch, over the rows, of the tilted mean (in standard
        deviations) and variance (relative) of x.theta with those of the posterior. For shared sites
        and for minibatch factors the largest change of a posterior mean (in standard deviations) or
        variance (relative) that one more undamped sweep, all factors at once, would make.
        """
        return float(self._engine.residual(self))

    def loo_log_predictive(self, X: Any = None, y: ArrayLike | None = None) -> Array:
        """Leave-one-out log probability of each label, from the cavities. O(n d^2).

        log p(y_i | x_i, all other rows), as EP has it: the predictive probability of label y_i
        (:meth:`predict_proba`) under the posterior without the site of row i (for shared sites,
        without one copy of its group's; for a row of weight above 1, without one of its copies).

        Parameters
        ----------
        X, y : optional
            The rows that were fitted; needed where the posterior was loaded or unpickled.

        Returns
        -------
        ndarray of shape (n,)

        Raises
        ------
        FloatingPointError
            If a cavity is improper.
        """
        return np.asarray(self._engine.leave_one_out(self, X, y))

    def partial_fit(
        self,
        X: Any,
        y: ArrayLike,
        *,
        weights: ArrayLike | None = None,
        schedule: Any = None,
    ) -> FullPosterior:
        """Take in new rows: EP on their sites alone, the others as they are.

        Parameters
        ----------
        X, y, weights
            New rows, as in :func:`epfast.fit_linear`.
        schedule : EP or ADF, optional
            ``EP()`` by default; ADF for a posterior without sites (of ADF).

        Returns
        -------
        FullPosterior
            Its sites are the old ones, then the new ones. To sweep over all of them again give it
            as ``start`` to :func:`epfast.fit_linear` with all the rows.
        """
        result: FullPosterior = self._engine.add_rows(self, X, y, weights, schedule)
        return result

    def remove(self, rows: ArrayLike, X: Any = None, y: ArrayLike | None = None) -> FullPosterior:
        """Take the sites of some rows out of the posterior, exactly; the others stay as they are.

        Parameters
        ----------
        rows : int or array_like of int
            Numbers of rows, from 0.
        X, y : optional
            As in :meth:`loo_log_predictive`.

        Returns
        -------
        FullPosterior
            With the sites of the rows that are left, in their order.

        Raises
        ------
        ValueError
            If the posterior without these sites is improper.
        """
        result: FullPosterior = self._engine.remove_rows(self, rows, X, y)
        return result

    @property
    def _engine(self) -> Any:
        from epfast import sites  # which needs this module

        return sites

    def _latent_variance(self, rows: Array) -> Array:
        half = linalg.solve_triangular(self._factor, rows.T, lower=True, check_finite=False)
        return np.asarray((half * half).sum(axis=0))

    def _color(self, noise: Array) -> Array:
        return np.asarray(linalg.solve_triangular(self._factor, noise.T, lower=True, trans="T").T)


def write(path: str | os.PathLike[str], arrays: dict[str, Any], header: dict[str, Any]) -> None:
    """Write the file that :func:`load` reads."""
    with open(_checks.path("path", path), "wb") as file:
        np.savez(file, header=np.array(json.dumps(header)), **arrays)


KINDS = {kind.kind: kind for kind in (FactorizedPosterior, FullPosterior)}


def load(path: str | os.PathLike[str], loss: Any = None) -> Any:
    """Read a posterior that was written by ``save``.

    Parameters
    ----------
    path : path-like
        The ``.npz`` file. Nothing in it is unpickled or run.
    loss : optional
        The loss, where it could not be saved (or to replace the saved one); as in ``fit_linear``.

    Returns
    -------
    FactorizedPosterior, FullPosterior, GPPosterior or LowRankGPPosterior

    Raises
    ------
    ValueError
        If the file is not such a file.
    """
    given = None if loss is None else losses.resolve(loss)
    name = _checks.path("path", path)
    try:
        with open(name, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header = json.loads(str(arrays.pop("header")))
        saved = header["loss"]
        found = given if given is not None or saved is None else restore_loss(saved)
        if header["format"] != FORMAT:
            raise ValueError(f"format {header['format']}")
        if header["posterior"] == PROCESS:
            from epfast.gp import restore  # which needs this module

            return restore(arrays, header, found)
        if header["posterior"] == LOW_RANK_PROCESS:
            from epfast import low_rank_gp  # which needs this module

            return low_rank_gp.restore(arrays, header, found)
        return restore_linear(arrays, header, found)
    except (AttributeError, KeyError, TypeError, ValueError, EOFError, BadZipFile) as error:
        raise ValueError(
            f"path is {name!r}, which is not a posterior saved by epfast ({error}); allowed: a "
            "file written by save"
        ) from error


def restore_linear(arrays: dict[str, Array], header: dict[str, Any], loss: Loss | None) -> Any:
    """Check and put together what ``save`` of a linear model wrote."""
    if header["posterior"] not in KINDS:
        raise ValueError(f"posterior {header['posterior']}")
    beta = _checks.number("beta", header["beta"], above=0.0)
    batch_size, full = header["batch_size"], header["posterior"] == "full"
    if batch_size is not None or not full:
        _checks.integer("batch_size", batch_size, least=1)
    log_scale = _checks.number("log_scale", header["log_scale"])
    d = arrays["shift"].size
    shape = (d, d) if full else (d,)
    shift = _checks.array("shift", arrays["shift"], shape=(d,))
    precision, prior_precision = (
        _checks.array(name, arrays[name], shape=shape, positive=not full)
        for name in ("precision", "prior_precision")
    )
    sites = None
    if "sites_precision" in arrays:
        count = len(arrays["sites_precision"])
        if full and arrays["sites_precision"].ndim == 1:
            shapes: tuple[tuple[int, ...], ...] = (count,), (count,)
        else:
            shapes = ((count, d, d) if full else (count, d)), (count, d)
        sites = Sites(
            _checks.array("sites", arrays["sites_precision"], shape=shapes[0]),
            _checks.array("sites", arrays["sites_shift"], shape=shapes[1]),
            _checks.array("sites", arrays["sites_log_scale"], shape=(count,)),
        )
    return KINDS[header["posterior"]](
        state=State(
            precision,
            shift,
            sites,
            log_scale,
            _checks.integer("sweeps", header["sweeps"], least=0),
        ),
        prior_precision=prior_precision,
        loss=loss,
        beta=beta,
        batch_size=batch_size,
        converged=bool(header["converged"]),
        history=[SweepInfo(**record) for record in header["history"]],
    )


def describe_loss(loss: Loss) -> dict[str, Any] | None:
    if isinstance(loss, CustomLoss | CustomSite):
        return None
    names = {cls: name for name, cls in losses.NAMED.items()}
    described: dict[str, Any] = {"name": names.get(type(loss), loss.name)}
    if isinstance(loss, losses.Quasi01 | losses.NoisyStep):
        described["epsilon"] = loss.epsilon
    elif type(loss) is losses.PiecewiseLinear:
        described |= {"knots": loss.knots, "slopes": loss.slopes}
        described |= {"value": loss.value, "jumps": loss.jumps}
    elif type(loss) is Loss:
        described["parameters"] = loss.parameters
    return described


def restore_loss(described: dict[str, Any]) -> Loss:
    arguments: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in described.items()
    }
    name = arguments.pop("name")
    if name in losses.NAMED:
        return losses.NAMED[name](**arguments)
    if name == "piecewise_linear" and "knots" in arguments:
        return losses.PiecewiseLinear(**arguments)
    return Loss(name, **arguments)


def log_evidence(state: State, prior_precision: Array) -> float:
    """log of the integral of N(theta; 0, 1 / prior) times the product of the sites."""
    if state.precision.ndim == 1:
        log_ratio = np.log(prior_precision / state.precision).sum()
        quadratic = (state.shift * (state.shift / state.precision)).sum()
    else:
        factor = linalg.cholesky(state.precision, lower=True)
        prior_factor = linalg.cholesky(prior_precision, lower=True)
        log_ratio = 2.0 * (np.log(np.diag(prior_factor)) - np.log(np.diag(factor))).sum()
        half = linalg.solve_triangular(factor, state.shift, lower=True)
        quadratic = half @ half
    return float(state.log_scale + 0.5 * log_ratio + 0.5 * quadratic)


def row_chunks(rows: Any, entries: int = 1 << 20) -> list[slice]:
    """Slices of rows that hold about that many entries, so that work on them stays small."""
    n, d = rows.shape
    step = max(1, entries // max(1, d))
    return [slice(i, min(i + step, n)) for i in range(0, n, step)]


def label_probability(loss: Loss, beta: float, mean: Array, variance: Array) -> Array:
    """Probability of the label +1 of h ~ N(mean, variance), see :func:`class_probability`."""
    if isinstance(loss, Probit) and beta == 1.0:
        return np.asarray(special.ndtr(mean / np.sqrt(1.0 + variance)))
    if isinstance(loss, NoisyStep) and beta == 1.0:
        with np.errstate(divide="ignore", invalid="ignore"):
            above = special.ndtr(np.where(mean == 0.0, 0.0, mean / np.sqrt(variance)))
        return np.asarray(loss.epsilon + (1.0 - 2.0 * loss.epsilon) * above)
    result = np.empty(len(mean))
    numbers_per_row = 12 * (12 + 2 * len(losses.break_points(loss, beta)))
    for part in row_chunks(mean[:, None], max(1, (1 << 21) // numbers_per_row)):
        result[part] = class_probability(loss, beta, mean[part], np.sqrt(variance[part]))
    return result


def class_probability(loss: Loss, beta: float, mean: Array, sd: Array) -> Array:
    """E[t(h)] / (E[t(h)] + E[t(-h)]), h ~ N(mean, sd^2), by panels of Gauss-Legendre quadrature."""
    if isinstance(loss, CustomSite):
        return _finite_probability(loss.class_probability(mean, sd * sd))
    nodes, node_weights = np.polynomial.legendre.leggauss(12)
    points = losses.break_points(loss, beta)
    inner = np.concatenate([-points, [0.0], points])
    reach = 9.0
    with np.errstate(all="ignore"):
        breaks = np.nan_to_num((inner[None, :] - mean[:, None]) / sd[:, None])
        regular = np.broadcast_to(np.linspace(-reach, reach, 13), (len(mean), 13))
        edges = np.sort(np.concatenate([regular, np.clip(breaks, -reach, reach)], 1), 1)
        half = 0.5 * np.diff(edges, axis=1)
        z = (0.5 * (edges[:, 1:] + edges[:, :-1]))[:, :, None] + half[:, :, None] * nodes
        h = mean[:, None, None] + sd[:, None, None] * z
        log_weight = np.log(half[:, :, None] * node_weights) - 0.5 * z * z
        up = log_weight - beta * loss.evaluate(h, derivatives=False)[0]
        down = log_weight - beta * loss.evaluate(-h, derivatives=False)[0]
        top = np.maximum(up.max(axis=(1, 2)), down.max(axis=(1, 2)))[:, None, None]
        mass_up = np.exp(up - top).sum(axis=(1, 2))
        mass_down = np.exp(down - top).sum(axis=(1, 2))
        result = np.asarray(mass_up / (mass_up + mass_down))
    return _finite_probability(result)


def _finite_probability(p: Array) -> Array:
    if not np.isfinite(p).all():
        raise FloatingPointError("the loss leaves both labels without probability at some row of X")
    return p
