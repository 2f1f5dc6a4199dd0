"""What a scheme is: the losses that it refuses, and its numbers for the core."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import ClassVar, Required, TypedDict

from epfast._arrays import Array
from epfast._core.loss import CoreLoss
from epfast._core.minibatch import MinibatchSweep
from epfast._core.relaxed import Relaxation
from epfast._core.scalar_schemes import FactorScheme, PythonScheme
from epfast._core.sparse_factors import SPARSE, SparseSweep
from epfast._core.tilted import TiltedMoments
from epfast.losses import Loss
from epfast.schedules import Schedule


class CoreArguments(TypedDict, total=False):
    """Name and numbers of a scheme in the core, as ``MinibatchSweep`` takes them."""

    scheme: Required[str]
    gamma: float
    tolerance: float
    max_iterations: int
    slope_curvature: bool
    half_sums: bool
    points: Array
    weights: Array
    newton: bool


class Scheme:
    """Base of the schemes.

    A scheme of your own overrides :meth:`core_arguments`, to call a scheme of the core with other
    numbers. It then serves minibatch factors and scalar sites. For new mathematics on scalar sites
    subclass :class:`RowScheme`.
    """

    #: what a loss must give beside values, see :attr:`epfast.losses.Loss.gives`
    needs: ClassVar[frozenset[str]] = frozenset()
    #: True if a fit is an expansion, with a precision and a shift per row of a factor
    expands: ClassVar[bool] = False
    #: True if moments are derivatives of log Z, to rounding
    integrates: ClassVar[bool] = False
    #: True if sites are fitted beside relaxation factors
    relaxes: ClassVar[bool] = False
    #: why it serves no minibatches but scalar sites alone. "" where it does
    one_dimension: ClassVar[str] = ""
    #: True if fits change it: it is serial then
    learns: ClassVar[bool] = False
    #: sweeps by the truth alone, after those of a scheme that learns
    polish: int = 0

    def refuses(self, loss: Loss, factor: str) -> str | None:
        """The reason why the scheme cannot fit such factors, or None.

        Parameters
        ----------
        loss : Loss
        factor : {"row", "latents", "minibatch"}
            A site that acts on h = x.theta alone, or on several such values, or a factor of
            several rows.

        Returns
        -------
        str or None
            What is wrong and what is allowed.
        """
        name = type(self).__name__
        if loss.latents != 1:
            return (
                f"scheme is {name}; allowed with {loss!r}, which has several latents per row: "
                "'exact'"
            )
        if "values" not in loss.gives:
            return (
                f"loss is a {type(loss).__name__}, whose moments are its own, and scheme is "
                f"{name}; allowed: scheme='exact' with scalar sites (batch_size=None)"
            )
        if "derivatives" in self.needs - loss.gives:
            return (
                f"scheme {name} needs the slope and curvature of the loss, and {loss!r} has none; "
                "allowed: quadrature or variational, or a CustomLoss with both"
            )
        if "continuous" in self.needs - loss.gives:
            return (
                f"scheme {name} expands the loss in a Taylor series, and {loss!r} has a jump; "
                "allowed: quadrature or variational"
            )
        return None

    def bound(self, loss: Loss, covariance: str, schedule: Schedule, n: int | None) -> Scheme:
        """The scheme for one fit: itself, or a copy of one that learns.

        Parameters
        ----------
        loss : Loss
        covariance : {"full", "factorized", "process"}
        schedule : Schedule
        n : int or None
            Number of sites. None for a stream.

        Raises
        ------
        ValueError
            If it cannot serve such a fit.
        """
        return self

    def polishing(self) -> AbstractContextManager[None]:
        """Where a scheme that learns asks for the truth alone."""
        return nullcontext()

    def questions(self) -> tuple[int, int] | None:
        """Questions to the oracle of a scheme that learns so far, and audits among them."""
        return None

    def warning(self) -> str:
        """What a fit by it warns of. Empty if nothing."""
        return ""

    @property
    def spares(self) -> bool:
        """Whether a fit leaves a weight alone that no row of the factor has."""
        return self.core_arguments(1)["scheme"] in SPARSE

    def core_arguments(self, d: int) -> CoreArguments:
        """Name and numbers of the scheme in the core, for factors in d dimensions."""
        raise NotImplementedError

    def tilted(self, loss: Loss, core: CoreLoss | None = None) -> TiltedMoments:
        """Tilted moments of a row, for the core: (y, m, v, power) to (lZ, dlZ, d2lZ)."""
        core = loss.shifted_core() if core is None else core
        return loss.tilted(core, FactorScheme(core, **self.core_arguments(1)))

    def relaxation(self, tilted: TiltedMoments) -> Relaxation | None:
        """The fit of sites beside relaxation factors, for the core; None: sites are plain."""
        return None

    def minibatch(
        self,
        loss: Loss,
        d: int,
        rows: int,
        *,
        sparse: bool = False,
        power: float = 1.0,
        damping: float = 1.0,
        site_rule: str = "nonnegative",
    ) -> MinibatchSweep:
        """Fits of factors with a diagonal cavity and at most ``rows`` rows, for the core.

        sparse: rows are CSR. Then a SparseSweep where the scheme leaves coordinates alone that no
        row has. power, damping, site_rule: of the sweeps.
        """
        numbers = self.core_arguments(d)
        kind = SparseSweep if sparse and numbers["scheme"] in SPARSE else MinibatchSweep
        return kind(
            loss.shifted_core(),
            d=d,
            max_rows=rows,
            power=power,
            damping=damping,
            site_rule=site_rule,
            **numbers,
        )


class RowScheme(Scheme):
    """Base of the schemes of scalar sites. One of your own overrides ``moments``."""

    #: the reason why it serves no minibatches
    one_dimension = "it finds moments over one dimension"
    spares = True

    def moments(
        self, loss: Loss, y: Array, mean: Array, variance: Array, power: Array
    ) -> tuple[Array, Array, Array]:
        """GPML's triple of t(h)^power at cavities N(mean, variance) of h.

        Parameters
        ----------
        loss : Loss
            Of the factors t.
        y : ndarray of shape (n,) or (n, response_width)
            Labels, for a loss of the margin. Else what ``loss.responses`` made of y.
        mean, variance, power : ndarray of shape (n,)

        Returns
        -------
        lZ, dlZ, d2lZ : ndarray of shape (n,)
            log of the integral, and its first two derivatives in ``mean``. A site where one is not
            finite is refused, and counted.
        """
        raise NotImplementedError

    def tilted(self, loss: Loss, core: CoreLoss | None = None) -> TiltedMoments:
        core = loss.shifted_core() if core is None else core
        return loss.tilted(core, PythonScheme(core, partial(self.moments, loss)))

    def refuses(self, loss: Loss, factor: str) -> str | None:
        if factor == "minibatch":
            return (
                f"scheme is {self!r}, which is for scalar sites: {self.one_dimension}; a minibatch "
                "factor allows: 'laplace', 'quick_laplace', 'quadrature', 'variational' "
                "(batch_size=None is for scalar sites)"
            )
        return super().refuses(loss, factor)

    def minibatch(
        self,
        loss: Loss,
        d: int,
        rows: int,
        *,
        sparse: bool = False,
        power: float = 1.0,
        damping: float = 1.0,
        site_rule: str = "nonnegative",
    ) -> MinibatchSweep:
        """Factors of one row: the moments of x.theta give those of each coordinate."""
        core = loss.shifted_core()
        return (SparseSweep if sparse else MinibatchSweep)(
            core,
            d=d,
            max_rows=1,
            scheme="scalar",
            moments=self.tilted(loss, core),
            power=power,
            damping=damping,
            site_rule=site_rule,
        )
