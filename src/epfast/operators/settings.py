"""The numbers of a learned operator, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from epfast import _checks
from epfast._arrays import Array
from epfast._core.just_in_time import TARGETS, JustInTime
from epfast.operators.learners import (
    TRANSFORMS,
    DictionaryLearner,
    FourierLearner,
    Learner,
    PatchLearner,
    Transform,
)
from epfast.operators.messages import KINDS, check_data, check_inputs, check_messages

#: interpolation in place of regression
PATCHES = "patches"
#: of the tolerance, what a tuple nearby may leave unknown
NEARER = 0.03
#: what decides: the tolerance. Nothing, the oracle is always asked, or never. The paper's threshold
JUST_IN_TIME, ORACLE_ALONE, OPERATOR_ALONE, BY_THRESHOLD = 0, 1, 2, 3
#: limits of the core: targets, inputs and coordinates of data
MOST_TARGETS, MOST_COLUMNS = 16, 15
#: settings of the paper's online experiments
PAPER: dict[str, Any] = {
    "features": ("fourier", 300, 500),
    "targets": "belief",
    "batch": 300,
    "threshold": -8.5,
    "audit": 0.0,
}
#: noise variance of the paper's program
PAPER_NOISE = 1e-4


@dataclass(frozen=True)
class Settings:
    """The numbers of an operator, checked. See :class:`Operator`."""

    inputs: tuple[str, ...]
    outputs: tuple[int, ...]
    tolerance: float
    features: str | tuple[str, int, int]
    batch: int
    cap: int
    audit: float
    targets: str
    transforms: tuple[Transform, ...]
    threshold: float | None
    power: float
    seed: int
    width: float = 1.0

    def given(self) -> dict[str, Any]:
        """The arguments of :class:`Operator` that these come from."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["output"] = values.pop("outputs")
        values["coordinates"] = values.pop("transforms")
        if isinstance(self.features, str):
            values["width"] = None
        return values

    @property
    def n_targets(self) -> int:
        """Targets: two for each output, and log Z."""
        return 2 * len(self.outputs) + 1

    @property
    def data_width(self) -> int:
        """Columns of data that there must be for the coordinates. 0: there are none."""
        return 1 + max((t.column for t in self.transforms), default=-1)

    @property
    def refits(self) -> bool:
        """Whether widths are chosen anew when the store has doubled: the paper's stay."""
        return self.threshold is None

    @property
    def near(self) -> float:
        """Variance that a dictionary may leave unexplained: nothing beside the tolerance."""
        return float(np.clip((NEARER * self.tolerance) ** 2, 1e-12, 1e-6))

    def messages(self, messages: Any, data: Any) -> tuple[tuple[Array, ...], Array | None]:
        """Checked messages by input, and data (n, q) where there are coordinates of them."""
        parts = check_messages("messages", messages, self.inputs)
        given = check_data("data", data, len(parts[0]))
        width = self.data_width
        if given is None and width:
            raise ValueError(
                f"data is None; allowed with coordinates={self.transforms!r}: (n, q) with q >= "
                f"{width}"
            )
        if given is not None and not width:
            raise ValueError(
                "data is given; allowed for an operator without coordinates= of them: None"
            )
        if given is not None and given.shape[1] < width:
            raise ValueError(
                f"data has {given.shape[1]} columns; allowed: {width} or more, of which the "
                "operator has coordinates"
            )
        for transform in self.transforms:
            assert given is not None
            with np.errstate(all="ignore"):
                fine = np.isfinite(transform.of(given)).all()
            if not fine:
                raise ValueError(
                    f"data has entries of which {transform.name!r} is not finite; allowed: others, "
                    "or other coordinates"
                )
        return parts, given

    def beliefs(self, messages: tuple[Array, ...], targets: Array) -> Array:
        """Usual parameters of the beliefs that targets mean, (n, 2 outputs)."""
        parts = []
        for j, place in enumerate(self.outputs):
            mine, cavity = targets[:, 2 * j : 2 * j + 2], messages[place]
            if self.targets == "belief":
                parts.append(np.stack([mine[:, 0], np.exp(mine[:, 1])], axis=1))
            elif self.targets == "moments":
                parts.append(np.stack([mine[:, 0], mine[:, 1] - mine[:, 0] ** 2], axis=1))
            else:
                parts.append(KINDS[self.inputs[place]].belief(cavity, mine))
        return np.concatenate(parts, axis=1)

    def core(self) -> JustInTime:
        """Its decisions, before the first visit."""
        # the threshold of the paper is on the variance with its noise, the core's without
        level = math.inf
        if self.threshold is not None:
            level = math.log(max(math.exp(self.threshold) - PAPER_NOISE, 1e-300))
        return JustInTime(
            self.n_targets,
            tolerance=self.tolerance,
            audit=self.audit,
            seed=self.seed,
            threshold=level,
            mode=JUST_IN_TIME if self.threshold is None else BY_THRESHOLD,
        )

    def learner(self) -> Learner:
        """An empty one."""
        if self.features == PATCHES:
            return PatchLearner(self.tolerance)
        if isinstance(self.features, tuple):
            stages = self.features[1:]
            standardise = self.threshold is None
            numbers = self.width, PAPER_NOISE, standardise, self.seed
            return FourierLearner(self.inputs, self.transforms, self.n_targets, stages, *numbers)
        return DictionaryLearner(
            self.inputs, self.transforms, self.n_targets, self.cap, self.near, self.seed
        )


def checked(
    *,
    inputs: Any,
    output: Any,
    tolerance: Any,
    features: Any,
    batch: Any,
    cap: Any,
    audit: Any,
    targets: Any,
    seed: Any,
    coordinates: Any,
    threshold: Any,
    power: Any,
    width: Any = None,
) -> Settings:
    """The numbers of an operator. Raises where one is not allowed."""
    families = check_inputs("inputs", inputs)
    batch = _checks.integer("batch", batch, least=4)
    chosen = check_features(features)
    found = Settings(
        families,
        check_outputs(output, len(families)),
        _checks.number("tolerance", tolerance, above=0.0, most=1e100),
        chosen,
        batch,
        # random features have a number of their own
        _checks.integer("cap", cap, least=batch if isinstance(chosen, str) else 4, most=1 << 15),
        _checks.number("audit", audit, least=0.0, most=1.0),
        _checks.choice("targets", targets, TARGETS),
        check_transforms(coordinates),
        None
        if threshold is None
        else _checks.number("threshold", threshold, least=-500.0, most=500.0),
        _checks.number("power", power, above=0.0),
        _checks.integer("seed", seed, least=0, most=2**63 - 1),
        1.0 if width is None else _checks.number("width", width, above=0.0),
    )
    if found.n_targets > MOST_TARGETS:
        raise ValueError(f"output is {output!r}; allowed: at most {(MOST_TARGETS - 1) // 2} places")
    if len(families) + len(found.transforms) > MOST_COLUMNS:
        raise ValueError(
            f"inputs and coordinates are {len(families)} and {len(found.transforms)}; allowed: "
            f"{MOST_COLUMNS} together"
        )
    if found.features == PATCHES and (
        (families, found.outputs, found.targets) != (("gaussian",), (0,), "site")
        or found.transforms
        or found.threshold is not None
    ):
        raise ValueError(
            "features is 'patches' with other messages than one Gaussian, targets not 'site', "
            "coordinates of data or a threshold; allowed with these: 'dictionary'"
        )
    if found.targets != "site" and families != ("gaussian",) * len(families):
        raise ValueError(
            f"targets is {targets!r} with inputs {families}; allowed with it: Gaussian ones"
        )
    if width is not None and isinstance(chosen, str):
        raise ValueError(
            f"width is {width!r} with features={chosen!r}, whose widths are chosen by evidence; "
            "allowed: None"
        )
    return found


def check_features(value: Any) -> str | tuple[str, int, int]:
    """The name of the features, or ("fourier", d_in, d_out)."""
    allowed = "'dictionary', 'patches' or ('fourier', d_in, d_out)"
    if isinstance(value, str) and value in ("dictionary", PATCHES):
        return value
    # a LowLevelCallable is a tuple, too
    if type(value) in (tuple, list) and len(value) == 3 and value[0] == "fourier":
        d_in = _checks.integer("features[1]", value[1], least=1, most=1 << 15)
        return "fourier", d_in, _checks.integer("features[2]", value[2], least=1, most=1 << 15)
    raise ValueError(f"features is {value!r}; allowed: {allowed}")


def check_outputs(value: Any, c: int) -> tuple[int, ...]:
    """Places of the variables that messages go to."""
    given = value if isinstance(value, tuple | list) else (value,)
    found = tuple(_checks.integer("output", v, least=0, most=c - 1) for v in given)
    if not found or len(set(found)) < len(found):
        raise ValueError(f"output is {value!r}; allowed: one of the inputs, or several, each once")
    return found


def check_transforms(value: Any) -> tuple[Transform, ...]:
    """Coordinates of the data: names, or pairs of a column and a name."""
    given = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(given, tuple | list):
        raise TypeError(
            f"coordinates is {_checks.describe(value)}; allowed: names, or pairs (column, name)"
        )
    found = []
    for entry in given:
        pair = (0, entry) if isinstance(entry, str) else entry
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(
                f"coordinates holds {_checks.describe(entry)}; allowed: names, or pairs (column, "
                "name)"
            )
        column, name = pair
        column = _checks.integer("coordinates: a column", column, least=0)
        found.append(Transform(column, _checks.choice("coordinates", name, TRANSFORMS)))
    return tuple(found)
