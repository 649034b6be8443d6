"""The tools of a vault: three that read, and two that write after approval.

Their results are framed as data. They reach nothing outside the vault and no network. Do not give an agent both these
tools and a tool that reaches a network: a hostile note could make it send another note away.
"""

import asyncio
from typing import Any, Protocol

from turnwire.core.codec import clean_text
from turnwire.tools.declaration import Tool, tool
from turnwire.tools.untrusted_text import framed
from turnwire.tools.vault.folder import Vault

_MAX_FOUND = 20
_MAX_LISTED = 200


class NoteIndex(Protocol):
    """A search in the notes' text. The numbers in its results are those that an answer may cite."""

    async def search(self, query: str, limit: int) -> Any:
        """Return the passages that match the query best, best first."""
        ...

    async def passages(self, path: str, content: bytes, start: int) -> Any:
        """Return the passages of a note from a character on, as many as a model can take at once."""
        ...


def vault_tools(vault: Vault, index: NoteIndex) -> list[Tool]:
    """Return the tools of a vault, the reading ones first."""

    @tool
    async def search_vault(query: str, limit: int = 8) -> str:
        """Full-text search in the user's notes. Returns numbered passages, each with the path of its note.

        What has a document in place of a note was uploaded, and can be cited but not read or written.

        Give a few telling words as the query; limit is how many passages, at most 20.
        """
        return framed(await index.search(query, max(1, min(limit, _MAX_FOUND))))

    @tool
    async def read_note(path: str, start: int = 0) -> str:
        """Reads a note by its path in the vault, as numbered passages.

        Of a long note the first part is returned, and with it the start to give for the next one.
        """
        content = await asyncio.to_thread(vault.read, path)
        return framed(await index.passages(path, content, max(0, start)))

    @tool
    def list_notes(folder: str = "", search: str = "", after: str = "") -> str:
        """Lists the paths of the notes in a folder and those below it, all of the vault if none is given.

        search keeps those with this in their path; after goes on behind a path that was listed.
        """
        search = search.casefold()
        notes = [note for note in vault.notes(folder) if search in note.casefold() and note > after]
        return framed({"notes": [*map(clean_text, notes[:_MAX_LISTED])], "more": max(0, len(notes) - _MAX_LISTED)})

    @tool(needs_approval=True)
    def create_note(path: str, content: str) -> str:
        """Makes a new note with this Markdown in it. The user is asked first. A note that is there is not replaced."""
        vault.create(path, clean_text(content))
        return f"Created {path}"

    @tool(needs_approval=True)
    def append_to_note(path: str, content: str) -> str:
        """Adds Markdown to the end of a note that is there. The user is asked first."""
        vault.append(path, clean_text(content))
        return f"Added to {path}"

    return [search_vault, read_note, list_notes, create_note, append_to_note]
