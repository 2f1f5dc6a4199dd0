"""ADF, SEP and EP on natural parameters: one engine for all models with rows.

A belief is one vector of P natural parameters. Products add them. The cavity of a row and what
becomes of the belief q:

- ADF: cavity q. q becomes the fit q*. Several passes count the rows several times.
- SEP, DSEP (batches of M rows of group k, damping rho; AEP: whole groups): cavity q - g_k. Then
  g_k += rho / N_k sum_m (q*_m - cavity - g_k), and q = base + sum_k N_k g_k (Li et al. 2015).
- EP: cavity q - g_n. Then g_n += rho (q* - cavity - g_n), and q = base + sum_n g_n.

A model is compiled. It fits rows and knows nothing of passes. Each of its methods is one call of
the core, so that Ctrl-C finds a whole state after ``end``. Between ``begin`` and ``end``, which
change the arrays of a state in place, the belief may be kept in another form.

- ``begin(belief, base, sites, sizes, damping, alone)`` takes in a state. sizes: (K,), rows per
  group where groups share a site, else None. alone: whether each row is a batch of its own.
- ``visit(rows, group, last)`` fits some rows, in their order. Of shared sites with group and
  whether a batch ends, which may go on in the next call. Indices are checked, since schedules may
  be the user's.
- ``end()`` writes the belief, without a batch that has not ended. It returns the log_scale of the
  state, the number of rows of which a part, or all, kept the old site, and of those that kept it
  as a whole.
- ``refine(belief, base, left)`` fits the factors of the prior anew after a pass, in place. left:
  the share of what sites began with that the pass has left in them.
- ``moments(belief)`` gives mean and variance of the parameters, by which ``change`` is measured, as
  new arrays. ``log_evidence(state)`` is a number, ``n_rows`` and ``n_naturals`` are sizes.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast import _checks
from epfast._arrays import Array, as_array
from epfast._core.thread_pool import ThreadPool
from epfast.gaussian.files import contents
from epfast.inference import Counts, PartOfSweep, Summary, SweepInfo, Swept
from epfast.inference.files import write
from epfast.inference.loop import Recorded, change
from epfast.inference.runtime import Tick, TimedPieces, physical_memory
from epfast.schedules import ADF, AEP, DSEP, EP, SEP

#: what a schedule may ask for and no sweep here has
UNUSED = ("site_rule", "block", "warm_up")
#: arrays of the size of a belief that a fit without sites takes
ARRAYS = 20
#: relative difference up to which sites are those of a belief
SAME = 1e-4


class ParametricState(NamedTuple):
    """A belief and its sites: plain arrays, picklable."""

    #: (P,), natural parameters of q
    belief: Array
    #: (P,), those of the prior. A model may keep more numbers of its own behind them
    base: Array
    #: None (ADF). (K, P), the site of one row of each group (SEP, AEP, DSEP, DAEP). (n, P) (EP)
    sites: Array | None
    #: what the model needs for ``log_evidence``
    log_scale: Any
    #: passes done so far
    sweeps: int


def checked_schedule(schedule: Any, model: str, seed: int) -> Any:
    """The schedule with all of its numbers. Raises where there are no such sweeps.

    model: what is fitted, for messages. Seed: of a shuffled order that has none. An order that is
    left open is "shuffled".
    """
    if not isinstance(schedule, EP | ADF | SEP | AEP | DSEP):
        _checks.schedule(
            schedule, EP, f"for {model} epfast.EP(), ADF(), SEP(), AEP() or DSEP(), fits of rows"
        )
    order = schedule.order
    if order in (None, "auto"):
        order = "shuffled"
    if order not in ("sequential", "shuffled"):
        raise ValueError(
            f"order is {order!r}; allowed for {model}: 'sequential' or 'shuffled', since rows are "
            "fitted one after the other"
        )
    if schedule.power not in (None, 1.0):
        raise ValueError(
            f"power is {schedule.power:g}; allowed for {model}: 1, since powers of its factors "
            "have no moments in closed form"
        )
    for name in UNUSED:
        if getattr(schedule, name, None) not in (None, 0):
            raise ValueError(f"{name} is {getattr(schedule, name)!r}; allowed for {model}: None")
    result = schedule.filled(power=1.0, damping=schedule.usual_damping("row"))
    _checks.freeze(result, order=order)
    return result.filled(seed=seed) if order == "shuffled" else result


def check_memory(
    schedule: Any, n: int, size: int, P: int, given: str, what: str, cheaper: str
) -> None:
    """Refuse what this machine cannot hold: beliefs of so many numbers, or the sites of n rows.

    P: numbers of a site. For the message given: the argument and its value, what: the beliefs,
    cheaper: what is allowed.
    """
    needed = 8.0 * ARRAYS * size
    if schedule.stores == "factor":
        needed += 8.0 * n * P
        what = f"EP's sites of ({n}, {P}) numbers"
        cheaper = f"schedule=epfast.SEP(), which stores one site, or {cheaper}"
    memory = physical_memory()
    if 0 < memory < needed:
        raise ValueError(
            f"{given}, for which {what} take {needed / 2**30:.3g} GB, and this machine has "
            f"{memory / 2**30:.3g} GB; allowed: {cheaper}"
        )


def site_sizes(schedule: Any, n: int) -> Array | None:
    """How many of n rows each site stands for, (K,). None: ADF has no sites."""
    if schedule.stores == "none":
        return None
    if schedule.stores == "factor":
        return np.ones(n)
    return np.bincount(schedule.labels(n)).astype(np.float64)


def check_sites(schedule: Any, n: int, state: ParametricState) -> None:
    """Refuse sites of another number than a schedule has for n rows."""
    sizes = site_sizes(schedule, n)
    counts = [None if part is None else len(part) for part in (sizes, state.sites)]
    if counts[0] != counts[1]:
        raise ValueError(f"there are {counts[1]} sites of {n} rows")


class ParametricEngine:
    """The schedules on a model. See the head of this file."""

    order_of_matrices = 0
    pool: ThreadPool | None = None
    #: of a density it has no bound
    evidence_bound = math.inf

    def __init__(
        self,
        model: Any,
        schedule: Any,
        first: ParametricState,
        remedy: str,
    ) -> None:
        """Make the engine.

        Parameters
        ----------
        model
            See the head of this file.
        schedule : Schedule
            See :func:`checked_schedule`.
        first : ParametricState
            Where a run without a start begins. Its sites are not looked at.
        remedy : str
            What to do about a run that fails.
        """
        self.model, self.schedule, self.first, self.remedy = model, schedule, first, remedy
        self.n_sites = n = model.n_rows
        #: (K,), rows per group where groups share a site
        self.sizes = site_sizes(schedule, n) if schedule.stores == "shared" else None

    def init(self, start: Any) -> ParametricState:
        """The state of a posterior, with sites for this schedule.

        Sites of another kind become equal shares of what the belief has beyond the base.
        """
        state = self.first if start is None else start.state
        state = state._replace(belief=state.belief.copy(), base=state.base.copy())
        sizes = site_sizes(self.schedule, self.n_sites)
        if sizes is None:
            return state._replace(sites=None)
        shape = (len(sizes), self.model.n_naturals)
        beyond = state.belief - state.base[: self.model.n_naturals]
        if state.sites is not None and state.sites.shape == shape:
            # those of other rows may be as many
            total = sizes @ state.sites
            if np.allclose(total, beyond, rtol=SAME, atol=SAME * np.abs(beyond).max()):
                return state._replace(sites=state.sites.copy())
        return state._replace(sites=np.tile(beyond / self.n_sites, (shape[0], 1)))

    def sweep(
        self, state: ParametricState, keep: bool, tick: Tick, summary: Summary | None = None
    ) -> Swept[ParametricState]:
        """One pass over the rows, then the factors of the prior."""
        with np.errstate(all="ignore"):  # the loop looks at what comes out
            summary = self.summary(state, False) if summary is None else summary
        if keep:
            state = state._replace(
                belief=state.belief.copy(),
                base=state.base.copy(),
                sites=None if state.sites is None else state.sites.copy(),
            )
        model, schedule = self.model, self.schedule
        group, last, alone = None, None, True
        if self.sizes is None:
            rows = as_array(schedule.checked_visits(self.n_sites, state.sweeps))
        else:
            rows, group, last = schedule.batches(self.n_sites, state.sweeps)
            alone = bool(np.all(last))
        model.begin(state.belief, state.base, state.sites, self.sizes, schedule.damping, alone)
        try:
            for part in TimedPieces(len(rows)):
                if group is None or last is None:
                    model.visit(rows[part], None, None)
                else:
                    model.visit(rows[part], group[part], last[part])
                tick(part.stop - part.start)
        except KeyboardInterrupt:
            scale, _, _ = model.end()
            self._sum_up(state)
            raise PartOfSweep(state._replace(log_scale=scale)) from None
        scale, refused, failed = model.end()
        self._sum_up(state)
        model.refine(state.belief, state.base, self._share_left(group, last))
        state = state._replace(log_scale=scale, sweeps=state.sweeps + 1)
        with np.errstate(all="ignore"):
            now = self.summary(state)
            moved = change(summary, now) / schedule.damping
        return Swept(state, moved, now.log_evidence, Counts(refused, failed), now)

    def _share_left(self, group: NDArray[np.intp] | None, last: NDArray[np.uint8] | None) -> float:
        """Of old sites, the share that a pass leaves. ADF has none, and takes nothing out."""
        damping = self.schedule.damping
        if self.schedule.stores == "none":
            return 1.0
        if self.sizes is None or group is None or last is None:
            return float(1.0 - damping)
        ends = np.flatnonzero(last)
        shares = damping * np.diff(ends, prepend=-1) / self.sizes[group[ends]]
        with np.errstate(divide="ignore"):  # whole groups leave nothing
            logs = np.log1p(-np.minimum(shares, 1.0))
        by_group = np.exp(np.bincount(group[ends], logs))
        return float(by_group @ self.sizes / self.n_sites)

    def _sum_up(self, state: ParametricState) -> None:
        """The belief of EP from its sites: what rounding has left in it goes. O(n P)."""
        if self.schedule.stores == "factor":
            assert state.sites is not None
            total = state.sites.sum(axis=0, dtype=np.float64)
            np.add(state.base[: self.model.n_naturals], total, out=state.belief)

    def summary(self, state: ParametricState, evidence: bool = True) -> Summary:
        mean, variance = self.model.moments(state.belief)
        return Summary(mean, variance, self.model.log_evidence(state) if evidence else 0.0)

    def finish(self, state: ParametricState, hurry: bool = False) -> ParametricState:
        """Free of rounding drift already: each pass sums up."""
        return state


@dataclass(eq=False, repr=False)
class ParametricPosterior(Recorded):
    """What posteriors of networks and mixtures have in common: a state, and how the fit went."""

    problem: Any
    state: ParametricState
    converged: bool
    history: list[SweepInfo]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to an ``.npz`` file, which :func:`epfast.load` reads. Nothing is pickled.

        A fit that goes on from it (``start``) goes on to the bit as if it had not stopped.
        """
        write(path, *contents(self))
