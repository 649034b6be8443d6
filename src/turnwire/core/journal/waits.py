"""Waits of a running turn: for the reply to a question, a decision, and the result of a tool that the client runs.

A wait is an orderly stop. Code that needs an answer awaits it; when no other call of the turn runs any more, the agent
is stopped and the turn is suspended, in one commit with the question or the call, so that what the log asks for can
always be answered. The answer is written into the log of the suspended turn (see `suspension`). Then any worker runs
the agent again: finished calls are answered from the journal, and the code that waits finds its answer in the log.

An answer belongs to a place in the journal, never to the order in which answers come.
"""

import asyncio
import hashlib
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct, field

from turnwire.core.errors import (
    AgentError,
    ClientToolConflictError,
    QuestionDeclinedError,
    ToolError,
    TurnEndedError,
)
from turnwire.core.journal.turn_journal import APPROVAL, TurnJournal, current_journal, parent_call
from turnwire.core.log.approvals import Decision
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    Event,
    QuestionEvent,
    ReplyEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from turnwire.core.log.scope import current_turn, weak_callback
from turnwire.core.log.turn_log import TurnLog
from turnwire.core.people.schemas import check_schema

CLIENT_TOOLS = "client_tools"
"""The option of a turn with the tools that its client runs."""
# How long a suspension waits for the result events of ended tools, which hooks of the application may delay.
_RESULT_PATIENCE_SECONDS = 2.0
_NONE: Mapping[str, Any] = MappingProxyType({})  # Shared by the turns that have none, so it is never changed.
_Awaited = QuestionEvent | ToolCallEvent | ApprovalRequestEvent


class ClientTool(Struct, frozen=True):
    """A tool that the client runs. `parameters` is the JSON schema of its arguments, an object."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})


def client_tools(options: Mapping[str, Any]) -> list[ClientTool]:
    """Return the client's tools in the options of a turn."""
    offered = options.get(CLIENT_TOOLS)
    return msgspec.convert(offered, list[ClientTool]) if offered else []


def check_names(own: Collection[str], offered: Iterable[ClientTool]) -> None:
    """Raise AgentError if a client's tool has the name of one of the agent's, which was not known at the start."""
    for tool in offered:
        if tool.name in own:
            raise AgentError(
                f"The agent has a tool {tool.name!r} of its own; give the client's another name.",
                code=ClientToolConflictError.code,
            )


class TurnWaits:
    """The questions and client calls that a running turn waits for. `on_idle` is called when nothing else runs."""

    __slots__ = ("__weakref__", "_announced", "_journal", "_log", "_loop", "_on_idle", "_open", "_patience", "tools")

    def __init__(
        self, log: TurnLog, journal: TurnJournal, tools: Mapping[str, ClientTool], on_idle: Callable[[], None]
    ) -> None:
        self.tools = tools
        self._log = log
        self._on_idle = on_idle
        self._loop = asyncio.get_running_loop()
        self._journal = journal
        journal.on_change = weak_callback(self._note_change)
        # What the code waits for, with the call in which it waits.
        self._open: tuple[tuple[str, _Awaited], ...] = ()
        self._patience: asyncio.TimerHandle | None = None
        # Calls of the client's tools that the agent has announced, and that are written when the turn waits for them.
        self._announced: Mapping[str, ToolCallEvent] = _NONE

    # What the agent writes about the client's tools

    def is_client_call(self, event: Event) -> bool:
        """Return True for a call of a tool that the client runs, or its result: sub-agents have no such tools."""
        return isinstance(event, ToolCallEvent | ToolResultEvent) and event.tool in self.tools and not event.agent_path

    def events_for(self, event: ToolCallEvent | ToolResultEvent) -> Iterator[Event]:
        """Yield what the log needs now of a call of the client's tool: the call itself comes with the suspension."""
        fold, call_id = self._log.fold, event.call_id
        if isinstance(event, ToolCallEvent):
            if not fold.has_call(call_id):
                self._announced = {**self._announced, call_id: msgspec.structs.replace(event, runs_on="client")}
            return
        if call := self._announced.get(call_id):
            self._announced = {key: each for key, each in self._announced.items() if key != call_id}
            yield call
        if call or fold.is_running(call_id):
            yield event

    # Waits

    async def reply(self, question: QuestionEvent) -> ReplyEvent:
        """Return the reply to a question. Without one, never return: the turn is suspended, and the agent stopped."""
        if (reply := self._log.fold.requests.replies.get(question.id)) is not None:
            return reply
        return await self._wait(question)

    async def client_result(self, call: ToolCallEvent) -> ToolResultEvent:
        """Return the client's result of a call. Without one, never return, like `reply`."""
        if (result := self._log.fold.requests.client_results.get(call.call_id)) is not None:
            return result
        return await self._wait(msgspec.structs.replace(call, runs_on="client"))

    async def decision(self, request: ApprovalRequestEvent) -> Decision:
        """Return a person's decision about a call that has not begun. Without one, never return, like `reply`."""
        if (decision := self._log.fold.decision(request.call_id)) is not None:
            return decision
        return await self._wait(request)

    async def _wait(self, event: _Awaited) -> Any:
        if self._log.ended:
            raise TurnEndedError(self._log.turn_id)  # The agent was left behind.
        self._open += ((parent_call.get(), event),)
        self._note_change()
        try:
            for limit in _time_limits.get():
                limit.reschedule(None)  # The time that others take is not the tool's.
            await self._loop.create_future()
        finally:
            # When the turn is being suspended, the wait is cancelled, and is what the turn is suspended for.
            if not self._journal.is_closed:
                self._open = tuple(each for each in self._open if each[1] is not event)

    def _note_change(self) -> None:
        if self._open:
            self._loop.call_soon_threadsafe(self._check)

    def _check(self) -> None:
        """Call `on_idle` if the turn can be suspended now."""
        if not self._only_waits:
            return
        if self._journal.shows_results:
            self._on_idle()
        elif self._patience is None:
            self._patience = self._loop.call_later(_RESULT_PATIENCE_SECONDS, self._stop_waiting)

    def _stop_waiting(self) -> None:
        if self._only_waits:
            self._on_idle()
        self._patience = None

    @property
    def _only_waits(self) -> bool:
        """Return True if the turn still runs, and all that it does is wait for answers."""
        places = {place for place, _ in self._open}
        return bool(places) and not self._journal.is_closed and self._journal.waits_at(places)

    def events(self) -> Iterator[Event]:
        """Yield the requests, questions and calls that the turn waits for and that are not in its log."""
        fold = self._log.fold
        awaited = [event for _, event in self._open]
        requests = [each for each in awaited if isinstance(each, ApprovalRequestEvent)]
        calls = [each for each in awaited if isinstance(each, ToolCallEvent)]
        questions = [each for each in awaited if isinstance(each, QuestionEvent)]
        for request in requests:
            if not fold.has_call(request.call_id):
                yield ToolCallEvent(request.call_id, request.tool, request.args, agent_path=request.agent_path)
            if fold.requests.approval_request(request.call_id) is None:
                yield request
        yield from (call for call in calls if not fold.has_call(call.call_id))
        yield from (question for question in questions if fold.requests.questions.get(question.id) is None)


_time_limits: ContextVar[tuple[asyncio.Timeout, ...]] = ContextVar("turnwire_time_limits", default=())


def current_waits() -> TurnWaits | None:
    """Return the waits of the running turn, or None outside a turn."""
    scope = current_turn()
    return None if scope is None else scope.waits


@contextmanager
def limited_by(limit: asyncio.Timeout) -> Generator[None]:
    """Lift a tool's time limit when the tool, or one inside it, begins to wait for an answer."""
    token = _time_limits.set((*_time_limits.get(), limit))
    try:
        yield
    finally:
        _time_limits.reset(token)


def _current(function: str) -> tuple[TurnWaits | None, TurnJournal]:
    journal = current_journal()
    if journal is None:
        raise AgentError(f"{function} works inside a turn, on the server's event loop: in an `async def`, in no thread")
    return current_waits(), journal


async def ask(prompt: str, schema: dict[str, Any] | None = None, *, agent_path: tuple[str, ...] = ()) -> Any:
    """Ask the user, and return the answer: a value that fits the JSON schema, or any JSON value without one.

    For tools and agents. The turn is suspended until there is a reply, in any process and for as long as
    `approval_timeout` allows; then the tool that asks runs again from its beginning, and `ask` returns. So the code
    before it runs twice. `agent_path` is for adapters, of questions outside a tool. Raises QuestionDeclinedError, whose
    message a model may read, ValueError for a schema that is no flat form (see `core.people.schemas`), and AgentError
    outside such a turn.
    """
    waits, journal = _current("ask()")
    if schema is not None:
        check_schema(schema)
    place, caller = journal.place("ask"), journal.running_call()
    question = QuestionEvent(
        _id("q", journal, place),
        prompt,
        schema,
        caller and caller.call_id,
        agent_path=caller.agent_path if caller else agent_path,
    )
    details = {"prompt": prompt, "schema": schema}
    with await journal.begin_tool(place, question.id, "ask", details, repeatable=True) as call:
        recorded: dict[str, Any] = call.result
        if call.is_live:
            assert waits is not None
            reply = await waits.reply(question)
            recorded = {"value": reply.value, "declined": reply.declined, "reason": reply.reason}
            call.finish(recorded)
    if recorded["declined"]:
        raise QuestionDeclinedError(recorded["reason"])
    return recorded["value"]


async def approval(request: ApprovalRequestEvent) -> Decision:
    """Return a person's decision about a tool call, which may begin then, with the `args` of the decision.

    The turn is suspended until there is one; then the agent runs again, and the same call gets the decision. The
    decision is recorded, since the call may be asked about again if it breaks off. The log gets a `tool_call` with the
    request, unless it has one. Raises AgentError outside a turn.
    """
    waits, journal = _current("approval()")
    place = journal.place("approval", request.call_id)
    call_id, details = _id("a", journal, place), {"call_id": request.call_id, "args": request.args}
    journal.ended_calls.discard(request.call_id)  # A call that has ended to wait for its approval has no result.
    with await journal.begin_tool(place, call_id, APPROVAL, details, repeatable=True) as call:
        if not call.is_live:
            return msgspec.convert(call.result, Decision)
        assert waits is not None
        decision = await waits.decision(request)
        call.finish(msgspec.to_builtins(decision))
    return decision


async def call_client_tool(name: str, args: dict[str, Any] | None = None) -> Any:
    """Let the client run one of the tools that it has declared for this turn, and return its result.

    For agents that are functions, with `takes_client_tools = True`; `turn.options["client_tools"]` has the tools.
    Raises ToolError if the client reports an error, and AgentError if it has no such tool.
    """
    waits, journal = _current("call_client_tool()")
    if waits is not None and name not in waits.tools:
        raise AgentError(f"the client has no tool {name!r}")
    place = journal.place("client", name)
    event = ToolCallEvent(_id("call", journal, place), name, args or {}, runs_on="client")
    with await journal.begin_tool(place, event.call_id, name, event.args) as call:
        recorded = call.result
        if call.is_live:
            assert waits is not None
            result = await waits.client_result(event)
            recorded = {"success": result.success, "result": result.result}
            call.finish(recorded)
    if not recorded["success"]:
        raise ToolError(result_text(recorded["result"]))
    return recorded["result"]


async def client_result(call_id: str, tool: str, args: dict[str, Any]) -> ToolResultEvent:
    """Return the client's result of a call that a model has made. Called by adapters, inside the journaled call."""
    waits = current_waits()
    assert waits is not None
    return await waits.client_result(ToolCallEvent(call_id, tool, args))


def result_text(result: Any) -> str:
    """Return a client's result as a model gets it: text as it is, and anything else as JSON."""
    return result if isinstance(result, str) else msgspec.json.encode(result).decode()


def _id(kind: str, journal: TurnJournal, place: str) -> str:
    digest = hashlib.blake2b(f"{journal.recording.segment} {place}".encode(), digest_size=8)
    return f"{kind}_{digest.hexdigest()}"
