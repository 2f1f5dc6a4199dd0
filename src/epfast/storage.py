"""load: one line per kind of posterior, and learned operators."""

from __future__ import annotations

import errno
import os
from typing import Any

import numpy as np

from epfast import _checks, losses
from epfast.gaussian.engines.kernel import GPState, Relaxed, ValueMoments
from epfast.gaussian.engines.latent_processes import LatentGPState
from epfast.gaussian.engines.prior_sites import ShrunkState
from epfast.gaussian.factor import LowRankFactor
from epfast.gaussian.files import check_shapes, restored
from epfast.gaussian.integrated import IntegratedPosterior
from epfast.gaussian.latent_posterior import JointPosterior, LatentPosterior
from epfast.gaussian.latent_processes import LatentGPPosterior
from epfast.gaussian.linear_posterior import FactorizedPosterior, FullPosterior
from epfast.gaussian.low_rank import LowRankGPPosterior
from epfast.gaussian.nearest import NearestGPPosterior
from epfast.gaussian.problem import Data, LinearProblem, PriorSites, State
from epfast.gaussian.process_posterior import GPPosterior
from epfast.gaussian.process_problem import GPProblem
from epfast.gaussian.shrunk_posterior import ShrunkPosterior
from epfast.gaussian.wide import WideRows
from epfast.gaussian.wide_posterior import WidePosterior
from epfast.graph import posterior as graph_posterior
from epfast.inference import files
from epfast.inference.records import Sites, SweepInfo
from epfast.losses import Loss
from epfast.operators import Operator
from epfast.operators.files import MisfitError
from epfast.parametric import mixture_posterior, network_posterior

#: posteriors that are written by their fields, and what these are
POSTERIORS = (
    FactorizedPosterior,
    FullPosterior,
    WidePosterior,
    ShrunkPosterior,
    LatentPosterior,
    JointPosterior,
    GPPosterior,
    LowRankGPPosterior,
    NearestGPPosterior,
    LatentGPPosterior,
    IntegratedPosterior,
)
PARTS = (
    Data,
    GPProblem,
    GPState,
    LatentGPState,
    LinearProblem,
    LowRankFactor,
    ValueMoments,
    PriorSites,
    Relaxed,
    ShrunkState,
    Sites,
    State,
    SweepInfo,
    WideRows,
)
#: arrays of the posteriors by their kinds, see :func:`check_shapes`
OF_ROWS = """problem.prior.shift d
problem.prior.precision d|dd
problem.base.shift d
problem.base.precision d|dd
problem.center f
problem.data.weights n
problem.data.X nd
problem.data.y nw?"""
SHAPES = {
    "full": """state.shift d
state.precision dd
state.sites.log_scale n
state.sites.shift n
state.sites.precision n""",
    "shared": """state.shift d
state.precision dd
state.sites.log_scale s
state.sites.shift sd
state.sites.precision sdd
problem.groups n=s""",
    "factorized": """state.shift d
state.precision d
state.sites.log_scale s
state.sites.shift sd
state.sites.precision sd""",
    "wide": """state.sites.log_scale n
state.sites.shift n
state.sites.precision n
problem.wide.X nd""",
    "latents": """state.shift cd
state.precision cdd
state.sites.log_scale n
state.sites.shift nc
state.sites.precision nc""",
    "joint_latents": """state.shift e
state.precision ee
state.sites.log_scale n
state.sites.shift nc
state.sites.precision nc""",
    "shrunk": """state.shift d
state.precision dd
state.mean d
state.variance d
state.sites.log_scale n
state.sites.shift n
state.sites.precision n
state.prior_sites.log_scale d
state.prior_sites.shift d
state.prior_sites.precision d
problem.prior_sites.start.log_scale d
problem.prior_sites.start.shift d
problem.prior_sites.start.precision d
problem.prior_sites.visits v=d
problem.wide.X nd""",
    "process": """problem.y nw?
problem.weights n
state.sites.log_scale n
state.sites.shift n
state.sites.precision n
state.relaxed.shift n
state.relaxed.precision n
state.moments.alpha n
state.moments.mean n
state.moments.variance n
state.factor nn
state.diagonal n""",
    "nearest_process": """problem.y nw?
problem.weights n
state.sites.log_scale n
state.sites.shift n
state.sites.precision n
state.moments.alpha n
state.moments.mean n
state.moments.variance n""",
    "latent_processes": """problem.y nw?
state.sites.log_scale n
state.sites.shift nc
state.sites.precision nc
state.now.alpha n
state.now.mean n
state.now.variance n
packed nn
diagonals n""",
    "integrated": """weights k
log_prior k
points km""",
    "low_rank_process": """factor.G nr
factor.pivots r=n
factor.residual n
factor.traces r+
weights.problem.data.y nw?""",
}
CLASSES: dict[str, Any] = {kind.__name__: kind for kind in (*POSTERIORS, *PARTS)}
#: reader of each other kind: of arrays, header, and the loss; of operators the oracle
RESTORE: dict[str, Any] = {
    "graph": graph_posterior.restore,
    "mixture": mixture_posterior.restore,
    "network": network_posterior.restore,
    "operator": Operator.restore,
}
#: what says that a file cannot be opened, or that the disk fails
UNREADABLE = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


def load(path: str | os.PathLike[str], loss: Any = None, oracle: Any = None) -> Any:
    """Read a posterior, or a learned operator, that was written by ``save``.

    Parameters
    ----------
    path : path-like
        The ``.npz`` file. Nothing in it is unpickled or run.
    loss : optional
        The loss, where it could not be saved (or to replace the saved one); as in ``fit_linear``.
    oracle : optional
        Of an operator the oracle that it asked, where that holds functions; as in ``Operator``.

    Returns
    -------
    FactorizedPosterior, FullPosterior, WidePosterior, ShrunkPosterior, LatentPosterior,
    GPPosterior, LatentGPPosterior, LowRankGPPosterior, IntegratedPosterior, GraphPosterior,
    MixturePosterior, NetworkPosterior or Operator

    Raises
    ------
    ValueError
        If the file is not such a file, or was damaged or changed: it holds a digest of what was
        written. If an operator asked another oracle than the given one, or its oracle must be
        given.
    OSError
        If the file cannot be opened.
    """
    given = None if loss is None else losses.resolve(loss)
    name = _checks.path("path", path)
    try:
        arrays, header = files.read(name)
        own = {posterior.kind for posterior in POSTERIORS}
        kind = _checks.choice("posterior", header["posterior"], (*own, *RESTORE))
        unused, value = ("loss", loss) if kind == "operator" else ("oracle", oracle)
        if value is not None:
            raise MisfitError(f"{unused} is {_checks.describe(value)}; allowed for this file: None")
        if kind in own:
            return _checked(restored(header["fields"], arrays, CLASSES, given), given)
        with np.errstate(all="ignore"):
            found = oracle if kind == "operator" else _loss_of(header, given)
            return RESTORE[kind](arrays, header, found)
    except (MemoryError, MisfitError, *UNREADABLE):
        raise
    except Exception as error:  # a damaged file can lead to any of them
        if isinstance(error, OSError) and error.errno == errno.EIO:
            raise
        said = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(
            f"path is {name!r}, which is not a posterior saved by epfast, or was damaged ({said}); "
            "allowed: a file written by save"
        ) from error


def _checked(post: Any, given: Loss | None) -> Any:
    """The posterior; refuses what does not fit together, and a loss for other responses."""
    if isinstance(post, IntegratedPosterior):
        check_shapes(post, SHAPES[post.kind])
        if (len(post.posteriors), len(post.hyper_names)) != post.points.shape:
            raise ValueError("posteriors, points and names do not fit together")
        for part in post.posteriors:
            _checked(part, given)
        return post
    if isinstance(post, LowRankGPPosterior):
        _checked(post.weights, None)
    elif hasattr(post.problem, "prior"):
        is_shared = post.kind == "full" and post.sites is not None and post.sites.shift.ndim == 2
        check_shapes(post, f"{OF_ROWS}\n{SHAPES['shared' if is_shared else post.kind]}")
    if not hasattr(post.problem, "prior") or isinstance(post, LowRankGPPosterior):
        check_shapes(post, SHAPES[post.kind])
    y = post.observed()
    if given is not None and y is not None:
        files.restore_responses(y, post.problem.loss)
    return post


def _loss_of(header: dict[str, Any], given: Loss | None) -> Loss | None:
    """The given loss, or that of the file, at the temperature of the fit."""
    beta = _checks.number("beta", header["beta"], above=0.0)
    found = given
    if given is None and header["loss"] is not None:
        found = losses.restore(header["loss"], beta)
    elif given is not None and given.beta == 1.0:
        found = given.tempered(beta)
    if found is not None and header.get("offset", False) is True:
        found = found.with_offset()
    return found
