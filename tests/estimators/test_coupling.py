"""How classifiers combine the answers of each class against the rest."""

import itertools
import pickle

import numpy as np
import pytest
from scipy import optimize, special
from sklearn.base import clone
from sklearn.datasets import load_iris, load_wine
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from epfast import ADF, GPClassifier, LinearClassifier, NetworkClassifier
from epfast.estimators.base import GRID, best, left_out, log_probabilities, tally

RNG = np.random.default_rng(0)


def ordered(n=240, seed=1):
    """Three classes along a line: no plane tells the middle one from the others."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, np.digitize(X[:, 0] + 0.3 * rng.normal(size=n), [-0.5, 0.5])


X, Y = ordered()


def seen(scores, index, coupling):
    """Mean log probability of the labels, in plain NumPy."""
    p = special.expit(scores)
    shares = p / (1.0 - p) ** coupling
    shares /= shares.sum(axis=1, keepdims=True)
    return np.log(shares[np.arange(len(index)), index]).mean()


# ---- the formula ----


@pytest.mark.parametrize("k", [3, 5])
def test_one_is_independent_answers_of_which_one_is_yes(k):
    """By the sum over all 2^k combinations of answers."""
    scores = RNG.normal(size=k, scale=2.0)
    p, expected = special.expit(scores), np.zeros(k)
    for answers in itertools.product([False, True], repeat=k):
        if sum(answers) == 1:
            expected[answers.index(True)] = np.where(answers, p, 1.0 - p).prod()
    expected /= expected.sum()
    np.testing.assert_allclose(np.exp(log_probabilities(scores[None], 1.0))[0], expected)


def test_zero_normalises():
    scores = RNG.normal(size=(20, 4))
    p = special.expit(scores)
    np.testing.assert_allclose(
        np.exp(log_probabilities(scores, 0.0)), p / p.sum(axis=1, keepdims=True)
    )


@pytest.mark.parametrize("coupling", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("size", [1.0, 40.0, 800.0, 1e6, 1e300])
def test_any_odds_give_probabilities_in_their_order(coupling, size):
    scores = np.unique(RNG.uniform(-size, size, size=(50, 3)), axis=0)
    logs = log_probabilities(scores, coupling)
    assert (logs <= 0.0).all()
    np.testing.assert_allclose(np.exp(logs).sum(axis=1), 1.0)
    top = np.take_along_axis(logs, scores.argmax(axis=1)[:, None], axis=1)[:, 0]
    np.testing.assert_array_equal(top, logs.max(axis=1))


# ---- which coupling ----


def softmax(n, seed):
    """Four classes that planes tell apart, each two of them."""
    rng = np.random.default_rng(seed)
    planes, rows = rng.normal(size=(4, 4)), rng.normal(size=(n, 4))
    p = special.softmax(rows @ planes, axis=1)
    return rows, (p.cumsum(axis=1) > rng.uniform(size=(n, 1))).argmax(axis=1)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("k", [3, 6])
def test_the_best_coupling_is_that_of_a_fine_search(seed, k):
    rng = np.random.default_rng([seed, k])
    index = rng.integers(k, size=300)
    scores = rng.normal(size=(300, k), scale=rng.uniform(0.2, 4.0)) - rng.uniform(0.0, 3.0)
    scores[np.arange(300), index] += rng.uniform(0.0, 4.0)
    weights = rng.integers(0, 4, size=300).astype(float) if seed % 2 else None
    used = np.arange(300) if weights is None else np.repeat(np.arange(300), weights.astype(int))
    sums = tally(scores, index, weights)
    np.testing.assert_allclose(
        sums / len(used), [seen(scores[used], index[used], a) for a in GRID], rtol=1e-9
    )
    # concave, so that there is one maximum
    assert (np.diff(sums, 2) <= 1e-9 * np.abs(sums).max()).all()
    found = best(sums)

    def less(a):  # a prior density in proportion to exp(-a)
        return seen(scores[used], index[used], a) - a / len(used)

    exact = optimize.minimize_scalar(lambda a: -less(a), bounds=(0.0, 1.0), method="bounded")
    assert 0.0 <= found <= 1.0
    assert less(found) > -exact.fun - 1e-4


def test_sums_without_a_maximum_inside():
    assert best(np.zeros(9)) == 0.0
    assert best(-np.arange(9.0)) == 0.0
    assert best(np.arange(9.0)) == 1.0
    assert best(np.sqrt(np.arange(9.0))) == 1.0
    assert best(GRID / 2.0) == 0.0
    assert best(-10.0 * (GRID - 0.4) ** 2) == pytest.approx(0.35)
    np.testing.assert_array_equal(tally(None, np.zeros(3, dtype=int), None), 0.0)


MODELS = {
    "rows": lambda: LinearClassifier(prior_variance=1.0),
    "probit": lambda: LinearClassifier(loss="probit", prior_variance=1.0),
    "hinge": lambda: LinearClassifier(loss="hinge"),
    "evidence": lambda: LinearClassifier(),
    "factorized": lambda: LinearClassifier(posterior="factorized", prior_variance=1.0),
    "process": lambda: GPClassifier(),
}


@pytest.mark.parametrize("name", MODELS)
def test_rows_that_are_left_out_choose_it(name):
    """Their odds are the odds of the posteriors without the site of the row."""
    model = MODELS[name]().fit(X, Y)
    scores = left_out(model.posteriors_, Y)
    if name not in ("process", "factorized"):  # which cannot remove rows
        for i in (0, 7, 100):
            without = clone(model).fit(X, Y)
            without.posteriors_ = [post.remove([i]) for post in model.posteriors_]
            np.testing.assert_allclose(
                without.decision_function(X[i : i + 1])[0], scores[i], rtol=1e-8
            )
    found = model.coupling_
    assert found == best(tally(scores, Y, None))
    assert seen(scores, Y, found) >= max(seen(scores, Y, a) for a in (0.0, 0.5, 1.0)) - 1 / len(Y)
    odds = model.decision_function(X)
    p = special.expit(odds)
    shares = p / (1.0 - p) ** found
    np.testing.assert_allclose(
        model.predict_proba(X), shares / shares.sum(axis=1, keepdims=True), rtol=1e-9
    )
    np.testing.assert_array_equal(model.predict(X), odds.argmax(axis=1))


@pytest.mark.cover(lambda make: make)
@pytest.mark.parametrize(
    "make", [MODELS["rows"], lambda: GPClassifier(4.0 * RBF(2.0), optimizer=None)]
)
def test_weights_are_copies(make):
    rows, labels = softmax(240, 3)
    weights = np.random.default_rng(3).integers(0, 4, size=len(labels))
    weighted = make().fit(rows, labels, weights)
    copied = make().fit(np.repeat(rows, weights, axis=0), np.repeat(labels, weights))
    assert 0.0 < weighted.coupling_ < 1.0
    assert weighted.coupling_ == pytest.approx(copied.coupling_, abs=1e-5)


def test_order_of_rows_and_names_of_classes_do_not_count():
    order = np.random.default_rng(4).permutation(len(Y))
    plain = MODELS["rows"]().fit(X, Y)
    other = MODELS["rows"]().fit(X[order], np.array(["c", "a", "b"])[Y[order]])
    assert other.coupling_ == pytest.approx(plain.coupling_, abs=1e-8)


# ---- where it is 0 ----


def test_no_coupling_of_two_classes_or_without_sites():
    two = Y > 0
    assert LinearClassifier().fit(X, two).coupling_ == 0.0
    assert GPClassifier().fit(X, two).coupling_ == 0.0
    assert LinearClassifier(loss="multiclass", prior_variance=1.0).fit(X, Y).coupling_ == 0.0
    assert LinearClassifier(schedule=ADF(), prior_variance=1.0).fit(X, Y).coupling_ == 0.0
    networks = NetworkClassifier(hidden=(5,), random_state=0).fit(X, Y)
    assert networks.coupling_ == 0.0
    assert np.allclose(networks.predict_proba(X).sum(axis=1), 1.0)


# ---- chunks ----


@pytest.mark.parametrize("given", [{}, {"schedule": ADF()}, {"posterior": "factorized"}])
def test_chunks_are_predicted_before_they_are_taken_in(given):
    model, sums = LinearClassifier(prior_variance=1.0, **given), np.zeros(len(GRID))
    for k, part in enumerate(np.array_split(np.arange(len(Y)), 6)):
        weights = 1.0 + part % 2
        if k:
            sums = sums + tally(model.decision_function(X[part]), Y[part], weights)
        model.partial_fit(X[part], Y[part], classes=[0, 1, 2], sample_weight=weights)
        if not k:
            sums = sums + tally(left_out(model.posteriors_, Y[part]), Y[part], weights)
            assert (model.coupling_ == 0.0) == bool(given)
        assert model.coupling_ == pytest.approx(best(sums), abs=1e-12)
        model = pickle.loads(pickle.dumps(model))
    assert model.coupling_ > 0.3
    new, labels = ordered(2000, seed=5)
    at = np.arange(len(labels)), labels
    plain = log_probabilities(model.decision_function(new))[at].mean()
    assert model.predict_log_proba(new)[at].mean() > plain + 0.02


def test_chunks_of_two_classes():
    model = LinearClassifier(prior_variance=1.0)
    for part in np.array_split(np.arange(len(Y)), 3):
        model.partial_fit(X[part], Y[part] > 0, classes=[False, True])
    assert model.coupling_ == 0.0


# ---- what it is worth ----


def noise(n, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 4)), rng.integers(3, size=n)


KINDS = {"ordered": ordered, "softmax": softmax, "noise": noise}


@pytest.mark.full
@pytest.mark.parametrize("make", [LinearClassifier, GPClassifier])
@pytest.mark.parametrize("kind", KINDS)
def test_new_rows_are_predicted_no_worse_than_by_normalising(kind, make):
    gains = []
    for seed in range(3):
        rows, labels = KINDS[kind](2150, seed)
        new, truth = rows[150:], labels[150:]
        model = make().fit(rows[:150], labels[:150])
        at = np.arange(len(truth)), truth
        plain = log_probabilities(model.decision_function(new))[at].mean()
        gains.append(model.predict_log_proba(new)[at].mean() - plain)
    assert min(gains) > -0.01  # of eight seeds the least is -.0034
    if kind == "ordered" and make is LinearClassifier:
        assert min(gains) > 0.03


@pytest.mark.parametrize("load", [load_iris, load_wine])
def test_the_default_is_ahead_of_logistic_regression(load):
    rows, kinds = load(return_X_y=True)
    losses = [
        -cross_val_score(
            make_pipeline(StandardScaler(), model), rows, kinds, scoring="neg_log_loss", cv=5
        ).mean()
        for model in (LinearClassifier(), LogisticRegression())
    ]
    assert losses[0] < losses[1]
