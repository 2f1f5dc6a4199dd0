"""What a posterior says of its fit, its rows, and how far it is to be trusted."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks
from epfast._arrays import Array
from epfast.gaussian.checking import Sampled, SiteProposal
from epfast.gaussian.diagnostics import loo_of_rows, residual_of_rows, residual_of_sweep
from epfast.gaussian.files import contents
from epfast.gaussian.problem import RowsOrProcess
from epfast.gaussian.state import RelaxationFactors, State
from epfast.inference import Sites, SweepInfo, certificates, learning, report
from epfast.inference.certificates import Check
from epfast.inference.files import write
from epfast.inference.importance import Proposal
from epfast.inference.loop import Recorded
from epfast.inference.runtime import cached_property
from epfast.losses import LatentLoss, Loss
from epfast.schemes import Relaxed, Scheme

if TYPE_CHECKING:
    from pandas import DataFrame
    from xarray import DataTree

    from epfast.gaussian.forms.weights import KeptState
    from epfast.operators import Operator

#: fields of a posterior by name, or some of them
Fields = dict[str, object]
#: largest order of a matrix that is factored for a ``repr``: that takes some milliseconds
IN_REPR = 500


def mean_score(logs: Array) -> float:
    """The mean of log probabilities of responses, one at least."""
    if not len(logs):
        raise ValueError("X has 0 rows; allowed: one row at least")
    return float(logs.mean())


def shifted(latent: Array, offset: ArrayLike | None, axes: int = 1) -> Array:
    """Latent values with the offsets of their rows: (..., n), or with two axes (..., n, C)."""
    if offset is None:
        return latent
    return latent + _checks.array("offset", offset, shape=latent.shape[-axes:])


class Posterior(Recorded):
    """What posteriors of rows and processes have in common: a Gaussian, or a mixture of them."""

    problem: RowsOrProcess
    #: the name of the class in files
    kind: ClassVar[str]
    #: of latent values: their rows, and of several latents these
    axes: ClassVar[int] = 1

    def __repr__(self) -> str:
        parts = [f"{len(self.labels)} {self.quantity[0]}s", repr(self.loss)]
        parts.append(f"{type(self.schedule).__name__}, {self.n_sweeps} sweeps")
        if self.unknown_order <= IN_REPR:
            parts.append(f"log_evidence={self.log_evidence:.2f}")
        return f"{type(self).__name__}({', '.join(parts)}, converged={self.converged})"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to an ``.npz`` file, which :func:`epfast.load` reads. Nothing is pickled.

        An old file stays as it was until the new one is complete and on the disk; an OSError says
        why it is not. Your own functions (CustomLoss, CustomSite, LowLevelCallable) and losses with
        methods of their own cannot be written: give them to ``load`` again. Costs recorded after
        every factor are not written, and rows only where predictions need them.
        """
        write(path, *contents(self))

    @property
    def unknown_order(self) -> int:
        """Order of the matrix that the log evidence has to factor first. 0: it is at hand."""
        return 0

    @property
    def sites(self) -> Sites | None:
        """The stored :class:`Sites`, or None after ADF."""
        sites: Sites | None = self.state.sites
        return sites

    # -- the choices --

    @property
    def loss(self) -> Loss | None:
        """The loss, or None if the posterior was loaded and its loss could not be saved."""
        loss: Loss | None = self.problem.loss
        return None if loss is None else loss.with_offset(False)

    @property
    def scheme(self) -> Scheme | None:
        """The scheme, or None if the posterior was loaded and its scheme could not be saved."""
        return self.problem.scheme

    @property
    def operator(self) -> Operator | None:
        """What learned the messages, of a fit by :class:`epfast.Learned`, or else None."""
        return getattr(self.scheme, "operator", None)

    @property
    def beta(self) -> float:
        """Inverse temperature of the factors exp(-beta loss)."""
        return self.problem.beta

    @property
    def power(self) -> float:
        """Power of power EP; 1 is EP."""
        power: float = self.problem.schedule.power
        return power

    def known_loss(self) -> Loss:
        """The loss. It raises if the posterior was loaded without it."""
        loss = self.loss
        if loss is None:
            raise ValueError(
                "the loss of this posterior was not saved with it; use predict_latent, or load "
                "with the loss given"
            )
        return loss

    def loss_of_rows(self) -> Loss:
        """As ``known_loss``, for ``observed``: responses may carry an offset."""
        self.known_loss()
        return self.problem.loss

    # -- what a subclass gives to the methods below --

    #: what the mean is a mean of, and what its members are called
    quantity: ClassVar[tuple[str, str]] = ("latent", "row")

    @property
    def mean(self) -> Array:
        raise NotImplementedError

    @property
    def variance(self) -> Array:
        raise NotImplementedError

    @property
    def log_evidence(self) -> float:
        raise NotImplementedError

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each member of ``mean``."""
        return tuple(f"f{i}" for i in range(len(self.mean)))

    def observed(self) -> Array | None:
        """Responses of the fit, for the core, (n, width), or None if rows are unknown."""
        y: Array | None = self.problem.data.y
        return y

    def _latent_of(self, theta: Array) -> Array:
        """Latent values of the rows at draws (k, p), (k, n) or (k, n, C), not checked."""
        raise NotImplementedError

    def _losses_of(self, theta: Array) -> Array:
        """Beta times the loss of each row at draws (k, p), (k, n), not checked."""
        raise NotImplementedError

    def _checked_draws(self, draws: ArrayLike) -> Array:
        theta = _checks.array("draws", draws, shape=(None, *self.mean.shape))
        return theta.reshape(len(theta), self.mean.size)

    def latent_at(self, draws: ArrayLike) -> Array:
        """Latent values of the rows at draws of ``sample``, (k, n) or (k, n, C), no offset."""
        return self._latent_of(self._checked_draws(draws))

    def log_likelihood(self, draws: ArrayLike) -> Array:
        """Minus beta times the loss of each row at draws of ``sample``, (k, n)."""
        return -self._losses_of(self._checked_draws(draws))

    def sample(self, size: int, rng: np.random.Generator | int | None = None) -> Array:
        """Draw from the posterior what ``mean`` is the mean of.

        Parameters
        ----------
        size : int
            Number of draws.
        rng : numpy.random.Generator or int, optional
            A generator, or a seed for one. None draws afresh.

        Returns
        -------
        ndarray of shape (size, d), or (size, C, d) with C latents
            Of weights, or of the latent values of the fit.
        """
        size = _checks.integer("size", size, least=0)
        return self._draw(size, _checks.generator("rng", rng))

    def _draw(self, size: int, rng: np.random.Generator) -> Array:
        """See ``sample``."""
        raise NotImplementedError

    @property
    def evidence_bound(self) -> float:
        """The largest log evidence that is possible, up to rounding. inf: no bound is known."""
        if self.problem.loss is None or self.observed() is None:
            return math.inf
        return self.problem.evidence_bound

    def credible_interval(self, level: float = 0.95) -> Array:
        """Central credible intervals.

        Parameters
        ----------
        level : float
            Posterior probability of each interval, between 0 and 1.

        Returns
        -------
        ndarray of shape (d, 2), or (C, d, 2) with C latents
            Lower and upper ends.
        """
        return report.interval(self.mean, self.variance, report.checked_level(level))

    def summary(self, level: float = 0.95) -> DataFrame:
        """A table of the posterior: mean, sd, credible interval and probability to be positive.

        Parameters
        ----------
        level : float
            Posterior probability of the intervals, between 0 and 1.

        Returns
        -------
        pandas.DataFrame, or a table that prints aligned where pandas is missing
            A row per coefficient or latent value. Its ``attrs`` hold ``log_evidence``,
            ``converged``, ``is_likelihood``, and ``notes``: lines of text, which say among others
            that the log evidence of a loss that is no likelihood is not a log probability.
        """
        return report.summary(self, level, self._positive())

    def _positive(self) -> Array:
        """Probabilities of what ``mean`` is the mean of to be positive."""
        return report.positive(self.mean, self.variance)

    def _prior_of_rows(self, size: int, rng: np.random.Generator) -> Array | None:
        """Latent values of the rows, (size, n) or (size, n, C), drawn from the prior."""
        return None

    def _drawn_by_name(self, size: int, rng: np.random.Generator) -> report.Drawn:
        """Draws for :meth:`to_arviz`."""
        name, axis = self.quantity
        theta = self.sample(size, rng)
        drawn = report.Drawn(
            {name: theta.reshape(size, -1)},
            dims={name: (axis,), "y": ("row",)},
            coords={axis: self.labels},
        )
        y = self.observed()
        if y is None or self.loss is None:
            return drawn
        rows = self.loss_of_rows()
        drawn.observed_data["y"] = rows.drawable(y)
        if "values" in rows.gives:
            drawn.log_likelihood["y"] = self.log_likelihood(theta)
        with suppress(ValueError):  # of losses whose responses cannot be drawn
            drawn.posterior_predictive["y"] = rows.replicate(self.latent_at(theta), y, rng)
            latent = self._prior_of_rows(size, rng)
            if latent is not None:  # rates of counts may be beyond integers
                drawn.prior_predictive["y"] = rows.replicate(latent, y, rng)
        return drawn

    def to_arviz(self, draws: int = 1000, rng: np.random.Generator | int | None = 0) -> DataTree:
        """Independent draws for ArviZ, with the log likelihood of each row and leave-one-out by EP.

        The draws are one chain, since r_hat and effective sizes say nothing of a fit that was not
        made by sampling: see :meth:`check` and ``converged``.

        Parameters
        ----------
        draws : int
        rng : numpy.random.Generator or int, default=0
            A generator, or a seed for one. None draws afresh.

        Returns
        -------
        arviz.InferenceData, or xarray.DataTree with ArviZ 1.0 or later, or without ArviZ
            Groups ``posterior``; where the rows are known ``log_likelihood``, ``observed_data``
            and, of responses that can be drawn, ``posterior_predictive`` and ``prior_predictive``;
            where sites give it ``loo``, leave-one-out log probabilities from the cavities, with
            their sum. Their ``attrs`` hold ``method``, ``converged``, ``n_sweeps``,
            ``log_evidence``, ``is_likelihood``, and ``verdict``, that of the last :meth:`check`.

        Warns
        -----
        ConvergenceWarning
            If the fit has not converged, or the last check said that it is not to be used.

        Raises
        ------
        ImportError
            Without xarray, which the extra ``arviz`` brings.
        """
        return report.to_arviz(self, self._drawn_by_name, draws, rng)


@dataclass(frozen=True, eq=False, repr=False)
class GaussianPosterior(Posterior):
    """A Gaussian posterior over weights, or over the latent values of a process.

    A subclass has the moments that the form of its covariance gives, and how it predicts.

    Attributes
    ----------
    loss, scheme, schedule, beta, power
        As fitted, with numbers in place of None.
    problem : Problem
        The fit. It refers to rows or kernel; pickles and files leave them out.
    converged : bool
        Whether the last sweep changed the posterior by at most the tolerance and refused no site,
        and the log evidence is possible: at most 0 where no factor is above 1.
    history : list of SweepInfo
        One record per sweep of this fit.
    """

    state: KeptState
    problem: RowsOrProcess
    converged: bool
    history: list[SweepInfo]

    def __getstate__(self) -> Fields:
        # what was computed from the fields is computed again
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        return own | {"problem": self.problem.without_rows()}

    def _proposal(self) -> Proposal:
        """What :meth:`check` draws from."""
        raise NotImplementedError

    def better(self) -> Proposal | None:
        """What a check draws from where few draws of this posterior count. None: there is none."""
        return None

    @property
    def n_normals(self) -> int:
        """Standard normal numbers that a draw takes."""
        raise NotImplementedError

    def colored(self, noise: Array) -> Array:
        """Turn standard normal draws (k, n_normals) into draws about the mean, one after the other.

        Of several latents (k, C d).
        """
        raise NotImplementedError

    def _draw(self, size: int, rng: np.random.Generator) -> Array:
        drawn = self.colored(rng.standard_normal((size, self.n_normals)))
        return self.mean + drawn.reshape(size, *self.mean.shape)

    # -- its rows --

    @property
    def has_site_per_row(self) -> bool:
        """Whether each row has a site of its own latent values."""
        return True

    def _with_rows(self) -> Self:
        """The posterior with its rows."""
        self.known_loss()
        return self

    def marginals_of_rows(self) -> tuple[Array, Array]:
        """Mean and variance of the latent values of the rows, (n,) or (n, C) each."""
        raise NotImplementedError

    def _rows_with_sites(self) -> tuple[RowsOrProcess, Sites, Array, Array]:
        """The problem with its rows, their sites, and the marginals of their latent values."""
        if self.sites is None or not self.has_site_per_row:
            raise ValueError(
                "the posterior has no scalar site per row; allowed: one with a full covariance, "
                "batch_size=None and an EP schedule, or of a process"
            )
        whole = self._with_rows()
        return whole.problem, self.sites, *whole.marginals_of_rows()

    @property
    def relaxed(self) -> RelaxationFactors | None:
        """Precision and shift, (n,) each, of the relaxation factors of relaxed EP, or else None."""
        factors: RelaxationFactors | None = getattr(self.state, "relaxed", None)
        return factors

    @cached_property
    def residual(self) -> float:
        """Distance from a fixed point of EP. NaN if no sites are stored, or the scheme is unknown.

        For a site per row: the largest difference, over the rows, between tilted and posterior
        moments of the latent values, means in standard deviations, variances relative; infinite if
        a cavity is improper. In relaxed EP tilted distribution and posterior are both multiplied
        by r_i first, or NaN if the objective is "printed", whose fixed points do not match moments.
        For shared sites, minibatch factors and classes with covariances: the
        ``change`` of one more undamped sweep, all factors at once. O(n d^2), once.
        """
        if self.sites is None or self.scheme is None:
            return float("nan")
        if not self.has_site_per_row or self.problem.batch_size is not None:
            assert isinstance(self.state, State)
            return residual_of_sweep(self._with_rows().problem, self.state)
        problem, sites, mean, variance = self._rows_with_sites()
        if self.relaxed is not None:
            if isinstance(self.scheme, Relaxed) and self.scheme.objective == "printed":
                return float("nan")
            # r_i q divided by site i is r_i times the cavity
            ratio = 1.0 + self.relaxed.precision * variance
            if not (ratio > 0.0).all():
                return float("inf")
            mean, variance = (mean + variance * self.relaxed.shift) / ratio, variance / ratio
        return residual_of_rows(problem, self.n_sweeps, sites, mean, variance)

    def loo_log_predictive(self) -> Array:
        """Leave-one-out log probability of each response, from the cavities. O(n).

        Of an observation of weight above 1 one copy is left out.

        Returns
        -------
        ndarray of shape (n,)
            log p(y_i | all other responses), as EP has it.

        Raises
        ------
        FloatingPointError
            If a cavity is improper.
        """
        return loo_of_rows(*self._rows_with_sites())

    # -- what all results say --

    def loss_gradient(self) -> dict[str, Array | float]:
        """Derivatives of the log evidence by parameters of the likelihood.

        At a fixed point of EP the sites do not contribute (Rasmussen & Williams 2006, section
        5.5.2): the derivative is the sum over the rows of d log Z_i, with the cavities held
        fixed, here by differences of the fourth order.

        Returns
        -------
        dict
            For each name of ``loss.learnable`` a number, or an array of the parameter's shape.

        Raises
        ------
        ValueError
            If the posterior has no scalar site per row, or does not know its rows.
        FloatingPointError
            If a cavity is improper.
        """
        gradient = self.loss_slopes()
        learning.note_residual(self.residual)
        return gradient

    def loss_slopes(self) -> dict[str, Array | float]:
        """As :meth:`loss_gradient`, without a word where this is no fixed point; for searches."""
        self.known_loss()
        return learning.loss_gradient(*self._rows_with_sites())

    def loss_gain(self, *others: Loss) -> Array:
        """Change of the log evidence if the parameters of the loss were others, roughly.

        As :meth:`loss_gradient`, the cavities held fixed: exact to first order.

        Parameters
        ----------
        others : Loss
            ``post.loss.with_parameters(...)``.

        Returns
        -------
        ndarray of shape (k,)
            NaN where an integral is out of range.

        Raises
        ------
        ValueError, FloatingPointError
            As :meth:`loss_gradient`.
        """
        now = self.log_integrals(self.known_loss())
        return np.array([(self.log_integrals(loss) - now).sum() for loss in others])

    @cached_property
    def log_integrals(self) -> Callable[[Loss], Array]:
        """log Z_i of the rows, (n,), by the loss, the cavities held fixed; for searches."""
        self.known_loss()
        by_row = learning.log_integrals(*self._rows_with_sites())
        has_offset = self.problem.loss.has_offset
        return lambda loss: by_row(loss.with_offset(has_offset))

    def check(self, draws: int = 1000, rng: np.random.Generator | int | None = 0) -> Check:
        """Compare with the exact posterior, by importance sampling; ``str(check)`` is in words.

        Draws from the posterior are weighted by prior times likelihood: antithetic pairs of a
        multivariate t of max(7, d) degrees of freedom with its mean and scale, a fifth (1 / d
        beyond 5) of 4 degrees and twice as wide. Where few of them count, draws of the Gaussian
        that maximises the evidence bound, which is found without EP, are mixed in: they tell
        whether the fit failed or the check. The verdict takes effective draws, k-hat, the shifts of
        means over their standard errors, standard deviations and log evidence together. For a loss
        that is no likelihood the exact posterior is the pseudo-posterior, prior times
        exp(-beta loss). With weights of rows each likelihood is to the power of its weight, which
        the reason names where they are no counts.

        Where the loss is not known to be log-concave (``loss.log_concave``) the posterior may have
        several modes. The check then looks for them, from draws of the prior and from where the
        factors of a few rows have their peaks, and mixes Gaussians at these modes and the prior
        into what it draws from. With more than 200 weights, in the n x n form and with several
        latents it does not look for them, and the verdict is "usable" of this mode at best.

        Costs one look at all rows per draw, O(draws n d), and O(draws d^2); the loss is asked for
        values alone.

        Parameters
        ----------
        draws : int
            100 to 10 million; the standard errors fall as its root.
        rng : numpy.random.Generator or int, default=0
            Of the draws: a generator, or a seed for one. None draws afresh.

        Returns
        -------
        Check

        Raises
        ------
        ValueError
            If the rows are unknown (``post.with_rows(X, y)`` gives them back), or the loss has no
            values.
        """
        if "values" not in self.known_loss().gives:
            raise ValueError(
                f"loss is a {type(self.loss).__name__}, which gives no values; allowed: a loss "
                "that gives them"
            )
        if self.observed() is None:
            raise ValueError(
                "the posterior does not know its rows; allowed: post.with_rows(X, y).check()"
            )
        one_mode = self.problem.loss.log_concave is True
        arguments = self.log_evidence, draws, rng, self.evidence_bound, one_mode
        check = certificates.check(self._proposal(), *arguments)
        note = report.not_counts(report.weights_of(self))
        if note is not None:
            check = replace(check, reason=f"{check.reason}; given {note}")
        return self._remembered(check)


class OneLatent(Sampled, Protocol):
    """What is read of the posterior of one of several latents."""

    @property
    def covariance(self) -> Array: ...


class SeveralLatents(GaussianPosterior):
    """What posteriors of C latent values per row share; a product over these, but for one kind.

    Means and variances of latent values are (n, C).
    """

    axes: ClassVar[int] = 2

    @property
    def parts(self) -> tuple[OneLatent, ...]:
        """A posterior per latent, for what does not look at the likelihood."""
        raise NotImplementedError

    @property
    def mean(self) -> Array:
        return np.stack([part.mean for part in self.parts])

    @property
    def variance(self) -> Array:
        return np.stack([part.variance for part in self.parts])

    @cached_property
    def covariance(self) -> Array:
        """(C, d, d), or (C, n, n) of processes."""
        return np.stack([part.covariance for part in self.parts])

    @property
    def n_latents(self) -> int:
        """C."""
        return len(self.parts)

    def _labelled(self, names: Iterable[str]) -> tuple[str, ...]:
        """A name for each member of ``mean``, those of the first latent first."""
        loss, names = self.problem.loss, list(names)
        latents = [f"latent {k}" for k in range(self.n_latents)]
        if isinstance(loss, LatentLoss):
            latents = list(loss.labels)
        return tuple(f"{latent}: {name}" for latent in latents for name in names)

    def loss_gradient(self) -> dict[str, Array | float]:
        """There are no parameters: {}."""
        return {}

    def _proposal(self) -> SiteProposal:
        return SiteProposal(self)

    @property
    def n_normals(self) -> int:
        return self.mean.size

    def colored(self, noise: Array) -> Array:
        pieces = np.split(noise, self.n_latents, axis=1)
        pairs = zip(self.parts, pieces, strict=True)
        return np.concatenate([part.colored(some) for part, some in pairs], axis=1)
