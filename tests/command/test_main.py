"""The command ``mempo``: its subcommands, its hints, its completion, its start of programs
(around the method)."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mempo.command import main as command_main
from mempo.command.cli import compose
from mempo.command.main import SUBCOMMANDS, Subcommand, main
from mempo.command.preflight import check_engine
from mempo.retrieval.index_files import build_command
from mempo.runtime.errors import ConfigError
from mempo.runtime.program import command, started_as
from mempo.runtime.stopping import how_to_go_on
from tests.support.programs import ROOT, run_program

NAMES = (
    "train", "evaluate", "ask", "collect", "inspect", "plots", "forgetting", "rescore", "dashboard",
    "index", "serve", "recall", "init",
)  # fmt: skip


def test_help_says_in_a_line_what_each_subcommand_does(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"]):
        main(arguments)
        lines = capsys.readouterr().out.splitlines()
        listed = [line.split(maxsplit=1) for line in lines[lines.index("subcommands") + 1 :]]
        assert [words[0] for words in listed[: len(NAMES)]] == list(NAMES)
        assert all(len(words[1]) > 20 for words in listed[: len(NAMES)])
        assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("trian", "trian: there is no such subcommand; did you mean train?"),
        ("indx", "indx: there is no such subcommand; did you mean index?"),
        ("qqqqqq", "qqqqqq: there is no such subcommand\n"),
        ("seed=1", "seed=1: there is no such subcommand; settings come after one, as in `mempo tr"),
    ],
)
def test_an_unknown_subcommand_is_told_the_nearest(
    name: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([name])
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {sentence}")


@pytest.mark.parametrize("name", [name for name in NAMES if not SUBCOMMANDS[name].composed])
def test_programs_call_themselves_what_was_typed(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = importlib.import_module(SUBCOMMANDS[name].module)
    module = SUBCOMMANDS[name].module.removesuffix(".__main__")
    for typed in (f"mempo {name}", f"python -m mempo {name}", f"python -m {module}"):
        monkeypatch.setenv("MEMPO_PROGRAM", typed)
        with pytest.raises(SystemExit) as caught:
            program.main(["--help"])
        assert caught.value.code == 0
        assert capsys.readouterr().out.startswith(f"usage: {typed} [-h] ")


def test_hints_can_be_typed_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MEMPO_PROGRAM", "mempo train")
    assert how_to_go_on("runs/a").endswith("\n  mempo train run_dir=runs/a resume=auto")
    assert build_command(Path("c"), Path("i"), 1) == "mempo index c i"
    monkeypatch.setenv("MEMPO_PROGRAM", "python train.py")
    assert how_to_go_on("runs/a").endswith("\n  python train.py run_dir=runs/a resume=auto")
    assert build_command(Path("c"), Path("i"), 1) == "python -m mempo.retrieval.build c i"
    monkeypatch.setenv("MEMPO_PROGRAM", "python -m mempo evaluate")
    assert command("index", "mempo.retrieval.build") == "python -m mempo index"
    monkeypatch.delenv("MEMPO_PROGRAM")
    monkeypatch.setitem(sys.modules, "__main__", sys)  # the main module of a script has no spec
    monkeypatch.setattr(sys, "__spec__", None)
    for name in ("python", "mempo"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "orig_argv", ["python"])
    for path, typed in (("/a/train.py", "python train.py"), (f"{tmp_path}/mempo", "mempo")):
        monkeypatch.setattr(sys, "argv", [path])
        assert started_as() == typed
    monkeypatch.setattr(sys, "orig_argv", [str(tmp_path / "python")])
    monkeypatch.setattr(sys, "argv", ["/a/train.py"])
    assert started_as() == "python train.py"


def test_hints_name_an_interpreter_that_the_shell_does_not_find(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """``.venv/bin/python train.py``, where no environment is activated."""
    monkeypatch.delenv("MEMPO_PROGRAM", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", sys)
    monkeypatch.setattr(sys, "__spec__", None)
    for interpreter in (".venv/bin/python", str(tmp_path / ".venv/bin/python")):
        monkeypatch.setattr(sys, "orig_argv", [interpreter])
        monkeypatch.setattr(sys, "argv", ["train.py"])
        assert how_to_go_on("a").endswith("\n  .venv/bin/python train.py run_dir=a resume=auto")
        assert build_command(Path("c"), Path("i"), 1).startswith(".venv/bin/python -m mempo.retr")
    monkeypatch.setattr(sys, "argv", [str(tmp_path / ".venv/bin/mempo")])
    assert started_as() == ".venv/bin/mempo"
    monkeypatch.setenv("MEMPO_PROGRAM", ".venv/bin/mempo train")
    assert command("index", "mempo.retrieval.build") == ".venv/bin/mempo index"
    monkeypatch.setenv("MEMPO_PROGRAM", "/elsewhere/python train.py")
    assert command("index", "mempo.retrieval.build") == "/elsewhere/python -m mempo.retrieval.build"


@pytest.mark.parametrize(
    "typed", [["train.py"], ["-m", "mempo.command.train"], ["-m", "mempo", "train"]]
)
def test_help_and_refusals_show_the_program_that_was_typed(typed: list[str]) -> None:
    output = run_program(typed[0], *typed[1:], "sed=1", expect=2)
    assert "sed: there is no such setting; did you mean seed?" in output
    assert f"`python {' '.join(typed)} --cfg job` prints all settings" in output


def test_further_processes_are_started_with_the_same_module_and_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lightning's ``ddp`` starts the program again by the main module's name and ``sys.argv``."""
    (tmp_path / "composed_stand_in.py").write_text(
        "from lightning.fabric.strategies.launchers import subprocess_script\n"
        "print(*subprocess_script._basic_subprocess_cmd()[1:])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["/some/bin/mempo", "train", "seed=1"])
    monkeypatch.setenv("MEMPO_PROGRAM", "")
    stand_in = Subcommand("composed_stand_in", "", composed=True)
    monkeypatch.setitem(command_main.SUBCOMMANDS, "train", stand_in)
    main()
    assert capsys.readouterr().out == "-m composed_stand_in seed=1\n"


def test_bash_completes_subcommands(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--completion", "bash"])
    script = capsys.readouterr().out
    main(["--completion", "zsh"])
    assert capsys.readouterr().out.endswith(script)
    for typed, offered in (("mempo tr", "train"), ("mempo ", " ".join(NAMES)), ("mempo x", "")):
        line = f"COMP_LINE='{typed}' COMP_POINT={len(typed)} COMP_CWORD=1 COMP_WORDS=({typed})"
        done = subprocess.run(
            ["bash", "-c", f'{script}\n{line}\n_mempo\necho "${{COMPREPLY[*]}}"'],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == f"{offered}\n"
    with pytest.raises(SystemExit):
        main(["--completion", "fish"])
    assert "bash or zsh" in capsys.readouterr().err


def test_bash_completes_what_an_agent_is_asked_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--completion", "bash"])
    script = capsys.readouterr().out + f'\nmempo() {{ {sys.executable} -m mempo "$@"; }}'
    (tmp_path / "run").mkdir()
    for typed, offered in (
        ("mempo ask --c", "--compare --context"),
        ("mempo ask ru", "run"),
        ("mempo collect --t", "--tasks --teacher --threshold"),
        ("mempo collect run engine=o", "engine=openai"),
        ("mempo ask run Who? retriever=b", "retriever=bm25s"),
        ("mempo ask run data.corpus=x evaluation.max_rounds", "evaluation.max_rounds="),
    ):
        words = typed.split()
        line = f"COMP_LINE='{typed}' COMP_POINT={len(typed)} COMP_CWORD={len(words) - 1}"
        done = subprocess.run(
            ["bash", "-c", f'{script}\n{line}\nCOMP_WORDS=({typed})\n_mempo\n'
             'echo "${COMPREPLY[*]}"'],
            capture_output=True, text=True, check=True, cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert done.stdout == f"{offered}\n"


def test_a_missing_engine_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    check_engine(compose())
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ConfigError, match="the engine is not installed") as caught:
        check_engine(compose())
    for file in ("requirements.txt", "requirements-gpu.txt"):
        [pin] = [line for line in (ROOT / file).read_text().splitlines() if line[:4] == "vllm"]
        assert f"`pip install {pin}`" in str(caught.value)
