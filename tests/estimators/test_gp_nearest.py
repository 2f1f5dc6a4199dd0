"""Processes by nearest rows: EP where every row counts, else what plain NumPy says."""

import pickle
import warnings

import numpy as np
import pytest
from scipy import integrate, stats
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Matern, WhiteKernel

import epfast
from epfast._core.nearest import regress
from epfast.estimators import kernels, process
from epfast.estimators.kernels import Neighbors

KERNEL = ConstantKernel(2.0) * RBF(1.3)


def table(n, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, (np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.5 * rng.normal(size=n) > 0.0).astype(int)


def classifier(kernel=KERNEL, **given):
    given = {"optimizer": None, "schedule": epfast.EP(200, tol=1e-11)} | given
    return epfast.GPClassifier(kernel, **given)


@pytest.mark.parametrize("loss", ["probit", "logistic", "hinge"])
@pytest.mark.parametrize(
    "kernel",
    [
        KERNEL,
        Matern([1.0, 2.0, 3.0], nu=1.5),
        ConstantKernel(0.5) * DotProduct(1.0) + RBF(1.0) + WhiteKernel(0.1),
    ],
)
def test_with_all_rows_it_is_ep(loss, kernel):
    X, y = table(70)
    X = np.concatenate([X, X[:5]])  # copies
    y = np.concatenate([y, y[:5]])
    exact = classifier(kernel, loss=loss).fit(X, y)
    near = classifier(kernel, loss=loss, method="nearest", n_neighbors=74).fit(X, y)
    assert near.converged_
    assert isinstance(near.posterior_, epfast.NearestGPPosterior)
    for name in ("mean", "variance"):
        ours, theirs = (getattr(model.posterior_, name) for model in (near, exact))
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-8)
    new = np.random.default_rng(1).normal(size=(30, 3))
    for ours, theirs in zip(near.predict_latent(new), exact.predict_latent(new), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-8)
    assert near.posterior_.residual < 1e-8
    np.testing.assert_allclose(
        near.posterior_.loo_log_predictive(), exact.posterior_.loo_log_predictive(), atol=1e-8
    )


def plain_cavity(kernel, X, x, rows, precision, shift):
    """The process at x by regression on pseudo-observations."""
    K, k = kernel(X[rows]), kernel(x[None], X[rows])[0]
    solved = np.linalg.solve(
        K + np.diag(1.0 / precision[rows]), np.stack([k, (shift / precision)[rows]], 1)
    )
    return k @ solved[:, 1], kernel.diag(x[None])[0] - k @ solved[:, 0]


@pytest.mark.parametrize(
    "kernel", [KERNEL, ConstantKernel(2.0) * Matern([0.5, 1.0, 3.0], nu=2.5), 2.0 * DotProduct(1.0)]
)
def test_cavities_are_those_of_the_nearest_rows(kernel):
    X, y = table(60)
    near = classifier(kernel, method="nearest", n_neighbors=12).fit(X, y)
    sites, signs = near.posterior_.sites, np.where(y > 0, 1.0, -1.0)
    index = Neighbors(kernel, X, X, 12, np.arange(60)).index
    for i in range(0, 60, 7):
        rows = index[i]
        m, v = plain_cavity(kernel, X, X[i], rows, sites.precision, sites.shift)
        density = lambda f: stats.norm.pdf(f, m, np.sqrt(v)) * stats.norm.cdf(signs[i] * f)  # noqa: E731, B023
        ends = m - 12.0 * np.sqrt(v), m + 12.0 * np.sqrt(v)
        z, mean, square = (
            integrate.quad(lambda f: f**k * density(f), *ends, epsabs=1e-13)[0]  # noqa: B023
            for k in range(3)
        )
        found = near.posterior_.mean[i], near.posterior_.variance[i]
        np.testing.assert_allclose(found, (mean / z, square / z - (mean / z) ** 2), rtol=1e-7)
        assert near.posterior_.loo_log_predictive()[i] == pytest.approx(np.log(z), abs=1e-8)
    # predictions have more
    new = np.random.default_rng(1).normal(size=(5, 3))
    mean, variance = near.predict_latent(new)
    for i, x in enumerate(new):
        known = plain_cavity(kernel, X, x, np.arange(60), sites.precision, sites.shift)
        np.testing.assert_allclose((mean[i], variance[i]), known, rtol=1e-9)


@pytest.mark.parametrize(
    "kernel", [KERNEL, ConstantKernel(2.0) * Matern([0.5, 1.0, 3.0], nu=2.5), 2.0 * DotProduct(1.0)]
)
@pytest.mark.parametrize("d", [3, 20])
@pytest.mark.parametrize("own", [True, False])
def test_neighbors_have_the_largest_correlations(kernel, d, own):
    X, _ = table(100, d)
    X[50:55] = X[:5]
    if isinstance(kernel.get_params().get("k2__length_scale"), list):
        kernel = clone(kernel).set_params(k2__length_scale=np.linspace(1.0, 3.0, d))
    inputs = X if own else X[::7] + 0.1
    found = Neighbors(kernel, X, inputs, 12, np.arange(100) if own else None).index
    K, sd = np.abs(kernel(inputs, X)), np.sqrt(kernel.diag(X))
    like = K / np.outer(np.sqrt(kernel.diag(inputs)), sd)
    if own:
        assert (found != np.arange(100)[:, None]).all()
        np.fill_diagonal(like, -1.0)
    few = np.zeros(100, dtype=bool)
    few[np.random.default_rng(0).permutation(100)[:10]] = True
    for i, rows in enumerate(found):
        assert len(set(rows)) == 12
        for part, count in ((~few, 6), (few, 6)):
            most = np.sort(np.where(part, like[i], -1.0))[::-1][:count]
            np.testing.assert_allclose(np.sort(like[i][rows[part[rows]]])[::-1], most, rtol=1e-12)
    # all others, where so many are asked for
    for ask in (99, 1000):
        whole = Neighbors(kernel, X, inputs, ask, np.arange(100) if own else None)
        assert whole.count == min(ask, 100 - own)
        assert all(len(set(rows)) == whole.count for rows in whole.index)


def test_weights_copy_rows():
    X, y = table(40)
    weights = np.tile([1.0, 2.0, 0.5, 0.0], 10)
    exact = classifier().fit(X, y, weights)
    near = classifier(method="nearest", n_neighbors=29).fit(X, y, weights)
    np.testing.assert_allclose(near.posterior_.mean, exact.posterior_.mean, atol=1e-8)


@pytest.mark.parametrize("loss", ["gaussian", "poisson"])
def test_regressor_with_all_rows_is_exact(loss):
    X, _ = table(60)
    rng = np.random.default_rng(2)
    y = X[:, 0] + 0.3 * rng.normal(size=60) if loss == "gaussian" else rng.poisson(np.exp(X[:, 0]))
    offset = 0.1 * X[:, 1]
    given = {"loss": loss, "optimizer": None, "schedule": epfast.EP(200, tol=1e-11)}
    exact = epfast.GPRegressor(KERNEL, **given).fit(X, y, offset=offset)
    near = epfast.GPRegressor(KERNEL, method="nearest", n_neighbors=59, **given)
    near.fit(X, y, offset=offset)
    for ours, theirs in zip(
        near.predict(X[:9], return_std=True), exact.predict(X[:9], return_std=True), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8)


def test_beyond_exact_sizes_it_says_so(monkeypatch):
    monkeypatch.setattr(process, "EXACT_UP_TO", 100)
    X, y = table(150, 6)
    with pytest.warns(epfast.DataWarning, match="150 rows.*would take"):
        near = epfast.GPClassifier(n_neighbors=20).fit(X, y)
    assert near.posterior_.n_neighbors == 20
    assert np.isnan(near.log_evidence_)
    assert "20 near ones" in str(near.posterior_.summary().attrs["notes"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(epfast.GPClassifier(method="exact").fit(X, y).log_evidence_)
        asked = epfast.GPClassifier(method="nearest", n_neighbors=20).fit(X, y)
    np.testing.assert_array_equal(asked.predict_proba(X), near.predict_proba(X))
    # no sites of negative precision
    rough = epfast.GPRegressor(KERNEL, loss="student_t", optimizer=None).fit(X, X[:, 0])
    assert isinstance(rough.posterior_, epfast.GPPosterior)


def test_hyper_parameters_are_those_of_some_rows():
    X, y = table(120)
    near = epfast.GPClassifier(method="nearest", n_neighbors=30).fit(X, y)
    exact = epfast.GPClassifier().fit(X, y)
    np.testing.assert_allclose(near.kernel_.theta, exact.kernel_.theta, atol=1e-6)


def test_what_is_not_there_is_refused():
    X, y = table(50)
    near = classifier(method="nearest", n_neighbors=10).fit(X, y)
    post = near.posterior_
    for ask in (
        lambda: near.predict_latent(X, joint=True),
        lambda: near.sample_y(X),
        lambda: near.log_marginal_likelihood(KERNEL.theta),
        lambda: post.sample(3),
        lambda: post.covariance,
        lambda: post.check(),
        lambda: post.loss_gradient(),
    ):
        with pytest.raises(ValueError, match=r"nearest rows.* allowed: .*method='exact'"):
            ask()
    assert np.isnan(post.log_evidence)
    assert all(np.isnan(i.log_evidence) for i in post.history)
    assert "log_evidence" in epfast.compare({"near": post})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"method": "close"}, "method is 'close'"),
        ({"method": "nearest", "rank": 5}, "rank=5 and method='nearest'"),
        ({"method": "exact", "n_neighbors": 5}, "n_neighbors=5"),
        ({"n_neighbors": 0}, "n_neighbors is 0"),
        ({"method": "nearest", "jitter": 0.1}, "jitter is 0.1"),
        ({"method": "nearest", "schedule": epfast.DoubleLoop()}, "schedule is DoubleLoop"),
        ({"method": "nearest", "loss": "multiclass"}, "method is 'nearest'"),
        ({"method": "nearest", "loss": epfast.losses.Contaminated()}, "log-concave"),
    ],
)
def test_bad_choices(given, said):
    X, y = table(30)
    with pytest.raises(ValueError, match=said):
        classifier(**given).fit(X, y)


@pytest.mark.full
def test_orders_threads_and_files_agree(tmp_path):
    X, y = table(700, 5)
    near = classifier(method="nearest", n_neighbors=25).fit(X, y)
    p = near.predict_proba(X[:50])
    for given in (
        {"n_jobs": 2},
        {"schedule": epfast.EP(200, tol=1e-11, order="shuffled")},
        {"schedule": epfast.EP(400, tol=1e-11, order="parallel")},
    ):
        other = clone(near).set_params(**given).fit(X, y)
        np.testing.assert_allclose(other.predict_proba(X[:50]), p, atol=1e-9)
    again = pickle.loads(pickle.dumps(near))
    np.testing.assert_array_equal(again.predict_proba(X[:50]), p)
    near.posterior_.save(tmp_path / "near.npz")
    post = epfast.load(tmp_path / "near.npz")
    np.testing.assert_array_equal(post.mean, near.posterior_.mean)
    assert str(post.summary()) == str(near.posterior_.summary())
    near.set_params(warm_start=True).fit(X, y)
    assert near.n_iter_ <= 2


@pytest.mark.filterwarnings("ignore:The optimal value")  # a bound of a kernel
@pytest.mark.parametrize("copies", [1, 60])
def test_few_rows_copies_and_constant_columns(copies):
    X, y = table(12)
    X = np.column_stack([np.round(X), np.ones(12)]).astype(np.float32)
    X, y = np.repeat(X, copies, axis=0), np.tile(y, copies)
    near = epfast.GPClassifier(method="nearest").fit(X, y)
    assert near.converged_
    assert np.isfinite(near.predict_proba(X)).all()


@pytest.mark.parametrize("calls", [0, 1, 60])
def test_ctrl_c_leaves_what_was_found(monkeypatch, calls):
    X, y = table(200)
    count = 0

    def pressed(*args, **given):
        nonlocal count
        count += 1
        if count == calls + 1:
            raise KeyboardInterrupt
        return regress(*args, **given)

    monkeypatch.setattr(kernels, "regress", pressed)
    with pytest.raises(epfast.Interrupted) as caught:
        classifier(method="nearest", n_neighbors=20).fit(X, y)
    post = caught.value.posterior
    assert isinstance(post, epfast.NearestGPPosterior)
    assert not post.converged
    assert post.n_sweeps == calls // 17  # blocks
    assert np.isfinite(post.mean).all()


def test_three_classes():
    X, _ = table(90)
    y = np.digitize(X[:, 0], [-0.5, 0.5])
    given = {"method": "nearest", "n_neighbors": 89}
    near, exact = classifier(**given).fit(X, y), classifier().fit(X, y)
    np.testing.assert_allclose(near.predict_proba(X), exact.predict_proba(X), atol=1e-8)
    np.testing.assert_array_equal(near.predict(X), exact.predict(X))
