"""Steps before a release tell what holds from what does not."""

import importlib.util
import re
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
PATH = ROOT / "tools" / "release.py"
if not PATH.exists():
    pytest.skip("needs the tools of the source tree", allow_module_level=True)
spec = importlib.util.spec_from_file_location("release", PATH)
release = importlib.util.module_from_spec(spec)
spec.loader.exec_module(release)

HOME = "https://example.org/epfast"


def test_links_become_absolute():
    text = "[a](docs/x.rst) [b](https://a.org/) [c](#how) ![d](p.png) [e](B.md#f) code](no)"
    assert release.absolute(text, HOME, "v1") == (
        f"[a]({HOME}/blob/v1/docs/x.rst) [b](https://a.org/) [c](#how) "
        f"![d]({HOME}/raw/v1/p.png) [e]({HOME}/blob/v1/B.md#f) code]({HOME}/blob/v1/no)"
    )


def test_readme_has_no_relative_link_left(tmp_path):
    path = tmp_path / "README.md"
    path.write_text((ROOT / "README.md").read_text(encoding="utf-8"), encoding="utf-8")
    release.links(path)
    targets = re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
    assert len(targets) >= 4
    assert all(target.startswith(("http", "#")) for target in targets)
    release.links(path)  # a second time changes nothing
    assert re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")) == targets


WHOLE = [
    "epfast/py.typed",
    "epfast/_core/vector.pyi",
    "epfast/_core/lapack.pxd",
    "epfast-1.2.3.dist-info/licenses/LICENSE",
    "epfast/LICENSE-openblas.txt",
    "epfast.libs/libscipy_openblas-b396d74f.so",
]


def wheel(folder, names):
    path = folder / "epfast-1.2.3-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return path


def test_a_whole_wheel(tmp_path):
    release.check_wheel(wheel(tmp_path, WHOLE))


@pytest.mark.parametrize("name", WHOLE)
def test_a_wheel_that_lacks_a_file(tmp_path, name):
    path = wheel(tmp_path, [other for other in WHOLE if other != name])
    with pytest.raises(release.NotPassedError, match="lacks"):
        release.check_wheel(path)


@pytest.mark.parametrize("name", ["tests/test_a.py", "epfast/tests/a.py", "epfast/_core/a.c"])
def test_a_wheel_with_more_than_it_should(tmp_path, name):
    with pytest.raises(release.NotPassedError, match="holds"):
        release.check_wheel(wheel(tmp_path, [*WHOLE, name]))


def test_a_wheel_that_is_too_large(tmp_path, monkeypatch):
    path = wheel(tmp_path, WHOLE)
    monkeypatch.setattr(release, "LARGEST", path.stat().st_size - 1)
    with pytest.raises(release.NotPassedError, match="bytes; at most"):
        release.check_wheel(path)


VERSIONED = {
    "meson.build": "project('epfast',\n  version: '1.2.3',  # here\n",
    "CHANGELOG.md": "# Changelog\n\n## [1.2.3] - 2026-01-31\n",
    "CITATION.cff": "cff-version: 1.2.0\nversion: 1.2.3\n",
    "pyproject.toml": f'[project.urls]\nHomepage = "{HOME}"\n',
}


def check_version(folder, monkeypatch, tags="", **changes):
    for name, text in {**VERSIONED, **changes}.items():
        (folder / name).write_text(text)
    monkeypatch.setattr(release, "ROOT", folder)
    monkeypatch.setattr(release, "said", lambda *command: tags)
    release.check_version()


def test_one_version(tmp_path, monkeypatch):
    check_version(tmp_path, monkeypatch, tags="v1.2.2")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"CHANGELOG.md": "## [Unreleased]\n"}, r"begins with \[Unreleased\]"),
        ({"CHANGELOG.md": "## [1.2.3] - unreleased\n"}, "no date"),
        ({"CITATION.cff": "cff-version: 1.2.0\nversion: 1.2.2\n"}, "CITATION"),
        ({"tags": "v1.2.2\nv1.2.3"}, "a tag v1.2.3 already"),
        ({"pyproject.toml": '[project.urls]\nHomepage = "https://a.org/OWNER/b"\n'}, "OWNER"),
    ],
)
def test_versions_that_differ(tmp_path, monkeypatch, changes, why):
    with pytest.raises(release.NotPassedError, match=why):
        check_version(tmp_path, monkeypatch, **changes)


def test_owner_stands_in_one_file():
    """Of what a release replaces; the tools that look for it and pages about it name it too."""
    patterns = "*.md", "*.toml", "*.cff", ".github/**/*.yml", "docs/*.*", "src/**/*.py"
    files = [path for pattern in patterns for path in ROOT.glob(pattern)]
    holding = {path.name for path in files if "OWNER/" in path.read_text(encoding="utf-8")}
    assert holding == {"pyproject.toml"}


def test_each_extra_has_a_use():
    project = release.tomllib.loads(release.read("pyproject.toml"))["project"]
    assert release.USES.keys() == project["optional-dependencies"].keys()


def test_commands_of_readme_run_at_each_change():
    """The second to the letter, with nothing of ours in its environment; the others by parts."""
    script = release.read(".ci/run")
    first, second, third = re.finditer(release.COMMAND, release.read("README.md"))
    before, found, _ = script.partition(f"\n({second[0]})\n")
    assert found
    assert "export" not in before
    for command in (first, third):
        extras, program = command.groups()
        assert re.search(rf"^ +alone \w+ {extras} -m {program}\b", script, re.M)
