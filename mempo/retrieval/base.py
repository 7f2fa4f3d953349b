"""What the tools ask of a retriever (specification sections 3 and 11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Document:
    """One entry of a corpus.

    ``text`` is what its page shows. ``passage`` is what search indexes and shows; ``None`` means
    the same text.
    """

    id: str
    title: str
    text: str
    url: str = ""
    passage: str | None = None

    @property
    def name(self) -> str:
        """What search shows and pages are opened by: the title, or the id where there is none."""
        return self.title or self.id

    @property
    def search_text(self) -> str:
        """The text that search indexes and shows."""
        return self.text if self.passage is None else self.passage


@dataclass(frozen=True, slots=True)
class Passage:
    """One search result. ``score`` is ``None`` where a server tells none; it takes no part in
    comparisons, since retrievers differ in its last digits."""

    title: str
    text: str
    url: str = ""
    id: str = ""
    score: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Page:
    """One page with its whole text."""

    title: str
    text: str
    url: str = ""


class RetrievalError(Exception):
    """The retriever could not serve a request, for a reason that is not the request's own."""


class Retriever(Protocol):
    """Search and page access over one corpus; called from several threads at once.

    Both methods may raise ``RetrievalError`` or ``TimeoutError``. Any other exception counts as a
    fault of the program and stops the run.
    """

    def search(self, query: str, top_k: int) -> Sequence[Passage]:
        """At most ``top_k`` passages, best first; none when nothing matches."""
        ...

    def open_page(self, key: str) -> Page | None:
        """The page with this title or URL, or ``None``."""
        ...


class InMemoryRetriever:
    """Marks a retriever that answers from memory at once: its calls need no time limit.

    Calls of any other retriever run on a thread of their own, so that they can time out.
    """


def page_names(key: str) -> tuple[str, ...]:
    """What a page's name may be, likeliest first: the key itself, and without quotes around it."""
    plain = key.strip()
    return tuple(dict.fromkeys((plain, plain.strip("\"'\u201c\u201d\u2018\u2019").strip())))


class PageIndex:
    """Finds pages by title or URL: exactly first, then without regard to case.

    Quotes around the key are ignored. Passages that share a title (as in corpora cut into pieces)
    are one page, in corpus order.
    """

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = documents
        self._exact: dict[str, list[int]] = {}
        self._folded: dict[str, list[int]] = {}
        for index, document in enumerate(documents):
            for key in dict.fromkeys((document.name, document.url)):
                if key:
                    self._exact.setdefault(key, []).append(index)
                    self._folded.setdefault(key.casefold(), []).append(index)

    def open_page(self, key: str) -> Page | None:
        """The page that ``key`` names, or ``None``."""
        for candidate in page_names(key):
            found = self._lookup(self._exact, candidate) or self._lookup(
                self._folded, candidate.casefold()
            )
            if found:
                return joined_page(found)
        return None

    def _lookup(self, table: Mapping[str, list[int]], key: str) -> list[Document]:
        return [self._documents[index] for index in table.get(key, ())]


def joined_page(documents: Sequence[Document]) -> Page:
    """One page out of the documents that share its name, in corpus order; at least one."""
    first = documents[0]
    return Page(first.name, "\n".join(document.text for document in documents), first.url)


def found_passage(document: Document, score: float) -> Passage:
    """A document as a search result."""
    return Passage(document.name, document.search_text, document.url, document.id, score)
