"""The MCP server: its tools and resources, as the turns and documents of the caller."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec import Struct

from turnwire.core.contracts.agents import description_of
from turnwire.core.errors import TurnwireError
from turnwire.core.log.codec import ascii_json, begins_wait, time_text
from turnwire.core.log.follow import follow
from turnwire.core.log.turns import Question, Step, TurnRecord, TurnState
from turnwire.core.people.suspension import DecisionAnswer, ReplyAnswer
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError, http_error, invalid_request
from turnwire.server.messages import MessageBody, check_id, parse_fields
from turnwire.server.services import Services
from turnwire.server.streams.connection import Receive, Send
from turnwire.server.turns import start_turn, turn_state
from turnwire.wires.mcp.encoder import progress_lines, turn_content, turn_text
from turnwire.wires.mcp.messages import (
    AskArguments,
    DecideArguments,
    GetTurnArguments,
    ListSessionsArguments,
    SearchArguments,
    ToolArguments,
    TurnArguments,
    decode_state,
    encode_state,
    input_schema,
)
from turnwire.wires.progress import (
    approval_question,
    open_questions,
    question_schema,
    question_value,
    status_of,
    waiting_steps,
)

logger = logging.getLogger("turnwire.wires.mcp")

Context = ServerRequestContext[Any, Any]
CallResult = types.CallToolResult | types.InputRequiredResult

ASK = "ask_"
_DOCUMENTS = "turnwire://documents/"
_PAGE = 100
_MAX_NAME = 128
_INSTRUCTIONS = (
    "Each agent is a tool, ask_<agent>. A turn runs on the server and outlives the call: if a call ends before its "
    "turn, get_turn returns the rest. Pass the session of a result to continue its conversation."
)
_DECISION: dict[str, Any] = {
    "type": "object",
    "properties": {
        "approve": {"type": "boolean", "title": "Allow the call"},
        "reason": {"type": "string", "title": "Reason"},
    },
    "required": ["approve"],
}


class _Call(Struct, frozen=True):
    """One call of a tool: the host's context and parameters, and the authenticated caller."""

    context: Context
    params: types.CallToolRequestParams
    caller: Caller

    def arguments(self, model: type[ToolArguments]) -> Any:
        """Return the arguments as their model. Raises HttpError 422."""
        return parse_fields(model, self.params.arguments or {})


class _ToolEntry(Struct, frozen=True):
    """A tool as it is listed, and the function that answers its calls."""

    tool: types.Tool
    function: Callable[[_Call], Awaitable[CallResult]]


class McpService:
    """An MCP server of a Turnwire server's agents.

    `caller` is the caller of every request over stdio; over HTTP each request has its own. Nothing is kept between two
    requests, so any process of the server can answer any of them.
    """

    def __init__(self, services: Services, caller: Caller | None = None) -> None:
        self._services = services
        self._caller = caller
        self._documents = services.documents
        has_documents = self._documents is not None
        self.server: Server[Any] = Server(
            "turnwire",
            version=services.version,
            instructions=_INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources if has_documents else None,
            on_read_resource=self._read_resource if has_documents else None,
        )
        # A manager for each request would log its start and its end each time.
        manager_logger = logging.getLogger(StreamableHTTPSessionManager.__module__)
        if manager_logger.level == logging.NOTSET:
            manager_logger.setLevel(logging.WARNING)

    async def answer(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one HTTP request, whose body the server has limited already."""
        limit = max(1, self._services.settings.max_body_bytes)
        manager = StreamableHTTPSessionManager(self.server, stateless=True, max_request_body_size=limit)
        async with manager.run():
            await manager.handle_request(scope, receive, send)  # pyright: ignore[reportArgumentType]

    def _caller_of(self, context: Context) -> Caller:
        if self._caller is not None:
            return self._caller
        assert context.request is not None
        return context.request.scope["turnwire.caller"]

    # Tools

    async def _list_tools(self, context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[entry.tool for entry in self._tools(self._caller_of(context)).values()])

    async def _call_tool(self, context: Context, params: types.CallToolRequestParams) -> CallResult:
        call = _Call(context, params, self._caller_of(context))
        entry = self._tools(call.caller).get(params.name)
        if entry is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name!r}")
        try:
            return await entry.function(call)
        except TurnwireError as error:
            return _error_result(http_error(error))
        except HttpError as error:
            return _error_result(error)
        except MCPError:
            raise
        except Exception:
            logger.exception("the tool %s failed", params.name)
            return _error_result(HttpError(500, "internal_error", "an unexpected error occurred; see the server's log"))

    def _tools(self, caller: Caller) -> Mapping[str, _ToolEntry]:
        """Return the tools that the caller's scopes allow."""
        tools: dict[str, _ToolEntry] = {}

        def add(
            name: str,
            description: str,
            model: type[ToolArguments],
            function: Callable[[_Call], Awaitable[CallResult]],
            *,
            changes: bool,
        ) -> None:
            hints = types.ToolAnnotations(read_only_hint=not changes)
            tool = types.Tool(name=name, description=description, input_schema=input_schema(model), annotations=hints)
            tools[name] = _ToolEntry(tool, function)

        if "write" in caller.scopes:
            for name, agent in self._services.agents.items():
                about = description_of(agent) or f"Ask the agent {name}."
                add(_tool_name(name, tools), about, AskArguments, self._asking(name), changes=True)
            add("stop_turn", "Stop a running turn.", TurnArguments, self._stop_turn, changes=True)
        if "read" in caller.scopes:
            about = "Return a turn: its status and its answer so far. Waits for one that is still running."
            add("get_turn", about, GetTurnArguments, self._get_turn, changes=False)
            about = "List the caller's sessions, newest activity first."
            add("list_sessions", about, ListSessionsArguments, self._list_sessions, changes=False)
            if self._documents is not None:
                about = "Search the server's documents, and return the passages that fit best."
                add("search_documents", about, SearchArguments, self._search_documents, changes=False)
        if "approve" in caller.scopes:
            about = "Allow or refuse a tool call that a turn waits for. Only with the user's own decision."
            add("decide", about, DecideArguments, self._decide, changes=True)
        return tools

    def _asking(self, agent: str) -> Callable[[_Call], Awaitable[CallResult]]:
        async def ask(call: _Call) -> CallResult:
            arguments: AskArguments = call.arguments(AskArguments)
            if call.params.request_state is not None:
                return await self._continue(call, arguments.wait)
            body = parse_fields(
                MessageBody, {"message": arguments.message, "session_id": arguments.session, "agent": agent}
            )
            principal = call.caller.principal
            with self._services.streams.room(principal):
                accepted = await start_turn(self._services, principal, body, channel="mcp")
                return await self._settle(call, accepted.record, arguments.wait, after=0)

        return ask

    async def _get_turn(self, call: _Call) -> CallResult:
        arguments: GetTurnArguments = call.arguments(GetTurnArguments)
        if call.params.request_state is not None:
            return await self._continue(call, arguments.wait)
        record = await self._find_turn(call, arguments.turn_id)
        with self._services.streams.room(call.caller.principal):
            return await self._settle(call, record, arguments.wait)

    async def _stop_turn(self, call: _Call) -> CallResult:
        record = await self._find_turn(call, call.arguments(TurnArguments).turn_id)
        await self._services.runner.cancel(record.id)
        return await self._turn_result(call, record)

    async def _decide(self, call: _Call) -> CallResult:
        arguments: DecideArguments = call.arguments(DecideArguments)
        record = await self._find_turn(call, arguments.turn_id)
        by = call.caller.principal
        answer = DecisionAnswer(call_id=arguments.call_id, approved=arguments.approve, reason=arguments.reason, by=by)
        await self._services.runner.answer(record.id, answer)
        return await self._turn_result(call, record)

    async def _list_sessions(self, call: _Call) -> CallResult:
        arguments: ListSessionsArguments = call.arguments(ListSessionsArguments)
        principal, slots = call.caller.principal, self._services.searches
        async with (slots if arguments.search else self._services.requests).slot(principal):
            sessions = await self._services.store.list_sessions(
                principal, search=arguments.search, limit=arguments.limit
            )
        return _json_result(
            {
                "sessions": [
                    {
                        "session": session.external_id or session.id,
                        "title": session.title,
                        "turns": session.turn_count,
                        "updated_at": time_text(session.updated_at),
                    }
                    for session in sessions
                ]
            }
        )

    async def _search_documents(self, call: _Call) -> CallResult:
        arguments: SearchArguments = call.arguments(SearchArguments)
        assert self._documents is not None
        principal = call.caller.principal
        async with self._services.searches.slot(principal):
            passages = await self._documents.search(arguments.query, owner=principal, limit=arguments.limit)
        return _json_result(
            {
                "passages": [
                    {
                        "uri": _DOCUMENTS + passage.document_id,
                        "title": passage.title,
                        "heading": passage.heading,
                        "page_number": passage.page,
                        "text": passage.text,
                    }
                    for passage in passages
                ]
            }
        )

    # Turns

    async def _find_turn(self, call: _Call, turn_id: str) -> TurnRecord:
        return await self._services.store.find_turn(call.caller.principal, check_id(turn_id))

    async def _continue(self, call: _Call, wait: float) -> CallResult:
        """Take the decisions that a host sends with its repeated call, and wait for the turn again."""
        state = decode_state(call.params.request_state or "")
        record = await self._find_turn(call, state.turn_id)
        is_complete = True
        for call_id, answer in (call.params.input_responses or {}).items():
            if not isinstance(answer, types.ElicitResult) or call_id not in state.shown:
                raise invalid_request(f"inputResponses: {call_id!r} was not asked for")
            is_complete &= await self._take_answer(call, record, call_id, state.shown[call_id], answer)
        with self._services.streams.room(call.caller.principal):
            return await self._settle(call, record, wait, asks=is_complete)

    async def _settle(
        self, call: _Call, record: TurnRecord, wait: float, *, after: int | None = None, asks: bool = True
    ) -> CallResult:
        """Wait until the turn has ended, waits for a person, or the time is up. Ask the person, if the host can."""
        deadline = asyncio.get_running_loop().time() + wait
        while True:
            state = await turn_state(self._services.store, record)
            if status_of(state) == "running" or after == 0:
                await self._watch(call, record, state.position if after is None else after, deadline)
                state = await self._current_state(call, record)
            steps, questions = waiting_steps(state), open_questions(state)
            forms = {step.id: _decision_form(step) for step in steps}
            forms |= {question.id: _question_form(question) for question in questions}
            if not (forms and asks and "approve" in call.caller.scopes and can_elicit(call.context)):
                return _turn_result(call, state)
            if call.context.protocol_version in MODERN_PROTOCOL_VERSIONS:
                requests = {name: types.ElicitRequest(params=form) for name, form in forms.items()}
                return types.InputRequiredResult(
                    input_requests={**requests}, request_state=encode_state(record.id, steps, questions)
                )
            seen = {step.id: step.args for step in steps}
            for name, form in forms.items():
                answer = await call.context.session.elicit_form(
                    form.message, form.requested_schema, call.context.request_id
                )
                asks &= await self._take_answer(call, record, name, seen.get(name), answer)
            after, deadline = None, asyncio.get_running_loop().time() + wait

    async def _take_answer(
        self, call: _Call, record: TurnRecord, call_id: str, shown: dict[str, Any] | None, answer: types.ElicitResult
    ) -> bool:
        """Record a person's decision about a call, or reply to a question. Return False if there is none."""
        call.caller.needs("approve")
        if answer.action == "cancel":
            return False
        state = await self._current_state(call, record)
        question = next((question for question in state.questions if question.id == call_id), None)
        taken = _decision_of(call, call_id, shown, answer) if question is None else _reply_of(call, question, answer)
        await self._services.runner.answer(record.id, taken)
        return True

    async def _watch(self, call: _Call, record: TurnRecord, after: int, deadline: float) -> None:
        """Report the turn's progress until it has settled, the time is up, or the server shuts down."""
        watching = asyncio.create_task(self._report(call, record, after))
        leaving = asyncio.create_task(self._services.lifecycle.leaving.wait())
        try:
            seconds = max(0.0, deadline - asyncio.get_running_loop().time())
            await asyncio.wait([watching, leaving], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # The turn belongs to the server: a host that leaves ends only this wait.
            watching.cancel()
            leaving.cancel()
        if watching.done() and not watching.cancelled():
            watching.result()

    async def _report(self, call: _Call, record: TurnRecord, after: int) -> None:
        async with aclosing(follow(self._services.store, record.id, after)) as batches:
            async for events in batches:
                self._check_key(call)
                for line in progress_lines(events):
                    await call.context.session.report_progress(line.position, message=line.text)
                # A request may have been decided long ago; only the state tells whether the turn still waits.
                if any(map(begins_wait, events)) and status_of(await self._current_state(call, record)) == "waiting":
                    return

    def _check_key(self, call: _Call) -> None:
        """Raise HttpError 401 if the caller's key was revoked or has expired since the call began."""
        if call.caller.key_id is not None and self._services.keys.valid(call.caller.key_id) is None:
            raise HttpError(401, "unauthorized", "the API key is no longer valid")

    async def _current_state(self, call: _Call, record: TurnRecord) -> TurnState:
        self._check_key(call)
        record = await self._services.store.find_turn(call.caller.principal, record.id)
        return await turn_state(self._services.store, record)

    async def _turn_result(self, call: _Call, record: TurnRecord) -> types.CallToolResult:
        return _turn_result(call, await self._current_state(call, record))

    # Resources

    async def _list_resources(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        caller, after = self._readable(context), params.cursor if params else None
        assert self._documents is not None
        try:
            async with self._services.requests.slot(caller.principal):
                documents = await self._documents.list_documents(owner=caller.principal, after=after, limit=_PAGE + 1)
        except TurnwireError as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from error
        page = documents[:_PAGE]
        return types.ListResourcesResult(
            resources=[
                types.Resource(
                    uri=_DOCUMENTS + document.id, name=document.name, title=document.title, mime_type="text/plain"
                )
                for document in page
            ],
            next_cursor=page[-1].id if len(documents) > _PAGE else None,
        )

    async def _read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        caller = self._readable(context)
        assert self._documents is not None
        document_id = params.uri.removeprefix(_DOCUMENTS) if params.uri.startswith(_DOCUMENTS) else ""
        try:
            async with self._services.requests.slot(caller.principal):
                text = await self._documents.read_document(document_id, owner=caller.principal)
        except TurnwireError as error:
            raise MCPError(types.INVALID_PARAMS, str(error), {"uri": params.uri}) from error
        contents = types.TextResourceContents(uri=params.uri, mime_type="text/plain", text=text)
        return types.ReadResourceResult(contents=[contents])

    def _readable(self, context: Context) -> Caller:
        caller = self._caller_of(context)
        try:
            caller.needs("read")
        except HttpError as error:
            raise MCPError(types.INVALID_REQUEST, str(error)) from error
        return caller


def _tool_name(agent: str, taken: Mapping[str, Any]) -> str:
    """Return the name of an agent's tool, with `_` for each character that hosts refuse."""
    base = (ASK + re.sub("[^a-zA-Z0-9_-]", "_", agent))[: _MAX_NAME - 4]
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    return name


def can_elicit(context: Context) -> bool:
    """Return True if the host can show a form to the person."""
    capabilities = context.session.client_capabilities
    elicitation = capabilities.elicitation if capabilities else None
    if elicitation is None or (elicitation.url is not None and elicitation.form is None):
        return False
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS or context.session.can_send_request


def _decision_of(call: _Call, call_id: str, shown: dict[str, Any] | None, answer: types.ElicitResult) -> DecisionAnswer:
    content = answer.content or {}
    approved, reason = answer.action == "accept" and content.get("approve") is True, content.get("reason")
    reason = reason if isinstance(reason, str) and reason else None
    return DecisionAnswer(call_id=call_id, approved=approved, reason=reason, by=call.caller.principal, args=shown)


def _reply_of(call: _Call, question: Question, answer: types.ElicitResult) -> ReplyAnswer:
    declined = answer.action == "decline"
    value = None if declined else question_value(question, {**(answer.content or {})})
    return ReplyAnswer(question_id=question.id, value=value, declined=declined, by=call.caller.principal)


def _decision_form(step: Step) -> types.ElicitRequestFormParams:
    return types.ElicitRequestFormParams(message=approval_question(step), requested_schema=_DECISION)


def _question_form(question: Question) -> types.ElicitRequestFormParams:
    return types.ElicitRequestFormParams(message=question.prompt, requested_schema=question_schema(question))


def _turn_result(call: _Call, state: TurnState) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(text=turn_text(state, can_decide="approve" in call.caller.scopes))],
        structured_content=turn_content(state),
        is_error=state.outcome in ("failed", "interrupted"),
    )


def _json_result(content: dict[str, Any]) -> types.CallToolResult:
    text = ascii_json(content).decode()
    return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=content)


def _error_result(error: HttpError) -> types.CallToolResult:
    content = {"error": {"code": error.code, "message": str(error), **error.more}}
    return types.CallToolResult(content=[types.TextContent(text=str(error))], structured_content=content, is_error=True)
