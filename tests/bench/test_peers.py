"""Contests with peers: how parameters are tuned, how forecasts are scored and judged."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("sklearn")

import epfast
from bench.likelihoods import contest, peers, rivals, sampled
from epfast import losses

pytestmark = pytest.mark.full

RNG = np.random.default_rng(0)
X = np.column_stack([RNG.normal(size=(120, 2)), np.ones(120)])
H = X @ [0.7, -0.4, 0.2]
CASES = {
    "variance and two groups": (losses.Gaussian(0.5), H + RNG.normal(size=120), ["variance"], 2),
    "cuts": (
        losses.Ordinal((-1.0, 0.0, 1.0)),
        np.searchsorted([-0.5, 0.3, 0.8], H + RNG.normal(size=120)),
        *(["cuts"], 0),
    ),
    "share": (losses.Contaminated(losses.Probit(), 0.1), np.sign(H), ["share"], 0),
    "a group of weights": (losses.Logistic(), np.sign(H + RNG.logistic(size=120)), [], 1),
}


@pytest.mark.parametrize("case", ["variance and two groups", "cuts", "a group of weights"])
def test_the_log_evidence_is_largest_where_the_search_ends(case):
    loss, y, names, count = CASES[case]
    Z = X[:, :2] if names == ["cuts"] else X
    groups = [[0, 1], [2]][:count]
    post = contest.tuned(Z, y, loss, names, groups)
    variance = 1.0 / np.diag(post.prior_precision)

    def at(loss, variance):
        return epfast.fit_linear(Z, y, loss=loss, prior_variance=variance).log_evidence

    assert post.log_evidence == pytest.approx(at(post.loss, variance), abs=1e-6)
    for factor in (0.8, 1.25):
        for name in names:
            moved = np.multiply(getattr(post.loss, name), factor)
            moved = tuple(moved) if moved.ndim else float(moved)
            assert at(post.loss.with_parameters(**{name: moved}), variance) < post.log_evidence
        for group in groups:
            other = variance.copy()
            other[group] *= factor
            assert at(post.loss, other) < post.log_evidence


@pytest.mark.parametrize(
    ("name", "value"), [("scale", 0.3), ("share", 0.2), ("cuts", (-1.0, 0.5, 0.7))]
)
def test_parameters_without_bounds_and_slopes_by_them(name, value):
    x = contest.pack(name, value)
    np.testing.assert_allclose(contest.unpack(name, x)[0], value)
    weight = np.arange(1.0, 1.0 + len(x))  # of a linear function of the parameter
    slope = contest.unpack(name, x, weight)[1]
    for k in range(len(x)):
        ends = [
            weight @ np.atleast_1d(contest.unpack(name, x + sign * 1e-6 * np.eye(len(x))[k])[0])
            for sign in (-1.0, 1.0)
        ]
        assert slope[k] == pytest.approx((ends[1] - ends[0]) / 2e-6, rel=1e-6)


def test_a_contest_of_known_forecasts(capsys):
    """One side knows the truth, the other has a quarter of its sd."""
    y = RNG.normal(size=400)

    def side(sd):
        return lambda X, y: lambda Z, t: rivals.plug_in(stats.norm(np.zeros(len(t)), sd), t)

    sides = {"true": side(1.0), "narrow": side(0.25)}
    for matches, verdict in (([("true", "narrow")], True), ([("narrow", "true")], False)):
        study = contest.Study("normal", np.ones((400, 1)), y, sides, matches)
        rows, claims = contest.contest(study, 3)
        assert [holds for _, _, holds, _ in claims[:2]] == [verdict, verdict]
        true, narrow = rows
        assert true["90 %"] == pytest.approx(0.9, abs=0.06)
        assert narrow["90 %"] < 0.5
        assert narrow["less first"] < -1.0
    assert "normal: 400 x 1, 3 splits" in capsys.readouterr().out


def test_a_side_that_fails_is_said(capsys):
    def fails(X, y):
        raise FloatingPointError("improper")

    study = contest.Study(
        *("sides", X, H, {"ours": rivals.least_squares(np.inf), "theirs": fails}),
        [("ours", "theirs")],
    )
    _, claims = contest.contest(study, 2)
    assert claims[0][2:] == (True, "the peer failed")
    assert "theirs: failed on split 0: improper" in capsys.readouterr().out


@pytest.mark.parametrize("part", [peers.counts, peers.gaussian, peers.censored, peers.labels])
def test_parts_without_data_are_skipped(part, monkeypatch, capsys):
    monkeypatch.delenv("EPFAST_DATA", raising=False)
    assert list(peers.readable(part(SimpleNamespace(quick=True)))) == []
    assert "skipped: set EPFAST_DATA" in capsys.readouterr().out


def test_groups_of_a_multilevel_model_are_found():
    """The effects of 30 groups are nearer to the truth than those without shrinkage."""
    rows, group, y = sampled.multilevel(0)
    post = sampled.fit_multilevel(rows, group, y)
    sd = post.prior_precision[-1, -1] ** -0.5
    assert 0.7 < sd < 1.4
    mean, spread, center, error = sampled.averaged(post, rows, group, y)
    assert abs(center - sd) < error
    np.testing.assert_allclose(mean, post.mean, atol=0.1)
    assert (spread[3:] > np.sqrt(post.variance[3:])).mean() > 0.9


def test_the_costs_of_points_have_their_slopes():
    y = RNG.poisson(np.exp(0.3 * H))
    classes = np.searchsorted(sampled.CUTS, H + RNG.normal(size=120))
    for cost, response in ((sampled.poisson_cost, y), (sampled.ordinal_cost, classes)):
        theta = np.array([0.2, -0.1, 0.4])
        slope = cost(theta, X, response)[1]
        for k in range(3):
            step = 1e-5 * np.eye(3)[k]
            ends = [cost(theta + sign * step, X, response)[0] for sign in (-1.0, 1.0)]
            assert slope[k] == pytest.approx((ends[1] - ends[0]) / 2e-5, rel=1e-6)
