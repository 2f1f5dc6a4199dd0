"""load: one line per kind of posterior."""

from __future__ import annotations

import json
import os
from typing import Any
from zipfile import BadZipFile

import numpy as np

from epfast import _checks, losses
from epfast.gp import low_rank as gp_low_rank
from epfast.gp import posterior as gp_posterior
from epfast.linear import files as linear_files

#: file formats that ``load`` reads; 0.1.0 wrote format 1
FORMATS = (1, 2)
#: reader of each kind of posterior
RESTORE = {
    "factorized": linear_files.restore,
    "full": linear_files.restore,
    "process": gp_posterior.restore,
    "low_rank_process": gp_low_rank.restore,
}


def load(path: str | os.PathLike[str], loss: Any = None) -> Any:
    """Read a posterior that was written by ``save``.

    Parameters
    ----------
    path : path-like
        The ``.npz`` file. Nothing in it is unpickled or run.
    loss : optional
        The loss, where it could not be saved (or to replace the saved one); as in ``fit_linear``.

    Returns
    -------
    FactorizedPosterior, FullPosterior, GPPosterior or LowRankGPPosterior

    Raises
    ------
    ValueError
        If the file is not such a file.
    """
    given = None if loss is None else losses.resolve(loss)
    name = _checks.path("path", path)
    try:
        with open(name, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header = json.loads(str(arrays.pop("header")))
        if header["format"] not in FORMATS:
            raise ValueError(f"format {header['format']}")
        beta = _checks.number("beta", header["beta"], above=0.0)
        found = given
        if given is None and header["loss"] is not None:
            found = losses.restore(header["loss"], beta)
        elif given is not None and given.beta == 1.0:
            found = given.tempered(beta)
        return RESTORE[header["posterior"]](arrays, header, found)
    except (AttributeError, KeyError, TypeError, ValueError, EOFError, BadZipFile) as error:
        raise ValueError(
            f"path is {name!r}, which is not a posterior saved by epfast ({error}); allowed: a "
            "file written by save"
        ) from error
