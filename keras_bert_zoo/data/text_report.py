"""What a column of texts becomes as a model's rows: lengths, cuts, unknown words, padding."""

import io
import itertools
import os
import pathlib
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from keras_bert_zoo.layers.common import check_positive_int
from keras_bert_zoo.preprocessing.packing import bucket_lengths
from keras_bert_zoo.preprocessing.row_transforms import default_max_examples
from keras_bert_zoo.preprocessing.texts import received
from keras_bert_zoo.whole_files import write_whole

PLOT_FORMATS = (".png", ".svg", ".pdf")
# What rows are padded to under each strategy.
STRATEGIES = {
    "fixed": "every row to the sequence length",
    "batch": "a batch, in the given order, to its longest row",
    "bucket": "a batch, in the given order, to the bucket of its longest row",
    "bucket_batches": "batches of rows of one bucket, to that bucket",
    "packed_rows": "texts share rows of the sequence length",
}
_TEXTS_AT_ONCE = 1024
_HISTOGRAM_BINS = 60
_MISSING = object()


def text_report(
    texts: Iterable[str] | tuple[Iterable[str], ...],
    preprocessor,
    batch_size: int = 32,
    *,
    lengths: Sequence[int] = (64, 128, 256, 512),
    max_examples: int | None = None,
    packing_window: int = 1024,
    num_unknown_words: int = 20,
) -> dict:
    """Return what the texts of a column, or pairs of two columns, become as a model's rows.

    Texts are read once, and no more than their lengths is kept.

    Args:
        texts: strings; a tuple of columns is pairs, as in `fit`. May be generators.
        preprocessor: a `BertPreprocessor` or another preprocessor of a task. Its tokenizer,
            sequence length and buckets are what the report is about.
        batch_size: rows a batch.
        lengths: sequence lengths to count the cuts at, beside the preprocessor's own.
        max_examples, packing_window: most texts of a shared row, and how many texts are
            laid into rows together, as for `pack_rows`.
        num_unknown_words: how many of the most frequent unknown words to give.

    Returns:
        A dictionary of numbers, lists and strings, ready for JSON:

        - `texts`, and `empty_texts` of which no piece is left; a pair counts once.
        - The settings, `sequence_length` to `packing_window`.
        - `pieces`: `total`, `min`, `median`, `mean`, `p90`, `p95`, `p99` and `max` of the
          pieces of a text, or of a pair together, before any cut and without marks.
        - `ids`: `distinct`, how many entries of the vocabulary are used, and their `share`.
        - `effective_length`: of the rows, cut and with their marks, as `pieces`.
        - `cut`: for each sequence length, the share of `texts` cut and of `pieces` lost.
        - `unknown`: the share of `pieces` and of `texts` with `[UNK]`; `words`, the most
          frequent unknown words as they stand in the texts, each with its `count`.
        - `padding`: by strategy, the `positions` that the model runs over, the share of
          them that is `padding`, and `work`, the positions as a share of those of `fixed`.
          `STRATEGIES` says what is padded to what; `bucket_batches` and `packed_rows` are
          what the functions `bucket_batches` and `pack_rows` do.
        - `histogram` of the rows' lengths before any cut: `edges`, `counts`, and `longer`,
          the rows beyond the last edge.

    Raises:
        TypeError: a text is not a string; its index is named.
        ValueError: there are no texts, columns differ in length, or an option is outside its
            range.

    Example:
        >>> tokenizer = BertTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"], lowercase=True)
        >>> report = text_report(["a b a", "b", "Oh b"], BertPreprocessor(tokenizer, 4))
        >>> report["cut"][0]["texts"], report["unknown"]["words"]
        (0.3333333333333333, [{'word': 'Oh', 'count': 1}])
    """
    columns = texts if isinstance(texts, tuple) else (texts,)
    marks = len(columns) + 1
    sequence_length = preprocessor.sequence_length
    if max_examples is None:
        max_examples = default_max_examples(sequence_length)
    check_positive_int(
        batch_size=batch_size, max_examples=max_examples, packing_window=packing_window
    )
    lengths = sorted({*lengths, sequence_length})
    if lengths[0] < marks:
        raise ValueError(f"`lengths` must hold the {marks} marks of a row. Received: {lengths[0]}.")

    tokenizer = preprocessor.tokenizer
    seen = _tokenize(columns, tokenizer)
    pieces, total = seen["pieces"], int(seen["pieces"].sum())
    distinct = int(np.count_nonzero(seen["id_counts"]))
    rows = np.minimum(pieces, sequence_length - marks) + marks
    buckets = bucket_lengths(sequence_length, preprocessor.buckets)
    return {
        "texts": len(pieces),
        "empty_texts": int(np.sum(pieces == 0)),
        "sequence_length": sequence_length,
        "batch_size": batch_size,
        "buckets": list(buckets),
        "max_examples": max_examples,
        "packing_window": packing_window,
        "pieces": _spread(pieces),
        "ids": {"distinct": distinct, "share": distinct / tokenizer.vocabulary_size},
        "effective_length": _spread(rows),
        "cut": [_cut(pieces, length, marks) for length in lengths],
        "unknown": {
            "pieces": int(seen["id_counts"][tokenizer.unk_token_id]) / max(1, total),
            "texts": float(np.mean(seen["has_unknown"])),
            "words": [
                {"word": word, "count": count}
                for word, count in seen["unknown_words"].most_common(num_unknown_words)
            ],
        },
        "padding": _padding(rows, buckets, batch_size, max_examples, packing_window),
        "histogram": _histogram(pieces + marks, sequence_length),
    }


def count_packed_rows(lengths: Sequence[int], sequence_length: int, max_examples: int) -> int:
    """Return how many rows of `sequence_length` hold texts of these lengths, several a row.

    The longest goes first, each into the fullest row that has room for it (best-fit
    decreasing), at most `max_examples` into one.

    Example:
        >>> count_packed_rows([4, 3, 3, 2], 6, 4), count_packed_rows([4, 3, 3, 2], 6, 1)
        (2, 4)
    """
    room = np.full(len(lengths), sequence_length)
    free = np.full(len(lengths), max_examples)
    # Texts of one length are placed together: each row in turn takes what it can.
    for length, number in sorted(Counter(lengths).items(), reverse=True):
        fullest = np.argsort(room, kind="stable")
        room, free = room[fullest], free[fullest]
        fitting = np.minimum(room // length, free)
        placed = np.minimum(np.cumsum(fitting), number)
        taken = np.diff(placed, prepend=0)
        room -= taken * length
        free -= taken
    return int(np.count_nonzero(free < max_examples))


def plot_report(report: dict, path: str | os.PathLike) -> None:
    """Draw a report's lengths and padding into a file, whole or not at all; no display needed.

    Raises:
        ValueError: `path` does not end in .png, .svg or .pdf.
    """
    from matplotlib.figure import Figure

    path = pathlib.Path(path)
    check_plot_path(path)
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_lengths(left, report)
    _draw_padding(right, report)
    picture = io.BytesIO()
    figure.savefig(picture, format=path.suffix[1:], dpi=120)
    write_whole(path, picture.getvalue())


def check_plot_path(path: str | os.PathLike) -> None:
    """Refuse a path that ends in no format to draw in, with a ValueError that names them."""
    if pathlib.Path(path).suffix not in PLOT_FORMATS:
        raise ValueError(
            f"A plot must end in {', '.join(PLOT_FORMATS)}. Received: {os.fspath(path)!r}."
        )


# === Counting ===


def _tokenize(columns, tokenizer):
    """Return each text's number of pieces and what is known of the pieces' ids."""
    pieces, has_unknown = [], []
    id_counts = np.zeros(tokenizer.vocabulary_size, dtype=np.int64)
    unknown_words = Counter()
    rows = _checked_rows(columns)
    while chunk := list(itertools.islice(rows, _TEXTS_AT_ONCE)):
        chunk_pieces = np.zeros(len(chunk), dtype=np.int64)
        chunk_unknown = np.zeros(len(chunk), dtype=bool)
        for column in zip(*chunk, strict=True):
            ids = tokenizer(list(column))
            values, sizes = ids.flat_values.numpy(), ids.row_lengths().numpy()
            chunk_pieces += sizes
            id_counts += np.bincount(values, minlength=len(id_counts))
            is_unknown = values == tokenizer.unk_token_id
            places = np.unique(np.repeat(np.arange(len(sizes)), sizes)[is_unknown])
            chunk_unknown[places] = True
            unknown_words.update(_unknown_words([column[i] for i in places], tokenizer))
        pieces.append(chunk_pieces)
        has_unknown.append(chunk_unknown)
    if not pieces:
        raise ValueError("`texts` holds no texts.")
    return {
        "pieces": np.concatenate(pieces),
        "has_unknown": np.concatenate(has_unknown),
        "id_counts": id_counts,
        "unknown_words": unknown_words,
    }


def _checked_rows(columns):
    """Give the rows of columns that have a string at every place."""
    names = ["texts"] if len(columns) == 1 else [f"texts[{i}]" for i in range(len(columns))]
    for name, column in zip(names, columns, strict=True):
        if isinstance(column, str):
            raise TypeError(f"`{name}` must be a list of strings. {received(column)}")
    for index, row in enumerate(itertools.zip_longest(*columns, fillvalue=_MISSING)):
        for name, text in zip(names, row, strict=True):
            if text is _MISSING:
                raise ValueError(
                    f"The columns of `texts` must be equally long. `{name}` ends after {index}."
                )
            if not isinstance(text, str):
                raise TypeError(f"`{name}[{index}]` must be a string. {received(text)}")
        yield row


def _unknown_words(texts, tokenizer):
    if not texts:
        return
    parts = (part.to_list() for part in tokenizer.tokenize_with_offsets(texts))
    for text, *row in zip(texts, *parts, strict=True):
        for piece, start, end in zip(*row, strict=True):
            if piece == tokenizer.unk_token_id:
                yield text[start:end]


def _spread(values):
    high = {f"p{q}": float(np.percentile(values, q)) for q in (90, 95, 99)}
    return {
        "total": int(values.sum()),
        "min": int(values.min()),
        "median": float(np.median(values)),
        "mean": float(values.mean()),
        **high,
        "max": int(values.max()),
    }


def _cut(pieces, sequence_length, marks):
    lost = np.maximum(pieces - (sequence_length - marks), 0)
    return {
        "sequence_length": sequence_length,
        "texts": float(np.mean(lost > 0)),
        "pieces": int(lost.sum()) / max(1, int(pieces.sum())),
    }


def _padding(rows, buckets, batch_size, max_examples, packing_window):
    sequence_length = buckets[-1]
    firsts = np.arange(0, len(rows), batch_size)
    sizes = np.diff(firsts, append=len(rows))
    longest = np.maximum.reduceat(rows, firsts)
    packed = sum(
        count_packed_rows(rows[i : i + packing_window].tolist(), sequence_length, max_examples)
        for i in range(0, len(rows), packing_window)
    )
    positions = {
        "fixed": len(rows) * sequence_length,
        "batch": np.sum(sizes * longest),
        "bucket": np.sum(sizes * _smallest(buckets, longest)),
        "bucket_batches": np.sum(_smallest(buckets, rows)),
        "packed_rows": packed * sequence_length,
    }
    real = int(rows.sum())
    return {
        name: {
            "positions": int(count),
            "padding": float(1 - real / count),
            "work": float(count / positions["fixed"]),
        }
        for name, count in positions.items()
    }


def _smallest(buckets, lengths):
    return np.asarray(buckets)[np.searchsorted(buckets, lengths)]


def _histogram(lengths, sequence_length):
    last = int(max(sequence_length, np.percentile(lengths, 99))) + 1
    width = -(-last // _HISTOGRAM_BINS)
    edges = np.arange(0, last + width, width)
    counts, _ = np.histogram(lengths, edges)
    return {
        "edges": edges.tolist(),
        "counts": counts.tolist(),
        "longer": len(lengths) - int(counts.sum()),
    }


# === Drawing ===


def _draw_lengths(axes, report):
    histogram, length = report["histogram"], report["sequence_length"]
    axes.stairs(histogram["counts"], histogram["edges"], fill=True, color="tab:blue")
    cut = next(row for row in report["cut"] if row["sequence_length"] == length)
    axes.axvline(length, color="tab:red", label=f"cut at {length}: {cut['texts']:.1%} of the texts")
    longer = histogram["longer"]
    beyond = f"; {longer:,} beyond" if longer else ""
    axes.set_xlabel(f"pieces a row, marks included, before the cut{beyond}")
    axes.set_ylabel("texts")
    axes.set_title(f"{report['texts']:,} texts", loc="left")
    axes.legend(frameon=False)


def _draw_padding(axes, report):
    padding = report["padding"]
    names = list(padding)
    shares = [padding[name]["padding"] for name in names]
    bars = axes.barh(names, shares, color="tab:blue")
    labels = [f"{p['padding']:.1%}, {p['work']:.2f} of the work" for p in padding.values()]
    axes.bar_label(bars, labels, padding=4)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.6)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25%", "50%", "75%", "100%"])
    axes.set_xlabel("padding, share of all positions")
    axes.set_title(f"batches of {report['batch_size']}", loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
