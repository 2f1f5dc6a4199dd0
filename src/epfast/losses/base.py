"""What a loss is: values, responses, predictions."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from epfast import _checks
from epfast._arrays import AnyArray, Array, Given, to_float64
from epfast._core.loss import CoreLoss
from epfast._core.tilted import SiteScheme, TiltedMoments
from epfast.losses import prediction, quantiles

#: what a smooth loss gives: see :attr:`Loss.gives`
SMOOTH = frozenset({"values", "derivatives", "continuous", "powers"})

#: what JSON holds
Json = dict[str, "Json"] | list["Json"] | str | float | None

#: no ends of panels: where t changes depends on y
NOWHERE = np.empty(0)
#: distances at which panels of tilted moments end: whatever the width of a cavity, and wherever its
#: mean is, panels close in on the few units of h where t changes
SPREAD = 0.25 * 4.0 ** np.arange(26)


def closing_in(center: float, scale: float = 1.0) -> Array:
    """Ends of panels that close in on a margin from both sides, sorted.

    scale: the least length over which t changes there. 1, or less.
    """
    distances = SPREAD
    if scale < 1.0:
        finer = scale * SPREAD
        distances = np.concatenate([finer[finer < SPREAD[0]], SPREAD])
    return np.concatenate([center - distances[::-1], [center], center + distances])


#: ends of panels about margin 0
ABOUT_0 = closing_in(0.0)

#: margins, about the usual places of kinks, where a curvature is sought, and the least that is one
#: beside the largest slope
LOOKED_AT = np.unique(
    [k + sign * np.geomspace(1e-4, 50.0, 40) for k in (-1.0, 0.0, 1.0) for sign in (-1.0, 1.0)]
)
LEAST_CURVATURE = 1e-9

#: the largest offset, whose square is a double
MOST_OFFSET = 1e150
#: the largest inverse temperature
MOST_BETA = 1e100

#: Newton's steps to the peak of a likelihood, and the most of one in typical units of h: from the
#: mean of counts, exp(h) reaches any count above 0 in these
STEPS_TO_A_PEAK, MOST_OF_A_STEP = 100, 4.0


@dataclass(frozen=True)
class Loss:
    """A loss l(h; y) of a row: its factor is t(h) = exp(-beta l(h; y)), h = x.theta.

    A class says which row of the core's table it is, or overrides :meth:`core`, as one from outside
    does. Where y is more than a sign it has ``by_margin``, ``response_width``, :meth:`responses`
    and the predictions, too. Its fields are checked after this ``__post_init__`` has set name and
    beta. With an offset o the factor is t(h + o). Then the core reads one number more from each row
    of responses, see :meth:`add_offset`.

    Parameters
    ----------
    beta : float, default=1.0
        Inverse temperature of the factor, > 0.
    """

    #: the row of ``_core/losses.h``, and the numbers that it takes
    name: str = field(default="", init=False, repr=False)
    parameters: tuple[float, ...] = field(default=(), init=False, repr=False)
    beta: float = field(default=1.0, kw_only=True, repr=False)
    #: some of "values", "derivatives" (slope and curvature), "continuous" (without jumps), "powers"
    #: (any power of t) and "moments" (its own tilted moments)
    gives: frozenset[str] = field(default=SMOOTH, init=False, repr=False, compare=False)
    #: margins of kinks and jumps. Integration is piece by piece between them
    kinks: tuple[float, ...] = field(default=(), init=False, repr=False)
    #: whether responses carry an offset per row
    has_offset: bool = field(default=False, init=False, repr=False)

    #: the row of ``_core/losses.h`` of all losses of the class
    row: ClassVar[str] = ""
    #: number of latent values per row. 0: several, y says how many
    latents: ClassVar[int] = 1
    #: whether they have one Gaussian. Else it is a product over them. None: the fit says
    correlated = False
    #: True if l depends on the margin y h alone, y = -1 or +1
    by_margin: ClassVar[bool] = True
    #: True if l is a function of y - h, that of a margin whose row of responses is (-1, y)
    by_residual: ClassVar[bool] = False
    #: numbers per row in the result of :meth:`responses`
    response_width: ClassVar[int] = 1
    #: True if exp(-l) is normalised over y: then log evidences of such losses can be compared
    is_likelihood: ClassVar[bool] = False
    #: True if exp(-l) finds a number of y, as a quantile, and is no model of y: sds are not to be
    #: believed
    is_working: ClassVar[bool] = False
    #: True if h has the unit of y, so that both may be measured in another
    in_units_of_y: ClassVar[bool] = False
    #: True if y are whole numbers
    discrete: ClassVar[bool] = False
    #: whether t is log-concave in h, so that sites are never negative. None: not known
    log_concave: ClassVar[bool | None] = None
    #: whether t is known to rise with the margin: the label is the sign of the mean of h
    rises: ClassVar[bool] = False
    #: True if the loss is never negative, so that t <= 1 and no log evidence is above 0
    bounded: ClassVar[bool] = False
    #: parameters that the evidence may choose: positive numbers, or increasing ones. Those of a
    #: loss may depend on another that it has
    learnable: ClassVar[tuple[str, ...]] = ()
    #: least and most of some of them in a search
    ranges: ClassVar[dict[str, tuple[float, float]]] = {}

    @property
    def needs_variance(self) -> bool:
        """Whether :meth:`predict` depends on the variance of h."""
        return not (self.rises if self.by_margin else self.in_units_of_y)

    def __post_init__(self) -> None:
        self._set(beta=_checks.number("beta", self.beta, above=0.0, most=MOST_BETA), name=self.row)

    _set = _checks.freeze

    def tempered(self, beta: float | None) -> Self:
        """The loss of the factor t^beta. None: itself.

        Raises
        ------
        ValueError
            If the loss gives no powers of t.
        """
        if beta is None or _checks.number("beta", beta, above=0.0, most=MOST_BETA) == 1.0:
            return self
        self.check_power(beta, "beta")
        result = copy.copy(self)
        result._set(beta=self.beta * float(beta))
        return result

    def with_parameters(self, **values: Any) -> Self:
        """The loss with other values of some parameters, by name. y means the same to it."""
        return replace(self, **values).with_offset(self.has_offset)

    def typical(self, responses: Array, weights: Array | None = None) -> tuple[float, float]:
        """About where h is if all rows have the same, and the unit in which it changes.

        responses : ndarray of shape (n, width)
            Those of ``observed``.
        """
        return 0.0, 1.0

    def started(self, responses: Array, weights: Array | None = None) -> Self:
        """The loss with learnable parameters from which a search by the evidence may begin."""
        return self

    def started_beside(self, latent: Array, responses: Array, weights: Array | None = None) -> Self:
        """As :meth:`started`, from what latent values (n,) leave of responses."""
        if self.has_offset and not self.by_residual:
            latent = latent + self.offset_of(responses)
            responses = responses[:, :-1]
        known = self.with_offset()
        return known.started(known.add_offset(responses, latent), weights).with_offset(
            self.has_offset
        )

    def range_of(self, name: str) -> tuple[float, float]:
        """Least and most of a parameter for which all methods of the loss have a value."""
        return self.ranges.get(name, (0.0, math.inf))

    def limits(self, name: str) -> tuple[float, float]:
        """Least and most of a parameter, in a search that begins with those of this loss."""
        if name in self.ranges:
            return self.ranges[name]
        value = float(getattr(self, name))
        return 1e-4 * value, 1e4 * value

    def peaks(self, responses: Array) -> tuple[Array, Array, Array]:
        """Where each log-concave t(h) is largest, log t there, and minus its second derivative.

        Newton's steps find them, none longer than ``MOST_OF_A_STEP`` of the typical unit. (n,)
        each. The last is 0 where t has no peak that they reach, as that of a label.
        """
        h, unit = self.typical(responses)
        at = np.full(len(responses), h)
        most = MOST_OF_A_STEP * unit
        for _ in range(STEPS_TO_A_PEAK):
            value, slope, curvature = self._at(at, responses, True)
            with np.errstate(divide="ignore", invalid="ignore"):
                step = np.where(curvature > 0.0, -slope / curvature, 0.0)
            at += np.clip(step, -most, most)
        reached = (curvature > 0.0) & (np.abs(step) <= 1e-6 * np.maximum(unit, np.abs(at)))
        return at, -self.beta * value, np.where(reached, self.beta * curvature, 0.0)

    def exact_sites(self, responses: Array) -> tuple[Array, Array] | None:
        """Value and variance of rows all of which are Gaussian in h, (n,) each. None: not all."""
        return None

    def steps(self, name: str, share: float) -> Array:
        """Small changes of a learnable parameter, (k,), by which to take differences."""
        value = np.asarray(getattr(self, name), dtype=np.float64)
        if value.ndim == 0:
            return np.asarray(share * value[None])
        gaps = np.diff(value) if len(value) > 1 else np.ones(1)  # the noise of one cut has unit 1
        nearest = np.minimum(np.append(gaps, np.inf), np.insert(gaps, 0, np.inf))
        return np.asarray(share * nearest[: len(value)])

    def numbers_of(self, responses: Array) -> NDArray[np.intp] | None:
        """Which two numbers of a parameter that has several each row depends on, (n, 2).

        They are next to each other. -1, and as many as there are, stand for none. None: all.
        """
        return None

    def check_power(self, power: float, name: str = "power") -> None:
        """Raise if the loss does not give this power of t.

        Raises
        ------
        ValueError
            With the reason.
        """
        if power != 1.0 and "powers" not in self.gives:
            raise ValueError(
                f"{name} is {power:g}; allowed with {type(self).__name__}: 1, since its moments "
                "are those of t itself"
            )

    def has_curvature(self) -> bool:
        """Whether l bends up between kinks, if it bends up at all.

        Else it is linear or concave piece by piece, and no expansion of it has a precision. Losses
        of the margin are looked at. Others have one unless their class says that they have none.
        """
        if not self.by_margin:
            return True
        with np.errstate(all="ignore"):
            _, slope, curvature = self.evaluate(LOOKED_AT)
            least = LEAST_CURVATURE * np.abs(slope).max()
            return bool((curvature > least).any() or not (np.diff(slope) > least).any())

    # ---- for the core ----

    def core(self) -> CoreLoss:
        """The loss for the C core: a row of its table, or a callback."""
        if not self.name:
            self._has_no_values()
        return CoreLoss.table(self.name, self.parameters, self.beta)

    def _has_no_values(self, *given: Array) -> NoReturn:
        raise ValueError(
            f"loss is {self!r}, which has no values; allowed here: a loss with a formula"
        )

    def shifted_core(self) -> CoreLoss:
        """As :meth:`core`, with what responses add to h or to the margin."""
        core = self.core()
        return core.shift() if self.by_residual or self.has_offset else core

    def own_moments(self, core: CoreLoss) -> SiteScheme | None:
        """Own tilted moments, which replace integration in scheme "exact". None: none."""
        return None

    def tilted(
        self, core: CoreLoss | None = None, scheme: SiteScheme | None = None
    ) -> TiltedMoments:
        """Tilted moments for the core: exact ones, or those of a scheme."""
        core = self.shifted_core() if core is None else core
        smooth = {"derivatives", "continuous"} <= self.gives and not self.kinks
        scheme = self.own_moments(core) if scheme is None else scheme
        return TiltedMoments(core, self.panel_ends(), smooth, scheme)

    def panel_ends(self) -> Array:
        """Ends of the panels over which tilted moments are integrated, sorted."""
        if not self.by_margin:
            return NOWHERE
        return ABOUT_0 if self.beta <= 1.0 else closing_in(0.0, 1.0 / self.beta)

    def responses(self, name: str, y: Given, n: int) -> Array:
        """Check y, and make the numbers that the core reads.

        Parameters
        ----------
        name : str
            Of the argument, for errors.
        y : array_like
            As the user gave it.
        n : int
            Number of rows.

        Returns
        -------
        ndarray of shape (n, response_width)
            C-contiguous. Here labels -1 and +1.
        """
        return _checks.labels(name, y, n)[:, None]

    def as_given(self, responses: Array) -> Array | None:
        """y that :meth:`responses` makes these of. None: the first of their columns."""
        return responses[:, 1].copy() if self.by_residual else None

    def drawable(self, responses: Array) -> Array:
        """What :meth:`replicate` draws, as it was observed, (n,)."""
        given = self.as_given(np.ascontiguousarray(responses[:, : self.response_width]))
        y = responses if given is None else given
        return y if y.ndim == 1 else y[:, 0].copy()

    def outcomes(self, responses: Array) -> tuple[Array, Array | None]:
        """What :meth:`predict` predicts, as it was observed, and weights of rows, (n,) each.

        None: all have the same weight.
        """
        return self.drawable(responses), None

    def offset_of(self, responses: Array) -> Array | float:
        """The offsets of rows, but for those that are taken from y."""
        if not self.has_offset or self.by_residual:
            return 0.0
        return np.asarray(responses[:, -1] * (responses[:, 0] if self.by_margin else 1.0))

    def with_offset(self, given: bool = True) -> Self:
        """The loss of responses with an offset, or of those without."""
        if given == self.has_offset:
            return self
        result = copy.copy(self)
        result._set(has_offset=given)
        return result

    def add_offset(self, responses: Array, offset: Array) -> Array:
        """Responses for the core of :meth:`with_offset`, from those without and offsets (n,)."""
        sign = responses[:, 0] if self.by_margin or self.by_residual else 1.0
        if self.by_residual:
            return np.stack([responses[:, 0], responses[:, 1] + sign * offset], axis=1)
        return np.concatenate([responses, (sign * offset)[:, None]], axis=1)

    def observed(self, y: Given, n: int, offset: ArrayLike | None = None) -> Array:
        """What the core reads of n rows, from y and offset as the user gave them."""
        responses = self.responses("y", y, n)
        if offset is not None:
            shape = (n,) if self.latents == 1 else (n, self.latents)
            given = _checks.array("offset", offset, shape=shape)
            if np.abs(given).max(initial=0.0) > MOST_OFFSET:
                raise ValueError(
                    f"offset holds {given.flat[np.abs(given).argmax()]:g}; allowed: up to "
                    f"{MOST_OFFSET:g} in size"
                )
            return self.add_offset(responses, given)
        if self.has_offset:
            shown = "(n,)" if self.latents == 1 else f"(n, {self.latents})"
            raise ValueError(
                f"offset is None; allowed: that of each row, {shown}, as in the fit (for a "
                "posterior without its rows post.with_rows(X, y, offset=...))"
            )
        return responses

    def evaluate(
        self, margins: ArrayLike, y: Given = None, *, derivatives: bool = True
    ) -> tuple[Array, ...]:
        """Value, slope and curvature of l at beta = 1.

        Parameters
        ----------
        margins : array_like
            Margins y h, of any shape. Latent values h, (n,), if l is no function of the margin.
        y : array_like, optional
            The responses to these h, if l is no function of the margin.
        derivatives : bool, default=True
            Whether slope and curvature are wanted.

        Returns
        -------
        value, slope, curvature : ndarray
            Of the shape of ``margins``. Only ``(value,)`` without derivatives. At a kink or a jump
            value and slope are half sums of the one-sided limits (Roche 2016, section 3.2).
        """
        if "values" not in self.gives:
            self._has_no_values()
        if derivatives and "derivatives" not in self.gives:
            raise ValueError(
                f"the loss {self!r} has no slope and curvature; allowed: derivatives=False"
            )
        given = _checks.real_array("margins", margins)
        responses = None
        if not self.by_margin:
            given = _checks.array("margins", given, shape=(None,), finite=False)
            responses = self.responses("y", y, len(given))
        return self._at(given, responses, derivatives)

    def _at(self, given: AnyArray, responses: Array | None, derivatives: bool) -> tuple[Array, ...]:
        """As :meth:`evaluate`, with the result of :meth:`responses`."""
        outputs = np.empty((3 if derivatives else 1, given.size))
        value, slope, curvature = (*outputs, None, None)[:3]
        core = self.core() if responses is None else self.shifted_core()
        core.at(to_float64(given).ravel(), value, slope, curvature, responses)
        return tuple(output.reshape(given.shape) for output in outputs)

    def values(self, latent: Array, responses: Array) -> Array:
        """beta l(h; y) for latent values (n,) or (n, k) and responses (n, width)."""
        if self.by_margin:
            columns = responses[:, :, None] if latent.ndim == 2 else responses
            margins = latent * columns[:, 0]
            if self.has_offset:
                margins += columns[:, 1]
            return np.asarray(self.beta * self.evaluate(margins, derivatives=False)[0])
        columns = latent if latent.ndim == 2 else latent[:, None]
        by_column = [self._at(column, responses, False)[0] for column in columns.T]
        return np.asarray(self.beta * np.stack(by_column, axis=1).reshape(latent.shape))

    # ---- prediction, h ~ N(mean, variance) ----

    def predict_proba(self, mean: Array, variance: Array) -> Array:
        """Probability of the label +1, (n,): E[t(h)] / (E[t(h)] + E[t(-h)])."""
        if not self.by_margin:
            raise ValueError(
                f"loss is {self!r}, whose y are no labels; allowed for it: predict, log_predictive"
            )
        return special.expit(self.log_odds(mean, variance))  # type: ignore[no-any-return]

    def log_odds(self, mean: Array, variance: Array) -> Array:
        """Log of E[t(h)] / E[t(-h)], (n,)."""
        up = np.ones((len(mean), 1))
        terms = (prediction.log_integral(self, y, mean, variance) for y in (up, -up))
        return np.subtract(*terms)

    def predict(self, mean: Array, variance: Array) -> Array:
        """The most probable label, (n,)."""
        if self.rises:
            return np.where(mean >= 0.0, 1.0, -1.0)
        return np.where(self.predict_proba(mean, variance) >= 0.5, 1.0, -1.0)

    def predict_variance(self, mean: Array, variance: Array) -> Array:
        """Variance of the label, (n,)."""
        p = self.predict_proba(mean, variance)
        return 4.0 * p * (1.0 - p)

    def predict_tails(self, y: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
        """P(y' <= y) and P(y' > y), (n,) each, h ~ N(mean, variance).

        Parameters
        ----------
        y, mean, variance : ndarray of shape (n,)
        """
        raise self._has_no_tails()

    def _has_no_tails(self) -> ValueError:
        return ValueError(
            f"loss is {self!r}; allowed: a loss with a distribution function of its responses"
        )

    def predict_quantile(self, level: float, mean: Array, variance: Array) -> Array:
        """Quantiles of y, (n,): the least y with P(y' <= y) >= level.

        Parameters
        ----------
        level : float
            In (0, 1).
        mean, variance : ndarray of shape (n,)
            Of h.
        """
        level = quantiles.level_of(level)
        if not self.by_margin:
            raise self._has_no_tails()
        return np.where(self.predict_proba(-mean, variance) >= level, -1.0, 1.0)

    def log_predictive(self, responses: Array, mean: Array, variance: Array) -> Array:
        """Log probability of the responses, (n,). Accurate even if the probability underflows."""
        if self.has_offset and not self.by_residual:  # where it is in y
            own, mean = np.ascontiguousarray(responses[:, :-1]), mean + self.offset_of(responses)
            return self.with_offset(False).log_predictive(own, mean, variance)
        if not self.by_margin:
            return prediction.log_integral(self, responses, mean, variance)
        return special.log_expit(self.log_odds(responses[:, 0] * mean, variance))  # type: ignore[no-any-return]

    def sample(self, latent: Array, rng: np.random.Generator) -> Array:
        """Draw a response for each latent value, of the shape of ``latent``: here labels.

        The two labels have probabilities in the ratio t(h) : t(-h).
        """
        if not self.by_margin:
            raise ValueError(f"loss is {self!r}; allowed: a loss whose responses can be drawn")
        flat = latent.ravel()
        if "values" in self.gives:
            value = self.evaluate(np.stack([flat, -flat]), derivatives=False)[0]
            p = special.expit(self.beta * (value[1] - value[0]))
        else:  # moments of its own: those of a narrow Gaussian
            p = self.predict_proba(flat, 1e-12 * (1.0 + flat**2))
        return np.where(rng.random(latent.shape) < p.reshape(latent.shape), 1.0, -1.0)

    def replicate(self, latent: Array, responses: Array, rng: np.random.Generator) -> Array:
        """Draw new responses of observed rows, as :meth:`sample` does, at latent values (k, n).

        Offsets of the rows are added, but for those that are taken from y.
        """
        return self.sample(latent + self.offset_of(responses), rng)


class Likelihood(Loss):
    """A loss that is normalised over y, which is more than a label."""

    by_margin = False
    is_likelihood = True
    log_concave = True
    response_width = 2
    #: of y that is h and noise: mean and variance of the noise
    noise_mean: ClassVar[float] = 0.0
    noise_variance: ClassVar[float] = 0.0

    def predict(self, mean: Array, variance: Array) -> Array:
        """Mean of y. NaN where there is none."""
        return np.asarray(mean + self.noise_mean)

    def predict_variance(self, mean: Array, variance: Array) -> Array:
        """Variance of y: infinite or NaN where there is none."""
        return np.asarray(variance + self.noise_variance)
