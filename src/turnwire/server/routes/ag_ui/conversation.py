"""Where in a thread a message belongs: which turn it continues, and what was said before the thread came here.

Our messages have the id of their turn in front of their own, and of the user's we remember which turn answers them. So
the conversation that is gone on with is the one that the client shows.
"""

from msgspec import Struct, field

from turnwire.core.contracts import OnBusy
from turnwire.core.encoding import clean_text
from turnwire.core.errors import SessionNotFoundError
from turnwire.core.turns import Message, TurnRecord
from turnwire.server.routes.ag_ui.messages import RunInput, ThreadMessage, history_of
from turnwire.server.turnwire import Turnwire

_MOST_TURNS = 200


class Plan(Struct, frozen=True, kw_only=True):
    """How a message is to be answered. With `anew` its turn continues none, though it is not the first.

    `history` is what was said elsewhere; the session remembers it from its first turn on.
    """

    parent: TurnRecord | None = None
    anew: bool = False
    history: list[Message] = field(default_factory=list[Message])
    on_busy: OnBusy = "enqueue"


async def plan_for(turnwire: Turnwire, principal: str, body: RunInput) -> Plan:
    turns = await _turns_of(turnwire, principal, body.thread_id)
    if not turns:
        most = 2 * turnwire.settings.history_turns
        return Plan(history=history_of(body.earlier[-most:]) if most else [])
    by_id = {turn.id: turn for turn in turns}
    parent = next((turn for told in reversed(body.earlier) if (turn := _turn_of(told, turns, by_id))), None)
    anew = parent is None and not body.earlier and _turn_of(body.asked, turns, by_id) is not None
    waits = any(turn.phase == "waiting" for turn in turns)
    return Plan(
        parent=parent,
        anew=anew,
        # Who writes on instead of deciding does not want what was asked about any more.
        on_busy="interrupt" if waits else "enqueue",
    )


async def _turns_of(turnwire: Turnwire, principal: str, thread_id: str | None) -> list[TurnRecord]:
    if thread_id is None:
        return []
    try:
        session = await turnwire.store.find_session(principal, thread_id)
    except SessionNotFoundError:
        return []
    return await turnwire.store.list_turns(principal, session_id=session.id, limit=_MOST_TURNS)


def _turn_of(told: ThreadMessage, turns: list[TurnRecord], by_id: dict[str, TurnRecord]) -> TurnRecord | None:
    """The turn that a message is of. Simple clients use an id again, so the words must be the same too."""
    if not told.id:
        return None
    if told.role != "user":
        return by_id.get(told.id.partition(":")[0])
    asked = told.id, clean_text(told.text)
    return next((turn for turn in reversed(turns) if (turn.options.get("message_id"), turn.message) == asked), None)
