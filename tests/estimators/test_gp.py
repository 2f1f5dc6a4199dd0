"""GPClassifier against scikit-learn's conventions, fit_gp, and GaussianProcessClassifier."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    ExpSineSquared,
    GenericKernelMixin,
    Hyperparameter,
    Kernel,
    PairwiseKernel,
    WhiteKernel,
)
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import epfast
from epfast import EP, GPClassifier, GPRegressor
from epfast.estimators import kernels, process as gp
from epfast.inference.runtime import memory_left
from tests.oracles.data import process

# of epfast about extreme data of a check, and of scikit-learn about its own
pytestmark = [
    pytest.mark.filterwarnings("default::sklearn.exceptions.SkipTestWarning"),
    pytest.mark.filterwarnings("default::sklearn.exceptions.ConvergenceWarning"),
]


@pytest.mark.cover(lambda estimator, check: check.func.__name__)
@parametrize_with_checks([GPClassifier(optimizer=None, schedule=EP(tol=1e-10))])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.full
@pytest.mark.cover(lambda estimator, check: check.func.__name__)
@parametrize_with_checks([GPClassifier()])
def test_scikit_learn_checks_of_searches(estimator, check):
    check(estimator)


@pytest.mark.filterwarnings("ignore::epfast.estimators.EvidenceWarning")  # copies have no noise
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["two", "averaged", "three", "gaussian", "poisson", "student_t"])
def test_weights_are_copies_of_rows(kind, seed):
    """By the whole search, with the defaults: w copies of a row are a row of weight w.

    An average, as labels and counts have, is about a mode that is found to 1e-8 nats, and its axes
    come of differences, which leave 2e-5 of it. Gaussian noise of copies, which have none, ends at
    1e-9 of the variance of y: matrices of that condition leave 1e-7 of a value to rounding.
    """
    rng = np.random.default_rng(seed)
    rows, weights = rng.normal(size=(25, 2)), rng.integers(0, 4, 25)
    f = np.sin(2.0 * rows[:, 0])
    noisy = f + 0.4 * rng.normal(size=25)
    model, y = {
        "two": (GPClassifier(integrate=False), noisy > 0.0),
        "averaged": (GPClassifier(), noisy > 0.0),
        "three": (GPClassifier(), np.digitize(noisy, [-0.4, 0.4])),
        "poisson": (GPRegressor(loss="poisson"), rng.poisson(np.exp(f))),
    }.get(kind, (GPRegressor(loss=kind), noisy))
    copies = rng.permutation(np.repeat(np.arange(25), weights))
    one = clone(model).fit(rows, y, sample_weight=weights)
    other = clone(model).fit(rows[copies], y[copies])
    name = "predict_proba" if kind in ("two", "averaged", "three") else "predict"
    close = {"gaussian": 1e-6, "averaged": 5e-5, "poisson": 5e-5}.get(kind, 1e-7)
    expected = getattr(other, name)(rows)
    np.testing.assert_allclose(
        getattr(one, name)(rows), expected, atol=close * np.abs(expected).max()
    )
    assert one.log_evidence_ == pytest.approx(other.log_evidence_, rel=0.1 * close)


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


@pytest.mark.full
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


@pytest.mark.full
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


@pytest.mark.full
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


def test_processes_of_low_rank():
    rows, _, y = process(80)
    labels = np.where(y > 0, "a", "b")
    exact = GPClassifier(KERNEL, optimizer=None).fit(rows, labels)
    whole = GPClassifier(KERNEL, optimizer=None, rank=80).fit(rows, labels)
    few = GPClassifier(KERNEL, optimizer=None, rank=40).fit(rows, labels)
    np.testing.assert_allclose(whole.predict_proba(rows), exact.predict_proba(rows), atol=1e-5)
    np.testing.assert_allclose(few.predict_proba(rows), exact.predict_proba(rows), atol=0.05)
    assert few.posterior_.rank == 40
    assert few.log_marginal_likelihood(KERNEL.theta) == pytest.approx(few.posterior_.log_evidence)
    with pytest.raises(ValueError, match=r"schedule is SEP.*allowed with rank and an optimizer"):
        GPClassifier(KERNEL, rank=15, schedule=epfast.SEP()).fit(rows, labels)
    with pytest.raises(ValueError, match=r"jitter is 0\.1; allowed with rank=15: 0"):
        GPClassifier(KERNEL, optimizer=None, rank=15, jitter=0.1).fit(rows, labels)
    three = GPClassifier(rank=15).fit(rows, np.arange(80) % 3)
    assert three.predict_proba(rows).shape == (80, 3)


# ---- the search, and the matrices that it works in ----


class Variance(Kernel):
    """A variance times a matrix of its own, which it hands out as it pleases."""

    def __init__(self, rows, variance=1.0, spoiled=lambda K: K):
        self.rows, self.variance, self.spoiled = rows, variance, spoiled

    @property
    def hyperparameter_variance(self):
        return Hyperparameter("variance", "numeric", (1e-3, 1e3))

    def __call__(self, X, Y=None, eval_gradient=False):
        K = self.variance * RBF(1.0)(X, Y)
        K = K if Y is not None else self.spoiled(K)
        # d K / d log variance is K: a view of it
        return (K, K[:, :, None]) if eval_gradient else K

    def diag(self, X):
        return np.full(len(X), self.variance)

    def is_stationary(self):
        return True


def test_the_kernel_is_checked_once(monkeypatch):
    """At the hyper-parameters that are found; the search does not factorise K to check it."""
    checked = []
    plain = kernels.checked_kernel
    monkeypatch.setattr(
        kernels, "checked_kernel", lambda *given: checked.append(1) or plain(*given)
    )
    GPClassifier(KERNEL).fit(X, Y)
    assert len(checked) == 1
    GPClassifier(1.0 * RBF(1.0), optimizer=None).fit(X, np.arange(len(X)) % 3)
    assert len(checked) == 4


def test_a_gradient_that_is_a_view_of_the_kernel():
    kernels = Variance(X), ConstantKernel(1.0, (1e-3, 1e3)) * RBF(1.0, "fixed")
    # the average has a prior of the root where that is known
    found, plain = (GPClassifier(kernel, integrate=False).fit(X, Y) for kernel in kernels)
    np.testing.assert_allclose(found.kernel_.theta, plain.kernel_.theta, rtol=1e-8)
    np.testing.assert_allclose(found.predict_proba(X), plain.predict_proba(X), rtol=1e-8)


@pytest.mark.full
def test_kernels_that_are_the_rows_themselves():
    """Of scikit-learn's a precomputed one returns what it was given, which is not to be lost."""
    K = KERNEL(X)
    K.flags.writeable = False
    for kernel in (
        PairwiseKernel(metric="precomputed"),
        2.0 * PairwiseKernel(metric="precomputed"),
    ):
        model = GPClassifier(kernel, jitter=0.1).fit(K, Y)
        np.testing.assert_array_equal(model.X_train_, K)
    model = GPClassifier(PairwiseKernel(metric="precomputed"), optimizer=None).fit(K, Y)
    plain = GPClassifier(KERNEL, optimizer=None).fit(X, Y)
    np.testing.assert_allclose(model.posterior_.mean, plain.posterior_.mean, rtol=0, atol=1e-10)


def test_kernels_that_fail():
    def search(objective, theta, bounds):
        tried = [(t, objective(t)) for t in (theta, theta + 3.0, theta + 0.1)]
        assert np.isinf(tried[1][1][0])
        assert not tried[1][1][1].any()
        return tried[2][0], tried[2][1][0]

    def spoiled(K):
        return np.where(K > 5.0, np.nan, K)

    with pytest.warns(epfast.ConvergenceWarning, match="EP failed at 1 of 3 hyper-parameters"):
        model = GPClassifier(Variance(X, spoiled=spoiled), optimizer=search).fit(X, Y)
    assert model.kernel_.theta == pytest.approx(0.1)
    assert model.n_failed_points_ == 1
    with pytest.raises(FloatingPointError, match="all hyper-parameters that were tried"):
        GPClassifier(Variance(X, spoiled=lambda K: K * np.nan)).fit(X, Y)
    for bad, message in (
        (lambda K: K - 2.0 * np.eye(len(K)), "negative diagonal"),
        (lambda K: K + 0.1 * np.eye(len(K))[:, ::-1] - 0.1, "not returning a positive definite"),
        (lambda K: K * np.nan, "NaN"),
        (lambda K: K[:, :-1], "K has shape"),
    ):
        with pytest.raises(ValueError, match=message):
            GPClassifier(Variance(X, spoiled=bad), optimizer=None).fit(X, Y)


def test_a_warning_names_the_line_of_the_user():
    with pytest.warns(epfast.ConvergenceWarning, match="did not converge") as caught:
        GPClassifier(KERNEL, optimizer=None, schedule=EP(1, 1e-8)).fit(X, Y)
    assert caught[0].filename == __file__


# ---- inputs that are no vectors; what a kernel or the memory is to blame for ----


class Sequences(GenericKernelMixin, Kernel):
    """Pairs of letters that agree, others by a baseline: an example of scikit-learn's pages."""

    def __init__(self, baseline=0.5, baseline_bounds=(1e-5, 1.0)):
        self.baseline, self.baseline_bounds = baseline, baseline_bounds

    @property
    def hyperparameter_baseline(self):
        return Hyperparameter("baseline", "numeric", self.baseline_bounds)

    def __call__(self, X, Y=None, eval_gradient=False):
        others = X if Y is None else Y
        alike = np.array([[sum(c == d for c in a for d in b) for b in others] for a in X])
        pairs = np.array([[len(a) * len(b) for b in others] for a in X])
        K = alike + self.baseline * (pairs - alike)
        return (K, self.baseline * (pairs - alike)[:, :, None]) if eval_gradient else K

    def diag(self, X):
        return np.array([self([a])[0, 0] for a in X])

    def is_stationary(self):
        return False


TEXTS = ["AGCT", "AGC", "AACT", "TAA", "AAA", "GAACA", "GT", "CCC", "TTA", "ACGG"]
OBJECTS = np.empty(10, dtype=object)
OBJECTS[:] = [tuple(text) for text in TEXTS]


@pytest.mark.parametrize("rows", [TEXTS, np.array(TEXTS), OBJECTS])
def test_kernels_on_texts_and_objects(rows):
    """The right predictions are scikit-learn's, whose Gaussian regression is exact as ours is."""
    y = np.array([1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 1.0, 2.0, 3.0, 1.0])
    ours = GPRegressor(Sequences(), loss=epfast.losses.Gaussian(0.1), learn=(), center=False)
    ours.fit(rows, y)
    theirs = GaussianProcessRegressor(Sequences(), alpha=0.1).fit(rows, y)
    np.testing.assert_allclose(ours.predict(rows), theirs.predict(rows), atol=1e-3)
    labels = y > 1.5
    for given in ({}, {"rank": 5}, {"loss": "multiclass"}):
        model = GPClassifier(2.0 * Sequences(), **given).fit(rows, labels)
        assert model.predict(rows).shape == (10,)
        assert model.sample_y(rows, 3).shape == (10, 3)
    with pytest.raises(ValueError, match=r"convert|sequence"):
        GPClassifier(KERNEL).fit(rows, labels)


@pytest.mark.parametrize("kind", [GPClassifier, GPRegressor])
@pytest.mark.parametrize("optimizer", ["fmin_l_bfgs_b", None])
@pytest.mark.parametrize(
    "kernel", [ExpSineSquared(), PairwiseKernel(metric="sigmoid"), PairwiseKernel(metric="cosine")]
)
def test_a_kernel_that_is_no_covariance_is_named(kind, optimizer, kernel):
    """By the eigenvalues of its matrix; the cosine is one."""
    model = kind(kernel, optimizer=optimizer, jitter=1e-6)
    if np.linalg.eigvalsh(kernel(X))[0] > -1e-8:
        model.fit(X, SIGNS)
        return
    with pytest.raises(ValueError, match=r"kernel, (Exp|Pair).*, is not returning a positive def"):
        model.fit(X, SIGNS)


@pytest.mark.parametrize("kind", [GPClassifier, GPRegressor])
def test_rows_whose_matrices_do_not_fit_are_refused(kind, monkeypatch):
    """A search over a kernel without a closed form has a matrix of slopes per hyper-parameter."""
    many = ConstantKernel() * RBF() + ConstantKernel() * RBF(10.0)
    monkeypatch.setattr(gp, "memory_left", lambda: 4.0 * 8.0 * len(X) ** 2)
    kind(many, optimizer=None).fit(X, SIGNS)
    with pytest.raises(ValueError, match="80 rows"):
        kind(many).fit(X, SIGNS)
    monkeypatch.setattr(gp, "memory_left", lambda: 1e5)
    with pytest.raises(ValueError, match=r"80 rows: .* more than 1e\+05 bytes.*rank="):
        kind().fit(X, SIGNS)
    kind(KERNEL, optimizer=None, rank=5).fit(X, SIGNS)

    def full(*given):
        raise MemoryError("Unable to allocate 1.49 GiB")

    monkeypatch.setattr(gp, "memory_left", lambda: 1e12)
    monkeypatch.setattr(gp, "search", full)
    with pytest.raises(MemoryError, match="rank="):
        kind().fit(X, SIGNS)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the limits of Linux")
def test_memory_that_is_left():
    """What a limit of 4 GB leaves of 4 GB is not more, and a machine has some."""
    assert 1e6 < memory_left() < 1e15
    text = (
        "import resource; from epfast.inference.runtime import memory_left\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 * 10**9,) * 2); print(memory_left())"
    )
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, check=True)
    assert 1e8 < float(found.stdout) < 4e9


def test_class_weights_multiply_those_of_rows():
    given = np.random.default_rng(0).integers(1, 3, len(X)).astype(float)
    by_class = {"in": 1.0, "out": 2.0}
    model = GPClassifier(KERNEL, optimizer=None, class_weight=by_class)
    model.fit(X, Y, sample_weight=given)
    plain = GPClassifier(KERNEL, optimizer=None)
    plain.fit(X, Y, sample_weight=given * np.where(Y == "out", 2.0, 1.0))
    np.testing.assert_array_equal(model.predict_proba(X), plain.predict_proba(X))
    mass = {name: given[name == Y].sum() for name in ("in", "out")}
    balanced = clone(model).set_params(class_weight="balanced").fit(X, Y, sample_weight=given)
    plain.fit(X, Y, given * np.array([given.sum() / (2.0 * mass[name]) for name in Y]))
    np.testing.assert_allclose(balanced.predict_proba(X), plain.predict_proba(X), rtol=1e-12)


def test_covariances_of_predictions():
    """The covariance is that of the posterior, and scikit-learn's where the noise is Gaussian."""
    y, Z = X[:, 0] + 0.1 * np.cos(np.arange(len(X))), rings(7, 1)[0]
    model = GPRegressor(KERNEL, optimizer=None, loss=epfast.losses.Gaussian(0.01), center=False)
    model.fit(X, y)
    mean, covariance = model.predict(Z, return_cov=True)
    _, joint = model.posterior_.predict_latent(KERNEL(Z, X), KERNEL(Z), joint=True)
    np.testing.assert_array_equal(covariance, joint)
    theirs = GaussianProcessRegressor(KERNEL, alpha=0.01, optimizer=None).fit(X, y)
    want, of_them = theirs.predict(Z, return_cov=True)
    np.testing.assert_allclose(mean, want, atol=1e-8)
    np.testing.assert_allclose(covariance, of_them, atol=1e-8)
    with pytest.raises(ValueError, match="return_std and return_cov"):
        model.predict(Z, return_std=True, return_cov=True)
