"""What a graph refuses at its doors, by name, and what it takes; traps of message passing."""

import warnings

import numpy as np
import pytest

import epfast
from epfast import ADF, AEP, EP, SEP, Graph, losses
from epfast.graph import (
    Between,
    CompoundGamma,
    Factor,
    LogisticLink,
    Mixture,
    Noise,
    Product,
    Table,
    Transition,
    Walk,
)
from tests.graph.models import GRAPHS

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def g():
    graph = Graph()
    graph.x = graph.gaussian(3, name="x")
    graph.tau, graph.p = graph.gamma(2), graph.beta(2)
    graph.h, graph.k = graph.categorical(3, n=2), graph.categorical(3, n=3)
    return graph


def refused(call, *words, error=(ValueError, TypeError)):
    with pytest.raises(error) as caught:
        call()
    said = str(caught.value)
    assert all(word in said for word in words), said
    assert "allowed" in said, said


# ---- variables ----

VARIABLES = [
    (lambda g: g.gaussian(variance=0.0), "variance"),
    (lambda g: g.gaussian(variance=[1.0, -1.0]), "variance"),
    (lambda g: g.gaussian(variance=NAN), "variance"),
    (lambda g: g.gaussian(mean=INF), "mean"),
    (lambda g: g.gaussian(mean=1e200, variance=1e-200), "variance"),
    (lambda g: g.gaussian(2, mean=[1.0, 2.0, 3.0]), "mean"),
    (lambda g: g.gaussian(0), "size"),
    (lambda g: g.gaussian(2.5), "size"),
    (lambda g: g.gaussian("a"), "size"),
    (lambda g: g.gaussian(mean="a"), "mean"),
    (lambda g: g.gamma(shape=0.0), "shape"),
    (lambda g: g.gamma(rate=-1.0), "rate"),
    (lambda g: g.gamma(shape=2.0, rate=0.0), "rate"),
    (lambda g: g.gamma(rate=1e-300), "rate"),
    (lambda g: g.gamma(shape=INF), "shape"),
    (lambda g: g.beta(alpha=0.0), "alpha"),
    (lambda g: g.beta(beta=NAN), "beta"),
    (lambda g: g.beta(alpha=1e-300, beta=1e-300), "alpha"),
    (lambda g: g.categorical(n=1), "n"),
    (lambda g: g.categorical(), "n"),
    (lambda g: g.categorical(probabilities=[1.0]), "probabilities"),
    (lambda g: g.categorical(probabilities=[0.0, 0.0]), "probabilities"),
    (lambda g: g.categorical(probabilities=[-0.1, 1.1]), "probabilities"),
    (lambda g: g.categorical(3, probabilities=np.ones((2, 2))), "probabilities"),
]


@pytest.mark.parametrize(("call", "word"), VARIABLES)
def test_variables(g, call, word):
    n = len(g.variables)
    refused(lambda: call(g), word)
    assert len(g.variables) == n


# ---- forms and indices ----


def test_indices(g):
    for index in ([0.0, 1.0], 1.0, "a", g.x, [None]):
        with pytest.raises((TypeError, IndexError)):
            g.x[index]
    for index in (3, [0, 5], [-4]):
        with pytest.raises(IndexError, match=r"variables of shape \(3,\)"):
            g.x[index]
    refused(lambda: g.remove(0), "batch")
    batch = g.add("probit", g.x, 1)
    for rows in ([3], [-1], [0.0], ["a"], [True]):
        refused(lambda rows=rows: g.remove(batch, rows), "rows")


FORMS = [
    (lambda g: 2.0 * g.tau, "gamma"),
    (lambda g: g.h + 1, "categorical"),
    (lambda g: g.x * NAN, "form"),
    (lambda g: g.x + INF, "form"),
    (lambda g: g.x / 0.0, "0"),
    (lambda g: g.x * g.x, "Product"),
    (lambda g: g.x + g.x[[0, 1]], "shapes"),
    (lambda g: np.ones((2, 4)) @ g.x, "X"),
    (lambda g: np.full((2, 3), NAN) @ g.x, "X"),
    (lambda g: g.x + Graph().gaussian(), "two graphs"),
]


@pytest.mark.parametrize(("call", "word"), FORMS)
def test_forms(g, call, word):
    refused(lambda: call(g), word)


# ---- factors ----

OTHER = Graph()
THEIRS = {f: getattr(OTHER, f)(2) for f in ("gaussian", "gamma", "beta")}
FACTORS = [
    (lambda g: g.add("probit", g.x, [1, 1]), "y"),
    (lambda g: g.add("probit", g.x, [1, 2, 1]), "y"),
    (lambda g: g.add("probit", g.x, [1, NAN, 1]), "y"),
    (lambda g: g.add("probit", g.x), "y"),
    (lambda g: g.add("poisson", g.x, [1, -1, 0]), "y"),
    (lambda g: g.add("probit", g.x, 1, noise=-1.0), "noise"),
    (lambda g: g.add("probit", g.x, 1, noise=[1.0, 2.0]), "noise"),
    (lambda g: g.add("probit", g.x, 1, noise=NAN), "noise"),
    (lambda g: g.add("probit", 1e300 * g.x * 1e300, 1), "form"),
    (lambda g: g.add("probit", g.tau, 1), "gamma"),
    (lambda g: g.add("probit", [1.0, 2.0], 1), "form"),
    (lambda g: g.add("probit", THEIRS["gaussian"], 1), "form"),
    (lambda g: g.add("probit", g.x, []), "y"),
    (lambda g: g.add("softmax", g.x, 1), "loss"),
    (lambda g: g.add("no such loss", g.x, 1), "loss"),
    (lambda g: g.add(losses.Probit, g.x, 1), "Probit()"),
    (lambda g: g.add(Walk, g.x), "Walk()"),
    (lambda g: g.add(Between(1.0, 0.0), g.x), "lower"),
    (lambda g: g.add(Between(NAN, 0.0), g.x), "lower"),
    (lambda g: g.add(Between([0.0, 1.0], 2.0), g.x), "lower"),
    (lambda g: g.add(Between(0.0, 2.0), g.x[:0].sum() + 1.0), "form"),
    (lambda g: g.add(Transition(-1.0), g.x[0], g.x[1]), "variance"),
    (lambda g: g.add(Transition(1.0, factor=0.0), g.x[0], g.x[1]), "factor"),
    (lambda g: g.add(Transition(1.0), g.x[0], g.x[0]), "twice"),
    (lambda g: g.add(Transition(1.0), g.x[[0, 1]], g.x), "after"),
    (lambda g: g.add(Transition(1.0), g.x[0], g.tau[0]), "after"),
    (lambda g: g.add(Transition(1.0), g.x[0]), "after"),
    (lambda g: g.add(Walk(1.0), g.x, time=[0.0, 2.0, 1.0]), "time"),
    (lambda g: g.add(Walk(1.0), g.x, time=[0.0, NAN, 1.0]), "time"),
    (lambda g: g.add(Walk(1.0), g.x, time=[0.0, 1.0]), "time"),
    (lambda g: g.add(Walk(1.0), g.x, by=["a", "b"]), "by"),
    (lambda g: g.add(Walk(1.0), g.x, by=["a", "b", "c"]), "chain"),
    (lambda g: g.add(Walk(1.0), g.x[[0, 0, 1]]), "x"),
    (lambda g: g.add(Walk(1e300), g.x, time=[0.0, 1.0, 1e300]), "rate"),
    (lambda g: g.add(Walk(-1.0), g.x), "rate"),
    (lambda g: g.add(Noise(g.x), g.x), "tau"),
    (lambda g: g.add(Noise(g.tau), g.x), "tau"),
    (lambda g: g.add(Noise(THEIRS["gamma"]), g.x[:2]), "tau"),
    (lambda g: g.add(Noise(g.tau, match="mean"), g.x[:2]), "match"),
    (lambda g: g.add(Product(-1.0), g.x[0], g.x[1], g.x[2]), "variance"),
    (lambda g: g.add(Product(), g.x[0], g.x[1], 2.0), "variance"),
    (lambda g: g.add(Product(1.0), g.x[0], g.x[0], 2.0), "twice"),
    (lambda g: g.add(Product(1.0), g.x[0], g.x[1], NAN), "z"),
    (lambda g: g.add(Product(1.0), g.x[0], g.x[1]), "z"),
    (lambda g: g.add(Product(1.0), g.x[0], g.tau[1], 1.0), "y"),
    (lambda g: g.add(LogisticLink(), g.p, g.x[:2]), "z"),
    (lambda g: g.add(LogisticLink(), g.x, g.p), "shapes"),
    (lambda g: g.add(CompoundGamma(0.0, 1.0, 1.0), g.tau), "s1"),
    (lambda g: g.add(CompoundGamma(1.0, INF, 1.0), g.tau), "r1"),
    (lambda g: g.add(CompoundGamma(1.0, 1.0, 1.0), g.x), "tau"),
    (lambda g: g.add(Table(np.ones((2, 2))), g.h, g.k), "p"),
    (lambda g: g.add(Table(np.zeros((2, 3))), g.h, g.k), "p"),
    (lambda g: g.add(Table([[1.0, NAN, 1.0]] * 2), g.h, g.k), "p"),
    (lambda g: g.add(Table(np.ones((2, 2))), g.h, g.h), "twice"),
    (lambda g: g.add(Table(np.ones(2))), "categorical"),
    (lambda g: g.add(Table(np.ones(2)), g.x), "h_1"),
    (lambda g: g.add(Mixture(g.x, "probit"), [g.x, 0.0], 1), "h"),
    (lambda g: g.add(Mixture(g.h, "probit"), [g.x], 1), "forms"),
    (lambda g: g.add(Mixture(g.h, "probit"), g.x, 1), "forms"),
    (lambda g: g.add(Mixture(g.h, ["probit"] * 3), [g.x, 0.0], 1), "loss"),
    (lambda g: g.add(Mixture(g.h, "probit"), [g.x, 0.0], [1, 1]), "y"),
    (lambda g: g.add(Mixture(g.h, "probit"), [0.0, 0.0], 1), "forms"),
    (lambda g: g.add(Factor(lambda x: -x * x), THEIRS["gaussian"]), "neighbours[0]"),
    (lambda g: g.add(Factor(lambda x: -x * x), g.h), "categorical"),
    (lambda g: g.add(Factor(lambda x: -x * x), g.x, y=[1.0, 2.0]), "y"),
    (lambda g: g.add(Factor(lambda x: -x * x), g.x, y=NAN), "y"),
    (lambda g: g.add(Factor(lambda x, z: -x * z), g.x, g.x), "twice"),
    (lambda g: g.add(Factor(3), g.x), "log_t"),
]


@pytest.mark.parametrize(("call", "word"), FACTORS)
def test_factors(g, call, word):
    g.add("logistic", g.x, 1)
    refused(lambda: call(g), word)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        post = g.fit()
    assert [batch.key for batch in post.problem.model.batches] == [0]


def test_variables_of_a_copy_that_went_another_way(g):
    """Of one identity, and none of this graph."""
    g.add("probit", g.x, 1)
    with pytest.warns(epfast.DataWarning):
        post = g.fit()
    copy = Graph.of(post)
    later, other = g.gaussian(2), copy.gamma()
    for form in (later[1], later[1] - g.x[0]):
        refused(lambda form=form: copy.add("probit", form, 1), "form", "copy")
        refused(lambda form=form: post.predict_latent(form), "form", "copy")
    refused(lambda: copy.add("probit", later[0], 1), "form", "other families")
    refused(lambda: g.add(Noise(other), g.x), "tau", "other families")
    refused(lambda: g.add(Mixture(g.h, "probit"), [copy.gaussian(2)[1], 0.0], 1), "forms[0]")
    refused(lambda: post[later], "variables", "copy")


# ---- fits ----


def test_graphs_that_cannot_be_fitted(g):
    refused(lambda: g.fit(), "no factor")
    refused(lambda: g.one_step_ahead(), "no factor")
    flat = g.gaussian(variance=np.inf)
    g.add("probit", g.x, 1)
    refused(lambda: g.fit(), "1 variables have neither a prior nor a factor")
    g.add(Transition(1.0), g.x[0], flat)
    with pytest.warns(epfast.DataWarning, match="10 of 14 variables have no factors"):
        g.fit()


SCHEDULES = [
    (EP(order="shuffled"), "order"),
    (EP(block=3), "block"),
    (EP(site_rule="keep"), "site_rule"),
    (SEP(batch=3), "batch"),
    (epfast.DSEP(2), "schedule"),
    (epfast.DoubleLoop(), "schedule"),
    ("EP", "schedule"),
    (SEP(), "SEP"),
    (AEP(), "AEP"),
    (EP(power=2.0), "power"),
]


@pytest.mark.parametrize(("schedule", "word"), SCHEDULES)
def test_schedules(g, schedule, word):
    g.add(Walk(0.0), g.x)
    g.add("probit", g.x[:2] - g.x[1:], 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", epfast.DataWarning)
        refused(lambda: g.fit(schedule), word)


def test_transitions_share_no_site(g):
    pair = g.x[[0, 0]], g.x[[1, 1]]
    g.add(Transition(1.0), *pair)
    refused(lambda: g.fit(SEP()), "SEP", "Transition")
    g.remove(0, rows=[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", epfast.DataWarning)
        assert g.fit(SEP()).converged


def test_starts_and_watched_forms(g):
    g.add("probit", g.x, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", epfast.DataWarning)
        post = g.fit()
        refused(lambda: g.fit(start=3), "start")
        refused(lambda: g.fit(ADF(), start=post), "start", "ADF")
        refused(lambda: g.fit(watch=g.tau), "gamma")
        refused(lambda: g.fit(watch=3.0), "watch")
        refused(lambda: g.fit(callback=3), "callback")
        refused(lambda: g.fit(progress="a"), "progress")
        h = Graph()
        h.add("probit", h.gaussian(), 1)
        refused(lambda: h.fit(start=post), "start")
        refused(lambda: h.fit(watch=g.x), "watch")
        refused(lambda: h.fit()[g.x], "variables")


# ---- what is taken ----


def dressed(a):
    """The same numbers in arrays of other kinds."""
    a = np.asarray(a, dtype=float)
    frozen = a.copy()
    frozen.setflags(write=False)
    wide = np.repeat(a, 2, axis=-1)[..., ::2]
    return [frozen, wide, np.asfortranarray(a), a.astype(np.float32), a.tolist(), a.astype(int)]


@pytest.mark.parametrize("turn", range(6))
def test_read_only_strided_single_and_integer_arrays(turn):
    def fitted(dress):
        g = Graph()
        m, v = np.array([0.0, 1.0, -1.0, 2.0]), np.array([1.0, 2.0, 4.0, 8.0])
        x = g.gaussian(mean=dress(m), variance=dress(v))
        tau = g.gamma(shape=dress([2.0, 3.0]), rate=dress([1.0, 2.0]))
        p, h = g.beta(alpha=dress([2.0, 1.0])), g.categorical(4, probabilities=dress([1.0, 3.0]))
        g.add("probit", dress(np.eye(4)) @ x, dress([1.0, -1.0, 1.0, 1.0]), noise=dress(v))
        g.add(Walk(1.0), x, time=dress([0.0, 1.0, 2.0, 5.0]))
        g.add(Between(dress([0.0, -4.0]), dress([1.0, 4.0])), x[:2] * dress([1.0, 2.0]))
        g.add(Transition(dress([1.0, 2.0]), factor=dress([1.0, 2.0])), x[:2], x[2:])
        g.add(Noise(tau), x[:2] + dress([1.0, 2.0]))
        g.add(Product(dress([1.0, 2.0])), x[:2], x[2:], dress([1.0, 2.0]))
        g.add(LogisticLink(), x[:2], p)
        g.add(CompoundGamma(dress([1.0, 2.0]), 2, 3), tau)
        g.add(Table(dress([[1.0, 2.0], [3.0, 4.0]])), h[:2], h[2:])
        g.add(Mixture(h, losses.Gaussian(1.0)), [x, 1], dress(m), noise=dress(v))
        g.add(Factor(lambda x, y: -(np.abs(y - x) ** 2)), x, y=dress(v))
        return g.fit(EP(sweeps=3, tol=0.0)).state

    given = []

    def dress(a):
        other = dressed(a)[turn]
        given.append((other, np.array(other)))
        return other

    plain, other = fitted(np.asarray), fitted(dress)
    np.testing.assert_allclose(other.beliefs, plain.beliefs, rtol=1e-12)
    for array, before in given:
        np.testing.assert_array_equal(array, before)


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("name", GRAPHS)
def test_the_users_arrays_may_change_before_the_fit(name):
    class Rng:
        """A generator that keeps what it gave."""

        def __init__(self):
            self.rng, self.given = np.random.default_rng(3), []

        def __getattr__(self, name):
            def call(*args, **kwargs):
                found = getattr(self.rng, name)(*args, **kwargs)
                self.given.append(found)
                return found

            return call

    rng = Rng()
    g, h = GRAPHS[name](rng), GRAPHS[name](np.random.default_rng(3))
    for array in rng.given:
        if isinstance(array, np.ndarray):
            array[...] = 7
    schedule = EP(sweeps=2, tol=0.0)
    np.testing.assert_array_equal(g.fit(schedule).state.beliefs, h.fit(schedule).state.beliefs)


# ---- traps ----


def test_a_walk_that_stands_still_takes_no_power(g):
    """Its density is no function, and has no powers."""
    g.add(Walk(1.0), g.x, time=[0.0, 0.0, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", epfast.DataWarning)
        refused(lambda: g.fit(EP(power=0.5)), "power", "Walk")
        g.remove(0)
        g.add(Transition(0.0), g.x[0], g.x[1])
        refused(lambda: g.fit(EP(power=0.5)), "power", "Transition")


def test_parallel_edges_are_one():
    posts = []
    for form in (lambda x: x[0] + x[1] + x[0], lambda x: 2.0 * x[0] + x[1]):
        g = Graph()
        x = g.gaussian(2)
        g.add("probit", form(x), 1)
        posts.append(g.fit(EP(sweeps=3, tol=0.0)).state.beliefs)
    np.testing.assert_allclose(*posts, rtol=1e-15)


def test_a_coefficient_of_0_waits_for_nothing():
    """A flat variable that a form does not move."""
    g = Graph()
    x = g.gaussian(2, variance=[1.0, np.inf])
    g.add("probit", x[0] + 0.0 * x[1], 1)
    g.add(losses.Gaussian(1.0), x[1], 3.0)
    assert g.fit(EP(sweeps=1, tol=0.0)).n_refused == 0
    alone = Graph()
    z = alone.gaussian()
    alone.add("probit", z, 1)
    post = g.fit(EP(tol=1e-10))
    assert post.converged
    np.testing.assert_allclose(post[x].mean, [alone.fit(EP(tol=1e-10))[z].mean, 3.0], rtol=1e-9)


def test_a_flat_variable_whose_factors_wait():
    """Counted, and no NaN: mean 0, an infinite variance."""
    g = Graph()
    x = g.gaussian(2, variance=np.inf)
    g.add("probit", x[0] - x[1], 1)
    with pytest.warns(epfast.ConvergenceWarning, match="1 of 1 sites were refused"):
        post = g.fit(EP(sweeps=3))
    np.testing.assert_array_equal(post[x].mean, 0.0)
    np.testing.assert_array_equal(post[x].variance, np.inf)
    mean, variance = post.predict_latent(x[0] - x[1] + 1.0)
    assert (mean, variance) == (1.0, np.inf)
    assert np.isfinite(post.log_evidence)


EMPTY = {
    "two": lambda g: [g.add(Between(0.0, 1.0), g.x[0]), g.add(Between(2.0, 3.0), g.x[0])],
    "touching": lambda g: [g.add(Between(0.0, 1.0), g.x[0]), g.add(Between(1.0, 2.0), g.x[0])],
    "circle": lambda g: [g.add(Between(0.0, INF), g.x - g.x[[1, 2, 0]])],
    "three": lambda g: [
        g.add(Between(0.0, INF), 2.0 * g.x[0] - g.x[1] + 1.0),
        g.add(Between(3.0, 4.0), g.x[1]),
        g.add(Between(-1.0, 0.5), g.x[0]),
    ],
    "block": lambda g: [g.add(Between([0.0, 2.0], [1.0, 3.0]), g.w[[0, 0]] + g.x[0])],
}


@pytest.mark.parametrize("case", EMPTY)
def test_bounds_that_leave_no_room_do_not_converge(case):
    """No values fulfil them, as inequalities add up: x > y > z > x, or 2 x + 1 > y > 3, x < .5."""
    g = Graph()
    g.x, g.w = g.gaussian(3), g.block(2)
    EMPTY[case](g)
    g.add("logistic", g.x, 1)
    with pytest.warns(epfast.ConvergenceWarning):
        assert not g.fit().converged


def test_bounds_that_leave_little_room_are_fitted():
    """Room of 1e-6: uniform between the ends, mean and sd by hand."""
    g = Graph()
    x = g.gaussian()
    g.add(Between(0.0, 1.0), x)
    g.add(Between(1.0 - 1e-6, 2.0), x)
    g.add(Between(-INF, INF), x)
    post = g.fit()
    assert post.converged
    np.testing.assert_allclose(post[x].mean, 1.0 - 5e-7, rtol=1e-9)


@pytest.mark.parametrize("bad", [0.0, [0.1, 0.0], -1.0, NAN])
def test_noise_of_a_gaussian_by_name_is_above_0(g, bad):
    with pytest.raises(ValueError, match="noise holds"):
        g.add("gaussian", g.x[:2], [0.0, 1.0], noise=bad)


@pytest.mark.parametrize("name", ["student_t", "laplace_noise", "quantile"])
def test_noise_beside_the_name_of_a_loss_with_a_width_is_refused(g, name):
    with pytest.raises(ValueError, match=rf"noise is given with '{name}'.*losses\."):
        g.add(name, g.x, 0.0, noise=0.5)
    g.add(name, g.x, 0.0)


def test_one_step_ahead_is_nan_where_it_is_not_known(g):
    g.add("probit", g.x, 1)
    g.add(Factor(lambda x: -x * x), g.x)
    g.add(Noise(g.tau[0]), g.x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", epfast.DataWarning)
        found = g.one_step_ahead()
    assert [np.isnan(part).all() for part in found.values()] == [False, True, False]
