"""Pictures of runs: which runs belong together, their bands, and the files (around the method)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D

from mempo.plots.__main__ import main
from mempo.plots.pictures import (
    learning_curve,
    memory_reward_by_round,
    quality_against_tokens,
    usual_window,
)
from mempo.plots.runs import group_runs, read_plot_run
from mempo.runtime.errors import MempoError
from mempo.runtime.run_files import append_lines


def x_values(line: Line2D) -> list[float]:
    return [float(value) for value in np.asarray(line.get_xdata())]


def y_values(line: Line2D) -> list[float]:
    return [float(value) for value in np.asarray(line.get_ydata())]


def make_run(
    folder: Path, seed: int | None = 0, algorithm: str = "mempo", context: str = "full", **more: Any
) -> Path:
    """Three epochs whose reward is 0.1 × epoch + seed; the memory is scored from the second on."""
    epochs = more.get("epochs", 3)
    append_lines(
        folder / "metrics.jsonl",
        [
            {"epoch": epoch, "reward/mean": 0.1 * epoch + (seed or 0), "reward/exact_match": 0.2,
             "tokens/total_mean": 100}
            | ({"memory/reward_mean": 0.5, "memory_reward_by_round/round_2": 0.25 * epoch,
                "memory_reward_by_round/round_10": -0.5} if epoch else {})
            for epoch in range(epochs)
        ],
    )  # fmt: skip
    if seed is not None:
        (folder / ".hydra").mkdir()
        (folder / ".hydra" / "config.yaml").write_text(
            f"algorithm: {{name: {algorithm}}}\nseed: {seed}\nrollout: {{context: {context}}}\n"
            "run_dir: ${hydra:runtime.output_dir}\n"
        )
    if "tokens" in more:
        entry = {"exact_match": 10.0 * (1 + (seed or 0)), "total_tokens": more["tokens"]}
        stages = {stage: {"contexts": {"memory": entry}} for stage in ("before", "after")}
        (folder / "evaluation.json").write_text(json.dumps(stages))
    return folder


def groups(*folders: Path) -> list[Any]:
    return group_runs([read_plot_run(folder) for folder in folders])


def test_seeds_are_one_group_and_settings_tell_others_apart(tmp_path: Path) -> None:
    found = groups(
        make_run(tmp_path / "a", 0),
        make_run(tmp_path / "b", 0, context="memory"),
        make_run(tmp_path / "c", 0, "grpo"),
        make_run(tmp_path / "d", 1),
    )
    assert [(one.label, [run.folder.name for run in one.runs]) for one in found] == [
        ("mempo, rollout.context=full", ["a", "d"]),
        ("mempo, rollout.context=memory", ["b"]),
        ("grpo", ["c"]),
    ]
    assert [one.label for one in groups(tmp_path / "a", tmp_path / "c")] == ["mempo", "grpo"]


def test_one_seed_twice_is_no_sample(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "a", 3), make_run(tmp_path / "b", 3)
    plain = [make_run(tmp_path / name, None) for name in ("plain", "other")]
    labels = [one.label for one in groups(first, second, *plain)]
    assert labels == ["mempo (a)", "mempo (b)", "plain", "other"]


def test_bands_over_the_epochs_that_every_run_has(tmp_path: Path) -> None:
    (group,) = groups(
        make_run(tmp_path / "a", 0),
        make_run(tmp_path / "b", 1),
        make_run(tmp_path / "c", 5, epochs=2),
    )
    band = group.band("reward/mean")
    assert band.epochs == [1, 2]  # counted from 1
    assert band.mean == pytest.approx([2.0, 2.1])  # (0 + 1 + 5) / 3
    assert band.low == pytest.approx([0.0, 0.1])
    assert band.high == pytest.approx([5.0, 5.1])
    assert group.band("memory/reward_mean").epochs == [2]
    assert group.band("no/such_key").epochs == []
    assert group.rounds("memory_reward_by_round") == [2, 10]


def test_the_picture_shows_the_values_and_whole_epochs(tmp_path: Path) -> None:
    found = groups(make_run(tmp_path / "a", 0), make_run(tmp_path / "b", 1))
    axis = learning_curve(found, 1).axes[0]
    (line,) = axis.lines
    assert x_values(line) == [1, 2, 3]
    assert y_values(line) == pytest.approx([0.5, 0.6, 0.7])
    (band,) = axis.collections
    heights = np.asarray(band.get_paths()[0].vertices)[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((0.0, 1.2))
    assert all(float(tick).is_integer() for tick in axis.get_xticks())

    by_round = memory_reward_by_round(found, 1)
    assert by_round is not None
    assert [line.get_label() for line in by_round.axes[0].lines[1:]] == ["round 2", "round 10"]
    assert y_values(by_round.axes[0].lines[1]) == [0.25, 0.5]


def test_long_runs_are_smoothed_before_their_own_values(tmp_path: Path) -> None:
    (short,) = groups(make_run(tmp_path / "a", 0, epochs=19))
    (long,) = groups(make_run(tmp_path / "b", 0, epochs=20))
    assert (usual_window([short]), usual_window([short, long])) == (1, 9)
    raw, smooth = learning_curve([long], 3).axes[0].lines
    assert y_values(raw)[:2] == pytest.approx([0.0, 0.1])
    assert y_values(smooth)[:2] == pytest.approx([0.05, 0.1])  # (0 + 0.1) / 2


def test_quality_against_tokens(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / str(seed), seed, tokens=tokens) for seed, tokens in ((0, 100), (1, 300))
    ]
    figure = quality_against_tokens(groups(*runs))
    assert figure is not None
    (axis,) = figure.axes
    assert axis.get_title() == "memory context"
    before, after = axis.lines[:2]
    # Means of 10 and 20 %, of 100 and 300 tokens.
    assert (x_values(before), y_values(before)) == ([200.0], [15.0])
    assert (x_values(after), y_values(after)) == ([200.0], [15.0])
    bars = {
        tuple(map(tuple, part.get_segments()[0]))
        for part in axis.collections
        if isinstance(part, LineCollection)
    }
    assert bars == {((100.0, 15.0), (300.0, 15.0)), ((200.0, 10.0), (200.0, 20.0))}
    assert quality_against_tokens(groups(make_run(tmp_path / "c", 2))) is None


def test_command_line_writes_png_and_svg(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [make_run(tmp_path / str(seed), seed, tokens=100) for seed in range(2)]
    output = tmp_path / "pictures"
    main([*map(str, runs), "--output", str(output), "--smooth", "3"])
    names = ("learning_curve", "memory_reward_by_round", "quality_against_tokens")
    files = [output / f"{name}{suffix}" for name in names for suffix in (".png", ".svg")]
    assert capsys.readouterr().out == "".join(f"wrote {file}\n" for file in files)
    assert {file.name for file in output.iterdir()} == {file.name for file in files}
    for file in files:
        start = file.read_bytes()[:8]
        assert start.startswith(b"\x89PNG" if file.suffix == ".png" else b"<?xml")
    assert ">memory reward</text>" in (output / "learning_curve.svg").read_text()


def test_what_no_run_has_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", epochs=1)
    main([str(run), "--output", str(tmp_path / "out")])
    told = capsys.readouterr().out
    assert "memory_reward_by_round is left out" in told
    assert "quality_against_tokens is left out" in told
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "learning_curve.png",
        "learning_curve.svg",
    }


def test_folder_without_metrics_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MempoError, match="no such file"):
        read_plot_run(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(MempoError, match="no epoch of that run has ended"):
        read_plot_run(tmp_path)
    for arguments in ([], ["--smooth", "2"]):
        with pytest.raises(SystemExit) as caught:
            main([str(tmp_path), *arguments])
        assert caught.value.code == 2
    told = capsys.readouterr().err
    assert "error:" in told
    assert "odd number" in told
