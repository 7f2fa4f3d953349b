"""Demonstrations as token ids with a loss mask, laid out exactly as the rollout lays them out."""

from __future__ import annotations

from dataclasses import dataclass

import jinja2

from mempo.agent.conversation import Conversation
from mempo.agent.observations import show
from mempo.agent.tools import ToolResult
from mempo.demonstrations.demonstration import Demonstration


@dataclass(frozen=True)
class TrainingText:
    """Token ids and which of them are trained, both [T]."""

    ids: list[int]
    trained: list[bool]


def encode_demonstration(
    demonstration: Demonstration,
    conversation: Conversation,
    template: jinja2.Template,
    max_observation_tokens: int,
    memory: bool = True,
) -> TrainingText:
    """The prompt, for a context with a ``memory`` or without, then each turn; observations are cut,
    wrapped and glued as in a rollout."""
    question = conversation.inert(demonstration.question)
    ids = conversation.prompt_ids(template.render(question=question, memory=memory))
    trained = [False] * len(ids)
    for turn in demonstration.turns:
        if turn.role == "observation":
            result = turn.result or ToolResult(turn.text, turn.text)
            shown = show(result, conversation, max_observation_tokens)
            pieces = [(conversation.observation_ids(shown.whole), False)]
        else:
            pieces = [
                (conversation.encode(turn.given), False),
                (conversation.encode(turn.text), turn.trained),
            ]
        for piece, is_trained in pieces:
            ids += piece
            trained += [is_trained] * len(piece)
    return TrainingText(ids, trained)
