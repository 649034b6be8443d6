"""The parts of the Claude adapter that need no process; `scripts/test --all` runs Claude Code under the contracts."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    PermissionResultAllow,
    ProcessError,
    ResultMessage,
    StreamEvent,
    TextBlock,
    ThinkingBlock,
    ToolPermissionContext,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
    create_sdk_mcp_server,
)
from claude_agent_sdk import tool as sdk_tool

from tests.contracts.turns import BOUND, whole_log
from tests.core.desk import completed_answer, failure, lose_worker, open_actor_desk, settle, wait_until_suspended
from tests.scripted_model import calls, scripted_model
from tests.serving import within
from turnwire import ask, tool
from turnwire.agents.claude import ClaudeAgent, claude_tools, runner
from turnwire.agents.claude.events import ClaudeRun
from turnwire.agents.claude.messages import api_messages, tool_use, transcript
from turnwire.agents.claude.tools import InProcessTools, call_in_process
from turnwire.agents.event_queue import EventQueue
from turnwire.agents.loader import as_agent
from turnwire.core.errors import AgentError, ModelError
from turnwire.core.log.approvals import Decision
from turnwire.core.log.events import Event, TokenEvent, ToolCallEvent, ToolResultEvent, UsageEvent
from turnwire.core.log.files import LoadedFiles
from turnwire.core.log.follow import fold_log
from turnwire.core.log.turns import Message, ToolRequest, TurnRecord
from turnwire.stores.memory import MemoryStore


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


class UnreadEvents(EventQueue):
    """A queue that is read when the run has ended."""

    async def flush(self) -> None:
        pass


def begun_run() -> ClaudeRun:
    return ClaudeRun(UnreadEvents(), InProcessTools(OPTIONS))


async def events_of(run: ClaudeRun) -> list[Event | str]:
    run.queue.put(None)
    return [event async for event in run.queue.events()]


def streamed(**event: Any) -> StreamEvent:
    return StreamEvent(uuid="1", session_id="1", event=event)


async def reply(run: ClaudeRun, *blocks: Any, stop_reason: str) -> None:
    """Read one reply of the model as the SDK sends it."""
    for message in replied(*blocks, stop_reason=stop_reason):
        await run.read(message)


def replied(*blocks: Any, stop_reason: str) -> Iterator[Any]:
    usage = {"input_tokens": 3, "cache_read_input_tokens": 8, "output_tokens": 1}
    yield streamed(type="message_start", message={"model": "small", "usage": usage})
    for block in blocks:
        if isinstance(block, TextBlock):
            yield streamed(type="content_block_delta", delta={"type": "text_delta", "text": block.text})
        yield AssistantMessage(content=[block], model="small")
    yield streamed(type="message_delta", delta={"stop_reason": stop_reason}, usage={"output_tokens": 7})


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
    await reply(run, TextBlock("I look."), call, stop_reason="tool_use")
    await run.read(UserMessage(content=[ToolResultBlock("call_1", [{"type": "text", "text": "Sunny"}])]))
    await reply(run, TextBlock("Sunny."), stop_reason="end_turn")
    await run.read(ended())
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
    await run.read(UserMessage(content=[ToolResultBlock("call_1", "No such tool", is_error=True)]))
    await reply(run, ToolUseBlock("call_1", "nothing", {}), stop_reason="tool_use")
    kinds = [type(event) for event in await events_of(run)]
    assert kinds == [UsageEvent, ToolCallEvent, ToolResultEvent]


async def test_messages_of_a_sub_agent_have_its_path() -> None:
    run = begun_run()
    await reply(run, ToolUseBlock("call_1", "Agent", {"subagent_type": "Scout"}), stop_reason="tool_use")
    await run.read(AssistantMessage(content=[TextBlock("Here.")], model="small", parent_tool_use_id="call_1"))
    run.close()
    assert (await events_of(run))[-1] == TokenEvent("Here.", agent_path=("Scout",))


@pytest.mark.parametrize(
    ("stop_reason", "code"), [("refusal", "content_filtered"), ("max_tokens", "truncated"), ("pause_turn", "truncated")]
)
async def test_incomplete_reply_with_a_call_fails(stop_reason: str, code: str) -> None:
    run = begun_run()
    with pytest.raises(ModelError) as failure:
        await reply(run, ToolUseBlock("call_1", "mcp__ours__send", {"to": "bob"}), stop_reason=stop_reason)
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
        await run.read(
            AssistantMessage(content=[TextBlock("the password is swordfish")], model="<synthetic>", error=kind)
        )
    await run.read(ended(is_error=True, **fields))
    with pytest.raises(AgentError) as failure:
        run.finish()
    assert failure.value.code == code
    assert "swordfish" not in str(failure.value)
    assert await events_of(run) == []


@pytest.mark.parametrize(("kind", "code"), [("unknown", "model_unavailable"), ("rate_limit", "rate_limited")])
async def test_reply_that_breaks_off_with_an_error_fails_with_its_code(kind: Any, code: str) -> None:
    run = begun_run()
    await run.read(streamed(type="message_start", message={"model": "small"}))
    await run.read(streamed(type="content_block_delta", delta={"type": "text_delta", "text": "Half an"}))
    await run.read(AssistantMessage(content=[TextBlock("the password is swordfish")], model="<synthetic>", error=kind))
    with pytest.raises(ModelError) as failure:
        await run.read(streamed(type="message_delta", delta={"stop_reason": None}))
    assert failure.value.code == code
    assert await events_of(run) == ["Half an"]


async def test_reply_that_is_refused_is_filtered_whatever_claude_code_says_about_it() -> None:
    run = begun_run()
    await run.read(streamed(type="message_start", message={"model": "small"}))
    await run.read(AssistantMessage(content=[TextBlock("flagged")], model="<synthetic>", error="invalid_request"))
    with pytest.raises(ModelError) as failure:
        await run.read(streamed(type="message_delta", delta={"stop_reason": "refusal"}))
    assert failure.value.code == "content_filtered"


async def test_error_of_a_sub_agent_is_neither_text_nor_the_failure_of_the_turn() -> None:
    run = begun_run()
    await reply(run, ToolUseBlock("call_1", "Agent", {"subagent_type": "Scout"}), stop_reason="tool_use")
    await run.read(
        AssistantMessage(
            content=[TextBlock("swordfish")], model="<synthetic>", parent_tool_use_id="call_1", error="server_error"
        )
    )
    await reply(run, TextBlock("It did not work."), stop_reason="end_turn")
    await run.read(ended())
    run.finish()
    assert "swordfish" not in repr(await events_of(run))


async def test_decision_counts_for_a_call_whose_id_is_in_the_data_of_the_hook() -> None:
    run = begun_run()
    run.decided = {"call_1": Decision(call_id="call_1", tool="send", args={"to": "bob"}, approved=True)}
    await reply(run, ToolUseBlock("call_1", "mcp__ours__send", {"to": "bob"}), stop_reason="tool_use")
    data = {"tool_name": "mcp__ours__send", "tool_input": {"to": "bob"}, "tool_use_id": "call_1"}
    answer = await within(run.before_tool(data, None, None))
    assert answer["hookSpecificOutput"]["permissionDecision"] == "allow"


# Turns that go on in another process


Script = Callable[["Process"], AsyncIterator[Any]]


class Process:
    """A process of Claude Code that plays a script, which can run tools as Claude Code does."""

    def __init__(self, options: ClaudeAgentOptions, folder: Path) -> None:
        self.options = options
        self.transcript = [
            json.loads(line) for file in folder.rglob("*.jsonl") for line in file.read_text().splitlines()
        ]

    @property
    def contents(self) -> list[Any]:
        """Return the content of the messages in the transcript."""
        return [line["message"]["content"] for line in self.transcript if "message" in line]

    async def ask(self, call: ToolUseBlock) -> Any:
        """Report the start of a call, and return the permission for it, if it needs one."""
        data = {"tool_name": call.name, "tool_input": call.input, "tool_use_id": call.id}
        hooks: Any = self.options.hooks
        answer = await hooks["PreToolUse"][-1].hooks[0](data, call.id, None)
        if not answer or answer["hookSpecificOutput"]["permissionDecision"] == "allow":
            return PermissionResultAllow()  # The rules of Claude Code allow everything.
        assert self.options.can_use_tool is not None
        return await self.options.can_use_tool(call.name, call.input, ToolPermissionContext(tool_use_id=call.id))

    async def run(self, call: ToolUseBlock) -> None:
        assert isinstance(await self.ask(call), PermissionResultAllow)
        found = await InProcessTools(self.options).server_of(call.name)
        assert found is not None
        await call_in_process(*found, call.id, call.input)


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Script]:
    """Return the scripts of the next processes."""
    queue: list[Script] = []

    def start(*, options: ClaudeAgentOptions, **_: Any) -> AsyncIterator[Any]:
        return queue.pop(0)(Process(options, tmp_path))

    monkeypatch.setattr(runner, "query", start)
    return queue


def adapter(folder: Path, *tools: Any, **servers: Any) -> ClaudeAgent:
    servers = {"ours": claude_tools([weather, send, *tools]), **servers}
    return ClaudeAgent(ClaudeAgentOptions(mcp_servers=servers, env={"CLAUDE_CONFIG_DIR": str(folder)}))


WEATHER = ToolUseBlock("call_2", "mcp__ours__weather", {"city": "Oslo"})
SEND = ToolUseBlock("call_1", "mcp__ours__send", {"to": "bob"})


def says(*blocks: Any) -> Script:
    async def script(process: Process) -> AsyncIterator[Any]:
        for message in replied(*blocks, stop_reason="end_turn"):
            yield message
        yield ended()

    return script


def calls_and_hangs(*blocks: Any) -> Script:
    async def script(process: Process) -> AsyncIterator[Any]:
        for message in replied(*blocks, stop_reason="tool_use"):
            yield message
        await asyncio.Event().wait()

    return script


async def lost_turn(store: MemoryStore, agent: ClaudeAgent) -> TurnRecord:
    """Return a turn whose worker was lost after its first reply."""
    async with open_actor_desk(store, agent) as desk:
        turn = await desk.start("Go")
        async with asyncio.timeout(BOUND):
            while not any(entry.state == "finished" for entry in await store.journal(turn.id)):
                await settle()
        await lose_worker(desk)
    return turn


async def test_calls_of_a_lost_process_run_in_this_one_and_its_reply_is_not_requested_again(
    scripts: list[Script], tmp_path: Path
) -> None:
    store, agent, seen = MemoryStore(), adapter(tmp_path), list[Any]()

    async def goes_on(process: Process) -> AsyncIterator[Any]:
        seen.extend(process.contents)
        async for message in says(TextBlock("Sunny."))(process):
            yield message

    thought = ThinkingBlock("Hm", "signed")
    scripts += [calls_and_hangs(thought, TextBlock("I look."), WEATHER), goes_on]
    turn = await lost_turn(store, agent)
    async with open_actor_desk(store, agent) as desk:
        assert await completed_answer(desk, turn) == "I look.\n\nSunny."
        events = await desk.events(turn)
    _, reply, (result,) = seen
    assert [block["type"] for block in reply] == ["thinking", "text", "tool_use"]
    assert (result["tool_use_id"], json.loads(result["content"])["sky"]) == ("call_2", "blue")
    assert len([event for event in events if isinstance(event, UsageEvent)]) == 2
    assert len([event for event in events if isinstance(event, ToolResultEvent)]) == 1


async def test_allowed_calls_run_before_the_turn_waits_and_the_decided_call_runs_in_this_process(
    scripts: list[Script], tmp_path: Path
) -> None:
    seen: list[Any] = []

    async def asks(process: Process) -> AsyncIterator[Any]:
        for message in replied(SEND, WEATHER, stop_reason="tool_use"):
            yield message
        await asyncio.gather(process.run(SEND), process.run(WEATHER))

    async def goes_on(process: Process) -> AsyncIterator[Any]:
        seen.extend(process.contents[-1])
        async for message in says(TextBlock("Done."))(process):
            yield message

    scripts += [asks, goes_on]
    async with open_actor_desk(MemoryStore(), adapter(tmp_path)) as desk:
        turn = await desk.start("Go")
        await wait_until_suspended(desk, turn)
        events = [logged.event for logged in await whole_log(desk.store, turn.id)]
        assert [event.call_id for event in events if isinstance(event, ToolResultEvent)] == ["call_2"]
        await desk.runner.decide(turn.id, "call_1", approved=True)
        assert await completed_answer(desk, turn) == "Done."
    assert {block["tool_use_id"]: block["content"] for block in seen}["call_1"] == "bob"


async def test_tools_of_others_are_left_to_the_rules_of_claude_code(scripts: list[Script], tmp_path: Path) -> None:
    burnt: list[str] = []

    @sdk_tool("burn", "Burn a letter.", {"to": str})
    async def burn(args: dict[str, Any]) -> dict[str, Any]:
        burnt.append(args["to"])
        return {"content": []}

    first, last = (ToolUseBlock(f"call_{n}", "mcp__theirs__burn", {"to": to}) for n, to in ((1, "bob"), (3, "eve")))

    async def goes_on(process: Process) -> AsyncIterator[Any]:
        assert not burnt
        assert process.transcript[-1]["attachment"]["toolUseID"] == "call_1"
        assert [block["tool_use_id"] for block in process.contents[-1]] == ["call_2", "call_3"]
        await process.run(first)
        async for message in says(TextBlock("Done."))(process):
            yield message

    agent = adapter(tmp_path, theirs=create_sdk_mcp_server("theirs", tools=[burn]))
    store = MemoryStore()
    scripts += [calls_and_hangs(first, WEATHER, last), goes_on]
    turn = await lost_turn(store, agent)
    async with open_actor_desk(store, agent) as desk:
        events = await desk.events(turn)
    results = [(event.call_id, event.success) for event in events if isinstance(event, ToolResultEvent)]
    assert results == [("call_2", True), ("call_1", True), ("call_3", False)]
    assert burnt == ["bob"]


async def test_call_that_fails_stops_the_other_calls(
    scripts: list[Script], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    find = InProcessTools.server_of

    async def fail_for_weather(tools: InProcessTools, name: str) -> Any:
        if name.endswith("look"):
            return await find(tools, name)
        await begun.wait()
        raise RuntimeError("the server is gone")

    monkeypatch.setattr(InProcessTools, "server_of", fail_for_weather)
    store, agent = MemoryStore(), adapter(tmp_path, look)
    scripts.append(calls_and_hangs(ToolUseBlock("call_1", "mcp__ours__look", {}), WEATHER))
    turn = await lost_turn(store, agent)
    async with open_actor_desk(store, agent) as desk:
        assert (await failure(desk, turn)).code == "agent_failed"
    assert stopped.is_set()


async def test_tool_can_ask_and_runs_again_with_the_answer(scripts: list[Script], tmp_path: Path) -> None:
    @tool
    async def paint() -> str:
        """Paint the wall."""
        return f"It is {await ask('Which colour?')}."

    call = ToolUseBlock("call_1", "mcp__ours__paint", {})

    async def paints(process: Process) -> AsyncIterator[Any]:
        for message in replied(call, stop_reason="tool_use"):
            yield message
        await process.run(call)

    scripts += [paints, says(TextBlock("Painted."))]
    async with open_actor_desk(MemoryStore(), adapter(tmp_path, paint)) as desk:
        turn = await desk.start("Go")
        await wait_until_suspended(desk, turn)
        (question,) = (await fold_log(desk.store, turn.id)).requests.open_questions
        assert question.call_id == "call_1"
        await desk.runner.reply(turn.id, question.id, "red")
        events = await desk.events(turn)
    assert [event.result for event in events if isinstance(event, ToolResultEvent)] == ["It is red."]


async def test_failure_after_as_many_messages_as_are_kept_unread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    async def messages(**options: Any) -> AsyncIterator[Any]:
        for _ in range(runner.MAX_UNREAD):
            yield streamed(type="ping")
        raise ProcessError("Claude Code has failed")

    monkeypatch.setattr(runner, "query", messages)
    process = runner.ClaudeProcess(OPTIONS, messages())
    for _ in range(runner.MAX_UNREAD):
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
    tools = InProcessTools(OPTIONS)
    assert tools.permission("mcp__ours__weather", {"city": "Oslo"}) == "allow"
    assert tools.permission("mcp__ours__send", {"to": "bob"}) == "ask"
    assert tools.permission("Bash", {"command": "ls"}) is None


async def test_scripted_reply_of_the_messages_api_is_whole_without_stream() -> None:
    async with scripted_model(calls(("look", {"at": 1}), text="I look.")) as server, httpx.AsyncClient() as client:
        answer = (await client.post(f"{server.url}/messages", json={"model": "small"})).json()
    assert answer["content"] == [{"type": "text", "text": "I look."}, tool_use("call_1", "look", {"at": 1})]
    assert (answer["stop_reason"], answer["usage"]["input_tokens"]) == ("tool_use", 11)
