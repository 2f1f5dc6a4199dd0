"""Prepare this Python environment for a build with -Dlapack=openblas.

Installs scipy-openblas32 and writes scipy-openblas.pc into a directory, and beside it the licences
that a wheel has to carry. The file points into the environment, with a run path, so that auditwheel
and delocate find the library and vendor it.

    python tools/openblas_pc.py DIRECTORY          # then PKG_CONFIG_PATH=DIRECTORY
"""

import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

packages = ["scipy-openblas32==0.3.34.481.3"]
if shutil.which("pkg-config") is None:
    packages.append("pkgconf")  # a pkg-config from PyPI
subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *packages], check=True)

import scipy_openblas32  # noqa: E402

directory = Path(sys.argv[1])
directory.mkdir(parents=True, exist_ok=True)
(directory / "scipy-openblas.pc").write_text(scipy_openblas32.get_pkg_config())
for file in importlib.metadata.files("scipy-openblas32") or ():
    if file.name == "LICENSE.txt":
        shutil.copy(file.locate(), directory / "LICENSE-openblas.txt")
# Windows has no run path: delvewheel is given the directory that holds the library.
for library in Path(scipy_openblas32.get_lib_dir()).glob("*.dll"):
    shutil.copy(library, directory)
