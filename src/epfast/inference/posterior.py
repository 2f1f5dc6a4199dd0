"""What all results share: record, choices, and what they say of themselves."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks
from epfast._arrays import Array
from epfast.inference import certificates, learning, report
from epfast.inference.certificates import Case, Check
from epfast.inference.records import Sites, SweepInfo
from epfast.losses import Loss


def shifted(latent: Array, offset: ArrayLike | None, n: int) -> Array:
    """Latent values of n rows with their offsets."""
    return latent if offset is None else latent + _checks.array("offset", offset, shape=(n,))


class Recorded:
    """The record of a fit; a subclass has ``state`` and ``problem``."""

    state: Any
    problem: Any
    converged: bool
    history: list[SweepInfo]

    @property
    def schedule(self) -> Any:
        return self.problem.schedule

    @property
    def n_sweeps(self) -> int:
        """Sweeps in all, those of warm starts included."""
        sweeps: int = self.state.sweeps
        return sweeps

    @property
    def n_refused(self) -> int:
        """Sites that kept their old value, summed over the sweeps of this fit."""
        return sum(info.n_refused for info in self.history)


class Posterior(Recorded):
    """Base of the results of fits with a loss."""

    @property
    def sites(self) -> Sites | None:
        sites: Sites | None = self.state.sites
        return sites

    # -- the choices --

    @property
    def loss(self) -> Loss | None:
        """The loss; None if the posterior was loaded and its loss could not be saved."""
        loss: Loss | None = self.problem.loss
        return None if loss is None else loss.with_offset(False)

    @property
    def scheme(self) -> Any:
        """The scheme; None if the posterior was loaded and its scheme could not be saved."""
        return self.problem.scheme

    @property
    def operator(self) -> Any:
        """What learned the messages, of a fit by :class:`epfast.Learned`; else None."""
        return getattr(self.scheme, "operator", None)

    @property
    def beta(self) -> float:
        """Inverse temperature of the factors exp(-beta loss)."""
        beta: float = self.problem.beta
        return beta

    @property
    def power(self) -> float:
        """Power of power EP; 1 is EP."""
        power: float = self.problem.schedule.power
        return power

    def known_loss(self) -> Loss:
        """The loss; raises if the posterior was loaded without it."""
        if self.loss is None:
            raise ValueError(
                "the loss of this posterior was not saved with it; use predict_latent, or load "
                "with the loss given"
            )
        return self.loss

    def loss_of_rows(self) -> Loss:
        """As :meth:`known_loss`, for :meth:`observed`: responses may carry an offset."""
        self.known_loss()
        loss: Loss = self.problem.loss
        return loss

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
        """Responses of the fit, for the core, (n, width); None if rows are unknown."""
        raise NotImplementedError

    def latent_at(self, draws: ArrayLike) -> Array:
        """Latent values of the rows at draws of :meth:`sample`, (k, n) or (k, n, C), no offset."""
        raise NotImplementedError

    def log_likelihood(self, draws: ArrayLike) -> Array:
        """Minus beta times the loss of each row at draws (k, p) of :meth:`sample`, (k, n)."""
        raise NotImplementedError

    def sample(self, size: int, rng: np.random.Generator | int | None = None) -> Array:
        """Draw from the posterior what ``mean`` is the mean of.

        Parameters
        ----------
        size : int
            Number of draws.
        rng : numpy.random.Generator or int, optional
            A generator, or a seed for one; None draws afresh.

        Returns
        -------
        ndarray of shape (size, d)
            Of weights, or of the latent values of the fit.
        """
        size = _checks.integer("size", size, least=0)
        return self._draw(size, _checks.generator("rng", rng))

    def _draw(self, size: int, rng: np.random.Generator) -> Array:
        """See :meth:`sample`."""
        raise NotImplementedError

    def _case(self) -> Case:
        raise NotImplementedError

    def _case_of(self, proposal: Any, *others: Any) -> Case:
        """What :meth:`check` compares, from what it draws from."""
        known = np.sqrt(self.variance), self.log_evidence, self.evidence_bound
        return Case(
            proposal, self.mean, *known, True, self.problem.loss.log_concave is True, *others
        )

    @property
    def evidence_bound(self) -> float:
        """The largest log evidence that is possible, up to rounding; inf: no bound is known."""
        if self.loss is None or self.observed() is None:
            return math.inf
        bound: float = self.problem.evidence_bound
        return bound

    def _latent_of_rows(self) -> tuple[Array, Array | None, Array, Array]:
        """Responses and weights of the rows, mean and variance of their latent values."""
        raise ValueError(
            "the posterior has no scalar site per row; allowed: one with a full covariance, "
            "batch_size=None and an EP schedule, or of a process"
        )

    # -- what all results say --

    def loss_gradient(self) -> dict[str, Any]:
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
        self.known_loss()
        y, weights, mean, variance = self._latent_of_rows()
        assert self.sites is not None
        # those with a scalar site per row have one
        learning.note_residual(cast(Any, self).residual)
        return learning.loss_gradient(self.problem, y, weights, self.sites, mean, variance)

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
        self.known_loss()
        y, weights, mean, variance = self._latent_of_rows()
        assert self.sites is not None
        problem: Any = self.problem
        total = learning.log_integrals(problem, y, weights, self.sites, mean, variance)
        now, shifted = total(problem.loss), problem.loss.has_offset
        return np.array([total(loss.with_offset(shifted)) - now for loss in others])

    def check(self, draws: int = 1000, seed: int = 0) -> Check:
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
            At least 100; the standard errors fall as its root.
        seed : int
            Of the draws.

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
        found = certificates.check(self._case(), draws, seed)
        said = report.not_counts(report.weights_of(self))
        return found if said is None else replace(found, reason=f"{found.reason}; given {said}")

    def credible_interval(self, level: float = 0.95) -> Array:
        """Central credible intervals, (d, 2).

        Parameters
        ----------
        level : float
            Posterior probability of each interval, between 0 and 1.

        Returns
        -------
        ndarray of shape (d, 2)
            Lower and upper ends.
        """
        return report.interval(self.mean, self.variance, report.level_at_door(level))

    def summary(self, level: float = 0.95) -> Any:
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
        return report.summary(self, level)

    def to_arviz(self, draws: int = 1000, chains: int = 4, seed: int = 0) -> Any:
        """Draws for ArviZ, with the log likelihood of each row and EP's leave-one-out.

        Parameters
        ----------
        draws, chains : int
            All draws are independent; chains serve the functions of ArviZ.
        seed : int
            Of the draws.

        Returns
        -------
        arviz.InferenceData, or xarray.DataTree with ArviZ 1.0 or later, or without ArviZ
            Groups ``posterior``; where the rows are known ``log_likelihood``,
            ``observed_data`` and, of responses that can be drawn, ``posterior_predictive``; where
            sites give it ``loo``, leave-one-out log probabilities from the
            cavities, with their sum.

        Raises
        ------
        ImportError
            Without xarray, which the extra ``arviz`` brings.
        """
        return report.to_arviz(self, draws, chains, seed)
