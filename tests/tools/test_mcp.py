"""MCP tools in whole turns, with real servers on stdio and HTTP and a scripted model."""

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.core.desk import Desk, wait_until_suspended
from tests.scripted_model import ScriptedModel, calls, model_server, says
from tests.serving import PATIENCE, until, within
from tests.tools.mcp_servers import SCRIPT, open_agent, program, results, web
from turnwire.core.errors import AgentError, InvalidReplyError
from turnwire.core.log.events import DoneEvent, ErrorEvent, QuestionEvent, ToolProgressEvent
from turnwire.core.log.follow import fold_log
from turnwire.core.log.turns import TurnRecord
from turnwire.tools import McpServer, tool

__all__ = ["model_server"]

RAW = Path(__file__).with_name("mcp_raw_server.py")
SECRET = "sesame-opens-8117"


@tool
async def weather(city: str) -> str:
    """Return the weather in a city, by our own account."""
    return f"Rain in {city}"


@asynccontextmanager
async def served(kind: str, marks: Path, **options: Any) -> AsyncIterator[McpServer]:
    """Yield the server of mcp_server.py, reached in one of three ways."""
    if kind == "stdio":
        yield program(env={"MARKS": str(marks)}, **options)
        return
    async with web(marks=marks, year=int(kind.removeprefix("http-"))) as there:
        yield McpServer("test", url=there.url, **options)


@pytest.fixture(params=[pytest.param("stdio", marks=pytest.mark.process), "http-2026", "http-2025"])
async def mcp_server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[McpServer]:
    async with served(request.param, tmp_path, timeout=PATIENCE) as server:
        yield server


# Tool calls


async def test_model_gets_mcp_tools_and_results(mcp_server: McpServer, model_server: ScriptedModel) -> None:
    model_server.plan(calls(("weather", {"city": "Oslo"}), ("facts", {}), ("picture", {})), says("Sunny."))
    async with open_agent(model_server, mcp_server) as desk:
        events = await desk.events(await desk.start())
    offered = {item["function"]["name"]: item["function"] for item in model_server.bodies[0]["tools"]}
    assert offered["weather"]["description"] == "Return the weather in a city."
    assert offered["weather"]["parameters"]["required"] == ["city"]
    reported = {event.tool: (event.success, event.result) for event in results(events)}
    assert reported == {
        "weather": (True, "Sunny in Oslo"),
        "facts": (True, {"cities": ["Oslo", "Rome"], "complete": False}),
        "picture": (True, "Here:\n[image, image/png, 402 bytes, not shown]"),
    }
    messages = [message["content"] for message in model_server.bodies[1]["messages"] if message["role"] == "tool"]
    assert messages[0] == "Sunny in Oslo"
    assert json.loads(messages[1])["cities"] == ["Oslo", "Rome"]


@pytest.mark.rotated("mcp_server")
async def test_progress_comes_between_call_and_result(mcp_server: McpServer, model_server: ScriptedModel) -> None:
    model_server.plan(calls(("count", {"to": 3})), says("Three."))
    async with open_agent(model_server, mcp_server) as desk:
        events = await desk.events(await desk.start())
    (result,) = results(events)
    reported = [event for event in events if isinstance(event, ToolProgressEvent)]
    assert [(event.call_id, event.text) for event in reported] == [("call_1", f"at {number}") for number in (1, 2, 3)]
    assert [event.fraction for event in reported] == [pytest.approx(1 / 3), pytest.approx(2 / 3), 1]
    assert all(events.index(event) < events.index(result) for event in reported)


@pytest.mark.rotated("mcp_server")
async def test_server_error_is_reported_to_the_model(mcp_server: McpServer, model_server: ScriptedModel) -> None:
    model_server.plan(calls(("refuse", {"why": "no such city"}), ("weather", {"town": 3})), says("Sorry."))
    async with open_agent(model_server, mcp_server) as desk:
        events = await desk.events(await desk.start())
    reported = {event.tool: event for event in results(events)}
    assert not any(event.success for event in reported.values())
    assert reported["refuse"].result.startswith("Error: ")
    assert "no such city" in reported["refuse"].result
    assert "city" in reported["weather"].result  # The server checks the arguments, and says which one it misses.
    assert isinstance(events[-1], DoneEvent)
    assert events[-1].outcome == "completed"


@pytest.mark.rotated("mcp_server")
async def test_long_mcp_result_is_clipped(mcp_server: McpServer, model_server: ScriptedModel) -> None:
    model_server.plan(calls(("shout", {"times": 900_000})), says("Loud."))
    async with open_agent(model_server, mcp_server) as desk:
        (result,) = results(await desk.events(await desk.start()))
    assert result.success
    assert len(result.result) < 20_100
    assert "cut here" in result.result


# Questions of a server (elicitation)


def raw_server(seen: Path) -> McpServer:
    seen.touch()
    return McpServer("raw", command=sys.executable, args=[str(RAW)], env={"SEEN": str(seen)}, timeout=PATIENCE)


async def open_questions(desk: Desk, turn: TurnRecord) -> dict[str, str]:
    await wait_until_suspended(desk, turn)
    return {each.prompt: each.id for each in (await fold_log(desk.store, turn.id)).requests.open_questions}


@pytest.mark.rotated("mcp_server")
async def test_question_of_a_server_suspends_the_turn_and_its_reply_reaches_the_server(
    mcp_server: McpServer, model_server: ScriptedModel
) -> None:
    model_server.plan(calls(("reserve", {"city": "Oslo"}), ids=["c1"]), says("Booked."))
    async with open_agent(model_server, mcp_server) as desk:
        turn = await desk.start()
        ((prompt, question),) = (await open_questions(desk, turn)).items()
        assert prompt == "test: Which class to Oslo?"
        with pytest.raises(InvalidReplyError, match=r"value\.seat"):
            await desk.runner.reply(turn.id, question, {"seat": "third"})
        await desk.runner.reply(turn.id, question, {"seat": "second"})
        events = await desk.events(turn)
    (event,) = [event for event in events if isinstance(event, QuestionEvent)]
    assert (event.call_id, event.schema and event.schema["required"]) == ("c1", ["seat"])
    assert [(event.success, event.result) for event in results(events)] == [(True, "accept second")]


@pytest.mark.rotated("mcp_server")
async def test_declined_question_is_told_to_the_server(mcp_server: McpServer, model_server: ScriptedModel) -> None:
    model_server.plan(calls(("reserve", {"city": "Oslo"})), says("Not booked."))
    async with open_agent(model_server, mcp_server) as desk:
        turn = await desk.start()
        (question,) = (await open_questions(desk, turn)).values()
        await desk.runner.reply(turn.id, question, declined=True)
        events = await desk.events(turn)
    assert [event.result for event in results(events)] == ["decline"]


async def test_questions_of_parallel_calls_are_answered_each_by_its_own_reply(
    model_server: ScriptedModel, tmp_path: Path
) -> None:
    wanted = [("reserve", {"city": city}) for city in ("Oslo", "Rome")]
    model_server.plan(calls(*wanted, ids=["c1", "c2"]), says("Booked."))
    async with served("http-2026", tmp_path, timeout=PATIENCE) as server, open_agent(model_server, server) as desk:
        turn = await desk.start()
        questions = await open_questions(desk, turn)
        await desk.runner.reply(turn.id, questions["test: Which class to Rome?"], {"seat": "first"})
        await desk.runner.reply(turn.id, questions["test: Which class to Oslo?"], {"seat": "second"})
        events = await desk.events(turn)
    reported = {event.call_id: event.result for event in results(events)}
    assert reported == {"c1": "accept second", "c2": "accept first"}


async def test_server_of_the_older_protocol_asks_in_the_middle_of_a_call(
    model_server: ScriptedModel, tmp_path: Path
) -> None:
    model_server.plan(calls(("book", {"city": "Oslo"})), says("Booked."))
    async with served("http-2025", tmp_path, timeout=PATIENCE) as server, open_agent(model_server, server) as desk:
        turn = await desk.start()
        (question,) = (await open_questions(desk, turn)).values()
        await desk.runner.reply(turn.id, question, {"seat": "first"})
        events = await desk.events(turn)
    assert [event.result for event in results(events)] == ["accept first"]


@pytest.mark.process
async def test_questions_of_parallel_calls_over_stdio_in_the_older_protocol(
    model_server: ScriptedModel, tmp_path: Path
) -> None:
    wanted = [("book", {"city": city}) for city in ("Oslo", "Rome")]
    model_server.plan(
        calls(("book", {"city": "Bonn"})), says("Booked."), calls(*wanted, ids=["c1", "c2"]), says("All.")
    )
    async with open_agent(model_server, raw_server(tmp_path / "seen")) as desk:
        first = await desk.start()
        (question,) = (await open_questions(desk, first)).values()
        await desk.runner.reply(first.id, question, {"seat": "first"})
        await desk.events(first)
        turn = await desk.start()
        questions = await open_questions(desk, turn)
        assert set(questions) == {"raw: Which class to Oslo?", "raw: Which class to Rome?"}
        await desk.runner.reply(turn.id, questions["raw: Which class to Rome?"], {"seat": "first"})
        await desk.runner.reply(turn.id, questions["raw: Which class to Oslo?"], {"seat": "second"})
        events = await desk.events(turn)
    reported = {event.call_id: event.result for event in results(events)}
    assert reported == {"c1": '{"seat": "second"}', "c2": '{"seat": "first"}'}


@pytest.mark.rotated("mcp_server")
async def test_oversized_message_is_not_read(
    mcp_server: McpServer, model_server: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnwire.tools.mcp.transports.MAX_MESSAGE_BYTES", 50_000)
    monkeypatch.setattr("turnwire.tools.mcp.transports.MAX_MESSAGE_BYTES", 50_000)
    model_server.plan(calls(("shout", {"times": 500_000})), calls(("shout", {"times": 3})), says("Loud."))
    async with open_agent(model_server, mcp_server) as desk:
        too_long, short = results(await desk.events(await desk.start()))
    assert not too_long.success
    assert "the MCP server 'test'" in too_long.result
    assert short.result == "AAA"


@pytest.mark.rotated("mcp_server")
async def test_stopped_turn_cancels_the_call_at_the_server(
    mcp_server: McpServer, model_server: ScriptedModel, tmp_path: Path
) -> None:
    model_server.plan(calls(("hang", {})))
    async with open_agent(model_server, mcp_server) as desk:
        turn = await desk.start()
        await until((tmp_path / "hanging").exists)
        await desk.cancel(turn)
        assert (await desk.end(turn)).outcome == "cancelled"
        await until((tmp_path / "cancelled").exists)
        # The connection still works.
        model_server.plan(calls(("weather", {"city": "Oslo"})), says("Sunny."))
        (result,) = results(await desk.events(await desk.start()))
        assert result.result == "Sunny in Oslo"


@pytest.mark.rotated("mcp_server")
async def test_slow_call_times_out_and_is_cancelled(
    mcp_server: McpServer, model_server: ScriptedModel, tmp_path: Path
) -> None:
    mcp_server.timeout = 0.5
    model_server.plan(calls(("hang", {})), says("It hangs."))
    async with open_agent(model_server, mcp_server) as desk:
        (result,) = results(await desk.events(await desk.start()))
        assert not result.success
        assert "longer than 0.5 seconds" in result.result
        await until((tmp_path / "cancelled").exists)


# Life cycle


async def test_first_turn_connects_and_later_ones_reuse_the_connection(
    model_server: ScriptedModel,
) -> None:
    async with web() as there:
        server = McpServer("test", url=there.url)
        async with open_agent(model_server, server) as desk:
            assert not there.seen
            for _ in range(2):
                model_server.plan(calls(("weather", {"city": "Oslo"})), says("Sunny."))
                await desk.events(await desk.start())
    assert [headers["mcp-method"] for headers in there.seen] == [
        "server/discover",
        "tools/list",
        "tools/call",
        "tools/call",
    ]


async def test_parallel_turns_share_one_connection(model_server: ScriptedModel) -> None:
    model_server.plan(*[says("Hello.")] * 5)
    async with web() as there, open_agent(model_server, McpServer("test", url=there.url)) as desk:
        turns = [await desk.start() for _ in range(5)]
        assert [(await desk.end(turn)).outcome for turn in turns] == ["completed"] * 5
    assert [headers["mcp-method"] for headers in there.seen] == ["server/discover", "tools/list"]


@pytest.mark.process
async def test_program_that_died_is_restarted(model_server: ScriptedModel) -> None:
    async with open_agent(model_server, program()) as desk:
        ask = ("weather", {"city": "Oslo"})
        model_server.plan(calls(("die", {})), calls(ask), says("Sunny again."))
        events = await desk.events(await desk.start())
    died, answered = results(events)
    assert not died.success
    assert "the MCP server 'test' broke off" in died.result
    assert answered.result == "Sunny in Oslo"
    assert isinstance(events[-1], DoneEvent)
    assert events[-1].outcome == "completed"


@pytest.mark.process
async def test_program_that_died_between_turns_is_restarted_unnoticed(
    model_server: ScriptedModel,
) -> None:
    server = program()
    async with open_agent(model_server, server) as desk:
        model_server.plan(calls(("die", {})), says("It is gone."))
        await desk.events(await desk.start())
        await until(lambda: not server.is_connected)
        model_server.plan(calls(("weather", {"city": "Oslo"})), says("Sunny."))
        (result,) = results(await desk.events(await desk.start()))
    assert result.result == "Sunny in Oslo"


async def test_restarted_server_gets_a_new_session(model_server: ScriptedModel) -> None:
    ask = ("weather", {"city": "Oslo"})
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(web(year=2025))
        desk = await stack.enter_async_context(open_agent(model_server, McpServer("test", url=first.url)))
        model_server.plan(calls(ask), says("Sunny."))
        await desk.events(await desk.start())
        await first.stop()
        await stack.enter_async_context(web(year=2025, port=first.port))
        model_server.plan(calls(ask), calls(ask), says("Sunny still."))
        forgotten, answered = results(await desk.events(await desk.start()))
    assert forgotten.result == "Error: the MCP server 'test' was restarted; call again"
    assert answered.result == "Sunny in Oslo"


async def test_missing_server_is_reported_until_it_returns(model_server: ScriptedModel) -> None:
    ask = ("weather", {"city": "Oslo"})
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(web())
        desk = await stack.enter_async_context(open_agent(model_server, McpServer("test", url=first.url)))
        model_server.plan(says("Hello."))
        await desk.events(await desk.start())
        await first.stop()
        model_server.plan(calls(ask), calls(ask), says("Not now."))
        events = await desk.events(await desk.start())
        broken, away = results(events)
        assert "the MCP server 'test' broke off" in broken.result
        assert away.result == "Error: The MCP server 'test' is not available: it cannot be reached."
        assert isinstance(events[-1], DoneEvent)
        assert events[-1].outcome == "completed"
        await stack.enter_async_context(web(port=first.port))
        model_server.plan(calls(ask), says("Sunny."))
        (answered,) = results(await desk.events(await desk.start()))
        assert answered.result == "Sunny in Oslo"


@pytest.mark.process
@pytest.mark.parametrize("when", ["connecting", "connected"])
async def test_close_ends_the_program_and_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    # These programs ignore the first, polite signal.
    monkeypatch.setattr("turnwire.tools.mcp.transports.GRACE_SECONDS", 0.1)
    pids = tmp_path / "pids"
    run = f"{sys.executable} {SCRIPT}" if when == "connected" else "true"
    script = f"trap '' TERM; sleep 1000 & echo $$ $! > {pids}; {run}; wait"
    server = McpServer("test", command="sh", args=["-c", script])
    opening = asyncio.create_task(server.open())
    await until(lambda: pids.exists() and bool(pids.read_text()))
    if when == "connected":
        assert await within(opening)
    assert all(map(is_running, pids.read_text().split()))
    await within(server.close())
    await until(lambda: not any(map(is_running, pids.read_text().split())))
    if when == "connecting":
        with pytest.raises(AgentError, match="'test' is not available: it was closed"):
            await within(opening)


async def test_connection_closed_before_it_began_does_not_block() -> None:
    server = program()
    opening = asyncio.create_task(server.open())
    await asyncio.sleep(0)
    await within(server.close())
    with pytest.raises(AgentError, match="it was closed"):
        await within(opening)


def is_running(pid: str) -> bool:
    try:
        # A zombie counts as ended.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# Several servers


@pytest.mark.process
async def test_two_servers_and_own_tools_are_combined(model_server: ScriptedModel) -> None:
    async with web() as there:
        item, other = program("one", tools=["weather"]), McpServer("other", url=there.url, prefix="web_")
        model_server.plan(
            calls(*[(name, {"city": "Oslo"}) for name in ("weather", "one_weather", "web_weather")]), says("Mixed.")
        )
        async with open_agent(model_server, item, weather, other) as desk:
            events = await desk.events(await desk.start())
    offered = [tool["function"]["name"] for tool in model_server.bodies[0]["tools"]]
    assert [name for name in offered if "weather" in name] == ["weather", "one_weather", "web_weather"]
    assert len([name for name in offered if not name.startswith("web_")]) == 2
    assert {event.tool: event.result for event in results(events)} == {
        "weather": "Rain in Oslo",
        "one_weather": "Sunny in Oslo",
        "web_weather": "Sunny in Oslo",
    }


# Errors


@pytest.mark.process
@pytest.mark.parametrize(
    ("server", "why"),
    [
        (lambda: McpServer("lost", command="no-such-program-here"), "it cannot be started"),
        (lambda: program("lost", "silent", connect_timeout=0.5), "it did not answer within 0.5 seconds"),
        (lambda: program("lost", "rude"), "it ended before it had listed its tools"),
        (lambda: McpServer("lost", url="http://127.0.0.1:9/mcp"), "it cannot be reached"),
    ],
    ids=["missing", "silent", "rude", "away"],
)
async def test_turn_with_unavailable_server_fails_and_names_it(
    model_server: ScriptedModel, server: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_agent(model_server, server()) as desk:
        *_, error, done = await desk.events(await desk.start())
    assert isinstance(error, ErrorEvent)
    assert (error.code, error.retryable) == ("mcp_unavailable", True)
    assert error.error == f"The MCP server 'lost' is not available: {why}."
    assert isinstance(done, DoneEvent)
    assert done.outcome == "failed"
    assert not model_server.requests
    assert "the MCP server 'lost' is not available" in caplog.text


@pytest.mark.process
async def test_cancellation_follows_the_protocol(model_server: ScriptedModel, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    server = raw_server(seen)

    def sent() -> list[dict[str, Any]]:
        return [json.loads(line) for line in seen.read_text().splitlines()]

    model_server.plan(calls(("hang", {"really": True})))
    async with open_agent(model_server, server) as desk:
        turn = await desk.start()
        await until(lambda: any(message["method"] == "tools/call" for message in sent()))
        await desk.cancel(turn)
        await until(lambda: sent()[-1]["method"] == "notifications/cancelled")
    (call,) = (message for message in sent() if message["method"] == "tools/call")
    assert call["params"]["arguments"] == {"really": True}
    assert sent()[-1]["params"]["requestId"] == call["id"]


async def test_offered_tools_are_limited_and_validated(
    model_server: ScriptedModel, caplog: pytest.LogCaptureFixture
) -> None:
    async with web("many") as many:
        assert len(await _offered(McpServer("many", url=many.url))) == 128
    assert "offers more than 128 tools" in caplog.text
    caplog.clear()
    async with web("odd") as odd:
        names = await _offered(McpServer("odd", url=odd.url, prefix="p-"))
    assert [name for name in names if "files" in name or "x" in name] == ["p-files_read_all", f"p-{'x' * 62}"]
    assert "'files_read_all' of the MCP server 'odd' is skipped: another one is called" in caplog.text
    assert "'weather'" not in caplog.text


async def _offered(server: McpServer) -> list[str]:
    try:
        return [tool.name for tool in await within(server.open())]
    finally:
        await within(server.close())


# Secrets


@pytest.mark.process
async def test_program_gets_only_its_own_variables(
    model_server: ScriptedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OUR_KEY", SECRET)
    caplog.set_level(logging.DEBUG)
    model_server.plan(calls(("variable", {"name": "THEIRS"}), ("variable", {"name": "OUR_KEY"})), says("So."))
    async with open_agent(model_server, program(env={"THEIRS": "given"})) as desk:
        events = await desk.events(await desk.start())
    assert sorted(event.result for event in results(events)) == ["given", "not set"]
    await until(lambda: "test: asked for OUR_KEY" in caplog.text)


async def test_headers_are_sent_to_the_server_only(
    model_server: ScriptedModel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with web(token=SECRET) as there:
        model_server.plan(calls(("weather", {"city": "Oslo"})), says("Sunny."))
        server = McpServer("test", url=there.url, headers={"Authorization": f"Bearer {SECRET}\n"})
        async with open_agent(model_server, server) as desk:
            events = await desk.events(await desk.start())
            assert [event.result for event in results(events)] == ["Sunny in Oslo"]
        async with open_agent(model_server, McpServer("test", url=there.url, headers={"Authorization": "no"})) as desk:
            *_, error, _done = await desk.events(await desk.start())
    assert isinstance(error, ErrorEvent)
    assert error.error == "The MCP server 'test' is not available: it refused."
    assert SECRET not in caplog.text + repr(events) + repr(vars(server))


def test_bad_options_are_refused_at_once() -> None:
    refusals: list[tuple[dict[str, Any], str]] = [
        ({}, "needs a command"),
        ({"command": "x", "url": "http://x"}, "and not both"),
        ({"url": "ftp://x"}, "must be like https://example.org/mcp"),
        ({"url": "http://x", "headers": {"X-Key": f"{SECRET}\nX: y"}}, "the header 'X-Key'"),
        ({"command": "x", "prefix": "a.b"}, "the prefix"),
    ]
    for options, message in refusals:
        with pytest.raises(ValueError, match=message) as refused:
            McpServer("test", **options)
        assert SECRET not in str(refused.value)
    with pytest.raises(ValueError, match=r"cannot be called 'a\.b'"):
        McpServer("a.b", command="x")


NO_EXTRA = """
import sys
import turnwire.tools, turnwire.agents.chat_completions
assert not {"mcp", "mcp_types", "httpx2"} & set(sys.modules), "the SDK is imported before a server is configured"
sys.modules["mcp"] = None
try:
    turnwire.tools.McpServer("test", command="x")
except ImportError as error:
    print(error)
"""


@pytest.mark.process
def test_sdk_is_imported_on_use_and_a_missing_extra_is_named() -> None:
    command = [sys.executable, "-c", NO_EXTRA]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.strip() == "MCP servers need more than is installed: pip install 'turnwire[mcp]'"
