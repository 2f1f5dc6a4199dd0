"""Linear posteriors from files."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from epfast import _checks, schemes
from epfast._arrays import Array
from epfast.inference import Sites
from epfast.inference.files import (
    ROUNDING,
    agree,
    restore_flag,
    restore_history,
    restore_responses,
    restore_schedule,
    restore_sites,
)
from epfast.linear.full_posterior import FullPosterior
from epfast.linear.posterior import FactorizedPosterior
from epfast.linear.problem import Data, LinearProblem, State, is_proper, weights_of
from epfast.linear.wide import WideRows, solved
from epfast.linear.wide_posterior import WidePosterior
from epfast.losses import Loss

KINDS = {kind.kind: kind for kind in (FactorizedPosterior, FullPosterior)}


def restore(arrays: dict[str, Array], header: dict[str, Any], loss: Loss | None) -> Any:
    """Check what ``save`` of a linear model wrote, and build the posterior."""
    full = header["posterior"] == FullPosterior.kind
    batch_size = header["batch_size"]
    if batch_size is not None:
        _checks.integer("batch_size", batch_size, least=1)
    d = arrays["shift"].size
    prior = _prior(arrays, d, full)
    shift = _checks.array("shift", arrays["shift"], shape=(d,))
    precision = _matrix("precision", arrays["precision"], d, full)
    state = State(
        precision,
        shift,
        _sites(arrays, d, full),
        _checks.number("log_scale", header["log_scale"]),
        _checks.integer("sweeps", header["sweeps"], least=0),
        _rows_seen(header, stored="sites_precision" in arrays),
    )
    weights, groups = _of_rows(arrays, state.sites)
    # one less than weights beside an intercept; files of 0.1.0 do not say it
    columns = _checks.integer("columns", header.get("columns", d), least=d - 1, most=d)
    problem = LinearProblem(
        Data(None, None, weights),
        loss,  # type: ignore[arg-type]
        schemes.restore(header.get("scheme")),  # type: ignore[arg-type]
        restore_schedule(header.get("schedule"), arrays.get("schedule_groups")),
        header["posterior"],
        batch_size,
        prior,
        prior,
        groups,
        intercept=columns < d,
        names=names_of(header.get("names"), columns),
    )
    _check_sum(state, problem)
    history = restore_history(header["history"])
    post = KINDS[header["posterior"]](state, problem, restore_flag(header, "converged"), history)
    try:
        evidence = shift @ post.mean  # its factor is kept, and needed sooner or later
    except np.linalg.LinAlgError:
        raise ValueError("precision is not positive definite") from None
    if not np.isfinite(evidence):
        raise ValueError("the log evidence overflows")
    return post


def restore_wide(arrays: dict[str, Array], header: dict[str, Any], loss: Loss | None) -> Any:
    """The same of a posterior in the n x n form, whose rows are in the file. O(n^2 d + n^3)."""
    y = restore_responses(arrays["y"], loss)
    n, d = len(y), arrays["prior_shift"].size
    prior = _prior(arrays, d, arrays["prior_precision"].ndim == 2)
    columns = _checks.integer("columns", header["columns"], least=d - 1, most=d)
    X, weights = wide_rows_of(arrays, n, d, columns < d), weights_of(arrays.get("weights"), n)
    sites = restore_sites(arrays, ((n,),) * 3)
    if sites is None:
        raise ValueError("no sites")
    problem = LinearProblem(
        Data(X, y, weights),
        loss,  # type: ignore[arg-type]
        schemes.restore(header["scheme"]),  # type: ignore[arg-type]
        restore_schedule(header["schedule"], None),
        FullPosterior.kind,
        None,
        prior,
        prior,
        intercept=columns < d,
        names=names_of(header["names"], columns),
        wide=WideRows(X, columns < d),
    )
    state = solved(problem, sites, _checks.integer("sweeps", header["sweeps"], least=0))
    if state is None:
        raise ValueError("the sites make the posterior improper")
    flag, history = restore_flag(header, "converged"), restore_history(header["history"])
    post = WidePosterior(state, problem, flag, history)
    _check_wide(post, arrays, header)
    return post


def wide_rows_of(arrays: dict[str, Array], n: int, d: int, intercept: bool) -> Any:
    """The rows of a file, (n, d), dense or CSR."""
    if "rows" in arrays:
        X: Any = arrays["rows"]
        if X.shape != (n, d) or X.dtype.kind not in "fiub":
            raise ValueError(f"rows is {_checks.describe(X)}; allowed: numbers, ({n}, {d})")
        last = X[:, -1]
    else:
        data, indices, indptr = (arrays[f"rows_{part}"] for part in ("data", "indices", "indptr"))
        if data.dtype.kind not in "fiub" or {indices.dtype.kind, indptr.dtype.kind} - set("iu"):
            raise ValueError("rows are no numbers, or their places no integers")
        X = sparse.csr_matrix((data, indices, indptr), shape=(n, d))
        X.check_format(full_check=True)
        last = X[:, [d - 1]].toarray()
    if not np.isfinite(X if "rows" in arrays else X.data).all():
        raise ValueError("rows hold NaN or infinity")
    if intercept and not (last == 1.0).all():
        raise ValueError("rows of a fit with an intercept do not end with ones")
    return X


def _check_wide(post: WidePosterior, arrays: dict[str, Array], header: dict[str, Any]) -> None:
    """Refuse sites, rows and prior that do not give the moments of the file."""
    sites, moments = post.state.sites, post.latent_moments
    diagonal = post.state.diagonal
    assert diagonal is not None
    n = len(diagonal)
    # I + K S loses as many digits as it has in front of those of 1
    lost = 100.0 * np.finfo(float).eps * np.abs(sites.precision).max() * diagonal.max()
    slack = 1.0 + lost / ROUNDING
    root = np.sqrt(diagonal)
    given = {
        name: _checks.array(name, arrays[name], shape=(n,)) for name in ("latent_mean", "alpha")
    }
    size = np.abs(moments.mean) + root * (root @ np.abs(moments.alpha))
    agree("latent_mean", given["latent_mean"], moments.mean, slack * size)
    size = np.abs(sites.shift) + np.abs(sites.precision * moments.mean) + np.abs(moments.alpha)
    agree("alpha", given["alpha"], moments.alpha, slack * (size + 1e-3 * size.max()))
    evidence = _checks.number("log_evidence", header["log_evidence"])
    size = 1.0 + np.abs(sites.log_scale).sum() + np.abs(sites.shift) @ np.abs(moments.mean)
    agree("log_evidence", evidence, post.log_evidence, slack * size)


def _rows_seen(header: dict[str, Any], stored: bool) -> int | None:
    """Rows that ADF took in; files of 0.1.0 do not say it."""
    seen = header.get("rows_seen")
    if seen is None:
        return None
    if stored:
        raise ValueError(f"rows_seen is {seen!r} beside sites; allowed: null, ADF stores none")
    return _checks.integer("rows_seen", seen, least=0)


def _matrix(name: str, given: Array, d: int, full: bool) -> Array:
    """A precision: positive numbers, or a symmetric matrix."""
    if not full:
        return _checks.array(name, given, shape=(d,), positive=True)
    matrix = _checks.array(name, given, shape=(d, d))
    _checks.symmetric(name, matrix)
    return matrix


def _prior(arrays: dict[str, Array], d: int, full: bool) -> State:
    """The prior; files of 0.1.0 have no shift."""
    precision = _matrix("prior_precision", arrays["prior_precision"], d, full)
    if full and not is_proper(precision):
        raise ValueError("prior_precision is not positive definite")
    shift = np.zeros(d)
    if "prior_shift" in arrays:
        shift = _checks.array("prior_shift", arrays["prior_shift"], shape=(d,))
    if not shift.any():
        return State(precision, shift, None, 0.0, 0)
    mean = np.linalg.solve(precision, shift) if full else shift / precision
    return State(precision, shift, None, -0.5 * float(shift @ mean), 0)


def _sites(arrays: dict[str, Array], d: int, full: bool) -> Sites | None:
    """The sites: (n, d) each, or with a full covariance a number per row, or (K, d, d)."""
    if "sites_precision" not in arrays:
        return None
    given = arrays["sites_precision"]
    count = len(given)
    if not full and "sites_start" in arrays:
        return _sparse_sites(arrays, d)
    if not full:
        shapes: Any = (count, d), (count, d), (count,)
    elif given.ndim == 1:
        shapes = (count,), (count,), (count,)
    else:
        shapes = (count, d, d), (count, d), (count,)
    return restore_sites(arrays, shapes)


def _sparse_sites(arrays: dict[str, Array], d: int) -> Sites:
    """Sites of CSR rows: two CSR matrices of one pattern."""
    start, column = arrays["sites_start"], arrays.get("sites_column", np.empty(0))
    for name, index in (("sites_start", start), ("sites_column", column)):
        if index.ndim != 1 or index.dtype.kind not in "iu":
            raise ValueError(f"{name} is {_checks.describe(index)}; allowed: integers, (k,)")
    size = len(column)
    inside = size == 0 or (column.min() >= 0 and column.max() < d)
    if len(start) < 2 or start[0] != 0 or start[-1] != size or (start[1:] < start[:-1]).any():
        raise ValueError("sites_start is no increasing list of where the rows of sites begin")
    if not inside:
        raise ValueError(f"sites_column holds numbers outside 0 to {d - 1}")
    count = len(start) - 1
    found = restore_sites(arrays, ((size,), (size,), (count,)))
    assert found is not None
    a, b = (sparse.csr_array((x, column, start), shape=(count, d)) for x in found[:2])
    return Sites(a, b, found.log_scale)


def _of_rows(
    arrays: dict[str, Array], sites: Sites | None
) -> tuple[Array | None, NDArray[np.intp] | None]:
    """Weights and groups of the rows, as many as there are."""
    weights, groups = arrays.get("weights"), arrays.get("groups")
    lengths = set()
    if sites is not None and sites.precision.ndim == 1:
        lengths.add(len(sites.precision))
    if weights is not None:
        weights = _checks.array("weights", weights, shape=(None,))
        if not ((weights >= 0.0) & (weights <= 1e15)).all() or not weights.any():
            raise ValueError("weights holds numbers below 0 or above 1e15, or zeros alone")
        lengths.add(len(weights))
    labels = None
    if groups is not None:
        if groups.ndim != 1 or groups.dtype.kind not in "iu" or groups.size == 0:
            raise ValueError(f"groups is {_checks.describe(groups)}; allowed: integers, (n,)")
        if sites is None or groups.min() < 0 or groups.max() >= len(sites.precision):
            raise ValueError("groups names sites that there are not")
        labels = groups.astype(np.intp)
        lengths.add(len(labels))
    if len(lengths) > 1:
        raise ValueError(f"sites, weights and groups are of {sorted(lengths)} rows")
    return weights, labels


def _check_sum(state: State, problem: LinearProblem) -> None:
    """Refuse a posterior that is not its prior times its sites, as far as no rows are needed."""
    sites, prior = state.sites, problem.prior
    if sites is None:
        return
    if sites.precision.ndim == 1:
        times: Any = np.ones(len(sites.log_scale))
        _check_bounds(state.precision, prior.precision, sites.precision)
    else:
        found = _times(problem, sites)
        if found is None:
            return
        times, count = found, np.abs(found)
        for name, first, all_of in (
            ("precision", prior.precision, sites.precision),
            ("shift", prior.shift, sites.shift),
        ):
            size = np.abs(first) + _sum(count, abs(all_of))
            if size.ndim == 2:
                root = np.sqrt(np.diag(size))
                size = np.maximum(size, np.multiply.outer(root, root))
            agree(name, getattr(state, name), first + _sum(times, all_of), size)
    # the prior's is the product of a solution of its matrix, which has more rounding
    size = 1.0 + 1e3 * abs(prior.log_scale) + times @ np.abs(sites.log_scale)
    agree("log_scale", state.log_scale, prior.log_scale + times @ sites.log_scale, size)


def _sum(times: Array, sites: Any) -> Array:
    """Of sites, each so many times."""
    return np.asarray(times @ sites if hasattr(sites, "indptr") else np.tensordot(times, sites, 1))


def _times(problem: LinearProblem, sites: Sites) -> Array | None:
    """How often each site counts; None where a file of 0.1.0 does not say it."""
    if problem.covariance == FactorizedPosterior.kind:
        return np.ones(len(sites.log_scale))
    if problem.groups is None:
        return None
    return np.bincount(problem.groups, problem.copies(), minlength=len(sites.log_scale)).astype(
        np.float64
    )


def _check_bounds(precision: Array, prior: Array, sites: Array) -> None:
    """Scalar sites of one sign raise or lower the precision of the prior. O(d^3)."""
    slack = np.diag(ROUNDING * np.diag(precision))
    gain = precision - prior
    if (sites >= 0.0).all() and not is_proper(gain + slack):
        raise ValueError("precision contradicts the sites: it is less than the prior's")
    if (sites <= 0.0).all() and not is_proper(slack - gain):
        raise ValueError("precision contradicts the sites: it is more than the prior's")


def names_of(given: Any, columns: int) -> tuple[str, ...] | None:
    """Names of the columns of X."""
    if given is None:
        return None
    if not (isinstance(given, list) and all(isinstance(name, str) for name in given)):
        raise ValueError("names are no strings")
    if len(given) != columns:
        raise ValueError(f"{len(given)} names for {columns} columns")
    return tuple(given)
