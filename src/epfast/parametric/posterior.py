"""What posteriors of networks and mixtures have in common."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from epfast.gaussian.files import contents
from epfast.inference import SweepInfo
from epfast.inference.files import write
from epfast.inference.records import Recorded
from epfast.parametric.engine import ParametricState


@dataclass(eq=False, repr=False)
class ParametricPosterior(Recorded):
    """A state of a problem, and how the fit went."""

    problem: Any
    state: ParametricState
    converged: bool
    history: list[SweepInfo]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to an ``.npz`` file, which :func:`epfast.load` reads. Nothing is pickled.

        A fit that goes on from it (``start``) goes on to the bit as if it had not stopped.
        """
        write(path, *contents(self))
