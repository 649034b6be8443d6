"""The dispatcher of updates: messages go to the kernel, or answer a question; commands and buttons are handled at once.

Stop and approvals never wait behind an answer that is being made.
"""

import asyncio
import hashlib
import json
import re
import unicodedata
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from turnwire.channels.telegram.access import Access
from turnwire.channels.telegram.answers import AnswerPoster
from turnwire.channels.telegram.client import TelegramError
from turnwire.channels.telegram.markdown import escaped
from turnwire.channels.telegram.posts import Sender
from turnwire.channels.telegram.questions import QuestionForms
from turnwire.channels.telegram.updates import (
    Bot,
    ButtonPress,
    DraftStopped,
    IncomingFile,
    IncomingMessage,
    read_update,
)
from turnwire.core.errors import ShuttingDownError, StoreError, TurnwireError
from turnwire.core.log.codec import clean_text
from turnwire.core.log.files import Blob, new_blob
from turnwire.extensions.calls import Background
from turnwire.extensions.contract import ApprovalAsk, ExtensionContext, MessageReceipt, QuestionAsk

HELP = """Write to me, and I answer while you watch.

/new begins a new conversation
/stop stops the answer that is being made
/help shows this"""
_NO_FILE = "Sorry, I could not read this file. It may be too large; please try again."
_MAX_FILE_BYTES = 20 * 1024 * 1024  # The most that Telegram lets a bot read.
_SORRY = "Sorry, something went wrong here. Please try again."
_MAX_ARGUMENT_CHARS = 1500
_INVISIBLE = ("Cf", "Zl", "Zp")


class UpdateDispatcher:
    def __init__(self, context: ExtensionContext, sender: Sender, access: Access, answers: AnswerPoster) -> None:
        self._context = context
        self._sender = sender
        self._access = access
        self._answers = answers
        self._lock = asyncio.Lock()
        self.questions = QuestionForms(context, sender.records, answers)
        self.background = Background()

    async def handle(self, updates: Sequence[dict[str, Any]], bot: Bot) -> None:
        """Handle new updates in order, and return when all of them are committed.

        Raises TurnwireError for an update that could not be accepted: Telegram sends it again.
        """
        # A webhook may be called for one update twice at the same time.
        async with self._lock:
            for body in updates:
                if not await self._sender.records.is_handled(body["update_id"]):
                    await self._handle(body, bot)
                    await self._sender.records.set_handled(body["update_id"])

    async def _handle(self, body: dict[str, Any], bot: Bot) -> None:
        try:
            match update := read_update(body, bot):
                case IncomingMessage(is_for_bot=True):
                    await self._receive(update)
                case ButtonPress():
                    await self._press(update)
                case DraftStopped():
                    self._stop_draft(update)
                case _:
                    pass
        except TurnwireError:
            raise
        except Exception:
            # Received again, it would fail again, and delay all later updates.
            self._sender.logger.exception("update %d could not be handled", body["update_id"])

    async def _receive(self, message: IncomingMessage) -> None:
        self._sender.newest.note(message.address.chat_id, message.message_id)
        if not self._access.allows(message.sender_id, message.address.chat_id):
            await self._refuse(message)
        elif message.command:
            await self._run_command(message)
        elif message.text or message.file is not None:
            if message.file is not None or not await self.questions.take(message):
                await self._ask(message)
        else:
            await self._answers.notify(message.address.user_id, "I can only read text, photos and documents so far.")

    def _in_background(self, work: Coroutine[Any, Any, object]) -> None:
        async def run() -> None:
            try:
                await work
            except Exception:
                self._sender.logger.exception("an update could not be handled to its end")

        self.background.run(run())

    # Messages

    async def _ask(self, message: IncomingMessage) -> None:
        principal = f"telegram:{message.sender_id}"
        user_id = message.address.user_id
        files: list[Blob] = []
        if message.file is not None:
            try:
                files.append(await self._download(message.file))
            except TelegramError as error:
                self._sender.logger.warning("a file could not be read: %s", error)
                return await self._answers.notify(user_id, _NO_FILE)
        receipt = await self._context.accept(
            message.text, user_id, principal=principal, message_id=message.key, attachments=files
        )
        self._in_background(self._watch(message, receipt))

    async def _download(self, file: IncomingFile) -> Blob:
        name = clean_text(file.name or "")[:255] or None
        return new_blob(await self._sender.api.download(file.file_id, _MAX_FILE_BYTES), file.media_type, name)

    async def _watch(self, message: IncomingMessage, receipt: MessageReceipt) -> None:
        try:
            await receipt.answer()
        except ShuttingDownError:
            pass  # The next process answers it.
        except TurnwireError as error:
            await self._answers.apologise(message, f"Sorry: {error}")
        except Exception:
            self._sender.logger.exception("message %s could not be answered", message.key)
            await self._answers.apologise(message, _SORRY)

    # Strangers

    async def _refuse(self, message: IncomingMessage) -> None:
        user_id = message.address.user_id
        if message.command in ("pair", "start") and message.text and message.address.is_private:
            match await self._access.pair(message.text, message.sender_id):
                case "paired":
                    return await self._answers.notify(user_id, f"Welcome, {message.sender}.\n\n{HELP}")
                case "wrong":
                    return await self._answers.notify(user_id, "This is not the code.")
                case "closed":
                    pass
        if self._access.may_refuse(message.sender_id):
            text = f"Sorry, I answer only people I know. Your id is {message.sender_id}: who runs me can let you in."
            await self._answers.notify(user_id, text)

    # Commands

    async def _run_command(self, message: IncomingMessage) -> None:
        user_id = message.address.user_id
        match message.command:
            case "stop":
                # `cancel` returns when the turn has ended, which may take a while.
                self._in_background(self._stop_answer(user_id))
            case "new":
                await self._context.new_session(user_id)
                await self._answers.notify(user_id, "This is a new conversation.")
            case "pair":
                await self._answers.notify(user_id, "We know each other already.")
            case _:
                await self._answers.notify(user_id, HELP)

    async def _stop_answer(self, user_id: str) -> None:
        if not await self._context.cancel(user_id):
            await self._answers.notify(user_id, "Nothing is being answered.")

    def _stop_draft(self, stopped: DraftStopped) -> None:
        user_id = stopped.address.user_id
        live = self._answers.live(user_id)
        if live is not None and live.is_draft(stopped.draft_id):
            self._in_background(self._context.cancel(user_id))

    # Buttons

    async def _press(self, press: ButtonPress) -> None:
        if not self._access.allows(press.sender_id, press.address.chat_id):
            return self._in_background(self._reply(press, "This is not for you to decide."))
        match press.action:
            case "stop":
                self._in_background(self._press_stop(press))
            case "yes" | "no":
                reply = await self._decide(press, approved=press.action == "yes")
                self._in_background(self._reply(press, reply))
            case "choose" | "decline":
                self._in_background(self._reply(press, await self.questions.press(press)))
            case _:
                self._in_background(self._reply(press, ""))

    async def _press_stop(self, press: ButtonPress) -> None:
        live = self._answers.live(press.address.user_id)
        is_current = live is not None and live.answer.answer_id == press.target
        stopped = is_current and await self._context.cancel(press.address.user_id)
        await self._reply(press, "Stopping…" if stopped else "It is over already.")

    async def _reply(self, press: ButtonPress, text: str) -> None:
        """End the progress indicator on the button; a late reply does no harm."""
        try:
            params = {"callback_query_id": press.query_id, "text": text or None}
            await self._sender.api.call("answerCallbackQuery", params)
        except TelegramError as error:
            self._sender.logger.debug("a button press was not answered: %s", error)

    def close_question(self, user_id: str, ask: QuestionAsk) -> None:
        """Close a question after the updates that are being handled, which may be its answer."""

        async def close() -> None:
            async with self._lock:
                await self.questions.close(user_id, ask)

        self._in_background(close())

    # Approvals

    async def request_approval(self, user_id: str, ask: ApprovalAsk) -> None:
        # The same request after a crash has the same id.
        name = hashlib.sha256(f"{ask.turn_id} {ask.call_id} {ask.position}".encode()).hexdigest()[:16]
        answer_id = f"ask-{name}"
        choice = [
            {"text": "✅ Approve", "callback_data": f"yes:{answer_id}"},
            {"text": "🚫 Deny", "callback_data": f"no:{answer_id}"},
        ]
        body = (ask.turn_id, ask.call_id)
        await self._answers.notify(user_id, _question(ask), answer_id=answer_id, buttons=[choice], ask=body)

    async def _decide(self, press: ButtonPress, *, approved: bool) -> str:
        """Record the decision and return the reply to the button.

        Presses are handled one after the other, and repeating a decision changes nothing. So the request is closed
        last, and a press that Telegram sends again after a failure or a crash decides it.
        """
        answer = await self._sender.records.answer(press.target)
        if answer is None or answer.ask is None:
            return "It is decided already."
        turn_id, call_id = msgspec.json.decode(answer.ask, type=tuple[str, str])
        try:
            await self._context.decide(turn_id, call_id, approved=approved, by=f"telegram:{press.sender_id}")
        except (StoreError, ShuttingDownError):
            raise
        except TurnwireError:
            outcome = "⌛ It was too late to decide."
        else:
            outcome = f"{'✅ Approved' if approved else '🚫 Denied'} by {escaped(press.sender)}"
        await self._answers.close_ask(press.target, outcome)
        return outcome


def _question(ask: ApprovalAsk) -> str:
    arguments = _visible(json.dumps(ask.args, ensure_ascii=False, indent=1, default=str))
    hidden = len(arguments) - _MAX_ARGUMENT_CHARS
    note = f"\n\n⚠️ {hidden:,} more characters are not shown." if hidden > 0 else ""
    arguments = arguments[:_MAX_ARGUMENT_CHARS]
    # A fence longer than any run of backticks in the arguments, so that they cannot end the code block.
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", arguments)), default=0))
    reason = f"\n\n{escaped(_visible(ask.reason))}" if ask.reason else ""
    return f"🔐 May **{escaped(_visible(ask.tool))}** run?{reason}\n\n{fence}json\n{arguments}\n{fence}{note}"


def _visible(text: str) -> str:
    """Return the text with escapes for characters that would hide or reorder others: people approve what they see."""
    return "".join(
        character.encode("unicode_escape").decode() if unicodedata.category(character) in _INVISIBLE else character
        for character in text
    )
