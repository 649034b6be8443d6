"""`turnwire record`, `replay` and `eval`: a turn becomes a file, and the file a test of the agent and its model."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.process.test_compare import reply
from tests.retrieval.shelf import GREEN, SHELF
from tests.scripted_model import Plan
from tests.serving import quick_settings
from turnwire import Turnwire
from turnwire.agents.loader import load_agent
from turnwire.cli.main import app
from turnwire.core.log.follow import follow
from turnwire.recordings.recording import decode_recording
from turnwire.server.messages import MessageBody
from turnwire.testing import ScriptedModel, calls, fails, says

AGENT = """
import os
from turnwire import ChatCompletionsAgent, tool

RUNS = []

@tool
def weather(city: str) -> str:
    "Return the weather in a city."
    RUNS.append(city)
    return f"{os.environ.get('WEATHER', 'snow')} in {city}"

agent = ChatCompletionsAgent("small", instructions="INSTRUCTIONS", tools=[weather], retries=0)

async def plain(turn):
    yield "It is snowing in Oslo."
"""
PLANS = calls(("weather", {"city": "Oslo"}), ids=["a1"]), says("It is snowing in Oslo.")


class Workshop:
    """A folder with the module of an agent, its data folder, and the command line."""

    def __init__(self, folder: Path, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.model = model
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(folder)
        self._count = 0

    def write_agent(self, instructions: str = "Be kind.") -> str:
        """Write a module with the agent and return its reference."""
        self._count += 1
        name = f"{self.folder.name}_{self._count}"  # No other test has imported it.
        (self.folder / f"{name}.py").write_text(AGENT.replace("INSTRUCTIONS", instructions))
        return f"{name}:agent"

    def runs(self, reference: str) -> list[str]:
        return sys.modules[reference.partition(":")[0]].RUNS

    def ask(self, reference: str, *messages: str, plans: tuple[Plan, ...] = PLANS) -> None:
        async def run() -> None:
            turnwire = Turnwire(agents={"agent": load_agent(reference)}, settings=quick_settings(self.data))
            await turnwire.open()
            session: str | None = None
            for message in messages:
                self.model.plan(*plans)
                body = MessageBody.model_validate({"message": message, "session_id": session})
                accepted = await turnwire.start("local", body)
                session = accepted.record.session_id
                async for _ in follow(turnwire.store, accepted.record.id):
                    pass
            await turnwire.close()

        asyncio.run(run())

    def call(self, *arguments: str | Path, code: int = 0) -> Result:
        result = CliRunner().invoke(app, [*map(str, arguments), "--data", str(self.data)])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code == code, result.output
        return result


@pytest.fixture
def workshop(tmp_path: Path, scripted_model: ScriptedModel, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    scripted_model.keeps_alive = False
    return Workshop(tmp_path, scripted_model, monkeypatch)


def test_recorded_turn_replays_identically_and_a_changed_prompt_is_named(workshop: Workshop) -> None:
    reference = workshop.write_agent()
    workshop.ask(reference, "Where is the snow?", "And now?")
    requests = len(workshop.model.requests)
    workshop.call("record", "-o", "turn.jsonl", "--agent", reference)
    recording = decode_recording(Path("turn.jsonl").read_bytes())
    assert [message.role for message in recording.turn.history] == ["user", "assistant", "tool", "assistant"]
    assert len(recording.requests) == 2
    same = workshop.call("replay", "turn.jsonl", "--agent", reference)
    assert "turn.jsonl: the same, with 3 calls answered" in same.output
    changed = workshop.write_agent("Be rude.")
    shown = workshop.call("replay", "turn.jsonl", "--agent", changed, code=1)
    assert "turn.jsonl, position 3: the model gets another request" in shown.output
    assert "Be kind." in shown.output
    assert "Be rude." in shown.output
    (row,) = json.loads(workshop.call("replay", "turn.jsonl", "--agent", changed, "--json", code=1).stdout)
    assert (row["divergence"]["position"], row["divergence"]["what"]) == (3, "prompt")
    assert row["divergence"]["recorded"].replace("kind", "rude") == row["divergence"]["now"]
    workshop.call("replay", "turn.jsonl", "--agent", changed, "--ignore-prompts")
    workshop.call("replay", "turn.jsonl", "--agent", changed, "--update")
    workshop.call("replay", "turn.jsonl", "--agent", changed)
    workshop.call("replay", "turn.jsonl", "--agent", reference, code=1)
    assert len(workshop.model.requests) == requests
    assert workshop.runs(changed) == []


def test_replay_needs_no_key_and_says_what_cannot_be_replayed(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = workshop.write_agent()
    workshop.ask(reference, "Where is the snow?")
    workshop.call("record", "-o", "turn.jsonl")
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("OPENAI_API_KEY", "")  # Set, so that the change of the command is undone.
    monkeypatch.delenv("OPENAI_API_KEY")
    workshop.call("replay", "turn.jsonl", "--agent", workshop.write_agent())
    other = workshop.call("replay", "turn.jsonl", "--agent", reference.replace(":agent", ":plain"), code=1)
    assert "position 4" in other.output
    Path("broken.jsonl").write_text("{}\n")
    assert (
        "broken.jsonl: the file is not a recording"
        in workshop.call("replay", "broken.jsonl", "--agent", reference, code=2).output
    )
    assert "there is no agent 'nobody'" in workshop.call("replay", "turn.jsonl", "--agent", "nobody", code=2).output


def report(result: Result) -> dict[str, Any]:
    return json.loads(result.stdout)


def test_evaluation_compares_answers_tools_and_tokens_without_running_tools(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = workshop.write_agent()
    workshop.ask(reference, "Where is the snow?")
    Path("recordings").mkdir()
    workshop.call("record", "-o", "recordings/turn.jsonl")
    monkeypatch.setenv("WEATHER", "rain")
    monkeypatch.setenv("TURNWIRE_MODEL_PRICES", '{"other": {"input": 1, "output": 2}}')
    model = ("--model", "other", "--model-url", workshop.model.url)
    arguments = ("eval", "recordings", "--agent", reference, *model)

    workshop.model.plan(calls(("weather", {"city": "Oslo"}), ids=["z9"]), says("It is snowing in Oslo."))
    same = report(workshop.call(*arguments, "--strict", "--json"))
    assert same["summary"]["differing"] == {"outcome": 0, "answer": 0, "tools": 0, "replay": 0}
    assert (same["summary"]["same"], same["turns"][0]["similarity"], same["model"]) == (1, 1.0, "other")
    assert same["turns"][0]["now"]["cost"] == pytest.approx((22 * 1 + 14 * 2) / 1e6)
    assert workshop.model.bodies[-1]["model"] == "other"
    # The model has read the recorded result, not today's.
    assert workshop.model.bodies[-1]["messages"][-1]["content"] == "snow in Oslo"

    other = (
        calls(("weather", {"city": "Rome"}), ids=["z9"]),
        says("It is sunny in Rome.", usage={"input": 1, "output": 1}),
    )
    workshop.model.plan(*other)
    shown = workshop.call(*arguments)
    assert "alike" in shown.output
    assert "0 of 1 turns have the same answer" in shown.output
    assert workshop.model.bodies[-1]["messages"][-1]["content"].startswith("Error: this call is not in the recording")
    workshop.model.plan(*other)
    differing = report(workshop.call(*arguments, "--strict", "--json", code=1))
    assert differing["turns"][0]["differences"] == ["answer", "tools"]
    assert differing["turns"][0]["now"]["tools"] == [["weather", {"city": "Rome"}]]
    assert workshop.runs(reference) == ["Oslo"]

    workshop.model.plan(*other)
    workshop.call(*arguments, "--run-tools")
    assert workshop.runs(reference) == ["Oslo", "Rome"]
    assert workshop.model.bodies[-1]["messages"][-1]["content"] == "rain in Rome"

    workshop.model.plan(fails(400))
    failed = report(workshop.call(*arguments, "--json", code=1))
    assert failed["turns"][0]["differences"] == ["outcome", "answer", "tools"]
    workshop.model.plan(*PLANS)
    assert "100%" not in workshop.call("replay", "recordings/turn.jsonl", "--agent", reference, *model).output


def test_evaluation_by_replay_calls_no_model(workshop: Workshop) -> None:
    reference = workshop.write_agent()
    workshop.ask(reference, "Where is the snow?")
    workshop.call("record", "-o", "turn.jsonl")
    requests = len(workshop.model.requests)
    assert "1 of 1 turns" in workshop.call("eval", "turn.jsonl", "--agent", reference, "--replay").output
    diverging = workshop.call("eval", ".", "--agent", workshop.write_agent("Be rude."), "--replay", code=1)
    assert "position 3: the model gets another request" in diverging.output
    assert len(workshop.model.requests) == requests
    Path("empty").mkdir()
    assert "there are no recordings" in workshop.call("eval", "empty", "--agent", reference, code=2).output


def test_evaluation_compares_synthesis_with_direct_answers_from_documents(workshop: Workshop) -> None:
    shelf = workshop.folder / "shelf"
    shelf.mkdir()
    for name, text in SHELF.items():
        (shelf / name).write_text(text)
    workshop.call("index", shelf, "--no-embed")
    workshop.model.plan(*[reply] * 12)
    settings = quick_settings(workshop.data, model="small", model_url=workshop.model.url, model_key="none")

    async def ask() -> None:
        turnwire = Turnwire(settings=settings)
        await turnwire.open()
        accepted = await turnwire.start("local", MessageBody.model_validate({"message": GREEN}))
        async for _ in follow(turnwire.store, accepted.record.id):
            pass
        await turnwire.close()

    asyncio.run(ask())
    workshop.call("record", "-o", "synthesis.jsonl")
    arguments = ("eval", ".", "--agent", "documents", "--model", "small", "--model-url", workshop.model.url)
    result = report(workshop.call(*arguments, "--run-tools", "--option", "answer=direct", "--json"))
    (turn,) = result["turns"]
    assert (turn["recorded"]["mode"], turn["now"]["mode"]) == ("synthesis", "direct")
    assert (turn["recorded"]["cited"], turn["now"]["cited"]) == (0.5, 1.0)
    assert turn["differences"] == ["answer"]
    assert all(turn[side]["first_token_ms"] is not None for side in ("recorded", "now"))
