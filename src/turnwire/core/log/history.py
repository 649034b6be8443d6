"""The history of a turn: the transcript of the turns before it, trimmed to a number of tokens.

The transcript is made for a model provider: every tool call has a result and every message an answer, whatever happened
to the turn. The results and notes that complete it are never written to a log. Trimming removes whole turns.
"""

import re
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise, zip_longest
from typing import NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from turnwire.core.log.emit import emit
from turnwire.core.log.events import AttachedFile, StatusEvent
from turnwire.core.log.turns import Input, Message, Step, ToolRequest, TurnRecord, TurnState

PARAGRAPH = "\n\n"
"""The text between two replies of the model in one answer, such as those before and after a tool call."""
_NOTES = {
    "cancelled": "[The user stopped this answer before it was complete.]",
    "failed": "[This answer failed before it was complete.]",
    "interrupted": "[The server stopped before this answer was complete.]",
}
_CONTINUED = "[The user continued the conversation from here.]"


def transcript(states: Iterable[TurnState]) -> tuple[Message, ...]:
    """Return the conversation of some ended turns. The message of a joined turn is in the turn that it joined."""
    return tuple(message for state in states if state.outcome != "joined" for message in _turn_messages(state))


def _turn_messages(state: TurnState) -> Iterator[Message]:
    yield from earlier_messages(state)
    part = list(_parts(state))[-1]
    yield from _part_messages(part, state.text, _NOTES.get(state.outcome or ""))


def earlier_messages(state: TurnState) -> Iterator[Message]:
    """Yield the conversation of a fork before its last message: the part of the forked turn that it shares."""
    for part, following in pairwise(_parts(state)):
        text = state.text[: following.start].removesuffix(PARAGRAPH)
        yield from _part_messages(part, text, None if text[part.start :] else _CONTINUED)


class _Part(NamedTuple):
    """A message of a turn, the length of the answer before it, and what follows it: steps and inputs."""

    message: Message
    start: int
    steps: Sequence[Step]
    inputs: Sequence[Input]


def _parts(state: TurnState) -> Iterator[_Part]:
    first = Message("user", state.message, attachments=state.attachments)
    follow_ups = (
        (Message("user", each.content, attachments=each.attachments), each.answer_offset, each.position)
        for each in state.follow_ups
    )
    starts = [(first, 0, 0), *follow_ups]
    ends = [position for _, _, position in starts[1:]]
    for (message, offset, begin), end in zip_longest(starts, ends):
        steps = [each for each in state.steps if begin < each.position and (end is None or each.position < end)]
        inputs = [each for each in state.inputs if begin < each.position and (end is None or each.position < end)]
        yield _Part(message, offset, steps, inputs)


def _part_messages(part: _Part, text: str, note: str | None) -> Iterator[Message]:
    """Yield the message of a part and the answer to it, which is the text from `part.start` on."""
    messages = [part.message]
    groups = list(_call_groups(part))
    add_messages(messages, work_messages(text, groups, part.inputs, lambda _: True, part.start))
    offset = max((_first(each).answer_offset for each in [*groups, *part.inputs]), default=part.start)
    rest = text[offset:]
    if note:
        rest = f"{rest}{PARAGRAPH}{note}" if rest else note
    handoffs = [step.name for step in part.steps if step.kind == "handoff" and not step.agent_path]
    if rest or offset == part.start or messages[-1].role == "user" or handoffs:
        messages.append(Message("assistant", rest, agent=handoffs[-1] if handoffs else None))
    yield from messages


def _call_groups(part: _Part) -> Iterator[list[Step]]:
    """Group the tool calls of the turn's own agent that nothing separates: one request of the model."""
    calls = (step for step in part.steps if step.kind == "tool" and not step.agent_path)
    positions = [message.position for message in part.inputs]
    groups = groupby(calls, key=lambda call: (call.answer_offset, bisect(positions, call.position)))
    return (list(group) for _, group in groups)


def work_messages(
    text: str,
    groups: Iterable[Sequence[Step]],
    inputs: Iterable[Input],
    has_result: Callable[[Step], bool],
    start: int = 0,
) -> Iterator[Message]:
    """Yield the messages of a turn after its first: text, parallel calls with their results, and the user's inputs.

    The text before `start` and after the last of them is left out.
    """
    for step in sorted([*groups, *inputs], key=lambda step: _first(step).position):
        offset = _first(step).answer_offset
        piece, start = text[start:offset], offset
        if isinstance(step, Input):
            if piece:
                yield Message("assistant", piece)
            yield Message("user", step.content)
        else:
            requests = tuple(ToolRequest(call.id, call.name, call.args or {}) for call in step)
            yield Message("assistant", piece, tool_calls=requests)
            for call in filter(has_result, step):
                yield Message("tool", _result_text(call), call_id=call.id)


def _first(step: Sequence[Step] | Input) -> Step | Input:
    return step if isinstance(step, Input) else step[0]


def add_messages(messages: list[Message], more: Iterable[Message]) -> None:
    """Append messages, and join two user messages in a row, which some model providers reject."""
    for message in more:
        if messages and messages[-1].role == message.role == "user":
            before = messages.pop()
            content = PARAGRAPH.join(filter(None, (before.content, message.content)))
            message = Message("user", content, attachments=before.attachments + message.attachments)
        messages.append(message)


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
_TOKENS_PER_IMAGE = 1_000
_BYTES_PER_FILE_TOKEN = 64  # A PDF is mostly fonts, pictures and layout.
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
        + sum(map(_file_tokens, message.attachments))
        for message in messages
    )


def _file_tokens(file: AttachedFile) -> int:
    """Return about how many tokens a file has: an image as many as most models count, others by their bytes."""
    if file.media_type.startswith("image/") or file.size is None:
        return _TOKENS_PER_IMAGE
    return file.size // (_CHARACTERS_PER_TOKEN if file.media_type.startswith("text/") else _BYTES_PER_FILE_TOKEN)


def arguments(args: object) -> str:
    return msgspec.json.encode(args).decode()


def exchanges(states: Iterable[TurnState]) -> list[Exchange]:
    return [transcript([state]) for state in states if state.outcome != "joined"]


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
