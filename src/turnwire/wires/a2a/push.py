"""Push notifications of A2A tasks: the task, posted to the client's address when it waits or has ended.

A configuration is an annotation of the turn, and is its own outbox: it is removed when the ended task was delivered, so
a process that dies in between leaves it to the next one. A notification may therefore arrive twice; its `webhook-id`
identifies it.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from turnwire.core import metrics
from turnwire.core.backoff import Backoff
from turnwire.core.contracts.stores import Annotation, Store
from turnwire.core.errors import NotFoundError, StoreError, ToolError
from turnwire.core.log.codec import ascii_json, now_ms
from turnwire.core.log.turns import TurnRecord
from turnwire.plugins import Service
from turnwire.server.services import Services
from turnwire.server.turns import turn_state
from turnwire.wires.a2a.frames import Version, legacy_task, task_of_state
from turnwire.wires.a2a.messages import INVALID_PARAMS, PUSH_NOT_SUPPORTED, TASK_NOT_FOUND, A2aError, PushConfig
from turnwire.wires.a2a.settings import A2aSettings

logger = logging.getLogger("turnwire.wires.a2a")

CHANNEL = "a2a"
"""The channel of turns that A2A clients have started; only they can have push configurations."""
MAX_CONFIGS = 10
_PAGE = 200
_MAX_CONCURRENT = 8
# As for webhooks: a receiver puts the work into a queue and answers at once.
_TIMEOUT_SECONDS = 15.0
# With a delay of at most an hour these are about five hours, after which a client has asked for the task itself.
_MAX_ATTEMPTS = 12
# The delay before the first retry: a receiver that restarts is back by then.
_RETRY_SECONDS = 5.0
_MAX_DELAY_SECONDS = 3_600.0


class StoredConfig(Struct, frozen=True, omit_defaults=True):
    """A configuration as it is stored; `notified` is the position of the last state that was delivered."""

    id: str
    url: str
    version: Version
    token: str | None = None
    scheme: str | None = None
    authorization: str | None = None
    notified: int = 0
    attempts: int = 0
    due_at: int = 0

    def as_json(self, task_id: str) -> dict[str, Any]:
        """Return the configuration as the client set it, without its credentials."""
        config: dict[str, Any] = {"id": self.id, "url": self.url}
        if self.token is not None:
            config["token"] = self.token
        if self.version == "0.3":
            if self.scheme is not None:
                config["authentication"] = {"schemes": [self.scheme]}
            return {"taskId": task_id, "pushNotificationConfig": config}
        if self.scheme is not None:
            config["authentication"] = {"scheme": self.scheme}
        return {**config, "taskId": task_id}


class PushConfigs:
    """The configurations of tasks, in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def add(self, record: TurnRecord, config: PushConfig, version: Version) -> StoredConfig:
        """Store a configuration, or replace the one with the same id. Raises A2aError."""
        if record.channel != CHANNEL:
            raise A2aError(PUSH_NOT_SUPPORTED, "only tasks that were started over A2A have push notifications")
        # A client may send the same one with every message.
        config_id = config.id or sha256(f"{config.url} {config.token}".encode()).hexdigest()[:32]
        known = await self.list(record)
        if len(known) >= MAX_CONFIGS and config_id not in {item.id for item in known}:
            raise A2aError(INVALID_PARAMS, f"a task has at most {MAX_CONFIGS} push configurations")
        authentication = config.authentication
        stored = StoredConfig(
            id=config_id,
            url=config.url,
            version=version,
            token=config.token or None,
            scheme=authentication.name if authentication else None,
            authorization=authentication.header if authentication else None,
        )
        await self.write(record, stored)
        return stored

    async def write(self, record: TurnRecord, config: StoredConfig) -> None:
        await self._store.annotate(
            Annotation(
                kind="a2a_push",
                key=_key(record.id, config.id),
                principal=record.principal,
                at=now_ms(),
                value=ascii_json(config).decode("ascii"),
                session_id=record.session_id,
                turn_id=record.id,
            )
        )

    async def replace(self, record: TurnRecord, before: StoredConfig, after: StoredConfig | None) -> None:
        """Write `after`, or remove the configuration if it is None, unless the client has changed it meanwhile."""
        if before not in await self.list(record):
            return
        if after is None:
            await self.remove(record, before.id)
        else:
            await self.write(record, after)

    async def list(self, record: TurnRecord) -> "list[StoredConfig]":
        last = _key(record.id, "~")  # It comes after all ids that a configuration may have.
        found = await self._store.list_annotations(
            "a2a_push", record.principal, session_id=record.session_id, before=last, limit=_PAGE
        )
        return [_stored(annotation) for annotation in reversed(found) if annotation.turn_id == record.id]

    async def find(self, record: TurnRecord, config_id: str | None) -> StoredConfig:
        """Return a configuration; without an id, the first one. Raises A2aError."""
        for config in await self.list(record):
            if config_id is None or config.id == config_id:
                return config
        raise A2aError(TASK_NOT_FOUND, "the task has no such push configuration")

    async def remove(self, record: TurnRecord, config_id: str) -> None:
        await self._store.remove_annotations("a2a_push", record.principal, key=_key(record.id, config_id))


class PushSender(Service):
    """Delivers the state of settled tasks to the addresses of their clients, and retries what failed."""

    def __init__(self, services: Services) -> None:
        self._store = services.store
        self._configs = PushConfigs(services.store)
        self._settings = services.settings
        services.runner.on_settled.append(self.settled)
        self._backoff = Backoff(first=_RETRY_SECONDS, longest=_MAX_DELAY_SECONDS, factor=3, jitter=0.1)
        self._room = asyncio.Semaphore(_MAX_CONCURRENT)
        self._tasks: set[asyncio.Task[None]] = set()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._sweep: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._retry_at: int | None = 0
        self._http: Any = None

    async def start(self) -> None:
        """Start to deliver, beginning with what an earlier process has left."""
        self._sweep = asyncio.create_task(self._sweep_forever())

    def settled(self, record: TurnRecord) -> None:
        """Deliver a turn that has ended or waits. Returns at once."""
        if record.channel == CHANNEL:
            self._spawn(record)

    async def close(self) -> None:
        """Stop at once. What was not delivered is left to the next process."""
        tasks = [*self._tasks, *([self._sweep] if self._sweep else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._http is not None:
            await self._http.aclose()

    def _spawn(self, record: TurnRecord) -> None:
        task = asyncio.create_task(self._deliver(record))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _sweep_forever(self) -> None:
        """Look through all configurations at the start, and again when a retry is due."""
        while True:
            if self._retry_at is None:
                await self._wake.wait()
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, (self._retry_at - now_ms()) / 1000)):
                        await self._wake.wait()
            self._wake.clear()
            if self._retry_at is not None and self._retry_at <= now_ms():
                self._retry_at = None
                try:
                    await self._deliver_all()
                except StoreError:
                    logger.exception("the push configurations could not be read; this is retried")
                    self._retry_later(now_ms() + int(self._backoff.delay(1) * 1000))

    def _retry_later(self, due_at: int) -> None:
        self._retry_at = due_at if self._retry_at is None else min(due_at, self._retry_at)
        self._wake.set()

    async def _deliver_all(self) -> None:
        before: str | None = None
        while found := await self._store.list_annotations("a2a_push", None, before=before, limit=_PAGE):
            turns = {(item.principal, item.turn_id) for item in found}
            for principal, turn_id in turns:
                with suppress(NotFoundError):
                    record = await self._store.find_turn(principal, turn_id or "")
                    if record.phase in ("ended", "waiting"):
                        self._spawn(record)
            before = found[-1].key

    async def _deliver(self, record: TurnRecord) -> None:
        lock = self._locks.setdefault(record.id, asyncio.Lock())
        try:
            async with lock:  # A turn that settles while its configuration is stored is delivered for both reasons.
                await self._deliver_turn(record)
        except NotFoundError:
            pass  # The turn was erased meanwhile.
        except StoreError:
            logger.exception("the push notifications of turn %s could not be sent and are retried", record.id)
            self._retry_later(now_ms() + int(self._backoff.delay(1) * 1000))
        except Exception:
            logger.exception("the push notifications of turn %s could not be sent", record.id)

    async def _deliver_turn(self, record: TurnRecord) -> None:
        configs = await self._configs.list(record)
        if not configs:
            return
        record = await self._store.find_turn(record.principal, record.id)
        due = [config for config in configs if config.notified < record.last_position]
        if record.phase in ("ended", "waiting"):
            await asyncio.gather(*(self._notify(record, config) for config in due))

    async def _notify(self, record: TurnRecord, config: StoredConfig) -> None:
        if config.due_at > now_ms():
            self._retry_later(config.due_at)
            return
        async with self._room:
            failure = await self._post(record, config)
        if failure is None:
            metrics.WEBHOOKS.add("delivered")
            notified = replace(config, notified=record.last_position, attempts=0, due_at=0)
            await self._configs.replace(record, config, None if record.phase == "ended" else notified)
        elif config.attempts + 1 >= _MAX_ATTEMPTS:
            metrics.WEBHOOKS.add("given_up")
            logger.error("push notification of turn %s failed for the last time: %s", record.id, failure)
            await self._configs.replace(record, config, None)
        else:
            metrics.WEBHOOKS.add("failed")
            logger.warning("push notification of turn %s failed and is retried: %s", record.id, failure)
            attempts = config.attempts + 1
            due_at = now_ms() + int(self._backoff.delay(attempts) * 1000)
            await self._configs.replace(record, config, replace(config, attempts=attempts, due_at=due_at))
            self._retry_later(due_at)

    async def _post(self, record: TurnRecord, config: StoredConfig) -> str | None:
        """Send one notification. Return the failure; None on success."""
        if self._http is None:
            self._http = await asyncio.to_thread(_build_client)
        import httpx

        from turnwire.server.outbound import post_to_client

        task = task_of_state(await turn_state(self._store, record), record)
        body = ascii_json(legacy_task(task) if config.version == "0.3" else {"task": task})
        networks = self._settings.of(A2aSettings).push_networks
        try:
            status = await post_to_client(self._http, config.url, body, _headers(record, config, body), networks)
        except (ToolError, httpx.HTTPError, httpx.InvalidURL) as error:
            return type(error).__name__
        return None if 200 <= status < 300 else f"HTTP status {status}"


def _build_client() -> Any:
    """Return the HTTP client. It is loaded when the first notification is sent, and reads files."""
    import httpx

    for name in ("turnwire.reporting.webhooks", "turnwire.server.outbound"):
        import_module(name)
    return httpx.AsyncClient(timeout=_TIMEOUT_SECONDS, follow_redirects=False)


def check_address(url: str, networks: Sequence[Any]) -> None:
    """Raise A2aError unless a notification may be sent to this address; names are looked up only when it is sent."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("https", *(["http"] if networks else [])) and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable:
        raise A2aError(INVALID_PARAMS, "url: push notifications are sent to https addresses")


def _headers(record: TurnRecord, config: StoredConfig, body: bytes) -> dict[str, str]:
    from turnwire.reporting.webhooks import USER_AGENT, sign

    headers = {
        "content-type": "application/json" if config.version == "0.3" else "application/a2a+json",
        "user-agent": USER_AGENT,
        "webhook-id": f"{record.id}:{record.last_position}",
        "webhook-timestamp": str(now_ms() // 1000),
    }
    if config.token is not None:
        key, seconds = config.token.encode(), headers["webhook-timestamp"]
        headers["x-a2a-notification-token"] = config.token
        headers["webhook-signature"] = sign(key, headers["webhook-id"], seconds, body)
    if config.authorization is not None:
        headers["authorization"] = config.authorization
    return headers


def _key(turn_id: str, config_id: str) -> str:
    return f"{turn_id}:{config_id}"


def _stored(annotation: Annotation) -> StoredConfig:
    return msgspec.json.decode(annotation.value, type=StoredConfig)
