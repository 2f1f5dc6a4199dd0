"""Schedules are data: what they refuse, how they visit, what None stands for."""

import dataclasses
import pickle
from functools import partial

import numpy as np
import pytest

from epfast import schedules
from epfast.schedules import ADF, AEP, DAEP, DEP, DSEP, EP, SEP, DoubleLoop
from tests.oracles.bad_values import (
    BAD_COUNT,
    BAD_COUNTS,
    BAD_NAME,
    BAD_NAMES,
    BAD_OPTIONAL,
    BAD_POSITIVE,
    BAD_SEED,
    BAD_TOL,
    check_error,
    every_bad_value,
)

NAMED = [getattr(schedules, name) for name in schedules.__all__]
NAMED = [kind for kind in NAMED if dataclasses.is_dataclass(kind)]
KINDS = [
    partial(kind, 3) if kind in (DSEP, DAEP, DEP) else kind for kind in NAMED if kind != DoubleLoop
]
SHUFFLED = [partial(kind, order="shuffled") for kind in KINDS if kind is not AEP]
SWEPT = [kind for kind in KINDS if kind is not ADF]
POWERED = [kind for kind in KINDS if getattr(kind, "func", kind) is not DEP]
ORDERED = [kind for kind in KINDS if kind is not AEP]

KEYWORDS = [
    ("sweeps", SWEPT, BAD_COUNTS),
    ("passes", [ADF], BAD_COUNTS),
    ("tol", SWEPT, BAD_TOL),
    ("damping", SWEPT, [*BAD_OPTIONAL, 1.1]),
    ("power", POWERED, BAD_OPTIONAL),
    ("order", ORDERED, [bad for bad in BAD_NAMES if bad is not None]),
    ("order", [kind for kind in ORDERED if kind is not ADF], [None]),
    ("order", [ADF, SEP], ["auto", "parallel"]),
    ("order", [kind for kind in ORDERED if kind is not EP], ["chunked"]),
    ("order", [kind for kind in POWERED if kind is not AEP], ["as_completed"]),
    ("block", [EP], BAD_COUNT),
    ("site_rule", [EP, ADF], BAD_NAME),
    ("batch", [SEP], BAD_COUNT),
    ("seed", ORDERED, BAD_SEED),
    ("seed", [kind for kind in ORDERED if kind is not ADF], [0, 3]),
    ("seed", SHUFFLED, BAD_SEED),
    ("groups", [DSEP, DAEP], [0, -1, 1.5, "3", True, [0.0, 1.0], [0, 2], [-1, 0], [], [[0]]]),
    ("shards", [DEP], [0, -1, 1.5, "3", True, [0.0, 1.0], [0, 2], [-1, 0], [], [[0]]]),
    ("inner", [partial(DEP, 2)], [5, "EP", EP, ADF(2)]),
    ("start", [DoubleLoop], [5, "EP", EP, None, ADF(), EP(tol=0.0)]),
    ("steps", [DoubleLoop], BAD_COUNTS),
    ("match", [DoubleLoop], BAD_POSITIVE),
]


@every_bad_value(KEYWORDS)
def test_error_names_the_argument(name, call, value):
    check_error(name, call, value)


@pytest.mark.parametrize("kind", [*KINDS, DoubleLoop], ids=str)
def test_data_only(kind):
    schedule = kind()
    assert repr(schedule).startswith(type(schedule).__name__)
    with pytest.raises(dataclasses.FrozenInstanceError):
        schedule.tol = 1.0
    again = pickle.loads(pickle.dumps(schedule))
    assert repr(again) == repr(schedule)
    assert schedule.stores in {"factor", "none", "shared", "shard", "descent"}
    for name in ("sweeps", "tol", "damping", "power", "order", "seed"):
        getattr(schedule, name)  # what the loop and the engines ask of all


def test_filled():
    schedule = EP(power=0.5)
    full = schedule.filled(power=1.0, damping=1.0, site_rule="keep")
    assert (full.power, full.damping, full.site_rule) == (0.5, 1.0, "keep")
    assert (schedule.damping, schedule.site_rule) == (None, None)
    both = DEP(2, inner=EP(power=0.5)).filled(power=1.0, damping=1.0)
    assert (both.power, both.damping, both.inner.damping, both.inner.power) == (0.5, 1.0, 1.0, 0.5)
    loop = DoubleLoop(start=EP(damping=0.5)).filled(power=1.0, damping=1.0)
    assert (loop.power, loop.damping, loop.start.damping) == (1.0, 1.0, 0.5)


# ---- who goes when ----


@pytest.mark.parametrize("kind", SHUFFLED, ids=str)
def test_shuffled_visits_depend_on_seed_and_sweep_alone(kind):
    one, other = kind(seed=3), kind(seed=3)
    first, second = one.visits(40, 0), one.visits(40, 1)
    np.testing.assert_array_equal(np.sort(first), np.arange(40))
    np.testing.assert_array_equal(other.visits(40, 1), second)
    np.testing.assert_array_equal(other.visits(40, 0), first)
    assert (first != second).any()
    assert (kind(seed=4).visits(40, 0) != first).any()
    np.testing.assert_array_equal(kind().visits(40, 0), kind(seed=0).visits(40, 0))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_other_visits_are_in_order(kind):
    assert kind().visits(7, 0) == kind().visits(7, 5) == range(7)


@pytest.mark.parametrize(
    "visits",
    [[0, 1], [0, 1, 1], [0, 1, 3], [-1, 0, 1], [0.0, 1.0, 2.0], [[0, 1, 2]], [True, False, True]],
    ids=str,
)
def test_visits_of_ones_own_are_checked(visits):
    class Own(EP):
        def visits(self, n_factors, sweep):
            return np.array(visits)

    with pytest.raises(ValueError, match=r"Own.visits .*allowed: each of 0 to 2 once"):
        Own().checked_visits(3, 0)


# ---- damping ----


def test_the_usual_damping():
    """Rows, or shards, that are fitted from one posterior are damped, unless ``tol`` is 0."""
    together = [EP(order="parallel"), AEP(), DAEP(), DEP(order="parallel")]
    assert [schedule.usual_damping("row") for schedule in together] == [0.5] * 4
    assert [schedule.usual_damping("minibatch") for schedule in together] == [1.0, 1.0, 1.0, 0.5]
    assert {kind(tol=0.0).usual_damping("row") for kind in (AEP, DAEP)} == {1.0}
    assert {kind().usual_damping("row") for kind in (EP, SEP, DSEP, DEP, ADF)} == {1.0}


# ---- groups ----


def test_groups_cut_in_order_or_named():
    np.testing.assert_array_equal(DSEP(3).labels(7), [0, 0, 1, 1, 2, 2, 2])
    np.testing.assert_array_equal(DAEP([1, 0, 1, 2]).labels(4), [1, 0, 1, 2])
    np.testing.assert_array_equal(DEP(2).labels(4), [0, 0, 1, 1])
    np.testing.assert_array_equal(SEP().labels(3), [0, 0, 0])
    for schedule, n in ((DSEP(3), 2), (DSEP([0, 1]), 3), (DEP([0, 1]), 3), (DEP(3), 2)):
        with pytest.raises(ValueError, match=r"^(groups|shards) .*allowed"):
            schedule.labels(n)


def test_labels_are_kept_from_harm():
    labels = np.array([0, 1, 0])
    schedule = DSEP(labels)
    labels[:] = 0
    np.testing.assert_array_equal(schedule.labels(3), [0, 1, 0])
    assert not schedule.groups.flags.writeable


@pytest.mark.parametrize("order", ["sequential", "shuffled"])
@pytest.mark.parametrize(("groups", "batch"), [(1, 1), (1, 4), (3, 2), (3, 100), (12, 1)])
def test_batches_lie_within_groups_and_hold_each_row_once(order, groups, batch):
    n, whole = 12, min(batch, 12)
    schedule = DSEP(groups, batch=whole, order=order)
    labels = schedule.labels(n)
    for sweep in range(3):
        found = schedule.batches(n, sweep)
        np.testing.assert_array_equal(np.sort(found.rows), np.arange(n))
        np.testing.assert_array_equal(found.group, labels[found.rows])
        parts = np.split(found.group, np.flatnonzero(found.last)[:-1] + 1)
        assert found.last[-1] == 1
        assert all(len(set(part)) == 1 and len(part) <= whole for part in parts)
        # as few as can be
        assert len(parts) == sum(-(-size // whole) for size in np.bincount(labels))


def test_aep_is_one_batch_of_all():
    for schedule in (AEP(), SEP(batch=9)):
        found = schedule.batches(9, 0)
        assert found.last.tolist() == 8 * [0] + [1]
    with pytest.raises(ValueError, match=r"^batch is 9; allowed: an integer from 1 to 5"):
        SEP(batch=9).batches(5, 0)
