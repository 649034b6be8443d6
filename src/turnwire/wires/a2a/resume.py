"""The resume point after a snapshot of a task."""

from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.state import TurnFold
from turnwire.core.log.turns import TurnRecord, TurnState
from turnwire.server.streams.resume import LogVisitor, ResumePoint, walk_log
from turnwire.server.streams.stored_log import StateReader
from turnwire.wires.a2a.encoder import A2a
from turnwire.wires.a2a.frames import task_of_state
from turnwire.wires.frames import frame


class _Snapshot(LogVisitor):
    """Folds the events of a log that count."""

    def begin(self) -> None:
        self.fold = TurnFold()

    def visit(self, logged: LoggedEvent) -> None:
        self.fold.add(logged)


async def snapshot_point(store: StateReader, record: TurnRecord, wire: A2a) -> ResumePoint:
    """Return the point whose stream begins with the task as it stands, and goes on with what follows.

    The snapshot has no id: a client that has only this much resumes with another snapshot. Raises HttpError 410.
    """
    if record.phase == "ended":
        state = await store.turn_state(record.id) or TurnState()
        return ResumePoint(state.position, _task_frame(state, record, wire), is_end=True)
    walk = _Snapshot()
    void = await walk_log(store, record.id, walk)
    state = walk.fold.state()
    return ResumePoint(state.position, _task_frame(state, record, wire), void, is_end=state.outcome is not None)


def _task_frame(state: TurnState, record: TurnRecord, wire: A2a) -> bytes:
    return frame(wire.event({"task": task_of_state(state, record)}))
