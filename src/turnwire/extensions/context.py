"""What an extension is given: the implementation of `ExtensionContext`, one for each extension."""

import logging
import os
from collections.abc import Mapping
from logging import Logger
from pathlib import Path
from types import MappingProxyType
from typing import Any

from turnwire.extensions.contract import OnChunk, OnToolCall, Subscriber, Topic
from turnwire.extensions.events import EventBus
from turnwire.extensions.host import ExtensionHost
from turnwire.extensions.router import MessageRouter


class Context:
    def __init__(
        self,
        hosted: ExtensionHost,
        router: MessageRouter,
        bus: EventBus,
        folder: Path,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._hosted = hosted
        self._router = router
        self._bus = bus
        self._folder = folder
        self._environment = environment
        self._logger = logging.getLogger(f"turnwire.extensions.{hosted.id}")

    @property
    def extension_id(self) -> str:
        return self._hosted.id

    @property
    def config(self) -> Mapping[str, Any]:
        return MappingProxyType(dict(self._hosted.config))

    @property
    def data_folder(self) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    @property
    def logger(self) -> Logger:
        return self._logger

    def get_config(self, name: str, default: Any = None) -> Any:
        return self._hosted.config.get(name, default)

    def get_secret(self, env: str) -> str | None:
        """Raises LookupError for one that the manifest does not name: people must be able to see what it reads."""
        if env not in {secret.env for secret in self._hosted.manifest.secrets}:
            raise LookupError(f"the manifest of {self._hosted.id!r} names no secret {env!r}; add it to its secrets")
        return self._environment.get(env) or None

    async def handle_user_message(
        self,
        text: str,
        user_id: str,
        *,
        principal: str | None = None,
        message_id: str | None = None,
        agent_id: str | None = None,
    ) -> str:
        return await self._router.handle_user_message(
            text,
            user_id,
            self._hosted.extension,
            principal=principal,
            message_id=message_id,
            agent_id=agent_id,
        )

    async def cancel(self, user_id: str) -> bool:
        return await self._router.cancel(self._hosted.id, user_id)

    async def decide(self, turn_id: str, call_id: str, *, approved: bool, by: str, reason: str | None = None) -> None:
        await self._router.decide(turn_id, call_id, approved=approved, by=by, reason=reason)

    async def new_session(self, user_id: str) -> None:
        await self._router.new_session(self._hosted.id, user_id)

    async def invoke_agent(self, prompt: str, agent_id: str | None = None) -> str:
        return await self._router.invoke_agent(prompt, agent_id, owner=self._hosted.id)

    async def invoke_agent_streamed(
        self, prompt: str, on_chunk: OnChunk, on_tool_call: OnToolCall | None = None, agent_id: str | None = None
    ) -> str:
        return await self._router.invoke_agent_streamed(prompt, on_chunk, on_tool_call, agent_id, owner=self._hosted.id)

    async def send_to_user(self, channel_id: str, user_id: str, message: str) -> None:
        await self._router.send_to_user(channel_id, user_id, message)

    async def send_message(self, channel_id: str, message: str) -> None:
        await self._router.send_message(channel_id, message)

    def subscribe(self, topic: Topic, subscriber: Subscriber) -> None:
        self._bus.subscribe(self._hosted.id, topic, subscriber)
