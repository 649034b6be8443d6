"""The operations of A2A: messages that start tasks or answer their questions, tasks, and push configurations.

Both bindings and both versions share this module; they differ in how requests are read and results are written.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from turnwire.core.contracts.stores import TurnFilter, TurnStatus
from turnwire.core.errors import SessionNotFoundError, TurnNotFoundError
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.follow import fold_log
from turnwire.core.log.state import TurnFold
from turnwire.core.log.turns import TurnRecord, TurnState
from turnwire.core.people.suspension import Answer, DecisionAnswer
from turnwire.server.auth import Caller
from turnwire.server.messages import parse_frame_number
from turnwire.server.request import Request
from turnwire.server.services import Services
from turnwire.server.streams.resume import FRAMES, START, LogVisitor, ResumePoint, find_point, walk_log
from turnwire.server.streams.stored_log import StateReader
from turnwire.server.streams.stream import Stream, location_header, stream_turn, turn_headers
from turnwire.server.turns import settled_turn, start_turn, turn_state
from turnwire.wires.a2a.encoder import A2a
from turnwire.wires.a2a.frames import (
    PREFIX,
    TaskIds,
    Version,
    changed_at,
    legacy_task,
    statuses_of,
    task_of_record,
    task_of_state,
)
from turnwire.wires.a2a.messages import (
    INVALID_PARAMS,
    NOT_CANCELABLE,
    UNSUPPORTED,
    A2aError,
    CallDecision,
    ListTasksParams,
    PushConfig,
    PushParams,
    SendParams,
    SetPushParams,
    TaskParams,
    prompt_body,
    read_answers,
)
from turnwire.wires.a2a.push import CHANNEL, PushConfigs, PushSender, StoredConfig, check_address
from turnwire.wires.a2a.settings import A2aSettings
from turnwire.wires.conversation import record_answers
from turnwire.wires.frames import frame

_MAX_COUNTED = 1_000


class TaskCall(Struct, frozen=True):
    """One call of an operation of an agent; `request_id` is that of a JSON-RPC request, as JSON."""

    request: Request
    services: Services
    agent: str
    version: Version = "1.0"
    request_id: bytes | None = None

    @property
    def caller(self) -> Caller:
        return self.request.caller

    def wire(self, record: TurnRecord) -> A2a:
        return A2a(self.version, self.request_id, TaskIds.of_record(record))

    def task(self, task: dict[str, Any]) -> dict[str, Any]:
        """Return a task in the version of the call."""
        return legacy_task(task) if self.version == "0.3" else task

    async def find(self, task_id: str) -> TurnRecord:
        """Return the turn of a task of this agent. Raises TurnNotFoundError, also for a task of another one."""
        record = await self.services.store.find_turn(self.caller.principal, task_id)
        if record.agent != self.agent:
            raise TurnNotFoundError(task_id)
        return record


# Messages


async def send(call: TaskCall, params: SendParams) -> dict[str, Any] | None:
    """Return the task that a message starts or answers, once it has settled. None if the client left before."""
    with call.services.streams.room(call.caller.principal):
        record, _ = await _take(call, params)
        if params.configuration.waits:
            settled = await settled_turn(call.services, call.request, record)
            if settled is None:
                return None
            record, state = settled
        else:
            state = await turn_state(call.services.store, record)
    task = task_of_state(state, record, params.configuration.history_length)
    return call.task(task) if call.version == "0.3" else {"task": task}


async def send_streaming(call: TaskCall, params: SendParams) -> Stream:
    """Stream the task that a message starts or answers."""
    with call.services.streams.room(call.caller.principal):
        record, created = await _take(call, params)
        point = START if created else await _snapshot_point(call.services.store, record, call.wire(record))
        return _stream(call, record, point)


async def _take(call: TaskCall, params: SendParams) -> tuple[TurnRecord, bool]:
    """Start a task, or take a message to one that waits. Return its turn, and True if it was created."""
    call.caller.needs("write")
    if params.configuration.push is not None:
        check_address(params.configuration.push.url, call.services.settings.of(A2aSettings).push_networks)
    if params.message.task_id is not None:
        record, created = await _answer(call, params, params.message.task_id), False
    else:
        # A message that is sent again joins its task.
        key = f"a2a:{call.agent}:{params.message.message_id}"
        body = prompt_body(params, call.agent)
        accepted = await start_turn(call.services, call.caller.principal, body, key, channel=CHANNEL)
        record, created = accepted.record, accepted.created
    if params.configuration.push is not None:
        await _add_push(call, record, params.configuration.push)
    return record, created


async def _answer(call: TaskCall, params: SendParams, task_id: str) -> TurnRecord:
    """Take the answers in a message to a task that waits."""
    record, sent = await call.find(task_id), params.message
    if sent.context_id not in (None, record.session_id, TaskIds.of_record(record).context_id):
        raise A2aError(INVALID_PARAMS, "message.contextId: the task belongs to another context; leave it out")
    if record.phase == "ended":
        raise A2aError(UNSUPPORTED, "the task has ended; send the message with its contextId alone")
    fold = await fold_log(call.services.store, record.id)
    waiting, questions = [request.call_id for request in fold.requests.undecided], fold.requests.open_questions
    if not fold.requests.is_waiting:
        # The same message may have been taken before; repeating an answer changes nothing.
        waiting = [decision.call_id for decision in fold.decisions]
        questions = list(fold.requests.questions.values())[-1:]
        if not waiting and not questions:
            raise A2aError(UNSUPPORTED, "the task runs and waits for no message; send it with the contextId alone")
    answers = read_answers(sent, decides=bool(waiting), question=questions[0] if len(questions) == 1 else None)
    by = call.caller.principal
    taken: list[Answer] = [
        DecisionAnswer(call_id=call_id, approved=decision.approved, reason=decision.reason, by=by)
        for call_id, decision in _by_call(answers.approvals, waiting).items()
    ]
    taken += [reply.answer(by) for reply in answers.replies]
    taken += [result.answer() for result in answers.tool_results]
    return await record_answers(call.services, call.caller, record, taken)


def _by_call(decisions: list[CallDecision], waiting: list[str]) -> Mapping[str, CallDecision]:
    """Return the decisions by call id; a single decision without a call id is about all calls that wait."""
    if len(decisions) == 1 and decisions[0].call_id is None:
        return dict.fromkeys(waiting, decisions[0])
    if any(decision.call_id is None for decision in decisions):
        raise A2aError(INVALID_PARAMS, "message.parts: each of several approvals needs a call_id")
    return {decision.call_id or "": decision for decision in decisions}


def _stream(call: TaskCall, record: TurnRecord, point: ResumePoint) -> Stream:
    path = f"{PREFIX}{call.request.params['agent']}/tasks/{record.id}"
    headers = [*turn_headers(record), location_header(call.request, path)]
    return stream_turn(call.request, call.services, record, call.wire(record), point, headers)


# Tasks


async def get_task(call: TaskCall, params: TaskParams) -> dict[str, Any]:
    call.caller.needs("read")
    record = await call.find(params.id)
    async with call.services.requests.slot(call.caller.principal):
        state = await turn_state(call.services.store, record)
    return call.task(task_of_state(state, record, params.history_length))


async def cancel_task(call: TaskCall, params: TaskParams) -> dict[str, Any]:
    """Stop a task, and return it when it has stopped. Raises A2aError for one that has ended."""
    call.caller.needs("write")
    record = await call.find(params.id)
    if record.phase == "ended":
        raise A2aError(NOT_CANCELABLE, "the task has ended")
    await call.services.runner.cancel(record.id)
    record = await call.find(params.id)
    return call.task(task_of_state(await turn_state(call.services.store, record), record))


async def subscribe(call: TaskCall, params: TaskParams) -> Stream:
    """Stream a task: what follows the last frame that the client has, or the task as it stands and what follows.

    Raises A2aError for a task that has ended, unless the client names the last frame that it has.
    """
    call.caller.needs("read")
    record, store = await call.find(params.id), call.services.store
    last_id = call.request.header(b"last-event-id")
    if not last_id and record.phase == "ended":
        raise A2aError(UNSUPPORTED, "the task has ended; get it instead")
    with call.services.streams.room(call.caller.principal):
        if last_id:
            number = parse_frame_number(last_id, "Last-Event-ID")
            point = await find_point(store, record.id, call.wire(record), FRAMES, number)
        else:
            point = await _snapshot_point(store, record, call.wire(record))
        return _stream(call, record, point)


async def list_tasks(call: TaskCall, params: ListTasksParams) -> dict[str, Any]:
    """Return the tasks of the caller with this agent, newest first."""
    call.caller.needs("read")
    session_id = None
    if params.context_id is not None:
        try:
            session_id = (await call.services.store.find_session(call.caller.principal, params.context_id)).id
        except SessionNotFoundError:
            return _task_page([], params, "", 0)
    statuses = statuses_of(params.status)
    if params.page_token is not None:
        try:
            await call.find(params.page_token)
        except TurnNotFoundError:
            raise A2aError(INVALID_PARAMS, "pageToken: not a token of this server, or its task was deleted") from None
    async with call.services.requests.slot(call.caller.principal):
        found = await _list(call, session_id, statuses, params.page_size + 1, params.page_token)
        page, is_whole = found[: params.page_size], len(found) <= params.page_size
        total = len(page)
        if not is_whole or params.page_token is not None:
            total = len(await _list(call, session_id, statuses, _MAX_COUNTED, None))
        since = params.status_timestamp_after
        if since is not None:
            page = [record for record in page if changed_at(record) >= since.timestamp() * 1000]
        tasks = [await _listed(call, record, params) for record in page]
    return _task_page(tasks, params, "" if is_whole else found[params.page_size - 1].id, total)


def _task_page(tasks: list[dict[str, Any]], params: ListTasksParams, token: str, total: int) -> dict[str, Any]:
    return {"tasks": tasks, "nextPageToken": token, "pageSize": params.page_size, "totalSize": total}


async def _list(
    call: TaskCall, session_id: str | None, statuses: list[TurnStatus | None], limit: int, before: str | None
) -> list[TurnRecord]:
    """Return the newest turns with one of the statuses, newest first."""
    found: list[TurnRecord] = []
    for status in statuses:
        where = TurnFilter(agent=call.agent, status=status, before=before)
        found += await call.services.store.list_turns(
            call.caller.principal, session_id=session_id, limit=limit, where=where
        )
    return sorted(found, key=lambda record: record.id, reverse=True)[:limit]


async def _listed(call: TaskCall, record: TurnRecord, params: ListTasksParams) -> dict[str, Any]:
    if not params.include_artifacts:
        return task_of_record(record, params.history_length)
    task = task_of_state(await turn_state(call.services.store, record), record, params.history_length)
    return {"artifacts": [], **task}


# Snapshots


class _Snapshot(LogVisitor):
    """Folds the events of a log that count."""

    def begin(self) -> None:
        self.fold = TurnFold()

    def visit(self, logged: LoggedEvent) -> None:
        self.fold.add(logged)


async def _snapshot_point(store: StateReader, record: TurnRecord, wire: A2a) -> ResumePoint:
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


# Push configurations


async def _add_push(call: TaskCall, record: TurnRecord, config: PushConfig) -> StoredConfig:
    stored = await PushConfigs(call.services.store).add(record, config, call.version)
    # The task may have settled before its configuration was stored.
    call.services.of(PushSender).settled(record)
    return stored


async def set_push(call: TaskCall, params: SetPushParams) -> dict[str, Any]:
    call.caller.needs("write")
    record = await call.find(params.task_id)
    check_address(params.config.url, call.services.settings.of(A2aSettings).push_networks)
    return (await _add_push(call, record, params.config)).as_json(record.id)


async def get_push(call: TaskCall, params: PushParams) -> dict[str, Any]:
    call.caller.needs("read")
    record = await call.find(params.task_id)
    return (await PushConfigs(call.services.store).find(record, params.id)).as_json(record.id)


async def list_push(call: TaskCall, params: PushParams) -> dict[str, Any] | list[dict[str, Any]]:
    call.caller.needs("read")
    record = await call.find(params.task_id)
    configs = [config.as_json(record.id) for config in await PushConfigs(call.services.store).list(record)]
    return configs if call.version == "0.3" else {"configs": configs, "nextPageToken": ""}


async def delete_push(call: TaskCall, params: PushParams) -> dict[str, Any] | None:
    call.caller.needs("write")
    record = await call.find(params.task_id)
    if params.id is None:
        raise A2aError(INVALID_PARAMS, "id: name the configuration to delete")
    await PushConfigs(call.services.store).remove(record, params.id)
    return None if call.version == "0.3" else {}
