"""All the turns of a session in one stream, each whole and in order."""

import asyncio
import logging

from turnwire.assembly import SSE_CHAT
from turnwire.core.contracts import Gap, Store
from turnwire.core.errors import EventsGoneError
from turnwire.core.follow import follow
from turnwire.core.turns import TurnRecord, TurnState
from turnwire.server.streams.connection import Connection

logger = logging.getLogger("turnwire.streams")


async def stream_session(
    store: Store, session_id: str, last: TurnRecord | None, position: int, connection: Connection
) -> None:
    """Writes what comes after a position of the `last` turn seen, then every later turn, and waits for more."""
    accepted = asyncio.Event()
    unwatch = store.watch(session_id, lambda _: accepted.set())
    try:
        turn = last
        while not connection.is_finished:
            if turn is not None:
                await _write_turn(store, turn.id, position, connection)
            accepted.clear()
            following = await store.next_turn(session_id, turn.id if turn else None)
            while following is None:
                await accepted.wait()
                accepted.clear()
                following = await store.next_turn(session_id, turn.id if turn else None)
            turn, position = following, 0
    except Exception:
        logger.exception("the stream of session %s broke", session_id)
        connection.abort()
    finally:
        unwatch()


async def _write_turn(store: Store, turn_id: str, position: int, connection: Connection) -> None:
    frame = SSE_CHAT.session_encoder(turn_id).frame
    try:
        async for events in follow(store, turn_id, position):
            await connection.written(b"".join(map(frame, events)))
    except EventsGoneError as gone:
        state = await store.turn_state(turn_id) or TurnState()
        await connection.written(SSE_CHAT.control(Gap(position, gone.first_kept, state)))
        await _write_turn(store, turn_id, gone.first_kept - 1, connection)
