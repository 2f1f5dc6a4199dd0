"""Regressions by a formula: the same as their columns by hand, and errors in its words."""

import copy
import math
import pickle
import tracemalloc
import warnings

import numpy as np
import pytest
from scipy import stats

import epfast
from epfast import priors

pandas = pytest.importorskip("pandas")
formulae = pytest.importorskip("formulae")
from epfast import formula  # noqa: E402

RNG = np.random.default_rng(8)
N, J = 90, 9
G = np.repeat([f"g{k}" for k in range(J)], N // J)
EFFECT = np.repeat(0.8 * RNG.normal(size=J), N // J)
A = RNG.normal(size=N)
ETA = 0.4 + 0.7 * A + EFFECT
DATA = pandas.DataFrame(
    {
        "a": A,
        "g": G,
        "h": np.tile(["u", "v", "w"], N // 3),
        "y": ETA + 0.5 * RNG.normal(size=N),
        "k": RNG.poisson(np.exp(ETA)),
        "won": RNG.random(N) < 1.0 / (1.0 + np.exp(-ETA)),
        "trials": 6,
        "right": RNG.binomial(6, 1.0 / (1.0 + np.exp(-ETA))),
        "z": RNG.normal(size=N),
    }
)
DATA["word"] = np.where(DATA.won, "yes", "no")
HALF = priors.HalfNormal(1.0)
ONE_HOT = (G[:, None] == np.unique(G)).astype(float)


def test_it_is_fit_hyper_of_its_columns():
    given = {"Intercept": (0.5, 3.0), "a": (0.0, 2.0)}
    of_groups, noise = priors.HalfNormal(1.0), priors.Exponential(1.0)
    model = formula.fit("y ~ a + (1 | g)", DATA, priors={**given, "1|g": of_groups, "sigma": noise})
    post = epfast.fit_hyper(
        np.column_stack([np.ones(N), A, ONE_HOT]),
        DATA.y.to_numpy(),
        sds={"1|g": (slice(2, None), of_groups)},
        learn={"sd": noise},
        prior_variance=np.append([9.0, 4.0], np.ones(J)),
        prior_mean=np.append([0.5], np.zeros(J + 1)),
    )
    np.testing.assert_allclose(model.posterior.mean, post.mean, atol=1e-9)
    assert list(model.fixed.index) == ["Intercept", "a"]
    assert list(model.random.index[:2]) == ["1|g[g0]", "1|g[g1]"]
    assert list(model.hyper.index) == ["sd 1|g", "sigma"]
    assert model.posterior.hyper_names == post.hyper_names
    np.testing.assert_allclose(model.hyper["mean"], post.hyper["mean"])
    table = model.summary()
    assert list(table.index) == ["Intercept", "a", "sd 1|g", "sigma"]
    assert list(table.columns) == ["mean", "sd", "3%", "97%"]
    assert (table["3%"] < table["mean"]).all()
    np.testing.assert_allclose(
        model.predict(DATA), post.predict(np.column_stack([np.ones(N), A, ONE_HOT]))
    )


@pytest.mark.parametrize(
    ("text", "family", "numbers"),
    [
        ("y ~ a + h + (a | g)", "gaussian", ["sd 1|g", "sd a|g", "cor 1,a|g", "sigma"]),
        ("y ~ a", "t", ["sigma", "nu"]),
        ("won ~ a + (1 | g)", "bernoulli", ["sd 1|g"]),
        ("word['yes'] ~ a", "bernoulli", []),
        ("prop(right, trials) ~ a + (1 | g)", "binomial", ["sd 1|g"]),
        ("k ~ a + offset(z) + (1 | g:h)", "poisson", ["sd 1|g:h"]),
        ("k ~ a", "negativebinomial", ["alpha"]),
        ("np.exp(y) ~ a + (1 | g) + (1 | h)", "gamma", ["sd 1|g", "sd 1|h", "alpha"]),
        ("np.exp(y) ~ scale(a)", "weibull", ["alpha"]),
    ],
)
@pytest.mark.filterwarnings("ignore:the sd of:epfast.DataWarning")
def test_families(text, family, numbers):
    model = formula.fit(text, DATA.assign(won=DATA.won.astype(int)), family, strategy="eb")
    assert list(model.hyper.index) == numbers
    assert model.converged
    slope = model.fixed.loc["scale(a)" if "scale" in text else "a"]
    assert 0.2 < slope["mean"] < 1.5
    mean, sd = model.predict(DATA.head(4), return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(sd).all()
    if family in ("bernoulli", "binomial"):
        assert ((mean > 0.0) & (mean < 1.0 if family == "bernoulli" else mean > 0.0)).all()


def test_labels_by_words_and_numbers_agree():
    by_word, by_number = (
        formula.fit(text, DATA.assign(won=DATA.won.astype(int)), "bernoulli").posterior.mean
        for text in ("word['yes'] ~ a", "won ~ a")
    )
    np.testing.assert_array_equal(by_word, by_number)


def test_an_offset_is_known():
    model = formula.fit("k ~ a + offset(z)", DATA, "poisson")
    X = np.column_stack([np.ones(N), A])
    post = epfast.fit_linear(
        X,
        DATA.k.to_numpy(),
        loss="poisson",
        offset=DATA.z.to_numpy(),
        prior_variance=model.posterior.problem.prior.precision.diagonal() ** -1,
    )
    np.testing.assert_allclose(model.posterior.mean, post.mean, atol=1e-4)
    mean, _ = model.predict_latent(DATA)
    np.testing.assert_allclose(mean, X @ model.posterior.mean + DATA.z, atol=1e-9)


@pytest.mark.parametrize(
    ("text", "labels", "numbers"),
    [
        ("y ~ 0 + (1 | g)", [], ["sd 1|g"]),
        ("y ~ -1 + offset(z) + (a | g)", [], ["sd 1|g", "sd a|g", "cor 1,a|g"]),
        ("y ~ 1 + (1 | g)", ["Intercept"], ["sd 1|g"]),
        ("y ~ h - 1", ["h[u]", "h[v]", "h[w]"], []),
        ("y ~ a + (a - 1 | g)", ["Intercept", "a"], ["sd a|g"]),
        ("y ~ a + (a + z + 0 || g)", ["Intercept", "a"], ["sd a|g", "sd z|g"]),
        ("y ~ (1 | g / h)", ["Intercept"], ["sd 1|g", "sd 1|g:h"]),
        ("y ~ (1 | word) + (0 + a | h)", ["Intercept"], ["sd 1|word", "sd a|h"]),
        (
            "y ~ (1 + a | g) + (0 + z + n | g)",
            ["Intercept"],
            ["sd 1|g", "sd a|g", "sd z|g", "sd n|g", "cor 1,a|g", "cor z,n|g"],
        ),
        ("y ~ a * h", ["Intercept", "a", "h[v]", "h[w]", "a:h[v]", "a:h[w]"], []),
        ("y ~ (a + z) ** 2", ["Intercept", "a", "z", "a:z"], []),
        ("y ~ C(n)", ["Intercept", "C(n)[1]", "C(n)[2]"], []),
        ("y ~ won", ["Intercept", "won"], []),
        ("y ~ I(a ** 2) + log(trials)", ["Intercept", "I(a ** 2)", "log(trials)"], []),
        ("y ~ poly(a, 2)", ["Intercept", "poly(a, 2)[0]", "poly(a, 2)[1]"], []),
        ("y ~ bs(a, df=4) - 1", [f"bs(a, df=4)[{k}]" for k in range(4)], []),
        ("y ~ twice(a)", ["Intercept", "twice(a)"], []),
        ("log(trials + k) ~ `a b`", ["Intercept", "a b"], []),
    ],
)
@pytest.mark.filterwarnings("ignore:the sd of:epfast.DataWarning")
@pytest.mark.filterwarnings("ignore:there are:epfast.DataWarning")
def test_terms(text, labels, numbers):
    """New rows have the columns of the rows of the fit, for one row, too."""

    def twice(x):
        return 2.0 * x

    assert twice(1.0) == 2.0
    data = DATA.assign(n=np.arange(N) % 3, **{"a b": A})
    model = formula.fit(text, data, strategy="eb")
    assert list(model.fixed.index) == labels
    assert list(model.hyper.index) == [*numbers, "sigma"]
    assert len(model.random) == len(model.labels) - len(labels)
    rows, offset, new = model.design.rows(data.iloc[[3, 7]])
    np.testing.assert_allclose(rows, model.design.rows(data)[0][[3, 7]])
    np.testing.assert_array_equal(offset, data.z[[3, 7]] if "offset" in text else 0.0)
    assert not new.any()
    np.testing.assert_allclose(
        model.predict(data.iloc[[3]]), model.predict(data)[3], rtol=1e-9, atol=1e-9
    )


def test_no_common_intercept():
    """0 + (1 | g) is fit_hyper of the columns of g alone."""
    given = {"1|g": HALF, "sigma": HALF}
    model = formula.fit("y ~ 0 + (1 | g)", DATA, priors=given)
    sds = {"1|g": (slice(None), HALF)}
    post = epfast.fit_hyper(ONE_HOT, DATA.y.to_numpy(), sds=sds, learn={"sd": HALF})
    np.testing.assert_allclose(model.posterior.mean, post.mean, atol=1e-9)
    assert list(model.summary().index) == ["sd 1|g", "sigma"]


def test_weights_of_a_column():
    data = DATA.assign(w=1 + np.arange(N) % 3)
    by_name, by_array = (
        formula.fit("k ~ a", data, "poisson", weights=weights).posterior.mean
        for weights in ("w", data.w.to_numpy())
    )
    np.testing.assert_array_equal(by_name, by_array)


@pytest.mark.parametrize("bars", ["|", "||"])
def test_new_levels(bars):
    """They are refused, or add the variance of their group, with its correlations, or nothing."""
    model = formula.fit(f"k ~ a + (a {bars} g)", DATA, "poisson")
    before = formulae.config["EVAL_UNSEEN_CATEGORIES"]
    new = pandas.DataFrame({"a": [0.0, 2.0, 2.0], "g": ["other", "other", "g3"]})
    mean, variance = model.predict_latent(new, new_levels="integrate")
    zero_mean, zero = model.predict_latent(new, new_levels="zero")
    post = model.posterior
    first, slope = post.points[:, :2].T
    product = post.points[:, 2] * first * slope if bars == "|" else 0.0 * first
    np.testing.assert_allclose(mean, zero_mean)
    np.testing.assert_allclose(
        variance - zero,
        post.weights @ np.array([first**2, first**2 + 4.0 * (slope**2 + product), 0.0 * first]).T,
        atol=1e-9,
    )
    with pytest.raises(ValueError, match=r"'other' is not a level of 'g' in the fit"):
        model.predict(new)
    with pytest.raises(ValueError, match="new_levels is 'drop'"):
        model.predict(new, new_levels="drop")
    assert formulae.config["EVAL_UNSEEN_CATEGORIES"] == before


def test_correlated_effects():
    """(a | g) is fit_hyper with correlations; a level of h has an sd and correlations too."""
    prior, lkj = priors.HalfNormal(1.0), priors.LKJ(3.0)
    given = {"1|g": prior, "a|g": prior, "cor|g": lkj, "sigma": prior}
    model = formula.fit("y ~ 1 + (a | g)", DATA, priors=given, strategy="eb")
    post = epfast.fit_hyper(
        np.column_stack([np.ones(N), ONE_HOT, ONE_HOT * A[:, None]]),
        DATA.y.to_numpy(),
        sds={"1|g": (slice(1, J + 1), prior), "a|g": (slice(J + 1, None), prior)},
        correlations={("1|g", "a|g"): (lkj, [[1.0, -A.mean()], [0.0, 1.0]])},
        learn={"sd": prior},
        prior_mean=model.posterior.problem.prior.mean,
        prior_variance=1.0 / np.diag(model.posterior.problem.prior.precision),
        strategy="eb",
    )
    first, slope, r = post.points[0, :3]  # where a has its mean; of the fit where it is 0
    variance = first**2 - 2.0 * A.mean() * r * first * slope + (A.mean() * slope) ** 2
    at_zero = (r * first * slope - A.mean() * slope**2) / (math.sqrt(variance) * slope)
    right = [math.sqrt(variance), slope, at_zero, post.points[0, 3]]
    np.testing.assert_allclose(model.posterior.points[0], right, rtol=1e-3)
    np.testing.assert_allclose(model.posterior.mean, post.mean, atol=1e-3)
    with pytest.warns(epfast.DataWarning, match="10 hyper-parameters"):
        wide = formula.fit("y ~ a + (h | g) + (1 + a | h)", DATA)
    effects = ["1|g", "h[v]|g", "h[w]|g", "1|h", "a|h"]
    pairs = ["1,h[v]|g", "1,h[w]|g", "h[v],h[w]|g", "1,a|h"]
    names = [*(f"sd {name}" for name in effects), *(f"cor {name}" for name in pairs), "sigma"]
    assert list(wide.hyper.index) == names


# ---- correlated slopes and the origin of x ----

#: of pandas, where rows of new levels are asked for by hand
OF_NEW = pytest.mark.filterwarnings("ignore:Constructing a Categorical:DeprecationWarning")
ORIGINS = [
    ("y ~ a + (a | g)", "gaussian"),
    ("y ~ a + z + (z * a | g)", "gaussian"),
    ("y ~ a + (a * h | g)", "gaussian"),
    ("y ~ a + (0 + h + h:a | g)", "gaussian"),
    ("y ~ a + (bs(a, df=4) | g)", "gaussian"),
    ("y ~ a + z + (a | g) + (z | h)", "gaussian"),
    ("k ~ a + (a | g)", "poisson"),
    ("won ~ a + (a | g)", "bernoulli"),
]


@pytest.mark.parametrize(("text", "family"), ORIGINS)
@pytest.mark.parametrize("shift", [100.0, 2000.0])
@pytest.mark.filterwarnings("ignore:there are:epfast.DataWarning")
def test_origins_of_correlated_slopes_do_not_matter(text, family, shift):
    """x + 2000 is another name of the same rows: evidence and latent values are the same.

    With new levels too, whose covariance the table has at the origin of x.
    """
    before = DATA.assign(won=DATA.won.astype(int))
    after = before.assign(a=A + shift, z=DATA.z - 0.05 * shift)
    fits = [formula.fit(text, data, family, strategy="eb") for data in (before, after)]
    gap = fits[1].log_evidence - fits[0].log_evidence
    assert gap == pytest.approx(0.0, abs=1e-4)
    for level in ("g3", "new"):
        pair = [
            model.predict_latent(data.head(9).assign(g=level), "integrate", joint=True)
            for model, data in zip(fits, (before, after), strict=True)
        ]
        (mean, covariance), (other, others) = pair
        sd = np.sqrt(covariance.diagonal())
        np.testing.assert_allclose((other - mean) / sd, 0.0, atol=1e-3)
        np.testing.assert_allclose((others - covariance) / np.outer(sd, sd), 0.0, atol=1e-3)


def test_the_table_is_at_the_origin_of_x(tmp_path):
    """Every node has the sd and correlation of intercepts at x = 0, and weights are those there.

    By b + m x = (b + m s) + m (x - s): a covariance C of (b, m) is S C S' from another origin.
    """
    shift, text = 2000.0, "y ~ a + (a | g)"
    near, far = (formula.fit(text, DATA.assign(a=A + s)) for s in (0.0, shift))
    S = np.array([[1.0, -shift], [0.0, 1.0]])
    for name in ("nodes", "points", "mode"):
        first, slope, r = getattr(near.posterior, name).T[:3]
        C = np.array([[first**2, r * first * slope], [r * first * slope, slope**2]])
        C = np.einsum("ij,jk...,lk->il...", S, C, S)
        right = [np.sqrt(C[0, 0]), slope, C[0, 1] / np.sqrt(C[0, 0] * C[1, 1])]
        found = getattr(far.posterior, name).T[:3]
        np.testing.assert_allclose(found, right, rtol=1e-5)
    draws = far.posterior.nodes[:, 0]
    assert far.hyper.loc["sd 1|g", "mean"] == pytest.approx(far.posterior.probabilities @ draws)
    slopes = near.random["mean"].to_numpy()[J:]
    intercepts = near.random["mean"].to_numpy()[:J] - shift * slopes
    np.testing.assert_allclose(far.random["mean"][J:], slopes, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(far.random["mean"][:J], intercepts, rtol=1e-5)
    far.save(tmp_path / "far.npz")
    for again in (epfast.load(tmp_path / "far.npz"), pickle.loads(pickle.dumps(far))):
        assert again.hyper.equals(far.hyper)
    new = DATA.head(3).assign(a=A[:3] + shift, g="new")
    _, sd = far.predict(new, "integrate", return_std=True)
    drawn = far.sample_y(new, 20_000, 0, "integrate")
    np.testing.assert_allclose(drawn.std(axis=0), sd, rtol=0.05)


@pytest.mark.parametrize(("c", "b"), [(1e6, 1.0), (1e-6, 1e6), (1e6, 1e-6), (1.0, 1e6)])
def test_units_of_correlated_slopes_do_not_matter(c, b):
    """c y and b x: the same model by a change of variables, with sds in their units."""
    model, other = (
        formula.fit("y ~ a + (a | g)", data, strategy="eb")
        for data in (DATA, DATA.assign(y=c * DATA.y, a=b * A))
    )
    assert other.log_evidence + N * np.log(c) == pytest.approx(model.log_evidence, abs=1e-4)
    units = np.array([c, c / b, 1.0, c])
    np.testing.assert_allclose(other.hyper["mean"] / units, model.hyper["mean"], atol=1e-4)
    units = np.repeat([c, c / b], [J, J])
    np.testing.assert_allclose(other.random["mean"] / units, model.random["mean"], atol=1e-4)


CENTRED = A - A.mean(), DATA.z.to_numpy() - DATA.z.mean()
PRODUCT = A * DATA.z.to_numpy()


@pytest.mark.parametrize(
    ("text", "by_hand"),
    [
        ("y ~ 1 + (a | g)", CENTRED[:1]),
        ("y ~ 1 + (a + z | g)", CENTRED),
        ("y ~ 1 + (a * z | g)", [*CENTRED, CENTRED[0] * CENTRED[1]]),
        ("y ~ 1 + (a:z | g)", [PRODUCT - PRODUCT.mean()]),
        ("y ~ 1 + (a + two | g)", [CENTRED[0], np.full(N, 2.0)]),
    ],
)
@OF_NEW
@pytest.mark.filterwarnings("ignore:there are:epfast.DataWarning")
def test_it_is_fit_hyper_of_centred_columns(text, by_hand):
    """With default priors by hand; rows of a new level have the same covariance at all points."""
    data, unit = DATA.assign(two=2.0), DATA.y.std()
    model = formula.fit(text, data, strategy="eb")
    columns = [np.ones(N), *by_hand]
    sizes = [one.std() if np.ptp(one) else one[0] for one in columns]
    names = tuple(map(str, range(len(columns))))
    post = epfast.fit_hyper(
        np.column_stack([np.ones(N), *(ONE_HOT * one[:, None] for one in columns)]),
        DATA.y.to_numpy(),
        sds={
            name: (slice(1 + k * J, 1 + (k + 1) * J), priors.HalfNormal(2.5 * unit / sizes[k]))
            for k, name in enumerate(names)
        },
        correlations={names: priors.LKJ()},
        learn={"sd": priors.HalfStudentT(4.0, unit)},
        prior_mean=np.append(DATA.y.mean(), np.zeros(J * len(columns))),
        prior_variance=(2.5 * unit) ** 2,
        strategy="eb",
    )
    assert model.log_evidence == pytest.approx(post.log_evidence, abs=1e-5)
    q, point = len(columns), post.points[0]
    R = np.eye(q)
    R[np.tril_indices(q, -1)] = point[q:-1]
    R = R + R.T - np.eye(q)
    V = np.column_stack(columns) * point[:q]
    raw = model.design.new_rows(data.assign(g="new"), "integrate").new
    found = raw @ model.design.covariance(model.posterior.points[0]) @ raw.T
    np.testing.assert_allclose(found, V @ R @ V.T, rtol=1e-3, atol=1e-3 * unit**2)


@pytest.mark.parametrize("text", ["y ~ a + (a || g)", "y ~ a + (0 + a | g)"])
def test_slopes_without_correlations_have_an_origin(text):
    """No column is centred, and sd(x) is in the default prior."""
    data = DATA.assign(a=A + 3.0)
    unit = DATA.y.std()
    given = {"a|g": priors.HalfNormal(2.5 * unit / A.std())}
    first, other = (formula.fit(text, data, priors=one, strategy="eb") for one in (None, given))
    assert first.log_evidence == pytest.approx(other.log_evidence, abs=1e-9)
    near = formula.fit(text, DATA, strategy="eb")
    assert abs(first.log_evidence - near.log_evidence) > 0.1


@OF_NEW
@pytest.mark.full
def test_sleepstudy(data_folder):
    """lmer's fit by REML (lme4 1.1-31): the mode under flat priors of logs of sds, and of atanh."""
    data = pandas.read_csv(data_folder / "mixed" / "sleepstudy.csv.gz")
    data = data.assign(Subject=data.Subject.astype(str))
    flat = priors.Gamma(1e-9, 1e-9)
    given = dict.fromkeys(["1|Subject", "Days|Subject", "sigma"], flat)
    given |= {"cor|Subject": priors.LKJ(1e-9), "Intercept": (250.0, 1e6), "Days": (0.0, 1e6)}
    text = "Reaction ~ Days + (Days | Subject)"
    for shift in (0.0, 2000.0):
        moved = data.assign(Days=data.Days + shift)
        model = formula.fit(text, moved, priors=given, strategy="eb")
        spread = model.design.new_rows(moved.head(10).assign(Subject="new"), "integrate").new
        variance = ((spread @ model.design.covariance(model.posterior.mode)) * spread).sum(axis=1)
        days = np.arange(10.0)
        right = 24.7407**2 + 2.0 * days * 0.06555 * 24.7407 * 5.92214 + (days * 5.92214) ** 2
        np.testing.assert_allclose(variance, right, rtol=1e-3)
        assert model.hyper.loc["sigma", "mode"] == pytest.approx(25.5918, rel=1e-4)
        assert model.fixed.loc["Days", "sd"] == pytest.approx(1.54579, rel=1e-3)
        if not shift:
            found = model.hyper["mode"].iloc[:3]
            np.testing.assert_allclose(found, [24.7407, 5.92214, 0.06555], rtol=1e-3)


def test_warnings_say_where_effects_are():
    """Of intercepts at the mean of x, whose sd is 0 though that at the origin of x is not."""
    rng = np.random.default_rng(1)
    slope = rng.normal(size=12)[np.repeat(np.arange(12), 10)]
    x = np.tile(np.arange(10.0), 12) - 4.5
    y = slope * x + 0.5 * rng.normal(size=120)
    data = pandas.DataFrame({"y": y, "x": x + 100.0, "g": np.repeat(list("abcdefghijkl"), 10)})
    with pytest.warns(epfast.DataWarning, match=r"the sd of '1\|g at the means' is compatible"):
        model = formula.fit("y ~ x + (x | g)", data)
    assert model.posterior.hyper_names == ("1|g", "x|g", "cor 1|g,x|g", "sd")
    assert model.hyper.loc["sd 1|g", "5%"] > 30.0


@OF_NEW
def test_rows_of_many_levels_are_sparse():
    """The same numbers as dense ones, of known and new levels; entries are in order, none is 0."""
    n, rng = 2000, np.random.default_rng(1)
    level, few = rng.integers(400, size=n), rng.integers(5, size=n)
    x = np.where(rng.random(n) < 0.1, 0.0, rng.normal(size=n))
    y = rng.normal(size=400)[level] + rng.normal(size=n)
    data = pandas.DataFrame({"y": y, "g": level, "h": few, "x": x})
    model = formula.fit("y ~ x + (x | g) + (0 + x | h)", data, strategy="eb")
    new = data.head(50).assign(g=np.where(np.arange(50) % 7, level[:50], 1000))
    one_hot = new.g.to_numpy()[:, None] == np.unique(level)
    of_few = new.h.to_numpy()[:, None] == np.arange(5)
    x = new.x.to_numpy()[:, None]
    right = np.hstack([np.ones((50, 1)), x, one_hot, one_hot * x, of_few * x])
    rows = model.design.new_rows(new, "zero").rows
    assert rows.format == "csr"
    assert rows.has_canonical_format
    assert (rows.data != 0.0).all()
    np.testing.assert_array_equal(rows.toarray(), right)
    np.testing.assert_allclose(model.predict(new, "zero"), right @ model.mean, atol=1e-9)


def test_many_levels_stay_sparse(monkeypatch):
    n, rng = 3000, np.random.default_rng(1)
    level = rng.integers(300, size=n)
    y = rng.normal(size=300)[level] + rng.normal(size=n)
    data = pandas.DataFrame({"y": y, "g": level.astype(str), "x": rng.normal(size=n)})
    csr = formula.fit("y ~ x + (1 | g)", data, strategy="eb")
    monkeypatch.setattr(formula, "FEW", 300)
    dense = formula.fit("y ~ x + (1 | g)", data, strategy="eb")
    assert isinstance(dense.design.rows(data)[0], np.ndarray)
    np.testing.assert_allclose(csr.posterior.mean, dense.posterior.mean, atol=1e-4)
    np.testing.assert_allclose(csr.predict(data.head()), dense.predict(data.head()), atol=1e-4)


def test_many_levels_take_no_dense_columns():
    """Two terms with a column for each level took 16 GB for 100,000 rows in 10,000 levels."""
    n, rng = 6000, np.random.default_rng(1)
    level, x = rng.integers(2000, size=n), rng.normal(size=n)
    y = rng.normal(size=2000)[level] + x + 0.3 * rng.normal(size=n)
    data = pandas.DataFrame({"y": y, "g": level, "x": x})
    tracemalloc.start()
    try:
        formula.fit("y ~ x + (x || g)", data, strategy="eb")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 8 * n * 2000 / 2


def test_levels_are_those_of_formulae():
    """Also of interactions, of categories in an order of their own, and of numbers."""
    rng = np.random.default_rng(0)
    data = pandas.DataFrame({"y": rng.normal(size=40), "x": rng.normal(size=40)})
    data["g"] = rng.integers(4, size=40)
    data["h"] = pandas.Categorical(
        rng.choice(["b", "a", "c"], 40), categories=["c", "a", "b", "d"], ordered=True
    )
    groups = "(x | g)", "(1 | g:h)", "(1 | g/h) + (0 + x || h)", "(x | C(g))"
    for text in map("y ~ x + {}".format, groups):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            labels = formula.fit(text, data, strategy="eb").labels
            theirs = formulae.design_matrices(text.replace("||", "|"), data)
        of_groups = [one for term in theirs.group.terms.values() for one in term.labels]
        assert list(labels)[-len(of_groups) :] == of_groups


@pytest.mark.parametrize(
    ("text", "given", "error", "said"),
    [
        ("one ~ a + (1 | g)", {}, ValueError, "the response is 1 in all rows"),
        ("y ~ q", {}, ValueError, "'q' is unknown; allowed: the columns of data, a, g"),
        ("y ~ a + (1 | q)", {}, ValueError, "'q' is unknown"),
        ("y ~ a +", {}, ValueError, "cannot be read"),
        (
            "y ~ a | g",
            {},
            ValueError,
            r"'\|' is not supported there; .*in parentheses for a group term",
        ),
        ("y ~ (a | g || h)", {}, ValueError, r"one \| or \|\| in parentheses"),
        ("y ~ (1 |p| g)", {}, ValueError, r"one \| or \|\| in parentheses"),
        ("y ~ a %in% g", {}, ValueError, "'%' is not supported there"),
        ("y | weights(z) ~ a", {}, ValueError, "weights= for weights"),
        ("y + 1 ~ a", {}, ValueError, r"arithmetic needs I\(\)"),
        ("k | trials(trials) ~ a", {}, ValueError, "prop"),
        ("k / trials ~ a", {}, ValueError, r"'/' left of ~ .* I\(\).*prop\(successes, trials\)"),
        ("y > 0 ~ a", {}, ValueError, r"'>' left of ~ is no response; .* I\(y > 0\)"),
        ("y ~ a == 1", {}, ValueError, "'==' is not supported there"),
        ("y ~ (a == 1 | g)", {}, ValueError, r"'==' needs I\(\)"),
        ("y ~ prop(right, trials)", {}, ValueError, "is a response, which stands left of ~"),
        ("offset(y) ~ a", {}, ValueError, "is no response; it stands right of ~"),
        ("y ~ a * offset(z)", {}, ValueError, r"allowed: offset\(\) alone"),
        ("y ~ (offset(z) | g)", {}, ValueError, r"allowed: offset\(\) alone"),
        ("y ~ .", {}, ValueError, "write their names"),
        ("y ~ a^2", {}, ValueError, r"squares I\(a \*\* 2\)"),
        ("y ~ a ~ z", {}, ValueError, "more than one ~"),
        ("~ a", {}, ValueError, "it has no response"),
        ("y ~ `a", {}, ValueError, "backquotes has no end"),
        ("y ~ (a", {}, ValueError, r"allowed: \+ between terms"),
        ("y ~ as.factor(g)", {}, ValueError, r"'as.factor' is unknown; .* C\(x\)"),
        ("word['maybe'] ~ a", {"family": "bernoulli"}, ValueError, "'maybe' is not a level"),
        ("h ~ a", {"family": "bernoulli"}, ValueError, "a variable of two levels"),
        ("I(k / 6) ~ a", {"family": "binomial"}, ValueError, r"cbind\(successes, failures\)"),
        ("y ~ I((a + z) * k) + I(a + z * k)", {}, ValueError, "two terms that are written"),
        ("y ~ mixed", {}, ValueError, "'mixed' holds int and str; allowed: one type"),
        ("y ~ flags", {}, ValueError, r"'flags' holds bool as objects; .*infer_objects\(\)"),
        ("flags ~ a", {}, ValueError, "'flags' holds bool as objects"),
        ("y ~ s(a)", {}, ValueError, "'s' is unknown; allowed: functions of the caller"),
        ("y ~ 0", {}, ValueError, "only offsets; allowed: an intercept"),
        ("y ~ 0 + offset(z)", {}, ValueError, "only offsets"),
        ("y ~ when", {}, ValueError, "'when' holds times; allowed: numbers; subtract a date"),
        ("y ~ a", {"weights": "q"}, ValueError, "weights is 'q'; allowed: 'a', 'g'"),
        ("y ~ a", {"weights": [1.0]}, ValueError, "weights has shape"),
        ("a", {}, ValueError, "allowed: a formula with a response"),
        (3, {}, TypeError, "formula is 3"),
        ("y ~ a", {"family": "beta"}, ValueError, "family is 'beta'; allowed: 'gaussian'"),
        (
            "y ~ a",
            {"family": "bernoulli"},
            ValueError,
            "'y' is not a response of family 'bernoulli'; allowed: 0 and 1",
        ),
        ("y ~ a", {"family": "binomial"}, ValueError, "prop"),
        (
            "g ~ a",
            {},
            ValueError,
            "'g' is not a response of family 'gaussian'; allowed: finite numbers",
        ),
        (
            "y ~ a",
            {"priors": {"b": (0.0, 1.0)}},
            ValueError,
            "'b', which is not a term.*'a', 'sigma'",
        ),
        (
            "y ~ a",
            {"priors": {"a": 1.0}},
            TypeError,
            r"priors\['a'\] is 1.0; allowed: \(mean, sd\)",
        ),
        ("y ~ a", {"priors": {"sigma": 1.0}}, TypeError, "allowed: a prior of epfast.priors"),
        ("y ~ a", {"priors": [1]}, TypeError, "priors is"),
        ("y ~ (a | g)", {"priors": {"cor|g": HALF}}, TypeError, r"cor\|g.*such as LKJ"),
        ("y ~ (a || g)", {"priors": {"cor|g": 1.0}}, ValueError, "'cor|g', which is not a term"),
        ("y ~ (a | g) + (z + h | g)", {}, ValueError, r"correlates '1\|g' in two terms"),
        ("y ~ a", {"strategy": "nuts"}, ValueError, "strategy is 'nuts'"),
    ],
)
def test_bad_input(text, given, error, said):
    mixed = [1, *["a"] * (N - 1)]
    data = DATA.assign(when=pandas.Timestamp("2020-01-01"), one=1.0, mixed=mixed)
    data["flags"] = DATA.won.astype(object)
    with pytest.raises(error, match=said):
        formula.fit(text, data, **given)


def test_terms_that_are_no_numbers():
    with np.errstate(invalid="ignore"), pytest.raises(ValueError, match=r"'np.log\(a\)' is NaN"):
        formula.fit("y ~ np.log(a)", DATA)
    with (
        np.errstate(invalid="ignore"),
        pytest.raises(ValueError, match=r"'np.log\(a\)' is not a response"),
    ):
        formula.fit("np.log(a) ~ z", DATA)


def test_bad_new_data():
    """Levels that are missing, or new in a common term, are no new levels of a group."""
    model = formula.fit("y ~ h + (1 | g)", DATA, strategy="eb")
    with pytest.raises(ValueError, match="'g' is missing in row 1 of data"):
        model.predict(DATA.head(3).assign(g=["g1", None, "g2"]))
    with pytest.raises(ValueError, match=r"The levels \(x\) in 'h' are not present"):
        model.predict(DATA.head(3).assign(h="x"))
    with pytest.raises(ValueError, match="'h' is unknown; allowed: the columns of data, a, g"):
        model.predict(DATA.drop(columns="h"))


def test_bad_data():
    with pytest.raises(ValueError, match="data has two columns 'a'"):
        formula.fit("y ~ a", pandas.concat([DATA, DATA[["a"]]], axis=1))
    with pytest.raises(TypeError, match="data is"):
        formula.fit("y ~ a", DATA.to_numpy())
    with pytest.raises(ValueError, match="data has 0 rows"):
        formula.fit("y ~ a", DATA.head(0))
    with pytest.raises(ValueError, match=r"'a' is missing in row \d+ of data; .*dropna"):
        formula.fit("y ~ a", DATA.assign(a=np.where(A > 1.0, np.nan, A)))


# ---- what a fit keeps: pickles, copies, files ----


def tripled(x):
    return 3.0 * np.asarray(x)


FUNCTIONS_IN = [
    "y ~ log(trials + z ** 2) + (1 | g)",
    "y ~ np.log1p(trials) + np.exp(a) + I(a * np.pi)",
    "y ~ scale(a) + bs(z, df=4) + (scale(z) | g)",
    "y ~ cr(a, df=4) + cc(z, period=7)",
    "y ~ tp(a, df=4) + z * h",
    "y ~ poly(a, 2) + C(k, Treatment(1)) + S(h)",
    "y ~ a + offset(scale(z)) + (1 | g:h) + (0 + a | C(trials + 1))",
    "log(trials + y ** 2) ~ center(a):h",
]


@pytest.mark.parametrize("text", FUNCTIONS_IN)
@pytest.mark.filterwarnings("ignore::epfast.DataWarning")
def test_fits_with_functions_are_kept(text, tmp_path):
    """Pickles, copies and files predict the same: to the last bit, since they have the numbers."""
    model = formula.fit(text, DATA, strategy="eb")
    model.save(tmp_path / "fit.npz")
    loaded = epfast.load(tmp_path / "fit.npz")
    pickled = pickle.loads(pickle.dumps(model))
    new = DATA.iloc[[3, 50]]
    for again in (pickled, copy.deepcopy(model), copy.copy(model), loaded):
        np.testing.assert_array_equal(again.predict(new), model.predict(new))
        assert again.summary().equals(model.summary())
        assert repr(again) == repr(model)
    with pytest.raises(ValueError, match="rows"):
        loaded.loo_log_predictive()
    loo = model.loo_log_predictive()
    for again in (pickled, loaded):
        np.testing.assert_allclose(again.with_rows(DATA).loo_log_predictive(), loo, rtol=1e-9)


def test_pickles_do_not_hold_the_data():
    """A row more costs its site, three numbers, in place of its columns several times."""
    many = pandas.concat([DATA] * 20, ignore_index=True)
    small, large = (
        len(pickle.dumps(formula.fit("y ~ bs(a, df=9) + scale(z)", data, strategy="eb")))
        for data in (DATA, many)
    )
    assert (large - small) / (len(many) - N) < 8 * 3 + 1


@pytest.mark.filterwarnings("ignore::epfast.DataWarning")
def test_functions_of_the_caller(tmp_path):
    """They are those of the fit, and an error in words where they cannot be kept."""
    factor = 2.0

    def doubled(x):
        return factor * x

    by_module = formula.fit("y ~ tripled(a) + offset(tripled(z))", DATA, strategy="eb")
    again = pickle.loads(pickle.dumps(by_module))
    np.testing.assert_array_equal(again.predict(DATA), by_module.predict(DATA))
    local = formula.fit("y ~ doubled(a) + I(z * factor)", DATA, strategy="eb")
    before = local.predict(DATA)
    factor = 5.0
    assert doubled(1.0) == 5.0
    np.testing.assert_array_equal(copy.deepcopy(local).predict(DATA), local.predict(DATA))
    assert not np.array_equal(local.predict(DATA), before)
    with pytest.raises(TypeError, match=r"'doubled' of the formula .* cannot be pickled; allowed"):
        pickle.dumps(local)
    for model in (by_module, local):
        with pytest.raises(ValueError, match="is not written; allowed: functions of formulae"):
            model.save(tmp_path / "fit.npz")
    assert not list(tmp_path.iterdir())


def test_names_of_every_formula_are_not_those_of_the_caller():
    """log is NumPy's where the caller has another one, such as that of math."""
    from math import log

    assert log(1.0) == 0.0
    given = formula.fit("y ~ log(trials) + a", DATA)
    assert given.converged


# ---- responses, offsets, orders ----


@pytest.mark.parametrize(
    "text",
    [
        "p(right, trials) ~ a",
        "proportion(right, 6) ~ a",
        "cbind(right, trials - right) ~ a",
        "right | trials(trials) ~ a",
        "(right | trials(6)) ~ a",
    ],
)
def test_counts_of_successes(text):
    """As R, brms and bambi write them: the same model as prop()."""
    first, other = (formula.fit(one, DATA, "binomial") for one in ("prop(right, trials) ~ a", text))
    np.testing.assert_array_equal(other.posterior.mean, first.posterior.mean)
    logs = stats.binom.logpmf(DATA.right, 6, 1.0 / (1.0 + np.exp(-first.predict_latent(DATA)[0])))
    assert np.abs(other.log_predictive(DATA) - logs).max() < 0.1


@pytest.mark.parametrize(
    "text",
    [
        "k ~ a + offset(log(trials)) + offset(z)",
        "k ~ offset(z) + a + offset(log(trials))",
        "k ~ offset(log(trials)) + offset(z) + 1 + a",
        "k ~ a + offset(log(trials) + z)",
        "k ~ a + offset(log(trials)) + offset(tripled(z)) + offset(-2 * z)",
    ],
)
def test_offsets_add_up(text):
    """At any place, with functions in them or not: as one column of their sum."""
    total = DATA.assign(total=DATA.z + np.log(DATA.trials))
    first = formula.fit("k ~ a + offset(total)", total, "poisson")
    other = formula.fit(text, DATA, "poisson")
    np.testing.assert_allclose(other.posterior.mean, first.posterior.mean, rtol=1e-9)
    np.testing.assert_allclose(other.predict(DATA), first.predict(total), rtol=1e-9)


def test_constant_offset():
    model = formula.fit("y ~ a + offset(-2)", DATA)
    plain = formula.fit("I(y + 2) ~ a", DATA)
    np.testing.assert_allclose(model.posterior.mean, plain.posterior.mean, rtol=1e-6)
    np.testing.assert_allclose(model.predict(DATA.head(1)), plain.predict(DATA.head(1)) - 2.0)


@pytest.mark.parametrize("ordered", [False, True])
def test_categories_keep_their_order(ordered):
    """As in patsy and R: the first category is the reference, the second of two is 1."""
    size = pandas.Categorical(
        np.array(["low", "mid", "high"])[np.arange(N) % 3],
        categories=["low", "mid", "high"],
        ordered=ordered,
    )
    score = pandas.Categorical(DATA.word, categories=["yes", "no"], ordered=ordered)
    data = DATA.assign(size=size, score=score)
    for term in ("size", "C(size)"):
        model = formula.fit(f"y ~ {term} + (1 | size)", data, strategy="eb")
        assert list(model.fixed.index) == ["Intercept", f"{term}[mid]", f"{term}[high]"]
        groups = [f"1|size[{level}]" for level in ("low", "mid", "high")]
        assert list(model.random.index) == groups
        as_text = data.head(5).assign(size=list(size[:5]))
        np.testing.assert_array_equal(model.predict(as_text), model.predict(data.head(5)))
    no, yes = (formula.fit(f"{one} ~ a", data, "bernoulli") for one in ("score", "word"))
    np.testing.assert_allclose(no.posterior.mean, -yes.posterior.mean, atol=1e-6)


# ---- new levels ----


def test_new_levels_are_named():
    """Also where numbers come as text, which no choice averages over."""
    data = DATA.assign(site=np.arange(N) % 9)
    model = formula.fit("y ~ a + (1 | site) + (1 | g:h)", data, strategy="eb")
    new = data.head(12).assign(site=np.arange(20, 32))
    with pytest.raises(ValueError, match=r"20, 21, 22, 23, 24 and 7 more are not levels of 'site'"):
        model.predict(new)
    as_text = data.head(12).assign(site=data.site.head(12).astype(str))
    for choice in ("error", "integrate", "zero"):
        with pytest.raises(ValueError, match=r"'0', str, and the fit has 0, int; .*astype\(int\)"):
            model.predict(as_text, new_levels=choice)
    with pytest.raises(ValueError, match=r"\('g0', 'x'\) is not a level of 'g:h'"):
        model.predict(data.head(3).assign(g="g0", h="x"))
    assert np.isfinite(model.predict(new, new_levels="integrate")).all()
    floats = data.head(12).assign(site=data.site.head(12).astype(float))
    np.testing.assert_array_equal(model.predict(floats), model.predict(data.head(12)))
    model = formula.fit("y ~ a + n", data.assign(n=data.k.astype(str)), strategy="eb")
    with pytest.raises(ValueError, match=r"'n' holds 1, int, and the fit has '1', str"):
        model.predict(data.head(3).assign(n=1))
    with pytest.raises(ValueError, match=r"'a' holds .*; allowed: numbers"):
        model.predict(data.head(3).assign(a="1.5"))


# ---- the methods of a posterior ----


@pytest.fixture(scope="module")
def grouped():
    return formula.fit("y ~ a + (a | g)", DATA)


def test_methods_are_those_of_the_posterior_of_the_columns(grouped):
    post, (rows, *_) = grouped.posterior, grouped.design.rows(DATA)
    y = DATA.y.to_numpy()
    for name in ("mean", "variance", "sd", "log_evidence", "converged", "residual", "n_refused"):
        np.testing.assert_array_equal(getattr(grouped, name), getattr(post, name))
    np.testing.assert_array_equal(grouped.credible_interval(0.9), post.credible_interval(0.9))
    np.testing.assert_array_equal(grouped.quantile(0.2), post.quantile(0.2))
    np.testing.assert_array_equal(grouped.sample(3, 0), post.sample(3, 0))
    np.testing.assert_array_equal(grouped.loo_log_predictive(), post.loo_log_predictive())
    np.testing.assert_allclose(grouped.log_predictive(DATA), post.log_predictive(rows, y))
    assert grouped.score(DATA) == pytest.approx(post.score(rows, y))
    for got, right in zip(
        grouped.predict_latent(DATA.head(4), joint=True),
        post.predict_latent(rows[:4], joint=True),
        strict=True,
    ):
        np.testing.assert_allclose(got, right, atol=1e-12)
    assert list(grouped.labels) == [*grouped.fixed.index, *grouped.random.index]
    assert post.labels == post.best.labels == grouped.labels


def test_a_check_is_that_of_the_posterior():
    model = formula.fit("word ~ a + z", DATA, "bernoulli")
    assert model.last_check is None
    assert model.check(200).reason == model.posterior.check(200).reason
    assert model.last_check.verdict == model.posterior.last_check.verdict


def test_compare_takes_fits(grouped):
    """The one with the group effects is better by leave-one-out, as its posterior says."""
    plain = formula.fit("y ~ a", DATA)
    table = epfast.compare({"plain": plain, "grouped": grouped, "posterior": plain.posterior})
    assert table.index[0] == "grouped"
    assert table.loc["plain", "loo"] == table.loc["posterior", "loo"]
    assert table.loc["grouped", "log_evidence"] == pytest.approx(grouped.log_evidence)


def test_draws_for_arviz_have_the_names_of_the_formula(grouped):
    pytest.importorskip("xarray")
    drawn = grouped.to_arviz(2000)["posterior"]
    assert list(drawn["term"].to_numpy()[:3]) == ["Intercept", "a", "1|g[g0]"]
    table = grouped.summary()
    assert {"1|g", "a|g", "cor 1,a|g", "sigma"} <= set(drawn)
    for name in ("1|g", "a|g", "cor 1,a|g", "sigma"):
        label = f"sd {name}" if name in grouped.design.effects else name
        draws = drawn[name].to_numpy().ravel()
        assert len(np.unique(draws)) > 1990
        assert (draws <= table.loc[label, "3%"]).mean() == pytest.approx(0.03, abs=0.016)
        assert (draws <= table.loc[label, "97%"]).mean() == pytest.approx(0.97, abs=0.016)


def test_rows_come_and_go():
    """partial_fit of the last rows is the fit of all by exact noise; remove takes them out."""
    given = {"priors": {"Intercept": (0.0, 5.0), "a": (0.0, 5.0), "sigma": HALF, "1|g": HALF}}
    mixed = DATA.sample(frac=1.0, random_state=0).reset_index(drop=True)
    first = formula.fit("y ~ a + (1 | g)", mixed.iloc[:70], **given)
    later = first.partial_fit(mixed.iloc[70:])
    whole = formula.fit("y ~ a + (1 | g)", mixed, **given)
    assert np.abs((later.mean - whole.mean) / whole.sd).max() < 0.1
    assert later.log_evidence == pytest.approx(whole.log_evidence, abs=0.1)
    back = later.remove(np.arange(70, N))
    np.testing.assert_allclose(back.mean, first.mean, atol=1e-8)


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("y ~ a + (a | g)", "gaussian"),
        ("won ~ a + (1 | g)", "bernoulli"),
        ("k ~ a + offset(z) + (1 | g)", "poisson"),
    ],
)
def test_draws_of_responses(text, family):
    """Of known and new levels: means and sds are those of predict, and rows of a level share it."""
    data = DATA.assign(won=DATA.won.astype(int))
    model = formula.fit(text, data, family)
    new = data.iloc[[0, 40, 41]].assign(a=[0.5, 1.0, 1.0], g=["g3", "new", "new"], z=0.1)
    mean, sd = model.predict(new, new_levels="integrate", return_std=True)
    draws = model.sample_y(new, 20_000, 1, new_levels="integrate")
    assert draws.shape == (20_000, 3)
    np.testing.assert_allclose(draws[:, 0].mean(), mean[0], atol=5.0 * sd[0] / 141.0)
    if family != "poisson":  # exp(normal) of an sd that is not known has hardly a moment
        np.testing.assert_allclose(draws.std(axis=0), sd, rtol=0.06)
    if family == "gaussian":
        _, joint = model.predict_latent(new, new_levels="integrate", joint=True)
        np.testing.assert_allclose(np.cov(draws.T)[0, 1:], joint[0, 1:], atol=0.02)
        assert np.cov(draws.T)[1, 2] == pytest.approx(joint[1, 2], rel=0.06)
        np.testing.assert_allclose(
            np.diag(joint), model.predict_latent(new, new_levels="integrate")[1]
        )
    with pytest.raises(ValueError, match="'new' is not a level"):
        model.sample_y(new, 3)


def test_predictive_density_of_a_new_level(grouped):
    """Gaussian noise and effects: N(m, v + noise) at each point, averaged by hand."""
    new = DATA.head(2).assign(g="new")
    post, rows = grouped.posterior, np.column_stack([np.ones(2), new.a])
    density = 0.0
    for weight, point, one in zip(post.weights, post.points, post.posteriors, strict=True):
        common = one.covariance[:2, :2]
        s = np.outer(point[:2], point[:2]) * np.array([[1.0, point[2]], [point[2], 1.0]])
        variance = ((rows @ (common + s)) * rows).sum(axis=1) + point[3] ** 2
        density += weight * stats.norm.pdf(new.y, rows @ one.mean[:2], np.sqrt(variance))
    found = grouped.log_predictive(new, new_levels="integrate")
    np.testing.assert_allclose(found, np.log(density), rtol=1e-9)


@pytest.mark.parametrize(("text", "family"), [("y ~ a", "student"), ("k ~ a", "poisson")])
def test_intervals_of_predictions(text, family):
    """Their ends are quantiles of many draws."""
    model = formula.fit(text, DATA, family)
    mean, ends = model.predict(DATA.head(2), interval=0.8)
    draws = model.sample_y(DATA.head(2), 20_000, 0)
    assert ((draws < ends[:, 0]).mean(axis=0) <= 0.11).all()
    assert ((draws <= ends[:, 1]).mean(axis=0) >= 0.89).all()
    if family == "student":
        assert ((draws < ends[:, 0]).mean(axis=0) >= 0.09).all()
    with pytest.raises(ValueError, match=r"interval is 0\.8 for family 'bernoulli'"):
        formula.fit("word ~ a", DATA, "bernoulli").predict(DATA.head(2), interval=0.8)
    assert len(model.predict(DATA.head(2), return_std=True, interval=0.8)) == 3
    assert (ends[:, 0] < mean).all()


# ---- default priors ----

OF_UNITS = {"gaussian": "y", "t": "y", "gamma": "size", "weibull": "size"}


@pytest.mark.parametrize("family", ["gaussian", "t", "gamma", "weibull", "poisson", "bernoulli"])
@pytest.mark.filterwarnings("ignore::epfast.DataWarning")
def test_defaults_do_not_depend_on_units(family):
    """y and x in other units, and from other origins: the same model by a change of variables."""
    data = DATA.assign(size=np.exp(DATA.y), won=DATA.won.astype(int))
    y = OF_UNITS.get(family, "k" if family == "poisson" else "won")
    text, strategy = f"{y} ~ a + h + (1 | g)", "eb"
    model = formula.fit(text, data, family, strategy=strategy)
    changes = [(1.0, 0.0, 1e6, 0.0), (1.0, 0.0, 1e-6, 0.0), (1.0, 0.0, 1.0, 100.0)]
    if family in OF_UNITS:
        changes += [(1e6, 0.0, 1.0, 0.0), (1e-6, 0.0, 1.0, 0.0)]
    if family in ("gaussian", "t"):
        changes += [(1.0, 1000.0, 1.0, 0.0)]
    is_log = family in ("gamma", "weibull")
    for c, shift, b, origin in changes:
        moved = data.assign(a=b * data.a + origin)
        moved[y] = c * data[y] + shift if c != 1.0 or shift else data[y]
        other = formula.fit(text, moved, family, strategy=strategy)
        gap = other.log_evidence + N * np.log(c) - model.log_evidence
        assert gap == pytest.approx(0.0, abs=1e-4), (c, shift, b, origin)
        mean, scale = model.mean.copy(), 1.0 if is_log else c
        mean[1] /= b
        mean[0] += (np.log(c) if is_log else shift) - mean[1] * origin
        sd = scale * model.sd / np.array([1.0, b, *np.ones(len(mean) - 2)])
        np.testing.assert_allclose(
            (other.mean - scale * mean + (scale - 1.0) * shift)[1:] / sd[1:], 0.0, atol=1e-3
        )
        right = scale * (mean[0] - shift) + shift if not is_log else mean[0]
        assert other.mean[0] == pytest.approx(right, abs=1e-3 * abs(right) + 1e-3 * sd[0])


def test_defaults_are_these():
    """Those that the page names, given by hand, are the same fit."""
    unit, spread = DATA.y.std(), A.std()
    priors_of = {
        "a": (0.0, 2.5 * unit / spread),
        "sigma": priors.HalfStudentT(4.0, unit),
        "nu": priors.Gamma(2.0, 0.1),
        "1|g": priors.HalfNormal(2.5 * unit),
    }
    default, given = (
        formula.fit("y ~ a + (1 | g)", DATA, "student", priors=one, strategy="eb")
        for one in (None, priors_of)
    )
    assert given.log_evidence == pytest.approx(default.log_evidence, abs=1e-9)
    np.testing.assert_allclose(given.mean, default.mean, atol=1e-9)
    centred = formula.fit(
        "y ~ a + (1 | g)",
        DATA.assign(a=A - A.mean()),
        "student",
        priors={**priors_of, "Intercept": (DATA.y.mean(), 2.5 * unit)},
        strategy="eb",
    )
    assert centred.log_evidence == pytest.approx(default.log_evidence, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "other"), [("gaussian", "normal"), ("t", "student_t"), ("negbinomial", "nb")]
)
def test_families_by_other_names(name, other):
    """The names of losses, and those of other packages, mean the same as at the other doors."""
    fits = [formula.fit("k ~ a", DATA, one, strategy="eb") for one in (name, other)]
    assert fits[0].posterior.posteriors[0].loss == fits[1].posterior.posteriors[0].loss
    assert list(fits[0].summary().index) == list(fits[1].summary().index)


def test_laplace_noise():
    """Its scale is the mean of abs(y - h), to the 1 / sqrt(n) of its posterior."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    y = 10.0 + 5.0 * x + 3.0 * rng.laplace(size=400)
    table = formula.fit("y ~ x", {"x": x, "y": y}, "laplace", strategy="eb").summary()
    assert list(table.index) == ["Intercept", "x", "b"]
    np.testing.assert_allclose(table["mean"], [10.0, 5.0, 3.0], rtol=0.1)
