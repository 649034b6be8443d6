"""The message router: messages to the agent and answers back, whole or streamed, whatever the channel does."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.extensions.harness import (
    BASE,
    CHANNEL,
    LIMITS,
    LISTENER,
    PLAIN,
    STREAMING,
    STREAMING_METHODS,
    running,
    write_extension,
)
from tests.serving import PATIENCE, Puppet, quick_settings, saying, until, within
from turnwire import AgentError, Turn, Turnwire
from turnwire.core.log.events import (
    HandoffEvent,
    ReviewEvent,
    SearchEvent,
    StatusEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
)
from turnwire.extensions.calls import ExtensionLimits
from turnwire.extensions.contract import StreamStep
from turnwire.extensions.runtime import ExtensionRuntime

WORK = (
    StatusEvent("Thinking"),
    ToolCallEvent("c1", "search_memory", {"q": "x"}),
    ToolProgressEvent("c1", "half way", 0.5),
    ToolResultEvent("c1", "search_memory", True, "found", 12.0),
    "Hello ",
    "Ann.",
)


# Whole and streamed answers


async def test_channel_gets_whole_answers_and_streaming_channel_streams(tmp_path: Path) -> None:
    """Four more methods make a channel a streaming channel."""
    write_extension(tmp_path / "x", "plain", PLAIN)
    write_extension(tmp_path / "x", "streaming", PLAIN + STREAMING_METHODS)
    async with running(tmp_path / "x", saying(*WORK)) as kernel:
        assert await kernel.say("plain") == await kernel.say("streaming") == "Hello Ann."
        assert kernel.calls("plain") == [("send", "ann", "Hello Ann.")]
        calls = kernel.calls("streaming")
    assert calls[0] == ("start", "ann")
    assert [call for call in calls if call[0] == "status"] == [
        ("status", "ann", "Thinking"),
        ("status", "ann", "Using: search_memory"),
        ("status", "ann", "search_memory: half way"),
    ]
    assert "".join(call[2] for call in calls if call[0] == "chunk") == "Hello Ann."
    assert calls[-1] == ("end", "ann", "Hello Ann.")
    assert not [call for call in calls if call[0] == "send"]


async def test_chunks_arrive_while_the_agent_works(tmp_path: Path) -> None:
    puppet = Puppet()
    write_extension(tmp_path / "x", "chat", STREAMING)
    async with running(tmp_path / "x", puppet) as kernel:
        saying = kernel.saying("chat")
        part = await puppet.part()
        part.say("Once ")
        await until(lambda: ("chunk", "ann", "Once ") in kernel.calls("chat"))
        part.say(ToolCallEvent("c1", "look", {}), "upon")
        await until(lambda: ("chunk", "ann", "upon") in kernel.calls("chat"))
        assert not saying.done()
        part.end()
        assert await within(saying) == "Once upon"


async def test_streaming_is_switched_off_by_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_extension(tmp_path / "x", "chat", STREAMING, config={"streaming_enabled": True})
    monkeypatch.setenv("TURNWIRE_EXTENSION_CHAT_STREAMING_ENABLED", "false")
    async with running(tmp_path / "x", saying(*WORK)) as kernel:
        await kernel.say("chat")
        assert kernel.calls("chat") == [("send", "ann", "Hello Ann.")]


STEPS = (
    CHANNEL
    + """
    async def on_stream_step(self, user_id, step):
        self.calls.append(("step", user_id, step))
"""
)


async def test_step_channel_gets_steps_instead_of_statuses(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", STEPS)
    work = (
        *WORK[:4],
        SearchEvent("s1", "started", "notes", "cats"),
        SearchEvent("s1", "finished", "notes", "cats", hits=(), ms=3.0),
        ReviewEvent("r1", 1, "approved", feedback="enough"),
        HandoffEvent("writer"),
        "Hello",
    )
    async with running(tmp_path / "x", saying(*work)) as kernel:
        await kernel.say("chat")
        steps = [call[2] for call in kernel.calls("chat", "step")]
        assert not kernel.calls("chat", "status")
    assert steps == [
        StreamStep(id="status", kind="status", name="Thinking", phase="progress", summary="Thinking"),
        StreamStep(id="c1", kind="tool", name="search_memory", phase="started", summary='{"q": "x"}'),
        StreamStep(id="c1", kind="tool", name="search_memory", phase="progress", summary="half way", fraction=0.5),
        StreamStep(id="c1", kind="tool", name="search_memory", phase="finished", summary="found", elapsed_ms=12.0),
        StreamStep(id="s1", kind="search", name="notes", phase="started", summary="cats"),
        StreamStep(id="s1", kind="search", name="notes", phase="finished", summary="cats (0 found)", elapsed_ms=3.0),
        StreamStep(id="r1", kind="review", name="review", phase="finished", summary="enough"),
        StreamStep(id=steps[-1].id, kind="handoff", name="writer", phase="finished"),
    ]


# Failures of the agent


@pytest.mark.parametrize("code", [PLAIN, STREAMING], ids=["whole", "streamed"])
async def test_error_ends_the_answer_with_the_partial_text(code: str, tmp_path: Path) -> None:
    puppet = Puppet()
    write_extension(tmp_path / "x", "chat", code)
    async with running(tmp_path / "x", puppet) as kernel:
        answering = kernel.saying("chat")
        part = await puppet.part()
        part.say("Half of ")
        part.end(AgentError("the model is gone"))
        assert await within(answering) == "Half of \n\n(Error: the model is gone)"
        assert kernel.calls("chat")[-1][-1] == "Half of \n\n(Error: the model is gone)"


async def test_refused_turn_is_answered_with_the_error(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", STREAMING)
    async with running(tmp_path / "x", saying("hello")) as kernel:
        text = await kernel.say("chat", agent_id="nobody")
        assert text == "(Error: no agent has the id 'nobody')"
        assert kernel.calls("chat") == [("start", "ann"), ("end", "ann", text)]
        assert await kernel.say("chat") == "hello"


async def test_empty_answer_is_delivered(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", saying()) as kernel:
        assert await kernel.say("chat") == "(The answer is empty.)"
        assert await kernel.say("chat", "  ") == ""
        assert len(kernel.calls("chat")) == 1


# Failures of the channel


FAILING = (
    STREAMING
    + """
    async def {method}(self, *args):
        self.calls.append(("{method}",))
        {how}
"""
)
HOWS = {"raises": "raise OSError('flooded')", "hangs": "await asyncio.Event().wait()"}


@pytest.mark.parametrize("how", HOWS.values(), ids=list(HOWS))
@pytest.mark.parametrize("method", ["on_stream_start", "on_stream_chunk", "on_stream_status"])
async def test_failing_stream_method_does_not_cost_the_answer(method: str, how: str, tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", FAILING.format(method=method, how=how))
    async with running(tmp_path / "x", saying(*WORK)) as kernel:
        assert await kernel.say("chat") == "Hello Ann."
        assert kernel.calls("chat")[-1] == ("end", "ann", "Hello Ann.")


@pytest.mark.parametrize("how", HOWS.values(), ids=list(HOWS))
async def test_failing_on_stream_end_falls_back_to_send_to_user(how: str, tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", FAILING.format(method="on_stream_end", how=how))
    async with running(tmp_path / "x", saying(*WORK)) as kernel:
        assert await kernel.say("chat") == "Hello Ann."
        assert kernel.calls("chat")[-2:] == [("on_stream_end",), ("send", "ann", "Hello Ann.")]


async def test_failing_send_to_user_is_retried(tmp_path: Path) -> None:
    code = (
        BASE
        + """
class Main(Base):
    tries = 0
    async def send_to_user(self, user_id, message):
        self.tries += 1
        if self.tries < 3:
            raise OSError("flooded")
        self.calls.append(("send", user_id, message))
    async def send_message(self, message): ...
"""
    )
    write_extension(tmp_path / "x", "chat", code)
    async with running(tmp_path / "x", saying("hello")) as kernel:
        assert await kernel.say("chat") == "hello"
        await until(lambda: kernel.calls("chat") == [("send", "ann", "hello")])
        assert kernel.extension("chat").tries == 3


async def test_channel_that_hangs_is_not_called_again_before_the_end(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", FAILING.format(method="on_stream_chunk", how=HOWS["hangs"]))
    puppet = Puppet()
    async with running(tmp_path / "x", puppet) as kernel:
        answering = kernel.saying("chat")
        part = await puppet.part()
        part.say("one ")
        await until(lambda: kernel.calls("chat", "on_stream_chunk") == [("on_stream_chunk",)])
        for number in range(20):
            part.say(ToolCallEvent(f"c{number}", "look", {}), "more ")
        part.end()
        assert (await within(answering)).endswith("more ")
        assert len(kernel.calls("chat", "on_stream_chunk", "status")) == 1


async def test_cancelled_caller_does_not_cancel_the_answer(tmp_path: Path) -> None:
    puppet = Puppet()
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", puppet) as kernel:
        leaving = kernel.saying("chat")
        part = await puppet.part()
        leaving.cancel()
        await asyncio.wait([leaving])
        part.say("still here")
        part.end()
        await until(lambda: kernel.calls("chat") == [("send", "ann", "still here")])


# Stopping


CANCELLABLE = (
    CHANNEL
    + """
    async def on_stream_cancel(self, user_id, full_text):
        self.calls.append(("cancel", user_id, full_text))
"""
)


@pytest.mark.parametrize(
    ("code", "end"),
    [
        (CANCELLABLE, ("cancel", "ann", "Half ")),
        (STREAMING, ("end", "ann", "Half \n\n(Stopped.)")),
        (PLAIN, ("send", "ann", "Half \n\n(Stopped.)")),
    ],
    ids=["cancellable", "streaming", "plain"],
)
async def test_cancelled_answer_ends_as_the_channel_supports_it(code: str, end: Any, tmp_path: Path) -> None:
    puppet = Puppet()
    write_extension(tmp_path / "x", "chat", code)
    async with running(tmp_path / "x", puppet) as kernel:
        answering = kernel.saying("chat")
        part = await puppet.part()
        part.say("Half ")
        (turn,) = await kernel.turnwire.store.list_turns("chat:ann")
        await _committed(kernel, turn.id, 3)
        context = kernel.extension("chat").context
        assert await within(context.cancel("ann"))
        assert await within(answering) == "Half \n\n(Stopped.)"
        assert kernel.calls("chat")[-1] == end
        assert not await context.cancel("ann")


async def _committed(kernel: Any, turn_id: str, position: int) -> None:
    from turnwire.core.log.follow import follow

    following = follow(kernel.turnwire.store, turn_id)
    async with asyncio.timeout(PATIENCE):
        async for events in following:
            if events[-1].position >= position:
                break
    await following.aclose()


async def test_cancel_ends_queued_turns_of_the_user_only(tmp_path: Path) -> None:
    puppet = Puppet()
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", puppet) as kernel:
        first = kernel.saying("chat", "one")
        await puppet.part()
        second = kernel.saying("chat", "two")
        other = kernel.saying("chat", "three", "bob")
        part = await puppet.part()
        await kernel.queued(2)
        assert await within(kernel.extension("chat").context.cancel("ann"))
        assert await within(asyncio.gather(first, second)) == ["(Stopped.)", "(Stopped.)"]
        part.end()
        await within(other)
        assert len(puppet.parts) == 2


# Sessions


async def test_messages_of_a_user_share_a_session(tmp_path: Path) -> None:
    seen: list[Turn] = []

    async def answer(turn: Turn) -> str:
        seen.append(turn)
        return f"answer {len(seen)}"

    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", answer) as kernel:
        await kernel.say("chat", "one")
        await kernel.say("chat", "two")
        await kernel.say("chat", "three", "bob")
        await kernel.extension("chat").context.new_session("ann")
        await kernel.say("chat", "four")
        session = await kernel.turnwire.store.find_session("chat:ann", "chat:ann:1")
    assert [message.content for message in seen[1].history] == ["one", "answer 1"]
    assert seen[0].session_id == seen[1].session_id == session.id
    assert {turn.principal for turn in seen} == {"chat:ann", "chat:bob"}
    assert len({turn.session_id for turn in seen}) == 3
    assert seen[3].history == ()
    assert {turn.channel for turn in seen} == {"chat"}


async def test_long_silence_starts_a_new_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions: list[str] = []

    async def answer(turn: Turn) -> str:
        sessions.append(turn.session_id)
        return "yes"

    clock = [1_000_000]
    monkeypatch.setattr("turnwire.extensions.delivery.now_ms", lambda: clock[0])
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", answer, limits=replace(LIMITS, session_timeout=60)) as kernel:
        for minutes in (0, 0.9, 0.9, 1.1, 0.5):
            clock[0] += int(minutes * 60_000)
            await kernel.say("chat")
    assert [sessions.index(session) for session in sessions] == [0, 0, 0, 3, 3]


def test_settings_limit_sessions_and_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[ExtensionLimits] = []

    def record(*arguments: Any, limits: ExtensionLimits, **options: Any) -> ExtensionRuntime:
        built.append(limits)
        return ExtensionRuntime(*arguments, limits=limits, **options)

    monkeypatch.setattr("turnwire.extensions.runtime.ExtensionRuntime", record)
    settings = quick_settings(tmp_path / "data", session_timeout=60, extension_context="extensions")
    Turnwire(saying("hello"), store="memory", settings=settings, extensions=[tmp_path])
    assert [(limits.session_timeout, limits.extension_context) for limits in built] == [(60, "extensions")]


async def test_channel_sets_the_principal(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", saying("hello")) as kernel:
        await kernel.say("chat", principal="ann@example.org")
        assert len(await kernel.turnwire.store.list_turns("ann@example.org")) == 1


async def test_messages_of_a_user_are_answered_in_order(tmp_path: Path) -> None:
    async def answer(turn: Turn) -> str:
        return turn.message

    write_extension(tmp_path / "x", "chat", STREAMING)
    async with running(tmp_path / "x", answer) as kernel:
        texts = [str(number) for number in range(6)]
        await within(asyncio.gather(*(kernel.saying("chat", text) for text in texts)))
        calls = kernel.calls("chat")
    assert [call[2] for call in calls if call[0] == "end"] == texts
    # No answer starts before the previous one has ended.
    assert [call[0] for call in calls if call[0] in ("start", "end")] == ["start", "end"] * 6


async def test_message_does_not_overtake_a_slow_start(tmp_path: Path) -> None:
    hesitant = (
        BASE
        + """
class Main(Base):
    async def get_context(self, prompt, agent_id):
        if prompt == "one":
            self.calls.append("called")
            await asyncio.sleep(0.05)  # Of simulated time: everything else has had its turn.
"""
    )
    messages: list[str] = []

    async def answer(turn: Turn) -> str:
        messages.append(turn.message)
        return turn.message

    write_extension(tmp_path / "x", "hesitant", hesitant)
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", answer) as kernel:
        first = kernel.saying("chat", "one", message_id="1")
        await until(lambda: kernel.calls("hesitant") == ["called"])
        rest = [kernel.saying("chat", "one", message_id="1"), kernel.saying("chat", "two")]
        assert await within(asyncio.gather(first, *rest)) == ["one", "one", "two"]
    assert messages == ["one", "two"]


async def test_same_message_id_is_answered_once(tmp_path: Path) -> None:
    puppet = Puppet()
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", puppet) as kernel:
        both = asyncio.gather(*(kernel.saying("chat", message_id="17") for _ in range(2)))
        part = await puppet.part()
        part.say("once")
        part.end()
        assert await within(both) == ["once", "once"]
        assert await kernel.say("chat", message_id="17") == "once"
        assert kernel.calls("chat") == [("send", "ann", "once")]
        assert len(puppet.parts) == 1


async def test_message_ids_of_different_users_do_not_collide(tmp_path: Path) -> None:
    async def answer(turn: Turn) -> str:
        return f"{turn.principal} said {turn.message}"

    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", answer) as kernel:
        assert await kernel.say("chat", "a", "ann", message_id="1:2") == "chat:ann said a"
        assert await kernel.say("chat", "b", "ann:1", message_id="2") == "chat:ann:1 said b"


# invoke_agent


async def test_invoke_agent_runs_in_the_extensions_own_session(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "one")
    chunks: list[str] = []
    tools: list[str] = []

    async def chunk(text: str) -> None:
        chunks.append(text)

    async def tool(name: str) -> None:
        tools.append(name)

    async with running(tmp_path / "x", {"first": saying(*WORK), "other": saying("I am the other")}) as kernel:
        context = kernel.extension("one").context
        assert await within(context.invoke_agent("  hello ")) == "Hello Ann."
        assert await within(context.invoke_agent("hello", "other")) == "I am the other"
        assert await within(context.invoke_agent_streamed("hello", chunk, tool)) == "Hello Ann."
        assert await within(context.invoke_agent_streamed("hello", chunk)) == "Hello Ann."
        turns = await kernel.turnwire.store.list_turns("extension:one")
    assert "".join(chunks) == "Hello Ann." * 2
    assert tools == ["search_memory"]
    assert len(turns) == 4
    assert len({turn.session_id for turn in turns}) == 1
    assert turns[0].message == "hello"


async def test_invoke_agent_raises_the_agents_error(tmp_path: Path) -> None:
    async def failing(turn: Turn) -> str:
        raise AgentError("no model", code="model_unavailable", retryable=True)

    write_extension(tmp_path / "x", "one")
    async with running(tmp_path / "x", failing) as kernel:
        context = kernel.extension("one").context
        with pytest.raises(AgentError, match="no model") as refused:
            await within(context.invoke_agent("hello"))
        assert (refused.value.code, refused.value.retryable) == ("model_unavailable", True)
        with pytest.raises(AgentError, match="nobody"):
            await within(context.invoke_agent("hello", "nobody"))


async def test_error_of_a_callback_cancels_the_turn_and_is_raised(tmp_path: Path) -> None:
    async def refuse(text: str) -> None:
        raise ValueError("not this")

    puppet = Puppet()
    write_extension(tmp_path / "x", "one")
    async with running(tmp_path / "x", puppet) as kernel:
        asking = asyncio.create_task(kernel.extension("one").context.invoke_agent_streamed("hello", refuse))
        part = await puppet.part()
        part.say("one")
        with pytest.raises(ValueError, match="not this"):
            await within(asking)
        await within(part.over.wait())


async def test_cancelled_invoke_agent_cancels_the_turn(tmp_path: Path) -> None:
    puppet = Puppet()
    write_extension(tmp_path / "x", "one")
    async with running(tmp_path / "x", puppet) as kernel:
        asking = asyncio.create_task(kernel.extension("one").context.invoke_agent("hello"))
        part = await puppet.part()
        asking.cancel()
        await within(part.over.wait())


async def test_extensions_send_through_other_channels(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "speaker")
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", saying()) as kernel:
        context = kernel.extension("speaker").context
        await context.send_to_user("chat", "ann", "good morning")
        await context.send_message("chat", "to whom it may concern")
        assert kernel.calls("chat") == [("send", "ann", "good morning"), ("message", "to whom it may concern")]
        with pytest.raises(LookupError, match="there is no channel 'mail'; there is chat"):
            await context.send_message("mail", "hello")
        with pytest.raises(LookupError, match="there is no channel 'speaker'; there is chat"):
            await context.handle_user_message("hello", "ann")


# The bus


@pytest.mark.parametrize("code", [PLAIN, STREAMING], ids=["whole", "streamed"])
async def test_whole_and_streamed_answers_publish_the_same_events(code: str, tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", code)
    write_extension(tmp_path / "x", "listener", LISTENER)
    async with running(tmp_path / "x", {"anna": saying(*WORK)}) as kernel:
        await kernel.say("chat", "hi")
        await until(lambda: len(kernel.calls("listener")) == 2)
        (turn,) = await kernel.turnwire.store.list_turns("chat:ann")
        assert sorted(kernel.calls("listener"), reverse=True) == [
            ("user_message", {"text": "hi", "user_id": "ann", "channel_id": "chat"}),
            (
                "agent_response",
                {
                    "text": "Hello Ann.",
                    "user_id": "ann",
                    "channel": "chat",
                    "session_id": turn.session_id,
                    "agent_id": "anna",
                },
            ),
        ]


async def test_user_message_is_published_before_the_agent_answers(tmp_path: Path) -> None:
    puppet = Puppet()
    write_extension(tmp_path / "x", "chat", PLAIN)
    write_extension(tmp_path / "x", "listener", LISTENER)
    async with running(tmp_path / "x", puppet) as kernel:
        answering = kernel.saying("chat")
        part = await puppet.part()
        await until(lambda: len(kernel.calls("listener", "user_message")) == 1)
        assert not kernel.calls("listener", "agent_response")
        part.end()
        await within(answering)
        await until(lambda: len(kernel.calls("listener", "agent_response")) == 1)
