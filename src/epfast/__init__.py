"""Fast expectation propagation.

EP is one loop with four independent choices, which are arguments of the fits:

1. what a factor is: :mod:`epfast.losses`, and ``batch_size``
2. how its tilted moments are computed: :mod:`epfast.schemes`
3. which sites are stored: :mod:`epfast.schedules`
4. in which order they are updated: :mod:`epfast.schedules`

The modules, in the order of their imports. Each imports only those above it::

    _core               sweeps, tilted moments, vector functions: Cython and C, without policy
    _arrays             arrays: their type, row chunks, triangles
    _checks             checks of arguments
    losses              choice 1
    priors              priors of scales: sds, sizes, length scales
    schedules           choices 3 and 4, data only
    families            exponential families by natural parameters
    schemes             choice 2
    inference           the loop, and its records
    operators           messages by quadrature, Laplace or sampling, and learned ones
    gaussian            rows and processes: forms of q, visits of factors, the table of both
    graph               variables and factors
    parametric          models given by tilted moments of their parameters
    storage             posteriors from files
    backend             functions from arrays to arrays
    svm                 support vector machines
    estimators          scikit-learn estimators
    formula             regressions by a formula, y ~ x + (x | g)
    gpy                 inference for models of GPy
    dask                fits of rows on a Dask cluster
    plots               plots of posteriors
    rating              ratings of players from games, through time
"""

import ast as _ast
from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from pathlib import Path as _Path
from sys import _getframe
from typing import Any as _Any


def _modules() -> dict[str, str]:
    """Names and the modules that hold them, by the stub that type checkers read."""
    stub = _ast.parse(_Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = (node for node in stub.body if isinstance(node, _ast.ImportFrom))
    return {alias.name: str(node.module) for node in imports for alias in node.names}


_MODULES = _modules()
#: modules that need an extra
_EXTRAS = {"dask", "estimators", "formula", "gpy", "plots", "rating"}
# Where scikit-learn is missing its estimators are not listed, so that "from epfast import *" works.
# Asking for one says what to install.
__all__ = sorted(
    name
    for name, module in _MODULES.items()
    if name not in _EXTRAS and (module != "epfast.estimators" or _find_spec("sklearn"))
)


def __getattr__(name: str) -> _Any:
    if name == "__version__":
        return _import_module("epfast._core.vector").build_facts()["version"]
    home = _MODULES.get(name, "epfast")
    try:
        if home != "epfast":
            value = globals()[name] = getattr(_import_module(home), name)
            return value
        if not name.startswith("__") and _find_spec(f"epfast.{name}"):
            return _import_module(f"epfast.{name}")
    except ImportError as error:
        # hasattr and getattr with a default expect an AttributeError; "from epfast import" would
        # turn that into an ImportError without a reason. What is there and fails is no missing name
        missing = type(error) is ImportError and error.name and not _find_spec(error.name)
        if not missing or _getframe(1).f_code.co_name == "_handle_fromlist":
            raise
        raise AttributeError(f"epfast.{name}: {error}", name=name) from error
    others = (_import_module(f"epfast.{other}") for other in ("schemes", "losses"))
    place = "".join(f"; it is {one.__name__}.{name}" for one in others if name in one.__all__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{place}", name=name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, "__version__"})


# Those of rows and processes come along: a process that forks while a thread imports them has a
# child that waits for ever.
for _name in ("fit_linear", "fit_gp"):
    __getattr__(_name)
