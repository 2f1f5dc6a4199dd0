"""Binary problems in fewer columns, and the search of a prior variance that begins there."""

from dataclasses import replace

import numpy as np
import pytest

from epfast import LinearClassifier
from epfast.estimators import linear, search
from epfast.estimators.search import FROM, in_directions

N, D, RANK = 400, FROM + 30, 40


def images(classes=3):
    """Rows of low rank, of columns in several units and with constant ones, and labels."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(N, RANK)) * np.geomspace(3.0, 0.3, RANK) @ rng.normal(size=(RANK, D))
    X[:, ::7] = 2.0
    y = np.argmax(X @ rng.normal(size=(D, classes)) + 20.0 * rng.gumbel(size=(N, classes)), axis=1)
    return 5.0 + X * np.geomspace(0.1, 10.0, D), y


def problem_of(monkeypatch, **given):
    """The binary problems of a fit."""
    seen, highest = [], linear.highest
    monkeypatch.setattr(linear, "highest", lambda *some: seen.append(some[0]) or highest(*some))
    LinearClassifier(integrate=False, **given).fit(*images())
    return seen[0].problem


@pytest.mark.parametrize("intercept", [True, False])
def test_the_evidence_is_that_of_all_columns(monkeypatch, intercept):
    """In all directions in which the rows vary it is the same, by fits of all columns."""
    problem = problem_of(monkeypatch, fit_intercept=intercept)
    found = list(in_directions(problem))
    assert [share for _, share in found] == [0.1, 1e-10]
    assert found[0][0].d < found[1][0].d <= RANK + 1
    fine = replace(problem.schedule, tol=1e-9)
    want = problem.fit(0.05, fine).log_evidence
    assert found[1][0].fit(0.05, fine).log_evidence == pytest.approx(want, abs=1e-6)
    assert abs(found[0][0].fit(0.05, fine).log_evidence - want) > 0.01


def test_the_search_ends_where_that_of_all_columns_does(monkeypatch):
    """It takes its last steps in all columns, so that both ends are the same."""
    X, y = images()
    model = LinearClassifier(integrate=False).fit(X, y)
    monkeypatch.setattr(search, "in_directions", lambda problem: iter(()))
    plain = LinearClassifier(integrate=False).fit(X, y)
    assert model.log_evidence_ == pytest.approx(plain.log_evidence_, abs=1e-3)
    assert model.prior_variance_ == pytest.approx(plain.prior_variance_, rel=1e-3)
    np.testing.assert_allclose(model.coef_ * X.std(0), plain.coef_ * X.std(0), atol=1e-3)
    assert model.converged_
    assert model.posteriors_[0].mean.shape == (D + 1,)


def test_few_columns_and_few_that_do_not_vary_are_searched_as_they_are(monkeypatch):
    """The products would cost more than they save."""
    problem = problem_of(monkeypatch)
    first = problem.problems[0]
    few = first._replace(data=first.data._replace(X=np.ascontiguousarray(first.data.X[:, :40])))
    assert not list(in_directions(problem._replace(problems=[few], d=39)))
    apart = np.linalg.qr(np.random.default_rng(0).normal(size=(N, D)))[0] * problem.units.scale
    data = first.data._replace(X=np.column_stack([apart, np.ones(N)]))
    other = first._replace(data=data, prior=replace(first.prior, center=np.zeros(D)))
    assert not list(in_directions(problem._replace(problems=[other])))
