"""What may change when a run goes on (``resume=auto``): what changes no figure. The rest is
refused, or two runs would stand in one file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from mempo.config import Config
from mempo.records.run_config import read_config
from mempo.records.run_results import read_evaluation, read_metrics
from mempo.runtime.checkpoint_files import complete_checkpoints, finished_epochs
from mempo.runtime.errors import ConfigError
from mempo.runtime.run_files import lines_with_epochs
from mempo.runtime.run_folder import (
    CONFIG_FILE,
    EVALUATION_FILE,
    METRICS_FILE,
    TRAJECTORIES_FILE,
)

MAY_CHANGE: Final = (
    "run_dir",
    "cache_dir",
    "ckpt_path",
    "resume",
    "dry_run",
    "callbacks",
    "logger",
    "evaluation",
    "trainer.accelerator",
    "trainer.card",
    "trainer.card_gib",
    "trainer.devices",
    "trainer.num_nodes",
    "trainer.timeout_s",
    "trainer.max_epochs",
    "trainer.checkpoint_every",
    "trainer.keep_last",
    "trainer.lightning",
    "trainer.sharding",
    "engine.cpu_kv_cache_gib",
    "engine.gpu_kv_cache_gib",
    "engine.gpu_memory_alone",
    "engine.gpu_memory_utilization",
    "engine.gpu_step_tokens",
    "engine.max_num_seqs",
    "engine.sleep",
    "model.attention",
    "model.gradient_checkpointing",
    "optimizer.decay_epochs",
    "optimizer.micro_batch_tokens",
    "optimizer.pack_rows",
    "optimizer.share_prompts",
    "retriever.backoff_s",
    "retriever.connect_timeout_s",
    "retriever.max_tool_error_rate",
    "retriever.read_timeout_s",
    "retriever.ready_timeout_s",
    "retriever.retries",
    "retriever.timeout_s",
    "retriever.url",
    "retriever.workers",
    "reward.judge.api_key_env",
    "reward.judge.max_failure_rate",
    "reward.judge.retries",
    "reward.judge.timeout_s",
    "reward.judge.url",
    "reward.timeout_s",
    "reward.workers",
    "scoring.batch_tokens",
    "scoring.method",
    "tools.*.max_error_rate",
    "tools.*.timeout_s",
)
"""Settings, or whole sections, that a resumed run may have otherwise (docs/running.md)."""

_SHOWN: Final = 3


def check_resume(config: Config, tree: Mapping[str, Any]) -> None:
    """Raises ``ConfigError`` that names what differs from the run in ``config.run_dir``, or what
    would be done with a schedule that is over, and ``MempoError`` for a damaged file of the run.
    ``tree`` is the whole configuration, resolved."""
    if config.resume is None:
        return
    folder = Path(config.run_dir)
    before = read_config(folder / CONFIG_FILE)
    _check_own_files(folder)
    different = [
        f"{name} is {_shown(new)} and was {_shown(old)}"
        for name, old, new in _differences(before, tree)
        if not _may_change(name)
    ]
    if different:
        more = f" (and {len(different) - _SHOWN} more)" if len(different) > _SHOWN else ""
        raise ConfigError(
            f"run_dir={config.run_dir} holds another run: {'; '.join(different[:_SHOWN])}{more}. "
            "Go on with the settings that it had (its .hydra/overrides.yaml), or begin a new run "
            "in another folder, from its weights with ckpt_path="
        )
    _check_schedule(config, before)


def _check_schedule(config: Config, before: Mapping[str, Any]) -> None:
    checkpoints = complete_checkpoints(config.run_dir)
    finished = finished_epochs(checkpoints[-1]) if checkpoints else 0
    epochs = config.trainer.max_epochs
    if finished > epochs:
        raise ConfigError(
            f"trainer.max_epochs={epochs}, but the run in {config.run_dir} has finished "
            f"{finished} epochs: raise it"
        )
    decays_until = config.optimizer.decay_epochs or epochs
    planned = before.get("trainer", {}).get("max_epochs", epochs)
    planned = before.get("optimizer", {}).get("decay_epochs") or planned
    stretched = config.optimizer.decay_epochs is not None
    if config.optimizer.decay != "none" and decays_until != planned and not stretched:
        raise ConfigError(
            f"trainer.max_epochs={epochs}: this run's learning rate falls to 0 over {planned} "
            f"epochs. Keep that with optimizer.decay_epochs={planned} (beyond it trains at 0), "
            f"or stretch it over all epochs with optimizer.decay_epochs={epochs}"
        )


def _check_own_files(folder: Path) -> None:
    """Reads what a resumed run goes on from, which it would read after minutes."""
    if (folder / METRICS_FILE).exists():
        read_metrics(folder / METRICS_FILE)
    if (folder / TRAJECTORIES_FILE).exists():
        lines_with_epochs(folder / TRAJECTORIES_FILE)
    read_evaluation(folder / EVALUATION_FILE)


def _differences(
    before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Settings that both have with different values. One that only one side has is of another
    version of this program."""
    for name in before.keys() & now.keys():
        old, new = before[name], now[name]
        if _lists_sections(old) and _lists_sections(new) and len(old) == len(new):
            old, new = dict(enumerate(old)), dict(enumerate(new))
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{prefix}{name}.")
        elif old != new and "${" not in str(old):
            yield f"{prefix}{name}", old, new


def _lists_sections(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(one, Mapping) for one in value)


def _may_change(name: str) -> bool:
    name = re.sub(r"(?<=^tools\.)\d+", "*", name)
    return any(name == free or name.startswith(f"{free}.") for free in MAY_CHANGE)


def _shown(value: Any) -> str:
    if _lists_sections(value):
        return ", ".join(str(one.get("tag")) if isinstance(one, Mapping) else one for one in value)
    return "null" if value is None else str(value)
