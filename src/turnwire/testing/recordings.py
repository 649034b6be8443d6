"""Recorded turns as tests: the agent's code must do again what the recording says."""

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from turnwire.agents.loader import FactoryAgents, as_agent
from turnwire.core.contracts.agents import Agent
from turnwire.core.log.events import ToolCallEvent
from turnwire.recordings.recording import TurnRecording, decode_recording, encode_recording
from turnwire.recordings.replay import ReplayResult, replay_turn, updated_recording

T = TypeVar("T")


class RecordedTurn:
    """A recording in a file. Raises RecordingError, and OSError if the file cannot be read."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.recording: TurnRecording = decode_recording(self.path.read_bytes())

    @property
    def message(self) -> str:
        return self.recording.turn.message

    @property
    def text(self) -> str:
        """Return the recorded answer."""
        return self.recording.state().text

    @property
    def tool_calls(self) -> list[tuple[str, dict[str, Any]]]:
        events = (logged.event for logged in self.recording.events)
        return [(event.tool, event.args) for event in events if isinstance(event, ToolCallEvent)]

    async def replay(self, agent: Any, *, compare_prompts: bool = True) -> ReplayResult:
        """Run the agent with models and tools answered from the recording. Raises RecordingError.

        `agent` is anything that `Turnwire` takes.
        """
        agents: dict[str, Agent] = {"agent": as_agent(agent)}
        factories = FactoryAgents(agents)
        await factories.open()
        try:
            return await replay_turn(self.recording, agents["agent"], compare_prompts=compare_prompts)
        finally:
            await factories.close()

    def check(self, agent: Any, *, compare_prompts: bool = True, update: bool = False) -> ReplayResult:
        """Replay, and raise AssertionError with the first difference. Works with and without a running event loop.

        `update` writes the requests of the code as it is now into the file, if nothing else differs.
        """
        replay = run_blocking(self.replay(agent, compare_prompts=compare_prompts and not update))
        if replay.divergence is not None:
            raise AssertionError(f"{self.path}, {replay.divergence}") from replay.error
        if update:
            self.recording = updated_recording(self.recording, replay)
            self.path.write_bytes(encode_recording(self.recording))
        return replay


def recorded_turn(path: Path | str) -> RecordedTurn:
    """Read a recording that `turnwire record` has written."""
    return RecordedTurn(path)


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on an event loop of its own, from any code."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(asyncio.run(work))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
