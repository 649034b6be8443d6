"""The server's own log: lines for people, or JSON objects for machines.

A line of JSON has `time`, `level`, `logger` and `message`; `turn_id` and `session_id` where the code that wrote it ran
in a turn or named one; and what a record brings as `facts`. What an agent's exception says may quote what a user said,
so in JSON, which is kept and shipped elsewhere, only its class and its places in the code are written unless content
is asked for. Keys and tokens are masked in both forms.
"""

import json
import logging
import re
import traceback
from datetime import UTC, datetime
from typing import Any, Literal

from turnwire.core.emit import current_turn

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_SECRETS = re.compile(
    r"\btwc?_[\w-]{16,}|\bwhsec_[\w+/=-]+|\bsk-[\w-]{16,}|(?<=[Bb]earer )[^\s\"']+|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
)


def masked(text: str) -> str:
    return _SECRETS.sub("***", text)


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__(TEXT_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))


class JsonFormatter(logging.Formatter):
    def __init__(self, *, content: bool) -> None:
        super().__init__()
        self._content = content

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if place := current_turn():
            told |= place._asdict()
        facts: dict[str, Any] = getattr(record, "facts", {})
        told |= {name: value for name, value in facts.items() if value is not None}
        if record.exc_info and record.exc_info[1] is not None:
            told["exception"] = self._exception(record.exc_info[1])
        # ASCII, so that one object is one line for every reader.
        return masked(json.dumps(told, default=str))

    def _exception(self, error: BaseException) -> dict[str, Any]:
        told: dict[str, Any] = {"type": f"{type(error).__module__}.{type(error).__qualname__}"}
        # Raised while a turn ran, it may have the words of a user in it.
        if self._content or current_turn() is None:
            told["message"] = str(error)
        frames = traceback.extract_tb(error.__traceback__)
        told["at"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is not None:
            told["cause"] = self._exception(cause)
        return told


class WithoutQuery(logging.Filter):
    """Takes what stands after the `?` out of uvicorn's access lines: an address may carry what nobody should read."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple) and len(record.args) == 5:
            client, method, path, version, status = record.args
            path = str(path).partition("?")[0]
            record.args = (client, method, path, version, status)
            record.facts = {"client": client, "method": method, "path": path, "status": status}
        return True


def configure(format: Literal["text", "json"], level: str, *, content: bool) -> None:
    """Sets up the log of this process, once, before a server is started in it."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(content=content) if format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def log_requests() -> None:
    """Has uvicorn's access lines written, whatever the level of the rest. To be called when uvicorn is configured."""
    logger = logging.getLogger("uvicorn.access")
    logger.setLevel(logging.INFO)
    logger.addFilter(WithoutQuery())
