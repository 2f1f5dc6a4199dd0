#!/usr/bin/env bash
# Compare every legal combination with an earlier revision: build both, run both, list what differs.
#
#   bash tools/same_as.sh [revision, default 5a57897 (0.1.0)] [arguments of tools/same_results.py compare]
#
# Without --tolerance the bits must agree. PYTHON names the interpreter (default python3).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
revision=${1:-5a57897}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OPENBLAS_NUM_THREADS=1

build() {  # name, source tree
    "$python" -m venv "$work/$1"
    "$work/$1/bin/python" -m pip install -q "$2[sklearn]"
}
git -C "$root" archive --prefix=old-source/ "$revision" | tar -x -C "$work"
build old "$work/old-source"
build new "$root"
cd "$work"
old/bin/python "$root/tools/same_results.py" record recorded.npz
EPFAST_SIMD=baseline old/bin/python "$root/tools/same_results.py" record rounding.npz
new/bin/python "$root/tools/same_results.py" compare recorded.npz --rounding rounding.npz "${@:2}"
