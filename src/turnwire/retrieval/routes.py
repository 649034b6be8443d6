"""Documents to answer from: the operator's are shared, uploaded ones belong to their owner."""

import asyncio
from contextlib import suppress

from pydantic import BaseModel, Field

from turnwire.core.errors import DocumentNotFoundError
from turnwire.core.log.codec import time_text
from turnwire.retrieval.documents.parser import SUFFIXES, format_of
from turnwire.retrieval.index.library import Document, DocumentLibrary, Passage
from turnwire.retrieval.indexer import DocumentIndexer
from turnwire.retrieval.service import DocumentService
from turnwire.retrieval.settings import DocumentSettings
from turnwire.server.attachments import MAX_NAME_LENGTH, clean_name
from turnwire.server.errors import HttpError
from turnwire.server.forms import read_file
from turnwire.server.request import Request
from turnwire.server.router import Json, Route, RouteGroup
from turnwire.server.services import Services

_DOCUMENTS = RouteGroup("documents")
_CONTEXT = 500


class DocumentsQuery(BaseModel):
    """A page of documents."""

    search: str | None = Field(None, max_length=200, description="Looks in names and titles.")
    after: str | None = Field(None, description="The last id of the page before.")
    limit: int = Field(50, ge=1, le=200)


class PassageQuery(BaseModel):
    """A passage of a document."""

    start: int | None = Field(None, ge=0, description="As in a citation's `source_start`.")
    end: int | None = Field(None, ge=0, description="As in a citation's `source_end`.")


def _indexer(services: Services) -> DocumentIndexer:
    documents = services.of(DocumentService).documents
    if documents is None:
        raise HttpError(404, "no_documents", "this server answers from no documents; start it with --docs PATH")
    return documents


@_DOCUMENTS.route("GET", "/v1/documents", "The documents you may read, by name", query=DocumentsQuery)
async def list_documents(request: Request, services: Services) -> Json:
    indexer, query, owner = _indexer(services), request.parse_query(DocumentsQuery), request.caller.principal
    documents = await services.of(DocumentService).list_documents(
        owner=owner, search=query.search, after=query.after, limit=query.limit + 1
    )
    page = documents[: query.limit]
    done, total = indexer.embedded
    return {
        "documents": [_document_json(document) for document in page],
        "next": page[-1].id if len(documents) > query.limit else None,
        "reading": {"under_way": indexer.is_reading, "done": indexer.progress.done, "total": indexer.progress.total},
        "embedding": {"done": done, "total": total},
    }


@_DOCUMENTS.route(
    "GET",
    "/v1/documents/{id}",
    "A document's text; with start and end, the passage between them and its context",
    query=PassageQuery,
)
async def show_document(request: Request, services: Services) -> Json:
    indexer, id, query = _indexer(services), request.id_param(), request.parse_query(PassageQuery)
    start, end = query.start, query.end
    library, document = await asyncio.to_thread(_find, services, indexer, id, request.caller.principal)
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


@_DOCUMENTS.route(
    "POST",
    "/v1/documents",
    "Upload a document; it is yours alone",
    status=201,
    max_upload_bytes=lambda settings: settings.of(DocumentSettings).max_bytes,
)
async def upload(request: Request, services: Services) -> Json:
    indexer, limit = _indexer(services), services.settings.of(DocumentSettings).max_bytes
    file = await read_file(request, limit)
    name = _file_name(file.name)
    if len(file.content) > limit:
        raise HttpError(413, "body_too_large", f"file: it is over {limit:,} bytes")
    return _document_json(await indexer.add(name, file.content, request.caller.principal))


@_DOCUMENTS.route("DELETE", "/v1/documents/{id}", "Delete a document that you uploaded", status=204)
async def delete(request: Request, services: Services) -> None:
    indexer = _indexer(services)
    document = await asyncio.to_thread(indexer.library.document, request.id_param(), owner=request.caller.principal)
    if document.owner is None:
        raise HttpError(403, "shared_document", "this document belongs to the server; only its operator can remove it")
    await indexer.remove(document.id)
    await request.respond(204)


def _find(
    services: Services, indexer: DocumentIndexer, document_id: str, owner: str
) -> tuple[DocumentLibrary, Document]:
    """Return a document, or a note of the vault, and the library that holds it."""
    vault = services.of(DocumentService).vault
    if vault is not None and vault is not indexer:
        with suppress(DocumentNotFoundError):
            return vault.library, vault.library.document(document_id, owner=owner)
    return indexer.library, indexer.library.document(document_id, owner=owner)


def _file_name(path: str) -> str:
    """Return the last part of the client's file name, which is shown and never used as a path."""
    name = clean_name(path)
    if not name or len(name) > MAX_NAME_LENGTH:
        raise HttpError(422, "invalid_request", "file: it needs a name of at most 255 characters")
    if format_of(name) is None:
        raise HttpError(415, "unsupported_format", f"{name} can't be read. Supported: {' '.join(sorted(SUFFIXES))}")
    return name


def _highlighted(passages: list[Passage], start: int, end: int, first: int, last: int) -> Json:
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


def _document_json(document: Document) -> Json:
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


def routes() -> list[Route]:
    return _DOCUMENTS.routes
