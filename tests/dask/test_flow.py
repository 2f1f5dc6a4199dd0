"""Answers of shards as they come, told one by one."""

from types import SimpleNamespace

import numpy as np

from epfast.dask.as_completed import AsTheyCome, Flow
from epfast.gaussian.engine import with_moments
from epfast.gaussian.shards import ShardMemory, ShardSite, Update
from epfast.gaussian.state import State
from epfast.inference import Sites, Summary
from epfast.inference.executors import Tasks
from epfast.inference.runtime import no_tick
from tests.oracles.executors import AtOnce


class Scripted(Tasks):
    """Tasks whose answers are told."""

    def __init__(self, answers):
        super().__init__(AtOnce())
        self.answers, self.sent = iter(answers), []

    def take(self):
        key, site = next(self.answers)
        self._in_flight = {k: v for k, v in self._in_flight.items() if v != key}
        rows = Sites(np.zeros(1), np.zeros(1), np.zeros(1))
        return key, None if site is None else [Update(site, rows, 0)]


def site(number):
    return Sites(np.array([[float(number)]]), np.zeros(1), np.float64(0.0))


def passes(answers, memory=None, tasks=None, tol=1e-9, damping=1.0, idles=lambda k, flying: True):
    """A pass over shards, from answers that are told."""
    tasks = Scripted([]) if tasks is None else tasks
    tasks.answers = iter(answers)

    def begin(parcels):
        tasks.sent += [(*key, *asked) for key, [asked] in parcels.items()]
        tasks._in_flight |= {object(): key for key in parcels}

    tasks.begin, tasks.idles = begin, idles
    count = 2 if memory is None else len(memory.parts)
    form = SimpleNamespace(sizes=[1] * count, rows=range(count))
    schedule = SimpleNamespace(damping=damping, tol=tol)
    engine = SimpleNamespace(form=form, schedule=schedule, tasks=tasks)
    form.call = lambda k, precision, shift, part, share: (float(precision[0, 0]), share)
    memory = memory or begun(count)
    state = SimpleNamespace(precision=np.eye(1), shift=np.zeros(1), memory=memory)
    found = AsTheyCome(engine, state)
    found.visited = found.visit(state, list(memory.parts), no_tick)
    return found


def begun(count, **flow):
    """Shards with flat sites; flow: what is known of the passes before."""
    parts = (ShardSite(site(0.0), None),) * count
    none = (0,) * count
    known = {"queue": tuple(range(count)), "answered": none, "sent": none, "saw": none}
    return Flow(parts, **known | flow) if flow else ShardMemory(parts)


def test_each_answer_moves_the_posterior_at_once():
    found = passes([((1, 0), site(2.0)), ((0, 0), site(3.0))])
    assert found.precision[0, 0] == 6.0
    # both were sent from the prior; shard 0 after the answer of shard 1, in turn
    assert found.tasks.sent == [(0, 0, 1.0, 1.0), (1, 0, 1.0, 1.0), (1, 1, 3.0, 1.0)]


def test_no_worker_idles_while_another_has_a_queue():
    """Two of four shards are those of one worker; who waited longest goes first."""

    def idles(k, flying):
        return not any("aabb"[other] == "aabb"[k] for other in flying)

    tasks = Scripted([])
    tasks.width = 2
    answers = [((k, 0), site(1.0)) for k in (0, 1, 2, 3)]
    found = passes(answers, begun(4), tasks, idles=idles)
    sent = [key[0] for key in tasks.sent]
    assert sent[:4] == [0, 2, 1, 0]
    assert found.flow_after((), False).queue[-1] == sent[-1]


def test_an_answer_of_an_older_visit_is_dropped():
    answers = [((0, 0), site(2.0)), ((0, 0), site(9.0)), ((0, 7), site(9.0)), ((1, 0), site(1.0))]
    found = passes(answers)
    assert found.precision[0, 0] == 4.0
    assert found.answered == [1, 1]


def test_an_improper_update_is_refused_and_asked_for_again():
    answers = [((0, 0), site(-2.0)), ((0, 1), site(-0.5)), ((1, 0), site(1.0))]
    found = passes(answers)
    assert found.precision[0, 0] == 1.5
    assert found.visited.counts.refused == 1
    assert (0, 1, 1.0, 0.5) in found.tasks.sent


def test_what_is_refused_again_and_again_keeps_its_site():
    answers = [((0, visit), site(-2.0)) for visit in range(11)] + [((1, 0), site(1.0))]
    found = passes(answers)
    assert found.precision[0, 0] == 2.0
    assert found.visited.counts.refused == 11


def test_what_is_lost_is_sent_again():
    found = passes([((0, 0), None), ((0, 0), site(1.0)), ((1, 0), site(1.0))])
    assert [sent[:2] for sent in found.tasks.sent][:3] == [(0, 0), (1, 0), (0, 0)]


def test_who_is_in_flight_for_long_is_sent_once_more():
    tasks = Scripted([])
    tasks._in_flight[object()] = (1, 0)
    again = []
    for passed in (2, 3, 4):
        tasks.sent.clear()
        memory = begun(2, sent=(0, passed), answered=(2, 0))
        passes([((0, 2), site(1.0)), ((0, 3), site(1.0))], memory, tasks)
        again.append((1, 0) in [sent[:2] for sent in tasks.sent])
    assert again == [False, True, False]


def settles(told, moves, memory=None):
    """Whether a fit may end after each of these passes, which move the posterior so far."""
    tasks, memory, found = Scripted([]), memory or begun(2), []
    for answers, moved in zip(told, moves, strict=True):
        visits = passes(answers, memory, tasks)
        visits.engine.summary = lambda state, evidence=True: Summary(state.shift, np.ones(1))
        old = with_moments(State(np.eye(1), np.zeros(1), None, 0.0, 0))._replace(memory=memory)
        new = old._replace(shift=np.full(1, moved))
        state, visited = visits.accelerate(old, new, visits.visited, abs(moved))
        memory = state.memory
        found.append(visited.settled is None)
    return found


def test_a_shard_that_has_not_seen_the_posterior_keeps_the_fit_from_ending():
    told = [[((0, visit), site(0.0)), ((1, visit), site(0.0))] for visit in range(4)]
    found = settles(told, [1.0, 0.0, 0.0, 0.0])
    assert not found[0]
    assert found[3]


def test_a_shard_that_was_never_heard_of_keeps_the_fit_from_ending():
    """Where no answer moves the posterior, and one shard gives them all."""
    told = [[((0, 2 * k), site(0.0)), ((0, 2 * k + 1), site(0.0))] for k in range(3)]
    assert settles(told, [0.0] * 3) == [False] * 3


def test_what_a_slow_worker_says_of_an_old_posterior_says_nothing():
    """Shard 1 was sent in the first pass and answers in the third, to what it was sent then."""
    told = [[((0, 0), site(2.0)), ((0, 1), site(2.0))], [((0, 2), site(2.0)), ((0, 3), site(2.0))]]
    told.append([((1, 0), site(0.0)), ((0, 4), site(2.0))])
    told += [[((0, k), site(2.0)), ((1, k - 4), site(0.0))] for k in range(5, 8)]
    found = settles(told, [1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    assert found[:3] == [False] * 3
    assert found[-1]
