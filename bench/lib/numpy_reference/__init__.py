"""Factorised EP on minibatch factors in plain NumPy, in two strengths.

``strength="faithful"`` does what Roche (2016) writes: it forms the 2d+1 points, multiplies the
minibatch by them, fits by Newton's method with Cholesky factorisations in 2d+1 (variational
quadrature) or d (Laplace) parameters.  ``strength="best"`` is the fastest NumPy we could write:
margins m +- delta without points, one exponential per pair, closed forms, a Woodbury solve.

Both are a baseline to time against and an oracle to test against, so none of this shares code
with epfast: it is written from the paper and docs, not from the Cython source.

Notation: precision and shift (precision x mean) are natural parameters about the origin, so that
a fitted factor is ``g(t) = exp(log_scale + shift.t - 0.5 precision.t**2)``, and equation numbers
are those of the paper.
"""

from bench.lib.numpy_reference.factors import fit_minibatch
from bench.lib.numpy_reference.fit import fit_linear
from bench.lib.numpy_reference.losses import LOSSES, rbf, regularized_cost

__all__ = ["LOSSES", "fit_linear", "fit_minibatch", "rbf", "regularized_cost"]
