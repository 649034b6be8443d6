"""`/v1/rag`: a session in the path, a question in the body, the answer as JSON or as `three_phase_text`.

These are the routes of an older protocol. They take its names for fields beside ours, and tell every
failure as `chat_failed`.
"""

import re

from turnwire.app import Turnwire
from turnwire.assembly import THREE_PHASE_TEXT
from turnwire.core.codec import ascii_json
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError
from turnwire.server.exchange import (
    Request,
    Routes,
    answered,
    budget_header,
    idempotency_key,
    read_json,
    text_stream,
    turn_headers,
)
from turnwire.server.guard import Headers
from turnwire.server.messages import MessageBody, RagMessageBody, check_id, parse_message, path_of
from turnwire.server.payloads import answer_of, answer_status, chat_error, respond_json
from turnwire.server.streams.connection import Receive, Send
from turnwire.server.streams.stream import TextStream


class RagRoutes:
    def __init__(self, turnwire: Turnwire) -> None:
        self._turnwire = turnwire
        self.routes: Routes = (
            ("POST", re.compile("/v1/rag/sessions/[^/]+/messages"), self.messages),
            ("POST", re.compile("/v1/rag/sessions/[^/]+/messages/stream"), self.messages_stream),
        )

    async def messages(
        self, scope: Request, receive: Receive, send: Send, caller: Caller, headers: dict[bytes, bytes], added: Headers
    ) -> None:
        """Starts a turn, or joins the one the key names, and answers when it has ended."""
        caller.needs("write")
        body = await _read_message(scope, receive, headers)
        answer = await answered(self._turnwire, receive, caller, body, idempotency_key(headers))
        if answer is None:
            return
        record, state = answer
        failure = chat_error(state)
        if failure is not None:
            raise failure
        told = answer_of(state, await self._turnwire.budget(caller.principal))
        await respond_json(send, answer_status(state), ascii_json(told), [*added, *turn_headers(record)])

    async def messages_stream(
        self, scope: Request, receive: Receive, send: Send, caller: Caller, headers: dict[bytes, bytes], added: Headers
    ) -> TextStream:
        """Starts a turn, or joins the one the key names, and streams it."""
        caller.needs("write")
        body = await _read_message(scope, receive, headers)
        with self._turnwire.streams.room(caller.principal):
            accepted = await self._turnwire.start(caller.principal, body, idempotency_key(headers))
            added = [*added, *await budget_header(self._turnwire, caller)]
            return text_stream(self._turnwire, scope, caller, accepted.record, None, THREE_PHASE_TEXT, added)


async def _read_message(scope: Request, receive: Receive, headers: dict[bytes, bytes]) -> MessageBody:
    """The message, in the session of the path. Raises HttpError 4xx."""
    session_id = check_id(path_of(scope).split("/")[4])
    body = parse_message(await read_json(receive, headers), RagMessageBody)
    if body.session_id not in (None, session_id):
        raise HttpError(422, "invalid_request", "session_id: not the one in the path; leave it out")
    return body.model_copy(update={"session_id": session_id})
