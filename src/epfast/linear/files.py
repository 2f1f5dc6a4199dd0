"""Linear posteriors from files."""

from __future__ import annotations

from typing import Any

import numpy as np

from epfast import _checks, schemes
from epfast._arrays import Array
from epfast.inference.posterior import restore_history, restore_schedule, restore_sites
from epfast.linear.posterior import FactorizedPosterior, FullPosterior
from epfast.linear.problem import Data, LinearProblem, State, moments_of, prior_of
from epfast.losses import Loss

KINDS = {kind.kind: kind for kind in (FactorizedPosterior, FullPosterior)}


def restore(arrays: dict[str, Array], header: dict[str, Any], loss: Loss | None) -> Any:
    """Check what ``save`` of a linear model wrote, and build the posterior."""
    if header["posterior"] not in KINDS:
        raise ValueError(f"posterior {header['posterior']}")
    batch_size, full = header["batch_size"], header["posterior"] == "full"
    if batch_size is not None or not full:
        _checks.integer("batch_size", batch_size if batch_size is not None else 1, least=1)
    log_scale = _checks.number("log_scale", header["log_scale"])
    d = arrays["shift"].size
    shape = (d, d) if full else (d,)
    shift = _checks.array("shift", arrays["shift"], shape=(d,))
    precision, prior_precision = (
        _checks.array(name, arrays[name], shape=shape, positive=not full)
        for name in ("precision", "prior_precision")
    )
    prior_shift = np.zeros(d)
    if "prior_shift" in arrays:
        prior_shift = _checks.array("prior_shift", arrays["prior_shift"], shape=(d,))
    prior = prior_of(prior_precision, np.zeros(d), full)
    if prior_shift.any():
        mean = (
            moments_of(prior._replace(shift=prior_shift))[1]
            if full
            else prior_shift / prior_precision
        )
        prior = prior_of(prior_precision, mean, full)
    sites = None
    if "sites_precision" in arrays:
        count = len(arrays["sites_precision"])
        if full and arrays["sites_precision"].ndim == 1:
            shapes: Any = (count,), (count,), (count,)
        else:
            shapes = ((count, d, d) if full else (count, d)), (count, d), (count,)
        sites = restore_sites(arrays, shapes)
    weights, groups = arrays.get("weights"), arrays.get("groups")
    problem = LinearProblem(
        Data(None, None, weights),
        loss,  # type: ignore[arg-type]
        schemes.restore(header.get("scheme")),  # type: ignore[arg-type]
        restore_schedule(header.get("schedule"), arrays.get("schedule_groups")),
        header["posterior"],
        batch_size,
        prior,
        prior,
        None if groups is None else np.asarray(groups, dtype=np.intp),
    )
    sweeps = _checks.integer("sweeps", header["sweeps"], least=0)
    seen = header.get("rows_seen")
    if seen is not None:
        seen = _checks.integer("rows_seen", seen, least=0)
    return KINDS[header["posterior"]](
        State(precision, shift, sites, log_scale, sweeps, seen),
        problem,
        bool(header["converged"]),
        restore_history(header["history"]),
    )
