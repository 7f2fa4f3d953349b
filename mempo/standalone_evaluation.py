"""``evaluate.py``: a model folder, the held-out tasks, a table and ``evaluation.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mempo.config import Config, ConfigError
from mempo.conversation import Conversation
from mempo.data.tasks import load_task_sets
from mempo.engine import Engine
from mempo.evaluation import evaluate, print_table, wide_console
from mempo.models.loading import load_tokenizer
from mempo.progress import progress_bar
from mempo.rollout import Rollout
from mempo.run_files import write_json


def evaluate_model(config: Config) -> dict[str, Any]:
    """Evaluates one model in every context mode of ``evaluation.contexts``.

    ``evaluation.json`` holds one entry per model and context mode, named ``<model>/<context>``.
    """
    folder = model_folder(config.evaluation.model_path)
    tokenizer = load_tokenizer(folder)
    tasks = load_task_sets(config)
    settings = config.evaluation
    conversation = Conversation(tokenizer, config.model.system_prompt)
    engine = Engine(folder, config.engine, config.model.dtype, conversation.end_ids)
    try:
        rollout = Rollout.from_config(config, engine, conversation, tasks.retrievers)
        count = len(tasks.heldout)
        count = count if settings.tasks is None else min(settings.tasks, count)
        total = count * len(settings.contexts)
        with progress_bar("evaluation", total, enabled=config.callbacks.progress_bars) as bar:
            entries = evaluate(
                rollout,
                tasks.heldout,
                settings,
                config.rollout.max_observation_tokens,
                config.seed,
                progress=lambda tick: bar.advance(tick.trajectories_done, tick.tokens),
            )
    finally:
        engine.close()
    results = {f"{folder}/{context}": entry for context, entry in entries.items()}
    write_json(Path(config.run_dir) / "evaluation.json", results)
    print_table({Path(folder).name: entries}, wide_console())
    return results


def model_folder(path: str | None) -> str:
    """A run folder stands for its ``model/``; anything else is a model folder or hub name.

    Raises ``ConfigError`` when nothing was given, or a folder holds no model.
    """
    if path is None:
        raise ConfigError(
            "evaluation.model_path is empty: give a run folder, a Hugging Face folder or a hub name"
        )
    folder = Path(path).expanduser()
    if not folder.exists():
        if path.count("/") == 1 and not path.startswith((".", "~")):
            return path
        raise ConfigError(f"evaluation.model_path={path}: no such folder")
    for candidate in (folder / "model", folder):
        if (candidate / "config.json").is_file():
            return str(candidate)
    raise ConfigError(
        f"evaluation.model_path={path}: neither it nor its model/ holds a config.json; give a "
        "finished run's folder or a Hugging Face model folder"
    )
