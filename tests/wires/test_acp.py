"""A turn's log as ACP updates, read back by the protocol's own models and rules, for any log and any cut."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest
from acp import connect_to_agent
from acp.schema import SessionNotification
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.contracts.log_strategies import DENSE, log_of, logs, restarted_logs
from tests.contracts.turn_summary import Call, TurnSummary, fold
from tests.examples import examples
from tests.serving import until, within
from tests.wires.served_log import ServedLog, served_log
from turnwire.client import AsyncClient, ClientError
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.events import (
    CustomEvent,
    DoneEvent,
    Event,
    QuestionEvent,
    RestartEvent,
    TokenEvent,
    ToolCallEvent,
)
from turnwire.core.log.turns import TurnState
from turnwire.wires.acp.connection import RpcConnection, RpcError
from turnwire.wires.acp.encoder import Positioned, SessionUpdates, Update, standing_events, state_updates
from turnwire.wires.acp.hosts import HostedTurn, ServerHost
from turnwire.wires.acp.routes import AcpAgent

EXAMPLES = settings(max_examples=examples(15))


class SeenSession:
    """A turn as an editor shows it. Every update must be valid by the official schema."""

    def __init__(self) -> None:
        self.text = self.reasoning = ""
        self.calls: dict[str, dict[str, Any]] = {}
        self.citations: list[str] = []
        self.user: list[str] = []

    def take(self, update: Update) -> None:
        SessionNotification.model_validate_json(json.dumps({"sessionId": "s1", "update": update}))
        content = update.get("content", {})
        match update["sessionUpdate"]:
            case "agent_message_chunk" if content["type"] == "text":
                self.text += content["text"]
            case "agent_message_chunk":
                self.citations.append(content["uri"])
            case "agent_thought_chunk" if ":reasoning-" in update["messageId"]:
                self.reasoning += content["text"]
            case "user_message_chunk":
                self.user.append(content["text"])
            case "tool_call":
                assert update["toolCallId"] not in self.calls, "an id is used once"
                self.calls[update["toolCallId"]] = dict(update)
            case "tool_call_update":
                assert update["toolCallId"] in self.calls, "an update of a call that has not begun"
                self.calls[update["toolCallId"]] |= update
            case _:
                pass

    def summary(self, *, is_waiting: bool) -> TurnSummary:
        summary = TurnSummary(self.text, self.reasoning)
        for call in self.calls.values():
            if call["kind"] == "search":
                continue
            seen = Call(call["name"], call["rawInput"])
            match call["status"]:
                case "completed":
                    seen.end(True, call["rawOutput"])
                case "failed" if "rawOutput" in call:
                    seen.end(False, "")
                case "pending" if is_waiting:
                    seen.state = "waiting"
                case _:
                    pass
            summary.calls.append(seen)
        return summary


def encode(log: Sequence[LoggedEvent]) -> list[Update]:
    encoder = SessionUpdates("t1")
    events = standing_events((logged.position, logged.event) for logged in log)
    return [update for position, event in events for update in encoder.updates(position, event)]


@EXAMPLES
@given(log=logs | restarted_logs())
@example(log=log_of(DENSE))
def test_any_log_is_read_back(log: list[LoggedEvent]) -> None:
    expected, seen = fold(json.loads(logged.body) for logged in log), SeenSession()
    for update in encode(log):
        seen.take(update)
    for call in expected.calls:  # An editor has no tools of its own; calls of other clients' tools just run.
        call.state = "open" if call.runs_on_client and call.state == "waiting" else call.state
    summary = seen.summary(is_waiting=expected.outcome == "waiting")
    assert (summary.text, summary.reasoning) == (expected.text, expected.reasoning)
    assert summary.calls == expected.calls
    assert len(seen.citations) == len(expected.citations)


class Editor:
    """An editor with the official client, connected to an agent of a running server until the block ends."""

    def __init__(self) -> None:
        self.updates = 0
        self.seen = SeenSession()

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        plain = update.model_dump(mode="json", by_alias=True, exclude_none=True)
        self.updates += 1
        # What asks a person is not part of the log.
        if ":question-" not in str(plain.get("messageId")) and ":q_" not in str(plain.get("toolCallId")):
            self.seen.take({"name": "", "rawInput": {}, **plain} if update.session_update == "tool_call" else plain)

    async def request_permission(self, *_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    def on_connect(self, conn: Any) -> None:
        pass

    @asynccontextmanager
    async def load(self, log: ServedLog) -> AsyncIterator[None]:
        ours, theirs = socket.socketpair()
        async with AsyncClient(log.server.url, key=log.key) as client:
            agent = AcpAgent(ServerHost(client), "1")
            reader, writer = await asyncio.open_connection(sock=ours)
            agent.peer = connection = RpcConnection(reader, writer, agent.handle)
            running = asyncio.create_task(connection.run())
            theirs_reader, theirs_writer = await asyncio.open_connection(sock=theirs)
            editor = connect_to_agent(cast("Any", self), theirs_writer, theirs_reader)
            try:
                await within(editor.initialize(protocol_version=1))
                await within(editor.load_session(session_id=log.session_id, cwd="/", mcp_servers=[]))
                yield
            finally:
                theirs_writer.close()
                with suppress(ConnectionError):
                    await within(running)
                await agent.close()
                writer.close()
                await editor.close()


@settings(max_examples=examples(5))
@given(drawn=logs | restarted_logs(), data=st.data())
async def test_editor_that_is_cut_off_after_any_update_loads_the_whole_turn(
    drawn: list[LoggedEvent], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(2, len(drawn)))
    # An editor that has shown text cannot take it back, so a restart comes before it loads the session.
    is_restarted = any(isinstance(logged.event, RestartEvent) for logged in drawn)
    loaded = len(drawn) if is_restarted else data.draw(st.integers(cut, len(drawn)))
    expected = fold(json.loads(logged.body) for logged in drawn)
    async with served_log() as log:
        first, encoder = Editor(), SessionUpdates(log.turn_id)
        async with first.load(log):
            for logged in drawn[2:cut]:
                before, updates = first.updates, encoder.updates(logged.position, logged.event)
                await log.write([logged.event])
                await until(lambda: first.updates >= before + len(updates))  # noqa: B023 - It is called in this round.
        await log.write([logged.event for logged in drawn[cut:loaded]])
        second = Editor()
        async with second.load(log):
            await log.write([logged.event for logged in drawn[loaded:]])
            await until(lambda: nameless(second.seen, expected) == nameless(expected, expected))


def nameless(turn: SeenSession | TurnSummary, expected: TurnSummary) -> tuple[Any, ...]:
    """Return a turn without the names of its tools, which the official client does not pass on."""
    summary = turn.summary(is_waiting=expected.outcome == "waiting") if isinstance(turn, SeenSession) else turn
    calls = [(call.args, _shown_state(call), call.result) for call in summary.calls]
    return summary.text, summary.reasoning, calls, len(turn.citations)


def _shown_state(call: Call) -> str:
    # An editor has no tools of its own; calls of other clients' tools just run.
    return "open" if call.runs_on_client and call.state == "waiting" else call.state


def test_live_restart_begins_a_new_message_and_closes_open_calls() -> None:
    encoder = SessionUpdates("t1")
    events = (TokenEvent("Void"), ToolCallEvent("c1", "x", {}), RestartEvent(2, "lost"), TokenEvent("Whole."))
    updates = [update for number, event in enumerate(events, 3) for update in encoder.updates(number, event)]
    texts = [update for update in updates if update["sessionUpdate"] == "agent_message_chunk"]
    assert texts[0]["messageId"] != texts[1]["messageId"]
    assert [update["status"] for update in updates if update["sessionUpdate"] == "tool_call_update"] == ["failed"]
    assert any("repeated" in update["content"]["text"] for update in updates if "thought" in update["sessionUpdate"])


@pytest.mark.parametrize(
    ("data", "entries"),
    [
        (["Look", "Answer"], [("Look", "pending"), ("Answer", "pending")]),
        ([{"content": "Look", "status": "completed", "priority": "high"}], [("Look", "completed")]),
        ([1], None),
        ("Look", None),
    ],
)
def test_custom_event_plan_is_a_plan(data: Any, entries: list[tuple[str, str]] | None) -> None:
    updates = SessionUpdates("t1").updates(3, CustomEvent("plan", data))
    for update in updates:
        SeenSession().take(update)
    found = [[(entry["content"], entry["status"]) for entry in update["entries"]] for update in updates]
    assert found == ([] if entries is None else [entries])


def test_turn_whose_events_are_gone_is_shown_from_its_state() -> None:
    seen = SeenSession()
    for update in state_updates(TurnState(turn_id="t1", message="Hi", text="Hello.")):
        seen.take(update)
    assert (seen.user, seen.text) == (["Hi"], "Hello.")


def test_call_without_result_ends_with_the_turn() -> None:
    encoder, seen = SessionUpdates("t1"), SeenSession()
    for number, event in enumerate((ToolCallEvent("c1", "x", {}), DoneEvent("cancelled", "s1", "t1")), 3):
        for update in encoder.updates(number, event):
            seen.take(update)
    assert [call["status"] for call in seen.calls.values()] == ["failed"]


class ScriptedHost:
    """A host with one session, whose turns have these events and then are lost, unless they have ended."""

    def __init__(self, *logs: Sequence[Event]) -> None:
        self.logs = logs
        self.messages: list[str] = []
        self.lost = asyncio.Event()

    async def create_session(self) -> str:
        return "s1"

    async def turns(self, session_id: str) -> list[HostedTurn]:
        return []

    async def start(self, session_id: str, message: str, *_: Any) -> str:
        self.messages.append(message)
        return f"t{len(self.messages)}"

    async def events(self, turn_id: str) -> AsyncGenerator[Positioned | TurnState]:
        for positioned in enumerate(self.logs[int(turn_id[1:]) - 1], 1):
            yield positioned
        await self.lost.wait()
        raise ClientError("the server is away")


class Recorder:
    """The editor's end of a connection: takes every update."""

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        pass


async def test_prompt_after_a_lost_turn_with_a_question_starts_a_turn(caplog: pytest.LogCaptureFixture) -> None:
    host = ScriptedHost([QuestionEvent("q1", "Which one?")], [TokenEvent("Yes."), DoneEvent("completed", "s1", "t2")])
    agent = AcpAgent(cast("Any", host), "1")
    agent.peer = cast("Any", Recorder())
    await agent.handle("session/new", {"cwd": "/"})
    prompts = [{"sessionId": "s1", "prompt": [{"type": "text", "text": text}]} for text in ("Choose.", "The first.")]
    assert await within(agent.handle("session/prompt", prompts[0])) == {"stopReason": "end_turn"}
    host.lost.set()
    await until(lambda: "t1 is no longer followed" in caplog.text)
    assert await within(agent.handle("session/prompt", prompts[1])) == {"stopReason": "end_turn"}
    assert host.messages == ["Choose.", "The first."]


@pytest.mark.parametrize("error", [{"code": None}, {"code": "x"}, {}, "failed"])
async def test_malformed_error_of_the_editor_is_an_error_of_its_request(error: Any) -> None:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    connection = RpcConnection(reader, writer, cast("Any", None))
    running = asyncio.create_task(connection.run())
    their_reader, their_writer = await asyncio.open_connection(sock=theirs)
    asking = asyncio.create_task(connection.request("session/request_permission", {}))
    request = json.loads(await within(their_reader.readline()))
    their_writer.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}).encode() + b"\n")
    with pytest.raises(RpcError):
        await within(asking)
    their_writer.close()
    await within(running)
    writer.close()
