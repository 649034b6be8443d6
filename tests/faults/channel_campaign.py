"""Kill -9 the server that runs the Telegram channel, in the middle of answers: another must deliver each answer once.

The servers share a PostgreSQL database, and the simulator of Telegram says what people see. Some kills come while the
answer grows, others while its last message is on its way. A server that is paused for longer than its lease must not
change what another has written meanwhile.
"""

import asyncio
import os
import random
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import asyncpg

from tests.channels.telegram.bot_api import TOKEN, BotApi
from tests.process.server_process import ServerProcess, served
from tests.process.shared_database import temporary_database
from turnwire.channels.telegram.client import Clock

LEASE = 6.0
"""So long that a busy machine renews it in time: a turn that is begun again three times is ended."""
PATIENCE = 120.0
_UNDELIVERED = {
    "answers of the kernel": "SELECT 1 FROM turnwire.channel_delivery WHERE delivered_at IS NULL",
    "messages of the channel": "SELECT 1 FROM turnwire.telegram_answers WHERE state NOT IN ('delivered', 'refused')",
}
AGENT = '''
import asyncio

class Reciting:
    """Yield an answer that takes about a second; resumable in another process."""

    on_crash = "resume"

    async def answer(self, turn):
        for number in range(12):
            yield f"{turn.message} has the line number {number}.\\n\\n"
            await asyncio.sleep(0.1)
        yield f"That was {turn.message}."

reciting = Reciting()
'''


@dataclass
class ChannelVerdict:
    kills: int = 0
    answers: int = 0
    takeovers: list[float] = field(default_factory=list)
    """Seconds from a kill until another process has the lease."""
    broken: list[str] = field(default_factory=list)


def answer_to(message: str) -> str:
    lines = [f"{message} has the line number {number}." for number in range(12)]
    return "\n\n".join([*lines, f"That was {message}."])


async def run_channel_campaign(
    *,
    kills: int,
    seed: int,
    servers: int,
    folder: Path,
    report: Callable[[str], None],
    people: int = 2,
    pauses: int = 0,
) -> ChannelVerdict:
    with temporary_database() as url:
        async with BotApi(Clock(), PATIENCE) as api, AsyncExitStack() as stack:
            campaign = _ChannelCampaign(url, api, random.Random(seed), folder, stack, people)
            await campaign.start(servers)
            for number in range(1, kills + 1):
                await campaign.round(number)
                report(f"kill {number} of {kills}: {campaign.verdict.takeovers[-1]:.1f} s")
                if campaign.verdict.broken:
                    break
            for number in range(kills + 1, kills + pauses + 1):
                if not campaign.verdict.broken:
                    await campaign.pause(number)
                    report(f"pause {number - kills} of {pauses}")
            return campaign.verdict


class _ChannelCampaign:
    def __init__(
        self, url: str, api: BotApi, choices: random.Random, folder: Path, stack: AsyncExitStack, people: int
    ) -> None:
        self.verdict = ChannelVerdict()
        self._url = url
        self._api = api
        self._choices = choices
        self._folder = folder
        self._stack = stack
        self._people = [1000 + number for number in range(people)]
        self._expected: dict[int, list[str]] = {person: [] for person in self._people}
        self._servers: dict[int, ServerProcess] = {}
        self._started = 0

    async def start(self, count: int) -> None:
        await asyncio.gather(*(self._start_server() for _ in range(count)))

    async def _start_server(self) -> None:
        self._started += 1
        data = self._folder / f"server-{self._started}" / "data"
        data.mkdir(parents=True)
        (data.parent / "reciting_agent.py").write_text(AGENT)
        os.environ["TELEGRAM_BOT_TOKEN"] = TOKEN
        server = await self._stack.enter_async_context(
            served(
                data,
                "--agent",
                "reciting_agent:reciting",
                agents=(),
                database_url=self._url,
                lease=str(LEASE),
                extension_console_enabled="false",
                extension_telegram_api_url=self._api.url,
                extension_telegram_allowed_users=str(self._people),
            )
        )
        self._servers[server.process.pid] = server

    async def round(self, number: int) -> None:
        """Ask, kill the server that runs the channel, and check what people see in the end."""
        holder, epoch = await self._ask(number)
        killed_at = monotonic()
        killed = self._servers.pop(holder)
        await killed.kill()
        (self._folder / f"killed-{number}.log").write_bytes(await killed.errors)
        self.verdict.kills += 1
        starting = asyncio.create_task(self._start_server())
        _, taken = await self._holder(lambda pid: pid != holder)
        self.verdict.takeovers.append(monotonic() - killed_at)
        if taken <= epoch:
            self.verdict.broken.append(f"kill {number}: the lease was taken over with epoch {taken} after {epoch}")
        await self._check(number)
        await starting

    async def pause(self, number: int) -> None:
        """Ask, pause the server that runs the channel until another has answered, and check what people see then."""
        holder, _ = await self._ask(number)
        paused = self._servers[holder].process
        paused.send_signal(signal.SIGSTOP)
        try:
            await self._holder(lambda pid: pid != holder)
            await self._check(number)
        finally:
            paused.send_signal(signal.SIGCONT)
        # It does what it was about to do, before it can have any part in the next answers.
        await self._ask(number)
        await self._check(number)

    async def _ask(self, number: int) -> tuple[int, int]:
        """Let everybody ask something, wait for some of the answers, and return the holder of the channel."""
        await self._holder(lambda pid: pid in self._servers)
        for person in self._people:
            text = f"Question {number} of {person}"
            self._api.says(person, text)
            self._expected[person].append(answer_to(text))
        # At any moment from the question to some time after the answer.
        seen = self._choices.randrange(len(self._people) * 3)
        before = len(self._api.calls)
        sent = ("sendMessage", "editMessageText")
        await self._api.until(lambda: sum(call.method in sent for call in self._api.calls[before:]) >= min(seen, 3))
        await asyncio.sleep(self._choices.uniform(0, 0.6))
        return await self._holder(lambda pid: pid in self._servers)

    async def _holder(self, is_wanted: Callable[[int], bool]) -> tuple[int, int]:
        """Wait until such a process has the lease of the channel. Return its pid and the epoch."""
        connection = await asyncpg.connect(self._url)
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    query = "SELECT holder, epoch FROM turnwire.lease WHERE name = 'telegram'"
                    row = await connection.fetchrow(query)
                    if row is not None and is_wanted(pid := int(row[0].split(":")[1])):
                        return pid, row[1]
                    await asyncio.sleep(0.02)
        finally:
            await connection.close()

    async def _check(self, number: int) -> None:
        for person in self._people:
            expected = self._expected[person]
            try:
                await self._api.until(lambda person=person, expected=expected: self._api.texts(person) == expected)
            except TimeoutError:
                texts = self._api.texts(person)
                self.verdict.broken.append(f"kill {number}: {person} sees {texts[-2:]} instead of {expected[-1:]}")
        # People may see the whole answer before the turn has ended, or before the channel has recorded it.
        for name, undelivered in _UNDELIVERED.items():
            if not await self._becomes_empty(undelivered):
                self.verdict.broken.append(f"kill {number}: some {name} are not recorded as delivered")
        self.verdict.answers += len(self._people)
        if self.verdict.broken:
            await self._keep_logs()

    async def _becomes_empty(self, query: str) -> bool:
        connection = await asyncpg.connect(self._url)
        try:
            async with asyncio.timeout(PATIENCE):
                while await connection.fetch(query):  # noqa: ASYNC110 - other processes write it
                    await asyncio.sleep(0.05)
        except TimeoutError:
            return False
        finally:
            await connection.close()
        return True

    async def _keep_logs(self) -> None:
        """Add the logs of the servers that were not killed to the verdict: those say what went wrong."""
        for pid, server in self._servers.items():
            server.process.terminate()
            self.verdict.broken.append(f"server {pid}:\n{(await server.errors).decode(errors='replace')}")
