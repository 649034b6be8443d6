"""Sessions, keys and the outbox."""

from msgspec.structs import replace

from turnwire.core.contracts import ApiKey, Notice
from turnwire.core.errors import KeyNotFoundError, SessionBusyError, SessionNotFoundError
from turnwire.core.sessions import Session, new_session
from turnwire.stores.guards import Watchers
from turnwire.stores.memory.world import World


class Registry:
    def __init__(self, world: World) -> None:
        self._world = world
        self._watchers = Watchers()

    async def ensure_session(self, principal: str, external_id: str | None, title: str | None) -> tuple[Session, bool]:
        if external_id is not None and (known := self._world.session_names.get((principal, external_id))):
            return self._world.sessions[known], False
        session = new_session(principal, external_id, title)
        self._add_session(session)
        return session, True

    def _add_session(self, session: Session) -> None:
        self._world.sessions[session.id] = session
        self._world.session_turns[session.id] = []
        if session.external_id is not None:
            self._world.session_names[session.principal, session.external_id] = session.id

    async def find_session(self, principal: str, session_id: str) -> Session:
        own_id = self._world.session_names.get((principal, session_id), session_id)
        session = self._world.sessions.get(own_id)
        if session is None or session.principal != principal:
            raise SessionNotFoundError(session_id)
        return session

    async def list_sessions(
        self, principal: str, *, search: str | None = None, before: str | None = None, limit: int = 50
    ) -> list[Session]:
        sessions = [session for session in self._world.sessions.values() if session.principal == principal]
        if search:
            sessions = [session for session in sessions if self._mentions(session, search.casefold())]
        sessions.sort(key=lambda session: (session.updated_at, session.id), reverse=True)
        if before is not None:
            last = await self.find_session(principal, before)
            sessions = [s for s in sessions if (s.updated_at, s.id) < (last.updated_at, last.id)]
        return sessions[:limit]

    def _mentions(self, session: Session, wanted: str) -> bool:
        if wanted in (session.title or "").casefold():
            return True
        kept_turns = [self._world.turns[turn_id] for turn_id in self._world.session_turns[session.id]]
        return any(
            wanted in kept.record.message.casefold() or (kept.state and wanted in kept.state.text.casefold())
            for kept in kept_turns
        )

    async def rename_session(self, principal: str, session_id: str, title: str) -> Session:
        session = replace(await self.find_session(principal, session_id), title=title)
        self._world.sessions[session.id] = session
        return session

    async def delete_session(self, principal: str, session_id: str) -> None:
        session = await self.find_session(principal, session_id)
        world = self._world
        if unfinished := world.unfinished[session.id]:
            raise SessionBusyError(session.id, unfinished)
        for turn_id in world.session_turns.pop(session.id):
            del world.turns[turn_id]
        world.turn_names = {name: turn_id for name, turn_id in world.turn_names.items() if turn_id in world.turns}
        world.session_names.pop((principal, session.external_id or ""), None)
        del world.sessions[session.id]
        self._watchers.notify(session.id, ())

    async def take_due(self, now: int, until: int, limit: int) -> list[Notice]:
        outbox, turns = self._world.outbox, self._world.turns
        for turn_id in [turn_id for turn_id in outbox if turn_id not in turns]:
            del outbox[turn_id]
        taken = [(turn_id, attempts) for turn_id, (due_at, attempts) in outbox.items() if due_at <= now][:limit]
        outbox.update({turn_id: (until, attempts) for turn_id, attempts in taken})
        return [Notice(turns[turn_id].current(), attempts) for turn_id, attempts in taken]

    async def put_off(self, turn_id: str, due_at: int) -> None:
        if (kept := self._world.outbox.get(turn_id)) is not None:
            self._world.outbox[turn_id] = (due_at, kept[1] + 1)

    async def dismiss(self, turn_id: str) -> None:
        self._world.outbox.pop(turn_id, None)

    async def list_keys(self) -> list[ApiKey]:
        return list(self._world.keys.values())

    async def add_key(self, key: ApiKey) -> None:
        self._world.keys[key.id] = key

    async def revoke_key(self, key_id: str, at: int) -> ApiKey:
        if key_id not in self._world.keys:
            raise KeyNotFoundError(key_id)
        key = self._world.keys[key_id]
        self._world.keys[key_id] = key if key.revoked_at else replace(key, revoked_at=at)
        return self._world.keys[key_id]
