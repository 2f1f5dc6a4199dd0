"""The just-in-time loop: a learned operator, which asks its oracle where it is unsure."""

from __future__ import annotations

import copy
import logging
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import NamedTuple, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from epfast import _checks, schemes
from epfast._arrays import Array, Given
from epfast._core.just_in_time import TARGETS, JustInTime
from epfast.inference.files import Setting, write
from epfast.inference.report import checked_level
from epfast.operators.learners import (
    PAPER_NOISE,
    Calibration,
    DictionaryLearner,
    FourierLearner,
)
from epfast.operators.messages import KINDS, Messages, check_data, check_messages, check_places
from epfast.operators.oracles import Answer, Oracle, SiteOracle
from epfast.operators.resolve import OracleGiven, as_oracle
from epfast.schemes import Scheme

logger = logging.getLogger(__name__)

#: widths are chosen anew when the tuples are so many times those of the last fit. The second
#: number is for answers with errors
GROWTH, WITH_NOISE = 1.22, 1.5
#: standard deviation of log Z that is as good as one of the other targets
LOG_Z = 3.0
#: share of messages beyond the tolerance above which a fit warns, where the audits show it
TOO_MANY = 0.05
#: standard deviation that a tuple nearby may leave unknown, over the tolerance
NEARER = 0.03
#: limits of the core: targets, inputs and columns of data
MOST_TARGETS, MOST_COLUMNS = 16, 15
#: the largest size of a target, whose square is a double
LARGEST = 1e150
#: the threshold of the paper, in place of the tolerance. It leaves with the paper's mode
THRESHOLD = -8.5


class Settings(TypedDict, total=False):
    """Arguments of an :class:`Operator` but the oracle."""

    inputs: tuple[str, ...]
    output: int | Sequence[int]
    tolerance: float
    features: str | tuple[str, int, int]
    batch: int
    cap: int
    audit: float
    targets: str
    seed: int
    data_width: int
    threshold: float | None
    power: float
    width: float | None


#: settings of the paper's online experiments, which leave the library with the paper's mode
PAPER = Settings(
    features=("fourier", 300, 500),
    targets="belief",
    batch=300,
    threshold=THRESHOLD,
    audit=0.0,
)

#: mode of the core in which the oracle is always asked
ORACLE_ALONE = 1
#: how a visit ends: the model answers. Or the oracle is asked, as the model is unsure or audited
SURE, UNSURE, AUDIT = -1, 0, 1


class MisfitError(ValueError):
    """An argument of ``load`` that does not go with the file, which is in order."""


class Refit(NamedTuple):
    """What an operator was when widths and weights were fitted anew."""

    #: tuples in the store
    tuples: int
    visits: int
    #: features in use
    features: int
    #: by which predicted variances were too small, the largest of the targets
    inflation: float


class StoredTuple(NamedTuple):
    """A tuple that the oracle has answered."""

    #: coordinates, (k,)
    x: Array
    #: usual parameters, (2 c,)
    messages: Array
    #: (data_width,)
    data: Array
    #: (T,)
    targets: Array
    #: their standard errors, (T,)
    errors: Array


class SavedHeader(TypedDict):
    """What :meth:`Operator.save` writes beside the arrays."""

    #: in words
    oracle: str
    settings: Settings
    #: visits, calls and draws for audits
    counts: tuple[int, int, int]
    #: visits at each refit
    refits: list[int]
    audited: list[tuple[float, bool]]
    refusals: dict[str, int]


@dataclass(eq=False, repr=False)
class Operator:
    """Messages of a factor, learned from an oracle just in time (Jitkrittum et al. 2015).

    The first messages are the oracle's. From then on the operator predicts the message, with an
    uncertainty. Where that is above the tolerance it asks the oracle, returns that answer and
    learns from it. It serves all factors of its kind, sweeps and data sets, one thread at a time.

    Parameters
    ----------
    oracle : Oracle, Scheme, SampledFactor or callable
        What gives true messages: see :class:`epfast.SampledFactor`, and :mod:`epfast.operators`.
        The name of a scheme takes the loss of the fit.
    inputs : tuple of {"gaussian", "gamma", "beta"}, default=("gaussian",)
        Families of the incoming messages.
    output : int or tuple of int, default=0
        The place among the inputs of the variable that the messages go to. Several are learned
        from the same answers, with the same features.
    tolerance : float, default=0.03
        > 0. Largest standard deviation of a prediction that is not checked: of the shift of the
        belief's centre, in standard deviations of the cavity, and of the log ratio of its variance
        (of shapes, for others) to that of the cavity.
    features : "dictionary" or ("fourier", d_in, d_out), default="dictionary"
        A dictionary of asked tuples in (mean, log variance), refitted when their number has grown
        by a fifth. Or the two-stage random features of the paper, of fixed widths, which ask by its
        threshold.
    batch : int, default=32
        >= 4. So many first messages are the oracle's.
    cap : int, default=256
        Most tuples in the dictionary, >= batch. Other features have none.
    audit : float
        Probability, in [0, 1], with which the oracle is asked where the operator is sure.
    targets : {"site", "belief", "moments"}, default="site"
        What is learned: what the factor adds to the cavity, small and smooth. Or the mean and log
        variance of the belief, as in the authors' program. Or E x and E x^2, as in the paper
        (section 3.3).
    seed : int, default=0
    data_width : int, default=0
        How many columns of the data tell factors apart. They enter as arcsinh. 0: factors without
        data, and losses of the margin, whose label is folded into h. The oracle sees further
        columns, too.
    threshold : float, optional
        In place of the tolerance the paper's rule: the oracle is asked where the log of the
        predicted variance is above it, in the targets' own units. -8.5 for two-stage features.
    power : float, default=1.0
        Power of the factor whose messages these are.
    width : float, optional
        Factor of the squared widths of appendix A, for two-stage features. By default it is 1.
        The authors' program has 0.5.

    Attributes
    ----------
    calls, visits, refused, audits : int
        Questions to the oracle. Messages asked for. Refusals of the oracle. Audits.
    history : list of Refit
    store : list of StoredTuple
        What the oracle has answered, with standard errors: ``x``, ``messages``, ``data``,
        ``targets``, ``errors``.

    Notes
    -----
    A prediction costs O(r^2) for r tuples in the dictionary (about a microsecond for 100), an
    update the same, a refit O(n r^2). Where closed forms or compiled quadrature exist, those are
    10 to 20 times faster: operators pay for losses in Python, sampled factors and simulators.
    Decisions are taken message by message in visiting order.

    References
    ----------
    Jitkrittum, Gretton, Heess, Eslami, Lakshminarayanan, Sejdinovic & Szabo (2015), Kernel-based
    just-in-time learning for passing expectation propagation messages.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> op = epfast.Operator("exact", tolerance=0.01)
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(400, 3))
    >>> y = np.where(X @ [1.0, -2.0, 0.0] + rng.logistic(size=400) > 0, 1, -1)
    >>> loss = epfast.CustomLoss(lambda m: np.logaddexp(0.0, -m))
    >>> post = epfast.fit_linear(X, y, loss=loss, scheme=epfast.Learned(op))
    >>> post.operator.visits > 10 * post.operator.calls
    True
    """

    oracle: OracleGiven
    inputs: tuple[str, ...] = ("gaussian",)
    output: int | Sequence[int] = 0
    tolerance: float = 0.03
    features: str | tuple[str, int, int] = "dictionary"
    batch: int = 32
    cap: int = 256
    audit: float = 1 / 256
    targets: str = "site"
    seed: int = 0
    _: KW_ONLY
    data_width: int = 0
    threshold: float | None = None
    power: float = 1.0
    width: float | None = None

    def __post_init__(self) -> None:
        self._check_settings()
        if isinstance(self.oracle, str):
            _checks.choice("oracle", self.oracle, tuple(schemes.NAMED))
        #: what gives true messages. A scheme until the loss is known, see ``asked``
        if not isinstance(self.oracle, str | Scheme):
            self.oracle = as_oracle(self.oracle, self.inputs, self.places)
        shared = self.inputs, self.data_width, self.seed
        # the variance that a dictionary may leave unexplained is nothing beside the tolerance
        near = float(np.clip((NEARER * self.tolerance) ** 2, 1e-12, 1e-6))
        self.learner: DictionaryLearner | FourierLearner = (
            DictionaryLearner(*shared, self.cap, near)
            if isinstance(self.features, str)
            # of the paper's mode, which leaves the library
            else FourierLearner(*shared, *self.features[1:], self.width or 1.0)
        )
        self.calibration: Calibration | None = None
        #: tuples that the oracle has answered
        self.store: list[StoredTuple] = []
        self.history: list[Refit] = []
        #: for each audit the largest error of the targets that decide over its predicted sd, and
        #: whether an error is above the tolerance
        self.audited: list[tuple[float, bool]] = []
        #: how often the oracle refused, by the reason
        self.refusals: Counter[str] = Counter()
        tolerance = self.tolerance
        if self.threshold is not None:
            # the paper's threshold is on the variance with its noise, the core's without
            tolerance = math.sqrt(max(math.exp(self.threshold) - PAPER_NOISE, 1e-300))
        #: its decisions and its model
        self.core = JustInTime(
            self.n_targets, tolerance=tolerance, audit=self.audit, seed=self.seed
        )

    def _check_settings(self) -> None:
        #: output as a tuple
        self.places: tuple[int, ...]
        self.inputs, self.places = check_places(self.inputs, self.output, "output")
        self.output = self.places
        self.tolerance = _checks.number("tolerance", self.tolerance, above=0.0, most=1e100)
        self.features = check_features(self.features)
        fourier = self.features != "dictionary"
        self.batch = _checks.integer("batch", self.batch, least=4)
        # random features say their number, and the cap is not used
        least = 4 if fourier else self.batch
        self.cap = _checks.integer("cap", self.cap, least=least, most=1 << 15)
        self.audit = _checks.number("audit", self.audit, least=0.0, most=1.0)
        _checks.choice("targets", self.targets, TARGETS)
        self.seed = _checks.integer("seed", self.seed, least=0, most=2**63 - 1)
        self.data_width = _checks.integer("data_width", self.data_width, least=0)
        self.power = _checks.number("power", self.power, above=0.0)
        if self.threshold is not None or fourier:
            given = THRESHOLD if self.threshold is None else self.threshold
            self.threshold = _checks.number("threshold", given, least=-500.0, most=500.0)
        if self.width is not None:
            self.width = _checks.number("width", self.width, above=0.0)
        if self.n_targets > MOST_TARGETS:
            raise ValueError(
                f"output is {self.output}; allowed: at most {(MOST_TARGETS - 1) // 2} places"
            )
        if len(self.inputs) + self.data_width > MOST_COLUMNS:
            raise ValueError(
                f"inputs and data_width are {len(self.inputs)} and {self.data_width}; allowed: "
                f"{MOST_COLUMNS} together"
            )
        if self.targets != "site" and set(self.inputs) != {"gaussian"}:
            raise ValueError(
                f"targets is {self.targets!r} with inputs {self.inputs}; allowed with it: Gaussian "
                "ones"
            )
        if self.width is not None and not fourier:
            raise ValueError(
                f"width is {self.width:g} with features='dictionary', whose widths are chosen by "
                "evidence; allowed: None"
            )

    def __repr__(self) -> str:
        return (
            f"Operator({self.oracle!r}, inputs={self.inputs}, {self.calls} calls in "
            f"{self.visits} visits)"
        )

    @property
    def settings(self) -> Mapping[str, Setting]:
        """All arguments but the oracle, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)[1:]}

    @property
    def asked(self) -> Oracle:
        """The oracle. A scheme without a loss is none."""
        return as_oracle(self.oracle, self.inputs, self.places)

    @property
    def n_targets(self) -> int:
        """Targets: two for each output, and log Z."""
        return 2 * len(self.places) + 1

    # ---- what it has done ----

    @property
    def visits(self) -> int:
        """Messages asked for."""
        return int(self.core.visits)

    @property
    def calls(self) -> int:
        """Questions to the oracle, audits included."""
        return int(self.core.calls)

    @property
    def audits(self) -> int:
        """Questions to the oracle where the operator was sure."""
        return len(self.audited)

    @property
    def refused(self) -> int:
        """Messages that the oracle refused."""
        return self.refusals.total()

    def error_bound(self, level: float = 0.95) -> float:
        """Upper limit of the share of messages that are beyond the tolerance, unasked.

        Clopper and Pearson's, from the audits: at most this with probability ``level``. 1 without
        audits. With few audits it is large, whatever they found: 3 / n for n right ones.
        """
        level = checked_level(level)
        n, k = len(self.audited), sum(wrong for _, wrong in self.audited)
        return 1.0 if k == n else float(special.betaincinv(k + 1, n - k, level))

    def warning(self) -> str:
        """What a fit warns of: audits that were wrong. Empty if nothing."""
        n, wrong = len(self.audited), sum(beyond for _, beyond in self.audited)
        # Clopper and Pearson's lower limit, at 95 %
        if wrong and special.betaincinv(wrong, n - wrong + 1, 0.05) > TOO_MANY:
            return (
                f"{wrong} of {n} audited messages of the operator were beyond its tolerance; lower "
                "it, or audit more often (audit=)"
            )
        return ""

    # ---- messages ----

    def project(self, messages: ArrayLike, data: ArrayLike | None = None) -> Array:
        """Projected beliefs of the output variables, learning on the way.

        Parameters
        ----------
        messages : array_like of shape (n, 2 c)
            Two numbers for each of the c inputs: mean and variance, shape and rate, or alpha and
            beta.
        data : array_like of shape (n,) or (n, q), optional
            What is observed.

        Returns
        -------
        ndarray of shape (n, 2 outputs)
            In the same numbers. NaN where the oracle refuses. Natural parameters less those of the
            incoming message are those of the outgoing one.
        """
        parts, given = self._checked(messages, data)
        targets, _ = self.visit(parts, given)
        return self.beliefs(parts, targets)

    def predict(self, messages: ArrayLike, data: ArrayLike | None = None) -> tuple[Array, Array]:
        """Targets and their standard deviations, (n, T) each, without the oracle. Nothing changes.

        Parameters are those of :meth:`project`. Columns are the two targets of each output, then
        log Z.
        """
        x = self._coordinates(*self._checked(messages, data))
        if self.calibration is None:
            unknown = np.full((len(x), self.n_targets), np.inf)
            return np.full_like(unknown, np.nan), unknown
        raw, spread = self.core.model.predict(x)
        return self.calibration.targets(raw), self.calibration.sd(spread)

    def learn(
        self,
        messages: ArrayLike,
        targets: ArrayLike,
        sd: ArrayLike | None = None,
        data: ArrayLike | None = None,
    ) -> None:
        """Take in tuples whose targets are known.

        Parameters
        ----------
        messages, data
            As in :meth:`project`.
        targets : array_like of shape (n, T)
            The two targets of each output, then log Z.
        sd : array_like of shape (n, T), default=0
            Their standard errors.
        """
        parts, given = self._checked(messages, data)
        self._learn(parts, given, self._coordinates(parts, given), targets, sd)

    def _learn(
        self, parts: tuple[Array, ...], given: Array | None, x: Array, targets: ArrayLike, sd: Given
    ) -> None:
        """Take in tuples with the coordinates x (n, k)."""
        n, T = len(x), self.n_targets
        values = _checks.array("targets", targets, shape=(n, T))
        errors = np.zeros((n, T)) if sd is None else _checks.array("sd", sd, shape=(n, T))
        if not (errors >= 0.0).all():
            raise ValueError(f"sd holds {errors.min():g}; allowed: numbers >= 0")
        for name, numbers in (("targets", values), ("sd", errors)):
            largest = float(np.abs(numbers).max(initial=0.0))
            if largest > LARGEST:
                raise ValueError(f"{name} holds {largest:g}; allowed: sizes up to {LARGEST:g}")
        for i in range(n):
            row = tuple(p[i : i + 1] for p in parts)
            self._take(x[i], row, _row(given, i), values[i], errors[i])

    def _checked(self, messages: ArrayLike, data: Given) -> tuple[tuple[Array, ...], Array | None]:
        """Checked messages by input, and data (n, q) where the operator takes some."""
        parts = check_messages("messages", messages, self.inputs)
        given = check_data("data", data, len(parts[0]))
        width = 0 if given is None else given.shape[1]
        if width < self.data_width or (width and not self.data_width):
            raise ValueError(
                f"data has {width} columns; allowed for an operator with data_width="
                f"{self.data_width}: "
                + (f"{self.data_width} or more" if self.data_width else "None")
            )
        if given is not None and not np.isfinite(given[:, : self.data_width]).all():
            raise ValueError("data holds infinity; allowed: finite numbers")
        return parts, given

    def _coordinates(self, messages: tuple[Array, ...], data: Array | None) -> Array:
        """Coordinates, checked: those of extreme messages overflow."""
        x = self.learner.coordinates(messages, data)
        return _checks.array("the coordinates of messages", x, shape=x.shape)

    def visit(
        self, messages: tuple[Array, ...], data: Array | None
    ) -> tuple[Array, NDArray[np.intp]]:
        """Targets (n, T) of checked messages, just in time, and reasons of refusals (n,)."""
        x = self.learner.coordinates(messages, data)
        targets = np.empty((len(x), self.n_targets))
        reason = np.zeros(len(x), dtype=np.intp)
        first = 0
        while True:
            i, kind = self.core.run(x, first, targets)
            if kind == SURE:
                return targets, reason
            row = tuple(p[i : i + 1] for p in messages)
            predicted = None if np.isnan(targets[i, 0]) else targets[i].copy()
            targets[i], _, reason[i] = self.ask(row, _row(data, i), x[i], predicted, kind)
            first = i + 1

    def _outputs(self, *rows: Array) -> Iterator[tuple[Messages, int, list[Array]]]:
        """The family and the place of each output, and its two columns of the rows."""
        for j, place in enumerate(self.places):
            yield KINDS[self.inputs[place]], place, [row[:, 2 * j : 2 * j + 2] for row in rows]

    def beliefs(self, messages: tuple[Array, ...], targets: Array) -> Array:
        """Usual parameters of the beliefs that targets mean, (n, 2 outputs)."""
        parts = []
        for kind, place, (pair,) in self._outputs(targets):
            if self.targets == "site":
                parts.append(kind.belief(messages[place], pair))
                continue
            mean, second = pair.T
            variance = np.exp(second) if self.targets == "belief" else second - mean**2
            parts.append(np.stack([mean, variance], axis=1))
        return np.concatenate(parts, axis=1)

    def _learnable(self, messages: tuple[Array, ...], answer: Answer) -> tuple[Array, Array]:
        """The targets of an oracle's answer, and their standard errors, (n, T).

        Beliefs and moments as targets are of the paper's mode, and leave with it.
        """
        # an oracle without log Z has no error of it
        parts, errors = [], np.where(np.isnan(answer.sd), 0.0, answer.sd)
        for kind, place, (belief, error) in self._outputs(answer.belief, errors):
            mean, variance = belief.T
            if self.targets == "site":
                parts.append(kind.targets(messages[place], belief))
                continue
            error[:, 0] *= np.sqrt(messages[place][:, 1])  # from units of the cavity
            second = np.log(variance)
            if self.targets == "moments":
                second = variance + mean**2
                error[:, 1] = np.hypot(2.0 * mean * error[:, 0], variance * error[:, 1])
            parts.append(np.stack([mean, second], axis=1))
        log_z = answer.log_z if self.asked.has_log_z else np.zeros_like(answer.log_z)
        return np.concatenate([*parts, log_z[:, None]], axis=1), errors

    # ---- the oracle ----

    def ask(
        self,
        messages: tuple[Array, ...],
        data: Array | None,
        x: Array,
        predicted: Array | None,
        kind: int,
    ) -> tuple[Array, Array, int]:
        """Ask the oracle about one tuple, and learn from what it says.

        x: its coordinates (k,); predicted: targets (T,) by the model; kind: UNSURE or AUDIT. The
        answer is targets (T,), beliefs (2 outputs,), and 0 or the reason of a refusal.
        """
        oracle = self.asked
        answer = oracle.answer(np.concatenate(messages, axis=1), data, self.power)
        belief, reason = answer.belief[0], int(answer.reason[0])
        if reason:
            self.refusals[oracle.reasons[reason]] += 1
            if self.refused >= self.batch and not self.store:
                ((common, _),) = self.refusals.most_common(1)
                raise ValueError(
                    f"the oracle refused the first {self.refused} messages, most often: {common}; "
                    "allowed: one that answers"
                )
            return np.full(self.n_targets, np.nan), belief, reason
        targets, errors = (rows[0] for rows in self._learnable(messages, answer))
        if self.core.mode == ORACLE_ALONE:
            return targets, belief, 0
        if kind == AUDIT and predicted is not None and self._agrees(x, targets, errors, predicted):
            # nothing to learn, and sweeps converge: the answer is what it would have been
            return predicted, self.beliefs(messages, predicted[None])[0], 0
        if np.isfinite(x).all():
            self._take(x, messages, data, targets, errors)
        return targets, belief, 0

    def _agrees(self, x: Array, targets: Array, errors: Array, predicted: Array) -> bool:
        """Record an audit: whether the operator was right, but for the oracle's own errors."""
        assert self.calibration is not None
        _, spread = self.core.model.predict(x[None])
        sd = np.hypot(self.calibration.sd(spread)[0], errors)[:-1]
        away = np.abs(targets - predicted)[:-1]
        tolerance = np.hypot(self.tolerance, 2.0 * errors[:-1])
        with np.errstate(divide="ignore", invalid="ignore"):
            worst = float(np.where(away > 0.0, away / sd, 0.0).max())
        wrong = bool((away > tolerance).any())
        self.audited.append((worst, wrong))
        return not wrong

    def _take(
        self,
        x: Array,
        messages: tuple[Array, ...],
        data: Array | None,
        targets: Array,
        errors: Array,
    ) -> None:
        """Learn one tuple. Refit where the store has grown enough since the last time."""
        datum = np.empty(0) if data is None else data[0, : self.data_width]
        parameters = np.concatenate(messages, axis=1)[0]
        # one step, so that an interrupt leaves a whole tuple or none
        self.store.append(StoredTuple(x.copy(), parameters, datum, targets, errors))
        n, calibration = len(self.store), self.calibration
        if calibration is not None:
            raw = (targets - calibration.offset) / calibration.scale
            self.core.model.update(x, raw, calibration.noise_of(errors))
        growth = WITH_NOISE if errors.any() else GROWTH
        enough = growth * self.history[-1].tuples if self.history else self.batch
        # the widths of the paper stay
        if n >= enough and (calibration is None or self.threshold is None):
            self._refit()

    def _stored(self, name: str) -> Array:
        """One field of all stored tuples, (n, ...)."""
        return np.array([getattr(row, name) for row in self.store])

    def _refit(self) -> None:
        """Fit widths, noise and weights to all tuples anew. O(n r^2)."""
        n = len(self.store)
        x, targets, errors = map(self._stored, ("x", "targets", "errors"))
        fitted = self.learner.fit(x, targets, errors, self.calibration)
        if fitted is None:
            logger.info("%d tuples have no widths: the oracle is asked on", n)
            return
        model, self.calibration = fitted
        scale, inflation = self.calibration.scale, self.calibration.inflation
        amplitude = scale**2 * self.calibration.amplitude
        # log Z may be off by more: it moves no belief
        amplitude[-1] *= 0.0 if self.threshold is not None else LOG_Z**-2
        self.core.calibrate(scale, self.calibration.offset, amplitude, inflation)
        self.core.model = model
        self.history.append(Refit(n, self.visits, model.used, float(inflation[:-1].max())))
        logger.info("refit on %d tuples, %d features", n, model.used)

    # ---- copies and files ----

    def copy(self) -> Operator:
        """The same, apart from this one: it learns by itself. The oracle is shared."""
        result = copy.copy(self)
        result.core = copy.deepcopy(self.core)
        for name in ("store", "history", "audited", "refusals"):
            setattr(result, name, copy.copy(getattr(self, name)))
        return result

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file for :func:`epfast.load`: all that the oracle has answered, and the settings.

        What the operator has learned from that is learned again when the file is read.

        Parameters
        ----------
        path : path-like
            The ``.npz`` file.
        """
        arrays = {name: self._stored(name) for name in StoredTuple._fields}
        header: dict[str, Setting] = {
            "posterior": "operator",
            "oracle": described(self.oracle),
            "settings": self.settings,
            "counts": [self.visits, self.calls, self.core.audits],
            "refits": [refit.visits for refit in self.history],
            "audited": self.audited,
            "refusals": self.refusals,
        }
        write(path, arrays, header)

    @classmethod
    def restore(
        cls,
        arrays: dict[str, Array],
        header: SavedHeader,
        oracle: OracleGiven | None,
    ) -> Operator:
        """The operator that :meth:`save` wrote; oracle: what it asked."""
        saved = header["oracle"]
        if oracle is None:
            raise MisfitError(f"oracle is None; allowed: the one that the operator asked, {saved}")
        result = cls(oracle, **header["settings"])
        if described(result.oracle) != saved:
            raise MisfitError(
                f"oracle is {result.oracle!r}, and the file is of another; allowed: {saved}"
            )
        if len(arrays["x"]):
            data = arrays["data"] if result.data_width else None
            parts, given = result._checked(arrays["messages"], data)
            result._learn(parts, given, arrays["x"], arrays["targets"], arrays["errors"])
        refits = zip(result.history, header["refits"], strict=True)
        result.history = [refit._replace(visits=visits) for refit, visits in refits]
        result.audited = [(float(worst), bool(wrong)) for worst, wrong in header["audited"]]
        result.refusals = Counter(header["refusals"])
        result.core.visits, result.core.calls, result.core.audits = header["counts"]
        return result


def _row(data: Array | None, i: int) -> Array | None:
    return None if data is None else data[i : i + 1]


def described(oracle: OracleGiven) -> str:
    """An oracle in words, without the addresses of its functions."""
    beta = oracle.loss.beta if isinstance(oracle, SiteOracle) else 1.0
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(oracle)) + f", beta={beta:g}" * (beta != 1.0)


def check_features(value: str | tuple[str, int, int]) -> str | tuple[str, int, int]:
    """The name of the features, or ("fourier", d_in, d_out)."""
    if isinstance(value, str) and value == "dictionary":
        return value
    # a LowLevelCallable is a tuple, too
    if type(value) in (tuple, list) and len(value) == 3 and value[0] == "fourier":
        d_in, d_out = (_checks.integer("features", d, least=1, most=1 << 15) for d in value[1:])
        return "fourier", d_in, d_out
    raise ValueError(f"features is {value!r}; allowed: 'dictionary' or ('fourier', d_in, d_out)")
