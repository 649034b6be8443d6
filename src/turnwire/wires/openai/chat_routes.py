"""`/v1/chat/completions` and `/v1/models`: agents as models, for the many clients that know nothing else.

Each call is a session of its own, unless the header `X-Session-Id` names one. The client's earlier messages are the
history that the agent is given, but for a session that has turns already: then that is.
"""

import re
from typing import Any

from turnwire.app import Turnwire
from turnwire.core.codec import ascii_json
from turnwire.core.errors import AgentNotFoundError, TurnNotFoundError
from turnwire.core.turns import TurnRecord, TurnState
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError
from turnwire.server.exchange import (
    Request,
    Routes,
    idempotency_key,
    read_json,
    rested,
    text_stream,
    turn_headers,
    while_present,
)
from turnwire.server.guard import Headers
from turnwire.server.messages import check_id, path_of
from turnwire.server.payloads import respond_json
from turnwire.server.streams.connection import Receive, Send
from turnwire.server.streams.resume import ResumePoint, place_after_wait, void_of
from turnwire.server.streams.stream import TextStream
from turnwire.wires.openai.chat_encoder import OpenAIChat, completion, parse_call_id
from turnwire.wires.openai.conversation import agent_of, last_turn, moving_on, take_decisions
from turnwire.wires.openai.messages import (
    ClientConversation,
    CompletionBody,
    invalid,
    parse_completion_body,
    prompt_body,
    read_messages,
)

_TOLD = (
    "frequency_penalty",
    "max_completion_tokens",
    "max_tokens",
    "metadata",
    "presence_penalty",
    "reasoning_effort",
    "temperature",
    "top_p",
    "user",
)


class CompletionRoutes:
    def __init__(self, turnwire: Turnwire) -> None:
        self._turnwire = turnwire
        self.routes: Routes = (
            ("POST", re.compile("/v1/chat/completions"), self.create),
            ("GET", re.compile("/v1/models"), self.models),
            ("GET", re.compile("/v1/models/.+"), self.model),
        )

    async def create(
        self, scope: Request, receive: Receive, send: Send, caller: Caller, headers: dict[bytes, bytes], added: Headers
    ) -> TextStream | None:
        """Starts a turn, or goes on with one that waits, and streams it, or answers when it has come to rest."""
        caller.needs("write")
        body = parse_completion_body(await read_json(receive, headers))
        conversation = read_messages(body.messages)
        turnwire, store = self._turnwire, self._turnwire.store
        if body.stream:
            wire = OpenAIChat(include_usage=bool((body.stream_options or {}).get("include_usage")))
            with turnwire.streams.room(caller.principal):
                record = await self._begin(caller, body, conversation, headers)
                if conversation.approvals:
                    place = await place_after_wait(store, record.id, wire)
                else:
                    place = ResumePoint(void=await void_of(store, record.id))
                return text_stream(turnwire, scope, caller, record, place, wire, added)
        record = await self._begin(caller, body, conversation, headers)
        waiting = rested(turnwire, caller, record.id)
        if await while_present(turnwire, receive, record, waiting) is not None:
            record = await store.find_turn(caller.principal, record.id)
            state = await turnwire.state(record)
            _raise_failure(state)
            answer = completion(state, record.created_at // 1000, _start(state, conversation))
            await respond_json(send, 200, ascii_json(answer), [*added, *turn_headers(record)])
        return None

    async def _begin(
        self, caller: Caller, body: CompletionBody, conversation: ClientConversation, headers: dict[bytes, bytes]
    ) -> TurnRecord:
        agent = agent_of(self._turnwire, body.model)
        if conversation.approvals:
            return await self._go_on(caller, conversation)
        session_id = _session_id(headers)
        told = {name: value for name in _TOLD if (value := getattr(body, name)) is not None}
        if conversation.instructions:
            told["instructions"] = "\n\n".join(conversation.instructions)
        prompt = prompt_body(
            conversation.message or "",
            session_id=session_id,
            model=agent,
            options=told,
            sent=[session_id, conversation.message, conversation.history],
        )
        before = await last_turn(self._turnwire, caller, session_id)
        accepted = await self._turnwire.start(
            caller.principal,
            moving_on(prompt, before),
            idempotency_key(headers),
            history=() if before else conversation.history,
        )
        return accepted.record

    async def _go_on(self, caller: Caller, conversation: ClientConversation) -> TurnRecord:
        named = [parse_call_id(approval.request_id) or ("", "") for approval in conversation.approvals]
        if len({turn_id for turn_id, _ in named}) > 1:
            raise invalid("messages", "decide about the calls of one answer at a time")
        try:
            record = await self._turnwire.store.find_turn(caller.principal, named[0][0])
        except TurnNotFoundError:
            raise invalid("messages", "these are not calls that wait for you") from None
        decisions = {call_id: told for (_, call_id), told in zip(named, conversation.approvals, strict=True)}
        return await take_decisions(self._turnwire, caller, record, decisions, "messages")

    async def models(
        self, scope: Request, receive: Receive, send: Send, caller: Caller, headers: dict[bytes, bytes], added: Headers
    ) -> None:
        """The agents, by name; the first one answers by default."""
        caller.needs("read")
        listed = {"object": "list", "data": [_model(name) for name in self._turnwire.agents]}
        await respond_json(send, 200, ascii_json(listed), added)

    async def model(
        self, scope: Request, receive: Receive, send: Send, caller: Caller, headers: dict[bytes, bytes], added: Headers
    ) -> None:
        caller.needs("read")
        name = path_of(scope).split("/", 3)[3]
        if name not in self._turnwire.agents:
            raise AgentNotFoundError(name)
        await respond_json(send, 200, ascii_json(_model(name)), added)


def _session_id(headers: dict[bytes, bytes]) -> str | None:
    text = headers.get(b"x-session-id", b"").decode("latin-1").strip()
    try:
        return check_id(text) if text else None
    except HttpError:
        raise invalid("X-Session-Id", "an id has up to 128 letters, digits and . _ : @ -") from None


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "turnwire"}


def _start(state: TurnState, conversation: ClientConversation) -> int:
    """Where the completion begins in the answer: after what was said before the decisions."""
    decided = {parse_call_id(approval.request_id) for approval in conversation.approvals}
    return max((step.answer_offset for step in state.steps if (state.turn_id, step.id) in decided), default=0)


def _raise_failure(state: TurnState) -> None:
    """A client tries a 500 again unless it is told not to; only some failures are worth that."""
    if state.outcome not in ("failed", "interrupted"):
        return
    error = state.error
    message = error.error if error else "The answer could not be completed."
    again = {} if error and error.retryable else {"X-Should-Retry": "false"}
    raise HttpError(500, error.code if error else "turn_failed", message, headers=again, turn_id=state.turn_id)
