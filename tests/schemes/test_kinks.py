"""Laplace at the kinks of a loss, where the mode of cavity times factor often is."""

import ctypes
import warnings

import numpy as np
import pytest
from scipy import LowLevelCallable

import epfast
from epfast import EP, CustomLoss, Hinge, PiecewiseLinear, Quasi01, backend, losses, schemes
from epfast.losses import Contaminated, LaplaceNoise
from epfast.schemes import Laplace, QuickLaplace, Relaxed
from tests.oracles.responses import kind_of

EPSILON, PRINTED = 0.5, Laplace("exact", half_sums=True)
#: each loss, by its name, as a function of x.theta for y = 1, and its kinks
LOSSES = {
    "hinge": (Hinge(), lambda h: np.maximum(1.0 - h, 0.0), [1.0]),
    "quasi01": (
        Quasi01(EPSILON),
        lambda h: np.where(h < 0.0, 1.0 - EPSILON * h, np.maximum(1.0 - h / EPSILON, 0.0)),
        [0.0, EPSILON],
    ),
    "laplace_noise": (LaplaceNoise(0.7), lambda h: np.abs(h - 1.0) / 0.7, [1.0]),
}


# a site without curvature may integrate to more than 1
@pytest.mark.filterwarnings("ignore:the log evidence is")
@pytest.mark.parametrize("name", LOSSES)
def test_the_slope_at_the_mode_is_the_half_sum(name):
    """The mode by a grid; the difference quotient about it is the half sum."""
    loss, values, kinks = LOSSES[name]
    at_kinks = 0
    for variance in (0.6, 2.0, 5.3):
        for mean in (0.0, 0.3, 0.9, 1.7):
            grid = np.concatenate([np.linspace(mean - 8, mean + 8, 400001), kinks])
            mode = grid[np.argmin(values(grid) + (grid - mean) ** 2 / (2 * variance))]
            slope = -(values(mode + 1e-3) - values(mode - 1e-3)) / 2e-3
            at_kinks += mode in kinks
            cavity = np.array([[1.0]]), np.array([mean]), np.array([variance])
            y = None if loss.by_margin else np.ones(1)
            _, shift, _ = backend.Minibatch(loss, PRINTED, 1).fit(*cavity, y=y)
            np.testing.assert_allclose(shift, slope, rtol=0, atol=1e-6)
            if name == "hinge":  # the sweep of a full covariance has its own code
                full = epfast.fit_linear(
                    cavity[0], [1.0], loss=loss, scheme=PRINTED, batch_size=1,
                    posterior="full", prior_variance=variance, prior_mean=cavity[1],
                    schedule=EP(1, 0.0),
                )  # fmt: skip
                np.testing.assert_allclose(full.sites.shift, slope, rtol=0, atol=1e-6)
    assert at_kinks >= 5


def test_a_smooth_loss_has_the_same_fit():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 3)), rng.choice([-1.0, 1.0], size=40)
    for posterior in ("full", "factorized"):
        given = {"batch_size": 8, "posterior": posterior}
        fits = [
            epfast.fit_linear(X, y, scheme=Laplace(half_sums=half), **given)
            for half in (False, True)
        ]
        np.testing.assert_allclose(fits[1].mean, fits[0].mean, rtol=0, atol=1e-9)


# ---- losses without a curvature ----

HINGE = CustomLoss(
    lambda m: np.maximum(1.0 - m, 0.0), lambda m: -1.0 * (m < 1.0), lambda m: np.zeros_like(m)
)
DOUBLES = ctypes.POINTER(ctypes.c_double)


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, DOUBLES, DOUBLES, ctypes.c_void_p)
def hinge_in_c(n, m, out, user):
    for i in range(n):
        out[3 * i], out[3 * i + 1], out[3 * i + 2] = max(1.0 - m[i], 0.0), -(m[i] < 1.0), 0.0
    return 0


FLAT = {
    "hinge": Hinge(),
    "quasi01": Quasi01(1e-3),
    "ramp": PiecewiseLinear((-1.0, 1.0), (0.0, -1.0, 0.0), 2.0),
    "laplace_noise": LaplaceNoise(1e-6),
    "quantile": losses.Quantile(0.1, 1e4),
    "custom": HINGE,
    "c": CustomLoss(LowLevelCallable(hinge_in_c)),
    "tempered": Hinge().tempered(0.3),
    # a mixture with a constant is concave between kinks
    "mixture": Contaminated(LaplaceNoise(), 0.1, -3.0),
    "flipped": Contaminated(Hinge(), 0.1),
}
#: each has a curvature somewhere
CURVED = {
    **{name: kind() for name, kind in losses.NAMED.items() if name not in (*FLAT, "noisy_step")},
    "narrow": losses.StudentT(3.0, 1e-8),
    # concave or linear, without a kink: sites of a negative precision, or none, are exact
    "concave": CustomLoss(lambda m: -(m**2), lambda m: -2.0 * m, lambda m: 0.0 * m - 2.0),
    "linear": CustomLoss(lambda m: -m, lambda m: 0.0 * m - 1.0, lambda m: 0.0 * m),
    # Huber's hinge: a parabola of this width at its kink
    "huber": CustomLoss(
        lambda m: np.where(m > 1.0, 0.0, np.where(m < 0.99, 0.995 - m, 50.0 * (1.0 - m) ** 2)),
        lambda m: np.where(m > 1.0, 0.0, np.where(m < 0.99, -1.0, 100.0 * (m - 1.0))),
        lambda m: 100.0 * ((m > 0.99) & (m < 1.0)),
    ),
}


def doors(loss):
    """Fits by a scheme at every door that takes one."""
    X = np.random.default_rng(0).normal(size=(12, 2))
    y = kind_of(loss).draw(np.random.default_rng(1), 12)
    form = {"sweeps": 1, "tol": 0.0}

    def graph(scheme):
        g = epfast.Graph()
        g.add(loss, X @ g.gaussian(2), y, scheme=scheme)

    for posterior in ("full", "factorized"):
        for size in (None, 4):
            yield lambda scheme, p=posterior, s=size: epfast.fit_linear(
                X, y, loss=loss, scheme=scheme, posterior=p, batch_size=s, schedule=EP(**form)
            )
    yield lambda scheme: epfast.fit_linear(X, y, loss=loss, scheme=scheme, schedule=epfast.ADF())
    yield lambda scheme: epfast.fit_gp(np.eye(12), y, loss=loss, scheme=scheme, schedule=EP(**form))
    yield lambda scheme: backend.Minibatch(loss, scheme, 2)
    yield lambda scheme: backend.TiltedMoments(loss, scheme=scheme)
    yield graph


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", FLAT)
def test_a_loss_without_a_curvature_is_refused_at_every_door(name):
    """Its sites would have no precision, by definition: the posterior keeps the prior's."""
    for door in doors(FLAT[name]):
        for scheme in ("laplace", "quick_laplace"):
            with pytest.raises(ValueError, match=r"^scheme is .*Laplace, and the curvature of"):
                door(scheme)
        for said in (QuickLaplace("exact"), Laplace("slope")):
            door(said)
    with pytest.raises(ValueError, match="carry no precision"):
        epfast.fit_gp(np.eye(2), [1, -1], loss=Hinge(), scheme=Relaxed(scheme=Laplace()))


@pytest.mark.parametrize("name", CURVED)
def test_a_loss_with_a_curvature_is_taken(name):
    loss = CURVED[name]
    assert Laplace().refuses(loss, "row") is None
    assert QuickLaplace().refuses(loss, "minibatch") is None


def drawn(loss, h, rng):
    """Responses of a linear predictor, of the kind of a loss."""
    kind = kind_of(loss)
    noisy = h + rng.normal(size=len(h))
    if kind.numbers is None:
        floor = np.floor(noisy)
        ends = np.stack([floor, floor + 1.0], axis=1)
        return {(50, 2): ends}.get(np.shape(kind.draw(rng, 50)), np.exp(noisy))
    if np.ndim(kind.support) == 2:
        return np.stack([rng.binomial(5, 1.0 / (1.0 + np.exp(-h))), np.full(len(h), 5)], axis=1)
    if len(kind.support) == 2:
        return np.where(noisy > 0.0, 1, -1)
    return np.digitize(noisy, [-1.0, 1.0])


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("scheme", ["laplace", "quick_laplace"])
@pytest.mark.parametrize("name", losses.NAMED)
def test_names_of_expansions_give_no_wrong_answer_in_silence(name, scheme):
    """Each loss by its name: refused, near exact moments, or said not to have converged."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(80, 2))
    y = drawn(losses.resolve(name), X @ [1.0, -0.5], rng)
    right = epfast.fit_linear(X, y, loss=name, posterior="full", intercept=True)
    for posterior, size in (("full", None), ("full", 8), ("factorized", None), ("factorized", 8)):
        given = {"posterior": posterior, "batch_size": size, "scheme": scheme}
        chosen = losses.resolve(name), schemes.resolve(scheme)
        if chosen[1].refuses(chosen[0], "row" if size is None else "minibatch") is not None:
            with pytest.raises(ValueError, match=r"^scheme "):
                epfast.fit_linear(X, y, loss=name, **given)
            continue
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            post = epfast.fit_linear(X, y, loss=name, intercept=True, **given)
        if post.converged or not seen:
            away = np.abs(post.mean - right.mean) / np.sqrt(right.variance)
            ratio = np.sqrt(post.variance / right.variance)
            assert away.max() < 3.0
            assert 1 / 3 < ratio.min() <= ratio.max() < 3.0
