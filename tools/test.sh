#!/usr/bin/env bash
# Run every test on JAX, TensorFlow and PyTorch; arguments go to pytest.
set -uo pipefail
cd "$(dirname "$0")/.."

bash tools/environment.sh jax torch test || exit 1
# Three small checkpoints, whose package's dependencies are not needed, and a library whose are there.
.venv/bin/python -m pip install --quiet --no-deps rxnfp==0.1.0 sentence-transformers==6.2.0 || exit 1

export TF_CPP_MIN_LOG_LEVEL=3
# Many tests make the same small model, which JAX need compile but once.
JAX_COMPILATION_CACHE_DIR=$(mktemp -d)
trap 'rm -rf "$JAX_COMPILATION_CACHE_DIR"' EXIT
export JAX_COMPILATION_CACHE_DIR JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.1
export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1
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
