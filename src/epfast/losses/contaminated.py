"""A likelihood some of whose responses come from elsewhere: outliers, flips, clutter, zeros."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epfast import _checks
from epfast._arrays import Array, Given
from epfast._core.loss import CoreLoss
from epfast._core.tilted import SiteScheme, TiltedMoments
from epfast.losses import quantiles
from epfast.losses.base import Loss
from epfast.losses.classification import Probit

ZERO = "zero"


@dataclass(frozen=True)
class Contaminated(Loss):
    """A share of the responses does not come from the model: (1 - share) t(h) + share c(y).

    Flipped labels, with a base such as :class:`epfast.losses.Probit`. Outliers, with a base of real
    numbers and a broad density c (Minka 2001, the clutter problem, has a Gaussian base). Counts
    with more zeros than the base has. Not log-concave: sites may be negative, and EP may need
    damping or ``DoubleLoop``. Its tilted moments are closed where those of the base are. Powers
    other than 1 are integrated for labels, and refused for other responses.

    Parameters
    ----------
    base : Loss
        The likelihood of the responses that come from the model. beta = 1. What the evidence may
        choose of it, as the variance of a Gaussian, may be learnt beside the share.
    share : float, default=0.1
        Probability that a response does not, in [0, 1). At 0 the factor is its base.
    log_density : float, callable or "zero", optional
        log c(y): a number, as minus the log of the length of the range of y. A callable, y as it
        was given to (n,) numbers. "zero" is all mass at y = 0 (zero inflation). By default 1/2 for
        each label, where the base is a loss of labels.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> from epfast import losses
    >>> X = np.array([[1.0], [2.0], [3.0], [-1.0], [-2.0]])
    >>> y = np.array([1, 1, -1, -1, -1])  # the third label is wrong
    >>> loss = losses.Contaminated(losses.Probit(), 0.1)
    >>> post = epfast.fit_linear(X, y, loss=loss)
    >>> float(post.mean[0]) > float(epfast.fit_linear(X, y, loss="probit").mean[0])
    True
    """

    base: Loss = field(default_factory=Probit)
    share: float = 0.1
    log_density: float | str | Callable[[Given], ArrayLike] | None = None

    row = "contaminated"
    #: a mixture is not
    log_concave = False
    learnable = ("share",)
    ranges: ClassVar = {"share": (1e-6, 0.9)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.base, Loss) or isinstance(self.base, Contaminated):
            raise TypeError(
                f"base is {_checks.describe(self.base)}; allowed: a Loss, not a Contaminated one"
            )
        if self.base.beta != 1.0 or self.base.has_offset or self.base.latents != 1:
            raise ValueError(f"base is {self.base!r}; allowed: one latent, beta = 1, no offset")
        share = _checks.number("share", self.share, least=0.0)
        if not share < 1.0:
            raise ValueError(f"share is {share:g}; allowed: from 0, which is the base, to below 1")
        given, margin = self.log_density, self.base.by_margin
        if isinstance(given, str):
            _checks.choice("log_density", given, (ZERO,))
        elif given is None and not margin:
            raise ValueError(
                f"log_density is None, with the base {self.base!r}; allowed there: a number, a "
                'callable of y, or "zero"'
            )
        elif given is not None and not callable(given):
            given = _checks.number("log_density", given)
        if margin and given is not None:
            raise ValueError(
                f"log_density is {_checks.describe(given)}; allowed with labels: None, 1/2 for each"
            )
        has = self.base.gives if margin else self.base.gives - {"powers"}
        self._set(
            share=share,
            log_density=given,
            gives=frozenset(has),
            kinks=self.base.kinks,
            by_margin=margin,
            response_width=1 if margin else self.base.response_width + 1,
            is_likelihood=self.base.is_likelihood,
            is_working=self.base.is_working,
            in_units_of_y=self.base.in_units_of_y,
            discrete=self.base.discrete,
            learnable=(*(("share",) if share > 0.0 else ()), *self.base.learnable),
            rises=margin and self.base.rises,
            # neither part is ever above 1
            bounded=self.base.bounded
            and (margin or given == ZERO or (isinstance(given, float) and given <= 0.0)),
            **{name: getattr(self.base, name) for name in self.base.learnable},
        )
        self.check_power(self.beta, "beta")

    def numbers_of(self, responses: Array) -> NDArray[np.intp] | None:
        return self.base.numbers_of(responses)

    def has_curvature(self) -> bool:
        return self.base.has_curvature()

    def core(self) -> CoreLoss:
        lose = math.log(self.share) if self.share > 0.0 else -math.inf
        lose += math.log(0.5) if self.by_margin else 0.0
        return CoreLoss.contaminated(
            self.base.shifted_core(), math.log1p(-self.share), lose, self.beta
        )

    def tilted(
        self, core: CoreLoss | None = None, scheme: SiteScheme | None = None
    ) -> TiltedMoments:
        """Those of the base, mixed with the density; powers are integrated as the base's are."""
        core = self.shifted_core() if core is None else core
        if scheme is not None:
            return super().tilted(core, scheme)
        smooth = not self.base.kinks and {"derivatives", "continuous"} <= self.gives
        base = self.base.tilted(core.inner)
        return TiltedMoments(core, self.base.panel_ends(), smooth, base=base)

    def responses(self, name: str, y: Given, n: int) -> Array:
        """Those of the base, and log c(y), (n, response_width)."""
        rows = self.base.responses(name, y, n)
        if self.by_margin:
            return rows
        if self.log_density == ZERO:
            log_c = np.where(rows[:, 0] == 0.0, 0.0, -np.inf)
        elif callable(self.log_density):
            log_c = _checks.array("log_density(y)", self.log_density(y), shape=(n,), finite=False)
            if not (log_c < np.inf).all():
                raise ValueError("log_density(y) holds NaN or infinity; allowed: less than that")
        else:
            log_c = np.full(n, self.log_density)
        return np.column_stack([rows, log_c])

    def as_given(self, responses: Array) -> Array | None:
        if self.by_margin:
            return None
        rows = np.ascontiguousarray(responses[:, :-1])
        given = self.base.as_given(rows)
        return rows[:, 0] if given is None and self.base.response_width == 1 else given

    def outcomes(self, responses: Array) -> tuple[Array, Array | None]:
        return self.base.outcomes(np.ascontiguousarray(responses[:, : self.base.response_width]))

    def typical(self, responses: Array, weights: Array | None = None) -> tuple[float, float]:
        base, own = self._part_of_base(responses)
        return base.typical(own, weights)

    def range_of(self, name: str) -> tuple[float, float]:
        return self.ranges[name] if name in self.ranges else self.base.range_of(name)

    def limits(self, name: str) -> tuple[float, float]:
        return self.ranges[name] if name in self.ranges else self.base.limits(name)

    def with_parameters(self, **values: Any) -> Self:
        own = {name: value for name, value in values.items() if name not in self.base.learnable}
        of_base = {name: value for name, value in values.items() if name in self.base.learnable}
        base = own.pop("base", self.base)
        base = base.with_parameters(**of_base) if of_base else base
        return self._with_base(base, **own)

    def _with_base(self, base: Loss, **values: Any) -> Self:
        return replace(self, base=base, **values).with_offset(self.has_offset)

    def started(self, responses: Array, weights: Array | None = None) -> Self:
        base, own = self._part_of_base(responses)
        return self._with_base(base.started(own, weights).with_offset(False))

    def _part_of_base(self, responses: Array) -> tuple[Loss, Array]:
        """The base, and its part of the responses, with their offsets."""
        base, own = self.base, np.ascontiguousarray(responses[:, : self.base.response_width])
        if self.has_offset:
            return base.with_offset(), base.add_offset(own, np.asarray(self.offset_of(responses)))
        return base, own

    # ---- prediction ----

    def predict(self, mean: Array, variance: Array) -> Array:
        """Mean of y with "zero", else what the base predicts of a response of the model."""
        kept = 1.0 - self.share if self.log_density == ZERO else 1.0
        return kept * self.base.predict(mean, variance)

    def predict_variance(self, mean: Array, variance: Array) -> Array:
        """Variance of y with "zero" and of labels, else that of a response of the model."""
        if self.by_margin:
            return super().predict_variance(mean, variance)
        base_variance = self.base.predict_variance(mean, variance)
        if self.log_density != ZERO:
            return base_variance
        center = self.base.predict(mean, variance)
        return (1.0 - self.share) * (base_variance + self.share * center**2)

    def predict_tails(self, y: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Those of y with "zero", else those of a response of the model."""
        below, above = self.base.predict_tails(y, mean, variance)
        zero = self.share if self.log_density == ZERO else 0.0
        kept = 1.0 - zero
        return kept * below + zero * (y >= 0.0), kept * above + zero * (y < 0.0)

    def predict_quantile(self, level: float, mean: Array, variance: Array) -> Array:
        """Quantiles of y with "zero" and of labels, else those of a response of the model."""
        level = quantiles.level_of(level)
        if self.by_margin:
            return super().predict_quantile(level, mean, variance)
        if self.log_density != ZERO:
            return self.base.predict_quantile(level, mean, variance)
        # P(y <= x) is kept F(x) below 0, and more by the share from 0 on
        kept, nowhere = 1.0 - self.share, np.full(len(mean), np.inf)
        below, above = level / kept, (level - self.share) / kept
        low = self.base.predict_quantile(below, mean, variance) if below < 1.0 else nowhere
        high = self.base.predict_quantile(above, mean, variance) if above > 0.0 else -nowhere
        return np.where(low < 0.0, low, np.maximum(high, 0.0))

    def sample(self, latent: Array, rng: np.random.Generator) -> Array:
        """Draw labels, or responses with "zero". Else responses of the model."""
        drawn, elsewhere = self.base.sample(latent, rng), rng.random(latent.shape) < self.share
        if self.by_margin:
            return np.where(elsewhere, rng.choice([-1.0, 1.0], latent.shape), drawn)
        return np.where(elsewhere, 0.0, drawn) if self.log_density == ZERO else drawn
