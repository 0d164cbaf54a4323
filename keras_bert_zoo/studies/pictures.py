"""Pictures of what a model does: where its heads look, and which classes it confuses."""

import math
import os
from collections.abc import Sequence

import keras
import numpy as np

from keras_bert_zoo.studies.plots import new_figure, save_figure


def attention_map(model: keras.Model, text: str, second: str | None = None) -> dict:
    """Return a text's pieces, marks included, and how much each looks at each.

    Args:
        model: a `BertBackbone` or a task, with a preprocessor.
        text, second: a text, or the texts of a pair.

    Returns:
        `pieces`, strings; and `attention`, floats (layers, heads, pieces, pieces), in which the
        row of a piece says how its attention is shared out, and sums to 1.

    Raises:
        ValueError: the model has no preprocessor.
    """
    if model.preprocessor is None:
        raise ValueError("`model` must have a preprocessor, to make pieces of a text.")
    inputs = model.preprocessor(*([part] for part in (text, second) if part is not None))
    inputs = {name: inputs[name] for name in ("token_ids", "segment_ids", "padding_mask")}
    scores = getattr(model, "backbone", model).attention_scores(inputs)
    real = int(keras.ops.sum(inputs["padding_mask"][0]))
    ids = keras.ops.convert_to_numpy(inputs["token_ids"])[0, :real]
    layers = [keras.ops.convert_to_numpy(layer)[0, :, :real, :real] for layer in scores]
    tokenizer = model.preprocessor.tokenizer
    return {
        "pieces": [tokenizer.id_to_token(int(number)) for number in ids],
        "attention": np.stack(layers).astype("float32"),
    }


def plot_attention(
    found: dict, path: str | os.PathLike, layer: int | None = None, head: int | None = None
) -> None:
    """Draw what `attention_map` found: a panel a layer, or a panel a head of one layer.

    Args:
        found: what `attention_map` returns.
        path: ends in .png, .svg or .pdf. The file appears whole or not at all.
        layer: draw this one's heads alone, counted from 0.
        head: draw this head of each layer, not the mean of them; with `layer` that one head.

    Raises:
        ValueError: there is no such layer or head, or `path` ends in something else.
    """
    attention, pieces = found["attention"], found["pieces"]
    for name, number, count in (
        ("layer", layer, attention.shape[0]),
        ("head", head, attention.shape[1]),
    ):
        if number is not None and not 0 <= number < count:
            raise ValueError(f"`{name}` must be from 0 to {count - 1}. Received: {number}.")
    layers = range(len(attention)) if layer is None else [layer]
    if layer is None and head is None:
        panels = {f"layer {i}, mean of heads": attention[i].mean(axis=0) for i in layers}
    else:
        heads = range(attention.shape[1]) if head is None else [head]
        panels = {f"layer {i}, head {j}": attention[i, j] for i in layers for j in heads}
    columns = min(4, len(panels))
    rows = math.ceil(len(panels) / columns)
    side = max(2.6, 0.22 * len(pieces) + 0.8)
    figure = new_figure(path, (side * columns, side * rows))
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for place, (title, matrix) in enumerate(panels.items()):
        axes = grid.flat[place]
        image = axes.imshow(matrix, vmin=0, vmax=1, cmap="viridis")
        axes.set_title(title, loc="left", fontsize=9)
        axes.set_xticks(range(len(pieces)), pieces, rotation=90, fontsize=7)
        shown = range(len(pieces)) if place % columns == 0 else []
        axes.set_yticks(shown, [pieces[i] for i in shown], fontsize=7)
    figure.colorbar(image, ax=grid, label="share of a row's attention", shrink=0.6)
    save_figure(figure, path)


def confusion_matrix(
    labels: Sequence, predictions: Sequence, class_names: Sequence | None = None
) -> dict:
    """Return how often each class was predicted as each.

    Args:
        labels, predictions: a class an example.
        class_names: the classes in order; in alphabetical order all that occur if None.

    Returns:
        `classes`; `counts`, a row a true class and a column a predicted one; `accuracy`; and
        `rows`, for each class its `class`, its `examples`, how many were `predicted` as it, and
        `precision`, `recall` and `f1`, 0 where nothing was predicted or is there.

    Raises:
        ValueError: the lists are empty or not equally long, or a class is none of `class_names`.

    Example:
        >>> found = confusion_matrix(["a", "a", "b"], ["a", "b", "b"])
        >>> found["counts"], round(found["accuracy"], 4), found["rows"][1]["precision"]
        ([[1, 1], [0, 1]], 0.6667, 0.5)
    """
    if not len(labels) or len(labels) != len(predictions):
        raise ValueError(
            "Labels and predictions must be equally many, and some. Received: "
            f"{len(labels)} and {len(predictions)}."
        )
    occurring = {*labels, *predictions}
    classes = sorted(occurring) if class_names is None else list(class_names)
    if unknown := sorted(occurring - set(classes)):
        raise ValueError(f"`class_names` {classes} lack {unknown}.")
    counts = np.zeros((len(classes), len(classes)), np.int64)
    place = {name: i for i, name in enumerate(classes)}
    np.add.at(counts, ([place[x] for x in labels], [place[x] for x in predictions]), 1)
    rows = []
    for i, name in enumerate(classes):
        right, there, predicted = (
            int(n) for n in (counts[i, i], counts[i].sum(), counts[:, i].sum())
        )
        rows.append(
            {
                "class": name,
                "examples": there,
                "predicted": predicted,
                "precision": right / max(1, predicted),
                "recall": right / max(1, there),
                "f1": 2 * right / max(1, there + predicted),
            }
        )
    accuracy = float(np.trace(counts) / counts.sum())
    return {"classes": classes, "counts": counts.tolist(), "accuracy": accuracy, "rows": rows}


def plot_confusion(found: dict, path: str | os.PathLike) -> None:
    """Draw what `confusion_matrix` found, coloured by the share of a true class's examples.

    Raises:
        ValueError: `path` does not end in .png, .svg or .pdf.
    """
    classes, counts = found["classes"], np.array(found["counts"])
    side = max(3.5, 0.6 * len(classes) + 2)
    figure = new_figure(path, (side + 1, side))
    axes = figure.subplots()
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    image = axes.imshow(shares, vmin=0, vmax=1, cmap="Blues")
    for (row, column), count in np.ndenumerate(counts):
        color = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, f"{count:,}", ha="center", va="center", color=color)
    axes.set_xticks(range(len(classes)), classes, rotation=45, ha="right")
    axes.set_yticks(range(len(classes)), classes)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.set_title(f"accuracy {found['accuracy']:.4f}", loc="left")
    figure.colorbar(image, ax=axes, label="share of the true class")
    save_figure(figure, path)
