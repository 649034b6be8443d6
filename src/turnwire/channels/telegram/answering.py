"""Messages to the agent, and answers back: which message an answer belongs to, and that it is answered once.

An answer is known by the message that it answers. After a crash the same message is brought again, its answer is
found where it was left, and what was delivered is not delivered again.
"""

import asyncio
import hashlib
import uuid
from collections import deque

from turnwire.channels.telegram.config import TelegramConfig
from turnwire.channels.telegram.delivery import Deliveries
from turnwire.channels.telegram.desk import Desk
from turnwire.channels.telegram.live import LiveAnswer
from turnwire.channels.telegram.schema import Answer
from turnwire.channels.telegram.updates import Asked
from turnwire.core.errors import ShuttingDownError, TurnwireError
from turnwire.extensions.contract import ExtensionContext

_SORRY = "Sorry, something went wrong here. Please try again."


class Answering:
    def __init__(self, context: ExtensionContext, desk: Desk, deliveries: Deliveries, config: TelegramConfig) -> None:
        self._context = context
        self._desk = desk
        self._deliveries = deliveries
        self._config = config
        self._queues: dict[str, deque[Asked]] = {}
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._live: dict[str, LiveAnswer] = {}

    # What is asked

    def ask(self, asked: Asked) -> None:
        """Brings it to the agent, after what was asked before in the same conversation."""
        user_id = asked.address.user_id
        self._queues.setdefault(user_id, deque()).append(asked)
        if user_id not in self._workers:
            self._workers[user_id] = asyncio.create_task(self._work(user_id))

    async def _work(self, user_id: str) -> None:
        queue = self._queues[user_id]
        try:
            while queue:
                await self._answer(queue[0])
                queue.popleft()
        except ShuttingDownError:
            # What is not answered stays in the records, for the next process.
            return
        finally:
            self._workers.pop(user_id, None)
        self._queues.pop(user_id, None)

    async def _answer(self, asked: Asked) -> None:
        user_id = asked.address.user_id
        try:
            text = await self._context.handle_user_message(
                asked.text, user_id, principal=f"telegram:{asked.sender_id}", message_id=asked.key
            )
        except ShuttingDownError:
            raise
        except TurnwireError as error:
            await self._apologise(asked, f"Sorry: {error}")
        except Exception:
            self._desk.logger.exception("a message could not be brought to the agent")
            await self._apologise(asked, _SORRY)
        else:
            # It may have been complete before a crash, with nobody left who would bring it.
            if (text or user_id in self._live) and not await self._desk.records.is_answered(asked.key):
                await self.end(user_id, text)
        await self._desk.records.done_with(asked.update_id)

    async def _apologise(self, asked: Asked, words: str) -> None:
        live = self._live.get(asked.address.user_id)
        begun = live.text if live is not None else ""
        await self.end(asked.address.user_id, f"{begun}\n\n{words}" if begun else words)

    async def stop(self) -> None:
        workers = list(self._workers.values())
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    # What is answered

    def begin(self, user_id: str) -> None:
        if user_id in self._live:
            self._live.pop(user_id).end("")
        answer = self._fresh(user_id)
        self._live[user_id] = LiveAnswer(self._desk, answer, self._config)
        self._deliveries.show(self._live[user_id], answer)

    def live(self, user_id: str) -> LiveAnswer | None:
        return self._live.get(user_id)

    async def end(self, user_id: str, text: str, *, stopped: bool = False) -> None:
        """Returns as soon as nothing can keep the answer from being delivered any more."""
        live = self._live.get(user_id)
        fresh = self._fresh(user_id)
        answer_id = live.answer_id if live is not None else fresh.answer_id
        answer = Answer(answer_id, user_id, "final", text, stopped, fresh.reply_to)
        is_new = await self._desk.records.finish(answer)
        if live is not None:
            self._live.pop(user_id, None)
            live.end(text)
        elif is_new:
            self._deliveries.add(answer)

    async def say(self, user_id: str, text: str, *, answer_id: str | None = None, buttons: str | None = None) -> None:
        """Says something beside the answer. The same `answer_id` again is the same, and is said once."""
        answer = Answer(answer_id or uuid.uuid4().hex, user_id, "final", text, buttons=buttons)
        if await self._desk.records.finish(answer):
            self._deliveries.add(answer, beside=True)

    async def send(self, user_id: str, text: str) -> None:
        """Says what the kernel brings whole: the answer, perhaps again, or something beside it."""
        asked, live = self._current(user_id), self._live.get(user_id)
        if asked is None:
            return await self.say(user_id, text)
        known = await self._desk.records.answer(asked.key)
        if known is not None and known.state != "live":
            if known.text and text.startswith(known.text):
                # A kernel that crashed before it could write down that it had brought the answer brings it again.
                return
        elif live is None or (live.text and text.startswith(live.text)):
            return await self.end(user_id, text)
        digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]
        await self.say(user_id, text, answer_id=f"{asked.key}#{digest}")

    async def rewrite(self, answer_id: str, text: str) -> None:
        answer = await self._desk.records.rewrite(answer_id, text)
        if answer is not None:
            self._deliveries.add(answer, beside=True)

    def _current(self, user_id: str) -> Asked | None:
        queue = self._queues.get(user_id)
        return queue[0] if queue else None

    def _fresh(self, user_id: str) -> Answer:
        asked = self._current(user_id)
        if asked is None:
            return Answer(uuid.uuid4().hex, user_id, "live")
        reply_to = None if asked.address.is_private else asked.message_id
        return Answer(asked.key, user_id, "live", reply_to=reply_to)
