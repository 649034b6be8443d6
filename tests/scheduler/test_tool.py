"""The tool by which an agent schedules a follow-up."""

from pathlib import Path

from tests.retrieval.shelf import MakeModel, make_model
from tests.scripted_model import ScriptedModel, calls, model_server, says
from tests.serving import quick_settings, serving
from turnwire import ChatCompletionsAgent, Turnwire

__all__ = ["make_model", "model_server"]


async def test_agent_schedules_a_follow_up_that_a_person_approves(
    tmp_path: Path, model_server: ScriptedModel, make_model: MakeModel
) -> None:
    wanted = ("schedule_follow_up", {"message": "Is it done?", "in_minutes": 90})
    model_server.plan(calls(wanted, ids=["c1"]), says("I will ask again."))
    settings = quick_settings(tmp_path, scheduler={"follow_ups": True})
    turnwire = Turnwire(agent=ChatCompletionsAgent(make_model()), store="memory", settings=settings)
    async with serving(turnwire) as server, server.ask() as stream:
        await stream.until("approval_request")
        assert (await server.http.get("/v1/schedules")).json() == {"schedules": []}
        path = f"/v1/turns/{stream.turn_id}/approvals/c1"
        assert (await server.http.post(path, json={"approved": True})).status_code == 200
        await stream.rest()
        (found,) = (await server.http.get("/v1/schedules")).json()["schedules"]
        assert (found["message"], found["session_id"]) == ("Is it done?", stream.session_id)
        assert model_server.unused == 0
