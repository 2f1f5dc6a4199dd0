"""Priors that are sites, one per weight: against all models, brute force, and other forms."""

import itertools
import pickle
import tracemalloc
import warnings
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import optimize, sparse, special

import epfast
from epfast import fit_linear, load
from epfast.gaussian import fit_linear as fit_module
from epfast.gaussian.forms import weights as weights_form
from epfast.losses import Gaussian, Horseshoe, LaplacePrior, SpikeAndSlab, StudentTPrior
from epfast.schedules import EP
from tests.batteries import LOSSES, responses_of

PRIORS = [SpikeAndSlab(0.2, 1.5), LaplacePrior(0.4), StudentTPrior(3.0, 0.4), Horseshoe(0.3)]
NAMES = [type(prior).__name__ for prior in PRIORS]
TIGHT = EP(sweeps=400, tol=1e-9)


def data(n, d, k, seed, noise=1.0):
    """Rows, y, and weights of which k are not 0."""
    rng = np.random.default_rng(seed)
    X, w = rng.normal(size=(n, d)), np.zeros(d)
    w[rng.choice(d, k, replace=False)] = rng.normal(size=k)
    return X, X @ w + np.sqrt(noise) * rng.normal(size=n), w


def all_models(X, y, prior, noise):
    """Log evidence, inclusion probabilities and means."""
    (n, d), logs, models, means = X.shape, [], [], []
    for model in itertools.product((0, 1), repeat=d):
        one = np.flatnonzero(model)
        covariance = noise * np.eye(n) + prior.variance * X[:, one] @ X[:, one].T
        half = np.linalg.solve(covariance, y)
        log = -0.5 * (y @ half + np.linalg.slogdet(2.0 * np.pi * covariance)[1])
        log += len(one) * np.log(prior.share) + (d - len(one)) * np.log1p(-prior.share)
        mean = np.zeros(d)
        mean[one] = prior.variance * X[:, one].T @ half
        logs.append(log)
        models.append(model)
        means.append(mean)
    total = special.logsumexp(logs)
    weight = np.exp(np.array(logs) - total)
    return total, weight @ np.array(models, dtype=float), weight @ np.array(means)


def in_d_by_d(monkeypatch, *args, **given):
    """The same fit, with matrices of order d."""
    with monkeypatch.context() as patch:
        patch.setattr(fit_module, "is_for_wide", lambda *args: False)
        return fit_linear(*args, **given)


# ---- truth ----


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n", [30, 6])
def test_all_models(n, seed):
    X, y, _ = data(n, 9, 3, seed)
    prior = SpikeAndSlab(0.3, 1.2)
    post = fit_linear(X, y, loss=Gaussian(0.8), prior=prior)
    evidence, inclusion, mean = all_models(X, y, prior, 0.8)
    loose = 1.0 if n == 30 else 8.0
    assert post.converged
    assert post.log_evidence == pytest.approx(evidence, abs=0.03 * loose)
    np.testing.assert_allclose(post.inclusion_probability, inclusion, atol=0.02 * loose)
    assert (np.abs(post.mean - mean) < 0.05 * loose * np.sqrt(post.variance)).all()


@pytest.mark.parametrize("prior", PRIORS, ids=NAMES)
def test_one_weight_is_exact(prior):
    """With a Gaussian likelihood there is one cavity, the likelihood itself."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=7)
    y = 0.5 * x + rng.normal(size=7)
    post = fit_linear(x[:, None], y, loss=Gaussian(0.7), prior=prior)
    precision = x @ x / 0.7
    m, v = np.array([x @ y / 0.7 / precision]), np.array([1.0 / precision])
    lZ, dlZ, d2lZ = prior.moments(m, v)
    # likelihood = constant times N(w; m, v)
    constant = -3.5 * np.log(2.0 * np.pi * 0.7) - 0.5 * y @ y / 0.7 + 0.5 * m**2 / v
    constant += 0.5 * np.log(2.0 * np.pi * v)
    np.testing.assert_allclose(post.log_evidence, constant + lZ, rtol=1e-10)
    np.testing.assert_allclose(post.mean, m + v * dlZ, rtol=1e-9)
    np.testing.assert_allclose(post.variance, v + v * v * d2lZ, rtol=1e-8)
    np.testing.assert_allclose(post.prior_cavities[0], m, rtol=1e-8)
    assert post.residual < 1e-9


@pytest.mark.parametrize("loss", ["logistic", "probit", "poisson"])
@pytest.mark.parametrize("prior", PRIORS[1:], ids=NAMES[1:])
def test_brute_force_of_two_weights(prior, loss):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(40, 2))
    y = responses_of(LOSSES[loss], X @ [0.5, 0.0], rng)
    post = fit_linear(X, y, loss=loss, prior=prior)
    line = np.linspace(-7.0, 7.0, 700)  # 0 is between two points
    grid = np.stack([part.ravel() for part in np.meshgrid(line, line)], axis=1)
    of_rows = np.zeros(len(grid))
    responses = LOSSES[loss].responses("y", y, 40)
    for i in range(40):
        one = np.broadcast_to(responses[i], (len(grid), responses.shape[1]))
        of_rows -= LOSSES[loss].values(grid @ X[i], np.ascontiguousarray(one))
    density = prior.log_density(line)
    log = of_rows + np.add.outer(density, density).ravel()
    evidence = special.logsumexp(log) + 2.0 * np.log(line[1] - line[0])
    weight = np.exp(log - special.logsumexp(log))
    mean = weight @ grid
    sd = np.sqrt(weight @ grid**2 - mean**2)
    assert post.log_evidence == pytest.approx(evidence, abs=0.15)
    assert (np.abs(post.mean - mean) < 0.1 * sd).all()
    np.testing.assert_allclose(np.sqrt(post.variance), sd, rtol=0.08)


def plain_ep(A, moments, precision, sweeps=300):
    """EP, one factor of a row of A after the other: mean, covariance, log evidence."""
    tau, nu, scale = np.zeros((3, len(A)))
    tau[:] = precision
    for _ in range(sweeps):
        for i, a in enumerate(A):
            covariance = np.linalg.inv(A.T @ (tau[:, None] * A))
            s, h = a @ covariance @ a, a @ covariance @ (A.T @ nu)
            v = 1.0 / (1.0 / s - tau[i])
            m = v * (h / s - nu[i])
            if v <= 0.0:  # the site stays
                continue
            lZ, d, d2 = moments(i, m, v)
            tau[i] = -d2 / (1.0 + v * d2)
            nu[i] = (d - m * d2) / (1.0 + v * d2)
            whole = 1.0 + tau[i] * v
            shift = nu[i] + m / v
            scale[i] = lZ + 0.5 * np.log(whole) - 0.5 * (shift**2 * v / whole - m * m / v)
    shift, matrix = A.T @ nu, A.T @ (tau[:, None] * A)
    evidence = scale.sum() + 0.5 * shift @ np.linalg.solve(matrix, shift)
    return evidence - 0.5 * np.linalg.slogdet(matrix / (2.0 * np.pi))[1], covariance, shift


@pytest.mark.cover(*(lambda k=k, **case: case[k] for k in ("loss", "prior", "shape")))
@pytest.mark.parametrize("shape", [(14, 4), (4, 6), (1, 3)])
@pytest.mark.parametrize("loss", ["gaussian", "logistic", "poisson"])
@pytest.mark.parametrize("prior", PRIORS, ids=NAMES)
def test_plain_ep(prior, loss, shape):
    """Rows of X and of the identity are factors like any other."""
    n, d = shape
    X, h, _ = data(n, d, 2, 4)
    y = responses_of(LOSSES[loss], 0.5 * h, np.random.default_rng(1))
    responses, one = LOSSES[loss].responses("y", y, n), np.ones(1)
    of_rows, of_weights = LOSSES[loss].tilted(), prior.tilted()

    def moments(i, m, v):
        out = np.empty((3, 1))
        given = np.array([m]), np.array([v]), one
        kind, response = (of_rows, responses[[i]]) if i < n else (of_weights, np.ones((1, 1)))
        assert kind.many(response, *given, *out) == 0
        return out[:, 0]

    A = np.vstack([X, np.eye(d)])
    begin = np.r_[np.zeros(n), np.full(d, 1.0 / prior.spread)]
    evidence, covariance, shift = plain_ep(A, moments, begin)
    post = fit_linear(X, y, loss=loss, prior=prior, schedule=TIGHT)
    assert post.converged
    np.testing.assert_allclose(post.mean, covariance @ shift, atol=1e-6)
    np.testing.assert_allclose(post.variance, np.diag(covariance), rtol=1e-6)
    assert post.log_evidence == pytest.approx(evidence, abs=1e-6)


@pytest.mark.cover(*(lambda k=k, **case: case[k] for k in ("loss", "prior", "shape", "more")))
@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("shape", [(14, 10), (6, 11)])
@pytest.mark.parametrize("loss", ["gaussian", "logistic"])
@pytest.mark.parametrize("prior", PRIORS, ids=NAMES)
def test_weights_in_parts(monkeypatch, prior, loss, shape, more):
    """As many weights as blocks are visited in parts; plain EP has none. more: all arguments.

    The intercept is a column of ones, whose factor is normal. A row of a weight below 1 is a factor
    to that power.
    """
    monkeypatch.setattr(weights_form, "CHUNK", 1)
    n, d = shape
    X, h, _ = data(n, d, 2, 4)
    y = responses_of(LOSSES[loss], 0.5 * h, np.random.default_rng(1))
    weights, offset = (np.linspace(0.3, 1.0, n), 0.3 * h) if more else (np.ones(n), np.zeros(n))
    responses, one = LOSSES[loss].responses("y", y, n), np.ones(1)
    of_rows, of_weights = LOSSES[loss].tilted(), prior.tilted()

    def moments(i, m, v):
        if i == n + d:
            return -0.5 * np.log(2.0 * np.pi * (v + 3.0)) - 0.5 * m**2 / (v + 3.0), *(
                np.array([-m, -1.0]) / (v + 3.0)
            )
        out = np.empty((3, 1))
        if i < n:
            given = np.array([m + offset[i]]), np.array([v]), weights[[i]]
            assert of_rows.many(responses[[i]], *given, *out) == 0
        else:
            assert of_weights.many(np.ones((1, 1)), np.array([m]), np.array([v]), one, *out) == 0
        return out[:, 0]

    whole = np.column_stack([X, np.ones(n)]) if more else X
    A, begin = np.vstack([whole, np.eye(d + more)]), np.zeros(n + d + more)
    begin[n:] = 1.0 / prior.spread
    begin[n + d :] = 1.0 / 3.0
    evidence, covariance, shift = plain_ep(A, moments, begin, sweeps=80)
    given = {"weights": weights, "offset": offset, "intercept": 3.0} if more else {}
    rows = sparse.csr_matrix(X) if more else X
    post = fit_linear(rows, y, loss=loss, prior=prior, schedule=TIGHT, **given)
    assert post.converged
    np.testing.assert_allclose(post.mean, covariance @ shift, atol=1e-6)
    np.testing.assert_allclose(post.variance, np.diag(covariance), rtol=1e-6)
    assert post.log_evidence == pytest.approx(evidence, abs=1e-6)


@pytest.mark.parametrize("n", [20, 5])
@pytest.mark.parametrize("loss", ["gaussian", "logistic", "poisson"])
def test_a_slab_alone_is_a_normal_prior(n, loss):
    """Of columns about their means, where the intercept has a normal prior."""
    X, h, _ = data(n, 8, 4, 0)
    X = X - X.mean(axis=0)
    y = responses_of(LOSSES[loss], h, np.random.default_rng(1))
    ours = fit_linear(X, y, loss=loss, prior=SpikeAndSlab(1.0, 0.6), intercept=3.0, schedule=TIGHT)
    plain = fit_linear(X, y, loss=loss, prior_variance=0.6, intercept=3.0, schedule=TIGHT)
    assert ours.log_evidence == pytest.approx(plain.log_evidence, abs=1e-7)
    np.testing.assert_allclose(ours.mean, plain.mean, atol=1e-7)
    np.testing.assert_allclose(ours.variance, plain.variance, rtol=1e-7)
    np.testing.assert_allclose(ours.predict_latent(X)[1], plain.predict_latent(X)[1], rtol=1e-6)
    assert (ours.inclusion_probability == 1.0).all()


# ---- forms, orders, rows of all kinds ----


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("prior", PRIORS, ids=NAMES)
def test_both_forms_sweep_alike(monkeypatch, prior, loss):
    """Step by step, whatever becomes of them."""
    X, h, _ = data(9, 14, 3, 2)
    y = responses_of(LOSSES[loss], 0.5 * h, np.random.default_rng(1))
    given = {"loss": loss, "prior": prior, "intercept": True}
    given["schedule"] = EP(sweeps=3, tol=0.0, order="sequential", damping=0.6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = fit_linear(X, y, **given)
        other = in_d_by_d(monkeypatch, X, y, **given)
    sd = np.sqrt(other.variance)
    np.testing.assert_allclose(ours.mean / sd, other.mean / sd, atol=1e-6)
    np.testing.assert_allclose(ours.variance, other.variance, rtol=1e-6)
    assert ours.log_evidence == pytest.approx(other.log_evidence, rel=1e-6, abs=1e-6)
    np.testing.assert_allclose(ours.covariance, other.covariance, atol=1e-6 * np.max(sd) ** 2)


@pytest.mark.parametrize("shape", [(40, 10), (12, 30)])
@pytest.mark.parametrize("loss", ["gaussian", "probit"])
@pytest.mark.parametrize("prior", PRIORS[:2], ids=NAMES[:2])
def test_orders_agree(prior, loss, shape):
    X, h, _ = data(*shape, 2, 5)
    y = responses_of(LOSSES[loss], h, np.random.default_rng(1))

    def fit(**given):
        schedule = EP(sweeps=800, tol=1e-9, **given)
        post = fit_linear(X, y, loss=loss, prior=prior, schedule=schedule)
        assert post.converged, given
        return post

    first = fit()
    for given in (
        {"order": "sequential", "damping": 0.5},
        {"order": "shuffled", "damping": 0.5},
        {"order": "parallel", "damping": 0.3},
    ):
        other = fit(**given)
        np.testing.assert_allclose(first.mean, other.mean, atol=1e-6)
        assert first.log_evidence == pytest.approx(other.log_evidence, abs=1e-6)
    assert first.residual < 1e-6


def test_rows_in_chunks():
    X, h, _ = data(1500, 6, 3, 0)
    y = np.where(h > 0, 1.0, -1.0)
    found = [
        fit_linear(X, y, prior=SpikeAndSlab(0.5, 4.0), schedule=EP(order=order, tol=1e-8))
        for order in ("auto", "sequential", "chunked")
    ]
    for other in found[1:]:
        assert other.converged
        np.testing.assert_allclose(found[0].mean, other.mean, atol=1e-6)
        assert found[0].log_evidence == pytest.approx(other.log_evidence, abs=1e-6)


@pytest.mark.parametrize("shape", [(30, 8), (12, 25)])
@pytest.mark.parametrize("loss", ["gaussian", "logistic"])
def test_weights_are_copies(loss, shape):
    X, h, _ = data(*shape, 3, 1)
    y = responses_of(LOSSES[loss], h, np.random.default_rng(1))
    weights = np.ones(shape[0])
    weights[[1, 4]] = 2.0
    weights[2] = 0.0
    copies = np.repeat(np.arange(shape[0]), weights.astype(int))
    given = {"loss": loss, "prior": LaplacePrior(0.5), "schedule": TIGHT}
    ours, other = (
        fit_linear(X, y, weights=weights, **given),
        fit_linear(X[copies], y[copies], **given),
    )
    np.testing.assert_allclose(ours.mean, other.mean, atol=1e-6)
    assert ours.log_evidence == pytest.approx(other.log_evidence, abs=1e-6)
    assert ours.residual < 1e-6


@pytest.mark.parametrize("shape", [(30, 8), (10, 25)])
def test_sparse_rows_and_offsets(shape):
    X, y, _ = data(*shape, 3, 1)
    X = np.where(np.abs(X) > 0.8, X, 0.0)
    X[:, 2] = 0.0
    offset = np.random.default_rng(2).normal(size=shape[0])
    given = {"loss": Gaussian(0.5), "prior": SpikeAndSlab(0.3, 1.0)}
    dense = fit_linear(X, y + offset, offset=offset, **given)
    ours = fit_linear(sparse.csr_array(X), y, **given)
    np.testing.assert_allclose(ours.mean, dense.mean, atol=1e-9)
    assert ours.log_evidence == pytest.approx(dense.log_evidence, abs=1e-9)
    # a column of zeros keeps its prior
    assert ours.inclusion_probability[2] == 0.3
    assert ours.mean[2] == 0.0
    assert ours.variance[2] == pytest.approx(0.3)
    without = fit_linear(np.delete(X, 2, axis=1), y, **given)
    assert ours.log_evidence == pytest.approx(without.log_evidence, abs=1e-6)


def test_an_intercept_is_not_penalised():
    X, y, _ = data(40, 6, 2, 0)
    given = {"loss": Gaussian(1.0), "prior": SpikeAndSlab(0.3, 1.0), "intercept": 1e6}
    post, moved = fit_linear(X, y, **given), fit_linear(X, y + 50.0, **given)
    np.testing.assert_allclose(moved.mean[:-1], post.mean[:-1], atol=1e-3)
    assert moved.mean[-1] - post.mean[-1] == pytest.approx(50.0, abs=1e-3)
    assert post.inclusion_probability[-1] == 1.0


# ---- convergence ----


@pytest.mark.parametrize(
    ("n", "d", "k", "seed"), [(100, 50, 8, 0), (100, 50, 8, 1), (60, 120, 6, 0)]
)
def test_the_default_settles(n, d, k, seed):
    X, y, _ = data(n, d, k, seed)
    post = fit_linear(X, y, loss=Gaussian(1.0), prior=SpikeAndSlab(k / d, 1.0))
    assert post.converged
    assert post.n_sweeps < 40
    assert post.residual < 1e-4
    # where a cavity does not tell, a site is negative, and stays so
    assert 1 <= (post.prior_sites.precision < 0.0).sum() < d // 5


def test_many_columns():
    X, y, w = data(100, 3000, 4, 1, noise=0.05)
    post = fit_linear(X, y, loss=Gaussian(0.05), prior=SpikeAndSlab(4 / 3000, 1.0))
    assert post.converged
    large = np.abs(w) > 0.3
    assert (post.inclusion_probability[large] > 0.95).all()
    assert post.inclusion_probability[w == 0.0].max() < 0.2
    mean, variance = post.predict_latent(X[:5])
    np.testing.assert_allclose(mean, X[:5] @ post.mean)
    assert (variance > 0.0).all()


def test_what_does_not_settle_is_said():
    X, y, _ = data(40, 200, 8, 0)
    with pytest.warns(epfast.ConvergenceWarning, match="prior"):
        post = fit_linear(
            X, y, loss=Gaussian(1.0), prior=SpikeAndSlab(0.04, 1.0), schedule=EP(sweeps=3)
        )
    assert not post.converged


def test_a_start_resumes():
    X, y, _ = data(20, 30, 3, 1)
    given = {"loss": "probit", "prior": SpikeAndSlab(0.1, 1.0)}
    y = np.where(y > 0, 1.0, -1.0)
    post = fit_linear(X, y, **given)
    again = fit_linear(X, y, start=post, **given)
    assert again.n_sweeps - post.n_sweeps <= 3
    assert again.log_evidence == pytest.approx(post.log_evidence, abs=1e-5)


# ---- learning ----


def shifted(post, name, step):
    value = getattr(post.prior, name, None)
    if name.startswith("loss."):
        value = getattr(post.loss, name[5:])
    return post.with_numbers({name: value * (1.0 + step)}).log_evidence, value


@pytest.mark.parametrize("shape", [(40, 10), (12, 20)])
@pytest.mark.parametrize("prior", PRIORS, ids=NAMES)
def test_slopes_of_the_evidence(prior, shape):
    X, y, _ = data(*shape, 3, 1)
    post = fit_linear(X, y, loss=Gaussian(0.9), prior=prior, schedule=TIGHT)
    slopes = post.prior_gradient()
    slopes |= {f"loss.{name}": slope for name, slope in post.loss_gradient().items()}
    assert set(slopes) == {*prior.learnable, "loss.variance"}
    for name, slope in slopes.items():
        (up, value), (down, _) = shifted(post, name, 1e-4), shifted(post, name, -1e-4)
        assert slope == pytest.approx((up - down) / (2e-4 * value), rel=1e-4, abs=1e-5)


def test_learning():
    X, y, _ = data(120, 30, 6, 1, noise=0.25)
    post = fit_linear(X, y, loss=Gaussian(1.0), prior=SpikeAndSlab(0.5, 5.0))
    names = ("share", "variance", "loss.variance")
    found = post.learned(names)
    assert found.converged
    assert found.log_evidence > post.log_evidence + 10.0
    assert found.loss.variance == pytest.approx(0.25, rel=0.5)
    assert 0.05 < found.prior.share < 0.4
    slopes = found.prior_gradient() | {"noise": found.loss_gradient()["variance"]}
    assert abs(slopes["share"]) * found.prior.share < 0.05
    assert abs(slopes["noise"]) * found.loss.variance < 0.05
    # the posterior that it began with is as it was
    assert post.prior == SpikeAndSlab(0.5, 5.0)
    with pytest.raises(ValueError, match="names is 'scale'; allowed"):
        post.learned(("scale",))
    with pytest.raises(ValueError, match="names is empty"):
        post.learned(())
    with pytest.warns(epfast.ConvergenceWarning):
        early = fit_linear(X, y, loss="gaussian", prior=post.prior, schedule=EP(sweeps=1))
    with pytest.raises(ValueError, match="has not converged"):
        early.learned()


@pytest.mark.parametrize("prior", [LaplacePrior(0.5), StudentTPrior(3.0, 0.3)], ids=str)
def test_learning_ends_at_the_largest_value(prior):
    """As fits to 1e-10 at each scale do, of which Brent's method finds the best."""
    X, y, _ = data(60, 12, 4, 3, noise=0.5)
    given = {"loss": Gaussian(0.5), "schedule": EP(tol=1e-10, sweeps=500)}

    def lost(u):
        at = replace(prior, scale=float(np.exp(u)))
        return -fit_linear(X, y, prior=at, **given).log_evidence

    best = optimize.minimize_scalar(lost, bracket=(-3.0, 0.0), tol=1e-8)
    found = fit_linear(X, y, loss=Gaussian(0.5), prior=prior).learned()
    assert found.log_evidence == pytest.approx(-best.fun, abs=1e-7)
    assert np.log(found.prior.scale) == pytest.approx(best.x, abs=1e-3)
    assert found.problem.schedule.tol == EP().tol


# ---- what a posterior can do ----


@pytest.fixture(params=[(40, 10), (12, 20)], ids=["d x d", "n x n"])
def classified(request):
    X, h, _ = data(*request.param, 3, 1)
    y = np.where(h > 0, 1.0, -1.0)
    return X, y, fit_linear(X, y, prior=SpikeAndSlab(0.2, 2.0), intercept=True)


def test_pickles_and_files(classified, tmp_path):
    X, y, post = classified
    post.save(tmp_path / "post.npz")
    for other in (pickle.loads(pickle.dumps(post)), load(tmp_path / "post.npz")):
        assert type(other) is type(post)
        assert other.prior == post.prior
        assert other.log_evidence == post.log_evidence
        np.testing.assert_array_equal(other.mean, post.mean)
        np.testing.assert_array_equal(other.prior_sites.shift, post.prior_sites.shift)
        np.testing.assert_allclose(other.inclusion_probability, post.inclusion_probability)
        for one, two in zip(other.predict_latent(X), post.predict_latent(X), strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-9)
        np.testing.assert_array_equal(other.sample(3, 0), post.sample(3, 0))
        whole = other.with_rows(X, y)
        np.testing.assert_allclose(whole.loo_log_predictive(), post.loo_log_predictive())
        assert whole.residual == pytest.approx(post.residual, abs=1e-9)
        with pytest.raises(ValueError, match=r"X or y|X has"):
            other.with_rows(X[1:], y[1:]).residual  # noqa: B018


def _saved(post, folder):
    post.save(folder / "post.npz")
    return folder / "post.npz"


def test_predictions(classified):
    X, _, post = classified
    mean, variance = post.predict_latent(X)
    joint = post.predict_latent(X, joint=True)[1]
    np.testing.assert_allclose(np.diag(joint), variance, rtol=1e-8)
    whole = np.column_stack([X, np.ones(len(X))])
    np.testing.assert_allclose(mean, whole @ post.mean)
    np.testing.assert_allclose(variance, np.diag(whole @ post.covariance @ whole.T), rtol=1e-8)
    np.testing.assert_allclose(post.variance, np.diag(post.covariance), rtol=1e-8)
    draws = post.sample(40_000, 0)
    np.testing.assert_allclose(draws.mean(axis=0), post.mean, atol=0.05)
    assert post.predict_proba(X).shape == (len(X),)


def test_leave_one_out(classified):
    X, y, post = classified
    found = post.loo_log_predictive()
    for i in (0, 3, 7):
        rest = np.arange(len(y)) != i
        other = fit_linear(X[rest], y[rest], prior=post.prior, intercept=True)
        assert found[i] == pytest.approx(other.log_predictive(X[[i]], y[[i]])[0], abs=0.12)


def test_refused_by_name(classified):
    X, y, post = classified
    with pytest.raises(ValueError, match="sites move with new rows"):
        post.partial_fit(X, y)
    with pytest.raises(ValueError, match="sites move where rows go"):
        post.remove(0)
    for schedule in (None, epfast.ADF()):
        with pytest.raises(TypeError, match="start has a prior= of single weights"):
            fit_linear(X, y, intercept=True, start=post, schedule=schedule)
    other = fit_linear(X, y, prior=LaplacePrior())
    with pytest.raises(ValueError, match="under which no weight is 0"):
        other.inclusion_probability  # noqa: B018


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"prior_variance": 1.0}, ValueError, "prior_variance is 1.0 beside prior="),
        ({"prior_mean": np.zeros(3)}, ValueError, "prior_mean is .* beside prior="),
        ({"posterior": "factorized"}, ValueError, "prior"),
        ({"batch_size": 2, "scheme": "laplace"}, ValueError, "prior"),
        ({"schedule": epfast.ADF()}, ValueError, "prior"),
        ({"schedule": epfast.SEP()}, ValueError, "prior"),
        ({"schedule": EP(power=0.5)}, ValueError, "power is 0.5 beside prior="),
        ({"record": "cost"}, ValueError, "record is 'cost' beside prior="),
        ({"prior": "horseshoe"}, TypeError, "prior is 'horseshoe'; allowed"),
        ({"prior": SpikeAndSlab}, TypeError, "allowed: an object of epfast.losses"),
    ],
)
def test_the_door(given, error, words):
    X, y = np.eye(5)[:, :3], np.array([1, -1, 1, -1, 1])
    with pytest.raises(error, match=words):
        fit_linear(X, y, **{"prior": SpikeAndSlab(), **given})


def test_a_start_of_another_kind():
    X, y = np.eye(5)[:, :3], np.array([1, -1, 1, -1, 1])
    with pytest.raises(TypeError, match="allowed with a prior=: a ShrunkPosterior"):
        fit_linear(X, y, prior=SpikeAndSlab(), start=fit_linear(X, y))
    start = fit_linear(X[:4], y[:4], prior=SpikeAndSlab())
    with pytest.raises(ValueError, match="start has sites of 4 rows and 3 weights; allowed: 5"):
        fit_linear(X, y, prior=SpikeAndSlab(), start=start)


def test_inputs_stay_and_callbacks_see():
    X, y, _ = data(15, 25, 3, 0)
    kept, seen = (X.copy(), y.copy()), []

    def callback(info, state):
        seen.append((info.log_evidence, state.mean.copy(), state.prior_sites.precision.copy()))
        return len(seen) == 4

    post = fit_linear(X, y, loss="gaussian", prior=SpikeAndSlab(0.1), callback=callback)
    assert len(seen) == post.n_sweeps == 4
    np.testing.assert_array_equal(X, kept[0])
    np.testing.assert_array_equal(y, kept[1])
    assert np.abs(seen[0][1] - seen[1][1]).max() > 0.0
    assert np.abs(seen[0][2] - seen[3][2]).max() > 0.0


def test_interrupted():
    X, y, _ = data(15, 25, 3, 0)

    def callback(info, state):
        if info.sweep == 3:
            raise KeyboardInterrupt

    with pytest.raises(epfast.Interrupted) as stopped:
        fit_linear(X, y, loss="gaussian", prior=SpikeAndSlab(0.1), callback=callback)
    post = stopped.value.posterior
    assert not post.converged
    assert np.isfinite(post.mean).all()
    assert post.n_sweeps in (2, 3)


# ---- certificates ----


@pytest.mark.full
def test_checks_of_models():
    X, y, _ = data(100, 30, 5, 0)
    post = fit_linear(X, y, loss=Gaussian(1.0), prior=SpikeAndSlab(0.2, 1.0))
    found = post.check(4000)
    assert found.verdict == "good"
    assert found.log_evidence == pytest.approx(post.log_evidence, abs=0.2)
    assert found.mean.shape == found.sd.shape == (30,)
    assert found.effective_draws > 200


def test_checks_flag_several_modes():
    """Two columns all but alike, one of which is in: EP's sites take a side, or neither."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 12))
    X[:, 1] = X[:, 0] + 0.05 * rng.normal(size=60)
    X[:, 2] = X[:, 0] + 0.05 * rng.normal(size=60)
    y = 2.0 * X[:, 0] + 0.5 * rng.normal(size=60)
    prior = SpikeAndSlab(0.05, 4.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        post = fit_linear(X, y, loss=Gaussian(0.25), prior=prior)
    inclusion = all_models(X, y, prior, 0.25)[1]
    assert np.abs(post.inclusion_probability - inclusion).max() > 0.1
    assert post.check(1000).verdict != "good"


@pytest.mark.parametrize("prior", PRIORS[1:3], ids=NAMES[1:3])
@pytest.mark.parametrize("shape", [(60, 6), (12, 15)])
def test_checks_of_densities(prior, shape):
    X, h, _ = data(*shape, 3, 0)
    post = fit_linear(X, np.where(h > 0, 1.0, -1.0), loss="probit", prior=prior, intercept=True)
    found = post.check(2000)
    assert found.log_evidence == pytest.approx(post.log_evidence, abs=0.5)
    if shape == (60, 6):
        assert found.verdict in ("good", "usable")


def test_checks_sample_the_exact_evidence():
    X, y, _ = data(25, 6, 2, 3)
    prior = SpikeAndSlab(0.3, 1.0)
    post = fit_linear(X, y, loss=Gaussian(1.0), prior=prior)
    evidence, _, mean = all_models(X, y, prior, 1.0)
    found = post.check(400)
    assert abs(found.log_evidence - evidence) < 4.0 * found.log_evidence_se + 1e-3
    judged = np.isfinite(found.mean_se)
    assert judged.sum() >= 2
    assert (np.abs(found.mean - mean)[judged] < 4.0 * found.mean_se[judged] + 1e-3).all()


@pytest.mark.parametrize("loss", ["gaussian", "probit"])
def test_few_rows_make_no_matrix_of_the_weights(loss):
    X, y, _ = data(6, 3000, 3, 0)
    y = y if loss == "gaussian" else np.where(y > 0.0, 1, -1)
    given = {"loss": loss, "prior": LaplacePrior(0.5), "schedule": EP(sweeps=2, tol=0.0)}
    tracemalloc.start()
    fit_linear(X, y, **given)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 0.25 * 8 * X.shape[1] ** 2


@dataclass(frozen=True)
class TwoNormals(epfast.losses.Prior):
    """A prior of one's own, with nothing to learn."""

    share: float = 0.2

    @property
    def spread(self):
        return 0.8 * 0.01 + 0.2 * 4.0

    def mixture(self):
        return np.log([1.0 - self.share, self.share]), np.array([0.01, 4.0])


def test_a_prior_of_ones_own_has_no_gradient_and_no_file(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 3))
    post = fit_linear(X, X[:, 0], loss=Gaussian(0.5), prior=TwoNormals())
    assert post.prior_gradient() == {}
    with pytest.raises(TypeError, match=r"prior is TwoNormals\(.*of a class of your own; allowed"):
        post.save(tmp_path / "own.npz")
    assert not list(tmp_path.iterdir())
