"""The answer's text and nothing else, as the SDK's `TextStreamChatTransport` reads it.

It has no word for anything that is not text, a failure least of all: who writes it must break the connection then.
"""

from turnwire.core.contracts import Control, Encoder
from turnwire.core.encoding import decode_event
from turnwire.core.errors import RestartedError
from turnwire.core.events import RestartEvent, TokenEvent
from turnwire.core.logged import LoggedEvent

_TOKEN_BODY = b'{"type":"token"'
_RESTART_BODY = b'{"type":"restart"'


class AnswerText:
    name = key = "answer_text"
    media_type = "text/plain; charset=utf-8"
    keeps_state = True
    heartbeat = b""
    opening = b""

    def encoder(self) -> Encoder:
        return _AnswerEncoder()

    def control(self, control: Control) -> None:
        """There are no words for it."""


class _AnswerEncoder:
    takes_heartbeat = False

    def frame(self, logged: LoggedEvent) -> bytes:
        if logged.body.startswith(_RESTART_BODY):
            restart = decode_event(logged.body)
            assert isinstance(restart, RestartEvent)
            raise RestartedError(restart.from_position)
        if not logged.body.startswith(_TOKEN_BODY):
            return b""
        event = decode_event(logged.body)
        assert isinstance(event, TokenEvent)
        return b"" if event.agent_path else event.content.encode()

    def pause(self) -> bytes:
        return b""
