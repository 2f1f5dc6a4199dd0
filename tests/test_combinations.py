"""Combinations of loss, scheme, schedule and engine that are not legal are refused."""

import pytest

from tests import batteries
from tests.batteries import Case

REFUSED = [
    case
    for wing, table in batteries.TABLES.items()
    for covariance, factor, stores in table
    for schedule in batteries.SCHEDULES[stores]
    for scheme in batteries.SCHEMES
    for loss in batteries.LOSSES
    # the loss says whether a row has several latents: nobody can ask for the other
    if (factor == "latents") == (batteries.LOSSES[loss].latents > 1)
    if not batteries.is_legal(*(case := Case(wing, covariance, factor, schedule, scheme, loss)))
]


@batteries.battery(REFUSED)
def test_what_is_not_legal_is_refused_at_the_door(case):
    with pytest.raises(ValueError, match=r"allow(ed|s)"):
        batteries.fit(case)
