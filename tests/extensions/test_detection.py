"""Detection of what an extension provides, with `isinstance`."""

from typing import Any

import pytest

from turnwire.extensions.contract import PROTOCOLS, Channel, ChannelProvider, Extension, StreamingChannel
from turnwire.extensions.host import detect


class Plain(Channel):
    async def send_to_user(self, user_id: str, message: str) -> None: ...


class Everything(Plain, StreamingChannel):
    def get_tools(self) -> list[Any]:
        return []

    async def run_background(self) -> None: ...
    async def get_context(self, prompt: str, agent_id: str | None) -> None: ...
    def get_agents(self) -> dict[str, Any]:
        return {}


def test_detect_returns_the_protocols_that_a_class_fits() -> None:
    assert detect(Plain) == {"channel"}
    assert detect(Everything) == set(PROTOCOLS)
    assert isinstance(Plain(), Extension)
    assert isinstance(Plain(), ChannelProvider)


def test_channel_without_send_to_user_cannot_be_created() -> None:
    with pytest.raises(TypeError, match="send_to_user"):
        StreamingChannel()  # type: ignore[abstract]


def test_protocols_have_exactly_their_released_methods() -> None:
    """A protocol with another method would exclude every extension that was written before."""
    assert {name: sorted(n for n in vars(p) if not n.startswith("_")) for name, p in PROTOCOLS.items()} == {
        "channel": ["send_message", "send_to_user"],
        "streaming_channel": ["on_stream_chunk", "on_stream_end", "on_stream_start", "on_stream_status"],
        "tools": ["get_tools"],
        "service": ["run_background"],
        "context": ["get_context"],
        "agents": ["get_agents"],
    }
