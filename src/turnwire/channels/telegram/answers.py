"""Messages to the agent, and answers back: which message an answer belongs to, and that it is answered once.

An answer is known by the message that it answers. After a crash the same message is brought again, its answer is
found where it was left, and what was delivered is not delivered again.
"""

import asyncio
import hashlib
import uuid
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec

from turnwire.channels.telegram.client import TelegramError
from turnwire.channels.telegram.config import TelegramConfig
from turnwire.channels.telegram.live_answer import LiveAnswer
from turnwire.channels.telegram.markdown import LIMIT, Formatted, italic, messages, render
from turnwire.channels.telegram.posts import Address, Content, Posting, Sender
from turnwire.channels.telegram.records import Answer
from turnwire.channels.telegram.updates import IncomingMessage
from turnwire.core.errors import ShuttingDownError, TurnwireError
from turnwire.extensions.contract import ExtensionContext

# Answers on their way out: every one that was finished is delivered, one after the other in each conversation.


_EMPTY = "(There was no answer.)"
_STOPPED = "⏹ Stopped"


class AnswerDeliveries:
    def __init__(self, desk: Sender) -> None:
        self._desk = desk
        self._latest: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def resume(self) -> None:
        """Goes on with what an earlier process has left."""
        await self._desk.load()
        for answer in await self._desk.records.undelivered():
            self.add(answer)

    def add(self, answer: Answer, *, beside: bool = False) -> None:
        """Delivers what is in the records. What is said beside the answers does not wait for one that is being made:
        it may be what that one waits for.
        """
        line = f"beside {answer.user_id}" if beside else answer.user_id
        self._follow(line, lambda: self._deliver(answer.answer_id))

    def show(self, live: LiveAnswer, answer: Answer) -> None:
        """Shows an answer while it is made, and then delivers it."""
        self._follow(answer.user_id, lambda: self._live(live, answer))

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _follow(self, line: str, work: Callable[[], Awaitable[None]]) -> None:
        before = self._latest.get(line)

        async def in_turn() -> None:
            if before is not None:
                await asyncio.wait([before])
            try:
                await work()
            except Exception:
                # It stays in the records, and is tried again by the next process.
                self._desk.logger.exception("an answer could not be dealt with")

        task = asyncio.create_task(in_turn())
        self._latest[line] = task
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._forget(line, ended))

    def _forget(self, line: str, ended: asyncio.Task[None]) -> None:
        self._tasks.discard(ended)
        if self._latest.get(line) is ended:
            del self._latest[line]

    async def _live(self, live: LiveAnswer, answer: Answer) -> None:
        known = await self._desk.records.begin(answer)
        try:
            # It may be complete already, or have been before a crash.
            if known.state == "live":
                await live.run()
        except Exception:
            # Looks must not cost the answer.
            self._desk.logger.exception("the answer was not shown while it was made")
        await live.ended()
        await self._deliver(answer.answer_id)

    async def _deliver(self, answer_id: str) -> None:
        answer = await self._desk.records.answer(answer_id)
        if answer is None or answer.state != "final":
            return
        posting = Posting(self._desk, answer_id, Address.parse(answer.user_id), answer.reply_to)
        await posting.load()
        try:
            await posting.deliver(_contents(answer))
        except TelegramError as error:
            self._desk.logger.warning("an answer to %s cannot be delivered: %s", answer.user_id, error)
            await self._desk.records.settle(answer_id, "refused")
        else:
            await self._desk.records.settle(answer_id, "delivered")


def _contents(answer: Answer) -> list[Content]:
    pieces = messages(render(answer.text or ""))
    if answer.stopped:
        last = pieces.pop() if pieces else Formatted()
        mark = italic(_STOPPED if last.is_blank else f"\n\n{_STOPPED}")
        pieces += [last.followed_by(mark)] if last.units + mark.units <= LIMIT else [last, italic(_STOPPED)]
    contents = [Content(piece) for piece in pieces or [Formatted(_EMPTY)]]
    if answer.buttons is not None:
        contents[-1] = Content(contents[-1].body, msgspec.json.decode(answer.buttons))
    return contents


_SORRY = "Sorry, something went wrong here. Please try again."


class Answering:
    def __init__(
        self, context: ExtensionContext, desk: Sender, deliveries: AnswerDeliveries, config: TelegramConfig
    ) -> None:
        self._context = context
        self._desk = desk
        self._deliveries = deliveries
        self._config = config
        self._queues: dict[str, deque[IncomingMessage]] = {}
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._live: dict[str, LiveAnswer] = {}

    # What is asked

    def ask(self, asked: IncomingMessage) -> None:
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

    async def _answer(self, asked: IncomingMessage) -> None:
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

    async def _apologise(self, asked: IncomingMessage, words: str) -> None:
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

    def _current(self, user_id: str) -> IncomingMessage | None:
        queue = self._queues.get(user_id)
        return queue[0] if queue else None

    def _fresh(self, user_id: str) -> Answer:
        asked = self._current(user_id)
        if asked is None:
            return Answer(uuid.uuid4().hex, user_id, "live")
        reply_to = None if asked.address.is_private else asked.message_id
        return Answer(asked.key, user_id, "live", reply_to=reply_to)
