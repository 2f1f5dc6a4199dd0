"""What 0.1.0 got wrong because of how it was built: a test for each defect, by its number.

Each fails on 0.1.0. The numbers are those of the review before the rebuilding.
"""

import inspect
import itertools
import pickle

import numpy as np
import pytest

import epfast
from epfast import ADF, EP, fit_gp, fit_linear
from tests.oracles.data import classes, process
from tests.oracles.plain_ep import plain_ep, posterior

ROWS = {"scheme": "exact", "posterior": "full", "batch_size": None}
X, Y = classes(40, 3, noise=1.5)
NEW_X, NEW_Y = classes(15, 3, seed=1, noise=1.5)
WEIGHTS = np.random.default_rng(2).uniform(0.2, 3.0, len(Y))


# ---- 1 ----


def test_leave_one_out_of_a_weighted_fit_survives_pickling():
    post = fit_linear(X, Y, weights=WEIGHTS, prior_variance=2.0, **ROWS)
    again = pickle.loads(pickle.dumps(post))
    expected = post.loo_log_predictive()
    np.testing.assert_allclose(again.loo_log_predictive(X, Y), expected, rtol=1e-12)
    np.testing.assert_allclose(again.with_rows(X, Y).loo_log_predictive(), expected, rtol=1e-12)


def test_leave_one_out_of_a_fit_with_power_and_scheme_survives_files(tmp_path):
    given = ROWS | {"scheme": "laplace", "schedule": EP(power=0.5)}
    post = fit_linear(X, Y, weights=WEIGHTS, prior_variance=2.0, **given)
    post.save(tmp_path / "post.npz")
    again = epfast.load(tmp_path / "post.npz").with_rows(X, Y)
    np.testing.assert_array_equal(again.loo_log_predictive(), post.loo_log_predictive())
    assert again.residual == post.residual < 1e-4


# ---- 2 ----


@pytest.mark.parametrize("scheme", ["exact", "laplace"])
def test_residual_after_partial_fit(scheme):
    post = fit_linear(X, Y, prior_variance=2.0, **ROWS | {"scheme": scheme})
    more = post.partial_fit(NEW_X, NEW_Y)
    assert 1e-4 < more.residual < 1.0  # the old sites have not moved
    rows = np.vstack([X, NEW_X]), np.append(Y, NEW_Y)
    whole = fit_linear(*rows, start=more, prior_variance=2.0, **ROWS | {"scheme": scheme})
    assert whole.residual < 1e-4
    assert len(more.loo_log_predictive()) == 55


# ---- 3 ----


@pytest.mark.parametrize("weighted", [False, True])
def test_partial_fit_goes_on_by_the_scheme_and_power_of_the_fit(weighted):
    """The new rows are EP from the old posterior as the prior, with Laplace and power 1/2."""
    given = {"scheme": "laplace", "schedule": EP(power=0.5, tol=1e-12), "prior_variance": 2.0}
    post = fit_linear(X, Y, **ROWS | given)
    w = np.linspace(0.2, 1.0, 15) if weighted else np.ones(15)
    more = post.partial_fit(
        NEW_X, NEW_Y, weights=w if weighted else None, schedule=EP(power=0.5, tol=1e-12)
    )
    default = post.partial_fit(NEW_X, NEW_Y, weights=w if weighted else None)
    assert default.schedule.power == 0.5
    assert default.scheme == post.scheme == more.scheme
    np.testing.assert_allclose(default.mean, more.mean, atol=1e-4)

    # about the old mean, so that the prior of plain_ep is centred
    offset = NEW_X @ post.mean
    loss = epfast.Logistic()

    def laplace(y, m, v, power):
        """At power 1/2 a row of weight w < 1 is t^(w / 2)."""
        m, tilt = m + offset[rows], power * w[rows]
        h = m.copy()
        for _ in range(50):
            _, slope, curvature = loss.evaluate(y * h)
            h = h + ((m - h) / v - tilt * y * slope) / (1 / v + tilt * curvature)
        value, slope, curvature = loss.evaluate(y * h)
        tau = tilt * curvature
        variance = 1 / (1 / v + tau)
        lZ = -tilt * value - 0.5 * (h - m) ** 2 / v + 0.5 * np.log(variance / v)
        return lZ, (h - m) / v, (variance / v - 1) / v

    rows, sites = slice(None), np.zeros((3, 15))
    mean, covariance, _ = plain_ep(
        *(NEW_X, NEW_Y, laplace, post.covariance),
        power=0.5,
        blocks=[rows],
        sites=sites,
        damping=0.7,
    )
    np.testing.assert_allclose(more.mean, post.mean + mean, atol=1e-9)
    np.testing.assert_allclose(more.covariance, covariance, atol=1e-9)
    np.testing.assert_allclose(more.sites.precision[40:], sites[0], atol=1e-9)
    assert posterior(NEW_X, post.covariance, sites)[2] == pytest.approx(
        more.log_evidence - post.log_evidence, abs=1e-8
    )


# ---- 4 ----


def test_a_full_covariance_is_one_word_and_means_exact():
    post = fit_linear(X, Y, posterior="full")
    same = fit_linear(X, Y, **ROWS, prior_variance=1.0)
    assert isinstance(post, epfast.FullPosterior)
    assert post.scheme == epfast.schemes.Exact()
    np.testing.assert_array_equal(post.covariance, same.covariance)
    same = fit_linear(X, Y)
    np.testing.assert_array_equal(post.covariance, same.covariance)


# ---- 5 ----


@pytest.mark.parametrize("name", ["gamma", "curvature"])
def test_numbers_of_a_scheme_live_in_the_scheme(name):
    for fit in (fit_linear, epfast.backend.fit_minibatch, epfast.backend.tilted_moments):
        assert name not in inspect.signature(fit).parameters


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("block", {"schedule": EP(block=8), "posterior": "factorized", "batch_size": 10}),
        ("block", {"schedule": EP(block=8, order="parallel")}),
        ("block", {"schedule": EP(block=8), "scheme": "laplace", "batch_size": 10}),
        ("site_rule", {"schedule": EP(site_rule="keep")}),
    ],
    ids=str,
)
def test_a_number_that_is_not_used_is_refused(name, given):
    with pytest.raises(ValueError, match=f"^{name} .*not allowed with"):
        fit_linear(X, Y, **given)


@pytest.mark.parametrize("order", ["auto", "sequential", "parallel"])
def test_a_seed_without_a_random_order_is_refused(order):
    with pytest.raises(ValueError, match=r"^seed is 3 .*allowed"):
        EP(order=order, seed=3)


# ---- 6 ----


@pytest.mark.parametrize("variance", [25, 25.0, 1, np.float64(25.0), np.full(3, 25.0)], ids=repr)
def test_one_prior_whatever_its_type(variance):
    with pytest.raises(ValueError, match=r"^prior_precision .*prior_variance.*allowed"):
        fit_linear(X, Y, prior_precision=np.eye(3), prior_variance=variance)


@pytest.mark.parametrize("posterior", ["full", "factorized"])
def test_adf_with_a_start_takes_no_other_prior(posterior):
    post = fit_linear(X, Y, posterior=posterior, schedule=ADF())
    for name, value in [("prior_variance", 3.0), ("prior_mean", np.ones(3))]:
        with pytest.raises(ValueError, match=f"^{name} .*allowed with ADF"):
            fit_linear(
                *(NEW_X, NEW_Y), posterior=posterior, schedule=ADF(), start=post, **{name: value}
            )
    more = fit_linear(NEW_X, NEW_Y, posterior=posterior, schedule=ADF(), start=post)
    np.testing.assert_array_equal(more.prior_precision, post.prior_precision)


# ---- 7 ----

KINDS = {
    "rows": {},
    "factorised": {"posterior": "factorized", "prior_variance": 0.1},
    "minibatches": {"posterior": "factorized", "batch_size": 5, "prior_variance": 0.1},
    "propagation": {"posterior": "full", "batch_size": 5},
    "shared": {"schedule": epfast.AEP(tol=1e-6, damping=0.8)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_change_is_one_formula_and_so_is_converged(kind):
    given = {"schedule": EP(tol=1e-6, damping=0.8)} | KINDS[kind]
    moments = []

    def look(info, state):
        precision = state.precision if state.precision.ndim == 2 else np.diag(state.precision)
        covariance = np.linalg.inv(precision)
        moments.append((covariance @ state.shift, np.diag(covariance)))

    post = fit_linear(X, Y, callback=look, **given)
    assert post.converged
    assert post.n_refused == 0
    for info, (old, new) in zip(post.history[1:], itertools.pairwise(moments), strict=True):
        moved = abs(new[0] - old[0]) / np.sqrt(new[1]), 0.5 * abs(np.log(new[1] / old[1]))
        assert info.change == pytest.approx(np.max(moved) / 0.8, rel=1e-5, abs=1e-9)
    for before, info in itertools.pairwise(post.history):
        # damped log scales may follow where nothing else moves
        lag = abs(info.log_evidence - before.log_evidence) / 0.8
        lag = lag if lag > 1e-9 * abs(info.log_evidence) else 0.0
        assert (max(info.change, lag) <= 1e-6) == (info is post.history[-1])


def run(kind, sweeps, tol, **given):
    """A fit of some kind by that many sweeps at most."""
    if kind == "process":
        _, K, y = process(20)
        return fit_gp(K, y, schedule=EP(sweeps=sweeps, tol=tol), **given)
    schedule = (epfast.AEP if kind == "shared" else EP)(sweeps=sweeps, tol=tol)
    return fit_linear(X, Y, **KINDS[kind] | given | {"schedule": schedule})


@pytest.mark.parametrize("kind", [*KINDS, "process"])
def test_not_settled_is_one_warning(kind):
    with pytest.warns(epfast.ConvergenceWarning, match="^EP did not converge: after 2 sweeps"):
        post = run(kind, 2, 1e-9)
    assert not post.converged


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_refusals_count_sites(kind):
    """Factors that cannot be fitted: each site of them once a sweep, whatever its size."""
    wall = epfast.CustomLoss(
        lambda m: np.full_like(m, np.inf), lambda m: np.zeros_like(m), lambda m: np.ones_like(m)
    )
    post = run(kind, 3, 0.0, loss=wall)
    sites = 8 if "batch_size" in KINDS[kind] else 40
    assert [info.n_refused for info in post.history] == 3 * [sites]


# ---- 8 ----


@pytest.mark.parametrize("kind", [*KINDS, "process"])
def test_progress_is_called_with_what_is_done(kind):
    done = []
    run(kind, 3, 0.0, progress=done.append)
    factors = {"minibatches": 8, "propagation": 8, "process": 20}.get(kind, 40)
    assert sum(done) == 3 * factors


def test_nothing_is_patched():
    """Pieces of work are an argument of the engine, not of a function put in a module's place."""
    from epfast.gaussian.forms.kernel import ProcessEngine

    assert "chunk" in inspect.signature(ProcessEngine).parameters
