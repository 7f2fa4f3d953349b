"""From a run folder, a model folder or a hub name to an agent that can be asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING

from mempo.ask.settings import asking_settings
from mempo.command.home import use_writable_home
from mempo.config import RewardConfig
from mempo.runtime.library_warnings import quiet_libraries

if TYPE_CHECKING:
    from mempo.ask.agent import LoadedAgent
    from mempo.evaluation.standalone import StartEngine


def load_agent(
    path: str | PathLike[str],
    *,
    context: str = "memory",
    overrides: Sequence[str] = (),
    seed: int | None = None,
    start: StartEngine | None = None,
) -> LoadedAgent:
    """Opens a trained agent and starts its engine, which takes seconds.

    Args:
        path: a run folder, which brings its settings (model, prompts, answer form, passages,
            retriever, limits of evaluation), or a model folder or a hub name, for which
            ``overrides`` has to name a ``model=``.
        context: what a round sees: ``memory``, ``full``, a baseline (``react``, ``mem1``,
            ``summary``, ``retrieval_memory``), or one of ``evaluation.modes``.
        overrides: settings as on the command line, such as ``data.corpus=passages.jsonl``,
            ``retriever=http``, ``evaluation.max_rounds=16``.
        seed: for ``evaluation.temperature`` above 0; without it sampling is greedy and needs none.
        start: starts another engine than vLLM's.

    Use it as a context manager, or call ``close()``: the engine holds memory until then.

    Raises ``ConfigError``, ``MempoError`` or ``DataError`` that say what to change.
    """
    settings = asking_settings(fspath(path), context, overrides, seed)
    use_writable_home(settings.config.cache_dir)
    # Seconds of imports, after what can be told without them.
    quiet_libraries()
    from mempo.agent.rollout import Rollout
    from mempo.ask.agent import LoadedAgent
    from mempo.data.tasks import load_passages
    from mempo.evaluation.models import evaluated_models
    from mempo.evaluation.standalone import start_engine

    (model,) = evaluated_models(settings.config, settings.own)
    corpus, retriever = load_passages(model.config)
    engine = (start or start_engine)(model, model.config)
    # There is no gold answer to judge by.
    unjudged = dataclasses.replace(model.config, reward=RewardConfig())
    rollout = Rollout.from_config(unjudged, engine, model.conversation, {corpus: retriever})
    return LoadedAgent(model, rollout, engine, corpus, context, tuple(settings.told))
