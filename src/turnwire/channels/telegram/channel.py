"""The Telegram channel: an extension that the kernel finds by the `manifest.yaml` beside it."""

import asyncio
import re
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from turnwire.channels.telegram.access import Access
from turnwire.channels.telegram.answers import AnswerDeliveries, Answering
from turnwire.channels.telegram.client import BotApi, TelegramError
from turnwire.channels.telegram.config import TelegramConfig
from turnwire.channels.telegram.dispatcher import UpdateDispatcher
from turnwire.channels.telegram.posts import Address, NewestIds, Sender
from turnwire.channels.telegram.rate_limits import Budgets, Clock
from turnwire.channels.telegram.records import Records
from turnwire.channels.telegram.updates import ALLOWED_UPDATES, Bot, Polling, UpdateReceiver, Webhook, listen
from turnwire.extensions.contract import ApprovalAsk, ExtensionContext, Health, StreamStep

_TOKEN = re.compile(r"[0-9]+:[A-Za-z0-9_-]+")
_SECRET = re.compile(r"[A-Za-z0-9_-]{1,256}")
_COMMANDS = {"new": "Begin a new conversation", "stop": "Stop the answer", "help": "What I can do"}
_RETRY_SECONDS = 10.0


class TelegramChannel:
    ConfigModel: ClassVar[type[TelegramConfig]] = TelegramConfig

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._context: ExtensionContext | None = None
        self._config = TelegramConfig.model_validate({})
        self._token = ""
        self._secret = ""
        self._open: _Open | None = None

    # Lifecycle

    async def initialize(self, context: ExtensionContext) -> None:
        self._context = context
        self._config = TelegramConfig.model_validate(dict(context.config))
        self._token = (context.get_secret("TELEGRAM_BOT_TOKEN") or "").strip()
        self._secret = (context.get_secret("TELEGRAM_WEBHOOK_SECRET") or "").strip()

    async def start(self) -> None:
        if self._context is None or self._problem() is not None:
            return
        context = self._context
        # Making a folder and reading the certificates that can be trusted may take a while.
        folder = await asyncio.to_thread(lambda: context.data_folder)
        api = await asyncio.to_thread(BotApi, self._token, self._config.api_url, self._clock)
        self._open = _Open(context, self._config, api, folder, self._clock)
        await self._open.start()

    async def run_background(self) -> None:
        if self._open is not None:
            await self._open.receive(self._secret)

    async def stop(self) -> None:
        if self._open is not None:
            opened, self._open = self._open, None
            await opened.stop()

    async def destroy(self) -> None:
        await self.stop()

    async def health_check(self) -> Health:
        if (problem := self._problem()) is not None:
            return problem
        if self._open is None:
            return Health("degraded", "it is not started")
        return self._open.health()

    def _problem(self) -> Health | None:
        """What has to be set before anything can work."""
        if not _TOKEN.fullmatch(self._token):
            what = "TELEGRAM_BOT_TOKEN is not " + ("a bot's token" if self._token else "set")
            return Health("unconfigured", what, "get a token from @BotFather and set TELEGRAM_BOT_TOKEN")
        if self._config.webhook_url and not _SECRET.fullmatch(self._secret):
            hint = "set TELEGRAM_WEBHOOK_SECRET to 1 to 256 letters, digits, _ and -"
            return Health("unconfigured", "a webhook needs a secret", hint)
        return None

    def _opened(self) -> "_Open":
        if self._open is None:
            raise RuntimeError("the Telegram channel is not started")
        return self._open

    # ChannelProvider

    async def send_to_user(self, user_id: str, message: str) -> None:
        """Returns when the message cannot be lost any more. Raises LookupError if `user_id` is no chat."""
        Address.parse(user_id)
        await self._opened().answering.send(user_id, message)

    async def send_message(self, message: str) -> None:
        chat = self._config.default_chat or self._opened().access.first
        if chat is None:
            raise LookupError("nobody to tell it to; set default_chat, or pair")
        await self.send_to_user(str(chat), message)

    # StreamingChannelProvider: nothing here waits for Telegram.

    async def on_stream_start(self, user_id: str) -> None:
        Address.parse(user_id)
        self._opened().answering.begin(user_id)

    async def on_stream_chunk(self, user_id: str, chunk: str) -> None:
        if (live := self._opened().answering.live(user_id)) is not None:
            live.add(chunk)

    async def on_stream_status(self, user_id: str, status: str) -> None:
        if (live := self._opened().answering.live(user_id)) is not None:
            live.say(status)

    async def on_stream_step(self, user_id: str, step: StreamStep) -> None:
        if (live := self._opened().answering.live(user_id)) is not None:
            live.take(step)

    async def on_stream_end(self, user_id: str, full_text: str) -> None:
        await self._opened().answering.end(user_id, full_text)

    async def on_stream_cancel(self, user_id: str, full_text: str) -> None:
        await self._opened().answering.end(user_id, full_text, stopped=True)

    async def on_stream_restart(self, user_id: str, text: str) -> None:
        if (live := self._opened().answering.live(user_id)) is not None:
            live.restart(text)

    # ApprovalChannel

    async def on_approval_request(self, user_id: str, ask: ApprovalAsk) -> None:
        await self._opened().front.ask_approval(user_id, ask)


class _Open:
    """Everything that lives from `start` to `stop`."""

    def __init__(
        self, context: ExtensionContext, config: TelegramConfig, api: BotApi, folder: Path, clock: Clock
    ) -> None:
        self._config = config
        self._clock = clock
        self._api = api
        self._records = Records(folder / "telegram.db")
        desk = Sender(self._api, Budgets(clock), self._records, NewestIds(), clock, context.logger)
        self._deliveries = AnswerDeliveries(desk)
        self._reception = UpdateReceiver(clock)
        self.access = Access(config, self._records, clock, context.logger)
        self.answering = Answering(context, desk, self._deliveries, config)
        self.front = UpdateDispatcher(context, desk, self.access, self.answering)

    async def start(self) -> None:
        await self.access.open()
        await self._deliveries.resume()
        if (note := await self._records.note("bot")) is not None:
            # Before anything else: the kernel may already bring answers to what an earlier process was asked.
            self.front.bot = msgspec.json.decode(note, type=Bot)
            await self.front.resume()

    async def stop(self) -> None:
        await self.front.stop()
        await self.answering.stop()
        await self._deliveries.stop()
        await self._api.close()
        await self._records.close()

    def health(self) -> Health:
        if not self.access.is_possible:
            if self._config.pairing:
                hint = "send the bot /pair with the code in the server's log, or set allowed_users"
            else:
                hint = "set allowed_users to the numeric ids of those who may, or pairing to true"
            return Health("unconfigured", "nobody may ask yet", hint)
        return self._reception.health(None if self._config.webhook_url else self._config.polling_timeout)

    async def receive(self, secret: str) -> None:
        """Takes updates until it is cancelled."""
        await self._introduce()
        if self._config.webhook_url is None:
            await Polling(self._api, self._reception, self._clock, self._config.polling_timeout).run(self.front.take)
            return
        app = Webhook(secret, self.front.take, self._reception)
        listening = asyncio.create_task(listen(app, self._config.webhook_host, self._config.webhook_port))
        try:
            params = {"url": self._config.webhook_url, "secret_token": secret, "allowed_updates": ALLOWED_UPDATES}
            await self._insist("setWebhook", params)
            await listening
        finally:
            listening.cancel()
            await asyncio.wait([listening])

    async def _introduce(self) -> None:
        me = await self._insist("getMe", {})
        bot = Bot(me["id"], me.get("username", ""))
        await self._records.set_note("bot", msgspec.json.encode(bot).decode())
        self.front.bot = bot
        commands = [{"command": name, "description": told} for name, told in _COMMANDS.items()]
        await self._insist("setMyCommands", {"commands": commands})

    async def _insist(self, method: str, params: dict[str, Any]) -> Any:
        while True:
            try:
                result = await self._api.call(method, params)
                self._reception.heard()
                return result
            except TelegramError as error:
                self._reception.failed(error)
                await self._clock.sleep(_RETRY_SECONDS)
