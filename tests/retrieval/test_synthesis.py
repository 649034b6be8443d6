"""Synthesis: streaming, citations, failures and fallbacks."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tests.retrieval.shelf import (
    GREEN,
    KEY,
    NOWHERE,
    SILENCE,
    MakeModel,
    Written,
    assert_exact,
    collect,
    evidence,
    of,
    patience,
    prompt,
    put,
    synthesise,
    write,
)
from tests.scripted_model import (
    Failure,
    ScriptedModel,
    breaks,
    calls,
    cuts,
    fails,
    filtered,
    garbles,
    hangs,
    says,
    silent,
    thinks,
    too_long,
    truncates,
)
from tests.serving import within
from turnwire.core.errors import AgentError
from turnwire.core.log.events import CitationEvent, ReasoningEvent, ResponseEvent, StatusEvent, UsageEvent
from turnwire.core.log.turns import Message
from turnwire.models.openai_client import OpenAIModel
from turnwire.retrieval import synthesis
from turnwire.retrieval.evidence import RetrievalResult
from turnwire.retrieval.index.searcher import Searcher
from turnwire.retrieval.index.sqlite import SqliteLibrary
from turnwire.retrieval.sentences import Matcher
from turnwire.retrieval.synthesis import BREAK, NOT_FOUND, stream_synthesis
from turnwire.testing.scripted_wires import ScriptedAnswer as Answer

HEADING = "**Tea › Green tea**\n\n"
QUOTES = "Green tea is brewed at eighty degrees for two minutes. Hotter water makes it bitter. [1]"


@pytest.fixture
async def green(searcher: Searcher) -> RetrievalResult:
    """Return the evidence for the question about green tea; number 1 answers it."""
    return (await collect(GREEN, searcher)).result


def assert_fallback(written: Written, library: SqliteLibrary, kept: str, cause: str) -> None:
    """Assert that the written text is followed by a break and by quotations with exact citations."""
    lead = kept + BREAK if kept else ""
    assert written.text.startswith(f"{lead}{HEADING}Green tea is brewed at eighty degrees")
    assert written.mode == "fallback"
    (response,) = of(ResponseEvent, written.events)
    assert response.model
    assert response.model_error
    assert cause in response.model_error
    assert any(cause in status for status in written.statuses), written.statuses
    assert written.statuses[-1].endswith(". The answer is quoted word for word instead.")
    assert KEY not in repr(written)
    own = [item for item in written.citations if (item.answer_start or 0) >= len(lead)]
    assert own
    assert_exact(library, written.citations)
    for item in own:
        claim = written.text[item.answer_start : item.answer_end]
        assert claim == item.supporting_quote
        assert written.text[item.answer_end :].startswith(f" [{item.index}]")


# With a model


async def test_answer_is_streamed_while_the_model_writes(
    green: RetrievalResult, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    gates = [asyncio.Event(), asyncio.Event()]
    model_server.plan(says("Green tea ", gates[0], "is brewed [1]", gates[1], "."))
    pieces = stream_synthesis(green, model=model)
    assert await within(anext(pieces)) == "Green tea"
    gates[0].set()
    assert await within(anext(pieces)) == " is brewed"
    assert await within(anext(pieces)) == " [1]"
    citation = await within(anext(pieces))
    assert isinstance(citation, CitationEvent)
    assert not gates[1].is_set()
    gates[1].set()
    rest = [piece async for piece in pieces]
    assert rest == [".", UsageEvent("small", 11, 7), ResponseEvent("", mode="synthesis", model="small")]


async def test_citation_ranges_match_answer_and_document(
    green: RetrievalResult, library: SqliteLibrary, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    model_server.plan(says("Brew it at eighty degrees. [1] Hotter water makes it bitter [1, 9]. That is all."))
    written = await synthesise(green, model=model)
    assert written.text == "Brew it at eighty degrees. [1] Hotter water makes it bitter [1]. That is all."
    assert written.claims == [(1, "Brew it at eighty degrees."), (1, "Hotter water makes it bitter")]
    quotes = [item.supporting_quote for item in written.citations]
    assert quotes == ["Green tea is brewed at eighty degrees for two minutes.", "Hotter water makes it bitter."]
    assert_exact(library, written.citations)
    assert written.mode == "synthesis"


async def test_unknown_markers_are_removed_and_reported(
    green: RetrievalResult, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    model_server.plan(says("Green tea is hot [77], old [78] and green [77][1]."))
    written = await synthesise(green, model=model)
    assert written.text == "Green tea is hot, old and green[1]."
    assert written.statuses == ["The model cited [77], [78], which names no evidence; it was taken out of the answer."]


async def test_offsets_are_right_after_characters_the_log_removes(
    green: RetrievalResult, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    model_server.plan(says("\u0000Tea\u001e is \u0007hot. ", "\ud83c", "Green\u009f tea [1]."))
    written = await synthesise(green, model=model)
    assert written.text == "Tea is hot. \ufffdGreen tea [1]."
    assert written.claims == [(1, "\ufffdGreen tea")]


async def test_reasoning_and_usage_are_yielded_with_the_answer(
    green: RetrievalResult, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    model_server.plan(says(thinks("Let me see."), "It is hot [1]."))
    written = await synthesise(green, model=model)
    assert [event for event in written.events if isinstance(event, ReasoningEvent)] == [ReasoningEvent("Let me see.")]
    assert [event for event in written.events if isinstance(event, UsageEvent)] == [UsageEvent("small", 11, 7)]


async def test_prompt_has_passages_question_and_history(
    green: RetrievalResult, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    history = [Message("user", "Hello"), Message("assistant", "Hello [1]."), Message("tool", "{}", call_id="x")]
    model_server.plan(says("It is hot [1]."))
    await synthesise(green, model=model, history=history)
    (body,) = model_server.bodies
    assert "tools" not in body
    texts = [(message["role"], message["content"]) for message in body["messages"][1:3]]
    assert texts == [("user", "Hello"), ("assistant", "Hello.")]
    assert prompt(body).startswith('Passages:\n[{"number":1,"document":"Tea","section":"Tea › Green tea","text":')
    assert prompt(body).endswith(f"\n\nQuestion: {GREEN}")


async def test_evidence_outside_the_prompt_cannot_be_cited(model: OpenAIModel, model_server: ScriptedModel) -> None:
    many = tuple(evidence(number, f"Cocoa number {number} is dear.") for number in range(1, 13))
    result = RetrievalResult(
        question="cocoa", evidence=many, citations=(), sufficient=True, matcher=Matcher("cocoa", {})
    )
    model_server.plan(says("Cocoa is dear [8], very dear [9]."))
    written = await synthesise(result, model=model)
    assert '"number":8' in prompt(model_server.bodies[0])
    assert '"number":9' not in prompt(model_server.bodies[0])
    assert written.text == "Cocoa is dear [8], very dear."
    assert "[9], which names no evidence" in written.statuses[0]


async def test_call_of_a_tool_that_was_not_offered_is_ignored(
    green: RetrievalResult, library: SqliteLibrary, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    model_server.plan(calls(("search_documents", {"query": "x"}), text="It is hot [1]."))
    written = await synthesise(green, model=model)
    assert (written.text, written.mode) == ("It is hot [1].", "synthesis")
    assert len(model_server.requests) == 1


async def test_closing_an_answer_closes_the_connection(
    green: RetrievalResult, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    model_server.plan(silent("Green tea"))
    pieces = stream_synthesis(green, model=model)
    assert await within(anext(pieces)) == "Green"
    await within(pieces.aclose())  # pyright: ignore[reportAttributeAccessIssue]
    await model_server.aborted()


# With a model that fails


HALF = "Green tea is [1"
SPACE = " \n "
BEFORE: dict[str, Answer | Failure] = {
    "500": fails(500, message=f"boom {KEY}"),
    "429": fails(429, message=f"slow down {KEY}"),
    "401": fails(401, message=f"{KEY} is wrong"),
    "hangs": hangs(),
    "cut": cuts(),
    "empty": says(),
    "space": says(SPACE),
    "a tool call": calls(("search_documents", {"query": "x"})),
    "unknown markers": says("[77][78]"),
}
MIDWAY = {
    "cut": (cuts(HALF), "cannot be reached, or has hung up"),
    "broken": (breaks(HALF, message=f"boom {KEY}"), "failed while it answered"),
    "garbled": (garbles(HALF), "not an answer"),
    "silent": (silent(HALF), f"said nothing for {SILENCE} seconds"),
    "truncated": (truncates(HALF), "stopped in the middle"),
    "too long": (too_long(HALF), "grew longer"),
    "filtered": (filtered(HALF), "content filter"),
}


@pytest.mark.parametrize("answer", BEFORE.values(), ids=BEFORE)
async def test_empty_answer_is_replaced_by_quotations(
    green: RetrievalResult,
    library: SqliteLibrary,
    make_model: MakeModel,
    model_server: ScriptedModel,
    answer: Answer | Failure,
) -> None:
    model_server.plan(answer)
    written = await synthesise(green, model=make_model(**patience(answer)))
    kept = SPACE if answer is BEFORE["space"] else ""
    assert_fallback(written, library, kept, "he model")
    assert len(model_server.requests) == 1


@pytest.mark.parametrize("answer, cause", MIDWAY.values(), ids=MIDWAY)  # noqa: PT006
async def test_text_of_a_failed_model_stays_before_the_quotations(
    green: RetrievalResult,
    library: SqliteLibrary,
    make_model: MakeModel,
    model_server: ScriptedModel,
    answer: Answer,
    cause: str,
) -> None:
    model_server.plan(answer)
    written = await synthesise(green, model=make_model(**patience(answer)))
    assert_fallback(written, library, HALF, cause)


async def test_answer_of_markers_only_is_replaced_by_quotations(
    green: RetrievalResult, library: SqliteLibrary, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    model_server.plan(says("[1]", " [2]."))
    written = await synthesise(green, model=model)
    shown = written.text.partition(BREAK)[0]
    assert shown in ("[1] [2].", "[1].")
    assert_fallback(written, library, shown, "The model wrote no answer.")


async def test_citations_of_a_partial_answer_stay(
    green: RetrievalResult, library: SqliteLibrary, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    model_server.plan(cuts("It takes eighty degrees [1] and [88] "))
    written = await synthesise(green, model=model)
    assert written.claims[0] == (1, "It takes eighty degrees")
    assert_fallback(written, library, "It takes eighty degrees [1] and ", "hung up")
    assert "[88]" in written.statuses[0]


async def test_open_code_fence_of_a_failed_model_is_closed(
    green: RetrievalResult, library: SqliteLibrary, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    model_server.plan(cuts("So:\n\n```python\nbrew(80"))
    written = await synthesise(green, model=model)
    assert written.text.startswith(f"So:\n\n```python\nbrew(80\n```{BREAK}{HEADING}Green tea")
    assert_fallback(written, library, "So:\n\n```python\nbrew(80\n```", "hung up")


async def test_unexpected_error_is_reported_without_its_message(
    green: RetrievalResult, library: SqliteLibrary, caplog: pytest.LogCaptureFixture
) -> None:
    class RaisingModel:
        name = "odd"

        async def stream(self, instructions: str, messages: Any, **how: Any) -> AsyncGenerator[str]:
            yield "Green tea is"
            raise ValueError(f"secret {KEY}")

        async def close(self) -> None: ...

    written = await synthesise(green, model=RaisingModel())
    assert_fallback(written, library, "Green tea is", "The model failed (ValueError).")
    assert "unexpected error" in caplog.text


async def test_model_that_failed_in_the_search_does_not_write(
    searcher: Searcher, library: SqliteLibrary, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    model_server.plan(fails(500))
    result = (await collect(GREEN, searcher, model=model)).result
    written = await synthesise(result, model=model)
    assert_fallback(written, library, "", "The model's server is in trouble")
    assert len(model_server.requests) == 1


@pytest.mark.parametrize("half", ["", "Green tea is"])
async def test_failed_quotation_raises_chat_failed(
    green: RetrievalResult,
    model: OpenAIModel,
    model_server: ScriptedModel,
    monkeypatch: pytest.MonkeyPatch,
    half: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError(KEY)

    monkeypatch.setattr(synthesis, "select_blocks", broken)
    model_server.plan(cuts(half))
    written = Written()
    with pytest.raises(AgentError) as caught:
        await write(stream_synthesis(green, model=model), written)
    assert (caught.value.code, caught.value.retryable) == ("chat_failed", True)
    assert KEY not in str(caught.value)
    assert written.text.startswith(half)


async def test_evidence_without_words_raises_chat_failed() -> None:
    result = RetrievalResult(
        question="?", evidence=(evidence(1, "---"),), citations=(), sufficient=True, matcher=Matcher("?", {})
    )
    with pytest.raises(AgentError) as caught:
        await synthesise(result)
    assert caught.value.code == "chat_failed"


# Without a model


async def test_best_block_is_quoted_below_its_heading_without_a_model(
    green: RetrievalResult, library: SqliteLibrary
) -> None:
    written = await synthesise(green)
    assert written.mode == "extractive"
    assert written.statuses == ["No model is configured: the answer is quoted word for word."]
    assert isinstance(written.events[0], StatusEvent)
    assert written.text.startswith(HEADING + QUOTES)
    (response,) = of(ResponseEvent, written.events)
    assert (response.model, response.model_error) == (None, None)
    assert_exact(library, written.citations)
    for item in written.citations:
        assert written.text[item.answer_start : item.answer_end] == item.supporting_quote
    assert len(written.citations) <= 3


async def test_quotations_of_lists_tables_and_code_are_exact(searcher: Searcher, library: SqliteLibrary) -> None:
    text = """\
# Kettles

- A kettle for green tea has a thermometer,
  and [a whistle](https://example.org) [4].

| Kettle | Price |
|---|---|
| Kettle with a thermometer | 90 crowns |

```sh
kettle --thermometer --whistle=on
```
"""
    put(library, "kettles.md", text)
    written = await synthesise((await collect("Which kettle has a thermometer and a whistle?", searcher)).result)
    assert "A kettle for green tea has a thermometer, and a whistle." in written.text
    assert_exact(library, written.citations)
    for index, claim in written.claims:
        assert claim
        assert f"{claim} [{index}]" in written.text


# Not found


@pytest.mark.parametrize("with_model", [False, True])
async def test_missing_answer_is_reported_as_not_found(
    searcher: Searcher, library: SqliteLibrary, model: OpenAIModel, model_server: ScriptedModel, with_model: bool
) -> None:
    result = (await collect("Who won the ferry chess tournament in Reykjavik?", searcher)).result
    assert not result.sufficient
    written = await synthesise(result, model=model if with_model else None)
    assert written.mode == "not_found"
    head, _, nearest = written.text.partition("\n\nThe nearest passages:\n\n")
    assert head == NOT_FOUND
    assert [line for line in nearest.splitlines() if line and not line.startswith(">")] == []
    assert nearest.count("> **") == len(written.citations)
    assert 1 <= len(written.citations) <= 3
    assert_exact(library, written.citations)
    for item in written.citations:
        assert written.text[item.answer_start : item.answer_end] == item.supporting_quote
    assert model_server.requests == []


async def test_not_found_without_evidence_is_one_sentence(searcher: Searcher) -> None:
    put_nothing = (await collect("Zzyzx?", searcher)).result
    written = await synthesise(put_nothing)
    assert (written.text, written.mode, written.citations) == (NOT_FOUND, "not_found", [])


async def test_model_does_not_write_after_a_negative_review(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    no = says('{"keep": [1], "sufficient": false, "missing": ["who won"], "next_query": null, "reason": "No."}', "")
    model_server.plan(says("Magnus won."), no, no, no)
    result = (await collect("Who won the tea ferry race?", searcher, model=model)).result
    queries = len(model_server.requests)
    written = await synthesise(result, model=model)
    assert written.mode == "not_found"
    assert "Magnus" not in written.text
    assert len(model_server.requests) == queries


async def test_empty_library_finds_nothing(searcher: Searcher, library: SqliteLibrary) -> None:
    library.remove([document.id for document in library.documents()])
    for question in (GREEN, NOWHERE):
        written = await synthesise((await collect(question, searcher)).result)
        assert (written.text, written.mode) == (NOT_FOUND, "not_found")
