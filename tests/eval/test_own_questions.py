"""The questions about our own documentation: each answer must stand where its question says."""

from collections import Counter

import pytest

from eval.own import KINDS, OwnQuestion, read_documents, read_own, read_questions, section

QUESTIONS = read_questions()
ANSWERABLE = [question for question in QUESTIONS if question.kind == "answerable"]
TEXTS = {document.name: document.text for document in read_documents()}


@pytest.mark.parametrize("asked", ANSWERABLE, ids=lambda asked: asked.question)
def test_the_answer_stands_in_its_document_under_its_heading(asked: OwnQuestion) -> None:
    under = section(TEXTS[asked.document], asked.heading)
    assert under, f"{asked.document} has no heading {asked.heading!r}"
    # A paragraph may be wrapped anew.
    assert " ".join(asked.answer.split()) in " ".join(under.split())


@pytest.mark.parametrize("asked", ANSWERABLE, ids=lambda asked: asked.question)
def test_a_question_does_not_give_its_answer_away(asked: OwnQuestion) -> None:
    assert asked.answer.casefold() not in asked.question.casefold()
    assert asked.question.rstrip("?").casefold() not in {line.strip("# ").casefold() for line in headings(asked)}


def headings(asked: OwnQuestion) -> list[str]:
    return [line for line in TEXTS[asked.document].split("\n") if line.startswith("#")]


@pytest.mark.parametrize("asked", [question for question in QUESTIONS if question.kind != "answerable"])
def test_what_cannot_be_answered_names_no_answer(asked: OwnQuestion) -> None:
    assert asked == OwnQuestion(asked.question, asked.kind)


def test_there_are_enough_of_each_kind_and_none_twice() -> None:
    kinds = Counter(question.kind for question in QUESTIONS)
    assert set(kinds) == set(KINDS)
    assert kinds["answerable"] >= 60
    assert kinds["near_miss"] + kinds["off_topic"] >= 40
    assert len({question.question.casefold() for question in QUESTIONS}) == len(QUESTIONS)


def test_most_pages_are_asked_about() -> None:
    asked = {question.document for question in ANSWERABLE}
    assert len(asked) >= 0.8 * len(TEXTS), f"nothing is asked about {sorted(set(TEXTS) - asked)}"


def test_the_set_is_a_collection_like_the_others() -> None:
    own = read_own()
    names = {document.name for document in own.documents}
    assert len(own.questions) == len(QUESTIONS)
    assert all(set(question.gains) <= names for question in own.questions)
    assert sum(bool(question.gains) for question in own.questions) == len(ANSWERABLE)


def test_a_section_ends_at_the_next_heading_of_its_size() -> None:
    text = "# A\none\n## B\ntwo\n```sh\n# not a heading\n```\n### C\nthree\n## D\nfour\n"
    assert section(text, "B") == "two\n```sh\n# not a heading\n```\n### C\nthree"
    assert section(text, "C") == "three"
    assert section(text, "A").endswith("four\n")
    assert section(text, "not a heading") == ""
