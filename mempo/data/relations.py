"""The sentences of the generated world: what relations say, and how they are asked for.

One wording per relation keeps the text regular enough for a very small model. ``{s}`` stands for
the subject and ``{o}`` for the object. Every relation is functional: a subject has one object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["person", "company", "place", "work"]


@dataclass(frozen=True)
class Relation:
    """One relation between two kinds of entity.

    ``sentence`` says it in full, ``clause`` as passages and pages say it of their own subject,
    whose name is their title. ``phrase`` names the object inside a longer question ("the founder of
    {s}"), ``question`` asks for it, ``note`` is the short form that a demonstration writes into
    its memory.
    """

    name: str
    subject: Kind
    object: Kind
    sentence: str
    clause: str
    phrase: str
    question: str
    note: str

    def query(self, subject: str) -> str:
        """The relation as a search query: "founder of Velmar Works"."""
        return self.phrase.format(s=subject).removeprefix("the ")

    @property
    def need(self) -> str:
        """What is looked for, as a thought says it: "the founder"."""
        return self.phrase.removesuffix(" of {s}")


RELATIONS: Final = (
    Relation(
        "founder",
        "company",
        "person",
        "{s} was founded by {o}.",
        "founded by {o}",
        "the founder of {s}",
        "Who founded {s}?",
        "{s} founder {o}.",
    ),
    Relation(
        "headquarters",
        "company",
        "place",
        "{s} is based in {o}.",
        "based in {o}",
        "the home town of {s}",
        "Where is {s} based?",
        "{s} based in {o}.",
    ),
    Relation(
        "birthplace",
        "person",
        "place",
        "{s} was born in {o}.",
        "born in {o}",
        "the birthplace of {s}",
        "Where was {s} born?",
        "{s} born in {o}.",
    ),
    Relation(
        "teacher",
        "person",
        "person",
        "{s} was taught by {o}.",
        "taught by {o}",
        "the teacher of {s}",
        "Who taught {s}?",
        "{s} taught by {o}.",
    ),
    Relation(
        "employer",
        "person",
        "company",
        "{s} works for {o}.",
        "employed by {o}",
        "the employer of {s}",
        "Who employs {s}?",
        "{s} works for {o}.",
    ),
    Relation(
        "mayor",
        "place",
        "person",
        "The mayor of {s} is {o}.",
        "with mayor {o}",
        "the mayor of {s}",
        "Who is the mayor of {s}?",
        "{s} mayor {o}.",
    ),
    Relation(
        "author",
        "work",
        "person",
        "{s} was written by {o}.",
        "written by {o}",
        "the author of {s}",
        "Who wrote {s}?",
        "{s} author {o}.",
    ),
    Relation(
        "publisher",
        "work",
        "company",
        "{s} was published by {o}.",
        "published by {o}",
        "the publisher of {s}",
        "Who published {s}?",
        "{s} publisher {o}.",
    ),
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
