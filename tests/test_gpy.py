"""epfast.gpy.EP in models of GPy, against GPy's own EP run to the same fixed point."""

import json
import pickle
import warnings

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("GPy", reason="GPy is not installed: pip install GPy")

import GPy

import epfast
import epfast.gpy as face
from epfast import ConvergenceWarning
from epfast.gpy import EP
from tests.oracles.data import classes

pytestmark = pytest.mark.full

#: mean square change of the sites
GPY_TIGHT = {"epsilon": 1e-26, "ep_mode": "nested", "max_iters": 500}
TIGHT = {"epsilon": 1e-11, "max_iters": 500}

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = (np.sin(2 * X[:, :1]) + X[:, 1:] + 0.5 * RNG.normal(size=(60, 1)) > 0).astype(float)
X_NEW = RNG.normal(size=(20, 2))


def kernel(variance=4.0):
    return GPy.kern.RBF(2, variance=variance, lengthscale=1.0)


def theirs(**settings):
    return GPy.inference.latent_function_inference.EP(**(GPY_TIGHT | settings))


def model(method, labels=Y, kern=None, link=None):
    likelihood = GPy.likelihoods.Bernoulli(link)
    return GPy.core.GP(
        X, labels, kernel() if kern is None else kern, likelihood, inference_method=method
    )


# ---- the same numbers ----


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("variance", [1.0, 4.0, 100.0])
def test_the_posterior_is_that_of_gpy(variance, parallel):
    arguments = kernel(variance), X, GPy.likelihoods.Bernoulli(), Y
    # GPy takes labels from an array of its own
    found, evidence, gradients = EP(**TIGHT, parallel_updates=parallel).inference(*arguments)
    posterior, expected, their_gradients = theirs(parallel_updates=parallel).inference(
        *arguments[:3], GPy.core.gp.ObsAr(Y)
    )
    assert evidence == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(found.mean, posterior.mean, rtol=0, atol=1e-7)
    np.testing.assert_allclose(found.covariance, posterior.covariance, rtol=0, atol=1e-7)
    np.testing.assert_allclose(found.woodbury_inv, posterior.woodbury_inv, rtol=0, atol=1e-8)
    assert gradients.keys() == their_gradients.keys()
    for name, value in their_gradients.items():
        np.testing.assert_allclose(gradients[name], value, rtol=0, atol=1e-8)
        assert gradients[name].shape == value.shape


def test_predictions_are_those_of_gpy():
    ours, other = model(EP(**TIGHT)), model(theirs())
    assert ours.log_likelihood() == pytest.approx(other.log_likelihood(), rel=1e-9)
    np.testing.assert_allclose(ours.gradient, other.gradient, rtol=1e-6)
    for arguments in ({}, {"include_likelihood": False}, {"full_cov": True}):
        if arguments == {"full_cov": True}:
            arguments["include_likelihood"] = False
        for found, expected in zip(
            ours.predict(X_NEW, **arguments), other.predict(X_NEW, **arguments), strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)


def test_a_process_of_epfast_says_the_same():
    method = EP()
    found = model(method)
    K = kernel().K(X)
    gp = epfast.fit_gp(K, 2 * Y[:, 0] - 1, schedule=epfast.EP(200, 1e-6))
    assert found.log_likelihood() == gp.log_evidence == method.last.log_evidence
    K_star = kernel().K(X_NEW, X)
    probability, _ = found.predict(X_NEW)
    np.testing.assert_allclose(
        probability[:, 0], gp.predict_proba(K_star, kernel().Kdiag(X_NEW)), rtol=1e-7
    )


def test_step_sites():
    """GPy's sites without noise, where only the order of the latent values counts."""
    link = GPy.likelihoods.link_functions.Heaviside
    kern = GPy.kern.RBF(2) + GPy.kern.White(2, variance=0.5)
    ours, other = model(EP(**TIGHT), kern=kern.copy(), link=link()), None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = model(theirs(epsilon=1e-16, max_iters=2000), kern=kern.copy(), link=link())
    assert ours.log_likelihood() == pytest.approx(other.log_likelihood(), rel=1e-6)
    np.testing.assert_allclose(ours.predict(X_NEW)[0], other.predict(X_NEW)[0], atol=1e-5)


def test_labels_of_either_kind():
    found = [model(EP(), labels).log_likelihood() for labels in (Y, 2 * Y - 1, Y.astype(int))]
    assert found[0] == found[1] == found[2]


# ---- hyper-parameters ----


@pytest.mark.parametrize(
    "settings",
    [{}, {"parallel_updates": True}, {"delta": 0.7}, {"eta": 0.5}, {"always_reset": True}],
    ids=str,
)
def test_gradients(settings):
    kern = GPy.kern.RBF(2, ARD=True) + GPy.kern.Bias(2)
    assert model(EP(**TIGHT, **settings), kern=kern).checkgrad(tolerance=1e-4)


def test_optimize():
    far = GPy.kern.RBF(2, variance=0.3, lengthscale=5.0)
    ours, other = model(EP(), kern=far.copy()), model(theirs(epsilon=1e-10), kern=far.copy())
    before = ours.log_likelihood()
    for found in (ours, other):
        found.optimize()
    assert ours.log_likelihood() > before + 1.0
    assert ours.log_likelihood() == pytest.approx(other.log_likelihood(), abs=1e-3)
    assert np.abs(ours.gradient).max() < 0.05
    assert ours.checkgrad(tolerance=1e-3)
    assert ours.inference_method.last.residual < 1e-5


def test_the_model_of_gpy_for_classification():
    found = GPy.models.GPClassification(X, Y, kernel(), inference_method=EP())
    assert found.log_likelihood() == model(EP()).log_likelihood()


# ---- from call to call ----


def test_it_starts_from_the_last_sites():
    warm, cold = EP(), EP(always_reset=True)
    for method in (warm, cold):
        found = model(method)
        found.kern.variance = 4.1
    sweeps = [len(method.last.history) for method in (warm, cold)]
    assert sweeps[0] < sweeps[1]
    assert warm.last.log_evidence == pytest.approx(cold.last.log_evidence, rel=1e-8)
    found.inference_method.reset()
    assert found.inference_method.last is None


def test_the_kernel_is_checked_once_for_the_same_data(monkeypatch):
    checked, plain = [], face.checked_kernel
    monkeypatch.setattr(face, "checked_kernel", lambda *given: checked.append(1) or plain(*given))
    method = EP()
    found = model(method)
    for variance in (1.0, 2.0):
        found.kern.variance = variance
        fresh = model(EP(always_reset=True), kern=kernel(variance))
        assert found.log_likelihood() == pytest.approx(fresh.log_likelihood(), rel=1e-8)
    assert len(checked) == 1 + 2
    found.set_XY(X, 1 - Y)
    assert len(checked) == 4
    with pytest.raises(ValueError, match="not positive semi-definite"):
        EP().inference(None, X[:2], GPy.likelihoods.Bernoulli(), Y[:2], K=np.eye(2)[::-1])
    with pytest.raises(ValueError, match="K has shape"):
        method.inference(None, X, GPy.likelihoods.Bernoulli(), 1 - Y, K=np.eye(2))


def test_new_data():
    found = model(EP())
    found.set_XY(X[:50], Y[:50])
    fresh = GPy.core.GP(
        X[:50], Y[:50], kernel(), GPy.likelihoods.Bernoulli(), inference_method=EP()
    )
    assert found.log_likelihood() == fresh.log_likelihood()
    found.set_XY(X[:50], 1 - Y[:50])
    fresh.inference_method.reset()
    fresh.set_XY(X[:50], 1 - Y[:50])
    assert found.log_likelihood() == pytest.approx(fresh.log_likelihood(), rel=1e-8)


def test_inputs_are_not_modified():
    K = kernel().K(X)
    given = K.copy(), Y.copy()
    EP().inference(None, X, GPy.likelihoods.Bernoulli(), Y, K=K)
    np.testing.assert_array_equal(given[0], K)
    np.testing.assert_array_equal(given[1], Y)


def test_pickle_and_copy():
    found = model(EP())
    for other in (pickle.loads(pickle.dumps(found)), found.copy()):
        # a copy evaluates itself again, from the sites that it found
        assert other.log_likelihood() == pytest.approx(found.log_likelihood(), rel=1e-9)
        np.testing.assert_allclose(other.predict(X_NEW)[0], found.predict(X_NEW)[0], rtol=1e-5)
        other.kern.variance = 2.0
        assert other.log_likelihood() != found.log_likelihood()


# ---- leave one out, files ----


def test_leave_one_out():
    found = model(EP(**TIGHT))
    method = found.inference_method
    loo = method.LOO(found.kern, found.X, found.Y, found.likelihood, found.posterior)
    assert loo.shape == (60, 1)
    gp = epfast.fit_gp(kernel().K(X), 2 * Y[:, 0] - 1, schedule=epfast.EP(500, 1e-11))
    np.testing.assert_allclose(loo[:, 0], gp.loo_log_predictive(), atol=1e-8)
    np.testing.assert_array_equal(
        method.LOO(None, X, Y, found.likelihood, K=kernel().K(X)).shape, loo.shape
    )
    # the fit without a row says nearly the same of it
    for i in range(0, 60, 12):
        rest = np.arange(60) != i
        without = GPy.core.GP(
            X[rest], Y[rest], kernel(), GPy.likelihoods.Bernoulli(), inference_method=EP(**TIGHT)
        )
        p = without.predict(X[i : i + 1])[0][0, 0]
        assert loo[i, 0] == pytest.approx(np.log(p if Y[i, 0] else 1.0 - p), abs=0.02)


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("kind", ["GP", "GPClassification"])
def test_files(tmp_path, compress, kind):
    method = EP(epsilon=1e-8, eta=0.9, delta=0.8, max_iters=np.inf)
    if kind == "GP":
        found = model(method)
    else:
        found = GPy.models.GPClassification(X, Y, kernel(), inference_method=method)
    found.optimize(max_iters=3)
    path = str(tmp_path / "model")
    found.save_model(path, compress=compress)
    loaded = GPy.core.GP.load_model(path + (".zip" if compress else ".json"))
    again = loaded.inference_method
    assert type(again) is EP
    assert again._schedule == method._schedule
    assert loaded.log_likelihood() == pytest.approx(found.log_likelihood(), rel=1e-9)
    np.testing.assert_allclose(loaded.predict(X_NEW)[0], found.predict(X_NEW)[0], rtol=1e-6)
    loaded.optimize(max_iters=3)
    assert loaded.log_likelihood() >= found.log_likelihood() - 1e-9


def test_dictionaries():
    base = GPy.inference.latent_function_inference.LatentFunctionInference
    for method in (
        EP(),
        EP(parallel_updates=True, always_reset=True),
        model(EP()).inference_method,
    ):
        state = json.loads(json.dumps(method.to_dict()))
        again = base.from_dict(state)
        assert type(again) is EP
        assert again.to_dict() == method.to_dict()


# ---- refusals ----


def test_what_is_no_fixed_point_warns():
    """A step without noise at a huge length scale."""
    rows, labels = classes(150, 8, seed=0, noise=0.0)
    link = GPy.likelihoods.link_functions.Heaviside()
    with pytest.warns(ConvergenceWarning, match="no fixed point of EP was found"):
        EP().inference(
            GPy.kern.RBF(8, lengthscale=1e5), rows, GPy.likelihoods.Bernoulli(link), labels[:, None]
        )


def test_an_overflow_is_what_gpys_optimizers_step_back_from():
    with pytest.raises(np.linalg.LinAlgError):
        EP().inference(None, X, GPy.likelihoods.Bernoulli(), Y, K=1e308 * kernel(1.0).K(X))


def test_slopes_that_are_not_numbers_are_one_too(monkeypatch):
    found = {"df": np.nan, "scale": 1.0}
    monkeypatch.setattr("epfast.inference.learning.loss_gradient", lambda *given: found)
    with pytest.raises(np.linalg.LinAlgError, match="likelihood is not finite"):
        EP().inference(kernel(), X, GPy.likelihoods.StudentT(), Y)


def test_too_few_sweeps_are_reported():
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        model(EP(max_iters=1))
    assert EP(max_iters=np.inf).last is None


@pytest.mark.parametrize(
    "likelihood",
    [
        GPy.likelihoods.Gamma(),
        GPy.likelihoods.Poisson(GPy.likelihoods.link_functions.Log_ex_1()),
        GPy.likelihoods.Bernoulli(GPy.likelihoods.link_functions.ScaledProbit(2.0)),
        GPy.likelihoods.Bernoulli(GPy.likelihoods.link_functions.Cloglog()),
    ],
    ids=lambda found: f"{type(found).__name__}-{type(found.gp_link).__name__}",
)
def test_other_likelihoods_are_refused(likelihood):
    with pytest.raises(ValueError, match=r"likelihood is .* allowed: Bernoulli"):
        EP().inference(kernel(), X, likelihood, Y)


def test_mean_functions_are_refused():
    with pytest.raises(ValueError, match="mean function, which is not supported; allowed: None"):
        GPy.core.GP(
            X,
            Y,
            kernel(),
            GPy.likelihoods.Bernoulli(),
            mean_function=GPy.mappings.Constant(2, 1),
            inference_method=EP(),
        )


@pytest.mark.parametrize("labels", [2 * Y, np.hstack([Y, Y]), np.full_like(Y, np.nan)])
def test_labels_are_checked(labels):
    with pytest.raises(ValueError, match=r"^Y "):
        EP().inference(kernel(), X, GPy.likelihoods.Bernoulli(), labels)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("epsilon", -1.0),
        ("eta", 0.0),
        ("delta", 1.5),
        ("max_iters", 0),
        ("max_iters", 1.5),
        ("always_reset", 1),
        ("parallel_updates", "yes"),
    ],
)
def test_arguments_are_checked(argument, value):
    with pytest.raises((ValueError, TypeError), match=f"^{argument} is .*allowed"):
        EP(**{argument: value})


def test_without_gpy(run_python):
    result = run_python("import sys; sys.modules['GPy'] = None; import epfast.gpy", check=False)
    assert "ImportError: epfast.gpy" in result.stderr
    assert "pip install GPy" in result.stderr


def test_probabilities_by_brute_force():
    """Two observations, where the posterior is an integral over the plane."""
    x, y = np.array([[0.0], [0.7]]), np.array([[1.0], [0.0]])
    found = GPy.core.GP(
        x, y, GPy.kern.RBF(1), GPy.likelihoods.Bernoulli(), inference_method=EP(**TIGHT)
    )
    K = GPy.kern.RBF(1).K(x)
    # P(e_1 < f_1, e_2 < -f_2), e standard normal
    signs = np.diag([1.0, -1.0])
    exact = stats.multivariate_normal(np.zeros(2), np.eye(2) + signs @ K @ signs).cdf(np.zeros(2))
    assert found.log_likelihood() == pytest.approx(np.log(exact), abs=2e-3)


def test_both_modes_of_gpy_run_ep_at_each_evaluation():
    """GPy gives its arguments in this order, and a loaded model those of to_dict."""
    X = np.linspace(-2, 2, 20)[:, None]
    found = []
    for mode in ("nested", "alternated"):
        method = EP(1e-9, 1.0, 1.0, False, 200, mode, False)
        assert method.to_dict()["ep_mode"] == mode
        found.append(
            GPy.core.GP(
                X,
                1.0 * (X > 0.3),
                GPy.kern.RBF(1),
                GPy.likelihoods.Bernoulli(),
                inference_method=method,
            )
        )
    assert found[0].log_likelihood() == found[1].log_likelihood()
    with pytest.raises(ValueError, match="ep_mode is 'both'; allowed: 'nested', 'alternated'"):
        EP(ep_mode="both")


def test_what_is_not_supported_says_what_to_do():
    X = np.linspace(-2, 2, 20)[:, None]
    y, ours, method = 1.0 * (X > 0.3), GPy.kern.RBF(1), EP()
    bernoulli = GPy.likelihoods.Bernoulli()
    with pytest.raises(ValueError, match=r"sparse.*not support.*rank="):
        GPy.core.SparseGP(X, y, X[:5], ours, bernoulli, inference_method=method)
    with pytest.raises(ValueError, match=r"several outputs are not supported.*each column"):
        GPy.core.GP(X, np.c_[y, y], ours, bernoulli, inference_method=method)
    both = GPy.likelihoods.MultioutputLikelihood([bernoulli, GPy.likelihoods.Gaussian()])
    outputs = {"output_index": np.zeros((20, 1), dtype=int)}
    with pytest.raises(ValueError, match=r"Multioutput.*not supported; .*GPy's own EP"):
        GPy.core.GP(X, y, ours, both, inference_method=method, Y_metadata=outputs)
    with pytest.raises(TypeError, match="nothing is given; allowed: mean_function"):
        method.inference(ours, X, bernoulli, y, nothing=1)
