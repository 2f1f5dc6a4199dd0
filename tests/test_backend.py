"""backend.sweep on the caller's arrays."""

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast import EP, backend, losses
from epfast.backend import sweep
from tests.oracles.data import classes, rbf


def data(n=50, d=6):
    return classes(n, d)


def fresh(n, d, variance=3.0):
    return np.eye(d) * variance, np.zeros(d), np.zeros(n), np.zeros(n), np.zeros(n)


@pytest.mark.parametrize("form", [np.array, sparse.csr_matrix, sparse.csc_array])
@pytest.mark.parametrize(("d", "block"), [(6, None), (6, 1), (6, 50), (300, 17)])
@pytest.mark.parametrize("loss", ["probit", "logistic"])
def test_sweeps_are_those_of_fit_linear(loss, d, block, form):
    X, y = data(50, d)
    Sigma, mu, tau, nu, scale = fresh(50, d)
    for _ in range(3):
        given = {"damping": 0.8, "power": 0.9, "block": block, "log_scale": scale}
        assert sweep(Sigma, mu, form(X), y, tau, nu, loss, **given) == 0
    schedule = EP(3, 0.0, damping=0.8, power=0.9, order="sequential")
    post = epfast.fit_linear(X, y, loss=loss, prior_variance=3.0, schedule=schedule)
    np.testing.assert_allclose(mu, post.mean, atol=1e-10)
    np.testing.assert_allclose(Sigma, post.covariance, atol=1e-10)
    np.testing.assert_allclose([tau, nu, scale], post.sites, atol=1e-10)


def test_order_visits_some_rows():
    X, y = data()
    a, b = fresh(50, 6), fresh(50, 6)
    rows = np.array([7, 3, 3, 40])
    sweep(*a[:2], X, y, *a[2:4], order=rows)
    for i in rows:
        sweep(*b[:2], X, y, *b[2:4], order=[i])
    for one, other in zip(a, b, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)
    assert np.flatnonzero(a[2]).tolist() == [3, 7, 40]
    assert sweep(*a[:2], X, y, *a[2:4], order=np.zeros(0, dtype=int)) == 0


X0, Y0 = data()
S0, M0, T0, N0, C0 = fresh(50, 6)
READ_ONLY = np.zeros(50)
READ_ONLY.flags.writeable = False
WRONG = {
    "Sigma": [S0[:5], S0[0], None, S0.tolist(), S0.astype(int), np.asfortranarray(S0 + np.tri(6))],
    "mu": [M0[:5], M0[:, None], M0 * np.nan, np.float32(M0), M0.tolist()],
    "A": [X0[:, :5], X0 * np.inf, "text", sparse.csr_matrix(X0 * np.nan), X0[0]],
    "y": [Y0[:-1], Y0 * 2, None],
    "tau": [T0[:-1], READ_ONLY, np.zeros(100)[::2], T0 * np.nan],
    "nu": [N0[:-1], READ_ONLY],
    "log_scale": [C0[:-1], READ_ONLY],
    "order": [[50], [-1], [0.5], [[0]]],
    "block": [0, -1, 1.5],
    "power": [0.0, -1.0, np.nan],
    "damping": [0.0, 1.5],
    "beta": [0.0, np.inf],
    "loss": ["probbit", None],
    "scheme": ["exakt", None],
}


@pytest.mark.parametrize(("name", "value"), [(k, v) for k in WRONG for v in WRONG[k]])
def test_bad_arguments_are_named(name, value):
    Sigma, mu, tau, nu, _ = fresh(50, 6)
    given = {"Sigma": Sigma, "mu": mu, "A": X0, "y": Y0, "tau": tau, "nu": nu} | {name: value}
    with pytest.raises((ValueError, TypeError), match=rf"^(rows of )?{name}\b"):
        sweep(**given)
    assert not tau.any()


def test_sites_on_the_values_of_a_process():
    rng = np.random.default_rng(7)
    X = rng.normal(size=(40, 2))
    K = rbf(X, variance=3.0)
    y = np.where(X[:, 0] > 0, 1.0, -1.0)
    tau, nu, scale = np.zeros((3, 40))
    Sigma, mu = K.copy(), np.zeros(40)
    for _ in range(3):
        assert sweep(Sigma, mu, None, y, tau, nu, log_scale=scale) == 0
    gp = epfast.fit_gp(K, y, schedule=epfast.EP(3, 0.0))
    np.testing.assert_allclose(tau, gp.sites.precision, rtol=1e-9)
    np.testing.assert_allclose(mu, gp.mean, rtol=0, atol=1e-10)
    np.testing.assert_allclose(Sigma, gp.covariance, rtol=0, atol=1e-10)
    order = rng.permutation(40)
    sweep(Sigma, mu, None, y, tau, nu, order=order[:10])
    np.testing.assert_array_equal(Sigma, Sigma.T)


def test_what_an_output_held_before_does_not_matter():
    """Not even where arrays of another layout are converted first."""
    rng = np.random.default_rng(0)
    X, mean, variance = rng.normal(size=(6, 4)), np.zeros(4), np.ones(4)
    fits = epfast.backend.Minibatch("logistic", "laplace", 4)
    out = np.full(4, np.nan), np.full(4, np.inf)
    fits.fit(np.asfortranarray(X), mean, variance, out=out)
    for found, wanted in zip(out, fits.fit(X, mean, variance), strict=False):
        np.testing.assert_array_equal(found, wanted)


SINGLE = [name for name, kind in losses.NAMED.items() if kind().latents == 1]


def responses_of(loss, rng):
    """Responses that a loss takes, (2, 3) or (2, 3, 2)."""
    if loss.by_margin:
        return rng.choice([-1.0, 1.0], (2, 3))
    y = rng.integers(1, 3, (2, 3)).astype(float)
    pairs = type(loss) in (losses.Binomial, losses.Interval)
    return np.stack([y, y + 1.0], axis=2) if pairs else y


def test_an_output_of_its_own_memory_and_shape():
    """Results in memory of the caller are those without; memory that is shared is refused."""
    n = 4
    y, m, v = np.ones(n), np.linspace(-1.0, 1.0, n), np.ones(n)
    want = backend.tilted_moments("probit", y, m, v)
    columns, whole, overlapping = np.empty((n, 3)), np.empty((3, n)), np.empty(3 * n)
    o, rest = np.empty(n), [np.empty(n), np.empty(n)]
    frozen = np.empty((3, n))
    frozen.flags.writeable = False
    repeated = np.lib.stride_tricks.as_strided(o, (3, n), (0, 8))
    good = [whole, whole[:, ::-1], columns.T, tuple(columns.T), [o, *rest]]
    shared = [(o, o, o), (rest[0], o, o), (m, *rest), (*rest, v), (rest[0], y, rest[1]), repeated]
    shared += [(overlapping[:n], overlapping[n - 1 : 2 * n - 1], overlapping[2 * n :])]
    wrong = [np.empty((3, n, 1)), [np.empty((n, 1)) for _ in range(3)], columns, (o, o), frozen]
    wrong += [np.empty((3, n), np.float32), whole[:, :-1], "text", 5.0]
    bound = backend.TiltedMoments("probit")
    for call in (bound, lambda *given, out: backend.tilted_moments("probit", *given, out=out)):
        for out in good:
            assert call(y, m, v, out=out) is out
            np.testing.assert_array_equal(np.array(list(out)), want)
        for out in [*shared, *wrong]:
            with pytest.raises((ValueError, TypeError), match=r"^out .*allowed"):
                call(y, m, v, out=out)
        with pytest.raises(ValueError, match=r"^out has shape \(3,\)"):
            call(y[:1], m[:1], v[:1], out=np.empty(3))
    np.testing.assert_array_equal([y, v], np.ones((2, n)))
    np.testing.assert_array_equal(m, np.linspace(-1.0, 1.0, n))


def test_a_factor_in_memory_of_its_own():
    rng = np.random.default_rng(1)
    X, mean, variance = rng.normal(size=(6, 4)), np.zeros(4), np.ones(4)
    fits, o = backend.Minibatch("logistic", "laplace", 4), np.empty(4)
    bad = [
        (o, o),
        (o, mean),
        (variance, o),
        (X[0], o),
        (np.empty((4, 1)), o),
        (np.empty(8)[::2], o),
    ]
    bad += [(o, np.empty(4, np.float32)), (o, np.empty(3)), o, (o, o, o)]
    for out in bad:
        for rows in (X, X[:, ::-1]):
            with pytest.raises((ValueError, TypeError), match=r"^out\b.*allowed"):
                fits.fit(rows, mean, variance, out=out)
    np.testing.assert_array_equal([mean, variance], [np.zeros(4), np.ones(4)])
    A, labels = np.eye(4), np.ones(4)
    for name, value in {"mu": A[0], "nu": labels, "log_scale": mean}.items():
        given = {"Sigma": A, "mu": mean, "A": X[:4], "y": labels, "tau": np.zeros(4)}
        given |= {"nu": np.zeros(4)} | {name: value}
        with pytest.raises(ValueError, match=r"^\w+ shares memory with \w+; allowed"):
            sweep(**given)


@pytest.mark.parametrize("name", SINGLE)
def test_sites_of_any_shape(name):
    """Moments of each site by itself, for each loss; function and object agree to the last bit."""
    rng = np.random.default_rng(2)
    loss = losses.resolve(name)
    m, v = rng.normal(size=(2, 3)), rng.uniform(0.5, 2.0, 3)
    y = responses_of(loss, rng)
    bound = backend.TiltedMoments(loss)
    for cavity in ((m, v), (m, 0.7), (m[:, :1], v), (m[1, 2], 0.7), (0.3, v), (m[0], v)):
        shape = np.broadcast_shapes(*map(np.shape, cavity))
        labels = y[tuple(slice(0, k) for k in shape)] if len(shape) == 2 else y[0]
        labels = labels if shape else labels[0]
        found = bound(labels, *cavity)
        same = backend.tilted_moments(loss, labels, *cavity)
        centers, spreads = (np.broadcast_to(part, shape) for part in cavity)
        for place in np.ndindex(*shape):
            one = bound(labels[place][None], centers[place][None], spreads[place][None])
            for part, again, want in zip(found, same, one, strict=True):
                assert part.shape == again.shape == shape
                np.testing.assert_array_equal(part, again)
                np.testing.assert_allclose(part[place], want[0], rtol=1e-9, atol=1e-12)
    with pytest.raises(ValueError, match=r"^y has shape"):
        bound(y, m[0, :2], v[:2])
    with pytest.raises(ValueError, match=r"^mean, variance and power have the shapes"):
        bound(y, m, v[:2])
