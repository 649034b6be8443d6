"""The examples of approvals do what their pages say, over HTTP: a letter is sent when somebody has allowed it."""

import importlib.util
from pathlib import Path

import pytest

from tests.contracts.turns import followed
from tests.scripted_model import ScriptedModel, calls, model_server, says, use_scripted_model
from tests.serving import serving
from turnwire.core.log.events import ToolResultEvent

__all__ = ["model_server"]

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
LETTER = {"to": "Bob", "text": "Hello"}
NAMES = [f"{sdk}_approval" for sdk in ("adk", "agents", "agno", "langgraph", "llama", "pydantic")]


@pytest.mark.rotated("approved")
@pytest.mark.parametrize("approved", [True, False], ids=["allowed", "denied"])
@pytest.mark.parametrize("name", NAMES)
async def test_a_letter_waits_for_a_person(
    name: str, approved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_server: ScriptedModel
) -> None:
    monkeypatch.chdir(tmp_path)
    use_scripted_model(monkeypatch, model_server)
    model_server.plan(calls(("send_letter", LETTER)), says("As you wish."))
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    turnwire = module.app.lifespan
    async with serving(turnwire, module.app) as server:
        answer = await server.http.post("chat", json={"message": "Write to Bob"})
        assert answer.status_code == 202
        (request,) = answer.json()["approvals"]
        assert (request["tool"], request["args"]) == ("send_letter", LETTER)
        turn_id = answer.json()["turn_id"]
        decision = {"approved": approved, "args": LETTER}
        response = await server.http.post(f"v1/turns/{turn_id}/approvals/{request['call_id']}", json=decision)
        assert response.status_code == 200
        log = await followed(turnwire.store, turn_id)
    (result,) = [logged.event for logged in log if isinstance(logged.event, ToolResultEvent)]
    assert result.success is approved
    assert result.result == ("Sent to Bob" if approved else "Denied: the user did not allow this.")
