"""Fits by the arguments of public calls give the results that many.npz keeps; see many.py."""

import pytest

from tests.golden import many

NEEDS = {
    "asked": ("sklearn", "formulae"),
    "documented searches": ("sklearn", "formulae"),
    "formulas": ("formulae",),
    "GPClassifier": ("sklearn",),
    "GPRegressor": ("sklearn",),
    "GPy": ("GPy",),
    "hyper processes": ("sklearn",),
    "LinearClassifier": ("sklearn",),
    "LinearRegressor": ("sklearn",),
    "low rank": ("sklearn",),
    "parametric": ("sklearn",),
    "roundabout": ("sklearn", "pandas"),
}


@pytest.fixture(scope="module")
def kept():
    return many.RECORD.read()[0]


@pytest.mark.full
@pytest.mark.parametrize("group", many.GROUPS)
def test_results_are_those_that_are_kept(group, kept):
    for module in NEEDS.get(group, ()):
        pytest.importorskip(module)
    found = dict(many.RECORD.outcomes(group, kept))
    assert found
    assert not {name: one.said for name, one in found.items() if one.verdict == "beyond"}


def test_all_that_is_kept_is_of_a_group(kept):
    assert kept.keys() == many.GROUPS.keys()
