"""The agent of an editor: its sessions are ours, its prompts are turns, and its permissions are approvals.

A question of a turn is an elicitation, if the editor has them, or a choice of options. Any other question is text in
the agent's message: the prompt ends, and the next prompt is the answer.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from turnwire.core.contracts.stores import OnBusy
from turnwire.core.errors import TurnwireError
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    DoneEvent,
    ErrorEvent,
    Event,
    MessageEvent,
    QuestionEvent,
    ReplyEvent,
)
from turnwire.core.log.turns import TurnState
from turnwire.core.people.schemas import TextForm, find_problem
from turnwire.server.errors import HttpError
from turnwire.server.messages import parse_fields
from turnwire.wires.acp.connection import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    RpcConnection,
    RpcError,
)
from turnwire.wires.acp.encoder import (
    Positioned,
    SessionUpdates,
    Update,
    choice_call,
    choice_made,
    choice_request,
    form_request,
    permission_request,
    standing_events,
    state_updates,
    text_chunk,
)
from turnwire.wires.acp.hosts import AgentChoice, HostedTurn, ServerHost
from turnwire.wires.acp.messages import (
    PROTOCOL_VERSION,
    AcpModel,
    InitializeParams,
    ListSessionsParams,
    ModeParams,
    NewSessionParams,
    PromptParams,
    SessionParams,
)
from turnwire.wires.frames import TURN_FAILED, omit_none
from turnwire.wires.progress import question_value, step_line

logger = logging.getLogger("turnwire.wires.acp")

TurnEnd = tuple[DoneEvent, ErrorEvent | None]
Following = asyncio.Task[TurnEnd]

_MAX_OPTIONS = 12
_MAX_FORMS = 3
"""How often a form is shown whose answer does not fit."""


class _OpenSession(Struct, eq=False):
    """A session that the editor has open: its agent, and its turns that this connection follows."""

    id: str
    agent: str | None = None
    following: dict[str, Following] = field(default_factory=dict[str, Following])
    cancels: int = 0
    """How often the editor has cancelled, so that a prompt that is being sent notices."""
    forms: dict[tuple[str, str], TextForm] = field(default_factory=dict[tuple[str, str], TextForm])
    """The questions that the next prompt answers, by the ids of their turn and their own."""
    choices: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict[tuple[str, str], dict[str, Any]])
    """The requests for a choice that are open, by the same ids."""
    question_shown: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a question for the next prompt was shown, so that the current prompt ends."""
    text_count: int = 0
    """The number of question texts that were shown, which makes their ids unique."""


class AcpAgent:
    """Answers the requests of one editor, which is the `peer`."""

    peer: RpcConnection

    def __init__(self, host: ServerHost, version: str, agent: str | None = None) -> None:
        """`agent` is the name of the agent that new sessions use; the host's default one without it."""
        self._host = host
        self._version = version
        self._agent = agent
        self._agents: list[AgentChoice] = []
        self._sessions: dict[str, _OpenSession] = {}
        self._requests: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._takes_forms = False
        self._methods: Mapping[str, tuple[type[AcpModel], Callable[[Any], Awaitable[Any]]]] = {
            "initialize": (InitializeParams, self._initialize),
            "authenticate": (AcpModel, self._authenticate),
            "session/new": (NewSessionParams, self._new_session),
            "session/load": (SessionParams, self._load_session),
            "session/resume": (SessionParams, self._resume_session),
            "session/list": (ListSessionsParams, self._list_sessions),
            "session/set_mode": (ModeParams, self._set_mode),
            "session/prompt": (PromptParams, self._prompt),
            "session/cancel": (SessionParams, self._cancel),
        }

    async def handle(self, method: str, params: dict[str, Any]) -> Any:
        """Answer a request, or take a notification. Raises RpcError."""
        if method not in self._methods:
            raise RpcError(METHOD_NOT_FOUND, f"there is no method {method!r}")
        model, function = self._methods[method]
        try:
            return await function(parse_fields(model, params))
        except HttpError as error:
            raise RpcError(INVALID_PARAMS, str(error)) from error
        except TurnwireError as error:
            is_missing = error.code.endswith("_not_found")
            raise RpcError(RESOURCE_NOT_FOUND if is_missing else INTERNAL_ERROR, str(error)) from error

    async def close(self) -> None:
        """Stop following turns. The turns go on."""
        following = [task for session in self._sessions.values() for task in session.following.values()]
        tasks: list[asyncio.Task[Any]] = [*following, *self._requests.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # The connection

    async def _initialize(self, params: InitializeParams) -> dict[str, Any]:
        self._takes_forms = params.takes_forms
        self._agents = await self._host.agents()
        chosen = next((agent for agent in self._agents if agent.name == self._agent), None)
        if self._agent is not None and chosen is None:
            raise RpcError(INVALID_PARAMS, f"there is no agent {self._agent!r}")
        takes_files = any(agent.takes_files for agent in self._agents)
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "agentCapabilities": {
                "loadSession": True,
                "promptCapabilities": {"image": takes_files, "audio": takes_files, "embeddedContext": True},
                "sessionCapabilities": {"list": {}, "resume": {}},
            },
            "agentInfo": {"name": "turnwire", "title": "Turnwire", "version": self._version},
            "authMethods": [],
        }

    async def _authenticate(self, params: AcpModel) -> dict[str, Any]:
        return {}

    # Sessions

    async def _new_session(self, params: NewSessionParams) -> dict[str, Any]:
        session = _OpenSession(await self._host.create_session(), self._agent)
        self._sessions[session.id] = session
        return {"sessionId": session.id, **self._modes(session)}

    async def _load_session(self, params: SessionParams) -> dict[str, Any]:
        """Replay the session, and go on with a turn that has not ended."""
        turns = await self._host.turns(params.session_id)
        session = self._open(params.session_id)
        for turn in turns:
            if turn.phase == "ended":
                await self._replay(session, turn)
            elif turn.id not in session.following:
                caught_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._watch(session, turn.id, self._follow(session, turn, caught_up))
                await caught_up
        return self._modes(session)

    async def _resume_session(self, params: SessionParams) -> dict[str, Any]:
        """Open a session without its past; a turn that has not ended is followed from now on."""
        turns = await self._host.turns(params.session_id)
        session = self._open(params.session_id)
        for turn in turns:
            if turn.phase != "ended" and turn.id not in session.following:
                self._watch(session, turn.id, self._follow(session, turn, None))
        return self._modes(session)

    async def _list_sessions(self, params: ListSessionsParams) -> dict[str, Any]:
        found, cursor = await self._host.sessions(params.cursor)
        # Sessions have no folder of their own; every one can be opened in any.
        cwd = params.cwd or str(await asyncio.to_thread(Path.cwd))
        sessions = [
            {"sessionId": item.id, "cwd": cwd, **omit_none(title=item.title or None, updatedAt=item.updated_at)}
            for item in found
        ]
        return {"sessions": sessions, **omit_none(nextCursor=cursor)}

    async def _set_mode(self, params: ModeParams) -> dict[str, Any]:
        if params.mode_id not in {agent.name for agent in self._agents}:
            raise RpcError(INVALID_PARAMS, f"there is no agent {params.mode_id!r}")
        self._session(params.session_id).agent = params.mode_id
        return {}

    def _open(self, session_id: str) -> _OpenSession:
        return self._sessions.setdefault(session_id, _OpenSession(session_id, self._agent))

    def _session(self, session_id: str) -> _OpenSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise RpcError(RESOURCE_NOT_FOUND, f"the session {session_id!r} is not open; create or load it first")
        return session

    def _modes(self, session: _OpenSession) -> dict[str, Any]:
        """Return the agents as the modes of a session, if there is a choice."""
        if len(self._agents) < 2:
            return {}
        modes = [
            {"id": agent.name, "name": agent.name, **omit_none(description=agent.description or None)}
            for agent in self._agents
        ]
        return {"modes": {"currentModeId": session.agent or self._agents[0].name, "availableModes": modes}}

    # Turns

    async def _prompt(self, params: PromptParams) -> dict[str, Any]:
        """Start a turn or answer its question, show it, and answer when it has ended or asks for the next prompt."""
        session = self._session(params.session_id)
        session.question_shown.clear()
        turn_id, task = await self._take_answer(session, params) or await self._start(session, params)
        shown = asyncio.create_task(session.question_shown.wait())
        await asyncio.wait([task, shown], return_when=asyncio.FIRST_COMPLETED)
        shown.cancel()
        if not task.done():
            return {"stopReason": "end_turn"}
        done, error = task.result()
        match done.outcome:
            case "completed" | "joined":
                return {"stopReason": "end_turn"}
            case "cancelled":
                return {"stopReason": "cancelled"}
            case "failed" | "interrupted":
                if error is not None and error.code == "truncated":
                    return {"stopReason": "max_tokens"}
                text = error.error if error is not None else TURN_FAILED
                code = error.code if error is not None else "turn_failed"
                raise RpcError(INTERNAL_ERROR, text, {"code": code, "turnId": turn_id})

    async def _start(self, session: _OpenSession, params: PromptParams) -> tuple[str, Following]:
        cancels, before = session.cancels, await self._host.turns(session.id)
        # A new message instead of a decision ends the wait.
        on_busy: OnBusy = "interrupt" if before and before[-1].phase == "waiting" else "enqueue"
        turn_id = await self._host.start(session.id, params.message, params.attachments, session.agent, on_busy)
        following = self._follow(session, HostedTurn(turn_id, "queued", 0), None, is_prompt=True)
        task = self._watch(session, turn_id, following)
        if session.cancels > cancels:
            await self._host.cancel(turn_id)
        return turn_id, task

    async def _cancel(self, params: SessionParams) -> None:
        session = self._session(params.session_id)
        session.cancels += 1
        for turn_id in reversed([*session.following]):
            await self._host.cancel(turn_id)

    def _watch(self, session: _OpenSession, turn_id: str, following: Coroutine[Any, Any, TurnEnd]) -> Following:
        task = asyncio.create_task(following)
        session.following[turn_id] = task

        def forget(ended: Following) -> None:
            session.following.pop(turn_id, None)
            # Requests stay open, because the host takes their answers. A prompt that answers needs a turn to follow.
            session.forms = {key: form for key, form in session.forms.items() if key[0] != turn_id}
            if not ended.cancelled() and ended.exception() is not None:
                logger.warning("turn %s is no longer followed: %s", turn_id, ended.exception())

        task.add_done_callback(forget)
        return task

    async def _replay(self, session: _OpenSession, turn: HostedTurn) -> None:
        """Show a turn that has ended, without what restarts have made void."""
        events: list[Positioned] = []
        encoder = SessionUpdates(turn.id)
        async with aclosing(self._host.events(turn.id)) as found:
            async for item in found:
                if isinstance(item, TurnState):
                    await self._show(session, [*state_updates(item)])
                else:
                    events.append(item)
        for position, event in standing_events(events):
            await self._show(session, encoder.updates(position, event))

    async def _follow(
        self,
        session: _OpenSession,
        turn: HostedTurn,
        caught_up: "asyncio.Future[None] | None",
        *,
        is_prompt: bool = False,
    ) -> TurnEnd:
        """Show a turn to its end, and ask for its permissions.

        Events up to the turn's last position are its past: with `caught_up`, which is set after them, they are shown
        without void ones; otherwise they are left out. A prompt's own message is not shown.
        """
        encoder, past, error = SessionUpdates(turn.id), list[Positioned](), None
        is_past = turn.last_position > 0
        try:
            async with aclosing(self._host.events(turn.id)) as found:
                async for item in found:
                    if isinstance(item, TurnState):
                        await self._show(session, [*state_updates(item)])
                        continue
                    position, event = item
                    if is_past:
                        past.append(item)
                        if position >= turn.last_position:
                            is_past = False
                            await self._catch_up(session, turn, encoder, past, shows=caught_up is not None)
                            if caught_up is not None:
                                caught_up.set_result(None)
                        if not isinstance(event, DoneEvent):
                            continue
                    else:
                        updates = encoder.updates(position, event)
                        await self._show(session, [] if is_prompt and isinstance(event, MessageEvent) else updates)
                        await self._note_request(session, turn.id, encoder, event)
                    if isinstance(event, ErrorEvent):
                        error = event
                    if isinstance(event, DoneEvent):
                        return event, error
            raise RpcError(INTERNAL_ERROR, "the turn ended without its last event")
        finally:
            if caught_up is not None and not caught_up.done():
                caught_up.set_result(None)

    async def _catch_up(
        self, session: _OpenSession, turn: HostedTurn, encoder: SessionUpdates, past: list[Positioned], *, shows: bool
    ) -> None:
        for position, event in standing_events(past):
            updates = encoder.updates(position, event)
            if shows:
                await self._show(session, updates)
        for request in encoder.waiting:
            self._ask(session, turn.id, encoder, request)
        for question in encoder.questions:
            await self._ask_question(session, turn.id, question)

    async def _show(self, session: _OpenSession, updates: list[Update]) -> None:
        for update in updates:
            await self.peer.notify("session/update", {"sessionId": session.id, "update": update})

    # Permissions and questions

    async def _note_request(self, session: _OpenSession, turn_id: str, encoder: SessionUpdates, event: Event) -> None:
        match event:
            case ApprovalRequestEvent():
                self._ask(session, turn_id, encoder, event)
            case QuestionEvent():
                await self._ask_question(session, turn_id, event)
            case ApprovalResponseEvent(call_id=answered):
                await self._forget(session, turn_id, answered)
            case ReplyEvent(question_id=answered):
                await self._forget(session, turn_id, answered, step_line(event) or "")
            case DoneEvent():
                for owner_id, request_id in [*self._requests, *session.forms]:
                    if owner_id == turn_id:
                        await self._forget(session, turn_id, request_id)
            case _:
                pass

    def _ask(self, session: _OpenSession, turn_id: str, encoder: SessionUpdates, request: ApprovalRequestEvent) -> None:
        params = permission_request(session.id, encoder.call_id(request.call_id), request)
        key = turn_id, request.call_id
        self._requests[key] = asyncio.create_task(self._decide(turn_id, request, params))

    async def _forget(self, session: _OpenSession, turn_id: str, request_id: str, outcome: str = "") -> None:
        """Drop a request for permission or a question that somebody has answered, maybe elsewhere."""
        key = turn_id, request_id
        session.forms.pop(key, None)
        if (request := session.choices.pop(key, None)) is not None:
            await self._show(session, [choice_made(request, outcome)])
        task = self._requests.pop(key, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    async def _decide(self, turn_id: str, request: ApprovalRequestEvent, params: dict[str, Any]) -> None:
        try:
            if (option := await self._selected_option(params)) is not None:
                approved = option == "allow"
                decision = self._host.decide(turn_id, request.call_id, approved=approved, args=request.args)
                # Shielded, so that the editor's answer is recorded even if the request is dropped meanwhile.
                await asyncio.shield(decision)
        except (TurnwireError, RpcError, LookupError, TypeError) as error:
            logger.warning("the call %s of turn %s was not decided here: %s", request.call_id, turn_id, error)

    async def _selected_option(self, params: dict[str, Any]) -> str | None:
        """Return the option that the person has chosen of a request for permission; None without a choice."""
        answer: Any = await self.peer.request("session/request_permission", params)
        outcome: dict[str, Any] = answer["outcome"]
        return outcome.get("optionId", "") if outcome.get("outcome") == "selected" else None

    async def _ask_question(self, session: _OpenSession, turn_id: str, question: QuestionEvent) -> None:
        if self._takes_forms:
            filling = asyncio.create_task(self._fill_form(session, turn_id, question))
            self._requests[turn_id, question.id] = filling
        else:
            await self._ask_without_form(session, turn_id, question)

    async def _ask_without_form(self, session: _OpenSession, turn_id: str, question: QuestionEvent) -> None:
        key, form = (turn_id, question.id), TextForm(question.prompt, question.schema)
        if form.takes_one_choice and not form.title and len(form.choices) <= _MAX_OPTIONS:
            self._requests[key] = asyncio.create_task(self._choose(session, turn_id, question, form))
        else:
            session.forms[key] = form
            await self._show_text(session, turn_id, form.label)
            session.question_shown.set()

    async def _fill_form(self, session: _OpenSession, turn_id: str, question: QuestionEvent) -> None:
        """Ask by an elicitation, again if the answer does not fit."""
        problem = ""
        try:
            for _ in range(_MAX_FORMS):
                answer: Any = await self.peer.request("elicitation/create", form_request(session.id, question, problem))
                if answer["action"] not in ("accept", "decline"):
                    return
                declined = answer["action"] == "decline"
                value = None if declined else question_value(question, answer.get("content") or {})
                wrong = None if declined or not question.schema else find_problem(question.schema, value)
                if wrong is None:
                    return await asyncio.shield(self._host.reply(turn_id, question.id, value, declined=declined))
                problem = ": ".join(wrong)
        except RpcError as error:
            logger.warning("the editor has not shown a form: %s", error)
            await self._ask_without_form(session, turn_id, question)
        except (TurnwireError, LookupError, TypeError) as error:
            logger.warning("the question %s of turn %s was not answered here: %s", question.id, turn_id, error)

    async def _choose(self, session: _OpenSession, turn_id: str, question: QuestionEvent, form: TextForm) -> None:
        """Ask by the options of a permission."""
        choices = {f"choice-{index}": value for index, (_, value) in enumerate(form.choices)}
        request = choice_request(session.id, turn_id, question, [name for name, _ in form.choices])
        try:
            session.choices[turn_id, question.id] = request
            await self._show(session, [choice_call(request)])
            if (option := await self._selected_option(request)) is not None:
                declined = option == "decline"
                value = None if declined else choices[option]
                await asyncio.shield(self._host.reply(turn_id, question.id, value, declined=declined))
        except (RpcError, TurnwireError, LookupError, TypeError) as error:
            logger.warning("the question %s of turn %s was not answered here: %s", question.id, turn_id, error)

    async def _take_answer(self, session: _OpenSession, params: PromptParams) -> tuple[str, Following] | None:
        """Take a prompt as the answer to the oldest question. Return its turn; None if no question can be answered."""
        if params.attachments or not session.forms:
            return None
        (turn_id, question_id), form = next(iter(session.forms.items()))
        following = session.following[turn_id]
        problem = form.take(params.message)
        if problem is None and form.is_complete:
            del session.forms[turn_id, question_id]
            try:
                await self._host.reply(turn_id, question_id, form.value, declined=False)
            except TurnwireError as error:
                logger.warning("the question %s of turn %s was not answered here: %s", question_id, turn_id, error)
                return None
            form = next(iter(session.forms.values()), None)
        if form is not None:
            await self._show_text(session, turn_id, f"{problem}: {form.label}" if problem else form.label)
            session.question_shown.set()
        return turn_id, following

    async def _show_text(self, session: _OpenSession, turn_id: str, text: str) -> None:
        session.text_count += 1
        # The message is not in the log: a question, or what is wrong with its answer.
        await self._show(session, [text_chunk("agent_message_chunk", text, f"{turn_id}:question-{session.text_count}")])
