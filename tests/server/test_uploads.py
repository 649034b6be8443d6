"""Uploads: accepted documents are searchable at once, hostile files are refused.

Whatever is refused is refused with a clear 4xx, and nothing of it is left behind.
"""

import asyncio
import gc
import io
import json
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.retrieval.paper import encrypted, pdf, with_part, word
from tests.server.conftest import Serve
from tests.server.readers import BOUNDARY, FORM, answer, by_user, form, listed, stored_counts, upload, user
from tests.serving import Client, Served, error_of, raw_request
from turnwire.core.contracts.stores import Scope

# A form that breaks off leaves its temporary file to the garbage collector; that is the form parser's way.
pytestmark = [
    pytest.mark.process,
    pytest.mark.filterwarnings("ignore:.*SpooledTemporaryFile:pytest.PytestUnraisableExceptionWarning"),
]

NOTE = b"# Diary\n\nThe treasure is buried under the old oak.\n"
MOST = 60_000
SLACK = 64 * 1024
"""The bytes that a form may add to its document."""


@pytest.fixture
async def server(serve_documents: Serve) -> AsyncIterator[Served]:
    async with serve_documents(store="sqlite", documents={"max_bytes": MOST, "max_uploads": 6}) as served:
        yield served


@asynccontextmanager
async def unchanged(server: Served, data: Path) -> AsyncIterator[None]:
    """Check that the block leaves no document and no file behind."""
    before = await stored_counts(server), files(data)
    yield
    gc.collect()
    assert (await stored_counts(server), files(data)) == before


def files(folder: Path) -> set[Path]:
    return set(folder.parent.rglob("*"))


async def send(client: Client, name: bytes, content: bytes = NOTE) -> tuple[int, str]:
    """Uploads under a name of any bytes: the status, and the name it got or the code of the error."""
    response = await client.http.post("/v1/documents", content=form(name, content), headers=FORM)
    if response.status_code == 201:
        return 201, response.json()["name"]
    return response.status_code, error_of(response)["code"]


# What is taken


UPLOADS = {
    "oak.md": NOTE,
    "birch.txt": b"The birch was planted by the gardener in May.",
    "pine.html": b"<title>Pine</title><script>alert(1)</script><p>The pine was struck by lightning.</p>",
    "elm.pdf": pdf("The elm is ninety years old."),
    "ash.docx": word("# Ash", "The ash is taller than the church."),
}


async def test_uploaded_document_of_every_format_is_searchable_at_once(server: Served) -> None:
    made = await asyncio.gather(*(upload(server, name, content) for name, content in UPLOADS.items()))
    assert [response.status_code for response in made] == [201] * len(UPLOADS)
    assert [response.json()["format"] for response in made] == ["markdown", "text", "html", "pdf", "docx"]
    assert set(UPLOADS) < set(await listed(server))
    for question, words in {
        "Where is the treasure buried?": "under the old oak",
        "Who planted the birch?": "by the gardener",
        "What struck the pine?": "struck by lightning",
        "How old is the elm?": "ninety years",
        "Is the ash taller than the church?": "taller than the church",
    }.items():
        reply = await answer(server, question)
        assert words in reply["content"]
        assert "alert" not in reply["content"]


async def test_the_same_file_again_is_the_same_document(server: Served) -> None:
    documents, passages = await stored_counts(server)
    first, again = (await upload(server, "oak.md", NOTE)).json(), (await upload(server, "oak.md", NOTE)).json()
    assert again["id"] == first["id"]
    assert await stored_counts(server) == (documents + 1, passages + 1)
    other, changed = await upload(server, "elm.md", NOTE), await upload(server, "oak.md", NOTE + b"\nAnd the key too.")
    assert len({first["id"], other.json()["id"], changed.json()["id"]}) == 3


NAMES = {
    b"../../etc/passwd": (415, "unsupported_format"),
    b"../../etc/passwd.md": (201, "passwd.md"),
    b"/etc/cron.d/evil": (415, "unsupported_format"),
    b"C:\\\\x\\\\y.md": (201, "y.md"),
    b"..\\\\..\\\\y": (415, "unsupported_format"),
    b"a\x00b.md": (201, "ab.md"),
    b"a\x1b[31m\x7f.md": (201, "a[31m.md"),
    b"\xff\xfe.md": (201, "ÿþ.md"),
    "鐘.MD".encode(): (201, "鐘.MD"),
    b"x.md\x00.exe": (415, "unsupported_format"),
    b"": (422, "invalid_request"),
    b"/": (422, "invalid_request"),
    b"..": (422, "invalid_request"),
    b".md": (415, "unsupported_format"),
    b" ": (422, "invalid_request"),
    b"\x00\x01": (422, "invalid_request"),
    b"x" * 253 + b".md": (422, "invalid_request"),
    b"x" * 10_000 + b".md": (422, "invalid_request"),
    b"x" * 252 + b".md": (201, "x" * 252 + ".md"),
    b"run.exe": (415, "unsupported_format"),
    b"README": (415, "unsupported_format"),
    b"notes.md.zip": (415, "unsupported_format"),
}


async def test_refusal_of_a_format_names_the_file_and_the_supported_formats(serve_documents: Serve) -> None:
    async with serve_documents() as server:
        message = error_of(await upload(server, "folder/bad.bin", NOTE), 415)["message"]
        assert message.startswith("bad.bin can't be read. Supported: .adoc")


async def test_file_name_is_shown_without_its_path(serve_documents: Serve, tmp_path: Path) -> None:
    async with serve_documents(store="sqlite", documents={"max_bytes": MOST}) as server:
        before = files(tmp_path / "data")
        got = await asyncio.gather(*(send(server, name) for name in NAMES))
        assert dict(zip(NAMES, got, strict=True)) == NAMES
        assert files(tmp_path / "data") == before
        assert {name for status, name in got if status == 201} < set(await listed(server))


# What is refused


def bomb() -> bytes:
    """A small file that unpacks to very much."""
    into = io.BytesIO(word("Tea"))
    packed = zipfile.ZipFile(into, "a", zipfile.ZIP_DEFLATED, compresslevel=1)
    with packed as archive, archive.open("word/more.xml", "w") as part:
        for _ in range(201):
            part.write(bytes(1024 * 1024))
    return into.getvalue()


def laughing() -> bytes:
    """An XML document that says a word a million times in a few lines."""
    entities = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 7))
    xml = f'<!DOCTYPE x [<!ENTITY l0 "ha">{entities}]><x>&l6;</x>'
    return with_part(word("Tea"), "word/document.xml", xml.encode())


def unreadable() -> Iterator[tuple[str, bytes, str]]:
    yield "empty.md", b"", "it is empty"
    yield "blank.txt", b" \n\t\n", "there is no text in it"
    yield "binary.md", b"\x7fELF\x02\x01\x00\x00" * 100, "it is not text"
    yield "script.html", b"<script>alert(1)</script>", "there is no text in it"
    yield "broken.pdf", pdf("Tea")[:200], "not a valid PDF"
    yield "picture.pdf", pdf(""), "only pictures"
    yield "locked.pdf", encrypted(pdf("Tea"), "secret"), "it is encrypted"
    yield "broken.docx", word("Tea")[:3_000], "not a valid Word document"
    yield "laughing.docx", laughing(), ""
    yield "bomb.docx", bomb(), "it unpacks to more than 200 MB"


async def test_unreadable_file_is_refused_with_its_reason(serve_documents: Serve, tmp_path: Path) -> None:
    async with serve_documents(store="sqlite") as server, unchanged(server, tmp_path / "data"):
        cases = list(unreadable())
        refused = [await upload(server, name, content) for name, content, _ in cases]
        for (name, _, why), response in zip(cases, refused, strict=True):
            error = error_of(response, 422)
            assert error["code"] == ("invalid_request" if name == "empty.md" else "document_unreadable"), name
            assert why in error["message"], name


async def test_a_file_that_takes_too_long_to_read_is_refused(serve_documents: Serve, tmp_path: Path) -> None:
    async with serve_documents(documents={"timeout": 0.001}) as server, unchanged(server, tmp_path / "data"):
        error = error_of(await upload(server, "oak.md", NOTE), 422)
        assert (error["code"], error["message"]) == ("document_unreadable", "it took longer than 0.001 seconds to read")


async def test_a_file_that_is_too_large_is_refused_before_it_is_read(server: Served, tmp_path: Path) -> None:
    head = f"POST /v1/documents HTTP/1.1\r\nHost: localhost\r\nContent-Type: {FORM['Content-Type']}\r\n"
    async with unchanged(server, tmp_path / "data"):
        reply = await raw_request(server.port, f"{head}Content-Length: {MOST + SLACK + 1}\r\n\r\n".encode())
        assert (reply.status, json.loads(reply.body)["error"]["code"]) == (413, "body_too_large")
        body = form(b"oak.md", b"x" * (MOST + SLACK))
        chunks = [body[start : start + 5_000] for start in range(0, len(body), 5_000)]
        chunked = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
        request = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunked + b"0\r\n\r\n"
        sent = await raw_request(server.port, request)
        assert (sent.status, json.loads(sent.body)["error"]["code"]) == (413, "body_too_large")


async def test_a_file_may_be_as_large_as_is_allowed_and_no_larger(server: Served) -> None:
    assert (await upload(server, "oak.txt", b"oak " * (MOST // 4))).status_code == 201
    before = await stored_counts(server)
    error = error_of(await upload(server, "oaks.txt", b"oak " * (MOST // 4) + b"!"), 413)
    assert (error["code"], error["message"]) == ("body_too_large", "file: it is over 60,000 bytes")
    assert await stored_counts(server) == before


PART = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="%b"\r\n\r\nx\r\n'.encode()
NO_FORMS = (
    (b'{"file": "oak.md"}', "application/json"),
    (b"file=oak.md", "application/x-www-form-urlencoded"),
    (NOTE, "text/markdown"),
    (NOTE, ""),
    (b"", FORM["Content-Type"]),
    (NOTE, FORM["Content-Type"]),
    (NOTE, "multipart/form-data"),
    (NOTE, "multipart/form-data; boundary=\xff"),
    (form(b"oak.md", NOTE), "multipart/form-data; boundary=another"),
    (form(b"oak.md", NOTE, field=b"document"), FORM["Content-Type"]),
    (form(b"oak.md", NOTE)[:-20], FORM["Content-Type"]),
    (PART % b"file" + f"--{BOUNDARY}--\r\n".encode(), FORM["Content-Type"]),
    (PART % b"more" * 1_100 + form(b"oak.md", NOTE), FORM["Content-Type"]),
    (form(b"oak.md", NOTE).replace(b'name="file"; ', b""), FORM["Content-Type"]),
    (form(b"oak.md", NOTE).replace(b"\r\n\r\n", b"\r\n" + b"X: y\r\n" * 3_000 + b"\r\n", 1), FORM["Content-Type"]),
)


async def test_body_without_a_file_form_is_refused(server: Served, tmp_path: Path) -> None:
    async with unchanged(server, tmp_path / "data"):
        for body, kind in NO_FORMS:
            headers = {b"Content-Type": kind.encode("latin-1")} if kind else {}
            error = error_of(await server.http.post("/v1/documents", content=body, headers=headers), 422)
            assert error["code"] == "invalid_request", (body[:80], kind)


async def test_interrupted_upload_leaves_nothing(server: Served, tmp_path: Path) -> None:
    head = f"POST /v1/documents HTTP/1.1\r\nHost: localhost\r\nContent-Type: {FORM['Content-Type']}\r\n"
    async with unchanged(server, tmp_path / "data"):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"{head}Content-Length: 5000\r\n\r\n".encode() + form(b"oak.md", NOTE)[:-30])
        await writer.drain()
        writer.transport.abort()
        # The next one is answered as ever.
        assert error_of(await upload(server, "run.exe", NOTE), 415)


async def test_a_web_page_of_another_origin_cannot_upload(server: Served, tmp_path: Path) -> None:
    """A form needs no leave of the browser's to be sent, and here no key is asked for."""
    async with unchanged(server, tmp_path / "data"):
        for headers, status in (
            ({"Origin": "https://evil.example"}, 403),
            ({"Origin": "null"}, 403),
            ({"Host": "evil.example"}, 421),
        ):
            body = form(b"oak.md", NOTE)
            error_of(await server.http.post("/v1/documents", content=body, headers={**FORM, **headers}), status)
            error_of(await server.http.delete("/v1/documents/x", headers=headers), status)


# Who may, and how much


async def test_upload_and_delete_need_the_write_scope(serve_documents: Serve) -> None:
    async with serve_documents() as server:
        scopes: tuple[Scope, ...] = ("read", "write")
        keys = [(await server.turnwire.keys.create("anna", (scope,)))[1] for scope in scopes]
        reader, writer = (Client(server.url, {"X-API-Key": key}) for key in keys)
        diary = await upload(writer, "oak.md", NOTE)
        assert diary.status_code == 201
        path = f"/v1/documents/{diary.json()['id']}"
        before = await stored_counts(server)
        assert (await reader.http.get(path)).status_code == 200
        for response in (
            await upload(reader, "elm.md", NOTE),
            await reader.http.delete(path),
            await writer.http.get(path),
            await writer.http.get("/v1/documents"),
        ):
            assert error_of(response, 403)["code"] == "forbidden"
        for response in (await upload(server, "elm.md", NOTE), await server.http.delete(path)):
            assert error_of(response, 401)["code"] == "unauthorized"
        assert await stored_counts(server) == before
        assert (await writer.http.delete(path)).status_code == 204
        for client in (reader, writer):
            await client.http.aclose()


async def test_uploads_over_the_limit_are_refused(serve_documents: Serve) -> None:
    async with (
        serve_documents(authenticate=by_user, documents={"max_uploads": 2}) as server,
        user(server, "anna") as anna,
        user(server, "bob") as bob,
    ):
        documents, _ = await stored_counts(server)
        uploads = await asyncio.gather(*(upload(anna, f"oak{n}.md", NOTE) for n in range(4)))
        assert sorted(response.status_code for response in uploads) == [201, 201, 429, 429]
        refused = next(response for response in uploads if response.status_code == 429)
        assert error_of(refused, 429)["code"] == "too_many_documents"
        assert (await stored_counts(server))[0] == documents + 2
        # Another's are not counted, and what is deleted is not counted any more.
        assert (await upload(bob, "oak.md", NOTE)).status_code == 201
        document_id = next(response.json()["id"] for response in uploads if response.status_code == 201)
        assert (await anna.http.delete(f"/v1/documents/{document_id}")).status_code == 204
        assert (await upload(anna, "elm.md", NOTE)).status_code == 201
        error_of(await upload(anna, "birch.md", NOTE), 429)
