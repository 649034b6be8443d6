"""Everything that is released, compared with golden files: what clients, programs and data folders rely on.

`UPDATE_GOLDEN=1 pytest tests/released` writes the files again. Wording is not pinned: a message is `<text>` in them.
"""

import asyncio
import importlib
import inspect
import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import websockets.asyncio.client
import websockets.exceptions
import yaml

import turnwire
from tests.released import names
from tests.released.recording import GOLDEN, UPDATING, Recorder, compare, fixed_settings, pretty, served, until
from tests.released.scenes import DECISIONS, SCENES, Stage
from tests.released.wires import WIRES, Ask, asks, record_live, record_replay, run_once, sections, texts_of
from tests.serving import let_time_pass
from turnwire import Settings, Turnwire

TOKEN = "twc_control"


def scene_server(stage: Stage, folder: Path, **settings: Any) -> Turnwire:
    return Turnwire(stage, store="memory", settings=fixed_settings(folder, **settings), control_token=TOKEN)


def lines(found: list[str]) -> str:
    return "\n".join(found)


# Public names

PACKAGES = (
    "turnwire",
    "turnwire.agents.langgraph",
    "turnwire.agents.llama_index",
    "turnwire.agents.openai_agents",
    "turnwire.agents.pydantic_ai",
    "turnwire.core.log.events",
    "turnwire.client",
    "turnwire.extensions.contract",
    "turnwire.retrieval",
    "turnwire.testing",
    "turnwire.tools",
)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_documented_package_has_the_released_names_signatures_and_fields(package: str) -> None:
    module = importlib.import_module(package)
    found: list[str] = []
    for name in names.public_names(module):
        if name != "Settings":
            found += names.described(name, getattr(module, name))
    compare(f"names/{package}.txt", lines(found))


def test_every_documented_import_works() -> None:
    path, documented = GOLDEN / "imports.txt", names.documented_imports()
    if UPDATING:
        compare("imports.txt", lines(sorted(documented)))
    released = set(path.read_text().splitlines())
    assert [statement for statement in sorted(released | documented) if not names.works(statement)] == []


def test_the_version_is_the_released_one() -> None:
    compare("version.txt", turnwire.__version__)


# Settings


def test_every_setting_has_the_released_name_variable_and_default() -> None:
    compare("settings.txt", lines(list(names.setting_lines(Settings))))


# Routes

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
UNLISTED_PATHS = (
    "/docs",
    "/guide",
    "/guide/",
    "/openapi.json",
    "/redoc",
    "/v1/keys",
    "/v1/keys/{id}",
    "/turns/{id}",
    "/assets/{name}",
    "/nothing",
    "/chat/",
    "/v1/sessions/",
    "/v1/turns",
)


async def test_the_openapi_document_is_the_released_one(tmp_path: Path) -> None:
    async with served(scene_server(Stage(), tmp_path)) as recorder:
        document = await recorder.json("/openapi.json")
    compare("openapi.json", json.dumps(names.without_words(document), indent=1, sort_keys=True))


async def test_every_method_of_every_path_has_the_released_answer(tmp_path: Path) -> None:
    found: list[str] = []
    async with served(scene_server(Stage(), tmp_path)) as recorder:
        paths = {*(await recorder.json("/openapi.json"))["paths"], *UNLISTED_PATHS}
        for path, method in product(sorted(paths), METHODS):
            response = await recorder.http.request(method, re.sub(r"\{\w+\}", "x", path))
            kind = response.headers.get("content-type", "-").partition(";")[0]
            code = response.json()["error"]["code"] if response.is_error and response.content else "-"
            allow = ", ".join(sorted(response.headers.get("allow", "-").split(", ")))
            found.append(f"{method} {path} | {response.status_code} | {code} | {kind} | {allow}")
        for path in sorted(paths):
            status = await socket_status(recorder, re.sub(r"\{\w+\}", "x", path))
            found.append(f"WebSocket {path} | {status}")
    compare("routes.txt", lines(found))


async def socket_status(recorder: Recorder, path: str, **options: Any) -> str:
    address = recorder.url.replace("http", "ws", 1) + path
    try:
        async with websockets.asyncio.client.connect(address, compression=None, **options) as socket:
            return f"101 | {socket.subprotocol or '-'}"
    except websockets.exceptions.InvalidStatus as refusal:
        return f"{refusal.response.status_code} | {json.loads(refusal.response.body or b'{}')['error']['code']}"


# Errors


def error_samples() -> Iterator[Exception]:
    """An instance of every error class of ours, and of every code that one of them may have."""
    names.import_everything()
    waiting: list[type[Exception]] = [turnwire.TurnwireError]
    while waiting:
        kind = waiting.pop()
        waiting += [below for below in kind.__subclasses__() if below.__module__.partition(".")[0] == "turnwire"]
        parameters = [
            parameter
            for parameter in inspect.signature(kind.__init__).parameters.values()
            if parameter.name != "self"
            and parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        choices = [sample_values(parameter.annotation) for parameter in parameters]
        for values in product(*choices):
            yield kind(**{parameter.name: value for parameter, value in zip(parameters, values, strict=True)})


def sample_values(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return (10**13,) if annotation is int else ("sample",)


async def test_every_error_class_has_the_released_code_and_status(tmp_path: Path) -> None:
    raised: list[Exception] = []

    def authenticate(scope: Any) -> str:
        raise raised[-1]

    found: set[str] = set()
    server = Turnwire(
        Stage(), store="memory", settings=fixed_settings(tmp_path), authenticate=authenticate, control_token=TOKEN
    )
    async with served(server) as recorder:
        for error in error_samples():
            raised.append(error)
            plain = await recorder.http.get("/v1/sessions")
            openai = await recorder.http.get("/v1/models")
            assert plain.json()["error"]["code"] == error.code  # type: ignore[attr-defined]
            again = "Retry-After" if "retry-after" in plain.headers else "-"
            more = sorted(set(plain.json()["error"]) - {"code", "message"})
            other = openai.json()["error"]
            found.add(
                f"{error.code} | {plain.status_code} | {again} | {', '.join(more) or '-'} | "  # type: ignore[attr-defined]
                f"OpenAI: {openai.status_code} {other['code']} {other['type']} {other['param']}"
            )
    compare("errors.txt", lines(sorted(found)))


def test_every_documented_error_code_is_in_the_source() -> None:
    page = (names.ROOT / "docs" / "reference" / "errors.md").read_text()
    source = "".join(path.read_text() for path in Path(turnwire.__path__[0]).rglob("*.py"))
    if UPDATING:
        rows = [line for line in page.splitlines() if line.startswith("| ") and "`" in line]
        cells = ["|".join(line.split("|")[1:3]) for line in rows]
        codes = {code for cell in cells for code in re.findall(r"`([a-z_]+)`", cell)}
        compare("error_codes.txt", lines(sorted(code for code in codes if f'"{code}"' in source)))
    codes = (GOLDEN / "error_codes.txt").read_text().split()
    assert [code for code in codes if f'"{code}"' not in source] == []
    assert [code for code in codes if f"`{code}`" not in page] == []


async def test_refused_requests_of_every_family_have_the_released_answers(tmp_path: Path) -> None:
    stage = Stage()
    found: list[tuple[str, str]] = []
    async with served(scene_server(stage, tmp_path, max_body_bytes=2_000), stage) as recorder:

        async def add(method: str, path: str, note: str = "", **request: Any) -> None:
            title = f"{method} {path}{f' {note}' if note else ''}"
            found.append((title, await recorder.send(method, path, **request)))

        asking = [ask for ask in asks("refused") if not ask.ends]
        for path in dict.fromkeys(ask.path for ask in asking):
            sent = {"headers": {"Content-Type": "application/json"}}
            await add("POST", path, "(not JSON)", content=b"{", **sent)
            await add("POST", path, "(empty object)", json={})
            await add("POST", path, "(a list)", json=[])
            await add("POST", path, "(wrong media type)", content=b"{}", headers={"Content-Type": "text/plain"})
            await add("POST", path, "(too large)", content=b" " * 3_000, **sent)
            await add("PUT", path)
        for ask in asking:
            known = {"agent": "nobody", "model": "nobody"}
            await add("POST", ask.path, "(unknown agent)", json={**ask.body, **known})
        message = {"message": "Hello"}
        for key in ("attachments", "images", "file"):
            value: Any = [{"media_type": "image/png", "data": "aGk="}] if key == "attachments" else "x"
            await add("POST", "/chat", f"({key})", json={**message, key: value})
        await add("POST", "/chat", "(blank)", json={"message": " "})
        await add("POST", "/chat", "(parts)", json={"message": [{"type": "text", "text": "Hello"}]})
        await add("POST", "/chat", "(bad id)", json={**message, "session_id": "a b"})
        await add("POST", "/chat", "(unknown parent)", json={**message, "parent_turn_id": "nowhere"})
        await add("POST", "/chat", "(a foreign id of our form)", json={**message, "session_id": STRANGER})
        await add("POST", "/v1/sessions/x/turns", json=message)
        for path in (
            "/v1/turns/x",
            "/v1/turns/x/log.jsonl",
            "/v1/turns/x/events",
            "/v1/turns/x/events?wire=morse",
            "/v1/turns/x/events?after=x",
            "/v1/turns/x/events?wire=ai_sdk&sdk_version=4",
            "/v1/turns/x/events?wire=ag_ui&version=9",
            "/v1/turns/x/events?wire=openai_responses&segment=x",
            "/v1/turns/x/events?offset=3",
            "/v1/turns/x/events?wait=x",
            "/v1/sessions/x",
            "/v1/sessions/x/export",
            "/v1/sessions/x/events",
            "/v1/sessions/x/events?after=x",
            "/v1/sessions?limit=0",
            "/v1/documents",
            "/v1/documents/x",
            "/v1/keys",
            "/v1/responses/x",
            "/v1/responses/resp_x?stream=true&starting_after=x",
            "/v1/models/nobody",
            "/api/chat/x/stream",
            "/api/chat/x/stream?startIndex=x",
            "/api/chat/x/stream?sdk_version=4",
            "/ag-ui",
            "/ag-ui?runId=x",
            "/ag-ui?threadId=x",
            "/v1/ws",
            "/api/chat/ws",
            "/v1/nothing",
        ):
            await add("GET", path)
        for path in ("/v1/turns/x/cancel", "/api/chat/x/stop", "/v1/responses/x/cancel", "/logout"):
            await add("POST", path)
        await add("POST", "/ag-ui/stop", json={})
        await add("POST", "/ag-ui/stop", "(unknown run)", json={"runId": "x"})
        await add("POST", "/login", json={"key": "x"})
        await add("POST", "/v1/turns/x/approvals/y", json={"approved": True})
        await add("POST", "/v1/turns/x/approvals/y", "(not a decision)", json={"approved": "yes"})
        await add("DELETE", "/v1/sessions/x")
        await add("DELETE", "/v1/responses/resp_x")
        await add("PATCH", "/v1/sessions/x", json={"title": "T"})
        await add("PATCH", "/v1/sessions/x", "(blank)", json={"title": " "})
        await add("GET", "/v1/agents", "(foreign Host)", headers={"Host": "evil.example"})
        await add("GET", "/v1/agents", "(foreign Origin)", headers={"Origin": "https://evil.example"})
        preflight = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
        await add("OPTIONS", "/chat", "(foreign preflight)", headers=preflight)
        stage.begin("plain", is_read=False)
        keyed = {"headers": {"Idempotency-Key": "key-1"}}
        await add("POST", "/chat", "(key-1)", json={**message, "turn_id": "turn-1", "session_id": "s"}, **keyed)
        await add("POST", "/chat", "(key-1 again)", json={**message, "turn_id": "turn-1", "session_id": "s"}, **keyed)
        await add("POST", "/chat", "(key-1, another message)", json={"message": "Other"}, **keyed)
        await add("POST", "/v1/turns/turn-1/approvals/y", "(ended)", json={"approved": True})
        await add("POST", "/v1/turns/turn-1/cancel", "(ended)")
        await add("GET", "/v1/turns/turn-1/events?wire=three_phase_text&offset=99999")
        await add("GET", "/v1/turns/turn-1/events?wire=three_phase_text&after=99999")
        await add("GET", "/v1/turns/turn-1/events?wait=0&after=99999")
        await add("GET", "/api/chat/turn-1/stream?startIndex=99999")
        stage.begin("tail", is_read=False)
        await add("POST", "/v1/sessions", "(made)", json={"id": "busy"})
        await add("POST", "/v1/sessions", "(made before)", json={"id": "busy"})
        await add("POST", "/v1/sessions/busy/turns", "(started)", json={**message, "turn_id": "turn-2"})
        await stage.hanging.get()
        await add("POST", "/chat", "(busy)", json={**message, "session_id": "busy", "on_busy": "reject"})
        await add("GET", "/v1/workers")
        await add("DELETE", "/v1/sessions/busy")
    compare("refusals.txt", sections(found, ("Hello", "Other", "Good morning.")))


STRANGER = "01890000-0000-7000-8000-000000000000"


async def test_keys_scopes_and_logins_have_the_released_answers(tmp_path: Path) -> None:
    stage = Stage()
    found: list[tuple[str, str]] = []
    operator = {"Authorization": f"Bearer {TOKEN}"}
    origins = ["https://app.example"]
    async with served(scene_server(stage, tmp_path, allowed_origins=origins, max_tokens_per_day=25), stage) as recorder:

        async def add(method: str, path: str, note: str = "", **request: Any) -> None:
            recorder.http.cookies.clear()
            title = f"{method} {path}{f' ({note})' if note else ''}"
            found.append((title, await recorder.send(method, path, **request)))

        await add("GET", "/v1/me", "before there are keys")
        keys: dict[str, dict[str, str]] = {}
        for scope in ("read", "write", "approve", "operate"):
            body = {"principal": "ann", "scopes": [scope], "expires_at": 4_102_444_800_000}
            await add("POST", "/v1/keys", scope, json=body, headers=operator)
            keys[scope] = {"Authorization": f"Bearer {json.loads(recorder.body)['key']}"}
        await add("POST", "/v1/keys", "all by default", json={"principal": "bob"}, headers=operator)
        made = json.loads(recorder.body)
        whole = {"X-API-Key": made["key"]}
        await add("POST", "/v1/keys", "refused", json={"principal": "b b", "scopes": []}, headers=operator)
        await add("GET", "/v1/keys", headers=operator)
        await add("GET", "/v1/keys", "not the operator", headers=whole)
        for path in ("/v1/me", "/v1/sessions", "/v1/models", "/metrics", "/healthz", "/v1/turns/x/events"):
            await add("GET", path, "no key")
            await add("GET", path, "wrong key", headers={"Authorization": "Bearer tw_wrong_key"})
        for scope, headers in keys.items():
            await add("GET", "/v1/me", scope, headers=headers)
            await add("GET", "/v1/agents", scope, headers=headers)
            await add("POST", "/chat", scope, json={}, headers=headers)
            await add("POST", "/v1/turns/x/approvals/y", scope, json={"approved": True}, headers=headers)
            await add("GET", "/v1/workers", scope, headers=headers)
            await add("POST", "/v1/responses", scope, json={}, headers=headers)
        await add("POST", "/login", "wrong", json={"key": "x"})
        await add("POST", "/login", "right", json={"key": made["key"]})
        cookie = (recorder.last.headers["set-cookie"] if recorder.last else "").partition(";")[0]
        own_page = {"Cookie": cookie, "Sec-Fetch-Site": "same-origin"}
        await add("GET", "/v1/me", "logged in", headers=own_page)
        await add("POST", "/v1/sessions", "logged in, from elsewhere", json={}, headers={"Cookie": cookie})
        await add("POST", "/logout", headers=own_page)
        cross = {"Origin": "https://app.example"}
        await add("GET", "/v1/agents", "cross-origin", headers={**cross, **whole})
        request = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "x-stainless-os, x-tenant",
        }
        await add("OPTIONS", "/chat", "preflight", headers={**cross, **request})
        stage.begin("every_event", is_read=False)
        await add("POST", "/chat", "within the budget", json={"message": "Hello"}, headers=whole)
        await add("GET", "/v1/budget", headers=whole)
        await add("POST", "/chat", "over the budget", json={"message": "Hello"}, headers=whole)
        await add("POST", "/v1/chat/completions", "over the budget", json=COMPLETION, headers=whole)
        await add("DELETE", f"/v1/keys/{made['id']}", headers=operator)
        await add("DELETE", "/v1/keys/x", headers=operator)
        await add("GET", "/v1/agents", "revoked key", headers=whole)
        for protocols in ([], ["turnwire"], ["turnwire", "turnwire.key.x"]):
            found.append(
                (
                    f"WebSocket /v1/ws {protocols}",
                    await socket_status(recorder, "/v1/ws", subprotocols=protocols or None),
                )
            )
        key = keys["read"]["Authorization"].removeprefix("Bearer ")
        protocols = ["turnwire", f"turnwire.key.{key}"]
        found.append(("WebSocket /v1/ws (key)", await socket_status(recorder, "/v1/ws", subprotocols=protocols)))
    text = sections([(re.sub(re.escape(made["id"]), "<key id>", title), text) for title, text in found], ())
    text = re.sub(r'"id": "(?!<|request)[\w-]+"', '"id": "<key id>"', text)
    text = re.sub(r"(?i)retry-after: \d{2,}", "retry-after: <seconds>", text)
    compare("access.txt", text)


COMPLETION = {"model": "turnwire", "messages": [{"role": "user", "content": "Hello"}]}


# Wires


@pytest.mark.parametrize("scene", [name for name in SCENES if name != "tail"])
async def test_every_wire_of_a_fixed_log_has_the_released_bytes(scene: str, tmp_path: Path) -> None:
    stage = Stage()
    async with served(scene_server(stage, tmp_path), stage) as recorder:
        found = await record_live(recorder, scene)
        await run_once(recorder, scene, asks(f"{scene}-again")[0])
        found += await record_replay(recorder, stage.turn_id)
        words = await failure_words(recorder, stage.turn_id)
    if words and words not in texts_of(scene):
        found = [(title, text.replace(words, "<text>")) for title, text in found]
    compare(f"wires/{scene}.txt", sections(found, texts_of(scene)))


async def failure_words(recorder: Recorder, turn_id: str) -> str:
    """The message of a failed turn, which a text stream shows outside of JSON."""
    return (await recorder.json(f"/v1/turns/{turn_id}"))["state"].get("error", {}).get("error", "")


@pytest.mark.parametrize("scene", list(DECISIONS))
async def test_decisions_in_each_protocol_continue_the_turn_with_the_released_bytes(scene: str, tmp_path: Path) -> None:
    stage = Stage()
    found: list[tuple[str, str]] = []
    async with served(scene_server(stage, tmp_path), stage) as recorder:
        starts = {ask.title: ask for ask in asks(scene) if not ask.ends}

        async def add(title: str, path: str, body: dict[str, Any]) -> None:
            found.append((title, await recorder.send("POST", path, json=body)))

        async def start(title: str) -> Ask:
            stage.begin(scene, is_read=False)
            await recorder.send("POST", starts[title].path, json=starts[title].body)
            return starts[title]

        for version in (6, 7):
            ask = await start(f"POST /api/chat?sdk_version={version}")
            parts = [
                {
                    "type": "dynamic-tool",
                    "toolName": TOOLS[call_id],
                    "toolCallId": call_id,
                    "state": "approval-responded",
                    "input": ARGS[call_id],
                    "approval": {"id": call_id, **decision},
                }
                for call_id, decision in DECISIONS[scene]
            ]
            for count in range(1, len(parts) + 1):
                message = {"id": stage.turn_id, "role": "assistant", "parts": [{"type": "step-start"}, *parts[:count]]}
                await add(f"POST {ask.path}, {count} decided", ask.path, {**ask.body, "messages": [message]})
        for title in ("POST /ag-ui, before 1.0", "POST /ag-ui, 1.0"):
            ask = await start(title)
            events = [json.loads(line[6:]) for line in recorder.body.decode().splitlines() if line.startswith("data: ")]
            interrupts = events[-1].get("outcome", {}).get("interrupts", [])
            if not interrupts:
                interrupts = (await recorder.json(f"/ag-ui?threadId={ask.body['threadId']}"))["interrupts"]
            resume = [
                {"interruptId": interrupt["id"], "status": "resolved", "payload": decision}
                for interrupt, (_, decision) in zip(interrupts, DECISIONS[scene], strict=True)
            ]
            body = {**ask.body, "runId": f"{ask.body['runId']}-2", "parentRunId": ask.body["runId"], "resume": resume}
            await add(f"{title}, decided", "/ag-ui", body)
        for streamed in (True, False):
            ask = await start("POST /v1/responses")
            response = json.loads(recorder.body)
            wanted = [item for item in response["output"] if item["type"] == "mcp_approval_request"]
            items = [
                {
                    "type": "mcp_approval_response",
                    "approval_request_id": item["id"],
                    "approve": decision["approved"],
                    **({"reason": decision["reason"]} if "reason" in decision else {}),
                }
                for item, (_, decision) in zip(wanted, DECISIONS[scene], strict=True)
            ]
            body = {"input": items, "previous_response_id": response["id"], "stream": streamed}
            await add(f"POST /v1/responses, decided, stream={streamed}", "/v1/responses", body)
            await recorder.phase(stage.turn_id, "ended")
            path = f"/v1/responses/{response['id']}_2"
            found.append(("GET /v1/responses/{id}_2", await recorder.send("GET", path)))
            found.append(("GET input_items of it", await recorder.send("GET", f"{path}/input_items")))
        for streamed in (True, False):
            ask = await start("POST /v1/chat/completions")
            message = json.loads(recorder.body)["choices"][0]["message"]
            tools = [
                {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(decision)}
                for call, (_, decision) in zip(message["tool_calls"], DECISIONS[scene], strict=True)
            ]
            body = {**ask.body, "messages": [*ask.body["messages"], message, *tools], "stream": streamed}
            await add(f"POST /v1/chat/completions, decided, stream={streamed}", ask.path, body)
        stage.begin(scene, is_read=False)
        await recorder.send("POST", "/chat", json={"message": "Hello", "turn_id": "turn-1"})
        for call_id, decision in DECISIONS[scene]:
            title = f"/v1/turns/turn-1/approvals/{call_id}"
            refused = {**decision, "args": {"amount": 6}}
            await add(f"POST {title}, other arguments", title, refused)
            await recorder.http.post(title, json={**decision, "args": ARGS[call_id]})
        await recorder.phase("turn-1", "ended")
    compare(f"decisions/{scene}.txt", sections(found, texts_of(scene)))


ARGS: dict[str, dict[str, Any]] = {"call-1": {"amount": 5, "to": "Ann"}, "call-2": {"to": "Ann"}}
TOOLS = {"call-1": "pay", "call-2": "mail"}


async def test_an_idle_stream_has_the_released_heartbeat_and_farewell(tmp_path: Path) -> None:
    stage = Stage()
    found: list[tuple[str, str]] = []
    turnwire = scene_server(stage, tmp_path, heartbeat=40, stream_lifetime=100)

    async def idle(path: str, text: bytes) -> str:
        """Return the stream of a reader who has all events, and its heartbeats until the end of its lifetime."""
        reading = asyncio.create_task(recorder.send("GET", path))
        await until(lambda: turnwire.streams.open_count == 1 and text in stage.received)
        let_time_pass(turnwire, 100)
        return single(await reading)

    async with served(turnwire, stage) as recorder:
        stage.begin("tail", is_read=False)
        session = await recorder.json("/v1/sessions", "POST", json={"id": "s"})
        await recorder.http.post("/v1/sessions/s/turns", json={"message": "Hello", "turn_id": "turn-1"})
        await stage.hanging.get()
        for wire in WIRES:
            path = f"/v1/turns/turn-1/events?wire={wire}"
            text = b"" if "segment=2" in wire else b"Half an"
            found.append((f"GET {path}", await idle(path, text)))
        found.append(("GET /v1/sessions/{id}/events", await idle(f"/v1/sessions/{session['id']}/events", b"Half an")))
        await recorder.http.post("/v1/turns/turn-1/cancel")
    compare("idle.txt", sections(found, texts_of("tail")))


def single(text: str) -> str:
    """The text with heartbeats that follow each other as one: how many there are is a matter of time."""
    return re.sub(r"(\n(?:: ?[^\n]*|data: \{[^\n]*eartbeat[^\n]*|\{[^\n]*eartbeat[^\n]*))(\n+\1)+", r"\1", text)


async def test_a_log_past_its_retention_has_the_released_bytes_on_every_wire(tmp_path: Path) -> None:
    stage = Stage()
    found: list[tuple[str, str]] = []
    turnwire = scene_server(stage, tmp_path)
    async with served(turnwire, stage) as recorder:
        stage.begin("every_event", is_read=False)
        await recorder.http.post("/chat", json={"message": "Hello", "turn_id": "turn-1", "session_id": "s"})
        await turnwire.store.maintain(expire_before=2**60)
        for wire in WIRES:
            for after in ("", "&after=3"):
                path = f"/v1/turns/turn-1/events?wire={wire}{after}"
                found.append((f"GET {path}", await recorder.send("GET", path)))
        for path in (
            "/v1/turns/turn-1",
            "/v1/turns/turn-1/log.jsonl",
            "/v1/turns/turn-1/events?wait=0",
            "/v1/sessions/s/export",
            f"/v1/responses/resp_{stage.turn_id}",
            f"/ag-ui?runId={stage.turn_id}",
            "/ag-ui?threadId=s",
        ):
            found.append((f"GET {path.replace(stage.turn_id, '{id}')}", await recorder.send("GET", path)))
    compare("retention.txt", sections(found, texts_of("every_event")))


async def test_a_turn_whose_server_stopped_has_the_released_bytes(tmp_path: Path) -> None:
    stage = Stage()

    def server() -> Turnwire:
        return Turnwire(stage, store="sqlite", settings=fixed_settings(tmp_path, cancel_patience=0.1))

    first = server()
    async with served(first, stage) as recorder:
        stage.begin("tail", is_read=False)
        body = {"message": "Hello", "session_id": "s"}
        ask = asyncio.create_task(recorder.send("POST", "/chat/stream", json=body))
        await stage.hanging.get()
        await until(lambda: b"Half an" in stage.received)
        turn_id = stage.turn_id
        await first.close()
        live = await ask
    async with served(server(), stage) as recorder:
        found = [("POST /chat/stream, while the server stops", live), *await record_replay(recorder, turn_id)]
        words = await failure_words(recorder, turn_id)
    if words:
        found = [(title, text.replace(words, "<text>")) for title, text in found]
    compare("wires/interrupted.txt", sections(found, texts_of("tail")))


# JSON routes


async def test_json_routes_have_the_released_answers(tmp_path: Path) -> None:
    stage = Stage()
    found: list[tuple[str, str]] = []
    async with served(scene_server(stage, tmp_path), stage) as recorder:

        async def add(method: str, path: str, **request: Any) -> None:
            found.append((f"{method} {path}", await recorder.send(method, path, **request)))

        stage.begin("every_event", is_read=False)
        for path in ("/healthz", "/readyz", "/v1/me", "/v1/agents", "/v1/models", "/v1/models/default", "/v1/budget"):
            await add("GET", path)
        await add("POST", "/v1/sessions", json={})
        await add("POST", "/v1/sessions", json={"id": "own", "title": "A title"})
        await add("PATCH", "/v1/sessions/own", json={"title": "Another"})
        await add("POST", "/v1/sessions/own/turns", json={"message": "Hello", "turn_id": "turn-1"})
        await recorder.phase("turn-1", "ended")
        await add("POST", "/chat", json={"message": "Again", "session_id": "own", "turn_id": "turn-2"})
        branch = {"message": "Hello", "session_id": "own", "turn_id": "turn-3", "parent_turn_id": "turn-1"}
        await add("POST", "/chat", json=branch)
        for path in (
            "/v1/sessions",
            "/v1/sessions?limit=1",
            "/v1/sessions?search=another",
            "/v1/sessions/own",
            "/v1/sessions/own/export",
            "/v1/turns/turn-3",
            "/v1/turns/turn-3/log.jsonl",
            "/v1/workers",
            "/ag-ui?threadId=own",
        ):
            await add("GET", path)
        await add("POST", "/v1/turns/turn-3/cancel")
        await add("POST", "/api/chat/own/stop")
        await add("POST", "/ag-ui/stop", json={"threadId": "own"})
        await add("POST", "/v1/responses", json={"model": "default", "input": "Hello", "background": True})
        await add("DELETE", "/v1/sessions/own")
    text = sections(found, ("Hello", "Again", *texts_of("every_event")))
    compare("json_routes.txt", text)


@pytest.mark.process
async def test_answers_from_documents_have_the_released_form(tmp_path: Path) -> None:
    shelf, found = tmp_path / "shelf", []
    shelf.mkdir()
    (shelf / "tides.md").write_text(TIDES)
    server = Turnwire(store="memory", settings=fixed_settings(tmp_path / "data"), docs=[shelf])
    async with served(server) as recorder:

        async def is_read() -> bool:
            return (await recorder.json("/v1/documents"))["reading"] == {"under_way": False, "done": 1, "total": 1}

        await until(is_read)
        (document,) = (await recorder.json("/v1/documents"))["documents"]
        asking = {"message": "When does the tide turn in Brest?"}
        for method, path, body in (
            ("POST", "/v1/rag/sessions/s/messages/stream", asking),
            ("POST", "/v1/rag/sessions/s/messages", {**asking, "review_enabled": False}),
            ("POST", "/chat/stream", {**asking, "answer": "direct"}),
            ("GET", "/v1/documents", None),
            ("GET", f"/v1/documents/{document['id']}", None),
            ("GET", f"/v1/documents/{document['id']}?start=9&end=30", None),
            ("DELETE", f"/v1/documents/{document['id']}", None),
            ("GET", "/v1/me", None),
            ("GET", "/v1/agents", None),
        ):
            title = f"{method} {path.replace(document['id'], '{id}')}"
            found.append((title, await recorder.send(method, path, json=body)))
        file = {"file": ("mine.txt", b"A note of mine.", "text/plain")}
        found.append(("POST /v1/documents", await recorder.send("POST", "/v1/documents", files=file)))
        own = json.loads(recorder.body)["id"]
        found.append(("DELETE an upload", await recorder.send("DELETE", f"/v1/documents/{own}")))
        for name, content in (("x.exe", b"x"), ("x.pdf", b"not a PDF"), ("", b"")):
            file = {"file": (name, content, "application/octet-stream")}
            title = f"POST /v1/documents ({name or 'no name'})"
            found.append((title, await recorder.send("POST", "/v1/documents", files=file)))
    text = (
        sections(found, (asking["message"],)).replace(document["id"], "<document>").replace(str(tmp_path), "<folder>")
    )
    text = re.sub(r'("ms":\s?)[\d.]+', r"\1<ms>", text)
    text = re.sub(r'("(?:score|feedback|text)":\s?)(?:[\d.]+|"(?:[^"\\]|\\.)*")', r"\1<value>", text)
    compare("documents.txt", text)


TIDES = "# Tides\n\nThe tide turns in Brest at noon. Ships wait for it.\n\n## Ships\n\nA ship needs deep water.\n"


# Extensions


def test_manifests_have_the_released_fields() -> None:
    schema = names.without_words(names.manifest_model().model_json_schema())
    compare("manifest_schema.json", json.dumps(schema, indent=1, sort_keys=True))


def test_bundled_manifests_are_the_released_ones() -> None:
    found: dict[str, Any] = {}
    for folder in (Path(turnwire.__path__[0]), names.ROOT / "examples"):
        for path in folder.rglob("manifest.yaml"):
            manifest = yaml.safe_load(path.read_text())
            secrets = [{**secret, "description": "<text>"} for secret in manifest.get("secrets", ())]
            found[manifest["id"]] = {**manifest, "description": "<text>", "secrets": secrets}
            # Where the class is may change with the modules; that it can be found is tested elsewhere.
            found[manifest["id"]].pop("entrypoint")
    compare("manifests.json", pretty(dict(sorted(found.items()))))


# Metrics and commands


async def test_metrics_have_the_released_names_types_and_labels(tmp_path: Path) -> None:
    stage = Stage()
    async with served(scene_server(stage, tmp_path), stage) as recorder:
        stage.begin("plain", is_read=False)
        await recorder.http.post("/chat/stream", json={"message": "Hello"})
        response = await recorder.http.get("/metrics")
    found: list[str] = [f"content-type: {response.headers['content-type']}"]
    for line in response.text.splitlines():
        if line.startswith("# TYPE "):
            found.append(line)
        # Others are of other tests in this process.
        elif not line.startswith("#") and not re.search(r'wire="(?!sse_chat)|route="(?!/chat/stream")', line):
            series = re.sub(r'(worker|version)="[^"]*"', r'\1="…"', line.rpartition(" ")[0])
            found.append(f"  {series}")
    compare("metrics.txt", lines(found))


def test_commands_have_the_released_names_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    compare("commands.txt", lines(names.command_lines(monkeypatch)))
