"""GPClassifier and GPRegressor: the faces of fit_gp for scikit-learn."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks, inference, losses, schemes
from epfast._arrays import AnyArray, Array
from epfast._core.kernel_matrix import KernelMatrix
from epfast.estimators.base import (
    ClassWeight,
    ConvergenceWarning,
    Input,
    LatentClassifier,
    LatentRegressor,
    Observed,
    Points,
    Posteriors,
    Seed,
    all_or_nothing,
    check_is_fitted,
    check_sizes,
    estimator,
    in_threads,
    jobs_of,
    loss_of_numbers,
    odds,
    random_state_of,
    sample_weights,
    seed_of_draws,
    shares,
    uncounted,
)
from epfast.estimators.kernels import (
    AT_NEW,
    COUNT,
    LEAST,
    NO_PARAMETERS,
    PILOT,
    ROWS,
    AnyProcess,
    BinaryProcess,
    Distances,
    FitStart,
    LatentProcess,
    LowRankProcess,
    NearestProcess,
    Neighbors,
    Posterior,
    ProcessForm,
    Stationary,
    at_bounds,
    evidence_at,
    kernel_of,
    ladder,
    least_bytes,
    pilot_rows,
    posterior_at,
    stalled,
    start_from,
)
from epfast.estimators.search import (
    AT_END,
    CHANGE,
    LossParameters,
    normalised,
    warn_ends,
    weak_prior,
)
from epfast.gaussian import GPPosterior, LatentGPPosterior, LowRankGPPosterior
from epfast.gaussian.average import averaged
from epfast.gaussian.diagnostics import trusted
from epfast.gaussian.fit_gp import warn_of_process
from epfast.gaussian.fit_hyper_gp import IntegratedProcess, ProcessTarget, parameters_of
from epfast.gaussian.low_rank import note_rank
from epfast.gaussian.nearest import NearestGPPosterior
from epfast.gaussian.posterior import shifted
from epfast.gaussian.prior import check_positive, kernel_in_memory
from epfast.gaussian.process_posterior import ProcessPosterior
from epfast.gaussian.rows import Data, responses_of
from epfast.gaussian.shards import WarmStart
from epfast.gaussian.table import NO_KERNEL, Options, Request, choose
from epfast.inference import FAILURES, Callback, DataWarning
from epfast.inference.design import MOST
from epfast.inference.hyper import (
    FINEST,
    GAIN,
    LOOSEST,
    MOST_LOST,
    NEARLY,
    HyperPoint,
    Unknown,
    climbed,
)
from epfast.inference.records import warn_user
from epfast.inference.report import note_working
from epfast.inference.runtime import memory_left
from epfast.losses import Loss
from epfast.losses.names import LossGiven
from epfast.priors import HalfCauchy
from epfast.schedules import EP, Schedule
from epfast.schemes import Scheme

# scikit-learn is there, or epfast.estimators.base would have said so
from sklearn.gaussian_process.kernels import CompoundKernel, Kernel  # isort: skip

#: an error of the sites changes the evidence to second order only
SCHEDULE = EP(sweeps=200, tol=1e-6)
#: values of a kernel at a time in predictions, 2 MB: scikit-learn's kernels hold some four arrays
NUMBERS = 1 << 18
#: rows from which a low rank is tried where none is asked for, and rows beyond which no other
#: process is fitted exactly: a search takes two minutes there
LOW_RANK_FROM, EXACT_UP_TO = 1000, 6000
#: rows up to which an average over hyper-parameters is taken where none is asked for: it takes
#: hundreds of fits
AVERAGED_UP_TO = 100
#: nats of evidence that the most probable point may lack: weak priors that cost more are not weak
CONTRADICTED = 3.0
METHODS = "auto", "exact", "nearest"
#: at hyper-parameters, or averaged over them
AnyPosterior = Posterior | IntegratedProcess
#: distance of a latent mean from 0, over 1 + its prior sd, below which quadrature may have the sign
#: of the log odds wrong
NEAR = 1e-6
#: least variance of Gaussian noise over that of other scales of a likelihood: 1e-9 of that of y,
#: where searches for smooth functions without noise end
LESS_NOISE = 1e-3
#: median of the half-Cauchy prior of the noise, in units of the spread of y: that of linear models
NOISE = 2.5
#: searches of low rank, one after the other: most of them, the gain in nats below which no other
#: follows where the rank is given, and where it is free the truncation error that the pivots may
#: have at the end
ROUNDS, MORE, OPEN = 5, 0.05, 0.1
#: the finest tolerance of the fits of a search, and the gains in nats below which it ends: ROUGH on
#: some of the rows, and FINE with few rows and FEW numbers at most, where fits of
#: weighted and of repeated rows agree to 1e-7
FEW = 8
Ends = tuple[float, float, float]
PLAIN, ROUGH, FINE = (FINEST, GAIN, NEARLY), (1e-2, 1e-4, 1.0), (1e-10, 1e-17, 1e-15)
#: ends on some of the rows are one if they differ by less, in logs, or in nats: those of a ridge. A
#: search of all rows does not begin at one that is more nats lower
APART, LEVEL, LOWER = 0.5, 0.05, 1.0


@dataclass(frozen=True, eq=False)
class ProcessRequest:
    """What is asked of a fit: inputs and responses, and what depends on them, checked."""

    X: Array
    #: with the hyper-parameters at which a search begins
    kernel: Kernel
    #: what the evidence sets of the loss, which is in it
    parameters: LossParameters
    #: the responses of each process
    targets: Sequence[ArrayLike]
    weights: Array | None
    #: median of the half-Cauchy prior of the scale of noise, for an average
    noise: float
    offset: Array | None = None
    #: whether noise is Gaussian, so that searches start far apart
    far: bool = False


class Optimizer(Protocol):
    """A search of the user's: it minimises, and returns the best theta and its value."""

    def __call__(
        self,
        objective: Callable[[Array, bool], float | tuple[float, Array]],
        theta: Array,
        /,
        bounds: Array,
    ) -> tuple[Array, float]: ...


@estimator
class ProcessModel(Posteriors[AnyPosterior]):
    """Base of the estimators of processes, with the parameters that both have."""

    kernel: Kernel | None = field(default=None, kw_only=False)
    optimizer: str | Optimizer | None = "fmin_l_bfgs_b"
    n_restarts_optimizer: int = 0
    loss: LossGiven
    scheme: str | Scheme = "exact"
    learn: tuple[str, ...] | None
    integrate: bool | str = "auto"
    schedule: Schedule | None = None
    jitter: float = 0.0
    rank: int | None = None
    method: str = "auto"
    n_neighbors: int | None = None
    random_state: Seed = None
    warm_start: bool = False
    n_jobs: int | None = None

    def _input(self) -> Input:
        """What scikit-learn shall check of X: of texts, graphs and the like no more than a length.

        That is where the kernel says so, by ``requires_vector_input``.
        """
        vectors = getattr(self.kernel, "requires_vector_input", True)
        return Input(dtype=np.float64) if vectors else Input(dtype=None, ensure_2d=False)

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
        asked = [f"{name}={value!r}" for name, value in others.items() if value is not None]
        if len(asked) > 1:
            raise ValueError(f"{' and '.join(asked)} are given; allowed: one of them")
        if self._jitter != 0.0 and (method == "nearest" or self.rank is not None):
            raise ValueError(f"jitter is {self.jitter!r}; allowed with {asked[0]}: 0")
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

    def _fit(self, asked: ProcessRequest) -> list[Loss]:
        """Find the hyper-parameters, and set the attributes of a fit.

        Returns the losses with their parameters, or the one of all processes.
        """
        kernel, parameters = asked.kernel, asked.parameters
        self.X_train_ = asked.X.copy()
        problems = self._processes(asked)
        size, count = kernel.n_dims, len(problems)
        n_free = len(problems[0].bounds)
        last_thetas = self.__dict__.get("_thetas") if self.warm_start else None
        if last_thetas is not None and [len(one) for one in last_thetas] != [n_free] * count:
            last_thetas = None
        thetas = last_thetas or [np.append(kernel.theta, parameters.start)] * count
        starts: Sequence[FitStart | None] = [None] * count
        self.n_failed_points_ = 0
        if self.optimizer is not None and n_free > 0:
            maxima = self._search(asked, problems, self.optimizer, last_thetas)
            thetas, starts = [one.theta for one in maxima], [one.start for one in maxima]
        elif last_thetas is not None:
            last = [uncounted(at_mode(post)) for post in self.posteriors_]
            starts = last if all(len(post.y) == len(self.X_train_) for post in last) else starts
        self._thetas, self._problems = thetas, problems
        self._kernels = [kernel.clone_with_theta(theta[:size]) for theta in thetas]
        self.kernel_ = self._kernels[0] if count == 1 else CompoundKernel(self._kernels)
        learnt = [parameters.loss_at(theta[size:]).with_offset(False) for theta in thetas]
        self.posteriors_ = posts = self._posteriors(problems, thetas, starts)
        self.log_marginal_likelihood_value_ = self._mean_evidence()
        if count == 1:
            average = self._average(problems[0], thetas[0], posts[0], asked.noise)
            self.posteriors_ = posts if average is None else [average]
        for loss, post in zip(learnt, posts, strict=True):
            warn_ends(parameters, loss, post)
        self._set_fits(self.posteriors_, self._mean_evidence())
        return learnt if parameters.names else learnt[:1]

    def _mean_evidence(self) -> float:
        return float(np.mean([post.log_evidence for post in self.posteriors_]))

    def log_marginal_likelihood(
        self,
        theta: ArrayLike | None = None,
        eval_gradient: bool = False,
        clone_kernel: bool = True,
    ) -> float | tuple[float, Array]:
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
            numbers = _checks.array("theta", theta, shape=(None,))
            if numbers.size not in (size, size * count):
                raise ValueError(
                    f"theta has {numbers.size} numbers; allowed: {size}"
                    + (f" or {size * count}" if count > 1 else "")
                )
            shared = numbers.size == size
            parts = [numbers] * count if shared else np.split(numbers, count)
        of_loss = [theta[size:] for theta in self._thetas]
        whole = [np.append(*pair) for pair in zip(parts, of_loss, strict=True)]
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

    def _processes(self, asked: ProcessRequest) -> list[AnyProcess]:
        """A problem for each class against the rest, or one."""
        kernel, targets, weights, offset = asked.kernel, asked.targets, asked.weights, asked.offset
        loss, X, schedule = asked.parameters.loss, self.X_train_, self._schedule
        if isinstance(loss, losses.LatentLoss):
            if self.method == "nearest":
                raise ValueError(
                    f"method is 'nearest'; allowed with {loss!r}: 'auto', 'exact'; a loss of two "
                    "labels, each class against the rest, takes it"
                )
            self._check_memory(kernel)
            return [self._joint_process(kernel, np.asarray(targets[0]), loss)]
        loss = loss.with_offset(offset is not None)
        beside: Options = {"weights": weights}
        parameters = asked.parameters._replace(loss=loss)
        responses = [responses_of(loss, y, len(X), weights, offset) for y in targets]

        def of_low_rank(data: Data) -> LowRankProcess:
            factored = choose(Request(loss, self.scheme, schedule=schedule, options=beside))
            return LowRankProcess(X, kernel, factored, data, self.rank, parameters=parameters)

        if self.rank is not None:
            return list(map(of_low_rank, responses))
        tried, neighbors = self._tries_low_rank(loss), self._neighbors(loss)
        if not tried and neighbors is None:  # else where none is found
            self._check_memory(kernel)
        request = Request(loss, self.scheme, "process", schedule=schedule, options=beside)
        chosen = choose(request)
        distances = Distances(X)
        return [
            BinaryProcess(
                X,
                kernel,
                chosen.problem(data, NO_KERNEL),
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

    def _check_memory(self, kernel: Kernel) -> None:
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

    def _check_covariance(self, kernel: Kernel) -> None:
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

    def _joint_process(
        self, kernel: Kernel, target: Array, loss: losses.LatentLoss
    ) -> LatentProcess:
        """The problem of all classes together."""
        if self.rank is not None:
            raise ValueError(
                f"rank is {self.rank}; allowed with {loss!r}: None; a loss of two labels, each "
                "class against the rest, takes one"
            )
        joint = loss.filled(loss.latents_in(target), False)
        if joint.correlated:
            raise ValueError(f"loss is {joint!r}; allowed for processes: correlated=False")
        choose(Request(joint, self.scheme, "process", schedule=self._schedule))
        X, schedule = self.X_train_, self._schedule
        return LatentProcess(X, kernel, target, joint, self.scheme, schedule, self._jitter)

    def _search(
        self,
        asked: ProcessRequest,
        problems: list[AnyProcess],
        optimizer: str | Optimizer,
        last_thetas: list[Array] | None,
    ) -> list[Maximum]:
        """The hyper-parameters that maximise the evidence. last_thetas: of a warm start."""
        # None is a seed as well: a fit depends on its arguments only
        rng = random_state_of(0 if self.random_state is None else self.random_state)
        kernel, n, far = asked.kernel, len(self.X_train_), asked.far
        warm = last_thetas is not None
        thetas = last_thetas or [kernel.theta] * len(problems)
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
        low, high = bounds.T
        draws = [
            [np.asarray(rng.uniform(low, high)) for _ in thetas]
            for _ in range(self.n_restarts_optimizer)
        ]
        restarts = [alone + [mine[k] for mine in draws] for k in range(len(thetas))]
        pilots: list[AnyProcess] | None = None
        if default and n > PILOT:
            pilots = [problem.pilot(pilot_rows(n)) for problem in problems]
        with self._explained(problems, thetas):
            maxima, n_tried, self.n_failed_points_ = search(
                problems, pilots, starts, restarts, optimizer, self.n_jobs
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
        self,
        problems: list[AnyProcess],
        thetas: list[Array],
        starts: Sequence[FitStart | None],
    ) -> list[Posterior]:
        """The fits at the hyper-parameters found. Repaired, unless they were to be as asked."""
        searched = self.optimizer is not None and len(problems[0].bounds) > 0
        repair = searched or self.schedule is None
        jobs, inside = shares(self.n_jobs, len(problems))
        shared = [problem.with_threads(inside) for problem in problems]

        with self._explained(problems, thetas), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", inference.ConvergenceWarning)
            pairs = in_threads(
                [
                    partial(posterior_at, *one, repair)
                    for one in zip(shared, thetas, starts, strict=True)
                ],
                jobs,
            )
        all_hold = all(holds for _, holds in pairs)
        for one in caught:
            # those of a fit that was repaired are void
            if not issubclass(one.category, inference.ConvergenceWarning):
                warn_user(one.message)
            elif not all_hold:
                warn_user(str(one.message), ConvergenceWarning)
        for post, holds in pairs:
            if isinstance(post, GPPosterior | NearestGPPosterior) and not holds:
                warn_of_process(post, ConvergenceWarning)
        posts = [post for post, _ in pairs]
        if self.rank is not None:
            note_rank([post for post in posts if isinstance(post, LowRankGPPosterior)])
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
        self, problem: AnyProcess, theta: Array, post: Posterior, scale: float
    ) -> IntegratedProcess | None:
        """The average over hyper-parameters. None: the most probable ones stand for it.

        Each has a half-Cauchy prior, the median of which is where the search began.

        scale: median of the half-Cauchy prior of the noise.
        """
        integrate = self.integrate
        if not isinstance(integrate, bool):
            _checks.choice("integrate", integrate, ("auto",))
        schedule = problem.schedule
        possible = isinstance(problem, BinaryProcess) and type(post) is GPPosterior
        possible = possible and self.optimizer is not None and len(problem.bounds) > 0
        possible = possible and isinstance(schedule, EP) and schedule.tol > 0.0
        possible = possible and normalised(problem.loss)
        if integrate is True and not possible:
            raise ValueError(
                "integrate is True; allowed for an exact process of one latent value per row with "
                "free hyper-parameters, an optimizer, a likelihood, and epfast.EP with a tolerance"
            )
        # beyond the edge of what converges points of an average fail, too
        few_lost = self.n_failed_points_ <= MOST_LOST
        small = integrate is True or (few_lost and len(self.X_train_) <= AVERAGED_UP_TO)
        if not possible or integrate is False or not small or not trusted(post):
            return None
        assert isinstance(problem, BinaryProcess)
        target = _average_target(problem, theta, scale)
        count = len(target.unknowns)
        if count > MOST:
            said = f"there are {count} hyper-parameters, of which up to {MOST} are averaged"
            if integrate is True:
                raise ValueError(f"integrate is True, and {said}; allowed: 'auto' or False")
            warn_user(
                f"{said}: the most probable ones alone are taken, and intervals may be too narrow; "
                "integrate=False takes them without a word, and fewer length scales help",
                DataWarning,
            )
        if not 0 < count <= MOST:
            return None
        size = problem.kernel.n_dims

        def kernel_at(point: Array) -> Kernel:
            return problem.kernel.clone_with_theta(target.theta_of(np.log(point))[:size])

        with problem.at_work():
            if integrate != "auto":
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

    @property
    def _pairs(self) -> list[tuple[AnyPosterior, Kernel]]:
        """The posteriors, each with its kernel."""
        return list(zip(self.posteriors_, self._kernels, strict=True))

    def _latents(self, rows: Array) -> list[tuple[Array, Array]]:
        pieces = [
            [self._latent(post, kernel, some) for post, kernel in self._pairs]
            for some in self._blocks(rows)
        ]
        return _joined(pieces)

    def _latent(
        self, post: AnyPosterior, kernel: Kernel, rows: Array, joint: bool = False
    ) -> tuple[Array, Array]:
        """Mean and variance, or covariance, of a process at new inputs."""
        if isinstance(post, IntegratedProcess):
            return post.predict_latent(rows, joint)
        if isinstance(post, NearestGPPosterior):
            near = None if joint else self._neighbors_at(post, kernel, rows)
            return post.predict_latent(rows if near is None else near, joint=joint)
        own = kernel(rows) if joint else kernel.diag(rows)
        return post.predict_latent(kernel(rows, self._basis(post)), own, joint)

    def _latent_draws(
        self, post: AnyPosterior, kernel: Kernel, rows: Array, size: int, rng: np.random.Generator
    ) -> Array:
        """Draws of a process at new inputs, (size, m), or of several latents."""
        if isinstance(post, IntegratedProcess):
            return post.sample_latent(rows, size, rng)
        if isinstance(post, NearestGPPosterior):
            post.predict_latent(rows, joint=True)  # refused
        return post.sample_latent(kernel(rows, self._basis(post)), kernel(rows), size, rng)

    def _neighbors_at(self, post: NearestGPPosterior, kernel: Kernel, rows: Array) -> Neighbors:
        return Neighbors(kernel, self.X_train_, rows, AT_NEW * post.n_neighbors)

    def _points(self, rows: Array, variances: bool = True) -> Points[AnyPosterior]:
        post = self.posteriors_[0]
        if isinstance(post, IntegratedProcess):
            latents = _joined([post.latents_at(some) for some in self._blocks(rows)])
            posteriors = [[one] for one in post.posteriors if isinstance(one, ProcessPosterior)]
            return Points(post.weights, posteriors, [[one] for one in latents])
        if variances:
            return super()._points(rows)
        means = [(mean, np.full(len(mean), np.nan)) for mean in self._means(rows)]
        return Points(np.ones(1), [self.posteriors_], [means])

    def _means(self, rows: Array) -> list[Array]:
        """Of every posterior, the first of what :meth:`_latents` gives, O(n) a row."""
        pieces: list[list[Array]] = []
        for some in self._blocks(rows):
            pieces.append([])
            for post, kernel in self._pairs:
                assert not isinstance(post, IntegratedProcess)
                if isinstance(post, NearestGPPosterior):
                    mean = post.predict_mean(self._neighbors_at(post, kernel, some))
                else:
                    mean = post.predict_mean(kernel(some, self._basis(post)))
                pieces[-1].append(mean)
        return [np.concatenate(mine) for mine in zip(*pieces, strict=True)]

    def _blocks(self, rows: Array) -> Iterator[Array]:
        """Rows, as many at a time as have about NUMBERS values of the kernel."""
        step = max(1, NUMBERS // max(len(self._basis(at_mode(post))) for post in self.posteriors_))
        return (rows[first : first + step] for first in range(0, len(rows), step))

    def _basis(self, post: Posterior) -> Array:
        """The inputs whose kernel with new ones a posterior asks for."""
        inputs: Array = self.X_train_
        if isinstance(post, NearestGPPosterior):
            return inputs[: AT_NEW * post.n_neighbors]
        return inputs[post.pivots] if isinstance(post, LowRankGPPosterior) else inputs


def at_mode(post: AnyPosterior) -> Posterior:
    """A posterior, or of an average that of its most probable point."""
    if not isinstance(post, IntegratedProcess):
        return post
    assert isinstance(post.best, ProcessPosterior)
    return post.best


def _joined(pieces: list[list[tuple[Array, Array]]]) -> list[tuple[Array, Array]]:
    """Means and variances of blocks of rows, one after the other, for each posterior."""
    return [
        (np.concatenate([m for m, _ in some]), np.concatenate([v for _, v in some]))
        for some in zip(*pieces, strict=True)
    ]


@estimator
class GPClassifier(ProcessModel, LatentClassifier[AnyPosterior]):
    """Gaussian process classifier by expectation propagation, for scikit-learn.

    The kernel's hyper-parameters maximise EP's log evidence, by a search with its gradient. The
    interface is that of scikit-learn's ``GaussianProcessClassifier`` (Laplace's approximation).
    With more than two classes there is one process per class, that class against the rest, each
    with its own kernel, combined as in :class:`epfast.LinearClassifier`. With
    ``loss="multiclass"`` there is one fit of all classes, which share a kernel.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel, optional
        The covariance function, of X as it is. By default a variance times an ``RBF`` of one length
        scale, of columns in units of their own: each is divided by its standard deviation, one of
        two values by half their range (the ``column_scale`` in ``kernel_``). The variance is in
        [0.01, 1e5], and the length scale between a tenth of the first decile of the distances of
        rows and ten times the largest distance. The search starts at a quarter, at one, and at four
        times the median distance, with more than 250 rows on 250 of them, and continues on all rows
        from the ends that differ.
    optimizer : {"fmin_l_bfgs_b"}, None or callable, default="fmin_l_bfgs_b"
        By scikit-learn's default the search is that of :func:`epfast.fit_hyper_gp`, without priors.
        None keeps the hyper-parameters of ``kernel``. A callable is called as
        ``optimizer(objective, theta, bounds)``, objective(theta, eval_gradient=True) to be
        minimised, and returns the best theta and its value.
    n_restarts_optimizer : int, default=0
        Further searches, from log-uniform draws within the bounds.
    loss : str, Loss or callable, default="probit"
        The likelihood, as in :func:`epfast.fit_gp`. "multiclass", or
        ``losses.Multiclass(correlated=False)``, is multinomial probit, with one posterior and one
        evidence of all classes, at O(n_classes n^3) per sweep. It takes integer weights of rows,
        which copy them, and no ``rank``.
    scheme : str or Scheme, default="exact"
        How sites are fitted, as in :func:`epfast.fit_gp`.
    learn : tuple of str, default=()
        Parameters of the loss to estimate together with the kernel, out of ``loss.learnable``. For
        example ``("share",)`` of ``losses.Contaminated()`` is the share of flipped labels, of each
        class against the rest.
    integrate : bool or "auto", default="auto"
        Whether to average over the hyper-parameters of an exact process of two classes, as in
        :func:`epfast.fit_hyper_gp`. Each (for a variance, its root) has a half-Cauchy prior whose
        median is the start of the search. "auto" averages with up to 100 rows, if this changes a
        standard deviation by more than 5 % and enough points are effective. It takes 90 to 570
        fits. More than eight hyper-parameters are fixed at the most probable ones, with a warning.
        False uses the most probable ones.
    schedule : EP, optional
        Which sites are stored, and in which order they are updated. By default
        ``EP(sweeps=200, tol=1e-6)``.
    jitter : float, default=0.0
        Added to the diagonal of the kernel matrix. 0 with ``rank``.
    class_weight : dict or "balanced", default=None
        Weights of the classes, as in :class:`epfast.LinearClassifier`.
    rank : int, optional
        Rank of the process, as in :func:`epfast.fit_gp`, with O(n rank) memory. There are up to
        five searches, each with fixed pivots from where the last one ended. By default ``method``
        decides.
    method : {"auto", "exact", "nearest"}, default="auto"
        "auto" uses, from 1,000 rows on, the rank with an estimated error of the log evidence
        (``posterior_.truncation_error``) of at most 1e-3 nats, if it is at most n / 3 and 2,000.
        Otherwise it uses the exact process, O(n^3), and beyond 6,000 rows nearest rows, with a
        warning. Low rank and nearest rows need a log-concave likelihood and EP without jitter.
        "nearest" is EP in which the cavity of each row depends on the sites of ``n_neighbors``
        others, and a prediction on eight times as many, at O(n n_neighbors^3) without a log
        evidence. Its kernel is that of an exact process of 2,000 rows. Its probabilities are less
        certain than exact ones, and better than those of 2,000 rows.
    n_neighbors : int, default=50
        Number of rows of the method "nearest". Half are those of largest prior correlation among
        nine tenths of the rows. The others are those of a random tenth, and farther away, if there
        are four times as many rows.
    random_state : int or RandomState, default=None
        Seed of the restarts. None is 0.
    warm_start : bool, default=False
        Whether to start from the hyper-parameters of the last fit, if it had the same number of
        classes, and from its sites, if it had the same number of rows.
    n_jobs : int, optional
        Number of threads, over classes and starts, or within a single fit as in
        :func:`epfast.fit_gp`. By default 1, except for BLAS, and with -1 one for each core. The
        result is the same to rounding.

    Attributes
    ----------
    classes_, n_classes_ : ndarray of shape (n_classes,), int
        The labels, sorted, and their number. A class whose rows all have weight 0 has probability
        0, and is not part of the attributes below.
    kernel_ : Kernel
        The kernel with the estimated hyper-parameters. With more than two classes, each against the
        rest, a ``CompoundKernel``.
    posterior_ : GPPosterior, LatentGPPosterior, LowRankGPPosterior or NearestGPPosterior
        With two classes, or "multiclass", the posterior of the latent values of the fit. An
        average over hyper-parameters is an :class:`epfast.IntegratedProcess`. With low rank it has
        ``rank`` and ``truncation_error``, with nearest rows ``n_neighbors`` and ``loo_gain``, which
        ``summary()`` also shows.
    posteriors_ : list of posteriors
        One, or one for each class.
    coupling_ : float
        Exponent with which one-vs-rest probabilities are combined, as in
        :class:`epfast.LinearClassifier`. 0 with one posterior.
    loss_ : Loss, or list of Loss
        The loss with its estimated parameters, or one for each of several processes.
    log_marginal_likelihood_value_, log_evidence_ : float
        Log evidence at the estimated hyper-parameters, with more than two classes, each against the
        rest, the mean over them. NaN for nearest rows. For an average, the second is integrated
        over the hyper-parameters.
    converged_ : bool
        Whether EP converged in all fits.
    n_failed_points_ : int
        Hyper-parameters of the search without a valid fit: not converged, with refused sites, with
        an impossible evidence, or with predictions lost to rounding. The search skips them and
        warns.
    n_iter_ : int
        Sweeps that the sites have gone through in this fit, as in :class:`LinearClassifier`. The
        most over the classes.
    X_train_ : ndarray of shape (n, d)
        The inputs of the fit.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 2))
    >>> y = np.where(np.hypot(*X.T) < 1.1, "in", "out")
    >>> model = epfast.GPClassifier(1.0 * RBF(1.0)).fit(X, y)
    >>> model.predict([[0.0, 0.0], [2.0, 2.0]])
    array(['in', 'out'], dtype='<U3')
    """

    loss: LossGiven = "probit"
    learn: tuple[str, ...] = ()
    class_weight: ClassWeight = None

    @all_or_nothing
    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> GPClassifier:
        """Find the hyper-parameters and fit the posterior.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.
        y : array_like of shape (n,)
            AnyArray of any kind, two or more different ones.
        sample_weight : array_like of shape (n,), optional
            A row of weight w >= 1 counts as w rows, the likelihood of one below 1 enters to that
            power. Rows of weight 0 are left out.

        Returns
        -------
        GPClassifier
            Itself.

        Raises
        ------
        Interrupted
            On Ctrl-C. The estimator is as it was.
        FloatingPointError
            If EP fails at all hyper-parameters.
        MemoryError
            If there is no low rank, and the matrices of all rows do not fit.

        Warns
        -----
        ConvergenceWarning
            If hyper-parameters were lost (``n_failed_points_``), if the last fit did not converge,
            or if a hyper-parameter ends at a bound of the kernel, in scikit-learn's words.
        DataWarning
            If a ``rank`` that is given leaves more than 1 nat of the log evidence open. If
            ``method="auto"`` comes to nearest rows, with what the exact process would cost.
        """
        rows, numbers, targets, weights, loss = self._training(X, y, sample_weight, counted=True)
        self._check()
        self.n_classes_ = len(self.classes_)
        kernel = kernel_of(self.kernel, rows, weights)
        parameters = self._learnable(loss, targets[0][:, None], weights)
        losses = self._fit(ProcessRequest(rows, kernel, parameters, targets, weights, noise=1.0))
        self.loss_ = losses[0] if len(losses) == 1 else losses
        self._couple(numbers, weights)
        return self

    # -- prediction --

    def predict_latent(self, X: ArrayLike, joint: bool = False) -> tuple[Array, Array]:
        """Posterior mean and variance, or covariance, of the process at new inputs.

        Parameters
        ----------
        X : array_like of shape (m, d)
            Rows of features.
        joint : bool, default=False
            Whether to return the covariance between the inputs in place of the variances. By
            nearest rows there is none.

        Returns
        -------
        mean : ndarray of shape (m,) or (m, n_classes)
            One column per class where there are more than two.
        variance : ndarray of shape (m,) or (m, n_classes). If ``joint`` (m, m) or (n_classes, m, m)
        """
        if not _checks.flag("joint", joint):
            return super().predict_latent(X)
        rows = self._rows(X)
        parts = [self._latent(*pair, rows, joint=True) for pair in self._pairs]
        means, covariances = zip(*parts, strict=True)
        if len(parts) == 1:
            return means[0], covariances[0]
        return np.stack(means, axis=1), np.stack(covariances)

    def latent_mean_and_variance(self, X: ArrayLike) -> tuple[Array, Array]:
        """Posterior mean and variance of the process, under scikit-learn's name.

        Parameters
        ----------
        X : array_like of shape (m, d)
            Rows of features.

        Returns
        -------
        latent_mean, latent_var : ndarray of shape (m,) or (m, n_classes)
            As :meth:`predict_latent`.
        """
        return self.predict_latent(X)

    def _log_probabilities(self, rows: Array) -> Array:
        ((post, kernel),) = self._pairs
        assert isinstance(post, LatentGPPosterior)
        basis = self._basis(post)
        parts = [
            post.predict_log_proba(kernel(some, basis), kernel.diag(some))
            for some in self._blocks(rows)
        ]
        return np.concatenate(parts)

    def predict(self, X: ArrayLike) -> AnyArray:
        """The most probable class.

        O(n) a row where the signs of the latent means decide: of two classes, and of one whose mean
        alone is above 0, under a likelihood that rises with the margin. Elsewhere by the log odds,
        which depend on the variances. Then O(n^2) a row.

        Parameters
        ----------
        X : array_like of shape (m, d)
            Rows of features.

        Returns
        -------
        ndarray of shape (m,)
            AnyArray out of ``classes_``.
        """
        check_is_fitted(self)
        averaged = isinstance(self.posteriors_[0], IntegratedProcess)
        needed = any(post.known_loss().needs_variance for post in self.posteriors_)
        if self._several or averaged or needed:
            return super().predict(X)
        rows = self._rows(X)
        means = np.array(self._means(rows))
        above = means > 0.0
        index = above[0].astype(np.intp) if len(above) == 1 else above.argmax(axis=0)
        # odds nearer to 1 than this are those of predict_proba, to its rounding
        spread = np.array([kernel.diag(rows) for kernel in self._kernels])
        decided = (np.abs(means) > NEAR * (1.0 + np.sqrt(spread))).all(axis=0)
        if len(above) > 1:
            decided &= above.sum(axis=0) == 1
        if not decided.all():
            scores = odds(self.posteriors_, *self._stacked(rows[~decided]))
            index[~decided] = scores > 0.0 if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[self._seen][index])

    def sample_y(self, X: ArrayLike, n_samples: int = 1, random_state: Seed = 0) -> AnyArray:
        """Draw labels of new inputs: those of one column come from one draw of the process.

        By nearest rows there are no joint draws.

        Parameters
        ----------
        X : array_like of shape (m, d)
            Rows of features.
        n_samples : int, default=1
            Draws per row.
        random_state : int, RandomState or None, default=0
            As in scikit-learn, a seed or a generator. None draws afresh.

        Returns
        -------
        ndarray of shape (m, n_samples)
            AnyArray out of ``classes_``.
        """
        size = _checks.integer("n_samples", n_samples, least=0)
        rng = np.random.default_rng(seed_of_draws(random_state))
        rows, classes = self._rows(X), self.classes_[self._seen]
        if self._several:
            ((post, kernel),) = self._pairs
            values = self._latent_draws(post, kernel, rows, size, rng)
            return np.asarray(classes[post.known_loss().sample(values, rng).T.astype(int)])
        scores = []
        for post, kernel in self._pairs:
            latent = self._latent_draws(post, kernel, rows, size, rng).T
            p = post.known_loss().predict_proba(latent.ravel(), np.zeros(latent.size))
            scores.append(p.reshape(latent.shape))
        if len(scores) == 1:
            return np.asarray(classes[(rng.random(scores[0].shape) < scores[0]).astype(int)])
        ladder_of = np.cumsum(scores, axis=0)
        drawn = rng.random(ladder_of.shape[1:]) * ladder_of[-1]
        return np.asarray(classes[(ladder_of[:-1] <= drawn).sum(axis=0)])


@estimator
class GPRegressor(ProcessModel, LatentRegressor[AnyPosterior]):
    """Gaussian process for y of any kind by expectation propagation, for scikit-learn.

    The kernel's hyper-parameters and parameters of the likelihood, such as the variance of noise,
    maximise EP's log evidence together, by a search with its gradient. Where scikit-learn's
    ``GaussianProcessRegressor`` stands, this one can: with Gaussian noise EP is exact.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel, optional
        The covariance function, in the unit of the latent values, of X as it is. None is a variance
        times an ``RBF`` of one length scale, of columns in units of their own, as in
        :class:`GPClassifier`, the variance times the square of the spread of y where the latent
        values have the unit of y. If noise is Gaussian, the variance goes up to 1e7, the length
        scale to 1,000 times the largest distance, and searches start there, too.
    loss : str or Loss, default="gaussian"
        A likelihood of one latent value per row, as in :class:`LinearRegressor`.
    learn : tuple of str, optional
        The parameters of the loss that the evidence sets, out of ``loss.learnable``: as ``("scale",
        "df")``. The search begins with y, not with the numbers of the loss. By default the first of
        them. () keeps the numbers of the loss, and so does ``optimizer=None``.
    center : bool, default=True
        Whether the process has a constant mean: the location of y, in the unit of the latent values
        (for counts the log of their mean). It is taken from y, not integrated.
    integrate : bool or "auto", default="auto"
        As in :class:`GPClassifier`. The noise has a half-Cauchy prior with a median of 2.5 times
        the spread of y. Predictions, quantiles and draws are those of the mixture.
    optimizer, n_restarts_optimizer, scheme, schedule, jitter, rank, method, n_neighbors
    random_state, n_jobs
        As in :class:`GPClassifier`.
    warm_start : bool, default=False
        Whether to start from the hyper-parameters of the fit before.

    Attributes
    ----------
    kernel_ : Kernel
        With the hyper-parameters found.
    loss_ : Loss
        With the parameters found.
    mean_ : float
        The constant mean of the process.
    posterior_ : GPPosterior, LowRankGPPosterior, NearestGPPosterior or IntegratedProcess
        The posterior over the latent values of the fit.
    log_marginal_likelihood_value_, log_evidence_ : float
        Log evidence at the hyper-parameters found. NaN by nearest rows. The second is that of an
        average, integrated over them.
    converged_ : bool
        Whether EP settled.
    n_failed_points_ : int
        Hyper-parameters of the search at which no fit held, as in :class:`GPClassifier`.
    n_iter_ : int
        Sweeps that the sites have gone through in this fit, as in :class:`LinearRegressor`.
    X_train_ : ndarray of shape (n, d)
        The inputs of the fit.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> x = np.linspace(0, 6, 40)[:, None]
    >>> y = np.sin(x[:, 0]) + 0.05 * np.random.default_rng(0).normal(size=40)
    >>> y[::8] += 5.0
    >>> model = epfast.GPRegressor(loss="student_t").fit(x, y)
    >>> bool(abs(model.predict(x) - np.sin(x[:, 0])).max() < 0.2)
    True
    """

    loss: LossGiven = "gaussian"
    learn: tuple[str, ...] | None = None
    center: bool = True

    @all_or_nothing
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> GPRegressor:
        """Find the hyper-parameters and fit the posterior.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.
        y : array_like of shape (n,) or (n, 2)
            What the loss takes, see its class.
        sample_weight : array_like of shape (n,), optional
            A row of weight w >= 1 counts as w rows, the likelihood of one below 1 enters to that
            power. Rows of weight 0 are left out.
        offset : array_like of shape (n,), default=0
            Known parts of the latent values. For counts the log of the exposure.

        Returns
        -------
        GPRegressor
            Itself.

        Raises
        ------
        Interrupted
            On Ctrl-C, as in :class:`GPClassifier`. The estimator is as it was.
        FloatingPointError
            If EP fails at all hyper-parameters.
        MemoryError
            If there is no low rank, and the matrices of all rows do not fit.

        Warns
        -----
        ConvergenceWarning
            If hyper-parameters were lost (``n_failed_points_``), if the last fit did not converge,
            or if a hyper-parameter ends at a bound of the kernel, in scikit-learn's words.
        EvidenceWarning
            If a parameter ends where its search ends, or y does not tell it from numbers there.
            If there is one row.
        DataWarning
            If a ``rank`` that is given leaves more than 1 nat of the log evidence open. If
            ``method="auto"`` comes to nearest rows. If the loss is
            :class:`epfast.losses.Quantile`, whose sds and intervals do not hold.
        """
        rows, outcomes = self._rows_and_responses(X, y)
        outcomes = np.asarray(outcomes)
        loss = loss_of_numbers(self.loss, outcomes)
        check_sizes(rows, outcomes, loss)
        if loss.is_working:
            note_working(loss)
        shift = None
        if offset is not None:
            shift = _checks.array("offset", offset, shape=(len(rows),))
        weights = None if sample_weight is None else sample_weights(rows, sample_weight)
        if weights is not None:
            counts = weights > 0.0
            rows, outcomes, weights = rows[counts], outcomes[counts], weights[counts]
            shift = None if shift is None else shift[counts]
        self._check()
        seen = Observed.of(loss, outcomes, len(rows), weights, shift)
        self.mean_ = seen.location if _checks.flag("center", self.center) else 0.0
        shifts = seen.offset_beside(shift, self.mean_)
        parameters = self._learnable(seen.loss, seen.responses, weights)
        kept = parameters.loss.with_offset(shifts is not None)
        parameters = parameters._replace(loss=kept)
        far = seen.loss.exact_sites(seen.responses) is not None
        if far and parameters.size:
            least = parameters.bounds + np.log([LESS_NOISE, 1.0])
            parameters = parameters._replace(bounds=least)
        kernel = kernel_of(self.kernel, rows, weights, seen.unit, far)
        noise = NOISE * seen.unit
        (self.loss_,) = self._fit(
            ProcessRequest(rows, kernel, parameters, [outcomes], weights, noise, shifts, far)
        )
        return self

    # -- prediction --

    def predict(  # type: ignore[override]
        self,
        X: ArrayLike,
        return_std: bool = False,
        return_cov: bool = False,
        offset: ArrayLike | None = None,
    ) -> Array | tuple[Array, Array]:
        """Predictive mean of y: integrated over the posterior.

        Parameters
        ----------
        X : array_like of shape (m, d)
            Rows of features.
        return_std : bool, default=False
            Whether to return the predictive standard deviation of y too, its noise included.
        return_cov : bool, default=False
            Whether to return the posterior covariance of the latent values too, which is without
            the noise of y. Not beside ``return_std``.
        offset : array_like of shape (m,), default=0
            As in ``fit``.

        Returns
        -------
        mean : ndarray of shape (m,)
            The most probable class for ordered classes. NaN where there is no mean.
        std : ndarray of shape (m,), only if ``return_std``
        covariance : ndarray of shape (m, m), only if ``return_cov``
        """
        if not _checks.flag("return_cov", return_cov):
            return super().predict(X, return_std, offset)
        if _checks.flag("return_std", return_std):
            raise ValueError("return_std and return_cov are both True; allowed: one of them")
        rows = self._rows(X)
        ((post, kernel),) = self._pairs
        covariance = self._latent(post, kernel, rows, joint=True)[1]
        mean = super().predict(X, False, offset)
        assert isinstance(mean, np.ndarray)
        return mean, covariance

    @property
    def _level(self) -> float:
        return self.mean_

    def _draws(
        self, rows: Array, size: int, rng: np.random.Generator, offset: ArrayLike | None
    ) -> Array:
        if isinstance(self.posterior_, IntegratedProcess):
            whole = shifted(np.full(len(rows), self.mean_), offset)
            return np.asarray(self.posterior_.sample_y(rows, size, rng, whole))
        ((post, kernel),) = self._pairs
        latent = self._latent_draws(post, kernel, rows, size, rng) + self.mean_
        return np.asarray(self.loss_.sample(shifted(latent, offset), rng))


# ---- the search ----


class SearchStart(NamedTuple):
    """Where a search begins."""

    theta: Array
    #: of a fit of the same rows near there
    sites: WarmStart | None = None
    #: minus second derivatives there, about, (p, p)
    metric: Array | None = None


class Maximum(NamedTuple):
    """Where a search ended."""

    theta: Array
    value: float
    #: sites to start from there, where each row has one
    start: WarmStart | None
    #: truncation error there, in nats, of a process of low rank
    error: float
    #: as of a start
    metric: Array | None
    #: what rounding may change of the value of an exact process, in nats
    rounding: float = 0.0

    @classmethod
    def of(
        cls, theta: Array, value: float, post: ProcessPosterior | None, metric: Array | None = None
    ) -> Maximum:
        start, error, rounding = None, 0.0, 0.0
        if isinstance(post, GPPosterior | LowRankGPPosterior):
            start = start_from(post)
        if isinstance(post, LowRankGPPosterior):
            error = post.truncation_error or 0.0
        if isinstance(post, GPPosterior):  # by the condition of I + S K S
            kernel = post.problem.prior.kernel
            assert isinstance(kernel, KernelMatrix)
            largest = float(np.max(kernel.diagonal * np.abs(post.sites.precision)))
            rounding = np.finfo(float).eps * len(kernel.diagonal) * largest
        return cls(theta, value, start, error, metric, rounding)

    @property
    def surely(self) -> float:
        """The value, by which ends are compared: without what rounding may have added."""
        return self.value - self.rounding

    def again(self, share: float = 1.0) -> SearchStart:
        """The start of another search there; share: of rows, 1 of the same ones."""
        metric = None if self.metric is None else share * self.metric
        return SearchStart(self.theta, self.start if share == 1.0 else None, metric)


class Evidence(ProcessTarget):
    """The log evidence of a process, without priors, as the target of a search from a start."""

    def __init__(self, problem: AnyProcess, start: SearchStart, ends: Ends = PLAIN) -> None:
        """ends: where the search does, as ROUGH."""
        p = len(problem.bounds)
        free = [Unknown(f"theta[{k}]", None) for k in range(p)]
        point_at = partial(problem.point_at, gradient=True)
        places, powers = np.arange(p), np.ones(p)
        super().__init__(
            point_at, problem.schedule, free, start.theta, places, powers, problem.bounds
        )
        self.problem, self.sites = problem, start.sites
        self.first_metric = None if start.metric is None else (start.metric, LOOSEST)
        self.finest, self.enough, self.nearly = ends
        #: hyper-parameters that were tried, and those of them without a fit
        self.tried = self.lost = 0

    def patience(self) -> Callback | None:
        """Sweeps that do not shrink are given up where t is not log-concave."""
        hurried = isinstance(self.schedule, EP) and self.problem.loss.log_concave is False
        return stalled() if hurried else None

    def posterior_at(
        self, u: Array, tol: float, near: ProcessPosterior | WarmStart | None
    ) -> ProcessPosterior | None:
        """As of every target, from the sites of this one where none are near."""
        post = super().posterior_at(u, tol, self.sites if near is None else near)  # type: ignore[arg-type]
        self.tried += 1
        self.lost += post is None
        return post

    def maximum(self, optimizer: str | Optimizer) -> Maximum | None:
        """The end of the search. None: there is no fit."""
        with self.problem.at_work():
            if not isinstance(optimizer, str):
                return self._maximum_by(optimizer)
            end = climbed(self, self.starts[0])
            if end is None or not self._holds(end.point):
                return None
            return Maximum.of(*end.point, end.metric)

    def _holds(self, end: HyperPoint[ProcessPosterior]) -> bool:
        """Whether the fit at an end converges. A rough one may be all that the search had."""
        tol, rough = self.schedule.tol, end.fit.schedule.tol
        return not rough > tol > 0.0 or self.posterior_at(end.u, tol, end.fit) is not None

    def _maximum_by(self, optimizer: Optimizer) -> Maximum | None:
        """The end of the search of a user, of minus the log evidence: infinite without a fit."""
        posts: list[ProcessPosterior] = []

        def objective(theta: ArrayLike, eval_gradient: bool = True) -> float | tuple[float, Array]:
            u = np.array(theta, dtype=np.float64)
            post = self.posterior_at(u, FINEST, posts[-1] if posts else None)
            value, slopes = np.inf, np.zeros(len(u))
            if post is not None:
                posts[:] = [post]
                value, slopes = -post.log_evidence, -self.slopes(self.point(u, post))
            return (value, slopes) if eval_gradient else value

        theta, value = optimizer(objective, self.starts[0], bounds=self.bounds)
        return Maximum.of(np.asarray(theta), -float(value), posts[-1]) if posts else None


class Found(NamedTuple):
    """What the searches from one start found, if anything, and how many points they tried."""

    end: Maximum | None
    tried: int
    lost: int


def search_from(
    problem: AnyProcess, start: SearchStart, optimizer: str | Optimizer, ends: Ends = PLAIN
) -> Found:
    """Search from a start. Where the rank is low, pivots are held fixed: the evidence is smooth.

    Another search follows from the end of one whose pivots leave much open there.
    """
    targets: list[Evidence] = []
    best: Maximum | None = None
    form = _form(problem, start)
    for rounds_left in reversed(range(ROUNDS)):
        if isinstance(form, NearestProcess):
            start = SearchStart(start.theta)
        targets.append(Evidence(form.searched(), start, ends))
        end = targets[-1].maximum(optimizer)
        if isinstance(problem, LowRankProcess):  # of a rank that is given
            if end is not None:  # the value with pivots of its own decides
                targets.append(Evidence(problem, end.again()))
                post = targets[-1].posterior_at(end.theta, FINEST, None)
                value = -np.inf if post is None else post.log_evidence
                end = Maximum.of(end.theta, value, post, end.metric)
            gain = -np.inf if end is None else end.value - (-np.inf if best is None else best.value)
            best = end if gain > 0.0 else best
            if not gain > MORE:
                break
        elif not isinstance(form, LowRankProcess) or (end is not None and end.error <= OPEN):
            best = end
            break
        if isinstance(problem, BinaryProcess) and (end is None or rounds_left == 1):
            form = problem.unfactored()
        elif end is not None:
            start = end.again()
            form = _form(problem, start)
    return Found(best, sum(one.tried for one in targets), sum(one.lost for one in targets))


def _form(problem: AnyProcess, start: SearchStart) -> ProcessForm:
    """The process as a search near these hyper-parameters has it.

    Where nearest rows may stand for it, a low rank is that of few pivots: another search of many
    rows takes minutes, to find that there is no low rank.
    """
    sites = None if start.sites is None else start.sites.sites
    precision = None if sites is None else sites.precision
    form: ProcessForm = problem.stage(start.theta, precision)
    if isinstance(problem, BinaryProcess) and isinstance(form, LowRankProcess):
        assert form.pivots is not None
        other = problem.unfactored()
        return other if isinstance(other, NearestProcess) and len(form.pivots) > PILOT else form
    return form


def search(
    problems: list[AnyProcess],
    pilots: list[AnyProcess] | None,
    starts: list[list[Array]],
    restarts: list[list[Array]],
    optimizer: str | Optimizer,
    n_jobs: int | None,
) -> tuple[list[Maximum], int, int]:
    """The hyper-parameters of all problems. And the points of the searches, and those that failed.

    The results do not depend on ``n_jobs``.

    Parameters
    ----------
    problems : list
    pilots : list, optional
        The problems of a few of the rows, on which the starts are tried. The searches on all rows
        begin where those ended.
    starts, restarts : list of list of ndarray of shape (p,)
        Of each problem. Restarts are of all rows.
    optimizer, n_jobs
        As in GPClassifier.

    Raises
    ------
    FloatingPointError
        If no fit held at any of the hyper-parameters of a problem.
    """
    points: list[Found] = []

    def ends(
        forms: list[AnyProcess], begin: list[list[SearchStart]], how: Ends
    ) -> list[list[Maximum]]:
        jobs = [(k, start) for k, mine in enumerate(begin) for start in mine]
        over, inside = shares(n_jobs, len(jobs))
        calls: list[Callable[[], Found]] = [
            partial(search_from, forms[k].with_threads(inside), start, optimizer, how)
            for k, start in jobs
        ]
        found: list[list[Maximum]] = [[] for _ in forms]
        with warnings.catch_warnings():
            # the last fit, at the maximum, gives its own warnings
            warnings.simplefilter("ignore", inference.ConvergenceWarning)
            results = in_threads(calls, over)
        for (k, _), one in zip(jobs, results, strict=True):
            points.append(one)
            if one.end is not None:
                found[k].append(one.end)
        return [sorted(mine, key=lambda one: -one.surely) for mine in found]

    plain_starts = [[SearchStart(theta) for theta in mine] for mine in starts]
    begin = plain_starts
    if pilots is not None:
        first = ends(pilots, plain_starts, ROUGH)
        # more rows tell much more of the noise, and little more of the kernel
        share = (len(problems[0].X) / len(pilots[0].X)) ** 0.5
        begin = [
            _apart(mine, share) or plain for mine, plain in zip(first, plain_starts, strict=True)
        ]
        points.clear()
    few = len(problems[0].X) <= PILOT and len(problems[0].bounds) <= FEW
    how = FINE if few else PLAIN
    more = [[SearchStart(theta) for theta in mine] for mine in restarts]
    found = ends(problems, [one + other for one, other in zip(begin, more, strict=True)], how)
    # what holds for some rows may not hold for all, and a descent may hold where sweeps do not
    for others in (problems, [one.descending() for one in problems]):
        if not all(found):
            again = [[] if mine else plain for mine, plain in zip(found, plain_starts, strict=True)]
            pairs = zip(found, ends(others, again, how), strict=True)
            found = [old or new for old, new in pairs]
    if not all(found):
        raise FloatingPointError("EP failed at all hyper-parameters that were tried")
    best = [mine[0] for mine in found]
    return best, sum(one.tried for one in points), sum(one.lost for one in points)


def _average_target(problem: BinaryProcess, theta: Array, scale: float) -> ProcessTarget:
    """The target of an average: hyper-parameters with half-Cauchy priors, whose medians are starts.

    scale: median of that of the noise.
    """
    begin, parameters = problem.kernel.theta, problem.parameters
    unknowns: list[Unknown] = []
    places: list[int] = []
    powers: list[float] = []
    for k, (name, short, power) in enumerate(parameters_of(problem.kernel)):
        median = float(np.clip(np.exp(begin[k] / power), 1e-300, 1e300))
        names = [one.name for one in unknowns]
        unknowns.append(Unknown(name if short in names else short, HalfCauchy(median)))
        places.append(k)
        powers.append(power)
    first = len(begin)
    for name in parameters.names:
        weak, size = weak_prior(name, scale), np.size(getattr(parameters.loss, name))
        if weak is not None:
            root = name == "variance"
            prior = weak.prior if root else weak
            unknowns.append(Unknown("noise_sd" if root else name, prior))
            places.append(first)
            powers.append(2.0 if root else 1.0)
        first += size
    point_at, where = partial(problem.point_at, gradient=True), np.array(places)
    return ProcessTarget(
        point_at,
        problem.schedule,
        unknowns,
        np.asarray(theta),
        where,
        np.array(powers),
        problem.bounds,
    )


def _apart(ends: list[Maximum], share: float) -> list[SearchStart]:
    """Starts there, the highest first, without those that are one with a higher one."""
    kept: list[Maximum] = []
    for end in ends:
        others = [one for one in kept if one.value - end.value < LEVEL]
        near = [one for one in kept if np.abs(end.theta - one.theta).max(initial=0.0) < APART]
        if not (others or near) and end.value > ends[0].value - LOWER:
            kept.append(end)
    return [end.again(share) for end in kept]
