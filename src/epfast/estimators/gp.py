"""The scikit-learn face of fit_gp. Needs the extra ``epfast[sklearn]``."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize

from epfast import _checks
from epfast._arrays import Array
from epfast.estimators.base import LatentClassifier, check_is_fitted, validate_data
from epfast.estimators.interrupts import all_or_nothing
from epfast.gp import (
    GPPosterior,
    GPProblem,
    KernelColumns,
    LowRankGPPosterior,
    fit_gp,
    fit_problem,
)
from epfast.gp.fit import choose, unfitted
from epfast.gp.problem import kernel_in_memory
from epfast.inference import FAILURES, ConvergenceWarning, Interrupted, fit_from
from epfast.schedules import EP, Schedule

# scikit-learn is there, or epfast.estimators.base would have said so
from sklearn.base import clone  # isort: skip
from sklearn.gaussian_process.kernels import RBF, CompoundKernel, ConstantKernel  # isort: skip
from sklearn.utils import check_random_state  # isort: skip

__all__ = ["GPClassifier"]

#: an error of the sites changes the evidence to second order only
SCHEDULE = EP(sweeps=200, tol=1e-6)
Posterior = GPPosterior | LowRankGPPosterior


class GPClassifier(LatentClassifier):
    """Gaussian process classifier by expectation propagation, for scikit-learn.

    The kernel's hyper-parameters maximise EP's log evidence, by L-BFGS with its gradient; where
    scikit-learn's ``GaussianProcessClassifier`` (Laplace's approximation) stands, this one can. For
    more than two classes one process per class, that class against the rest, each with a kernel of
    its own.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel, optional
        The covariance function; None is ``1.0 * RBF(1.0)``, with both numbers fixed.
    optimizer : {"fmin_l_bfgs_b"}, None or callable
        None keeps the hyper-parameters of ``kernel``. A callable is called as
        ``optimizer(objective, theta, bounds)``, objective(theta, eval_gradient=True) to be
        minimised, and returns the best theta and its value.
    n_restarts_optimizer : int
        Further runs of the optimizer, from log-uniform draws within the bounds.
    loss : str, Loss or callable
        The likelihood, as in :func:`epfast.fit_gp`.
    scheme : str or Scheme
        How sites are fitted, as in :func:`epfast.fit_gp`.
    schedule : EP, optional
        None is ``EP(sweeps=200, tol=1e-6)``.
    jitter : float
        Added to the diagonal of the kernel matrix. 0 with ``rank``.
    rank : int, optional
        Fit the process of that rank instead, as :func:`epfast.fit_gp` does: O(n rank) memory. It
        needs ``optimizer=None`` or a kernel without free parameters: the pivots change with the
        hyper-parameters, and the evidence jumps where they do.
    random_state : int, RandomState or None
        Draws the restarts.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels, sorted.
    n_classes_ : int
        How many.
    kernel_ : Kernel
        With the hyper-parameters found; for more than two classes a ``CompoundKernel`` of one per
        class.
    posterior_ : GPPosterior or LowRankGPPosterior
        With two classes: the posterior over the latent values of the fit.
    posteriors_ : list of GPPosterior or LowRankGPPosterior
        One, or one for each class.
    log_marginal_likelihood_value_ : float
        Log evidence at the hyper-parameters found; with more than two classes the mean over them.
    converged_ : bool
        Whether EP settled in all fits.
    n_iter_ : int
        Sweeps of the last fit, the most over the classes.
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

    def __init__(
        self,
        kernel: Any = None,
        *,
        optimizer: Any = "fmin_l_bfgs_b",
        n_restarts_optimizer: int = 0,
        loss: Any = "probit",
        scheme: Any = "exact",
        schedule: Schedule | None = None,
        jitter: float = 0.0,
        rank: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.optimizer = optimizer
        self.n_restarts_optimizer = n_restarts_optimizer
        self.loss = loss
        self.scheme = scheme
        self.schedule = schedule
        self.jitter = jitter
        self.rank = rank
        self.random_state = random_state

    @all_or_nothing
    def fit(self, X: ArrayLike, y: ArrayLike) -> GPClassifier:
        """Find the hyper-parameters and fit the posterior.

        Ctrl-C raises :class:`epfast.Interrupted` with the posterior of the binary problem last at
        hand, and leaves the estimator as it was before.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.
        y : array_like of shape (n,)
            Labels of any kind, two or more different ones.

        Returns
        -------
        GPClassifier
            Itself.
        """
        rows, labels = validate_data(self, X, y, dtype=np.float64)
        _, targets = self._encode(labels)
        restarts = _checks.integer("n_restarts_optimizer", self.n_restarts_optimizer, least=0)
        if not (
            self.optimizer is None
            or callable(self.optimizer)
            or (isinstance(self.optimizer, str) and self.optimizer == "fmin_l_bfgs_b")
        ):
            raise ValueError(
                f"optimizer is {_checks.describe(self.optimizer)}; allowed: 'fmin_l_bfgs_b', None "
                "or a callable"
            )
        jitter = 0.0 if self.jitter is None else self.jitter
        _checks.number("jitter", jitter, least=0.0)
        if self.rank is not None and jitter != 0.0:
            raise ValueError(f"jitter is {_checks.describe(self.jitter)}; allowed with rank: 0")
        if self.kernel is None:
            kernel = ConstantKernel(1.0, "fixed") * RBF(1.0, "fixed")
        else:
            kernel = clone(self.kernel)
        if self.rank is not None and self.optimizer is not None and kernel.n_dims > 0:
            raise ValueError(
                f"rank is {_checks.describe(self.rank)}; allowed with an optimizer and free "
                "hyper-parameters: None"
            )
        rng = check_random_state(self.random_state)
        self.X_train_ = rows.copy()
        self.n_classes_ = len(self.classes_)
        choices = {
            "loss": self.loss,
            "scheme": self.scheme,
            "schedule": SCHEDULE if self.schedule is None else self.schedule,
        }
        inputs, n = self.X_train_, len(rows)
        if self.rank is None:
            chosen = choose(**choices)
            problems = [
                _Problem(inputs, kernel, chosen.problem(target, n), jitter) for target in targets
            ]
        else:
            choices["rank"] = self.rank
            problems = [
                _Problem(inputs, kernel, None, 0.0, choices | {"y": target}) for target in targets
            ]
        if self.rank is None:
            self._left = problems[0].unfitted
        thetas = [
            kernel.theta
            if self.optimizer is None or kernel.n_dims == 0
            else _Search(problem, self.optimizer).maximum(restarts, rng)
            for problem in problems
        ]
        self._kernels = [kernel.clone_with_theta(theta) for theta in thetas]
        self.posteriors_ = list(map(_Problem.fit, problems, thetas))
        self._problems = problems
        if self.n_classes_ == 2:
            self.kernel_, self.posterior_ = self._kernels[0], self.posteriors_[0]
        else:
            self.kernel_ = CompoundKernel(self._kernels)
            if hasattr(self, "posterior_"):
                del self.posterior_
        self.log_marginal_likelihood_value_ = float(
            np.mean([post.log_evidence for post in self.posteriors_])
        )
        self.converged_ = all(post.converged for post in self.posteriors_)
        self.n_iter_ = max(len(post.history) for post in self.posteriors_)
        return self

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
            Logarithms of the kernel's hyper-parameters; with more than two classes those of one
            kernel for all classes, or of all kernels in turn. None: those that were found.
        eval_gradient : bool
            Whether to return the gradient with respect to theta too.
        clone_kernel : bool
            Of scikit-learn's signature; the kernel is never changed.

        Returns
        -------
        value : float
            The mean over the classes, where there are more than two.
        gradient : ndarray of shape (p,), only if ``eval_gradient``
            Not with ``rank``.
        """
        del clone_kernel
        check_is_fitted(self)
        if eval_gradient and self._problems[0].process is None:
            raise ValueError("eval_gradient is True; allowed with rank: False")
        size, count = self._kernels[0].n_dims, len(self._kernels)
        shared = False
        if theta is None:
            if not eval_gradient:
                return self.log_marginal_likelihood_value_
            parts = [kernel.theta for kernel in self._kernels]
        else:
            given = _checks.array("theta", theta, shape=(None,))
            if given.size not in (size, size * count):
                raise ValueError(
                    f"theta has {given.size} numbers; allowed: {size}"
                    + (f" or {size * count}" if count > 1 else "")
                )
            shared = given.size == size
            parts = [given] * count if shared else np.split(given, count)
        found = [
            problem.evidence(part, eval_gradient)
            for problem, part in zip(self._problems, parts, strict=True)
        ]
        value = float(np.mean([value for _, value, _ in found]))
        if not eval_gradient:
            return value
        gradients = [gradient for *_, gradient in found]
        return value, np.mean(gradients, axis=0) if shared else np.concatenate(gradients) / count

    def _latents(self, rows: Any) -> list[tuple[Array, Array]]:
        return [
            post.predict_latent(kernel(rows, self._basis(post)), kernel.diag(rows))
            for post, kernel in zip(self.posteriors_, self._kernels, strict=True)
        ]

    def _basis(self, post: Posterior) -> Array:
        """The inputs whose kernel with new inputs prediction needs."""
        inputs: Array = self.X_train_
        return inputs[post.pivots] if isinstance(post, LowRankGPPosterior) else inputs


class _Problem(NamedTuple):
    """One binary problem, without its hyper-parameters."""

    X: Array
    kernel: Any
    #: the fit of a process, without its kernel; None with a rank
    process: GPProblem | None
    jitter: float
    #: arguments of fit_gp, with a rank
    low_rank: dict[str, Any] | None = None

    def fit(self, theta: Any) -> Posterior:
        """The posterior; the kernel matrix is checked, O(n^3 / 3)."""
        kernel = self.kernel.clone_with_theta(theta)
        if self.process is None:
            assert self.low_rank is not None
            return fit_gp(KernelColumns.from_sklearn(kernel, self.X), **self.low_rank)
        K = kernel_in_memory(_owned(kernel(self.X), self.X), True, self.jitter)
        # a warning is for who called the estimator, two calls, that called this
        return fit_problem(self.process._replace(kernel=K), stacklevel=5, check=True)

    def unfitted(self) -> Posterior:
        """The prior with the hyper-parameters of the start, as a posterior."""
        assert self.process is not None
        return unfitted(self.process.with_kernel(_owned(self.kernel(self.X), self.X)))

    def evidence(
        self, theta: Any, eval_gradient: bool, start: GPPosterior | None = None
    ) -> tuple[Posterior, float, Array]:
        """The fit, its log evidence, and the gradient (empty if not asked for).

        For a search: the kernel matrix is not checked.
        """
        if self.process is None:
            post = self.fit(theta)
            return post, post.log_evidence, np.empty(0)
        kernel, dK = self.kernel.clone_with_theta(theta), np.empty((0, 0, 0))
        if eval_gradient:
            K, dK = kernel(self.X, eval_gradient=True)
        else:
            K = kernel(self.X)
        K = _owned(K, self.X, dK)
        K[np.diag_indices(len(K))] += self.jitter
        found = fit_from(partial(fit_problem, self.process.with_kernel(K)), start)
        gradient = np.empty(0)
        if eval_gradient:
            gradient = found.log_evidence_gradient(dK[:, :, k] for k in range(dK.shape[2]))
        return found, found.log_evidence, gradient


def _owned(K: Any, *others: Array) -> Array:
    """K in an array to overwrite: itself, or a copy if other arrays share its memory."""
    fresh = (
        isinstance(K, np.ndarray)
        and K.dtype == np.float64
        and K.flags.carray
        and K.flags.owndata
        and not any(np.may_share_memory(K, other) for other in others)
    )
    return K if fresh else np.array(_checks.real_array("K", K), dtype=np.float64, order="C")


class _Search:
    """The maximum of the log evidence over the hyper-parameters."""

    def __init__(self, problem: _Problem, optimizer: Any) -> None:
        self.problem, self.optimizer = problem, optimizer
        #: start of the next fit
        self.last: Any = None

    def objective(self, theta: Array, eval_gradient: bool = True) -> Any:
        """Minus the log evidence; infinite if no fit succeeds."""
        try:
            self.last, value, gradient = self.problem.evidence(theta, eval_gradient, self.last)
        except FAILURES:
            return (np.inf, np.zeros(len(theta))) if eval_gradient else np.inf
        return (-value, -gradient) if eval_gradient else -value

    def maximum(self, restarts: int, rng: Any) -> Array:
        """The best theta."""
        try:
            return self._maximum(restarts, rng)
        except KeyboardInterrupt as pressed:
            if isinstance(pressed, Interrupted) or self.last is None:
                raise
            raise Interrupted(self.last) from None

    def _maximum(self, restarts: int, rng: Any) -> Array:
        kernel = self.problem.kernel
        bounds = kernel.bounds
        starts = [kernel.theta]
        if restarts > 0:
            if not np.isfinite(bounds).all():
                raise ValueError(
                    "n_restarts_optimizer is above 0 and the kernel has infinite bounds; allowed: "
                    "finite bounds on all hyper-parameters"
                )
            starts += [rng.uniform(bounds[:, 0], bounds[:, 1]) for _ in range(restarts)]
        with warnings.catch_warnings():
            # warnings of the search only: the last fit, at the maximum, gives its own
            warnings.simplefilter("ignore", ConvergenceWarning)
            found = [self._descend(theta, bounds) for theta in starts]
        theta, value = min(found, key=lambda pair: pair[1])
        if not np.isfinite(value):
            raise FloatingPointError("EP failed at all hyper-parameters that were tried")
        return theta

    def _descend(self, theta: Array, bounds: Array) -> tuple[Array, float]:
        if callable(self.optimizer):
            best, value = self.optimizer(self.objective, theta, bounds=bounds)
            return np.asarray(best), float(value)
        result = optimize.minimize(
            self.objective, theta, method="L-BFGS-B", jac=True, bounds=bounds
        )
        return result.x, float(result.fun)
