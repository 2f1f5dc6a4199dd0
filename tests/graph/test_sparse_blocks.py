"""Blocks with a sparse precision, and transitions between their rows as states.

Dense algebra is that of covariances: the states' own by recursion, then the normal distribution of
all observations, without an inverse of a precision.
"""

import pickle
import time
import warnings
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import linalg, sparse, stats

import epfast
from epfast import ADF, EP, SEP, Graph, losses
from epfast.graph import Between, Noise, Product, Transition, Walk

TIGHT = EP(sweeps=400, tol=1e-11)
STEP = np.array([[1.0, 1.0], [0.0, 1.0]])
NOISE = {
    "level": np.diag([0.09, 0.0025]),
    "velocity": 0.01 * np.array([[1.0 / 3.0, 0.5], [0.5, 1.0]]),
}
FIRST = np.array([100.0, 1.0])


def made_up(kind, n, seed=0):
    """Observations of the first entry of n states, with noise of variance 1."""
    rng = np.random.default_rng(seed)
    x, root = np.zeros((n, 2)), np.linalg.cholesky(NOISE[kind])
    for t in range(1, n):
        x[t] = STEP @ x[t - 1] + root @ rng.normal(size=2)
    return x[:, 0] + rng.normal(size=n)


def prior_covariance(n, steps, noises, first=FIRST):
    """Covariance of n states (n k, n k) by recursion. steps, noises: of each transition."""
    k = len(first)
    C = np.zeros((n, k, n, k))
    C[0, :, 0] = np.diag(first)
    for t, (A, Q) in enumerate(zip(steps, noises, strict=True), 1):
        for s in range(t):
            C[t, :, s] = A @ C[t - 1, :, s]
            C[s, :, t] = C[t, :, s].T
        C[t, :, t] = A @ C[t - 1, :, t - 1] @ A.T + Q
    return C.reshape(n * k, n * k)


def dense(C, H, y, variance, mean=0.0):
    """Mean and covariance of N(mean, C) given y = H x + noise, and log p(y)."""
    S = H @ C @ H.T + np.diag(np.broadcast_to(variance, len(y)))
    gain = linalg.solve(S, H @ C, assume_a="pos").T
    start = np.broadcast_to(mean, len(C))
    evidence = stats.multivariate_normal(H @ start, S).logpdf(y)
    return start + gain @ (y - H @ start), C - gain @ H @ C, evidence


def sparse_precision(kind, n):
    """The precision of all states, by their transitions."""
    P = np.zeros((2 * n, 2 * n))
    P[:2, :2] = np.diag(1.0 / FIRST)
    inverse = np.linalg.inv(NOISE[kind])
    F = np.hstack([-STEP, np.eye(2)])
    for t in range(n - 1):
        P[2 * t : 2 * t + 4, 2 * t : 2 * t + 4] += F.T @ inverse @ F
    return sparse.csr_array(P)


def flat_after(n, first=FIRST):
    """Variances of the first state, and flat ones of the others."""
    return np.concatenate([[first], np.full((n - 1, len(first)), np.inf)])


def by_transitions(kind, n, variance=None):
    g = Graph()
    x = g.block((n, 2), variance=flat_after(n) if variance is None else variance, name="x")
    g.add(Transition(NOISE[kind], factor=STEP), x[:-1], x[1:])
    return g, x, x[:, 0]


def by_precision(kind, n):
    g = Graph()
    x = g.block(2 * n, precision=sparse_precision(kind, n), name="x")
    return g, x, x[::2]


def agree(post, x, exact, tol=1e-8):
    mean, covariance, evidence = exact
    sd = np.sqrt(np.diag(covariance))
    assert_allclose(post[x].mean.ravel() / sd, mean / sd, atol=tol, rtol=tol)
    assert_allclose(post[x].variance.ravel(), sd**2, rtol=tol)
    assert_allclose(post.log_evidence, evidence, atol=tol, rtol=tol)


class TestGaussian:
    @pytest.mark.parametrize("kind", NOISE)
    @pytest.mark.parametrize("n", [10, 60, 300])
    @pytest.mark.parametrize("make", [by_precision, by_transitions])
    def test_equals_dense_algebra(self, make, n, kind):
        y = made_up(kind, n)
        g, x, observed = make(kind, n)
        g.add("gaussian", observed, y, noise=1.0)
        post = g.fit()
        assert post.converged
        C = prior_covariance(n, [STEP] * (n - 1), [NOISE[kind]] * (n - 1))
        agree(post, x, dense(C, np.eye(2 * n)[::2], y, 1.0))

    @pytest.mark.parametrize("forms", [False, True])
    def test_priors_of_later_states_count(self, forms):
        """Independent priors times transitions, or Gaussian forms: the product is not normalised.

        Its integral without observations is the density of the steps at 0 under the priors.
        """
        n, later = 12, 50.0
        y = made_up("level", n)
        variance = np.r_[FIRST, np.full(2 * n - 2, later)]
        g = Graph()
        if forms:
            x = g.block(2 * n, precision=sparse.diags_array(1.0 / variance))
            level, slope = x.reshape(n, 2)[:, 0], x.reshape(n, 2)[:, 1]
            g.add("gaussian", level[1:] - level[:-1] - slope[:-1], 0.0, noise=0.09)
            g.add("gaussian", slope[1:] - slope[:-1], 0.0, noise=0.0025)
        else:
            x = g.block(2 * n, variance=variance)
            g.add(Transition(NOISE["level"], factor=STEP), x[:-2], x[2:])
        g.add("gaussian", x[::2], y, noise=1.0)
        steps = np.kron(np.eye(n - 1, n, 1), np.eye(2)) - np.kron(np.eye(n - 1, n), STEP)
        H = np.vstack([steps, np.eye(2 * n)[::2]])
        noise = np.r_[np.tile([0.09, 0.0025], n - 1), np.ones(n)]
        agree(g.fit(), x, dense(np.diag(variance), H, np.r_[np.zeros(2 * n - 2), y], noise))

    def test_a_flat_prior_has_the_density_1(self):
        n = 8
        y = made_up("level", n)
        found = []
        for variance in (np.inf, 1e9):
            g, x, observed = by_transitions("level", n, flat_after(n, np.full(2, variance)))
            g.add("gaussian", observed, y, noise=1.0)
            found.append((g.fit(), x))
        (flat, x), (wide, z) = found
        assert_allclose(flat[x].mean, wide[z].mean, atol=1e-6)
        wide_evidence = wide.log_evidence + np.log(2.0 * np.pi * 1e9)
        assert_allclose(flat.log_evidence, wide_evidence, atol=1e-6)

    def test_each_step_has_its_matrices(self):
        """Irregular times, three entries, a drift of the steps, a mean, correlated first states."""
        rng = np.random.default_rng(1)
        n, k = 9, 3
        A, R = rng.normal(size=(n - 1, k, k)), rng.normal(size=(n - 1, k, k))
        Q = R @ np.swapaxes(R, 1, 2) + 0.1 * np.eye(k)
        drift = rng.normal(size=(n - 1, k))
        R0 = rng.normal(size=(k, k))
        first = R0 @ R0.T + np.eye(k)
        P = np.zeros((n * k, n * k))
        P[:k, :k] = np.linalg.inv(first)
        mean = np.zeros((n, k))
        mean[0] = 1.0, -2.0, 0.5
        g = Graph()
        x = g.block((n, k), precision=sparse.csr_array(P), mean=mean)
        g.add(Transition(Q, factor=A), x[:-1], x[1:] - drift)
        y, H = rng.normal(size=(n, 2)), rng.normal(size=(2, k))
        for j in range(2):
            g.add("gaussian", (x * H[j]).sum(axis=1), y[:, j], noise=0.3)
        C = prior_covariance(n, A, Q, np.ones(k))
        T = np.eye(n * k)  # states by the first one and independent steps
        for t in range(1, n):
            T[t * k : t * k + k] += A[t - 1] @ T[t * k - k : t * k]
        C = T @ linalg.block_diag(first, *Q) @ T.T
        start = T @ np.r_[mean[0], drift.ravel()]
        agree(g.fit(), x, dense(C, np.kron(np.eye(n), H), y.ravel(), 0.3, start))

    def test_numbers_are_multiples_of_the_identity(self):
        n = 6
        y = np.random.default_rng(2).normal(size=(n, 2))
        found = []
        for variance, factor in ((0.5, 0.9), (0.5 * np.eye(2), 0.9 * np.eye(2))):
            g = Graph()
            x = g.block((n, 2), variance=flat_after(n))
            g.add(Transition(variance, factor=factor), x[:-1], x[1:])
            g.add("gaussian", x, y)
            found.append(g.fit())
        assert_allclose(found[0][0].mean, found[1][0].mean)
        g = Graph()  # the same as two chains of scalars
        z = g.gaussian((n, 2), variance=flat_after(n))
        g.add(Transition(0.5, factor=0.9), z[:-1], z[1:])
        g.add("gaussian", z, y)
        scalars = g.fit()
        assert_allclose(found[0][0].mean, scalars[z].mean, atol=1e-10)
        assert_allclose(found[0][0].variance, scalars[z].variance, rtol=1e-10)
        assert_allclose(found[0].log_evidence, scalars.log_evidence, atol=1e-9)
        g = Graph()  # entries in one axis
        w = g.block(2 * n, variance=flat_after(n).ravel().clip(max=1e12))
        g.add(Transition(0.5, factor=0.9), w[:-2], w[2:])
        g.add("gaussian", w, y.ravel())
        assert_allclose(g.fit()[w].mean, scalars[z].mean.ravel(), atol=1e-9)

    def test_a_dense_precision_stays_dense(self):
        n = 6
        y = made_up("level", n)
        found = []
        for form in (np.asarray, sparse.csr_array):
            g = Graph()
            x = g.block((n, 2), precision=form(0.1 * np.eye(2 * n)))
            g.add(Transition(NOISE["level"], factor=STEP), x[:-1], x[1:])
            g.add("gaussian", x[:, 0], y)
            found.append(g.fit(TIGHT))
        assert type(found[0][0]).__name__ == "BlockBelief"
        assert_allclose(found[0][0].mean, found[1][0].mean, atol=1e-9)
        assert_allclose(found[0][0].covariance, found[1][0].covariance, atol=1e-9)
        assert_allclose(found[0].log_evidence, found[1].log_evidence, atol=1e-8)

    def test_long_chains_keep_their_digits(self):
        """The evidence of a Kalman filter. Squares of y, up to 1e8, would leave seven digits."""
        n = 3000
        y = made_up("velocity", n, seed=3)
        g, x, observed = by_transitions("velocity", n)
        g.add("gaussian", observed, y, noise=1.0)
        post = g.fit()
        m, C, evidence = np.zeros(2), np.diag(FIRST), 0.0
        for t in range(n):
            if t:
                m, C = STEP @ m, STEP @ C @ STEP.T + NOISE["velocity"]
            S, away = C[0, 0] + 1.0, y[t] - m[0]
            evidence -= 0.5 * (np.log(2.0 * np.pi * S) + away * away / S)
            gain = C[:, 0] / S
            m, C = m + gain * away, C - np.outer(gain, C[0])
        assert_allclose(post.log_evidence, evidence, atol=1e-8)
        assert_allclose(post[x].mean[-1], m, atol=1e-7)
        covariance = post[x].covariances_of([[2 * n - 2, 2 * n - 1]])[0]
        assert_allclose(covariance, C, rtol=1e-9)

    def test_linear_in_the_number_of_steps(self):
        """Numbers of the factor, and a second: 10^4 steps take some .03 s."""
        sizes = []
        for n in (2500, 10_000):
            y = made_up("level", n)
            began = time.process_time()
            g, _, observed = by_transitions("level", n)
            g.add("gaussian", observed, y, noise=1.0)
            post = g.fit()
            assert time.process_time() - began < 1.0
            sizes.append(len(post.state.blocks[0].moments.numbers))
        assert sizes[1] < 4.1 * sizes[0] < 4.1 * 10 * 2500


LOSSES = {
    "poisson": (lambda h, rng: rng.poisson(np.exp(np.clip(h, -3.0, 5.0)))),
    "logistic": (lambda h, rng: np.where(h - h.mean() + rng.logistic(size=len(h)) > 0, 1, -1)),
    "hinge": (lambda h, rng: np.where(h - h.mean() + rng.logistic(size=len(h)) > 0, 1, -1)),
    "student_t": (lambda h, rng: h + rng.standard_t(3, size=len(h))),
}


@pytest.mark.parametrize("damping", [1.0, 0.6])
@pytest.mark.parametrize("loss", LOSSES)
def test_other_losses_are_those_of_linear_models(loss, damping):
    """fit_linear with the same precision, dense and sparse."""
    n = 40
    y = LOSSES[loss](made_up("level", n), np.random.default_rng(0))
    schedule = replace(TIGHT, damping=damping)
    g, x, observed = by_transitions("level", n)
    g.add(loss, observed, y)
    post = g.fit(schedule)
    assert post.converged
    P = sparse_precision("level", n)
    rows = sparse.csr_array(sparse.eye_array(2 * n))[::2]
    for given in (P, P.toarray()):
        reference = epfast.fit_linear(
            rows if sparse.issparse(given) else rows.toarray(),
            y,
            loss=loss,
            prior_precision=given,
            schedule=TIGHT,
        )
        sd = np.sqrt(reference.variance)
        assert_allclose(post[x].mean.ravel() / sd, reference.mean / sd, atol=1e-7)
        assert_allclose(post[x].variance.ravel(), reference.variance, rtol=1e-7)
        assert_allclose(post.log_evidence, reference.log_evidence, atol=1e-6)


def test_sweeps_that_overshoot_take_a_share():
    """Labels of a walk that wanders by a hundred: the fixed point of a dense block."""
    n = 60
    rng = np.random.default_rng(3)
    h = np.cumsum(np.cumsum(rng.normal(0.0, 0.5, n)))
    y = np.where(h - h.mean() > 0, 1, -1)
    found = []
    for dense_too in (False, True):
        g = Graph()
        P = sparse_precision("level", n)
        x = g.block(2 * n, precision=P.toarray() if dense_too else P)
        g.add("probit", x[::2], y)
        found.append(g.fit(TIGHT)[x].mean)
    assert_allclose(*found, rtol=1e-6)


def several(form, n=30):
    """Scalars, a precision of noise, bounds and two kinds of observations beside states."""
    rng = np.random.default_rng(5)
    P = sparse_precision("level", n)
    h = made_up("level", n, 5)
    g = Graph()
    x = g.block(2 * n, precision=P.toarray() if form == "dense" else P, name="x")
    z, tau = g.gaussian(3, name="z"), g.gamma(shape=3.0, rate=1.0, name="tau")
    group = np.arange(n) % 3
    level = x[::2]
    batches = [
        g.add(Noise(tau), h - level),
        g.add("logistic", level - h + z[group], np.where(rng.normal(size=n) > 0, 1, -1)),
        g.add(Between(-3.0, 3.0), level[1:] - level[:-1], noise=0.5),
        g.add("gaussian", level[::5] + z[0], h[::5], noise=2.0),
        g.add("gaussian", x[1::2], 0.0, noise=4.0),
    ]
    return g, x, batches


class TestBesideOthers:
    def test_is_the_fixed_point_of_a_dense_block(self):
        posts = [several(form)[0].fit(TIGHT) for form in ("dense", "sparse")]
        for name in ("x", "z", "tau"):
            a, b = (post[name] for post in posts)
            assert_allclose(a.mean, b.mean, atol=1e-8, rtol=1e-8)
            assert_allclose(a.variance, b.variance, rtol=1e-7)
        assert_allclose(posts[0].log_evidence, posts[1].log_evidence, atol=1e-7)

    def test_a_common_level_is_found(self):
        """Groups beside a chain with counts and labels share its level, which moves slowly."""
        n = 200
        rng = np.random.default_rng(4)
        x = np.zeros((n, 2))
        step = np.array([[0.99, 0.9], [0.0, 0.9]])
        for t in range(1, n):
            x[t] = step @ x[t - 1] + np.sqrt(np.diag(NOISE["level"])) * rng.normal(size=2)
        g = Graph()
        w, z = g.block((n, 2), variance=flat_after(n, np.array([1.0, 0.1]))), g.gaussian(3)
        g.add(Transition(NOISE["level"], factor=step), w[:-1], w[1:])
        h = w[:, 0] + z[np.arange(n) % 3]
        g.add("poisson", h, rng.poisson(np.exp(np.clip(x[:, 0], -4, 6))))
        labels = np.where(x[::3, 0] + rng.normal(size=len(x[::3])) > 0, 1, -1)
        g.add("probit", h[::3], labels)
        assert g.fit().converged

    @pytest.mark.parametrize("kinds", [("sparse", "dense"), ("sparse", "sparse")])
    def test_forms_over_two_blocks(self, kinds):
        """A form over both has no correlations between them: as of two dense ones."""
        rng = np.random.default_rng(6)
        X, y = rng.normal(size=(25, 2)), rng.poisson(2.0, 25)
        means = []
        for given in (("dense", "dense"), kinds):
            g = Graph()
            P = sparse_precision("level", 25)
            x = g.block(50, precision=P.toarray() if given[0] == "dense" else P)
            w = g.block(2, precision=np.eye(2) if given[1] == "dense" else sparse.eye_array(2))
            g.add("poisson", x[::2] + X @ w, y)
            post = g.fit(TIGHT)
            assert post.converged
            means.append(np.r_[post[x].mean, post[w].mean, post[w].variance])
        assert_allclose(*means, atol=1e-7)

    def test_added_and_removed(self):
        g, x, batches = several("sparse")
        before = g.fit(TIGHT)
        more = g.add("poisson", 0.1 * x[::2], np.arange(30) % 3)
        after = g.fit(TIGHT, start=before)
        assert_allclose(after[x].mean, g.fit(TIGHT)[x].mean, atol=1e-8)
        g.remove(more)
        again = g.fit(TIGHT, start=after)
        assert_allclose(again[x].mean, before[x].mean, atol=1e-8)
        g.remove(batches[4], [0, 1])  # Gaussians of the block alone
        assert np.abs(g.fit(TIGHT, start=again)[x].mean - before[x].mean).max() > 1e-4

    def test_transitions_are_removed_factor_by_factor(self):
        n = 5
        g, x, observed = by_transitions("level", n, np.ones((n, 2)))
        g.add("gaussian", observed, np.arange(n))
        g.remove(0, np.arange(2, 8))
        h = Graph()
        z = h.block((n, 2), variance=1.0)
        h.add(Transition(NOISE["level"], factor=STEP), z[0], z[1])
        h.add("gaussian", z[:, 0], np.arange(n))
        assert_allclose(g.fit()[x].mean, h.fit()[z].mean, atol=1e-12)

    @pytest.mark.parametrize("tool", ["pickle", "file"])
    def test_kept_and_resumed_to_the_bit(self, tool, tmp_path):
        g, x, _ = several("sparse")
        whole = g.fit(EP(sweeps=9, tol=0.0))
        post = g.fit(EP(sweeps=5, tol=0.0))
        if tool == "pickle":
            kept = pickle.loads(pickle.dumps(post))
        else:
            post.save(tmp_path / "graph.npz")
            kept = epfast.load(tmp_path / "graph.npz")
        for name in ("x", "z", "tau"):
            assert np.array_equal(kept[name].mean, post[name].mean)
            assert np.array_equal(kept[name].variance, post[name].variance)
        again = Graph.of(kept).fit(EP(sweeps=4, tol=0.0), start=kept)
        assert np.array_equal(again["x"].mean, whole[x].mean)
        assert again.log_evidence == whole.log_evidence

    def test_broken_files(self, tmp_path):
        g, *_ = several("sparse")
        g.fit(EP(sweeps=5, tol=0.0)).save(tmp_path / "graph.npz")
        arrays = dict(np.load(tmp_path / "graph.npz"))
        broken = [name for name in arrays if "block" in name or "part" in name or "pace" in name]
        assert any("pace" in name for name in broken)
        assert any("precision" in name for name in broken)
        for name in broken:
            np.savez(tmp_path / "bad.npz", **(arrays | {name: arrays[name][None, ..., None]}))
            with pytest.raises(ValueError, match=r"bad\.npz"):
                epfast.load(tmp_path / "bad.npz")


@pytest.fixture(name="fit", scope="module")
def fitted():
    n = 20
    g, x, observed = by_transitions("level", n)
    y = made_up("level", n)
    g.add("gaussian", observed, y, noise=1.0)
    C = prior_covariance(n, [STEP] * (n - 1), [NOISE["level"]] * (n - 1))
    return g.fit(), x, dense(C, np.eye(2 * n)[::2], y, 1.0), y


class TestBeliefs:
    def test_covariances(self, fit):
        post, x, (_, C, _), _ = fit
        assert post[x].mean.shape == post[x].variance.shape == post[x].sd.shape == (20, 2)
        assert_allclose(post[x].covariance, C, atol=1e-10)
        states = np.arange(40).reshape(20, 2)
        expected = C.reshape(20, 2, 20, 2)[np.arange(20), :, np.arange(20)]
        assert_allclose(post[x].covariances_of(states), expected, atol=1e-10)
        assert_allclose(post[x].covariances_of([[0, 39]])[0, 0, 1], C[0, 39], atol=1e-10)

    def test_forms(self, fit):
        """Also of states that do not meet in the precision."""
        post, x, (mean, C, _), _ = fit
        rows = np.random.default_rng(0).normal(size=(5, 40)) * (np.arange(40) % 7 == 0)
        rows = np.vstack([rows, np.eye(40)[3] - np.eye(40)[5], np.zeros(40)])
        flat = x.reshape(40)
        form = (flat * rows).sum(axis=1)
        found = post.predict_latent(form)
        assert_allclose(found[0], rows @ mean, atol=1e-9)
        assert_allclose(found[1], np.einsum("ni,ij,nj->n", rows, C, rows), atol=1e-9)

    def test_predictions(self, fit):
        post, x, (mean, C, _), _ = fit
        step = Transition(NOISE["level"], factor=STEP)
        assert_allclose(post.predict(step, x[-1]), STEP @ mean[-2:], atol=1e-9)
        variance = STEP @ C[-2:, -2:] @ STEP.T + NOISE["level"]
        assert_allclose(post.predict_variance(step, x[-1]), np.diag(variance), atol=1e-9)
        assert post.predict(step, x).shape == (20, 2)
        assert_allclose(post.predict(step, x.reshape(40)), post.predict(step, x).ravel())
        entry = Transition(0.5, factor=2.0)
        assert_allclose(post.predict(entry, x[:, 0]), 2.0 * mean[::2], atol=1e-9)
        assert_allclose(
            post.predict_variance("gaussian", x[3, 0], noise=0.5), C[6, 6] + 0.5, rtol=1e-9
        )
        logs = post.log_predictive(Between(-1.0, 1.0), x[:3, 0], noise=0.5)
        sd = np.sqrt(np.diag(C)[:6:2] + 0.5)
        exact = [
            np.diff(stats.norm(m, s).cdf([-1, 1]))[0] for m, s in zip(mean[:6:2], sd, strict=True)
        ]
        assert_allclose(np.exp(logs), exact, rtol=1e-7)
        ends = post.credible_interval(x, 0.9)
        assert_allclose(ends[..., 1] - ends[..., 0], 2.0 * 1.6448536 * post[x].sd, rtol=1e-6)

    def test_draws(self, fit):
        post, _, (mean, C, _), _ = fit
        draws = post.sample(20_000, 0)["x"].reshape(20_000, 40)
        sd = np.sqrt(np.diag(C))
        assert_allclose(draws.mean(axis=0) / sd, mean / sd, atol=0.05)
        assert_allclose(np.cov(draws.T) / np.outer(sd, sd), C / np.outer(sd, sd), atol=0.05)

    def test_checks(self, fit):
        """Of a Gaussian model all weights are equal: the evidence, without a sampling error."""
        post, _, _, _ = fit
        found = post.check(500)
        assert found.verdict == "good"
        assert_allclose(found.log_evidence, post.log_evidence, atol=1e-8)
        g, *_ = several("sparse", 6)
        assert len(g.fit().check(500).mean) == 12 + 3 + 1

    def test_arviz(self, fit):
        pytest.importorskip("xarray")
        post, _, _, y = fit
        data = post.to_arviz(50)
        assert data.posterior["x"].shape == (1, 50, 20, 2)
        assert_allclose(data.observed_data["y1"].values.ravel()[: len(y)], y)
        assert "y0" not in data.observed_data
        g = Graph()
        x = g.block(4, precision=sparse.eye_array(4), name="x")
        g.add("gaussian", x, np.arange(4.0))
        assert g.fit().to_arviz(50).prior_predictive["y0"].shape[1:3] == (50, 4)

    def test_too_large_a_covariance_says_what_to_ask(self):
        n = 20_000
        g = Graph()
        x = g.block(n, precision=sparse.eye_array(n))
        g.add("gaussian", x[:3], 1.0)
        post = g.fit()
        assert_allclose(post[x].mean[:4], [0.5, 0.5, 0.5, 0.0])
        with pytest.raises(MemoryError, match="covariances_of"):
            post[x].covariance  # noqa: B018

    def test_many_independent_entries_are_sparse(self):
        """A matrix of 20,000 would take 3 GB: a walk, as a chain of scalars."""
        n = 20_000
        y = np.sin(np.arange(n) / 500.0)
        g, h = Graph(), Graph()
        x, z = g.block(n, variance=100.0), h.gaussian(n, variance=100.0)
        g.add("gaussian", x[1:] - x[:-1], 0.0, noise=0.1)
        h.add("gaussian", z[1:] - z[:-1], 0.0, noise=0.1)
        for graph, w in ((g, x), (h, z)):
            graph.add("gaussian", w[::4], y[::4])
        a, b = g.fit(), h.fit()
        assert_allclose(a[x].mean, b[z].mean, atol=1e-9)
        assert_allclose(a[x].variance, b[z].variance, rtol=1e-9)
        assert_allclose(a.log_evidence, b.log_evidence, rtol=1e-11)

    def test_copies(self, fit):
        post, x, _, _ = fit
        before = post[x].mean
        post[x].mean[:] = np.nan
        post[x].variance[:] = np.nan
        assert np.array_equal(post[x].mean, before)
        assert np.isfinite(post[x].sd).all()


def transition(variance, factor=STEP, shape=(5, 2), before=slice(None, -1), after=slice(1, None)):
    g = Graph()
    x = g.block(shape)
    return lambda: g.add(Transition(variance, factor=factor), x[before], x[after])


Q, UNIT = NOISE["level"], sparse.eye_array(4).tocsr()
WRONG = {
    "an asymmetric precision": (
        lambda: Graph().block(4, precision=sparse.csr_array(np.triu(np.ones((4, 4))))),
        "precision is not symmetric",
    ),
    "a negative precision": (lambda: Graph().block(4, precision=-UNIT), "precision has -1"),
    "an indefinite precision": (
        lambda: Graph().block(2, precision=sparse.csr_array([[1.0, 2.0], [2.0, 1.0]])),
        "precision is not positive definite",
    ),
    "a singular precision": (
        lambda: Graph().block(2, precision=sparse.csr_array([[1.0, -1.0], [-1.0, 1.0]])),
        "precision is not positive definite",
    ),
    "a row of zeros": (
        lambda: Graph().block(4, precision=sparse.diags_array([1.0, 1.0, 0.0, 1.0])),
        "precision has 0 on its diagonal",
    ),
    "NaN": (lambda: Graph().block(4, precision=UNIT * np.nan), "precision holds NaN"),
    "a precision of another shape": (
        lambda: Graph().block(5, precision=UNIT),
        "precision has shape",
    ),
    "a variance beside": (
        lambda: Graph().block(4, precision=UNIT, variance=1.0),
        "beside variance",
    ),
    "a mean of another shape": (
        lambda: Graph().block(4, precision=UNIT, mean=[1.0, 2.0]),
        "mean has shape",
    ),
    "no axis": (lambda: Graph().block(()), r"d is \(\)"),
    "an empty axis": (lambda: Graph().block((0, 2)), "d is 0"),
    "half a row": (lambda: Graph().block((2.5, 2)), "d is 2.5"),
    "variances of another shape": (
        lambda: Graph().block((3, 2), variance=[1.0, 2.0, 3.0]),
        r"variance has shape \(3,\)",
    ),
    "a negative variance": (lambda: Graph().block((3, 2), variance=-1.0), "variance"),
    "a variance of NaN": (lambda: Graph().block((3, 2), variance=np.nan), "variance holds NaN"),
    "a mean that does not fit": (lambda: Graph().block((3, 2), mean=[1.0, 2.0, 3.0]), "mean has"),
    "an infinite variance of a vector": (lambda: Graph().block(3, variance=np.inf), "variance"),
    "a factor of another order": (transition(Q, np.eye(3)), r"factor has shape \(3, 3\)"),
    "a noise of another order": (transition(np.eye(3)), r"variance has shape \(3, 3\)"),
    "a vector of variances": (transition([1.0, 1.0]), r"variance has shape \(2,\)"),
    "too few matrices": (transition(np.tile(Q, (3, 1, 1))), "do not broadcast"),
    "a singular noise": (transition([[1.0, 1.0], [1.0, 1.0]]), "variance is singular"),
    "a nearly singular noise": (
        transition([[1e-8, 1e-4], [1e-4, 1.0 + 1e-15]]),
        "variance is singular",
    ),
    "no noise": (transition(np.zeros((2, 2))), "variance has 0"),
    "a noise of 0": (transition(0.0), "variance is 0"),
    "a negative noise": (transition(-Q), "variance has -"),
    "an asymmetric noise": (transition([[1.0, 0.5], [0.0, 1.0]]), "variance is not symmetric"),
    "a noise of NaN": (transition(Q * np.nan), "variance holds NaN"),
    "a factor of infinity": (
        transition(Q, [[1.0, np.inf], [0.0, 1.0]]),
        "factor holds NaN or infinity",
    ),
    "a factor of 0": (transition(Q, 0.0), "factor is 0"),
    "too few states": (transition(Q, after=slice(2, None)), "do not broadcast"),
    "half a state": (transition(Q, shape=7, before=slice(-2), after=slice(2, None)), "states of 2"),
    "the same state": (transition(Q, before=0, after=0), "a state in common"),
}


@pytest.mark.parametrize("case", WRONG)
def test_refused(case):
    make, match = WRONG[case]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((ValueError, TypeError), match=match):
            make()


def test_what_has_no_place_beside_a_sparse_precision():
    g, x, observed = by_transitions("level", 5)
    z = g.gaussian((4, 2))
    for make, match in (
        (lambda: g.add(Transition(Q, factor=STEP), z, x[1:]), "allowed: variables"),
        (lambda: g.add(Transition(Q, factor=STEP), x[:-1] + z, x[1:]), "scalar variables"),
        (lambda: g.add(Walk(1.0), x), "allowed: variables"),
        (lambda: g.add(Product(), x[0, 0], z[0], 1.0), "allowed: variables"),
        (lambda: g.add("gaussian", np.eye(10) @ x, 0.0), "one axis"),
        (lambda: g.one_step_ahead(), "sparse precision"),
    ):
        with pytest.raises((ValueError, TypeError), match=match):
            make()
    g.add("poisson", observed, 1)
    for schedule in (ADF(), SEP()):
        with pytest.raises(ValueError, match="a block with a sparse precision"):
            g.fit(schedule)


def test_what_nothing_determines_is_refused():
    g, _, _ = by_transitions("level", 5, np.full((5, 2), np.inf))
    with pytest.raises(ValueError, match="leave something undetermined"):
        g.fit()


def test_other_schedules_where_all_is_gaussian():
    """There are no sites to share or to drop."""
    y = made_up("level", 6)
    found = []
    for schedule in (EP(), EP(power=0.5), EP(order="parallel"), ADF(), SEP()):
        g, x, observed = by_transitions("level", 6)
        g.add("gaussian", observed, y)
        post = g.fit(schedule)
        found.append(np.append(post[x].mean.ravel(), post.log_evidence))
    assert_allclose(found, [found[0]] * len(found), rtol=1e-13)


def test_power_of_a_sparse_block_is_that_of_a_dense_one():
    y = np.random.default_rng(0).poisson(2.0, 20)
    found = []
    for form in (np.asarray, sparse.csr_array):
        g = Graph()
        x = g.block(40, precision=form(sparse_precision("level", 20).toarray()))
        g.add("poisson", x[::2], y)
        post = g.fit(replace(TIGHT, power=0.5))
        found.append(np.r_[post[x].mean, post[x].variance, post.log_evidence])
    assert_allclose(*found, atol=1e-7, rtol=1e-7)


def test_input_is_left_alone_and_not_kept():
    P, A, noise = sparse_precision("level", 4), STEP.copy(), NOISE["level"].copy()
    g = Graph()
    x, z = g.block(8, precision=P), g.block((4, 2), variance=flat_after(4))
    g.add(Transition(noise, factor=A), z[:-1], z[1:])
    g.add("gaussian", x, 1.0)
    g.add("gaussian", z, 1.0)
    before = g.fit()
    P.data[:] = A[:] = noise[:] = np.nan
    after = g.fit()
    assert np.array_equal(before[x].mean, after[x].mean)
    assert np.array_equal(before[z].mean, after[z].mean)


def test_the_loss_and_the_offset_of_gaussians_of_forms():
    """Temperature, offsets and variances of rows: the posterior of a dense block."""
    rng = np.random.default_rng(4)
    y, noise = rng.normal(size=6), rng.uniform(0.5, 2.0, 6)
    found = []
    for form in (np.eye, sparse.eye_array):
        g = Graph()
        x = g.block(6, precision=form(6), mean=2.0)
        g.add(losses.Gaussian(0.7), 3.0 * x - 1.0, y, noise=noise)
        g.add(losses.Gaussian(0.7, beta=0.5), x + 1.0, y)
        post = g.fit(TIGHT)
        found.append(np.r_[post[x].mean, post[x].variance, post.log_evidence])
    assert_allclose(*found, rtol=1e-9)
