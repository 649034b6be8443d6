"""Agent paths of the agents that a turn's agent runs.

An element of a path is the sub-agent's name. If another running sub-agent has the same path, the element has the id of
the tool call too, as in `Scout:call_2`, so that clients can tell the two apart.
"""

from collections.abc import Iterator
from itertools import chain, count
from threading import Lock

from turnwire.core.journal.turn_journal import current_journal
from turnwire.core.log.scope import current_turn
from turnwire.tools.invocation import running_call_id

Path = tuple[str, ...]

_active: set[tuple[str, Path]] = set()
_lock = Lock()


def enter_agent(
    parent: Path,
    name: str,
    call_id: str | None = None,
    *,
    place: str = "",
    recorded: Path | None = None,
    reserved: frozenset[Path] = frozenset(),
) -> Path:
    """Return the path of a sub-agent that begins; `leave_agent` releases it.

    `call_id` is the tool call that runs the sub-agent, by default the current one. A run that is repeated after a crash
    gets its earlier path again: it is found in the journal by the run's `place`, or passed as `recorded`, with the
    paths that are `reserved` for other repeated runs.
    """
    call_id = call_id or running_call_id()
    if place and (journal := current_journal()):
        recorded, reserved = journal.recorded_path(place), journal.reserved_paths()
    with _lock:
        path = recorded or next(
            path for path in _paths(parent, name, call_id) if path not in reserved and (_turn_id(), path) not in _active
        )
        _active.add((_turn_id(), path))
    return path


def leave_agent(path: Path) -> None:
    with _lock:
        _active.discard((_turn_id(), path))


def _paths(parent: Path, name: str, call_id: str | None) -> Iterator[Path]:
    unique = name if call_id is None else f"{name}:{call_id}"
    names = [name] if call_id is None else [name, unique]
    return ((*parent, element) for element in chain(names, (f"{unique}:{number}" for number in count(2))))


def _turn_id() -> str:
    turn = current_turn()
    return turn.turn_id if turn else ""
