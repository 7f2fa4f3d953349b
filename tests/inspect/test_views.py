"""What the inspector's page is given of each trajectory, and within which limits (around the
method).

Expected values are worked out by hand from the run that ``make_run`` writes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mempo.inspect.document import render_page
from mempo.inspect.reading import read_run
from mempo.inspect.selection import by_importance, within
from mempo.inspect.views import Limits, Table, span_views, trajectory_view, trajectory_views
from mempo.records.trajectory_lines import RoundLine, TrajectoryLine
from mempo.runtime.errors import MempoError
from tests.support.inspected_run import (
    WORLD_ROUNDS,
    Elements,
    make_run,
    round_line,
    trajectory,
    world_trajectory,
    write_lines,
)


def test_values_to_sort_and_filter_by() -> None:
    tasks, observations = Table(), Table()
    view = trajectory_view(TrajectoryLine(**world_trajectory()), 1.0, Limits(), tasks, observations)
    assert view["epoch"] == 2  # counted from 1
    assert view["memory"] == pytest.approx((-0.25 + 0.25 + 0.6) / 3)
    assert view["held"] == 1  # of three; the mayor
    assert view["lost"] == [4, 5]
    assert [one["facts"] for one in view["rounds"]] == [
        ["u", "u", "u"],
        ["h", "u", "u"],
        ["h", "h", "u"],
        ["l+!", "s+", "h"],
        ["h", "l+!", "l+!"],
    ]
    assert [fact["noun"] for fact in tasks.values[0]["facts"]] == ["mayor", "author", "employer"]
    assert len(observations.values) == 3  # "nothing" is kept once
    assert [one["observation"] for one in view["rounds"]] == [0, 1, 2, 2, None]


@pytest.mark.parametrize(("context", "memory"), [("memory", True), ("react", False), ("", True)])
def test_in_a_context_without_memory_its_tag_is_text(
    tmp_path: Path, context: str, memory: bool
) -> None:
    line = round_line(1, "a", text="<mem>a</mem><think>b</think><search>c</search>")
    write_lines(
        tmp_path / "trajectories.jsonl", [trajectory("t", 0, rounds=[line], context=context)]
    )
    (view,) = trajectory_views(read_run(tmp_path), Limits())["trajectories"]
    kinds = [kind for kind, *_ in view["rounds"][0]["spans"]]
    assert kinds == (["memory"] if memory else ["other"]) + ["thought", "action"]
    assert view.get("without_memory", False) is not memory


def test_final_advantage_by_span() -> None:
    text = " <mem>a</mem><think>b</think><mem>c</mem><search>d</search>"
    one = RoundLine(number=2, text=text, mem="a", memory_advantage=-2.0)
    assert span_views(one, 0.5, 0.5) == [
        ("other", " ", 0.5),
        ("memory", "<mem>a</mem>", -0.5),
        ("thought", "<think>b</think>", 0.5),
        ("memory", "<mem>c</mem>", 0.5),  # only the first memory is scored
        ("action", "<search>d</search>", 0.5),
    ]
    assert {advantage for *_, advantage in span_views(one, None, 1.0)} == {None}
    unscored = RoundLine(number=1, text=text, mem="a")
    assert {advantage for *_, advantage in span_views(unscored, 0.25, 1.0)} == {0.25}


def test_differences_are_against_the_newest_memory_before() -> None:
    rounds = [round_line(1, "a"), round_line(2), round_line(3, "a b")]
    line = TrajectoryLine(**trajectory("t", 0, rounds=rounds))
    view = trajectory_view(line, 1.0, Limits(), Table(), Table())
    assert [one["difference"] for one in view["rounds"]] == [
        [("added", "a")],
        None,
        [("same", "a "), ("added", "b")],
    ]


def scored(epoch: int, reward: float | None) -> TrajectoryLine:
    rounds = [] if reward is None else [round_line(2, "m", memory_reward=reward)]
    return TrajectoryLine(**trajectory("t", 0, epoch, rounds=rounds))


def test_the_best_the_worst_and_the_newest_come_first() -> None:
    rewards = [0.1, 0.9, None, -0.9, 0.2, 0.3, 0.0, 0.0, 0.0, 0.0, 0.5, -0.5]
    lines = [scored(index // 4, reward) for index, reward in enumerate(rewards)]
    # One of the best, one of the worst, six of the newest epochs; then again.
    expected = [1, 3, 8, 9, 10, 11, 4, 5, 0, 6, 7, 2]
    # The second round: the best left is 0 (0.1), the worst left is 6 (0.0).
    assert by_importance(lines) == expected
    assert by_importance([scored(0, None), scored(1, None)]) == [1, 0]
    assert by_importance([]) == []


def test_limits_on_number_and_bytes() -> None:
    order = [3, 0, 2, 1]
    assert within(order, None, lambda _: 10, 1000) == [0, 1, 2, 3]
    assert within(order, 2, lambda _: 10, None) == [0, 3]
    assert within(order, None, lambda index: 10 + index, 25) == [0, 3]
    assert within(order, None, lambda _: 10, 1) == [3]  # never none
    assert within([], None, lambda _: 10, 1) == []


def test_page_tells_how_many_were_left_out(run: Path) -> None:
    page = render_page(read_run(run), Limits(trajectories=3))
    assert "1 of 4 trajectories are left out" in page
    data = Elements(page).data
    assert data["total"] == 4
    # The best (world), the worst (hostile), the first of what is left of the newest epochs.
    assert [one["line"] for one in data["trajectories"]] == [1, 3, 4]
    assert data["trajectories"][0]["group_size"] == 2
    assert "left out" not in "".join(Elements(render_page(read_run(run), Limits())).text)


def test_observations_are_cut_and_the_budget_holds(run: Path) -> None:
    limits = Limits(observation_chars=20)
    views = trajectory_views(read_run(run), limits)
    world = views["trajectories"][-1]["rounds"][0]
    assert views["observations"][world["observation"]] == WORLD_ROUNDS[0][1][:20]
    assert world["cut"] == len(WORLD_ROUNDS[0][1]) - 20
    assert len(trajectory_views(read_run(run), Limits(budget=1))["trajectories"]) == 1
    # A number that a person asks for is theirs, whatever it weighs.
    asked = Limits(trajectories=3, budget=1)
    assert len(trajectory_views(read_run(run), asked)["trajectories"]) == 3


def test_rounds_are_cut_by_the_runs_own_tags(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    text = "<think>so</think><calculate>1 + 1</calculate>"
    rounds = [round_line(1, text=text, action="calculate", argument="1 + 1")]
    write_lines(run / "trajectories.jsonl", [trajectory("sum", 0, rounds=rounds)])
    config = run / ".hydra" / "config.yaml"
    config.parent.mkdir()
    config.write_text("tools: [search, {tag: calculate, _target_: a.b, description: null}]\n")
    (view,) = trajectory_views(read_run(run), Limits())["trajectories"]
    assert view["rounds"][0]["action"] == "calculate"
    assert [kind for kind, *_ in view["rounds"][0]["spans"]] == ["thought", "action"]
    config.write_text("seed: 3\n")
    (view,) = trajectory_views(read_run(run), Limits())["trajectories"]
    kinds = [kind for kind, *_ in view["rounds"][0]["spans"]]
    assert kinds == ["thought", "other"]
    config.write_text("tools: 4\n")
    with pytest.raises(MempoError, match=r"config\.yaml: tools is no list"):
        read_run(run)
