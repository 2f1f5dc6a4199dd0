"""load: one line per kind of posterior, and learned operators."""

from __future__ import annotations

import errno
import os
from importlib import import_module
from typing import Any, cast

import numpy as np

from epfast import _checks, losses
from epfast.gaussian.average import IntegratedPosterior
from epfast.gaussian.factor import LowRankFactor
from epfast.gaussian.files import Shape, check_shapes, restored, shapes
from epfast.gaussian.forms.kernel import GPState, ValueMoments
from epfast.gaussian.forms.weights import ShrunkState
from epfast.gaussian.latent_posterior import JointPosterior, LatentPosterior
from epfast.gaussian.linear_posterior import (
    FactorizedPosterior,
    FullPosterior,
    KeptMoments,
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
from epfast.operators.just_in_time import MisfitError, SavedHeader
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
    KeptMoments,
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
#: what arrays of posteriors have to be, by kind, see :func:`check_shapes`
OF_ROWS = (
    shapes("problem.prior", shift="d", precision="d|dd")
    | shapes("problem.base", shift="d", precision="d|dd")
    | shapes("problem.prior", center="f")
    | shapes("problem.data", weights="n", X="nd", y=Shape("nw", infinite=True))
)
OF_PROCESSES = shapes("problem.data", y=Shape("nw", infinite=True), weights="n")
VALUES = shapes("state.moments", alpha="n", mean="n", variance="n")
KERNEL = shapes("state", factor="nn", diagonal="n")
RELAXED = shapes("state.relaxed", shift="n", precision="n")
SITES = shapes("state.sites", log_scale="n", shift="n", precision="n")
SEVERAL = shapes("state.sites", log_scale="n", shift="nc", precision="nc")
SHAPES = {
    "full": shapes("state", shift="d", precision="dd") | RELAXED | SITES,
    "shared": shapes("state", shift="d", precision="dd")
    | shapes("state.sites", log_scale="s", shift="sd", precision="sdd")
    | shapes("problem.data", groups=Shape("n", below="s")),
    "factorized": shapes("state", shift="d", precision="d")
    | shapes("state.sites", log_scale="s", shift="sd", precision="sd"),
    "wide": SITES,
    "sparse": shapes("state.moments", mean="d", variance="d", numbers="z")
    | shapes("state.moments", slope="sc", covariance="cc", root="cc")
    | shapes("state.moments.bound", along="dk", against="kd")
    | shapes("problem.prior.design", constraints="kd")
    | shapes(
        "problem.prior.design.pattern", dense=Shape("c", below="d"), order=Shape("s", below="d")
    )
    | shapes("problem.prior.design.pattern", row=Shape("r", below="s"))
    | SITES,
    "latents": shapes("state", shift="cd", precision="cdd") | SEVERAL,
    "joint_latents": shapes("state", shift="e", precision="ee") | SEVERAL,
    "shrunk": shapes("state", shift="d", precision="dd", mean="d", variance="d")
    | shapes("state.prior_sites", log_scale="d", shift="d", precision="d")
    | shapes("problem.prior.start", log_scale="d", shift="d", precision="d")
    | shapes("problem.prior", visits=Shape("v", below="d"))
    | SITES,
    "process": OF_PROCESSES | RELAXED | VALUES | KERNEL | SITES,
    "nearest_process": OF_PROCESSES | VALUES | SITES,
    "latent_processes": shapes("problem.data", y=Shape("nw", infinite=True))
    | VALUES
    | KERNEL
    | SEVERAL,
    "integrated": shapes("", weights="k", log_prior="k", points="km", mode="m")
    | shapes("", nodes="gm", probabilities="g"),
    "network": shapes("problem.scaling", mean="d", scale="d")
    | shapes("state", belief="p", base="b", sites="kp"),
    "mixture": shapes("problem", center="d", prior_mean="jd", prior_covariance="jdd")
    | shapes("problem", weights="j", concentration="j")
    | shapes("state", belief="p", base="p", sites="kp"),
    "low_rank_process": shapes("factor", G="nr", pivots=Shape("r", below="n"), residual="n")
    | shapes("factor", traces=Shape("r", more=1))
    | shapes("weights.problem.data", y=Shape("nw", infinite=True)),
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
            return Operator.restore(arrays, cast("SavedHeader", header), oracle)
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
    check_shapes(post, (OF_ROWS if isinstance(post, LinearPosterior) else {}) | SHAPES[kind])
    if kind == "integrated" and (len(parts), len(post.hyper_names)) != post.points.shape:
        raise ValueError("posteriors, points and names are inconsistent")
    if kind in OWN_LOSS:
        post.problem.check_state(post.state)
    elif given is not None and (y := post.observed()) is not None:
        files.restore_responses(y, post.problem.loss)
    return post
