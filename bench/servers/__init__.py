"""The servers under test, one module a variant, each with an `app()`.

`generator`, `agent` and `pydantic_ai` take `POST /api/chat`, `/ag-ui` and `/source`; `page` serves the page, and
`documents` and `written` answer questions. All others take `POST /chat/stream` with `{"message": "yield 1000"}` and
answer an event stream, so that a client sees no difference but the cost.
"""

from dataclasses import dataclass

COMPACT = '"type":"token"'
SPACED = '"type": "token"'


@dataclass(frozen=True)
class Variant:
    """A server under test and the text that marks a token in what it sends."""

    name: str
    module: str
    marker: str
    label: str


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("raw", "raw", COMPACT, "raw ASGI, one frame a send"),
        Variant("queue", "hand_queue", SPACED, "asyncio.Queue + json.dumps"),
        Variant("fastapi_sse", "fastapi_sse", COMPACT, "FastAPI EventSourceResponse"),
        Variant("queue_fanout", "queue_fanout", SPACED, "one asyncio.Queue a reader"),
        Variant("memory", "ours_memory", COMPACT, "Turnwire, memory store"),
        Variant("sqlite", "ours_sqlite", COMPACT, "Turnwire, SQLite store"),
        Variant("postgres", "ours_postgres", COMPACT, "Turnwire, PostgreSQL store"),
        Variant("documents", "ours_documents", COMPACT, "Turnwire, answering from documents"),
        Variant("written", "ours_written", COMPACT, "Turnwire, writing from documents with a scripted model"),
        Variant("page", "ours_page", COMPACT, "the page, Turnwire with SQLite behind it"),
        Variant("generator", "ours_generator", COMPACT, "Turnwire, a generator"),
        Variant("agent", "ours_pydantic_ai", COMPACT, "Turnwire, the same Pydantic AI agent"),
        Variant("pydantic_ai", "pydantic_ai_adapters", COMPACT, "Pydantic AI's own adapter"),
    )
}
