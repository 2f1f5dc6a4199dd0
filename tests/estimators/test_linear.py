"""LinearClassifier: scikit-learn's own checks, and that it is fit_linear and nothing else."""

import pickle

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast import ADF, EP, SEP, fit_linear, losses

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from epfast import LinearClassifier
from tests.oracles.data import prior_of_ones

# of epfast about extreme data of a check, and of scikit-learn about its own
pytestmark = [
    pytest.mark.filterwarnings("default::sklearn.exceptions.SkipTestWarning"),
    pytest.mark.filterwarnings("default::epfast.estimators.EvidenceWarning"),
]

RNG = np.random.default_rng(1764)
N, D = 300, 4
THETA = np.array([1.5, -1.0, 0.5, 0.0])
X = RNG.normal(loc=[0.0, 1.0, 0.0, -2.0], size=(N, D))
Y = np.where(X @ THETA + 0.7 + RNG.logistic(size=N) > 0, 1, -1)
ONES = np.column_stack([X, np.ones(N)])
for shared in (X, Y):
    shared.flags.writeable = False

#: at which repeated and weighted rows agree to 1e-8
TIGHT = EP(sweeps=200, tol=1e-10)
CHECKED = [
    LinearClassifier(schedule=TIGHT),
    LinearClassifier(loss="probit", prior_variance=1.0, schedule=TIGHT),
]
EQUIVALENCE = (
    "check_sample_weight_equivalence_on_dense_data",
    "check_sample_weight_equivalence_on_sparse_data",
)


@pytest.mark.cover(lambda estimator, check: check.func.__name__)
@parametrize_with_checks(
    [LinearClassifier()],
    expected_failed_checks=lambda estimator: dict.fromkeys(
        EQUIVALENCE, "repeated and weighted rows agree to the tolerance of the schedule"
    ),
)
def test_scikit_learn_checks_of_the_default(estimator, check):
    check(estimator)


@pytest.mark.full
@parametrize_with_checks([LinearClassifier(loss="multiclass")])
def test_scikit_learn_checks_of_several_classes(estimator, check):
    if check.func.__name__ == "check_class_weight_classifiers":  # by weights of 1e-4
        with pytest.raises(ValueError, match="allowed with Multiclass"):
            check(estimator)
        return
    check(estimator)


@pytest.mark.full
@parametrize_with_checks(CHECKED)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


# ---- the estimator is fit_linear ----


@pytest.mark.filterwarnings("ignore:.*still refused:epfast.ConvergenceWarning")
@pytest.mark.parametrize(
    "arguments",
    [
        {"prior_variance": 25.0},
        {"loss": "probit", "beta": 0.7, "prior_variance": 3.0},
        {"loss": epfast.Hinge(), "schedule": EP(sweeps=30, damping=0.9)},
        {"prior_variance": [1.0, 2.0, 3.0, 4.0], "intercept_variance": 9.0},
        {"fit_intercept": False, "prior_variance": 4.0},
        {"posterior": "factorized", "prior_variance": 4.0},
        {
            "posterior": "factorized",
            "batch_size": 7,
            "scheme": "quadrature",
            "prior_variance": 4.0,
            "schedule": EP(),
        },
        {"posterior": "factorized", "schedule": ADF(), "prior_variance": 4.0},
        {"schedule": SEP(sweeps=30, damping=0.5), "prior_variance": 4.0},
    ],
    ids=lambda arguments: "-".join(arguments),
)
@pytest.mark.filterwarnings("ignore:.*refused:epfast.ConvergenceWarning")
def test_agrees_with_fit_linear(arguments):
    model = LinearClassifier(**arguments, standardize=False).fit(X, Y)
    wide = arguments.pop("fit_intercept", True)
    variance = np.full(D, 0.0) + arguments.pop("prior_variance", model.prior_variance_)
    intercept = arguments.pop("intercept_variance", 100.0)
    full = arguments.get("posterior", "full") == "full"
    defaults = {
        "scheme": "exact",
        "posterior": "full",
        "batch_size": None,
        "schedule": EP(sweeps=200) if full else EP(sweeps=3000, tol=1e-4),
    }
    rows = ONES if wide else X
    prior = {"prior_variance": np.append(variance, intercept) if wide else variance}
    if full and wide:
        prior = {"prior_precision": prior_of_ones(variance, intercept, X)}
    post = fit_linear(rows, Y, **prior, **(defaults | arguments))
    assert model.coef_.shape == (1, D)
    assert model.intercept_.shape == (1,)
    assert model.coef_covariance_.shape == (D, D)
    np.testing.assert_allclose(model.coef_[0], post.mean[:D], rtol=1e-9)
    np.testing.assert_allclose(model.intercept_[0], post.mean[D] if wide else 0.0, rtol=1e-9)
    np.testing.assert_allclose(model.coef_covariance_, post.covariance[:D, :D], rtol=1e-9)
    np.testing.assert_allclose(model.posterior_.mean, post.mean, rtol=1e-9)
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], post.predict_proba(rows), rtol=1e-7)
    np.testing.assert_allclose(model.predict_latent(X), post.predict_latent(rows), rtol=1e-9)
    assert model.log_evidence_ == pytest.approx(post.log_evidence, rel=1e-12)
    assert model.converged_ == post.converged
    assert model.n_iter_ == len(post.history)
    np.testing.assert_array_equal(
        model.prior_variance_, variance if variance.std() else variance[0]
    )
    mean, _ = model.predict_latent(X)
    np.testing.assert_allclose(mean, X @ model.coef_[0] + model.intercept_[0], rtol=1e-9)
    np.testing.assert_array_equal(model.predict(X), np.where(mean > 0, 1, -1))


def test_near_logistic_regression():
    """With many rows the posterior is normal about the maximum."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(20_000, 3))
    y = rows @ [1.0, -2.0, 0.0] + rng.logistic(size=len(rows)) > 0
    model = LinearClassifier(prior_variance=4.0, intercept_variance=1e8).fit(rows, y)
    other = LogisticRegression(C=4.0, tol=1e-8).fit(rows, y)
    sd = np.sqrt(np.diag(model.coef_covariance_))
    np.testing.assert_allclose(model.coef_[0], other.coef_[0], rtol=0, atol=0.05 * sd.min())
    np.testing.assert_allclose(model.intercept_, other.intercept_, rtol=0, atol=0.05 * sd.min())
    np.testing.assert_allclose(model.predict_proba(rows), other.predict_proba(rows), atol=1e-3)


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("loss", [name for name in losses.NAMED if losses.resolve(name).by_margin])
def test_predictions_agree_with_each_other(loss):
    far = np.vstack([X, 1e3 * X, 1e6 * X, 0 * X[:1]])
    # near a fixed point or not: EP settles for log-concave likelihoods alone
    model = LinearClassifier(loss=loss, fit_intercept=False, schedule=EP(20, 0.0))
    model.set_params(prior_variance=25.0).fit(X, Y)
    scores, proba = model.decision_function(far), model.predict_proba(far)
    assert scores.shape == (len(far),)
    assert np.isfinite(scores).all()
    np.testing.assert_allclose(proba.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(np.log(proba[:N]), model.predict_log_proba(far)[:N], rtol=1e-9)
    np.testing.assert_array_equal(model.predict(far) == 1, scores > 0)
    mean, _ = model.predict_latent(far)
    np.testing.assert_array_equal(np.sign(mean), np.sign(scores))
    np.testing.assert_allclose(proba[-1], 0.5, rtol=1e-12)


# ---- labels ----


@pytest.mark.parametrize("pair", [("no", "yes"), (0, 1), (False, True), (7.0, 9.0), (-3, 2)])
def test_two_labels_of_any_kind(pair):
    y = np.where(Y > 0, pair[1], pair[0])
    model = LinearClassifier().fit(X, y)
    plain = LinearClassifier().fit(X, Y)
    np.testing.assert_array_equal(model.classes_, pair)
    np.testing.assert_array_equal(model.coef_, plain.coef_)
    np.testing.assert_array_equal(model.predict(X), np.where(plain.predict(X) > 0, *pair[::-1]))
    assert model.predict(X).dtype == y.dtype


def test_one_versus_rest():
    iris = load_iris()
    names = iris.target_names[iris.target]
    rows = StandardScaler().fit_transform(iris.data)
    model = LinearClassifier(prior_variance=25.0).fit(rows, names)
    assert list(model.classes_) == list(iris.target_names)
    assert model.coef_.shape == (3, 4)
    assert model.intercept_.shape == (3,)
    assert model.coef_covariance_.shape == (3, 4, 4)
    assert len(model.posteriors_) == 3
    assert not hasattr(model, "posterior_")
    binary = [clone(model).fit(rows, names == name) for name in model.classes_]
    for k, one in enumerate(binary):
        for name in ("coef_", "coef_covariance_", "intercept_"):
            alone = np.reshape(getattr(one, name), getattr(model, name)[k].shape)
            np.testing.assert_allclose(getattr(model, name)[k], alone, rtol=1e-11, atol=1e-13)
    assert model.log_evidence_ == pytest.approx(sum(one.log_evidence_ for one in binary))
    proba = model.predict_proba(rows)
    raw = np.stack([one.predict_proba(rows)[:, 1] for one in binary], axis=1)
    raw /= (1.0 - raw) ** model.coupling_
    np.testing.assert_allclose(proba, raw / raw.sum(axis=1, keepdims=True), rtol=1e-8)
    np.testing.assert_array_equal(model.decision_function(rows).argmax(1), proba.argmax(1))
    mean, variance = model.predict_latent(rows)
    np.testing.assert_allclose(mean, rows @ model.coef_.T + model.intercept_, rtol=1e-9)
    assert variance.shape == (150, 3)
    other = OneVsRestClassifier(LogisticRegression(C=25.0, max_iter=500)).fit(rows, names)
    assert model.score(rows, names) >= other.score(rows, names) - 0.02
    # the attribute of two classes goes and comes
    assert hasattr(model.fit(rows, iris.target == 1), "posterior_")
    assert not hasattr(model.fit(rows, names), "posterior_")


# ---- inside scikit-learn ----


@pytest.fixture(scope="module")
def cancer():
    return load_breast_cancer(return_X_y=True)


def test_pipeline_and_grid_search(cancer):
    rows, y = cancer
    pipe = make_pipeline(
        StandardScaler(), LinearClassifier(prior_variance=1.0, schedule=EP(sweeps=20, tol=1e-4))
    )
    names = np.array(["malignant", "benign"])[y]
    search = GridSearchCV(
        pipe,
        {"linearclassifier__prior_variance": [1e-3, 1.0], "linearclassifier__loss": ["probit"]},
        scoring="neg_log_loss",
        cv=3,
    )
    search.fit(rows, names)
    assert search.best_params_["linearclassifier__prior_variance"] == 1.0
    assert search.best_estimator_.score(rows, names) > 0.97
    assert -search.best_score_ < 0.1
    assert cross_val_score(pipe, rows, names, scoring="roc_auc", cv=3).min() > 0.98


@pytest.mark.full
def test_calibration_display():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from sklearn.calibration import CalibrationDisplay

    names = np.where(Y > 0, "yes", "no")
    model = make_pipeline(StandardScaler(), LinearClassifier()).fit(X, names)
    display = CalibrationDisplay.from_estimator(model, X, names, n_bins=5, pos_label="yes")
    np.testing.assert_allclose(display.prob_pred, display.prob_true, atol=0.15)
    pyplot.close("all")


@pytest.mark.filterwarnings("ignore:.*refused:epfast.ConvergenceWarning")
def test_clone_and_pickle():
    variances = np.array([1.0, 2.0, 3.0, 4.0])
    model = LinearClassifier(prior_variance=variances, loss=epfast.Quasi01(), schedule=EP(9, 0.0))
    assert model.get_params()["prior_variance"] is variances
    assert clone(model).get_params()["schedule"] == EP(9, 0.0)
    with pytest.raises(NotFittedError):
        model.predict(X)
    again = pickle.loads(pickle.dumps(model.fit(X, Y)))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert variances.flags.writeable
    assert model.prior_variance_ is not variances


def test_data_frames():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcd"))
    model = LinearClassifier().fit(frame, pandas.Series(np.where(Y > 0, "yes", "no")))
    assert list(model.feature_names_in_) == list("abcd")
    assert model.n_features_in_ == D
    plain = LinearClassifier().fit(X.tolist(), Y.tolist())
    np.testing.assert_allclose(model.coef_, plain.coef_, rtol=1e-12)
    np.testing.assert_allclose(model.predict_proba(frame), plain.predict_proba(X), rtol=1e-12)
    single = LinearClassifier().fit(np.float32(X), Y)
    np.testing.assert_allclose(single.coef_, plain.coef_, rtol=1e-5)


# ---- weights ----


@pytest.mark.parametrize("loss", ["logistic", "probit"])
def test_weights_are_copies(loss):
    weights = RNG.integers(0, 4, size=N)
    model = LinearClassifier(loss=loss, schedule=EP(sweeps=200, tol=1e-10))
    one = clone(model).fit(X, Y, sample_weight=weights)
    other = clone(model).fit(X.repeat(weights, axis=0), Y.repeat(weights))
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-7)
    np.testing.assert_allclose(one.coef_covariance_, other.coef_covariance_, rtol=1e-7)
    assert one.log_evidence_ == pytest.approx(other.log_evidence_, rel=1e-8)


@pytest.mark.full
def test_weights_between_the_integers():
    post = fit_linear(
        X,
        Y,
        weights=np.full(N, 0.3),
        prior_variance=25.0,
        batch_size=None,
        posterior="full",
        scheme="exact",
        schedule=EP(sweeps=200),
    )
    model = LinearClassifier(fit_intercept=False, prior_variance=25.0)
    model.fit(X, Y, sample_weight=np.full(N, 0.3))
    np.testing.assert_array_equal(model.coef_[0], post.mean)
    lighter = clone(model).fit(X, Y, sample_weight=np.full(N, 0.01))
    heavier = clone(model).fit(X, Y, sample_weight=np.full(N, 10.0))
    assert np.trace(lighter.coef_covariance_) > 10 * np.trace(heavier.coef_covariance_)


@pytest.mark.full
def test_class_weights():
    y = np.where(X @ THETA > 2.0, "rare", "often")
    counts = {name: (y == name).sum() for name in ("rare", "often")}
    balanced = LinearClassifier(prior_variance=4.0, class_weight="balanced").fit(X, y)
    by_hand = {name: N / (2 * count) for name, count in counts.items()}
    np.testing.assert_allclose(
        balanced.coef_,
        LinearClassifier(prior_variance=4.0, class_weight=by_hand).fit(X, y).coef_,
        rtol=1e-7,
    )
    weights = np.array([by_hand[name] for name in y])
    given = LinearClassifier(prior_variance=4.0).fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(balanced.coef_, given.coef_, rtol=1e-7)
    plain = LinearClassifier(prior_variance=4.0).fit(X, y)
    assert (balanced.predict(X) == "rare").sum() > (plain.predict(X) == "rare").sum()
    # balanced over the weights, as if the rows were repeated: near, since a weight below 1 is a
    # power and one above 1 counts copies
    copies = RNG.integers(0, 3, size=N)
    one = LinearClassifier(prior_variance=4.0, class_weight="balanced").fit(
        X, y, sample_weight=copies
    )
    other = LinearClassifier(prior_variance=4.0, class_weight="balanced").fit(
        X.repeat(copies, 0), y.repeat(copies)
    )
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=0.01)


def test_weights_of_one_are_none():
    plain = LinearClassifier().fit(X, Y)
    for weights in (np.ones(N), [1] * N, np.ones(N, dtype=int), None):
        model = LinearClassifier().fit(X, Y, sample_weight=weights)
        np.testing.assert_array_equal(model.coef_, plain.coef_)


@pytest.mark.parametrize(
    ("arguments", "weights", "match"),
    [
        ({}, -np.ones(N), "sample_weight has a minimum"),
        ({}, np.zeros(N), "weight.*zero"),
        ({}, np.full(N, np.nan), "NaN"),
        ({}, np.ones(N - 1), "sample_weight"),
        ({}, Y > 0, "1 class"),
        ({"class_weight": "even"}, None, "class_weight is 'even'"),
        ({"class_weight": {1: -1.0}}, None, "class_weight is"),
        ({"class_weight": {1: 2.0, 5: 3.0}}, None, "class"),
    ],
)
def test_bad_weights(arguments, weights, match):
    with pytest.raises(ValueError, match=match):
        LinearClassifier(**arguments).fit(X, Y, sample_weight=weights)


# ---- evidence ----


def small(n=80, d=3, seed=5, scale=1.0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d)) * scale
    theta = rng.normal(size=d) / scale
    return rows, np.where(rows @ theta + rng.logistic(size=n) > 0, 1, -1)


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"loss": "probit", "schedule": EP(sweeps=100, tol=1e-9, power=0.8)},
        {"fit_intercept": False},
        {"posterior": "factorized", "batch_size": 5},
    ],
    ids=["logistic", "probit", "no_intercept", "factorized"],
)
@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_evidence_is_the_maximum_of_a_grid(arguments, scale):
    rows, y = small(scale=scale)
    model = LinearClassifier(prior_variance="evidence", **arguments).fit(rows, y)
    assert model.get_params()["prior_variance"] == "evidence"
    grid = np.geomspace(0.01, 100.0, 31)  # of standardised columns
    values = [
        LinearClassifier(prior_variance=v, standardize=True, **arguments).fit(rows, y).log_evidence_
        for v in grid
    ]
    top = int(np.argmax(values))
    assert 0 < top < 30
    assert grid[top - 1] < model.prior_variance_ < grid[top + 1]
    assert model.log_evidence_ >= max(values) - 1e-9
    handed_back = {"prior_variance": model.prior_variance_, "standardize": model.standardize_}
    same = LinearClassifier(**handed_back, **arguments).fit(rows, y)
    assert same.log_evidence_ == pytest.approx(model.log_evidence_, abs=1e-5)
    np.testing.assert_allclose(same.coef_, model.coef_, rtol=1e-4)


def test_evidence_at_a_maximum_is_flat():
    """The root of the slope is where a quadratic through nearby values has its maximum."""
    rows, y = small()
    given = {"prior_variance": "evidence", "standardize": False}
    u = np.log(LinearClassifier(**given).fit(rows, y).prior_variance_)
    step = 1e-2
    low, mid, high = (
        LinearClassifier(prior_variance=float(np.exp(v))).fit(rows, y).log_evidence_
        for v in (u - step, u, u + step)
    )
    assert low + high - 2 * mid < 0
    assert abs((high - low) / (2 * step)) < 1e-4


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
def test_evidence_at_the_ends():
    """Where there is no maximum inside the range the result is an end of it, and finite."""
    rows, _ = small(n=40)
    separated = LinearClassifier(prior_variance="evidence").fit(rows, rows[:, 0] > 0)
    assert separated.prior_variance_ > 100.0
    noise = LinearClassifier(prior_variance="evidence").fit(rows, np.arange(40) % 2)
    assert noise.prior_variance_ < 1.0
    for model in (separated, noise):
        assert np.isfinite(model.coef_).all()
        assert np.isfinite(model.log_evidence_)
    for constant in (1.0, 0.1, 1e5 / 3):  # of some the mean rounds: no variance to scale by
        rows = np.full((46, 2), constant)
        same = LinearClassifier(prior_variance="evidence").fit(rows, np.arange(46) % 2)
        np.testing.assert_allclose(same.predict_proba(rows[:1]), 0.5, atol=1e-6)
    one_pass = LinearClassifier(prior_variance="evidence", schedule=ADF()).fit(X, Y)
    assert 0.01 < one_pass.prior_variance_ < 100.0


@pytest.mark.full
def test_evidence_of_several_classes():
    iris = load_iris()
    rows = StandardScaler().fit_transform(iris.data)
    model = LinearClassifier(prior_variance="evidence", loss="probit").fit(rows, iris.target)
    assert isinstance(model.prior_variance_, float)
    for factor in (0.8, 1.25):
        variance = factor * model.prior_variance_
        other = LinearClassifier(prior_variance=variance, loss="probit").fit(rows, iris.target)
        assert other.log_evidence_ < model.log_evidence_


# ---- warnings and errors ----


@pytest.mark.parametrize("labels", [Y, RNG.integers(0, 3, N)], ids=["binary", "one_vs_rest"])
def test_a_warning_names_the_line_of_the_user(labels):
    model = LinearClassifier(prior_variance=1.0, schedule=EP(2, 1e-12))
    with pytest.warns(epfast.ConvergenceWarning, match="did not converge") as caught:
        model.fit(X, labels)
    assert [warning.filename for warning in caught] == [__file__] * len(model.posteriors_)


@pytest.mark.filterwarnings("ignore:.*points of the search:epfast.ConvergenceWarning")
def test_a_start_that_is_improper_is_left():
    """At a prior far off, the sites of the fit before make no posterior: then from flat ones."""
    rows, y = small()
    model = LinearClassifier(loss=epfast.NoisyStep(0.3), prior_variance="evidence")
    model.set_params(schedule=EP(200, 1e-8, damping=0.5)).fit(rows, y)
    found = {"prior_variance": model.prior_variance_, "standardize": True}
    same = clone(model).set_params(**found).fit(rows, y)
    assert same.log_evidence_ == pytest.approx(model.log_evidence_, abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"loss": "nope"}, "loss is 'nope'"),
        ({"scheme": "nope"}, "scheme is 'nope'"),
        ({"posterior": "nope"}, "posterior is 'nope'"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"prior_variance": "nope"}, "prior_variance is 'nope'"),
        ({"prior_variance": -1.0}, "prior_variance is -1.0"),
        ({"prior_variance": [1.0, 2.0]}, "prior_variance has shape"),
        ({"intercept_variance": 0.0}, "intercept_variance is 0.0"),
        ({"fit_intercept": "no"}, "fit_intercept is 'no'"),
        ({"schedule": 5}, "schedule is 5"),
        ({"beta": 0.0}, "beta is 0.0"),
        ({"prior_variance": "evidence", "loss": "nope"}, "loss is 'nope'"),
        ({"prior_variance": "evidence", "schedule": 5}, "schedule is 5"),
    ],
)
def test_bad_parameters(arguments, match):
    with pytest.raises((ValueError, TypeError), match=match):
        LinearClassifier(**arguments).fit(X, Y)


def test_bad_data():
    model = LinearClassifier()
    with pytest.raises(ValueError, match="y has 1 class"):
        model.fit(X, np.ones(N))
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.where(X > 2, np.nan, X), Y)
    with pytest.raises(ValueError, match="continuous"):
        model.fit(X, X[:, 0])
    with pytest.raises(ValueError, match="features"):
        model.fit(X, Y).predict(X[:, :2])


def test_plain_arrays_are_checked_as_others_are():
    """They leave what others leave."""
    frame = pytest.importorskip("pandas").DataFrame(X, columns=list("abcd"))
    named, plain = LinearClassifier().fit(frame, Y), LinearClassifier().fit(X, Y)
    np.testing.assert_array_equal(named.coef_, plain.coef_)
    assert plain.n_features_in_ == 4
    assert not hasattr(named.fit(X, Y), "feature_names_in_")
    wrong = X.copy()
    wrong[3, 1] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        plain.fit(wrong, Y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        plain.fit(X, Y[1:])


def test_a_constant_column_far_from_0():
    """The average over prior variances failed, and a classifier had weights that were too small."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = x @ [1.0, 2.0] + 0.5 * rng.normal(size=60)
    want = epfast.LinearRegressor().fit(x, y).coef_
    for far in (3e4, 1e5, 1e9):
        rows = np.column_stack([x, np.full(60, far)])
        with pytest.warns(epfast.DataWarning, match="column 2 of X is .* in all rows"):
            model = epfast.LinearRegressor().fit(rows, y)
        np.testing.assert_allclose(model.coef_[:2], want, atol=1e-3)
        with pytest.warns(epfast.DataWarning, match="in all rows"):
            labels = epfast.LinearClassifier().fit(rows, y > 0.0)
        assert labels.converged_
        np.testing.assert_allclose(
            labels.predict_proba(rows)[:, 1],
            epfast.LinearClassifier().fit(x, y > 0.0).predict_proba(x)[:, 1],
            atol=0.05,
        )


@pytest.mark.parametrize("call", ["fit", "partial_fit"])
def test_sparse_rows_that_lie_are_found_before_they_are_read(call):
    rows, y = small()
    bad = sparse.csr_array(rows)
    bad.indices[-1] = 10**8
    given = {"classes": np.unique(y)} if call == "partial_fit" else {}
    with pytest.raises(ValueError, match=r"^X is not a valid CSR matrix"):
        getattr(LinearClassifier(), call)(bad, y, **given)
