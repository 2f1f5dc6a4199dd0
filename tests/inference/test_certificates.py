"""check: against integrals by force, fits that are wrong on purpose, and real sets."""

import math
import sys

import numpy as np
import pytest
from mpmath import mp
from scipy import special, stats

import epfast
from bench.certificates.check import rows_of
from bench.lib.datasets import SMALL
from epfast import losses
from epfast.gaussian.checking import LinearProposal
from epfast.inference import certificates, importance
from tests import batteries
from tests.oracles.data import classes, process, rbf
from tests.oracles.responses import example

#: losses that are not convex have sites that are refused
pytestmark = [
    pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:::arviz"),
]

VALUED = [loss for loss in (kind() for kind in losses.NAMED.values()) if "values" in loss.gives]
#: what the failed fits of an earlier default were given
OLD = {
    "prior_variance": 25,
    "batch_size": 10,
    "posterior": "factorized",
    "scheme": "variational",
}


def by_force(X, y, loss, mean, precision, weights=None, half=8.0, points=801):
    """log Z, mean and sd of the exact posterior of one or two weights, on a grid."""
    d = X.shape[1]
    points = points if d == 1 else 401
    y = loss.responses("y", y, len(X))
    w = np.ones(len(X)) if weights is None else weights
    center, reach = np.asarray(mean, dtype=float), np.full(d, half)
    for _ in range(3):  # closer to the mass each time
        sides = [np.linspace(c - r, c + r, points) for c, r in zip(center, reach, strict=True)]
        grid = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, d)
        log_f = -sum(
            w[i] * loss.values(grid @ X[i], np.repeat(y[i : i + 1], len(grid), axis=0))
            for i in range(len(X))
        )
        away = grid - mean
        log_f = log_f - 0.5 * np.einsum("ki,ij,kj->k", away, precision, away)
        log_f += 0.5 * np.linalg.slogdet(precision)[1] - 0.5 * d * np.log(2 * np.pi)
        top = log_f.max()
        f = np.exp(log_f - top)
        center = f @ grid / f.sum()
        sd = np.sqrt(f @ (grid - center) ** 2 / f.sum())
        cell = np.prod([side[1] - side[0] for side in sides])
        reach = np.minimum(9.0 * sd, reach)
    return top + np.log(f.sum() * cell), center, sd


def agrees(check, truth, floor=2e-3):
    """Whether a check finds the truth within four of its standard errors."""
    log_z, mean, sd = truth
    assert abs(check.log_evidence - log_z) < 4 * check.log_evidence_se + floor
    assert (np.abs(check.mean - mean) < 4 * check.mean_se + floor * sd).all()
    np.testing.assert_allclose(check.sd, sd, rtol=0.15)


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("loss", VALUED, ids=str)
def test_integrals_by_force(loss, d):
    X, y = np.random.default_rng(7).normal(size=(12, d)), example(loss, 12)
    post = epfast.fit_linear(X, y, loss=loss)
    check = post.check(4000)
    agrees(check, by_force(X, y, post.loss, np.zeros(d), np.eye(d)))
    assert check.log_evidence_ep == post.log_evidence


@pytest.mark.parametrize(
    "given",
    [
        {"beta": 2.5},
        {"prior_mean": [1.0, -0.5]},
        {"prior_variance": [4.0, 0.3]},
        {"prior_precision": [[2.0, 0.9], [0.9, 1.0]], "prior_mean": [0.3, 0.0]},
        {"weights": np.linspace(0.0, 3.0, 14)},
        {"posterior": "factorized"},
        {"schedule": epfast.SEP()},
        {"schedule": epfast.ADF()},
        {"batch_size": 4, "scheme": "laplace"},
    ],
    ids=lambda given: "-".join(given),
)
def test_integrals_by_force_of_what_a_fit_takes(given):
    X, y = classes(14, 2, seed=3)
    post = epfast.fit_linear(X, y, **given)
    precision = np.linalg.inv(np.diag(np.broadcast_to(given.get("prior_variance", 1.0), 2)))
    precision = np.asarray(given.get("prior_precision", precision), dtype=float)
    mean = np.asarray(given.get("prior_mean", np.zeros(2)))
    truth = by_force(X, y, post.loss, mean, precision, given.get("weights"))
    agrees(post.check(4000), truth)


@pytest.mark.parametrize("loss", ["probit", "logistic", "hinge", "noisy_step", "poisson"])
def test_processes_by_force(loss):
    loss = losses.NAMED[loss]()
    K = rbf(np.array([[0.0], [0.8]]), variance=2.0)
    y = np.array([2.0, 0.0]) if not loss.by_margin else np.array([1.0, -1.0])
    post = epfast.fit_gp(K, y, loss=loss)
    agrees(post.check(4000), by_force(np.eye(2), y, loss, np.zeros(2), np.linalg.inv(K)))


@pytest.mark.parametrize("rank", [None, 1])
def test_a_singular_kernel(rank):
    y = np.array([1.0, 1.0, -1.0, 1.0])
    post = epfast.fit_gp(np.full((4, 4), 3.0), y, loss="probit", rank=rank)
    check = post.check(4000)
    truth = by_force(np.ones((4, 1)), y, post.loss, np.zeros(1), np.eye(1) / 3.0)
    assert abs(check.log_evidence - truth[0]) < 4 * check.log_evidence_se + 2e-3
    np.testing.assert_allclose(check.mean, np.full(4, truth[1][0]), atol=0.01)
    np.testing.assert_allclose(check.sd, np.full(4, truth[2][0]), rtol=0.05)
    assert check.verdict == "good"


def test_low_rank_says_what_the_linear_model_says():
    _, K, y = process(60)
    post = epfast.fit_gp(K, y, loss="probit", rank=5)
    own = post.check(2000)
    agrees(own, (post.weights.check(4000).log_evidence, own.mean, own.sd), floor=0.01)
    G = post.factor.G
    exact = post.weights.check(4000).mean
    assert (np.abs(own.mean - G @ exact) < 5 * own.mean_se + 0.02 * own.sd).all()


def test_standard_errors_are_honest():
    X, y = classes(10, 1, seed=5)
    post = epfast.fit_linear(X, y, loss="probit", prior_variance=25.0)
    log_z, mean, sd = by_force(X, y, post.loss, np.zeros(1), np.eye(1) / 25.0)
    checks = [post.check(400, rng=seed) for seed in range(200)]
    for found, truth, error, most in (
        ([c.mean[0] for c in checks], mean[0], [c.mean_se[0] for c in checks], 5),
        ([c.log_evidence for c in checks], log_z, [c.log_evidence_se for c in checks], 5),
        # fourth moments of weights have heavy tails
        ([c.sd[0] for c in checks], sd[0], [c.sd[0] * c.sd_factor_se for c in checks], 10),
    ):
        gap = np.abs(np.array(found) - truth) / np.array(error)
        assert np.mean(gap < 2) > 0.9
        assert gap.max() < most


@batteries.battery(batteries.cases())
def test_whatever_is_legal_is_checked(case):
    post = batteries.fit(case)
    check = post.check(200)
    assert check.verdict in ("good", "usable", "uncertain", "do not use")
    assert check.log_evidence_ep == post.log_evidence
    assert check.mean.shape == check.mean_se.shape == check.sd.shape == post.mean.shape
    known = np.isfinite(check.mean)
    assert known.all() or not known.any()
    if check.verdict in ("good", "usable"):
        assert known.all()
        assert (check.mean_se >= 0.0).all()
    assert str(check).startswith(f"{check.verdict}: ")


def moved(post, shift=0.0, factor=1.0):
    """The same posterior with its mean and sds changed on purpose, but not its log evidence."""
    precision = post.precision / factor**2
    mean = post.mean + shift * np.sqrt(post.variance)
    state = post.state._replace(precision=precision, shift=precision @ mean)
    spoilt = epfast.FullPosterior(state, post.problem, True, post.history)
    state = state._replace(log_scale=state.log_scale + post.log_evidence - spoilt.log_evidence)
    return epfast.FullPosterior(state, post.problem, True, post.history)


@pytest.mark.parametrize(
    ("shift", "factor", "verdict"),
    [
        (0.0, 1.0, "good"),
        (0.1, 1.0, "good"),
        (0.35, 1.0, "usable"),
        (1.0, 1.0, "do not use"),
        (-3.0, 1.0, "do not use"),
        (100.0, 1.0, "do not use"),
        (0.0, 1.35, "usable"),
        (0.0, 2.0, "do not use"),
        (0.0, 0.4, "do not use"),
        (0.0, 30.0, "do not use"),
    ],
)
def test_verdicts_on_posteriors_spoilt_by_hand(shift, factor, verdict):
    X, y = classes(150, 4, seed=1)
    spoilt = moved(epfast.fit_linear(X, y), shift, factor)
    check = spoilt.check(2000)
    assert check.verdict == verdict, str(check)
    if check.verdict != "good" and shift:
        assert check.shift == pytest.approx(abs(shift), abs=0.15)


def test_log_evidence_off_is_said():
    X, y = classes(150, 4, seed=1)
    post = epfast.fit_linear(X, y)
    state = post.state._replace(log_scale=post.state.log_scale - 5.0)
    check = epfast.FullPosterior(state, post.problem, True, post.history).check(1000)
    assert check.verdict == "usable"
    assert "log evidence is off by 5" in check.reason


def test_mean_and_log_evidence_together():
    X, y = classes(150, 4, seed=1)
    spoilt = moved(epfast.fit_linear(X, y), 0.4)
    assert spoilt.check(2000).verdict == "usable"
    state = spoilt.state
    for change, verdict in ((-3.0, "usable"), (3.0, "do not use")):
        state = spoilt.state._replace(log_scale=spoilt.state.log_scale + change)
        post = epfast.FullPosterior(state, spoilt.problem, True, spoilt.history)
        assert post.check(2000).verdict == verdict


def test_mean_field_of_correlated_columns():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 1)) + 0.1 * rng.normal(size=(200, 6))
    y = np.where(X[:, 0] + rng.normal(size=200) > 0, 1.0, -1.0)
    check = epfast.fit_linear(X, y, posterior="factorized").check(1000)
    assert check.verdict == "do not use"
    assert "too small" in check.reason
    assert check.repaired
    assert epfast.fit_linear(X, y).check(1000).verdict == "good"


@pytest.mark.parametrize(
    ("loss", "n", "d", "posterior"), [("logistic", 60, 3, "factorized"), ("probit", 200, 8, "full")]
)
def test_draws_that_say_enough_are_not_repaired(loss, n, d, posterior):
    """Not even where more draws of a better Gaussian would count."""
    X, y = classes(n, d, seed=3)
    post = epfast.fit_linear(X, y, loss=loss, posterior=posterior)
    check = post.check(2000)
    assert check.effective_draws > 0.4 * 2000
    assert not check.repaired
    assert check.effective_draws_repaired is None


def test_too_few_draws_of_a_right_fit_are_no_evidence_against_it():
    X, y = classes(100, 200, seed=2)
    check = epfast.fit_linear(X, y, prior_variance=25.0).check(200)
    assert check.effective_draws < 20
    assert check.verdict == "uncertain"
    assert np.isnan(check.mean).all()
    assert "cannot tell" in str(check)
    assert "the mean of the closest Gaussian is 0." in str(check)
    assert "sampled none" in str(check)


def test_the_closest_gaussian_of_counts_under_a_wide_prior():
    """From the prior on, where the bound is -1e30, none was found, and a right fit was accused."""
    rng = np.random.default_rng(58)
    X, weights = rng.normal(size=(55, 50)), rng.normal(size=50) / np.sqrt(50.0)
    y = rng.poisson(np.exp(np.clip(2.0 * X @ weights, -4.0, 3.0)))
    post = epfast.fit_linear(X, y, loss="poisson", prior_variance=1.0)
    check = post.check(500)
    assert check.verdict == "uncertain"
    assert "the mean of the closest Gaussian is 0.0" in check.reason
    # where none is found nothing is said by it
    post = epfast.fit_linear(X, y, loss="poisson", prior_variance=400.0)
    assert post.check(500).verdict != "do not use"


def test_khat_alone_decides_nothing(monkeypatch):
    X, y = classes(150, 3)
    post = epfast.fit_linear(X, y)
    smoothed = importance.smoothed
    monkeypatch.setattr(importance, "smoothed", lambda lw: (smoothed(lw)[0], 0.95))
    assert post.check().verdict == "good"
    assert moved(post, 1.0).check().verdict == "do not use"


def test_arviz_is_not_needed(monkeypatch):
    """The check is the same whether ArviZ is there or not."""
    X, y = classes(150, 3)
    post = epfast.fit_linear(X, y)
    with_it = str(post.check())
    for name in ("arviz", "arviz_stats", "arviz_stats.base"):
        monkeypatch.setitem(sys.modules, name, None)
    assert str(post.check()) == with_it
    assert "k-hat -0." in with_it


def test_smoothing_keeps_the_scale():
    log_weights = np.random.default_rng(0).normal(size=2000) + 1000.0
    smooth, khat = importance.smoothed(log_weights)
    body = log_weights < np.quantile(log_weights, 0.8)
    np.testing.assert_array_equal(smooth[body], log_weights[body])
    assert 0.0 < khat < 1.0
    raw = np.log(np.mean(np.exp(log_weights - 1000.0)))
    assert np.log(np.mean(np.exp(smooth - 1000.0))) == pytest.approx(raw, abs=0.02)


def pareto_weights(k, n, seed=0):
    """Logs of draws of the generalised Pareto distribution of shape k, from its quantiles."""
    beyond = np.random.default_rng(seed).exponential(size=n)
    return np.log(np.expm1(k * beyond) / k if k else beyond)


def plain_khat(log_weights):
    """k-hat term by term with mpmath, as Zhang and Stephens (2009) and Vehtari et al. print it."""
    w = sorted(mp.exp(mp.mpf(float(one))) for one in log_weights)
    size = math.ceil(min(len(w) / 5, 3 * math.sqrt(len(w))))
    x = [one - w[-size - 1] for one in w[-size:]]
    n, m = size, 30 + math.floor(math.sqrt(size))
    grid = [
        1 / x[-1] + (1 - mp.sqrt(m / (j - mp.mpf("0.5")))) / (3 * x[math.floor(n / 4 + 0.5) - 1])
        for j in range(1, m + 1)
    ]
    shape = [mp.fsum(mp.log(1 - theta * one) for one in x) / n for theta in grid]
    profile = [n * (mp.log(-b / k) - k - 1) for b, k in zip(grid, shape, strict=True)]
    share = [1 / mp.fsum(mp.exp(other - own) for other in profile) for own in profile]
    theta = mp.fsum(b * one for b, one in zip(grid, share, strict=True))
    k = mp.fsum(mp.log(1 - theta * one) for one in x) / n
    return float((n * k + 10 * mp.mpf("0.5")) / (n + 10))


@pytest.mark.parametrize(("k", "n"), [(-0.5, 100), (0.0, 200), (0.7, 100), (1.2, 150)])
def test_khat_is_the_printed_formula(k, n):
    log_weights = pareto_weights(k, n) + 700.0
    assert importance.smoothed(log_weights)[1] == pytest.approx(plain_khat(log_weights), rel=1e-9)


@pytest.mark.parametrize("n", [100, 1000, 4000])
def test_smoothing_is_that_of_arviz(n):
    """The older ArviZ rounds the size of the tail up, as here; the newer one rounds it down."""
    arviz = pytest.importorskip("arviz")
    if not hasattr(arviz, "psislw"):
        pytest.skip("ArviZ 1.0 has no psislw")
    for k in (-0.5, 0.0, 0.4, 1.2):
        log_weights = pareto_weights(k, n, seed=n) - 300.0
        smooth, khat = importance.smoothed(log_weights)
        theirs, their_khat = arviz.psislw(log_weights.copy())
        assert khat == pytest.approx(float(their_khat), rel=1e-8)
        np.testing.assert_allclose(smooth - special.logsumexp(smooth), theirs, rtol=1e-8)


@pytest.mark.parametrize("n", [100, 10_000])
def test_smoothing_is_that_of_arviz_stats(n):
    """With n at which both have tails of the same size."""
    array_stats = pytest.importorskip("arviz_stats.base").array_stats
    for k in (-0.5, 0.0, 0.4, 1.2):
        log_weights = pareto_weights(k, n, seed=n)
        smooth, khat = importance.smoothed(log_weights)
        theirs, their_khat = array_stats.psislw(-log_weights)
        assert khat == pytest.approx(float(their_khat), rel=1e-8)
        np.testing.assert_allclose(smooth - special.logsumexp(smooth), theirs, rtol=1e-8)


@pytest.mark.parametrize("k", [-0.5, -0.2, 0.0, 0.3, 0.7, 1.0, 1.2])
def test_khat_of_pareto_draws_is_their_shape(k):
    """The tail of such draws has the same k, here drawn to 0.5 by 10 of its M + 10 numbers.

    Its standard error is (1 + k) / sqrt(M) (Hosking and Wallis 1987), M = 3 sqrt(n).
    """
    n = 10_000
    found = [importance.smoothed(pareto_weights(k, n, seed))[1] for seed in range(20)]
    error = (1.0 + max(k, 0.0)) / np.sqrt(300 * len(found))
    assert np.mean(found) == pytest.approx((300 * k + 5.0) / 310, abs=4.0 * error + 0.01)


def test_tails_without_a_shape():
    """Weights that are all alike, or whose tail is, have the lightest tail and stay as they are."""
    rng = np.random.default_rng(0)
    flat_tail = np.concatenate([rng.normal(size=900), np.full(100, 4.0)])
    for log_weights, khat in (
        (np.full(1000, -5.0), -np.inf),
        (1e-12 * rng.normal(size=1000), -np.inf),
        (flat_tail, -np.inf),
        (np.where(np.arange(1000) < 4, 0.0, -np.inf), np.inf),  # four draws have all the weight
        (np.concatenate([[0.0], np.full(999, -800.0)]), np.inf),
    ):
        smooth, found = importance.smoothed(log_weights)
        assert found == khat
        np.testing.assert_array_equal(smooth, log_weights)


def test_draws_without_weight_are_below_all_tails():
    """Zeros of weights change nothing but the number of draws, and stay zeros."""
    some = pareto_weights(0.5, 3000)
    none = np.full(1000, -np.inf)
    smooth, khat = importance.smoothed(np.concatenate([none, some]))
    tiny, khat_tiny = importance.smoothed(np.concatenate([none.clip(-500.0), some]))
    assert khat == khat_tiny
    assert np.isneginf(smooth[:1000]).all()
    np.testing.assert_array_equal(smooth[1000:], tiny[1000:])
    # weights over thousands of nats have the heaviest tail there is, and no overflow
    assert importance.smoothed(-1e4 * np.random.default_rng(0).random(1000))[1] > 10.0


@pytest.mark.parametrize(("draws", "most"), [(500, 1.0 - 1.0 / np.log10(500.0)), (4000, 0.7)])
def test_fewer_draws_need_a_lighter_tail(monkeypatch, draws, most):
    """Below min(1 - 1 / log10(draws), 0.7), where few of them count (Vehtari et al. 2024)."""
    X, y = classes(150, 3)
    post = epfast.fit_linear(X, y)
    monkeypatch.setattr(certificates, "ENOUGH", 0.0)
    # a fit that is off by 1.5 sd, judged by its own draws alone
    monkeypatch.setattr(LinearProposal, "better", lambda self: None)
    far = moved(post, 0.3)
    for khat, told in ((most + 0.01, False), (most - 0.01, True)):
        monkeypatch.setattr(importance, "smoothed", lambda lw, khat=khat: (lw, khat))
        monkeypatch.setattr(importance.ImportanceWeights, "effective", 0.3 * draws)
        assert (far.check(draws).verdict != "uncertain") == told


def test_weights_all_alike_leave_next_to_no_error():
    """Where the posterior is exact the check is, but for smoothing, however few its draws."""
    X, y = np.zeros((3, 2)), np.array([1.0, -1.0, 1.0])
    check = epfast.fit_linear(X, y).check(100)
    np.testing.assert_allclose(check.mean, 0.0, atol=1e-3)
    assert check.mean_se.max() < 1e-3
    assert check.log_evidence == pytest.approx(3 * np.log(0.5), abs=1e-3)
    assert check.log_evidence_se < 1e-3
    assert check.sd == pytest.approx([1.0, 1.0], abs=1e-3)
    assert check.verdict == "good"


def test_same_seed_same_check():
    X, y = classes(50, 3)
    post = epfast.fit_linear(X, y)
    first, again, other = post.check(301), post.check(301), post.check(301, rng=1)
    np.testing.assert_array_equal(first.mean, again.mean)
    assert first.draws == 302
    assert (first.mean != other.mean).all()


def test_the_density_of_draws_is_scipys():
    z = np.random.default_rng(0).normal(size=(5, 3))
    got = importance.Sampler(100, 0, 7.0).log_density((z**2).sum(axis=1), 3)
    seven = stats.multivariate_t(np.zeros(3), np.eye(3), df=7.0)
    four = stats.multivariate_t(np.zeros(3), 4.0 * np.eye(3), df=4.0)
    drawn = np.log(0.8 * seven.pdf(z) + 0.2 * four.pdf(z))
    height = stats.multivariate_normal(np.zeros(3)).logpdf(np.zeros(3))
    np.testing.assert_allclose(got, drawn - height, rtol=1e-12)


def test_blocks_do_not_change_what_the_draws_are(monkeypatch):
    X, y = classes(80, 3)
    post = epfast.fit_linear(X, y)
    whole = post.check(400)
    monkeypatch.setattr(importance, "BLOCK", 64)
    blocks = post.with_rows(X, y).check(400)
    np.testing.assert_allclose(blocks.log_evidence, whole.log_evidence, rtol=1e-12)
    np.testing.assert_allclose(blocks.shifts, whole.shifts, rtol=1e-9, atol=1e-12)


def test_unknown_rows(tmp_path):
    X, y = classes(60, 3)
    post = epfast.fit_linear(X, y)
    post.save(tmp_path / "post.npz")
    loaded = epfast.load(tmp_path / "post.npz")
    with pytest.raises(ValueError, match=r"does not know its rows; allowed: post\.with_rows"):
        loaded.check()
    assert loaded.with_rows(X, y).check().mean == pytest.approx(post.check().mean)


def test_an_impossible_log_evidence_is_enough():
    X, y = classes(60, 3)
    post = epfast.fit_linear(X, y)
    drawn = LinearProposal(post)
    assert certificates.check(drawn, post.log_evidence, 200, 0, bound=0.0).verdict == "good"
    check = certificates.check(drawn, 3.0, 200, 0, bound=1e-6)
    assert check.verdict == "do not use"
    assert "cannot be above 0" in check.reason


def test_adf_that_was_given_more_rows():
    X, y = classes(3000, 3)
    first = epfast.fit_linear(X[:2000], y[:2000], schedule=epfast.ADF())
    assert first.check().verdict == "good"
    assert first.partial_fit(X[2000:], y[2000:]).check().verdict in ("good", "usable")


def test_interrupts_come_through():
    calls = []

    def value(m):
        calls.append(len(m))
        if len(calls) > 3 and checking:
            raise KeyboardInterrupt
        return np.logaddexp(0.0, -m)

    checking = False
    X, y = classes(60, 3)
    post = epfast.fit_linear(X, y, loss=value)
    calls.clear()
    checking = True
    with pytest.raises(KeyboardInterrupt):
        post.check(100_000)
    assert len(calls) < 10


def test_refusals():
    X, y = classes(60, 3)
    post = epfast.fit_linear(X, y)
    with pytest.raises(ValueError, match="draws is 2147483648; allowed"):
        post.check(draws=2**31)
    with pytest.raises(ValueError, match="draws is 10; allowed: an integer"):
        post.check(10)
    with pytest.raises(ValueError, match="rng is -1"):
        post.check(rng=-1)
    further = epfast.fit_linear(
        X, y, schedule=epfast.ADF(), start=epfast.fit_linear(X, y, schedule=epfast.ADF())
    )
    with pytest.raises(ValueError, match="went on from another one, whose rows it does not know"):
        further.check()


def test_a_site_without_values_is_refused():
    def moments(m, v):
        z = m / np.sqrt(1.0 + v)
        ratio = np.exp(stats.norm.logpdf(z) - stats.norm.logcdf(z)) / np.sqrt(1.0 + v)
        return stats.norm.logcdf(z), ratio, -ratio * (z / np.sqrt(1.0 + v) + ratio)

    X, y = classes(30, 2)
    post = epfast.fit_linear(X, y, loss=epfast.CustomSite(moments))
    with pytest.raises(ValueError, match="CustomSite, which gives no values"):
        post.check()


def test_words():
    assert [certificates.short(x) for x in (0.004, 0.36, 1.5, 812.3, -0.14, float("nan"))] == [
        *("0.004", "0.36", "1.5", "812", "-0.14", "nan")
    ]
    X, y = classes(60, 3)
    text = str(epfast.fit_linear(X, y).check())
    assert text.startswith("good: EP's mean is within 0.0")
    assert "effective draws of 1,000" in text


# ---- real sets ----


@pytest.mark.full
@pytest.mark.parametrize("name", SMALL)
def test_right_fits_are_good(name, data_folder):
    check = epfast.fit_linear(*rows_of(name)).check(4000)
    assert check.verdict == "good", str(check)


@pytest.mark.full
@pytest.mark.parametrize(
    "name", ["ionosphere", "sonar", "wdbc", "fertility", "crabs", "spambase", "adult2000"]
)
def test_failed_fits_are_not_to_be_used(name, data_folder):
    check = epfast.fit_linear(*rows_of(name), **OLD).check()
    assert check.verdict == "do not use", str(check)
