"""Pages that a test knows to be there."""

from __future__ import annotations

from mempo.retrieval import Page
from mempo.retrieval.base import Retriever


def known_page(retriever: Retriever, key: str) -> Page:
    """The page of that title or URL, which there is."""
    page = retriever.open_page(key)
    assert page is not None, key
    return page
