"""What the estimators of processes share: problems, searches, and kernels of new inputs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks, inference, losses, schemes
from epfast._arrays import Array
from epfast.estimators.base import (
    ConvergenceWarning,
    Points,
    Posteriors,
    check_is_fitted,
    estimator,
    random_state_of,
    uncounted,
)
from epfast.estimators.evidence import normalised
from epfast.estimators.jobs import in_threads, jobs_of, shares
from epfast.estimators.kernels import ROWS, Distances, Stationary, at_bounds, ladder
from epfast.estimators.mixtures import AT_END, CHANGE
from epfast.estimators.neighbors import AT_NEW, COUNT, Neighbors
from epfast.estimators.parameters import LossParameters, warn_ends, weak_prior
from epfast.estimators.process_search import Maximum, search
from epfast.estimators.processes import (
    LEAST,
    NO_PARAMETERS,
    PILOT,
    AnyProcess,
    BinaryProcess,
    LatentProcess,
    LowRankProcess,
    evidence_at,
    fit_at,
    least_bytes,
    pilot_rows,
)
from epfast.gaussian import GPPosterior, LatentGPPosterior, LowRankGPPosterior
from epfast.gaussian.average import averaged
from epfast.gaussian.diagnostics import trusted
from epfast.gaussian.fit_gp import warn_of_process
from epfast.gaussian.fit_hyper_gp import IntegratedProcess, ProcessTarget, parameters_of
from epfast.gaussian.low_rank import note_rank
from epfast.gaussian.nearest import NearestGPPosterior
from epfast.gaussian.prior import check_positive, kernel_in_memory
from epfast.gaussian.rows import Data, responses_of
from epfast.gaussian.table import Request, choose
from epfast.inference import FAILURES, DataWarning
from epfast.inference.design import MOST
from epfast.inference.hyper import MOST_LOST, Unknown
from epfast.inference.records import warn_user
from epfast.inference.runtime import memory_left
from epfast.priors import HalfCauchy
from epfast.schedules import EP, Schedule

# scikit-learn is there, or epfast.estimators.base would have said so
from sklearn.gaussian_process.kernels import CompoundKernel  # isort: skip

#: an error of the sites changes the evidence to second order only
SCHEDULE = EP(sweeps=200, tol=1e-6)
#: values of a kernel at a time in predictions, 2 MB: scikit-learn's kernels hold some four arrays
NUMBERS = 1 << 18
#: rows from which a low rank is tried where none is asked for, and rows beyond which no other
#: process is fitted exactly: a search takes two minutes there
LOW_RANK_FROM, EXACT_UP_TO = 1000, 6000
#: rows up to which an average over hyper-parameters is taken where none is asked for: it takes 90
#: to 570 fits
AVERAGED_UP_TO = 100
#: nats of evidence that the most probable point may lack: weak priors that cost more are not weak.
#: Those of smooth functions with little noise cost 13
CONTRADICTED = 3.0
METHODS = "auto", "exact", "nearest"
Posterior = GPPosterior | LatentGPPosterior | LowRankGPPosterior | NearestGPPosterior


@estimator
class ProcessModel(Posteriors):
    """Base of the estimators of processes, with the parameters that both have."""

    kernel: Any = field(default=None, kw_only=False)
    optimizer: Any = "fmin_l_bfgs_b"
    n_restarts_optimizer: int = 0
    loss: Any
    scheme: Any = "exact"
    learn: tuple[str, ...] | None
    integrate: bool | str = "auto"
    schedule: Schedule | None = None
    jitter: float = 0.0
    rank: int | None = None
    method: str = "auto"
    n_neighbors: int | None = None
    random_state: Any = None
    warm_start: bool = False
    n_jobs: int | None = None

    def _input(self) -> dict[str, Any]:
        """What scikit-learn shall check of X: of texts, graphs and the like no more than a length.

        That is where the kernel says so, by ``requires_vector_input``.
        """
        vectors = getattr(self.kernel, "requires_vector_input", True)
        return {"dtype": np.float64} if vectors else {"dtype": None, "ensure_2d": False}

    def _check(self) -> None:
        """Check the parameters."""
        jobs_of(self.n_jobs)
        _checks.integer("n_restarts_optimizer", self.n_restarts_optimizer, least=0)
        if not (
            self.optimizer is None
            or callable(self.optimizer)
            or (isinstance(self.optimizer, str) and self.optimizer == "fmin_l_bfgs_b")
        ):
            raise ValueError(
                f"optimizer is {_checks.describe(self.optimizer)}; allowed: 'fmin_l_bfgs_b', None "
                "or a callable"
            )
        _checks.number("jitter", self._jitter, least=0.0)
        if self.rank is not None:
            _checks.integer("rank", self.rank, least=1)
        method = _checks.choice("method", self.method, METHODS)
        if self.n_neighbors is not None:
            _checks.integer("n_neighbors", self.n_neighbors, least=1)
        others = {"rank": self.rank, "method": None if method == "auto" else method}
        if method == "exact" or self.rank is not None:
            others["n_neighbors"] = self.n_neighbors
        given = [f"{name}={value!r}" for name, value in others.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are given; allowed: one of them")
        if self._jitter != 0.0 and (method == "nearest" or self.rank is not None):
            raise ValueError(f"jitter is {self.jitter!r}; allowed with {given[0]}: 0")
        schedule = self._schedule
        if self.rank is not None and self.optimizer is not None and not isinstance(schedule, EP):
            raise ValueError(
                f"schedule is {_checks.describe(schedule)}; allowed with rank and an optimizer: "
                "epfast.EP, whose evidence has a gradient"
            )

    @property
    def _jitter(self) -> float:
        return 0.0 if self.jitter is None else self.jitter

    @property
    def _schedule(self) -> Schedule:
        return SCHEDULE if self.schedule is None else self.schedule

    def _learnable(
        self, loss: losses.Loss, responses: Array, weights: Array | None
    ) -> LossParameters:
        """What the evidence sets of the loss."""
        learn = () if self.learn is None and self.optimizer is None else self.learn
        if self.optimizer is None and learn:
            raise ValueError(f"learn is {learn!r}; allowed with optimizer=None: ()")
        if isinstance(learn, tuple) and not learn:
            return NO_PARAMETERS._replace(loss=loss)
        return LossParameters.of(loss, learn, responses, weights, False)

    def _fit(
        self,
        rows: Any,
        kernel: Any,
        parameters: LossParameters,
        targets: list[Any],
        weights: Array | None,
        noise: float,
        offset: Array | None = None,
        far: bool = False,
    ) -> None:
        """Find the hyper-parameters, and set the attributes of a fit. Arguments were checked.

        noise: median of the half-Cauchy prior of its scale, for an average. far: whether noise is
        Gaussian.
        """
        self.X_train_ = rows.copy()
        problems = self._processes(kernel, targets, weights, offset, parameters)
        size, count = kernel.n_dims, len(targets)
        before = self.__dict__.get("_thetas") if self.warm_start else None
        if before is not None and [len(one) for one in before] != [len(problems[0].bounds)] * count:
            before = None
        thetas = before or [np.append(kernel.theta, parameters.start)] * count
        starts: list[Any] = [None] * count
        self.n_failed_points_ = 0
        if self.optimizer is not None and len(problems[0].bounds) > 0:
            begin = before or [kernel.theta] * count
            maxima = self._search(problems, begin, before is not None, far)
            thetas, starts = [one.theta for one in maxima], [one.start for one in maxima]
        elif before is not None:
            last = [uncounted(getattr(post, "best", post)) for post in self.posteriors_]
            starts = last if all(len(post.y) == len(self.X_train_) for post in last) else starts
        self._thetas, self._problems = thetas, problems
        self._kernels = [kernel.clone_with_theta(theta[:size]) for theta in thetas]
        self.kernel_ = self._kernels[0] if count == 1 else CompoundKernel(self._kernels)
        learnt = [parameters.at(theta[size:]).with_offset(False) for theta in thetas]
        self.loss_: Any = learnt[0] if count == 1 or not parameters.names else learnt
        self.posteriors_ = posts = self._posteriors(problems, thetas, starts)
        self.log_marginal_likelihood_value_ = self._mean_evidence()
        if count == 1:
            average = self._average(problems[0], thetas[0], posts[0], noise)
            self.posteriors_ = posts if average is None else [average]
        for loss, post in zip(learnt, posts, strict=True):
            warn_ends(parameters, loss, post)
        self._set_fits(self.posteriors_, self._mean_evidence())

    def _mean_evidence(self) -> float:
        return float(np.mean([post.log_evidence for post in self.posteriors_]))

    def log_marginal_likelihood(
        self,
        theta: ArrayLike | None = None,
        eval_gradient: bool = False,
        clone_kernel: bool = True,
    ) -> Any:
        """EP's log evidence of the training data at given hyper-parameters.

        Parameters
        ----------
        theta : array_like of shape (p,), optional
            Logarithms of the kernel's hyper-parameters; the likelihood is ``loss_``. With more than
            two classes those of one kernel for all classes, or of all kernels in turn. By default
            those that were found.
        eval_gradient : bool, default=False
            Whether to return the gradient with respect to theta too.
        clone_kernel : bool, default=True
            Of scikit-learn's signature. The kernel is never changed.

        Returns
        -------
        value : float
            The mean over the classes, where there are more than two.
        gradient : ndarray of shape (p,), only if ``eval_gradient``
            Of low rank: with the pivots held fixed.

        Raises
        ------
        ValueError
            By nearest rows, which give none.
        """
        del clone_kernel
        check_is_fitted(self)
        size, count = self._kernels[0].n_dims, len(self._kernels)
        shared = False
        if theta is None:
            if not eval_gradient:
                return self.log_marginal_likelihood_value_
            parts = [theta[:size] for theta in self._thetas]
        else:
            given = _checks.array("theta", theta, shape=(None,))
            if given.size not in (size, size * count):
                raise ValueError(
                    f"theta has {given.size} numbers; allowed: {size}"
                    + (f" or {size * count}" if count > 1 else "")
                )
            shared = given.size == size
            parts = [given] * count if shared else np.split(given, count)
        known = [theta[size:] for theta in self._thetas]
        whole = [np.append(*pair) for pair in zip(parts, known, strict=True)]
        jobs, inside = shares(self.n_jobs, count)
        evidences = in_threads(
            [
                partial(evidence_at, problem.with_threads(inside), theta, eval_gradient)
                for problem, theta in zip(self._problems, whole, strict=True)
            ],
            jobs,
        )
        value = float(np.mean([one for one, _ in evidences]))
        if not eval_gradient:
            return value
        gradients = [slope[:size] for _, slope in evidences]
        return value, np.mean(gradients, axis=0) if shared else np.concatenate(gradients) / count

    def _processes(
        self,
        kernel: Any,
        targets: list[Any],
        weights: Array | None,
        offset: Array | None = None,
        parameters: LossParameters = NO_PARAMETERS,
    ) -> list[AnyProcess]:
        """A problem for each class against the rest, or one."""
        loss, X, schedule = parameters.loss, self.X_train_, self._schedule
        if isinstance(loss, losses.LatentLoss):
            if self.method == "nearest":
                raise ValueError(
                    f"method is 'nearest'; allowed with {loss!r}: 'auto', 'exact'; a loss of two "
                    "labels, each class against the rest, takes it"
                )
            self._check_memory(kernel)
            return [self._joint_process(kernel, targets[0], loss)]
        loss, asked = loss.with_offset(offset is not None), {"weights": weights}
        parameters = parameters._replace(loss=loss)
        responses = [responses_of(loss, y, len(X), weights, offset) for y in targets]

        def of_low_rank(data: Data) -> LowRankProcess:
            factored = choose(Request(loss, self.scheme, schedule=schedule, options=asked))
            return LowRankProcess(X, kernel, factored, data, self.rank, parameters=parameters)

        if self.rank is not None:
            return list(map(of_low_rank, responses))
        tried, neighbors = self._tries_low_rank(loss), self._neighbors(loss)
        if not tried and neighbors is None:  # else where none is found
            self._check_memory(kernel)
        chosen = choose(Request(loss, self.scheme, "process", schedule=schedule, options=asked))
        distances = Distances(X)
        return [
            BinaryProcess(
                X,
                kernel,
                chosen.problem(data),
                self._jitter,
                distances,
                parameters=parameters,
                low_rank=of_low_rank(data) if tried else None,
                neighbors=neighbors,
            )
            for data in responses
        ]

    def _neighbors(self, loss: losses.Loss) -> int | None:
        """How many rows each is given, where processes may be fitted by nearest rows."""
        beyond = len(self.X_train_) > EXACT_UP_TO and self._jitter == 0.0
        if self.method == "exact" or not (beyond or self.method == "nearest"):
            return None
        try:
            choose(Request(loss, self.scheme, "nearest", schedule=self._schedule))
        except ValueError:
            if self.method == "nearest":
                raise
            return None
        return COUNT if self.n_neighbors is None else self.n_neighbors

    def _tries_low_rank(self, loss: losses.Loss) -> bool:
        """Whether a process may be fitted by a factor of its kernel where that is as good."""
        schedule, scheme = self._schedule, schemes.resolve(self.scheme)
        settles = isinstance(schedule, EP) and schedule.tol > 0.0 and self._jitter == 0.0
        by_rows = scheme.integrates and not scheme.relaxes and loss.log_concave is True
        large = len(self.X_train_) >= LOW_RANK_FROM and self.method == "auto"
        return large and settles and by_rows

    def _check_memory(self, kernel: Any) -> None:
        """Refuse rows whose matrices cannot fit, before the first of them is allocated."""
        slopes = self.optimizer is not None and Stationary.of(kernel) is None
        need = 8.0 * (LEAST + slopes * kernel.n_dims) * len(self.X_train_) ** 2
        if self.rank is None and need > memory_left():
            raise ValueError(self._too_large(need))

    def _too_large(self, need: float) -> str:
        several = losses.resolve(self.loss).latents != 1
        return (
            f"X has {len(self.X_train_)} rows: the matrices of this process take more than "
            f"{need:.2g} bytes, and {memory_left():.2g} are free; allowed: fewer rows, or "
            f"{'a loss of two labels with ' if several else ''}rank=, as rank=200, or "
            "method='nearest', which take O(n) memory"
        )

    @contextmanager
    def _explained(self, problems: list[AnyProcess], thetas: list[Array]) -> Iterator[None]:
        """Fits at these hyper-parameters, whose errors name the kernel or the memory to blame."""
        try:
            yield
        except MemoryError:
            raise MemoryError(self._too_large(least_bytes(len(self.X_train_)))) from None
        except FAILURES:
            for problem, theta in zip(problems, thetas, strict=True):
                size = problem.kernel.n_dims
                self._check_covariance(problem.kernel.clone_with_theta(theta[:size]))
            raise

    def _check_covariance(self, kernel: Any) -> None:
        """Refuse a kernel that is no covariance of the rows, or of some. O(n^3 / 3)."""
        few = self.rank is not None or least_bytes(len(self.X_train_)) > memory_left()
        rows = self.X_train_[:ROWS] if few else self.X_train_
        try:
            matrix = kernel_in_memory(np.array(kernel(rows)), False, self._jitter)
        except FAILURES:  # of another kind, which the fit raises
            return
        try:
            check_positive(matrix)
        except ValueError:
            raise ValueError(
                f"The kernel, {kernel}, is not returning a positive definite matrix for these "
                "rows; allowed: a covariance function (a sigmoid is none, and ExpSineSquared is "
                "one of a single column only); where rounding alone makes it so, give jitter"
            ) from None

    def _joint_process(self, kernel: Any, target: Array, loss: losses.LatentLoss) -> LatentProcess:
        """The problem of all classes together."""
        if self.rank is not None:
            raise ValueError(
                f"rank is {self.rank}; allowed with {loss!r}: None; a loss of two labels, each "
                "class against the rest, takes one"
            )
        known = loss.filled(loss.latents_in(target), False)
        if known.correlated:
            raise ValueError(f"loss is {known!r}; allowed for processes: correlated=False")
        choose(Request(known, self.scheme, "process", schedule=self._schedule))
        X, schedule = self.X_train_, self._schedule
        return LatentProcess(X, kernel, target, known, self.scheme, schedule, self._jitter)

    def _search(
        self, problems: list[AnyProcess], thetas: list[Array], warm: bool, far: bool
    ) -> list[Maximum]:
        """The hyper-parameters that maximise the evidence."""
        # None is a seed as well: a fit depends on its arguments only
        rng = random_state_of(0 if self.random_state is None else self.random_state)
        kernel, n = problems[0].kernel, len(self.X_train_)
        if isinstance(problems[0], BinaryProcess) and problems[0].process.scheme.relaxes:
            raise ValueError(
                f"scheme is {_checks.describe(self.scheme)}; allowed with an optimizer and free "
                "hyper-parameters: a scheme without relaxation, whose evidence has a gradient"
            )
        bounds = problems[0].bounds
        if self.n_restarts_optimizer > 0 and not np.isfinite(bounds).all():
            raise ValueError(
                "n_restarts_optimizer is above 0 and the kernel has infinite bounds; allowed: "
                "finite bounds on all hyper-parameters"
            )
        default, parameters = self.kernel is None, problems[0].parameters
        first, alone = ladder(kernel, parameters.shifted, far) if default else [], []
        if far and default and PILOT < n < LOW_RANK_FROM:
            # some rows may end elsewhere: one start is of all rows, where that is cheap
            alone, first = first[:1], first[1:3]
        starts = [
            first
            + ([theta] if warm else [])
            + ([] if warm or default else [np.append(theta, one) for one in parameters.starts()])
            for theta in thetas
        ]
        # more restarts add to fewer
        draws = [[rng.uniform(*bounds.T) for _ in thetas] for _ in range(self.n_restarts_optimizer)]
        restarts = [alone + [mine[k] for mine in draws] for k in range(len(thetas))]
        pilots: list[AnyProcess] | None = None
        if default and n > PILOT:
            pilots = [problem.pilot(pilot_rows(n)) for problem in problems]
        with self._explained(problems, thetas):
            maxima, n_tried, self.n_failed_points_ = search(
                problems, pilots, starts, restarts, self.optimizer, self.n_jobs
            )
        if self.n_failed_points_:
            warn_user(
                f"EP failed at {self.n_failed_points_} of {n_tried} "
                "hyper-parameters that were tried; they were not scored (n_failed_points_), and "
                "the maximum may be among them; try schedule=epfast.DoubleLoop(), narrower bounds "
                "of the kernel, or another loss",
                ConvergenceWarning,
            )
        kernels = [kernel.clone_with_theta(one.theta[: kernel.n_dims]) for one in maxima]
        for text in dict.fromkeys(text for one in kernels for text in at_bounds(one)):
            if default:
                text += " The bounds are the default kernel's; a kernel that is given has its own."
            warn_user(text, ConvergenceWarning)
        return maxima

    def _posteriors(
        self, problems: list[AnyProcess], thetas: list[Array], starts: list[Any]
    ) -> list[Any]:
        """The fits at the hyper-parameters found. Repaired, unless they were to be as asked."""
        searched = self.optimizer is not None and len(problems[0].bounds) > 0
        repair = searched or self.schedule is None
        jobs, inside = shares(self.n_jobs, len(problems))
        shared = [problem.with_threads(inside) for problem in problems]

        with self._explained(problems, thetas), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", inference.ConvergenceWarning)
            fits = in_threads(
                [partial(fit_at, *one, repair) for one in zip(shared, thetas, starts, strict=True)],
                jobs,
            )
        held = all(holds for _, holds in fits)
        for one in caught:
            # those of a fit that was repaired are void
            if not issubclass(one.category, inference.ConvergenceWarning):
                warn_user(one.message)
            elif not held:
                warn_user(str(one.message), ConvergenceWarning)
        for post, holds in fits:
            if isinstance(post, GPPosterior | NearestGPPosterior) and not holds:
                warn_of_process(post, ConvergenceWarning)
        posts = [post for post, _ in fits]
        if self.rank is not None:
            note_rank(posts)
        if self.method == "auto" and any(isinstance(post, NearestGPPosterior) for post in posts):
            n = len(self.X_train_)
            warn_user(
                f"X has {n} rows, and no low rank stands for their kernel: each row is given its "
                "nearest ones alone (method='nearest'), which is approximate and has no log "
                f"evidence; method='exact' would take {least_bytes(n) / 1e9:.2g} GB, and time in "
                "proportion to n^3; method='nearest' settles it",
                DataWarning,
            )
        return posts

    def _average(
        self, problem: AnyProcess, theta: Array, post: Any, scale: float
    ) -> IntegratedProcess | None:
        """The average over hyper-parameters. None: the most probable ones stand for it.

        Each has a half-Cauchy prior, the median of which is where the search began.

        scale: median of the half-Cauchy prior of the noise.
        """
        given = self.integrate
        if not isinstance(given, bool):
            _checks.choice("integrate", given, ("auto",))
        schedule, parameters = problem.schedule, problem.parameters
        possible = isinstance(problem, BinaryProcess) and type(post) is GPPosterior
        possible = possible and self.optimizer is not None and len(problem.bounds) > 0
        possible = possible and isinstance(schedule, EP) and schedule.tol > 0.0
        possible = possible and normalised(problem.loss)
        if given is True and not possible:
            raise ValueError(
                "integrate is True; allowed for an exact process of one latent value per row with "
                "free hyper-parameters, an optimizer, a likelihood, and epfast.EP with a tolerance"
            )
        # beyond the edge of what converges points of an average fail, too
        few_lost = self.n_failed_points_ <= MOST_LOST
        small = given is True or (few_lost and len(self.X_train_) <= AVERAGED_UP_TO)
        if not possible or given is False or not small or not trusted(post):
            return None
        assert isinstance(problem, BinaryProcess)
        begin, places, powers = problem.kernel.theta, [], []
        unknowns: list[Unknown] = []
        for k, (name, short, power) in enumerate(parameters_of(problem.kernel)):
            median = float(np.clip(np.exp(begin[k] / power), 1e-300, 1e300))
            known = [one.name for one in unknowns]
            unknowns.append(Unknown(name if short in known else short, HalfCauchy(median)))
            places.append(k)
            powers.append(power)
        first = len(begin)
        for name in parameters.names:
            weak, size = weak_prior(name, scale), np.size(getattr(parameters.loss, name))
            if weak is not None:
                root = name == "variance"
                prior = weak.prior if root else weak
                unknowns.append(Unknown("noise_sd" if root else name, cast(Any, prior)))
                places.append(first)
                powers.append(2.0 if root else 1.0)
            first += size
        if len(unknowns) > MOST:
            said = f"there are {len(unknowns)} hyper-parameters, of which up to {MOST} are averaged"
            if given is True:
                raise ValueError(f"integrate is True, and {said}; allowed: 'auto' or False")
            warn_user(
                f"{said}: the most probable ones alone are taken, and intervals may be too narrow; "
                "integrate=False takes them without a word, and fewer length scales help",
                DataWarning,
            )
        if not 0 < len(unknowns) <= MOST:
            return None
        target = ProcessTarget(
            partial(problem.at, gradient=True),
            cast(EP, schedule),
            unknowns,
            np.asarray(theta),
            np.array(places),
            np.array(powers),
            problem.bounds,
        )
        size = problem.kernel.n_dims

        def kernel_at(point: Array) -> Any:
            return problem.kernel.clone_with_theta(target.theta_of(np.log(point))[:size])

        with problem.at_work():
            if given != "auto":
                posterior = averaged(target, "auto", 0)
                return IntegratedProcess.with_kernels(posterior, kernel_at, self.X_train_)
            with warnings.catch_warnings():
                # an average that is not to be trusted is not taken
                warnings.simplefilter("error", inference.ConvergenceWarning)
                warnings.simplefilter("ignore", DataWarning)
                try:
                    # without noise, or the like, there is no width to average over
                    ends = problem.bounds[size:].T - theta[size:]
                    if np.abs(ends).min(initial=1.0) < AT_END or not target.matters(CHANGE):
                        return None
                    posterior = averaged(target, "auto", 0)
                except (*FAILURES, inference.ConvergenceWarning):
                    return None
            if posterior.best.log_evidence < post.log_evidence - CONTRADICTED:
                return None
        return IntegratedProcess.with_kernels(posterior, kernel_at, self.X_train_)

    def _latents(self, rows: Any) -> list[tuple[Array, Array]]:
        pieces = [
            [post.predict_latent(*given) for post, given in self._cross(some)]
            for some in self._blocks(rows)
        ]
        return _joined(pieces)

    def _points(self, rows: Any, variances: bool = True) -> Points:
        post = self.posteriors_[0]
        if isinstance(post, IntegratedProcess):
            latents = _joined([post.latents_at(some) for some in self._blocks(rows)])
            return Points(post.weights, [[one] for one in post.posteriors], [[m] for m in latents])
        if variances:
            return super()._points(rows)
        means = [(mean, np.full(len(mean), np.nan)) for mean in self._means(rows)]
        return Points(np.ones(1), [self.posteriors_], [means])

    def _means(self, rows: Any) -> list[Array]:
        """Of every posterior, the first of what :meth:`_latents` gives, O(n) a row."""
        pieces = [
            [post.predict_mean(K_star) for post, (K_star, _) in self._cross(some)]
            for some in self._blocks(rows)
        ]
        return [np.concatenate(mine) for mine in zip(*pieces, strict=True)]

    def _blocks(self, rows: Any) -> Iterator[Any]:
        """Rows, as many at a time as have about NUMBERS values of the kernel."""
        step = max(1, NUMBERS // max(len(self._basis(post)) for post in self.posteriors_))
        return (rows[first : first + step] for first in range(0, len(rows), step))

    def _cross(self, rows: Array, joint: bool = False) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        """Each posterior, and what it predicts at new inputs from.

        That is their kernel with the inputs that it needs, and with themselves. Of an average the
        new inputs.
        """
        for post, kernel in zip(self.posteriors_, self._kernels, strict=True):
            if isinstance(post, IntegratedProcess):
                yield post, (rows,)
            elif isinstance(post, NearestGPPosterior):
                if joint:
                    post.predict_latent(rows, joint=True)
                count = AT_NEW * post.n_neighbors
                yield post, (Neighbors(kernel, self.X_train_, rows, count), None)
            else:
                own = kernel(rows) if joint else kernel.diag(rows)
                yield post, (kernel(rows, self._basis(post)), own)

    def _basis(self, post: Posterior) -> Array:
        """The inputs whose kernel with new ones a posterior asks for."""
        inputs: Array = self.X_train_
        if isinstance(post, NearestGPPosterior):
            return inputs[: AT_NEW * post.n_neighbors]
        return inputs[post.pivots] if isinstance(post, LowRankGPPosterior) else inputs


def _joined(pieces: list[list[tuple[Array, Array]]]) -> list[tuple[Array, Array]]:
    """Means and variances of blocks of rows, one after the other, for each posterior."""
    return [
        (np.concatenate([m for m, _ in some]), np.concatenate([v for _, v in some]))
        for some in zip(*pieces, strict=True)
    ]
