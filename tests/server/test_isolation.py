"""Isolation and fairness: one client costs others little, and overload is refused before work is done."""

import asyncio
import contextlib
import hashlib
import hmac
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Serve, StoreKind
from tests.server.socket_client import talking
from tests.server.test_slow_readers import LONG, MEGABYTE, open_streams, resident_bytes, stalled_readers
from tests.serving import Puppet, Served, error_of, let_time_pass, raw_request, until, within
from turnwire.cli.web_server import GuardedProtocol
from turnwire.core import metrics
from turnwire.core.log.events import StatusEvent
from turnwire.retrieval.documents.document import ParsedDocument
from turnwire.retrieval.documents.parser import parse
from turnwire.server.auth import LOGIN_SECRET_NAME, read_login_secret
from turnwire.stores.sqlite.transfer import copy_folder

LARGE_EVENT = StatusEvent("x" * 200_000)


async def ended_turn(server: Served, puppet: Puppet, *lines: object, **body: Any) -> str:
    turn_id = await server.start(**body)
    part = await puppet.part()
    part.say(*lines)  # type: ignore[arg-type]
    part.end()
    await server.ended(turn_id)
    return turn_id


async def test_stalled_downloads_of_a_log_are_counted_bounded_and_dropped(
    serve: Serve, puppet: Puppet, kind: StoreKind
) -> None:
    async with serve(store=kind, write_timeout=LONG, max_open_streams=30) as server:
        turn_id = await ended_turn(server, puppet, *[LARGE_EVENT] * 50)
        path = f"/v1/turns/{turn_id}/log.jsonl"
        await server.http.get(path)
        before = resident_bytes()
        async with stalled_readers(server, path, 30):
            await open_streams(server, 30)
            assert error_of(await server.http.get(path), 429)["code"] == "too_many_streams"
            # Each holds about a page and what the system buffers; the whole log is ten megabytes.
            assert resident_bytes() - before < 30 * 3 * MEGABYTE
            let_time_pass(server.turnwire, 2 * LONG)
            await open_streams(server, 0)
        lines = (await server.http.get(path)).text.splitlines()
        assert len(lines) == 54


async def test_downloads_of_one_principal_read_a_few_pages_at_a_time(
    server: Served, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn_id = await ended_turn(server, puppet, *[StatusEvent("x")] * 20)
    store, reading, let_go = server.turnwire.store, 0, asyncio.Event()
    read = store.read

    async def read_slowly(*arguments: Any) -> Any:
        nonlocal reading
        reading += 1
        await let_go.wait()
        return await read(*arguments)

    monkeypatch.setattr(store, "read", read_slowly)
    path = f"/v1/turns/{turn_id}/log.jsonl"
    downloads = [asyncio.create_task(server.http.get(path)) for _ in range(30)]
    await open_streams(server, 30)
    await until(lambda: reading >= 4)
    assert reading == 4
    let_go.set()
    answers = await within(asyncio.gather(*downloads))
    assert {len(answer.text.splitlines()) for answer in answers} == {24}


async def test_page_of_a_long_poll_is_bounded_in_bytes(server: Served, puppet: Puppet) -> None:
    turn_id = await ended_turn(server, puppet, *[LARGE_EVENT] * 50)
    after, received = 0, 0
    while True:
        answer = await server.http.get(f"/v1/turns/{turn_id}/events", params={"after": after, "wait": 0})
        assert len(answer.content) < 2 * MEGABYTE
        page = answer.json()
        received += len(page["events"])
        after = page["after"]
        if page["done"]:
            break
    assert received == 54


async def test_long_polls_and_joined_chats_are_counted(serve: Serve, puppet: Puppet) -> None:
    async with serve(max_open_streams=3) as server:
        turn_id = await server.start(turn_id="mine", message="hello")
        await puppet.part()
        path = f"/v1/turns/{turn_id}/events"
        waiting = [asyncio.create_task(server.http.get(path, params={"after": 2, "wait": 60})) for _ in range(2)]
        message = {"message": "hello", "turn_id": "mine"}
        waiting.append(asyncio.create_task(server.http.post("/chat", json=message)))
        streams = server.turnwire.streams
        await until(lambda: streams.opened_by("local") == 3)
        for refused in (
            await server.http.get(path, params={"after": 2, "wait": 60}),
            await server.http.post("/chat", json={"message": "another"}),
            await server.http.post(
                "/v1/chat/completions", json={"model": "x", "messages": [{"role": "user", "content": "another"}]}
            ),
            await server.http.post("/v1/responses", json={"model": "x", "input": "another"}),
        ):
            assert refused.status_code == 429, refused.text
            assert "retry-after" in refused.headers
        assert await server.written() == (1, 1), "a refused request starts nothing"
        puppet.parts[0].say("there")
        puppet.parts[0].end()
        assert [answer.status_code for answer in await within(asyncio.gather(*waiting))] == [200, 200, 200]
        await until(lambda: not streams.opened_by("local"))


def by_header(scope: dict[str, object]) -> str | None:
    headers = dict(scope["headers"])  # type: ignore[call-overload]
    return headers.get(b"x-user", b"").decode() or None


async def test_searches_of_one_principal_run_one_at_a_time_and_delay_no_reads(
    serve: Serve, puppet: Puppet, tmp_path: object
) -> None:
    async with serve(store="sqlite", authenticate=by_header) as server:
        ann, bob = {"x-user": "ann"}, {"x-user": "bob"}
        store = server.turnwire.store
        begun, let_go = asyncio.Queue[str](), asyncio.Event()
        list_sessions = store.list_sessions

        async def slow(principal: str, *, search: str | None = None, **page: object) -> object:
            if search:
                begun.put_nowait(principal)
                await let_go.wait()
            return await list_sessions(principal, search=search, **page)  # type: ignore[arg-type]

        store.list_sessions = slow  # type: ignore[method-assign]
        searches = [asyncio.create_task(server.http.get("/v1/sessions?search=x", headers=ann)) for _ in range(40)]
        assert await within(begun.get()) == "ann"
        # Another principal is neither behind the searches nor behind the reads of the first.
        assert (await server.http.get("/v1/sessions", headers=bob)).status_code == 200
        others = asyncio.create_task(server.http.get("/v1/sessions?search=y", headers=bob))
        assert await within(begun.get()) == "bob"
        assert begun.empty()
        let_go.set()
        assert (await within(others)).status_code == 200
        assert {answer.status_code for answer in await within(asyncio.gather(*searches))} == {200}


async def test_too_many_waiting_requests_are_refused_with_retry_after(serve: Serve) -> None:
    async with serve(authenticate=by_header) as server:
        slots = server.turnwire.services.searches
        ann = {"x-user": "ann"}
        async with slots.slot("ann"):
            slots.max_waiting = 0
            refused = await server.http.get("/v1/sessions?search=x", headers=ann)
        assert error_of(refused, 429)["code"] == "too_many_requests"
        assert "retry-after" in refused.headers


async def test_answers_that_read_logs_take_a_slot_on_every_wire(serve: Serve, puppet: Puppet) -> None:
    async with serve() as server:
        turn_id = await ended_turn(server, puppet, "hello", session_id="mine")
        slots = server.turnwire.services.requests
        for path in (
            f"/v1/turns/{turn_id}",
            "/api/chat/mine/messages",
            "/ag-ui?threadId=mine",
            f"/v1/responses/resp_{turn_id}",
            f"/v1/responses/resp_{turn_id}/input_items",
            f"/a2a/default/tasks/{turn_id}",
        ):
            assert (await server.http.get(path)).status_code == 200, path
            before, slots.free, slots.max_waiting = slots.free, 0, 0
            assert (await server.http.get(path)).status_code == 429, path
            slots.free, slots.max_waiting = before, 256


async def test_stalled_readers_of_a_large_answer_are_counted_and_dropped(serve: Serve, puppet: Puppet) -> None:
    """A snapshot is one answer, and stays in memory until its reader has taken it."""
    async with serve(write_timeout=LONG) as server:
        turn_id = await ended_turn(server, puppet, *["x" * 200_000] * 40)
        async with stalled_readers(server, f"/v1/turns/{turn_id}", 20):
            requests = server.turnwire.services.requests
            await until(lambda: (requests.held_by("local"), requests.waiting_of("local")) == (4, 16))
        await until(lambda: not requests.held_by("local"))
        assert (await server.http.get(f"/v1/turns/{turn_id}")).status_code == 200


async def test_reader_that_takes_nothing_of_a_large_answer_is_dropped(serve: Serve, puppet: Puppet) -> None:
    async with serve(write_timeout=0.2) as server:
        turn_id = await ended_turn(server, puppet, *["x" * 200_000] * 40)
        async with stalled_readers(server, f"/v1/turns/{turn_id}", 1):
            requests = server.turnwire.services.requests
            await until(lambda: requests.held_by("local") == 1)
            await until(lambda: not requests.held_by("local"))


async def test_headers_without_end_are_refused(server: Served) -> None:
    endless = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: " + b"x" * 1_000_000
    answer = await raw_request(server.port, endless)
    assert answer.status == 431
    whole = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nX-Long: " + b"x" * 70_000 + b"\r\n\r\n"
    assert (await raw_request(server.port, whole)).status == 431
    just_fits = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nX: " + b"x" * 30_000 + b"\r\n\r\n"
    assert (await raw_request(server.port, just_fits)).status == 200


async def test_incomplete_requests_end_in_time(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GuardedProtocol, "head_seconds", 0.1)
    monkeypatch.setattr(GuardedProtocol, "body_seconds", 0.1)
    half_head = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    assert (await raw_request(server.port, half_head)).status == 408
    half_body = (
        b'POST /chat HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"'
    )
    assert (await raw_request(server.port, half_body)).status == 408
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    assert await within(reader.read()) == b"", "a connection without a request is closed"
    writer.close()


async def test_open_streams_outlast_the_time_for_a_request(
    serve: Serve, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GuardedProtocol, "head_seconds", 0.05)
    monkeypatch.setattr(GuardedProtocol, "body_seconds", 0.05)
    monkeypatch.setattr(GuardedProtocol, "request_seconds", 0.05)
    async with serve(heartbeat=0.2) as server, server.ask() as stream:
        part = await puppet.part()
        await stream.until("message")
        while (await within(stream.next_block())).comment is None:  # type: ignore[union-attr]
            pass  # The first heartbeat comes after all of these limits.
        part.say("late")
        part.end()
        assert (await stream.until("done"))[-1].event["outcome"] == "completed"


async def test_half_requests_do_not_use_up_the_connections(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GuardedProtocol, "max_incomplete", 10)
    halves = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(30)]
    for _, writer in halves:
        writer.write(b"GET /healthz HTTP/1.1\r\n")
    assert (await server.http.get("/healthz")).status_code == 200
    # The oldest were closed for it, and the newest are open still.
    first, last = halves[0][0], halves[-1]
    with contextlib.suppress(ConnectionError):
        assert await within(first.read()) == b""
    last[1].write(b"Host: 127.0.0.1\r\nConnection: close\r\n\r\n")
    assert (await within(last[0].read())).startswith(b"HTTP/1.1 200")
    for _, writer in halves:
        writer.close()


async def test_slow_uploads_of_one_principal_delay_no_other_and_are_bounded(
    serve_documents: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go, begun = asyncio.Event(), asyncio.Queue[str]()

    async def parse_slowly(name: str, content: bytes, timeout: float) -> ParsedDocument:
        begun.put_nowait(name)
        if name.startswith("slow"):
            await let_go.wait()
        return parse(name, content)

    monkeypatch.setattr("turnwire.retrieval.indexer.parse_in_sandbox", parse_slowly)
    async with serve_documents(authenticate=by_header) as server:

        async def upload(user: str, name: str) -> int:
            files = {"file": (name, f"# {name}".encode())}
            return (await server.http.post("/v1/documents", files=files, headers={"x-user": user})).status_code

        slow = [asyncio.create_task(upload("ann", f"slow-{number}.md")) for number in range(12)]
        assert (await within(begun.get())).startswith("slow")
        assert await within(upload("bob", "quick.md")) == 201
        assert begun.get_nowait() == "quick.md"
        assert begun.empty(), "one upload of a principal at a time"
        let_go.set()
        assert sorted(await within(asyncio.gather(*slow))) == [201] * 9 + [429] * 3


async def test_nul_characters_are_refused_as_invalid(server: Served) -> None:
    session = (await server.http.post("/v1/sessions", json={})).json()["id"]
    for refused in (
        await server.http.post("/v1/sessions", json={"title": "a\x00b"}),
        await server.http.patch(f"/v1/sessions/{session}", json={"title": "a\x00b"}),
    ):
        assert error_of(refused, 422)["code"] == "invalid_request"
    async with talking(server) as talk:
        assert await talk.refused("start", message="Hello", idempotency_key="a\x00b") == "invalid_request"


async def test_json_answers_are_not_stored_by_caches(server: Served, puppet: Puppet) -> None:
    turn_id = await ended_turn(server, puppet, "hello")
    for path in (
        "/v1/sessions",
        f"/v1/turns/{turn_id}",
        "/v1/turns/none",
        f"/v1/turns/{turn_id}/events?wait=0",
        "/v1/x",
    ):
        assert (await server.http.get(path)).headers["cache-control"] == "no-store", path


async def test_wrong_keys_are_counted_logged_and_slowed(
    serve: Serve, caplog: pytest.LogCaptureFixture, errors_in_the_log: list[str]
) -> None:
    async with serve() as server:
        _, key = await server.turnwire.keys.create("ann", ("read", "write"))
        delays: list[float] = []

        async def sleep(seconds: float) -> None:
            delays.append(seconds)

        refusals = server.turnwire.services.auth.refusals
        refusals.sleep = sleep
        before = metrics.REFUSED_KEYS.values[""]
        for _ in range(4):
            wrong = await server.http.get("/v1/sessions", headers={"authorization": "Bearer tw_wrong"})
            assert error_of(wrong, 401)["code"] == "unauthorized"
        assert error_of(await server.http.post("/login", json={"key": "tw_wrong"}), 401)
        me = await server.http.get("/v1/me", headers={"authorization": "Bearer tw_wrong"})
        assert me.json()["principal"] is None
        assert delays == sorted(delays)
        assert (len(delays), delays[-1] > 4 * delays[0]) == (6, True)
        assert metrics.REFUSED_KEYS.values[""] == before + 6
        assert "wrong API key(s) from 127.0.0.1" in caplog.text
        assert "tw_wrong" not in caplog.text
        # A request without a key is no guess, and one with the right key is not slowed.
        assert error_of(await server.http.get("/v1/sessions"), 401)
        assert (await server.http.get("/v1/me")).json()["login_required"] is True
        assert (await server.http.get("/v1/sessions", headers={"authorization": f"Bearer {key}"})).status_code == 200
        assert len(delays) == 6


async def test_many_wrong_keys_at_once_are_refused(serve: Serve) -> None:
    async with serve() as server:
        await server.turnwire.keys.create("ann", ("read",))
        refusals = server.turnwire.services.auth.refusals
        hold = asyncio.Event()
        refusals.sleep = lambda _: hold.wait()  # type: ignore[assignment, return-value]
        headers = {"authorization": "Bearer tw_wrong"}
        waiting = [asyncio.create_task(server.http.get("/v1/sessions", headers=headers)) for _ in range(16)]
        await until(lambda: refusals.waiting["127.0.0.1"] == 16)
        refused = await server.http.get("/v1/sessions", headers=headers)
        assert refused.status_code == 429
        assert "retry-after" in refused.headers
        hold.set()
        assert {answer.status_code for answer in await within(asyncio.gather(*waiting))} == {401}


@pytest.mark.one_store("it looks into the files of SQLite")
async def test_cookie_needs_a_secret_that_is_in_no_backup(serve: Serve, tmp_path: Path) -> None:
    origin = {"sec-fetch-site": "same-origin"}
    async with serve(store="sqlite") as server:
        key, text = await server.turnwire.keys.create("ann", ("read", "write"))
        login = await server.http.post("/login", json={"key": text}, headers=origin)
        name, _, value = login.headers["set-cookie"].partition(";")[0].partition("=")
        server.http.cookies.clear()
        assert (await server.http.get("/v1/sessions", headers={"cookie": f"{name}={value}"})).status_code == 200
        # With all that the database has, another server signs another cookie.
        claim = value.rpartition(".")[0]
        forged = hmac.new(f"turnwire login {key.digest}".encode(), claim.encode(), hashlib.sha256).hexdigest()
        server.http.cookies.clear()
        assert (
            await server.http.get("/v1/sessions", headers={"cookie": f"{name}={claim}.{forged}"})
        ).status_code == 401
        secret = tmp_path / LOGIN_SECRET_NAME
        assert secret.stat().st_mode & 0o777 == 0o600
        await asyncio.to_thread(copy_folder, tmp_path, tmp_path.parent / "backup", lambda *_: None)
        assert not (tmp_path.parent / "backup" / LOGIN_SECRET_NAME).exists()
        assert await asyncio.to_thread(read_login_secret, tmp_path) == server.turnwire.services.logins.secret


async def test_login_outlives_the_process(serve: Serve, tmp_path: Path) -> None:
    async with serve(store="sqlite") as server:
        _, text = await server.turnwire.keys.create("ann", ("read", "write"))
        login = await server.http.post("/login", json={"key": text}, headers={"sec-fetch-site": "same-origin"})
        value = login.headers["set-cookie"].partition(";")[0].partition("=")[2]
    async with serve(store="sqlite") as server:
        cookie = {"cookie": f"turnwire_{server.port}={value}"}
        assert (await server.http.get("/v1/sessions", headers=cookie)).status_code == 200
