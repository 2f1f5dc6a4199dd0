"""Factors of the user's own: the same as compiled ones, and what is refused."""

import copy
import os
import pickle
import signal
import threading
import warnings

import numpy as np
import pytest

import epfast
from epfast import ADF, AEP, EP, SEP, Graph
from epfast.families import Gaussian as Family
from epfast.graph import (
    Factor,
    ImportanceMessages,
    LaplaceMessages,
    QuadratureMessages,
    Transition,
)
from epfast.losses import Gaussian, Logistic
from tests.oracles.own_factors import seen, step

Y = np.array([1.0, -2.0, 0.5, 3.0, 2.2])
TREE = EP(100, 1e-11)


def step_gradient(x, z, a, v):
    return [a * (z - a * x) / v, -(z - a * x) / v]


def step_hessian(x, z, a, v):
    return [[-a * a / v, a / v], [a / v, -1.0 / v]]


def logistic(x, y):
    return -np.logaddexp(0.0, -y * x)


def chain(scheme, prior=4.0, derivatives=False):
    """A Gaussian chain with observations: compiled factors where scheme is None."""
    g = Graph()
    x = g.gaussian(5, variance=prior)
    if scheme is None:
        g.add(Transition(0.3, factor=0.9), x[:-1], x[1:])
        g.add(Gaussian(0.5), x, Y)
        return g, x
    more = {"gradient": step_gradient, "hessian": step_hessian} if derivatives else {}
    g.add(Factor(step, scheme=scheme, **more), x[:-1], x[1:], a=0.9, v=np.full(4, 0.3))
    g.add(Factor(seen, scheme=scheme), x, y=Y, v=0.5)
    return g, x


class TestSameAsCompiled:
    @pytest.mark.parametrize("scheme", ["laplace", "quadrature"])
    @pytest.mark.parametrize("power", [1.0, 0.5])
    def test_gaussian_chain(self, scheme, power):
        schedule = EP(100, 1e-10, power=power)
        g, x = chain(scheme)
        ours = g.fit(schedule)
        g, z = chain(None)
        theirs = g.fit(schedule)
        np.testing.assert_allclose(ours[x].mean, theirs[z].mean, atol=1e-8)
        np.testing.assert_allclose(ours[x].variance, theirs[z].variance, rtol=1e-8)
        assert ours.log_evidence == pytest.approx(theirs.log_evidence, abs=1e-8)
        assert ours.converged
        assert not ours.reasons

    @pytest.mark.parametrize("derivatives", [False, True])
    def test_flat_states(self, derivatives):
        """Only the transitions define the states after the first: evidence included."""
        prior = np.array([4.0, *4 * [np.inf]])
        g, x = chain("laplace", prior, derivatives)
        ours = g.fit(EP(8, 0))
        g, z = chain(None, prior)
        theirs = g.fit(EP(8, 0))
        np.testing.assert_allclose(ours[x].mean, theirs[z].mean, atol=1e-8)
        np.testing.assert_allclose(ours[x].variance, theirs[z].variance, rtol=1e-8)
        assert ours.log_evidence == pytest.approx(theirs.log_evidence, abs=1e-9)

    @pytest.mark.parametrize(
        "schedule", [EP(300, 1e-10, damping=0.5), EP(300, 1e-10, order="parallel", damping=0.5)]
    )
    def test_logistic_rows(self, schedule):
        """Factors of one variable, many on one of them: the moments of the library's loss."""
        rng = np.random.default_rng(1)
        at, y = np.array([0, 1, 1, 1, 2, 0]), rng.choice([-1.0, 1.0], 6)
        found = []
        for own in (False, True):
            g = Graph()
            x = g.gaussian(3, variance=5.0)
            if own:
                g.add(Factor(logistic, "quadrature"), x[at], y=y)
            else:
                g.add(Logistic(), x[at], y)
            post = g.fit(schedule)
            assert post.converged
            found.append((post[x].mean, post[x].variance, post.log_evidence))
        for ours, theirs in zip(*found, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-8)

    @pytest.mark.parametrize("schedule", [ADF(), SEP(sweeps=50, tol=0), AEP(sweeps=50, tol=0)])
    def test_other_schedules(self, schedule):
        found = []
        for own in (False, True):
            g = Graph()
            x = g.gaussian(variance=5.0)
            if own:
                g.add(Factor(logistic, "quadrature"), x, y=np.sign(Y))
            else:
                g.add(Logistic(), x, np.sign(Y))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                post = g.fit(schedule)
            found.append([float(post[x].mean), float(post[x].variance), post.log_evidence])
        np.testing.assert_allclose(found[0], found[1], atol=1e-8)

    def test_rows_follow_the_program(self):
        """Neighbours in any order: data go with their factor, removal and restarts too."""
        rng = np.random.default_rng(2)
        a, b = np.array([3, 0, 2, 1, 4, 0]), np.array([1, 2, 4, 0, 3, 4])
        y, v = rng.normal(size=6), rng.uniform(0.5, 2.0, 6)

        def between(s, t, pair):
            return seen(s - t, pair[:, 0], pair[:, 1])

        g, h = Graph(), Graph()
        x, z = g.gaussian(5), h.gaussian(5)
        mine = g.add(Factor(between, "quadrature"), x[a], x[b], pair=np.stack([y, v], axis=1))
        theirs = [h.add(Gaussian(float(v[i])), z[a[i]] - z[b[i]], y[i]) for i in range(6)]
        p, q = g.fit(EP(300, 1e-10)), h.fit(EP(300, 1e-10))
        np.testing.assert_allclose(p[x].mean, q[z].mean, atol=1e-8)
        g.remove(mine, [1, 4])
        for i in (1, 4):
            h.remove(theirs[i])
        p, q = g.fit(EP(300, 1e-10), start=p), h.fit(EP(300, 1e-10))
        np.testing.assert_allclose(p[x].mean, q[z].mean, atol=1e-8)
        assert p.log_evidence == pytest.approx(q.log_evidence, abs=1e-8)


class Product:
    """project: t = N(y; x, v) in closed form."""

    calls = 0

    def project(self, messages, data):
        Product.calls += 1
        (eta,) = messages
        own = np.stack([1.0 / data["v"], data["y"] / data["v"]], axis=1)
        target = eta + own
        log_z = Family.log_partition(target) - Family.log_partition(eta)
        log_z -= 0.5 * (data["y"] ** 2 / data["v"] + np.log(2.0 * np.pi * data["v"]))
        eta[:] = np.nan  # what it gets is its own
        return log_z, (target,)


class WithPower(Product):
    takes_power = True

    def project(self, messages, data, power):
        (eta,) = messages
        v = data["v"] / power
        log_z, targets = Product().project((eta,), {"y": data["y"], "v": v})
        constant = -0.5 * power * np.log(2.0 * np.pi * data["v"]) + 0.5 * np.log(2.0 * np.pi * v)
        return log_z + constant, targets


class TestProject:
    @pytest.mark.parametrize(("scheme", "power"), [(Product(), 1.0), (WithPower(), 0.5)])
    def test_same_as_compiled(self, scheme, power):
        found = []
        for own in (False, True):
            g = Graph()
            x = g.gaussian(5, variance=2.0)
            v = np.linspace(0.5, 2.0, 5)
            if own:
                g.add(Factor(scheme=scheme), x, y=Y, v=v)
            else:
                g.add(Gaussian(), x, np.stack([Y, v], axis=1))
            post = g.fit(EP(50, 1e-11, power=power))
            assert post.converged
            found.append([*post[x].mean, *post[x].variance, post.log_evidence])
        np.testing.assert_allclose(*found, atol=1e-10)

    def test_once_per_run(self):
        g = Graph()
        x = g.gaussian(1000)
        g.add(Factor(scheme=Product()), x, y=0.5, v=1.0)
        Product.calls = 0
        g.fit(EP(3, 0))
        assert Product.calls == 3

    def test_parallel_order_makes_one_run_of_a_hub(self):
        g = Graph()
        x = g.gaussian()
        g.add(Factor(scheme=Product()), x, y=np.linspace(0.0, 1.0, 50), v=100.0)
        for order, calls in (("sequential", 50), ("parallel", 1)):
            Product.calls = 0
            post = g.fit(EP(4, 0, order=order))
            assert Product.calls == 4 * calls
            np.testing.assert_allclose(post[x].variance, 1.0 / 1.5, rtol=1e-12)

    def test_power_is_refused_without_it(self):
        g = Graph()
        g.add(Factor(scheme=Product()), g.gaussian(), y=1.0, v=1.0)
        with pytest.raises(ValueError, match="takes_power"):
            g.fit(EP(power=0.5))

    @pytest.mark.parametrize(
        ("answer", "error"),
        [
            (None, TypeError),
            ((np.zeros(3),), TypeError),
            ((np.zeros(2), (np.ones((3, 2)),)), ValueError),
            ((np.zeros(3), (np.ones((3, 3)),)), ValueError),
            ((np.zeros(3), ()), TypeError),
            ((np.zeros(3, dtype=complex), (np.ones((3, 2)),)), TypeError),
            ((np.zeros(3), (np.array([["a", "b"]] * 3),)), TypeError),
        ],
    )
    def test_answers_of_other_shapes(self, answer, error):
        class Wrong:
            def project(self, messages, data):
                return answer

        g = Graph()
        g.add(Factor(scheme=Wrong()), g.gaussian(3))
        with pytest.raises(error, match=r"project\(\) returned .*allowed"):
            g.fit()

    @pytest.mark.parametrize("bad", [np.nan, -1.0, np.inf])
    def test_what_is_improper_waits_alone(self, bad):
        class Some:
            def project(self, messages, data):
                target = messages[0] + 1.0
                target[1, 0] = bad
                return np.zeros(3), (target,)

        g = Graph()
        x = g.gaussian(3)
        g.add(Factor(scheme=Some()), x)
        with pytest.warns(epfast.ConvergenceWarning):
            post = g.fit(EP(2, 1e-6))
        np.testing.assert_array_equal(post[x].variance, [0.5, 1.0, 0.5])
        assert post.n_refused == 2
        assert np.isfinite(post.log_evidence)


class TestDoor:
    @pytest.mark.parametrize(
        ("make", "error", "words"),
        [
            (lambda: Factor(), TypeError, "log_t is None"),
            (lambda: Factor(3), TypeError, "log_t"),
            (lambda: Factor(seen, "exact"), ValueError, "scheme.*laplace"),
            (lambda: Factor(seen, QuadratureMessages), TypeError, "scheme"),
            (lambda: Factor(seen, 3), TypeError, "scheme.*project"),
            (lambda: Factor(seen, Product()), TypeError, "log_t is given"),
            (lambda: Factor(seen, gradient=3), TypeError, "gradient"),
            (lambda: Factor(seen, "quadrature", hessian=seen), ValueError, "hessian"),
            (lambda: LaplaceMessages("full"), ValueError, "reading.*marginal"),
            (lambda: QuadratureMessages(tol=0.0), ValueError, "tol"),
            (lambda: QuadratureMessages(evaluations=3), ValueError, "evaluations"),
            (lambda: ImportanceMessages(draws=1), ValueError, "draws"),
            (lambda: ImportanceMessages(draws=100, min_ess=100), ValueError, "min_ess"),
            (lambda: ImportanceMessages(seed=-1), ValueError, "seed"),
            (lambda: ImportanceMessages(rounds=1.5), TypeError, "rounds"),
        ],
    )
    def test_definitions(self, make, error, words):
        with pytest.raises(error, match=words):
            make()

    def test_neighbours_and_data(self):
        g, other = Graph(), Graph()
        x, z = g.gaussian(4), g.gaussian(3)
        factor = Factor(seen, "quadrature")
        good = {"y": 1.0, "v": 1.0}
        bad = [
            ((), good, ValueError, "no neighbours"),
            ((2.0 * x,), good, TypeError, "linear form"),
            ((np.ones(3),), good, TypeError, "allowed: variables"),
            ((other.gaussian(4),), good, ValueError, "another graph"),
            ((x[:0],), good, ValueError, "empty"),
            ((x, z), good, ValueError, "broadcast"),
            ((x, x), good, ValueError, "a variable twice"),
            ((x[:2], x[1:3], x[2:4]), good, ValueError, "1 or 2"),
            ((x,), {"y": np.ones(3), "v": 1.0}, ValueError, r"and y \(3,\)"),
            ((x,), {"y": np.full(4, np.nan), "v": 1.0}, ValueError, "y holds NaN"),
            ((x,), {"y": np.array([None] * 4), "v": 1.0}, TypeError, "y has dtype object"),
            ((x[:1],), {"y": np.ones(0), "v": 1.0}, ValueError, "one factor or more"),
        ]
        for neighbours, data, error, words in bad:
            with pytest.raises(error, match=words):
                g.add(factor, *neighbours, **data)
        with pytest.raises(ValueError, match="no factor"):
            g.fit()

    def test_data_may_have_any_name(self):
        g = Graph()
        x = g.gaussian(2)

        def log_t(x, factor, key, graph):
            return seen(x, factor + key + graph, 1.0)

        g.add(Factor(log_t), x, factor=1.0, key=[0, 1], graph=np.float32(0.5))
        np.testing.assert_allclose(g.fit()[x].mean, [0.75, 1.25])

    @pytest.mark.parametrize("scheme", ["laplace", "quadrature", ImportanceMessages(draws=200)])
    @pytest.mark.parametrize(
        ("log_t", "error"),
        [
            (lambda x: x.sum(), ValueError),
            (lambda x: 0.0, ValueError),
            (lambda x: np.stack([x, x]), ValueError),
            (lambda x: x[:, None], ValueError),
            (lambda x: None, ValueError),
            (lambda x: x + 1j, TypeError),
            (lambda x: x.astype(np.float32), TypeError),
            (lambda x: x.astype(str), TypeError),
        ],
    )
    def test_what_log_t_returns(self, scheme, log_t, error):
        g = Graph()
        g.add(Factor(log_t, scheme), g.gaussian(3))
        with pytest.raises(error, match=r"log_t returned .*allowed"):
            g.fit()

    @pytest.mark.parametrize(
        ("name", "answer"),
        [
            ("gradient", lambda x, z: x),
            ("gradient", lambda x, z: [x]),
            ("gradient", lambda x, z: [x[:2], z]),
            ("gradient", lambda x, z: None),
            ("hessian", lambda x, z: [x, z]),
            ("hessian", lambda x, z: [[1.0, 0.0]]),
        ],
    )
    def test_what_derivatives_return(self, name, answer):
        g = Graph()
        x, z = g.gaussian(3), g.gaussian(3)
        g.add(Factor(lambda x, z: -(x**2) - z**2, **{name: answer}), x, z)
        with pytest.raises((ValueError, TypeError), match=f"{name} returned .*allowed"):
            g.fit()

    def test_broadcasting(self):
        g = Graph()
        x, z = g.gaussian((2, 3)), g.gaussian(3)
        g.add(Factor(step), x, z, a=np.ones((2, 1)), v=2.0)
        h = Graph()
        u, w = h.gaussian((2, 3)), h.gaussian(3)
        h.add(Gaussian(2.0), w - u, 0.0)
        a, b = g.fit(EP(50, 1e-10)), h.fit(EP(50, 1e-10))
        np.testing.assert_allclose(a[x].variance, b[u].variance, rtol=1e-8)
        np.testing.assert_allclose(a[z].variance, b[w].variance, rtol=1e-8)


class TestUsersFunctions:
    def test_exceptions_come_out_as_they_are(self):
        class MineError(Exception):
            pass

        calls = []

        def log_t(x, y):
            calls.append(len(x))
            if len(calls) > limit:
                raise MineError("no")
            return logistic(x, y)

        g = Graph()
        x = g.gaussian(3)
        g.add(Factor(log_t, "quadrature"), x, y=1.0)
        limit = 10**9
        post = g.fit(EP(2, 0))
        beliefs, sites = post.state.beliefs.copy(), post.state.sites.copy()
        limit = len(calls) + 1
        with pytest.raises(MineError, match="no"):
            g.fit(EP(2, 0), start=post)
        np.testing.assert_array_equal(post.state.beliefs, beliefs)
        np.testing.assert_array_equal(post.state.sites, sites)
        limit = 10**9
        assert g.fit(EP(50, 1e-8), start=post).converged

    def test_input_is_never_modified(self):
        def log_t(x, y):
            x *= 2.0  # its own
            return logistic(x, y)

        y = np.array([1.0, -1.0, 1.0])
        kept = y.copy()
        found = []
        for f in (log_t, lambda x, y: logistic(2.0 * x, y)):
            g = Graph()
            x = g.gaussian(3)
            y.setflags(write=False)
            g.add(Factor(f, "quadrature"), x, y=y)
            found.append(g.fit(EP(5, 0)).state.beliefs)
        np.testing.assert_array_equal(*found)
        y.setflags(write=True)
        np.testing.assert_array_equal(y, kept)
        g = Graph()
        x = g.gaussian(3)
        g.add(Factor(logistic, "quadrature"), x, y=y)
        y[:] = 99.0  # the graph has its own
        np.testing.assert_array_equal(g.fit(EP(5, 0))[x].mean > 0.0, kept > 0.0)

    def test_text_as_data(self):
        def log_t(x, kind):
            return np.where(kind == "win", logistic(x, 1.0), logistic(x, -1.0))

        g = Graph()
        x = g.gaussian(2)
        g.add(Factor(log_t, "quadrature"), x, kind=["win", "loss"])
        mean = g.fit()[x].mean
        assert mean[0] > 0.0 > mean[1]
        assert mean[0] == pytest.approx(-mean[1])

    def test_ctrl_c(self):
        def log_t(x, y):
            calls.append(1)
            if len(calls) == 12:
                threading.Timer(0.0, os.kill, (os.getpid(), signal.SIGINT)).start()
                while True:  # Ctrl-C comes in here
                    pass
            return logistic(x, y)

        calls = []
        g = Graph()
        x = g.gaussian(3)
        g.add(Factor(log_t), x, y=1.0)
        with pytest.raises(KeyboardInterrupt) as caught:
            g.fit(EP(10**6, 0))
        post = caught.value.posterior
        assert isinstance(post, epfast.GraphPosterior)
        assert np.isfinite(post[x].mean).all()

    @pytest.mark.full
    def test_pickle(self):
        g, _ = chain("quadrature")
        post = g.fit(EP(20, 1e-9))
        again, other = pickle.loads(pickle.dumps((g, post)))
        np.testing.assert_array_equal(other.state.beliefs, post.state.beliefs)
        np.testing.assert_array_equal(
            again.fit(EP(3, 0), start=other).state.beliefs,
            g.fit(EP(3, 0), start=post).state.beliefs,
        )
        assert copy.deepcopy(g).fit(EP(20, 1e-9)).log_evidence == post.log_evidence

    def test_improper_cavities_wait(self):
        """A flat variable without anything else about it."""
        g = Graph()
        x, z = g.gaussian(3, variance=np.inf), g.gaussian(3)
        g.add(Factor(step, "quadrature"), x, z, a=1.0, v=1.0)
        with pytest.warns(epfast.ConvergenceWarning, match="a cavity is improper"):
            post = g.fit(EP(2, 1e-6))
        assert post.history[-1].n_refused == 3
