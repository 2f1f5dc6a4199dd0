"""Extreme numbers: the right answer, or a finite one, or a clean refusal; never NaN or a crash."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import epfast
from epfast import ADF, EP, CustomLoss, PiecewiseLinear, backend, fit_linear
from epfast.schemes import Variational

CLEAN = (ValueError, TypeError, FloatingPointError)
LOSSES = ["logistic", "hinge", "quasi01", "probit", "noisy_step"]
SCHEMES = ["variational", "quadrature", "laplace", "quick_laplace"]


def softplus(m):
    with np.errstate(all="ignore"):
        return np.logaddexp(0.0, -m)


def sigmoid(m):
    with np.errstate(all="ignore"):
        return 1.0 / (1.0 + np.exp(-m))


# ---- the ends of the number line ----

ZEROS = (0.0, 0.0, 0.0)
ENDS = {
    "logistic": ((np.inf, -1.0, 0.0), ZEROS),
    "probit": ((np.inf, -np.inf, 1.0), ZEROS),
    "hinge": ((np.inf, -1.0, 0.0), ZEROS),
    "quasi01": ((np.inf, -0.1, 0.0), ZEROS),
    "noisy_step": ((-np.log(0.1), 0.0, 0.0), (-np.log(0.9), 0.0, 0.0)),
}


@pytest.mark.parametrize("loss", ENDS)
def test_losses_at_the_ends(loss):
    for count in (1, 9):  # a lone lane and whole vectors
        for margin, wanted in zip(
            (-np.inf, np.inf, np.nan), (*ENDS[loss], (np.nan,) * 3), strict=True
        ):
            got = backend.loss_values(loss, np.full(count, margin))
            np.testing.assert_allclose(got, np.repeat([wanted], count, 0).T, rtol=1e-15)
    assert not np.isnan(backend.loss_values(loss, [1e308, -1e308, 1e-308, 5e-324, -0.0])).any()


@pytest.mark.parametrize("mean", [-50.0, -1e6, -1e9, -1e12, -1e100, -1e150])
@pytest.mark.parametrize("variance", [1e-12, 1e-6, 1e-5, 1e-4, 1.0])
def test_probit_far_in_the_tail(mean, variance):
    """There -log Phi(m) is m^2 / 2 + log|m| + ..., of curvature 1 - 1/m^2 + ..."""
    precision, shift, _ = backend.fit_minibatch("probit", [[1.0]], [mean], [variance])
    np.testing.assert_allclose(precision, 1.0 - 1.0 / mean**2, rtol=1e-5)
    np.testing.assert_allclose(shift, -2.0 / mean, rtol=1e-2, atol=1e-10 * abs(mean))


@pytest.mark.parametrize("d", [2, 4, 8, 9, 17])
@pytest.mark.parametrize("loss", LOSSES)
def test_columns_do_not_disturb_each_other(loss, d):
    """A column whose steps are beyond the fast range shares a vector with tiny ones."""
    rows = np.full((5, d), 1e-13)
    alone = backend.fit_minibatch(loss, rows, np.zeros(d), np.ones(d))
    rows[:, 0] = 1e6
    beside = backend.fit_minibatch(loss, rows, np.zeros(d), np.ones(d))
    for one, other in zip(alone[:2], beside[:2], strict=True):
        np.testing.assert_allclose(other[1:], one[1:], rtol=1e-9)


# ---- anything at all ----

SIZES = (1e-300, 1e-160, 1e-30, 1e-8, 1e-3, 0.1, 1.0, 2.0, 30.0, 1e8, 1e30, 1e160, 1e300)
POWERS, SHARES = st.sampled_from(SIZES), st.sampled_from([1.0, 0.5, 1e-3, 1e-300])
STEPS = PiecewiseLinear((-1, 0, 2), (1, -1, 3, 2), 0.5, (1, -1, 0))
MINE = CustomLoss(softplus, lambda m: -sigmoid(-m), lambda m: sigmoid(m) * sigmoid(-m))
ANY_LOSS = st.sampled_from([*LOSSES, STEPS, np.abs, softplus, MINE])
ANY_SCHEME = st.sampled_from([*SCHEMES, Variational(solver="newton"), Variational(rule="fifth")])
ORDERS = st.sampled_from(["sequential", "shuffled", "parallel"])
ANY_EP = st.builds(
    EP, st.integers(1, 4), damping=SHARES, power=SHARES | POWERS, order=ORDERS, seed=st.just(0)
)
fuzz = settings(deadline=None, derandomize=True, max_examples=120, database=None)


@st.composite
def problems(draw):
    n, d = draw(st.integers(1, 12)), draw(st.integers(1, 10))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    with np.errstate(all="ignore"):
        scales = draw(POWERS) * 10.0 ** rng.choice(draw(st.sampled_from([[0], [-9, 0, 9]])), d)
        rows = np.clip(np.trunc(rng.normal(size=(n, d)) * 8) / 4 * scales, -1e308, 1e308)
    return rows, np.where(rng.random(n) < draw(st.sampled_from([0.0, 0.5])), 1.0, -1.0)


@fuzz
@given(
    problem=problems(), loss=ANY_LOSS, scheme=ANY_SCHEME,
    schedule=ANY_EP | st.builds(ADF, power=SHARES | POWERS),
    beta=st.just(1.0) | POWERS, gamma=st.none() | POWERS, prior=st.just(25.0) | POWERS,
    batch_size=st.integers(1, 13), site_rule=st.sampled_from(["nonnegative", "keep", "floor"]),
    curvature=st.sampled_from(["exact", "slope"]), record=st.sampled_from([None, "cost", "factor"]),
)  # fmt: skip
def test_fit_is_finite_or_refuses(problem, prior, **arguments):
    rows, labels = problem
    if not isinstance(arguments["scheme"], str):
        arguments |= {"gamma": None, "curvature": "exact"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", epfast.ConvergenceWarning)
        try:
            post = fit_linear(rows, labels, prior_variance=prior, **arguments)
        except CLEAN:
            return
        moments = [post.mean, post.variance, post.precision, post.shift]
        assert np.isfinite(moments).all()
        assert (post.variance > 0).all()
        assert np.isfinite(post.log_evidence)
        assert not np.isnan([info.change for info in post.history]).any()
        try:
            probability = post.predict_proba(rows)
        except CLEAN:
            return
    assert ((probability >= 0.0) & (probability <= 1.0)).all()


@fuzz
@given(
    problem=problems(), loss=ANY_LOSS, scheme=ANY_SCHEME, mean=st.just(0.0) | POWERS,
    variance=st.just(1.0) | POWERS, beta=st.just(1.0) | POWERS, gamma=st.none() | POWERS,
)  # fmt: skip
def test_minibatch_is_finite_or_refuses(problem, loss, scheme, mean, variance, beta, gamma):
    d = problem[0].shape[1]
    gamma = gamma if isinstance(scheme, str) else None
    cavity = np.full(d, mean), np.full(d, variance)
    try:
        precision, shift, scale = backend.fit_minibatch(
            loss, problem[0], *cavity, scheme, beta=beta, gamma=gamma
        )
    except CLEAN:
        return
    found = ~np.isnan(precision) | (scheme != "quadrature")  # which says NaN where it finds none
    assert np.isfinite([precision[found], shift[found]]).all()
    assert np.isfinite(scale)


@fuzz
@given(
    seed=st.integers(0, 99), d=st.integers(1, 3), extra=st.integers(0, 9), scale=POWERS,
    height=POWERS, weight=POWERS, full=st.booleans(), flat=st.booleans(),
)  # fmt: skip
def test_rule_fit_is_finite_or_refuses(seed, d, extra, scale, height, weight, full, flat):
    rng = np.random.default_rng(seed)
    z = extra + ((d + 1) * (d + 2) // 2 if full else 2 * d + 1)
    points, weights, logs = rng.normal(size=(z, d)), rng.random(z), rng.normal(size=z)
    try:
        fitted = backend.variational_fit(
            points * scale, weights * weight, logs * height,
            basis="full" if full else "diagonal", start="flat" if flat else "least_squares",
        )  # fmt: skip
    except CLEAN:
        return
    assert all(np.isfinite(part).all() for part in fitted)
