"""The house of the source, read with ast: who may import whom, and what stays in its file."""

import ast
import re
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import epfast

TREE = Path(__file__).parents[1] / "src" / "epfast"
ROOT = TREE if TREE.is_dir() else Path(epfast.__file__).parent
FILES = [path for path in sorted(ROOT.rglob("*.py*")) if path.suffix in (".py", ".pyi")]
OPTIONAL = {"threadpoolctl", "tqdm", "sklearn", "matplotlib", "GPy", "dask"}
OPTIONAL |= {"pandas", "xarray", "arviz", "arviz_stats", "formulae"}
#: underscores of others: named tuples, older scikit-learn
PUBLIC = {"_replace", "_asdict", "_fields", "_make", "_validate_data"}

#: from the ground up; a room may import those below it, not its neighbours
FLOORS = """_core / _arrays / _checks / losses priors schedules families _games / schemes inference
    / operators / gaussian / graph parametric / storage backend _league / svm / estimators
    / formula gpy dask rating plots / __init__ / _demo / __main__"""
FLOOR = {room: k for k, floor in enumerate(FLOORS.split("/")) for room in floor.split()}
#: what graphs and networks may import of gaussian
OF_GAUSSIAN = {
    "problem",
    "prior",
    "rows",
    "state",
    "forms",
    "engine",
    "orders",
    "shards",
    "table",
    "choices",
    "files",
}
OF_GAUSSIAN |= {"sparse"}
#: names that users know in two places: of a family and of a likelihood or a prior, and of what
#: stands in for a class
TWICE = {"Gaussian", "Gamma", "EP", "LinearClassifier", "LinearRegressor", "ConvergenceWarning"}
#: the files of gaussian, from the ground up; forms by themselves, below
RISE = """state rows files sparse
    / prior / problem
    / notes sources checking
    / factor engine / accelerate orders
    / passes / forms / double_loop shards / table
    / diagnostics online / posterior
    / linear_posterior
    / process_posterior
    / average latent_posterior nearest sparse_posterior wide_posterior
    / fit_linear shrunk_posterior
    / fit_hyper / low_rank / fit_gp / fit_hyper_gp / __init__"""
FORMS = "kernel nested weights / diagonal nearest sparse stack / __init__"
#: those of operators and of graph, where imports for types go down, too: factors know variables and
#: beliefs, and neither the graph nor the posterior
OPERATORS = """messages / learners tilted / importance laplace quadrature / oracles
    / sampled / resolve / just_in_time / scheme / __init__"""
GRAPH = """limit variables / arguments beliefs marginals / factors / learned / own / catalogue
    / blocks training / sparse_blocks / model / problem / checking engine priors / files / posterior
    / joint / fit / __init__"""


CATALOGUE = """category compound_gamma linear noise product scale steps
    / between logistic_link mixture table transition walk / __init__"""


def floors_of(text):
    return {name: k for k, floor in enumerate(text.split("/")) for name in floor.split()}


#: by folder, and whether files of one floor may import one another
FLOORS_OF = {
    ("gaussian",): (floors_of(RISE), True),
    ("gaussian", "forms"): (floors_of(FORMS), True),
    ("operators",): (floors_of(OPERATORS), False),
    ("graph",): (floors_of(GRAPH), False),
    ("graph", "catalogue"): (floors_of(CATALOGUE), False),
}


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts if parts == ("__init__",) or parts[-1] != "__init__" else parts[:-1]


MODULES = {module_of(path): path for path in FILES}
TREES = {module: ast.parse(path.read_text()) for module, path in MODULES.items()}


def targets(node):
    """Modules of ours that an import statement names, as tuples."""
    if isinstance(node, ast.Import):
        names = [alias.name.split(".") for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        whole = node.module.split(".")
        names = [[*whole, alias.name] for alias in node.names]
        names = [n if tuple(n[1:]) in MODULES or whole == ["epfast"] else whole for n in names]
    else:
        return []
    names = [tuple(name[1:]) for name in names if name[0] == "epfast"]
    return [name if name in MODULES else ("__init__",) for name in names]


def only_for_types(tree):
    """What stands under ``if TYPE_CHECKING``."""
    blocks = (node for node in ast.walk(tree) if isinstance(node, ast.If))
    blocks = (node for node in blocks if "TYPE_CHECKING" in ast.unparse(node.test))
    return {id(inner) for block in blocks for inner in ast.walk(block)}


ARROWS = sorted(
    {(a, b) for a, tree in TREES.items() for node in ast.walk(tree) for b in targets(node)}
)


def test_imports_go_down():
    for module, target in ARROWS:
        room = module[0]
        if target[0] != room:
            assert FLOOR[target[0]] < FLOOR[room], f"{room} imports {target[0]}"
            if target[0] == "gaussian" and room in ("graph", "parametric"):
                assert set(target[1:2]) & OF_GAUSSIAN, f"{room} imports {target}"
        else:
            folder = module[:2] if module[:2] == target[:2] and module[:2] in FLOORS_OF else (room,)
            if folder in FLOORS_OF:
                floors, level = FLOORS_OF[folder]
                above, below = ((*name, "__init__")[len(folder)] for name in (module, target))
                least = floors[below] if level else floors[below] + 1
                assert least <= floors[above], f"{module} imports {target}"


@pytest.mark.parametrize("folder", FLOORS_OF, ids="/".join)
def test_every_file_has_a_floor(folder):
    k = len(folder)
    names = {(*module[k:], "__init__")[0] for module in MODULES if module[:k] == folder}
    assert names == set(FLOORS_OF[folder][0])


def test_no_class_has_the_name_of_another():
    trees = [tree for module, tree in TREES.items() if MODULES[module].suffix == ".py"]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    names = Counter(node.name for node in nodes)
    assert {name for name, count in names.items() if count > 1} == TWICE


def test_no_circles():
    graph = {}
    for module, tree in TREES.items():
        types = only_for_types(tree)
        found = (b for node in ast.walk(tree) if id(node) not in types for b in targets(node))
        graph[module] = {target for target in found if target != module}
    list(TopologicalSorter(graph).static_order())


def test_the_core_imports_nothing_of_ours():
    for path in (ROOT / "_core").rglob("*.p*"):
        if path.suffix in (".pyx", ".pxd", ".pyi", ".py"):
            found = re.findall(r"^\s*(?:from|c?import) +(epfast\S*)", path.read_text(), re.M)
            assert all(name.startswith("epfast._core") for name in found), path


def test_imports_stand_at_the_top():
    functions = [
        (module, node)
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    ]
    for module, function in functions:
        if (module, function.name) == (("__init__",), "__getattr__"):  # names that need an extra
            continue
        for node in ast.walk(function):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= OPTIONAL, (module, function.name)


def test_private_names_stay_in_their_file():
    for module, tree in TREES.items():
        check_private_names("/".join(module), tree)


def check_private_names(module, tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "epfast":
            private = {alias.name for alias in node.names if is_private(alias.name)}
            assert private <= set(FLOOR), f"{module}: {private}"
    named = (ast.FunctionDef, ast.ClassDef)
    own = {node.name for node in ast.walk(tree) if isinstance(node, named)}
    own |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    stored = (node for node in ast.walk(tree) if isinstance(getattr(node, "ctx", None), ast.Store))
    own |= {getattr(node, "attr", getattr(node, "id", "")) for node in stored}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            inherited = ast.unparse(node.value) in ("self", "cls", "super()")
            allowed = node.attr in own | PUBLIC | set(FLOOR)
            assert inherited or allowed, f"{module}: {ast.unparse(node)}"


def is_private(name):
    return name.startswith("_") and not name.endswith("__")
