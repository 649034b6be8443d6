"""Updates from Telegram: reading them, and receiving them by long polling or by a webhook.

In a group, a message is for the bot only if it mentions the bot, replies to it, or is a command.
"""

import asyncio
import hmac
import socket
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import uvicorn
from msgspec import Struct, field

from turnwire.channels.telegram.client import BotApi, Clock, ConflictError, FloodError, TelegramError, TokenError
from turnwire.channels.telegram.config import TelegramConfig
from turnwire.channels.telegram.posts import Address
from turnwire.core.backoff import Backoff
from turnwire.extensions.contract import Health

ALLOWED_UPDATES = ("message", "callback_query", "stopped_message_generation")

_COMMANDS = ("start", "help", "new", "stop", "pair")
_COMMAND_MENU = [
    {"command": "new", "description": "Begin a new conversation"},
    {"command": "stop", "description": "Stop the answer"},
    {"command": "help", "description": "What I can do"},
]
_SILENT_SECONDS = 120.0
_MAX_BODY_BYTES = 1024 * 1024
_BACKOFF = Backoff(first=1.0, longest=60.0)


class Bot(Struct, frozen=True):
    id: int
    username: str = ""


HandleUpdates = Callable[[Sequence[dict[str, Any]], Bot], Awaitable[None]]


class IncomingFile(Struct, frozen=True, kw_only=True):
    """A photo or document of a message, which `BotApi.download` reads."""

    file_id: str
    media_type: str
    name: str | None = None


class IncomingMessage(Struct, frozen=True, kw_only=True):
    """A message from a person. `text` is without the bot's name; `command` without its slash."""

    update_id: int
    address: Address
    message_id: int
    sender_id: int
    sender: str
    text: str = ""
    command: str = ""
    file: IncomingFile | None = None
    is_for_bot: bool = True

    @property
    def key(self) -> str:
        """The id of the message for the kernel: the same however often Telegram sends it."""
        return f"{self.address.chat_id}:{self.message_id}"


class ButtonPress(Struct, frozen=True, kw_only=True):
    update_id: int
    query_id: str
    address: Address
    sender_id: int
    sender: str
    action: str
    target: str


class DraftStopped(Struct, frozen=True, kw_only=True):
    update_id: int
    address: Address
    draft_id: str


Update = IncomingMessage | ButtonPress | DraftStopped


# Telegram's own types, as far as they are read.


class _User(Struct):
    id: int
    first_name: str = ""
    username: str = ""
    is_bot: bool = False


class _Chat(Struct):
    id: int
    type: str = ""


class _Entity(Struct):
    type: str
    offset: int
    length: int
    user: _User | None = None


class _Photo(Struct):
    file_id: str


class _Document(Struct):
    file_id: str
    file_name: str | None = None
    mime_type: str | None = None


class _Message(Struct):
    message_id: int
    chat: _Chat
    sender: _User | None = field(default=None, name="from")
    text: str = ""
    caption: str = ""
    entities: list[_Entity] = []
    caption_entities: list[_Entity] = []
    photo: list[_Photo] = []
    document: _Document | None = None
    message_thread_id: int | None = None
    is_topic_message: bool = False
    reply_to_message: "_Message | None" = None

    @property
    def address(self) -> Address:
        # In groups without topics, threads of replies have ids too.
        return Address(self.chat.id, self.message_thread_id if self.is_topic_message else None)

    @property
    def file(self) -> IncomingFile | None:
        if self.photo:
            # Telegram makes JPEGs of photos, and the last one is the largest.
            return IncomingFile(file_id=self.photo[-1].file_id, media_type="image/jpeg", name="photo.jpg")
        if (document := self.document) is None:
            return None
        media_type = document.mime_type or "application/octet-stream"
        return IncomingFile(file_id=document.file_id, media_type=media_type, name=document.file_name)


class _Query(Struct):
    id: str
    sender: _User = field(name="from")
    message: _Message | None = None
    data: str = ""


class _Stopped(Struct):
    chat: _Chat
    # Telegram sends this number as a string.
    draft_id: str | int
    message_thread_id: int | None = None


class _Update(Struct):
    update_id: int
    message: _Message | None = None
    callback_query: _Query | None = None
    stopped_message_generation: _Stopped | None = None


def read_update(body: dict[str, Any], bot: Bot) -> Update | None:
    """Return the update, or None for one of the kinds that Telegram adds all the time."""
    try:
        update = msgspec.convert(body, _Update)
    except msgspec.ValidationError:
        return None
    if update.message is not None and update.message.sender is not None and not update.message.sender.is_bot:
        return _message(update.update_id, update.message, update.message.sender, bot)
    query = update.callback_query
    if query is not None and query.message is not None:
        action, _, target = query.data.partition(":")
        return ButtonPress(
            update_id=update.update_id,
            query_id=query.id,
            address=query.message.address,
            sender_id=query.sender.id,
            sender=query.sender.first_name,
            action=action,
            target=target,
        )
    stopped = update.stopped_message_generation
    if stopped is not None:
        address = Address(stopped.chat.id, stopped.message_thread_id)
        return DraftStopped(update_id=update.update_id, address=address, draft_id=str(stopped.draft_id))
    return None


def _message(update_id: int, message: _Message, sender: _User, bot: Bot) -> IncomingMessage:
    text = message.text or message.caption
    text, is_mentioned = _without_name(text, message.entities or message.caption_entities, bot)
    command, text, for_other = _command(text, bot)
    return IncomingMessage(
        update_id=update_id,
        address=message.address,
        message_id=message.message_id,
        sender_id=sender.id,
        sender=sender.first_name or sender.username,
        text=text,
        command=command,
        file=message.file,
        is_for_bot=not for_other and (message.chat.id > 0 or is_mentioned or bool(command) or _is_reply(message, bot)),
    )


def _without_name(text: str, entities: list[_Entity], bot: Bot) -> tuple[str, bool]:
    """Return the text without mentions of the bot, and True if there was one."""
    is_mentioned = False
    for entity in sorted(entities, key=lambda entity: -entity.offset):
        before, named, after = _cut_out(text, entity)
        by_name = entity.type == "mention" and named.casefold() == f"@{bot.username}".casefold()
        if by_name or (entity.type == "text_mention" and entity.user is not None and entity.user.id == bot.id):
            is_mentioned = True
            text = f"{before.rstrip()} {after.lstrip()}"
    return text.strip(), is_mentioned


def _cut_out(text: str, entity: _Entity) -> tuple[str, str, str]:
    """Return the text before an entity, in it and after it. Entities are counted in UTF-16 units."""
    units = text.encode("utf-16-le", "surrogatepass")
    start, end = entity.offset * 2, (entity.offset + entity.length) * 2
    before, named, after = (
        part.decode("utf-16-le", "replace") for part in (units[:start], units[start:end], units[end:])
    )
    return before, named, after


def _command(text: str, bot: Bot) -> tuple[str, str, bool]:
    """Return the command, the text after it, and True if it is for another bot. An unknown command is plain text."""
    if not text.startswith("/"):
        return "", text, False
    word, *rest = text.split(maxsplit=1)
    name, _, addressee = word[1:].partition("@")
    if addressee and addressee.casefold() != bot.username.casefold():
        return "", text, True
    if name.casefold() in _COMMANDS:
        return name.casefold(), "".join(rest).strip(), False
    return "", text, False


def _is_reply(message: _Message, bot: Bot) -> bool:
    replied = message.reply_to_message
    if replied is None or replied.sender is None or replied.sender.id != bot.id:
        return False
    # In a topic that the bot has opened, every message seems to reply to the opening.
    return not (message.is_topic_message and replied.message_id == message.message_thread_id)


# Receiving


class UpdateReceiver:
    """Receives updates by long polling, or by a webhook if the configuration has one."""

    def __init__(self, api: BotApi, clock: Clock, config: TelegramConfig, secret: str, handle: HandleUpdates) -> None:
        self._api = api
        self._clock = clock
        self._config = config
        self._secret = secret
        self._handle = handle
        self._bot = Bot(0)
        self._last_success = clock.now()
        self._error: TelegramError | None = None

    def health(self) -> Health:
        match self._error:
            case TokenError():
                return Health("failed", "Telegram knows no bot with this token", "get one from @BotFather")
            case ConflictError():
                hint = "stop the other process, or give each a bot of its own"
                return Health("degraded", "another process receives this bot's updates with the same token", hint)
            case None:
                pass
            case _:
                return Health("degraded", f"Telegram cannot be reached: {self._error}")
        # A webhook is silent until a person writes.
        silence = 0.0 if self._config.webhook_url else self._clock.now() - self._last_success
        if silence > self._config.polling_timeout + _SILENT_SECONDS:
            return Health("degraded", "Telegram has not answered for some minutes")
        return Health("running")

    async def run(self) -> None:
        """Receive updates until the task is cancelled. Raises what `handle` raises, and OSError if a port is taken."""
        me = await self._call_until_done("getMe", {})
        self._bot = Bot(me["id"], me.get("username", ""))
        await self._call_until_done("setMyCommands", {"commands": _COMMAND_MENU})
        if self._config.webhook_url is None:
            return await self._poll()
        serving = asyncio.create_task(self._serve_webhook())
        try:
            params = {"url": self._config.webhook_url, "secret_token": self._secret, "allowed_updates": ALLOWED_UPDATES}
            await self._call_until_done("setWebhook", params)
            await serving
        finally:
            serving.cancel()
            await asyncio.wait([serving])

    def _succeed(self) -> None:
        self._last_success, self._error = self._clock.now(), None

    async def _fail(self, error: TelegramError, failures: int) -> None:
        """Note the error, and wait before the next attempt."""
        self._error = error
        flood = error.retry_after if isinstance(error, FloodError) else 0.0
        await self._clock.sleep(max(_BACKOFF.delay(failures), flood))

    async def _call_until_done(self, method: str, params: dict[str, Any]) -> Any:
        failures = 0
        while True:
            try:
                result = await self._api.call(method, params)
                self._succeed()
                return result
            except TelegramError as error:
                failures += 1
                await self._fail(error, failures)

    async def _poll(self) -> None:
        failures = 0
        is_webhook_deleted = False
        params: dict[str, Any] = {"timeout": self._config.polling_timeout, "allowed_updates": ALLOWED_UPDATES}
        while True:
            try:
                if not is_webhook_deleted:
                    # Telegram refuses polls while a webhook is set.
                    await self._api.call("deleteWebhook")
                    is_webhook_deleted = True
                updates = await self._api.call("getUpdates", params, wait=float(self._config.polling_timeout))
            except TelegramError as error:
                failures += 1
                is_webhook_deleted = is_webhook_deleted and not isinstance(error, ConflictError)
                await self._fail(error, failures)
                continue
            await self._handle(updates, self._bot)
            # The offset makes Telegram forget the updates before it. An empty poll confirms that it has; from then on
            # no offset is sent, because after a quiet week Telegram starts counting again, perhaps lower.
            params["offset"] = max(update["update_id"] for update in updates) + 1 if updates else None
            failures = 0
            self._succeed()

    async def _serve_webhook(self) -> None:
        with socket.create_server((self._config.webhook_host, self._config.webhook_port)) as bound:
            config = uvicorn.Config(
                self._answer_webhook,
                interface="asgi3",  # uvicorn does not recognize a method.
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=1,
            )
            server = _WebhookServer(config)
            serving = asyncio.create_task(server.serve([bound]))
            try:
                await asyncio.shield(serving)
            finally:
                server.should_exit = True
                await asyncio.wait([serving], timeout=5)

    async def _answer_webhook(self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        """Answer a request, as an ASGI app: 200 when the update is committed."""
        if scope["type"] == "http":
            status = await self._receive(scope, receive)
            await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

    async def _receive(self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]]) -> int:
        """Handle a request and return the HTTP status."""
        secret = dict(scope["headers"]).get(b"x-telegram-bot-api-secret-token", b"")
        if scope["method"] != "POST":
            return 405
        if not hmac.compare_digest(secret, self._secret.encode()):
            return 401
        body = b""
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return 400
            body += message.get("body", b"")
            if len(body) > _MAX_BODY_BYTES:
                return 413
            more = message.get("more_body", False)
        try:
            update = msgspec.json.decode(body, type=dict[str, Any])
            if not isinstance(update.get("update_id"), int):
                return 400
        except msgspec.MsgspecError:
            return 400
        await self._handle([update], self._bot)
        self._succeed()
        return 200


class _WebhookServer(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        # The main server of this process handles signals.
        yield
