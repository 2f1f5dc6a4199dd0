"""The sparse form: equal to matrices of all weights, under constraints, in any unit."""

import pickle
import warnings
from functools import partial

import numpy as np
import pytest
from scipy import sparse, special

import epfast
from epfast import losses, priors
from epfast.gaussian.sparse_posterior import SparsePosterior
from tests.batteries import LOSSES, responses_of

RNG = np.random.default_rng(3)
N, J, K = 200, 30, 6
GROUP, CROSSED = RNG.integers(J, size=N), RNG.integers(K, size=N)
A = RNG.normal(size=N)
#: intercept, a slope, effects of levels and their slopes, crossed effects
X = np.column_stack(
    [np.ones(N), A, np.eye(J)[GROUP], np.eye(J)[GROUP] * A[:, None], np.eye(K)[CROSSED]]
)
D = X.shape[1]
ROWS = sparse.csr_array(X)
LATENT = 0.3 + 0.5 * A + 0.8 * RNG.normal(size=J)[GROUP] + 0.4 * RNG.normal(size=K)[CROSSED]
TIGHT = epfast.EP(sweeps=1000, tol=1e-10)
CASES = {
    "logistic": np.where(RNG.random(N) < special.expit(LATENT), 1, -1),
    "poisson": RNG.poisson(np.exp(LATENT)),
    "gaussian": LATENT + 0.5 * RNG.normal(size=N),
}


def prior_precision():
    """Wide common weights, correlated intercepts and slopes of a level, crossed effects."""
    pair = np.linalg.inv([[1.0, 0.3], [0.3, 0.5]])
    blocks = sparse.kron(sparse.csr_array(pair), sparse.eye_array(J))
    parts = [sparse.diags_array([0.01, 0.1]), blocks, 4.0 * sparse.eye_array(K)]
    return sparse.csr_array(sparse.block_diag(parts))


Q = prior_precision()


def same(post, other, sd=1e-7, nats=1e-6):
    """Moments in sd, relative variances, and log evidence."""
    spread = np.sqrt(np.diag(other.covariance))
    np.testing.assert_allclose((post.mean - other.mean) / spread, 0.0, atol=sd)
    np.testing.assert_allclose(post.variance, other.variance, rtol=sd)
    assert post.log_evidence == pytest.approx(other.log_evidence, abs=nats, rel=1e-11)
    assert post.converged
    assert other.converged


@pytest.mark.parametrize("name", [name for name, loss in LOSSES.items() if loss.latents == 1])
def test_it_equals_the_full_form(name):
    """Of every likelihood, at the fixed point of both, to 1e-7 sd and 1e-6 nats."""
    y = responses_of(LOSSES[name], LATENT, np.random.default_rng(1))
    given = {"loss": LOSSES[name], "prior_precision": Q, "schedule": TIGHT}
    post = epfast.fit_linear(ROWS, y, posterior="sparse", **given)
    other = epfast.fit_linear(X, y, posterior="full", **given)
    assert isinstance(post, SparsePosterior)
    same(post, other)
    np.testing.assert_allclose(post.covariance, other.covariance, atol=1e-7)
    assert post.residual < 1e-6


@pytest.mark.parametrize("name", ["logistic", "poisson", "gaussian", "student_t"])
@pytest.mark.parametrize("power", [1.0, 0.5])
def test_weights_offsets_powers_and_a_prior_mean(name, power):
    loss = LOSSES[name]
    y = responses_of(loss, LATENT, np.random.default_rng(1))
    mean = 0.3 * np.random.default_rng(2).normal(size=D)
    more = {"weights": RNG.uniform(0.2, 3.0, N), "offset": 0.2 * A, "prior_mean": mean}
    given = {"loss": loss, "prior_precision": Q, **more}
    given["schedule"] = epfast.EP(sweeps=1000, tol=1e-10, power=power)
    post = epfast.fit_linear(ROWS, y, posterior="sparse", **given)
    other = epfast.fit_linear(X, y, posterior="full", **given)
    same(post, other)
    loo = post.loo_log_predictive(), other.loo_log_predictive()
    np.testing.assert_allclose(*loo, atol=1e-7)
    ours, theirs = (one.loss_gradient() for one in (post, other))
    for name_of, value in theirs.items():
        np.testing.assert_allclose(ours[name_of], value, rtol=1e-6, atol=1e-7)


def test_all_that_a_posterior_says():
    """Beside the same fit in matrices; of rows that meet in no row of the fit, too."""
    y = responses_of(LOSSES["poisson"], LATENT, np.random.default_rng(1))
    given = {"loss": "poisson", "prior_precision": Q, "schedule": TIGHT}
    post = epfast.fit_linear(ROWS, y, **given, posterior="sparse")
    other = epfast.fit_linear(X, y, **given, posterior="full")
    close = partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-8)
    close(post.precision.toarray(), other.precision)
    close(post.prior_precision.toarray(), other.prior_precision)
    close(post.shift, other.shift)
    strange = np.random.default_rng(5).normal(size=(7, D))
    for new in (X[:9], strange):
        for joint in (False, True):
            for given_as in (new, sparse.csr_matrix(new)):
                pairs = zip(
                    post.predict_latent(given_as, joint),
                    other.predict_latent(new, joint),
                    strict=True,
                )
                for ours, theirs in pairs:
                    close(ours, theirs)
    close(post.predict(X[:5]), other.predict(X[:5]))
    close(post.log_predictive(X[:5], y[:5]), other.log_predictive(X[:5], y[:5]))
    columns = np.array([[0, 1, 2], [2, 3, D - 1], [5, 5, 40]])
    close(post.covariances_of(columns), other.covariances_of(columns))
    fewer = post.remove([3, 7])
    close(fewer.mean, other.remove([3, 7]).mean)
    assert fewer.check().verdict in ("good", "usable")
    draws = post.sample(40_000, rng=0)
    spread = np.sqrt(np.outer(post.variance, post.variance))
    np.testing.assert_allclose(np.cov(draws.T) / spread, post.covariance / spread, atol=0.03)
    assert post.check().verdict in ("good", "usable")
    with pytest.raises(ValueError, match="sparse precision, whose pattern"):
        post.partial_fit(X[:2], y[:2])


@pytest.mark.parametrize("constraints", [None, np.ones((1, D))])
def test_files_and_pickles(tmp_path, constraints):
    y = responses_of(LOSSES["poisson"], LATENT, np.random.default_rng(1))
    given = {"loss": "poisson", "prior_precision": Q, "constraints": constraints}
    post = epfast.fit_linear(ROWS, y, posterior="sparse", **given)
    post.save(tmp_path / "post.npz")
    for again in (epfast.load(tmp_path / "post.npz"), pickle.loads(pickle.dumps(post))):
        assert isinstance(again, SparsePosterior)
        np.testing.assert_array_equal(again.mean, post.mean)
        np.testing.assert_array_equal(again.variance, post.variance)
        np.testing.assert_array_equal(again.predict(X[:5]), post.predict(X[:5]))
        np.testing.assert_array_equal(again.sample(3, rng=1), post.sample(3, rng=1))
        assert again.log_evidence == pytest.approx(post.log_evidence, abs=1e-9)
        whole = again.with_rows(ROWS, y)
        np.testing.assert_allclose(whole.loo_log_predictive(), post.loo_log_predictive())


def test_the_default_takes_what_is_cheaper():
    """Many levels by the sparse form; few columns, or a full pattern, by matrices."""
    n, levels = 2000, 400
    group = RNG.integers(levels, size=n)
    many = sparse.csr_array((np.ones(n), (np.arange(n), group)), shape=(n, levels))
    y = np.where(RNG.random(n) < 0.5, 1, -1)
    assert isinstance(epfast.fit_linear(many, y), SparsePosterior)
    assert not isinstance(epfast.fit_linear(many.toarray(), y), SparsePosterior)
    few = sparse.csr_array(RNG.normal(size=(n, 5)))
    assert not isinstance(epfast.fit_linear(few, y), SparsePosterior)
    crowded = sparse.random_array((n, 100), density=0.2, rng=RNG, format="csr")
    assert not isinstance(epfast.fit_linear(crowded, y), SparsePosterior)
    for schedule in (epfast.EP(order="sequential"), epfast.SEP(), epfast.ADF()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", epfast.ConvergenceWarning)
            post = epfast.fit_linear(many, y, schedule=schedule)
        assert not isinstance(post, SparsePosterior)
        with pytest.raises(ValueError, match=r"(order|schedule) is"):
            epfast.fit_linear(many, y, schedule=schedule, posterior="sparse")


def test_callbacks_interrupts_and_threads():
    y = CASES["logistic"]
    given = {"prior_precision": Q, "posterior": "sparse"}
    seen = []

    def look(info, state):
        seen.append((info.sweep, state.mean.copy(), state.log_evidence))
        return info.sweep == 2

    post = epfast.fit_linear(ROWS, y, callback=look, record="cost", **given)
    assert [sweep for sweep, *_ in seen] == [1, 2]
    np.testing.assert_array_equal(seen[-1][1], post.mean)
    assert post.history[-1].cost == pytest.approx(float(post.problem.cost(post.mean[None])[0]))
    again = epfast.fit_linear(ROWS, y, start=post, schedule=TIGHT, **given)
    whole = epfast.fit_linear(ROWS, y, schedule=TIGHT, **given)
    np.testing.assert_allclose(again.mean, whole.mean, atol=1e-8)

    def press(info, state):
        if info.sweep == 2:
            raise KeyboardInterrupt

    with pytest.raises(epfast.Interrupted) as caught:
        epfast.fit_linear(ROWS, y, callback=press, **given)
    assert isinstance(caught.value.posterior, SparsePosterior)
    assert caught.value.posterior.n_sweeps == 2
    both = epfast.fit_linear(ROWS, y, schedule=TIGHT, n_jobs=2, **given)
    np.testing.assert_array_equal(both.mean, whole.mean)


def test_where_it_is_refused():
    y = CASES["logistic"]
    post = epfast.fit_linear(ROWS, y, posterior="sparse")
    for given in ({"loss": "multiclass"}, {"prior": losses.SpikeAndSlab()}, {"batch_size": 5}):
        with pytest.raises(ValueError, match="sparse"):
            epfast.fit_linear(ROWS, y, posterior="sparse", **given)
    with pytest.raises(ValueError, match="columns that meet in no row of the fit"):
        post.with_rows(np.ones_like(X), y)


def test_an_intercept_and_a_start():
    y = responses_of(LOSSES["logistic"], LATENT, np.random.default_rng(1))
    given = {"loss": "logistic", "prior_precision": Q[1:, 1:], "intercept": 4.0, "schedule": TIGHT}
    post = epfast.fit_linear(ROWS[:, 1:], y, posterior="sparse", **given)
    # the intercept has its prior at the means of the columns that many rows act on
    dense = (X[:, 1:] != 0.0).mean(0) >= 0.25
    row = np.append(np.where(dense, X[:, 1:].mean(0), 0.0), 1.0)
    whole = np.zeros((D, D))
    whole[:-1, :-1] = Q[1:, 1:].toarray()
    other = epfast.fit_linear(
        np.roll(X, -1, axis=1), y, loss="logistic", schedule=TIGHT, posterior="full",
        prior_precision=whole + np.outer(row, row) / 4.0,
    )  # fmt: skip
    same(post, other)
    again = epfast.fit_linear(ROWS[:, 1:], y, posterior="sparse", **given, start=post)
    assert len(again.history) <= 2
    from_full = epfast.fit_linear(X, y, prior_precision=Q, posterior="full")
    begun = epfast.fit_linear(
        ROWS, y, prior_precision=Q, posterior="sparse", start=from_full, schedule=epfast.EP()
    )
    assert len(begun.history) <= 3


# ---- Gaussian Markov random fields, and constraints ----


def walk(d, order):
    """Precision of a random walk, with a wide prior on what it leaves free."""
    gaps = np.diff(np.eye(d), order, axis=0)
    free = np.vander(np.arange(d) / d, order)
    return sparse.csr_array(gaps.T @ gaps + 1e-3 * free @ free.T * (np.abs(gaps.T @ gaps) > 0))


def autoregressive(d, rho=0.8):
    middle = np.r_[1.0, np.full(d - 2, 1.0 + rho**2), 1.0]
    return sparse.csr_array(
        sparse.diags_array([np.full(d - 1, -rho), middle, np.full(d - 1, -rho)], offsets=[-1, 0, 1])
    )


def areas(neighbours):
    laplacian = sparse.csgraph.laplacian(sparse.csr_array(neighbours.astype(float)))
    return sparse.csr_array(laplacian + 0.01 * sparse.eye_array(len(neighbours)))


def grid(k):
    place = np.stack(np.divmod(np.arange(k * k), k), 1)
    return np.abs(place[:, None] - place[None]).sum(-1) == 1


def irregular(d):
    place = np.random.default_rng(0).random((d, 2))
    far = np.linalg.norm(place[:, None] - place[None], axis=-1)
    return (far < 0.2) & (far > 0.0)


FIELDS = {
    "walk": walk(120, 1),
    "second differences": walk(60, 2),
    "autoregressive": autoregressive(200),
    "grid": areas(grid(12)),
    "irregular": areas(irregular(80)),
}


def dense_truth(rows, y, loss, precision, A=None):
    """EP in plain NumPy: parallel sweeps, damped, in the null space of A, an orthonormal basis.

    The log evidence is that of the density of the weights within that space.
    """
    from scipy.linalg import null_space

    basis = np.eye(precision.shape[0]) if A is None else null_space(A)
    rows, precision = rows @ basis, basis.T @ precision @ basis
    moments = epfast.backend.TiltedMoments(loss, 1.0)
    tau, nu = np.full(len(y), 0.5), np.zeros(len(y))
    for _ in range(2000):
        covariance = np.linalg.inv(precision + rows.T * tau @ rows)
        mean = covariance @ (nu @ rows)
        m, v = rows @ mean, np.einsum("ij,jk,ik->i", rows, covariance, rows)
        cavity = 1.0 / (1.0 / v - tau)
        center = cavity * (m / v - nu)
        log_z, slope, bend = moments(y, center, cavity)
        rest = 1.0 + bend * cavity
        new = -bend / rest, (slope - center * bend) / rest
        change = np.abs((new[0] - tau) * v).max() + np.abs((new[1] - nu) * np.sqrt(v)).max()
        tau, nu = 0.6 * tau + 0.4 * new[0], 0.6 * nu + 0.4 * new[1]
        if change < 1e-11:
            break
    scale = log_z + 0.5 * np.log1p(tau * cavity)
    scale += 0.5 * (center**2 / cavity - m**2 / v) + 0.5 * nu * m
    _, of_prior = np.linalg.slogdet(precision)
    _, of_posterior = np.linalg.slogdet(precision + rows.T * tau @ rows)
    evidence = scale.sum() - 0.5 * nu @ (rows @ mean) + 0.5 * (nu @ rows) @ mean
    evidence += 0.5 * (of_prior - of_posterior)
    return basis @ mean, np.einsum("ij,jk,ik->i", basis, covariance, basis), evidence


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("constrained", [False, True])
def test_fields_beside_dense_algebra(name, constrained):
    """Counts on a field; its mean is held at 0, and its first two numbers at each other."""
    precision = FIELDS[name]
    d = precision.shape[0]
    rng = np.random.default_rng(1)
    y = rng.poisson(np.exp(np.sin(np.arange(d) / 7.0))).astype(float)
    A = np.vstack([np.ones(d), np.eye(d)[0] - np.eye(d)[1]]) if constrained else None
    given = {"loss": "poisson", "prior_precision": precision, "schedule": TIGHT}
    form = None if constrained else "sparse"
    post = epfast.fit_linear(
        sparse.eye_array(d, format="csr"), y, **given, constraints=A, posterior=form
    )
    assert isinstance(post, SparsePosterior)
    mean, variance, evidence = dense_truth(np.eye(d), y, losses.Poisson(), precision.toarray(), A)
    close = partial(np.testing.assert_allclose, rtol=0.0)
    close((post.mean - mean) / np.sqrt(variance + 1e-12), 0.0, atol=1e-6)
    close(post.variance, variance, atol=1e-7 * variance.max())
    close(post.log_evidence, evidence, atol=1e-6)
    if constrained:
        close(A @ post.mean, 0.0, atol=1e-9)
        close(A @ post.covariance, 0.0, atol=1e-9)
        close(A @ post.sample(5, rng=0).T, 0.0, atol=1e-8)
        # of rows of A nothing counts but where they lead, and a full form has the same
        scaled = epfast.fit_linear(
            sparse.eye_array(d, format="csr"), y, **given, constraints=A * [[10.0], [1e-3]]
        )
        close(scaled.log_evidence, post.log_evidence, atol=1e-8)
        full = epfast.fit_linear(np.eye(d), y, **given, constraints=A, posterior="full")
        close(full.mean, post.mean, atol=1e-8)
        close(full.log_evidence, post.log_evidence, atol=1e-7)


@pytest.mark.parametrize("unit", [1e-6, 1e6])
@pytest.mark.parametrize("constrained", [False, True])
def test_units_of_y_and_of_columns(unit, constrained):
    """The same posterior in those units; the log evidence has the log of the units of y."""
    y = LATENT + 0.5 * np.random.default_rng(1).normal(size=N)
    scales = np.random.default_rng(2).choice([1e-6, 1.0, 1e6], size=D)
    A = np.zeros((1, D))
    A[0, 2 : 2 + J] = 1.0
    given = {"posterior": "sparse", "schedule": TIGHT}
    plain = epfast.fit_linear(
        ROWS, y, loss=losses.Gaussian(0.25), prior_precision=Q,
        constraints=A if constrained else None, **given,
    )  # fmt: skip
    by = sparse.diags_array(1.0 / scales)
    other = epfast.fit_linear(
        sparse.csr_array(ROWS @ by), unit * y, loss=losses.Gaussian(0.25 * unit**2),
        prior_precision=sparse.csr_array(by @ Q @ by) / unit**2,
        constraints=A / scales if constrained else None, **given,
    )  # fmt: skip
    sd = np.sqrt(plain.variance)
    np.testing.assert_allclose((other.mean / scales / unit - plain.mean) / sd, 0.0, atol=1e-6)
    np.testing.assert_allclose(np.sqrt(other.variance) / scales / unit / sd, 1.0, rtol=1e-6)
    gap = other.log_evidence - plain.log_evidence + N * np.log(unit)
    assert gap == pytest.approx(0.0, abs=1e-5)


# ---- bad input ----


def test_bad_precisions():
    y = np.where(LATENT > 0, 1, -1)
    fit = partial(epfast.fit_linear, ROWS, y, posterior="sparse")
    slanted = Q.tolil()
    slanted[3, 4] = 0.5
    negative = Q.copy()
    negative.data[0] = -1.0
    indefinite = Q.tolil()
    indefinite[2, 3] = indefinite[3, 2] = 10.0
    intrinsic = sparse.csgraph.laplacian(sparse.csr_array(np.ones((D, D)) - np.eye(D)))
    for bad, match in (
        (slanted, "prior_precision is not symmetric"),
        (negative, "prior_precision has -1 on its diagonal"),
        (indefinite, "prior_precision is not positive definite"),
        (sparse.csr_array(intrinsic), "prior_precision is not positive definite"),
        (Q[:-1, :-1], r"prior_precision has shape \(67, 67\); allowed: \(68, 68\)"),
        (Q * np.nan, "prior_precision holds NaN"),
        (Q.toarray() + np.eye(D)[::-1] * 99.0, "prior_precision is not positive definite"),
    ):
        with pytest.raises(ValueError, match=match):
            fit(prior_precision=bad)
    with pytest.raises(ValueError, match="prior_covariance is"):
        fit(prior_covariance=np.eye(D))
    with pytest.raises(ValueError, match="beside prior_variance"):
        fit(prior_precision=Q, prior_variance=2.0)
    with pytest.raises(ValueError, match="X holds NaN"):
        epfast.fit_linear(ROWS * np.nan, y, posterior="sparse")


def test_bad_constraints():
    y = np.where(LATENT > 0, 1, -1)
    fit = partial(epfast.fit_linear, ROWS, y)
    for bad, match in (
        (np.ones((1, D - 1)), "constraints has shape"),
        (np.zeros((1, D)), "constraints has a row of zeros"),
        (np.ones((2, D)), "constraints has 2 rows for 68 weights, of rank 1"),
        (np.eye(D), "constraints has 68 rows"),
        (np.full((1, D), np.nan), "constraints"),
        ("mean", "constraints"),
    ):
        with pytest.raises((ValueError, TypeError), match=match):
            fit(constraints=bad)
    for given in (
        {"posterior": "factorized"},
        {"batch_size": 5},
        {"schedule": epfast.ADF()},
        {"prior": losses.SpikeAndSlab()},
    ):
        with pytest.raises(ValueError, match=r"(constraints|schedule|batch_size) is"):
            fit(constraints=np.ones((1, D)), **given)


def test_a_factor_that_would_not_fit(monkeypatch):
    """The numbers of the factor are in the error, and what to do."""
    from epfast.gaussian import sparse as form

    monkeypatch.setattr(form, "MOST_NUMBERS", 100)
    y = np.where(LATENT > 0, 1, -1)
    with pytest.raises(MemoryError, match=r"factor of the precision would have [\d,]+ numbers"):
        epfast.fit_linear(ROWS, y, posterior="sparse")
    assert not isinstance(epfast.fit_linear(ROWS, y), SparsePosterior)  # the default goes round it


# ---- hyper-parameters ----

HALF = priors.HalfNormal(1.0)
SDS = {"1|g": (slice(2, J + 2), HALF), "x|g": (slice(J + 2, 2 * J + 2), HALF)}
SDS |= {"1|h": (slice(2 * J + 2, None), HALF)}


def target(monkeypatch, asked, y, **given):
    """The log density of hyper-parameters, with matrices or without."""
    from epfast.gaussian import fit_hyper

    found = []
    monkeypatch.setattr(fit_hyper, "averaged", lambda of, *_: found.append(of))
    monkeypatch.setattr(fit_hyper, "fit_linear", partial(epfast.fit_linear, posterior=asked))
    epfast.fit_hyper(ROWS, y, prior_variance=4.0, sds=SDS, **given)
    monkeypatch.undo()
    return found[0]


@pytest.mark.parametrize("loss", CASES)
@pytest.mark.parametrize("correlated", [False, True])
def test_slopes_by_hyper_parameters(monkeypatch, loss, correlated):
    """Beside the full form, and beside differences of the log density, to 1e-5."""
    given = {"loss": loss}
    given |= {"correlations": {("1|g", "x|g"): priors.LKJ(2.0)}} if correlated else {}
    given |= {"learn": {"sd": HALF}} if loss == "gaussian" else {}
    ours, theirs = (target(monkeypatch, of, CASES[loss], **given) for of in ("sparse", "full"))
    u = theirs.starts[0] + 0.2
    point, other = (of.point(u, of.posterior_at(u, 1e-10, None)) for of in (ours, theirs))
    assert isinstance(point.fit, SparsePosterior)
    assert point.value == pytest.approx(other.value, abs=1e-7)
    slopes = ours.slopes(point)
    np.testing.assert_allclose(slopes, theirs.slopes(other), rtol=1e-6, atol=1e-6)
    for k in range(len(u)):
        ends = (u + by * 1e-4 * (np.arange(len(u)) == k) for by in (-1.0, 1.0))
        low, high = (ours.point(at, ours.posterior_at(at, 1e-10, None)).value for at in ends)
        assert slopes[k] == pytest.approx((high - low) / 2e-4, rel=1e-5, abs=1e-5)


def test_the_average_is_that_of_the_full_form(monkeypatch):
    from epfast.gaussian import fit_hyper

    given = {"loss": "poisson", "sds": SDS, "strategy": "ccd"}
    averages = []
    for asked in ("sparse", "full"):
        monkeypatch.setattr(fit_hyper, "fit_linear", partial(epfast.fit_linear, posterior=asked))
        averages.append(epfast.fit_hyper(ROWS, CASES["poisson"], **given))
        monkeypatch.undo()
    found, dense = averages
    assert isinstance(found.best, SparsePosterior)
    np.testing.assert_allclose(found.mean, dense.mean, atol=1e-3)
    np.testing.assert_allclose(found.sd, dense.sd, rtol=1e-3)
    np.testing.assert_allclose(found.hyper["mean"], dense.hyper["mean"], rtol=1e-3)


def test_an_order_needs_a_matrix():
    given = {"loss": "poisson", "sds": SDS, "strategy": "eb"}
    found = epfast.fit_hyper(ROWS, CASES["poisson"], schedule=epfast.EP(order="shuffled"), **given)
    assert not isinstance(found.best, SparsePosterior)
