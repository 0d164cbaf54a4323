"""SQuAD's questions and passages, from files in the official layout or from TFDS."""

import json
import pathlib
from typing import NamedTuple

from keras_bert_zoo.data.tables import load_tfds

COLUMNS = ("id", "title", "question", "context", "answers", "is_impossible")


class Answer(NamedTuple):
    """What answers a question, and the character of the passage it begins at."""

    text: str
    start: int


def read_squad(source: str) -> dict[str, list]:
    """Return the questions of a SQuAD 1.1 or 2.0 file, or of others in its layout, as columns.

    Args:
        source: a `.json` file in the official layout (Rajpurkar et al. 2016 and 2018), or
            `tfds:name:split`, such as `tfds:squad:train` or `tfds:squad/v2.0:validation`.

    Returns:
        Lists of equal length: `id`, `title`, `question` and `context`, strings; `answers`,
        a list a question of `Answer(text, start)` with `context[start:]` beginning with
        `text`; and `is_impossible`, whether the passage is said to hold no answer. Answers
        of no characters, which stand for answers held back, are left out.

    Raises:
        ValueError: the file is missing, has another layout, or holds an answer that does
            not stand where it is said to.

    Example:
        >>> import tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "mine.json"
        >>> question = {
        ...     "id": "1", "question": "Who wrote it?",
        ...     "answers": [{"text": "Ann Lee", "answer_start": 3}]}
        >>> paragraph = {"context": "By Ann Lee.", "qas": [question]}
        >>> _ = path.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
        >>> read_squad(str(path))["answers"]
        [[Answer(text='Ann Lee', start=3)]]
    """
    source = str(source)
    rows = _tfds_rows(source) if source.startswith("tfds:") else _file_rows(source)
    table = {name: [] for name in COLUMNS}
    for row in rows:
        row["answers"] = [Answer(*answer) for answer in row["answers"] if answer[0]]
        for text, start in row["answers"]:
            if not row["context"].startswith(text, start):
                raise ValueError(
                    f"The answer {text!r} of the question {row['id']!r} in {source!r} does not "
                    f"begin at character {start} of its passage. There stands "
                    f"{row['context'][start : start + len(text)]!r}."
                )
        for name, column in table.items():
            column.append(row[name])
    if not table["id"]:
        raise ValueError(f"There are no questions in {source!r}.")
    return table


def _file_rows(source):
    path = pathlib.Path(source)
    if not path.is_file():
        raise ValueError(f"There is no file {source!r}.")
    try:
        articles = json.loads(path.read_text(encoding="utf-8-sig"))["data"]
        for article in articles:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    answers = question.get("answers", [])
                    yield {
                        "id": question["id"],
                        "title": article.get("title", ""),
                        "question": question["question"],
                        "context": paragraph["context"],
                        "answers": [(a["text"], a["answer_start"]) for a in answers],
                        "is_impossible": question.get("is_impossible", False),
                    }
    except json.JSONDecodeError as error:
        raise ValueError(f"{source!r} is not JSON: {error}.") from error
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{source!r} has not SQuAD's layout, data > paragraphs > qas with id, question and "
            f"answers > text, answer_start: {error!r}."
        ) from error


def _tfds_rows(source):
    dataset, info, tfds = load_tfds(source)
    missing = {"id", "question", "context", "answers"} - set(info.features)
    if missing:
        raise ValueError(f"{source!r} has not SQuAD's features: {sorted(missing)} are missing.")
    for row in tfds.as_numpy(dataset):
        answers = row["answers"]
        yield {
            **{
                name: row.get(name, b"").decode() for name in ("id", "title", "question", "context")
            },
            "answers": [
                (text.decode(), int(start))
                for text, start in zip(answers["text"], answers["answer_start"], strict=True)
            ],
            "is_impossible": bool(row.get("is_impossible", False)),
        }
