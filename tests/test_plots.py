"""Pictures: what is drawn, on which axes, and that pyplot is left alone."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

import epfast
from tests.oracles.data import classes, process

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from epfast import plots  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:::arviz"),
]


@pytest.fixture(scope="module")
def fit():
    X, y = classes(80, 2, seed=1)
    return X, y, epfast.fit_linear(X, y)


PICTURES = {
    "coefficients": lambda X, y, post, ax: plots.coefficients(post, ax=ax),
    "calibration": lambda X, y, post, ax: plots.calibration(y, post.predict_proba(X), ax=ax),
    "decision_boundary": lambda X, y, post, ax: plots.decision_boundary(post, X, y, ax=ax),
    "check": lambda X, y, post, ax: plots.check(post.check(200), ax=ax),
}


def test_every_picture_is_tested():
    assert set(PICTURES) == set(plots.__all__)


@pytest.mark.parametrize("name", PICTURES)
def test_axes_in_and_out(fit, name, tmp_path):
    ax = Figure().add_subplot()
    before, figures = dict(matplotlib.rcParams), pyplot.get_fignums()
    assert PICTURES[name](*fit, ax) is ax
    new = PICTURES[name](*fit, None)
    assert new.figure is not ax.figure
    assert pyplot.get_fignums() == figures
    assert dict(matplotlib.rcParams) == before
    new.figure.savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 5000
    with pytest.raises(TypeError, match=r"result is .*; allowed: what post.check\(\) returns"):
        plots.check(3)
    with pytest.raises(TypeError, match="ax is 3; allowed: axes of matplotlib, or None"):
        PICTURES[name](*fit, 3)


def test_coefficients(fit):
    post = fit[2]
    ax = plots.coefficients(post, sort=True)
    shown = [text.get_text() for text in ax.get_yticklabels()]
    assert shown == [post.labels[k] for k in np.argsort(-post.mean)]
    points = ax.collections[-1].get_offsets()
    np.testing.assert_allclose(points[:, 0], np.sort(post.mean)[::-1])
    outer = np.array([segment[:, 0] for segment in ax.collections[0].get_segments()])
    np.testing.assert_allclose(outer, post.credible_interval()[np.argsort(-post.mean)])
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), [0.0, 0.0])
    one = plots.coefficients(post, names=["x1"])
    assert [text.get_text() for text in one.get_yticklabels()] == ["x1"]
    with pytest.raises(ValueError, match="names holds 'x7'; allowed: x0, x1"):
        plots.coefficients(post, names=["x7"])


def test_intervals_that_contain_0_are_grey():
    X, y = classes(80, 2, seed=1)
    for column, sign in ((X[:, 0], 1), (X[:, 0], -1), (np.resize([1.0, -1.0], 80), 1)):
        post = epfast.fit_linear(sign * column[:, None], y)
        low, high = post.credible_interval()[0]
        color = plots.coefficients(post).collections[0].get_colors()[0]
        grey = matplotlib.colors.to_rgba(plots.GREY)
        assert (tuple(color) == grey) == (low < 0.0 < high)


def test_estimators_stand_for_their_posteriors():
    pytest.importorskip("sklearn")
    X, y = classes(80, 3, seed=1)
    model = epfast.LinearClassifier().fit(X, y)
    ax, same = plots.coefficients(model), plots.coefficients(model.posterior_)
    for line, other in zip(ax.lines, same.lines, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), other.get_ydata())
    with pytest.raises(AttributeError, match=r"not fitted, so it has no posterior_"):
        plots.coefficients(epfast.LinearClassifier())
    three = epfast.LinearClassifier().fit(X, np.arange(80) % 3)
    with pytest.raises(AttributeError, match=r"each of 3 classes against the rest.*posteriors_"):
        plots.coefficients(three)
    assert plots.coefficients(three.posteriors_[0]).lines


@pytest.mark.parametrize("bad", [3, None, "post", np.zeros(3)])
def test_what_is_no_posterior(bad):
    with pytest.raises(TypeError, match=r"post is .*; allowed: a posterior"):
        plots.coefficients(bad)


def test_calibration():
    p = np.linspace(0.01, 0.99, 100)
    y = np.where(np.arange(100) % 2 == 0, 1, -1)
    ax = plots.calibration(y, p, bins=4)
    center, observed = ax.lines[1].get_data()
    np.testing.assert_allclose(center, p.reshape(4, 25).mean(axis=1))
    np.testing.assert_allclose(observed, (y > 0).reshape(4, 25).mean(axis=1))
    np.testing.assert_array_equal(
        plots.calibration(y > 0, p, bins=4).lines[1].get_ydata(), observed
    )
    words = np.where(y > 0, "no", "yes")  # the last is that of classes_[1]
    for given in ({"p": 1.0 - p}, {"p": np.column_stack([p, 1.0 - p])}):
        other = plots.calibration(words, **given, bins=4)
        np.testing.assert_allclose(other.lines[1].get_ydata(), 1.0 - observed[::-1])
        assert other.get_ylabel() == "observed share of yes, 4 bins"
    drawn = np.array([line[:, 1] for line in ax.collections[0].get_segments()])
    hits = np.rint(25 * observed).astype(int).tolist()
    wilson = [stats.binomtest(k, 25).proportion_ci(method="wilson") for k in hits]
    np.testing.assert_allclose(drawn, wilson, atol=1e-12)
    named = plots.calibration(words, p, bins=4, pos_label="no")
    np.testing.assert_allclose(named.lines[1].get_ydata(), observed)
    with pytest.raises(ValueError, match=r"labels \['a', 'b', 'c'\]; allowed: two"):
        plots.calibration(np.resize(["a", "b", "c"], 100), p)
    with pytest.raises(ValueError, match="pos_label is 'maybe'"):
        plots.calibration(words, p, pos_label="maybe")
    for bad in ((y[:-1], p), (y, p + 1.0), (y[:0], p[:0])):
        with pytest.raises(ValueError, match=r"allowed: (a label|probabilities)"):
            plots.calibration(*bad)


def test_decision_boundary_of_frames_processes_and_an_intercept(fit):
    X, y, post = fit
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["age", "dose"])
    ax = plots.decision_boundary(epfast.fit_linear(frame, y), frame, y)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("age", "dose")
    wide = epfast.fit_linear(np.column_stack([X, np.ones(80)]), y)
    plots.decision_boundary(wide, X, y, intercept=True)
    pytest.importorskip("sklearn")
    inputs, _, labels = process(30)
    model = epfast.GPClassifier(optimizer=None).fit(inputs, labels > 0)
    assert plots.decision_boundary(model, inputs, labels > 0).get_legend() is not None
    with pytest.raises(ValueError, match=r"X has shape \(80, 1\)"):
        plots.decision_boundary(post, X[:, :1], y)
    with pytest.raises(ValueError, match="3 different labels; allowed"):
        plots.decision_boundary(post, X, np.arange(80) % 3)


def test_check_shows_what_is_off(fit):
    X, y, _ = fit
    rng = np.random.default_rng(0)
    wide = X[:, :1] + 0.05 * rng.normal(size=(80, 4))
    check = epfast.fit_linear(wide, y, posterior="factorized").check(500)
    assert check.verdict == "do not use"
    texts = [text.get_text() for text in plots.check(check).texts]
    assert any(text.startswith("sd × ") for text in texts)
    ax = plots.check(dataclasses.replace(check, khat=0.5))
    assert "\nk-hat 0.50, " in ax.get_title(loc="left")


def test_check_without_draws_that_count():
    X, y = classes(100, 200, seed=2)
    check = epfast.fit_linear(X, y, prior_variance=25.0).check(200)
    texts = [text.get_text() for text in plots.check(check).texts]
    assert texts == ["too few draws are effective"]


def test_without_matplotlib(fit, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'epfast\[plot\]'"):
        plots.coefficients(fit[2])
