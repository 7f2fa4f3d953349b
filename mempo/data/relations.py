"""The sentences of the generated world: what relations say, and how they are asked for.

Every relation is functional: a subject has one object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["person", "company", "place", "work"]


@dataclass(frozen=True)
class Relation:
    """One relation between two kinds of entity, told with one noun ("founder") everywhere.

    One noun in question, query, passage and memory is what a very small model can learn to follow
    in minutes. ``asks`` is the question word for the object.
    """

    name: str
    subject: Kind
    object: Kind
    noun: str
    asks: Literal["Who", "What"]

    def sentence(self, subject: str, object_: str) -> str:
        """The fact in full: "The founder of Velmar Works is Anna Bel."."""
        return f"The {self.noun} of {subject} is {object_}."

    def clause(self, object_: str) -> str:
        """As the subject's own passage or page, whose title names it, says it."""
        return f"{self.noun} {object_}"

    def phrase(self, subject: str) -> str:
        """Names the object inside a longer question: "the founder of Velmar Works"."""
        return f"the {self.query(subject)}"

    def question(self, subject: str) -> str:
        """Asks for the object: "Who is the founder of Velmar Works?"."""
        return f"{self.asks} is {self.phrase(subject)}?"

    def query(self, subject: str) -> str:
        """A search query: "founder of Velmar Works"."""
        return f"{self.noun} of {subject}"

    def note(self, subject: str, object_: str) -> str:
        """The short form that a demonstration writes into its memory."""
        return f"{subject} {self.noun} {object_}."


RELATIONS: Final = (
    Relation("founder", "company", "person", "founder", "Who"),
    Relation("headquarters", "company", "place", "home", "What"),
    Relation("birthplace", "person", "place", "birthplace", "What"),
    Relation("teacher", "person", "person", "teacher", "Who"),
    Relation("employer", "person", "company", "employer", "Who"),
    Relation("mayor", "place", "person", "mayor", "Who"),
    Relation("author", "work", "person", "author", "Who"),
    Relation("publisher", "work", "company", "publisher", "Who"),
)

RELATION: Final = {relation.name: relation for relation in RELATIONS}
"""The relations by name."""

PAGE_ORDER: Final = (
    "employer",
    "headquarters",
    "publisher",
    "mayor",
    "teacher",
    "birthplace",
    "author",
    "founder",
)
"""Which relations leave the search passages first as the share of page facts grows."""

KIND_SHARES: Final[dict[Kind, float]] = {
    "person": 0.45,
    "company": 0.2,
    "place": 0.2,
    "work": 0.15,
}
"""How the entities of a world divide into kinds."""

INTRODUCTIONS: Final[dict[Kind, tuple[str, ...]]] = {
    "person": ("A baker", "A lawyer", "A painter", "A doctor", "A singer", "A farmer"),
    "company": ("A small company", "A large company", "A new company", "An old company"),
    "place": ("A village", "A town", "A market town", "A quiet town"),
    "work": ("A novel", "A poem", "A play", "A travel book"),
}
"""First words of a passage; they hold no fact that a question asks for."""

DETAILS: Final[dict[Kind, tuple[str, ...]]] = {
    "person": (
        "Friends praise the patience and the good humour.",
        "The day begins early with a long walk by the water.",
        "A local paper once printed a short portrait.",
        "Two prizes stand on the shelf at home.",
        "In the evening there is music and chess with neighbours.",
        "Letters from many years are kept in a box.",
        "A garden behind the house takes up every free hour.",
        "Visitors are always offered tea and cake.",
    ),
    "company": (
        "The first workshop had one room and two machines.",
        "Today several hundred people are on the payroll.",
        "The staff meet once a month for a common breakfast.",
        "A fire destroyed the old store, but nobody was hurt.",
        "Profits rose slowly over the last ten years.",
        "Its goods are sold at home and abroad.",
        "Apprentices stay for three years and learn every trade.",
        "A small museum shows the early machines.",
    ),
    "place": (
        "The old bridge is closed to heavy traffic.",
        "A weekly market fills the square on every Friday.",
        "Most houses have slate roofs and narrow windows.",
        "The library stays open until late in the evening.",
        "A footpath leads through the woods to the lake.",
        "The school choir is known in the whole valley.",
        "In hard times the people lived on fish and bread.",
        "Trains stop here twice in an hour.",
    ),
    "work": (
        "Critics liked the quiet tone of the first part.",
        "The first edition sold out within a month.",
        "It has been translated into nine languages.",
        "The story ends with a letter that nobody opens.",
        "A film version was planned but never made.",
        "Schools read it in the last year.",
        "The cover shows a boat and a lamp.",
        "Later editions carry a long afterword.",
    ),
}
"""Sentences that stand only on pages and name no entity."""
