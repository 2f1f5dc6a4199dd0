"""Every combination runs, or is refused at once by the name of an argument and what is allowed."""

import contextlib
import dataclasses
import itertools
import re

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast import ADF, DEP, EP, DoubleLoop, fit_gp, fit_linear, losses
from epfast.gaussian.fit_linear import fit_problem, sparse_form
from epfast.gaussian.prior import PriorArguments
from epfast.gaussian.rows import data_of
from epfast.gaussian.table import ENGINES, SCHEDULE_NUMBERS, Request, choose, legal
from epfast.schemes import Relaxed
from tests import batteries
from tests.batteries import Case
from tests.oracles.data import rbf


class Reached(Exception):  # noqa: N818
    """The door would look at the data now."""


class Unread:
    """Rows, a kernel matrix or responses that nobody may look at."""

    def __init__(self, *shape):
        self.shape = shape

    def __array__(self, *args, **kwargs):
        raise Reached


class UnreadSparse(Unread):
    def tocsr(self):
        raise Reached

    @property
    def dtype(self):
        raise Reached


X, Y, K = Unread(12, 2), Unread(12), Unread(12, 12)
LOSSES = batteries.LOSSES | {
    "callable": losses.resolve(np.square),
    "site": epfast.CustomSite(lambda m, v: (m, v, v)),
}
SCHEDULES = [schedule for some in batteries.SCHEDULES.values() for schedule in some]
MODELS = [(wing, *key) for wing, table in batteries.TABLES.items() for key in table]
# which losses have several latents is no choice: see linear/test_latent_posterior.py
MODELS = list(dict.fromkeys(model[:3] for model in MODELS if model[2] != "latents"))
#: what a number of a schedule is where it is given
NUMBER = {"damping": 0.8, "power": 0.7, "block": 4, "site_rule": "keep", "warm_up": 9}
#: arguments that only some combinations take
GIVEN = [
    {},
    {"weights": Unread(12)},
    {"X": UnreadSparse(12, 2)},
    {"X": "chunks"},
    {"record": "cost"},
    {"record": "factor"},
    {"beta": 0.5},
]
ARGUMENTS = (
    "schedule|scheme|loss|posterior|batch_size|X|chunks of X|sparse X|weights|record|beta|order|"
    + "|".join(SCHEDULE_NUMBERS)
)


def everything(named):
    """All combinations, legal or not."""
    return [
        Case(*model, schedule, scheme, loss)
        for model in MODELS
        for schedule in SCHEDULES
        for scheme in batteries.SCHEMES
        for loss in named
    ]


def is_legal(case):
    """By the tables and the refusals of the schemes alone."""
    scheme, loss = batteries.SCHEMES[case.scheme], LOSSES[case.loss]
    try:
        legal(*case[1:4], scheme, loss, {})
    except ValueError:
        return False
    return True


def refusal(case, **given):
    """The message; None where the data are reached."""
    arguments = {"loss": LOSSES[case.loss], "scheme": case.scheme, "schedule": case.schedule}
    arguments |= given
    try:
        if case.wing == "gp":
            fit_gp(K, Y, **arguments)
        size = None if case.factor == "row" else 4
        arguments |= {"posterior": case.covariance, "batch_size": size}
        rows = arguments.pop("X", X)
        if isinstance(rows, str):
            fit_linear(unread_chunks(), **arguments)
        fit_linear(rows, Y, **arguments)
    except Reached:
        return None
    except (ValueError, TypeError) as error:
        return str(error)
    raise AssertionError("a fit without data")


def unread_chunks():
    yield X, Y


def check(message):
    assert re.match(rf"({ARGUMENTS})\b", message), message
    assert "allow" in message, message
    assert len(message) < 900, message


@pytest.mark.parametrize("loss", LOSSES)
def test_refused_before_the_data_are_read_or_not_at_all(loss):
    for case in everything([loss]):
        message = refusal(case)
        assert (message is None) == is_legal(case), case
        if message is not None:
            check(message)


def takes(case, given):
    """Whether a legal combination takes an argument, in words of its own."""
    full, rows = case.covariance in ("full", "sparse"), given.get("X")
    if case.scheme == "relaxed" and "weights" in given:
        return False
    if isinstance(rows, str):
        return isinstance(case.schedule, ADF) and case.schedule.order == "sequential"
    return given.get("record") != "factor" or not (full or isinstance(case.schedule, DEP))


@pytest.mark.parametrize("given", GIVEN, ids=lambda given: "-".join(given) or "nothing")
def test_arguments_of_some_combinations(given):
    """On each model, schedule and scheme, with one loss after the other."""
    named = itertools.cycle(batteries.LOSSES)
    for case in everything([""]):
        if case.wing == "gp":
            continue
        case = case._replace(loss=next(named))
        message = refusal(case, **given)
        if message is not None:
            check(message)
        if is_legal(case):
            assert (message is None) == takes(case, given), (case, message)


def test_a_site_of_moments_alone_takes_nothing_else():
    case = Case("linear", "full", "row", EP(), "exact", "site")
    assert refusal(case) is None
    for given in ({"record": "cost"}, {"beta": 0.5}, {"schedule": EP(power=0.5)}):
        check(refusal(case, **given))


# ---- numbers ----


def spy(kind, read, **given):
    """A schedule that notes which of its attributes are read."""

    class Spy(kind):
        def __getattribute__(self, attribute):
            read.add(attribute)
            return super().__getattribute__(attribute)

    return Spy(**given)


def with_number(stores, name, read):
    """A schedule that stores such sites, with a number given; None where it has no such number."""
    ends, number = {"sweeps": 2, "tol": 0.0}, {name: NUMBER[name]}
    kind = {"factor": EP, "none": ADF, "shared": epfast.SEP, "shard": DEP}[stores]
    if name in {field.name for field in dataclasses.fields(kind)}:
        needed = {"shards": 2} if kind is DEP else {}
        with contextlib.suppress(TypeError):
            return spy(kind, read, **({} if kind is ADF else ends) | needed | number)
    if kind is DEP and name in {field.name for field in dataclasses.fields(EP)}:
        return DEP(2, **ends, inner=spy(EP, read, sweeps=2, tol=1e-9, **number))
    return None


@pytest.mark.parametrize("name", SCHEDULE_NUMBERS)
@pytest.mark.parametrize("key", batteries.TABLES["linear"], ids="-".join)
def test_a_number_is_used_or_refused(key, name):
    """What an engine takes it reads while it sweeps."""
    read = set()
    schedule = with_number(key[2], name, read)
    if schedule is None:
        return
    size = 4 if key[1] == "minibatch" else None
    several = key[1] == "latents"
    loss = losses.Multiclass(3, correlated=False) if several else losses.Logistic()
    scheme = "laplace" if key[:2] == ("full", "minibatch") else None
    inner = key[0] == "full" and key[2] == "shard" and name == "block"
    if name not in ENGINES[key].takes and not inner:
        with pytest.raises(ValueError, match=rf"^{name} is .*; not allowed with .*; it is for "):
            choose(Request(loss, scheme, key[0], size, schedule))
        return
    chosen = choose(Request(loss, scheme, key[0], size, schedule))
    rows, y = batteries.rows(LOSSES["logistic"])
    if several:
        y = np.arange(len(y)) % 3
    if key[0] == "sparse":
        rows, prior = sparse_form(rows, PriorArguments(), None, None, None, "sparse")
    else:
        prior = PriorArguments().prior(rows.shape[1], full=key[0] == "full")
    problem = chosen.problem(data_of(rows, y, None, chosen.loss), prior)
    read.clear()
    fit_problem(problem)
    assert name in read


@pytest.mark.parametrize("name", [name for name in SCHEDULE_NUMBERS if name != "warm_up"])
def test_numbers_of_a_process(name):
    rows, y = batteries.rows(LOSSES["probit"])
    kernel, number = rbf(rows), {name: NUMBER[name]}
    if name == "site_rule":
        for schedule in (EP(**number), DoubleLoop(start=EP(**number))):
            with pytest.raises(ValueError, match=r"^site_rule is 'keep'; not allowed"):
                fit_gp(kernel, y, schedule=schedule)
        return
    assert fit_gp(kernel, y, schedule=EP(**number)).converged
    assert fit_gp(kernel, y, schedule=DoubleLoop(start=EP(**number))).converged


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("power", {"schedule": EP(power=0.5), "scheme": Relaxed()}),
        ("order", {"schedule": EP(order="parallel"), "scheme": Relaxed()}),
        ("scheme", {"schedule": DoubleLoop(), "scheme": Relaxed()}),
        ("scheme", {"schedule": DoubleLoop(), "scheme": "laplace"}),
        ("schedule", {"schedule": DoubleLoop(), "rank": 2}),
        ("schedule", {"schedule": epfast.SEP()}),
        ("schedule", {"schedule": ADF()}),
        ("jitter", {"jitter": 1e-6, "rank": 2}),
        ("overwrite_K", {"overwrite_K": True, "rank": 2}),
        ("rank_tol", {"rank_tol": 1e-3}),
        ("batch_size", {"batch_size": 4}),
        ("block", {"schedule": EP(block=4, order="parallel")}),
    ],
    ids=str,
)
def test_refusals_of_a_process(name, given):
    with pytest.raises(ValueError, match=rf"^{name}\b.*allowed"):
        fit_gp(K, Y, **given)


def test_sparse_rows_run_where_they_are_taken():
    rows, y = batteries.rows(LOSSES["probit"])
    dense = fit_linear(rows, y)
    thin = fit_linear(sparse.csr_array(rows), y)
    np.testing.assert_allclose(thin.mean, dense.mean, rtol=1e-9)
