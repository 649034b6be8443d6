"""The agent loop: search tools, bad calls and failures of the model."""

import asyncio
import json
from typing import Any

import pytest

from tests.retrieval.shelf import (
    GREEN,
    KEY,
    READY,
    Found,
    HeldSearcher,
    MakeModel,
    collect,
    judges,
    offered,
    patience,
    prompt,
    put,
    searches,
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
from tests.serving import until, within
from turnwire.core.errors import AgentError
from turnwire.core.log.events import (
    ReasoningEvent,
    ReviewEvent,
    SearchEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from turnwire.core.log.turns import Message
from turnwire.models.openai_client import OpenAIModel
from turnwire.retrieval.collection import collect_evidence
from turnwire.retrieval.index.searcher import Searcher
from turnwire.retrieval.index.sqlite import SqliteLibrary
from turnwire.testing.scripted_wires import ScriptedAnswer as Answer

TOOLS = ["search_documents", "read_passage", "list_documents"]


def tool_results(body: dict[str, Any]) -> list[Any]:
    """Return the tool results in a Chat Completions request."""
    return [json.loads(message["content"]) for message in body["messages"] if message["role"] == "tool"]


def numbers(found: Found) -> dict[str | None, int]:
    return {hit.chunk_id: hit.index for hits in found.hits for hit in hits}


# Searching


@pytest.mark.parametrize("how", [{}, {"whole": True}], ids=["in pieces", "whole"])
async def test_model_searches_and_gets_the_passages(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel, how: dict[str, Any]
) -> None:
    model_server.plan(searches("green tea temperature", **how), READY, judges(keep=[1]))
    found = await collect(GREEN, searcher, model=model)
    assert found.queries == ["green tea temperature"]
    first, second, review = model_server.bodies
    assert offered(first) == offered(second) == TOOLS
    assert offered(review) == []
    (passages,) = tool_results(second)
    assert [passage["number"] for passage in passages] == [hit.index for hit in found.hits[0]]
    assert passages[0]["section"] == "Tea › Green tea"
    assert [item.index for item in found.result.evidence] == [1]
    assert found.result.sufficient


async def test_search_call_emits_search_events_only(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    model_server.plan(searches("green tea"), READY, judges())
    found = await collect(GREEN, searcher, model=model)
    kinds = [type(event) for event in found.events]
    assert kinds == [UsageEvent, SearchEvent, SearchEvent, UsageEvent, UsageEvent, ReviewEvent]


@pytest.mark.parametrize("how", [{}, {"woven": True}, {"whole": True}, {"ids": None}], ids=str)
async def test_parallel_searches_share_numbers(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel, how: dict[str, Any]
) -> None:
    queries = ("green tea", "ferry harbour", "tea leaves")
    model_server.plan(searches(*queries, **how), READY, judges(keep=[1, 2]))
    found = await collect(GREEN, searcher, model=model)
    assert sorted(found.queries) == sorted(queries)
    assert len(found.hits) == 3
    every = [(hit.chunk_id, hit.index) for hits in found.hits for hit in hits]
    assert len(set(every)) == len({chunk for chunk, _ in every}) == max(index for _, index in every)
    # The model gets the same numbers as the reader, each result with its call.
    results = [message for message in model_server.bodies[1]["messages"] if message["role"] == "tool"]
    assert len({message["tool_call_id"] for message in results}) == 3
    for passages in tool_results(model_server.bodies[1]):
        assert {passage["number"] for passage in passages} <= {index for _, index in every}


async def test_parallel_search_calls_run_in_parallel(
    library: SqliteLibrary, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    model_server.plan(searches("green tea", "ferry"), READY, judges())
    searcher = HeldSearcher(library)
    asking = asyncio.create_task(collect(GREEN, searcher, model=model))
    await until(lambda: searcher.running == 2)
    searcher.go_on.set()
    assert len((await asking).hits) == 2


async def test_numbers_are_stable_between_calls(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    model_server.plan(
        searches("oolong leaves"),
        calls(("read_passage", {"number": 1})),
        searches("black tea leaves"),
        READY,
        judges(keep=[1, 2]),
    )
    found = await collect("How are the leaves of oolong rolled?", searcher, model=model)
    first = tool_results(model_server.bodies[1])[0]
    last = [passage for passages in tool_results(model_server.bodies[3]) for passage in passages]
    by_text = {passage["text"]: passage["number"] for passage in first}
    for passage in last:
        assert by_text.setdefault(passage["text"], passage["number"]) == passage["number"]
    assert sorted(by_text.values()) == list(range(1, len(by_text) + 1))
    assert {item.index for item in found.result.evidence} == {1, 2}


async def test_limit_of_the_model_is_clamped(
    searcher: Searcher, library: SqliteLibrary, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    for number in range(30):
        put(library, f"cup{number}.md", f"# Cup {number}\n\nA cup of tea, number {number}.")
    limits = (1, 500, -3, "many", True, None)
    wanted = [("search_documents", {"query": "cup of tea", "limit": limit}) for limit in limits]
    model_server.plan(calls(*wanted), READY, judges())
    await collect("A cup of tea?", searcher, model=model)
    assert [len(passages) for passages in tool_results(model_server.bodies[1])] == [1, 20, 1, 8, 8, 8]


async def test_history_is_sent_to_the_model(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    history = [Message("user", "What is tea?"), Message("assistant", "A drink."), Message("tool", "{}", call_id="c")]
    model_server.plan(searches("green tea"), READY, judges())
    await collect(GREEN, searcher, model=model, history=history)
    roles = [(message["role"], message["content"]) for message in model_server.bodies[0]["messages"][1:]]
    assert roles == [("user", "What is tea?"), ("assistant", "A drink."), ("user", GREEN)]


async def test_markers_of_earlier_answers_are_removed(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    """The same numbers named other evidence in earlier answers."""
    history = [Message("user", "What is `list[1]`?"), Message("assistant", "An item [1], as `list[1]` says [2][3].")]
    model_server.plan(searches("green tea"), READY, judges())
    await collect(GREEN, searcher, model=model, history=history)
    spoken = [message["content"] for message in model_server.bodies[0]["messages"][1:3]]
    assert spoken == ["What is `list[1]`?", "An item, as `list[1]` says."]


async def test_reasoning_and_usage_are_emitted(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    model_server.plan(says(thinks("Hm."), *searches("green tea").pieces), READY, judges())
    found = await collect(GREEN, searcher, model=model)
    assert found.of(ReasoningEvent) == [ReasoningEvent("Hm.")]
    assert found.of(UsageEvent) == [UsageEvent("small", 11, 7)] * 3


# The other tools


async def test_read_passage_returns_the_neighbours(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    model_server.plan(searches("boiling water"), calls(("read_passage", {"number": 1})), READY, judges(keep=[1, 2, 3]))
    found = await collect("How is black tea brewed?", searcher, model=model)
    before = numbers(found)
    call, result = found.of(ToolCallEvent)[0], found.of(ToolResultEvent)[0]
    assert (call.tool, call.args, call.call_id) == ("read_passage", {"number": 1}, result.call_id)
    assert result.success
    assert result.ms is not None
    passages = tool_results(model_server.bodies[2])[1]
    assert [passage["section"] for passage in passages] == ["Tea › Green tea", "Tea › Black tea", "Tea › Oolong"]
    assert passages[1]["number"] == 1
    new = [passage["number"] for passage in passages if passage["number"] not in before.values()]
    assert new == list(range(len(before) + 1, len(before) + 1 + len(new)))
    assert json.loads(result.result) == passages


async def test_list_documents_returns_visible_documents_only(
    searcher: Searcher, library: SqliteLibrary, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    put(library, "diary.md", "# Diary of Bob\n\nDear diary, it rains.", owner="bob")
    put(library, "notes.md", "# Notes of Ann\n\nBuy tea.", owner="ann")
    wanted = [("list_documents", {}), ("list_documents", {"search": "NOTE"}), ("list_documents", {"search": 5})]
    model_server.plan(calls(*wanted), searches("green tea"), READY, judges())
    found = await collect(GREEN, searcher, model=model, owner="ann")
    every, some, wrong, _ = tool_results(model_server.bodies[2])
    assert [item["title"] for item in every] == ["The ferry", "The lighthouse", "Notes of Ann", "Tea"]
    assert [item["name"] for item in some] == ["notes.md"]
    assert wrong == every
    assert [(call.tool, call.args) for call in found.of(ToolCallEvent)] == wanted
    assert all(result.success for result in found.of(ToolResultEvent))


async def test_read_passage_skips_a_removed_passage(
    searcher: Searcher, library: SqliteLibrary, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    def read(request: Any) -> Answer:
        library.remove([document_id])
        return calls(("read_passage", {"number": 1}))

    document_id = put(library, "snow.md", "# Snow\n\nSnow falls on the pier.")
    model_server.plan(searches("snow pier"), read, READY, judges())
    found = await collect("Where does snow fall?", searcher, model=model)
    assert found.of(ToolResultEvent)[0].result == "[]"


async def test_tool_with_unreadable_library_ends_the_search(
    searcher: Searcher, library: SqliteLibrary, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    def listing(request: Any) -> Answer:
        with library.file.writing() as database:
            database.execute("ALTER TABLE document RENAME TO papers")
        return calls(("list_documents", {}))

    model_server.plan(listing)
    with pytest.raises(AgentError) as caught:
        await collect(GREEN, searcher, model=model)
    assert caught.value.code == "chat_failed"


# Bad tool calls


@pytest.mark.parametrize(
    ("tool", "arguments", "answer"),
    [
        ("search_documents", '{"query": ', "not a JSON object"),
        ("search_documents", '["green tea"]', "not a JSON object"),
        ("search_documents", '{"query": ' + "[" * 5_000 + "]" * 5_000 + "}", "not a JSON object"),
        ("read_passage", '{"number": 1, "x": "' + "y" * 300_000 + '"}', "not a JSON object"),
        ("search_documents", "", "query: a text is needed"),
        ("search_documents", '{"query": 5}', "query: a text is needed"),
        ("search_documents", '{"query": "  "}', "query: a text is needed"),
        ("search_documents", '{"query": ["green", "tea"]}', "query: a text is needed"),
        ("read_passage", "{}", "no passage of this number"),
        ("read_passage", '{"number": 99}', "no passage of this number"),
        ("read_passage", '{"number": "one"}', "no passage of this number"),
        ("read_passage", '{"number": 1.5}', "no passage of this number"),
        ("delete_documents", '{"all": true}', "there is no tool 'delete_documents'"),
        ("", "{}", "there is no tool ''"),
    ],
)
async def test_bad_tool_call_gets_an_error_result(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel, tool: str, arguments: str, answer: str
) -> None:
    model_server.plan(calls((tool, arguments)), searches("green tea"), READY, judges())
    found = await collect(GREEN, searcher, model=model)
    assert answer in tool_results(model_server.bodies[1])[0]["error"]
    assert found.queries == ["green tea"]
    assert found.result.sufficient
    assert not any(result.success for result in found.of(ToolResultEvent))
    assert found.result.tools_used == ("search_documents",)


async def test_unknown_tool_emits_no_tool_call(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    model_server.plan(calls(("delete_documents", {"all": True})), searches("green tea"), READY, judges())
    found = await collect(GREEN, searcher, model=model)
    assert found.of(ToolCallEvent) == []
    assert found.statuses == ["The model called an unknown tool: 'delete_documents'."]


async def test_bad_call_does_not_affect_parallel_calls(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    wanted = [("search_documents", {"query": "green tea"}), ("search_documents", "{"), ("fly", {})]
    model_server.plan(calls(*wanted), READY, judges())
    found = await collect(GREEN, searcher, model=model)
    passages, bad, unknown = tool_results(model_server.bodies[1])
    assert passages[0]["number"] == 1
    assert "error" in bad
    assert "error" in unknown
    assert found.result.sufficient


# The end of the loop


async def test_endless_tool_calls_are_stopped(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    model_server.plan(*[searches(f"green tea {n}") for n in range(6)], judges())
    found = await collect(GREEN, searcher, model=model)
    assert [offered(body) for body in model_server.bodies] == [TOOLS] * 5 + [[], []]
    assert len(found.queries) <= 6
    assert found.result.sufficient


async def test_number_of_parallel_tool_calls_is_limited(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    model_server.plan(searches(*(f"green tea {n}" for n in range(100))), READY, judges())
    found = await collect(GREEN, searcher, model=model)
    assert len(found.queries) == 8
    requests = [message for message in model_server.bodies[1]["messages"] if message.get("tool_calls")]
    assert len(requests[0]["tool_calls"]) == len(tool_results(model_server.bodies[1])) == 8


async def test_model_without_tool_calls_is_replaced_by_a_manual_search(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    model_server.plan(says("Green tea is brewed with goat milk [1]."), judges())
    found = await collect(GREEN, searcher, model=model)
    assert found.queries == [GREEN]
    assert found.result.sufficient
    assert "goat" not in repr(found.events) + repr(found.result) + prompt(model_server.bodies[1])


async def test_silent_model_is_replaced_by_a_manual_search(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    model_server.plan(says(), judges())
    assert (await collect(GREEN, searcher, model=model)).queries == [GREEN]


async def test_empty_model_searches_are_followed_by_a_manual_search(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    model_server.plan(searches("zzyzx"), says("There is nothing about it, but I know it by heart."), judges())
    found = await collect(GREEN, searcher, model=model)
    assert found.queries == ["zzyzx", GREEN]
    assert found.result.sufficient


async def test_text_before_a_tool_call_goes_back_to_the_model_only(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    model_server.plan(searches("green tea", text="Let me look."), READY, judges())
    found = await collect(GREEN, searcher, model=model)
    (spoken,) = [message for message in model_server.bodies[1]["messages"] if message["role"] == "assistant"]
    assert spoken["content"] == "Let me look."
    assert "Let me" not in repr(found.events)


# Failures


FAILURES = {
    "truncated": (truncates("Let"), False),
    "too long": (too_long("Let"), False),
    "filtered": (filtered("Let"), False),
    "429": (fails(429, message=f"slow down, {KEY}"), True),
    "500": (fails(500, message=f"boom {KEY}"), True),
    "401": (fails(401, message=f"bad key {KEY}"), True),
    "cut": (cuts("Let"), True),
    "garbled": (garbles("Let"), True),
    "broken": (breaks("Let", message=f"boom {KEY}"), True),
    "silent": (silent("Let"), True),
    "hangs": (hangs(), True),
}


@pytest.mark.parametrize("answer, hopeless", FAILURES.values(), ids=FAILURES)  # noqa: PT006
async def test_model_that_fails_at_once_is_replaced_by_a_manual_search(
    searcher: Searcher, make_model: MakeModel, model_server: ScriptedModel, answer: Answer | Failure, hopeless: bool
) -> None:
    model_server.plan(answer, *([] if hopeless else [judges()]))
    found = await collect(GREEN, searcher, model=make_model(**patience(answer)))
    assert found.queries == [GREEN]
    assert found.result.sufficient
    assert (found.result.model_failed is not None) == hopeless
    assert [review.method for review in found.of(ReviewEvent)] == ["coverage" if hopeless else "model"]
    (status,) = found.statuses
    assert status.endswith(". Searching goes on without it.")
    assert status[0].isupper()
    assert KEY not in repr(found)


@pytest.mark.parametrize("answer, hopeless", FAILURES.values(), ids=FAILURES)  # noqa: PT006
async def test_evidence_found_before_a_model_failure_is_kept(
    searcher: Searcher, make_model: MakeModel, model_server: ScriptedModel, answer: Answer | Failure, hopeless: bool
) -> None:
    model_server.plan(searches("green tea"), answer, *([] if hopeless else [judges()]))
    found = await collect(GREEN, searcher, model=make_model(**patience(answer)))
    assert found.queries == ["green tea"]
    assert found.result.sufficient
    assert found.result.evidence[0].passage.heading == "Tea › Green tea"


@pytest.mark.parametrize("ending", ["unfinished", "length", "cut"])
async def test_tool_call_of_a_truncated_answer_is_not_made(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel, ending: Any
) -> None:
    half = Answer(searches("half a quer").pieces, ending)
    model_server.plan(half, *([] if ending == "cut" else [judges()]))
    found = await collect(GREEN, searcher, model=model)
    assert found.queries == [GREEN]


# Cancellation


@pytest.mark.parametrize("answer", [silent("Let"), hangs()], ids=["midway", "no answer"])
async def test_cancelled_search_closes_the_connection(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel, answer: Answer | Failure
) -> None:
    model_server.plan(searches("green tea"), answer)
    asking = asyncio.create_task(collect_evidence(GREEN, searcher, model=model))
    await model_server.request()
    await model_server.request()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(asking)
    await model_server.aborted()
    assert model_server.aborts == 1


async def test_cancelled_search_ends_running_tools(
    library: SqliteLibrary, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    model_server.plan(searches("green tea", "ferry"))
    searcher = HeldSearcher(library)
    asking = asyncio.create_task(collect_evidence(GREEN, searcher, model=model))
    await until(lambda: searcher.running == 2)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(asking)
    assert searcher.running == 0
