"""The wire itself: which version of the client it writes for, and what stands around the chunks.

The protocol has no negotiation, and a client ends the stream at the first chunk that it does not know; so the version
is an option. It is one of `start`, steps of text, reasoning, tools and data, `finish` and `[DONE]`; a turn that waits
for a person is `finish`ed too, and goes on in a message of the same id.
"""

from collections.abc import Mapping
from typing import Self

from turnwire.core.contracts import Control, Encoder
from turnwire.wires.ai_sdk.encoder import ChatEncoder

VERSIONS = (5, 6, 7)


class AiSdk:
    name = "ai_sdk"
    media_type = "text/event-stream"
    keeps_state = True
    heartbeat = b": keep-alive\n\n"
    opening = b": stream-open\n\n"

    def __init__(self, sdk_version: int = 6) -> None:
        """Raises ValueError."""
        if sdk_version not in VERSIONS:
            raise ValueError("sdk_version: 5, 6 or 7")
        self.sdk_version = sdk_version
        self.key = f"ai_sdk?sdk_version={sdk_version}"

    @classmethod
    def of_query(cls, query: Mapping[str, str], default: int = 6) -> Self:
        """Raises ValueError."""
        told = query.get("sdk_version", str(default))
        return cls(int(told) if told.isascii() and told.isdecimal() and len(told) == 1 else 0)

    def encoder(self) -> Encoder:
        return ChatEncoder(self.sdk_version)

    def control(self, control: Control) -> None:
        """The protocol has no words for it: the connection is broken, and the client comes back for a replay."""
