"""What holds of every legal combination: fixed points, evidence, prediction, files, warm starts."""

import dataclasses
import pickle

import numpy as np
import pytest

import epfast
from epfast import fit_gp, fit_linear
from tests import batteries
from tests.batteries import LOSSES
from tests.oracles import brute_force
from tests.oracles.data import rbf

TOL = 1e-7
SETTLING = {"sweeps": 200, "tol": TOL, "steps": 200}
#: nats that EP may be off by on a few rows: loose, but not by chance
ERROR = 0.3


def settling(case):
    """The case with sweeps enough for most that ever settle."""
    schedule = case.schedule
    names = {field.name for field in dataclasses.fields(schedule) if field.init}
    given = {name: value for name, value in SETTLING.items() if name in names}
    if "inner" in names:
        given["inner"] = epfast.EP(sweeps=3, tol=TOL / 10, power=schedule.power)
    return case._replace(schedule=dataclasses.replace(schedule, **given))


CASES = [settling(case) for case in batteries.cases()]
quiet = pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")


def is_random(case):
    return case.scheme == "importance"


def of_sites(case):
    """A site per row or factor, whose fixed points are those of EP."""
    return case.schedule.stores in ("factor", "shard", "descent")


def responses(case, post, X):
    """Mean and variance of h, and predictions at the rows of the fit."""
    K = rbf(X)
    at = (K, np.diag(K)) if case.wing == "gp" else (X,)
    found = [*post.predict_latent(*at), post.predict(*at)]
    if case.loss in batteries.MARGINS:
        found.append(post.predict_proba(*at))
    return found


def assert_same(one, other):
    for name in ("mean", "variance", "log_evidence", "n_sweeps", "n_refused", "converged"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert (one.sites is None) == (other.sites is None)
    for a, b in zip(one.sites or (), other.sites or (), strict=True):
        np.testing.assert_array_equal(a, b)
    assert one.loss == other.loss
    assert one.scheme == other.scheme


@quiet
@batteries.battery(CASES)
def test_what_holds_of_all(case, tmp_path):
    X, _ = batteries.rows(LOSSES[case.loss])
    done = []
    post = batteries.fit(case, progress=done.append)
    check_sound(post)
    factors = -(-len(X) // (getattr(post, "batch_size", None) or 1))
    assert sum(done) == post.n_sweeps * factors  # progress counts each factor of a sweep once
    if case.wing == "linear":
        check_sum(post, X)
    mean, variance, predicted, *probability = responses(case, post, X)
    assert np.isfinite(mean).all()
    assert (variance > 0.0).all()
    assert not np.isnan(predicted).any()
    assert np.isfinite(predicted).all() or not post.converged  # of counts, after a fit that fled
    if probability:
        assert (probability[0] >= 0.0).all()
        assert (probability[0] <= 1.0).all()
        sure = np.abs(probability[0] - 0.5) > 1e-15  # beyond rounding of a mean of 0
        np.testing.assert_array_equal(predicted[sure], np.sign(probability[0][sure] - 0.5))

    post.save(tmp_path / "post.npz")
    for again in (pickle.loads(pickle.dumps(post)), epfast.load(tmp_path / "post.npz")):
        assert_same(again, post)
        for one, other in zip(responses(case, again, X), responses(case, post, X), strict=True):
            np.testing.assert_array_equal(one, other)

    if post.converged and not is_random(case):
        # a site that many rows share is a fixed point of whole groups alone
        whole = case.schedule.stores != "shared" or case.schedule.batch is None
        if whole and hasattr(post, "residual"):
            assert post.residual < 100 * TOL / post.schedule.damping
        if post.sites is not None:
            stays(case, post, X)


def check_sound(post):
    """The covariance is proper, and the counts are those of the history."""
    covariance = post.covariance
    np.testing.assert_allclose(covariance, covariance.T, rtol=1e-12, atol=1e-300)
    assert (np.linalg.eigvalsh(covariance) > -1e-12 * covariance.max()).all()
    np.testing.assert_allclose(np.diag(covariance), post.variance)
    assert np.isfinite(post.log_evidence)
    assert 0 < len(post.history) == post.n_sweeps
    assert all(np.isfinite(info.change) for info in post.history)
    assert post.n_refused == sum(info.n_refused for info in post.history)


def check_sum(post, X):
    """The posterior is prior times sites."""
    full, sites = post.precision.ndim == 2, post.sites
    given = post.precision @ post.mean if full else post.precision * post.mean
    np.testing.assert_allclose(given, post.shift, rtol=1e-7, atol=1e-9)
    assert (sites is None) == (post.schedule.stores == "none")
    if sites is None:
        return
    if post.schedule.stores == "shared":
        count = np.bincount(post.problem.data.groups)
        precision, shift = np.tensordot(count, sites.precision, 1), count @ sites.shift
    elif full:
        count = 1.0
        precision, shift = (X.T * sites.precision) @ X, X.T @ sites.shift
    else:
        count = 1.0
        assert sites.precision.shape == (-(-len(X) // (post.batch_size or 1)), X.shape[1])
        precision, shift = sites.precision.sum(axis=0), sites.shift.sum(axis=0)
    own, whole = (
        one.toarray() if hasattr(one, "indptr") else one
        for one in (post.prior_precision, post.precision)
    )
    np.testing.assert_allclose(own + precision, whole, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(shift, post.shift, rtol=1e-8, atol=1e-8)
    if post.kind == "sparse":
        return
    assert post.state.log_scale == pytest.approx(
        (count * sites.log_scale).sum(), rel=1e-8, abs=1e-8
    )


def stays(case, post, X):
    """A fit that goes on from the fixed point stays there."""
    more = batteries.fit(case, start=post)
    assert more.converged
    sd = np.sqrt(post.variance)
    np.testing.assert_allclose(more.mean / sd, post.mean / sd, rtol=0, atol=1000 * TOL)
    np.testing.assert_allclose(more.variance, post.variance, rtol=1000 * TOL)


@quiet
@batteries.battery(
    case for case in CASES if case.schedule.order == "parallel" and case.factor == "row"
)
def test_the_order_of_rows_is_nothing_to_a_parallel_fit(case):
    if is_random(case) or case.schedule.stores != "factor":  # rows are shared out in their order
        return
    X, y = batteries.rows(LOSSES[case.loss])
    order = np.random.default_rng(1).permutation(len(X))
    given = batteries.arguments(case)
    if case.wing == "gp":
        one, other = (fit_gp(rbf(X[k]), y[k], **given) for k in (slice(None), order))
        mean, variance = one.mean[order], one.variance[order]
    else:
        one, other = (fit_linear(X[k], y[k], **given) for k in (slice(None), order))
        mean, variance = one.mean, one.variance
    assert one.converged == other.converged
    if one.converged:
        sd = np.sqrt(variance)
        np.testing.assert_allclose(other.mean / sd, mean / sd, rtol=0, atol=1000 * TOL)
        np.testing.assert_allclose(other.variance, variance, rtol=1000 * TOL)
        assert other.log_evidence == pytest.approx(one.log_evidence, abs=1e-4)


# ---- evidence, by force ----


def log_likelihood(loss, y, h):
    """(k,) of latent values (k, n)."""
    found = LOSSES[loss]
    table = np.tile(found.responses("y", y, len(y)), (len(h), 1))
    return -found.values(h.ravel(), table).reshape(h.shape).sum(axis=1)


def truth(case, X, y):
    """Log evidence of the model, for one weight or two latent values."""
    if case.wing == "gp":
        prior, design = rbf(X), np.eye(len(X))
    else:
        prior, design = np.eye(X.shape[1]), X

    def log_joint(theta):
        h = log_likelihood(case.loss, y, theta @ design.T)
        return brute_force.log_prior(theta, prior) + h

    d = len(prior)
    # about the prior: what is far out in it is not in the posterior
    points = {1: 4001, 2: 161}[d]
    return brute_force.posterior(log_joint, np.zeros(d), prior, reach=8.0, points=points)


@quiet
@batteries.battery(
    case for case in CASES if case.scheme == "exact" and case.factor == "row" and of_sites(case)
)
def test_evidence_is_near_the_integral(case):
    X, y = batteries.rows(LOSSES[case.loss], *((2, 2) if case.wing == "gp" else (6, 1)))
    given = batteries.arguments(case)
    if "shards" in dir(case.schedule):
        given["schedule"] = dataclasses.replace(case.schedule, shards=2)
    post = fit_gp(rbf(X), y, **given) if case.wing == "gp" else fit_linear(X, y, **given)
    if not post.converged:
        return
    evidence, mean, _ = truth(case, X, y)
    assert abs(post.log_evidence - evidence) < ERROR
    assert (abs(post.mean - mean) < 0.5 * np.sqrt(post.variance)).all()
