"""Tests of AG-UI's own client, whose verifier rejects a run that breaks the protocol."""

import pytest

from tests.clients.conftest import Run
from tests.clients.scenes import RICH, play
from tests.server.conftest import Serve
from tests.serving import Puppet

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
