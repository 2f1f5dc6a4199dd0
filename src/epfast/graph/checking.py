"""The exact posterior of a graph beside its beliefs, for certificates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse, special

from epfast import _checks
from epfast._arrays import Array
from epfast.families import FAMILIES, Categorical
from epfast.graph.blocks import prior_belief
from epfast.graph.factors import Batch, Between, LinearFactor
from epfast.graph.factors_categorical import Mixture, Table
from epfast.graph.factors_chains import Transition, Walk
from epfast.graph.factors_continuous import CompoundGamma, Noise, Product
from epfast.graph.own import Attached, ScalePrior
from epfast.graph.problem import BLOCK, GraphProblem, GraphState
from epfast.graph.variables import Block, Index, Scales, Terms, ends, joined
from epfast.inference.certificates import Check, check
from epfast.inference.importance import Proposal
from epfast.losses import Loss
from epfast.operators.density import Density

#: draws times variables and neighbours of factors beyond which a check takes five minutes: 70 ns
#: each were measured on a chain of 3,000
MOST_WORK = 4e9
NAMES = tuple(FAMILIES)
HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class GraphProposal(Proposal):
    """Draws of all variables from their beliefs, independent, beside prior times factors.

    A variable takes one standard normal number: Gaussian ones are linear in it, the logs of gamma
    and the log odds of beta variables too, with the mean and variance that these have under the
    belief; a category is where the number falls among the probabilities. A block takes d of them,
    and is drawn with its covariance. Columns of draws are the variables that are no blocks, in
    turn, then the blocks. What is reported is each variable in turn, of blocks all entries, of
    categorical ones the indicators of the categories.
    """

    def __init__(self, problem: GraphProblem, state: GraphState) -> None:
        scalar = np.flatnonzero(problem.families != BLOCK)
        self.known = bool((problem.families <= 0).all())
        n = len(scalar)
        families, sizes, self.at = (
            x[scalar] for x in (problem.families, problem.sizes, problem.at[:-1])
        )
        beliefs, self.prior = state.beliefs, problem.prior
        prior = self.prior
        column, _ = columns_of(problem)
        self.which = {name: np.flatnonzero(families == k) for k, name in enumerate(NAMES)}
        #: blocks: the columns, the prior, mean and a root of the covariance
        self.blocks = []
        self.size = n
        for block, belief in zip(problem.blocks, state.blocks, strict=True):
            part = slice(self.size, self.size + block.d)
            self.blocks.append((part, block, belief.mean, np.linalg.cholesky(belief.covariance)))
            self.size += block.d
        for k in np.unique(sizes):
            some = np.flatnonzero(sizes == k)
            for name, family in FAMILIES.items():
                of = some[families[some] == NAMES.index(name)]
                eta = beliefs[self.at[of, None] + np.arange(k)]
                if not family.is_proper(eta).all():
                    raise ValueError(
                        "a belief is improper, so that there is nothing to check; allowed: fits in "
                        "which no factor waits"
                    )
        self.center, self.scale = np.zeros((2, self.size))
        #: log of normalisers of the priors; a flat one is the density 1
        self.constant = 0.0
        for name in ("gaussian", "gamma", "beta"):
            of = self.which[name]
            eta, own = (x[self.at[of, None] + np.arange(2)] for x in (beliefs, prior))
            self.center[of], self.scale[of] = COORDINATES[name](eta)
            proper = FAMILIES[name].is_proper(own)
            self.constant -= float(FAMILIES[name].log_partition(own[proper]).sum())
        #: of each categorical variable: where its probabilities end, log of the prior over them;
        #: a flat one is 1
        self.categories = []
        self.width = self.size
        for v in self.which["categorical"].tolist():
            here = slice(self.at[v], self.at[v] + sizes[v])
            log_q = Categorical.logits(beliefs[None, here])[0]
            # of what is not drawn nothing is asked
            share = np.where(np.isfinite(log_q), prior[here] - log_q, -np.inf)
            self.categories.append((v, np.cumsum(np.exp(log_q))[:-1], share))
            self.width += len(log_q) - 1
        for part, block, _, root in self.blocks:
            self.scale[part] = root.diagonal()
            found = prior_belief(block)
            assert found is not None
            self.constant -= found.partition + HALF_LOG_2PI * block.d
        self.densities = [
            DENSITIES.get(type(batch.factor), _no_link)(expanded(batch, column))
            for batch in problem.batches
        ]
        mean, sd = [], []
        self.order: list[Any] = []
        places = {block.number: k for k, block in enumerate(problem.blocks)}
        for v, number in enumerate(problem.families):
            if number == BLOCK:
                part, _, center, root = self.blocks[places[v]]
                self.order.append(part)
                mean.append(center)
                sd.append(np.sqrt((root * root).sum(axis=1)))
                continue
            self.order.append(column[v])
            family = FAMILIES[NAMES[number]]
            eta = beliefs[None, problem.at[v] : problem.at[v] + problem.sizes[v]]
            mean.append(family.mean(eta).ravel())
            sd.append(np.sqrt(family.variance(eta).ravel()))
        self.mean, self.sd = np.concatenate(mean), np.concatenate(sd)

    def draw(self, z: Array) -> Array:
        theta = self.center + z * self.scale
        with np.errstate(over="ignore"):
            theta[:, self.which["gamma"]] = np.exp(theta[:, self.which["gamma"]])
        theta[:, self.which["beta"]] = special.expit(theta[:, self.which["beta"]])
        for v, edges, _ in self.categories:
            theta[:, v] = np.searchsorted(edges, special.ndtr(z[:, v]))
        for part, _, mean, root in self.blocks:
            theta[:, part] = mean + z[:, part] @ root.T
        return np.asarray(theta)

    def log_ratio(self, z: Array, theta: Array) -> Array:
        prior = self.prior
        total = np.full(len(z), self.constant)
        smooth = np.setdiff1d(np.arange(self.size), self.which["categorical"])
        total += (0.5 * z[:, smooth] ** 2 + np.log(self.scale[smooth]) + HALF_LOG_2PI).sum(axis=1)
        with np.errstate(all="ignore"):
            for name in ("gaussian", "gamma", "beta"):
                of = self.which[name]
                x, (a, b) = theta[:, of], prior[self.at[of, None] + np.arange(2)].T
                if name == "gaussian":
                    total += (b * x - 0.5 * a * x * x).sum(axis=1)
                elif name == "gamma":  # the Jacobian of the log is x
                    y = self.center[of] + z[:, of] * self.scale[of]
                    total += ((a + 1.0) * y - b * x).sum(axis=1)
                else:
                    y = self.center[of] + z[:, of] * self.scale[of]
                    total += ((a + 1.0) * special.log_expit(y)).sum(axis=1)
                    total += ((b + 1.0) * special.log_expit(-y)).sum(axis=1)
            for part, block, _, _ in self.blocks:
                w = theta[:, part]
                total += w @ (block.precision @ block.mean)
                total -= 0.5 * np.einsum("ij,ij->i", w @ block.precision, w)
            for v, _, log_share in self.categories:
                total += log_share[theta[:, v].astype(np.intp)]
            for density in self.densities:
                total += density(theta)
        return np.asarray(total)

    def reported(self, theta: Array) -> Array:
        if not self.categories and not self.blocks:
            return theta
        indicators = {v: np.arange(len(edges) + 1) for v, edges, _ in self.categories}
        columns = [
            theta[:, v]
            if isinstance(v, slice)
            else theta[:, v, None] == indicators[v]
            if v in indicators
            else theta[:, v, None]
            for v in self.order
        ]
        return np.concatenate(columns, axis=1)

    def moments(self) -> tuple[Array, Array]:
        """Those of the beliefs, whatever the draws are."""
        return self.mean, self.sd


def columns_of(problem: GraphProblem) -> tuple[Index, int]:
    """Of each variable its column in a table of draws, the first one of a block; their number."""
    column = np.empty(len(problem.families), dtype=np.intp)
    scalar = np.flatnonzero(problem.families != BLOCK)
    column[scalar], size = np.arange(len(scalar)), len(scalar)
    for block in problem.blocks:
        column[block.number], size = size, size + block.d
    return column, size


class Observations(NamedTuple):
    """What a batch of losses on linear forms has observed, and draws of its forms."""

    name: str
    loss: Loss
    y: Array
    #: (k, n)
    forms: Array
    #: (n,), variance of the noise on each
    noise: Array

    def log_likelihood(self) -> Array:
        """(k, n), the noise integrated out."""
        return log_t(self.loss, self.y, self.forms, self.noise)

    def replicate(self, rng: np.random.Generator) -> Array:
        """New responses, (k, n)."""
        h = self.forms + np.sqrt(self.noise) * rng.standard_normal(self.forms.shape)
        return self.loss.replicate(h, self.y, rng)


def observations(problem: GraphProblem, draws: dict[str, Array]) -> Iterator[Observations]:
    """Those of a graph, at draws (k, ...) of all arrays of variables, in the order of ``made``."""
    column, size = columns_of(problem)
    theta = np.empty((len(next(iter(draws.values()))), size))
    for made, values in zip(problem.made.values(), draws.values(), strict=True):
        if isinstance(made, Block):
            theta[:, column[made.number] : column[made.number] + values.shape[1]] = values
            continue
        own = values**-2.0 if isinstance(made, Scales) else values
        theta[:, column[made.numbers.ravel()]] = own.reshape(len(theta), -1)
    for batch in problem.batches:
        if isinstance(batch.factor, LinearFactor):
            h, data = _form(expanded(batch, column), 0)(theta), batch.data
            yield Observations(f"y{batch.key}", batch.factor.loss, data["y"], h, data["noise"])


def checked(problem: GraphProblem, state: GraphState, evidence: float, **given: Any) -> Check:
    """Check a posterior: see :meth:`epfast.GraphPosterior.check`."""
    proposal = GraphProposal(problem, state)
    edges = sum(len(batch.terms.variables) for batch in problem.batches)
    most = int(MOST_WORK / (proposal.size + edges))
    if _checks.integer("draws", given["draws"], least=100) > most:
        raise ValueError(
            f"draws is {given['draws']:,}; allowed for {proposal.size:,} variables with {edges:,} "
            + (f"neighbours of factors: {most:,}" if most >= 100 else "neighbours of factors: none")
        )
    return check(proposal, evidence, bound=problem.evidence_bound, **given)


def _gamma(eta: Array) -> tuple[Array, Array]:
    shape = eta[:, 0] + 1.0
    return special.digamma(shape) - np.log(eta[:, 1]), np.sqrt(special.polygamma(1, shape))


def _beta(eta: Array) -> tuple[Array, Array]:
    a, b = eta.T + 1.0
    variance = special.polygamma(1, a) + special.polygamma(1, b)
    return special.digamma(a) - special.digamma(b), np.sqrt(variance)


def _gaussian(eta: Array) -> tuple[Array, Array]:
    return eta[:, 1] / eta[:, 0], 1.0 / np.sqrt(eta[:, 0])


#: mean and standard deviation of the coordinates in which variables are drawn
COORDINATES = {"gaussian": _gaussian, "gamma": _gamma, "beta": _beta}


def expanded(batch: Batch, column: Index) -> Batch:
    """The batch with columns of draws as neighbours, all of a block in place of a form over it."""
    terms, n = batch.terms, batch.n
    blocks = [part.block for part in batch.parts]
    if not blocks:
        return batch._replace(terms=terms._replace(variables=column[terms.variables]))
    owner = np.repeat(np.arange(n), terms.counts)
    # a precision comes last, and stays there
    last = np.zeros(len(owner), dtype=bool)
    last[terms.starts[1:] - 1] = isinstance(batch.factor, Noise)
    scalar = ~np.isin(terms.variables, blocks) & ~last

    def some(which: Any) -> Terms:
        starts = ends(np.bincount(owner[which], minlength=n))
        return Terms(starts, column[terms.variables[which]], terms.coefficient[which])

    found = some(scalar)
    for part in batch.parts:
        a = terms.coefficient[terms.variables == part.block]
        rows = sparse.csr_array(part.times(a).rows)
        there = Terms(
            rows.indptr.astype(np.intp),
            column[part.block] + rows.indices.astype(np.intp),
            rows.data,
        )
        found = joined(found, there)
    return batch._replace(terms=joined(found, some(last)), parts=())


# ---- log densities of the factors of a batch, summed, at values of all variables (k, n) ----


def _log_normal(x: Array, variance: Any) -> Array:
    return np.asarray(-0.5 * x * x / variance - 0.5 * np.log(variance) - HALF_LOG_2PI)


def _form(batch: Batch, n: int, drop: int = 0) -> Callable[[Array], Array]:
    """Linear forms of the neighbours but for the last ``drop``: (k, n) of values (k, variables)."""
    terms = batch.terms
    owner = np.repeat(np.arange(batch.n), terms.counts)
    keep = np.ones(len(owner), dtype=bool)
    if drop:
        keep[terms.starts[1:] - 1] = False
    width = int(terms.variables.max()) + 1
    entries = (terms.coefficient[keep], (owner[keep], terms.variables[keep]))
    matrix = sparse.csr_array(entries, shape=(batch.n, width))

    def value(theta: Array) -> Array:
        return np.asarray((matrix @ theta[:, :width].T).T + batch.data["offset"])

    return value


def log_t(loss: Loss, y: Array, h: Array, noise: Array) -> Array:
    """log t(h; y) of values h (k, n), noise on them integrated out."""
    found = -loss.values(np.ascontiguousarray(h.T), y).T
    some = np.flatnonzero(noise > 0.0)
    if len(some):
        k = len(h)
        responses = np.ascontiguousarray(np.repeat(y[some], k, axis=0))
        means = np.ascontiguousarray(h[:, some].T).ravel()
        smooth = loss.tilted().call(responses, means, np.repeat(noise[some], k))[0]
        found[:, some] = np.reshape(smooth, (len(some), k)).T
    return np.asarray(found)


def _linear(batch: Batch) -> Callable[[Array], Array]:
    h, data, loss = _form(batch, 0), batch.data, batch.factor.loss
    return lambda theta: log_t(loss, data["y"], h(theta), data["noise"]).sum(axis=1)


def _between(batch: Batch) -> Callable[[Array], Array]:
    h, data = _form(batch, 0), batch.data
    lower, upper = data["y"].T
    sd = np.sqrt(data["noise"])

    def density(theta: Array) -> Array:
        x = h(theta)
        inside = np.where((x > lower) & (x < upper), 0.0, -np.inf)
        low, high = (lower - x) / sd, (upper - x) / sd
        # in the tail that both ends are in
        flip = low > 0.0
        low, high = np.where(flip, -high, low), np.where(flip, -low, high)
        a, b = special.log_ndtr(high), special.log_ndtr(low)
        return np.asarray(np.where(sd > 0.0, a + np.log1p(-np.exp(b - a)), inside).sum(axis=1))

    return density


def _transition(batch: Batch) -> Callable[[Array], Array]:
    _refuse_constraints(batch)
    before, after = batch.terms.variables.reshape(-1, 2).T
    factor, variance = batch.data["factor"], batch.data["variance"]

    def density(theta: Array) -> Array:
        step = theta[:, after] - factor * theta[:, before]
        return np.asarray(_log_normal(step, variance).sum(axis=1))

    return density


def _noise(batch: Batch) -> Callable[[Array], Array]:
    h, last = _form(batch, 0, drop=1), batch.terms.variables[batch.terms.starts[1:] - 1]
    return lambda theta: _log_normal(h(theta), 1.0 / theta[:, last]).sum(axis=1)


def _product(batch: Batch) -> Callable[[Array], Array]:
    _refuse_constraints(batch)
    names = batch.terms.variables.reshape(batch.n, -1)
    z, variance = batch.data["z"], batch.data["variance"]

    def density(theta: Array) -> Array:
        target = z[:, 0] if z.shape[1] else theta[:, names[:, 2]]
        gap = target - theta[:, names[:, 0]] * theta[:, names[:, 1]]
        return np.asarray(_log_normal(gap, variance).sum(axis=1))

    return density


def _refuse_constraints(batch: Batch) -> None:
    if not batch.data["variance"].all():
        raise ValueError(
            f"batch {batch.key} is of {type(batch.factor).__name__} with variance 0, a constraint "
            "that no draw fulfils; allowed for a check: variances above 0"
        )


def _no_link(batch: Batch) -> Callable[[Array], Array]:
    raise ValueError(
        f"batch {batch.key} is of {type(batch.factor).__name__}, a constraint that no draw "
        "fulfils; allowed for a check: factors with a density"
    )


def _compound(batch: Batch) -> Callable[[Array], Array]:
    s1, r1, s2 = batch.data["numbers"].T
    scale = s1 * np.log(r1) - special.betaln(s1, s2)
    names = batch.terms.variables

    def density(theta: Array) -> Array:
        tau = theta[:, names]
        logs = scale + (s2 - 1.0) * np.log(tau) - (s1 + s2) * np.log(r1 + tau)
        return np.asarray(logs.sum(axis=1))

    return density


def _scale(batch: Batch) -> Callable[[Array], Array]:
    names = batch.terms.variables

    def density(theta: Array) -> Array:
        tau = theta[:, names]
        return np.asarray(batch.factor.log_t(tau.ravel()).reshape(tau.shape).sum(axis=1))

    return density


def _table(batch: Batch) -> Callable[[Array], Array]:
    names = batch.terms.variables.reshape(batch.n, -1)
    m, p = names.shape[1], batch.factor.p
    shape = p.shape[p.ndim - m :]
    with np.errstate(divide="ignore"):
        logs = batch.data.get("log_p", np.log(p.reshape(1, -1)))

    def density(theta: Array) -> Array:
        at = np.ravel_multi_index(tuple(theta[:, names].astype(np.intp).transpose(2, 0, 1)), shape)
        return np.asarray(logs[np.arange(batch.n) % len(logs), at].sum(axis=1))

    return density


def _mixture(batch: Batch) -> Callable[[Array], Array]:
    terms, data, n = batch.terms, batch.data, batch.n
    K = sum(name.startswith("y") for name in data)
    P = data["offset"].shape[1] // K
    each = batch.factor.losses(K)
    last = terms.variables[terms.starts[1:] - 1]
    which: Index = terms.variables[terms.starts[:-1, None, None] + data["which"]]

    def density(theta: Array) -> Array:
        h = theta[:, last].astype(np.intp)
        total = np.zeros(len(theta))
        for k, loss in enumerate(each):
            part = slice(k * P, (k + 1) * P)
            forms = np.einsum(
                "npm,knpm->knp", data["coefficient"][:, part], theta[:, which[:, part]]
            )
            forms = (forms + data["offset"][:, part]).reshape(len(theta), n * P)
            y = np.ascontiguousarray(data[f"y{k}"].reshape(n * P, -1))
            found = log_t(loss, y, forms, data["noise"][:, part].ravel())
            found = found.reshape(len(theta), n, P).sum(axis=2)
            total += np.where(h == k, found, 0.0).sum(axis=1)
        return total

    return density


def _own(batch: Batch) -> Callable[[Array], Array]:
    mine = batch.factor.definition
    if mine.log_t is None:
        raise ValueError(
            f"batch {batch.key} has a scheme with project(), and no log_t; allowed for a check: "
            "factors with a density"
        )
    density = Density(mine.log_t)
    names = batch.terms.variables.reshape(batch.n, -1)

    def value(theta: Array) -> Array:
        k = len(theta)
        x = theta[:, names].reshape(k * batch.n, -1)
        data = {name: np.concatenate([v] * k) for name, v in batch.data.items()}
        found = density.values(x, data).reshape(k, batch.n).sum(axis=1)
        return np.asarray(found)

    return value


DENSITIES: dict[Any, Callable[[Batch], Callable[[Array], Array]]] = {
    LinearFactor: _linear,
    Between: _between,
    Transition: _transition,
    Walk: _transition,
    Noise: _noise,
    Product: _product,
    CompoundGamma: _compound,
    ScalePrior: _scale,
    Table: _table,
    Mixture: _mixture,
    Attached: _own,
}
