"""The just-in-time loop: a learned operator, which asks its oracle where it is unsure."""

from __future__ import annotations

import copy
import logging
import math
import os
from collections import Counter
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from epfast import _checks, schemes
from epfast._arrays import Array
from epfast._core.just_in_time import JustInTime
from epfast.inference.files import write
from epfast.operators import files
from epfast.operators.answers import Answer, Oracle
from epfast.operators.learners import PAPER_NOISE, Calibration, finite, learner_of
from epfast.operators.messages import KINDS
from epfast.operators.oracles import as_oracle
from epfast.operators.records import Refit, StoredTuple, stacked
from epfast.operators.settings import Settings
from epfast.schemes import Scheme

logger = logging.getLogger(__name__)

#: widths are chosen anew when there are so many times the tuples of the last time. With noise
GROWTH, WITH_NOISE = 1.22, 1.5
#: standard deviation of log Z that is as good as one of the other targets
LOG_Z = 3.0

#: what decides: the tolerance. Nothing, the oracle is always asked
JUST_IN_TIME, ORACLE_ALONE = 0, 1
#: how a visit ends: by the model. By the oracle, where the model is unsure, or to audit it
SURE, UNSURE, AUDIT = -1, 0, 1


def _row(data: Array | None, i: int) -> Array:
    return np.empty(0) if data is None else data[i]


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
        Of the factor whose messages these are.
    width : float, optional
        Of two-stage features: factor of the squared widths of appendix A. By default 1. The
        authors' program has 0.5.

    Attributes
    ----------
    calls, visits, refused, audits : int
        Questions to the oracle. Messages asked for. Refusals of the oracle. Audits.
    history : list of Refit

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

    def __init__(
        self,
        oracle: Any,
        inputs: Any = ("gaussian",),
        output: int | tuple[int, ...] = 0,
        tolerance: float = 0.03,
        features: Any = "dictionary",
        batch: int = 32,
        cap: int = 256,
        audit: float = 1 / 256,
        targets: str = "site",
        seed: int = 0,
        *,
        data_width: int = 0,
        threshold: float | None = None,
        power: float = 1.0,
        width: float | None = None,
    ) -> None:
        messages = inputs, output, tolerance, features, batch, cap, audit, targets, seed
        self.settings = Settings(*messages, data_width, threshold, power, width)
        #: what gives true messages. A scheme until the loss is known
        self.oracle: Any = oracle
        if isinstance(oracle, str):
            _checks.choice("oracle", oracle, tuple(schemes.NAMED))
        if not isinstance(oracle, str | Scheme):
            self.oracle = as_oracle(oracle, self.settings.inputs, self.settings.output)
        self.learner = learner_of(self.settings)
        self.calibration: Calibration | None = None
        #: tuples that the oracle has answered
        self.store: list[StoredTuple] = []
        self.history: list[Refit] = []
        #: of each audit the largest error of the targets that decide, over its predicted sd, and
        #: whether it is above the tolerance
        self.audited: list[tuple[float, bool]] = []
        #: how often the oracle refused, by the reason
        self.refusals: Counter[str] = Counter()
        self.core = self._empty_core()

    def _empty_core(self) -> JustInTime:
        """Its decisions, before the first visit."""
        mine = self.settings
        tolerance = mine.tolerance
        if mine.threshold is not None:
            # that of the paper is on the variance with its noise, the core's without
            tolerance = math.sqrt(max(math.exp(mine.threshold) - PAPER_NOISE, 1e-300))
        return JustInTime(
            mine.n_targets, tolerance=tolerance, audit=mine.audit, seed=mine.seed, mode=JUST_IN_TIME
        )

    def __repr__(self) -> str:
        return (
            f"Operator({self.oracle!r}, inputs={self.settings.inputs}, {self.calls} calls in "
            f"{self.visits} visits)"
        )

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
        level = _checks.number("level", level, above=0.0)
        if not level < 1.0:
            raise ValueError(f"level is {level:g}; allowed: a probability below 1")
        n, k = len(self.audited), sum(wrong for _, wrong in self.audited)
        return 1.0 if k == n else float(special.betaincinv(k + 1, n - k, level))

    # ---- messages ----

    def project(self, messages: ArrayLike, data: ArrayLike | None = None) -> Array:
        """Projected beliefs of the output variables, learning on the way.

        Parameters
        ----------
        messages : array_like of shape (n, 2 c)
            Of each of the c inputs two numbers: mean and variance, shape and rate, or alpha and
            beta.
        data : array_like of shape (n,) or (n, q), optional
            What is observed.

        Returns
        -------
        ndarray of shape (n, 2 outputs)
            In the same numbers. NaN where the oracle refuses. Natural parameters less those of the
            incoming message are those of the outgoing one.
        """
        parts, given = self.settings.messages(messages, data)
        targets, _ = self.targets(parts, given)
        return self.settings.beliefs(parts, targets)

    def predict(self, messages: ArrayLike, data: ArrayLike | None = None) -> tuple[Array, Array]:
        """Targets and their standard deviations, (n, T) each, without the oracle. Nothing changes.

        Parameters are those of :meth:`project`. Of each output the two targets, then log Z.
        """
        parts, given = self.settings.messages(messages, data)
        x = finite(self.learner.coordinates(parts, given))
        if self.calibration is None:
            unknown = np.full((len(x), self.settings.n_targets), np.inf)
            return np.full_like(unknown, np.nan), unknown
        raw, spread = self.learner.model.predict(x)
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
            Of each output the two targets, then log Z.
        sd : array_like of shape (n, T), default=0
            Their standard errors.
        """
        parts, given = self.settings.messages(messages, data)
        n, T = len(parts[0]), self.settings.n_targets
        known = _checks.array("targets", targets, shape=(n, T))
        errors = np.zeros((n, T)) if sd is None else _checks.array("sd", sd, shape=(n, T))
        if not (errors >= 0.0).all():
            raise ValueError(f"sd holds {errors.min():g}; allowed: numbers >= 0")
        x = finite(self.learner.coordinates(parts, given))
        for i in range(n):
            self._take(x[i], tuple(p[i] for p in parts), _row(given, i), known[i], errors[i])

    def targets(
        self, messages: tuple[Array, ...], data: Array | None
    ) -> tuple[Array, NDArray[np.intp]]:
        """Targets (n, T) of checked messages, just in time, and reasons of refusals (n,)."""
        x = self.learner.coordinates(messages, data)
        found = np.empty((len(x), self.settings.n_targets))
        reason = np.zeros(len(x), dtype=np.intp)
        first = 0
        while True:
            i, kind = self.core.run(x, first, found)
            if kind == SURE:
                return found, reason
            row = tuple(p[i : i + 1] for p in messages)
            of_row = None if data is None else data[i : i + 1]
            predicted = None if np.isnan(found[i, 0]) else found[i].copy()
            answer = self.ask(row, of_row, x[i], predicted, kind)
            reason[i] = answer.reason[0]
            found[i] = np.nan if reason[i] else self.targets_of(row, answer)[0]
            first = i + 1

    def targets_of(self, messages: tuple[Array, ...], answer: Answer) -> Array:
        """The targets of an oracle's answer, (n, T)."""
        parts = []
        for j, place in enumerate(self.settings.output):
            belief = answer.belief[:, 2 * j : 2 * j + 2]
            mean, variance = belief.T
            if self.settings.targets == "belief":
                parts.append(np.stack([mean, np.log(variance)], axis=1))
            elif self.settings.targets == "moments":
                parts.append(np.stack([mean, variance + mean**2], axis=1))
            else:
                parts.append(KINDS[self.settings.inputs[place]].targets(messages[place], belief))
        log_z = answer.log_z if self.oracle.has_log_z else np.zeros_like(answer.log_z)
        return np.concatenate([*parts, log_z[:, None]], axis=1)

    # ---- the oracle ----

    def ask(
        self,
        messages: tuple[Array, ...],
        data: Array | None,
        x: Array,
        predicted: Array | None,
        kind: int,
    ) -> Answer:
        """Ask the oracle about one tuple, and learn from what it says.

        x: its coordinates (k,); predicted: targets (T,) by the model; kind: UNSURE or AUDIT.
        """
        oracle = self._known_oracle()
        answer = oracle.answer(np.concatenate(messages, axis=1), data, self.settings.power)
        if answer.reason[0]:
            self.refusals[oracle.reasons[answer.reason[0]]] += 1
            if self.refused >= self.settings.batch and not self.store:
                ((reason, _),) = self.refusals.most_common(1)
                raise ValueError(
                    f"the oracle refused the first {self.refused} messages, most often: {reason}; "
                    "allowed: one that answers"
                )
            return answer
        targets = self.targets_of(messages, answer)[0]
        errors = np.where(np.isnan(answer.sd[0]), 0.0, answer.sd[0])  # of log Z, if there is none
        if self.settings.targets != "site":  # from units of the cavity
            for j, place in enumerate(self.settings.output):
                errors[2 * j] *= np.sqrt(messages[place][0, 1])
                if self.settings.targets == "moments":
                    mean, variance = answer.belief[0, 2 * j : 2 * j + 2]
                    errors[2 * j + 1] = np.hypot(
                        2.0 * mean * errors[2 * j], variance * errors[2 * j + 1]
                    )
        if self.core.mode == ORACLE_ALONE:
            return answer
        if kind == AUDIT and predicted is not None and self._agrees(x, targets, errors, predicted):
            # nothing to learn, and sweeps converge: the answer is what it would have been
            return self.answer_of(messages, predicted)
        if np.isfinite(x).all():
            self._take(x, tuple(p[0] for p in messages), _row(data, 0), targets, errors)
        return answer

    def _known_oracle(self) -> Oracle:
        if not isinstance(self.oracle, Oracle):
            raise ValueError(
                f"the oracle is {self.oracle!r}, a scheme without a loss; allowed for messages: "
                f"epfast.operators.SiteOracle(loss, {self.oracle!r}), or another Oracle"
            )
        return self.oracle

    def answer_of(self, messages: tuple[Array, ...], targets: Array) -> Answer:
        """An answer with these targets (T,), of one tuple."""
        rows = targets[None]
        beliefs = self.settings.beliefs(messages, rows)
        return Answer(beliefs, rows[:, -1], np.zeros_like(rows), np.zeros(1, np.intp))

    def _agrees(self, x: Array, targets: Array, errors: Array, predicted: Array) -> bool:
        """Record an audit: whether the operator was right, but for the oracle's own errors."""
        assert self.calibration is not None
        _, spread = self.learner.model.predict(x[None])
        sd = np.hypot(self.calibration.sd(spread)[0], errors)[:-1]
        away = np.abs(targets - predicted)[:-1]
        tolerance = np.hypot(self.settings.tolerance, 2.0 * errors[:-1])
        with np.errstate(divide="ignore", invalid="ignore"):
            worst = float(np.where(away > 0.0, away / sd, 0.0).max())
        wrong = bool((away > tolerance).any())
        self.audited.append((worst, wrong))
        return not wrong

    def _take(
        self, x: Array, messages: tuple[Array, ...], data: Array, targets: Array, errors: Array
    ) -> None:
        """Learn one tuple. Refit where the store has grown enough since the last time."""
        # one step, so that an interrupt leaves a whole tuple or none
        self.store.append(StoredTuple(x.copy(), np.concatenate(messages), data, targets, errors))
        n, known = len(self.store), self.calibration
        if known is not None:
            raw = (targets - known.offset) / known.scale
            self.learner.model.update(x, raw, known.noise_of(errors))
        growth = WITH_NOISE if errors.any() else GROWTH
        enough = growth * self.history[-1].tuples if self.history else self.settings.batch
        if n >= enough and (known is None or self.settings.refits):
            self.refit()

    def refit(self) -> None:
        """Fit widths, noise and weights to all tuples anew. O(n r^2)."""
        if not self.store:
            return
        tuples = stacked(self.store)
        found = self.learner.refit(tuples)
        if found is None:
            logger.info("%d tuples have no widths: the oracle is asked on", len(tuples.x))
            return
        self.calibration = found
        self._install()
        model = self.learner.model
        inflation = float(found.inflation[:-1].max())
        self.history.append(Refit(len(tuples.x), self.visits, model.used, inflation))
        logger.info("refit on %d tuples, %d features", len(tuples.x), model.used)

    def _install(self) -> None:
        """Tell the core of another model."""
        assert self.calibration is not None
        known = self.calibration
        amplitude = known.scale**2 * known.amplitude
        # log Z may be off by more: it moves no belief
        amplitude[-1] *= 0.0 if self.settings.threshold is not None else LOG_Z**-2
        self.core.calibrate(known.scale, known.offset, amplitude, known.inflation)
        self.core.model = self.learner.model

    # ---- copies and files ----
    def copy(self) -> Operator:
        """The same, apart from this one: it learns by itself. The oracle is shared."""
        result = Operator.__new__(Operator)
        result.__setstate__(self.__getstate__())
        return result

    def asking(self, oracle: Oracle, **changes: Any) -> Operator:
        """An empty operator with these settings, but for changes, and another oracle."""
        return Operator(oracle, **{**asdict(self.settings), **changes})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file for :func:`epfast.load`: all of the state but the oracle's functions.

        Parameters
        ----------
        path : path-like
            The ``.npz`` file.
        """
        write(path, *files.contents(self.__getstate__()))

    @classmethod
    def restore(cls, arrays: dict[str, Array], header: dict[str, Any], oracle: Any) -> Operator:
        """The operator that :meth:`save` wrote; oracle: None where the file describes it."""
        result = cls.__new__(cls)
        result.__setstate__(files.state(arrays, header, oracle))
        return result

    def __getstate__(self) -> dict[str, Any]:
        kept = ("settings", "calibration", "store", "history", "audited", "refusals")
        return {
            **{name: copy.copy(getattr(self, name)) for name in kept},
            "oracle": self.oracle,
            "arrays": self.learner.arrays(),
            "counts": (self.core.visits, self.core.calls, self.core.audits),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        arrays, counts = state["arrays"], state["counts"]
        vars(self).update({k: v for k, v in state.items() if k not in ("arrays", "counts")})
        self.learner = learner_of(self.settings)
        self.learner.restore(arrays)
        self.core = self._empty_core()
        self.core.visits, self.core.calls, self.core.audits = counts
        if self.calibration is not None:
            self._install()
