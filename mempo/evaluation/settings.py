"""Which settings decide the figures of an evaluation, and where those of two runs part."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final

from mempo.config import Config
from mempo.runtime.errors import ConfigError
from mempo.runtime.nested import leaves

SHARED: Final = ("data", "retriever", "reward", "evaluation")
"""Sections that are the same for all models of one call: tasks, passages and limits."""

OF_EACH_MODEL: Final = ("model", "engine", "tools")
"""Sections that each model may have its own of."""

# Settings under which no figure changes: a stopped call may go on with others.
_HOW_NOT_WHAT: Final = {
    "evaluation": ("enabled", "model_path", "models", "bootstrap_samples"),
    "engine": (
        "max_num_seqs", "cpu_kv_cache_gib", "gpu_memory_utilization", "gpu_memory_alone",
        "gpu_kv_cache_gib",
        "gpu_step_tokens", "tensor_parallel", "url",
        "api_key_env", "connect_timeout_s", "read_timeout_s", "timeout_s", "retries", "backoff_s",
        "ready_timeout_s",
    ),
    "retriever": (
        "url", "timeout_s", "connect_timeout_s", "read_timeout_s", "retries", "backoff_s",
        "ready_timeout_s", "workers", "max_tool_error_rate",
    ),
    "reward": ("workers", "timeout_s"),
}  # fmt: skip
_OF_THE_JUDGE: Final = ("model", "prompt", "temperature", "max_tokens", "request")

_OF_SERVERS: Final = ("kind", "served_model", "protocol")
"""Those of ``engine``, which the in-process engine does not read."""


def deciding_settings(config: Config, sections: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What decides the figures, of these sections of the configuration."""
    found = {}
    for name in sections:
        section = _tools(config) if name == "tools" else dataclasses.asdict(getattr(config, name))
        left_out = _HOW_NOT_WHAT.get(name, ())
        if section.get("kind") == "vllm":
            left_out = (*left_out, *_OF_SERVERS)
        found[name] = {key: value for key, value in section.items() if key not in left_out}
    if "reward" in found:
        judge = found["reward"].pop("judge")
        if config.reward.judged:
            found["reward"]["judge"] = {key: judge[key] for key in _OF_THE_JUDGE}
    return found


def _tools(config: Config) -> dict[str, Any]:
    """The tools by their places, without their limits of time and errors."""
    left_out = ("timeout_s", "max_error_rate")
    return {
        str(place): {
            key: value for key, value in dataclasses.asdict(tool).items() if key not in left_out
        }
        for place, tool in enumerate(config.tools)
    }


def check_shared(configs: Mapping[str, Config]) -> None:
    """Raises ``ConfigError`` where models, by name, bring different tasks, passages or limits."""
    (first, config), *rest = configs.items()
    one = leaves(deciding_settings(config, SHARED))
    for name, other_config in rest:
        other = leaves(deciding_settings(other_config, SHARED))
        changed = [key for key in one.keys() | other.keys() if one.get(key) != other.get(key)]
        if changed:
            told = "\n".join(
                f"  {key}: {one.get(key)} in {first}, {other.get(key)} in {name}"
                for key in sorted(changed)
            )
            raise ConfigError(
                "evaluation.models: all models get the same tasks and limits, and these runs bring "
                f"different ones:\n{told}\nGive them on the command line, as {sorted(changed)[0]}="
                "VALUE or by their group (data=…, retriever=…, evaluation=…)."
            )
