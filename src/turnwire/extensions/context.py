"""The implementation of `ExtensionContext`: what an extension can ask of the kernel."""

import logging
import os
from collections.abc import Mapping, Sequence
from logging import Logger
from pathlib import Path
from types import MappingProxyType
from typing import Any

from turnwire.core.errors import ShuttingDownError
from turnwire.core.log.files import Blob
from turnwire.extensions.contract import MessageReceipt, OnChunk, OnToolCall, Subscriber, Topic
from turnwire.extensions.events import EventBus
from turnwire.extensions.host import ExtensionHost
from turnwire.extensions.router import MessageRouter
from turnwire.extensions.tables import ExtensionTables


class Context:
    """The implementation of `ExtensionContext`, one for each extension."""

    def __init__(
        self,
        host: ExtensionHost,
        router: MessageRouter,
        bus: EventBus,
        folder: Path,
        tables: ExtensionTables,
    ) -> None:
        self._host = host
        self._tables = tables
        self._router = router
        self._bus = bus
        self._folder = folder
        self._logger = logging.getLogger(f"turnwire.extensions.{host.id}")

    @property
    def extension_id(self) -> str:
        return self._host.id

    @property
    def config(self) -> Mapping[str, Any]:
        return MappingProxyType(dict(self._host.config))

    @property
    def data_folder(self) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    @property
    def tables(self) -> ExtensionTables:
        return self._tables

    @property
    def logger(self) -> Logger:
        return self._logger

    def get_config(self, name: str, default: Any = None) -> Any:
        return self._host.config.get(name, default)

    def get_secret(self, env: str) -> str | None:
        """Return a secret. Raises LookupError if the manifest does not name it, so that people can see what is read."""
        if env not in {secret.env for secret in self._host.manifest.secrets}:
            raise LookupError(f"the manifest of {self._host.id!r} names no secret {env!r}; add it to its secrets")
        return os.environ.get(env) or None

    async def accept(
        self,
        text: str,
        user_id: str,
        *,
        principal: str | None = None,
        message_id: str | None = None,
        agent_id: str | None = None,
        attachments: Sequence[Blob] = (),
    ) -> MessageReceipt:
        self._check_channel()
        return await self._router.accept(
            text,
            user_id,
            self._host.id,
            principal=principal,
            message_id=message_id,
            agent_id=agent_id,
            attachments=attachments,
        )

    def current_message(self, user_id: str) -> MessageReceipt | None:
        return self._router.current_message(self._host.id, user_id)

    async def handle_user_message(
        self,
        text: str,
        user_id: str,
        *,
        principal: str | None = None,
        message_id: str | None = None,
        agent_id: str | None = None,
    ) -> str:
        self._check_channel()
        return await self._router.handle_user_message(
            text, user_id, self._host.id, principal=principal, message_id=message_id, agent_id=agent_id
        )

    def _check_channel(self) -> None:
        """Raise ShuttingDownError if this process does not run the channel of the extension any more."""
        if "channel" in self._host.provides and self._host.id not in self._router.channels:
            raise ShuttingDownError

    async def cancel(self, user_id: str) -> bool:
        return await self._router.cancel(self._host.id, user_id)

    async def decide(self, turn_id: str, call_id: str, *, approved: bool, by: str, reason: str | None = None) -> None:
        await self._router.decide(turn_id, call_id, approved=approved, by=by, reason=reason)

    async def reply(
        self,
        turn_id: str,
        question_id: str,
        value: Any = None,
        *,
        by: str,
        declined: bool = False,
        reason: str | None = None,
    ) -> None:
        await self._router.reply(turn_id, question_id, value, by=by, declined=declined, reason=reason)

    async def new_session(self, user_id: str) -> None:
        await self._router.new_session(self._host.id, user_id)

    async def invoke_agent(self, prompt: str, agent_id: str | None = None) -> str:
        return await self._router.invoke_agent(prompt, agent_id, owner=self._host.id)

    async def invoke_agent_streamed(
        self, prompt: str, on_chunk: OnChunk, on_tool_call: OnToolCall | None = None, agent_id: str | None = None
    ) -> str:
        return await self._router.invoke_agent_streamed(prompt, on_chunk, on_tool_call, agent_id, owner=self._host.id)

    async def speak_to_user(
        self,
        channel_id: str,
        user_id: str,
        prompt: str,
        *,
        message_id: str | None = None,
        agent_id: str | None = None,
    ) -> str:
        return await self._router.handle_user_message(
            prompt, user_id, channel_id, message_id=message_id, agent_id=agent_id
        )

    async def send_to_user(self, channel_id: str, user_id: str, message: str) -> None:
        await self._router.send_to_user(channel_id, user_id, message)

    async def send_message(self, channel_id: str, message: str) -> None:
        await self._router.send_message(channel_id, message)

    def subscribe(self, topic: Topic, subscriber: Subscriber) -> None:
        self._bus.subscribe(self._host.id, topic, subscriber)
