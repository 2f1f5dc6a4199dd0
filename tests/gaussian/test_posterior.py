"""What a fit returns: prediction against brute force, sampling."""

import numpy as np
import pytest
from scipy import special

import epfast
from epfast import losses
from tests.oracles.data import classes

#: losses that are not convex have sites that are refused, and the paper's minibatches fail
pytestmark = pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")

LOSSES = [
    *(kind() for kind in losses.NAMED.values() if kind.by_margin),
    epfast.NoisyStep(0.05),
    epfast.PiecewiseLinear((-1.0, 1.0), (0.0, -1.0, 0.0), 2.0),
]


NODES, WEIGHTS = np.polynomial.legendre.leggauss(60)


def fit(loss="logistic", beta=1.0, n=60, d=3):
    X, y = classes(n, d)
    given = {"posterior": "factorized", "batch_size": 10, "scheme": "variational"}
    given |= {"prior_variance": 25.0}
    schedule = epfast.EP(sweeps=3, tol=0)
    return X, y, epfast.fit_linear(X, y, loss=loss, beta=beta, schedule=schedule, **given)


@pytest.mark.parametrize("beta", [1.0, 3.0])
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_predict_proba_is_the_integral(loss, beta):
    X, _, post = fit(loss, beta)
    rows = np.vstack([X[:4], [[0, 0, 0], [1e-9, 0, 0], [30, 0, 1], [1e3, -1e3, 1e3], [1e6, 0, 0]]])
    mean, variance = post.predict_latent(rows)
    np.testing.assert_allclose(mean, rows @ post.mean)
    np.testing.assert_allclose(variance, rows**2 @ post.variance)
    got = post.predict_proba(rows)
    for m, v, p in zip(mean, variance, got, strict=True):
        if v == 0.0:
            assert p == pytest.approx(0.5)
            continue
        sd, kinks = np.sqrt(v), np.array([0.0, *loss.kinks, *(-k for k in loss.kinks)])

        def mass(sign, m=m, sd=sd, kinks=kinks):
            near = np.array([-30, -10, -4, -1, 1, 4, 10, 30])
            edges = np.concatenate([(kinks - m) / sd, (near - m) / sd])
            edges = np.unique(np.concatenate([np.clip(edges, -12, 12), np.linspace(-12, 12, 49)]))
            half = 0.5 * np.diff(edges)[:, None]
            z = 0.5 * (edges[1:] + edges[:-1])[:, None] + half * NODES
            value = loss.evaluate(sign * (m + sd * z), derivatives=False)[0]
            return (half * WEIGHTS * np.exp(-0.5 * z * z - beta * value)).sum()

        up, down = mass(1.0), mass(-1.0)
        assert p == pytest.approx(up / (up + down), abs=2e-8)


def test_predict_proba_of_probit_in_closed_form():
    X, _, post = fit("probit")
    mean, variance = post.predict_latent(X)
    exact = special.ndtr(mean / np.sqrt(1 + variance))
    np.testing.assert_allclose(post.predict_proba(X), exact, rtol=1e-13)
    np.testing.assert_allclose(post.predict_proba(X) + post.predict_proba(-X), 1.0)
    assert post.predict_proba(X[:0]).shape == (0,)


def test_predict_proba_of_many_rows_and_many_knots():
    """Rows are taken in chunks; the same as row by row."""
    knots = np.linspace(-5, 5, 50)
    stairs = epfast.PiecewiseLinear(tuple(knots), (0.0,) * 51, 5.0, (-0.1,) * 50)
    X, _, post = fit(stairs, n=30)
    rows = np.tile(X, (40, 1))
    p = post.predict_proba(rows)
    np.testing.assert_allclose(p, np.tile(post.predict_proba(X), 40), rtol=1e-12)
    assert ((p > 0) & (p < 1)).all()


def test_sample():
    _, _, post = fit()
    draws = post.sample(40_000, np.random.default_rng(1))
    np.testing.assert_allclose(
        draws.mean(axis=0), post.mean, atol=5 * np.sqrt(post.variance / 4e4).max()
    )
    np.testing.assert_allclose(draws.var(axis=0), post.variance, rtol=0.05)
    np.testing.assert_array_equal(post.sample(3, 5), post.sample(3, np.random.default_rng(5)))
    assert post.sample(0, 1).shape == (0, 3)


def test_repr_is_short():
    assert len(repr(fit()[2])) < 200


def test_no_draws_are_no_error():
    X, y = classes(30, 3)
    classed = np.resize([0.0, 1.0, 2.0], 30)
    K = np.exp(-0.5 * np.subtract.outer(X[:, 0], X[:, 0]) ** 2)
    several = [losses.Multiclass(3, correlated=correlated) for correlated in (False, True)]
    posts = [
        epfast.fit_linear(X, y),
        epfast.fit_linear(X, y, posterior="factorized"),
        epfast.fit_linear(np.hstack(12 * [X]), y),
        epfast.fit_linear(X, y, prior=losses.LaplacePrior(1.0)),
        *(epfast.fit_linear(X, classed, loss=loss) for loss in several),
        epfast.fit_gp(K, y),
        epfast.fit_gp(K, classed, loss=several[0]),
        epfast.fit_gp(K, y, rank=5),
    ]
    for post in posts:
        none = post.sample(0)
        assert none.shape == (0, *post.mean.shape)
        assert post.latent_at(none).shape[:2] == post.log_likelihood(none).shape == (0, 30)
        if hasattr(post, "sample_y"):
            assert post.sample_y(post.problem.data.X, 0).shape == (0, 30)
