"""What posteriors say of themselves: tables, notes, and draws for ArviZ."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from scipy import special

from epfast import _checks
from epfast._arrays import Array
from epfast._core.vector import build_facts
from epfast.inference.certificates import VERDICTS
from epfast.inference.records import ConvergenceWarning, DataWarning, warn_user


class Table:
    """A table of numbers with a name per row. What is returned where pandas is missing.

    Attributes
    ----------
    index : tuple of str
    columns : dict of str to ndarray
    attrs : dict
        What is said beside the table, as in a frame of pandas.
    """

    def __init__(
        self, index: Sequence[str], columns: Mapping[str, Any], attrs: dict[str, Any]
    ) -> None:
        self.index, self.columns, self.attrs = tuple(index), dict(columns), attrs

    def __getitem__(self, name: str) -> Any:
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
        return "\n".join([*lines, *self.attrs.get("notes", ())])

    __repr__ = __str__


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float, np.number)) else str(value)


def table(index: Sequence[str], columns: Mapping[str, Any], attrs: dict[str, Any]) -> Any:
    """A frame of pandas where pandas is there, with ``attrs``. Else a :class:`Table`."""
    try:
        from pandas import DataFrame
    except ImportError:
        return Table(index, columns, attrs)
    frame = DataFrame(dict(columns), index=list(index))
    frame.attrs.update(attrs)
    return frame


def level_at_door(level: Any, name: str = "level") -> float:
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
    post: Any, level: float, above: Array, names: Sequence[str] = (), more: Any = None
) -> Any:
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
    attrs = {
        "log_evidence": post.log_evidence,
        "converged": post.converged,
        "is_likelihood": bool(post.loss is not None and post.loss.is_likelihood),
        "notes": notes(post),
    }
    return table([*post.labels, *names], columns, attrs)


#: what weights do that are no counts, and so all weights of classes
WEIGHTS = (
    "a row of weight w counts as w rows, so that weights which are no counts change how sure the "
    "fit is: its intervals and probabilities are not those of the data"
)


def fraction(weights: Array) -> float:
    """The first weight that is no whole number; 0 where there is none."""
    parts = weights % 1.0
    return float(weights[np.argmax(parts > 0.0)]) if parts.any() else 0.0


def not_counts(weights: Array | None) -> str | None:
    """What is to be said of weights that are not whole numbers. None of others."""
    found = 0.0 if weights is None else fraction(weights)
    return f"weights that are no counts, as {found:.3g}: {WEIGHTS}" if found else None


def note_weights(weights: Array | None) -> None:
    """Warn the caller of a fit of weights that are no counts."""
    said = not_counts(weights)
    if said is not None:
        warn_user(f"{said}; give counts, or none", DataWarning)


def weights_of(post: Any) -> Array | None:
    """Weights of the rows of a fit, where these are known. None: all 1."""
    data = getattr(post.problem, "data", None)
    found: Array | None = getattr(post.problem if data is None else data, "weights", None)
    return found if isinstance(found, np.ndarray) else None


def notes(post: Any) -> list[str]:
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
    error = getattr(post, "truncation_error", None)
    if error is not None:
        lines.append(
            f"rank {post.rank} of {len(post.y)}: by an estimate within {error:.2g} nats of the log "
            "evidence of the whole kernel"
        )
    said = not_counts(weights_of(post))
    return lines if said is None else [*lines, said]


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


def to_arviz(post: Any, drawn: Callable[..., Drawn], draws: int, rng: Any) -> Any:
    """See :meth:`epfast.FullPosterior.to_arviz`.

    drawn: of a number of draws and a generator. Draws are independent and one chain, of which
    ArviZ computes no r_hat.
    """
    Dataset, _ = _xarray()
    size, rng = _checks.integer("draws", draws, least=1), _checks.generator("rng", rng)
    found, attrs = drawn(size, rng), _said_of(post)
    groups = {}
    for group in GROUPS:
        variables = {}
        for name, values in getattr(found, group).items():
            whole = values if group == "observed_data" else values[None]
            lead = () if group == "observed_data" else ("chain", "draw")
            rest = range(whole.ndim - len(lead))
            dims = found.dims.get(name, tuple(f"{name}_dim_{k}" for k in rest))
            variables[name] = (*lead, *dims), whole
        if variables:
            used = {axis for axes, _ in variables.values() for axis in axes}
            coords = {axis: list(names) for axis, names in found.coords.items() if axis in used}
            groups[group] = Dataset(variables, coords, attrs)
    loo = leave_one_out(post)
    if loo is not None:
        total = {"elpd_loo": loo.sum(), "se": np.sqrt(len(loo) * loo.var())}
        groups["loo"] = Dataset({"log_predictive": (("row",), loo)}, None, {**attrs, **total})
    return _contained(groups)


def _said_of(post: Any) -> dict[str, Any]:
    """Attributes of all groups; warns of a fit that draws do not show to have failed."""
    check, loss = post.last_check, getattr(post, "loss", None)
    verdict = "not checked" if check is None else check.verdict
    settles = post.schedule.stores != "none"
    bad = ["its fit has not converged"] if settles and not post.converged else []
    bad += [f"its check says {verdict!r}"] if verdict in VERDICTS[2:] else []
    if bad:
        warn_user(
            f"these draws are of a posterior that is not to be trusted: {' and '.join(bad)}. "
            "Diagnostics of ArviZ do not see it; post.summary() and post.check() do",
            ConvergenceWarning,
        )
    attrs = {
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


def _xarray() -> tuple[Any, Any]:
    try:
        from xarray import Dataset, DataTree
    except ImportError:
        raise ImportError("to_arviz needs xarray and ArviZ: pip install 'epfast[arviz]'") from None
    return Dataset, DataTree


def _contained(groups: dict[str, Any]) -> Any:
    """ArviZ's InferenceData. A DataTree without ArviZ, or from ArviZ 1.0 on."""
    _, DataTree = _xarray()
    container = DataTree
    with warnings.catch_warnings():
        # about the next version of arviz, or the last; "loo" is a group of our own
        warnings.simplefilter("ignore")
        with suppress(ImportError):
            import arviz

            container = getattr(arviz, "InferenceData", DataTree)
        return DataTree.from_dict(groups) if container is DataTree else container(**groups)


def leave_one_out(post: Any) -> Array | None:
    """Leave-one-out log probabilities by the cavities. None where the sites do not give them."""
    if not hasattr(post, "loo_log_predictive") or post.sites is None:
        return None
    try:
        loo: Array = post.loo_log_predictive()
    except (FloatingPointError, ValueError):
        return None
    return loo
