"""Processes of low rank, which are linear models on the rows of a factor."""

import pickle
import warnings

import numpy as np
import pytest
from scipy import linalg, special

import epfast
from epfast import EP, ConvergenceWarning, Interrupted, KernelColumns, NoisyStep, fit_gp, schedules
from epfast.gaussian.table import ENGINES
from tests.oracles.data import process, rbf

TIGHT = EP(300, 1e-11)

SCHEDULES = [
    EP(4, 0.0, order="sequential"),
    EP(4, 0.0, order="shuffled", seed=1),
    EP(4, 0.0, order="parallel", damping=0.7),
    EP(4, 0.0, power=0.8),
    epfast.ADF(),
    epfast.SEP(3, 0.0, batch=8),
    epfast.AEP(3, 0.0),
    epfast.DSEP(3, 3, 0.0, batch=8),
    epfast.DAEP(3, 3, 0.0),
    epfast.DEP(3, 2, 0.0, inner=EP(3, 0.0)),
]


@pytest.mark.parametrize(
    ("loss", "scheme"),
    [("probit", "exact"), ("logistic", "laplace"), (NoisyStep(0.1), "exact"),
     ("hinge", "variational")],
)  # fmt: skip
def test_full_rank_is_the_exact_process(loss, scheme):
    X, K, y = process(60)
    given = {"loss": loss, "scheme": scheme, "schedule": EP(2000, 1e-11, damping=0.5)}
    exact, low = fit_gp(K, y, **given), fit_gp(K, y, rank=60, **given)
    assert low.converged
    np.testing.assert_allclose(low.mean, exact.mean, atol=1e-8)
    np.testing.assert_allclose(low.variance, exact.variance, atol=1e-8)
    np.testing.assert_allclose(low.sites.precision, exact.sites.precision, rtol=1e-6, atol=1e-8)
    assert low.log_evidence == pytest.approx(exact.log_evidence, rel=1e-8)
    assert low.residual < 1e-7
    np.testing.assert_allclose(low.loo_log_predictive(), exact.loo_log_predictive(), atol=1e-7)
    Z = np.random.default_rng(5).normal(size=(9, 2))
    K_star = rbf(Z, X, variance=4.0)
    for got, want in zip(
        low.predict_latent(K_star[:, low.pivots], 4.0),
        exact.predict_latent(K_star, np.full(9, 4.0)),
        strict=True,
    ):
        np.testing.assert_allclose(got, want, atol=1e-8)
    np.testing.assert_allclose(
        low.predict_proba(K_star[:, low.pivots], 4.0), exact.predict_proba(K_star, 4.0), atol=1e-8
    )


def dense_posterior(G, sites):
    """Of w and of f = G w, by the formulas."""
    covariance = linalg.inv(np.eye(G.shape[1]) + (G.T * sites.precision) @ G)
    return covariance, covariance @ G.T @ sites.shift


@pytest.mark.parametrize("rank", [1, 12])
def test_the_degenerate_process_by_dense_algebra(rank):
    X, K, y = process(80)
    gp = fit_gp(K, y, rank=rank, schedule=TIGHT)
    G = gp.factor.G
    covariance, mean = dense_posterior(G, gp.sites)
    np.testing.assert_allclose(gp.mean, G @ mean, atol=1e-9)
    np.testing.assert_allclose(gp.variance, np.diag(G @ covariance @ G.T), atol=1e-9)
    # the evidence is that of the exact process with the kernel G G'
    same = fit_gp(G @ G.T, y, schedule=TIGHT)
    assert gp.log_evidence == pytest.approx(same.log_evidence, rel=1e-8)
    np.testing.assert_allclose(gp.mean, same.mean, atol=1e-7)
    # prediction: projection on the kernel functions of the pivots
    Z = np.random.default_rng(5).normal(size=(7, 2))
    K_star, K_pivots = rbf(Z, X[gp.pivots], variance=4.0), K[np.ix_(gp.pivots, gp.pivots)]
    prior = K_star @ linalg.solve(K_pivots, K_star.T)
    cross = K_star @ linalg.solve(K_pivots, K[gp.pivots])
    T = np.diag(gp.sites.precision)
    R = linalg.solve(np.eye(80) + T @ G @ G.T, T)
    want = np.diag(prior - cross @ R @ cross.T)
    latent_mean, degenerate = gp.predict_latent(K_star, None)
    _, with_rest = gp.predict_latent(K_star, 4.0)
    np.testing.assert_allclose(latent_mean, cross @ (gp.sites.shift - T @ gp.mean), atol=1e-8)
    np.testing.assert_allclose(degenerate, want, atol=1e-8)
    np.testing.assert_allclose(with_rest, want + 4.0 - np.diag(prior), atol=1e-8)
    p = gp.predict_proba(K_star, np.full(7, 4.0))
    np.testing.assert_allclose(p, special.ndtr(latent_mean / np.sqrt(1 + with_rest)), atol=1e-12)
    # far away the one is certain and the other knows nothing
    far = rbf(np.full((1, 2), 50.0), X[gp.pivots], variance=4.0)
    assert gp.predict_latent(far, None)[1][0] < 1e-12
    assert gp.predict_latent(far, 4.0)[1][0] == pytest.approx(4.0)


def test_all_schedules_are_tried():
    kinds = {getattr(schedules, name) for name in schedules.__all__}
    kinds -= {schedules.Batches, schedules.Schedule, schedules.SharedSites}
    legal = {kind for kind in kinds if ("full", "row", kind.stores) in ENGINES}
    assert {type(schedule) for schedule in SCHEDULES} == legal


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("given", [
    {"loss": "probit"}, {"loss": "quasi01"}, {"loss": "logistic", "scheme": "quick_laplace"},
    {"loss": "hinge", "scheme": "quadrature"},
], ids=str)  # fmt: skip
def test_it_is_the_linear_model(schedule, given):
    """Every schedule of fit_linear, on the rows of the factor."""
    _, K, y = process(40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        gp = fit_gp(K, y, rank=8, schedule=schedule, **given)
        linear = epfast.fit_linear(
            gp.factor.G, y, posterior="full", batch_size=None, prior_variance=1.0,
            schedule=schedule, **({"scheme": "exact"} | given),
        )  # fmt: skip
    np.testing.assert_array_equal(gp.weights.mean, linear.mean)
    assert gp.log_evidence == linear.log_evidence
    assert gp.weights.problem.data.X is gp.factor.G  # no copy
    assert len(gp.history) == gp.n_sweeps == len(linear.history)
    if not isinstance(schedule, epfast.ADF):
        assert np.isfinite(gp.loo_log_predictive()).all()


@pytest.mark.parametrize("order", ["sequential", "parallel"])
def test_laplace_propagation_in_chunks_ends_at_the_mode(order):
    _, K, y = process(90)
    gp = fit_gp(
        K, y, rank=20, loss="logistic", scheme="laplace", batch_size=25,
        schedule=EP(300, 1e-11, order=order, damping=0.7 if order == "parallel" else 1.0),
    )  # fmt: skip
    G, w = gp.factor.G, np.zeros(20)
    for _ in range(30):
        p = special.expit(G @ w)
        hessian = np.eye(20) + (G.T * (p * (1 - p))) @ G
        w = w + linalg.solve(hessian, G.T @ ((y + 1) / 2 - p) - w)
    np.testing.assert_allclose(gp.mean, G @ w, atol=1e-8)
    evidence = special.log_expit(y * (G @ w)).sum() - 0.5 * w @ w
    evidence -= 0.5 * np.linalg.slogdet(hessian)[1]
    assert gp.log_evidence == pytest.approx(evidence, rel=1e-9)
    assert gp.batch_size == 25
    # the scheme of such factors where none is named
    unnamed = fit_gp(K, y, rank=20, loss="logistic", batch_size=25, schedule=gp.schedule)
    np.testing.assert_array_equal(unnamed.mean, gp.mean)
    assert gp.residual < 1e-8


def test_kernels_of_rank_zero_and_one_input():
    gp = fit_gp(np.zeros((3, 3)), [1, 1, -1], rank=2)
    assert gp.rank == 0
    assert gp.log_evidence == pytest.approx(3 * np.log(0.5))
    assert gp.mean.tolist() == gp.variance.tolist() == [0.0] * 3
    mean, variance = gp.predict_latent(np.empty((2, 0)), [1.0, 2.0])
    assert mean.tolist() == [0.0, 0.0]
    assert variance.tolist() == [1.0, 2.0]
    one = fit_gp([[2.0]], [1], rank=1)
    assert one.mean[0] == pytest.approx(2 / np.sqrt(3) * np.sqrt(2 / np.pi), rel=1e-9)
    assert one.predict_proba(np.empty((0, 1)), np.empty(0)).shape == (0,)


def test_samples_have_the_moments():
    _, K, y = process(20)
    gp = fit_gp(K, y, rank=6)
    draws = gp.sample(40_000, 5)
    assert draws.shape == (40_000, 20)
    assert (abs(draws.mean(axis=0) - gp.mean) < 5 * np.sqrt(gp.variance) / 200).all()
    np.testing.assert_allclose(draws.var(axis=0), gp.variance, rtol=0.1)


def test_warm_start_and_resume():
    _, K, y = process(60)
    schedule = EP(3, 0.0, order="shuffled", seed=2)
    whole = fit_gp(K, y, rank=15, schedule=EP(6, 0.0, order="shuffled", seed=2))
    half = fit_gp(K, y, rank=15, schedule=schedule)
    again = fit_gp(K, y, rank=15, schedule=schedule, start=half)
    assert again.n_sweeps == 6
    np.testing.assert_allclose(again.mean, whole.mean, atol=1e-10)
    more = fit_gp(1.1 * K, y, rank=20, schedule=TIGHT, start=half)  # another factor
    assert more.rank == 20
    assert more.log_evidence == pytest.approx(
        fit_gp(1.1 * K, y, rank=20, schedule=TIGHT).log_evidence, rel=1e-10
    )
    shared = fit_gp(K, y, rank=15, schedule=epfast.AEP(2, 0.0))
    assert fit_gp(K, y, rank=15, schedule=epfast.AEP(2, 0.0), start=shared).n_sweeps == 4
    with pytest.raises(ValueError, match="start"):
        fit_gp(K, y, rank=20, schedule=epfast.AEP(), start=shared)


def test_callbacks_and_interruption():
    _, K, y = process(30)
    gp = fit_gp(K, y, rank=5, callback=lambda info, state: True)
    assert gp.n_sweeps == 1

    def stop(info, state):
        raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        fit_gp(K, y, rank=5, callback=stop)
    assert caught.value.posterior.rank == 5
    assert fit_gp(K, y, rank=5, start=caught.value.posterior).converged


@pytest.mark.parametrize("given", [
    {}, {"loss": NoisyStep(0.2)}, {"schedule": epfast.DAEP(2, 3, 0.0)},
    {"loss": "logistic", "scheme": "laplace", "batch_size": 10},
], ids=str)  # fmt: skip
def test_save_and_load(given, tmp_path):
    _, K, y = process(30)
    gp = fit_gp(K, y, rank=9, **({"schedule": EP(100, 1e-8, damping=0.7)} | given))
    gp.save(tmp_path / "gp.npz")
    loaded = epfast.load(tmp_path / "gp.npz")
    for again in (loaded, pickle.loads(pickle.dumps(gp))):
        assert type(again) is type(gp)
        assert again.loss == gp.loss
        assert again.log_evidence == gp.log_evidence
        assert again.history == gp.history
        for name in ("mean", "variance", "y", "pivots"):
            np.testing.assert_array_equal(getattr(again, name), getattr(gp, name))
        np.testing.assert_array_equal(again.loo_log_predictive(), gp.loo_log_predictive())
        K_star = K[:4, gp.pivots]
        np.testing.assert_array_equal(again.predict_proba(K_star, 4.0), gp.predict_proba(K_star, 4))
    assert loaded.scheme == gp.scheme
    assert repr(loaded.schedule) == repr(gp.schedule)  # with arrays in it, equal to itself alone
    assert loaded.residual == gp.residual
    arrays = dict(np.load(tmp_path / "gp.npz"))
    arrays["factor.pivots"] = arrays["factor.pivots"][:-1]
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(ValueError, match="not a posterior"):
        epfast.load(tmp_path / "bad.npz")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 0}, "rank"),
        ({"rank": 2.0}, "rank"),
        ({"rank_tol": -1.0}, "rank_tol"),
        ({"rank_tol": np.nan}, "rank_tol"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2, "scheme": "exact"}, "scheme"),
        ({"jitter": 0.1}, "jitter"),
        ({"overwrite_K": True}, "overwrite_K"),
        ({"y": [1, 2]}, "y"),
        ({"y": [1, -1, 1]}, "y"),
        ({"loss": "nope"}, "loss"),
        ({"scheme": "nope"}, "scheme"),
        ({"scheme": "laplace", "loss": "noisy_step"}, "jump"),
        ({"schedule": 3}, "schedule"),
        ({"beta": 0.0}, "beta"),
        ({"start": 3}, "start"),
        ({"callback": 3}, "callback"),
        ({"progress": 3}, "progress"),
        ({"rank": None, "rank_tol": 0.1}, "rank_tol"),
        ({"rank": None, "batch_size": 3}, "batch_size"),
        ({"rank": None, "K": KernelColumns([1.0, 1.0], lambda i: np.eye(2)[i])}, "KernelColumns"),
    ],
)
def test_bad_arguments(arguments, message):
    given = {"K": np.eye(2), "y": [1, -1], "rank": 2} | arguments
    with pytest.raises((ValueError, TypeError), match=message):
        fit_gp(**given)


def test_bad_starts_and_predictions():
    gp = fit_gp(np.eye(3), [1, -1, 1], rank=2)
    exact = fit_gp(np.eye(3), [1, -1, 1])
    for arguments in (
        {"K": np.eye(3), "start": exact, "rank": 2},
        {"K": np.eye(3), "start": gp},
        {"K": np.eye(3), "start": gp, "rank": 2, "schedule": epfast.ADF()},
    ):
        with pytest.raises((ValueError, TypeError), match="start"):
            fit_gp(y=[1, -1, 1], **arguments)
    with pytest.raises(ValueError, match="start"):
        fit_gp(np.eye(2), [1, -1], rank=2, start=gp)
    for K_star, diagonal in (
        (np.ones((1, 3)), [1.0]),
        (np.ones(2), [1.0]),
        ([[1.0, np.nan]], [1.0]),
        ([[1.0, 0.0]], [1.0, 2.0]),
        ([[1.0, 0.0]], [-1.0]),
    ):
        with pytest.raises(ValueError, match=r"K_star|k_star_diag"):
            gp.predict_latent(K_star, diagonal)


def test_memory_is_that_of_the_factor():
    """Beside G, n r numbers, only what does not grow with n r."""
    tracemalloc = pytest.importorskip("tracemalloc")
    n, r = 20_000, 50
    x = np.random.default_rng(0).normal(size=(n, 3))
    kernel = KernelColumns.rbf(x, 1.0)
    y = np.where(x[:, 0] > 0, 1.0, -1.0)
    tracemalloc.start()
    gp = fit_gp(kernel, y, rank=r, schedule=EP(2, 0.0))
    assert gp.variance.shape == (n,)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # two sets of 32 columns, chunks of rows, and vectors of n numbers
    assert peak < 8 * n * (r + 64 + 30) + 2**23


def test_predictions_that_overflow_name_their_argument():
    X = np.random.default_rng(0).normal(size=(20, 2))
    gp = fit_gp(rbf(X), np.where(X[:, 0] > 0, 1, -1), rank=3)
    for joint in (False, True):
        with pytest.raises(ValueError, match="K_star overflows"):
            gp.predict_latent(np.full((2, 3), 1e300), joint=joint)


def test_the_truncation_error_is_told():
    """Half of the sum of precision times what the factor leaves; it covers the difference."""
    _, K, y = process(150)
    exact = fit_gp(K, y, schedule=TIGHT)
    for rank in (10, 20, 40):
        gp = fit_gp(K, y, rank=rank, schedule=TIGHT)
        left = np.diag(K - gp.factor.G @ gp.factor.G.T)
        assert gp.truncation_error == pytest.approx(0.5 * gp.sites.precision @ left, rel=1e-6)
        assert abs(gp.log_evidence - exact.log_evidence) <= gp.truncation_error
        (line,) = [one for one in gp.summary().attrs["notes"] if "rank" in one]
        assert line.startswith(f"rank {rank} of 150: by an estimate within ")
    assert fit_gp(K, y, rank=10, schedule=epfast.AEP(2, 0.0)).truncation_error is None


def test_a_rank_that_leaves_much_is_told():
    _, K, y = process(60)
    with pytest.warns(
        epfast.DataWarning, match=r"rank=3 leaves an estimated .* larger rank"
    ) as seen:
        gp = fit_gp(K, y, rank=3)
    assert seen[0].filename == __file__
    assert gp.truncation_error > 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit_gp(K, y, rank=60)
