"""`/v1/documents`: documents are listed, read, and found from a citation."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.retrieval.paper import pdf, word
from tests.retrieval.shelf import GREEN, SHELF, TEA
from tests.server.conftest import Serve
from tests.server.readers import answer, by_user, listed, read_document, stored_counts, upload, user
from tests.serving import PATIENCE, Client, Served, error_of
from turnwire.core.errors import DocumentNotFoundError
from turnwire.retrieval import indexer
from turnwire.retrieval.index.library import Passage
from turnwire.retrieval.index.sqlite import SqliteLibrary
from turnwire.retrieval.indexer import SyncProgress

LONG = "\n".join(
    f"## Part {number}\n\nThe {number}th bell rings at {number} o'clock – 鐘.\n\n" + "It is an old bell. " * 90
    for number in range(1, 8)
)
PAGES = ("The harbour opens at six.", "The harbour master\nis called Petersen.", "The crane lifts forty tons.")
SECRET = "# Diary\n\nThe treasure is buried under the old oak.\n"
TREASURE = "Where is the treasure buried?"


@pytest.fixture
async def server(serve_documents: Serve, shelf: Path) -> AsyncIterator[Served]:
    (shelf / "bells.md").write_text(" \n\t\n" + LONG)
    (shelf / "harbour.pdf").write_bytes(pdf(*PAGES, title="The harbour"))
    (shelf / "mill.docx").write_bytes(word("# The mill", "The mill grinds on Mondays.", "It is driven by the wind."))
    (shelf / "clock.html").write_text("<title>Clock</title><h1>Clock</h1>\n<p>The clock\nstrikes   twice.</p>")
    async with serve_documents(authenticate=by_user) as served:
        yield served


@pytest.fixture
async def anna(server: Served) -> AsyncIterator[Client]:
    async with user(server, "anna") as client:
        yield client


@pytest.fixture
async def bob(server: Served) -> AsyncIterator[Client]:
    async with user(server, "bob") as client:
        yield client


async def documents(client: Client) -> dict[str, dict[str, Any]]:
    listing = (await client.http.get("/v1/documents")).json()["documents"]
    return {document["name"]: document for document in listing}


# The list


async def test_documents_are_listed_page_by_page_by_name(anna: Client) -> None:
    pages: list[list[str]] = []
    after: dict[str, str] = {}
    while True:
        page = (await anna.http.get("/v1/documents", params={"limit": 3, **after})).json()
        pages.append([document["name"] for document in page["documents"]])
        if page["next"] is None:
            break
        assert page["next"] == page["documents"][-1]["id"]
        after = {"after": page["next"]}
    names = sorted([*SHELF, "bells.md", "harbour.pdf", "mill.docx", "clock.html"])
    assert pages == [names[:3], names[3:6], names[6:]]
    assert (await anna.http.get("/v1/documents", params={"limit": len(names)})).json()["next"] is None


async def test_listed_document_has_its_fields(anna: Client) -> None:
    found_documents = await documents(anna)
    tea, harbour = found_documents["tea.md"], found_documents["harbour.pdf"]
    assert (tea["title"], tea["format"], tea["shared"], tea["pages"]) == ("Tea", "markdown", True, None)
    assert (tea["bytes"], tea["characters"]) == (len(TEA.encode()), len(TEA))
    assert tea["passages"] == 3
    assert len(tea["sha256"]) == 64
    assert (harbour["title"], harbour["format"], harbour["pages"]) == ("The harbour", "pdf", 3)
    assert "root" not in tea
    assert "owner" not in tea


async def test_a_list_is_searched_by_name_and_title(anna: Client) -> None:
    assert await listed(anna, search="TEA") == ["tea.md"]
    assert await listed(anna, search="the ") == ["ferry.md", "harbour.pdf", "lighthouse.md"]
    assert await listed(anna, search=".pdf") == ["harbour.pdf"]
    for odd in ("%", "_", "\x00", "' OR 1=1 --", "nowhere"):
        assert await listed(anna, search=odd) == []


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "limit=many", "search=" + "x" * 201])
async def test_invalid_list_parameters_are_refused(anna: Client, query: str) -> None:
    assert error_of(await anna.http.get(f"/v1/documents?{query}"), 422)["code"] == "invalid_request"


@pytest.mark.process
async def test_list_after_a_foreign_document_is_not_found(anna: Client, bob: Client) -> None:
    secret = (await upload(anna, "diary.md", SECRET)).json()["id"]
    for after in ("nothing", "", "\x00", "ÿ", "x" * 3_000, secret):
        response = await bob.http.get("/v1/documents", params={"after": after})
        assert error_of(response, 404)["code"] == "document_not_found", after


# The text of one


async def test_a_document_is_shown_whole(anna: Client, shelf: Path) -> None:
    found_documents = await documents(anna)
    for name in (*SHELF, "bells.md"):
        whole = await read_document(anna, found_documents[name]["id"])
        assert whole == {**found_documents[name], "text": (shelf / name).read_text()}
    assert (await read_document(anna, found_documents["harbour.pdf"]["id"]))["text"] == "\n\n".join(PAGES)


@pytest.mark.parametrize(
    ("question", "name", "heading"),
    [
        (GREEN, "tea.md", "Tea › Green tea"),
        ("What is the harbour master called?", "harbour.pdf", None),
        ("When does the mill grind?", "mill.docx", "The mill"),
        ("How often does the clock strike?", "clock.html", "Clock"),
        ("When does the 5th bell ring?", "bells.md", "Part 5"),
    ],
)
async def test_citation_range_returns_the_quoted_text(
    anna: Client, question: str, name: str, heading: str | None
) -> None:
    reply = await answer(anna, question)
    assert reply["citations"]
    for citation in reply["citations"]:
        whole = await read_document(anna, citation["document_id"])
        text, start, end = whole["text"], citation["source_start"], citation["source_end"]
        excerpt = await read_document(anna, citation["document_id"], start, end)
        passage = excerpt["passage"]
        assert passage["quote"] == citation["supporting_quote"] == text[start:end]
        first = start - len(passage["before"])
        assert text[first:].startswith(passage["before"] + passage["quote"] + passage["after"])
        assert len(passage["before"]) == min(500, start)
        assert len(passage["after"]) == min(500, len(text) - end)
        assert passage["line"] == text.count("\n", 0, start) + 1
        assert (passage["heading"], passage["page_number"]) == (citation.get("heading"), citation.get("page_number"))
        assert "text" not in excerpt
    best = reply["citations"][0]
    assert (await read_document(anna, best["document_id"]))["name"] == name
    assert best.get("heading") == heading
    assert best.get("page_number") == (2 if name.endswith(".pdf") else None)


async def test_any_range_of_a_document_can_be_shown(anna: Client) -> None:
    found_documents = await documents(anna)
    for name in ("bells.md", "harbour.pdf", "tea.md"):
        text = (await read_document(anna, found_documents[name]["id"]))["text"]
        size = len(text)
        for start, end in (
            (0, 1),
            (0, size),
            (size - 1, size),
            (4, 9),
            (size // 2, size // 2 + 900),
            (size // 3, size),
        ):
            end = min(end, size)
            passage = (await read_document(anna, found_documents[name]["id"], start, end))["passage"]
            assert (passage["start"], passage["end"], passage["quote"]) == (start, end, text[start:end])
            assert passage["before"] == text[max(0, start - 500) : start]
            assert passage["after"] == text[end : end + 500]
            if text[start].strip():
                assert passage["line"] == text.count("\n", 0, start) + 1


BAD_RANGES = (
    {"start": 0},
    {"end": 5},
    {"start": 5, "end": 5},
    {"start": 6, "end": 5},
    {"start": 0, "end": len(TEA) + 1},
    {"start": len(TEA), "end": len(TEA) + 1},
    {"start": 10**30, "end": 10**31},
    {"start": -1, "end": 5},
    {"start": "one", "end": "two"},
    {"start": "", "end": ""},
    {"start": "1.5", "end": "2"},
)


async def test_invalid_range_is_refused(anna: Client) -> None:
    tea = (await documents(anna))["tea.md"]["id"]
    for query in BAD_RANGES:
        error = error_of(await anna.http.get(f"/v1/documents/{tea}", params=query), 422)
        assert error["code"] == "invalid_request"
        assert error["message"].startswith(("start", "end")), query


async def test_an_id_that_no_document_has_is_not_found(anna: Client) -> None:
    for unknown in ("banana", "0" * 20, "%00", "%ff", "%2e%2e", "a" * 5_000, "tea.md", "..%2ftea.md"):
        for method in ("GET", "DELETE"):
            assert error_of(await anna.http.request(method, f"/v1/documents/{unknown}"), 404)
        assert error_of(await anna.http.get(f"/v1/documents/{unknown}?start=0&end=1"), 404)


@pytest.mark.one_store("it replaces methods of the local library")
async def test_a_document_that_changes_while_it_is_shown_is_not_found(
    anna: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    tea = (await documents(anna))["tea.md"]["id"]

    passages: Callable[..., list[Passage]] = SqliteLibrary.document_passages
    for limit in (0, 1):

        def shorter(*question: Any, limit: int = limit, **range: Any) -> list[Passage]:
            return passages(*question, **range)[:limit]

        monkeypatch.setattr(SqliteLibrary, "document_passages", shorter)
        response = await anna.http.get(f"/v1/documents/{tea}", params={"start": len(TEA) - 5, "end": len(TEA)})
        assert error_of(response, 404)["code"] == DocumentNotFoundError.code


# Whose it is


async def test_shared_document_is_readable_and_not_deletable(server: Served, anna: Client, bob: Client) -> None:
    before = await stored_counts(server)
    for client in (anna, bob):
        tea = (await documents(client))["tea.md"]
        assert tea["shared"]
        assert "eighty degrees" in (await answer(client, GREEN))["content"]
        response = await client.http.delete(f"/v1/documents/{tea['id']}")
        assert error_of(response, 403)["code"] == "shared_document"
    assert await stored_counts(server) == before


@pytest.mark.process
async def test_uploaded_document_is_visible_to_its_owner_only(server: Served, anna: Client, bob: Client) -> None:
    before = await stored_counts(server)
    made = await upload(anna, "diary.md", SECRET)
    assert made.status_code == 201
    diary = made.json()
    assert not diary["shared"]
    path = f"/v1/documents/{diary['id']}"

    assert "diary.md" in await listed(anna)
    assert await listed(anna, search="diary") == ["diary.md"]
    reply = await answer(anna, TREASURE)
    assert "under the old oak" in reply["content"]
    assert reply["citations"][0]["document_id"] == diary["id"]
    assert (await read_document(anna, diary["id"]))["text"] == SECRET

    assert "diary.md" not in await listed(bob)
    assert await listed(bob, search="diary") == []
    async with bob.ask(TREASURE) as stream:
        await stream.rest()
        assert b"oak" not in stream.raw
        assert diary["id"].encode() not in stream.raw
        assert stream.seen[-2].event["mode"] == "not_found"
    for request in (
        bob.http.get(path),
        bob.http.get(path, params={"start": 0, "end": 5}),
        bob.http.get(path, params={"start": 0, "end": 10**6}),
        bob.http.delete(path),
    ):
        error = error_of(await request, 404)
        assert error["code"] == "document_not_found"
        assert "anna" not in error["message"]

    assert (await anna.http.delete(path)).status_code == 204
    assert await stored_counts(server) == before
    assert (await answer(anna, TREASURE))["mode"] == "not_found"
    assert error_of(await anna.http.delete(path), 404)["code"] == "document_not_found"


@pytest.mark.process
async def test_the_same_file_of_two_people_is_two_documents(server: Served, anna: Client, bob: Client) -> None:
    ids = [(await upload(client, "diary.md", SECRET)).json()["id"] for client in (anna, bob)]
    assert len(set(ids)) == 2
    assert (await anna.http.delete(f"/v1/documents/{ids[0]}")).status_code == 204
    assert await listed(bob, search="diary") == ["diary.md"]
    assert "old oak" in (await answer(bob, TREASURE))["content"]


async def test_a_server_without_documents_says_so(serve: Serve) -> None:
    async with serve() as server:
        for response in (
            await server.http.get("/v1/documents"),
            await server.http.get("/v1/documents/x"),
            await upload(server, "diary.md", SECRET),
            await server.http.delete("/v1/documents/x"),
        ):
            assert error_of(response, 404)["code"] == "no_documents"


@pytest.mark.one_store("it replaces methods of the local library")
async def test_unexpected_failure_is_answered_once(
    server: Served, anna: Client, monkeypatch: pytest.MonkeyPatch, errors_in_the_log: list[str]
) -> None:
    def fail(*question: Any, **how: Any) -> None:
        raise RuntimeError("password=hunter2")

    errors_in_the_log.append("a request to /v1/documents failed")
    monkeypatch.setattr(SqliteLibrary, "documents", fail)
    error = error_of(await anna.http.get("/v1/documents"), 500)
    assert (error["code"], "hunter2" in error["message"]) == ("internal_error", False)


# How far it is


async def test_list_has_the_indexing_progress(serve_documents: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, read = threading.Event(), threading.Event(), indexer.sync_root

    def sync(*where: Any, report: Callable[[SyncProgress], None], **how: Any) -> SyncProgress:
        report(SyncProgress(total=3, done=1))
        begun.set()
        assert go_on.wait(PATIENCE)
        return read(*where, report=report, **how)

    monkeypatch.setattr(indexer, "sync_root", sync)
    async with serve_documents(settled=False) as server:
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        page = (await server.http.get("/v1/documents")).json()
        assert (page["documents"], page["reading"]) == ([], {"under_way": True, "done": 1, "total": 3})
        async with server.ask(GREEN) as stream:
            # It is told at once, and answered as soon as there is something to answer from.
            status = (await stream.until("status"))[-1].event
            assert status["text"] == "The documents are still being read: 1 of 3 files."
            go_on.set()
            assert "eighty degrees" in (await stream.rest())[-2].event["content"]
        page = (await server.http.get("/v1/documents")).json()
        assert page["reading"] == {"under_way": False, "done": 3, "total": 3}
        assert page["embedding"] == {"done": 0, "total": 0}


@pytest.mark.process
async def test_passages_are_embedded_in_the_background(serve_documents: Serve) -> None:
    async with serve_documents(documents={"embeddings": "minilm"}) as server, asyncio.timeout(PATIENCE):
        _, passages = await stored_counts(server)
        while (page := (await server.http.get("/v1/documents")).json())["embedding"]["done"] < passages:
            assert page["embedding"]["total"] in (0, passages)
        assert page["embedding"] == {"done": passages, "total": passages}
        assert "eighty degrees" in (await answer(server, GREEN))["content"]
        # What is uploaded gets its vectors too.
        await upload(server, "diary.md", SECRET)
        while (page := (await server.http.get("/v1/documents")).json())["embedding"]["done"] == passages:
            pass
        assert page["embedding"] == {"done": passages + 1, "total": passages + 1}
