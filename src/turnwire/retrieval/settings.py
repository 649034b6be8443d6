"""The settings of the agents that answer from documents."""

from pathlib import Path
from typing import Literal

from pydantic import DirectoryPath, Field, SecretStr

from turnwire.settings import PluginSettings


class DocumentSettings(PluginSettings, env_prefix="TURNWIRE_DOCUMENTS_"):
    paths: list[Path] = Field(default=[], description="Files and folders to answer from, for an agent `documents`.")
    watch: bool = Field(default=False, description="Whether documents that change are indexed again.")
    vault: DirectoryPath | None = Field(
        default=None,
        description="A folder of Markdown notes for an agent `vault`; the apps of Obsidian may then call.",
    )
    max_bytes: int = Field(
        default=20 * 1024 * 1024, gt=0, description="The largest document, in a folder or as an upload."
    )
    max_uploads: int = Field(
        default=1_000, ge=0, description="The most documents that a principal may upload; more are a 429."
    )
    timeout: float = Field(default=30, gt=0, description="How long an uploaded document may take to read.")
    embeddings: Literal["auto", "off", "minilm", "endpoint"] = Field(
        default="auto",
        description="Semantic search: `minilm` in the process, a server `endpoint`, or `auto`: `minilm` if installed.",
    )
    embeddings_model: str = Field(default="", description="The endpoint's name for its embedding model.")
    embeddings_url: str | None = Field(default=None, description="The endpoint's URL; by default `model_url`.")
    embeddings_key: SecretStr | None = Field(
        default=None, description="The endpoint's API key; by default `model_key`."
    )
