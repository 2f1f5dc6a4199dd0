"""compare: sums of leave-one-out values, and what must not be compared."""

import sys

import numpy as np
import pytest

import epfast
from tests.oracles.data import classes, first_column, rbf


def fits():
    X, y = first_column(80, 3)
    return {
        "all": epfast.fit_linear(X, y),
        "noise": epfast.fit_linear(X[:, 1:], y),
        "process": epfast.fit_gp(rbf(X, width=3.0), y, loss="probit"),
    }


def test_sums_of_leave_one_out():
    named = fits()
    table = epfast.compare(named)
    values = {name: post.loo_log_predictive() for name, post in named.items()}
    order = sorted(values, key=lambda name: -values[name].sum())
    assert list(table.index) == order
    assert order[-1] == "noise"
    best = values[order[0]]
    np.testing.assert_allclose(table["loo"], [values[name].sum() for name in order])
    less = [values[name] - best for name in order]
    np.testing.assert_allclose(table["difference"], [d.sum() for d in less])
    np.testing.assert_allclose(
        table["se_difference"], [np.sqrt(80 * np.var(d)) for d in less], atol=1e-12
    )
    np.testing.assert_allclose(table["log_evidence"], [named[name].log_evidence for name in order])
    assert table["difference"].iloc[0] == table["se_difference"].iloc[0] == 0.0


def test_a_list_is_numbered_and_text_is_given_without_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    table = epfast.compare(list(fits().values()))
    assert set(table.index) == {"posteriors[0]", "posteriors[1]", "posteriors[2]"}
    assert "se_difference" in str(table)


def test_losses_that_are_none_are_not_mixed_with_likelihoods():
    X, y = first_column(80, 3)
    hinge = epfast.fit_linear(X, y, loss="hinge")
    with pytest.raises(ValueError, match="of which one is a likelihood and one is none"):
        epfast.compare([epfast.fit_linear(X, y), hinge])
    alone = epfast.compare([hinge, epfast.fit_linear(X, y, loss="squared_hinge")])
    assert np.isnan(np.asarray(alone["log_evidence"])).all()


def test_what_is_refused(tmp_path):
    X, y = classes(60, 3)
    post = epfast.fit_linear(X, y)
    with pytest.raises(ValueError, match=r"posteriors\[1\] was fitted to other responses"):
        epfast.compare([post, epfast.fit_linear(X, -y)])
    with pytest.raises(ValueError, match=r"posteriors\[1\] was fitted to other responses"):
        epfast.compare([post, epfast.fit_linear(X[:-1], y[:-1])])
    for covariance in ("full", "factorized"):
        other = epfast.fit_linear(X, y, schedule=epfast.ADF(), posterior=covariance)
        with pytest.raises(ValueError, match="has no sites that give leave-one-out"):
            epfast.compare([post, other])
    post.save(tmp_path / "post.npz")
    with pytest.raises(ValueError, match=r"does not know its rows; allowed: post\.with_rows"):
        epfast.compare([epfast.load(tmp_path / "post.npz")])
    with pytest.raises(ValueError, match="posteriors is empty"):
        epfast.compare([])
    with pytest.raises(TypeError, match=r"posteriors\[0\] is a int; allowed: a posterior"):
        epfast.compare([3])
    with pytest.raises(TypeError, match="allowed: a list or a dict"):
        epfast.compare(post)
