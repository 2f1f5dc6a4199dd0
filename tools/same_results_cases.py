"""The cases of ``same_results.py``, as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from same_results_calls import LOSSES, NAMED, WEIGHTS, N, Spec

#: a tolerance that no sweep reaches, where tol=0 would choose another order
NEVER = 1e-300
#: the losses that go with everything; the rest go with a few things
PRODUCT = tuple(LOSSES)[:11]

# ---- choice 2: schemes; (name, numbers) ----

SCHEMES: tuple[tuple[str, Spec], ...] = (
    ("exact", {}),
    ("laplace", {}),
    ("laplace", {"curvature": "slope"}),
    ("quick_laplace", {}),
    ("quick_laplace", {"curvature": "slope"}),
    ("quadrature", {}),
    ("quadrature", {"gamma": 1.8}),
    ("variational", {}),
    ("variational", {"gamma": 2.5}),
    ("variational", {"rule": "fifth"}),
    ("variational", {"solver": "newton"}),
    ("variational", {"rule": "own"}),
    ("importance", {"samples": 100, "seed": 3}),
)
# ---- choices 3 and 4: schedules; (class, numbers) ----


def _schedule(kind: str, **numbers: Any) -> tuple[str, Spec]:
    if numbers.get("order") == "shuffled":
        numbers["seed"] = 5
    return kind, numbers if kind == "ADF" else {"sweeps": 3, "tol": 0.0} | numbers


def ep(order: str = "sequential", **numbers: Any) -> tuple[str, Spec]:
    """EP of three sweeps."""
    return _schedule("EP", order=order, **numbers)


INNER = ep(sweeps=2)
SCHEDULES = {
    "sequential": ep(),
    "parallel": ep("parallel"),
    "shuffled": ep("shuffled"),
    "ADF": _schedule("ADF", order="sequential"),
    "ADF shuffled": _schedule("ADF", order="shuffled"),
    "SEP": _schedule("SEP", order="sequential", batch=1),
    "SEP 4": _schedule("SEP", order="sequential", batch=4),
    "SEP shuffled": _schedule("SEP", order="shuffled", batch=4),
    "AEP": _schedule("AEP"),
    "DSEP": _schedule("DSEP", groups="cut", order="sequential", batch=4),
    "DSEP shuffled": _schedule("DSEP", groups="labels", order="shuffled", batch=4),
    "DAEP": _schedule("DAEP", groups="cut", order="sequential"),
    "DAEP shuffled": _schedule("DAEP", groups="labels", order="shuffled"),
    "DEP": _schedule("DEP", shards="cut", order="sequential", inner=INNER),
    "DEP parallel": _schedule("DEP", shards="labels", order="parallel", inner=INNER),
}
#: numbers of the schedules that are varied one at a time
DAMPED = {"EP", "SEP", "AEP", "DSEP", "DAEP", "DEP"}
POWERED = {"EP", "ADF", "SEP", "AEP", "DSEP", "DAEP"}


# ---- the cases ----


def _linear(
    posterior: str, size: int | None, loss: str, scheme: Any, schedule: Any, **more: Any
) -> Spec:
    return {
        "entry": "linear",
        "posterior": posterior,
        "batch_size": size,
        "loss": loss,
        "scheme": scheme,
        "schedule": schedule,
        **more,
    }


def _gp(loss: str, scheme: Any, schedule: Any, **more: Any) -> Spec:
    return {"entry": "gp", "loss": loss, "scheme": scheme, "schedule": schedule, **more}


EXACT, LAPLACE, SLOPE, QUICK = SCHEMES[0], SCHEMES[1], SCHEMES[2], SCHEMES[3]
VARIATIONAL, SAMPLED = SCHEMES[7], SCHEMES[12]


def products() -> Iterator[Spec]:
    """Losses by schemes and orders, and losses by schedules."""
    for loss in PRODUCT:
        for scheme in SCHEMES:
            for order in ("sequential", "parallel"):
                yield _linear("full", None, loss, scheme, SCHEDULES[order])
                yield _linear("factorized", 7, loss, scheme, SCHEDULES[order])
                yield _gp(loss, scheme, SCHEDULES[order])
            yield _linear("factorized", None, loss, scheme, SCHEDULES["sequential"])
            yield _linear("full", 7, loss, scheme, SCHEDULES["sequential"])
        for schedule in SCHEDULES.values():
            yield _linear("full", None, loss, EXACT, schedule)
        for schedule in (SCHEDULES["sequential"], SCHEDULES["ADF"], SCHEDULES["SEP 4"]):
            yield _gp(loss, EXACT, schedule, rank=6)
        yield _gp(loss, EXACT, ep("shuffled"))
        for rest in (ep("shuffled"), SCHEDULES["ADF"], SCHEDULES["ADF shuffled"]):
            yield _linear("factorized", 7, loss, VARIATIONAL, rest)
            yield _linear("full", 7, loss, LAPLACE, rest)
    for loss in tuple(LOSSES)[len(PRODUCT) :]:
        for scheme in (EXACT, LAPLACE, VARIATIONAL):
            yield _linear("full", None, loss, scheme, SCHEDULES["sequential"])
            yield _linear("factorized", 7, loss, scheme, SCHEDULES["sequential"])
            yield _gp(loss, scheme, SCHEDULES["parallel"])
    for schedule in SCHEDULES.values():
        for loss, scheme in (
            ("logistic", LAPLACE),
            ("hinge", SLOPE),
            ("noisy_step", VARIATIONAL),
            ("probit", SAMPLED),
        ):
            yield _linear("full", None, loss, scheme, schedule)
            yield _gp(loss, scheme, schedule, rank=6)
        yield _gp("logistic", EXACT, schedule)
        yield _linear("full", 7, "probit", QUICK, schedule)
        yield _linear("factorized", 7, "hinge", VARIATIONAL, schedule)
        yield _linear("factorized", None, "probit", EXACT, schedule)


def _bases() -> Iterator[Spec]:
    """What is varied, one thing at a time."""
    for name, schedule in SCHEDULES.items():
        yield _linear("full", None, "logistic", EXACT, schedule)
        if name in ("sequential", "parallel", "ADF", "SEP 4", "DEP"):
            yield _linear("full", None, "noisy_step", EXACT, schedule)
    for name in ("sequential", "parallel", "ADF"):
        yield _linear("full", 7, "logistic", LAPLACE, SCHEDULES[name])
        yield _linear("factorized", 7, "logistic", VARIATIONAL, SCHEDULES[name])
        yield _linear("factorized", 7, "quasi01", SCHEMES[5], SCHEDULES[name])
        yield _linear("factorized", 7, "probit", LAPLACE, SCHEDULES[name])
    yield _linear("factorized", None, "noisy_step", EXACT, SCHEDULES["sequential"])
    yield _linear("full", 7, "squared_hinge", QUICK, SCHEDULES["sequential"])


def _numbers(base: Spec) -> Iterator[Spec]:
    """The schedule's numbers and beta."""
    kind, numbers = base["schedule"]
    if kind in DAMPED:
        yield base | {"schedule": (kind, numbers | {"damping": 0.7})}
    if kind in POWERED:
        yield base | {"schedule": (kind, numbers | {"power": 0.8})}
    if kind == "DEP":
        yield base | {"schedule": (kind, numbers | {"inner": ep(sweeps=2, power=0.8)})}
        yield base | {"schedule": (kind, numbers | {"inner": ep("auto", sweeps=2, tol=NEVER)})}
    yield base | {"beta": 0.7}


def variations() -> Iterator[Spec]:
    """One thing at a time, around fits of linear models."""
    for base in _bases():
        full, kind = base["posterior"] == "full", base["schedule"][0]
        yield base
        yield from _numbers(base)
        yield base | {"prior": "vector"}
        yield base | {"prior": "matrix" if full else "diagonal"}
        prior = {"prior": "that of the start"} if kind == "ADF" else {}
        yield base | {"start": base["schedule"]} | prior
        for weights in WEIGHTS:
            yield base | {"weights": weights}
        for rows in ("sparse", "float32", "fortran"):
            yield base | {"rows": rows}
        if not any(isinstance(v, str) and v == "labels" for v in base["schedule"][1].values()):
            yield base | {"data": "six"}
        if kind in ("EP", "ADF", "SEP"):
            yield base | {"data": "wide", "record": "cost"}
        for record in ("cost", "factor"):
            yield base | {"record": record}
        if base["batch_size"] is not None and not full:
            for rule in ("keep", "floor"):
                yield base | {"site_rule": rule}
        yield base | {"rows": "sparse", "weights": "fractions"}
        if full and base["batch_size"] is None:
            if kind in ("EP", "ADF"):
                yield base | {"after": "partial_fit"}
                yield base | {"after": "partial_fit", "weights": "fractions"}
            if kind != "ADF":
                yield base | {"after": "remove"}
                yield base | {"after": "remove", "weights": "whole"}
    for loss in ("logistic", "hinge", "noisy_step"):
        for order in ("sequential", "shuffled"):
            for numbers in ({"block": 4}, {"block": 64}, {"refresh": 1}, {"refresh": 2}):
                for data in ("small", "six"):
                    schedule = ep(order, **numbers)
                    yield _linear("full", None, loss, EXACT, schedule, data=data)
        for data in ("small", "long", "six"):
            auto = ep("auto", tol=NEVER, sweeps=6)
            yield _linear("full", None, loss, EXACT, auto, data=data)
            yield _linear("full", None, loss, VARIATIONAL, auto, data=data)
        yield _linear("full", None, loss, EXACT, ep("auto"))
        yield _linear("full", 7, loss, SLOPE, ep("auto"))
        yield _linear("factorized", 7, loss, VARIATIONAL, ep("auto"))
        settled = ep("sequential", tol=1e-8, sweeps=60)
        yield _linear("full", None, loss, EXACT, settled, settles=True)
        yield _linear("full", None, loss, EXACT, settled, data="wide", settles=True)
        for rows in ("chunks", "iterator"):
            for scheme in (VARIATIONAL, SLOPE, SCHEMES[6]):
                yield _linear("factorized", 7, loss, scheme, SCHEDULES["ADF"], rows=rows)
            yield _linear("factorized", None, loss, EXACT, SCHEDULES["ADF"], rows=rows)
        for rule in ("keep", "floor"):
            for scheme in (VARIATIONAL, SCHEMES[5], SLOPE):
                for order in ("sequential", "parallel"):
                    schedule = ep(order, damping=0.9)
                    yield _linear("factorized", 7, loss, scheme, schedule, site_rule=rule)


def processes() -> Iterator[Spec]:
    """One thing at a time, around fits of processes."""
    for loss in ("probit", "logistic", "noisy_step", "quasi01", "hinge"):
        for order in ("sequential", "parallel", "shuffled"):
            base = _gp(loss, EXACT, ep(order))
            yield from _numbers(base)
            yield base | {"start": base["schedule"]}
            yield base | {"jitter": 0.1}
        yield _gp(loss, EXACT, ep(), overwrite_K=True)
        for numbers in ({"block": 5}, {"block": 64}, {"refresh": 1}, {"refresh": 2}):
            yield _gp(loss, EXACT, ep(**numbers))
        yield _gp(loss, EXACT, ep("auto", tol=NEVER))
        yield _gp(loss, EXACT, ep(tol=1e-9, sweeps=100), settles=True)
        for order in ("sequential", "parallel"):
            schedule = ep(order, tol=1e-14, sweeps=2, fallback=True)
            yield _gp(loss, EXACT, schedule, settles=True)
        for objective in ("sequential", "joint", "printed"):
            relaxation = {"weight": 0.03, "objective": objective}
            yield _gp(loss, EXACT, ep(), relaxation=relaxation)
            yield _gp(loss, EXACT, ep("shuffled", damping=0.7), relaxation=relaxation)
            frozen = relaxation | {"freeze": 2}
            yield _gp(loss, EXACT, ep(sweeps=4), relaxation=frozen)
        relaxation = {"weight": 0.1, "objective": "sequential"}
        yield _gp(loss, EXACT, ep(), relaxation=relaxation, start=ep(), beta=0.7)
        yield _gp(loss, VARIATIONAL, ep(), relaxation=relaxation)
        yield _gp(loss, SLOPE, ep(), relaxation=relaxation)
        for schedule in SCHEDULES.values():
            base = _gp(loss, EXACT, schedule, rank=6)
            if schedule[0] != "ADF":
                yield base | {"start": schedule}
            yield from _numbers(base)
        yield _gp(loss, EXACT, ep(), rank=N, rank_tol=0.05)
        yield _gp(loss, EXACT, ep(), rank=6, columns=True)
        for order in ("sequential", "parallel"):
            yield _gp(loss, SLOPE, ep(order), rank=6, batch_size=5)


def machines() -> Iterator[Spec]:
    """Support vector machines."""
    base: Spec = {"entry": "svm", "C": 2.0, "kernel": "rbf", "gamma": 0.3, "tol": 1e-6}
    kernels: tuple[Spec, ...] = (
        base,
        base | {"gamma": "scale"},
        {"entry": "svm", "C": 0.5, "kernel": "linear", "tol": 1e-6},
        {"entry": "svm", "C": 0.5, "kernel": "precomputed", "tol": 1e-6},
    )
    for case in kernels:
        yield case
        yield case | {"start": True}
        if case["kernel"] != "precomputed":
            yield case | {"rows": "sparse"}
        for chunks in ("cut", "labels"):
            for order in ("sequential", "parallel"):
                yield case | {"chunks": chunks, "order": order}
                two = {"chunks": chunks, "order": order, "sweeps": 2}
                yield case | two | {"finish": False}


def estimators() -> Iterator[Spec]:
    """The faces of scikit-learn."""
    base: Spec = {
        "entry": "LinearClassifier",
        "posterior": "full",
        "batch_size": None,
        "loss": "logistic",
        "scheme": EXACT,
        "schedule": ep(sweeps=4),
        "prior_variance": 4.0,
        "fit_intercept": True,
    }
    minibatches = base | {"posterior": "factorized", "batch_size": 7, "scheme": VARIATIONAL}
    for loss in PRODUCT:
        yield base | {"loss": loss}
        yield minibatches | {"loss": loss}
    for case in (base, minibatches, base | {"batch_size": 7, "scheme": LAPLACE}):
        yield case | {"fit_intercept": False}
        yield case | {"beta": 0.7}
        yield case | {"classes": 3}
        yield case | {"schedule": SCHEDULES["ADF"]}
        yield case | {"schedule": SCHEDULES["SEP 4"]}
        yield case | {"weights": "fractions"}
        yield case | {"weights": "whole", "class_weight": "balanced"}
        yield case | {"rows": "sparse"}
        settled = {"schedule": ep(tol=1e-10, sweeps=200), "settles": True}
        yield case | settled | {"prior_variance": "evidence"}
    for loss in (*NAMED, "python"):
        for scheme in (EXACT, LAPLACE, VARIATIONAL):
            case = {"entry": "GPClassifier", "optimizer": None, "loss": loss, "scheme": scheme}
            yield case | {"schedule": ep(sweeps=4)}
    case = {"entry": "GPClassifier", "optimizer": None, "loss": "probit", "scheme": EXACT}
    for more in ({"classes": 3}, {"jitter": 0.1}, {"rank": 6}, {"rank": 6, "classes": 3}):
        yield case | more | {"schedule": ep(sweeps=4)}
    for more in ({}, {"classes": 3}):
        searched = {"optimizer": "fmin_l_bfgs_b", "schedule": ep(tol=1e-8, sweeps=200)}
        yield case | more | searched | {"settles": True}


def primitives() -> Iterator[Spec]:
    """Arrays in, arrays out."""
    for loss in LOSSES:
        for scheme in SCHEMES:
            if scheme[1].get("rule") != "fifth":
                case = {"entry": "backend", "loss": loss, "scheme": scheme}
                for power in (1.0, 0.8):
                    yield case | {"call": "tilted_moments", "power": power, "d": 1}
                yield case | {"call": "fit_minibatch", "d": 3}


def _text(value: Any) -> str:
    """A scheme or schedule as a call, anything else as it is."""
    if isinstance(value, tuple):
        name, numbers = value
        return f"{name}({','.join(f'{k}={_text(v)}' for k, v in numbers.items())})"
    if isinstance(value, dict):
        return ",".join(f"{k}:{_text(v)}" for k, v in value.items())
    return str(value)


def cases() -> dict[str, Spec]:
    """All cases by name, each once."""
    found = {}
    for group in (products, variations, processes, machines, estimators, primitives):
        for case in group():
            names = (f"{k}={_text(v)}" for k, v in case.items() if k not in ("entry", "settles"))
            found[" ".join([case["entry"], *names])] = case
    return found
