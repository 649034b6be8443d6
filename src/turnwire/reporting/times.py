"""Times as the API tells them: ISO 8601, UTC, to the millisecond."""

from datetime import UTC, datetime


def time_text(ms: int | None) -> str | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
