from parrot_sdk import Bird
from turnwire_lines.encoder import Lines

BIRD = Bird({"weather": "It is sunny."})


def test_bird_is_an_agent_that_continues_from_its_journal(agent_client, recorded_turn, tmp_path):
    client = agent_client(BIRD)
    turn = client.send("What is the weather?")
    assert turn.outcome == "completed"
    assert turn.tool_calls == [("lookup", {"topic": "weather"})]
    client.record(turn, tmp_path / "turn.jsonl")
    recorded_turn(tmp_path / "turn.jsonl").check(BIRD)


def test_lines_end_with_the_outcome(agent_client):
    turn = agent_client(BIRD).send("Hello")
    encoder = Lines().encoder()
    lines = b"".join(map(encoder.frame, turn.log)).splitlines()
    assert lines[0] == b'{"text": "Hello "}'
    assert lines[-1].startswith(b'{"done": "completed"')
