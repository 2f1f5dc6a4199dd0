"""EP on h = X theta where X has fewer rows than columns: matrices of order n."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from epfast._arrays import Array
from epfast._core.kernel_matrix import KernelMatrix
from epfast._core.tilted import TiltedMoments
from epfast.inference import Sites, Summary
from epfast.linear.engines.base import improper_start
from epfast.linear.engines.kernel import ProcessEngine, ProcessState, with_alpha
from epfast.linear.problem import LinearProblem, not_proper
from epfast.linear.wide import WideState, mean_of, offset_of


class RowsAsProcess(NamedTuple):
    """Rows of a linear problem as a process of n values, with the prior N(offset, K)."""

    problem: LinearProblem
    #: None where no sweep is made
    kernel: KernelMatrix | None
    offset: Array | None

    @property
    def n(self) -> int:
        assert self.problem.data.y is not None
        return len(self.problem.data.y)

    @property
    def weights(self) -> Array | None:
        return self.problem.data.weights

    @property
    def scheme(self) -> Any:
        return self.problem.scheme

    @property
    def schedule(self) -> Any:
        return self.problem.schedule

    @property
    def remedy(self) -> str:
        return self.problem.remedy

    @property
    def evidence_bound(self) -> float:
        return self.problem.evidence_bound

    def tilted(self) -> TiltedMoments:
        return self.problem.tilted()

    def responses(self, which: Any = slice(None)) -> Array:
        return self.problem.responses(which)

    def weights_of(self, which: Any) -> Array | None:
        return self.problem.weights(which)

    def copies(self) -> Array | float:
        return 1.0 if self.weights is None else np.maximum(self.weights, 1.0)


def of_wide(engine: Callable[[LinearProblem], Any]) -> Callable[[LinearProblem], Any]:
    """The maker of an engine, in whose place a :class:`WideEngine` serves wide rows."""

    def make(problem: LinearProblem) -> Any:
        return engine(problem) if problem.wide is None else WideEngine(problem)

    return make


class WideEngine(ProcessEngine):
    """A site per row, in n^2 numbers beside the rows."""

    def __init__(
        self, problem: LinearProblem, prior: RowsAsProcess | None = None, known: float = 0.0
    ) -> None:
        """prior: of the rows, where others are known; known: their log evidence."""
        if prior is None:
            kernel = problem.wide.kernel(problem.prior)
            prior = RowsAsProcess(problem, kernel, offset_of(problem))
        super().__init__(prior)
        self.rows, self.known = problem, known

    def init(self, start: Any) -> ProcessState:
        if start is None:
            return super().init(None)._replace(sweeps=self.rows.base.sweeps)
        n, d = self.rows.shape
        if start.sites is None:
            raise ValueError(
                "start has no sites (it comes from ADF); allowed with EP: a result of EP"
            )
        shapes = [part.shape for part in start.sites]
        if shapes != [(n,)] * 3 or start.shift.size != d:
            raise ValueError(
                f"start has sites of shape {shapes[0]} in {start.shift.size} dimensions; allowed: "
                f"({n},) in {d}, the same rows"
            )
        try:
            return super().init(start)
        except ValueError:
            raise improper_start() from None

    def summary(self, state: ProcessState, evidence: bool = True) -> Summary:
        found = super().summary(state, evidence)
        return found._replace(log_evidence=found.log_evidence + self.known)

    def of_weights(self, state: ProcessState, evidence: bool = True) -> Summary:
        """As :meth:`summary`, with the mean of the weights. O(n d)."""
        moments = with_alpha(state.sites, state.now)
        return self.summary(state, evidence)._replace(mean=mean_of(self.rows, moments.alpha))

    def settle(self, state: ProcessState, hurry: bool = False) -> WideState:  # type: ignore[override]
        """The array goes into the result."""
        (sites, sweeps, _), moments = super().settle(state, hurry)
        if hurry:
            return WideState(sites, sweeps, moments)
        kernel = self.kernel
        return WideState(sites, sweeps, moments, kernel.array, kernel.diagonal)

    def _improper(self, sites: Sites) -> FloatingPointError:
        return not_proper()
