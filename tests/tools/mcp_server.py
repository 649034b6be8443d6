"""A real MCP server for tests: `python mcp_server.py [behaviour]` on stdio, or `build()` for one over HTTP."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Context, Elicit, ElicitationResult, Image, MCPServer, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel


class Booking(BaseModel):
    seat: Literal["first", "second"]


def build(behaviour: str = "kind", marks: Path | None = None) -> MCPServer:
    """Build a server. In the folder `marks` its tools leave a file for each thing that happens to them."""
    server = MCPServer("test", log_level="ERROR")

    def mark(name: str) -> None:
        folder = marks or Path(os.environ["MARKS"])
        (folder / name).touch()

    @server.tool()
    async def weather(city: str) -> str:
        """Return the weather in a city."""
        return f"Sunny in {city}"

    @server.tool()
    async def count(to: int, ctx: Context[Any, Any]) -> str:
        """Counts, and tells how far it is."""
        for number in range(1, to + 1):
            await ctx.report_progress(number, to, f"at {number}")
        return f"counted to {to}"

    @server.tool()
    async def refuse(why: str) -> str:
        """Always fails."""
        raise ToolError(why)

    @server.tool(structured_output=False)
    async def shout(times: int) -> str:
        """Says much."""
        return "A" * times

    @server.tool()
    async def hang() -> str:
        """Never ends."""
        mark("hanging")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            mark("cancelled")
            raise
        return ""

    @server.tool()
    async def die() -> str:
        """Takes the server with it."""
        os._exit(3)

    @server.tool()
    async def variable(name: str) -> str:
        """An environment variable of the server."""
        print(f"asked for {name}", file=sys.stderr, flush=True)
        return os.environ.get(name, "not set")

    @server.tool()
    async def facts() -> dict[str, Any]:
        """Return the facts that the server knows."""
        return {"cities": ["Oslo", "Rome"], "complete": False}

    @server.tool(structured_output=False)
    async def picture() -> list[Any]:
        """A picture and a word."""
        return ["Here:", Image(data=b"\x89PNG" * 100, format="png")]

    @server.tool()
    async def book(city: str, ctx: Context[Any, Any]) -> str:
        """Books a journey, and asks in the middle of the call."""
        result = await ctx.elicit(f"Which class to {city}?", Booking)
        return f"{result.action} {result.data.seat}" if result.action == "accept" else result.action

    async def choose(city: str) -> Elicit[Booking]:
        return Elicit(f"Which class to {city}?", Booking)

    @server.tool()
    async def reserve(city: str, booking: Annotated[ElicitationResult[Booking], Resolve(choose)]) -> str:
        """Reserves a seat, and asks before it begins."""
        return f"{booking.action} {booking.data.seat}" if booking.action == "accept" else booking.action

    if behaviour == "odd":
        for name in ("files.read/all", "files_read_all", "...", "x" * 100):
            server.add_tool(weather, name=name)
    if behaviour == "many":
        for number in range(200):
            server.add_tool(weather, name=f"weather_{number}")
    return server


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["silent"]:
            sys.stdin.read()
        case ["rude"]:
            print("This is no JSON.", flush=True)
        case _:
            asyncio.run(build().run_stdio_async())
