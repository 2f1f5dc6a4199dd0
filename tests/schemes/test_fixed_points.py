"""Schemes in EP on scalar sites: fixed points, modes, and draws that are the same again."""

import numpy as np
import pytest
from scipy import special

import epfast
from epfast import EP, SEP, ImportanceSampling
from epfast.backend import tilted_moments
from epfast.losses import resolve
from epfast.schemes import NAMED, QuickLaplace, Variational
from tests.oracles.data import first_column
from tests.oracles.outsiders import FivePoints, WideQuadrature
from tests.oracles.plain_ep import residual

# what settles, and takes sites of one row as they are
SCHEMES = {
    name: kind() for name, kind in NAMED.items() if name != "importance" and not kind.relaxes
}
SCHEMES |= {"slope": QuickLaplace("slope"), "fifth": Variational(rule="fifth")}
SCHEMES |= {"wide": WideQuadrature(), "five": FivePoints()}
SMOOTH = [
    name
    for name, kind in epfast.losses.NAMED.items()
    if kind.by_margin
    and not resolve(name).kinks
    and all(scheme.refuses(resolve(name), "row") is None for scheme in SCHEMES.values())
]


def data(n=40, d=3):
    return first_column(n, d, seed=[n, d])


def fit(X, y, loss="probit", scheme="exact", **given):
    return epfast.fit_linear(X, y, loss=loss, scheme=scheme, prior_variance=2.0, **given)


@pytest.mark.parametrize("power", [1.0, 0.7])
@pytest.mark.parametrize("loss", SMOOTH)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_fixed_points(scheme, loss, power):
    """From every order the same, and no site update changes it."""
    X, y = data()
    scheme, posts = SCHEMES[scheme], []

    def triple(y, m, v, power):
        return tilted_moments(loss, y, m, v, power, scheme)

    for order in ({"damping": 0.8}, {"order": "parallel", "damping": 0.3}):
        schedule = EP(1000, 1e-11, power=power, **order)
        posts.append(fit(X, y, loss, scheme, schedule=schedule))
        assert posts[-1].converged
        assert residual(X, y, triple, 2.0 * np.eye(3), posts[-1].sites, power) <= 1e-8
    np.testing.assert_allclose(posts[0].mean, posts[1].mean, rtol=1e-7, atol=1e-9)


def test_laplace_propagation_ends_at_the_mode():
    X, y = data()
    post = fit(X, y, "logistic", "laplace", schedule=EP(500, 1e-11, 0.8))
    gradient = X.T @ (y * special.expit(-y * (X @ post.mean))) - post.mean / 2.0
    np.testing.assert_allclose(gradient, 0.0, atol=1e-8)


def test_slopes_alone_make_a_proper_posterior():
    """Quick Laplace on hinge, as printed: sites of precision 0 with a slope, none refused."""
    X, y = data()
    post = fit(X, y, "hinge", QuickLaplace("exact"), schedule=EP(1, 0.0))
    np.testing.assert_allclose(post.precision, np.eye(3) / 2, rtol=1e-12, atol=1e-14)
    assert post.n_refused == 0
    assert np.abs(post.sites.shift).max() == 1.0


def test_importance_sampling_is_reproducible(tmp_path):
    X, y = data()
    schedule = EP(6, 0.0, order="shuffled", seed=1)
    whole, again, other = (
        fit(X, y, scheme=ImportanceSampling(200, seed), schedule=schedule) for seed in (5, 5, 6)
    )
    np.testing.assert_array_equal(whole.mean, again.mean)
    assert np.abs(whole.mean - other.mean).max() > 1e-6
    for schedules in (
        (EP(5, 0.0), EP(2, 0.0), EP(3, 0.0)),
        (SEP(4, 0.0), SEP(1, 0.0), SEP(3, 0.0)),
    ):
        posts = [fit(X, y, scheme="importance", schedule=schedules[k]) for k in range(2)]
        posts[1].save(tmp_path / "half.npz")
        half = epfast.load(tmp_path / "half.npz")
        rest = fit(X, y, scheme="importance", schedule=schedules[2], start=half)
        np.testing.assert_allclose(rest.mean, posts[0].mean, rtol=1e-9, atol=1e-12)
    exact = fit(X, y, scheme="exact", schedule=EP(5, 0.0))
    near = fit(X, y, scheme=ImportanceSampling(20_000), schedule=EP(5, 0.0))
    np.testing.assert_allclose(near.mean, exact.mean, atol=0.1 * np.sqrt(exact.variance.max()))
