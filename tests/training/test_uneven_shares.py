"""Two processes with uneven shares of everything do what one does (around the method).

The cases hold every pair of: ddp, fsdp2 or an engine that both share; adapters; going on from a
checkpoint in a new folder, or ending early; what a round sees; ways of scoring; several updates;
as many tasks as leave the second process with fewer, or with none; collecting ahead; a reference;
tied weights; layers computed again. A hang fails the case (``uneven_run.py``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.pairs import pairs_of
from tests.support.programs import PROGRAM_SECONDS, ROOT, read_lines
from tests.support.uneven_cases import CASES, EPOCHS, FACTORS, write_start

_PROGRAM = ROOT / "tests" / "programs" / "uneven_run.py"
_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
_OF_THE_MACHINE = ("seconds/", "peak_gib/", "engine/staleness", "trainer/global_step")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases, in ``alone`` of one process and in ``together`` of two, at the same time."""
    folder = tmp_path_factory.mktemp("uneven")
    for start in ("tied", "untied"):
        write_start(folder / start, tied=start == "tied")
    started = []
    for name, launcher in (("alone", ()), ("together", _TORCHRUN)):
        with (folder / f"{name}.log").open("w") as log:
            command = [sys.executable, *launcher, _PROGRAM, folder, folder / name]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            started.append(
                subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=environment)
            )
    try:
        codes = [process.wait(timeout=PROGRAM_SECONDS) for process in started]
    finally:
        for process in started:
            process.kill()
    logs = [(folder / f"{name}.log").read_text()[-6000:] for name in ("alone", "together")]
    assert codes == [0, 0], "\n".join(logs)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CASES)))
def test_two_uneven_processes_do_what_one_does(runs: Path, number: int) -> None:
    case = CASES[number]
    alone, together = runs / "alone" / str(number), runs / "together" / str(number)
    epochs = {"no": (0, 1), "resumed": (1,), "stopped": (0,)}[case["goes_on"]]
    if (case["processes"], case["adapter"], case["start"]) == ("fsdp2", "lora", "untied"):
        # Adapters of a model that starts without weights are drawn by the first process alone.
        assert [line["epoch"] for line in read_lines(together / "metrics.jsonl")] == [*epochs]
        assert (together / "model" / "config.json").is_file()
        return
    assert_alike(epoch_lines(together, epochs), epoch_lines(alone, epochs))
    assert_alike(trajectories(together, epochs), trajectories(alone, epochs))
    evaluated = [json.loads((run / "evaluation.json").read_text()) for run in (together, alone)]
    assert_alike(evaluated[0], evaluated[1])
    # What the engine got: before the evaluation, for each epoch, before the last evaluation.
    synced = json.loads((alone / "synced-0.json").read_text())
    if case["goes_on"] == "resumed":
        synced = [synced[EPOCHS], *synced[EPOCHS:]]  # "before" is of the checkpoint's weights
    for rank in (0, 1):
        assert_alike(json.loads((together / f"synced-{rank}.json").read_text()), synced)
    first, second = (load_file(run / "model" / "model.safetensors") for run in (together, alone))
    assert first.keys() == second.keys()
    for name, value in second.items():
        torch.testing.assert_close(first[name], value, atol=2e-5, rtol=0)


def test_every_two_choices_meet_in_a_case() -> None:
    met = set().union(*(pairs_of(case) for case in CASES))
    names = [*FACTORS]
    for position, one in enumerate(names):
        for other in names[position + 1 :]:
            for a in FACTORS[one]:
                for b in FACTORS[other]:
                    assert ((one, a), (other, b)) in met


def epoch_lines(run: Path, epochs: tuple[int, ...]) -> list[dict[str, Any]]:
    """The epochs' records without what a machine or a way of going on decides."""
    lines = [line for line in read_lines(run / "metrics.jsonl") if line["epoch"] in epochs]
    return [
        {key: value for key, value in line.items() if not key.startswith(_OF_THE_MACHINE)}
        for line in lines
    ]


def trajectories(run: Path, epochs: tuple[int, ...]) -> list[dict[str, Any]]:
    return [line for line in read_lines(run / "trajectories.jsonl") if line["epoch"] in epochs]


def assert_alike(found: Any, expected: Any, place: str = "") -> None:
    """Equal, and numbers to five digits."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), place
        for key, value in expected.items():
            assert_alike(found[key], value, f"{place}/{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), place
        for index, value in enumerate(expected):
            assert_alike(found[index], value, f"{place}/{index}")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-5), place
    else:
        assert found == expected, place
