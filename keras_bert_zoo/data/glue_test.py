"""GLUE's official files with their oddities, and TensorFlow Datasets' GLUE."""

import os
import pathlib

import pytest

from keras_bert_zoo.data.glue import GLUE_TASKS, glue_task, read_glue

pytestmark = pytest.mark.backend_free

DATA = os.environ.get("KERAS_BERT_ZOO_DATA")
real_data = pytest.mark.skipif(DATA is None, reason="KERAS_BERT_ZOO_DATA is not set")

# A file of each task in the official layout, and its first example.
MNLI = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse"
    "\tsentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label\n"
    "0\t1\t2\tfiction\t\t\t\t\tHe ran.\tHe sat.\tneutral\tcontradiction\n"
)
PAIR = "index\tsentence1\tsentence2\tlabel\n"
MICROSOFT = (
    "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
    '1\t10\t11\tHe said "no.\tHe "refused".\r\n'
    "0\t20\t21\tOne.\tTwo.\r\n"
    "1\t30\t31\tThree.\tThird.\r\n"
)
OFFICIAL = [
    ("CoLA", "train", "CoLA/train.tsv", "gj04\t0\t*\tThey is.\n", ("They is.", "unacceptable")),
    ("CoLA", "test", "CoLA/test.tsv", "index\tsentence\n0\tThey is.\n", ("They is.", None)),
    ("SST-2", "dev", "SST-2/dev.tsv", 'sentence\tlabel\n" fine \t1\n', ('" fine ', "positive")),
    ("MRPC", "dev", "MRPC/dev.tsv", MICROSOFT, ('He said "no.', 'He "refused".', "equivalent")),
    (
        "MRPC",
        "test",
        "MRPC/test.tsv",
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\tOne.\tTwo.\n",
        ("One.", "Two.", None),
    ),
    (
        "STS-B",
        "dev",
        "STS-B/dev.tsv",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        "0\tmain-captions\tMSRvid\t2012test\t0002\tnone\tnone\tA man.\tA boy.\t4.750\n",
        ("A man.", "A boy.", 4.75),
    ),
    (
        "QQP",
        "dev",
        "QQP/dev.tsv",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\tWho?\tWhat?\t1\n",
        ("Who?", "What?", "duplicate"),
    ),
    ("MNLI-m", "train", "MNLI/train.tsv", MNLI, ("He ran.", "He sat.", "contradiction")),
    ("MNLI-m", "dev", "MNLI/dev_matched.tsv", MNLI, ("He ran.", "He sat.", "contradiction")),
    ("MNLI-mm", "dev", "MNLI/dev_mismatched.tsv", MNLI, ("He ran.", "He sat.", "contradiction")),
    (
        "QNLI",
        "dev",
        "QNLI/dev.tsv",
        "index\tquestion\tsentence\tlabel\n0\tWho?\tHe.\tentailment\n",
        ("Who?", "He.", "entailment"),
    ),
    ("RTE", "dev", "RTE/dev.tsv", PAIR + "0\ta\tb\tnot_entailment\n", ("a", "b", "not_entailment")),
    ("WNLI", "dev", "WNLI/dev.tsv", PAIR + "0\ta\tb\t1\n", ("a", "b", "entailment")),
    (
        "AX",
        "test",
        "diagnostic/diagnostic.tsv",
        "index\tsentence1\tsentence2\n0\ta\tb\n",
        ("a", "b", None),
    ),
]


def written(folder, name, content):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content.encode())
    return path


def first(table):
    return tuple(table[name][0] for name in ("text", "second", "label") if name in table)


@pytest.mark.parametrize(
    ("task", "split", "file", "content", "example"),
    OFFICIAL,
    ids=[row[2] for row in OFFICIAL],
)
def test_official_files_are_read(tmp_path, task, split, file, content, example):
    path = written(tmp_path, file, content)
    table = read_glue(task, split, tmp_path)
    assert first(table) == example
    assert table["id"] == list(range(len(table["text"])))
    # The folder of the one task does as well.
    assert read_glue(task, split, path.parent) == table


def test_microsofts_files_are_parted_by_the_list_of_dev_pairs(tmp_path):
    written(tmp_path, "MRPC/msr_paraphrase_train.txt", MICROSOFT)
    written(tmp_path, "MRPC/msr_paraphrase_test.txt", MICROSOFT)
    assert read_glue("mrpc", "train", tmp_path)["text"] == ['He said "no.', "One.", "Three."]
    assert read_glue("mrpc", "test", tmp_path)["label"][1] == "not_equivalent"
    with pytest.raises(ValueError, match=r"mrpc_dev_ids.tsv, which is not there. Read train"):
        read_glue("mrpc", "dev", tmp_path)
    written(tmp_path, "MRPC/mrpc_dev_ids.tsv", "20\t21\n10\t99\n")
    assert read_glue("mrpc", "dev", tmp_path)["text"] == ["One."]
    assert read_glue("mrpc", "train", tmp_path)["text"] == ['He said "no.', "Three."]


def test_lines_of_qqp_that_are_broken_in_two_are_left_out_of_training_alone(tmp_path):
    head = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    content = head + "7\t1\t2\tWho?\tWhat?\t1\n8\t3\t4\tWhy\n?\tHow?\t0\n9\t5\t6\tA?\tB?\t0\n"
    written(tmp_path, "QQP/train.tsv", content)
    with pytest.warns(UserWarning, match="2 lines of .* the first line 3"):
        table = read_glue("qqp", "train", tmp_path)
    assert (table["id"], table["second"]) == ([7, 9], ["What?", "B?"])
    written(tmp_path, "QQP/dev.tsv", content)
    with pytest.raises(ValueError, match="Row 3 .* 4 fields"):
        read_glue("qqp", "dev", tmp_path)


@pytest.mark.parametrize(
    ("task", "split", "content", "message"),
    [
        ("boolq", "dev", "", "no task 'boolq'.*CoLA, SST-2"),
        ("AX", "train", "", r"AX has no split 'train'.*\['test'\]"),
        ("SST-2", "test", "", r"has neither SST-2/test.tsv of SST-2 nor test.tsv"),
        ("SST-2", "dev", "sentence\tlabel\na\tpositive\n", r"Row 1 .*\['0', '1'\].*'positive'"),
        ("SST-2", "dev", "sentence\ttext\na\tb\n", "no column 'label'.*'sentence', 'text'"),
        ("RTE", "dev", PAIR + "0\ta\tb\tentailment\n1\ta\tb\t1\n", "Row 2 .*'not_entailment'.*'1'"),
        ("QNLI", "dev", PAIR + "0\ta\tb\tentailment\n", "no column 'question'"),
        ("RTE", "dev", PAIR + "x\ta\tb\tentailment\n", "must hold numbers.*'x'"),
        ("STS-B", "dev", "sentence1\tsentence2\tscore\na\tb\t6\n", "score from 0 to 5.*'6'"),
        ("STS-B", "dev", "sentence1\tsentence2\tscore\na\tb\tnan\n", "score from 0 to 5.*'nan'"),
    ],
)
def test_what_is_not_glue_is_named(tmp_path, task, split, content, message):
    if content:
        written(tmp_path, f"{task}/{split}.tsv", content)
    with pytest.raises(ValueError, match=message):
        read_glue(task, split, tmp_path)


def test_tasks_go_by_either_name():
    for name, task in GLUE_TASKS.items():
        assert glue_task(name) is task and glue_task(name.lower()) is task
        if not name.startswith("MNLI"):
            assert glue_task(f"glue/{task.tfds}") is task
    assert glue_task("glue/mnli_matched").name == "MNLI-m"
    assert glue_task("glue/mnli_mismatched").name == "MNLI-mm"
    assert glue_task("mnli").name == "MNLI-m"


def test_what_tfds_says_of_each_task_is_what_the_table_says():
    pytest.importorskip("tensorflow_datasets", reason="tensorflow-datasets is missing")
    from tensorflow_datasets.text import glue

    configs = {config.name: config for config in glue.Glue.BUILDER_CONFIGS}
    for task in GLUE_TASKS.values():
        config = configs[task.tfds]
        assert tuple(config.text_features) == (task.tfds_columns or task.columns)
        assert tuple(config.label_classes or ()) == task.classes
        if task.name not in ("AX", "CoLA"):  # of these the files name no column of labels
            assert config.label_column == task.label
        if task.name != "MRPC":  # which is not GLUE's to give
            assert tuple(config.text_features.values()) == task.columns


def test_tfds_is_read_in_the_official_order_with_names_of_classes(tmp_path, monkeypatch):
    tfds = pytest.importorskip("tensorflow_datasets", reason="tensorflow-datasets is missing")
    from tensorflow_datasets.text import glue

    monkeypatch.setattr(
        tfds.download.DownloadManager, "download_and_extract", lambda *_: str(tmp_path)
    )
    load, where = tfds.load, tmp_path / "prepared"
    monkeypatch.setattr(tfds, "load", lambda name, **kw: load(name, data_dir=where, **kw))
    head = "index\tsentence1\tsentence2"
    rows = [f"{i}\tfirst {i}\tsecond {i}" for i in range(20)]
    for folder, column, label in (("WNLI", "label", "1"), ("STS-B", "score", "2.500")):
        labelled = "".join([f"{head}\t{column}\n", *(f"{row}\t{label}\n" for row in rows)])
        for split in ("train", "dev"):
            written(tmp_path, f"{folder}/{split}.tsv", labelled)
        written(tmp_path, f"{folder}/test.tsv", "\n".join([head, *rows]))
        task = glue_task(folder)
        glue.Glue(config=task.tfds, data_dir=where).download_and_prepare()
        for split in task.splits:
            assert read_glue(folder, split) == read_glue(folder, split, tmp_path)
    assert first(read_glue("wnli", "dev")) == ("first 0", "second 0", "entailment")
    assert set(read_glue("glue/stsb", "test")["label"]) == {None}


@real_data
@pytest.mark.parametrize(
    ("task", "sizes"),
    [
        ("CoLA", {"train": 8551, "dev": 1043}),
        ("SST-2", {"train": 67349, "dev": 872}),
        ("MRPC", {"train": 4076, "test": 1725}),
        ("STS-B", {"train": 5749, "dev": 1500}),
        ("QNLI", {"dev": 5463}),
        ("RTE", {"train": 2490, "dev": 277}),
        ("WNLI", {"train": 635, "dev": 71}),
    ],
)
def test_real_files_have_the_published_numbers_of_examples(task, sizes):
    folder = pathlib.Path(DATA) / "glue"
    row = GLUE_TASKS[task]
    if (folder / row.folder / "test.tsv").is_file():
        sizes = {**sizes, "test": row.test_size}
    for split, size in sizes.items():
        table = read_glue(task, split, folder)
        assert {len(column) for column in table.values()} == {size}
        if split == "test":
            assert table["id"] == list(range(size))
        elif not row.is_regression:
            assert set(table["label"]) == set(row.classes)
