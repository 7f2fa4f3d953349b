"""The forgetting report (around section 9). The figures of four trajectories are worked out by
hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mempo.forgetting.__main__ import main
from mempo.forgetting.figures import forgetting_figures, wrong_objectives
from mempo.forgetting.report import DETAILED_GROUPS, read_report
from mempo.records.fact_histories import fact_histories
from mempo.records.trajectory_lines import TrajectoryLine

MAYOR = {"subject": "Belcott", "relation": "mayor", "object": "Arlo Berrick"}
AUTHOR = {"subject": "Almond Ballad", "relation": "author", "object": "Aura Barson"}
EMPLOYER = {"subject": "Aura Barson", "relation": "employer", "object": "Amber Lines"}
CHAINS = [
    [{**fact, "on_page": False, "sentence": ""} for fact in chain]
    for chain in ([MAYOR], [AUTHOR, EMPLOYER])
]
TELLS_MAYOR = "<information>1. Belcott: A town, mayor Arlo Berrick.</information>"
TELLS_AUTHOR = "<information>1. Almond Ballad: A novel, author Aura Barson.</information>"

Round = tuple[str | None, str | None]
"""Memory and observation."""

# Mayor: told in round 1; held, held, lost, held. Author: told in 2; held, made up for, lost.
# Employer: written in 4 without a tool; lost.
LOSES: list[Round] = [
    (None, TELLS_MAYOR),
    ("Belcott mayor Arlo Berrick.", TELLS_AUTHOR),
    ("Belcott mayor Arlo Berrick. Almond Ballad author Aura Barson.", "nothing"),
    ("Aura Barson employer Amber Lines.", "nothing"),
    ("Belcott mayor Arlo Berrick.", None),
]
# Mayor: told in round 1, never written. Author, employer: never found.
WRITES_NOTHING: list[Round] = [(None, TELLS_MAYOR), ("nothing yet", "nothing")]
# Mayor: written in round 1 without a tool, held. Author: told in 1, never written, but the later
# employer is held.
KNOWS: list[Round] = [
    ("Belcott mayor Arlo Berrick.", TELLS_AUTHOR),
    ("Belcott mayor Arlo Berrick. Aura Barson employer Amber Lines.", None),
]


def line(task: str, rounds: list[Round], answer: str | None, **values: Any) -> dict[str, Any]:
    return {
        "epoch": 0,
        "task": task,
        "sample": 0,
        "golds": [["Arlo Berrick"], ["Amber Lines"]],
        "metadata": {"chains": CHAINS, "world_seed": 0},
        "answer": answer,
        "rounds": [
            {"number": number, "text": "", "mem": mem, "observation": observation}
            for number, (mem, observation) in enumerate(rounds, start=1)
        ],
        **values,
    }


def lines() -> list[dict[str, Any]]:
    return [
        line("loses", LOSES, "Arlo Berrick; Rome"),
        line("unanswered", WRITES_NOTHING, None),
        line("knows", KNOWS, "Ann; Bob"),
        line("right", [(None, TELLS_MAYOR)], "arlo berrick; Amber Lines"),
    ]


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def figures() -> dict[str, Any]:
    return forgetting_figures([TrajectoryLine(**one) for one in lines()])


def counts(
    memories: int, held: int = 0, made_up: int = 0, lost: int = 0, unwritten: int = 0
) -> dict[str, Any]:
    return {
        "memories": memories,
        "held": held,
        "made_up": made_up,
        "lost": lost,
        "unwritten": unwritten,
        "held_share": held / memories,
        "kept_share": (held + made_up) / memories,
    }


def test_established_facts_by_age(figures: dict[str, Any]) -> None:
    assert (figures["trajectories"], figures["objectives"]) == (4, 8)
    # Established: three, the mayor, mayor with author and employer, the mayor.
    assert (figures["facts"], figures["established"]) == (12, 3 + 1 + 3 + 1)
    assert figures["by_age"] == {
        # loses: mayor and author held, employer lost; unanswered: mayor unwritten; knows: mayor
        # held, author unwritten (the employer came with the last memory).
        "1": counts(6, held=3, lost=1, unwritten=2),
        "2": counts(2, held=1, made_up=1),  # loses: mayor, author
        "3": counts(2, lost=2),  # loses: mayor, author
        "4": counts(1, held=1),  # loses: mayor, written down again
    }
    assert figures["all_ages"] == counts(11, held=5, made_up=1, lost=3, unwritten=2)


def test_losses_by_round(figures: dict[str, Any]) -> None:
    assert figures["by_round"] == {
        "2": {"carried": 1, "lost": 0, "share": 0.0},  # knows: the mayor of round 1
        "3": {"carried": 1, "lost": 0, "share": 0.0},  # loses: the mayor
        "4": {"carried": 2, "lost": 1, "share": 0.5},  # loses: mayor and author; the mayor goes
        "5": {"carried": 2, "lost": 2, "share": 1.0},  # author (made up for) and employer go
    }


def test_wrong_answers_and_their_causes(figures: dict[str, Any]) -> None:
    causes = [
        wrong_objectives(one, fact_histories(one))
        for one in (TrajectoryLine(**values) for values in lines())
    ]
    assert causes == [
        {1: "lost"},  # the mayor was written down again and is right
        {0: "unwritten", 1: "unseen"},
        {0: "known", 1: "known"},
        {},
    ]
    assert figures["wrong_objectives"] == {"lost": 1, "unwritten": 1, "unseen": 1, "known": 2}
    assert (figures["wrong_trajectories"], figures["wrong_from_lost_fact"]) == (3, 1)
    assert figures["wrong_share"] == 0.75
    assert figures["wrong_from_lost_share"] == 0.25
    assert figures["lost_share_of_wrong"] == pytest.approx(1 / 3)


def test_a_lost_fact_of_a_right_objective_is_no_cause() -> None:
    lost = [(None, TELLS_MAYOR), ("Belcott mayor Arlo Berrick.", None), ("nothing", None)]
    found = forgetting_figures([TrajectoryLine(**line("t", lost, "Arlo Berrick; Rome"))])
    assert found["by_round"]["3"] == {"carried": 1, "lost": 1, "share": 1.0}
    assert found["wrong_objectives"] == {"lost": 0, "unwritten": 0, "unseen": 1, "known": 0}
    assert found["wrong_from_lost_fact"] == 0


def test_probabilities_by_round() -> None:
    scored = line("a", WRITES_NOTHING, None)
    scored["rounds"][1].update(p_mem=0.25, p_full=0.5)
    other = line("b", [*WRITES_NOTHING, ("m", None)], None)
    other["rounds"][1].update(p_mem=0.75, p_full=1.0)
    other["rounds"][2].update(p_mem=0.1, p_full=0.2)
    found = forgetting_figures([TrajectoryLine(**one) for one in (scored, other)])
    assert found["probabilities_by_round"] == {
        "2": {"memories": 2, "p_mem": 0.5, "p_full": 0.75},
        "3": {"memories": 1, "p_mem": 0.1, "p_full": 0.2},
    }


def test_nothing_to_divide_by() -> None:
    found = forgetting_figures([TrajectoryLine(**line("t", [], None))])
    assert (found["established"], found["by_age"], found["by_round"]) == (0, {}, {})
    assert found["all_ages"]["held_share"] is None
    right = forgetting_figures([TrajectoryLine(**lines()[3])])
    assert (right["wrong_share"], right["lost_share_of_wrong"]) == (0.0, None)


# Files and groups


def test_groups_of_an_evaluation(tmp_path: Path) -> None:
    records = [
        {**one, "model": f"runs/{model}/model", "context": context}
        for model in ("a", "b")
        for context in ("memory", "full")
        for one in lines()[: 1 if model == "a" else 4]
    ]
    report = read_report(write(tmp_path / "t.jsonl", records))
    assert [group.label for group in report.groups] == [
        "a, memory", "a, full", "b, memory", "b, full",
    ]  # fmt: skip
    assert [group.figures["trajectories"] for group in report.groups] == [1, 1, 4, 4]
    assert report.groups[0].figures["wrong_share"] == 1.0


def test_groups_of_a_training_run(tmp_path: Path) -> None:
    records = [{**one, "epoch": epoch} for epoch in range(11) for one in lines()[:2]]
    records.append({**lines()[0], "metadata": {"hops": 2}})
    report = read_report(write(tmp_path / "t.jsonl", records))
    assert [group.label for group in report.groups] == [
        *(f"epoch {n}" for n in range(1, 12)),
        "all epochs",
    ]
    assert report.groups[-1].figures["trajectories"] == 22
    assert report.others == 1
    shown = [group.epoch for group in report.detailed()]
    assert shown == [0, 2, 4, 6, 8, 10]
    assert len(shown) == DETAILED_GROUPS


def test_groups_that_found_nothing_are_not_shown_in_detail(tmp_path: Path) -> None:
    idle = {**lines()[0], "model": "idle", "context": "memory", "rounds": []}
    able = [{**one, "model": "able", "context": "memory"} for one in lines()[:2]]
    report = read_report(write(tmp_path / "t.jsonl", [idle, *able]))
    assert [group.model for group in report.groups] == ["idle", "able"]
    assert [group.model for group in report.detailed()] == ["able"]
    report = read_report(write(tmp_path / "idle.jsonl", [idle]))
    assert [group.model for group in report.detailed()] == ["idle"]


def test_command_line_writes_json_and_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    records = lines()
    records[0]["rounds"][1].update(p_mem=0.25, p_full=0.5)
    write(run / "trajectories.jsonl", records)
    main([str(run)])
    told = capsys.readouterr().out
    written = json.loads((run / "forgetting.json").read_text())
    assert written["other_trajectories"] == 0
    (group,) = written["groups"]
    assert (group["model"], group["context"], group["epoch"]) == ("", "", 0)
    assert group["by_age"]["3"] == counts(2, lost=2)
    assert (run / "forgetting.png").read_bytes().startswith(b"\x89PNG")
    assert "50 + 0 % of 6" in told  # after one round
    assert "50 + 50 % of 2" in told  # after two
    assert "8 of 12" in told
    assert "3 (75 %)" in told  # wrong
    assert "1 (25 %)" in told  # from a lost fact
    assert "0.25 / 0.50" in told
    assert told.endswith(f"wrote {run}/forgetting.json and {run}/forgetting.png\n")
    main([str(run / "trajectories.jsonl"), "--output", str(tmp_path / "out")])
    assert (tmp_path / "out" / "forgetting.json").read_text() == json.dumps(
        written, ensure_ascii=False, indent=2
    ) + "\n"


def test_agents_without_memory_are_left_out_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that should have written a memory and has not breaks rule 8, and stays."""
    able = [{**one, "model": "m", "context": "memory"} for one in lines()]
    rounds: list[Round] = [(None, TELLS_MAYOR), (None, None)]
    react = {**line("knows", rounds, None), "model": "m", "context": "react"}
    failed = {**line("knows", rounds, None), "model": "m", "context": "full"}
    failed["rounds"] = [dict(failed["rounds"][0]), {**failed["rounds"][1], "broken_rules": [8]}]
    report = read_report(write(tmp_path / "t.jsonl", [*able, react, failed]))
    assert [group.context for group in report.groups] == ["memory", "full"]
    assert report.memoryless == ("m/react",)
    main([str(tmp_path / "t.jsonl")])
    assert "left out, because their agent writes no memory: m/react" in capsys.readouterr().out
    write(tmp_path / "t.jsonl", [react])
    with pytest.raises(SystemExit):
        main([str(tmp_path / "t.jsonl")])
    assert "its agents write no memory (m/react)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (None, "no such file"),
        ([{**lines()[0], "metadata": {}}], "none of its 1 trajectories"),
        ([{"epoch": 0}], "line 1: task"),
        ([lines()[0], {**lines()[0], "golds": [["a"]]}], "line 2: metadata.chains: 2 chains for 1"),
        ([{**lines()[0], "metadata": {"chains": [[{}]], "world_seed": 0}}], "line 1: metadata"),
    ],
)
def test_what_cannot_be_read_is_told(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    records: list[dict[str, Any]] | None,
    message: str,
) -> None:
    if records is not None:
        write(tmp_path / "trajectories.jsonl", records)
    with pytest.raises(SystemExit) as caught:
        main([str(tmp_path)])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
