"""The inspector's page (around the method): nothing of a model becomes markup, and what its script
does.

Expected values are worked out by hand from the run that ``make_run`` writes.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mempo.inspect import document
from mempo.inspect.curves import PANELS, Panel, draw_charts, metric_rows, panel_series
from mempo.inspect.document import evaluation_rows, page_bytes, page_script, render_page
from mempo.inspect.reading import read_run
from mempo.inspect.views import Limits
from tests.support.inspected_run import HOSTILE, LONE_SURROGATE, Elements, write_lines

NODE = shutil.which("node")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


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
