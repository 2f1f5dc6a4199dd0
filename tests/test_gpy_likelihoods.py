"""epfast.gpy.EP with GPy's likelihoods: against their own densities, integrals and inference."""

import copy
import pickle
import warnings

import numpy as np
import pytest
from scipy import integrate, special, stats

pytest.importorskip("GPy", reason="GPy is not installed: pip install GPy")

import GPy
from GPy.inference.latent_function_inference import Laplace, exact_gaussian_inference

import epfast
import epfast.gpy as face
from epfast import ConvergenceWarning, losses
from epfast.gpy import EP
from epfast.gpy.likelihoods import read

pytestmark = pytest.mark.full

TIGHT = {"epsilon": 1e-11, "max_iters": 500}
LINKS = GPy.likelihoods.link_functions
GAUSSIAN = ["Gaussian", "HeteroscedasticGaussian", "MixedNoise"]
KINDS = [*GAUSSIAN, "StudentT", "Poisson"]


def case(kind, n=40, seed=0):
    """A likelihood, X, Y and Y_metadata, drawn from a curve."""
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(-3, 3, (n, 1)), axis=0)
    f, noise = np.sin(1.5 * X), rng.normal(size=(n, 1))
    rows, outputs = np.arange(n)[:, None], rng.integers(0, 2, (n, 1))
    likelihoods = GPy.likelihoods
    if kind == "Gaussian":
        return likelihoods.Gaussian(variance=0.1), X, f + 0.3 * noise, None
    if kind == "HeteroscedasticGaussian":
        found = {"output_index": rows}
        spread = 0.1 + rng.random((n, 1))
        likelihood = likelihoods.HeteroscedasticGaussian(found, variance=spread)
        return likelihood, X, f + np.sqrt(spread) * noise, found
    if kind == "MixedNoise":
        parts = [likelihoods.Gaussian(variance=v, name=f"n{v}") for v in (0.1, 0.4)]
        return likelihoods.MixedNoise(parts), X, f + 0.4 * noise, {"output_index": outputs}
    if kind == "StudentT":
        heavy = 0.2 * rng.standard_t(3, (n, 1))
        return likelihoods.StudentT(deg_free=4.0, sigma2=0.05), X, f + heavy, None
    assert kind == "Poisson"
    return likelihoods.Poisson(), X, rng.poisson(np.exp(f + 1.0)).astype(float), None


def kernel():
    return GPy.kern.RBF(1, variance=1.5) + GPy.kern.Bias(1, variance=0.5)


def model(parts, method=None, kern=None):
    likelihood, X, Y, metadata = parts
    method = EP(**TIGHT) if method is None else method
    kern = kernel() if kern is None else kern
    return GPy.core.GP(X, Y, kern, likelihood, inference_method=method, Y_metadata=metadata)


def log_density(parts, f):
    """GPy's log p(Y | f), (n,)."""
    likelihood, _, Y, metadata = parts
    if isinstance(likelihood, GPy.likelihoods.MixedNoise | GPy.likelihoods.Gaussian):
        variance = np.broadcast_to(np.ravel(likelihood.gaussian_variance(metadata)), len(Y))
        return stats.norm.logpdf(Y[:, 0], f, np.sqrt(variance))
    with np.errstate(all="ignore"):
        return np.ravel(likelihood.logpdf(f[:, None], Y, metadata))


def few(parts, rows):
    """Some rows of a case."""
    likelihood, X, Y, metadata = parts
    if metadata is not None:
        metadata = {name: value[rows] for name, value in metadata.items()}
    if isinstance(likelihood, GPy.likelihoods.HeteroscedasticGaussian):
        metadata = {"output_index": np.arange(len(X[rows]))[:, None]}
        spread = likelihood.variance.values[rows]
        likelihood = GPy.likelihoods.HeteroscedasticGaussian(metadata, variance=spread)
    return likelihood, X[rows], Y[rows], metadata


# ---- the density ----


@pytest.mark.parametrize("kind", KINDS)
def test_the_density_is_that_of_gpy(kind):
    parts = case(kind)
    found = read(parts[0], *parts[2:])
    f = np.random.default_rng(1).normal(size=40)
    ours = -found.loss.values(f, found.rows)
    np.testing.assert_allclose(ours, log_density(parts, f), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("row", [0, 17, 31])
@pytest.mark.parametrize("kind", KINDS)
def test_of_one_row_all_is_exact(kind, row):
    """EP of one site: evidence, moments and leave-one-out are integrals over the line."""
    parts = few(case(kind), slice(row, row + 1))
    found = model(parts)
    v = float(kernel().K(parts[1])[0, 0])
    grid = np.linspace(-14.0 * np.sqrt(v), 14.0 * np.sqrt(v), 40_001)
    likelihood, _, Y, metadata = parts
    many = np.repeat(Y, len(grid), axis=0)
    copies = metadata and {k: np.repeat(x, len(grid), axis=0) for k, x in metadata.items()}
    log_t = log_density((likelihood, None, many, copies), grid)
    weight = np.exp(log_t) * stats.norm.pdf(grid, scale=np.sqrt(v))
    Z, first, second = (integrate.simpson(weight * grid**k, x=grid) for k in range(3))
    assert found.log_likelihood() == pytest.approx(np.log(Z), abs=1e-8)
    mean, variance = found.predict(parts[1], include_likelihood=False)
    assert mean[0, 0] == pytest.approx(first / Z, abs=1e-7)
    assert variance[0, 0] == pytest.approx(second / Z - (first / Z) ** 2, rel=1e-6)
    method = found.inference_method
    loo = method.LOO(found.kern, found.X, found.Y, likelihood, None, metadata)
    assert loo[0, 0] == pytest.approx(np.log(Z), abs=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_rows_by_brute_force(kind):
    parts = few(case(kind, seed=3), [11, 14])
    found = model(parts)
    K = kernel().K(parts[1])
    line = np.linspace(-7.0, 7.0, 500)
    grid = np.stack([part.ravel() for part in np.meshgrid(line, line)])
    points = np.linalg.cholesky(K) @ grid
    total = stats.norm.logpdf(grid).sum(axis=0) + 2.0 * np.log(line[1] - line[0])
    for i in range(2):
        row = few(parts, slice(i, i + 1))
        many = np.repeat(row[2], len(total), axis=0)
        copies = row[3] and {k: np.repeat(x, len(total), axis=0) for k, x in row[3].items()}
        total += log_density((row[0], None, many, copies), points[i])
    # EP is not exact here
    assert found.log_likelihood() == pytest.approx(special.logsumexp(total), abs=0.02)


# ---- evidence and gradients ----


@pytest.mark.parametrize("settings", [{}, {"eta": 0.6}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind, settings):
    """Kernel and likelihood, by differences."""
    found = model(case(kind, n=20), EP(**TIGHT, **settings))
    at, slopes = found.param_array.copy(), found.gradient.copy()
    assert len(slopes) == 3 + found.likelihood.size
    for i in range(min(len(at), 8)):
        value = []
        for step in (-1e-4, 1e-4):
            moved = at.copy()
            moved[i] *= 1.0 + step
            found[:] = moved
            value.append(found.log_likelihood())
        # GPy minimises: the gradient of the model is minus that of its objective
        slope = (value[1] - value[0]) / (2e-4 * at[i])
        assert slopes[i] == pytest.approx(slope, rel=2e-5, abs=2e-5)


@pytest.mark.parametrize("kind", GAUSSIAN)
def test_gaussian_noise_is_gpys_exact_inference(kind):
    likelihood, X, Y, metadata = case(kind)
    K = kernel().K(X)
    exact = exact_gaussian_inference.ExactGaussianInference()
    expected = exact.inference(None, X, likelihood, Y, Y_metadata=metadata, K=K)
    posterior, evidence, gradients = expected
    method = EP(**TIGHT)
    # it adds 1e-8 to the diagonal
    K += 1e-8 * np.eye(40)
    found, ours, slopes = method.inference(None, X, likelihood, Y, Y_metadata=metadata, K=K)
    assert ours == pytest.approx(evidence, abs=1e-8)
    for name in ("dL_dK", "dL_dm"):
        np.testing.assert_allclose(slopes[name], gradients[name], rtol=1e-8, atol=1e-8)
    # GPy gives those of each row in one more dimension
    theirs = np.reshape(gradients["dL_dthetaL"], np.shape(slopes["dL_dthetaL"]))
    np.testing.assert_allclose(slopes["dL_dthetaL"], theirs, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found.woodbury_inv, posterior.woodbury_inv, atol=1e-8)
    np.testing.assert_allclose(found.woodbury_vector, posterior.woodbury_vector, atol=1e-8)
    assert len(method.last.history) <= 2


def test_rows_may_share_a_variance():
    """As outputs of a heteroscedastic likelihood; GPy's own gradient has a row for each then."""
    _, X, Y, _ = case("Gaussian")
    outputs = {"output_index": np.arange(40)[:, None] // 10}
    likelihood = GPy.likelihoods.HeteroscedasticGaussian({"output_index": np.zeros((4, 1), int)})
    likelihood.variance[:] = np.array([[0.1], [0.2], [0.3], [0.4]])
    _, _, slopes = EP(**TIGHT).inference(kernel(), X, likelihood, Y, Y_metadata=outputs)
    parts = [GPy.likelihoods.Gaussian(variance=v, name=f"n{v}") for v in (0.1, 0.2, 0.3, 0.4)]
    mixed = GPy.likelihoods.MixedNoise(parts)
    _, _, expected = EP(**TIGHT).inference(kernel(), X, mixed, Y, Y_metadata=outputs)
    assert slopes["dL_dthetaL"].shape == (4, 1)
    np.testing.assert_allclose(slopes["dL_dthetaL"][:, 0], expected["dL_dthetaL"])


def test_models_of_gpy_with_several_outputs():
    _, X, Y, _ = case("Gaussian")
    found = GPy.models.GPCoregionalizedRegression([X, X[:30]], [Y, Y[:30] ** 2])
    evidence, slopes = found.log_likelihood(), found.gradient.copy()
    found.inference_method = EP(**TIGHT)
    found.parameters_changed()
    # GPy adds 1e-8 to the diagonal
    assert found.log_likelihood() == pytest.approx(evidence, abs=1e-6)
    np.testing.assert_allclose(found.gradient, slopes, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        ("Gaussian", losses.Gaussian(0.1)),
        ("StudentT", losses.StudentT(4.0, np.sqrt(0.05))),
        ("Poisson", "poisson"),
    ],
)
def test_a_process_of_epfast_says_the_same(kind, loss):
    parts = case(kind)
    found = model(parts, EP())
    gp = epfast.fit_gp(kernel().K(parts[1]), parts[2][:, 0], loss=loss)
    assert found.log_likelihood() == pytest.approx(gp.log_evidence, rel=1e-7)
    exact = epfast.EP(500, 1e-11)
    tight = epfast.fit_gp(kernel().K(parts[1]), parts[2][:, 0], loss=loss, schedule=exact)
    same = model(parts)
    assert same.log_likelihood() == tight.log_evidence
    assert same.inference_method.last.loss == losses.resolve(loss)


@pytest.mark.parametrize("kind", ["StudentT", "Poisson"])
def test_laplace_of_gpy_is_near(kind):
    parts = case(kind)
    ours, theirs = model(parts), model(parts, Laplace())
    assert ours.log_likelihood() == pytest.approx(theirs.log_likelihood(), abs=0.5)
    mean, other = (found.predict(parts[1], include_likelihood=False)[0] for found in (ours, theirs))
    np.testing.assert_allclose(mean, other, atol=0.3)


# ---- learning ----


@pytest.mark.parametrize(
    ("kind", "parameter", "truth"),
    [
        ("Gaussian", "variance", 0.09),
        ("StudentT", "sigma2", 0.04),
    ],
)
def test_optimize_finds_the_noise(kind, parameter, truth):
    parts = case(kind, n=200, seed=5)
    likelihood = parts[0]
    if kind == "StudentT":
        likelihood.v.fix(3.0, warning=False)
    noise = getattr(likelihood, parameter)
    noise[:] = 3.0 * truth
    found = model(parts, EP(), GPy.kern.RBF(1))
    noise = getattr(found.likelihood, parameter)
    before = found.log_likelihood()
    found.optimize()
    assert found.log_likelihood() > before + 2.0
    # of what is not fixed
    assert np.abs(found._grads(found.optimizer_array)).max() < 0.05
    assert 0.6 < float(noise[0]) / truth < 1.6
    # a maximum: less on both sides
    best, top = float(noise[0]), found.log_likelihood()
    for factor in (0.9, 1.1):
        noise[:] = factor * best
        assert found.log_likelihood() < top
    assert found.inference_method.last.converged


def test_a_variance_for_each_output_is_learnt():
    rng = np.random.default_rng(7)
    X, outputs = np.sort(rng.uniform(-3, 3, (200, 1)), axis=0), rng.integers(0, 2, (200, 1))
    Y = np.sin(X) + np.where(outputs == 0, 0.1, 0.5) * rng.normal(size=X.shape)
    parts = [GPy.likelihoods.Gaussian(variance=0.3, name=f"n{k}") for k in range(2)]
    mixed = GPy.likelihoods.MixedNoise(parts)
    given = (mixed, X, Y, {"output_index": outputs})
    ours = model(given, EP())
    theirs = model(copy.deepcopy(given), exact_gaussian_inference.ExactGaussianInference())
    for found in (ours, theirs):
        found.optimize()
    noise = [float(part.variance[0]) for part in ours.likelihood.likelihoods_list]
    np.testing.assert_allclose(noise, [0.01, 0.25], rtol=0.5)
    assert ours.log_likelihood() == pytest.approx(theirs.log_likelihood(), abs=1e-3)


# ---- Student's t does not always settle ----


def outliers(seed, n=100):
    """Neal's (1997) curve, 5 % of whose noise is ten times as wide."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.normal(size=n))
    curve = 0.3 + 0.4 * x + 0.5 * np.sin(2.7 * x) + 1.1 / (1.0 + x * x)
    sd = np.where(rng.random(n) < 0.05, 1.0, 0.1)
    return x[:, None], (curve + sd * rng.normal(size=n))[:, None]


@pytest.mark.parametrize("settings", [{}, {"parallel_updates": True}, {"delta": 0.7}], ids=str)
def test_the_double_loop_steps_in(settings):
    X, Y = outliers(4)
    likelihood = GPy.likelihoods.StudentT(deg_free=1.0, sigma2=0.05**2)
    kern = GPy.kern.RBF(1, lengthscale=0.8)
    method = EP(**settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        found = model((likelihood, X, Y, None), method, kern)
    assert method.last.residual < 1e-4
    assert method.last.converged
    gp = epfast.fit_gp(kern.K(X), Y[:, 0], loss=losses.StudentT(1.0, 0.05))
    assert any(info.mismatch is not None for info in gp.history)
    assert found.log_likelihood() == pytest.approx(gp.log_evidence, abs=1e-4)


@pytest.mark.parametrize("seed", [1, 2, 4])
def test_tails_are_learnt_with_the_kernel(seed):
    """GPy's optimizer steps too far at first; that it does not converge there ends nothing."""
    X, Y = outliers(seed)
    likelihood = GPy.likelihoods.StudentT(deg_free=5.0, sigma2=0.1)
    found = model((likelihood, X, Y, None), EP(), GPy.kern.RBF(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found.optimize()
    assert found.inference_method.last.converged
    assert np.abs(found._grads(found.optimizer_array)).max() < 0.05
    assert 1.0 < float(likelihood.v[0]) < 4.0
    assert 0.05 < np.sqrt(float(likelihood.sigma2[0])) < 0.12


def test_without_a_tolerance_there_are_sweeps_alone():
    X, Y = outliers(0, n=30)
    method = EP(epsilon=0.0, max_iters=5)
    likelihood = GPy.likelihoods.StudentT(deg_free=4.0, sigma2=0.01)
    model((likelihood, X, Y, None), method)
    assert len(method.last.history) == 5


# ---- predictions ----


@pytest.mark.parametrize("kind", ["Gaussian", "StudentT", "Poisson"])
def test_predictions_of_gpy(kind):
    """Its densities at our posterior; where it has them, its means and variances."""
    parts = case(kind)
    found, X_new = model(parts), np.array([[-1.0], [0.3], [2.0]])
    Y_new = np.array([[1.0], [2.0], [1.0]])
    m, v = (part[:, 0] for part in found.predict(X_new, include_likelihood=False))
    given = read(parts[0], Y_new)
    expected = given.loss.log_predictive(given.rows, m, v)
    np.testing.assert_allclose(
        found.log_predictive_density(X_new, Y_new)[:, 0], expected, rtol=1e-5, atol=1e-6
    )
    np.random.seed(0)  # noqa: NPY002 - of GPy, which draws where it has no formula
    low, high = found.predict_quantiles(X_new)
    mean, variance = found.predict(X_new)
    assert (low < mean).all()
    assert (mean < high).all()
    assert (variance > 0.0).all()
    loss = found.inference_method.last.loss
    np.testing.assert_allclose(mean[:, 0], loss.predict(m, v), rtol=1e-6)
    np.testing.assert_allclose(variance[:, 0], loss.predict_variance(m, v), rtol=1e-6)


# ---- from call to call, files ----


@pytest.mark.parametrize("kind", ["StudentT", "HeteroscedasticGaussian"])
def test_the_kernel_is_checked_once_for_the_same_data(kind, monkeypatch):
    """Whatever the parameters of the likelihood; the sites of the one before are the start."""
    checked, plain = [], face.checked_kernel
    monkeypatch.setattr(face, "checked_kernel", lambda *given: checked.append(1) or plain(*given))
    parts = case(kind)
    found = model(parts)
    cold = len(found.inference_method.last.history)
    found.likelihood[:] = found.likelihood.param_array * 1.01
    assert len(checked) == 1
    assert len(found.inference_method.last.history) <= cold
    fresh = model((found.likelihood.copy(), *parts[1:]))
    assert found.log_likelihood() == pytest.approx(fresh.log_likelihood(), rel=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_pickle_and_copy(kind):
    parts = case(kind)
    given = parts[2].copy()
    found = model(parts)
    for other in (pickle.loads(pickle.dumps(found)), found.copy()):
        other.kern.rbf.variance = 1.5
        assert other.log_likelihood() == pytest.approx(found.log_likelihood(), rel=1e-9)
    np.testing.assert_array_equal(parts[2], given)


@pytest.mark.parametrize("kind", ["Gaussian", "MixedNoise"])
def test_files(tmp_path, kind):
    found = model(case(kind))
    found.optimize(max_iters=3)
    path = str(tmp_path / "model")
    found.save_model(path, compress=False)
    loaded = GPy.core.GP.load_model(path + ".json")
    assert loaded.log_likelihood() == pytest.approx(found.log_likelihood(), rel=1e-9)


# ---- refusals ----


class OwnGaussian(GPy.likelihoods.Gaussian):
    """Its density may be another."""


@pytest.mark.parametrize(
    "likelihood",
    [
        GPy.likelihoods.Gamma(),
        OwnGaussian(),
        GPy.likelihoods.Gaussian(LINKS.Log()),
        GPy.likelihoods.StudentT(LINKS.Log()),
        GPy.likelihoods.Binomial(),
        GPy.likelihoods.Weibull(),
        GPy.likelihoods.Poisson(LINKS.Log_ex_1()),
        GPy.likelihoods.MixedNoise([GPy.likelihoods.StudentT()]),
    ],
    ids=lambda found: type(found).__name__,
)
def test_others_are_refused(likelihood):
    _, X, Y, _ = case("Poisson")
    with pytest.raises(ValueError, match=r"^likelihood is .*allowed.*Gaussian"):
        EP().inference(kernel(), X, likelihood, Y)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("Poisson", {"Y": 0.5}, "^Y holds .*counts"),
        ("Poisson", {"Y": -1.0}, "^Y holds .*counts"),
        ("Gaussian", {"Y": np.inf}, "^Y "),
        ("StudentT", {"Y": np.nan}, "^Y "),
        ("MixedNoise", {"output_index": np.full((40, 1), 2)}, r"^Y_metadata\['output_index'\] "),
        ("MixedNoise", {"output_index": None}, "^Y_metadata has no 'output_index'"),
        ("HeteroscedasticGaussian", {"output_index": np.full((40, 1), 40)}, "from 0 to 39"),
    ],
    ids=range(7),
)
def test_data_are_checked(kind, change, message):
    likelihood, X, Y, metadata = case(kind)
    if "Y" in change:
        Y = Y.copy()
        Y[3] = change["Y"]
    else:
        metadata = {name: value for name, value in change.items() if value is not None}
    with pytest.raises((ValueError, TypeError), match=message):
        EP().inference(kernel(), X, likelihood, Y, Y_metadata=metadata)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_are_checked(kind):
    likelihood, X, Y, metadata = case(kind)
    with pytest.raises(ValueError, match=r"^Y has shape .*allowed"):
        EP().inference(kernel(), X, likelihood, np.hstack([Y, Y]), Y_metadata=metadata)


def test_parameters_out_of_range_are_told():
    _, X, Y, _ = case("StudentT")
    with pytest.raises(ValueError, match=r"df is 0.01; allowed"):
        EP().inference(kernel(), X, GPy.likelihoods.StudentT(deg_free=0.01), Y)
