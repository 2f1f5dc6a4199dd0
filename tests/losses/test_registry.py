"""Every loss of the registry keeps the contract of a loss: a new one is tested by being named."""

import copy
import dataclasses
import json
import pickle

import numpy as np
import pytest
from scipy import special

import epfast
from epfast import losses
from epfast.losses.base import SMOOTH
from tests.oracles import brute_force
from tests.oracles.responses import example, kind_of

pytestmark = pytest.mark.simd

NAMED = losses.NAMED
WITH_LATENTS = {"multiclass": losses.Multiclass, "heteroscedastic": losses.Heteroscedastic}
PLAIN = [kind() for kind in NAMED.values()]
TEMPERED = [loss.tempered(0.7) for loss in PLAIN if "powers" in loss.gives]
ALL = [pytest.param(loss, id=f"{loss!r}-{loss.beta:g}") for loss in [*PLAIN, *TEMPERED]]
LIKELIHOODS = [loss for loss in PLAIN if loss.is_likelihood]
#: cavities
M, V = np.array([-2.0, -0.3, 0.0, 0.7, 1.5, 2.5]), np.array([0.1, 0.5, 1.0, 0.02, 2.0, 0.4])
N = len(M)

every_loss = pytest.mark.parametrize("loss", ALL)
every_plain_loss = pytest.mark.parametrize("loss", PLAIN, ids=repr)


def checked(loss, n=N, seed=0):
    """Responses as the core reads them."""
    return loss.responses("y", example(loss, n, seed), n)


def at(loss, h, y, responses):
    """Value, slope and curvature of l(h; y) in h, n at a time."""
    if not loss.by_margin:
        return loss.evaluate(h, y)
    sign = responses[:, 0]
    value, slope, curvature = loss.evaluate(sign * h)
    return value, sign * slope, curvature


def log_factor(loss, responses):
    """Log t of h of any shape, for the responses of one row."""

    def log_t(h):
        each = np.repeat(responses[None], h.size, axis=0)
        return -loss.values(np.ravel(h), each).reshape(h.shape)

    return log_t


def by_force(loss, responses, m, v):
    """Log Z and its first two derivatives, row by row."""

    def triple(y, *at):
        kinks = (0.0, *loss.kinks, *(-kink for kink in loss.kinks))
        if not loss.by_margin and loss.response_width > 1:  # responses may be places of change
            kinks = (*kinks, *(number for number in y if np.isfinite(number)))
        return brute_force.tilted(log_factor(loss, y), *at, kinks)

    return np.array([triple(*row) for row in zip(responses, m, v, strict=True)])[:, :, 0].T


def moments(loss, responses, m, v, power=1.0):
    found = np.empty((3, len(m)))
    powers = np.full(len(m), power)
    assert loss.tilted().many(responses, m, v, powers, *found) == 0
    return found


# ---- names ----


@pytest.mark.parametrize("name", NAMED)
def test_a_name_means_its_class(name):
    assert losses.resolve(name) == NAMED[name]()
    assert name == name.lower()
    assert losses.resolve(NAMED[name]()) == NAMED[name]()


def test_every_loss_that_needs_no_argument_has_a_name():
    for exported in map(losses.__dict__.get, losses.__all__):
        if isinstance(exported, type) and issubclass(exported, losses.Loss):
            try:
                found = exported()
            except (TypeError, ValueError):
                continue  # knots, functions, ...
            if not found.gives:
                continue  # only an operator knows its moments
            bases = losses.Loss, losses.LatentLoss
            assert exported in (*NAMED.values(), *WITH_LATENTS.values(), *bases)


def test_a_loss_without_a_row_has_no_core():
    with pytest.raises(ValueError, match="no values"):
        losses.Loss().core()


# ---- what the core gets ----


@every_plain_loss
def test_gives(loss):
    assert isinstance(loss.gives, frozenset)
    assert loss.gives <= SMOOTH | {"moments"}
    assert loss.gives & {"values", "moments"}
    assert ("moments" in loss.gives) <= (loss.own_moments(loss.core()) is not None)


@every_loss
def test_core(loss):
    core = loss.core()
    assert core.beta == loss.beta
    assert core.width == (0 if loss.by_margin or loss.by_residual else loss.response_width)


@every_plain_loss
def test_responses(loss):
    given = example(loss, 20)
    before = given.copy()
    found = loss.responses("y", given, 20)
    assert found.shape == (20, loss.response_width)
    assert found.dtype == np.float64
    assert found.flags.c_contiguous
    assert not np.isnan(found).any()
    np.testing.assert_array_equal(given, before)
    for same in (given.tolist(), given.astype(np.float32), np.asfortranarray(given), given[::1]):
        np.testing.assert_array_equal(loss.responses("y", same, 20), found)
    np.testing.assert_array_equal(loss.responses("y", given[:7], 7), found[:7])
    assert loss.responses("y", given[:0], 0).shape == (0, loss.response_width)


@every_plain_loss
def test_responses_are_checked(loss):
    given = example(loss, 20).astype(float)
    for wrong in (given[:-1], given[:, None], given[None], given[0], None, "labels", given + 1j):
        with pytest.raises((ValueError, TypeError), match="responses of t1"):
            loss.responses("responses of t1", wrong, 20)
    for value in (np.nan, np.inf):
        wrong = given.copy()
        wrong[3] = value
        with pytest.raises(ValueError, match="responses of t1"):
            loss.responses("responses of t1", wrong, 20)


@every_loss
def test_values_are_those_of_the_core(loss):
    """By rows, and for several latent values of each row."""
    if "values" not in loss.gives:
        return
    h, y = np.linspace(-4, 4, 41), example(loss, 41)
    responses = loss.responses("y", y, 41)
    values = loss.values(h, responses)
    assert values.shape == (41,)
    np.testing.assert_allclose(values, loss.beta * at(loss, h, y, responses)[0], rtol=1e-14)
    out = np.empty(41)
    if loss.by_margin:
        loss.core().at(h * responses[:, 0], out)
    else:
        loss.shifted_core().at(h, out, y=responses)
    np.testing.assert_allclose(loss.beta * out, values, rtol=1e-14)
    several = loss.values(np.stack([h, h[::-1]], axis=1), responses)
    np.testing.assert_array_equal(several[:, 0], values)
    np.testing.assert_allclose(several[:, 1], loss.values(h[::-1].copy(), responses), rtol=1e-14)


@every_plain_loss
def test_slope_and_curvature_are_derivatives(loss):
    if "derivatives" not in loss.gives:
        with pytest.raises(ValueError, match="slope and curvature"):
            loss.evaluate(np.zeros(3), example(loss, 3))
        return
    h, y = np.random.default_rng(3).uniform(-3, 3, 200), example(loss, 200)
    responses, step = loss.responses("y", y, 200), 1e-5
    near = np.abs(np.subtract.outer(h, [*loss.kinks, *(-k for k in loss.kinks)])) < 2 * step
    _, slope, curvature = at(loss, h, y, responses)
    up, down = (at(loss, h + sign * step, y, responses) for sign in (1, -1))
    smooth = ~near.any(axis=1)
    for found, k in ((slope, 0), (curvature, 1)):
        difference = (up[k] - down[k]) / (2 * step)
        np.testing.assert_allclose(found[smooth], difference[smooth], rtol=1e-6, atol=1e-6)


@every_plain_loss
def test_continuous_means_no_jump(loss):
    if "values" not in loss.gives:
        return
    grid = np.unique(np.concatenate([np.linspace(-3, 3, 2001), loss.kinks]))
    jump = 0.0
    for row in checked(loss):
        log_t = log_factor(loss, row)
        gap = np.abs(log_t(np.nextafter(grid, 9.0)) - log_t(np.nextafter(grid, -9.0)))
        jump = max(jump, gap.max())
    assert (jump < 1e-12) == ("continuous" in loss.gives)


@every_loss
@pytest.mark.parametrize("size", [30.0, 1e3, 1e8, 1e308])
def test_values_far_out_are_numbers(loss, size):
    if "values" in loss.gives:
        responses = checked(loss, 8)
        for sign in (1, -1):
            values = loss.values(np.full(8, sign * size), responses)
            assert not np.isnan(values).any()
            assert not (values == -np.inf).any()


# ---- tilted moments ----


@every_loss
def test_exact_moments_are_the_integrals(loss):
    if "values" not in loss.gives:
        return
    responses = checked(loss)
    found, wanted = moments(loss, responses, M, V), by_force(loss, responses, M, V)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(found[2], wanted[2], rtol=1e-7, atol=1e-8 / V.min())


@every_plain_loss
def test_a_power_is_a_temperature(loss):
    responses = checked(loss)
    if "powers" not in loss.gives:
        with pytest.raises(ValueError, match="power"):
            loss.check_power(0.6)
        return
    loss.check_power(0.6)
    np.testing.assert_allclose(
        moments(loss, responses, M, V, power=0.6),
        moments(loss.tempered(0.6), responses, M, V),
        rtol=1e-8,
        atol=1e-9,
    )


# ---- temperature ----


@every_plain_loss
def test_tempered(loss):
    assert loss.tempered(None) is loss
    assert loss.tempered(1.0) is loss
    for wrong in (0.0, -1.0, np.inf, np.nan, "hot", True, None):
        if wrong is not None:
            with pytest.raises((ValueError, TypeError), match="beta"):
                loss.tempered(wrong)
        with pytest.raises((ValueError, TypeError), match="beta"):
            type(loss)(beta=wrong)
    if "powers" not in loss.gives:
        with pytest.raises(ValueError, match="beta"):
            loss.tempered(0.5)
        return
    half = loss.tempered(0.5)
    assert type(half) is type(loss)
    assert (half.beta, loss.beta) == (0.5, 1.0)
    assert half == type(loss)(beta=0.5)
    assert half.tempered(4.0).beta == 2.0
    h, responses = np.linspace(-2, 2, N), checked(loss)
    np.testing.assert_allclose(half.values(h, responses), 0.5 * loss.values(h, responses))


# ---- prediction ----


@every_loss
def test_predictions_are_finite(loss):
    for m, v in ((M, V), (10 * M, np.zeros(N)), (1e3 * M, 1e-8 * V)):
        for found in (loss.predict(m, v), loss.predict_variance(m, v)):
            assert found.shape == (N,)
            assert not np.isnan(found).any()
        assert (loss.predict_variance(m, v) >= 0.0).all()
        log_p = loss.log_predictive(checked(loss), m, v)
        assert log_p.shape == (N,)
        assert not np.isnan(log_p).any()
    assert loss.predict(M[:0], V[:0]).shape == (0,)


@every_loss
def test_predict_proba(loss):
    if not loss.by_margin:
        return
    p = loss.predict_proba(M, V)
    assert ((p > 0.0) & (p < 1.0)).all()
    np.testing.assert_allclose(loss.predict_proba(-M, V), 1.0 - p, rtol=1e-9)
    assert loss.predict_proba(np.zeros(1), np.ones(1)) == pytest.approx(0.5)
    told = np.abs(p - 0.5) > 1e-9  # within rounding of one half either label will do
    np.testing.assert_array_equal(loss.predict(M, V)[told], np.where(p >= 0.5, 1.0, -1.0)[told])
    np.testing.assert_allclose(loss.predict_variance(M, V), 4 * p * (1 - p))
    labels = checked(loss)
    of_label = np.where(labels[:, 0] > 0, p, 1.0 - p)
    np.testing.assert_allclose(np.exp(loss.log_predictive(labels, M, V)), of_label, rtol=1e-7)


@every_loss
def test_log_odds_of_labels_reach_the_tails(loss):
    """Against sums over a fine grid, 50 sd to both sides; where h is certain, against t itself."""
    if not loss.by_margin:
        return
    places = [(-40.0, 1.0), (-7500.0, 374.0), (3.0, 100.0), (0.0, 2.0), (-0.5, 0.0)]
    for m, sd in places:
        h = m + sd * np.linspace(-50.0, 50.0, 400_001)
        log_t = log_factor(loss, np.ones(1))
        log_n = -0.5 * np.linspace(-50.0, 50.0, h.size) ** 2
        up, down = (special.logsumexp(log_t(s * h) + log_n) for s in (1.0, -1.0))
        found = loss.log_odds(np.array([m]), np.array([sd**2]))
        # a step between two points of the grid
        assert found == pytest.approx(up - down, rel=1e-5, abs=2e-4)
        label = loss.log_predictive(-np.ones((1, 1)), np.array([m]), np.array([sd**2]))
        assert label == pytest.approx(-np.logaddexp(0.0, found), rel=1e-6, abs=0)


@pytest.mark.parametrize("loss", LIKELIHOODS, ids=repr)
def test_log_predictive_of_a_likelihood(loss):
    """The integral of the factor; over all responses the probabilities sum to 1; their mean and
    variance are those predicted."""
    responses = checked(loss)
    found = loss.log_predictive(responses, M, V)
    np.testing.assert_allclose(found, by_force(loss, responses, M, V)[0], rtol=1e-8, atol=1e-9)
    certain = loss.log_predictive(responses, M, np.zeros(N))
    np.testing.assert_allclose(certain, loss.log_predictive(responses, M, 1e-14 * V), rtol=1e-6)
    kind = kind_of(loss)
    if kind.support is None:
        return
    count = len(kind.support)
    support, numbers = loss.responses("y", kind.support, count), kind.numbers
    for m, v in zip(np.clip(M, -2, 1), np.minimum(V, 0.4), strict=True):
        p = np.exp(loss.log_predictive(support, np.full(count, m), np.full(count, v)))
        assert p.sum() == pytest.approx(1.0, rel=1e-8)
        mean = p @ numbers
        variance = p @ (numbers - mean) ** 2
        assert loss.predict_variance(np.array([m]), np.array([v])) == pytest.approx(variance)
        if not loss.by_margin:
            wanted = numbers[p.argmax()] if hasattr(loss, "n_classes") else mean
            assert loss.predict(np.array([m]), np.array([v])) == pytest.approx(wanted)


def test_others_than_likelihoods_say_so():
    """exp(-l) over the labels does not sum to 1."""
    for loss in PLAIN:
        if loss.by_margin:
            m = M[M != 0.0]  # where a jump has half of both
            both = np.exp(-loss.evaluate(m)[0]) + np.exp(-loss.evaluate(-m)[0])
            assert np.allclose(both, 1.0) == loss.is_likelihood


# ---- files, copies, equality ----


@every_loss
def test_describe_and_restore(loss):
    text = json.dumps(losses.describe(loss))
    back = losses.restore(json.loads(text), loss.beta)
    assert back == loss
    assert type(back) is type(loss)
    h, responses = np.linspace(-2, 2, N), checked(loss)
    np.testing.assert_array_equal(back.values(h, responses), loss.values(h, responses))


@every_loss
def test_copies(loss):
    responses = checked(loss)
    for back in (pickle.loads(pickle.dumps(loss)), copy.deepcopy(loss), copy.copy(loss)):
        assert back == loss
        assert hash(back) == hash(loss)
        assert (back.beta, back.gives, back.kinks) == (loss.beta, loss.gives, loss.kinks)
        np.testing.assert_array_equal(
            moments(back, responses, M, V), moments(loss, responses, M, V)
        )


def test_equality():
    every = [*PLAIN, *TEMPERED]
    for i, one in enumerate(every):
        assert one == dataclasses.replace(one)
        assert [one == other for other in every] == [i == j for j in range(len(every))]
    assert len(set(every)) == len(every)


@every_plain_loss
def test_losses_do_not_change(loss):
    with pytest.raises(dataclasses.FrozenInstanceError):
        loss.beta = 2.0
    assert eval(repr(loss), vars(losses)) == loss


# ---- the door ----


def rows(loss, n, d):
    """Rows whose first column goes with the responses."""
    X, y = np.random.default_rng(5).normal(size=(n, d)), example(loss, n)
    noisy = X[:, 0] + 0.5 * np.random.default_rng(6).normal(size=n)
    in_order = np.empty_like(y)
    numbers = loss.responses("y", y, n)[:, 1 if loss.by_residual else 0]
    in_order[np.argsort(noisy)] = y[np.argsort(numbers, kind="stable")]
    return X, in_order


def is_convex(loss):
    grid = np.linspace(-4.0, 4.0, 401)
    return all((np.diff(log_factor(loss, row)(grid), 2) < 1e-9).all() for row in checked(loss))


@every_loss
def test_a_fit_is_near_brute_force(loss):
    """With the defaults of fit_linear, in one dimension, where EP loses little.

    Convex losses are within 0.02 nats, 5 % of a standard deviation, 10 % of the variance; others
    keep the posterior's place and scale.
    """
    X, y = rows(loss, 25, 1)
    post = epfast.fit_linear(X, y, loss=loss, prior_variance=0.5)
    assert post.converged
    responses = loss.responses("y", y, 25)

    def log_joint(theta):
        values = loss.values(X @ theta.T, responses)
        return -values.sum(axis=0) - theta[:, 0] ** 2 - 0.5 * np.log(np.pi)

    log_mass, mean, covariance = brute_force.posterior(log_joint, post.mean, post.covariance)
    nats, sds, ratio = (0.02, 0.05, 0.1) if is_convex(loss) else (0.3, 0.2, 0.5)
    assert post.log_evidence == pytest.approx(log_mass, abs=nats)
    np.testing.assert_allclose(post.mean, mean, atol=sds * np.sqrt(covariance[0, 0]))
    np.testing.assert_allclose(post.covariance, covariance, rtol=ratio)
    assert np.isfinite(post.log_predictive(X, y)).all()
    assert post.predict(X).shape == (25,)


@pytest.mark.parametrize("name", NAMED)
def test_a_name_is_enough(name):
    X, y = rows(NAMED[name](), 30, 2)
    by_name, by_class = (epfast.fit_linear(X, y, loss=loss) for loss in (name, NAMED[name]()))
    np.testing.assert_array_equal(by_name.mean, by_class.mean)
    assert by_name.loss == NAMED[name]()


OTHER_NAMES = {
    **dict.fromkeys(("t", "student", "studentt"), "student_t"),
    **dict.fromkeys(("nb", "negbin", "negbinomial", "negativebinomial"), "negative_binomial"),
    **dict.fromkeys(("bernoulli", "binary", "logit"), "logistic"),
    **{"gamma": "gamma_noise", "laplace": "laplace_noise", "normal": "gaussian"},
    **{"tobit": "censored", "asymmetric_laplace": "quantile"},
}


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_other_names_of_families(name):
    """What other packages call a family is the loss here, which is printed and saved by its own."""
    own = OTHER_NAMES[name]
    assert losses.resolve(name) == NAMED[own]()
    assert losses.describe(losses.resolve(name))["name"] == own
    door = epfast.LinearClassifier if own == "logistic" else epfast.LinearRegressor
    other = epfast.LinearRegressor if own == "logistic" else epfast.LinearClassifier
    X = np.random.default_rng(0).normal(size=(30, 1))
    y = X[:, 0] > 0.0 if own == "logistic" else np.arange(1.0, 31.0)
    model = door(loss=name, prior_variance=1.0, learn=None).fit(X, y)
    assert isinstance(model.posterior_.loss, NAMED[own])
    with pytest.raises(ValueError, match="allowed in a"):
        other(loss=name).fit(X, np.arange(30) % 2)
    with pytest.raises(ValueError, match=rf"loss is '{name}x'; allowed: '"):
        losses.resolve(f"{name}x")


def test_names_are_lower_case():
    for typed, meant in (("Normal", "gaussian"), ("Gamma", "gamma_noise"), ("NB", "negative_bin")):
        with pytest.raises(ValueError, match=f"did you mean '{meant}"):
            losses.resolve(typed)
