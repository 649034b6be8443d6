"""The kernel: agents, tools, context and approvals of extensions, and the listener of a turn."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.turns import append, claimed, done, ended
from tests.extensions.harness import BASE, LIMITS, PLAIN, STREAMING, running, write_extension
from tests.scripted_model import ScriptedModel, calls, model_server, says
from tests.serving import Puppet, saying, serving, until, within
from turnwire import ChatCompletionsAgent, Turn, Turnwire
from turnwire.core.contracts.agents import repeats, resumes, takes_attachments, takes_model
from turnwire.core.errors import TurnwireError
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    MessageEvent,
    QuestionEvent,
    ReplyEvent,
    RestartEvent,
    StatusEvent,
    TokenEvent,
)
from turnwire.core.log.follow import follow
from turnwire.extensions.channels import ChannelHost, ChannelStream, TurnListener, follow_turn
from turnwire.extensions.contract import ApprovalAsk, Channel, QuestionAsk, StreamingChannel, StreamStep
from turnwire.extensions.router import ContextAgent
from turnwire.settings import Settings
from turnwire.stores.memory import MemoryStore

__all__ = ["model_server"]


# Agents


AGENTS = (
    BASE
    + """
class Main(Base):
    def get_agents(self):
        async def parrot(turn):
            yield turn.message
        return {"parrot": parrot, "default": parrot}
"""
)


async def test_agents_of_an_extension_are_added_and_replace_none(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "birds", AGENTS)
    turnwire = Turnwire(saying("mine"), store="memory", settings=_settings(tmp_path), extensions=[tmp_path / "x"])
    app = await asyncio.to_thread(turnwire.asgi)
    async with serving(turnwire, app) as server:
        mine = await server.http.post("/chat", json={"message": "hi"})
        other = await server.http.post("/chat", json={"message": "polly", "agent": "parrot"})
        assert turnwire.extensions is not None
        assert turnwire.extensions.hosts["birds"].notes == [
            "its agent 'default' is left out: there is another one of this name"
        ]
    assert (mine.json()["content"], other.json()["content"]) == ("mine", "polly")


async def test_invalid_agent_fails_only_its_extension(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "bad", BASE + "class Main(Base):\n    def get_agents(self): return {'five': 5}")
    write_extension(tmp_path / "x", "good")
    async with running(tmp_path / "x", saying()) as kernel:
        assert kernel.states() == {"bad": "failed", "good": "running"}
        assert "is not an agent" in kernel["bad"].message


async def test_extension_with_an_invalid_agent_adds_no_tools(tmp_path: Path) -> None:
    code = """
from turnwire import tool

@tool
def search(query: str) -> str:
    "Search."
    return query

class Main(Base):
    def get_tools(self): return [search]
    def get_agents(self): return {"five": 5}
"""
    write_extension(tmp_path / "x", "bad", BASE + code)
    async with running(tmp_path / "x", saying()) as kernel:
        assert "is not an agent" in kernel["bad"].message
        assert kernel.runtime.tools == {}


async def test_queued_turn_of_an_extensions_agent_runs_after_a_restart(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "birds", AGENTS)
    write_extension(tmp_path / "x", "chat", PLAIN)
    puppet = Puppet()
    async with running(tmp_path / "x", puppet, store="sqlite", data=tmp_path / "d") as kernel:
        first = kernel.saying("chat", "one")
        await puppet.part()
        waiting = kernel.saying("chat", "two", agent_id="parrot")
        await kernel.queued(2)
    await within(asyncio.gather(first, waiting, return_exceptions=True))
    async with running(tmp_path / "x", saying(), store="sqlite", data=tmp_path / "d") as kernel:
        await until(lambda: ("send", "ann", "two") in kernel.calls("chat"))


# Tools


TOOLS = (
    BASE
    + """
from turnwire import tool

@tool
def weather(city: str) -> str:
    "Return the weather."
    return f"sunny in {city}"

class Main(Base):
    def get_tools(self):
        return [weather]
"""
)


async def test_tools_of_extensions_reach_chat_completions_agents(tmp_path: Path, model_server: ScriptedModel) -> None:
    write_extension(tmp_path / "x", "sky", TOOLS)
    model_server.keeps_alive = False
    model_server.plan(calls(("weather", {"city": "Oslo"})), says("It is sunny."))
    # The first client imports a good deal.
    agent = await asyncio.to_thread(ChatCompletionsAgent, "m", base_url=model_server.url, api_key="none")
    write_extension(tmp_path / "x", "chat", STREAMING)
    async with running(tmp_path / "x", agent) as kernel:
        assert await kernel.say("chat", "how is Oslo?") == "It is sunny."
        assert ("status", "ann", "Using: weather") in kernel.calls("chat")
        assert list(kernel.runtime.tools) == ["weather"]
    assert model_server.requests[1].body["messages"][-1]["content"] == "sunny in Oslo"
    await agent.close()


# What they know


CONTEXT = (
    BASE
    + """
class Main(Base):
    async def get_context(self, prompt, agent_id):
        {how}
"""
)


async def test_context_of_extensions_reaches_the_agent_and_not_the_log(tmp_path: Path) -> None:
    seen: list[Turn] = []

    async def answer(turn: Turn) -> str:
        seen.append(turn)
        return "ok"

    write_extension(tmp_path / "x", "a", CONTEXT.format(how="return f'You know: {prompt} {agent_id}'"))
    write_extension(tmp_path / "x", "b", CONTEXT.format(how="raise OSError('lost')"))
    write_extension(tmp_path / "x", "c", CONTEXT.format(how="await asyncio.Event().wait()"))
    write_extension(tmp_path / "x", "d", CONTEXT.format(how="return None"))
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", answer) as kernel:
        await kernel.say("chat", "hi")
        await kernel.say("chat", "again")
        await within(kernel.extension("a").context.invoke_agent("alone"))
        (first, _) = await kernel.turnwire.store.list_turns("chat:ann")
        messages = [
            logged.event.content
            async for batch in follow(kernel.turnwire.store, first.id)
            for logged in batch
            if isinstance(logged.event, MessageEvent)
        ]
    assert [turn.message for turn in seen] == [
        "You know: hi None\n\nhi",
        "You know: again None\n\nagain",
        "You know: alone None\n\nalone",
    ]
    assert messages == ["hi"]
    assert seen[1].history[0].content == "hi"


# What asks a person


class RecordingChannel(Channel):
    def __init__(self) -> None:
        self.calls: list[Any] = []

    async def send_to_user(self, user_id: str, message: str) -> None:
        self.calls.append(("send", message))


class StreamingRecorder(RecordingChannel, StreamingChannel):
    async def on_stream_status(self, user_id: str, status: str) -> None:
        self.calls.append(("status", status))


class StepRecorder(StreamingRecorder):
    async def on_stream_step(self, user_id: str, step: StreamStep) -> None:
        self.calls.append(("step", step.name))


class RecordingListener(TurnListener):
    def __init__(self) -> None:
        self.reports: list[str] = []

    async def send_chunk(self, text: str) -> None:
        self.reports.append(text)

    async def send_step(self, step: StreamStep) -> None:
        self.reports.append(f"({step.name})")

    async def request_approval(self, ask: ApprovalAsk) -> None:
        self.reports.append(f"may {ask.tool}?")


class DeafRecorder(StreamingRecorder):
    """A channel that cannot show what it gets while an answer is made."""

    async def on_stream_chunk(self, user_id: str, chunk: str) -> None:
        raise OSError

    async def on_stream_status(self, user_id: str, status: str) -> None:
        raise OSError


class ApprovalRecorder(RecordingChannel):
    async def on_approval_request(self, user_id: str, ask: ApprovalAsk) -> bool:
        self.calls.append(ask)
        return True


class FailingRecorder(RecordingChannel):
    async def on_approval_request(self, user_id: str, ask: ApprovalAsk) -> bool:
        raise OSError


WAITING = "Waiting for approval: delete_all"


@pytest.mark.parametrize(
    ("cls", "call"),
    [
        (ApprovalRecorder, None),
        (StreamingRecorder, ("status", WAITING)),
        (StepRecorder, ("step", WAITING)),
        (DeafRecorder, ("send", WAITING)),
        (RecordingChannel, ("send", WAITING)),
        (FailingRecorder, ("send", WAITING)),
    ],
)
async def test_approval_request_is_shown_on_every_kind_of_channel(cls: Any, call: Any) -> None:
    store, extension = MemoryStore(), cls()
    request = ApprovalRequestEvent("c1", "delete_all", {"path": "/"}, reason="dangerous")
    turn = await ended(store, TokenEvent("One moment. "), request)
    channel = ChannelHost("chat", extension, is_streaming=True, timeout=LIMITS.channel_timeout)
    await within(follow_turn(store, turn.id, ChannelStream(channel, "ann")))
    fields = {"tool": "delete_all", "args": {"path": "/"}, "reason": "dangerous", "position": 4}
    expected = ApprovalAsk(turn_id=turn.id, call_id="c1", **fields)
    assert extension.calls == [call or expected]


async def test_approval_request_is_shown_after_other_calls_have_failed() -> None:
    class ChunklessRecorder(StreamingRecorder):
        async def on_stream_chunk(self, user_id: str, chunk: str) -> None:
            raise OSError

    extension = ChunklessRecorder()
    channel = ChannelHost("chat", extension, is_streaming=True, timeout=LIMITS.channel_timeout)
    stream = ChannelStream(channel, "ann")
    for _ in range(5):
        await stream.send_chunk("lost")
    await stream.request_approval(ApprovalAsk(turn_id="t1", call_id="c1", tool="delete_all", args={}))
    assert extension.calls == [("status", WAITING)]


async def test_approval_that_was_decided_before_is_only_reported() -> None:
    store, listener = MemoryStore(), RecordingListener()
    request = ApprovalRequestEvent("c1", "delete_all", {})
    turn = await ended(store, request, ApprovalResponseEvent("c1", False, by="bob"))
    await within(follow_turn(store, turn.id, listener))
    assert listener.reports == ["(Denied: delete_all)"]


class QuestionRecorder(RecordingChannel):
    async def on_question(self, user_id: str, ask: QuestionAsk) -> bool:
        self.calls.append(("question", ask))
        return True

    async def on_question_closed(self, user_id: str, ask: QuestionAsk) -> None:
        self.calls.append(("closed", ask))


LINE = "Question: Which plan?"
PLAN = {"type": "string", "enum": ["basic", "plus"]}


@pytest.mark.parametrize(
    ("cls", "calls"),
    [
        (QuestionRecorder, None),
        (StreamingRecorder, [("status", LINE)]),
        (StepRecorder, [("step", LINE)]),
        (RecordingChannel, [("send", LINE)]),
    ],
)
async def test_question_is_shown_on_every_kind_of_channel_and_closed_with_its_turn(cls: Any, calls: Any) -> None:
    store, extension = MemoryStore(), cls()
    turn = await ended(store, QuestionEvent("q1", "Which plan?", PLAN))
    channel = ChannelHost("chat", extension, is_streaming=True, timeout=LIMITS.channel_timeout)
    await within(follow_turn(store, turn.id, ChannelStream(channel, "ann")))
    ask = QuestionAsk(turn_id=turn.id, question_id="q1", prompt="Which plan?", schema=PLAN)
    assert extension.calls == (calls or [("question", ask), ("closed", ask)])


async def test_question_that_was_answered_before_is_only_closed() -> None:
    store, extension = MemoryStore(), QuestionRecorder()
    turn = await ended(store, QuestionEvent("q1", "Which plan?", PLAN), ReplyEvent("q1", "plus", by="bob"))
    channel = ChannelHost("chat", extension, is_streaming=True, timeout=LIMITS.channel_timeout)
    await within(follow_turn(store, turn.id, ChannelStream(channel, "ann")))
    assert [name for name, _ in extension.calls] == ["closed"]


async def test_decision_without_a_request_is_refused(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", saying()) as kernel:
        with pytest.raises(TurnwireError):
            await kernel.extension("chat").context.decide("01", "c1", approved=True, by="ann")


class RestartingListener(RecordingListener):
    async def restart(self, text: str) -> bool:
        self.reports.append(f"only {text!r}")
        return True


async def test_listener_reports_chunks_and_steps_in_log_order() -> None:
    store, listener = MemoryStore(), RecordingListener()
    work = (TokenEvent("a"), TokenEvent("b"), StatusEvent("first"), TokenEvent("c"), StatusEvent("second"))
    turn = await ended(store, *work)
    await within(follow_turn(store, turn.id, listener))
    assert listener.reports == ["ab", "(first)", "c", "(second)"]


async def test_listener_that_cannot_restart_continues_after_a_restart() -> None:
    store, listener = MemoryStore(), RecordingListener()
    turn = await ended(store, TokenEvent("kept "), TokenEvent("void"), RestartEvent(3, "lost"), TokenEvent("new"))
    state = await within(follow_turn(store, turn.id, listener))
    assert state.text == "kept new"
    assert listener.reports == ["(Starting again)", "kept new"]


async def test_listener_that_restarts_replaces_the_text() -> None:
    store, listener = MemoryStore(), RestartingListener()
    record = await claimed(store)
    listening = asyncio.create_task(follow_turn(store, record.id, listener))
    await append(store, record.id, 1, 3, TokenEvent("kept "), TokenEvent("void"))
    await until(lambda: listener.reports == ["kept void"])
    rest = [RestartEvent(3, "lost"), TokenEvent("new"), done(record)]
    await append(store, record.id, 1, 5, *rest, end=True)
    assert (await within(listening)).text == "kept new"
    assert listener.reports == ["kept void", "only 'kept '", "(Starting again)", "new"]


def test_context_agent_keeps_the_declarations_of_its_agent() -> None:
    class Declared:
        takes_attachments = True
        takes_model = True
        on_crash = "resume"

        def repeats(self, tool: str) -> bool:
            return tool == "find"

        def answer(self, turn: Turn) -> Any: ...

    agent, silent = ContextAgent(Declared()), ContextAgent(saying())
    assert (takes_attachments(agent), resumes(agent), repeats(agent, "find"), repeats(agent, "pay")) == (
        True, True, True, False,
    )  # fmt: skip
    assert (takes_model(agent), takes_model(silent)) == (True, False)
    assert (takes_attachments(silent), resumes(silent), repeats(silent, "find")) == (False, False, False)


# How it is opened


async def test_turnwire_without_extensions_argument_has_no_runtime(tmp_path: Path) -> None:
    write_extension(tmp_path / "config" / "turnwire" / "extensions", "mine")
    assert Turnwire(saying(), store="memory", settings=_settings(tmp_path)).extensions is None
    settings = _settings(tmp_path).model_copy(update={"allowed_extensions": ["mine"]})
    turnwire = Turnwire(saying(), store="memory", settings=settings, extensions=[])
    async with turnwire.lifespan():
        assert turnwire.extensions is not None
        assert turnwire.extensions.hosts["mine"].state == "running"


async def test_extension_folders_come_from_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_extension(tmp_path / "x", "one")
    monkeypatch.setenv("TURNWIRE_EXTENSIONS", f'["{tmp_path / "x"}"]')
    turnwire = Turnwire(saying(), store="memory", settings=_settings(tmp_path))
    async with turnwire.lifespan():
        assert turnwire.extensions is not None
        assert turnwire.extensions.hosts["one"].state == "running"


async def test_each_extension_has_its_own_data_folder(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "one")
    async with running(tmp_path / "x", saying(), data=tmp_path / "d") as kernel:
        context = kernel.extension("one").context
        assert not (tmp_path / "d" / "extensions").exists()
        assert context.data_folder == tmp_path / "d" / "extensions" / "one"
        assert context.data_folder.is_dir()
        assert (context.extension_id, context.logger.name) == ("one", "turnwire.extensions.one")


async def test_bundled_channels_are_discovered(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    async with running(tmp_path / "x", saying()) as kernel:
        bundled = {id: hosted for id, hosted in kernel.runtime.hosts.items() if hosted.found.source == "bundled"}
        assert bundled
        assert {hosted.state for hosted in bundled.values()} <= {"unconfigured", "discovered"}


def _settings(tmp_path: Path) -> Settings:
    return Settings(data=tmp_path / "data", shutdown_grace=0, documents={"embeddings": "off"})
