"""Files of sessions over HTTP: on every wire, as uploads, read back by their owner, within their limits."""

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.server.conftest import Serve, StoreKind
from tests.server.readers import by_user, user
from tests.serving import Client, Served, error_of, until, within
from turnwire import Turn, read_file

PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
DIGEST = hashlib.sha256(PICTURE).hexdigest()
ENCODED = base64.b64encode(PICTURE).decode()
DATA_URL = f"data:image/png;base64,{ENCODED}"
LINK = "https://example.org/cat.png"


async def describe(turn: Turn) -> AsyncIterator[str]:
    """Answer with what the turn has: its files, and those of its history."""
    entries = [(turn.message, turn.attachments), *((each.content, each.attachments) for each in turn.history)]
    for text, attached in entries:
        for file in attached:
            digest = hashlib.sha256(await read_file(file)).hexdigest() if file.digest else file.url
            yield f"{text}|{file.media_type}|{file.name}|{digest}\n"


describe.takes_attachments = ["image/*"]  # type: ignore[attr-defined]


def native(text: str, url: str, **fields: Any) -> dict[str, Any]:
    file = {"data": url} if url.startswith("data:") else {"url": url, "media_type": "image/png"}
    return {"message": text, "attachments": [{**file, "name": "cat.png"}], **fields}


def ai_sdk(text: str, url: str, **fields: Any) -> dict[str, Any]:
    file = {"type": "file", "mediaType": "image/png", "url": url, "filename": "cat.png"}
    parts = [{"type": "text", "text": text}, file]
    return {"id": "chat", "messages": [{"id": text, "role": "user", "parts": parts}], **fields}


def ag_ui(text: str, url: str, **fields: Any) -> dict[str, Any]:
    value = url.partition(",")[2] or url
    source = {"type": "data" if url.startswith("data:") else "url", "value": value, "mimeType": "image/png"}
    content = [{"type": "text", "text": text}, {"type": "image", "source": source, "filename": "cat.png"}]
    return {"threadId": "t", "messages": [{"id": text, "role": "user", "content": content}], **fields}


def ag_ui_before_1(text: str, url: str, **fields: Any) -> dict[str, Any]:
    value = {"data": url.partition(",")[2]} if url.startswith("data:") else {"url": url}
    file = {"type": "binary", "mimeType": "image/png", "filename": "cat.png", **value}
    content = [{"type": "text", "text": text}, file]
    return {"threadId": "t", "messages": [{"id": text, "role": "user", "content": content}], **fields}


def completions(text: str, url: str, **fields: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url, "detail": "high"}}]
    return {"messages": [{"role": "user", "content": content}], **fields}


def responses(text: str, url: str, **fields: Any) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}, {"type": "input_image", "image_url": url}]
    return {"input": [{"role": "user", "content": content}], **fields}


def a2a(text: str, url: str, **fields: Any) -> dict[str, Any]:
    content = {"raw": url.partition(",")[2]} if url.startswith("data:") else {"url": url}
    parts = [{"text": text}, {**content, "mediaType": "image/png", "filename": "cat.png"}]
    return {"message": {"messageId": text, "role": "ROLE_USER", "parts": parts}, **fields}


def a2a_before_1(text: str, url: str, **fields: Any) -> dict[str, Any]:
    content = {"bytes": url.partition(",")[2]} if url.startswith("data:") else {"uri": url}
    file = {"kind": "file", "file": {**content, "mimeType": "image/png", "name": "cat.png"}}
    parts = [{"kind": "text", "text": text}, file]
    return {"message": {"messageId": text, "role": "user", "parts": parts}, **fields}


Body = Callable[..., dict[str, Any]]
WIRES: dict[str, tuple[str, Body]] = {
    "chat": ("/chat", native),
    "chat_stream": ("/chat/stream", native),
    "rag": ("/v1/rag/sessions/r/messages", native),
    "ai_sdk": ("/api/chat", ai_sdk),
    "ag_ui": ("/ag-ui", ag_ui),
    "ag_ui_0": ("/ag-ui", ag_ui_before_1),
    "completions": ("/v1/chat/completions", completions),
    "responses": ("/v1/responses", responses),
    "a2a": ("/a2a/default/message:send", a2a),
    "a2a_0": ("/a2a/default/message:send", a2a_before_1),
}


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> tuple[str, Body]:
    return WIRES[request.param]


async def last_answer(server: Client) -> str:
    turns = (await server.http.get("/v1/turns")).json()["turns"]
    return (await server.snapshot(turns[0]["turn_id"]))["state"]["text"]


async def stored(server: Client) -> list[list[dict[str, Any]]]:
    """Return the files of all sessions."""
    sessions = (await server.http.get("/v1/sessions")).json()["sessions"]
    return [(await server.http.get(f"/v1/sessions/{each['id']}/files")).json()["files"] for each in sessions]


async def test_file_reaches_the_agent_byte_for_byte_on_every_wire(
    serve: Serve, kind: StoreKind, wire: tuple[str, Body]
) -> None:
    path, body = wire
    async with serve(describe, store=kind) as server:
        answer = await within(server.http.post(path, json=body("Look", DATA_URL)))
        assert answer.status_code == 200, answer.text
        text, media_type, name, digest = (await last_answer(server)).strip().split("|")
        assert (text, media_type, digest) == ("Look", "image/png", DIGEST)
        assert name == ("None" if path.startswith("/v1/chat") or path == "/v1/responses" else "cat.png")
        ((file,),) = await stored(server)
        assert (file["digest"], file["size"]) == (DIGEST, len(PICTURE))


async def test_address_is_passed_on_and_not_fetched_on_every_wire(serve: Serve, wire: tuple[str, Body]) -> None:
    path, body = wire
    async with serve(describe) as server:
        answer = await within(server.http.post(path, json=body("Look", LINK)))
        assert answer.status_code == 200, answer.text
        assert (await last_answer(server)).strip().endswith(f"|{LINK}")
        assert await stored(server) == [[]]


async def test_file_that_the_agent_cannot_take_is_refused_on_every_wire(serve: Serve, wire: tuple[str, Body]) -> None:
    async def listen(turn: Turn) -> str:
        return "never"

    path, body = wire
    for types, words in (((), "takes none"), (("audio/*",), "takes audio/*, and not image/png")):
        listen.takes_attachments = types  # type: ignore[attr-defined]
        async with serve(listen) as server:
            refused = await server.http.post(path, json=body("Look", DATA_URL))
            assert refused.status_code in (400, 422), refused.text
            assert '"attachments_not_taken"' in refused.text
            assert words in refused.json()["error"]["message"]
            assert await server.written() == (0, 0)


@pytest.mark.parametrize("url", ["data:image/png;base64,%%%", "data:image/png;base64,", "ftp://example.org/x", "no"])
async def test_malformed_file_is_refused_on_every_wire(serve: Serve, wire: tuple[str, Body], url: str) -> None:
    path, body = wire
    async with serve(describe) as server:
        response = await server.http.post(path, json=body("Look", url))
        assert response.status_code in (400, 422), response.text
        assert await server.written() == (0, 0)


@pytest.mark.parametrize("name", ["ai_sdk", "ag_ui"])
async def test_client_that_resends_its_history_stores_a_file_once(serve: Serve, kind: StoreKind, name: str) -> None:
    path, body = WIRES[name]
    async with serve(describe, store=kind) as server:
        first = body("One", DATA_URL)
        await within(server.http.post(path, json=first))
        again = {**first, "messages": [*first["messages"], *body("Two", DATA_URL)["messages"]]}
        await within(server.http.post(path, json=again))
        assert sorted((await last_answer(server)).splitlines()) == [
            f"{text}|image/png|cat.png|{DIGEST}" for text in ("One", "Two")
        ]
        assert [len(files) for files in await stored(server)] == [1]


@pytest.mark.parametrize("name", ["ai_sdk", "ag_ui", "completions", "responses"])
async def test_files_of_a_history_from_elsewhere_are_there_in_every_turn(serve: Serve, name: str) -> None:
    path, body = WIRES[name]
    field = "input" if name == "responses" else "messages"
    answer = {"id": "a", "role": "assistant", "content": "A cat."}
    if name == "ai_sdk":
        answer = {"id": "a", "role": "assistant", "parts": [{"type": "text", "text": "A cat."}]}
    earlier, sent = body("One", DATA_URL), body("Two", DATA_URL)
    sent[field] = [*earlier[field], answer, *sent[field]]
    async with serve(describe) as server:
        posted = await within(server.http.post(path, json=sent, headers={"X-Session-Id": "s"}))
        assert posted.status_code == 200, posted.text
        texts = [line.partition("|")[0] for line in (await last_answer(server)).splitlines()]
        assert sorted(texts) == ["One", "Two"]
        session_id = (await server.http.get("/v1/sessions")).json()["sessions"][0]["id"]
        await within(server.http.post("/chat", json={"message": "Three", "session_id": session_id}))
        texts = [line.partition("|")[0] for line in (await last_answer(server)).splitlines()]
        assert sorted(texts) == ["One", "Two"]


async def test_turn_and_snapshot_describe_files_and_never_have_them(serve: Serve) -> None:
    async with serve(describe) as server:
        turn_id = await server.start("Look", attachments=[{"data": DATA_URL, "name": "cat.png"}])
        frames = await server.whole(turn_id)
        described = [{"media_type": "image/png", "name": "cat.png", "size": len(PICTURE), "digest": DIGEST}]
        assert frames[1].event["attachments"] == described
        snapshot = await server.snapshot(turn_id)
        assert (snapshot["attachments"], snapshot["state"]["attachments"]) == (described, described)
        log = await server.http.get(f"/v1/turns/{turn_id}/log.jsonl")
        assert ENCODED[:40] not in log.text + json.dumps(snapshot)


# Uploads


@pytest.fixture
async def server(serve: Serve, kind: StoreKind, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr("turnwire.core.run.runner._MAX_SESSION_FILE_BYTES", 4_500)
    limits = {"max_file_bytes": 2_000, "max_message_bytes": 5_000}
    async with serve(describe, store=kind, authenticate=by_user, max_body_bytes=1_500, **limits) as served:
        yield served


@pytest.fixture
async def anna(server: Served) -> AsyncIterator[Client]:
    async with user(server, "anna") as client:
        await client.http.post("/v1/sessions", json={"id": "diary"})
        yield client


async def upload(client: Client, content: bytes = PICTURE, name: str = "cat.png", kind: str = "image/png") -> Any:
    return await client.http.post("/v1/sessions/diary/files", files={"file": (name, content, kind)})


async def test_uploaded_file_is_named_by_its_digest_in_a_message(anna: Client) -> None:
    described = (await upload(anna)).json()
    assert described == {"media_type": "image/png", "name": "cat.png", "size": len(PICTURE), "digest": DIGEST}
    sent = {"message": "Look", "session_id": "diary", "attachments": [{"digest": DIGEST, "name": "dog.png"}]}
    await within(anna.http.post("/chat", json=sent))
    assert await last_answer(anna) == f"Look|image/png|dog.png|{DIGEST}\n"


async def test_unknown_digest_in_a_message_is_a_422_with_its_field(anna: Client) -> None:
    for session in ("diary", "new"):
        sent = {"message": "Look", "session_id": session, "attachments": [{"digest": "0" * 64}]}
        error = error_of(await anna.http.post("/chat", json=sent), 422)
        assert error["message"].startswith("attachments.0.digest: ")
    assert (await anna.http.get("/v1/turns")).json()["turns"] == []


async def test_foreign_file_is_a_404(server: Served, anna: Client) -> None:
    await upload(anna)
    session_id = (await anna.http.get("/v1/sessions/diary")).json()["id"]
    async with user(server, "bob") as bob:
        for name in (session_id, "diary"):
            base = f"/v1/sessions/{name}/files"
            assert error_of(await bob.http.get(base), 404)["code"] == "session_not_found"
            assert error_of(await bob.http.get(f"{base}/{DIGEST}"), 404)["code"] == "session_not_found"
            refused = await bob.http.post(base, files={"file": ("x", b"x")})
            assert error_of(refused, 404)["code"] == "session_not_found"
        sent = {"message": "Look", "attachments": [{"digest": DIGEST}]}
        assert error_of(await bob.http.post("/chat", json=sent), 422)


async def test_unknown_file_is_a_404(anna: Client) -> None:
    assert error_of(await anna.http.get(f"/v1/sessions/diary/files/{'0' * 64}"), 404)["code"] == "file_not_found"
    assert error_of(await anna.http.get("/v1/sessions/diary/files/..%2f..%2fetc"))["code"] in ("not_found",)
    assert error_of(await anna.http.get("/v1/sessions/diary/files/ABC"), 404)["code"] == "file_not_found"
    assert error_of(await anna.http.get("/v1/sessions/diary/files/%00"), 404)["code"] == "not_found"


@pytest.mark.parametrize(
    ("kind_sent", "kind_shown", "disposition"),
    [
        ("image/png", "image/png", "inline"),
        ("IMAGE/PNG; charset=x", "image/png", "inline"),
        ("image/svg+xml", "application/octet-stream", "attachment"),
        ("text/html", "application/octet-stream", "attachment"),
        ("application/pdf", "application/octet-stream", "attachment"),
    ],
)
async def test_only_safe_images_are_shown_in_place(
    anna: Client, kind_sent: str, kind_shown: str, disposition: str
) -> None:
    content = b"<script>alert(1)</script>"
    digest = (await upload(anna, content, "x", kind_sent)).json()["digest"]
    shown = await anna.http.get(f"/v1/sessions/diary/files/{digest}")
    assert shown.content == content
    assert shown.headers["content-type"] == kind_shown
    assert shown.headers["content-disposition"].startswith(disposition)
    assert shown.headers["x-content-type-options"] == "nosniff"
    assert shown.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert "private" in shown.headers["cache-control"]


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\temp\\cat.png", "cat.png"),
        ("a\x00b\nc.png", "abc.png"),
        ("x\u202egnp.exe", "xgnp.exe"),
        ("ünï'\".png", "ünï'\".png"),
        ("..", None),
    ],
)
async def test_hostile_names_are_cleaned_and_quoted(anna: Client, sent: str, kept: str | None) -> None:
    body = {"message": "Look", "session_id": "diary", "attachments": [{"data": DATA_URL, "name": sent}]}
    await within(anna.http.post("/chat", json=body))
    assert await last_answer(anna) == f"Look|image/png|{kept}|{DIGEST}\n"
    shown = (await anna.http.get(f"/v1/sessions/diary/files/{DIGEST}")).headers["content-disposition"]
    assert shown.isascii()
    assert not set('"\r\n/\\') & set(shown)


async def test_files_are_gone_with_their_session_and_turn(anna: Client) -> None:
    sent = {"message": "Look", "session_id": "diary", "attachments": [{"data": DATA_URL}]}
    answer = (await within(anna.http.post("/chat", json=sent))).json()
    path = f"/v1/sessions/diary/files/{DIGEST}"
    assert (await anna.http.get(path)).status_code == 200
    response_id = f"resp_{answer['turn_id']}"
    await within(anna.http.post("/chat", json={"message": "More", "session_id": "diary"}))
    assert (await anna.http.delete(f"/v1/responses/{response_id}")).status_code == 200
    assert error_of(await anna.http.get(path), 404)["code"] == "file_not_found"


# Limits


async def test_file_may_be_larger_than_the_text_of_a_body_on_every_wire(
    server: Served, anna: Client, wire: tuple[str, Body]
) -> None:
    path, body = wire
    large = f"data:image/png;base64,{base64.b64encode(bytes(1_900)).decode()}"
    answer = await within(anna.http.post(path, json=body("Look", large)))
    assert answer.status_code == 200, answer.text
    refused = await anna.http.post(path, json=body("Look" * 400, large))
    assert refused.status_code == 413, refused.text


async def test_file_over_the_limit_is_a_413(anna: Client) -> None:
    large = base64.b64encode(bytes(2_001)).decode()
    attached = [{"data": large, "media_type": "image/png", "name": "big.png"}]
    error = error_of(await anna.http.post("/chat", json={"message": "Look", "attachments": attached}), 413)
    assert (error["code"], "big.png" in error["message"]) == ("file_too_large", True)
    assert error_of(await upload(anna, bytes(2_001)), 413)["code"] == "file_too_large"
    assert (await upload(anna, bytes(2_000))).status_code == 201
    assert (await anna.http.get("/v1/turns")).json()["turns"] == []


async def test_message_over_the_limit_is_a_413(anna: Client) -> None:
    files = [{"data": base64.b64encode(bytes([n]) * 1_900).decode(), "media_type": "image/png"} for n in range(3)]
    assert error_of(await anna.http.post("/chat", json={"message": "Look", "attachments": files}), 413)
    digests = [(await upload(anna, bytes([n]) * 1_500)).json()["digest"] for n in range(3)]
    sent = {"message": "Look", "session_id": "diary", "attachments": [{"digest": digest} for digest in digests * 2]}
    assert error_of(await anna.http.post("/chat", json=sent), 413)["code"] == "body_too_large"


async def test_session_over_its_limit_is_a_413(anna: Client) -> None:
    for number in range(2):
        assert (await upload(anna, bytes([number]) * 2_000)).status_code == 201
    assert error_of(await upload(anna, bytes(1_000)), 413)["code"] == "files_full"
    attached = [{"data": base64.b64encode(bytes(1_000)).decode(), "media_type": "image/png"}]
    sent = {"message": "Look", "session_id": "diary", "attachments": attached}
    assert error_of(await anna.http.post("/chat", json=sent), 413)["code"] == "files_full"
    assert (await upload(anna, bytes([1]) * 2_000)).status_code == 201  # It is there already.


async def test_text_over_the_limit_of_a_body_is_a_413_beside_files_too(anna: Client) -> None:
    attached = [{"data": base64.b64encode(bytes(1_800)).decode(), "media_type": "image/png"}]
    sent = {"message": "x" * 1_000, "attachments": attached}
    assert (await within(anna.http.post("/chat", json=sent))).status_code == 200
    for path in ("/chat", "/v1/sessions/diary/turns"):
        refused = await anna.http.post(path, json={"message": "x" * 1_600, "attachments": attached})
        assert error_of(refused, 413)["code"] == "body_too_large"
    refused = await anna.http.post("/ag-ui", json={"messages": [], "state": {"value": "x y" * 1_000}})
    assert error_of(refused, 413)["code"] == "body_too_large"


async def test_large_bodies_of_a_principal_are_read_two_at_a_time(server: Served, anna: Client) -> None:
    """Bodies that are not complete hold their slots, and those of another principal go on."""
    port = int(server.url.rpartition(":")[2])
    head = b"POST /chat HTTP/1.1\r\nHost: localhost\r\nX-User: anna\r\nContent-Type: application/json\r\n"
    body = json.dumps({"message": "Look", "attachments": [{"data": "A" * 1_600, "media_type": "image/png"}]}).encode()
    head += b"Content-Length: %d\r\n\r\n" % len(body)
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    slots = server.turnwire.services.uploads
    for _, writer in connections:
        writer.write(head + body[:-1])
    await until(lambda: (slots.held_by("anna"), slots.waiting_of("anna")) == (2, 1))
    async with user(server, "bob") as bob:
        headers = {"content-type": "application/json"}
        assert (await within(bob.http.post("/chat", content=body, headers=headers))).is_success
    for reader, writer in connections:
        writer.write(body[-1:])
        assert (await within(reader.readline())).startswith(b"HTTP/1.1 200")
        writer.close()
    await until(lambda: not slots.held_by("anna"))


@pytest.mark.parametrize("path", ["/chat", "/v1/sessions/diary/turns", "/v1/sessions/diary/files"])
async def test_large_body_over_the_waiting_ones_is_a_429(
    server: Served, anna: Client, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.turnwire.services.uploads, "each", 0)
    monkeypatch.setattr(server.turnwire.services.uploads, "max_waiting", 0)
    if path in ("/chat", "/v1/sessions/diary/turns"):
        attached = [{"data": base64.b64encode(bytes(1_800)).decode(), "media_type": "image/png"}]
        refused = await within(anna.http.post(path, json={"message": "Look", "attachments": attached}))
    else:
        refused = await within(anna.http.post(path, files={"file": ("cat.png", bytes(1_800), "image/png")}))
    assert error_of(refused, 429)["code"] == "too_many_requests"
