"""Attempts of a teacher with the real tools, from the first that is missing, and what is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from mempo.agent.collection import Attempt, Watch
from mempo.agent.conversation import Conversation
from mempo.agent.error_rate import ToolFailureError
from mempo.agent.rollout import Rollout
from mempo.collect.files import CollectedFiles, claimed
from mempo.collect.gold import GoldTeacher
from mempo.collect.oracle import OracleTeacher
from mempo.collect.scripted import ScriptedTeacher
from mempo.collect.selection import REASONS, select
from mempo.collect.settings import Teacher, Wanted, attempts_record
from mempo.collect.written import chat_row
from mempo.command.run_settings import EvaluationSettings
from mempo.config import Config
from mempo.data.tasks import TaskSets, load_task_sets
from mempo.engine.interface import Sampling
from mempo.evaluation.models import EvaluatedModel, evaluated_models
from mempo.evaluation.standalone import StartEngine
from mempo.models.stand_in_tokenizer import StandInTokenizer
from mempo.records.trajectory_records import trajectory_record
from mempo.runtime.progress import progress_bar
from mempo.training.datamodule import training_settings
from mempo.trajectory import Task, Trajectory


def collect(wanted: Wanted, settings: EvaluationSettings, start: StartEngine) -> Mapping[str, Any]:
    """Makes the file of ``wanted``; returns the counts that are printed and written.

    Raises ``ConfigError``, ``DataError`` and ``MempoError`` that say what to change; what was
    attempted until then is kept.
    """
    config, model = settings.config, None
    if wanted.teacher == "model":
        (model,) = evaluated_models(config, settings.own)
        config = _of_the_model(config, model)
    teacher = wanted.teacher if model is None else model.name
    with claimed(wanted.output):
        files = CollectedFiles(wanted.output, attempts_record(config, wanted, teacher))
        sets = load_task_sets(config)
        for note in sets.notes:
            print(note, flush=True)
        tasks = (sets.train if wanted.split == "train" else sets.heldout)[: wanted.tasks]
        files.open(tasks)
        missing = _missing(config, tasks, wanted.attempts, files)
        _tell_begin(tasks, wanted, missing, files)
        if missing:
            with _rollout(config, wanted.teacher, model, sets, missing, start) as rollout:
                _run(config, rollout, missing, files)
        asked = {task.id for task in tasks}
        records = [
            one
            for (task, sample), one in sorted(files.records.items())
            if task in asked and sample < wanted.attempts
        ]
        selected = select(records, wanted.selection)
        files.finish(
            [chat_row(one, share, teacher) for one, share in selected.kept], selected.counts
        )
    _tell_end(selected.counts, files)
    return selected.counts


def _of_the_model(config: Config, model: EvaluatedModel) -> Config:
    """The call's settings, with the model's own way of being spoken to."""
    return replace(config, model=model.config.model, engine=model.config.engine)


def _missing(
    config: Config, tasks: Sequence[Task], attempts: int, files: CollectedFiles
) -> dict[str, Attempt]:
    settings = training_settings(config)
    return {
        f"{index}/{sample}": Attempt(task, sample, settings, (config.seed, "collect"))
        for index, task in enumerate(tasks)
        for sample in range(attempts)
        if (task.id, sample) not in files.records
    }


@contextmanager
def _rollout(
    config: Config,
    teacher: Teacher,
    model: EvaluatedModel | None,
    sets: TaskSets,
    missing: Mapping[str, Attempt],
    start: StartEngine,
) -> Iterator[Rollout]:
    if model is not None:
        conversation, engine = model.conversation, start(model, config)
    else:
        conversation = Conversation(StandInTokenizer(), config.model.system_prompt)
        tasks = {key: one.task for key, one in missing.items()}
        engine = _program(config, teacher, tasks, conversation)
    try:
        yield Rollout.from_config(config, engine, conversation, sets.retrievers)
    finally:
        engine.close()


def _program(
    config: Config, teacher: Teacher, tasks: Mapping[str, Task], conversation: Conversation
) -> ScriptedTeacher:
    if teacher == "world":
        form = config.sft.memory_form
        return OracleTeacher(tasks, conversation.encode, config.scoring, form)
    return GoldTeacher(tasks, conversation.encode, config.scoring, conversation.inert)


def _run(
    config: Config, rollout: Rollout, missing: Mapping[str, Attempt], files: CollectedFiles
) -> None:
    """Attempts end in any order, and each is on disk as it ends."""
    how = config.rollout
    sampling = Sampling(how.temperature, how.top_p, how.top_k)
    shown = config.callbacks.progress_bars

    def keep(key: str, trajectory: Trajectory) -> None:
        files.add(trajectory_record(trajectory))

    with progress_bar("collecting", len(missing), enabled=shown) as bar:
        watch = Watch(lambda tick: bar.advance(tick.trajectories_done, tick.tokens), keep)
        try:
            rollout.run(missing, sampling, watch, at_once=config.engine.max_num_seqs)
        except ToolFailureError:
            files.forget_tool_errors()
            raise


def _tell_begin(
    tasks: Sequence[Task], wanted: Wanted, missing: Mapping[str, Attempt], files: CollectedFiles
) -> None:
    total = len(tasks) * wanted.attempts
    there = total - len(missing)
    print(f"{len(tasks)} questions, {wanted.attempts} attempts each", flush=True)
    if there:
        print(f"{there} of {total} attempts are in {files.attempts_file} already", flush=True)


def _tell_end(counts: Mapping[str, Any], files: CollectedFiles) -> None:
    questions = dict(counts["questions"])
    asked, kept = questions.pop("asked"), questions.pop("kept", 0)
    others = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in questions.items())
    more = f" (of the others {others})" if others else ""
    print(
        f"kept {counts['kept']} of {counts['attempts']} attempts, "
        f"at {kept} of {asked} questions{more}"
    )
    for name, number in counts["dropped"].items():
        print(f"  {number:>6} dropped: {REASONS[name]}")
    print(f"counts and settings: {files.counts_file}", flush=True)
