"""The search of a prior variance for rows of many columns: where it begins, and its starts."""

import math

import numpy as np
import pytest

import epfast
from epfast import EP, LinearClassifier
from epfast.estimators import search as searches
from epfast.estimators.evidence import BinaryProblems, Fits, onward
from epfast.estimators.search import Search
from epfast.gaussian.problem import from_sites, mean_of_rows

N, D, RANK = 300, 210, 12
TIGHT = EP(sweeps=300, tol=1e-10)
FILLED = TIGHT.filled(power=1.0, damping=1.0)


def rows(rank=RANK, noise=0.03, seed=0):
    """Columns that are combinations of a few, far from 0, and nearly nothing more; and labels."""
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(N, rank))
    X = Z @ rng.normal(size=(rank, D)) / math.sqrt(D) + noise * rng.normal(size=(N, D)) + 0.5
    return X, np.where(2.0 * Z[:, 0] - Z[:, 1] + rng.logistic(size=N) > 0.0, 1, -1)


def binary(X, y, intercept=True, schedule=TIGHT):
    """The problems of LinearClassifier, of two classes."""
    model = LinearClassifier(schedule=schedule, fit_intercept=intercept)
    model.classes_, model._seen = np.array([-1, 1]), np.arange(2)
    return model._problems(X, [y.astype(np.float64)], None, schedule)


@pytest.mark.parametrize("intercept", [False, True])
def test_leading_directions_are_another_basis(intercept, monkeypatch):
    """With all directions that are there the evidence, its slope and the sites are the same."""
    X, y = rows(noise=0.0)
    X = X - 0.5 if not intercept else X
    monkeypatch.setattr("epfast.estimators.evidence.UNSEEN", 1e-12)
    whole = binary(X, y, intercept)
    small = whole.in_leading_directions()
    assert small.d == RANK
    one, other = whole.fit(0.7, FILLED), small.fit(0.7, FILLED)
    assert other.log_evidence == pytest.approx(one.log_evidence, abs=1e-8)
    assert other.slope(1.0 / 0.7, RANK) == pytest.approx(one.slope(1.0 / 0.7, D), abs=1e-7)
    start = whole.starting_at(other.posteriors, 0.7)[0]
    np.testing.assert_allclose(start.mean, one.posteriors[0].mean, atol=1e-7)
    np.testing.assert_allclose(start.precision, one.posteriors[0].precision, atol=1e-6)


def test_who_has_no_leading_directions():
    X, y = rows()
    assert binary(X, y).in_leading_directions().d <= RANK
    rng = np.random.default_rng(1)
    assert binary(rng.normal(size=(N, D)), y).in_leading_directions() is None
    assert binary(X[:, :100], y).in_leading_directions() is None
    assert binary(X[:150], y[:150]).in_leading_directions() is None  # of order n


def test_a_search_ends_where_it_ends_without_leading_directions(monkeypatch):
    X, y = rows()
    found = LinearClassifier().fit(X, y)
    monkeypatch.setattr(BinaryProblems, "in_leading_directions", lambda self: None)
    plain = LinearClassifier(schedule=TIGHT).fit(X, y)
    assert found.converged_
    assert found.n_lost_ == 0
    assert math.log(found.prior_variance_ / plain.prior_variance_) == pytest.approx(0.0, abs=2e-4)
    assert found.log_evidence_ == pytest.approx(plain.log_evidence_, abs=1e-5)


def test_a_search_of_separated_classes_takes_few_fits(monkeypatch):
    """Where the weights grow with the prior sd, and the evidence is flat: by log v they were 26."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(400, 60))
    y = X @ rng.normal(size=60) > 0.0
    tried = []
    fits = Search.fits

    def counted(self, variance, schedule):
        tried.append(variance)
        return fits(self, variance, schedule)

    monkeypatch.setattr(Search, "fits", counted)
    LinearClassifier(integrate=False).fit(X, y)
    assert len(tried) <= 18


def test_the_rise_is_a_derivative_with_the_sites_held():
    X, y = rows()
    whole = binary(X, y)
    found = whole.fit(0.7, FILLED)

    def excess(x):
        variance = 1.0 / x**2
        problem = whole.at(0, variance)
        state = from_sites(problem, found.posteriors[0].sites, 0)
        held = Fits([epfast.FullPosterior(state, problem, True, [])], [])
        return held.excess(held.slope(1.0 / variance, D), D)

    x, step = 0.7**-0.5, 1e-4
    difference = (excess(x + step) - excess(x - step)) / (2.0 * step)
    slope = found.slope(1.0 / 0.7, D)
    assert found.rise(1.0 / 0.7, slope, D) == pytest.approx(difference, rel=1e-5)


def test_starts_on_the_line_through_two_fits():
    """They are what their sites make, and nearer to the fit there than the last one."""
    X, y = rows()
    whole = binary(X, y)
    first, last, there = (whole.fit(math.exp(u), FILLED).posteriors[0] for u in (0.0, 0.3, 0.6))
    start = onward(first, last, 1.0)
    own = from_sites(last.problem, start.sites, 0)
    np.testing.assert_allclose(start.precision, own.precision, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(start.shift, own.shift, rtol=1e-9, atol=1e-9)
    assert start.state.log_scale == pytest.approx(own.log_scale)
    for one, other, true in zip(last.sites[:2], start.sites[:2], there.sites[:2], strict=True):
        assert np.abs(other - true).max() < 0.3 * np.abs(one - true).max()
    assert onward(first, last, 1.5) is last


def test_starts_where_sites_would_be_negative():
    X, y = rows()
    whole = binary(X, y)
    first, last = (whole.fit(v, FILLED).posteriors[0] for v in (1.0, 1e4))
    assert last.sites.precision.min() < 0.5 * first.sites.precision.min()
    assert onward(first, last, 1.0) is last


def test_a_start_of_the_same_rows_is_not_summed_up_again():
    """From its precision, under another prior, come the same state and the same fit."""
    X, y = rows()
    whole = binary(X, y)
    last = whole.fit(1.0, FILLED).posteriors
    found = whole.fit(0.1, FILLED, last).posteriors[0]
    copied = BinaryProblems(
        [
            whole.problems[0]._replace(
                data=whole.problems[0].data._replace(X=whole.problems[0].data.X.copy())
            )
        ],
        D,
        whole.intercept_variance,
    )
    other = copied.fit(0.1, FILLED, last).posteriors[0]
    assert len(found.history) == len(other.history)
    np.testing.assert_allclose(found.mean, other.mean, rtol=1e-8, atol=1e-10)
    center = mean_of_rows(X)
    assert found.problem.center == pytest.approx(center)


def test_pilot_tolerance_is_no_fixed_point_of_its_own():
    """A search in leading directions ends, whatever its loose tolerance."""
    X, y = rows()
    small = Search(binary(X, y).in_leading_directions())
    small.fine = small.to(searches.PILOT_TOL)
    assert small._root(-5.0, 5.0, 0.0, math.nan) is not None
    assert small.n_tried <= 8
