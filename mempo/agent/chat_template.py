"""What a chat template must do, and the sentences for those that do not (specification section 4).

A conversation is built piece by piece, so a template must show each message's text once and as it
is, whatever its role, and its generation prompt must be exactly how it starts an assistant's turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import jinja2

from mempo.runtime.errors import MempoError

_QUESTION: Final = "QUESTIONTURNMARKER"
_ASSISTANT: Final = "ASSISTANTTURNMARKER"
_OBSERVATION: Final = "OBSERVATIONTURNMARKER"
_REMEDY: Final = "give another template with model.chat_template=<file>"

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Glue:
    """Template text around an observation: from the end of the assistant's text to the start of
    the observation, and from its end to the start of the next generation."""

    before: str
    after: str


class ChatTemplate:
    """One tokenizer's chat template, with a system message or without (``None``).

    Raises ``MempoError`` when there is none, or when a conversation cannot be built with it; the
    message says what to set.
    """

    def __init__(self, tokenizer: Any, system_prompt: str | None) -> None:
        self._tokenizer = tokenizer
        self._system_prompt = system_prompt
        _require_template(getattr(tokenizer, "chat_template", None))
        self.glue = self._find_glue()

    def prompt(self, user_text: str) -> str:
        """System message, user turn and generation prompt."""
        return self._render(self._opening(user_text))

    def _opening(self, user_text: str) -> Messages:
        user = {"role": "user", "content": user_text}
        if self._system_prompt is None:
            return [user]
        return [{"role": "system", "content": self._system_prompt}, user]

    def _render(self, messages: Messages) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        )

    def _find_glue(self) -> Glue:
        try:
            prompt, whole = self._render_trial(self._opening(_QUESTION))
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            raise self._refusal(error) from None
        if prompt.count(_QUESTION) != 1 or any(
            whole.count(marker) != 1 for marker in (_QUESTION, _ASSISTANT, _OBSERVATION)
        ):
            raise MempoError(
                f"the chat template does not show each message exactly once: {_REMEDY}"
            )
        if self._system_prompt is not None and self._system_prompt.strip() not in prompt:
            raise MempoError(
                "the chat template leaves the system message out: set model.system_prompt=null, "
                f"or {_REMEDY}"
            )
        if not whole.startswith(prompt + _ASSISTANT):
            raise MempoError(self._why_not_continued(prompt, whole))
        middle = whole.split(_ASSISTANT)[1]
        before, after = middle.split(_OBSERVATION)
        return Glue(before, after)

    def _render_trial(self, opening: Messages) -> tuple[str, str]:
        """The prompt alone, and a conversation of one round and its observation."""
        turns = [
            {"role": "assistant", "content": _ASSISTANT},
            {"role": "user", "content": _OBSERVATION},
        ]
        return self._render(opening), self._render([*opening, *turns])

    def _refusal(self, error: Exception) -> MempoError:
        """Why a template fails: mostly because it knows no system message."""
        if self._system_prompt is not None:
            try:
                self._render_trial([{"role": "user", "content": _QUESTION}])
            except (jinja2.TemplateError, TypeError, ValueError, KeyError):
                pass
            else:
                return MempoError(
                    f"the chat template refuses a system message ({error}): "
                    f"model.system_prompt=null leaves it out, or {_REMEDY}"
                )
        return MempoError(f"the chat template fails on a conversation ({error}): {_REMEDY}")

    def _why_not_continued(self, prompt: str, whole: str) -> str:
        turn = whole.split(_ASSISTANT)[0]
        if not turn.startswith(prompt.split(_QUESTION)[0] + _QUESTION):
            reason = "shows the question in another place once the conversation goes on"
            if self._system_prompt is not None:
                reason += " (or the system message: model.system_prompt=null leaves it out)"
            return (
                f"the chat template {reason}, so a conversation cannot be continued piece by "
                f"piece: {_REMEDY}"
            )
        generation = prompt.split(_QUESTION)[1]
        started = turn.split(_QUESTION)[1]
        return (
            f"the chat template's generation prompt ({generation!r} after the question) is not how "
            f"it starts an assistant turn ({started!r}), so a conversation cannot be continued "
            f"piece by piece: {_REMEDY}, in which the two are equal"
        )


def _require_template(template: Any) -> None:
    if isinstance(template, list):  # as older configuration files write named templates
        template = {entry.get("name"): entry.get("template") for entry in template}
    if isinstance(template, dict) and template and "default" not in template:
        raise MempoError(
            f"the tokenizer has several chat templates ({', '.join(map(str, template))}) and none "
            "is named default: write the one to use into a file and set model.chat_template=<file>"
        )
    if not template:
        raise MempoError(
            "the tokenizer has no chat template: use an instruction-tuned model, or give a "
            "template with model.chat_template=<file>"
        )
