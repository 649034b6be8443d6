"""Answers on their way out: every one that was finished is delivered, one after the other in each conversation.

What is here is also in the records. A process that ends takes nothing with it: the next one goes on.
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from turnwire.channels.telegram.addresses import Address
from turnwire.channels.telegram.desk import Content, Desk
from turnwire.channels.telegram.failures import TelegramError
from turnwire.channels.telegram.formatted import LIMIT, Formatted, italic
from turnwire.channels.telegram.live import LiveAnswer
from turnwire.channels.telegram.markdown import render
from turnwire.channels.telegram.posting import Posting
from turnwire.channels.telegram.schema import Answer
from turnwire.channels.telegram.splitting import messages

_EMPTY = "(There was no answer.)"
_STOPPED = "⏹ Stopped"


class Deliveries:
    def __init__(self, desk: Desk) -> None:
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
