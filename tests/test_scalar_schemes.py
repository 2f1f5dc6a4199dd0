"""The schemes on scalar sites: against plain NumPy, at EP's fixed points, and your own moments."""

import ctypes
import dataclasses
import math

import numpy as np
import pytest
from scipy import LowLevelCallable, optimize, sparse, special

import epfast
from epfast import ADF, AEP, DAEP, DSEP, EP, SEP, CustomSite, ImportanceSampling
from epfast.backend import fit_minibatch, tilted_moments
from epfast.schemes import (
    Exact,
    Laplace,
    Quadrature,
    QuickLaplace,
    Scheme,
    Variational,
    fifth_degree_rule,
)

LOSSES = ["logistic", "probit", "hinge", "quasi01", "squared_hinge", "noisy_step"]
SMOOTH = ["logistic", "probit", "squared_hinge"]
V = np.repeat([1e-4, 0.05, 1.0, 30.0], 6)
M = np.tile([-2.1, -0.6, 0.03, 0.4, 1.7, 3.0], 4)
Y = np.where(np.arange(24) % 3 == 0, -1.0, 1.0)
TILTS = [(1.0, 1.0), (0.5, 1.0), (2.0, 0.7)]  # power, beta
tilts = pytest.mark.parametrize(("power", "beta"), TILTS)


def loss_at(name, m):
    return epfast.losses.resolve(name).evaluate(m)


def plain_triple(c, b, tau, v):
    """log g = c + b (h - m) - tau (h - m)^2 / 2 integrated over N(m, v)."""
    variance = 1 / (1 / v + tau)
    with np.errstate(invalid="ignore"):  # improper entries are not used
        lz = c + 0.5 * np.log(variance / v) + 0.5 * b * b * variance
    return lz, variance * b / v, (variance / v - 1) / v


def assert_triples(got, want, rtol=1e-9, v=V):
    for a, b, unit in zip(got, want, (1.0, np.sqrt(v), v), strict=True):
        np.testing.assert_allclose(a * unit, b * unit, rtol=rtol, atol=rtol)


@tilts
@pytest.mark.parametrize("curvature", ["exact", "slope"])
@pytest.mark.parametrize("name", [n for n in LOSSES if n != "noisy_step"])
def test_quick_laplace_is_the_expansion_at_the_mean(name, curvature, power, beta):
    value, slope, curve = loss_at(name, Y * M)
    a = power * beta
    want = plain_triple(
        -a * value, -a * Y * slope, a * (curve, abs(slope))[curvature == "slope"], V
    )
    given = {"scheme": "quick_laplace", "curvature": curvature, "beta": beta}
    assert_triples(tilted_moments(name, Y, M, V, power, **given), want)


@tilts
@pytest.mark.parametrize("name", SMOOTH)
def test_laplace_is_the_expansion_at_the_mode(name, power, beta):
    a, rows = power * beta, []
    for y, m, v in zip(Y, M, V, strict=True):

        def down(h, y=y, m=m, v=v):
            return a * y * loss_at(name, [y * h])[1][0] + (h - m) / v

        reach = 3 * (1 + a * v * (abs(m) + 3))
        h = optimize.brentq(down, m - reach, m + reach, xtol=1e-13, rtol=1e-14)
        near = optimize.minimize_scalar(
            lambda h, y=y, m=m, v=v: a * loss_at(name, [y * h])[0][0] + 0.5 * (h - m) ** 2 / v,
            bracket=(h - math.sqrt(v), h + math.sqrt(v)),
        )
        assert near.x == pytest.approx(h, abs=1e-6 * (1 + abs(h)))
        value, slope, curve = (part[0] for part in loss_at(name, [y * h]))
        step = m - h  # from about the mode to about the mean
        b, tau = -a * y * slope, a * curve
        rows.append((-a * value + b * step - 0.5 * tau * step**2, b - tau * step, tau))
    want = plain_triple(*np.array(rows).T, V)
    assert_triples(tilted_moments(name, Y, M, V, power, "laplace", beta=beta), want, 1e-8)


@tilts
@pytest.mark.parametrize("gamma", [None, 1.1, math.sqrt(3)])
@pytest.mark.parametrize("name", LOSSES)
def test_quadratures_use_three_points(name, gamma, power, beta):
    """Gauss: weighted sums. Variational: the parabola through log t."""
    a, g = power * beta, math.sqrt(1.5) if gamma is None else gamma
    z = np.array([[-g], [0.0], [g]])
    w = np.array([[0.5 / g**2], [1 - 1 / g**2], [0.5 / g**2]])
    log_t = -a * np.array([loss_at(name, Y * (M + np.sqrt(V) * k))[0] for k in z])
    f = w * np.exp(log_t)
    mean = (f * z).sum(axis=0) / f.sum(axis=0)
    spread = (f * (z - mean) ** 2).sum(axis=0) / f.sum(axis=0)
    gauss = np.log(f.sum(axis=0)), mean / np.sqrt(V), (spread - 1) / V
    given = {"beta": beta, "gamma": gamma}
    assert_triples(tilted_moments(name, Y, M, V, power, "quadrature", **given), gauss, 1e-8)
    fit = np.array([np.polyfit(z[:, 0], column, 2) for column in log_t.T]).T
    proper = 2 * fit[0] < 0.999
    assert proper.sum() > 12
    keep = proper.nonzero()[0]
    want = plain_triple(fit[2], fit[1] / np.sqrt(V), -2 * fit[0] / V, V)
    got = tilted_moments(name, Y[keep], M[keep], V[keep], power, "variational", **given)
    assert_triples(got, [part[keep] for part in want], 1e-7, V[keep])
    improper = (2 * fit[0] > 1.001).nonzero()[0]
    if improper.size:  # more precision than the cavity has is taken away
        with pytest.raises(FloatingPointError, match=f"{improper.size} of {improper.size}"):
            tilted_moments(
                name, Y[improper], M[improper], V[improper], power, "variational", **given
            )


def test_a_scalar_site_is_a_minibatch_of_one_row():
    for scheme in (Laplace(tol=1e-12), Variational(rule="fifth"), Quadrature(2.0)):
        for at in zip(Y, M, V, strict=True):
            y, m, v = (np.array([x]) for x in at)
            tau, nu, scale = fit_minibatch("logistic", y[:, None], m, v, scheme)
            c = scale + m * (nu - 0.5 * tau * m)
            want = plain_triple(c, nu - tau * m, tau, v)
            assert_triples(tilted_moments("logistic", y, m, v, scheme=scheme), want, 1e-8, v)


@tilts
@pytest.mark.parametrize("name", ["logistic", "quasi01", "noisy_step"])
def test_importance_sampling_converges(name, power, beta):
    exact = tilted_moments(name, Y, M, V, power, beta=beta)
    for samples in (2_001, 32_000):
        scheme = ImportanceSampling(samples, seed=3)
        got = tilted_moments(name, Y, M, V, power, scheme, beta=beta)
        # standard errors of the self-normalised means, by quadrature; pairs at most double variance
        z, w = np.polynomial.legendre.leggauss(300)
        z, w = (9 * z)[:, None], (9 * w)[:, None] * np.exp(-0.5 * (9 * z[:, None]) ** 2)
        w = w / w.sum()
        t = np.exp(-power * beta * loss_at(name, Y * (M + np.sqrt(V) * z))[0])
        total = (w * t).sum(axis=0)
        mean = (w * t * z).sum(axis=0) / total
        spread = (w * t * (z - mean) ** 2).sum(axis=0) / total
        influence = [t / total - 1, t * (z - mean) / total]
        influence.append(t * ((z - mean) ** 2 - spread) / total)
        for a, b, unit, part in zip(got, exact, (1, np.sqrt(V), V), influence, strict=True):
            error = np.sqrt(2 * (w * part**2).sum(axis=0) / samples)
            assert (np.abs(a - b) * unit <= 5 * error + 30 / samples + 1e-9).all()


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


# ---- EP ----


def data(n=40, d=3, noise=1.0):
    rng = np.random.default_rng([n, d])
    X = rng.normal(size=(n, d))
    return X, np.where(X[:, 0] + noise * rng.normal(size=n) > 0, 1.0, -1.0)


def fit(X, y, loss="probit", scheme="exact", **given):
    given = {"posterior": "full", "batch_size": None, "prior_variance": 2.0} | given
    return epfast.fit_linear(X, y, loss=loss, scheme=scheme, **given)


def residual(post, X, y, loss, scheme, power):
    """The most by which one more update of a site would move it, on the scale of the posterior."""
    tau, nu, scale = post.sites
    h, s = post.predict_latent(X)
    v = 1 / (1 / s - power * tau)
    m = v * (h / s - power * nu)
    lz, d1, d2 = tilted_moments(loss, y, m, v, power, scheme)
    mean, variance = m + v * d1, v + v * v * d2
    lz = lz + 0.5 * np.log(v / variance) - 0.5 * mean**2 / variance + 0.5 * m**2 / v
    new = np.array([1 / variance - 1 / v, mean / variance - m / v, lz]) / power
    return np.abs((new - [tau, nu, scale]) * [s, np.sqrt(s), np.ones_like(s)]).max()


class WideQuadrature(Quadrature):
    """An outsider's scheme: another rule for gamma."""

    def core_arguments(self, d):
        return {"scheme": "quadrature", "gamma": math.sqrt(3.0 * d)}


@dataclasses.dataclass(frozen=True)
class FivePoints(Scheme):
    """An outsider's scheme: variational quadrature on its own points."""

    reach: float = 1.0

    def core_arguments(self, d):
        z, w = np.polynomial.hermite_e.hermegauss(5)
        points = np.vstack([self.reach * k * np.eye(d)[j] for j in range(d) for k in z])
        return {"scheme": "variational_rule", "points": points, "weights": np.tile(w / w.sum(), d)}


SCHEMES = {
    "exact": Exact(),
    "laplace": Laplace(),
    "quick_laplace": QuickLaplace(),
    "slope": QuickLaplace("slope"),
    "quadrature": Quadrature(),
    "variational": Variational(),
    "fifth": Variational(rule="fifth"),
    "importance": ImportanceSampling(300),
    "wide": WideQuadrature(),
    "five": FivePoints(),
}
# fmt: off
SCHEDULES = [
    EP(8), EP(8, order="shuffled", seed=1), EP(8, order="parallel", damping=0.4),
    EP(8, power=0.7, damping=0.8), ADF(), ADF(order="shuffled", seed=2), SEP(4), AEP(8),
    DSEP(4, sweeps=4), DAEP(4, sweeps=4),
]
# fmt: on


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
def test_every_schedule_runs_with_every_scheme(scheme, schedule):
    X, y = data()
    for loss in LOSSES:
        if loss == "noisy_step" and scheme.needs_derivatives:
            with pytest.raises(ValueError, match="jump"):
                fit(X, y, loss, scheme, schedule=schedule)
            continue
        post = fit(X, y, loss, scheme, schedule=schedule)
        parts = [post.mean, post.precision, post.log_evidence, post.predict_proba(X)]
        assert all(np.isfinite(part).all() for part in parts)
        assert np.linalg.eigvalsh(post.covariance).min() > 0


@pytest.mark.parametrize("power", [1.0, 0.7])
@pytest.mark.parametrize("loss", ["logistic", "probit", "squared_hinge"])
@pytest.mark.parametrize("scheme", [k for k in SCHEMES if k != "importance"])
def test_fixed_points(scheme, loss, power):
    """From every order the same, and no site update changes it."""
    X, y = data()
    scheme, posts = SCHEMES[scheme], []
    for order in ({"damping": 0.8}, {"order": "parallel", "damping": 0.3}):
        schedule = EP(1000, 1e-11, power=power, **order)
        posts.append(fit(X, y, loss, scheme, schedule=schedule))
        assert posts[-1].converged
        assert residual(posts[-1], X, y, loss, scheme, power) <= 1e-8
    np.testing.assert_allclose(posts[0].mean, posts[1].mean, rtol=1e-7, atol=1e-9)


def test_laplace_propagation_ends_at_the_mode():
    X, y = data()
    post = fit(X, y, "logistic", "laplace", schedule=EP(500, 1e-11, 0.8))
    gradient = X.T @ (y * special.expit(-y * (X @ post.mean))) - post.mean / 2.0
    np.testing.assert_allclose(gradient, 0.0, atol=1e-8)


def test_an_outsiders_scheme_works_everywhere():
    X, y = data()
    v, one = np.ones(3), np.ones(1)
    for scheme in (WideQuadrature(), FivePoints()):
        epfast.fit_linear(X, y, scheme=scheme, schedule=EP(2, 0.0))
        fit_minibatch("logistic", X, 0 * v, v, scheme)
        tilted_moments("hinge", one, one, one, scheme=scheme)
    # at gamma = sqrt 3 in one dimension the rule is Gauss-Hermite's
    want = tilted_moments("probit", Y, M, V, scheme="quadrature", gamma=math.sqrt(3))
    assert_triples(tilted_moments("probit", Y, M, V, scheme=WideQuadrature()), want)
    points, weights = fifth_degree_rule(1)
    own = Variational(rule=(points, weights))
    want = tilted_moments("probit", Y, M, V, scheme=Variational(rule="fifth"))
    assert_triples(tilted_moments("probit", Y, M, V, scheme=own), want)


def test_slopes_alone_make_a_proper_posterior():
    """Quick Laplace on hinge: sites of precision 0 with a slope, none refused."""
    X, y = data()
    post = fit(X, y, "hinge", "quick_laplace", schedule=EP(1, 0.0))
    np.testing.assert_allclose(post.precision, np.eye(3) / 2, rtol=1e-12, atol=1e-14)
    assert post.n_refused == 0
    assert np.abs(post.sites.shift).max() == 1.0


# ---- your own moments ----


def probit_moments(m, v):
    scale = np.sqrt(1 + v)
    z = m / scale
    ratio = np.sqrt(2 / np.pi) / special.erfcx(-z / np.sqrt(2))
    return special.log_ndtr(z), ratio / scale, -ratio * (z + ratio) / scale**2


DOUBLES = ctypes.POINTER(ctypes.c_double)
SITE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, DOUBLES, DOUBLES, DOUBLES, ctypes.c_void_p)


def compiled(n, m, v, out, user):
    noise = ctypes.cast(user, DOUBLES)[0] if user else 1.0
    for i in range(n):
        scale = math.sqrt(noise)
        lz, d1, d2 = probit_moments(m[i] / scale, v[i] / noise)
        for j, part in enumerate((lz, d1 / scale, d2 / noise)):
            out[3 * i + j] = part
    return 0


def swallow(n, m, v, out, user):
    return 0


COMPILED, FAILING, SILENT = SITE(compiled), SITE(lambda *given: 7), SITE(swallow)
MINE = {"python": CustomSite(probit_moments), "compiled": LowLevelCallable(COMPILED)}


@pytest.mark.parametrize("loss", MINE.values(), ids=MINE)
def test_own_moments_equal_the_built_in_probit(loss, tmp_path):
    X, y = data(140)
    at = y, X[:, 0], X[:, 1] ** 2
    assert_triples(tilted_moments(loss, *at), tilted_moments("probit", *at), 1e-11, at[2])
    for schedule in (EP(4), EP(3, order="parallel", damping=0.5), ADF(), SEP(2), DAEP(3, sweeps=2)):
        mine, built_in = (fit(X, y, k, schedule=schedule) for k in (loss, "probit"))
        for part in ("mean", "covariance", "log_evidence", "n_refused"):
            np.testing.assert_allclose(getattr(mine, part), getattr(built_in, part), rtol=1e-9)
        np.testing.assert_allclose(mine.predict_proba(X), built_in.predict_proba(X), rtol=1e-9)
    mine.save(tmp_path / "post.npz")
    assert epfast.load(tmp_path / "post.npz").loss is None
    again = epfast.load(tmp_path / "post.npz", loss)
    np.testing.assert_array_equal(again.predict_proba(X), mine.predict_proba(X))


def test_user_data_reach_the_compiled_site():
    noise = ctypes.c_double(4.0)
    pointer = ctypes.cast(ctypes.pointer(noise), ctypes.c_void_p)
    loss = LowLevelCallable(COMPILED, pointer)
    got = tilted_moments(loss, Y, M, V)
    want = tilted_moments("probit", Y, M / 2, V / 4)
    assert_triples(got, [part / unit for part, unit in zip(want, (1, 2, 4), strict=True)])


@pytest.mark.filterwarnings("ignore:.*refused:epfast.ConvergenceWarning")
def test_own_moments_that_are_not_numbers_are_refused_and_counted():
    X, y = data()

    def some(m, v):
        lz, d1, d2 = probit_moments(m, v)
        return np.where(m > 0, lz, np.nan), d1, d2

    order = {"order": "parallel"}
    post = fit(X, y, CustomSite(some), schedule=EP(1, 0.0, **order))
    assert post.n_refused == 40  # all cavity means are 0
    for silent in (CustomSite(lambda m, v: (m * np.nan, m, m)), LowLevelCallable(SILENT)):
        post = fit(X, y, silent, schedule=EP(1, 0.0))
        assert post.n_refused == 40
        with pytest.raises(FloatingPointError, match="24 of 24"):
            tilted_moments(silent, Y, M, V)
        with pytest.raises(FloatingPointError, match="probability"):
            post.predict_proba(X)


def test_errors_of_own_moments_come_through():
    X, y = data()

    class OwnError(Exception):
        pass

    def fails(m, v):
        raise OwnError("on purpose")

    for schedule in (EP(), EP(order="parallel"), ADF(), SEP()):
        with pytest.raises(OwnError, match="on purpose"):
            fit(X, y, CustomSite(fails), schedule=schedule)
        with pytest.raises(RuntimeError, match="C function"):
            fit(X, y, LowLevelCallable(FAILING), schedule=schedule)
    with pytest.raises(OwnError, match="on purpose"):
        tilted_moments(CustomSite(fails), Y, M, V)
    for result, match in [
        (lambda m, v: m, "three arrays"),
        (lambda m, v: None, "three arrays"),
        (lambda m, v: (m, m), "three arrays"),
        (lambda m, v: (m, m, m[:, None]), "shape"),
        (lambda m, v: (m, m, 0.0), "shape"),
        (lambda m, v: (m, m + 1j, m), "complex"),
        (lambda m, v: (["a"] * len(m), m, m), "dtype"),
    ]:
        with pytest.raises((TypeError, ValueError), match=match):
            fit(X, y, CustomSite(result))


def test_own_moments_may_keep_or_overwrite_what_they_are_given():
    def rude(m, v):
        result = probit_moments(m, v)
        m[:] = v[:] = np.nan
        return result

    assert_triples(tilted_moments(CustomSite(rude), Y, M, V), tilted_moments("probit", Y, M, V))


# fmt: off
SITE_LOSS = CustomSite(probit_moments)
REFUSED = [  # what the message begins with or says
    ({"loss": SITE_LOSS, "beta": 2.0}, "^beta"), ({"loss": SITE_LOSS, "record": "cost"}, "^record"),
    ({"loss": SITE_LOSS, "schedule": EP(power=0.5)}, "^power"),
    ({"loss": SITE_LOSS, "schedule": ADF(power=0.5)}, "^power"),
    ({"loss": SITE_LOSS, "scheme": "variational"}, "CustomSite"),
    ({"loss": SITE_LOSS, "scheme": "importance"}, "CustomSite"),
    ({"loss": SITE_LOSS, "batch_size": 10, "posterior": "factorized"}, "scalar sites"),
    ({"loss": SITE_LOSS, "scheme": "laplace", "batch_size": 9, "posterior": "factorized"}, "its"),
    ({"scheme": "exact", "batch_size": 10, "posterior": "factorized"}, "scalar sites"),
    ({"scheme": Exact(), "batch_size": 10, "posterior": "factorized"}, "scalar sites"),
    ({"scheme": "importance", "batch_size": 10, "posterior": "factorized"}, "scalar sites"),
    ({"scheme": ImportanceSampling(), "batch_size": 5, "posterior": "factorized"}, "scalar sites"),
    ({"scheme": "quick_laplace", "loss": "noisy_step"}, "jump"),
    ({"scheme": "laplace", "loss": lambda m: np.logaddexp(0, -m)}, "slope and curvature"),
    ({"scheme": "exact", "gamma": 2.0}, "^gamma"), ({"scheme": "laplace", "gamma": 2.0}, "^gamma"),
    ({"scheme": "importance", "curvature": "slope"}, "^curvature"),
    ({"scheme": "quadrature", "curvature": "slope"}, "^curvature"),
    ({"scheme": Quadrature(), "gamma": 2.0}, "^gamma"), ({"scheme": "sampling"}, "^scheme"),
    ({"site_rule": "keep"}, "^site_rule"),
]
# fmt: on


@pytest.mark.parametrize(("given", "match"), REFUSED)
def test_refusals_give_the_reason(given, match):
    X, y = data()
    with pytest.raises(ValueError, match=match):
        fit(X, y, **given)


def test_other_doors_refuse_too():
    for given in ({"beta": 2.0}, {"power": 0.5}, {"scheme": "quadrature"}):
        with pytest.raises(ValueError, match=next(iter(given)) if "scheme" not in given else "its"):
            tilted_moments(SITE_LOSS, Y, M, V, **given)
    with pytest.raises(ValueError, match="CustomSite"):
        fit_minibatch(SITE_LOSS, np.ones((2, 1)), [0.0], [1.0])
    with pytest.raises(ValueError, match="CustomSite"):
        SITE_LOSS.evaluate([0.0])
    with pytest.raises(ValueError, match="scalar sites"):
        fit_minibatch("probit", np.ones((2, 1)), [0.0], [1.0], "importance")
    wrong = LowLevelCallable(ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(lambda m: m))
    with pytest.raises(ValueError, match="signature"):
        CustomSite(wrong)
    with pytest.raises(TypeError, match="moments"):
        CustomSite(3.0)
    with pytest.raises(ValueError, match="signature"):
        epfast.CustomLoss(LowLevelCallable(COMPILED))
    for given in ({"samples": 1}, {"samples": 2.5}, {"seed": -1}, {"seed": None}):
        with pytest.raises((TypeError, ValueError), match=next(iter(given))):
            ImportanceSampling(**given)


class Backwards(EP):
    """An outsider's schedule: from the last row to the first."""

    def visits(self, n_factors, sweep):
        return np.arange(n_factors)[::-1]


def test_an_outsiders_schedule_works_everywhere():
    """As the rows turned round do, in order."""
    X, y = data()
    X, y = X[:40], y[:40]
    K = np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(-1))
    settings = {"sweeps": 2, "tol": 0.0, "order": "sequential"}
    scalar = {"scheme": "exact", "posterior": "full", "batch_size": None}
    for rows, kwargs in (
        (X, {"batch_size": 1}),
        (X, scalar),
        (sparse.csr_array(X), scalar),
        (X, {"scheme": "laplace", "posterior": "full", "batch_size": 1}),
    ):
        own = epfast.fit_linear(rows, y, schedule=Backwards(**settings), **kwargs)
        turned = epfast.fit_linear(rows[::-1], y[::-1], schedule=EP(**settings), **kwargs)
        np.testing.assert_allclose(own.mean, turned.mean, rtol=1e-10)
        np.testing.assert_allclose(own.log_evidence, turned.log_evidence, rtol=1e-10)
        forwards = epfast.fit_linear(rows, y, schedule=EP(**settings), **kwargs)
        assert np.abs(own.mean - forwards.mean).max() > 1e-6
    own = epfast.fit_gp(K, y, schedule=Backwards(**settings))
    turned = epfast.fit_gp(K[::-1, ::-1], y[::-1], schedule=EP(**settings))
    np.testing.assert_allclose(own.mean, turned.mean[::-1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "order",
    [range(39), np.zeros(40, int), np.arange(40) - 1, np.arange(40) + 1, np.arange(40.0), None],
    ids=str,
)
def test_visits_that_miss_a_factor_are_refused(order):
    class Wrong(EP):
        def visits(self, n_factors, sweep):
            return order

    X, y = data()
    X, y, wrong = X[:40], y[:40], Wrong(2, 0.0, order="sequential")
    with pytest.raises(ValueError, match=r"Wrong.visits gave .* allowed: each of 0 to 39 once"):
        fit(X, y, "probit", "exact", schedule=wrong)
    with pytest.raises(ValueError, match=r"Wrong.visits gave"):
        epfast.fit_linear(X, y, batch_size=1, schedule=wrong)
    with pytest.raises(ValueError, match=r"Wrong.visits gave"):
        epfast.fit_gp(X @ X.T, y, schedule=wrong)
