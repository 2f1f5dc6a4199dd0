"""The vector functions against mpmath, over the whole range, and at the special values."""

import mpmath as mp
import numpy as np
import pytest
from scipy import special

from epfast import backend
from epfast._core import vector

pytestmark = pytest.mark.simd

mp.mp.dps = 40
RNG = np.random.default_rng(2016)
TINY, HUGE = 5e-324, np.finfo(float).max


def function(name):
    """A vector function of the core on arrays."""

    def called(x):
        out = np.empty(len(x))
        vector.elementwise(name, x, out)
        return out

    return called


def logspace(lo, hi, n):
    return 10.0 ** RNG.uniform(lo, hi, n)


def signed(x):
    return np.concatenate([x, -x])


def mp_erfcx(t):
    if t < 100:
        return mp.exp(t * t) * mp.erfc(t)
    return sum((-1) ** k * mp.fac2(2 * k - 1) / (2 * t * t) ** k for k in range(8)) / (
        t * mp.sqrt(mp.pi)
    )


def mp_log_ndtr(x):
    if x > -30:
        tail = mp.erfc(abs(x) / mp.sqrt(2)) / 2
        return mp.log1p(-tail) if x > 0 else mp.log(tail)
    series = sum((-1) ** k * mp.fac2(2 * k - 1) / (x * x) ** k for k in range(12))
    return -x * x / 2 + mp.log(series / (-x * mp.sqrt(2 * mp.pi)))


# name, reference, points, allowed error in ulp
CASES = {
    "exp": (
        mp.exp,
        [
            RNG.uniform(-745.2, 709.8, 1500),
            signed(logspace(-320, 0, 300)),
            [709.78, -708.4, -745.1],
        ],
        2,
    ),
    "expm1": (
        mp.expm1,
        [RNG.uniform(-50, 709.7, 1000), RNG.normal(size=500), signed(logspace(-320, 0, 300))],
        2,
    ),
    "log": (
        mp.log,
        [logspace(-323.3, 308, 1500), 1 + RNG.normal(0, 0.1, 500), [TINY, 2.3e-308, HUGE]],
        4,
    ),
    "log1p": (
        mp.log1p,
        [logspace(-320, 308, 800), RNG.uniform(-1, 1, 500), -logspace(-300, -1e-3, 300)],
        4,
    ),
    "erfcx": (
        mp_erfcx,
        [RNG.uniform(0, 30, 500), logspace(-3, 10, 300), logspace(10, 307.7, 100), [0.0]],
        8,
    ),
    "log_ndtr": (mp_log_ndtr, [RNG.uniform(-40, 37, 1000), -logspace(-3, 8, 300)], 12),
}


def test_erfcx_up_to_the_largest_number():
    x = np.array([1e307, 1e308, 1.7e308, HUGE])
    np.testing.assert_allclose(function("erfcx")(x) * x, 1 / np.sqrt(np.pi), rtol=1e-14)
    assert function("erfcx")(np.array([np.inf]))[0] == 0.0


@pytest.mark.parametrize("name", CASES)
def test_error_in_ulp(name):
    reference, parts, allowed = CASES[name]
    x = np.concatenate([np.asarray(part, float) for part in parts])
    y = function(name)(x)
    for xi, yi in zip(x, y, strict=True):
        exact = reference(mp.mpf(float(xi)))
        ulp = mp.mpf(float(np.spacing(abs(float(exact))))) or mp.mpf(TINY)
        assert abs(mp.mpf(float(yi)) - exact) <= allowed * ulp, (name, xi, yi, float(exact))


SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, TINY, -TINY, 1e-310, 1e-300, HUGE, -HUGE, 1.0, -1.0]
SPECIAL += [709.79, 710.0, 1e4, -745.14, -746.0, -1e4, -2.0, np.nextafter(-1.0, 0), 2.0**-1022]


@pytest.mark.parametrize("name", ["exp", "expm1", "log", "log1p", "log_ndtr"])
def test_special_values(name):
    """Limits, signed zeros, NaN in, NaN out of the domain: as NumPy and SciPy."""
    x = np.array(SPECIAL)
    with np.errstate(all="ignore"):
        expected = (special.log_ndtr if name == "log_ndtr" else getattr(np, name))(x)
        y = function(name)(x)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
    known = ~np.isnan(expected)
    np.testing.assert_allclose(y[known], expected[known], rtol=2e-14, atol=TINY)
    if name != "log_ndtr":
        np.testing.assert_array_equal(np.signbit(y[known]), np.signbit(expected[known]))


@pytest.mark.parametrize("n", range(20))
def test_every_length_gives_the_same_numbers(n):
    """Whole vectors and the part at the end agree to the last bit."""
    x = np.linspace(0.1, 3.0, 20)
    for name in CASES:
        f = function(name)
        np.testing.assert_array_equal(f(x[:n]), f(x)[:n])


def test_no_floating_point_mode_is_changed():
    """-ffast-math would have put the process in flush-to-zero mode."""
    assert np.array([TINY])[0] * 1.0 == TINY
    assert np.float64(1e-308) / 10 > 0
    assert function("exp")(np.array([-745.0]))[0] == TINY


def test_build_config_reports_the_set_in_use(monkeypatch):
    config = backend.build_config()
    assert config["simd"] in config["simd_available"]
    assert config["simd_available"][0] == "baseline"
    assert config["lapack"] in ("scipy", "openblas")


@pytest.mark.full
def test_environment_variable_chooses_the_set(run_python):
    for name in backend.build_config()["simd_available"]:
        out = run_python(
            "import epfast; print(epfast.backend.build_config()['simd'])", EPFAST_SIMD=name
        )
        assert out.stdout.strip() == name
    out = run_python("import epfast", EPFAST_SIMD="avx9000", check=False)
    assert out.returncode != 0
    assert "EPFAST_SIMD" in out.stderr
    assert "avx9000" in out.stderr
    assert "baseline" in out.stderr
