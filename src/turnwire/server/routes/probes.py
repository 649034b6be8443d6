"""Is it alive, is it ready, and what is this."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.responses import Response

from turnwire.server.routes.dependencies import Server

router = APIRouter(tags=["probes"])

_WELCOME = """Turnwire is running. Open {base}/ in a browser, or try:

  curl -N {base}/chat/stream -H 'Content-Type: application/json' -d '{{"message": "Hello"}}'

Every frame has an id. Break the stream off, and go on after the last id you saw:

  curl -N '{base}/v1/turns/TURN_ID/events?after=12'

All routes: {base}/docs
"""


@router.get("/", response_class=PlainTextResponse, summary="The web page for browsers; for others, what to try")
async def welcome(server: Server) -> str:
    return _WELCOME.format(base=f"http://{server.settings.host}:{server.settings.port}")


@router.get("/healthz", summary="Whether the process is alive")
async def healthz() -> dict[str, str]:
    return {"status": "ok"}


@router.get("/readyz", summary="Whether it takes new turns")
async def readyz(server: Server) -> Response:
    if server.leaving.is_set():
        return JSONResponse({"status": "draining"}, 503)
    return JSONResponse({"status": "ready", "running_turns": server.runner.running_count})
