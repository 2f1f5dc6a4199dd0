"""Losses of a response in the core: Poisson, binomial, and a user's; tilted moments, refusals.

Against mpmath and plain NumPy; a binomial of one trial is the logistic loss.
"""

import mpmath as mp
import numpy as np
import pytest

from epfast._core.loss import CoreLoss
from epfast._core.minibatch import MinibatchSweep
from epfast._core.tilted import TiltedMoments
from tests.oracles.core_responses import (
    KINDS,
    binomial,
    data,
    poisson,
    user_loss,
)

pytestmark = pytest.mark.simd


# ---- the loss itself ----


def exact(kind, h, y):
    """Value, slope, curvature of a float h and floats y."""
    h, y = mp.mpf(float(h)), [mp.mpf(float(number)) for number in y]
    if kind == "poisson":
        return mp.exp(h) - y[0] * h + y[1], mp.exp(h) - y[0], mp.exp(h)
    p = 1 / (1 + mp.exp(-h))
    rest = 1 / (1 + mp.exp(h))
    return (
        y[1] * (mp.log1p(mp.exp(-abs(h))) + max(h, 0)) - y[0] * h - y[2],
        y[1] * p - y[0],
        y[1] * p * rest,
    )


RESPONSES = {
    "poisson": poisson([0, 1, 7, 200, 10**6]),
    "binomial": binomial([0, 1, 7, 0, 5000, 10**4], [1, 1, 10, 10**4, 10**4, 10**4]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_value_slope_curvature(kind):
    """Each relative to the larger of its two parts, whose difference it is."""
    places = np.array([-700.0, -40.0, -3.0, -1e-3, 0.0, 0.5, 2.0, 13.8, 36.0, 700.0])
    h, which = np.meshgrid(places, np.arange(len(RESPONSES[kind])))
    h, y = h.ravel(), np.ascontiguousarray(RESPONSES[kind][which.ravel()])
    got = [np.empty(h.size) for _ in range(3)]
    CoreLoss.table(kind).at(h, *got, y=y)
    with mp.workdps(40):
        for i in range(h.size):
            truth = exact(kind, h[i], y[i])
            size = [abs(y[i, 0] * h[i]) + y[i, -1], y[i, 0], 0.0]
            for j in range(3):
                error = abs(got[j][i] - truth[j]) / max(abs(truth[j]), size[j], mp.mpf("1e-300"))
                assert error < 1e-15, (h[i], y[i], j)


@pytest.mark.parametrize("kind", KINDS)
def test_limits(kind):
    y = np.ascontiguousarray(np.repeat(RESPONSES[kind][1:2], 3, axis=0))
    got = [np.empty(3) for _ in range(3)]
    CoreLoss.table(kind).at(np.array([np.nan, 710.0, -1e4]), *got, y=y)
    assert all(np.isnan(part[0]) for part in got)
    assert (got[0][1] == np.inf) == (kind == "poisson")  # exp(710) overflows, as it must
    assert np.isfinite([part[2] for part in got]).all()


# ---- differences of two sides ----


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_do_not_cancel(kind):
    """D and S of the variational rule in one coordinate, for steps from 1e-9 to 200."""
    X = np.array([[1.3, -0.4, 2.0, 1.0, -1.0, 0.5, 0.1, 0.9, -3.0]])  # more than a vector
    d = X.shape[1]
    for y in RESPONSES[kind]:
        for mean in (-6.0, 0.1, 3.0):
            for step in (1e-9, 1e-4, 0.3, 0.9, 1.2, 30.0, 200.0):
                if kind == "poisson" and step > 30.0:
                    continue
                center = np.full(d, mean / X.sum())
                sweep = MinibatchSweep(CoreLoss.table(kind), "variational", d, 1, gamma=step)
                fit = sweep.fit_one(X, center, np.ones(d), y[None])
                h = float((X @ center)[0])
                with mp.workdps(60):
                    for j in range(d):
                        move = mp.mpf(step) * mp.mpf(X[0, j])
                        up, here, down = (
                            exact(kind, 0, y)[0] * 0 + exact_at(kind, mp.mpf(h) + s * move, y)
                            for s in (1, 0, -1)
                        )
                        b, tau = (down - up) / (2 * step), (up + down - 2 * here) / step**2
                        size = abs(exact(kind, h, y)[1]) + y[0] * 1e-3 + 1.0
                        assert abs(fit[0][j] - tau) < 2e-13 * tau, (y, mean, step, j)
                        shift = b + tau * mp.mpf(center[j])
                        allowed = 1e-12 * (abs(b) + abs(tau * center[j]) + size)
                        assert abs(fit[1][j] - shift) < allowed, (y, mean, step, j)


def exact_at(kind, h, y):
    """The value at an h of many digits."""
    y = [mp.mpf(float(number)) for number in y]
    if kind == "poisson":
        return mp.exp(h) - y[0] * h + y[1]
    return y[1] * mp.log1p(mp.exp(h)) - y[0] * h - y[2]


# ---- tilted moments ----


def tilted_truth(kind, y, m, v, power):
    """Trapezoidal rule about the mode, where the integrand is above e^-110 of its largest value."""
    m, v, power = mp.mpf(m), mp.mpf(v), mp.mpf(power)

    def slope_of_log(h):
        count = mp.mpf(y[0])
        mean = mp.exp(h) if kind == "poisson" else mp.mpf(y[1]) / (1 + mp.exp(-h))
        return power * (count - mean) - (h - m) / v

    def log(h):
        return -power * exact_at(kind, h, y) - (h - m) ** 2 / (2 * v)

    ends = []
    for sign in (-1, 1):
        step, end = mp.mpf(1), m + sign
        while sign * slope_of_log(end) > 0:
            end += sign * step
            step *= 2
        ends.append(end)
    low, high = ends
    for _ in range(220):
        middle = (low + high) / 2
        low, high = (middle, high) if slope_of_log(middle) > 0 else (low, middle)
    top = log(low)
    sides = []
    for sign in (-1, 1):
        inner, outer = mp.mpf(0), mp.sqrt(v)
        while log(low + sign * outer) > top - 110:
            outer *= 2
        for _ in range(12):
            middle = (inner + outer) / 2
            above = log(low + sign * middle) > top - 110
            inner, outer = (middle, outer) if above else (inner, middle)
        sides.append(outer)
    count = int(max(400, sum(sides) / mp.mpf("0.25")))
    step = sum(sides) / count
    sums = [mp.mpf(0)] * 3
    for k in range(count + 1):
        away = k * step - sides[0]
        weight = mp.exp(log(low + away) - top)
        for j in range(3):
            sums[j] += weight * away**j
    mean, square = sums[1] / sums[0], sums[2] / sums[0]
    log_z = top + mp.log(sums[0] * step / mp.sqrt(2 * mp.pi * v))
    size = abs(power * exact_at(kind, low, y)) + (low - m) ** 2 / (2 * v)
    return log_z, (low + mean - m) / v, ((square - mean**2) / v - 1) / v, size


@pytest.mark.parametrize("v", [1e-8, 1e-3, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("kind", KINDS)
def test_tilted_moments(kind, v):
    """To 1e-10 of the terms that cancel: log Z of the logs of t and cavity, d2 of 1 / v."""
    rng = np.random.default_rng(3)
    tilted = TiltedMoments(CoreLoss.table(kind), by_slopes=True)
    cases = [
        (y, m, power)
        for y in RESPONSES[kind]
        for m in (-40.0, -8.0, 0.3, 5.0, 8.0, 60.0)
        for power in (0.5, 1.0, 2.0)
        if rng.random() < (0.15 if v < 1e3 else 0.04)
    ]
    got = [np.empty(1) for _ in range(3)]
    for y, m, power in cases:
        failed = tilted.many(y[None], np.array([m]), np.array([v]), np.array([power]), *got)
        assert not failed, (y, m, power)
        with mp.workdps(60):
            log_z, first, second, size = tilted_truth(kind, y, m, v, power)
            assert abs(got[0][0] - log_z) < 1e-13 * max(1, size) + 1e-10 * abs(log_z), (y, m, power)
            allowed = 1e-10 * max(abs(first), mp.mpf("1e-10"))
            assert abs(got[1][0] - first) < allowed, (y, m, power)
            assert abs(got[2][0] - second) < 1e-10 * min(1 / mp.mpf(v), abs(second) * 1e6)


@pytest.mark.parametrize("kind", KINDS)
def test_tilted_moments_of_a_python_loss(kind):
    """By values and derivatives, and by values alone."""
    X, y = data(kind, 60, 3)
    m, v = X[:, 0] * 3.0, np.exp(X[:, 1] * 4.0)
    power = np.where(X[:, 2] > 0, 1.0, 0.6)
    want, got = np.empty((3, 60)), np.empty((3, 60))
    assert TiltedMoments(CoreLoss.table(kind), (), True).many(y, m, v, power, *want) == 0
    for by_slopes in (True, False):
        assert TiltedMoments(user_loss(kind), (), by_slopes).many(y, m, v, power, *got) == 0
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9 / v.min())


@pytest.mark.parametrize("kind", KINDS)
def test_vector_kernel_equals_adaptive_quadrature(kind):
    """Sites of every sort, of which the kernel leaves some to the other: a Python loss, all."""
    rng = np.random.default_rng(5)
    n = 150
    m, v = rng.normal(0.0, 6.0, n), 10.0 ** rng.uniform(-6.0, 4.0, n)
    power = np.where(rng.random(n) < 0.5, 1.0, rng.uniform(0.1, 3.0, n))
    if kind == "poisson":
        y = poisson(np.floor(10.0 ** rng.uniform(-1.0, 4.0, n)))
    else:
        trials = np.ceil(10.0 ** rng.uniform(0.0, 4.0, n))
        y = binomial(np.floor(trials * rng.random(n) + 0.5 * (rng.random(n) < 0.5)), trials)
    want, got = np.empty((3, n)), np.empty((3, n))
    with np.errstate(over="ignore"):
        assert TiltedMoments(user_loss(kind), (), True).many(y, m, v, power, *want) == 0
    assert TiltedMoments(CoreLoss.table(kind), (), True).many(y, m, v, power, *got) == 0
    size = 1.0 + power * np.abs(y[:, -1])
    assert (np.abs(got[0] - want[0]) < 1e-10 * size).all()
    np.testing.assert_allclose(got[1], want[1], rtol=1e-7, atol=1e-9 / np.sqrt(v.min()))
    np.testing.assert_allclose(got[2] * v, want[2] * v, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_site_does_not_depend_on_its_neighbours(kind):
    X, y = data(kind, 37, 2)
    m, v = 4.0 * X[:, 0], np.exp(6.0 * X[:, 1])
    tilted, ones = TiltedMoments(CoreLoss.table(kind), (), True), np.ones(37)
    together, alone = np.empty((3, 37)), np.empty((3, 1))
    assert tilted.many(y, m, v, ones, *together) == 0
    for i in range(37):
        one = slice(i, i + 1)
        assert tilted.many(y[one], m[one], v[one], ones[one], *alone) == 0
        np.testing.assert_array_equal(alone[:, 0], together[:, i])


def test_a_response_with_a_kink():
    """Laplace noise |y - h| / s, a Python loss of values alone."""
    loss = CoreLoss.python(lambda h, y: np.abs(y[:, 0] - h) / 0.3, width=1)
    got = np.empty((3, 2))
    y, m, v = np.array([[0.2], [30.0]]), np.array([0.0, 1.0]), np.array([2.0, 2.0])
    assert TiltedMoments(loss).many(y, m, v, np.ones(2), *got) == 0
    h = np.linspace(-25.0, 60.0, 4_000_001)
    for i in range(2):
        log = -np.abs(y[i, 0] - h) / 0.3 - (h - m[i]) ** 2 / (2 * v[i])
        weight = np.exp(log - log.max())
        mean = (weight * h).sum() / weight.sum()
        variance = (weight * (h - mean) ** 2).sum() / weight.sum()
        log_z = log.max() + np.log(weight.sum() * (h[1] - h[0]) / np.sqrt(2 * np.pi * v[i]))
        want = log_z, (mean - m[i]) / v[i], (variance / v[i] - 1.0) / v[i]
        np.testing.assert_allclose(got[:, i], want, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("by_slopes", [True, False])
def test_one_trial_is_logistic(by_slopes):
    rng = np.random.default_rng(0)
    n = 300
    m, v = rng.normal(0, 4, n), np.exp(rng.normal(0, 3, n))
    sign = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    want, got = np.empty((3, n)), np.empty((3, n))
    for beta in (1.0, 0.7):
        loss = CoreLoss.table("logistic", beta=beta)
        TiltedMoments(loss, (), True).many(sign[:, None], m, v, np.ones(n), *want)
        loss = CoreLoss.table("binomial", beta=beta)
        y = binomial(sign > 0, 1)
        assert TiltedMoments(loss, (), by_slopes).many(y, m, v, np.ones(n), *got) == 0
        allowed = 1e-10 if by_slopes else 1e-8
        np.testing.assert_allclose(got[0], want[0], rtol=allowed, atol=1e-14)
        np.testing.assert_allclose(got[1], want[1], rtol=allowed, atol=allowed)
        np.testing.assert_allclose(got[2] * v, want[2] * v, rtol=allowed, atol=allowed)


@pytest.mark.parametrize("kind", KINDS)
def test_beta_is_a_power(kind):
    X, y = data(kind, 40, 3)
    m, v, ones = X[:, 0] * 3.0, np.exp(X[:, 1]), np.ones(40)
    parts = np.empty((2, 3, 40))
    TiltedMoments(CoreLoss.table(kind, beta=0.7), (), True).many(y, m, v, ones, *parts[0])
    TiltedMoments(CoreLoss.table(kind), (), True).many(y, m, v, 0.7 * ones, *parts[1])
    np.testing.assert_allclose(parts[0], parts[1], rtol=1e-12)


# ---- what is refused ----


def test_y_of_another_shape():
    X, y = data("poisson", 6, 2)
    loss = CoreLoss.table("poisson")
    tilted = TiltedMoments(loss)
    out, ones = np.empty((3, 6)), np.ones(6)
    for wrong in (y[:, :1].copy(), y[:5].copy()):
        with pytest.raises(ValueError, match="y has shape"):
            tilted.many(wrong, ones, ones, ones, *out)
        with pytest.raises(ValueError, match="y has shape"):
            loss.at(ones, out[0], y=wrong)
        sweep = MinibatchSweep(loss, "variational", 2, 6, gamma=1.0)
        with pytest.raises(ValueError, match="y has shape"):
            sweep.fit_one(X, ones[:2], ones[:2], wrong)
        with pytest.raises(ValueError, match="y has shape"):
            sweep.sweep(X, wrong, 2, np.arange(3), ones[:2].copy(), ones[:2].copy())
    with pytest.raises(ValueError, match="y has shape None"):
        loss.at(ones, out[0])


def test_errors_of_a_python_loss():
    """Raised again; the responses that a function gets are its own, to keep or to change."""
    seen = []

    def function(h, y):
        seen.append((h, y))
        y[:] = 7.0
        if len(seen) == 2:
            raise KeyError("mine")
        return np.abs(h)

    loss = CoreLoss.python(function, width=2)
    y, out = np.arange(6.0).reshape(3, 2), np.empty(3)
    loss.at(np.array([1.0, -2.0, 3.0]), out, y=y)
    np.testing.assert_array_equal(out, [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(y, np.arange(6.0).reshape(3, 2))
    with pytest.raises(KeyError, match="mine"):
        loss.at(np.zeros(3), out, y=y)
    loss = CoreLoss.python(lambda h, y: h[:-1], width=1)
    with pytest.raises(ValueError, match="for 3 rows"):
        loss.at(np.zeros(3), out, y=y[:, :1].copy())
