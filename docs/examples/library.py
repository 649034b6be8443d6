from collections.abc import AsyncIterator

from turnwire import Turn, Turnwire, emit
from turnwire.core.log.events import Event
from turnwire.retrieval import collect_evidence, stream_synthesis


async def tell(event: Event) -> None:
    emit(event)


async def answer(turn: Turn) -> AsyncIterator[Event | str]:
    searcher = server.librarian.searcher
    result = await collect_evidence(turn.message, searcher, owner=turn.principal, event_sink=tell)
    yield f"I looked at {len(result.evidence)} passages. "
    async for piece in stream_synthesis(result):
        yield piece


server = Turnwire(agent=answer, docs=["."], data="library-data")
app = server.asgi()
