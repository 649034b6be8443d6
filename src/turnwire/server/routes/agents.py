"""Who there is to ask."""

from fastapi import APIRouter

from turnwire.core.contracts import takes_attachments
from turnwire.server.routes.dependencies import Json, Reading, Server

router = APIRouter(prefix="/v1/agents", tags=["agents"])


@router.get("", summary="The agents by name; the first one answers who names none")
async def list_agents(server: Server, caller: Reading) -> Json:
    default = next(iter(server.agents))
    return {
        "agents": [
            {"name": name, "is_default": name == default, "takes_attachments": takes_attachments(agent)}
            for name, agent in server.agents.items()
        ],
        "takes_documents": server.librarian is not None,
    }
