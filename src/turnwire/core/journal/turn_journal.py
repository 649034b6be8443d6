"""The journal of a turn: the results of its model and tool calls, recorded as they end and replayed after a crash.

A worker that takes a turn over runs the same agent again from the start of the segment, which is the turn's start, a
follow-up message in a fork, or the point where a changed agent began again. Calls that have finished are answered from
the journal; the first one that has not goes live. A call is found by its place (the run that makes it) and its number
there, not by what it asks, so that a clock in a prompt does not run a tool twice. Calls that are made in parallel are
found by their own place or call id.

Before a call goes live, everything before it is committed: what happened earlier never has to be repeated.
"""

import asyncio
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self, TypeVar

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from turnwire.core import metrics
from turnwire.core.contracts.stores import CallKind, CallState, JournalEntry
from turnwire.core.errors import AgentError
from turnwire.core.log.codec import OPENING_POSITION, LoggedEvent
from turnwire.core.log.emit import emit
from turnwire.core.log.events import ToolResultEvent, Usage
from turnwire.core.log.scope import current_turn
from turnwire.core.log.turn_log import LogLimits, TurnLog

T = TypeVar("T")
_DIVERGENCE = "divergence"
APPROVAL = "approval"
"""The name of the call in which an agent waits for a decision; `call_id` in its arguments is the call to approve."""
FOLLOW_UP = "fork"
"""The prefix of the key of the `segment` entry after which a fork continues with a message."""
logger = logging.getLogger("turnwire.runner")
# Steps save work, but a turn can be continued without them: they leave room for the results of calls.
_MAX_STEP_BYTES = 64 * 1024


class RecordedCall(Struct):
    """All that a journal says about one call. `entry` is the one that started it."""

    entry: JournalEntry
    state: CallState
    since: int
    position: int
    result: bytes = b""
    usage: Usage | None = None
    begun: int = 0
    """The position at which the call began for the first time in its segment."""

    @property
    def is_finished(self) -> bool:
        return self.state == "finished"

    @property
    def is_waiting(self) -> bool:
        """Return True if the call was stopped to wait for an answer, so that it is safe to run it again."""
        return self.state == "waiting"


class Recording(Struct):
    """The last segment of a journal: its calls by key, and how it began."""

    segment: int = 0
    base: int = OPENING_POSITION
    """The position of the last event before the segment."""
    has_diverged: bool = False
    """True if the segment began because the agent had changed: it continues from the tool steps before `base`."""
    is_follow_up: bool = False
    """True if the segment began with a message in a fork: no memory of the agent has the messages before it."""
    calls: dict[str, RecordedCall] = field(default_factory=dict[str, RecordedCall])
    """By key; empty in a turn that has not run before."""
    inputs: dict[str, JournalEntry] = field(default_factory=dict[str, JournalEntry])
    """The messages that entered the turn, by the call that they came before."""
    size: int = 0
    """The bytes of all results, of all segments."""
    last_finished: int = 0
    """The position at which a call finished last, of all segments."""
    is_waiting: bool = False
    """True if nothing was recorded since the turn was suspended inside calls, which run again with the answers."""

    @property
    def is_complete(self) -> bool:
        """Return False if the result of a call could not be recorded, so that the turn cannot be continued."""
        return all(call.state != "unrecorded" for call in self.calls.values())

    @property
    def awaited_calls(self) -> set[str]:
        """Return the calls for whose approval the agent was stopped."""
        waiting = (call.entry for call in self.calls.values() if call.is_waiting and call.entry.names == (APPROVAL,))
        return {entry.args["call_id"] for entry in waiting if entry.args}

    def add(self, entry: JournalEntry) -> None:
        self.size += len(entry.result)
        self.is_waiting = entry.state == "waiting"
        if entry.kind == "segment":
            self.segment, self.base = entry.segment, entry.position
            self.has_diverged = entry.key.startswith(_DIVERGENCE)
            self.is_follow_up = entry.key.startswith(FOLLOW_UP)
            self.calls, self.inputs = {}, {}
        elif entry.kind == "step":
            self.calls[entry.key] = RecordedCall(entry, "finished", entry.since, entry.position, entry.result)
            self.last_finished = entry.position
        elif entry.kind == "input":
            self.inputs[entry.key] = entry
        elif entry.state == "started":
            begun = earlier.begun if (earlier := self.calls.get(entry.key)) is not None else entry.since
            self.calls[entry.key] = RecordedCall(entry, "started", entry.since, entry.position, begun=begun)
        elif call := self.calls.get(entry.key):
            call.since, call.position = entry.since, entry.position
            if entry.state == "waiting":
                call.state, self.last_finished = "waiting", entry.position
            elif entry.state != "shown":
                call.state, call.result, call.usage = entry.state, entry.result, entry.usage
                self.last_finished = entry.position


def count_saved(recording: Recording) -> None:
    """Count a turn that is continued, and the calls that it need not make again."""
    metrics.CONTINUED.add()
    for call in recording.calls.values():
        if call.is_finished and call.entry.kind != "step":
            metrics.SAVED_CALLS.add(call.entry.kind)
            usage = call.usage or Usage()
            metrics.SAVED_TOKENS.add("input", usage.input_tokens or 0)
            metrics.SAVED_TOKENS.add("output", usage.output_tokens or 0)


def fold_journal(entries: Iterable[JournalEntry]) -> Recording:
    recording = Recording()
    for entry in entries:
        recording.add(entry)
    return recording


class JournaledCall:
    """A call that an agent makes: answered from the journal, or live.

    A call that is not `is_live` has its recorded `result`. If it is not `is_shown` either, a restart has made its
    events void: the agent writes them again (but not the usage event, which stays valid), and then calls `show`. A live
    call must end with `finish`; if its context is left without that, the call counts as broken off.
    """

    def __init__(self, journal: "TurnJournal", base: str, started: JournalEntry, recorded: RecordedCall | None) -> None:
        self.is_live = recorded is None
        self.is_shown = recorded is not None and not journal.is_void(recorded.position)
        self.result: Any = None if recorded is None else json.loads(recorded.result)
        self._journal = journal
        self._base = base
        self._started = started
        self._since = journal.position
        self._outer = parent_call.get()

    def finish(self, result: Any, usage: Usage | None = None) -> None:
        """Record the result, a JSON value: after the events of a model call, and before the result event of a tool."""
        self._journal.finish(self._base, self._end_entry("finished", usage=usage), result)
        if self._started.kind == "tool":
            self._journal.ended_calls.add(self._started.call_id)

    def wait(self) -> None:
        """Record that a tool call was stopped to wait for an answer outside it, and runs again from its beginning."""
        self._journal.record(self._end_entry("waiting"))

    def show(self, since: int | None = None) -> None:
        """Record that the events of a finished call stand at new positions, or some of them: those after `since`."""
        entry = self._end_entry("shown")
        self._journal.record(entry if since is None else replace(entry, since=since))

    def _end_entry(self, state: CallState, usage: Usage | None = None) -> JournalEntry:
        started, position = self._started, self._journal.position
        return JournalEntry(
            kind=started.kind,
            key=started.key,
            state=state,
            segment=started.segment,
            epoch=started.epoch,
            since=self._since,
            position=position,
            usage=usage,
        )

    def __enter__(self) -> Self:
        if self._started.kind == "tool":
            parent_call.set(self._base)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._journal.drop(self._started.key)
        if self._started.kind == "tool":
            parent_call.set(self._outer)


class TurnJournal:
    """Records the calls of a running turn, and answers those that are recorded already.

    `repeats(tool)` returns True if a call of the tool that broke off may run again. `hands_over` is called before a
    call goes live; if it returns True, the turn is being handed to another worker and the call is not made.
    """

    is_replay = False
    """True if every call is answered from a recording: the agent must leave its own memory alone."""

    def __init__(
        self,
        log: TurnLog,
        recording: Recording,
        limits: LogLimits,
        *,
        repeats: Callable[[str], bool],
        hands_over: Callable[[], bool],
        client_tools: Collection[str] = (),
    ) -> None:
        self._repeats = repeats
        self._hands_over = hands_over
        self._client_tools = client_tools
        self._log = log
        self.recording = recording
        self._limits = limits
        self._finished: Counter[str] = Counter()
        self._places: Counter[str] = Counter()
        self.divergence: AgentError | None = None
        """The difference to the recorded calls, once the agent has made another one."""
        self.open_calls: dict[str, JournalEntry] = {}
        """The starts of the calls that run, by their keys."""
        self._met: set[str] = set()
        self.ended_calls: set[str] = set()
        """The ids of tool calls that have ended, and whose results may not be in the log yet."""
        self.waiting_calls: Sequence[JournalEntry] | None = None
        """The entries for the calls that wait, once the journal is closed."""
        self.on_change: Callable[[], None] | None = None
        """Called on the event loop after a call has ended, or its result was written."""
        self.find_recorded: Callable[[JournalEntry], RecordedCall | None] | None = None
        """Finds the result of a call that is not in the journal, such as in the recording of another turn."""
        self.void_outputs: dict[str, list[LoggedEvent]] = {}
        """The events that came out of tool calls and that a restart has made void, by the key of the call."""
        calls = recording.calls
        self._unmet = {key for key, call in calls.items() if not self.is_void(call.since)}
        self.has_steps_only = all(call.entry.kind == "tool" for call in calls.values())
        """Whether the recorded calls are steps of a generator, and none is a model call."""

    @property
    def position(self) -> int:
        return self._log.position

    @property
    def text(self) -> str:
        """Return the answer so far, as it stands in the log."""
        return self._log.fold.text

    # Waits for answers

    def note_change(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def waits_at(self, places: Collection[str]) -> bool:
        """Return True if all open calls are at one of these places, or contain a call that is."""
        bases = [key.rpartition("#")[0] for key in self.open_calls]
        return all(any(base == place or is_inside(place, base) for place in places) for base in bases)

    @property
    def shows_results(self) -> bool:
        """Return True if the log has the results of all tool calls that have ended."""
        self.ended_calls = {call_id for call_id in self.ended_calls if self._log.fold.is_running(call_id)}
        return not self.ended_calls

    def running_call(self) -> JournalEntry | None:
        """Return the start of the tool call that the current code belongs to, if the log shows that call."""
        base = parent_call.get()
        entry = next((entry for key, entry in self.open_calls.items() if key.rpartition("#")[0] == base), None)
        return entry if entry is not None and self._log.fold.has_call(entry.call_id) else None

    def close(self) -> None:
        """Record nothing more: the calls that are open now wait for answers."""
        self.waiting_calls = [replace(entry, state="waiting") for entry in self.open_calls.values()]

    @property
    def is_closed(self) -> bool:
        """Return True once the turn is being suspended: nothing more is recorded, and no call begins."""
        return self.waiting_calls is not None

    @property
    def repeats_text(self) -> bool:
        """Return True while an agent that journals its own steps yields text that is in the log already.

        Agents that journal their model calls do not yield the text of a finished call again.
        """
        return self.has_steps_only and bool(self._unmet)

    def is_void(self, position: int) -> bool:
        return self._log.fold.restarts.is_void(position)

    def place(self, *parts: str) -> str:
        """Return a name for the next run with these parts: the same again when the turn is continued.

        The name of an agent or a model is no part of it: a call of one that was renamed would not be found, and be made
        again. Instead, `begin_model` compares the names.

        A run inside a tool belongs to that call. If the call is answered from the journal, the run is not made again.
        """
        name = "/".join((parent_call.get(), *parts))
        self._places[name] += 1
        return f"{name}/{self._places[name]}"

    def recorded_path(self, place: str) -> tuple[str, ...] | None:
        """Return the agent path of the run at this place, if it has called a model before the crash."""
        call = self.recording.calls.get(f"{place}#0")
        return call.entry.agent_path if call is not None and call.entry.kind == "model" else None

    def reserved_paths(self) -> frozenset[tuple[str, ...]]:
        """Return the agent paths of runs that will be repeated: those inside a finished call will not."""
        calls = self.recording.calls
        finished = {key.rpartition("#")[0] for key, call in calls.items() if call.is_finished}
        return frozenset(
            call.entry.agent_path
            for key, call in calls.items()
            if key not in self._met and call.entry.kind == "model" and call.entry.agent_path
            if not any(key.startswith(f"{base}/") for base in finished)
        )

    @contextmanager
    def inside(self, call: str) -> Generator[None]:
        """Make the runs in this context belong to a tool call that is not recorded itself."""
        outer = parent_call.get()
        parent_call.set(call)
        try:
            yield
        finally:
            parent_call.set(outer)

    async def begin_model(
        self, place: str, *, names: Sequence[str], fingerprint: str = "", agent_path: tuple[str, ...] = ()
    ) -> JournaledCall:
        """Begin the next model call of a run, which makes one at a time. Raises AgentError, StoreError."""
        entry = self._entry("model", place, names, fingerprint=fingerprint, agent_path=agent_path)
        return await self._begin(place, entry)

    async def begin_tool(
        self,
        place: str,
        call_id: str,
        tool: str,
        args: dict[str, Any] | None,
        *,
        agent_path: tuple[str, ...] = (),
        repeatable: bool = False,
    ) -> JournaledCall:
        """Begin a tool call. Its `tool_call` event must be in the log. Raises AgentError, StoreError, ToolDeniedError.

        With `repeatable`, or if the agent's `repeats` says so, a tool that breaks off runs again; otherwise a person is
        asked.
        """
        base = f"{place}:{call_id}"
        repeatable = repeatable or (tool in self._client_tools and not agent_path)
        details = {"call_id": call_id, "args": args, "agent_path": agent_path, "repeatable": repeatable}
        return await self._begin(base, self._entry("tool", base, (tool,), **details))

    def find_step(self, place: str) -> RecordedCall | None:
        """Return a recorded step, if all events from it are still valid. The calls inside it are not made again."""
        key = f"{place}#step"
        step = self.recording.calls.get(key)
        self._unmet.discard(key)
        if step is None or (self.is_void(step.position) and step.since < step.position):
            return None
        self._skip_inside(place)
        return step

    def finish_step(self, place: str, name: str, since: int, result: Any) -> None:
        """Record the result of a step, after its events. A step that is too large is not recorded, and runs again."""
        body = json.dumps(result, allow_nan=False, separators=(",", ":")).encode("ascii")
        if len(body) > _MAX_STEP_BYTES or self.recording.size + len(body) > self._limits.max_journal_bytes // 2:
            return
        entry = self._entry("step", place, (name,), result=body)
        self.record(replace(entry, key=f"{place}#step", state="finished", since=since))
        self.recording.size += len(body)

    def _skip_inside(self, place: str) -> None:
        skipped = {key for key in self.recording.calls if is_inside(key, place)}
        self._unmet -= skipped
        self._met |= skipped

    def begin_again(self) -> Recording:
        """Begin a new segment after a divergence, and return its empty recording."""
        segment = self.recording.segment + 1
        entry = self._entry("segment", f"{_DIVERGENCE} {segment}", ())
        entry = replace(entry, segment=segment, state="finished")
        self.record(entry)
        recording = Recording(size=self.recording.size, last_finished=self.recording.last_finished)
        recording.add(entry)
        return recording

    def recorded_inputs(self, key: str) -> Any:
        """Return what `record_inputs` was called with before a crash, or None."""
        entry = self.recording.inputs.pop(key, None)
        return None if entry is None else json.loads(entry.result)

    def record_inputs(self, key: str, messages: Any) -> None:
        """Record the messages that have entered the turn, in one step with the events that were appended for them."""
        result = json.dumps(messages, separators=(",", ":")).encode("ascii")
        entry = self._entry("input", key, ())
        self.record(replace(entry, key=key, state="finished", result=result))

    def next_call(self, place: str) -> tuple[str, bool]:
        """Return the key of a run's next model call, and whether the call is answered from the journal."""
        key = f"{place}#{self._finished[place]}"
        recorded = self.recording.calls.get(key)
        return key, recorded is not None and recorded.is_finished

    @property
    def is_replaying(self) -> bool:
        """Return True while recorded calls have not been made again."""
        return bool(self._unmet)

    def check_complete(self) -> None:
        """Raise AgentError if the agent has ended without making a call that it had finished before."""
        if self.divergence is not None:
            raise self.divergence  # The agent's library has caught it.
        for key in self._unmet:
            call = self.recording.calls[key]
            if call.is_finished and call.entry.kind != "step":
                raise self._diverge(f"it did not repeat the call of {_describe(call.entry.names)}")

    def end_step(self, call_id: str, name: str, result: Any, *, success: bool = True) -> None:
        """Write the result of a step that the log shows as a tool call, because a person was asked about it."""
        if self._log.fold.has_call(call_id):
            emit(ToolResultEvent(call_id, name, success, result))

    # Used by `JournaledCall`

    def record(self, entry: JournalEntry) -> None:
        if not self.is_closed:
            self._log.record(entry)

    def finish(self, base: str, entry: JournalEntry, result: Any) -> None:
        body = self._encode(result)
        if isinstance(body, bytes):
            self.record(replace(entry, result=body))
            self.recording.size += len(body)
        else:
            note = "the result of call %r in turn %s is not recorded: %s; if its worker is lost, the turn ends"
            logger.warning(note, entry.key, self._log.turn_id, body)
            self.record(replace(entry, state="unrecorded"))
        self._finished[base] += 1
        self.drop(entry.key)

    def drop(self, key: str) -> None:
        if self.open_calls.pop(key, None) is not None:
            self.note_change()

    # Internals

    def _entry(self, kind: CallKind, base: str, names: Sequence[str], **details: Any) -> JournalEntry:
        position = self.position
        return JournalEntry(
            kind=kind,
            # A call that broke off is made again under the same number.
            key=f"{base}#{self._finished[base]}",
            state="started",
            segment=self.recording.segment,
            epoch=self._log.epoch,
            since=position,
            position=position,
            names=tuple(names),
            **details,
        )

    async def _begin(self, base: str, entry: JournalEntry) -> JournaledCall:
        recorded = self.recording.calls.get(entry.key)
        if recorded is None and self.find_recorded is not None:
            recorded = self.find_recorded(entry)
        self._unmet.discard(entry.key)
        self._met.add(entry.key)
        if recorded is not None:
            if recorded.entry.names != entry.names:
                raise self._diverge(f"it calls {_describe(entry.names)} instead of {_describe(recorded.entry.names)}")
            if recorded.is_finished:
                return self._answer(base, entry, recorded)
            if entry.kind == "tool":
                self._check_repeat(recorded, entry)
        if self.is_closed or self._hands_over():
            await asyncio.get_running_loop().create_future()  # Never done: the turn's task is being cancelled.
        self.record(entry)
        self.open_calls[entry.key] = entry
        await self._log.flush()
        return JournaledCall(self, base, entry, None)

    def _diverge(self, difference: str) -> AgentError:
        self.divergence = AgentError(
            f"The answer cannot be continued after a restart, since the agent has changed: {difference}. "
            "Send the message again.",
            code="diverged",
            retryable=True,
        )
        return self.divergence

    def _answer(self, base: str, entry: JournalEntry, recorded: RecordedCall) -> JournaledCall:
        self._finished[base] += 1
        call = JournaledCall(self, base, entry, recorded)
        if entry.kind == "tool":
            self._skip_inside(base)
            self.ended_calls.add(entry.call_id)
            self._show_outputs(base, call, recorded)
        return call

    def _show_outputs(self, base: str, call: JournaledCall, recorded: RecordedCall) -> None:
        """Write what a finished tool call has shown again, if it became void: its code does not run again."""
        keys = [key for key in self.void_outputs if key.rpartition("#")[0] == base or is_inside(key, base)]
        outputs = [logged for key in keys for logged in self.void_outputs.pop(key)]
        if not outputs:
            return
        # One commit has all of them and the entry, so that they are never written in part.
        for logged in sorted(outputs, key=lambda logged: logged.position):
            self._log.append(logged.event)
        call.show(since=None if self.is_void(recorded.since) else recorded.since)

    def _check_repeat(self, recorded: RecordedCall, entry: JournalEntry) -> None:
        """Raise an error unless a tool that broke off may run again."""
        if recorded.is_waiting:
            return
        decision = self._log.fold.decision(entry.call_id)
        if decision is not None:
            if not decision.approved:
                raise ToolDeniedError(decision.denial)
        elif not (entry.repeatable or self._repeats(entry.names[0])):
            raise AgentError(
                f"The call of {entry.names[0]!r} broke off, and nobody has allowed it to run again.",
                code="outcome_unknown",
            )

    def can_record(self, result: Any) -> bool:
        """Return True if a result is JSON, and neither it nor the journal with it is too large."""
        return isinstance(self._encode(result), bytes)

    def _encode(self, result: Any) -> bytes | str:
        """Return the result as an ASCII line of JSON, or a text that says why it cannot be recorded."""
        try:
            body = json.dumps(result, allow_nan=False, separators=(",", ":")).encode("ascii")
        except (TypeError, ValueError, RecursionError) as error:
            return f"it is not JSON ({error})"
        if len(body) > self._limits.max_entry_bytes:
            return f"it has {len(body)} bytes, and {self._limits.max_entry_bytes} is the limit"
        if self.recording.size + len(body) > self._limits.max_journal_bytes:
            return f"the journal of the turn would have more than {self._limits.max_journal_bytes} bytes"
        return body


def is_inside(key: str, place: str) -> bool:
    """Return True if a call is made in a run or tool call at this place, or further inside."""
    return key.startswith(place) and key[len(place) : len(place) + 1] in ("/", ":", "|")


class ToolDeniedError(Exception):
    """A tool broke off, and a person did not allow it to run again. The message is the result for the model."""


def fingerprint(request: Any) -> str:
    """Return a digest of a request to a model."""
    body = json.dumps(to_builtins(request))
    digest = hashlib.blake2b(body.encode(), digest_size=16).hexdigest()
    if (scope := current_turn()) is not None and scope.requests is not None:
        scope.requests[digest] = body
    return digest


def _describe(names: Sequence[str]) -> str:
    return " of ".join(repr(name) for name in reversed(names))


parent_call: ContextVar[str] = ContextVar("turnwire_journal_parent", default="")
"""The place and id of the tool call that the current code belongs to."""


def current_journal() -> TurnJournal | None:
    """Return the journal of the running turn, or None outside a turn.

    It is None in a thread with an event loop of its own too: what runs there belongs to the tool that started it.
    """
    scope = current_turn()
    return scope.journal if scope is not None and scope.is_on_its_loop else None


async def journaled(name: str, call: Callable[[], Awaitable[T]], *, idempotent: bool = False) -> T:
    """Await `call()` once in a turn: after a crash, its recorded result is returned instead.

    For agents that are plain functions. The result must be a JSON value. If the process is lost while the call runs, it
    runs again if it is `idempotent`; otherwise a person is asked. Outside a turn, the call is simply awaited.
    """
    journal = current_journal()
    if journal is None:
        return await call()
    place = journal.place("step", name)
    try:
        step = await journal.begin_tool(place, place, name, {}, repeatable=idempotent)
    except ToolDeniedError as denied:
        journal.end_step(place, name, str(denied), success=False)
        raise AgentError(str(denied), code="outcome_unknown") from None
    with step:
        if not step.is_live:
            return step.result
        result = await call()
        step.finish(result)
    journal.end_step(place, name, result)
    return result
