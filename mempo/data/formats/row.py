"""One row of a data set, with accessors whose faults name file, line, field and what was seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from mempo.runtime.rows import DataError
from mempo.trajectory import Objective, Task

_SHOWN_FIELDS: Final = 20
_SHOWN_CHARACTERS: Final = 60

FanoutRows = Literal["subquestions", "siblings", "questions"]


@dataclass(frozen=True)
class Options:
    """How rows are read (``data.answer_separator`` and ``data.fanoutqa``)."""

    answer_separator: str | None = "<|answer_split|>"
    fanoutqa: FanoutRows = "subquestions"


@dataclass(frozen=True)
class Row:
    """``place`` is the file with line or row number; ``default_id`` names a row without an id."""

    fields: Mapping[str, Any]
    place: str
    default_id: str

    def fault(self, problem: str) -> DataError:
        """The error to raise: the place, what is wrong, and the fields that the row has."""
        names = list(self.fields)
        shown = ", ".join(names[:_SHOWN_FIELDS]) or "none"
        more = f" and {len(names) - _SHOWN_FIELDS} more" if len(names) > _SHOWN_FIELDS else ""
        return DataError(f"{self.place}: {problem} (fields of this row: {shown}{more})")

    def first(self, *names: str) -> str | None:
        """The first of these fields that is there and not null."""
        return next((name for name in names if self.fields.get(name) is not None), None)

    def text(self, *names: str) -> str:
        """The first of these fields that is there, stripped. Raises ``DataError`` when none is, or
        when it is no text, or blank."""
        name = self.first(*names)
        if name is None:
            wanted = " or ".join(f'"{one}"' for one in names)
            raise self.fault(f"the field {wanted} is missing")
        value = self.fields[name]
        if not isinstance(value, str):
            raise self.fault(f'the field "{name}" must be a text, it is {seen(value)}')
        if not value.strip():
            raise self.fault(f'the field "{name}" is blank')
        return value.strip()

    def optional_text(self, *names: str) -> str:
        """Like ``text``, but ``""`` where no field is there or the first one is blank."""
        name = self.first(*names)
        if name is None or self.fields[name] == "":
            return ""
        return self.text(name)

    def identifier(self, *names: str) -> str:
        """The first of these fields that is there (a text or a whole number), else
        ``default_id``. Raises ``DataError``."""
        name = self.first(*names)
        if name is None:
            return self.default_id
        value = self.fields[name]
        if isinstance(value, bool) or not isinstance(value, (str, int)) or not str(value).strip():
            raise self.fault(
                f'the field "{name}" must be a text or a whole number, it is {seen(value)}'
            )
        return str(value).strip()

    def golds(self, options: Options, name: str, *more: str, value: Any = None) -> tuple[str, ...]:
        """The gold answers of the field ``name`` and of the optional fields ``more``, each once.

        A field may hold one answer (a text or a number), a list of them, or one text with
        ``options.answer_separator`` between aliases. ``value`` stands in for ``fields[name]`` where
        the answers lie deeper in it. Raises ``DataError`` for anything else, and when there is no
        answer or a blank one.
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

    def _answers(self, name: str, value: Any, options: Options) -> list[str]:
        answers: list[str] = []
        for part in value if isinstance(value, (list, tuple)) else [value]:
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


def seen(value: Any) -> str:
    """A value as error messages show it: its kind, and its keys or its beginning."""
    if isinstance(value, Mapping):
        return f"an object with the keys {', '.join(map(str, value)) or '(none)'}"
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return f"a list of {len(value)}" + (f" that begins with {seen(value[0])}" if value else "")
    written = repr(value)
    short = written if len(written) <= _SHOWN_CHARACTERS else f"{written[:_SHOWN_CHARACTERS]}…"
    return f"{type(value).__name__} {short}" if value is not None else "null"
