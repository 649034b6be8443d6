"""Recovery: continue a turn on another worker, from its last finished step.

A step is finished when its result is in the journal: a model call, or a tool call. Model output after that is void and
is generated again. A tool call without a result may or may not have taken effect: a person decides whether to run it
again, unless the agent says that its tool may be repeated.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field

from turnwire.core.contracts.agents import Agent, repeats, resumes
from turnwire.core.contracts.stores import Store
from turnwire.core.journal.turn_journal import RecordedCall, Recording, fold_journal, is_inside
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.event_kinds import NO_OUTPUTS, OWN
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    Event,
    ReplyEvent,
    RestartEvent,
    StatusEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
)
from turnwire.core.log.follow import read_all
from turnwire.core.log.history import work_messages
from turnwire.core.log.state import TurnFold
from turnwire.core.log.turn_log import TurnLog
from turnwire.core.log.turns import WORKER_LOST, Message, Step, Stop

MAX_RESTARTS = 3
"""The most restarts since the last finished call: a turn that is often lost may be what kills the workers."""
MOVING_ON = "The server is being stopped; this answer goes on elsewhere."
BEGUN_AGAIN = "The agent has changed; it goes on from its last finished step."
NOT_REPEATED = "The outcome of this call is unknown, because the server was restarted."
OUTCOME_UNKNOWN = (
    "The server was lost or stopped while this call ran, so it may have taken effect already. Run it again?"
)


class TurnPast(Struct):
    """The past of a turn that has run before: its journal, and its events since the last segment began."""

    recording: Recording
    texts: list[tuple[int, tuple[str, ...]]] = field(default_factory=list[tuple[int, tuple[str, ...]]])
    """Positions and agent paths of text."""
    events: list[LoggedEvent] = field(default_factory=list[LoggedEvent])
    """All events but the text of the turn's own agent."""

    def note(self, logged: LoggedEvent) -> None:
        """Take an event of the log; they come in order."""
        if logged.position <= self.recording.base:
            return
        is_text = logged.type in ("token", "reasoning")
        if is_text:
            self.texts.append((logged.position, logged.agent_path))
        if not is_text or logged.agent_path:
            self.events.append(logged)


class Recovery(Struct, frozen=True):
    """How a turn goes on: a worker runs it, it waits for a person, or it has to end. `events` are written first."""

    phase: Literal["queued", "waiting", "ended"]
    events: Sequence[Event] = ()


async def read_past(store: Store, log: TurnLog) -> TurnPast:
    """Read the past of a turn that has run here. Raises StoreError."""
    while True:
        position = log.position
        await log.flush()
        past = TurnPast(fold_journal(await store.journal(log.turn_id)))
        async for events in read_all(store, log.turn_id, past.recording.base):
            for logged in events:
                past.note(logged)
        if log.position == position:  # Otherwise an agent that was left behind has written meanwhile.
            return past


def recover(past: TurnPast, fold: TurnFold, agent: Agent | None, stop: Stop) -> Recovery:
    """Decide how a turn goes on whose worker was lost or stops.

    It ends if its agent does not continue, it was restarted too often, or the result of a call was not recorded.
    """
    recording, position = past.recording, fold.position
    if agent is None or not resumes(agent) or not recording.is_complete or fold.requests.undecided:
        return Recovery("ended")
    texts = [text for text in past.texts if not fold.restarts.is_void(text[0])]
    restart_at = restart_position(position, texts, recording, fold)
    doubtful = doubtful_calls(recording, fold, agent)
    if restart_at == position and stop is not WORKER_LOST and not doubtful:
        return Recovery("queued", [StatusEvent(MOVING_ON)])
    if fold.restarts.count_after(recording.last_finished) >= MAX_RESTARTS:
        return Recovery("ended")
    events: list[Event] = [RestartEvent(restart_at, stop.reason)]
    for call in doubtful:
        events += repeat_requests(call, fold, restart_at, OUTCOME_UNKNOWN)
    return Recovery("waiting" if doubtful else "queued", events)


def is_queued_by(last: LoggedEvent, fold: TurnFold) -> bool:
    """Return True if the commit of this last event of a log has queued the turn, or it is the opening of the log."""
    match last.event:
        case RestartEvent() | ApprovalResponseEvent() | ReplyEvent():
            return True
        case StatusEvent(text=text):
            return text == MOVING_ON
        case ToolResultEvent(call_id=call_id):
            return fold.requests.client_results.get(call_id) is not None
        case _:
            return last.epoch == 0


def restart_position(
    position: int, texts: Sequence[tuple[int, tuple[str, ...]]], recording: Recording, fold: TurnFold
) -> int:
    """Return the last position that stays valid: what comes after it is written again.

    The text of unfinished model calls is void, and so is text after the last call. The text of sub-agents may be
    interleaved, so the position may be in the middle of a finished model call: then all of that call is void, and is
    shown again from the journal. Tool calls and their results have no text of their own. An agent that has made no call
    starts over, and nothing of it stays valid.
    """
    if not recording.calls:
        collected = [each.position for each in fold.inputs if each.mode == "collect"]
        return min(position, max([recording.base, *collected]))
    calls = [call for call in recording.calls.values() if not fold.restarts.is_void(call.since)]
    known = max((call.position for call in calls if not fold.restarts.is_void(call.position)), default=recording.base)
    last = min(position, _before_first(at for at, _ in texts if at > known) or position)
    models = [call for call in calls if call.entry.kind == "model"]
    for call in models:
        if not call.is_finished:
            own = (at for at, path in texts if at > call.since and path == call.entry.agent_path)
            last = min(last, _before_first(own) or last)
    while straddling := [call for call in models if call.is_finished and call.since < last < call.position]:
        last = min(call.since for call in straddling)
    return last


def _before_first(positions: Iterable[int]) -> int | None:
    first = min(positions, default=None)
    return None if first is None else first - 1


def doubtful_calls(recording: Recording, fold: TurnFold, agent: Agent) -> list[RecordedCall]:
    """Return the tool calls that may have taken effect, and that only a person may have repeated."""
    return [
        call
        for call in recording.calls.values()
        if _may_have_begun(call, fold) and not (call.entry.repeatable or repeats(agent, call.entry.names[0]))
    ]


def void_outputs(void: Iterable[LoggedEvent], recording: Recording, fold: TurnFold) -> dict[str, list[LoggedEvent]]:
    """Return the void events that came out of tool calls, by the key of the call.

    These are events of agents that a tool has run, and what a tool itself has emitted. If the call has finished, its
    code does not run again, so they must be written again from the log. Usage never becomes void.
    """
    tools = {key: call for key, call in recording.calls.items() if call.entry.kind == "tool"}
    paths = {key: _paths_inside(key, call, recording) for key, call in tools.items()}
    outputs: dict[str, list[LoggedEvent]] = {}
    for logged in void:
        if isinstance(logged.event, NO_OUTPUTS):
            continue
        begun = {key: call for key, call in tools.items() if call.begun < logged.position}
        owners = _running_agent(logged, begun, paths) or _emitters(logged, begun)
        if owners and not fold.restarts.is_void(logged.position, until=begun[owners[-1]].position):
            outputs.setdefault(owners[-1], []).append(logged)
    return outputs


def _paths_inside(key: str, call: RecordedCall, recording: Recording) -> set[tuple[str, ...]]:
    """Return the paths of the agents that a tool call has run."""
    base, own = key.rpartition("#")[0], call.entry.agent_path
    entries = (each.entry for other, each in recording.calls.items() if is_inside(other, base))
    return {entry.agent_path for entry in entries if entry.agent_path != own}


def _running_agent(
    logged: LoggedEvent, begun: Mapping[str, RecordedCall], paths: Mapping[str, set[tuple[str, ...]]]
) -> list[str]:
    """Return the calls that have run the agent of an event, by their start; agents of the same name share a path."""
    path = logged.agent_path
    keys = [key for key in begun if any(path[: len(inside)] == inside for inside in paths[key])]
    return sorted(keys, key=lambda key: begun[key].begun)


def _emitters(logged: LoggedEvent, begun: Mapping[str, RecordedCall]) -> list[str]:
    """Return the calls whose code may have emitted an event, the likeliest last: finished after open, each by start."""
    event = logged.event
    if isinstance(event, ToolProgressEvent):
        return [key for key, call in begun.items() if call.entry.call_id == event.call_id]
    keys = [
        key
        for key, call in begun.items()
        if not call.is_finished or logged.position <= call.position
        if _may_emit(call.entry.agent_path, event)
    ]
    return sorted(keys, key=lambda key: (begun[key].is_finished, begun[key].begun))


def _may_emit(own: tuple[str, ...], event: Event) -> bool:
    """Return True if the code of a tool of the agent at `own` may have emitted an event."""
    if not event.agent_path:
        return not isinstance(event, OWN)
    return len(event.agent_path) > len(own) and event.agent_path[: len(own)] == own


def _may_have_begun(call: RecordedCall, fold: TurnFold) -> bool:
    """Return True for a tool call that may have taken effect: it has no recorded result, and was not stopped or denied.

    A call that waits for an answer was stopped at a known point; a call that a person has denied does not run again.
    """
    if call.entry.kind != "tool" or call.is_finished or call.is_waiting:
        return False
    decision = fold.decision(call.entry.call_id)
    return decision is None or decision.approved


def repeat_requests(call: RecordedCall, fold: TurnFold, restart_at: int, reason: str) -> Iterator[Event]:
    """Yield the events that ask a person, after a restart, whether a tool call may be repeated."""
    entry = call.entry
    tool, args, path = entry.names[0], entry.args or {}, entry.agent_path
    if not fold.has_call(entry.call_id, until=restart_at):
        yield ToolCallEvent(entry.call_id, tool, args, agent_path=path)
    yield ApprovalRequestEvent(entry.call_id, tool, args, reason, agent_path=path)


# An agent that has changed


def unfinished_calls(fold: TurnFold) -> list[Step]:
    """Return the calls that may have begun and have no result. A call that a person has denied never began."""
    return [
        call
        for call in fold.own_calls
        if call.state == "running" and not ((decision := fold.decision(call.id)) and not decision.approved)
    ]


def progress(fold: TurnFold) -> tuple[Message, ...]:
    """Return the work of the turn's own agent so far, as the messages that follow the user's."""
    calls, begin = list(_parallel_calls(fold)), fold.message_offset
    inputs = [each for each in fold.inputs if each.mode == "steer" and each.position > fold.message_position]
    messages = list(work_messages(fold.text, calls, inputs, lambda call: fold.end_of(call) is not None, begin))
    offsets = [calls[-1][0].answer_offset if calls else begin, *(each.answer_offset for each in inputs)]
    if rest := fold.text[max(offsets) :]:
        messages.append(Message("assistant", rest))
    return tuple(messages)


def _parallel_calls(fold: TurnFold) -> Iterator[list[Step]]:
    """Group the calls that a model made at once: with no text between them, and none of them finished."""
    group: list[Step] = []
    for call in fold.own_calls:
        ends = [end for earlier in group if (end := fold.end_of(earlier)) is not None]
        ends += [each.position for each in fold.inputs if group and each.position > group[0].position]
        if group and (call.answer_offset != group[0].answer_offset or call.position > min(ends, default=call.position)):
            yield group
            group = []
        group.append(call)
    if group:
        yield group
