"""How long a context may get: what the engine is asked to hold where no length is set.

Limits of rounds, observations and responses bound a context but for the prompt, whose questions are
not known before; they are given ample room. A prompt that needs more ends its trajectory with
``context_budget``, as one that does not fit the model does.
"""

from __future__ import annotations

from typing import Final, Literal

from mempo.agent.conversation import Conversation
from mempo.agent.prompts import load_template
from mempo.config import Config, EvaluationConfig, RolloutConfig

QUESTION_ROOM: Final = 128  # tokens of one question
PROMPT_ROOM: Final = 512  # tokens beside the questions and the instructions
_GLUE: Final = 64  # tokens of the chat template's marks around a round and its observation
_PREFILLED: Final = 8  # tokens of a given <mem>, which no limit counts


def needed_context(config: Config, conversation: Conversation) -> int:
    """Tokens of a training run's longest context with its generation, in the rollout and in the
    contexts of its evaluations (specification sections 4 and 9)."""
    template = load_template(config.model.prompt_template, config.tools)
    instructions = len(conversation.prompt_ids(template.render(question="")))
    questions = max(config.data.objectives, *(config.data.train_objectives or (1,)))
    return instructions + PROMPT_ROOM + questions * QUESTION_ROOM + room_behind_prompt(config)


def room_behind_prompt(config: Config) -> int:
    """Tokens of rounds and results in the longest of these contexts."""
    how, judged = config.rollout, config.evaluation
    found = [_behind_the_prompt(how, how.context, how.memory_context.keep_steps)]
    if judged.enabled:
        for mode in map(judged.mode, judged.contexts):
            keep = mode.keep_steps or judged.memory_context.keep_steps
            found.append(_behind_the_prompt(judged, mode.context, keep))
    return max(found)


def _behind_the_prompt(
    one: RolloutConfig | EvaluationConfig, context: str, keep_steps: int | Literal["all"]
) -> int:
    everything = one.max_response_tokens + _PREFILLED * one.max_rounds
    if context != "memory" or keep_steps == "all":
        return everything
    turn = _PREFILLED + one.max_round_tokens + one.max_observation_tokens + _GLUE
    newest = _PREFILLED + one.max_round_tokens
    return min(everything, keep_steps * turn + newest)
