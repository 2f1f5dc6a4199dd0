"""Notes on data: said where they apply, and not elsewhere."""

import warnings

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast import DataWarning, fit_linear, losses, priors
from epfast.gaussian import fit_linear as fit_module
from tests.oracles.data import classes

X, Y = classes(60, 3)
RARE = np.where(np.arange(60) % 4 == 0, 1.0, -1.0)
LEVELS = np.eye(3)[np.arange(60) % 3]


def notes(X=X, y=Y, **given):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit_linear(X, y, **given)
    assert all(warning.filename == __file__ for warning in caught)
    return [str(w.message) for w in caught if w.category is DataWarning]


def test_ordinary_data_bring_none():
    assert notes() == []
    assert notes(posterior="factorized") == []
    assert notes(sparse.csr_matrix(X)) == []


@pytest.mark.parametrize("make", [np.array, np.float32, sparse.csr_matrix], ids=str)
def test_scales(make):
    uneven = X * [1.0, 1e-4, 1.0]
    [text] = notes(make(uneven))
    assert text.startswith("the columns of X differ in scale")
    assert notes(make(X * [1.0, 1e-2, 1.0])) == []
    assert notes(make(X * [1.0, 0.0, 1.0])) == []
    # who gives a variance per column knows
    assert notes(make(uneven), prior_variance=[1.0, 1e8, 1.0]) == []


@pytest.mark.parametrize("make", [np.array, sparse.csr_matrix], ids=str)
def test_a_constant_column_has_no_spread(make):
    """Rounding of the mean of many equal numbers is no spread."""
    n = 7_999
    rows = make(np.column_stack([np.full(n, -7.7), np.random.default_rng(0).normal(size=n)]))
    assert notes(rows, np.resize([-1.0, 1.0], n), intercept=True) == []


@pytest.mark.parametrize("make", [np.array, sparse.csr_matrix], ids=str)
def test_a_constant_column_far_from_0(make):
    """It is told, and the other weights are those of a fit without it."""
    rows = make(np.column_stack([X, np.full(60, 1e9)]))
    text, *_ = notes(rows, intercept=True)  # sparse rows have a scale, too
    assert text.startswith("column 3 of X is 1e+09 in all rows")
    with pytest.warns(DataWarning, match="in all rows"):
        post = fit_linear(rows, Y, intercept=True)
    want = fit_linear(X, Y, intercept=100.0 + 1e18)
    np.testing.assert_allclose(post.mean[:3], want.mean[:3], rtol=1e-6)


def test_an_offset_is_no_label():
    y = np.where(np.arange(60) % 9 < 4, 1.0, -1.0)
    assert notes(y=y, offset=np.zeros(60)) == notes(y=y) == []


@pytest.mark.parametrize("make", [np.array, sparse.csr_matrix], ids=str)
def test_no_intercept(make):
    [text] = notes(make(X), RARE)
    assert text == (
        "25 % of the labels are +1, and X has no constant column, so that a row of zeros has "
        "probability 1/2: write intercept=True"
    )
    assert notes(make(X), RARE, intercept=True) == []
    assert notes(make(np.column_stack([X, np.full(60, 3.0)])), RARE) == []
    # indicators of all levels add up to 1
    assert notes(make(np.column_stack([X, LEVELS])), RARE) == []
    assert len(notes(make(np.column_stack([X, LEVELS[:, 1:]])), RARE)) == 1
    counts = np.arange(60) % 4
    assert notes(make(X), counts, loss="poisson") == []


@pytest.mark.parametrize("make", [np.array, sparse.csr_matrix], ids=str)
def test_dummies_of_many_levels_add_up_to_a_constant(make):
    """Of persons and items, beside columns that do not: no intercept is missing."""
    rng = np.random.default_rng(0)
    person, item = np.repeat(np.arange(250), 8), np.tile(np.arange(8), 250)
    rows = np.column_stack([np.eye(8)[item], np.eye(250)[person], 1e4 * rng.normal(size=(2000, 2))])
    y = np.where(rng.random(2000) < 0.75, 1.0, -1.0)
    given = {"schedule": epfast.EP(1, 0.0), "prior_variance": [1.0] * 258 + [1e-8] * 2}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit_linear(make(rows), y, **given)
        assert not [w for w in caught if "constant column" in str(w.message)]
        fit_linear(make(rows[:, 16:]), y, **given | {"prior_variance": 1.0})
        assert [w for w in caught if "constant column" in str(w.message)]


@pytest.mark.parametrize("make", [np.array, sparse.csr_matrix], ids=str)
def test_separable_labels_under_a_flat_prior(make):
    apart = np.where(X[:, 0] > 0, 1.0, -1.0)
    rows = make(X)
    [text] = notes(rows, apart, prior_variance=1e5, intercept=True)
    assert text.startswith("a plane separates the labels, and the prior is flat")
    assert notes(rows, apart, prior_variance=1.0, intercept=True) == []
    assert notes(rows, Y, prior_variance=1e5) == []


def test_a_posterior_that_is_factorised_by_default(monkeypatch):
    monkeypatch.setattr(fit_module, "FULL_UP_TO", 2)
    [text] = notes()
    assert text.startswith("X has shape (60, 3): the posterior is factorised")
    assert notes(posterior="factorized") == []


def test_one_pass_over_sorted_rows(tmp_path):
    """ADF shuffles an array whose rows come sorted by label; of a memory map it says so."""
    order = np.argsort(Y, kind="stable")
    rows, labels = X[order], Y[order]
    post = fit_linear(rows, labels, schedule=epfast.ADF())
    assert post.schedule.order == "shuffled"
    same = fit_linear(rows, labels, schedule=epfast.ADF(order="shuffled"))
    np.testing.assert_array_equal(post.mean, same.mean)
    assert fit_linear(X, Y, schedule=epfast.ADF()).schedule.order == "sequential"
    assert epfast.ADF(order="sequential").order == "sequential"
    assert notes(rows, labels, schedule=epfast.ADF(order="sequential")) == []
    mapped = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", shape=rows.shape)
    mapped[:] = rows
    [text] = notes(mapped, labels, schedule=epfast.ADF())
    assert text.startswith("the rows of the memory map come sorted by response")
    counts = np.sort(np.random.default_rng(0).poisson(3.0, 60))
    assert fit_linear(X, counts, loss="poisson", schedule=epfast.ADF()).schedule.order == "shuffled"
    alike = np.ones(60)
    assert fit_linear(X, alike, schedule=epfast.ADF()).schedule.order == "sequential"


def test_they_are_warnings_of_one_class():
    assert issubclass(DataWarning, UserWarning)
    assert not issubclass(DataWarning, epfast.ConvergenceWarning)


QUANTILE = losses.Quantile(0.1)
NUMBERS = X[:, 0] + np.random.default_rng(1).normal(size=60)


def doors():
    """Every way to fit a loss, by its name: a function of the loss."""
    K, half = X @ X.T + np.eye(60), {"scale": priors.HalfNormal(2.0)}

    def graph(loss):
        g = epfast.Graph()
        x = g.gaussian(2)
        g.add(loss, x[0], NUMBERS[:1])
        g.add(loss, x[1], NUMBERS[1:2])
        return g.fit()

    def processes(loss):
        kernels = pytest.importorskip("sklearn.gaussian_process.kernels")
        given = {"loss": loss, "priors": {"length_scale": priors.HalfNormal(2.0)}}
        return epfast.fit_hyper_gp(kernels.RBF(), X, NUMBERS, **given)

    def estimator(name, **given):
        pytest.importorskip("sklearn")
        return lambda loss: getattr(epfast, name)(loss=loss, **given).fit(X, NUMBERS)

    return {
        "rows": lambda loss: fit_linear(X, NUMBERS, loss=loss),
        "factorized": lambda loss: fit_linear(X, NUMBERS, loss=loss, posterior="factorized"),
        "process": lambda loss: epfast.fit_gp(K, NUMBERS, loss=loss),
        "rank": lambda loss: epfast.fit_gp(K, NUMBERS, loss=loss, rank=60),
        "hyper": lambda loss: epfast.fit_hyper(X, NUMBERS, loss=loss, learn=half),
        "hyper_gp": processes,
        "graph": graph,
        "LinearRegressor": lambda loss: estimator("LinearRegressor")(loss),
        "few rows": lambda loss: estimator("LinearRegressor", posterior="factorized")(loss),
        "average": lambda loss: estimator("LinearRegressor", integrate=True)(loss),
        "GPRegressor": lambda loss: estimator("GPRegressor")(loss),
    }


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("door", doors())
def test_a_working_likelihood_is_told_once_by_every_door(door):
    """Quantile regression's sds hold for no data: Yang, Wang and He (2016). Once a fit."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        fit = doors()[door](QUANTILE)
    [told] = [warning for warning in caught if warning.category is DataWarning]
    assert "is a working likelihood, no model of y" in str(told.message)
    assert told.filename == __file__
    if hasattr(fit, "summary"):
        assert any("working likelihood" in line for line in fit.summary().attrs["notes"])


def test_laplace_noise_is_a_model():
    assert notes(y=NUMBERS, loss="laplace_noise") == []
    assert len(notes(y=NUMBERS, loss=losses.Contaminated(QUANTILE, 0.1, -3.0))) == 1
