"""Mistakes that users make, and what they read: the argument, what is allowed, what to write."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast import fit_gp, fit_linear

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 3))
Y = np.where(X[:, 0] > 0, 1, -1)
K = X @ X.T + np.eye(20)
HOLED = X.copy()
HOLED[7, 1] = np.nan
CLASSIFIERS = "LinearClassifier or GPClassifier, which take any labels"


def series(values, kind):
    pandas = pytest.importorskip("pandas")
    return pandas.Series(values).astype(kind)


@pytest.mark.parametrize(
    ("y", "says"),
    [
        ((Y > 0).astype(int), "y has the labels 0, 1; allowed: -1 and +1; use np.where(y == 1, "),
        (np.arange(20), "y has the labels 0, 1, 2, 3, ...; allowed: -1 and +1; use "),
        (Y > 0, "y has dtype bool; allowed: the numbers -1 and +1; use np.where(y, 1, -1)"),
        (list(Y > 0), "y has dtype bool; allowed: the numbers -1 and +1; use np.where(y, 1, -1)"),
        (np.where(Y > 0, "yes", "no"), "the numbers -1 and +1; use np.where(y == 'yes', 1, -1)"),
        (["b", "a"] * 10, "the numbers -1 and +1; use np.where(y == 'b', 1, -1)"),
        (np.array(["b", "a"] * 10, object), "use np.where(y == 'b', 1, -1)"),
    ],
)
@pytest.mark.parametrize("fit", [lambda y: fit_linear(X, y), lambda y: fit_gp(K, y)])
def test_labels(fit, y, says):
    with pytest.raises((TypeError, ValueError)) as caught:
        fit(y)
    assert says in str(caught.value)
    assert str(caught.value).endswith(CLASSIFIERS)


@pytest.mark.parametrize("kind", ["category", "str", "object"])
def test_labels_of_pandas(kind):
    with pytest.raises(TypeError, match=r"use np.where\(y == 'b', 1, -1\)"):
        fit_linear(X, series(["b", "a"] * 10, kind))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (
            lambda: fit_linear(X, Y, schedule=epfast.EP),
            TypeError,
            "schedule is the class EP; allowed: an instance, EP()",
        ),
        (
            lambda: fit_gp(K, Y, schedule=epfast.DoubleLoop),
            TypeError,
            "schedule is the class DoubleLoop; allowed: an instance, DoubleLoop()",
        ),
        (
            lambda: fit_linear(X, Y, loss=epfast.Hinge),
            TypeError,
            "loss is the class Hinge; allowed: an instance, Hinge()",
        ),
        (lambda: fit_linear(X, Y, scheme="vq"), ValueError, "did you mean 'variational'?"),
        (lambda: fit_linear(X, Y, loss="log_loss"), ValueError, "did you mean 'logistic'?"),
        (lambda: fit_gp(K, Y, loss="Probit"), ValueError, "did you mean 'probit'?"),
        (lambda: fit_linear(X, Y, posterior="diagonal"), ValueError, "did you mean 'factorized'?"),
        (lambda: epfast.EP(order="shuffle"), ValueError, "did you mean 'shuffled'?"),
        (
            lambda: fit_linear(X, Y, prior_variance="evidence"),
            TypeError,
            "LinearClassifier(prior_variance='evidence') finds one",
        ),
        (
            lambda: fit_linear(X, Y, prior_variance=np.ones(4)),
            ValueError,
            "prior_variance has shape (4,); allowed: a number, or shape (3,)",
        ),
        (lambda: fit_linear(HOLED, Y), ValueError, "X holds NaN or infinity, first in row 7;"),
        (
            lambda: fit_linear(sparse.csr_matrix(HOLED), Y),
            ValueError,
            "X holds NaN or infinity, first in row 7;",
        ),
        (lambda: fit_linear(HOLED, Y, posterior="factorized"), ValueError, "in row 7"),
    ],
)
def test_what_to_write(call, error, says):
    with pytest.raises(error) as caught:
        call()
    assert says in str(caught.value)


def test_names_that_are_deeper():
    with pytest.raises(AttributeError, match=r"it is epfast\.schemes\.Laplace$"):
        epfast.Laplace  # noqa: B018
    with pytest.raises(AttributeError, match=r"it is epfast\.losses\.Poisson$"):
        epfast.Poisson  # noqa: B018
    assert not hasattr(epfast, "Laplace")


def test_modules_that_need_an_extra_are_there_when_asked_for():
    command = "import epfast; print(epfast.plots.__name__, hasattr(epfast, 'nothing'))"
    found = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert found.stdout.split() == ["epfast.plots", "False"]


def test_a_guess_is_made_only_where_a_name_is_near():
    with pytest.raises(ValueError, match=r"^scheme is 'q'; allowed: ") as caught:
        fit_linear(X, Y, scheme="q")
    assert "did you mean" not in str(caught.value)
