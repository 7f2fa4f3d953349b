"""The page: one HTML file with everything in it.

Texts of models and tools reach the page in two ways only: through the template, which escapes them,
and inside the JSON element, where ``<``, ``>``, ``&`` and ``'`` are written as JSON escapes; the
script puts them into text nodes. A content security policy allows the page's own script by its hash
and no connection but, when it is served, to its own server.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jinja2
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from mempo.inspect.curves import draw_charts, metric_rows
from mempo.inspect.reading import Run
from mempo.inspect.views import Limits, trajectory_views
from mempo.runtime.run_folder import CONFIG_FILE

_FOLDER: Final = Path(__file__).parent / "page"
_SCRIPTS: Final = (
    "text.js",
    "list.js",
    "table.js",
    "trajectory.js",
    "group.js",
    "charts.js",
    "main.js",
)
_EVALUATION_COLUMNS: Final = (
    ("exact match", "exact_match", ".1f"),
    ("F1", "f1", ".1f"),
    ("format valid", "format_valid", ".2f"),
    ("answered", "answered", ".2f"),
    ("rounds", "rounds", ".1f"),
    ("tokens a task", "total_tokens", ",.0f"),
    ("peak tokens", "peak_tokens", ",.0f"),
)


def render_page(run: Run, limits: Limits, version: str | None = None) -> str:
    """The page of a run. With ``version`` (``run_version``) it is live: it asks its server for
    newer ones. Raises ``MempoError`` for a trajectory that cannot be shown, with its line."""
    charts = draw_charts(run.metrics) if run.metrics else []
    views = trajectory_views(run, limits)
    script = page_script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    connect = "'none'" if version is None else "'self'"
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        f"img-src data:; connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    data = {
        "version": version,
        "weight": run.settings.memory_weight,
        "charts": [chart.data for chart in charts],
        **views,
    }
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        name=run.name,
        policy=policy,
        style=Markup(page_part("page.css")),
        script=Markup(script),
        data=htmlsafe_json_dumps(data, dumps=_compact),
        charts=[(chart, Markup(chart.svg)) for chart in charts],
        settings=run.settings,
        missing=[name for name in run.missing if name != CONFIG_FILE],
        epochs=len(run.metrics),
        shown=len(views["trajectories"]),
        total=views["total"],
        evaluation=evaluation_rows(run.evaluation),
        evaluation_columns=[label for label, _, _ in _EVALUATION_COLUMNS],
        metrics=metric_rows(run.metrics),
        live=version is not None,
    )


def page_part(name: str) -> str:
    """A file of the page, of which other pages of the project take text.js and page.css."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def page_script() -> str:
    """The page's script: its parts in one scope."""
    parts = [page_part(name) for name in _SCRIPTS]
    return "(() => {\n'use strict';\n" + "\n".join(parts) + "})();\n"


def write_page(path: Path, page: str) -> None:
    """Writes the page. Half of a surrogate pair, which a model can write and UTF-8 cannot hold, is
    written as its JSON escape."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(page_bytes(page))


def page_bytes(page: str) -> bytes:
    """The page as UTF-8; see ``write_page``."""
    return page.encode("utf-8", errors="backslashreplace")


def evaluation_rows(evaluation: Mapping[str, Any]) -> list[tuple[str, str, list[str]]]:
    """(what, context, values) for each entry of ``evaluation.json``, whichever program wrote it."""
    rows = []
    for name, entry in evaluation.items():
        if not isinstance(entry, dict):
            continue
        contexts = entry.get("contexts")
        entries = contexts if isinstance(contexts, dict) else {entry.get("context", ""): entry}
        for context, values in entries.items():
            if isinstance(values, dict):
                cells = [_cell(values.get(key), form) for _, key, form in _EVALUATION_COLUMNS]
                rows.append((str(name), str(context), cells))
    return rows


def _cell(value: Any, form: str) -> str:
    return format(value, form) if isinstance(value, int | float) else "–"


def _compact(value: Any, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
