"""Columns far from 0: fits of rows less a center, and posteriors that are then those of the rows.

Known by algebra: the weights are the same, and the intercept is that at the center less c.w.
"""

import pickle

import numpy as np
import pytest

import epfast
from epfast import EP, fit_linear
from epfast.gaussian.linear_posterior import uncentered_posterior
from epfast.gaussian.rows import with_ones

RNG = np.random.default_rng(5)
X = RNG.normal(size=(120, 3)) * [1.0, 1e-3, 1e4]
X -= X.mean(axis=0)
Y = np.where(X @ [1.0, -1e3, 5e-5] + RNG.logistic(size=120) > 0.0, 1.0, -1.0)
SD = X.std(axis=0)
GIVEN = {"intercept": True, "prior_variance": SD**-2.0, "schedule": EP(tol=1e-10)}


def moved(away):
    """The rows so many standard deviations from 0, and the posterior of them, by that of X."""
    center = away * SD * [1.0, -1.0, 1.0]
    post = fit_linear(X, Y, **GIVEN)
    data = post.problem.data._replace(X=with_ones(X + center))
    return X + center, uncentered_posterior(post, center, data)


@pytest.mark.parametrize("away", [0.0, 3.0])
def test_the_posterior_is_that_of_the_rows(away):
    rows, post = moved(away)
    right = fit_linear(rows, Y, **GIVEN)
    for name in ("mean", "variance", "covariance", "precision", "shift", "prior_precision"):
        np.testing.assert_allclose(getattr(post, name), getattr(right, name), rtol=1e-7, atol=1e-12)
    assert post.log_evidence == pytest.approx(right.log_evidence, abs=1e-9)
    assert post.residual < 1e-8
    logs = post.loo_log_predictive(), right.loo_log_predictive()
    np.testing.assert_allclose(*logs, rtol=1e-7)
    turned = post.colored(np.eye(4))
    np.testing.assert_allclose(turned.T @ turned, right.covariance, rtol=1e-7)
    checks = post.check(2000, rng=0), right.check(2000, rng=0)
    assert checks[0].verdict == checks[1].verdict == "good"


def test_what_goes_on_from_it():
    rows, post = moved(3.0)
    right = fit_linear(rows, Y, **GIVEN)
    new = rows[:7] + 0.1 * SD, Y[:7]
    for change in (lambda one: one.partial_fit(*new), lambda one: one.remove([1, 5])):
        ours, theirs = change(post), change(right)
        np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-6)
        np.testing.assert_allclose(ours.covariance, theirs.covariance, rtol=1e-6)
        assert ours.log_evidence == pytest.approx(theirs.log_evidence, abs=1e-7)


@pytest.mark.parametrize("away", [1e3, 1e6])
def test_predictions_keep_their_digits(away, tmp_path):
    """Also in pickles and files. From precision and shift about 0 they are .001 sd off at 1e6."""
    rows, post = moved(away)
    mean, variance = fit_linear(X, Y, **GIVEN).predict_latent(X)
    post.save(tmp_path / "far.npz")
    for one in (post, pickle.loads(pickle.dumps(post)), epfast.load(tmp_path / "far.npz")):
        found = one.predict_latent(rows)
        np.testing.assert_allclose(found[0], mean, atol=1e-8 * mean.std())
        np.testing.assert_allclose(found[1], variance, rtol=1e-7)
        assert one.log_evidence == post.log_evidence
    levels = post.raised(4.0, post.problem.data.y, False).predict_latent(rows)
    np.testing.assert_allclose(levels[0], mean + 4.0, atol=1e-8 * mean.std())
    np.testing.assert_allclose(levels[1], variance, rtol=1e-7)


@pytest.mark.parametrize("common", [True, False])
def test_rows_in_the_n_x_n_form(common):
    """The kernel is of rows about their means."""
    wide = RNG.normal(size=(20, 40))
    y = np.sign(wide[:, 0] + 0.1)
    scale = 1.0 if common else np.linspace(0.5, 2.0, 40)
    given = {"intercept": True, "prior_variance": 0.1 * scale, "schedule": EP(tol=1e-10)}
    posts = [fit_linear(wide + away, y, **given) for away in (0.0, 1e6)]
    assert all(isinstance(post, epfast.WidePosterior) for post in posts)
    assert posts[1].log_evidence == pytest.approx(posts[0].log_evidence, abs=1e-7)
    (mean, variance), found = posts[0].predict_latent(wide), posts[1].predict_latent(wide + 1e6)
    np.testing.assert_allclose(found[0], mean, atol=1e-7 * mean.std())
    np.testing.assert_allclose(found[1], variance, rtol=1e-6)


@pytest.mark.parametrize("correlated", [True, False])
def test_several_latents(correlated):
    """At 3 beside a fit of the rows, and far from 0 beside that of the rows less their means."""
    classes = np.digitize(X[:, 0] + 0.5 * RNG.logistic(size=120), [-0.5, 0.5])
    given = GIVEN | {"loss": epfast.losses.Multiclass(correlated=correlated)}
    first = fit_linear(X, classes, **given)
    for away in (3.0, 1e6):
        center = away * SD
        rows = X + center
        data = first.problem.data._replace(X=with_ones(rows))
        post = uncentered_posterior(first, center, data)
        if away == 3.0:
            right = fit_linear(rows, classes, **given)
            for name in ("mean", "covariance", "precision", "shift"):
                pair = getattr(post, name), getattr(right, name)
                np.testing.assert_allclose(*pair, rtol=1e-6, atol=1e-9)
            logs = post.loo_log_predictive(), right.loo_log_predictive()
            np.testing.assert_allclose(*logs, rtol=1e-6)
        (mean, variance), found = first.predict_latent(X), post.predict_latent(rows)
        np.testing.assert_allclose(found[0], mean, atol=1e-8 * mean.std())
        np.testing.assert_allclose(found[1], variance, rtol=1e-7)
        np.testing.assert_allclose(post.predict_proba(rows), first.predict_proba(X), atol=1e-8)
        assert post.log_evidence == first.log_evidence
