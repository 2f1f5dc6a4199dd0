"""LinearClassifier in chunks, from warm starts, in threads, and in scikit-learn's machinery."""

import gc
import pickle
import warnings
import weakref

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast import ADF, EP, fit_linear

pytest.importorskip("sklearn")

import sklearn
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from epfast import LinearClassifier
from tests.oracles.data import prior_of_ones

pytestmark = pytest.mark.filterwarnings("default::epfast.estimators.EvidenceWarning")

RNG = np.random.default_rng(11)
N, D = 240, 4
X = RNG.normal(loc=[0.0, 1.0, 0.0, -2.0], size=(N, D))
LATENT = X @ [1.5, -1.0, 0.5, 0.0] + 0.7 + RNG.logistic(size=N)
Y = np.where(LATENT > 0, 1, -1)
THREE = np.digitize(LATENT, [-1.0, 1.0])
ONES = np.column_stack([X, np.ones(N)])
PRIOR = np.array([2.0, 2.0, 2.0, 2.0, 100.0])
CUT = slice(0, 150), slice(150, None)
for shared in (X, Y, THREE):
    shared.flags.writeable = False


EQUIVALENCE = (
    "check_sample_weight_equivalence_on_dense_data",
    "check_sample_weight_equivalence_on_sparse_data",
)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.filterwarnings("default::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(
    [LinearClassifier(posterior="factorized", prior_variance=1.0)],
    expected_failed_checks=lambda estimator: dict.fromkeys(
        EQUIVALENCE, "repeated and weighted rows agree to the tolerance of the schedule"
    ),
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


# ---- chunks ----


@pytest.mark.parametrize("weighted", [False, True])
def test_partial_fit_is_that_of_the_posterior(weighted):
    weights = RNG.uniform(0.5, 3.0, size=N) if weighted else None
    model = LinearClassifier(prior_variance=2.0)
    schedule = EP(sweeps=200)
    for k, part in enumerate(CUT):
        given = {} if weights is None else {"sample_weight": weights[part]}
        model.partial_fit(X[part], Y[part], classes=None if k else [-1, 1], **given)
    one, two = (None if weights is None else weights[part] for part in CUT)
    prior = prior_of_ones(2.0, 100.0, X[CUT[0]], one)
    post = fit_linear(
        ONES[CUT[0]], Y[CUT[0]], prior_precision=prior, schedule=schedule, weights=one
    ).partial_fit(ONES[CUT[1]], Y[CUT[1]], schedule=schedule, weights=two)
    np.testing.assert_array_equal(model.posterior_.mean, post.mean)
    np.testing.assert_array_equal(model.posterior_.precision, post.precision)
    assert model.log_evidence_ == pytest.approx(post.log_evidence, rel=1e-13)
    assert model.posterior_.sites.shift.shape == (N,)
    np.testing.assert_array_equal(model.posterior_.problem.data.X, ONES)


def test_one_pass_in_chunks_is_one_pass():
    """The prior of its intercept is at the mean of the first chunk."""
    model, chunks = LinearClassifier(prior_variance=2.0, schedule=ADF()), np.array_split(X, 7)
    prior = prior_of_ones(2.0, 100.0, chunks[0])
    whole = fit_linear(ONES, Y, prior_precision=prior, schedule=ADF())
    for rows, y in zip(chunks, np.array_split(Y, 7), strict=True):
        model.partial_fit(rows, y, classes=[-1, 1])
    np.testing.assert_allclose(model.coef_[0], whole.mean[:D], rtol=1e-9)
    np.testing.assert_allclose(model.coef_covariance_, whole.covariance[:D, :D], rtol=1e-8)
    assert model.log_evidence_ == pytest.approx(whole.log_evidence)
    # no row stays behind
    assert model.posterior_.problem.data.X is None


@pytest.mark.parametrize("schedule", [None, ADF()])
def test_factorised_chunks(schedule):
    model = LinearClassifier(posterior="factorized", prior_variance=2.0, schedule=schedule)
    post = None
    for part in CUT:
        model.partial_fit(X[part], Y[part], classes=[-1, 1])
        given = {"prior_variance": PRIOR} if post is None else {"start": post}
        post = fit_linear(ONES[part], Y[part], posterior="factorized", schedule=ADF(), **given)
    np.testing.assert_array_equal(model.posterior_.mean, post.mean)
    np.testing.assert_array_equal(model.posterior_.variance, post.variance)
    assert model.log_evidence_ == pytest.approx(post.log_evidence, rel=1e-13)


def test_partial_fit_goes_on_from_fit():
    model = LinearClassifier(standardize=False).fit(X[CUT[0]], Y[CUT[0]])
    found, before = model.prior_variance_, model.posterior_
    model.partial_fit(X[CUT[1]], Y[CUT[1]])
    assert model.prior_variance_ == found != 1.0
    after = before.partial_fit(X[CUT[1]], Y[CUT[1]], schedule=EP(sweeps=200, power=1.0))
    np.testing.assert_array_equal(model.posterior_.mean, after.mean)
    # a fresh fit begins anew; chunks alone have no evidence to search by
    np.testing.assert_array_equal(clone(model).fit(X, Y).coef_, model.fit(X, Y).coef_)
    fresh = clone(model).partial_fit(X, Y, classes=[-1, 1])
    assert fresh.prior_variance_ == 1.0


def test_chunks_of_several_classes():
    middle = np.flatnonzero(THREE == 1)
    order = RNG.permutation(np.setdiff1d(np.arange(N), middle[:48]))
    order = np.append(order, middle[:48])  # the last chunk has one class
    assert len(set(THREE[order[192:]])) == 1
    names = np.array(["low", "mid", "high"])[THREE]
    model = LinearClassifier(prior_variance=1.0)
    for part in np.array_split(order, 5):
        model.partial_fit(X[part], names[part], classes=["low", "mid", "high"])
    whole = LinearClassifier(prior_variance=1.0).fit(X, names)
    np.testing.assert_array_equal(model.classes_, ["high", "low", "mid"])
    # the sites of a chunk stay as they are: near the fit of all rows, not the same
    assert np.abs(model.predict_proba(X) - whole.predict_proba(X)).mean() < 0.1
    again = pickle.loads(pickle.dumps(model))
    part = order[:50]
    np.testing.assert_array_equal(
        again.partial_fit(X[part], names[part]).coef_, model.partial_fit(X[part], names[part]).coef_
    )


@pytest.mark.parametrize(
    ("arguments", "call", "match"),
    [
        ({}, {}, "classes is None; allowed in the first call"),
        ({}, {"classes": [1]}, r"classes is \[1\]; allowed: two classes"),
        ({}, {"classes": [1, 2]}, r"y has the labels \[-1\]; allowed: those of classes"),
        ({"class_weight": "balanced"}, {"classes": [-1, 1]}, "class_weight is 'balanced'"),
        (
            {"posterior": "factorized", "schedule": EP()},
            {"classes": [-1, 1]},
            "schedule is EP.*allowed in partial_fit with posterior='factorized': None or ADF",
        ),
        ({}, {"classes": [-1, 1], "sample_weight": -np.ones(N)}, "sample_weight has a minimum"),
    ],
)
def test_bad_chunks(arguments, call, match):
    with pytest.raises(ValueError, match=match):
        LinearClassifier(prior_variance=1.0, **arguments).partial_fit(X, Y, **call)


def test_chunks_that_contradict_the_first():
    model = LinearClassifier(prior_variance=1.0).partial_fit(X, Y, classes=[-1, 1])
    before = model.coef_.copy()
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[:, :2], Y)
    with pytest.raises(ValueError, match=r"allowed after the first call: None, or \[-1, 1\]"):
        model.partial_fit(X, Y, classes=[-1, 1, 2])
    with pytest.raises(ValueError, match=r"y has the labels \[0\]"):
        model.partial_fit(X, (Y + 1) // 2)
    np.testing.assert_array_equal(model.coef_, before)


# ---- starts, threads, seeds ----


def test_warm_start():
    tight = EP(sweeps=200, tol=1e-10)
    model = LinearClassifier(prior_variance=1.0, warm_start=True, schedule=tight).fit(X, THREE)
    first, sweeps = model.coef_.copy(), model.n_iter_
    model.fit(X, THREE)
    assert model.n_iter_ < sweeps
    np.testing.assert_allclose(model.coef_, first, rtol=1e-7)
    # other labels, other rows, other numbers of classes: the same as from flat sites
    for rows, y in ((X, THREE[::-1]), (X[:100], THREE[:100]), (X, Y)):
        cold = LinearClassifier(prior_variance=1.0, schedule=tight).fit(rows, y)
        np.testing.assert_allclose(model.fit(rows, y).coef_, cold.coef_, rtol=1e-7)
    one_pass = LinearClassifier(prior_variance=1.0, warm_start=True, schedule=ADF()).fit(X, Y)
    once = one_pass.coef_.copy()
    np.testing.assert_array_equal(one_pass.fit(X, Y).coef_, once)  # not counted again
    searched = LinearClassifier(warm_start=True, schedule=tight).fit(X, Y)
    found = searched.prior_variance_
    assert searched.fit(X, Y).prior_variance_ == pytest.approx(found, rel=1e-6)


@pytest.mark.parametrize("variance", [1.0, "evidence"])
def test_threads_change_nothing(variance):
    one, two = (
        LinearClassifier(prior_variance=variance, n_jobs=n_jobs).fit(X, THREE)
        for n_jobs in (None, 2)
    )
    np.testing.assert_array_equal(one.coef_, two.coef_)
    assert one.prior_variance_ == two.prior_variance_
    for model in (one, two):
        model.partial_fit(X, THREE)
    np.testing.assert_array_equal(one.coef_, two.coef_)


@pytest.mark.filterwarnings("ignore:.*sites were refused:epfast.ConvergenceWarning")
@pytest.mark.parametrize(
    "arguments",
    [
        {"schedule": EP(3, 0.0, order="shuffled")},
        {"scheme": epfast.ImportanceSampling(samples=50), "schedule": EP(3, 0.0)},
        {"scheme": "importance", "schedule": EP(3, 0.0)},
    ],
    ids=["order", "scheme", "name"],
)
def test_random_state(arguments):
    def coef(state):
        model = LinearClassifier(prior_variance=1.0, random_state=state, **arguments)
        return model.fit(X, Y).coef_

    np.testing.assert_array_equal(coef(None), coef(None))
    np.testing.assert_array_equal(coef(5), coef(5))
    assert (coef(5) != coef(6)).any()


def test_random_state_is_unused_by_default():
    one, two = (LinearClassifier(random_state=k).fit(X, Y).coef_ for k in (1, 2))
    np.testing.assert_array_equal(one, two)


# ---- scikit-learn's machinery ----


def test_metadata_routing():
    weights = RNG.integers(1, 4, size=N).astype(float)
    with sklearn.config_context(enable_metadata_routing=True):
        model = LinearClassifier(prior_variance=1.0)
        asked = model.set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        asked.set_partial_fit_request(sample_weight=True, classes=True)
        pipe = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), asked)
        routed = cross_validate(
            pipe, X, Y, params={"sample_weight": weights}, cv=3, return_estimator=True
        )
        pipe.fit(X, Y, sample_weight=weights)
    rows = StandardScaler().fit_transform(X)
    direct = LinearClassifier(prior_variance=1.0).fit(rows, Y, sample_weight=weights)
    np.testing.assert_allclose(pipe[-1].coef_, direct.coef_, rtol=1e-9)
    assert len(routed["test_score"]) == 3


def test_set_output_keeps_names():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcd"))
    pipe = make_pipeline(StandardScaler(), LinearClassifier()).set_output(transform="pandas")
    pipe.fit(frame, Y)
    assert list(pipe[-1].feature_names_in_) == list("abcd")
    assert pipe.predict(frame).shape == (N,)


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csc_array])
def test_sparse_rows(kind):
    rows = np.where(np.abs(X) > 0.5, X, 0.0)
    dense = LinearClassifier().fit(rows, Y)
    model = LinearClassifier().fit(kind(rows), Y)
    np.testing.assert_allclose(model.coef_, dense.coef_, rtol=1e-6)
    np.testing.assert_allclose(
        model.predict_proba(kind(rows)), dense.predict_proba(rows), rtol=1e-6
    )
    ard = LinearClassifier(prior_variance="ard").fit(kind(rows), Y)
    assert ard.log_evidence_ >= model.log_evidence_
    model = LinearClassifier(prior_variance=1.0)
    for part in CUT:
        model.partial_fit(kind(rows[part]), Y[part], classes=[-1, 1])
    assert model.score(kind(rows), Y) > 0.7


def test_factorised_with_weights_and_sparse_rows():
    weights = RNG.integers(1, 4, size=N)
    rows = np.where(np.abs(X) > 0.5, X, 0.0)
    model = LinearClassifier(posterior="factorized", schedule=EP(3000, 1e-8))
    weighted = clone(model).fit(sparse.csr_matrix(rows), Y, sample_weight=weights)
    repeated = clone(model).fit(rows.repeat(weights, 0), Y.repeat(weights))
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-4)


def test_powers_that_are_refused_have_their_own_name():
    moments = epfast.CustomSite(lambda m, v: (m, m, m))
    with pytest.raises(ValueError, match=r"^sample_weight is 0.5; allowed with CustomSite: 1"):
        LinearClassifier(loss=moments).fit(X, Y, sample_weight=np.full(N, 0.5))


def test_covariance_is_made_when_it_is_read():
    model = LinearClassifier(prior_variance=1.0)
    assert not hasattr(model, "coef_covariance_")
    with pytest.raises(NotFittedError):
        model.predict(X)
    rows = sparse.random(60, 3000, density=0.01, random_state=0, format="csr").toarray()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.set_params(posterior="factorized", schedule=EP(2, 0.0)).fit(rows, Y[:60])
    assert "coef_covariance_" not in vars(model)
    assert model.fit(X, Y).coef_covariance_.shape == (4, 4)


@pytest.mark.skipif(not hasattr(epfast.FullPosterior, "summary"), reason="no summary of posteriors")
def test_summary_has_names():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcd"))
    model = LinearClassifier(prior_variance=1.0).fit(frame, Y)
    assert list(model.summary().index) == [*"abcd", "intercept"]
    np.testing.assert_allclose(model.summary()["mean"][:4], model.coef_[0])
    model = LinearClassifier(prior_variance=1.0, fit_intercept=False).fit(X, THREE)
    tables = model.summary(level=0.5)
    assert list(tables) == [0, 1, 2]
    assert list(tables[1].index) == ["x0", "x1", "x2", "x3"]
    np.testing.assert_allclose(tables[2]["mean"], model.coef_[2])


@pytest.mark.full
@pytest.mark.parametrize("name", EQUIVALENCE)
def test_weighted_rows_are_repeated_rows(name):
    schedule = EP(3000, 1e-9)
    model = LinearClassifier(posterior="factorized", prior_variance=1.0, schedule=schedule)
    getattr(estimator_checks, name)("LinearClassifier", model)


def test_a_fit_is_freed_as_its_last_name_goes():
    """No frame keeps it until the garbage collector comes: of large data several would pile up."""
    model = LinearClassifier(prior_variance=1.0).fit(X, Y)
    alive = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("loss", ["probit", "logistic"])
def test_an_intercept_of_sparse_rows(loss):
    rows = sparse.csr_matrix(X * (np.abs(X) > 1.0))
    given = {"loss": loss, "posterior": "factorized", "prior_variance": 2.0, "schedule": ADF()}
    model = LinearClassifier(**given).fit(rows, Y)
    dense = LinearClassifier(**given).fit(rows.toarray(), Y)
    np.testing.assert_allclose(model.coef_, dense.coef_, rtol=1e-10)
    np.testing.assert_allclose(model.intercept_, dense.intercept_, rtol=1e-10)
    np.testing.assert_allclose(model.predict_proba(rows), dense.predict_proba(rows.toarray()))
    check, plain = (m.posterior_.check(100) for m in (model, dense))
    assert check.log_evidence == pytest.approx(plain.log_evidence, rel=1e-9)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.coef_, model.coef_)
    more = model.posterior_.with_rows(rows, Y)
    assert more.problem.shape == (N, D + 1)
