#!/usr/bin/env bash
# The long batteries too, of which CI runs a seeded sample: before a change to the core goes in.
#
#   bash tools/long_tests.sh [arguments of pytest]
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec "${PYTHON:-python3}" -m pytest -q -m "long or not long" "$@"
