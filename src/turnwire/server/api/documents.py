"""Documents to answer from: the operator's are shared, uploaded ones belong to their owner."""

import asyncio
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, UploadFile

from turnwire.core.errors import DocumentNotFoundError
from turnwire.core.log.codec import time_text
from turnwire.retrieval.documents.parser import SUFFIXES, format_of
from turnwire.retrieval.index.contract import DocumentLibrary
from turnwire.retrieval.index.library import Document, Passage
from turnwire.retrieval.indexer import DocumentIndexer
from turnwire.server.api.dependencies import Json, PathId, Reading, ServicesDep, Writing
from turnwire.server.attachments import MAX_NAME_LENGTH, clean_name
from turnwire.server.errors import HttpError
from turnwire.server.services import Services

router = APIRouter(prefix="/v1/documents", tags=["documents"])

_CONTEXT = 500


def _indexer(services: ServicesDep) -> DocumentIndexer:
    if services.documents is None:
        raise HttpError(404, "no_documents", "this server answers from no documents; start it with --docs PATH")
    return services.documents


Indexer = Annotated[DocumentIndexer, Depends(_indexer)]


@router.get("", summary="The documents you may read, by name")
async def list_documents(
    indexer: Indexer,
    caller: Reading,
    search: Annotated[str | None, Query(max_length=200, description="Looks in names and titles.")] = None,
    after: Annotated[str | None, Query(description="The last id of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Json:
    if after is not None:
        # Another principal's document must not be usable as a cursor either.
        await asyncio.to_thread(indexer.library.document, after, owner=caller.principal)
    documents = await asyncio.to_thread(
        indexer.library.documents, owner=caller.principal, search=search, after=after, limit=limit + 1
    )
    page = documents[:limit]
    done, total = indexer.embedded
    return {
        "documents": [_document_json(document) for document in page],
        "next": page[-1].id if len(documents) > limit else None,
        "reading": {"under_way": indexer.is_reading, "done": indexer.progress.done, "total": indexer.progress.total},
        "embedding": {"done": done, "total": total},
    }


@router.get("/{id}", summary="A document's text; with start and end, the passage between them and its context")
async def show(
    services: ServicesDep,
    indexer: Indexer,
    caller: Reading,
    id: PathId,
    start: Annotated[int | None, Query(ge=0, description="As in a citation's `source_start`.")] = None,
    end: Annotated[int | None, Query(ge=0, description="As in a citation's `source_end`.")] = None,
) -> Json:
    library, document = await asyncio.to_thread(_find, services, indexer, id, caller.principal)
    if start is None and end is None:
        passages = await asyncio.to_thread(library.document_passages, id)
        return {**_document_json(document), "text": "".join(passage.text for passage in passages)}
    if start is None or end is None or not start < end <= document.characters:
        raise HttpError(
            422, "invalid_request", f"start, end: give both, start before end, up to {document.characters:,}"
        )
    first, last = max(0, start - _CONTEXT), min(document.characters, end + _CONTEXT)
    passages = await asyncio.to_thread(library.document_passages, id, start=first, end=last)
    if not passages or passages[-1].start + len(passages[-1].text) < last:
        raise DocumentNotFoundError(id)  # The document has changed or gone since it was looked up.
    return {**_document_json(document), "passage": _highlighted(passages, start, end, first, last)}


@router.post("", status_code=201, summary="Upload a document; it is yours alone")
async def upload(services: ServicesDep, indexer: Indexer, caller: Writing, file: UploadFile) -> Json:
    name, limit = _file_name(file.filename or ""), services.settings.max_document_bytes
    content = await file.read(limit + 1)
    if len(content) > limit:
        raise HttpError(413, "body_too_large", f"file: it is over {limit:,} bytes")
    if not content:
        raise HttpError(422, "invalid_request", "file: it is empty")
    return _document_json(await indexer.add(name, content, caller.principal))


@router.delete("/{id}", status_code=204, summary="Delete a document that you uploaded")
async def delete(indexer: Indexer, caller: Writing, id: PathId) -> None:
    document = await asyncio.to_thread(indexer.library.document, id, owner=caller.principal)
    if document.owner is None:
        raise HttpError(403, "shared_document", "this document belongs to the server; only its operator can remove it")
    await indexer.remove(document.id)


def _find(
    services: Services, indexer: DocumentIndexer, document_id: str, owner: str
) -> tuple[DocumentLibrary, Document]:
    """Return a document, or a note of the vault, and the library that holds it."""
    if services.vault is not None and services.vault is not indexer:
        with suppress(DocumentNotFoundError):
            return services.vault.library, services.vault.library.document(document_id, owner=owner)
    return indexer.library, indexer.library.document(document_id, owner=owner)


def _file_name(path: str) -> str:
    """Return the last part of the client's file name, which is shown and never used as a path."""
    name = clean_name(path)
    if not name or len(name) > MAX_NAME_LENGTH:
        raise HttpError(422, "invalid_request", "file: it needs a name of at most 255 characters")
    if format_of(name) is None:
        raise HttpError(415, "unsupported_format", f"{name} can't be read. Supported: {' '.join(sorted(SUFFIXES))}")
    return name


def _highlighted(passages: list[Passage], start: int, end: int, first: int, last: int) -> dict[str, Any]:
    """Return a quote and its context; joined, `before`, `quote` and `after` are the document's own text."""
    base = passages[0].start
    text = "".join(passage.text for passage in passages)
    marked = next(passage for passage in passages if passage.start + len(passage.text) > start)
    # A passage's first line is the line of its first word, not of the blank space before it.
    blank = len(marked.text) - len(marked.text.lstrip())
    return {
        "start": start,
        "end": end,
        "before": text[first - base : start - base],
        "quote": text[start - base : end - base],
        "after": text[end - base : last - base],
        "heading": marked.heading,
        "page_number": marked.page,
        "line": marked.line_start + marked.text.count("\n", blank, start - marked.start),
    }


def _document_json(document: Document) -> dict[str, Any]:
    return {
        "id": document.id,
        "name": document.name,
        "title": document.title,
        "format": document.format,
        "shared": document.owner is None,
        "bytes": document.bytes,
        "characters": document.characters,
        "pages": document.pages,
        "passages": document.passages,
        "sha256": document.digest,
        "indexed_at": time_text(document.indexed_at),
    }
