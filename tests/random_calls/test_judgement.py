"""What counts as a failure of random calls: planted faults are seen, and cases repeat."""

import re
import warnings

import numpy as np
import pytest
from scipy import stats

import epfast

pytest.importorskip("sklearn")


from tests.random_calls import fits, graphs, oracles
from tests.random_calls.hostile import dressed
from tests.random_calls.kinds import KINDS, case_of
from tests.random_calls.oracles import Case, Failure, run
from tests.random_calls.values import Draw

pytestmark = pytest.mark.full


def words(case):
    """What a case is, without addresses and names of files."""
    shown = (f"{name} = {value!r}" for name, value in case.given.items() if name != "path")
    return [case.where, *(re.sub("0x[0-9a-f]+", "", text) for text in shown)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_case_is_a_function_of_its_number(kind):
    cases = [[words(case_of(kind, number, "1")) for number in range(40)] for _ in range(2)]
    assert cases[0] == cases[1]
    assert words(case_of(kind, 3, "2")) != cases[0][3]


def test_every_public_function_is_called():
    drawn = " ".join(case_of("calls", number, "1").where for number in range(3000))
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
    case.check = fits.checked(case, draw, "planted")
    assert "false convergence" in {failure.kind for failure in run(case).found}


# ---- integrals ----


@pytest.mark.parametrize("variance", [1e-6, 1.0, 1e6, 1e12])
@pytest.mark.parametrize("mean", [-3.0, 0.0, 0.5, 20.0])
def test_tilted_moments_of_probit(mean, variance):
    sd = np.sqrt(variance)
    found = oracles.tilted("probit", 1.0, 1.0, mean * sd, variance)
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
    problem = oracles.Posterior("probit", X, np.array([1.0, -1.0]), one, zero, 3.0 * one)
    found = oracles.exact(problem, zero, 3.0 * np.eye(2))
    parts = [oracles.tilted("probit", 1.0, y, 0.0, 3.0 * s**2) for y, s in ((1, 2.0), (-1, 0.5))]
    assert found.log == pytest.approx(sum(part.log for part in parts), abs=1e-5)
    means = [part.mean[0] / s for part, s in zip(parts, (2.0, 0.5), strict=True)]
    np.testing.assert_allclose(found.mean, turn @ means, atol=1e-4)


def test_ep_is_beside_the_truth():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(6, 2))
    y = np.where(rng.random(6) < 0.5, 1.0, -1.0)
    post = epfast.fit_linear(X, y)
    one = np.ones(2)
    problem = oracles.Posterior("logistic", X, y, np.ones(6), 0.0 * one, one)
    found = oracles.exact(problem, post.mean, post.covariance)
    np.testing.assert_allclose(post.mean, found.mean, atol=0.02)
    assert post.log_evidence == pytest.approx(found.log, abs=0.02)


# ---- graphs ----


def test_a_graph_that_lies_is_seen():
    life = graphs.Life(Draw(1, "graphs", 0))
    post = None
    while post is None:
        life = graphs.Life(Draw(1, "graphs", life.draw.integer(1, 10**6)))
        life.play()
        post = life.post
    post.state.beliefs[:] = np.nan
    found = {kind for kind, _ in graphs.judged(post, [])}
    assert "not finite" in found
