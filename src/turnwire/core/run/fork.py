"""Forks: a new turn that shares the log and the journal of another one up to a position, and goes on from there.

The agent continues the work as if its worker had been lost at that position: calls that had finished are answered from
the journal, a reply of the model that was not complete is taken back and requested again, and a tool that ran is
repeated if it may be; otherwise a person is asked.

With another message, agent or model, and for an agent that does not continue after a crash, the log goes on with a
`message`. The agent gets what comes before it as history, in which open calls are closed as cancelled.

What the log does not show at the position has not happened in the fork.
"""

import json
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from turnwire.core.contracts.agents import Agent, resumes
from turnwire.core.contracts.stores import JournalEntry
from turnwire.core.journal.turn_journal import FOLLOW_UP, Recording, fold_journal
from turnwire.core.log.codec import OPENING_POSITION, LoggedEvent, log_event, now_ms
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    AttachedFile,
    Event,
    MessageEvent,
    RestartEvent,
    SessionEvent,
    TokenEvent,
)
from turnwire.core.log.history import PARAGRAPH
from turnwire.core.log.state import TurnFold, fold_events
from turnwire.core.run.recovery import doubtful_calls, repeat_requests, restart_position

FORKED = "forked"
"""The reason of the `restart` in the log of a fork."""
CALL_REPEATED = (
    "This call ran in the turn that this one was forked from, so it may have taken effect already. Run it again?"
)
_ENDINGS = ("response", "error", "done")


class ForkPlan(Struct, kw_only=True):
    """The beginning of a fork, which shares the first `shared` events. With `waits`, a person has to decide first.

    `attachments` are the files of the message that it answers, `digests` those of all its messages.
    """

    events: list[LoggedEvent]
    shared: int
    entries: list[JournalEntry]
    message: str
    attachments: tuple[AttachedFile, ...]
    digests: set[str]
    waits: bool = False

    def add(self, *events: Event) -> None:
        for event in events:
            self.events.append(log_event(event, len(self.events) + 1, 0))

    def opening(self, session: SessionEvent) -> list[LoggedEvent]:
        """Return the events of the log, with this event as the first."""
        first = log_event(session, 1, 0)
        first.at = self.events[0].at
        return [first, *self.events[1:]]


def copied_events(events: Iterable[LoggedEvent], position: int) -> list[LoggedEvent]:
    """Return the events that a fork shares: up to the position, and without the end of the turn.

    Their times are moved by one amount, so that the last of them is now and the turn's clock has no gap. They have the
    epoch in which the fork is accepted.
    """
    copied: list[LoggedEvent] = []
    for logged in events:
        if logged.position > max(position, OPENING_POSITION) or logged.type in _ENDINGS:
            break
        copied.append(logged)
    delay = now_ms() - copied[-1].at
    return [LoggedEvent(logged.position, 0, logged.at + delay, logged.body) for logged in copied]


def plan_fork(
    copied: Sequence[LoggedEvent],
    journal: Sequence[JournalEntry],
    agent: Agent,
    message: str | None,
    *,
    by: str,
    channel: str,
    is_changed: bool,
) -> ForkPlan:
    """Return the beginning of a fork from the events that it shares, and the journal of the forked turn.

    With another `message`, or if its agent or model `is_changed`, the fork goes on with a message, which may be the
    last one of the copied events again. Otherwise it continues the work, if the agent can.
    """
    fold = fold_events(copied)
    entries = _entries_until(copied, journal, fold)
    recording = fold_journal(entries)
    is_repeated = message in (None, fold.message)
    plan = ForkPlan(
        events=list(copied),
        shared=len(copied),
        entries=entries,
        message=message or fold.message,
        attachments=fold.attachments if is_repeated else (),
        digests=_digests(fold),
    )
    if is_repeated and not is_changed and resumes(agent) and recording.is_complete:
        _plan_continuation(plan, recording, fold, agent)
    else:
        _plan_follow_up(plan, recording, fold, MessageEvent(plan.message, by, channel, plan.attachments))
    return plan


def _digests(fold: TurnFold) -> set[str]:
    state = fold.state()
    files = [*state.attachments, *(file for each in state.follow_ups for file in each.attachments)]
    return {file.digest for file in files if file.digest}


# The same message


def _plan_continuation(plan: ForkPlan, recording: Recording, fold: TurnFold, agent: Agent) -> None:
    copied = tuple(plan.events)
    end = _before_unrecorded_requests(copied, recording, fold)
    texts = [
        (logged.position, logged.agent_path)
        for logged in copied[recording.base : end]
        if logged.type in ("token", "reasoning") and not fold.restarts.is_void(logged.position)
    ]
    restart_at = restart_position(end, texts, recording, fold)
    doubtful = doubtful_calls(recording, fold, agent)
    if restart_at < len(copied) or doubtful:
        plan.add(RestartEvent(restart_at, FORKED))
    for call in doubtful:
        plan.add(*repeat_requests(call, fold, restart_at, CALL_REPEATED))
    for logged in plan.events[len(copied) :]:
        fold.add(logged)
    plan.waits = fold.requests.is_waiting


def _before_unrecorded_requests(copied: Sequence[LoggedEvent], recording: Recording, fold: TurnFold) -> int:
    """Return the last position before the undecided requests that the agent, or this fork, makes again.

    The agent does not repeat the requests for which the journal shows it stopped.
    """
    ids = {request.call_id for request in fold.requests.undecided} - recording.awaited_calls
    requests = [
        logged.position
        for logged in copied
        if logged.type == "approval_request"
        and isinstance(logged.event, ApprovalRequestEvent)
        and logged.event.call_id in ids
        and not fold.restarts.is_void(logged.position)
    ]
    return min(requests, default=len(copied) + 1) - 1


def _entries_until(
    copied: Sequence[LoggedEvent], journal: Sequence[JournalEntry], fold: TurnFold
) -> list[JournalEntry]:
    """Return the journal entries that a fork shares.

    A call that the log shows without a result is open, whatever the journal knows: its start is shared, also if it
    comes later, and its result is not. A call of which the log shows nothing is not shared. A call that waits for an
    answer at the position has not gone on; if it had ended in order to ask for an approval, that is shared.
    """
    position = copied[-1].position
    calls, results, requests = (
        {getattr(logged.event, "call_id", "") for logged in copied if logged.type == kind}
        for kind in ("tool_call", "tool_result", "approval_request")
    )
    open_ids = (calls | requests) - results
    undecided = {request.call_id for request in fold.requests.undecided}
    call_ids = {(entry.segment, entry.key): entry.call_id for entry in journal if entry.state == "started"}
    segment = 0
    waiting: set[str] = set()
    entries: list[JournalEntry] = []
    for entry in journal:
        call_id = call_ids.get((entry.segment, entry.key), "")
        is_open = entry.kind == "tool" and call_id in open_ids
        if entry.kind == "segment":
            if entry.position <= position:
                segment = entry.segment
                entries.append(entry)
        elif entry.segment != segment:
            continue
        elif entry.kind == "input":
            entries += _shared_inputs(entry, position)
        elif is_open and entry.state == "waiting" and entry.position <= position:
            waiting.add(entry.key)
            entries.append(entry)
        elif entry.key in waiting and entry.position > position:
            continue
        elif is_open and entry.state == "started" and (entry.position <= position or call_id not in undecided):
            entries.append(replace(entry, since=min(entry.since, position), position=min(entry.position, position)))
        elif (not is_open or call_id in undecided) and entry.position <= position and entry.since < position:
            entries.append(entry)
    return [replace(entry, epoch=0) for entry in entries]


def _shared_inputs(entry: JournalEntry, position: int) -> Iterator[JournalEntry]:
    """Yield the entry with those of its messages whose `input` events are shared; these end at its position."""
    messages = json.loads(entry.result)
    if shared := messages[: max(0, len(messages) - max(0, entry.position - position))]:
        last = min(entry.position, position)
        result = json.dumps(shared, separators=(",", ":")).encode("ascii")
        yield replace(entry, since=min(entry.since, last), position=last, result=result)


# Another message, agent or model


def _plan_follow_up(plan: ForkPlan, recording: Recording, fold: TurnFold, message: MessageEvent) -> None:
    if plan.shared == OPENING_POSITION:
        plan.digests = {file.digest for file in message.attachments if file.digest}
        # Nothing has been answered yet, so the message replaces the first one.
        plan.shared -= 1
        del plan.events[1:]
        plan.add(message)
        return
    if fold.has_answer:
        plan.add(TokenEvent(PARAGRAPH))
    plan.add(message)
    segment, position = recording.segment + 1, len(plan.events)
    plan.entries.append(
        JournalEntry(
            kind="segment",
            key=f"{FOLLOW_UP} {segment}",
            state="finished",
            segment=segment,
            since=position,
            position=position,
        )
    )
