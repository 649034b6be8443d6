"""The MCP server over HTTP, with the official client: tools, progress, approvals, ownership, and the missing extra."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx2
import mcp_types as types
import pytest
from fastapi import FastAPI
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from tests.clients.scenes import COLOUR, TwoWayAgent
from tests.server.conftest import Serve
from tests.server.test_approvals import careful
from tests.serving import Puppet, Served, error_of, quick_settings, saying, serving, until, within
from turnwire import Turnwire
from turnwire.core.contracts.stores import Scope
from turnwire.core.log.events import SearchEvent, ToolCallEvent, ToolResultEvent
from turnwire.retrieval.service import DocumentService

Era = Literal["auto", "legacy"]
ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])


@asynccontextmanager
async def mcp_client(server: Served, era: Era = "auto", key: str = "", **options: Any) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        transport = streamable_http_client(f"{server.url}/mcp", http_client=http)
        async with Client(transport, mode=era, **options) as client:
            yield client


async def new_key(server: Served, principal: str, scopes: tuple[Scope, ...] = ("read", "write", "approve")) -> str:
    _, key = await server.turnwire.keys.create(principal, scopes)
    return key


def text_of(result: Any) -> str:
    (content,) = result.content
    return content.text


def turn_of(result: Any) -> dict[str, Any]:
    assert result.structured_content is not None
    return result.structured_content


class Progress:
    """The progress of one call, and the turn's id from its first line."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.lines: list[str] = []

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.values.append(progress)
        self.lines.append(message or "")

    async def turn_id(self) -> str:
        await until(lambda: bool(self.lines))
        return self.lines[0].split()[1]


@ERAS
async def test_agents_and_turns_are_tools(tmp_path: Path, era: Era) -> None:
    agents = {"default": Puppet(), "my helper": Puppet()}
    turnwire = Turnwire(agents=agents, store="memory", settings=quick_settings(tmp_path))
    async with serving(turnwire) as server, mcp_client(server, era) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {
            "ask_default",
            "ask_my_helper",
            "decide",
            "get_turn",
            "list_sessions",
            "stop_turn",
        }
        assert tools["ask_default"].input_schema["required"] == ["message"]
        assert set(tools["ask_default"].input_schema["properties"]) == {"message", "session", "wait"}
        with pytest.raises(MCPError, match="no tool"):
            await client.call_tool("ask_nobody", {"message": "Hello"})


@ERAS
async def test_call_reports_steps_and_text_and_returns_the_answer(serve: Serve, era: Era) -> None:
    puppet = Puppet()
    async with serve(puppet) as server, mcp_client(server, era) as client:
        progress = Progress()
        calling = asyncio.create_task(
            client.call_tool("ask_default", {"message": "Rain?", "session": "trip"}, progress_callback=progress)
        )
        part = await puppet.part()
        part.say(SearchEvent("s1", "started", "search_documents", "rain"), "It ")
        await until(lambda: "It " in progress.lines)
        part.say(ToolCallEvent("c1", "look", {}), ToolResultEvent("c1", "look", True, "snow"), "snows.")
        part.end()
        result = await within(calling)
        assert (part.turn.channel, part.turn.message) == ("mcp", "Rain?")
        turn = turn_of(result)
        assert progress.lines[0] == f"turn {turn['turn_id']} of session {turn['session_id']}"
        assert progress.lines[1:] == ["searches: rain", "It ", "look: started", "look: done", "snows."]
        assert progress.values == sorted(set(progress.values))
        assert (text_of(result), result.is_error) == ("It snows.", False)
        assert (turn["status"], turn["text"], turn["agent"]) == ("completed", "It snows.", "default")
        # The session goes on by the name that the host gave it.
        calling = asyncio.create_task(client.call_tool("ask_default", {"message": "And now?", "session": "trip"}))
        again = await puppet.part()
        assert [again.turn.history[index].content for index in (0, -1)] == ["Rain?", "snows."]
        again.end()
        assert turn_of(await within(calling))["session_id"] == turn["session_id"]
        listed = turn_of(await client.call_tool("list_sessions", {}))
        assert [(session["session"], session["turns"]) for session in listed["sessions"]] == [("trip", 2)]


@ERAS
async def test_turn_outlives_a_call_that_is_given_up_and_get_turn_returns_the_rest(
    serve: Serve, errors_in_the_log: list[str], era: Era
) -> None:
    errors_in_the_log.append("Error parsing SSE message")  # Of the SDK's client, whose call was cancelled.
    puppet = Puppet()
    async with serve(puppet) as server, mcp_client(server, era) as client:
        progress = Progress()
        calling = asyncio.create_task(client.call_tool("ask_default", {"message": "Long?"}, progress_callback=progress))
        part = await puppet.part()
        part.say("One, ")
        turn_id = await progress.turn_id()
        calling.cancel()
        await asyncio.wait([calling])
        short = turn_of(await client.call_tool("get_turn", {"turn_id": turn_id, "wait": 0}))
        assert short["status"] == "running"
        rest = Progress()
        waiting = asyncio.create_task(client.call_tool("get_turn", {"turn_id": turn_id}, progress_callback=rest))
        part.say("two.")
        part.end()
        result = await within(waiting)
        assert (turn_of(result)["status"], text_of(result)) == ("completed", "One, two.")


async def test_call_with_a_short_wait_returns_the_turn_id_of_a_running_turn(serve: Serve) -> None:
    puppet = Puppet()
    async with serve(puppet) as server, mcp_client(server) as client:
        result = await within(client.call_tool("ask_default", {"message": "Long?", "wait": 0}))
        turn = turn_of(result)
        assert (turn["status"], result.is_error) == ("running", False)
        assert f"get_turn with turn_id {turn['turn_id']}" in text_of(result)
        stopped = turn_of(await within(client.call_tool("stop_turn", {"turn_id": turn["turn_id"]})))
        assert stopped["status"] == "cancelled"


@ERAS
async def test_failed_turn_and_wrong_arguments_are_error_results(
    serve: Serve, errors_in_the_log: list[str], era: Era
) -> None:
    errors_in_the_log.append("the agent 'default' failed")
    puppet = Puppet()
    async with serve(puppet) as server, mcp_client(server, era) as client:
        calling = asyncio.create_task(client.call_tool("ask_default", {"message": "Rain?"}))
        (await puppet.part()).end(ValueError("broken"))
        failed = await within(calling)
        assert failed.is_error
        assert turn_of(failed)["status"] == "failed"
        assert turn_of(failed)["error"]["code"]
        for tool, arguments, code in [
            ("ask_default", {"message": ""}, "invalid_request"),
            ("ask_default", {"message": "Hello", "mood": "good"}, "invalid_request"),
            ("get_turn", {"turn_id": "unknown"}, "turn_not_found"),
        ]:
            refused = await client.call_tool(tool, arguments)
            assert refused.is_error
            assert turn_of(refused)["error"]["code"] == code


async def test_call_of_a_server_that_leaves_returns_at_once(serve: Serve) -> None:
    puppet = Puppet()
    async with serve(puppet) as server, mcp_client(server) as client:
        calling = asyncio.create_task(client.call_tool("ask_default", {"message": "Long?", "wait": 3600}))
        await puppet.part()
        server.turnwire.services.lifecycle.leaving.set()
        assert turn_of(await within(calling))["status"] == "running"


async def test_revoked_key_ends_a_call_that_waits(serve: Serve) -> None:
    puppet = Puppet()
    async with serve(puppet) as server:
        key, text = await server.turnwire.keys.create("ada", ("read", "write"))
        async with mcp_client(server, key=text) as client:
            progress = Progress()
            calling = asyncio.create_task(
                client.call_tool("ask_default", {"message": "Secret?"}, progress_callback=progress)
            )
            part = await puppet.part()
            await progress.turn_id()
            await server.turnwire.keys.revoke(key.id)
            part.say("secret")
            assert turn_of(await within(calling))["error"]["code"] == "unauthorized"
            assert "secret" not in progress.lines


@ERAS
async def test_mounted_app_without_lifespan_answers(tmp_path: Path, era: Era) -> None:
    turnwire = Turnwire(saying("Hello."), store="memory", settings=quick_settings(tmp_path))
    host = FastAPI()
    host.mount("/agents", turnwire.asgi())
    async with (
        serving(turnwire, host, lifespan="off", path="/agents") as server,
        mcp_client(server, era) as client,
    ):
        assert text_of(await within(client.call_tool("ask_default", {"message": "Hi"}))) == "Hello."


# Approvals


def answering(*answers: types.ElicitResult) -> tuple[Any, list[Any]]:
    """Return a host's form, which answers each question in turn, and the questions."""
    questions: list[Any] = []
    left = list(answers)

    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        questions.append(params)
        return left.pop(0)

    return elicit, questions


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (types.ElicitResult(action="accept", content={"approve": True}), "May I? Paid."),
        (types.ElicitResult(action="accept", content={"approve": False, "reason": "no"}), "May I? Denied: no"),
        (types.ElicitResult(action="decline"), "May I? "),
    ],
)
async def test_approval_is_asked_by_elicitation(serve: Serve, answer: types.ElicitResult, text: str) -> None:
    elicit, questions = answering(answer)
    async with serve(careful) as server, mcp_client(server, elicitation_callback=elicit) as client:
        result = await within(client.call_tool("ask_default", {"message": "Buy it"}))
        assert turn_of(result)["status"] == "completed"
        assert text_of(result).startswith(text)
        (question,) = questions
        assert question.message == 'Allow the call of pay with {"amount":40}? it costs money'
        assert (await server.written())[1] == 1


@ERAS
@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (types.ElicitResult(action="accept", content={"value": "blue"}), "Wait. You want blue."),
        (types.ElicitResult(action="decline"), "did not answer the question"),
        (types.ElicitResult(action="accept", content={"value": "green"}), "this must be one of red, blue"),
    ],
)
async def test_question_is_asked_by_elicitation(serve: Serve, era: Era, answer: types.ElicitResult, text: str) -> None:
    elicit, questions = answering(answer)
    async with serve(TwoWayAgent()) as server, mcp_client(server, era, elicitation_callback=elicit) as client:
        result = await within(client.call_tool("ask_default", {"message": "colour"}))
        (question,) = questions or [None]
        assert (await server.written())[1] == 1
    if question is None:  # This host cannot be asked in the middle of a call.
        assert "waits for the answer to a question:\n- Which colour?" in text_of(result)
        return
    assert text in text_of(result)
    assert (question.message, question.requested_schema["properties"]) == ("Which colour?", {"value": COLOUR})


async def test_dismissed_elicitation_leaves_the_turn_waiting(serve: Serve) -> None:
    elicit, questions = answering(types.ElicitResult(action="cancel"))
    async with serve(careful) as server, mcp_client(server, elicitation_callback=elicit) as client:
        waiting = turn_of(await within(client.call_tool("ask_default", {"message": "Buy it"})))
        assert (waiting["status"], len(questions)) == ("waiting", 1)


@ERAS
async def test_host_without_elicitation_is_shown_how_to_decide(serve: Serve, era: Era) -> None:
    async with serve(careful) as server, mcp_client(server, era) as client:
        result = await within(client.call_tool("ask_default", {"message": "Buy it"}))
        turn = turn_of(result)
        assert (turn["status"], result.is_error) == ("waiting", False)
        assert turn["approvals"] == [
            {"call_id": "c1", "tool": "pay", "args": {"amount": 40}, "reason": "it costs money"}
        ]
        assert "call decide" in text_of(result)
        decision = {"turn_id": turn["turn_id"], "call_id": "c1", "approve": True}
        assert not (await within(client.call_tool("decide", decision))).is_error
        ended = await within(client.call_tool("get_turn", {"turn_id": turn["turn_id"]}))
        assert text_of(ended) == "May I? Paid."
        # A key without the scope `approve` neither has the tool nor is asked.
        key = await new_key(server, "local", ("read", "write"))
        elicit, questions = answering()
        async with mcp_client(server, era, key=key, elicitation_callback=elicit) as limited:
            assert "decide" not in {tool.name for tool in (await limited.list_tools()).tools}
            with pytest.raises(MCPError, match="no tool"):
                await limited.call_tool("decide", decision)
            waiting = await within(limited.call_tool("ask_default", {"message": "Buy it"}))
            assert turn_of(waiting)["status"] == "waiting"
            assert "may not decide" in text_of(waiting)
            assert not questions


async def test_forged_request_state_is_refused(serve: Serve) -> None:
    async with serve(careful) as server:
        mine, other = await new_key(server, "ada"), await new_key(server, "bob")
        elicit, _ = answering()
        async with mcp_client(server, key=mine, elicitation_callback=elicit) as client:
            question = await client.session.call_tool("ask_default", {"message": "Buy it"}, allow_input_required=True)
        assert isinstance(question, types.InputRequiredResult)
        answers: Any = {"c1": types.ElicitResult(action="accept", content={"approve": True})}
        async with mcp_client(server, key=other, elicitation_callback=elicit) as client:
            for state, code in [(question.request_state, "turn_not_found"), ("{}", "invalid_request")]:
                refused = await client.session.call_tool(
                    "ask_default", {"message": "Buy it"}, input_responses=answers, request_state=state
                )
                assert turn_of(refused)["error"]["code"] == code


# Ownership


async def test_turn_of_another_principal_is_not_visible(serve: Serve) -> None:
    puppet = Puppet()
    async with serve(puppet) as server:
        mine, other = await new_key(server, "ada"), await new_key(server, "bob")
        async with mcp_client(server, key=mine) as client:
            turn = turn_of(await client.call_tool("ask_default", {"message": "Secret?", "wait": 0}))
        turn_id = turn["turn_id"]
        async with mcp_client(server, key=other) as client:
            for tool, more in [
                ("get_turn", {}),
                ("stop_turn", {}),
                ("decide", {"call_id": "c1", "approve": True}),
            ]:
                refused = await client.call_tool(tool, {"turn_id": turn_id, **more})
                assert turn_of(refused)["error"]["code"] == "turn_not_found"
            refused = await client.call_tool("ask_default", {"message": "More", "session": turn["session_id"]})
            assert turn_of(refused)["error"]["code"] == "session_not_found"
            assert turn_of(await client.call_tool("list_sessions", {}))["sessions"] == []
        (await puppet.part()).end()


async def test_malformed_or_unauthenticated_request_is_refused(serve: Serve) -> None:
    async with serve(Puppet()) as server:
        assert error_of(await server.http.get("/mcp"), 405)
        assert error_of(await server.http.post("/mcp", content=b"{}", headers={"Content-Type": "text/plain"}), 415)
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        for version in ("2025-11-25", "2026-07-28", "1066-10-14"):
            for body in (b"", b"{", b"null", b"[]", b'{"jsonrpc":"2.0","id":1}', b'{"id":{},"method":"tools/list"}'):
                refused = await server.http.post(
                    "/mcp", content=body, headers={**headers, "MCP-Protocol-Version": version}
                )
                assert 400 <= refused.status_code < 500, (version, body, refused.status_code)
        await new_key(server, "ada")
        refused = await server.http.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        assert error_of(refused, 401)["code"] == "unauthorized"
        assert refused.headers["www-authenticate"] == "Bearer"


async def test_missing_extra_is_a_501_with_the_remedy(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "turnwire.wires.mcp.server", raising=False)
    monkeypatch.setitem(sys.modules, "mcp_types", None)
    async with serve(Puppet()) as server:
        refused = await server.http.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        error = error_of(refused, 501)
        assert error["code"] == "mcp_not_installed"
        assert "pip install 'turnwire[mcp]'" in error["message"]


# Documents


@pytest.mark.process
@ERAS
async def test_documents_are_resources_and_can_be_searched(
    serve_documents: Serve, tmp_path: Path, puppet: Puppet, era: Era
) -> None:
    folder = tmp_path / "handbook"
    folder.mkdir()
    (folder / "leave.md").write_text("# Leave\n\nEverybody has thirty days of leave.\n")
    async with serve_documents([folder], agent=puppet) as server:
        documents = server.turnwire.services.of(DocumentService).documents
        assert documents is not None
        ada, bob = await new_key(server, "ada"), await new_key(server, "bob")
        await documents.add("secret.md", b"# Secret\n\nThe leave of Ada is a secret.\n", "ada")
        names: dict[str, set[str]] = {}
        for name, key in (("ada", ada), ("bob", bob)):
            async with mcp_client(server, era, key=key) as client:
                listed = (await client.list_resources()).resources
                names[name] = {resource.name for resource in listed}
                found = turn_of(await client.call_tool("search_documents", {"query": "days of leave"}))
                passages = {passage["uri"]: passage["text"] for passage in found["passages"]}
                for resource in listed:
                    (content,) = (await client.read_resource(resource.uri)).contents
                    assert isinstance(content, types.TextResourceContents)
                    assert passages[resource.uri].strip() in content.text
                if name == "ada":
                    private = next(resource.uri for resource in listed if resource.name == "secret.md")
                else:
                    assert private not in passages
                    with pytest.raises(MCPError):
                        await client.read_resource(private)
        assert names == {"ada": {"leave.md", "secret.md"}, "bob": {"leave.md"}}


async def test_client_without_a_token_is_told_which_authorization_servers_there_are(serve: Serve) -> None:
    servers = ["https://issuer.example"]
    async with serve(saying("x"), authenticate=lambda scope: None, mcp={"authorization_servers": servers}) as server:
        refused = await server.http.post("/mcp", json={})
        error_of(refused, 401)
        url = f"{server.url}/.well-known/oauth-protected-resource/mcp"
        assert refused.headers["www-authenticate"] == f'Bearer resource_metadata="{url}"'
        for path in (url, f"{server.url}/.well-known/oauth-protected-resource"):
            metadata = (await server.http.get(path)).json()
            assert (metadata["resource"], metadata["authorization_servers"]) == (f"{server.url}/mcp", servers)
        # Other routes have no such metadata.
        assert (await server.http.post("/chat", json={})).headers["www-authenticate"] == "Bearer"


async def test_server_whose_keys_come_from_the_operator_has_no_resource_metadata(serve: Serve) -> None:
    async with serve(saying("x")) as server:
        await new_key(server, "ann")
        assert (await server.http.post("/mcp", json={})).headers["www-authenticate"] == "Bearer"
        error_of(await server.http.get("/.well-known/oauth-protected-resource/mcp"), 404)
