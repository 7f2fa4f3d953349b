"""``make gpu-check`` on a machine without a GPU: what it runs, and that it can be red
(specification section 10)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import rollout, scoring, update
from gpu_check import __main__ as program
from gpu_check import engine as engine_check
from gpu_check.__main__ import main
from gpu_check.check import RUN, Check
from gpu_check.checks import CHECKS
from gpu_check.page import page, verdict
from gpu_check.running import ROOT, Measured, Outcome, judged, last_line, run_check
from mempo.engine.vllm_engine import Engine

SAYS = Check("says", "a number", ["-c", "print('{\"n\": 0.5}')"], "n", 0.5, "mend it")


def says(text: str) -> Check:
    return replace(SAYS, command=["-c", text])


@pytest.mark.parametrize(
    ("check", "state", "said"),
    [
        (SAYS, "passed", ""),
        (replace(SAYS, limit=0.4), "failed", '{"n": 0.5}'),
        (replace(SAYS, least=True), "passed", ""),
        (replace(SAYS, least=True, limit=0.6), "failed", '{"n": 0.5}'),
        (replace(SAYS, limit=None), "told", ""),
        (replace(SAYS, figure="m"), "failed", '{"n": 0.5}'),
        (says("print('{\"n\": NaN}')"), "failed", '{"n": NaN}'),
        (says("print('{\"n\": null}')"), "failed", '{"n": null}'),
        (says("import sys; sys.exit('it broke')"), "failed", "exit status 1\nit broke"),
        (replace(SAYS, needs="gpu"), "left out", "it needs a GPU, and there is none"),
    ],
)
def test_a_figure_is_judged(check: Check, state: str, said: str) -> None:
    found = run_check(check, gpus=0)
    assert (found.state, found.said) == (state, said)
    assert found.remedy == ("mend it" if state == "failed" else "")


def test_two_processes_run_on_the_cpu_where_there_is_no_gpu() -> None:
    tells = (
        "import sys, json; print(json.dumps({'n': float('trainer.accelerator=cpu' in sys.argv)}))"
    )
    words = ["-c", tells]
    check = replace(
        SAYS, needs="two", command=words, limit=1.0, least=True, on_cpu=["trainer.accelerator=cpu"]
    )
    assert run_check(check, gpus=0).state == "passed"
    assert run_check(check, gpus=1).said == "it needs two GPUs, and there is one"
    assert run_check(check, gpus=2).figure == 0.0
    more = replace(check, needs="more")
    assert run_check(more, gpus=2).said == "it needs more than two GPUs, and there are 2"
    assert run_check(more, gpus=3).figure == 0.0


def test_the_figure_of_a_run_is_its_last_epochs() -> None:
    write = (
        "import sys; open(sys.argv[1] + '/metrics.jsonl', 'w').write('{\"n\": 9}\\n{\"n\": 1}\\n')"
    )
    check = replace(SAYS, command=["-c", write, RUN], limit=None)
    assert run_check(check, gpus=0).figure == 1.0
    assert last_line('a\n{"n": 1}\nb\n') == {"n": 1}


def test_figures_of_one_command_cost_it_once(tmp_path: Path) -> None:
    text = f"open('{tmp_path}/ran', 'a').write('x'); print('{{\"n\": 0.5, \"m\": 2, \"k\": [1]}}')"
    seen: dict[str, Measured] = {}
    one = run_check(replace(says(text), also=("m", "absent")), 0, seen)
    other = run_check(replace(says(text), figure="m", also=("k",)), 0, seen)
    assert (one.figure, one.also, other.figure, other.also) == (0.5, {"m": 2}, 2.0, {"k": [1]})
    assert (tmp_path / "ran").read_text() == "x"
    assert "<br>m 2</td>" in page({}, [one])


def test_one_that_fails_stops_no_other_and_ends_in_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = (replace(SAYS, name="bad", limit=0.1), SAYS, replace(SAYS, name="card", needs="gpu"))
    monkeypatch.setattr(program, "CHECKS", checks)
    assert main(["--output", str(tmp_path / "found")]) == 1
    record = json.loads((tmp_path / "found.json").read_text())
    assert [one["state"] for one in record["checks"]] == ["failed", "passed", "left out"]
    assert record["machine"]["gpus"] == 0
    shown = (tmp_path / "found.html").read_text()
    assert "1 failed: bad (1 passed, 0 told, 1 left out)" in shown
    assert "mend it" in shown
    assert "failed: 0.5, limit 0.1" in capsys.readouterr().out
    assert main(["--only", "says", "--output", str(tmp_path / "one")]) == 0


def test_what_a_command_said_is_text_on_the_page() -> None:
    one = Outcome("a", "b", "failed", said="<script>", command="python x")
    assert "&lt;script&gt;" in page({"gpus": 0}, [one])
    assert "<script>" not in page({"gpus": 0}, [one])
    assert verdict([]) == "0 passed, 0 told, 0 left out"


def test_every_check_says_what_to_do_and_names_a_program() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    for check in CHECKS:
        assert (ROOT / check.command[0]).is_file()
        assert bool(check.remedy) == (check.limit is not None)
        assert not check.quick or check.needs == "nothing"


@pytest.mark.parametrize("name", ["rollout speed", "scoring speed", "update speed"])
def test_the_words_of_what_only_a_gpu_runs_are_known(name: str) -> None:
    """Of the benchmarks that time a card: the program takes them."""
    (check,) = (one for one in CHECKS if one.name == name)
    program, *words = check.command
    parse = {one.__name__.rpartition(".")[2]: one.parse for one in (rollout, scoring, update)}
    asked = parse[Path(program).stem](words)
    assert (asked.model, asked.dtype, asked.matmul_size) == ("smollm2", "bfloat16", 8192)


@pytest.mark.slow
def test_the_real_engine_and_one_that_holds_other_weights(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check sees a trainer whose weights moved behind the engine's back."""
    monkeypatch.setattr("sys.argv", ["engine.py"])
    compared = engine_check.compare
    found = []

    def twice(engine: Engine, model: object, dtype: str, before: int) -> object:
        first = compared(engine, model, dtype, before)
        sync = engine.sync

        def half(weights: object) -> None:
            sync((name, value * 1.01) for name, value in weights)  # type: ignore[attr-defined]

        monkeypatch.setattr(engine, "sync", half)
        found.append(compared(engine, model, dtype, before)["largest_difference"])
        return first

    monkeypatch.setattr(engine_check, "compare", twice)
    engine_check.main()
    good = last_line(capsys.readouterr().out)["largest_difference"]
    (check,) = (one for one in CHECKS if one.name == "engine float32")
    assert judged(check, good, "")[0] == "passed"
    assert judged(check, found[0], "")[0] == "failed"
    assert good < 1e-4
