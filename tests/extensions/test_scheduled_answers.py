"""Answers of schedules that go to a channel."""

from pathlib import Path

from tests.extensions.harness import PLAIN, STREAMING, Running, running, write_extension
from tests.serving import Puppet, saying, until
from turnwire.core.log.codec import now_ms
from turnwire.scheduler.schedule import Schedule
from turnwire.scheduler.service import SchedulerService


async def add(kernel: Running, channel: str) -> Schedule:
    """Add a schedule that is due."""
    now = now_ms()
    return await kernel.turnwire.services.of(SchedulerService).scheduler.add(
        Schedule(id="", principal="local", message="hello", created_at=now, at=now, channel=channel, user_id="ann")
    )


async def test_answer_of_a_schedule_is_streamed_through_its_channel(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "live", STREAMING)
    puppet = Puppet()
    async with running(tmp_path / "x", puppet) as kernel:
        schedule = await add(kernel, "live")
        part = await puppet.part()
        part.say("All ")
        await until(lambda: ("chunk", "ann", "All ") in kernel.calls("live"))
        part.say("is well.")
        part.end()
        await until(lambda: ("end", "ann", "All is well.") in kernel.calls("live"))
        run = await kernel.turnwire.services.of(SchedulerService).scheduler.last_run(schedule)
        assert run is not None
        assert run.error is None
        # The time has been dealt with: it is not run again.
        await kernel.turnwire.services.of(SchedulerService).scheduler.start_due()
        assert len(await kernel.turnwire.store.list_turns("local")) == 1


async def test_answer_of_a_schedule_is_one_message_on_a_channel_that_does_not_stream(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "plain", PLAIN)
    async with running(tmp_path / "x", saying("All ", "is well.")) as kernel:
        await add(kernel, "plain")
        await until(lambda: kernel.calls("plain") == [("send", "ann", "All is well.")])


async def test_schedule_for_a_channel_that_is_not_here_is_left_to_another_process(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "plain", PLAIN)
    async with running(tmp_path / "x", saying("Hi.")) as kernel:
        schedule = await add(kernel, "mail")
        await kernel.turnwire.services.of(SchedulerService).scheduler.start_due()
        assert await kernel.turnwire.services.of(SchedulerService).scheduler.last_run(schedule) is None
        assert kernel.calls("plain") == []
