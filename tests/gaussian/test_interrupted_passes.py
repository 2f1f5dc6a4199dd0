"""ADF that Ctrl-C ends: it holds the rows it took in, once each, and goes on with the others."""

import numpy as np
import pytest

import epfast
from epfast import ADF, fit_linear
from epfast.inference import runtime
from tests.oracles.data import classes
from tests.oracles.interrupts import calls_of, interrupted

X, Y = classes(500, 4, seed=3)
KINDS = {
    "full": {},
    "full, weights": {"weights": np.linspace(0.5, 3.0, 500)},
    "Laplace": {"batch_size": 7},
    "factorized": {"posterior": "factorized", "schedule": ADF(warm_up=0)},
    "factorized, weights": {
        "posterior": "factorized",
        "weights": np.linspace(0.5, 3.0, 500),
        "schedule": ADF(warm_up=120),
    },
    "factorized, settled": {"posterior": "factorized", "schedule": ADF(warm_up=120)},
    "minibatches": {"posterior": "factorized", "batch_size": 7, "schedule": ADF(warm_up=0)},
    "minibatches, settled": {
        "posterior": "factorized",
        "batch_size": 7,
        "schedule": ADF(warm_up=120),
    },
}

#: defaults of a problem whose rows come in several pieces
SMALL_PIECES = 120


def part(arguments, rows):
    given = {"schedule": ADF(), **arguments}
    if "weights" in given:
        given["weights"] = given["weights"][rows]
    return given


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_resumed_from_any_point_is_the_pass(kind, monkeypatch):
    arguments = KINDS[kind]
    # pieces of a few rows, as with many columns or on a slow machine
    monkeypatch.setattr(runtime, "SECONDS_PER_CALL", 1e-9)
    monkeypatch.setattr("epfast.gaussian.problem.CHUNK", SMALL_PIECES)

    def fit():
        return fit_linear(X, Y, **part(arguments, slice(None)))

    whole = fit()
    assert whole.rows_seen == 500
    calls, seen = calls_of(fit), set()
    rng = np.random.default_rng(0)
    for at in rng.integers(calls.first["fit_problem"] + 1, calls.count - 2, size=30):
        pressed = interrupted(fit, int(at))
        if pressed is None:
            continue
        post = pressed.posterior
        seen.add(post.rows_seen)
        rest = slice(post.rows_seen, None)
        if post.rows_seen < 500:
            given = part(arguments, rest)
            post = fit_linear(X[rest], Y[rest], start=post, **given)
        assert post.rows_seen == 500
        if arguments.get("posterior"):
            np.testing.assert_array_equal(post.mean, whole.mean)
            np.testing.assert_array_equal(post.variance, whole.variance)
        np.testing.assert_allclose(post.mean, whole.mean, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(post.variance, whole.variance, rtol=1e-9)
        assert post.log_evidence == pytest.approx(whole.log_evidence, rel=1e-9)
    assert len(seen) > 2


@pytest.mark.parametrize("posterior", ["full", "factorized"])
def test_a_memory_map(posterior, tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, X)
    rows = np.load(path, mmap_mode="r")
    taken = []

    def tick(count):
        taken.append(count)
        raise KeyboardInterrupt

    with pytest.raises(epfast.Interrupted) as caught:
        fit_linear(rows, Y, posterior=posterior, schedule=ADF(), progress=tick)
    post = caught.value.posterior
    assert post.rows_seen == sum(taken) > 0
    first = slice(post.rows_seen)
    plain = fit_linear(X[first], Y[first], posterior=posterior, schedule=ADF())
    np.testing.assert_allclose(post.mean, plain.mean, rtol=1e-10)


@pytest.mark.parametrize("posterior", ["full", "factorized"])
def test_rows_in_an_order_of_their_own(posterior, monkeypatch):
    """Rows sorted by their labels are shuffled; the posterior knows which it took in."""
    monkeypatch.setattr(runtime, "SECONDS_PER_CALL", 1e-9)
    monkeypatch.setattr("epfast.gaussian.problem.CHUNK", SMALL_PIECES)
    order = np.argsort(Y, kind="stable")
    rows, y, warm_up = X[order], Y[order], 100 if posterior == "factorized" else None
    given = {"posterior": posterior, "schedule": ADF(warm_up=warm_up)}
    whole, taken = fit_linear(rows, y, **given), []

    def tick(count):
        taken.append(count)
        if sum(taken) >= 200:
            raise KeyboardInterrupt

    with pytest.raises(epfast.Interrupted) as caught:
        fit_linear(rows, y, progress=tick, **given)
    post = caught.value.posterior
    assert post.schedule.order == "shuffled"
    assert post.rows_seen == sum(taken) < 500
    rest = post.schedule.visits(500, 0)[post.rows_seen :]
    schedule = ADF(order="sequential")
    post = fit_linear(rows[rest], y[rest], posterior=posterior, schedule=schedule, start=post)
    np.testing.assert_allclose(post.mean, whole.mean, rtol=1e-9, atol=1e-12)
    assert post.rows_seen == 500


def chunks(first, size=90):
    for i in range(first, 500, size):
        yield X[i : min(i + size, 500)], Y[i : i + size]


@pytest.mark.parametrize("warm_up", [None, 0, 120], ids=["full", "factorized", "settled"])
@pytest.mark.parametrize("size", [None, 7], ids=["rows", "minibatches"])
def test_a_pass_over_chunks_resumed_from_any_point_is_the_pass(size, warm_up, monkeypatch):
    monkeypatch.setattr(runtime, "SECONDS_PER_CALL", 1e-9)
    monkeypatch.setattr("epfast.gaussian.problem.CHUNK", SMALL_PIECES)
    given = {"batch_size": size, "schedule": ADF()}
    if warm_up is not None:
        given |= {"posterior": "factorized", "schedule": ADF(warm_up=warm_up)}

    def fit():
        return fit_linear(chunks(0), **given)

    whole = fit()
    assert whole.rows_seen == 500
    calls, seen = calls_of(fit), set()
    rng = np.random.default_rng(0)
    for at in rng.integers(calls.first["fit_problem"] + 1, calls.count - 2, size=30):
        pressed = interrupted(fit, int(at))
        if pressed is None:
            continue
        post = pressed.posterior
        seen.add(post.rows_seen)
        if post.rows_seen < 500:
            post = fit_linear(chunks(post.rows_seen), start=post, **given)
        assert post.rows_seen == 500
        np.testing.assert_allclose(post.mean, whole.mean, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(post.variance, whole.variance, rtol=1e-9)
        assert post.log_evidence == pytest.approx(whole.log_evidence, rel=1e-9)
    assert len(seen) > 2


@pytest.mark.parametrize("size", [1, 7])
def test_an_iterator_that_raises_it(size):
    """What it gave in whole minibatches is in the posterior."""

    def source(stop):
        for i in range(0, stop, 100):
            yield X[i : i + 100], Y[i : i + 100]
        if stop < 500:
            raise KeyboardInterrupt

    with pytest.raises(epfast.Interrupted) as caught:
        fit_linear(source(300), schedule=ADF(), batch_size=size)
    post = caught.value.posterior
    assert post.rows_seen == 300 - 300 % size
    assert post.n_sweeps == len(post.history) == 0
    rest = ((X[i : i + 50], Y[i : i + 50]) for i in range(post.rows_seen, 500, 50))
    post = fit_linear(rest, schedule=ADF(), start=post, batch_size=size)
    whole = fit_linear(source(500), schedule=ADF(), batch_size=size)
    assert post.rows_seen == whole.rows_seen == 500
    np.testing.assert_array_equal(post.mean, whole.mean)
    np.testing.assert_array_equal(post.variance, whole.variance)


@pytest.mark.parametrize("posterior", ["full", "factorized"])
def test_the_count_of_rows_is_saved(posterior, tmp_path):
    post = fit_linear(X, Y, posterior=posterior, schedule=ADF(passes=2))
    assert post.rows_seen == 1000
    post.save(tmp_path / "adf.npz")
    again = epfast.load(tmp_path / "adf.npz")
    assert again.rows_seen == 1000
    more = fit_linear(X[:9], Y[:9], posterior=posterior, schedule=ADF(), start=again)
    assert more.rows_seen == 1009
    ep = fit_linear(X, Y, posterior=posterior)
    ep.save(tmp_path / "ep.npz")
    assert ep.rows_seen is epfast.load(tmp_path / "ep.npz").rows_seen is None


@pytest.mark.parametrize("schedule", [epfast.EP(), ADF()], ids=["EP", "ADF"])
def test_new_rows(schedule):
    """partial_fit leaves the new rows that it took in, too."""
    post = fit_linear(X[:200], Y[:200], schedule=schedule)

    def fit():
        return post.partial_fit(X[200:], Y[200:])

    calls, whole = calls_of(fit), fit()
    rng = np.random.default_rng(1)
    for at in rng.integers(calls.first["run"] + 1, calls.count - 2, size=25):
        pressed = interrupted(fit, int(at))
        if pressed is None:
            continue
        left = pressed.posterior
        assert isinstance(left, epfast.FullPosterior)
        assert np.isfinite(left.mean).all()
        if schedule.stores == "none":
            rest = slice(left.rows_seen, None)
            if left.rows_seen < 500:
                left = left.partial_fit(X[rest], Y[rest])
            np.testing.assert_allclose(left.mean, whole.mean, rtol=1e-9)
            assert left.rows_seen == 500
