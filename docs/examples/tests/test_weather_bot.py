from weather_bot import make_agent

from turnwire.testing import calls, says


def test_agent_looks_up_the_weather(scripted_model, agent_client):
    scripted_model.plan(calls(("weather", {"city": "Oslo"})), says("It is snowing in Oslo."))
    turn = agent_client(make_agent()).send("What is the weather in Oslo?")
    assert turn.outcome == "completed"
    assert turn.tool_calls == [("weather", {"city": "Oslo"})]
    assert turn.text == "It is snowing in Oslo."
    assert scripted_model.requests[0].body["messages"][0]["content"] == "You report the weather."


def test_agent_does_again_what_it_did_in_production(recorded_turn):
    recorded_turn("weather.jsonl").check(make_agent())
