"""The fuzzer: cases repeat, planted faults are found, dead and stuck processes are named."""

import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import epfast

TOOLS = Path(__file__).parents[2] / "tools"
if not (TOOLS / "fuzz.py").is_file():
    pytest.skip("tools/ is not here", allow_module_level=True)
pytest.importorskip("sklearn")
sys.path.insert(0, str(TOOLS))

# ruff: noqa: E402  (the folder must be known first)

import fuzz
import fuzz_doors
import fuzz_fits
import fuzz_graphs
import fuzz_oracles
from fuzz_hostile import dressed
from fuzz_oracles import Case, Failure, run
from fuzz_values import Draw

pytestmark = pytest.mark.full

MAKERS = {"doors": fuzz_doors.draw_case, "fits": fuzz_fits.draw_case}
MAKERS["graphs"] = fuzz_graphs.draw_case


def case_of(kind, number, seed=1):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MAKERS[kind](Draw(seed, kind, number))


def words(case):
    """What a case is, without addresses and names of files."""
    shown = (f"{name} = {value!r}" for name, value in case.given.items() if name != "path")
    return [case.where, *(re.sub("0x[0-9a-f]+", "", text) for text in shown)]


@pytest.mark.parametrize("kind", MAKERS)
def test_a_case_is_a_function_of_its_number(kind):
    cases = [[words(case_of(kind, number)) for number in range(40)] for _ in range(2)]
    assert cases[0] == cases[1]
    assert words(case_of(kind, 3, seed=2)) != cases[0][3]


def test_every_public_function_has_a_door():
    drawn = " ".join(case_of("doors", number).where for number in range(3000))
    functions = ["fit_linear", "fit_gp", "fit_svm", "load", "incomplete_cholesky"]
    functions += [n for n in epfast.backend.__all__ if n[0].islower() and n != "build_config"]
    functions += ["LinearClassifier", "GPClassifier", "FullPosterior.", "GPPosterior.", ".save"]
    assert [name for name in functions if name not in drawn] == []


# ---- what counts as a failure ----


def kinds(function, **given):
    return [failure.kind for failure in run(Case("planted", function, given)).found]


def raises(error):
    def function(X):
        raise error

    return function


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("X has shape (3,); allowed: (n, d)"), []),
        (FloatingPointError("the posterior overflowed; try damping"), []),
        (MemoryError(), []),
        (ValueError("array must not contain infs or NaNs"), ["raw error"]),
        (np.linalg.LinAlgError("X is singular"), ["raw error"]),
        (TypeError("'<' not supported between instances of 'str' and 'int'"), ["raw error"]),
        (ValueError("no"), ["unclear error"]),
        (AttributeError("X"), ["wrong kind of error"]),
        (RuntimeError("X"), ["wrong kind of error"]),
        (ZeroDivisionError("X"), ["wrong kind of error"]),
    ],
)
def test_errors(error, kind):
    assert kinds(raises(error), X=1) == kind


def test_errors_out_of_scipy_are_raw():
    def function(X):
        from scipy import linalg

        return linalg.cholesky(X)

    assert kinds(function, X=-np.eye(2)) == ["raw error"]


def test_results_and_inputs():
    def leaves_nan(X):
        return X * np.nan

    def changes(X):
        X[0] = 7.0

    def leaks(X):
        return float(np.log(X - X)[0] > 0)

    X = np.ones(2)
    assert kinds(leaves_nan, X=X) == ["not finite"]
    assert kinds(changes, X=X) == ["input changed"]
    assert kinds(leaks, X=X) == ["leaked warning"]
    assert kinds(lambda X: X + 1.0, X=X) == []


def test_the_kind_of_array_matters_to_some():
    def by_strides(X):
        return float(X.strides[0])

    X = np.ones(4)
    case = Case("planted", by_strides, {"X": X[::2]}, plain={"X": X[:2]})
    assert [failure.kind for failure in run(case).found] == ["depends on the kind of array"]


@pytest.mark.parametrize("number", range(60))
def test_dress_keeps_the_numbers(number):
    draw = Draw(1, "dress", number)
    a = draw.rng.normal(size=(3, 2))
    other = dressed(draw, a, may_be_sparse=True)
    other = other.toarray() if hasattr(other, "toarray") else np.asarray(other, dtype=float)
    np.testing.assert_allclose(other, a)


def test_failures_that_differ_in_numbers_are_one():
    a, b = (Failure("raw error", "f", f"ValueError: x is {x} :: {x}") for x in (1.5, -3e-8))
    assert a.key() == b.key() != Failure("raw error", "g", "ValueError").key()


def test_false_claims_are_seen():
    """A fit that was stopped early, and says that it converged."""
    draw = Draw(1, "fits", 0)
    X = draw.rng.normal(size=(20, 2))
    y = np.where(X[:, 0] > 0, 1.0, -1.0)

    def lies(X, y, schedule):
        from dataclasses import replace

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            post = epfast.fit_linear(X, y, schedule=schedule, prior_variance=100.0)
        return replace(post, converged=True)

    schedule = epfast.EP(sweeps=1, order="sequential", damping=0.3)
    case = Case("fit_linear", lies, {"X": X, "y": y, "schedule": schedule})
    case.check = fuzz_fits.checked(case, draw, "planted")
    assert "false convergence" in {failure.kind for failure in run(case).found}


# ---- integrals ----


@pytest.mark.parametrize("variance", [1e-6, 1.0, 1e6, 1e12])
@pytest.mark.parametrize("mean", [-3.0, 0.0, 0.5, 20.0])
def test_tilted_moments_of_probit(mean, variance):
    sd = np.sqrt(variance)
    found = fuzz_oracles.tilted("probit", 1.0, 1.0, mean * sd, variance)
    z = mean * sd / np.sqrt(1.0 + variance)
    assert found.log == pytest.approx(stats.norm.logcdf(z), abs=1e-7)
    slope = np.exp(stats.norm.logpdf(z) - stats.norm.logcdf(z)) / np.sqrt(1.0 + variance)
    assert found.mean[0] == pytest.approx(mean * sd + variance * slope, abs=1e-6 * sd)


def test_brute_force_in_the_plane():
    """Two orthogonal rows are two problems on a line."""
    rng = np.random.default_rng(0)
    turn, _ = np.linalg.qr(rng.normal(size=(2, 2)))
    X = np.array([[2.0], [0.5]]) * turn.T
    zero, one = np.zeros(2), np.ones(2)
    problem = fuzz_oracles.Posterior("probit", X, np.array([1.0, -1.0]), one, zero, 3.0 * one)
    found = fuzz_oracles.exact(problem, zero, 3.0 * np.eye(2))
    parts = [
        fuzz_oracles.tilted("probit", 1.0, y, 0.0, 3.0 * s**2) for y, s in ((1, 2.0), (-1, 0.5))
    ]
    assert found.log == pytest.approx(sum(part.log for part in parts), abs=1e-5)
    means = [part.mean[0] / s for part, s in zip(parts, (2.0, 0.5), strict=True)]
    np.testing.assert_allclose(found.mean, turn @ means, atol=1e-4)


def test_ep_is_beside_the_truth():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(6, 2))
    y = np.where(rng.random(6) < 0.5, 1.0, -1.0)
    post = epfast.fit_linear(X, y)
    one = np.ones(2)
    problem = fuzz_oracles.Posterior("logistic", X, y, np.ones(6), 0.0 * one, one)
    found = fuzz_oracles.exact(problem, post.mean, post.covariance)
    np.testing.assert_allclose(post.mean, found.mean, atol=0.02)
    assert post.log_evidence == pytest.approx(found.log, abs=0.02)


# ---- the program ----

PLANTED = """
import os, time
import fuzz_calls
from fuzz_oracles import Case

def draw_case(draw):
    return Case("planted", act, {"number": draw.number})

def act(number):
    if number == 7: os.abort()
    if number == 11: time.sleep(60)
    if number == 13: raise KeyError(number)
    return 0.0

import fuzz_values
class Numbered(fuzz_values.Draw):
    def __init__(self, seed, kind, number):
        super().__init__(seed, kind, number)
        self.number = number
fuzz_values.Draw = Numbered
"""


def test_dead_and_stuck_processes(tmp_path):
    """The case is named by which a process dies or stands still; the others are all run."""
    for path in TOOLS.glob("fuzz*.py"):
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "fuzz_doors.py").write_text(PLANTED)
    state = tmp_path / "state.jsonl"
    call = [
        sys.executable,
        "fuzz.py",
        "--doors",
        "20",
        "--fits",
        "0",
        "--graphs",
        "0",
        "--limit",
        "3",
    ]
    call += ["--state", str(state), "--resume"]
    first = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert first.returncode == 1, first.stderr
    stored = [json.loads(line) for line in state.read_text().splitlines()]
    failures = {tuple(failure[:2]) for line in stored for failure in line["failures"]}
    assert failures == {(7, "crash"), (11, "hang"), (13, "wrong kind of error")}
    numbers = [n for line in stored for n in range(line["piece"][1], line["piece"][2])]
    assert sorted(numbers) == list(range(20))
    again = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert again.stdout.startswith("20 doors")  # all is done: only the summary
    assert len(state.read_text().splitlines()) == len(stored)


def test_one_case_is_shown(capsys):
    assert fuzz.main(["--seed", "1", "--case", "doors:1"]) in (0, 1)
    shown = capsys.readouterr().out
    assert shown.startswith("doors:1  ")


# ---- graphs ----


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_graphs(first):
    """Refused by name, or finite, and converged or counted."""
    failures = {}
    for number in range(first, first + 100):
        case = run(case_of("graphs", number))
        if case.found:
            failures[number] = case.found
    assert failures == {}


def test_a_graph_that_lies_is_seen():
    life = fuzz_graphs.Life(Draw(1, "graphs", 0))
    post = None
    while post is None:
        life = fuzz_graphs.Life(Draw(1, "graphs", life.draw.integer(1, 10**6)))
        life.play()
        post = life.post
    post.state.beliefs[:] = np.nan
    found = {kind for kind, _ in fuzz_graphs.judged(post, [])}
    assert "not finite" in found
