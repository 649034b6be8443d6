"""The errors of the client, as a tree.

ClientError                  a request failed: `status`, `code` and a message that says why
├── RefusedError             the server answered with an error
└── ServerUnreachableError   the server did not answer, or was lost and has not come back in time
"""

from turnwire.core.errors import TurnwireError


class ClientError(TurnwireError):
    """`status` is that of HTTP, 0 without an answer; `retry_after` is in seconds, if the server asks for a wait."""

    def __init__(
        self, message: str, *, status: int = 0, code: str = "client_failed", retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.retry_after = retry_after


class RefusedError(ClientError):
    """Raised when the server answered with an error. `code` is the server's, or `http_error` if it has none."""


class ServerUnreachableError(ClientError):
    """Raised without an answer; `reason` says why. `is_sent` is False if the server cannot have got the request."""

    def __init__(
        self, message: str, *, reason: str, status: int = 0, code: str = "network", is_sent: bool = True
    ) -> None:
        super().__init__(message, status=status, code=code)
        self.reason = reason
        self.is_sent = is_sent
