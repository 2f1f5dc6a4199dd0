"""Mixtures of posteriors, against sums over their parts and against fits without a row."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from scipy import linalg, stats

import epfast
from epfast import EP, IntegratedPosterior, fit_linear

TIGHT = EP(sweeps=500, tol=1e-11)
VARIANCES = np.array([0.1, 1.0, 10.0])
PRIOR = np.array([0.2, 0.5, 0.3])


def data(n=30, loss="logistic"):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, 2)) @ np.array([[1.0, 0.4], [0.0, 1.0]])
    if loss == "multiclass":
        return X, rng.integers(0, 3, n)
    h = X @ [1.0, -0.5]
    return X, rng.poisson(np.exp(h)) if loss == "poisson" else np.sign(h + rng.logistic(size=n))


def mixture(X, y, loss="logistic", **given):
    posts = [
        fit_linear(X, y, loss=loss, prior_variance=v, schedule=TIGHT, **given) for v in VARIANCES
    ]
    values = np.log(PRIOR) + [post.log_evidence for post in posts]
    return IntegratedPosterior.of(
        posts, values, VARIANCES[:, None], ("prior_variance",), np.log(PRIOR), 3
    )


@pytest.fixture(params=["logistic", "poisson", "multiclass"])
def both(request):
    X, y = data(loss=request.param)
    return X, y, mixture(X, y, request.param)


def test_weights_are_prior_times_evidence(both):
    *_, post = both
    joint = PRIOR * np.exp([one.log_evidence for one in post.posteriors])
    np.testing.assert_allclose(post.weights, joint / joint.sum(), rtol=1e-10)
    assert post.log_evidence == pytest.approx(np.log(joint.sum()), abs=1e-10)
    assert post.ess == pytest.approx(1.0 / np.sum(post.weights**2))


def test_moments_are_those_of_draws(both):
    *_, post = both
    draws = post.sample(60_000, 0)
    assert draws.shape == (60_000, *post.mean.shape)
    flat, sd = draws.reshape(len(draws), -1), post.sd.ravel()
    assert np.abs((flat.mean(axis=0) - post.mean.ravel()) / sd).max() < 0.02
    whole = post.covariance
    whole = linalg.block_diag(*whole) if whole.ndim == 3 else whole
    np.testing.assert_allclose(
        np.cov(flat.T) / np.outer(sd, sd), whole / np.outer(sd, sd), atol=0.03
    )
    np.testing.assert_allclose(np.diag(whole), post.variance.ravel(), rtol=1e-12)


def test_quantiles_invert_the_distribution_function(both):
    *_, post = both
    ends = post.credible_interval(0.8)
    for p, found in ((0.1, ends[..., 0]), (0.9, ends[..., 1])):
        cdf = sum(
            w * stats.norm.cdf(found, one.mean, np.sqrt(one.variance))
            for w, one in zip(post.weights, post.posteriors, strict=True)
        )
        np.testing.assert_allclose(cdf, p, atol=1e-12)
    above = post.summary().to_numpy()[: post.mean.size, -1]
    below = sum(
        w * stats.norm.cdf(0.0, one.mean, np.sqrt(one.variance))
        for w, one in zip(post.weights, post.posteriors, strict=True)
    )
    np.testing.assert_allclose(above, 1.0 - below.ravel(), atol=1e-12)


def test_predictions_are_averages(both):
    X, y, post = both
    new = X[:5] + 0.3
    parts = list(zip(post.weights, post.posteriors, strict=True))
    average = {
        name: sum(w * getattr(one, name)(new) for w, one in parts)
        for name in ("predict_proba", "predict")
        if not (name == "predict_proba" and one_is_count(post))
    }
    if one_is_count(post):
        np.testing.assert_allclose(post.predict(new), average["predict"], rtol=1e-12)
        second = sum(w * (one.predict_variance(new) + one.predict(new) ** 2) for w, one in parts)
        np.testing.assert_allclose(post.predict_variance(new), second - post.predict(new) ** 2)
    else:
        p = average["predict_proba"]
        np.testing.assert_allclose(post.predict_proba(new), p, rtol=1e-12)
        labels = p.argmax(axis=1) if p.ndim == 2 else np.where(p >= 0.5, 1.0, -1.0)
        np.testing.assert_array_equal(post.predict(new), labels)
    density = sum(w * np.exp(one.log_predictive(new, y[:5])) for w, one in parts)
    np.testing.assert_allclose(post.log_predictive(new, y[:5]), np.log(density), rtol=1e-10)
    assert post.score(new, y[:5]) == pytest.approx(np.log(density).mean())
    drawn = post.sample_y(new, 30_000, 1)
    if not one_is_count(post):
        share = (drawn == 1.0).mean(axis=0)
        expected = average["predict_proba"]
        expected = expected[:, 1] if expected.ndim == 2 else expected
        np.testing.assert_allclose(share, expected, atol=0.02)


def one_is_count(post):
    return type(post.loss).__name__ == "Poisson"


def test_latent_values_of_new_rows_are_those_of_the_weights():
    X, y = data()
    post = mixture(X, y)
    mean, whole = post.predict_latent(X[:4], joint=True)
    np.testing.assert_allclose(mean, X[:4] @ post.mean)
    np.testing.assert_allclose(whole, X[:4] @ post.covariance @ X[:4].T, rtol=1e-10)
    np.testing.assert_allclose(post.predict_latent(X[:4])[1], np.diag(whole), rtol=1e-10)


@pytest.mark.parametrize("loss", ["logistic", "probit"])
def test_leave_one_out_is_a_fit_without_the_row(loss):
    """Points are weighed without the row, too: their weights in the whole are further off."""
    X, y = data(20, loss)
    whole = mixture(X, y, loss)
    refitted = np.empty(len(y))
    for i in range(len(y)):
        rest = np.arange(len(y)) != i
        refitted[i] = mixture(X[rest], y[rest], loss).log_predictive(X[[i]], y[[i]])[0]
    parts = zip(whole.weights, whole.posteriors, strict=True)
    naive = np.log(sum(w * np.exp(one.loo_log_predictive()) for w, one in parts))
    error = np.abs(whole.loo_log_predictive() - refitted).mean()
    assert error < 0.02
    assert error < 0.6 * np.abs(naive - refitted).mean()


def test_rows_come_and_go():
    X, y = data()
    first, all_rows = mixture(X[:20], y[:20]), mixture(X, y)
    later = first.partial_fit(X[20:], y[20:])
    np.testing.assert_allclose(later.weights, all_rows.weights, atol=0.01)
    assert np.abs((later.mean - all_rows.mean) / all_rows.sd).max() < 0.05
    assert np.abs(first.weights - all_rows.weights).max() > 0.05
    back = later.remove(np.arange(20, 30))
    np.testing.assert_allclose(back.weights, first.weights, atol=1e-8)


def test_files_and_pickles(both, tmp_path):
    X, y, post = both
    post.save(tmp_path / "post.npz")
    for back in (epfast.load(tmp_path / "post.npz"), pickle.loads(pickle.dumps(post))):
        np.testing.assert_array_equal(back.mean, post.mean)
        np.testing.assert_array_equal(back.points, post.points)
        assert back.log_evidence == post.log_evidence
        assert back.hyper_names == post.hyper_names
        again = back.with_rows(X, y)
        np.testing.assert_allclose(again.loo_log_predictive(), post.loo_log_predictive())


def test_a_file_whose_parts_do_not_fit_is_refused(tmp_path):
    post = mixture(*data())
    replace(post, posteriors=post.posteriors[:2]).save(tmp_path / "post.npz")
    with pytest.raises(ValueError, match="posteriors, points and names are inconsistent"):
        epfast.load(tmp_path / "post.npz")


def test_check_is_the_least_favourable_one():
    X, y = data()
    post = mixture(X, y)
    assert post.check().verdict == "good"
    wrong = fit_linear(X, -y, prior_variance=1.0).with_rows(X, y)
    parts = [post.posteriors[0], wrong, post.posteriors[2]]
    mixed = IntegratedPosterior.of(
        parts, np.log([0.5, 0.2, 0.3]), VARIANCES[:, None], ("prior_variance",), np.log(PRIOR), 3
    )
    assert mixed.check().verdict == wrong.check().verdict == "do not use"
    assert "prior_variance 1" in mixed.check().reason


def test_what_it_says():
    X, y = data()
    post = mixture(X, y)
    assert any("averaged over 3 points" in line for line in post.summary().attrs["notes"])
    assert list(post.hyper.index) == ["prior_variance"]
    assert post.converged
    assert post.residual < 1e-8
    assert set(epfast.compare({"mixture": post, "one": post.best}).index) == {"mixture", "one"}


@pytest.mark.parametrize("p", [0.0, 1.0, "half"])
def test_quantiles_that_are_refused(p):
    with pytest.raises((ValueError, TypeError), match=r"^p is .*; allowed: "):
        mixture(*data()).quantile(p)


def test_settings_are_those_of_the_points():
    post = mixture(*data())
    one = post.posteriors[0]
    for name in ("loss", "scheme", "schedule", "beta", "power", "labels", "quantity"):
        assert getattr(post, name) == getattr(one, name)


@pytest.mark.parametrize("m", [1, 2])
def test_draws_of_hyper_parameters(m):
    """Their quantiles are those of the nodes, weights have those of the mixture, and go along.

    The points are independent normals of u, of which the k-th weight is N(u_k, 0.01): the mean of
    a draw given its own u is u, to the distance between points.
    """
    rng = np.random.default_rng(0)
    at = np.stack(np.meshgrid(*[np.linspace(-3, 3, 9)] * m, indexing="ij"), -1).reshape(-1, m)
    nodes = rng.normal(size=(4000, m))
    parts = [
        replace(
            part,
            state=part.state._replace(precision=100.0 * np.eye(2), shift=np.resize(u, 2) * 100.0),
        )
        for part, u in ((fit_linear(*data()), u) for u in at)
    ]
    names = tuple(f"s{k}" for k in range(m))
    values, flat = stats.norm.logpdf(at).sum(axis=1), np.zeros(len(at))
    shares = np.full(len(nodes), 1.0 / len(nodes))
    given = np.exp(at), names, flat, 1, np.exp(nodes), shares
    post = IntegratedPosterior.of(parts, values, *given)
    drawn = post.to_arviz(20_000, 0)["posterior"]
    hyper = np.array([drawn[name].to_numpy().ravel() for name in names])
    theta = drawn["coefficient"].to_numpy().reshape(-1, 2)
    assert len(np.unique(hyper[0])) > 19_900
    for p in (0.03, 0.5, 0.9):
        np.testing.assert_allclose(np.quantile(hyper, p, axis=1), post.hyper_quantile(p), rtol=0.05)
    np.testing.assert_allclose(theta.mean(axis=0), post.mean, atol=0.035)
    np.testing.assert_allclose(theta.std(axis=0), post.sd, rtol=0.03)
    for k in range(m):
        assert np.corrcoef(np.log(hyper[k]), theta[:, k])[0, 1] > 0.9
    if m == 2:
        together = np.corrcoef(nodes.T)[0, 1]
        assert np.corrcoef(np.log(hyper))[0, 1] == pytest.approx(together, abs=0.03)


def test_draws_of_one_point():
    """A mode alone has one value of its hyper-parameters."""
    X, y = data()
    only = fit_linear(X, y)
    post = IntegratedPosterior.of([only], [0.0], [[2.0]], ("s",), [0.0], 1)
    np.testing.assert_array_equal(post.to_arviz(5)["posterior"]["s"].to_numpy(), 2.0)


def test_equal_nodes_are_one_value():
    """A grid along the axes: quantiles of the first number do not depend on the second."""
    first, second = np.meshgrid(np.linspace(1.0, 2.0, 40), np.linspace(1.0, 9.0, 30))
    X, y = data()
    only = fit_linear(X, y)
    both = np.column_stack([first.ravel(), second.ravel()])
    shares = np.full(len(both), 1.0 / len(both))
    given = [only], [0.0], [[1.5, 5.0]], ("a", "b"), [0.0], 1
    post = IntegratedPosterior.of(*given, both * (1.0 + 1e-15), shares)
    a = IntegratedPosterior.of(
        [only],
        [0.0],
        [[1.5]],
        ("a",),
        [0.0],
        1,
        np.linspace(1.0, 2.0, 40)[:, None],
        np.full(40, 1 / 40),
    )
    for p in (0.011, 0.3, 0.5, 0.97):
        assert post.hyper_quantile(p)[0] == pytest.approx(a.hyper_quantile(p)[0], rel=1e-12)
