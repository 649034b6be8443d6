"""The server's own log: text lines for people, or JSON objects for machines.

A JSON line has `time`, `level`, `logger` and `message`; `turn_id`, `session_id` and `principal` of the turn that wrote
it; and the record's `facts`. An agent's exception may quote a user, and JSON logs are shipped elsewhere, so they have
only its class and stack unless `content` is on. Keys and tokens are masked in both formats.
"""

import json
import logging
import re
import traceback
from datetime import UTC, datetime
from typing import Any, Literal

from turnwire.core.log.scope import current_turn

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_SECRETS = re.compile(
    r"\btwc?_[\w-]{16,}|\bwhsec_[\w+/=-]+|\bsk-[\w-]{16,}|(?<=[Bb]earer )[^\s\"']+|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
)


def mask_secrets(text: str) -> str:
    return _SECRETS.sub("***", text)


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__(TEXT_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        return mask_secrets(super().format(record))


class JsonFormatter(logging.Formatter):
    def __init__(self, *, content: bool) -> None:
        super().__init__()
        self._content = content

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if turn := current_turn():
            fields |= {"turn_id": turn.turn_id, "session_id": turn.session_id, "principal": turn.principal}
        facts: dict[str, Any] = getattr(record, "facts", {})
        fields |= {name: value for name, value in facts.items() if value is not None}
        if record.exc_info and record.exc_info[1] is not None:
            fields["exception"] = self._exception(record.exc_info[1])
        # ASCII, because some Unicode characters end a line for some readers.
        return mask_secrets(json.dumps(fields, default=str))

    def _exception(self, error: BaseException) -> dict[str, Any]:
        fields: dict[str, Any] = {"type": f"{type(error).__module__}.{type(error).__qualname__}"}
        # An exception of a turn may quote a user.
        if self._content or current_turn() is None:
            fields["message"] = str(error)
        frames = traceback.extract_tb(error.__traceback__)
        fields["at"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is not None:
            fields["cause"] = self._exception(cause)
        return fields


class QueryFilter(logging.Filter):
    """Removes the query string from uvicorn's access lines, because it may have secrets."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple) and len(record.args) == 5:
            client, method, path, version, status = record.args
            path = str(path).partition("?")[0]
            record.args = (client, method, path, version, status)
            record.facts = {"client": client, "method": method, "path": path, "status": status}
        return True


def configure(format: Literal["text", "json"], level: str, *, content: bool) -> None:
    """Configure the log of this process. Call it once, before a server starts."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(content=content) if format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def log_requests() -> None:
    """Enable uvicorn's access lines, whatever the log level. Call it after uvicorn is configured."""
    logger = logging.getLogger("uvicorn.access")
    logger.setLevel(logging.INFO)
    logger.addFilter(QueryFilter())
