"""Which turn answers what a chat's client sends, and where in it the client goes on; over HTTP and on a socket."""

from turnwire.core.errors import SessionNotFoundError, TurnNotFoundError
from turnwire.core.ids import is_own_id
from turnwire.core.turns import TurnRecord
from turnwire.server.auth import Caller
from turnwire.server.routes.ai_sdk.conversation import plan_for
from turnwire.server.routes.ai_sdk.deciding import decide
from turnwire.server.routes.ai_sdk.messages import ChatBody, UIMessage, asked_body
from turnwire.server.routes.ai_sdk.places import RunId, parse_run_id, place_of_decision
from turnwire.server.streams.lookahead import Place
from turnwire.server.turnwire import Turnwire
from turnwire.wires.ai_sdk.chunks import chunk
from turnwire.wires.ai_sdk.wire import AiSdk


async def started(turnwire: Turnwire, caller: Caller, body: ChatBody, key: str | None) -> TurnRecord:
    """The turn that answers a message: a new one, or the one that does already."""
    plan = await plan_for(turnwire, caller.principal, body)
    if plan.joins is not None:
        return plan.joins
    asked = asked_body(body, plan.session_id, plan.on_busy, plan.told)
    accepted = await turnwire.start(
        caller.principal, asked, key or plan.key, parent=plan.parent, anew=plan.anew, history=plan.history
    )
    return accepted.record


async def gone_on(
    turnwire: Turnwire, caller: Caller, body: ChatBody, said: UIMessage, wire: AiSdk
) -> tuple[TurnRecord, Place | None]:
    """Takes the decisions in a message, whose id is the turn's: that turn, and where they were waited for.

    No place, if it still waits for decisions that the client has yet to make.
    """
    caller.needs("approve")
    record = await turnwire.store.find_turn(caller.principal, said.id or "")
    if body.id is not None:
        session = await turnwire.store.find_session(caller.principal, body.id)
        if session.id != record.session_id:
            raise TurnNotFoundError(record.id)
    decided = await decide(turnwire, caller, record, said)
    place = await place_of_decision(turnwire.store, record.id, wire, decided)
    return await turnwire.store.find_turn(caller.principal, record.id), place


def still_waiting(turn_id: str) -> list[bytes]:
    """The chunks that tell a client to come back with the rest of its decisions."""
    return [chunk("start", {"messageId": turn_id}), chunk("finish", {"finishReason": "tool-calls"})]


async def run_of(turnwire: Turnwire, caller: Caller, wanted: str) -> RunId | None:
    """The turn that a chat is answering, or the one that is named itself; None if there is none."""
    store = turnwire.store
    try:
        session = await store.find_session(caller.principal, wanted)
    except SessionNotFoundError:
        run = parse_run_id(wanted)
        if not is_own_id(run.turn_id):
            return None
        return RunId((await store.find_turn(caller.principal, run.turn_id)).id, run.first)
    running = await unfinished(turnwire, caller, session.id)
    return RunId(running[0].id) if running else None


async def unfinished(turnwire: Turnwire, caller: Caller, session_id: str) -> list[TurnRecord]:
    most = turnwire.settings.max_queued_turns + 2
    turns = await turnwire.store.list_turns(caller.principal, session_id=session_id, limit=most)
    return [turn for turn in turns if turn.phase != "ended"]
