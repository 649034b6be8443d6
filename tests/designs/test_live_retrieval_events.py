"""The design "Live retrieval event streaming during agent tool calls"."""

import asyncio
import inspect
import json
from typing import Any

from tests.designs.conftest import Serve
from tests.retrieval.shelf import GREEN, HeldSearcher, collect
from tests.server.text_client import SEARCH, ask, messages, phases
from tests.serving import Puppet, error_of, saying, within
from turnwire import AgentError
from turnwire.core.log.events import Event, ReviewEvent, SearchEvent
from turnwire.retrieval.collection import collect_evidence
from turnwire.retrieval.index.searcher import Searcher
from turnwire.retrieval.index.sqlite import SqliteLibrary


def test_collect_evidence_takes_an_optional_async_event_sink() -> None:
    """Decision, 1; the collector of decision, 2 is beside it."""
    for name in ("event_sink", "event_collector"):
        parameter = inspect.signature(collect_evidence).parameters[name]
        assert (parameter.kind, parameter.default) == (inspect.Parameter.KEYWORD_ONLY, None)
    assert inspect.iscoroutinefunction(collect_evidence)


async def test_events_go_to_the_collector_and_to_the_sink(searcher: Searcher) -> None:
    """Decision, 2."""
    live: list[Event] = []

    async def sink(event: Event) -> None:
        live.append(event)

    found = await collect(GREEN, searcher, event_sink=sink)
    assert found.events == live
    assert {SearchEvent, ReviewEvent} <= {type(event) for event in live}


async def test_event_reaches_the_sink_while_the_search_runs(library: SqliteLibrary) -> None:
    """Context: steps appear while retrieval is still running."""
    searcher, live = HeldSearcher(library), asyncio.Queue[Event]()
    collecting = asyncio.create_task(collect_evidence(GREEN, searcher, event_sink=live.put))
    await within(searcher.begun.wait())
    event = live.get_nowait()
    assert isinstance(event, SearchEvent)
    assert event.phase == "started"
    searcher.go_on.set()
    await within(collecting)


async def test_route_streams_an_event_line_while_the_agent_works(serve: Serve, puppet: Puppet) -> None:
    """Decision, 3: the route, its queue and its end of the event phase."""
    async with serve(puppet) as server:
        request = server.http.build_request("POST", messages(), json={"message": "When?"})
        asking = asyncio.create_task(server.http.send(request, stream=True))
        part = await puppet.part()
        part.say(SEARCH[0])
        response = await within(asking)
        chunks = response.aiter_raw()
        line = json.loads(await within(anext(chunks)))
        assert (line["event"], line["phase"]) == ("search", "started")
        assert not part.over.is_set()
        part.say(SEARCH[1], "Noon.")
        part.end()
        rest = b"".join([chunk async for chunk in chunks])
        assert rest.count(b"\x1d") == rest.count(b"\x1e") == 1
        assert rest.index(b"finished") < rest.index(b"\x1d") < rest.index(b"Noon.") < rest.index(b"\x1e")


async def test_stream_has_event_lines_then_tokens_then_metadata(serve_documents: Serve) -> None:
    """Decision: protocol compatibility, phases 1 to 3."""
    async with serve_documents() as server, ask(server, GREEN) as stream:
        lines, answer, metadata = phases(await stream.rest())
        assert [line["event"] for line in lines][:2] == ["search", "search"]
        assert "review" in [line["event"] for line in lines]
        assert "eighty degrees" in answer
        assert {"citations", "mode", "tools_used"} <= metadata.keys()
        assert metadata["citations"]


async def test_failure_before_the_first_byte_is_a_json_500(serve: Serve, puppet: Puppet) -> None:
    """Error handling policy, before any event bytes."""
    async with serve(puppet) as server:
        asking = asyncio.create_task(server.http.post(messages(), json={"message": "When?"}))
        (await puppet.part()).end(AgentError("The index is away."))
        response = await within(asking)
        assert response.headers["content-type"].startswith("application/json")
        assert error_of(response, 500)["code"] == "chat_failed"


async def test_failure_after_the_first_byte_completes_the_stream(serve: Serve) -> None:
    """Error handling policy, after event streaming has started."""

    async def agent(turn: object) -> Any:
        yield SEARCH[0]
        raise AgentError("The index is away.")

    async with serve(agent) as server, ask(server) as stream:
        _, answer, metadata = phases(await stream.rest())
        assert answer
        assert (metadata["tools_used"], metadata["citations"]) == (["chat_failed"], [])


async def test_events_of_a_turn_keep_their_order_for_every_reader(serve: Serve) -> None:
    """Trade-offs: delivery is not bound to the process that runs the turn, and its order is that of the log."""
    async with serve(saying(*SEARCH, "Noon.")) as server, ask(server) as stream:
        first = await stream.rest()
        again = await server.http.get(f"/v1/turns/{stream.turn_id}/events?wire=three_phase_text")
        assert again.content == first
