#!/usr/bin/env bash
# Build epfast so that it checks itself, and run the tests on that build in a temporary environment:
# AddressSanitizer and UndefinedBehaviorSanitizer, both fatal, Cython's index checks, C asserts, and
# warnings of the compiler and of Python as errors.
#
#   bash tools/sanitize.sh [arguments of pytest]
#
# PYTHON names the interpreter (default python3).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset PYTHONPATH LD_LIBRARY_PATH

setup=(
    -Csetup-args=--werror -Csetup-args=-Doptimization=1 -Csetup-args=-Ddebug=true
    -Csetup-args=-Dbounds_checks=true
    -Csetup-args=-Db_sanitize=address,undefined -Csetup-args=-Db_lundef=false
    -Csetup-args=-Dc_args=-fno-sanitize-recover=undefined
    -Cbuild-dir="$work/build"
)
# The interpreter is not instrumented, so the runtime has to be loaded before it, with libstdc++
# beside it for the exceptions of other packages. Python itself leaks by design.
cc=${CC:-gcc}
run=(
    env LD_PRELOAD="$($cc -print-file-name=libasan.so) $($cc -print-file-name=libstdc++.so)"
    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc
)

"$python" -m venv "$work/env"
export PATH=$work/env/bin:$PATH
python -m pip install -q 'pip>=23.1' meson-python meson ninja 'cython>=3.2' numpy scipy
python -m pip install -q "$root[test]" --no-build-isolation "${setup[@]}"

# Outside the source tree; the benches' NumPy reference is a test oracle.
mkdir "$work/run"
cp -r "$root/pyproject.toml" "$root/tests" "$root/tools" "$work/run/"
[ -d "$root/bench" ] && cp -r "$root/bench" "$work/run/"
cd "$work/run"
"${run[@]}" python -c 'from epfast import backend; print(backend.build_config())'
# By default pytest captures stderr itself, and a fatal report would die with it.
"${run[@]}" python -m pytest -q -p no:cacheprovider -W error \
    -W ignore::epfast.DataWarning --capture=sys "$@"
