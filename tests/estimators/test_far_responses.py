"""Regressors of y far from 0: a constant that is added to y moves the intercept, and nothing else.

Known by algebra: h and y have one unit, and the prior of the intercept is at the location of y.
"""

import pickle

import numpy as np
import pytest
from scipy import sparse, stats

import epfast
from epfast import ADF, EP, GPRegressor, LinearRegressor, losses

pytest.importorskip("sklearn")

from epfast.estimators import linear

pytestmark = [
    pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::epfast.estimators.EvidenceWarning"),
]

RNG = np.random.default_rng(3)
N = 50
X = RNG.normal(size=(N, 2))
Y = X @ [1.0, -0.5] + 0.4 * RNG.standard_t(4, size=N)
TOP = float(np.quantile(Y, 0.8))
WIDE = RNG.normal(size=(20, 30))
OFFSET = 2.0 * RNG.normal(size=N)
WEIGHTS = RNG.integers(0, 4, N)
for shared in (X, Y, WIDE, OFFSET, WEIGHTS):
    shared.flags.writeable = False


def pair(y, unit):
    """An interval about each y."""
    return np.column_stack([y - 0.2 * unit, y + 0.3 * unit])


#: of y times a unit, with a constant added: the loss, y that it takes, and what is learnt
MAKERS = {
    "gaussian": lambda y, unit, at: ("gaussian", y, None),
    "student_t": lambda y, unit, at: ("student_t", y, None),
    "laplace_noise": lambda y, unit, at: ("laplace_noise", y, None),
    "quantile": lambda y, unit, at: (losses.Quantile(0.3), y, None),
    "interval": lambda y, unit, at: ("interval", pair(y, unit), None),
    "censored": lambda y, unit, at: (
        losses.Censored(upper=unit * TOP + at),
        np.minimum(y, unit * TOP + at),
        None,
    ),
    "outliers": lambda y, unit, at: (
        losses.Contaminated(losses.Gaussian(), 0.1, -np.log(20.0 * unit)),
        y,
        ("share", "variance"),
    ),
    "outliers of Student's t": lambda y, unit, at: (
        losses.Contaminated(losses.StudentT(), 0.1, -np.log(20.0 * unit)),
        y,
        ("share", "scale"),
    ),
}


def test_no_loss_is_left_out():
    located = {name for name, kind in losses.NAMED.items() if kind().in_units_of_y}
    assert located <= set(MAKERS)


def fitted(kind, name, unit, shift, **given):
    at = unit * shift
    loss, y, learn = MAKERS[name](unit * Y + at, unit, at)
    learn = () if kind is GPRegressor else learn
    return kind(loss=loss, learn=learn, **given).fit(X, y), y


def numbers(model, y, unit, at):
    """What a model says, in units of y and from the constant on."""
    mean, sd = model.predict(X, return_std=True)
    quantiles = model.predict_quantile(X[:5], [0.1, 0.9])
    density = model.score_samples(X, y)
    moved = [mean, quantiles, model.predict_latent(X)[0]]
    if isinstance(model, LinearRegressor):  # draws of a process take a root that rounding turns
        moved.append(model.sample_y(X[:5], 3, random_state=1))
        weights = model.posterior_.mean.copy()
        assert weights[-1] == pytest.approx(model.intercept_, rel=1e-14)
        low = model.summary().iloc[-1 if len(model.summary()) == 3 else 2, [0, 2, 3]].to_numpy()
        moved += [low, np.array([model.intercept_])]
        still = [weights[:2] / unit, model.coef_ / unit]
    else:
        still = []
    parts = [(part - at) / unit for part in moved] + still + [sd / unit, density]
    return np.concatenate([np.ravel(part) for part in parts])


@pytest.mark.parametrize(("shift", "unit"), [(10.0, 1.0), (1e3, 1e-3), (-1e6, 1e3), (1e6, 1.0)])
@pytest.mark.parametrize("name", MAKERS)
def test_a_constant_moves_the_intercept_alone(name, shift, unit):
    near, y = fitted(LinearRegressor, name, unit, 0.0)
    far, far_y = fitted(LinearRegressor, name, unit, shift)
    expected = numbers(near, y, unit, 0.0)
    np.testing.assert_allclose(numbers(far, far_y, unit, unit * shift), expected, atol=1e-7)
    assert far.log_evidence_ == pytest.approx(near.log_evidence_, abs=1e-7)
    assert far.posterior_.log_evidence == pytest.approx(near.log_evidence_, abs=1e-7)
    assert (far.converged_, far.n_lost_) == (near.converged_, near.n_lost_)
    for parameter in near.loss_.learnable:
        found, right = (getattr(model.loss_, parameter) for model in (far, near))
        assert found == pytest.approx(right, rel=1e-7)
    assert far.prior_variance_ == pytest.approx(near.prior_variance_, rel=1e-7)


@pytest.mark.parametrize("name", MAKERS)
def test_a_process_has_it_in_its_mean(name):
    kernels = pytest.importorskip("sklearn.gaussian_process.kernels")
    given = {"kernel": kernels.RBF(2.0), "optimizer": None}
    (near, y), (far, far_y) = (fitted(GPRegressor, name, 1.0, at, **given) for at in (0.0, 1e6))
    expected = numbers(near, y, 1.0, 0.0)
    np.testing.assert_allclose(numbers(far, far_y, 1.0, 1e6), expected, atol=1e-6)
    assert far.log_evidence_ == pytest.approx(near.log_evidence_, abs=1e-6)


def test_the_evidence_is_that_of_the_marginal_density():
    """y is normal: mean at its average, the prior of the intercept at the means of the columns."""
    y = Y + 500.0
    model = LinearRegressor(loss=losses.Gaussian(0.3), learn=(), prior_variance=2.0).fit(X, y)
    centred = X - X.mean(axis=0)
    covariance = 2.0 * centred @ centred.T + 100.0 * np.var(y) + 0.3 * np.eye(N)
    right = stats.multivariate_normal(np.full(N, y.mean()), covariance).logpdf(y)
    assert model.log_evidence_ == pytest.approx(right, abs=1e-7)
    assert model.posterior_.log_evidence == pytest.approx(right, abs=1e-7)
    precision = model.posterior_.problem.prior.precision
    prior_mean = np.linalg.solve(precision, model.posterior_.problem.prior.shift)
    np.testing.assert_allclose(prior_mean, [0.0, 0.0, y.mean()], atol=1e-8)


#: estimators of every form, store and factor that a regressor has
FORMS = {
    "average": (X, {"loss": "student_t", "integrate": True}),
    "wide": (WIDE, {"loss": "student_t", "integrate": False}),
    "wide, average": (WIDE, {"integrate": True}),
    "diagonal": (X, {"loss": "student_t", "posterior": "factorized"}),
    "diagonal, sparse": (sparse.csr_matrix(X), {"posterior": "factorized"}),
    "minibatches": (X, {"batch_size": 5}),
    "minibatches, diagonal": (X, {"batch_size": 5, "posterior": "factorized"}),
    "minibatches, sparse": (
        sparse.csr_matrix(X),
        {"batch_size": 5, "posterior": "factorized"},
    ),
    "one pass": (X, {"learn": (), "schedule": ADF(2)}),
    "shared sites": (X, {"learn": (), "schedule": epfast.SEP()}),
    "groups": (X, {"learn": (), "schedule": epfast.DSEP(groups=2)}),
    "shards": (X, {"schedule": epfast.DEP(shards=2)}),
    "relaxed": (X, {"learn": (), "scheme": epfast.schemes.Relaxed(weight=0.03)}),
    "chunks": (X, {"loss": "laplace_noise", "schedule": EP(order="chunked")}),
    "sparse": (sparse.csr_matrix(X), {"loss": "student_t"}),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_posterior_is_that_of_the_users_y(form, tmp_path):
    """Predictions, copies, files, cavities, new rows and the residual of ``posterior_``."""
    rows, given = FORMS[form]
    y, at = Y[: rows.shape[0]], 1e5
    near, far = (LinearRegressor(**given).fit(rows, one) for one in (y, y + at))
    post, other = far.posterior_, near.posterior_
    post.save(tmp_path / "post.npz")
    for one in (post, pickle.loads(pickle.dumps(post)), epfast.load(tmp_path / "post.npz")):
        mean, variance = one.predict_latent(rows)
        np.testing.assert_allclose(mean - at, other.predict_latent(rows)[0], atol=1e-7)
        np.testing.assert_allclose(variance, other.predict_latent(rows)[1], rtol=1e-7)
        # rounding of natural parameters about the origin, in those that were written
        assert one.log_evidence == pytest.approx(other.log_evidence, abs=1e-2)
    assert post.log_evidence == far.log_evidence_ == pytest.approx(near.log_evidence_, abs=1e-6)
    np.testing.assert_allclose(
        post.log_predictive(rows, y + at), other.log_predictive(rows, y), atol=1e-6
    )
    if "posteriors" not in vars(post):
        assert post.residual == pytest.approx(other.residual, abs=1e-6, nan_ok=True)
    if form != "one pass":
        np.testing.assert_allclose(post.loo_log_predictive(), other.loo_log_predictive(), atol=1e-5)
    if hasattr(post, "partial_fit") and form not in ("minibatches", "shared sites", "groups"):
        longer = post.partial_fit(rows[:4], y[:4] + at).predict_latent(rows)[0]
        expected = other.partial_fit(rows[:4], y[:4]).predict_latent(rows)[0]
        np.testing.assert_allclose(longer - at, expected, atol=1e-4)
    if form not in ("one pass", "relaxed"):
        assert post.check(200).verdict == other.check(200).verdict


def test_offsets_of_the_user_are_beside_the_location():
    for name in ("student_t", "interval", "outliers of Student's t", "quantile"):
        loss, y, learn = MAKERS[name](Y, 1.0, 0.0)
        far = MAKERS[name](Y + OFFSET + 1e6, 1.0, 1e6)[1]
        near = LinearRegressor(loss=loss, learn=learn).fit(X, y, WEIGHTS)
        model = LinearRegressor(loss=loss, learn=learn).fit(X, far, WEIGHTS, OFFSET + 4.0)
        np.testing.assert_allclose(model.predict(X) - 1e6 + 4.0, near.predict(X), atol=1e-4)
        found = model.score_samples(X, far, offset=OFFSET + 4.0)
        np.testing.assert_allclose(found, near.score_samples(X, y), atol=1e-4)
        again = model.posterior_.partial_fit(X[:3], far[:3], offset=OFFSET[:3] + 4.0)
        assert abs(again.mean[-1] - 1e6) < 10.0


@pytest.mark.parametrize("intercept", [False, 9.0])
def test_without_a_free_intercept_nothing_is_taken_off(intercept):
    """Then y + c is another problem: the posterior is that of fit_linear, whose prior is at 0."""
    loss = losses.StudentT(4.0, 0.5)
    given = {"loss": loss, "prior_variance": 2.0}
    own = {"intercept_variance": intercept} if intercept else {"fit_intercept": False}
    model = LinearRegressor(**given, learn=(), **own).fit(X, Y + 3.0)
    schedule = EP(sweeps=200)
    post = epfast.fit_linear(X, Y + 3.0, **given, intercept=intercept, schedule=schedule)
    np.testing.assert_array_equal(model.posterior_.mean, post.mean)
    assert model.intercept_ == (post.mean[2] if intercept else 0.0)
    assert model.log_evidence_ == post.log_evidence


@pytest.mark.parametrize("loss", ["gaussian", "student_t"])
def test_y_that_is_one_number_scales(loss):
    """Its size is its only unit: predictions of c y are c times those of y."""
    for at in (1e-6, 1.0, 1e6):
        model = LinearRegressor(loss=loss, integrate=False).fit(X, np.full(N, at))
        np.testing.assert_allclose(model.predict(X), at, rtol=1e-3)


def test_a_warm_start_follows_y():
    """The sites of the fit before are those of y; they serve y that lies elsewhere."""
    given = {"loss": losses.StudentT(4.0, 0.5), "learn": (), "prior_variance": 1.0}
    cold = LinearRegressor(**given).fit(X, Y + 1e6)
    model = LinearRegressor(**given, warm_start=True).fit(X, Y).fit(X, Y + 1e6)
    np.testing.assert_allclose(model.posterior_.mean, cold.posterior_.mean, atol=1e-4)
    again = LinearRegressor(**given, warm_start=True).fit(X, Y + 1e6).fit(X, Y + 1e6)
    assert again.n_iter_ <= 3 < cold.n_iter_


def test_the_posterior_of_an_interrupted_fit_is_that_of_y(monkeypatch):
    final = linear.final

    def pressed(search, *given):
        raise epfast.Interrupted(final(search, *given).posteriors[0])

    monkeypatch.setattr(linear, "final", pressed)
    with pytest.raises(epfast.Interrupted) as caught:
        LinearRegressor(loss="student_t", integrate=False).fit(X, Y + 1e6)
    monkeypatch.undo()
    model = LinearRegressor(loss="student_t", integrate=False).fit(X, Y + 1e6)
    np.testing.assert_allclose(caught.value.posterior.mean, model.posterior_.mean, atol=1e-6)
