"""Schedules: messages that are sent at set times."""

from turnwire.core.errors import AgentNotFoundError
from turnwire.core.log.codec import now_ms, time_text
from turnwire.scheduler.schedule import Schedule, ScheduleError
from turnwire.scheduler.scheduler import Scheduler
from turnwire.server.errors import HttpError
from turnwire.server.messages import ScheduleBody, SchedulePatch
from turnwire.server.request import Request
from turnwire.server.router import Json, Route, RouteGroup
from turnwire.server.services import Services

_SCHEDULES = RouteGroup("schedules")


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
        added = await services.scheduler.add(schedule)
    except ScheduleError as error:
        raise HttpError(422, "invalid_request", str(error)) from None
    return await _schedule_json(services.scheduler, added)


@_SCHEDULES.route("GET", "/v1/schedules", "Your schedules, newest first, with their next and last runs")
async def list_schedules(request: Request, services: Services) -> Json:
    found = await services.scheduler.list(request.caller.principal)
    return {"schedules": [await _schedule_json(services.scheduler, schedule) for schedule in found]}


@_SCHEDULES.route(
    "PATCH", "/v1/schedules/{id}", "Pause a schedule, or go on with the times after now", body=SchedulePatch
)
async def change(request: Request, services: Services) -> Json:
    body, schedule = await request.parse_body(SchedulePatch), await _find(request, services)
    changed = await services.scheduler.add(schedule.with_paused(body.paused, now_ms()))
    return await _schedule_json(services.scheduler, changed)


@_SCHEDULES.route("DELETE", "/v1/schedules/{id}", "Remove a schedule; its turns stay", status=204)
async def remove(request: Request, services: Services) -> None:
    await services.scheduler.remove(await _find(request, services))
    await request.respond(204)


async def _find(request: Request, services: Services) -> Schedule:
    schedule = await services.scheduler.find(request.caller.principal, request.id_param())
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
