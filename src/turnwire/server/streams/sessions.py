"""All the turns of a session in one stream, each whole and in order."""

import asyncio
import logging

from turnwire.assembly import SSE_CHAT
from turnwire.core.contracts import Store
from turnwire.core.errors import NotFoundError
from turnwire.core.turns import TurnRecord
from turnwire.server.streams.connection import Connection
from turnwire.server.streams.replay import Replay

logger = logging.getLogger("turnwire.streams")


async def stream_session(
    store: Store, session_id: str, last: TurnRecord | None, position: int, connection: Connection
) -> None:
    """Writes what comes after a position of the `last` turn seen, then every later turn, and waits for more.

    It ends when the session is deleted.
    """
    accepted = asyncio.Event()
    unwatch = store.watch(session_id, lambda _: accepted.set())
    try:
        turn = last
        while not connection.is_finished:
            if turn is not None and not (turn.phase == "ended" and position >= turn.last_position):
                await _write_turn(store, turn.id, position, connection)
            accepted.clear()
            following = await store.next_turn(session_id, turn.id if turn else None)
            while following is None:
                await accepted.wait()
                accepted.clear()
                await store.find_session(connection.principal, session_id)
                following = await store.next_turn(session_id, turn.id if turn else None)
            turn, position = following, 0
    except NotFoundError:
        connection.write(b"", last=True)
    except Exception:
        logger.exception("the stream of session %s broke", session_id)
        connection.abort()
    finally:
        unwatch()


async def _write_turn(store: Store, turn_id: str, position: int, connection: Connection) -> None:
    replay = Replay(store, turn_id, connection, position, encoder=SSE_CHAT.session_encoder(turn_id))
    changed = asyncio.Event()
    unwatch = store.watch(turn_id, lambda _: changed.set())
    try:
        while not replay.has_ended and not connection.is_finished:
            changed.clear()
            before = replay.position
            await replay.write_page()
            if replay.position == before:
                await changed.wait()
    finally:
        unwatch()
