"""Graph: variables, factors, fit."""

from __future__ import annotations

import secrets
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks
from epfast._arrays import Array
from epfast.families import FAMILIES
from epfast.gaussian.priors import normal_prior
from epfast.graph import priors
from epfast.graph.blocks import BlockPrior
from epfast.graph.engine import GraphEngine
from epfast.graph.factors import (
    Kind,
    LinearFactor,
    check_instance,
    check_room,
    form_of,
)
from epfast.graph.joint import JointEngine, JointGraphPosterior, has_joint_sites, is_joint
from epfast.graph.learned import begun, questions_of, warn_of_operators
from epfast.graph.own import ScaleFactor
from epfast.graph.posterior import GraphPosterior
from epfast.graph.problem import (
    BLOCK,
    GraphProblem,
    legal,
)
from epfast.graph.variables import Block, Scales, Variables, ends
from epfast.inference import Fit, interrupted, run, warn_of
from epfast.priors import HalfStudentT, InverseGamma, Scale
from epfast.schedules import ADF, EP, Schedule

Made = TypeVar("Made", Variables, Scales)

#: what no argument means
USUAL = EP(sweeps=200, tol=1e-6)
NAMES = tuple(FAMILIES)


class Graph:
    """A model of your own: variables, and factors over some of them each.

    Three verbs: make variables, add factors, fit. Expectation propagation approximates the
    posterior by a product over the variables.

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
        self._model = GraphProblem(secrets.token_hex(8))

    def __repr__(self) -> str:
        n, factors = len(self._model.families), self._model.n_factors
        return f"Graph({n} variables, {factors} factors)"

    # ---- variables ----

    def gaussian(
        self,
        size: Any = None,
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
        mean, variance : float or array_like
            Of the prior, broadcast to ``size``. A variance may be infinite where factors alone
            define the variable, as a transition does: such a prior counts as the density 1.
        name : str, optional
            By which :attr:`variables` and ``post[name]`` find the array, after a load too.

        Returns
        -------
        Variables
        """
        return self._new("gaussian", *priors.gaussian(size, mean, variance), name)

    def gamma(
        self,
        size: Any = None,
        shape: ArrayLike = 1.0,
        rate: ArrayLike = 1.0,
        *,
        name: str | None = None,
    ) -> Variables:
        """Positive variables, as precisions are, with gamma distributions under the prior.

        Parameters
        ----------
        size : int or tuple of int, optional
            Shape of the array of variables. None: that of ``shape`` and ``rate``.
        shape, rate : float or array_like
            Of the prior, > 0; the mean is shape / rate. A rate of 0 with shape 1 is a flat prior,
            where factors alone define the variable, as a compound gamma does: it counts as the
            density 1.
        name : str, optional
            As in :meth:`gaussian`.

        Returns
        -------
        Variables
        """
        return self._new("gamma", *priors.gamma(size, shape, rate), name)

    def scale(
        self, prior: Scale | None = None, size: Any = None, *, name: str | None = None
    ) -> Scales:
        """Standard deviations s, of noise or of a group of effects.

        Factors take them where they take precisions, which are 1 / s^2: ``g.add(Noise(s), form)``.
        ``post[s]`` has mean, sd and quantiles of s itself, and ``shape`` and ``rate`` of the gamma
        belief about the precision.

        Parameters
        ----------
        prior : epfast.priors.Scale
            The density of each s. None: ``HalfStudentT(3, 2.5)``.
        size : int or tuple of int, optional
            Shape of the array of variables. None: a single one.
        name : str, optional
            As in :meth:`gaussian`.

        Returns
        -------
        Variables

        Notes
        -----
        A gamma belief about the precision keeps no correlations with what the scale is of: sds of
        noise beside a block of d weights came out 1.13 to 1.6 times too large for d / n from 0.2 to
        0.5. Where the model is a regression, :func:`epfast.fit_hyper` is right to 1 %.

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
        if not isinstance(given, InverseGamma):  # of which the gamma prior is all
            self.add(factor, made)
        return made

    def beta(
        self,
        size: Any = None,
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
        alpha, beta : float or array_like
            Of the prior, > 0.
        name : str, optional
            As in :meth:`gaussian`.

        Returns
        -------
        Variables
        """
        return self._new("beta", *priors.beta(size, alpha, beta), name)

    def categorical(
        self,
        size: Any = None,
        n: int | None = None,
        prior: Any = None,
        *,
        probabilities: Any = None,
        name: str | None = None,
    ) -> Variables:
        """Variables that are one of n categories, 0, 1, ..

        Parameters
        ----------
        size : int or tuple of int, optional
            Shape of the array of variables. None: that of ``prior`` but for its last axis.
        n : int, optional
            Number of categories, 2 or more. None: the length of the last axis of ``prior``.
        prior : array_like, optional
            Prior probabilities, the categories along the last axis, >= 0; each row is divided by
            its sum. None: no prior, see Notes.
        probabilities : array_like, optional
            Another name of ``prior``.
        name : str, optional
            As in :meth:`gaussian`.

        Returns
        -------
        Variables

        Raises
        ------
        ValueError
            For both ``prior`` and ``probabilities``, neither these nor ``n``, or numbers that are
            no probabilities.

        Notes
        -----
        Without a prior, what is known of a variable depends on its factors:

        - Factors of categorical variables alone, such as :class:`epfast.graph.Table`, say all of
          it. The prior is flat: it counts as the number 1 for each category, and the evidence is
          the sum of the product of all factors over all states. A network whose tables are p(root)
          and p(child | parents) has the evidence of what is observed. A root needs its own
          ``prior``, or its own table; without either the evidence is n times that of equal
          probabilities.
        - If there are no such factors, as for the label of a :class:`epfast.graph.Mixture`, all
          categories have the probability 1 / n.

        A prior that is given is always a factor: a child with a conditional table needs none.

        Examples
        --------
        A hidden chain: p(first state), p(next state | state) and what is observed.

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
            raise ValueError("prior and probabilities are given; allowed: one of them")
        chosen = probabilities if prior is None else prior
        return self._new("categorical", *priors.categorical(size, n, chosen), name)

    def block(
        self,
        d: int,
        precision: ArrayLike | None = None,
        variance: ArrayLike | None = None,
        mean: ArrayLike = 0.0,
        name: str | None = None,
    ) -> Block:
        """A vector of Gaussian variables, whose belief keeps all correlations.

        ``X @ w`` are linear forms over it, for losses, ``Between`` and ``Noise``, alone or beside
        scalar variables: ``X @ w + level[group]``. A sweep takes O(d^2) per factor.

        Parameters
        ----------
        d : int
        precision : array_like of shape (d, d), optional
            Of the prior, positive definite, symmetric to rounding: the inverse of a covariance
            matrix.
        variance : float or array_like of shape (d,), optional
            In place of ``precision``: independent entries. None: 1. Infinite where factors alone
            determine an entry: such a prior counts as the density 1.
        mean : float or array_like of shape (d,)
        name : str, optional

        Returns
        -------
        Block

        Notes
        -----
        An infinite variance needs factors whose forms X @ w have a matrix X of full column rank,
        and a posterior that is proper: ``fit`` refuses the former, and reports sites that wait of
        the latter (separated classes, say). It goes with ``EP`` alone.
        """
        size = _checks.integer("d", d, least=1, most=2**20)
        self._check_name(name)
        given = _checks.real_array("mean", mean)
        center = np.full(size, given, dtype=np.float64) if given.ndim == 0 else given
        flat = np.zeros(size, dtype=bool)
        if variance is not None and not isinstance(variance, str):
            spread = _checks.real_array("variance", variance)
            if np.isposinf(spread).any() and spread.shape in ((), (size,)):
                flat |= np.isposinf(spread)
                variance = np.where(flat, 1.0, spread)
        normal = normal_prior(variance, precision, None, center, size, True, prefix="")
        prior = normal.precision.copy()
        prior[flat] = 0.0
        number = len(self._model.families)
        made = Block(self._model.graph, number, size)
        self._model = self._model.with_variables(BLOCK, np.array([[1.0, 0.0]]), name, made)
        block = BlockPrior(number, prior, center.astype(np.float64))
        self._model = self._model._replace(blocks=(*self._model.blocks, block))
        return made

    @property
    def variables(self) -> dict[str | int, Variables | Block]:
        """All arrays of variables, by name, or else by place: 0 is the first that was made."""
        return dict(self._model.made)

    def _check_name(self, name: Any) -> None:
        if name is not None and (not isinstance(name, str) or not name or name in self._model.made):
            raise ValueError(f"name is {_checks.describe(name)}; allowed: a new string, or None")

    def _new(
        self,
        family: str,
        shape: tuple[int, ...],
        natural: Array,
        name: str | None,
        kind: type[Made] = Variables,  # type: ignore[assignment]
    ) -> Made:
        """Variables with these natural parameters of their priors, (n, k)."""
        self._check_name(name)
        n, k = natural.shape
        numbers = (len(self._model.families) + np.arange(n, dtype=np.intp)).reshape(shape)
        made = kind(self._model.graph, family, numbers, k)
        self._model = self._model.with_variables(NAMES.index(family), natural, name, made)
        return made

    @classmethod
    def of(cls, posterior: GraphPosterior) -> Graph:
        """The graph that a posterior is of, as it was at the fit: to go on after a load.

        Variables of the old graph and its posterior are those of this one too.
        """
        if not isinstance(posterior, GraphPosterior):
            raise TypeError(
                f"posterior is {_checks.describe(posterior)}; allowed: a GraphPosterior"
            )
        graph = cls()
        graph._model = posterior.problem
        return graph

    # ---- factors ----

    def add(self, factor: Any, /, *neighbours: Any, **data: Any) -> int:
        """Add factors: one for each row of the neighbours, which broadcast as arrays do.

        Parameters
        ----------
        factor : Loss, str or factor of :mod:`epfast.graph`
            A loss or likelihood of the library, by name too, is a factor of a linear form:
            ``add(loss, form, y, noise=None, scheme="exact")``. Others are in :mod:`epfast.graph`,
            each with its neighbours in its notes. ``noise`` is a variance, see Notes.
        *neighbours
            Variables, linear forms over them (``s[i] - 2 * s[j] + offset``), and data.
        **data
            Numbers of the factors, by name.

        Returns
        -------
        int
            The number of the batch, for :meth:`remove`.

        Raises
        ------
        TypeError, ValueError
            For neighbours that the factor does not take, with those that it does; nothing is added.

        Notes
        -----
        ``noise``, a number or one for each form, is the variance of normal noise on the form,
        beside that of a loss that is given as an object: ``add(losses.Gaussian(0.5), form, y,
        noise=0.3)`` has the variance 0.8. A loss by name has the parameters of its class, such as
        a variance of 1. The names "gaussian", "interval" and "censored" beside ``noise`` have that
        variance in place of 1: ``add("gaussian", form, y, noise=0.3)`` has the variance 0.3. Names
        of other losses in units of y ("student_t", "laplace_noise", "quantile") are refused beside
        ``noise``: their width is that of an object, ``losses.StudentT(scale=0.5)``.
        """
        check_instance(factor)
        model = self._model
        if not isinstance(factor, Kind):
            factor = LinearFactor(factor)
        try:
            batch, times = factor.attach(model, *neighbours, **data)
        except TypeError as error:
            if "attach() " not in str(error):
                raise
            raise TypeError(f"add() {str(error).split('attach() ', 1)[1]}") from None
        self._model = model.with_batch(batch, times)
        return int(batch.key)

    def remove(self, batch: int, rows: Any = None) -> None:
        """Take factors out.

        Parameters
        ----------
        batch : int
            What :meth:`add` returned.
        rows : array_like of int, optional
            Factors of the batch, by their places when they were added. None: all.
        """
        kept = {known.key: known for known in self._model.batches}
        if batch not in kept:
            raise ValueError(f"batch is {_checks.describe(batch)}; allowed: a number that add gave")
        old = kept.pop(batch)
        if rows is not None:
            gone = np.asarray(rows)
            if gone.dtype.kind not in "iu" or not np.isin(gone, old.rows).all():
                raise ValueError(
                    f"rows is {_checks.describe(rows)}; allowed: places of factors that are there"
                )
            left = np.flatnonzero(~np.isin(old.rows, gone))
            if len(left):
                kept[batch] = old.taken(left)
        batches = tuple(kept[key] for key in sorted(kept))
        self._model = self._model._replace(batches=batches)

    # ---- fit ----

    def fit(
        self,
        schedule: Schedule | None = None,
        start: GraphPosterior | None = None,
        callback: Any = None,
        progress: Any = False,
        watch: Any = None,
    ) -> GraphPosterior:
        """Fit the beliefs of all variables.

        Parameters
        ----------
        schedule : Schedule, optional
            None: ``EP(sweeps=200, tol=1e-6)``.
        start : GraphPosterior, optional
            An earlier posterior of this graph, whose sites are kept where their factors are still
            there: online learning. Operators of factors of your own go on with what they know.
        callback : callable, optional
            Called after each sweep with its :class:`epfast.SweepInfo` and the state; a true answer
            ends the fit.
        progress : bool or callable
        watch : LinearForm, optional
            Linear forms by which convergence is judged: the ``change`` is how far they are from
            their limit, by an extrapolation of the sweeps, from which these go on. None: it is how
            far a sweep moves any variable. Where only differences are observed, the level of all
            variables moves slowly, and means nothing.

        Returns
        -------
        GraphPosterior

        Raises
        ------
        ValueError
            If the evidence is 0: tables and observations, or bounds of ``Between`` without noise,
            which no values of the variables fulfil; a factor that contradicts the others is named.
            If factors do not determine a block with infinite variances. For a schedule or start
            that the graph does not take.

        Warns
        -----
        ConvergenceWarning
            If the fit did not settle, or its last sweep had factors that waited or failed.
        """
        _checks.callback(callback)
        _checks.progress(progress)
        problem = self._model.ready(legal(USUAL if schedule is None else schedule))
        if start is not None and not isinstance(start, GraphPosterior):
            raise TypeError(
                f"start is {_checks.describe(start)}; allowed: a GraphPosterior or None"
            )
        if start is not None and start.problem.graph != self._model.graph:
            raise ValueError("start is of another graph; allowed: a posterior of this one")
        if isinstance(start, JointGraphPosterior) and not is_joint(problem):
            raise ValueError(
                "start has joint sites, and the graph has others; allowed: a posterior of its own"
            )
        if start is not None and problem.schedule.stores == "none":
            raise ValueError(
                "start is given beside ADF, which keeps no sites to go on from; allowed: None, or "
                "EP, SEP or AEP"
            )

        before = () if start is None else start.problem.batches
        problem = problem._replace(batches=begun(problem.batches, before))

        joint = is_joint(problem)
        kind = JointGraphPosterior if joint else GraphPosterior

        def result(fit: Fit) -> GraphPosterior:
            post = kind(fit.state, problem, fit.converged, fit.history)
            post.reasons = engine.reasons
            post.program = engine.program
            return post

        if watch is not None:
            watch = form_of(problem, "watch", watch)
        if joint and watch is not None:
            raise ValueError("watch is given; allowed with reading='joint': None")
        engine: Any = JointEngine(problem) if joint else GraphEngine(problem, watch)
        fit = None
        try:
            fit = run(
                engine,
                problem.schedule,
                start,
                callback=callback,
                progress=progress,
                questions=lambda: questions_of(problem.batches),
            )
            if not fit.converged:
                widths = np.ones(len(problem.families), dtype=np.intp)
                for block in problem.blocks:
                    widths[block.number] = block.d
                check_room(problem.batches, ends(widths))
            warn_of(fit, engine, problem.schedule)
            warn_of_operators(problem.batches)
            return result(fit)
        except KeyboardInterrupt as pressed:
            raise interrupted(
                pressed, fit, result, None, lambda: result(Fit(engine.init(start), False, []))
            ) from None

    def one_step_ahead(self) -> dict[int, Array]:
        """How likely factors are given those before them, in one pass: of times, then as added.

        Returns
        -------
        dict of int to ndarray of shape (n,)
            For each batch (its number is what :meth:`add` returned), log of the integral of each
            of its factors over the beliefs before it: log p(y_t | y_1, ..., y_t-1) of losses that
            are likelihoods, and of ``Between``. NaN where a factor waits, and of factors that are
            no loss on a linear form.
        """
        problem = self._model.ready(legal(ADF()))
        if any(map(has_joint_sites, problem.batches)):
            raise ValueError("the graph has joint sites; allowed for one pass: other factors")
        problem = problem._replace(batches=begun(problem.batches))
        found = GraphEngine(problem, by_parts=False).one_step_ahead()
        return {batch.key: part for batch, part in zip(problem.batches, found, strict=True)}
