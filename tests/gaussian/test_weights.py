"""Weights of observations: copies, powers, what is refused."""

import numpy as np
import pytest

import epfast
from epfast import EP, DoubleLoop, fit_gp, fit_linear
from tests.oracles.data import process

X, K, Y = process(40)
COUNTS = np.random.default_rng(0).integers(0, 4, 40).astype(float)
WHICH = np.repeat(np.arange(40), COUNTS.astype(int))
TIGHT = EP(2000, 1e-12)


@pytest.mark.parametrize("loss", ["probit", "logistic", "hinge"])
@pytest.mark.parametrize("power", [1.0, 0.6])
@pytest.mark.parametrize("order", ["auto", "parallel"])
def test_weights_are_copies(loss, power, order):
    schedule = EP(2000, 1e-12, power=power, order=order)
    post = fit_gp(K, Y, loss=loss, weights=COUNTS, schedule=schedule)
    copied = fit_gp(K[np.ix_(WHICH, WHICH)], Y[WHICH], loss=loss, schedule=schedule)
    assert post.log_evidence == pytest.approx(copied.log_evidence, rel=1e-9)
    np.testing.assert_allclose(post.mean[WHICH], copied.mean, rtol=0, atol=1e-8)
    np.testing.assert_allclose(post.variance[WHICH], copied.variance, rtol=0, atol=1e-8)
    np.testing.assert_allclose(
        post.loo_log_predictive()[WHICH], copied.loo_log_predictive(), rtol=0, atol=1e-7
    )
    assert post.residual < 1e-7
    one = fit_gp(K, Y, loss=loss, weights=COUNTS, schedule=EP(1, 0.0, power=power))
    assert one.residual > 1e-3


@pytest.mark.parametrize("loss", ["probit", "logistic"])
def test_small_weights_are_powers(loss):
    """One weight for all is beta."""
    post = fit_gp(K, Y, loss=loss, weights=np.full(40, 0.3), schedule=TIGHT)
    hot = fit_gp(K, Y, loss=loss, beta=0.3, schedule=TIGHT)
    assert post.log_evidence == pytest.approx(hot.log_evidence, rel=1e-9)
    np.testing.assert_allclose(post.mean, hot.mean, rtol=0, atol=1e-8)
    assert post.residual < 1e-7


def test_weights_of_one_are_none():
    plain, ones = fit_gp(K, Y), fit_gp(K, Y, weights=np.ones(40))
    assert ones.problem.data.weights is None
    np.testing.assert_array_equal(plain.mean, ones.mean)


def test_the_gradient_with_weights():
    def fit(scale):
        return fit_gp(np.exp(scale) * K, Y, weights=COUNTS, schedule=TIGHT)

    slope = (fit(1e-5).log_evidence - fit(-1e-5).log_evidence) / 2e-5
    assert fit(0.0).log_evidence_gradient(K)[0] == pytest.approx(slope, rel=1e-6)


def test_low_rank_takes_weights():
    exact = fit_gp(K, Y, weights=COUNTS, schedule=TIGHT)
    low = fit_gp(K, Y, weights=COUNTS, rank=40, schedule=TIGHT)
    assert low.log_evidence == pytest.approx(exact.log_evidence, rel=1e-6)
    np.testing.assert_allclose(low.mean, exact.mean, atol=1e-5)


def test_files_keep_them(tmp_path):
    post = fit_gp(K, Y, weights=COUNTS)
    post.save(tmp_path / "post.npz")
    loaded = epfast.load(tmp_path / "post.npz")
    np.testing.assert_array_equal(loaded.problem.data.weights, COUNTS)
    np.testing.assert_array_equal(loaded.loo_log_predictive(), post.loo_log_predictive())
    assert loaded.residual == post.residual


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": -COUNTS}, "weights"),
        ({"weights": COUNTS[:5]}, "weights"),
        ({"weights": np.zeros(40)}, "weights are all 0"),
        ({"weights": "ab"}, "weights"),
        (
            {"weights": COUNTS, "schedule": DoubleLoop()},
            "weights is .* not allowed with a process, DoubleLoop",
        ),
        (
            {"weights": COUNTS, "scheme": epfast.schemes.Relaxed(weight=0.1)},
            "weights is .* beside scheme=.relaxed",
        ),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        fit_gp(K, Y, **arguments)


# ---- the classifier ----


@pytest.mark.parametrize("rank", [None, 25])
def test_sample_weight_is_copies(rank):
    pytest.importorskip("sklearn")
    from sklearn.gaussian_process.kernels import RBF

    from epfast import GPClassifier

    kernel = 4.0 * RBF(1.0)
    kept = {"optimizer": None, "rank": rank, "schedule": EP(1000, 1e-11)}
    weighted = GPClassifier(kernel, **kept).fit(X, Y, sample_weight=COUNTS)
    copied = GPClassifier(kernel, **kept).fit(X[WHICH], Y[WHICH])
    np.testing.assert_allclose(weighted.predict_proba(X), copied.predict_proba(X), atol=1e-6)
    assert len(weighted.X_train_) == (COUNTS > 0).sum()
    found = GPClassifier(kernel, rank=rank).fit(X, Y, sample_weight=COUNTS)
    again = GPClassifier(kernel, rank=rank).fit(X[WHICH], Y[WHICH])
    assert found.log_marginal_likelihood_value_ == pytest.approx(
        again.log_marginal_likelihood_value_, abs=1e-2
    )
    with pytest.raises(ValueError, match="sample_weight"):
        GPClassifier(kernel).fit(X, Y, sample_weight=-COUNTS)
    with pytest.raises(ValueError, match="1 class"):
        GPClassifier(kernel).fit(X, Y, sample_weight=(Y > 0).astype(float))
    assert np.isfinite(GPClassifier().fit(X, Y, sample_weight=0.5 * COUNTS).predict_proba(X)).all()


def test_the_residual_of_a_vast_weighted_row_is_finite():
    """Squares of cavity variances overflow where the variances themselves do not."""
    post = fit_linear([[-4.6e149, -3.2e149]], [1.0], weights=[0.3], schedule=EP(tol=1e-10))
    assert post.converged
    assert post.residual < 1e-8
