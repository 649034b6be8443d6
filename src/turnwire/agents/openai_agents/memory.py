"""Sessions of the SDK, kept in agreement with the turn's history and with runs that are repeated after a crash.

A session of the SDK is written at the end of each step, and has no branches: it lacks the last step of a run that was
stopped or killed, and it still has the turns after an earlier turn that a message continues. Both are corrected before
the next run, if the session has the id of this conversation.

A repeated run would find the items that the lost run has added to the session. So the items that the session had at
first are recorded in the journal; a `ContinuedSession` shows only these to the run, and adds only items that the
session does not have yet. For a session that is too large for the journal, the number and the digest of its items are
recorded instead. Of a session whose items are at the provider, which changes them, each call is recorded.
"""

import copy
import functools
from collections.abc import Sequence
from typing import Any, cast

from agents import OpenAIConversationsSession, Session, TResponseInputItem
from agents.memory import is_openai_responses_compaction_aware_session as is_compacting

from turnwire.agents.openai_agents.events import Run
from turnwire.agents.openai_agents.messages import sdk_messages
from turnwire.core.errors import AgentError
from turnwire.core.journal.turn_journal import fingerprint
from turnwire.core.log.files import load_turn_files
from turnwire.core.log.turns import Message, Turn


async def open_session(session: Session, turn: Turn, run: Run) -> Session:
    """Return the session for a run of a turn. Raises AgentError if the run is repeated and the session has changed."""
    journal = run.queue.journal
    if journal is None:
        await align_session(session, turn)
        return session
    if isinstance(session, OpenAIConversationsSession) or is_compacting(session):
        if not journal.recording.calls:
            await align_session(session, turn, is_other=journal.recording.is_follow_up)
        return _recorded(session, run)
    with await journal.begin_tool(run.place, "session", "session", {}, repeatable=True) as call:
        if journal.is_replay:
            recorded: Any = call.result
            if isinstance(recorded, dict):
                raise AgentError("The session of the SDK was too large to be recorded, so the turn cannot be replayed.")
            return ContinuedSession(session, recorded, None)
        if not call.is_live:
            stored = await session.get_items()
            return ContinuedSession(session, _first_items(call.result, stored), stored)
        await align_session(session, turn, is_other=journal.recording.is_follow_up)
        items = await session.get_items()
        call.finish(items if journal.can_record(items) else {"count": len(items), "digest": fingerprint(items)})
        return ContinuedSession(session, items, items)


def _first_items(recorded: Any, stored: list[TResponseInputItem]) -> list[TResponseInputItem]:
    """Return what a session contained when the turn began. Raises AgentError if that is not known any more."""
    if isinstance(recorded, list):
        return cast("list[TResponseInputItem]", recorded)
    items = stored[: recorded["count"]]
    if fingerprint(items) != recorded["digest"]:
        raise AgentError(
            "The session of the SDK has changed since the turn began, so that the turn cannot be continued after a"
            " restart. Send the message again.",
            code="diverged",
            retryable=True,
        )
    return items


def _recorded(session: Session, run: Run) -> Session:
    """Return a session at the provider whose calls are recorded, so that a repeated run makes none of them again."""
    recorded = copy.copy(session)
    for name in ("get_items", "add_items", "pop_item", "clear_session", "run_compaction"):
        if hasattr(session, name):
            setattr(recorded, name, _call_once(getattr(session, name), name, run))
    return recorded


def _call_once(method: Any, name: str, run: Run) -> Any:
    @functools.wraps(method)
    async def call_once(*args: Any, **options: Any) -> Any:
        call = await run.begin_tool(f"session {name}", "session", {}, repeatable=True)
        assert call is not None
        with call:
            if call.is_live:
                result = await method(*args, **options)
                call.finish(result)
                return result
            return call.result

    return call_once


class ContinuedSession:
    """A session that shows a run its own items only, and does not add those that a lost run has added before.

    If `stored` is None, it neither reads nor writes the inner session: for a replay.
    """

    def __init__(
        self, inner: Session, items: Sequence[TResponseInputItem], stored: Sequence[TResponseInputItem] | None
    ) -> None:
        self.session_id = inner.session_id
        self.session_settings = inner.session_settings
        self._inner = inner
        self._items = list(items)
        self._stored = list(stored or ())
        """The items of the inner session."""
        self._is_stored = stored is not None
        self._is_behind = len(self._stored) > len(items)
        """True until the run has added what the lost run had."""

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        return copy.deepcopy(self._items if limit is None else self._items[-limit:] if limit > 0 else [])

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        self._items += copy.deepcopy(items)
        await self._store()

    async def pop_item(self) -> TResponseInputItem | None:
        item = self._items.pop() if self._items else None
        await self._store()
        return item

    async def clear_session(self) -> None:
        self._items = []
        await self._store()

    async def finish(self) -> None:
        """Remove what the lost run has added and this one has not."""
        self._is_behind = False
        await self._store()

    async def _store(self) -> None:
        if not self._is_stored:
            return
        common = next(
            (index for index, pair in enumerate(zip(self._items, self._stored, strict=False)) if pair[0] != pair[1]),
            min(len(self._items), len(self._stored)),
        )
        if self._is_behind and common == len(self._items) < len(self._stored):
            return
        self._is_behind = False
        while len(self._stored) > common:
            await self._inner.pop_item()
            self._stored.pop()
        if missing := copy.deepcopy(self._items[common:]):
            await self._inner.add_items(missing)
            self._stored += copy.deepcopy(missing)


async def align_session(session: Session, turn: Turn, *, is_other: bool = False) -> None:
    """Make the session end where the turn's history ends. A session with another id than the turn's is left alone.

    With `is_other`, the history is that of a fork, and the session gets all of it.
    """
    if session.session_id != turn.session_id:
        return
    if turn.parent_turn_id == "" or is_other:
        await session.clear_session()
        if turn.history:
            await session.add_items(sdk_messages(turn.history, await load_turn_files(turn)))
        return
    exchanges = _exchanges(turn.history)
    items = await session.get_items()
    if not exchanges:
        return
    if not items:
        await session.add_items(sdk_messages(turn.history, await load_turn_files(turn)))
        return
    starts = [index for index, item in enumerate(items) if _fields(item).get("role") == "user"]
    kept = _count_kept([_user_text(items[start]) for start in starts], [exchange[0].content for exchange in exchanges])
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
    """Return how many of the session's messages to keep: up to the place that matches most of the history's end."""

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
    if not items or calls - results or any(call_id and (kind, call_id) not in has for kind, call_id in wants):
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


def _user_text(item: TResponseInputItem) -> str:
    """Return the text that the user wrote. The parts after it are files."""
    content = _fields(item).get("content") or ""
    if isinstance(content, str):
        return content
    return next((part.get("text", "") for part in cast("list[dict[str, Any]]", content)), "")


def _fields(item: TResponseInputItem) -> dict[str, Any]:
    return cast("dict[str, Any]", item)
