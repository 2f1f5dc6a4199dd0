"""What files of networks and of mixtures have in common: belief, sites, schedule and record."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from epfast import _checks
from epfast._arrays import Array
from epfast.inference import SweepInfo
from epfast.inference.files import agree, describe_history, describe_schedule
from epfast.parametric.engine import ParametricState, site_sizes


def contents(
    kind: str, schedule: Any, state: ParametricState, converged: bool, history: list[SweepInfo]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays and the header of a file, to which a model adds its own; kind: as storage has it.

    ``base`` and ``log_scale`` of the state are the model's.
    """
    described, groups = describe_schedule(schedule)
    arrays: dict[str, Any] = {"belief": state.belief}
    if state.sites is not None:
        arrays["sites"] = state.sites
    if groups is not None:
        arrays["schedule_groups"] = groups
    return arrays, {
        "posterior": kind,
        "loss": None,
        "beta": 1.0,
        "schedule": described,
        "converged": bool(converged),
        "sweeps": int(state.sweeps),
        "history": describe_history(history),
    }


def restore_sites(
    arrays: dict[str, Array], schedule: Any, n: int, belief: Array, base: Array
) -> NDArray[Any] | None:
    """The sites of n rows, (K, P), which must add up to the belief; None: ADF has none.

    belief, base: (P,), checked.
    """
    sizes = site_sizes(schedule, n)
    if sizes is None:
        return None
    sites = _checks.array("sites", arrays["sites"], shape=(len(sizes), len(belief)))
    size = np.abs(base) + np.abs(belief) + sizes @ np.abs(sites)
    agree("sites", belief, base + sizes @ sites, size)
    return sites
