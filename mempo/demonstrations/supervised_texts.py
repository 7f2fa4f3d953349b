"""All texts of the supervised start, from the generated world or from files."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import AutoConfig

from mempo.agent.conversation import Conversation
from mempo.agent.prompts import load_template
from mempo.agent.tools import protocol_of
from mempo.config import Config, writes_memory
from mempo.demonstrations.asked_question import prompt_frame
from mempo.demonstrations.encoding import TrainingText, encode_demonstration
from mempo.demonstrations.trajectory_files import ReadTrajectories, read_trajectory_files
from mempo.demonstrations.trajectory_shapes import WrittenTrajectory
from mempo.demonstrations.trajectory_texts import Layout, trajectory_texts
from mempo.demonstrations.world import configured_demonstrations
from mempo.runtime.errors import ConfigError
from mempo.runtime.progress import progress_bar
from mempo.runtime.seeds import derive_seed


@dataclass(frozen=True)
class SupervisedTexts:
    """``heldout`` are never trained; ``notes`` are lines to tell."""

    training: Sequence[TrainingText]
    heldout: Sequence[TrainingText] = ()
    notes: Sequence[str] = ()


def read_trajectories(config: Config) -> ReadTrajectories | None:
    """What ``sft.source=file`` reads, ``None`` with another source or no supervised start. Raises
    ``DataError``."""
    if not config.sft.enabled or config.sft.source != "file":
        return None
    memory = writes_memory(config.rollout.context)
    frame = prompt_frame(load_template(config.model.prompt_template, config.tools), memory)
    protocol = protocol_of(config.tools).with_memory(memory)
    return read_trajectory_files(config.sft, frame, protocol)


def supervised_texts(
    config: Config, base: str, tokenizer: Any, read: ReadTrajectories | None
) -> SupervisedTexts:
    """The texts, for the model ``base`` and its tokenizer. Raises ``DataError`` for what the files
    hold, and ``ConfigError`` where no text is left within the limit."""
    if config.sft.source == "world":
        return SupervisedTexts(_world_texts(config, tokenizer))
    read = read or read_trajectories(config)
    assert read is not None
    layout = file_layout(config, base, tokenizer)
    training, heldout = split_by_question(
        read.trajectories, config.sft.heldout_share, config.sft.seed
    )
    texts = list(trajectory_texts(training, layout, read.told))
    apart = list(trajectory_texts(heldout, layout, read.told))
    if not texts:
        raise ConfigError(
            f"sft.path: no trajectory has a round within {layout.limit} tokens: raise "
            "sft.max_tokens or engine.max_model_len, or lower rollout.max_observation_tokens"
        )
    return SupervisedTexts(texts, apart, _notes(config, read, texts, len(heldout)))


def file_layout(config: Config, base: str, tokenizer: Any) -> Layout:
    """How the run lays out what it reads."""
    rollout = config.rollout
    protocol = protocol_of(config.tools).with_memory(writes_memory(rollout.context))
    return Layout(
        Conversation(tokenizer, config.model.system_prompt, protocol),
        load_template(config.model.prompt_template, config.tools),
        rollout.max_observation_tokens,
        longest_text(config, base),
        config.sft.context or ("memory" if rollout.context == "memory" else "full"),
        rollout.memory_context,
        short_chars(config),
        config.sft.skip_bad_rows,
    )


def short_chars(config: Config) -> dict[str, int]:
    """Characters of a tool's result that later rounds see, by its tag; a tool that is not there
    shows them all."""
    of_pages = config.retriever.short_chars
    found = {tool.tag: of_pages if tool.is_access else tool.short_chars for tool in config.tools}
    return {tag: count for tag, count in found.items() if count is not None}


def longest_text(config: Config, base: str) -> int:
    """Tokens that a text may have: the smallest of ``sft.max_tokens``, ``engine.max_model_len`` and
    what the model ``base`` can read."""
    readable = getattr(AutoConfig.from_pretrained(base), "max_position_embeddings", None)
    limits = (config.sft.max_tokens, config.engine.max_model_len, readable)
    return min(limit for limit in (*limits, 2**31) if limit is not None)


def split_by_question(
    trajectories: Sequence[WrittenTrajectory], share: float, seed: int
) -> tuple[list[WrittenTrajectory], list[WrittenTrajectory]]:
    """Those to train on and those kept apart; all attempts at a question are on one side. At least
    one question is kept apart where ``share`` is above 0 and there are two."""
    questions = sorted({one.question for one in trajectories})
    random.Random(derive_seed("sft/heldout", seed)).shuffle(questions)
    count = round(share * len(questions)) or int(share > 0)
    apart = set(questions[: min(count, len(questions) - 1)])
    return (
        [one for one in trajectories if one.question not in apart],
        [one for one in trajectories if one.question in apart],
    )


def _notes(
    config: Config, read: ReadTrajectories, texts: Sequence[TrainingText], heldout: int
) -> list[str]:
    sft = config.sft
    passes = sft.steps * sft.batch_size / len(texts)
    return [
        f"supervised start: {len(read.trajectories)} trajectories of {read.rows} rows in "
        f"{', '.join(sft.paths)}, {heldout} of them held out; {len(texts)} texts, of which "
        f"{sft.steps} steps of {sft.batch_size} (sft.steps, sft.batch_size) make {passes:.3g} "
        "passes",
        *read.told.sentences(),
    ]


def _world_texts(config: Config, tokenizer: Any) -> list[TrainingText]:
    conversation = Conversation(tokenizer, config.model.system_prompt, protocol_of(config.tools))
    template = load_template(config.model.prompt_template, config.tools)
    count = min(config.sft.demonstrations, config.sft.steps * config.sft.batch_size)
    with progress_bar("demonstrations", count) as bar:
        return [
            encode_demonstration(
                demonstration,
                conversation,
                template,
                config.rollout.max_observation_tokens,
                writes_memory(config.rollout.context),
            )
            for demonstration in configured_demonstrations(
                config, count, lambda done: bar.advance()
            )
        ]
