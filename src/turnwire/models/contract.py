"""The model interface: messages in, a stream of pieces out, never a silent partial answer.

An implementation yields each piece when it arrives. Its stream ends normally only if the model has completed its
answer, and raises `ModelError` in every other case.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from msgspec import Struct

from turnwire.core.log.events import ReasoningEvent, UsageEvent
from turnwire.core.log.turns import Message


class ToolSpec(Struct, frozen=True):
    """A tool that the model may call; `parameters` is a JSON schema of its arguments."""

    name: str
    description: str
    parameters: dict[str, Any]


class ToolCallRequest(Struct, frozen=True):
    """A tool call of the model. `arguments` is the text that it wrote, which should be JSON but may not be."""

    call_id: str
    tool: str
    arguments: str


Piece = str | ReasoningEvent | ToolCallRequest | UsageEvent
"""A part of an answer. A `str` is text; tool calls come complete, in the order in which the model wrote them."""


class Model(Protocol):
    """A language model behind a server."""

    @property
    def name(self) -> str: ...

    def stream(
        self,
        instructions: str,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        schema: dict[str, Any] | None = None,
    ) -> AsyncGenerator[Piece]:
        """Stream one answer. With `schema` its text is JSON of that schema, if the server supports it.

        Closing the generator closes the connection. Raise ModelError, also for an answer that ends without a finish
        reason or because it is too long.
        """
        ...

    async def close(self) -> None: ...
