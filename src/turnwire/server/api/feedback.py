"""Feedback of users on turns: a value and a note, stored beside the log, which stays as it ended."""

import json
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query

from turnwire.core.codec import ascii_json, now_ms, time_text
from turnwire.core.contracts import Annotation
from turnwire.core.metrics import FEEDBACK
from turnwire.core.turns import TurnRecord
from turnwire.server.api.dependencies import Json, PathId, Reading, ServicesDep, Writing
from turnwire.server.messages import FeedbackBody
from turnwire.server.services import Services

router = APIRouter(tags=["feedback"])


@router.put("/v1/turns/{id}/feedback", summary="Rate a turn, with a note; a null value withdraws the rating")
async def rate(services: ServicesDep, caller: Writing, id: PathId, body: FeedbackBody) -> Json:
    record = await services.store.find_turn(caller.principal, id)
    if body.value is None:
        await services.store.remove_annotations("feedback", caller.principal, key=record.id)
        return {"turn_id": record.id, "feedback": None}
    annotation = Annotation(
        kind="feedback",
        key=record.id,
        principal=record.principal,
        at=now_ms(),
        value=ascii_json({"value": body.value, "note": body.note}).decode("ascii"),
        session_id=record.session_id,
        turn_id=record.id,
    )
    await services.store.annotate(annotation)
    FEEDBACK.add(body.value)
    return {"turn_id": record.id, "feedback": _feedback_json(annotation)}


@router.get("/v1/feedback", summary="Your feedback, newest turns first; everybody's for the scope `operate`")
async def index(
    services: ServicesDep,
    caller: Reading,
    before: Annotated[str | None, Query(max_length=128, description="The last turn id of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Json:
    principal = None if "operate" in caller.scopes else caller.principal
    found = await services.store.list_annotations("feedback", principal, before=before, limit=limit + 1)
    page = found[:limit]
    return {
        "feedback": [
            {
                "turn_id": annotation.turn_id,
                "session_id": annotation.session_id,
                "principal": annotation.principal,
                **_feedback_json(annotation),
            }
            for annotation in page
        ],
        "next": page[-1].key if len(found) > limit else None,
    }


async def turn_feedback(services: Services, record: TurnRecord) -> Json | None:
    """Return the feedback on a turn; None if there is none."""
    annotation = await services.store.find_annotation("feedback", record.id)
    return _feedback_json(annotation) if annotation is not None else None


async def session_feedback(services: Services, turns: Sequence[TurnRecord]) -> dict[str, Json]:
    """Return the feedback on turns of one session, by their ids."""
    if not turns:
        return {}
    principal, session_id = turns[0].principal, turns[0].session_id
    # The keys are turn ids, which grow with time: the feedback on the newest turns comes first.
    found = await services.store.list_annotations("feedback", principal, session_id=session_id, limit=len(turns))
    return {annotation.key: _feedback_json(annotation) for annotation in found}


def _feedback_json(annotation: Annotation) -> Json:
    return {**json.loads(annotation.value), "at": time_text(annotation.at)}
