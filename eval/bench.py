"""A library filled with a collection, and measurements on the code paths of a turn."""

import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from eval.collection import Collection, Document, Question
from eval.measures import holds_answer, mean, ndcg, percentile, recall
from turnwire.core.log.codec import clean_text
from turnwire.core.log.events import CitationEvent
from turnwire.retrieval.collection import collect_evidence
from turnwire.retrieval.documents.document import ParsedDocument
from turnwire.retrieval.documents.parser import format_of, paragraphs, parse
from turnwire.retrieval.embedding.minilm import MiniLM
from turnwire.retrieval.index.library import DocumentLibrary, NewDocument
from turnwire.retrieval.index.postgres import PostgresLibrary
from turnwire.retrieval.index.searcher import Searcher, VectorIndex
from turnwire.retrieval.index.sqlite import SqliteLibrary
from turnwire.retrieval.synthesis import stream_synthesis
from turnwire.stores.postgres.shared_database import SharedDatabase

_ROOT = "collection"
_DEPTH = 50


@dataclass
class Shelf:
    """A library with a collection. `names` maps a document's id to its name."""

    library: DocumentLibrary
    searcher: Searcher
    names: dict[str, str] = field(default_factory=dict)


@asynccontextmanager
async def shelf(
    documents: Sequence[Document], *, semantic: bool, database_url: str | None = None
) -> AsyncIterator[Shelf]:
    """Yield a library with these documents, in a SQLite file or in an empty PostgreSQL database."""
    with opened_library(database_url) as library:
        vectors = VectorIndex(library, MiniLM()) if semantic else None
        filled = Shelf(library, Searcher(library, vectors))
        batch = [_new(document) for document in documents]
        filled.names = {new.record.id: new.record.name for new in batch}
        library.put(batch)
        if vectors is not None:
            await vectors.embed_missing(_report)
            print()
        try:
            yield filled
        finally:
            if vectors is not None:
                await vectors.close()


@contextmanager
def opened_library(database_url: str | None) -> Iterator[DocumentLibrary]:
    if database_url is None:
        with tempfile.TemporaryDirectory() as folder:
            library = SqliteLibrary(Path(folder, "documents.db"))
            library.open()
            try:
                yield library
            finally:
                library.close()
        return
    database = SharedDatabase(database_url)
    shared = PostgresLibrary(database)
    shared.open()
    try:
        if shared.count() != (0, 0):
            raise SystemExit(f"there are documents in {shared.location}; name an empty database")
        yield shared
        shared.forget_root(_ROOT)
    finally:
        database.close()


def _new(document: Document) -> NewDocument:
    text = clean_text(document.text) or " "
    content = text.encode()
    if format_of(document.name) in ("html", "markdown"):
        parsed = parse(document.name, content)
    else:
        parsed = ParsedDocument(text, paragraphs(text), clean_text(document.title) or " ")
    return NewDocument(document.name, "text", content, parsed, root=_ROOT)


def _report(done: int, total: int) -> None:
    print(f"\r  embedding {done:,} of {total:,}", end="", flush=True)


async def measure_ranking(filled: Shelf, questions: Sequence[Question]) -> dict[str, float]:
    """Measure the ranking of the search alone."""
    scores: list[float] = []
    recalls: list[float] = []
    times: list[float] = []
    for question in questions:
        if not question.gains:
            continue
        began = time.perf_counter()
        passages = await filled.searcher.search(question.text, owner=None, limit=_DEPTH)
        times.append((time.perf_counter() - began) * 1000)
        ranking = [filled.names[passage.document_id] for passage in passages]
        scores.append(ndcg(ranking, question.gains))
        recalls.append(recall(ranking, question.gains))
    return {
        "questions": len(scores),
        "nDCG@10": mean(scores),
        "recall@10": mean(recalls),
        "query p50 ms": percentile(times, 50),
    }


async def measure_answers(filled: Shelf, questions: Sequence[Question]) -> dict[str, float]:
    """Measure answers without a model: in how many the first block, and any block, has the gold answer."""
    answerable = [question for question in questions if question.answers]
    refused = first = anywhere = length = 0
    for question in answerable:
        blocks = await answer_blocks(filled, question.text)
        if not blocks:
            refused += 1
            continue
        length += sum(map(len, blocks))
        first += holds_answer(blocks[0], question.answers)
        anywhere += any(holds_answer(block, question.answers) for block in blocks)
    return {
        "questions": len(answerable),
        "gold in the first block": first / len(answerable),
        "gold in any of three": anywhere / len(answerable),
        "wrongly refused": refused / len(answerable),
        "characters": length / max(len(answerable) - refused, 1),
    }


async def measure_refusals(filled: Shelf, questions: Sequence[Question]) -> dict[str, float]:
    """Measure how many unanswerable questions are refused."""
    refused = [not await answer_blocks(filled, question.text) for question in questions]
    return {"questions": len(refused), "refused": mean([float(is_refused) for is_refused in refused])}


async def answer_blocks(filled: Shelf, question: str) -> list[str]:
    """Return the blocks of the answer; none if it was refused."""
    result = await collect_evidence(question, filled.searcher)
    if not result.sufficient:
        return []
    pieces = [piece async for piece in stream_synthesis(result)]
    text = "".join(piece for piece in pieces if isinstance(piece, str))
    cited = [piece for piece in pieces if isinstance(piece, CitationEvent)]
    return [text[item.answer_start : item.answer_end].replace("\n> ", "\n") for item in cited]


def sampled(collection: Collection, limit: int | None) -> list[Question]:
    """Return at most `limit` questions, spread over the collection."""
    questions = list(collection.questions)
    return questions if limit is None or len(questions) <= limit else questions[:: -(-len(questions) // limit)]
