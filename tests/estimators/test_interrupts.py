"""Ctrl-C in estimators and support vector machines."""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF

import epfast
from epfast import GPClassifier, LinearClassifier
from tests.oracles.data import classes
from tests.oracles.interrupts import calls_of, interrupted

X, Y = classes(40, 3, seed=4)
LABELS = np.digitize(X[:, 0], [-0.4, 0.4])
MAKE = {
    "evidence": lambda: LinearClassifier(prior_variance="evidence"),
    "fixed": lambda: LinearClassifier(prior_variance=1.0),
    "process": lambda: GPClassifier(1.0 * RBF(1.0)),
    "process, fixed": lambda: GPClassifier(1.0 * RBF(1.0), optimizer=None),
}
#: where the arguments are checked
DOORS = "fit_problem", "fit_process"


@pytest.mark.full
@pytest.mark.parametrize("labels", [Y, LABELS], ids=["two", "three"])
@pytest.mark.parametrize("kind", MAKE)
def test_the_estimator_stays_as_it_was_and_the_posterior_of_the_sweeps_comes_out(kind, labels):
    model = MAKE[kind]()
    parameters = vars(model).copy()
    calls = calls_of(lambda: MAKE[kind]().fit(X, labels))
    # here the arguments are checked
    begin = calls.first[next(name for name in ("maximum", *DOORS) if name in calls.first)]
    rng, posteriors = np.random.default_rng(0), 0
    for at in rng.integers(begin + 1, calls.count - 2, size=10):
        pressed = interrupted(lambda: model.fit(X, labels), int(at))
        if pressed is None:  # it had fewer calls, and is fitted
            vars(model).clear()
            vars(model).update(parameters)
            continue
        assert isinstance(pressed, epfast.Interrupted), at
        assert vars(model) == parameters
        post = pressed.posterior
        if post is not None:  # it fell in sweeps
            posteriors += 1
            assert np.isfinite(post.mean).all()
            assert (post.variance > 0.0).all()
    assert posteriors or kind == "evidence"  # whose sweeps are a small part


@pytest.mark.parametrize("kind", ["fixed", "process, fixed"])
def test_an_earlier_fit_stays(kind):
    model = MAKE[kind]().fit(X, Y)
    before, proba = vars(model).copy(), model.predict_proba(X)
    calls = calls_of(lambda: MAKE[kind]().fit(X, LABELS))
    middle = (calls.first[next(name for name in DOORS if name in calls.first)] + calls.count) // 2
    assert interrupted(lambda: model.fit(X[:30], LABELS[:30]), middle) is not None
    assert vars(model) == before
    np.testing.assert_array_equal(model.predict_proba(X), proba)


@pytest.mark.parametrize("arguments", [{}, {"chunks": 4}, {"chunks": 4, "order": "parallel"}])
def test_a_support_vector_machine_goes_on_from_its_alpha(arguments):
    rows, y = classes(300, 4, seed=5)

    def fit():
        return epfast.fit_svm(rows, y, C=5.0, tol=1e-6, **arguments)

    whole, calls = fit(), calls_of(fit)
    K = np.exp(-whole.gamma * ((rows[:, None] - rows) ** 2).sum(axis=-1))
    rng, unfinished = np.random.default_rng(0), 0
    for at in rng.integers(calls.first["_smo"] + 1, calls.count - 2, size=25):
        pressed = interrupted(fit, int(at))
        if pressed is None:
            continue
        svm = pressed.posterior
        # what it says of itself is so
        unfinished += not svm.converged
        beta = y * svm.alpha
        assert abs(beta.sum()) < 1e-9
        if svm.history:
            objective = 0.5 * beta @ K @ beta - svm.alpha.sum()
            assert svm.dual_objective == pytest.approx(objective, rel=1e-7, abs=1e-9)
        again = epfast.fit_svm(rows, y, C=5.0, tol=1e-6, alpha=svm.alpha)
        assert again.dual_objective == pytest.approx(whole.dual_objective, rel=1e-6)
    assert unfinished
