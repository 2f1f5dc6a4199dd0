"""Posteriors of graphs as files: variables, factors with their numbers, sites, schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from epfast import _checks, schemes
from epfast._arrays import Array
from epfast.families import FAMILIES
from epfast.graph.blocks import (
    BlockBelief,
    BlockPrior,
    LinearPart,
    Start,
    abouts,
    belief_from,
    believed,
    prior_belief,
)
from epfast.graph.factors import Batch, LinearFactor
from epfast.graph.factors_categorical import Mixture
from epfast.graph.legality import LEGAL, index
from epfast.graph.problem import (
    BLOCK,
    GraphProblem,
    GraphState,
    legal,
    places,
    priors_in_effect,
)
from epfast.graph.variables import Block, Index, Part, Terms, Variables, finite_rows
from epfast.inference import Sites, SweepInfo
from epfast.inference.files import (
    agree,
    describe_schedule,
    restore_schedule,
)
from epfast.losses import Loss
from epfast.losses import describe as describe_loss
from epfast.losses import restore as restore_loss

#: kinds that files know, by their names there
KINDS: dict[str, Any] = {kind.__name__: kind for kind in LEGAL}
#: fields of kinds that only matter when a factor is added: batches have them in their numbers
AT_THE_DOOR = {"Transition": ("variance",), "Noise": ("tau",), "Mixture": ("h",)}
NAMES = tuple(FAMILIES)
#: those that take forms over blocks
OVER_BLOCKS = ("LinearFactor", "Between", "Noise")
#: arrays of a sparse matrix
CSR = ("data", "indices", "indptr")
#: numbers of a state, of plain Python
SCALARS = {"sweeps": int, "together": bool, "change": float, "grown": int}


# ---- write ----


def contents(
    problem: GraphProblem, state: GraphState, converged: bool, history: list[SweepInfo]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays and the header of a file."""
    arrays: dict[str, Any] = {
        "families": problem.families,
        "sizes": problem.sizes,
        "given": problem.given,
        "times": problem.times,
    }
    header: dict[str, Any] = {
        "posterior": "graph",
        "graph": problem.graph,
        "schedule": describe_schedule(problem.schedule)[0],
        "converged": bool(converged),
        "history": [info._replace(factor_cost=None)._asdict() for info in history],
        "added": problem.added,
        "made": [],
        "batches": [],
        "state": {},
    }
    for k, (name, made) in enumerate(problem.made.items()):
        if isinstance(made, Block):
            arrays[f"made{k}"], family, width = np.array([made.number]), "block", made.d
        else:
            arrays[f"made{k}"], family, width = made.numbers, made.family, made.width
        header["made"].append({"name": name, "family": family, "width": width})
    for k, prior in enumerate(problem.blocks):
        arrays |= {f"block{k}_{name}": np.asarray(x) for name, x in prior._asdict().items()}
    for k, batch in enumerate(problem.batches):
        described: dict[str, Any] = {
            "key": batch.key,
            "kind": type(batch.factor).__name__,
            "scheme": None,
        }
        if type(batch.factor) is not KINDS.get(described["kind"]):
            raise TypeError(
                f"batch {batch.key} is of factors of your own, which no file can hold; allowed: "
                "factors of the library; pickle (or cloudpickle) the posterior, or fit again"
            )
        if batch.scheme is not None:
            described["scheme"] = schemes.describe(batch.scheme)
            if described["scheme"] is None:
                raise _unsaved(batch, "a scheme", batch.scheme)
        for name in batch.factor.kept:
            value = getattr(batch.factor, name)
            if name == "loss":
                described[name] = _described(batch, value)
            elif isinstance(value, np.ndarray):
                arrays[f"batch{k}_of_{name}"] = value
            else:
                described[name] = value
        header["batches"].append(described)
        arrays |= {f"batch{k}_{name}": value for name, value in batch.terms._asdict().items()}
        arrays[f"batch{k}_rows"] = batch.rows
        arrays |= {f"batch{k}_data_{name}": value for name, value in batch.data.items()}
        described["parts"] = [part.block for part in batch.parts]
        for block, rows in batch.parts:
            if hasattr(rows, "indptr"):
                sparse_rows = {name: getattr(rows, name) for name in CSR}
                arrays |= {f"batch{k}_part{block}_{name}": x for name, x in sparse_rows.items()}
            else:
                arrays[f"batch{k}_part{block}"] = rows
    for k, belief in enumerate(state.blocks):
        arrays |= {f"state_block{k}_{name}": np.asarray(x) for name, x in belief._asdict().items()}
    for k, of_linear in zip(problem.linear().values(), state.linear, strict=True):
        if of_linear.sites is not None:
            parts = of_linear.sites._asdict()
            arrays |= {f"state_linear{k}_{name}": x for name, x in parts.items()}
        header["state"][f"linear{k}"] = int(of_linear.sweeps)
    for name, value in state._asdict().items():
        if isinstance(value, np.ndarray):
            arrays[f"state_{name}"] = value
        elif name in SCALARS:
            header["state"][name] = SCALARS[name](value)
    return arrays, header


def _described(batch: Batch, loss: Any) -> Any:
    """A loss, or those of a mixture, as JSON."""
    if isinstance(batch.factor, Mixture):
        return [_described(batch._replace(factor=None), each) for each in losses_of(batch)]
    found = describe_loss(loss)
    if found is None:
        raise _unsaved(batch, "a loss", loss)
    return {**found, "beta": float(loss.beta)}


def losses_of(batch: Batch) -> list[Loss]:
    """The losses of a mixture."""
    found: list[Loss] = batch.factor.losses(sum(name.startswith("y") for name in batch.data))
    return found


def _unsaved(batch: Batch, what: str, value: Any) -> TypeError:
    return TypeError(
        f"batch {batch.key} has {what} of yours, {value!r}, which no file can hold; allowed: those "
        "of the library; pickle (or cloudpickle) the posterior, or fit again"
    )


# ---- read ----


def restore(
    arrays: dict[str, Array], header: dict[str, Any]
) -> tuple[GraphState, GraphProblem, bool, list[SweepInfo]]:
    """Check what :func:`contents` made: the arguments of a posterior."""
    identity = header["graph"]
    if not isinstance(identity, str):
        raise ValueError("graph is no text")
    families, sizes = index(arrays["families"], len(NAMES), BLOCK), index(arrays["sizes"], 2**31)
    n = len(families)
    blocks = _blocks(arrays, families)
    if not n or sizes.shape != (n,) or (np.where(families < 3, sizes != 2, sizes < 2)).any():
        raise ValueError("sizes are none of the families of the variables")
    at = places(families.astype(np.int8), sizes)
    given = _checks.array("given", arrays["given"], shape=(int(at[-1]),))
    times = _checks.array("times", arrays["times"], shape=(n,), finite=False)
    if np.isnan(times).any():
        raise ValueError("times hold NaN")
    made: dict[str | int, Variables | Block] = {}
    for k, entry in enumerate(header["made"]):
        numbers = index(arrays[f"made{k}"], n, ndim=None)
        if not isinstance(entry["name"], str | int) or entry["name"] in made:
            raise ValueError(f"{entry['name']!r} is no name of variables")
        width = entry["width"]
        if entry["family"] == "block":
            if [width] != [block.d for block in blocks if block.number in numbers.tolist()]:
                raise ValueError(f"{entry['name']!r} is no block")
            made[entry["name"]] = Block(identity, int(numbers[0]), int(width))
            continue
        family = NAMES.index(entry["family"])
        if (families[numbers] != family).any() or (sizes[numbers] != width).any():
            raise ValueError(f"variables {entry['name']!r} are of several families")
        made[entry["name"]] = Variables(identity, entry["family"], numbers, int(width))
    batches = tuple(
        _batch(k, entry, arrays, families, sizes, blocks)
        for k, entry in enumerate(header["batches"])
    )
    added = _checks.integer("added", header["added"], least=0)
    keys = [batch.key for batch in batches]
    if not keys or len(set(keys)) < len(keys) or max(keys) >= added:
        raise ValueError("numbers of batches are not those that add gave")
    prior = priors_in_effect(given, families.astype(np.int8), sizes, at, batches)
    schedule = legal(restore_schedule(header["schedule"], None))
    problem = GraphProblem(
        *(identity, families.astype(np.int8), sizes, at, prior, times, batches, schedule),
        *(given, made, added, blocks),
    )
    problem.check(quiet=True)
    state = _state(problem, arrays, header["state"])
    history = [SweepInfo(**record) for record in header["history"]]
    return state, problem, _checks.flag("converged", header["converged"]), history


def _blocks(arrays: dict[str, Array], families: Index) -> tuple[BlockPrior, ...]:
    """The blocks, with proper priors."""
    found = []
    for k, number in enumerate(np.flatnonzero(families == BLOCK).tolist()):
        mean = _checks.array("mean", arrays[f"block{k}_mean"], shape=(None,))
        precision = arrays[f"block{k}_precision"]
        precision = _checks.array("precision", precision, shape=(len(mean), len(mean)))
        symmetric = np.array_equal(precision, precision.T)
        prior = BlockPrior(number, precision, mean)
        if not symmetric or precision[prior.flat].any() or prior_belief(prior) is None:
            raise ValueError(f"block {k} has no proper prior")
        if not np.array_equal(arrays[f"block{k}_number"], number):
            raise ValueError(f"block {k} has another number")
        found.append(prior)
    return tuple(found)


def _parts(
    k: int, blocks: Any, arrays: dict[str, Array], n: int, known: tuple[BlockPrior, ...]
) -> tuple[Part, ...]:
    """Rows of forms over blocks, of a batch of n factors."""
    found = []
    of = {prior.number: prior.d for prior in known}
    for block in blocks:
        at = f"batch{k}_part{block}"
        rows: Any = arrays.get(at)
        if rows is None:
            numbers = tuple(arrays[f"{at}_{name}"] for name in CSR)
            rows = sparse.csr_array(numbers, shape=(n, of[block]))
        if rows.shape != (n, of[block]):
            raise ValueError(f"batch {k}: rows of a block have shape {rows.shape}")
        found.append(Part(block, finite_rows(rows, of[block])))
    return tuple(found)


def _batch(
    k: int,
    entry: dict[str, Any],
    arrays: dict[str, Array],
    families: Index,
    sizes: Index,
    blocks: tuple[BlockPrior, ...],
) -> Batch:
    """One batch, checked as its door would."""
    kind = KINDS[_checks.choice("kind", entry["kind"], tuple(KINDS))]
    kept = dict.fromkeys(AT_THE_DOOR.get(entry["kind"], ()))
    for name in kind.kept:
        if name == "loss":
            kept[name] = _loss(entry["loss"])
        elif f"batch{k}_of_{name}" in arrays:
            kept[name] = arrays[f"batch{k}_of_{name}"]
        else:
            kept[name] = entry[name]
    start = f"batch{k}_data_"
    data = {
        name.removeprefix(start): np.ascontiguousarray(value)
        for name, value in arrays.items()
        if name.startswith(start)
    }
    rows = index(arrays[f"batch{k}_rows"], 2**62)
    n = len(rows)
    starts = index(arrays[f"batch{k}_starts"], 2**62)
    variables = index(arrays[f"batch{k}_variables"], len(families))
    coefficient = _checks.array(
        f"batch{k}_coefficient", arrays[f"batch{k}_coefficient"], shape=(len(variables),)
    )
    if not n or len(starts) != n + 1 or starts[0] != 0 or starts[-1] != len(variables):
        raise ValueError(f"batch {k}: starts are not those of its rows")
    if (np.diff(starts) < 1).any() or len(np.unique(rows)) < n:
        raise ValueError(f"batch {k}: a factor has no neighbour, or is there twice")
    if any(len(value) != n for value in data.values()):
        raise ValueError(f"batch {k}: its numbers are not those of its rows")
    terms = Terms(starts, variables, coefficient)
    owner = np.repeat(np.arange(n), terms.counts)
    if len(np.unique(np.stack([owner, variables], axis=1), axis=0)) < len(owner):
        raise ValueError(f"batch {k}: a factor has a variable twice")
    scheme = schemes.restore(entry["scheme"])
    if (scheme is None) != (kind is not LinearFactor):
        raise ValueError(f"batch {k}: scheme is {scheme!r}")
    key = _checks.integer("key", entry["key"], least=0)
    parts = _parts(k, entry["parts"], arrays, n, blocks)
    batch = Batch(key, kind(**kept), terms, data, rows, scheme, parts)
    of = families[variables]
    numbers = [part.block for part in parts]
    if len(set(numbers)) < len(numbers) or np.count_nonzero(of == BLOCK) != n * len(parts):
        raise ValueError(f"batch {k}: neighbours are not those of its forms over blocks")
    if parts:
        _checks.choice("kind", entry["kind"], OVER_BLOCKS)
        for number in numbers:
            if np.count_nonzero(variables == number) != n:
                raise ValueError(f"batch {k}: a form is not over one of its blocks")
    # to its factor a form over a block is a Gaussian neighbour
    LEGAL[kind](batch, np.where(of == BLOCK, 0, of), sizes[variables])
    return batch


def _loss(described: Any) -> Any:
    if isinstance(described, list):
        return tuple(_loss(each) for each in described)
    numbers = dict(described)
    return restore_loss(numbers, _checks.number("beta", numbers.pop("beta"), above=0.0))


def _state(problem: GraphProblem, arrays: dict[str, Array], header: dict[str, Any]) -> GraphState:
    """Beliefs that are priors times sites."""
    linear = problem.linear()
    rest = problem.rest(linear)
    batches = [
        batch.taken(rows)
        for batch, rows in zip(rest.batches, rest.program(rest.order()).rows, strict=True)
    ]
    of_sites = [problem.site_places(batch) for batch in batches]
    where = np.concatenate([*(found[0] for found in of_sites), np.empty(0, dtype=np.intp)])
    shapes = {"beliefs": len(problem.prior), "sites": len(where), "log_scale": rest.n_factors}
    parts = {
        name: _checks.array(name, arrays[f"state_{name}"], shape=(size,))
        for name, size in shapes.items()
    }
    residual = None
    if problem.schedule.order == "residual":
        residual = _checks.array("residual", arrays["state_residual"], shape=(problem.n_factors,))
    change = header["change"]
    if type(change) not in (int, float) or not change >= 0.0:
        raise ValueError(f"change is {change!r}")
    state = GraphState(
        parts["beliefs"],
        parts["sites"],
        parts["log_scale"],
        sweeps=_checks.integer("sweeps", header["sweeps"], least=0),
        together=_checks.flag("together", header["together"]),
        change=float(change),
        grown=_checks.integer("grown", header["grown"], least=0),
        residual=residual,
    )
    scalar = np.ones(len(problem.prior), dtype=bool)
    for block in problem.blocks:
        scalar[problem.at[block.number] + np.arange(2)] = False
    if problem.schedule.stores != "none" and batches:
        times = np.ones(len(where))
        if problem.tied:
            counts = [batch.n for batch in batches]
            times = np.repeat(np.array(counts, float), [len(found[0]) for found in of_sites])
        total, size = problem.added_up(state.beliefs, where, times * state.sites)
        agree("beliefs", state.beliefs[scalar], total[scalar], size[scalar])
    if not problem.is_proper(state.beliefs, problem.others()):
        raise ValueError("beliefs are improper")
    if batches and not np.isfinite(problem.evidence(state)):
        raise ValueError("the log evidence overflows")
    states = {
        place: _linear_state(problem, place, k, arrays, header) for place, k in linear.items()
    }
    about, first = [], 0
    for batch, (found, _) in zip(batches, of_sites, strict=True):
        of_batch = abouts(batch, problem.blocks, problem.sizes)
        about += [part._replace(at=first + part.at) for part in of_batch]
        first += len(found)
    blocks = []
    for place, prior in enumerate(problem.blocks):
        kept = _belief(place, prior, arrays)
        if place in states:
            belief: BlockBelief | None = states[place][0]
        elif problem.schedule.stores == "none":
            belief = kept if belief_from(kept.covariance, kept.mean) else None
        else:
            belief = believed(prior, place, about, state.sites)
        if belief is None:
            raise ValueError(f"block {place} has no proper belief")
        sd = np.sqrt(belief.covariance.diagonal())
        # what rounds in a matrix that is nearly singular
        close = 1.0 + 1e-9 * np.linalg.cond(belief.covariance / np.outer(sd, sd))
        agree(f"mean of block {place}", kept.mean, belief.mean, close * (sd + np.abs(belief.mean)))
        product = close * np.outer(sd, sd)
        agree(f"covariance of block {place}", kept.covariance, belief.covariance, product)
        blocks.append(kept)
    return state._replace(blocks=tuple(blocks), linear=tuple(found[1] for found in states.values()))


def _belief(place: int, prior: BlockPrior, arrays: dict[str, Array]) -> BlockBelief:
    d, start = prior.d, f"state_block{place}_"
    return BlockBelief(
        _checks.array("covariance", arrays[f"{start}covariance"], shape=(d, d)),
        _checks.array("mean", arrays[f"{start}mean"], shape=(d,)),
        float(_checks.array("partition", arrays[f"{start}partition"], shape=())),
    )


def _linear_state(
    problem: GraphProblem, place: int, k: int, arrays: dict[str, Array], header: dict[str, Any]
) -> tuple[BlockBelief, Any]:
    """What is known of a block that is a linear model, and the state of its engine."""
    part = LinearPart(problem.blocks[place], problem.batches[k], problem.schedule)
    wanted = part.engine.init(None).sites
    sites = [
        _checks.array(name, arrays[f"state_linear{k}_{name}"], shape=empty.shape)
        for name, empty in wanted._asdict().items()
    ]
    sweeps = _checks.integer("sweeps", header[f"linear{k}"], least=0)
    state = part.engine.init(Start(Sites(*sites), problem.blocks[place].mean, sweeps))
    return part.belief(state), state
