"""Two parsers of server-sent events: one by the specification, one that splits lines as careless clients do."""

import re
from dataclasses import dataclass


@dataclass
class Frame:
    data: str
    id: str | None = None
    event: str | None = None
    retry: int | None = None


def parse(body: bytes) -> list[Frame]:
    """Parse as a browser does: lines end with CR LF, LF or CR only."""
    return _frames(re.split("\r\n|\n|\r", body.decode("utf-8-sig")))


def parse_carelessly(body: bytes) -> list[Frame]:
    """Parse with `str.splitlines`, which also breaks at U+2028, U+0085, 0x1e and others, as some clients do."""
    return _frames(body.decode().splitlines())


def _frames(lines: list[str]) -> list[Frame]:
    frames: list[Frame] = []
    data: list[str] = []
    fields: dict[str, str] = {}
    for line in lines:
        if not line:
            if data:
                retry = fields.get("retry")
                frames.append(
                    Frame("\n".join(data), fields.get("id"), fields.get("event"), int(retry) if retry else None)
                )
            data, fields = [], {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            assert name in ("data", "id", "event", "retry"), f"an unknown field {name!r}"
            if name == "data":
                data.append(value)
            else:
                assert name not in fields
                fields[name] = value
    assert not data, "a frame without its end"
    return frames
