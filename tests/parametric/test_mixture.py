"""fit_mixture: against conjugate posteriors, Gibbs sampling and plain NumPy; symmetries; doors."""

import copy
import dataclasses
import pickle
import warnings

import numpy as np
import pytest
from scipy import special, stats

import epfast
from epfast import ADF, AEP, DSEP, EP, SEP, fit_mixture
from epfast.parametric import engine, mixture
from tests.oracles import interrupts, plain_mixture as plain

SCHEDULES = [
    EP(sweeps=6, tol=0.0),
    EP(sweeps=6, tol=0.0, order="sequential", damping=0.5),
    SEP(sweeps=6, tol=0.0, order="shuffled", damping=0.3),
    SEP(sweeps=6, tol=0.0, batch=7, damping=0.5),
    AEP(sweeps=6, tol=0.0, damping=0.3),
    DSEP(3, sweeps=6, tol=0.0, damping=0.3),
    ADF(passes=2),
]


def data(n=200, J=4, d=4, seed=0, noise=0.25, apart=2.5):
    """Rows of separated components: their means are on axes, J <= 2 d."""
    rng = np.random.default_rng(seed)
    mean = np.concatenate([np.eye(d), -np.eye(d)])[:J] * apart
    label = rng.integers(J, size=n)
    return mean[label] + np.sqrt(noise) * rng.standard_normal((n, d)), mean, label


def prior_near(mean, seed=0):
    return mean + 0.3 * np.random.default_rng(seed + 100).standard_normal(mean.shape)


def fit(X, J, *given, **named):
    """A fit whose passes may end before they settle."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", epfast.ConvergenceWarning)
        return fit_mixture(X, J, *given, **named)


# ---- what is exact ----


@pytest.mark.parametrize("schedule", [EP(tol=1e-12), ADF(), AEP(sweeps=300, tol=1e-13)])
@pytest.mark.parametrize("d", [1, 3, 9])
def test_one_component_is_conjugate(d, schedule):
    X = data(60, 1, d)[0] + 3.0
    mean = np.arange(1.0, d + 1.0)
    S0 = np.eye(d) * 2.0 + 0.5
    post = fit(X, 1, 0.25, prior_mean=mean[None], prior_variance=S0, schedule=schedule)
    precision = np.linalg.inv(S0) + 60 / 0.25 * np.eye(d)
    exact = np.linalg.solve(precision, np.linalg.solve(S0, mean) + X.sum(axis=0) / 0.25)
    np.testing.assert_allclose(post.mean[0], exact, rtol=1e-12)
    np.testing.assert_allclose(post.covariance[0], np.linalg.inv(precision), rtol=1e-12, atol=1e-15)
    # columns are independent given mu, of which all rows have the same
    joint = np.kron(np.eye(60), 0.25 * np.eye(d)) + np.kron(np.ones((60, 60)), S0)
    exact = stats.multivariate_normal(np.tile(mean, 60), joint).logpdf(X.ravel())
    assert post.log_evidence == pytest.approx(exact, rel=1e-12)


def test_learnt_noise_of_one_component():
    """Against integrals over the precision; the means are independent of it only under q."""
    X = data(300, 1, 2)[0]
    post = fit_mixture(X, 1, prior_mean=[[2.0, 0.5]], prior_variance=3.0, noise_prior=(2.0, 1.0))
    t = np.linspace(-2.0, 4.0, 2001)
    value = np.exp(t)
    logs = stats.gamma(2.0, scale=1.0).logpdf(value) + t
    for x, m in zip(X.T, (2.0, 0.5), strict=True):
        n, total = len(x), ((x - x.mean()) ** 2).sum()
        logs = logs - 0.5 * (n - 1) * np.log(2 * np.pi / value) - 0.5 * value * total
        logs = logs - 0.5 * np.log(n) + stats.norm(m, np.sqrt(3.0 + 1 / value / n)).logpdf(x.mean())
    exact = np.log(np.trapezoid(np.exp(logs - logs.max()), t)) + logs.max()
    p = np.exp(logs - logs.max())
    p /= p.sum()
    assert post.converged
    assert post.log_evidence == pytest.approx(exact, abs=2e-3)
    shape, rate = post.noise
    assert shape / rate == pytest.approx(p @ value, rel=1e-3)
    sd = np.sqrt(p @ value**2 - (p @ value) ** 2)
    assert np.sqrt(shape) / rate == pytest.approx(sd, rel=5e-3)


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_sweeps_are_those_of_plain_numpy(schedule, learns):
    X, mean, _ = data(12, 2, 2, apart=1.0)
    prior = prior_near(mean)
    given = {"noise_prior": (3.0, 1.0)} if learns else {"noise_variance": 0.25}
    given |= {} if learns else {"weights": [0.5, 0.5]}
    given |= {"prior_mean": prior, "prior_variance": 0.7}
    schedule = dataclasses.replace(schedule, **{} if schedule.stores == "none" else {"sweeps": 2})
    post = fit(X, 2, schedule=schedule, rng=3, **given)
    model = plain.Model(2, 2, None if learns else np.full(2, 0.5), None if learns else 0.25)
    precision = np.tile(np.eye(2) / 0.7, (2, 1, 1))
    base = model.joined(precision, (prior - X.mean(axis=0)) / 0.7, np.ones(2), (3.0, 1.0))
    rows, known = X - X.mean(axis=0), post.schedule
    if schedule.stores == "factor":
        orders = [known.visits(12, k) for k in range(2)]
        sites, scales = np.zeros((12, model.size)), np.zeros(12)
        q, evidence = plain.ep(model, base, rows, sites, scales, orders, known.damping)
    elif schedule.stores == "none":
        order = np.concatenate([known.visits(12, k) for k in range(2)])
        q, evidence = plain.adf(model, base, rows, order)
    elif isinstance(schedule, DSEP):
        return  # groups: below
    else:
        orders = [known.batches(12, k).rows for k in range(2)]
        batch = known.batch or 12
        zero = np.zeros(model.size)
        q, _, evidence = plain.sep(model, base, rows, zero, 0.0, orders, known.damping, batch)
    np.testing.assert_allclose(post.state.belief[:-1], q, rtol=1e-9, atol=1e-9)
    assert post.log_evidence == pytest.approx(evidence, abs=1e-8)


def test_a_group_per_row_is_ep():
    X, mean, _ = data(40, 3, 2)
    given = {"prior_mean": prior_near(mean), "prior_variance": 4.0}
    one = fit(X, 3, 0.25, schedule=DSEP(40, sweeps=4, tol=0.0), **given)
    ep = fit(X, 3, 0.25, schedule=EP(sweeps=4, tol=0.0, order="sequential"), **given)
    np.testing.assert_allclose(one.mean, ep.mean, rtol=1e-9)
    np.testing.assert_allclose(one.sites.precision, ep.sites.precision, rtol=1e-6, atol=1e-9)


# ---- the truth ----


@pytest.fixture(scope="module")
def gibbs():
    found = []
    for seed in range(3):
        X, mean, _ = data(seed=seed)
        prior = prior_near(mean, seed)
        precision = np.tile(np.eye(4) / 10.0, (4, 1, 1))
        truth = plain.gibbs(X, np.full(4, 0.25), 0.25, prior, precision, 4000, seed)
        given = {"prior_mean": prior, "prior_variance": 10.0, "weights": np.full(4, 0.25)}
        found.append((X, given, truth))
    return found


def errors(post, truth):
    """Of means and covariances: Frobenius norms, averaged over the components."""
    mean = np.linalg.norm(post.mean - truth[0], axis=1).mean()
    return mean, np.linalg.norm(post.covariance - truth[1], axis=(1, 2)).mean()


@pytest.mark.full
def test_ep_is_near_the_truth(gibbs):
    for X, given, truth in gibbs:
        post = fit_mixture(X, 4, 0.25, schedule=EP(tol=1e-8), **given)
        mean, covariance = errors(post, truth)
        assert post.converged
        assert mean < 0.01
        assert covariance < 0.001


def test_sep_is_near_ep_where_it_is_damped(gibbs):
    for X, given, truth in gibbs:
        schedule = SEP(sweeps=100, tol=0.0, order="shuffled", damping=0.1)
        post = fit_mixture(X, 4, 0.25, schedule=schedule, **given)
        mean, covariance = errors(post, truth)
        assert mean < 0.02
        assert covariance < 0.001


def test_adf_of_many_passes_loses_its_variance(gibbs):
    X, given, truth = gibbs[0]
    post = fit_mixture(X, 4, 0.25, schedule=ADF(passes=40), **given)
    assert np.trace(post.covariance[0]) < 0.05 * np.trace(truth[1][0])


def test_everything_is_learnt():
    X, mean, label = data(600, 3, 3, seed=1)
    post = fit_mixture(X, 3)
    order = [int(np.linalg.norm(post.mean - m, axis=1).argmin()) for m in mean]
    assert post.converged
    assert sorted(order) == [0, 1, 2]
    counts = np.bincount(label, minlength=3)
    np.testing.assert_allclose(post.concentration[order], 1.0 + counts, atol=1.0)
    exact = np.mean([(X[label == j] - X[label == j].mean(axis=0)) ** 2 for j in [0]])
    assert post.noise_variance == pytest.approx(exact, rel=0.1)
    assert (post.predict(X) == np.array(order)[label]).mean() > 0.99


def test_the_evidence_finds_the_number_of_components():
    X = data(150, 3, 2)[0]
    found = [fit(X, J).log_evidence for J in (1, 2, 3, 4, 5)]
    assert int(np.argmax(found)) == 2


# ---- symmetries ----


@pytest.mark.parametrize("noise", [0.25, None])
@pytest.mark.parametrize("schedule", SCHEDULES[:3] + SCHEDULES[-1:], ids=repr)
def test_labels_permute(schedule, noise):
    X, mean, _ = data(80, 3, 3)
    prior, turn = prior_near(mean), np.array([2, 0, 1])
    given = {"schedule": schedule, "noise_prior": None if noise else (2.0, 0.5)}
    one = fit(X, 3, noise, prior_mean=prior, concentration=[1.0, 2.0, 3.0], **given)
    two = fit(
        X, 3, noise, prior_mean=prior[turn], concentration=np.array([1.0, 2, 3])[turn], **given
    )
    # sums over components are of another order; means are of size 1, and some near 0
    np.testing.assert_allclose(two.mean, one.mean[turn], rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(two.covariance, one.covariance[turn], rtol=1e-10, atol=1e-13)
    assert two.log_evidence == pytest.approx(one.log_evidence, abs=1e-8)


def test_two_labels_permute_to_the_bit():
    X, mean, _ = data(80, 2, 3)
    prior = prior_near(mean)
    one, two = (fit(X, 2, 0.25, prior_mean=p, prior_variance=4.0) for p in (prior, prior[::-1]))
    np.testing.assert_array_equal(two.mean, one.mean[::-1])
    np.testing.assert_array_equal(two.covariance, one.covariance[::-1])


def test_shifted_rows_are_shifted_answers():
    X, mean, _ = data(100, 3, 3)
    prior, far = prior_near(mean), np.array([1e6, -1e6, 3e5])
    one = fit_mixture(X, 3, prior_mean=prior, prior_variance=4.0)
    two = fit_mixture(X + far, 3, prior_mean=prior + far, prior_variance=4.0)
    np.testing.assert_allclose(two.mean - far, one.mean, atol=1e-7)
    assert two.log_evidence == pytest.approx(one.log_evidence, abs=1e-5)
    total = two.sites.shift.sum(axis=0) + (prior + far) / 4.0
    exact = np.linalg.solve(two.covariance, two.mean[:, :, None])[:, :, 0]
    np.testing.assert_allclose(total, exact, rtol=1e-9)


# ---- extremes ----


@pytest.mark.parametrize("noise", [0.25, None])
def test_an_outlier_does_no_harm(noise):
    X, mean, _ = data(100, 3, 3)
    X = np.concatenate([X, np.full((1, 3), 500.0)])
    post = fit(X, 3, noise, prior_mean=prior_near(mean), prior_variance=10.0)
    assert np.isfinite(post.state.belief).all()
    assert np.isfinite(post.state.sites).all()
    assert np.isfinite(post.log_evidence)


@pytest.mark.parametrize("noise", [0.25, None])
def test_many_dimensions(noise):
    X, _, label = data(100, 3, 64)
    post = fit_mixture(X, 3, noise, n_init=1)
    assert post.converged
    for j in range(3):
        (found,) = np.unique(post.predict(X[label == j]))
        mine = X[label == j].mean(axis=0)
        assert np.linalg.norm(post.mean[found] - mine) < 0.1 * np.linalg.norm(mine)


def test_rows_that_are_alike():
    post = fit_mixture(np.ones((5, 2)), 1)
    np.testing.assert_allclose(post.mean, 1.0)
    assert 0.0 < post.noise_variance < 1.0
    assert np.isfinite(fit(np.ones((1, 3)), 1).log_evidence)


@pytest.mark.parametrize("X", [1e-160, 1e150, 1e290])
def test_scales_out_of_range(X):
    rows = X * data(20, 2, 2)[0]
    try:
        post = fit(rows, 2)
    except (ValueError, FloatingPointError):
        return
    assert np.isfinite(post.mean).all()
    assert np.isfinite(post.log_evidence)


# ---- predictions ----


@pytest.mark.parametrize("noise", [0.25, None])
def test_predictions_are_integrals(noise):
    X = data(60, 2, 2, apart=1.0)[0]
    post = fit(X, 2, noise)
    new = X[:5] + 0.1
    draws = post.sample(200_000, rng=0)
    logs = np.log(draws.weights) - np.log(2 * np.pi * draws.noise_variance)[:, None]
    for k, x in enumerate(new):
        squares = ((x - draws.mean) ** 2).sum(axis=2)
        each = np.exp(logs - 0.5 * squares / draws.noise_variance[:, None])
        assert post.log_predictive(new)[k] == pytest.approx(
            np.log(each.sum(axis=1).mean()), abs=0.02
        )
        share = each.mean(axis=0) / each.mean(axis=0).sum()
        np.testing.assert_allclose(post.predict_proba(new)[k], share, atol=0.02)
    np.testing.assert_array_equal(post.predict(new), post.predict_proba(new).argmax(axis=1))


def test_draws_of_rows_have_the_moments_of_the_rows():
    X = data(400, 3, 2)[0]
    post = fit_mixture(X, 3)
    drawn, label = post.sample_x(50_000, rng=0)
    np.testing.assert_allclose(drawn.mean(axis=0), X.mean(axis=0), atol=0.05)
    np.testing.assert_allclose(np.cov(drawn.T), np.cov(X.T), atol=0.15)
    np.testing.assert_allclose(np.bincount(label) / 50_000, post.weights, atol=0.01)


def test_predictions_of_known_parameters():
    X, mean, _ = data(50, 2, 2)
    post = fit(X, 2, 0.25, prior_mean=mean, prior_variance=1e-12, weights=[0.3, 0.7])
    logs = stats.norm(mean, 0.5).logpdf(X[:, None]).sum(axis=2) + np.log([0.3, 0.7])
    np.testing.assert_allclose(post.log_predictive(X), special.logsumexp(logs, axis=1), atol=1e-6)


# ---- resuming ----


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_resumed_is_whole_to_the_bit(schedule, learns, tmp_path):
    X, mean, _ = data(40, 2, 2, apart=1.0)
    prior = prior_near(mean)
    given = {} if learns else {"noise_variance": 0.25, "weights": [0.4, 0.6]}
    count = "passes" if schedule.stores == "none" else "sweeps"
    parts = [dataclasses.replace(schedule, **{count: k}) for k in (1, 2, 3)]
    whole = fit(X, 2, prior_mean=prior, schedule=parts[2], **given)
    first = fit(X, 2, prior_mean=prior, schedule=parts[0], **given)
    first.save(tmp_path / "first.npz")
    loaded = epfast.load(tmp_path / "first.npz")
    assert repr(loaded) == repr(first)
    assert loaded.log_evidence == first.log_evidence
    for start in (first, loaded, pickle.loads(pickle.dumps(first)), copy.deepcopy(first)):
        last = fit(X, 2, schedule=parts[1], start=start)
        np.testing.assert_array_equal(last.state.belief, whole.state.belief)
        if whole.sites is None:
            assert last.sites is None
        else:
            np.testing.assert_array_equal(last.state.sites, whole.state.sites)
        assert last.n_sweeps == whole.n_sweeps == 3
        assert [i.sweep for i in last.history] == [2, 3]


def test_adf_goes_on_with_further_rows():
    X, mean, _ = data(100, 2, 2)
    given = {"prior_mean": prior_near(mean), "prior_variance": 4.0}
    adf = ADF(order="sequential")
    whole = fit(X, 2, 0.25, schedule=adf, **given)
    first = fit(X[:60], 2, 0.25, schedule=adf, **given)
    last = fit(X[60:], 2, schedule=adf, start=first)
    np.testing.assert_allclose(last.mean, whole.mean, rtol=1e-10)
    assert last.log_evidence == pytest.approx(whole.log_evidence, rel=1e-10)


def test_a_start_of_another_schedule():
    X, mean, _ = data(100, 2, 2)
    ep = fit_mixture(X, 2, 0.25, prior_mean=prior_near(mean), schedule=EP(tol=1e-10))
    aep = fit_mixture(X, 2, schedule=AEP(tol=1e-9, sweeps=500))
    again = fit_mixture(X, 2, schedule=AEP(tol=1e-9, sweeps=500), start=aep)
    assert len(again.history) <= 2
    other = fit_mixture(
        X, 2, start=fit(X, 2, 0.25, start=ep, schedule=ADF()), schedule=EP(tol=1e-10)
    )
    np.testing.assert_allclose(other.mean, ep.mean, atol=1e-7)


def test_inputs_stay_as_they_are_and_of_any_kind():
    X, mean, _ = data(40, 2, 2)
    X = np.round(X, 2)
    frozen = X.copy()
    frozen.flags.writeable = False
    one = fit_mixture(frozen, 2, 0.25, prior_mean=mean)
    for same in (X.tolist(), np.asfortranarray(X), np.repeat(X, 2, axis=0)[::2]):
        np.testing.assert_array_equal(fit_mixture(same, 2, 0.25, prior_mean=mean).mean, one.mean)
    np.testing.assert_array_equal(frozen, X)
    pandas = pytest.importorskip("pandas")
    two = fit_mixture(pandas.DataFrame(X), 2, 0.25, prior_mean=mean)
    np.testing.assert_array_equal(two.mean, one.mean)
    whole = np.rint(X * 10).astype(int)
    np.testing.assert_allclose(fit_mixture(whole, 2).mean, fit_mixture(whole * 1.0, 2).mean)
    single = fit_mixture(X.astype(np.float32), 2, 0.25, prior_mean=mean)
    np.testing.assert_allclose(single.mean, one.mean, atol=1e-6)


def test_the_seed_is_all_that_is_random():
    X = data(60, 3, 2, apart=1.0)[0]
    one, two, three = (fit(X, 3, rng=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.state.belief, two.state.belief)
    assert not np.array_equal(one.mean, three.mean)


# ---- records and words ----


def test_records_callbacks_and_words(capsys):
    X, _mean, _ = data(40, 2, 2)
    seen, done = [], []
    post = fit(
        X,
        2,
        schedule=EP(sweeps=5, tol=0.0),
        callback=lambda info, state: seen.append((info, state)) or info.sweep == 3,
        progress=done.append,
    )
    assert [info.sweep for info, _ in seen] == [1, 2, 3]
    assert sum(done) == 3 * 40
    assert not np.array_equal(seen[0][1].belief, seen[2][1].belief)  # states are kept
    assert repr(post) == "MixturePosterior(2 components, d=2, 40 rows, converged=False)"
    table = post.summary(level=0.9)
    assert list(table.columns) == ["mean", "sd", "5%", "95%"]
    np.testing.assert_allclose(np.asarray(table["mean"]), post.mean.ravel())
    assert "there is no check()" in table.attrs["notes"][0]
    assert "mode for each of their 2 orders" in str(table.attrs["notes"])
    assert post.credible_interval().shape == (2, 2, 2)
    assert post.history[-1].log_evidence == pytest.approx(post.log_evidence, abs=1e-9)


def test_a_fit_that_does_not_settle_warns():
    X = data(60, 3, 2, apart=0.5)[0]
    with pytest.warns(epfast.ConvergenceWarning, match="prior_mean"):
        post = fit_mixture(X, 3, schedule=EP(sweeps=2, tol=1e-12))
    assert not post.converged


@pytest.mark.parametrize("schedule", [EP(sweeps=3, tol=0.0), SEP(sweeps=3, tol=0.0), ADF()])
def test_ctrl_c_leaves_a_whole_state(schedule):
    X, mean, _ = data(30, 2, 2)

    def run():
        return fit(X, 2, 0.25, prior_mean=mean, prior_variance=1.0, schedule=schedule)

    total = interrupts.calls_of(run).count
    found = 0
    for at in range(0, total, max(1, total // 25)):
        try:
            interrupts.Calls(at).watch(run)
        except epfast.Interrupted as pressed:
            post = pressed.posterior
            found += 1
            assert np.isfinite(post.mean).all()
            if post.sites is not None:
                sizes = len(X) / len(post.state.sites)
                total_sites = sizes * post.state.sites.sum(axis=0)
                np.testing.assert_allclose(
                    post.state.belief, post.state.base + total_sites, rtol=1e-8, atol=1e-8
                )
        except KeyboardInterrupt:
            pass
    assert found


# ---- the door ----

X_GOOD = data(20, 2, 2)[0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"X": [[1.0, np.nan]]}, "X holds NaN"),
        ({"X": [[1.0, np.inf]]}, "X holds NaN"),
        ({"X": np.zeros((0, 2))}, "X has shape"),
        ({"X": np.zeros((2, 0))}, "X has shape"),
        ({"X": np.zeros(3)}, "X has shape"),
        ({"X": [["a", "b"]]}, "X has dtype"),
        ({"X": [[1j, 2.0]]}, "X has dtype"),
        ({"n_components": 0}, "n_components is 0"),
        ({"n_components": 2.5}, "n_components is 2.5"),
        ({"n_components": True}, "n_components is True"),
        ({"n_components": 21}, "X has 20 different rows"),
        ({"X": np.zeros((9, 2))}, "X has 1 different rows"),
        ({"noise_variance": 0.0}, "noise_variance is 0"),
        ({"noise_variance": np.nan}, "noise_variance is nan"),
        ({"noise_variance": np.eye(2)}, "integrals of many dimensions"),
        ({"noise_variance": 1.0, "noise_prior": (1.0, 1.0)}, "noise_prior is"),
        ({"noise_prior": (1.0, 0.0)}, "noise_prior has a minimum"),
        ({"noise_prior": 3.0}, "noise_prior has shape"),
        ({"prior_mean": np.zeros((2, 3))}, "prior_mean has shape"),
        ({"prior_mean": np.zeros((2, 2))}, "fixed point, which EP never leaves"),
        ({"prior_variance": -1.0}, "prior_variance has a minimum"),
        ({"prior_variance": np.ones(3)}, "prior_variance has shape"),
        ({"prior_variance": [[1.0, 2.0], [2.0, 1.0]]}, "not positive definite"),
        ({"prior_variance": [[1.0, 2.0], [0.0, 1.0]]}, "not symmetric"),
        ({"prior_variance": np.nan}, "prior_variance holds NaN"),
        ({"weights": [0.5, 0.6]}, "weights add up to 1.1"),
        ({"weights": [1.0, 0.0]}, "weights has a minimum"),
        ({"weights": [1.0]}, "weights has shape"),
        ({"weights": [0.5, 0.5], "concentration": 1.0}, "beside known weights"),
        ({"concentration": 0.0}, "concentration has a minimum"),
        ({"concentration": np.ones(3)}, "concentration has shape"),
        ({"schedule": EP}, "schedule is the class EP"),
        ({"schedule": epfast.DEP()}, "schedule is DEP"),
        ({"schedule": EP(order="parallel")}, "order is 'parallel'"),
        ({"schedule": EP(power=0.5)}, "power is 0.5"),
        ({"schedule": EP(block=3)}, "block is 3"),
        ({"rng": -1}, "rng is -1"),
        ({"start": 3}, "start is 3"),
        ({"callback": 3}, "callback is 3"),
        ({"progress": 3}, "progress is 3"),
    ],
)
def test_the_door(given, said):
    given = {"X": X_GOOD, "n_components": 2} | given
    with pytest.raises((ValueError, TypeError), match=said):
        fit_mixture(**given)


def test_a_start_must_fit():
    X, mean, _ = data(30, 2, 2)
    start = fit(X, 2, 0.25, prior_mean=mean, prior_variance=2.0)
    fit(X, 2, 0.25, prior_mean=mean, prior_variance=2.0, start=start)
    for given, said in (
        ({"prior_mean": mean + 1.0}, "prior_mean is"),
        ({"prior_variance": 3.0}, "prior_variance is"),
        ({"noise_variance": 0.3}, "noise_variance is"),
        ({"noise_prior": (1.0, 1.0)}, "noise_variance is|noise_prior is"),
        ({"weights": [0.4, 0.6]}, "weights is"),
    ):
        with pytest.raises(ValueError, match=said):
            fit(X, 2, start=start, **given)
    with pytest.raises(ValueError, match="start has 2 components"):
        fit(X, 3, start=start)
    with pytest.raises(ValueError, match="start is a fit of 30 rows"):
        fit(X[:20], 2, start=start)


def test_new_rows_are_checked():
    post = fit(X_GOOD, 2)
    for bad, said in (
        (np.zeros((3, 3)), "X has shape"),
        ([[np.nan, 1.0]], "X holds NaN"),
        ([[1e200, 1.0]], "too far off"),
    ):
        with pytest.raises(ValueError, match=said):
            post.log_predictive(bad)
    with pytest.raises(ValueError, match="size"):
        post.sample(0)


def test_files_that_contradict_themselves(tmp_path):
    post = fit(X_GOOD, 2)
    post.save(tmp_path / "post.npz")
    good = dict(np.load(tmp_path / "post.npz"))
    for name, value in (
        ("state.belief", 2.0 * good["state.belief"]),
        ("state.sites", good["state.sites"][:-1]),
        ("problem.prior_covariance", -good["problem.prior_covariance"]),
        ("problem.center", np.array([np.nan, 0.0])),
        ("problem.concentration", np.array([1.0, -1.0])),
    ):
        np.savez(tmp_path / "bad.npz", **good | {name: value})
        with pytest.raises(ValueError, match="was damaged"):
            epfast.load(tmp_path / "bad.npz")
    with pytest.raises(ValueError, match="loss"):
        epfast.load(tmp_path / "post.npz", loss="probit")


# ---- what no schedule means ----


def test_no_schedule_keeps_the_best_of_several_draws():
    X, _, _ = data(80, 3, 2)
    post = fit(X, 3)
    runs = [fit(X, 3, n_init=k) for k in (1, 2, 3, 4, 5)]
    found = [run.log_evidence for run in runs]
    assert post.log_evidence == found[-1] == max(found)
    assert found == sorted(found)
    assert post.schedule == runs[0].schedule


def test_draws_compete_on_some_of_many_rows(monkeypatch):
    X, _, _ = data(600, 3, 2)
    whole = fit(X, 3)
    monkeypatch.setattr(mixture, "FEW", 90)
    monkeypatch.setattr(mixture, "FEW_EACH", 30)
    told = []
    post = fit(X, 3, callback=lambda info, state: told.append((info.sweep, len(state.sites))))
    assert post.converged
    assert post.problem.n_rows == 600
    assert post.log_evidence == pytest.approx(whole.log_evidence, abs=1.0)
    assert fit(X, 3).log_evidence == post.log_evidence
    # one run over all rows, of EP, or of AEP and EP
    sweeps, sites = zip(*told, strict=True)
    assert sweeps.count(0) <= 2
    assert set(sites) <= {1, 600}
    assert fit(X, 3, n_init=5).log_evidence == whole.log_evidence


def test_n_init_needs_draws():
    X, mean, _ = data(30, 2, 2)
    with pytest.raises(ValueError, match="n_init is 2"):
        fit_mixture(X, 2, prior_mean=mean, n_init=2)
    with pytest.raises(ValueError, match="n_init"):
        fit_mixture(X, 2, n_init=0)
    assert fit_mixture(X, 1, n_init=3).converged


def test_a_callback_ends_all_runs():
    X, _, _ = data(30, 2, 2)
    calls = []
    post = fit(X, 2, callback=lambda info, state: calls.append(info) or True)
    assert len(calls) == len(post.history) == 1


def test_sites_beyond_memory_are_refused_with_the_figure(monkeypatch):
    monkeypatch.setattr(engine, "physical_memory", lambda: 10**5)
    X, _, _ = data(1000, 2, 3)
    with pytest.raises(ValueError, match=r"EP's sites of \(1000, 24\) numbers take .* GB.*SEP"):
        fit_mixture(X, 2)
    assert fit(X, 2, schedule=SEP(sweeps=1)).n_sweeps == 1


def test_evidence_above_that_of_predictions_is_told():
    """A site of EP with a scale that no row gave."""
    X, mean, _ = data(60, 2, 2)
    post = fit_mixture(X, 2, 0.25, prior_mean=prior_near(mean))
    bound = post.log_predictive(X).sum()
    assert post.log_evidence < bound
    state = post.state
    state.belief[-1] += 500.0
    state.sites[0, -1] += 500.0
    # damped to almost nothing, a pass leaves that in
    with pytest.warns(epfast.ConvergenceWarning, match="cannot be above"):
        wrong = fit_mixture(X, 2, start=post, schedule=EP(sweeps=1, tol=0.0, damping=1e-9))
    assert not wrong.converged
    assert "means nothing" in wrong.reason


def test_draws_for_arviz():
    """Those of sample, by the names of its fields."""
    pytest.importorskip("xarray")
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(-3.0, 1.0, (30, 2)), rng.normal(3.0, 1.0, (30, 2))])
    post = epfast.fit_mixture(X, 2)
    drawn = post.to_arviz(draws=60, rng=5)["posterior"]
    for name, values in post.sample(60, 5)._asdict().items():
        np.testing.assert_array_equal(np.asarray(drawn[name]).reshape(values.shape), values)
    assert drawn["mean"].shape == (1, 60, 2, 2)
