"""Guards taken out on purpose: a simulation that does not notice is worth nothing.

Each mutation removes one guard of the product, or of the contract that every store keeps. `scripts/simulate --mutate`
runs seeds until one finds it.
"""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from tests.simulation.store import ProcessStore
from turnwire.core.contracts.stores import AppendRequest, Refusal
from turnwire.core.errors import PositionError, TurnEndedError
from turnwire.core.journal.turn_journal import TurnJournal
from turnwire.core.log.turn_log import TurnLog
from turnwire.core.run.execution import Execution
from turnwire.core.run.runner import TurnRunner
from turnwire.core.run.worker import TurnWorker
from turnwire.stores.rules import LogHead

_Patch = tuple[type, str, Any]
_refusal = LogHead.refusal


def _without(error: type[Exception]) -> list[_Patch]:
    """Return a check of appends that does not know one of its reasons to refuse."""

    def refusal(head: LogHead, request: AppendRequest) -> Refusal | None:
        found = _refusal(head, request)
        return None if isinstance(found, error) else found

    return [(LogHead, "refusal", refusal)]


def _fence() -> list[_Patch]:
    def refusal(head: LogHead, request: AppendRequest) -> Refusal | None:
        epoch, head.epoch = head.epoch, request.epoch
        try:
            return _refusal(head, request)
        finally:
            head.epoch = epoch

    return [(LogHead, "refusal", refusal)]


def _one_end() -> list[_Patch]:
    def claim(head: LogHead) -> int:
        head.epoch += 1
        head.ended = False
        return head.epoch

    return [(LogHead, "claim", claim), *_without(TurnEndedError)]


def _publish_first() -> list[_Patch]:
    def publish(store: ProcessStore, requests: list[AppendRequest]) -> None:
        for request in requests:
            if request.events:
                store._watchers.notify(request.turn_id, request.events)

    return [(ProcessStore, "_before_commit", publish)]


async def _nothing(*_: Any) -> None:
    pass


def _renewal_compare() -> list[_Patch]:
    return [(TurnWorker, "_find_orphans", _nothing)]


def _command_acknowledgement() -> list[_Patch]:
    return [(TurnRunner, "_wait_for_end", _nothing)]


def _command() -> list[_Patch]:
    """Return a cancel that is not durable before it takes effect: another process never hears of it."""

    async def command_stop(runner: TurnRunner, turn_id: str, reason: str) -> None:
        runner.worker.wake(for_commands=True)

    return [(TurnRunner, "_command_stop", command_stop)]


def _retried_end() -> list[_Patch]:
    write_end = Execution._write_end

    async def write_end_once(execution: Execution, *details: Any) -> None:
        task = asyncio.ensure_future(write_end(execution, *details))
        await asyncio.wait([task], timeout=0.05)
        if not task.done():
            task.cancel()

    return [(Execution, "_write_end", write_end_once)]


def _journal_first() -> list[_Patch]:
    """Return a journal that does not wait for the commit of a call's start before the call goes live."""
    begin, flush = TurnJournal._begin, TurnLog.flush
    hurried: set[TurnLog] = set()

    async def begin_at_once(journal: TurnJournal, base: str, entry: Any) -> Any:
        hurried.add(journal._log)
        try:
            return await begin(journal, base, entry)
        finally:
            hurried.discard(journal._log)

    async def flush_others(log: TurnLog) -> None:
        if log not in hurried:
            await flush(log)

    return [(TurnJournal, "_begin", begin_at_once), (TurnLog, "flush", flush_others)]


MUTATIONS: dict[str, Callable[[], list[_Patch]]] = {
    "fence": _fence,
    "position_check": lambda: _without(PositionError),
    "commit_before_publish": _publish_first,
    "one_end": _one_end,
    "renewal_compare": _renewal_compare,
    "command_acknowledgement": _command_acknowledgement,
    "durable_command": _command,
    "retried_end": _retried_end,
    "journal_before_call": _journal_first,
}


@contextmanager
def mutated(name: str) -> Generator[None]:
    """Run without one guard."""
    patches = MUTATIONS[name]()
    originals = [(owner, attribute, getattr(owner, attribute)) for owner, attribute, _ in patches]
    try:
        for owner, attribute, value in patches:
            setattr(owner, attribute, value)
        yield
    finally:
        for owner, attribute, value in originals:
            setattr(owner, attribute, value)
