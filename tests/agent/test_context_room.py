"""How long contexts may get, worked out by hand (specification sections 4 and 9)."""

from __future__ import annotations

import pytest

from mempo.agent.context_room import needed_context, room_behind_prompt
from mempo.agent.conversation import Conversation
from mempo.agent.prompts import load_template
from mempo.command.cli import compose
from tests.support.small_tokenizers import make_tokenizer

LIMITS = [
    "rollout.max_rounds=8", "rollout.max_response_tokens=4000", "rollout.max_round_tokens=300",
    "rollout.max_observation_tokens=200", "evaluation.max_rounds=64",
    "evaluation.max_response_tokens=65536", "evaluation.max_round_tokens=100",
    "evaluation.max_observation_tokens=150",
]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        # All of the response, and eight tokens of a given <mem> for each round.
        (["evaluation.enabled=false"], 4000 + 64),
        (["evaluation.contexts=[full]"], 65536 + 512),
        # A round and its result with 64 tokens of marks, then the round that is written.
        (["evaluation.enabled=false", "rollout.context=memory"], 8 + 300 + 200 + 64 + 8 + 300),
        (["rollout.context=memory", "evaluation.contexts=[memory]"], 880),
        (
            [
                "rollout.context=memory",
                "evaluation.contexts=[memory]",
                "evaluation.memory_context.keep_steps=4",
            ],
            4 * (8 + 100 + 150 + 64) + 108,
        ),
        (
            [
                "evaluation.enabled=false",
                "rollout.context=memory",
                "rollout.memory_context.keep_steps=all",
            ],
            4064,
        ),
        # The baselines: all; a memory in place of its round; the pieces as large as a result;
        # four rounds, two summaries and the request for one.
        (["evaluation.enabled=false", "rollout.context=react", "algorithm=grpo"], 4064),
        (["evaluation.enabled=false", "rollout.context=mem1"], 880),
        (
            ["evaluation.enabled=false", "rollout.context=retrieval_memory", "algorithm=grpo"],
            880 + 200,
        ),
        (
            ["rollout.context=mem1", "evaluation.contexts=[summary]"],
            4 * (8 + 100 + 150 + 64) + 108 + 2 * 256 + 128,
        ),
        # Few tokens in all: no context has more.
        (
            [
                "evaluation.enabled=false",
                "rollout.context=memory",
                "rollout.max_response_tokens=500",
            ],
            564,
        ),
    ],
)
def test_behind_the_prompt(settings: list[str], tokens: int) -> None:
    assert room_behind_prompt(compose("train", [*LIMITS, *settings])) == tokens


def test_a_prompt_has_room_for_its_questions() -> None:
    settings = [*LIMITS, "evaluation.enabled=false", "data.train_objectives=[1,4]"]
    config = compose("train", settings)
    conversation = Conversation(make_tokenizer("bytes"), config.model.system_prompt)
    instructions = load_template(config.model.prompt_template).render(question="")
    written = len(conversation.prompt_ids(instructions))
    assert needed_context(config, conversation) == written + 512 + 4 * 128 + 4064
