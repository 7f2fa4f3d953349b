"""Facts of the generated world, and the chains of them that its questions follow."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mempo.world.relations import RELATION

_LINE_NUMBER: Final = re.compile(r"^\d+\. ")


@dataclass(frozen=True, slots=True)
class Fact:
    """One relation between two entities. ``on_page``: search never shows it, its page does."""

    subject: str
    relation: str
    object: str
    on_page: bool
    sentence: str

    @property
    def clause(self) -> str:
        """How the subject's own passage or page says it: "founder Anna Bel"."""
        return RELATION[self.relation].clause(self.object)

    def is_told_in(self, text: str) -> bool:
        """Whether a line of ``text`` (a tool's observation) that is titled with the subject tells
        the fact."""
        clause = self.clause.casefold()
        return any(
            line.casefold().count(f"{clause}{mark}")
            for line in text.splitlines()
            if _LINE_NUMBER.sub("", line).startswith((f"{self.subject}: ", f"{self.subject} ("))
            for mark in ",."
        )


def chain_question(chain: Sequence[Fact]) -> str:
    """The question that a chain of facts answers.

    "What is the birthplace of the founder of Amber Works?" for a company's founder and that
    person's birthplace.
    """
    subject = chain[0].subject
    for fact in chain[:-1]:
        subject = RELATION[fact.relation].phrase(subject)
    return RELATION[chain[-1].relation].question(subject)


def world_chains(metadata: Mapping[str, Any]) -> list[list[Fact]]:
    """The chains of facts of a task of the generated world, one for each objective; empty for
    every other task. Raises ``ValueError`` for chains that are not the world's."""
    chains = metadata.get("chains")
    if not isinstance(chains, list) or "world_seed" not in metadata:
        return []
    try:
        found = [[Fact(**fact) for fact in chain] for chain in chains]
    except TypeError as error:
        raise ValueError(f"metadata.chains: not facts of the generated world ({error})") from None
    for fact in (fact for chain in found for fact in chain):
        if not all(isinstance(text, str) for text in (fact.subject, fact.relation, fact.object)):
            raise ValueError("metadata.chains: subject, relation and object of a fact are texts")
        if fact.relation not in RELATION:
            raise ValueError(f"metadata.chains: unknown relation {fact.relation!r}")
    return found
