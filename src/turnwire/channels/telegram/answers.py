"""Answers and notices: each is committed first, and then posted once, with retries.

An answer has the id of the message that it answers. After a crash the kernel delivers the answer again:
the channel continues in the messages that it has begun, and does not post a posted answer twice.
"""

import asyncio
import hashlib
import uuid
from collections.abc import Coroutine
from itertools import groupby
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from turnwire.channels.telegram.client import TelegramError
from turnwire.channels.telegram.config import TelegramConfig
from turnwire.channels.telegram.live_answer import LiveAnswer
from turnwire.channels.telegram.markdown import LIMIT, Formatted, italic, messages, render
from turnwire.channels.telegram.posts import BACKOFF, Address, Buttons, Content, Posting, Sender
from turnwire.channels.telegram.records import Answer
from turnwire.channels.telegram.updates import IncomingMessage
from turnwire.core.errors import ShuttingDownError, StoreError
from turnwire.extensions.calls import Background
from turnwire.extensions.contract import STOPPED, ExtensionContext

_EMPTY = "(There was no answer.)"
_STOPPED = "⏹ Stopped"


class AnswerPoster:
    """Posts the answers that the kernel delivers, and notices beside them.

    The kernel starts an answer when the one before it has been posted (`wait_for_delivery`), so there is at most one
    task for each user. A notice does not wait for an answer, because the answer may wait for the notice: an approval.
    """

    def __init__(self, context: ExtensionContext, sender: Sender, config: TelegramConfig) -> None:
        self._context = context
        self._sender = sender
        self._config = config
        self._live: dict[str, LiveAnswer] = {}
        self._posting: dict[str, asyncio.Task[None]] = {}
        self._notice_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._answer_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.background = Background()

    async def resume(self) -> None:
        """Post the committed answers that an earlier process has not posted."""
        await self._sender.load()
        left = sorted(await self._sender.records.undelivered(), key=lambda answer: answer.user_id)
        for user_id, answers in groupby(left, lambda answer: answer.user_id):
            self._post(user_id, self._deliver_all([answer.answer_id for answer in answers]))

    # Answers

    async def wait_for_delivery(self, user_id: str) -> None:
        self._abandon(user_id)
        if (posting := self._posting.get(user_id)) is not None:
            await asyncio.wait([posting])

    def begin(self, user_id: str) -> None:
        """Show the answer while it is made, and post it when it is complete."""
        self._abandon(user_id)
        answer = self._new_answer(user_id)
        live = self._live[user_id] = LiveAnswer(self._sender, answer, self._config)
        self._post(user_id, self._show(live, answer))

    def live(self, user_id: str) -> LiveAnswer | None:
        return self._live.get(user_id)

    async def end(self, user_id: str, text: str, *, stopped: bool = False) -> None:
        """Commit the final text, and return when it is committed: it is posted in the background."""
        live = self._live.get(user_id)
        answer = live.answer if live is not None else self._new_answer(user_id)
        answer = msgspec.structs.replace(answer, state="final", text=text, stopped=stopped)
        is_new = await self._sender.records.finish(answer)
        if live is not None:
            self._live.pop(user_id, None)
            live.end(text)
        elif is_new:
            self._post(user_id, self._deliver(answer.answer_id))
        if not is_new:
            await self._add(answer.answer_id, user_id, text)

    async def send(self, user_id: str, text: str) -> None:
        """Send a whole text from the kernel: the current answer, perhaps again, or a notice beside it."""
        current, live = self._context.current_message(user_id), self._live.get(user_id)
        if current is None:
            return await self.notify(user_id, text)
        answer = await self._sender.records.answer(current.message_id)
        is_open = answer is None or answer.state in ("live", "final")
        if is_open and (live is None or (live.text and text.startswith(live.text))):
            return await self.end(user_id, text)
        await self._add(current.message_id, user_id, text)

    async def _add(self, answer_id: str, user_id: str, text: str) -> None:
        """Post a text beside an answer, unless it is the answer itself, which the kernel delivers again."""
        answer = await self._sender.records.answer(answer_id)
        # The kernel's text of an answer that was stopped before its first word.
        known = answer and (answer.text or (STOPPED if answer.stopped else None))
        if not known or not text.startswith(known):
            digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]
            await self.notify(user_id, text, answer_id=f"{answer_id}#{digest}")

    async def apologise(self, message: IncomingMessage, text: str) -> None:
        """Stop showing an answer that the kernel has given up, and say so. The next process may still post it."""
        user_id = message.address.user_id
        live = self._live.get(user_id)
        if live is not None and live.answer.answer_id == message.key:
            self._abandon(user_id)
        await self.notify(user_id, text, answer_id=f"{message.key}#sorry")

    def _abandon(self, user_id: str) -> None:
        """Stop showing an answer that the kernel has given up; without a final text it is not posted."""
        if (live := self._live.pop(user_id, None)) is not None:
            live.end("")

    def _new_answer(self, user_id: str) -> Answer:
        current = self._context.current_message(user_id)
        if current is None:
            return Answer(uuid.uuid4().hex, user_id, "live")
        in_group = not Address.parse(user_id).is_private
        reply_to = int(current.message_id.rpartition(":")[2]) if in_group else None
        return Answer(current.message_id, user_id, "live", reply_to=reply_to)

    # Notices

    async def notify(
        self,
        user_id: str,
        text: str,
        *,
        answer_id: str | None = None,
        buttons: Buttons | None = None,
        ask: object = None,
    ) -> None:
        """Commit a notice and post it. The same `answer_id` again is the same notice, and is posted once.

        `ask` is what its buttons decide; it is open until `close_ask`.
        """
        answer = Answer(
            answer_id or uuid.uuid4().hex,
            user_id,
            "final",
            text,
            buttons=msgspec.json.encode(buttons).decode() if buttons else None,
            ask=msgspec.json.encode(ask).decode() if ask else None,
        )
        if await self._sender.records.finish(answer):
            self._post_notice(answer)

    async def close_ask(self, answer_id: str, outcome: str, update_id: int | None = None) -> None:
        """Add the outcome to an approval request or a question, and remove its buttons."""
        answer = await self._sender.records.close_ask(answer_id, outcome, update_id)
        if answer is not None:
            self._post_notice(answer)

    def _post_notice(self, answer: Answer) -> None:
        lock = self._notice_locks.setdefault(answer.user_id, asyncio.Lock())

        async def post() -> None:
            async with lock:
                await self._deliver(answer.answer_id)

        self._run(post())

    # Tasks

    def _post(self, user_id: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._posting[user_id] = self._run(work)
        task.add_done_callback(lambda ended: self._posting.get(user_id) is ended and self._posting.pop(user_id))

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self.background.run(self._logged(work))

    async def _logged(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except ShuttingDownError:
            pass  # Another process runs the channel now.
        except Exception:
            # It stays in the records, and the next process tries again.
            self._sender.logger.exception("an answer could not be posted")

    async def _show(self, live: LiveAnswer, answer: Answer) -> None:
        posting: Posting | None = None
        try:
            # The answer may be complete already, perhaps since before a crash.
            if (await self._sender.records.begin(answer)).state == "live":
                await live.run()
                posting = live.posting
        except ShuttingDownError:
            raise
        except Exception:
            # The display must not cost the answer.
            self._sender.logger.exception("the answer was not shown while it was made")
        await live.ended()
        await self._deliver(answer.answer_id, posting)

    async def _deliver_all(self, answer_ids: list[str]) -> None:
        for answer_id in answer_ids:
            await self._logged(self._deliver(answer_id))

    async def _deliver(self, answer_id: str, posting: Posting | None = None) -> None:
        """Post an answer that is final, and continue in the messages of `posting`, which has shown it so far.

        Two tasks may try it: the second finds that the first has done it.
        """
        failures = 0
        while True:
            try:
                async with self._answer_locks.setdefault(answer_id, asyncio.Lock()):
                    answer = await self._sender.records.answer(answer_id)
                    if answer is not None and answer.state == "final":
                        await self._post_all(answer, posting)
                return
            except StoreError as error:
                failures += 1
                self._sender.logger.warning("an answer will be posted later: %s", error)
                await BACKOFF.wait(failures, self._sender.clock.sleep)

    async def _post_all(self, answer: Answer, posting: Posting | None) -> None:
        records = self._sender.records
        if posting is None:
            posting = Posting(self._sender, answer.answer_id, Address.parse(answer.user_id), answer.reply_to)
            await posting.load()
        try:
            await posting.deliver(_contents(answer))
        except TelegramError as error:
            self._sender.logger.warning("the answer to %s cannot be delivered: %s", answer.user_id, error)
            await records.set_state(answer, "refused")
        else:
            await records.set_state(answer, "delivered")


def _contents(answer: Answer) -> list[Content]:
    pieces = messages(render(answer.text or ""))
    if answer.stopped:
        last = pieces.pop() if pieces else Formatted()
        note = italic(_STOPPED if last.is_blank else f"\n\n{_STOPPED}")
        pieces += [last.followed_by(note)] if last.units + note.units <= LIMIT else [last, italic(_STOPPED)]
    contents = [Content(piece) for piece in pieces or [Formatted(_EMPTY)]]
    if answer.buttons is not None:
        contents[-1] = Content(contents[-1].body, msgspec.json.decode(answer.buttons))
    return contents
