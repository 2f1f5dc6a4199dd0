"""Models of learned operators against plain NumPy, and the site that one of them answers."""

import copy
import pickle

import mpmath as mp
import numpy as np
import pytest

from epfast import EP, backend, fit_linear
from epfast._core.just_in_time import JustInTime, LearnedSite
from epfast._core.loss import CoreLoss
from epfast._core.operator import DictionaryModel, FourierModel
from epfast._core.tilted import TiltedMoments
from epfast._core.vector import elementwise
from epfast.schemes import RowScheme

pytestmark = pytest.mark.simd

T = 3


def cosine(x):
    out = np.empty_like(x)
    elementwise("cos", x, out)
    return out


def test_cosine_to_the_last_digits():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-8, 8, 500), rng.uniform(-1e6, 1e6, 500), [1e6, -1e6, 0.0]])
    near = np.arange(1, 400, 2) * np.pi / 2
    x = np.concatenate([x, near])
    with mp.workdps(40):
        exact = np.array([float(mp.cos(mp.mpf(float(value)))) for value in x])
    np.testing.assert_allclose(cosine(x), exact, rtol=0, atol=2.5e-16)


def test_cosine_beyond_its_reduction():
    x = np.array([1e6 + 1.0, -3e9, 1e22, 5e-324, -0.0, 0.5])
    np.testing.assert_allclose(cosine(x), np.cos(x), rtol=0, atol=1e-15)
    assert np.isnan(cosine(np.array([np.inf, -np.inf, np.nan]))).all()


@pytest.mark.parametrize("n", range(18))
def test_cosines_of_every_length(n):
    x = np.linspace(-9.0, 9.0, 18)
    np.testing.assert_array_equal(cosine(x[:n]), cosine(x)[:n])


# ---- plain NumPy ----


def kernel(A, B):
    return np.exp(-0.5 * ((A[:, None] - B) ** 2).sum(axis=2))


class Plain:
    """The online dictionary, each time with a triangular solve."""

    def __init__(self, k, widths, cap):
        self.widths, self.cap = widths, cap
        self.Z, self.mean, self.S = np.zeros((0, k)), np.zeros((T, 0)), np.zeros((0, 0))

    def features(self, x):
        L = np.linalg.cholesky(kernel(self.Z, self.Z)) if len(self.Z) else np.zeros((0, 0))
        return np.linalg.solve(L, kernel(self.Z, x[None] / self.widths)[:, 0])

    def predict(self, x):
        phi = self.features(x)
        return self.mean @ phi, phi @ self.S @ phi + 1.0 - phi @ phi

    def update(self, x, y, noise):
        phi = self.features(x)
        rest = 1.0 - phi @ phi
        if rest > 1e-6 and len(self.Z) < self.cap:
            self.Z = np.vstack([self.Z, x / self.widths])
            phi = np.append(phi, np.sqrt(rest))
            self.mean = np.hstack([self.mean, np.zeros((T, 1))])
            self.S = np.pad(self.S, (0, 1))
            self.S[-1, -1] = 1.0
        gain = self.S @ phi / (noise + phi @ self.S @ phi)
        self.mean = self.mean + np.outer(y - self.mean @ phi, gain)
        self.S = self.S - np.outer(gain, self.S @ phi)


def spread_out(n, k, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, k)) * 4.0, rng.normal(size=(n, T))


def scratch(Phi, Y, noise):
    """(12) and (13)."""
    S = np.linalg.inv(Phi.T @ (Phi / noise[:, None]) + np.eye(Phi.shape[1]))
    return (S @ Phi.T @ (Y / noise[:, None])).T, S


def filled(k, r, cap, seed=0):
    """A dictionary of r points with the prior N(0, I), widths of its own."""
    widths = np.linspace(0.5, 1.5, k)
    Z = spread_out(4 * r, k, seed)[0] / widths
    keep, model = [], DictionaryModel(k, T, cap)
    for i, z in enumerate(Z):
        if len(keep) < r and not (kernel(Z[keep], z[None]) > 0.9).any():
            keep.append(i)
    L = np.linalg.cholesky(kernel(Z[keep], Z[keep]))
    model.set(widths, Z[keep], L, np.zeros((T, r)), np.eye(r))
    return model, widths, Z[keep], L


@pytest.mark.parametrize(("k", "r"), [(1, 3), (2, 16), (2, 40), (3, 33), (5, 64)])
def test_predictions_of_a_dictionary(k, r):
    model, widths, Z, L = filled(k, r, 70)
    rng = np.random.default_rng(1)
    half = rng.normal(size=(r, r))
    mean, S = rng.normal(size=(T, r)), half @ half.T / r
    model.set(widths, Z, L, mean, S)
    x = spread_out(50, k, 2)[0]
    phi = np.linalg.solve(L, kernel(Z, x / widths))
    targets, spread = model.predict(x)
    np.testing.assert_allclose(targets, (mean @ phi).T, rtol=1e-10, atol=1e-10)
    expected = (phi * (S @ phi)).sum(axis=0) + 1.0 - (phi**2).sum(axis=0)
    np.testing.assert_allclose(spread, expected, rtol=1e-10, atol=1e-11)


def test_two_thousand_updates_are_those_from_scratch():
    model, widths, Z, L = filled(2, 50, 50)
    X, Y = spread_out(2000, 2, 3)
    noise = 10.0 ** np.random.default_rng(4).uniform(-4, -1, 2000)
    for x, y, sigma in zip(X, Y, noise, strict=True):
        assert not model.update(x, y, sigma)
    mean, S = scratch(np.linalg.solve(L, kernel(Z, X / widths)).T, Y, noise)
    found = model.arrays()
    np.testing.assert_allclose(found["mean"], mean, rtol=0, atol=1e-10 * np.abs(mean).max())
    np.testing.assert_allclose(found["S"], S, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(found["S"], found["S"].T)


def test_growth_is_that_of_plain_updates():
    widths, cap = np.array([2.0, 1.5]), 40
    model, plain = DictionaryModel(2, T, cap), Plain(2, widths, cap)
    nothing = np.zeros((T, 0)), np.zeros((0, 0))
    model.set(widths, np.zeros((0, 2)), np.zeros((0, 0)), *nothing)
    X, Y = spread_out(200, 2, 5)
    np.testing.assert_array_equal(model.predict(X[:2])[1], 1.0)
    for i, (x, y) in enumerate(zip(X, Y, strict=True)):
        before = len(plain.Z)
        plain.update(x, y, 1e-3)
        assert model.update(x, y, 1e-3) == (len(plain.Z) > before)
        if i % 40 == 0:
            targets, spread = model.predict(X[-3:])
            for j in range(3):
                expected = plain.predict(X[-3 + j])
                np.testing.assert_allclose(targets[j], expected[0], rtol=1e-9, atol=1e-9)
                np.testing.assert_allclose(spread[j], expected[1], rtol=1e-9, atol=1e-10)
    assert model.used == len(plain.Z) == cap
    found = model.arrays()
    np.testing.assert_array_equal(found["Z"], plain.Z)
    np.testing.assert_allclose(found["mean"], plain.mean, rtol=1e-8, atol=1e-8)


def test_appended_rows_are_those_of_the_factor():
    model = DictionaryModel(2, T, 50)
    X = spread_out(60, 2, 6)[0]
    rows = [model.append(x) for x in X]
    assert sum(rows) == model.used == 50
    assert not any(rows[50:]) or not all(rows[:50])
    found = model.arrays()
    K = kernel(found["Z"], found["Z"])
    np.testing.assert_allclose(found["L"] @ found["L"].T, K, rtol=0, atol=1e-13)
    np.testing.assert_allclose(found["L"], np.linalg.cholesky(K), rtol=0, atol=1e-9)
    np.testing.assert_array_equal(found["S"], np.eye(50))
    np.testing.assert_array_equal(found["mean"], 0.0)


def test_a_point_of_the_dictionary_is_not_appended_again():
    model = DictionaryModel(1, T, 4)
    assert model.append(np.array([0.5]))
    assert not model.append(np.array([0.5]))
    assert not model.append(np.array([0.5 + 1e-4]))  # 1 - phi^2 = 1e-8
    assert model.append(np.array([0.51]))


def test_without_noise_a_target_is_hit_and_stays():
    """What contradicts it changes nothing: all of the variance left is rounding."""
    model = filled(2, 30, 30)[0]
    Y = spread_out(30, 2, 8)[1]
    X = model.arrays()["Z"] * model.arrays()["widths"]
    for x, y in zip(X, Y, strict=True):
        model.update(x, y, 0.0)
    for x, y in zip(X, Y, strict=True):
        model.update(x, y + 10.0, 0.0)
    targets, spread = model.predict(X)
    np.testing.assert_allclose(targets, Y, rtol=0, atol=1e-9)
    np.testing.assert_allclose(spread, 0.0, atol=1e-12)


def test_arrays_go_in_as_they_came_out():
    model = DictionaryModel(2, T, 40)
    model.set([0.3, 1 / 3], np.zeros((0, 2)), np.zeros((0, 0)), np.zeros((T, 0)), np.zeros((0, 0)))
    X, Y = spread_out(100, 2, 7)
    for x, y in zip(X[:60], Y, strict=False):
        model.update(x, y, 1e-2)
    other = DictionaryModel(2, T, 40)
    other.set(**model.arrays())
    for x, y in zip(X[60:], Y[60:], strict=True):
        model.update(x, y, 1e-2)
        other.update(x, y, 1e-2)
    for mine, theirs in zip(model.predict(X), other.predict(X), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    other.set(*(model.arrays()[name] for name in ("widths", "Z", "L", "mean", "S")))
    small = filled(2, 5, 40)[0].arrays()
    other.set(**small)  # what was there before is gone
    fresh = DictionaryModel(2, T, 40)
    fresh.set(**small)
    for x, y in zip(X[:30], Y, strict=False):
        other.update(x, y, 1e-2)
        fresh.update(x, y, 1e-2)
    for mine, theirs in zip(other.predict(X), fresh.predict(X), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def fourier(c, inner, outer, seed=0):
    rng = np.random.default_rng(seed)
    two_pi = 2 * np.pi
    return (
        rng.normal(size=(inner, c)),
        rng.uniform(0, two_pi, inner),
        rng.normal(size=(outer, inner)),
        rng.uniform(0, two_pi, outer),
    )


def two_stages(x, omega, b, nu, c):
    m, V = np.split(x, 2, axis=1)
    inner = np.sqrt(2 / len(b)) * np.cos(m @ omega.T + b) * np.exp(-0.5 * V @ (omega.T**2))
    return np.sqrt(2 / len(c)) * np.cos(inner @ nu.T + c)


@pytest.mark.parametrize(("c", "inner", "outer"), [(1, 7, 5), (2, 40, 33), (3, 65, 90)])
def test_fourier_features_in_two_stages(c, inner, outer):
    parts = fourier(c, inner, outer)
    model = FourierModel(T, *parts)
    X, Y = spread_out(100, 2 * c, 1)
    X[:, c:] = np.abs(X[:, c:])
    noise = np.full(100, 1e-3)
    np.testing.assert_allclose(
        model.predict(X)[1], (two_stages(X, *parts) ** 2).sum(axis=1), rtol=1e-12
    )
    for x, y in zip(X, Y, strict=True):
        assert not model.update(x, y, 1e-3)
    mean, S = scratch(two_stages(X, *parts), Y, noise)
    found = model.arrays()
    np.testing.assert_allclose(found["mean"], mean, rtol=0, atol=1e-10 * np.abs(mean).max())
    np.testing.assert_allclose(found["S"], S, rtol=0, atol=1e-10)
    other = FourierModel(T, *parts)
    other.set(**found)
    np.testing.assert_array_equal(other.predict(X)[0], model.predict(X)[0])


def test_refused_models():
    for bad in ((0, 3, 5), (33, 3, 5), (2, 0, 5), (2, 17, 5), (2, 3, 0), (2, 3, 10**6)):
        with pytest.raises(ValueError, match="allowed"):
            DictionaryModel(*bad)
    omega, b, nu, c = fourier(2, 7, 5)
    for bad in ((omega[0], b, nu, c), (omega, b[1:], nu, c), (omega, b, nu[:, 1:], c)):
        with pytest.raises(ValueError, match="allowed"):
            FourierModel(3, *bad)
    with pytest.raises(ValueError, match="c has shape"):
        FourierModel(3, omega, b, nu, c[1:])


def test_refused_arrays():
    model = filled(2, 5, 6)[0]
    good = model.arrays()
    bad = {
        "widths": [np.zeros(2), np.ones(3), np.array([1.0, np.nan])],
        "Z": [np.zeros((7, 2)), np.zeros((5, 3)), np.zeros(5), np.full((5, 2), np.inf)],
        "L": [np.zeros((5, 5)), np.eye(4)],
        "mean": [np.zeros((2, 5))],
        "S": [np.full((5, 5), np.nan), np.eye(4)],
    }
    before = model.predict(np.ones((1, 2)))
    for name, values in bad.items():
        for value in values:
            with pytest.raises(ValueError, match="allowed"):
                model.set(**good | {name: value})
    x, y = np.zeros(2), np.zeros(T)
    for arguments in (
        (x[1:], y, 0.1),
        (x, y[1:], 0.1),
        (x, y, -0.1),
        (x, y, np.nan),
        (x, y, np.inf),
        (x * np.nan, y, 0.1),
        (x, y + np.inf, 0.1),
    ):
        with pytest.raises(ValueError, match="allowed"):
            model.update(*arguments)
    for wrong in (np.zeros((3, 1)), np.full((1, 2), np.nan)):
        with pytest.raises(ValueError, match="x h"):
            model.predict(wrong)
    with pytest.raises(ValueError, match="out has"):
        model.predict(np.zeros((2, 2)), out=(np.zeros((2, T)), np.zeros(1)))
    for mine, theirs in zip(model.predict(np.ones((1, 2))), before, strict=True):
        np.testing.assert_array_equal(mine, theirs)


# ---- the site ----

EXACT = backend.TiltedMoments("logistic")


def exact(m, v):
    lZ, dlZ, d2lZ = EXACT(np.ones_like(m), m, v)
    return np.stack([dlZ * np.sqrt(v), np.log1p(v * d2lZ), lZ], axis=1)


OF_SITE = ("power", "data", "targets")
UNITS = {"scale": 1.0, "offset": 0.0, "amplitude": 1.0, "inflate": 1.0}


class Loop:
    """Logistic sites answered just in time by a dictionary."""

    def __init__(self, core=None, width=None, model=None, **options):
        core = core or CoreLoss.table("logistic")
        self.model = model or DictionaryModel(2, T, 80)
        self.asked = []
        options = {"tolerance": 0.05, "seed": 3} | options
        of_site = {k: options.pop(k) for k in OF_SITE if k in options}
        units = {k: options.pop(k, default) for k, default in UNITS.items()}
        self.jit = JustInTime(self.model.outputs, **options)
        self.jit.model = self.model
        self.jit.calibrate(**units)
        by_moments = self.model.by_moments
        self.site = LearnedSite(core, self.jit, self.ask, by_moments=by_moments, **of_site)
        self.moments = TiltedMoments(core, scheme=self.site)

    def ask(self, y, m, v, x, predicted, kind):
        self.asked.append((y, m, v, x, predicted, kind))
        triple = EXACT(np.ones(1), np.array([m]), np.array([v]))
        if kind != 2:
            targets = exact(np.array([m]), np.array([v]))[0]
            self.model.update(x, targets, 1e-8)
        return tuple(float(part[0]) for part in triple)

    def __call__(self, m, v, y=None, power=None, blocks=1):
        out = np.empty((3, len(m)))
        y = np.ones((len(m), 1)) if y is None else y
        power = np.ones(len(m)) if power is None else power
        for part in np.array_split(np.arange(len(m)), blocks):
            rows = slice(part[0], part[-1] + 1)
            self.moments.many(y[rows], m[rows], v[rows], power[rows], *(row[rows] for row in out))
        return out


def empty(k, cap, width=2.0):
    """Wider ones would take the logistic factor for smoother than it is."""
    model = DictionaryModel(k, T, cap)
    nothing = np.zeros((0, k)), np.zeros((0, 0)), np.zeros((T, 0)), np.zeros((0, 0))
    model.set(np.full(k, width), *nothing)
    return model


def cavities(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(0, 2.0, n), np.exp(rng.uniform(-1.5, 1.5, n))


def test_it_asks_less_and_less_and_is_right():
    loop = Loop(model=empty(2, 80), tolerance=0.02)
    m, v = cavities(2000)
    lZ, dlZ, d2lZ = loop(m, v)
    early = loop.jit.calls
    assert early < 80
    loop(*cavities(2000, 1))
    assert loop.jit.calls - early < early / 2
    assert loop.jit.visits == 4000
    expected = exact(m, v)
    # two deviations, and more for lZ, which decides nothing
    assert np.abs(dlZ * np.sqrt(v) - expected[:, 0]).max() < 0.04
    assert np.abs(np.log1p(d2lZ * v) - expected[:, 1]).max() < 0.04
    assert np.abs(lZ - expected[:, 2]).max() < 0.1


def test_blocks_do_not_matter():
    m, v = cavities(900)
    y = np.random.default_rng(5).choice([-1.0, 1.0], (900, 1))
    found = []
    for blocks in (1, 7, 900):
        loop = Loop(audit=0.1)
        found.append(loop(m, v, y, blocks=blocks))
        assert loop.jit.audits > 40
        kinds = [asked[-1] for asked in loop.asked]
        assert kinds.count(1) == loop.jit.audits
        assert len(kinds) == loop.jit.calls
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_margins_are_folded():
    """A label turns the mean about, and the slope back."""
    loop = Loop(mode=1)
    m, v = cavities(20)
    y = np.random.default_rng(5).choice([-1.0, 1.0], (20, 1))
    out = loop(m, v, y)
    np.testing.assert_allclose(out, EXACT(y[:, 0], m, v), rtol=1e-13)
    assert all(asked[0] is None for asked in loop.asked)
    np.testing.assert_array_equal([asked[1] for asked in loop.asked], y[:, 0] * m)
    plain = Loop(data=1, model=DictionaryModel(3, T, 5), mode=1)
    plain(m, v, y)
    np.testing.assert_array_equal([asked[0][0] for asked in plain.asked], y[:, 0])
    np.testing.assert_allclose([asked[3][2] for asked in plain.asked], np.arcsinh(y[:, 0]))


def linear(slope):
    """A model whose raw targets are slope times coordinate 0, nearly, and of spread near 0."""
    quarter = np.array([-np.pi / 2])
    model = FourierModel(T, np.array([[1e-6]]), quarter, np.ones((1, 1)), quarter)
    model.set(slope[:, None] / 2e-6, np.zeros((1, 1)))
    return model


@pytest.mark.parametrize("targets", ["site", "belief", "moments"])
def test_targets_become_the_triple(targets):
    loop = Loop(
        model=linear(np.array([0.1, -0.2, 0.3])),
        targets=targets,
        offset=[0.5, -0.7, -1.0],
        scale=[1.0, 2.0, 0.5],
    )
    m, v = cavities(30)
    out = loop(m, v)
    first, second, lZ = 0.5 + 0.1 * m, -0.7 - 0.4 * m, -1.0 + 0.15 * m
    if targets == "site":
        expected = lZ, first / np.sqrt(v), np.expm1(second) / v
    else:
        spread = np.exp(second) if targets == "belief" else second - first**2
        expected = lZ, (first - m) / v, (spread / v - 1) / v
    np.testing.assert_allclose(out, expected, rtol=1e-8, atol=1e-9)
    assert loop.jit.calls == 0


def test_what_is_unsure():
    """The largest deviation decides: amplitude, inflation and spread."""
    zero = np.zeros((1, 1))
    model = FourierModel(T, zero, zero[0], zero, zero[0])  # phi = sqrt(2)
    model.set(np.zeros((T, 1)), [[0.5 * 0.04]])  # spread 0.04
    m, v = np.zeros(1), np.ones(1)
    loop = Loop(model=model, tolerance=0.21)
    loop.ask = loop.site.ask = lambda *given: loop.asked.append(given)
    loop(m, v)
    assert not loop.asked
    for amplitude, inflate, asked in (
        ([1.2, 1.0, 1.0], 1.0, True),
        ([1.0, 1.2, 1.0], 1.0, True),
        ([1.0, 1.0, 1.2], 1.0, True),
        ([1.0, 1.0, 0.0], [1.0, 1.0, 9.0], False),
        (1.0, [1.0, 1.2, 1.0], True),
        (0.5, 2.0, False),
    ):
        loop.asked.clear()
        loop.jit.calibrate(1.0, 0.0, amplitude, inflate)
        loop(m, v)
        assert len(loop.asked) == asked
    loop.jit.tolerance = 0.19
    loop(m, v)
    assert len(loop.asked) == 1
    assert loop.asked[0][-1] == 0


def test_modes_and_an_empty_model():
    m, v = cavities(5)
    loop = Loop(mode=1)
    loop(m, v)
    loop(m, v)
    assert loop.jit.calls == 10
    loop.jit.mode = 0
    assert np.isfinite(loop(m, v)).all()
    assert loop.jit.calls == 10


def test_a_refused_site_has_no_triple():
    loop = Loop()
    loop.site.ask = lambda *given: None
    m, v = cavities(3)
    assert np.isnan(loop(m, v)).all()
    assert loop.jit.calls == 3


def test_a_row_of_zeros_is_not_to_be_learned():
    loop = Loop(mode=0)
    out = loop(np.zeros(1), np.array([1e-300]))
    assert loop.asked[0][-1] == 2
    np.testing.assert_allclose(out[0], np.log(0.5))
    assert loop.model.used == 0


def test_errors_come_through():
    def fails(*given):
        raise KeyError("mine")

    m, v = cavities(3)
    loop = Loop()
    loop.site.ask = fails
    with pytest.raises(KeyError, match="mine"):
        loop(m, v)
    loop.site.ask = lambda *given: (1.0, 2.0)
    with pytest.raises(ValueError, match="unpack"):
        loop(m, v)
    with pytest.raises(ValueError, match=r"power 0\.5, .*allowed: 1, "):
        Loop()(m, v, power=np.full(3, 0.5))
    assert np.isfinite(Loop(power=0.5)(m, v, power=np.full(3, 0.5))).all()


def test_coordinates_of_responses():
    core = CoreLoss.table("poisson")
    loop = Loop(core, model=DictionaryModel(4, T, 20), mode=1, data=2)
    m, v, y = *cavities(4), np.array([[0.0, 1.0], [1.0, 2.0], [3.0, 1.0], [20.0, 0.5]])
    loop(m, v, y)
    found = np.array([asked[3] for asked in loop.asked])
    expected = np.column_stack([m, np.log(v), np.arcsinh(y)])
    np.testing.assert_allclose(found, expected, rtol=1e-15)
    np.testing.assert_array_equal([asked[0] for asked in loop.asked], y)
    # means and then variances
    loop = Loop(core, model=FourierModel(T, *fourier(2, 7, 5)), mode=1, data=1)
    loop(m, v, y)
    found = np.array([asked[3] for asked in loop.asked])
    expected = np.stack([m, np.arcsinh(y[:, 0]), v, np.zeros(4)], axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-15)


def test_responses_that_are_no_numbers():
    loop = Loop(CoreLoss.table("poisson"), model=DictionaryModel(3, T, 20), data=1)
    with pytest.raises(ValueError, match="y holds NaN or infinity"):
        loop(np.zeros(1), np.ones(1), np.array([[np.inf, 1.0]]))


def test_refused_sites():
    core = CoreLoss.table("poisson")
    for model, more in (
        (DictionaryModel(2, T, 5), {}),
        (DictionaryModel(3, 2, 5), {}),
        (DictionaryModel(5, T, 5), {"data": 3}),
        (DictionaryModel(3, T, 5), {"data": -1}),
        (DictionaryModel(3, T, 5), {"targets": "message"}),
        (DictionaryModel(3, T, 5), {"scale": [1.0, 2.0]}),
        (DictionaryModel(3, T, 5), {"offset": np.nan}),
    ):
        with pytest.raises(ValueError, match="allowed"):
            Loop(core, model=model, **{"data": 1, **more})


def test_audits_have_their_share():
    loop = Loop(model=linear(np.zeros(3)), audit=0.05)
    loop.site.ask = lambda *given: (0.0, 0.0, 0.0)
    m, v = cavities(20_000)
    loop(m, v)
    assert loop.jit.calls == loop.jit.audits
    assert abs(loop.jit.audits - 1000) < 150
    loop.jit.audit = 1.0
    loop(m[:50], v[:50])
    assert loop.jit.calls == loop.jit.audits > 1000


class Looped(RowScheme):
    """A scheme whose sites a loop answers."""

    def __init__(self, **options):
        self.options, self.loops = options, []

    def tilted(self, loss, core=None):
        core = loss.shifted_core() if core is None else core
        self.loops.append(Loop(core, **self.options))
        return loss.tilted(core, self.loops[-1].site)


def fitted(scheme, n, **options):
    rng = np.random.default_rng(11)
    X = rng.normal(size=(n, 4))
    y = np.where(X @ rng.normal(size=4) + rng.logistic(size=n) > 0, 1, -1)
    return fit_linear(X, y, loss="logistic", scheme=scheme, **options)


@pytest.mark.parametrize("order", ["sequential", "parallel"])
def test_fits_by_a_learned_site(order):
    schedule = EP(sweeps=8, tol=0.0, order=order)
    scheme = Looped(model=empty(2, 200), tolerance=0.01, audit=1 / 64, amplitude=10.0)
    learned, exactly = (
        fitted(which, 300, schedule=schedule, posterior="full") for which in (scheme, "exact")
    )
    sd = np.sqrt(exactly.variance)
    assert (np.abs(learned.mean - exactly.mean) / sd).max() < 0.01
    np.testing.assert_allclose(learned.variance, exactly.variance, rtol=0.01)
    (loop,) = (loop for loop in scheme.loops if loop.jit.visits)
    assert loop.jit.visits == 8 * 300
    assert loop.jit.calls - loop.jit.audits < 90


def test_copies_of_a_row_settle_without_audits():
    """An audit in the middle would answer one step exactly and the next one by the model."""
    scheme = Looped(model=linear(np.array([0.0, 0.0, 0.0])), audit=1.0)
    schedule = EP(sweeps=3, tol=0.0)
    copies = fitted(scheme, 20, weights=np.full(20, 8.0), schedule=schedule)
    (loop,) = (loop for loop in scheme.loops if loop.jit.visits)
    assert 0 < loop.jit.audits < loop.jit.visits
    assert copies.n_refused == 0


def test_a_model_may_be_replaced_while_it_is_asked():
    loop = Loop()

    def ask(*given):
        loop.jit.model = linear(np.zeros(3))
        loop.jit.calibrate(1.0, [0.0, 0.0, -3.0], 1.0, 1.0)
        return (0.0, 0.0, -0.1)

    loop.site.ask = ask
    out = loop(*cavities(4))
    np.testing.assert_array_equal(out[0], [0.0, -3.0, -3.0, -3.0])
    assert loop.jit.calls == 1
    with pytest.raises(ValueError, match="allowed: 2 to 3"):
        loop.jit.model = DictionaryModel(3, T, 5)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda core: pickle.loads(pickle.dumps(core))])
@pytest.mark.parametrize("kind", ["dictionary", "fourier", "none"])
def test_copies_and_pickles_decide_and_learn_by_themselves(kind, copied):
    rng = np.random.default_rng(0)
    k, model = 2, None
    if kind == "dictionary":
        model = DictionaryModel(k, T, 12)
    elif kind == "fourier":
        drawn = [rng.normal(size=shape) for shape in ((5, 1), 5, (7, 5), 7)]
        model = FourierModel(T, *drawn)
    core = JustInTime(T, tolerance=0.7, audit=0.3, seed=2**63 - 1)
    core.calibrate([1.0, 2.0, 3.0], 0.5, [1.0, 0.2, 0.0], 2.0)
    core.model = model
    x, y = rng.uniform(0.5, 2.0, size=(40, k)), rng.normal(size=(40, T))
    if model is not None:
        for row, target in zip(x[:9], y[:9], strict=True):
            model.update(row, target, 0.1)

    def answers(given):
        out, first, ends = np.zeros((len(x), T)), 0, []
        while first < len(x):
            first, end = given.run(x, first, out)
            ends.append((first, end))
            first += 1
        return out, ends, given.visits, given.calls, given.audits

    other = copied(core)
    if model is not None:
        assert other.model is not model
        before = other.model.arrays()
        model.update(x[20], y[20], 0.1)
        for name, part in other.model.arrays().items():
            np.testing.assert_array_equal(part, before[name])
        other.model.update(x[20], y[20], 0.1)
    for mine, theirs in zip(answers(core), answers(other), strict=True):
        np.testing.assert_array_equal(mine, theirs)
