#!/usr/bin/env bash
# Build epfast so that it checks itself, and run the tests on that build in a temporary environment.
#
#   bash tools/sanitize.sh           AddressSanitizer and UndefinedBehaviorSanitizer, fatal
#   bash tools/sanitize.sh --bounds  Cython's index checks and C asserts on, warnings are errors
#
# Further arguments go to pytest. PYTHON names the interpreter (default python3).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset PYTHONPATH LD_LIBRARY_PATH

# Compiler warnings are errors in both builds.
setup=(-Csetup-args=--werror -Csetup-args=-Dbuildtype=debugoptimized -Cbuild-dir="$work/build")
run=(env)
if [ "${1:-}" = --bounds ]; then
    shift
    setup+=(-Csetup-args=-Dbounds_checks=true)
    tests=(-W error)
else
    # The interpreter is not instrumented, so the runtime has to be loaded before it, with
    # libstdc++ beside it for the exceptions of other packages. Python itself leaks by design.
    setup+=(
        -Csetup-args=-Db_sanitize=address,undefined -Csetup-args=-Db_lundef=false
        -Csetup-args=-Dc_args=-fno-sanitize-recover=undefined
    )
    cc=${CC:-gcc}
    run+=(
        LD_PRELOAD="$($cc -print-file-name=libasan.so) $($cc -print-file-name=libstdc++.so)"
        ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc
    )
    # By default pytest captures stderr itself, and a fatal report would die with it.
    tests=(--capture=sys)
fi

"$python" -m venv "$work/env"
export PATH=$work/env/bin:$PATH
python -m pip install -q meson-python meson ninja 'cython>=3.1' numpy scipy
python -m pip install -q "$root[test]" --no-build-isolation "${setup[@]}"

# Outside the source tree; the benches' NumPy reference is a test oracle.
mkdir "$work/run"
cp -r "$root/pyproject.toml" "$root/tests" "$work/run/"
[ -d "$root/bench" ] && cp -r "$root/bench" "$work/run/"
cd "$work/run"
"${run[@]}" python -c 'from epfast import backend; print(backend.build_config())'
# Slow tests check numbers at length; the paths of the core that they take others take as well.
"${run[@]}" python -m pytest -q -p no:cacheprovider -m "not slow" "${tests[@]}" "$@"
