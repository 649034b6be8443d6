"""Tests of the official MCP client for TypeScript: tools, progress, approvals, and turns that take longer."""

import pytest

from tests.clients.conftest import Run
from tests.server.conftest import Serve
from tests.server.test_approvals import careful
from tests.serving import Puppet, saying
from turnwire.core.log.events import StatusEvent

pytestmark = pytest.mark.timeout(300)


async def test_agent_is_a_tool_with_progress(serve: Serve, run: Run) -> None:
    async with serve(saying(StatusEvent("looks"), "Fine.")) as server, run("mcp.mjs", server.url, "tools") as script:
        assert (await script.next())["tools"] == ["ask_default", "decide", "get_turn", "list_sessions", "stop_turn"]
        paused = await script.next()
        assert (paused["text"], paused["status"]) == ("Fine.", "completed")
        assert paused["lines"][1:] == ["looks", "Fine."]
        assert await script.next() == {"text": "Fine."}
        await script.ended()


async def test_approval_is_decided_by_a_tool(serve: Serve, run: Run) -> None:
    # This version of the client speaks the protocol before 2026, in which a server without sessions cannot ask.
    async with serve(careful) as server, run("mcp.mjs", server.url, "approval") as script:
        paused = await script.next()
        assert paused["status"] == "waiting"
        assert "call decide" in paused["text"]
        assert await script.next() == {"text": "May I? Paid."}
        await script.ended()


async def test_turn_that_takes_longer_is_waited_for_with_get_turn(serve: Serve, run: Run, puppet: Puppet) -> None:
    async with serve() as server, run("mcp.mjs", server.url, "wait") as script:
        part = await puppet.part()
        assert (await script.next())["status"] == "running"
        part.say("Later.")
        part.end()
        assert await script.next() == {"text": "Later."}
        assert await script.next() == {"status": "completed"}
        await script.ended()
