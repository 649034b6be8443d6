from typing import Any

from pydantic import BaseModel

from turnwire.core.contracts.stores import SqlConnection
from turnwire.plugins import Service
from turnwire.server.request import Request
from turnwire.server.router import Route, RouteGroup
from turnwire.server.services import Services

NOTES = """CREATE TABLE IF NOT EXISTS turnwire.notes_note (
    principal TEXT NOT NULL, name TEXT NOT NULL, text TEXT NOT NULL, PRIMARY KEY (principal, name))"""
WRITE = """INSERT INTO turnwire.notes_note (principal, name, text) VALUES ($1, $2, $3)
    ON CONFLICT (principal, name) DO UPDATE SET text = excluded.text"""
READ = "SELECT name, text FROM turnwire.notes_note WHERE principal = $1 ORDER BY name"
group = RouteGroup("notes")


class NotesService(Service):
    def __init__(self, services: Services) -> None:
        self.store = services.store

    async def open(self) -> None:
        await self.store.create_tables([NOTES])

    async def write(self, principal: str, name: str, text: str) -> None:
        async def work(connection: SqlConnection) -> None:
            await connection.execute(WRITE, principal, name, text)

        await self.store.transaction(work)

    async def read(self, principal: str) -> dict[str, str]:
        async def work(connection: SqlConnection) -> list[Any]:
            return await connection.fetch(READ, principal)

        return dict(await self.store.transaction(work))


class Note(BaseModel):
    text: str


@group.route("PUT", "/v1/notes/{name}", "Write a note", body=Note)
async def write(request: Request, services: Services) -> dict[str, Any]:
    note = await request.parse_body(Note)
    await services.of(NotesService).write(request.caller.principal, request.id_param("name"), note.text)
    return {"written": True}


@group.route("GET", "/v1/notes", "Read all notes")
async def read(request: Request, services: Services) -> dict[str, Any]:
    return {"notes": await services.of(NotesService).read(request.caller.principal)}


def routes() -> list[Route]:
    return group.routes
