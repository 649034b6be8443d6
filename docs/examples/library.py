from collections.abc import AsyncIterator
from pathlib import Path

from turnwire import Settings, Turn, Turnwire, emit
from turnwire.core.log.events import Event
from turnwire.retrieval import collect_evidence, stream_synthesis
from turnwire.retrieval.service import DocumentService


async def tell(event: Event) -> None:
    emit(event)


async def answer(turn: Turn) -> AsyncIterator[Event | str]:
    documents = server.services.of(DocumentService).documents
    assert documents is not None
    result = await collect_evidence(turn.message, documents.searcher, owner=turn.principal, event_sink=tell)
    yield f"I looked at {len(result.evidence)} passages. "
    async for piece in stream_synthesis(result):
        yield piece


settings = Settings(data=Path("library-data"), documents={"paths": ["."]})
server = Turnwire(agent=answer, settings=settings)
app = server.asgi()
