"""Pydantic AI's own adapters for the AI SDK and AG-UI, as its documentation serves them."""

from pathlib import Path

from pydantic_ai.ui.ag_ui import AGUIAdapter
from pydantic_ai.ui.vercel_ai import VercelAIAdapter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from bench.servers.scripted_agent import AGENT, consume
from bench.servers.source_alone import beside_its_source


async def ai_sdk(request: Request) -> Response:
    return await VercelAIAdapter.dispatch_request(request, agent=AGENT)


async def ag_ui(request: Request) -> Response:
    return await AGUIAdapter.dispatch_request(request, agent=AGENT)


def app(data: Path | None) -> ASGIApp:
    routes = [Route("/api/chat", ai_sdk, methods=["POST"]), Route("/ag-ui", ag_ui, methods=["POST"])]
    return beside_its_source(Starlette(routes=routes), consume)
