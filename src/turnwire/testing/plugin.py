"""Fixtures for pytest, loaded with it: `recorded_turn`, `scripted_model` and `agent_client`.

They need no async plugin: an event loop in a thread serves the model and runs the turns. pytest imports this module at
every start, so it imports nothing before a test uses a fixture.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

    from turnwire.testing.client import AgentClient, AgentTurn
    from turnwire.testing.recordings import RecordedTurn
    from turnwire.testing.scripted_server import ScriptedModel

_MODEL_VARIABLES = ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_CUSTOM_HEADERS", "OPENAI_API_BASE")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("turnwire")
    group.addoption(
        "--update-recordings",
        action="store_true",
        help="Write the requests of the code as it is now into the recordings that are checked.",
    )


@pytest.fixture
def recorded_turn(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> "Callable[[str | Path], RecordedTurn]":
    """Return a function that reads a recording, from a path beside the test's file.

    In a replay nothing is called, so agents can be made with a key that is good for nothing.
    """
    from turnwire.testing.recordings import RecordedTurn

    if not os.environ.get("OPENAI_API_KEY"):
        monkeypatch.setenv("OPENAI_API_KEY", "replay")

    class UpdatedTurn(RecordedTurn):
        def check(self, agent: Any, *, compare_prompts: bool = True, update: bool = False) -> Any:
            update = update or bool(request.config.getoption("--update-recordings"))
            return super().check(agent, compare_prompts=compare_prompts, update=update)

    return lambda path: UpdatedTurn(request.path.parent / path)


@pytest.fixture(scope="session")
def _turnwire_portal() -> "Iterator[BlockingPortal]":
    """An event loop in a thread, for all tests."""
    from anyio.from_thread import start_blocking_portal

    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="session")
def _turnwire_model(_turnwire_portal: "BlockingPortal") -> "Iterator[ScriptedModel]":
    """One server for all tests: SDKs keep a client, with its address, for the life of the process."""
    from turnwire.testing.scripted_server import scripted_model

    with _turnwire_portal.wrap_async_context_manager(scripted_model()) as server:
        yield server


@pytest.fixture
def scripted_model(_turnwire_model: "ScriptedModel", monkeypatch: pytest.MonkeyPatch) -> "Iterator[ScriptedModel]":
    """A model server with no answers yet. OpenAI's variables name it, so that most agents need no change.

    The test fails if an agent requests more answers than were planned.
    """
    server = _turnwire_model
    for name in _MODEL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "scripted")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server.reset()
    yield server
    server.check_plan()


class BlockingClient:
    """An `AgentClient` for tests that are not async."""

    def __init__(self, portal: "BlockingPortal", client: "AgentClient") -> None:
        self.client = client
        self._portal = portal

    def send(self, message: str, **options: Any) -> "AgentTurn":
        """Start a turn and return it when it has ended or waits for a person."""
        return self._portal.call(lambda: self.client.send(message, **options))

    def decide(self, turn: "AgentTurn", *, approved: bool, reason: str | None = None) -> "AgentTurn":
        """Decide about all calls that a turn waits for, and return it when it has gone on to its next stop."""
        return self._portal.call(lambda: self.client.decide(turn, approved=approved, reason=reason))

    def record(self, turn: "AgentTurn", path: Path | str) -> None:
        """Write the recording of an ended turn to a file."""
        self._portal.call(lambda: self.client.record(turn, path))


@pytest.fixture
def agent_client(_turnwire_portal: "BlockingPortal") -> Iterator[Callable[..., BlockingClient]]:
    """Return a function that opens an agent in this process and returns a client of it; all are closed at the end."""
    from contextlib import ExitStack

    from turnwire.testing.client import open_client

    with ExitStack() as stack:

        def make(agent: Any = None, *, agents: Mapping[str, Any] | None = None, **options: Any) -> BlockingClient:
            opening = open_client(agent, agents=agents, **options)
            return BlockingClient(
                _turnwire_portal, stack.enter_context(_turnwire_portal.wrap_async_context_manager(opening))
            )

        yield make
