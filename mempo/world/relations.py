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
        "Contemporary newspapers occasionally published sympathetic biographical portraits.",
        "Neighbours appreciated exceptional patience and considerable musical understanding.",
        "Correspondence with international acquaintances continued throughout retirement.",
        "Distinguished institutions repeatedly acknowledged extraordinary accomplishments.",
        "Photographs document enthusiastic participation in traditional celebrations.",
        "Surviving notebooks demonstrate remarkable concentration and determination.",
        "Professional colleagues remembered particularly entertaining conversations.",
        "Unfortunately, comprehensive information about childhood remains unavailable.",
    ),
    "company": (
        "Experienced apprentices traditionally demonstrate specialized craftsmanship.",
        "International customers consistently recommended dependable manufacturing.",
        "Approximately seventeen departments participate in experimental development.",
        "Considerable investments strengthened environmentally responsible production.",
        "Independent accountants described comparatively conservative expenditure.",
        "Management introduced comprehensive transportation and accommodation benefits.",
        "Traditional machinery received extensive technological improvements.",
        "Representatives regularly attended agricultural and industrial exhibitions.",
    ),
    "place": (
        "Neighbouring communities appreciate traditional agricultural exhibitions.",
        "Picturesque surroundings occasionally attract adventurous photographers.",
        "Comfortable accommodation becomes exceptionally expensive throughout summertime.",
        "Archaeological investigations discovered considerable medieval fortifications.",
        "Volunteers maintain approximately fourteen kilometres of recreational footpaths.",
        "Independent shopkeepers organize international cultural celebrations.",
        "Underground watercourses occasionally interrupt railway transportation.",
        "Architectural inspectors recommended comprehensive structural improvements.",
    ),
    "work": (
        "Contemporary commentators appreciated unconventional philosophical observations.",
        "Subsequent publications incorporated supplementary historical illustrations.",
        "Professional translators experienced considerable grammatical difficulties.",
        "Educational institutions recommended comprehensive classroom discussions.",
        "Unauthorized adaptations occasionally misrepresented fundamental characteristics.",
        "Enthusiastic correspondents suggested alternative interpretations.",
        "Surprisingly, preliminary manuscripts contained autobiographical information.",
        "Independent booksellers distributed commemorative anniversary publications.",
    ),
}
"""Sentences that stand only on pages and name no entity. Long words make a page long for its
number of tokens, since each word is one token of the tiny model's vocabulary."""
