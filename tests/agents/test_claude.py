"""The parts of the Claude adapter that need no process; `scripts/test --all` runs Claude Code under the contracts."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    ProcessError,
    ResultMessage,
    StreamEvent,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
    create_sdk_mcp_server,
)
from claude_agent_sdk import tool as sdk_tool

from tests.scripted_model import calls, scripted_model
from tests.serving import within
from turnwire import tool
from turnwire.agents.claude import ClaudeAgent, claude_tools, runner
from turnwire.agents.claude.approvals import PermissionRules
from turnwire.agents.claude.continuation import continue_turn
from turnwire.agents.claude.events import ClaudeRun
from turnwire.agents.claude.messages import api_messages, tool_use, transcript
from turnwire.agents.claude.tools import InProcessTools, call_in_process, reporting
from turnwire.agents.event_queue import EventQueue
from turnwire.agents.loader import as_agent
from turnwire.core.errors import AgentError, ModelError
from turnwire.core.log.approvals import Decision, WaitForApproval
from turnwire.core.log.events import Event, TokenEvent, ToolCallEvent, ToolResultEvent, UsageEvent
from turnwire.core.log.files import LoadedFiles
from turnwire.core.log.turns import Message, ToolRequest, Turn
from turnwire.tools.invocation import ToolOutcome


@tool
async def weather(city: str) -> dict[str, Any]:
    """Return the weather in a city."""
    return {"city": city, "sky": "blue"}


@tool(needs_approval=True)
async def send(to: str) -> str:
    """Send a letter."""
    return to


SERVERS: Any = {"ours": claude_tools([weather, send])}
OPTIONS = ClaudeAgentOptions(mcp_servers=SERVERS)


def begun_run() -> ClaudeRun:
    tools = InProcessTools(OPTIONS)
    return ClaudeRun(EventQueue(), tools, PermissionRules(tools, ()))


async def events_of(run: ClaudeRun) -> list[Event | str]:
    run.queue.put(None)
    return [event async for event in run.queue.events()]


def streamed(**event: Any) -> StreamEvent:
    return StreamEvent(uuid="1", session_id="1", event=event)


def reply(run: ClaudeRun, *blocks: Any, stop_reason: str) -> None:
    """Read one reply of the model as the SDK sends it."""
    usage = {"input_tokens": 3, "cache_read_input_tokens": 8, "output_tokens": 1}
    run.read(streamed(type="message_start", message={"model": "small", "usage": usage}))
    for block in blocks:
        if isinstance(block, TextBlock):
            run.read(streamed(type="content_block_delta", delta={"type": "text_delta", "text": block.text}))
        run.read(AssistantMessage(content=[block], model="small"))
    run.read(streamed(type="message_delta", delta={"stop_reason": stop_reason}, usage={"output_tokens": 7}))


def continued(*calls: ToolRequest) -> Turn:
    """Return a turn whose worker was lost after a reply with these calls."""
    work = (Message("assistant", "", tool_calls=calls),)
    return Turn(id="1", session_id="1", principal="ann", message="Go", progress=work)


def ended(**fields: Any) -> ResultMessage:
    basics: dict[str, Any] = {"duration_ms": 1, "duration_api_ms": 1, "num_turns": 1, "session_id": "1"}
    return ResultMessage(**{"subtype": "success", "is_error": False, **basics, **fields})


def test_options_of_the_sdk_are_an_agent() -> None:
    agent = as_agent(OPTIONS)
    assert isinstance(agent, ClaudeAgent)
    assert agent.tool_names == {"weather", "send"}


async def test_reply_with_a_call_is_logged_when_it_is_whole() -> None:
    run = begun_run()
    call = ToolUseBlock("call_1", "mcp__ours__weather", {"city": "Oslo"})
    reply(run, TextBlock("I look."), call, stop_reason="tool_use")
    run.read(UserMessage(content=[ToolResultBlock("call_1", [{"type": "text", "text": "Sunny"}])]))
    reply(run, TextBlock("Sunny."), stop_reason="end_turn")
    run.read(ended())
    run.finish()
    usage = UsageEvent("small", 11, 7, 8)
    assert await events_of(run) == [
        "I look.",
        usage,
        ToolCallEvent("call_1", "weather", {"city": "Oslo"}),
        ToolResultEvent("call_1", "weather", True, "Sunny"),
        "\n\n",
        "Sunny.",
        usage,
    ]


async def test_call_that_is_refused_before_its_reply_is_whole_has_its_result_after_it() -> None:
    run = begun_run()
    run.read(UserMessage(content=[ToolResultBlock("call_1", "No such tool", is_error=True)]))
    reply(run, ToolUseBlock("call_1", "nothing", {}), stop_reason="tool_use")
    kinds = [type(event) for event in await events_of(run)]
    assert kinds == [UsageEvent, ToolCallEvent, ToolResultEvent]


async def test_messages_of_a_sub_agent_have_its_path() -> None:
    run = begun_run()
    reply(run, ToolUseBlock("call_1", "Agent", {"subagent_type": "Scout"}), stop_reason="tool_use")
    run.read(AssistantMessage(content=[TextBlock("Here.")], model="small", parent_tool_use_id="call_1"))
    run.close()
    assert (await events_of(run))[-1] == TokenEvent("Here.", agent_path=("Scout",))


@pytest.mark.parametrize(
    ("stop_reason", "code"), [("refusal", "content_filtered"), ("max_tokens", "truncated"), ("pause_turn", "truncated")]
)
async def test_incomplete_reply_with_a_call_fails(stop_reason: str, code: str) -> None:
    run = begun_run()
    with pytest.raises(ModelError) as failure:
        reply(run, ToolUseBlock("call_1", "mcp__ours__send", {"to": "bob"}), stop_reason=stop_reason)
    assert failure.value.code == code
    assert not [event for event in await events_of(run) if isinstance(event, ToolCallEvent)]


@pytest.mark.parametrize(
    ("fields", "kind", "code"),
    [
        ({"terminal_reason": "api_error", "api_error_status": 429}, "rate_limit", "rate_limited"),
        ({"terminal_reason": "api_error"}, "server_error", "model_unavailable"),
        ({"terminal_reason": "prompt_too_long", "api_error_status": 400}, "invalid_request", "context_too_long"),
        ({"subtype": "error_max_turns"}, None, "max_turns"),
    ],
)
async def test_run_that_ends_with_an_error_fails(fields: dict[str, Any], kind: Any, code: str) -> None:
    run = begun_run()
    if kind:
        run.read(AssistantMessage(content=[TextBlock("the password is swordfish")], model="<synthetic>", error=kind))
    run.read(ended(is_error=True, **fields))
    with pytest.raises(AgentError) as failure:
        run.finish()
    assert failure.value.code == code
    assert "swordfish" not in str(failure.value)
    assert await events_of(run) == []


@pytest.mark.parametrize(("kind", "code"), [("unknown", "model_unavailable"), ("rate_limit", "rate_limited")])
async def test_reply_that_breaks_off_with_an_error_fails_with_its_code(kind: Any, code: str) -> None:
    run = begun_run()
    run.read(streamed(type="message_start", message={"model": "small"}))
    run.read(streamed(type="content_block_delta", delta={"type": "text_delta", "text": "Half an"}))
    run.read(AssistantMessage(content=[TextBlock("the password is swordfish")], model="<synthetic>", error=kind))
    with pytest.raises(ModelError) as failure:
        run.read(streamed(type="message_delta", delta={"stop_reason": None}))
    assert failure.value.code == code
    assert await events_of(run) == ["Half an"]


async def test_reply_that_is_refused_is_filtered_whatever_claude_code_says_about_it() -> None:
    run = begun_run()
    run.read(streamed(type="message_start", message={"model": "small"}))
    run.read(AssistantMessage(content=[TextBlock("flagged")], model="<synthetic>", error="invalid_request"))
    with pytest.raises(ModelError) as failure:
        run.read(streamed(type="message_delta", delta={"stop_reason": "refusal"}))
    assert failure.value.code == "content_filtered"


async def test_error_of_a_sub_agent_is_neither_text_nor_the_failure_of_the_turn() -> None:
    run = begun_run()
    reply(run, ToolUseBlock("call_1", "Agent", {"subagent_type": "Scout"}), stop_reason="tool_use")
    run.read(
        AssistantMessage(
            content=[TextBlock("swordfish")], model="<synthetic>", parent_tool_use_id="call_1", error="server_error"
        )
    )
    reply(run, TextBlock("It did not work."), stop_reason="end_turn")
    run.read(ended())
    run.finish()
    assert "swordfish" not in repr(await events_of(run))


async def test_continued_reply_leaves_the_tools_of_others_to_the_rules_of_claude_code() -> None:
    burnt: list[str] = []

    @sdk_tool("burn", "Burn a letter.", {"to": str})
    async def burn(args: dict[str, Any]) -> dict[str, Any]:
        burnt.append(args["to"])
        return {"content": []}

    theirs = create_sdk_mcp_server("theirs", tools=[burn])
    tools = InProcessTools(ClaudeAgentOptions(mcp_servers={**SERVERS, "theirs": theirs}))
    run = ClaudeRun(EventQueue(), tools, PermissionRules(tools, ()))
    wanted = (
        ToolRequest("call_1", "mcp__theirs__burn", {"to": "bob"}),
        ToolRequest("call_2", "weather", {"city": "Oslo"}),
        ToolRequest("call_3", "mcp__theirs__burn", {"to": "eve"}),
    )
    start = await continue_turn(continued(*wanted), run)
    assert not burnt
    assert start.deferred == tool_use("call_1", "mcp__theirs__burn", {"to": "bob"})
    assert [block["tool_use_id"] for block in start.messages[-1]["content"]] == ["call_2", "call_3"]
    run.end_call("call_1", True, "burnt", None)
    results = [event for event in await events_of(run) if isinstance(event, ToolResultEvent)]
    assert [(event.call_id, event.success) for event in results] == [
        ("call_2", True),
        ("call_1", True),
        ("call_3", False),
    ]


async def test_continued_reply_runs_the_allowed_calls_before_it_waits_for_an_approval() -> None:
    run = begun_run()
    wanted = (ToolRequest("call_1", "send", {"to": "bob"}), ToolRequest("call_2", "weather", {"city": "Oslo"}))
    with pytest.raises(WaitForApproval) as waiting:
        await continue_turn(continued(*wanted), run)
    assert [request.call_id for request in waiting.value.requests] == ["call_1"]
    (result,) = await events_of(run)
    assert isinstance(result, ToolResultEvent)
    assert result.call_id == "call_2"


async def test_continued_reply_with_a_call_that_fails_stops_the_other_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    @tool
    async def look() -> str:
        """Look for a long time."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "seen"

    tools = InProcessTools(ClaudeAgentOptions(mcp_servers={"ours": claude_tools([look, weather])}))
    run, find = ClaudeRun(EventQueue(), tools, PermissionRules(tools, ())), tools.server_of

    async def fail_for_weather(name: str) -> Any:
        if name.endswith("look"):
            return await find(name)
        await begun.wait()
        raise RuntimeError("the server is gone")

    monkeypatch.setattr(tools, "server_of", fail_for_weather)
    wanted = (ToolRequest("call_1", "look", {}), ToolRequest("call_2", "weather", {"city": "Oslo"}))
    with pytest.raises(RuntimeError, match="the server is gone"):
        await within(continue_turn(continued(*wanted), run))
    await within(stopped.wait())


async def test_decision_counts_for_a_call_whose_id_is_in_the_data_of_the_hook() -> None:
    run = begun_run()
    run.decided = {"call_1": Decision(call_id="call_1", tool="send", args={"to": "bob"}, approved=True)}
    run.restore_call("call_1", "send", is_done=False)
    data = {"tool_name": "mcp__ours__send", "tool_input": {"to": "bob"}, "tool_use_id": "call_1"}
    answer = await within(run.before_tool(data, None, None))
    assert answer["hookSpecificOutput"]["permissionDecision"] == "allow"


async def test_failure_after_as_many_messages_as_are_kept_unread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    async def messages(**options: Any) -> AsyncIterator[Any]:
        for _ in range(runner._MAX_UNREAD):
            yield streamed(type="ping")
        raise ProcessError("Claude Code has failed")

    monkeypatch.setattr(runner, "query", messages)
    process = runner.ClaudeProcess(OPTIONS, messages())
    for _ in range(runner._MAX_UNREAD):
        assert await within(process.next_message()) is not None
    with pytest.raises(ProcessError):
        await within(process.next_message())
    await process.close()


async def test_turns_with_a_common_folder_of_transcripts_leave_none_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    read: list[str] = []

    async def messages(*, options: ClaudeAgentOptions, **_: Any) -> AsyncIterator[Any]:
        (file,) = tmp_path.rglob(f"{options.resume}.jsonl")
        read.append(file.read_text())
        yield ended()

    monkeypatch.setattr(runner, "query", messages)
    options = ClaudeAgentOptions(cwd=tmp_path, env={"CLAUDE_CONFIG_DIR": str(tmp_path)})
    start = runner.RunStart(messages=[{"role": "user", "content": "Hi"}], prompt=[])
    for _ in range(2):
        await within(runner.read_messages(options, start, begun_run()))
    assert [text.count("Hi") for text in read] == [1, 1]
    assert not list(tmp_path.rglob("*.jsonl"))


def test_history_has_the_results_of_parallel_calls_in_one_message() -> None:
    calls = (ToolRequest("a", "look", {"at": 1}), ToolRequest("b", "look", {"at": 2}))
    history = [
        Message("user", "Look."),
        Message("assistant", "I look.", tool_calls=calls),
        Message("tool", "one", call_id="a"),
        Message("tool", "two", call_id="b"),
        Message("assistant", "Both."),
    ]
    messages = api_messages(history, LoadedFiles())
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant"]
    assert [block["type"] for block in messages[1]["content"]] == ["text", "tool_use", "tool_use"]
    assert [block["tool_use_id"] for block in messages[2]["content"]] == ["a", "b"]


def test_transcript_is_a_chain_that_ends_with_the_deferred_call() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    lines = transcript(UUID(int=1), "/work", messages, tool_use("call_1", "Bash", {"command": "ls"}))
    first, last = map(json.loads, lines)
    assert last["parentUuid"] == first["uuid"]
    assert last["attachment"]["toolUseID"] == "call_1"


def test_our_tool_that_needs_approval_is_asked_for() -> None:
    rules = PermissionRules(InProcessTools(OPTIONS), editable=())
    assert rules.permission("mcp__ours__weather", {"city": "Oslo"}) == "allow"
    assert rules.permission("mcp__ours__send", {"to": "bob"}) == "ask"
    assert rules.permission("Bash", {"command": "ls"}) is None


async def test_call_of_an_in_process_tool_is_reported_with_its_value() -> None:
    reported: list[tuple[str, ToolOutcome]] = []

    async def report(call_id: str, outcome: ToolOutcome) -> None:
        reported.append((call_id, outcome))

    found = await InProcessTools(OPTIONS).server_of("mcp__ours__weather")
    assert found is not None
    token = reporting.set(report)
    try:
        outcome = await call_in_process(found[0], "call_1", found[1], {"city": "Oslo"})
    finally:
        reporting.reset(token)
    assert reported == [("call_1", outcome)]
    assert outcome.result == {"city": "Oslo", "sky": "blue"}


async def test_scripted_reply_of_the_messages_api_is_whole_without_stream() -> None:
    async with scripted_model(calls(("look", {"at": 1}), text="I look.")) as server, httpx.AsyncClient() as client:
        answer = (await client.post(f"{server.url}/messages", json={"model": "small"})).json()
    assert answer["content"] == [{"type": "text", "text": "I look."}, tool_use("call_1", "look", {"at": 1})]
    assert (answer["stop_reason"], answer["usage"]["input_tokens"]) == ("tool_use", 11)
