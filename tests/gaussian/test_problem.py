"""Rows of a fit: weights, sparse matrices, layouts, and what is refused at the door."""

import numpy as np
import pytest
from scipy import sparse

from epfast import ADF, AEP, DAEP, DEP, EP, SEP
from tests.oracles.full_fits import TIGHT, assert_same, data, fit, ordered, residual
from tests.oracles.scalar_sites import assert_near

# ---- weights ----


@pytest.mark.parametrize("order", ["auto", "sequential", "parallel"])
@pytest.mark.parametrize("loss", ["probit", "logistic", "hinge"])
def test_whole_weights_are_repeated_rows(loss, order):
    X, y = data()
    w = np.random.default_rng(1).integers(0, 4, len(y))
    rows = np.repeat(np.arange(len(y)), w)
    schedule = EP(**TIGHT, order=order, damping=0.6 if order == "parallel" else 1.0)
    weighted = fit(X, y, loss, weights=w, schedule=schedule)
    assert_same(weighted, fit(X[rows], y[rows], loss, schedule=schedule), 1e-8)
    assert weighted.residual < 1e-8
    assert residual(weighted, X, y, loss, w) < 1e-8


@pytest.mark.parametrize("schedule", [AEP(**TIGHT), DAEP([0] * 30 + [1] * 30, **TIGHT)])
def test_whole_weights_are_repeated_rows_of_shared_sites(schedule):
    X, y = data()
    w = np.random.default_rng(1).integers(0, 3, len(y))
    rows = np.repeat(np.arange(len(y)), w)
    again = AEP(**TIGHT)
    if isinstance(schedule, DAEP):
        again = DAEP(np.asarray(schedule.groups)[rows], **TIGHT)
    weighted = fit(X, y, weights=w, schedule=schedule)
    assert_same(weighted, fit(X[rows], y[rows], schedule=again), 1e-8)


def test_fractions_are_powers():
    """Logistic with all weights 1/2 is logistic with beta = 1/2; so is ADF, with any weight."""
    X, y = data()
    for schedule in (EP(**TIGHT), EP(**TIGHT, order="sequential"), AEP(**TIGHT), ADF()):
        half = fit(X, y, "logistic", weights=np.full(60, 0.5), schedule=schedule)
        assert_same(half, fit(X, y, "logistic", beta=0.5, schedule=schedule), 1e-8)
    double = fit(X, y, "logistic", weights=np.full(60, 2.0), schedule=ADF())
    assert_same(double, fit(X, y, "logistic", beta=2.0, schedule=ADF()), 1e-8)


@pytest.mark.parametrize("schedule", [EP(**TIGHT), EP(**TIGHT, order="sequential"), ADF()])
def test_rows_of_zeros_and_weights_of_zero_change_nothing(schedule):
    X, y = data(20)
    want = fit(X, y, schedule=schedule)
    more, labels = np.vstack([X, np.zeros((2, 5))]), np.append(y, [1.0, -1.0])
    post = fit(more, labels, schedule=schedule)
    np.testing.assert_allclose(post.mean, want.mean, atol=1e-12)
    assert post.log_evidence == pytest.approx(want.log_evidence + 2 * np.log(0.5), abs=1e-10)
    more[20:] = 5.0
    post = fit(more, labels, weights=[1.0] * 20 + [0.0] * 2, schedule=schedule)
    assert_same(post, want, 1e-10)


# ---- sparse rows ----


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "array"])
@pytest.mark.parametrize(
    "schedule",
    [
        *(EP(6, 0.0, **ordered(order, 3), damping=0.7) for order in ("sequential", "shuffled")),
        *[
            EP(6, 0.0, order="parallel", damping=0.7),
            EP(),
            ADF(),
            AEP(9, 0.0),
            SEP(2, 0.0, batch=7),
            DEP(3),
        ],
    ],
    ids=lambda schedule: f"{type(schedule).__name__}-{schedule.order}",
)
def test_sparse_rows(schedule, form):
    rng = np.random.default_rng(2)
    X, y = data(70, 8)
    X *= rng.random(X.shape) < 0.3
    given = sparse.csr_array(X) if form == "array" else sparse.csr_matrix(X).asformat(form)
    before = given.copy()
    post = fit(given, y, "logistic", schedule=schedule)
    want = fit(X, y, "logistic", schedule=schedule)
    assert_same(post, want, 1e-10)
    assert (before != given).nnz == 0
    for one, other in zip(post.predict_latent(given), want.predict_latent(X), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    if want.sites is not None:
        np.testing.assert_allclose(post.residual, want.residual, rtol=1e-6, atol=1e-12)
        loo = want.loo_log_predictive()
        np.testing.assert_allclose(post.loo_log_predictive(), loo, rtol=1e-8)


def test_sparse_forms():
    """Entries given twice, unsorted columns, integers; and what is no matrix of numbers."""
    X, y = data(30, 4)
    X = np.round(X)
    want = fit(X, y)
    row, column = np.nonzero(X)
    half = sparse.coo_matrix(
        (np.tile(X[row, column] / 2, 2), (np.tile(row, 2), np.tile(column, 2)))
    )
    assert_same(fit(half, y), want)
    assert_same(fit(sparse.csr_matrix(X.astype(int)), y), want)
    wrong = sparse.csr_matrix(X)
    unsorted = sparse.csr_matrix(
        (wrong.data[::-1], wrong.indices[::-1], wrong.indptr[-1] - wrong.indptr[::-1]), wrong.shape
    )
    assert_same(fit(unsorted, y[::-1]), want)
    wrong.indices[3] = 99
    with pytest.raises(ValueError, match=r"^X is not a valid CSR"):
        fit(wrong, y)
    for bad in (
        sparse.csr_matrix(X) * 1j,
        sparse.csr_matrix(X * np.nan),
        sparse.csr_matrix((0, 4)),
    ):
        with pytest.raises((ValueError, TypeError), match=r"^X\b"):
            fit(bad, y)


@pytest.mark.parametrize("order", ["sequential", "shuffled", "parallel"])
def test_layouts_and_types(order, tmp_path):
    X, y = data(50, 5)
    X = X.astype(np.float32).astype(np.float64)
    schedule = EP(sweeps=3, tol=0, damping=0.5, **ordered(order, 2))
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
