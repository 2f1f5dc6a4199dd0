"""The numbers of a learned operator, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from epfast import _checks
from epfast._arrays import Array
from epfast._core.just_in_time import TARGETS
from epfast.operators.answers import check_places
from epfast.operators.messages import KINDS, check_data, check_messages

#: of the tolerance, what a tuple nearby may leave unknown
NEARER = 0.03
#: limits of the core: targets, inputs and columns of data
MOST_TARGETS, MOST_COLUMNS = 16, 15
#: the threshold of the paper
THRESHOLD = -8.5
#: settings of the paper's online experiments
PAPER: dict[str, Any] = {
    "features": ("fourier", 300, 500),
    "targets": "belief",
    "batch": 300,
    "threshold": THRESHOLD,
    "audit": 0.0,
}


@dataclass(frozen=True)
class Settings:
    """The arguments of :class:`Operator`, checked."""

    inputs: Any = ("gaussian",)
    output: Any = 0
    tolerance: float = 0.03
    features: Any = "dictionary"
    batch: int = 32
    cap: int = 256
    audit: float = 1 / 256
    targets: str = "site"
    seed: int = 0
    data_width: int = 0
    threshold: float | None = None
    power: float = 1.0
    width: float | None = None

    def __post_init__(self) -> None:
        families, places = check_places(self.inputs, self.output, "output")
        batch = _checks.integer("batch", self.batch, least=4)
        features = check_features(self.features)
        fourier = features != "dictionary"
        threshold = THRESHOLD if fourier and self.threshold is None else self.threshold
        if threshold is not None:
            threshold = _checks.number("threshold", threshold, least=-500.0, most=500.0)
        width = 1.0 if fourier and self.width is None else self.width
        if width is not None:
            width = _checks.number("width", width, above=0.0)
        _checks.freeze(
            self,
            inputs=families,
            output=places,
            tolerance=_checks.number("tolerance", self.tolerance, above=0.0, most=1e100),
            features=features,
            batch=batch,
            # random features have a number of their own
            cap=_checks.integer("cap", self.cap, least=4 if fourier else batch, most=1 << 15),
            audit=_checks.number("audit", self.audit, least=0.0, most=1.0),
            targets=_checks.choice("targets", self.targets, TARGETS),
            seed=_checks.integer("seed", self.seed, least=0, most=2**63 - 1),
            data_width=_checks.integer("data_width", self.data_width, least=0),
            threshold=threshold,
            power=_checks.number("power", self.power, above=0.0),
            width=width,
        )
        if self.n_targets > MOST_TARGETS:
            raise ValueError(
                f"output is {places}; allowed: at most {(MOST_TARGETS - 1) // 2} places"
            )
        if len(families) + self.data_width > MOST_COLUMNS:
            raise ValueError(
                f"inputs and data_width are {len(families)} and {self.data_width}; allowed: "
                f"{MOST_COLUMNS} together"
            )
        if self.targets != "site" and families != ("gaussian",) * len(families):
            raise ValueError(
                f"targets is {self.targets!r} with inputs {families}; allowed with it: Gaussian "
                "ones"
            )
        if width is not None and not fourier:
            raise ValueError(
                f"width is {width:g} with features='dictionary', whose widths are chosen by "
                "evidence; allowed: None"
            )

    @property
    def n_targets(self) -> int:
        """Targets: two for each output, and log Z."""
        return 2 * len(self.output) + 1

    @property
    def refits(self) -> bool:
        """Whether widths are chosen anew when the store has grown: the paper's stay."""
        return self.threshold is None

    @property
    def near(self) -> float:
        """Variance that a dictionary may leave unexplained: nothing beside the tolerance."""
        return float(np.clip((NEARER * self.tolerance) ** 2, 1e-12, 1e-6))

    def messages(self, messages: Any, data: Any) -> tuple[tuple[Array, ...], Array | None]:
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

    def beliefs(self, messages: tuple[Array, ...], targets: Array) -> Array:
        """Usual parameters of the beliefs that targets mean, (n, 2 outputs)."""
        parts = []
        for j, place in enumerate(self.output):
            mine, cavity = targets[:, 2 * j : 2 * j + 2], messages[place]
            if self.targets == "belief":
                parts.append(np.stack([mine[:, 0], np.exp(mine[:, 1])], axis=1))
            elif self.targets == "moments":
                parts.append(np.stack([mine[:, 0], mine[:, 1] - mine[:, 0] ** 2], axis=1))
            else:
                parts.append(KINDS[self.inputs[place]].belief(cavity, mine))
        return np.concatenate(parts, axis=1)


def check_features(value: Any) -> str | tuple[str, int, int]:
    """The name of the features, or ("fourier", d_in, d_out)."""
    if isinstance(value, str) and value == "dictionary":
        return value
    # a LowLevelCallable is a tuple, too
    if type(value) in (tuple, list) and len(value) == 3 and value[0] == "fourier":
        d_in, d_out = (_checks.integer("features", d, least=1, most=1 << 15) for d in value[1:])
        return "fourier", d_in, d_out
    raise ValueError(f"features is {value!r}; allowed: 'dictionary' or ('fourier', d_in, d_out)")
