"""Errors as HTTP responses, in one shape: `{"error": {"code": ..., "message": ...}}`."""

from typing import Any

from pydantic import ValidationError

from turnwire.core import errors, metrics
from turnwire.core.log.codec import ascii_json, time_text

_STATUS: tuple[tuple[type[errors.TurnwireError], int], ...] = (
    (errors.AgentNotFoundError, 422),
    (errors.AttachmentsNotTakenError, 422),
    (errors.BadPositionError, 422),
    (errors.ClientToolConflictError, 422),
    (errors.ClientToolsNotTakenError, 422),
    (errors.InvalidReplyError, 422),
    (errors.ModelNotTakenError, 422),
    (errors.ModelOptionNotTakenError, 422),
    (errors.NotFoundError, 404),
    (errors.ApprovalConflictError, 409),
    (errors.ReplyConflictError, 409),
    (errors.TurnEndedError, 409),
    (errors.TurnNotWaitingError, 409),
    (errors.RecordingError, 409),
    (errors.BadCursorError, 400),
    (errors.EventsGoneError, 410),
    (errors.FilesFullError, 413),
    (errors.IdempotencyConflictError, 409),
    (errors.SessionBusyError, 409),
    (errors.SessionExistsError, 409),
    (errors.LimitError, 429),
    (errors.UnreadableDocumentError, 422),
    (errors.ShuttingDownError, 503),
    (errors.StoreFullError, 507),
    (errors.StoreError, 503),
)


class HttpError(Exception):
    """An error response. `more` are further fields of its body."""

    def __init__(
        self, status: int, code: str, message: str, *, headers: dict[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers or {}
        self.more = more
        self.body = ascii_json({"error": {"code": code, "message": message, **more}})


def http_error(error: errors.TurnwireError) -> HttpError:
    """Return the response for an error of the core."""
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    if status == 410:
        metrics.GAPS.add()
    wait = getattr(error, "retry_after_seconds", None)
    headers = {} if wait is None else {"Retry-After": str(wait)}
    return HttpError(status, error.code, str(error), headers=headers, **_facts(error))


def _facts(error: errors.TurnwireError) -> dict[str, Any]:
    """Return the fields of an error that a program needs beside the code."""
    if isinstance(error, errors.BudgetSpentError):
        budget = {"limit": error.limit, "used": error.used, "left": error.left}
        return {**budget, "resets_at": time_text(error.resets_at)}
    if isinstance(error, errors.InvalidReplyError):
        return {"fields": [{"field": error.field, "problem": error.problem}]}
    if isinstance(error, errors.ModelOptionNotTakenError):
        return {"fields": [{"field": error.option, "problem": error.problem}]}
    return {}


def internal_error() -> HttpError:
    return HttpError(500, "internal_error", "an unexpected error occurred; see the server's log")


def body_too_large(limit: int) -> HttpError:
    return HttpError(413, "body_too_large", f"the body is over {limit:,} bytes", headers={"Connection": "close"})


def invalid_request(message: str) -> HttpError:
    """Return a 422; the message begins with the name of the field."""
    return HttpError(422, "invalid_request", message)


def invalid_body(error: ValidationError) -> HttpError:
    return invalid_fields([dict(detail) for detail in error.errors(include_url=False, include_context=False)])


def invalid_fields(details: list[dict[str, Any]]) -> HttpError:
    """Return a 422 that names the fields, and never repeats their values."""
    fields = [{"field": ".".join(map(str, detail["loc"])) or "body", "problem": detail["msg"]} for detail in details]
    first = fields[0]
    return HttpError(422, "invalid_request", f"{first['field']}: {first['problem']}", fields=fields)
