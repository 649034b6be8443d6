"""Failed requests to a server, for the person at a terminal."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from turnwire.client import ClientError, ServerAddress, ServerUnreachableError
from turnwire.core.errors import TurnwireError
from turnwire.core.log.codec import clean_text

_HINT = "check its address, or start one with `turnwire serve`"


class HostError(TurnwireError):
    """A request that failed. The message says why, and what to do. `is_away`: it may succeed in a moment."""

    def __init__(self, message: str, *, is_away: bool = False) -> None:
        super().__init__(message)
        self.is_away = is_away


@contextmanager
def host_errors(hint: str = _HINT) -> Generator[None]:
    """Raise every ClientError as a HostError that says what to do at a command line.

    `hint` is for a server that does not answer.
    """
    try:
        yield
    except ClientError as error:
        message = clean_text(str(error))
        if isinstance(error, ServerUnreachableError):
            message += f"; {hint}"
        elif error.status == 401:
            message += "; pass a key with --key, or set TURNWIRE_API_KEY"
        is_away = isinstance(error, ServerUnreachableError) or error.status == 503
        raise HostError(message, is_away=is_away) from error


def client_finder(find: Callable[[], ServerAddress]) -> Callable[[], ServerAddress]:
    """Wrap `find` for a client: a HostError becomes ServerUnreachableError, after which the client may try again."""

    def locate() -> ServerAddress:
        try:
            return find()
        except HostError as error:
            raise ServerUnreachableError(str(error), reason=str(error), is_sent=False) from error

    return locate
