"""Push subscriptions of browsers."""

from typing import TYPE_CHECKING

from fastapi import APIRouter

from turnwire.server.api.dependencies import Json, Reading, ServicesDep, Writing
from turnwire.server.errors import HttpError
from turnwire.server.messages import PushEndpointBody, PushSubscriptionBody
from turnwire.server.services import Services

if TYPE_CHECKING:
    from turnwire.server.push import PushNotifier

router = APIRouter(prefix="/v1/push", tags=["push"])


@router.get("", summary="The key that browsers subscribe to notifications with")
async def show(services: ServicesDep, caller: Reading) -> Json:
    return {"public_key": await _notifier(services).public_key()}


@router.post("/subscriptions", status_code=201, summary="Notify this browser when a turn of yours ends or asks")
async def subscribe(services: ServicesDep, caller: Writing, body: PushSubscriptionBody) -> Json:
    notifier = _notifier(services)
    from turnwire.server.push import PushSubscription

    subscription = PushSubscription(body.endpoint, body.keys.p256dh, body.keys.auth)
    try:
        subscription.check()
    except ValueError as error:
        raise HttpError(422, "invalid_request", str(error)) from None
    await notifier.subscribe(caller.principal, subscription)
    return {"endpoint": body.endpoint}


@router.delete("/subscriptions", status_code=204, summary="Notify this browser no more")
async def unsubscribe(services: ServicesDep, caller: Writing, body: PushEndpointBody) -> None:
    await _notifier(services).unsubscribe(caller.principal, body.endpoint)


def _notifier(services: Services) -> "PushNotifier":
    if services.push is None:
        raise HttpError(404, "no_push", "this server sends no notifications; its operator can set push_contact")
    return services.push
