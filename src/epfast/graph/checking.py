"""Checks of graphs: the exact posterior beside the beliefs, by importance sampling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy import special

from epfast import _checks
from epfast._arrays import Array
from epfast.families import SCALARS, Categorical, Dirichlet
from epfast.graph.catalogue.linear import LinearFactor, log_likelihood_at
from epfast.graph.factors import HALF_LOG_2PI, expanded, forms_at
from epfast.graph.marginals import Others
from epfast.graph.model import BLOCK, CATEGORICAL, DIRICHLET, GraphModel
from epfast.graph.problem import GraphProblem, GraphState
from epfast.graph.variables import Block, Index, Scales
from epfast.inference.certificates import Check, check
from epfast.inference.importance import Proposal
from epfast.losses import Loss

#: most draws times variables and neighbours of factors, which take five minutes: 70 ns each were
#: measured on a chain of 3,000
MOST_WORK = 4e9
#: the least probability that counts
TINY = float(np.finfo(np.float64).tiny)


class GraphProposal(Proposal):
    """Independent draws of all variables from their beliefs, weighted by prior times factors.

    A variable is a function of a standard normal number. Gaussian variables, logs of gamma
    variables and log odds of beta variables are linear in it, with their mean and variance under
    the belief. A category is found from its probabilities. A block is a function of d numbers, and
    is drawn with its covariance. K probabilities are K gamma variables divided by their sum, which
    is independent of them. Columns of draws are the variables in turn, then the blocks. Reported
    are all variables in turn: all entries of blocks, all probabilities, and indicators of the
    categories of categorical variables.
    """

    def __init__(self, problem: GraphProblem, state: GraphState) -> None:
        model = problem.model
        self.has_moments = bool((model.families <= 0).all())
        column, self.size = columns_of(model)
        self.width = self.size + int(
            (problem.model.sizes[problem.model.families == CATEGORICAL] - 1).sum()
        )
        #: for each family its columns, coordinate, natural parameters of the priors, whether these
        #: are proper, and centres and widths of the draws
        self.scalars = []
        #: for each number of categories the columns, cumulative probabilities, and the log of the
        #: prior over the probabilities. A flat prior is 1
        self.categories = []
        #: for each block its columns, log density of its prior, mean, what gives draws about that,
        #: and half of the log determinant of its covariance
        self.blocks = []
        #: for each number of probabilities their columns, what the concentrations of the prior are
        #: more than those of the belief, and logs of the ratio of what normalises them
        self.simplices = []
        # for each entry that is reported its variable, column, category (or -1), mean and variance
        entries: list[tuple[Index | int, Index, Index | int, Array, Array]] = []
        for family, of, at in Others.of(
            problem.model.families, problem.model.sizes, problem.at, 0
        ).groups:
            eta, prior = state.beliefs[at], problem.prior[at]
            if not family.is_proper(eta).all():
                raise ValueError(
                    "a belief is improper, so that the check cannot draw from it; allowed: fits in "
                    "which all beliefs are proper"
                )
            k = 1
            within: Index | int = 0
            levels: Index | int = -1
            if family is Categorical:
                k = at.shape[1]
                levels = np.tile(np.arange(k), len(of))
                log_q = Categorical.logits(eta)
                # categories that are never drawn
                share = np.where(np.isfinite(log_q), prior - log_q, -np.inf)
                edges = np.cumsum(np.exp(log_q), axis=1)[:, :-1]
                self.categories.append((column[of], edges, share))
            elif family is Dirichlet:
                k = at.shape[1]
                within = np.tile(np.arange(k), len(of))
                columns = np.repeat(column[of], k) + within
                gammas = np.stack([eta.ravel(), np.ones(eta.size)], axis=1)
                coordinate = SCALARS["gamma"]
                proper = np.ones(eta.size, dtype=bool)
                numbers = gammas, proper, *coordinate.location(gammas)
                self.scalars.append((columns, coordinate, *numbers))
                norm = family.log_partition(eta) - family.log_partition(prior)
                self.simplices.append((columns.reshape(-1, k), prior - eta, norm.sum()))
            else:
                coordinate = SCALARS[family.name]
                numbers = prior, family.is_proper(prior), *coordinate.location(eta)
                self.scalars.append((column[of], coordinate, *numbers))
            moments = family.mean(eta).ravel(), family.variance(eta).ravel()
            entries.append((np.repeat(of, k), np.repeat(column[of], k) + within, levels, *moments))
        for block, belief in zip(problem.priors, state.all_blocks, strict=True):
            place = column[block.number] + np.arange(block.d)
            summary = belief.summary
            self.blocks.append((place, block.log_density, summary.mean, *belief.coloring()))
            entries.append((block.number, place, -1, *summary[:2]))
        rows = np.concatenate(
            [np.stack(np.broadcast_arrays(*part)).astype(np.float64) for part in entries], axis=1
        )
        _, columns, self.levels, self.mean, variance = rows[:, np.argsort(rows[0], kind="stable")]
        self.columns, self.sd = columns.astype(np.intp), np.sqrt(variance)
        batches = (batch for batch in problem.model.batches if batch.key not in problem.in_priors)
        self.batches = [expanded(batch, column) for batch in batches]

    def draw(self, z: Array) -> Array:
        theta = np.empty_like(z)
        for of, coordinate, _, _, center, scale in self.scalars:
            theta[:, of] = coordinate.x(center + z[:, of] * scale)
        for of, _, _ in self.simplices:
            theta[:, of] /= theta[:, of].sum(axis=2, keepdims=True)
        for of, edges, _ in self.categories:
            theta[:, of] = (edges < special.ndtr(z[:, of, None])).sum(axis=2)
        for of, _, mean, color, _ in self.blocks:
            theta[:, of] = mean + color(z[:, of])
        return theta

    def log_ratio(self, z: Array, theta: Array) -> Array:
        total = np.zeros(len(z))
        with np.errstate(all="ignore"):
            for of, coordinate, prior, proper, center, scale in self.scalars:
                u = center + z[:, of] * scale
                total += (0.5 * z[:, of] ** 2 + np.log(scale) + HALF_LOG_2PI).sum(axis=1)
                total += coordinate.log_density(prior[proper], u[:, proper].T).sum(axis=0)
                # a flat prior of a gamma variable has density 1, and exp(u) over its log u
                total += np.where(coordinate.name == "gamma", u[:, ~proper], 0.0).sum(axis=1)
            for of, more, norm in self.simplices:
                total += norm + (more * np.log(np.maximum(theta[:, of], TINY))).sum(axis=(1, 2))
            for of, log_density, _, _, log_root in self.blocks:
                total += 0.5 * (z[:, of] ** 2).sum(axis=1) + log_root
                total += log_density(theta[:, of])
            for of, _, share in self.categories:
                total += share[np.arange(len(of)), theta[:, of].astype(np.intp)].sum(axis=1)
            for batch in self.batches:
                total += batch.factor.log_density(batch, theta)
        return total

    def reported(self, theta: Array) -> Array:
        values = theta[:, self.columns]
        return np.where(self.levels < 0, values, values == self.levels)

    def moments(self) -> tuple[Array, Array]:
        """Moments of the beliefs, not of the draws."""
        return self.mean, self.sd


def columns_of(model: GraphModel) -> tuple[Index, int]:
    """The first column of each variable in a table of draws, and the number of all columns."""
    several = np.where(model.families == DIRICHLET, model.sizes, 1)
    widths = np.where(model.families == BLOCK, 0, several)
    column, size = np.cumsum(widths) - widths, int(widths.sum())
    for block in model.blocks:
        column[block.number], size = size, size + block.d
    return column, size


class Observations(NamedTuple):
    """Observations of a batch of losses on linear forms, and draws of the forms."""

    name: str
    loss: Loss
    y: Array
    #: (k, n)
    forms: Array
    #: (n,), variance of the noise on each form
    noise: Array

    def log_likelihood(self) -> Array:
        """(k, n), with the noise integrated out."""
        return log_likelihood_at(self.loss, self.y, self.forms, self.noise)

    def replicate(self, rng: np.random.Generator) -> Array:
        """New responses, (k, n)."""
        h = self.forms + np.sqrt(self.noise) * rng.standard_normal(self.forms.shape)
        return self.loss.replicate(h, self.y, rng)


def observations(model: GraphModel, draws: dict[str, Array]) -> Iterator[Observations]:
    """Observations of a graph. draws: (k, ...), of all arrays of variables in their order."""
    column, size = columns_of(model)
    theta = np.empty((len(next(iter(draws.values()))), size))
    for made, values in zip(model.variables.values(), draws.values(), strict=True):
        if isinstance(made, Block):
            first = column[made.number]
            theta[:, first : first + made.size] = values.reshape(len(theta), -1)
            continue
        own = values**-2.0 if isinstance(made, Scales) else values
        several = made.width if made.family == "dirichlet" else 1
        columns = column[made.numbers.ravel(), None] + np.arange(several)
        theta[:, columns.ravel()] = own.reshape(len(theta), -1)
    for batch in model.batches:
        if type(batch.factor) is LinearFactor:
            h, data = forms_at(expanded(batch, column), theta), batch.data
            yield Observations(f"y{batch.key}", batch.factor.loss, data["y"], h, data["noise"])


def checked(
    problem: GraphProblem,
    state: GraphState,
    evidence: float,
    draws: int,
    rng: np.random.Generator | int | None,
) -> Check:
    """Check a posterior, see :meth:`epfast.GraphPosterior.check`."""
    proposal = GraphProposal(problem, state)
    edges = sum(len(batch.terms.variables) for batch in problem.model.batches)
    most = int(MOST_WORK / (proposal.size + edges))
    if _checks.integer("draws", draws, least=100) > most:
        raise ValueError(
            f"draws is {draws:,}; allowed for {proposal.size:,} variables with {edges:,} "
            + (f"neighbours of factors: {most:,}" if most >= 100 else "neighbours of factors: none")
        )
    return check(proposal, evidence, bound=problem.evidence_bound, draws=draws, rng=rng)
