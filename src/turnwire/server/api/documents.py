"""Documents: what answers come from. What the operator gave is everyone's, what was uploaded is its owner's."""

import asyncio
from contextlib import suppress
from pathlib import PurePosixPath, PureWindowsPath
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, UploadFile

from turnwire.app import Turnwire
from turnwire.core.codec import clean_text, time_text
from turnwire.core.errors import DocumentNotFoundError
from turnwire.retrieval.documents.parser import SUFFIXES, format_of
from turnwire.retrieval.index.library import Library
from turnwire.retrieval.index.records import Document, Passage
from turnwire.retrieval.indexer import DocumentIndexer
from turnwire.server.api.dependencies import Json, PathId, Reading, Server, Writing
from turnwire.server.errors import HttpError

router = APIRouter(prefix="/v1/documents", tags=["documents"])

_CONTEXT = 500
_LONGEST_NAME = 255


def _librarian(server: Server) -> DocumentIndexer:
    if server.librarian is None:
        raise HttpError(404, "no_documents", "this server answers from no documents; start it with --docs PATH")
    return server.librarian


Keeper = Annotated[DocumentIndexer, Depends(_librarian)]


@router.get("", summary="The documents you may read, by name")
async def list_documents(
    keeper: Keeper,
    caller: Reading,
    search: Annotated[str | None, Query(max_length=200, description="Looks in names and titles.")] = None,
    after: Annotated[str | None, Query(description="The last id of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Json:
    if after is not None:
        # What is another's must not even be of use as a place in the list.
        await asyncio.to_thread(keeper.library.document, after, owner=caller.principal)
    found = await asyncio.to_thread(
        keeper.library.documents, owner=caller.principal, search=search, after=after, limit=limit + 1
    )
    page = found[:limit]
    done, total = keeper.embedded
    return {
        "documents": [_document_json(document) for document in page],
        "next": page[-1].id if len(found) > limit else None,
        "reading": {"under_way": keeper.is_reading, "done": keeper.progress.done, "total": keeper.progress.total},
        "embedding": {"done": done, "total": total},
    }


@router.get("/{id}", summary="A document's text; with start and end, the passage they mark and what stands around it")
async def show(
    server: Server,
    keeper: Keeper,
    caller: Reading,
    id: PathId,
    start: Annotated[int | None, Query(ge=0, description="As in a citation's `source_start`.")] = None,
    end: Annotated[int | None, Query(ge=0, description="As in a citation's `source_end`.")] = None,
) -> Json:
    library, document = await asyncio.to_thread(_find, server, keeper, id, caller.principal)
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
        raise DocumentNotFoundError(id)  # It has become another one, or none, since it was looked up.
    return {**_document_json(document), "passage": _highlighted(passages, start, end, first, last)}


@router.post("", status_code=201, summary="Upload a document; it is yours alone")
async def upload(server: Server, keeper: Keeper, caller: Writing, file: UploadFile) -> Json:
    name, most = _file_name(file.filename or ""), server.settings.max_document_bytes
    content = await file.read(most + 1)
    if len(content) > most:
        raise HttpError(413, "body_too_large", f"file: it is over {most:,} bytes")
    if not content:
        raise HttpError(422, "invalid_request", "file: it is empty")
    return _document_json(await keeper.add(name, content, caller.principal))


@router.delete("/{id}", status_code=204, summary="Delete a document that you uploaded")
async def delete(keeper: Keeper, caller: Writing, id: PathId) -> None:
    document = await asyncio.to_thread(keeper.library.document, id, owner=caller.principal)
    if document.owner is None:
        raise HttpError(403, "shared_document", "it comes from a folder of the server's; only its operator removes it")
    await keeper.remove(document.id)


def _find(server: Turnwire, keeper: DocumentIndexer, document_id: str, owner: str) -> tuple[Library, Document]:
    """A document, or a note of the vault, which has a library of its own."""
    if server.vault is not None and server.vault is not keeper:
        with suppress(DocumentNotFoundError):
            return server.vault.library, server.vault.library.document(document_id, owner=owner)
    return keeper.library, keeper.library.document(document_id, owner=owner)


def _file_name(told: str) -> str:
    """The last part of the name that a client told; it is shown, and never used as a path."""
    name = clean_text(PurePosixPath(PureWindowsPath(told).name).name).strip()
    if not name or len(name) > _LONGEST_NAME:
        raise HttpError(422, "invalid_request", "file: it needs a name of at most 255 characters")
    if format_of(name) is None:
        raise HttpError(415, "unsupported_format", f"file: known are {' '.join(sorted(SUFFIXES))}")
    return name


def _highlighted(passages: list[Passage], start: int, end: int, first: int, last: int) -> dict[str, Any]:
    """Joined, before, quote and after are what stands in the document."""
    base = passages[0].start
    text = "".join(passage.text for passage in passages)
    marked = next(passage for passage in passages if passage.start + len(passage.text) > start)
    # A passage's first line is that of its first word, and not of the blank space before it.
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
