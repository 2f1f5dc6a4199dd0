"""What a posterior in the n x n form says, beside the same posterior in the d x d form."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast import EP, FullPosterior, WidePosterior, fit_linear
from epfast.gaussian.checking import LinearProposal, SiteProposal
from epfast.gaussian.forms.kernel import GPState
from epfast.inference import Sites
from tests.gaussian.test_wide import PRIORS, TIGHT, WEIGHTS, D, N, d_by_d, same, wide
from tests.oracles.data import classes

X, Y = classes(N, D, seed=2)
MORE = classes(6, D, seed=3)


def with_negative_sites(post):
    """The same posterior, two sites of which have a negative precision."""
    precision = post.sites.precision.copy()
    precision[:2] *= -0.3
    precision[2] = 0.0
    sites = Sites(precision, post.sites.shift, post.sites.log_scale)
    return replace(post, state=GPState(sites, post.n_sweeps, None))


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("negative", [False, True])
def test_draws_have_the_moments_of_the_posterior(prior, negative):
    """The map from normal numbers to draws is linear: its square is the covariance."""
    post = wide(sparse.csr_matrix(X), Y, intercept=True, **PRIORS[prior])
    post = with_negative_sites(post) if negative else post
    assert (post.sites.precision < 0.0).any() == negative
    root = post.colored(np.eye(post.n_normals))
    np.testing.assert_allclose(root.T @ root, post.covariance, atol=1e-9 * post.variance.max())
    same(post, post.in_d_by_d(), 1e-8)
    draws = post.sample(4, 7)
    np.testing.assert_array_equal(draws, post.sample(4, np.random.default_rng(7)))
    assert np.abs(post.sample(400, 1).mean(0) - post.mean).max() < 5 * post.variance.max() / 20


def test_draws_in_pieces(monkeypatch):
    post = wide(X, Y)
    whole = post.sample(9, 3)
    monkeypatch.setattr("epfast.gaussian.rows.NUMBERS", 100)
    again = replace(post)
    np.testing.assert_allclose(again.sample(9, 3), whole, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(again.variance, post.variance, rtol=1e-12)
    for ours, theirs in zip(
        again.predict_latent(X, True), post.predict_latent(X, True), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.filterwarnings("ignore::epfast.DataWarning")
@pytest.mark.parametrize(("variance", "tol"), [(1.0, 1e-12), (1e4, 1e-8), (1e8, 1e-4)])
def test_digits_beside_a_wide_prior(variance, tol):
    """Sites that are sharp for the prior, a kernel that is singular: labels that contradict.

    Predictions at the rows of the fit lose no more digits than the prior variance has in front of
    the posterior's.
    """
    rows, labels = np.vstack([X, X]), np.r_[np.ones(N), -np.ones(N)]
    post = fit_linear(rows, labels, prior_variance=variance)
    assert isinstance(post, WidePosterior)
    mean, found = post.predict_latent(rows)
    moments = post.moments
    assert np.abs((mean - moments.mean) / np.sqrt(moments.variance)).max() < tol
    np.testing.assert_allclose(found, moments.variance, rtol=tol)


@pytest.mark.parametrize("given", [{}, {"intercept": True}, PRIORS["mean"]], ids=str)
def test_the_slope_is_that_of_the_log_evidence(given):
    """By differences, over fits with all prior variances scaled but for the intercept's."""
    given = {"prior_variance": 0.5} | given

    def at(u):
        scaled = given | {"prior_variance": given["prior_variance"] * np.exp(u)}
        return wide(X, Y, loss="probit", **scaled)

    h = 1e-4
    numeric = (at(h).log_evidence - at(-h).log_evidence) / (2 * h)
    assert at(0.0).log_evidence_slope() == pytest.approx(numeric, rel=1e-5)


@pytest.mark.parametrize("kind", ["dense", "sparse", "float32"])
@pytest.mark.parametrize("given", [{}, {"intercept": True, "weights": WEIGHTS, **PRIORS["mean"]}])
def test_save_load_and_pickle(kind, given, tmp_path):
    """Rows go along."""
    rows = {"dense": X, "sparse": sparse.csr_matrix(X * (X > 0)), "float32": np.float32(X)}[kind]
    post = wide(rows, Y, loss="probit", **given)
    post.save(tmp_path / "post.npz")
    for back in (epfast.load(tmp_path / "post.npz"), pickle.loads(pickle.dumps(post))):
        assert type(back) is WidePosterior
        for name in ("mean", "variance", "shift"):
            np.testing.assert_allclose(getattr(back, name), getattr(post, name), rtol=1e-12)
        for name in ("loss", "scheme", "schedule", "converged", "n_sweeps", "labels", "history"):
            assert getattr(back, name) == getattr(post, name)
        assert back.log_evidence == pytest.approx(post.log_evidence, rel=1e-12)
        np.testing.assert_allclose(back.loo_log_predictive(), post.loo_log_predictive(), rtol=1e-9)
        np.testing.assert_allclose(back.predict_proba(MORE[0]), post.predict_proba(MORE[0]))
        assert len(wide(rows, Y, loss="probit", start=back, **given).history) <= 2


@pytest.mark.parametrize("matrix", [False, True])
def test_new_rows(matrix):
    """As in the d x d form, in which it ends where the rows are many."""
    prior = PRIORS["matrix and mean" if matrix else "mean"]
    in_turn = replace(TIGHT, order="sequential")
    given = {"loss": "probit", "schedule": in_turn, **prior}
    ours, theirs = wide(X, Y, **given), d_by_d(X, Y, **given)
    for count in (2, 3):
        ours, theirs = (post.partial_fit(*MORE, schedule=in_turn) for post in (ours, theirs))
        assert isinstance(ours, WidePosterior) == (count < 3 or N + 12 < D)
        same(ours, theirs, 1e-7)
        np.testing.assert_allclose(ours.sites.precision, theirs.sites.precision, rtol=1e-6)
        assert [i.sweep for i in ours.history] == list(range(1, ours.n_sweeps + 1))
        assert ours.history[-1].log_evidence == pytest.approx(ours.log_evidence, abs=1e-7)
    weighted = wide(X, Y, **given).partial_fit(*MORE, weights=[2.0] * 6, schedule=TIGHT)
    twice = d_by_d(X, Y, **given).partial_fit(*MORE, weights=[2.0] * 6, schedule=TIGHT)
    same(weighted, twice, 1e-7)
    at_once = EP(1000, 1e-11, order="parallel")
    same(wide(X, Y, **given).partial_fit(*MORE, weights=[2.0] * 6, schedule=at_once), twice, 1e-7)
    many = classes(D, D, seed=4)
    end = wide(X, Y, **given).partial_fit(*many)
    assert type(end) is FullPosterior
    assert len(end.sites.shift) == N + D
    with pytest.raises(ValueError, match=r"allowed for this posterior: epfast.EP"):
        wide(X, Y).partial_fit(*MORE, schedule=epfast.ADF())


def test_rows_that_go():
    ours, theirs = wide(X, Y, intercept=True), d_by_d(X, Y, intercept=True)
    less = ours.remove([0, 4])
    assert not less.converged
    same(less, theirs.remove([0, 4]), 1e-8)
    np.testing.assert_array_equal(less.problem.data.y, np.delete(ours.problem.data.y, [0, 4], 0))
    with pytest.raises(ValueError, match="leave one at least"):
        ours.remove(range(N))
    with pytest.raises(ValueError, match="allowed: 0 to"):
        ours.remove(N)


def test_rows_given_again():
    post = wide(X, Y)
    assert isinstance(post.with_rows(X, Y), WidePosterior)
    np.testing.assert_array_equal(post.with_rows(X, Y).mean, post.mean)
    other = post.with_rows(X, Y, np.arange(N)).loo_log_predictive()
    assert np.abs(other - post.loo_log_predictive()).max() > 1e-3
    with pytest.raises(ValueError, match="differ from the rows of the fit"):
        post.with_rows(X + 1.0, Y)
    with pytest.raises(ValueError, match="the posterior knows its rows"):
        post.loo_log_predictive(X, Y)


def test_check_and_tables():
    """The ratio that a check weighs by is that of the d x d form."""
    post = wide(X, Y, prior_variance=0.2, intercept=True)
    full = post.in_d_by_d()
    proposals = SiteProposal(post), LinearProposal(full)
    theta = post.sample(5, 0)
    root = full.colored(np.eye(D + 1)).T
    noise = np.linalg.solve(root, (theta - post.mean).T).T
    ratio = proposals[1].log_ratio(noise, theta)
    np.testing.assert_allclose(proposals[0].log_ratio(None, theta), ratio, atol=1e-8)
    found = post.check(200)
    assert found.mean.shape == (D + 1,)
    assert found.verdict != "do not use"
    better = proposals[0].better()
    assert np.abs((better.post.mean - post.mean) / np.sqrt(post.variance)).max() < 0.5
    assert len(post.summary().index) == D + 1
    assert post.credible_interval().shape == (D + 1, 2)
    np.testing.assert_allclose(post.log_likelihood(theta), post.in_d_by_d().log_likelihood(theta))
    assert post.sample_y(X, 3, 0).shape == (3, N)


def test_predictions_refuse_what_is_not_finite():
    post = wide(X, Y)
    for bad in (np.nan, np.inf, 1e300):
        with pytest.raises(ValueError, match="X"):
            post.predict_latent(np.full((1, D), bad))
    with pytest.raises(ValueError, match="X has shape"):
        post.predict_latent(X[:, 1:])
