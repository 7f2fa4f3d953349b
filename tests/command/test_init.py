"""``mempo init``: the packages that it writes work at once (around the method)."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mempo.agent.tools import check_tools
from mempo.command import init
from mempo.command.cli import CONF_DIR
from mempo.command.init import KINDS, main, training_command, write_package
from mempo.config import ToolConfig
from mempo.judging.own_functions import call_function, load_function
from mempo.runtime.errors import MempoError
from mempo.trajectory import Objective, Task
from tests.support.programs import ROOT, run_program

PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_packages_are_whole_and_their_tests_pass(here: Path) -> None:
    write_package("reward", "held", here)
    write_package("tool", "my_notes", here)
    write_package("callback", "task", here)  # also a name that its own code uses
    assert files(here) == {
        "my_notes/__init__.py", "my_notes/tool.py", "my_notes/test_my_notes.py",
        "my_notes/conf/tools/my_notes.yaml", "task/__init__.py", "task/callback.py",
        "task/test_task.py", "task/conf/callbacks/task.yaml", "held/__init__.py", "held/reward.py",
        "held/test_held.py", "held/conf/experiment/held.yaml",
    }  # fmt: skip
    texts = {name: (here / name).read_text("utf-8") for name in files(here)}
    assert not [name for name, text in texts.items() if "$" in text]
    assert "class MyNotesTool:" in texts["my_notes/tool.py"]
    done = subprocess.run(
        [*PYTEST, "my_notes", "task", "held"],
        cwd=here, capture_output=True, text=True, timeout=300, env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


def test_the_tools_entry_is_one(here: Path) -> None:
    write_package("tool", "my_notes", here)
    written = yaml.safe_load((here / "my_notes/conf/tools/my_notes.yaml").read_text("utf-8"))
    assert written["tools"][:2] == ["search", "access"]
    entry = ToolConfig(**written["tools"][2])
    assert (entry.tag, entry._target_) == ("my_notes", "my_notes.tool.MyNotesTool")
    check_tools([entry])
    assert (here / "my_notes/conf/tools/my_notes.yaml").read_text("utf-8").startswith("# @package")


def test_what_it_prints_can_be_typed(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEMPO_PROGRAM", "mempo init")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    main(["tool", "word_count"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "wrote word_count/__init__.py"
    train = "mempo train --config-dir word_count/conf tools=word_count experiment=debug"
    assert lines[-1].split(maxsplit=1) == ["train:", f"{train} trainer.max_epochs=1"]
    assert lines[-2].endswith(" -m pytest word_count")
    main(["callback", "loud"])
    printed = capsys.readouterr().out.splitlines()[-1].split(maxsplit=1)[1]
    assert printed == training_command("callback", "loud")
    for command, told in ((lines[-1], "tag: word_count"), (printed, "loud.callback.LoudCallback")):
        arguments = shlex.split(command.partition("mempo train ")[2])
        config = run_program("-m", "mempo", "train", *arguments, "--cfg", "job", folder=here)
        assert told in config


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("tool", "Notes", "Notes: a package's name is a lower-case letter, then"),
        ("tool", "../notes", "a package's name is"),
        ("callback", "class", "class: a package's name is"),
        ("tool", "json", "json: an installed module has that name"),
        ("callback", "mempo", "mempo: an installed module has that name"),
        ("tool", "search", "search: the agent writes that tag already"),
        ("tool", "mem", "mem: the agent writes that tag already"),
        ("tool", "mine", "mine: it is there already: choose another name, or remove it"),
    ],
)
def test_names_that_cannot_be_taken_get_a_sentence(
    here: Path, kind: str, name: str, words: str
) -> None:
    (here / "mine").mkdir()
    with pytest.raises(MempoError, match=words):
        write_package(kind, name, here)
    assert files(here) == set()


def test_the_reward_is_one_whatever_was_answered(here: Path) -> None:
    """As a run calls it; a trajectory may end without an answer."""
    write_package("reward", "held_golds", here)
    path = here / "held_golds" / "conf" / "experiment" / "held_golds.yaml"
    name = yaml.safe_load(path.read_text("utf-8"))["reward"]["metric"]
    assert name == "held_golds.reward.score"
    task = Task("t", (Objective("Who?", ("Ann",)), Objective("Where?", ("Tolm",))))
    score = load_function(name)
    for answer, worth in ((None, 0.0), ("", 0.0), ("ann", 0.5), ("Ann; Tolm", 1.0)):
        assert call_function(name, score, answer, task, "here") == {name: worth}


def test_each_kind_has_its_templates() -> None:
    scaffolds = Path(init.__file__).with_name("scaffolds")
    assert {path.name for path in scaffolds.iterdir()} == set(KINDS)
    for kind in KINDS:
        (setting,) = (scaffolds / kind / "conf").iterdir()
        assert setting.name in {path.name for path in CONF_DIR.iterdir()}
        assert KINDS[kind].settings == f"{setting.name}={{name}}"
