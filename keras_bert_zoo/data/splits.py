"""Which rows are for training and which for scoring, and whether one knows of the other."""

import itertools
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

_NAMES = {"train": "train", "dev": "dev", "valid": "dev", "validation": "dev", "test": "test"}


def random_splits(
    count: int,
    shares: Mapping[str, float],
    seed: int = 0,
    groups: Sequence | None = None,
    classes: Sequence | None = None,
) -> dict[str, list[int]]:
    """Return the row numbers of each split, drawn at random.

    Args:
        count: how many rows there are.
        shares: of the rows that each split should get; together 1.
        seed: the same seed draws the same rows.
        groups: where each row comes from, such as a document or a speaker. The rows of a
            group stay together, and shares are met as near as the groups allow.
        classes: where there are no groups, each row's class. Every split has its share of each
            class, and the split with the largest share one row of every class at least.

    Returns:
        For each split its row numbers, in ascending order.

    Raises:
        ValueError: the shares are not such, `groups` has another length, or there are not
            enough rows or groups for a split each.

    Example:
        >>> rows = random_splits(6, {"train": 2 / 3, "dev": 1 / 3}, groups=list("aabbcc"))
        >>> len(rows["train"]), len(rows["dev"]), rows["dev"][1] - rows["dev"][0]
        (4, 2, 1)
    """
    if not shares or min(shares.values()) <= 0 or abs(sum(shares.values()) - 1) > 1e-6:
        raise ValueError(f"`shares` must be positive and together 1. Received: {dict(shares)}.")
    if groups is not None and len(groups) != count:
        raise ValueError(f"`groups` must have one a row. Received: {len(groups)} for {count} rows.")
    if groups is None and classes is not None:
        return _by_class(count, shares, seed, classes)
    groups = range(count) if groups is None else groups
    sizes = Counter(groups)
    if len(sizes) < len(shares):
        raise ValueError(
            f"{len(sizes)} rows or groups can't make the {len(shares)} splits {list(shares)}."
        )
    names = list(sizes)
    left = [names[i] for i in np.random.default_rng(seed).permutation(len(names))]
    # The smaller splits choose first, and what they leave is the largest one's.
    *smaller, largest = sorted(shares, key=lambda name: shares[name])
    split_of = {}
    for place, name in enumerate(smaller, 1):
        wanted, taken, rest = shares[name] * count, 0, []
        for group in left:
            if abs(taken + sizes[group] - wanted) < abs(taken - wanted):
                split_of[group] = name
                taken += sizes[group]
            else:
                rest.append(group)
        if not taken:
            nearest = min(rest, key=lambda group: sizes[group])
            split_of[nearest] = name
            rest.remove(nearest)
        if len(rest) < len(shares) - place:
            raise ValueError(
                f"The {len(sizes)} rows or groups leave nothing for some of the splits "
                f"{list(shares)}: the largest group has {max(sizes.values())} of {count} rows."
            )
        left = rest
    split_of.update(dict.fromkeys(left, largest))
    rows = {name: [] for name in shares}
    for row, group in enumerate(groups):
        rows[split_of[group]].append(row)
    return rows


def _by_class(count, shares, seed, classes):
    if len(classes) != count:
        raise ValueError(f"`classes` must have one a row. Received: {len(classes)} for {count}.")
    members = {}
    for row in np.random.default_rng(seed).permutation(count).tolist():
        members.setdefault(classes[row], []).append(row)
    *smaller, largest = sorted(shares, key=lambda name: shares[name])
    rows = {name: [] for name in shares}
    # What each split is due by its share and has not got yet is carried on from class to class.
    due = dict.fromkeys(smaller, 0.0)
    for name in sorted(members, key=str):
        for place, row in enumerate(members[name]):
            for split in smaller:
                due[split] += shares[split]
            split = max(smaller, key=due.get, default=largest)
            if place == 0 or split == largest or due[split] < 0.5:
                split = largest
            else:
                due[split] -= 1
            rows[split].append(row)
    for split in smaller:
        if not rows[split]:
            left = set(rows[largest])
            spare = next((row for m in members.values() for row in m[1:] if row in left), None)
            if spare is None:
                raise ValueError(
                    f"{count} rows of {len(members)} classes leave nothing for the split "
                    f"{split!r}: the split {largest!r} needs one row of each class."
                )
            rows[largest].remove(spare)
            rows[split].append(spare)
    return {name: sorted(rows[name]) for name in shares}


def given_splits(names: Sequence[str]) -> dict[str, list[int]]:
    """Return the row numbers of each split that a column of a table names.

    Args:
        names: a name a row: `train`, `dev` (or `valid`, `validation`) or `test`.

    Raises:
        ValueError: a name is none of these, or no row is for training.

    Example:
        >>> given_splits(["train", "validation", "train"])
        {'train': [0, 2], 'dev': [1]}
    """
    rows = {}
    for row, name in enumerate(names):
        if name not in _NAMES:
            raise ValueError(
                f"Row {row + 1} is of a split that is none of {list(_NAMES)}. Received: {name!r}."
            )
        rows.setdefault(_NAMES[name], []).append(row)
    if "train" not in rows:
        raise ValueError(f"No row is of the split 'train'. There are: {list(rows)}.")
    return rows


def leakage(
    splits: Mapping[str, Sequence[Sequence[str]]],
    groups: Mapping[str, Sequence] | None = None,
    examples: int = 3,
) -> list[dict]:
    """Return what later splits share with earlier ones, for every two of them.

    Texts are the same where nothing but case, punctuation, white space and Unicode's
    compatible forms (NFKC) tells them apart.

    Args:
        splits: for each split, training first, its columns: one of texts, or two of pairs.
        groups: for each split where its rows come from.
        examples: how many to show of each kind.

    Returns:
        For each two splits and each kind a dictionary with `kind`; `splits`, the earlier and
        the later; `count`, how many of the later's `total` rows it befalls; and `examples` of
        it, a row of the earlier split, a row of the later, and what they share. The kinds are
        `example`, the same text or, either way round, the same pair; for pairs `text`, one
        text in common and no more; and with `groups` `group`.

    Example:
        >>> found = leakage({"train": [["Good film!", "Bad"]], "dev": [["Fine", "good film"]]})
        >>> found[0]["count"], found[0]["total"], found[0]["examples"]
        (1, 2, [(0, 1, 'good film')])
    """
    texts = {name: list(zip(*columns, strict=True)) for name, columns in splits.items()}
    keys = {name: [tuple(map(_normal, row)) for row in rows] for name, rows in texts.items()}
    found = []
    for earlier, later in itertools.combinations(splits, 2):
        pairs = [[(tuple(sorted(row)),) for row in keys[name]] for name in (earlier, later)]
        shared = _shared(*pairs)
        kinds = {"example": (shared, [(" | ".join(row),) for row in texts[later]])}
        if len(splits[later]) == 2:
            halves = _shared(keys[earlier], keys[later])
            halves = {row: where for row, where in halves.items() if row not in shared}
            kinds["text"] = (halves, texts[later])
        if groups is not None:
            sources = [[(group,) for group in groups[name]] for name in (earlier, later)]
            kinds["group"] = (_shared(*sources), sources[1])
        for kind, (shared, shown) in kinds.items():
            found.append(
                {
                    "kind": kind,
                    "splits": (earlier, later),
                    "count": len(shared),
                    "total": len(keys[later]),
                    "examples": [
                        (first, row, shown[row][place])
                        for row, (first, place) in itertools.islice(shared.items(), examples)
                    ],
                }
            )
    return found


def leakage_lines(found: Sequence[Mapping]) -> list[str]:
    """Return what `leakage` found, and what it did not, as lines to print.

    Example:
        >>> leakage_lines(leakage({"train": [["a", "b"]], "dev": [["A.", "c"]]}))
        ["warning: 1 of 2 dev examples are in train too: row 0 (train 0) 'A.'"]
    """
    lines = []
    for entry in found:
        earlier, later = entry["splits"]
        said = _SAID[entry["kind"]].format(earlier)
        shown = "; ".join(
            f"row {row} ({earlier} {first}) {_cut(shared)!r}"
            for first, row, shared in entry["examples"]
        )
        counts = f"{entry['count']:,} of {entry['total']:,} {later} examples"
        warning = "warning: " if entry["count"] else ""
        lines.append(f"{warning}{counts} {said}" + (f": {shown}" if shown else ""))
    return lines


_SAID = {
    "example": "are in {} too",
    "text": "share one text of the pair with {}",
    "group": "come from a group that is in {}",
}


class _Spaced(dict):
    """A table for `str.translate`, filled as characters come: punctuation becomes a space."""

    def __missing__(self, code):
        is_punctuation = unicodedata.category(chr(code))[0] == "P"
        self[code] = 32 if is_punctuation else code
        return self[code]


_SPACED = _Spaced()


def _normal(text):
    folded = unicodedata.normalize("NFKC", text).casefold()
    # A text of nothing but punctuation is told apart by it.
    return " ".join(folded.translate(_SPACED).split()) or folded.strip()


def _shared(earlier, later):
    """Return for the rows of `later` whose keys `earlier` has its first such row, and which key."""
    seen = {}
    for row, keys in enumerate(earlier):
        for key in keys:
            seen.setdefault(key, row)
    shared = {}
    for row, keys in enumerate(later):
        place = next((place for place, key in enumerate(keys) if key in seen), None)
        if place is not None:
            shared[row] = (seen[keys[place]], place)
    return shared


def _cut(value, limit=60):
    text = str(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
