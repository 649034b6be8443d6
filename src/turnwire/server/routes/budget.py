"""What a caller has used today, and has left."""

from fastapi import APIRouter

from turnwire.server.answers import budget_json
from turnwire.server.routes.dependencies import Json, Reading, Server

router = APIRouter(prefix="/v1/budget", tags=["budget"])


@router.get("", summary="The tokens you have used today, and have left")
async def show(server: Server, caller: Reading) -> Json:
    return budget_json(await server.runner.budget(caller.principal))
