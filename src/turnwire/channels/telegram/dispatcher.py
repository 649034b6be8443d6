"""What is done with each update: who may ask is let in, commands and buttons are obeyed at once, the rest is asked.

Stop and approvals never wait behind an answer that is being made.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import Awaitable, Sequence
from typing import Any

import msgspec

from turnwire.channels.telegram.access import Access
from turnwire.channels.telegram.answers import Answering
from turnwire.channels.telegram.client import TelegramError
from turnwire.channels.telegram.posts import Sender
from turnwire.channels.telegram.updates import Bot, DraftStopped, IncomingMessage, Pressed, read_update
from turnwire.core.errors import TurnwireError
from turnwire.extensions.contract import ApprovalAsk, ExtensionContext

HELP = """Write to me, and I answer while you watch.

/new begins a new conversation
/stop stops the answer that is being made
/help shows this"""
_MOST_ARGUMENT_CHARS = 1500


class UpdateDispatcher:
    def __init__(self, context: ExtensionContext, desk: Sender, access: Access, answering: Answering) -> None:
        self._context = context
        self._desk = desk
        self._access = access
        self._answering = answering
        self._tasks: set[asyncio.Task[None]] = set()
        self.bot: Bot | None = None

    async def take(self, updates: Sequence[dict[str, Any]]) -> None:
        """Returns when they cannot be lost any more."""
        for update in await self._desk.records.take_in(updates):
            self._dispatch(update, is_late=False)

    async def resume(self) -> None:
        """Goes on with what an earlier process has left."""
        for update in await self._desk.records.waiting():
            self._dispatch(update, is_late=True)

    def _dispatch(self, plain: dict[str, Any], *, is_late: bool) -> None:
        assert self.bot is not None
        update = read_update(plain, self.bot)
        match update:
            case IncomingMessage(is_for_bot=True):
                self._desk.newest.note(update.address.chat_id, update.message_id)
                if not self._access.allows(update.sender_id, update.address.chat_id):
                    self._soon(self._refuse(update), update.update_id)
                elif update.command:
                    self._soon(self._obey(update, is_late=is_late), update.update_id)
                elif update.text:
                    self._answering.ask(update)
                else:
                    words = "I can only read text so far."
                    self._soon(self._answering.say(update.address.user_id, words), update.update_id)
            case Pressed():
                self._soon(self._press(update, is_late=is_late), update.update_id)
            case DraftStopped() if not is_late:
                self._soon(self._stop_draft(update), update.update_id)
            case _:
                self._soon(asyncio.sleep(0), update.update_id)

    def _soon(self, work: Awaitable[None], update_id: int) -> None:
        async def act() -> None:
            try:
                await work
            except Exception:
                self._desk.logger.exception("an update could not be dealt with")
            await self._desk.records.done_with(update_id)

        task = asyncio.create_task(act())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # People who are not known

    async def _refuse(self, asked: IncomingMessage) -> None:
        user_id = asked.address.user_id
        if asked.command in ("pair", "start") and asked.text and asked.address.is_private:
            match await self._access.pair(asked.text, asked.sender_id, asked.sender):
                case "paired":
                    return await self._answering.say(user_id, f"Welcome, {asked.sender}.\n\n{HELP}")
                case "wrong":
                    return await self._answering.say(user_id, "This is not the code.")
                case "closed":
                    pass
        if self._access.may_refuse(asked.sender_id):
            words = f"Sorry, I answer only people I know. Your id is {asked.sender_id}: who runs me can let you in."
            await self._answering.say(user_id, words)

    # Commands

    async def _obey(self, asked: IncomingMessage, *, is_late: bool) -> None:
        user_id = asked.address.user_id
        match asked.command:
            case "stop":
                # What it was meant for has ended with the process that it was said to.
                if not is_late and not await self._context.cancel(user_id):
                    await self._answering.say(user_id, "Nothing is being answered.")
            case "new":
                await self._context.new_session(user_id)
                await self._answering.say(user_id, "This is a new conversation.")
            case "pair":
                await self._answering.say(user_id, "We know each other already.")
            case _:
                await self._answering.say(user_id, HELP)

    async def _stop_draft(self, stopped: DraftStopped) -> None:
        user_id = stopped.address.user_id
        live = self._answering.live(user_id)
        if live is not None and live.is_draft(stopped.draft_id):
            await self._context.cancel(user_id)

    # Buttons

    async def _press(self, pressed: Pressed, *, is_late: bool) -> None:
        if not self._access.allows(pressed.sender_id, pressed.address.chat_id):
            return await self._reply(pressed, "This is not for you to decide.")
        match pressed.action:
            case "stop" if not is_late:
                live = self._answering.live(pressed.address.user_id)
                is_current = live is not None and live.answer_id == pressed.target
                stopped = is_current and await self._context.cancel(pressed.address.user_id)
                await self._reply(pressed, "Stopping…" if stopped else "It is over already.")
            case "yes" | "no":
                await self._decide(pressed, approved=pressed.action == "yes")
            case _:
                await self._reply(pressed, "")

    async def _reply(self, pressed: Pressed, words: str) -> None:
        """Ends the little clock on the button; too late is no harm."""
        try:
            params = {"callback_query_id": pressed.query_id, "text": words or None}
            await self._desk.api.call("answerCallbackQuery", params)
        except TelegramError as error:
            self._desk.logger.debug("a button was not answered: %s", error)

    # Approvals

    async def ask_approval(self, user_id: str, ask: ApprovalAsk) -> None:
        # After a crash it is asked again, and is the same.
        name = hashlib.sha256(f"{ask.turn_id} {ask.call_id} {ask.position}".encode()).hexdigest()[:16]
        answer_id = f"ask-{name}"
        if await self._desk.records.answer(answer_id) is not None:
            return
        await self._desk.records.set_ask(answer_id, msgspec.json.encode([ask.turn_id, ask.call_id]))
        choice = [
            {"text": "✅ Approve", "callback_data": f"yes:{answer_id}"},
            {"text": "🚫 Deny", "callback_data": f"no:{answer_id}"},
        ]
        buttons = msgspec.json.encode([choice]).decode()
        await self._answering.say(user_id, _question(ask), answer_id=answer_id, buttons=buttons)

    async def _decide(self, pressed: Pressed, *, approved: bool) -> None:
        body = await self._desk.records.take_ask(pressed.target)
        if body is None:
            return await self._reply(pressed, "It is decided already.")
        turn_id, call_id = msgspec.json.decode(body, type=tuple[str, str])
        by = f"telegram:{pressed.sender_id}"
        try:
            await self._context.decide(turn_id, call_id, approved=approved, by=by)
        except TurnwireError:
            outcome = "⌛ It was too late to decide."
        except BaseException:
            # Whoever presses again may have more luck.
            await self._desk.records.set_ask(pressed.target, body)
            raise
        else:
            outcome = f"{'✅ Approved' if approved else '🚫 Denied'} by {_plain(pressed.sender)}"
        asked = await self._desk.records.answer(pressed.target)
        question = asked.text if asked is not None else ""
        await self._answering.rewrite(pressed.target, f"{question}\n\n{outcome}")
        await self._reply(pressed, outcome)


def _question(ask: ApprovalAsk) -> str:
    arguments = json.dumps(ask.args, ensure_ascii=False, indent=1, default=str)
    if len(arguments) > _MOST_ARGUMENT_CHARS:
        arguments = arguments[:_MOST_ARGUMENT_CHARS] + "…"
    # Whatever the arguments hold, it must not end the code that they are shown as.
    fence = "`" * max(3, 1 + max((len(run) for run in _backticks(arguments)), default=0))
    reason = f"\n\n{_plain(ask.reason)}" if ask.reason else ""
    return f"🔐 May **{_plain(ask.tool)}** run?{reason}\n\n{fence}json\n{arguments}\n{fence}"


def _backticks(text: str) -> list[str]:
    return re.findall("`+", text)


def _plain(text: str) -> str:
    """Without what Markdown would take for its own."""
    return "".join(f"\\{char}" if char in "\\`*_~[]<>#|!" else char for char in " ".join(text.split()))
