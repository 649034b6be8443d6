"""How a conversation that has grown too long is made to fit: at the borders of its turns, never inside one.

The log is not touched by any of this: it is about what an agent is given of it. Lengths are estimates, since every
model counts in its own way.
"""

import re
from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec.structs import replace

from turnwire.core.contracts import TurnStore
from turnwire.core.emit import emit
from turnwire.core.events import StatusEvent
from turnwire.core.sessions import transcript
from turnwire.core.turns import Message, TurnRecord, TurnState

Exchange = tuple[Message, ...]
"""What one turn adds to a conversation: a message, tool calls with their results, an answer."""

LEFT_OUT = "This conversation has grown long: its earliest messages are no longer given to the agent."

_CHARACTERS_A_TOKEN = 4
_MESSAGE_TOKENS = 4  # What a provider adds around each message.
_SHORTENED = " … [shortened]"
# Scripts in which a character is about a token: Chinese, Japanese, Korean, and their full-width forms.
_DENSE = re.compile("[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")


def estimate(text: str) -> int:
    """About how many tokens a text is."""
    dense = 0 if text.isascii() else len(_DENSE.findall(text))
    return dense + -(-(len(text) - dense) // _CHARACTERS_A_TOKEN)


def size(messages: Iterable[Message]) -> int:
    """About how many tokens some messages are together."""
    return sum(
        _MESSAGE_TOKENS
        + estimate(message.content)
        + sum(estimate(call.tool) + estimate(arguments(call.args)) for call in message.tool_calls)
        for message in messages
    )


def arguments(args: object) -> str:
    return msgspec.json.encode(args).decode()


def exchanges(states: Iterable[TurnState]) -> list[Exchange]:
    return [transcript([state]) for state in states]


def trim(turns: Sequence[Exchange], limit: int) -> list[Exchange]:
    """The newest turns that fit into the limit together, whole. A limit of 0 is none.

    The newest one stays in any case: if it is too long by itself, its tool results are shortened, no more than needed.
    """
    if not limit:
        return list(turns)
    left, start = limit, len(turns)
    while start > 0 and (tokens := size(turns[start - 1])) <= left:
        left, start = left - tokens, start - 1
    if start == len(turns) and turns:
        return [fit(turns[-1], limit, lambda message: message.role == "tool")]
    return list(turns[start:])


def fit(messages: Exchange, limit: int, may_shorten: Callable[[Message], bool]) -> Exchange:
    """The messages, those of them that may be shortened cut to one length, the largest that fits into the limit."""
    if size(messages) <= limit:
        return messages
    low, high = 0, max((len(message.content) for message in messages), default=0)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if size(_cut(messages, middle, may_shorten)) <= limit else (low, middle - 1)
    return _cut(messages, low, may_shorten)


def _cut(messages: Exchange, length: int, may_shorten: Callable[[Message], bool]) -> Exchange:
    return tuple(
        replace(message, content=clip(message.content, length)) if may_shorten(message) else message
        for message in messages
    )


def clip(text: str, length: int) -> str:
    """The start of a text, marked as such where that makes it shorter."""
    return text if len(text) <= length + len(_SHORTENED) else text[:length] + _SHORTENED


class TrimmedHistory:
    """Leaves out the oldest turns of a conversation that is too long."""

    def __init__(self, store: TurnStore, turns: int, tokens: int) -> None:
        self._store = store
        self._turns = turns
        self._tokens = tokens

    async def recall(self, record: TurnRecord) -> tuple[Message, ...]:
        if not self._turns:
            return ()
        # Two more than are given: whether some are left out, and whether that was so in the turn before.
        known = exchanges(await self._store.history(record.id, self._turns + 2))
        kept = self._window(known)
        if len(kept) < len(known) and len(self._window(known[:-1])) == len(known) - 1:
            emit(StatusEvent(LEFT_OUT))
        return tuple(message for turn in kept for message in turn)

    def _window(self, turns: Sequence[Exchange]) -> list[Exchange]:
        return trim(turns[-self._turns :], self._tokens)

    async def close(self) -> None:
        pass
