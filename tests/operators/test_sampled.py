"""Factors by importance sampling: the paper's oracle, its noise, and what it refuses."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import special, stats

from epfast import losses
from epfast.operators.messages import KINDS
from epfast.operators.oracles import DensityOracle
from epfast.operators.sampled import MessageProposal, SampledFactor
from tests.oracles.learned_factors import compound, divergence, logistic

MESSAGES = np.array([[0.3, 1.0], [-2.0, 4.0], [1.0, 0.01]])
LABELS = np.array([1.0, -1.0, 1.0])
ONE_TWO = np.tile([1.0, 2.0], (3, 1))
RNG = np.random.default_rng(0)


def random_walk(x, rng):
    return x + rng.normal(size=x.shape)


def scores(factor, truth, messages, data=None, seeds=40):
    """(error of targets and log_z) / sd, (seeds, n, 3)."""
    (place,) = factor({}).outputs
    family = factor({}).inputs[place]
    mine = messages[:, 2 * place : 2 * place + 2]
    kind = KINDS[family]
    want = np.column_stack([kind.targets(mine, truth.belief), truth.log_z])
    found = [factor({"seed": seed}).answer(messages, data) for seed in range(seeds)]
    assert all((answer.reason == 0).all() for answer in found)
    return np.array([
        (np.column_stack([kind.targets(mine, answer.belief), answer.log_z]) - want) / answer.sd
        for answer in found
    ])  # fmt: skip


def assert_calibrated(z):
    assert (np.abs(z) < 2.0).mean() > 0.92
    assert (np.abs(z.mean(axis=0)) < 4.0 / np.sqrt(len(z))).all()
    spread = z.std(axis=0)
    assert (spread > 0.6).all(), spread
    assert (spread < 1.5).all(), spread


class TestStandardErrors:
    @pytest.mark.parametrize("proposal", [None, "cavity", ("gaussian", 0.0, 20.0)])
    def test_logistic_factor(self, proposal):
        def factor(settings):
            return SampledFactor(log_density=logistic, proposal=proposal, draws=3000, **settings)

        messages, data = MESSAGES[:2], ONE_TWO[:2]
        truth = DensityOracle(logistic).answer(messages, data)
        assert_calibrated(scores(factor, truth, messages, data))

    def test_gamma_and_beta_messages(self):
        def of_gamma(settings):
            return SampledFactor(log_density=compound, inputs=("gamma",), draws=3000, **settings)

        messages, data = np.array([[6.0, 0.5], [1.5, 30.0]]), np.ones((2, 3))
        truth = DensityOracle(compound, ("gamma",)).answer(messages, data)
        assert_calibrated(scores(of_gamma, truth, messages, data))

        def density(p):
            return np.exp(-3.0 * p) + 0.1

        def of_beta(settings):
            return SampledFactor(density=density, inputs=("beta",), draws=3000, **settings)

        messages = np.array([[0.6, 2.0], [5.0, 3.0]])
        truth = DensityOracle(lambda p: np.log(density(p)), ("beta",)).answer(messages)
        assert_calibrated(scores(of_beta, truth, messages))

    @pytest.mark.parametrize("output", [0, 1])
    def test_forward_sampler(self, output):
        """z = x + noise: the factor is never evaluated."""

        def factor(settings):
            return SampledFactor(
                sample=random_walk, inputs=("gaussian", "gaussian"), output=output, draws=3000,
                **settings,
            )  # fmt: skip

        def log_density(x, z):
            return -0.5 * (z - x) ** 2 - 0.5 * np.log(2.0 * np.pi)

        messages = np.array([[0.3, 1.0, -0.5, 0.7]])
        truth = DensityOracle(log_density, ("gaussian",) * 2, outputs=(output,)).answer(messages)
        assert_calibrated(scores(factor, truth, messages))

    def test_sampled_gamma_and_beta_variables(self):
        """Densities of messages are those of the variable, not of its logarithm or log odds."""
        for family, draw, log_density in (
            (
                "gamma",
                lambda x, rng: np.exp(x + rng.normal(size=x.shape)),
                lambda x, t: -0.5 * (np.log(t) - x) ** 2 - np.log(t) - 0.5 * np.log(2 * np.pi),
            ),
            (
                "beta",
                lambda x, rng: special.expit(x + rng.normal(size=x.shape)),
                lambda x, p: (
                    -0.5 * (special.logit(p) - x) ** 2
                    - np.log(p * (1 - p))
                    - 0.5 * np.log(2 * np.pi)
                ),
            ),
        ):
            inputs = ("gaussian", family)
            messages = np.array([[0.2, 0.5, 2.0, 3.0]])

            def factor(settings, draw=draw, inputs=inputs):
                return SampledFactor(sample=draw, inputs=inputs, output=1, draws=2000, **settings)

            truth = DensityOracle(log_density, inputs, outputs=(1,)).answer(messages)
            assert_calibrated(scores(factor, truth, messages))

    def test_divergence_and_effective_draws(self):
        """Section 2: with the cavity as proposal mean log KL + log ESS is in [-1, -.3]."""
        rng = np.random.default_rng(0)
        n, draws = 400, 2000
        messages = np.stack([2.0 * rng.normal(size=n), np.exp(rng.normal(size=n))], axis=1)
        data = np.where(rng.random((n, 1)) < 0.5, [1.0, 2.0], [2.0, 1.0])
        truth = DensityOracle(logistic).answer(messages, data)
        found = SampledFactor(log_density=logistic, proposal="cavity", draws=draws).answer(
            messages, data
        )
        assert_array_equal(found.reason, 0)
        ess = 1.0 / (found.sd[:, 2] ** 2 + 1.0 / draws)
        kl = divergence(*truth.belief.T, *found.belief.T)
        assert -1.0 <= (np.log(kl) + np.log(ess)).mean() <= -0.3


class TestProposals:
    def test_far_from_the_cavity(self):
        """A datum 6 cavity sds away: the proposal is fitted again, and finds it."""

        def log_density(x, y):
            return -0.5 * (x - y[:, 0]) ** 2 / 0.05

        messages = np.array([[0.0, 1.0]])
        found = SampledFactor(log_density=log_density, draws=5000).answer(messages, [6.0])
        tau = 1.0 + 20.0
        assert found.reason[0] == 0
        assert_allclose(found.belief[0, 0], 120.0 / tau, atol=6.0 * found.sd[0, 0])
        assert_allclose(found.belief[0, 1], 1.0 / tau, rtol=6.0 * found.sd[0, 1])
        at_the_cavity = SampledFactor(log_density=log_density, proposal="cavity", draws=5000)
        assert at_the_cavity.answer(messages, [6.0]).reason[0] == 1

    def test_draws_of_a_mixture_have_its_density(self):
        """The weights of another density over it are 1 on average."""
        parts = np.array([[-1.0, 1.0]]), np.array([[3.0, 0.5]])
        for shares, products in (((1.0,), parts[:1]), ((0.3, 0.7), parts)):
            proposal = MessageProposal([KINDS["gaussian"]], tuple((p,) for p in products), shares)
            (u,) = proposal.draw(np.random.default_rng(0), 50_000)
            weight = np.exp(-((u + 0.5) ** 2) - proposal.log_density([u])) / np.sqrt(np.pi)
            assert abs(weight.mean() - 1.0) < 5.0 * weight.std() / np.sqrt(50_000)

    def test_densities_may_be_0(self):
        """A half-line: the truncated normal."""
        found = SampledFactor(density=lambda x: 1.0 * (x > 0.0)).answer(MESSAGES)
        sd = np.sqrt(MESSAGES[:, 1])
        truth = stats.truncnorm(-MESSAGES[:, 0] / sd, np.inf, MESSAGES[:, 0], sd)
        want = np.stack([truth.mean(), truth.var()], axis=1)
        off = KINDS["gaussian"].targets(MESSAGES, found.belief)
        off -= KINDS["gaussian"].targets(MESSAGES, want)
        assert (np.abs(off) < 5.0 * found.sd[:, :2]).all()

    def test_draws_double(self):
        few = SampledFactor(log_density=logistic, draws=200, min_ess=500.0)
        found = few.answer(MESSAGES, ONE_TWO)
        assert_array_equal(found.reason, 0)
        assert (found.sd[:, 2] ** 2 < 1.0 / 500.0).all()

    def test_the_papers_proposal_is_refused_where_it_misses(self):
        """N(0, 200) at (60, .1) has 3 effective draws of 500,000."""
        paper = SampledFactor(log_density=logistic, proposal=("gaussian", 0.0, 200.0))
        found = paper.answer([[60.0, 0.1]], [[1.0, 2.0]])
        assert paper.reasons[found.reason[0]].startswith("fewer than min_ess draws are effective")
        assert np.isnan(found.belief).all()
        assert np.isnan(found.log_z).all()
        # and ours finds it
        assert (
            SampledFactor(log_density=logistic).answer([[60.0, 0.1]], [[1.0, 2.0]]).reason[0] == 0
        )

    def test_tiny_shapes(self):
        found = SampledFactor(log_density=lambda x: 0.0 * x, inputs=("gamma",)).answer(
            [[1e-3, 2.0], [1e5, 2.0]]
        )
        assert_array_equal(found.reason, 0)
        off = np.log(found.belief[:, 0] / [1e-3, 1e5])
        assert (np.abs(off) < 5.0 * found.sd[:, 1]).all()


class TestRepeatable:
    def test_the_same_message_has_the_same_answer(self):
        factor = SampledFactor(log_density=logistic, draws=500)
        whole = factor.answer(MESSAGES, ONE_TWO)
        again = factor.answer(MESSAGES[::-1].copy(), ONE_TWO)
        one = factor.answer(MESSAGES[1:2], ONE_TWO[:1])
        assert_array_equal(whole.belief, again.belief[::-1])
        assert_array_equal(whole.belief[1:2], one.belief)
        assert_array_equal(whole.sd[1:2], one.sd)

    def test_other_seeds_data_and_powers_have_other_draws(self):
        def first(seed=0, y=(1.0, 2.0), power=1.0):
            factor = SampledFactor(log_density=lambda x, y: 0.0 * x, draws=500, seed=seed)
            return factor.answer(MESSAGES[:1], [y], power).belief[0, 0]

        assert len({first(), first(seed=1), first(y=(2.0, 1.0)), first(power=0.5)}) == 4

    def test_power(self):
        found = SampledFactor(log_density=logistic).answer(MESSAGES, ONE_TWO, power=0.5)
        truth = DensityOracle(logistic).answer(MESSAGES, ONE_TWO, power=0.5)
        off = KINDS["gaussian"].targets(MESSAGES, found.belief)
        off -= KINDS["gaussian"].targets(MESSAGES, truth.belief)
        assert (np.abs(off) < 5.0 * found.sd[:, :2]).all()


class TestObserved:
    def test_counts(self):
        """observe=0: draws that equal the count."""
        factor = SampledFactor(sample=lambda h, rng: rng.poisson(np.exp(h)), observe=0)
        truth = DensityOracle(
            lambda h, y: y[:, 0] * h - np.exp(h) - special.gammaln(y[:, 0] + 1.0)
        ).answer(MESSAGES, [1, 0, 3])
        found = factor.answer(MESSAGES, [1, 0, 3])
        off = KINDS["gaussian"].targets(MESSAGES, found.belief)
        off -= KINDS["gaussian"].targets(MESSAGES, truth.belief)
        assert (np.abs(off) < 5.0 * found.sd[:, :2]).all()
        assert (np.abs(found.log_z - truth.log_z) < 5.0 * found.sd[:, 2]).all()

    def test_a_kernel_adds_its_variance(self):
        factor = SampledFactor(
            sample=lambda x, data, rng: random_walk(data[:, 0] * x, rng), observe=0.5, draws=40_000
        )
        slope, y = 2.0, np.array([0.4, -1.0, 2.5])
        found = factor.answer(MESSAGES, np.stack([np.full(3, slope), y], axis=1))
        m, v = MESSAGES.T
        s = slope**2 * v + 1.25
        mean, variance = m + slope * v * (y - slope * m) / s, v - slope**2 * v * v / s
        assert (np.abs(found.belief[:, 0] - mean) < 5.0 * found.sd[:, 0] * np.sqrt(v)).all()
        assert (np.abs(np.log(found.belief[:, 1] / variance)) < 5.0 * found.sd[:, 1]).all()
        with pytest.raises(ValueError, match="data is None; allowed with observe="):
            factor.answer(MESSAGES)

    def test_a_point_mass_is_refused(self):
        with pytest.raises(ValueError, match="a point mass gives weight 0 to every draw; allowed"):
            SampledFactor(sample=lambda x, rng: x)


class TestRefusals:
    @pytest.mark.parametrize(
        ("log_density", "says"),
        [
            (lambda x: np.where(x > 0.0, np.inf, 0.0), "a weight is not finite"),
            (lambda x: np.where(x > 0.0, np.nan, 0.0), "a weight is not finite"),
            (lambda x: np.full_like(x, -np.inf), "fewer than min_ess"),
        ],
    )
    def test_weights(self, log_density, says):
        factor = SampledFactor(log_density=log_density, draws=500)
        found = factor.answer(MESSAGES[:1])
        assert factor.reasons[found.reason[0]].startswith(says)
        for part in found[:3]:
            assert np.isnan(part).all()

    def test_no_variance(self):
        factor = SampledFactor(
            sample=lambda x, rng: np.ones_like(x), inputs=("gaussian",) * 2, output=1
        )
        found = factor.answer([[0.0, 1.0, 0.0, 1.0]])
        assert factor.reasons[found.reason[0]] == "the projected variance is not positive"

    def test_infinite_draws_have_no_weight(self):
        def counts(h, rng):
            return np.where(rng.random(len(h)) < 0.5, np.inf, rng.poisson(np.exp(h)))

        found = SampledFactor(sample=counts, observe=0).answer(MESSAGES, [1, 0, 3])
        truth = SampledFactor(
            log_density=lambda h, y: y[:, 0] * h - np.exp(h) - special.gammaln(y[:, 0] + 1.0)
        ).answer(MESSAGES, [1, 0, 3])
        off = KINDS["gaussian"].targets(MESSAGES, found.belief)
        off -= KINDS["gaussian"].targets(MESSAGES, truth.belief)
        assert (np.abs(off) < 5.0 * np.hypot(found.sd, truth.sd)[:, :2]).all()
        assert (np.abs(found.log_z - truth.log_z - np.log(0.5)) < 5.0 * found.sd[:, 2]).all()


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: SampledFactor(), TypeError, "no function is given; allowed: one of log_density"),
        (
            lambda: SampledFactor(log_density=abs, sample=abs),
            TypeError,
            "log_density and sample is",
        ),
        (lambda: SampledFactor(density=3), TypeError, "density is 3; allowed: a callable"),
        (lambda: SampledFactor(log_density=abs, inputs=("x",)), ValueError, "inputs[0] is 'x'"),
        (lambda: SampledFactor(log_density=abs, output=1), ValueError, "output is 1; allowed: an"),
        (lambda: SampledFactor(log_density=abs, draws=0), ValueError, "draws is 0; allowed"),
        (
            lambda: SampledFactor(log_density=abs, max_draws=5),
            ValueError,
            "max_draws is 5; allowed",
        ),
        (
            lambda: SampledFactor(log_density=abs, draws=10, max_draws=50),
            ValueError,
            "min_ess is 100 of at most 50 draws",
        ),
        (lambda: SampledFactor(log_density=abs, min_ess=1), ValueError, "min_ess is 1; allowed"),
        (lambda: SampledFactor(log_density=abs, min_ess=np.nan), ValueError, "min_ess is nan"),
        (lambda: SampledFactor(log_density=abs, seed=-1), ValueError, "seed is -1; allowed"),
        (lambda: SampledFactor(log_density=abs, observe=1.0), ValueError, "observe is given; allo"),
        (
            lambda: SampledFactor(sample=random_walk, observe=-1.0),
            ValueError,
            "observe is -1.0; allowed",
        ),
        (
            lambda: SampledFactor(log_density=abs, proposal="prior"),
            ValueError,
            "proposal is 'prior'; allowed: 'cavity'",
        ),
        (
            lambda: SampledFactor(log_density=abs, proposal=("gaussian", 0, -1)),
            ValueError,
            "proposal for input 0 holds variance = -1",
        ),
        (
            lambda: SampledFactor(log_density=abs, proposal=("gamma", 1, 1)),
            ValueError,
            "proposal for input 0 is ('gamma', 1, 1); allowed: ('gaussian', mean, variance)",
        ),
        (lambda: SampledFactor(log_density=abs, proposal=3), TypeError, "proposal is 3; allowed"),
        (
            lambda: SampledFactor(sample=random_walk, inputs=("gaussian",) * 2).answer(
                np.ones((1, 4)), power=0.5
            ),
            ValueError,
            "power is 0.5; allowed with sample=: 1",
        ),
        (
            lambda: SampledFactor(sample=lambda x, rng: x[:3], inputs=("gaussian",) * 2).answer(
                np.ones((1, 4))
            ),
            ValueError,
            "what sample returned has shape (3,); allowed: (10000,)",
        ),
        (
            lambda: SampledFactor(density=lambda x: x).answer(MESSAGES),
            ValueError,
            "density returned -",
        ),
        (
            lambda: SampledFactor(log_density=lambda x: 1.0).answer(MESSAGES),
            ValueError,
            "log_density returned shape ()",
        ),
        (
            lambda: SampledFactor(log_density=abs).answer(MESSAGES[:, :1]),
            ValueError,
            "messages has",
        ),
    ],
)
def test_bad_input(make, error, says):
    with pytest.raises(error) as caught:
        make()
    assert says in str(caught.value)


def counts(h, rng):
    return rng.poisson(np.exp(np.minimum(h, 20.0)))


def fails_far_out(h, rng):
    if np.any(h > 1.0):
        raise RuntimeError("no steady state")
    return counts(h, rng)


def in_words(call, *said):
    with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
        call()
    words = " ".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    for part in said:
        assert part in words


def drawn(sample):
    return SampledFactor(sample=sample, observe=0.0, draws=200, min_ess=2).answer([[0.0, 1.0]], [1])


@pytest.mark.parametrize(
    ("sample", "given"),
    [
        (lambda h, random_state: counts(h, random_state), "(h, random_state)"),
        (lambda h, generator: counts(h, generator), "(h, generator)"),
        (lambda h: h, "(h)"),
        (lambda rng, h: counts(h, rng), "(rng, h)"),
        (lambda h, rng, /: counts(h, rng), "(h, rng, /)"),
        (lambda: 1.0, "()"),
    ],
)
def test_other_arguments_of_a_simulator(sample, given):
    """They are refused before a draw."""
    for name, make in (
        ("sample", lambda: SampledFactor(sample=sample, observe=0.0)),
        ("simulate", lambda: losses.Implicit(simulate=sample)),
    ):
        in_words(make, f"{name} is a function of {given}; allowed: of (", "rng, by this name")


@pytest.mark.parametrize(
    "sample",
    [
        lambda h, rng: list(counts(h, rng)),
        lambda h, rng: counts(h, rng).astype(np.float32),
        lambda h, rng: counts(h, rng).astype(object),
        lambda h, **more: counts(h, more["rng"]),
        lambda h, share=1.0, rng=None: share * counts(h, rng),
    ],
)
def test_other_simulators_that_serve(sample):
    assert_array_equal(drawn(sample).belief, drawn(counts).belief)
    assert losses.Implicit(simulate=sample).sample(np.zeros((2, 3)), RNG).shape == (2, 3)


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (lambda h, rng: 3.0, "returned has shape (); allowed: ("),
        (lambda h, rng: None, "returned is None; allowed: real numbers"),
        (lambda h, rng: counts(h, rng)[:-1], "returned has shape ("),
        (lambda h, rng: counts(h, rng)[:, None], "returned has shape ("),
        (lambda h, rng: ["a"] * len(h), "returned has dtype <U1; allowed: real numbers"),
        (lambda h, rng: np.ma.array(h, mask=h < 9.0), "returned has masked entries"),
        (lambda h, rng: np.where(h < 9.0, np.nan, h), "returned NaN for "),
        (lambda h, rng: 1.0 if h > 0.0 else 0.0, "takes a number and fails with an array of them"),
    ],
)
def test_what_simulators_may_not_return(sample, said):
    in_words(lambda: drawn(sample), "sample ", said)
    loss = losses.Implicit(simulate=sample)
    in_words(lambda: loss.sample(np.zeros(3), RNG), "simulate ", said)


def test_what_simulators_raise():
    """It is raised, with a note of where. It is no matter of arrays, though one number serves."""
    in_words(lambda: drawn(fails_far_out), "no steady state", "raised by sample, at 200 values of")
    loss = losses.Implicit(simulate=fails_far_out)
    in_words(lambda: loss.sample(np.arange(3.0), RNG), "no steady state", "3 values of 0 to 2")


def test_simulators_of_data_without_data():
    in_words(
        lambda: drawn(lambda h, scale, rng: scale[:, 0] * counts(h, rng)),
        "sample is a function of (h, scale, rng); allowed: of 1 arrays and rng",
    )
