"""A run folder written by hand, whose figures tests work out, and a page taken apart."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

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
