"""An agent with everything that continuation must get right, for every SDK, and the model that it calls.

The module of an SDK in `agent_cases/` has

    def build_office(url, tools):   an unmodified agent with the functions `tools`, of which `send` needs approval and
                                    `pick` asks a question. If
                                    the SDK knows sub-agents, its tool `ask_scout(input)` runs an agent "Scout" with
                                    the tool `look`; if it knows handoffs, it can hand over to "Boss", which has `pay`
                                    and `send`
    def adapt_office(built):        our adapter, with `IDEMPOTENT` tools that may run again

The model answers by what a request says, so that the same request has the same answer whenever it comes. The last word
of the message is the tag of the turn, which is in all arguments. A message that begins with "Run" needs no approval.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from tests.scripted_model import Answer, Request, calls, conversation_of, offered_tools, says
from turnwire import ask
from turnwire.tools import progress

IDEMPOTENT = ("look", "count", "ask_scout")
FINAL = "All is done."
CHOICE = {"type": "string", "enum": ["red", "blue"]}
LOCATE = {"name": "locate", "parameters": {"type": "object", "properties": {"near": {"type": "string"}}}}
"""The client's tool in turns whose message begins with "Ask"."""
Note = Callable[[str, str], None]


def office_tools(note: Note, seconds: float = 0.0) -> dict[str, Callable[..., Any]]:
    """Return the tools by name, which take some seconds. They call `note("began" | "ended", "look Oslo 17")`."""

    async def do(call: str) -> None:
        note("began", call)
        progress("half")
        if seconds:
            await asyncio.sleep(seconds)
        note("ended", call)

    async def look(city: str) -> dict[str, str]:
        """Look up the weather in a city."""
        await do(f"look {city}")
        return {"weather": f"snow in {city}"}

    def count(word: str) -> int:
        """Count the letters of a word, in a thread."""
        asyncio.run(do(f"count {word}"))
        return len(word)

    async def pay(to: str) -> str:
        """Pay somebody."""
        await do(f"pay {to}")
        return "paid"

    async def send(to: str) -> str:
        """Send a letter."""
        await do(f"send {to}")
        return f"sent to {to}"

    async def pick(item: str) -> str:
        """Let the user pick something."""
        choice = await ask(f"Which {item}?", CHOICE)
        await do(f"pick {item}")
        return f"{choice} {item}"

    return {tool.__name__: tool for tool in (look, count, pay, send, pick)}


def tag_of(request: Request) -> str:
    """Return the tag of the turn that a request to the model belongs to."""
    return _first_message(request.body).split()[-1]


def reply(request: Request, final: str = FINAL) -> Answer:
    """Return the answer to a request of any agent of the office."""
    message, tag = _first_message(request.body), tag_of(request)
    ended = {entry[0] for kind, entry in conversation_of(request.body) if kind == "result"}
    offered = offered_tools(request.body)
    if message.startswith("Report"):
        city = message.split()[1]
        if f"r-{city}" not in ended:
            return calls(("look", {"city": f"{city} {tag}"}), text="Going.", ids=[f"r-{city}"])
        return says(f"{city}: snow.")
    if message.startswith("Ask"):
        return _reply_with_waits(tag, ended)
    if not ended:
        wanted = [("look", {"city": f"Oslo {tag}"}), ("count", {"word": f"tea {tag}"}), ("pay", {"to": f"ann {tag}"})]
        return calls(*wanted, text="I look.", ids=["l1", "l2", "p1"])
    if "ask_scout" in offered and "s1" not in ended:
        asks = [("ask_scout", {"input": f"Report {city} {tag}"}) for city in ("Rome", "Bern")]
        return calls(*asks, ids=["s1", "s2"])
    if "transfer_to_boss" in offered:
        return calls(("transfer_to_boss", {}), text="Boss!", ids=["t1"])
    if "a1" not in ended and not message.startswith("Run"):
        return calls(("send", {"to": f"bob {tag}"}), text="A letter.", ids=["a1"])
    return says(final)


def _reply_with_waits(tag: str, ended: set[str]) -> Answer:
    """Call tools that ask and tools of the client, beside others and alone."""
    if not ended:
        wanted = [
            ("look", {"city": f"Oslo {tag}"}),
            ("locate", {"near": f"ann {tag}"}),
            ("pick", {"item": f"tea {tag}"}),
            ("pay", {"to": f"ann {tag}"}),
        ]
        return calls(*wanted, text="I look.", ids=["l1", "c1", "q1", "p1"])
    if "c2" not in ended:
        return calls(("locate", {"near": f"bob {tag}"}), text="And Bob?", ids=["c2"])
    if "q2" not in ended:
        return calls(("pick", {"item": f"cup {tag}"}), ids=["q2"])
    return says(FINAL)


def _first_message(body: dict[str, Any]) -> str:
    return next(entry for kind, entry in conversation_of(body) if kind == "user")
