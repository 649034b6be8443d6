"""AG-UI's own client, whose verifier rejects a run that breaks a rule of the protocol."""

import pytest

from tests.clients.conftest import Run
from tests.clients.scenes import RICH, play
from tests.server.conftest import Serve
from tests.serving import Puppet

pytestmark = pytest.mark.timeout(300)


async def test_a_run_with_everything_in_it_is_verified(serve: Serve, run: Run) -> None:
    async with serve(play) as server, run("ag_ui.mjs", server.url, "ask", "rich") as script:
        told = await script.next()
        await script.ended()
    assert "rejected" not in told
    assert (told["types"][0], told["types"][-1]) == ("RUN_STARTED", "RUN_FINISHED")
    assert told["outcome"] == {"type": "success"}
    assert {"TOOL_CALL_START", "TOOL_CALL_RESULT", "REASONING_MESSAGE_CONTENT"} <= set(told["types"])
    texts = [message.get("content") for message in told["messages"] if message["role"] == "assistant"]
    assert RICH in texts
    called = [message["toolCallId"] for message in told["messages"] if message["role"] == "tool"]
    assert [call.rpartition(":")[2] for call in called] == ["c1", "c2"]


async def test_a_thread_goes_on(serve: Serve, run: Run) -> None:
    async with serve(play) as server, run("ag_ui.mjs", server.url, "twice", "plain", "rich") as script:
        first, second = await script.next(), await script.next()
        assert "rejected" not in first | second
        assert second["messages"][: len(first["messages"])] == first["messages"]
        assert await server.written() == (1, 2)


async def test_a_failed_run_is_an_error(serve: Serve, run: Run) -> None:
    async with serve(play) as server, run("ag_ui.mjs", server.url, "ask", "fail") as script:
        told = await script.next()
    assert "rejected" not in told
    assert told["error"] == {"message": "the model is away", "code": "model_away"}
    assert told["types"][-1] == "RUN_ERROR"


async def test_a_stopped_run_is_cancelled(serve: Serve, run: Run, puppet: Puppet) -> None:
    async with serve() as server, run("ag_ui.mjs", server.url, "stop", "slow") as script:
        (await puppet.part()).say("Partial")
        told = [await script.next(), await script.next()]
    told.sort(key=lambda one: "cancelled" not in one)
    assert told[0] == {"cancelled": "cancelled"}
    assert "rejected" not in told[1]
    assert told[1]["outcome"] == {"type": "cancelled"}


@pytest.mark.parametrize("approved", [True, False])
async def test_an_interrupt_is_resolved_by_the_next_run(serve: Serve, run: Run, approved: bool) -> None:
    async with serve(play) as server, run("ag_ui.mjs", server.url, "decide", "pay", str(approved).lower()) as script:
        asked, told = await script.next(), await script.next()
        await script.ended()
        assert await server.written() == (1, 1)
    assert "rejected" not in asked | told
    assert asked["outcome"]["type"] == "interrupt"
    assert asked["outcome"]["interrupts"][0]["toolCallId"].endswith("c1")
    assert told["outcome"] == {"type": "success"}
    answers = [message.get("content") for message in told["messages"] if message["role"] == "assistant"]
    assert ("Paid." if approved else "Denied: the user did not allow this.") in answers
