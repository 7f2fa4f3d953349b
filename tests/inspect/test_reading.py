"""What the inspector reads, and how it names what it cannot read (around the method)."""

from __future__ import annotations

from pathlib import Path

import pytest

from mempo.inspect.__main__ import main
from mempo.inspect.document import render_page
from mempo.inspect.reading import read_run
from mempo.inspect.views import Limits
from mempo.runtime.errors import MempoError
from tests.support.inspected_run import Elements, make_run, trajectory, write_lines


def test_half_written_last_line_is_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for name in ("metrics.jsonl", "trajectories.jsonl"):
        with (run / name).open("ab") as file:
            file.write('{"epoch": 2, "task": "é'.encode()[:-1])
    found = read_run(run)
    assert (len(found.metrics), len(found.trajectories)) == (2, 4)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{oops}", "line 2: not JSON"),
        ("[1]", "line 2: "),
        ('{"epoch": 0, "task": "t"}', "line 2: sample: "),
        ('{"epoch": 0, "task": "t", "sample": 0, "rounds": [{"number": 1}]}',
         r"line 2: rounds\.0\.text: "),
        ('{"epoch": 0, "task": "t", "sample": 0, "rounds": [], "reward": NaN}',
         "line 2: reward: .*finite"),
    ],
)  # fmt: skip
def test_a_broken_line_is_told_with_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    run = make_run(tmp_path)
    lines = (run / "trajectories.jsonl").read_text().splitlines(keepends=True)
    (run / "trajectories.jsonl").write_text(lines[0] + line + "\n" + lines[1])
    with pytest.raises(MempoError, match=rf"trajectories\.jsonl, {message}"):
        read_run(run)


def test_broken_metrics_evaluation_configuration_and_facts(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / "metrics.jsonl").write_text('{"epoch": 0, "x": Infinity}\n')
    with pytest.raises(MempoError, match=r"metrics\.jsonl, line 1: "):
        read_run(run)
    (run / "metrics.jsonl").write_text('{"reward/mean": 0}\n')
    with pytest.raises(MempoError, match=r"metrics\.jsonl, line 1: there is no epoch"):
        read_run(run)
    make_run(tmp_path)
    (run / "evaluation.json").write_text("{")
    with pytest.raises(MempoError, match=r"evaluation\.json: not JSON"):
        read_run(run)
    make_run(tmp_path)
    (run / ".hydra").mkdir()
    (run / ".hydra" / "config.yaml").write_text("memory: {weight: heavy}\n")
    with pytest.raises(MempoError, match=r"config\.yaml: memory_weight: "):
        read_run(run)
    (run / ".hydra" / "config.yaml").write_text(
        "algorithm: {name: mempo}\nmemory: {weight: 0.5}\nrun_dir: ${hydra:runtime.output_dir}\n"
    )
    assert read_run(run).settings.memory_weight == 0.5
    wrong = {"chains": [[{"subject": "a"}]], "world_seed": 0}
    write_lines(
        run / "trajectories.jsonl", [trajectory("a", 0), trajectory("b", 0, metadata=wrong)]
    )
    with pytest.raises(MempoError, match=r"trajectories\.jsonl, line 2: metadata\.chains"):
        render_page(read_run(run), Limits())


def test_a_wrong_folder_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([str(tmp_path / "nowhere")])
    assert caught.value.code == 2
    assert "no such folder" in capsys.readouterr().err
    (tmp_path / "photos").mkdir()
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    told = capsys.readouterr().err
    assert "metrics.jsonl and trajectories.jsonl are missing (it holds photos)" in told


def test_command_line_writes_one_file(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(run), "--trajectories", "2"])
    output = run / "inspector.html"
    assert capsys.readouterr().out == f"wrote {output}\n"
    assert len(Elements(output.read_text(encoding="utf-8")).data["trajectories"]) == 2
    output.unlink()
    with pytest.raises(SystemExit):
        main([str(run), "--trajectories", "0"])
    assert "at least 1" in capsys.readouterr().err
