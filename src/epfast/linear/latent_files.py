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
from epfast.linear.files import names_of
from epfast.linear.joint_posterior import JointPosterior
from epfast.linear.latent_posterior import LatentPosterior
from epfast.linear.problem import Data, LinearProblem, State, is_proper, prior_of
from epfast.losses import LatentLoss, Loss


def restore(arrays: dict[str, Array], header: dict[str, Any], loss: Loss | None) -> Any:
    """Check what ``save`` wrote, and build the posterior."""
    joint = header["posterior"] == JointPosterior.kind
    prior = _checks.array("prior_precision", arrays["prior_precision"], shape=(None, None))
    d, n = len(prior), len(arrays["sites_log_scale"])
    width = len(arrays["sites_shift"].T)
    latents = width + joint
    if isinstance(loss, LatentLoss):
        loss = loss.filled(latents, joint)
    if loss is not None and (loss.latents != latents or loss.correlated != joint):
        raise ValueError(f"sites are of {latents} latents, and the loss is {loss!r}")
    shape = (latents * d,) if joint else (latents, d)
    shift = _checks.array("shift", arrays["shift"], shape=shape)
    precision = _checks.array("precision", arrays["precision"], shape=(*shape, shape[-1]))
    parts = [precision] if joint else list(precision)
    for name, matrix in (("prior_precision", prior), *(("precision", part) for part in parts)):
        _checks.symmetric(name, matrix)
        if not is_proper(matrix):
            raise ValueError(f"{name} is not positive definite")
    sites = restore_sites(arrays, ((n, width), (n, width), (n,)))
    if sites is None:
        raise ValueError("no sites")
    prior_shift = _checks.array("prior_shift", arrays["prior_shift"], shape=(d,))
    center = np.asarray(np.linalg.solve(prior, prior_shift), np.float64)
    base = prior_of(prior, center, True)._replace(shift=prior_shift)
    scale = _checks.number("log_scale", header["log_scale"])
    if not header.get("offset", False) or not joint:  # else it holds what offsets add
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
    flag, history = restore_flag(header, "converged"), restore_history(header["history"])
    kind = JointPosterior if joint else LatentPosterior
    post = kind(State(precision, shift, sites, scale, sweeps), problem, flag, history)
    if not np.isfinite(post.log_evidence):
        raise ValueError("the log evidence overflows")
    return post
