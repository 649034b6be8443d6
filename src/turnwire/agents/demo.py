"""A scripted agent that shows what a turn looks like: no model, no network, no effects.

Its script is a list of beats that never changes, and the end of each tool is a step in the journal. So a turn that was
lost with its process continues at the beat after its last finished tool.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

from msgspec import Struct

from turnwire.core.contracts.agents import OnCrash
from turnwire.core.journal.turn_journal import current_journal, journaled
from turnwire.core.journal.waits import approval
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    CitationEvent,
    Event,
    Hit,
    ReasoningEvent,
    ResponseEvent,
    ReviewEvent,
    SearchEvent,
    StatusEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
)
from turnwire.core.log.turns import Turn

WATCH = "Plan a day on the island. Take your time, so that I can reload the page."
APPROVE = "Buy two ferry tickets. Wait for my approval first."
_RESEARCHER = ("researcher",)
_WORD_SECONDS = 0.035
_TICKETS = {"route": "Norddeich - Norderney", "passengers": 2, "price": "27.00 EUR"}
_PURCHASE = "buy_tickets"
_WHY_APPROVAL = "This demo buys nothing. It shows that a tool can wait for a person."

_TIMETABLE = "Ferries leave Norddeich at 07:30, 09:45 and 13:15. The crossing takes 55 minutes."
_DUNES = "The path through the dunes to the lighthouse is seven kilometres long and closed at high water."
_HITS = (
    Hit(1, "demo-timetable", title="Timetable (sample)", heading="Summer", text=_TIMETABLE, score=0.91),
    Hit(2, "demo-walks", title="Walks (sample)", heading="Lighthouse", text=_DUNES, score=0.84),
)

_PLAN = """\
Sample data says that the 09:45 ferry is the best one. [1] The walk to the lighthouse fits in before high water. [2]

| When | What | Minutes |
| :--- | :--- | ---: |
| 09:45 | Ferry from Norddeich | 55 |
| 11:00 | Dunes and lighthouse, 7 km | 150 |
| 14:00 | Lunch at the harbour | 60 |
| 16:30 | Ferry back | 55 |

- [x] Weather checked
- [x] Timetable read
- [ ] Sun screen packed
"""


class Beat(Struct, frozen=True):
    """An event or a piece of text, and the seconds before it."""

    output: Event | str
    seconds: float = 0.0


class DemoAgent:
    """Agent that plays a script of about thirty seconds, and continues it after a crash.

    A message about tickets or an approval plays a short script that waits for a person; every other message plays the
    whole one. `pace` multiplies all pauses: 0 plays without any.
    """

    description = "A scripted example of a turn. No model: the same steps every time, with sample data."
    starters = (WATCH, APPROVE)
    takes_attachments = False
    takes_model_options = False
    on_crash: OnCrash = "resume"

    def __init__(self, pace: float = 1.0) -> None:
        self._pace = pace

    async def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        is_short = any(word in turn.message.lower() for word in ("approv", "ticket"))
        script = _short_script if is_short else partial(_long_script, turn)
        journal = current_journal()
        # The script is the same for both decisions up to the purchase.
        beats, index = [*script(False)], 0
        while index < len(beats):
            beat = beats[index]
            if journal is None or not journal.is_replaying:
                await asyncio.sleep(beat.seconds * self._pace)
            if isinstance(beat.output, ToolResultEvent):
                await journaled(beat.output.call_id, _run_tool, idempotent=True)
            yield beat.output
            if isinstance(beat.output, ToolCallEvent) and beat.output.tool == _PURCHASE:
                decision = await approval(ApprovalRequestEvent(_PURCHASE, _PURCHASE, _TICKETS, _WHY_APPROVAL))
                beats = [*script(decision.approved)]
            index += 1
        yield ResponseEvent("", mode="scripted")


async def _run_tool() -> None:
    """Do nothing: no tool of the script has an effect."""


# The scripts


def _short_script(is_approved: bool) -> Iterator[Beat]:
    yield Beat(StatusEvent("Playing a script, no model"), 0.2)
    yield from _type("This is a scripted demo: no model, and nothing is bought. The next tool needs your approval.\n\n")
    yield from _purchase(is_approved)
    yield from _type(_after_purchase(is_approved))


def _long_script(turn: Turn, is_approved: bool) -> Iterator[Beat]:
    yield Beat(StatusEvent("Playing a script, no model"), 0.2)
    yield from _think(
        "A day on the island needs the weather, the timetable and an idea what to see. "
        "These three do not depend on each other, so I can look them up together. "
    )
    yield from _type("**This is a scripted demo: no model.** You see what a turn looks like. Reload the page now.\n\n")
    yield from _look_up_together()
    yield from _ask_researcher()
    yield from _fail_and_retry()
    yield from _think("Everything is known now. Tickets cost money, so a person decides. ")
    yield from _purchase(is_approved)
    yield from _type(_after_purchase(is_approved) + "\n\n## Your day\n\n")
    yield from _write_plan()
    yield from _type(_explanation(turn.id))


def _look_up_together() -> Iterator[Beat]:
    """Yield three tool calls that run at once, with progress."""
    yield _call("weather", {"place": "Norderney", "day": "tomorrow"}, 0.5)
    yield _call("timetable", {"harbour": "Norddeich"}, 0.05)
    yield _call("opening_hours", {"place": "lighthouse"}, 0.05)
    for percent in (20, 40, 60, 80):
        yield _progress("weather", percent, f"{percent} of 100 forecasts read")
        yield _progress("timetable", percent, f"page {percent // 20} of 5")
        if percent == 40:
            yield _result("opening_hours", "10:00 to 17:00", 1_500)
    yield _result("timetable", "07:30, 09:45, 13:15", 3_400, pause=0.4)
    yield _result("weather", {"sky": "sunny", "wind": "4 Bft", "high_water": "15:10"}, 4_000, pause=0.6)


def _ask_researcher() -> Iterator[Beat]:
    """Yield a sub-agent with a search, a review of the evidence and a tool of its own."""
    path = _RESEARCHER
    yield _call("ask_researcher", {"question": "What is worth seeing in one day?"}, 0.6)
    yield Beat(SearchEvent("s1", "started", "sample_documents", "island day trip", agent_path=path), 0.5)
    found = SearchEvent("s1", "finished", "sample_documents", "island day trip", hits=_HITS, ms=1_200, agent_path=path)
    yield Beat(found, 1.2)
    kept = ReviewEvent("r1", 1, "approved", "both passages answer the question", kept=(1, 2), agent_path=path)
    yield Beat(kept, 0.7)
    distance = {"from": "harbour", "to": "lighthouse"}
    yield Beat(ToolCallEvent("distance", "distance", distance, agent_path=path), 0.4)
    yield Beat(ToolResultEvent("distance", "distance", True, "7 km", ms=900, agent_path=path), 0.9)
    yield _result("ask_researcher", "The dunes and the lighthouse, 7 km on foot.", 4_100, pause=0.4)


def _fail_and_retry() -> Iterator[Beat]:
    yield _call("free_seats", {"ferry": "09:45"}, 0.5)
    yield Beat(
        ToolResultEvent("free_seats", "free_seats", False, "Timed out after 1.5 s (a scripted failure)", 1_500), 1.5
    )
    yield Beat(StatusEvent("The tool failed; trying again"), 0.3)
    yield Beat(ToolCallEvent("free_seats-2", "free_seats", {"ferry": "09:45", "attempt": 2}), 0.7)
    yield Beat(ToolResultEvent("free_seats-2", "free_seats", True, "31 seats", 1_100), 1.1)


def _purchase(is_approved: bool) -> Iterator[Beat]:
    yield Beat(ToolCallEvent(_PURCHASE, _PURCHASE, _TICKETS), 0.5)
    if is_approved:
        yield _progress(_PURCHASE, 50, "talking to nobody")
        yield _result(_PURCHASE, "Nothing was bought: this is a demo.", 1_400, pause=0.8)
    else:
        yield Beat(ToolResultEvent(_PURCHASE, _PURCHASE, False, "Denied by you."), 0.2)


def _after_purchase(is_approved: bool) -> str:
    if is_approved:
        return "You approved the purchase, so the tool ran with exactly the arguments that you saw. "
    return "You denied the purchase, so the tool did not run, and the agent was told. "


def _write_plan() -> Iterator[Beat]:
    yield from _type(_PLAN)
    for hit in _HITS:
        yield Beat(
            CitationEvent(hit.index, hit.document_id, title=hit.title, heading=hit.heading, supporting_quote=hit.text)
        )


def _explanation(turn_id: str) -> str:
    return f"""
## What you have just seen

Every step above is an event in a log on the server. It was committed before it was shown, so a page that is reloaded, \
a second tab and a terminal show the same turn at the same position.

1. Reasoning, then three tools at once, each with its progress.
2. A sub-agent, the `researcher`, with a search and a tool of its own.
3. A tool that failed, and its second attempt.
4. A purchase that waited for you. While it waited, the server could have been restarted.

Follow this turn in a terminal, from any position (8420 is the default port):

```sh
curl -N 'http://127.0.0.1:8420/v1/turns/{turn_id}/events?after=12'
```

An agent that does this is a function that yields text and events:

```python
from turnwire import Turn, Turnwire
from turnwire.core.log.events import ToolCallEvent, ToolResultEvent


async def answer(turn: Turn):
    yield ToolCallEvent("c1", "weather", {{"city": "Norderney"}})
    yield ToolResultEvent("c1", "weather", True, "sunny")
    yield f"You said: {{turn.message}}. It is sunny."


app = Turnwire(agent=answer).asgi()
```

Send this message again and kill the server in the middle (`kill -9`). Start it again: the turn continues \
after its last finished tool.
"""


def _call(tool: str, args: dict[str, Any], seconds: float) -> Beat:
    return Beat(ToolCallEvent(tool, tool, args), seconds)


def _progress(tool: str, percent: int, text: str) -> Beat:
    return Beat(ToolProgressEvent(tool, text, percent / 100), 0.4)


def _result(tool: str, result: Any, ms: float, pause: float = 0.3) -> Beat:
    return Beat(ToolResultEvent(tool, tool, True, result, ms), pause)


def _type(text: str) -> Iterator[Beat]:
    """Yield a text word by word."""
    for piece in _words(text):
        yield Beat(piece, _WORD_SECONDS)


def _think(text: str) -> Iterator[Beat]:
    for piece in _words(text):
        yield Beat(ReasoningEvent(piece), 2 * _WORD_SECONDS)


def _words(text: str) -> Iterator[str]:
    for line in text.splitlines(keepends=True):
        start = 0
        while (space := line.find(" ", start)) >= 0:
            yield line[start : space + 1]
            start = space + 1
        if start < len(line):
            yield line[start:]
