"""Schedules: messages that are sent at set times."""

from fastapi import APIRouter

from turnwire.core.errors import AgentNotFoundError
from turnwire.core.log.codec import now_ms, time_text
from turnwire.scheduler.schedule import Schedule, ScheduleError
from turnwire.scheduler.service import Scheduler
from turnwire.server.api.dependencies import Json, PathId, Reading, ServicesDep, Writing
from turnwire.server.errors import HttpError
from turnwire.server.messages import ScheduleBody, SchedulePatch

router = APIRouter(tags=["schedules"])


@router.post("/v1/schedules", status_code=201, summary="Send a message at set times")
async def add(services: ServicesDep, caller: Writing, body: ScheduleBody) -> Json:
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


@router.get("/v1/schedules", summary="Your schedules, newest first, with their next and last runs")
async def index(services: ServicesDep, caller: Reading) -> Json:
    found = await services.scheduler.list(caller.principal)
    return {"schedules": [await _schedule_json(services.scheduler, schedule) for schedule in found]}


@router.patch("/v1/schedules/{id}", summary="Pause a schedule, or go on with the times after now")
async def change(services: ServicesDep, caller: Writing, id: PathId, body: SchedulePatch) -> Json:
    schedule = await _find(services.scheduler, caller.principal, id)
    changed = await services.scheduler.add(schedule.with_paused(body.paused, now_ms()))
    return await _schedule_json(services.scheduler, changed)


@router.delete("/v1/schedules/{id}", status_code=204, summary="Remove a schedule; its turns stay")
async def remove(services: ServicesDep, caller: Writing, id: PathId) -> None:
    await services.scheduler.remove(await _find(services.scheduler, caller.principal, id))


async def _find(scheduler: Scheduler, principal: str, schedule_id: str) -> Schedule:
    schedule = await scheduler.find(principal, schedule_id)
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
