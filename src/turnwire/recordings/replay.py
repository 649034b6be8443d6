"""Replay: run a recorded turn against the code as it is now, and name the first difference.

The agent runs as it does after a crash (see `journal`), but every call has finished already: models and tools are
answered from the recording, and nothing goes live. What the agent writes is compared with the recorded log. Text and
events that came out of a call are taken from the recording; all others must come from the agent again, where parallel
work may come in another order. If nothing differs, the events of a replay are the bytes of the recorded log.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal, NoReturn

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from turnwire.core.contracts.agents import Agent
from turnwire.core.contracts.stores import AppendRequest, JournalEntry
from turnwire.core.errors import AgentError, EventRefusedError, RecordingError, TurnwireError
from turnwire.core.journal.turn_journal import (
    JournaledCall,
    RecordedCall,
    Recording,
    ToolDeniedError,
    TurnJournal,
    fold_journal,
)
from turnwire.core.journal.waits import client_tools
from turnwire.core.log.codec import OPENING_POSITION, LoggedEvent, comparable, decode_event, encode_event
from turnwire.core.log.event_kinds import TOOL_STEPS, WRITTEN_BY_TURNWIRE
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ErrorEvent,
    Event,
    InputMode,
    ResponseEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from turnwire.core.log.files import Blob, TurnFiles
from turnwire.core.log.scope import TurnScope
from turnwire.core.log.state import fold_events
from turnwire.core.log.turn_log import LogLimits, TurnLog
from turnwire.core.log.turns import TurnRecord
from turnwire.core.run.execution import explain_error, whole_response
from turnwire.core.run.inputs import TurnInputs
from turnwire.recordings.recorded_log import RecordedLog
from turnwire.recordings.recording import TurnRecording

Difference = Literal[
    "prompt", "model", "tool", "arguments", "call", "text", "event", "approval", "response", "failure", "missing"
]
"""What differs: the request to a model, its name (or the agent's), the name of a tool, its arguments, a call that is
not recorded, text that the agent writes itself, another event, what a person is asked, the final response, a failure
that is not recorded, or something that is recorded and did not happen."""

_STOP_SECONDS = 5.0
_EXTERNAL = ("cancelled", "interrupted")


class Divergence(Struct, frozen=True, kw_only=True):
    """The first difference. Before `position`, the recorded log and the replay are the same.

    `recorded` and `now` are both sides as text, JSON for a request or an event; empty if there is none.
    """

    position: int
    what: Difference
    recorded: str
    now: str
    where: str = ""

    def __str__(self) -> str:
        """Return the difference in a few lines, with both sides cut to where they begin to differ."""
        recorded, now = excerpts(self.recorded, self.now)
        where = f" ({self.where})" if self.where else ""
        return f"position {self.position}: {_MEANING[self.what]}{where}\n  recorded: {recorded}\n  now:      {now}"


_MEANING: dict[Difference, str] = {
    "prompt": "the model gets another request",
    "model": "another model or agent is called",
    "tool": "another tool is called",
    "arguments": "the tool gets other arguments",
    "call": "a call that is not recorded",
    "text": "the agent writes another text",
    "event": "the agent writes another event",
    "approval": "a person is asked something else",
    "response": "the final response differs",
    "failure": "the agent fails",
    "missing": "something that is recorded did not happen",
}


class ReplayResult(Struct, frozen=True, kw_only=True):
    """The result of a replay.

    `events` are those that the code made, at their recorded positions, up to the divergence. `requests` are the
    requests to models, as JSON, by fingerprint, and `fingerprints` those of the calls, by segment and key. `error` is
    the exception that ended the agent, if that was not recorded.
    """

    events: tuple[LoggedEvent, ...]
    divergence: Divergence | None = None
    requests: dict[str, str] = field(default_factory=dict[str, str])
    fingerprints: dict[tuple[int, str], str] = field(default_factory=dict[tuple[int, str], str])
    answered_calls: int = 0
    error: BaseException | None = None


async def replay_turn(recording: TurnRecording, agent: Agent, *, compare_prompts: bool = True) -> ReplayResult:
    """Replay a turn with an agent. Raises RecordingError if the turn cannot be replayed.

    Without `compare_prompts`, requests to models may differ, such as those with the time in them.
    """
    if not recording.has_journal:
        raise RecordingError(
            "the tools of the agent are not in its journal, so they cannot be answered from a recording"
        )
    if recording.done.joined is not None:
        raise RecordingError(f"the message entered turn {recording.done.joined.turn_id}; record that turn")
    if any(entry.kind == "segment" for entry in recording.entries):
        raise RecordingError(
            "the turn is a fork with another message, or its agent changed while it ran, so it cannot be replayed from"
            " one start"
        )
    if any(entry.state == "unrecorded" for entry in recording.entries):
        raise RecordingError("the result of a call was too large for the journal, so the turn cannot be replayed")
    return await _ReplayRun(recording, agent, compare_prompts).run()


def updated_recording(recording: TurnRecording, replay: ReplayResult) -> TurnRecording:
    """Return the recording with the requests of a replay in place of its own, as the new reference."""
    entries = [
        replace(entry, fingerprint=replay.fingerprints.get((entry.segment, entry.key), entry.fingerprint))
        if entry.fingerprint
        else entry
        for entry in recording.entries
    ]
    used = {entry.fingerprint for entry in entries}
    requests = {digest: body for digest, body in {**recording.requests, **replay.requests}.items() if digest in used}
    return replace(recording, entries=tuple(entries), requests=requests)


# One replay


class _SinkStore:
    """A store that keeps nothing: the log of a replay is only folded."""

    def append(self, request: AppendRequest) -> None:
        asyncio.get_running_loop().call_soon(self._commit, request)

    def _commit(self, request: AppendRequest) -> None:
        request.is_taken = True
        request.settle(len(request.events), None)


class _ReplayRun:
    def __init__(self, recording: TurnRecording, agent: Agent, compare_prompts: bool) -> None:
        self._recording = recording
        self._agent = agent
        self.compare_prompts = compare_prompts
        turn = recording.turn
        self.record = TurnRecord(
            id=turn.id,
            session_id=turn.session_id,
            principal=turn.principal,
            agent=turn.agent,
            message=turn.message,
            epoch=1,
        )
        sink: Any = _SinkStore()
        self.log = TurnLog(sink, self.record, LogLimits())
        self._client_tools = {tool.name for tool in client_tools(turn.options)}
        self.requests: dict[str, str] = {}
        self.fingerprints: dict[tuple[int, str], str] = {}
        self.answered_calls = 0
        self._response: ResponseEvent | None = None
        self._error: BaseException | None = None
        self._divergence: asyncio.Future[Divergence | None] = asyncio.get_running_loop().create_future()
        self._calls = fold_journal(recording.entries)
        self._recorded = RecordedLog(recording, list(self._calls.calls.values()))
        self._produced: dict[int, bytes] = {}

    async def run(self) -> ReplayResult:
        task = asyncio.create_task(self._run_agent(), name=f"replay of turn {self.record.id}")
        try:
            await asyncio.wait({task, self._divergence}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=_STOP_SECONDS)
        error = task.exception() if task.done() and not task.cancelled() else None
        if error is not None and not isinstance(error, _DivergedError):
            raise error
        divergence = self._divergence.result() if self._divergence.done() else None
        return ReplayResult(
            events=tuple(self._events(divergence)),
            divergence=divergence,
            requests=self.requests,
            fingerprints=self.fingerprints,
            answered_calls=self.answered_calls,
            error=self._error,
        )

    def _events(self, divergence: Divergence | None) -> Iterator[LoggedEvent]:
        end = divergence.position if divergence else len(self._recording.events) + 1
        for logged in self._recording.events:
            if logged.position >= end:
                return
            body = self._produced.get(logged.position, logged.body)
            yield LoggedEvent(logged.position, logged.epoch, logged.at, body)

    # The agent

    async def _run_agent(self) -> None:
        scope = TurnScope(self.record.id, self.record.session_id, self.record.principal)
        scope.enter()
        scope.requests = self.requests
        for logged in self._recording.events[:OPENING_POSITION]:
            self.log.append(logged.event)
        turn = self._recording.turn
        scope.open(self.log, self._check_emitted)
        scope.journal = journal = _ReplayJournal(self, self._calls)
        scope.inputs = _RecordedInputs(self, journal)
        scope.files = TurnFiles(_RecordedFiles(self._recording), turn.session_id)
        try:
            await self._read(self._agent.answer(turn))
        except Exception as error:
            return self._fail(error)
        self._complete(journal)

    async def _read(self, answer: Any) -> None:
        try:
            async for event in answer:
                if isinstance(event, str):
                    self._write_text((), event)
                else:
                    self._write(event)
        finally:
            if isinstance(answer, AsyncGenerator):
                await answer.aclose()

    # What the agent writes

    def _check_emitted(self, event: Event) -> None:
        # A divergence ends the replay from outside; the code that emits may run in a thread.
        with suppress(_DivergedError):
            if isinstance(event, TokenEvent):
                self._meet_text(event.agent_path, event.content)
            else:
                self._meet(event)

    def _write_text(self, path: tuple[str, ...], text: str) -> None:
        if text:
            self._meet_text(path, text)
            self.log.append(TokenEvent(text, agent_path=path))

    def _write(self, event: Event) -> None:
        match event:
            case TokenEvent():
                self._write_text(event.agent_path, event.content)
            case ResponseEvent():
                self._response = event
                if not self.log.fold.text:
                    self._write_text((), event.content)
            case ErrorEvent():
                raise AgentError(event.error, code=event.code, retryable=event.retryable)
            case ToolCallEvent() | ToolResultEvent() if event.tool in self._client_tools and not event.agent_path:
                pass  # The call and what the client sent are in the recording.
            case _ if isinstance(event, WRITTEN_BY_TURNWIRE):
                raise EventRefusedError(f"an agent must not yield {type(event).__name__}; Turnwire writes it")
            case _:
                if self._meet(event):
                    self.log.append(event)

    def _meet(self, event: Event) -> bool:
        """Find an event in the recording. Return False if it came from a call and is in the log already."""
        key = comparable(event)
        logged = self._recorded.take(key)
        if logged is not None:
            event = decode_event(encode_event(event)[1])
            if isinstance(event, ToolResultEvent) and isinstance(logged.event, ToolResultEvent):
                event = replace(event, ms=logged.event.ms)
            self._produced[logged.position] = encode_event(event)[1]
            return True
        if self._recorded.was_answered(key):
            return False
        self._diverge_at_event(event)

    def _meet_text(self, path: tuple[str, ...], text: str) -> None:
        while text:
            logged, rest = self._recorded.next_text(path)
            if logged is None:
                self._diverge_here("text", "", text, path)
            length = min(len(rest), len(text))
            if rest[:length] != text[:length]:
                self._diverge(logged.position, "text", rest, text, ", ".join(path))
            if length == len(rest):
                self._produced[logged.position] = logged.body
            self._recorded.advance(path, length)
            text = text[length:]

    def _diverge_at_event(self, event: Event) -> NoReturn:
        if isinstance(event, (*TOOL_STEPS, ApprovalRequestEvent)):
            logged = self._recorded.find(type(event), event.call_id)
            if logged is not None and logged.position not in self._produced:
                recorded = logged.event
                assert isinstance(recorded, (*TOOL_STEPS, ApprovalRequestEvent))
                what: Difference = "event"
                if not isinstance(event, ToolResultEvent):
                    what = "tool" if recorded.tool != event.tool else "arguments"
                self._diverge(logged.position, what, _show(recorded), _show(event), event.call_id)
        first = self._recorded.first_unmet(path=event.agent_path)
        what = "event"
        if isinstance(event, ToolCallEvent) and first is not None and isinstance(first.event, ToolCallEvent):
            what = "tool" if first.event.tool != event.tool else "arguments"
        self._diverge_here(what, _show(first.event) if first else "", _show(event), event.agent_path)

    # The end

    def _complete(self, journal: "_ReplayJournal") -> None:
        if (call := journal.first_unmet()) is not None:
            self._diverge(call.since + 1, "missing", _describe_call(call.entry), "")
        if (entry := journal.first_input()) is not None:
            self._diverge(entry.position, "missing", _show(json.loads(entry.result)), "")
        self._check_all_met()
        recorded, done = self._recording.response, self._recording.done
        if recorded is None:
            error = self._recording.state().error
            if done.outcome in _EXTERNAL:
                return  # It was stopped from outside, after its last event.
            self._diverge(self._end_position, "missing", _show(error) if error else done.outcome, "")
        # Parallel work may have come in another order here.
        now = whole_response(fold_events(self._events(None)), self._response)
        if _without_timings(now) != _without_timings(recorded):
            self._diverge(self._end_position, "response", _show(recorded), _show(now))

    def _fail(self, error: Exception) -> None:
        """Compare a failure of the agent with the recorded one."""
        _, event = explain_error(error)
        recorded = self._recording.state().error
        if recorded is None or (event.error, event.code) != (recorded.error, recorded.code):
            self._error = error
            text = str(error) if isinstance(error, TurnwireError) else f"{type(error).__name__}: {error}"
            self._diverge_here("failure", _show(recorded) if recorded else "", text)
        self._check_all_met()

    def _check_all_met(self) -> None:
        if (logged := self._recorded.first_unmet()) is not None:
            self._diverge(logged.position, "missing", _show(logged.event), "")

    @property
    def _end_position(self) -> int:
        """Return the position of the response or the error, which come before `done`."""
        return max(len(self._recording.events) - 1, 1)

    # Used by the journal as well

    def answer(self, entry: JournalEntry, calls: Sequence[RecordedCall]) -> None:
        """Write what came out of a call and of the calls inside it, and note its request."""
        if entry.fingerprint:
            self.fingerprints[entry.segment, entry.key] = entry.fingerprint
        self.answered_calls += 1
        outputs = [logged for call in calls for logged in self._recorded.answer(call)]
        for logged in sorted(outputs, key=lambda logged: logged.position):
            self._produced[logged.position] = logged.body
            self.log.append(logged.event)

    def denial(self, entry: JournalEntry) -> str | None:
        """Return the denial of a tool that broke off and that a person did not allow to run again."""
        decision = self._recorded.fold.decision(entry.call_id) if entry.kind == "tool" else None
        return decision.denial if decision is not None and not decision.approved else None

    @property
    def was_stopped(self) -> bool:
        return self._recording.done.outcome in _EXTERNAL

    @property
    def has_completed(self) -> bool:
        return self._recording.done.outcome == "completed"

    def request_text(self, fingerprint: str) -> str:
        return self._recording.requests.get(fingerprint) or f"<request {fingerprint}; its text is not recorded>"

    async def end_here(self) -> NoReturn:
        """Stop the agent where the recording ends."""
        if not self._divergence.done():
            self._divergence.set_result(None)
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def diverge_at_call(self, what: Difference, call: RecordedCall, recorded: str, now: str) -> NoReturn:
        where, path = _describe_call(call.entry), call.entry.agent_path
        await self._diverge_inside(call.since + 1, what, recorded, now, where, path)

    async def diverge_at_unknown_call(self, entry: JournalEntry, next_call: RecordedCall | None) -> NoReturn:
        position = self._end_position if next_call is None else next_call.since + 1
        recorded = "" if next_call is None else _describe_call(next_call.entry)
        # In recordings of older versions, the name of a model is part of a call's place.
        what: Difference = "model" if next_call and entry.kind == "model" == next_call.entry.kind else "call"
        now, path = _describe_call(entry), entry.agent_path
        await self._diverge_inside(position, what, recorded, now, "", path)

    async def _diverge_inside(
        self, position: int, what: Difference, recorded: str, now: str, where: str, path: tuple[str, ...]
    ) -> NoReturn:
        try:
            self._diverge(position, what, recorded, now, where, path)
        except _DivergedError:
            # The code between here and the agent may catch every exception, so it is cancelled instead.
            await asyncio.get_running_loop().create_future()
            raise

    def _diverge_here(self, what: Difference, recorded: str, now: str, path: tuple[str, ...] = ()) -> NoReturn:
        """Diverge where the next recorded event is, or at the end if all have been met."""
        first = self._recorded.first_unmet(path=path) or self._recorded.first_unmet()
        self._diverge(first.position if first else self._end_position, what, recorded, now)

    def _diverge(
        self,
        position: int,
        what: Difference,
        recorded: str,
        now: str,
        where: str = "",
        path: tuple[str, ...] | None = None,
    ) -> NoReturn:
        # Something before it may be missing, which is only known now.
        earlier = self._recorded.first_unmet(path=path, before=position)
        if earlier is not None:
            position, what, recorded, where = earlier.position, "missing", _show(earlier.event), ""
        divergence = Divergence(position=position, what=what, recorded=recorded, now=now, where=where)
        if not self._divergence.done():
            self._divergence.set_result(divergence)
        raise _DivergedError


class _DivergedError(BaseException):
    """Ends the replay; the divergence is known already."""


class _ReplayJournal(TurnJournal):
    """Answers all calls from a recording."""

    def __init__(self, run: _ReplayRun, recording: Recording) -> None:
        super().__init__(run.log, recording, LogLimits(), repeats=lambda tool: False, hands_over=lambda: False)
        self._run = run

    is_replay = True

    def first_unmet(self, kind: str | None = None) -> RecordedCall | None:
        """Return the earliest finished call that the agent has not made."""
        calls = (self.recording.calls[key] for key in self._unmet)
        left = [
            call for call in calls if call.is_finished and call.entry.kind != "step" and kind in (None, call.entry.kind)
        ]
        return min(left, key=lambda call: call.since, default=None)

    def record(self, entry: JournalEntry) -> None:
        pass

    def first_input(self) -> JournalEntry | None:
        """Return the earliest messages into the turn that the agent has not taken."""
        return min(self.recording.inputs.values(), key=lambda entry: entry.position, default=None)

    def find_step(self, place: str) -> RecordedCall | None:
        return None  # The code of a step is run, and the calls in it are answered.

    async def _begin(self, base: str, entry: JournalEntry) -> JournaledCall:
        run, recorded = self._run, self.recording.calls.get(entry.key)
        if recorded is None:
            if run.was_stopped:
                await run.end_here()
            await run.diverge_at_unknown_call(entry, self.first_unmet(entry.kind))
        await self._compare(entry, recorded)
        self._unmet.discard(entry.key)
        if not recorded.is_finished:
            if (denial := run.denial(recorded.entry)) is not None:
                raise ToolDeniedError(denial)
            if run.has_completed:
                await run.diverge_at_call("call", recorded, "a call that did not finish", _describe_call(entry))
            await run.end_here()
        inside = [call for key, call in self.recording.calls.items() if key.startswith(f"{base}/")]
        run.answer(entry, [recorded, *inside])
        return self._answer(base, entry, recorded)

    async def _compare(self, entry: JournalEntry, call: RecordedCall) -> None:
        run, recorded = self._run, call.entry
        if recorded.names != entry.names:
            what = "tool" if entry.kind == "tool" else "model"
            await run.diverge_at_call(what, call, " / ".join(recorded.names), " / ".join(entry.names))
        if recorded.args != _plain(entry.args):
            await run.diverge_at_call("arguments", call, _show(recorded.args), _show(entry.args))
        is_same = recorded.fingerprint in ("", entry.fingerprint) or not entry.fingerprint
        if run.compare_prompts and not is_same:
            now = run.requests.get(entry.fingerprint, f"<request {entry.fingerprint}>")
            await run.diverge_at_call("prompt", call, run.request_text(recorded.fingerprint), now)


class _RecordedFiles:
    """The files of the recorded turn's messages."""

    def __init__(self, recording: TurnRecording) -> None:
        self._files = recording.files

    async def read_blob(self, session_id: str, digest: str) -> Blob | None:
        body = self._files.get(digest)
        return None if body is None else Blob(digest=digest, media_type="", body=body)


class _RecordedInputs(TurnInputs):
    """The messages that entered the recorded turn, for the agent to take at the same points."""

    def __init__(self, run: _ReplayRun, journal: _ReplayJournal) -> None:
        store: Any = None
        super().__init__(store, run.record, run.log, LogLimits())
        self._replay = journal

    async def is_due(self) -> bool:
        return bool(self._replay.recording.inputs)

    async def _take_queued(self, mode: InputMode, key: str = "") -> list[str]:
        return []


def _without_timings(response: ResponseEvent) -> bytes:
    return encode_event(replace(response, timings=None))[1]


def _plain(value: Any) -> Any:
    """Return a value as it is after it was stored as JSON."""
    return json.loads(json.dumps(value, default=str))


def _show(value: Any) -> str:
    return "" if value is None else json.dumps(to_builtins(value), ensure_ascii=False, default=str)


def _describe_call(entry: JournalEntry) -> str:
    names = " of ".join(reversed([name for name in entry.names if name]))
    number = int(entry.key.rpartition("#")[2]) + 1
    if entry.kind == "model":
        return f"model call {number}: {names}"
    return f"tool {names}({json.dumps(entry.args, ensure_ascii=False, default=str)})"


# Texts for people

_EXCERPT = 300
_CONTEXT = 60


def excerpts(recorded: str, now: str) -> tuple[str, str]:
    """Return both texts on one line each, cut to where they begin to differ."""
    same = next((at for at, (one, two) in enumerate(zip(recorded, now)) if one != two), min(len(recorded), len(now)))  # noqa: B905
    start = max(0, same - _CONTEXT) if max(len(recorded), len(now)) > _EXCERPT else 0
    return _excerpt(recorded, start), _excerpt(now, start)


def _excerpt(text: str, start: int) -> str:
    if not text:
        return "nothing"
    piece = text[start : start + _EXCERPT].replace("\n", "\\n")
    return f"{'…' if start else ''}{piece}{'…' if len(text) > start + _EXCERPT else ''}"
