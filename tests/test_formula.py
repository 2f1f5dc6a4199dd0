"""Regressions by a formula: the same as their columns by hand, and errors in its words."""

import tracemalloc
import warnings

import numpy as np
import pytest

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
    """They add the variance of their group, with its correlations, or nothing, or are refused."""
    model = formula.fit(f"k ~ a + (a {bars} g)", DATA, "poisson")
    before = formulae.config["EVAL_UNSEEN_CATEGORIES"]
    new = pandas.DataFrame({"a": [0.0, 2.0, 2.0], "g": ["other", "other", "g3"]})
    mean, variance = model.predict_latent(new)
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
        model.predict(new, new_levels="error")
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
        correlations={("1|g", "a|g"): lkj},
        learn={"sd": prior},
        prior_mean=model.posterior.problem.prior_mean,
        prior_variance=1.0 / np.diag(model.posterior.problem.prior.precision),
        strategy="eb",
    )
    np.testing.assert_allclose(model.posterior.points, post.points, rtol=1e-3)
    np.testing.assert_allclose(model.posterior.mean, post.mean, atol=1e-3)
    with pytest.warns(epfast.DataWarning, match="10 hyper-parameters"):
        wide = formula.fit("y ~ a + (h | g) + (1 + a | h)", DATA)
    effects = ["1|g", "h[v]|g", "h[w]|g", "1|h", "a|h"]
    pairs = ["1,h[v]|g", "1,h[w]|g", "h[v],h[w]|g", "1,a|h"]
    names = [*(f"sd {name}" for name in effects), *(f"cor {name}" for name in pairs), "sigma"]
    assert list(wide.hyper.index) == names


def test_many_levels_stay_sparse():
    n, rng = 3000, np.random.default_rng(1)
    level = rng.integers(300, size=n)
    y = rng.normal(size=300)[level] + rng.normal(size=n)
    data = pandas.DataFrame({"y": y, "g": level.astype(str), "x": rng.normal(size=n)})
    formula_dense, formula.DENSE = formula.DENSE, 0
    try:
        csr = formula.fit("y ~ x + (1 | g)", data, strategy="eb")
    finally:
        formula.DENSE = formula_dense
    dense = formula.fit("y ~ x + (1 | g)", data, strategy="eb")
    np.testing.assert_allclose(csr.posterior.mean, dense.posterior.mean, atol=1e-4)
    np.testing.assert_allclose(csr.predict(data.head()), dense.predict(data.head()), atol=1e-4)


def test_many_levels_take_no_dense_columns():
    """Two terms with a column for each level took 16 GB for 100,000 rows in 10,000 levels."""
    n, rng = 6000, np.random.default_rng(1)
    level, x = rng.integers(2000, size=n), rng.normal(size=n)
    data = pandas.DataFrame({"y": rng.normal(size=2000)[level] + x, "g": level, "x": x})
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
    with pytest.raises(error, match=said):
        formula.fit(text, DATA.assign(when=pandas.Timestamp("2020-01-01"), one=1.0), **given)


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
    with pytest.raises(TypeError, match="data is"):
        formula.fit("y ~ a", DATA.to_numpy())
    with pytest.raises(ValueError, match="data has 0 rows"):
        formula.fit("y ~ a", DATA.head(0))
    with pytest.raises(ValueError, match=r"'a' is missing in row \d+ of data; .*dropna"):
        formula.fit("y ~ a", DATA.assign(a=np.where(A > 1.0, np.nan, A)))


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
