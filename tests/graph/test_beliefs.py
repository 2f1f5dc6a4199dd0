"""Beliefs and posteriors as objects: what they show, copies."""

import copy
import pickle
import warnings

import numpy as np
import pytest

import epfast


def test_what_is_shown():
    g = epfast.Graph()
    x, h = g.gaussian((2, 3)), g.categorical(4, n=3)
    g.add("logistic", x[0] - x[1], 1)
    assert repr(g) == "Graph(10 variables, 3 factors)"
    assert repr(x[0] - 1.0) == "LinearForm(shape=(3,))"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", epfast.DataWarning)
        post = g.fit()
    assert repr(post) == "GraphPosterior(10 variables, 3 factors, converged=True)"
    assert repr(post[h]) == "Belief(categorical, shape=(4,))"


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda belief: pickle.loads(pickle.dumps(belief))]
)
def test_copies_of_beliefs(again):
    g = epfast.Graph()
    x = g.gaussian(2)
    g.add("probit", x, 1)
    belief = g.fit()[x]
    np.testing.assert_array_equal(again(belief).mean, belief.mean)


def test_what_was_never_proper_has_no_warning():
    g = epfast.Graph()
    level, tau = g.gaussian(variance=100.0), g.gamma(shape=1.0, rate=0.0)
    g.add(epfast.graph.Noise(tau), np.array([2.0, 2.0]) - level)  # which may have no noise
    with pytest.warns(epfast.ConvergenceWarning, match="were refused"):
        post = g.fit()
    assert not post.converged
    assert post[tau].mean == np.inf


def test_sites_that_cancel_leave_no_negative_variance():
    """A flat prior, and sites whose precisions add up to rounding below 0."""
    g = epfast.Graph()
    x = g.gaussian(2, variance=np.inf)
    g.add("gaussian", x, [1.0, 2.0])
    post = g.fit()
    post.state.beliefs[:2] = -5e-17, 0.0
    assert post[x].mean[0] == 0.0
    assert np.isposinf(post[x].variance[0])
    assert np.isposinf(post.predict_latent(x[:1] + x[1:])[1])
