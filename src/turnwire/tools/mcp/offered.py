"""What a server offers, as far as a model can be offered it. Nothing in it is believed: a server may be anybody's."""

import json
import logging
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import mcp_types as types
from msgspec import Struct

from turnwire.tools.declaring import NAME

logger = logging.getLogger("turnwire.tools.mcp")

MOST_TOOLS = 128
"""More than this, model providers refuse."""
_DESCRIPTION_CHARACTERS = 8_000
_SCHEMA_CHARACTERS = 64_000
_NAME_CHARACTERS = 64


class Offered(Struct, frozen=True):
    """One tool: its name at the server, and what a model is told of it."""

    name: str
    called: str
    description: str
    parameters: dict[str, Any]


def offer(server: str, listed: Sequence[types.Tool], wanted: Collection[str] | None, prefix: str) -> list[Offered]:
    """Those that are wanted, under names that model providers take. What is left out is told in the log."""
    found: dict[str, Offered] = {}
    for tool in _chosen(server, listed, wanted):
        called = _fitting(prefix + tool.name)
        parameters: dict[str, Any] = {"properties": {}, **tool.input_schema, "type": "object"}
        if not called:
            _leave_out(server, tool.name, "models cannot call it by such a name")
        elif called in found:
            _leave_out(server, tool.name, f"another one is called {called!r} already")
        elif len(json.dumps(parameters)) > _SCHEMA_CHARACTERS:
            _leave_out(server, tool.name, "what it takes is longer than a model should read")
        elif len(found) == MOST_TOOLS:
            logger.warning("the MCP server %r offers more than %d tools; choose some with `tools`", server, MOST_TOOLS)
            break
        else:
            description = (tool.description or tool.title or "")[:_DESCRIPTION_CHARACTERS]
            found[called] = Offered(tool.name, called, description, parameters)
    return list(found.values())


def _chosen(server: str, listed: Sequence[types.Tool], wanted: Collection[str] | None) -> Iterator[types.Tool]:
    if wanted is not None and (missing := set(wanted) - {tool.name for tool in listed}):
        logger.warning("the MCP server %r has no tool %s", server, ", ".join(map(repr, sorted(missing))))
    return (tool for tool in listed if wanted is None or tool.name in wanted)


def _fitting(name: str) -> str:
    """The name with `_` for what must not be in it; empty if nothing of it would be left."""
    fitting = re.sub("[^a-zA-Z0-9_-]", "_", name)[:_NAME_CHARACTERS]
    return fitting if NAME.fullmatch(fitting) and fitting.strip("_") else ""


def _leave_out(server: str, tool: str, why: str) -> None:
    logger.warning("the tool %r of the MCP server %r is left out: %s", tool[:80], server, why)
