"""Chunks of a UI message stream: one server-sent event each.

What is absent is left out: a null is fatal to the client.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import Raw

from turnwire.core.encoding import ascii_json
from turnwire.core.events import CitationEvent
from turnwire.core.logged import LoggedEvent
from turnwire.wires.framing import frame

START_STEP = b'data: {"type":"start-step"}\n\n'
FINISH_STEP = b'data: {"type":"finish-step"}\n\n'
END = b"data: [DONE]\n\n"

_TEXT = "text/plain"
_MEDIA_TYPES = {
    "md": "text/markdown",
    "html": "text/html",
    "htm": "text/html",
    "pdf": "application/pdf",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
}


def chunk(kind: str, fields: dict[str, Any] | None = None) -> bytes:
    return frame(ascii_json({"type": kind, **(fields or {})}))


def known(**fields: Any) -> dict[str, Any]:
    """The fields of which something is known."""
    return {name: value for name, value in fields.items() if value is not None}


def event_part(logged: LoggedEvent, name: str, part_id: str | None = None, *, transient: bool = False) -> bytes:
    """The event as the log has it, as a data part. One of the same name and id takes the place of the one before."""
    fields = known(id=part_id, data=Raw(logged.body), transient=transient or None)
    return chunk(f"data-{name}", fields)


def source_chunk(citation: CitationEvent) -> bytes:
    """Where a citation comes from; its `sourceId` is the number in the answer."""
    source_id, url = str(citation.index), citation.url
    # Only what a browser may follow is offered as a link.
    if url is not None and url.lower().startswith(("https://", "http://")):
        return chunk("source-url", known(sourceId=source_id, url=url, title=citation.title or None))
    name = citation.document_id.rpartition("/")[2]
    ending = name.rpartition(".")[2].lower() if "." in name else ""
    fields = known(
        sourceId=source_id,
        mediaType=_MEDIA_TYPES.get(ending, _TEXT),
        title=citation.title or citation.document_id,
        filename=name if ending else None,
    )
    return chunk("source-document", fields)


def chunks_of(said: bytes) -> Iterator[bytes]:
    """The chunks that a client counts: every frame but the mark of the end."""
    for piece in said.split(b"\n\n"):
        if piece and piece + b"\n\n" != END:
            yield piece + b"\n\n"
