"""A client's conversation: its earlier messages, the session and the turn they belong to, and answers to a turn.

Each wire translates its own messages into these values; what happens to them is decided here.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeVar, cast

from turnwire.core.errors import TurnNotFoundError
from turnwire.core.log.turns import Message, TurnRecord
from turnwire.core.people.suspension import Answer, ClientResultAnswer
from turnwire.server.attachments import Attachment
from turnwire.server.auth import Caller
from turnwire.server.messages import MessageBody, parse_fields
from turnwire.server.request import Request
from turnwire.server.services import Services
from turnwire.server.streams.stream import turn_headers
from turnwire.server.turns import Place, answer_json, answer_status, answer_turn, remaining_budget, turn_error

Item = TypeVar("Item")

MAX_TURNS = 200
"""The newest turns of a session in which the messages of a client are looked for."""


# History


class ClientHistory:
    """Reads the client's earlier messages, which a new session keeps from its first turn on, and their files."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.files: list[Attachment] = []

    @property
    def place(self) -> Place:
        return Place(history=self.messages, history_files=self.files)

    def add_question(self, text: str, files: Iterable[dict[str, Any]]) -> None:
        """Add a message of the user; `files` are the fields of its attachments. Raises HttpError 422."""
        attached = [parse_fields(Attachment, fields) for fields in files]
        self.files += attached
        self.messages.append(Message("user", text, attachments=tuple(file.described() for file in attached)))


def kept_messages(services: Services, messages: Sequence[Item]) -> Sequence[Item]:
    """Return the newest of the client's earlier messages: as many as agents get."""
    limit = 2 * services.settings.history_turns
    return messages[-limit:] if limit else ()


def call_arguments(args: Any) -> dict[str, Any]:
    """Return the arguments of a call from elsewhere, which may be any value."""
    return cast("dict[str, Any]", args) if isinstance(args, dict) else {"input": args}


# Answers


async def respond_with_answer(
    request: Request, services: Services, body: MessageBody, error_code: str | None = None
) -> None:
    """Start or join a turn, and answer when it has ended. Raises HttpError 500 with this code for a failed turn."""
    answer = await answer_turn(services, request, body)
    if answer is None:
        return
    record, state = answer
    if (failure := turn_error(state, error_code)) is not None:
        raise failure
    budget = await remaining_budget(services, request.caller.principal)
    await request.respond_json(answer_status(state), answer_json(state, budget), turn_headers(record))


async def find_turn_in(services: Services, caller: Caller, turn_id: str, session_id: str | None) -> TurnRecord:
    """Return a turn of a session, if the client names one. Raises TurnNotFoundError, SessionNotFoundError."""
    record = await services.store.find_turn(caller.principal, turn_id)
    if session_id is not None:
        session = await services.store.find_session(caller.principal, session_id)
        if session.id != record.session_id:
            raise TurnNotFoundError(record.id)
    return record


def missing_answers(open_ids: Collection[str], answered: Collection[str]) -> list[str]:
    """Return the open ids that a request does not answer; none for a repeated request, which answers no open one."""
    missing = [open_id for open_id in open_ids if open_id not in answered]
    return missing if len(missing) < len(open_ids) else []


async def record_answers(
    services: Services, caller: Caller, record: TurnRecord, answers: Sequence[Answer]
) -> TurnRecord:
    """Record the answers that a turn waits for, and return the turn as it is then. Repeated answers change nothing.

    Raises HttpError 403 and the errors of `TurnRunner.answer`.
    """
    for answer in answers:
        caller.needs("write" if isinstance(answer, ClientResultAnswer) else "approve")
    for answer in answers:
        await services.runner.answer(record.id, answer)
    return await services.store.find_turn(caller.principal, record.id)
