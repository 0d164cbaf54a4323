"""SQuAD's files and TFDS data sets, read into columns or refused with a reason."""

import json

import numpy as np
import pytest

from keras_bert_zoo.data.squad import read_squad

pytestmark = pytest.mark.backend_free

CONTEXT = "Der Dom ist 157 m hoch. 高さは157メートル。"


def write(folder, questions, name="squad.json", **article):
    paragraphs = [{"context": CONTEXT, "qas": questions}]
    content = {"version": "v2.0", "data": [{"paragraphs": paragraphs, **article}]}
    (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return str(folder / name)


def question(name, *answers, **more):
    answers = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": f"Frage {name}", "answers": answers, **more}


def test_questions_are_columns_with_what_each_of_them_has(tmp_path):
    questions = [
        question("1", ("157 m", 12), ("157メートル", 27)),
        question("2", is_impossible=True, plausible_answers=[{"text": "Dom", "answer_start": 4}]),
    ]
    assert read_squad(write(tmp_path, questions, title="Dom")) == {
        "id": ["1", "2"],
        "title": ["Dom", "Dom"],
        "question": ["Frage 1", "Frage 2"],
        "context": [CONTEXT, CONTEXT],
        "answers": [[("157 m", 12), ("157メートル", 27)], []],
        "is_impossible": [False, True],
    }


def test_answers_held_back_are_none_and_titles_may_be_missing(tmp_path):
    table = read_squad(write(tmp_path, [question("1", ("", 0))]))
    assert (table["answers"], table["is_impossible"], table["title"]) == ([[]], [False], [""])


def test_a_file_with_a_byte_order_mark_is_read(tmp_path):
    path = tmp_path / "marked.json"
    with open(write(tmp_path, [question("1", ("Dom", 4))]), encoding="utf-8") as file:
        path.write_text(file.read(), encoding="utf-8-sig")
    assert read_squad(path)["answers"] == [[("Dom", 4)]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "has not SQuAD's layout"),
        ('{"rows": []}', "has not SQuAD's layout.*'data'"),
        ('{"data": [{"paragraphs": [{"qas": [{"id": "1"}]}]}]}', "layout.*'question'"),
        ('{"data": []}', "no questions"),
    ],
)
def test_another_layout_is_refused(tmp_path, content, message):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_squad(tmp_path / "a.json")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="no file.*nowhere.json"):
        read_squad(tmp_path / "nowhere.json")


def test_an_answer_that_does_not_stand_where_it_should_is_refused(tmp_path):
    path = write(tmp_path, [question("1", ("Dom", 4)), question("2", ("Dom", 5))])
    with pytest.raises(ValueError, match="'Dom' of the question '2'.*character 5.*'om '"):
        read_squad(path)


def test_tfds_data_sets_are_read_by_name(tmp_path, monkeypatch):
    tfds = pytest.importorskip("tensorflow_datasets", reason="tensorflow-datasets is missing")
    text, where = tfds.features.Text(), {"answer_start": np.int32, "text": tfds.features.Text()}
    features = {
        **dict.fromkeys(("id", "title", "question", "context"), text),
        "answers": tfds.features.Sequence(where),
        "is_impossible": np.bool_,
    }

    class ZooSquad(tfds.core.GeneratorBasedBuilder):
        """Two questions."""

        VERSION = tfds.core.Version("1.0.0")
        url_infos = None  # nothing is downloaded

        def _info(self):
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, manager):
            return {"validation": self._generate_examples()}

        def _generate_examples(self):
            for name, starts in (("1", [4, 12]), ("2", [])):
                row = dict.fromkeys(("id", "title", "question"), name)
                answers = {"answer_start": starts, "text": ["Dom", "157 m"][: len(starts)]}
                yield (
                    name,
                    {
                        **row,
                        "context": CONTEXT,
                        "answers": answers,
                        "is_impossible": not starts,
                    },
                )

    ZooSquad(data_dir=tmp_path).download_and_prepare()
    load = tfds.load
    monkeypatch.setattr(tfds, "load", lambda name, **kw: load(name, data_dir=tmp_path, **kw))
    table = read_squad("tfds:zoo_squad:validation")
    rows = dict(zip(table["id"], table["answers"], strict=True))
    assert rows == {"1": [("Dom", 4), ("157 m", 12)], "2": []}
    assert table["context"] == [CONTEXT] * 2
    said = dict(zip(table["id"], table["is_impossible"], strict=True))
    assert said == {"1": False, "2": True}
