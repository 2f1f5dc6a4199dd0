"""Steps on all means of a factorised posterior: the fixed point of plain sweeps, in few of them."""

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast.gaussian import accelerate
from epfast.gaussian.accelerate import MeansMemory, conjugate_gradients

LOSSES = ("logistic", "probit", "hinge", "squared_hinge", "poisson", "binomial")
#: sweeps of the automatic order at most
FEW = 60


def alike(n=80, d=5, seed=0):
    """Rows whose columns are nearly the same, and labels."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 1)) + 0.05 * rng.normal(size=(n, d)) + 0.7
    return X, np.where(X @ rng.normal(size=d) + 0.3 * rng.normal(size=n) > 0.0, 1.0, -1.0)


def responses(loss, y):
    if loss == "poisson":
        return y + 2.0
    return np.column_stack([y + 2.0, np.full(len(y), 4.0)]) if loss == "binomial" else y


def fits(X, y, sweeps=40_000, **options):
    """In automatic order, and by plain sweeps to a change far below."""
    power = options.pop("power", None)
    found = epfast.fit_linear(
        X, y, posterior="factorized", schedule=epfast.EP(tol=1e-7, power=power), **options
    )
    plain = epfast.EP(sweeps=sweeps, tol=1e-10, order="sequential", power=power)
    return found, epfast.fit_linear(X, y, posterior="factorized", schedule=plain, **options)


def check(found, plain):
    assert found.converged
    assert plain.converged
    sd = np.sqrt(plain.variance)
    np.testing.assert_allclose(found.mean / sd, plain.mean / sd, atol=1e-5)
    np.testing.assert_allclose(found.variance, plain.variance, rtol=1e-5)
    assert found.log_evidence == pytest.approx(plain.log_evidence, abs=1e-6)
    for a, b in zip(found.sites, plain.sites, strict=True):
        a, b = (part.toarray() if hasattr(part, "toarray") else part for part in (a, b))
        np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max())


@pytest.mark.parametrize("as_given", [np.asarray, np.float32, sparse.csr_matrix])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_fixed_point_of_plain_sweeps(loss, as_given):
    X, y = alike()
    X = X.astype(np.float32).astype(float)
    found, plain = fits(as_given(X), responses(loss, y), loss=loss, prior_variance=200.0)
    check(found, plain)
    assert found.n_sweeps <= FEW < plain.n_sweeps


@pytest.mark.parametrize("power", [0.5, 1.0])
@pytest.mark.parametrize("csr", [False, True])
def test_weights_powers_intercept_and_prior(monkeypatch, csr, power):
    taken, step_to = [], accelerate.step_to

    def noted(*given):
        taken.append(step_to(*given))
        return taken[-1]

    monkeypatch.setattr(accelerate, "step_to", noted)
    monkeypatch.setattr(accelerate, "PATIENCE", 2)
    rng = np.random.default_rng(3)
    X, y = alike(seed=2)
    X[rng.random(X.shape) < 0.1] = 0.0
    X[7] = 0.0
    options = {
        "weights": rng.choice([0.0, 0.4, 1.0, 2.5], len(y)),
        "prior_variance": rng.uniform(50.0, 800.0, 5),
        "prior_mean": rng.normal(size=5),
        "intercept": True,
        "power": power,
    }
    found, plain = fits(sparse.csr_matrix(X) if csr else X, y, **options)
    check(found, plain)
    assert taken
    assert None not in taken
    assert found.n_sweeps < plain.n_sweeps


@pytest.mark.parametrize("loss", ["noisy_step", "quasi01"])
def test_losses_that_are_not_convex_go_as_they_did(loss):
    X, y = alike(seed=1)
    found, plain = (
        epfast.fit_linear(
            X,
            y,
            loss=loss,
            posterior="factorized",
            prior_variance=0.05,
            schedule=epfast.EP(sweeps=5000, tol=1e-8, order=order),
        )
        for order in ("auto", "sequential")
    )
    np.testing.assert_allclose(found.mean, plain.mean, rtol=1e-4)
    np.testing.assert_allclose(found.log_evidence, plain.log_evidence, rtol=1e-6)


@pytest.mark.parametrize("csr", [False, True])
def test_many_columns_by_conjugate_gradients(monkeypatch, csr):
    X, y = alike(d=12)
    X = sparse.csr_matrix(X) if csr else X
    by_factor = epfast.fit_linear(X, y, posterior="factorized")
    monkeypatch.setattr(accelerate, "DENSE", 4)
    monkeypatch.setattr(accelerate, "NUMBERS", 100)
    found = epfast.fit_linear(X, y, posterior="factorized")
    assert found.converged
    assert found.n_sweeps <= FEW
    np.testing.assert_allclose(found.mean, by_factor.mean, atol=1e-6)
    np.testing.assert_allclose(found.variance, by_factor.variance, rtol=1e-5)


@pytest.mark.parametrize("last", [2.0, -2.0])
def test_conjugate_gradients_find_nothing_where_the_matrix_is_not_positive(last):
    """The identity is the prior, and about the whole."""
    added, right = np.array([0.5, 1.0, last]), np.array([1.0, -1.0, 3.0])
    found = conjugate_gradients(right, lambda p: added * p, lambda r: (r, r), 1e-12)
    expected = right / (1.0 + added) if last > 0.0 else np.full(3, np.nan)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_rows_that_share_a_column_go_as_they_did():
    """Entries of a CSR row at one column are summed by the core alone."""
    X, y = alike(n=40, d=3)
    twice = sparse.csr_matrix(
        (np.repeat(0.5 * X.ravel(), 2), np.repeat(np.tile(np.arange(3), 40), 2), 6 * np.arange(41)),
        shape=(40, 3),
    )
    found, plain = fits(twice, y, prior_variance=4.0)
    same, _ = fits(X, y, prior_variance=4.0)
    np.testing.assert_allclose(plain.mean, same.mean, rtol=1e-5)
    np.testing.assert_allclose(found.mean, same.mean, rtol=0.2)


def test_columns_that_are_the_same():
    """X' W X is singular, and the prior decides."""
    X, y = alike(d=1)
    X = np.repeat(X, 4, axis=1)
    found, plain = fits(X, y, prior_variance=100.0)
    check(found, plain)
    assert found.n_sweeps <= FEW


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("loss", LOSSES[:4])
def test_separable_labels_and_wide_priors(loss, seed):
    """Far to go, with sharp sites there: what comes out stands still in a plain sweep."""
    X, _ = alike(n=60, d=6, seed=seed)
    y = np.where(X @ np.random.default_rng(seed).normal(size=6) > 0.0, 1.0, -1.0)
    found = epfast.fit_linear(X, y, loss=loss, posterior="factorized", prior_variance=1e3)
    assert found.converged
    once = epfast.EP(sweeps=1, tol=0.0, order="sequential")
    again = epfast.fit_linear(
        X, y, loss=loss, posterior="factorized", prior_variance=1e3, schedule=once, start=found
    )
    assert again.history[-1].change < 1e-5
    assert again.log_evidence == pytest.approx(found.log_evidence, abs=1e-4)


def test_a_start_goes_on():
    X, y = alike()
    some = epfast.fit_linear(
        X, y, posterior="factorized", schedule=epfast.EP(sweeps=4, tol=0.0), prior_variance=4.0
    )
    found = epfast.fit_linear(X, y, posterior="factorized", start=some, prior_variance=4.0)
    check(found, fits(X, y, prior_variance=4.0)[1])
    assert found.n_sweeps <= FEW


def test_explicit_orders_take_no_steps(monkeypatch):
    X, y = alike()
    monkeypatch.setattr(accelerate, "step_to", None)
    for schedule in (
        epfast.EP(order="sequential"),
        epfast.EP(order="shuffled"),
        epfast.EP(sweeps=30, tol=0.0),
        epfast.EP(damping=0.5),
    ):
        epfast.fit_linear(X, y, posterior="factorized", schedule=schedule)


def test_steps_begin_where_sweeps_creep():
    slow, fast, tol = MeansMemory(), MeansMemory(), 1e-5
    for creeping, quick in ((1.0, 1.0), (0.3, 0.1), (0.29, 1e-2), (0.28, 1e-3)):
        slow, fast = slow.next(creeping, tol), fast.next(quick, tol)
    assert slow.steps
    assert not fast.steps
