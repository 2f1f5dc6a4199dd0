"""Graph: variables, factors, fit."""

from __future__ import annotations

import secrets
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks
from epfast._arrays import Array, Given, SparseGiven
from epfast.families import FAMILIES
from epfast.graph import priors
from epfast.graph.arguments import Argument
from epfast.graph.catalogue.linear import kind_of
from epfast.graph.catalogue.scale import ScaleFactor
from epfast.graph.engine import GraphEngine
from epfast.graph.factors import Kind, bind, name_of, of_one_kind
from epfast.graph.joint import JointEngine, JointGraphPosterior, JointOrOther, is_joint
from epfast.graph.model import BLOCK, GraphModel
from epfast.graph.posterior import GraphPosterior
from epfast.graph.priors import Size
from epfast.graph.problem import (
    GraphState,
    legal,
    ready,
)
from epfast.graph.training import begun, questions_of, warn_of_operators
from epfast.graph.variables import Block, Linear, Scales, Variables
from epfast.inference import Fit, interrupted, run, warn_of
from epfast.inference.loop import Callback
from epfast.inference.runtime import Tick
from epfast.losses.names import LossGiven
from epfast.priors import HalfStudentT, InverseGamma, Scale
from epfast.schedules import ADF, EP, Schedule

Made = TypeVar("Made", Variables, Scales)

#: the default schedule
USUAL = EP(sweeps=500, tol=1e-6)
NAMES = tuple(FAMILIES)


class Graph:
    """A model of your own: a factor graph of variables and factors.

    A model takes three steps: make variables, add factors, and fit. Expectation propagation
    approximates the posterior by a product over the variables.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> g = epfast.Graph()
    >>> skill = g.gaussian(3, mean=0.0, variance=1.0)
    >>> winner, loser = np.array([0, 0, 1]), np.array([1, 2, 2])
    >>> games = g.add(epfast.Probit(), skill[winner] - skill[loser], 1, noise=1.0)
    >>> post = g.fit()
    >>> post[skill[[0, 2]]].mean.round(2)
    array([ 0.69, -0.69])

    References
    ----------
    Minka (2001), Expectation propagation for approximate Bayesian inference. Minka (2005),
    Divergence measures and message passing. Smola, Vishwanathan & Eskin (2003), Laplace
    propagation.
    """

    def __init__(self) -> None:
        self._model = GraphModel(secrets.token_hex(8))

    def __repr__(self) -> str:
        n, factors = len(self._model.families), self._model.n_factors
        return f"Graph({n} variables, {factors} factors)"

    # ---- variables ----

    def gaussian(
        self,
        size: Size = None,
        mean: ArrayLike = 0.0,
        variance: ArrayLike = 1.0,
        *,
        name: str | None = None,
    ) -> Variables:
        """Scalar Gaussian variables, independent under the prior.

        Parameters
        ----------
        size : int or tuple of int, optional
            Shape of the array of variables. None: that of ``mean`` and ``variance``.
        mean : float or array_like, default=0.0
            Mean of the prior, broadcast to ``size``.
        variance : float or array_like, default=1.0
            Variance of the prior, broadcast to ``size``. It may be infinite where factors alone
            define the variable, as a transition does. Such a prior has the density 1.
        name : str, optional
            Key of the array in :attr:`variables` and ``post[name]``, also after saving and loading.

        Returns
        -------
        Variables
        """
        return self._new("gaussian", *priors.gaussian(size, mean, variance), name, Variables)

    def gamma(
        self,
        size: Size = None,
        shape: ArrayLike = 1.0,
        rate: ArrayLike = 1.0,
        *,
        name: str | None = None,
    ) -> Variables:
        """Positive variables, such as precisions, with gamma distributions under the prior.

        Parameters
        ----------
        size : int or tuple of int, optional
            Shape of the array of variables. None: that of ``shape`` and ``rate``.
        shape, rate : float or array_like, default=1.0
            Parameters of the prior, > 0. Its mean is shape / rate. Shape 1 with rate 0 is a flat
            prior of density 1, for variables that factors alone define, as a compound gamma does.
        name : str, optional
            As in :meth:`gaussian`.

        Returns
        -------
        Variables
        """
        return self._new("gamma", *priors.gamma(size, shape, rate), name, Variables)

    def scale(
        self, prior: Scale | None = None, size: Size = None, *, name: str | None = None
    ) -> Scales:
        """Standard deviations s, of noise or of a group of effects.

        Factors that take precisions take scales, too, as in ``g.add(Noise(s), form)``, with the
        precision 1 / s^2. ``post[s]`` has mean, sd and quantiles of s itself, and ``shape`` and
        ``rate`` of the gamma belief about the precision.

        Parameters
        ----------
        prior : epfast.priors.Scale, optional
            Prior density of each s. None: ``HalfStudentT(3, 2.5)``.
        size : int or tuple of int, optional
            Shape of the array of variables. None: a single variable.
        name : str, optional
            As in :meth:`gaussian`.

        Returns
        -------
        Variables

        Notes
        -----
        The belief ignores correlations between a scale and the variables that it is the scale of.
        Sds of noise beside a block of d weights were 1.13 to 1.6 times too large, for d / n from
        0.2 to 0.5. For regressions :func:`epfast.fit_hyper` is right to 1 %.

        Examples
        --------
        >>> import epfast, numpy as np
        >>> from epfast.priors import HalfCauchy
        >>> g = epfast.Graph()
        >>> level, sd = g.gaussian(variance=100.0), g.scale(HalfCauchy(2.5))
        >>> batch = g.add(epfast.graph.Noise(sd), np.array([2.1, 1.9, 2.2, 1.7, 2.0, 2.3]) - level)
        >>> g.fit()[sd].mean.round(1)
        np.float64(0.3)
        """
        given = HalfStudentT() if prior is None else prior
        if not isinstance(given, Scale):
            raise TypeError(
                f"prior is {_checks.describe(prior)}; allowed: an object of epfast.priors, such as "
                "HalfCauchy(2.5)"
            )
        factor = ScaleFactor.of(given)
        shape, natural = priors.gamma(() if size is None else size, factor.shape, factor.rate)
        made = self._new("gamma", shape, natural, name, Scales)
        if not isinstance(given, InverseGamma):  # else the gamma prior is the whole prior
            self.add(factor, made)
        return made

    def beta(
        self,
        size: Size = None,
        alpha: ArrayLike = 1.0,
        beta: ArrayLike = 1.0,
        *,
        name: str | None = None,
    ) -> Variables:
        """Variables between 0 and 1, with beta distributions under the prior.

        Parameters
        ----------
        size : int or tuple of int, optional
            Shape of the array of variables. None: that of ``alpha`` and ``beta``.
        alpha, beta : float or array_like, default=1.0
            Parameters of the prior, > 0.
        name : str, optional
            As in :meth:`gaussian`.

        Returns
        -------
        Variables
        """
        return self._new("beta", *priors.beta(size, alpha, beta), name, Variables)

    def dirichlet(
        self,
        k: int,
        concentration: Given = 1.0,
        shape: Size = None,
        *,
        name: str | None = None,
    ) -> Variables:
        """Unknown probabilities of k categories, with Dirichlet distributions under the prior.

        Each variable is a vector of k probabilities, which sum to 1. For k = 2 it is a beta
        variable and its complement.

        Parameters
        ----------
        k : int
            Number of categories, 2 or more.
        concentration : float or array_like, default=1.0
            Parameters of the prior, > 0, as many as categories along the last axis, or one for all.
            They count as categories that were seen before. With 1 all probabilities are equally
            likely.
        shape : int or tuple of int, optional
            Shape of the array of variables. None: that of ``concentration`` without its last axis.
        name : str, optional
            As in :meth:`gaussian`.

        Returns
        -------
        Variables
            ``post[p]`` has ``concentration`` beside mean, variance and sd, with the categories
            along the last axis.

        See Also
        --------
        epfast.graph.Category : a variable with these probabilities.
        epfast.graph.Table : a table whose rows have them, ``Table(p)``.

        Examples
        --------
        >>> import epfast
        >>> g = epfast.Graph()
        >>> p = g.dirichlet(3, concentration=2.0)
        >>> seen = g.add(epfast.graph.Category(p), [0, 0, 2, 0])
        >>> g.fit()[p].concentration
        array([5., 2., 3.])
        """
        return self._new("dirichlet", *priors.dirichlet(k, concentration, shape), name, Variables)

    def categorical(
        self,
        size: Size = None,
        n: int | None = None,
        prior: Given = None,
        *,
        probabilities: Given = None,
        name: str | None = None,
    ) -> Variables:
        """Variables with n categories, 0 to n - 1.

        Parameters
        ----------
        size : int or tuple of int, optional
            Shape of the array of variables. None: that of ``prior`` without its last axis.
        n : int, optional
            Number of categories, 2 or more. None: the length of the last axis of ``prior``.
        prior : array_like, optional
            Prior probabilities, >= 0, with the categories along the last axis. Each row is divided
            by its sum. None: no prior, see Notes.
        probabilities : array_like, optional
            Another name for ``prior``.
        name : str, optional
            As in :meth:`gaussian`.

        Returns
        -------
        Variables

        Raises
        ------
        ValueError
            If both ``prior`` and ``probabilities`` are given, or none of ``prior``,
            ``probabilities`` and ``n``, or if the numbers are not probabilities.

        Notes
        -----
        Without ``prior`` the default depends on the factors of the variable:

        - If factors of categorical and Dirichlet variables alone are about it, such as
          :class:`epfast.graph.Table` and :class:`epfast.graph.Category`, the prior is 1 for each
          category. The evidence is then the
          sum, over all states, of the product of all factors. In a network with tables p(root) and
          p(child | parents) this is the probability of the observations. A root needs a ``prior``
          or a table of its own. Without either the evidence is n times that of equal
          probabilities.
        - If there are no such factors, as for the label of a :class:`epfast.graph.Mixture`, each
          category has the prior probability 1 / n.

        A ``prior`` always multiplies the factors. A child with a conditional table needs none.

        Examples
        --------
        A hidden Markov chain, with p(first state), p(next state | state) and observations.

        >>> import numpy as np, epfast
        >>> from epfast.graph import Table
        >>> stay, emit = np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([[0.7, 0.3], [0.1, 0.9]])
        >>> g = epfast.Graph()
        >>> h = g.categorical(3, n=2)
        >>> batches = [g.add(Table([0.5, 0.5]), h[0]), g.add(Table(stay), h[:-1], h[1:])]
        >>> seen = g.add(Table(emit.T[[0, 1, 1]]), h)
        >>> round(float(np.exp(g.fit().log_evidence)), 6)
        0.08775
        """
        if prior is not None and probabilities is not None:
            raise ValueError("prior and probabilities are both given; allowed: one of them")
        chosen = probabilities if prior is None else prior
        return self._new("categorical", *priors.categorical(size, n, chosen), name, Variables)

    def block(
        self,
        d: int | tuple[int, ...],
        precision: ArrayLike | SparseGiven | None = None,
        variance: ArrayLike | None = None,
        mean: ArrayLike = 0.0,
        name: str | None = None,
    ) -> Block:
        """An array of Gaussian variables, whose belief keeps all correlations.

        Losses, ``Between`` and ``Noise`` take linear forms over it, such as ``X @ w`` and
        ``w[1:] - w[:-1]``, alone or with scalar variables, as ``X @ w + level[group]``. Transitions
        take its rows as states, see :class:`epfast.graph.Transition`.

        Parameters
        ----------
        d : int or tuple of int
            Number of variables, or the shape of their array, as (n, k) for n states of k entries.
        precision : array_like or sparse matrix of shape (d, d), optional
            Precision matrix of the prior, the inverse of the covariance, with entries in the order
            of the raveled array. It is positive definite, and symmetric to rounding. If d is a
            tuple, a sparse one may have rows of zeros: a flat prior, as that of infinite variances.
        variance : float or array_like of shape (d,), optional
            Prior variances of independent entries, in place of ``precision``. None: 1. If d is a
            tuple they broadcast to that shape, and may be infinite in states that transitions or
            observations define. Such a prior has the density 1.
        mean : float or array_like of shape (d,), default=0.0
            Mean of the prior. If d is a tuple it broadcasts to that shape.
        name : str, optional
            As in :meth:`gaussian`.

        Returns
        -------
        Block

        Raises
        ------
        ValueError
            For a precision that is not symmetric or not positive definite, or of another shape, and
            for variances that are not positive.

        Notes
        -----
        With a dense ``precision``, and with ``variance`` for an int d up to 16,384, the belief has
        a matrix (d, d), and a sweep takes O(d^2) per factor.

        With a sparse ``precision`` (of SciPy), for a tuple d with ``variance``, and for states of
        transitions, the precision of the belief stays sparse: its entries are those of the prior
        and the pairs of variables that meet in a form. Of a chain of states both time and memory
        are proportional to its length. Factors that are Gaussian in forms over the block alone are
        part of its prior, so that a model of such factors is exact. The others are updated together
        once per sweep. ``post[w]`` has ``mean``, ``variance``, ``sd`` and
        ``covariances_of(columns)``. The schedule is EP. A ``precision`` that has more than some
        thousand steps of a chain is nearly singular to rounding. Give the steps as transitions.

        Examples
        --------
        A level and a slope, by transitions of the states (level, slope):

        >>> import epfast, numpy as np
        >>> rng = np.random.default_rng(0)
        >>> y = np.linspace(0.0, 10.0, 21) + 0.5 * rng.normal(size=21)
        >>> g = epfast.Graph()
        >>> x = g.block((21, 2), variance=[[100.0, 1.0]] + 20 * [[np.inf, np.inf]])
        >>> step = epfast.graph.Transition(np.diag([0.01, 0.001]), factor=[[1.0, 1.0], [0.0, 1.0]])
        >>> steps = g.add(step, x[:-1], x[1:])
        >>> seen = g.add("gaussian", x[:, 0], y, noise=0.25)
        >>> g.fit()[x].mean[-1].round(2)
        array([10.04,  0.54])
        """
        self._check_name(name)
        number = len(self._model.families)
        shape, prior = priors.block(number, d, precision, variance, mean)
        made = Block(self._model.graph, number, shape)
        self._model = self._model.with_variables(BLOCK, np.array([[1.0, 0.0]]), name, made)
        self._model = self._model._replace(blocks=(*self._model.blocks, prior))
        return made

    @property
    def variables(self) -> dict[str | int, Variables | Block]:
        """All arrays of variables, by name. Arrays without a name are numbered from 0."""
        return dict(self._model.variables)

    def _check_name(self, name: str | None) -> None:
        if name is not None and (
            not isinstance(name, str) or not name or name in self._model.variables
        ):
            raise ValueError(f"name is {_checks.describe(name)}; allowed: a new string, or None")

    def _new(
        self,
        family: str,
        shape: tuple[int, ...],
        natural: Array,
        name: str | None,
        kind: type[Made],
    ) -> Made:
        """Make variables with these natural parameters of their priors, (n, k)."""
        self._check_name(name)
        n, k = natural.shape
        numbers = (len(self._model.families) + np.arange(n, dtype=np.intp)).reshape(shape)
        made = kind(self._model.graph, family, numbers, k)
        self._model = self._model.with_variables(NAMES.index(family), natural, name, made)
        return made

    @classmethod
    def of(cls, posterior: GraphPosterior) -> Graph:
        """The graph of a posterior, as it was at the fit. Use it to continue after a load.

        Variables of the old graph and of its posterior are valid in this graph, too.
        """
        if not isinstance(posterior, GraphPosterior):
            raise TypeError(
                f"posterior is {_checks.describe(posterior)}; allowed: a GraphPosterior"
            )
        graph = cls()
        graph._model = posterior.problem.model
        return graph

    # ---- factors ----

    def add(self, factor: Kind | LossGiven, /, *neighbours: Argument, **data: Argument) -> int:
        """Add a batch of factors, one for each row of the neighbours, which broadcast as arrays do.

        Parameters
        ----------
        factor : Loss, str or factor of :mod:`epfast.graph`
            A loss or likelihood of the library, or its name, is a factor of a linear form:
            ``add(loss, form, y, noise=None, scheme="exact")``. :mod:`epfast.graph` has other
            factors, and their notes say which neighbours they take.
        *neighbours
            Variables, linear forms over them (``s[i] - 2 * s[j] + offset``), and data.
        **data
            Numbers of the factors, by name. See Notes for ``noise``.

        Returns
        -------
        int
            The number of the batch, for :meth:`remove`.

        Raises
        ------
        TypeError, ValueError
            For neighbours that the factor does not take. Nothing is added then.

        Notes
        -----
        ``noise`` is the variance of normal noise on the form, a number for all forms or one for
        each. How it combines with a loss depends on how the loss is given:

        - A loss object keeps its own variance, and noise is added to it:
          ``add(losses.Gaussian(0.5), form, y, noise=0.3)`` has the variance 0.8.
        - The names "gaussian", "interval" and "censored" have the variance ``noise`` in place
          of 1: ``add("gaussian", form, y, noise=0.3)`` has the variance 0.3.
        - Names of other losses in units of y ("student_t", "laplace_noise", "quantile") are
          refused with ``noise``. Give an object, as ``losses.StudentT(scale=0.5)``.
        - Other names, such as "probit", have the parameters of their class.
        """
        kind, key = kind_of(factor), self._model.added
        self._model.check_handles(
            bind("add", type(kind).attach, kind, name_of(factor), neighbours, data)
        )
        batch = kind.attach(*neighbours, **data)
        self._model = self._model.with_batch(batch)
        return key

    def remove(self, batch: int, rows: Given = None) -> None:
        """Remove factors.

        Parameters
        ----------
        batch : int
            Number of the batch, which :meth:`add` returned.
        rows : array_like of int, optional
            Factors of the batch, by their places when they were added. None: all.
        """
        kept = {known.key: known for known in self._model.batches}
        if batch not in kept:
            raise ValueError(
                f"batch is {_checks.describe(batch)}; allowed: a number that add() returned"
            )
        old = kept.pop(batch)
        if rows is not None:
            gone = np.asarray(rows)
            if gone.dtype.kind not in "iu" or not np.isin(gone, old.rows).all():
                raise ValueError(
                    f"rows is {_checks.describe(rows)}; allowed: places of factors of the batch"
                )
            left = np.flatnonzero(~np.isin(old.rows, gone))
            if len(left):
                kept[batch] = old.select(left)
        batches = tuple(kept[key] for key in sorted(kept))
        self._model = self._model._replace(batches=batches, joined=of_one_kind(batches))

    # ---- fit ----

    def fit(
        self,
        schedule: Schedule | None = None,
        start: GraphPosterior | None = None,
        callback: Callback | None = None,
        progress: bool | Tick = False,
        watch: Linear | None = None,
    ) -> GraphPosterior:
        """Fit the beliefs of all variables.

        Parameters
        ----------
        schedule : Schedule, optional
            None: ``EP(sweeps=500, tol=1e-6)``.
        start : GraphPosterior, optional
            An earlier posterior of this graph, as a warm start. Sites of factors that are still in
            the graph are kept, and operators continue with what they have learned.
        callback : callable, optional
            Called after each sweep with its :class:`epfast.SweepInfo` and the state. A true return
            value ends the fit.
        progress : bool or callable, default=False
            Whether to show a progress bar, or a function that is called with the number of updates.
        watch : LinearForm, optional
            Linear forms that decide about convergence. ``change`` is then their distance from
            their limit, which is extrapolated from the sweeps. None: ``change`` is the largest move
            of a variable in a sweep. Give ``watch`` where only differences are observed, because
            the common level of all variables moves slowly and has no effect.

        Returns
        -------
        GraphPosterior

        Raises
        ------
        ValueError
            If the evidence is 0: no values of the variables fulfil all tables and observations. The
            message names a factor that contradicts the others.
            For a schedule or start that the graph does not take.

        Warns
        -----
        ConvergenceWarning
            If the fit did not converge, or if sites were refused or failed in its last sweep.
        """
        _checks.callback(callback)
        _checks.progress(progress)
        problem = ready(self._model, legal(USUAL if schedule is None else schedule))
        if start is not None and not isinstance(start, GraphPosterior):
            raise TypeError(
                f"start is {_checks.describe(start)}; allowed: a GraphPosterior or None"
            )
        if start is not None and start.problem.model.graph != self._model.graph:
            raise ValueError("start is of another graph; allowed: a posterior of this one")
        if isinstance(start, JointGraphPosterior) and not is_joint(problem):
            raise ValueError(
                "start has joint sites, and the factors of the graph have none; allowed: a "
                "posterior of a graph with the same factors"
            )
        if start is not None and problem.schedule.stores == "none":
            raise ValueError(
                "start is given with ADF, which keeps no sites; allowed: start=None, or the "
                "schedule EP, SEP or AEP"
            )

        before = () if start is None else start.problem.model.batches
        model = problem.model.with_copies(begun(problem.model.batches, before))
        problem = problem._replace(model=model)

        joint = is_joint(problem)
        kind = JointGraphPosterior if joint else GraphPosterior

        def result(fit: Fit[GraphState]) -> GraphPosterior:
            post = kind(fit.state, problem, fit.converged, fit.history)
            post.reasons = dict(engine.reasons)
            post.program = engine.program
            return post

        watched = None if watch is None else self._model.form("watch", watch, blocks=False)
        if joint and watched is not None:
            raise ValueError("watch is given with reading='joint'; allowed: None")
        engine: JointOrOther = JointEngine(problem) if joint else GraphEngine(problem, watched)
        fit = None
        try:
            fit = run(
                engine,
                problem.schedule,
                start,
                callback=callback,
                progress=progress,
                questions=lambda: questions_of(problem.model.joined),
            )
            warn_of(fit, engine, problem.schedule)
            warn_of_operators(problem.model.batches)
            return result(fit)
        except KeyboardInterrupt as pressed:
            raise interrupted(
                pressed, fit, result, None, lambda: result(Fit(engine.init(start), False, []))
            ) from None

    def one_step_ahead(self) -> dict[int, Array]:
        """Log density of each factor given the factors before it, in one pass.

        The pass visits factors in the order of time, and otherwise as they were added.

        Returns
        -------
        dict of int to ndarray of shape (n,)
            For each batch, by the number that :meth:`add` returned, the log of the integral of each
            factor over the beliefs before it. For likelihoods and ``Between`` this is
            log p(y_t | y_1, ..., y_t-1). NaN for sites that were refused, and for transitions,
            Gaussian losses and factors of your own.
        """
        problem = ready(self._model, legal(ADF()))
        if problem.sparse:
            raise ValueError(
                "the graph has a block with a sparse precision, whose factors are updated "
                "together; allowed for one pass: scalar variables, or blocks with a dense precision"
            )
        if is_joint(problem):
            raise ValueError(
                "the graph has factors with joint sites; allowed for one pass: other factors"
            )
        model = problem.model.with_copies(begun(problem.model.batches))
        return GraphEngine(problem._replace(model=model), by_parts=False).one_step_ahead()
