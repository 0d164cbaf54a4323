"""XNLI: premises and hypotheses in fifteen languages, and the machine-translated training sets."""

import os
import pathlib

from keras_bert_zoo.data.tables import column, load_tfds, read_tsv

XNLI_CLASSES = ("entailment", "neutral", "contradiction")
# fmt: off
XNLI_LANGUAGES = (
    "ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh",
)
# fmt: on

_PLAIN = ("premise", "hypothesis", "label")


def read_xnli(language: str, split: str, folder: str | os.PathLike | None = None) -> dict:
    """Return the examples of a split of XNLI in one language, as columns (Conneau et al. 2018).

    Args:
        language: its two letters, such as `"zh"`; see `XNLI_LANGUAGES`.
        split: `"train"`, `"dev"` or `"test"`. `train` is MultiNLI in translation, which
            TensorFlow Datasets' XNLI has not.
        folder: the official files `xnli.dev.tsv`, `xnli.test.tsv` and
            `multinli.train.{language}.tsv`, which may lie in a folder `multinli`; or files
            `{split}-{language}.tsv` of premise, hypothesis and label, with no line of column
            names. Where not given the data set is read from TensorFlow Datasets.

    Returns:
        Lists of equal length in the order of the source: `id`, the row's number; `text`, the
        premise; `second`, the hypothesis; and `label`, one of `XNLI_CLASSES`.

    Raises:
        ValueError: the language, the split or its file is missing, or a file has another
            layout.

    Example:
        >>> import tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "dev-de.tsv").write_text("Es regnet.\\tEs ist nass.\\tneutral\\r\\n")
        >>> read_xnli("de", "dev", folder)
        {'id': [0], 'text': ['Es regnet.'], 'second': ['Es ist nass.'], 'label': ['neutral']}
    """
    if language not in XNLI_LANGUAGES:
        raise ValueError(f"XNLI has no language {language!r}. It has: {', '.join(XNLI_LANGUAGES)}.")
    if split not in ("train", "dev", "test"):
        raise ValueError(f"XNLI has the splits train, dev and test. Received: {split!r}.")
    if folder is None:
        source, columns = _read_tfds(language, split)
    else:
        source, columns = _read_files(language, split, pathlib.Path(folder))
    if not columns[0]:
        raise ValueError(f"{source!r} has no examples in {language!r}.")
    # The translated training sets have a spelling of their own.
    labels = ["contradiction" if label == "contradictory" else label for label in columns[2]]
    for row, label in enumerate(labels):
        if label not in XNLI_CLASSES:
            raise ValueError(
                f"Example {row} of {source!r} in {language!r} must have a label of "
                f"{list(XNLI_CLASSES)}. Received: {label!r}."
            )
    names = ("id", "text", "second", "label")
    return dict(zip(names, (list(range(len(labels))), *columns[:2], labels), strict=True))


def _read_files(language, split, folder):
    files = {
        f"xnli.{split}.tsv": ("sentence1", "sentence2", "gold_label"),
        f"multinli/multinli.{split}.{language}.tsv": ("premise", "hypo", "label"),
        f"multinli.{split}.{language}.tsv": ("premise", "hypo", "label"),
        f"{split}-{language}.tsv": _PLAIN,
    }
    file = next((file for file in files if (folder / file).is_file()), None)
    if file is None:
        raise ValueError(f"{str(folder)!r} has none of the files {', '.join(files)}.")
    source = str(folder / file)
    table = read_tsv(source, names=_PLAIN if files[file] is _PLAIN else None)
    columns = [column(table, name, source) for name in files[file]]
    if file.startswith("xnli."):
        chosen = [row == language for row in column(table, "language", source)]
        columns = [
            [value for value, is_in in zip(values, chosen, strict=True) if is_in]
            for values in columns
        ]
    return source, columns


def _read_tfds(language, split):
    if split == "train":
        raise ValueError("XNLI of TensorFlow Datasets has no train; give the official `folder`.")
    source = f"tfds:xnli:{'validation' if split == 'dev' else split}"
    dataset, info, tfds = load_tfds(source)
    columns = [], [], []
    for row in tfds.as_numpy(dataset):
        spoken = [name.decode() for name in row["hypothesis"]["language"]]
        columns[0].append(row["premise"][language].decode())
        columns[1].append(row["hypothesis"]["translation"][spoken.index(language)].decode())
        columns[2].append(info.features["label"].int2str(int(row["label"])))
    return source, columns
