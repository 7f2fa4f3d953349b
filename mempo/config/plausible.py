"""Values of the right type that nobody means: they would fail late, or do what was not asked.

``load_config`` looks at every setting once more here, whatever its section says of it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

LARGEST_WHOLE: Final = 2**31 - 1
LARGEST_SEED: Final = 2**32 - 1
"""What NumPy takes as a seed."""

LARGEST_FRACTION: Final = 1e9

_MAY_BE_EMPTY: Final = ("scoring.filler", "model.system_prompt")
_FREE: Final = re.compile(r"(callbacks\.more|tools\.\d+\.arguments|reward\.judge\.request)\.")
"""Arguments of a person's own classes, and what a server is sent as it is."""


def implausible(given: Mapping[str, Any], checked: Any) -> Iterator[str]:
    """A sentence for each implausible value, with its setting and the remedy.

    ``given`` is what was composed, ``checked`` the typed section made of it.
    """
    return _look("", given, checked)


def _look(prefix: str, given: Any, checked: Any) -> Iterator[str]:
    if isinstance(given, Mapping):
        for name, value in given.items():
            typed = (
                getattr(checked, str(name), None)
                if dataclasses.is_dataclass(checked)
                else checked.get(name)
                if isinstance(checked, Mapping)
                else None
            )
            yield from _look(f"{prefix}{name}.", value, typed)
        return
    setting = prefix.removesuffix(".")
    if _FREE.match(setting):
        return
    if isinstance(given, (list, tuple)):
        typed_items = checked if isinstance(checked, (list, tuple)) else [None] * len(given)
        for index, (value, typed) in enumerate(zip(given, typed_items, strict=False)):
            place = f"{index}." if isinstance(value, Mapping) else ""
            yield from _look(f"{prefix}{place}", value, typed)
        return
    problem = _problem(setting, given, checked)
    if problem is not None:
        yield (
            f"{setting}={given!r}: {problem}" if len(repr(given)) < 80 else f"{setting}: {problem}"
        )


def _problem(setting: str, given: Any, checked: Any) -> str | None:
    if isinstance(given, bool) != isinstance(checked, bool) and checked is not None:
        if isinstance(given, bool):
            return "the setting is a number, and true and false are none"
        return "the setting is a switch: write true or false"
    if isinstance(given, str) and not given.strip() and setting not in _MAY_BE_EMPTY:
        return "it is empty: give a value, or null where there should be none"
    if isinstance(checked, bool) or not isinstance(checked, (int, float)):
        return None
    if setting.endswith("seed"):
        if not 0 <= checked <= LARGEST_SEED:
            return f"a seed is a whole number from 0 to {LARGEST_SEED}"
        return None
    limit = LARGEST_WHOLE if isinstance(checked, int) else LARGEST_FRACTION
    if abs(checked) > limit:
        return f"that is larger than {limit:g}, the most that this program can mean"
    return None
