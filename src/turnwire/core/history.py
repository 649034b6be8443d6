"""The history of a turn: the transcript of the turns before it, trimmed to a number of tokens.

The transcript is made for a model provider: every tool call has a result and every message an answer, whatever happened
to the turn. The results and notes that complete it are never written to a log. Trimming removes whole turns.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise, zip_longest
from operator import attrgetter
from typing import Protocol

import msgspec
from msgspec.structs import replace

from turnwire.core.emit import emit
from turnwire.core.events import StatusEvent
from turnwire.core.turns import Message, Step, ToolRequest, TurnRecord, TurnState

PARAGRAPH = "\n\n"
"""What agents write between two replies of their model in one answer, such as before and after a tool call."""
_NOTES = {
    "cancelled": "[The user stopped this answer before it was complete.]",
    "failed": "[This answer failed before it was complete.]",
    "interrupted": "[The server stopped before this answer was complete.]",
}
_CONTINUED = "[The user continued the conversation from here.]"


def transcript(states: Iterable[TurnState]) -> tuple[Message, ...]:
    """Return the conversation of some ended turns."""
    return tuple(message for state in states for message in _turn_messages(state))


def _turn_messages(state: TurnState) -> Iterator[Message]:
    yield from earlier_messages(state)
    message, start, steps = list(_parts(state))[-1]
    note = _NOTES.get(state.outcome or "")
    yield from _part_messages(message, state.text, start, steps, note)


def earlier_messages(state: TurnState) -> Iterator[Message]:
    """Yield the conversation of a fork before its last message: the part of the forked turn that it shares."""
    parts = list(_parts(state))
    for (message, start, steps), (_, end, _) in pairwise(parts):
        text = state.text[:end].removesuffix(PARAGRAPH)
        yield from _part_messages(message, text, start, steps, None if text[start:] else _CONTINUED)


def _parts(state: TurnState) -> Iterator[tuple[str, int, list[Step]]]:
    """Yield each message of a turn, the length of the answer before it, and the steps that follow it."""
    starts = [(state.message, 0, 0), *((each.content, each.answer_offset, each.position) for each in state.follow_ups)]
    ends = [position for _, _, position in starts[1:]]
    for (message, offset, begin), end in zip_longest(starts, ends):
        yield message, offset, [s for s in state.steps if begin < s.position and (end is None or s.position < end)]


def _part_messages(message: str, text: str, start: int, steps: Sequence[Step], note: str | None) -> Iterator[Message]:
    """Yield a message and the answer to it, which begins at an offset of the text."""
    yield Message("user", message)
    groups = list(_call_groups(steps))
    yield from call_messages(text, groups, lambda _: True, start)
    offset = groups[-1][0].answer_offset if groups else start
    rest = text[offset:]
    if note:
        rest = f"{rest}{PARAGRAPH}{note}" if rest else note
    handoffs = [step.name for step in steps if step.kind == "handoff" and not step.agent_path]
    if rest or offset == start or handoffs:
        yield Message("assistant", rest, agent=handoffs[-1] if handoffs else None)


def _call_groups(steps: Iterable[Step]) -> Iterator[list[Step]]:
    """Group the tool calls of the turn's own agent that have no text between them: one request of the model."""
    calls = (step for step in steps if step.kind == "tool" and not step.agent_path)
    return (list(group) for _, group in groupby(calls, key=attrgetter("answer_offset")))


def call_messages(
    text: str, groups: Iterable[Sequence[Step]], has_result: Callable[[Step], bool], start: int = 0
) -> Iterator[Message]:
    """Yield, for each group of parallel calls, the text before it, the calls, and their results."""
    for calls in groups:
        end = calls[0].answer_offset
        requests = tuple(ToolRequest(call.id, call.name, call.args or {}) for call in calls)
        yield Message("assistant", text[start:end], tool_calls=requests)
        for call in filter(has_result, calls):
            yield Message("tool", _result_text(call), call_id=call.id)
        start = end


def _result_text(step: Step) -> str:
    if step.state in ("running", "waiting"):
        return '{"error":"cancelled"}'
    if isinstance(step.result, str):
        return step.result
    return msgspec.json.encode(step.result).decode()


# Trimming

Exchange = tuple[Message, ...]
"""The messages of one turn: the user's, tool calls with their results, the answer."""

HISTORY_TRIMMED = "This conversation has grown long: its earliest messages are no longer given to the agent."

_CHARACTERS_PER_TOKEN = 4
_TOKENS_PER_MESSAGE = 4  # The overhead of a provider's message format.
_SHORTENED = " … [shortened]"
# Scripts in which a character is about a token: Chinese, Japanese, Korean, and their full-width forms.
_DENSE = re.compile("[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")


def estimate(text: str) -> int:
    """Return about how many tokens a text has."""
    dense = 0 if text.isascii() else len(_DENSE.findall(text))
    return dense + -(-(len(text) - dense) // _CHARACTERS_PER_TOKEN)


def size(messages: Iterable[Message]) -> int:
    """Return about how many tokens some messages have together."""
    return sum(
        _TOKENS_PER_MESSAGE
        + estimate(message.content)
        + sum(estimate(call.tool) + estimate(arguments(call.args)) for call in message.tool_calls)
        for message in messages
    )


def arguments(args: object) -> str:
    return msgspec.json.encode(args).decode()


def exchanges(states: Iterable[TurnState]) -> list[Exchange]:
    return [transcript([state]) for state in states]


def trim(turns: Sequence[Exchange], limit: int) -> list[Exchange]:
    """Return the newest turns that fit into the limit together. A limit of 0 is none.

    The newest turn always stays: if it is too long by itself, its tool results are shortened, no more than needed.
    """
    if not limit:
        return list(turns)
    tokens_left, start = limit, len(turns)
    while start > 0 and (tokens := size(turns[start - 1])) <= tokens_left:
        tokens_left, start = tokens_left - tokens, start - 1
    if start == len(turns) and turns:
        return [fit(turns[-1], limit, lambda message: message.role == "tool")]
    return list(turns[start:])


def fit(messages: Exchange, limit: int, may_shorten: Callable[[Message], bool]) -> Exchange:
    """Shorten the messages that `may_shorten` accepts to one length, the largest that fits into the limit."""
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
    """Return the start of a text with a mark, or the whole text if that is not longer."""
    return text if len(text) <= length + len(_SHORTENED) else text[:length] + _SHORTENED


class PastTurns(Protocol):
    """The parts of a store that a history is made from."""

    async def history(self, turn_id: str, limit: int) -> list[TurnState]: ...

    async def next_turn(self, session_id: str, after_turn_id: str | None) -> TurnRecord | None: ...


class TrimmedHistory:
    """A history source that omits the oldest turns of a conversation that is too long."""

    def __init__(self, store: PastTurns, turns: int, tokens: int) -> None:
        self._store = store
        self._turns = turns
        self._tokens = tokens

    async def recall(self, record: TurnRecord) -> tuple[Message, ...]:
        if not self._turns:
            return ()
        # Two more than needed, to see whether some are omitted, and whether that was so in the turn before.
        turns = exchanges(await self._store.history(record.id, self._turns + 2))
        recent = self._window(turns)
        if len(recent) < len(turns) and len(self._window(turns[:-1])) == len(turns) - 1:
            emit(StatusEvent(HISTORY_TRIMMED))
        return tuple(message for turn in recent for message in turn)

    def _window(self, turns: Sequence[Exchange]) -> list[Exchange]:
        return trim(turns[-self._turns :], self._tokens)

    async def close(self) -> None:
        pass


async def imported_history(store: PastTurns, record: TurnRecord) -> tuple[Message, ...]:
    """Return the messages from before the session, which only its first turn carries."""
    messages = record.options.get("history")
    if not messages and record.parent_turn_id is not None:
        first = await store.next_turn(record.session_id, None)
        messages = first and first.options.get("history")
    return tuple(msgspec.convert(messages, list[Message])) if messages else ()
