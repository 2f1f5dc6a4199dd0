"""Rows of a network: moments, gradients, updates and guards, against independent numbers."""

import itertools

import mpmath as mp
import numpy as np
import pytest

from epfast import DSEP
from epfast._core.network import NetworkRows, relu_moments
from tests.oracles.plain_network import PlainNetwork, gamma_fit

pytestmark = pytest.mark.simd

HIDDEN = [(5,), (50,), (7, 4), (6, 5, 3), (8, 16)]
N = 30


class Case:
    """Rows, and a belief that has learned from some of them."""

    def __init__(self, hidden, probit=False, n=N, d=3, seed=0):
        rng = np.random.default_rng(seed)
        self.X = rng.standard_normal((n, d))
        f = np.sin(2.0 * self.X[:, 0]) + 0.5 * self.X[:, 1]
        y = (f - f.mean()) / f.std() + 0.1 * rng.standard_normal(n)
        self.y = np.where(y > 0.0, 1.0, -1.0) if probit else y
        self.core = NetworkRows(self.X, self.y, hidden, probit)
        self.plain = PlainNetwork(self.X, self.y, (d, *hidden, 1), probit)
        W = self.W = self.plain.W
        self.base = np.zeros(4 * W + 4)
        self.base[:W] = 1.0 / 1.2
        self.base[2 * W : 2 * W + 4] = 5.0, 6.0, 5.0, 6.0
        if probit:
            self.base[2 * W : 2 * W + 2] = 0.0
        self.prior = self.base[: 2 * W + 4]
        self.q = self.prior.copy()
        self.q[:W] += rng.random(W)
        self.q[W : 2 * W] = rng.standard_normal(W)
        self.share = (self.q - self.prior) / n
        self.order = rng.permutation(n).astype(np.intp)

    def run(self, q, sites=None, sizes=None, damping=1.0, alone=True, rows=None, batches=None):
        """Belief after some rows, and what ``end`` says."""
        q = q.copy()
        self.core.begin(q, self.base, sites, sizes, damping, alone)
        if batches is None:
            self.core.visit(self.order if rows is None else rows, None, None)
        else:
            self.core.visit(*batches)
        return q, *self.core.end()


def close(got, wanted, tolerance=1e-12):
    """Relative to each number, or to a thousandth of the largest."""
    size = np.abs(wanted) + 1e-3 * np.abs(wanted).max()
    assert (np.abs(got - wanted) <= tolerance * size).all()


@pytest.fixture(params=itertools.product(HIDDEN, (False, True)), ids=str)
def case(request):
    return Case(*request.param)


# ---- moments of a unit ----


def exact_relu(a, b):
    """Mean and variance of max(0, N(a, b)) from 60 digits."""
    a, sd = mp.mpf(a), mp.sqrt(mp.mpf(b))
    x = a / sd
    phi, up = mp.npdf(x), mp.erfc(-x / mp.sqrt(2)) / 2
    mean = a * up + sd * phi
    return mean, (a * a + sd * sd) * up + a * sd * phi - mean * mean


@pytest.mark.parametrize("b", [1e-300, 1e-20, 1.0, 3.7, 1e12])
def test_moments_of_a_unit(b):
    x = np.concatenate([np.linspace(-36.9, 9.0, 60), [0.0, 1e-9, -1e-9, 37.5, 1e3, 1e8]])
    a = x * np.sqrt(b)
    got = relu_moments(a, np.full(len(a), b))
    assert np.isfinite(got[:, a > -37 * np.sqrt(b)]).all()
    with mp.workdps(700):  # 1e8 standard deviations off, a tail is exp(-5e15)
        wanted = np.array([[float(part) for part in exact_relu(value, b)] for value in a]).T
    for found, truth in zip(got, wanted, strict=False):
        assert (np.abs(found - truth) <= 1e-10 * np.abs(truth) + 1e-310).all()


def test_slopes_of_a_unit():
    """By differences in 60 digits."""
    a = np.linspace(-12.0, 12.0, 25) * 1.3
    b = np.full(25, 1.69)
    got = relu_moments(a, b)[2:]
    with mp.workdps(60):
        for k, (at, spread) in enumerate(zip(a, b, strict=True)):
            for j, (which, by) in enumerate(itertools.product((0, 1), ((1, 0), (0, 1)))):
                wanted = mp.diff(lambda p, q, w=which: exact_relu(p, q)[w], (at, spread), by)
                assert abs(got[j, k] - wanted) <= 1e-11 * abs(wanted) + 1e-30


def test_a_unit_far_below_is_dead():
    got = relu_moments(np.array([-37.5, -1e4, -1e150, -1e8]), np.array([1.0, 1.0, 1.0, 1e-300]))
    assert (got[[0, 1, 2, 4]] == 0.0).all()
    assert np.isfinite(got).all()


@pytest.mark.parametrize("bad", [(np.nan, 1.0), (1.0, np.nan), (np.inf, np.inf), (-np.inf, 1.0)])
def test_what_is_not_finite_stays_so(bad):
    assert not np.isfinite(relu_moments(*np.array(bad)[:, None])[:2]).all()


# ---- gradients ----


@pytest.mark.parametrize("probit", [False, True])
@pytest.mark.parametrize("hidden", [(5,), (6, 4), (5, 4, 3)])
def test_gradients_are_differences_of_log_z(hidden, probit):
    """The new moments give G and H, fourth order differences of log Z by the old ones too."""
    case = Case(hidden, probit)
    W, row = case.W, np.array([3], dtype=np.intp)

    def log_z(m, v):
        q = case.q.copy()
        q[:W], q[W : 2 * W] = 1.0 / v, m / v
        return case.run(q, rows=row)[1]

    v = 1.0 / case.q[:W]
    m = case.q[W : 2 * W] * v
    new, _, refused, _ = case.run(case.q, rows=row)
    assert refused == 0
    G = (new[W : 2 * W] / new[:W] - m) / v
    H = 0.5 * (G * G - (v - 1.0 / new[:W]) / v**2)
    for i in range(W):
        step = np.zeros(W)
        step[i] = 2e-3
        for found, at in ((G[i], lambda s: log_z(m + s, v)), (H[i], lambda s: log_z(m, v + s))):
            near, far = at(step) - at(-step), at(2.0 * step) - at(-2.0 * step)
            assert found == pytest.approx((8.0 * near - far) / (12.0 * step[i]), abs=1e-8)


# ---- rows, beside the plain ones ----


def test_adf(case):
    q, log_z, _, _ = case.run(case.q)
    wanted, total = case.plain.adf(case.q, case.base, case.order)
    close(q, wanted)
    assert log_z == pytest.approx(total, rel=1e-12)


def test_sep(case):
    site = case.share[None].copy()
    q, log_z, _, _ = case.run(case.q, site, np.array([float(N)]))
    wanted, total = case.plain.adf(case.q, case.base, case.order, 1.0 / N)
    close(q, wanted)
    close(site[0], (wanted - case.prior) / N, 1e-11)
    assert log_z == pytest.approx(total, rel=1e-12)


def test_sep_without_the_pull_is_adf(case):
    adf, _, _, _ = case.run(case.q)
    for size in (1e30, np.inf):
        q, _, _, _ = case.run(case.q, case.share[None].copy(), np.array([size]))
        close(q, adf)


@pytest.mark.parametrize(("damping", "batch", "groups"), [(1.0, 7, 1), (0.5, N, 1), (0.7, 3, 2)])
def test_batches(case, damping, batch, groups):
    labels = np.arange(N) % groups
    sizes = np.bincount(labels).astype(float)
    batch = min(batch, N // groups)
    batches = DSEP(groups=labels, batch=batch, order="shuffled", seed=3).batches(N, 0)
    start = np.tile(case.share, (groups, 1))
    sites = start.copy()
    q, log_z, _, _ = case.run(case.q, sites, sizes, damping, False, batches=batches)
    wanted, site, total = case.plain.shared(case.q, start, sizes, *batches, damping)
    close(q, wanted)
    close(sites, site, 1e-11)
    assert log_z == pytest.approx(total, rel=1e-12)


LARGE = 80  # rows; the core takes 32 at a time


@pytest.fixture(params=[*itertools.product([(50,), (6, 5, 3)], (False, True))], ids=str)
def large(request):
    return Case(*request.param, n=LARGE)


@pytest.mark.parametrize("batch", [2, 7, 32, 33, 70, LARGE])
def test_large_batches(large, batch):
    sizes = np.array([float(LARGE)])
    batches = DSEP(groups=1, batch=batch, order="shuffled", seed=3).batches(LARGE, 0)
    sites = large.share[None].copy()
    q, log_z, _, _ = large.run(large.q, sites, sizes, 0.3, False, batches=batches)
    wanted, site, total = large.plain.shared(large.q, large.share[None], sizes, *batches, 0.3)
    close(q, wanted)
    close(sites, site, 1e-11)
    assert log_z == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("batch", [7, 70])
def test_pieces_of_large_batches_are_one_pass(large, batch):
    """To the bit, wherever a piece ends."""
    sizes = np.array([float(LARGE)])
    batches = DSEP(groups=1, batch=batch).batches(LARGE, 0)
    results = []
    for ends in ((0, LARGE), (0, 1, 40, 41, 64, 71, LARGE), range(LARGE + 1)):
        q, sites = large.q.copy(), large.share[None].copy()
        large.core.begin(q, large.base, sites, sizes, 0.3, False)
        for first, end in itertools.pairwise(ends):
            large.core.visit(*(some[first:end] for some in batches))
        results.append((q, sites, large.core.end()))
    for q, sites, told in results[1:]:
        np.testing.assert_array_equal(q, results[0][0])
        np.testing.assert_array_equal(sites, results[0][1])
        assert told == results[0][2]


def test_a_batch_that_is_not_finished_is_dropped(large):
    """With the rows that wait in the core, which another pass does not see."""
    sizes = np.array([float(LARGE)])
    batches = DSEP(groups=1, batch=40).batches(LARGE, 0)
    wanted = large.run(large.q, large.share[None].copy(), sizes, 0.3, False, batches=batches)
    q, sites = large.q.copy(), large.share[None].copy()
    large.core.begin(q, large.base, sites, sizes, 0.3, False)
    large.core.visit(*(some[:39] for some in batches))
    large.core.end()
    np.testing.assert_array_equal(q, large.q)
    np.testing.assert_array_equal(sites[0], large.share)
    again = large.run(large.q, sites, sizes, 0.3, False, batches=batches)
    np.testing.assert_array_equal(again[0], wanted[0])
    assert again[1:] == wanted[1:]


def test_batches_of_one_row_are_sep(case):
    sizes, last = np.array([float(N)]), np.ones(N, np.uint8)
    batches = case.order, np.zeros(N, np.intp), last
    one, many = case.share[None].copy(), case.share[None].copy()
    loop, _, _, _ = case.run(case.q, one, sizes)
    q, _, _, _ = case.run(case.q, many, sizes, alone=False, batches=batches)
    close(q, loop)
    close(many, one, 1e-11)


@pytest.mark.parametrize("damping", [1.0, 0.5])
def test_ep(case, damping):
    start = np.tile(case.share, (N, 1))
    sites, q, plain, wanted = start.copy(), case.q, start, case.q
    for _ in range(2):
        q, log_z, _, _ = case.run(q, sites, damping=damping)
        wanted, plain, total = case.plain.ep(wanted, plain, case.order, damping)
    close(q, wanted)
    close(sites, plain, 1e-11)
    close(case.prior + sites.sum(axis=0), q)
    assert log_z == pytest.approx(total, rel=1e-11)


def test_pieces_of_a_pass_are_one_pass(case):
    sizes = np.array([float(N)])
    batches = DSEP(groups=1, batch=7).batches(N, 0)
    for sites, given, alone in (
        (None, None, True),
        (case.share[None], sizes, True),
        (case.share[None], sizes, False),
        (np.tile(case.share, (N, 1)), None, True),
    ):
        whole = case.run(
            case.q, None if sites is None else sites.copy(), given, 1.0, alone, batches=batches
        )
        q = case.q.copy()
        mine = None if sites is None else sites.copy()
        case.core.begin(q, case.base, mine, given, 1.0, alone)
        for part in (slice(0, 4), slice(4, 5), slice(5, N)):
            case.core.visit(*(some[part] for some in batches))
        assert case.core.end() == whole[1:]
        np.testing.assert_array_equal(q, whole[0])


def test_prior_factors(case):
    q, base = case.q.copy(), case.base.copy()
    q[: case.W] += 0.3
    for _ in range(2):
        wanted, site = case.plain.refine(q, base)
        case.core.refine(q, base)
        close(q, wanted)
        close(base, site, 1e-11)


def test_prior_factors_of_wide_and_improper_cavities_keep_their_sites():
    case = Case((5,))
    q, base = case.q.copy(), case.base.copy()
    q[:3] = base[:3] + np.array([1e-7, -0.1, 0.0])
    case.core.refine(q, base)
    np.testing.assert_array_equal(base[:3], case.base[:3])
    assert (base[4 : case.W] != case.base[4 : case.W]).all()  # lambda moves after one


# ---- guards ----


def wild(hidden=(6, 5), scale=6.0, seed=1, n=N):
    """A belief far from the rows, of which updates are refused."""
    case = Case(hidden, seed=seed, n=n)
    rng = np.random.default_rng(seed)
    case.q[: case.W] = 0.05 + 0.1 * rng.random(case.W)
    case.q[case.W : 2 * case.W] *= scale
    case.share = (case.q - case.prior) / n
    return case


@pytest.mark.parametrize("pull", [0.0, 1.0 / N])
def test_weights_that_would_be_improper_keep_their_sites(pull):
    case = wild()
    given = (case.share[None].copy(), np.array([1.0 / pull])) if pull else (None, None)
    q, _, refused, failed = case.run(case.q, *given)
    wanted, _ = case.plain.adf(case.q, case.base, case.order, pull)
    assert refused > 0
    assert failed == 0
    assert 0 < case.core.n_refused_weights < case.W * refused
    assert (q[: case.W] > 0.0).all()
    close(q, wanted, 1e-10)


def test_weights_without_a_cavity_wait():
    case = Case((6, 5))
    sites = np.tile(case.share, (N, 1))
    sites[:, ::4] += 0.97 * case.q[::4]  # of all kinds of numbers, the noise too
    start = sites.copy()
    q, _, refused, failed = case.run(case.q, sites, rows=case.order[:5])
    wanted, plain, _ = case.plain.ep(case.q, start, case.order[:5])
    assert refused == 5
    assert failed == 0
    waits = np.arange(0, case.W, 4)
    np.testing.assert_array_equal(sites[:, waits], start[:, waits])
    close(q, wanted, 1e-11)
    close(sites, plain, 1e-11)


def refused_in(case, sites, batches):
    """Of plain batches: weights refused, and rows of which some are; one batch."""
    cavity = case.q - sites[0]
    W = case.W
    waits = cavity[:W] <= 0.1 * case.q[:W]
    both = np.concatenate([waits, waits])
    cavity[: 2 * W][both] = case.q[: 2 * W][both]
    bad = [np.isnan(case.plain.star(row, cavity)[1][:W]) | waits for row in batches[0]]
    return np.sum(bad), np.sum(np.any(bad, axis=1))


@pytest.mark.parametrize("hidden", [(5,), (9,), (6, 5)])
@pytest.mark.parametrize("waiting", [False, True])
def test_weights_of_a_batch_that_would_be_improper_add_nothing(hidden, waiting):
    """Nor do those without a cavity; both count by the row. Improper sums keep q as it is."""
    case = wild(hidden, n=LARGE)
    sizes = np.array([float(LARGE)])
    batches = DSEP(groups=1, batch=LARGE).batches(LARGE, 0)
    sites = case.share[None].copy()
    if waiting:
        sites[:, : case.W : 4] += 0.97 * case.q[: case.W : 4]
    start = sites.copy()
    q, _, refused, failed = case.run(case.q, sites, sizes, 1e-3, False, batches=batches)
    wanted, site, _ = case.plain.shared(case.q, start, sizes, *batches, 1e-3)
    weights, rows = refused_in(case, start, batches)
    improper = wanted[: case.W] <= 0.0
    both = np.concatenate([improper, improper])
    wanted[: 2 * case.W][both], site[0][: 2 * case.W][both] = (
        part[: 2 * case.W][both] for part in (case.q, start[0])
    )
    assert weights > 0
    assert case.core.n_refused_weights == weights + improper.sum()
    assert (refused, failed) == (LARGE if improper.any() else rows, 0)
    close(q, wanted, 1e-11)
    close(sites, site, 1e-11)


@pytest.mark.parametrize("hidden", [(5,), (6, 5)])
def test_a_row_that_fails_leaves_the_others_of_its_batch(hidden):
    case = Case(hidden, n=LARGE)
    rows, sizes = np.arange(LARGE), np.array([float(LARGE)])
    bad = [0, 5, 31, 32, 79]
    case.y[bad[1:]] = 1e200
    case.X[bad[0]] = 1e200

    def run(rows):
        sites, last = case.share[None].copy(), np.zeros(len(rows), np.uint8)
        last[-1] = 1
        batches = rows, np.zeros(len(rows), np.intp), last
        return *case.run(case.q, sites, sizes, 0.3, False, batches=batches), sites

    q, log_z, refused, failed, site = run(rows)
    assert (refused, failed) == (5, 5)
    wanted, total, _, _, other = run(np.delete(rows, bad))
    close(q, wanted)
    close(site, other)
    assert log_z == pytest.approx(total, rel=1e-12)


def test_noise_without_a_cavity_waits():
    case = Case((5,))
    noise = slice(2 * case.W, 2 * case.W + 2)
    sites = np.tile(case.share, (N, 1))
    sites[:, noise] = [[case.q[2 * case.W] + 0.1, 0.0]]
    start = sites.copy()
    q, _, refused, _ = case.run(case.q, sites)
    np.testing.assert_array_equal(sites[:, noise], start[:, noise])
    np.testing.assert_array_equal(q[noise], case.q[noise])
    assert refused == N
    batches = case.order, np.zeros(N, np.intp), np.ones(N, np.uint8)
    shared = start[:1].copy()
    q, _, refused, _ = case.run(case.q, shared, np.array([float(N)]), alone=False, batches=batches)
    np.testing.assert_array_equal(q[noise], case.q[noise])
    assert refused == N


@pytest.mark.parametrize("store", ["none", "pull", "shared", "own"])
def test_a_row_beyond_doubles_is_refused_as_a_whole(store):
    case = Case((5, 4))
    case.y[case.order[0]] = 1e200
    rows = case.order[:1]
    sites = {"none": None, "own": np.tile(case.share, (N, 1))}.get(store, case.share[None].copy())
    before = None if sites is None else sites.copy()
    sizes = np.array([float(N)]) if store in ("pull", "shared") else None
    batches = None
    if store == "shared":
        batches = rows, np.zeros(1, np.intp), np.ones(1, np.uint8)
    q, log_z, refused, failed = case.run(
        case.q, sites, sizes, alone=store == "pull", rows=rows, batches=batches
    )
    assert (log_z, refused, failed) == (0.0, 1, 1)
    close(q, case.q, 1e-13)
    if sites is not None:
        close(sites, before, 1e-13)


def test_an_outlier_leaves_a_proper_noise():
    for size in 10.0 ** np.arange(0, 150, 7):
        case = Case((5,))
        case.y[:] *= size
        q, _, _, failed = case.run(case.q)
        assert failed == 0
        assert np.isfinite(q).all()
        assert (q[2 * case.W :] > 0.0).all()
        assert (q[: case.W] > 0.0).all()


def test_shapes_of_many_rows_keep_their_digits():
    """ADF adds half a row to the shape each time: seven digits are left of 1e9 rows elsewhere."""
    case = Case((5,))
    W = case.W
    case.q[2 * W : 2 * W + 2] = 1e7, 1e7
    q, _, _, _ = case.run(case.q, rows=np.zeros(1, np.intp))
    m, v, _ = case.plain.forward(case.q[W : 2 * W] / case.q[:W], 1.0 / case.q[:W], case.X[0])
    with mp.workdps(60):
        e = mp.mpf(case.y[0]) - mp.mpf(m)

        def log_z(k):
            t = mp.mpf(v) + mp.mpf(1e7) / (mp.mpf(1e7) + k)
            return -mp.log(t) / 2 - e * e / t / 2

        shape = mp.mpf(1e7) + 1
        ratio = mp.exp(log_z(2) + log_z(0) - 2 * log_z(1))
        exact = 1 / (ratio * (shape + 1) / shape - 1) - 1
        assert abs(q[2 * W] - exact) <= 1e-13 * exact


def test_the_plain_fit_of_a_precision_integrates():
    """Where the Student-t is nearly normal, moments by quadrature: E gamma of p(e | gamma)."""
    e, v, shape, rate = 0.7, 0.0, 400.0, 300.0
    with mp.workdps(30):

        def weight(g):
            return g ** (shape - 0.5) * mp.exp(-g * (rate + e * e / 2) + 600)

        nodes = [0.8, 1.0, 1.2, 1.33, 1.45, 1.6, 1.9]
        Z, first = (mp.quad(lambda g, k=k: g**k * weight(g), nodes) for k in (0, 1))
    alpha, new_rate = gamma_fit(e, v, shape, rate)
    assert (alpha + 1.0) / new_rate == pytest.approx(float(first / Z), rel=1e-4)


def test_dead_units_are_counted():
    case = Case((5, 4))
    W = case.W
    case.run(case.q)
    assert case.core.n_dead == 0
    q = case.q.copy()
    bias = 5 * 3 + np.arange(2)  # of the first two units
    q[bias] = 1e6
    q[W + bias] = -1e6 * 1e4
    inputs = (np.arange(3)[:, None] * 5 + np.arange(2)).ravel()
    q[inputs] = 1e6
    case.run(q)
    assert case.core.n_dead == 2


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_weights_of_extreme_size(scale):
    """No variance is negative, no number is lost."""
    for hidden in ((5,), (6, 5, 3)):
        case = Case(hidden)
        W = case.W
        case.q[:W] /= scale**2
        case.q[W : 2 * W] /= scale
        q, log_z, _, _ = case.run(case.q)
        assert np.isfinite(q).all()
        assert np.isfinite(log_z)
        assert (q[:W] > 0.0).all()


# ---- at the door of the core ----


def test_indices_and_lengths_are_checked():
    case = Case((5,))
    for rows in ([N], [-1]):
        with pytest.raises(ValueError, match="rows holds numbers outside"):
            case.run(case.q, rows=np.array(rows, dtype=np.intp))
    with pytest.raises(ValueError, match="belief"):
        case.run(case.q[:-1])
    with pytest.raises(ValueError, match="sites"):
        case.run(case.q, np.zeros((1, 3)), np.ones(1))
    with pytest.raises(ValueError, match="sites"):
        case.run(case.q, np.zeros((N - 1, len(case.q))))
    batches = case.order[:1], np.ones(1, np.intp), np.ones(1, np.uint8)
    with pytest.raises(ValueError, match="group"):
        case.run(case.q, case.share[None], np.ones(1), alone=False, batches=batches)
    with pytest.raises(ValueError, match="group and last"):
        case.run(case.q, case.share[None], np.ones(1), alone=False)
    with pytest.raises(ValueError, match="hidden"):
        NetworkRows(case.X, case.y, (4, 0), False)
    with pytest.raises(ValueError, match="columns"):
        NetworkRows(np.zeros((2, 0)), np.zeros(2), (4,), False)
    fresh = NetworkRows(case.X, case.y, (4,), False)
    for call in (fresh.end, lambda: fresh.visit(case.order, None, None)):
        with pytest.raises(ValueError, match="begin first"):
            call()
    for hidden in ((), (1, 1, 1, 1)):
        with pytest.raises(ValueError, match="layers"):
            NetworkRows(case.X, case.y, hidden, False)
    with pytest.raises(ValueError, match="columns"):
        case.core.predict(case.q, np.zeros((2, 4)))


def test_predictions(case):
    mean, variance = case.core.predict(case.q, case.X)
    W = case.W
    for k in range(N):
        v = 1.0 / case.q[:W]
        m, s, _ = case.plain.forward(case.q[W : 2 * W] * v, v, case.X[k])
        assert mean[k] == pytest.approx(m, rel=1e-12, abs=1e-13)
        assert variance[k] == pytest.approx(s, rel=1e-12)


def test_moments_of_the_output_are_those_of_drawn_networks():
    """One hidden layer, of which the first two moments are exact: 400,000 draws."""
    case = Case((4,))
    W, rng = case.W, np.random.default_rng(0)
    v = 1.0 / case.q[:W]
    m, draws = case.q[W : 2 * W] * v, 400_000
    w = m + np.sqrt(v) * rng.standard_normal((draws, W))
    x = np.append(case.X[0], 1.0)
    first = w[:, : 4 * 4].reshape(draws, 4, 4)
    z = np.maximum(0.0, np.einsum("j,kji->ki", x, first) / 2.0)
    f = (np.einsum("ki,ki->k", z, w[:, 16:20]) + w[:, 20]) / np.sqrt(5.0)
    mean, variance = case.core.predict(case.q, case.X[:1])
    assert f.mean() == pytest.approx(mean[0], abs=5.0 * np.sqrt(variance[0] / draws))
    assert f.var() == pytest.approx(variance[0], rel=0.02)
