"""What a language model is to the rest of Turnwire: messages in, pieces out, never a silent half.

An adapter speaks to one kind of server. It yields what arrives when it arrives, ends normally only
when the model said that it was finished, and raises `ModelError` in every other case.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from msgspec import Struct

from turnwire.core.events import ReasoningEvent, UsageEvent
from turnwire.core.turns import Message


class ToolSpec(Struct, frozen=True):
    """A tool that the model may call; `parameters` is a JSON schema of its arguments."""

    name: str
    description: str
    parameters: dict[str, Any]


class ToolWish(Struct, frozen=True):
    """The model wants a tool to be called. `arguments` is its own text: it should be JSON, and may not be."""

    call_id: str
    tool: str
    arguments: str


Piece = str | ReasoningEvent | ToolWish | UsageEvent
"""A `str` is a piece of the model's text. A `ToolWish` comes whole, in the order the model wrote them."""


class Model(Protocol):
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
        """One answer of the model. With `schema`, its text is JSON of that form, where the server can do that.

        Closing the generator closes the connection to the server. Raises ModelError; a stream that ends
        without a finish reason, or because it grew too long, raises it too.
        """
        ...

    async def close(self) -> None: ...
