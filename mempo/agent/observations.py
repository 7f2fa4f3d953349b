"""What of a tool's result a round is shown, within its token budget (specification section 3).

A page's part is cut where the budget ends and says that more follows; the session is told how many
of its characters were shown, and goes on behind them. The passages of a search share the budget
evenly, and what one leaves goes to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mempo.agent.conversation import Conversation
from mempo.agent.protocol import OBSERVATION_CLOSE, OBSERVATION_OPEN
from mempo.agent.tools import PagePart, ToolResult
from mempo.runtime.errors import MempoError

MORE_FOLLOWS: Final = "There is more of this page. Open it again to read on."
MORE_FOLLOWS_BRIEFLY: Final = "More follows."
CUT: Final = " …"

_LEAST_ROOM: Final = 8  # tokens; a character never takes more than a few
_LONGEST_WORD: Final = 32  # characters; a cut moves back at most this far to a space


@dataclass(frozen=True)
class Shown:
    """An observation as the context holds it, and its short text for later rounds, both wrapped.

    ``characters`` and ``short_characters`` count the characters of a page's body in each.
    """

    whole: str
    short: str
    characters: int = 0
    short_characters: int = 0


def show(result: ToolResult, conversation: Conversation, budget: int) -> Shown:
    """The result in at most ``budget`` tokens, tags included.

    Raises ``MempoError`` when the budget leaves no room between the tags.
    """
    if budget - conversation.empty_observation_tokens < _LEAST_ROOM:
        raise MempoError(
            f"an observation of max_observation_tokens={budget} has no room: its tags alone take "
            f"{conversation.empty_observation_tokens} tokens with this tokenizer; raise "
            "rollout.max_observation_tokens (evaluation.max_observation_tokens)"
        )
    if result.page is not None:
        return _show_page(result, result.page, conversation, budget)
    if result.passages:
        wrapped = _wrap(_share(result.passages, conversation, budget))
        return Shown(wrapped, wrapped)
    return show_text(result.text, result.short_text, conversation, budget)


def show_text(text: str, short_text: str, conversation: Conversation, budget: int) -> Shown:
    """A sentence as an observation."""
    whole = conversation.wrap_observation(text, budget)
    return Shown(whole, conversation.wrap_observation(short_text, budget))


def _show_page(
    result: ToolResult, page: PagePart, conversation: Conversation, budget: int
) -> Shown:
    head, characters, wrapped = _cut_page(page, conversation, budget)
    short = (head + page.body[:characters])[: len(result.short_text)]
    return Shown(
        wrapped,
        conversation.wrap_observation(short, budget),
        characters,
        max(0, len(short) - len(head)),
    )


def _cut_page(page: PagePart, conversation: Conversation, budget: int) -> tuple[str, int, str]:
    """What is shown: the head, how many characters of the body, and the wrapped text of both.

    Where a small budget has no room for the head or for the whole sentence that says that more
    follows, they make room for the text: a page never stands still.
    """
    after = "\n" + MORE_FOLLOWS if page.more else ""
    wrapped = _wrap(page.head + page.body + after)
    if conversation.fits(wrapped, budget):
        return page.head, len(page.body), wrapped
    room = budget - conversation.empty_observation_tokens
    frames = [(page.head, MORE_FOLLOWS), (page.head, MORE_FOLLOWS_BRIEFLY)]
    frames.append(("", MORE_FOLLOWS_BRIEFLY))
    head, after = "", ""
    for head_tried, sentence in frames:
        if budget - conversation.count(_wrap(f"{head_tried}\n{sentence}")) >= max(room // 4, 1):
            head, after = head_tried, "\n" + sentence
            break
    before, after_all = OBSERVATION_OPEN + head, after + OBSERVATION_CLOSE
    characters = conversation.fit(before, page.body, after_all, budget)
    at_word = _word_end(page.body, characters)
    if conversation.fits(before + page.body[:at_word] + after_all, budget):
        characters = at_word
    return head, characters, before + page.body[:characters] + after_all


def _share(passages: Sequence[tuple[str, str]], conversation: Conversation, budget: int) -> str:
    """The passages, one a line, cut so that all of them are seen."""
    lines = [head + body for head, body in passages]
    text = "\n".join(lines)
    if conversation.fits(_wrap(text), budget):
        return text
    costs = [conversation.count(line + "\n") for line in lines]
    shares = fair_shares(costs, budget - conversation.empty_observation_tokens)
    while True:
        text = "\n".join(
            head + body if cost <= share else _cut_passage(head, body, conversation, share)
            for (head, body), cost, share in zip(passages, costs, shares, strict=True)
        )
        excess = conversation.count(_wrap(text)) - budget
        if excess <= 0 or not any(shares):
            return text
        # Tokens that form across a line's end: the longest line gives them.
        longest = max(range(len(shares)), key=lambda index: shares[index])
        shares[longest] = max(0, shares[longest] - excess)


def fair_shares(costs: Sequence[int], room: int) -> list[int]:
    """Splits ``room`` evenly; what one does not need goes to the others."""
    shares = [0] * len(costs)
    left = max(room, 0)
    by_cost = sorted(range(len(costs)), key=lambda index: costs[index])
    for position, index in enumerate(by_cost):
        shares[index] = min(costs[index], left // (len(costs) - position))
        left -= shares[index]
    return shares


def _cut_passage(head: str, body: str, conversation: Conversation, share: int) -> str:
    """Number, title and the beginning of a passage; of a title that is too long, its beginning."""
    characters = conversation.fit(head, body, CUT + "\n", share)
    if characters:
        return head + body[: _word_end(body, characters)].rstrip() + CUT
    shown = head[: conversation.fit("", head, CUT + "\n", share)].rstrip()
    return shown + CUT if shown else ""


def _word_end(text: str, end: int) -> int:
    """``end``, or the end of the last white space before it where it stands inside a word."""
    if end >= len(text) or text[end].isspace():
        return end
    start = max(end // 2, end - _LONGEST_WORD)
    for place in range(end, start, -1):
        if text[place - 1].isspace():
            return place
    return end


def _wrap(text: str) -> str:
    return f"{OBSERVATION_OPEN}{text}{OBSERVATION_CLOSE}"
