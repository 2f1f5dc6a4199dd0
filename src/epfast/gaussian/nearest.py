"""Gaussian processes by nearest rows: each value given the sites of a few others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import ClassVar, Never

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epfast import _checks
from epfast._arrays import Array
from epfast.gaussian.diagnostics import broken
from epfast.gaussian.engine import Start
from epfast.gaussian.forms.kernel import GPState
from epfast.gaussian.forms.nearest import Nearest, NearestEngine
from epfast.gaussian.prior import KernelPrior, NearRows
from epfast.gaussian.problem import Problem
from epfast.gaussian.process_posterior import ProcessPosterior
from epfast.gaussian.shards import WarmStart
from epfast.inference import Callback, Fit, interrupted, run_from
from epfast.inference.runtime import one_blas_thread


@dataclass(frozen=True, eq=False, repr=False)
class NearestGPPosterior(ProcessPosterior):
    """The posterior of each latent value of a Gaussian process, by its nearest rows.

    EP in which the cavity of a row is the process there given the sites of the ``n_neighbors`` rows
    of largest prior correlation with it, and not of all. With all other rows it is EP; with fewer
    an approximation, whose probabilities are less sure. There is no joint distribution, so no log
    evidence, covariance or joint draw; ``loo_log_predictive`` compares kernels.

    Attributes
    ----------
    mean, variance : ndarray of shape (n,)
        Of the latent values f_i.
    sites : Sites
        precision, shift and log_scale, (n,) each.
    n_neighbors : int
        Rows that a cavity depends on.
    loo_gain : float
        What the rows that a prediction depends on, eight times as many, add to the leave-one-out
        log probability of a row, in the mean over up to 200 rows.
    log_evidence : float
        NaN: there is none.
    y, loss, scheme, schedule, beta, power, converged, history
        As in :class:`GPPosterior`.
    """

    state: GPState
    problem: Problem[KernelPrior]
    n_neighbors: int
    loo_gain: float

    kind: ClassVar[str] = "nearest_process"

    mean = property(attrgetter("state.moments.mean"))
    variance = property(attrgetter("state.moments.variance"))
    log_evidence = float("nan")

    @property
    def approximation(self) -> str:
        """What a summary says of it."""
        return (
            f"approximate: each of {len(self.mean)} rows is given {self.n_neighbors} near ones, "
            "which has no log evidence; to the log probability of a row left out, the rows that "
            f"predictions are given add {self.loo_gain:.2g}"
        )

    def predict_latent(
        self,
        K_star: ArrayLike | NearRows,
        K_star_star: ArrayLike | None = None,
        joint: bool = False,
    ) -> tuple[Array, Array]:
        """Mean and variance of the process at new inputs, each given the sites of its rows.

        Parameters
        ----------
        K_star : object
            The new inputs and the rows nearest to each, as :class:`epfast.GPClassifier` makes it.
        K_star_star : None
            ``K_star`` has it.
        joint : bool
            False: there are no covariances.

        Returns
        -------
        mean : ndarray of shape (m,)
        variance : ndarray of shape (m,)
        """
        if _checks.flag("joint", joint) or K_star_star is not None:
            self._refuse("joint distribution of new inputs")
        if not isinstance(K_star, NearRows):
            raise TypeError(
                f"K_star is {_checks.describe(K_star)}; allowed: new inputs with their nearest "
                "rows (predict by the estimator that made this posterior)"
            )
        with one_blas_thread(K_star.count):
            return K_star.moments_at(np.arange(len(K_star.diagonal)), self.state.sites)

    def predict_mean(self, K_star: ArrayLike | NearRows) -> Array:
        """Mean of the process at new inputs, as :meth:`predict_latent` has it."""
        return self.predict_latent(K_star)[0]

    def loss_gradient(self) -> dict[str, Array | float]:
        """There is none, of a posterior without a log evidence."""
        self._refuse("log evidence, nor gradient of it,")

    @property
    def covariance(self) -> Array:
        """There is none."""
        self._refuse("joint distribution of rows")

    def _draw(self, size: int, rng: np.random.Generator) -> Array:
        self._refuse("joint distribution of rows to draw from")

    def _proposal(self) -> Never:
        self._refuse("joint distribution of rows to draw from")

    def _refuse(self, what: str) -> Never:
        raise ValueError(
            f"a process by nearest rows has no {what}; allowed: method='exact', or a rank"
        )


def fit_nearest(
    problem: Problem[KernelPrior],
    some: NDArray[np.intp],
    wider: NearRows,
    start: ProcessPosterior | WarmStart | None = None,
    callback: Callback | None = None,
) -> NearestGPPosterior:
    """Run a problem whose parts are legal and checked.

    Its kernel is the rows of :class:`.engines.nearest.Nearest`; wider: some of these, each given
    more of the others.
    """
    rows = problem.prior.kernel
    assert isinstance(rows, NearRows)

    def result(fit: Fit[GPState]) -> NearestGPPosterior:
        sites = fit.state.sites
        cavities = rows.moments_at(some, sites), wider.moments_at(np.arange(len(some)), sites)
        y, loss = problem.responses(some), problem.loss
        few, more = (loss.log_predictive(y, *moments) for moments in cavities)
        gain = float(np.mean(more - few))
        post = NearestGPPosterior(fit.state, problem, fit.converged, fit.history, rows.count, gain)
        return replace(post, converged=False) if fit.converged and broken(post) else post

    def unfitted() -> NearestGPPosterior:
        form = Nearest(rows)
        return result(Fit(form.result(form.prior()), False, []))

    try:
        engine = NearestEngine(problem)
        begin: Start | None = start
        return result(run_from(engine, problem.schedule, begin, callback=callback))
    except KeyboardInterrupt as pressed:
        raise interrupted(pressed, None, result, start, unfitted) from None
