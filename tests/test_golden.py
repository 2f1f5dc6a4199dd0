"""Results are those of the golden file: see ``golden.py``."""

import numpy as np
import pytest

from tests import golden

#: of means in sd, of variances relative; ten times as many nats
SAME = 1e-7
#: of fits whose X'X is singular to so many digits
ROUNDING = {"collinear/wide prior": 1e-5}


@pytest.fixture(scope="module")
def stored():
    found: dict[str, dict[str, np.ndarray]] = {}
    with np.load(golden.FILE) as file:
        for key in file.files:
            fit, name = key.rsplit("/", 1)
            found.setdefault(fit, {})[name] = file[key]
    return found


@pytest.mark.parametrize("group", sorted({group for group, _, _ in golden.groups()}))
def test_results_are_those_stored(group, stored):
    gaps = {}
    for kind, name, fit in golden.groups():
        wanted = stored.get(f"{kind}/{name}")
        if kind == group and wanted is not None:
            gaps[name] = golden.gap(golden.run(fit), wanted)
    assert gaps
    limit = {name: ROUNDING.get(f"{group}/{name}", SAME) for name in gaps}
    assert {name: gap for name, gap in gaps.items() if not gap <= limit[name]} == {}
