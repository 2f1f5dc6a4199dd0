"""Networks as files: belief, prior, sites, scales and settings."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from epfast import _checks
from epfast._arrays import Array
from epfast.inference import SweepInfo
from epfast.inference.files import restore_flag, restore_history, restore_schedule
from epfast.parametric import files
from epfast.parametric.engine import ParametricState, checked_schedule
from epfast.parametric.network_problem import NetworkProblem, Scaling

LIKELIHOODS = ("gaussian", "probit")
SITE_DTYPES = ("float64", "float32")
#: of these a fit takes no more
MOST_UNITS = 2**31


def contents(
    problem: NetworkProblem,
    state: ParametricState,
    converged: bool,
    history: list[SweepInfo],
    n_dead_units: int,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays and the header of a file."""
    arrays, header = files.contents("network", problem.schedule, state, converged, history)
    scaling = problem.scaling
    arrays |= {
        "base": state.base,
        "scaling_mean": scaling.mean,
        "scaling_scale": scaling.scale,
    }
    return arrays, header | {
        "hidden": list(problem.hidden),
        "likelihood": problem.likelihood,
        "prior": problem.prior,
        "noise": list(problem.noise),
        "y_mean": scaling.y_mean,
        "y_scale": scaling.y_scale,
        "seed": problem.seed,
        "site_dtype": problem.site_dtype,
        "n": problem.n,
        "log_scale": float(state.log_scale),
        "n_dead_units": int(n_dead_units),
    }


def restore(
    arrays: dict[str, Array], header: dict[str, Any]
) -> tuple[NetworkProblem, ParametricState, bool, list[SweepInfo], int]:
    """Check what :func:`contents` made: the arguments of a posterior."""
    mean = _checks.array("scaling_mean", arrays["scaling_mean"], shape=(None,))
    scale = arrays["scaling_scale"]
    scale = _checks.array("scaling_scale", scale, shape=mean.shape, positive=True)
    n = _checks.integer("n", header["n"], least=1)
    seed = _checks.integer("seed", header["seed"], least=0)
    given = restore_schedule(header["schedule"], arrays.get("schedule_groups"))
    schedule = checked_schedule(given, "a network", seed)
    problem = NetworkProblem(
        Scaling(
            mean,
            scale,
            _checks.number("y_mean", header["y_mean"]),
            _checks.number("y_scale", header["y_scale"], above=0.0),
        ),
        layers("hidden", header["hidden"]),
        _checks.choice("likelihood", header["likelihood"], LIKELIHOODS),
        prior_at_door("prior", header["prior"]),
        gamma("noise", header["noise"]),
        schedule,
        seed,
        _checks.choice("site_dtype", header["site_dtype"], SITE_DTYPES),
        n,
    )
    belief, base = _naturals(problem, arrays)
    sites = files.restore_sites(arrays, schedule, n, belief, base[: len(belief)])
    if sites is not None and schedule.stores == "factor":
        sites = sites.astype(problem.site_dtype, copy=False)
    state = ParametricState(
        belief,
        base,
        sites,
        _checks.number("log_scale", header["log_scale"]),
        _checks.integer("sweeps", header["sweeps"], least=0),
    )
    dead = _checks.integer("n_dead_units", header["n_dead_units"], least=0)
    return (
        problem,
        state,
        restore_flag(header, "converged"),
        restore_history(header["history"]),
        dead,
    )


def layers(name: str, given: Any) -> tuple[int, ...]:
    """Units of one to three hidden layers."""
    if isinstance(given, Real) or (isinstance(given, np.ndarray) and given.ndim == 0):
        given = (given,)
    if not isinstance(given, tuple | list | np.ndarray) or not 1 <= len(given) <= 3:
        raise ValueError(
            f"{name} is {_checks.describe(given)}; allowed: a tuple of 1 to 3 whole numbers >= 1, "
            "the units of each hidden layer; without one use fit_linear"
        )
    return tuple(_checks.integer(name, units, least=1, most=MOST_UNITS) for units in given)


def gamma(name: str, given: Any) -> tuple[float, float]:
    """Shape and rate of a gamma distribution whose inverse has a mean."""
    sized = isinstance(given, tuple | list) or (isinstance(given, np.ndarray) and given.ndim > 0)
    if not sized or len(given) != 2:
        raise ValueError(f"{name} is {_checks.describe(given)}; allowed: (shape, rate)")
    shape = _checks.number(f"{name}[0]", given[0], above=1.0, most=1e12)
    rate = _checks.number(f"{name}[1]", given[1], above=0.0, most=1e100)
    return shape, rate


def prior_at_door(name: str, given: Any) -> tuple[float, float] | float:
    """A gamma distribution of the weights' prior precision, or that precision."""
    if isinstance(given, Real) or (isinstance(given, np.ndarray) and given.ndim == 0):
        return _checks.number(name, given, above=0.0, most=1e12)
    return gamma(name, given)


def _naturals(problem: NetworkProblem, arrays: dict[str, Array]) -> tuple[Array, Array]:
    """Belief and base, both proper."""
    W = problem.n_weights
    belief = _checks.array("belief", arrays["belief"], shape=(2 * W + 4,))
    base = _checks.array("base", arrays["base"], shape=(5 * W + 4,))
    for name, natural in (("belief", belief), ("base", base)):
        gammas = natural[2 * W + 2 * problem.probit : 2 * W + 4]
        if not ((natural[:W] > 0.0).all() and (gammas > 0.0).all()):
            raise ValueError(f"{name} is improper; allowed: precisions, shapes and rates > 0")
    return belief, base
