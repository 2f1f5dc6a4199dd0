"""Blocks of a graph: vectors of variables with a full covariance."""

import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse, stats

import epfast
from epfast import Graph, losses
from epfast.graph import Between, Noise, Product, Transition, Walk
from epfast.graph.engine import GraphEngine
from epfast.graph.problem import ready

TIGHT = epfast.EP(sweeps=300, tol=1e-12)
N, D, GROUPS = 120, 4, 3


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(name="X")
def rows(rng):
    return rng.normal(size=(N, D))


@pytest.fixture
def group(rng):
    return rng.integers(0, GROUPS, N)


def prior(d):
    return np.eye(d) + 0.3 * np.ones((d, d)), np.linspace(-0.5, 0.5, d)


def responses(loss, latent, rng):
    noisy = latent + rng.logistic(size=len(latent))
    return rng.poisson(np.exp(0.3 * latent)) if loss == "poisson" else np.where(noisy > 0, 1, -1)


LOSSES = ("logistic", "probit", "poisson", "hinge")
SCHEDULES = {
    "sequential": TIGHT,
    "damped": epfast.EP(sweeps=300, tol=1e-12, damping=0.7),
    "power": epfast.EP(sweeps=300, tol=1e-12, power=0.5),
    "parallel": epfast.EP(sweeps=400, tol=1e-12, order="parallel", damping=0.5),
}


class TestOneBlock:
    @pytest.mark.parametrize("schedule", SCHEDULES)
    @pytest.mark.parametrize("loss", LOSSES)
    @pytest.mark.parametrize("offset", [False, True])
    def test_is_a_linear_model(self, loss, schedule, offset, X, rng):
        """Whole, by its engine; in two batches, by rank-one updates: the same fixed point."""
        shift = rng.normal(size=N) if offset else np.zeros(N)
        y = responses(loss, X @ [1.0, -1.0, 0.5, 0.0] + shift, rng)
        precision, mean = prior(D)
        if loss == "hinge" and schedule == "power":
            pytest.skip("powers of the hinge's factor are not in closed form")
        reference = epfast.fit_linear(
            X,
            y,
            loss=loss,
            prior_precision=precision,
            prior_mean=mean,
            offset=shift if offset else None,
            schedule=SCHEDULES[schedule],
        )
        for cuts in ([0, N], [0, 50, N]):
            g = epfast.Graph()
            w = g.block(D, precision=precision, mean=mean)
            for a, b in itertools.pairwise(cuts):
                g.add(loss, X[a:b] @ w + shift[a:b], y[a:b])
            post = g.fit(SCHEDULES[schedule])
            assert post.converged
            assert_allclose(post[w].mean, reference.mean, atol=1e-10)
            assert_allclose(post[w].covariance, reference.covariance, atol=1e-10)
            assert post.log_evidence == pytest.approx(reference.log_evidence, abs=1e-9)

    def test_adf(self, X, rng):
        y = responses("probit", X[:, 0], rng)
        reference = epfast.fit_linear(X, y, loss="probit", schedule=epfast.ADF(order="sequential"))
        for cut in (N, 70):
            g = epfast.Graph()
            w = g.block(D)
            for rows in (slice(0, cut), slice(cut, N)):
                if len(X[rows]):
                    g.add("probit", X[rows] @ w, y[rows])
            post = g.fit(epfast.ADF())
            assert_allclose(post[w].mean, reference.mean, atol=1e-12)
            assert_allclose(post[w].covariance, reference.covariance, atol=1e-12)
            assert post.log_evidence == pytest.approx(reference.log_evidence, abs=1e-10)

    @pytest.mark.parametrize("schedule", [epfast.SEP(sweeps=200), epfast.AEP(sweeps=200)])
    def test_sites_in_common(self, schedule, X, rng):
        y = responses("probit", X[:, 0], rng)
        reference = epfast.fit_linear(X, y, loss="probit", schedule=schedule)
        g = epfast.Graph()
        w, other = g.block(D), g.gaussian()
        g.add("probit", X @ w, y)
        with pytest.warns(epfast.DataWarning, match="have no factors"):
            post = g.fit(schedule)
        assert_allclose(post[w].mean, reference.mean, atol=1e-8)
        g.add("probit", X @ w + other, y)
        with pytest.raises(ValueError, match="a block of their own"):
            g.fit(schedule)

    def test_noise_of_a_probit(self, X, rng):
        y, noise = responses("probit", X[:, 0], rng), rng.uniform(0.1, 2.0, N)
        rows = X / np.sqrt(1.0 + noise)[:, None]
        reference = epfast.fit_linear(rows, y, loss="probit", schedule=TIGHT)
        posts = []
        for cut in (N, 70):
            g = epfast.Graph()
            w = g.block(D)
            for part in (slice(0, cut), slice(cut, N)):
                if len(X[part]):
                    g.add("probit", X[part] @ w, y[part], noise=noise[part])
            posts.append((g, g.fit(TIGHT), w))
            assert_allclose(posts[-1][1][w].mean, reference.mean, atol=1e-10)
        # a graph with sites of the one goes on as the other
        g, post, w = posts[0]
        g.add("probit", X[:1] @ w, y[:1], noise=1e12)
        again = g.fit(TIGHT, start=post)
        assert again.history[0].change < 1e-5
        assert_allclose(again[w].mean, reference.mean, atol=1e-5)


class TestMixedForms:
    @pytest.mark.parametrize("wide", [1.0, 1e3])
    @pytest.mark.parametrize("kind", ["dense", "CSR"])
    def test_gaussian_means_are_exact(self, kind, wide, X, group, rng):
        y = X @ np.ones(D) + rng.normal(size=GROUPS)[group] + rng.normal(size=N)
        rows = X if kind == "dense" else sparse.csr_array(np.where(X > 0.5, X, 0.0))
        dense = rows if kind == "dense" else rows.toarray()
        precision, mean = prior(D)
        g = epfast.Graph()
        w, level = g.block(D, precision / wide, mean=mean), g.gaussian(GROUPS, variance=3.0)
        g.add(epfast.losses.Gaussian(0.25), rows @ w + 2.0 * level[group] - 0.5, y)
        post = g.fit(TIGHT)
        A = np.hstack([dense, 2.0 * np.eye(GROUPS)[group]])
        P = np.zeros((D + GROUPS, D + GROUPS))
        P[:D, :D], P[D:, D:] = precision / wide, np.eye(GROUPS) / 3.0
        H = P + A.T @ A / 0.25
        shift = P @ np.r_[mean, np.zeros(GROUPS)] + A.T @ (y + 0.5) / 0.25
        exact = np.linalg.solve(H, shift)
        assert post.converged
        assert_allclose(np.r_[post[w].mean, post[level].mean], exact, atol=1e-9)

    def test_a_block_of_one_is_a_scalar(self, X, group, rng):
        """The same factors, where the covariance has one number."""
        y = responses("logistic", 2.0 * X[:, 0], rng)
        posts = []
        for block in (False, True):
            g = epfast.Graph()
            w = g.block(1, variance=2.0, mean=0.3) if block else g.gaussian(1, 0.3, 2.0)
            level = g.gaussian(GROUPS)
            g.add("logistic", X[:, :1] @ w - level[group] + 0.2, y)
            posts.append((g.fit(TIGHT), w, level))
        (a, w, level), (b, v, other) = posts
        assert_allclose(a[w].mean, b[v].mean, atol=1e-10)
        assert_allclose(a[w].variance, b[v].variance, atol=1e-10)
        assert_allclose(a[level].mean, b[other].mean, atol=1e-10)
        assert a.log_evidence == pytest.approx(b.log_evidence, abs=1e-9)

    def test_other_factors_of_forms(self, X, group, rng):
        """Between and Noise, of a block of one as of a scalar."""
        posts = []
        for block in (False, True):
            g = epfast.Graph()
            w = g.block(1) if block else g.gaussian(1)
            level, tau = g.gaussian(GROUPS), g.gamma(shape=2.0, rate=1.0)
            rows = X[:20, :1]
            g.add(Between(-3.0, 3.0), rows @ w + level[group[:20]], noise=0.5)
            g.add(Noise(tau), rows @ w - level[group[:20]] - X[:20, 1])
            posts.append((g.fit(TIGHT), w, level, tau))
        (a, w, level, tau), (b, v, other, same) = posts
        assert a.converged
        assert b.converged
        assert_allclose(a[w].mean, b[v].mean, atol=1e-9)
        assert_allclose(a[level].mean, b[other].mean, atol=1e-9)
        assert_allclose(a[tau].mean, b[same].mean, rtol=1e-9)
        assert a.log_evidence == pytest.approx(b.log_evidence, abs=1e-8)

    def test_many_rows_go_together(self, rng):
        """Rows in blocks of the core give what each alone would: sites of one in many digits."""
        X, y = rng.normal(size=(90, 33)), np.where(rng.normal(size=90) > 0, 1, -1)
        g = epfast.Graph()
        w = g.block(33)
        g.add("logistic", X @ w, y)
        reference = epfast.fit_linear(X, y, schedule=TIGHT)
        problem = ready(g._model, epfast.EP(sweeps=60, tol=1e-12).filled(power=1.0, damping=1.0))
        engine = GraphEngine(problem, by_parts=False)
        state = engine.init(None)
        for _ in range(40):
            state = engine.sweep(state, False, lambda count: None).state
        assert_allclose(state.blocks[0].mean, reference.mean, atol=1e-11)
        assert_allclose(state.blocks[0].covariance, reference.covariance, atol=1e-11)

    def test_two_blocks(self, X, group, rng):
        """Means of a Gaussian model, and a form that is over both."""
        units = sparse.csr_array(np.eye(GROUPS)[group])
        y = X @ np.ones(D) + rng.normal(size=GROUPS)[group] + rng.normal(size=N)
        g = epfast.Graph()
        w, level = g.block(D), g.block(GROUPS, variance=[1.0, 2.0, 3.0])
        g.add("gaussian", X @ w + units @ level, y)
        post = g.fit(TIGHT)
        A = np.hstack([X, units.toarray()])
        P = np.diag(np.r_[np.ones(D), 1.0 / np.array([1.0, 2.0, 3.0])])
        exact = np.linalg.solve(P + A.T @ A, A.T @ y)
        assert_allclose(np.r_[post[w].mean, post[level].mean], exact, atol=1e-9)

    def test_rows_of_zeros(self, X, rng):
        """A form that has nothing of the block tells nothing about it."""
        y = responses("probit", X[:, 0], rng)
        rows = X.copy()
        rows[::2] = 0.0
        g = epfast.Graph()
        w, level = g.block(D), g.gaussian()
        g.add("probit", rows @ w + level, y)
        post = g.fit(TIGHT)
        assert post.converged
        h = epfast.Graph()
        v, other = h.block(D), h.gaussian()
        h.add("probit", rows[1::2] @ v + other, y[1::2])
        h.add("probit", np.ones((60, 1)) @ other.reshape(1), y[::2])
        same = h.fit(TIGHT)
        assert_allclose(post[w].mean, same[v].mean, atol=1e-9)
        assert post.log_evidence == pytest.approx(same.log_evidence, abs=1e-8)


class TestForms:
    def test_arithmetic(self, X, group):
        g = epfast.Graph()
        w, level = (
            g.block(D, variance=[1.0, 2.0, 3.0, 4.0], mean=[1.0, 0.0, -1.0, 2.0]),
            g.gaussian(3),
        )
        g.add("gaussian", w[0] + level[0], 1.0)
        with pytest.warns(epfast.DataWarning):
            post = g.fit()
        covariance, mean = post[w].covariance, post[w].mean

        def check(form, rows, offset=0.0):
            found = post.predict_latent(form)
            assert_allclose(found[0], rows @ mean + offset, atol=1e-12)
            expected = np.einsum("...i,ij,...j->...", rows, covariance, rows)
            assert_allclose(found[1], expected, atol=1e-12)

        eye = np.eye(D)
        check(X @ w, X)
        check(sparse.csr_array(X) @ w, X)
        check(w[1] - w[2] / 2.0 + 3.0, eye[1] - 0.5 * eye[2], 3.0)
        check(w[[0, 2]], eye[[0, 2]])
        check(-(X @ w) + sparse.csr_array(X) @ w, 0.0 * X)
        check((X @ w - 1.0) * np.arange(N), X * np.arange(N)[:, None], -np.arange(N))
        check((X @ w)[::3], X[::3])
        check((X @ w).sum(), X.sum(axis=0))
        check(w.sum(), np.ones(D))
        check((w[:2] + np.zeros((3, 1))).sum(axis=1), np.tile(eye[0] + eye[1], (3, 1)))
        assert w.shape == (w.size,) == (len(w),) == (D,)
        assert repr(w) == "Block(shape=(4,))"

    def test_predictions(self, X, rng):
        y = responses("logistic", X[:, 0], rng)
        reference = epfast.fit_linear(X, y, schedule=TIGHT)
        g = epfast.Graph()
        w = g.block(D)
        g.add("logistic", X @ w, y)
        post = g.fit(TIGHT)
        assert_allclose(
            post.predict_proba("logistic", X @ w), reference.predict_proba(X), atol=1e-9
        )
        assert_allclose(
            post.log_predictive("logistic", X @ w, y), reference.log_predictive(X, y), atol=1e-9
        )


class TestGoingOn:
    def graph(self, X, group, rng):
        y = responses("logistic", X[:, 0], rng)
        g = epfast.Graph()
        w, level = g.block(D), g.gaussian(GROUPS)
        g.add("logistic", X @ w + level[group], y)
        v = g.block(2)
        alone = g.add("probit", X[:, :2] @ v, y)
        return g, w, level, v, alone, y

    @pytest.mark.parametrize("schedule", [TIGHT, SCHEDULES["parallel"]])
    def test_resumed_to_the_bit(self, schedule, X, group, rng):
        g, _, level, *_ = self.graph(X, group, rng)
        whole = g.fit(replace(schedule, sweeps=7, tol=0.0))
        post = g.fit(replace(schedule, sweeps=4, tol=0.0))
        post = pickle.loads(pickle.dumps(post))
        kept = post.state.blocks[0].mean.copy()
        again = g.fit(replace(schedule, sweeps=3, tol=0.0), start=post)
        assert np.array_equal(post.state.blocks[0].mean, kept)
        for found, expected in zip(again.state.blocks, whole.state.blocks, strict=True):
            assert np.array_equal(found.covariance, expected.covariance)
            assert np.array_equal(found.mean, expected.mean)
        assert np.array_equal(again[level].mean, whole[level].mean)
        assert again.log_evidence == whole.log_evidence

    def test_added_and_removed(self, X, group, rng):
        """A block that was a linear model of its own is none, and then again."""
        g, w, level, v, alone, y = self.graph(X, group, rng)
        before = g.fit(TIGHT)
        more = g.add("probit", X[:5, :2] @ v + level[group[:5]], y[:5])
        post = g.fit(TIGHT, start=before)
        assert post.history[0].change < 1.0
        assert_allclose(post[v].mean, g.fit(TIGHT)[v].mean, atol=1e-9)
        g.remove(more)
        after = g.fit(TIGHT, start=post)
        assert after.n_sweeps - post.n_sweeps <= before.n_sweeps
        assert_allclose(after[v].mean, before[v].mean, atol=1e-9)
        assert_allclose(after[w].covariance, before[w].covariance, atol=1e-9)
        g.remove(alone, np.arange(60))
        assert_allclose(
            g.fit(TIGHT, start=after)[v].mean,
            epfast.fit_linear(X[60:, :2], y[60:], loss="probit", schedule=TIGHT).mean,
            atol=1e-9,
        )

    @pytest.mark.parametrize("first", [epfast.ADF(), TIGHT, SCHEDULES["parallel"]])
    @pytest.mark.parametrize("second", ["sequential", "parallel"])
    def test_schedules_start_each_other(self, first, second, X, group, rng):
        g, w, level, v, *_ = self.graph(X, group, rng)
        start = g.fit(first)
        post, fresh = g.fit(SCHEDULES[second], start=start), g.fit(SCHEDULES[second])
        assert post.converged
        for known in (w, level, v):
            assert_allclose(post[known].mean, fresh[known].mean, atol=1e-10)
        assert post.log_evidence == pytest.approx(fresh.log_evidence, abs=1e-8)

    def test_a_start_of_another_schedule_is_at_its_end(self, X, rng):
        """Noise of a probit scales its form, and the sites about that."""
        g = epfast.Graph()
        v = g.block(D)
        g.add("probit", X @ v, responses("probit", X[:, 0], rng), noise=3.0)
        for first, second in itertools.permutations([TIGHT, SCHEDULES["parallel"]]):
            start = g.fit(first)
            assert g.fit(second, start=start).history[0].change < 1e-8

    def test_a_number_of_sweeps_goes_on_from_exact_sites(self, X, rng):
        g = epfast.Graph()
        v = g.block(D)
        g.add("gaussian", X @ v, rng.normal(size=len(X)), noise=0.5)
        start = g.fit()
        again = g.fit(epfast.EP(sweeps=2, tol=0.0), start=start)
        assert_allclose(again[v].mean, start[v].mean, atol=1e-10)

    @pytest.mark.parametrize("schedule", [TIGHT, SCHEDULES["parallel"], epfast.ADF()])
    def test_in_files(self, schedule, X, group, rng, tmp_path):
        """Saved and resumed is uninterrupted to the bit, but for linear models of their own."""
        g, w, level, v, *_ = self.graph(X, group, rng)
        units = sparse.csr_array(np.where(X > 0.5, X, 0.0))
        g.add(Between(-9.0, 9.0), units @ w + level[0], noise=0.3)
        adf = schedule.stores == "none"
        short = schedule if adf else replace(schedule, sweeps=3, tol=0.0)
        post = g.fit(short)
        post.save(tmp_path / "graph.npz")
        loaded = epfast.load(tmp_path / "graph.npz")
        for block in (w, v):
            assert np.array_equal(loaded[block].covariance, post[block].covariance)
            assert np.array_equal(loaded[block].mean, post[block].mean)
        assert isinstance(loaded.variables[0], type(w))
        again = epfast.Graph.of(loaded)
        assert repr(again) == repr(g)
        if adf:
            assert np.array_equal(again.fit(short)[w].mean, post[w].mean)
            return
        found, expected = again.fit(short, start=loaded), g.fit(short, start=post)
        assert np.array_equal(found[w].covariance, expected[w].covariance)
        assert np.array_equal(found[level].mean, expected[level].mean)
        assert_allclose(found[v].mean, expected[v].mean, atol=1e-4)
        assert_allclose(again.fit(TIGHT, start=loaded)[v].mean, g.fit(TIGHT)[v].mean, atol=1e-10)

    def test_damaged_files(self, X, group, rng, tmp_path):
        """Beliefs that are not priors times sites are refused."""
        g, *_ = self.graph(X, group, rng)
        g.fit(TIGHT).save(tmp_path / "graph.npz")
        whole = dict(np.load(tmp_path / "graph.npz"))
        broken = [name for name in whole if any(x in name for x in ("block", "start", "part"))]
        assert len(broken) > 10
        for name in broken:
            changed = [whole[name][None, ..., None]]
            if not name.endswith(("partition", "log_scale")):  # these follow from nothing
                changed.append(whole[name] + 1)
            for value in changed:
                np.savez(tmp_path / "broken.npz", **(whole | {name: value}))
                with pytest.raises(ValueError, match=r"broken\.npz"):
                    epfast.load(tmp_path / "broken.npz")

    def test_a_check(self, X, group, rng):
        g, *_ = self.graph(X, group, rng)
        post = g.fit(TIGHT)
        found = post.check(draws=200)
        assert len(found.mean) == sum(v.size for v in post.variables.values())

    def test_input_is_left_alone_and_not_kept(self, X, rng):
        y, rows = responses("probit", X[:, 0], rng), X.copy()
        g = epfast.Graph()
        w = g.block(D)
        g.add("probit", rows @ w, y)
        g.add("probit", rows[:3] @ w, y[:3])
        expected = g.fit(TIGHT)[w].mean
        rows[:] = np.nan
        assert np.array_equal(g.fit(TIGHT)[w].mean, expected)

    def test_one_step_ahead(self, X, rng):
        y = responses("probit", X[:, 0], rng)
        g = epfast.Graph()
        w = g.block(D)
        batch = g.add("probit", X @ w, y)
        ahead = g.one_step_ahead()[batch]
        post = epfast.fit_linear(
            X[:50], y[:50], loss="probit", schedule=epfast.ADF(order="sequential")
        )
        assert ahead[50] == pytest.approx(post.log_predictive(X[50:51], y[50:51])[0], abs=1e-9)
        assert ahead.sum() == pytest.approx(g.fit(epfast.ADF()).log_evidence, abs=1e-9)


class TestRefused:
    @pytest.mark.parametrize(
        ("arguments", "match"),
        [
            ({"d": 0}, "d is 0"),
            ({"d": 2.5}, "d is"),
            ({"variance": 0.0}, "variance"),
            ({"variance": np.nan}, "variance"),
            ({"variance": [1.0, 2.0]}, r"variance has shape \(2,\)"),
            ({"precision": np.eye(2)}, "precision has shape"),
            ({"precision": -np.eye(3)}, "precision"),
            ({"precision": np.triu(np.ones((3, 3)))}, "precision is not symmetric"),
            ({"precision": np.eye(3), "variance": 1.0}, "given beside variance"),
            ({"mean": np.inf}, "mean"),
            ({"mean": [0.0, 1.0]}, "mean"),
            ({"mean": "a"}, "mean"),
        ],
    )
    def test_blocks(self, arguments, match):
        g = epfast.Graph()
        with pytest.raises((ValueError, TypeError), match=match):
            g.block(**{"d": 3} | arguments)
        assert not g.variables

    def test_forms(self, X):
        g, h = epfast.Graph(), epfast.Graph()
        w, x = g.block(D), g.gaussian(3)
        for make, match in (
            (lambda: X[:, :2] @ w, "X has shape"),
            (lambda: np.where(X > 0, X, np.nan) @ w, "NaN"),
            (lambda: w * w, "product of variables"),
            (lambda: g.add(Product(), w, x, 1.0), "allowed: variables"),
            (lambda: g.add(Transition(1.0), w, x), "allowed: variables"),
            (lambda: g.add(Walk(1.0), w), "allowed: variables"),
            (lambda: h.add("probit", X @ w, 1), "another graph"),
            (lambda: g.add("probit", w, np.ones(D)) or g.fit(watch=w[0]), "over a block"),
            (lambda: w[4], "out of bounds"),
        ):
            with pytest.raises((ValueError, TypeError, IndexError), match=match):
                make()

    def test_improper_beliefs(self, X):
        """A block that a factor would make improper keeps what is proper."""
        g = epfast.Graph()
        w, level = g.block(D, variance=1e300), g.gaussian(variance=1e200)
        g.add("hinge", X @ w + level, np.where(X[:, 0] > 0, 1, -1))
        with pytest.warns(epfast.ConvergenceWarning):
            post = g.fit(epfast.EP(sweeps=5, tol=1e-6))
        assert np.isfinite(post[w].mean).all()
        assert (post[w].variance > 0.0).all()


@pytest.mark.parametrize("beside", [False, True])
def test_noise_of_a_gaussian_by_name_is_its_variance(beside):
    """A linear model in closed form: evidence, covariance, predictions; beside a scalar too."""
    rng = np.random.default_rng(4)
    X, y, noise = rng.normal(size=(9, 3)), rng.normal(size=9), np.linspace(0.01, 0.5, 9)
    g = Graph()
    w, z = g.block(3, variance=2.0), g.gaussian(variance=1e-12)
    g.add("gaussian", X @ w + z if beside else X @ w, y, noise=noise)
    if not beside:
        g.add("gaussian", z, 0.0, noise=1e6)
    post = g.fit()
    exact = stats.multivariate_normal(np.zeros(9), 2.0 * X @ X.T + np.diag(noise)).logpdf(y)
    rest = 0.0 if beside else stats.norm(0.0, 1e3).logpdf(0.0)
    np.testing.assert_allclose(post.log_evidence, exact + rest, rtol=1e-9)
    covariance = np.linalg.inv(np.eye(3) / 2.0 + X.T @ (X / noise[:, None]))
    np.testing.assert_allclose(post[w].covariance, covariance, rtol=1e-7)
    np.testing.assert_allclose(
        post.predict_variance("gaussian", w[0], noise=0.3), covariance[0, 0] + 0.3, rtol=1e-7
    )
    alone = stats.norm(post[w].mean[0], np.sqrt(covariance[0, 0] + 0.3)).logpdf(1.0)
    np.testing.assert_allclose(post.log_predictive("gaussian", w[0], 1.0, noise=0.3), alone, 1e-7)


def test_noise_of_an_interval_by_name_is_its_variance():
    """The normal probability of the interval, and beside an object the sum of both variances."""
    for loss, total in (("interval", 0.3), (losses.Interval(0.5), 0.8)):
        g = Graph()
        x = g.gaussian(mean=0.2)
        g.add(loss, x, [[0.0, 1.0]], noise=0.3)
        exact = np.log(np.diff(stats.norm(0.2, np.sqrt(1.0 + total)).cdf([0.0, 1.0])))[0]
        np.testing.assert_allclose(g.fit().log_evidence, exact, rtol=1e-10)


def wide_graph(variance, kind, scale):
    """A regression with raw columns, in some unit of y, beside effects of groups."""
    rng = np.random.default_rng(2)
    n = 60
    X = np.column_stack([np.ones(n), rng.normal(size=n), rng.normal(2000.0, 10.0, n)])
    h = X @ [1.0, 2.0, 0.1] - 200.0
    y = scale * (h + 0.7 * rng.normal(size=n))
    g = Graph()
    w = g.block(3, variance=variance)
    forms = X @ w
    if kind == "noise":
        g.add(Noise(g.gamma(shape=2.0, rate=scale**2)), y - forms)
        return g, w
    z = g.gaussian(6, variance=scale**2)
    forms = forms + z[np.arange(n) % 6]
    if kind == "gaussian":
        g.add("gaussian", forms, y, noise=0.5 * scale**2)
    elif kind == "student_t":
        g.add(losses.StudentT(scale=0.5 * scale), forms, y)
    elif kind == "poisson":
        g.add("poisson", forms, rng.poisson(np.exp(0.3 * h)))
    else:
        g.add("logistic", forms, np.where(h + 2.0 * rng.logistic(size=n) > 0, 1, -1))
    return g, w


WIDE = [(kind, scale) for kind in ("noise", "gaussian", "student_t") for scale in (1e6, 1e-6)]


@pytest.mark.parametrize(("kind", "scale"), [*WIDE, ("poisson", 1.0), ("logistic", 1.0)])
def test_wide_priors_have_a_limit(kind, scale):
    """Means and sds of 1e10 units, and the log evidence less that of the prior's density at 0."""
    priors = 1e12 * scale**2, 1e10 * scale**2
    (g, w), (wide, v) = (wide_graph(prior, kind, scale) for prior in priors)
    post, limit = g.fit(), wide.fit()
    assert post.converged
    assert limit.converged
    assert not post.history[-1].n_refused
    sd = limit[v].sd
    assert_allclose(post[w].mean / sd, limit[v].mean / sd, atol=1e-2, rtol=1e-5)
    assert_allclose(post[w].sd, sd, rtol=1e-3)
    assert_allclose(post.log_evidence, limit.log_evidence - 1.5 * np.log(100.0), atol=1e-3)


def test_an_infinite_variance_is_refused():
    for bad in (np.inf, -np.inf, 0.0, [np.inf, 1.0, 1.0], [1.0, 1.0]):
        with pytest.raises(ValueError, match="variance"):
            Graph().block(3, variance=bad)


@pytest.mark.parametrize("loss", ["poisson", losses.StudentT(scale=0.5), "probit"])
def test_a_wide_prior_of_a_linear_model_is_nearly_flat(loss):
    """1e12 and 1e16: the same to rounding of such a prior."""
    rng = np.random.default_rng(5)
    X = np.column_stack([np.ones(60), rng.normal(size=60), rng.normal(0.0, 30.0, 60)])
    h = X @ [0.3, 0.5, 0.01]
    y = rng.poisson(np.exp(h)) if loss == "poisson" else h + 0.5 * rng.normal(size=60)
    found = []
    for variance in (1e12, 1e16):
        g = Graph()
        w = g.block(3, variance=variance)
        g.add(loss, X @ w, np.sign(y) if loss == "probit" else y)
        post = g.fit()
        assert post.converged
        found.append(post[w])
    assert_allclose(found[0].mean, found[1].mean, rtol=1e-4)
    assert_allclose(found[0].sd, found[1].sd, rtol=1e-5)
