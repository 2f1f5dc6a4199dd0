"""Processes with several latent values per observation: fits, posteriors, files."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks
from epfast._arrays import Array
from epfast._core.kernel_matrix import KernelMatrix
from epfast._core.latents import LatentSites
from epfast.gaussian.engines.kernel import GPState
from epfast.gaussian.engines.latent_processes import (
    LatentGPState,
    LatentProcessEngine,
    evidence_of,
    one_of,
)
from epfast.gaussian.problem import Data
from epfast.gaussian.process_checking import root_of
from epfast.gaussian.process_posterior import GPPosterior
from epfast.gaussian.process_prediction import ProcessPosterior, contracted, draws_of, matrices_of
from epfast.gaussian.process_problem import kernel_at_door
from epfast.inference import (
    Fit,
    Interrupted,
    Sites,
    SweepInfo,
    evidence_bound,
    learning,
    reached,
    report,
    run_from,
    start_may_be_dropped,
    warn_of,
)
from epfast.inference.certificates import Case
from epfast.inference.runtime import cached_property
from epfast.losses import LatentLoss, Loss

#: vectors in a file, (C, n) each
VECTORS = ("alpha", "mean", "variance")


class LatentGPProblem(NamedTuple):
    """A fit of several processes, checked."""

    #: one for each latent; None after loading
    kernel: tuple[KernelMatrix, ...] | None
    #: (n, width)
    y: Array
    loss: Any
    scheme: Any
    schedule: Any
    #: (n, n), K where it is the same for all latents; None: it is not, or after loading
    common: Array | None = None

    @property
    def n(self) -> int:
        return len(self.y)

    @property
    def n_rows(self) -> int:
        """As a linear model has it."""
        return self.n

    @property
    def data(self) -> Data:
        """Responses, as a linear model has them."""
        return Data(None, self.y)

    def exact_sites(self) -> None:
        """Sites of several latents are found by sweeps."""

    @property
    def remedy(self) -> str:
        """What to do about a fit that fails."""
        return "damp the sweeps (EP(damping=0.5)), allow more of them, or scale the kernel"

    @property
    def evidence_bound(self) -> float:
        """See :func:`epfast.inference.evidence_bound`."""
        return evidence_bound(self.loss, self.n)

    @property
    def beta(self) -> float:
        return 1.0 if self.loss is None else float(self.loss.beta)


@dataclass(frozen=True, eq=False)
class LatentGPPosterior(ProcessPosterior):
    """The posterior of C processes, a product over them; see :class:`epfast.GPPosterior`.

    Attributes
    ----------
    mean, variance : ndarray of shape (C, n)
        Of the latent values of the observations.
    alpha : ndarray of shape (C, n)
        K^-1 mean.
    sites : Sites
        ``precision`` and ``shift`` (n, C), ``log_scale`` (n,).
    """

    state: LatentGPState = field(repr=False)
    problem: LatentGPProblem = field(repr=False)
    converged: bool
    history: list[SweepInfo] = field(repr=False)
    #: (n, n) of each latent, as of a GPPosterior
    packed: tuple[Array, ...] = field(repr=False)
    #: (n,) of each latent, the diagonal of K
    diagonals: tuple[Array, ...] = field(repr=False)

    kind: ClassVar[str] = "latent_processes"

    def __getstate__(self) -> dict[str, Any]:
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        return own | {"problem": self.problem._replace(kernel=None, common=None)}

    @cached_property
    def parts(self) -> tuple[GPPosterior, ...]:
        """A posterior per latent, for what does not look at the likelihood."""
        problem: Any = self.problem
        return tuple(
            GPPosterior(
                GPState(one_of(self.state.sites, k), self.state.sweeps, now, None, *arrays),
                problem,
                self.converged,
                self.history,
            )
            for k, (now, *arrays) in enumerate(
                zip(self.state.now, self.packed, self.diagonals, strict=True)
            )
        )

    @property
    def alpha(self) -> Array:
        return np.stack([part.alpha for part in self.state.now])

    @property
    def mean(self) -> Array:
        return np.stack([part.mean for part in self.state.now])

    @property
    def variance(self) -> Array:
        return np.stack([part.variance for part in self.state.now])

    @cached_property
    def covariance(self) -> Array:
        """(C, n, n), covariances of the latent values. O(C n^2), once."""
        return np.stack([part.covariance for part in self.parts])

    @property
    def log_evidence(self) -> float:
        """EP's log p(y), with all constants."""
        return evidence_of(self.state.sites, self.state.now)

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each latent value, those of the first process first."""
        loss, n = self.problem.loss, self.problem.n
        latents = [f"latent {k}" for k in range(len(self.state.now))]
        if isinstance(loss, LatentLoss):
            latents = list(loss.labels)
        return tuple(f"{latent}: f{i}" for latent in latents for i in range(n))

    def summary(self, level: float = 0.95) -> Any:
        """As :meth:`epfast.GPPosterior.summary`, a row per latent value."""
        return report.summary(report.Flat(self), level)

    def credible_interval(self, level: float = 0.95) -> Array:
        """Central credible intervals, (C, n, 2)."""
        ends = report.interval(self.mean, self.variance, report.level_at_door(level))
        return np.moveaxis(ends, 1, -1)

    @cached_property
    def residual(self) -> float:
        """Distance from a fixed point of EP, as :attr:`epfast.GPPosterior.residual`. O(C n)."""
        loss, sites, n = self.loss_of_rows(), self.state.sites, self.problem.n
        assert isinstance(loss, LatentLoss)
        core = LatentSites(loss.latent_moments(), 0.0)
        tau, nu = (np.ascontiguousarray(x.T) for x in sites[:2])
        new, scale = np.empty((len(tau), 2, n)), np.empty(n)
        core.fit(
            self.mean, self.variance, self.problem.y, np.arange(n), tau, nu, sites.log_scale, new,
            scale,
        )  # fmt: skip
        return float("inf") if core.n_refused else core.residual

    def loo_log_predictive(self) -> Array:
        """Leave-one-out log probability of each response, (n,), from the cavities."""
        sites = Sites(*self.state.sites[:2], np.empty(0))
        m, v = learning.cavities(sites, self.mean.T, self.variance.T, 1.0)
        return self.loss_of_rows().log_predictive(self.problem.y, m, v)

    def loss_gradient(self) -> dict[str, Any]:
        """There are no parameters: {}."""
        return {}

    def log_evidence_gradient(self, dK: Any) -> Array:
        """Derivative of the log evidence by parameters of a kernel that all latents share.

        As :meth:`epfast.GPPosterior.log_evidence_gradient`.
        """
        learning.note_residual(self.residual)
        n = self.problem.n
        known = [(part.alpha, part.other_matrix()) for part in self.parts]
        return np.array(
            [sum(contracted(*one, matrix) for one in known) for matrix in matrices_of(dK, (n, n))]
        )

    def latent_at(self, draws: ArrayLike) -> Array:
        return np.moveaxis(_checks.array("draws", draws, shape=(None, *self.mean.shape)), 1, 2)

    def log_likelihood(self, draws: ArrayLike) -> Array:
        """Log likelihood of each observation at draws (k, C, n) of :meth:`sample`, (k, n)."""
        return -self.loss_of_rows().values(self.latent_at(draws), self.problem.y)

    def _draw(self, size: int, rng: np.random.Generator) -> Array:
        """Latent values of the fit, (size, C, n)."""
        pairs = zip(self.mean, self.covariance, strict=True)
        return np.stack([draws_of(*pair, size, rng) for pair in pairs], axis=1)

    def _case(self) -> Case:
        roots = tuple(root_of(part) for part in self.covariance)
        drawn = LatentSiteProposal(
            self.loss_of_rows(),
            self.problem.y,
            self.mean,
            roots,
            self.state.sites,
            self.log_evidence,
        )
        one_mode = self.loss_of_rows().log_concave is True
        return Case(drawn, *drawn.moments(), self.log_evidence, self.evidence_bound, True, one_mode)

    # -- prediction --

    def predict_latent(
        self, K_star: Any, K_star_star: Any = None, joint: bool = False
    ) -> tuple[Array, Array]:
        """Mean and variance of the latents at new inputs.

        Parameters
        ----------
        K_star : array_like of shape (m, n), or a list of C of them
            Kernel between the new inputs and those of the fit; a list where latents differ.
        K_star_star : array_like of shape (m,) or (m, m), float, or a list of C of them
            Kernel of each new input with itself, or between all of them, which ``joint`` needs.
        joint : bool
            Whether to return covariances.

        Returns
        -------
        mean : ndarray of shape (m, C)
        variance : ndarray of shape (m, C), or (C, m, m) if joint
        """
        count = len(self.parts)
        rows, own = ([given] * count for given in (K_star, K_star_star))
        if isinstance(K_star, list) and len(K_star) == count and np.ndim(K_star[0]) == 2:
            rows = K_star
            if not isinstance(K_star_star, list | tuple) or len(K_star_star) != count:
                raise ValueError(
                    f"K_star is a list of {count} matrices; allowed for K_star_star: a list, too"
                )
            own = list(K_star_star)
        found = [
            part.predict_latent(a, b, joint)
            for part, a, b in zip(self.parts, rows, own, strict=True)
        ]
        mean = np.stack([pair[0] for pair in found], axis=1)
        return mean, np.stack([pair[1] for pair in found], axis=0 if joint else 1)

    def _shifted_latent(
        self, K_star: Any, k_star_diag: Any, offset: ArrayLike | None
    ) -> tuple[Array, Array]:
        mean, variance = self.predict_latent(K_star, k_star_diag)
        if offset is not None:
            mean = mean + _checks.array("offset", offset, shape=mean.shape)
        return mean, variance

    def predict_log_proba(
        self, K_star: Any, k_star_diag: Any = None, offset: ArrayLike | None = None
    ) -> Array:
        """Log probability of each class at new inputs, (m, C), accurate where that underflows.

        Parameters
        ----------
        K_star, k_star_diag
            ``K_star`` and ``K_star_star`` of :meth:`predict_latent`.
        offset : array_like of shape (m, C), optional
            As in the fit. None: 0.
        """
        loss: Any = self.known_loss()
        found: Array = loss.predict_log_proba(*self._shifted_latent(K_star, k_star_diag, offset))
        return found

    def sample_latent(
        self,
        K_star: Any,
        K_star_star: Any,
        size: int,
        rng: np.random.Generator | int | None = None,
    ) -> Array:
        """Draw the processes at new inputs, (size, m, C), all inputs jointly."""
        size = _checks.integer("size", size, least=0)
        draws = _checks.generator("rng", rng)
        mean, covariance = self.predict_latent(K_star, K_star_star, joint=True)
        pairs = zip(mean.T, covariance, strict=True)
        return np.stack([draws_of(*pair, size, draws) for pair in pairs], axis=2)

    # -- files --


class LatentSiteProposal(NamedTuple):
    """Prior times sites over all latent values, beside prior times likelihood."""

    loss: Loss
    #: (n, width)
    y: Array
    #: (C, n)
    mean: Array
    #: (n, r) of each latent
    roots: tuple[Array, ...]
    sites: Sites
    log_normaliser: float
    is_best: bool = False

    @property
    def size(self) -> int:
        return sum(root.shape[1] for root in self.roots)

    @property
    def width(self) -> int:
        return self.mean.size

    def draw(self, z: Array) -> Array:
        ends = np.cumsum([root.shape[1] for root in self.roots])[:-1]
        pieces = zip(np.split(z, ends, axis=1), self.roots, strict=True)
        moved = np.concatenate([part @ root.T for part, root in pieces], axis=1)
        return np.asarray(self.mean.ravel() + moved)

    def log_ratio(self, z: Array, theta: Array) -> Array:
        latent = np.moveaxis(theta.reshape(-1, *self.mean.shape), 1, 2)
        precision, shift, scale = self.sites
        site = (latent * (shift - 0.5 * precision * latent)).sum(axis=(1, 2)) + scale.sum()
        return np.asarray(self.log_normaliser - site - self.loss.values(latent, self.y).sum(axis=1))

    def reported(self, theta: Array) -> Array:
        return theta

    def moments(self) -> tuple[Array, Array]:
        sd = [np.sqrt(np.einsum("ij,ij->i", root, root)) for root in self.roots]
        return self.mean.ravel(), np.concatenate(sd)

    def better(self) -> None:
        """There is none at hand."""


def kernels_at_door(
    K: Any, overwrite: bool, jitter: float, latents: int
) -> tuple[tuple[KernelMatrix, ...], Array | None]:
    """Check K, one matrix or one for each latent; a kernel for each, and K if it is one."""
    if overwrite:
        raise ValueError("overwrite_K is True; allowed with several latents: False")
    given = K if isinstance(K, list | tuple) else None
    if given is None and np.ndim(K) == 3:
        given = list(K)
    if given is not None and np.ndim(given[0]) == 2:
        if len(given) != latents:
            raise ValueError(f"K holds {len(given)} matrices; allowed: one, or {latents}")
        found = tuple(kernel_at_door(part, False, jitter) for part in given)
        if len({kernel.n for kernel in found}) > 1:
            raise ValueError("K holds matrices of different sizes; allowed: the same for all")
        return found, None
    first = kernel_at_door(K, False, jitter)
    common = np.tril(first.array, -1)
    common += common.T
    common[np.diag_indices(first.n)] = first.diagonal
    return tuple(KernelMatrix(common.copy()) for _ in range(latents)), common


def fit_latent_process(
    problem: LatentGPProblem, start: Any = None, callback: Any = None, progress: Any = False
) -> LatentGPPosterior:
    """Run a fit of several processes whose parts are legal and checked."""
    assert problem.kernel is not None
    kernels = problem.kernel

    def result(fit: Fit) -> LatentGPPosterior:
        for k, kernel in enumerate(kernels):
            kernel.factor(one_of(fit.state.sites, k).precision)
        arrays = tuple(kernel.array for kernel in kernels)
        diagonals = tuple(kernel.diagonal for kernel in kernels)
        return LatentGPPosterior(fit.state, problem, fit.converged, fit.history, arrays, diagonals)

    fit = None
    try:
        engine = LatentProcessEngine(problem)
        fit = run_from(
            engine,
            problem.schedule,
            start,
            guess=start_may_be_dropped(start, problem),
            callback=callback,
            progress=progress,
        )
        warn_of(fit, engine, problem.schedule, 4)
        return result(fit)
    except KeyboardInterrupt as pressed:
        fit = reached(pressed) or fit
        raise Interrupted(start if fit is None else result(fit)) from None
