"""A collection: documents and questions with known answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Document:
    """A document. `name` is its path or id; `title` may be empty."""

    name: str
    title: str
    text: str


@dataclass(frozen=True)
class Question:
    """A question. `gains` has the relevance of documents by name; without any it is unanswerable.

    `answers` are alternative texts of the answer; a collection may have none.
    """

    name: str
    text: str
    gains: Mapping[str, float] = field(default_factory=dict)
    answers: Sequence[str] = ()
    kind: str = "answerable"


@dataclass(frozen=True)
class Collection:
    name: str
    documents: Sequence[Document]
    questions: Sequence[Question]
