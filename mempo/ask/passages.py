"""What there is to ask about."""

from __future__ import annotations

from mempo.config import Config
from mempo.data.tasks import load_heldout_tasks


def example_question(config: Config) -> str | None:
    """A held-out question of the generated world; ``None`` where other passages are searched."""
    if config.data.format != "world" or config.data.corpus is not None:
        return None
    (tasks, *_) = load_heldout_tasks(config).by_objectives.values()
    return tasks[0].question
