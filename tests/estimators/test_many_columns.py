"""The search of a prior variance for rows of many columns: where it begins, and its starts."""

import math
from dataclasses import replace

import numpy as np
import pytest

import epfast
from epfast import EP, LinearClassifier
from epfast.estimators import search as searches
from epfast.estimators.evidence import BinaryProblems, Fits
from epfast.estimators.leading import leading
from epfast.estimators.search import Search
from epfast.gaussian.problem import State, mean_of_rows, sum_of_sites

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


def binaries(X, y, intercept=True, schedule=TIGHT):
    """As :func:`binary`, of each class of y against the rest."""
    whole = binary(X, np.where(y == 0, 1, -1), intercept, schedule)
    problem = whole.problems[0]
    labels = [np.where(y == k, 1.0, -1.0) for k in np.unique(y)]
    data = [problem.data._replace(y=label[:, None]) for label in labels]
    return whole._replace(problems=[problem._replace(data=one) for one in data])


@pytest.mark.parametrize("intercept", [False, True])
def test_leading_directions_are_another_basis(intercept):
    """With all directions there are: the slope, and sites that stand still in all columns."""
    X, y = rows()
    X = X - 0.5 if not intercept else X
    y = np.where(X[:, 0] > np.median(X[:, 0]), 2, y > 0)
    whole = binaries(X, y, intercept)
    last = list(leading(whole))[-1]
    assert last.d == D
    truth = whole.fit(0.7, FILLED)
    found = last.fit(0.7, replace(FILLED, tol=1e-6))
    assert found.slope(1.0 / 0.7, D) == pytest.approx(truth.slope(1.0 / 0.7, D), abs=2e-3)
    by_hand = sum(Fits([post], []).curvature(1.0 / 0.7, D) for post in truth.posteriors)
    assert found.curvature(1.0 / 0.7, D) == pytest.approx(by_hand, rel=1e-3)
    for start, post in zip(
        found.by_problem(1.0 / 0.7, D + intercept), truth.posteriors, strict=True
    ):
        spread = np.sqrt(post.predict_latent(X)[1])
        np.testing.assert_allclose(
            start.sites.precision * spread**2, post.sites.precision * spread**2, atol=2e-5
        )
        np.testing.assert_allclose(start.sites.shift * spread, post.sites.shift * spread, atol=2e-4)


def test_slopes_before_sites_have_settled():
    """They are those of one pass more."""
    X, y = rows()
    last = list(leading(binary(X, y)))[-1]
    loose, tight = (last.fit(0.7, replace(FILLED, tol=tol)) for tol in (0.05, 1e-6))
    plain = replace(loose, spread=last._spread(loose.roots, np.zeros(N), None))
    truth = tight.slope(1.0 / 0.7, D)
    error, before = (abs(one.slope(1.0 / 0.7, D) - truth) for one in (loose, plain))
    assert error < 0.3 * before


def test_sites_on_the_line_of_two_fits():
    X, y = rows()
    last = list(leading(binary(X, y)))[-1]
    first = last.fit(0.7, replace(FILLED, tol=1e-6))
    second = last.fit(0.8, replace(FILLED, tol=1e-6), [first])
    there = last.fit(0.9, replace(FILLED, tol=1e-6))
    away, on_line = (
        np.abs(sites.precision / there.sites.precision - 1.0).max()
        for sites in (second.sites, second.at(1.0 / 0.9))
    )
    assert on_line < 0.3 * away


def test_who_has_leading_directions():
    X, y = rows()
    few, *_, most = leading(binary(X, y))
    assert few.d <= RANK
    assert most.d == D
    rng = np.random.default_rng(1)
    assert [small.d for small in leading(binary(rng.normal(size=(N, D)), y))][-1] == D
    assert not list(leading(binary(X[:, :100], y)))
    assert not list(leading(binary(X[:150], y[:150])))  # of order n


def test_a_prior_that_is_too_wide_for_single_precision():
    X, y = rows()
    last = list(leading(binary(X, y)))[-1]
    with pytest.raises(FloatingPointError, match="too wide"):
        last.fit(1e9, FILLED)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_search_ends_where_it_ends_without_leading_directions(classes, monkeypatch):
    X, y = rows()
    y = y if classes == 2 else np.where(X[:, 0] > np.median(X[:, 0]), 2, y > 0)
    found = LinearClassifier().fit(X, y)
    monkeypatch.setattr(searches, "leading", lambda problem: iter(()))
    plain = LinearClassifier(schedule=TIGHT).fit(X, y)
    assert found.converged_
    assert found.n_lost_ == 0
    assert math.log(found.prior_variance_ / plain.prior_variance_) == pytest.approx(0.0, abs=2e-4)
    assert found.log_evidence_ == pytest.approx(plain.log_evidence_, abs=1e-5)
    for one, other in zip(found.posteriors_, plain.posteriors_, strict=True):
        np.testing.assert_allclose(one.mean, other.mean, atol=1e-3 * np.sqrt(other.variance).min())
        assert one.residual < 1e-4


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


def of_sites(problem, sites):
    """The base times the sites."""
    base, (precision, shift) = problem.base, sum_of_sites(problem, sites)
    total = base.log_scale + sites.log_scale.sum()
    return State(base.precision + precision, base.shift + shift, sites, total, 0)


def test_the_rise_is_a_derivative_with_the_sites_held():
    X, y = rows()
    whole = binary(X, y)
    found = whole.fit(0.7, FILLED)

    def excess(x):
        variance = 1.0 / x**2
        problem = whole.at(0, variance)
        state = of_sites(problem, found.posteriors[0].sites)
        held = Fits([epfast.FullPosterior(state, problem, True, [])], [])
        return held.excess(held.slope(1.0 / variance, D), D)

    x, step = 0.7**-0.5, 1e-4
    difference = (excess(x + step) - excess(x - step)) / (2.0 * step)
    slope = found.slope(1.0 / 0.7, D)
    assert found.rise(1.0 / 0.7, slope, D) == pytest.approx(difference, rel=1e-5)


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
