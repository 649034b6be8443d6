"""The scheduler of a server, with the schedules of the settings."""

from collections.abc import Sequence

from turnwire.core.run.runner import TurnRequest
from turnwire.plugins import Service
from turnwire.scheduler.schedule import Schedule
from turnwire.scheduler.scheduler import CONFIGURED, Scheduler, follow_up_tool
from turnwire.scheduler.settings import SchedulerSettings
from turnwire.server.auth import LOCAL_PRINCIPAL
from turnwire.server.services import Services
from turnwire.tools import Tool


class SchedulerService(Service):
    """The scheduler of a server. Raises ValueError for a schedule of the settings that has no times."""

    def __init__(self, services: Services) -> None:
        self.scheduler = Scheduler(services.store, self._start_turn)
        self._services = services
        self._settings = services.settings.of(SchedulerSettings)
        self._configured = [
            Schedule(
                id=f"{CONFIGURED}{name}", principal=LOCAL_PRINCIPAL, created_at=0, name=name, **fields.model_dump()
            )
            for name, fields in self._settings.schedules.items()
        ]
        for schedule in self._configured:
            schedule.check()

    def tools(self) -> Sequence[Tool]:
        return [follow_up_tool(self.scheduler, self._services.store)] if self._settings.follow_ups else []

    async def start(self) -> None:
        await self.scheduler.configure(LOCAL_PRINCIPAL, self._configured)
        self.scheduler.open()

    async def stop(self) -> None:
        await self.scheduler.close()

    async def _start_turn(self, schedule: Schedule, key: str) -> str | None:
        """Start the turn of a schedule. Return its id, or None if another process runs the channel."""
        if schedule.channel is not None and schedule.user_id is not None:
            channels = self._services.channels
            if channels is None or schedule.channel not in channels.channels:
                return None
            await channels.accept(
                schedule.message,
                schedule.user_id,
                schedule.channel,
                principal=schedule.principal,
                message_id=key,
                agent_id=schedule.agent,
            )
            return ""
        request = TurnRequest(
            principal=schedule.principal,
            message=schedule.message,
            session_id=schedule.session_id,
            agent=schedule.agent,
            channel="schedule",
            idempotency_key=key,
        )
        return (await self._services.runner.start(request)).record.id
