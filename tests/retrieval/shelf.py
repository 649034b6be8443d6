"""A library of small documents, and helpers to search it with or without a scripted model, every wait bounded."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import httpcore2
import pytest
from msgspec import Struct, field

from tests.scripted_model import Failure, ScriptedModel, calls, says
from tests.serving import PATIENCE
from turnwire.core.log.codec import ascii_json
from turnwire.core.log.events import CitationEvent, Event, Hit, ResponseEvent, SearchEvent, StatusEvent, TokenEvent
from turnwire.models.openai_client import OpenAIModel
from turnwire.retrieval.collection import collect_evidence
from turnwire.retrieval.documents.parser import parse
from turnwire.retrieval.evidence import Evidence, RetrievalResult
from turnwire.retrieval.index.library import NewDocument, Passage
from turnwire.retrieval.index.searcher import Searcher
from turnwire.retrieval.index.sqlite import SqliteLibrary
from turnwire.retrieval.synthesis import stream_synthesis
from turnwire.testing.scripted_wires import ScriptedAnswer as Answer

KEY = "sk-very-secret-0123456789"
SILENCE = 2
"""The seconds of silence after which a model of the tests has failed in the middle of its answer."""
TEA = """\
# Tea

## Green tea

Green tea is brewed at eighty degrees for two minutes. Hotter water makes it bitter.

## Black tea

Black tea is brewed with boiling water for four minutes. Its leaves are oxidised before they are dried.

## Oolong

Oolong is only half oxidised. Its leaves are rolled into small balls.
"""
FERRY = """\
# The ferry

## Timetable

The ferry to Norderney leaves the harbour at nine every morning. In winter it leaves at ten.

## Tickets

A ticket for the ferry costs twelve euros. Children travel for nothing.
"""
LIGHTHOUSE = """\
# The lighthouse

The lighthouse was built in 1874. Its lamp can be seen from forty kilometres away. 灯台は海の近くにあります。
"""
SHELF = {"tea.md": TEA, "ferry.md": FERRY, "lighthouse.md": LIGHTHOUSE}
GREEN = "How is green tea brewed?"
"""A question that one passage of the shelf answers."""
NOWHERE = "Who won the chess tournament in Reykjavik?"
"""A question that no passage answers."""

E = TypeVar("E", bound=Event)
MakeModel = Callable[..., OpenAIModel]


# The library


def put(library: SqliteLibrary, name: str, text: str, owner: str | None = None) -> str:
    """Put a document into the library and return its id."""
    content = text.encode()
    document = NewDocument(name, "markdown", content, parse(name, content), owner=owner)
    library.put([document])
    return document.record.id


def text_of(library: SqliteLibrary, document_id: str) -> str:
    return "".join(passage.text for passage in library.document_passages(document_id))


@pytest.fixture
def library(tmp_path: Path) -> Iterator[SqliteLibrary]:
    shelf = SqliteLibrary(tmp_path / "shelf.db")
    shelf.open()
    for name, text in SHELF.items():
        put(shelf, name, text)
    yield shelf
    shelf.close()


@pytest.fixture
def searcher(library: SqliteLibrary) -> Searcher:
    return Searcher(library)


class HeldSearcher(Searcher):
    """Searcher that blocks until `go_on` is set; `queries` are its queries, `running` the number of unfinished ones."""

    def __init__(self, library: SqliteLibrary) -> None:
        super().__init__(library)
        self.queries: list[str] = []
        self.running = 0
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()

    async def search(self, query: str, **how: Any) -> list[Any]:
        self.queries.append(query)
        self.running += 1
        self.begun.set()
        try:
            await self.go_on.wait()
            return await super().search(query, **how)
        finally:
            self.running -= 1


# The model


# Cached, because loading the certificates takes longer than most tests, and plain sockets need none.
_prepared = cache(httpcore2.default_ssl_context)


@pytest.fixture
async def make_model(model_server: ScriptedModel, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MakeModel]:
    """Yield a factory of models of the scripted server, and close them."""
    made: list[OpenAIModel] = []
    monkeypatch.setattr(httpcore2, "default_ssl_context", _prepared)

    def make(**options: Any) -> OpenAIModel:
        arguments = {"base_url": model_server.url, "api_key": KEY, "retries": 0, **options}
        made.append(OpenAIModel("small", **arguments))
        return made[-1]

    yield make
    for model in made:
        await model.close()


@pytest.fixture
def model(make_model: MakeModel) -> OpenAIModel:
    return make_model()


def patience(answer: Answer | Failure) -> dict[str, float]:
    """Return the timeout option of a model: short for a silent answer, the default for any other."""
    if isinstance(answer, Failure):
        return {"timeout": 0.3} if answer.status is None else {}
    # What comes before the silence must come within this time, also on a slow machine.
    return {"timeout": SILENCE} if answer.ending == "silence" else {}


def searches(*queries: str, **how: Any) -> Answer:
    """Return an answer that searches for all queries in parallel."""
    return calls(*(("search_documents", {"query": query}) for query in queries), **how)


def judges(sufficient: bool = True, keep: Sequence[int] = (1,), **rest: Any) -> Answer:
    """Return a review by the model."""
    reported = {
        "keep": list(keep),
        "sufficient": sufficient,
        "missing": [],
        "next_query": None,
        "reason": "So.",
        **rest,
    }
    return says(ascii_json(reported).decode(), "")


READY = says("READY")


def prompt(body: dict[str, Any]) -> str:
    """Return the last message of a request of either API."""
    last = (body.get("messages") or body["input"])[-1]
    return last["content"] if "content" in last else last["output"]


def offered(body: dict[str, Any]) -> list[str]:
    """Return the names of the tools in a request."""
    return [tool["function"]["name"] for tool in body.get("tools", ())]


# Results


class Found(Struct, frozen=True):
    """The result of `collect_evidence` and the events it emitted."""

    result: RetrievalResult
    events: list[Event]

    def of(self, kind: type[E]) -> list[E]:
        return of(kind, self.events)

    @property
    def statuses(self) -> list[str]:
        return [event.text for event in self.of(StatusEvent)]

    @property
    def queries(self) -> list[str]:
        return [event.query for event in self.of(SearchEvent) if event.phase == "started"]

    @property
    def hits(self) -> list[list[Hit]]:
        """The hits of each search, in the order in which the searches ended."""
        return [list(event.hits or ()) for event in self.of(SearchEvent) if event.phase == "finished"]


def of(kind: type[E], events: Sequence[Event]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


async def collect(question: str, searcher: Searcher, **how: Any) -> Found:
    events: list[Event] = []
    async with asyncio.timeout(PATIENCE):
        result = await collect_evidence(question, searcher, event_collector=events, **how)
    return Found(result, events)


class Written(Struct):
    """An answer as it was streamed."""

    pieces: list[str] = field(default_factory=list[str])
    events: list[Event] = field(default_factory=list[Event])

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def citations(self) -> list[CitationEvent]:
        return of(CitationEvent, self.events)

    @property
    def statuses(self) -> list[str]:
        return [event.text for event in of(StatusEvent, self.events)]

    @property
    def mode(self) -> str | None:
        (response,) = of(ResponseEvent, self.events)
        assert self.events[-1] is response
        return response.mode

    @property
    def claims(self) -> list[tuple[int, str]]:
        """The number of each citation with its part of the answer."""
        return [(item.index, self.text[item.answer_start : item.answer_end]) for item in self.citations]


async def write(pieces: AsyncIterator[Event | str], written: Written | None = None) -> Written:
    """Read an answer to its end; `written` also has the part before an error."""
    written = written or Written()
    async with asyncio.timeout(PATIENCE):
        async for piece in pieces:
            if isinstance(piece, str | TokenEvent):
                written.pieces.append(piece if isinstance(piece, str) else piece.content)
            else:
                written.events.append(piece)
    return written


async def synthesise(result: RetrievalResult, **how: Any) -> Written:
    return await write(stream_synthesis(result, **how))


def assert_exact(library: SqliteLibrary, citations: Sequence[CitationEvent]) -> None:
    """Assert that every quote matches its range in the document."""
    for item in citations:
        text = text_of(library, item.document_id)
        assert item.supporting_quote
        assert text[item.source_start : item.source_end] == item.supporting_quote


def evidence(index: int, text: str, start: int = 0) -> Evidence:
    """Return evidence without a library."""
    passage = Passage(
        id=index,
        document_id=f"d{index}",
        ordinal=0,
        title=f"Document {index}",
        text=text,
        start=start,
        end=start + len(text),
        line_start=1,
        line_end=1,
        score=1.0,
    )
    return Evidence(index, passage, "search_documents")
