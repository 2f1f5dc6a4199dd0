"""What a reader of epfast meets: on the way of a call, in the source, and in names of one object.

    python tools/count_reader.py [--names]      # --names: where each name is bound, too

Three kinds of counts:

- of a call: the files and functions of ours that it runs through, its Python calls, and the deepest
  stack of them. The call runs once before, so that imports and caches are not counted. Compiled
  code is not counted.
- of the source: see :func:`source_counts`.
- names of an object, from the public function to the core: see :func:`names_of`. The loss of
  ``fit_linear`` is the default argument and every instance of Loss; in the core it is every
  CoreLoss and TiltedMoments. K of ``fit_gp`` is the user's array, its copy, a KernelMatrix, and
  each array of the same size that shares memory with one of these.
"""

import argparse
import ast
import inspect
import io
import sys
import tokenize
import types
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import epfast
from epfast._core.kernel_matrix import KernelMatrix
from epfast._core.loss import CoreLoss
from epfast._core.tilted import TiltedMoments

SOURCE = Path(epfast.__file__).parent
FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef
#: nodes that :func:`source_counts` looks at
COUNTED = ast.Name, ast.arg, ast.AnnAssign, ast.Call, ast.ClassDef, *FUNCTIONS
#: lines of a body from which a function is long
LONG = 60
#: classes whose fields are counted
FIELDS = "Problem", "Counts"
#: what reads attributes by a string
BY_STRING = {"getattr", "hasattr", "vars"}
DESCRIPTORS = types.MemberDescriptorType, types.GetSetDescriptorType


# ---- of a call ----


class Step(NamedTuple):
    """A call of a function of ours."""

    #: relative to the package
    file: str
    function: str
    #: of the calls of ours; 1: called from outside
    depth: int
    code: types.CodeType


def steps_of(call: Callable[[], object], root: Path = SOURCE) -> list[Step]:
    """The calls of functions below a folder, in the order in which they begin."""
    found: list[Step] = []
    depth, prefix = 0, f"{root}/"

    def look(frame: types.FrameType, event: str, _: Any) -> None:
        nonlocal depth
        code = frame.f_code
        if event in ("call", "return") and code.co_filename.startswith(prefix):
            depth += 1 if event == "call" else -1
            if event == "call":
                file = code.co_filename.removeprefix(prefix)
                found.append(Step(file, code.co_qualname, depth, code))

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(before)
    return found


def call_counts(call: Callable[[], object], root: Path = SOURCE) -> Counter[str]:
    """Count what a second call runs through."""
    call()
    steps = steps_of(call, root)
    return Counter(
        files=len({step.file for step in steps}),
        functions=len({step.code for step in steps}),
        calls=len(steps),
        deepest=max((step.depth for step in steps), default=0),
    )


def calls() -> dict[str, Callable[[], object]]:
    """The calls that are counted."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5))
    h = X @ [1.0, -2.0, 0.0, 1.0, 0.0]
    y, z = np.sign(h + rng.logistic(size=200)), h + rng.normal(size=200)
    K = np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(axis=2))
    wide, post = rng.normal(size=(40, 60)), epfast.fit_linear(X, y)
    return {
        "fit_linear": lambda: epfast.fit_linear(X, y),
        "fit_linear, wide": lambda: epfast.fit_linear(wide, y[:40]),
        "fit_gp": lambda: epfast.fit_gp(K, y),
        "predict_proba": lambda: post.predict_proba(X),
        "LinearClassifier": lambda: epfast.LinearClassifier().fit(X, y),
        "LinearRegressor": lambda: epfast.LinearRegressor().fit(X, z),
        "GPClassifier": lambda: epfast.GPClassifier().fit(X[:80], y[:80]),
    }


# ---- of the source ----


class Function(NamedTuple):
    """A function, and the lines of its body without the docstring."""

    lines: int
    file: str
    name: str


class Module(NamedTuple):
    """A module, its text and the nodes of its tree."""

    file: str
    text: str
    nodes: list[ast.AST]


@cache
def modules(root: Path) -> list[Module]:
    """The modules below a folder."""
    found = []
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found.append(
            Module(path.relative_to(root).as_posix(), text, list(ast.walk(ast.parse(text))))
        )
    return found


def annotation_of(node: ast.AST) -> ast.AST | None:
    """The annotation of a parameter or a variable, or of what a function returns."""
    one = node.returns if isinstance(node, FUNCTIONS) else None
    one = node.annotation if isinstance(node, ast.arg | ast.AnnAssign) else one
    if isinstance(one, ast.Constant) and isinstance(one.value, str):
        return ast.parse(one.value, mode="eval")
    return one


def set_on_self(function: ast.AST) -> set[str]:
    """The attributes that a method sets on ``self``."""
    nodes = (node for node in ast.walk(function) if isinstance(node, ast.Attribute))
    stored = (node for node in nodes if isinstance(node.ctx, ast.Store))
    return {node.attr for node in stored if ast.unparse(node.value) == "self"}


def source_counts(root: Path = SOURCE) -> Counter[str]:
    """Count in the modules below a folder.

    - ``Any``: each use of the name; ``parameters``, and of these ``parameters of Any``, whose whole
      annotation is Any
    - ``object``: uses in annotations of parameters, returns and variables
    - ``getattr, hasattr, vars``, ``cast``: calls; ``type: ignore``: comments
    - ``set in visit``: attributes that methods named ``visit`` set on self, once for each class
    - ``fields of Problem``, ``fields of Counts``: annotated names of these classes
    - ``longest function``: lines of its body; ``functions over 60 lines``
    """
    found: Counter[str] = Counter()
    for module in modules(root):
        if "type: ignore" in module.text:
            tokens = tokenize.generate_tokens(io.StringIO(module.text).readline)
            comments = (token.string for token in tokens if token.type == tokenize.COMMENT)
            found["type: ignore"] += sum("type: ignore" in comment for comment in comments)
        for node in module.nodes:
            if isinstance(node, COUNTED):
                for name, count in _of_node(node).items():
                    found[name] += count
    lengths = [function.lines for function in functions(root)]
    found["longest function"] = max(lengths, default=0)
    found[f"functions over {LONG} lines"] = sum(lines > LONG for lines in lengths)
    return found


def _of_node(node: ast.AST) -> dict[str, int]:
    """What one node of a tree adds."""
    found: dict[str, int] = defaultdict(int)
    annotation = annotation_of(node)
    for part in () if annotation is None else ast.walk(annotation):
        found["object"] += isinstance(part, ast.Name) and part.id == "object"
    if isinstance(node, ast.Name):
        found["Any"] += node.id == "Any" and isinstance(node.ctx, ast.Load)
    elif isinstance(node, ast.arg):
        found["parameters"] += 1
        of_any = isinstance(node.annotation, ast.Name) and node.annotation.id == "Any"
        found["parameters of Any"] += of_any
    elif isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        called = node.func.id if isinstance(node.func, ast.Name) else called
        found["getattr, hasattr, vars"] += called in BY_STRING
        found["cast"] += called == "cast"
    elif isinstance(node, ast.ClassDef):
        methods = [part for part in node.body if isinstance(part, FUNCTIONS)]
        visits = [set_on_self(part) for part in methods if part.name == "visit"]
        found["set in visit"] += len(set().union(*visits))
        if node.name in FIELDS:
            fields = [part for part in node.body if isinstance(part, ast.AnnAssign)]
            own = [part for part in fields if "ClassVar" not in ast.unparse(part.annotation)]
            found[f"fields of {node.name}"] += len(own)
    return found


def functions(root: Path = SOURCE) -> list[Function]:
    """All functions below a folder, the longest first."""
    found = []
    for module in modules(root):
        for node in module.nodes:
            if isinstance(node, FUNCTIONS):
                body = node.body[ast.get_docstring(node) is not None :]
                lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
                found.append(Function(lines, module.file, node.name))
    return sorted(found, reverse=True)


# ---- names of one object ----


def parts_of(value: Any, package: str) -> dict[str, Any]:
    """What an instance of a class of ours holds, or a dict of arguments, by name."""
    if isinstance(value, dict):
        return {name: part for name, part in value.items() if isinstance(name, str)}
    kind = type(value)
    if kind.__module__.split(".")[0] != package:
        return {}
    if isinstance(value, tuple):
        return dict(zip(getattr(kind, "_fields", ()), value, strict=False))
    slots = (name for name, one in vars(kind).items() if isinstance(one, DESCRIPTORS))
    found = {name: getattr(value, name, None) for name in slots if not name.startswith("__")}
    return found | getattr(value, "__dict__", {})


def names_of(
    is_object: Callable[[Any], bool], call: Callable[[], object], root: Path = SOURCE
) -> dict[str, set[str]]:
    """The names that an object has while a call runs, and where each is bound.

    After each line of each function below a folder these names count:

    - parameters and variables whose value is the object
    - attributes and fields, by their last name, of instances of classes of ours which a parameter
      or a variable is, where their value is the object: ``self.problem.loss`` is ``loss``
    - keys of dicts of arguments, ``{"wide": rows}``, which a parameter or a variable is

    The object's own ``self`` does not count, nor do places in plain tuples and lists.
    """
    found: dict[str, set[str]] = {}
    prefix, package = f"{root}/", root.name

    def look(frame: types.FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(prefix):
            return None
        here = f"{code.co_filename.removeprefix(prefix)}: {code.co_qualname}"
        for name, value in dict(frame.f_locals).items():
            if is_object(value) and name not in ("self", "cls"):
                found.setdefault(name, set()).add(here)
            for inner, part in parts_of(value, package).items():
                if is_object(part):
                    place = here if isinstance(value, dict) else type(value).__name__
                    found.setdefault(inner, set()).add(place)
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        call()
    finally:
        sys.settrace(before)
    return found


def objects() -> dict[str, dict[str, set[str]]]:
    """Names of the objects that are followed."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)  # slices of K are smaller than K
    y = np.sign(np.sin(2.0 * x) + 0.5 * rng.normal(size=300))
    X, K = np.stack([x, x**2], axis=1), 4.0 * np.exp(-0.5 * np.subtract.outer(x, x) ** 2)
    default = inspect.signature(epfast.fit_linear).parameters["loss"].default
    buffers = [K]

    def is_loss(value: Any) -> bool:
        return value is default or isinstance(value, epfast.losses.Loss)

    def is_kernel(value: Any) -> bool:
        if isinstance(value, KernelMatrix):
            return True
        if not isinstance(value, np.ndarray) or value.size != K.size:
            return False
        if not any(np.may_share_memory(value, buffer) for buffer in buffers):
            if not np.array_equal(value, K):
                return False
            buffers.append(value)  # a copy, and what it becomes
        return True

    return {
        "loss in fit_linear": names_of(is_loss, lambda: epfast.fit_linear(X, y)),
        "loss in the core, in fit_linear": names_of(
            lambda value: isinstance(value, CoreLoss | TiltedMoments),
            lambda: epfast.fit_linear(X, y),
        ),
        "K in fit_gp": names_of(is_kernel, lambda: epfast.fit_gp(K, y)),
    }


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--names", action="store_true", help="where each name is bound")
    wanted = parser.parse_args()
    warnings.simplefilter("ignore")
    columns = "files", "functions", "calls", "deepest"
    print(f"{'call':<20}" + "".join(f"{column:>10}" for column in columns))
    for name, call in calls().items():
        found = call_counts(call)
        print(f"{name:<20}" + "".join(f"{found[column]:>10,}" for column in columns))
    print()
    for name, count in sorted(source_counts().items()):
        print(f"{name:<26}{count:>8,}")
    for one in functions()[:8]:
        print(f"{one.lines:>8}  {one.file}: {one.name}")
    for what, names in objects().items():
        print(f"\nnames of {what}: {len(names)}: {', '.join(sorted(names))}")
        for name, places in sorted(names.items()) if wanted.names else ():
            print(f"  {name:<14}{', '.join(sorted(places))}")


if __name__ == "__main__":
    main()
