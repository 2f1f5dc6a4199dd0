"""The loop over sweeps, run with a small engine of its own."""

import logging
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest

from epfast import ConvergenceWarning, Interrupted
from epfast.inference import Counts, Fit, Summary, Swept, run, warn_of
from epfast.inference.loop import FAR, change, mean_beyond_precision


class State(NamedTuple):
    mean: float
    variance: float
    sweeps: int = 0


class Schedule(NamedTuple):
    sweeps: int = 50
    tol: float = 1e-6
    damping: float = 1.0


class Halving:
    """Each sweep halves the mean; ``counts`` says what sweep k met, ``new`` what else it made.

    ``found``: other fields of what sweep k returns.
    """

    n_sites, order_of_matrices, remedy = 10, 1, "do as the engine says"
    evidence_bound = 0.0
    pool, damping = None, 1.0

    def __init__(self, counts=lambda k: Counts(), new=lambda k, state: state, found=lambda k: {}):
        self.counts, self.new, self.found = counts, new, found
        self.settled, self.kept = [], []

    def init(self, start: Any) -> State:
        return State(1.0, 1.0) if start is None else start

    def sweep(self, state, keep, tick, before=None):
        self.kept.append(keep)
        tick(4)
        tick(6)
        k = state.sweeps + 1
        new = self.new(k, State(0.5 * state.mean, state.variance, k))
        before, now = self.summary(state), self.summary(new)
        found = {"change": change(before, now) / self.damping, "log_evidence": now.log_evidence}
        return Swept(new, counts=self.counts(k), **(found | self.found(k)))

    def summary(self, state, evidence=True) -> Summary:
        return Summary(np.array([state.mean]), np.array([state.variance]), -state.mean)

    def finish(self, state, hurry=False):
        self.settled.append(hurry)
        return state


def moments(mean, variance):
    return Summary(np.array(mean), np.array(variance), 0.0)


def test_change_is_the_largest_move_of_a_mean_or_of_the_log_of_a_standard_deviation():
    old = moments([0.0, 1.0], [4.0, 1.0])
    assert change(old, old) == 0.0
    assert change(old, moments([3.0, 1.0], [4.0, 1.0])) == pytest.approx(1.5)
    # in the standard deviations of after
    assert change(old, moments([3.0, 1.0], [9.0, 1.0])) == pytest.approx(1.0)
    assert change(old, moments([0.0, 1.0], [4.0, 9.0])) == pytest.approx(np.log(3.0))
    assert change(old, moments([0.0, 1.0], [4.0, 1 / 9])) == pytest.approx(np.log(3.0))
    # what is certain does not move; what is not a number is
    certain = moments([0.0, 1.0], [0.0, 1.0])
    assert change(certain, certain) == 0.0
    for wrong in (moments([np.nan, 1.0], [4.0, 1.0]), moments([0.0, 1.0], [np.nan, 1.0])):
        assert np.isnan(change(old, wrong))
    assert change(old, moments([0.0, 1.0], [np.inf, 1.0])) == np.inf


def test_a_mean_is_blurred_beyond_so_many_of_its_own_standard_deviations():
    """Each by its own, though one look at all of them may tell that none is."""
    rng = np.random.default_rng(0)
    for size in (1, 3, 100):
        for _ in range(50):
            sd = np.exp(rng.normal(size=size, scale=3.0))
            away = FAR * rng.uniform(0.9, 1.1, size=size) * rng.choice([-1.0, 1.0, 1e-9], size)
            sd[rng.random(size) < 0.1] = 0.0  # what is certain has no digits to lose
            expected = bool(np.any(np.abs(away[sd > 0.0]) > FAR))
            assert bool(mean_beyond_precision(away * sd, sd**2)) == expected
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for mean, variance in (([1e160, 1.0], [1e300, 1.0]), ([np.nan], [1.0]), ([0.0], [0.0])):
            assert mean_beyond_precision(np.array(mean), np.array(variance)) == ""
        assert mean_beyond_precision(np.array([1e200]), np.array([1.0]))


@pytest.mark.parametrize("damping", [1.0, 0.25])
def test_it_ends_at_the_first_change_within_the_tolerance(damping):
    """The mean moves by 2^-k in sweep k."""
    engine, seen = Halving(), Halving()
    engine.damping = seen.damping = damping
    fit = run(engine, Schedule(tol=1e-3, damping=damping))
    assert fit.converged
    sweeps = 10 if damping == 1.0 else 12
    assert [info.sweep for info in fit.history] == list(range(1, sweeps + 1))
    moved = [2.0**-k / damping for k in range(1, sweeps + 1)]
    np.testing.assert_allclose([info.change for info in fit.history], moved, rtol=1e-15)
    evidence = [-(2.0**-k) for k in range(1, sweeps + 1)]
    np.testing.assert_array_equal([info.log_evidence for info in fit.history], evidence)
    assert fit.state == State(2.0**-sweeps, 1.0, sweeps)
    assert engine.settled == [False]
    assert not any(engine.kept)  # no function of the user has seen an old state
    run(seen, Schedule(tol=1e-3, damping=damping), callback=lambda info, state: False)
    assert all(seen.kept)
    assert all(info.seconds >= 0.0 for info in fit.history)


def test_without_a_tolerance_all_sweeps_are_run():
    fit = run(Halving(new=lambda k, new: State(1.0, 1.0, k)), Schedule(7, 0.0))
    assert (len(fit.history), fit.converged) == (7, False)
    assert fit.history[-1].change == 0.0  # which is within a tolerance of 0, and no matter
    fit = run(Halving(), Schedule(3, 1e-6))
    assert (len(fit.history), fit.converged) == (3, False)


def test_a_state_is_summarised_at_the_end_alone():
    """Change and log evidence are those that each sweep tells."""

    class Measuring(Halving):
        def summary(self, state, evidence=True):
            seen.append(evidence)
            return super().summary(state, evidence)

        def sweep(self, state, keep, tick, before=None):
            k = state.sweeps + 1
            return Swept(State(0.5 * state.mean, 1.0, k), 2.0 ** (1 - k), -(2.0**-k))

    seen = []
    fit = run(Measuring(), Schedule(tol=1e-3, damping=0.5))
    assert fit.converged
    assert [info.change for info in fit.history] == [2.0 ** (1 - k) for k in range(1, 12)]
    assert [info.log_evidence for info in fit.history] == [-(2.0**-k) for k in range(1, 12)]
    assert seen == [False]


def test_a_start_goes_on():
    whole, half = run(Halving(), Schedule(5, 0.0)), run(Halving(), Schedule(2, 0.0))
    rest = run(Halving(), Schedule(3, 0.0), half.state)
    assert rest.state == whole.state
    assert [info[:3] for info in rest.history] == [info[:3] for info in whole.history[2:]]


def test_a_refused_site_in_the_last_sweep_is_no_convergence():
    """The sweeps go on until none is refused."""

    engine = Halving(
        lambda k: Counts(refused=1 if k < 14 else 0, clipped=k), found=lambda k: {"drift": 0.5 * k}
    )
    fit = run(engine, Schedule(tol=1e-3))
    assert (len(fit.history), fit.converged) == (14, True)
    assert [info.n_refused for info in fit.history] == 13 * [1] + [0]
    assert [info.n_clipped for info in fit.history] == list(range(1, 15))
    drift = [info.drift for info in fit.history]
    np.testing.assert_allclose(drift, [0.5 * k for k in range(1, 15)], rtol=1e-12)
    fit = run(Halving(lambda k: Counts(refused=1)), Schedule(20, 1e-3))
    assert (len(fit.history), fit.converged) == (20, False)


def test_an_engine_that_is_stuck_ends_the_run():
    fit = run(Halving(found=lambda k: {"stuck": k == 4}), Schedule())
    assert (len(fit.history), fit.converged) == (4, False)


def test_an_engine_may_know_by_itself_whether_it_has_settled():
    """A short step is no sign of an end then, nor a long one a sign that there is none."""
    engine = Halving(found=lambda k: {"mismatch": 1.0 / k, "settled": k == 3})
    fit = run(engine, Schedule(tol=0.0))
    assert (len(fit.history), fit.converged) == (3, True)
    assert [info.mismatch for info in fit.history] == [1.0, 0.5, 1 / 3]
    fit = run(Halving(found=lambda k: {"settled": False}), Schedule(40, 1e-3))
    assert (len(fit.history), fit.converged) == (40, False)
    fit = run(
        Halving(lambda k: Counts(refused=k < 3), found=lambda k: {"settled": True}), Schedule()
    )
    assert (len(fit.history), fit.converged) == (3, True)


def test_a_callback_sees_every_sweep_and_a_true_answer_ends_the_run():
    engine, seen = Halving(), []

    def callback(info, state):
        seen.append((info, state))
        return "enough" if info.sweep == 4 else None

    fit = run(engine, Schedule(), callback=callback)
    assert [info for info, _ in seen] == fit.history
    assert [state for _, state in seen] == [State(2.0**-k, 1.0, k) for k in range(1, 5)]
    assert (len(fit.history), fit.converged) == (4, False)
    assert all(engine.kept)
    # in the sweep that converges it is asked too
    fit = run(Halving(), Schedule(tol=0.5), callback=lambda info, state: True)
    assert (len(fit.history), fit.converged) == (1, True)


def test_an_error_of_a_callback_passes_through():
    def fails(info, state):
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        run(Halving(), Schedule(), callback=fails)


def test_costs_are_recorded():
    def costs(swept):
        return swept.state.mean, np.full(2, swept.counts.refused)

    fit = run(Halving(lambda k: Counts(refused=k)), Schedule(2, 0.0), record=costs)
    assert [info.cost for info in fit.history] == [0.5, 0.25]
    np.testing.assert_array_equal([info.factor_cost for info in fit.history], [[1, 1], [2, 2]])
    assert run(Halving(), Schedule(1, 0.0)).history[0].cost is None


def test_progress_takes_a_function_that_is_told_of_every_piece_of_work():
    done = []
    run(Halving(), Schedule(3, 0.0), progress=done.append)
    assert done == [4, 6, 4, 6, 4, 6]


def test_a_bar_counts_factors(capsys):
    pytest.importorskip("tqdm")
    run(Halving(), Schedule(3, 0.0), progress=True)
    assert "30factor" in capsys.readouterr().err
    run(Halving(), Schedule(3, 0.0))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("ticks", [0, 1, 2, 5])
def test_ctrl_c_leaves_the_fit_so_far(ticks):
    """In a sweep: its engine tidies up after the state from before it."""
    left, engine = iter(range(ticks)), Halving()

    def tick(count):
        if next(left, None) is None:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="posterior") as caught:
        run(engine, Schedule(), progress=tick)
    fit = caught.value.posterior
    assert isinstance(fit, Fit)
    assert not fit.converged
    assert len(fit.history) == fit.state.sweeps == ticks // 2
    assert fit.state == State(2.0 ** -(ticks // 2), 1.0, ticks // 2)
    assert engine.settled == [True]
    assert isinstance(caught.value, KeyboardInterrupt)


def test_ctrl_c_in_a_callback_keeps_the_sweep_that_it_saw():
    def callback(info, state):
        if info.sweep == 3:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        run(Halving(), Schedule(), callback=callback)
    assert caught.value.posterior.state.sweeps == len(caught.value.posterior.history) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        State(np.nan, 1.0, 3),
        State(np.inf, 1.0, 3),
        State(0.0, np.nan, 3),
        State(0.0, np.inf, 3),
        State(0.0, -1.0, 3),
    ],
    ids=str,
)
def test_overflow_is_an_error_with_advice(wrong):
    engine = Halving(new=lambda k, new: wrong if k == 3 else new)
    with pytest.raises(FloatingPointError, match="overflowed; do as the engine says"):
        run(engine, Schedule())


def test_sweeps_are_logged(caplog):
    with caplog.at_level(logging.INFO, logger="epfast"):
        run(Halving(lambda k: Counts(refused=2)), Schedule(2, 0.0))
    assert [record.getMessage() for record in caplog.records] == [
        "sweep 1: change 0.5, log evidence -0.5, 2 refused",
        "sweep 2: change 0.25, log evidence -0.25, 2 refused",
    ]


def messages(fit, schedule):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of(fit, Halving(), schedule)
    assert all(warning.category is ConvergenceWarning for warning in caught)
    assert all(str(warning.message).endswith("; do as the engine says") for warning in caught)
    return [str(warning.message).split(";")[0] for warning in caught]


@pytest.mark.parametrize(
    ("counts", "schedule", "says"),
    [
        (Counts(), Schedule(tol=1e-3), []),
        (Counts(), Schedule(3, 0.0), []),
        (Counts(), Schedule(3, 1e-6), ["EP did not converge: after 3 sweeps"]),
        (Counts(refused=1), Schedule(3, 0.0), ["1 of 10 sites were refused in the last sweep"]),
        (Counts(refused=2), Schedule(3, 0.0), ["2 of 10 sites were refused in the last sweep"]),
        (Counts(failed=1), Schedule(3, 0.0), ["1 fits of a factor failed in the last sweep"]),
        (Counts(refused=9), Schedule(3, 1e-6), ["9 of 10 sites", "EP did not converge"]),
        # the posterior is at rest
        (Counts(refused=9), Schedule(3, 1.0), ["9 of 10 sites"]),
    ],
)
def test_what_the_user_is_told(counts, schedule, says):
    found = messages(run(Halving(lambda k: counts), schedule), schedule)
    assert len(found) == len(says)
    assert all(text.startswith(start) for text, start in zip(found, says, strict=True))


def test_what_went_well_in_the_end_is_no_warning():
    """Fits that failed in the first sweep alone are in the history."""
    engine = Halving(lambda k: Counts(failed=int(k == 1), refused=int(k == 1)))
    fit, schedule = run(engine, Schedule(3, 0.0)), Schedule(3, 0.0)
    assert [info.n_failed for info in fit.history].count(1) == 1
    assert not fit.history[-1].n_failed
    assert messages(fit, schedule) == []


@pytest.mark.parametrize(("tol", "sweeps"), [(0.0, 5), (0.3, 2)])
def test_an_impossible_evidence_is_no_result(tol, sweeps):
    """Which the loop sees once the posterior is at rest, and which more sweeps do not mend."""

    class TooGood(Halving):
        def summary(self, state, evidence=True):
            return super().summary(state)._replace(log_evidence=0.5)

    fit = run(TooGood(), Schedule(5, tol))
    assert not fit.converged
    assert len(fit.history) == sweeps
    [text] = messages(fit, Schedule(5, tol))
    assert text.startswith("the log evidence is +0.5, and cannot be above 0")


@pytest.mark.parametrize(("change", "word"), [(0.05, "approximate"), (0.5, "unusable")])
def test_a_missed_tolerance_says_what_the_result_is_worth(change, word):
    engine = Halving(new=lambda k, new: new._replace(mean=1.0 + change * k))
    schedule = Schedule(4)
    [text] = messages(run(engine, schedule), schedule)
    assert text.endswith(f"so that the result is {word}")


def test_who_stops_a_run_is_not_told_that_it_did_not_settle():
    schedule = Schedule()
    fit = run(Halving(), schedule, callback=lambda info, state: info.sweep == 2)
    assert messages(fit, schedule) == []
    assert messages(Fit(None, False, []), schedule) == []
