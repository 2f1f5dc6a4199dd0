"""A scheme of your own: numbers for a scheme of the core."""

import math

import numpy as np

import epfast
from epfast import EP
from epfast.backend import fit_minibatch, tilted_moments
from epfast.schemes import Quadrature, Variational, fifth_degree_rule
from tests.oracles.data import first_column
from tests.oracles.outsiders import FivePoints, WideQuadrature
from tests.oracles.triples import M, V, Y, assert_triples


def test_an_outsiders_scheme_works_everywhere():
    X, y = first_column(40, 3, seed=[40, 3])
    v, one = np.ones(3), np.ones(1)
    for scheme in (WideQuadrature(), FivePoints()):
        for given in ({}, {"posterior": "factorized", "batch_size": 10}):
            epfast.fit_linear(X, y, scheme=scheme, schedule=EP(2, 0.0), **given)
        fit_minibatch("logistic", X, 0 * v, v, scheme)
        tilted_moments("hinge", one, one, one, scheme=scheme)
    # at gamma = sqrt 3 in one dimension the rule is Gauss-Hermite's
    want = tilted_moments("probit", Y, M, V, scheme=Quadrature(math.sqrt(3)))
    assert_triples(tilted_moments("probit", Y, M, V, scheme=WideQuadrature()), want)
    points, weights = fifth_degree_rule(1)
    own = Variational(rule=(points, weights))
    want = tilted_moments("probit", Y, M, V, scheme=Variational(rule="fifth"))
    assert_triples(tilted_moments("probit", Y, M, V, scheme=own), want)
