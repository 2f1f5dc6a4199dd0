"""Single calls into the core: prepared moments and minibatches, schemes of a user, counts."""

import numpy as np
import pytest

from epfast._core.laplace_factors import LaplaceSweep
from epfast._core.loss import CoreLoss
from epfast._core.minibatch import MinibatchSweep
from epfast._core.row_sweeps import BlockedSweep, SiteFits
from epfast._core.rows import Rows
from epfast._core.scalar_schemes import PythonScheme
from epfast._core.shared_sites import SharedSweep
from epfast._core.tilted import TiltedMoments

POISSON = np.array([[2.0, np.log(2.0)], [0.0, 0.0], [7.0, np.log(5040.0)], [1.0, 0.0]])
LABELS = np.array([1.0, -1.0, -1.0, 1.0])
MEAN, VARIANCE = np.array([0.3, -1.0, 2.0, 0.0]), np.array([1.0, 0.5, 3.0, 9.0])


def moments(name, beta=1.0, **given):
    return TiltedMoments(CoreLoss.table(name, beta=beta), (), True, **given)


def by_many(tilted, y, m, v, power):
    out = np.empty((3, m.size))
    y = np.ascontiguousarray(y.reshape(m.size, -1))
    assert tilted.many(y, m, v, np.full(m.size, power), *out) == 0
    return out


# ---- prepared moments ----


@pytest.mark.parametrize("name", ["probit", "logistic", "squared_hinge", "poisson"])
@pytest.mark.parametrize("power", [1.0, 0.7])
def test_call(name, power):
    tilted = moments(name, 0.8)
    y = POISSON if name == "poisson" else LABELS
    want = by_many(tilted, y, MEAN, VARIANCE, power)
    got = tilted.call(y, MEAN, VARIANCE, power)
    assert [part.shape for part in got] == [(4,)] * 3
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(tilted.call(y, MEAN, VARIANCE, np.full(4, power)), want)
    for out in (np.empty((3, 4)), tuple(np.empty((3, 4))), [np.empty(4) for _ in range(3)]):
        assert tilted.call(y, MEAN, VARIANCE, power, out) is out
        np.testing.assert_array_equal(out, want)


def test_call_broadcasts():
    """Other shapes, orders and types, by NumPy."""
    tilted, count = moments("probit"), moments("poisson")
    want = by_many(tilted, np.ones(4), MEAN, np.full(4, 2.0), 1.0)
    np.testing.assert_array_equal(tilted.call(1, MEAN, 2), want)
    np.testing.assert_array_equal(tilted.call(1.0, list(MEAN), np.float32(2.0), 1), want)
    np.testing.assert_array_equal(tilted.call(np.ones(4), MEAN, np.array(2.0)), want)
    strided = np.repeat(MEAN, 2)[::2]
    np.testing.assert_array_equal(tilted.call(np.ones(4, dtype=int), strided, 2.0), want)
    square = tilted.call(1.0, MEAN.reshape(2, 2), 2.0)
    assert all(part.shape == (2, 2) for part in square)
    np.testing.assert_array_equal(np.reshape(square, (3, 4)), want)
    out = np.empty((3, 2, 2))
    assert tilted.call(1.0, MEAN.reshape(2, 2), 2.0, out=out) is out
    np.testing.assert_array_equal(out, square)
    scalars = tilted.call(1.0, MEAN[0], 2.0)
    assert all(np.shape(part) == () for part in scalars)
    # a single probit site has a kernel of its own
    np.testing.assert_allclose(np.stack(scalars), want[:, 0], rtol=1e-14)
    assert [part.shape for part in tilted.call(np.ones(0), np.ones(0), np.ones(0))] == [(0,)] * 3
    one = count.call(POISSON[0], MEAN[0], VARIANCE[0])
    many = count.call(POISSON, MEAN, VARIANCE)
    np.testing.assert_allclose(one, np.stack(many)[:, 0], rtol=1e-13)
    np.testing.assert_array_equal(count.call(POISSON.astype(int) * 0, MEAN, 1.0)[0].shape, (4,))
    fortran = np.asfortranarray(POISSON)
    np.testing.assert_array_equal(count.call(fortran, MEAN, VARIANCE), many)


def test_many_calls_of_more_than_a_chunk():
    rng = np.random.default_rng(0)
    m, v = rng.normal(size=700), np.exp(rng.normal(size=700))
    y = np.where(rng.random(700) < 0.5, 1.0, -1.0)
    tilted = moments("logistic")
    np.testing.assert_array_equal(tilted.call(y, m, v), by_many(tilted, y, m, v, 1.0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"m": np.array([0.0, np.nan, 1.0, 2.0])}, "mean holds NaN"),
        ({"m": np.inf}, "mean holds NaN"),
        ({"v": np.array([1.0, 0.0, 1.0, 1.0])}, "variance holds 0.0"),
        ({"v": np.array([1.0, 1.0, np.nan, 1.0])}, "variance holds nan"),
        ({"v": -1.0}, "variance holds -1.0"),
        ({"power": 0.0}, "power holds 0.0"),
        ({"power": np.array([1.0, 1.0, np.inf, 1.0])}, "power holds"),
        ({"y": np.array([1.0, -1.0, 0.0, 1.0])}, "y holds other numbers"),
        ({"y": np.array([1.0, -1.0, np.nan, 1.0])}, "y holds other numbers"),
        ({"y": np.ones(3)}, "shape"),
        ({"v": np.ones(3)}, "shape"),
        ({"out": np.empty((3, 5))}, "out has shape"),
        ({"out": (np.empty(4), np.empty(4))}, "out holds 2 arrays"),
    ],
)
def test_call_refuses(change, message):
    given = {"y": LABELS, "m": MEAN, "v": VARIANCE} | change
    with pytest.raises(ValueError, match=message):
        moments("probit").call(**given)


def test_call_says_what_has_no_moments():
    wall = TiltedMoments(CoreLoss.python(lambda m: np.where(m < 1e300, np.inf, 0.0)))
    with pytest.raises(FloatingPointError, match="4 of 4"):
        wall.call(LABELS, MEAN, VARIANCE)
    broken = TiltedMoments(CoreLoss.python(lambda m: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        broken.call(LABELS, MEAN, VARIANCE)


# ---- a prepared minibatch ----


@pytest.mark.parametrize("name", ["logistic", "poisson"])
@pytest.mark.parametrize("scheme", ["variational", "laplace"])
def test_fit_into(name, scheme):
    rng = np.random.default_rng(1)
    X, mean, variance = rng.normal(size=(4, 3)), rng.normal(size=3), np.exp(rng.normal(size=3))
    sweep = MinibatchSweep(CoreLoss.table(name, beta=0.7), scheme, 3, 10, gamma=1.9)
    y = POISSON if name == "poisson" else LABELS
    rows = y if name == "poisson" else y[:, None]
    want = sweep.fit_one(X, mean, variance, rows)
    precision, shift = np.empty(3), np.empty(3)
    for given in (y, rows):
        scale = sweep.fit_into(X, mean, variance, given, precision, shift)
        assert scale == want[2]
        np.testing.assert_array_equal(precision, want[0])
        np.testing.assert_array_equal(shift, want[1])
    if name == "logistic":
        folded = np.ascontiguousarray(X * y[:, None])
        scale = sweep.fit_into(folded, mean, variance, None, precision, shift)
        np.testing.assert_allclose(scale, want[2], rtol=1e-12)
        np.testing.assert_allclose(precision, want[0], rtol=1e-12)


def test_fit_into_refuses():
    sweep = MinibatchSweep(CoreLoss.table("logistic"), "variational", 2, 4, gamma=1.0)
    X, good, (out, other) = np.ones((4, 2)), np.ones(2), np.empty((2, 2))

    def fit(X=X, mean=good, variance=good, y=LABELS, precision=out, shift=other):
        return sweep.fit_into(X, mean, variance, y, precision, shift)

    fit()
    for change, error, message in [
        ({"X": np.ones((4, 2), dtype=np.float32)}, TypeError, "allowed: C-contiguous"),
        ({"X": np.ones((2, 4)).T}, TypeError, "allowed: C-contiguous"),
        ({"X": [[1.0, 1.0]]}, TypeError, "allowed: C-contiguous"),
        ({"X": np.ones((5, 2)), "y": np.ones(5)}, ValueError, "at most 4 rows"),
        ({"X": np.ones((4, 3))}, ValueError, "have shapes"),
        ({"X": np.ones((0, 2)), "y": np.ones(0)}, ValueError, "have shapes"),
        ({"y": np.ones(3)}, ValueError, "have shapes"),
        ({"precision": np.empty(3)}, ValueError, "have shapes"),
        ({"mean": np.array([0.0, np.nan])}, ValueError, "mean or variance"),
        ({"variance": np.array([0.0, 1.0])}, ValueError, "mean or variance"),
        ({"y": np.array([1.0, 0.0, 1.0, 1.0])}, ValueError, "y holds other"),
        ({"X": np.full((4, 2), np.nan)}, ValueError, "X gives a margin that is not finite"),
    ]:
        with pytest.raises(error, match=message):
            fit(**change)
    wall = MinibatchSweep(
        CoreLoss.python(lambda m: np.full(m.size, np.inf)), "variational", 2, 4, gamma=1.0
    )
    with pytest.raises(FloatingPointError, match="no fit"):
        wall.fit_into(X, good, good, LABELS, out, other)


# ---- a scheme of the user ----


def test_python_scheme_is_the_integral():
    """Given the triple of the core, sweeps over rows do what they do without it."""
    rng = np.random.default_rng(2)
    n, d = 12, 3
    X = rng.normal(size=(n, d))
    for name in ("probit", "poisson"):
        counts = rng.poisson(1.0, n)
        y = np.column_stack([counts, np.zeros(n)]).astype(float)
        y = np.where(X[:, :1] > 0, 1.0, -1.0) if name == "probit" else y
        loss, inner, seen = CoreLoss.table(name), moments(name), []

        def scheme(y, m, v, power, inner=inner, seen=seen):
            seen.append((y.shape, m.shape, power.copy()))
            triple = inner.call(y, m, v, power)
            y[...] = m[...] = np.nan  # its own copies
            return triple

        results = []
        for tilted in (inner, TiltedMoments(loss, scheme=PythonScheme(loss, scheme))):
            Sigma, mu = np.eye(d), np.zeros(d)
            sites = [np.zeros(n) for _ in range(3)]
            visits = np.arange(n)
            BlockedSweep(tilted, d, 4, 0.9, 1.0, True).sweep(
                Rows(X), y, None, visits, Sigma, mu, *sites
            )
            results.append([*sites, mu, Sigma.ravel()])
        for a, b in zip(*results, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)
        assert seen[0][0] == ((1,) if name == "probit" else (1, 2))
        assert seen[0][2] == 0.9


def test_python_scheme_in_a_factor_of_one_row():
    loss = CoreLoss.table("probit")
    inner = moments("probit")
    tilted = TiltedMoments(loss, scheme=PythonScheme(loss, inner.call))
    X, mean, variance = np.array([[1.0, -2.0]]), np.array([0.3, 0.1]), np.array([1.0, 2.0])
    label = np.array([[-1.0]])
    fits = [
        MinibatchSweep(loss, "scalar", 2, 1, moments=which).fit_one(X, mean, variance, label)
        for which in (inner, tilted)
    ]
    folded = MinibatchSweep(loss, "scalar", 2, 1, moments=tilted).fit_one(-X, mean, variance)
    for a, b, c in zip(*fits, folded, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)
        np.testing.assert_allclose(a, c, rtol=1e-14)


@pytest.mark.parametrize(
    ("triple", "error", "message"),
    [
        (lambda *a: 1 / 0, ZeroDivisionError, "division"),
        (lambda *a: (1.0, 2.0), ValueError, "the scheme's function returned tuple"),
        (lambda y, m, v, p: (m, m, m[:-1]), ValueError, "d2lZ of shape"),
        (lambda y, m, v, p: (m, m, m + 1j), TypeError, "d2lZ of dtype complex"),
    ],
)
def test_python_scheme_errors(triple, error, message):
    loss = CoreLoss.table("probit")
    tilted = TiltedMoments(loss, scheme=PythonScheme(loss, triple))
    with pytest.raises(error, match=message):
        tilted.call(LABELS, MEAN, VARIANCE)


def test_python_scheme_without_moments():
    """A site whose numbers are not finite is refused, and it alone."""
    loss = CoreLoss.table("probit")

    def scheme(y, m, v, power):
        bad = np.where(y < 0, np.nan, -0.1)
        return bad, bad, bad

    tilted = TiltedMoments(loss, scheme=PythonScheme(loss, scheme))
    out = np.empty((3, 4))
    assert tilted.many(LABELS[:, None], MEAN, VARIANCE, np.ones(4), *out) == 2
    np.testing.assert_array_equal(np.isnan(out), np.tile(LABELS < 0, (3, 1)))


# ---- what is counted ----


def test_minibatch_counts():
    """Sites that were refused, and coordinates that the rule changed."""
    X = np.eye(3)[[0, 1, 2]]
    # curvature by row: negative, so that the rule has to act in some coordinates
    curvatures = {"first": [-1.0, 1.0, 1.0], "all": [-1.0] * 3, "none": [1.0] * 3}
    for which, (refused, clipped) in {"first": (0, 1), "all": (0, 3), "none": (0, 0)}.items():
        bend = np.array(curvatures[which])
        loss = CoreLoss.python(lambda h, y: 0.5 * y[:, 0] * h**2, width=1)
        sweep = MinibatchSweep(loss, "variational", 3, 3, gamma=1.0)
        tau, nu = np.full(3, 5.0), np.zeros(3)
        sites = {name: np.zeros((1, 3)) for name in ("site_tau", "site_nu")}
        sweep.sweep(
            X, bend[:, None].copy(), 3, np.arange(1), tau, nu, site_scale=np.zeros(1), **sites
        )
        assert (sweep.n_refused, sweep.n_clipped, sweep.n_failed) == (refused, clipped, 0)
        np.testing.assert_allclose(sites["site_tau"][0], np.maximum(bend, 0.0), atol=1e-12)
    # a site that would make the posterior improper keeps its value, whatever the coordinates
    sweep = MinibatchSweep(loss, "variational", 3, 3, gamma=1.0, site_rule="keep")
    tau = np.full(3, 0.5)
    sites = {name: np.zeros((1, 3)) for name in ("site_tau", "site_nu")}
    y = np.array([[-1.0], [-1.0], [1.0]])
    sweep.sweep(X, y, 3, np.arange(1), tau, nu, site_scale=np.zeros(1), **sites)
    assert (sweep.n_refused, sweep.n_clipped, sweep.n_failed) == (1, 0, 0)
    np.testing.assert_allclose(tau, [0.5, 0.5, 1.5])
    # no fit at all: one site
    wall = CoreLoss.python(lambda m: np.full(m.size, np.inf))
    sweep = MinibatchSweep(wall, "variational", 3, 3, gamma=1.0)
    sweep.sweep(X, np.ones((3, 1)), 3, np.arange(1), tau, nu)
    assert (sweep.n_refused, sweep.n_clipped, sweep.n_failed) == (1, 0, 1)


def test_shared_sites_count_rows():
    """A batch that would make the posterior improper: its rows, whatever their weights."""
    loss = CoreLoss.python(lambda h, y: -0.4 * h**2, width=1)
    d, n = 2, 5
    X = np.vstack([np.eye(d), np.eye(d), np.ones((1, d))])
    shared = SharedSweep(TiltedMoments(loss), d, 4, 1.0, 1.0, True)
    G, g, scale = np.zeros((1, d, d)), np.zeros((1, d)), np.zeros(1)
    P, p = np.eye(d), np.zeros(d)
    weight = np.array([3.0, 0.5, 7.0, 0.0, 0.2])
    last = np.array([0, 0, 0, 0, 1], dtype=np.uint8)
    shared.sweep(
        X, np.zeros((n, 1)), weight, np.zeros(n, np.intp), last, G, g, scale,
        np.array([weight.sum()]), P, p,
    )  # fmt: skip
    assert shared.n_refused == 4
    np.testing.assert_array_equal(P, np.eye(d))


def test_a_label_of_the_wrong_shape():
    X, out = np.eye(2), np.zeros(2)
    tilted = moments("probit")
    Sigma, mu, visits = np.eye(2), np.zeros(2), np.arange(2)
    flat, wide = np.ones(2), np.ones((2, 2))
    parallel = SiteFits(tilted, 1.0, 1.0, 2)
    laplace = LaplaceSweep(CoreLoss.table("probit"), 2, 2, 1.0, 1.0, True, False, 1e-5, 9)
    sites = out, out, out
    for call in (
        lambda y: BlockedSweep(tilted, 2, 2, 1.0, 1.0, True).sweep(
            Rows(X), y, None, visits, Sigma, mu
        ),
        lambda y: parallel.fit(out, flat, y, *sites),
        lambda y: laplace.sweep(Rows(X), y, None, visits[1:] + 1, Sigma, mu, *sites, Sigma, mu),
    ):
        with pytest.raises(ValueError, match="y has shape"):
            call(wide)
        with pytest.raises(ValueError, match="dimensions"):
            call(flat)
