"""GPClassifier against scikit-learn's conventions, fit_gp, and GaussianProcessClassifier."""

import pickle

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import epfast
from epfast import EP, GPClassifier

# of epfast about extreme data of a check, and of scikit-learn about its own
pytestmark = [
    pytest.mark.filterwarnings("default::sklearn.exceptions.SkipTestWarning"),
    pytest.mark.filterwarnings("default::sklearn.exceptions.ConvergenceWarning"),
]


@pytest.mark.slow
@parametrize_with_checks([GPClassifier()])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def rings(n=80, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    radius = np.hypot(*X.T) + 0.15 * rng.normal(size=n)
    return X, np.where(radius < 1.1, "in", "out")


X, Y = rings()
SIGNS = np.where(Y == "out", 1.0, -1.0)
KERNEL = ConstantKernel(4.0) * RBF(1.0)


def test_is_fit_gp():
    model = GPClassifier(KERNEL, optimizer=None).fit(X, Y)
    gp = epfast.fit_gp(KERNEL(X), SIGNS, schedule=EP(200, 1e-6))
    np.testing.assert_array_equal(model.posterior_.mean, gp.mean)
    assert model.log_marginal_likelihood_value_ == gp.log_evidence
    assert model.log_marginal_likelihood() == gp.log_evidence
    Z, _ = rings(30, 1)
    p = gp.predict_proba(KERNEL(Z, X), KERNEL.diag(Z))
    np.testing.assert_allclose(model.predict_proba(Z)[:, 1], p, rtol=1e-10)
    np.testing.assert_array_equal(model.predict(Z), np.where(p > 0.5, "out", "in"))
    assert model.converged_
    assert model.n_iter_ == gp.n_sweeps


def test_the_optimum_is_flat_and_above_its_neighbours():
    model = GPClassifier(KERNEL).fit(X, Y)
    theta = model.kernel_.theta
    value, gradient = model.log_marginal_likelihood(theta, eval_gradient=True)
    assert value == pytest.approx(model.log_marginal_likelihood_value_, abs=1e-6)
    assert abs(gradient).max() < 1e-2
    for step in (0.3 * np.eye(2)).tolist() + (-0.3 * np.eye(2)).tolist():
        assert model.log_marginal_likelihood(theta + step) < value
    assert value > GPClassifier(KERNEL, optimizer=None).fit(X, Y).log_marginal_likelihood()
    assert KERNEL.theta.tolist() == [np.log(4.0), 0.0]


@pytest.mark.parametrize("loss", ["probit", "logistic", epfast.NoisyStep(0.1)])
def test_gradient(loss):
    kernel = KERNEL + WhiteKernel(0.1)
    model = GPClassifier(kernel, optimizer=None, loss=loss, schedule=EP(1000, 1e-10, damping=0.8))
    model.fit(X, Y)
    theta = kernel.theta + np.array([0.1, 0.2, -0.1])
    _, gradient = model.log_marginal_likelihood(theta, eval_gradient=True)
    for k in range(3):
        step = 1e-4 * np.eye(3)[k]
        up, down = (model.log_marginal_likelihood(theta + s) for s in (step, -step))
        assert gradient[k] == pytest.approx((up - down) / 2e-4, rel=1e-5, abs=1e-7)


def test_drops_in_for_scikit_learn():
    """The same calls; Laplace's approximation and EP agree in what they say, not in digits."""
    ours = GPClassifier(KERNEL, loss="logistic").fit(X, Y)
    theirs = GaussianProcessClassifier(KERNEL).fit(X, Y)
    Z, labels = rings(300, 2)
    assert abs(ours.score(Z, labels) - theirs.score(Z, labels)) < 0.05
    assert (ours.predict(Z) == theirs.predict(Z)).mean() > 0.95
    assert ours.kernel_.get_params().keys() == theirs.kernel_.get_params().keys()
    theta = KERNEL.theta
    for model in (ours, theirs):
        value, gradient = model.log_marginal_likelihood(theta, eval_gradient=True)
        assert np.isfinite(value)
        assert gradient.shape == (2,)
        assert isinstance(model.log_marginal_likelihood(), float)
        assert model.log_marginal_likelihood(theta, clone_kernel=False) == pytest.approx(value)


def test_several_classes():
    iris = load_iris()
    rows = StandardScaler().fit_transform(iris.data)[::2]
    names = iris.target_names[iris.target][::2]
    model = GPClassifier(1.0 * RBF(1.0)).fit(rows, names)
    assert model.score(rows, names) > 0.95
    p = model.predict_proba(rows)
    assert p.shape == (75, 3)
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    assert len(model.posteriors_) == model.n_classes_ == 3
    assert not hasattr(model, "posterior_")
    theta = model.kernel_.theta
    assert theta.size == 6
    value, gradient = model.log_marginal_likelihood(theta, eval_gradient=True)
    assert value == pytest.approx(model.log_marginal_likelihood_value_, abs=1e-6)
    assert gradient.shape == (6,)
    _, shared = model.log_marginal_likelihood(theta[:2], eval_gradient=True)
    step = np.array([1e-4, 0.0])
    up, down = (model.log_marginal_likelihood(theta[:2] + s) for s in (step, -step))
    assert shared[0] == pytest.approx((up - down) / 2e-4, rel=1e-3, abs=1e-5)
    assert model.predict_latent(rows)[0].shape == (75, 3)


def test_restarts_find_the_better_optimum():
    kernel = ConstantKernel(1.0, (1e-3, 1e3)) * RBF(1e-3, (1e-3, 1e2))
    one = GPClassifier(kernel).fit(X, Y)
    more = GPClassifier(kernel, n_restarts_optimizer=4, random_state=0).fit(X, Y)
    again = GPClassifier(kernel, n_restarts_optimizer=4, random_state=0).fit(X, Y)
    assert more.log_marginal_likelihood_value_ >= one.log_marginal_likelihood_value_ - 1e-6
    np.testing.assert_array_equal(more.kernel_.theta, again.kernel_.theta)
    unbounded = GPClassifier(RBF(1.0, (1e-3, np.inf)), n_restarts_optimizer=1)
    with pytest.raises(ValueError, match="infinite bounds"):
        unbounded.fit(X, Y)


def test_own_optimizer():
    seen = []

    def optimizer(objective, theta, bounds):
        value, gradient = objective(theta)
        seen.append((value, gradient.shape, bounds.shape))
        best = theta + 0.1
        return best, objective(best, eval_gradient=False)

    model = GPClassifier(KERNEL, optimizer=optimizer).fit(X, Y)
    np.testing.assert_allclose(model.kernel_.theta, KERNEL.theta + 0.1)
    assert seen[0][1:] == ((2,), (2, 2))


def test_pipeline_clone_and_pickle():
    pipe = make_pipeline(StandardScaler(), GPClassifier(1.0 * RBF(1.0)))
    assert cross_val_score(pipe, X, Y, cv=3).mean() > 0.75
    model = clone(GPClassifier(KERNEL, loss="logistic")).fit(X, Y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.log_marginal_likelihood(KERNEL.theta) == model.log_marginal_likelihood(
        KERNEL.theta
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"optimizer": "newton"}, "optimizer"),
        ({"n_restarts_optimizer": -1}, "n_restarts_optimizer"),
        ({"loss": "nope"}, "loss"),
        ({"schedule": epfast.SEP()}, "schedule"),
        ({"jitter": -1.0}, "jitter"),
    ],
)
def test_bad_arguments(arguments, message):
    given = {"optimizer": None} | arguments
    with pytest.raises((ValueError, TypeError), match=message):
        GPClassifier(KERNEL, **given).fit(X, Y)


def test_bad_theta():
    model = GPClassifier(KERNEL, optimizer=None).fit(X, Y)
    for theta in ([0.0], [0.0, np.nan], "ab"):
        with pytest.raises((ValueError, TypeError), match="theta"):
            model.log_marginal_likelihood(theta)
    with pytest.raises(ValueError, match="1 class"):
        GPClassifier().fit(X, np.zeros(len(X)))
