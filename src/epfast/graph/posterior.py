"""Posteriors of graphs: beliefs about variables, predictions, draws."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, overload

import numpy as np
from scipy import special

from epfast import _checks
from epfast._arrays import Array
from epfast.families import FAMILIES
from epfast.gaussian.files import contents
from epfast.graph import files
from epfast.graph.arguments import Argument
from epfast.graph.beliefs import Belief, BlockBelief, ScaleBelief, SparseBelief
from epfast.graph.blocks import linear_sites
from epfast.graph.catalogue.linear import kind_of
from epfast.graph.checking import checked, observations
from epfast.graph.engine import SitesOfFactors, log_integrals
from epfast.graph.factors import Batch, Beliefs, Kind, bind, name_of
from epfast.graph.problem import (
    GraphProblem,
    GraphState,
    UpdateOrder,
)
from epfast.graph.sparse_blocks import belief_of_prior
from epfast.graph.training import operator_of
from epfast.graph.variables import Block, Index, Linear, Scales, Variables, by_key
from epfast.inference import SweepInfo
from epfast.inference.certificates import Check
from epfast.inference.files import write
from epfast.inference.loop import Recorded
from epfast.inference.report import Drawn, checked_level, interval, to_arviz
from epfast.inference.runtime import cached_property
from epfast.losses.names import LossGiven
from epfast.operators.just_in_time import Operator

if TYPE_CHECKING:
    from xarray import DataTree

#: names of the predictions that factors may have
METHODS = ("predict", "predict_variance", "predict_proba", "log_predictive")


class GraphPosterior(Recorded):
    """Marginal beliefs about all variables of a :class:`epfast.Graph`.

    Attributes
    ----------
    log_evidence : float
        EP's log p(y), with all constants. A prior of infinite variance has the density 1. For
        categorical variables without a prior see :meth:`Graph.categorical
        <epfast.Graph.categorical>`.
    converged : bool
        Whether the fit converged.
    history : list of SweepInfo
        One entry per sweep.
    reasons : dict
        For factors of your own, why updates were refused, and how often over all sweeps.
    """

    #: the name of the class in files
    kind = "graph"
    problem: GraphProblem
    state: GraphState

    def __init__(
        self, state: GraphState, problem: GraphProblem, converged: bool, history: list[SweepInfo]
    ) -> None:
        self.state, self.problem = state, problem
        self.converged, self.history = converged, history
        self.reasons: dict[str, int] = {}

    def __repr__(self) -> str:
        n, factors = len(self.problem.model.families), self.problem.model.n_factors
        return f"GraphPosterior({n} variables, {factors} factors, converged={self.converged})"

    @property
    def log_evidence(self) -> float:
        return self.history[-1].log_evidence if self.history else self.problem.evidence(self.state)

    @property
    def variables(self) -> dict[str | int, Variables | Block]:
        """All arrays of variables, by name. Arrays without a name are numbered from 0."""
        return dict(self.problem.model.variables)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to an ``.npz`` file, which :func:`epfast.load` reads. Nothing is pickled.

        The file holds variables with their names, factors with their data, sites and schedule.
        ``Graph.of(load(path)).fit(start=...)`` continues with the same numbers to the last bit.

        Raises
        ------
        TypeError
            For factors of your own, and for losses and schemes with functions of yours. Pickle
            such posteriors.
        """
        state, problem = files.parted(self.problem, self.state)
        write(path, *contents(GraphPosterior(state, problem, self.converged, self.history)))

    def operator(self, batch: int) -> Operator | tuple[Operator | None, ...]:
        """The operator that learned the messages of a batch, or the tuple of them.

        Parameters
        ----------
        batch : int
            Number that :meth:`Graph.add <epfast.Graph.add>` returned for
            ``Factor(scheme=operator)``.

        Returns
        -------
        Operator or tuple of Operator
            Copies that the fit has trained. The operators that were given are unchanged.
        """
        return operator_of(self.problem.model.batches, batch)

    @overload
    def __getitem__(self, variables: Block) -> BlockBelief | SparseBelief: ...

    @overload
    def __getitem__(self, variables: Variables | str | int) -> Belief: ...

    def __getitem__(
        self, variables: Variables | Block | str | int
    ) -> Belief | BlockBelief | SparseBelief:
        if isinstance(variables, str | int) and variables in self.problem.model.variables:
            variables = self.problem.model.variables[variables]
        if not isinstance(variables, Variables | Block):
            raise TypeError(
                f"variables is {_checks.describe(variables)}; allowed: variables of the graph, "
                f"or one of their names or numbers, {list(self.problem.model.variables)}"
            )
        self.problem.model.check_handle("variables", variables)
        if isinstance(variables, Block):
            return self.beliefs.blocks[variables.number].shaped(variables.shape)
        return self.beliefs.of(variables)

    @property
    def beliefs(self) -> Beliefs:
        """The beliefs, by which factors predict."""
        priors = self.problem.model.blocks
        pairs = zip(priors, self.state.blocks, strict=True)
        blocks = {prior.number: belief for prior, belief in pairs if belief is not None}
        return Beliefs(self.problem.at, self.state.beliefs, blocks, self._log_z)

    def _log_z(self, batch: Batch) -> Array:
        return log_integrals(self.problem, self.state, batch).reshape(batch.rows.shape)

    def predict_latent(self, form: Linear) -> tuple[Array, Array]:
        """Mean and variance of linear forms, in their shape.

        Correlations within a block are included. EP keeps no others.
        """
        return self.beliefs.latent(self.problem.model.form("form", form))

    # ---- predictions ----

    def predict(
        self, factor: Kind | LossGiven, /, *neighbours: Argument, **data: Argument
    ) -> Array:
        """Predict the mean of new observations or variables, or the most probable label.

        Parameters
        ----------
        factor : Loss, str, or factor of :mod:`epfast.graph`
            As in :meth:`Graph.add <epfast.Graph.add>`.
        *neighbours, **data
            As in ``add``, over variables of the graph, without the observation.

        Returns
        -------
        ndarray
            A number for each factor:

            - ``(loss, form, noise=None)``, a loss or likelihood: the mean of y, or its label
            - ``(Noise(tau), form)``: the mean of the form, or of y where ``y - form`` was added
            - ``(Product(variance), x, y)``: the mean of z
            - ``(LogisticLink(), z)``: the mean of p
            - ``(Transition(variance, factor), before)``: the mean of ``after``
            - ``(Table(p), h_1, None, h_3)``: the most probable category of the variable in the
              place of None
            - ``(Category(p),)``: the most probable category of a new variable
            - ``(Mixture(h, loss), forms, noise=None)``: the mean of y, for losses that have one

        Raises
        ------
        ValueError
            For factors without this prediction. The message lists the predictions that they have.
        TypeError
            For neighbours that the prediction does not take.

        Notes
        -----
        Predictions are messages of the factor, given the beliefs. Beliefs are treated as
        independent, except within a block.
        """
        return self._predicted("predict", factor, neighbours, data)

    def predict_proba(
        self, factor: Kind | LossGiven, /, *neighbours: Argument, **data: Argument
    ) -> Array:
        """Predict probabilities. The arguments are those of :meth:`predict`.

        Returns
        -------
        ndarray
            For a loss, the probability of the label +1, or of each class. For
            ``(Between(lower, upper), form, noise=0.0)`` the probability that the form is between
            the bounds. For a ``Table`` the probabilities of the categories of the variable in the
            place of None. For a ``Category`` those of a new variable.
        """
        return self._predicted("predict_proba", factor, neighbours, data)

    def predict_variance(
        self, factor: Kind | LossGiven, /, *neighbours: Argument, **data: Argument
    ) -> Array:
        """Variance of what :meth:`predict` has the mean of. The arguments are the same.

        Infinite for ``Noise(tau)`` if the belief about tau has a shape <= 1.
        """
        return self._predicted("predict_variance", factor, neighbours, data)

    def log_predictive(
        self, factor: Kind | LossGiven, /, *neighbours: Argument, **data: Argument
    ) -> Array:
        """Log density of new observations. The arguments are those of ``add``.

        They are ``(loss, form, y, noise=None)``, ``(Noise(tau), y - form)`` (integrated over tau),
        ``(Mixture(h, loss), forms, y, noise=None)``,
        ``(Between(lower, upper), form, noise=0.0)``, ``(Table(p), h_1, h_2)`` or
        ``(Category(p), z)``.
        """
        return self._predicted("log_predictive", factor, neighbours, data)

    def _predicted(
        self,
        method: str,
        factor: Kind | LossGiven,
        neighbours: tuple[Argument, ...],
        data: dict[str, Argument],
    ) -> Array:
        """The prediction of a factor. Errors list the predictions of its kind."""
        kind = kind_of(factor)
        predict = getattr(type(kind), method, None)
        if predict is None:
            there = ", ".join(known for known in METHODS if hasattr(kind, known))
            raise ValueError(
                f"{method} does not exist for the factor {name_of(factor)}; allowed: "
                + (there or kind.instead)
            )
        self.problem.model.check_handles(
            bind(method, predict, kind, name_of(factor), neighbours, data)
        )
        prediction: Array = predict(kind, self.beliefs, *neighbours, **data)
        return prediction

    def check(self, draws: int = 20_000, rng: np.random.Generator | int | None = 0) -> Check:
        """How far the beliefs are from the exact posterior, by importance sampling.

        Variables are drawn independently from their beliefs, and a block jointly. The weight of a
        draw is the product of prior and factors divided by the density of the draw. If variables
        are correlated in the exact posterior, the weights are uneven. With more than some tens of
        such variables the verdict is mostly "uncertain", never "good". Correlated Gaussian
        variables are better put into a block. The check cannot detect what the draws do not reach,
        such as a second mode, or a category that the beliefs exclude. A draw costs about 70 ns for
        each variable and each neighbour of a factor.

        Parameters
        ----------
        draws : int, default=20000
            100 to 10 million.
        rng : numpy.random.Generator or int, default=0
            A generator, or a seed for one. None draws afresh.

        Returns
        -------
        Check
            Its arrays have an entry for each variable, in the order in which these were made, for
            each entry of a block, for the indicator of each category of a categorical variable, and
            for each probability of a Dirichlet variable.

        Raises
        ------
        ValueError
            For constraints, which no draw fulfils: :class:`epfast.graph.LogisticLink`, and products
            and transitions without noise.
            For factors with ``project()`` alone, which have no density.
            For more draws than take some minutes.
        """
        found = checked(self.problem, self.state, self.log_evidence, draws, rng)
        return self._remembered(found)

    def sample(self, size: int, rng: np.random.Generator | int | None = None) -> dict[str, Array]:
        """Draw from the beliefs: independently between variables, jointly within a block.

        Parameters
        ----------
        size : int
            Number of draws.
        rng : numpy.random.Generator or int, optional
            A generator, or a seed for one. None draws afresh.

        Returns
        -------
        dict of str to ndarray of shape (size, ...)
            Draws of each array of variables, by its name. Arrays without a name are ``"v0"``,
            ``"v1"``, ... Draws of categorical variables are numbers of categories. Those of
            Dirichlet variables have probabilities along the last axis.

        Raises
        ------
        ValueError
            If a belief is improper.
        """
        size = _checks.integer("size", size, least=1)
        random = _checks.generator("rng", rng)
        draws = {}
        for key, made in self.problem.model.variables.items():
            name = key if isinstance(key, str) else f"v{key}"
            belief = self[made]
            improper = ValueError(
                f"the belief about {name} is improper; allowed for draws: fits in which all "
                "beliefs are proper"
            )
            if isinstance(belief, BlockBelief | SparseBelief):
                if not np.isfinite(belief.variance).all():
                    raise improper
                color, _ = belief.coloring()
                noise = color(random.standard_normal((size, made.size)))
                draws[name] = belief.mean + noise.reshape(size, *made.shape)
                continue
            family, eta = FAMILIES[belief.family], belief.natural
            if not family.is_proper(eta).all():
                raise improper
            drawn = family.draw(eta, size, random)
            drawn = drawn.reshape(size, *made.shape, *drawn.shape[2:])
            draws[name] = drawn**-0.5 if isinstance(made, Scales) else drawn
        return draws

    def to_arviz(self, draws: int = 1000, rng: np.random.Generator | int | None = 0) -> DataTree:
        """Draws for ArviZ, as one chain, as :meth:`epfast.FullPosterior.to_arviz` for rows.

        Parameters
        ----------
        draws : int, default=1000
            Number of draws.
        rng : numpy.random.Generator or int, default=0
            A generator, or a seed for one. None draws afresh.

        Returns
        -------
        arviz.InferenceData, or xarray.DataTree with ArviZ 1.0 or later, or without ArviZ
            The group ``posterior`` has a variable for each array of variables. For losses on linear
            forms the groups ``observed_data``, ``log_likelihood`` and ``posterior_predictive`` have
            ``y0`` for batch 0 of :meth:`Graph.add <epfast.Graph.add>`, and so on. If there are no
            other factors and all priors are proper, there is ``prior_predictive``, too.

        Warns
        -----
        ConvergenceWarning
            If the fit has not converged, or if the verdict of the last check was "do not use".

        Raises
        ------
        ImportError
            Without xarray, which the extra ``arviz`` brings.
        ValueError
            If a belief is improper.
        """
        return to_arviz(self, self._drawn_by_name, draws, rng)

    def _drawn_by_name(self, size: int, rng: np.random.Generator) -> Drawn:
        """Draws for :meth:`to_arviz`."""
        problem, draws = self.problem, self.sample(size, rng)
        drawn = Drawn(draws)
        if not draws:
            return drawn
        for one in observations(problem.model, draws):
            drawn.observed_data[one.name] = one.loss.drawable(one.y)
            if "values" in one.loss.gives:
                drawn.log_likelihood[one.name] = one.log_likelihood()
            with suppress(ValueError):  # losses whose responses cannot be drawn
                drawn.posterior_predictive[one.name] = one.replicate(rng)
        blocks = tuple(map(belief_of_prior, problem.model.blocks))
        proper = all(belief is not None for belief in blocks)
        if proper and len(drawn.posterior_predictive) == len(problem.model.batches):
            prior_state = self.state._replace(beliefs=problem.prior, blocks=blocks)
            with suppress(ValueError):  # improper priors
                prior = GraphPosterior(prior_state, problem, False, []).sample(size, rng)
                for one in observations(problem.model, prior):
                    drawn.prior_predictive[one.name] = one.replicate(rng)
        return drawn

    def credible_interval(self, variables: Variables, level: float = 0.95) -> Array:
        """Central credible intervals of variables, with their ends last.

        Of scales and of the probabilities of Dirichlet variables those of the belief, of others
        those of the Gaussian with the same mean and variance.
        """
        belief = self[variables]
        family = belief.family if isinstance(belief, Belief) else "gaussian"
        if family == "categorical":
            raise TypeError(
                "variables are categorical; allowed: variables with numbers (post[h].probabilities "
                "is all of the belief)"
            )
        if isinstance(belief, Belief) and family == "dirichlet":
            alpha, half = belief.concentration, 0.5 * checked_level(level)
            rest = alpha.sum(axis=-1, keepdims=True) - alpha
            return np.stack([special.betaincinv(alpha, rest, 0.5 + s * half) for s in (-1, 1)], -1)
        if isinstance(belief, ScaleBelief):
            half = 0.5 * checked_level(level)
            return np.stack([belief.quantile(0.5 - half), belief.quantile(0.5 + half)], axis=-1)
        ends = interval(belief.mean.ravel(), belief.variance.ravel(), checked_level(level))
        return np.asarray(ends.reshape(*variables.shape, 2))

    @cached_property
    def program(self) -> UpdateOrder:
        """The order of the sites. A fit sets that of its sweeps."""
        rest = self.problem.rest(self.problem.linear())
        return rest.program(rest.model.order())

    @cached_property
    def by_factor(self) -> SitesOfFactors:
        """The sites of all factors."""
        problem, state = self.problem, self.state
        linear = problem.linear()
        found, n = [], len(state.sites)
        numbers, scales = [state.sites], [state.log_scale]
        first = 0
        for batch, order in zip(problem.rest(linear).model.batches, self.program.rows, strict=True):
            one = batch.select(order)
            starts = problem.site_places(one)[1]
            found.append((one, first + starts[:-1], np.diff(starts)))
            first += int(starts[-1])
        for k, part in zip(linear.values(), state.linear, strict=True):
            batch = problem.model.batches[k]
            theirs = linear_sites(batch, part)
            if theirs is not None:
                found.append((batch, n + 2 * np.arange(batch.n), np.array([2])))
                numbers.append(theirs[0])
                scales.append(theirs[1])
                n += 2 * batch.n
        none = np.empty(0, dtype=np.intp)
        return SitesOfFactors(
            np.concatenate([none, *(one.key_of_each for one, _, _ in found)]),
            np.concatenate([none, *(one.rows for one, _, _ in found)]),
            np.concatenate([none, *(np.broadcast_to(at, one.n) for one, at, _ in found)]),
            np.concatenate([none, *(np.broadcast_to(many, one.n) for one, _, many in found)]),
            np.concatenate(numbers),
            np.concatenate(scales),
        )

    @cached_property
    def by_batch(self) -> dict[int, tuple[Index, Index, Array, Array]]:
        """For each batch its rows, where the sites of each row begin, sites, and log scales."""
        every = self.by_factor
        return {
            key: (every.row[which], *every.select(which), every.log_scale[which])
            for key, which in by_key(every.key).items()
        }
