"""How long a context may get: what the engine is asked to hold where no length is set.

Limits of rounds, observations and responses bound a context but for the prompt, whose questions are
not known before; they are given ample room. A prompt that needs more ends its trajectory with
``context_budget``, as one that does not fit the model does.
"""

from __future__ import annotations

from typing import Final, Literal

from mempo.agent.conversation import Conversation
from mempo.agent.prompts import load_template
from mempo.config import (
    Config,
    EvaluationConfig,
    RolloutConfig,
    SummaryConfig,
    shows_everything,
)
from mempo.config.contexts import ContextName

QUESTION_ROOM: Final = 128  # tokens of one question
PROMPT_ROOM: Final = 512  # tokens beside the questions and the instructions
_GLUE: Final = 64  # tokens of the chat template's marks around a round and its observation
_REQUEST_ROOM: Final = 128  # tokens of what a summary is asked for with, and of its heading
_NO_SUMMARY: Final = SummaryConfig()
_SHORTEST_TOKEN: Final = 2  # characters, on average over the instructions
_PREFILLED: Final = 8  # tokens of a given <mem>, which no limit counts


def needed_context(config: Config, conversation: Conversation | None) -> int:
    """Tokens of a training run's longest context with its generation, in the rollout and in the
    contexts of its evaluations (specification sections 4 and 9). Without a ``conversation``, whose
    tokenizer counts the instructions, they have a token for two characters, which is ample."""
    template = load_template(config.model.prompt_template, config.tools).render(question="")
    instructions = (
        -(-len(template) // _SHORTEST_TOKEN)
        if conversation is None
        else len(conversation.prompt_ids(template))
    )
    questions = max(config.data.objectives, *(config.data.train_objectives or (1,)))
    return instructions + PROMPT_ROOM + questions * QUESTION_ROOM + room_behind_prompt(config)


def room_behind_prompt(config: Config) -> int:
    """Tokens of rounds and results in the longest of these contexts."""
    how, judged = config.rollout, config.evaluation
    found = [_behind_the_prompt(how, how.context, how.memory_context.keep_steps)]
    if judged.enabled:
        for mode in map(judged.mode, judged.contexts):
            keep = mode.keep_steps or judged.memory_context.keep_steps
            summary = mode.summary or judged.summary
            found.append(_behind_the_prompt(judged, mode.context, keep, summary))
    return max(found)


def _behind_the_prompt(
    one: RolloutConfig | EvaluationConfig,
    context: ContextName,
    keep_steps: int | Literal["all"],
    summary: SummaryConfig = _NO_SUMMARY,
) -> int:
    everything = one.max_response_tokens + _PREFILLED * one.max_rounds
    if shows_everything(context) or (context == "memory" and keep_steps == "all"):
        return everything
    turn = _PREFILLED + one.max_round_tokens + one.max_observation_tokens + _GLUE
    newest = _PREFILLED + one.max_round_tokens
    if context == "summary":
        # The summary before and the one that is asked for stand beside what they tell.
        beside = 2 * summary.max_tokens + _REQUEST_ROOM
        return min(everything, summary.every_rounds * turn + newest) + beside
    if context == "retrieval_memory":  # the pieces have the room of a result
        return turn + one.max_observation_tokens + newest
    steps = keep_steps if context == "memory" and keep_steps != "all" else 1
    return min(everything, steps * turn + newest)
