"""The design "Streaming response delivery via dual-path agent invocation"."""

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from tests.extensions.harness import BASE, LIMITS, LISTENER, PLAIN, STREAMING, running, write_extension
from tests.serving import Puppet, saying, until, within
from turnwire import AgentError, channels
from turnwire.core.log.codec import now_ms
from turnwire.core.log.events import ToolCallEvent, ToolResultEvent
from turnwire.core.log.follow import follow
from turnwire.extensions.contract import (
    ChannelProvider,
    ContextProvider,
    ExtensionContext,
    ServiceProvider,
    StreamingChannelProvider,
    ToolProvider,
)
from turnwire.extensions.loader import Loader
from turnwire.extensions.router import MessageRouter
from turnwire.server.messages import MessageBody
from turnwire.tools import Tool

WEATHER = (
    "It is ",
    ToolCallEvent("c1", "weather", {}),
    ToolResultEvent("c1", "weather", True, "sunny"),
    "sunny.",
)
FOLDER = Path(channels.__file__).parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_extension(tmp_path / "x", "plain", PLAIN)
    write_extension(tmp_path / "x", "live", STREAMING)
    return tmp_path / "x"


# 1 and 2: the protocol


def test_streaming_channel_is_a_runtime_checkable_protocol_with_four_methods() -> None:
    """Decision, 2."""
    methods = ("on_stream_start", "on_stream_chunk", "on_stream_status", "on_stream_end")
    for name in methods:
        assert inspect.iscoroutinefunction(getattr(StreamingChannelProvider, name))
    parameters = {name: list(inspect.signature(getattr(StreamingChannelProvider, name)).parameters) for name in methods}
    assert parameters == {
        "on_stream_start": ["self", "user_id"],
        "on_stream_chunk": ["self", "user_id", "chunk"],
        "on_stream_status": ["self", "user_id", "status"],
        "on_stream_end": ["self", "user_id", "full_text"],
    }
    assert not isinstance(object(), StreamingChannelProvider)


async def test_protocol_and_not_the_manifest_decides_the_path(folder: Path) -> None:
    """Decision, 1: detection by `isinstance`."""
    async with running(folder, saying("Hi.")) as kernel:
        assert isinstance(kernel.extension("live"), StreamingChannelProvider)
        assert not isinstance(kernel.extension("plain"), StreamingChannelProvider)
        assert isinstance(kernel.extension("plain"), ChannelProvider)


def test_abilities_of_extensions_are_runtime_checkable_protocols() -> None:
    """Decision, 1: the pattern that streaming follows, and its names."""
    for protocol in (ChannelProvider, ToolProvider, ServiceProvider, ContextProvider):
        assert not isinstance(object(), protocol)
    assert list(inspect.signature(ChannelProvider.send_to_user).parameters) == ["self", "user_id", "message"]


async def test_streaming_channel_is_called_from_start_to_end(folder: Path) -> None:
    """Decision, 2 and 3: the life cycle."""
    async with running(folder, saying(*WEATHER)) as kernel:
        assert await kernel.say("live") == "It is sunny."
        calls = kernel.calls("live")
    assert calls[0] == ("start", "ann")
    assert "".join(call[2] for call in calls if call[0] == "chunk") == "It is sunny."
    assert ("status", "ann", "Using: weather") in calls
    assert calls[-1] == ("end", "ann", "It is sunny.")


async def test_channel_without_the_protocol_gets_the_complete_answer(folder: Path) -> None:
    """Design constraints: backward compatibility."""
    async with running(folder, saying(*WEATHER)) as kernel:
        await kernel.say("plain")
        assert kernel.calls("plain") == [("send", "ann", "It is sunny.")]


async def test_chunk_is_delivered_while_the_agent_works(folder: Path) -> None:
    """Context: incremental delivery."""
    puppet = Puppet()
    async with running(folder, puppet) as kernel:
        saying_hello = kernel.saying("live")
        part = await puppet.part()
        part.say("It is ")
        await until(lambda: bool(kernel.calls("live", "chunk")))
        assert not part.over.is_set()
        part.end()
        await within(saying_hello)


# 3: callbacks


def test_router_invokes_the_agent_with_callbacks() -> None:
    """Decision, 3: the API."""
    assert inspect.iscoroutinefunction(MessageRouter.invoke_agent_streamed)
    parameters = inspect.signature(MessageRouter.invoke_agent_streamed).parameters
    assert list(parameters)[:5] == ["self", "prompt", "on_chunk", "on_tool_call", "agent_id"]
    assert parameters["on_tool_call"].default is parameters["agent_id"].default is None


@pytest.mark.parametrize("channel", ["plain", "live"])
async def test_router_handles_a_user_message_by_the_path_of_its_channel(folder: Path, channel: str) -> None:
    """Decision, 3: `handle_user_message`."""
    async with running(folder, saying(*WEATHER)) as kernel:
        assert await within(kernel.router.handle_user_message("How is it?", "ann", channel)) == "It is sunny."
        kinds = [call[0] for call in kernel.calls(channel)]
    assert kinds == ["send"] if channel == "plain" else (kinds[0], kinds[-1]) == ("start", "end")


async def test_callbacks_get_chunks_and_tool_names_and_the_text_is_returned(folder: Path) -> None:
    """Decision, 3: `on_chunk`, `on_tool_call` and the return value."""
    chunks: list[str] = []
    tools: list[str] = []

    async def on_chunk(chunk: str) -> None:
        chunks.append(chunk)

    async def on_tool_call(name: str) -> None:
        tools.append(name)

    async with running(folder, saying(*WEATHER)) as kernel:
        answer = await within(kernel.router.invoke_agent_streamed("How is it?", on_chunk, on_tool_call))
    assert (answer, "".join(chunks), tools) == ("It is sunny.", "It is sunny.", ["weather"])


async def test_invocations_of_one_owner_do_not_interleave(folder: Path) -> None:
    """Design constraints and decision, 3: one answer at a time, for the whole duration of the stream."""
    puppet = Puppet()

    async def ignore(_: str) -> None: ...

    async with running(folder, puppet) as kernel:
        context: ExtensionContext = kernel.extension("plain").context
        first = asyncio.create_task(context.invoke_agent_streamed("One", ignore))
        part = await puppet.part()
        second = asyncio.create_task(context.invoke_agent("Two"))
        part.say("one")
        await asyncio.wait([first, second], timeout=0.05)
        assert [part.turn.message for part in puppet.parts] == ["One"]
        part.end()
        assert await within(first) == "one"
        later = await puppet.part()
        later.say("two")
        later.end()
        assert await within(second) == "two"


async def test_caller_that_leaves_frees_the_next_one(folder: Path) -> None:
    """Decision, 3: no caller can keep the lock."""
    puppet = Puppet()
    async with running(folder, puppet) as kernel:
        context: ExtensionContext = kernel.extension("plain").context
        first = asyncio.create_task(context.invoke_agent("One"))
        part = await puppet.part()
        first.cancel()
        await within(part.over.wait())
        second = asyncio.create_task(context.invoke_agent("Two"))
        later = await puppet.part()
        later.end()
        assert await within(second) == ""


@pytest.mark.parametrize("channel", ["plain", "live"])
async def test_without_an_agent_the_reply_says_so(folder: Path, channel: str) -> None:
    """Decision, 3: no agent is configured."""
    async with running(folder, saying("never")) as kernel:
        kernel.turnwire.agents.clear()
        assert await kernel.say(channel) == "(No agent configured.)"
        assert kernel.calls(channel)[-1][-1] == "(No agent configured.)"
        assert await kernel.router.invoke_agent("Hello") == "(No agent configured.)"


CONTEXT = (
    BASE
    + """
class Main(Base):
    async def get_context(self, prompt, agent_id):
        return f"(about {prompt})"
"""
)


async def echo(turn: Any) -> Any:
    yield turn.message


async def test_invoke_middleware_runs_for_every_turn(folder: Path) -> None:
    """Decision, 3: the middleware, for messages, invocations and turns over HTTP."""
    write_extension(folder, "context", CONTEXT)
    async with running(folder, echo) as kernel:
        expected = "(about hello)\n\nhello"
        assert await kernel.say("plain") == expected
        assert await kernel.router.invoke_agent("hello") == expected
        assert await over_http(kernel) == expected


async def test_invoke_middleware_can_be_limited_to_extensions(folder: Path) -> None:
    """Decision, 3: the middleware, limited by a setting."""
    write_extension(folder, "context", CONTEXT)
    async with running(folder, echo, limits=replace(LIMITS, extension_context="extensions")) as kernel:
        assert await kernel.say("plain") == "(about hello)\n\nhello"
        assert await over_http(kernel) == "hello"


async def over_http(kernel: Any) -> str:
    accepted = await kernel.turnwire.start("ann", MessageBody.model_validate({"message": "hello"}))
    return (await kernel.turnwire.state(await ended(kernel, accepted.record.id))).text


async def ended(kernel: Any, turn_id: str) -> Any:
    async for _ in follow(kernel.turnwire.store, turn_id):
        pass
    return await kernel.turnwire.store.find_turn("ann", turn_id)


async def test_silence_rotates_the_session(folder: Path) -> None:
    """Decision, 3: session rotation."""

    async def count(turn: Any) -> Any:
        yield str(len(turn.history))

    async with running(folder, count, limits=replace(LIMITS, session_timeout=0.001)) as kernel:
        await kernel.say("plain")
        written_at = now_ms()
        await until(lambda: now_ms() > written_at + 1)  # The journal has the time of the machine.
        assert await kernel.say("plain") == "0"
    async with running(folder, count, data=folder.parent / "other") as kernel:
        assert [await kernel.say("plain"), await kernel.say("plain")] == ["0", "2"]
        await kernel.extension("plain").context.new_session("ann")
        assert await kernel.say("plain") == "0"


# 4 and 5: loader and context


def test_loader_detects_and_wires_all() -> None:
    """Decision, 4."""
    assert callable(Loader.detect_and_wire_all)


async def test_wiring_needs_no_registration(folder: Path) -> None:
    """Decision, 4: abilities are detected, and one that cannot be used fails alone."""
    broken = BASE + "class Main(Base):\n    def get_tools(self):\n        raise RuntimeError('no')\n"
    write_extension(folder, "broken", broken)
    async with running(folder, saying("Hi.")) as kernel:
        assert kernel.states() == {"plain": "running", "live": "running", "broken": "failed"}
        assert "streaming_channel" in kernel["live"].provides


def test_context_has_the_methods_of_the_design() -> None:
    """Decision, 5 and 6: what an extension calls."""
    streamed = inspect.signature(ExtensionContext.invoke_agent_streamed).parameters
    assert list(streamed)[:4] == ["self", "prompt", "on_chunk", "on_tool_call"]
    assert streamed["on_tool_call"].default is None
    assert list(inspect.signature(ExtensionContext.invoke_agent).parameters)[:2] == ["self", "prompt"]
    assert callable(ExtensionContext.get_config)
    assert isinstance(inspect.getattr_static(ExtensionContext, "logger"), property)


async def test_service_invokes_the_agent_with_streaming(folder: Path) -> None:
    """Decision, 5: extensions that speak on their own."""
    code = (
        BASE
        + """
class Main(Base):
    async def run_background(self):
        chunks = []
        async def on_chunk(chunk):
            chunks.append(chunk)
        answer = await self.context.invoke_agent_streamed("Good morning?", on_chunk)
        await self.context.send_to_user("plain", "ann", answer)
        self.calls.append(("chunks", "".join(chunks)))
"""
    )
    write_extension(folder, "heartbeat", code)
    async with running(folder, saying("Good ", "morning.")) as kernel:
        await until(lambda: bool(kernel.calls("heartbeat")))
        assert kernel.calls("heartbeat") == [("chunks", "Good morning.")]
        assert kernel.calls("plain") == [("send", "ann", "Good morning.")]


# 6: configuration


async def test_streaming_enabled_false_falls_back_to_one_message(tmp_path: Path) -> None:
    """Decision, 6: `streaming_enabled`."""
    write_extension(tmp_path / "x", "live", STREAMING, config={"streaming_enabled": False})
    async with running(tmp_path / "x", saying(*WEATHER)) as kernel:
        await kernel.say("live")
        assert kernel.calls("live") == [("send", "ann", "It is sunny.")]


def test_manifests_have_the_configuration_of_the_design() -> None:
    """Decision, 6: the keys; the intervals of Telegram differ, see ADR 0013."""
    console, telegram = (
        yaml.safe_load((FOLDER / name / "manifest.yaml").read_text())["config"] for name in ("console", "telegram")
    )
    assert console["streaming_enabled"] is True
    assert telegram["streaming_enabled"] is True
    assert telegram["polling_timeout"] == 30
    assert {"stream_edit_interval_ms", "stream_min_chunk_chars"} <= telegram.keys()


@pytest.mark.parametrize("name", ["console", "telegram"])
def test_both_channels_stream(name: str) -> None:
    """Decision, 7."""
    manifest = yaml.safe_load((FOLDER / name / "manifest.yaml").read_text())
    assert {"channel", "streaming_channel"} <= set(manifest["provides"])


# 8: events


@pytest.mark.parametrize("channel", ["plain", "live"])
async def test_bus_gets_the_same_events_on_both_paths(folder: Path, channel: str) -> None:
    """Decision, 8: `user_message` and `agent_response`, and nothing else."""
    write_extension(folder, "listener", LISTENER)
    async with running(folder, saying(*WEATHER)) as kernel:
        await kernel.say(channel)
        await until(lambda: len(kernel.calls("listener")) == 2)
        (first, message), (second, response) = kernel.calls("listener")
    assert (first, second) == ("user_message", "agent_response")
    assert {"text", "user_id", "channel_id"} <= message.keys()
    assert {"text", "user_id", "channel", "session_id", "agent_id"} <= response.keys()
    assert (message["text"], response["text"]) == ("hello", "It is sunny.")


# 9: errors


async def test_error_in_the_middle_ends_with_the_partial_text_and_the_error(folder: Path) -> None:
    """Decision, 9: an error of the model."""

    async def failing(turn: Any) -> Any:
        yield "It is "
        raise AgentError("The model is away.")

    async with running(folder, failing) as kernel:
        await kernel.say("live")
        assert kernel.calls("live")[-1] == ("end", "ann", "It is \n\n(Error: The model is away.)")


async def test_error_of_the_channel_does_not_end_the_answer(tmp_path: Path) -> None:
    """Decision, 9: an error of the channel, and the fallback to `send_to_user`."""
    code = STREAMING.replace('self.calls.append(("chunk", user_id, chunk))', 'raise OSError("away")').replace(
        'self.calls.append(("end", user_id, full_text))', 'raise OSError("away")'
    )
    write_extension(tmp_path / "x", "live", code)
    async with running(tmp_path / "x", saying(*WEATHER)) as kernel:
        assert await kernel.say("live") == "It is sunny."
        assert kernel.calls("live")[-1] == ("send", "ann", "It is sunny.")


async def test_limit_of_steps_is_reported_at_the_end(folder: Path) -> None:
    """Decision, 9: limits and guardrails that are raised at the end of a stream."""

    async def failing(turn: Any) -> Any:
        yield "Half"
        raise AgentError("Too many steps.", code="max_turns")

    async with running(folder, failing) as kernel:
        await kernel.say("live")
        assert kernel.calls("live")[-1] == ("end", "ann", "Half\n\n(Error: Too many steps.)")


# Consequences


def test_contract_imports_no_sdk() -> None:
    """Consequences: channels never see types of an SDK."""
    source = Path(inspect.getfile(StreamingChannelProvider)).read_text()
    assert "import agents" not in source
    assert "openai" not in source
    assert Tool.__module__.startswith("turnwire.")


async def test_streams_of_two_users_are_kept_apart(folder: Path) -> None:
    """Consequences: state is kept by user."""
    puppet = Puppet()
    async with running(folder, puppet) as kernel:
        both = [kernel.saying("live", user_id=user) for user in ("ann", "bob")]
        parts = [await puppet.part(), await puppet.part()]
        for part in parts:
            part.say("Hi ", part.turn.principal)
            part.end()
        assert sorted(await within(asyncio.gather(*both))) == ["Hi live:ann", "Hi live:bob"]
        for user in ("ann", "bob"):
            assert ("end", user, f"Hi live:{user}") in kernel.calls("live")
