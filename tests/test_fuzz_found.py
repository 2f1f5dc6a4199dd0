"""What the fuzzer found: calls that end a process, claim too much, or fail in others' words."""

import contextlib
import warnings

import numpy as np
import pytest

import epfast
from epfast import backend, schemes
from epfast.schedules import AEP, DEP, EP, SEP

LABELS = np.array([1.0, -1.0, 1.0, -1.0, -1.0])


def unaligned(a):
    """The same numbers at an odd address."""
    a = np.asarray(a, dtype=float)
    result = np.zeros(8 * a.size + 1, np.uint8)[1:].view(float).reshape(a.shape)
    result[...] = a
    return result


@pytest.mark.parametrize("which", ["y", "mean", "variance", "power", "out"])
def test_arrays_at_odd_addresses(which):
    given = {"y": np.array([-1.0, 1.0]), "mean": np.array([0.1, -2.0]), "variance": np.ones(2)}
    given |= {"power": np.array([1.0, 0.5]), "out": np.empty((3, 2))}
    want = np.array(backend.tilted_moments("logistic", **given))
    given[which] = unaligned(given[which])
    np.testing.assert_array_equal(backend.tilted_moments("logistic", **given), want)
    if which != "power":
        given.pop("power")
        bound = backend.TiltedMoments("logistic")
        plain = {name: np.array(value) for name, value in given.items()}
        np.testing.assert_array_equal(bound(**given), bound(**plain))


def test_a_minibatch_at_odd_addresses():
    rng = np.random.default_rng(0)
    X, mean, variance = rng.normal(size=(4, 2)), rng.normal(size=2), np.ones(2)
    fit = backend.Minibatch("logistic", "variational", 2).fit
    want = fit(X, mean, variance)
    got = fit(unaligned(X), unaligned(mean), unaligned(variance))
    np.testing.assert_array_equal(got[0], want[0])


@pytest.mark.parametrize(
    "settings",
    [
        {"schedule": EP(damping=0.5)},
        {"schedule": EP(damping=0.5, order="parallel")},
        {"schedule": DEP(2, damping=0.5)},
        {"schedule": SEP()},
        {"schedule": AEP()},
        {"schedule": EP(damping=0.5), "batch_size": 2, "scheme": "laplace"},
    ],
    ids=str,
)
def test_damped_sites_that_carry_nothing(settings):
    """All that settles is the log evidence: n log t(0)."""
    post = epfast.fit_linear(np.zeros((5, 1)), LABELS, **settings)
    assert post.converged
    np.testing.assert_allclose(post.log_evidence, 5 * np.log(0.5), atol=1e-4)


def test_a_damped_process_that_carries_nothing():
    post = epfast.fit_gp(np.zeros((5, 5)), LABELS, schedule=EP(damping=0.5))
    assert post.converged
    np.testing.assert_allclose(post.log_evidence, 5 * np.log(0.5), atol=1e-4)


def test_rows_settle_too():
    """Along a direction that the prior leaves free the weights settle long before the rows."""
    X = np.repeat([[-1.73, 2.15]], 4, 0)
    post = epfast.fit_linear(X, [1, -1, -1, -1], prior_variance=1e10)
    assert post.converged
    assert post.residual < 1e-3
    with pytest.warns(epfast.ConvergenceWarning, match="not yet all rows"):
        short = epfast.fit_linear(
            X, [1, -1, -1, -1], prior_variance=1e10, schedule=EP(sweeps=post.n_sweeps - 1)
        )
    assert not short.converged


@pytest.mark.parametrize("power", [1.0, 0.1])
@pytest.mark.parametrize("loss", ["squared_hinge", "probit", "logistic"])
def test_moments_of_the_widest_cavities(loss, power):
    """There every factor is a step, whose moments are known."""
    for v in (1e50, 1e150, 1e300):
        lz, slope, curve = backend.tilted_moments(loss, [1.0], [0.0], [v], power=power)
        want = -np.log(2.0), np.sqrt(2.0 / np.pi / v), -2.0 / np.pi / v
        np.testing.assert_allclose((lz[0], slope[0], curve[0]), want, rtol=1e-8)


def test_student_t_in_the_widest_cavities():
    """There it is a point at y beside the cavity. Its derivatives fell below the least double."""
    for v in (1e150, 1e300):
        lz, slope, curve = backend.tilted_moments("student_t", [0.5], [0.0], [v])
        want = -0.5 * np.log(2.0 * np.pi * v), 0.5, -1.0
        np.testing.assert_allclose((lz[0], v * slope[0], v * curve[0]), want, rtol=1e-12)


def test_the_prior_is_not_returned_at_an_extreme_scale():
    wide = [
        epfast.fit_linear([[1.0], [2.0]], [1, -1], loss="squared_hinge", prior_variance=v)
        for v in (1e20, 1e150)
    ]
    assert all(post.converged for post in wide)
    np.testing.assert_allclose(wide[1].mean, wide[0].mean, rtol=1e-6)


def test_sweeps_that_stand_still_beside_a_jump():
    with pytest.warns(epfast.ConvergenceWarning, match="no fixed point"):
        gp = epfast.fit_gp(
            np.eye(5), np.ones(5), loss=epfast.NoisyStep(1e-6), scheme=schemes.Quadrature(2.0)
        )
    assert gp.residual > 0.1
    assert not gp.converged
    with pytest.warns(epfast.ConvergenceWarning, match="no fixed point"):
        post = epfast.fit_linear(
            np.eye(5), np.ones(5), loss=epfast.NoisyStep(1e-6), scheme=schemes.Quadrature(2.0)
        )
    assert not post.converged

    X = [[1.3365, 1.3365], [0.27, 0.268], [-0.324, -0.325], [-0.4332, -0.4329], [1.2475, 1.2463]]
    with pytest.warns(epfast.ConvergenceWarning, match="no fixed point"):
        post = epfast.fit_linear(
            X,
            [1, 1, -1, -1, 1],
            loss="noisy_step",
            posterior="factorized",
            batch_size=2,
            scheme=schemes.Quadrature(),
            schedule=DEP(order="shuffled"),
        )
    assert not post.converged


def test_cavities_that_are_proper_by_rounding_alone():
    """Sites were refused in all sweeps but the last, which was taken for a fixed point."""
    X = np.random.default_rng(0).normal(scale=10.0, size=(5, 12))
    y = [[2, 4], [1, 4], [2, 4], [1, 4], [0, 4]]
    with pytest.warns(epfast.ConvergenceWarning, match="narrow"):
        post = epfast.fit_linear(
            X, y, loss="binomial", prior_variance=1e8, schedule=EP(order="chunked")
        )
    assert np.isinf(post.residual)
    assert not post.converged


def test_probabilities_below_the_least_double():
    loss = epfast.PiecewiseLinear((0.0,), (-3.0, -1.0))
    post = epfast.fit_linear(1e3 * np.eye(2), [1, 1], loss=loss)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = post.log_predictive([[-1e6, 0.0]], [1])
    assert np.isfinite(found).all()
    assert found[0] < -745.0


GOOD = np.array([1.0]), np.array([0.1]), np.array([1.0])
BAD = [
    lambda: schemes.fifth_degree_rule(0),
    lambda: schemes.fifth_degree_rule("a"),
    lambda: backend.TiltedMoments("logistic")(GOOD[0], 10**400, GOOD[2]),
    lambda: backend.TiltedMoments("logistic")(GOOD[0], 1j, GOOD[2]),
    lambda: backend.TiltedMoments("poisson")(GOOD[0], [[1], [2, 3]], GOOD[2]),
    lambda: backend.TiltedMoments("logistic")(*GOOD, out=1.0),
    lambda: backend.tilted_moments("logistic", *GOOD, out=1.0),
    lambda: backend.Minibatch("logistic", "variational", 2).fit(
        np.ones((1, 2)), np.zeros(2), np.ones(2), out=1.0
    ),
    lambda: backend.Minibatch("logistic", "variational", 2).fit(
        np.ones((0, 2)), np.zeros(2), np.ones(2)
    ),
    lambda: epfast.fit_gp(np.eye(2), [1, -1]).log_evidence_gradient(1.0),
    lambda: epfast.fit_gp(np.eye(2), [1, -1], rank=1).log_evidence_gradient(1.0),
    lambda: epfast.fit_linear(np.eye(2), [1, -1]).remove([[1], [2, 3]]),
    lambda: epfast.fit_linear(np.eye(2), [1, -1]).log_likelihood(1),
    lambda: epfast.fit_linear(np.eye(2), [1, -1]).predict_latent(np.eye(2), joint=np.array([])),
    lambda: epfast.fit_gp(np.eye(2), [1, -1], overwrite_K=np.array([])),
    lambda: epfast.fit_linear(np.eye(2), [1, -1], record=np.array([])),
    lambda: epfast.fit_linear(np.eye(2), [1, -1], prior_mean=[1e200, 0.0]),
]


@pytest.mark.parametrize("call", BAD, ids=range(len(BAD)))
def test_errors_are_ours(call):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((ValueError, TypeError), match="allowed"):
            call()


def test_a_kernel_that_is_none():
    pytest.importorskip("sklearn")
    with pytest.raises(TypeError, match="kernel is"):
        epfast.GPClassifier(kernel={}).fit(np.eye(4), [0, 1, 0, 1])


def test_labels_that_cannot_be_sorted():
    pytest.importorskip("sklearn")
    y = np.array([0.0, 1.0, 0.0, 1.0, "x", 1.0], dtype=object)
    for model in (epfast.GPClassifier(optimizer=None), epfast.LinearClassifier()):
        with pytest.raises(TypeError, match="y holds labels that cannot be sorted"):
            model.fit(np.random.default_rng(0).normal(size=(6, 2)), y)


HUGE = np.diag([1.0, 1e308, 1.0])
OVERFLOWS = [
    lambda: epfast.fit_linear([[-1.0], [1e308], [1.5]], [1, -1, 1], loss="quasi01"),
    lambda: epfast.fit_gp(np.eye(3), [1, -1, 1]).sample_latent(np.eye(3)[:1], [[1e308]], 1),
    lambda: epfast.fit_gp(np.eye(3), [1, -1, 1]).predict_latent(
        np.eye(3)[:1], np.longdouble("1e4000")
    ),
    lambda: epfast.fit_linear(np.eye(3), [1, -1, 1], prior_precision=-HUGE),
    lambda: epfast.fit_svm(np.full((3, 1), 1e308), [1, -1, 1], kernel="rbf"),
    lambda: epfast.fit_gp(HUGE, [1, -1, 1], loss="quasi01", schedule=epfast.DoubleLoop()),
    lambda: epfast.fit_gp(1e-309 * np.eye(3), [1, -1, 1], schedule=epfast.DoubleLoop()),
]


@pytest.mark.parametrize("call", OVERFLOWS, ids=range(len(OVERFLOWS)))
def test_what_overflows_is_no_warning_of_numpy(call):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("error", RuntimeWarning)
        with contextlib.suppress(ValueError, FloatingPointError):
            call()


def test_a_mean_beyond_the_digits_of_a_double():
    loss = epfast.PiecewiseLinear((0.8,), (-2.0, -1.7))
    for fit in (
        lambda: epfast.fit_linear(3 * np.eye(3), [1, -1, 1], loss=loss, prior_variance=1e60),
        lambda: epfast.fit_gp(1e60 * np.eye(3), [1, -1, 1], loss=loss),
    ):
        with pytest.warns(epfast.ConvergenceWarning, match="standard deviations from 0"):
            post = fit()
        assert not post.converged


def test_a_process_of_a_huge_and_nearly_singular_kernel():
    """Variances from an inverse had no digits here, and sweeps stood still at no fixed point."""
    K = np.eye(5)
    K[np.triu_indices(5, 1)] = [
        *(0.9999705894945706, 0.9999635990481379, 0.9999594831686664, 0.9999496866273437),
        *(0.9999996276684505, 0.9999991123301331, 0.9999972107832513),
        *(0.9999998897941174, 0.9999988765995314, 0.9999994701130297),
    ]
    K = 1e150 * np.maximum(K, K.T)
    with pytest.warns(epfast.ConvergenceWarning, match="rounding alone moves"):
        post = epfast.fit_gp(K, [-1, -1, 1, 1, -1], beta=3.0)
    assert post.converged
    assert post.residual < 1e-2  # of rounding, which differs by the instruction set
    assert (post.variance > 0.0).all()


def test_minibatches_that_stand_still_between_kinks_are_told():
    first = [1.44, -0.94, -0.5, 1.03, -0.67, -0.18, 0.08, -0.03, -0.97, -1.96, 0.62, -0.43]
    second = [0.2, 1.05, -0.17, -0.73, 1.23, 0.08, 1.61, -0.09, 0.8, 0.32, 0.58, -1.37]
    loss = epfast.PiecewiseLinear(
        (-1.7817536169918546, -1.3746431201601048, 0.061951101538404885),
        (-0.700619906161879, -0.26026317430687307, 0.2809579802285267, 1.9852719948842408),
    )
    X = np.tile([second, first], (6, 1))
    scheme = schemes.Laplace("exact")
    with pytest.warns(epfast.ConvergenceWarning, match="no fixed point"):
        post = epfast.fit_linear(
            X, np.ones(12), loss=loss, batch_size=1, scheme=scheme, prior_variance=25.0
        )
    assert not post.converged


def test_sites_whose_scale_overflows_are_refused():
    sites = np.zeros((3, 2))
    refused = backend.sweep(
        np.eye(2),
        np.full(2, -1e156),
        None,
        np.array([[0, 4], [1, 4]]),
        *sites[:2],
        loss="binomial",
        log_scale=sites[2],
    )
    assert refused == 2
    assert not sites.any()


def test_an_estimator_tells_of_a_mean_beyond_the_digits_of_a_double():
    pytest.importorskip("sklearn")
    from sklearn.gaussian_process.kernels import ConstantKernel

    loss = epfast.PiecewiseLinear((0.8,), (-2.0, -1.7))
    model = epfast.GPClassifier(1e60 * ConstantKernel(1.0), loss=loss, optimizer=None)
    with pytest.warns(epfast.ConvergenceWarning, match="standard deviations from 0"):
        model.fit([[0.0], [1.0], [2.0]], [0, 1, 1])


def test_noise_over_the_variance_of_a_gaussian_does_not_overflow():
    """It gave a RuntimeWarning, and a posterior whose file held infinity."""
    g = epfast.Graph()
    z = g.gaussian(variance=1.0)
    with pytest.raises(ValueError, match=r"noise is 1e\+250 .*variances overflows"):
        g.add(epfast.losses.Gaussian(1e-150), z, 0.0, noise=1e250)


def test_a_step_of_the_means_after_one_of_length_zero():
    """The angle between them was divided by 0."""
    rng = np.random.default_rng(106)
    n, d = int(rng.integers(4, 31)), int(rng.integers(1, 6))
    X, y = rng.normal(size=(n, d)), np.where(rng.random(n) < 0.5, 1.0, -1.0)
    with pytest.warns(epfast.ConvergenceWarning):
        post = epfast.fit_linear(X, y, posterior="factorized", schedule=DEP(), prior_variance=1e150)
    assert np.isfinite(post.mean).all()
