"""A set to measure on: documents, questions, and what is known about their answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Document:
    """`name` is its path or id; `title` may be empty."""

    name: str
    title: str
    text: str


@dataclass(frozen=True)
class Question:
    """`gains` says how good each relevant document is, by name; a question with none cannot be answered here.

    `answers` are texts of which any one is the answer; a set may know the documents only.
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
