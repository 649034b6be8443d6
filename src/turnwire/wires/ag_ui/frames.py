"""Events of the protocol: one server-sent event each, numbered from 1 through the whole turn.

What is absent is left out: a null is fatal to the client. Lines end with LF alone, which is all that it splits at.
"""

from collections.abc import Iterable
from typing import Any

from turnwire.core.encoding import ascii_json

Told = list[bytes]
"""Events in order, each as its JSON."""


def told(kind: str, **fields: Any) -> bytes:
    """An event, without the fields of which nothing is known."""
    return ascii_json({"type": kind, **known(**fields)})


def known(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def custom(name: str, value: Any, agent: str | None = None) -> bytes:
    """What the protocol has no event of its own for. Those of ours begin with `turnwire.`."""
    return told("CUSTOM", name=name, value={} if value is None else value, subagentRunId=agent)


def own_name(name: str) -> str:
    """The name of an application's event; it must not be taken for one of ours."""
    return f"custom-{name}" if name.startswith("turnwire.") else name


def numbered(events: Iterable[bytes], before: int) -> bytes:
    """The frames of these events, if there were so many before them."""
    return b"".join(b"id: %d\ndata: %b\n\n" % (number, event) for number, event in enumerate(events, before + 1))
