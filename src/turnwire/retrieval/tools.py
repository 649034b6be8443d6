"""The tools that a model is given to search with. What they return is data, framed so that it stays data."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from turnwire.core.events import StatusEvent, ToolCallEvent, ToolResultEvent
from turnwire.models.contract import ToolSpec, ToolWish
from turnwire.retrieval.gathering import SEARCH, Gathering, reading_index
from turnwire.retrieval.prompts import passages_json
from turnwire.tools.arguments import read_arguments
from turnwire.tools.framing import framed

_LIST_LIMIT = 100
_MOST_LIMIT = 20
_LONGEST_ARGUMENTS = 20_000


def _spec(name: str, description: str, **properties: dict[str, Any]) -> ToolSpec:
    required = [key for key, told in properties.items() if not told.pop("optional", False)]
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return ToolSpec(name, description, schema)


TOOLS = (
    _spec(
        SEARCH,
        "Full-text search in the user's documents. Returns numbered passages.",
        query={"type": "string", "description": "A few telling words."},
        limit={"type": "integer", "description": "How many passages, at most 20.", "optional": True},
    ),
    _spec(
        "read_passage",
        "Read a passage in full together with what stands before and after it.",
        number={"type": "integer", "description": "The number of a passage that was found."},
    ),
    _spec(
        "list_documents",
        "List the documents there are.",
        search={"type": "string", "description": "Only those with this in their name or title.", "optional": True},
    ),
)


class ToolBox:
    """Runs the tools that a model wishes for. A wish that makes no sense is answered, not raised."""

    def __init__(self, gathering: Gathering, limit: int) -> None:
        self._gathering = gathering
        self._limit = limit
        self._tools: dict[str, Callable[[dict[str, Any]], Awaitable[str]]] = {
            SEARCH: self._search,
            "read_passage": self._read_passage,
            "list_documents": self._list_documents,
        }

    async def run(self, wish: ToolWish) -> str:
        """What the model is told."""
        tool = self._tools.get(wish.tool)
        args = arguments_of(wish)
        if tool is None:
            await self._gathering.tell(
                StatusEvent(f"The model asked for a tool that is not there: {wish.tool[:80]!r}.")
            )
            return _refusal(f"there is no tool {wish.tool!r}; there is {', '.join(self._tools)}")
        if wish.tool == SEARCH and args is not None:
            # A search tells of itself, in an event of its own kind.
            try:
                return await self._search(args)
            except _WrongArguments as error:
                return _refusal(str(error))
        began = time.perf_counter()
        await self._gathering.tell(ToolCallEvent(wish.call_id, wish.tool, args or {}))
        success, result = False, ""
        try:
            if args is None:
                result = _refusal("the arguments are not a JSON object")
            else:
                result = await tool(args)
                success = True
        except _WrongArguments as error:
            result = _refusal(str(error))
        finally:
            ms = round((time.perf_counter() - began) * 1000, 1)
            await self._gathering.tell(ToolResultEvent(wish.call_id, wish.tool, success, _short(result), ms))
        return result

    async def _search(self, args: dict[str, Any]) -> str:
        query, limit = args.get("query"), args.get("limit", self._limit)
        if not isinstance(query, str) or not query.strip():
            raise _WrongArguments("query: a text is needed")
        if not isinstance(limit, int) or isinstance(limit, bool):
            limit = self._limit
        found = await self._gathering.search(query, max(1, min(limit, _MOST_LIMIT)))
        return passages_json(found)

    async def _read_passage(self, args: dict[str, Any]) -> str:
        evidence = self._gathering.book.get(args.get("number"))
        if evidence is None:
            raise _WrongArguments("number: no passage of this number was found; search first")
        near = await self._gathering.around(evidence)
        return passages_json(near)

    async def _list_documents(self, args: dict[str, Any]) -> str:
        search = args.get("search")
        library, owner = self._gathering.searcher.library, self._gathering.owner
        wanted = search if isinstance(search, str) else None
        with reading_index():
            documents = await asyncio.to_thread(library.documents, owner=owner, search=wanted, limit=_LIST_LIMIT)
        return framed([{"name": one.name, "title": one.title, "characters": one.characters} for one in documents])


class _WrongArguments(Exception):
    """The model's arguments do not fit the tool; the message is for the model."""


def arguments_of(wish: ToolWish) -> dict[str, Any] | None:
    """None if they are not a JSON object, or one that nobody needs."""
    return None if len(wish.arguments) > _LONGEST_ARGUMENTS else read_arguments(wish.arguments)


def _refusal(why: str) -> str:
    return framed({"error": why})


def _short(result: str) -> str:
    return result if len(result) <= 2_000 else result[:2_000] + "…"
