"""`openai_responses`: a turn as OpenAI's Responses API streams it, and as the Open Responses specification says.

Every frame but the last has its index as `sequence_number`, and the same log always gives the same frames, so a client
goes on after any of them. The last is `[DONE]`. What the protocol has no event for goes out in a `keepalive`,
which every client of OpenAI's takes for a sign of life.

A turn that waits for a person ends its response with a request for approval, and goes on in another one: the
`segment` says which of them is told. So a turn has as many responses as it has waited times, and one more.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from turnwire.core.contracts import Control
from turnwire.core.encoding import ascii_json
from turnwire.wires.openai_responses.encoder import ResponsesEncoder
from turnwire.wires.openai_responses.resource import ECHOED, parse_response_id, response_id

__all__ = ["ECHOED", "OpenAIResponses", "parse_response_id", "response_id"]


class OpenAIResponses:
    """`echo` is what the client asked for and is told again; see `ECHOED`."""

    name = "openai_responses"
    media_type = "text/event-stream; charset=utf-8"
    keeps_state = True
    # With one line feed: an empty line would be an event without data, on which a client of OpenAI's may fail.
    heartbeat = b": hb\n"
    opening = b""

    def __init__(self, echo: Mapping[str, Any] | None = None, segment: int = 1) -> None:
        if segment < 1:
            raise ValueError("segment: the first is 1")
        self.segment = segment
        self._echo = {name: value for name, value in (echo or {}).items() if name in ECHOED}
        told = ascii_json([segment, self._echo])
        self.key = f"{self.name}?{hashlib.sha256(told).hexdigest()}" if self._echo or segment > 1 else self.name

    def encoder(self) -> ResponsesEncoder:
        return ResponsesEncoder(self._echo, self.segment)

    def control(self, control: Control) -> None:
        """There are no words for it: a reader is refused before the first byte, or the connection is broken."""
