"""Oracles against mpmath, each other, and what users get wrong."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import special

import epfast
from epfast import schemes
from epfast.operators.messages import KINDS
from epfast.operators.oracles import (
    CallableOracle,
    DensityOracle,
    Oracle,
    SiteOracle,
)
from epfast.operators.resolve import as_oracle
from epfast.operators.sampled import SampledFactor
from tests.oracles.learned_factors import (
    COMPOUND,
    LOGISTIC,
    compound,
    logistic,
    true_compound,
    true_logistic,
)

MESSAGES = np.array([[0.3, 1.0], [-2.0, 4.0], [1.0, 0.01]])
LABELS = np.array([1.0, -1.0, 1.0])


class TestTruth:
    @pytest.mark.full
    def test_logistic_factor(self):
        messages, data = (np.array(column, dtype=float) for column in zip(*LOGISTIC, strict=True))
        found = DensityOracle(logistic).answer(messages, data)
        mean, variance, log_z = np.array([true_logistic(*case) for case in LOGISTIC]).T
        assert_array_equal(found.reason, 0)
        assert_allclose(found.belief[:, 0], mean, rtol=1e-12, atol=1e-12 * variance.min() ** 0.5)
        assert_allclose(found.belief[:, 1], variance, rtol=1e-12)
        assert_allclose(found.log_z, log_z, rtol=1e-12, atol=1e-12)
        assert_array_equal(found.sd, 0.0)

    def test_compound_gamma_factor(self):
        messages, data = (np.array(column, dtype=float) for column in zip(*COMPOUND, strict=True))
        found = DensityOracle(compound, inputs=("gamma",)).answer(messages, data)
        shape, rate, log_z = np.array([true_compound(*case) for case in COMPOUND]).T
        assert_allclose(found.belief[:, 0], shape, rtol=1e-10)
        assert_allclose(found.belief[:, 1], rate, rtol=1e-10)
        assert_allclose(found.log_z, log_z, rtol=1e-10, atol=1e-10)

    def test_beta_message(self):
        """A binomial factor is conjugate: counts are added."""
        oracle = DensityOracle(
            lambda p, k: k[:, 0] * np.log(p) + k[:, 1] * np.log1p(-p), inputs=("beta",)
        )
        messages = np.array([[0.5, 2.0], [3.0, 1.0], [40.0, 70.0]])
        counts = np.array([[1.0, 0.0], [2.0, 5.0], [0.0, 0.0]])
        found = oracle.answer(messages, counts)
        assert_allclose(found.belief, messages + counts, rtol=1e-8)
        want = special.betaln(*(messages + counts).T) - special.betaln(*messages.T)
        assert_allclose(found.log_z, want, atol=1e-8)

    def test_two_variables_and_both_outputs(self):
        """N(z; x, v): belief propagation of Gaussians."""
        oracle = DensityOracle(
            lambda x, z, v: -0.5 * ((z - x) ** 2 / v[:, 0] + np.log(2.0 * np.pi * v[:, 0])),
            inputs=("gaussian", "gaussian"), outputs=(1, 0),
        )  # fmt: skip
        messages, v = np.array([[0.3, 1.0, -1.0, 2.0]]), 0.7
        found = oracle.answer(messages, [[v]])
        (a, va, b, vb), s = messages[0], va_vb(messages[0], v)
        want_z = [b + vb * (a - b) / s, vb - vb * vb / s]
        want_x = [a + va * (b - a) / s, va - va * va / s]
        assert_allclose(found.belief[0], [*want_z, *want_x], rtol=1e-9)
        assert_allclose(found.log_z, -0.5 * ((a - b) ** 2 / s + np.log(2 * np.pi * s)), rtol=1e-9)


def va_vb(message, v):
    return message[1] + message[3] + v


class TestSites:
    @pytest.mark.parametrize("name", ["logistic", "probit"])
    def test_the_triple(self, name):
        found = SiteOracle(name).answer(MESSAGES, LABELS)
        lz, dlz, d2lz = epfast.backend.tilted_moments(name, LABELS, *MESSAGES.T)
        m, v = MESSAGES.T
        assert_allclose(found.belief, np.stack([m + v * dlz, v + v * v * d2lz], axis=1))
        assert_allclose(found.log_z, lz)
        d, rho = KINDS["gaussian"].targets(MESSAGES, found.belief).T
        assert_allclose(d / np.sqrt(v), dlz, rtol=1e-9)
        assert_allclose(np.expm1(rho) / v, d2lz, rtol=1e-8)

    def test_agrees_with_the_density(self):
        density = DensityOracle(lambda z, y: special.log_expit(y[:, 0] * z))
        mine, other = (
            SiteOracle("logistic").answer(MESSAGES, LABELS),
            density.answer(MESSAGES, LABELS),
        )
        assert_allclose(mine.belief, other.belief, rtol=1e-9)
        assert_allclose(mine.log_z, other.log_z, rtol=1e-9)

    def test_power(self):
        mine = SiteOracle("logistic").answer(MESSAGES, LABELS, power=0.5)
        density = DensityOracle(lambda z, y: special.log_expit(y[:, 0] * z))
        assert_allclose(mine.belief, density.answer(MESSAGES, LABELS, power=0.5).belief, rtol=1e-9)
        with pytest.raises(ValueError, match=r"power is 0; allowed: a finite number > 0"):
            SiteOracle("logistic").answer(MESSAGES, LABELS, power=0)

    def test_without_data_messages_are_those_of_the_margin(self):
        oracle = SiteOracle("probit")
        folded = oracle.answer(MESSAGES * np.stack([LABELS, np.ones(3)], axis=1))
        found = oracle.answer(MESSAGES, LABELS)
        assert_allclose(found.log_z, folded.log_z)
        assert_allclose(found.belief[:, 0], LABELS * folded.belief[:, 0])

    def test_other_responses(self):
        loss = epfast.losses.Poisson()
        counts = np.array([0, 3, 12])
        mine = SiteOracle(loss).answer(MESSAGES, counts)
        raw = SiteOracle(loss).answer(MESSAGES, loss.responses("y", counts, 3))
        assert_allclose(mine.belief, raw.belief, rtol=1e-15)
        by_density = DensityOracle(
            lambda h, y: y[:, 0] * h - np.exp(h) - special.gammaln(y[:, 0] + 1.0)
        ).answer(MESSAGES, counts)
        assert_allclose(mine.belief, by_density.belief, rtol=1e-8)
        with pytest.raises(ValueError, match="data is None; allowed with"):
            SiteOracle(loss).answer(MESSAGES)

    def test_other_schemes(self):
        for scheme in ("laplace", schemes.Quadrature()):
            found = SiteOracle("logistic", scheme).answer(MESSAGES, LABELS)
            assert_array_equal(found.reason, 0)
            exact = SiteOracle("logistic").answer(MESSAGES, LABELS)
            assert_allclose(found.belief[:, 0], exact.belief[:, 0], atol=0.3)

    def test_what_fails_is_refused_with_a_reason(self):
        def moments(m, v):
            curvature = np.where(m > 0.5, -2.0 / v, -0.1 / v)
            return np.where(m < -1.0, np.nan, 0.0), 0.0 * m, curvature

        oracle = SiteOracle(epfast.CustomSite(moments))
        found = oracle.answer(MESSAGES)
        told = [oracle.reasons[k] for k in found.reason]
        assert told[0] == ""
        assert "no tilted moments" in told[1]
        assert "variance is not positive" in told[2]
        assert np.isnan(found.belief[1:]).all()
        assert np.isnan(found.sd[1:]).all()
        assert np.isfinite(found.belief[0]).all()

    def test_refused(self):
        with pytest.raises(ValueError, match="of several latents; allowed: of one"):
            SiteOracle(epfast.losses.Multiclass(3))
        with pytest.raises(ValueError, match="no standard errors; allowed: a scheme that draws"):
            SiteOracle("logistic", "importance")
        with pytest.raises(ValueError, match=r"data\[:, 0\]|y has the labels|data has the labels"):
            SiteOracle("logistic").answer(MESSAGES, [0, 1, 1])


class TestDensities:
    def test_blocks_change_nothing(self):
        oracle = DensityOracle(lambda x, y: special.log_expit(x * y[:, 0]))
        whole = oracle.answer(MESSAGES, LABELS)
        one = oracle.answer(MESSAGES[1:2], LABELS[1:2])
        assert_allclose(one.belief[0], whole.belief[1], rtol=1e-12)
        assert_array_equal(one.sd[0], whole.sd[1])

    def test_failures(self):
        oracle = DensityOracle(lambda x: np.full_like(x, np.nan))
        found = oracle.answer(MESSAGES)
        assert "log_density is -inf" in oracle.reasons[found.reason[0]]
        assert np.isnan(found.belief).all()

    @pytest.mark.parametrize(
        ("make", "error", "says"),
        [
            (lambda: DensityOracle(3), TypeError, "log_density is 3; allowed: a callable"),
            (lambda: DensityOracle(abs, "poisson"), ValueError, "inputs[0] is 'poisson'"),
            (lambda: DensityOracle(abs, outputs=(1,)), ValueError, "outputs is 1; allowed"),
            (lambda: DensityOracle(abs, outputs=()), ValueError, "outputs is (); allowed"),
            (lambda: DensityOracle(abs, outputs=(0, 0)), ValueError, "each once"),
            (
                lambda: DensityOracle(abs, ("gaussian",) * 3),
                ValueError,
                "inputs is ('gaussian', 'gaussian', 'gaussian'); allowed: one or two",
            ),
            (
                lambda: DensityOracle(lambda x: x[:2]).answer(MESSAGES),
                ValueError,
                "log_density returned shape (2,)",
            ),
            (
                lambda: DensityOracle(lambda x: x.astype(np.float32)).answer(MESSAGES),
                TypeError,
                "log_density returned numbers of dtype float32",
            ),
            (lambda: DensityOracle(abs).answer(-MESSAGES), ValueError, "messages holds variance"),
            (lambda: DensityOracle(abs).answer(MESSAGES[0]), ValueError, "messages has shape (2,)"),
            (
                lambda: DensityOracle(abs).answer(MESSAGES * np.nan),
                ValueError,
                "messages holds NaN",
            ),
            (lambda: DensityOracle(abs).answer(MESSAGES, [1.0]), ValueError, "data has shape (1,)"),
        ],
    )
    def test_bad_input(self, make, error, says):
        with pytest.raises(error) as caught:
            make()
        assert says in str(caught.value)

    def test_no_rows(self):
        found = DensityOracle(np.abs).answer(np.empty((0, 2)))
        assert found.belief.shape == (0, 2)
        assert found.sd.shape == (0, 3)


#: the families and the outputs of a site
ONE = ("gaussian",), (0,)


def identity(messages):
    return np.zeros_like(messages), None


class TestCallables:
    def test_targets_and_beliefs(self):
        exact = SiteOracle("logistic")

        def beliefs(messages):
            return exact.answer(messages).belief, None

        def targets(messages):
            found = exact.answer(messages)
            targets = KINDS["gaussian"].targets(messages, found.belief)
            return targets, np.full((len(messages), 3), 0.1), found.log_z

        want = exact.answer(MESSAGES)
        mine = CallableOracle(beliefs, gives="beliefs", exact=True).answer(MESSAGES)
        assert_allclose(mine.belief, want.belief, rtol=1e-14)
        assert np.isnan(mine.log_z).all()
        assert_array_equal(mine.sd, 0.0)
        other = CallableOracle(targets, has_log_z=True).answer(MESSAGES)
        assert_allclose(other.belief, want.belief, rtol=1e-12)
        assert_allclose(other.log_z, want.log_z)
        assert_array_equal(other.sd, 0.1)

    def test_the_function_cannot_change_the_messages(self):
        def careless(messages, data):
            messages[:] = 0.0
            data[:] = 0.0
            return messages, None

        messages, data = MESSAGES.copy(), LABELS.copy()
        CallableOracle(careless).answer(messages, data)
        assert_array_equal(messages, MESSAGES)
        assert_array_equal(data, LABELS)

    def test_rows_may_be_refused(self):
        def half(messages):
            return np.where(messages[:, :1] > 0.0, 0.0 * messages, np.nan), None

        oracle = CallableOracle(half)
        found = oracle.answer(MESSAGES)
        assert_array_equal(found.reason, [0, 1, 0])
        assert oracle.reasons[1] == "the function returned NaN"
        assert np.isnan(found.belief[1]).all()

    def test_what_is_not_representable_is_refused(self):
        oracle = CallableOracle(lambda messages: (np.full_like(messages, 1e4), None))
        found = oracle.answer(MESSAGES)
        assert "not representable" in oracle.reasons[found.reason[0]]
        assert np.isnan(found.belief).all()

    def test_not_deterministic(self):
        rng = np.random.default_rng(0)

        def noisy(messages):
            return rng.normal(size=messages.shape), None

        CallableOracle(noisy).answer(MESSAGES)
        with pytest.raises(ValueError, match="for the same message; allowed with exact=True"):
            CallableOracle(noisy, exact=True).answer(MESSAGES)

    def test_what_it_raises_is_raised_with_a_note(self):
        def broken(messages):
            raise ZeroDivisionError("mine")

        with pytest.raises(ZeroDivisionError, match="mine") as caught:
            CallableOracle(broken).answer(MESSAGES)
        assert caught.value.__notes__ == [
            "raised by the function of a CallableOracle, on 3 messages"
        ]

    @pytest.mark.parametrize(
        ("returned", "settings", "says"),
        [
            (lambda p: p, {}, "function returned an array of shape (3, 2)"),
            (lambda p: (p[:, :1], None), {}, "values that function returned has shape (3, 1)"),
            (lambda p: (p[:2], None), {}, "allowed: (3, 2)"),
            (lambda p: (p, p[:, :1]), {}, "errors that function returned has shape"),
            (lambda p: (p, -np.ones_like(p)), {}, "hold a negative number; allowed"),
            (lambda p: (p, p * np.nan), {}, "errors that function returned holds NaN"),
            (lambda p: (p * np.inf, None), {}, "holds NaN or infinity"),
            (lambda p: (p, np.ones_like(p)), {"exact": True}, "are not 0; allowed with exact="),
            (lambda p: (-p, None), {"gives": "beliefs"}, "returned holds variance = "),
            (lambda p: (p, None), {"has_log_z": True}, "a tuple (values, errors, log_z)"),
            (lambda p: (p, None, [np.nan] * 3), {"has_log_z": True}, "log_z that function"),
        ],
    )
    def test_bad_answers(self, returned, settings, says):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            CallableOracle(returned, **settings).answer(MESSAGES)
        assert says in str(caught.value)

    def test_bad_settings(self):
        with pytest.raises(TypeError, match="function is 3; allowed: a callable"):
            CallableOracle(3)
        with pytest.raises(ValueError, match="gives is 'moments'; allowed: 'targets', 'beliefs'"):
            CallableOracle(identity, gives="moments")
        with pytest.raises(TypeError, match="exact is 1; allowed: True or False"):
            CallableOracle(identity, exact=1)
        with pytest.raises(ValueError, match="power is 2; allowed with a CallableOracle: 1"):
            CallableOracle(identity).answer(MESSAGES, power=2.0)


class TestWhatIsMeant:
    def test_oracles(self):
        oracle = SiteOracle("probit")
        assert as_oracle(oracle, *ONE) is oracle
        assert as_oracle("exact", *ONE, epfast.Probit()) == oracle
        of_laplace = as_oracle(schemes.Laplace(), *ONE, epfast.Probit())
        assert of_laplace == SiteOracle("probit", "laplace")
        assert as_oracle(epfast.Probit(), *ONE) == oracle
        assert isinstance(as_oracle(identity, ("gamma",), (0,)), CallableOracle)

    def test_importance_sampling_has_standard_errors(self):
        oracle = as_oracle(epfast.ImportanceSampling(2000, seed=3), *ONE, epfast.Logistic())
        assert isinstance(oracle, SampledFactor)
        found = oracle.answer(MESSAGES, LABELS)
        exact = SiteOracle("logistic").answer(MESSAGES, LABELS)
        off = KINDS["gaussian"].targets(MESSAGES, found.belief)
        off -= KINDS["gaussian"].targets(MESSAGES, exact.belief)
        assert (np.abs(off) < 5.0 * found.sd[:, :2]).all()
        assert (found.sd > 0.0).all()

    def test_compiled_moments(self):
        ctypes = pytest.importorskip("ctypes")
        from scipy import LowLevelCallable

        double = ctypes.POINTER(ctypes.c_double)

        @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, double, double, double, ctypes.c_void_p)
        def gaussian(n, m, v, out, user):
            """N(u; 1, 2)"""
            for i in range(n):
                s, d = v[i] + 2.0, 1.0 - m[i]
                out[3 * i] = -0.5 * (d * d / s + np.log(2.0 * np.pi * s))
                out[3 * i + 1] = d / s
                out[3 * i + 2] = -1.0 / s
            return 0

        given = LowLevelCallable(
            gaussian, signature="int (int, double *, double *, double *, void *)"
        )
        found = as_oracle(given, *ONE).answer(MESSAGES)
        m, v = MESSAGES.T
        assert_allclose(found.belief[:, 1], 2.0 * v / (v + 2.0), rtol=1e-12)
        assert_allclose(found.belief[:, 0], (2.0 * m + v) / (v + 2.0), rtol=1e-12)

    @pytest.mark.parametrize(
        ("make", "error", "says"),
        [
            (lambda: as_oracle(3, *ONE), TypeError, "oracle is 3; allowed: an Oracle, a scheme"),
            (lambda: as_oracle("exat", *ONE, "probit"), ValueError, "did you mean 'exact'?"),
            (lambda: as_oracle(SiteOracle, *ONE), TypeError, "SiteOracle'>; allowed: an Oracle"),
            (
                lambda: as_oracle(SiteOracle("probit"), ("gamma",), (0,)),
                ValueError,
                "inputs is ('gamma'",
            ),
            (lambda: as_oracle(identity, ("gama",), (0,)), ValueError, "did you mean 'gamma'?"),
        ],
    )
    def test_bad_input(self, make, error, says):
        with pytest.raises(error) as caught:
            make()
        assert says in str(caught.value)

    def test_an_oracle_of_the_users(self):
        class Nothing(Oracle):
            inputs, outputs, exact, reasons = ("gamma",), (0,), True, ("", "not representable")

            def solve(self, messages, data, power):
                return self.finished(messages, [messages[0]], np.zeros(len(messages[0])))

        found = as_oracle(Nothing(), ("gamma",), (0,)).answer([[1.0, 2.0]])
        assert_array_equal(found.belief, [[1.0, 2.0]])
