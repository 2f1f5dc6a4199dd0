"""Parameters of likelihoods that end where their search ends, or that y does not tell: said."""

import warnings
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("sklearn")

import sklearn.exceptions
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    Matern,
    RationalQuadratic,
    WhiteKernel,
)

import epfast
from epfast import losses
from epfast.estimators import EvidenceWarning, GPClassifier, GPRegressor, LinearRegressor

N = 80
RNG = np.random.default_rng(1)
X = RNG.normal(size=(N, 2))
H = X @ [1.0, -0.5]
NOISE = RNG.normal(size=N)
FAR = np.where(np.arange(N) % 4 == 0, RNG.choice([-1, 1], N) * 10 ** RNG.uniform(1, 8, N), 0.0)

#: a loss, what is learnt, y, and what is said
ENDS = {
    "heavy tails": (losses.StudentT(), ("scale", "df"), H + 0.1 * NOISE + FAR, r"df=1\.01 .*mean"),
    "no noise, t": (losses.StudentT(), ("scale", "df"), H, r"scale=.*without noise.*df=.*Gaussian"),
    "Poisson": (
        losses.NegativeBinomial(),
        ("size",),
        RNG.binomial(10, 1.0 / (1.0 + np.exp(-H - 1.0))),
        r"size=.*Poisson",
    ),
    "no noise, gamma": (losses.GammaNoise(), ("shape",), np.exp(H), r"shape=.*without noise"),
    "no noise, Weibull": (losses.Weibull(), ("shape",), np.exp(H), r"shape=.*without noise"),
    "wide": (losses.Weibull(), ("shape",), np.exp(H + 100.0 * NOISE), r"shape=0\.01 .*magnitude"),
    "no outliers": (
        losses.Contaminated(losses.Gaussian(0.09), 0.1, -5.0),
        ("share",),
        H + 0.3 * NOISE,
        r"share=.*e-06 .*outlier",
    ),
    "no noise": (losses.Gaussian(), ("variance",), H, r"variance=.*without noise"),
    "no noise, Laplace": (losses.LaplaceNoise(), ("scale",), H, r"scale=.*without noise"),
    "no noise, quantile": (losses.Quantile(0.3), ("scale",), H, r"scale=.*without noise"),
    "all censored": (losses.Censored(lower=-50.0), ("variance",), np.full(N, -50.0), r"variance="),
    "intervals": (
        losses.Interval(),
        ("variance",),
        np.column_stack([H - 1.0, H + 1.0]),
        r"variance=.*without noise",
    ),
    "empty class": (
        losses.Ordinal((-1.0, 1.0)),
        ("cuts",),
        np.where(H > 0.0, 2.0, 0.0),
        r"cuts=.*class is hardly there",
    ),
}


def end_is_told(name, kind):
    loss, learn, y, said = ENDS[name]
    with pytest.warns(EvidenceWarning, match=said):
        model = kind(loss=loss, learn=learn).fit(X, y)
    assert np.isfinite(model.log_evidence_)
    mean, std = model.predict(X, return_std=True)
    assert not np.isnan(mean).any()
    assert not np.isnan(std).any()


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("name", ENDS)
def test_ends_are_told(name):
    end_is_told(name, LinearRegressor)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("name", ENDS)
def test_ends_of_processes_are_told(name):
    end_is_told(name, GPRegressor)


def test_what_y_hardly_tells_is_told():
    rng = np.random.default_rng(4)
    y = rng.poisson(np.exp(H) * rng.gamma(20.0, 0.05, N))
    with pytest.warns(EvidenceWarning, match=r"hardly tells size=\S+ from larger .*Poisson"):
        LinearRegressor(loss=losses.NegativeBinomial(), learn=("size",)).fit(X, y)


@dataclass(frozen=True)
class Own(losses.Loss):
    """Normal noise of the user's."""

    scale: float = 1.0

    by_margin = False
    is_likelihood = True
    log_concave = True
    learnable = ("scale",)

    def __post_init__(self):
        self._set(beta=1.0, gives=frozenset({"values", "continuous", "powers"}))

    def responses(self, name, y, n):
        return np.asarray(y, dtype=np.float64).reshape(n, 1)

    def core(self):
        def value(h, y):
            return -stats.norm.logpdf(y[:, 0], h, self.scale)

        return losses.CoreLoss.python(value, beta=1.0, width=1)


def test_a_parameter_of_a_loss_of_ones_own_is_learnt():
    few = slice(0, 20)
    y = H[few] + 0.3 * NOISE[few]
    model = LinearRegressor(loss=Own(scale=0.5), learn=("scale",), prior_variance=1.0)
    ours = LinearRegressor(loss=losses.Gaussian(), prior_variance=1.0).fit(X[few], y)
    found = model.fit(X[few], y).loss_.scale ** 2
    assert found == pytest.approx(ours.loss_.variance, rel=1e-2)


#: a loss, what is learnt, and y that tells it
INSIDE = {
    "t": (losses.StudentT(), ("scale", "df"), H + 0.3 * RNG.standard_t(3, N)),
    "negative binomial": (
        losses.NegativeBinomial(),
        ("size",),
        RNG.poisson(np.exp(H + 1.0) * RNG.gamma(2.0, 0.5, N)),
    ),
    "gamma": (losses.GammaNoise(), ("shape",), np.exp(H) * RNG.gamma(3.0, 1.0 / 3.0, N)),
    "Weibull": (losses.Weibull(), ("shape",), np.exp(H) * RNG.weibull(2.0, N)),
    "Gaussian": (losses.Gaussian(), ("variance",), H + 0.3 * NOISE),
    "ordinal": (losses.Ordinal((-1.0, 1.0)), ("cuts",), np.digitize(H + NOISE, (-1.0, 1.0))),
}


def nothing_is_said(name, kind):
    loss, learn, y = INSIDE[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error", EvidenceWarning)
        kind(loss=loss, learn=learn).fit(X, y)


@pytest.mark.parametrize("name", INSIDE)
def test_nothing_is_said_of_what_y_tells(name):
    nothing_is_said(name, LinearRegressor)


@pytest.mark.full
@pytest.mark.parametrize("name", INSIDE)
def test_nothing_is_said_of_processes_that_y_tells(name):
    nothing_is_said(name, GPRegressor)


def test_the_gain_is_that_of_the_evidence_to_first_order():
    y = H + 0.3 * RNG.standard_t(3, N)
    post = epfast.fit_linear(X, y, loss=losses.StudentT(4.0, 0.3), schedule=epfast.EP(200, 1e-10))
    moved = post.loss.with_parameters(scale=0.3 * np.exp(1e-4))
    gain = post.loss_gain(moved, post.loss)
    assert gain[1] == 0.0
    assert gain[0] == pytest.approx(1e-4 * 0.3 * post.loss_gradient()["scale"], rel=1e-2)


@pytest.mark.parametrize("model", [LinearRegressor, lambda **k: GPRegressor(1.0 * RBF(1.0), **k)])
@pytest.mark.parametrize("unseen", [(), (0,), (3,), (1,), (0, 3)])
def test_classes_in_the_reverse_order_are_the_same_model(model, unseen):
    """X and y turned round give cuts and evidence turned round, warnings too.

    Exactly so, since P(y <= k) = F(c_k - h) = 1 - F(h - c_k).
    """
    rng = np.random.default_rng(len(unseen))
    X = rng.normal(size=(120, 1))
    y = np.digitize(X[:, 0] + rng.normal(size=120), [-1.0, 0.0, 1.0])
    keep = ~np.isin(y, unseen)
    found = []
    for sign, classes in ((1.0, y), (-1.0, 3 - y)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fitted = model(loss=losses.Ordinal((-1.0, 0.0, 1.0))).fit(sign * X[keep], classes[keep])
        told = [str(w.message) for w in caught if issubclass(w.category, EvidenceWarning)]
        none = sorted(unseen if sign > 0 else (3 - k for k in unseen))
        said = [f"no row has class {', '.join(map(str, none))}"] if unseen else []
        assert [said[0] in one for one in told] == [True] * len(said)
        cuts = np.array(fitted.loss_.cuts) - getattr(fitted, "intercept_", 0.0)
        found.append((cuts if sign > 0 else -cuts[::-1], fitted.log_evidence_))
    (cuts, evidence), (again, other) = found
    assert evidence == pytest.approx(other, abs=1e-3)
    np.testing.assert_allclose(cuts, again, rtol=1e-2, atol=1e-2)
    assert np.abs(cuts).max() < 100.0


# ---- kernels ----

NARROW, CURVED = (0.9, 1.1), np.hypot(*X.T) < 1.1
KERNELS = {
    "a length scale": 1.0 * RBF(1.0, NARROW),
    "a sum": ConstantKernel(1.0, (0.5, 2.0)) * Matern(1.0, NARROW) + WhiteKernel(1e-3, NARROW),
    "a column each": ConstantKernel(1.0, "fixed") * RBF([1.0, 1.0], [NARROW, (0.01, 0.02)]),
    "a power": RationalQuadratic(1.0, 1.0, NARROW, NARROW) ** 2,
    "none": ConstantKernel(1.0, "fixed") * RBF(1.0),
}


@pytest.mark.parametrize("kind", [GPClassifier, GPRegressor])
@pytest.mark.parametrize("name", KERNELS)
def test_bounds_of_kernels_are_told_as_scikit_learn_tells_them(name, kind):
    """The right messages are those of scikit-learn's own check of the same kernel."""
    model = kind(KERNELS[name])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, CURVED if kind is GPClassifier else H + 0.1 * NOISE)
        ours = [str(one.message) for one in caught if "optimal value" in str(one.message)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.kernel_._check_bounds_params()
    assert ours == [str(one.message) for one in caught]
    assert bool(ours) == (name != "none")


@pytest.mark.full
def test_a_bound_is_told_once_and_where_it_is_reached():
    """Three classes that end at the same bound; a wider bound, and no search, are silent."""
    three = np.digitize(X[:, 0], [-0.5, 0.5])
    with pytest.warns(sklearn.exceptions.ConvergenceWarning, match="upper bound 1.1.") as caught:
        GPClassifier(KERNELS["a length scale"]).fit(X, three)
    lengths = [one for one in caught if "k2__length_scale" in str(one.message)]
    assert len(lengths) == 1
    assert lengths[0].filename == __file__
    with pytest.warns(epfast.ConvergenceWarning, match="default kernel's"):
        GPClassifier().fit(X, X[:, 0] > 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GPRegressor(1.0 * RBF(1.0), learn=()).fit(X, H + NOISE)
        GPClassifier(KERNELS["a length scale"], optimizer=None).fit(X, three)
        GPClassifier(1.0 * RBF(1.0)).fit(X, (np.sin(3.0 * X[:, 0]) + NOISE) > 0.0)
