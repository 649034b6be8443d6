"""Recordings: one turn as a file, with everything that a replay needs.

A recording has one line of ASCII JSON for each of these:

    {"recording": 1, "turnwire": "0.1.0", "turn": {...}}    first: what the agent was given, with its history
    {"position": 3, "epoch": 1, "at": ..., "event": {...}}  the log, as in `log.jsonl`
    {"call": {...}, "result": ...}                          the journal: one line for each entry
    {"file": "<digest>", "data": "<base64>"}                the files of its messages
    {"request": "<fingerprint>", "body": ...}               requests to models, if they are known

The journal has only fingerprints of requests. A replay whose requests have the same fingerprints knows their text, and
adds it to the recording (see `replay`).
"""

import base64
import json
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any, Protocol, cast

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from turnwire.core.contracts.stores import JournalEntry, LogReader
from turnwire.core.errors import RecordingError
from turnwire.core.log.codec import LoggedEvent, ascii_json, decode_event
from turnwire.core.log.events import DoneEvent, ResponseEvent
from turnwire.core.log.files import ATTACHED, Blob, attached_files
from turnwire.core.log.follow import read_all
from turnwire.core.log.history import PastTurns, TrimmedHistory, imported_history
from turnwire.core.log.state import fold_events
from turnwire.core.log.turns import Message, Turn, TurnRecord, TurnState
from turnwire.core.run.inputs import JOINS, collected_message

_TURNWIRE = version("turnwire")  # Read once, because it comes from a file.
VERSION = 1
_NOT_RECORDED = ("progress",)


class TurnRecording(Struct, frozen=True, kw_only=True):
    """One ended turn: its input, its log, its journal, and the requests to models, as JSON, by fingerprint.

    `files` are those of its messages, by digest.
    """

    turn: Turn
    events: tuple[LoggedEvent, ...]
    entries: tuple[JournalEntry, ...] = ()
    requests: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])

    @property
    def done(self) -> DoneEvent:
        event = self.events[-1].event
        assert isinstance(event, DoneEvent)
        return event

    @property
    def response(self) -> ResponseEvent | None:
        return next((logged.event for logged in self.events if isinstance(logged.event, ResponseEvent)), None)

    @property
    def has_journal(self) -> bool:
        """Return False if the agent has called tools that it did not record."""
        return bool(self.entries) or not any(step.kind == "tool" for step in self.state().steps)

    def state(self) -> TurnState:
        """Return the state that the log folds into."""
        return fold_events(self.events).state()


class RecordedTurns(LogReader, Protocol):
    """The parts of a store that a recording is made from."""

    async def read_blob(self, session_id: str, digest: str) -> Blob | None: ...

    async def journal(self, turn_id: str) -> list[JournalEntry]: ...


async def record_turn(store: RecordedTurns, record: TurnRecord, history: tuple[Message, ...]) -> TurnRecording:
    """Return the recording of an ended turn. `history` are the messages that its agent was given.

    Raises RecordingError if the turn has not ended, EventsGoneError if a part of its log is gone.
    """
    events = [logged async for page in read_all(store, record.id) for logged in page]
    if not events or not events[-1].is_last:
        raise RecordingError(f"turn {record.id} has not ended yet; record it when it has")
    options = {name: value for name, value in record.options.items() if name not in ("attachments", ATTACHED, JOINS)}
    turn = Turn(
        id=record.id,
        session_id=record.session_id,
        principal=record.principal,
        message=collected_message(record, fold_events(events)),
        agent=record.agent,
        channel=record.channel,
        history=history,
        options=options,
        parent_turn_id=record.parent_turn_id,
        attachments=attached_files(record.options),
        metadata=record.options.get("metadata") or {},
    )
    attached = [*turn.attachments, *(file for message in history for file in message.attachments)]
    digests = {file.digest for file in attached if file.digest}
    blobs = [await store.read_blob(record.session_id, digest) for digest in sorted(digests)]
    return TurnRecording(
        turn=turn,
        events=tuple(events),
        entries=tuple(await store.journal(record.id)),
        files={blob.digest: blob.body for blob in blobs if blob},
    )


async def recorded_history(store: PastTurns, record: TurnRecord, turns: int, tokens: int) -> tuple[Message, ...]:
    """Return the messages that the agent of a past turn was given: those from before its session, and its turns.

    Summaries are not made again: for a turn with a summarised history, the result has the trimmed messages instead.
    """
    recalled = await TrimmedHistory(store, turns, tokens).recall(record)
    return await imported_history(store, record) + recalled


# The file


def encode_recording(recording: TurnRecording) -> bytes:
    return b"".join(line + b"\n" for line in _lines(recording))


def _lines(recording: TurnRecording) -> Iterator[bytes]:
    turn = {name: value for name, value in _plain(recording.turn).items() if name not in _NOT_RECORDED}
    for name in ("attachments", "metadata"):
        if not turn[name]:
            del turn[name]
    yield ascii_json({"recording": VERSION, "turnwire": _TURNWIRE, "turn": turn})
    for logged in recording.events:
        yield b'{"position":%d,"epoch":%d,"at":%d,"event":%b}' % (
            *(logged.position, logged.epoch, logged.at),
            logged.body,
        )
    for entry in recording.entries:
        # The result is copied as it is: it may have escapes that only the standard library reads.
        yield b'{"call":%b,"result":%b}' % (ascii_json(replace(entry, result=b"")), entry.result or b"null")
    for digest, data in recording.files.items():
        yield b'{"file":%b,"data":"%b"}' % (ascii_json(digest), base64.b64encode(data))
    for digest, body in recording.requests.items():
        yield b'{"request":%b,"body":%b}' % (ascii_json(digest), body.encode("ascii"))


def decode_recording(data: bytes) -> TurnRecording:
    """Read a recording. Raises RecordingError, which names the line."""
    turn: Turn | None = None
    events: list[LoggedEvent] = []
    entries: list[JournalEntry] = []
    requests: dict[str, str] = {}
    files: dict[str, bytes] = {}
    for number, text in enumerate(data.splitlines(), 1):
        try:
            line = json.loads(text)
            if turn is None:
                turn = _read_head(line)
            elif "event" in line:
                body = ascii_json(line["event"])
                decode_event(body)
                events.append(LoggedEvent(line["position"], line["epoch"], line["at"], body))
            elif "call" in line:
                entry = msgspec.convert(line["call"], JournalEntry)
                has_result = entry.state == "finished" and entry.kind != "segment"
                entries.append(replace(entry, result=_dump(line["result"])) if has_result else entry)
            elif "file" in line:
                files[line["file"]] = base64.b64decode(line["data"])
            else:
                requests[line["request"]] = json.dumps(line["body"])  # As `journal.fingerprint` writes it.
        except RecordingError:
            raise
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise RecordingError(f"line {number} is not a line of a recording: {error}") from error
    if turn is None or not events or not events[-1].is_last:
        raise RecordingError("the file is not a recording, or its end is missing; record the turn again")
    return TurnRecording(turn=turn, events=tuple(events), entries=tuple(entries), requests=requests, files=files)


def _read_head(line: Any) -> Turn:
    head = cast("dict[str, Any]", line) if isinstance(line, dict) else {}
    if head.get("recording") != VERSION:
        raise RecordingError(f"the file is not a recording of version {VERSION}; make one with `turnwire record`")
    return msgspec.convert(head["turn"], Turn)


def _plain(value: Any) -> dict[str, Any]:
    return msgspec.to_builtins(value)


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")
