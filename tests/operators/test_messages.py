"""Families of messages: round trips, mpmath truths of targets."""

import mpmath
import numpy as np
import pytest
from scipy import special

from epfast.families import FAMILIES
from epfast.operators.messages import KINDS, check_data, check_messages, check_places


def some(kind, rng, n=200, wide=1.0):
    """Proper messages over many scales."""
    p = np.exp(wide * rng.normal(size=(n, 2)) * 3.0)
    if kind == "gaussian":
        p[:, 0] = 10.0 * rng.normal(size=n)
    return p


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("name", KINDS)
class TestAll:
    def test_natural_parameters_and_moments_are_those_of_the_family(self, name, rng):
        kind, p = KINDS[name], some(name, rng)
        eta = kind.natural(p)
        np.testing.assert_allclose(kind.usual(eta), p, rtol=1e-12, atol=1e-15)
        mean, variance = kind.moments(p)
        np.testing.assert_allclose(mean, FAMILIES[name].mean(eta), rtol=1e-12)
        np.testing.assert_allclose(variance, FAMILIES[name].variance(eta), rtol=1e-10)
        assert kind.is_proper(p).all()

    def test_targets_and_belief_are_inverses(self, name, rng):
        kind = KINDS[name]
        cavity, belief = some(name, rng, wide=0.7), some(name, rng, wide=0.7)
        targets = kind.targets(cavity, belief)
        found = kind.belief(cavity, targets)
        sd = np.sqrt(kind.moments(belief)[1])
        if name == "gaussian":
            np.testing.assert_allclose(found[:, 0], belief[:, 0], atol=1e-12 * sd.max())
            np.testing.assert_allclose(found[:, 1], belief[:, 1], rtol=1e-12)
        else:
            np.testing.assert_allclose(found, belief, rtol=1e-9)
        again = kind.targets(cavity, kind.belief(cavity, rng.normal(size=(200, 2))))
        assert np.isfinite(again).all()

    def test_a_factor_that_says_nothing_has_targets_0(self, name, rng):
        kind, p = KINDS[name], some(name, rng)
        np.testing.assert_array_equal(np.abs(kind.targets(p, p)), 0.0)
        np.testing.assert_allclose(kind.belief(p, np.zeros_like(p)), p, rtol=1e-9)

    def test_the_argument_is_not_modified(self, name, rng):
        kind, p, t = KINDS[name], some(name, rng), rng.normal(size=(200, 2))
        before, given = p.copy(), t.copy()
        for call in (kind.check, lambda _, p: kind.moments(p), lambda _, p: kind.coordinates(p)):
            call("p", p)
        kind.belief(p, t)
        np.testing.assert_array_equal(p, before)
        np.testing.assert_array_equal(t, given)

    def test_errors_are_those_of_draws(self, name, rng):
        """Targets of projections vary as integrands() and slopes() of their draws say."""
        kind = KINDS[name]
        cavity = np.array([[1.3, 2.0]])
        belief = np.array([[0.8, 1.1]]) if name == "gaussian" else np.array([[3.0, 4.0]])
        draws, times = 2000, 400
        if name == "gaussian":
            x = u = rng.normal(0.8, 1.1**0.5, size=(times, draws))
            stats = [x.mean(axis=1), x.var(axis=1)]
        elif name == "gamma":
            x = rng.gamma(3.0, 0.25, size=(times, draws))
            u = np.log(x)
            stats = [u.mean(axis=1), x.mean(axis=1)]
        else:
            x = rng.beta(3.0, 4.0, size=(times, draws))
            u = np.log(x) - np.log1p(-x)
            stats = [np.log(x).mean(axis=1), np.log1p(-x).mean(axis=1)]
        found = kind.usual(FAMILIES[name].matching(np.stack(stats, axis=1)))
        spread = kind.targets(np.repeat(cavity, times, axis=0), found).std(axis=0)
        centre = (
            np.log(0.75) if name == "gamma" else kind.family.location(kind.natural(belief))[0][0]
        )
        pair = np.stack(kind.family.integrands(u[0], np.asarray(centre)), axis=1)
        moved = (pair - pair.mean(axis=0)) @ kind.slopes(cavity[0], belief[0]).T
        errors = np.sqrt((moved**2).sum(axis=0)) / draws
        np.testing.assert_allclose(spread, errors, rtol=0.15)

    @pytest.mark.parametrize(
        ("p", "says"),
        [
            ([[1.0, 0.0]], "= 0; allowed"),
            ([[1.0, -2.0]], "= -2; allowed"),
            ([[np.nan, 1.0]], "NaN"),
            ([[1.0, np.inf]], "infinity"),
            ([1.0, 2.0], "shape"),
            ([[1.0, 2.0, 3.0]], "shape"),
        ],
    )
    def test_bad_messages(self, name, p, says):
        with pytest.raises(ValueError, match=says):
            KINDS[name].check("messages", np.array(p))


def test_gaussian_targets_are_the_triple():
    """dlZ = d / sqrt(v), d2lZ = (exp(rho) - 1) / v."""
    m, v, dlz, d2lz = 0.3, 2.0, -0.4, -0.2
    belief = np.array([[m + v * dlz, v + v * v * d2lz]])
    d, rho = KINDS["gaussian"].targets(np.array([[m, v]]), belief)[0]
    assert d == pytest.approx(np.sqrt(v) * dlz, rel=1e-14)
    assert np.expm1(rho) / v == pytest.approx(d2lz, rel=1e-14)


def test_gamma_targets():
    cavity, belief = np.array([[4.0, 3.0]]), np.array([[6.0, 2.0]])
    found = KINDS["gamma"].targets(cavity, belief)[0]
    np.testing.assert_allclose(found, [2.0 * np.log(3.0 / (4.0 / 3.0)), np.log(1.5)], rtol=1e-14)


def test_beta_targets():
    with mpmath.workdps(40):
        psi, a, b = mpmath.psi, (2, mpmath.mpf("3.5")), (5, mpmath.mpf("0.25"))
        sd = mpmath.sqrt(psi(1, a[0]) + psi(1, a[1]))
        shift = (psi(0, b[0]) - psi(0, b[1]) - psi(0, a[0]) + psi(0, a[1])) / sd
        want = [float(shift), float(mpmath.log(sum(b) / sum(a)))]
    found = KINDS["beta"].targets(np.array([[2.0, 3.5]]), np.array([[5.0, 0.25]]))[0]
    np.testing.assert_allclose(found, want, rtol=1e-13)


@pytest.mark.parametrize("total", [1e-3, 0.1, 1.0, 30.0, 1e4, 1e8])
def test_beta_belief_far_away(total):
    """The mean of the log odds is met wherever the Newton steps begin."""
    cavity = np.repeat([[0.3 * total, 0.7 * total]], 9, axis=0)
    targets = np.stack([np.array([-8, -3, -1, -1e-3, 0, 0.1, 2, 5, 9.0]), np.zeros(9)], axis=1)
    found = KINDS["beta"].belief(cavity, targets)
    assert KINDS["beta"].is_proper(found).all()
    np.testing.assert_allclose(found.sum(axis=1), total, rtol=1e-12)
    got = special.psi(found[:, 0]) - special.psi(found[:, 1])
    mean, log_variance = KINDS["beta"].coordinates(cavity).T
    want = mean + targets[:, 0] * np.exp(0.5 * log_variance)
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9 * np.exp(0.5 * log_variance[0]))


class TestDoors:
    def test_messages_of_several_inputs(self):
        given = np.array([[0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 1.0, 1.0]])
        z, p = check_messages("messages", given, ("gaussian", "beta"))
        np.testing.assert_array_equal(z, given[:, :2])
        np.testing.assert_array_equal(p, given[:, 2:])
        with pytest.raises(ValueError, match=r"messages has shape \(2, 4\); allowed: \(n, 2\)"):
            check_messages("messages", given, ("gaussian",))
        with pytest.raises(ValueError, match=r"messages\[:, 2:4\] holds alpha = -2"):
            check_messages("messages", given * [1, 1, -1, 1], ("gaussian", "beta"))
        with pytest.raises(TypeError, match="messages holds objects; allowed: real"):
            check_messages("messages", [["a", None]], ("gaussian",))

    def test_inputs(self):
        assert check_places("gaussian", 0) == (("gaussian",), (0,))
        assert check_places(["gamma", "beta"], [1, 0]) == (("gamma", "beta"), (1, 0))
        with pytest.raises(ValueError, match=r"inputs\[0\] is 'poisson'; allowed: 'gaussian', 'ga"):
            check_places(("poisson",), 0)
        for bad in ((), None, 3):
            with pytest.raises(TypeError, match=r"inputs is .*; allowed: a tuple of families"):
                check_places(bad, 0)

    def test_data(self):
        assert check_data("data", None, 3) is None
        assert check_data("data", [1, 2, 3], 3).shape == (3, 1)
        assert check_data("data", np.ones((3, 2)), 3).shape == (3, 2)
        with pytest.raises(ValueError, match=r"data has shape \(2,\); allowed: \(3,\) or \(3, q\)"):
            check_data("data", [1, 2], 3)
        with pytest.raises(ValueError, match="data holds NaN; allowed: numbers"):
            check_data("data", [1, np.nan, 2], 3)
