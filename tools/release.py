"""What must hold before a release, checked step by step; RELEASING.md says what a person does.

    python tools/release.py                    # all steps, some hours; --list names them
    python tools/release.py version wheels     # some of them
    python tools/release.py --links README.md  # write absolute links into a file, in place

Interpreters of the wheels are those that EPFAST_PYTHONS names, separated by colons (default: this
one). A step that lacks a tool says so, and counts as not passed. Runs on Linux, from a clone.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
#: what a wheel holds beside code: (pattern, why)
CONTENTS = [
    (r"epfast/py\.typed", "type checkers read the hints"),
    (r"epfast/_core/\w+\.pyi", "stubs of the core"),
    (r"epfast/_core/\w+\.pxd", "for `cimport epfast`"),
    (r"epfast-[\d.]+\.dist-info/licenses/LICENSE", "our licence"),
    (r"epfast/LICENSE-openblas\.txt", "the licences of what is vendored"),
    (r"epfast\.libs/libscipy_openblas\S*\.so", "OpenBLAS itself"),
]
#: what it must not hold
NOT_CONTENTS = r"(^|/)(tests?|bench|docs)/|\.(c|pyx|o)$"
#: bytes of a wheel at the most
LARGEST = 20_000_000
#: a command of README: extras of pyproject.toml, and a module to run
COMMAND = r'(?:python -m )?pip install "\.\[([a-z,]+)\]" && python -m ([^`\n]+)'
DATA = """
import numpy as np
import epfast
rng = np.random.default_rng(0)
X = rng.normal(size=(60, 2))
y = np.where(X[:, 0] + rng.logistic(size=60) > 0, 1, -1)
"""
#: what each extra is for: where nothing else is installed, python runs this
PROGRAMS = {
    "sklearn": """
for kind in ("Linear", "GP", "Network"):
    getattr(epfast, kind + "Classifier")().fit(X, y).predict_proba(X)
    getattr(epfast, kind + "Regressor")().fit(X, X[:, 0] + rng.normal(size=60)).predict(X)
""",
    "plot": """
from epfast import plots
post = epfast.fit_linear(X, y)
plots.coefficients(post)
plots.check(post.check())
plots.calibration(y, post.predict_proba(X))
""",
    "arviz": """
import arviz
print(arviz.summary(epfast.fit_linear(X, y).to_arviz()))
""",
    "formula": """
import pandas
from epfast import formula
frame = pandas.DataFrame({"x": X[:, 0], "y": y > 0, "g": rng.integers(0, 6, 60)})
print(formula.fit("y ~ x + (1 | g)", frame, family="bernoulli").summary())
""",
    "dask": """
import dask.array, dask.dataframe, distributed, pandas, epfast.dask
with distributed.Client(processes=False, dashboard_address=None):
    rows, labels = dask.array.from_array(X, (30, 2)), dask.array.from_array(y, 30)
    epfast.dask.LinearClassifier().fit(rows, labels).predict(rows).compute()
    frame = dask.dataframe.from_pandas(pandas.DataFrame({"a": X[:, 0], "y": y}), npartitions=2)
    print(epfast.dask.fit_linear(frame[["a"]], frame["y"]))
""",
}
PROGRAMS["all"] = "".join(PROGRAMS.values()) + "epfast.fit_linear(X, y, progress=True)"
PROGRAMS["gpy"] = """
import GPy, epfast.gpy
bernoulli = GPy.likelihoods.Bernoulli()
ep = epfast.gpy.EP()
GPy.core.GP(X, (y[:, None] + 1) / 2, GPy.kern.RBF(2), bernoulli, inference_method=ep).optimize()
"""
USES = {name: ("-c", DATA + program) for name, program in PROGRAMS.items()}
USES["test"] = ("-m", "pytest", "-n", "auto")
USES["docs"] = ("-m", "sphinx", "-W", "docs", "docs/_build/html")
USES["dev"] = ("-m", "mypy")


class NotPassedError(Exception):
    """Why a step does not hold."""


def run(*command: str | Path, **environment: str) -> None:
    """Run a command in the tree, and show what it prints."""
    env = {**os.environ, **environment}
    if subprocess.run(list(map(str, command)), cwd=ROOT, env=env).returncode:
        raise NotPassedError(f"failed: {' '.join(map(str, command))}")


def said(*command: str) -> str:
    """What a command prints."""
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return found.stdout.strip()


def need(condition: object, why: str) -> None:
    """Fail unless a condition holds."""
    if not condition:
        raise NotPassedError(why)


def read(name: str) -> str:
    """A file of the tree."""
    return (ROOT / name).read_text(encoding="utf-8")


def version() -> str:
    """The version in meson.build, the only place where it is written."""
    (found,) = re.findall(r"^  version: '([^']+)'", read("meson.build"), re.M)
    return found


def homepage() -> str:
    """The address of the repository."""
    return tomllib.loads(read("pyproject.toml"))["project"]["urls"]["Homepage"]


def absolute(text: str, home: str, revision: str) -> str:
    """Markdown whose links lead to a revision of the repository, wherever the text is shown."""

    def link(match: re.Match[str]) -> str:
        picture, target = match.groups(default="")
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        return f"{picture}]({home}/{'raw' if picture else 'blob'}/{revision}/{target})"

    return re.sub(r"(!\[[^\]]*)?\]\(([^)\s]+)\)", link, text)


# ---- steps ----


def check_tree() -> None:
    """Nothing is uncommitted."""
    need(not said("git", "status", "--porcelain"), "there are uncommitted changes")


def check_version() -> None:
    """meson.build, CHANGELOG and CITATION name one version, which has no tag yet; OWNER is gone."""
    now = version()
    heads = re.findall(r"^## \[([^\]]+)\](.*)$", read("CHANGELOG.md"), re.M)
    need(heads[0][0] == now, f"CHANGELOG.md begins with [{heads[0][0]}], meson.build has {now}")
    need(re.search(r"\d{4}-\d{2}-\d{2}", heads[0][1]), f"CHANGELOG.md has no date for {now}")
    need(f"\nversion: {now}\n" in read("CITATION.cff"), f"CITATION.cff has no 'version: {now}'")
    need(f"v{now}" not in said("git", "tag").split(), f"there is a tag v{now} already")
    need("OWNER" not in homepage(), "pyproject.toml: OWNER stands for the owner of the repository")


def check_workflows() -> None:
    """Workflows, forms of issues and the citation follow their schemas; cibuildwheel takes ours."""
    check = tool("check-jsonschema"), "--builtin-schema"
    flows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    run(*check, "vendor.github-workflows", *flows)
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
    run(*check, "vendor.github-issue-forms", *forms)
    run(tool("cffconvert"), "--validate", "-i", "CITATION.cff")
    for platform in ("linux", "macos", "windows"):
        run(tool("cibuildwheel"), "--print-build-identifiers", "--platform", platform)


def check_ci() -> None:
    """README's commands, tests under each instruction set, linters, types, documentation."""
    run("bash", ".ci/run")


def check_long() -> None:
    """All cases of tests, sanitizers, kills while a file is written."""
    run(sys.executable, "-m", "pip", "install", "-q", ".[test]")
    run(sys.executable, "-m", "pytest", "-q", "-n", "auto", "--tier", "long")
    run("bash", "tools/sanitize.sh")
    run(sys.executable, "tools/kill_save.py")


def check_sdist() -> None:
    """The source distribution, with absolute links, builds and runs the demo in an empty place."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run("git", "clone", "-q", ROOT, folder / "clone")
        readme = folder / "clone" / "README.md"
        links(readme)
        identity = ("-c", "user.name=release", "-c", "user.email=release@localhost")
        git = ("git", "-C", folder / "clone", *identity)
        run(*git, "commit", "-q", "--allow-empty", "-am", "Absolute links")  # an sdist is of HEAD
        run(tool("build").with_name("pyproject-build"), "-s", "-o", DIST, folder / "clone")
        (sdist,) = DIST.glob(f"epfast-{version()}.tar.gz")
        run(tool("twine"), "check", "--strict", sdist)
        run(sys.executable, "-m", "venv", folder / "env")
        python = folder / "env" / "bin" / "python"
        run(python, "-m", "pip", "install", "-q", f"{sdist}[sklearn,plot]")
        run(python, "-m", "epfast", "demo", "--pictures", folder)


def check_readme() -> None:
    """Each command of README, to the letter, in a clone and an environment of its own."""
    for command in re.finditer(COMMAND, read("README.md")):
        with tempfile.TemporaryDirectory() as name:
            run("git", "clone", "-q", ROOT, f"{name}/clone")
            run(sys.executable, "-m", "venv", f"{name}/env")
            path = os.pathsep.join([f"{name}/env/bin", os.environ["PATH"]])
            run("bash", "-c", f"cd {name}/clone && {command[0]}", PATH=path)


def check_extras() -> None:
    """Each extra, in an environment with nothing else, does what it is for."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT)
        (wheel,) = folder.glob("*.whl")
        for extra in tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]:
            print(f"-- {extra}", flush=True)
            run(sys.executable, "-m", "venv", folder / extra)
            python = folder / extra / "bin" / "python"
            run(python, "-m", "pip", "install", "-q", f"{wheel}[{extra}]")
            run(python, *USES[extra])


def check_wheels() -> None:
    """A wheel for each interpreter: built, repaired, tested in an empty place, what it holds."""
    for python in os.environ.get("EPFAST_PYTHONS", sys.executable).split(":"):
        before = set(DIST.glob("*.whl"))
        run("bash", "tools/build_wheel.sh", DIST, PYTHON=python)
        for wheel in set(DIST.glob("*.whl")) - before:
            check_wheel(wheel)
            run(tool("twine"), "check", "--strict", wheel)


def check_wheel(wheel: Path) -> None:
    """One of them: its files and its size."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for pattern, why in CONTENTS:
        need(any(re.fullmatch(pattern, n) for n in names), f"{wheel.name} lacks {pattern}: {why}")
    extra = [n for n in names if re.search(NOT_CONTENTS, n)]
    need(not extra, f"{wheel.name} holds {extra[:3]}")
    size = wheel.stat().st_size
    need(size <= LARGEST, f"{wheel.name} has {size} bytes; at most {LARGEST}")


def check_elsewhere() -> None:
    """The C of the core compiles with clang and musl, for aarch64 and for Windows."""
    with tempfile.TemporaryDirectory() as name:
        build = f"{name}/build"
        run(sys.executable, "-m", "pip", "install", "-q", "meson", "ninja", "cython>=3.2")
        run("meson", "setup", build, "--buildtype=release")
        run("meson", "compile", "-C", build)
        run(sys.executable, "tools/compile_elsewhere.py", build)


def check_docs() -> None:
    """Pages without a warning, their links and sizes, and axe-core's rules on all of them."""
    axe = os.environ.get("AXE", "axe.min.js")
    need(Path(axe).exists(), "AXE names no axe.min.js, of the npm package axe-core")
    run(sys.executable, "-m", "pip", "install", "-q", ".[docs]", "playwright")
    run(sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "docs", "docs/_build/html")
    run(sys.executable, "tools/check_pages.py", "docs/_build/html")
    run(sys.executable, "tools/check_accessibility.py", "docs/_build/html", axe)


def check_history() -> None:
    """Instructions of short tasks, beside those of earlier revisions, are on record."""
    run(sys.executable, "-m", "pip", "install", "-q", ".[sklearn,plot]")
    run(sys.executable, "-m", "bench", "history")
    print("commit bench/results/history.json")


STEPS: dict[str, Callable[[], None]] = {
    "tree": check_tree,
    "version": check_version,
    "workflows": check_workflows,
    "ci": check_ci,
    "long": check_long,
    "readme": check_readme,
    "extras": check_extras,
    "sdist": check_sdist,
    "wheels": check_wheels,
    "elsewhere": check_elsewhere,
    "docs": check_docs,
    "history": check_history,
}


def tool(name: str) -> Path:
    """A program from PyPI, in an environment of its own below build/."""
    folder = ROOT / "build" / "tools" / name
    program = folder / "bin" / name
    if not program.exists():
        run(sys.executable, "-m", "venv", folder)
        run(folder / "bin" / "python", "-m", "pip", "install", "-q", name)
    return program


def links(path: Path) -> None:
    """Write absolute links into a file."""
    text = path.read_text(encoding="utf-8")
    path.write_text(absolute(text, homepage(), f"v{version()}"), encoding="utf-8")


def main() -> int:
    """See the module; the exit status is the number of steps that did not pass."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("steps", nargs="*", help="which (default: all)")
    parser.add_argument("--list", action="store_true", help="name the steps")
    parser.add_argument("--links", type=Path, metavar="FILE", help="make its links absolute")
    options = parser.parse_args()
    if unknown := set(options.steps) - set(STEPS):
        parser.error(f"no step {', '.join(sorted(unknown))}; those there are: {', '.join(STEPS)}")
    if options.links:
        links(options.links)
        return 0
    if options.list:
        for name, step in STEPS.items():
            print(f"{name:10} {step.__doc__}")
        return 0
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    DIST.mkdir(exist_ok=True)
    verdicts = {}
    for name in options.steps or STEPS:
        print(f"\n== {name}: {STEPS[name].__doc__}", flush=True)
        start = time.monotonic()
        try:
            STEPS[name]()
            verdicts[name] = "passed"
        except NotPassedError as failure:
            verdicts[name] = f"NOT PASSED: {failure}"
        verdicts[name] += f" ({time.monotonic() - start:.0f} s)"
    print()
    for name, verdict in verdicts.items():
        print(f"{name:10} {verdict}")
    return sum("NOT PASSED" in verdict for verdict in verdicts.values())


if __name__ == "__main__":
    sys.exit(main())
