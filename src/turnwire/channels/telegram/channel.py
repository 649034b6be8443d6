"""The Telegram channel, an extension that the kernel finds by the `manifest.yaml` beside it."""

import asyncio
import re
from typing import ClassVar

from turnwire.channels.telegram.access import Access
from turnwire.channels.telegram.answers import AnswerPoster
from turnwire.channels.telegram.client import BotApi, Budgets, Clock
from turnwire.channels.telegram.config import TelegramConfig
from turnwire.channels.telegram.dispatcher import UpdateDispatcher
from turnwire.channels.telegram.posts import Address, NewestIds, Sender
from turnwire.channels.telegram.records import Records
from turnwire.channels.telegram.updates import UpdateReceiver
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
_STOP_SECONDS = 5.0


class TelegramChannel(StreamingChannel):
    ConfigModel: ClassVar[type[TelegramConfig]] = TelegramConfig
    on_busy = "steer"

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._config = TelegramConfig.model_validate({})
        self._token = ""
        self._secret = ""
        self._open: OpenChannel | None = None

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
        self._open = OpenChannel(self.context, self._config, api, self._clock, self._secret)
        await self._open.start()

    async def run_background(self) -> None:
        if self._open is not None:
            await self._open.receiver.run()

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

    @property
    def opened(self) -> "OpenChannel":
        """Return the parts of the started channel. Raises RuntimeError if it is not started."""
        if self._open is None:
            raise RuntimeError("the Telegram channel is not started")
        return self._open

    async def send_to_user(self, user_id: str, message: str) -> None:
        """Commit the message, and post it in the background. Raises LookupError if `user_id` is not a chat."""
        Address.parse(user_id)
        await self.opened.answers.send(user_id, message)

    async def send_message(self, message: str) -> None:
        chat = self._config.default_chat or self.opened.access.first_user
        if chat is None:
            raise LookupError("the channel has no recipient; set default_chat, or pair")
        await self.send_to_user(str(chat), message)

    # None of these waits for Telegram.

    async def on_stream_start(self, user_id: str) -> None:
        Address.parse(user_id)
        self.opened.answers.begin(user_id)

    async def on_stream_chunk(self, user_id: str, chunk: str) -> None:
        if (live := self.opened.answers.live(user_id)) is not None:
            live.add(chunk)

    async def on_stream_step(self, user_id: str, step: StreamStep) -> None:
        if (live := self.opened.answers.live(user_id)) is not None:
            live.add_step(step)

    async def on_stream_end(self, user_id: str, full_text: str) -> None:
        await self.opened.answers.end(user_id, full_text)

    async def on_stream_cancel(self, user_id: str, full_text: str) -> None:
        await self.opened.answers.end(user_id, full_text, stopped=True)

    async def on_stream_restart(self, user_id: str, text: str) -> bool:
        if (live := self.opened.answers.live(user_id)) is not None:
            live.restart(text)
        return True

    async def on_approval_request(self, user_id: str, ask: ApprovalAsk) -> bool:
        await self.opened.dispatcher.request_approval(user_id, ask)
        return True

    async def on_question(self, user_id: str, ask: QuestionAsk) -> bool:
        Address.parse(user_id)
        await self.opened.dispatcher.questions.show(user_id, ask)
        return True

    async def on_question_closed(self, user_id: str, ask: QuestionAsk) -> None:
        self.opened.dispatcher.close_question(user_id, ask)

    async def wait_for_delivery(self, user_id: str) -> None:
        await self.opened.answers.wait_for_delivery(user_id)


class OpenChannel:
    """The parts of the channel that live from `start` to `stop`."""

    def __init__(
        self, context: ExtensionContext, config: TelegramConfig, api: BotApi, clock: Clock, secret: str
    ) -> None:
        self._config = config
        self._api = api
        self.records = Records(context.tables)
        sender = Sender(self._api, Budgets(clock), self.records, NewestIds(), clock, context.logger)
        self.access = Access(config, self.records, clock, context.logger)
        self.answers = AnswerPoster(context, sender, config)
        self.dispatcher = UpdateDispatcher(context, sender, self.access, self.answers)
        self.receiver = UpdateReceiver(api, clock, config, secret, self.dispatcher.handle)

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """The tasks that answer, post or handle something now."""
        return self.dispatcher.background.tasks | self.answers.background.tasks

    async def start(self) -> None:
        await self.records.open()
        await self.access.open()
        await self.answers.resume()

    async def stop(self) -> None:
        await self.dispatcher.background.close(_STOP_SECONDS)
        await self.answers.background.close(_STOP_SECONDS)
        await self._api.close()

    def health(self) -> Health:
        if self.access.has_users:
            return self.receiver.health()
        if self._config.pairing:
            hint = "send the bot /pair with the code in the server's log, or set allowed_users"
        else:
            hint = "set allowed_users to the numeric ids of users, or pairing to true"
        return Health("unconfigured", "nobody has access yet", hint)
