"""API keys, for the operator alone: `turnwire keys` calls these while the server runs."""

from fastapi import APIRouter

from turnwire.server.answers import key_json
from turnwire.server.requests import KeyBody
from turnwire.server.routes.dependencies import Json, Operator, PathId, Server

router = APIRouter(prefix="/v1/keys", tags=["keys"], include_in_schema=False)


@router.get("")
async def index(server: Server, caller: Operator) -> Json:
    return {"keys": [key_json(key) for key in server.keys.all()]}


@router.post("", status_code=201)
async def create(server: Server, caller: Operator, body: KeyBody) -> Json:
    key, text = await server.keys.create(body.principal, body.scopes, body.expires_at)
    return {**key_json(key), "key": text}


@router.delete("/{id}")
async def revoke(server: Server, caller: Operator, id: PathId) -> Json:
    """The key's open streams are broken off at once."""
    key = await server.keys.revoke(id)
    server.streams.close_key(key.id)
    return key_json(key)
