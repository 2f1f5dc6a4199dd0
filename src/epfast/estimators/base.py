"""What all estimators share: parameters, checks of rows and labels, threads, predictions.

Needs the extra ``epfast[sklearn]``.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import (
    TYPE_CHECKING,
    Concatenate,
    Generic,
    NamedTuple,
    ParamSpec,
    Self,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    dataclass_transform,
)

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse, special

from epfast import _checks, backend, inference, losses
from epfast._arrays import AnyArray, Array, Indices, to_float64
from epfast.gaussian.posterior import GaussianPosterior, Posterior, shifted
from epfast.gaussian.rows import ends_of
from epfast.gaussian.table import copies
from epfast.inference.loop import Ended, OfSites, Recorded
from epfast.inference.records import warn_user
from epfast.inference.report import WEIGHTS, leave_one_out, not_counts
from epfast.inference.runtime import blas_threads, cores, threads_of, with_room
from epfast.losses import Loss, Multiclass, quantiles
from epfast.losses.names import LABELS, NUMBERS, LossGiven, loss_at_door, own_name
from epfast.parametric import NetworkPosterior
from epfast.schedules import FilledSchedule, Schedule

NEEDED = "epfast's estimators need scikit-learn >= 1.4: pip install 'epfast[sklearn]'"
with _checks.needs(NEEDED, "sklearn"):
    # scikit-learn's own Parallel sets filters of warnings in each thread, which spoils all filters
    from joblib import Parallel, delayed, effective_n_jobs
    from sklearn import exceptions
    from sklearn.metrics import r2_score
    from sklearn.utils import check_random_state
    from sklearn.utils.class_weight import compute_class_weight
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import (
        _check_sample_weight,
        check_consistent_length,
        check_is_fitted as check_is_fitted,
    )

T = TypeVar("T")
R = TypeVar("R")
E = TypeVar("E", bound="BaseEstimator")
A = TypeVar("A", bound=GaussianPosterior)
#: the posteriors of an estimator, and those of latent values, one or several per row
Q = TypeVar("Q", bound=Recorded)
L = TypeVar("L", bound=Posterior | NetworkPosterior)
P = ParamSpec("P")

#: rows that were checked, dense or CSR, and as a user gives them
Rows: TypeAlias = Array | sparse.csr_array
RowsGiven: TypeAlias = ArrayLike | sparse.csr_array
#: as scikit-learn takes it
Seed = int | np.random.RandomState | None
#: by label, or "balanced"
ClassWeight = dict[str | float, float] | str | None
#: what a parameter of an estimator may be, kernels of scikit-learn apart
Parameter: TypeAlias = LossGiven | Seed | Schedule | ClassWeight | ArrayLike


class Input(TypedDict, total=False):
    """What scikit-learn shall check of X."""

    dtype: type[np.float64] | None
    accept_sparse: str
    ensure_2d: bool


if TYPE_CHECKING:  # scikit-learn has no types
    from pandas import DataFrame
    from sklearn.utils import Tags

    class BaseEstimator:
        """What is used of scikit-learn's."""

        n_features_in_: int

        def get_params(self, deep: bool = True) -> dict[str, Parameter]: ...
        def set_params(self, **given: Parameter) -> Self: ...
        def __sklearn_tags__(self) -> Tags: ...
        def _validate_data(
            self, X: RowsGiven, *y: ArrayLike | None, **checks: Parameter
        ) -> Rows | tuple[Rows, AnyArray]: ...

    class ClassifierMixin:
        """As scikit-learn's."""

    class RegressorMixin:
        """As scikit-learn's."""

else:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

try:
    from sklearn.utils.validation import validate_data as _validated
except ImportError:  # scikit-learn 1.4 and 1.5

    def _validated(
        estimator: BaseEstimator, X: RowsGiven, *y: ArrayLike | None, **checks: Parameter
    ) -> Rows | tuple[Rows, AnyArray]:
        """Call the method, which older versions have in place of the function."""
        return estimator._validate_data(X, *y, **checks)


class Report(NamedTuple):
    """A fit of which there may be something to warn, see :func:`epfast.inference.warn_of`."""

    fit: Ended
    #: what was run
    engine: OfSites
    schedule: FilledSchedule


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(field,))
def estimator(cls: type[T]) -> type[T]:
    """Make the annotated names of an estimator, and of its bases, its keyword parameters."""
    dataclass(kw_only=True, eq=False, repr=False, match_args=False)(cls)
    cls.__init__ = _checks.named(cls.__init__)  # type: ignore[method-assign]
    return cls


def all_or_nothing(fit: Callable[Concatenate[E, P], R]) -> Callable[Concatenate[E, P], R]:
    """Let Ctrl-C leave the estimator as it was before ``fit``, fitted or not.

    It comes out as :class:`epfast.Interrupted`, whose ``posterior`` is that of the binary problem
    whose sweeps it broke off, at the hyper-parameters where the search was. None: there were none.
    """

    @wraps(fit)
    def fit_or_leave(self: E, /, *arguments: P.args, **named: P.kwargs) -> R:
        last = self.__dict__.copy()
        try:
            return fit(self, *arguments, **named)
        except KeyboardInterrupt as pressed:
            self.__dict__.clear()
            self.__dict__.update(last)
            raise inference.Interrupted(getattr(pressed, "posterior", None)) from None

    return fit_or_leave


def validate_data(
    estimator: BaseEstimator,
    X: RowsGiven,
    y: ArrayLike | None,
    *,
    reset: bool = True,
    y_numeric: bool = False,
    **checks: Unpack[Input],
) -> tuple[Rows, AnyArray]:
    """Rows and y, as scikit-learn's function of this name has them, see :func:`validate_rows`."""
    _checks.not_lazy("X", X)
    _checks.not_lazy("y", y)
    if y_numeric:
        _refuse_times("y", y)
    checked = _validate(estimator, X, (y,), reset, y_numeric, checks)
    assert isinstance(checked, tuple)
    return checked


def validate_rows(
    estimator: BaseEstimator, X: RowsGiven, *, reset: bool = True, **checks: Unpack[Input]
) -> Rows:
    """As scikit-learn's function, which reads times as numbers and names no columns of text.

    Collections of Dask are refused, which it would compute.
    """
    _checks.not_lazy("X", X)
    rows = _validate(estimator, X, (), reset, False, checks)
    assert not isinstance(rows, tuple)
    return rows


def _validate(
    estimator: BaseEstimator,
    X: RowsGiven,
    y: tuple[ArrayLike | None, ...],
    reset: bool,
    y_numeric: bool,
    checks: Input,
) -> Rows | tuple[Rows, AnyArray]:
    """Rows, and y where it is given. scikit-learn's words, led by the names of the arguments."""
    if not (isinstance(X, np.ndarray) and X.dtype.kind in "biufU"):
        _refuse_times("X", X)
    try:
        numeric = {"y_numeric": True} if y_numeric else {}
        return _validated(estimator, X, *y, reset=reset, **checks, **numeric)
    except (TypeError, ValueError, OverflowError) as error:
        frame: DataFrame | None = X if hasattr(X, "columns") else None
        kinds = () if frame is None else zip(frame.columns, frame.dtypes, strict=True)
        text = [str(name) for name, dtype in kinds if getattr(dtype, "kind", "f") not in "biuf"]
        if not text:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{'X or y' if y else 'X'} cannot be used: {error}") from error
        raise ValueError(
            f"X holds no numbers in the columns {', '.join(text)}; allowed: numbers; encode "
            "categories, for example by sklearn.preprocessing.OneHotEncoder in a pipeline, or use "
            "epfast.formula.fit"
        ) from None


def _refuse_times(name: str, value: RowsGiven | None) -> None:
    """As :func:`epfast._checks.no_times`, of what is an array. Else scikit-learn says what is."""
    try:
        _checks.no_times(name, value)
    except ValueError:  # rows of several lengths
        return


def validate_fit(
    estimator: BaseEstimator,
    X: RowsGiven,
    y: ArrayLike,
    *,
    y_numeric: bool = False,
    **checks: Unpack[Input],
) -> tuple[Rows, AnyArray]:
    """As validate_data, which takes a third of a fit of 200 rows: plain arrays need less.

    Those are matrices of finite doubles, and finite numbers or text, one per row. For fits alone.
    """
    if type(X) is np.ndarray and type(y) is np.ndarray:
        plain = X.dtype == np.float64 and X.ndim == 2 and X.size > 0
        if plain and y.dtype.kind in "biufU" and y.shape == X.shape[:1]:
            with np.errstate(all="ignore"):
                sums = X.sum(), y.sum() if y.dtype.kind == "f" else 0.0
            if np.isfinite(sums).all():
                estimator.n_features_in_ = X.shape[1]
                vars(estimator).pop("feature_names_in_", None)
                return X, y
    return validate_data(estimator, X, y, y_numeric=y_numeric, **checks)


#: the largest weight of a row: with less all rows say nothing, and EP counts to the most
LEAST_WEIGHT, MOST_WEIGHT = 1e-15, 1e15
#: sizes whose squares are doubles
SIZES = (1e-150, 1e150)


def check_sizes(X: Rows, y: ArrayLike | None = None, loss: Loss | None = None) -> None:
    """Refuse rows so small or large, and y that vary by so little or much, that squares are lost.

    X may hold texts, for a kernel on these. Of y only its own unit tells: None are labels.
    """
    if X.dtype.kind not in "fiu":
        return
    check_ends(*ends_of(X))
    ends = 0.0, 0.0
    if y is not None and loss is not None and loss.in_units_of_y and np.ndim(y) == 1:
        ends = float(np.min(y)), float(np.max(y))
    spread = ends[1] - ends[0] or abs(ends[0])  # of constant y their size is their unit
    if spread and not SIZES[0] ** 0.5 <= spread <= SIZES[1] ** 0.5:
        raise ValueError(
            f"y {'varies by' if ends[1] > ends[0] else 'is constant, of size'} {spread:.2g}; "
            f"allowed: from {SIZES[0] ** 0.5:.2g} to {SIZES[1] ** 0.5:.2g}, in another unit"
        )


def check_ends(least: Array, most: Array) -> None:
    """Refuse columns, of which these are the ends, whose squares are lost."""
    size = float(max(most.max(), -least.min()))
    if size and not SIZES[0] <= size <= SIZES[1]:
        raise ValueError(
            f"X has numbers up to {size:.2g}; allowed: up to a number from {SIZES[0]:g} to "
            f"{SIZES[1]:g}, in another unit"
        )


class ConvergenceWarning(inference.ConvergenceWarning, exceptions.ConvergenceWarning):  # type: ignore[misc]
    """epfast's ConvergenceWarning and scikit-learn's, so that filters of either act."""


class EvidenceWarning(UserWarning):
    """A search maximised a log evidence that says less than its name."""


def seed_of_draws(random_state: Seed) -> int:
    """A seed of NumPy's generators, drawn by any of scikit-learn's kinds. None draws afresh."""
    return int(random_state_of(random_state).randint(np.iinfo(np.int32).max))


def random_state_of(given: Seed) -> np.random.RandomState:
    """A generator of NumPy's older kind, of any of scikit-learn's kinds of seeds."""
    try:
        state: np.random.RandomState = check_random_state(given)
        return state
    except ValueError:
        raise ValueError(
            f"random_state is {_checks.describe(given)}; allowed: None, an integer from 0 to "
            "2**32 - 1, or a numpy.random.RandomState"
        ) from None


def fit_seed(random_state: Seed) -> int:
    """The seed of a fit: 0 for None, since a fit depends on its arguments alone. Integers are."""
    if random_state is None:
        return 0
    if isinstance(random_state, int | np.integer):
        return _checks.integer("random_state", random_state, least=0)
    return seed_of_draws(random_state)


def uncounted(post: A) -> A:
    """A posterior to start from, whose sweeps are those of an earlier fit, not of this one."""
    return replace(post, state=post.state._replace(sweeps=0))


def warn_of_fits(reports: Iterable[Report]) -> None:
    """Warn of fits, as :func:`epfast.inference.warn_of` does."""
    for fit, engine, schedule in reports:
        inference.warn_of(fit, engine, schedule, ConvergenceWarning)


# ---- labels and weights ----


def _halves(labels: AnyArray) -> tuple[AnyArray, NDArray[np.bool_]] | None:
    """Two labels in order and where the second is, without a sort. None: it takes one."""
    if labels.dtype.kind not in "biufU" or not len(labels):
        return None
    first = labels == labels[0]
    other = int(np.argmin(first))
    second = labels == labels[other]
    if first[other] or not (first | second).all():
        return None
    classes = labels[[0, other]]
    return (classes, second) if classes[0] < classes[1] else (classes[::-1].copy(), first)


def numbered(labels: AnyArray) -> tuple[AnyArray, Indices]:
    """The different labels in order, and the number of each label among them."""
    halves = _halves(labels)
    if halves is None:
        classes, index = np.unique(labels, return_inverse=True)
        return classes, index
    return halves[0], halves[1].astype(np.intp)


def check_labels(labels: AnyArray) -> None:
    """Refuse what are no labels of classes."""
    halves = _halves(labels)
    if halves is not None:  # then scikit-learn, which sorts, finds fault with fractions alone
        labels = halves[0]
        if labels.dtype.kind in "biu":
            return
    try:
        if labels.dtype.kind not in "biuf":
            np.unique(labels)
        check_classification_targets(labels)
    except ValueError as error:
        raise ValueError(f"y cannot be used: {error}") from None
    except TypeError:
        raise TypeError(
            "y holds labels that cannot be sorted; allowed: numbers alone, or strings alone"
        ) from None


def loss_of_labels(given: LossGiven) -> Loss:
    """The loss of a classifier. Those whose y are not labels of classes are refused."""
    loss = loss_at_door(given, LABELS)
    if not (loss.by_margin or isinstance(loss, Multiclass)):
        raise ValueError(
            f"loss is {loss!r}; allowed in a classifier: a loss of two labels, as 'logistic', or "
            "'multiclass'; LinearRegressor and GPRegressor take losses of numbers"
        )
    return loss


def sample_weights(rows: Rows, sample_weight: ArrayLike) -> Array:
    """Weights of the rows, checked, (n,)."""
    values = _checks.real_array("sample_weight", sample_weight)
    if not values.any():  # scikit-learn says so without the name
        raise ValueError("sample_weight is zero in every row; allowed: some number > 0")
    try:
        weights = np.array(_check_sample_weight(sample_weight, rows, dtype=np.float64))
    except ValueError as error:
        raise ValueError(f"sample_weight cannot be used: {error}") from None
    if not (weights >= 0.0).all():
        raise ValueError(f"sample_weight has a minimum of {weights.min():g}; allowed: numbers >= 0")
    if not LEAST_WEIGHT <= weights.max() <= MOST_WEIGHT:
        raise ValueError(
            f"sample_weight has a maximum of {weights.max():g}; allowed: from {LEAST_WEIGHT:g} to "
            f"{MOST_WEIGHT:g}"
        )
    said = not_counts(weights)
    if said is not None:
        text = f"sample_weight holds {said}; give counts, or none"
        warn_user(text, inference.DataWarning)
    return weights


def row_weights(
    rows: Rows,
    labels: AnyArray,
    sample_weight: ArrayLike | None,
    class_weight: ClassWeight,
) -> Array | None:
    """Sample weight times class weight, (n,). None if all are 1."""
    if sample_weight is None and class_weight is None:
        return None
    classes, index = np.unique(labels, return_inverse=True)
    weights = np.ones(rows.shape[0])
    if sample_weight is not None:
        weights = sample_weights(rows, sample_weight)
    if isinstance(class_weight, str):
        _checks.choice("class_weight", class_weight, ("balanced",))
        mass = np.bincount(index, weights)
        seen = mass > 0.0
        by_class = np.zeros(len(mass))
        by_class[seen] = mass.sum() / (seen.sum() * mass[seen])
        weights *= by_class[index]
    elif class_weight is not None:
        by_class = compute_class_weight(class_weight, classes=classes, y=labels)
        if not (np.isfinite(by_class).all() and (by_class >= 0.0).all() and by_class.any()):
            raise ValueError(
                f"class_weight is {_checks.describe(class_weight)}; allowed: numbers >= 0, some "
                "of them > 0"
            )
        weights *= by_class[index]
    if class_weight is not None and not (by_class == 1.0).all():
        warn_user(
            f"class_weight is {_checks.describe(class_weight)}: {WEIGHTS}; for classes of unequal "
            "size fit without it and move the threshold, as by "
            "sklearn.model_selection.TunedThresholdClassifierCV",
            inference.DataWarning,
        )
    if not weights.any():
        raise ValueError(
            "sample_weight times class_weight is zero in every row; allowed: some number > 0"
        )
    return None if (weights == 1.0).all() else weights


# ---- threads ----


def jobs_of(n_jobs: int | None) -> int:
    """The number of threads that ``n_jobs`` asks for, as scikit-learn counts them.

    None: 1, unless a ``joblib.parallel_config`` says more. -1: as many as the process may use. -2:
    one less, and so on.

    Raises
    ------
    ValueError, TypeError
        For 0, and for what is no integer.
    """
    if n_jobs is None:
        return int(effective_n_jobs(None))
    if isinstance(n_jobs, numbers.Integral) and n_jobs < -1:
        return max(1, cores() + 1 + int(n_jobs))
    return threads_of(n_jobs)


def shares(n_jobs: int | None, count: int) -> tuple[int, int | None]:
    """Threads over so many problems, and those inside each of them. None: as BLAS has them.

    Problems come first, as they need not wait for each other, and have one thread each.
    """
    jobs = jobs_of(n_jobs)
    if jobs > 1 and count > 1:
        return min(jobs, count), 1
    return 1, None if n_jobs is None else jobs


def in_threads(calls: Sequence[Callable[[], R]], jobs: int) -> list[R]:
    """Results of the calls, in their order, by so many threads. BLAS has one in each."""
    jobs = with_room(jobs)
    if jobs == 1 or len(calls) < 2:
        return [call() for call in calls]
    # fits that each set and restore the number of BLAS threads would do that all the time
    with blas_threads(1):
        results: list[R] = Parallel(n_jobs=jobs, prefer="threads", require="sharedmem")(
            delayed(call)() for call in calls
        )
    return results


# ---- what estimators predict ----


class Points(NamedTuple, Generic[Q]):
    """Points of an average over hyper-parameters, at rows."""

    weights: Array
    #: of each point, a posterior for each class
    posteriors: Sequence[Sequence[Q]]
    #: and what they say: mean and variance, (n,) each
    latents: list[list[tuple[Array, Array]]]


class Posteriors(BaseEstimator, Generic[Q]):
    """What an estimator has fitted: one posterior, or one for each class against the rest."""

    posteriors_: Sequence[Q]

    def set_params(self, **given: Parameter) -> Self:
        """Set parameters, as scikit-learn does; of unknown names the message says what is meant."""
        parameters = self.get_params(deep=False)
        for name in given:
            if "__" not in name and name not in parameters:
                raise ValueError(
                    f"Invalid parameter {name!r} for estimator {type(self).__name__}. Valid "
                    f"parameters are: {sorted(parameters)}{_checks.meant(name, parameters)}"
                )
        super().set_params(**given)
        return self

    def _input(self) -> Input:
        """What scikit-learn shall check of X."""
        return {"dtype": np.float64}

    def _rows(self, X: RowsGiven) -> Rows:
        """Rows to predict, checked."""
        check_is_fitted(self)
        return validate_rows(self, X, reset=False, **self._input())

    def _latents(self, rows: Rows) -> list[tuple[Array, Array]]:
        """Mean and variance, (n,) each, for every posterior."""
        raise NotImplementedError

    def _points(self, rows: Rows, variances: bool = True) -> Points[Q]:
        """The posteriors of each point of an average, or of the one there is, at these rows.

        variances: whether they are needed. Else they may be NaN.
        """
        del variances
        return Points(np.ones(1), [self.posteriors_], [self._latents(rows)])

    def _set_fits(self, posteriors: Sequence[Q], log_evidence: float) -> None:
        """Set the attributes that all fits have."""
        self.posteriors_, self.log_evidence_ = posteriors, log_evidence
        self.n_iter_ = max(post.n_sweeps for post in posteriors)
        self.converged_ = all(post.converged for post in posteriors)

    @property
    def posterior_(self) -> Q:
        """The posterior, where there is one. Else there is ``posteriors_``."""
        name, posteriors = type(self).__name__, self.__dict__.get("posteriors_")
        if posteriors is None:
            raise AttributeError(f"this {name} is not fitted, so it has no posterior_")
        if len(posteriors) > 1:
            raise AttributeError(
                f"this {name} has no posterior_: it fitted each of {len(posteriors)} classes "
                "against the rest, and has a posterior for each in posteriors_"
            )
        post: Q = posteriors[0]
        return post


class Training(NamedTuple):
    """Rows and labels of a fit, checked."""

    rows: Rows
    #: of the classes, (n,)
    numbers: Indices
    #: responses of each problem
    targets: list[Array]
    weights: Array | None
    loss: Loss


class LatentClassifier(ClassifierMixin, Posteriors[L]):
    """Base of the classifiers: predictions from latent values, one per row (and class)."""

    # parameters of those that fit by _training
    loss: LossGiven
    class_weight: ClassWeight
    #: the labels, sorted
    classes_: AnyArray
    #: how the classes deny each other. Networks, and one posterior, have 0
    coupling_: float = 0.0
    #: places in ``classes_`` of the classes that some row of positive weight has. The others, which
    #: no posterior knows, have probability 0
    _seen: Indices

    def predict_latent(self, X: ArrayLike) -> tuple[Array, Array]:
        """Posterior mean and variance of the latent values: of x.theta, or of the process.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.

        Returns
        -------
        mean, variance : ndarray of shape (n,) or (n, n_classes)
            One column per class with rows of positive weight, where there are more than two. In a
            linear model the intercept is included: the mean is ``X @ coef_.T + intercept_``.
        """
        return self._answers(X, self._stacked)

    def _answers(self, X: RowsGiven, of_rows: Callable[[Rows], T]) -> T:
        """What a function says of rows to predict, once they are checked."""
        return of_rows(self._rows(X))

    @property
    def _several(self) -> bool:
        """Whether one posterior has a latent value for each class."""
        return isinstance(self.posteriors_[0].loss, Multiclass)

    def _log_probabilities(self, rows: Rows) -> Array:
        """(n, n_classes), by that one posterior."""
        raise NotImplementedError

    def _stacked(self, rows: Rows) -> tuple[Array, Array]:
        """See :meth:`predict_latent`, of rows that were checked."""
        return stacked(self._latents(rows))

    def _odds(self, rows: Rows) -> Array:
        """Predictive log odds of rows that were checked. See :func:`odds`."""
        points = self._points(rows)
        pairs = zip(points.posteriors, points.latents, strict=True)
        scores = [odds(posts, *stacked(latents)) for posts, latents in pairs]
        if len(scores) == 1:
            return scores[0]
        return mixed_odds(np.stack(scores, axis=-1), points.weights)

    def _couple(
        self,
        index: Indices,
        weights: Array | None,
        scores: Array | None = None,
        earlier: Array | float = 0.0,
    ) -> None:
        """Set ``coupling_`` by rows that the posteriors did not see.

        scores: log odds of these rows by others, (n, k). By default by leaving each row out.
        earlier: the sums of earlier rows.
        """
        if scores is None and len(self.posteriors_) > 1:
            scores = left_out(self.posteriors_, index)
        self._tally = earlier + tally(scores, index, weights)
        self.coupling_ = best(self._tally)

    def decision_function(self, X: ArrayLike) -> Array:
        """Predictive log odds log p(+) / p(-), integrated over the posterior.

        They order the rows as ``predict_proba`` does and have the sign of the latent mean, but lie
        nearer to 0 where the latent is uncertain. For the latent mean itself see
        :meth:`predict_latent`.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.

        Returns
        -------
        ndarray of shape (n,) or (n, n_classes)
            Of ``classes_[1]``. Or of each class against the rest, where there are more than two,
            -inf for a class whose rows all had weight 0.
        """
        return self._answers(X, self._decisions)

    def _decisions(self, rows: Rows) -> Array:
        scores = self._scores(rows)
        if self._all_seen:
            return scores
        return self._spread(np.stack([-scores, scores], axis=1) if scores.ndim == 1 else scores)

    def _scores(self, rows: Rows) -> Array:
        """As :meth:`decision_function`, of the classes that were seen."""
        if self._several:
            logs = self._log_probabilities(rows)
            if logs.shape[1] == 2:
                return np.asarray(logs[:, 1] - logs[:, 0])
            return np.asarray(logs - _log_of_rest(logs))
        return self._odds(rows)

    @property
    def _all_seen(self) -> bool:
        return len(self._seen) == len(self.classes_)

    def _spread(self, logs: Array) -> Array:
        """Logs by class, from those of the classes that were seen. -inf for the others."""
        if self._all_seen:
            return logs
        of_all = np.full((len(logs), len(self.classes_)), -np.inf)
        of_all[:, self._seen] = logs
        return of_all

    def predict(self, X: ArrayLike) -> AnyArray:
        """The most probable class.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.

        Returns
        -------
        ndarray of shape (n,)
            AnyArray out of ``classes_``.
        """
        return self._answers(X, self._labels)

    def _labels(self, rows: Rows) -> AnyArray:
        scores = self._decisions(rows)
        index = (scores > 0.0).astype(np.intp) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[index])

    def predict_proba(self, X: ArrayLike) -> Array:
        """Posterior predictive probability of each class.

        The factors are integrated over the posterior, and normalised over the two labels (see
        :meth:`epfast.FullPosterior.predict_proba`). With more than two classes, each against the
        rest, p(k) is in proportion to p_k / (1 - p_k)^a, p_k that of class k against the rest and
        a the ``coupling_``.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.

        Returns
        -------
        ndarray of shape (n, n_classes)
            Columns in the order of ``classes_``.
        """
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: ArrayLike) -> Array:
        """Logarithm of ``predict_proba``, accurate where that underflows.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.

        Returns
        -------
        ndarray of shape (n, n_classes)
            Columns in the order of ``classes_``.
        """
        return self._answers(X, self._log_proba)

    def _log_proba(self, rows: Rows) -> Array:
        if self._several:
            return self._spread(self._log_probabilities(rows))
        return self._spread(log_probabilities(self._scores(rows), self.coupling_))

    def _encode(
        self, labels: AnyArray, weights: Array | None = None
    ) -> tuple[Indices, list[Array]]:
        """Set ``classes_``. Return class numbers, and labels -1 and +1 for each binary problem.

        labels: checked; weights: of the rows. A class whose rows all have weight 0 stays in
        ``classes_``, with probability 0, and has no number: the rows of others keep theirs in
        their order.
        """
        self.classes_, index = numbered(labels)
        n_classes = len(self.classes_)
        if n_classes < 2:
            raise ValueError(
                f"y has {n_classes} class, {self.classes_.tolist()}; allowed: two classes or more"
            )
        self._seen = np.arange(n_classes)
        if weights is not None:
            self._seen = np.flatnonzero(np.bincount(index, weights, n_classes))
            if len(self._seen) < 2:
                kept = self.classes_[self._seen].tolist()
                raise ValueError(
                    f"the rows of positive weight are all of 1 class, {kept}; allowed: two or more"
                )
            if not self._all_seen:  # rows of weight 0 have any number
                index = np.minimum(np.searchsorted(self._seen, index), len(self._seen) - 1)
        return index, self._targets(index)

    def _training(
        self,
        X: RowsGiven,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        *,
        counted: bool = False,
    ) -> Training:
        """What a fit is of, checked.

        counted: whether rows of weight 0 are left out.
        """
        checks = self._input()
        rows, labels = validate_fit(self, X, y, **checks)
        if "accept_sparse" in checks:  # SciPy follows indices without a look
            rows = _checks.rows("X", rows)
        check_labels(labels)
        check_sizes(rows)
        weights = row_weights(rows, labels, sample_weight, self.class_weight)
        index, targets = self._encode(labels, weights)
        if counted and weights is not None:
            some = weights > 0.0
            rows, index, weights = rows[some], index[some], weights[some]
            targets = self._targets(index)
        loss = loss_of_labels(self.loss)
        if isinstance(loss, Multiclass):
            if weights is not None:
                places = copies(loss, weights, "sample_weight or class_weight")
                rows, index, weights = rows[places], index[places], None
            count = len(self._seen)
            if loss.n_classes not in (None, count):
                raise ValueError(
                    f"loss is {loss!r} and y has {count} labels; allowed: losses.Multiclass(), or "
                    f"n_classes={count}"
                )
            targets = [index.astype(np.float64)]
        return Training(rows, index, targets, weights, loss)

    def _class_numbers(self, labels: AnyArray, classes: ArrayLike | None, first: bool) -> Indices:
        """Class numbers of the labels of one chunk. The first call sets ``classes_``."""
        check_labels(labels)
        if classes is not None:
            listed = np.unique(np.asarray(classes))
            if first and len(listed) < 2:
                raise ValueError(f"classes is {listed.tolist()}; allowed: two classes or more")
            if not first and not np.array_equal(listed, self.classes_):
                raise ValueError(
                    f"classes is {listed.tolist()}; allowed after the first call: None, or "
                    f"{self.classes_.tolist()}"
                )
        elif first:
            raise ValueError(
                "classes is None; allowed in the first call of partial_fit: all labels there are"
            )
        of_all = listed if first else self.classes_
        new = np.setdiff1d(labels, of_all)
        if new.size:
            raise ValueError(
                f"y has the labels {new.tolist()}; allowed: those of classes, {of_all.tolist()}"
            )
        if first:
            self._seen = np.arange(len(of_all))
        elif not self._all_seen:
            raise ValueError(
                f"the rows of {np.delete(of_all, self._seen).tolist()} all had weight 0 in fit, "
                "which made no posterior of such a class; allowed before partial_fit: rows of "
                "positive weight of each class, or a first call with classes="
            )
        self.classes_ = of_all
        return np.searchsorted(of_all, labels)

    def _targets(self, index: Indices) -> list[Array]:
        """AnyArray -1 and +1 for each binary problem, from class numbers."""
        n_classes = len(self._seen)
        positive = [1] if n_classes == 2 else range(n_classes)
        return [np.where(index == k, 1.0, -1.0) for k in positive]


def stacked(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Means and variances of one posterior, (n,), or of one for each class, (n, k)."""
    if len(parts) == 1:
        return parts[0]
    return np.stack([m for m, _ in parts], axis=1), np.stack([v for _, v in parts], axis=1)


def odds(posteriors: Sequence[L], mean: Array, variance: Array) -> Array:
    """Predictive log odds of latent values, (n,), or (n, k) where each class has a posterior."""
    m, v = (np.ascontiguousarray(part.T).reshape(-1, len(part)) for part in (mean, variance))
    v, plus = np.maximum(v, np.finfo(np.float64).tiny), np.ones(len(mean))
    scores = np.empty(m.shape)
    for k, post in enumerate(posteriors):
        loss = post.known_loss()
        up, down = (backend.tilted_moments(loss, y, m[k], v[k])[0] for y in (plus, -plus))
        scores[k] = up - down
    return scores[0] if mean.ndim == 1 else scores.T.copy()


def mixed_odds(scores: Array, weights: Array) -> Array:
    """Log odds of mixtures of labels, from those of their parts, (..., k)."""
    yes, no = (
        special.logsumexp(special.log_expit(sign * scores), axis=-1, b=weights)
        for sign in (1.0, -1.0)
    )
    return np.asarray(yes - no)


def _log_of_rest(logs: Array) -> Array:
    """log(1 - p) from logs of probabilities that add up to 1, (n, k)."""
    result = np.empty(logs.shape)
    for k in range(logs.shape[1]):
        result[:, k] = special.logsumexp(np.delete(logs, k, axis=1), axis=1)
    return result


# ---- probabilities of several classes ----
#
# The answers p_k, class k or not, do not add up to 1. Two ways to combine them are common. The one
# takes them as they are, and normalises: p(k) in proportion to p_k. The other takes them as
# independent, given that exactly one of them is yes: p(k) in proportion to p_k prod_{j != k}
# (1 - p_j), that is to the odds p_k / (1 - p_k). The one is right where the answers are
# probabilities of the classes already. The other is right where no plane separates a class from the
# rest, though planes separate each two: there p_k is near 1/2 whatever x is, and what the others
# deny is what is known. Between them lie p_k / (1 - p_k)^a, whose log probability of a label is
# concave in a. The rows that a fit has left out choose a, the *coupling*: a maximises the sum of
# their log probabilities less a, which stands for a prior density in proportion to exp(-a). Without
# it labels that x says nothing of would draw a at random, since there the sum is flat to a nat.

#: where the score of a coupling is summed
GRID = np.linspace(0.0, 1.0, 9)
#: a probability of 1 leaves odds that are finite
LEAST_LOG = -1e-300


def log_probabilities(scores: Array, coupling: float = 0.0) -> Array:
    """Of classes, (n, 2) or (n, k), from log odds, (n,) or (n, k): normalised."""
    if scores.ndim == 1:
        return np.asarray(special.log_expit(np.stack([-scores, scores], axis=1)))
    return _normalised(*_yes_and_no(scores), coupling).T.copy()


def _yes_and_no(scores: Array) -> tuple[Array, Array]:
    """log p_k and log(1 - p_k), (k, n) each."""
    scores = np.ascontiguousarray(scores.T)
    return special.log_expit(scores), special.log_expit(-scores)


def _normalised(yes: Array, no: Array, coupling: float) -> Array:
    """Log probabilities of the classes, (k, n)."""
    logs = yes - coupling * no
    logs -= logs.max(axis=0)
    return np.asarray(logs - np.log(np.exp(logs).sum(axis=0)))


def left_out(posteriors: Sequence[L], index: Indices) -> Array | None:
    """Log odds of each row under the other rows, (n, k). None: the sites do not give them.

    index: the class of each row, (n,).
    """
    scores = np.empty((len(index), len(posteriors)))
    for k, post in enumerate(posteriors):
        right = leave_one_out(post)
        if right is None:
            return None
        right = np.minimum(right, LEAST_LOG)
        odds = right - np.log(-np.expm1(right))
        scores[:, k] = np.where(index == k, odds, -odds)
    return scores if np.isfinite(scores).all() else None


def tally(scores: Array | None, index: Indices, weights: Array | None) -> Array:
    """Summed log probability of the labels by each coupling of GRID. 0 without scores."""
    if scores is None:
        return np.zeros(len(GRID))
    rows = np.arange(len(index))
    share = np.ones(len(index)) if weights is None else weights
    answers = _yes_and_no(scores)
    return np.array([share @ _normalised(*answers, a)[index, rows] for a in GRID])


def best(sums: Array) -> float:
    """The coupling of the largest sum less itself, by the parabola through the three about it."""
    sums = sums - GRID
    k = int(np.argmax(sums))
    middle = int(np.clip(k, 1, len(GRID) - 2))
    below, here, above = sums[middle - 1 : middle + 2]
    bend = below - 2.0 * here + above
    if not bend < 0.0:  # a line, or no rows
        return float(GRID[k])
    vertex = GRID[middle] + 0.5 * (GRID[1] - GRID[0]) * (below - above) / bend
    return float(np.clip(vertex, 0.0, 1.0))


# ---- regressors ----

#: losses with the mean exp(h), up to a factor
LOG_LINKS = losses.Poisson, losses.NegativeBinomial, losses.GammaNoise, losses.Weibull


class Parts(NamedTuple):
    """A mixture of predictive distributions of y."""

    weights: Array
    losses: list[Loss]
    #: mean and variance of the latent values, (n,) each
    latents: list[tuple[Array, Array]]

    @property
    def _pairs(self) -> Iterator[tuple[Loss, tuple[Array, Array]]]:
        """The losses, each with its latent values."""
        return zip(self.losses, self.latents, strict=True)

    @property
    def _predicted(self) -> Array:
        """Predictive means by each, (k, n)."""
        return np.stack([loss.predict(*latent) for loss, latent in self._pairs])

    @property
    def _finite(self) -> Parts:
        """The most probable part alone where y has a log link: then a mixture has no finite mean.

        E[exp(h)] over a prior sd s grows as exp(s^2 / 2), which no prior of scales outweighs.
        """
        loss, k = self.losses[0], int(np.argmax(self.weights))
        if not isinstance(getattr(loss, "base", loss), LOG_LINKS):
            return self
        return Parts(np.ones(1), [self.losses[k]], [self.latents[k]])

    def mean(self) -> Array:
        if hasattr(self.losses[0], "cuts"):  # the most probable class
            each = np.stack([loss.predict_proba(*latent) for loss, latent in self._pairs])
            p = np.tensordot(self.weights, each, 1)
            return np.asarray(p.argmax(axis=1), dtype=np.float64)
        most = self._finite
        return np.asarray(most.weights @ most._predicted)

    def moments(self) -> tuple[Array, Array]:
        """Mean and standard deviation."""
        most, mean = self._finite, self.mean()
        means = most._predicted
        each = np.stack([loss.predict_variance(*latent) for loss, latent in most._pairs])
        within = most.weights @ each
        if len(means) > 1:
            within = within + most.weights @ (means - most.weights @ means) ** 2
        return mean, np.sqrt(within)

    def quantile(self, level: float) -> Array:
        if len(self.losses) == 1:
            return self.losses[0].predict_quantile(level, *self.latents[0])
        return quantiles.of_mixture(level, self.losses, self.weights, self.latents)

    def log_predictive(self, responses: Array) -> Array:
        each = np.stack([loss.log_predictive(responses, *latent) for loss, latent in self._pairs])
        if len(each) == 1:
            return np.asarray(each[0])
        return np.asarray(special.logsumexp(each.T, axis=1, b=self.weights))


class Observed(NamedTuple):
    """What a regressor is given of y: the fits are of y less its location."""

    #: of the responses, which have offsets if some are given
    loss: Loss
    #: (n, width)
    responses: Array
    #: about where h is if all rows have the same, and how far y spreads
    location: float
    unit: float
    #: what a linear model takes from y, and adds to the intercept after the fit
    level: float = 0.0

    @classmethod
    def of(
        cls, loss: Loss, y: ArrayLike, n: int, weights: Array | None, offset: ArrayLike | None
    ) -> Observed:
        """y as the user gave it, of n rows."""
        whole = loss.with_offset(offset is not None)
        responses = whole.observed(y, n, offset)
        return cls(whole, responses, *whole.typical(responses, weights))

    def offset_beside(self, offset: ArrayLike | None, level: float) -> Array | None:
        """The offsets of the rows with a constant, (n,). None: they are 0."""
        n = len(self.responses)
        offsets = np.zeros(n) if offset is None else _checks.array("offset", offset, shape=(n,))
        result = offsets + level
        return result if result.any() else None


class LatentRegressor(RegressorMixin, Posteriors[L]):
    """Base of the regressors: predictions of y from one latent value per row."""

    # a parameter of those that take a loss
    loss: LossGiven
    #: the loss, with the parameters that the evidence has set
    loss_: Loss

    def _rows_and_responses(self, X: RowsGiven, y: ArrayLike) -> tuple[Rows, ArrayLike]:
        """Rows and y of a fit. y (n,), or (n, 2) whose columns the loss knows."""
        checks = self._input()
        loss = self.get_params(deep=False).get("loss")  # networks take none
        is_plain = loss is None or (isinstance(loss, str) and own_name(loss) == "gaussian")
        if is_plain and _is_pair(y):
            allowed = "allowed: (n,)"
            if loss is not None:
                allowed = "allowed with loss='gaussian': (n,); loss=losses.Gaussian() takes "
                allowed += "(value, variance)"
            raise ValueError(
                f"y has 2 columns; {allowed}; several outputs take a model each, as by "
                "sklearn.multioutput.MultiOutputRegressor"
            )
        if _is_pair(y):
            rows = validate_rows(self, X, **checks)
            check_consistent_length(rows, y)
            return rows, y
        try:
            first = np.asarray(y).ravel()[:1]
        except ValueError:
            raise ValueError(
                "y is not a rectangular array; allowed: numbers, one per row"
            ) from None
        if len(first) and isinstance(first[0], str):
            raise TypeError(
                f"y holds text, {str(first[0])!r} first; allowed: numbers; ordered classes are 0, "
                "1, 2, ...: pandas.Categorical(y, categories=[...], ordered=True).codes"
            )
        rows, targets = validate_fit(self, X, y, y_numeric=True, **checks)
        return rows, to_float64(targets)

    @property
    def _level(self) -> float:
        """What is added to the latent values of posteriors."""
        return 0.0

    def _parts(self, rows: Rows, offset: ArrayLike | None, variances: bool = True) -> Parts:
        """The likelihoods and latent values whose mixture predicts y; variances: see _points."""
        weights, posteriors, latents = self._points(rows, variances)
        losses = [post.known_loss() for (post,) in posteriors]
        moved = [(shifted(m + self._level, offset), np.maximum(v, 0.0)) for ((m, v),) in latents]
        return Parts(weights, losses, moved)

    def _draws(
        self, rows: Rows, size: int, rng: np.random.Generator, offset: ArrayLike | None
    ) -> Array:
        """Draws of y, (size, n)."""
        raise NotImplementedError

    def predict_latent(self, X: ArrayLike, offset: ArrayLike | None = None) -> tuple[Array, Array]:
        """Posterior mean and variance of the latent values, of which y is a noisy function.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.
        offset : array_like of shape (n,), default=0
            As in ``fit``.

        Returns
        -------
        mean, variance : ndarray of shape (n,)
        """
        ((mean, variance),) = self._latents(self._rows(X))
        return shifted(mean + self._level, offset), np.maximum(variance, 0.0)

    def predict(
        self, X: ArrayLike, return_std: bool = False, offset: ArrayLike | None = None
    ) -> Array | tuple[Array, Array]:
        """Predictive mean of y: integrated over the posterior.

        Where y has the unit of the latent values it is their mean, up to a constant. Elsewhere, as
        for counts, it depends on their variances. With a log link it is that at the most probable
        hyper-parameters, also where these are averaged over: over a prior of scales the mean of
        exp(h) is infinite. Quantiles are those of the average.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.
        return_std : bool, default=False
            Whether to return the predictive standard deviation of y too, its noise included.
        offset : array_like of shape (n,), default=0
            As in ``fit``.

        Returns
        -------
        mean : ndarray of shape (n,)
            The most probable class for ordered classes. NaN where there is no mean.
        std : ndarray of shape (n,), only if ``return_std``
        """
        check_is_fitted(self)
        wide = _checks.flag("return_std", return_std) or self.loss_.needs_variance
        parts = self._parts(self._rows(X), offset, wide)
        return parts.moments() if return_std else parts.mean()

    def predict_quantile(
        self, X: ArrayLike, q: float | ArrayLike = 0.5, offset: ArrayLike | None = None
    ) -> Array:
        """Predictive quantiles of y: the least y with P(y' <= y) >= q.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.
        q : float or array_like of shape (k,), default=0.5
            Levels, in (0, 1).
        offset : array_like of shape (n,), default=0
            As in ``fit``.

        Returns
        -------
        ndarray of shape (n,), or (n, k)
        """
        levels = _checks.real_array("q", q)
        if levels.ndim > 1:
            raise ValueError(f"q has shape {levels.shape}; allowed: a number, or shape (k,)")
        parts = self._parts(self._rows(X), offset)
        quantiles = [parts.quantile(level) for level in levels.ravel().tolist()]
        if levels.ndim == 0:
            return quantiles[0]
        return np.array(quantiles).reshape(len(quantiles), len(parts.latents[0][0])).T.copy()

    def score(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> float:
        """Share of the variance of y that the predictive mean explains, R^2.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.
        y : array_like of shape (n,) or (n, 2)
            As in ``fit``. Of (value, variance) and (time, observed) the first column counts, of
            (lower, upper) the middle or the finite end, and of (count, trials) the share of
            successes, whose weight is multiplied by the trials.
        sample_weight : array_like of shape (n,), optional
            Numbers >= 0.
        offset : array_like of shape (n,), default=0
            As in ``fit``.

        Returns
        -------
        float
            1 is best. A constant that is the mean of y has 0.
        """
        predicted = self.predict(X, offset=offset)
        if not np.isfinite(predicted).all():
            raise ValueError(
                f"predict(X) has no finite mean for some rows with {self.loss_!r}, so that there "
                "is no R^2; score_samples(X, y) has log densities of all losses"
            )
        n, weights = len(predicted), None
        if sample_weight is not None:
            weights = _checks.array("sample_weight", sample_weight, shape=(n,))
            if not (weights >= 0.0).all() or not weights.any():
                raise ValueError(
                    f"sample_weight holds numbers from {weights.min():g} to {weights.max():g}; "
                    "allowed: numbers >= 0, some of them > 0"
                )
        if _is_pair(y):
            y, share = self.loss_.outcomes(self.loss_.responses("y", y, n))
            if share is not None:
                weights = share if weights is None else share * weights
        return float(r2_score(y, predicted, sample_weight=weights))

    def score_samples(
        self, X: ArrayLike, y: ArrayLike | None = None, offset: ArrayLike | None = None
    ) -> Array:
        """Log predictive density, or probability, of y: integrated over the posterior.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.
        y : array_like of shape (n,) or (n, 2), optional
            As in ``fit``. By default the predictive medians.
        offset : array_like of shape (n,), default=0
            As in ``fit``.

        Returns
        -------
        ndarray of shape (n,)
        """
        parts = self._parts(self._rows(X), offset)
        if y is None:
            y = parts.quantile(0.5)
        return parts.log_predictive(self.loss_.responses("y", y, len(parts.latents[0][0])))

    def sample_y(
        self,
        X: ArrayLike,
        n_samples: int = 1,
        random_state: Seed = 0,
        offset: ArrayLike | None = None,
    ) -> Array:
        """Draw y: those of one column come from one draw of the model.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.
        n_samples : int, default=1
            Draws per row.
        random_state : int, RandomState or None, default=0
            As in scikit-learn, a seed or a generator. None draws afresh.
        offset : array_like of shape (n,), default=0
            As in ``fit``.

        Returns
        -------
        ndarray of shape (n, n_samples)
        """
        size = _checks.integer("n_samples", n_samples, least=0)
        rng = np.random.default_rng(seed_of_draws(random_state))
        return self._draws(self._rows(X), size, rng, offset).T


def _is_pair(y: ArrayLike) -> bool:
    """Whether y has two columns."""
    try:
        shape = np.asarray(y).shape
    except ValueError:  # rows of several lengths
        return False
    return len(shape) == 2 and shape[1] == 2


def loss_of_numbers(given: LossGiven, y: ArrayLike) -> Loss:
    """The loss of a regressor. Those of labels, and of several latent values, are refused."""
    loss = loss_at_door(given, NUMBERS, y)
    if loss.by_margin or isinstance(loss, Multiclass):
        raise ValueError(
            f"loss is {loss!r}, whose y are labels; allowed in a regressor: a loss of other y, as "
            "'gaussian'; LinearClassifier and GPClassifier take labels"
        )
    if loss.latents != 1:
        raise ValueError(
            f"loss is {loss!r}, which has {loss.latents} latent values per row; allowed in a "
            "regressor: a loss of one; epfast.fit_linear and epfast.fit_gp take the others"
        )
    return loss
