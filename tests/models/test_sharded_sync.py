"""A sharded policy's weights on their way to the engine (specification section 10)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.models.test_sharded import save_model
from tests.support.programs import run_program


@pytest.mark.slow
def test_shards_are_cast_before_they_are_gathered(tmp_path: Path) -> None:
    """Two bytes a weight are exchanged in the place of four, and the engines get the same."""
    model = save_model(tmp_path / "model", tied=False)
    run_program(
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("tests/programs/sync_run.py", str(tmp_path / "model"), str(tmp_path)),
    )
    total = sum(parameter.numel() for parameter in model.parameters())
    for rank in (0, 1):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        # Half of the weights is this process's to send.
        assert found["after"]["sent"] == pytest.approx(total / 2 * 4, rel=0.01)
        assert found["before"]["sent"] * 2 == found["after"]["sent"]
        assert found["before"]["digests"] == found["after"]["digests"]
        assert len(found["before"]["digests"]) > 10
