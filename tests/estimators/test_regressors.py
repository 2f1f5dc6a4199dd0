"""LinearRegressor and GPRegressor: scikit-learn's checks, independent truth, and properties."""

import inspect
import pickle

import numpy as np
import pytest
from scipy import optimize, special, stats

import epfast
from epfast import EP, GPRegressor, LinearRegressor, losses
from epfast.estimators.search import LossParameters
from epfast.inference.learning import derivatives_by_loss

pytest.importorskip("sklearn")

from sklearn import config_context
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

pytestmark = [
    pytest.mark.filterwarnings("default::sklearn.exceptions.SkipTestWarning"),
    pytest.mark.filterwarnings("default::epfast.estimators.EvidenceWarning"),
]

RNG = np.random.default_rng(13)
N, D = 60, 3
X = RNG.normal(size=(N, D))
H = X @ [0.8, -0.5, 0.0] + 0.7
Y = H + 0.4 * RNG.normal(size=N)
NEW = RNG.normal(size=(7, D))
for shared in (X, H, Y, NEW):
    shared.flags.writeable = False
KERNEL = ConstantKernel(2.0) * RBF(1.5)
BOTH = [LinearRegressor(), GPRegressor(KERNEL)]
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(100)
WEIGHTS = WEIGHTS / WEIGHTS.sum()

#: a loss, and y that it takes
CASES = {
    "gaussian": ("gaussian", Y),
    "student_t": ("student_t", Y),
    "laplace_noise": ("laplace_noise", Y),
    "quantile": (losses.Quantile(0.8), Y),
    "censored": (losses.Censored(upper=1.0), np.minimum(Y, 1.0)),
    "interval": ("interval", np.column_stack([np.floor(Y), np.floor(Y) + 1.0])),
    "poisson": ("poisson", RNG.poisson(np.exp(H)).astype(float)),
    "negative_binomial": ("negative_binomial", RNG.poisson(np.exp(H) * RNG.gamma(2.0, 0.5, N))),
    "gamma_noise": ("gamma_noise", np.exp(H) * RNG.gamma(3.0, 1.0 / 3.0, N)),
    "weibull": ("weibull", np.column_stack([np.exp(Y), RNG.random(N) < 0.7])),
    "ordinal": (losses.Ordinal((-1.0, 1.0)), np.digitize(Y, [0.0, 1.0])),
}
REAL = ["gaussian", "student_t", "laplace_noise", "quantile", "censored"]


def fitted(kind, name, **given):
    """At the most probable hyper-parameters; averages are in test_integrated_regressors.py."""
    loss, y = CASES[name]
    arguments = {"integrate": False} | ({"kernel": KERNEL} if kind is GPRegressor else {})
    return kind(loss=loss, **arguments | given).fit(X, y)


def tails(model, m, v):
    """P(y <= x) of a row whose latent value is N(m, v), as a function of x; by quadrature."""
    h, loss = m + np.sqrt(v) * NODES, model.loss_
    given = {
        "gaussian": lambda x: stats.norm.cdf(x, h, np.sqrt(getattr(loss, "variance", 1.0))),
        "poisson": lambda x: stats.poisson.cdf(x, np.exp(h)),
        "gamma": lambda x: stats.gamma.cdf(
            x, getattr(loss, "shape", 1.0), scale=np.exp(h) / getattr(loss, "shape", 1.0)
        ),
        "student_t": lambda x: stats.t.cdf(x, loss.df, h, loss.scale),
    }[loss.name]
    return lambda x: WEIGHTS @ given(x)


# of equal rows without noise a search tells that rounding spoils some points
@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.cover(lambda estimator, check: check.func.__name__)
@parametrize_with_checks([LinearRegressor(), GPRegressor(optimizer=None)])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.cover(lambda estimator, check: check.func.__name__)
@parametrize_with_checks([GPRegressor(), LinearRegressor(loss="laplace_noise")])
def test_scikit_learn_checks_of_searches(estimator, check):
    check(estimator)


# ---- the evidence ----


@pytest.mark.parametrize("kind", [LinearRegressor, GPRegressor])
@pytest.mark.parametrize("name", CASES)
def test_parameters_are_where_the_evidence_is_flat(kind, name):
    """By central differences of log evidences of fits with given numbers."""
    model = fitted(
        kind, name, **({} if kind is GPRegressor else {"prior_scale": None, "standardize": False})
    )
    loss, y = model.loss_, CASES[name][1]
    names = loss.learnable[:1]
    if kind is GPRegressor:
        shift = np.full(N, model.mean_)

        def evidence(found, scale):
            K = model.kernel_(X) * scale
            schedule = epfast.EP(sweeps=300, tol=1e-10)
            return epfast.fit_gp(K, y, loss=found, offset=shift, schedule=schedule).log_evidence
    else:
        intercept = 1.0 / model.posterior_.problem.prior.precision[-1, -1]

        def evidence(found, scale):
            return epfast.fit_linear(
                X,
                y,
                loss=found,
                prior_variance=model.prior_variance_ * scale,
                intercept=intercept,
                schedule=epfast.EP(sweeps=300, tol=1e-11),
            ).log_evidence

    step = 1e-3
    for scaled in (1.0, -1.0):
        assert evidence(loss, 1.0) >= evidence(loss, np.exp(0.1 * scaled)) - 1e-6
    slope = (evidence(loss, np.exp(step)) - evidence(loss, np.exp(-step))) / (2.0 * step)
    assert abs(slope) < 5e-3
    for which in names if name != "ordinal" else ():
        value = getattr(loss, which)
        up, down = (
            evidence(loss.with_parameters(**{which: value * np.exp(sign * step)}), 1.0)
            for sign in (1.0, -1.0)
        )
        assert abs(up - down) / (2.0 * step) < 5e-3


def test_gaussian_noise_is_bayesian_ridge():
    """scikit-learn's fixed point of the same evidence, y and X centred in place of an intercept."""
    Xc, yc = X - X.mean(axis=0), Y - Y.mean()
    flat = {"alpha_1": 0.0, "alpha_2": 0.0, "lambda_1": 0.0, "lambda_2": 0.0}
    peer = BayesianRidge(tol=1e-14, max_iter=10_000, fit_intercept=False, **flat).fit(Xc, yc)
    tight = epfast.EP(sweeps=200, tol=1e-10)
    model = LinearRegressor(
        fit_intercept=False, prior_scale=None, standardize=False, schedule=tight
    ).fit(Xc, yc)
    assert model.loss_.variance == pytest.approx(1.0 / peer.alpha_, rel=1e-6)
    assert model.prior_variance_ == pytest.approx(1.0 / peer.lambda_, rel=1e-5)
    np.testing.assert_allclose(model.coef_, peer.coef_, rtol=1e-6)
    mean, std = peer.predict(NEW, return_std=True)
    np.testing.assert_allclose(model.predict(NEW, return_std=True), (mean, std), rtol=1e-5)


def test_gaussian_noise_is_gaussian_process_regression():
    """scikit-learn's: predictions, evidence and gradient, at given and at found numbers."""
    noise = 0.09
    peer = GaussianProcessRegressor(KERNEL + WhiteKernel(noise), alpha=0.0, optimizer=None)
    peer.fit(X, Y)
    loss = losses.Gaussian(noise)
    model = GPRegressor(KERNEL, loss=loss, optimizer=None, center=False).fit(X, Y)
    theirs = peer.predict(NEW, return_std=True)
    np.testing.assert_allclose(model.predict(NEW, return_std=True), theirs, rtol=1e-10, atol=1e-10)
    value, slope = model.log_marginal_likelihood(KERNEL.theta, eval_gradient=True)
    all_theta = np.append(KERNEL.theta, np.log(noise))
    expected, gradient = peer.log_marginal_likelihood(all_theta, eval_gradient=True)
    assert value == pytest.approx(expected, abs=1e-8)
    np.testing.assert_allclose(slope, gradient[:-1], atol=1e-8)
    of_noise = model.posterior_.loss_gradient()["variance"] * noise
    assert of_noise == pytest.approx(gradient[-1], abs=1e-8)
    peer = GaussianProcessRegressor(KERNEL + WhiteKernel(noise), alpha=0.0).fit(X, Y)
    model = GPRegressor(KERNEL, center=False, integrate=False).fit(X, Y)
    assert model.log_evidence_ >= peer.log_marginal_likelihood_value_ - 1e-4


@pytest.mark.parametrize("shape", [(15, 30), (40, 5)])
@pytest.mark.parametrize("variance", [1e-2, 1e-5, 1e-7])
def test_evidence_of_sharp_noise(shape, variance):
    """In the n x n form the digits are those of the problem, not of the sites."""
    rng = np.random.default_rng(1)
    rows, y = rng.random(shape), rng.integers(0, 3, shape[0]).astype(float)
    K = rows @ rows.T + 0.3 * np.eye(len(y))
    post = epfast.fit_gp(K, y, loss=losses.Gaussian(variance))
    factor = np.linalg.cholesky(K + variance * np.eye(len(y)))
    half = np.linalg.solve(factor, y)
    expected = -0.5 * half @ half - np.log(np.diag(factor)).sum()
    expected -= 0.5 * len(y) * np.log(2.0 * np.pi)
    assert post.log_evidence == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(post.alpha, np.linalg.solve(factor.T, half), rtol=1e-9, atol=1e-11)


def test_alpha_of_sharp_sites_beside_negative_ones():
    """The digits of K alpha are those of the mean, where outliers have negative precisions."""
    x = np.linspace(0.0, 6.0, 40)[:, None]
    y = np.sin(x[:, 0])
    y[::8] += 5.0
    K = (ConstantKernel(2.0) * RBF(2.3))(x)
    schedule = epfast.EP(100, 1e-4)
    post = epfast.fit_gp(K, y, loss=losses.StudentT(4.0, 3e-3), schedule=schedule)
    assert (post.sites.precision < 0.0).any()
    assert post.converged
    assert np.abs((K @ post.alpha - post.mean) / np.sqrt(post.variance)).max() < 1e-7


@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1e6])
def test_rounding_has_no_unit(scale):
    """Predictions at the inputs are the posterior, whose kernel is far from 1."""
    K = KERNEL(X) * scale**2
    post = epfast.fit_gp(K, scale * Y, loss=losses.Gaussian(0.1 * scale**2))
    assert post.converged
    mean, variance = post.predict_latent(K, np.diag(K))
    np.testing.assert_allclose(mean, post.mean, atol=1e-8 * np.sqrt(post.variance.min()))
    np.testing.assert_allclose(variance, post.variance, rtol=1e-8)


# ---- properties ----


@pytest.mark.full
@pytest.mark.parametrize("kind", [LinearRegressor, GPRegressor])
@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_predictions_have_the_unit_of_y(kind, name, scale):
    loss, y = CASES[name]
    given = {"kernel": None} if kind is GPRegressor else {}
    other = losses.Censored(upper=scale) if name == "censored" else loss
    model = kind(loss=loss, **given).fit(X, y)
    scaled = kind(loss=other, **given).fit(X, scale * y)
    close = 1e-7 if kind is LinearRegressor else 2e-3
    np.testing.assert_allclose(
        np.array(scaled.predict(NEW, return_std=True)) / scale,
        model.predict(NEW, return_std=True),
        rtol=close,
        atol=close,
    )


@pytest.mark.parametrize("kind", [LinearRegressor, GPRegressor])
@pytest.mark.parametrize("name", ["gaussian", "student_t", "poisson", "gamma_noise"])
def test_quantiles_invert_the_distribution_function(kind, name):
    model = fitted(kind, name)
    levels = np.array([0.03, 0.5, 0.9])
    found = model.predict_quantile(NEW, levels)
    assert found.shape == (len(NEW), 3)
    np.testing.assert_array_equal(found[:, 1], model.predict_quantile(NEW, 0.5))
    for row, m, v in zip(found, *model.predict_latent(NEW), strict=True):
        below = tails(model, m, v)
        for level, x in zip(levels, row, strict=True):
            if name == "poisson":
                assert below(x) >= level > below(x - 1.0)
            else:
                assert below(x) == pytest.approx(level, abs=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("kind", [LinearRegressor, GPRegressor])
@pytest.mark.parametrize("name", CASES)
def test_score_is_the_log_of_an_integral(kind, name):
    model = fitted(kind, name, **{"integrate": False} if kind is LinearRegressor else {})
    y = CASES[name][1][: len(NEW)]
    mean, variance = model.predict_latent(NEW)
    # Gauss-Legendre over so many sd that y far out is reached, fine enough for kinks
    nodes, weights = np.polynomial.legendre.leggauss(20)
    edges = np.linspace(-60.0, 60.0, 1500)
    half = 0.5 * np.diff(edges)[:, None]
    z = (0.5 * (edges[1:] + edges[:-1])[:, None] + half * nodes).ravel()
    logs = np.log((half * weights).ravel()) - 0.5 * z * z - 0.5 * np.log(2.0 * np.pi)
    h = mean[:, None] + np.sqrt(variance)[:, None] * z
    responses = model.loss_.responses("y", y, len(NEW))
    expected = special.logsumexp(logs - model.loss_.values(h, responses), axis=1)
    np.testing.assert_allclose(model.score_samples(NEW, y), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", [LinearRegressor, GPRegressor])
@pytest.mark.parametrize("name", ["gaussian", "laplace_noise", "poisson", "negative_binomial"])
def test_draws_have_the_predicted_moments(kind, name):
    model, size = fitted(kind, name), 20_000
    draws = model.sample_y(NEW, size, random_state=3)
    assert draws.shape == (len(NEW), size)
    mean, std = model.predict(NEW, return_std=True)
    np.testing.assert_allclose((draws.mean(axis=1) - mean) / std, 0.0, atol=5.0 / np.sqrt(size))
    np.testing.assert_allclose(draws.std(axis=1), std, rtol=0.1)
    np.testing.assert_array_equal(draws, model.sample_y(NEW, size, random_state=3))


@pytest.mark.parametrize("kind", [LinearRegressor, GPRegressor])
def test_exposure_is_an_offset(kind):
    exposure = np.exp(np.random.default_rng(5).normal(size=N))
    y = np.random.default_rng(6).poisson(exposure * np.exp(H))
    given = {"kernel": KERNEL} if kind is GPRegressor else {}
    model = kind(loss="poisson", **given).fit(X, y, offset=np.log(exposure))
    rate = model.predict(NEW)
    np.testing.assert_allclose(model.predict(NEW, offset=np.full(7, np.log(2.0))), 2.0 * rate)
    truth = np.exp(NEW @ [0.8, -0.5, 0.0] + 0.7)
    assert np.median(np.abs(rate / truth - 1.0)) < 0.5


def r_squared(y, predicted, weights=1.0):
    """1 - weighted squares about the predictions over those about the mean, as it is defined."""
    weights = weights * np.ones(len(y))
    mean = weights @ y / weights.sum()
    return 1.0 - weights @ (y - predicted) ** 2 / (weights @ (y - mean) ** 2)


#: of y with two columns: what is predicted of it, and how much a row weighs
OUTCOMES = {
    "interval": lambda y: (y.mean(axis=1), 1.0),
    "weibull": lambda y: (y[:, 0], 1.0),
    "binomial": lambda y: (y[:, 0] / y[:, 1], y[:, 1]),
    "variances": lambda y: (y[:, 0], 1.0),
}


@pytest.mark.parametrize("kind", [LinearRegressor, GPRegressor])
@pytest.mark.parametrize("name", [*CASES, "binomial", "variances"])
def test_score_is_r_squared_of_what_is_predicted_with_the_offset(kind, name):
    rng = np.random.default_rng(8)
    trials = rng.integers(1, 9, N)
    more = {
        "binomial": ("binomial", np.column_stack([rng.binomial(trials, special.expit(H)), trials])),
        "variances": (losses.Gaussian(0.2), np.column_stack([Y, np.arange(1.0, N + 1.0)])),
    }
    loss, y = (CASES | more)[name]
    offset, weights = rng.normal(size=N), rng.integers(0, 4, N)
    given = {"kernel": KERNEL, "optimizer": None} if kind is GPRegressor else {"integrate": False}
    model = kind(loss=loss, learn=(), **given).fit(X, y, offset=offset)
    seen, share = OUTCOMES.get(name, lambda y: (y, 1.0))(y)
    predicted = model.predict(X, offset=offset)
    assert model.score(X, y, offset=offset) == pytest.approx(r_squared(seen, predicted, share))
    weighted = r_squared(seen, predicted, share * weights)
    assert model.score(X, y, weights, offset) == pytest.approx(weighted)
    without = r_squared(seen, model.predict(X), share)
    assert model.score(X, y) == pytest.approx(without) != model.score(X, y, offset=offset)


@pytest.mark.parametrize("model", [LinearRegressor(), GPRegressor(KERNEL, optimizer=None)])
@pytest.mark.parametrize("loss", ["poisson", "gaussian", "student_t"])
def test_routed_offsets_and_weights_reach_fit_predict_and_score(model, loss):
    """By a loop over the folds. An offset that a score does not know leaves R^2 below 0."""
    rng = np.random.default_rng(9)
    offset, weights = 3.0 * rng.normal(size=N), rng.integers(1, 3, N)
    y = rng.poisson(np.exp(offset + H)) if loss == "poisson" else Y + offset
    model, folds, right = clone(model).set_params(loss=loss), KFold(3), []
    for train, test in folds.split(X):
        fit = clone(model).fit(X[train], y[train], weights[train], offset[train])
        predicted = fit.predict(X[test], offset=offset[test])
        right.append(r_squared(y[test], predicted, weights[test]))
    with config_context(enable_metadata_routing=True):
        model.set_fit_request(offset=True, sample_weight=True)
        model.set_score_request(offset=True, sample_weight=True).set_predict_request(offset=True)
        given = {"offset": offset, "sample_weight": weights}
        np.testing.assert_allclose(
            cross_val_score(model, X, y, cv=folds, params=given), right, rtol=1e-6
        )
        scaler = StandardScaler(with_mean=False, with_std=False)
        pipe = make_pipeline(scaler.set_fit_request(sample_weight=False), model)
        found = cross_val_score(pipe, X, y, cv=folds, params=given)
        np.testing.assert_allclose(found, right, rtol=1e-6)
        search = GridSearchCV(model, {"learn": [None]}, cv=folds).fit(X, y, **given)
        assert search.best_score_ == pytest.approx(np.mean(right))
        assert search.score(X, y, **given) > 0.5


@pytest.mark.parametrize("kind", [LinearRegressor, GPRegressor, epfast.NetworkRegressor])
def test_what_takes_rows_takes_their_offsets(kind):
    methods = inspect.getmembers(kind, inspect.isfunction)
    takes = {name: inspect.signature(one).parameters for name, one in methods if name[0] != "_"}
    assert {name for name in takes if "X" in takes[name]} >= {"fit", "predict", "score"}
    assert [name for name in takes if "X" in takes[name] and "offset" not in takes[name]] == []


def test_a_score_of_what_has_no_mean_is_refused():
    model = LinearRegressor(loss=losses.StudentT(1.0), learn=()).fit(X, Y)
    with pytest.raises(ValueError, match=r"no finite mean .* StudentT\(df=1.0, .*score_samples"):
        model.score(X, Y)
    model = LinearRegressor(learn=()).fit(X, Y)
    with pytest.raises(ValueError, match=r"offset has shape \(3,\)"):
        model.score(X, Y, offset=np.zeros(3))
    for weights, text in ((-np.ones(N), "from -1 to -1"), (np.zeros(N), "from 0 to 0")):
        with pytest.raises(ValueError, match=f"sample_weight holds numbers {text}"):
            model.score(X, Y, weights)


@pytest.mark.parametrize("kind", [LinearRegressor, GPRegressor])
def test_outliers_are_left_to_student(kind):
    y = np.array(Y)
    y[::10] += 1000.0
    given = {"kernel": None} if kind is GPRegressor else {}
    model = kind(loss="student_t", **given).fit(X, y)
    assert np.abs(model.predict(X) - H).max() < 1.0
    assert model.loss_.scale < 1.0


@pytest.mark.parametrize("model", BOTH, ids=str)
def test_is_picklable_and_clonable(model):
    found = clone(model).fit(X, Y)
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(found.predict(NEW), again.predict(NEW))
    np.testing.assert_array_equal(clone(found).fit(X, Y).predict(NEW), found.predict(NEW))


def test_a_rank_of_all_rows_is_the_whole_process():
    whole, low = (GPRegressor(KERNEL, rank=k, integrate=False).fit(X, Y) for k in (None, N))
    np.testing.assert_allclose(low.predict(NEW), whole.predict(NEW), atol=2e-3)
    assert low.loss_.variance == pytest.approx(whole.loss_.variance, rel=2e-2)


def test_ard_finds_the_columns_that_count():
    model = LinearRegressor(prior_variance="ard").fit(X, Y)
    assert model.prior_variance_[2] < 0.05 * model.prior_variance_[:2].min()
    assert model.log_evidence_ >= LinearRegressor().fit(X, Y).log_evidence_


def test_cuts_are_learnt():
    y = np.digitize(H + np.random.default_rng(8).normal(size=N), [0.0, 1.5])
    given = {"fit_intercept": False, "prior_scale": None, "standardize": False}
    model = LinearRegressor(loss=losses.Ordinal((-1.0, 1.0)), **given).fit(X, y)

    def minus(u):
        cuts = (u[0], u[0] + np.exp(u[1]))
        post = epfast.fit_linear(
            X, y, loss=losses.Ordinal(cuts), prior_variance=float(np.exp(u[2]))
        )
        return -post.log_evidence

    first, second = model.loss_.cuts
    start = [first, np.log(second - first), np.log(model.prior_variance_)]
    found = optimize.minimize(minus, start, method="Nelder-Mead", options={"xatol": 1e-3})
    assert -model.log_evidence_ <= found.fun + 1e-3


# ---- refusals ----


@pytest.mark.parametrize("kind", [LinearRegressor, GPRegressor])
def test_refusals(kind):
    with pytest.raises(ValueError, match=r"^loss is Logistic.*whose y are labels"):
        kind(loss="logistic").fit(X, np.sign(Y))
    with pytest.raises(ValueError, match=r"^y holds numbers from"):
        kind(loss="poisson").fit(X, Y)
    with pytest.raises(ValueError, match=r"^learn holds 'df'; allowed"):
        kind(learn=("df",)).fit(X, Y)
    with pytest.raises(TypeError, match=r"^learn is 'variance'; allowed: a tuple"):
        kind(learn="variance").fit(X, Y)
    with pytest.raises(ValueError, match=r"^q has shape"):
        kind().fit(X, Y).predict_quantile(X, [[0.5]])
    with pytest.raises(ValueError, match=r"^offset has shape"):
        kind(loss="poisson").fit(X, np.ones(N), offset=np.zeros(3))


def test_refusals_of_one():
    with pytest.raises(ValueError, match=r"so that variance of the loss would be learnt"):
        LinearRegressor(posterior="factorized", learn=("variance",)).fit(X, Y)
    assert LinearRegressor(posterior="factorized", learn=()).fit(X, Y).loss_.variance == 1.0
    with pytest.raises(ValueError, match=r"^learn is .* allowed with optimizer=None"):
        GPRegressor(optimizer=None, learn=("variance",)).fit(X, Y)
    for kind in (epfast.LinearClassifier, epfast.GPClassifier):
        with pytest.raises(ValueError, match=r"^loss is Poisson.*classifier"):
            kind(loss="poisson").fit(X, Y > 0)


def test_one_row_and_rows_that_are_alike():
    with pytest.warns(epfast.estimators.EvidenceWarning, match="one row"):
        model = LinearRegressor().fit([[1.0]], [3.0])
    assert model.loss_.variance == pytest.approx(9.0)
    for kind in (LinearRegressor, GPRegressor):
        with pytest.warns(epfast.estimators.EvidenceWarning, match="rises up to variance"):
            mean, std = kind().fit(X, np.full(N, 5.0)).predict(NEW, return_std=True)
        np.testing.assert_allclose(mean, 5.0, rtol=1e-6)
        assert (std < 0.1).all()


# ---- classifiers ----


def test_flipped_labels_are_counted_by_the_evidence():
    """The share of labels that are drawn blindly: twice that of flips."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(800, 3))
    h = rows @ [3.0, -2.0, 0.0]
    labels = h + rng.normal(size=800) > 0.0
    flipped = rng.random(800) < 0.15
    given = np.where(labels ^ flipped, "yes", "no")
    loss = losses.Contaminated(losses.Probit(), 0.05)
    model = epfast.LinearClassifier(loss=loss, learn=("share",), integrate=False)
    model.fit(rows, given)
    assert model.loss_.share == pytest.approx(0.3, abs=0.08)
    np.testing.assert_allclose(model.coef_[0], [3.0, -2.0, 0.0], atol=0.8)
    plain = epfast.LinearClassifier(loss="probit").fit(rows, given)
    assert model.log_evidence_ > plain.log_evidence_ + 20.0
    step, evidences = 1e-3, []
    for sign in (1.0, -1.0):
        moved = loss.with_parameters(share=model.loss_.share * np.exp(sign * step))
        variance = float(model.prior_variance_)
        other = epfast.LinearClassifier(loss=moved, prior_variance=variance, standardize=True).fit(
            rows, given
        )
        evidences.append(other.log_evidence_)
    assert abs(evidences[0] - evidences[1]) / (2.0 * step) < 1e-2
    with pytest.raises(ValueError, match=r"^learn is \('share',\); allowed in partial_fit"):
        model.partial_fit(rows, given)


@pytest.mark.parametrize("given", [{"posterior": "factorized"}, {"batch_size": 5}])
@pytest.mark.parametrize("name", ["gaussian", "student_t"])
def test_what_has_no_slopes_learns_from_some_rows(given, name, monkeypatch):
    if name == "student_t" and "batch_size" in given:
        return  # not log-concave: Laplace fits no minibatches of it
    model = fitted(LinearRegressor, name, **given)
    full = fitted(LinearRegressor, name)  # of all rows, as they are few
    assert model.loss_ == full.loss_
    assert model.prior_variance_ == full.prior_variance_
    np.testing.assert_allclose(model.coef_, full.coef_, atol=0.1)
    monkeypatch.setattr("epfast.estimators.linear.FEW", 40)
    fewer = fitted(LinearRegressor, name, **given)
    assert fewer.loss_ != full.loss_
    what = model.loss_.learnable[0]
    ratio = getattr(fewer.loss_, what) / getattr(full.loss_, what)
    assert 0.5 < ratio < 2.0


def test_many_rows_and_columns_have_a_default(monkeypatch):
    for place in (
        "epfast.estimators.linear.FULL_UP_TO",
        "epfast.gaussian.fit_linear.FULL_UP_TO",
    ):
        monkeypatch.setattr(place, 2)
    model = LinearRegressor().fit(X, Y)
    assert model.posterior_.kind == "factorized"
    assert model.loss_.variance == pytest.approx(0.16, rel=0.5)


def test_the_base_of_a_contaminated_loss_is_learnt():
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(200, 2))
    y = rows @ [1.0, -2.0] + 0.3 * rng.normal(size=200)
    wrong = rng.random(200) < 0.15
    y[wrong] = rng.uniform(-20.0, 20.0, wrong.sum())
    loss = losses.Contaminated(losses.Gaussian(1.0), 0.1, -np.log(40.0))
    precise = epfast.EP(sweeps=200, tol=1e-9)
    model = LinearRegressor(loss=loss, learn=("share", "variance"), schedule=precise).fit(rows, y)
    assert model.loss_.base.variance == model.loss_.variance == pytest.approx(0.09, rel=0.4)
    assert model.loss_.share == pytest.approx(wrong.mean(), abs=0.05)
    slopes = model.posterior_.loss_gradient()
    assert set(slopes) == {"share", "variance"}
    assert abs(slopes["variance"] * model.loss_.variance) < 1e-5
    assert losses.restore(losses.describe(model.loss_), 1.0) == model.loss_


@pytest.mark.parametrize("model", [LinearRegressor, GPRegressor])
@pytest.mark.parametrize("kind", [np.array, list, lambda y: np.array(y, dtype=object)])
def test_ordered_classes_that_are_text_are_refused_with_what_to_do(model, kind):
    text = kind(["low", "mid", "high"] * (N // 3))
    with pytest.raises(TypeError, match=r"y holds text, 'low' first; .*Categorical.*\.codes"):
        model(loss="ordinal").fit(X, text)


# ---- what a loss by its name takes from y ----


@pytest.mark.full
@pytest.mark.parametrize("count", [2, 3, 5])
def test_ordinal_by_name_takes_its_levels_from_y(count):
    """Fits are those of the loss with as many cuts; three levels are the defaults of the class."""
    y = np.digitize(Y, np.quantile(Y, np.arange(1, count) / count))
    cuts = (0.0,) if count == 2 else tuple(np.linspace(-1.0, 1.0, count - 1).tolist())
    for model in BOTH:
        found = clone(model).set_params(loss="ordinal").fit(X, y)
        plain = clone(model).set_params(loss=losses.Ordinal(cuts)).fit(X, y)
        assert found.loss_ == plain.loss_
        assert set(found.predict(X)) <= set(range(count))
    K = KERNEL(X)
    for one, other in (
        (epfast.fit_linear(X, y, loss=loss), epfast.fit_gp(K, y, loss=loss))
        for loss in ("ordinal", losses.Ordinal(cuts))
    ):
        assert one.loss.cuts == other.loss.cuts == cuts
    for model in BOTH:
        with pytest.raises(ValueError, match=r"up to \d+000;.*levels from y: integers 0 to 999"):
            clone(model).set_params(loss="ordinal").fit(X, 5000 * y)
        with pytest.raises(
            ValueError, match=r"integers 0 to 2 with 2 cuts, as losses.Ordinal\(cuts"
        ):
            clone(model).set_params(loss="ordinal").fit(X, Y)


@pytest.mark.parametrize("kind", [LinearRegressor, GPRegressor])
def test_losses_that_do_not_suit_are_not_listed(kind):
    with pytest.raises(ValueError, match="loss is 'log_loss'") as raised:
        kind(loss="log_loss").fit(X, Y)
    allowed, said = str(raised.value).split("; did you mean")
    assert "'gaussian'" in allowed
    assert "'logistic'" not in allowed
    assert said == " 'logistic'? That is a loss that classifiers take"
    with pytest.raises(ValueError, match="LinearClassifier and GPClassifier take labels"):
        kind(loss="multiclass").fit(X, np.arange(N) % 3)
    with pytest.raises(ValueError, match="2 latent values per row"):
        kind(loss="heteroscedastic").fit(X, Y)
    for classifier in (epfast.LinearClassifier, epfast.GPClassifier):
        with pytest.raises(ValueError, match="loss is 'log_loss'") as raised:
            classifier(loss="log_loss").fit(X, Y > 0.0)
        assert "'multiclass'" in str(raised.value)
        assert "'poisson'" not in str(raised.value)


@pytest.mark.parametrize("mean", [1e6, 1e9])
def test_a_process_of_large_counts(mean):
    """At such counts log y is the latent value to 1 / sqrt(y): sites are far narrower than K."""
    rng = np.random.default_rng(0)
    rows = np.sort(rng.uniform(-3.0, 3.0, (60, 1)), axis=0)
    latent = np.log(mean) + np.sin(rows[:, 0])
    y = rng.poisson(np.exp(latent))
    model = GPRegressor(loss="poisson").fit(rows, y)
    assert model.converged_
    assert model.n_failed_points_ == 0
    np.testing.assert_allclose(np.log(model.predict(rows)), latent, atol=4.0 * mean**-0.5)


def many_cuts(unseen):
    """A fit of 20 classes, some of which no row has, and the parameters of a search."""
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(150, 2))
    order = np.argsort(np.argsort(rows @ [1.0, -0.5] + rng.normal(size=150)))
    y = np.setdiff1d(np.arange(20), unseen)[order * (20 - len(unseen)) // 150]
    loss = losses.Ordinal(tuple(np.linspace(-2.0, 2.0, 19)), "logit")
    responses = loss.responses("y", y, 150)
    parameters = LossParameters.of(loss, None, responses, None, False)
    post = epfast.fit_linear(rows, y, loss=parameters.loss, schedule=EP(200, 1e-10))
    return post, parameters


@pytest.mark.parametrize("unseen", [(), (7, 8, 12), (0, 1, 19)])
def test_derivatives_by_cuts_all_at_once(unseen):
    """They are those by one cut, or one pair of gaps, after another, up to the differences'."""
    post, parameters = many_cuts(unseen)
    u = parameters.start
    given = [post], parameters.loss_at, u, parameters.bounds
    slopes, bent = derivatives_by_loss(*given)
    fast, second = derivatives_by_loss(*given, parameters.chart(u))
    np.testing.assert_allclose(fast, slopes, rtol=1e-4, atol=1e-4 * np.abs(slopes).max())
    np.testing.assert_allclose(second, bent, atol=3e-3 * np.abs(bent).max())
    cuts, by_hand = np.array(post.loss.cuts), []
    for step in np.diag(post.loss.steps("cuts", 1e-3)):
        moved = [losses.Ordinal(tuple(cuts + k * step), "logit") for k in (-2, -1, 1, 2)]
        by_hand.append(post.loss_gain(*moved) @ [1.0, -8.0, 8.0, -1.0] / (12.0 * step.sum()))
    of_cuts = post.loss_gradient()["cuts"]
    np.testing.assert_allclose(of_cuts, by_hand, rtol=1e-5, atol=1e-4)


def test_hundreds_of_cuts_take_few_integrals(monkeypatch):
    """A handful of passes over the rows for the derivatives by all cuts, not one for each pair."""
    passes = []
    by_row = losses.Ordinal.tilted
    monkeypatch.setattr(
        losses.Ordinal, "tilted", lambda self, *given: passes.append(1) or by_row(self, *given)
    )
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(600, 3))
    y = np.argsort(np.argsort(rows[:, 0] + rng.normal(size=600))) // 2
    model = LinearRegressor(loss="ordinal").fit(rows, y)
    assert len(model.loss_.cuts) == 299
    assert model.converged_
    # as the shares of the classes say, but for the spread of the means
    assert np.corrcoef(model.loss_.cuts, np.linspace(0, 1, 299))[0, 1] > 0.9
    assert len(passes) < 2000
