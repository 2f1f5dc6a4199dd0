"""Sites, records of sweeps, and warnings."""

from __future__ import annotations

import inspect
import warnings
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from epfast._arrays import Array

#: what a user is given of a fit, a state or a posterior, of the class that its door documents
OfFit: TypeAlias = Any  # type: ignore[explicit-any]


class Sites(NamedTuple):
    """Gaussian sites g_i(theta) = exp(log_scale_i + shift_i.theta - precision_i.theta^2 / 2)."""

    #: precision of each site: (n_factors, d), or (n,) for scalar sites, or (K, d, d) for sites that
    #: the N_k factors of a group share. A shared site counts N_k times in the posterior. Where X is
    #: CSR, a csr_array of SciPy, with the columns that the rows of a factor have, stands in for the
    #: (n_factors, d) of a result
    precision: Array
    #: precision times mean, about the origin: of the same shape, or (K, d)
    shift: Array
    #: log of the site at the origin: (n_factors,) or (K,)
    log_scale: Array

    def cavities(
        self, mean: Array, variance: Array, share: Array | float = 1.0
    ) -> tuple[Array, Array]:
        """Mean and variance of marginals without a share of their scalar sites, (n,) each.

        The variance of an improper cavity is inf, and its mean 0.
        """
        ratio = 1.0 - share * self.precision * variance
        proper = ratio > 0.0
        safe = np.where(proper, ratio, 1.0)
        return (
            np.where(proper, (mean - share * self.shift * variance) / safe, 0.0),
            np.where(proper, variance / safe, np.inf),
        )

    def proper_cavities(self, mean: Array, variance: Array) -> tuple[Array, Array] | None:
        """The same, or None if a cavity is improper."""
        cavities = self.cavities(mean, variance)
        return cavities if np.isfinite(cavities[1]).all() else None


def check_proper(variance: Array) -> None:
    """Refuse cavities of which some are improper: their variance is inf."""
    count = int((~np.isfinite(variance)).sum())
    if count:
        raise FloatingPointError(f"{count} of {len(variance)} cavities are improper")


class SweepInfo(NamedTuple):
    """The record of one sweep."""

    #: number of the sweep, from 1
    sweep: int
    #: largest change of a mean, in posterior standard deviations, or of the log of a standard
    #: deviation, over the damping
    change: float
    #: sites that kept their old value, since cavity, fit or posterior would have been improper. A
    #: site with several coordinates counts once, if one coordinate was kept
    n_refused: int
    #: factors whose fit failed as a whole. They count in ``n_refused`` too
    n_failed: int
    #: log evidence after the sweep
    log_evidence: float
    #: wall-clock time of the sweep
    seconds: float
    #: regularised cost at the posterior mean. None if it is not recorded
    cost: float | None = None
    #: (updates,), the same after every factor. None if it is not recorded
    factor_cost: Array | None = None
    #: difference between the posterior that is built from the sites and that of the updates, which
    #: is rounding, in the units of ``change``. None where it was not built
    drift: float | None = None
    #: coordinates whose precision the site rule changed
    n_clipped: int = 0
    #: for a double loop: largest difference between tilted and posterior moments, in standard
    #: deviations (means) or relative (variances). None elsewhere
    mismatch: float | None = None
    #: for learned messages: questions to the oracles, and audits among them. None elsewhere
    n_calls: int | None = None
    n_audits: int | None = None
    #: for a fit on an executor: tasks that it lost, each of which was sent again
    n_lost: int = 0
    #: tasks in flight at a time in order "as_completed". None elsewhere, where the numbers do not
    #: depend on which task ends first
    in_flight: int | None = None
    #: bytes of the messages to and from workers, where they are counted. None elsewhere
    n_bytes: int | None = None


class Callback(Protocol):
    """What is called after each sweep. A true answer ends the fit."""

    def __call__(self, info: SweepInfo, state: OfFit, /) -> bool | None: ...


class ConvergenceWarning(UserWarning):
    """The result is no fixed point of EP. The text says why, and what to do.

    Sites refused, fits failed, a tolerance missed, an impossible log evidence.
    """


class DataWarning(UserWarning):
    """A note on the data: the fit is correct for its model, which may not be the intended one."""


#: packages whose lines are not the user's
PACKAGES = frozenset({"epfast", "sklearn", "joblib", "threading", "concurrent", "GPy", "paramz"})


def warn_user(text: str | Warning, category: type[Warning] | None = None) -> None:
    """Warn at the nearest line outside the libraries; the category of a warning is its class."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in PACKAGES:
        level, frame = level + 1, frame.f_back
    # a frame that refers to itself would keep what callers hold until the next garbage collection
    del frame
    warnings.warn(text, category, stacklevel=level + 1)


class PartOfSweep(KeyboardInterrupt):
    """Ctrl-C in a sweep whose parts count: ``state`` is that after the last of them."""

    def __init__(self, state: OfFit) -> None:
        super().__init__()
        self.state = state


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a fit. ``posterior`` is that of the sweeps so far. Resume from it.

    It is that of the last complete sweep, or the start (the prior, if there was none) before the
    first. In "chunked" order the chunks of the sweep that it falls in count too. After ADF it holds
    the first ``posterior.rows_seen`` rows of the pass. Go on with the others by ``fit_linear(rest,
    schedule=ADF(), start=posterior)``. In a shuffled order, which rows sorted by their responses
    get, the first ones are those of ``posterior.schedule.visits(n_factors, 0)``. It may hold the
    rounding drift of a few sweeps, and what costs long to compute is computed when it is asked for.
    Of an estimator it is None where no sweep was at work.
    """

    def __init__(self, posterior: OfFit) -> None:
        kept = "" if posterior is None else ". The attribute posterior is that of the sweeps so far"
        super().__init__(f"interrupted{kept}")
        self.posterior = posterior


class ExecutorFailed(RuntimeError):  # noqa: N818 (named as Interrupted is)
    """An executor lost the same task again and again, or takes no more.

    ``posterior`` is that of the sweeps so far, as in :class:`epfast.Interrupted`. A task that was
    lost has not changed it. Resume from it by ``start=``, on another executor.
    """

    def __init__(self, message: str, posterior: OfFit = None) -> None:
        super().__init__(message)
        self.posterior = posterior
