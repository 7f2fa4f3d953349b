"""What an adapter is given: where questions stand, how they are read, and their rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mempo.config.data import FanoutRows
from mempo.row_files.rows import Row, require_text, seen
from mempo.row_files.told import Told
from mempo.row_files.written import UnreadableText, written_list
from mempo.trajectory import Objective, Task

LISTS_AS_TEXT: Final = "hold their answers as a list written in a text: it was read as a list"
"""What is told of such rows."""


@dataclass(frozen=True)
class Options:
    """How rows are read (``data.answer_separator``, ``data.fanoutqa``, ``data.skip_bad_rows``).

    ``aliases`` holds more golds by ``answer_id`` (``data.aliases``). ``told`` takes down what is
    guessed or dropped on the way.
    """

    answer_separator: str | None = "<|answer_split|>"
    fanoutqa: FanoutRows = "subquestions"
    skip_bad_rows: bool = False
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    told: Told = field(default_factory=Told, compare=False)


@dataclass(frozen=True)
class QuestionSource:
    """Which questions are read.

    ``place`` is a file, a folder or a hub name (see ``read_rows``), and ``setting`` what errors
    call it; ``split`` and ``subset`` (the configuration's name) are read for folders and hub names
    only. Tasks search ``corpus``.
    """

    format: str
    place: str
    setting: str = "data.questions"
    split: str = "train"
    subset: str | None = None
    corpus: str = "default"


@dataclass(frozen=True)
class QuestionRow(Row):
    """A row that asks a question, of any format."""

    def golds(self, options: Options, name: str, *more: str, value: Any = None) -> tuple[str, ...]:
        """The gold answers of the field ``name`` and of the optional fields ``more``, each once.

        A field may hold one answer (a text or a number), a list of them, a list written as text
        (which is told), or one text with ``options.answer_separator`` between aliases. ``value``
        stands in for ``fields[name]`` where the answers lie deeper in it. Raises ``DataError`` for
        anything else, and when there is no answer or a blank one.
        """
        value = self.fields.get(name) if value is None else value
        if value is None:
            raise self.fault(
                f'the field "{name}" is missing: questions without gold answers (test splits, '
                "often) cannot be used"
            )
        found = self._answers(name, value, options)
        if not found:
            raise self.fault(f'the field "{name}" holds no answer')
        for other in more:
            if self.fields.get(other) is not None:
                found += self._answers(other, self.fields[other], options)
        return tuple(dict.fromkeys(found))

    def task(
        self,
        key: str,
        question: str,
        golds: tuple[str, ...],
        source: str,
        metadata: Mapping[str, Any] | None = None,
    ) -> Task:
        """A task of one objective. The loader fills in its corpus."""
        return Task(key, (Objective(question, golds),), source, metadata=metadata or {})

    def listed(self, name: str, value: Any, told: Told) -> list[Any]:
        """The answers in ``value``, as they are: its elements where it is a list, in fact or
        written as text (``told`` takes that down). Raises ``DataError`` for a text that begins as
        a list and cannot be read: it would be a gold that no answer equals."""
        parts: list[Any] = []
        for part in value if isinstance(value, (list, tuple)) else [value]:
            try:
                found = written_list(part) if isinstance(part, str) else None
            except UnreadableText as problem:
                raise self.fault(
                    f'the field "{name}" {problem}: {seen(part)}; write a list of texts'
                ) from None
            if found is not None:
                require_text({name: found}, self.place)
                told.add(LISTS_AS_TEXT, self.place)
            parts += [part] if found is None else found
        return parts

    def _answers(self, name: str, value: Any, options: Options) -> list[str]:
        answers: list[str] = []
        for part in self.listed(name, value, options.told):
            text = answer_text(part)
            if text is None:
                raise self.fault(
                    f'the field "{name}" must hold a text, a number or a list of them, it holds '
                    f"{seen(part)}"
                )
            pieces = text.split(options.answer_separator) if options.answer_separator else [text]
            for piece in pieces:
                if not piece.strip():
                    raise self.fault(f'the field "{name}" holds a blank answer')
                answers.append(piece.strip())
        return answers


def answer_text(value: Any) -> str | None:
    """An answer as text: texts as they are, numbers as Python writes them (``11.0`` as ``11``).
    ``None`` for anything else, true, false and NaN included."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return str(int(value)) if value == int(value) else str(value)
