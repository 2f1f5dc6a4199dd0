"""The record of speed over revisions: tasks run, rows are merged and judged, dumps are read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.history import revisions, tasks

pytestmark = pytest.mark.full


def test_every_task_can_be_done():
    assert [name for name, _ in tasks.possible()] == list(tasks.TASKS)


def test_counting_calls_getppid_around_each_task(tmp_path, monkeypatch):
    called = []
    named = [(n, lambda n=n: called.append(n)) for n in "ab"]
    monkeypatch.setattr(tasks, "possible", lambda: named)
    monkeypatch.setattr(tasks.os, "getppid", lambda: called.append("|"))
    tasks.count(tmp_path / "names.json")
    assert called == ["|", "a", "|", "|", "b", "|"]
    assert json.loads((tmp_path / "names.json").read_text()) == ["a", "b"]


def test_counts_are_of_the_dump_at_the_second_call(tmp_path, monkeypatch):
    """Dumps 1, 3 are of what lies between tasks; 2, 4 of the tasks."""

    def output(*command, env):
        (tmp_path / "names.json").write_text('["a", "b"]')
        for number in (1, 2, 3, 4):
            (tmp_path / f"callgrind.{number}").write_text(f"part: 1\ntotals: {number}000000\n")

    monkeypatch.setattr(revisions, "output", output)
    assert revisions.counted(Path(sys.executable), tmp_path, tmp_path) == {"a": 2.0, "b": 4.0}


@pytest.fixture
def history(tmp_path, monkeypatch):
    """Names of three commits of a new repository."""

    def git(*command):
        done = subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path), *command],
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout

    try:
        git("init", "-q")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs git")
    for i in range(3):
        git("commit", "-q", "--allow-empty", "-m", str(i))
    monkeypatch.setattr(revisions, "ROOT", tmp_path)
    return git("log", "--reverse", "--abbrev=7", "--format=%h").split()


def test_rows_are_in_the_order_of_the_history_and_new_ones_replace_old(history):
    a, b, c = ({"revision": name, "x": 1} for name in history)
    assert revisions.merged([a, c], [b, {**a, "x": 2}]) == [{**a, "x": 2}, b, c]


def test_the_last_is_judged_by_the_best_before():
    name = next(iter(tasks.TASKS))
    rows = [{"revision": r, name: count} for r, count in (("a", 2.0), ("b", 1.0), ("c", 1.2))]
    ((task, _, holds, why),) = revisions.judged(rows)
    assert (task, holds) == (name, False)
    assert why.startswith("1.20 times those of b")
    ((_, _, holds, _),) = revisions.judged([*rows, {"revision": "d", name: 1.05}])
    assert holds
    assert revisions.judged(rows[:1]) == []
