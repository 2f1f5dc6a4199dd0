"""Contests with peers: how forecasts are scored and judged."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("sklearn")

from bench.likelihoods import peers

pytestmark = pytest.mark.full

RNG = np.random.default_rng(0)


def test_a_contest_of_known_forecasts(capsys):
    """One side knows the truth, the other has a quarter of its sd."""
    y = RNG.normal(size=400)

    def side(sd):
        return lambda X, y: lambda Z, t: peers.plug_in(stats.norm(np.zeros(len(t)), sd), t)

    sides = {"true": side(1.0), "narrow": side(0.25)}
    for matches, verdict in (([("true", "narrow")], True), ([("narrow", "true")], False)):
        study = peers.Study("normal", np.ones((400, 1)), y, sides, matches)
        rows, claims = peers.contest(study, 3)
        assert [holds for _, _, holds, _ in claims[:2]] == [verdict, verdict]
        true, narrow = rows
        assert true["90 %"] == pytest.approx(0.9, abs=0.06)
        assert narrow["90 %"] < 0.5
        assert narrow["less first"] < -1.0
    assert "normal: 400 x 1, 3 splits" in capsys.readouterr().out


def test_a_side_that_fails_is_said(capsys):
    def fails(X, y):
        raise FloatingPointError("improper")

    study = peers.Study(
        *(
            "sides",
            np.ones((120, 1)),
            RNG.normal(size=120),
            {"ours": peers.least_squares(np.inf), "theirs": fails},
        ),
        [("ours", "theirs")],
    )
    _, claims = peers.contest(study, 2)
    assert claims[0][2:] == (True, "the peer failed")
    assert "theirs: failed on split 0: improper" in capsys.readouterr().out


@pytest.mark.parametrize("part", [peers.counts, peers.gaussian, peers.censored, peers.labels])
def test_parts_without_data_are_skipped(part, monkeypatch, capsys):
    monkeypatch.delenv("EPFAST_DATA", raising=False)
    assert peers.competing(part, SimpleNamespace(quick=True)) == ([], [])
    assert "skipped: set EPFAST_DATA" in capsys.readouterr().out
