"""Stored trajectories judged anew (specification section 5): ``mempo rescore``, and the judge as a
column of an evaluation."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from mempo.command.cli import compose
from mempo.command.rescore import main
from mempo.config import RewardConfig
from mempo.evaluation.differences import paired_differences
from mempo.evaluation.evaluate import evaluation_entry, summary
from mempo.evaluation.rescore import rescore, stored_task
from mempo.evaluation.settings import deciding_settings
from mempo.evaluation.tables import print_table, wide_console, write_tasks_csv
from mempo.judging.judging import Judging
from mempo.records.trajectory_lines import TrajectoryLine, read_trajectories
from mempo.records.trajectory_records import trajectory_record
from mempo.trajectory import Ending, Objective, Task, Trajectory
from tests.support.judge_server import judge_server, same_words
from tests.support.own_rewards import HERE

ANSWERS = ("Ann", "ANN Lee", "Dr. Ann", None)


def stored(answer: str | None, number: int, epoch: int = 0, **more: Any) -> dict[str, Any]:
    """A line as a run with exact match writes it; the gold is ``Ann``."""
    one = Trajectory(
        Task(f"t{number}", (Objective("Who?", ("Ann",)),)),
        epoch,
        0,
        prompt_length=0,
        answer=answer,
        format_valid=answer != "Dr. Ann",
        ending=Ending.ANSWERED if answer else Ending.NO_ACTION,
    )
    with Judging(RewardConfig()) as judging:
        judging.begin("", one)
        list(judging.take())
    return {**more, **trajectory_record(one)}


def write(path: Path, lines: list[dict[str, Any]]) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path.read_bytes()


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_is_judged_by_another_metric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [stored(answer, n, epoch) for epoch in (0, 1) for n, answer in enumerate(ANSWERS)]
    before = write(tmp_path / "trajectories.jsonl", lines)
    main([str(tmp_path), "reward.metric=f1"])
    said = capsys.readouterr().out
    # By hand: F1 of "ANN Lee" is 2/3, and "Dr. Ann" broke the format; before it was 1 of 4.
    rows = [line.split("│")[1:-1] for line in said.splitlines() if line.startswith("│")]
    shown = [[cell.strip() for cell in row[:5]] for row in rows]
    assert shown == [
        ["epoch 1", "4", "0.250", "0.417", "1"],
        ["epoch 2", "4", "0.250", "0.417", "1"],
        ["all", "8", "0.250", "0.417", "2"],
    ]
    rows_ = read_csv(tmp_path / "rescored.csv")
    assert [row["reward_before"] for row in rows_[:4]] == ["1.0", "0.0", "0.0", "0.0"]
    assert [float(row["reward"]) for row in rows_[:4]] == pytest.approx([1.0, 2 / 3, 0.0, 0.0])
    assert [row["f1"] for row in rows_[4:]][2] == str(2 / 3)
    assert (rows_[3]["answer"], rows_[3]["task"], rows_[5]["epoch"]) == ("", "t3", "1")
    found = json.loads((tmp_path / "rescored.json").read_text())
    assert found["reward"]["metric"] == "f1"
    assert found["groups"]["epoch 1"]["reward"] == pytest.approx(5 / 12)
    assert (tmp_path / "trajectories.jsonl").read_bytes() == before


def test_nothing_is_written_over(tmp_path: Path) -> None:
    write(tmp_path / "trajectories.jsonl", [stored("Ann", 0)])
    (tmp_path / "rescored.csv").write_text("mine")
    main([str(tmp_path), "reward.metric=f1"])
    first = (tmp_path / "rescored-2.csv").read_bytes()
    main([str(tmp_path / "trajectories.jsonl"), f"reward.metric={HERE}.length"])
    assert (tmp_path / "rescored.csv").read_text() == "mine"
    assert (tmp_path / "rescored-2.csv").read_bytes() == first
    assert read_csv(tmp_path / "rescored-3.csv")[0]["reward"] == "0.03"
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        *("trajectories.jsonl", "rescored.csv", "rescored-2.csv", "rescored-2.json"),
        *("rescored-3.csv", "rescored-3.json"),
    }


def test_an_evaluation_is_judged_by_a_language_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        stored(answer, number, model=model, context="memory")
        for model, answers in (("a", ANSWERS), ("b", ANSWERS[2:]))
        for number, answer in enumerate(answers)
    ]
    write(tmp_path / "trajectories.jsonl", lines)
    with judge_server(same_words) as server:
        settings = [*server.settings, f"cache_dir={tmp_path}/cache"]
        main([str(tmp_path), *settings])
        # The probe, and three answers; "Dr. Ann" of the other model is the same question.
        assert len(server.asked) == 1 + 3
        main([str(tmp_path), *settings, "reward.terms={exact_match: 1.0, judge: 0.5}"])
        assert len(server.asked) == 1 + 3 + 1
    groups = json.loads((tmp_path / "rescored.json").read_text())["groups"]
    assert groups["a/memory"]["judge"] == 2 / 4
    assert groups["a/memory"]["judge_agreement"] == pytest.approx(2 / 3)
    assert (groups["a/memory"]["reward"], groups["b/memory"]["reward"]) == (1 / 4, 0.0)
    again = json.loads((tmp_path / "rescored-2.json").read_text())
    assert again["groups"]["a/memory"]["reward"] == 1.5 / 4
    assert again["reward"]["judge"]["model"] == "scripted"
    assert "judge_agreement" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["reward.metric=bleu"], "'bleu' is none of exact_match"),
        (["seed=3"], "seed=3: stored trajectories are judged by the settings of reward alone"),
        (["reward=jugde"], "reward=jugde: there is no such option; did you mean reward=judge?"),
        (["reward.metric=f1", "reward.wrkers=2"], "did you mean reward.workers?"),
        (["reward.metric=nowhere.fuzzy"], "there is no module nowhere"),
    ],
)
def test_what_cannot_be_done_is_told(
    settings: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "trajectories.jsonl", [stored("Ann", 0)])
    with pytest.raises(SystemExit):
        main([str(tmp_path), *settings])
    assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["trajectories.jsonl"]


def test_a_folder_without_trajectories_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(SystemExit):
            main([str(folder), "reward.metric=f1"])
        assert "does not exist: name the folder of a run" in capsys.readouterr().err


def test_many_lines_keep_their_order() -> None:
    lines = [
        TrajectoryLine(0, f"t{n}", 0, [], question="Who?", golds=[["x"]], answer="x" * (n % 7))
        for n in range(200)
    ]
    told: list[int] = []
    found = rescore(lines, RewardConfig(f"{HERE}.length", workers=3), "unused", told.append)
    assert [one.metrics[f"{HERE}.length"] for one in found] == [(n % 7) / 100 for n in range(200)]
    assert sum(told) == 200


@pytest.mark.parametrize(
    ("question", "golds", "questions"),
    [
        ("Who?; Where?", [["a"], ["b"]], ["Who?", "Where?"]),
        ("Who; or what?", [["a"]], ["Who; or what?"]),
        ("Who; or what?; Where?", [["a"], ["b"]], ["Who; or what?; Where?"] * 2),
    ],
)
def test_questions_of_a_line(question: str, golds: list[list[str]], questions: list[str]) -> None:
    task = stored_task(TrajectoryLine(0, "t", 0, [], question=question, golds=golds))
    assert [one.question for one in task.objectives] == questions
    assert [list(one.golds) for one in task.objectives] == golds


# In an evaluation


def judged(answer: str, exact: float, verdict: float, number: int) -> dict[str, Any]:
    record = stored(answer, number)
    record["metrics"] |= {"exact_match": exact, "judge": verdict, "my_rewards.fuzzy": number / 10}
    if answer:
        record["metrics"]["judge_agreement"] = float(exact == verdict)
    return summary(record)


def test_a_judge_is_one_more_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [judged("Ann", 1, 1, 0), judged("ANN", 0, 1, 1), judged("Bo", 0, 0, 2)]
    rows.append(judged("", 0, 0, 3))
    entry = evaluation_entry(rows, 200, 0)
    assert (entry["exact_match"], entry["judge"]) == (25.0, 50.0)
    assert entry["judge_agreement"] == pytest.approx(2 / 3)  # of those that were judged
    assert entry["my_rewards.fuzzy"] == pytest.approx(0.15)
    low, high = entry["ci95"]["judge"]
    assert low < 50.0 < high
    print_table({"after": {"memory": entry}}, wide_console(200))
    header, row = (
        [cell.strip() for cell in line.strip("┃│").replace("┃", "│").split("│")]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith(("┃", "│"))
    )
    shown = dict(zip(header, row, strict=True))
    assert (shown["EM"], shown["judge"], shown["agrees"]) == ("25.0", "50.0", "0.67")
    assert shown["my_rewards.fuzzy"] == "0.15"
    write_tasks_csv(tmp_path / "t.csv", {("a", "memory"): rows})
    written = read_csv(tmp_path / "t.csv")
    assert [row["judge"] for row in written] == ["1", "1", "0", "0"]
    assert [row["judge_agreement"] for row in written] == ["1.0", "0.0", "1.0", ""]


def test_a_judge_has_paired_differences() -> None:
    one = [judged("Ann", 1, 1, 0), judged("Bo", 0, 0, 1)]
    other = [judged("Ann", 1, 1, 0), judged("ANN", 0, 1, 1)]
    summaries = {("a", "memory"): one, ("b", "memory"): other}
    found = {d.metric: d.value for d in paired_differences(summaries, 0, 0)}
    assert (found["exact_match"], found["judge"]) == (0.0, 50.0)
    plain = summary(stored("Ann", 0))
    without = paired_differences({("a", "m"): [plain], ("b", "m"): [plain]}, 0, 0)
    assert "judge" not in {d.metric for d in without}


def test_where_a_judge_stands_decides_no_figure() -> None:
    def deciding(*settings: str) -> Any:
        return deciding_settings(compose("evaluate", settings), ["reward"])["reward"]

    assert deciding() == deciding("reward.workers=3", "reward.judge.model=x")
    given = ["reward=judge", "reward.judge.url=http://a/v1", "reward.judge.model=x"]
    assert deciding(*given) == deciding(*given, "reward.judge.url=http://b/v1")
    assert deciding(*given) != deciding(*given, "reward.judge.model=y")
    assert deciding(*given) != deciding()


def test_the_lines_are_those_of_a_run(tmp_path: Path) -> None:
    write(tmp_path / "trajectories.jsonl", [stored("Ann", 0)])
    (line,) = read_trajectories(tmp_path / "trajectories.jsonl")
    assert (line.reward, line.answer, line.format_valid) == (1.0, "Ann", True)
