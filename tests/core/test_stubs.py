"""The stubs of the core are what its modules are: public names on both sides, and signatures."""

import ast
import importlib
import inspect
import types
from pathlib import Path

import pytest

import epfast._core

FOLDER = Path(epfast._core.__file__).parent
STUBS = {path.stem: ast.parse(path.read_text()) for path in sorted(FOLDER.glob("[a-z]*.pyi"))}
COMPILED = [path for path in FOLDER.glob("[a-z]*") if path.suffix in (".so", ".pyd")]
MODULES = sorted({path.name.split(".")[0] for path in COMPILED} | set(STUBS))


def declared(body):
    """Public names of a stub or of a class there, without aliases of types."""
    found = {}
    for node in body:
        if isinstance(node, ast.AnnAssign):
            found[node.target.id] = node
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
    return {name: node for name, node in found.items() if not name.startswith("_")}


def public(module):
    """Public names that a module has of its own."""

    def is_own(value):
        home = getattr(value, "__module__", module.__name__)
        return not isinstance(value, types.ModuleType) and home == module.__name__

    return {k: v for k, v in vars(module).items() if not k.startswith("_") and is_own(v)}


def members(kind):
    """Public names of a class, its own."""
    return {name: value for name, value in vars(kind).items() if not name.startswith("_")}


def shape_of(function):
    """Name, kind and whether it may be left out, of each parameter."""
    return [
        (p.name, p.kind.name, p.default is not p.empty)
        for p in inspect.signature(function).parameters.values()
    ]


def shape_in_stub(node):
    """The same of a function of a stub, by a function with these arguments and no body."""
    arguments = ast.unparse(node.args)
    space = {}
    exec(f"from __future__ import annotations\ndef f({arguments}): ...", space)
    return shape_of(space["f"])


def differences(names, found, where):
    """What is on one side only, and signatures that differ."""
    for name in names.keys() - found.keys():
        yield f"{where}{name} is in the stub alone"
    for name in found.keys() - names.keys():
        yield f"{where}{name} is in no stub"
    for name in names.keys() & found.keys():
        node, value = names[name], found[name]
        if isinstance(node, ast.ClassDef):
            yield from differences(declared(node.body), members(value), f"{where}{name}.")
        elif isinstance(node, ast.FunctionDef) and not node.decorator_list:
            given, wanted = shape_in_stub(node), shape_of(value)
            if given != wanted:
                yield f"{where}{name}: the stub says {given}, the module {wanted}"


@pytest.mark.parametrize("name", MODULES)
def test_a_stub_is_its_module(name):
    module = importlib.import_module(f"epfast._core.{name}")
    stub = STUBS.get(name, ast.Module([], []))
    assert sorted(differences(declared(stub.body), public(module), "")) == []
