"""What is being said: one message, or one piece of thinking, at a time for each agent.

Agents that work at the same time may speak at the same time; each has a message of its own.
"""

from msgspec import Struct

from turnwire.core.encoding import ascii_json
from turnwire.wires.ag_ui.frames import Told, told

Path = tuple[str, ...]


class _Spoken(Struct, frozen=True):
    message_id: str
    agent: str | None
    thinks: bool

    def begin(self) -> Told:
        of = {"messageId": self.message_id, "subagentRunId": self.agent}
        if not self.thinks:
            return [told("TEXT_MESSAGE_START", **of, role="assistant")]
        return [told("REASONING_START", **of), told("REASONING_MESSAGE_START", **of, role="reasoning")]

    def end(self) -> Told:
        of = {"messageId": self.message_id, "subagentRunId": self.agent}
        if not self.thinks:
            return [told("TEXT_MESSAGE_END", **of)]
        return [told("REASONING_MESSAGE_END", **of), told("REASONING_END", **of)]

    @property
    def prefix(self) -> bytes:
        """A piece of it, up to the text: nearly every event is one, so it is not made anew each time."""
        kind = "REASONING_MESSAGE_CONTENT" if self.thinks else "TEXT_MESSAGE_CONTENT"
        return told(kind, messageId=self.message_id, subagentRunId=self.agent)[:-1] + b',"delta":'


class Voices:
    def __init__(self) -> None:
        self.answering = b""
        """How the next piece of the answer begins, while it is being written."""
        self._open: dict[Path, _Spoken] = {}
        self._prefixes: dict[Path, bytes] = {}

    def prefix(self, path: Path, *, thinks: bool) -> bytes | None:
        """How the next piece of what this agent is saying begins; None if it is not saying this."""
        spoken = self._open.get(path)
        return self._prefixes[path] if spoken is not None and spoken.thinks is thinks else None

    def begin(self, path: Path, message_id: str, agent: str | None, *, thinks: bool) -> Told:
        ended = self.end(path)
        spoken = self._open[path] = _Spoken(message_id, agent, thinks)
        self._prefixes[path] = spoken.prefix
        if not path and not thinks:
            self.answering = spoken.prefix
        return ended + spoken.begin()

    def say(self, path: Path, content: str, *, thinks: bool) -> bytes:
        return (self.prefix(path, thinks=thinks) or b"") + ascii_json(content) + b"}"

    def end(self, path: Path) -> Told:
        """Something else comes from this agent."""
        spoken = self._open.pop(path, None)
        if not path:
            self.answering = b""
        return [] if spoken is None else spoken.end()

    def ended(self) -> Told:
        """The ends of all that is open. Asking changes nothing."""
        return [event for spoken in self._open.values() for event in spoken.end()]

    def forget(self) -> None:
        self._open.clear()
        self.answering = b""
