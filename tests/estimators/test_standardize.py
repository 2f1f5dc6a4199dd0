"""Prior variances that are learned are of standardised weights: the default call knows no units."""

import pickle

import numpy as np
import pytest
from scipy import sparse

pytest.importorskip("sklearn")

from sklearn.base import clone

import epfast
from epfast import ADF, SEP, LinearClassifier, LinearRegressor, losses

RNG = np.random.default_rng(0)
N, D = 200, 6
X = RNG.normal(size=(N, D))
X[:, 4], X[:, 5] = RNG.random(N) < 0.2, np.exp(X[:, 5])
H = X @ [1.0, -1.0, 0.5, 0.0, 1.0, 0.3]
NEW = RNG.normal(size=(40, D))
NEW[:, 4], NEW[:, 5] = RNG.random(40) < 0.3, np.exp(NEW[:, 5])
Y = np.where(H + RNG.logistic(size=N) > 0.0, "yes", "no")
THREE = (np.stack([H, -H, 0.0 * H], axis=1) + RNG.gumbel(size=(N, 3))).argmax(axis=1)
Z = H + RNG.normal(size=N)
COUNTS = RNG.poisson(np.exp(np.clip(H, -3.0, 2.0)))
#: what a column is multiplied by, and where it goes, in its sds
SCALES = 10.0 ** np.array([-6.0, 6.0, 3.0, -2.0, 5.0, -4.0])
SIGNS = np.array([1.0, -1.0, -1.0, 1.0, 1.0, -1.0])
GROUPS = np.array([0, 0, 1, 1, 2, 2])
#: an estimator, y, and whether columns may be moved: with the intercept at their means
MODELS = {
    "classifier": (LinearClassifier(), Y, True),
    "classes": (LinearClassifier(), THREE, True),
    "multiclass": (LinearClassifier(loss="multiclass"), THREE, True),
    "ard": (LinearClassifier(prior_variance="ard"), Y, True),
    "groups": (LinearClassifier(prior_groups=GROUPS), Y, True),
    "factorized": (LinearClassifier(posterior="factorized"), Y, False),
    "no intercept": (LinearClassifier(fit_intercept=False), Y, False),
    "hinge": (LinearClassifier(loss="hinge"), Y, True),
    "batches": (LinearClassifier(batch_size=10), Y, True),
    "shared sites": (LinearClassifier(schedule=SEP(sweeps=5)), Y, True),
    "regressor": (LinearRegressor(), Z, True),
    "student_t": (LinearRegressor(loss="student_t"), Z, True),
    "poisson": (LinearRegressor(loss="poisson"), COUNTS, True),
    "regressor, ard": (LinearRegressor(prior_variance="ard"), Z, True),
    "regressor, groups": (LinearRegressor(prior_groups=GROUPS), Z, True),
    "regressor, factorized": (LinearRegressor(posterior="factorized"), Z, False),
}


def predicted(model, rows, y, new, **given):
    """Of new rows, by a copy of a model."""
    model = clone(model).set_params(**given).fit(rows, y)
    return model.predict_latent(new)[0] if hasattr(model, "classes_") else model.predict(new)


def gap(found, right):
    """In sds of the predictions."""
    return np.abs((found - right) / right.std(axis=0)).max()


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("name", MODELS)
def test_no_prediction_depends_on_units(name):
    model, y, moves = MODELS[name]
    right = predicted(model, X, y, NEW)
    assert gap(predicted(model, X * SCALES, y, NEW * SCALES), right) < 1e-6
    order = np.array([3, 5, 0, 1, 4, 2])
    given = {} if model.prior_groups is None else {"prior_groups": GROUPS[order]}
    assert gap(predicted(model, X[:, order], y, NEW[:, order], **given), right) < 1e-6
    kind = sparse.csr_matrix
    assert gap(predicted(model, kind(X * SCALES), y, kind(NEW * SCALES)), right) < 1e-6
    for away, close in ((1.0, 1e-6), (1e4, 1e-6), (1e6, 1e-4)) if moves else ():
        by = away * SIGNS * X.std(axis=0)
        assert gap(predicted(model, X + by, y, NEW + by), right) < close


@pytest.mark.parametrize("model", [LinearClassifier(), LinearRegressor()])
def test_more_columns_than_rows(model):
    rng = np.random.default_rng(1)
    rows, new = rng.normal(size=(30, 80)), rng.normal(size=(20, 80))
    h = rows[:, :5].sum(axis=1) + rng.logistic(size=30)
    y = h > 0.0 if isinstance(model, LinearClassifier) else h
    right, scales = predicted(model, rows, y, new), 10.0 ** rng.uniform(-6.0, 6.0, 80)
    assert gap(predicted(model, rows * scales, y, new * scales), right) < 1e-6
    for away, close in ((1e4, 1e-6), (1e6, 1e-4)):
        by = away * rng.choice([-1.0, 1.0], 80)
        assert gap(predicted(model, rows + by, y, new + by), right) < close


@pytest.mark.parametrize("given", [{}, {"posterior": "factorized"}, {"schedule": ADF()}])
def test_streams(given):
    """The units are those of all rows so far, whatever the units of the columns."""
    parts = [slice(0, 70), slice(70, 110), slice(110, N)]

    def streamed(scales, by):
        model = LinearClassifier(**given)
        for part in parts:
            model.partial_fit(X[part] * scales + by, Y[part], classes=["no", "yes"])
        return model

    model = streamed(1.0, 0.0)
    whole = LinearClassifier().fit(X, Y)
    np.testing.assert_allclose(model.column_scale_, whole.column_scale_, rtol=1e-12)
    prior = model.posterior_.problem.prior.precision
    diagonal = np.diag(prior) if prior.ndim == 2 else prior
    if prior.ndim == 1:  # else the intercept at the means adds to it
        np.testing.assert_allclose(diagonal[:D], model.column_scale_**2, rtol=1e-12)
    right = model.predict_latent(NEW)[0]
    found = streamed(SCALES, 0.0).predict_latent(NEW * SCALES)[0]
    assert gap(found, right) < 1e-6
    if not given:
        by = 1e5 * X.std(axis=0)
        assert gap(streamed(1.0, by).predict_latent(NEW + by)[0], right) < 1e-3
        # sites of the rows so far stay, under the prior of all rows
        sites = model.posterior_.sites
        rows = np.column_stack([X, np.ones(N)])
        gram = rows.T @ (sites.precision[:, None] * rows)
        np.testing.assert_allclose(
            model.posterior_.precision, prior + gram, rtol=1e-9, atol=1e-9 * np.abs(gram).max()
        )


def test_a_stream_after_a_fit_goes_on_under_what_was_found():
    first = LinearClassifier().fit(X[:100], Y[:100])
    again = clone(first).fit(X[:100] * SCALES, Y[:100])
    for model, scales in ((first, 1.0), (again, SCALES)):
        model.partial_fit(X[100:] * scales, Y[100:])
    np.testing.assert_allclose(again.column_scale_, SCALES * first.column_scale_, rtol=1e-9)
    assert again.prior_variance_ == pytest.approx(first.prior_variance_, rel=1e-9)
    found, right = again.predict_latent(NEW * SCALES)[0], first.predict_latent(NEW)[0]
    assert gap(found, right) < 1e-6


# ---- the units of columns ----


def test_a_column_of_two_values_has_half_their_range():
    model = LinearClassifier().fit(X, Y)
    right = X.std(axis=0)
    right[4] = 0.5
    np.testing.assert_allclose(model.column_scale_, right, rtol=1e-12)
    assert model.standardize_ is True


def test_constant_columns_have_unit_1_and_do_not_count():
    constant = np.column_stack([X, np.full(N, 7.0), np.full(N, 0.1), np.zeros(N)])
    for model, y in ((LinearClassifier(), Y), (LinearRegressor(), Z)):
        right, found = clone(model).fit(X, y), clone(model).fit(constant, y)
        np.testing.assert_array_equal(found.column_scale_[D:], 1.0)
        assert found.prior_variance_ == pytest.approx(right.prior_variance_, rel=1e-6)
        np.testing.assert_allclose(found.coef_.ravel()[:D], right.coef_.ravel(), rtol=1e-5)


def test_without_an_intercept_units_are_root_mean_squares():
    rows = np.column_stack([X + 3.0, np.ones(N)])
    model = LinearClassifier(fit_intercept=False).fit(rows, Y)
    right = np.sqrt((rows**2).mean(axis=0))
    right[4] = np.sqrt((3.0**2 + 4.0**2) / 2.0)  # as if both were as frequent
    np.testing.assert_allclose(model.column_scale_, right, rtol=1e-12)
    assert model.column_scale_[-1] == 1.0


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix])
def test_weights_count(kind):
    weights = np.arange(N) % 3
    rows = X.copy()
    rows[weights == 0] *= 1e3
    found = LinearClassifier().fit(kind(rows), Y, sample_weight=weights)
    right = LinearClassifier().fit(kind(np.repeat(rows, weights, axis=0)), np.repeat(Y, weights))
    np.testing.assert_allclose(found.column_scale_, right.column_scale_, rtol=1e-12)
    assert found.prior_variance_ == pytest.approx(right.prior_variance_, rel=1e-6)


def test_groups_share_a_variance_of_standardised_weights():
    model = LinearRegressor(prior_groups=GROUPS, posterior="factorized", learn=()).fit(X, Z)
    assert model.prior_variance_[0] == model.prior_variance_[1] != model.prior_variance_[2]
    prior = model.posterior_.problem.prior.precision[:D]
    right = model.column_scale_**2 / model.prior_variance_
    np.testing.assert_allclose(prior, right, rtol=1e-12)


# ---- the parameter ----


@pytest.mark.parametrize(
    ("given", "is_so"),
    [
        ({}, True),
        ({"prior_variance": "evidence"}, True),
        ({"prior_variance": "ard"}, True),
        ({"loss": "hinge"}, True),
        ({"prior_variance": 2.0}, False),
        ({"prior_variance": np.full(D, 2.0)}, False),
        ({"prior_variance": 2.0, "standardize": True}, True),
        ({"standardize": False}, False),
    ],
)
def test_when_weights_are_standardised(given, is_so):
    model = LinearClassifier(**given).fit(X, Y)
    assert model.standardize_ is is_so
    if not is_so:
        np.testing.assert_array_equal(model.column_scale_, 1.0)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.column_scale_, model.column_scale_)


def test_a_number_beside_it_is_the_variance_of_standardised_weights():
    found = LinearClassifier(prior_variance=2.0, standardize=True).fit(X, Y)
    raw = 2.0 / found.column_scale_**2
    right = epfast.fit_linear(
        X, np.where(Y == "yes", 1, -1), prior_variance=raw, intercept=True, schedule=epfast.EP(200)
    )
    np.testing.assert_allclose(found.coef_[0], right.mean[:D], rtol=1e-6)


@pytest.mark.parametrize(
    ("model", "y"),
    [
        (LinearClassifier(integrate=False), Y),
        (LinearClassifier(prior_variance="ard"), Y),
        (LinearRegressor(integrate=False, learn=(), loss=losses.Gaussian(1.0)), Z),
    ],
)
def test_what_is_found_may_be_handed_back(model, y):
    found = clone(model).fit(X * SCALES, y)
    given = {"prior_variance": found.prior_variance_, "standardize": found.standardize_}
    again = clone(model).set_params(**given).fit(X * SCALES, y)
    np.testing.assert_allclose(again.coef_, found.coef_, rtol=1e-4)
    assert again.log_evidence_ == pytest.approx(found.log_evidence_, abs=1e-6)


@pytest.mark.parametrize("wrong", ["yes", 1, 0.0, np.array([True])])
def test_bad_flags(wrong):
    for kind, y in ((LinearClassifier, Y), (LinearRegressor, Z)):
        with pytest.raises((ValueError, TypeError), match=r"^standardize is "):
            kind(standardize=wrong).fit(X, y)
