"""Gaussian transitions x' = factor x + N(0, variance) from one variable, or state, to the next.

Between variables messages are those of :mod:`epfast.graph.catalogue.steps`. Between states of a
block transitions are Gaussian factors of forms, with densities that are terms of its precision.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from epfast import _checks
from epfast._arrays import Array
from epfast.gaussian.sparse import as_csr
from epfast.graph.arguments import form_of, numbers_of, rows_of, variables_of
from epfast.graph.catalogue.linear import LinearFactor, LossFactor
from epfast.graph.catalogue.steps import GaussianStep
from epfast.graph.factors import Batch, Beliefs, plain_batch
from epfast.graph.variables import (
    Block,
    Linear,
    LinearForm,
    together,
)


@dataclass(frozen=True)
class StateTransition(LinearFactor):
    """Steps of transitions between states of a block, as factors of forms of its entries.

    With the variance L diag(v) L', where L has a unit diagonal, the k entries of
    L^-1 (x' - factor x) are independent N(0, v).
    """


#: pivots of a variance of unit diagonal that are rounding
SINGULAR = 1e-14


def matrices_of(name: str, given: Array, rows: int, columns: int) -> Array:
    """Matrices (..., rows, columns) of states, of a number that many times the identity."""
    if given.ndim == 0 and rows == columns and given != 0.0:
        return np.asarray(given * np.eye(rows))
    if given.shape[-2:] != (rows, columns):
        shown = f"is {given:g}" if given.ndim == 0 else f"has shape {given.shape}"
        raise ValueError(
            f"{name} {shown}; allowed for these states: a number other than 0, or matrices "
            f"({rows}, {columns}) or (n, {rows}, {columns})"
        )
    return given


def independent_parts(variance: Array) -> tuple[Array, Array]:
    """L^-1 (..., k, k) and v (..., k) of variances L diag(v) L', checked."""
    allowed = "allowed: symmetric positive definite matrices"
    diagonal = variance.diagonal(axis1=-2, axis2=-1)
    if not (diagonal > 0.0).all():
        raise ValueError(f"variance has {diagonal.min():g} on its diagonal; {allowed}")
    scale = np.sqrt(diagonal)
    unit = np.asarray(variance / scale[..., :, None] / scale[..., None, :], dtype=np.float64)
    if np.abs(unit - np.swapaxes(unit, -1, -2)).max() > _checks.half_digits(variance):
        raise ValueError(f"variance is not symmetric; {allowed}")
    root, pivots = unit, np.zeros(1)
    with contextlib.suppress(np.linalg.LinAlgError):
        root = np.asarray(np.linalg.cholesky(0.5 * (unit + np.swapaxes(unit, -1, -2))))
        pivots = root.diagonal(axis1=-2, axis2=-1)
    if not (pivots**2 > SINGULAR).all():
        raise ValueError(
            f"variance is singular, or not positive definite; {allowed} (a small variance of its "
            "own for each entry of the state makes it so)"
        )
    sd: Array = np.asarray(pivots * scale, dtype=np.float64)
    unit_root = root * scale[..., :, None] / sd[..., None, :]
    return np.asarray(np.linalg.inv(unit_root), dtype=np.float64), sd**2


def blocks_on_diagonal(matrices: Array) -> sparse.csr_array:
    """Matrices (n, rows, columns) as one, CSR (n rows, n columns)."""
    n, rows, columns = matrices.shape
    column = np.arange(n * columns).reshape(n, 1, columns)
    indices = np.array(np.broadcast_to(column, matrices.shape)).ravel()
    start = np.arange(n * rows + 1) * columns
    entries = np.array(matrices).ravel(), indices, start
    made = sparse.csr_array(entries, shape=(n * rows, n * columns))
    made.eliminate_zeros()
    return made


def is_of_block(value: Linear | None) -> TypeGuard[Block | LinearForm]:
    """Whether forms are over entries of a block."""
    return isinstance(value, Block) or (isinstance(value, LinearForm) and len(value.parts) > 0)


def states_of(name: str, value: Linear, k: int) -> LinearForm:
    """States (..., k) of entries of a block. One axis of several times k has one after another."""
    form = form_of(name, value, blocks=True)
    if len(form.terms.variables):
        raise TypeError(f"{name} has scalar variables beside the block; allowed: entries of blocks")
    if len(form.shape) < 2 and form.shape != (k,) and form.size % k == 0:
        form = form.reshape(-1, k)
    if form.shape[-1:] != (k,):
        raise ValueError(
            f"{name} has shape {form.shape}; allowed: states of {k} entries, (..., {k})"
        )
    return form


def rows_that_differ(a: LinearForm, b: LinearForm) -> Array:
    """Whether states (..., k) differ in an entry, (...)."""
    away = [abs(as_csr(part.rows)).sum(axis=1) for part in (a + -b).parts]
    return np.asarray(np.sum(away, axis=0).reshape(a.shape).any(axis=-1))


def multiplied(matrices: Array, form: LinearForm, many: tuple[int, ...]) -> LinearForm:
    """Matrices (..., k, j) times states (..., j), in the shape (*many, k)."""
    k, j = matrices.shape[-2:]
    each = np.broadcast_to(matrices, (*many, k, j)).reshape(-1, k, j)
    return form.broadcast((*many, j)).times_matrix(blocks_on_diagonal(each), (*many, k))


@dataclass(frozen=True)
class Transition(GaussianStep):
    """Gaussian transitions x' = factor x + N(0, variance) from one variable to the next.

    Between rows of a :meth:`block <epfast.Graph.block>`, which are states of k entries, factor and
    variance are matrices.

    Parameters
    ----------
    variance : float or array_like
        Variance of the noise, >= 0. Of states a positive definite matrix (k, k), or (n, k, k), one
        for each transition. A number is that many times the identity.
    factor : float or array_like, default=1.0
        Coefficient of x, not 0. Of states a matrix (k, k) or (n, k, k), or a number.

    Notes
    -----
    Added as ``g.add(Transition(variance), before, after)`` with two arrays of variables of one
    shape. The model is the transition times the prior of ``after``. Give ``after`` the prior
    ``variance=inf`` if only the transition defines it. Messages are exact.

    Added with two arrays of states, ``(..., k)``, such as ``x[:-1]`` and ``x[1:]`` of
    ``x = g.block((n, k), ...)``, transitions are terms of the precision of the block, without
    messages. If the precision is sparse, a fit takes a time proportional to the number of steps. If
    all factors are Gaussian, it is exact. In the batch each transition is k factors, one after the
    other.

    Raises
    ------
    ValueError
        When added, for a transition from a variable to itself, a variance < 0 or a factor of 0. Of
        states for matrices of another order, and for a variance that is not symmetric or singular.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> g = epfast.Graph()
    >>> x = g.gaussian(variance=np.array([1.0, np.inf, np.inf]))
    >>> steps = g.add(epfast.graph.Transition(0.5, factor=0.9), x[:-1], x[1:])
    >>> seen = g.add("gaussian", x[2], 2.0)
    >>> g.fit()[x].mean.round(2)
    array([0.63, 0.92, 1.22])

    Position and velocity, each state (2,) from the one before:

    >>> g = epfast.Graph()
    >>> x = g.block((4, 2), variance=[[1.0, 1.0]] + 3 * [[np.inf, np.inf]])
    >>> step = epfast.graph.Transition([[0.1, 0.0], [0.0, 0.01]], factor=[[1.0, 1.0], [0.0, 1.0]])
    >>> steps = g.add(step, x[:-1], x[1:])
    >>> seen = g.add("gaussian", x[:, 0], [0.0, 1.1, 1.9, 3.1], noise=0.1)
    >>> g.fit()[x].mean[-1].round(2)
    array([3.03, 0.97])

    References
    ----------
    Kalman (1960), A new approach to linear filtering and prediction problems.
    """

    variance: ArrayLike | None
    factor: ArrayLike = 1.0

    def attach(self, before: Linear, after: Linear) -> Batch:
        if is_of_block(before) and is_of_block(after):
            return self._between_states(before, after)
        given = {"before": (before, "gaussian"), "after": (after, "gaussian")}
        pairs = rows_of(given)
        numbers = np.unique(pairs)
        steps = self.steps(pairs.shape[:-1])
        batch = plain_batch(Transition(None), pairs, steps)
        return batch._replace(times=(numbers, numbers.astype(np.float64)))

    def steps(self, shape: tuple[int, ...]) -> dict[str, Array]:
        """Factor and variance of each transition."""
        parameters = {
            "factor": numbers_of("factor", self.factor, shape),
            "variance": numbers_of("variance", self.variance, shape, least=0.0),
        }
        if not parameters["factor"].all():
            raise ValueError("factor holds 0; allowed: numbers other than 0")
        return parameters

    def _matrices(
        self, before: Block | LinearForm, after: Block | LinearForm | None
    ) -> tuple[Array, Array]:
        """Factor (..., k, j) and variance (..., k, k) of states of j and k entries.

        Forms with one axis have states as long as the matrices say. after: None, not known.
        """
        given = {}
        for name in ("factor", "variance"):
            value = np.asarray(_checks.real_array(name, getattr(self, name)), dtype=np.float64)
            if not np.isfinite(value).all():
                raise ValueError(f"{name} holds NaN or infinity; allowed: finite numbers")
            given[name] = value
        factor, variance = given["factor"], given["variance"]
        known: tuple[int, ...] = () if after is None else after.shape[1:][-1:]
        known += variance.shape[-1:] + factor.shape[-2:-1]
        j: int = (*before.shape[1:][-1:], *factor.shape[-1:], *known, 1)[0]
        k: int = (*known, j)[0]
        return matrices_of("factor", factor, k, j), matrices_of("variance", variance, k, k)

    def _between_states(self, before: Block | LinearForm, after: Block | LinearForm) -> Batch:
        factor, variance = self._matrices(before, after)
        k, j = factor.shape[-2:]
        a, b = states_of("before", before, j), states_of("after", after, k)
        shapes = {"before": a.shape[:-1], "after": b.shape[:-1]}
        many = together(**shapes, factor=factor.shape[:-2], variance=variance.shape[:-2])
        if j == k and not rows_that_differ(a.broadcast((*many, k)), b.broadcast((*many, k))).all():
            raise ValueError("before and after have a state in common; allowed: different states")
        whiten, v = independent_parts(variance)
        step = multiplied(whiten, b, many) + multiplied(-whiten @ factor, a, many)
        gaussian = LossFactor("gaussian")
        batch = gaussian.attach(step, 0.0, noise=np.broadcast_to(v, step.shape))
        kind = batch.factor
        assert isinstance(kind, LinearFactor)
        return batch._replace(factor=StateTransition(kind.loss, kind.scheme))

    def _ahead(self, q: Beliefs, before: Block | LinearForm) -> tuple[Array, Array]:
        """Mean and variance of the entries of states that follow, in the shape of ``before``."""
        factor, variance = self._matrices(before, None)
        form = states_of("before", before, factor.shape[-1])
        shapes = {"factor": factor.shape[:-2], "variance": variance.shape[:-2]}
        many = together(before=form.shape[:-1], **shapes)
        independent_parts(variance)
        mean, spread = q.latent(multiplied(factor, form, many))
        spread = spread + variance.diagonal(axis1=-2, axis2=-1)
        shape = before.shape if mean.size == before.size else mean.shape
        return mean.reshape(shape), spread.reshape(shape)

    def predict(self, q: Beliefs, before: Linear) -> Array:
        if is_of_block(before):
            return self._ahead(q, before)[0]
        x = variables_of("before", before, "gaussian")
        return np.asarray(self.steps(x.shape)["factor"].reshape(x.shape) * q.of(x).mean)

    def predict_variance(self, q: Beliefs, before: Linear) -> Array:
        if is_of_block(before):
            return self._ahead(q, before)[1]
        x = variables_of("before", before, "gaussian")
        step = {name: value.reshape(x.shape) for name, value in self.steps(x.shape).items()}
        return np.asarray(step["factor"] ** 2 * q.of(x).variance + step["variance"])
