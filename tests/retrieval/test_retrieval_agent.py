"""Turns of the retrieval agent, through the runner and over HTTP."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx

from tests.core.desk import Desk, open_desk
from tests.retrieval.shelf import (
    GREEN,
    KEY,
    READY,
    SHELF,
    HeldSearcher,
    MakeModel,
    assert_exact,
    judges,
    of,
    offered,
    prompt,
    put,
    searches,
    write,
)
from tests.scripted_model import ScriptedModel, breaks, calls, cuts, fails, hangs, says, silent, thinks, truncates
from tests.server.text_client import ask, messages, phases
from tests.serving import PATIENCE, Served, error_of, quick_settings, serving, until, within
from turnwire import Turnwire
from turnwire.core.log.events import (
    CitationEvent,
    DoneEvent,
    Event,
    ResponseEvent,
    ReviewEvent,
    SearchEvent,
    StatusEvent,
    TokenEvent,
    ToolCallEvent,
    Usage,
)
from turnwire.core.log.turns import Turn
from turnwire.models.contract import Model
from turnwire.models.openai_client import OpenAIModel
from turnwire.retrieval.agent import RetrievalAgent
from turnwire.retrieval.index.searcher import Searcher
from turnwire.retrieval.index.sqlite import SqliteLibrary
from turnwire.retrieval.service import DocumentService
from turnwire.retrieval.synthesis import BREAK, NOT_FOUND
from turnwire.stores.memory import MemoryStore
from turnwire.testing.scripted_wires import ScriptedAnswer as Answer

ANSWER = "Green tea is brewed at eighty degrees [1]. Hotter water makes it bitter [1]."
HEADING = "**Tea › Green tea**\n\n"
TIMINGS = {"first_event_ms", "first_evidence_ms", "first_token_ms", "total_ms", "retrieval_ms", "synthesis_ms"}
Serve = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture(autouse=True)
def the_event_loop_is_never_blocked() -> Iterator[None]:
    with blockbuster_ctx("turnwire", excluded_modules=["turnwire.testing"]) as blockbuster:
        for function in blockbuster.functions.values():
            # Tests open and close the library themselves, and write to it.
            function.can_block_in("turnwire/retrieval/index/database.py", {"__init__", "close", "writing"})
            # Blocking is harmless before the first request.
            function.can_block_in("turnwire/app.py", {"__init__"})
            # The store in memory runs its statements on the event loop: none of them waits for a disk.
            function.can_block_in("turnwire/stores/sqlite/schema.py", {"open_memory"})
            function.can_block_in("turnwire/sqlite_threads.py", {"_call_inline"})
            function.can_block_in("turnwire/server/pages.py", {"read_pages"})
        yield


@pytest.fixture
def serve(searcher: Searcher, tmp_path: Path) -> Serve:
    """Serve the agent with the sample library."""

    def start(model: Model | None = None, among: Searcher | None = None, **settings: Any) -> Any:
        agent = RetrievalAgent(among or searcher, model)
        return serving(Turnwire(agent, store="memory", settings=quick_settings(tmp_path, **settings)))

    return start


class AgentRunner(Desk):
    """A runner whose only agent answers from the sample library."""

    async def log(self, message: str = GREEN, session_id: str | None = None, **options: Any) -> list[Event]:
        """Return all events of a turn."""
        return await self.events(await self.start(message, session_id=session_id, options=options))


async def desk(searcher: Searcher, model: Model | None = None) -> AsyncIterator[AgentRunner]:
    agent = RetrievalAgent(searcher, model)

    async def documents(turn: Turn) -> AsyncIterator[Event | str]:
        async with aclosing(agent.answer(turn)) as pieces:  # pyright: ignore[reportArgumentType]
            async for piece in pieces:
                yield piece

    async with open_desk(MemoryStore(), documents) as opened:
        yield AgentRunner(opened.store, opened.runner)


@pytest.fixture
async def with_model(searcher: Searcher, model: OpenAIModel) -> AsyncIterator[AgentRunner]:
    async for opened in desk(searcher, model):
        yield opened


@pytest.fixture
async def without_model(searcher: Searcher) -> AsyncIterator[AgentRunner]:
    async for opened in desk(searcher):
        yield opened


def response(events: list[Event]) -> ResponseEvent:
    """Return the response of a completed turn, after checking its text and citations."""
    response_event, done = events[-2:]
    assert isinstance(done, DoneEvent)
    assert done.outcome == "completed", events[-2:]
    assert isinstance(response_event, ResponseEvent)
    assert response_event.content == "".join(token.content for token in of(TokenEvent, events))
    assert response_event.citations == tuple(of(CitationEvent, events))
    for item in response_event.citations:
        assert item.answer_start is not None
        assert item.answer_end is not None
        assert (
            response_event.content[item.answer_start : item.answer_end].strip() or item.answer_start == item.answer_end
        )
        assert f"[{item.index}]" in response_event.content[item.answer_end :]
    return response_event


def claims(response_event: ResponseEvent) -> list[tuple[int, str]]:
    return [
        (item.index, response_event.content[item.answer_start : item.answer_end]) for item in response_event.citations
    ]


def statuses(events: list[Event]) -> list[str]:
    return [event.text for event in of(StatusEvent, events)]


def whole_turn() -> list[Any]:
    """Return the answers of a model in a successful turn."""
    return [searches("green tea"), READY, judges(keep=[1]), says(ANSWER)]


# Whole turns, over both APIs of the model and all routes


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_turn_over_http_has_search_review_and_citations(
    tmp_path: Path, model_server: ScriptedModel, make_model: MakeModel, api: Any
) -> None:
    """Run the assembled server with a folder of documents and a configured model."""
    folder = tmp_path / "docs"
    folder.mkdir()
    for name, text in SHELF.items():
        (folder / name).write_text(text)
    model_server.plan(*whole_turn())
    arguments: dict[str, Any] = {"model": "small", "model_url": model_server.url, "model_key": KEY, "model_api": api}
    settings = quick_settings(tmp_path, documents={"paths": [folder]}, **arguments)
    turnwire = Turnwire(store="memory", settings=settings)
    async with serving(turnwire) as server:
        librarian = turnwire.services.of(DocumentService).documents
        assert librarian is not None
        await until(lambda: not librarian.is_reading)
        answer = (await server.http.post("/chat", json={"message": GREEN})).json()
        assert answer["content"] == ANSWER
        assert (answer["mode"], answer["outcome"]) == ("synthesis", "completed")
        assert answer["tools_used"] == ["search_documents"]
        assert answer["usage"] == {"input_tokens": 44, "output_tokens": 28}
        assert set(answer["timings"]) == TIMINGS
        assert [item["index"] for item in answer["citations"]] == [1, 1]
        for item in answer["citations"]:
            document = await asyncio.to_thread(librarian.library.document_passages, item["document_id"])
            text = "".join(passage.text for passage in document)
            assert text[item["source_start"] : item["source_end"]] == item["supporting_quote"]
        kinds = [frame.type for frame in await server.whole(answer["turn_id"])]
    steps = [kind for kind in kinds if kind not in ("token", "citation", "usage")]
    assert steps == ["session", "message", "search", "search", "review", "response", "done"]
    paths = {request.path for request in model_server.requests}
    assert paths == {"/v1/chat/completions" if api == "chat" else "/v1/responses"}


async def test_text_stream_has_three_phases(serve: Serve, model: OpenAIModel, model_server: ScriptedModel) -> None:
    model_server.plan(*whole_turn())
    async with serve(model) as server, ask(server, GREEN) as stream:
        lines, answer, trailer = phases(await stream.rest())
    response_event = [(line["event"], line.get("phase") or line.get("verdict")) for line in lines]
    assert response_event == [("search", "started"), ("search", "finished"), ("review", "approved")]
    assert answer == ANSWER
    assert (trailer["mode"], trailer["tools_used"]) == ("synthesis", ["search_documents"])
    assert [citation["title"] for citation in trailer["citations"]] == ["Tea"]
    assert set(trailer["timings"]) == TIMINGS
    response_event = [answer[span["answer_start"] : span["answer_end"]] for span in trailer["spans"]]
    assert response_event == ["Green tea is brewed at eighty degrees", "Hotter water makes it bitter"]


async def test_options_of_a_client_are_for_the_call_that_writes(
    serve: Serve, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    options = {"temperature": 0.2, "max_tokens": 300}
    body = {"message": GREEN, "model_options": options}
    async with serve() as server:
        quoted = await server.http.post("/chat", json=body)
        assert (quoted.status_code, quoted.json()["mode"]) == (200, "extractive")
        refused = await server.http.post("/chat", json={"message": GREEN, "model_options": {"instructions": "Rhyme."}})
        assert error_of(refused)["code"] == "model_option_not_taken"
    model_server.plan(*whole_turn())
    async with serve(model) as server:
        assert (await server.http.post("/chat", json=body)).json()["content"] == ANSWER
    *others, writes = [[sent.get(name) for name in options] for sent in model_server.bodies]
    assert writes == [0.2, 300]
    assert others == [[None, None]] * 3


async def test_older_json_route_takes_its_older_names(
    serve: Serve, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    model_server.plan(searches("green tea"), READY, says(ANSWER))
    async with serve(model) as server:
        body = {"prompt": GREEN, "review_enabled": False}
        answer = (await server.http.post(messages(stream=False), json=body)).json()
        assert (answer["content"], answer["mode"]) == (ANSWER, "synthesis")
        kinds = [frame.type for frame in await server.whole(answer["turn_id"])]
        assert "review" not in kinds


async def test_every_step_is_streamed_while_the_turn_runs(
    serve: Serve, library: SqliteLibrary, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    gates = [asyncio.Event() for _ in range(3)]
    model_server.plan(
        searches("green tea"),
        says(gates[0], "READY"),
        says(gates[1], *judges().pieces),
        says("Green ", gates[2], "tea."),
    )
    among = HeldSearcher(library)
    async with serve(model, among) as server, ask(server, GREEN) as stream:
        started = await stream.until(b"\n")
        assert b'"phase":"started"' in started
        assert b"finished" not in started
        among.go_on.set()
        found = await stream.until(b'"phase":"finished"')
        assert b"review" not in found
        gates[0].set()
        gates[1].set()
        assert (await stream.until(b"\x1d")).count(b'"event":"review"') == 1
        assert (await stream.until(b"Green")).endswith(b"\x1dGreen")
        gates[2].set()
        assert phases(await stream.rest())[1] == "Green tea."


async def test_turn_without_a_model_quotes_sentences(serve: Serve, library: SqliteLibrary) -> None:
    async with serve() as server, ask(server, GREEN) as stream:
        lines, answer, trailer = phases(await stream.rest())
    assert [line["event"] for line in lines] == ["search", "search", "review", "status"]
    assert answer.startswith(f"{HEADING}Green tea is brewed at eighty degrees for two minutes.")
    assert trailer["mode"] == "extractive"
    assert set(trailer["timings"]) == TIMINGS
    assert trailer.get("usage") is None


async def test_missing_answer_is_reported_as_not_found(serve: Serve) -> None:
    async with serve() as server:
        body = {"message": "Who won the ferry chess tournament in Reykjavik?"}
        answer = (await server.http.post("/chat", json=body)).json()
    assert answer["content"].startswith(f"{NOT_FOUND}\n\nThe nearest passages:\n\n> **")
    assert (answer["mode"], answer["outcome"]) == ("not_found", "completed")


async def test_answers_use_the_principals_own_documents(serve: Serve, library: SqliteLibrary) -> None:
    for owner, degrees in (("bob", "ninety"), ("local", "seventy")):
        text = f"# Kettle of {owner}\n\nThe kettle of {owner} boils at {degrees}."
        await asyncio.to_thread(put, library, f"{owner}.md", text, owner=owner)
    async with serve() as server:
        answer = (await server.http.post("/chat", json={"message": "When does the kettle boil?"})).json()
    assert "seventy" in answer["content"]
    assert "bob" not in str(answer)


# Timings, usage and tools


async def test_timings_are_consistent(with_model: AgentRunner, model_server: ScriptedModel) -> None:
    model_server.plan(*whole_turn())
    timings = response(await with_model.log()).timings
    assert timings is not None
    assert set(timings) == TIMINGS
    first, evidence, token, total = (
        timings[f"{name}_ms"] for name in ("first_event", "first_evidence", "first_token", "total")
    )
    assert 0 <= first <= evidence <= token <= total
    assert timings["retrieval_ms"] > 0
    assert timings["synthesis_ms"] > 0


async def test_usage_of_every_call_is_summed(with_model: AgentRunner, model_server: ScriptedModel) -> None:
    def cost(tokens: int) -> dict[str, int]:
        return {"input": tokens, "output": 1, "cached": 2}

    model_server.plan(
        searches("green tea", usage=cost(1)),
        says("READY", usage=cost(10)),
        says("not JSON", usage=cost(100)),
        says("[77]", usage=cost(1_000)),
    )
    response_event = response(await with_model.log())
    assert response_event.usage == Usage(input_tokens=1_111, output_tokens=4, cached_input_tokens=8)
    assert response_event.mode == "fallback"


async def test_used_tools_are_reported(with_model: AgentRunner, model_server: ScriptedModel) -> None:
    model_server.plan(
        searches("green tea"),
        calls(("read_passage", {"number": 1}), ("list_documents", {}), ("delete_documents", {})),
        READY,
        judges(),
        says(ANSWER),
    )
    events = await with_model.log()
    assert set(response(events).tools_used) == {"search_documents", "read_passage", "list_documents"}


# Conversations


async def test_second_question_has_history_and_new_numbers(
    with_model: AgentRunner, model_server: ScriptedModel
) -> None:
    session = await with_model.session()
    model_server.plan(*whole_turn(), searches("black tea"), READY, judges(keep=[1]), says("With boiling water [1]."))
    await with_model.log(session_id=session)
    events = await with_model.log("And black tea?", session_id=session)
    for body in (model_server.bodies[4], model_server.bodies[7]):
        earlier = [(message["role"], message["content"]) for message in body["messages"][1:3]]
        assert earlier == [("user", GREEN), ("assistant", re.sub(r" \[\d\]", "", ANSWER))]
    hits = of(SearchEvent, events)[1].hits or ()
    assert [hit.index for hit in hits] == list(range(1, len(hits) + 1))
    assert [item.heading for item in response(events).citations] == ["Tea › Black tea"]


async def test_follow_up_without_a_model_is_searched_with_the_earlier_question(without_model: AgentRunner) -> None:
    session = await without_model.session()
    await without_model.log(session_id=session)
    events = await without_model.log("Zzyzx?", session_id=session)
    assert f"{GREEN} Zzyzx?" in [event.query for event in of(SearchEvent, events)]


async def test_notices_come_before_the_answer(searcher: Searcher) -> None:
    async def notices() -> AsyncIterator[str]:
        yield "The documents are still being read."

    agent = RetrievalAgent(searcher, notices=notices)
    turn = Turn(id="t", session_id="s", principal="ann", message=GREEN)
    written = await write(agent.answer(turn))
    assert written.statuses[0] == "The documents are still being read."


# Failures


@pytest.mark.parametrize("half", ["", "Green tea is "])
async def test_turn_succeeds_when_the_model_fails_while_writing(
    serve: Serve, library: SqliteLibrary, model: OpenAIModel, model_server: ScriptedModel, half: str
) -> None:
    model_server.plan(*whole_turn()[:3], breaks(half, message=f"boom {KEY}"))
    async with serve(model) as server, ask(server, GREEN) as stream:
        body = await stream.rest()
        _, answer, trailer = phases(body)
    assert answer.startswith((half + BREAK if half else "") + f"{HEADING}Green tea is brewed at eighty degrees")
    assert (trailer["mode"], trailer["outcome"]) == ("fallback", "completed")
    assert KEY.encode() not in body
    for span in trailer["spans"]:
        claim = answer[span["answer_start"] : span["answer_end"]]
        assert answer[span["answer_end"] :].startswith(f" [{span['index']}]")
        assert claim in "".join(SHELF.values())


async def test_turn_succeeds_when_the_model_always_fails(
    serve: Serve, make_model: MakeModel, model_server: ScriptedModel
) -> None:
    model_server.plan(fails(401, message=f"wrong key {KEY}"))
    async with serve(make_model()) as server:
        answer = await server.http.post("/chat", json={"message": GREEN})
        log = await server.whole(answer.json()["turn_id"])
    assert answer.json()["mode"] == "fallback"
    assert "Green tea is brewed" in answer.json()["content"]
    assert any("refused the API key" in frame.event.get("text", "") for frame in log)
    assert KEY not in answer.text + str(log)


async def test_unsearchable_documents_are_chat_failed_on_every_route(serve: Serve, library: SqliteLibrary) -> None:
    def break_index() -> None:
        with library.file.writing() as database:
            database.execute("DROP TABLE words")

    await asyncio.to_thread(break_index)
    async with serve() as server:
        for path in ("/chat", messages(stream=False), messages("other")):
            error = error_of(await server.http.post(path, json={"message": GREEN}), 500)
            assert error["code"] == "chat_failed"
            assert error["message"] == "The documents could not be searched."


async def test_search_failure_after_the_first_line_completes_the_stream(
    serve: Serve, library: SqliteLibrary, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    def broken_index(request: Any) -> Answer:
        with library.file.writing() as database:
            database.execute("DROP TABLE words")
        return searches("ferry")

    model_server.plan(searches("green tea"), broken_index)
    async with serve(model) as server, ask(server, GREEN) as stream:
        lines, answer, trailer = phases(await stream.rest())
    assert [line.get("phase") for line in lines if line["event"] == "search"] == [
        "started",
        "finished",
        "started",
        "failed",
    ]
    assert answer
    assert (trailer["tools_used"], trailer["citations"]) == (["chat_failed"], [])


# Stopping


@pytest.mark.parametrize(
    ("plans", "kept"),
    [
        ([hangs()], ""),
        ([searches("green tea"), silent("REA")], ""),
        ([searches("green tea"), READY, hangs()], ""),
        ([searches("green tea"), READY, judges(), silent("Green tea is")], "Green tea is"),
    ],
    ids=["searching", "concluding", "reviewing", "writing"],
)
async def test_stopped_turn_closes_the_model_and_keeps_its_text(
    serve: Serve, model: OpenAIModel, model_server: ScriptedModel, plans: list[Any], kept: str
) -> None:
    model_server.plan(*plans)
    # With this timeout, a turn that does not close the model could not end within the test.
    async with serve(model, cancel_patience=60) as server:
        turn_id = await server.start(GREEN)
        for _ in plans:
            await model_server.request()
        if kept:
            async with server.events(turn_id) as stream:
                while "".join(frame.event["content"] for frame in stream.seen if frame.type == "token") != kept:
                    await stream.next()
        stopped = await server.http.post(f"/v1/turns/{turn_id}/cancel")
        await model_server.aborted()
        assert stopped.status_code < 300
        state = (await server.ended(turn_id))["state"]
        assert state["outcome"] == "cancelled"
        assert state.get("text", "") == kept
    assert model_server.aborts == 1


async def test_closing_an_answer_between_pieces_closes_the_model(
    searcher: Searcher, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    model_server.plan(searches("green tea"), READY, judges(), silent("Green tea"))
    turn = Turn(id="t", session_id="s", principal="ann", message=GREEN)
    pieces = RetrievalAgent(searcher, model).answer(turn)
    async with asyncio.timeout(PATIENCE):
        while await anext(pieces) != "Green":
            pass
    await within(pieces.aclose())  # pyright: ignore[reportAttributeAccessIssue]
    await model_server.aborted()


# Direct answers


async def direct(queries: AgentRunner, server: ScriptedModel, *plans: Any, message: str = GREEN) -> list[Event]:
    server.plan(*plans)
    return await queries.log(message, answer="direct")


async def test_direct_answer_is_streamed_with_checked_markers(
    serve: Serve, model: OpenAIModel, model_server: ScriptedModel
) -> None:
    gate = asyncio.Event()
    model_server.plan(searches("green tea"), says("At eighty ", gate, "degrees [1, 88]."))
    async with serve(model) as server, ask(server, GREEN, answer="direct") as stream:
        assert (await stream.until(b"At eighty")).endswith(b"\x1dAt eighty")
        gate.set()
        lines, answer, trailer = phases(await stream.rest())
    assert [line["event"] for line in lines if line["event"] != "usage"] == ["search", "search"]
    assert answer == "At eighty degrees [1]."
    assert (trailer["mode"], trailer["tools_used"]) == ("direct", ["search_documents"])
    assert [event["text"] for event in trailer["events"] if event["event"] == "status"] == [
        "The model cited [88], which names no evidence; it was taken out of the answer."
    ]
    (span,) = trailer["spans"]
    assert answer[span["answer_start"] : span["answer_end"]] == "At eighty degrees"
    assert set(trailer["timings"]) == TIMINGS
    assert trailer["timings"]["retrieval_ms"] > 0
    assert trailer["timings"]["synthesis_ms"] > 0
    assert len(model_server.requests) == 2


async def test_direct_answer_shows_text_between_searches_but_not_before(
    with_model: AgentRunner, model_server: ScriptedModel
) -> None:
    events = await direct(
        with_model,
        model_server,
        searches("green tea", text="I know it by heart: goat milk [1]."),
        searches("tea water", text="It is brewed at eighty degrees [1]."),
        says("Hotter water makes it bitter [1]."),
    )
    response_event = response(events)
    assert response_event.content == "It is brewed at eighty degrees [1].\n\nHotter water makes it bitter [1]."
    assert claims(response_event) == [(1, "It is brewed at eighty degrees"), (1, "Hotter water makes it bitter")]
    assert response_event.mode == "direct"
    kinds = [type(event) for event in events]
    assert kinds.index(TokenEvent) < len(kinds) - 1 - kinds[::-1].index(SearchEvent)


async def test_read_passage_can_be_cited(
    with_model: AgentRunner, library: SqliteLibrary, model_server: ScriptedModel
) -> None:
    events = await direct(
        with_model,
        model_server,
        calls(("search_documents", {"query": "boiling", "limit": 1})),
        calls(("read_passage", {"number": 1})),
        says("Oolong leaves are rolled into small balls [3]."),
        message="How are the leaves of oolong rolled?",
    )
    (citation,) = response(events).citations
    assert (citation.index, citation.source_tool) == (3, "read_passage")
    assert citation.supporting_quote == "Its leaves are rolled into small balls."
    await asyncio.to_thread(assert_exact, library, [citation])


@pytest.mark.parametrize(
    "first",
    [says("Goat milk, by heart [1]."), calls(("list_documents", {})), searches("zzyzx"), says()],
    ids=["no tool", "only a list", "nothing found", "nothing said"],
)
async def test_direct_answer_without_evidence_is_synthesised(
    with_model: AgentRunner, model_server: ScriptedModel, first: Answer
) -> None:
    more = [says("Goat milk, by heart [1].")] if any(not isinstance(piece, str) for piece in first.pieces) else []
    events = await direct(with_model, model_server, first, *more, judges(keep=[1]), says(ANSWER))
    response_event = response(events)
    assert (response_event.content, response_event.mode) == (ANSWER, "synthesis")
    assert offered(model_server.bodies[-1]) == []
    assert "Goat" not in prompt(model_server.bodies[-1])


@pytest.mark.parametrize("broken", [cuts, breaks, truncates])
async def test_truncated_direct_answer_is_followed_by_quotations(
    with_model: AgentRunner, model_server: ScriptedModel, broken: Any
) -> None:
    more = [judges(keep=[1])] if broken is truncates else []
    events = await direct(with_model, model_server, searches("green tea"), broken("At eighty [1] deg"), *more)
    response_event = response(events)
    assert response_event.content.startswith(f"At eighty [1] deg{BREAK}{HEADING}Green tea is brewed at eighty degrees")
    assert response_event.mode == "fallback"
    assert claims(response_event)[:2] == [
        (1, "At eighty"),
        (1, "Green tea is brewed at eighty degrees for two minutes. Hotter water makes it bitter."),
    ]
    assert "The answer is quoted word for word instead." in statuses(events)[-1]


@pytest.mark.parametrize(
    ("last", "kept"),
    [([says("[1]")], "[1]"), ([says(" ")], " "), ([searches("tea", text="Let me see."), says()], "Let me see.\n\n")],
    ids=["markers", "space", "nothing after words"],
)
async def test_direct_answer_without_prose_is_followed_by_quotations(
    with_model: AgentRunner, model_server: ScriptedModel, last: list[Answer], kept: str
) -> None:
    events = await direct(with_model, model_server, searches("green tea"), *last, judges(keep=[1]))
    response_event = response(events)
    assert response_event.content.startswith(f"{kept}{BREAK}{HEADING}Green tea is brewed at eighty degrees")
    assert response_event.mode == "fallback"
    assert claims(response_event)[-1][1] in response_event.content.partition(BREAK)[2]


async def test_endless_search_is_no_direct_answer(with_model: AgentRunner, model_server: ScriptedModel) -> None:
    endless = [searches(f"green tea {n}", text="Let me look.") for n in range(6)]
    events = await direct(with_model, model_server, *endless, judges(keep=[1]))
    response_event = response(events)
    assert response_event.mode == "fallback"
    assert "Green tea is brewed at eighty degrees" in response_event.content.partition(BREAK)[2]


async def test_direct_answer_of_a_failed_model_is_quotations(
    with_model: AgentRunner, model_server: ScriptedModel
) -> None:
    events = await direct(with_model, model_server, fails(429))
    response_event = response(events)
    assert response_event.content.startswith(f"{HEADING}Green tea is brewed at eighty degrees")
    assert response_event.mode == "fallback"
    assert [review.method for review in of(ReviewEvent, events)] == ["coverage"]


async def test_direct_answer_without_a_model_is_quotations(without_model: AgentRunner) -> None:
    assert response(await without_model.log(answer="direct")).mode == "extractive"


async def test_reasoning_is_streamed_but_not_part_of_the_answer(
    with_model: AgentRunner, model_server: ScriptedModel
) -> None:
    events = await direct(with_model, model_server, searches("green tea"), says(thinks("Hm. "), "At eighty [1]."))
    assert response(events).content == "At eighty [1]."
    assert [event for event in events if isinstance(event, ToolCallEvent)] == []
