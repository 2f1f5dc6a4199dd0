"""Offsets: a fit with one equals a fit with one more column, whose weight the prior pins at 1."""

import pickle

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast import fit_gp, fit_linear, losses, schedules, schemes
from tests.batteries import LOSSES, responses_of

PINNED = 1e-14
N, D = 40, 3
FIXED = {"sweeps": 8, "tol": 0.0}


def data(loss, seed=0):
    rng = np.random.default_rng(seed)
    X, offset = rng.normal(size=(N, D)), rng.normal(size=N)
    return X, responses_of(LOSSES[loss], X @ [1.0, -1.0, 0.5] + offset, rng), offset


def both(X, y, offset, **given):
    """The fit with an offset, and the one with a pinned column."""
    wide = np.column_stack([X.toarray() if sparse.issparse(X) else X, offset])
    wide = sparse.csr_array(wide) if sparse.issparse(X) else wide
    prior = {"prior_variance": np.r_[np.ones(D), PINNED], "prior_mean": np.r_[np.zeros(D), 1.0]}
    ours = fit_linear(X, y, offset=offset, prior_variance=np.ones(D), **given)
    return ours, fit_linear(wide, y, **prior, **given)


KINDS = {
    "rows": {},
    "parallel": {"schedule": schedules.EP(order="parallel", damping=0.7, **FIXED)},
    "chunked": {"schedule": schedules.EP(order="chunked", block=9, sweeps=300, tol=1e-9)},
    "power": {"schedule": schedules.EP(power=0.7, **FIXED)},
    "one pass": {"schedule": schedules.ADF()},
    "shared": {"schedule": schedules.AEP(**FIXED)},
    "rows, factorized": {"posterior": "factorized"},
    "laplace": {"scheme": "laplace"},
    "importance": {"scheme": schemes.ImportanceSampling(64)},
    "factors": {"batch_size": 7, "scheme": "laplace"},
    "factors, factorized": {"posterior": "factorized", "batch_size": 7, "scheme": "laplace"},
    "one row": {"posterior": "factorized", "batch_size": 1, "scheme": "laplace"},
    "variational": {
        "posterior": "factorized",
        "batch_size": 7,
        "scheme": schemes.Variational(gamma=1.5),
    },
    "rule": {
        "posterior": "factorized",
        "batch_size": 7,
        "scheme": schemes.Variational(gamma=2.5, solver="newton"),
    },
}


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning", "ignore::epfast.DataWarning")
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("rows", ["dense", "sparse"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", LOSSES)
def test_pinned_column(loss, kind, rows, weighted):
    X, y, offset = data(loss)
    given = dict(KINDS[kind], loss=loss)
    if weighted:
        given["weights"] = np.random.default_rng(1).uniform(0.2, 1.0, N)
    X = sparse.csr_array(np.where(np.abs(X) > 0.4, X, 0.0)) if rows == "sparse" else X
    if "schedule" not in given:
        given["schedule"] = schedules.EP(**FIXED)
    if LOSSES[loss].kinks and given.get("scheme") == "laplace":
        pytest.skip("Newton ends somewhere at a kink: where depends on its last bits")
    try:
        ours, pinned = both(X, y, offset, **given)
    except ValueError as error:
        pytest.skip(str(error))
    # the pin moves by 1e-7, and sweeps that have not settled may magnify that
    sd = np.sqrt(pinned.variance[:D])
    allowed = 1e-5 if LOSSES[loss].kinks and kind == "importance" else 1e-6  # draws cross a kink
    assert np.abs(ours.mean - pinned.mean[:D]).max() <= allowed * sd.min()
    assert ours.variance == pytest.approx(pinned.variance[:D], rel=1e-6)


def test_process():
    """A process whose kernel is that of a linear model."""
    for loss in LOSSES:
        X, y, offset = data(loss)
        given = {"loss": loss, "schedule": schedules.EP(tol=1e-10, sweeps=300)}
        linear = fit_linear(X, y, offset=offset, **given)
        K = X @ X.T + 1e-9 * np.eye(N)
        process = fit_gp(K, y, offset=offset, **given)
        mean = linear.predict_latent(X)[0]
        assert process.mean == pytest.approx(mean, abs=1e-5)
        assert process.log_evidence == pytest.approx(linear.log_evidence, abs=1e-5)
        assert process.loo_log_predictive() == pytest.approx(linear.loo_log_predictive(), abs=1e-4)
        low_rank = fit_gp(K, y, rank=D, offset=offset, **given)
        assert low_rank.mean == pytest.approx(mean, abs=1e-4)


@pytest.mark.parametrize("loss", LOSSES)
def test_predictions_and_rows(loss, tmp_path):
    X, y, offset = data(loss)
    pinned = np.column_stack([X, offset])
    ours, other = both(X, y, offset, loss=loss, schedule=schedules.EP(tol=1e-12, sweeps=500))
    assert ours.loss == LOSSES[loss]
    for method in ("predict", "predict_variance"):
        found = getattr(ours, method)(X, offset)
        assert found == pytest.approx(getattr(other, method)(pinned), rel=1e-6, abs=1e-6)
    found = ours.log_predictive(X, y, offset)
    assert found == pytest.approx(other.log_predictive(pinned, y), abs=1e-6)
    assert ours.score(X, y, offset) == pytest.approx(found.mean())
    assert ours.residual < 1e-8
    loo = ours.loo_log_predictive()
    assert loo == pytest.approx(other.loo_log_predictive(), abs=1e-6)
    for left in (pickle.loads(pickle.dumps(ours)), _reread(ours, tmp_path)):
        with pytest.raises(ValueError, match="offset is None"):
            left.with_rows(X, y)
        assert left.with_rows(X, y, offset=offset).loo_log_predictive() == pytest.approx(loo)
    first = fit_linear(X[:30], y[:30], loss=loss, offset=offset[:30], prior_variance=np.ones(D))
    more = first.partial_fit(X[30:], y[30:], offset=offset[30:])
    assert more.sites.shift.shape == (N,)
    gone = ours.remove([0, 1])
    assert gone.problem.shape[0] == N - 2
    draws = ours.sample_y(X[:3], 4000, 0, offset[:3])
    latent = ours.sample_y(X[:3], 4000, 0, np.zeros(3))
    assert draws.shape == latent.shape == (4000, 3)


def _reread(post, folder):
    post.save(folder / "post.npz")
    return epfast.load(folder / "post.npz")


def test_check_knows_offsets():
    X, y, offset = data("poisson")
    post = fit_linear(X, y, loss="poisson", offset=offset)
    assert post.check(400).verdict == "good"
    summed = losses.Poisson().values(X @ post.mean + offset, losses.Poisson().responses("y", y, N))
    assert -post.log_likelihood(post.mean[None])[0] == pytest.approx(summed)


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        (np.zeros(3), "offset has shape"),
        (np.full(N, np.nan), "offset holds NaN"),
        ("a", "offset"),
    ],
)
def test_refused(offset, message):
    X, y, _ = data("logistic")
    with pytest.raises((ValueError, TypeError), match=message):
        fit_linear(X, y, offset=offset)
    with pytest.raises((ValueError, TypeError), match=message):
        fit_gp(X @ X.T, y, offset=offset)
    post = fit_linear(X, y)
    with pytest.raises((ValueError, TypeError), match=message):
        post.predict(X, offset)


def test_chunks_take_none():
    X, y, offset = data("logistic")
    with pytest.raises(ValueError, match="offset is given beside chunks"):
        fit_linear(iter([(X, y)]), offset=offset, schedule=schedules.ADF())
