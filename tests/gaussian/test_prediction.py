"""Joint covariance, scores and draws of responses at new rows."""

import numpy as np
import pytest
from scipy import stats
from scipy.sparse import csr_array

import epfast
from epfast import losses
from tests.oracles.data import classes
from tests.oracles.responses import example

pytestmark = pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")


@pytest.mark.parametrize("covariance", ["full", "factorized"])
def test_joint_covariance(covariance):
    X, y = classes(60, 3)
    post = epfast.fit_linear(X, y, posterior=covariance)
    new = np.random.default_rng(1).normal(size=(7, 3))
    for given in (new, csr_array(new)):
        mean, joint = post.predict_latent(given, joint=True)
        np.testing.assert_allclose(mean, new @ post.mean)
        np.testing.assert_allclose(joint, new @ post.covariance @ new.T, atol=1e-12)
        np.testing.assert_allclose(np.diag(joint), post.predict_latent(new)[1])


@pytest.mark.parametrize("name", losses.NAMED)
def test_score_is_the_mean_log_predictive(name):
    X, y = np.random.default_rng(0).normal(size=(40, 2)), example(losses.NAMED[name](), 40)
    post = epfast.fit_linear(X, y, loss=name)
    assert post.score(X, y) == pytest.approx(post.log_predictive(X, y).mean())


@pytest.mark.parametrize("name", losses.NAMED)
def test_draws_have_the_predictive_moments(name):
    X, y = np.random.default_rng(0).normal(size=(40, 2)), example(losses.NAMED[name](), 40)
    post = epfast.fit_linear(X, y, loss=name)
    new = np.array([[0.0, 0.0], [1.0, -0.5], [-0.3, 0.2]])
    draws = post.sample_y(new, 20_000, rng=1)
    assert draws.shape == (20_000, 3)
    mean = 2.0 * post.predict_proba(new) - 1.0 if post.loss.by_margin else post.predict(new)
    if name == "ordinal":  # which predicts a class, not a mean
        mean = post.predict_proba(new) @ np.arange(3.0)
    gap = (draws.mean(axis=0) - mean) / np.sqrt(post.predict_variance(new) / 20_000)
    # losses that are no likelihoods are normalised before the integral, not after it
    np.testing.assert_allclose(gap, 0.0, atol=4.0 if post.loss.is_likelihood else 40.0)
    np.testing.assert_allclose(draws.var(axis=0), post.predict_variance(new), rtol=0.1)


def test_rows_of_one_draw_belong_together():
    """Two copies of a row of an uncertain model agree more often than independent labels would."""
    post = epfast.fit_linear(np.array([[1e-9]]), [1.0], prior_variance=1e4)
    draws = post.sample_y([[1.0], [1.0]], 2000, rng=0)
    assert (draws[:, 0] == draws[:, 1]).mean() > 0.95


def test_draws_of_a_site_without_values():
    def moments(m, v):
        scale = np.sqrt(1.0 + v)
        z = m / scale
        ratio = np.exp(stats.norm.logpdf(z) - stats.norm.logcdf(z))
        return stats.norm.logcdf(z), ratio / scale, -ratio * (z + ratio) / scale**2

    X, y = classes(50, 2)
    own, probit = (
        epfast.fit_linear(X, y, loss=loss) for loss in (epfast.CustomSite(moments), "probit")
    )
    np.testing.assert_array_equal(own.sample_y(X, 50, 0), probit.sample_y(X, 50, 0))


def test_seeds_of_draws():
    X, y = classes(50, 2)
    post = epfast.fit_linear(X, y)
    np.testing.assert_array_equal(post.sample_y(X, 5, 3), post.sample_y(X, 5, 3))
    assert (post.sample_y(X, 5) != post.sample_y(X, 5)).any()
    with pytest.raises(ValueError, match="size is -1"):
        post.sample_y(X, -1)
    with pytest.raises(ValueError, match=r"X has shape \(50, 1\)"):
        post.sample_y(X[:, :1], 3)
