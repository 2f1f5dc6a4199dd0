"""The search of GPClassifier is fast, and finds what a slow one finds."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn")

from scipy import optimize
from sklearn.datasets import load_breast_cancer
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from epfast import EP, GPClassifier, fit_gp
from epfast.estimators import kernels, process
from epfast.gaussian.forms.kernel import ProcessEngine
from tests.oracles.data import classes


def cancer():
    rows, labels = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(1).permutation(len(rows))[:320]
    rows = rows[order][:, :10]
    return (rows - rows.mean(axis=0)) / rows.std(axis=0), labels[order]


def rings():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(200, 2))
    return X, (np.hypot(*X.T) + 0.3 * rng.normal(size=200) < 1.1).astype(int)


def line():
    return classes(260, 4, seed=2, noise=1.0)


SETS = [cancer, rings, line]


def slow(rows, labels, theta):
    """The maximum by sequential sweeps to 1e-9 and L-BFGS to 1e-6 of the slope."""
    rows = rows / rows.std(axis=0)
    squares = ((rows[:, None] - rows[None]) ** 2).sum(axis=2)
    y = np.where(labels == np.unique(labels)[1], 1.0, -1.0)

    def loss(theta):
        distances = squares * np.exp(-2.0 * theta[1])
        K = np.exp(theta[0] - 0.5 * distances)
        post = fit_gp(K, y, schedule=EP(2000, 1e-9, order="sequential"), jitter=1e-12)
        return -post.log_evidence, -post.log_evidence_gradient([K, K * distances])

    options = {"ftol": 1e-14, "gtol": 1e-6}
    found = optimize.minimize(loss, theta, jac=True, method="L-BFGS-B", options=options)
    return found.x, -found.fun


@pytest.mark.parametrize("data", SETS)
def test_the_optimum_is_that_of_a_slow_search(data):
    rows, labels = data()
    model = GPClassifier().fit(rows, labels)
    theta, value = slow(rows, labels, model.kernel_.theta + 0.05)
    assert model.log_marginal_likelihood_value_ == pytest.approx(value, abs=1e-4)
    np.testing.assert_allclose(model.kernel_.theta, theta, atol=1e-3)


KERNELS = [
    2.0 * RBF(1.3),
    RBF(1.3) * ConstantKernel(2.0),
    RBF(1.3),
    ConstantKernel(2.0, "fixed") * RBF(1.3),
    2.0 * RBF(1.3, "fixed"),
    RBF([1.3, 0.7]),
    2.0 * RBF([1.3, 0.7], "fixed"),
    2.0 * Matern([1.3, 0.7], nu=0.5),
    ConstantKernel(2.0, "fixed") * Matern([1.3, 0.7], nu=1.5),
    Matern([1.3, 0.7], nu=2.5) * ConstantKernel(2.0),
    2.0 * kernels.ScaledRBF(1.3, column_scale=np.array([0.5, 2.0])),
    2.0 * kernels.ScaledRBF([1.3, 0.7], column_scale=np.array([0.5, 2.0])),
    2.0 * Matern(1.3, nu=0.5),
    2.0 * Matern(1.3, nu=1.5),
    Matern(1.3, nu=2.5),
]


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("jitter", [0.0, 0.1])
def test_kernels_from_distances_give_evidence_and_gradient(kernel, jitter, monkeypatch):
    rows, labels = rings()
    schedule = EP(500, 1e-10)
    model = GPClassifier(kernel, optimizer=None, jitter=jitter, schedule=schedule)
    model.fit(rows, labels)
    assert kernels.Stationary.of(kernel) is not None
    theta = kernel.theta + 0.2
    value, slope = model.log_marginal_likelihood(theta, eval_gradient=True)
    monkeypatch.setattr(kernels.Stationary, "of", lambda kernel: None)
    plain, by_matrix = model.log_marginal_likelihood(theta, eval_gradient=True)
    assert value == pytest.approx(plain, abs=1e-9)
    np.testing.assert_allclose(slope, by_matrix, atol=1e-7)
    monkeypatch.undo()
    step = 1e-5
    for k, unit in enumerate(step * np.eye(len(theta))):
        rise = model.log_marginal_likelihood(theta + unit) - model.log_marginal_likelihood(
            theta - unit
        )
        assert slope[k] == pytest.approx(rise / (2.0 * step), abs=1e-4)


@pytest.mark.parametrize(
    "kernel",
    [
        Matern(1.0, nu=1.0),
        2.0 * RBF(1.0) + WhiteKernel(),
        RBF(1.0) * RBF(2.0),
        2.0 * (3.0 * RBF(1.0)),
        RBF(1.0) ** 2,
    ],
    ids=str,
)
def test_other_kernels_are_left_to_scikit_learn(kernel):
    assert kernels.Stationary.of(kernel) is None
    rows, labels = rings()
    model = GPClassifier(kernel, optimizer=None).fit(rows, labels)
    _, slope = model.log_marginal_likelihood(kernel.theta, eval_gradient=True)
    assert np.isfinite(slope).all()


def test_sites_from_the_search_save_sweeps_and_change_nothing():
    rows, labels = rings()
    model = GPClassifier().fit(rows, labels)
    cold = GPClassifier(model.kernel_, optimizer=None).fit(rows, labels)
    assert len(model.posterior_.history) < len(cold.posterior_.history)
    assert model.log_marginal_likelihood_value_ == pytest.approx(
        cold.log_marginal_likelihood_value_, abs=1e-8
    )
    np.testing.assert_allclose(model.predict_proba(rows), cold.predict_proba(rows), atol=1e-7)


def test_an_evaluation_takes_few_factorisations(monkeypatch):
    """Sweeps and joint steps alike are of order n^3."""
    rows, labels = cancer()
    counts = {"sweeps": 0, "evaluations": 0}
    sweep, fitted = ProcessEngine.sweep, process.Evidence.posterior_at

    def counted(self, *given):
        counts["sweeps"] += self.n_sites == len(rows)
        return sweep(self, *given)

    def evaluated(self, *given):
        counts["evaluations"] += len(self.problem.X) == len(rows)
        return fitted(self, *given)

    monkeypatch.setattr(ProcessEngine, "sweep", counted)
    monkeypatch.setattr(process.Evidence, "posterior_at", evaluated)
    GPClassifier().fit(rows, labels)
    assert counts["sweeps"] <= 2.5 * counts["evaluations"]


def test_lost_hyper_parameters_are_counted(monkeypatch):
    rows, labels = rings()
    plain, tried = process.Evidence.valid_fit, []

    def fit_at(self, u, *given):
        tried.append(u.tobytes())
        lost = len(tried) > 2 and tried[-1] == tried[2]
        return None if lost else plain(self, u, *given)

    monkeypatch.setattr(process.Evidence, "valid_fit", fit_at)
    with pytest.warns(UserWarning, match=r"failed at 1 of \d+ hyper-parameters"):
        model = GPClassifier(1.0 * RBF(1.0)).fit(rows, labels)
    assert model.n_failed_points_ == 1
