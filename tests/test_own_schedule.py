"""A schedule of your own: the order of the visits."""

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast import EP
from tests.oracles.data import first_column, rbf
from tests.oracles.outsiders import Backwards


def test_an_outsiders_schedule_works_everywhere():
    """As the rows turned round do, in order."""
    X, y = first_column(40, 3)
    K = rbf(X)
    settings = {"sweeps": 2, "tol": 0.0, "order": "sequential"}
    for rows, kwargs in (
        (X, {}),
        (sparse.csr_array(X), {}),
        (X, {"posterior": "factorized"}),
        (X, {"posterior": "factorized", "batch_size": 1}),
        (X, {"scheme": "laplace", "batch_size": 1}),
    ):
        own = epfast.fit_linear(rows, y, schedule=Backwards(**settings), **kwargs)
        turned = epfast.fit_linear(rows[::-1], y[::-1], schedule=EP(**settings), **kwargs)
        np.testing.assert_allclose(own.mean, turned.mean, rtol=1e-10)
        np.testing.assert_allclose(own.log_evidence, turned.log_evidence, rtol=1e-10)
        forwards = epfast.fit_linear(rows, y, schedule=EP(**settings), **kwargs)
        assert np.abs(own.mean - forwards.mean).max() > 1e-6
    own = epfast.fit_gp(K, y, schedule=Backwards(**settings))
    turned = epfast.fit_gp(K[::-1, ::-1], y[::-1], schedule=EP(**settings))
    np.testing.assert_allclose(own.mean, turned.mean[::-1], rtol=1e-9, atol=1e-12)


def test_a_graph_refuses_visits_that_it_would_not_make():
    g = epfast.Graph()
    x = g.gaussian(5)
    g.add("probit", x[:4] - x[1:], 1, noise=1.0)
    with pytest.raises(ValueError, match=r"Backwards, which overrides visits\(\); allowed"):
        g.fit(Backwards())


@pytest.mark.parametrize(
    "order",
    [range(39), np.zeros(40, int), np.arange(40) - 1, np.arange(40) + 1, np.arange(40.0), None],
    ids=str,
)
def test_visits_that_miss_a_factor_are_refused(order):
    class Wrong(EP):
        def visits(self, n_factors, sweep):
            return order

    (X, y), wrong = first_column(40, 3), Wrong(2, 0.0, order="sequential")
    with pytest.raises(ValueError, match=r"Wrong.visits gave .* allowed: each of 0 to 39 once"):
        epfast.fit_linear(X, y, schedule=wrong)
    with pytest.raises(ValueError, match=r"Wrong.visits gave"):
        epfast.fit_linear(X, y, posterior="factorized", batch_size=1, schedule=wrong)
    with pytest.raises(ValueError, match=r"Wrong.visits gave"):
        epfast.fit_gp(X @ X.T, y, schedule=wrong)
