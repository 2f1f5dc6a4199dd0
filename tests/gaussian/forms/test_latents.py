"""EP on rows with several latents: fixed points, evidence, symmetries."""

import numpy as np
import pytest
from scipy import sparse, special

import epfast
from epfast import losses
from epfast.gaussian import orders
from epfast.gaussian.forms import stack
from tests.oracles import plain_ep

TIGHT = epfast.EP(tol=1e-11, sweeps=4000)


def data(loss, n=60, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    latent = X @ rng.normal(size=(d, loss.latents))
    if loss.latents == 2 and isinstance(loss, losses.Heteroscedastic):
        latent[:, 1] *= 0.3
    return X, loss.sample(latent, rng)


def ordered(order, **more):
    return epfast.EP(tol=1e-11, sweeps=8000, order=order, **more)


LOSSES = [
    losses.Multiclass(3, correlated=False),
    losses.Multiclass(2, correlated=False),
    losses.Heteroscedastic(),
]


def by_the_book(X, y, loss, variance, sweeps=3000):
    """EP one row after the other, all matrices anew: means, covariances, log evidence."""
    n, d = X.shape
    C = loss.latents
    tau, nu, scale = np.zeros((C, n)), np.zeros((C, n)), np.zeros(n)
    prior = variance * np.eye(d)
    rows = loss.responses("y", y, n)

    def posterior(k):
        return plain_ep.posterior(X, prior, np.stack([tau[k], nu[k], np.zeros(n)]))

    for _ in range(sweeps):
        before = np.concatenate([tau, nu])
        for i in range(n):
            m, v = np.empty(C), np.empty(C)
            for k in range(C):
                mean, covariance, _ = posterior(k)
                h, s = X[i] @ mean, X[i] @ covariance @ X[i]
                v[k] = 1 / (1 / s - tau[k, i])
                m[k] = v[k] * (h / s - nu[k, i])
            lZ, d1, d2 = (
                part[0] for part in loss.tilted_moments(rows[i : i + 1], m[None], v[None])
            )
            tau[:, i], nu[:, i] = -d2 / (1 + v * d2), (d1 - m * d2) / (1 + v * d2)
            scale[i] = lZ
            for k in range(C):
                scale[i] -= plain_ep.log_integral(1 / v[k] + tau[k, i], m[k] / v[k] + nu[k, i])
                scale[i] += plain_ep.log_integral(1 / v[k], m[k] / v[k])
        if np.abs(np.concatenate([tau, nu]) - before).max() < 1e-11:
            break
    parts = [posterior(k) for k in range(C)]
    evidence = scale.sum() + sum(part[2] for part in parts)
    return np.stack([p[0] for p in parts]), np.stack([p[1] for p in parts]), evidence


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_the_fixed_point_by_the_book(loss):
    X, y = data(loss, n=15, d=2)
    post = epfast.fit_linear(X, y, loss=loss, prior_variance=0.5, schedule=TIGHT)
    mean, covariance, evidence = by_the_book(X, y, loss, 0.5)
    np.testing.assert_allclose(post.mean, mean, atol=1e-8)
    np.testing.assert_allclose(post.covariance, covariance, atol=1e-8)
    assert post.log_evidence == pytest.approx(evidence, abs=1e-8)
    assert post.converged
    assert post.residual < 1e-8


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize(
    "schedule",
    [
        ordered("sequential"),
        ordered("shuffled"),
        ordered("parallel"),
        ordered("chunked"),
        ordered("chunked", block=7),
        ordered("sequential", damping=0.7),
    ],
    ids=lambda s: f"{s.order} {s.block} {s.damping}",
)
def test_all_orders_agree(loss, schedule):
    X, y = data(loss)
    first = epfast.fit_linear(X, y, loss=loss, prior_variance=0.1, schedule=TIGHT)
    post = epfast.fit_linear(X, y, loss=loss, prior_variance=0.1, schedule=schedule)
    assert first.converged
    assert post.converged
    np.testing.assert_allclose(post.mean, first.mean, atol=1e-8)
    np.testing.assert_allclose(post.variance, first.variance, rtol=1e-8)
    assert post.log_evidence == pytest.approx(first.log_evidence, abs=1e-8)


@pytest.mark.parametrize("order", ["sequential", "chunked", "auto"])
def test_sparse_rows(order):
    rng = np.random.default_rng(0)
    X = sparse.random(200, 12, 0.3, random_state=0, format="csr")
    y = rng.integers(0, 4, 200)
    schedule = epfast.EP(order=order, tol=0.0, sweeps=3)
    posts = [
        epfast.fit_linear(
            rows, y, loss=losses.Multiclass(4, correlated=False), intercept=True, schedule=schedule
        )
        for rows in (X, X.toarray(), X.toarray().astype(np.float32))
    ]
    np.testing.assert_allclose(posts[0].mean, posts[1].mean, atol=1e-11)
    np.testing.assert_allclose(posts[2].mean, posts[1].mean, atol=1e-5)
    assert posts[0].log_evidence == pytest.approx(posts[1].log_evidence, abs=1e-9)


def test_the_automatic_order_settles_where_only_the_prior_tells():
    """A number added to all classes: sequential sweeps take thousands."""
    for n in (300, 800):
        X, y = data(losses.Multiclass(3, correlated=False), n=n)
        post = epfast.fit_linear(X, y, loss=losses.Multiclass(3, correlated=False), intercept=True)
        assert post.converged
        assert post.n_sweeps < 20
        # at a fixed point what the classes have in common is that of the prior
        np.testing.assert_allclose(post.mean.sum(axis=0), 0.0, atol=1e-4)
        assert (post.sites.precision >= 0.0).all()


def test_evidence_on_a_grid():
    rng = np.random.default_rng(1)
    X, y, loss = (
        rng.normal(size=(4, 1)),
        np.array([0, 2, 1, 2]),
        losses.Multiclass(3, correlated=False),
    )
    grid = np.linspace(-7.0, 7.0, 57)
    theta = np.stack(np.meshgrid(grid, grid, grid, indexing="ij"), -1).reshape(-1, 3)
    latent = X[None, :, :] * theta[:, None, :]
    value = -loss.values(latent, loss.responses("y", y, 4)).sum(axis=1)
    log_prior = -0.5 * (theta**2).sum(axis=1) - 1.5 * np.log(2 * np.pi)
    weight = special.softmax(value + log_prior)
    truth = special.logsumexp(value + log_prior) + 3 * np.log(grid[1] - grid[0])
    mean = weight @ theta
    sd = np.sqrt(weight @ (theta - mean) ** 2)
    post = epfast.fit_linear(X, y, loss=loss, prior_variance=1.0)
    assert post.log_evidence == pytest.approx(truth, abs=0.1)
    np.testing.assert_allclose(post.mean[:, 0], mean, atol=0.05)
    np.testing.assert_allclose(np.sqrt(post.variance[:, 0]), sd, rtol=0.1)
    # of one row the tilted distribution is the posterior: nothing is lost
    post = epfast.fit_linear(X[:1], y[:1], loss=loss)
    want = special.logsumexp(-loss.values(latent[:, :1], np.array([[0.0]]))[:, 0] + log_prior)
    assert post.log_evidence == pytest.approx(want + 3 * np.log(grid[1] - grid[0]), abs=1e-9)


@pytest.mark.full
def test_heteroscedastic_evidence_on_a_grid():
    rng = np.random.default_rng(2)
    X, y, loss = rng.normal(size=(6, 1)), rng.normal(size=6), losses.Heteroscedastic()
    grid = np.linspace(-7.0, 7.0, 351)
    theta = np.stack(np.meshgrid(grid, grid, indexing="ij"), -1).reshape(-1, 2)
    latent = X[None, :, :] * theta[:, None, :]
    value = -loss.values(latent, loss.responses("y", y, 6)).sum(axis=1)
    total = value - 0.5 * (theta**2).sum(axis=1) - np.log(2 * np.pi)
    truth = special.logsumexp(total) + 2 * np.log(grid[1] - grid[0])
    post = epfast.fit_linear(X, y, loss=loss)
    assert post.log_evidence == pytest.approx(truth, abs=0.2)
    np.testing.assert_allclose(post.mean[:, 0], special.softmax(total) @ theta, atol=0.15)


def test_two_classes_are_probit():
    """h_1 - h_0 is sqrt(2) times the latent of probit with half the sum of the prior variances.

    The product over the classes is an approximation more: only one row is exact.
    """
    X, y = data(losses.Multiclass(2, correlated=False), n=1)
    post = epfast.fit_linear(X, y, loss=losses.Multiclass(2, correlated=False), prior_variance=0.7)
    probit = epfast.fit_linear(X, np.where(y > 0, 1, -1), loss="probit", prior_variance=0.7)
    assert post.log_evidence == pytest.approx(probit.log_evidence, abs=1e-12)
    away = (post.mean[1] - post.mean[0]) / np.sqrt(2)
    np.testing.assert_allclose(away, probit.mean, atol=1e-12)


def test_permuted_classes():
    loss = losses.Multiclass(4, correlated=False)
    X, y = data(loss, n=120)
    order = np.array([2, 0, 3, 1])
    first = epfast.fit_linear(X, y, loss=loss, schedule=TIGHT)
    other = epfast.fit_linear(X, order[y.astype(int)], loss=loss, schedule=TIGHT)
    np.testing.assert_allclose(other.mean[order], first.mean, atol=1e-8)
    np.testing.assert_allclose(other.covariance[order], first.covariance, atol=1e-9)
    assert other.log_evidence == pytest.approx(first.log_evidence, abs=1e-8)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_an_offset_is_a_known_part_of_the_latents(loss):
    X, y = data(loss)
    known, n = np.array([0.5, -0.2, 0.1]), len(X)
    offset = np.repeat((X @ known)[:, None], loss.latents, axis=1)
    post = epfast.fit_linear(X, y, loss=loss, prior_variance=0.1, offset=offset, schedule=TIGHT)
    other = epfast.fit_linear(X, y, loss=loss, prior_variance=0.1, prior_mean=known, schedule=TIGHT)
    np.testing.assert_allclose(post.mean + known, other.mean, atol=1e-7)
    assert post.log_evidence == pytest.approx(other.log_evidence, abs=1e-8)
    np.testing.assert_allclose(post.predict(X, offset), other.predict(X), atol=1e-7)
    # of each latent its own
    rng = np.random.default_rng(0)
    shift, m = rng.normal(size=(2, n, loss.latents))
    v = rng.uniform(0.1, 2.0, m.shape)
    rows = loss.observed(y, n, shift)
    pairs = zip(
        loss.tilted_moments(rows, m, v),
        loss.tilted_moments(rows[:, :1], m + shift, v),
        strict=True,
    )
    for got, want in pairs:
        np.testing.assert_array_equal(got, want)
    posts = [
        epfast.fit_linear(
            X, y, loss=loss, prior_variance=0.1, offset=shift,
            schedule=epfast.EP(order=order, tol=1e-10, sweeps=5000),
        )
        for order in ("sequential", "chunked", "auto")
    ]  # fmt: skip
    for post in posts[1:]:
        np.testing.assert_allclose(post.mean, posts[0].mean, atol=1e-7)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_rows_of_zeros_say_nothing(loss):
    X, y = data(loss)
    more = np.concatenate([X, np.zeros((2, X.shape[1]))])
    for order in ("sequential", "chunked", "auto"):
        schedule = epfast.EP(order=order, tol=1e-10, sweeps=5000)
        first, post = (
            epfast.fit_linear(rows, labels, loss=loss, prior_variance=0.1, schedule=schedule)
            for rows, labels in ((X, y), (more, np.append(y, [1.0, 0.0])))
        )
        np.testing.assert_allclose(post.mean, first.mean, atol=1e-7)
        at = np.zeros((2, loss.latents))
        gain = -loss.values(at, loss.responses("y", [1.0, 0.0], 2)).sum()
        assert post.log_evidence == pytest.approx(first.log_evidence + gain, abs=1e-7)


def test_chunks_are_made_smaller_where_sweeps_do_not_contract(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 1))
    scores = X @ (3.0 * rng.normal(size=(1, 3))) + 0.1 * rng.gumbel(size=(200, 3))
    y = scores.argmax(axis=1)
    given = {"loss": "multiclass", "schedule": epfast.EP(100, order="chunked")}
    small = epfast.fit_linear(X, y, **given)
    monkeypatch.setattr(stack, "chunk_size", lambda problem: 200)
    large = epfast.fit_linear(X, y, **given)
    assert small.converged
    assert large.converged
    np.testing.assert_allclose(large.mean, small.mean, atol=1e-3)
    monkeypatch.setattr(orders, "STALLED", np.inf)
    with pytest.warns(epfast.ConvergenceWarning):
        assert not epfast.fit_linear(X, y, **given).converged


def test_rows_that_are_refused_are_fitted_again_in_smaller_parts():
    """From a prior so wide the first sweeps of all rows at once have improper cavities."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(120, 6))
    y = X @ rng.normal(size=6) + np.exp(0.5 * X[:, 0]) * rng.normal(size=120)
    y[:3] += 50.0
    given = {"loss": "heteroscedastic", "prior_variance": 1e6}
    turn, together = (
        epfast.fit_linear(X, y, **given, schedule=epfast.EP(200, 1e-6, order=order))
        for order in ("sequential", "parallel")
    )
    assert together.converged
    assert together.n_sweeps < 55  # 62 where they keep their sites
    assert together.log_evidence == pytest.approx(turn.log_evidence, abs=1e-4)
