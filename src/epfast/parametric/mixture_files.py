"""Posteriors of mixtures of Gaussians as files."""

from __future__ import annotations

from typing import Any

from epfast import _checks
from epfast._arrays import Array
from epfast.inference import SweepInfo
from epfast.inference.files import agree, restore_flag, restore_history, restore_schedule
from epfast.parametric import files
from epfast.parametric.engine import ParametricState, checked_schedule
from epfast.parametric.mixture_problem import MixtureProblem, covariance_at_door

#: arrays of the problem that may be None
OPTIONAL = ("weights", "concentration")


def contents(
    problem: MixtureProblem, state: ParametricState, converged: bool, history: list[SweepInfo]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays and the header of a file."""
    arrays, header = files.contents("mixture", problem.schedule, state, converged, history)
    arrays |= {
        "center": problem.center,
        "prior_mean": problem.prior_mean,
        "prior_covariance": problem.prior_covariance,
    }
    arrays |= {name: x for name in OPTIONAL if (x := getattr(problem, name)) is not None}
    return arrays, header | {
        "n_rows": problem.n_rows,
        "noise_variance": problem.noise_variance,
        "noise_prior": problem.noise_prior,
    }


def restore(
    arrays: dict[str, Array], header: dict[str, Any]
) -> tuple[ParametricState, MixtureProblem, bool, list[SweepInfo]]:
    """Check what :func:`contents` made: the arguments of a posterior."""
    mean = _checks.array("prior_mean", arrays["prior_mean"], shape=(None, None))
    J, d = mean.shape
    if not mean.size:
        raise ValueError("prior_mean is empty")
    center = _checks.array("center", arrays["center"], shape=(d,))
    given = _checks.array("prior_covariance", arrays["prior_covariance"], shape=(J, d, d))
    n = _checks.integer("n_rows", header["n_rows"], least=1)
    known = {
        name: _checks.array(name, arrays[name], shape=(J,), positive=True)
        for name in OPTIONAL
        if name in arrays
    }
    variance, prior = header["noise_variance"], header["noise_prior"]
    if len(known) != 1 or (variance is None) == (prior is None):
        raise ValueError("weights or the noise are both known and learnt, or neither")
    if "weights" in known:
        agree("weights", known["weights"].sum(), 1.0, 1.0)
    if variance is not None:
        variance = _checks.number("noise_variance", variance, above=0.0)
    else:
        shape, rate = prior
        prior = (
            _checks.number("shape", shape, above=0.0),
            _checks.number("rate", rate, above=0.0),
        )
    schedule = restore_schedule(header["schedule"], arrays.get("schedule_groups"))
    problem = MixtureProblem(
        n,
        center,
        mean,
        covariance_at_door(given, J, d),
        known.get("weights"),
        known.get("concentration"),
        variance,
        prior,
        checked_schedule(schedule, "a mixture", schedule.seed or 0),
    )
    base = problem.base()
    belief = _checks.array("belief", arrays["belief"], shape=base.shape)
    if not (problem.is_proper(base) and problem.is_proper(belief)):
        raise ValueError("the prior or the belief is improper")
    sweeps = _checks.integer("sweeps", header["sweeps"], least=0)
    history = restore_history(header["history"])
    sites = files.restore_sites(arrays, problem.schedule, n, belief, base)
    state = ParametricState(belief, base, sites, None, sweeps)
    return state, problem, restore_flag(header, "converged"), history
