"""Clients of a server that answers from documents: users, uploads, answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.serving import Client, Served
from turnwire.retrieval.service import DocumentService

BOUNDARY = "boundary-of-the-test"
FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


def by_user(scope: dict[str, Any]) -> str | None:
    """Authenticates: whoever somebody says they are."""
    return dict(scope["headers"]).get(b"x-user", b"").decode() or None


@asynccontextmanager
async def user(server: Served, name: str) -> AsyncIterator[Client]:
    client = Client(server.url, {"X-User": name})
    try:
        yield client
    finally:
        await client.http.aclose()


async def upload(client: Client, name: str, content: str | bytes) -> httpx.Response:
    return await client.http.post("/v1/documents", files={"file": (name, content)})


def form(name: bytes, content: bytes, field: bytes = b"file") -> bytes:
    """Return the body of an upload with a raw file name, which a client library would clean."""
    head = b'--%b\r\nContent-Disposition: form-data; name="%b"; filename="%b"\r\n\r\n'
    return head % (BOUNDARY.encode(), field, name) + content + f"\r\n--{BOUNDARY}--\r\n".encode()


async def listed(client: Client, **query: Any) -> list[str]:
    """Return the names of the documents that a client may read."""
    answer = await client.http.get("/v1/documents", params={"limit": 200, **query})
    return [document["name"] for document in answer.json()["documents"]]


async def answer(client: Client, question: str, **body: Any) -> dict[str, Any]:
    """Return the `response` event of a completed turn."""
    async with client.ask(question, **body) as stream:
        frames = await stream.rest()
    assert frames[-1].event["outcome"] == "completed"
    return frames[-2].event


async def read_document(
    client: Client, document_id: str, start: int | None = None, end: int | None = None
) -> dict[str, Any]:
    query = {} if start is None else {"start": start, "end": end}
    response = await client.http.get(f"/v1/documents/{document_id}", params=query)
    assert response.status_code == 200, response.text
    return response.json()


async def stored_counts(server: Served) -> tuple[int, int]:
    """Return the numbers of documents and passages of all owners."""
    librarian = server.turnwire.services.of(DocumentService).documents
    assert librarian is not None
    return await asyncio.to_thread(librarian.library.count)
