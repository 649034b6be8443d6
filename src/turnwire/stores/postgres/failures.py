"""What may go wrong with a database, in the driver's words, and what it means in ours."""

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from turnwire.core.errors import StoreError, StoreFullError, StoreUnusableError, TurnwireError

# Lost connections, a server that starts or stops, deadlocks, no connection free, a standby, an internal error.
_PASSING = ("08", "25", "40", "53", "55", "57", "58", "XX")
DiskFull = asyncpg.DiskFullError
DriverError = asyncpg.PostgresError, asyncpg.InterfaceError
LockNotAvailable = asyncpg.LockNotAvailableError
NoPartition = asyncpg.CheckViolationError
Refused = asyncpg.PostgresError
"""The server has answered, and its answer is no."""
Unwritable = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, asyncpg.ProgramLimitExceededError)
"""It is what was to be written that is wrong, and trying again would not change it."""


def is_passing(error: BaseException) -> bool:
    """Whether the same question may well be answered a little later."""
    if isinstance(error, asyncpg.DiskFullError | asyncpg.DataError | asyncpg.UnsupportedClientFeatureError):
        return False
    if isinstance(error, asyncpg.PostgresError):
        state: str = getattr(error, "sqlstate", None) or ""
        return state[:2] in _PASSING or isinstance(error, asyncpg.InvalidCachedStatementError)
    # The driver has more than one way to say that a connection broke while it was used.
    return isinstance(error, OSError | TimeoutError | EOFError | asyncpg.InterfaceError | asyncpg.InternalClientError)


def explained(error: Exception) -> TurnwireError | Exception:
    """The error in our words, if it is the database's."""
    if isinstance(error, asyncpg.DiskFullError):
        return StoreFullError()
    if isinstance(error, DriverError):
        return StoreError(f"the database refused: {reason(error)}")
    return error


def reason(error: BaseException) -> str:
    """What is wrong, without a detail that might quote what somebody said."""
    return str(error).partition("\n")[0] or type(error).__name__


def unusable(place: str, error: BaseException) -> StoreUnusableError:
    match error:
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            why = f"{reason(error)}; check the user and the password in the database's URL"
        case asyncpg.InvalidCatalogNameError():
            why = f"{reason(error)}; make it with `createdb`, or name another in the database's URL"
        case asyncpg.InsufficientPrivilegeError():
            why = f"{reason(error)}; the user must own the schema `turnwire`, or may make it in this database"
        case _ if is_passing(error):
            why = f"it cannot be reached ({reason(error)}); check that PostgreSQL runs there and the URL is right"
        case _:
            why = reason(error)
    return StoreUnusableError(place, why)
