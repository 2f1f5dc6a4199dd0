"""Files of operators: arrays and a header, of which nothing is run."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

import numpy as np
from scipy import linalg

from epfast import _checks, losses, schemes
from epfast._arrays import Array
from epfast.inference.files import agree
from epfast.operators.learners import Calibration, Learner, learner_of
from epfast.operators.messages import check_messages
from epfast.operators.oracles import SiteOracle, as_oracle
from epfast.operators.records import Refit, StoredTuple, described
from epfast.operators.settings import Settings
from epfast.schemes import Scheme

#: by how much the largest eigenvalue of the weights' covariance may be above that of their prior
ABOVE = 1.0 + 1e-6


class MisfitError(ValueError):
    """An argument of ``load`` that does not go with the file, which is in order."""


# ---- write ----


def contents(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays and the header of the state of an operator."""
    settings: Settings = state["settings"]
    store: list[StoredTuple] = state["store"]
    known: Calibration | None = state["calibration"]
    arrays: dict[str, Any] = {f"learner_{name}": part for name, part in state["arrays"].items()}
    if known is not None:
        arrays |= {f"calibration_{name}": part for name, part in known._asdict().items()}
    # rows of data may be of several lengths: what is not there is NaN
    q = max((len(row.data) for row in store), default=0)
    data = np.full((len(store), q), np.nan)
    for at, row in zip(data, store, strict=True):
        at[: len(row.data)] = row.data
    n = len(store)
    for name in StoredTuple._fields:
        parts = [getattr(row, name) for row in store]
        arrays[f"store_{name}"] = data if name == "data" else np.reshape(parts, (n, -1 if n else 0))
    arrays["audited_worst"] = np.array([worst for worst, _ in state["audited"]], dtype=np.float64)
    arrays["audited_wrong"] = np.array([wrong for _, wrong in state["audited"]], dtype=bool)
    return arrays, {
        "posterior": "operator",
        "settings": asdict(settings),
        "oracle": described(state["oracle"]),
        "counts": list(state["counts"]),
        "refusals": dict(state["refusals"]),
        "history": [refit._asdict() for refit in state["history"]],
    }


# ---- read ----


def state(arrays: dict[str, Array], header: dict[str, Any], oracle: Any) -> dict[str, Any]:
    """The state of an operator, checked; oracle: None where the file describes it."""
    settings = Settings(**header["settings"])
    learner = learner_of(settings)
    store = _store(arrays, settings, learner)
    calibration = _calibration(arrays, settings.n_targets)
    prefix = "learner_"
    parts = {
        name.removeprefix(prefix): part for name, part in arrays.items() if name.startswith(prefix)
    }
    learner.restore(parts)
    _check_model(parts, calibration is not None)
    if (calibration is None) != (learner.model is None or learner.model.used == 0):
        raise ValueError("calibration without features, or features without it")
    counts = [_checks.integer("counts", count, least=0) for count in header["counts"]]
    visits, calls, audits = counts
    worst = _checks.array("audited_worst", arrays["audited_worst"], shape=(None,), finite=False)
    wrong = arrays["audited_wrong"]
    if wrong.shape != worst.shape or wrong.dtype != np.bool_ or not (worst >= 0.0).all():
        raise ValueError("audited_worst and audited_wrong contradict each other")
    refusals = {
        str(reason): _checks.integer("refusals", count, least=0)
        for reason, count in header["refusals"].items()
    }
    if not visits >= calls >= audits or len(worst) > audits:
        raise ValueError(f"counts is {counts}, of visits, calls and audits")
    return {
        "settings": settings,
        "oracle": _oracle(header["oracle"], oracle, settings),
        "calibration": calibration,
        "store": store,
        "history": [_refit(record) for record in header["history"]],
        "audited": list(zip(worst.tolist(), wrong.tolist(), strict=True)),
        "refusals": Counter(refusals),
        "arrays": parts,
        "counts": counts,
    }


def _store(arrays: dict[str, Array], settings: Settings, learner: Learner) -> list[StoredTuple]:
    n, T = len(arrays["store_x"]), settings.n_targets
    if n == 0:
        return []
    given = {name: arrays[f"store_{name}"] for name in StoredTuple._fields}
    messages = check_messages("store_messages", given["messages"], settings.inputs)
    data = _checks.array("store_data", given["data"], shape=(n, None), finite=False)
    if np.isinf(data).any():
        raise ValueError("store_data holds infinity")
    x = learner.coordinates(messages, data)
    agree("store_x", _checks.array("store_x", given["x"], shape=x.shape), x, 1.0 + np.abs(x))
    targets = _checks.array("store_targets", given["targets"], shape=(n, T))
    errors = _checks.array("store_errors", given["errors"], shape=(n, T))
    if not (errors >= 0.0).all():
        raise ValueError("store_errors holds negative numbers")
    rows = (given["x"], np.concatenate(messages, axis=1), data, targets, errors)
    known = [StoredTuple(*(np.array(part[i]) for part in rows)) for i in range(n)]
    return [row._replace(data=row.data[~np.isnan(row.data)]) for row in known]


def _calibration(arrays: dict[str, Array], T: int) -> Calibration | None:
    if "calibration_scale" not in arrays:
        return None
    rows = ("offset", "scale", "amplitude", "inflation")
    given = [_checks.array(n, arrays[f"calibration_{n}"], shape=(T,)) for n in rows]
    noise, errors = (
        _checks.number(n, float(arrays[f"calibration_{n}"]), least=0.0) for n in ("noise", "errors")
    )
    if not (given[1] > 0.0).all() or not (given[2] >= 0.0).all() or not (given[3] > 0.0).all():
        raise ValueError("the calibration holds units that are not positive")
    offset, scale, amplitude, inflation = given
    return Calibration(offset, scale, amplitude, inflation, noise, errors)


def _check_model(parts: dict[str, Array], is_used: bool) -> None:
    """Whether the weights have a covariance, and the rows the factor of their kernel."""
    if not is_used:
        return
    S = parts["S"]
    agree("learner_S", S, S.T, 1.0)
    spectrum = linalg.eigvalsh(S, check_finite=False)
    if not (spectrum[0] > -1e-9 and spectrum[-1] <= ABOVE):
        raise ValueError("learner_S is no covariance of weights")
    if "L" in parts:
        away = parts["Z"][:, None] - parts["Z"]
        kernel = np.exp(-0.5 * np.einsum("ijk,ijk->ij", away, away))
        agree("learner_L", parts["L"] @ parts["L"].T, kernel, 1.0)
        agree("learner_widths", parts["widths"], parts["chosen_widths"], parts["widths"])


def _refit(record: dict[str, Any]) -> Refit:
    names = ("tuples", "visits", "features")
    tuples, visits, features = (_checks.integer(n, record[n], least=0) for n in names)
    return Refit(
        tuples, visits, features, _checks.number("inflation", record["inflation"], least=0.0)
    )


def _oracle(saved: dict[str, Any], given: Any, settings: Settings) -> Any:
    """The oracle of the file, or the given one if it is that."""
    kind, known = saved["class"], saved["described"]
    if given is not None:
        found = given
        if not isinstance(given, str | Scheme):
            found = as_oracle(given, settings.inputs, settings.output)
        mine = described(found)
        if mine != saved:
            raise MisfitError(
                f"oracle is {found!r}, and the file is of another: {_said(saved)}; allowed: that "
                "one"
            )
        return found
    if kind == "str":
        return _checks.choice("oracle", known, tuple(schemes.NAMED))
    if kind == SiteOracle.__name__ and known is not None:
        loss = losses.restore(known["loss"], _checks.number("beta", known["beta"], above=0.0))
        scheme = schemes.restore(known["scheme"])
        return SiteOracle(loss.with_offset(known["offset"]), scheme)
    if known is not None and kind in {type(make()).__name__ for make in schemes.NAMED.values()}:
        return schemes.restore(known)
    raise MisfitError(
        f"oracle is None, and that of the file holds functions or is a class of yours: "
        f"{_said(saved)}; allowed: the oracle that the operator asked"
    )


def _said(saved: dict[str, Any]) -> str:
    """An oracle in short."""
    return f"{saved['class']} {saved['described'] or saved.get('options')}"
