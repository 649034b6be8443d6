"""Schedules: messages that are sent at set times."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from turnwire.core.errors import AgentNotFoundError
from turnwire.core.log.codec import now_ms, time_text
from turnwire.scheduler.schedule import Schedule, ScheduleError
from turnwire.scheduler.scheduler import Scheduler
from turnwire.scheduler.service import SchedulerService
from turnwire.server.errors import HttpError
from turnwire.server.messages import LAST_MS, ClientId
from turnwire.server.request import Request
from turnwire.server.router import Json, Route, RouteGroup
from turnwire.server.services import Services

_SCHEDULES = RouteGroup("schedules")


class ScheduleBody(BaseModel):
    """A message and the times at which it is sent: `cron`, `every` or `at`."""

    model_config = ConfigDict(title="Schedule", extra="forbid")

    message: str = Field(min_length=1, max_length=100_000, description="The text to answer.")
    name: str = Field("", max_length=200)
    cron: str | None = Field(None, max_length=200, description="A cron expression, such as `0 9 * * mon-fri`.")
    every: int | None = Field(None, le=366 * 86_400, description="An interval in seconds, 10 at least.")
    at: int | None = Field(None, ge=0, le=LAST_MS, description="One time, as Unix time in milliseconds.")
    timezone: str = Field("UTC", max_length=100, description="The time zone of `cron`, such as `Europe/Berlin`.")
    agent: str | None = Field(None, description="The agent that answers; the first configured one by default.")
    session_id: ClientId | None = Field(None, description="The session to go on with; by default each run begins one.")
    channel: str | None = Field(None, max_length=128, description="The channel that the answer goes to.")
    user_id: str | None = Field(None, max_length=200, description="The user of the channel.")
    missed: Literal["run_once", "skip"] = Field(
        "run_once",
        description="Times missed while no process ran: send the message once, or skip them.",
    )


class SchedulePatch(BaseModel):
    """A change of a schedule."""

    model_config = ConfigDict(extra="forbid")

    paused: bool


@_SCHEDULES.route("POST", "/v1/schedules", "Send a message at set times", body=ScheduleBody, status=201)
async def add(request: Request, services: Services) -> Json:
    body, caller = await request.parse_body(ScheduleBody), request.caller
    if body.agent is not None and body.agent not in services.agents:
        raise AgentNotFoundError(body.agent)
    if body.channel is not None:
        # Any user of the channel can be named, so this is for those who run the server.
        caller.needs("operate")
    fields = body.model_dump()
    if body.session_id is not None:
        fields["session_id"] = (await services.store.find_session(caller.principal, body.session_id)).id
    try:
        schedule = Schedule(id="", principal=caller.principal, created_at=now_ms(), **fields)
        added = await _scheduler(services).add(schedule)
    except ScheduleError as error:
        raise HttpError(422, "invalid_request", str(error)) from None
    return await _schedule_json(_scheduler(services), added)


@_SCHEDULES.route("GET", "/v1/schedules", "Your schedules, newest first, with their next and last runs")
async def list_schedules(request: Request, services: Services) -> Json:
    found = await _scheduler(services).list(request.caller.principal)
    return {"schedules": [await _schedule_json(_scheduler(services), schedule) for schedule in found]}


@_SCHEDULES.route(
    "PATCH", "/v1/schedules/{id}", "Pause a schedule, or go on with the times after now", body=SchedulePatch
)
async def change(request: Request, services: Services) -> Json:
    body, schedule = await request.parse_body(SchedulePatch), await _find(request, services)
    changed = await _scheduler(services).add(schedule.with_paused(body.paused, now_ms()))
    return await _schedule_json(_scheduler(services), changed)


@_SCHEDULES.route("DELETE", "/v1/schedules/{id}", "Remove a schedule; its turns stay", status=204)
async def remove(request: Request, services: Services) -> None:
    await _scheduler(services).remove(await _find(request, services))
    await request.respond(204)


def _scheduler(services: Services) -> Scheduler:
    return services.of(SchedulerService).scheduler


async def _find(request: Request, services: Services) -> Schedule:
    schedule = await _scheduler(services).find(request.caller.principal, request.id_param())
    if schedule is None:
        raise HttpError(404, "not_found", "no schedule has this id")
    return schedule


async def _schedule_json(scheduler: Scheduler, schedule: Schedule) -> Json:
    run = await scheduler.last_run(schedule)
    next_time = None if schedule.paused else schedule.next_time(now_ms())
    names = [name for name in ScheduleBody.model_fields if name != "at"]
    return {
        "id": schedule.id,
        **{name: getattr(schedule, name) for name in names},
        "at": time_text(schedule.at) if schedule.at is not None else None,
        "paused": schedule.paused,
        "created_at": time_text(schedule.created_at),
        "next_at": time_text(next_time) if next_time is not None else None,
        "last_run": None
        if run is None
        else {"due": time_text(run.due), "turn_id": run.turn_id or None, "error": run.error},
    }


def routes() -> list[Route]:
    return _SCHEDULES.routes
