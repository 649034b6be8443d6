"""Push notifications of A2A: configured by the official client, received over a real socket."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from a2a.client import Client
from a2a.types import (
    AuthenticationInfo,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import InvalidParamsError, PushNotificationNotSupportedError, TaskNotFoundError
from standardwebhooks import Webhook

from tests.reporting.http_receiver import ReceivedRequest, Receiver, run_receiver
from tests.server.a2a_clients import DIALECTS, Dialect, a2a_client, message, read
from tests.server.conftest import Serve, StoreKind
from tests.server.test_approvals import careful
from tests.serving import PATIENCE, Puppet, Served, quick_settings, saying, serving, until
from turnwire import Turnwire
from turnwire.core import metrics

EACH = pytest.mark.parametrize("dialect", DIALECTS)
LOCAL: dict[str, Any] = {"a2a": {"push_networks": ["127.0.0.0/8"]}}
TOKEN = "a-token-of-this-task"


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwire.wires.a2a.push._RETRY_SECONDS", 0.02)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with run_receiver() as receiver:
        yield receiver


def config(receiver: Receiver, **fields: Any) -> TaskPushNotificationConfig:
    return TaskPushNotificationConfig(url=f"{receiver.url}/a2a", token=TOKEN, **fields)


def task_of(call: ReceivedRequest) -> dict[str, Any]:
    """Verify the signature with the standard's own library, and return the task."""
    secret = base64.b64encode(TOKEN.encode()).decode()
    body = Webhook(f"whsec_{secret}").verify(call.body, call.headers)
    return body.get("task", body)


def state_of(task: dict[str, Any]) -> str:
    return task["status"]["state"].removeprefix("TASK_STATE_").lower().replace("-", "_")


async def configs_of(server: Served, principal: str | None = None) -> list[str]:
    found = await server.turnwire.store.list_annotations("a2a_push", principal)
    return [json.loads(annotation.value)["url"] for annotation in found]


async def until_none(server: Served) -> None:
    """Wait until no configuration is left."""
    async with asyncio.timeout(PATIENCE):
        while await configs_of(server):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@EACH
async def test_waiting_and_ended_task_are_pushed_signed_and_authenticated(
    serve: Serve, kind: StoreKind, receiver: Receiver, dialect: Dialect
) -> None:
    authentication = AuthenticationInfo(scheme="Bearer", credentials="secret")
    async with serve(careful, store=kind, **LOCAL) as server:
        push = config(receiver, authentication=authentication)
        async with a2a_client(server.url, dialect, push_notification_config=push) as client:
            paused = await read(client.send_message(message("Buy it")))
            (call,) = await receiver.count(1)
            assert (state_of(task_of(call)), task_of(call)["id"]) == ("input_required", paused.task.id)
            assert call.headers["authorization"] == "Bearer secret"
            assert call.headers["x-a2a-notification-token"] == TOKEN
            await read(client.send_message(message("yes", task_id=paused.task.id)))
            calls = await receiver.count(2)
            assert state_of(task_of(calls[-1])) == "completed"
            assert task_of(calls[-1])["artifacts"][0]["parts"][0]["text"] == "May I? Paid."
            assert len({call.headers["webhook-id"] for call in calls}) == 2
            await until_none(server)


async def test_failed_notification_is_retried_until_it_is_delivered(
    serve: Serve, puppet: Puppet, receiver: Receiver
) -> None:
    receiver.statuses, delivered = [500, 302, 503], metrics.WEBHOOKS.values["delivered"]
    async with serve(saying("Ok."), **LOCAL) as server:
        async with a2a_client(server.url, push_notification_config=config(receiver)) as client:
            await read(client.send_message(message()))
            calls = await receiver.count(4)
            await until(lambda: metrics.WEBHOOKS.values["delivered"] == delivered + 1)
        assert {state_of(task_of(call)) for call in calls} == {"completed"}
        await until_none(server)


async def test_notification_is_given_up_after_the_last_attempt(
    serve: Serve, receiver: Receiver, errors_in_the_log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors_in_the_log.append("push notification")
    monkeypatch.setattr("turnwire.wires.a2a.push._MAX_ATTEMPTS", 2)
    receiver.statuses = [500] * 10
    async with serve(saying("Ok."), **LOCAL) as server:
        async with a2a_client(server.url, push_notification_config=config(receiver)) as client:
            await read(client.send_message(message()))
        await until_none(server)
    assert len(receiver.received) == 2


async def test_undelivered_notification_is_delivered_by_the_next_process(receiver: Receiver, tmp_path: Path) -> None:
    receiver.statuses = [0]  # The receiver takes the request and never answers.
    settings = quick_settings(tmp_path, **LOCAL)
    async with serving(Turnwire(saying("Ok."), settings=settings)) as server:
        async with a2a_client(server.url, push_notification_config=config(receiver)) as client:
            seen = await read(client.send_message(message()))
        await receiver.count(1)
    async with serving(Turnwire(saying("Ok."), settings=settings)) as server:
        calls = await receiver.count(2)
        await until_none(server)
    assert [task_of(call)["id"] for call in calls] == [seen.task.id] * 2
    assert len({call.headers["webhook-id"] for call in calls}) == 1


@EACH
async def test_configurations_are_set_read_and_removed(
    serve: Serve, puppet: Puppet, receiver: Receiver, dialect: Dialect
) -> None:
    async with serve(**LOCAL) as server:
        async with a2a_client(server.url, dialect, streaming=False, polling=True) as client:
            task_id = (await read(client.send_message(message()))).task.id
            made = await client.create_task_push_notification_config(config(receiver, task_id=task_id, id="mine"))
            assert (made.id, made.task_id, made.url, made.token) == ("mine", task_id, f"{receiver.url}/a2a", TOKEN)
            again = await client.get_task_push_notification_config(
                GetTaskPushNotificationConfigRequest(task_id=task_id, id="mine")
            )
            assert again == made
            assert await listed(client, task_id) == ["mine"]
            delete = DeleteTaskPushNotificationConfigRequest(task_id=task_id, id="mine")
            for _ in range(2):
                await client.delete_task_push_notification_config(delete)
            assert await listed(client, task_id) == []
            with pytest.raises(TaskNotFoundError):
                await client.get_task_push_notification_config(
                    GetTaskPushNotificationConfigRequest(task_id=task_id, id="mine")
                )
        part = await puppet.part()
        part.end()
        await server.ended(task_id)
    assert not receiver.received


async def test_configurations_of_an_older_task_are_found_behind_many_newer_ones(
    serve: Serve, kind: StoreKind, puppet: Puppet, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnwire.wires.a2a.push._PAGE", 3)
    async with serve(store=kind, **LOCAL) as server, a2a_client(server.url, streaming=False, polling=True) as client:
        older = (await read(client.send_message(message()))).task
        newer = (await read(client.send_message(message(context_id=older.context_id)))).task
        ids = {older.id: ["a.1", "z"], newer.id: ["a.1", "b", "z"]}
        for task_id, names in ids.items():
            for name in names:
                await client.create_task_push_notification_config(config(receiver, task_id=task_id, id=name))
        assert {task_id: await listed(client, task_id) for task_id in ids} == ids
        (await puppet.part()).end()
        calls = await receiver.count(2)
        assert {task_of(call)["id"] for call in calls} == {older.id}


async def test_configuration_that_is_removed_during_its_notification_stays_removed(
    serve: Serve, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnwire.wires.a2a.push._TIMEOUT_SECONDS", 1.0)
    receiver.statuses, failed = [0], metrics.WEBHOOKS.values["failed"]
    async with serve(saying("Ok."), **LOCAL) as server:
        push = config(receiver, id="mine")
        async with a2a_client(server.url, streaming=False, push_notification_config=push) as client:
            task_id = (await read(client.send_message(message()))).task.id
            await receiver.count(1)
            delete = DeleteTaskPushNotificationConfigRequest(task_id=task_id, id="mine")
            await client.delete_task_push_notification_config(delete)
            await until(lambda: metrics.WEBHOOKS.values["failed"] == failed + 1)
            assert await listed(client, task_id) == []


@EACH
async def test_configuration_of_an_ended_task_is_notified_of_its_end(
    serve: Serve, receiver: Receiver, dialect: Dialect
) -> None:
    async with serve(saying("Ok."), **LOCAL) as server:
        async with a2a_client(server.url, dialect, streaming=False) as client:
            task_id = (await read(client.send_message(message()))).task.id
            await client.create_task_push_notification_config(config(receiver, task_id=task_id, id="late"))
            (call,) = await receiver.count(1)
        assert state_of(task_of(call)) == "completed"
        await until_none(server)


async def listed(client: Client, task_id: str) -> list[str]:
    found = await client.list_task_push_notification_configs(ListTaskPushNotificationConfigsRequest(task_id=task_id))
    return [config.id for config in found.configs]


@pytest.mark.parametrize("url", ["http://127.0.0.1/x", "ftp://example.com/x", "no address", "https://"])
async def test_address_that_is_not_https_is_refused_and_starts_nothing(serve: Serve, url: str) -> None:
    async with serve() as server:
        push = TaskPushNotificationConfig(url=url)
        async with a2a_client(server.url, push_notification_config=push) as client:
            with pytest.raises(InvalidParamsError, match="https"):
                await read(client.send_message(message()))
        assert await server.written() == (0, 0)


async def test_private_address_is_not_called(
    serve: Serve,
    receiver: Receiver,
    errors_in_the_log: list[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors_in_the_log.append("push notification")
    monkeypatch.setattr("turnwire.wires.a2a.push._MAX_ATTEMPTS", 1)
    push = TaskPushNotificationConfig(url=receiver.url.replace("http:", "https:"))
    async with serve(saying("Ok.")) as server:
        async with a2a_client(server.url, push_notification_config=push) as client:
            await read(client.send_message(message()))
        await until_none(server)
    assert not receiver.received
    # It was refused, not tried: the receiver would have failed to speak TLS.
    (failure,) = [record.getMessage() for record in caplog.records if "for the last time" in record.getMessage()]
    assert failure.endswith("ToolError")


async def test_task_of_another_channel_has_no_push_notifications(
    serve: Serve, puppet: Puppet, receiver: Receiver
) -> None:
    async with serve(**LOCAL) as server, a2a_client(server.url) as client:
        turn_id = await server.start()
        with pytest.raises(PushNotificationNotSupportedError):
            await client.create_task_push_notification_config(config(receiver, task_id=turn_id))


async def test_erased_session_takes_its_configurations_with_it(
    serve: Serve, kind: StoreKind, puppet: Puppet, receiver: Receiver
) -> None:
    async with serve(store=kind, **LOCAL) as server:
        push = config(receiver)
        async with a2a_client(server.url, streaming=False, polling=True, push_notification_config=push) as client:
            task = (await read(client.send_message(message()))).task
        assert len(await configs_of(server)) == 1
        assert (await server.http.delete(f"/v1/sessions/{task.context_id}")).status_code == 204
        assert await configs_of(server) == []
