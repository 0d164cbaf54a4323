"""One shard of pre-training examples, a pure function of its documents and the settings.

A record holds `token_ids` with the marks and without padding, `example_id`, which no other
record of the data set has, and for a pair `first_length`, the pieces of segment 0 with its
marks, and the label `next_sentence`. Where examples are masked once it also holds
`mask_positions` and `mask_ids`, the pieces that stood there.
"""

import functools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise

import numpy as np

from keras_bert_zoo.data import documents as texts
from keras_bert_zoo.data.example_records import serialize_examples
from keras_bert_zoo.data.next_sentence import MARKS, example_spans
from keras_bert_zoo.preprocessing import BertTokenizer, MaskedLMMasker
from keras_bert_zoo.preprocessing.examples import compiled_masker, tokenize_flat

_BATCH = 2048


class ExampleMaker:
    """Makes the examples of one shard after another.

    Args:
        tokenizer: a `BertTokenizer`.
        settings: `objective`, `sequence_length`, `short_share`, `balanced`, `duplicates`
            and `seed` as `next_sentence_examples` takes them; `language`, whose rules split
            prose; `masking`, arguments of `MaskedLMMasker`, or None to leave the examples
            as they are; `shards`, how many there are.
    """

    def __init__(self, tokenizer: BertTokenizer, settings: Mapping):
        self.tokenizer = tokenizer
        self.settings = settings

    def __getstate__(self) -> dict:
        """Leaves the graph out of pickles; it is made again where it is needed."""
        return {"tokenizer": self.tokenizer, "settings": self.settings}

    @functools.cached_property
    def mask(self) -> Callable:
        """Hides pieces of padded rows."""
        masking = {"seed": self.settings["seed"], **self.settings["masking"]}
        return compiled_masker(MaskedLMMasker(self.tokenizer, **masking))

    def shard(self, number: int, documents: Iterable[texts.Document]) -> "Shard":
        """Return the examples of a shard, whose documents come in any order.

        Raises:
            ValueError: a random next sentence is asked for and there is only one document with
                a piece in it.
        """
        return Shard(self, number, documents)


class Shard:
    """The examples of one shard: iterate over the records, then read `statistics`."""

    def __init__(self, maker: ExampleMaker, number: int, documents: Iterable[texts.Document]):
        self._maker = maker
        self.settings = settings = maker.settings
        self.tokenizer = tokenizer = maker.tokenizer
        # Sorted, so that it does not matter in which order the documents came.
        documents = sorted(documents)
        split = [texts.sentences(document, settings["language"]) for document in documents]
        pieces, sizes = tokenize_flat(tokenizer, [s for sentences in split for s in sentences])
        sentence_ends, document_ends = _ends(sizes, [len(sentences) for sentences in split])
        if settings["objective"] == "next_sentence" and len(document_ends) == 2:
            remedy = "fewer `shards`, and another folder" if settings["shards"] > 1 else "more text"
            raise ValueError(
                f"Shard {number} has one document with pieces, and a random next sentence comes "
                f"from another: give {remedy}."
            )
        self._pieces = pieces
        self._first_id = number << 40
        examples = example_spans(
            sentence_ends,
            document_ends,
            settings["sequence_length"],
            objective=settings["objective"],
            short_share=settings["short_share"],
            balanced=settings["balanced"],
            duplicates=settings["duplicates"],
            rng=random.Random(f"{settings['seed']} {number}"),
        )
        spans = np.array(examples, np.int64).reshape(-1, 6)
        marks = MARKS[settings["objective"]]
        lengths = spans[:, 1] - spans[:, 0] + spans[:, 3] - spans[:, 2] + marks
        self._spans = spans
        self.statistics = {
            "documents": len(document_ends) - 1,
            "duplicate documents": sum(a == b for a, b in pairwise(documents)),
            "sentences": len(sentence_ends) - 1,
            "pieces": len(pieces),
            "unknown pieces": int(np.count_nonzero(pieces == tokenizer.unk_token_id)),
            "examples": len(spans),
            "truncated examples": int(np.count_nonzero(spans[:, 5])),
            "pieces cut off": int(spans[:, 5].sum()),
            "lengths": np.bincount(lengths, minlength=settings["sequence_length"] + 1).tolist(),
        }
        if settings["objective"] != "single":
            is_full = lengths == settings["sequence_length"]
            for name, kept in {"": slice(None), " of full": is_full, " of short": ~is_full}.items():
                counts = np.bincount(spans[kept, 4], minlength=2)
                self.statistics[f"labels{name}"] = counts.tolist()

    def __iter__(self) -> Iterator[bytes]:
        """Return the serialised records."""
        if self.settings["masking"] is not None:
            self.statistics["masked"] = {"chosen": 0, "mask": 0, "random": 0, "same": 0}
            self.statistics["predictions"] = [0] * (self.settings["sequence_length"] + 1)
        for start in range(0, len(self._spans), _BATCH):
            yield from serialize_examples(self._columns(start, self._spans[start : start + _BATCH]))

    def _columns(self, start, spans):
        token_ids, lengths, first_lengths = self._rows(spans)
        one = np.ones(len(spans), np.int64)
        example_ids = self._first_id + start + np.arange(len(spans))
        columns = {"example_id": (example_ids, one)}
        is_real = np.arange(token_ids.shape[1]) < lengths[:, None]
        if self.settings["objective"] != "single":
            columns["first_length"] = first_lengths, one
            columns["next_sentence"] = spans[:, 4], one
        if self.settings["masking"] is not None:
            masked = self._maker.mask(token_ids, is_real.astype(np.int32), example_ids)
            token_ids = masked["token_ids"]
            is_chosen = masked["mask_weights"] > 0
            counts = np.count_nonzero(is_chosen, axis=1)
            columns["mask_positions"] = masked["mask_positions"][is_chosen], counts
            columns["mask_ids"] = masked["mask_ids"][is_chosen], counts
            self._count_masked(token_ids, masked["mask_positions"], masked["mask_ids"], is_chosen)
        columns["token_ids"] = token_ids[is_real], lengths
        return columns

    def _rows(self, spans):
        """Return padded rows with marks, their lengths, and the lengths of segment 0."""
        first, second = (spans[:, k + 1] - spans[:, k] for k in (0, 2))
        is_pair = self.settings["objective"] != "single"
        first_lengths = first + 2
        lengths = first_lengths + (second + 1 if is_pair else 0)
        place = np.arange(self.settings["sequence_length"])
        in_second = place >= first_lengths[:, None]
        source = np.where(in_second, (spans[:, 2] - first_lengths)[:, None], spans[:, 0, None] - 1)
        source += place
        token_ids = self._pieces[np.clip(source, 0, len(self._pieces) - 1)]
        token_ids[:, 0] = self.tokenizer.cls_token_id
        row = np.arange(len(spans))
        token_ids[row, first_lengths - 1] = self.tokenizer.sep_token_id
        token_ids[row, lengths - 1] = self.tokenizer.sep_token_id
        token_ids[place >= lengths[:, None]] = self.tokenizer.pad_token_id
        return token_ids, lengths, first_lengths

    def _count_masked(self, token_ids, positions, mask_ids, is_chosen):
        stands = np.take_along_axis(token_ids, positions, axis=1)[is_chosen]
        stood = mask_ids[is_chosen]
        mask = np.count_nonzero(stands == self.tokenizer.mask_token_id)
        same = np.count_nonzero(stands == stood)
        kinds = {"chosen": len(stood), "mask": mask, "random": len(stood) - mask - same}
        for kind, count in {**kinds, "same": same}.items():
            self.statistics["masked"][kind] += int(count)
        for count in np.count_nonzero(is_chosen, axis=1).tolist():
            self.statistics["predictions"][count] += 1


def _ends(sizes, counts):
    """Return where sentences and documents begin and the last ends, the empty ones left out.

    `sizes` are the pieces of all sentences, `counts` the sentences of each document.
    """
    is_full = (sizes > 0).astype(np.int64)
    kept_before = np.concatenate([[0], np.cumsum(is_full)])
    document_ends = kept_before[np.cumsum([0, *counts])]
    return (
        [0, *np.cumsum(sizes[sizes > 0]).tolist()],
        np.unique(document_ends).tolist(),
    )
