"""The harness of the extension tests: extensions in a folder, run in a real Turnwire."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import force_setattr

from tests.serving import quick_settings, until, within
from turnwire import Turnwire
from turnwire.extensions.calls import ExtensionLimits
from turnwire.extensions.host import ExtensionHost
from turnwire.extensions.runtime import ExtensionRuntime

BASE = """
import asyncio
from turnwire.extensions.contract import Health, StreamingChannel

class Base:
    async def initialize(self, context):
        self.context = context
        self.calls = []
    async def start(self): ...
    async def stop(self): ...
    async def destroy(self): ...
    async def health_check(self):
        return Health("running")
"""

PLAIN = (
    BASE
    + """
class Main(Base):
    async def send_to_user(self, user_id, message):
        self.calls.append(("send", user_id, message))
    async def send_message(self, message):
        self.calls.append(("message", message))
"""
)

STREAMING_METHODS = """
    async def on_stream_start(self, user_id):
        self.calls.append(("start", user_id))
    async def on_stream_chunk(self, user_id, chunk):
        self.calls.append(("chunk", user_id, chunk))
    async def on_stream_status(self, user_id, status):
        self.calls.append(("status", user_id, status))
    async def on_stream_end(self, user_id, full_text):
        self.calls.append(("end", user_id, full_text))
"""

STREAMING = PLAIN + STREAMING_METHODS

CHANNEL = STREAMING.replace("Main(Base)", "Main(Base, StreamingChannel)")
"""A channel that derives from the base class, which has the optional methods."""

LISTENER = (
    BASE
    + """
class Main(Base):
    async def initialize(self, context):
        await super().initialize(context)
        context.subscribe("user_message", self.receive_message)
        context.subscribe("agent_response", self.receive_answer)
    async def receive_message(self, payload):
        self.calls.append(("user_message", payload))
    async def receive_answer(self, payload):
        self.calls.append(("agent_response", payload))
"""
)

# For simulated time, in which a limit passes only while nothing else is left to do.
LIMITS = ExtensionLimits(
    extension_timeout=1,
    channel_timeout=1,
    health_interval=60,
    restart_delay=0.001,
    delivery_attempts=3,
    closing_patience=1,
)


def write_extension(folder: Path, id: str, code: str = BASE + "class Main(Base): ...", **manifest: Any) -> Path:
    """Write an extension. `manifest` adds fields to a minimal manifest, or removes one with None."""
    extension = folder / id
    extension.mkdir(parents=True)
    fields = {"id": id, "name": id, "version": "1", "api": "1", "entrypoint": "main:Main", **manifest}
    present = {name: value for name, value in fields.items() if value is not None}
    (extension / "manifest.yaml").write_text(yaml.safe_dump(present))
    (extension / "main.py").write_text(code)
    return extension


class Running:
    """A running Turnwire with extensions."""

    def __init__(self, turnwire: Turnwire, runtime: ExtensionRuntime) -> None:
        self.turnwire = turnwire
        self.runtime = runtime
        self.router = runtime.router

    def __getitem__(self, id: str) -> ExtensionHost:
        return self.runtime.hosts[id]

    def extension(self, id: str) -> Any:
        return self[id].extension

    def calls(self, id: str, *kinds: str) -> list[tuple[Any, ...]]:
        return [call for call in self.extension(id).calls if not kinds or call[0] in kinds]

    async def say(self, id: str, text: str = "hello", user_id: str = "ann", **more: Any) -> str:
        return await within(self.extension(id).context.handle_user_message(text, user_id, **more))

    def saying(self, id: str, text: str = "hello", user_id: str = "ann", **more: Any) -> "asyncio.Task[str]":
        return asyncio.create_task(self.say(id, text, user_id, **more))

    async def queued(self, count: int) -> None:
        """Wait until so many messages of ann have a turn and no answer yet."""

        def has_all() -> bool:
            pending = self.router.queue.pending("chat", "ann")
            return len(pending) == count and all(item.delivery.turn_id for item in pending)

        await until(has_all)

    def states(self) -> dict[str, str]:
        return {id: hosted.state for id, hosted in self.runtime.hosts.items() if hosted.found.source != "bundled"}


class GrantedLeases:
    """Leases that the test grants and takes back, instead of other processes. They are renewed every two seconds."""

    seconds = 8.0

    def __init__(self, *names: str) -> None:
        self.granted = set(names)
        self.epochs: dict[str, int] = {}
        self.released: list[str] = []

    async def claim(self, names: Sequence[str]) -> set[str]:
        return self.granted & set(names)

    async def release(self, names: Sequence[str]) -> None:
        self.released += names

    async def check(self, connection: Any, name: str, epoch: int) -> None: ...


@asynccontextmanager
async def running(
    folder: Path,
    agent: Any,
    *,
    data: Path | None = None,
    store: Any = "memory",
    limits: ExtensionLimits = LIMITS,
    attach: dict[str, Any] | None = None,
    leases: GrantedLeases | None = None,
    **settings: Any,
) -> AsyncIterator[Running]:
    """Open a Turnwire with the extensions of this folder. The data are beside it by default."""
    agents = {"agents": agent} if isinstance(agent, dict) else {"agent": agent}
    chosen = quick_settings(data or folder.parent / "data", **settings)
    turnwire = Turnwire(**agents, store=store, settings=chosen, extensions=[folder])
    if leases is not None:
        turnwire.store.leases = lambda seconds: leases  # type: ignore[method-assign]
    runtime = ExtensionRuntime(turnwire.store, turnwire.runner, [folder], chosen.data, limits=limits)
    turnwire.extensions = runtime
    force_setattr(turnwire.services, "channels", runtime.router)
    for id, extension in (attach or {}).items():
        runtime.attach(id, extension)
    async with turnwire.lifespan():
        yield Running(turnwire, runtime)
