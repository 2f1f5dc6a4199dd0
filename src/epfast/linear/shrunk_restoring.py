"""Posteriors with prior sites from files."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from epfast import _checks, schemes
from epfast._arrays import Array
from epfast.inference import Sites
from epfast.inference.files import (
    agree,
    restore_flag,
    restore_history,
    restore_responses,
    restore_schedule,
    restore_sites,
)
from epfast.linear.engines.weights import PriorSites, ShrunkState
from epfast.linear.files import names_of, wide_rows_of
from epfast.linear.full_posterior import FullPosterior
from epfast.linear.problem import Data, LinearProblem, prior_of, weights_of
from epfast.linear.shrinkage import Shrinkage
from epfast.linear.shrunk_posterior import ShrunkPosterior
from epfast.linear.wide import WideRows
from epfast.losses import Loss, restore_prior


def restore(arrays: dict[str, Array], header: dict[str, Any], loss: Loss | None) -> Any:
    """Check what ``save`` of a :class:`ShrunkPosterior` wrote, and build it."""
    d = arrays["shift"].size
    columns = _checks.integer("columns", header["columns"], least=d - 1, most=d)
    of_weights = _of_weights(arrays, header, d, columns)
    data, wide, precision = _rows(arrays, d, columns < d, loss)
    n = arrays["sites_shift"].size if data.y is None else len(data.y)
    sites = restore_sites(arrays, ((n,),) * 3)
    assert sites is not None
    normal = prior_of(of_weights.start.precision, np.zeros(d), wide is None)
    problem = LinearProblem(
        data,
        loss,  # type: ignore[arg-type]
        schemes.restore(header["scheme"]),  # type: ignore[arg-type]
        restore_schedule(header["schedule"], None),
        FullPosterior.kind,
        None,
        normal,
        normal,
        intercept=columns < d,
        names=names_of(header["names"], columns),
        wide=wide,
    )
    shift, mean = (_checks.array(name, arrays[name], shape=(d,)) for name in ("shift", "mean"))
    variance = _checks.array("variance", arrays["variance"], shape=(d,), positive=True)
    prior_sites = _sites_of(arrays, "prior_sites", d)
    evidence = _checks.number("log_evidence", header["log_evidence"])
    scale = float(sites.log_scale.sum() + prior_sites.log_scale.sum())
    sweeps = _checks.integer("sweeps", header["sweeps"], least=0)
    parts = precision, shift, sites, scale, sweeps, None, prior_sites, mean, variance, evidence
    state = ShrunkState(*parts)
    _check(state, Shrinkage(problem, of_weights))
    history = restore_history(header["history"])
    return ShrunkPosterior(state, problem, restore_flag(header, "converged"), history, of_weights)


def _of_weights(
    arrays: dict[str, Array], header: dict[str, Any], d: int, columns: int
) -> PriorSites:
    precision = _checks.array("start_precision", arrays["start_precision"], shape=(d,))
    if not (precision > 0.0).all():
        raise ValueError("start_precision is not positive")
    visits = arrays["visits"]
    if visits.ndim != 1 or visits.dtype.kind not in "iu" or not (np.diff(visits) > 0).all():
        raise ValueError("visits are no increasing integers")
    if visits.size and not (visits[0] >= 0 and visits[-1] < columns):
        raise ValueError("visits names weights that there are not")
    sites = Sites(precision, np.zeros(d), 0.5 * np.log(precision / (2.0 * math.pi)))
    return PriorSites(restore_prior(header["prior"]), sites, visits.astype(np.intp))


def _rows(
    arrays: dict[str, Array], d: int, intercept: bool, loss: Loss | None
) -> tuple[Data, Any, Array | None]:
    """The rows of the n x n form, or the precision of the other."""
    weights = weights_of(arrays.get("weights"), arrays["sites_shift"].size)
    if "precision" in arrays:
        matrix = _checks.array("precision", arrays["precision"], shape=(d, d))
        _checks.symmetric("precision", matrix)
        return Data(None, None, weights), None, matrix
    y = restore_responses(arrays["y"], loss)
    X = wide_rows_of(arrays, len(y), d, intercept)
    return Data(X, y, weights), WideRows(X, intercept), None


def _sites_of(arrays: dict[str, Array], name: str, d: int) -> Sites:
    return Sites(
        *(
            _checks.array(f"{name}_{part}", arrays[f"{name}_{part}"], shape=(d,))
            for part in Sites._fields
        )
    )


def _check(state: ShrunkState, shrinkage: Shrinkage) -> None:
    """Refuse sites that do not give the moments of the file. O(d^3), or O(n^2 d)."""
    if state.precision is not None:
        mean = np.linalg.solve(state.precision, state.shift)
        variance = np.diag(np.linalg.inv(state.precision))
    else:
        found = shrinkage.engine().moments(state.sites, state.prior_sites)
        if found is None:
            raise ValueError("the sites make the posterior improper")
        mean, variance = found.mean, found.variance
    agree("variance", state.variance, variance, 10.0 * state.variance)
    agree("mean", state.mean, mean, 10.0 * (np.abs(state.mean) + np.sqrt(state.variance)))
