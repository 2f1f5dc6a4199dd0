"""summary, credible intervals and ArviZ's containers."""

import sys
import warnings

import numpy as np
import pytest
from scipy import stats

import epfast
from epfast.inference.report import Table
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
    assert isinstance(table, Table)
    np.testing.assert_array_equal(table["mean"], post.mean)
    lines = str(table).splitlines()
    assert lines[0].split() == ["mean", "sd", "2.5%", "97.5%", "P(>0)"]
    assert [line.split()[0] for line in lines[1:4]] == ["x0", "x1", "x2"]
    assert len({len(line) for line in lines[:4]}) == 1  # aligned
    assert lines[4:] == table.attrs["notes"]
    assert repr(table) == str(table)


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
    assert data["posterior"][names].shape[:2] == (3, 50)
    draws = data["posterior"][names].values.reshape(150, -1)
    np.testing.assert_array_equal(draws, post.sample(150, 1))
    assert data["posterior"].attrs["inference_library"] == "epfast"


def test_to_arviz(post):
    pytest.importorskip("xarray")
    data = post.to_arviz(50, chains=3, seed=1)
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
    data = process.to_arviz(50, chains=3, seed=1)
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
    assert binomial["observed_data"]["y"].dims == ("row", "response")


@pytest.mark.parametrize(
    "kind", ["labels", "counts", "trials", "normal", "student", "classes", "wide"]
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
    elif kind == "student":
        y, given = rng.normal(size=n), {"loss": epfast.losses.StudentT(8.0, 0.7)}
    elif kind == "classes":
        y, given, offset = rng.integers(0, 3, n), {"loss": "multiclass"}, None
    post = epfast.fit_linear(X, y, offset=offset, **given)
    drawn = post.to_arviz(4000, chains=2)["posterior_predictive"]["y"].values.reshape(8000, n)
    if kind == "classes":
        share = (drawn[:, :, None] == np.arange(3)).mean(axis=0)
        np.testing.assert_allclose(share, post.predict_proba(X), atol=0.03)
        return
    expected, spread = post.predict(X, offset=offset), post.predict_variance(X, offset=offset)
    if kind in ("labels", "wide"):
        expected = 2.0 * post.predict_proba(X, offset=offset) - 1.0
    elif kind == "trials":
        expected, spread = 9 * expected, 81 * spread
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
        data = post.to_arviz(500)
        exact = data["loo"].attrs["elpd_loo"]
        found = arviz.loo(data)
        summary = arviz.summary(data)
    value = getattr(found, "elpd_loo", None)
    assert (found.elpd if value is None else value) == pytest.approx(exact, abs=0.3)
    assert len(summary) == 3


def test_without_arviz_a_tree(post, monkeypatch):
    xarray = pytest.importorskip("xarray")
    monkeypatch.setitem(sys.modules, "arviz", None)
    data = post.to_arviz(50, chains=3, seed=1)
    assert isinstance(data, xarray.DataTree)
    check_groups(data, post, "coefficient", "term")
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ImportError, match=r"pip install 'epfast\[arviz\]'"):
        post.to_arviz()


@pytest.mark.parametrize("given", [{"draws": 0}, {"chains": 0}, {"seed": -1}])
def test_bad_numbers(post, given):
    with pytest.raises(ValueError, match=next(iter(given))):
        post.to_arviz(**given)
