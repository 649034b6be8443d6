"""`turnwire acp` over stdio, driven by the official client: in its own process, and with a server that is killed."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from acp import RequestError, spawn_agent_process, text_block
from acp.client.connection import ClientSideConnection
from acp.schema import (
    AcceptElicitationResponse,
    AllowedOutcome,
    ClientCapabilities,
    DeniedOutcome,
    ElicitationCapabilities,
    ElicitationFormCapabilities,
    RequestPermissionResponse,
)

from tests.process.server_process import AGENTS, environment, run, served
from tests.process.test_resume import configure
from tests.scripted_model import ScriptedModel, calls, model_server, says
from tests.serving import until, within

__all__ = ["model_server"]


class Editor:
    """An editor: it keeps what it is shown, and answers requests for permission with `choice`."""

    def __init__(self, choice: str | None = "allow") -> None:
        self.choice = choice
        self.updates: list[Any] = []
        self.requests: list[Any] = []

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)

    async def request_permission(self, session_id: str, tool_call: Any, options: Any, **_: Any) -> Any:
        self.requests.append(tool_call)
        if self.choice is None:
            await asyncio.Event().wait()
        outcome = AllowedOutcome(outcome="selected", option_id=self.choice or "")
        return RequestPermissionResponse(outcome=outcome if self.choice else DeniedOutcome(outcome="cancelled"))

    def on_connect(self, conn: Any) -> None:
        pass

    def of(self, kind: str) -> list[Any]:
        return [update for update in self.updates if update.session_update == kind]

    def text(self, kind: str = "agent_message_chunk") -> str:
        return "".join(update.content.text for update in self.of(kind))


@asynccontextmanager
async def editing(
    folder: Path, editor: Any, *options: str | Path, capabilities: ClientCapabilities | None = None
) -> AsyncIterator[ClientSideConnection]:
    """Start the program as an editor does, and initialize it."""
    arguments = ["-m", "turnwire", "acp", "--data", folder / "data", *options]
    program = spawn_agent_process(
        editor,
        sys.executable,
        *map(str, arguments),
        env=environment(),
        cwd=folder,
        use_unstable_protocol=True,
    )
    async with program as (connection, _):
        answer = await within(connection.initialize(protocol_version=1, client_capabilities=capabilities))
        assert answer.protocol_version == 1
        assert answer.agent_capabilities is not None
        assert answer.agent_capabilities.load_session
        yield connection


async def new_session(connection: ClientSideConnection, folder: Path) -> str:
    return (await within(connection.new_session(cwd=str(folder), mcp_servers=[]))).session_id


async def prompt(connection: ClientSideConnection, session_id: str, text: str) -> str:
    answer = await within(connection.prompt(session_id=session_id, prompt=[text_block(text)]))
    return answer.stop_reason


async def test_embedded_agent_is_prompted_asked_cancelled_and_loaded(tmp_path: Path) -> None:
    (tmp_path / "agents_of_the_test.py").write_text(AGENTS)
    agents = [
        part for name in ("careful", "silent", "slow") for part in ("--agent", f"{name}=agents_of_the_test:{name}")
    ]
    editor = Editor()
    async with editing(tmp_path, editor, *agents) as connection:
        session_id = await new_session(connection, tmp_path)
        # A permission is an approval.
        assert await prompt(connection, session_id, "Buy it") == "end_turn"
        assert editor.text() == "May I? Yes, same process"
        assert [(call.title, call.raw_input) for call in editor.requests] == [("pay", {"amount": 40})]
        assert [call.status for call in editor.of("tool_call_update")][:2] == ["pending", "in_progress"]
        editor.choice = "reject"
        assert await prompt(connection, session_id, "And that") == "end_turn"
        assert editor.text().endswith("No, same process")
        # Another agent is another mode.
        await within(connection.set_session_mode(session_id=session_id, mode_id="silent"))
        waiting = asyncio.create_task(prompt(connection, session_id, "Well?"))
        await until(lambda: editor.text().endswith("Well, "))
        await connection.cancel(session_id=session_id)
        assert await within(waiting) == "cancelled"
        await within(connection.set_session_mode(session_id=session_id, mode_id="slow"))
        with pytest.raises(RequestError):
            await prompt(connection, session_id, "not a number")
        shown = editor.text()
    # Another start of the editor finds the session, and shows it again.
    editor = Editor()
    async with editing(tmp_path, editor, *agents) as connection:
        listed = await within(connection.list_sessions(cwd=str(tmp_path)))
        assert [(session.session_id, session.title) for session in listed.sessions] == [(session_id, "Buy it")]
        await within(connection.load_session(session_id=session_id, cwd=str(tmp_path), mcp_servers=[]))
        await until(lambda: editor.text() == shown)
        messages = [update.content.text for update in editor.of("user_message_chunk")]
        assert messages == ["Buy it", "And that", "Well?", "not a number"]
        with pytest.raises(RequestError):
            await within(connection.load_session(session_id="unknown", cwd=str(tmp_path), mcp_servers=[]))


async def test_turn_of_a_server_outlives_the_editor_and_the_server(tmp_path: Path, model_server: ScriptedModel) -> None:
    data, config, going_on = tmp_path / "data", configure(tmp_path, model_server), asyncio.Event()
    model_server.plan(
        calls(("look", {"city": "Oslo"})), says("Void", asyncio.Event()), says("Snow ", going_on, "in Oslo.")
    )
    editor = Editor(choice=None)
    async with served(data, "--config", config, agents=["careful"]) as server:
        async with editing(tmp_path, editor, "--agent", "careful") as connection:
            waiting_id = await new_session(connection, tmp_path)
            asking = asyncio.create_task(prompt(connection, waiting_id, "Buy it"))
            await until(lambda: bool(editor.requests))
            asking.cancel()
        # The next editor is asked again, and goes on where the first one has left.
        editor = Editor()
        async with editing(tmp_path, editor, "--agent", "helper") as connection:
            await within(connection.load_session(session_id=waiting_id, cwd=str(tmp_path), mcp_servers=[]))
            await until(lambda: editor.text().startswith("May I? Yes, "))
            session_id = await new_session(connection, tmp_path)
            editor.updates.clear()
            prompting = asyncio.create_task(prompt(connection, session_id, "How is it?"))
            await until(lambda: editor.text() == "Void")
            await server.kill()
            async with served(data, "--config", config, agents=["careful"]):
                going_on.set()
                assert await within(prompting) == "end_turn"
                # Text cannot be taken back: the answer begins again, as a message of its own.
                *_, last = editor.of("agent_message_chunk")
                texts = [
                    each.content.text for each in editor.of("agent_message_chunk") if each.message_id == last.message_id
                ]
                assert "".join(texts) == "Snow in Oslo."
                assert [call.title for call in editor.of("tool_call")] == ["look"]
                # A session that is loaded has no void text.
                editor.updates.clear()
                await within(connection.load_session(session_id=session_id, cwd=str(tmp_path), mcp_servers=[]))
                await until(lambda: editor.text() == "Snow in Oslo.")


async def test_server_that_is_away_ends_the_command_with_the_reason(tmp_path: Path) -> None:
    done = await run("acp", "--url", "http://127.0.0.1:9", cwd=tmp_path)
    assert done.code == 1
    assert "http://127.0.0.1:9" in done.err
    assert not done.out


# Questions

ASKING = """
from turnwire import QuestionDeclinedError, ask

PLAN = {"type": "string", "oneOf": [{"const": "b", "title": "Basic"}, {"const": "p", "title": "Plus"}]}
TRIP = {
    "type": "object",
    "properties": {"plan": PLAN, "days": {"type": "integer", "maximum": 9}},
    "required": ["plan", "days"],
}

async def asking(turn):
    try:
        first = await ask("Which plan?", PLAN)
    except QuestionDeclinedError:
        first = "none"
    yield f"{first}, "
    yield str(await ask("How long?", TRIP))

"""


class FormEditor(Editor):
    """An editor with forms; it answers with the next of `contents`."""

    def __init__(self, *contents: dict[str, Any]) -> None:
        super().__init__()
        self.contents = list(contents)
        self.forms: list[tuple[str, list[str]]] = []

    async def create_elicitation(self, message: str, mode: Any, **_: Any) -> Any:
        self.forms.append((message, list(mode.requested_schema.properties)))
        return AcceptElicitationResponse(action="accept", content=self.contents.pop(0))


FORMS = ClientCapabilities(elicitation=ElicitationCapabilities(form=ElicitationFormCapabilities()))


def asking_agent(folder: Path) -> list[str]:
    (folder / "asking_agents.py").write_text(ASKING)
    return ["--agent", "asking_agents:asking"]


async def test_question_is_a_form_of_the_editor_until_its_answer_fits(tmp_path: Path) -> None:
    wrong, right = {"plan": "p", "days": 10}, {"plan": "p", "days": 3}
    editor = FormEditor({"value": "b"}, wrong, right)
    async with editing(tmp_path, editor, *asking_agent(tmp_path), capabilities=FORMS) as connection:
        session_id = await new_session(connection, tmp_path)
        assert await prompt(connection, session_id, "Plan it") == "end_turn"
        assert editor.text() == f"b, {right}"
        refused = "value.days: this must be at most 9\nHow long?"
        assert editor.forms == [
            ("Which plan?", ["value"]),
            ("How long?", ["plan", "days"]),
            (refused, ["plan", "days"]),
        ]


async def test_question_is_a_choice_of_options_or_the_next_prompt(tmp_path: Path) -> None:
    editor = Editor("choice-1")
    async with editing(tmp_path, editor, *asking_agent(tmp_path)) as connection:
        session_id = await new_session(connection, tmp_path)
        assert await prompt(connection, session_id, "Plan it") == "end_turn"
        assert [call.title for call in editor.requests] == ["Which plan?"]
        assert [call.status for call in editor.of("tool_call_update")] == ["completed"]
        assert editor.text() == "p, How long? plan [Basic/Plus]"
        assert await prompt(connection, session_id, "Basic") == "end_turn"
        assert editor.text().endswith("How long? days")
        assert await prompt(connection, session_id, "many") == "end_turn"
        assert editor.text().endswith("this must be a whole number: How long? days")
        assert await prompt(connection, session_id, "2") == "end_turn"
        assert editor.text().endswith("{'plan': 'b', 'days': 2}")
        # The next prompt is a new turn.
        editor.choice = "decline"
        assert await prompt(connection, session_id, "Again") == "end_turn"
        assert editor.text().endswith("none, How long? plan [Basic/Plus]")
        await connection.cancel(session_id=session_id)


async def test_question_waits_for_the_next_start_of_editor_and_server(tmp_path: Path) -> None:
    editor, data = Editor("choice-1"), tmp_path / "data"
    agent = asking_agent(tmp_path)
    async with served(data, *agent, agents=()), editing(tmp_path, editor) as connection:
        session_id = await new_session(connection, tmp_path)
        assert await prompt(connection, session_id, "Plan it") == "end_turn"
    editor = Editor()
    async with served(data, *agent, agents=()), editing(tmp_path, editor) as connection:
        await within(connection.load_session(session_id=session_id, cwd=str(tmp_path), mcp_servers=[]))
        await until(lambda: editor.text().endswith("How long? plan [Basic/Plus]"))
        assert await prompt(connection, session_id, "Plus") == "end_turn"
        assert await prompt(connection, session_id, "7") == "end_turn"
        assert editor.text().endswith("{'plan': 'p', 'days': 7}")
