#!/usr/bin/env bash
# Run every test on JAX, TensorFlow and PyTorch; arguments go to pytest.
set -uo pipefail
cd "$(dirname "$0")/.."

bash tools/environment.sh jax torch test || exit 1
# Three small checkpoints, whose package's dependencies are not needed, and a library whose are there.
.venv/bin/python -m pip install --quiet --no-deps rxnfp==0.1.0 sentence-transformers==6.2.0 || exit 1

export TF_CPP_MIN_LOG_LEVEL=3
status=0
.venv/bin/ruff check . && .venv/bin/ruff format --check . || status=1
summary=()
only=()
for backend in jax tensorflow torch; do
    echo "== Tests on $backend"
    start=$SECONDS
    if KERAS_BACKEND=$backend .venv/bin/python -m pytest -n 2 "${only[@]}" "$@"; then
        result=green
    else
        result=red
        status=1
    fi
    summary+=("$backend: $result, $((SECONDS - start)) s")
    # What no backend is part of has now run.
    only=(--backend-tests-only)
done
echo "== Backends that ran"
printf '%s\n' "${summary[@]}"
exit $status
