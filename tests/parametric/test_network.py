"""fit_network: schedules, resuming, files, predictions, beside plain passes and known answers."""

import itertools
import pickle
import warnings

import numpy as np
import pytest
from scipy import special

import epfast
from epfast import ADF, AEP, DSEP, EP, SEP, ConvergenceWarning, fit_network
from epfast.parametric.network_posterior import NetworkPosterior
from tests.oracles.interrupts import calls_of, interrupted
from tests.oracles.plain_network import PlainNetwork

RNG = np.random.default_rng(20150601)
N, D = 60, 3
X = 3.0 + 2.0 * RNG.standard_normal((N, D))
F = np.sin(X[:, 0]) + 0.3 * X[:, 1]
Y = 10.0 + 5.0 * F + 0.2 * RNG.standard_normal(N)
LABELS = np.sign(F - np.median(F) + 1e-9)
for shared in (X, Y, LABELS):
    shared.flags.writeable = False

#: schedules with so many passes
SCHEDULES = {
    "ADF": lambda k: ADF(passes=k),
    "ADF sequential": lambda k: ADF(passes=k, order="sequential"),
    "SEP": lambda k: SEP(sweeps=k, tol=0.0, order="shuffled"),
    "SEP sequential": lambda k: SEP(sweeps=k, tol=0.0),
    "SEP damped": lambda k: SEP(sweeps=k, tol=0.0, order="shuffled", damping=0.5),
    "SEP batches": lambda k: SEP(sweeps=k, tol=0.0, order="shuffled", batch=7),
    "AEP": lambda k: AEP(sweeps=k, tol=0.0, damping=0.1),
    "DSEP": lambda k: DSEP(groups=4, sweeps=k, tol=0.0, order="shuffled"),
    "EP": lambda k: EP(sweeps=k, tol=0.0),
    "EP damped": lambda k: EP(sweeps=k, tol=0.0, damping=0.5, order="sequential"),
}
OWN = pytest.mark.parametrize("name", SCHEDULES)


def fit(name="SEP", passes=4, hidden=(6,), **given):
    y = LABELS if given.get("loss") == "probit" else Y
    return fit_network(X, y, hidden=hidden, schedule=SCHEDULES[name](passes), rng=3, **given)


def same(a, b):
    """To the bit."""
    for one, other in zip(a.state, b.state, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(a.predict(X), b.predict(X))


# ---- passes ----


@pytest.mark.parametrize("loss", ["gaussian", "probit"])
@pytest.mark.parametrize("name", ["ADF", "SEP", "EP"])
@pytest.mark.parametrize("hidden", [(6,), (5, 4)])
@pytest.mark.parametrize("prior", [(5.0, 4.0), 0.7])
def test_a_fit_is_its_plain_passes(name, hidden, loss, prior):
    post = fit(name, 3, hidden, loss=loss, prior=prior, noise=(3.0, 2.0))
    probit = loss == "probit"
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    y = LABELS if probit else (Y - Y.mean()) / Y.std()
    plain = PlainNetwork(scaled, y, (D, *hidden, 1), probit)
    W, rng = plain.W, np.random.default_rng(3)
    base = np.zeros(4 * W + 4)
    base[:W], base[2 * W : 2 * W + 4] = 1.0, [2.0, 2.0, 4.0, 4.0]
    if prior == 0.7:
        base[:W], base[2 * W + 2 : 2 * W + 4] = 0.7, [0.7, 1.0]
    if probit:
        base[2 * W : 2 * W + 2] = 0.0
    q = base[: 2 * W + 4].copy()
    draws = [rng.standard_normal(shape) / np.sqrt(shape[0]) for shape in plain.shapes]
    q[W : 2 * W] = base[:W] * np.concatenate([draw.ravel() for draw in draws])
    sites = np.tile((q - base[: 2 * W + 4]) / N, (N, 1))
    # what is left of the draw is no word of the rows, and hidden from the factors of the prior
    drawn = q[W : 2 * W].copy()
    left = {"ADF": 1.0, "SEP": (1.0 - 1.0 / N) ** N, "EP": 0.0}[name]
    for k in range(3):
        order = np.random.default_rng([3, k]).permutation(N)
        if name == "EP":
            q, sites, log_z = plain.ep(q, sites, order)
        else:
            q, log_z = plain.adf(q, base, order, 1.0 / N if name == "SEP" else 0.0)
        assert post.history[k].log_evidence == pytest.approx(log_z, rel=1e-8)
        if prior == 0.7:  # known: its factors are exact
            continue
        drawn *= left
        q[W : 2 * W] -= drawn
        q, base = plain.refine(q, base)
        q[W : 2 * W] += drawn
    np.testing.assert_allclose(post.state.belief, q, rtol=1e-7, atol=1e-8 * np.abs(q).max())


@OWN
def test_sites_add_up_to_the_belief(name):
    for passes in (1, 2, 5):
        post = fit(name, passes)
        belief, base, sites = post.state[:3]
        if sites is None:
            continue
        sizes = {1: [N], 4: [15] * 4, N: [1] * N}[len(sites)]
        total = base[: len(belief)] + np.array(sizes) @ sites
        np.testing.assert_allclose(total, belief, rtol=1e-10, atol=1e-10)


@OWN
def test_a_resumed_fit_is_one_fit(name, tmp_path):
    whole = fit(name, 5)
    part = fit(name, 2)
    part.save(tmp_path / "part.npz")
    for start in (part, epfast.load(tmp_path / "part.npz"), pickle.loads(pickle.dumps(part))):
        before = [np.array(value) for value in start.state]
        rest = fit_network(X, Y, schedule=SCHEDULES[name](3), start=start)
        same(rest, whole)
        for value, old in zip(start.state, before, strict=True):
            np.testing.assert_array_equal(value, old)
    for info, other in zip(whole.history[2:], rest.history, strict=True):
        assert (info.sweep, info.n_refused) == (other.sweep, other.n_refused)
        assert info.log_evidence == other.log_evidence


@OWN
def test_a_callback_changes_nothing(name):
    states = []
    seen = fit(name, 3, callback=lambda info, state: states.append(state))
    same(seen, fit(name, 3))
    assert [state.sweeps for state in states] == [1, 2, 3]
    beliefs = [state.belief for state in states]
    assert not any(np.array_equal(a, b) for a, b in itertools.pairwise(beliefs))


def test_a_callback_ends_the_fit():
    post = fit("SEP", 9, callback=lambda info, state: info.sweep == 2)
    same(post, fit("SEP", 2))


def test_seeds():
    usual, again, other = (fit_network(X, Y, hidden=(4,), rng=seed) for seed in (0, 0, 1))
    same(usual, again)
    assert not np.array_equal(usual.state.belief, other.state.belief)
    assert usual.n_sweeps == usual.schedule.passes <= 40
    own = SEP(sweeps=2, tol=0.0, order="shuffled", seed=5)
    a, b = (fit_network(X, Y, hidden=(4,), schedule=own, rng=seed) for seed in (0, 1))
    np.testing.assert_array_equal(a.schedule.checked_visits(N, 1), b.schedule.checked_visits(N, 1))


def test_schedules_learn():
    """A smooth function, from 1,000 rows of noise 0.1, in 40 passes."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((1500, D))
    f = np.sin(2.0 * rows[:, 0]) + rows[:, 1] * rows[:, 1]
    y = f + 0.1 * rng.standard_normal(len(f))
    # undamped EP flees in some fits of a hundred, as the last bits fall
    for name in ("ADF", "SEP", "SEP batches", "DSEP", "EP damped"):
        post = fit_network(rows[:1000], y[:1000], hidden=(30,), schedule=SCHEDULES[name](40))
        mean, variance = post.predict(rows[1000:])
        error = (mean - f[1000:]) ** 2
        assert error.mean() < 0.1 * f.var(), name
        assert (variance > 0.0).all()
        assert 0.005 < post.noise_variance < 0.2
        score = post.log_predictive(rows[1000:], y[1000:]).mean()
        assert score > -0.5 * np.log(2.0 * np.pi * np.e * f.var()) + 0.7


def test_a_mean_that_is_worse_than_a_constant_is_told(monkeypatch):
    settled = EP(sweeps=300, tol=1e-3, damping=0.5)
    post = fit_network(X, Y, hidden=(3,), schedule=settled)
    assert post.converged
    off = np.mean((post.predict(X)[0] - Y) ** 2) / np.var(Y)
    assert 0.01 < off < 1.0
    monkeypatch.setattr("epfast.parametric.network.MOST_OFF", 0.999 * off)
    with pytest.warns(ConvergenceWarning, match="worse than a constant") as told:
        bad = fit_network(X, Y, hidden=(3,), schedule=settled)
    assert f"with {off:.3g} times its squared error" in str(told[0].message)
    assert not bad.converged
    monkeypatch.setattr("epfast.parametric.network.MOST_OFF", 1.001 * off)
    assert fit_network(X, Y, hidden=(3,), schedule=settled).converged


def test_other_starts_spread_over_the_sites():
    """A belief of one schedule begins another: the first pass has its digits."""
    adf = fit("ADF", 5)
    for name in ("SEP", "DSEP", "EP"):
        start = fit_network(X, Y, schedule=SCHEDULES[name](1), start=adf)
        assert start.n_sweeps == 6
        belief, base, sites = start.state[:3]
        sizes = np.full(len(sites), N / len(sites))
        np.testing.assert_allclose(base[: len(belief)] + sizes @ sites, belief, rtol=1e-9)


def test_sites_of_other_rows_are_spread_anew():
    sep = fit("SEP", 5)
    fewer = fit_network(X[: N // 2], Y[: N // 2], schedule=SCHEDULES["SEP damped"](1), start=sep)
    belief, base, sites = fewer.state[:3]
    np.testing.assert_allclose(base[: len(belief)] + N // 2 * sites[0], belief, rtol=1e-9)


# ---- what a posterior says ----


def test_weights_are_those_of_the_prediction():
    """One hidden layer, by hand."""
    post = fit("ADF", 5)
    first, last = post.weights
    assert first.mean.shape == first.variance.shape == (6, D + 1)
    assert last.mean.shape == (1, 7)
    scaled = np.column_stack([(X - X.mean(axis=0)) / X.std(axis=0), np.ones(N)])
    a = scaled @ first.mean.T / np.sqrt(D + 1)
    b = scaled**2 @ first.variance.T / (D + 1)
    phi = np.exp(-0.5 * a * a / b) / np.sqrt(2.0 * np.pi)
    z = a * special.ndtr(a / np.sqrt(b)) + np.sqrt(b) * phi
    s = (a * a + b) * special.ndtr(a / np.sqrt(b)) + a * np.sqrt(b) * phi - z * z
    z, s = np.column_stack([z, np.ones(N)]), np.column_stack([s, np.zeros(N)])
    mean = z @ last.mean[0] / np.sqrt(7.0)
    variance = (s @ last.mean[0] ** 2 + (z * z + s) @ last.variance[0]) / 7.0
    got = post.predict(X)
    np.testing.assert_allclose(got[0], Y.mean() + Y.std() * mean, rtol=1e-10)
    np.testing.assert_allclose(got[1], Y.var() * variance, rtol=1e-10)


def test_predictive_densities_are_normalised():
    post = fit("SEP", 10)
    grid = np.linspace(-60.0, 80.0, 4001)
    density = np.exp(post.log_predictive(np.tile(X[:1], (len(grid), 1)), grid))
    assert np.trapezoid(density, grid) == pytest.approx(1.0, abs=1e-6)
    mean, variance = post.predict(X[:1])
    assert np.trapezoid(density * grid, grid) == pytest.approx(mean[0], abs=1e-4)
    second = np.trapezoid(density * (grid - mean[0]) ** 2, grid)
    assert second == pytest.approx(variance[0] + post.noise_variance, rel=1e-4)


def test_scales_do_not_matter():
    """Columns and responses in other units: the same fit."""
    usual = fit("SEP", 10)
    for size in (1e-6, 1e6, 1e-150, 1e150):
        shift = 3.0 * size
        other = fit_network(
            size * X + shift, size * Y - shift, hidden=(6,), schedule=usual.schedule, rng=3
        )
        mean, variance = other.predict(size * X + shift)
        wanted, spread = usual.predict(X)
        np.testing.assert_allclose((mean + shift) / size, wanted, rtol=1e-7)
        np.testing.assert_allclose(variance / size / size, spread, rtol=1e-6)
        assert other.noise_variance / size / size == pytest.approx(usual.noise_variance, rel=1e-7)


def test_constant_columns_are_left_alone():
    constant = np.column_stack([X, np.full(N, 288.0), np.full(N, 0.1) * 1e-9])
    post = fit_network(constant, Y, hidden=(6,), schedule=ADF(passes=5))
    np.testing.assert_array_equal(post.problem.scaling.scale[D:], 1.0)
    assert np.isfinite(post.predict(constant)).all()
    assert np.isfinite(post.state.belief).all()


def test_without_standardising():
    post = fit_network(X, Y, hidden=(6,), schedule=ADF(passes=3), standardize=False)
    plain = (X - 0.0, Y - 0.0)
    np.testing.assert_array_equal(post.problem.scaling.mean, 0.0)
    again = fit_network(*plain, hidden=(6,), schedule=ADF(passes=3), standardize=False)
    same(post, again)


def test_classes():
    post = fit("ADF", 30, (10,), loss="probit", prior=(6.0, 6.0))
    mean, variance = post.predict(X)
    proba = post.predict_proba(X)
    np.testing.assert_allclose(proba, special.ndtr(mean / np.sqrt(1.0 + variance)), rtol=1e-12)
    assert ((proba > 0.5) == (LABELS > 0)).mean() > 0.85
    np.testing.assert_allclose(
        np.exp(post.log_predictive(X, LABELS)) + np.exp(post.log_predictive(X, -LABELS)), 1.0
    )
    assert post.noise_variance == 0.0
    flipped = fit_network(X, -LABELS, hidden=(10,), loss="probit", schedule=post.schedule, rng=3)
    assert flipped.predict_proba(X)[LABELS > 0].mean() < 0.5


def test_draws():
    post = fit("ADF", 5)
    draws = post.sample(4000, 0)
    for part, (mean, variance) in zip(draws, post.weights, strict=True):
        assert part.shape == (4000, *mean.shape)
        assert (np.abs(part.mean(axis=0) - mean) < 5.0 * np.sqrt(variance / 4000)).all()
    np.testing.assert_array_equal(draws[0], post.sample(4000, np.random.default_rng(0))[0])
    assert post.sample(0, 0)[1].shape == (0, 1, 7)


def test_texts():
    post = fit("SEP", 4, (6, 5))
    assert repr(post) == (
        "NetworkPosterior(3-6-5-1, gaussian, 65 weights, 4 passes, converged=False)"
    )
    table = post.summary()
    assert list(table["units"]) == [6, 5, 1]
    assert any("noise variance" in note for note in table.attrs["notes"])
    assert "4 passes" in table.attrs["notes"][0]
    assert post.n_dead_units == 0
    assert post.n_refused == sum(info.n_refused for info in post.history)
    assert post.hidden == (6, 5)
    assert post.prior_variance > 0.0


def test_inputs_stay_as_they_are_and_come_in_all_kinds():
    usual = fit("SEP", 2)
    wide = np.zeros((2 * N, 2 * D))
    wide[::2, ::2] = X
    for rows, y in (
        (X.tolist(), Y.tolist()),
        (np.asfortranarray(X), Y[::-1].copy()[::-1]),
        (wide[::2, ::2], Y),
        (X.astype(np.longdouble), Y.astype(">f8")),
    ):
        same(fit_network(rows, y, hidden=(6,), schedule=usual.schedule, rng=3), usual)
    whole = np.rint(4.0 * X)
    a = fit_network(whole.astype(int), Y, hidden=(6,), schedule=usual.schedule)
    same(a, fit_network(whole.astype(np.float32), Y, hidden=(6,), schedule=usual.schedule))
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X)
    same(fit_network(frame, pandas.Series(Y), hidden=(6,), schedule=usual.schedule, rng=3), usual)


# ---- more rows ----


@pytest.mark.parametrize("name", ["ADF", "SEP", "AEP"])
def test_new_rows(name):
    half = N // 2
    part = fit_network(X[:half], Y[:half], hidden=(6,), schedule=SCHEDULES[name](20))
    before = part.state.belief.copy()
    whole = part.partial_fit(X[half:], Y[half:])
    np.testing.assert_array_equal(part.state.belief, before)
    old, new = (np.mean((p.predict(X[half:])[0] - Y[half:]) ** 2) for p in (part, whole))
    assert new < old
    belief, base, sites = whole.state[:3]
    if sites is not None:
        np.testing.assert_allclose(base[: len(belief)] + N * sites[0], belief, rtol=1e-9)
    assert whole.n_sweeps == 21
    on = fit_network(X, Y, schedule=SCHEDULES[name](1), start=whole)
    assert on.n_sweeps == 22


def test_one_new_row_and_files_of_what_came_of_it(tmp_path):
    post = fit("SEP", 3).partial_fit(X[:1], Y[:1])
    post.save(tmp_path / "net.npz")
    same(epfast.load(tmp_path / "net.npz"), post)


def test_rows_of_sites_take_no_new_rows():
    for name in ("EP", "DSEP"):
        with pytest.raises(ValueError, match="sites belong to rows"):
            fit(name, 1).partial_fit(X, Y)


# ---- warnings ----


def test_tol_0_does_not_warn(recwarn):
    fit("SEP", 1)
    assert not recwarn


def test_a_missed_tolerance_warns():
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        fit_network(X, Y, hidden=(4,), schedule=SEP(sweeps=2, tol=1e-6))


def test_a_met_tolerance_converges(recwarn):
    post = fit_network(X, Y, hidden=(4,), schedule=SEP(sweeps=200, tol=10.0))
    assert post.converged
    assert post.history[-1].change <= 10.0
    assert not recwarn


def test_rows_that_are_refused_warn():
    far = X.copy()
    far[::20] = 1e200
    with pytest.warns(ConvergenceWarning, match="log Z is not finite"):
        post = fit_network(far, Y, hidden=(4,), schedule=ADF(passes=2), standardize=False)
    assert post.history[-1].n_failed == 3
    assert np.isfinite(post.state.belief).all()


def test_the_prior_is_known_where_labels_count_several_times():
    assert fit("ADF", 3, loss="probit").problem.prior == 1.0
    for name, passes, given in (("ADF", 1, "probit"), ("SEP", 3, "probit"), ("ADF", 3, None)):
        assert fit(name, passes, loss=given).problem.prior == (6.0, 6.0)
    post = fit("ADF", 3, loss="probit", prior=(6.0, 6.0))
    assert post.prior_variance != 1.0
    known = fit("ADF", 3, prior=2.0)
    assert known.prior_variance == 0.5
    same(fit_network(X, Y, schedule=ADF(passes=2), start=known), fit("ADF", 5, prior=2.0))


def test_labels_that_can_be_told_apart_stay_doubtful():
    """Of few rows with many columns all are told apart, by weights as wide as a prior allows."""
    rng = np.random.default_rng(2)
    rows, new = rng.standard_normal((2, 150, 60))
    signs, truth = (np.sign(2.0 * x[:, 0] + rng.logistic(size=150)) for x in (rows, new))
    told = fit_network(rows, signs, loss="probit", schedule=ADF(passes=10), prior=(6.0, 6.0))
    post = fit_network(rows, signs, loss="probit")
    assert post.schedule.passes < 20
    assert told.prior_variance > 2.0
    loss, learned = (-net.log_predictive(new, truth).mean() for net in (post, told))
    assert loss < np.log(2.0) < learned


@pytest.mark.parametrize("n", [10, 59, 400])
@pytest.mark.parametrize("loss", [None, "probit"])
def test_passes_are_those_that_predict_best(n, loss, monkeypatch):
    """Of parts that are held out by hand; of 400 rows three of five, which are 240."""
    monkeypatch.setattr("epfast.parametric.network.MOST_PASSES", 6)
    rng = np.random.default_rng(n)
    rows = rng.standard_normal((n, 3))
    y = rows[:, 0] - rows[:, 1] ** 2 + rng.standard_normal(n)
    y = np.sign(y) if loss else (y - y.mean()) / y.std()
    given = {"loss": loss, "standardize": False, "hidden": (8,), "rng": 4}
    post = fit_network(rows, y, **given)
    total = np.zeros(6)
    prior = 1.0 if loss else (6.0, 6.0)
    parts = np.array_split(np.random.default_rng([4, 2]).permutation(n), 5)
    for out in parts[: 3 if n == 400 else 5]:
        kept = np.setdiff1d(np.arange(n), out)
        for k in range(6):
            schedule = ADF(passes=k + 1, order="shuffled", seed=4)
            net = fit_network(rows[kept], y[kept], schedule=schedule, prior=prior, **given)
            total[k] += net.log_predictive(rows[out], y[out]).sum()
    assert post.schedule.passes == np.argmax(total) + 1
    assert post.problem.prior == prior
    best = ADF(passes=post.schedule.passes, order="shuffled", seed=4)
    same_belief = fit_network(rows, y, schedule=best, prior=prior, **given)
    np.testing.assert_array_equal(post.state.belief, same_belief.state.belief)


def test_few_rows_are_not_divided():
    assert fit_network(X[:9], Y[:9], hidden=(3,)).schedule.passes == 10


@pytest.mark.parametrize("n", [60, 2000])
def test_no_schedule_is_no_worse_than_a_constant(n):
    """Forty passes are, on 60 noisy columns of few rows: by more than a nat per row."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((n + 1000, 60))
    y = rows[:, 0] + 2.0 * rng.standard_normal(n + 1000)
    post = fit_network(rows[:n], y[:n])
    constant = -0.5 * np.log(2.0 * np.pi * np.e * 5.0)
    assert post.log_predictive(rows[n:], y[n:]).mean() > constant - 0.1


def test_wild_passes_warn():
    """Undamped AEP goes too far; no variance is negative, no count above the rows."""
    with pytest.warns(ConvergenceWarning, match="worse than a constant"):
        post = fit_network(X, Y, hidden=(20,), schedule=AEP(sweeps=9, tol=0.0, damping=1.0))
    assert all(info.n_refused <= N for info in post.history)
    assert (post.state.belief[: post.problem.n_weights] > 0.0).all()


@pytest.mark.parametrize(
    ("schedule", "batch"),
    [
        (AEP(sweeps=40, tol=0.0), 240),
        (SEP(sweeps=20, tol=0.0, order="shuffled", batch=120), 120),
        (SEP(sweeps=20, tol=0.0, order="shuffled", batch=8), 8),
        (DSEP(groups=[0] * 40 + [1] * 200, sweeps=40, tol=0.0, batch=None), 200),
    ],
)
def test_batches_are_damped_unless_told(schedule, batch):
    """By 16 rows over those of a batch: undamped, all but the batches of 8 flee on these rows."""
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((240, 3))
    y = np.sin(2.0 * rows[:, 0]) + 0.1 * rng.standard_normal(240)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        post = fit_network(rows, y, hidden=(20,), schedule=schedule)
    assert post.schedule.damping == min(1.0, 16 / batch)
    assert post.n_refused == 0
    assert post.log_predictive(rows, y).mean() > -0.5 * np.log(2.0 * np.pi * y.var()) - 0.5


def test_passes_that_flee_warn():
    """Undamped ones of large batches. Ordinary ones are silent, see above."""
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((240, 3))
    y = np.sin(2.0 * rows[:, 0]) + 0.1 * rng.standard_normal(240)
    schedule = SEP(sweeps=20, tol=0.0, order="shuffled", batch=120, damping=1.0)
    with pytest.warns(ConvergenceWarning, match="passes flee"):
        fit_network(rows, y, hidden=(20,), schedule=schedule)


def test_rows_that_are_refused_in_part_warn():
    """Sites of one weight of each of ten rows are more than the belief: they have no cavity."""
    post = fit("EP", 3)
    sites = post.state.sites.copy()
    for k in range(10):
        beyond = 1.2 * post.state.belief[k]
        sites[:, k] -= beyond / (N - 1)
        sites[k, k] += beyond + beyond / (N - 1)
    start = NetworkPosterior(post.problem, post.state._replace(sites=sites), False, [])
    order = EP(sweeps=1, tol=0.0, order="sequential")
    with pytest.warns(ConvergenceWarning, match="10 of 60 rows were refused in part"):
        after = fit_network(X, Y, schedule=order, start=start)
    diagonal = np.arange(10), np.arange(10)
    np.testing.assert_array_equal(after.state.sites[diagonal], sites[diagonal])


# ---- Ctrl-C ----


@pytest.mark.parametrize("name", ["ADF", "SEP", "SEP batches", "EP"])
@pytest.mark.parametrize("callback", [None, lambda info, state: False])
def test_ctrl_c_leaves_a_whole_state(name, callback):
    def task():
        return fit(name, 2, callback=callback)

    calls, partial = calls_of(task), 0
    for at in range(calls.first["sweep"], calls.count):
        pressed = interrupted(task, at)
        if not isinstance(pressed, epfast.Interrupted):
            continue  # where nothing has begun, or the door is closed
        partial += 1
        post = pressed.posterior
        assert isinstance(post, NetworkPosterior)
        assert len(post.history) == post.n_sweeps <= 2
        belief, base, sites = post.state[:3]
        assert np.isfinite(belief).all()
        assert (belief[: post.problem.n_weights] > 0.0).all()
        if sites is not None:
            total = base[: len(belief)] + N / len(sites) * sites.sum(axis=0)
            np.testing.assert_allclose(total, belief, rtol=1e-9, atol=1e-9)
        on = fit_network(X, Y, schedule=SCHEDULES[name](1), start=post)
        assert np.isfinite(on.predict(X)).all()
    assert partial > 10


def test_progress_counts_rows():
    counts = []
    fit("SEP", 3, progress=counts.append)
    assert sum(counts) == 3 * N
