"""Errors as clients of OpenAI's know them: in that shape, with those statuses, on those routes."""

import re

from turnwire.server.errors import HttpError

_ROUTES = re.compile(r"/v1/(responses|chat/completions|models)(/.*)?")
_STATUSES = {
    "agent_not_found": 404,
    # A client takes a 409 for something that may go well the next time, and tries again.
    "approval_conflict": 400,
    "approval_not_found": 400,
    "idempotency_conflict": 400,
    "turn_not_waiting": 400,
}
_CODES = {"agent_not_found": "model_not_found", "unauthorized": "invalid_api_key"}
_PARAMS = {"agent_not_found": "model"}
_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def invalid(param: str, message: str, code: str = "invalid_request") -> HttpError:
    """A 400 that names the field, in the words of the protocol."""
    return HttpError(400, code, f"{param}: {message}", param=param)


def in_dialect(path: str, error: HttpError) -> HttpError:
    """The error as the clients of this path know it."""
    if _ROUTES.fullmatch(path) is None:
        return error
    status = _STATUSES.get(error.code, 400 if error.status in (416, 422) else error.status)
    more = dict(error.more)
    fields = more.pop("fields", None)
    param = more.pop("param", fields[0]["field"] if fields else _PARAMS.get(error.code))
    kind = _KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    code = _CODES.get(error.code, error.code)
    return HttpError(status, code, str(error), headers=error.headers, type=kind, param=param, **more)
