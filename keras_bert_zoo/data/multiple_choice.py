"""Multiple choice: SWAG's files and CODAH's, as prompts, choices and the right one's number."""

import os
import re

from keras_bert_zoo.data.tables import column, read_table

Examples = tuple[tuple[list[str], list[list[str]]], list[int] | None]


def read_swag(source: str | os.PathLike) -> Examples:
    """Return SWAG's prompts, the sentence that came before, and its choices of the next.

    A choice is the beginning of the next sentence and an ending (Zellers et al. 2018; Devlin et
    al. 2018, section 4.4).

    Args:
        source: what `read_table` takes, with the columns `sent1`, `sent2`, `ending0` and so
            on, and `label` where the right ending is known.

    Returns:
        `(prompts, choices), labels`, which is `x` and `y` of `fit`; None for labels that the
        file lacks.

    Raises:
        ValueError: the file is no such table, or a label is no ending's number.

    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "swag.csv")
        >>> with open(path, "w") as file:
        ...     size = file.write("sent1,sent2,ending0,ending1,label\\nRain.,He,sings.,runs.,1\\n")
        >>> read_swag(path)
        ((['Rain.'], [['He sings.', 'He runs.']]), [1])
    """
    source = os.fspath(source)
    table = read_table(source)
    endings = sorted(
        (name for name in table if re.fullmatch(r"ending\d+", name)), key=lambda name: int(name[6:])
    )
    if not endings:
        raise ValueError(f"The table {source!r} has no column 'ending0'. It has: {list(table)}.")
    prompts = column(table, "sent1", source)
    starts = column(table, "sent2", source)
    choices = [
        [f"{start} {table[name][row]}".strip() for name in endings]
        for row, start in enumerate(starts)
    ]
    labels = table.get("label")
    if labels is not None:
        labels = [
            _label(label, len(endings), f"Row {number} of {source!r}")
            for number, label in enumerate(labels, 1)
        ]
    return (prompts, choices), labels


def read_codah(path: str | os.PathLike) -> Examples:
    """Return CODAH's prompts and their completions (Chen et al. 2019).

    Args:
        path: a UTF-8 file of a line an example and no head: the kind of question, the prompt,
            the choices, and the number of the right one, parted by tabs.

    Returns:
        What `read_swag` returns, with labels.

    Raises:
        ValueError: the file is missing or not UTF-8, or a line has too few fields or a label
            that is no choice's number; it is named.
    """
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise ValueError(f"There is no file {path!r}.")
    prompts, choices, labels = [], [], []
    try:
        with open(path, encoding="utf-8-sig", newline="\n") as lines:
            for number, line in enumerate(lines, 1):
                _, *fields = line.rstrip("\r\n").split("\t")
                if not fields and not line.strip():
                    continue
                if len(fields) < 4:
                    raise ValueError(
                        f"Line {number} of {path!r} must hold a kind, a prompt, two choices or "
                        f"more, and a label. Received: {len(fields) + 1} fields."
                    )
                prompts.append(fields[0])
                choices.append(fields[1:-1])
                labels.append(_label(fields[-1], len(fields) - 2, f"Line {number} of {path!r}"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path!r} is not UTF-8: {error}.") from error
    if not prompts:
        raise ValueError(f"{path!r} has no examples.")
    return (prompts, choices), labels


def _label(label, count, place):
    if not str(label).strip().isdecimal() or int(label) >= count:
        raise ValueError(f"{place} must have a label below {count}. Received: {label!r}.")
    return int(label)
