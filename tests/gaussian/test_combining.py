"""combine: products of posteriors of disjoint rows."""

import numpy as np
import pytest

import epfast
from tests.oracles.data import classes


def thirds(n=90, d=3, **given):
    X, y = classes(n, d, seed=4)
    parts = [slice(0, 30), slice(30, 60), slice(60, 90)]
    return X, y, [epfast.fit_linear(X[p], y[p], **given) for p in parts]


@pytest.mark.parametrize("covariance", ["full", "factorized"])
@pytest.mark.parametrize("mean", [None, [0.5, -1.0, 2.0]])
@pytest.mark.parametrize("schedule", [None, epfast.ADF()])
def test_natural_parameters_add_up(covariance, mean, schedule):
    given = {"posterior": covariance, "prior_mean": mean, "prior_variance": 3.0}
    X, y, fits = thirds(**given, schedule=schedule)
    both = epfast.combine(fits)
    assert type(both) is type(fits[0])
    assert not both.converged
    prior = fits[0].problem.prior
    np.testing.assert_allclose(both.precision, sum(f.precision for f in fits) - 2 * prior.precision)
    np.testing.assert_allclose(both.shift, sum(f.shift for f in fits) - 2 * prior.shift)
    np.testing.assert_array_equal(both.problem.data.X, X)
    np.testing.assert_array_equal(both.problem.data.y[:, 0], y)
    assert (both.sites is None) == (schedule is not None)


def test_it_is_prior_times_all_sites():
    _, _, fits = thirds(prior_mean=[0.5, -1.0, 2.0])
    both = epfast.combine(fits)
    X, base, sites = both.problem.data.X, both.problem.base, both.sites
    np.testing.assert_allclose(base.precision + X.T * sites.precision @ X, both.precision)
    np.testing.assert_allclose(base.shift + X.T @ sites.shift, both.shift)
    assert both.state.log_scale == pytest.approx(base.log_scale + sites.log_scale.sum())


def test_exact_where_the_sites_are():
    """With a logistic loss so flat that it is a straight line sites do not depend on cavities."""
    X, y = classes(60, 2)
    X = 1e-5 * X
    whole = epfast.fit_linear(X, y)
    both = epfast.combine([epfast.fit_linear(X[:20], y[:20]), epfast.fit_linear(X[20:], y[20:])])
    np.testing.assert_allclose(both.mean, whole.mean, rtol=1e-8)
    np.testing.assert_allclose(both.covariance, whole.covariance, rtol=1e-8)
    assert both.log_evidence == pytest.approx(whole.log_evidence, abs=1e-8)


def test_the_result_serves_as_a_start_and_in_every_other_way():
    X, y, fits = thirds()
    both = epfast.combine(fits)
    whole = epfast.fit_linear(X, y)
    again = epfast.fit_linear(X, y, start=both)
    np.testing.assert_allclose(again.mean, whole.mean, atol=1e-4)
    assert again.n_sweeps - both.n_sweeps <= whole.n_sweeps
    assert both.loo_log_predictive().shape == (90,)
    assert 0.0 < both.residual < 1.0
    less = both.remove(range(60, 90))
    np.testing.assert_allclose(less.mean, epfast.combine(fits[:2]).mean)
    # each third was fitted alone, without what the others know: less certain sites
    assert both.check().verdict in ("good", "usable")


def test_shared_sites_keep_their_groups():
    _, _, fits = thirds(schedule=epfast.DSEP(groups=2))
    both = epfast.combine(fits)
    assert both.sites.precision.shape == (6, 3, 3)
    np.testing.assert_array_equal(np.unique(both.problem.data.groups), np.arange(6))
    copies = np.bincount(both.problem.data.groups)
    prior = both.problem.prior.precision
    np.testing.assert_allclose(
        both.precision, prior + np.tensordot(copies, both.sites.precision, 1)
    )


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize(("size", "kept"), [(10, True), (7, False)])
def test_minibatches_are_kept_where_they_are_whole(size, kept):
    _, _, fits = thirds(posterior="factorized", batch_size=size, scheme="laplace")
    both = epfast.combine(fits)
    assert (both.sites is not None) is kept
    if kept:
        assert len(both.sites.shift) == 9


def test_weights_and_sparse_rows_are_joined():
    sparse = pytest.importorskip("scipy.sparse")
    X, y = classes(40, 3)
    w = np.linspace(0.5, 2.0, 20)
    first = epfast.fit_linear(sparse.csr_array(X[:20]), y[:20], weights=w)
    both = epfast.combine([first, epfast.fit_linear(sparse.csr_array(X[20:]), y[20:])])
    np.testing.assert_array_equal(both.problem.data.weights, np.r_[w, np.ones(20)])
    np.testing.assert_array_equal(both.problem.data.X.toarray(), X)


def test_rows_are_forgotten_where_one_does_not_know_them(tmp_path):
    X, y, fits = thirds()
    fits[1].save(tmp_path / "post.npz")
    both = epfast.combine([fits[0], epfast.load(tmp_path / "post.npz"), fits[2]])
    assert not both.problem.has_rows
    np.testing.assert_allclose(both.mean, epfast.combine(fits).mean)
    assert both.with_rows(X, y).residual == pytest.approx(epfast.combine(fits).residual)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"prior_variance": 2.0}, "another prior"),
        ({"prior_mean": [1.0, 0.0, 0.0]}, "another prior"),
        ({"loss": "probit"}, "the loss Probit"),
        ({"beta": 2.0}, "beta"),
        ({"scheme": "laplace"}, "the scheme Laplace"),
        ({"posterior": "factorized"}, "the kind 'FactorizedPosterior'"),
    ],
)
def test_what_differs_is_refused(given, match):
    X, y = classes(40, 3)
    with pytest.raises(ValueError, match=rf"posteriors\[1\] has .*{match}"):
        epfast.combine(
            [epfast.fit_linear(X[:20], y[:20]), epfast.fit_linear(X[20:], y[20:], **given)]
        )


def test_what_is_not_disjoint_is_refused():
    X, y = classes(40, 3)
    post = epfast.fit_linear(X, y)
    for other in (post, epfast.fit_linear(X, y)):
        with pytest.raises(ValueError, match="fits of the same rows, which would count twice"):
            epfast.combine([post, other])


def test_what_is_no_list_of_two_posteriors_is_refused():
    X, y = classes(40, 3)
    post = epfast.fit_linear(X, y)
    with pytest.raises(ValueError, match="posteriors holds 1; allowed: two at least"):
        epfast.combine([post])
    with pytest.raises(TypeError, match=r"posteriors\[1\] is a float"):
        epfast.combine([post, 1.0])
    with pytest.raises(TypeError, match="allowed: a list of them"):
        epfast.combine(post)
