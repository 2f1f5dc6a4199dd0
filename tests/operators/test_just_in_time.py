"""Operators just in time: against their oracle, their own errors, files and bad input."""

import contextlib
import ctypes
import io
import json
import pickle
import zipfile
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import LowLevelCallable

import epfast
from epfast.inference.files import digest
from epfast.operators import CallableOracle, DensityOracle, Oracle, SampledFactor, SiteOracle
from epfast.operators.messages import KINDS
from tests.oracles.learned_factors import compound

LOGISTIC = SiteOracle("logistic")


def cavities(n, seed=0, spread=3.0):
    rng = np.random.default_rng(seed)
    return np.column_stack([spread * rng.normal(size=n), np.exp(rng.uniform(-3.0, 2.0, n))])


def truths(messages, oracle=LOGISTIC, data=None):
    """Site targets (n, 2) and log Z."""
    answer = oracle.answer(messages, data)
    return np.column_stack([KINDS["gaussian"].targets(messages, answer.belief), answer.log_z])


def trained(n=300, **given):
    op = epfast.Operator(LOGISTIC, **{"tolerance": 0.01, **given})
    op.project(cavities(n))
    return op


def state(op):
    """All that an operator is, as bytes."""
    model = op.core.model
    arrays = {} if model is None else model.arrays()
    return (
        [(name, part.tobytes()) for name, part in sorted(arrays.items())],
        [[part.tobytes() for part in row] for row in op.store],
        (op.visits, op.calls, op.core.audits),
    )


# ---- what it learns ----


@pytest.mark.parametrize("tolerance", [0.1, 0.03, 0.01])
def test_messages_are_within_the_tolerance_and_audits_tell(tolerance):
    """Acceptance 6."""
    op = epfast.Operator(LOGISTIC, tolerance=tolerance, audit=0.2, seed=1)
    messages = cavities(1500)
    found = KINDS["gaussian"].targets(messages, op.project(messages))
    away = np.abs(found - truths(messages)[:, :2]).max(axis=1)
    assert (away > tolerance).mean() <= 0.03
    assert op.audits > 100
    assert sum(wrong for _, wrong in op.audited) <= 0.03 * op.audits
    fresh = cavities(1500, seed=9)
    targets, sd = op.predict(fresh)
    score = np.abs(targets - truths(fresh))[:, :2] / sd[:, :2]
    assert (score < 2.0).mean() >= 0.93
    assert op.calls - op.audits < 0.15 * op.visits


def test_sampled_oracle_is_calibrated_and_smoothed():
    factor = SampledFactor(log_density=lambda x: -np.logaddexp(0.0, -x), draws=3000)
    op = epfast.Operator(factor, tolerance=0.1, audit=0.1)
    messages = cavities(600, spread=2.0)
    found = KINDS["gaussian"].targets(messages, op.project(messages))
    away = np.abs(found - truths(messages)[:, :2])
    assert (away.max(axis=1) > 0.1).mean() <= 0.03
    assert sum(wrong for _, wrong in op.audited) <= 0.03 * op.audits


@pytest.mark.parametrize("share", [0.005, 0.05, 0.3])
def test_the_bound_holds_as_often_as_it_says(share):
    """Of 100 operators at least 93 have fewer wrong messages than their audits allow for."""
    op = epfast.Operator(LOGISTIC)
    assert op.error_bound() == 1.0
    holds = 0
    for seed in range(100):
        wrong = np.random.default_rng(seed).random(150) < share
        op.audited = [(1.0, bool(one)) for one in wrong]
        holds += op.error_bound(0.95) >= share
    assert holds >= 93


def test_a_second_pass_asks_nothing_but_audits():
    """Acceptance 10."""
    op = trained()
    calls, audits = op.calls, op.audits
    op.project(cavities(300))
    assert op.calls - calls == op.audits - audits
    first = op.calls
    op.project(cavities(300, seed=5))
    assert op.calls - first <= 0.1 * calls + op.audits - audits


def test_two_gamma_messages_of_a_compound_factor():
    """Acceptance 7 in small: beliefs of a gamma variable by KL."""
    oracle = DensityOracle(compound, ("gamma",))
    rng = np.random.default_rng(0)
    messages = np.column_stack([rng.uniform(5.0, 51.0, 200), np.exp(rng.uniform(-2.0, 8.0, 200))])
    data = np.ones((200, 3))
    op = epfast.Operator(oracle, ("gamma",), tolerance=0.01, data_width=1)
    found = op.project(messages, data)
    answer = oracle.answer(messages, data).belief
    away = KINDS["gamma"].targets(messages, found) - KINDS["gamma"].targets(messages, answer)
    assert np.quantile(np.abs(away), 0.97) < 0.01
    assert op.calls < 80


@pytest.mark.parametrize("features", ["dictionary", ("fourier", 40, 60)])
def test_blocks_do_not_matter_and_runs_are_equal(features):
    messages = cavities(200)
    whole = epfast.Operator(LOGISTIC, features=features, audit=0.1, seed=3)
    found = whole.project(messages)
    parts = epfast.Operator(LOGISTIC, features=features, audit=0.1, seed=3)
    pieces = [parts.project(block) for block in np.array_split(messages, [1, 2, 40, 41, 150])]
    assert_array_equal(np.concatenate(pieces), found)
    assert state(parts) == state(whole)


def test_copies_go_their_own_way():
    op = trained()
    before, copy = state(op), op.copy()
    copy.project(cavities(200, seed=4, spread=9.0))
    op.predict(cavities(50))
    assert state(op) == before != state(copy)


def test_tuples_that_are_told():
    op = epfast.Operator(LOGISTIC)
    messages = cavities(80)
    op.learn(messages, truths(messages))
    assert (op.calls, op.visits, len(op.store)) == (0, 0, 80)
    fresh = cavities(40, seed=2, spread=1.0)
    targets, sd = op.predict(fresh)
    assert (np.abs(targets - truths(fresh)) < 4.0 * sd + 1e-6).mean() > 0.95
    with pytest.raises(ValueError, match="sd holds -1; allowed: numbers >= 0"):
        op.learn(messages, truths(messages), -np.ones((80, 3)))
    with pytest.raises(ValueError, match=r"targets holds 1e\+308; allowed: sizes up to 1e\+150"):
        op.learn(messages, np.full((80, 3), -1e308))
    with pytest.raises(ValueError, match="targets"):
        op.learn(messages, truths(messages)[:, :2])


def test_equal_tuples_stay_with_the_oracle():
    op = epfast.Operator(LOGISTIC, batch=4)
    same = np.tile([0.5, 1.0], (20, 1))
    found = op.project(same)
    assert_allclose(found, LOGISTIC.answer(same).belief, rtol=1e-12)
    assert op.calls == 20
    assert not op.history


# ---- files ----


@pytest.mark.parametrize(
    "given",
    [{}, {"features": ("fourier", 20, 30)}, {"threshold": -6.0, "features": ("fourier", 9, 20)}],
    ids=str,
)
def test_files(given, tmp_path):
    op = trained(120, audit=0.1, **given)
    op.save(tmp_path / "op.npz")
    back = epfast.load(tmp_path / "op.npz", oracle=SiteOracle("logistic"))
    assert state(back) == state(op)
    assert (back.settings, back.history, back.audited) == (op.settings, op.history, op.audited)
    assert back.oracle == op.oracle
    more = cavities(100, seed=7, spread=5.0)
    assert_array_equal(back.project(more), op.project(more))
    assert state(back) == state(op) == state(pickle.loads(pickle.dumps(op)))


def test_files_before_the_first_fit_and_before_a_loss(tmp_path):
    path = tmp_path / "op.npz"
    for op in (
        epfast.Operator("exact"),
        epfast.Operator(epfast.schemes.ImportanceSampling(500)),
        trained(10),
    ):
        op.save(path)
        back = epfast.load(path, oracle=op.oracle)
        assert back.oracle == op.oracle
        assert state(back) == state(op)


def f(x):
    return -np.logaddexp(0.0, -x)


def test_the_oracle_must_be_given(tmp_path):
    path = tmp_path / "op.npz"
    oracle = SampledFactor(log_density=f, draws=1000)
    op = epfast.Operator(oracle)
    op.project(cavities(40, spread=1.0))
    op.save(path)
    with pytest.raises(ValueError, match=r"oracle is None.*SampledFactor.* f>, density"):
        epfast.load(path)
    back = epfast.load(path, oracle=oracle)
    assert state(back) == state(op)
    for other in (SampledFactor(log_density=f, draws=2000), DensityOracle(f), LOGISTIC):
        with pytest.raises(ValueError, match=r"oracle is .* the file is of another"):
            epfast.load(path, oracle=other)
    with pytest.raises(ValueError, match=r"loss is 'logistic'; allowed for this file: None"):
        epfast.load(path, "logistic")
    trained(40).save(path)
    for other in (epfast.Probit(), epfast.Logistic(beta=0.5)):
        with pytest.raises(ValueError, match=r"oracle is .* another; allowed: SiteOracle\(.*Logis"):
            epfast.load(path, oracle=other)


def members(path):
    with np.load(path) as archive:
        return dict(archive)


def with_header(**changes):
    def change(parts):
        header = {**json.loads(str(parts["header"])), **changes}
        return {**parts, "header": np.array(json.dumps(header))}

    return change


def edited(name, of):
    return lambda parts: {**parts, name: of(parts[name])}


DAMAGES = {
    "format": with_header(format=99),
    "posterior": with_header(posterior="none"),
    "counts": with_header(counts=[1, 2]),
    "settings": with_header(settings={"tolerance": -1.0}),
    "refits": with_header(refits=[32]),
    "audits": with_header(audited=[1.0]),
    "no store": lambda parts: {k: v for k, v in parts.items() if k != "targets"},
    "targets": edited("targets", lambda a: a * np.nan),
    "errors": edited("errors", lambda a: a - 1.0),
    "messages": edited("messages", lambda a: -a),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_files(name, tmp_path):
    path = tmp_path / "op.npz"
    trained(60).save(path)
    parts = DAMAGES[name](members(path))
    header = json.loads(str(parts.pop("header")))
    header.pop("digest")
    for known in (True, False):
        # with a digest of the wrong numbers, and without one
        mine = {**header, "digest": digest(parts, header)} if known else header
        np.savez(path, **parts, header=np.array(json.dumps(mine)))
        with pytest.raises(ValueError, match=r"path is .*allowed: a file written by save"):
            epfast.load(path, oracle=LOGISTIC)


def test_bytes_damaged_at_random(tmp_path):
    path = tmp_path / "op.npz"
    trained(60).save(path)
    good, wanted = path.read_bytes(), state(epfast.load(path, oracle=LOGISTIC))
    rng = np.random.default_rng(0)
    for _ in range(60):
        data = bytearray(good)
        for at in rng.integers(0, len(data), 3):
            data[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(data[: len(data) - int(rng.integers(2)) * 500])
        # what the checksums do not see is none of the numbers
        with contextlib.suppress(ValueError):
            assert state(epfast.load(path, oracle=LOGISTIC)) == wanted
    assert zipfile.is_zipfile(io.BytesIO(good))


@pytest.mark.parametrize("kind", ["site", "belief", "moments"])
def test_errors_of_targets_are_those_of_draws_of_the_answer(kind):
    """Of an oracle whose site targets u have errors: the spread of the targets they lead to."""
    values, errors = np.array([0.3, -0.2]), np.array([0.02, 0.03])
    op = epfast.Operator(
        CallableOracle(lambda m: (0.0 * m + values, 0.0 * m + errors)), targets=kind
    )
    op.project(cavities(6))
    u = values + errors * np.random.default_rng(0).normal(size=(100_000, 2))
    assert len(op.store) == 6
    for row in op.store:
        m, v = row.messages
        mean, variance = m + np.sqrt(v) * u[:, 0], v * np.exp(u[:, 1])
        targets = {
            "site": u.T,
            "belief": (mean, np.log(variance)),
            "moments": (mean, variance + mean**2),
        }[kind]
        assert_allclose(row.errors[:2], np.std(targets, axis=1), rtol=0.02)
        assert_allclose(row.targets[:2], np.median(targets, axis=1), rtol=0.02, atol=0.01)


# ---- oracles that fail ----


@dataclass(frozen=True)
class Refusing(Oracle):
    inputs = ("gaussian",)
    outputs = (0,)
    exact = True
    reasons = ("", "none of them", "last")

    def solve(self, messages, data, power):
        n = len(messages[0])
        return self.finished(messages, [messages[0]], np.zeros(n), reason=np.ones(n, dtype=np.intp))


def test_an_oracle_that_refuses_everything_ends_it():
    op = epfast.Operator(Refusing(), batch=5)
    with pytest.raises(ValueError, match=r"refused the first 5 .*none of them"):
        op.project(cavities(20))
    assert (op.refused, op.calls, len(op.store)) == (5, 5, 0)


def test_what_is_refused_is_nan_and_counted():
    def gives(messages):
        values = np.tile([0.1, -0.1], (len(messages), 1))
        values[messages[:, 0] > 1.0] = np.nan
        return values, None

    oracle = CallableOracle(gives)
    op = epfast.Operator(oracle, batch=200)
    messages = cavities(100)
    found = op.project(messages)
    assert_array_equal(np.isnan(found).any(axis=1), messages[:, 0] > 1.0)
    assert op.refused == (messages[:, 0] > 1.0).sum()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("at", [1, 20, 35])
def test_after_an_interrupt_it_goes_on(error, at):
    asked = 0

    @dataclass(frozen=True)
    class Pressed(Oracle):
        inputs, outputs, exact, reasons = ("gaussian",), (0,), True, ("", "last")

        def solve(self, messages, data, power):
            nonlocal asked
            asked += 1
            if asked == at:
                raise error
            return LOGISTIC.solve(messages, data, power)

    op = epfast.Operator(Pressed(), tolerance=0.01, audit=0.0)
    messages = cavities(200)
    with pytest.raises(error):
        op.project(messages)
    assert len(op.store) == at - 1
    found = KINDS["gaussian"].targets(messages, op.project(messages))
    assert np.abs(found - truths(messages)[:, :2]).max() < 0.03
    op.copy().predict(messages)


RETURNS = {
    "NaN": (lambda m: (np.full((len(m), 2), [0.0, np.nan]), None), "NaN"),
    "shape": (lambda m: (np.zeros((len(m), 3)), None), "shape"),
    "length": (lambda m: (np.zeros((len(m) + 1, 2)), None), "shape"),
    "no pair": (lambda m: np.zeros((len(m), 2)), "allowed: a tuple"),
    "negative error": (lambda m: (np.zeros((len(m), 2)), -np.ones((len(m), 2))), "negative"),
}


@pytest.mark.parametrize("name", RETURNS)
def test_functions_that_return_nonsense(name):
    function, said = RETURNS[name]
    with pytest.raises((ValueError, TypeError), match=said):
        epfast.Operator(function).project(cavities(5))


def test_a_function_that_is_not_deterministic():
    rng = np.random.default_rng(0)
    oracle = CallableOracle(lambda m: (rng.normal(size=(len(m), 2)), None), exact=True)
    with pytest.raises(ValueError, match="for the same message"):
        epfast.Operator(oracle).project(cavities(5))


def test_negative_variances_and_what_a_function_raises():
    def negative(messages):
        return np.column_stack([messages[:, 0], -messages[:, 1]]), None

    oracle = CallableOracle(negative, gives="beliefs")
    with pytest.raises(ValueError, match=r"variance|refused"):
        epfast.Operator(oracle).project(cavities(40))

    def raising(messages):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        epfast.Operator(raising).project(cavities(5))


def test_a_sampler_of_another_length():
    factor = SampledFactor(
        sample=lambda x, rng: x[1:], inputs=("gaussian", "gaussian"), output=1, draws=100
    )
    op = epfast.Operator(factor, ("gaussian", "gaussian"), 1)
    with pytest.raises(ValueError, match="sample"):
        op.project([[0.0, 1.0, 0.0, 1.0]])


# ---- bad input ----

BAD = {
    "tolerance": [0.0, -1.0, np.nan, np.inf, "small", True],
    "batch": [3, 0, 4.5, "8", None],
    "cap": [31, 1 << 16, 40.0],
    "features": ["patches", ("fourier", 0, 5), ("fourier", 5, -1), ("fourier", 5), 3, None],
    "audit": [-0.1, 1.1, np.nan, None],
    "targets": ["sites", None, 1],
    "seed": [-1, 0.5, None, 1 << 64],
    "inputs": [("gauss",), (), "gauss", 1],
    "output": [1, -1, (), (0, 0), 0.0, None],
    "data_width": [-1, 0.5, "value", None],
    "width": [0.0, 1.0],
    "threshold": [np.nan, "low"],
    "power": [0.0, -1.0, np.inf],
    "oracle": ["exakt", None, 3],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in BAD.items() for v in vs], ids=str)
def test_settings_are_checked(name, value):
    given = {"oracle": LOGISTIC, name: value}
    with pytest.raises((ValueError, TypeError), match=rf"{name}.*allowed"):
        epfast.Operator(**given)


@pytest.mark.parametrize(
    "messages",
    [[[0.0, 0.0]], [[0.0, -1.0]], [[np.nan, 1.0]], [[0.0, np.inf]], [[0.0, 1.0, 2.0]], [0.0, 1.0]],
    ids=str,
)
def test_messages_are_checked(messages):
    op = trained(40)
    before = state(op)
    for call in (op.project, op.predict, lambda m: op.learn(m, np.zeros((1, 3)))):
        with pytest.raises(ValueError, match=r"messages.*allowed"):
            call(messages)
    assert state(op) == before


@pytest.mark.parametrize("family", ["gamma", "beta"])
def test_parameters_of_gamma_and_beta_messages(family):
    op = epfast.Operator(CallableOracle(lambda m: (m * 0.0, None), (family,)), (family,))
    for row in ([0.0, 1.0], [1.0, 0.0], [-1.0, 1.0], [np.nan, 1.0]):
        with pytest.raises(ValueError, match=r"messages.*allowed"):
            op.project([row])


def test_data_are_checked():
    op = epfast.Operator(SiteOracle("poisson"), data_width=1)
    messages = cavities(5)
    with pytest.raises(ValueError, match="data has 0 columns"):
        op.project(messages)
    with pytest.raises(ValueError, match="data"):
        op.project(messages, np.ones(4))
    with pytest.raises(ValueError, match="data"):
        op.project(messages, [1, 2, np.nan, 4, 5])
    with pytest.raises(ValueError, match="data has 1 columns"):
        epfast.Operator(SiteOracle("poisson"), data_width=2).project(messages, np.ones(5))
    with pytest.raises(ValueError, match=r"data has 1 columns.* data_width=0: None"):
        trained(40).project(messages, np.ones(5))
    with pytest.raises(ValueError, match="data holds infinity"):
        op.project(messages, [1, 2, np.inf, 4, 5])


def test_the_core_has_room_for_so_many():
    with pytest.raises(ValueError, match=r"output is .*; allowed: at most 7 places"):
        epfast.Operator(lambda m: (m, None), ("gaussian",) * 9, tuple(range(9)))
    with pytest.raises(ValueError, match="data_width are 1 and 15; allowed: 15 together"):
        epfast.Operator(SiteOracle("poisson"), data_width=15)


def test_belief_targets_and_gamma_messages():
    with pytest.raises(ValueError, match=r"targets is 'belief' with inputs .*allowed"):
        epfast.Operator(LOGISTIC, ("gamma",), targets="belief")


def test_a_scheme_without_a_loss_projects_nothing():
    with pytest.raises(ValueError, match=r"oracle is 'exact'.*SiteOracle"):
        epfast.Operator("exact").project(cavities(3))


@pytest.mark.parametrize("level", [0.0, 1.0, np.nan, "high"])
def test_levels_are_checked(level):
    with pytest.raises((ValueError, TypeError), match=r"level.*allowed"):
        trained(40).error_bound(level)


def test_an_oracle_without_log_z():
    """Messages are learned; a fit, whose evidence needs log Z, refuses it."""

    def targets(messages):
        m, v = np.ascontiguousarray(messages.T)
        _, slope, curvature = epfast.backend.tilted_moments("logistic", np.ones(len(m)), m, v)
        return np.stack([slope * np.sqrt(v), np.log1p(v * curvature)], axis=1), None

    op = epfast.Operator(CallableOracle(targets, exact=True))
    rng = np.random.default_rng(0)
    messages = np.stack([rng.normal(size=300), np.exp(rng.normal(size=300))], axis=1)
    assert np.isfinite(op.project(messages)).all()
    assert op.calls < 100
    with pytest.raises(ValueError, match="gives no log Z"):
        epfast.fit_linear(messages, np.ones(300), scheme=epfast.Learned(op))


@pytest.mark.parametrize("features", ["dictionary", ("fourier", 6, 8)])
def test_no_messages_are_no_fault(features):
    op = epfast.Operator(LOGISTIC, features=features)
    none = np.empty((0, 2))
    assert op.project(none).shape == (0, 2)
    assert op.predict(none)[0].shape == (0, 3)
    counts = epfast.Operator(SiteOracle("poisson"), data_width=1)
    assert counts.project(none, np.empty(0)).shape == (0, 2)
    assert counts.project(none, np.empty((0, 1))).shape == (0, 2)


def test_a_low_level_callable_is_no_tuple_of_features():
    function = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(abs)
    with pytest.raises(ValueError, match="features is LowLevelCallable"):
        epfast.Operator(LOGISTIC, features=LowLevelCallable(function))
