"""``evaluate.py`` without a real engine (specification section 9): several models, contexts and
numbers of objectives, what it writes, and how a stopped call goes on.

The models are stand-ins that know the answers of some of eight questions, so every figure can be
worked out by hand.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from mempo.agent.error_rate import ToolFailureError
from mempo.agent.prompts import load_template
from mempo.command.cli import compose, compose_tree
from mempo.command.run_settings import evaluation_settings
from mempo.config import Config
from mempo.data.compose import row_ids
from mempo.data.tasks import load_heldout_tasks, load_task_sets
from mempo.evaluation.files import EvaluationFolder, claimed
from mempo.evaluation.models import EvaluatedModel
from mempo.evaluation.standalone import evaluate_models
from mempo.judging.judge import JudgeFailureError
from mempo.row_files.rows import DataError
from mempo.runtime.errors import ConfigError
from mempo.runtime.names import short_labels
from mempo.trajectory import Task
from tests.support.fakes import AnsweringEngine
from tests.support.judge_server import Asked, judge_server, same_words
from tests.support.small_tokenizers import make_tokenizer

QUESTIONS = 8
KNOWN = {"good": 8, "half": 4}
"""How many of the questions each model knows: those with the lowest numbers."""


@pytest.fixture
def data(tmp_path: Path) -> list[str]:
    """Overrides for eight held-out questions, ``Who is number 3?`` with the answer ``gold 3``."""
    rows = [{"question": f"Who is number {i}?", "answer": f"gold {i}"} for i in range(QUESTIONS)]
    write_lines(tmp_path / "heldout.jsonl", [{"id": f"q{i}", **row} for i, row in enumerate(rows)])
    write_lines(tmp_path / "train.jsonl", [{"question": "Who trains?", "answer": "I"}])
    write_lines(tmp_path / "corpus.jsonl", [{"id": "p", "contents": "Number\nNumber 3 is gold."}])
    return [
        "data=local",
        f"data.questions={tmp_path}/train.jsonl",
        f"data.heldout_questions={tmp_path}/heldout.jsonl",
        f"data.corpus={tmp_path}/corpus.jsonl",
        "evaluation.bootstrap_samples=200",
        "callbacks.progress_bars=false",
    ]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with a model folder for each of ``KNOWN``."""
    for name in KNOWN:
        make_model(tmp_path / "models" / name)
    return tmp_path / "models"


def make_model(folder: Path) -> None:
    make_tokenizer("bytes").save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    (folder / "model.safetensors").write_bytes(b"weights")


def make_run(folder: Path, overrides: Sequence[str]) -> Path:
    """A finished run of ``train.py`` with these overrides."""
    make_model(folder / "model")
    (folder / ".hydra").mkdir()
    OmegaConf.save(compose_tree("train", overrides), folder / ".hydra" / "config.yaml")
    return folder


def write_lines(path: Path, records: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


class Engines:
    """Starts a stand-in engine for each model and keeps it."""

    def __init__(self, stop_after: int | None = None, error: BaseException | None = None) -> None:
        self.started: list[AnsweringEngine] = []
        self.names: list[str] = []
        self._stop = stop_after, error

    def __call__(self, model: EvaluatedModel, config: Config) -> AnsweringEngine:
        assert all(engine.closed == 1 for engine in self.started), "one engine after the other"
        known = next(KNOWN[part] for part in Path(model.path).parts[::-1] if part in KNOWN)
        engine = AnsweringEngine(model.conversation, answer_up_to(known), *self._stop)
        self.started.append(engine)
        self.names.append(model.name)
        return engine

    @property
    def seeds(self) -> dict[tuple[str, str], int]:
        """Of each model's first requests: the seed by the prompt's text."""
        return {
            (name, engine._conversation.decode(request.prompt_ids)): request.seed
            for name, engine in zip(self.names, self.started, strict=True)
            for request in engine.requests
        }


def answer_up_to(known: int) -> Callable[[str], str]:
    def answer(prompt: str) -> str:
        numbers = [int(found) for found in re.findall(r"number (\d)\?", prompt)]
        parts = [f"gold {n}" if n < known else "nothing" for n in numbers]
        return f"<think>so</think><answer>{'; '.join(parts)}</answer>"

    return answer


def run(folder: Path, overrides: Sequence[str], engines: Engines | None = None) -> dict[str, Any]:
    config = compose("evaluate", overrides, run_dir=folder)
    return evaluate_models(config, engines or Engines())


def both(models: Path) -> str:
    return f"evaluation.models={{good: {models}/good, half: {models}/half}}"


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# What it writes


def test_entries_of_every_model_and_context(data: list[str], models: Path, tmp_path: Path) -> None:
    folder, engines = tmp_path / "run", Engines()
    found = run(folder, [*data, both(models), "evaluation.objectives=[1,2]"], engines)
    assert found == json.loads((folder / "evaluation.json").read_text())
    assert list(found) == ["good/memory", "good/full", "half/memory", "half/full"]
    assert engines.names == ["good", "half"]
    assert [engine.closed for engine in engines.started] == [1, 1]
    # Every question stands in one task of one and in one of two objectives.
    for name, exact in (("good/memory", 100.0), ("half/memory", 50.0), ("half/full", 50.0)):
        entry = found[name]
        assert entry["tasks"] == 8 + 4
        assert (entry["exact_match"], entry["answered"], entry["rounds"]) == (exact, 1.0, 1.0)
        assert entry["by_objectives"]["1"]["tasks"] == 8
        assert entry["by_objectives"]["1"]["exact_match"] == exact
        assert entry["by_objectives"]["2"]["tasks"] == 4
        assert entry["by_objectives"]["2"]["exact_match"] == exact
        assert entry["by_objectives"]["2"]["exact_match_sum"] == exact / 50
        low, high = entry["by_objectives"]["1"]["ci95"]["exact_match"]
        assert low <= exact <= high
        assert list(entry["by_rounds"]) == ["1"]
    assert found["half/memory"]["by_objectives"]["1"]["ci95"]["exact_match"][0] < 50.0
    assert found["good/memory"]["ci95"]["exact_match"] == [100.0, 100.0]


def test_a_row_for_each_model_context_and_task(
    data: list[str], models: Path, tmp_path: Path
) -> None:
    folder, engines = tmp_path / "run", Engines()
    run(folder, [*data, both(models), "evaluation.objectives=[1,2]"], engines)
    rows = read_csv(folder / "evaluation.csv")
    assert len(rows) == 2 * 2 * (8 + 4)
    assert [row["task"] for row in rows[:8]] == [f"q{i}" for i in range(8)]
    one = next(row for row in rows if (row["model"], row["task"]) == ("half", "q5"))
    assert (one["context"], one["objectives"], one["exact_match"]) == ("memory", "1", "0.0")
    assert (one["rounds"], one["ending"], one["tool_calls"]) == ("1", "answered", "0.0")
    request = engines.started[1].requests[5]
    sent = len(request.prompt_ids) + len(request.generation.ids)
    assert (float(one["total_tokens"]), float(one["peak_tokens"])) == (sent, sent)


def test_trajectories_name_model_and_context(data: list[str], models: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(folder, [*data, both(models), "evaluation.objectives=[2]"])
    lines = [json.loads(line) for line in (folder / "trajectories.jsonl").read_text().splitlines()]
    assert [(line["model"], line["context"]) for line in lines[::4]] == [
        ("good", "memory"),
        ("good", "full"),
        ("half", "memory"),
        ("half", "full"),
    ]
    assert lines[0]["rounds"][0]["action"] == "answer"
    assert len(lines[0]["golds"]) == 2
    from mempo.records.trajectory_lines import read_trajectories

    assert read_trajectories(folder / "trajectories.jsonl")[-1].context == "full"


def test_differences_on_the_same_tasks(data: list[str], models: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(folder, [*data, both(models), "evaluation.objectives=[1,2]"])
    rows = read_csv(folder / "differences.csv")
    pairs = dict.fromkeys(
        tuple(row[key] for key in ("model", "context", "minus_model", "minus_context"))
        for row in rows
    )
    assert list(pairs) == [
        ("good", "full", "good", "memory"),
        ("half", "memory", "good", "memory"),
        ("half", "full", "good", "full"),
        ("half", "full", "half", "memory"),
    ]
    exact = [row for row in rows if row["metric"] == "exact_match"]
    assert [row["objectives"] for row in exact[:3]] == ["1", "2", "all"]
    lost = exact[3:6]  # half minus good, with the memory
    assert [float(row["difference"]) for row in lost] == [-50.0, -50.0, -50.0]
    assert all(float(row["low"]) < -50.0 < float(row["high"]) for row in (lost[0], lost[2]))
    same = exact[0]  # the same answers in both contexts
    assert [float(same[key]) for key in ("difference", "low", "high")] == [0.0, 0.0, 0.0]


def test_tables_and_picture(
    data: list[str], models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    run(folder, [*data, both(models), "evaluation.objectives=[1,2]"])
    told = capsys.readouterr().out
    assert re.search(r"half\s+│ memory\s+│\s+1 │\s+8 │\s+50\.0 │", told)
    assert re.search(r"half, memory\s+│ good, memory\s+│\s+2 │\s+-50\.0 \(", told)
    assert "Paired differences" in told
    assert (folder / "evaluation.png").read_bytes().startswith(b"\x89PNG")


def test_one_model_keeps_its_folder_as_name(
    data: list[str], models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_model(models / "half" / "model")  # a run folder stands for its model/
    overrides = [*data, f"evaluation.model_path={models}/half", "evaluation.contexts=[full]"]
    found = run(tmp_path / "run", overrides)
    assert list(found) == [f"{models}/half/model/full"]
    entry = found[f"{models}/half/model/full"]
    assert entry["exact_match"] == 50.0
    assert "ci95" not in entry["by_objectives"]["1"]  # it is the entry's own
    told = capsys.readouterr().out
    assert re.search(r"│ half\s+│ full", told)
    assert "Paired differences" not in told
    assert read_csv(tmp_path / "run" / "differences.csv") == []


def test_contexts_by_name(data: list[str], models: Path, tmp_path: Path) -> None:
    overrides = [
        *data,
        f"evaluation.models={models}/good",
        "evaluation.contexts=[keep_three,mine]",
        "+evaluation.modes.mine={keep_steps: 2, newest: short}",
    ]
    found = run(tmp_path / "run", overrides)
    assert list(found) == [f"{models}/good/keep_three", f"{models}/good/mine"]


def test_ids_that_hold_the_joiner_stay_apart(data: list[str], models: Path, tmp_path: Path) -> None:
    """Rows a+b, c and rows a, b+c make two tasks; the model knows the first one's answers."""
    numbers = {"a+b": 0, "c": 1, "a": 6, "b+c": 7}
    rows = [
        {"id": name, "question": f"Who is number {i}?", "answer": f"gold {i}"}
        for name, i in numbers.items()
    ]
    write_lines(tmp_path / "heldout.jsonl", rows)
    overrides = [*data, f"evaluation.models={models}/half", "evaluation.objectives=[2]"]
    pairs = [["a", "b+c"], ["a+b", "c"]]
    seed = next(
        seed
        for seed in range(1000)
        for tasks in [heldout([*overrides, f"data.seed={seed}"])[2]]
        if sorted(task.metadata["rows"] for task in tasks) == pairs
    )
    found = run(tmp_path / "run", [*overrides, f"data.seed={seed}", "evaluation.contexts=[full]"])
    (entry,) = found.values()
    assert (entry["tasks"], entry["exact_match"]) == (2, 50.0)
    lines = (tmp_path / "run" / "trajectories.jsonl").read_text().splitlines()
    assert sorted(row_ids(json.loads(line)["task"]) for line in lines) == pairs


def heldout(overrides: Sequence[str]) -> Mapping[int, list[Task]]:
    return load_heldout_tasks(compose("evaluate", overrides)).by_objectives


def test_names_with_slashes_stay_apart(data: list[str], models: Path, tmp_path: Path) -> None:
    """A model may be called m/a; then a context may not be called a/b, or m/a/b would be two."""
    named = f"evaluation.models={{m: {models}/good, m/a: {models}/half}}"
    found = run(tmp_path / "run", [*data, named])
    exact = {name: entry["exact_match"] for name, entry in found.items()}
    assert exact == {"m/memory": 100.0, "m/full": 100.0, "m/a/memory": 50.0, "m/a/full": 50.0}
    config = compose("evaluate", [*data, named, "+evaluation.modes.b={keep_steps: 2}"])
    with pytest.raises(ValueError, match="a name holds no slash"):
        replace(config.evaluation, modes={"a/b": config.evaluation.modes["b"]})


def test_skipped_rows_are_told(
    data: list[str], models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "heldout.jsonl").open("a") as file:
        file.write('{"question": "Who is number 9?"}\n')
    overrides = [*data, f"evaluation.model_path={models}/good", "data.skip_bad_rows=true"]
    found = run(tmp_path / "run", [*overrides, "evaluation.objectives=[1]"])
    assert found[f"{models}/good/memory"]["tasks"] == 8
    assert "1 malformed rows were left out (data.skip_bad_rows)" in capsys.readouterr().out


# Going on


def files(folder: Path) -> dict[str, bytes]:
    names = ("evaluation.json", "evaluation.csv", "differences.csv", "trajectories.jsonl")
    return {name: (folder / name).read_bytes() for name in names}


SAMPLED = ["evaluation.objectives=[1,2]", "evaluation.temperature=1.0"]


def test_a_judge_that_fails_spoils_no_task(data: list[str], models: Path, tmp_path: Path) -> None:
    """The task without a verdict is done again by the next call, and no other one."""

    def script(asked: Asked, number: int) -> str | int:
        return 500 if number < QUESTIONS and asked.answer == "gold 3" else same_words(asked, number)

    folder, engines = tmp_path / "run", Engines()
    with judge_server(script) as server:
        overrides = [*data, f"evaluation.model_path={models}/half", "evaluation.contexts=[full]"]
        overrides += ["evaluation.objectives=[1]", f"cache_dir={tmp_path}/cache", *server.settings]
        overrides.append("reward.judge.retries=0")
        with pytest.raises(JudgeFailureError, match="1 of 8 judgements"):
            run(folder, overrides, engines)
        kept = [json.loads(line) for line in (folder / "trajectories.jsonl").open()]
        assert {line["task"] for line in kept} == {f"q{i}" for i in range(QUESTIONS)} - {"q3"}
        (entry,) = run(folder, overrides, engines).values()
        assert [len(one.requests) for one in engines.started] == [QUESTIONS, 1]
        assert len(server.asked) == QUESTIONS + 1
    assert (entry["judge"], entry["judge_agreement"], entry["judge_failed"]) == (50.0, 1.0, 0.0)


def test_circles_change_nothing_but_their_count(
    data: list[str], models: Path, tmp_path: Path
) -> None:
    def go_round(prompt: str) -> str:
        return "<mem>m</mem><think>so</think><search>number</search>"

    class Circling(Engines):
        def __call__(self, model: EvaluatedModel, config: Config) -> AnsweringEngine:
            self.started.append(AnsweringEngine(model.conversation, go_round))
            return self.started[-1]

    found, engines = {}, {}
    for reuse in ("true", "false"):
        settings = [f"evaluation.reuse_repeats={reuse}", "evaluation.max_rounds=9"]
        settings += [f"evaluation.model_path={models}/good", "evaluation.prefill_memory=false"]
        engines[reuse] = Circling()
        folder = tmp_path / reuse
        entries = run(folder, [*data, *settings], engines[reuse])
        expected = {"true": [9.0 - 2, 0.0], "false": [0.0, 0.0]}[reuse]  # memory, full
        assert [entry["repeated_rounds"] for entry in entries.values()] == expected
        rows = read_csv(folder / "evaluation.csv")
        assert [row.pop("repeated_rounds") for row in rows] == [
            str(count) for count in expected for _ in range(QUESTIONS)
        ]
        lines = [
            json.loads(line) for line in (folder / "trajectories.jsonl").read_text().splitlines()
        ]
        assert {line.pop("repeated_rounds") for line in lines} == set(expected)
        found[reuse] = rows, lines
    assert found["true"] == found["false"]
    sampled = {reuse: len(one.started[0].requests) for reuse, one in engines.items()}
    assert sampled == {"true": QUESTIONS * (2 + 9), "false": QUESTIONS * (9 + 9)}


def test_torchtitan_3602_a_stopped_call_goes_on_and_ends_the_same(
    data: list[str], models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [*data, both(models), *SAMPLED]
    whole = Engines()
    run(tmp_path / "whole", overrides, whole)
    folder, stopped = tmp_path / "run", Engines(stop_after=5)
    with pytest.raises(KeyboardInterrupt):
        run(folder, overrides, stopped)
    assert len((folder / "trajectories.jsonl").read_text().splitlines()) == 5
    assert [engine.closed for engine in stopped.started] == [1]
    with (folder / "trajectories.jsonl").open("a") as file:
        file.write('{"model": "good", "cont')  # killed while it wrote
    resumed = Engines(stop_after=22)
    with pytest.raises(KeyboardInterrupt):
        run(folder, overrides, resumed)
    # 12 tasks in each of 2 contexts: 19 of the first model were left, then 22 of the second's.
    assert "5 of 48 trajectories are in" in capsys.readouterr().out
    assert [len(engine.requests) for engine in resumed.started] == [19, 24]
    assert len((folder / "trajectories.jsonl").read_text().splitlines()) == 46
    last = Engines()
    run(folder, overrides, last)
    assert (last.names, len(last.started[0].requests)) == (["half"], 2)
    assert files(folder) == files(tmp_path / "whole")
    assert resumed.seeds.items() <= whole.seeds.items()
    done = Engines()
    run(folder, overrides, done)
    assert done.started == []
    assert files(folder) == files(tmp_path / "whole")


def test_a_tasks_seed_does_not_depend_on_the_other_tasks(
    data: list[str], models: Path, tmp_path: Path
) -> None:
    overrides = [*data, f"evaluation.models={models}/half", "evaluation.contexts=[memory]"]
    many, few = Engines(), Engines()
    run(tmp_path / "many", [*overrides, *SAMPLED], many)
    run(tmp_path / "few", [*overrides, *SAMPLED, "evaluation.tasks=3"], few)
    assert len(few.seeds) == 3 + 3
    assert few.seeds.items() <= many.seeds.items()
    assert len(set(many.seeds.values())) == 8 + 4
    other = Engines()
    run(tmp_path / "other", [*overrides, *SAMPLED, "seed=1"], other)
    assert not set(other.seeds.values()) & set(many.seeds.values())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("evaluation.max_rounds=3", "evaluation.max_rounds: 64 there, 3 now"),
        ("seed=1", "seed: 0 there, 1 now"),
        ("evaluation.modes.keep_three.keep_steps=4", "keep_three.keep_steps: 3 there, 4 now"),
        ("evaluation.contexts=[full]", "evaluation.contexts: ['memory', 'full'] there, ['full']"),
        ("evaluation.max_observation_tokens=99", "evaluation.max_observation_tokens: 1024 there"),
    ],
)
def test_another_configuration_in_the_folder_is_refused(
    data: list[str], models: Path, tmp_path: Path, change: str, told: str
) -> None:
    overrides = [*data, f"evaluation.model_path={models}/good"]
    run(tmp_path / "run", overrides)
    engines = Engines()
    with pytest.raises(ConfigError, match=re.escape(told)):
        run(tmp_path / "run", [*overrides, change], engines)
    assert engines.started == []
    before = files(tmp_path / "run")
    run(tmp_path / "run", [*overrides, "engine.max_num_seqs=3"], engines)
    assert engines.started == []
    assert files(tmp_path / "run") == before


def test_other_questions_or_weights_in_the_folder_are_refused(
    data: list[str], models: Path, tmp_path: Path
) -> None:
    overrides = [*data, f"evaluation.model_path={models}/good"]
    run(tmp_path / "run", overrides)
    (models / "good" / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(ConfigError, match=r"model\.safetensors: 7 bytes.* there, 13 bytes"):
        run(tmp_path / "run", overrides)
    run(tmp_path / "other", overrides)
    text = (tmp_path / "heldout.jsonl").read_text()
    (tmp_path / "heldout.jsonl").write_text(text.replace("gold 7", "Ann"))
    with pytest.raises(ConfigError, match=r"tasks\.1: 8 tasks, "):
        run(tmp_path / "other", overrides)


def test_a_training_runs_folder_is_refused(data: list[str], models: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "trajectories.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"trajectories\.jsonl is not evaluate\.py's"):
        run(tmp_path / "run", [*data, f"evaluation.model_path={models}/good"])
    assert (tmp_path / "run" / "trajectories.jsonl").read_text() == "{}\n"


def test_two_calls_in_one_folder_are_refused(data: list[str], models: Path, tmp_path: Path) -> None:
    with (
        claimed(tmp_path / "run"),
        pytest.raises(ConfigError, match=r"another evaluate\.py is at work"),
    ):
        run(tmp_path / "run", [*data, f"evaluation.model_path={models}/good"])


def test_what_a_failing_retriever_spoiled_is_done_again(
    data: list[str], models: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    overrides = [*data, f"evaluation.model_path={models}/good", "evaluation.objectives=[1]"]
    with pytest.raises(KeyboardInterrupt):
        run(folder, overrides, Engines(stop_after=3))
    path = folder / "trajectories.jsonl"
    lines = [json.loads(line) for line in path.open()]
    lines[1]["tool_errors"] = 1
    write_lines(path, lines)
    with pytest.raises(ToolFailureError):
        run(folder, overrides, Engines(stop_after=2, error=ToolFailureError("the server is down")))
    kept = [json.loads(line)["task"] for line in path.open()]
    assert kept == ["q0", "q2", "q3", "q4"]
    settings = json.loads((folder / "evaluation_settings.json").read_text())
    assert len(EvaluationFolder(folder, settings).records) == 4


# Runs bring their settings


def test_each_run_is_spoken_to_as_it_was_trained(
    data: list[str], models: Path, tmp_path: Path
) -> None:
    """Two runs in one call, by their folders alone: each has its own instructions and system
    message, and the tasks are those of the runs, not of the generated world."""
    spoken = {"good": ("default", "Be right."), "half": ("compact", "Be half right.")}
    runs = {}
    for name, (template, system) in spoken.items():
        runs[name] = make_run(tmp_path / "runs" / name, [*data, "model.prompt_template=" + template,
                              f"model.system_prompt='{system}'"])  # fmt: skip
    named = f"evaluation.models={{good: {runs['good']}, half: {runs['half']}}}"
    folder, engines = tmp_path / "run", Engines()
    settings = evaluation_settings([named, "evaluation.contexts=[memory]"], str(folder))
    found = evaluate_models(settings.config, engines, settings.own)
    assert {name: entry["exact_match"] for name, entry in found.items()} == {
        "good/memory": 100.0,
        "half/memory": 50.0,
    }
    assert engines.names == list(spoken)
    for engine, (template, system) in zip(engines.started, spoken.values(), strict=True):
        assert len(engine.requests) == QUESTIONS
        for number, request in enumerate(engine.requests):
            prompt = engine._conversation.decode(request.prompt_ids)
            text = load_template(template).render(question=f"Who is number {number}?")
            assert system in prompt
            assert text in prompt
    record = json.loads((folder / "evaluation_settings.json").read_text())
    assert {
        name: (one["model"]["prompt_template"], one["model"]["system_prompt"])
        for name, one in record["models"].items()
    } == spoken
    assert record["data"]["format"] == "local"


# What is wrong is told before an engine starts


def refused(folder: Path, overrides: Sequence[str], error: type[Exception], match: str) -> None:
    engines = Engines()
    with pytest.raises(error, match=match):
        run(folder, overrides, engines)
    assert engines.started == []
    assert not (folder / "evaluation_settings.json").exists()


def test_every_model_is_checked_first(data: list[str], models: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def second(path: str) -> list[str]:
        return [*data, f"evaluation.models=[{models}/good,{path}]"]

    refused(folder, data, ConfigError, r"evaluation\.model_path is empty")
    missing = f"{models}/nowhere"
    refused(folder, second(missing), ConfigError, rf"evaluation\.models={missing}: no such folder")
    (models / "empty").mkdir()
    refused(folder, second(f"{models}/empty"), ConfigError, r"neither it nor its model/ holds")
    make_model(models / "weightless")
    (models / "weightless" / "model.safetensors").unlink()
    refused(folder, second(f"{models}/weightless"), ConfigError, r"but no weights")
    (models / "base").mkdir()
    (models / "base" / "config.json").write_text('{"model_type": "qwen2"}')
    (models / "base" / "model.safetensors").write_bytes(b"")
    (models / "base" / "tokenizer.json").write_text("{")
    refused(folder, second(f"{models}/base"), ConfigError, r"base: its tokenizer cannot be opened")
    tokenizer = make_tokenizer("bytes")
    template, tokenizer.chat_template = tokenizer.chat_template, None
    tokenizer.save_pretrained(models / "base")
    tokenizer.chat_template = template
    refused(folder, second(f"{models}/base"), ConfigError, r"base: the tokenizer has no chat temp")
    make_model(models / "good" / "model")
    refused(folder, second(f"{models}/good/model"), ConfigError, r"good/model twice")


def test_tasks_are_checked_first(data: list[str], models: Path, tmp_path: Path) -> None:
    overrides = [*data, f"evaluation.model_path={models}/good"]
    refused(
        tmp_path / "run",
        [*overrides, "evaluation.objectives=[1,9]"],
        DataError,
        r"evaluation\.objectives=9 needs at least 9 questions and there are 8",
    )
    refused(
        tmp_path / "run",
        [*overrides, "data.objectives=10"],
        DataError,
        r"data\.objectives=10 needs at least 10 questions",
    )
    refused(
        tmp_path / "run",
        [*overrides, "model.prompt_template=nowhere"],
        ConfigError,
        r"model\.prompt_template=nowhere",
    )


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["evaluation.contexts=[memory,keep_four]"], ["'keep_four'", "keep_three, keep_all"]),
        (["evaluation.contexts=[memory,memory]"], ["evaluation.contexts", "'memory' twice"]),
        (["evaluation.contexts=[]"], ["evaluation.contexts is empty"]),
        (["evaluation.objectives=[2,2]"], ["evaluation.objectives", "2 twice"]),
        (["evaluation.objectives=[0]"], ["evaluation.objectives", "greater than or equal to 1"]),
        (["evaluation.models=[a,a]"], ["evaluation.models", "'a' twice"]),
        (
            ["evaluation.models=[a]", "evaluation.model_path=b"],
            ["evaluation.models", "one of them"],
        ),
        (["+evaluation.modes.full={keep_steps: 2}"], ["evaluation.modes.full", "another name"]),
        (["+evaluation.modes.x={keep_steps: 0}"], ["evaluation.modes.x", "at least 1, or all"]),
        (["+evaluation.modes.x={context: full, newest: short}"], ["evaluation.modes.x", "newest"]),
        (["+evaluation.modes.x={keepsteps: 1}"], ["evaluation.modes.x.keepsteps", "no such"]),
    ],
)
def test_wrong_settings_are_told(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        compose("evaluate", overrides)
    for word in words:
        assert word in str(caught.value)


# Parts


def test_heldout_tasks_are_those_of_training(data: list[str]) -> None:
    for overrides in (data, ["data=world", "data.world.train_tasks=9", "data.world.passages=80"]):
        config = compose(
            "evaluate", [*overrides, "evaluation.objectives=[1,2]", "rollout.tasks_per_epoch=1"]
        )
        found = load_heldout_tasks(config).by_objectives
        assert list(found) == [1, 2]
        for count, tasks in found.items():
            again = compose(
                "train", [*overrides, f"data.objectives={count}", "rollout.tasks_per_epoch=1"]
            )
            if "data=world" in overrides or count == 1:
                assert load_task_sets(again).heldout == tasks
            assert {len(task.objectives) for task in tasks} == {count}


@pytest.mark.parametrize(
    ("models", "labels"),
    [
        (["runs/2026/12-00-00/model"], ["12-00-00"]),
        (["runs/a/model", "runs/b/model", "owner/name"], ["a", "b", "name"]),
        (["runs/a/x/model", "runs/b/x/model"], ["a/x", "b/x"]),
        (["model"], ["model"]),
        (["", "a"], ["", "a"]),
    ],
)
def test_labels_are_as_short_as_tells_them_apart(models: list[str], labels: list[str]) -> None:
    assert short_labels(models) == labels
