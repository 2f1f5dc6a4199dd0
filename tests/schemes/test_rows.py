"""Schemes on scalar sites: tilted moments against plain NumPy."""

import math

import numpy as np
import pytest
from scipy import optimize

import epfast
from epfast import ImportanceSampling
from epfast.backend import fit_minibatch, tilted_moments
from epfast.losses import resolve
from epfast.schemes import Laplace, Quadrature, QuickLaplace, Variational
from tests.oracles.triples import M, V, Y, assert_triples

LOSSES = [name for name, kind in epfast.losses.NAMED.items() if kind.by_margin]
EXPANDED = [name for name in LOSSES if QuickLaplace().refuses(resolve(name), "row") is None]
SMOOTH = [name for name in EXPANDED if not resolve(name).kinks]
TILTS = [(1.0, 1.0), (0.5, 1.0), (2.0, 0.7)]  # power, beta
tilts = pytest.mark.parametrize(("power", "beta"), TILTS)


def loss_at(name, m):
    return resolve(name).evaluate(m)


def plain_triple(c, b, tau, v):
    """log g = c + b (h - m) - tau (h - m)^2 / 2 integrated over N(m, v)."""
    variance = 1 / (1 / v + tau)
    with np.errstate(invalid="ignore"):  # improper entries are not used
        lz = c + 0.5 * np.log(variance / v) + 0.5 * b * b * variance
    return lz, variance * b / v, (variance / v - 1) / v


@tilts
@pytest.mark.parametrize("curvature", ["exact", "slope"])
@pytest.mark.parametrize("name", EXPANDED)
def test_quick_laplace_is_the_expansion_at_the_mean(name, curvature, power, beta):
    value, slope, curve = loss_at(name, Y * M)
    a = power * beta
    want = plain_triple(
        -a * value, -a * Y * slope, a * (curve, abs(slope))[curvature == "slope"], V
    )
    got = tilted_moments(name, Y, M, V, power, QuickLaplace(curvature), beta=beta)
    assert_triples(got, want)


@tilts
@pytest.mark.parametrize("name", SMOOTH)
def test_laplace_is_the_expansion_at_the_mode(name, power, beta):
    a, rows = power * beta, []
    for y, m, v in zip(Y, M, V, strict=True):

        def down(h, y=y, m=m, v=v):
            return a * y * loss_at(name, [y * h])[1][0] + (h - m) / v

        reach = 3 * (1 + a * v * (abs(m) + 3))
        h = optimize.brentq(down, m - reach, m + reach, xtol=1e-13, rtol=1e-14)
        near = optimize.minimize_scalar(
            lambda h, y=y, m=m, v=v: a * loss_at(name, [y * h])[0][0] + 0.5 * (h - m) ** 2 / v,
            bracket=(h - math.sqrt(v), h + math.sqrt(v)),
        )
        assert near.x == pytest.approx(h, abs=1e-6 * (1 + abs(h)))
        value, slope, curve = (part[0] for part in loss_at(name, [y * h]))
        step = m - h  # from about the mode to about the mean
        b, tau = -a * y * slope, a * curve
        rows.append((-a * value + b * step - 0.5 * tau * step**2, b - tau * step, tau))
    want = plain_triple(*np.array(rows).T, V)
    for scheme in ("laplace", Laplace(tol=0.1)):  # a row is fitted to rounding
        assert_triples(tilted_moments(name, Y, M, V, power, scheme, beta=beta), want, 1e-8)


@tilts
@pytest.mark.parametrize("gamma", [None, 1.1, math.sqrt(3)])
@pytest.mark.parametrize("name", LOSSES)
def test_quadratures_use_three_points(name, gamma, power, beta):
    """Gauss: weighted sums. Variational: the parabola through log t."""
    a, g = power * beta, math.sqrt(1.5) if gamma is None else gamma
    z = np.array([[-g], [0.0], [g]])
    w = np.array([[0.5 / g**2], [1 - 1 / g**2], [0.5 / g**2]])
    log_t = -a * np.array([loss_at(name, Y * (M + np.sqrt(V) * k))[0] for k in z])
    f = w * np.exp(log_t)
    mean = (f * z).sum(axis=0) / f.sum(axis=0)
    spread = (f * (z - mean) ** 2).sum(axis=0) / f.sum(axis=0)
    gauss = np.log(f.sum(axis=0)), mean / np.sqrt(V), (spread - 1) / V
    got = tilted_moments(name, Y, M, V, power, Quadrature(gamma), beta=beta)
    assert_triples(got, gauss, 1e-8)
    fit = np.array([np.polyfit(z[:, 0], column, 2) for column in log_t.T]).T
    proper = 2 * fit[0] < 0.999
    assert proper.sum() > 12
    keep = proper.nonzero()[0]
    want = plain_triple(fit[2], fit[1] / np.sqrt(V), -2 * fit[0] / V, V)
    scheme = Variational(gamma)
    got = tilted_moments(name, Y[keep], M[keep], V[keep], power, scheme, beta=beta)
    assert_triples(got, [part[keep] for part in want], 1e-7, V[keep])
    improper = (2 * fit[0] > 1.001).nonzero()[0]
    if improper.size:  # more precision than the cavity has is taken away
        some = [part[improper] for part in (Y, M, V)]
        with pytest.raises(FloatingPointError, match=f"{improper.size} of {improper.size}"):
            tilted_moments(name, *some, power, scheme, beta=beta)


def test_a_scalar_site_is_a_minibatch_of_one_row():
    for scheme in (Laplace(tol=1e-12), Variational(rule="fifth"), Quadrature(2.0)):
        for at in zip(Y, M, V, strict=True):
            y, m, v = (np.array([x]) for x in at)
            tau, nu, scale = fit_minibatch("logistic", y[:, None], m, v, scheme)
            c = scale + m * (nu - 0.5 * tau * m)
            want = plain_triple(c, nu - tau * m, tau, v)
            assert_triples(tilted_moments("logistic", y, m, v, scheme=scheme), want, 1e-8, v)


@tilts
@pytest.mark.parametrize("name", ["logistic", "quasi01", "noisy_step"])
def test_importance_sampling_converges(name, power, beta):
    exact = tilted_moments(name, Y, M, V, power, beta=beta)
    for samples in (2_001, 32_000):
        scheme = ImportanceSampling(samples, seed=3)
        got = tilted_moments(name, Y, M, V, power, scheme, beta=beta)
        # standard errors of the self-normalised means, by quadrature; pairs at most double variance
        z, w = np.polynomial.legendre.leggauss(300)
        z, w = (9 * z)[:, None], (9 * w)[:, None] * np.exp(-0.5 * (9 * z[:, None]) ** 2)
        w = w / w.sum()
        t = np.exp(-power * beta * loss_at(name, Y * (M + np.sqrt(V) * z))[0])
        total = (w * t).sum(axis=0)
        mean = (w * t * z).sum(axis=0) / total
        spread = (w * t * (z - mean) ** 2).sum(axis=0) / total
        influence = [t / total - 1, t * (z - mean) / total]
        influence.append(t * ((z - mean) ** 2 - spread) / total)
        for a, b, unit, part in zip(got, exact, (1, np.sqrt(V), V), influence, strict=True):
            error = np.sqrt(2 * (w * part**2).sum(axis=0) / samples)
            assert (np.abs(a - b) * unit <= 5 * error + 30 / samples + 1e-9).all()
