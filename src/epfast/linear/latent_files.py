"""Posteriors of linear models with several latent values per row, from files."""

from __future__ import annotations

from typing import Any

import numpy as np

from epfast import _checks, schemes
from epfast._arrays import Array
from epfast.inference.files import (
    agree,
    restore_flag,
    restore_history,
    restore_schedule,
    restore_sites,
)
from epfast.linear.engines.latents import LatentState
from epfast.linear.files import names_of
from epfast.linear.latent_posterior import LatentPosterior
from epfast.linear.problem import Data, LinearProblem, is_proper, prior_of
from epfast.losses import Loss


def restore(arrays: dict[str, Array], header: dict[str, Any], loss: Loss | None) -> Any:
    """Check what ``save`` wrote, and build the posterior."""
    shift = _checks.array("shift", arrays["shift"], shape=(None, None))
    latents, d = shift.shape
    if loss is not None and loss.latents != latents:
        raise ValueError(f"shift is of {latents} latents, and the loss of {loss.latents}")
    precision = _checks.array("precision", arrays["precision"], shape=(latents, d, d))
    prior = _checks.array("prior_precision", arrays["prior_precision"], shape=(d, d))
    for name, matrix in (("prior_precision", prior), *(("precision", p) for p in precision)):
        _checks.symmetric(name, matrix)
        if not is_proper(matrix):
            raise ValueError(f"{name} is not positive definite")
    n = len(arrays["sites_log_scale"])
    sites = restore_sites(arrays, ((n, latents), (n, latents), (n,)))
    if sites is None:
        raise ValueError("no sites")
    prior_shift = _checks.array("prior_shift", arrays["prior_shift"], shape=(d,))
    base = prior_of(
        prior, np.asarray(np.linalg.solve(prior, prior_shift), np.float64), True
    )._replace(shift=prior_shift)
    scale = _checks.number("log_scale", header["log_scale"])
    size = 1.0 + 1e3 * abs(latents * base.log_scale) + np.abs(sites.log_scale).sum()
    agree("log_scale", scale, latents * base.log_scale + sites.log_scale.sum(), size)
    columns = _checks.integer("columns", header["columns"], least=d - 1, most=d)
    problem = LinearProblem(
        Data(None, None),
        loss,  # type: ignore[arg-type]
        schemes.restore(header["scheme"]),  # type: ignore[arg-type]
        restore_schedule(header["schedule"], None),
        "full",
        None,
        base,
        base,
        intercept=columns < d,
        names=names_of(header["names"], columns),
    )
    sweeps = _checks.integer("sweeps", header["sweeps"], least=0)
    state = LatentState(precision, shift, sites, scale, sweeps)
    flag, history = restore_flag(header, "converged"), restore_history(header["history"])
    post = LatentPosterior(state, problem, flag, history)
    if not np.isfinite(post.log_evidence):
        raise ValueError("the log evidence overflows")
    return post
