"""Parameters of a likelihood that the evidence sets, as free numbers for an optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast import _checks, priors
from epfast._arrays import Array
from epfast.estimators.base import EvidenceWarning
from epfast.inference.learning import STEP, Chart
from epfast.inference.records import warn_user
from epfast.losses import Loss

#: numbers whose second derivatives are taken pair by pair: searches of 29, 99 and 299 cuts of 1,500
#: rows take 2, 24 and 230 s so, and .3, .4 and .9 s by :meth:`LossParameters.chart`
FEW = 12
#: added to the logs of scales of noise, where searches begin
SHIFTS = (0.0, -3.0)
#: reach of the free numbers of increasing parameters: their middle, logs of their gaps
CUTS, GAPS = 50.0, 10.0
#: log of how much wider than at the start a gap is that ends at a class without rows, below or
#: above all others: the evidence rises with it for ever, by less than 1e-3 beyond 8 sd of the noise
EMPTY = 3.0
#: distance of a free number from an end that counts as none: 128 classifiers and regressors are the
#: same with 1e-9 and .001
NEAR = 1e-6
#: a parameter is flat where the log evidence falls by less over this change of its log: its
#: uncertainty is a factor of 500 and more. With 4 for the first or .01 for the second one warning
#: of 128 classifiers and regressors goes, and with 1 or .25 none
AWAY, FLAT = 2.0, 0.05
#: what it means that a parameter ends low (False) or high
ENDS = {
    ("variance", False): "the model fits y without noise",
    ("scale", False): "the model fits y without noise",
    ("variance", True): "the noise is far larger than y",
    ("scale", True): "the noise is far larger than y",
    ("df", False): "the tails are as heavy as the search goes, where y still has a mean",
    ("df", True): "the noise is Gaussian",
    ("size", False): "nearly all counts are 0, and others large",
    ("size", True): "the counts are Poisson's",
    ("shape", False): "y ranges over too many orders of magnitude",
    ("shape", True): "the model fits y without noise",
    ("share", False): "no row is an outlier",
    ("share", True): "nearly all rows are outliers",
    ("cuts", False): "a class is hardly there",
    ("cuts", True): "nearly no row has an outer class",
    ("epsilon", False): "no label is flipped",
    ("epsilon", True): "the labels are drawn at random",
}


class LossParameters(NamedTuple):
    """Learnable parameters of a loss: logs of positive numbers. Of cuts the middle, logs of gaps.

    The middle is the mean of the cuts between classes that have rows, so that classes in the
    reverse order have the reverse cuts. A cut beyond them is held far away, and moves no other.
    """

    #: with the parameters that a search begins with
    loss: Loss
    names: tuple[str, ...]
    #: (k, 2), bounds of the free numbers
    bounds: Array
    #: classes between cuts that no row has
    unseen: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, loss: Loss, learn: Any, responses: Array, weights: Array | None, shifts: bool
    ) -> LossParameters:
        """Those that ``learn`` names. None: the first of the loss, where it has some.

        shifts: whether something else in the model shifts all cuts, so that their middle is held.

        Raises
        ------
        ValueError, TypeError
            If a name is none of ``loss.learnable``.
        """
        names = _names(loss, learn)
        count = len(responses) if weights is None else np.count_nonzero(weights)
        if names and count == 1:
            warn_user(
                f"one row tells nothing of {', '.join(names)}, which is as large as y",
                EvidenceWarning,
            )
            return cls(loss.started(responses, weights), (), np.empty((0, 2)))
        begun = loss.started(responses, weights)
        begun = loss.with_parameters(**{name: getattr(begun, name) for name in names})
        unseen = _unseen(begun, responses, weights) if "cuts" in names else ()
        new = cls(begun, names, np.empty((0, 2)), unseen)
        bounds = [new._range(name, shifts) for name in names]
        if not bounds:
            return new
        new = new._replace(bounds=np.concatenate(bounds))
        return new._replace(loss=new.at(np.clip(new.start, *new.bounds.T)))

    @property
    def size(self) -> int:
        return len(self.bounds)

    @property
    def places(self) -> Iterator[tuple[str, slice]]:
        """The names, and where the free numbers of each are."""
        first = 0
        for name in self.names:
            last = first + np.size(getattr(self.loss, name))
            yield name, slice(first, last)
            first = last

    @property
    def start(self) -> Array:
        """(k,), the free numbers of the loss that a search begins with."""
        parts = [self._free(getattr(self.loss, name)) for name in self.names]
        return np.concatenate(parts) if parts else np.empty(0)

    def starts(self) -> list[Array]:
        """Where searches begin: as y spreads, and with less noise. Without names one empty one."""
        starts = [self.shifted(shift) for shift in SHIFTS]
        return starts if (starts[0] != starts[1]).any() else starts[:1]

    def shifted(self, shift: float) -> Array:
        """The start, with so much added to the logs of scales of noise.

        Nothing where t is not log-concave: outliers of a wrong mean make improper cavities.
        """
        scales = np.zeros(self.size)
        for name, part in self.places:
            scales[part] = name in ("scale", "variance") and self.loss.log_concave is not False
        return self.start + shift * scales

    def only(self, names: tuple[str, ...], loss: Loss) -> LossParameters:
        """Some of them, all of which are numbers. The others are as the loss has them."""
        bounds = [self.bounds[part] for name, part in self.places if name in names]
        none = np.empty((0, 2))
        return self._replace(loss=loss, names=names, bounds=np.concatenate([none, *bounds]))

    def at(self, free: Array) -> Loss:
        """The loss with these free numbers."""
        values: dict[str, Any] = {}
        for name, part in self.places:
            single = np.ndim(getattr(self.loss, name)) == 0
            values[name] = float(np.exp(free[part][0])) if single else self._cuts(free[part])
        return self.loss.with_parameters(**values) if values else self.loss

    def chart(self, free: Array) -> Chart | None:
        """Of cuts that are not few, themselves: a row depends on those on both sides of its class.

        Those around classes without rows are moved together, as they may be very close. None: of
        anything else.
        """
        if len(free) <= FEW or self.names != ("cuts",):
            return None
        cuts: Array = np.asarray(self._cuts(free))
        count, classes = len(cuts), np.arange(len(cuts) + 1)
        # a gap moves the cuts after it, and all of them by what their middle moves
        after = np.tri(count) - self._middle(count) @ np.tri(count)
        by_gap = after * np.append(0.0, np.diff(cuts))
        is_seen = ~np.isin(classes, self.unseen)
        blocks = np.cumsum(is_seen)[:-1]
        widths = np.append(np.insert(np.diff(cuts), 0, 1.0), 1.0)  # noise of one cut has unit 1
        nearest = np.full(blocks[-1] + 2, np.inf)
        for width, block in zip(widths[is_seen], np.cumsum(is_seen)[is_seen], strict=True):
            nearest[block - 1 : block + 1] = np.minimum(nearest[block - 1 : block + 1], width)

        def of_rows(responses: Array) -> NDArray[np.intp]:
            result = np.full((len(responses), 2), count)
            ends: Any = self.loss.numbers_of(responses)
            for at in ends.T:
                rows = np.flatnonzero((at >= 0) & (at < count))
                result[rows, blocks[at[rows]] % 2] = at[rows]
            return result

        return Chart(
            lambda values: self.loss.with_parameters(cuts=tuple(values.tolist())),
            cuts,
            STEP * nearest[blocks],
            blocks % 2,
            of_rows,
            np.append(1.0, np.zeros(count - 1)) + by_gap,
            by_gap,
        )

    def slopes(self, loss: Loss, gradient: dict[str, Any]) -> Array:
        """By the free numbers, (k,), from the gradient by the parameters of the loss."""
        parts = []
        for name in self.names:
            value, slope = getattr(loss, name), np.atleast_1d(gradient[name])
            if np.ndim(value) == 0:
                parts.append(slope * value)
            else:  # a gap moves the cuts after it, and all of them by what their middle moves
                after = np.cumsum(slope[::-1])[::-1]
                middle = self._middle(len(value))
                above = np.cumsum(middle[::-1])[::-1]
                by_gap = (after - above * after[0])[1:] * np.diff(value)
                parts.append(np.append(after[0], by_gap))
        free = np.concatenate(parts) if parts else np.empty(0)
        return np.where(self.bounds[:, 0] < self.bounds[:, 1], free, 0.0)

    def at_ends(self, loss: Loss) -> list[str]:
        """What is at an end of its range, in words."""
        free, ends = self._replace(loss=loss).start, []
        for name, part in self.places:
            value = getattr(loss, name)
            low, high = self.bounds[part].T
            below, above = free[part] <= low + NEAR, free[part] >= high - NEAR
            if np.ndim(value) == 0:
                if below[0] or above[0]:
                    ends.append(f"{_written(name, value)} ({_why(name, bool(above[0]))})")
            elif self.unseen or ((below | above) & (low < high)).any():
                none = f": no row has class {', '.join(map(str, self.unseen[:9]))}"
                none = none if self.unseen else ""
                ends.append(f"{_written(name, value)} ({_why(name, False)}{none})")
        return ends

    def flat(self, post: Any) -> list[str]:
        """What the evidence hardly tells from numbers nearer to an end of the range, in words."""
        free, flat = self._replace(loss=post.loss).start, []
        for name, part in self.places:
            value = getattr(post.loss, name)
            sides: list[tuple[int, float, float]] = []
            unseen = np.ndim(value) > 0 and self.unseen  # by at_ends
            for k in () if unseen else range(part.start, part.stop):
                low, high = self.bounds[k]
                if min(free[k] - low, high - free[k]) > NEAR:  # else at_ends names it
                    sides += [(k, low, -AWAY), (k, high, AWAY)]
            moved = [free + step * (np.arange(len(free)) == k) for k, _, step in sides]
            try:
                gains = post.loss_gain(*(self.at(np.clip(u, *self.bounds.T)) for u in moved))
            except FloatingPointError:  # no cavity, no gain
                continue
            # near an end there is less of the way, and of the fall
            room = [min(1.0, abs(end - free[k]) / AWAY) for k, end, _ in sides]
            rise = [gain / share**2 for gain, share in zip(gains, room, strict=True)]
            if rise and max(rise) > -FLAT:
                above = sides[int(np.argmax(rise))][2] > 0.0
                flat.append(
                    f"{_written(name, value)} from {'larger' if above else 'smaller'} ones "
                    f"({_why(name, above)})"
                )
        return flat

    def _middle(self, count: int) -> Array:
        """Weights of so many cuts in their middle, (count,)."""
        seen = np.delete(np.arange(count + 1), self.unseen)
        inner = (np.arange(count) >= seen[0]) & (np.arange(count) < seen[-1])
        inner = inner if inner.any() else np.ones(count, dtype=bool)
        return np.asarray(inner / inner.sum())

    def _free(self, value: Any) -> Array:
        if np.ndim(value) == 0:
            return np.array([np.log(value)])
        return np.append(self._middle(len(value)) @ np.asarray(value), np.log(np.diff(value)))

    def _cuts(self, free: Array) -> tuple[float, ...]:
        cuts = np.cumsum(np.append(0.0, np.exp(free[1:])))
        return tuple((cuts + free[0] - self._middle(len(cuts)) @ cuts).tolist())

    def _range(self, name: str, shifts: bool) -> Array:
        """Bounds of the free numbers of a parameter, (k, 2)."""
        value = getattr(self.loss, name)
        if np.ndim(value) == 0:
            return np.log([self.loss.limits(name)])
        free = self._free(value)
        reach = np.full(len(free), GAPS)
        reach[0] = 0.0 if shifts else CUTS
        inner, outer = self._middle(len(free)) > 0.0, np.zeros(len(free), dtype=bool)
        outer[1:] = ~(inner[1:] & inner[:-1])
        reach[outer], free[outer] = 0.0, free[outer] + EMPTY
        return np.stack([free - reach, free + reach], axis=1)


@dataclass(frozen=True)
class OfPower(priors.Scale):
    """A prior of a power of a number, as one of the number."""

    prior: priors.Scale
    power: float

    def __post_init__(self) -> None:
        """Both are known."""

    def over_log(self, u: float, power: float = 1.0) -> tuple[float, float]:
        """As :meth:`epfast.priors.Scale.over_log`."""
        return self.prior.over_log(u, self.power * power)


def weak_prior(name: str, scale: float) -> OfPower | None:
    """A weak prior of a parameter. None: there is none.

    That of scales is half-Cauchy with this median. 1 / size and 1 / shape are the squares of a sd
    of log y, or of the log of its mean. The gamma of df is that of Juarez & Steel (2010).
    """
    known: dict[str, tuple[priors.Scale, float]] = {
        "variance": (priors.HalfCauchy(scale), 0.5),
        "scale": (priors.HalfCauchy(scale), 1.0),
        "size": (priors.HalfCauchy(scale), -0.5),
        "shape": (priors.HalfCauchy(scale), -0.5),
        "df": (priors.Gamma(2.0, 0.1), 1.0),
        "share": (priors.Flat(), 1.0),
        "epsilon": (priors.Flat(), 1.0),
    }
    return OfPower(*known[name]) if name in known else None


def _written(name: str, value: Any) -> str:
    if np.ndim(value) == 0:
        return f"{name}={value:.3g}"
    return f"{name}=({', '.join(f'{part:.3g}' for part in value)})"


def _why(name: str, above: bool) -> str:
    return ENDS.get((name, above), "y says nothing of it")


def _names(loss: Loss, learn: Any) -> tuple[str, ...]:
    if learn is None:
        return loss.learnable[:1]
    if isinstance(learn, str) or not isinstance(learn, Iterable):
        raise TypeError(
            f"learn is {_checks.describe(learn)}; allowed: a tuple of names, as ('scale',)"
        )
    names = tuple(learn)
    for name in names:
        if not isinstance(name, str) or name not in loss.learnable:
            known = ", ".join(map(repr, loss.learnable)) or "(), it has no parameters"
            given = _checks.describe(name)
            raise ValueError(f"learn holds {given}; allowed with {loss!r}: {known}")
    return tuple(dict.fromkeys(names))


def _unseen(loss: Loss, responses: Array, weights: Array | None) -> tuple[int, ...]:
    """The classes between the cuts that no row has."""
    count = len(getattr(loss, "cuts", ())) + 1
    mass = np.bincount(responses[:, 0].astype(np.intp), weights, count)
    return tuple(np.flatnonzero(mass == 0.0).tolist())


def warn_ends(parameters: LossParameters, loss: Loss, post: Any) -> None:
    """Warn of parameters at an end of their range, or that y does not tell from one.

    post: the posterior with these parameters. None: there is none.
    """
    ends = parameters.at_ends(loss)
    parts = []
    if ends:
        parts.append(f"the log evidence rises up to {', '.join(ends)}, the end of the search")
    flat = [] if post is None else parameters.flat(post)
    if flat:
        parts.append(f"the log evidence hardly tells {', '.join(flat)}")
    if parts:
        warn_user(
            f"{'; '.join(parts)}; a number, and learn=(), settles it",
            EvidenceWarning,
        )
