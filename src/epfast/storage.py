"""load: one line per kind of posterior, and learned operators."""

from __future__ import annotations

import errno
import os
from typing import Any

import numpy as np

from epfast import _checks, losses
from epfast.gp import latents as gp_latents
from epfast.gp import low_rank as gp_low_rank
from epfast.gp import posterior as gp_posterior
from epfast.graph import posterior as graph_posterior
from epfast.inference import files
from epfast.linear import files as linear_files
from epfast.linear import latent_files, shrunk_restoring
from epfast.losses import Loss
from epfast.operators import Operator
from epfast.operators.files import MisfitError
from epfast.parametric import mixture_posterior, network_posterior

#: reader of each kind of posterior: of arrays, header, and the loss; of operators the oracle
RESTORE = {
    "factorized": linear_files.restore,
    "full": linear_files.restore,
    "wide": linear_files.restore_wide,
    "joint_latents": latent_files.restore,
    "latents": latent_files.restore,
    "shrunk": shrunk_restoring.restore,
    "latent_processes": gp_latents.restore,
    "process": gp_posterior.restore,
    "low_rank_process": gp_low_rank.restore,
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
    GPPosterior, LatentGPPosterior, LowRankGPPosterior, GraphPosterior, MixturePosterior,
    NetworkPosterior or Operator

    Raises
    ------
    ValueError
        If the file is not such a file, was damaged, or contradicts itself: sites that do not add
        up, matrices that are not positive definite, labels that are none. If an operator asked
        another oracle than the given one, or its oracle must be given.
    OSError
        If the file cannot be opened.
    """
    given = None if loss is None else losses.resolve(loss)
    name = _checks.path("path", path)
    try:
        arrays, header = files.read(name)
        kind = _checks.choice("posterior", header["posterior"], tuple(RESTORE))
        unused, value = ("loss", loss) if kind == "operator" else ("oracle", oracle)
        if value is not None:
            raise MisfitError(f"{unused} is {_checks.describe(value)}; allowed for this file: None")
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
