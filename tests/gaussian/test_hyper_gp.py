"""fit_hyper_gp against sums over grids of its hyper-parameters; and what it refuses."""

import math
import pickle

import numpy as np
import pytest
from scipy import special, stats

import epfast
from epfast import losses
from epfast.inference.design import Surface, drawn
from epfast.inference.hyper import HyperPoint, Target
from epfast.priors import Gamma, HalfNormal

kernels = pytest.importorskip("sklearn.gaussian_process.kernels")
RNG = np.random.default_rng(4)
X = np.sort(RNG.uniform(-3.0, 3.0, size=(24, 1)), axis=0)
Y = np.sin(2.0 * X[:, 0]) + 0.3 * RNG.normal(size=24)
KERNEL = kernels.ConstantKernel(1.0, (1e-5, 1e5)) * kernels.RBF(1.0, (1e-3, 1e3))
LENGTH, SD, NOISE = Gamma(3.0, 2.0), HalfNormal(2.0), HalfNormal(1.0)
PRIORS = {"length_scale": LENGTH, "sd": SD}


def moments(weight, values):
    mean = weight @ values
    return mean, math.sqrt(weight @ (values - mean) ** 2)


def test_gaussian_noise():
    """Three hyper-parameters: against the marginal likelihood on a grid, and predictions."""
    new = np.linspace(-3.5, 3.5, 5)[:, None]
    logs = np.linspace(-2.5, 2.0, 46), np.linspace(-2.0, 2.5, 46), np.linspace(-3.0, 1.0, 41)
    squares, cross = (X - X.T) ** 2, (new - X.T) ** 2
    value, of_new = np.empty((46, 46, 41)), np.empty((46, 46, 41, 5))
    for i, j in np.ndindex(46, 46):
        a, b = math.exp(2.0 * logs[1][j]), math.exp(-2.0 * logs[0][i])
        w, U = np.linalg.eigh(a * np.exp(-0.5 * b * squares))
        z, C = U.T @ Y, a * np.exp(-0.5 * b * cross) @ U
        whole = np.maximum(w, 0.0) + np.exp(2.0 * logs[2])[:, None] + 1e-10
        value[i, j] = -0.5 * (np.log(2.0 * np.pi * whole) + z**2 / whole).sum(axis=1)
        of_new[i, j] = (z / whole) @ C.T
    for axis, prior in enumerate((LENGTH, SD, NOISE)):
        shape = [-1 if k == axis else 1 for k in range(3)]
        value += np.reshape([prior.over_log(u)[0] for u in logs[axis]], shape)
    weight = special.softmax(value)
    post = epfast.fit_hyper_gp(KERNEL, X, Y, priors=PRIORS, learn={"sd": NOISE})
    assert post.hyper_names == ("length_scale", "sd", "noise_sd")
    for axis, name in enumerate(post.hyper_names):
        others = tuple(k for k in range(3) if k != axis)
        mean, sd = moments(weight.sum(axis=others), np.exp(logs[axis]))
        assert post.hyper.loc[name, "mean"] == pytest.approx(mean, abs=0.05 * sd)
        assert post.hyper.loc[name, "sd"] == pytest.approx(sd, rel=0.07)
    middle = np.tensordot(weight, of_new, 3)
    mean, variance = post.predict_latent(new)
    assert (np.abs(mean - middle) < 0.03 * np.sqrt(variance)).all()
    volume = math.log(np.prod([u[1] - u[0] for u in logs]))
    assert post.log_evidence == pytest.approx(special.logsumexp(value) + volume, abs=0.05)
    assert post.n_fits < 350


@pytest.mark.full
def test_counts():
    """Two hyper-parameters of a kernel and a Poisson likelihood, against fits on a grid."""
    y = np.random.default_rng(0).poisson(np.exp(Y))
    post = epfast.fit_hyper_gp(KERNEL, X, y, loss="poisson", priors=PRIORS)
    logs = np.linspace(-2.0, 2.0, 31), np.linspace(-3.0, 2.0, 31)
    value = np.empty((31, 31))
    for i, j in np.ndindex(31, 31):
        kernel = KERNEL.clone_with_theta([2.0 * logs[1][j], logs[0][i]])
        fit = epfast.fit_gp(kernel(X), y, loss="poisson", jitter=1e-10)
        value[i, j] = fit.log_evidence + LENGTH.over_log(logs[0][i])[0] + SD.over_log(logs[1][j])[0]
    weight = special.softmax(value)
    for axis, name in enumerate(post.hyper_names):
        mean, sd = moments(weight.sum(axis=1 - axis), np.exp(logs[axis]))
        assert post.hyper.loc[name, "mean"] == pytest.approx(mean, abs=0.02 * sd)
        assert post.hyper.loc[name, "sd"] == pytest.approx(sd, rel=0.03)
    assert post.n_fits < 180


@pytest.mark.full
@pytest.mark.parametrize("loss", ["gaussian", "probit", "poisson"])
def test_predictions_are_those_of_the_mixture(loss):
    y = {"probit": np.where(Y > 0.0, 1.0, -1.0), "poisson": np.round(np.exp(Y))}.get(loss, Y)
    learn = {"sd": NOISE} if loss == "gaussian" else None
    post = epfast.fit_hyper_gp(
        KERNEL, X, y, loss=loss, priors=PRIORS, learn=learn, strategy="ccd" if learn else "auto"
    )
    new, offset = np.linspace(-4.0, 4.0, 6)[:, None], np.linspace(-1.0, 1.0, 6)
    parts = [
        one.predict_latent(kernel(new, X), kernel.diag(new))
        for one, kernel in zip(post.posteriors, post.kernels, strict=True)
    ]
    losses_ = [one.loss for one in post.posteriors]
    log_p = [
        one.log_predictive(one.responses("y", y[:6], 6), m + offset, v)
        for one, (m, v) in zip(losses_, parts, strict=True)
    ]
    expected = special.logsumexp(np.array(log_p).T, axis=1, b=post.weights)
    np.testing.assert_allclose(post.log_predictive(new, y[:6], offset), expected)
    mean, covariance = post.predict_latent(new, joint=True)
    np.testing.assert_allclose(mean, post.weights @ [m for m, _ in parts])
    np.testing.assert_allclose(np.diag(covariance), post.predict_latent(new)[1], rtol=1e-6)
    drawn = post.sample_y(new, 3000, 0, offset)
    if loss == "probit":
        p = post.predict_proba(new, offset)
        np.testing.assert_allclose((drawn == 1.0).mean(axis=0), p, atol=0.05)
        np.testing.assert_array_equal(post.predict(new, offset), np.where(p >= 0.5, 1.0, -1.0))
    else:
        np.testing.assert_allclose(
            (drawn <= post.predict_quantile(new, 0.7, offset)).mean(axis=0) >= 0.66, True
        )
        assert (post.predict_variance(new) > 0.0).all()
    again = pickle.loads(pickle.dumps(post))
    np.testing.assert_array_equal(again.predict(new), post.predict(new))
    with pytest.raises(ValueError, match="kernels, which are not written"):
        post.save("nowhere.npz")


def test_two_modes_are_mixed():
    """A density of two normals far apart: points are drawn about both."""
    normals = [stats.multivariate_normal(m, s) for m, s in (([0.0, 0.0], 1.0), ([9.0, 4.0], 0.5))]

    class Density(Target):
        def point_at(self, u, tol=0.0, near=None):
            value = np.logaddexp(*(one.logpdf(u) + k for k, one in enumerate(normals)))
            return HyperPoint(u, value, None)

    target = Density()
    surfaces = [Surface(target, target.point_at(one.mean), np.eye(2)) for one in normals]
    design = drawn(surfaces, 512, 0)
    share = math.e / (1.0 + math.e)
    assert design.probabilities @ (design.nodes[:, 0] > 5.0) == pytest.approx(share, abs=0.01)
    values = np.array([point.value for point in design.points]) + design.log_volumes
    assert special.logsumexp(values) == pytest.approx(math.log(1.0 + math.e), abs=0.02)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"priors": {"period": SD}}, "priors has 'period', which the kernel has not"),
        ({"priors": {"sd": 1.0}}, r"priors\['sd'\] is 1.0; allowed: of epfast.priors"),
        ({"priors": {"sd": SD, "constant_value": SD}}, "twice"),
        ({"priors": [SD]}, "priors is .*; allowed: a dict"),
        ({"priors": {}}, "priors and learn are empty"),
        ({"priors": PRIORS, "learn": {"df": SD}}, "learn has 'df'; allowed"),
        ({"priors": PRIORS, "loss": "hinge"}, "loss is .*; allowed: a likelihood"),
        ({"priors": PRIORS, "strategy": "all"}, "strategy is 'all'"),
        ({"priors": PRIORS, "jitter": -1.0}, "jitter is -1"),
        ({"priors": PRIORS, "schedule": 3}, "schedule is 3; allowed: EP"),
    ],
)
def test_what_is_refused(given, said):
    with pytest.raises((ValueError, TypeError), match=said):
        epfast.fit_hyper_gp(KERNEL, X, Y, **given)


def test_a_name_that_several_have():
    both = KERNEL + KERNEL
    with pytest.raises(ValueError, match="'length_scale', which several of the kernel have"):
        epfast.fit_hyper_gp(both, X, Y, priors=PRIORS)
    with pytest.raises(TypeError, match="kernel is 'rbf'; allowed: a kernel of"):
        epfast.fit_hyper_gp("rbf", X, Y, priors=PRIORS)


def test_length_scales_of_columns():
    rows = RNG.normal(size=(20, 2))
    kernel = kernels.ConstantKernel(1.0) * kernels.RBF([1.0, 1.0])
    post = epfast.fit_hyper_gp(
        kernel, rows, rows[:, 0], loss=losses.Gaussian(0.1), priors=PRIORS, strategy="eb"
    )
    assert post.hyper_names == ("length_scale[0]", "length_scale[1]", "sd")
    np.testing.assert_allclose(post.kernels[0].k2.length_scale, post.points[0, :2])
    assert post.kernels[0].k1.constant_value == pytest.approx(post.points[0, 2] ** 2)


def test_draws_for_arviz():
    """Each of its own, with the likelihood of its own noise, and quantiles of the nodes."""
    pytest.importorskip("xarray")
    post = epfast.fit_hyper_gp(KERNEL, X, Y, priors={"length_scale": LENGTH}, learn={"sd": NOISE})
    data = post.to_arviz(2000)
    for k, name in enumerate(post.hyper_names):
        drawn = data["posterior"][name].to_numpy().ravel()
        assert len(np.unique(drawn)) > 1990
        for p in (0.05, 0.95):
            assert (drawn <= post.hyper_quantile(p)[k]).mean() == pytest.approx(p, abs=0.02)
    latent = data["posterior"][post.quantity[0]].to_numpy().reshape(2000, -1)
    sd = data["posterior"][post.hyper_names[1]].to_numpy().ravel()
    exact = stats.norm.logpdf(Y, latent, sd[:, None])
    np.testing.assert_allclose(data["log_likelihood"]["y"].to_numpy().reshape(2000, -1), exact)
    np.testing.assert_allclose(latent.mean(axis=0), post.mean, atol=0.1 * post.sd.max())
