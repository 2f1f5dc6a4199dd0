"""Graphs, ratings, networks and operators give what beliefs.npz keeps; see beliefs.py."""

import pytest

from tests.golden import beliefs


@pytest.fixture(scope="module")
def kept():
    return beliefs.RECORD.read()[0]


@pytest.mark.full
@pytest.mark.parametrize("group", beliefs.GROUPS)
def test_results_are_those_that_are_kept(group, kept):
    found = dict(beliefs.RECORD.outcomes(group, kept))
    assert found
    assert not {name: one.said for name, one in found.items() if one.verdict == "beyond"}


def test_all_that_is_kept_is_of_a_group(kept):
    assert kept.keys() == beliefs.GROUPS.keys()
