"""Small fits of every kind give the results that golden.npz keeps; see fits.py."""

import pytest

from tests.golden import fits


@pytest.fixture(scope="module")
def kept():
    return fits.kept()


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.cover(lambda group: group)
@pytest.mark.parametrize("group", fits.GROUPS)
def test_results_are_those_that_are_kept(group, kept):
    if group in ("estimators", "learned"):
        pytest.importorskip("sklearn")
    make, bounds = fits.GROUPS[group]
    found = {fit.name: fits.numbers(fit)[0] for fit in make(fits.Data())}
    assert set(found) == set(kept[group])
    apart = {name: fits.distances(old, found[name], bounds) for name, old in kept[group].items()}
    assert not {
        name: {quantity: far for quantity, far in quantities.items() if not far <= 1.0}
        for name, quantities in apart.items()
        if not max(quantities.values()) <= 1.0
    }
