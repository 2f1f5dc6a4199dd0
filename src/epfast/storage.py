"""load: one line per kind of posterior, and learned operators."""

from __future__ import annotations

import errno
import os
from importlib import import_module
from typing import Any

import numpy as np

from epfast import _checks, losses
from epfast.gaussian.average import IntegratedPosterior
from epfast.gaussian.factor import LowRankFactor
from epfast.gaussian.files import check_shapes, restored
from epfast.gaussian.forms.kernel import GPState, ValueMoments
from epfast.gaussian.forms.weights import ShrunkState
from epfast.gaussian.latent_posterior import JointPosterior, LatentPosterior
from epfast.gaussian.linear_posterior import (
    FactorizedPosterior,
    FullPosterior,
    Known,
    LinearPosterior,
)
from epfast.gaussian.low_rank import LowRankGPPosterior
from epfast.gaussian.nearest import NearestGPPosterior
from epfast.gaussian.prior import (
    CenteredPrior,
    KernelPrior,
    PerWeightPrior,
    SparsePrior,
    WeightPrior,
)
from epfast.gaussian.problem import Problem
from epfast.gaussian.process_posterior import GPPosterior, LatentGPPosterior
from epfast.gaussian.rows import Data
from epfast.gaussian.shrunk_posterior import ShrunkPosterior
from epfast.gaussian.sparse import Kriging, Moments, Pattern, SparseDesign
from epfast.gaussian.sparse_posterior import SparsePosterior
from epfast.gaussian.state import RelaxationFactors, State
from epfast.gaussian.wide_posterior import WidePosterior
from epfast.graph import files as graph_files
from epfast.graph.posterior import GraphPosterior
from epfast.inference import files
from epfast.inference.records import Sites, SweepInfo
from epfast.losses import Loss
from epfast.losses.names import LossGiven
from epfast.operators import Operator
from epfast.operators.just_in_time import MisfitError
from epfast.parametric import MixturePosterior, NetworkPosterior
from epfast.parametric.engine import ParametricState
from epfast.parametric.mixture_problem import MixtureProblem
from epfast.parametric.network_problem import NetworkProblem, Scaling

#: posteriors that are written by their fields, and the classes of these fields
POSTERIORS = (
    FactorizedPosterior,
    FullPosterior,
    WidePosterior,
    SparsePosterior,
    ShrunkPosterior,
    LatentPosterior,
    JointPosterior,
    GPPosterior,
    LowRankGPPosterior,
    NearestGPPosterior,
    LatentGPPosterior,
    IntegratedPosterior,
    MixturePosterior,
    NetworkPosterior,
    GraphPosterior,
)
PARTS = (
    Data,
    GPState,
    Known,
    Kriging,
    LowRankFactor,
    MixtureProblem,
    Moments,
    NetworkProblem,
    ParametricState,
    Pattern,
    ValueMoments,
    PerWeightPrior,
    SparsePrior,
    WeightPrior,
    CenteredPrior,
    KernelPrior,
    Problem,
    RelaxationFactors,
    Scaling,
    ShrunkState,
    Sites,
    State,
    SparseDesign,
    SweepInfo,
    *files.SCHEDULES.values(),
    *graph_files.PARTS,
)
#: shapes of the arrays of posteriors by kind, see :func:`check_shapes`
OF_ROWS = """problem.prior.shift d, problem.prior.precision d|dd, problem.base.shift d,
problem.base.precision d|dd, problem.prior.center f, problem.data.weights n, problem.data.X nd,
problem.data.y nw?, """
RELAXED = "state.relaxed.shift n, state.relaxed.precision n"
SITES = "state.sites.log_scale n, state.sites.shift n, state.sites.precision n"
SEVERAL = "state.sites.log_scale n, state.sites.shift nc, state.sites.precision nc"
SHAPES = {
    "full": f"state.shift d, state.precision dd, {RELAXED}, {SITES}",
    "shared": """state.shift d, state.precision dd, state.sites.log_scale s,
        state.sites.shift sd, state.sites.precision sdd, problem.data.groups n=s""",
    "factorized": """state.shift d, state.precision d,
        state.sites.log_scale s, state.sites.shift sd, state.sites.precision sd""",
    "wide": SITES,
    "sparse": f"""state.moments.mean d, state.moments.variance d, state.moments.numbers z,
        state.moments.slope sc, state.moments.covariance cc, state.moments.root cc,
        state.moments.bound.along dk, state.moments.bound.against kd,
        problem.prior.design.constraints kd, problem.prior.design.pattern.dense c=d,
        problem.prior.design.pattern.order s=d,
        problem.prior.design.pattern.row r=s, {SITES}""",
    "latents": f"state.shift cd, state.precision cdd, {SEVERAL}",
    "joint_latents": f"state.shift e, state.precision ee, {SEVERAL}",
    "shrunk": f"""state.shift d, state.precision dd, state.mean d, state.variance d,
        state.prior_sites.log_scale d, state.prior_sites.shift d, state.prior_sites.precision d,
        problem.prior.start.log_scale d, problem.prior.start.shift d,
        problem.prior.start.precision d, problem.prior.visits v=d, {SITES}""",
    "process": f"""problem.data.y nw?, problem.data.weights n, {RELAXED}, state.moments.alpha n,
        state.moments.mean n, state.moments.variance n, state.factor nn, state.diagonal n,
        {SITES}""",
    "nearest_process": f"""problem.data.y nw?, problem.data.weights n, state.moments.alpha n,
        state.moments.mean n, state.moments.variance n, {SITES}""",
    "latent_processes": f"""problem.data.y nw?, state.moments.alpha n, state.moments.mean n,
        state.moments.variance n, state.factor nn, state.diagonal n, {SEVERAL}""",
    "integrated": "weights k, log_prior k, points km, nodes gm, probabilities g, mode m",
    "network": """problem.scaling.mean d, problem.scaling.scale d, state.belief p, state.base b,
        state.sites kp""",
    "mixture": """problem.center d, problem.prior_mean jd, problem.prior_covariance jdd,
        problem.weights j, problem.concentration j, state.belief p, state.base p,
        state.sites kp""",
    "low_rank_process": """factor.G nr, factor.pivots r=n, factor.residual n, factor.traces r+,
        weights.problem.data.y nw?""",
}
CLASSES: dict[str, type] = {kind.__name__: kind for kind in (*POSTERIORS, *PARTS)}
#: kinds that need an extra, and the modules that have their classes, which are imported by name
IN_EXTRAS = {"formula": "epfast.formula"}
#: kinds whose files hold their losses
OWN_LOSS = "mixture", "network", "graph"
#: errors for files that cannot be opened
UNREADABLE = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


def load(path: str | os.PathLike[str], loss: LossGiven | None = None, oracle: Any = None) -> Any:
    """Read a posterior, or a learned operator, that was written by ``save``.

    Parameters
    ----------
    path : path-like
        The ``.npz`` file. Nothing in it is unpickled or run.
    loss : optional
        The loss, where it could not be saved (or to replace the saved one). As in ``fit_linear``.
    oracle : optional
        Of an operator the oracle that it asked. As in ``Operator``.

    Returns
    -------
    FactorizedPosterior, FullPosterior, WidePosterior, SparsePosterior, ShrunkPosterior,
    LatentPosterior, GPPosterior, LatentGPPosterior, LowRankGPPosterior, IntegratedPosterior,
    GraphPosterior, MixturePosterior, NetworkPosterior, formula.FormulaFit or Operator

    Raises
    ------
    ImportError
        If the file holds a fit by a formula, and the extra ``formula`` is not installed.
    ValueError
        If the file was not written by ``save``, or if it was damaged or changed, which a digest
        detects. If an operator was trained with another oracle, or if its oracle is not given.
    OSError
        If the file cannot be opened.
    """
    given = None if loss is None else losses.resolve(loss)
    name = _checks.path("path", path)
    try:
        arrays, header = files.read(name)
        own = {posterior.kind for posterior in POSTERIORS}
        kind = _checks.choice("posterior", header["posterior"], (*own, *IN_EXTRAS, "operator"))
        unused = {"oracle": oracle} if kind != "operator" else {}
        unused |= {"loss": loss} if kind in (*OWN_LOSS, "operator") else {}
        for name_of, value in unused.items():
            if value is not None:
                given_as = _checks.describe(value)
                raise MisfitError(f"{name_of} is {given_as}; allowed for this file: None")
        if kind != "operator":
            more = import_module(IN_EXTRAS[kind]).CLASSES if kind in IN_EXTRAS else {}
            return _checked(restored(header["fields"], arrays, CLASSES | more, given), given)
        with np.errstate(all="ignore"):
            return Operator.restore(arrays, header, oracle)
    except (ImportError, MemoryError, MisfitError, *UNREADABLE):
        raise
    except Exception as error:  # a damaged file can cause any error
        if isinstance(error, OSError) and error.errno == errno.EIO:
            raise
        said = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(
            f"path is {name!r}, which is not a posterior saved by epfast, or was damaged ({said}); "
            "allowed: a file written by save"
        ) from error


def _checked(post: Any, given: Loss | None) -> Any:
    """The posterior. Refuses inconsistent arrays, and a loss for other responses."""
    kind = post.kind
    if kind == "graph":
        return graph_files.checked(post)
    if kind in IN_EXTRAS:
        _checked(post.posterior, given)
        post.check_fields()
        return post
    parts = post.posteriors if kind == "integrated" else ()
    for part in (post.weights,) if kind == "low_rank_process" else parts:
        _checked(part, given)
    if kind == "full" and post.sites is not None and post.sites.shift.ndim == 2:
        kind = "shared"
    check_shapes(post, f"{OF_ROWS if isinstance(post, LinearPosterior) else ''}{SHAPES[kind]}")
    if kind == "integrated" and (len(parts), len(post.hyper_names)) != post.points.shape:
        raise ValueError("posteriors, points and names are inconsistent")
    if kind in OWN_LOSS:
        post.problem.check_state(post.state)
    elif given is not None and (y := post.observed()) is not None:
        files.restore_responses(y, post.problem.loss)
    return post
