"""Tests of the questions about our own documentation: each answer is in the document and section it names."""

from collections import Counter

from eval.own import (
    BLIND,
    FIFTH_BLIND,
    FOURTH_BLIND,
    HELD_OUT,
    KINDS,
    NEWCOMERS,
    SECOND_BLIND,
    THIRD_BLIND,
    OwnQuestion,
    read_documents,
    read_own,
    read_questions,
    section,
)
from turnwire.retrieval.blocks import plain_line

OWN = read_questions()
QUESTIONS = [
    *OWN,
    *(
        each
        for path in (NEWCOMERS, HELD_OUT, BLIND, SECOND_BLIND, THIRD_BLIND, FOURTH_BLIND, FIFTH_BLIND)
        for each in read_questions(path)
    ),
]
ANSWERABLE = [question for question in QUESTIONS if question.kind == "answerable"]
TEXTS = {document.name: document.text for document in read_documents()}
EVERYTHING = plain_line(" ".join(TEXTS.values()))


def test_answers_are_in_their_documents_under_their_headings() -> None:
    # Line breaks of a paragraph and the targets of links do not matter.
    absent = [
        (question.document, question.heading, question.answer)
        for question in ANSWERABLE
        if plain_line(question.answer) not in plain_line(section(TEXTS[question.document], question.heading))
    ]
    assert absent == []
    assert [other for each in ANSWERABLE for other in each.also if plain_line(other) not in EVERYTHING] == []


def test_no_question_contains_its_answer_or_is_a_heading() -> None:
    headings = {
        name: {line.strip("# ").casefold() for line in text.split("\n") if line.startswith("#")}
        for name, text in TEXTS.items()
    }
    leaks = [
        question.question
        for question in ANSWERABLE
        if question.answer.casefold() in question.question.casefold()
        or question.question.rstrip("?").casefold() in headings[question.document]
    ]
    assert leaks == []


def test_unanswerable_questions_have_no_answer() -> None:
    unanswerable = [question for question in QUESTIONS if question.kind != "answerable"]
    assert unanswerable == [OwnQuestion(question.question, question.kind) for question in unanswerable]


def test_questions_are_unique_and_enough_of_each_kind() -> None:
    kinds = Counter(question.kind for question in QUESTIONS)
    assert set(kinds) == set(KINDS)
    assert kinds["answerable"] >= 60
    assert kinds["near_miss"] + kinds["off_topic"] >= 40
    assert len({question.question.casefold() for question in QUESTIONS}) == len(QUESTIONS)


def test_questions_cover_most_pages() -> None:
    covered = {question.document for question in ANSWERABLE}
    assert len(covered) >= 0.8 * len(TEXTS), f"no question is about {sorted(set(TEXTS) - covered)}"


def test_own_questions_are_a_collection() -> None:
    own = read_own()
    names = {document.name for document in own.documents}
    assert len(own.questions) == len(OWN)
    assert all(set(question.gains) <= names for question in own.questions)
    assert sum(bool(question.gains) for question in own.questions) == sum(each.kind == "answerable" for each in OWN)


def test_section_ends_at_the_next_heading_of_its_level() -> None:
    text = "# A\none\n## B\ntwo\n```sh\n# not a heading\n```\n### C\nthree\n## D\nfour\n"
    assert section(text, "B") == "two\n```sh\n# not a heading\n```\n### C\nthree"
    assert section(text, "C") == "three"
    assert section(text, "A").endswith("four\n")
    assert section(text, "not a heading") == ""
