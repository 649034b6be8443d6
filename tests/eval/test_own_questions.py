"""Tests of the questions about our own documentation: each answer is in the document and section it names."""

from collections import Counter

import pytest

from eval.own import HELD_OUT, KINDS, NEWCOMERS, OwnQuestion, read_documents, read_own, read_questions, section
from turnwire.retrieval.blocks import plain_line

OWN = read_questions()
QUESTIONS = [*OWN, *read_questions(NEWCOMERS), *read_questions(HELD_OUT)]
ANSWERABLE = [question for question in QUESTIONS if question.kind == "answerable"]
TEXTS = {document.name: document.text for document in read_documents()}
EVERYTHING = plain_line(" ".join(TEXTS.values()))


@pytest.mark.parametrize("question", ANSWERABLE, ids=lambda question: question.question)
def test_answer_is_in_its_document_under_its_heading(question: OwnQuestion) -> None:
    text = section(TEXTS[question.document], question.heading)
    assert text, f"{question.document} has no heading {question.heading!r}"
    # Line breaks of a paragraph and the targets of links do not matter.
    assert plain_line(question.answer) in plain_line(text)
    assert [other for other in question.also if plain_line(other) not in EVERYTHING] == []


@pytest.mark.parametrize("question", ANSWERABLE, ids=lambda question: question.question)
def test_question_does_not_contain_its_answer(question: OwnQuestion) -> None:
    assert question.answer.casefold() not in question.question.casefold()
    assert question.question.rstrip("?").casefold() not in {line.strip("# ").casefold() for line in headings(question)}


def headings(question: OwnQuestion) -> list[str]:
    return [line for line in TEXTS[question.document].split("\n") if line.startswith("#")]


@pytest.mark.parametrize("question", [question for question in QUESTIONS if question.kind != "answerable"])
def test_unanswerable_question_has_no_answer(question: OwnQuestion) -> None:
    assert question == OwnQuestion(question.question, question.kind)


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
