"""Gaussian process classification: a latent value per observation, and their kernel matrix.

The site of observation i acts on f_i alone, f ~ N(0, K). EP by the exact blocked sweep
(``_core/sweep.pyx``) in sequential or shuffled order, or in parallel order by the Cholesky factor
of B = I + S K S (``_core/kernel.pyx``); the loop over sweeps is that of ``loop.py``.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from epfast import _checks, losses, schemes
from epfast._checks import Array
from epfast._core import relaxed
from epfast._core.kernel import Kernel
from epfast._core.rows import Units
from epfast._core.sweep import Blocks, Parallel
from epfast.double_loop import Descent
from epfast.loop import ConvergenceWarning, Engine, change, run, warn_of_refusals
from epfast.losses import Loss, NoisyStep
from epfast.low_rank import KernelColumns
from epfast.low_rank_gp import LowRankGPPosterior, fit_low_rank
from epfast.posterior import (
    FORMAT,
    PROCESS,
    Sites,
    SweepInfo,
    describe_loss,
    label_probability,
    write,
)
from epfast.relaxed import RelaxedEnergies, relaxed_energies
from epfast.scalar import PARALLEL_ROWS, SHRUNK, moments, whole
from epfast.schedules import EP, Schedule, as_array
from epfast.schemes import RELAXATIONS, Exact, Relaxation, Scheme
from epfast.sites import known_loss, log_predictive

__all__ = ["GPPosterior", "GPState", "Relaxed", "fit_gp"]

#: eigenvalues of K down to minus this times its largest diagonal entry pass for rounding
ROUNDING = 1e-10
#: numbers that a part of a sweep may touch, so that Ctrl-C and progress act within about a second
CHUNK = 1 << 34
#: steps of the double loop at most, and the mismatch of the moments with which it ends
DESCENTS, MATCHED = 200, 1e-8


#: what a file holds beside the sites and matrices, (n,) each
VECTORS = ("alpha", "mean", "variance", "y")


class Relaxed(NamedTuple):
    """The relaxation factors of relaxed EP: natural parameters of r_i when site i was fitted."""

    #: (n,), b_i of the paper; 0 where the factor was not relaxed
    precision: Array
    shift: Array


class GPState(NamedTuple):
    """All that a schedule carries from sweep to sweep: plain arrays, picklable."""

    #: two numbers and a scale per observation
    sites: Sites
    #: sweeps done so far
    sweeps: int
    #: None but in relaxed EP
    relaxed: Relaxed | None = None


class _Moments(NamedTuple):
    """The posterior N(mean, .) of the latent values, given sites."""

    #: (n,), K^-1 mean
    alpha: Array
    mean: Array
    variance: Array
    #: log |I + K diag(tau)|
    log_determinant: float


# ---- what comes back ----


@dataclass(frozen=True, eq=False)
class GPPosterior:
    """The Gaussian posterior over the latent values of a Gaussian process.

    Attributes
    ----------
    mean, variance : ndarray of shape (n,)
        Of the latent values f_i.
    alpha : ndarray of shape (n,)
        K^-1 mean: the mean at new inputs is K_star alpha.
    sites : Sites
        precision, shift and log_scale, (n,) each.
    y : ndarray of shape (n,)
        The labels.
    loss : Loss
        None in a posterior that was loaded and whose loss cannot be saved.
    scheme : Scheme or None
        How sites were fitted; None in a posterior that was loaded, unless it was "exact".
    beta, power : float
        Inverse temperature; the power of power EP.
    relaxation : Relaxation or None
        That of relaxed EP; ``relaxed`` has the relaxation factors.
    converged : bool
        Whether the last sweep changed the posterior by less than the tolerance.
    history : list of SweepInfo
        One record per sweep of this fit.
    """

    state: GPState = field(repr=False)
    alpha: Array = field(repr=False)
    mean: Array = field(repr=False)
    variance: Array = field(repr=False)
    log_determinant: float = field(repr=False)
    y: Array = field(repr=False)
    loss: Loss | None
    scheme: Scheme | None
    beta: float
    power: float
    converged: bool
    history: list[SweepInfo] = field(repr=False)
    #: (n, n): below the diagonal K, the rest R = (K + 1 / precision)^-1
    _packed: Array = field(repr=False)
    #: (n,), of K
    _diagonal: Array = field(repr=False)
    relaxation: Relaxation | None = None

    @property
    def relaxed(self) -> Relaxed | None:
        """Precision b_i and shift of each relaxation factor; None but in relaxed EP."""
        return self.state.relaxed

    @property
    def sites(self) -> Sites:
        return self.state.sites

    @property
    def n_sweeps(self) -> int:
        """Sweeps behind this posterior, those of warm starts included."""
        return self.state.sweeps

    @property
    def n_refused(self) -> int:
        """Times that a site was not taken, since its cavity, fit or posterior was improper."""
        return sum(info.n_refused for info in self.history)

    @property
    def log_evidence(self) -> float:
        """EP's log p(y), log of the integral of N(f; 0, K) times the sites; all constants kept.

        In relaxed EP site i is scaled so that r_i, the cavity and the site have the integral of
        r_i, the cavity and t_i; the result is no bound and no stationary value.
        """
        return _log_evidence(self.sites, self.mean, self.log_determinant)

    @cached_property
    def covariance(self) -> Array:
        """(n, n), of the latent values. O(n^2), once; more where sites are flat."""
        kernel = Kernel(self._packed.copy(), self._diagonal)
        kernel.covariance(self.sites.precision)
        return whole(kernel.array)

    @property
    def marginal_precision(self) -> Array:
        """(n, n), R = (K + 1 / precision)^-1, of the pseudo-observations shift / precision.

        With it the covariance of the process between any inputs a and b is
        K_ab - K_af R K_fb, and d log Z / dK = (alpha alpha' - R) / 2. O(n^2) each time.
        """
        return whole(self._packed)

    @cached_property
    def residual(self) -> float:
        """How far this is from a fixed point of EP.

        The largest mismatch over the sites of the tilted mean (in standard deviations) and variance
        (relative) of f_i with those of the posterior; in relaxed EP both times r_i. Infinite where
        a cavity is improper, NaN where the scheme is not known or the objective is "printed",
        whose fixed points do not match moments.
        """
        printed = self.relaxation is not None and self.relaxation.objective == "printed"
        if self.scheme is None or printed:
            return float("nan")
        mean, variance = self.mean, self.variance
        if self.relaxed is not None:
            # r_i q without its site is r_i times the cavity
            rest = 1.0 + self.relaxed.precision * variance
            if not (rest > 0.0).all():
                return float("inf")
            mean, variance = (mean + variance * self.relaxed.shift) / rest, variance / rest
        triple = moments(known_loss(self), self.beta, self.scheme)
        triple.begin_sweep(self.n_sweeps)
        core = Parallel(triple, 1, min(len(self.y), PARALLEL_ROWS), self.power, 0.0)
        core.fit(mean, variance, self.y, *(part.copy() for part in self.sites))
        return float("inf") if core.n_refused else core.residual

    # -- evidence --

    def log_evidence_gradient(self, dK: ArrayLike | Iterable[ArrayLike]) -> Array:
        """Derivative of the log evidence by parameters of the kernel.

        At a fixed point the sites do not contribute (Rasmussen & Williams 2006, section 5.5.2):
        d log Z = alpha' dK alpha / 2 - tr(R dK) / 2 with R = (K + 1 / precision)^-1.

        Parameters
        ----------
        dK : array_like of shape (p, n, n) or (n, n), or iterable of such matrices
            dK / d theta_k, symmetric. A generator keeps one of them in memory at a time.

        Returns
        -------
        ndarray of shape (p,)
            For a single matrix (1,).

        Raises
        ------
        ValueError
            After relaxed EP, whose evidence is not stationary in the sites.

        Warns
        -----
        ConvergenceWarning
            If the posterior is not at a fixed point (``residual`` above 1e-3).
        """
        if self.relaxation is not None:
            raise ValueError(
                "the posterior is that of relaxed EP, whose log evidence is not stationary in the "
                "sites; allowed: a fit without relaxation"
            )
        if not self.residual <= 1e-3:
            warnings.warn(
                f"the gradient is taken at a residual of {self.residual:.2g}, where it is not that "
                "of the log evidence; fit with more sweeps or a smaller tolerance",
                ConvergenceWarning,
                stacklevel=2,
            )
        if isinstance(dK, np.ndarray) or not isinstance(dK, Iterable):
            given = _checks.real_array("dK", dK)
            matrices: Iterable[Any] = given[None] if given.ndim == 2 else given
        else:
            matrices = dK
        return np.array([self._contract(matrix) for matrix in matrices])

    def _contract(self, matrix: Any) -> float:
        n = len(self.y)
        given = _checks.array("dK", matrix, shape=(n, n))
        total = 0.0
        for part in _checks.slices(n):
            weight = np.multiply.outer(self.alpha[part], self.alpha[part.start :])
            weight -= self._packed[part, part.start :]
            size = len(weight)
            # twice what is above the diagonal
            weight[:, size:] *= 2.0
            weight[:, :size] = np.triu(2.0 * weight[:, :size], 1) + np.diag(np.diag(weight))
            total += float(np.vdot(weight, given[part, part.start :]))
        return 0.5 * total

    def log_evidence_gradient_epsilon(self) -> float:
        """Derivative of the log evidence by the epsilon of a noisy step.

        Returns
        -------
        float
            sum over the sites of d log Z_i / d epsilon with the cavities as they are.
        """
        loss = known_loss(self)
        if not isinstance(loss, NoisyStep):
            raise ValueError(f"loss is {loss!r}; allowed: a NoisyStep")
        mean, variance = self._cavities(self.power)
        labels, exponent = self.y, self.beta * self.power
        above, below = (
            np.exp(log_predictive(NoisyStep(1e-300), 1.0, sign * labels, mean, variance))
            for sign in (1.0, -1.0)
        )
        epsilon = loss.epsilon
        total = (1.0 - epsilon) ** exponent * above + epsilon**exponent * below
        slope = epsilon ** (exponent - 1.0) * below - (1.0 - epsilon) ** (exponent - 1.0) * above
        return float((self.beta * slope / total).sum())

    def _cavities(self, share: float) -> tuple[Array, Array]:
        """Mean and variance of f_i without a share of its site."""
        rest = 1.0 - share * self.sites.precision * self.variance
        if not (rest > 0.0).all():
            raise FloatingPointError(
                f"{int((rest <= 0.0).sum())} of {len(rest)} cavities are improper"
            )
        mean = (self.mean - share * self.sites.shift * self.variance) / rest
        return mean, self.variance / rest

    def relaxed_energies(self) -> RelaxedEnergies:
        """Primal and dual energy of relaxed EP, equations 25 and 32 of the paper; O(n^2).

        Where these leave open which relaxation factor goes with q, the mean over all of them is
        taken. Both are minus the log evidence where no factor is relaxed. They differ where
        factors are relaxed differently: the constraint of equation 26 does not make them equal.

        Returns
        -------
        RelaxedEnergies
            primal, dual.
        """
        return relaxed_energies(self)

    def loo_log_predictive(self) -> Array:
        """Leave-one-out log probability of each label, from the cavities: O(n).

        Returns
        -------
        ndarray of shape (n,)
            log p(y_i | all other labels), as EP has it.

        Raises
        ------
        FloatingPointError
            If a cavity is improper.
        """
        return log_predictive(known_loss(self), self.beta, self.y, *self._cavities(1.0))

    # -- prediction --

    def predict_latent(self, K_star: ArrayLike, k_star_diag: ArrayLike) -> tuple[Array, Array]:
        """Mean and variance of the process at new inputs.

        Parameters
        ----------
        K_star : array_like of shape (m, n)
            Kernel between the new inputs and those of the fit.
        k_star_diag : array_like of shape (m,) or float
            Kernel of each new input with itself.

        Returns
        -------
        mean, variance : ndarray of shape (m,)
            K_star alpha, and k_star_diag - diag(K_star R K_star').
        """
        rows = _checks.array("K_star", K_star, shape=(None, len(self.y)))
        prior = _checks.prior_variances("k_star_diag", k_star_diag, len(rows))
        variance = np.empty(len(rows))
        for part in _checks.slices(len(rows)):
            block = rows[part]
            product = linalg.blas.dsymm(1.0, self._packed.T, block.T, lower=1)
            variance[part] = np.einsum("ij,ji->i", block, product)
        # what rounding leaves of it is not below 0
        return rows @ self.alpha, np.maximum(prior - variance, 0.0)

    def predict_proba(self, K_star: ArrayLike, k_star_diag: ArrayLike) -> Array:
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
        size = _checks.integer("size", size, least=0)
        draws = _checks.generator("rng", rng)
        values, vectors = linalg.eigh(self.covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        return np.asarray(self.mean + draws.standard_normal((size, len(root))) @ root.T)

    # -- save --

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to an ``.npz`` file, n^2 numbers, which :func:`load` reads; nothing is pickled.

        A CustomLoss, CustomSite or LowLevelCallable cannot be written: give it to ``load`` again.
        """
        arrays = {f"sites_{name}": value for name, value in self.sites._asdict().items()}
        arrays |= {name: getattr(self, name) for name in VECTORS}
        if self.relaxed is not None:
            arrays |= {f"relaxed_{name}": value for name, value in self.relaxed._asdict().items()}
        header = {
            "format": FORMAT,
            "posterior": PROCESS,
            "loss": None if self.loss is None else describe_loss(self.loss),
            "exact": isinstance(self.scheme, Exact),
            "beta": self.beta,
            "power": self.power,
            "relaxation": None if self.relaxation is None else asdict(self.relaxation),
            "log_determinant": self.log_determinant,
            "converged": self.converged,
            "sweeps": self.n_sweeps,
            "history": [info._asdict() for info in self.history],
        }
        write(path, arrays | {"packed": self._packed, "diagonal": self._diagonal}, header)


def restore(arrays: dict[str, Array], header: dict[str, Any], loss: Loss | None) -> GPPosterior:
    """Check and put together what ``save`` wrote."""
    n = arrays["y"].size
    parts = {name: _checks.array(name, arrays[name], shape=(n,)) for name in VECTORS}
    sites = Sites(
        *(_checks.array("sites", arrays[f"sites_{k}"], shape=(n,)) for k in Sites._fields)
    )
    settings = header["relaxation"]
    found = settings and Relaxed(
        *(_checks.array("relaxed", arrays[f"relaxed_{k}"], shape=(n,)) for k in Relaxed._fields)
    )
    packed = np.ascontiguousarray(_checks.array("packed", arrays["packed"], shape=(n, n)))
    return GPPosterior(
        state=GPState(sites, _checks.integer("sweeps", header["sweeps"], least=0), found),
        log_determinant=_checks.number("log_determinant", header["log_determinant"]),
        loss=loss,
        scheme=Exact() if header["exact"] else None,
        beta=_checks.number("beta", header["beta"], above=0.0),
        power=_checks.number("power", header["power"], above=0.0),
        converged=bool(header["converged"]),
        history=[SweepInfo(**record) for record in header["history"]],
        _packed=packed,
        _diagonal=_checks.array("diagonal", arrays["diagonal"], shape=(n,)),
        relaxation=settings and Relaxation(**settings),
        **parts,
    )


def _log_evidence(sites: Sites, mean: Array, log_determinant: float) -> float:
    return float(sites.log_scale.sum() + 0.5 * (sites.shift @ mean) - 0.5 * log_determinant)


# ---- the fit ----


class _Problem(NamedTuple):
    """What stays fixed during a fit."""

    kernel: Kernel
    y: Array
    loss: Loss
    scheme: Scheme
    beta: float
    schedule: EP
    relaxation: Relaxation | None


class _ProcessSites(Engine[GPState, GPPosterior]):
    """EP on the values of a process: the array of the kernel holds what the order needs."""

    remedy = "scale the kernel"

    def __init__(self, problem: _Problem) -> None:
        n, schedule = len(problem.y), problem.schedule
        self.problem, self.kernel, self.order = problem, problem.kernel, schedule.order
        if self.order == "auto":
            self.order = "sequential"
        self.triple = moments(problem.loss, problem.beta, problem.scheme)
        block = schedule.block or max(8, min(64, n // 3))
        power, damping = schedule.power, schedule.damping
        self.relaxation = self._relaxation()
        self.core = Blocks(self.triple, n, min(block, n), power, damping, False, self.relaxation)
        self.parallel = Parallel(self.triple, 1, min(n, PARALLEL_ROWS), power, damping)
        self.since_refresh = 0
        self.now: _Moments

    def _relaxation(self) -> relaxed.Relaxation | None:
        settings = self.problem.relaxation
        if settings is None:
            return None
        return relaxed.Relaxation(
            self.triple, settings.weight, RELAXATIONS.index(settings.objective)
        )

    def sites(self) -> int:
        return len(self.problem.y)

    def moments(self) -> tuple[Array, Array]:
        return self.now.mean, self.now.variance

    def log_evidence(self, state: GPState) -> float:
        return _log_evidence(state.sites, self.now.mean, self.now.log_determinant)

    def start(self, start: GPPosterior | None) -> GPState:
        n = self.sites()
        factors = None
        if self.problem.relaxation is not None:
            factors = start.relaxed if start is not None else None
            factors = factors or Relaxed(np.zeros(n), np.zeros(n))
        if start is None:
            self._flat()
            return GPState(Sites(np.zeros(n), np.zeros(n), np.zeros(n)), 0, factors)
        if len(start.y) != n:
            raise ValueError(f"start has {len(start.y)} sites; allowed: {n}, the same observations")
        found = self._moments(start.sites, covariance=self.order != "parallel")
        if found is None:
            raise ValueError(
                "start makes the posterior improper with this kernel; allowed: another start"
            )
        self.now = found
        return start.state._replace(relaxed=factors)

    def sweep(self, state: GPState, bar: Any) -> tuple[GPState, int]:
        self.drift = None
        self.triple.begin_sweep(state.sweeps)
        sites = Sites(*(part.copy() for part in state.sites))
        factors = state.relaxed and Relaxed(*(part.copy() for part in state.relaxed))
        if self.relaxation is not None:
            settings = self.problem.relaxation
            assert settings is not None
            assert factors is not None
            freeze = settings.freeze
            frozen = freeze is not None and state.sweeps >= freeze
            self.relaxation.begin_sweep(*factors, frozen)
        sweep = self._parallel if self.order == "parallel" else self._sequential
        return sweep(GPState(sites, state.sweeps + 1, factors), state, bar)

    def finish(self, state: GPState) -> GPState:
        """R takes the place of what the sweeps worked with."""
        found = self._moments(state.sites, covariance=False, marginals=False)
        if found is None:
            raise FloatingPointError("the posterior is improper to rounding; add jitter to K")
        self.now = found
        return state

    def posterior(self, state: GPState, converged: bool, history: list[SweepInfo]) -> GPPosterior:
        problem, now = self.problem, self.now
        return GPPosterior(
            state,
            *now,
            problem.y,
            problem.loss,
            problem.scheme,
            problem.beta,
            problem.schedule.power,
            converged,
            history,
            self.kernel.array,
            self.kernel.diagonal,
            problem.relaxation,
        )

    def _flat(self) -> None:
        """The moments of the prior."""
        n = self.sites()
        self.kernel.load()
        self.now = _Moments(np.zeros(n), np.zeros(n), self.kernel.diagonal.copy(), 0.0)

    def _moments(self, sites: Sites, covariance: bool, marginals: bool = True) -> _Moments | None:
        """From the sites; None where they leave an improper posterior.

        In the array R is left, or the covariance, or, where marginals are enough, nothing.
        """
        alpha, mean, variance = np.empty((3, self.sites()))
        cheap = marginals and not covariance and (sites.precision >= 0.0).all()
        fit = self.kernel.marginals if cheap else self.kernel.precision
        log_determinant = fit(sites.precision, sites.shift, alpha, mean, variance)
        if not (np.isfinite(log_determinant) and (variance >= 0.0).all()):
            return None
        if covariance:
            self.kernel.covariance(sites.precision)
        return _Moments(alpha, mean, variance, log_determinant)

    def _sequential(self, new: GPState, old: GPState, bar: Any) -> tuple[GPState, int]:
        problem, core, now = self.problem, self.core, self.now
        n, array = self.sites(), self.kernel.array
        refused, shrunk = core.n_refused, core.log_determinant
        mean = now.mean.copy()
        visits = as_array(problem.schedule.checked_visits(n, old.sweeps))
        step = max(64, CHUNK // (n * n))
        for part in (visits[i : i + step] for i in range(0, n, step)):
            core.sweep(Units(part, n), problem.y[part], None, part, array, mean, *new.sites)
            if bar is not None:
                bar.update(len(part))
        refused = core.n_refused - refused
        self.since_refresh += 1
        variance = np.diag(array).copy()
        self.now = _Moments(
            now.alpha, mean, variance, now.log_determinant + core.log_determinant - shrunk
        )
        healthy = (variance >= SHRUNK * now.variance).all()
        if self.since_refresh == problem.schedule.refresh or refused == n or not healthy:
            self._refresh(new.sites)
        return new, refused

    def _refresh(self, sites: Sites) -> None:
        """Moments anew from the sites, and how far those of the sweeps were from them."""
        found = self._moments(sites, covariance=True)
        if found is None:
            raise FloatingPointError("the posterior is improper to rounding; add jitter to K")
        self.drift = change(self.moments(), (found.mean, found.variance))
        self.now, self.since_refresh = found, 0

    def _parallel(self, new: GPState, old: GPState, bar: Any) -> tuple[GPState, int]:
        core, before = self.parallel, self.parallel.n_refused
        core.fit(self.now.mean, self.now.variance, self.problem.y, *new.sites)
        if bar is not None:
            bar.update(self.sites())
        found = self._moments(new.sites, covariance=False)
        if found is None:  # changes can be too much together: none is taken
            return old._replace(sweeps=new.sweeps), self.sites()
        self.now = found
        return new, core.n_refused - before


class _Descending(_ProcessSites):
    """The double loop: a step of its outer loop counts as a sweep."""

    #: whether the last step found no way down
    stuck = False

    def __init__(self, problem: _Problem) -> None:
        super().__init__(problem)
        self.descent = Descent(problem.kernel, problem.y, self.triple, problem.schedule.power)

    def start(self, start: GPPosterior | None) -> GPState:
        n = self.sites()
        sites, sweeps = (np.zeros(n), np.zeros(n)), 0
        if start is not None:
            sites, sweeps = start.sites[:2], start.n_sweeps
        if not self.descent.start(*sites):
            raise FloatingPointError("the tilted moments at the prior cannot be integrated")
        return self._reached(sweeps)

    def sweep(self, state: GPState, bar: Any) -> tuple[GPState, int]:
        self.stuck = not self.descent.step()
        return self._reached(state.sweeps + 1), 0

    def moved(self, before: tuple[Array, Array]) -> float:
        """How far the moments are from matching: a short step is no sign of an end."""
        return self.descent.mismatch

    def _reached(self, sweeps: int) -> GPState:
        descent, point = self.descent, self.descent.point
        process = point.process
        self.now = _Moments(
            process.alpha, process.mean, np.diag(process.covariance).copy(), process.log_determinant
        )
        shift, precision = point.r.copy()
        return GPState(Sites(precision, shift, descent.log_scale()), sweeps)


def fit_gp(
    K: ArrayLike | KernelColumns,
    y: ArrayLike,
    *,
    loss: Any = "probit",
    scheme: str | Scheme = "exact",
    schedule: Schedule | None = None,
    beta: float = 1.0,
    jitter: float = 0.0,
    relaxation: float | Relaxation | None = None,
    rank: int | None = None,
    rank_tol: float = 0.0,
    batch_size: int | None = None,
    start: GPPosterior | LowRankGPPosterior | None = None,
    overwrite_K: bool = False,
    callback: Callable[[SweepInfo, Any], Any] | None = None,
    progress: bool = False,
) -> GPPosterior | LowRankGPPosterior:
    """Fit a Gaussian process classifier by expectation propagation.

    The posterior over latent values f is p(f) ∝ N(f; 0, K) Π_i t_i(f_i), t_i(f) =
    exp(-beta loss(y_i f)); each factor is replaced by a Gaussian site. O(n^3) per sweep, and n^2
    numbers of memory beside K. With ``rank`` the prior is N(0, G G'), G the pivoted incomplete
    Cholesky factor of K, and f = G w a linear model: O(n r^2) per sweep, n r numbers of memory.

    Parameters
    ----------
    K : array_like of shape (n, n), or KernelColumns
        Kernel matrix: symmetric, positive semi-definite to rounding. With ``rank`` also one that is
        never formed.
    y : array_like of shape (n,)
        Labels -1 and +1.
    loss : str, Loss, scipy.LowLevelCallable or callable
        "probit", "logistic", "hinge", "quasi01" or "noisy_step"; a Loss; or your own, see
        :class:`epfast.CustomLoss` and :class:`epfast.CustomSite`. Sites of likelihoods that are not
        log-concave may have negative precision.
    scheme : str or Scheme
        As in :func:`epfast.fit_linear` for scalar sites: "exact", "laplace", "quick_laplace",
        "quadrature", "variational", "importance".
    schedule : EP, optional
        ``EP()`` by default. With ``EP(fallback="double_loop")`` a fit that its sweeps did not
        settle goes on by descent (Opper & Winther 2005) to a fixed point of EP; each step is a
        further record in ``history``, with the mismatch of the moments as its ``change``. With
        ``rank`` any schedule of :func:`epfast.fit_linear`.
    beta : float
        Inverse temperature.
    jitter : float
        Added to the diagonal of K; K is not changed otherwise. 0 with ``rank``.
    relaxation : float or Relaxation, optional
        Relaxed EP (Qi & Guo 2012), for likelihoods with outliers: the weight c of the penalty, or
        an :class:`epfast.schemes.Relaxation`. 0.03 is a good weight. Its fixed points are not those
        of EP. In sequential or shuffled order, at power 1, without ``rank``.
    rank : int, optional
        Columns of the factor at most, see :func:`epfast.incomplete_cholesky`.
    rank_tol : float
        With ``rank``: fewer columns where they leave at most this share of the trace of K.
    batch_size : int, optional
        With ``rank``: rows per factor of Laplace propagation (Smola et al. 2003), ``scheme`` being
        "laplace" or "quick_laplace". None: a site per observation.
    start : GPPosterior or LowRankGPPosterior, optional
        Warm start or resume: its sites are taken, for the same observations. With ``rank`` a
        LowRankGPPosterior, of any rank unless its sites are shared; else a GPPosterior.
    overwrite_K : bool
        Work in the memory of K, which must be a C-contiguous float64 array: it is lost, and no
        other matrix of its size is kept.
    callback : callable, optional
        Called after each sweep as ``callback(info, state)``; a true answer ends the fit.
    progress : bool
        Show a tqdm bar.

    Returns
    -------
    GPPosterior, or LowRankGPPosterior with rank

    Raises
    ------
    ValueError, TypeError
        With the name of the argument, what was given, and what is allowed.
    FloatingPointError
        If the posterior or the evidence overflows.
    Interrupted
        On Ctrl-C, within about a second; its ``posterior`` is what was found so far.

    Warns
    -----
    ConvergenceWarning
        If the tolerance was not reached, with a fallback: if no fixed point was found; if many
        sites were refused.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> x = np.linspace(-3, 3, 30)
    >>> K = 4.0 * np.exp(-0.5 * np.subtract.outer(x, x) ** 2)
    >>> gp = epfast.fit_gp(K, np.where(np.sin(2 * x) > 0, 1, -1))
    >>> gp.converged, round(gp.log_evidence, 2)
    (True, -13.02)
    """
    if rank is not None:
        if jitter != 0.0 or overwrite_K is not False:
            raise ValueError(
                f"jitter is {_checks.describe(jitter)} and overwrite_K "
                f"{_checks.describe(overwrite_K)}; allowed with rank: 0 and False"
            )
        if relaxation is not None or getattr(schedule, "fallback", None) is not None:
            raise ValueError(
                f"relaxation is {_checks.describe(relaxation)} and schedule {schedule!r}; allowed "
                "with rank: no relaxation and no fallback"
            )
        return fit_low_rank(
            K,
            y,
            rank=rank,
            rank_tol=rank_tol,
            batch_size=batch_size,
            loss=loss,
            scheme=scheme,
            schedule=schedule,
            beta=beta,
            start=start,
            callback=callback,
            progress=progress,
        )
    if isinstance(K, KernelColumns):
        raise TypeError("K is a KernelColumns; allowed without rank: a matrix")
    if rank_tol != 0.0 or batch_size is not None:
        raise ValueError(
            f"rank_tol is {_checks.describe(rank_tol)} and batch_size "
            f"{_checks.describe(batch_size)}; allowed without rank: 0 and None"
        )
    schedule = EP() if schedule is None else schedule
    if not isinstance(schedule, EP):
        raise TypeError(
            f"schedule is {_checks.describe(schedule)}; allowed: epfast.EP (a process has a site "
            "per value; shared sites and one pass are for linear models)"
        )
    found_loss = losses.resolve(loss)
    found_scheme = schemes.resolve(scheme, None, "exact", scalar=True)
    found_scheme.check_loss(found_loss)
    found_loss.check_tilt(_checks.number("beta", beta, above=0.0), schedule.power)
    if start is not None and not isinstance(start, GPPosterior):
        raise TypeError(f"start is {_checks.describe(start)}; allowed: a GPPosterior or None")
    _checks.callback(callback)
    _checks.flag("progress", progress)
    _checks.flag("overwrite_K", overwrite_K)
    found_relaxation = _relaxation(relaxation, schedule, found_loss, beta)
    array = _kernel_matrix(K, overwrite_K)
    labels = _checks.labels("y", y, len(array))
    array[np.diag_indices(len(array))] += _checks.number("jitter", jitter, least=0.0)
    kernel = Kernel(array)
    if not kernel.is_positive(ROUNDING * float(kernel.diagonal.max()) + 1e-300):
        raise ValueError(
            "K is not positive semi-definite; allowed: a covariance matrix (where rounding made it "
            "so, give jitter)"
        )
    problem = _Problem(kernel, labels, found_loss, found_scheme, beta, schedule, found_relaxation)
    result = _run(problem, start, callback, bool(progress))
    _warn(result, schedule)
    return result


def _run(
    problem: _Problem, start: GPPosterior | None, callback: Any, progress: bool
) -> GPPosterior:
    """Sweeps, and where these do not settle the double loop, if it is wanted."""
    schedule, n = problem.schedule, len(problem.y)
    engine = _ProcessSites(problem)
    result, history = start, []
    try:
        result = run(engine, schedule, engine.posterior, n, start, None, callback, progress)
        history = result.history
        if schedule.fallback is None or result.converged or len(history) < schedule.sweeps:
            return result
    except FloatingPointError:
        if schedule.fallback is None:
            raise
    descending = _Descending(problem)
    result = run(
        descending,
        replace(schedule, sweeps=DESCENTS, tol=MATCHED, damping=1.0),
        descending.posterior,
        n,
        result,
        None,
        lambda info, state: (callback is not None and callback(info, state)) or descending.stuck,
        progress,
    )
    steps = len(result.history)
    if not result.converged and (descending.stuck or steps == DESCENTS):
        warnings.warn(
            f"no fixed point of EP was found: after {steps} steps of the double loop the tilted "
            "moments still differ from those of the posterior by "
            f"{result.history[-1].change:.2g} of its own scale",
            ConvergenceWarning,
            stacklevel=3,
        )
    return replace(result, history=history + result.history)


def _relaxation(
    given: float | Relaxation | None, schedule: EP, loss: Loss, beta: float
) -> Relaxation | None:
    """The relaxation, if any, checked against what it goes with."""
    if given is None:
        return None
    if not isinstance(given, Relaxation):
        given = Relaxation(_checks.number("relaxation", given, above=0.0))
    if schedule.order == "parallel" or schedule.power != 1.0 or schedule.fallback is not None:
        raise ValueError(
            f"schedule is {schedule!r}; allowed with a relaxation: sequential or shuffled order, "
            "power 1 and no fallback, which finds fixed points of EP"
        )
    loss.check_tilt(beta, 0.999)  # the mean of log t is a difference of powers
    return given


def _kernel_matrix(K: Any, overwrite: bool) -> Array:
    """K, checked: a copy, or itself."""
    if overwrite:
        if not (
            isinstance(K, np.ndarray)
            and K.dtype == np.float64
            and K.flags.c_contiguous
            and K.flags.writeable
        ):
            raise ValueError(
                f"K is {_checks.describe(K)}; allowed with overwrite_K: a writeable C-contiguous "
                "float64 array"
            )
        array = K
    else:
        array = np.array(_checks.real_array("K", K), dtype=np.float64, order="C")
    _checks.covariance("K", array)
    return array


def _warn(result: GPPosterior, schedule: EP) -> None:
    """Say what the user should know of a fit that went badly."""
    last = result.history[-1]
    warn_of_refusals(last.n_refused, len(result.y))
    if not result.converged and schedule.tol > 0.0 and schedule.sweeps == len(result.history):
        warnings.warn(
            f"EP did not settle: after {len(result.history)} sweeps the posterior still moves by "
            f"{last.change:.2g} of its own scale per sweep; try damping, a power below 1 or more "
            "sweeps",
            ConvergenceWarning,
            stacklevel=3,
        )
