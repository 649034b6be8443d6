"""Tests of AG-UI's own client, whose verifier rejects a run that breaks the protocol."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.clients.conftest import Run
from tests.clients.scenes import COLOUR, RICH, TwoWayAgent, play
from tests.server.conftest import Serve
from tests.serving import Puppet
from turnwire import Turn, emit_state

pytestmark = pytest.mark.timeout(300)


async def test_run_with_every_event_passes_the_verifier(serve: Serve, run: Run) -> None:
    async with serve(play) as server, run("ag_ui.mjs", server.url, "ask", "rich") as script:
        report = await script.next()
        await script.ended()
    assert "rejected" not in report
    assert (report["types"][0], report["types"][-1]) == ("RUN_STARTED", "RUN_FINISHED")
    assert report["outcome"] == {"type": "success"}
    assert {"TOOL_CALL_START", "TOOL_CALL_RESULT", "REASONING_MESSAGE_CONTENT"} <= set(report["types"])
    texts = [message.get("content") for message in report["messages"] if message["role"] == "assistant"]
    assert RICH in texts
    called = [message["toolCallId"] for message in report["messages"] if message["role"] == "tool"]
    assert [call.rpartition(":")[2] for call in called] == ["c1", "c2"]


async def test_second_run_continues_the_thread(serve: Serve, run: Run) -> None:
    async with serve(play) as server, run("ag_ui.mjs", server.url, "twice", "plain", "rich") as script:
        first, second = await script.next(), await script.next()
        assert "rejected" not in first | second
        assert second["messages"][: len(first["messages"])] == first["messages"]
        assert await server.written() == (1, 2)


async def test_failed_run_ends_with_run_error(serve: Serve, run: Run) -> None:
    async with serve(play) as server, run("ag_ui.mjs", server.url, "ask", "fail") as script:
        report = await script.next()
    assert "rejected" not in report
    assert report["error"] == {"message": "the model is away", "code": "model_away"}
    assert report["types"][-1] == "RUN_ERROR"


async def test_stopped_run_has_outcome_cancelled(serve: Serve, run: Run, puppet: Puppet) -> None:
    async with serve() as server, run("ag_ui.mjs", server.url, "stop", "slow") as script:
        (await puppet.part()).say("Partial")
        reports = [await script.next(), await script.next()]
    reports.sort(key=lambda item: "cancelled" not in item)
    assert reports[0] == {"cancelled": "cancelled"}
    assert "rejected" not in reports[1]
    assert reports[1]["outcome"] == {"type": "cancelled"}


@pytest.mark.parametrize("approved", [True, False])
async def test_next_run_resolves_an_interrupt(serve: Serve, run: Run, approved: bool) -> None:
    async with serve(play) as server, run("ag_ui.mjs", server.url, "decide", "pay", str(approved).lower()) as script:
        request, report = await script.next(), await script.next()
        await script.ended()
        assert await server.written() == (1, 1)
    assert "rejected" not in request | report
    assert request["outcome"]["type"] == "interrupt"
    assert request["outcome"]["interrupts"][0]["toolCallId"].endswith("c1")
    assert report["outcome"] == {"type": "success"}
    answers = [message.get("content") for message in report["messages"] if message["role"] == "assistant"]
    assert ("Paid." if approved else "Denied: the user did not allow this.") in answers


# Tools that the client runs, and questions


def text_of(report: dict[str, Any]) -> str:
    return "".join(message.get("content") or "" for message in report["messages"] if message["role"] == "assistant")


async def test_client_runs_its_tools_and_the_turn_goes_on(serve: Serve, run: Run) -> None:
    async with serve(TwoWayAgent()) as server, run("ag_ui.mjs", server.url, "tools", "mixed") as script:
        reports = [await script.next() for _ in range(3)]
        await script.ended()
        assert await server.written() == (1, 1)
    assert all("rejected" not in report and "error" not in report for report in reports)
    assert [report["outcome"] for report in reports] == [{"type": "success"}] * 3
    assert text_of(reports[-1]) == "Wait. You are in Bern at noon. Still in Bern."
    results = [message["content"] for message in reports[-1]["messages"] if message["role"] == "tool"]
    assert results == ["3 entries", "Bern", "noon", "Bern"]


async def test_call_is_answered_after_a_restart_of_the_server_and_a_reload_of_the_page(serve: Serve, run: Run) -> None:
    async with (
        serve(TwoWayAgent(), store="sqlite") as server,
        run("ag_ui.mjs", server.url, "call", "locate") as script,
    ):
        await script.next()
        await script.ended()
    async with (
        serve(TwoWayAgent(), store="sqlite") as server,
        run("ag_ui.mjs", server.url, "reopen", "") as script,
    ):
        report = await script.next()
        await script.ended()
        assert await server.written() == (1, 1)
    assert "rejected" not in report
    assert text_of(report) == "Wait. You are in Bern."


@pytest.mark.parametrize("answer", ["blue", "decline", "green"])
async def test_question_is_an_interrupt_with_a_schema(serve: Serve, run: Run, answer: str) -> None:
    async with serve(TwoWayAgent()) as server, run("ag_ui.mjs", server.url, "question", "colour", answer) as script:
        waiting, report = await script.next(), await script.next()
        assert await server.written() == (1, 1)
    (interrupt,) = waiting["outcome"]["interrupts"]
    assert (interrupt["reason"], interrupt["message"], interrupt["responseSchema"]) == (
        "input_required",
        "Which colour?",
        COLOUR,
    )
    if answer == "blue":
        assert (text_of(report), report["outcome"]) == ("Wait. You want blue.", {"type": "success"})
    elif answer == "decline":
        assert "did not answer" in report["error"]["message"]
    else:
        assert "this must be one of red, blue" in report["rejected"]


async def counting(turn: Turn) -> AsyncIterator[str]:
    """Go on with the count in the client's state, and share each change."""
    before = (turn.options.get("state") or {}).get("count", 0)
    items = [f"item {number}" for number in range(before)]
    for count in range(before, before + 3):
        emit_state({"count": count + 1, "items": items, "about": "a text that is longer than a patch of the count"})
        yield f"{count + 1} "


async def test_client_has_the_state_that_the_agent_shares_and_sends_it_back(serve: Serve, run: Run) -> None:
    async with serve(counting) as server:
        async with run("ag_ui.mjs", server.url, "state", "count") as script:
            reports = [await script.next() for _ in range(4)]
            await script.ended()
        first, first_state, second, second_state = reports
        thread = (await server.http.get("/ag-ui?threadId=thread-1")).json()
        frames = (await server.http.get("/ag-ui?runId=run-1&offset=-1&version=1")).text.split("\n\n")
        events = [json.loads(frame.partition("data: ")[2]) for frame in frames if "data: " in frame]
        # A client that has read up to the first snapshot resumes with the changes.
        place = next(index for index, event in enumerate(events) if event["type"] == "STATE_SNAPSHOT")
        rest = (await server.http.get(f"/ag-ui?runId=run-1&offset={place + 1}&version=1")).text
        native = [frame.event for frame in await server.whole("run-1") if frame.type == "custom"]
    assert "rejected" not in first | second
    for report in (first, second):
        kinds = [kind for kind in report["types"] if kind.startswith("STATE_")]
        assert kinds == ["STATE_SNAPSHOT", "STATE_DELTA", "STATE_DELTA"]
    assert first_state["state"]["count"] == 3
    assert second_state["state"] == thread["state"]
    assert (second_state["state"]["count"], second_state["state"]["items"]) == (6, ["item 0", "item 1", "item 2"])
    assert (rest.count("STATE_SNAPSHOT"), rest.count("STATE_DELTA")) == (0, 2)
    assert [event["name"] for event in native] == ["turnwire.state"] * 3
