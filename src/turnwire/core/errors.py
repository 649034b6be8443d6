"""All errors that Turnwire raises on purpose, as a tree.

TurnwireError
├── AgentError                the agent failed; the message may be shown to the user
│   ├── ModelError            the model did not answer, or only in part
│   └── ToolError             a tool failed; the message may be shown to the model too
│       └── QuestionDeclinedError  the user declined to answer, or did not answer in time
├── ApprovalConflictError     the call was decided otherwise, or has other arguments
├── AttachmentsNotTakenError  the agent takes no attachments
├── BadCursorError            the position to resume from is malformed
├── BadPositionError          the log has no such position to fork at
├── ClientToolConflictError   a tool of the client has the name of one of the agent's
├── ClientToolsNotTakenError  the agent takes no tools of the client
├── EmbedderError             texts could not be turned into vectors
│   └── EmbedderUnusableError the embedder is not installed or configured correctly
├── EventRefusedError         the log does not accept the event
│   ├── EventTooLargeError    the event is over the size limit
│   └── TooManyEventsError    the turn is over its limit of events
├── EventsGoneError           retention has removed the requested events
├── FilesFullError            the files of the session are over the size limit
├── IdempotencyConflictError  the key was used for another request
├── InvalidReplyError         the value does not fit the question, or the arguments may not be edited
├── LimitError                the principal is over a limit
│   ├── BudgetSpentError      tokens per day
│   ├── TooManyDocumentsError uploaded documents
│   ├── TooManyRequestsError  requests that wait for the same thing
│   ├── TooManyStreamsError   open streams
│   └── TooManyTurnsError     running and queued turns
├── LogRewoundError           the log does not contain what the reader has read of it
├── ModelNotTakenError        the agent cannot be run with another model
├── ModelOptionNotTakenError  the agent does not take a model option of the client
├── ModelUnusableError        the model is not configured correctly
├── NotFoundError             no object of the principal has the id
│   ├── AgentNotFoundError
│   │   └── NoAgentError      no agent is configured at all
│   ├── ApprovalNotFoundError
│   ├── DocumentNotFoundError
│   ├── KeyNotFoundError
│   ├── QuestionNotFoundError
│   ├── SealNotFoundError
│   ├── SessionFileNotFoundError
│   ├── SessionNotFoundError
│   ├── ToolCallNotFoundError
│   └── TurnNotFoundError
├── RecordingError            the turn cannot be recorded, or the file is no recording
├── ReplyConflictError        the question or the call has another answer already
├── RestartedError            a restart has made void what a stream has already sent
├── SessionBusyError          the session runs a turn already, or its queue is full
├── SessionExistsError        another request has just created a session of that name
├── ShuttingDownError         the server accepts no new turns
├── StoreError                the log could not be read or written
│   ├── FencedError           another worker has taken the turn over
│   ├── PositionError         the event does not follow the last one
│   ├── StoreAwayError        the database cannot be reached
│   ├── StoreFullError        the disk is full
│   └── StoreUnusableError    the store cannot be opened
├── TurnEndedError            the turn has ended
├── TurnNotWaitingError       the turn does not wait for a decision
├── TurnTakenError            another worker runs the turn
└── UnreadableDocumentError   the file cannot be read as a document

`code` goes to clients and keeps its meaning for ever.
"""

from collections.abc import Sequence
from math import ceil
from time import time
from typing import Literal

ModelErrorCode = Literal[
    "model_unavailable",
    "rate_limited",
    "context_too_long",
    "model_refused",
    "truncated",
    "content_filtered",
    "bad_answer",
]


class TurnwireError(Exception):
    code = "turnwire_error"


class AgentError(TurnwireError):
    """Raised by an agent that cannot answer, with a message that is safe to show to the user."""

    def __init__(self, message: str, *, code: str = "agent_failed", retryable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable


class ModelError(AgentError):
    """Raised when the model did not answer, or only in part. The message quotes nothing from the model's server."""

    def __init__(self, message: str, code: ModelErrorCode) -> None:
        super().__init__(message, code=code, retryable=code in ("model_unavailable", "rate_limited"))


class ToolError(AgentError):
    """Raised by a tool that failed. Most agents pass the message to their model and continue."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="tool_failed")


class QuestionDeclinedError(ToolError):
    """Raised by `ask` if the user declined to answer, or did not answer in time."""

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(f"the user did not answer the question{f' ({reason})' if reason else ''}")
        self.reason = reason


class ApprovalConflictError(TurnwireError):
    """`why` is a clause about the call, such as "is denied already"."""

    code = "approval_conflict"

    def __init__(self, call_id: str, why: str) -> None:
        super().__init__(f"the call {call_id!r} {why}")


class AttachmentsNotTakenError(TurnwireError):
    code = "attachments_not_taken"

    def __init__(self, agent: str, media_type: str | None = None, accepted: Sequence[str] = ()) -> None:
        if not accepted:
            why = "takes none; send the message without them, or to an agent whose `takes_attachments` is True"
        else:
            why = f"takes {', '.join(accepted)}, and not {media_type}; send the message without it, or to another agent"
        super().__init__(f"attachments: the agent {agent!r} {why}")


class BadCursorError(TurnwireError):
    code = "bad_cursor"

    def __init__(self, field: str) -> None:
        super().__init__(f"{field} is not a position in this log; send the last id you received, or none")
        self.field = field


class BadPositionError(TurnwireError):
    code = "bad_position"

    def __init__(self, position: int, last_position: int) -> None:
        super().__init__(f"position: {position} is not in this log, which has the positions 1 to {last_position}")


class ClientToolConflictError(TurnwireError):
    code = "client_tool_conflict"

    def __init__(self, agent: str, tool: str) -> None:
        super().__init__(f"tools: the agent {agent!r} has a tool {tool!r} of its own; give the client's another name")


class ClientToolsNotTakenError(TurnwireError):
    code = "client_tools_not_taken"

    def __init__(self, agent: str) -> None:
        super().__init__(
            f"tools: the agent {agent!r} takes none of the client's; send the message without them, or to an agent "
            "whose `takes_client_tools` is True"
        )


class EmbedderError(TurnwireError):
    """`why` is a clause about the embedder that ends with what to do about it."""

    code = "embedder_failed"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"cannot compare texts by meaning with {name!r}: {why}")


class EmbedderUnusableError(EmbedderError):
    code = "embedder_unusable"


class EventRefusedError(TurnwireError):
    code = "event_refused"


class EventTooLargeError(EventRefusedError):
    code = "event_too_large"

    def __init__(self, event_type: str, size: int, limit: int) -> None:
        super().__init__(f"a {event_type!r} event of {size:,} bytes is over the limit of {limit:,}; split it")


class TooManyEventsError(EventRefusedError):
    code = "too_many_events"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the turn wrote more than {limit:,} events, the limit for one turn; ask for less at once")


class EventsGoneError(TurnwireError):
    code = "events_gone"

    def __init__(self, turn_id: str, after: int, first_kept: int) -> None:
        super().__init__(
            f"events {after + 1} to {first_kept - 1} of turn {turn_id!r} are past their retention; "
            f"read its snapshot, or from after={first_kept - 1}"
        )
        self.after = after
        self.first_kept = first_kept


class FilesFullError(TurnwireError):
    code = "files_full"

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"attachments: the files of a session may have {limit:,} bytes together; delete turns, or begin a session"
        )


class IdempotencyConflictError(TurnwireError):
    code = "idempotency_conflict"

    def __init__(self, key: str) -> None:
        super().__init__(f"{key!r} was used for another request; use a new key or turn_id for a new message")


class InvalidReplyError(TurnwireError):
    """`field` is the part of the answer that is wrong, and `problem` says how."""

    code = "invalid_reply"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class LimitError(TurnwireError):
    code = "limit"
    retry_after_seconds = 2


class BudgetSpentError(LimitError):
    """`resets_at` is the start of the next day, in ms."""

    code = "budget_spent"

    def __init__(self, limit: int, used: int, resets_at: int) -> None:
        super().__init__(
            f"{used:,} tokens were used today, and {limit:,} is the limit for one principal; try again after midnight "
            "UTC"
        )
        self.limit = limit
        self.used = used
        self.left = max(0, limit - used)
        self.resets_at = resets_at
        self.retry_after_seconds = max(1, ceil(resets_at / 1000 - time()))


class TooManyDocumentsError(LimitError):
    code = "too_many_documents"

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit:,} documents are uploaded already, the limit for one principal; delete one")


class TooManyRequestsError(LimitError):
    """`kind` names the requests, such as "searches"."""

    code = "too_many_requests"

    def __init__(self, kind: str) -> None:
        super().__init__(f"too many {kind} of this principal are waiting already; try again in a moment")


class TooManyStreamsError(LimitError):
    code = "too_many_streams"

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} streams are open already, the limit for one principal; close one")


class TooManyTurnsError(LimitError):
    code = "too_many_turns"

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} turns are under way already, the limit for one principal; wait for one to end")


class LogRewoundError(TurnwireError):
    code = "log_rewound"

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"the log of turn {turn_id!r} is not the one that was read; read it again from the start")


class ModelNotTakenError(TurnwireError):
    code = "model_not_taken"

    def __init__(self, agent: str) -> None:
        super().__init__(f"model: the agent {agent!r} cannot be run with another model; name another agent instead")


class ModelOptionNotTakenError(TurnwireError):
    """`why` is a clause about the agent."""

    code = "model_option_not_taken"

    def __init__(self, agent: str, option: str, why: str = "does not take it from clients") -> None:
        self.option = option
        self.problem = (
            f"the agent {agent!r} {why}; send the message without it, or let the agent's `takes_model_options` allow it"
        )
        super().__init__(f"{option}: {self.problem}")


class ModelUnusableError(TurnwireError):
    code = "model_unusable"

    def __init__(self, why: str) -> None:
        super().__init__(f"the model cannot be used: {why}")


class NotFoundError(TurnwireError):
    code = "not_found"
    noun = "object"

    def __init__(self, object_id: str) -> None:
        super().__init__(f"no {self.noun} has the id {object_id!r}")


class AgentNotFoundError(NotFoundError):
    code = "agent_not_found"
    noun = "agent"


class NoAgentError(AgentNotFoundError):
    def __init__(self) -> None:
        TurnwireError.__init__(self, "no agent is configured; add one")


class ApprovalNotFoundError(NotFoundError):
    code = "approval_not_found"
    noun = "call that this turn has asked about"


class DocumentNotFoundError(NotFoundError):
    code = "document_not_found"
    noun = "document"


class KeyNotFoundError(NotFoundError):
    code = "key_not_found"
    noun = "API key"


class QuestionNotFoundError(NotFoundError):
    code = "question_not_found"
    noun = "question of this turn"


class SessionFileNotFoundError(NotFoundError):
    code = "file_not_found"
    noun = "file of this session"


class SealNotFoundError(NotFoundError):
    code = "seal_not_found"
    noun = "sealed turn"


class SessionNotFoundError(NotFoundError):
    code = "session_not_found"
    noun = "session"


class ToolCallNotFoundError(NotFoundError):
    code = "tool_call_not_found"
    noun = "call of a client's tool in this turn"


class TurnNotFoundError(NotFoundError):
    code = "turn_not_found"
    noun = "turn"


class RecordingError(TurnwireError):
    """Raised with a message that says why a turn cannot be recorded, or a recording cannot be read or replayed."""

    code = "not_recordable"


class ReplyConflictError(TurnwireError):
    code = "reply_conflict"

    def __init__(self, noun: str, id: str) -> None:
        super().__init__(f"the {noun} {id!r} has another answer already; an answer cannot be changed")


class RestartedError(TurnwireError):
    code = "restarted"

    def __init__(self, from_position: int) -> None:
        super().__init__(f"the events after position {from_position} are void; read the log again without them")


class SessionBusyError(TurnwireError):
    code = "session_busy"

    def __init__(self, session_id: str, unfinished: int) -> None:
        super().__init__(
            f"session {session_id!r} has {unfinished} unfinished turn(s); wait, cancel, or send on_busy=interrupt"
        )


class SessionExistsError(TurnwireError):
    code = "session_exists"

    def __init__(self, external_id: str) -> None:
        super().__init__(f"the session {external_id!r} exists already; use it")


class ShuttingDownError(TurnwireError):
    code = "shutting_down"
    retry_after_seconds = 2

    def __init__(self) -> None:
        super().__init__("the server is shutting down and accepts no new turns; try again in a moment")


class StoreError(TurnwireError):
    code = "store_failed"


class FencedError(StoreError):
    code = "fenced"

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"turn {turn_id!r} has been taken over by another worker; read its log to follow it")


class PositionError(StoreError):
    code = "position_taken"

    def __init__(self, turn_id: str, expected: int, position: int) -> None:
        super().__init__(
            f"turn {turn_id!r} continues at position {expected}, not {position}; read its log before you write again"
        )


class StoreAwayError(StoreError):
    code = "store_away"
    retry_after_seconds = 2

    def __init__(self, why: str) -> None:
        super().__init__(f"the database cannot be reached ({why}); try again in a moment")


class StoreFullError(StoreError):
    code = "disk_full"

    def __init__(self) -> None:
        super().__init__("the server's disk is full; make room on it, or try again later")


class StoreUnusableError(StoreError):
    """`why` is a clause about the location that ends with what to do about it."""

    code = "store_unusable"

    def __init__(self, location: str, why: str) -> None:
        super().__init__(f"cannot use {location}: {why}")


class TurnEndedError(TurnwireError):
    code = "turn_ended"

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"turn {turn_id!r} has ended; start a new one")
        self.turn_id = turn_id


class TurnNotWaitingError(TurnwireError):
    code = "turn_not_waiting"

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"turn {turn_id!r} does not wait for a decision; read its state")


class TurnTakenError(TurnwireError):
    code = "turn_taken"

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"another worker runs turn {turn_id!r}; send it a command")


class UnreadableDocumentError(TurnwireError):
    """`why` is a clause about the file; the caller adds its name."""

    code = "document_unreadable"

    def __init__(self, why: str) -> None:
        super().__init__(why)


def step_limit_reached() -> AgentError:
    """Return the error of a run that has made as many steps as its SDK allows."""
    return AgentError("the agent reached its step limit; send a smaller request", code="max_turns")
