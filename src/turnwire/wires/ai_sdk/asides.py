"""What sub-agents say: shown as it comes, kept in one piece, and never a part of the answer."""

from msgspec import Struct

from turnwire.core.events import ReasoningEvent, TokenEvent
from turnwire.wires.ai_sdk.chunks import chunk


class _Aside(Struct):
    part_id: str
    pieces: list[str]


class Asides:
    """Each piece is a transient `data-agent-delta`; when somebody else goes on, the whole is a `data-agent`.

    To repeat the whole with every piece would cost the square of its length.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[tuple[str, ...], str], _Aside] = {}

    def say(self, event: TokenEvent | ReasoningEvent, position: int) -> bytes:
        kind = "text" if isinstance(event, TokenEvent) else "reasoning"
        aside = self._open.setdefault((event.agent_path, kind), _Aside(f"agent-{position}", []))
        aside.pieces.append(event.content)
        told = {"agent_path": event.agent_path, "kind": kind, "delta": event.content}
        return chunk("data-agent-delta", {"data": told, "transient": True})

    def close(self) -> bytes:
        if not self._open:
            return b""
        ended, self._open = self._open, {}
        return b"".join(
            chunk(
                "data-agent",
                {
                    "id": aside.part_id,
                    "data": {"agent_path": path, "kind": kind, "text": "".join(aside.pieces)},
                },
            )
            for (path, kind), aside in ended.items()
        )
