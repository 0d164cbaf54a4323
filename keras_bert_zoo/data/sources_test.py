"""Names of data: what each is read as, and what is refused."""

import json

import pytest

from keras_bert_zoo.data.sources import Columns, has_own_splits, read_examples

pytestmark = pytest.mark.backend_free


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_table_gives_what_its_columns_are_called(tmp_path):
    path = write(tmp_path / "a.csv", "q,a,y,n,doc,part\nx,z,1,i7,d,train\nv,w,0,i8,e,dev\n")
    examples = read_examples(path, columns=Columns("q", "a", "y", "n", "doc", "part"))
    assert examples.columns == (["x", "v"], ["z", "w"]) == examples.x
    assert (examples.labels, examples.ids) == (["1", "0"], ["i7", "i8"])
    assert (examples.groups, examples.splits) == (["d", "e"], ["train", "dev"])
    assert examples.files == (path,)
    second = examples.rows([1])
    assert (second.x, second.labels, second.groups) == ((["v"], ["w"]), ["0"], ["e"])


def test_several_labels_are_a_list_or_parted_by_commas(tmp_path):
    path = write(tmp_path / "a.csv", 'text,label\na,"x, y"\nb,\nc,x\n')
    assert read_examples(path, task="labels").labels == [["x", "y"], [], ["x"]]
    lines = [{"text": "a", "label": ["x", "y"]}, {"text": "b", "label": []}]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, lines)))
    assert read_examples(path, task="labels").labels == [["x", "y"], []]


def test_a_label_that_is_no_number_or_missing_is_named(tmp_path):
    path = write(tmp_path / "a.csv", "text,label\na,1.5\nb,high\n")
    with pytest.raises(ValueError, match="Row 2 of .* Received: 'high'"):
        read_examples(path, task="regression")
    lines = [{"text": "a", "label": "x"}, {"text": "b", "label": None}]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, lines)))
    with pytest.raises(ValueError, match="Row 2 of .* has no label"):
        read_examples(path).check_labelled()
    path = write(tmp_path / "a.csv", "text,label\na,nan\nb,1\n")
    with pytest.raises(ValueError, match="Row 1 of .* must have a number .* Received: 'nan'"):
        read_examples(path, task="regression")
    for task in ("classification", "regression"):
        path = write(tmp_path / "a.csv", "text,label\na,1\nb,\n")
        with pytest.raises(ValueError, match="Row 2 of .* has no label"):
            read_examples(path, task=task).check_labelled()


def test_a_column_of_labels_that_is_missing_is_named(tmp_path):
    path = write(tmp_path / "a.csv", "text,sentiment\na,good\n")
    with pytest.raises(ValueError, match="no column 'tone'. It has: .*'sentiment'"):
        read_examples(path, columns=Columns(label="tone"))
    with pytest.raises(ValueError, match="a.csv' has no labels"):
        read_examples(path).check_labelled()


def test_a_data_set_is_read_by_the_split_of_its_name_or_its_place(tmp_path):
    header = "sentence\tlabel\n"
    for name, text in (("train", "good\t1\n"), ("dev", "bad\t0\n")):
        write(tmp_path / "SST-2" / f"{name}.tsv", header + text)
    source = f"glue/sst2={tmp_path}"
    train, dev = read_examples(source), read_examples(source, "dev")
    assert (train.labels, dev.labels) == (["positive"], ["negative"])
    assert (train.task, train.glue, train.classes) == (
        "classification",
        "SST-2",
        ("negative", "positive"),
    )
    assert len(train.files) == 2
    assert read_examples(f"glue/SST-2:dev={tmp_path}").labels == ["negative"]
    assert has_own_splits(source) and not has_own_splits("glue/sst2:dev")


def test_a_language_of_xnli_has_its_classes_and_splits(tmp_path):
    write(tmp_path / "dev-de.tsv", "Es regnet.\tEs ist nass.\tentailment\n")
    examples = read_examples(f"xnli/de={tmp_path}", "dev")
    assert examples.task == "classification" and examples.labels == ["entailment"]
    assert examples.x == (["Es regnet."], ["Es ist nass."])
    assert examples.classes == ("entailment", "neutral", "contradiction")
    assert examples.files == (str(tmp_path / "dev-de.tsv"),)
    assert read_examples(f"xnli/de:dev={tmp_path}").x == examples.x


def test_a_file_in_a_folder_of_a_data_sets_name_is_a_table(tmp_path, monkeypatch):
    write(tmp_path / "glue" / "mine.csv", "text,label\na,b\n")
    monkeypatch.chdir(tmp_path)
    assert read_examples("glue/mine.csv").labels == ["b"]
    assert not has_own_splits("glue/mine.csv")


def test_questions_keep_their_article_and_tell_no_answer_from_one_held_back(tmp_path):
    questions = [
        {"id": "1", "question": "Who?", "answers": [{"text": "Ann", "answer_start": 3}]},
        {"id": "2", "question": "When?", "answers": [], "is_impossible": True},
        {"id": "3", "question": "Why?", "answers": []},
    ]
    articles = [{"title": "T", "paragraphs": [{"context": "By Ann.", "qas": questions}]}]
    path = write(tmp_path / "a.json", json.dumps({"data": articles}))
    examples = read_examples(f"squad:{path}")
    assert examples.task == "question_answering"
    assert examples.labels == [[("Ann", 3)], [], None]
    assert (examples.ids, examples.groups) == (["1", "2", "3"], ["T", "T", "T"])


def test_words_and_choices_are_one_string_where_texts_are_compared(tmp_path):
    path = write(tmp_path / "a.conll", "Ann B-PER\nsings O\n\nYes O\n")
    examples = read_examples(f"conll:{path}")
    assert (examples.task, examples.x) == ("tagging", [["Ann", "sings"], ["Yes"]])
    assert examples.texts == [["Ann sings", "Yes"]]
    path = write(tmp_path / "a.csv", "sent1,sent2,ending0,ending1,label\nRain.,He,sings,runs,1\n")
    examples = read_examples(f"swag:{path}")
    assert (examples.task, examples.labels) == ("multiple_choice", [1])
    assert examples.texts == [["Rain."], ["He sings He runs"]]
    path = write(tmp_path / "codah.tsv", "p\tIt is\tlate.\tblue.\t0\n")
    examples = read_examples(f"codah:{path}")
    assert (examples.x, examples.labels) == ((["It is"], [["late.", "blue."]]), [0])


def test_a_source_of_another_task_is_refused(tmp_path):
    path = write(tmp_path / "a.conll", "Ann B-PER\n")
    with pytest.raises(ValueError, match="'labels', but .* is for 'tagging'"):
        read_examples(f"conll:{path}", task="labels")
    path = write(tmp_path / "a.csv", "text,label\na,b\n")
    with pytest.raises(ValueError, match="not for 'tagging'.*conll:"):
        read_examples(path, task="tagging")
