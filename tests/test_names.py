"""Names that users meet: those of seeds in all public signatures."""

import inspect
import subprocess
import sys
import tokenize
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from sklearn.base import BaseEstimator

import epfast

SEEDS = {"rng", "seed", "random_state", "random_seed", "generator"}


def modules():
    missing = {"gpy"} if find_spec("GPy") is None else set()
    members = (getattr(epfast, name) for name in set(dir(epfast)) - missing)
    return [epfast, *(one for one in members if isinstance(one, ModuleType))]


def calls():
    """Public functions, classes and methods by name, with what their seeds should be called."""
    found = {}
    for module in modules():
        for name in getattr(module, "__all__", dir(module)):
            one = getattr(module, name)
            if name.startswith("_") or not getattr(one, "__module__", "").startswith("epfast"):
                continue
            if not inspect.isclass(one):
                found[f"{module.__name__}.{name}"] = one, "rng"
                continue
            of_estimator = issubclass(one, BaseEstimator)
            found[f"{one.__module__}.{one.__name__}"] = (
                one,
                "random_state" if of_estimator else "seed",
            )
            for method in dir(one):
                if not method.startswith("_"):
                    kind = "random_state" if of_estimator else "rng"
                    found[f"{one.__module__}.{one.__name__}.{method}"] = getattr(one, method), kind
    return found


def test_seeds_have_one_name_per_kind():
    """rng in functions and methods, random_state in estimators, seed in schedules and schemes."""
    seen = set()
    for name, (one, allowed) in calls().items():
        if not callable(one):
            continue
        try:
            given = set(inspect.signature(one).parameters) & SEEDS
        except ValueError:  # of a class of NumPy or the core
            continue
        assert given <= {allowed}, name
        seen |= {(name, allowed)} if given else set()
    kinds = [kind for _, kind in seen]
    assert min(kinds.count(kind) for kind in ("rng", "seed", "random_state")) >= 5
    assert {"epfast.fit_network", "epfast.schedules.base.EP"} <= dict(seen).keys()


@pytest.mark.parametrize("door", [epfast.fit_mixture, epfast.fit_network])
def test_generators_and_seeds(door):
    """An int repeats itself; a generator goes on; None is fresh."""
    X = np.random.default_rng(0).normal(size=(30, 2))
    given = (X, 2) if door is epfast.fit_mixture else (X, X[:, 0], (3,))

    def fitted(rng):
        post = door(*given, rng=rng, schedule=epfast.ADF())
        return np.ravel(post.mean if door is epfast.fit_mixture else post.weights[0].mean)

    np.testing.assert_array_equal(fitted(4), fitted(4))
    rng = np.random.default_rng(4)
    assert (fitted(rng) != fitted(rng)).all()
    assert (fitted(None) != fitted(None)).all()
    with pytest.raises(ValueError, match="rng is -1"):
        fitted(-1)
    with pytest.raises(TypeError, match=r"'seed'; here that is rng="):
        door(*given, seed=4)


def test_modules_wait_until_they_are_used():
    """The package loads the fits of rows and processes, and nothing that only others need."""
    code = "import sys, epfast; print(*sys.modules)"
    given = {"capture_output": True, "text": True, "check": True}
    loaded = set(subprocess.run([sys.executable, "-c", code], **given).stdout.split())
    assert {"epfast.gaussian.fit_linear", "epfast.gaussian.fit_gp"} <= loaded
    slow = {"scipy.stats", "scipy.optimize", "scipy.interpolate", "sklearn", "pandas", "matplotlib"}
    assert not loaded & (slow | {"epfast.graph", "epfast.operators", "epfast.parametric"})


def test_private_words_are_no_names():
    """Variables and functions are named after what they are, in the words of the field."""
    banned = {"ours", "theirs", "gone", "told", "blurred", "Seen"}
    banned |= {"stands_off", "_stands", "_anew", "rows_gone", "rows_to_settle"}
    source = Path(epfast.__file__).parent
    for room in ("gaussian", "inference", "schemes", "schedules", "losses"):
        for path in (source / room).rglob("*.py"):
            with path.open("rb") as file:
                names = {token.string for token in tokenize.tokenize(file.readline)}
            assert not names & banned, path
