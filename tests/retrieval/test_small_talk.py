"""Small talk: messages that no document answers get a fixed reply with example questions."""

from pathlib import Path

import pytest

from tests.retrieval.shelf import put
from turnwire.core.log.turns import Message
from turnwire.retrieval.agent import small_talk_reply
from turnwire.retrieval.index.sqlite import SqliteLibrary


async def reply(message: str, library: SqliteLibrary, *, history: bool = False) -> str | None:
    earlier = [Message("user", "How is tea brewed?"), Message("assistant", "With water.")] if history else []
    return await small_talk_reply(message, library, None, earlier)


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("message", ["hi", "Hello there!", "hey", "Good morning", "How are you?", "What's up?"])
async def test_greeting_is_answered(library: SqliteLibrary, message: str, history: bool) -> None:
    text = await reply(message, library, history=history)
    assert text is not None
    assert text.startswith("Hello!")


@pytest.mark.parametrize("message", ["thanks", "Thank you very much!", "ok, great, thanks", "bye"])
async def test_thanks_are_answered(library: SqliteLibrary, message: str) -> None:
    text = await reply(message, library, history=True)
    assert text is not None
    assert text.startswith("You are welcome.")


@pytest.mark.parametrize("message", ["What is this?", "what can you do", "help", "Who are you?", "How does it work?"])
async def test_question_without_a_subject_is_answered_only_outside_a_conversation(
    library: SqliteLibrary, message: str
) -> None:
    text = await reply(message, library)
    assert text is not None
    assert text.startswith("I answer questions from the documents here.")
    assert await reply(message, library, history=True) is None


@pytest.mark.parametrize(
    "message", ["How is green tea brewed?", "hi, how is tea brewed?", "Is it free?", "tea", "?", "", "你好吗这是什么"]
)
async def test_question_about_something_is_left_to_the_search(library: SqliteLibrary, message: str) -> None:
    assert await reply(message, library) is None


async def test_examples_name_the_documents(library: SqliteLibrary) -> None:
    text = await reply("hi", library)
    assert text is not None
    assert [line for line in text.splitlines() if line.startswith("- ")] == [
        "- What does “The ferry” say?",
        "- What does “The lighthouse” say?",
        "- What does “Tea” say?",
    ]


async def test_examples_of_the_own_documentation_are_questions(tmp_path: Path) -> None:
    library = SqliteLibrary(tmp_path / "own.db")
    library.open()
    try:
        library.add_root("/docs", is_own=True)
        put(library, "concepts.md", "# Concepts\n\nA turn is one message.")
        text = await reply("hi", library)
        assert text is not None
        assert "- What is a turn?" in text
        assert text.count("\n- ") == 3
    finally:
        library.close()
