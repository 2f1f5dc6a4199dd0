"""What batches of a file must fulfil, so that the core may take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epfast import _checks
from epfast.families import FAMILIES
from epfast.gaussian.files import check_shapes
from epfast.graph.factors import Batch, Between, LinearFactor
from epfast.graph.factors_categorical import Mixture, Table
from epfast.graph.factors_chains import Transition, Walk
from epfast.graph.factors_continuous import CompoundGamma, LogisticLink, Noise, Product
from epfast.graph.own import ScalePrior
from epfast.graph.variables import Index, finite_rows
from epfast.inference.files import restore_responses
from epfast.priors import Scale

NAMES = tuple(FAMILIES)


def index(value: NDArray[Any], stop: int, least: int = 0, ndim: int | None = 1) -> Index:
    """Whole numbers from least to stop - 1."""
    if value.dtype.kind not in "iu" or (ndim is not None and value.ndim != ndim):
        raise ValueError(f"{_checks.describe(value)} in place of whole numbers")
    if value.size and not (value.min() >= least and value.max() < stop):
        raise ValueError(f"numbers are outside {least} to {stop - 1}")
    return np.array(value, dtype=np.intp, order="C")


def _pattern(batch: Batch, families: Index, *names: str) -> None:
    """As many neighbours each as names, of these families."""
    wanted = np.array([NAMES.index(name) for name in names])
    if (
        not (batch.terms.counts == len(names)).all()
        or (families.reshape(batch.n, -1) != wanted).any()
    ):
        raise ValueError(f"neighbours of {type(batch.factor).__name__} are of other families")


def _names(batch: Batch, *names: str) -> None:
    if set(batch.data) != set(names):
        raise ValueError(f"{type(batch.factor).__name__} has numbers {sorted(batch.data)}")


def _numbers(batch: Batch, name: str, width: int | None = None, least: float = -np.inf) -> None:
    """Finite numbers, (n,) or (n, width), from least on."""
    shape = (batch.n,) if width is None else (batch.n, width)
    batch.data[name] = _checks.array(name, batch.data[name], shape=shape)
    if not (batch.data[name] >= least).all():
        raise ValueError(f"{name} holds {batch.data[name].min():g}; allowed: >= {least:g}")


def _form(batch: Batch, families: Index, sizes: Index) -> None:
    if families.any():
        raise ValueError("forms are over variables that are not Gaussian")
    _names(batch, "offset", "noise", "y")
    _numbers(batch, "offset")
    _numbers(batch, "noise", least=0.0)


def _linear(batch: Batch, families: Index, sizes: Index) -> None:
    _form(batch, families, sizes)
    loss = batch.factor.loss
    if loss.latents != 1:
        raise ValueError(f"loss is {loss!r}, with several latent values")
    reason = batch.scheme.refuses(loss, "row")
    if reason is not None:
        raise ValueError(reason)
    batch.data["y"] = restore_responses(batch.data["y"], loss)


def _between(batch: Batch, families: Index, sizes: Index) -> None:
    _form(batch, families, sizes)
    y = batch.data["y"] = _checks.array("y", batch.data["y"], shape=(batch.n, 2), finite=False)
    if not (y[:, 0] < y[:, 1]).all():
        raise ValueError("lower is not below upper")


def _transition(batch: Batch, families: Index, sizes: Index) -> None:
    _pattern(batch, families, "gaussian", "gaussian")
    _names(batch, "factor", "variance")
    _numbers(batch, "factor")
    _numbers(batch, "variance", least=0.0)
    if not batch.data["factor"].all():
        raise ValueError("factor holds 0")


def _noise(batch: Batch, families: Index, sizes: Index) -> None:
    last = np.zeros(len(families), dtype=bool)
    last[batch.terms.starts[1:] - 1] = True
    if (batch.terms.counts < 2).any() or (families != np.where(last, 1, 0)).any():
        raise ValueError("neighbours of Noise are of other families")
    _names(batch, "offset")
    _numbers(batch, "offset")


def _product(batch: Batch, families: Index, sizes: Index) -> None:
    _names(batch, "variance", "z")
    _numbers(batch, "variance", least=0.0)
    observed = batch.data["z"].ndim == 2 and batch.data["z"].shape[1] == 1
    _pattern(batch, families, *["gaussian"] * (2 if observed else 3))
    _numbers(batch, "z", 1 if observed else 0)
    if observed and not batch.data["variance"].all():
        raise ValueError("variance holds 0 where z is observed")


def _logistic(batch: Batch, families: Index, sizes: Index) -> None:
    _pattern(batch, families, "gaussian", "beta")
    _names(batch)


def _compound(batch: Batch, families: Index, sizes: Index) -> None:
    _pattern(batch, families, "gamma")
    _names(batch, "numbers")
    _numbers(batch, "numbers", 3)
    if not (batch.data["numbers"] > 0.0).all():
        raise ValueError("s1, r1 or s2 holds numbers <= 0")


def _scale(batch: Batch, families: Index, sizes: Index) -> None:
    _pattern(batch, families, "gamma")
    _names(batch)
    for name in ("shape", "rate"):
        _checks.number(name, getattr(batch.factor, name), above=0.0)
    if not isinstance(batch.factor.prior, Scale):
        raise ValueError("the prior of a scale is none")


def _table(batch: Batch, families: Index, sizes: Index) -> None:
    m = int(batch.terms.counts[0])
    _pattern(batch, families, *["categorical"] * m)
    p = batch.factor.p
    shape = p.shape[max(0, p.ndim - m) :]
    if (sizes.reshape(batch.n, m) != shape).any() or len(shape) != m:
        raise ValueError("p is of other categories than its variables")
    entries = int(np.prod(shape))
    tables = p.reshape(-1, entries)
    if not (np.isfinite(p).all() and (p >= 0.0).all() and (tables > 0.0).any(axis=1).all()):
        raise ValueError("p holds a number below 0, NaN or infinity, or a table of zeros")
    if len(tables) == 1:
        _names(batch)
        return
    _names(batch, "log_p")
    logs = batch.data["log_p"]
    logs = _checks.array("log_p", logs, shape=(batch.n, entries), finite=False)
    if not (logs < np.inf).all() or not np.isfinite(logs).any(axis=1).all():
        raise ValueError("log_p holds NaN or infinity, or a row of zeros")


def _mixture(batch: Batch, families: Index, sizes: Index) -> None:
    starts, n = batch.terms.starts, batch.n
    last = np.zeros(len(families), dtype=bool)
    last[starts[1:] - 1] = True
    if (families != np.where(last, 3, 0)).any():
        raise ValueError("neighbours of Mixture are of other families")
    K = int(sizes[last][0])
    own = [f"y{k}" for k in range(K)]
    if (sizes[last] != K).any():
        raise ValueError("categories of a Mixture differ in their number")
    _names(batch, "coefficient", "which", "offset", "noise", *own)
    _checks.flag("vectors", batch.factor.vectors)
    wide = batch.data["offset"].shape[-1]
    P = wide // K
    _numbers(batch, "offset", P * K)
    _numbers(batch, "noise", P * K, least=0.0)
    a = batch.data["coefficient"]
    shape = (n, P * K, a.shape[-1])
    batch.data["coefficient"] = _checks.array(
        "coefficient", a.reshape(n, -1), shape=(n, int(np.prod(shape[1:])))
    ).reshape(shape)
    which: Any = index(batch.data["which"], 2**62, ndim=3)
    batch.data["which"] = which
    if which.shape != shape or (which >= (batch.terms.counts - 1)[:, None, None]).any():
        raise ValueError("which names variables that its factors have not")
    for name, loss in zip(own, batch.factor.losses(K), strict=True):
        y = batch.data[name]
        if y.ndim != 3 or y.shape[1] != P:
            raise ValueError(f"{name} has shape {y.shape}")
        made = restore_responses(np.ascontiguousarray(y.reshape(n * P, -1)), loss)
        batch.data[name] = made.reshape(n, P, -1)


LEGAL: dict[Any, Callable[[Batch, Index, Index], None]] = {
    LinearFactor: _linear,
    Between: _between,
    Transition: _transition,
    Walk: _transition,
    Noise: _noise,
    Product: _product,
    LogisticLink: _logistic,
    CompoundGamma: _compound,
    ScalePrior: _scale,
    Table: _table,
    Mixture: _mixture,
}
#: those that take forms over blocks
OVER_BLOCKS = LinearFactor, Between, Noise


def check_batch(batch: Batch, families: Index, sizes: Index, blocks: dict[int, int]) -> None:
    """Check a batch of a file as its door would; its numbers become what the core takes.

    families, sizes: of the variables; blocks: lengths of blocks, by their numbers.
    """
    check_shapes(batch, "rows n, terms.starts n+, terms.variables t, terms.coefficient t")
    starts, variables, _ = batch.terms
    index(batch.rows, 2**62)
    index(starts, 2**62)
    index(variables, len(families))
    n, of, kind = batch.n, families[variables], type(batch.factor)
    if not n or starts[0] != 0 or starts[-1] != len(variables) or (np.diff(starts) < 1).any():
        raise ValueError(f"batch {batch.key}: starts are not those of its rows")
    if any(len(value) != n for value in batch.data.values()):
        raise ValueError(f"batch {batch.key}: its numbers are not those of its rows")
    parts = {part.block: np.count_nonzero(variables == part.block) for part in batch.parts}
    several = sum(parts.values()) != np.count_nonzero(of < 0) or len(parts) < len(batch.parts)
    if several or any(count != n for count in parts.values()):
        raise ValueError(f"batch {batch.key}: neighbours are not those of its forms over blocks")
    if batch.parts and kind not in OVER_BLOCKS:
        raise ValueError(f"batch {batch.key}: its factors take no forms over blocks")
    for block, rows in batch.parts:
        if rows.shape != (n, blocks[block]):
            raise ValueError(f"batch {batch.key}: rows of a block have shape {rows.shape}")
        finite_rows(rows, blocks[block])
    if (batch.scheme is None) != (kind is not LinearFactor):
        raise ValueError(f"batch {batch.key}: scheme is {batch.scheme!r}")
    # to its factor a form over a block is a Gaussian neighbour
    LEGAL[kind](batch, np.maximum(of, 0), sizes[variables])
