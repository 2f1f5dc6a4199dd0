"""Full covariance: weights, sparse rows, orders, shards, Laplace propagation, rows in and out."""

import pickle

import numpy as np
import pytest
from scipy import sparse, special

import epfast
from epfast import ADF, AEP, DAEP, DEP, DSEP, EP, SEP
from epfast.backend import tilted_moments

TIGHT = {"sweeps": 400, "tol": 1e-11}


def data(n=60, d=5, seed=0, noise=1.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * np.linspace(0.5, 2.0, d)
    y = np.where(X @ rng.normal(size=d) + noise * rng.normal(size=n) > 0, 1.0, -1.0)
    return X, y


def fit(X, y, loss="probit", **options):
    options = {
        "scheme": "exact",
        "posterior": "full",
        "batch_size": None,
        "prior_variance": 3.0,
        "schedule": EP(**TIGHT),
    } | options
    return epfast.fit_linear(X, y, loss=loss, **options)


def assert_same(a, b, tol=1e-9):
    np.testing.assert_allclose(a.mean, b.mean, rtol=0, atol=tol * np.sqrt(b.variance.max()))
    np.testing.assert_allclose(a.covariance, b.covariance, rtol=0, atol=tol * b.variance.max())
    assert a.log_evidence == pytest.approx(b.log_evidence, abs=tol * max(1, abs(b.log_evidence)))


def residual(post, X, y, loss, weights=None, power=1.0):
    """The largest mismatch of tilted and posterior moments of x.theta, from the result alone."""
    h = X @ post.mean
    s = np.einsum("ij,jk,ik->i", X, post.covariance, X)
    w = np.ones(len(y)) if weights is None else weights
    copies = np.maximum(w, 1.0)
    rest = 1 - power / copies * post.sites.precision * s
    m, v = (h - power / copies * post.sites.shift * s) / rest, s / rest
    gaps = []
    for i in np.flatnonzero(w):
        one = slice(i, i + 1)
        _, first, second = tilted_moments(loss, y[one], m[one], v[one], power * w[i] / copies[i])
        gaps.append(abs(m[one] + v[one] * first - h[one]) / np.sqrt(s[one]))
        gaps.append(abs(v[one] * (1 + v[one] * second) / s[one] - 1))
    return np.max(gaps)


# ---- weights ----


@pytest.mark.parametrize("order", ["auto", "sequential", "parallel"])
@pytest.mark.parametrize("loss", ["probit", "logistic", "hinge"])
def test_whole_weights_are_repeated_rows(loss, order):
    X, y = data()
    w = np.random.default_rng(1).integers(0, 4, len(y))
    rows = np.repeat(np.arange(len(y)), w)
    schedule = EP(**TIGHT, order=order, damping=0.6 if order == "parallel" else 1.0)
    weighted = fit(X, y, loss, weights=w, schedule=schedule)
    assert_same(weighted, fit(X[rows], y[rows], loss, schedule=schedule), 1e-8)
    assert weighted.residual < 1e-8
    assert residual(weighted, X, y, loss, w) < 1e-8


@pytest.mark.parametrize("schedule", [AEP(**TIGHT), DAEP([0] * 30 + [1] * 30, **TIGHT)])
def test_whole_weights_are_repeated_rows_of_shared_sites(schedule):
    X, y = data()
    w = np.random.default_rng(1).integers(0, 3, len(y))
    rows = np.repeat(np.arange(len(y)), w)
    again = AEP(**TIGHT)
    if isinstance(schedule, DAEP):
        again = DAEP(np.asarray(schedule.groups)[rows], **TIGHT)
    weighted = fit(X, y, weights=w, schedule=schedule)
    assert_same(weighted, fit(X[rows], y[rows], schedule=again), 1e-8)


def test_fractions_are_powers():
    """Logistic with all weights 1/2 is logistic with beta = 1/2; so is ADF, with any weight."""
    X, y = data()
    for schedule in (EP(**TIGHT), EP(**TIGHT, order="sequential"), AEP(**TIGHT), ADF()):
        half = fit(X, y, "logistic", weights=np.full(60, 0.5), schedule=schedule)
        assert_same(half, fit(X, y, "logistic", beta=0.5, schedule=schedule), 1e-8)
    double = fit(X, y, "logistic", weights=np.full(60, 2.0), schedule=ADF())
    assert_same(double, fit(X, y, "logistic", beta=2.0, schedule=ADF()), 1e-8)


@pytest.mark.parametrize("schedule", [EP(**TIGHT), EP(**TIGHT, order="sequential"), ADF()])
def test_rows_of_zeros_and_weights_of_zero_change_nothing(schedule):
    X, y = data(20)
    want = fit(X, y, schedule=schedule)
    more, labels = np.vstack([X, np.zeros((2, 5))]), np.append(y, [1.0, -1.0])
    post = fit(more, labels, schedule=schedule)
    np.testing.assert_allclose(post.mean, want.mean, atol=1e-12)
    assert post.log_evidence == pytest.approx(want.log_evidence + 2 * np.log(0.5), abs=1e-10)
    more[20:] = 5.0
    post = fit(more, labels, weights=[1.0] * 20 + [0.0] * 2, schedule=schedule)
    assert_same(post, want, 1e-10)


# ---- sparse rows ----


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "array"])
@pytest.mark.parametrize(
    "schedule",
    [
        *(EP(6, 0.0, order=order, seed=3, damping=0.7) for order in ("sequential", "shuffled")),
        *[EP(6, 0.0, order="parallel", damping=0.7), EP(), ADF(), AEP(9), SEP(2, batch=7), DEP(3)],
    ],
    ids=lambda schedule: f"{type(schedule).__name__}-{schedule.order}",
)
def test_sparse_rows(schedule, form):
    rng = np.random.default_rng(2)
    X, y = data(70, 8)
    X *= rng.random(X.shape) < 0.3
    given = sparse.csr_array(X) if form == "array" else sparse.csr_matrix(X).asformat(form)
    before = given.copy()
    post = fit(given, y, "logistic", schedule=schedule)
    want = fit(X, y, "logistic", schedule=schedule)
    assert_same(post, want, 1e-10)
    assert (before != given).nnz == 0
    for one, other in zip(post.predict_latent(given), want.predict_latent(X), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    if want.sites is not None:
        np.testing.assert_allclose(post.residual, want.residual, rtol=1e-6, atol=1e-12)
        loo = want.loo_log_predictive()
        np.testing.assert_allclose(post.loo_log_predictive(), loo, rtol=1e-8)


def test_sparse_forms():
    """Entries given twice, unsorted columns, integers; and what is no matrix of numbers."""
    X, y = data(30, 4)
    X = np.round(X)
    want = fit(X, y)
    row, column = np.nonzero(X)
    half = sparse.coo_matrix(
        (np.tile(X[row, column] / 2, 2), (np.tile(row, 2), np.tile(column, 2)))
    )
    assert_same(fit(half, y), want)
    assert_same(fit(sparse.csr_matrix(X.astype(int)), y), want)
    wrong = sparse.csr_matrix(X)
    unsorted = sparse.csr_matrix(
        (wrong.data[::-1], wrong.indices[::-1], wrong.indptr[-1] - wrong.indptr[::-1]), wrong.shape
    )
    assert_same(fit(unsorted, y[::-1]), want)
    wrong.indices[3] = 99
    with pytest.raises(ValueError, match=r"^X is not a valid CSR"):
        fit(wrong, y)
    for bad in (
        sparse.csr_matrix(X) * 1j,
        sparse.csr_matrix(X * np.nan),
        sparse.csr_matrix((0, 4)),
    ):
        with pytest.raises((ValueError, TypeError), match=r"^X\b"):
            fit(bad, y)


# ---- orders ----


@pytest.mark.parametrize("loss", ["probit", "logistic", "hinge", "quasi01"])
@pytest.mark.parametrize(("n", "d"), [(2000, 4), (300, 20), (30, 40)])
def test_automatic_order_finds_the_fixed_point(n, d, loss):
    X, y = data(n, d, noise=2.0)
    post = fit(X, y, loss)
    assert post.converged
    assert residual(post, X, y, loss) < 1e-8
    assert post.residual < 1e-8
    if loss != "quasi01":  # which may have several
        assert_same(post, fit(X, y, loss, schedule=EP(**TIGHT, order="sequential")), 1e-7)


def test_automatic_order_saves_sweeps():
    X, y = data(8000, 10)
    counts = {}
    for order in ("auto", "parallel"):
        counts[order] = fit(X, y, schedule=EP(tol=1e-6, order=order)).n_sweeps
    assert counts["auto"] <= counts["parallel"] - 2


@pytest.mark.parametrize("d", [6, 300])
def test_drift_is_measured_and_small(d):
    X, y = data(400, d)
    post = fit(X, y, schedule=EP(8, 0.0, refresh=3, order="sequential"))
    drifts = [info.drift for info in post.history]
    assert drifts[2] is not None
    assert all(drift is None or drift < 1e-9 for drift in drifts)
    assert_same(post, fit(X, y, schedule=EP(8, 0.0, refresh=100, order="sequential")), 1e-9)


def test_a_vague_prior_costs_no_digits():
    """Variances that fall by many orders in the first sweep are computed anew from the sites."""
    X, y = data(400, 6)
    post = fit(X, y, prior_variance=1e12, schedule=EP(**TIGHT, order="sequential"))
    assert post.history[0].drift is not None
    assert residual(post, X, y, "probit") < 1e-8


# ---- shards ----


@pytest.mark.parametrize("order", ["sequential", "shuffled", "parallel"])
@pytest.mark.parametrize("shards", [1, 4, np.arange(60) % 3])
def test_distributed_ep_has_the_fixed_point_of_ep(order, shards):
    X, y = data()
    damping = 0.5 if order == "parallel" else 1.0
    schedule = DEP(shards, **TIGHT, order=order, seed=1, damping=damping)
    post = fit(X, y, "logistic", schedule=schedule, weights=np.linspace(0.5, 2.0, 60))
    assert post.converged
    assert_same(post, fit(X, y, "logistic", weights=np.linspace(0.5, 2.0, 60)), 1e-7)


def test_one_inner_sweep_in_one_shard_is_ep():
    X, y = data()
    inner = EP(1, 0.0, order="sequential", power=0.7)
    post = fit(X, y, schedule=DEP(1, 3, 0.0, inner=inner))
    assert_same(post, fit(X, y, schedule=EP(3, 0.0, power=0.7, order="sequential")), 1e-10)


# ---- Laplace propagation ----


def map_of(X, y, precision):
    def cost(theta):
        return np.logaddexp(0, -y * (X @ theta)).sum() + 0.5 * theta @ precision @ theta

    def slope(theta):
        return X.T @ (-y / (1 + np.exp(y * (X @ theta)))) + precision @ theta

    def hessian(theta):
        p = 1 / (1 + np.exp(-X @ theta))
        return (X * (p * (1 - p))[:, None]).T @ X + precision

    theta = np.zeros(X.shape[1])
    for _ in range(50):
        theta = theta - np.linalg.solve(hessian(theta), slope(theta))
    assert abs(slope(theta)).max() < 1e-9
    return theta, hessian(theta), cost(theta)


@pytest.mark.parametrize("scheme", ["laplace", "quick_laplace"])
@pytest.mark.parametrize("order", ["sequential", "shuffled", "parallel"])
@pytest.mark.parametrize("batch_size", [1, 7, 20, 60, 100])
def test_laplace_propagation_finds_the_mode(batch_size, order, scheme):
    """Smola et al. (2003), Lemma 1: fixed points are stationary points of the exact posterior."""
    X, y = data()
    schedule = EP(**TIGHT, order=order, seed=2, damping=0.7 if order == "parallel" else 1.0)
    if scheme == "quick_laplace":
        # expanded at the mean of the cavity, it has that fixed point only in the limit of many rows
        post = fit(X, y, "logistic", scheme=scheme, batch_size=batch_size, schedule=schedule)
        assert np.isfinite(post.log_evidence)
        return
    precision = np.eye(5) + 0.1
    arguments = {"prior_precision": precision, "prior_variance": 25.0, "schedule": schedule}
    post = fit(X, y, "logistic", scheme=scheme, batch_size=batch_size, **arguments)
    theta, hessian, cost = map_of(X, y, precision)
    assert post.converged
    assert post.residual < 1e-8
    np.testing.assert_allclose(post.mean, theta, atol=1e-8)
    np.testing.assert_allclose(post.precision, hessian, rtol=1e-7)
    # the evidence is that of Laplace's method
    evidence = -cost + 0.5 * np.linalg.slogdet(precision)[1] - 0.5 * np.linalg.slogdet(hessian)[1]
    assert post.log_evidence == pytest.approx(evidence, abs=1e-7)


@pytest.mark.parametrize("order", ["sequential", "parallel"])
def test_laplace_propagation_is_exact_in_one_step_for_normal_factors(order):
    """Smola et al. (2003), Theorem 2."""
    X, y = data()
    loss = epfast.CustomLoss(lambda m: 0.5 * (m - 1) ** 2, lambda m: m - 1, lambda m: 1 + 0 * m)
    schedule = EP(1, 0.0, order=order)
    post = fit(X, y, loss, scheme="laplace", batch_size=9, schedule=schedule, prior_variance=2.0)
    covariance = np.linalg.inv(np.eye(5) / 2 + X.T @ X)
    np.testing.assert_allclose(post.covariance, covariance, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(post.mean, covariance @ X.T @ y, rtol=1e-10, atol=1e-12)


def test_first_parallel_step_is_the_bayes_committee_machine():
    """Flat sites, each chunk fitted to the prior alone, the results multiplied (Tresp 2000)."""
    X, y = data()
    prior = np.eye(5) / 3.0
    precision, shift = prior.copy(), np.zeros(5)
    for part in (slice(0, 25), slice(25, 50), slice(50, 60)):
        theta, hessian, _ = map_of(X[part], y[part], prior)
        precision += hessian - prior
        shift += hessian @ theta
    schedule = EP(1, 0.0, order="parallel")
    post = fit(X, y, "logistic", scheme="laplace", batch_size=25, schedule=schedule)
    np.testing.assert_allclose(post.precision, precision, rtol=1e-7)
    np.testing.assert_allclose(post.shift, shift, rtol=1e-6)


def test_laplace_weights_powers_sparse_and_adf():
    X, y = data()
    w = np.random.default_rng(3).integers(0, 3, 60)
    rows = np.repeat(np.arange(60), w)
    options = {"scheme": "laplace", "batch_size": 12}
    a = fit(X, y, "logistic", weights=w, **options)
    assert_same(a, fit(X[rows], y[rows], "logistic", **options), 1e-7)
    assert_same(fit(sparse.csr_matrix(X), y, "logistic", weights=w, **options), a)
    power = fit(X, y, "logistic", weights=w, **options | {"schedule": EP(**TIGHT, power=0.5)})
    assert_same(power, a, 1e-7)
    once = fit(X, y, "logistic", **options | {"schedule": ADF()})
    assert_same(once, fit(X, y, "logistic", **options | {"schedule": EP(1, 0.0)}), 1e-10)
    assert fit(X, y, "squared_hinge", **options).residual < 1e-8
    for scheme in ("variational", "quadrature", "exact"):
        with pytest.raises(ValueError, match=r"^scheme\b"):
            fit(X, y, scheme=scheme, batch_size=3)
    with pytest.raises(ValueError, match=r"^schedule\b"):
        fit(X, y, scheme="laplace", batch_size=3, schedule=SEP())


# ---- rows in and out ----


@pytest.mark.parametrize("loss", ["probit", "logistic", "hinge"])
def test_leave_one_out_is_near_the_truth(loss):
    """Refitted without the row: EP's cavities are off by the second order of its influence."""
    X, y = data(40, 3)
    loo = fit(X, y, loss).loo_log_predictive()
    for i in range(0, 40, 7):
        rest = np.arange(40) != i
        p = fit(X[rest], y[rest], loss).predict_proba(X[i : i + 1])[0]
        assert loo[i] == pytest.approx(np.log(p if y[i] > 0 else 1 - p), abs=0.02)


@pytest.mark.parametrize("schedule", [EP(**TIGHT), EP(**TIGHT, power=0.5), AEP(**TIGHT), DAEP(3)])
def test_leave_one_out_is_the_probability_under_the_posterior_without_the_site(schedule):
    X, y = data(40, 3)
    w = np.where(np.arange(40) % 5 == 0, 2.0, 1.0)
    post = fit(X, y, "logistic", weights=w, schedule=schedule)
    loo = post.loo_log_predictive()
    for i in (1, 13, 38):
        without = post.remove(i)
        p = without.predict_proba(X[i : i + 1])[0]
        assert loo[i] == pytest.approx(np.log(p if y[i] > 0 else 1 - p), abs=1e-7)
    assert loo[5] == pytest.approx(fit_of_copies(post, X, y, w, 5), abs=1e-7)


def fit_of_copies(post, X, y, w, i):
    """Leaving out one of the copies of a row of weight 2."""
    if post.sites.shift.ndim == 1:
        tau, nu = (part[i] / w[i] for part in post.sites[:2])
        P, p = post.precision - tau * np.outer(X[i], X[i]), post.shift - nu * X[i]
    else:
        k = post.data.groups[i]
        P, p = post.precision - post.sites.precision[k], post.shift - post.sites.shift[k]
    mean, variance = X[i] @ np.linalg.solve(P, p), X[i] @ np.linalg.solve(P, X[i])
    return tilted_moments("logistic", y[i : i + 1], [mean], [variance])[0][0]


def test_rows_go_in_and_out(tmp_path):
    X, y = data(50, 4)
    whole = fit(X, y)
    part = fit(X[:40], y[:40])
    grown = part.partial_fit(X[40:], y[40:], schedule=EP(**TIGHT))
    assert grown.sites.shift.shape == (50,)
    np.testing.assert_array_equal(grown.sites.shift[:40], part.sites.shift)
    assert np.isfinite(grown.loo_log_predictive()).all()
    # as a start for all the rows it leads to the fixed point, and it was near it
    assert_same(fit(X, y, start=grown), whole, 1e-8)
    assert abs(grown.mean - whole.mean).max() < 0.05
    back = grown.remove(range(40, 50))
    assert_same(back, part, 1e-10)
    assert_same(fit(X[:40], y[:40], start=back), part, 1e-8)
    sparse_grown = part.partial_fit(sparse.csr_matrix(X[40:]), y[40:], schedule=EP(**TIGHT))
    assert_same(sparse_grown, grown)
    # without a reference to the rows they must be given
    for other in (pickle.loads(pickle.dumps(whole)), load(whole, tmp_path)):
        with pytest.raises(ValueError, match="X and y are needed"):
            other.loo_log_predictive()
        loo = other.loo_log_predictive(X, y)
        np.testing.assert_allclose(loo, whole.loo_log_predictive(), rtol=1e-12)
        assert_same(other.remove([3, 5], X, y), whole.remove([3, 5]), 1e-12)
        assert other.partial_fit(X[:3], y[:3]).sites.shift.shape == (53,)
    once = fit(X[:40], y[:40], schedule=ADF()).partial_fit(X[40:], y[40:])
    assert_same(once, fit(X, y, schedule=ADF()), 1e-10)
    for wrong in ([50], [-1], 0.5, range(50)):
        with pytest.raises((ValueError, TypeError), match=r"^rows\b"):
            whole.remove(wrong)
    with pytest.raises(ValueError, match="no sites"):
        once.remove(0)
    with pytest.raises(ValueError, match="share"):
        fit(X, y, schedule=AEP()).partial_fit(X, y)
    assert np.isnan(once.residual)


def load(post, folder):
    post.save(folder / "post.npz")
    return epfast.load(folder / "post.npz")


def test_residual_of_shared_sites():
    X, y = data()
    for schedule in (AEP(**TIGHT), DAEP(4, **TIGHT), DSEP(60, **TIGHT)):
        post = fit(X, y, schedule=schedule)
        assert post.converged
        assert post.residual < 1e-8
        early = (
            fit(X, y, schedule=type(schedule)(**vars(schedule) | {"sweeps": 2}))
            if (isinstance(schedule, DAEP | DSEP))
            else fit(X, y, schedule=AEP(2))
        )
        assert early.residual > 1e-4
    assert fit(X, y, schedule=SEP(**TIGHT)).residual > 1e-4  # the bias of sequential SEP


# ---- an independent oracle ----


def numpy_ep(X, y, loss, variance, sweeps=400, damping=0.7):
    """Parallel damped EP in plain NumPy to its fixed point: mean, covariance and log evidence."""
    n, d = X.shape
    tau, nu = np.zeros(n), np.zeros(n)
    z = np.linspace(-9.0, 9.0, 73)  # the trapezoidal rule: exponentially accurate here
    weight = np.exp(-0.5 * z**2) * (z[1] - z[0]) / np.sqrt(2 * np.pi)
    for _ in range(sweeps):
        P = np.eye(d) / variance + (X.T * tau) @ X
        covariance = np.linalg.inv(P)
        mean = covariance @ (X.T @ nu)
        h, s = X @ mean, np.einsum("ij,jk,ik->i", X, covariance, X)
        v = 1 / (1 / s - tau)
        m = v * (h / s - nu)
        margin = y[:, None] * (m[:, None] + np.sqrt(v)[:, None] * z)
        if loss == "probit":
            u = y * m / np.sqrt(1 + v)
            log_z, g = special.log_ndtr(u), np.exp(-0.5 * u**2 - special.log_ndtr(u))
            g /= np.sqrt(2 * np.pi)
            tilted_mean = m + y * v * g / np.sqrt(1 + v)
            tilted_variance = v - v**2 * g * (u + g) / (1 + v)
        else:
            f = weight * special.expit(margin)
            Z = f.sum(axis=1)
            first, second = f @ z / Z, f @ z**2 / Z
            log_z, tilted_mean = np.log(Z), m + np.sqrt(v) * first
            tilted_variance = v * (second - first**2)
        new_tau = 1 / tilted_variance - 1 / v
        new_nu = tilted_mean / tilted_variance - m / v
        change = max(abs(new_tau - tau).max(), abs(new_nu - nu).max())
        if change < 1e-12:
            break
        tau, nu = tau + damping * (new_tau - tau), nu + damping * (new_nu - nu)
    assert change < 1e-10
    # Rasmussen & Williams (2006), eq. 3.65, in natural parameters: log of the integral of
    # prior times sites that integrate to Z_i over their cavities
    scale = log_z - 0.5 * np.log(tilted_variance / v)
    scale -= 0.5 * (tilted_mean**2 / tilted_variance - m**2 / v)
    evidence = scale.sum() + 0.5 * mean @ P @ mean
    evidence -= 0.5 * (np.linalg.slogdet(P)[1] + d * np.log(variance))
    return mean, covariance, evidence


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["probit", "logistic"])
@pytest.mark.parametrize(("n", "d"), [(5000, 4), (351, 33)])
def test_the_fixed_point_is_that_of_numpy(n, d, loss):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(n, d))
    noise = rng.normal(size=n) if loss == "probit" else rng.logistic(size=n)
    y = np.where(X @ rng.normal(size=d) + noise > 0, 1.0, -1.0)
    mean, covariance, evidence = numpy_ep(X, y, loss, 1.0)
    for order in ("auto", "sequential"):
        schedule = EP(**TIGHT, order=order)
        post = fit(X, y, loss, prior_variance=1.0, schedule=schedule)
        np.testing.assert_allclose(post.mean, mean, rtol=0, atol=1e-8 * abs(mean).max())
        scale = abs(covariance).max()
        np.testing.assert_allclose(post.covariance, covariance, rtol=0, atol=1e-8 * scale)
        assert post.log_evidence == pytest.approx(evidence, rel=1e-8)
        assert post.residual < 1e-8
