"""The run inspector (around the method): what it reads, what it computes, and that nothing of a
model becomes markup.

Expected values are worked out by hand from the run that ``make_run`` writes.
"""

from __future__ import annotations

import http.client
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from mempo.data.world import Fact
from mempo.inspect import document, server
from mempo.inspect.__main__ import main
from mempo.inspect.curves import PANELS, Panel, draw_charts, metric_rows, panel_series
from mempo.inspect.differences import memory_difference
from mempo.inspect.document import evaluation_rows, page_bytes, page_script, render_page
from mempo.inspect.reading import read_run, run_version
from mempo.inspect.selection import by_importance, within
from mempo.inspect.views import Limits, Table, span_views, trajectory_view, trajectory_views
from mempo.records.fact_histories import FactState, fact_histories, is_held, world_chains
from mempo.records.trajectory_lines import RoundLine, TrajectoryLine
from mempo.runtime.errors import MempoError

NODE = shutil.which("node")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

HOSTILE = (
    "<script>alert(1)</script></script><!--<img src=x onerror=alert(2)> \"'` &amp; "
    "\u202egnitset\u202c \u2066a\u2069 \U0001f469\u200d\U0001f680 \u2028 {{ 7 * 7 }} "
    "https://evil.example/x"
)
LONE_SURROGATE = "half \ud83d a pair"

MAYOR = {"subject": "Belcott", "relation": "mayor", "object": "Arlo Berrick"}
AUTHOR = {"subject": "Almond Ballad", "relation": "author", "object": "Aura Barson"}
EMPLOYER = {"subject": "Aura Barson", "relation": "employer", "object": "Amber Lines"}
METADATA = {
    "chains": [
        [{**fact, "on_page": False, "sentence": ""} for fact in chain]
        for chain in ([MAYOR], [AUTHOR, EMPLOYER])
    ],
    "world_seed": 0,
}

# Memory and observation of each round of the world's trajectory.
WORLD_ROUNDS = (
    (None, "<information>1. Belcott: A town, mayor Arlo Berrick.</information>"),
    ("Belcott mayor Arlo Berrick.", "<information>1. Almond Ballad: A novel, author Aura Barson."),
    ("The mayor of Belcott is Arlo Berrick. Almond Ballad author Aura Barson.", "nothing"),
    ("Aura Barson employer Amber Lines. I recall Arlo Berrick.", "nothing"),
    ("Belcott mayor Arlo Berrick! Aura Barson and amber lines", None),
)


def round_line(number: int, mem: str | None = None, **values: Any) -> dict[str, Any]:
    memory = "" if mem is None else f"<mem> {mem}</mem>"
    return {
        "number": number,
        "text": f"{memory}<think>hm</think><search>q{number}</search>",
        "mem": mem,
        "action": "search",
        "argument": f"q{number}",
        **values,
    }


def trajectory(task: str, sample: int, epoch: int = 0, **values: Any) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "task": task,
        "sample": sample,
        "question": "Who?",
        "golds": [["Ann"]],
        "rounds": [round_line(1)],
        "ending": "answered",
        "answer": "Ann",
        "reward": 1.0,
        "outcome_advantage": 0.5,
        **values,
    }


def world_trajectory() -> dict[str, Any]:
    rounds = [
        round_line(number, mem, observation=observation)
        for number, (mem, observation) in enumerate(WORLD_ROUNDS, start=1)
    ]
    scored = {
        2: {"p_full": 0.5, "p_mem": 0.25, "memory_reward": -0.25, "memory_advantage": -1.5},
        3: {"p_full": 0.25, "p_mem": 0.5, "memory_reward": 0.25, "memory_advantage": 2.0},
        4: {"p_full": 0.5, "p_mem": 1.0, "memory_reward": 0.6, "memory_advantage": 0.25},
    }
    for one in rounds:
        one.update(scored.get(one["number"], {}))
    return trajectory("world", 0, 1, rounds=rounds, metadata=METADATA, source="world")


def hostile_trajectory() -> dict[str, Any]:
    rounds = [
        round_line(1, observation=f"<information>{HOSTILE}</information>"),
        round_line(2, HOSTILE, argument=HOSTILE, memory_reward=-0.5, memory_advantage=-1.0),
    ]
    return trajectory(
        "hostile",
        3,
        1,
        rounds=rounds,
        question=HOSTILE,
        golds=[[HOSTILE]],
        answer=LONE_SURROGATE,
        ending=HOSTILE,
        reward=0.0,
    )


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def make_run(folder: Path) -> Path:
    write_lines(
        folder / "metrics.jsonl",
        [
            {"epoch": 0, "reward/mean": 0.25, "memory_reward_by_round/round_2": -0.5},
            {
                "epoch": 1,
                "reward/mean": 0.75,
                "memory_reward_by_round/round_2": 0.25,
                "memory_reward_by_round/round_10": 0.125,
                HOSTILE: 1.0,
            },
        ],
    )
    write_lines(
        folder / "trajectories.jsonl",
        [
            trajectory("plain", 0, reward=0.0, rounds=[]),
            trajectory("plain", 1, reward=None, ending="no_action", answer=None),
            hostile_trajectory(),
            world_trajectory(),
        ],
    )
    entry = {"context": "memory", "exact_match": 50.0, "total_tokens": 1234.5}
    (folder / "evaluation.json").write_text(json.dumps({HOSTILE: entry}))
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "a<b>&'run")


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    return render_page(read_run(run), Limits())


class Elements(HTMLParser):
    """The tags of a page with their attributes, and what stands in its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text: list[str] = []
        self._in_script = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_script = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        (self.scripts if self._in_script else self.text).append(data)

    @property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.scripts[0])
        return data


# Facts


FACT = Fact("Anna Barger", "teacher", "Aura Barka", on_page=False, sentence="")


@pytest.mark.parametrize(
    ("memory", "held"),
    [
        ("Anna Barger teacher Aura Barka.", True),
        ("anna barger TEACHER aura barka", True),
        ("The teacher of Anna Barger is Aura Barka.", True),
        ("Aura Barka is the teacher of Anna Barger", True),
        ("Anna Barger's teacher: Aura Barka; more", True),
        ("Aura Barka teacher Anna Barger.", False),  # the other way round
        ("Anna Barger is the teacher of Aura Barka.", False),
        ("Anna Barger mentor Aura Barka.", False),
        ("Anna Barger. Teacher Aura Barka.", False),  # two sentences
        ("Anna Bargers teacher Aura Barka", False),  # another name
        ("", False),
    ],
)
def test_a_fact_is_held_where_a_sentence_says_it(memory: str, held: bool) -> None:
    assert is_held(FACT, memory) is held


def test_facts_by_round_and_where_they_were_lost() -> None:
    mayor, author, employer = fact_histories(TrajectoryLine(**world_trajectory()))
    assert [s[0] for s in mayor.states] == ["u", "h", "h", "l", "h"]
    assert [s.value for s in author.states] == ["unseen", "unseen", "held", "spent", "lost"]
    assert [s.value for s in employer.states] == ["unseen", "unseen", "unseen", "held", "lost"]
    assert (mayor.lost_in, author.lost_in, employer.lost_in) == ((4,), (5,), (5,))
    # Told in rounds 1 and 2; no tool tells the third, the memory of round 4 says it.
    assert (mayor.found_at, author.found_at, employer.found_at) == (0, 1, 3)
    assert mayor.named == (False, False, False, True, False)
    assert author.named == (False, False, False, True, True)
    assert employer.named == (False, False, False, False, True)
    assert (mayor.objective, author.objective, employer.objective) == (0, 1, 1)


def test_a_fact_that_a_tool_told_and_no_memory_said() -> None:
    rounds = [round_line(1, observation=WORLD_ROUNDS[0][1]), round_line(2, "nothing yet")]
    line = TrajectoryLine(**trajectory("t", 0, rounds=rounds, metadata=METADATA))
    states = [one.states for one in fact_histories(line)]
    assert states[0] == (FactState.UNSEEN, FactState.TOLD)
    assert states[1] == states[2] == (FactState.UNSEEN, FactState.UNSEEN)
    assert [one.found_at for one in fact_histories(line)] == [0, None, None]


def test_a_round_without_memory_holds_nothing() -> None:
    rounds = [round_line(1), round_line(2, "Belcott mayor Arlo Berrick"), round_line(3)]
    line = TrajectoryLine(**trajectory("t", 0, rounds=rounds, metadata=METADATA))
    assert fact_histories(line)[0].lost_in == (3,)


def test_other_tasks_have_no_facts() -> None:
    assert world_chains({}) == []
    assert world_chains({"chains": "of shops", "world_seed": 1}) == []
    with pytest.raises(ValueError, match="not facts of the generated world"):
        world_chains({"chains": [[{"subject": "a"}]], "world_seed": 1})


# Differences


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("", "", []),
        ("a b", "a  b ", [("same", "a  b")]),
        ("", "a b", [("added", "a b")]),
        ("a b", "", [("removed", "a b")]),
        ("a b c", "a x c d", [("same", "a "), ("removed", "b "), ("added", "x "), ("same", "c "),
                              ("added", "d")]),
        ("a\nb", "b", [("removed", "a\n"), ("same", "b")]),
    ],
)  # fmt: skip
def test_difference_of_memories(before: str, after: str, expected: list[tuple[str, str]]) -> None:
    pieces = memory_difference(before, after)
    assert pieces == expected
    assert "".join(text for kind, text in pieces if kind != "removed") == after.strip()


# What the page is given


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


# The page


def test_hostile_text_stays_text(page: str) -> None:
    elements = Elements(page)
    names = [name for name, _ in elements.tags]
    assert names.count("script") == 2
    assert page.count("</script>") == 2
    assert "img" not in names
    assert not [key for _, attrs in elements.tags for key in attrs if key.startswith("on")]
    shown = elements.data["trajectories"][2]
    task = elements.data["tasks"][shown["task"]]
    assert task["question"] == HOSTILE
    assert task["golds"] == [[HOSTILE]]
    assert shown["ending"] == HOSTILE
    assert shown["answer"] == LONE_SURROGATE
    assert shown["rounds"][1]["argument"] == HOSTILE
    assert f"<mem> {HOSTILE}</mem>" in [text for _, text, _ in shown["rounds"][1]["spans"]]
    observation = elements.data["observations"][shown["rounds"][0]["observation"]]
    assert observation == f"<information>{HOSTILE}</information>"
    # What the template writes itself: the name of the metric, of the evaluation and of the folder.
    assert elements.text.count(HOSTILE) == 2
    assert any("a<b>&'run" in text for text in elements.text)
    assert "49" not in [text.strip() for text in elements.text]


def test_page_is_valid_utf8_and_its_data_survives(page: str) -> None:
    written = page_bytes(page).decode("utf-8")
    assert Elements(written).data == Elements(page).data


def test_page_needs_no_network(page: str, tmp_path: Path) -> None:
    """No element points anywhere, and without the run's texts no address stands in the page."""
    for _, attrs in Elements(page).tags:
        for key in ("src", "href", "action", "srcset", "poster", "data", "xlink:href"):
            assert re.fullmatch(r"#[\w-]+|data:,", attrs.get(key) or "#x")
    write_lines(tmp_path / "metrics.jsonl", [{"epoch": 0, "reward/mean": 0.5}])
    empty = render_page(read_run(tmp_path), Limits())
    assert not re.search(r"//\w|https?:", empty)  # comments of the script have a space there
    assert "@import" not in empty
    assert set(re.findall(r"url\(([^)]*)", empty)) <= set(re.findall(r"url\((#\w+)\)", empty))
    (policy,) = [a["content"] for _, a in Elements(page).tags if a.get("http-equiv")]
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src 'none'" in policy


def test_policy_allows_the_script_as_it_stands_in_the_page(page: str) -> None:
    import base64
    import hashlib

    script = Elements(page).scripts[1]
    assert script == page_script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"&#39;sha256-{digest}&#39;" in page


def test_curves() -> None:
    metrics = [
        {
            "epoch": 0,
            "memory_reward_by_round/round_10": 1.0,
            "ending/answered": 1.0,
            "ending/no_action": 0.0,
        },
        {
            "epoch": 1,
            "memory_reward_by_round/round_2": 0.5,
            "ending/answered": 0.5,
            "ending/no_action": 0.0,
        },
    ]
    by_round = panel_series(Panel("x", pattern=r"memory_reward_by_round/(round_\d+)"), metrics)
    assert [(one.label, one.values) for one in by_round] == [
        ("round 2", [None, 0.5]),
        ("round 10", [1.0, None]),
    ]
    endings = panel_series(next(p for p in PANELS if p.pattern == r"ending/(\w+)"), metrics)
    assert [one.label for one in endings] == ["answered"]  # never seen: not drawn
    kept = Panel("x", (("kept", "filter/kept_mem"), ("none", "filter/none_kept_mem")))
    off = [{"epoch": 0, "filter/kept_mem": 1.0, "filter/none_kept_mem": 0.0}]
    assert panel_series(kept, off) == []  # no filter: nothing to see
    on = [*off, {"epoch": 1, "filter/kept_mem": 0.5, "filter/none_kept_mem": 0.25}]
    assert [one.label for one in panel_series(kept, on)] == ["kept", "none"]
    charts = draw_charts(metrics)
    assert [chart.title for chart in charts] == ["Memory reward by round", "Endings, share"]
    assert charts[0].data["epochs"] == [1, 2]
    svg = charts[0].svg
    assert svg.startswith("<svg")
    assert "var(--series-1)" in svg
    assert "http" not in svg
    assert not re.search(r"#0000[0-9a-f]{2}\b", svg)
    assert metric_rows(metrics)[0] == ("ending/answered", ["1", "0.5", "0.5", "1"])


def test_evaluation_of_either_program() -> None:
    entry = {"context": "memory", "exact_match": 12.34, "total_tokens": 2345.6}
    trained = {"before": {**entry, "contexts": {"memory": entry, "full": {"f1": 50}}}}
    assert [row[:2] for row in evaluation_rows(trained)] == [
        ("before", "memory"),
        ("before", "full"),
    ]
    ((name, context, cells),) = evaluation_rows({"model/memory": entry})
    assert (name, context) == ("model/memory", "memory")
    assert cells[0] == "12.3"
    assert cells[1] == "–"
    assert cells[5] == "2,346"


# Reading


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


# The server


@pytest.fixture
def live(tmp_path: Path) -> Iterator[server.InspectorServer]:
    with server.make_server(tmp_path, Limits(), port=0) as one:
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield one
        one.shutdown()
        thread.join()


def ask(live: server.InspectorServer, path: str, host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection(server.HOST, live.server_port, timeout=20)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    text = answer.read().decode("utf-8")
    connection.close()
    return answer.status, text


def test_server_shows_what_the_run_has_written_since(
    live: server.InspectorServer, tmp_path: Path
) -> None:
    status, page = ask(live, "/")
    assert status == 200
    assert "no epoch has ended" in page
    assert Elements(page).data["version"] == ask(live, "/version")[1] == run_version(tmp_path)

    path = tmp_path / "trajectories.jsonl"
    text = json.dumps(trajectory("t", 0)) + "\n"
    path.write_text(text + text[:30])  # the second line is half written
    before = ask(live, "/version")[1]
    assert before != Elements(page).data["version"]
    data = Elements(ask(live, "/")[1]).data
    assert (len(data["trajectories"]), data["version"]) == (1, before)
    path.write_text(text + text)
    assert len(Elements(ask(live, "/")[1]).data["trajectories"]) == 2
    assert "connect-src &#39;self&#39;" in ask(live, "/")[1]

    path.write_text("{oops}\n" + text)
    status, told = ask(live, "/")
    assert status == 500
    assert "trajectories.jsonl, line 1" in told


def test_server_answers_only_under_its_own_name(live: server.InspectorServer) -> None:
    assert live.server_address[0] == "127.0.0.1"
    assert ask(live, "/", host="evil.example")[0] == 403
    assert ask(live, "/version", host=f"localhost:{live.server_port}")[0] == 200
    assert ask(live, "/../trajectories.jsonl")[0] == 404


def test_a_port_in_use_is_told(live: server.InspectorServer, tmp_path: Path) -> None:
    with pytest.raises(MempoError, match=rf"port {live.server_port}: .*choose another with --port"):
        server.make_server(tmp_path, Limits(), live.server_port)


# In a browser


@pytest.mark.skipif(NODE is None, reason="no node")
def test_rows_are_sorted_and_filtered() -> None:
    assert NODE is not None
    script = (Path(document.__file__).parent / "page" / "list.js").read_text(encoding="utf-8")
    asks = """
    const rows = [null, 2, 5, 2].map((memory, index) => ({
      index, memory, task: ['t10', 't2', 't1', 't3'][index], epoch: index, reward: 1,
      ending: 'answered', lost: index, text: `text ${index}`,
    }));
    const ids = (found) => found.map((row) => row.index);
    const pass = (filter) => ids(rows.filter((row) => matches(row, filter)));
    console.log(JSON.stringify([
      ids(sorted(rows, 'memory', true)), ids(sorted(rows, 'memory', false)),
      ids(sorted(rows, 'task', false)), pass({ memoryFrom: '2', memoryTo: '4,5' }),
      pass({ epochFrom: '1', lost: 'on', text: 'TEXT 3' }), pass({ ending: 'no_action' }),
      pass({}), commonStart(['a-b-001', 'a-b-012']), commonStart(['a-b']),
    ]));
    """
    done = subprocess.run(
        [NODE, "-e", script + asks], capture_output=True, text=True, timeout=30, check=True
    )
    assert json.loads(done.stdout) == [
        [2, 1, 3, 0],  # never computed: last in both directions
        [1, 3, 2, 0],
        [2, 1, 3, 0],  # t1, t2, t3, t10
        [1, 3],
        [3],
        [],
        [0, 1, 2, 3],
        "a-b-",
        "",
    ]


def in_browser(page: Path, state: str, profile: Path) -> str:
    """The document as the page's script has made it, for the state after ``#``."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        f"--user-data-dir={profile}", "--virtual-time-budget=3000", "--window-size=1366,768",
        "--dump-dom", f"{page.as_uri()}#{state}",
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, timeout=60, check=True).stdout.decode()


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
def test_the_page_in_a_browser(page: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_bytes(page_bytes(page))
    browse = in_browser(path, "view=browse&sort=memory&down=1", tmp_path / "profile")
    # Memory rewards 0.2, -0.5, none, none: what was never computed comes last.
    assert re.findall(r'id="row-(\d+)"', browse) == ["3", "2", "0", "1"]
    assert "4</output>" in browse
    chosen = "view=browse&at=2%2F3%2Fhostile&memoryTo=0"
    hostile = in_browser(path, chosen, tmp_path / "profile")
    assert re.findall(r'id="row-(\d+)"', hostile) == ["2"]
    assert "1 of 4</output>" in hostile
    body = hostile[hostile.index('<article id="detail"') : hostile.index("<dialog")]
    assert "<img" not in body
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in body
    assert ">U+202E</span>" in body
    assert ">U+D83D</span>" in body
    group = in_browser(path, "view=group&at=1%2F0%2Fplain", tmp_path / "profile")
    assert ">sample 0</button>" in group
    assert ">sample 1</button>" in group
