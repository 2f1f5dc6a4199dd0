"""What an operator learns with: coordinates of messages, features, and their refit."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from epfast import _checks
from epfast._arrays import Array
from epfast._core.operator import DictionaryModel, FourierModel
from epfast.operators import dictionary
from epfast.operators.dictionary import Store, Widths
from epfast.operators.fourier import ProductFeatures, TwoStage
from epfast.operators.kernels import median_heuristic
from epfast.operators.messages import KINDS
from epfast.operators.patches import Patches
from epfast.operators.regression import Batch, Regression, Standard

#: functions of a datum that tell sites apart, by the numbers that the core knows
TRANSFORMS = ("value", "log1p", "arcsinh", "is_zero")


class Calibration(NamedTuple):
    """Units of the targets and of their predicted variances, (T,) each."""

    offset: Array
    scale: Array
    #: of the standardised targets
    amplitude: Array
    #: by which predicted variances are too small
    inflation: Array
    #: variance of the noise of a tuple over the amplitude
    noise: float

    #: mean square of the standard errors that the noise is the variance of. 0: exact answers
    errors: float

    def noise_of(self, errors: Array) -> float:
        """The variance of the noise of a tuple with these standard errors (T,)."""
        if self.errors == 0.0:
            return self.noise
        return float(self.noise * np.clip((errors[:-1] ** 2).mean() / self.errors, 1e-6, 1e12))

    def targets(self, raw: Array) -> Array:
        """Targets of the model's numbers, (n, T)."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(self.offset + self.scale * raw)

    def sd(self, spread: Array) -> Array:
        """Standard deviations of the targets, (n, T)."""
        with np.errstate(over="ignore", invalid="ignore"):
            variance = np.outer(spread, self.amplitude * self.inflation)
            return np.asarray(self.scale * np.sqrt(np.maximum(variance, 0.0)))


class Transform(NamedTuple):
    """A coordinate of the data."""

    column: int
    name: str

    def of(self, data: Array) -> Array:
        """The coordinate of rows, (n,)."""
        y = data[:, self.column]
        if self.name == "log1p":
            return np.asarray(np.log1p(y))
        if self.name == "arcsinh":
            return np.asarray(np.arcsinh(y))
        return np.asarray((y == 0.0).astype(np.float64)) if self.name == "is_zero" else y


def finite(x: Array) -> Array:
    """Coordinates, checked: those of extreme messages overflow."""
    return _checks.array("the coordinates of messages", x, shape=x.shape)


class Learner(Protocol):
    """Features of messages, and a regression on them."""

    #: the core's. None before the first fit
    model: Any
    #: whether it learns from tuples, which the operator keeps
    keeps: ClassVar[bool]

    @property
    def asked(self) -> int:
        """Questions to the oracle by itself, apart from those of the operator."""

    def coordinates(self, messages: tuple[Array, ...], data: Array | None) -> Array:
        """What the model takes, (n, k)."""

    def refit(self, store: Store) -> Calibration | None:
        """Fit widths, noise and weights anew. None where all tuples are alike, or too far apart.

        store: the coordinates, targets and errors of all tuples.
        """

    def arrays(self) -> dict[str, Any]:
        """All of the state."""

    def restore(self, arrays: dict[str, Any]) -> None:
        """Take the state of :meth:`arrays`, of a learner made with the same numbers."""


class DictionaryLearner:
    """A dictionary of tuples in coordinates without limits."""

    keeps: ClassVar[bool] = True
    asked = 0

    def __init__(
        self,
        inputs: tuple[str, ...],
        transforms: tuple[Transform, ...],
        T: int,
        cap: int,
        near: float,
        seed: int,
    ) -> None:
        self.inputs, self.transforms, self.T = inputs, transforms, T
        self.cap, self.near, self.seed = cap, near, seed
        k = 2 * len(inputs) + len(transforms)
        #: coordinates that share a width, in units of their base: centres, logs, each datum
        centres = [family != "gamma" for family in inputs]
        kinds = [kind for centre in centres for kind in ((0, 1) if centre else (1, 1))]
        self.kinds = np.array(kinds + list(range(2, 2 + len(transforms))))
        self.model = DictionaryModel(k, T, cap, near)
        self.chosen: Widths | None = None

    def coordinates(self, messages: tuple[Array, ...], data: Array | None) -> Array:
        with np.errstate(all="ignore"):  # what is not finite is never sure
            parts = [KINDS[f].coordinates(p) for f, p in zip(self.inputs, messages, strict=True)]
        if self.transforms:
            assert data is not None
            parts.append(np.stack([t.of(data) for t in self.transforms], axis=1))
        return np.ascontiguousarray(np.concatenate(parts, axis=1))

    def base(self, x: Array) -> Array:
        """Units of the widths: how far coordinates of a kind are spread, of logs 1."""
        unit = np.ones(x.shape[1])
        for at in np.flatnonzero(self.kinds == 0):
            # a centre means little beside the width of its own message
            unit[at] = np.sqrt(x[:, at].var() + np.exp(x[:, at + 1]).mean())
        for at in np.flatnonzero(self.kinds >= 2):
            spread = x[:, at].std()
            unit[at] = spread if spread > 0.0 else 1.0
        return unit

    def refit(self, store: Store) -> Calibration | None:
        if not (store.x != store.x[0]).any():
            return None
        units = Standard.of(store.targets)
        with np.errstate(over="ignore"):
            base = self.base(store.x)
        if not np.isfinite(base).all():
            return None
        chosen = dictionary.choose(store, units, self.kinds, base, self.chosen, self.seed)
        found = dictionary.fitted(store, units, chosen, self.cap, self.near)
        self.model.set(chosen.widths, found.rows, found.triangle, found.mean, found.covariance)
        self.chosen = chosen
        return Calibration(
            units.mean, units.sd, chosen.amplitude, found.inflation, chosen.noise, store.errors
        )

    def arrays(self) -> dict[str, Any]:
        chosen = self.chosen
        kept = {} if chosen is None else chosen._asdict()
        return {**self.model.arrays(), **{f"chosen_{name}": v for name, v in kept.items()}}

    def restore(self, arrays: dict[str, Any]) -> None:
        if "chosen_widths" not in arrays:
            return
        self.model.set(*(arrays[name] for name in ("widths", "Z", "L", "mean", "S")))
        self.chosen = Widths(
            arrays["chosen_widths"],
            float(arrays["chosen_noise"]),
            arrays["chosen_amplitude"],
            float(arrays["chosen_log_evidence"]),
        )


class FourierLearner:
    """The paper's two-stage random features of the kernel on joint embeddings (algorithm 1)."""

    keeps: ClassVar[bool] = True
    asked = 0

    def __init__(
        self,
        inputs: tuple[str, ...],
        transforms: tuple[Transform, ...],
        T: int,
        sizes: tuple[int, int],
        width: float,
        noise: float,
        standardise: bool,
        seed: int,
    ) -> None:
        self.inputs, self.transforms, self.T, self.sizes = inputs, transforms, T, sizes
        self.width, self.noise, self.standardise, self.seed = width, noise, standardise, seed
        self.model: Any = None
        self.drawn: TwoStage | None = None

    def coordinates(self, messages: tuple[Array, ...], data: Array | None) -> Array:
        """Means, then variances. A datum is a point mass."""
        pairs = [KINDS[f].moments(p) for f, p in zip(self.inputs, messages, strict=True)]
        means, variances = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        if self.transforms:
            assert data is not None
            means += [t.of(data) for t in self.transforms]
            variances += [np.zeros(len(data))] * len(self.transforms)
        return np.stack(means + variances, axis=1)

    def refit(self, store: Store) -> Calibration | None:
        half = store.x.shape[1] // 2
        tuples = store.x[:, :half], store.x[:, half:]
        try:
            kernel = median_heuristic(tuples, self.width)
        except ValueError:  # of tuples that are alike
            return None
        features = TwoStage.draw(kernel, *self.sizes, np.random.default_rng(self.seed))
        self._install(features)
        T = self.T
        units = Standard(np.zeros(T), np.ones(T))
        if self.standardise:
            units = Standard.of(store.targets)
        psi, inflation = features(tuples), np.ones(T)
        found = Regression.fit(psi, units.apply(store.targets), self.noise)
        self.model.set(found.mean, found.covariance)
        if self.standardise:  # the paper has no calibration
            out = Batch(psi, units.apply(store.targets), self.noise).left_out()
            squares = out.residual**2 / out.variance[:, None]
            inflation = np.maximum(1.0, np.median(squares, axis=0) / dictionary.MEDIAN)
        return Calibration(units.mean, units.sd, np.ones(T), inflation, self.noise, 0.0)

    def _install(self, features: TwoStage) -> None:
        inner, self.drawn = features.inner, features
        self.model = FourierModel(self.T, inner.omega, inner.phase, features.nu, features.phase)

    def arrays(self) -> dict[str, Any]:
        if self.drawn is None:
            return {}
        inner = self.drawn.inner
        drawn = {"omega": inner.omega, "inner_phase": inner.phase}
        drawn |= {"nu": self.drawn.nu, "phase": self.drawn.phase}
        return {**drawn, **self.model.arrays()}

    def restore(self, arrays: dict[str, Any]) -> None:
        if arrays:
            inner = ProductFeatures(arrays["omega"], arrays["inner_phase"])
            self._install(TwoStage(inner, arrays["nu"], arrays["phase"]))
            self.model.set(arrays["mean"], arrays["S"])


#: of patches: errors are as they say, and log Z is as right as what decides
PATCHED = Calibration(np.zeros(3), np.ones(3), np.array([1.0, 1.0, 0.0]), np.ones(3), 0.0, 0.0)


class PatchLearner:
    """Patches of (mean, log variance): a box of them asks an exact oracle when it is needed."""

    keeps: ClassVar[bool] = False

    def __init__(self, tolerance: float) -> None:
        #: m (n,), v (n,) -> targets (3, n), NaN where the oracle refuses
        self.ask: Any = None
        self.patches = Patches(self._targets, tolerance)
        self.model = self.patches.core
        self._before = 0

    def _targets(self, m: Array, v: Array) -> Any:
        return self.ask(m, v)

    @property
    def asked(self) -> int:
        return self._before + self.patches.calls

    def coordinates(self, messages: tuple[Array, ...], data: Array | None) -> Array:
        return KINDS["gaussian"].coordinates(messages[0])

    def refit(self, store: Store) -> Calibration | None:
        """Patches are fitted where they are asked."""
        return PATCHED

    def arrays(self) -> dict[str, Any]:
        return {**self.model.arrays(), "asked": np.array(self.asked)}

    def restore(self, arrays: dict[str, Any]) -> None:
        if not arrays:
            return
        boxes, links, coefficients = (arrays[n] for n in ("boxes", "links", "coefficients"))
        self.model.set(
            np.ascontiguousarray(boxes, dtype=np.float64),
            np.ascontiguousarray(links, dtype=np.int64),
            int(arrays["root"]),
            np.ascontiguousarray(coefficients, dtype=np.float64),
        )
        self._before = _checks.integer("asked", int(arrays["asked"]), least=0)
