"""Detection of what an extension provides, and its reports of near misses."""

from typing import Any
from unittest.mock import MagicMock

import pytest

from turnwire.extensions.contract import Health, StreamStep
from turnwire.extensions.host import check_extension, check_provides, detect
from turnwire.extensions.manifest import PROTOCOLS


class Bare:
    async def initialize(self, context: Any) -> None: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def destroy(self) -> None: ...
    async def health_check(self) -> Health:
        return Health("running")


class Plain(Bare):
    async def send_to_user(self, user_id: str, message: str) -> None: ...
    async def send_message(self, message: str) -> None: ...


class Streaming(Plain):
    async def on_stream_start(self, _user_id: str) -> None: ...
    async def on_stream_chunk(self, _user_id: str, piece: str) -> None: ...
    async def on_stream_status(self, who: str, line: str) -> None: ...
    async def on_stream_end(self, who: str, whole: str, *more: Any) -> None: ...


class Everything(Streaming):
    async def on_stream_cancel(self, user_id: str, full_text: str) -> None: ...
    async def on_stream_restart(self, user_id: str, text: str) -> None: ...
    async def on_stream_step(self, user_id: str, step: StreamStep) -> None: ...
    async def on_approval_request(self, user_id: str, ask: Any) -> None: ...
    async def on_question(self, user_id: str, ask: Any) -> None: ...
    async def on_question_closed(self, user_id: str, ask: Any) -> None: ...
    async def wait_for_delivery(self, user_id: str) -> None: ...
    def get_tools(self) -> list[Any]:
        return []

    async def run_background(self) -> None: ...
    async def get_context(self, prompt: str, agent_id: str | None) -> None: ...
    def get_agents(self) -> dict[str, Any]:
        return {}


def test_detect_returns_the_protocols_that_a_class_fits() -> None:
    assert not check_extension(Bare)
    assert detect(Bare).provides == frozenset()
    assert detect(Plain).provides == {"channel"}
    assert detect(Streaming).provides == {"channel", "streaming_channel"}
    assert detect(Everything).provides == set(PROTOCOLS)
    assert not any(detect(cls).problems for cls in (Bare, Plain, Streaming, Everything))


def test_detect_ignores_parameter_names() -> None:
    assert "streaming_channel" in detect(Streaming).provides


def test_missing_method_of_a_protocol_is_reported() -> None:
    class Almost(Plain):
        async def on_stream_start(self, user_id: str) -> None: ...
        async def on_stream_chunk(self, user_id: str, chunk: str) -> None: ...
        async def on_stream_end(self, user_id: str, full_text: str) -> None: ...

    detected = detect(Almost)
    assert detected.provides == {"channel"}
    assert detected.problems == (
        "3 of 4 methods of StreamingChannelProvider; `on_stream_status` is missing, so it is not used as one",
    )


def test_method_that_is_not_async_is_reported() -> None:
    class Blocking(Streaming):
        def on_stream_chunk(self, user_id: str, chunk: str) -> None: ...  # type: ignore[override]

    detected = detect(Blocking)
    assert detected.provides == {"channel"}
    assert "`on_stream_chunk` of StreamingChannelProvider is not `async def`" in detected.problems[0]


def test_method_with_other_arguments_is_reported() -> None:
    class Short(Plain):
        async def send_to_user(self, message: str) -> None: ...  # type: ignore[override]

    detected = detect(Short)
    assert detected.provides == frozenset()
    assert "`send_to_user` of ChannelProvider cannot be called with (user_id, message)" in detected.problems[0]


def test_property_in_place_of_a_method_is_reported_and_not_run() -> None:
    class Sly(Bare):
        @property
        def get_tools(self) -> Any:
            raise AssertionError("a property was evaluated")

    assert "`get_tools` of ToolProvider is not a method" in detect(Sly).problems[0]


def test_class_with_getattr_provides_nothing() -> None:
    class Mocking(Bare):
        def __getattr__(self, name: str) -> Any:
            return MagicMock()

    assert detect(Mocking).provides == frozenset()


def test_misspelt_method_is_reported() -> None:
    class Misspelt(Streaming):
        async def on_stream_cancelled(self, user_id: str, full_text: str) -> None: ...

    assert detect(Misspelt).problems == ("nobody calls `on_stream_cancelled`; is it meant to be `on_stream_cancel`?",)


def test_streaming_channel_without_channel_is_not_used() -> None:
    class Homeless(Bare):
        on_stream_start = Streaming.on_stream_start
        on_stream_chunk = Streaming.on_stream_chunk
        on_stream_status = Streaming.on_stream_status
        on_stream_end = Streaming.on_stream_end

    detected = detect(Homeless)
    assert detected.provides == frozenset()
    assert detected.problems == ("StreamingChannelProvider without ChannelProvider, so it is not used",)


def test_class_without_a_lifecycle_method_is_no_extension() -> None:
    class Half:
        async def initialize(self, context: Any) -> None: ...
        async def start(self) -> None: ...

    assert check_extension(Half) == ["Half is no extension: `stop`, `destroy`, `health_check` are missing"]


@pytest.mark.parametrize(("declared", "is_true"), [((), True), (("channel",), True), (("streaming_channel",), False)])
def test_provides_of_the_manifest_is_checked_against_the_class(declared: tuple[str, ...], is_true: bool) -> None:
    assert (check_provides(declared, detect(Plain)) is None) is is_true


def test_false_provides_names_the_missing_methods() -> None:
    class Almost(Plain):
        async def on_stream_start(self, user_id: str) -> None: ...

    problem = check_provides(("streaming_channel",), detect(Almost))
    assert problem is not None
    assert "1 of 4 methods of StreamingChannelProvider" in problem


def test_protocols_have_exactly_their_released_methods() -> None:
    """A protocol with another method would exclude every extension that was written before."""
    assert {name: sorted(n for n in vars(p) if not n.startswith("_")) for name, p in PROTOCOLS.items()} == {
        "channel": ["send_message", "send_to_user"],
        "streaming_channel": ["on_stream_chunk", "on_stream_end", "on_stream_start", "on_stream_status"],
        "cancellable_channel": ["on_stream_cancel"],
        "restartable_channel": ["on_stream_restart"],
        "step_channel": ["on_stream_step"],
        "approval_channel": ["on_approval_request"],
        "question_channel": ["on_question", "on_question_closed"],
        "buffered_channel": ["wait_for_delivery"],
        "tools": ["get_tools"],
        "service": ["run_background"],
        "context": ["get_context"],
        "agents": ["get_agents"],
    }
