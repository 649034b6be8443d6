"""The official A2A client, for each binding and version that the server offers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal
from uuid import uuid4

import httpx
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.client.card_resolver import A2ACardResolver
from a2a.types import Message, Part, Role, SendMessageRequest, StreamResponse, Task, TaskState
from google.protobuf.json_format import MessageToDict

Dialect = Literal["JSONRPC 1.0", "HTTP+JSON 1.0", "JSONRPC 0.3"]
DIALECTS: tuple[Dialect, ...] = ("JSONRPC 1.0", "HTTP+JSON 1.0", "JSONRPC 0.3")


@asynccontextmanager
async def a2a_client(
    url: str, dialect: Dialect = "JSONRPC 1.0", *, key: str = "", agent: str = "", **config: Any
) -> AsyncIterator[Client]:
    """Open a client of an agent by its card, the default one if none is named."""
    binding, version = dialect.split()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(headers=headers, timeout=60, trust_env=False, verify=False) as http:
        base = f"{url}/a2a/{agent}" if agent else url
        card = await A2ACardResolver(http, base).get_agent_card()
        for interface in list(card.supported_interfaces):
            if (interface.protocol_binding, interface.protocol_version) != (binding, version):
                card.supported_interfaces.remove(interface)
        factory = ClientFactory(ClientConfig(httpx_client=http, supported_protocol_bindings=[binding], **config))
        client = factory.create(card)
        yield client


def message(text: str = "Hello", *parts: Part, **fields: Any) -> SendMessageRequest:
    content = [Part(text=text)] if text else []
    return SendMessageRequest(
        message=Message(message_id=str(uuid4()), role=Role.ROLE_USER, parts=[*content, *parts], **fields)
    )


class SeenTask:
    """A task as the official client has received it, event by event."""

    def __init__(self) -> None:
        self.task = Task()
        self.states: list[str] = []
        self.lines: list[str] = []
        self.text = ""

    @property
    def state(self) -> str:
        return self.states[-1]

    def take(self, event: StreamResponse) -> None:
        if event.HasField("task"):
            self.task, self.text = event.task, answer_of(event.task)
            self._note(event.task.status)
        elif event.HasField("status_update"):
            self._note(event.status_update.status)
        else:
            update = event.artifact_update
            piece = "".join(part.text for part in update.artifact.parts)
            self.text = self.text + piece if update.append else piece

    def _note(self, status: Any) -> None:
        self.states.append(state_name(status.state))
        if status.HasField("message"):
            self.lines += [part.text for part in status.message.parts if part.HasField("text")]


def state_name(state: Any) -> str:
    return TaskState.Name(state).removeprefix("TASK_STATE_").lower()


def answer_of(task: Task) -> str:
    return "".join(part.text for artifact in task.artifacts for part in artifact.parts)


def plain(value: Any) -> Any:
    """Return a message of the client's types as JSON has it."""
    return MessageToDict(value)


async def read(events: AsyncIterator[StreamResponse], seen: SeenTask | None = None) -> SeenTask:
    """Read a stream to its end."""
    seen = seen or SeenTask()
    async for event in events:
        seen.take(event)
    return seen
