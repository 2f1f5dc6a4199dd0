"""Shared sites: SEP, AEP, DSEP, DAEP on scalar sites with a full covariance."""

import numpy as np
import pytest

import epfast
from epfast import AEP, DAEP, DSEP, EP, SEP
from epfast.backend import tilted_moments
from epfast.gaussian.fit_linear import fit_problem
from tests.oracles.full_fits import ordered

N, D = 60, 4


def problem(n=N, d=D, seed=0, flip=0.1):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) / np.sqrt(d)
    y = np.sign(X @ rng.normal(size=d) * 3.0 + 0.5 * rng.normal(size=n))
    y[rng.random(n) < flip] *= -1.0
    return X, y


def fit(X, y, schedule, loss="probit", **options):
    if not isinstance(schedule, epfast.ADF):  # which goes on from a prior
        options |= {"prior_variance": 25.0}
    return epfast.fit_linear(X, y, loss=loss, schedule=schedule, **options)


def same(a, b, tolerance=1e-10):
    assert_close(a.precision, b.precision, tolerance)
    assert_close(a.shift, b.shift, tolerance)
    assert_close(a.log_evidence, b.log_evidence, tolerance)
    assert (a.n_sweeps, a.converged) == (b.n_sweeps, b.converged)
    changes = [[info.change for info in post.history] for post in (a, b)]
    np.testing.assert_allclose(*changes, rtol=1e-6, atol=1e-9)


def assert_close(a, b, tolerance):
    np.testing.assert_allclose(a, b, rtol=0.0, atol=tolerance * np.abs(b).max())


def fitted(loss, y, m, v, power):
    """The sites (tau, nu, scale) of tilted fits, from the moments (math: guide)."""
    lZ, dlZ, d2lZ = tilted_moments(loss, y, m, v, power)
    mean, variance = m + v * dlZ, v + v * v * d2lZ
    tau, nu = 1.0 / variance - 1.0 / v, mean / variance - m / v
    # log of the integral of cavity times exp(nu h - tau h^2 / 2)
    log_integral = 0.5 * (np.log(variance / v) + mean**2 / variance - m**2 / v)
    return tau / power, nu / power, (lZ - log_integral) / power


def oracle(X, y, loss, *, groups, batch, sweeps, power=1.0, damping=1.0):
    """SEP as it is written in the papers; prior N(0, 25 I), groups in order."""
    d, K = X.shape[1], max(groups) + 1
    sizes, P0 = np.bincount(groups), np.eye(d) / 25.0
    G, g, c = np.zeros((K, d, d)), np.zeros((K, d)), np.zeros(K)
    for _ in range(sweeps):
        for k in range(K):
            rows = np.flatnonzero(groups == k)
            for part in np.split(rows, np.arange(batch, len(rows), batch)):
                cavity = P0 + np.einsum("k,kij", sizes, G) - power * G[k]
                shift = sizes @ g - power * g[k]
                covariance = np.linalg.inv(cavity)
                m, A = X[part] @ covariance @ shift, X[part]
                v = np.einsum("ij,jk,ik->i", A, covariance, A)
                tau, nu, scale = fitted(loss, y[part], m, v, power)
                step = damping / sizes[k]
                G[k] = (1 - step * len(part)) * G[k] + step * np.einsum("i,ij,ik", tau, A, A)
                g[k] = (1 - step * len(part)) * g[k] + step * nu @ A
                c[k] = (1 - step * len(part)) * c[k] + step * scale.sum()
    P, p = P0 + np.einsum("k,kij", sizes, G), sizes @ g
    evidence = sizes @ c + 0.5 * p @ np.linalg.solve(P, p)
    evidence += 0.5 * (np.linalg.slogdet(P0)[1] - np.linalg.slogdet(P)[1])
    return G, g, P, p, evidence


def agree(post, expected):
    G, g, P, p, evidence = expected
    for one, other in zip((*post.sites[:2], post.precision, post.shift), (G, g, P, p), strict=True):
        assert_close(one, other, 1e-9)
    assert_close(post.log_evidence, evidence, 1e-9)


@pytest.mark.parametrize("loss", ["probit", "logistic"])
@pytest.mark.parametrize("batch", [1, 5, N])
@pytest.mark.parametrize(("power", "damping"), [(1.0, 1.0), (0.5, 1.0), (1.0, 0.5), (0.5, 0.5)])
def test_sep_oracle(loss, batch, power, damping):
    X, y = problem()
    given = {"batch": batch, "sweeps": 3, "power": power, "damping": damping}
    post = fit(X, y, SEP(tol=0.0, **given), loss)
    agree(post, oracle(X, y, loss, groups=np.zeros(N, int), **given))
    assert post.n_refused == 0


@pytest.mark.parametrize("batch", [1, 7, N])
def test_groups_oracle(batch):
    """Unequal groups, interleaved in X; batches larger than a group, and cut by its end."""
    X, y = problem()
    groups = np.random.default_rng(1).choice(3, size=N, p=[0.6, 0.3, 0.1])
    schedule = DAEP(groups, 3, 0.0) if batch == N else DSEP(groups, 3, 0.0, batch=batch)
    post = fit(X, y, schedule)
    agree(post, oracle(X, y, "probit", groups=groups, batch=batch, sweeps=3))


@pytest.mark.parametrize("loss", ["probit", "logistic"])
@pytest.mark.parametrize("order", ["sequential", "shuffled"])
@pytest.mark.parametrize(("power", "damping"), [(1.0, 1.0), (0.5, 0.7)])
def test_equal_schedules(loss, order, power, damping):
    X, y = problem()
    shared = {"sweeps": 4, "tol": 0.0, "power": power, "damping": damping}
    common = shared | ordered(order, 3)
    ep = fit(X, y, EP(**common), loss)
    same(fit(X, y, DSEP(1, **common, batch=7), loss), fit(X, y, SEP(**common, batch=7), loss))
    same(fit(X, y, SEP(**common, batch=N), loss), fit(X, y, AEP(**shared), loss))
    same(fit(X, y, DAEP(5, **common), loss), fit(X, y, DSEP(5, **common, batch=N), loss))
    for schedule in (DSEP(N, **common), DAEP(np.arange(N), **common)):
        post = fit(X, y, schedule, loss)
        same(post, ep)
        tau = ep.sites.precision[:, None, None] * X[:, :, None] * X[:, None, :]
        assert_close(post.sites.precision, tau, 1e-10)
        assert_close(post.sites.log_scale, ep.sites.log_scale, 1e-10)


def test_batches_partition_rows():
    labels = np.random.default_rng(0).integers(0, 4, 50)
    for order in ("sequential", "shuffled"):
        schedule = DSEP(labels, **ordered(order), batch=3)
        rows, group, last = schedule.batches(50, 0)
        assert np.array_equal(np.sort(rows), np.arange(50))
        assert np.array_equal(labels[rows], group)
        parts = np.split(group, np.flatnonzero(last) + 1)
        assert parts.pop().size == 0
        assert all(len(part) <= 3 and np.ptp(part) == 0 for part in parts)
        assert len(parts) == sum(-(-count // 3) for count in np.bincount(labels))
    assert set(np.bincount(DSEP(7).labels(50))) == {7, 8}


@pytest.mark.parametrize("loss", ["probit", "logistic"])
def test_fixed_point(loss):
    """At convergence the average of the fitted sites is the shared site."""
    X, y = problem()
    post = fit(X, y, AEP(sweeps=500, tol=1e-12), loss)
    assert post.converged
    covariance = np.linalg.inv(post.precision - post.sites.precision[0])
    m = X @ covariance @ (post.shift - post.sites.shift[0])
    tau, nu, scale = fitted(loss, y, m, np.einsum("ij,jk,ik->i", X, covariance, X), 1.0)
    assert_close((X.T * tau) @ X / N, post.sites.precision[0], 1e-8)
    assert_close(nu @ X / N, post.sites.shift[0], 1e-8)
    assert abs(scale.mean() - post.sites.log_scale[0]) <= 1e-8
    ep = fit(X, y, EP(100, 1e-10), loss)
    assert (np.abs(ep.mean - post.mean) < 0.1 * np.sqrt(ep.variance)).all()
    assert abs(ep.log_evidence - post.log_evidence) < 0.1


@pytest.mark.parametrize("groups", [1, 4])
def test_sequential_sweeps_converge(groups):
    """With a small step, to nearly what batches of whole groups give."""
    X, y = problem()
    post = fit(X, y, DSEP(groups, 800, 1e-9, damping=0.05, batch=5))
    other = fit(X, y, DAEP(groups, 200))
    assert post.converged and other.converged  # noqa: PT018
    assert (np.abs(post.mean - other.mean) < 0.1 * np.sqrt(other.variance)).all()
    assert abs(post.log_evidence - other.log_evidence) < 0.1


def test_evidence_of_gaussian_factors():
    """Factors that are Gaussian are fitted exactly, so that the evidence is exact as well."""
    X, y = problem(n=20)
    X[10:], y[10:] = X[0], y[0]
    loss = epfast.CustomLoss(lambda m: 0.5 * (m - 1.0) ** 2)
    ep, aep = fit(X, y, EP(5, 0.0), loss), fit(X, y, AEP(5, 0.0), loss)
    P, p = np.eye(D) / 25.0 + X.T @ X, X.T @ y
    exact = 0.5 * (p @ np.linalg.solve(P, p) - 20 - np.linalg.slogdet(25.0 * P)[1])
    assert abs(ep.log_evidence - exact) < 1e-8
    assert abs(aep.log_evidence - exact) < 1e-8


@pytest.mark.parametrize("schedule", [SEP, DSEP])
def test_resume_save_load(schedule, tmp_path):
    X, y = problem()
    groups = (3,) if schedule is DSEP else ()
    options = {"tol": 0.0, "order": "shuffled", "seed": 5, "batch": 4}
    whole = fit(X, y, schedule(*groups, sweeps=5, **options))
    first = fit(X, y, schedule(*groups, sweeps=2, **options))
    first.save(tmp_path / "post.npz")
    loaded = epfast.load(tmp_path / "post.npz")
    assert loaded.sites.precision.shape == (3 if groups else 1, D, D)
    for one, other in zip(loaded.sites, first.sites, strict=True):
        assert np.array_equal(one, other)
    resumed = fit(X, y, schedule(*groups, sweeps=3, **options), start=loaded)
    for one, other in zip(resumed.state[:2], whole.state[:2], strict=True):
        assert np.array_equal(one, other)
    assert (resumed.n_sweeps, resumed.log_evidence) == (5, whole.log_evidence)
    other = fit(X, y, schedule(*groups, sweeps=5, **(options | {"seed": 6})))
    assert not np.array_equal(other.shift, whole.shift)


def test_large_batches_cross_calls(monkeypatch):
    """A batch may be handed over in several calls of the core."""
    X, y = problem()
    whole = fit(X, y, SEP(2, 0.0, batch=25))
    monkeypatch.setattr("epfast.gaussian.problem.CHUNK", 7 * D)
    same(fit_problem(whole.problem), whole, 1e-13)


@pytest.mark.filterwarnings("ignore:.*refused:epfast.ConvergenceWarning")
@pytest.mark.parametrize(
    "schedule",
    [SEP(3, 0.0, batch=20), DSEP(4, 3, 0.0, batch=5), DAEP(4, 3, 0.0), AEP(3, 0.0)],
)
def test_improper_posterior_is_refused(schedule):
    """Sites of negative precision, each proper with the prior alone, not all of them together."""
    X, y = problem()
    post = fit(X, y, schedule, epfast.CustomLoss(lambda m: -0.005 * m * m))
    assert np.linalg.eigvalsh(post.precision)[0] > 0.0
    total = np.tensordot(np.bincount(schedule.labels(N)), post.sites.precision, 1)
    assert_close(post.precision, np.eye(D) / 25.0 + total, 1e-12)
    assert 0 < post.n_refused <= 3 * N
    if isinstance(schedule, AEP):  # nothing moves, which is no convergence
        assert [(info.n_refused, info.change) for info in post.history] == 3 * [(N, 0.0)]
    assert not post.converged


def test_does_not_go_together():
    X, y = problem()
    sep, ep = fit(X, y, SEP(1, 0.0)), fit(X, y, EP(1, 0.0))
    for schedule, start in ((SEP(1), ep), (EP(1), sep), (DSEP(2, 1), sep)):
        with pytest.raises(ValueError, match="start has sites of shape"):
            fit(X, y, schedule, start=start)
    assert fit(X, y, epfast.ADF(), start=sep).n_sweeps == 2
    with pytest.raises(ValueError, match="schedule"):
        epfast.fit_linear(X, y, posterior="factorized", schedule=SEP())


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: SEP(batch=0), "batch"),
        (lambda: SEP(batch=N + 1), "batch"),
        (lambda: DSEP(2, batch=N + 1), "batch"),
        (lambda: SEP(order="parallel"), "order"),
        (lambda: SEP(order="shuffled", seed=-1), "seed"),
        (lambda: SEP(seed=1), "seed"),
        (lambda: AEP(power=-1.0), "power"),
        (lambda: DSEP(0), "groups"),
        (lambda: DSEP(N + 1), "groups"),
        (lambda: DAEP(np.zeros(N - 1, int)), "groups"),
        (lambda: DAEP(np.full(N, -1)), "groups"),
        (lambda: DAEP(np.ones(N, int)), "groups"),
        (lambda: DAEP(np.zeros(N)), "groups"),
    ],
)
def test_bad_arguments(make, name):
    X, y = problem()
    with pytest.raises(ValueError, match=name):
        fit(X, y, make())
