"""Messages go from a channel to the agent and answers come back, streamed or whole, whatever the channel does."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.extensions.building import (
    BASE,
    LISTENER,
    PLAIN,
    QUICK,
    STREAMING,
    STREAMING_METHODS,
    running,
    write_extension,
)
from tests.serving import Puppet, saying, until, within
from turnwire import AgentError, Turn
from turnwire.core.events import (
    HandoffEvent,
    ReviewEvent,
    SearchEvent,
    StatusEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
)
from turnwire.extensions.contract import StreamStep

WORK = (
    StatusEvent("Thinking"),
    ToolCallEvent("c1", "search_memory", {"q": "x"}),
    ToolProgressEvent("c1", "half way", 0.5),
    ToolResultEvent("c1", "search_memory", True, "found", 12.0),
    "Hello ",
    "Ann.",
)


# The two ways


async def test_the_same_extension_without_and_with_streaming(tmp_path: Path) -> None:
    """The four methods are all that is added, and nothing is changed for the one that does not have them."""
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


async def test_text_comes_while_the_agent_still_works(tmp_path: Path) -> None:
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


async def test_streaming_can_be_switched_off_by_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_extension(tmp_path / "x", "chat", STREAMING, config={"streaming_enabled": True})
    monkeypatch.setenv("TURNWIRE_EXTENSION_CHAT_STREAMING_ENABLED", "false")
    async with running(tmp_path / "x", saying(*WORK)) as kernel:
        await kernel.say("chat")
        assert kernel.calls("chat") == [("send", "ann", "Hello Ann.")]


STEPS = (
    STREAMING
    + """
    async def on_stream_step(self, user_id, step):
        self.calls.append(("step", user_id, step))
"""
)


async def test_a_channel_that_wants_steps_is_told_them_as_they_are(tmp_path: Path) -> None:
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
async def test_an_error_in_the_middle_ends_the_answer_with_what_there_was(code: str, tmp_path: Path) -> None:
    puppet = Puppet()
    write_extension(tmp_path / "x", "chat", code)
    async with running(tmp_path / "x", puppet) as kernel:
        answering = kernel.saying("chat")
        part = await puppet.part()
        part.say("Half of ")
        part.end(AgentError("the model is gone"))
        assert await within(answering) == "Half of \n\n(Error: the model is gone)"
        assert kernel.calls("chat")[-1][-1] == "Half of \n\n(Error: the model is gone)"


async def test_what_is_refused_is_told_too(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", STREAMING)
    async with running(tmp_path / "x", saying("hello")) as kernel:
        told = await kernel.say("chat", agent_id="nobody")
        assert told == "(Error: no agent has the id 'nobody')"
        assert kernel.calls("chat") == [("start", "ann"), ("end", "ann", told)]
        assert await kernel.say("chat") == "hello"


async def test_an_answer_without_words_is_still_an_answer(tmp_path: Path) -> None:
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
async def test_a_method_that_fails_costs_only_what_is_seen_meanwhile(method: str, how: str, tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", FAILING.format(method=method, how=how))
    async with running(tmp_path / "x", saying(*WORK)) as kernel:
        assert await kernel.say("chat") == "Hello Ann."
        assert kernel.calls("chat")[-1] == ("end", "ann", "Hello Ann.")


@pytest.mark.parametrize("how", HOWS.values(), ids=list(HOWS))
async def test_an_end_that_fails_falls_back_to_the_whole_text(how: str, tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", FAILING.format(method="on_stream_end", how=how))
    async with running(tmp_path / "x", saying(*WORK)) as kernel:
        assert await kernel.say("chat") == "Hello Ann."
        assert kernel.calls("chat")[-2:] == [("on_stream_end",), ("send", "ann", "Hello Ann.")]


async def test_an_answer_is_sent_again_until_the_channel_takes_it(tmp_path: Path) -> None:
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


async def test_after_a_method_hangs_nothing_more_is_tried_before_the_end(tmp_path: Path) -> None:
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


async def test_a_caller_that_leaves_gets_its_user_the_answer_all_the_same(tmp_path: Path) -> None:
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
    STREAMING
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
async def test_a_stopped_answer_ends_in_the_channels_own_way(code: str, end: Any, tmp_path: Path) -> None:
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
    from turnwire.core.follow import follow

    following = follow(kernel.turnwire.store, turn_id)
    async with asyncio.timeout(10):
        async for events in following:
            if events[-1].position >= position:
                break
    await following.aclose()


async def test_a_stop_also_ends_what_waits_and_nobody_elses(tmp_path: Path) -> None:
    puppet = Puppet()
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", puppet) as kernel:
        first = kernel.saying("chat", "one")
        await puppet.part()
        second = kernel.saying("chat", "two")
        other = kernel.saying("chat", "three", "bob")
        part = await puppet.part()
        await until(lambda: len(kernel.router._carrier.errands("chat", "ann")) == 2)
        await until(lambda: all(e.delivery.turn_id for e in kernel.router._carrier.errands("chat", "ann")))
        assert await within(kernel.extension("chat").context.cancel("ann"))
        assert await within(asyncio.gather(first, second)) == ["(Stopped.)", "(Stopped.)"]
        part.end()
        await within(other)
        assert len(puppet.parts) == 2


# Sessions


async def test_messages_of_a_user_are_one_conversation(tmp_path: Path) -> None:
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


async def test_a_long_silence_begins_a_new_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions: list[str] = []

    async def answer(turn: Turn) -> str:
        sessions.append(turn.session_id)
        return "yes"

    clock = [1_000_000]
    monkeypatch.setattr("turnwire.extensions.delivery.now_ms", lambda: clock[0])
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", answer, limits=replace(QUICK, session_timeout=60)) as kernel:
        for minutes in (0, 0.9, 0.9, 1.1, 0.5):
            clock[0] += int(minutes * 60_000)
            await kernel.say("chat")
    assert [sessions.index(one) for one in sessions] == [0, 0, 0, 3, 3]


async def test_who_asks_can_be_told_by_the_channel(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", saying("hello")) as kernel:
        await kernel.say("chat", principal="ann@example.org")
        assert len(await kernel.turnwire.store.list_turns("ann@example.org")) == 1


async def test_messages_of_one_user_are_answered_in_the_order_they_came(tmp_path: Path) -> None:
    async def answer(turn: Turn) -> str:
        return turn.message

    write_extension(tmp_path / "x", "chat", STREAMING)
    async with running(tmp_path / "x", answer) as kernel:
        texts = [str(number) for number in range(6)]
        await within(asyncio.gather(*(kernel.saying("chat", text) for text in texts)))
        calls = kernel.calls("chat")
    assert [call[2] for call in calls if call[0] == "end"] == texts
    # No answer begins before the one before it has ended.
    assert [call[0] for call in calls if call[0] in ("start", "end")] == ["start", "end"] * 6


async def test_a_message_does_not_overtake_one_that_is_slow_to_start(tmp_path: Path) -> None:
    hesitant = (
        BASE
        + """
class Main(Base):
    async def get_context(self, prompt, agent_id):
        if prompt == "one":
            self.calls.append("asked")
            await asyncio.sleep(0.05)
"""
    )
    asked: list[str] = []

    async def answer(turn: Turn) -> str:
        asked.append(turn.message)
        return turn.message

    write_extension(tmp_path / "x", "hesitant", hesitant)
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", answer) as kernel:
        first = kernel.saying("chat", "one", message_id="1")
        await until(lambda: kernel.calls("hesitant") == ["asked"])
        rest = [kernel.saying("chat", "one", message_id="1"), kernel.saying("chat", "two")]
        assert await within(asyncio.gather(first, *rest)) == ["one", "one", "two"]
    assert asked == ["one", "two"]


async def test_the_same_message_is_answered_once(tmp_path: Path) -> None:
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


async def test_a_message_id_is_its_users_own(tmp_path: Path) -> None:
    async def answer(turn: Turn) -> str:
        return f"{turn.principal} said {turn.message}"

    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", answer) as kernel:
        assert await kernel.say("chat", "a", "ann", message_id="1:2") == "chat:ann said a"
        assert await kernel.say("chat", "b", "ann:1", message_id="2") == "chat:ann:1 said b"


# On their own behalf


async def test_an_extension_asks_the_agent_itself(tmp_path: Path) -> None:
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


async def test_what_fails_is_raised_to_an_extension_that_asks_itself(tmp_path: Path) -> None:
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


async def test_a_callback_that_raises_ends_the_turn_and_is_raised(tmp_path: Path) -> None:
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


async def test_an_extension_that_gives_up_asking_stops_the_agent(tmp_path: Path) -> None:
    puppet = Puppet()
    write_extension(tmp_path / "x", "one")
    async with running(tmp_path / "x", puppet) as kernel:
        asking = asyncio.create_task(kernel.extension("one").context.invoke_agent("hello"))
        part = await puppet.part()
        asking.cancel()
        await within(part.over.wait())


async def test_extensions_speak_through_each_others_channels(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "speaker")
    write_extension(tmp_path / "x", "chat", PLAIN)
    async with running(tmp_path / "x", saying()) as kernel:
        context = kernel.extension("speaker").context
        await context.send_to_user("chat", "ann", "good morning")
        await context.send_message("chat", "to whom it may concern")
        assert kernel.calls("chat") == [("send", "ann", "good morning"), ("message", "to whom it may concern")]
        with pytest.raises(LookupError, match="there is no channel 'mail'; there is chat"):
            await context.send_message("mail", "hello")
        with pytest.raises(LookupError, match="not registered as a channel"):
            await context.handle_user_message("hello", "ann")


# The bus


@pytest.mark.parametrize("code", [PLAIN, STREAMING], ids=["whole", "streamed"])
async def test_both_ways_tell_the_bus_the_same(code: str, tmp_path: Path) -> None:
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


async def test_the_bus_is_told_of_a_message_before_the_agent_is_asked(tmp_path: Path) -> None:
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
