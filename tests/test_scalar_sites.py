"""Scalar sites with a full covariance: against EP in plain NumPy, 50 digits and brute force."""

import pickle
from collections import namedtuple

import numpy as np
import pytest
from mpmath import mp
from scipy import special, stats

import epfast
from epfast import ADF, EP
from epfast.backend import tilted_moments

# a loss, written again: what the package gets; value, kinks; slope and curvature where smooth
Plain = namedtuple("Plain", "given value kinks derivatives pieces", defaults=(None, ()))
Result = namedtuple("Result", "precision shift mean covariance sites log_evidence refused")
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)
GRADED = 2.0 ** np.arange(-7, 16)
V = np.repeat([1e-12, 1e-8, 1e-4, 1e-2, 1.0, 1e2, 1e4], 11)
M = np.tile([-1, -0.7, -0.3, -0.1, -0.01, 0, 0.013, 0.1, 0.3, 0.7, 1], 7) * (10 * np.sqrt(V) + 5)
Y = np.where(np.arange(77) % 3 == 0, -1.0, 1.0)


def piecewise(given, *pieces):
    """The value is that just left of the first knot; jumps are added at the knots."""
    knots, slopes, value, jumps = pieces
    bends = list(zip(knots, jumps, np.diff(slopes), strict=True))

    def loss(m):
        first = value + slopes[0] * (m - knots[0])
        return first + sum((m > knot) * (up + bend * (m - knot)) for knot, up, bend in bends)

    return Plain(given or epfast.PiecewiseLinear(*pieces), loss, knots, None, pieces)


def hazard(m):
    return np.sqrt(2 / np.pi) / special.erfcx(-m / np.sqrt(2))


# fmt: off
SOFTPLUS = [lambda m: np.logaddexp(0.0, -m), (0.0,),
            lambda m: (-special.expit(-m), special.expit(m) * special.expit(-m))]
LOSSES = {
    "probit": Plain("probit", lambda m: -special.log_ndtr(m), (0.0,),
                    lambda m: (-hazard(m), hazard(m) * (hazard(m) + m))),
    "logistic": Plain("logistic", *SOFTPLUS), "callable": Plain(SOFTPLUS[0], *SOFTPLUS),
    "squared_hinge": Plain("squared_hinge", lambda m: np.maximum(1 - m, 0.0) ** 2, (1.0,),
                           lambda m: (-2 * np.maximum(1 - m, 0.0), 2.0 * (m < 1))),
    "hinge": piecewise("hinge", (1.0,), (-1.0, 0.0), 0.0, (0.0,)),
    "quasi01": piecewise("quasi01", (0.0, 0.1), (-0.1, -10.0, 0.0), 1.0, (0.0, 0.0)),
    "noisy_step": piecewise("noisy_step", (0.0,), (0.0, 0.0), np.log(10.0), (-np.log(9.0),)),
    "ramp": piecewise(None, (-1.0, 1.0), (0.0, -1.0, 0.0), 2.0, (0.0, 0.0)),
    "broken": piecewise(None, (-1.0, 0.5), (-0.5, -2.0, 0.3), 2.5, (-0.7, 0.4)),
    # t grows for ever: the tilted mean may be many standard deviations of the cavity away
    "falling": piecewise(None, (0.0,), (-1.0, -0.5), 0.0, (0.0,)),
}
# fmt: on
every_loss = pytest.mark.parametrize("name", LOSSES)


@mp.workdps(50)
def fifty_digits(pieces, tilt, m, v):
    """t is a sum of truncated exponentials, its derivatives have atoms at the knots; or probit."""
    m, v, tilt = mp.mpf(m), mp.mpf(v), mp.mpf(tilt)
    if not pieces:
        z, scale = m / mp.sqrt(1 + v), mp.sqrt(1 + v)
        log_z = mp.log(mp.ncdf(z)) if z < 0 else mp.log1p(-mp.ncdf(-z))
        ratio = mp.npdf(z) / mp.ncdf(z)
        return float(log_z), float(ratio / scale), float(-ratio * (z + ratio) / scale**2)
    knots, slopes, value, jumps = ([mp.mpf(x) for x in np.atleast_1d(part)] for part in pieces)
    sd, level, total, first, second = mp.sqrt(v), value[0], mp.mpf(0), mp.mpf(0), mp.mpf(0)
    ends = [-mp.inf, *knots, mp.inf]
    for k, slope in enumerate(slopes):
        rate, knot = -tilt * slope, knots[max(k - 1, 0)]
        if k:
            level += slopes[k - 1] * (knot - knots[max(k - 2, 0)])  # up to this knot
            left, density = mp.exp(-tilt * level), mp.npdf(knot, m, sd)
            level += jumps[k - 1]
            right = mp.exp(-tilt * level)
            first += density * (right - left)
            second += density * (rate * right + tilt * slopes[k - 1] * left)
            second += density * (right - left) * (knot - m) / v
        lo, hi = ((end - m - rate * v) / sd for end in ends[k : k + 2])
        mass = mp.ncdf(hi) - mp.ncdf(lo) if lo + hi < 0 else mp.ncdf(-lo) - mp.ncdf(-hi)
        mass *= mp.exp(-tilt * level + rate * (m - knot) + rate**2 * v / 2)
        total, first, second = total + mass, first + rate * mass, second + rate**2 * mass
    return float(mp.log(total)), float(first / total), float(second / total - (first / total) ** 2)


def exactly(name, y, m, v, tilt):
    loss = LOSSES[name]
    if not loss.pieces and (name != "probit" or tilt != 1.0):
        return brute(loss, y, m, v, tilt)
    rows = [fifty_digits(loss.pieces, tilt, *at) for at in zip(y * m, v, strict=True)]
    return np.array(rows).T * [np.ones_like(y), y, np.ones_like(y)]


def brute(loss, y, m, v, tilt):
    """Gauss-Legendre on panels that close in on the kinks; y, m, v are (n,)."""
    m, sd = y * m, np.sqrt(v)
    reach = 12 + np.sqrt(2 * tilt * np.maximum(loss.value(m), 0.0))[:, None]
    near = np.add.outer(loss.kinks, np.concatenate([-GRADED, [0.0], GRADED])).ravel()
    near = np.clip((near - m[:, None]) / sd[:, None], -reach, reach)
    near = np.concatenate([near, reach * np.linspace(-1, 1, 2 + 2 * int(reach.max()))], axis=1)
    edges = np.sort(near)[:, :, None]
    half = 0.5 * np.diff(edges, axis=1)
    z = edges[:, :-1] + half + half * NODES
    h = m[:, None, None] + sd[:, None, None] * z
    log_f = -tilt * loss.value(h) - 0.5 * z * z - 0.5 * np.log(2 * np.pi)
    top = log_f.max(axis=(1, 2), keepdims=True)
    f = half * WEIGHTS * np.exp(log_f - top)
    total = f.sum(axis=(1, 2), keepdims=True)
    # from the tilted mean and variance, or as E[t' / t] and E[t'' / t]
    score, extra = z / sd[:, None, None], -1 / v[:, None, None]
    if loss.derivatives is not None:
        score, extra = (-tilt * part for part in loss.derivatives(h))
    first = (f * score / total).sum(axis=(1, 2), keepdims=True)
    second = (f * ((score - first) ** 2 + extra) / total).sum(axis=(1, 2))
    return np.ravel(top + np.log(total)), y * first.ravel(), second


def new_sites(name, y, h, s, tau, nu, power, beta):
    """Cavity q / g^a, fit of t^a, its a-th root: precision, shift, log scale, and where proper."""
    proper = 1 / s > power * tau
    v = 1 / np.where(proper, 1 / s - power * tau, 1.0)
    m = v * (h / s - power * nu)
    if name == "probit" and beta * power == 1.0:
        z, scale = y * m / np.sqrt(1 + v), y / np.sqrt(1 + v)
        lz, d1, d2 = special.log_ndtr(z), hazard(z) * scale, -hazard(z) * (z + hazard(z)) / (1 + v)
    else:
        lz, d1, d2 = brute(LOSSES[name], y, m, v, beta * power)
    mean, variance = m + v * d1, v + v * v * d2
    # the scale makes int N(h; m, v) g^a dh = Z
    lz = lz - 0.5 * (np.log(variance / v) + mean**2 / variance - m**2 / v)
    new = np.array([1 / variance - 1 / v, mean / variance - m / v, lz]) / power
    return new, proper & (variance > 0)


def plain_ep(X, y, name, prior, schedule, beta=1.0):
    keep, n = isinstance(schedule, EP), len(X)
    power, damping = schedule.power, getattr(schedule, "damping", 1.0)
    sites, total, refused = np.zeros((3, n)), 0.0, 0
    q, mu = np.linalg.inv(prior), np.zeros(X.shape[1])
    for sweep in range(schedule.sweeps if keep else 1):
        if schedule.order == "parallel":
            s = np.einsum("ij,jk,ik->i", X, q, X)
            new, proper = new_sites(name, y, X @ mu, s, *sites[:2], power, beta)
            sites = np.where(proper, (1 - damping) * sites + damping * new, sites)
            refused += n - proper.sum()
            q = np.linalg.inv(prior + (X.T * sites[0]) @ X)
            mu, total = q @ X.T @ sites[1], sites[2].sum()
            continue
        for i in schedule.visits(n, sweep):
            one, direction = slice(i, i + 1), q @ X[i]
            h, s = X[one] @ mu, X[one] @ direction
            old = sites[:, one] if keep else np.zeros((3, 1))
            new, proper = new_sites(name, y[one], h, s, *old[:2], power, beta)
            refused += not proper[0]
            step = damping * (new - old) * proper
            sites[:, one] += step
            total += step[2, 0]
            mu = mu + direction * (step[1] - step[0] * h) / (1 + step[0] * s)
            q = q - np.outer(direction, direction) * step[0] / (1 + step[0] * s)
    precision = np.linalg.inv(q)
    # log of int N(theta; 0, 1 / prior) prod g_i
    log_det = np.linalg.slogdet(prior)[1] - np.linalg.slogdet(precision)[1]
    evidence = total + 0.5 * (log_det + mu @ precision @ mu)
    return Result(precision, precision @ mu, mu, q, sites if keep else None, evidence, refused)


def residual(post, X, y, name, prior, power):
    """The most that one more update of any one site would change, on the scale of q."""
    old = np.array(post.sites)
    q = np.linalg.inv(prior + (X.T * old[0]) @ X)
    s = np.einsum("ij,jk,ik->i", X, q, X)
    new = new_sites(name, y, X @ q @ X.T @ old[1], s, *old[:2], power, 1.0)[0]
    return np.abs((new - old) * [s, np.sqrt(s), np.ones_like(s)]).max()


def data(n=60, d=5, noise=0.7, scale=1.0):
    rng = np.random.default_rng([n, d])
    X = rng.normal(size=(n, d)) * scale
    X[:, -1] = 1.0
    return X, np.where(X @ rng.normal(size=d) + noise * rng.normal(size=n) > 0, 1.0, -1.0)


def fit(X, y, loss="probit", **given):
    given = {"scheme": "exact", "posterior": "full", "batch_size": None} | given
    return epfast.fit_linear(X, y, loss=loss, **given)


def assert_near(post, other, tol):
    """Mean and covariance on the scale of the posterior, the rest on that of its largest entry."""
    sd = np.sqrt(np.diag(other.covariance))
    scale = np.outer(sd, sd)
    pairs = [(post.mean / sd, other.mean / sd), (post.covariance / scale, other.covariance / scale)]
    pairs += [(getattr(post, k), getattr(other, k)) for k in ("precision", "shift", "log_evidence")]
    assert (post.sites is None) == (other.sites is None)
    pairs += zip(post.sites or (), () if other.sites is None else other.sites, strict=True)
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tol * max(1, np.abs(theirs).max()))


def test_probit_moments_to_fifty_digits():
    u = np.array([0, 1e-8, 1e-3, 0.3, 1, 2.2, 5, 9, 20, 35, 1e2, 1e3])
    v = np.repeat(10.0 ** np.arange(-12, 13, 2), 2 * u.size)
    m = np.tile(np.concatenate([u, -u]), 13) * np.sqrt(v)
    far = np.array([-1e8, -1e6, -3e4, -500.0, -45.0, -39.0, 37.0])  # beyond 1e3 sqrt(v)
    m, v = np.concatenate([m, far]), np.concatenate([v, np.full(7, 1e-6)])
    rtol = np.repeat([1e-12, 1e-10], [m.size - 7, 7])
    y = np.where(np.arange(m.size) % 3 == 0, -1.0, 1.0)
    both = zip(tilted_moments("probit", y, m, v), exactly("probit", y, m, v, 1.0), strict=True)
    for got, want in both:
        assert (np.abs(got - want) <= rtol * np.abs(want) + 1e-300).all()
    wrong = {"y": (2 * y, m, v), "mean": (y, 1.0, v), "variance": (y, m, 0 * v)}
    for name, given in (wrong | {"power": (y, m, v, 0.0)}).items():
        with pytest.raises(ValueError, match=name):
            tilted_moments("probit", *given)


def assert_moments(got, want, floor=1e-13):
    """Relative, above a floor on the natural scales 1, 1 / sd and 1 / v: rounding in E[h - m]."""
    for a, b, unit in zip(got, want, (np.ones(77), np.sqrt(V), V), strict=True):
        np.testing.assert_allclose(a * unit, b * unit, rtol=1e-9, atol=floor)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
@every_loss
def test_moments(name, power):
    want = exactly(name, Y, M, V, power)
    if name != "falling":
        assert_moments(brute(LOSSES[name], Y, M, V, power), want, 1e-11)
    assert_moments(tilted_moments(LOSSES[name].given, Y, M, V, power), want)
    assert_moments(tilted_moments(LOSSES[name].given, Y, M, V, power / 2, beta=2.0), want)


# fmt: off
SCHEDULES = [  # seven sweeps: not a multiple of those between two refreshes
    EP(sweeps=7, tol=0), EP(sweeps=3, tol=0, order="shuffled", seed=3), ADF(),
    EP(sweeps=6, tol=0, order="parallel", damping=0.4), EP(sweeps=2, tol=0, power=0.5),
    EP(sweeps=2, tol=0, power=1.3, damping=0.7, block=4), ADF(order="shuffled", seed=1, power=0.6),
]
# fmt: on


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@every_loss
def test_equals_plain_ep_and_is_saved(name, schedule, tmp_path):
    X, y = data(40, 4)
    y[::9] *= -1
    prior = np.cov(np.random.default_rng(1).normal(size=(4, 30)))
    for beta in (1.0, 0.8) if name == "probit" else (0.8,):
        given = {"loss": LOSSES[name].given, "schedule": schedule, "beta": beta}
        post = fit(X, y, prior_precision=prior, **given)
        plain = plain_ep(X, y, name, prior, schedule, beta)
        assert_near(post, plain, 1e-9 if name == "probit" and beta * schedule.power == 1 else 1e-7)
        assert post.n_refused == plain.refused
        assert len(post.history) == post.n_sweeps == getattr(schedule, "sweeps", 1)
        assert post.history[-1].log_evidence == pytest.approx(post.log_evidence, rel=1e-12)
        np.testing.assert_array_equal(post.variance, np.diag(post.covariance))
        if name in ("quasi01", "noisy_step", "ramp") and plain.sites is not None:
            assert (post.sites.precision < 0).any()  # a surprising label flattens the posterior
    post.save(tmp_path / "post.npz")
    back = epfast.load(tmp_path / "post.npz", SOFTPLUS[0] if name == "callable" else None)
    parts = "mean covariance precision shift prior_precision sites beta batch_size converged"
    for part in [*parts.split(), "n_sweeps", "n_refused", "log_evidence", "history"]:
        np.testing.assert_array_equal(getattr(back, part), getattr(post, part), err_msg=part)
    np.testing.assert_array_equal(back.predict_proba(X), post.predict_proba(X))


@pytest.mark.filterwarnings("ignore:.*refused:epfast.ConvergenceWarning")
@pytest.mark.parametrize(("n", "d"), [(1, 1), (50, 1), (7, 40), (1, 9), (70, 40), (131, 17)])
def test_any_shape_and_block(n, d):
    X, y = data(n, d)
    variance = np.linspace(0.5, 5.0, d)
    cases = [("probit", {"sweeps": 4}), ("quasi01", {"order": "shuffled", "seed": 1})]
    for loss, given in [*cases, ("logistic", {"power": 2.0, "damping": 1.0})]:
        given = {"sweeps": 2, "tol": 0, "damping": 0.8} | given
        first = fit(X, y, loss, schedule=EP(**given), prior_variance=variance)
        plain = plain_ep(X, y, loss, np.diag(1 / variance), EP(**given))
        assert_near(first, plain, 1e-9 if loss == "probit" else 1e-7)
        assert first.n_refused == plain.refused
        # with a power of 2 the cavity lacks twice a site that holds most of the precision
        assert first.n_refused > 0 or loss != "logistic" or n != 7
        for q in (1, 3, 7, 32, n, n + 9):
            post = fit(X, y, loss, schedule=EP(**given, block=q), prior_variance=variance)
            assert_near(post, first, 1e-10)


@pytest.mark.parametrize("power", [1.0, 0.7])
@pytest.mark.parametrize("name", ["probit", "logistic", "hinge", "squared_hinge", "noisy_step"])
def test_fixed_point(name, power):
    """The same from every order and start, and no site update, by the oracle, changes it."""
    X, y = data(50, 4, noise=1.0)
    orders = [{"damping": 0.8}, {"order": "shuffled", "seed": 4, "damping": 0.7}]
    orders += [{"order": "parallel", "damping": 0.3}]
    posts, start, given = [], None, {"loss": LOSSES[name].given, "prior_variance": 2.0}
    for order in orders:
        schedule = EP(sweeps=1000, tol=1e-11, power=power, **order)
        posts.append(fit(X, y, schedule=schedule, start=start, **given))
        start = fit(X, y, schedule=EP(3, 0.0), **given | {"prior_variance": 8.0})
        assert posts[-1].converged
        assert posts[-1].history[-1].change <= 1e-11
        assert residual(posts[-1], X, y, name, np.eye(4) / 2, power) <= 1e-8
        assert_near(posts[-1], posts[0], 1e-7)
    again = fit(X, y, schedule=EP(tol=1e-9, power=power), start=posts[0], **given)
    assert (again.converged, len(again.history)) == (True, 1)


@pytest.mark.parametrize("schedule", [EP(), EP(order="parallel"), ADF()], ids=str)
@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
def test_sites_without_mass_are_refused(schedule):
    (X, y), wall = data(20, 2), epfast.CustomLoss(lambda m: np.full_like(m, np.inf))
    with pytest.raises(FloatingPointError, match="20 of 20"):
        tilted_moments(wall, y, 0 * y, 1 + 0 * y)
    post = fit(X, y, wall, schedule=schedule)
    assert post.n_refused == 20 * post.n_sweeps
    np.testing.assert_allclose(post.covariance, 25 * np.eye(2), rtol=1e-12)
    assert (*post.mean, post.log_evidence) == pytest.approx((0.0, 0.0, 0.0), abs=1e-12)
    assert not post.converged


@pytest.mark.parametrize("schedule", [EP(2, 0.0), EP(1, 0.0, order="parallel"), ADF()], ids=str)
@every_loss
def test_evidence_is_exact_where_ep_is(name, schedule):
    """Orthogonal rows under an isotropic prior: the posterior factorises over the sites."""
    length = np.array([0.3, 1.0, 3.0, 8.0])
    X = np.linalg.qr(np.random.default_rng(2).normal(size=(6, 6)))[0][:4] * length[:, None]
    y, spread = np.array([1.0, -1.0, 1.0, 1.0]), 2 * length**2
    lz, d1, d2 = exactly(name, y, np.zeros(4), spread, 1.0)
    post = fit(X, y, LOSSES[name].given, prior_variance=2.0, schedule=schedule)
    assert post.log_evidence == pytest.approx(lz.sum(), rel=1e-9)
    np.testing.assert_allclose(X @ post.mean, spread * d1, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(post.predict_latent(X)[1], spread + spread**2 * d2, rtol=1e-8)


def test_evidence_is_near_brute_force():
    """EP's own error at its fixed point, as measured: in log evidence and standard deviations."""
    X, y = data(25, 2, noise=3.0, scale=0.5)
    grid = np.stack(np.meshgrid(*2 * [np.linspace(-9, 9, 301)]), axis=-1).reshape(-1, 2)
    gaps = {"probit": (2e-4, 3e-4), "logistic": (2e-3, 2e-3), "hinge": (0.06, 0.05)}
    for name, (gap, off) in gaps.items():
        post = fit(X, y, LOSSES[name].given, prior_variance=2.0, schedule=EP(300, 1e-10))
        theta = post.mean + grid @ (root := np.linalg.cholesky(post.covariance)).T
        log_f = -0.25 * (theta**2).sum(axis=1) - LOSSES[name].value(y * (theta @ X.T)).sum(axis=1)
        f = np.exp(log_f) * np.linalg.det(root) * 0.06**2 / (4 * np.pi)
        assert abs(post.log_evidence - np.log(f.sum())) < gap
        assert (np.abs(f @ theta / f.sum() - post.mean) < off * np.sqrt(post.variance)).all()


def test_adf_goes_on_row_by_row_and_its_evidence_is_the_chain_of_predictions():
    X, y = data(30, 3)
    post, total, m, v = None, 0.0, np.zeros(1), 25 * (X[:1] ** 2).sum(axis=1)
    for i in range(30):
        total += tilted_moments("probit", y[i : i + 1], m, v)[0][0]
        post = fit(X[i : i + 1], y[i : i + 1], schedule=ADF(), start=post)
        m, v = post.predict_latent(X[(i + 1) % 30][None])
    assert_near(post, fit(X, y, schedule=ADF()), 1e-10)
    assert post.log_evidence == pytest.approx(total, rel=1e-10)


@pytest.mark.parametrize("schedule", [EP(), ADF(), EP(order="parallel"), EP(60, 0.0, 0.4, 0.5)])
def test_gaussian_sites_are_bayesian_regression(schedule):
    X, y = data(40, 6)
    prior, loss = np.eye(6) + 0.3, epfast.CustomLoss(lambda m: 0.5 * (m - 1) ** 2)
    post = fit(X, y, loss, prior_precision=prior, schedule=schedule)
    covariance = np.linalg.inv(prior + X.T @ X)
    np.testing.assert_allclose(post.covariance, covariance, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(post.mean, covariance @ X.T @ y, rtol=1e-9, atol=1e-9)
    marginal = stats.multivariate_normal(np.zeros(40), np.eye(40) + X @ np.linalg.inv(prior) @ X.T)
    exact = marginal.logpdf(y) + 20 * np.log(2 * np.pi)  # y^2 = 1: (y h - 1)^2 = (h - y)^2
    assert post.log_evidence == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("order", ["sequential", "shuffled", "parallel"])
def test_resume_goes_on_as_if_it_had_not_stopped(order, tmp_path):
    X, y = data()
    eight, five = (EP(sweeps=n, tol=0, order=order, seed=7, damping=0.5) for n in (8, 5))
    seen, whole = [], fit(X, y, schedule=eight)
    half = fit(X, y, schedule=eight, callback=lambda i, s: seen.append(s.shift) or i.sweep == 3)
    assert (half.n_sweeps, len(seen), half.converged) == (3, 3, False)
    np.testing.assert_allclose(seen[-1], half.shift, rtol=1e-12, atol=1e-12)
    half.save(tmp_path / "half.npz")
    kept = pickle.dumps(half.state)
    for start in (half, epfast.load(tmp_path / "half.npz"), pickle.loads(pickle.dumps(half))):
        rest = fit(X, y, schedule=five, start=start)
        assert_near(rest, whole, 1e-10)
        assert [info.sweep for info in rest.history] == [4, 5, 6, 7, 8]
    assert pickle.dumps(half.state) == kept


@pytest.mark.parametrize("order", ["auto", "sequential", "shuffled", "parallel"])
def test_states_that_a_callback_keeps_stay_as_they_were(order):
    """Sites are updated in place where nobody looks at the old ones, to the same end."""
    X, y = data(400, 5)
    schedule, states, copies = EP(5, 0.0, order=order, seed=3), [], []
    if order == "auto":
        schedule = EP(5, 1e-300)

    def keep(info, state):
        states.append(state)
        copies.append(pickle.dumps(state))

    watched = fit(X, y, schedule=schedule, callback=keep)
    assert [pickle.dumps(state) for state in states] == copies
    assert pickle.dumps(watched.state) == pickle.dumps(fit(X, y, schedule=schedule).state)


@pytest.mark.parametrize("order", ["auto", "sequential", "shuffled", "parallel"])
def test_an_interrupted_sweep_leaves_a_posterior_of_its_sites(order, monkeypatch):
    class Bar:
        """Ctrl-C after that many chunks of 20 rows."""

        left = np.inf

        def update(self, rows):
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt

        def close(self):
            pass

    bar = Bar()
    monkeypatch.setattr("epfast.scalar.CHUNK", 5 * 20)
    monkeypatch.setattr("epfast.loop.progress_bar", lambda progress: bar)
    X, y = data(400, 5)
    schedule = EP(50, 1e-10, order=order, seed=3)
    whole, first = fit(X, y, schedule=schedule), fit(X, y, schedule=EP(1, 0.0))
    two = fit(X, y, schedule=EP(2, 1e-300, order=order, seed=3))
    kept = pickle.dumps(first.state)
    for start, chunks in ((None, 0), (None, 7), (None, 30), (None, 50), (first, 7), (first, 44)):
        bar.left = chunks
        with pytest.raises(epfast.Interrupted) as caught:
            fit(X, y, schedule=schedule, start=start)
        post, bar.left = caught.value.posterior, np.inf
        assert len(post.history) == post.n_sweeps - (start is not None) == chunks // 20
        assert not post.converged
        tau, nu, _ = post.sites
        precision = post.prior_precision + X.T * tau @ X
        np.testing.assert_allclose(post.precision, precision, rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(post.shift, X.T @ nu, rtol=1e-10, atol=1e-10)
        if chunks == 50:  # in the midst of the third sweep; old sites are kept in parallel order
            assert np.array_equal(tau, two.sites.precision) == (order == "parallel")
        assert_near(fit(X, y, schedule=schedule, start=post), whole, 1e-7)
    assert pickle.dumps(first.state) == kept


def test_prediction_and_samples():
    X, y = data(30, 4)
    rows = np.random.default_rng(5).normal(size=(11, 4)) * np.linspace(1, 100, 11)[:, None]
    for loss in ("logistic", "probit"):
        post = fit(X, y, loss, prior_variance=2.0)
        mean, variance = post.predict_latent(rows)
        np.testing.assert_allclose(mean, rows @ post.mean, rtol=1e-11)
        np.testing.assert_allclose(variance, np.diag(rows @ post.covariance @ rows.T), rtol=1e-10)
        p = np.exp(brute(LOSSES[loss], np.ones(11), mean, variance, 1.0)[0])
        np.testing.assert_allclose(post.predict_proba(rows), p, atol=2e-8)
    closed = special.ndtr(mean / np.sqrt(1 + variance))
    np.testing.assert_allclose(post.predict_proba(rows), closed, rtol=1e-12)
    sd = np.sqrt(post.variance)
    draws, correlation = post.sample(40_000, 1) / sd, post.covariance / np.outer(sd, sd)
    np.testing.assert_allclose(draws.mean(axis=0), post.mean / sd, atol=0.025)
    np.testing.assert_allclose(np.cov(draws.T), correlation, atol=0.035)
    np.testing.assert_array_equal(post.sample(3, 5), post.sample(3, np.random.default_rng(5)))


@pytest.mark.parametrize("order", ["sequential", "shuffled", "parallel"])
def test_layouts_and_types(order, tmp_path):
    X, y = data(50, 5)
    X = X.astype(np.float32).astype(np.float64)
    schedule = EP(sweeps=3, tol=0, damping=0.5, order=order, seed=2)
    want = fit(X, y, schedule=schedule)
    np.save(tmp_path / "X.npy", X)
    layouts = [X.astype(np.float32), np.asfortranarray(X), np.repeat(X, 3, axis=1)[:, 1::3]]
    layouts += [np.repeat(X, 2, axis=0)[::2], X[::-1].copy()[::-1]]
    layouts += [np.load(tmp_path / "X.npy", mmap_mode="r"), X.tolist(), X.astype(">f8")]
    for given in layouts:
        before = np.array(given)
        assert_near(fit(given, y.astype(int).tolist(), schedule=schedule), want, 1e-12)
        np.testing.assert_array_equal(np.array(given), before)
    X.flags.writeable = y.flags.writeable = False
    assert_near(fit(X, y, schedule=schedule), want, 1e-14)


X12, Y12 = data(12, 3)
# fmt: off
WRONG = [  # the argument that is named comes first
    {"y": np.arange(12.0)}, {"y": Y12[:-1]}, {"y": None}, {"X": X12[0]}, {"X": X12 * np.nan},
    {"X": X12[:0], "y": Y12[:0]}, {"prior_variance": [1, 2]}, {"prior_variance": -1.0},
    {"prior_precision": np.eye(3), "prior_variance": 2.0}, {"prior_precision": np.eye(2)},
    {"prior_precision": -np.eye(3)}, {"prior_precision": np.eye(3) + np.eye(3, k=1)},
    {"scheme": "exakt"}, {"loss": "probbit"},
    {"scheme": "exact", "batch_size": 2}, {"posterior": "dense"}, {"beta": 0.0},
    {"record": "factor"}, {"weights": np.ones(11)}, {"weights": -Y12}, {"weights": 0 * Y12},
    {"start": lambda: fit(X12[1:], Y12[1:])}, {"start": lambda: fit(X12[:, 1:], Y12)},
    {"start": lambda: fit(X12, Y12, schedule=ADF())},
]
# fmt: on


@pytest.mark.parametrize("change", WRONG)
def test_errors_name_the_argument(change):
    change = {name: given() if callable(given) else given for name, given in change.items()}
    with pytest.raises(ValueError, match=rf"^{next(iter(change))}\b"):
        fit(**({"X": X12, "y": Y12} | change))
