#!/usr/bin/env bash
# From nothing to two trained BERTs: one pre-trained from scratch, one fine-tuned and put to use.
# Runs on KERAS_BACKEND (tensorflow, jax or torch), tensorflow if unset.
set -euo pipefail
cd "$(dirname "$0")/.."

export KERAS_BACKEND="${KERAS_BACKEND:-tensorflow}"
case "$KERAS_BACKEND" in
    tensorflow) extras=(examples) ;;
    jax | torch) extras=(examples "$KERAS_BACKEND") ;;
    *) echo "error: KERAS_BACKEND must be tensorflow, jax or torch; got $KERAS_BACKEND" >&2; exit 2 ;;
esac
echo "== Installing for the backend $KERAS_BACKEND"
bash tools/environment.sh "${extras[@]}"

export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-3}"
python=.venv/bin/python
output="quickstart_output/$KERAS_BACKEND"
mkdir -p "$output"

echo "== Pre-training a small BERT on the Python language reference"
$python examples/quickstart/language_reference.py "$output/language_reference"
$python -m keras_bert_zoo pretrain examples/pretraining/laptop.toml \
    --set "run=$output/pretraining" --set "data.text=['$output/language_reference']" \
    --json "$output/pretraining.json"

echo "== Fine-tuning all-MiniLM-L6-v2 on film reviews"
$python examples/quickstart/reviews.py "$output/reviews"
$python -m keras_bert_zoo finetune --preset all_minilm_l6_v2_en \
    --train "$output/reviews/train.csv" --dev "$output/reviews/held_out.csv" \
    --output "$output/reviews_classifier" --json "$output/fine_tuning.json" --epochs 2
$python examples/quickstart/compare.py \
    "$output/reviews/train.csv" "$output/reviews/held_out.csv" "$output/fine_tuning.json"

echo "== Predicting with the saved classifier"
$python -m keras_bert_zoo predict --preset "$output/reviews_classifier" \
    --sentences "A fine film, warm and clever." "A dull waste of an evening."
echo "== Done on the backend $KERAS_BACKEND; everything is in $output"
