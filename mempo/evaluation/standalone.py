"""``evaluate.py``: models, context modes and numbers of objectives; tables, files and a picture.

The models' engines run one after the other in this process. Every finished trajectory is on disk at
once, and a call that was stopped goes on with what is missing (``mempo.evaluation.files``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from mempo.agent.collection import Watch
from mempo.agent.conversation import Conversation
from mempo.agent.error_rate import ToolFailureError
from mempo.agent.prompts import check_template
from mempo.agent.protocol import unclosed_action
from mempo.agent.rollout import Rollout
from mempo.config import Config
from mempo.data.tasks import load_heldout_tasks
from mempo.engine.interface import GenerationEngine
from mempo.engine.openai_engine import TextCodec
from mempo.engine.server_start import start_server_engine
from mempo.engine.start_arguments import Use, engine_device
from mempo.engine.vllm_engine import Engine
from mempo.evaluation.differences import paired_differences
from mempo.evaluation.evaluate import (
    evaluation_attempt,
    evaluation_entry,
    evaluation_sampling,
    summary,
)
from mempo.evaluation.files import (
    EvaluationFolder,
    Key,
    claimed,
    evaluation_settings_record,
    finished,
    known_keys,
)
from mempo.evaluation.launch import run_processes, wait_for_others
from mempo.evaluation.models import EvaluatedModel, evaluated_models
from mempo.evaluation.plots import draw_evaluation
from mempo.evaluation.shares import Share, processes_to_launch
from mempo.evaluation.tables import print_evaluation, write_differences_csv, write_tasks_csv
from mempo.judging.judge import JudgeFailureError
from mempo.models.stand_in_tokenizer import StandInTokenizer
from mempo.records.trajectory_records import trajectory_record
from mempo.retrieval.base import Retriever
from mempo.runtime.progress import ProgressBar, progress_bar
from mempo.runtime.run_files import write_json
from mempo.runtime.run_folder import (
    EVALUATION_DIFFERENCES_FILE,
    EVALUATION_FILE,
    EVALUATION_PICTURE_FILE,
    EVALUATION_TASKS_FILE,
)
from mempo.trajectory import Task, Trajectory


class ModelEngine(GenerationEngine, Protocol):
    """An engine that holds one model until it is closed."""

    def close(self) -> None: ...


StartEngine = Callable[[EvaluatedModel, Config], ModelEngine]
"""Takes a model and the settings that it is run with: its own."""


def start_engine(model: EvaluatedModel, config: Config) -> ModelEngine:
    """The real engine: vLLM in this process, or one that asks a server (``engine=openai``)."""
    if config.engine.kind == "openai":
        return start_server_engine(config.engine, model.path, _codec(model.conversation))
    share = config.engine.gpu_memory_alone
    return Engine(
        model.path,
        replace(config.engine, gpu_memory_utilization=share),
        Use(config.model.dtype),  # as long as fits: nobody knows what will be asked
        model.conversation.end_ids,
        model.conversation.protocol.stop_strings,
        engine_device(config.trainer.accelerator),
    )


def _codec(conversation: Conversation) -> TextCodec:
    return TextCodec(
        conversation.encode,
        sorted(conversation.end_ids),
        conversation.end_of_turn_id,
        conversation.protocol.stop_strings,
        partial(unclosed_action, protocol=conversation.protocol),
        exact=not isinstance(conversation.tokenizer, StandInTokenizer),
    )


def evaluate_models(
    config: Config,
    start: StartEngine = start_engine,
    own: Mapping[str, Config] | None = None,
    accepted: Callable[[], None] = lambda: None,
    share: Share | None = None,
    gpus: int = 0,
) -> dict[str, Any]:
    """Evaluates every model in every context mode, and writes what stands in docs/evaluation.md.

    Tasks and limits are ``config``'s; how a model is spoken to and run is ``own``'s where it has
    some (``evaluated_models``). Returns what ``evaluation.json`` holds: an entry per model and
    context mode, named ``<model>/<context>``. What is wrong with models, settings, tasks or the run
    folder is told before the first engine starts; ``accepted`` is called when all of it is right.

    ``share`` is this process's, where several are at work; one that does not report returns
    nothing. Without it this process launches others where ``trainer.devices`` asks for several,
    with ``gpus`` GPUs among them.
    """
    models = evaluated_models(config, own)
    for model in models:
        check_template(
            model.config.model.prompt_template, model.config.tools, config.evaluation.ways
        )
    sets = load_heldout_tasks(config)
    if sets.skipped_rows:
        print(f"{sets.skipped_rows} malformed rows were left out (data.skip_bad_rows)", flush=True)
    for note in sets.notes:
        print(note, flush=True)
    tasks = {n: chosen[: config.evaluation.tasks] for n, chosen in sets.by_objectives.items()}
    settings = evaluation_settings_record(config, models, tasks)
    place = Path(config.run_dir)
    if share is not None and not share.reports:
        folder = EvaluationFolder(place, settings, share.index)
        _roll_out_missing(config, models, tasks, sets.retrievers, folder, start, share)
        return {}
    count = processes_to_launch(config, gpus) if share is None else 1
    with claimed(place):
        folder = EvaluationFolder(place, settings, None if share is None else share.index)
        accepted()
        order = _order(config, models, tasks)
        missing = sum(key not in folder.records for key in order)
        if share is None and min(count, missing) > 1:
            _launch(config, folder, min(count, missing), missing, gpus)
        else:
            _roll_out_missing(config, models, tasks, sets.retrievers, folder, start, share)
        if share is not None:
            wait_for_others(lambda: len(set(order) - known_keys(place)))
        if share is not None or count > 1:
            folder = EvaluationFolder(place, settings)
        return _report(config, models, order, folder)


def _launch(config: Config, folder: EvaluationFolder, count: int, missing: int, gpus: int) -> None:
    """Has ``count`` processes make what is missing, each its share."""
    if done := len(folder.records):
        print(f"{done} of {done + missing} trajectories are in {folder.folder} already", flush=True)
    print(f"evaluating with {count} processes, an engine each", flush=True)
    shown = config.callbacks.progress_bars
    with progress_bar("evaluation", missing, enabled=shown) as bar:
        told = 0

        def tick() -> int:
            nonlocal told
            now = finished(folder.folder)
            bar.advance(now - told)
            told = now
            return now

        run_processes(count, config.engine.tensor_parallel, gpus, folder.folder, tick)


def _order(
    config: Config, models: Sequence[EvaluatedModel], tasks: Mapping[int, Sequence[Task]]
) -> list[Key]:
    """All trajectories of the evaluation."""
    return [key for model in models for key in _expected(config, model.name, tasks)]


def _expected(config: Config, model: str, tasks: Mapping[int, Sequence[Task]]) -> list[Key]:
    """One model's trajectories, in the order of modes, numbers of objectives and tasks."""
    return [
        (model, context, count, task.id)
        for context in config.evaluation.contexts
        for count, chosen in tasks.items()
        for task in chosen
    ]


def _roll_out_missing(
    config: Config,
    models: Sequence[EvaluatedModel],
    tasks: Mapping[int, Sequence[Task]],
    retrievers: Mapping[str, Retriever],
    folder: EvaluationFolder,
    start: StartEngine,
    share: Share | None,
) -> None:
    wanted = {model.name: _expected(config, model.name, tasks) for model in models}
    if share is not None:
        wanted = {name: share.of(keys) for name, keys in wanted.items()}
    total = sum(map(len, wanted.values()))
    done = sum(key in folder.records for keys in wanted.values() for key in keys)
    if done:
        print(f"{done} of {total} trajectories are in {folder.folder} already", flush=True)
    shown = config.callbacks.progress_bars
    with progress_bar("evaluation", total, enabled=shown) as bar:
        bar.advance(done)
        for model in models:
            keys = [key for key in wanted[model.name] if key not in folder.records]
            if not keys:
                continue
            engine = start(model, model.config)
            try:
                rollout = Rollout.from_config(model.config, engine, model.conversation, retrievers)
                _roll_out_model(model.config, keys, tasks, rollout, folder, bar)
            except (ToolFailureError, JudgeFailureError):
                folder.forget_failures()
                raise
            finally:
                engine.close()


def _roll_out_model(
    config: Config,
    keys: Sequence[Key],
    tasks: Mapping[int, Sequence[Task]],
    rollout: Rollout,
    folder: EvaluationFolder,
    bar: ProgressBar,
) -> None:
    """One model's missing trajectories, context modes and numbers of objectives in one stream: as
    one ends the next begins, so that a mode does not wait for the longest of the one before."""
    by_id = {(count, task.id): task for count, chosen in tasks.items() for task in chosen}
    missing = {"/".join(map(str, key)): key for key in keys}
    attempts = {
        name: evaluation_attempt(
            by_id[count, task],
            config.evaluation,
            context,
            config.seed,
        )
        for name, (_, context, count, task) in missing.items()
    }

    def keep(name: str, trajectory: Trajectory) -> None:
        model, context, *_ = missing[name]
        folder.add({"model": model, "context": context, **trajectory_record(trajectory)})

    rollout.run(
        attempts,
        evaluation_sampling(config.evaluation),
        Watch(lambda tick: bar.advance(tick.trajectories_done, tick.tokens), keep),
        at_once=config.engine.max_num_seqs,
    )


def _report(
    config: Config,
    models: Sequence[EvaluatedModel],
    order: Sequence[Key],
    folder: EvaluationFolder,
) -> dict[str, Any]:
    """Writes and prints everything from the folder's trajectories."""
    folder.sort(order)
    samples, seed = config.evaluation.bootstrap_samples, config.seed
    summaries: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for key in order:
        summaries.setdefault(key[:2], []).append(summary(folder.records[key]))
    entries = {name: evaluation_entry(rows, samples, seed) for name, rows in summaries.items()}
    differences = paired_differences(summaries, samples, seed)
    labels = {model.name: model.label for model in models}
    results = {f"{model}/{context}": entry for (model, context), entry in entries.items()}
    write_tasks_csv(folder.folder / EVALUATION_TASKS_FILE, summaries)
    write_differences_csv(folder.folder / EVALUATION_DIFFERENCES_FILE, differences)
    draw_evaluation(folder.folder / EVALUATION_PICTURE_FILE, entries, labels)
    write_json(folder.folder / EVALUATION_FILE, results)
    print_evaluation(entries, differences, labels)
    return results
