"""Ctrl-C wherever it falls in a fit of a graph: what is left is a state, and can go on."""

import signal
import threading
import time

import numpy as np
import pytest

import epfast
from epfast import ADF, AEP, EP, SEP, Graph, load
from epfast.graph import Factor
from epfast.losses import Gaussian
from tests.graph.models import GRAPHS, shared
from tests.oracles.interrupts import calls_of, interrupted

pytestmark = [
    pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::epfast.DataWarning"),
]


def log_t(x, z, y):
    return -0.5 * (y - np.tanh(x) - z) ** 2


def own(rng):
    """Factors in Python between compiled ones."""
    g = Graph()
    x, z = g.gaussian(4, variance=2.0, name="x"), g.gaussian(variance=0.5)
    g.add("probit", x[1:] - x[:-1], [1, -1, 1])
    g.add(Factor(log_t), x, z, y=rng.normal(size=4))
    g.add(Gaussian(1.0), x, rng.normal(size=4))
    return g


def watched(g):
    """Extrapolates: beliefs and sites are replaced between sweeps."""
    x = g.variables["skill"]
    return x[1:] - x[:-1]


RNG = 3
FITS = {
    name: lambda g: lambda: g.fit(EP(sweeps=12, tol=0.0)) for name in (*GRAPHS, "own", "shared")
}
FITS |= {
    "forms, parallel": lambda g: lambda: g.fit(EP(sweeps=12, tol=0.0, order="parallel")),
    "forms, watched": lambda g: lambda: g.fit(EP(sweeps=40, tol=0.0), watch=watched(g)),
    "forms, callback": lambda g: lambda: g.fit(EP(sweeps=12, tol=0.0), callback=lambda *_: False),
    "forms, ADF": lambda g: lambda: g.fit(ADF()),
    "shared, SEP": lambda g: lambda: g.fit(SEP(sweeps=12, tol=0.0)),
    "shared, AEP": lambda g: lambda: g.fit(AEP(sweeps=12, tol=0.0)),
}


def graph_of(name):
    name = name.split(",")[0]
    return {**GRAPHS, "own": own, "shared": shared}[name](np.random.default_rng(RNG))


def check(post):
    """Beliefs are priors times sites, and all numbers finite."""
    problem, state = post.problem, post.state
    assert not np.isnan(state.beliefs).any()
    assert np.isfinite(post.log_evidence)
    assert len(post.history) == post.n_sweeps
    if problem.schedule.stores == "none":
        return
    total = problem.prior.copy()
    for batch, rows in zip(problem.model.batches, post.program.rows, strict=True):
        _, starts, sites, _ = post.by_batch[batch.key]
        assert len(sites) == starts[-1]
        where = problem.site_places(batch.select(rows))[0]
        times = batch.n if problem.tied else 1
        total += np.bincount(where, times * sites, len(total))
    size = 1.0 + np.abs(total).max()
    np.testing.assert_allclose(state.beliefs, total, rtol=1e-9, atol=1e-9 * size)


@pytest.mark.cover(lambda name: None)
@pytest.mark.parametrize("name", FITS)
def test_whatever_call_ctrl_c_falls_in(name, tmp_path):
    g = graph_of(name)
    fit = FITS[name](g)
    fit()  # what is done once per process
    calls = calls_of(fit)
    rng = np.random.default_rng(0)
    for at in rng.integers(calls.first["run"] + 1, calls.count - 2, 30):
        pressed = interrupted(fit, int(at))
        if pressed is None:
            continue
        assert isinstance(pressed, epfast.Interrupted), (at, pressed)
        post = pressed.posterior
        if post.converged:
            continue
        check(post)
        if name.startswith("own"):
            continue
        post.save(tmp_path / "left.npz")
        again = load(tmp_path / "left.npz")
        np.testing.assert_array_equal(again.state.beliefs, post.state.beliefs)
        if post.problem.schedule.stores != "none":
            rest = EP(sweeps=2, tol=0.0) if "," not in name else post.problem.schedule
            check_resumed(Graph.of(again).fit(rest, start=again))


def check_resumed(post):
    assert not np.isnan(post.state.beliefs).any()
    assert np.isfinite(post.log_evidence)


@pytest.mark.full
@pytest.mark.parametrize("python", [False, True])
def test_signals_at_random_times_and_the_fit_goes_on(python):
    """In compiled factors and within functions of the user's."""
    rng = np.random.default_rng(1)
    n = 60 if python else 20_000
    g = Graph()
    x = g.gaussian(n // 10, variance=4.0)
    a = rng.integers(0, n // 10, n)
    b = (a + rng.integers(1, n // 10, n)) % (n // 10)
    g.add("probit", x[a] - x[b], np.where(rng.random(n) < 0.5, 1, -1), noise=1.0)
    if python:
        g.add(Factor(lambda x, y: -np.log1p((x - y) ** 2), "quadrature"), x, y=0.3)
    want = g.fit(EP(sweeps=500, tol=1e-7))
    assert want.converged
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    stopped = 0
    try:
        for delay in [*rng.uniform(0.0, 0.15, 8), 1.0, 1.0]:  # the last for a slow machine
            ready = threading.Event()

            def press(ready=ready, delay=delay):
                ready.wait()
                time.sleep(delay)
                signal.raise_signal(signal.SIGINT)

            presser = threading.Thread(target=press)
            presser.start()
            try:
                ready.set()
                g.fit(EP(sweeps=100_000, tol=0.0))
            except epfast.Interrupted as pressed:
                stopped += 1
                post = pressed.posterior
                check(post)
                on = g.fit(EP(sweeps=500, tol=1e-7), start=post)
                np.testing.assert_allclose(on[x].mean, want[x].mean, atol=1e-5)
            except KeyboardInterrupt:  # at the door
                pass
            presser.join()
    finally:
        signal.signal(signal.SIGINT, old)
    assert stopped >= 2


def test_before_the_first_sweep_it_is_the_prior_or_the_start():
    g = graph_of("forms")
    start = g.fit(EP(sweeps=3, tol=0.0))

    def fit(**given):
        return lambda: g.fit(EP(sweeps=3, tol=0.0), **given)

    for given, state in (({}, None), ({"start": start}, start.state)):
        first = calls_of(fit(**given)).first["init"]
        post = interrupted(fit(**given), first).posterior
        wanted = post.problem.prior if state is None else state.beliefs
        np.testing.assert_array_equal(post.state.beliefs, wanted)
        evidence = 0.0 if state is None else start.log_evidence
        np.testing.assert_allclose(post.log_evidence, evidence, atol=1e-12)
        assert post.history == []
