"""Fine-tune one epoch on SST-2 with this package or with transformers, all else equal.

Same weights (all-MiniLM-L6-v2), order of examples, batches, optimiser settings and schedule:

    python tools/compare_finetuning.py zoo --data GLUE/SST-2
    python tools/compare_finetuning.py transformers --data GLUE/SST-2

`GLUE/SST-2` holds train.tsv and dev.tsv in GLUE's layout. Prints the dev accuracy.
"""

import argparse
import json
import pathlib
import time

import numpy as np

BATCH_SIZE = 32
LEARNING_RATE = 3e-5
WARMUP = 0.1
WEIGHT_DECAY = 0.01
SEQUENCE_LENGTH = 128


def read(path: pathlib.Path) -> tuple[list[str], np.ndarray]:
    """Return a GLUE file's sentences and labels."""
    from keras_bert_zoo.data import read_table

    table = read_table(str(path))
    return table["sentence"], np.array([int(label) for label in table["label"]])


def with_zoo(train, labels, dev, dev_labels, seed):
    """Train with this package; return the dev accuracy."""
    import keras

    import keras_bert_zoo as zoo

    keras.utils.set_random_seed(seed)
    classifier = zoo.from_preset(
        "all_minilm_l6_v2_en", "text_classifier", num_classes=2, sequence_length=SEQUENCE_LENGTH
    )
    schedule = zoo.training.WarmupLinearDecay(LEARNING_RATE, WARMUP)
    classifier.compile(optimizer=zoo.training.adamw(schedule, weight_decay=WEIGHT_DECAY))
    classifier.fit(train, labels, batch_size=BATCH_SIZE, shuffle=False, verbose=2)
    return classifier.evaluate(dev, dev_labels, return_dict=True, verbose=0)["accuracy"]


def with_transformers(train, labels, dev, dev_labels, seed):
    """Train with transformers' model as its own scripts do; return the dev accuracy."""
    import torch
    from transformers import (
        AutoTokenizer,
        BertForSequenceClassification,
        get_linear_schedule_with_warmup,
    )

    from keras_bert_zoo.presets import find_card, resolve_card

    folder = resolve_card(find_card("all_minilm_l6_v2_en"))
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = BertForSequenceClassification.from_pretrained(folder, num_labels=2)
    decayed, undecayed = [], []
    for name, weight in model.named_parameters():
        (undecayed if name.endswith("bias") or "LayerNorm" in name else decayed).append(weight)
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": WEIGHT_DECAY},
            {"params": undecayed, "weight_decay": 0.0},
        ],
        lr=LEARNING_RATE,
        eps=1e-6,
    )
    steps = -(-len(train) // BATCH_SIZE)
    schedule = get_linear_schedule_with_warmup(optimizer, int(WARMUP * steps), steps)

    def encode(texts):
        return tokenizer(
            texts, padding=True, truncation=True, max_length=SEQUENCE_LENGTH, return_tensors="pt"
        )

    model.train()
    for start in range(0, len(train), BATCH_SIZE):
        batch = slice(start, start + BATCH_SIZE)
        loss = model(**encode(train[batch]), labels=torch.tensor(labels[batch])).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if start // BATCH_SIZE % 100 == 99:
            print(f"step {start // BATCH_SIZE + 1} of {steps}: loss {loss.item():.4f}", flush=True)
    model.eval()
    right = 0
    with torch.no_grad():
        for start in range(0, len(dev), BATCH_SIZE):
            batch = slice(start, start + BATCH_SIZE)
            right += int(
                (model(**encode(dev[batch])).logits.argmax(-1).numpy() == dev_labels[batch]).sum()
            )
    return right / len(dev)


def main() -> None:
    """Train one of the two and print its score."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", choices=["zoo", "transformers"])
    parser.add_argument("--data", type=pathlib.Path, required=True, help="the folder SST-2")
    parser.add_argument("--examples", type=int, help="only the first so many of the order")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    texts, labels = read(arguments.data / "train.tsv")
    dev, dev_labels = read(arguments.data / "dev.tsv")
    order = np.random.default_rng(arguments.seed).permutation(len(texts))[: arguments.examples]
    train = [texts[i] for i in order]
    run = {"zoo": with_zoo, "transformers": with_transformers}[arguments.package]
    start = time.perf_counter()
    accuracy = run(train, labels[order], dev, dev_labels, arguments.seed)
    result = {
        "package": arguments.package,
        "examples": len(train),
        "dev accuracy": float(accuracy),
        "seconds": round(time.perf_counter() - start, 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
