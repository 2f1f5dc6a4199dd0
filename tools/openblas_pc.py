"""Write scipy-openblas.pc into a directory, for a build with -Dlapack=openblas.

The file points into the scipy-openblas32 of the Python that runs this, with a run path, so that
auditwheel, delocate and delvewheel find the library and vendor it.

    python -m pip install scipy-openblas32==0.3.34.481.3
    python tools/openblas_pc.py DIRECTORY          # then PKG_CONFIG_PATH=DIRECTORY
"""

import shutil
import sys
from pathlib import Path

import scipy_openblas32

directory = Path(sys.argv[1])
directory.mkdir(parents=True, exist_ok=True)
(directory / "scipy-openblas.pc").write_text(scipy_openblas32.get_pkg_config())
# Windows has no run path: delvewheel gets the directory that holds the library.
for library in Path(scipy_openblas32.get_lib_dir()).glob("*.dll"):
    shutil.copy(library, directory)
