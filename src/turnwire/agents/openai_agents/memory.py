"""Agreement of the SDK's own memory with the turn's history.

A session of the SDK is written at the end of each step, and has no branches: it lacks what a stopped or killed run did
in its last step, and keeps what follows an earlier turn that is continued. Both are mended before the next run, if the
SDK's session is one of this conversation alone.
"""

from collections.abc import Sequence
from typing import Any, cast

from agents import Session, TResponseInputItem

from turnwire.agents.openai_agents.messages import sdk_messages
from turnwire.core.turns import Message, Turn


async def align_session(session: Session, turn: Turn) -> None:
    """Make the session end where the turn's history ends. A session with another id than the turn's is left alone."""
    if session.session_id != turn.session_id:
        return
    if turn.parent_turn_id == "":
        await session.clear_session()
        return
    exchanges = _exchanges(turn.history)
    items = await session.get_items()
    if not exchanges:
        return
    if not items:
        await session.add_items(sdk_messages(turn.history))
        return
    starts = [index for index, item in enumerate(items) if _fields(item).get("role") == "user"]
    kept = _count_kept([_text(items[start]) for start in starts], [exchange[0].content for exchange in exchanges])
    if not kept:
        return
    begin = starts[kept - 1] + 1
    end = starts[kept] if kept < len(starts) else len(items)
    missing = sdk_messages(exchanges[-1][1:])
    if _is_complete(items[begin:end], missing):
        begin, missing = end, []
    for _ in items[begin:]:
        await session.pop_item()
    if missing:
        await session.add_items(missing)


def _exchanges(history: Sequence[Message]) -> list[list[Message]]:
    """Split a conversation before each message of the user."""
    exchanges: list[list[Message]] = []
    for message in history:
        if message.role == "user":
            exchanges.append([])
        if exchanges:
            exchanges[-1].append(message)
    return exchanges


def _count_kept(messages: Sequence[str], history: Sequence[str]) -> int:
    """Return how many of the session's messages are the history's: those that end with the most of its last ones."""

    def common(count: int) -> int:
        pairs = zip(reversed(messages[:count]), reversed(history), strict=False)
        return next((number for number, (left, right) in enumerate(pairs) if left != right), min(count, len(history)))

    best = max(range(len(messages) + 1), key=lambda count: (common(count), count))
    return best if common(best) else 0


def _is_complete(items: Sequence[TResponseInputItem], expected: Sequence[TResponseInputItem]) -> bool:
    """Return True if the session has all calls and results of an exchange, and text or a result at its end."""
    has = {(_fields(item).get("type"), _fields(item).get("call_id")) for item in items}
    wants = {(_fields(item).get("type"), _fields(item).get("call_id")) for item in expected}
    calls = {call_id for kind, call_id in has if kind == "function_call"}
    results = {call_id for kind, call_id in has if kind == "function_call_output"}
    if not items or calls - results or any(call_id and entry not in has for entry in wants for call_id in entry[1:]):
        return False
    last = _fields(items[-1])
    if last.get("role") == "assistant":
        return True
    # The result of a tool may be the answer itself.
    return not expected or _text(expected[-1]) == str(last.get("output"))


def _text(item: TResponseInputItem) -> str:
    content = _fields(item).get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in cast("list[dict[str, Any]]", content))


def _fields(item: TResponseInputItem) -> dict[str, Any]:
    return cast("dict[str, Any]", item)
