"""Reports on posteriors: tables, notes, comparisons, and draws for ArviZ."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

from epfast import _checks
from epfast._arrays import Array
from epfast._core.vector import build_facts
from epfast.inference.certificates import VERDICTS
from epfast.inference.loop import Recorded
from epfast.inference.records import (
    ConvergenceWarning,
    DataWarning,
    Sites,
    SweepInfo,
    warn_user,
)
from epfast.losses import Loss

if TYPE_CHECKING:
    from pandas import DataFrame
    from xarray import Dataset, DataTree

#: a column of a table, and what is said beside one
Column = Array | NDArray[np.bool_] | Sequence[str] | Sequence[float]
Said = float | str | list[str]


class Summarised(Protocol):
    """What is read of a posterior for its summary."""

    @property
    def mean(self) -> Array: ...

    @property
    def variance(self) -> Array: ...

    @property
    def labels(self) -> tuple[str, ...]: ...

    @property
    def log_evidence(self) -> float: ...

    @property
    def evidence_bound(self) -> float: ...

    @property
    def converged(self) -> bool: ...

    @property
    def history(self) -> list[SweepInfo]: ...

    @property
    def n_sweeps(self) -> int: ...

    @property
    def loss(self) -> Loss | None: ...

    @property
    def sites(self) -> Sites | None: ...

    def credible_interval(self, level: float) -> Array: ...


class LeavesOneOut(Protocol):
    """What is read of a posterior to be compared with others."""

    @property
    def log_evidence(self) -> float: ...

    @property
    def converged(self) -> bool: ...

    @property
    def sites(self) -> Sites | None: ...

    def known_loss(self) -> Loss: ...

    def observed(self) -> Array | None: ...

    def loo_log_predictive(self) -> Array: ...


class TextTable:
    """A table of numbers with a name per row. What is returned where pandas is missing.

    Attributes
    ----------
    index : tuple of str
    columns : dict of str to ndarray
    attrs : dict
        What is said beside the table, as in a frame of pandas.
    """

    def __init__(
        self, index: Sequence[str], columns: Mapping[str, Column], attrs: Mapping[str, Said]
    ) -> None:
        self.index, self.columns, self.attrs = tuple(index), dict(columns), dict(attrs)

    def __getitem__(self, name: str) -> Column:
        """The column of that name."""
        return self.columns[name]

    def __str__(self) -> str:
        cells = [list(self.index), *([_text(v) for v in c] for c in self.columns.values())]
        heads = ["", *self.columns]
        widths = [max(map(len, [head, *column])) for head, column in zip(heads, cells, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(width) if k == 0 else cell.rjust(width)
                for k, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in [heads, *zip(*cells, strict=True)]
        ]
        notes = self.attrs.get("notes", [])
        return "\n".join([*lines, *(notes if isinstance(notes, list) else [])])

    __repr__ = __str__


def _text(value: float | str | np.bool_) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float, np.number)) else str(value)


def table(
    index: Sequence[str], columns: Mapping[str, Column], attrs: Mapping[str, Said]
) -> DataFrame:
    """A frame of pandas where pandas is there, with ``attrs``. Else a :class:`TextTable`."""
    if not _checks.installed("pandas"):
        return TextTable(index, columns, attrs)
    from pandas import DataFrame

    frame = DataFrame(dict(columns), index=list(index))
    frame.attrs.update(attrs)
    return frame


def checked_level(level: float, name: str = "level") -> float:
    """A probability strictly between 0 and 1."""
    level = _checks.number(name, level, above=0.0)
    if level >= 1.0:
        raise ValueError(f"{name} is {level:g}; allowed: a number > 0 and < 1")
    return float(level)


def interval(mean: Array, variance: Array, level: float) -> Array:
    """Central intervals of normal distributions, (..., 2)."""
    reach = special.ndtri(0.5 * (1.0 + level)) * np.sqrt(variance)
    return np.stack([mean - reach, mean + reach], axis=-1)


def positive(mean: Array, variance: Array) -> Array:
    """Probability of normal variables to be positive."""
    sd = np.sqrt(variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(sd > 0.0, mean / sd, np.inf * np.sign(mean))
    return np.asarray(special.ndtr(ratio))


def ends_of(level: float) -> tuple[float, float]:
    """Levels of the ends of a central interval."""
    return 0.5 * (1.0 - level), 0.5 * (1.0 + level)


def summary(
    post: Summarised,
    level: float,
    above: Array,
    names: Sequence[str] = (),
    more: Array | None = None,
) -> DataFrame:
    """See :meth:`epfast.FullPosterior.summary`; above: probabilities to be positive.

    names, more: rows below the others, and their columns, (k, 5).
    """
    low, high = post.credible_interval(level).reshape(-1, 2).T
    percent = [f"{100 * share:g}%" for share in ends_of(level)]
    parts = [post.mean.ravel(), np.sqrt(post.variance).ravel(), low, high, above.ravel()]
    rows = np.concatenate(
        [np.stack(parts, axis=1), np.reshape([] if more is None else more, (-1, 5))]
    )
    columns = dict(zip(["mean", "sd", *percent, "P(>0)"], rows.T, strict=True))
    attrs: dict[str, Said] = {
        "log_evidence": post.log_evidence,
        "converged": post.converged,
        "is_likelihood": bool(post.loss is not None and post.loss.is_likelihood),
        "notes": notes(post),
    }
    return table([*post.labels, *names], columns, attrs)


#: the effect of weights that are no counts, such as all weights of classes
WEIGHTS = (
    "a row of weight w counts as w rows, so that weights which are no counts change how sure the "
    "fit is: its intervals and probabilities are not those of the data"
)


def fraction(weights: Array) -> float:
    """The first weight that is no whole number, or 0."""
    parts = weights % 1.0
    return float(weights[np.argmax(parts > 0.0)]) if parts.any() else 0.0


def not_counts(weights: Array | None) -> str | None:
    """The note on weights that are not whole numbers. None for others."""
    broken = 0.0 if weights is None else fraction(weights)
    return f"weights that are no counts, as {broken:.3g}: {WEIGHTS}" if broken else None


def note_weights(weights: Array | None) -> None:
    """Warn the caller of a fit of weights that are no counts."""
    note = not_counts(weights)
    if note is not None:
        warn_user(f"{note}; give counts, or none", DataWarning)


def of_working(loss: Loss | None) -> str | None:
    """The note on a loss whose density is no model of y. None for others."""
    if not getattr(loss, "is_working", False):
        return None
    return (
        f"{loss!r} is a working likelihood, no model of y: the mean of the latent value is the "
        "quantile, but sds, intervals, log evidence and densities are those of asymmetric Laplace "
        "noise, and 95 % intervals may contain the truth 60 times in 100"
    )


def note_working(loss: Loss | None) -> None:
    """Warn the caller of a fit by a loss whose density is no model of y."""
    note = of_working(loss)
    if note is not None:
        warn_user(
            f"{note}; for intervals fit rows that are drawn with replacement (the bootstrap), or "
            "take predict_quantile of a loss that models y, as 'student_t'",
            DataWarning,
        )


def weights_of(post: Summarised | Recorded) -> Array | None:
    """Weights of the rows of a fit, where these are known. None: all 1."""
    problem = attrgetter("problem")(post)
    data = getattr(problem, "data", None)
    weights: Array | None = getattr(problem if data is None else data, "weights", None)
    return weights if isinstance(weights, np.ndarray) else None


def notes(post: Summarised) -> list[str]:
    """Lines below a summary: log evidence, convergence, what not to trust."""
    log_evidence = f"log evidence: {post.log_evidence:.4f}"
    approximation: str | None = getattr(post, "approximation", None)
    if approximation is not None:  # which has no log evidence
        log_evidence = approximation
    elif post.loss is not None and not post.loss.is_likelihood:
        log_evidence += ", which is not a log probability: the loss is no likelihood"
    lines = [log_evidence]
    if post.log_evidence > post.evidence_bound:
        lines.append(
            "the log evidence is above 0, and no factor is above 1: the fit failed, do not use it"
        )
    count = f"{post.n_sweeps} sweep{'s' if post.n_sweeps != 1 else ''}"
    last = f", last change {post.history[-1].change:.2g}" if post.history else ""
    if post.sites is None:
        lines.append(f"one pass without stored sites ({count}): no fixed point to converge to")
    else:
        lines.append(f"{'converged' if post.converged else 'not converged'}: {count}{last}")
    if post.history and post.history[-1].n_refused:
        lines.append(f"{post.history[-1].n_refused} sites were refused in the last sweep")
    if getattr(post, "kind", "") == "factorized":
        lines.append("factorised: standard deviations are too small where columns are correlated")
    low_rank = attrgetter("truncation_error", "rank", "y")
    error, rank, y = low_rank(post) if hasattr(post, "truncation_error") else (None, 0, ())
    if error is not None:
        lines.append(
            f"rank {rank} of {len(y)}: by an estimate within {error:.2g} nats of the log "
            "evidence of the whole kernel"
        )
    found = of_working(post.loss), not_counts(weights_of(post))
    return [*lines, *(note for note in found if note is not None)]


# ---- ArviZ ----


@dataclass
class Drawn:
    """Draws for ArviZ: arrays (size, ...) of each group, by the names of their variables."""

    posterior: dict[str, Array]
    posterior_predictive: dict[str, Array] = field(default_factory=dict)
    prior_predictive: dict[str, Array] = field(default_factory=dict)
    log_likelihood: dict[str, Array] = field(default_factory=dict)
    #: what was observed: arrays without draws
    observed_data: dict[str, Array] = field(default_factory=dict)
    #: names of the axes of variables, behind that of the draws
    dims: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: labels along such axes
    coords: dict[str, Sequence[str]] = field(default_factory=dict)


GROUPS = tuple(one.name for one in fields(Drawn) if one.name not in ("dims", "coords"))


def to_arviz(
    post: Recorded,
    drawn: Callable[[int, np.random.Generator], Drawn],
    draws: int,
    rng: np.random.Generator | int | None,
) -> DataTree:
    """See :meth:`epfast.FullPosterior.to_arviz`.

    drawn: of a number of draws and a generator. Draws are independent and one chain, of which
    ArviZ computes no r_hat.
    """
    Dataset, _ = _xarray()
    size = _checks.integer("draws", draws, least=1)
    sample, attrs = drawn(size, _checks.generator("rng", rng)), _said_of(post)
    groups = {}
    for group in GROUPS:
        variables = {}
        for name, values in getattr(sample, group).items():
            whole = values if group == "observed_data" else values[None]
            lead = () if group == "observed_data" else ("chain", "draw")
            rest = range(whole.ndim - len(lead))
            dims = sample.dims.get(name, tuple(f"{name}_dim_{k}" for k in rest))
            variables[name] = (*lead, *dims), whole
        if variables:
            used = {axis for axes, _ in variables.values() for axis in axes}
            coords = {axis: list(names) for axis, names in sample.coords.items() if axis in used}
            groups[group] = Dataset(variables, coords, attrs)
    loo = leave_one_out(post)
    if loo is not None:
        total = {"elpd_loo": loo.sum(), "se": np.sqrt(len(loo) * loo.var())}
        groups["loo"] = Dataset({"log_predictive": (("row",), loo)}, None, {**attrs, **total})
    return _contained(groups)


def _said_of(post: Recorded) -> dict[str, Said]:
    """Attributes of all groups. Warns of a failed fit, which draws do not show."""
    check, loss = post.last_check, getattr(post, "loss", None)
    verdict = "not checked" if check is None else check.verdict
    converges = post.schedule.stores != "none"
    bad = ["its fit has not converged"] if converges and not post.converged else []
    bad += [f"its check says {verdict!r}"] if verdict in VERDICTS[2:] else []
    if bad:
        warn_user(
            f"these draws are of a posterior that is not to be trusted: {' and '.join(bad)}. "
            "Diagnostics of ArviZ do not see it; post.summary() and post.check() do",
            ConvergenceWarning,
        )
    attrs: dict[str, Said] = {
        "inference_library": "epfast",
        "inference_library_version": build_facts()["version"],
        "method": f"expectation propagation by {type(post.schedule).__name__}",
        "converged": int(post.converged),
        "n_sweeps": post.n_sweeps,
        "verdict": verdict,
    }
    if hasattr(post, "log_evidence"):
        attrs["log_evidence"] = float(post.log_evidence)
    if loss is not None:
        attrs["is_likelihood"] = int(loss.is_likelihood)
    return attrs


def _xarray() -> tuple[type[Dataset], type[DataTree]]:
    needed = "to_arviz needs xarray and ArviZ: pip install 'epfast[arviz]'"
    with _checks.needs(needed, "xarray"):
        from xarray import Dataset, DataTree
    return Dataset, DataTree


def _contained(groups: dict[str, Dataset]) -> DataTree:
    """ArviZ's InferenceData. A DataTree without ArviZ, or from ArviZ 1.0 on."""
    _, tree = _xarray()
    with warnings.catch_warnings():
        # about the next version of arviz, or the last; "loo" is a group of our own
        warnings.simplefilter("ignore")
        if _checks.installed("arviz"):
            import arviz

            container = getattr(arviz, "InferenceData", None)
            if container is not None and container is not tree:
                data: DataTree = container(**groups)
                return data
        return tree.from_dict(groups)


def leave_one_out(post: Recorded) -> Array | None:
    """Leave-one-out log probabilities by the cavities. None where the sites do not give them."""
    if not hasattr(post, "loo_log_predictive") or attrgetter("sites")(post) is None:
        return None
    try:
        loo: Array = post.loo_log_predictive()
    except (FloatingPointError, ValueError):
        return None
    return loo


# ---- compare: fits of the same responses side by side, by leave-one-out ----


def compare(
    posteriors: Mapping[str, LeavesOneOut] | Sequence[LeavesOneOut],
) -> DataFrame:
    """Compare fits by their exact leave-one-out log probabilities.

    Each row's response is predicted from all the others, with the cavities of EP: no refitting, no
    draws. Sums over the rows are compared. The standard error of a difference is that of a sum of
    paired differences (Vehtari, Gelman & Gabry 2017).

    Parameters
    ----------
    posteriors : dict of str to posterior, or sequence of posteriors
        At least one, of models of the same responses, with stored sites and their rows: linear ones
        with full covariance, and processes.

    Returns
    -------
    pandas.DataFrame, or a table that prints aligned where pandas is missing
        A row per fit, the best first: ``loo`` (the sum, higher is better), ``se``, ``difference``
        from the best, ``se_difference``, ``log_evidence`` (NaN for losses that are no likelihoods),
        ``converged``.

    Raises
    ------
    ValueError, TypeError
        If the responses differ, if some losses are likelihoods and some are none, or if a fit
        gives no leave-one-out.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 2))
    >>> y = np.where(X[:, 0] + 0.5 * rng.normal(size=100) > 0, 1, -1)
    >>> fits = {"both": epfast.fit_linear(X, y), "second": epfast.fit_linear(X[:, 1:], y)}
    >>> list(epfast.compare(fits).index)
    ['both', 'second']
    """
    named = _named(posteriors)
    first_name, first = next(iter(named.items()))
    values = {}
    for name, post in named.items():
        loss, y = post.known_loss(), post.observed()
        if y is None:
            raise ValueError(f"{name} does not know its rows; allowed: post.with_rows(X, y)")
        if loss.is_likelihood != first.known_loss().is_likelihood:
            raise ValueError(
                f"{name} has the loss {loss!r} and {first_name} {first.known_loss()!r}, of which "
                "one is a likelihood and one is none; allowed: either kind alone"
            )
        base = first.observed()
        assert base is not None  # of the first that was looked at
        if len(y) != len(base) or not np.array_equal(y[:, 0], base[:, 0]):
            raise ValueError(
                f"{name} was fitted to other responses than {first_name}; allowed: the same "
                "responses in the same order"
            )
        if post.sites is None or not hasattr(post, "loo_log_predictive"):
            raise ValueError(
                f"{name} has no sites that give leave-one-out; allowed: a fit by EP, "
                "which stores a site per row"
            )
        values[name] = post.loo_log_predictive()
    order = sorted(values, key=lambda name: -values[name].sum())
    best = values[order[0]]
    less = {name: values[name] - best for name in order}
    columns = {
        "loo": np.array([values[name].sum() for name in order]),
        "se": np.array([_error(values[name]) for name in order]),
        "difference": np.array([less[name].sum() for name in order]),
        "se_difference": np.array([_error(less[name]) for name in order]),
        "log_evidence": np.array([_evidence(named[name]) for name in order]),
        "converged": np.array([named[name].converged for name in order]),
    }
    return table(order, columns, {"rows": len(best)})


def _named(
    posteriors: Mapping[str, LeavesOneOut] | Sequence[LeavesOneOut],
) -> dict[str, LeavesOneOut]:
    if isinstance(posteriors, Mapping):
        named = {str(name): post for name, post in posteriors.items()}
    elif isinstance(posteriors, Sequence) and not isinstance(posteriors, str):
        named = {f"posteriors[{i}]": post for i, post in enumerate(posteriors)}
    else:
        raise TypeError(
            f"posteriors is a {type(posteriors).__name__}; allowed: a list or a dict of posteriors"
        )
    if not named:
        raise ValueError("posteriors is empty; allowed: one posterior at least")
    for name, post in named.items():
        if not (isinstance(post, Recorded) and hasattr(post, "loo_log_predictive")):
            raise TypeError(f"{name} is a {type(post).__name__}; allowed: a posterior")
    return named


def _error(values: Array) -> float:
    return float(np.sqrt(len(values) * values.var()))


def _evidence(post: LeavesOneOut) -> float:
    return float(post.log_evidence) if post.known_loss().is_likelihood else float("nan")
