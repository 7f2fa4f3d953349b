"""The words of a text, for every retriever alike: the indexed ones and those of a query.

A script with spaces gives its words: runs of letters and digits, in lower case. Chinese, Japanese,
Thai, Lao, Khmer and Burmese write no spaces, so a whole clause would be one word that no query
meets. There a run of characters is indexed by its characters and its pairs of neighbours, and
searched by its pairs, or by its character where it is a single one::

    iPhone手机壳   indexed: iphone, 手, 机, 壳, 手机, 机壳   searched: iphone, 手机, 机壳
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

TOKENIZER: Final = 2
"""Raise it when a text gets other words than before: indexes on disk are then built again. 1 was
without pairs of characters."""

_WORD: Final = re.compile(r"\w+")

# Vowel signs stand in the ranges too: they are no letters (``\w``), but parts of their words.
_UNSPACED: Final = (
    "\u0e01-\u0e3a\u0e40-\u0e4e"  # Thai
    "\u0e81-\u0ecf\u0edc-\u0edf"  # Lao
    "\u1000-\u103f\u1050-\u109d"  # Burmese
    "\u1780-\u17d3\u17d7\u17dc\u17dd"  # Khmer
    "\u3005-\u3007\u3021-\u302f\u3031-\u3035\u3038-\u303c"  # marks of repetition and such
    "\u3041-\u3096\u3099\u309a\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # kana
    "\u3105-\u312f\u31a0-\u31bf"  # Bopomofo
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Han
    "\uff66-\uff9f"  # narrow katakana
    "\U0001aff0-\U0001b16f\U00020000-\U000323af"  # rarer kana and Han
)
_HAS_UNSPACED: Final = re.compile(f"[{_UNSPACED}]")
_RUN_OR_WORD: Final = re.compile(rf"[{_UNSPACED}]+|[^\W{_UNSPACED}]+")


def words(text: str) -> list[str]:
    """The words of a text as indexed, as often as they stand there."""
    return _words(text, of_query=False)


def query_words(text: str) -> list[str]:
    """The words of a query. They are ``words`` without the single characters of longer runs: those
    would find 東京 for 京都."""
    return _words(text, of_query=True)


def _words(text: str, of_query: bool) -> list[str]:
    lower = text.lower()
    if lower.isascii() or not _HAS_UNSPACED.search(lower):
        return _WORD.findall(lower)
    found: list[str] = []
    for part in _RUN_OR_WORD.findall(lower):
        if _HAS_UNSPACED.match(part):
            found.extend(_pieces(part, of_query))
        else:
            found.append(part)
    return found


def _pieces(run: str, of_query: bool) -> Iterator[str]:
    """Characters and pairs of a run. Narrow, decomposed and compatibility forms are the usual ones,
    so that ｶﾞ finds ガ."""
    run = unicodedata.normalize("NFKC", run)
    if len(run) == 1 or not of_query:
        yield from run
    yield from map("".join, pairwise(run))
