"""Tools that come from somewhere else, and may be others tomorrow: those of an MCP server, say."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from msgspec import structs

from turnwire.tools.declaring import NAME, Tool

logger = logging.getLogger("turnwire.tools")


@runtime_checkable
class Toolset(Protocol):
    """Where an agent gets tools from while it runs. One toolset may serve many turns, and several agents, at once."""

    name: str

    async def open(self) -> Sequence[Tool]:
        """The tools as they are now; connects first if that is needed. Asked at the beginning of every turn.

        Raises AgentError, in words that a user may read, if there are none to be had.
        """
        ...

    async def close(self) -> None:
        """Lets go of what `open` made; safe to call again. What is opened after it is connected anew."""
        ...


async def open_toolsets(tools: Mapping[str, Tool], toolsets: Sequence[Toolset]) -> dict[str, Tool]:
    """All tools by their names; the agent's own keep theirs. Raises AgentError.

    A tool whose name is taken gets the name of its toolset before it, so that nobody can stand in for another.
    """
    found = dict(tools)
    for toolset, offered in zip(toolsets, await asyncio.gather(*(one.open() for one in toolsets)), strict=True):
        for tool in offered:
            name = tool.name if tool.name not in found else f"{toolset.name}_{tool.name}"
            if name in found or not NAME.fullmatch(name):
                logger.warning("the tool %r of %r is left out: its name is taken", tool.name, toolset.name)
                continue
            found[name] = tool if name == tool.name else structs.replace(tool, name=name)
    return found
