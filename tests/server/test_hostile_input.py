"""Hostile input: a 4xx in the one shape, or an exact round trip; nothing is started or written."""

import json

import pytest

from tests.server.conftest import Serve
from tests.serving import Client, RawAnswer, Served, error_of, raw_request, saying

RAG = ("/v1/rag/sessions/mine/messages", "/v1/rag/sessions/mine/messages/stream")
POSTS = ("/chat", "/chat/stream", "/v1/sessions", "/v1/sessions/mine/turns", *RAG)
JSON = {"Content-Type": "application/json"}
DEEP = 50_000


@pytest.fixture
async def server(serve: Serve):
    async with serve(saying("Hello.")) as served:
        await served.http.post("/v1/sessions", json={"id": "mine"})
        yield served
        assert await served.written() == (1, 0)


def check(answer: RawAnswer) -> dict:
    assert 400 <= answer.status < 500, answer
    error = json.loads(answer.body)["error"]
    assert error["code"]
    assert error["message"]
    return error


BROKEN_BODIES = (
    b"{",
    b"[]",
    b'"text"',
    b"42",
    b"tru",
    b"{'message': 'Hello'}",
    b'{"message": "Hello",}',
    b'{"message": "Hello"} {"message": "again"}',
    b"\xff\xfe\x00",
    b'{"message": "\xff", "id": "\xff"}',
    b'{"message": "\xed\xa0\x80", "id": "\xed\xa0\x80"}',
    b'{"message": "\\ud800", "id": "\\ud800"}',
    b'{"message": "\\udc00\\ud800", "title": "\\udc00\\ud800"}',
    b'{"message": "raw\x00nul", "title": "raw\x00nul"}',
    b"[" * DEEP,
    b"[" * DEEP + b"]" * DEEP,
    b'{"message":' * DEEP,
    b'{"message": ' + b"[" * DEEP + b"]" * DEEP + b', "title": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    b'{"message": 1, "title": 1}',
    b'{"message": {"$ne": null}, "id": {"$ne": null}}',
    b'{"message": ["Hello"], "title": ["Hello"]}',
    b'{"message": NaN, "title": NaN}',
    b'{"message": ' + b"9" * 5_000 + b', "title": ' + b"9" * 5_000 + b"}",
)


@pytest.mark.parametrize("path", POSTS)
async def test_invalid_body_is_refused(server: Served, path: str) -> None:
    for body in BROKEN_BODIES:
        error = error_of(await server.http.post(path, content=body, headers=JSON))
        assert error["code"] in ("invalid_json", "invalid_request"), body[:80]


WRONG_FIELDS = (
    ("message", ""),
    ("message", " \n\t"),
    ("message", "\x00\x1b\x7f\x9f"),
    ("message", None),
    ("message", True),
    ("session_id", ""),
    ("session_id", "a/b"),
    ("session_id", "../../etc/passwd"),
    ("session_id", "s" * 129),
    ("session_id", "mine\n"),
    ("session_id", "mine\x00"),
    ("session_id", "naïve"),
    ("session_id", 7),
    ("turn_id", ""),
    ("turn_id", "' OR 1=1 --"),
    ("turn_id", "t\r\nX-Evil: 1"),
    ("turn_id", ["t"]),
    ("agent", 5),
    ("on_busy", "explode"),
    ("on_busy", None),
    ("review", "perhaps"),
    ("answer", "essay"),
)


@pytest.mark.parametrize("path", ["/chat", "/chat/stream", "/v1/sessions/mine/turns", *RAG])
async def test_invalid_field_is_named(server: Served, path: str) -> None:
    for field, value in WRONG_FIELDS:
        error = error_of(await server.http.post(path, json={"message": "Hello", field: value}), 422)
        assert error["code"] == "invalid_request"
        assert error["message"].startswith(field), value
        assert error["fields"][0]["field"].startswith(field), value


async def test_error_does_not_repeat_the_input(server: Served) -> None:
    secret = "hunter2hunter2"
    for body in (
        {"message": [secret]},
        {"message": "Hello", "on_busy": secret},
        {"message": "Hello", "turn_id": f"/{secret}"},
    ):
        for path in POSTS[:2]:
            assert secret not in (await server.http.post(path, json=body)).text


@pytest.mark.parametrize("path", POSTS)
async def test_a_body_that_does_not_say_it_is_json_is_refused(server: Served, path: str) -> None:
    """A web page could send it without asking the browser first."""
    body = json.dumps({"message": "Hello", "id": "theirs"}).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        error_of(await server.http.post(path, content=body, headers={"Content-Type": kind} if kind else {}))


@pytest.mark.parametrize("path", POSTS)
async def test_a_body_that_is_too_large_is_refused_before_it_is_read(server: Served, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: 50000000\r\n\r\n"
    answer = await raw_request(server.port, request.encode())
    assert answer.status == 413
    assert check(answer)["code"] == "body_too_large"
    limit = "1,048,576" if path == "/v1/sessions" else "33,554,432"  # A message may have files.
    assert check(answer)["message"] == f"the body is over {limit} bytes"


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_body_that_is_too_large_is_refused_also_when_it_is_all_sent(
    server: Served, path: str, framing: str
) -> None:
    body = b'{"message": "' + b"x" * 2_000_000 + b'"}'
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
    if framing == "length":
        request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    else:
        chunks = [body[start : start + 50_000] for start in range(0, len(body), 50_000)]
        chunked = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
        request = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked + b"0\r\n\r\n"
    answer = await raw_request(server.port, request)
    assert answer.status == 413
    assert check(answer)["code"] == "body_too_large"


UNKNOWN_IDS = ("banana", "01890000-0000-7000-8000-000000000000", "%00", "%ZZ", "%ff", "%2e%2e", "a" * 5_000, "%0a", "é")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/turns/{}"),
        ("GET", "/v1/turns/{}/events"),
        ("GET", "/v1/turns/{}/events?wait=1"),
        ("POST", "/v1/turns/{}/cancel"),
        ("GET", "/v1/sessions/{}"),
        ("GET", "/v1/sessions/{}/events"),
        ("GET", "/v1/sessions/{}/export"),
        ("PATCH", "/v1/sessions/{}"),
        ("DELETE", "/v1/sessions/{}"),
        ("POST", "/v1/sessions/{}/turns"),
    ],
)
async def test_an_id_that_nothing_has_is_not_found(server: Served, method: str, path: str) -> None:
    body = {"PATCH": {"title": "New"}, "POST": {"message": "Hello"}}.get(method)
    for unknown in UNKNOWN_IDS:
        error_of(await server.http.request(method, path.format(unknown), json=body), 404)


async def test_a_position_that_cannot_be_one_is_refused(serve: Serve) -> None:
    async with serve(saying("Hello.")) as server:
        async with server.ask(session_id="s") as stream:
            await stream.rest()
        turn, session = f"/v1/turns/{stream.turn_id}/events", "/v1/sessions/s/events"
        for cursor in ("banana", "-1", "1.", ".1", "1.2.3", "1e3", "0x10", "9" * 16, "1 2", "1;2", "null", "½"):
            header = {b"Last-Event-ID": cursor.encode("latin-1")}
            for response in (
                await server.http.get(turn, params={"after": cursor}),
                await server.http.get(turn, params={"after": cursor, "wait": 1}),
                await server.http.get(turn, headers=header),
                await server.http.get(session, params={"after": cursor}),
                await server.http.get(session, headers=header),
                await server.http.get(session, params={"after": f"{stream.turn_id}:{cursor}"}),
                await server.http.post("/chat/stream", json={"message": "Hello"}, headers=header),
            ):
                assert error_of(response, 400)["code"] == "bad_cursor", cursor
        assert await server.written() == (1, 1)


async def test_number_of_a_query_that_is_none_is_refused_on_every_wire(serve: Serve) -> None:
    async with serve(saying("Hello.")) as server:
        async with server.ask(session_id="s") as stream:
            await stream.rest()
        turn, response = f"/v1/turns/{stream.turn_id}/events", f"/v1/responses/resp_{stream.turn_id}"
        for number in ("banana", "--1", "1e3", "9" * 16, "9" * 5_000, "½"):
            for path, query in (
                (response, {"stream": "true", "starting_after": number}),
                (f"{response}/input_items", {"limit": number}),
                ("/ag-ui", {"runId": stream.turn_id, "offset": number}),
                ("/api/chat/s/stream", {"startIndex": number}),
                (turn, {"wire": "three_phase_text", "offset": number}),
            ):
                answer = await server.http.get(path, params=query)
                assert answer.status_code in (400, 422), (path, number, answer.text)


async def test_a_time_to_wait_that_is_no_number_is_refused(serve: Serve) -> None:
    async with serve(saying("Hello.")) as server:
        turn_id = await server.start()
        for wait in ("soon", "", "1s", "--1"):
            response = await server.http.get(f"/v1/turns/{turn_id}/events", params={"wait": wait})
            assert "wait" in error_of(response, 422)["message"]


async def test_a_query_of_any_length_does_no_harm(serve: Serve) -> None:
    async with serve(saying("Hello.")) as server:
        async with server.ask() as stream:
            frames = await stream.rest()
        path = f"/v1/turns/{stream.turn_id}/events"
        for query in ("&".join(f"x{n}=1" for n in range(3_000)), "after=" + "0" * 50_000, "%" * 3_000, "&" * 3_000):
            response = await server.http.get(f"{path}?{query}")
            if response.status_code == 200:
                assert len(response.text.split("\n\n")) == len(frames) + 1
            else:
                error_of(response, 400)
        for query in ("search=" + "x" * 50_000, "limit=0", "limit=1e9", "before=%00", "limit=banana", "before=nothing"):
            error_of(await server.http.get(f"/v1/sessions?{query}"))


@pytest.mark.parametrize(
    "path", ["/chat", "/chat/stream", "/v1/turns/banana/events", "/v1/sessions/mine/events", "/v1/sessions", *RAG]
)
async def test_a_method_that_a_route_does_not_have_is_refused(server: Served, path: str) -> None:
    for method in ("HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "BREW"):
        request = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        answer = await raw_request(server.port, request.encode())
        if method == "BREW":
            assert answer.status == 400  # No method at all: uvicorn does not let it through.
        elif method == "HEAD":
            assert answer.status in (404, 405)
            assert answer.body == b""
        else:
            assert check(answer)["code"] in ("not_found", "method_not_allowed"), method


REQUEST_LINES = (
    b"GET /v1/turns/\xff\xfe/events HTTP/1.1",
    b"GET http://[/v1/turns/x HTTP/1.1",
    b"GET //evil.example/v1/turns/x HTTP/1.1",
    b"GET /../../etc/passwd HTTP/1.1",
    b"GET /v1/turns/x/events?after=%ff%fe HTTP/1.1",
    b"GET * HTTP/1.1",
    b"NONSENSE",
)


async def test_invalid_request_line_is_refused(server: Served) -> None:
    for line in REQUEST_LINES:
        answer = await raw_request(server.port, line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert 400 <= answer.status < 500, line


HEADERS = (
    b"Authorization: Bearer \xe9\xff",
    b"Authorization: Bearer",
    b"Authorization: Basic \xff",
    b"X-API-Key: \xe9",
    b"Origin: http://[",
    b"Origin: \xff",
    b"Origin: null",
    b"Host: \xff",
    b"Host: [::1",
    b"Host: localhost:99999999999999999999",
    b"Content-Length: -1",
    b"Content-Length: 99999999999999999999999",
    b"Transfer-Encoding: gzip, chunked",
    b"Last-Event-ID: \xff",
    b"Idempotency-Key: \xff\xfe",
    b"Content-Type: \xff/json",
    b"Content-Type: application/json; charset=\xff",
)


@pytest.mark.parametrize("line", ["GET /v1/sessions/mine", "GET /v1/turns/x/events", "POST /chat/stream"])
async def test_a_header_of_any_bytes_does_no_harm(server: Served, line: str) -> None:
    for header in HEADERS:
        host = b"" if header.startswith(b"Host") else b"Host: localhost\r\n"
        request = line.encode() + b" HTTP/1.1\r\n" + host + b"Connection: close\r\n" + header + b"\r\n\r\n"
        answer = await raw_request(server.port, request)
        assert answer.status == 200 or 400 <= answer.status < 500, header


async def test_invalid_operator_request_is_refused(server: Served) -> None:
    operator = Client(server.url, {"Authorization": f"Bearer {server.turnwire.control_token}"})
    for body in (
        {},
        {"principal": ""},
        {"principal": "a b"},
        {"principal": "anna", "scopes": []},
        {"principal": "anna", "scopes": ["everything"]},
        {"principal": "anna", "expires_at": 10**30},
        {"principal": "anna", "expires_at": -(10**18)},
        {"principal": "anna", "expires_at": "tomorrow"},
    ):
        error_of(await operator.http.post("/v1/keys", json=body), 422)
    assert (await operator.http.get("/v1/keys")).json() == {"keys": []}
    await operator.http.aclose()
