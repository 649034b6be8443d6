"""The Telegram channel, an extension that the kernel finds by the `manifest.yaml` beside it."""

import asyncio
import re
from typing import Any, ClassVar

from turnwire.channels.telegram.access import Access
from turnwire.channels.telegram.answers import AnswerPoster
from turnwire.channels.telegram.client import BotApi, Budgets, Clock, FloodError, TelegramError
from turnwire.channels.telegram.config import TelegramConfig
from turnwire.channels.telegram.dispatcher import UpdateDispatcher
from turnwire.channels.telegram.posts import Address, NewestIds, Sender
from turnwire.channels.telegram.records import Records
from turnwire.channels.telegram.updates import (
    ALLOWED_UPDATES,
    Bot,
    ReceiverHealth,
    UpdatePoller,
    UpdateWebhook,
    serve_webhook,
)
from turnwire.extensions.contract import (
    ApprovalAsk,
    ExtensionContext,
    Health,
    QuestionAsk,
    StreamingChannel,
    StreamStep,
)

_TOKEN = re.compile(r"[0-9]+:[A-Za-z0-9_-]+")
_SECRET = re.compile(r"[A-Za-z0-9_-]{1,256}")
_COMMAND_MENU = [
    {"command": "new", "description": "Begin a new conversation"},
    {"command": "stop", "description": "Stop the answer"},
    {"command": "help", "description": "What I can do"},
]
_RETRY_SECONDS = 10.0
_STOP_SECONDS = 5.0


class TelegramChannel(StreamingChannel):
    ConfigModel: ClassVar[type[TelegramConfig]] = TelegramConfig
    on_busy = "steer"

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._config = TelegramConfig.model_validate({})
        self._token = ""
        self._secret = ""
        self._open: _OpenChannel | None = None

    # Lifecycle

    async def initialize(self, context: ExtensionContext) -> None:
        await super().initialize(context)
        self._config = TelegramConfig.model_validate(dict(context.config))
        self._token = (context.get_secret("TELEGRAM_BOT_TOKEN") or "").strip()
        self._secret = (context.get_secret("TELEGRAM_WEBHOOK_SECRET") or "").strip()

    async def start(self) -> None:
        if self._problem() is not None:
            return
        # Reading the trusted certificates blocks.
        api = await asyncio.to_thread(BotApi, self._token, self._config.api_url, self._clock)
        self._open = _OpenChannel(self.context, self._config, api, self._clock)
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
            return Health("degraded", "the channel is not started")
        return self._open.health()

    def _problem(self) -> Health | None:
        """Return the setting that is missing or invalid, as a `Health`, or None."""
        if not _TOKEN.fullmatch(self._token):
            problem = "TELEGRAM_BOT_TOKEN is not " + ("a bot's token" if self._token else "set")
            return Health("unconfigured", problem, "get a token from @BotFather and set TELEGRAM_BOT_TOKEN")
        if self._config.webhook_url and not _SECRET.fullmatch(self._secret):
            hint = "set TELEGRAM_WEBHOOK_SECRET to 1 to 256 letters, digits, _ and -"
            return Health("unconfigured", "a webhook needs a secret", hint)
        return None

    def _opened(self) -> "_OpenChannel":
        if self._open is None:
            raise RuntimeError("the Telegram channel is not started")
        return self._open

    async def send_to_user(self, user_id: str, message: str) -> None:
        """Commit the message, and post it in the background. Raises LookupError if `user_id` is not a chat."""
        Address.parse(user_id)
        await self._opened().answers.send(user_id, message)

    async def send_message(self, message: str) -> None:
        chat = self._config.default_chat or self._opened().access.first_user
        if chat is None:
            raise LookupError("the channel has no recipient; set default_chat, or pair")
        await self.send_to_user(str(chat), message)

    # None of these waits for Telegram.

    async def on_stream_start(self, user_id: str) -> None:
        Address.parse(user_id)
        self._opened().answers.begin(user_id)

    async def on_stream_chunk(self, user_id: str, chunk: str) -> None:
        if (live := self._opened().answers.live(user_id)) is not None:
            live.add(chunk)

    async def on_stream_step(self, user_id: str, step: StreamStep) -> None:
        if (live := self._opened().answers.live(user_id)) is not None:
            live.add_step(step)

    async def on_stream_end(self, user_id: str, full_text: str) -> None:
        await self._opened().answers.end(user_id, full_text)

    async def on_stream_cancel(self, user_id: str, full_text: str) -> None:
        await self._opened().answers.end(user_id, full_text, stopped=True)

    async def on_stream_restart(self, user_id: str, text: str) -> bool:
        if (live := self._opened().answers.live(user_id)) is not None:
            live.restart(text)
        return True

    async def on_approval_request(self, user_id: str, ask: ApprovalAsk) -> bool:
        await self._opened().dispatcher.request_approval(user_id, ask)
        return True

    async def on_question(self, user_id: str, ask: QuestionAsk) -> bool:
        Address.parse(user_id)
        await self._opened().dispatcher.questions.show(user_id, ask)
        return True

    async def on_question_closed(self, user_id: str, ask: QuestionAsk) -> None:
        self._opened().dispatcher.close_question(user_id, ask)

    async def wait_for_delivery(self, user_id: str) -> None:
        await self._opened().answers.wait_for_delivery(user_id)


class _OpenChannel:
    """The parts of the channel that live from `start` to `stop`."""

    def __init__(self, context: ExtensionContext, config: TelegramConfig, api: BotApi, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._api = api
        self._records = Records(context.tables)
        sender = Sender(self._api, Budgets(clock), self._records, NewestIds(), clock, context.logger)
        self._receiver_health = ReceiverHealth(clock)
        self.access = Access(config, self._records, clock, context.logger)
        self.answers = AnswerPoster(context, sender, config)
        self.dispatcher = UpdateDispatcher(context, sender, self.access, self.answers)

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """The tasks that answer, post or handle something now."""
        return self.dispatcher.background.tasks | self.answers.background.tasks

    async def start(self) -> None:
        await self._records.open()
        await self.access.open()
        await self.answers.resume()

    async def stop(self) -> None:
        await self.dispatcher.background.close(_STOP_SECONDS)
        await self.answers.background.close(_STOP_SECONDS)
        await self._api.close()

    def health(self) -> Health:
        if not self.access.has_users:
            if self._config.pairing:
                hint = "send the bot /pair with the code in the server's log, or set allowed_users"
            else:
                hint = "set allowed_users to the numeric ids of users, or pairing to true"
            return Health("unconfigured", "nobody has access yet", hint)
        return self._receiver_health.check(None if self._config.webhook_url else self._config.polling_timeout)

    async def receive(self, secret: str) -> None:
        """Receive updates until the task is cancelled."""
        await self._introduce()
        handle, health, config = self.dispatcher.handle, self._receiver_health, self._config
        if config.webhook_url is None:
            await UpdatePoller(self._api, health, self._clock, config.polling_timeout).run(handle)
            return
        webhook = UpdateWebhook(secret, handle, health)
        serving = asyncio.create_task(serve_webhook(webhook, config.webhook_host, config.webhook_port))
        try:
            params = {"url": config.webhook_url, "secret_token": secret, "allowed_updates": ALLOWED_UPDATES}
            await self._call_until_done("setWebhook", params)
            await serving
        finally:
            serving.cancel()
            await asyncio.wait([serving])

    async def _introduce(self) -> None:
        me = await self._call_until_done("getMe", {})
        self.dispatcher.bot = Bot(me["id"], me.get("username", ""))
        await self._call_until_done("setMyCommands", {"commands": _COMMAND_MENU})

    async def _call_until_done(self, method: str, params: dict[str, Any]) -> Any:
        while True:
            try:
                result = await self._api.call(method, params)
                self._receiver_health.succeed()
                return result
            except TelegramError as error:
                self._receiver_health.fail(error)
                flood = error.retry_after if isinstance(error, FloodError) else 0.0
                await self._clock.sleep(max(_RETRY_SECONDS, flood))
