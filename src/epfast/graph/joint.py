"""Laplace propagation with joint sites: a Gaussian over all variables, sites over neighbours."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from epfast import _checks
from epfast._arrays import Array
from epfast.gaussian.state import is_proper
from epfast.graph.beliefs import BlockBelief
from epfast.graph.blocks import belief_of
from epfast.graph.engine import FAR, remedy_for
from epfast.graph.factors import HALF_LOG_2PI, Batch, Beliefs
from epfast.graph.own import Factor
from epfast.graph.posterior import GraphPosterior
from epfast.graph.problem import GraphProblem
from epfast.graph.variables import LinearForm
from epfast.inference import Counts, Summary, Swept
from epfast.inference.loop import change
from epfast.inference.runtime import Tick
from epfast.operators.laplace import LaplaceMessages, kinks
from epfast.operators.tilted import FactorCavities, FactorRows, Tilted, maximum
from epfast.schedules import EP

#: the state of a posterior with joint sites, and an engine with joint sites or with others: what a
#: graph reads of them is the same, and they share no class
JointOrOther: TypeAlias = Any  # type: ignore[explicit-any]
#: singular values of a precision matrix, relative to the largest, that count as 0
NOTHING = 1e-12


def reads_jointly(batch: Batch) -> bool:
    """Whether the factors of a batch may have sites over several variables."""
    scheme = getattr(batch.factor, "scheme", None)
    return isinstance(scheme, LaplaceMessages) and scheme.reading == "joint"


def is_joint(problem: GraphProblem) -> bool:
    """Whether a graph has joint sites. Raises if it also has other factors or variables."""
    batches = problem.model.joined
    joint = [batch for batch in batches if reads_jointly(batch)]
    if all(batch.table.shape[1] == 1 for batch in joint):
        return False
    if len(joint) < len(batches) or problem.model.families.any():
        raise ValueError(
            "the graph has other variables or factors beside reading='joint'; allowed with it: "
            "Graph.gaussian, and Factor(log_t, LaplaceMessages('joint')) alone"
        )
    return True


class JointSites(NamedTuple):
    """exp(scale + shift.x - x.precision.x / 2) over the neighbours of each factor of a batch."""

    #: (n, k, k)
    precision: Array
    #: (n, k)
    shift: Array
    #: (n,)
    scale: Array


class JointState(NamedTuple):
    """The belief about all d variables, and the sites of each batch."""

    #: (d,), and (d, d) with an infinite diagonal entry while a variable is not determined
    mean: Array
    covariance: Array
    sites: tuple[JointSites, ...]
    sweeps: int
    log_evidence: float = -math.inf
    #: all variables are scalars
    blocks: tuple[()] = ()
    linear: tuple[()] = ()

    @property
    def beliefs(self) -> Array:
        """Natural parameters of the marginals."""
        precision = 1.0 / self.covariance.diagonal()
        return np.stack([precision, precision * self.mean], axis=1).ravel()


class Cavity:
    """Log of t times a Gaussian over its neighbours, with natural parameters (k, k) and (k,)."""

    def __init__(self, tilted: Tilted, precision: Array, shift: Array) -> None:
        self.tilted, self.precision, self.shift = tilted, precision, shift

    def log(self, u: Array) -> Array:
        """Log of the Gaussian at u (m, k), without its constant."""
        return np.asarray(u @ self.shift - 0.5 * ((u @ self.precision) * u).sum(axis=1))

    def value(self, u: Array, cavities: FactorCavities) -> Array:
        return self.tilted.log_t(u, cavities.rows) + self.log(u)

    def derivatives(
        self, u: Array, cavities: FactorCavities, width: Array
    ) -> tuple[Array, Array, Array]:
        value, slope, curvature = self.tilted.factor(u, cavities.rows, width)
        return (
            value + self.log(u),
            slope + self.shift - u @ self.precision,
            self.precision - curvature,
        )


class JointEngine:
    """Sequential sweeps over the factors, alternately forward and backward. O(n d^3)."""

    pool = None

    def __init__(self, problem: GraphProblem) -> None:
        schedule = problem.schedule
        is_ep = issubclass(type(schedule), EP)
        if not is_ep or schedule.power != 1.0 or schedule.order == "parallel":
            raise ValueError(
                f"schedule is {_checks.describe(schedule)}; allowed with reading='joint': EP of "
                "power 1, in sequential order"
            )
        self.problem = problem
        self.n_sites = problem.model.n_factors
        self.order_of_matrices = d = len(problem.model.families)
        self.evidence_bound = problem.evidence_bound
        self.tau, self.nu = problem.prior.reshape(d, 2).T
        known = self.tau > 0.0  # flat priors have density 1
        tau, nu = self.tau[known], self.nu[known]
        mean, variance = np.zeros(d), np.full(d, np.inf)
        mean[known], variance[known] = nu / tau, 1.0 / tau
        partition = 0.5 * float((nu * nu / tau - np.log(tau)).sum())
        partition -= HALF_LOG_2PI * float((~known).sum())
        self.prior = BlockBelief(np.diag(variance), mean, partition)
        self.at = [batch.table for batch in problem.model.batches]
        self.rows = [FactorRows(batch.data, batch.rows) for batch in problem.model.batches]
        factors = [batch.factor for batch in problem.model.batches]
        self.tilted = [
            factor.tilted(("gaussian",) * at.shape[1])
            for factor, at in zip(factors, self.at, strict=True)
            if isinstance(factor, Factor)
        ]
        starts = np.cumsum([0, *(batch.n for batch in problem.model.batches)])
        order = problem.model.order()
        self.program = problem.program(order)
        which = np.searchsorted(starts, order, side="right") - 1
        self.order = list(zip(which.tolist(), (order - starts[which]).tolist(), strict=True))
        #: why updates were refused, and how often
        self.reasons: Counter[str] = Counter()

    @property
    def remedy(self) -> str:
        return remedy_for(self.reasons)

    def init(self, start: GraphPosterior | None) -> JointState:
        if start is not None:
            if not isinstance(start, JointGraphPosterior) or not start.problem.is_that(
                self.problem
            ):
                raise ValueError(
                    "start has other factors, or no joint sites; allowed with reading='joint': a "
                    "posterior of the same graph, or None"
                )
            state: JointState = start.state
            return state
        sites = tuple(
            JointSites(np.zeros((*at.shape, at.shape[1])), np.zeros(at.shape), np.zeros(len(at)))
            for at in self.at
        )
        return JointState(self.prior.mean, self.prior.covariance, sites, 0)

    def added_up(self, sites: tuple[JointSites, ...]) -> tuple[Array, Array]:
        """Natural parameters of priors times sites, (d, d) and (d,)."""
        precision, shift = np.diag(self.tau), self.nu.copy()
        for at, site in zip(self.at, sites, strict=True):
            np.add.at(precision, (at[:, :, None], at[:, None, :]), site.precision)
            np.add.at(shift, at, site.shift)
        return precision, shift

    def finish(self, state: JointState, hurry: bool = False) -> JointState:
        return state

    def summary(self, state: JointState, evidence: bool = True) -> Summary:
        return Summary(state.mean, state.covariance.diagonal().copy(), state.log_evidence)

    def sweep(
        self, state: JointState, keep: bool, tick: Tick, summary: Summary | None = None
    ) -> Swept[JointState]:
        sites = tuple(JointSites(*(part.copy() for part in site)) for site in state.sites)
        precision, shift = self.added_up(sites)
        now = belief_of(precision, shift)
        mean, damping, refused = state.mean, self.problem.schedule.damping, 0
        for b, i in self.order[:: -1 if state.sweeps % 2 else 1]:
            at = self.at[b][i]
            if now is not None:
                belief = np.linalg.inv(now.covariance[np.ix_(at, at)])  # a precision
                incoming = belief @ now.mean[at]
            else:
                belief, incoming = without_others(precision, shift, at)
            old = JointSites(*(part[i] for part in sites[b]))
            new = self.fitted(b, i, belief - old.precision, incoming - old.shift, mean[at])
            tick(1)
            if new is None:
                refused += 1
                continue
            step = JointSites(*(damping * (a - z) for a, z in zip(new, old, strict=True)))
            if now is not None and not is_proper(belief + step.precision):
                refused += 1
                continue
            for part, more in zip(sites[b], step, strict=True):
                part[i] += more
            precision[np.ix_(at, at)] += step.precision
            shift[at] += step.shift
            now = belief_of(precision, shift)
            mean = mean if now is None else now.mean
        precision, shift = self.added_up(sites)
        end = belief_of(precision, shift)
        if end is None:
            if state.sweeps:  # keep the state, since smaller steps may help
                same = state._replace(sweeps=state.sweeps + 1)
                far, counts = FAR / damping, Counts(refused=self.n_sites)
                return Swept(same, far, state.log_evidence, counts, settled=False)
            raise FloatingPointError(f"the factors do not determine all variables; {self.remedy}")
        evidence = sum(float(site.scale.sum()) for site in sites) + end.partition
        evidence -= self.prior.partition
        new_state = JointState(end.mean, end.covariance, sites, state.sweeps + 1, evidence)
        with np.errstate(all="ignore"):
            far = float(change(self.summary(state), self.summary(new_state)))
        far = min(far, FAR) if far >= 0.0 else FAR  # NaN: some variable was not determined
        return Swept(new_state, far / damping, evidence, Counts(refused=refused))

    def fitted(
        self, b: int, i: int, precision: Array, shift: Array, start: Array
    ) -> JointSites | None:
        """The site of the Laplace fit of a factor times its cavity. None if the fit fails."""
        tilted, rows = self.tilted[b], self.rows[b].select(slice(i, i + 1))
        density = Cavity(tilted, precision, shift)
        cavities = FactorCavities((), np.zeros((1, len(start)), dtype=bool), start[None], rows, 1.0)
        tau = precision.diagonal()
        wide = np.maximum(1.0, np.abs(start))
        with np.errstate(all="ignore"):
            width = np.where(tau > 0.0, 1.0 / np.sqrt(tau), wide)[None]
            mode = maximum(density, cavities, start[None], width)
        reason = 0 if mode.converged[0] else 2 if mode.finite[0] else 1
        if not reason and tilted.hessian is None:
            reason = 4 * len(kinks(density, cavities, mode, np.zeros(1, dtype=np.intp)))
        if reason:
            self.reasons[LaplaceMessages.reasons[reason]] += 1
            return None
        x, curvature = mode.u[0], mode.curvature[0] - precision
        slope = precision @ x - shift
        log_t = float(mode.value[0] - density.log(mode.u)[0])
        return JointSites(
            curvature,
            slope + curvature @ x,
            np.asarray(log_t - slope @ x - 0.5 * x @ curvature @ x),
        )


def without_others(precision: Array, shift: Array, at: Array) -> tuple[Array, Array]:
    """The marginal of a Gaussian over some variables, where the others may be undetermined."""
    rest = np.setdiff1d(np.arange(len(shift)), at)
    pull = precision[np.ix_(at, rest)] @ np.linalg.pinv(
        precision[np.ix_(rest, rest)], rcond=NOTHING, hermitian=True
    )
    return (
        precision[np.ix_(at, at)] - pull @ precision[np.ix_(rest, at)],
        shift[at] - pull @ shift[rest],
    )


@dataclass(frozen=True)
class JointBeliefs(Beliefs):
    """Beliefs by which forms have all correlations."""

    mean: Array
    covariance: Array

    def latent(self, form: LinearForm) -> tuple[Array, Array]:
        rows = np.zeros((form.size, len(self.mean)))
        which = np.repeat(np.arange(form.size), form.terms.counts)
        np.add.at(rows, (which, form.terms.variables), form.terms.coefficient)
        mean = form.offset + rows @ self.mean
        variance = ((rows @ self.covariance) * rows).sum(axis=1)
        return mean.reshape(form.shape), variance.reshape(form.shape)


class JointGraphPosterior(GraphPosterior):
    """A Gaussian over all variables of a graph whose factors have joint sites.

    Attributes
    ----------
    covariance : ndarray of shape (d, d)
        Covariance of all variables, in the order in which they were made.
    """

    state: JointOrOther

    @property
    def covariance(self) -> Array:
        return np.asarray(self.state.covariance.copy())

    @property
    def beliefs(self) -> Beliefs:
        q, state = super().beliefs, self.state
        return JointBeliefs(q.at, q.natural, q.blocks, q.log_z, state.mean, state.covariance)

    def sample(self, size: int, rng: np.random.Generator | int | None = None) -> dict[str, Array]:
        """Joint draws of all variables, as :meth:`GraphPosterior.sample` returns them."""
        size = _checks.integer("size", size, least=1)
        normal = _checks.generator("rng", rng).standard_normal((size, len(self.state.mean)))
        draws = self.state.mean + normal @ np.linalg.cholesky(self.state.covariance).T
        return {
            key if isinstance(key, str) else f"v{key}": draws[:, made.numbers.ravel()].reshape(
                size, *made.shape
            )
            for key, made in self.problem.model.variables.items()
            if hasattr(made, "numbers")
        }
