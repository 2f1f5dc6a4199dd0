"""summary, credible intervals and ArviZ's containers."""

import dataclasses
import pickle
import re
import sys
import warnings

import numpy as np
import pytest
from scipy import stats

import epfast
from epfast.inference.report import TextTable
from tests.oracles.data import classes, process

pytestmark = pytest.mark.filterwarnings("ignore:::arviz")


@pytest.fixture(scope="module")
def post():
    X, y = classes(80, 3)
    return epfast.fit_linear(X, y)


def processes():
    _, K, y = process(40)
    return [epfast.fit_gp(K, y, loss="probit", rank=rank) for rank in (None, 5)]


@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_credible_intervals_are_quantiles(post, level):
    normal = stats.norm(post.mean, np.sqrt(post.variance))
    np.testing.assert_allclose(post.credible_interval(level), np.stack(normal.interval(level), 1))


@pytest.mark.parametrize("level", [0.0, 1.0, -1, 95])
def test_levels(post, level):
    for method in (post.credible_interval, post.summary):
        with pytest.raises(ValueError, match="level is"):
            method(level)


def test_summary_is_a_frame(post):
    pandas = pytest.importorskip("pandas")
    frame = post.summary(0.9)
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == ["mean", "sd", "5%", "95%", "P(>0)"]
    assert list(frame.index) == ["x0", "x1", "x2"]
    np.testing.assert_allclose(frame["mean"], post.mean)
    np.testing.assert_allclose(frame[["5%", "95%"]], post.credible_interval(0.9))
    above = stats.norm(post.mean, np.sqrt(post.variance)).sf(0.0)
    np.testing.assert_allclose(frame["P(>0)"], above)
    assert frame.attrs["log_evidence"] == post.log_evidence
    assert frame.attrs["converged"] is True
    assert frame.attrs["is_likelihood"] is True


def test_summary_is_text_without_pandas(post, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    table = post.summary()
    assert isinstance(table, TextTable)
    np.testing.assert_array_equal(table["mean"], post.mean)
    lines = str(table).splitlines()
    assert lines[0].split() == ["mean", "sd", "2.5%", "97.5%", "P(>0)"]
    assert [line.split()[0] for line in lines[1:4]] == ["x0", "x1", "x2"]
    assert len({len(line) for line in lines[:4]}) == 1  # aligned
    assert lines[4:] == table.attrs["notes"]
    assert repr(table) == str(table)
    many = str(epfast.fit_linear(*classes(80, 11)).summary()).splitlines()
    assert [line.partition(" ")[0] for line in many[1:12]] == [f"x{k}" for k in range(11)]


def test_notes_say_what_not_to_trust(post):
    X, y = classes(80, 3)
    assert post.summary().attrs["notes"][0] == f"log evidence: {post.log_evidence:.4f}"
    assert post.summary().attrs["notes"][1].startswith("converged: ")
    hinge = epfast.fit_linear(X, y, loss="hinge", posterior="factorized").summary().attrs
    assert "is not a log probability: the loss is no likelihood" in hinge["notes"][0]
    assert hinge["is_likelihood"] is False
    assert "factorised" in hinge["notes"][-1]
    short = epfast.fit_linear(X, y, schedule=epfast.EP(sweeps=2, tol=0.0))
    assert short.summary().attrs["notes"][1].startswith("not converged: 2 sweeps")
    once = epfast.fit_linear(X, y, schedule=epfast.ADF())
    assert "no fixed point" in once.summary().attrs["notes"][1]


@pytest.mark.parametrize("kind", [0, 1])
def test_processes_are_summed_up_by_latent_value(kind):
    process = processes()[kind]
    table = process.summary()
    np.testing.assert_allclose(table["mean"], process.mean)
    assert list(table.index[:2]) == ["f0", "f1"]
    assert process.credible_interval().shape == (40, 2)


# ---- ArviZ ----


def check_groups(data, post, names, dim):
    assert data["posterior"][names].dims == ("chain", "draw", dim)
    assert data["posterior"][names].shape[:2] == (1, 150)
    np.testing.assert_array_equal(data["posterior"][names].values[0], post.sample(150, 1))
    assert data["posterior"].attrs["inference_library"] == "epfast"


def test_to_arviz(post):
    pytest.importorskip("xarray")
    data = post.to_arviz(150, rng=1)
    check_groups(data, post, "coefficient", "term")
    assert list(data["posterior"]["term"].values) == ["x0", "x1", "x2"]
    draws = data["posterior"]["coefficient"].values
    X, y = post.problem.data.X, post.problem.data.y[:, 0]
    expected = -np.logaddexp(0.0, -y * (draws @ X.T))
    np.testing.assert_allclose(data["log_likelihood"]["y"].values, expected)
    np.testing.assert_array_equal(data["observed_data"]["y"].values, y)
    loo = post.loo_log_predictive()
    np.testing.assert_allclose(data["loo"]["log_predictive"].values, loo)
    assert data["loo"].attrs["elpd_loo"] == pytest.approx(loo.sum())


@pytest.mark.parametrize("kind", [0, 1])
def test_to_arviz_of_processes(kind):
    pytest.importorskip("xarray")
    process = processes()[kind]
    data = process.to_arviz(150, rng=1)
    check_groups(data, process, "latent", "row")
    f = data["posterior"]["latent"].values
    np.testing.assert_allclose(
        data["log_likelihood"]["y"].values, stats.norm.logcdf(f * process.y), rtol=1e-10
    )


def test_to_arviz_of_what_is_known(tmp_path, post):
    pytest.importorskip("xarray")
    X, y = classes(80, 3)
    post.save(tmp_path / "post.npz")
    known = epfast.load(tmp_path / "post.npz").to_arviz(20)
    assert "posterior" in known
    assert not {"log_likelihood", "observed_data", "loo"} & set(groups_of(known))
    factorized = epfast.fit_linear(X, y, posterior="factorized", schedule=epfast.ADF())
    assert "loo" not in groups_of(factorized.to_arviz(20))
    binomial = epfast.fit_linear(X, np.stack([y > 0, 1 + 0 * y], 1), loss="binomial").to_arviz(20)
    np.testing.assert_array_equal(binomial["observed_data"]["y"], y > 0)  # trials are no response


@pytest.mark.parametrize(
    "kind", ["labels", "counts", "trials", "normal", "noisy", "student", "classes", "wide"]
)
def test_posterior_predictive_draws(kind):
    """Their mean over many draws is the predictive mean of the rows, offset and all."""
    pytest.importorskip("xarray")
    rng = np.random.default_rng(3)
    n, d = (5, 8) if kind == "wide" else (40, 2)
    X, offset = rng.normal(size=(n, d)), rng.normal(size=n)
    y, given = np.where(X[:, 0] + rng.normal(size=n) > 0.0, 1, -1), {"loss": "logistic"}
    if kind == "counts":
        y, given = rng.poisson(3.0, n), {"loss": "poisson"}
    elif kind == "trials":
        y, given = np.stack([rng.integers(0, 9, n), np.full(n, 9)], 1), {"loss": "binomial"}
    elif kind == "normal":
        y, given = rng.normal(size=n), {"loss": epfast.losses.Gaussian(0.5)}
    elif kind == "noisy":  # with a variance for each row
        y, given = np.stack([rng.normal(size=n), np.full(n, 4.0)], 1), {"loss": "gaussian"}
    elif kind == "student":
        y, given = rng.normal(size=n), {"loss": epfast.losses.StudentT(8.0, 0.7)}
    elif kind == "classes":
        offset = rng.normal(size=(n, 3))
        y, given = rng.integers(0, 3, n), {"loss": "multiclass"}
    post = epfast.fit_linear(X, y, offset=offset, **given)
    drawn = post.to_arviz(8000)["posterior_predictive"]["y"].values[0]
    if kind == "classes":
        share = (drawn[:, :, None] == np.arange(3)).mean(axis=0)
        np.testing.assert_allclose(share, post.predict_proba(X, offset=offset), atol=0.03)
        return
    expected, spread = post.predict(X, offset=offset), post.predict_variance(X, offset=offset)
    if kind in ("labels", "wide"):
        expected = 2.0 * post.predict_proba(X, offset=offset) - 1.0
    elif kind == "trials":
        expected, spread = 9 * expected, 81 * spread
    elif kind == "noisy":
        spread = spread + 3.0
        np.testing.assert_allclose(drawn.var(axis=0), spread, rtol=6 * np.sqrt(2 / 8000))
    elif kind == "student":
        expected = expected - offset  # as the observed data, from which it is taken
    np.testing.assert_allclose(drawn.mean(axis=0), expected, atol=5 * np.sqrt(spread.max() / 8000))


def groups_of(data):
    groups = getattr(data, "children", None)
    return list(groups) if groups is not None else list(data.groups())


def test_weights_count_in_the_log_likelihood():
    X, y = classes(30, 2)
    w = np.linspace(0.0, 2.0, 30)
    post = epfast.fit_linear(X, y, weights=w)
    draws = post.sample(7, 0)
    plain = -np.logaddexp(0.0, -y * (draws @ X.T))
    np.testing.assert_allclose(post.log_likelihood(draws), w * plain)


def test_arviz_reads_it(post):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arviz = pytest.importorskip("arviz")
        data = post.to_arviz(2000)
        exact = data["loo"].attrs["elpd_loo"]
        found = arviz.loo(data)
        summary = arviz.summary(data)
    value = getattr(found, "elpd_loo", None)
    assert (found.elpd if value is None else value) == pytest.approx(exact, abs=0.3)
    assert len(summary) == 3
    assert summary["r_hat"].isna().all()  # of one chain


def test_without_arviz_a_tree(post, monkeypatch):
    xarray = pytest.importorskip("xarray")
    monkeypatch.setitem(sys.modules, "arviz", None)
    data = post.to_arviz(150, rng=1)
    assert isinstance(data, xarray.DataTree)
    check_groups(data, post, "coefficient", "term")
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ImportError, match=r"pip install 'epfast\[arviz\]'"):
        post.to_arviz()


@pytest.mark.parametrize("given", [{"draws": 0}, {"rng": -1}])
def test_bad_numbers(post, given):
    with pytest.raises(ValueError, match=next(iter(given))):
        post.to_arviz(**given)


# ---- of each kind of posterior ----


def rows_of_prior(kind):
    """A posterior, and the prior covariance of the latent values of its rows, by NumPy."""
    rng = np.random.default_rng(2)
    n, d = (5, 7) if kind == "wide" else (12, 3)
    X = 3.0 + rng.normal(size=(n, d))
    y, loss = rng.normal(size=n), epfast.losses.Gaussian(0.3)
    if kind in ("process", "low rank"):
        K = np.exp(-0.5 * (X[:, :1] - X[:, 0]) ** 2)
        return epfast.fit_gp(K, y, loss=loss, rank=n if kind == "low rank" else None), K
    # an intercept has its prior at the means of the columns
    S = rng.normal(size=(d, d))
    S = np.diag(np.arange(1.0, d + 1.0)) if kind == "factorized" else S @ S.T
    form = "factorized" if kind == "factorized" else None
    centered = X if kind == "factorized" else X - X.mean(axis=0)
    given = {"prior_covariance": S, "prior_mean": np.arange(d) / d, "intercept": 4.0}
    return epfast.fit_linear(
        X, y, loss=loss, posterior=form, **given
    ), centered @ S @ centered.T + 4


@pytest.mark.parametrize("kind", ["full", "factorized", "wide", "process", "low rank"])
def test_prior_predictive_draws(kind):
    pytest.importorskip("xarray")
    post, K = rows_of_prior(kind)
    drawn = post.to_arviz(40_000)["prior_predictive"]["y"].values[0]
    mean = np.zeros(len(K))
    if kind in ("full", "factorized", "wide"):
        X = post.problem.data.X[:, :-1]
        m = np.arange(X.shape[1]) / X.shape[1]
        mean = (X if kind == "factorized" else X - X.mean(axis=0)) @ m
    size = np.sqrt(np.outer(K.diagonal(), K.diagonal()) + 0.1)
    np.testing.assert_allclose(drawn.mean(axis=0), mean, atol=0.05 * size.max() ** 0.5)
    found = np.cov(drawn.T) - 0.3 * np.eye(len(K))
    np.testing.assert_allclose(found / size, K / size, atol=0.04)


def test_prior_predictive_draws_of_classes_and_spikes():
    pytest.importorskip("xarray")
    X = np.eye(3)
    many = epfast.fit_linear(X, [0, 1, 2], loss="multiclass", prior_variance=100.0)
    drawn = many.to_arviz(20_000)["prior_predictive"]["y"].values[0]
    share = (drawn[:, :, None] == np.arange(3)).mean(axis=0)
    np.testing.assert_allclose(share, 1 / 3, atol=0.02)
    assert np.corrcoef(drawn.T)[0, 1] == pytest.approx(0.0, abs=0.04)
    spikes = epfast.losses.SpikeAndSlab(share=0.25, variance=4.0)
    noise = epfast.losses.Gaussian(1e-8)
    sparse = epfast.fit_linear(X, [0.1, 1.0, 2.0], loss=noise, prior=spikes)
    drawn = sparse.to_arviz(20_000)["prior_predictive"]["y"].values[0]
    assert (np.abs(drawn) < 1e-2).mean() == pytest.approx(0.75 + 0.25 * 0.004, abs=0.01)
    np.testing.assert_allclose(drawn.var(axis=0), 1.0, rtol=0.1)


def graph():
    g = epfast.Graph()
    w = g.block(2, name="w")
    x = g.gaussian(3, name="x", mean=1.0, variance=2.0)
    normal = epfast.losses.Gaussian(0.2)
    g.add(normal, [[1.0, 0.0], [1.0, 1.0]] @ w, [0.5, 1.5], noise=0.3)
    g.add("probit", x, [1, -1, 1])
    return g.fit()


def test_to_arviz_of_graphs():
    pytest.importorskip("xarray")
    post = graph()
    data = post.to_arviz(20_000, rng=1)
    assert set(data["observed_data"].data_vars) == {"y0", "y1"}
    w, x = (data["posterior"][name].values[0] for name in "wx")
    h = w @ np.array([[1.0, 1.0], [0.0, 1.0]])
    exact = stats.norm.logpdf([0.5, 1.5], h, np.sqrt(0.5))
    np.testing.assert_allclose(data["log_likelihood"]["y0"].values[0], exact)
    exact = stats.norm.logcdf(x * [1, -1, 1])
    np.testing.assert_allclose(data["log_likelihood"]["y1"].values[0], exact)
    drawn = data["posterior_predictive"]
    np.testing.assert_allclose(drawn["y0"].values[0].mean(0), h.mean(0), atol=0.06)
    np.testing.assert_allclose(drawn["y0"].values[0].var(0), h.var(0) + 0.5, rtol=0.05)
    found = 0.5 + 0.5 * drawn["y1"].values[0].mean(0)
    np.testing.assert_allclose(found, stats.norm.cdf(x).mean(0), atol=0.02)
    prior = data["prior_predictive"]
    np.testing.assert_allclose(prior["y0"].values[0].var(0), [1.5, 2.5], rtol=0.05)
    found = 0.5 + 0.5 * prior["y1"].values[0].mean(0)
    np.testing.assert_allclose(found, stats.norm.cdf(1 / np.sqrt(3.0)), atol=0.02)


def test_graphs_with_other_factors_have_no_prior_predictive():
    pytest.importorskip("xarray")
    g = epfast.Graph()
    x = g.gaussian(2, variance=1.0)
    g.add(epfast.graph.Product(0.1), x[0], x[1], 1.0)
    g.add("gaussian", x, [0.5, 1.5])
    groups = groups_of(g.fit().to_arviz(20))
    assert "posterior_predictive" in groups
    assert "prior_predictive" not in groups


@pytest.fixture(scope="module")
def clusters():
    rng = np.random.default_rng(0)
    return np.concatenate([rng.normal(-3.0, 1.0, (30, 2)), rng.normal(3.0, 1.0, (30, 2))])


def test_to_arviz_of_mixtures(clusters):
    pytest.importorskip("xarray")
    post = epfast.fit_mixture(clusters, 2, noise_variance=1.0, prior_variance=9.0)
    data = post.to_arviz(2000, X=clusters)
    mean, weights = (data["posterior"][name].values[0] for name in ("mean", "weights"))
    normal = stats.multivariate_normal(np.zeros(2))
    density = sum(weights[7, j] * normal.pdf(clusters - mean[7, j]) for j in range(2))
    np.testing.assert_allclose(data["log_likelihood"]["x"].values[0, 7], np.log(density))
    drawn = data["posterior_predictive"]["x"].values[0]
    np.testing.assert_allclose(drawn.mean((0, 1)), clusters.mean(0), atol=0.3)
    np.testing.assert_allclose(drawn.var((0, 1)), clusters.var(0), rtol=0.1)
    np.testing.assert_array_equal(data["observed_data"]["x"], clusters)
    # rows of one draw share their means, of which a half each has its own
    prior = data["prior_predictive"]["x"].values[0]
    np.testing.assert_allclose((prior - post.problem.prior_mean.mean(0)).mean((0, 1)), 0, atol=0.5)
    assert list(groups_of(post.to_arviz(20))) == ["posterior"]


def fits():
    """A fit of each kind, what to_arviz is given, and the name of what was observed."""
    X, y = classes(60, 3)
    _, K, labels = process(20)
    clusters = np.concatenate([X - 5.0, X + 5.0])
    return {
        "rows": (epfast.fit_linear(X, y), {}, "y"),
        "counts": (epfast.fit_linear(X, np.maximum(y, 0), loss="poisson"), {}, "y"),
        "normal": (epfast.fit_linear(X, X[:, 0], loss="gaussian"), {}, "y"),
        "intervals": (epfast.fit_linear(X, X[:, :1] + [-1, 1], loss="interval"), {}, "y"),
        "classes": (epfast.fit_linear(X, y > 0, loss="multiclass"), {}, "y"),
        "process": (epfast.fit_gp(K, labels, loss="probit"), {}, "y"),
        "processes": (epfast.fit_gp(K, labels > 0, loss="multiclass"), {}, "y"),
        "integrated": (
            epfast.fit_hyper(X, y, learn={"sd": epfast.priors.HalfNormal(1.0)}),
            {},
            "y",
        ),
        "graph": (graph(), {}, "y0"),
        "mixture": (epfast.fit_mixture(clusters, 2), {"X": clusters}, "x"),
        "network": (epfast.fit_network(X, X[:, 0], hidden=(5,)), None, ""),
    }


@pytest.mark.full
def test_arviz_plots_each_kind():
    arviz = pytest.importorskip("arviz")
    pytest.importorskip("matplotlib").use("agg")
    for kind, (post, given, name) in fits().items():
        if given is None:  # draws of its weights have no names
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            data = post.to_arviz(30, **given)
            assert data["posterior"].sizes["chain"] == 1
            assert data["posterior"].attrs["verdict"] == "not checked"
            seen, drawn = data["observed_data"][name], data["posterior_predictive"][name]
            assert drawn.shape == (1, 30, *seen.shape), kind
            if hasattr(arviz, "plot_ppc"):
                arviz.plot_ppc(data, var_names=[name])
                arviz.summary(data)


def test_a_failed_fit_does_not_look_perfect(post):
    """ArviZ is told of it: a warning, and attributes."""
    pytest.importorskip("xarray")
    X, y = classes(80, 3)
    with pytest.warns(epfast.ConvergenceWarning):
        short = epfast.fit_linear(X, y, loss="quasi01", schedule=epfast.EP(sweeps=1))
    with pytest.warns(epfast.ConvergenceWarning, match="its fit has not converged"):
        attrs = short.to_arviz(20)["posterior"].attrs
    assert attrs["converged"] == 0
    assert attrs["method"] == "expectation propagation by EP"
    assert attrs["is_likelihood"] == 0
    # a posterior that is off
    wrong = dataclasses.replace(post, state=post.state._replace(shift=9.0 * post.state.shift))
    wrong.check()
    assert wrong.last_check.verdict == "do not use"
    with pytest.warns(epfast.ConvergenceWarning, match="its check says 'do not use'"):
        attrs = wrong.to_arviz(20)["posterior"].attrs
    assert (attrs["converged"], attrs["verdict"]) == (1, "do not use")
    # one pass has nothing to converge to
    with warnings.catch_warnings():
        warnings.simplefilter("error", epfast.ConvergenceWarning)
        once = epfast.fit_linear(X, y, schedule=epfast.ADF())
        assert once.to_arviz(20)["posterior"].attrs["converged"] == 0


def test_representations():
    """What was fitted, by what, and how it ended."""
    found = {kind: repr(post) for kind, (post, _, _) in fits().items()}
    wanted = {
        "rows": r"FullPosterior\(3 coefficients, Logistic\(\), EP, \d+ sweeps, log_evidence=-\d",
        "process": r"GPPosterior\(20 latents, Probit\(\), EP, \d+ sweeps, log_evidence=-\d",
        "processes": r"LatentGPPosterior\(40 latents, Multiclass\(n_classes=2",
        "integrated": r"IntegratedPosterior\(3 coefficients, ",
        "graph": r"GraphPosterior\(4 variables, 5 factors, ",
    }
    for kind, pattern in wanted.items():
        assert re.match(pattern + r".*converged=True\)$", found[kind]), found[kind]
    assert "converged=False" in found["network"]


def test_a_representation_has_the_log_evidence_of_the_posterior(monkeypatch):
    """Not that of the mode of an average, nor of rows that were there before."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    y, wide = np.where(X[:, 0] + rng.normal(size=40) > 0, 1, -1), rng.normal(size=(9, 20))
    post, dual = epfast.fit_linear(X, y), epfast.fit_linear(wide, y[:9])
    learn = {"sd": epfast.priors.HalfNormal(2.0)}
    average = epfast.fit_hyper(X, X[:, 0] + rng.normal(size=40), loss="gaussian", learn=learn)
    assert abs(average.history[-1].log_evidence - average.log_evidence) > 1.0
    process = epfast.fit_gp(X @ X.T + np.eye(40), y)
    given = [post, dual, average, process, average.remove([3])]
    given += [one.remove([3, 5]) for one in (post, dual)]
    given.append(dual.partial_fit(wide[:2], y[:2]))
    for one in given:
        for same in (one, pickle.loads(pickle.dumps(one))):
            shown = float(re.search(r"log_evidence=(-?[\d.]+)", repr(same))[1])
            assert shown == pytest.approx(same.log_evidence, abs=0.006)
    # a matrix that is large is not factored for it
    monkeypatch.setattr("epfast.gaussian.posterior.IN_REPR", 2)
    for one in (post, dual, average):
        assert "log_evidence=" in repr(one)
        assert "log_evidence=" not in repr(pickle.loads(pickle.dumps(one)))


def test_the_check_of_an_average_says_whose_evidence_it_is():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    learn = {"sd": epfast.priors.HalfNormal(2.0)}
    average = epfast.fit_hyper(X, X[:, 0] + rng.normal(size=40), loss="gaussian", learn=learn)
    check = average.check(200)
    assert re.fullmatch(r"sd [\d.]+", check.point)
    assert re.search(
        r", at sd [\d.]+ \(k-hat .*\); log evidence there -[\d.]+, sampled", str(check)
    )
    assert "log evidence -" in str(average.best.check(200))


def test_the_last_check_is_kept():
    fitted, checked = fits(), []
    for kind, (post, _, _) in fitted.items():
        assert post.last_check is None
        if hasattr(post, "check"):
            assert post.check() is post.last_check
            assert post.to_arviz(20)["posterior"].attrs["verdict"] == post.last_check.verdict
            checked.append(kind)
    assert set(fitted) - set(checked) == {"mixture", "network"}
