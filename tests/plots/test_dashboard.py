"""The workspace for wandb: what would be saved, and what is said without a login (around the
method)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mempo.plots.dashboard import LAYOUT, TABLE, build_workspace, main
from mempo.records import metric_names

LOGGED = {*metric_names.RECORD_KEYS, *metric_names.WANDB_KEYS}


def panels(spec: dict[str, Any]) -> list[dict[str, Any]]:
    sections = spec["section"]["panelBankConfig"]["sections"]
    return [panel for section in sections for panel in section["panels"]]


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    """What wandb's library would send."""
    workspace = build_workspace("someone", "mempo", "mempo")
    view = workspace._to_model()
    assert (view.entity, view.project, view.display_name) == ("someone", "mempo", "mempo")
    sent: dict[str, Any] = view.spec.model_dump(by_alias=True, exclude_none=True)
    return sent


def test_every_plot_names_logged_keys_only(spec: dict[str, Any]) -> None:
    examples = {key.replace("<k>", number) for key in LOGGED for number in ("2", "10")}
    plots = [one for one in panels(spec) if one["viewType"] == "Run History Line Plot"]
    assert len(plots) == sum(len(section.panels) for section in LAYOUT)
    for plot in plots:
        config = plot["config"]
        assert config["xAxis"] == "epoch"
        if config.get("useMetricRegex"):
            found = {key for key in examples if re.search(config["metricRegex"], key)}
            assert found, config
            assert len({metric_names.pattern_of(key) for key in found}) in (1, 3)
        else:
            assert config["metrics"]
            assert set(config["metrics"]) <= LOGGED


def test_the_table_of_samples_is_shown(spec: dict[str, Any]) -> None:
    (table,) = [one for one in panels(spec) if one["viewType"] == "Weave"]
    assert TABLE in LOGGED
    assert f"'{TABLE}'" in str(table)


def test_titles_are_short_and_sections_are_few() -> None:
    assert len(LAYOUT) <= 6
    for section in LAYOUT:
        assert len(section.panels) <= 6
        titles = [panel.title for panel in section.panels]
        assert len(set(titles)) == len(titles)


def test_without_a_login_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no_netrc"))
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    told = capsys.readouterr().err
    assert "you are not logged in" in told
    assert "wandb login" in told
    assert "wandb sync" in told


@pytest.mark.slow
def test_a_server_that_cannot_be_reached_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("WANDB_HTTP_TIMEOUT", "2")
    with pytest.raises(SystemExit) as caught:
        main(["--entity", "someone"])
    assert caught.value.code == 2
    assert "did not save the workspace" in capsys.readouterr().err
