"""Which sites are stored, and in which order they are updated. A schedule is data that fits run.

Arguments that only some combinations use default to None, and None means what suits the
combination. A number that is given and not used is refused, but for ``damping=1`` and ``power=1``.
"""

from epfast import _checks
from epfast.schedules.base import (
    ADF,
    AEP,
    DAEP,
    DEP,
    DSEP,
    EP,
    ORDERS as ORDERS,
    SEP,
    SITE_RULES as SITE_RULES,
    Batches as Batches,
    DoubleLoop,
    FilledSchedule as FilledSchedule,
    Schedule,
    SharedSites,
)

__all__ = [
    "ADF",
    "AEP",
    "DAEP",
    "DEP",
    "DSEP",
    "EP",
    "SEP",
    "DoubleLoop",
    "Schedule",
    "SharedSites",
]

_checks.name_arguments(globals())
