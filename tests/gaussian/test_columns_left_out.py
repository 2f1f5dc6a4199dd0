"""Leave-one-out of factorised posteriors: sites with a precision per column are taken out."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import integrate, sparse, special, stats

import epfast
from epfast import ADF, DEP, EP, fit_linear

N, D = 60, 4
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D)) * (RNG.uniform(size=(N, D)) < 0.6)
Y = np.where(X @ RNG.normal(size=D) + RNG.logistic(size=N) > 0, 1.0, -1.0)
COUNTS = RNG.integers(0, 4, size=N)
TIGHT = EP(sweeps=2000, tol=1e-9)


def plain(post, rows, labels, size=1, copies=None):
    """Row by row: the posterior less the site, and the logistic function over what is left."""
    result = []
    for i, (x, y) in enumerate(zip(rows, labels, strict=True)):
        share = 1.0 if copies is None else 1.0 / max(copies[i], 1.0)
        precision = post.precision - share * post.sites.precision[i // size]
        shift = post.shift - share * post.sites.shift[i // size]
        latent = stats.norm(x @ (shift / precision), np.sqrt(x**2 @ (1.0 / precision)) + 1e-12)
        ends = latent.ppf([1e-14, 1.0 - 1e-14])
        value = integrate.quad(
            lambda f, y=y, latent=latent: special.expit(y * f) * latent.pdf(f), *ends, epsabs=1e-12
        )
        result.append(np.log(value[0]))
    return np.array(result)


@pytest.mark.cover(lambda **_: None)
@pytest.mark.parametrize(
    ("given", "size"),
    [
        ({}, 1),
        ({"schedule": EP(order="shuffled", seed=1)}, 1),
        ({"schedule": EP(3, 0.0)}, 1),
        ({"schedule": DEP(np.arange(N) % 3)}, 1),
        ({"batch_size": 1}, 1),
        ({"batch_size": 7}, 7),
        ({"batch_size": 7, "scheme": "variational"}, 7),
    ],
)
def test_it_is_the_posterior_less_the_site(given, size):
    post = fit_linear(X, Y, posterior="factorized", **given)
    np.testing.assert_allclose(post.loo_log_predictive(), plain(post, X, Y, size), atol=1e-7)


def test_weights_are_copies():
    weighted = fit_linear(
        X, Y, posterior="factorized", weights=COUNTS.astype(float), schedule=TIGHT
    )
    found = weighted.loo_log_predictive()
    np.testing.assert_allclose(found, plain(weighted, X, Y, copies=COUNTS), atol=1e-7)
    copied = fit_linear(
        np.repeat(X, COUNTS, axis=0), np.repeat(Y, COUNTS), posterior="factorized", schedule=TIGHT
    )
    np.testing.assert_allclose(np.repeat(found, COUNTS), copied.loo_log_predictive(), atol=1e-6)
    light = fit_linear(X, Y, posterior="factorized", weights=0.1 + 0.2 * COUNTS)
    expected = plain(light, X, Y, copies=0.1 + 0.2 * COUNTS)
    np.testing.assert_allclose(light.loo_log_predictive(), expected, atol=1e-7)


@pytest.mark.parametrize("intercept", [False, 100.0])
@pytest.mark.parametrize("batch_size", [None, 8])
def test_rows_of_any_kind(intercept, batch_size):
    given = {"posterior": "factorized", "intercept": intercept, "batch_size": batch_size}
    dense = fit_linear(X, Y, **given).loo_log_predictive()
    rows = X.copy()
    rows[5] = 0.0  # nothing stored
    whole = fit_linear(rows, Y, **given).loo_log_predictive()
    lean = fit_linear(sparse.csr_array(rows), Y, **given).loo_log_predictive()
    np.testing.assert_allclose(lean, whole, atol=1e-10)
    kept = sparse.csr_array(np.ones_like(X))
    kept.data[:] = X.ravel()  # zeros that are stored
    np.testing.assert_allclose(fit_linear(kept, Y, **given).loo_log_predictive(), dense, atol=1e-10)
    small = fit_linear(np.asfortranarray(X, dtype=np.float32), Y, **given).loo_log_predictive()
    np.testing.assert_allclose(small, dense, atol=1e-5)


def test_it_is_near_a_fit_of_the_other_rows():
    post = fit_linear(X, Y, posterior="factorized")
    rest = np.array(
        [
            fit_linear(np.delete(X, i, 0), np.delete(Y, i), posterior="factorized").log_predictive(
                X[i : i + 1], Y[i : i + 1]
            )[0]
            for i in range(N)
        ]
    )
    away = np.abs(post.loo_log_predictive() - rest)
    assert away.mean() < 0.2 * np.abs(post.log_predictive(X, Y) - rest).mean()


def test_many_rows_in_pieces(monkeypatch):
    rows, labels = np.tile(X, (50, 1)), np.tile(Y, 50)
    post = fit_linear(rows, labels, posterior="factorized")
    whole = post.loo_log_predictive()
    monkeypatch.setattr("epfast.gaussian.problem.CHUNK", 64)
    np.testing.assert_allclose(post.loo_log_predictive(), whole, rtol=1e-12)


@pytest.mark.parametrize("batch_size", [None, 7])
def test_of_files(tmp_path, batch_size):
    post = fit_linear(X, Y, posterior="factorized", batch_size=batch_size)
    post.save(tmp_path / "post.npz")
    again = epfast.load(tmp_path / "post.npz")
    np.testing.assert_array_equal(again.loo_log_predictive(X, Y), post.loo_log_predictive())
    with pytest.raises(ValueError, match="X and y are needed"):
        again.loo_log_predictive()
    with pytest.raises(ValueError, match=r"X has 41 rows and the posterior \d+ sites of . rows"):
        again.loo_log_predictive(X[:41], Y[:41])


def test_what_has_no_cavity():
    with pytest.raises(ValueError, match="no sites of its rows"):
        fit_linear(X, Y, posterior="factorized", schedule=ADF()).loo_log_predictive()
    post = fit_linear(X, Y, posterior="factorized")
    wrong = post.sites.precision.copy()
    wrong[3] += 2.0 * post.precision
    bad = replace(post, state=post.state._replace(sites=post.sites._replace(precision=wrong)))
    with pytest.raises(FloatingPointError, match=f"1 of {N} cavities are improper"):
        bad.loo_log_predictive()


def test_fits_are_compared_by_it():
    fits = {
        "both": fit_linear(X, Y, posterior="factorized"),
        "full": fit_linear(X, Y),
        "one": fit_linear(X[:, :1], Y, posterior="factorized"),
    }
    table = epfast.compare(fits)
    assert list(table.index)[-1] == "one"
