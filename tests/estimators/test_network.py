"""NetworkRegressor and NetworkClassifier: scikit-learn's checks, the fits behind them, streams."""

import pickle

import numpy as np
import pytest
from scipy import special, stats

import epfast
from epfast import NetworkClassifier, NetworkRegressor

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, make_moons
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

pytestmark = pytest.mark.filterwarnings("default::sklearn.exceptions.SkipTestWarning")

RNG = np.random.default_rng(21)
X = RNG.normal(size=(300, 2))
Y = np.sin(2.0 * X[:, 0]) * X[:, 1] + 0.1 * RNG.normal(size=300)
NEW = RNG.normal(size=(40, 2))
MOONS, HALVES = make_moons(400, noise=0.2, random_state=0)
for shared in (X, Y, NEW, MOONS, HALVES):
    shared.flags.writeable = False


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@parametrize_with_checks([NetworkRegressor((8,)), NetworkClassifier((8,))])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


# ---- the fit behind them ----


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")  # two passes are few
@pytest.mark.parametrize("schedule", [None, epfast.SEP(sweeps=3, tol=0), epfast.EP(2, tol=0)])
def test_regressor_is_fit_network(schedule):
    model = NetworkRegressor((7,), schedule=schedule, random_state=4).fit(X, Y)
    post = epfast.fit_network(X, Y, (7,), schedule=schedule, rng=4)
    mean, variance = post.predict(NEW)
    found, sd = model.predict(NEW, return_std=True)
    np.testing.assert_array_equal(found, mean)
    np.testing.assert_allclose(sd**2, variance + post.noise_variance, rtol=1e-12)
    density = model.score_samples(NEW, np.arange(40.0))
    np.testing.assert_allclose(density, post.log_predictive(NEW, np.arange(40.0)), rtol=1e-10)
    low, high = model.predict_quantile(NEW, [0.05, 0.95]).T
    np.testing.assert_allclose(high - low, 2.0 * stats.norm.ppf(0.95) * sd, rtol=1e-8)
    assert model.n_iter_ == post.n_sweeps


def test_an_offset_is_a_known_part_of_y():
    offset = 5.0 * np.random.default_rng(3).normal(size=300)
    model = NetworkRegressor((7,), schedule=epfast.ADF(2), random_state=4)
    plain = clone(model).fit(X, Y).partial_fit(X[:9], Y[:9])
    model.fit(X, Y + offset, offset=offset).partial_fit(X[:9], Y[:9] + offset[:9], offset[:9])
    np.testing.assert_allclose(model.predict(NEW), plain.predict(NEW), rtol=1e-6)
    found = model.score(X, Y + offset, offset=offset)
    rest = Y - plain.predict(X)
    assert found == pytest.approx(1.0 - rest @ rest / (300.0 * np.var(Y + offset)))
    assert model.score(X, Y + offset) < 0.1 < found
    drawn = model.sample_y(X, 2, offset=offset)
    np.testing.assert_allclose(drawn - offset[:, None], plain.sample_y(X, 2), atol=1e-6)
    with pytest.raises(ValueError, match=r"offset has shape \(1,\)"):
        model.sample_y(X, 2, offset=[1.0])


def test_classifier_is_a_network_against_the_rest():
    labels = np.array(["a", "b", "c"])[np.digitize(X[:, 0] + 0.2 * X[:, 1], [-0.5, 0.5])]
    model = NetworkClassifier((6,), schedule=epfast.ADF(passes=3), random_state=2, n_jobs=2)
    model.fit(X, labels)
    odds = []
    for name in "abc":
        y = np.where(labels == name, 1, -1)
        post = epfast.fit_network(X, y, (6,), loss="probit", schedule=epfast.ADF(passes=3), rng=2)
        odds.append(post.predict_proba(NEW))
    odds = np.stack(odds, axis=1)
    np.testing.assert_allclose(
        model.predict_proba(NEW), odds / odds.sum(axis=1, keepdims=True), rtol=1e-9
    )
    binary = NetworkClassifier((6,)).fit(X, Y > 0)
    post = epfast.fit_network(X, np.where(Y > 0, 1, -1), (6,), loss="probit")
    np.testing.assert_allclose(binary.predict_proba(NEW)[:, 1], post.predict_proba(NEW), rtol=1e-9)
    np.testing.assert_allclose(
        binary.decision_function(NEW), special.logit(post.predict_proba(NEW)), atol=1e-8
    )


@pytest.mark.parametrize("kind", ["gaussian", "probit"])
def test_draws_of_y_have_the_predictive_moments(kind):
    """Of draws of networks, which the moments of a layer after the other approximate."""
    y = Y if kind == "gaussian" else np.where(Y > 0, 1.0, -1.0)
    post = epfast.fit_network(X, y, (20,), loss=kind)
    drawn = post.sample_y(NEW, 4000, 0)
    assert drawn.shape == (4000, 40)
    if kind == "probit":
        assert set(np.unique(drawn)) == {-1.0, 1.0}
        np.testing.assert_allclose((drawn > 0).mean(axis=0), post.predict_proba(NEW), atol=0.04)
        return
    mean, variance = post.predict(NEW)
    sd = np.sqrt(variance + post.noise_variance)
    assert np.abs((drawn.mean(axis=0) - mean) / sd).max() < 0.1
    assert np.abs(np.log(drawn.std(axis=0) / sd)).max() < 0.1
    model = NetworkRegressor((20,)).fit(X, Y)
    assert model.sample_y(NEW, 3).shape == (40, 3)


# ---- defaults ----


@pytest.mark.full
def test_defaults_on_data_that_scikit_learn_ships():
    """As good as a linear model where that is right, better where it is not."""
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    for load, least in ((load_iris, 0.94), (load_breast_cancer, 0.95)):
        rows, labels = load(return_X_y=True)
        assert cross_val_score(NetworkClassifier(), rows, labels, cv=folds).mean() > least
    assert NetworkClassifier().fit(MOONS[:300], HALVES[:300]).score(MOONS[300:], HALVES[300:]) > 0.9
    rows, y = load_diabetes(return_X_y=True)
    model = NetworkRegressor().fit(rows[:350], y[:350])
    mean, sd = model.predict(rows[350:], return_std=True)
    assert model.score(rows[350:], y[350:]) > 0.45
    assert 0.8 < (np.abs(y[350:] - mean) < 1.645 * sd).mean() < 0.97
    assert NetworkRegressor().fit(X, Y).score(X, Y) > 0.8 > LinearRegression().fit(X, Y).score(X, Y)


# ---- passes, streams, copies ----


def test_streams_do_not_run_away():
    """Chunks of 50 rows of diabetes: one pass had ended 400 times worse than a constant."""
    rows, y = load_diabetes(return_X_y=True)
    model = NetworkRegressor()
    for k in range(7):
        model.partial_fit(rows[50 * k : 50 * k + 50], y[50 * k : 50 * k + 50])
        assert model.score(rows[350:], y[350:]) > -0.5
    assert model.score(rows[350:], y[350:]) > 0.4
    halves = NetworkClassifier()
    for k in range(3):
        part = slice(100 * k, 100 * k + 100)
        halves.partial_fit(MOONS[part], HALVES[part], classes=[0, 1])
    assert halves.score(MOONS[300:], HALVES[300:]) > 0.8
    whole = NetworkRegressor((5,)).partial_fit(X[:150], Y[:150]).partial_fit(X[150:], Y[150:])
    post = epfast.fit_network(X[:150], Y[:150], (5,), epfast.ADF(seed=0, order="shuffled"))
    post = post.partial_fit(X[150:], Y[150:])
    np.testing.assert_array_equal(whole.predict(NEW), post.predict(NEW)[0])


def test_copies_and_files(tmp_path):
    model = NetworkRegressor((6,)).fit(X, Y)
    again = clone(model).fit(X, Y)
    copied = pickle.loads(pickle.dumps(model))
    model.posterior_.save(tmp_path / "net.npz")
    loaded = epfast.load(tmp_path / "net.npz")
    for found in (again.predict(NEW), copied.predict(NEW), loaded.predict(NEW)[0]):
        np.testing.assert_array_equal(found, model.predict(NEW))
    random = NetworkRegressor((6,), random_state=np.random.RandomState(3))
    assert not np.array_equal(random.fit(X, Y).predict(NEW), random.fit(X, Y).predict(NEW))


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"hidden": 0}, "hidden"),
        ({"hidden": (5.5,)}, "hidden"),
        ({"schedule": "adf"}, "schedule"),
        ({"schedule": epfast.DEP()}, "schedule"),
        ({"prior": (1.0, 6.0)}, "prior"),
        ({"noise": (6.0, -1.0)}, "noise"),
        ({"standardize": 3}, "standardize"),
        ({"random_state": -1}, "random_state"),
        ({"progress": 3}, "progress"),
    ],
)
def test_refused(given, match):
    with pytest.raises((ValueError, TypeError), match=match):
        NetworkRegressor(**given).fit(X, Y)


def test_refused_calls():
    model = NetworkRegressor((4,)).fit(X, Y)
    with pytest.raises(ValueError, match="X has 3 features"):
        model.predict(np.ones((2, 3)))
    with pytest.raises(ValueError, match="y is constant"):
        NetworkRegressor((4,)).fit(X, np.ones(300))
    with pytest.raises(ValueError, match="allowed: two classes"):
        NetworkClassifier((4,)).fit(X, np.ones(300))
    with pytest.raises(ValueError, match="classes is None"):
        NetworkClassifier((4,)).partial_fit(X, Y > 0)
    with pytest.raises(ValueError, match="n_jobs is 0"):
        NetworkClassifier((4,), n_jobs=0).fit(X, Y > 0)
