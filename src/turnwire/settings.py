"""Everything that can be configured, with its default.

A setting is given to `Settings(...)` in code, or as an environment variable `TURNWIRE_<NAME>`.
Times are in seconds. A released name keeps its meaning for ever.
"""

import os
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


def default_data_folder() -> Path:
    """Where data goes when nobody says: the user's own data folder."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "turnwire"


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="TURNWIRE_", extra="forbid")

    data: Path = Field(default_factory=default_data_folder, description="The folder that holds the logs.")
    host: str = Field(
        default="127.0.0.1", description="The address to listen on. Anything but loopback needs an API key."
    )
    port: int = Field(default=8420, ge=0, le=65535, description="The port to listen on; 0 picks a free one.")

    allowed_hosts: list[str] = Field(default=[], description="Names, beside loopback, that a request's Host may have.")
    allowed_origins: list[str] = Field(default=[], description="Web origins that may call from a browser (CORS).")
    ai_sdk_version: int = Field(
        default=6, ge=5, le=7, description="The major version of the AI SDK's clients; `?sdk_version=` says otherwise."
    )

    max_body_bytes: int = Field(default=1024 * 1024, gt=0, description="The largest request body; more is a 413.")
    max_event_bytes: int = Field(default=256 * 1024, ge=1024, description="The largest event; more ends the turn.")
    max_events_per_turn: int = Field(default=100_000, ge=10, description="The most events in a turn; more ends it.")
    max_uncommitted_events: int = Field(default=1_000, gt=0, description="How far an agent may run ahead of the disk.")
    max_queued_turns: int = Field(
        default=8, ge=0, description="Turns that may wait in a session behind the running one."
    )
    max_running_turns: int = Field(
        default=64, gt=0, description="Unfinished turns a principal may have; more is a 429."
    )
    max_open_streams: int = Field(default=64, gt=0, description="Streams a principal may have open; more is a 429.")
    max_socket_rate: float = Field(
        default=50, gt=0, description="Messages a second that are taken from one WebSocket; more have to wait."
    )
    history_turns: int = Field(default=50, ge=0, description="How many earlier turns an agent is given.")

    turn_timeout: float = Field(default=600, gt=0, description="The longest a turn may run.")
    approval_timeout: float = Field(
        default=86_400, gt=0, description="How long a turn waits for a person to decide; then it is a denial."
    )
    cancel_patience: float = Field(default=5, ge=0, description="How long a cancelled agent may take to stop.")
    shutdown_grace: float = Field(default=10, ge=0, description="How long running turns may go on after SIGTERM.")
    lease: float = Field(default=10, gt=0, description="After this long without a sign of life a worker is dead.")
    heartbeat: float = Field(default=15, gt=0, description="An idle stream says something this often.")
    text_start_timeout: float = Field(
        default=10, ge=0, description="A text stream begins after this long, also if there is nothing to say yet."
    )
    write_timeout: float = Field(default=30, gt=0, description="A reader that takes nothing for this long is dropped.")
    stream_lifetime: float = Field(default=900, gt=0, description="A stream is asked to reconnect after this long.")
    keep_logs: float = Field(default=30 * 86_400, gt=0, description="How long the events of an ended turn are kept.")
    maintenance_interval: float = Field(
        default=10, gt=0, description="How often ended logs are sealed and old ones dropped."
    )

    model: str | None = Field(default=None, description="The language model to ask, by its server's name for it.")
    model_url: str | None = Field(
        default=None, description="Where the model is served, such as `http://localhost:8080/v1`; OpenAI when not set."
    )
    model_key: SecretStr | None = Field(
        default=None, description="The model server's API key; `OPENAI_API_KEY` when not set."
    )
    model_api: Literal["chat", "responses"] = Field(
        default="chat", description="How to talk to it: `chat` is Chat Completions, which all servers know."
    )
    model_timeout: float = Field(default=60, gt=0, description="A model that is silent for this long has failed.")
    model_retries: int = Field(
        default=2, ge=0, description="How often a model is asked again that has not begun to answer."
    )

    max_document_bytes: int = Field(
        default=20 * 1024 * 1024, gt=0, description="The largest document, in a folder or as an upload."
    )
    max_uploads: int = Field(default=1_000, ge=0, description="Documents that a principal may upload; more is a 429.")
    document_timeout: float = Field(default=30, gt=0, description="How long an uploaded document may take to read.")
    embeddings: Literal["auto", "off", "minilm", "endpoint"] = Field(
        default="auto",
        description="Search by meaning: `minilm` runs here, `endpoint` asks a server, `auto` is `minilm` if installed.",
    )
    embeddings_model: str = Field(default="", description="The endpoint's name for its embedding model.")
    embeddings_url: str | None = Field(default=None, description="The endpoint's address; `model_url` when not set.")
    embeddings_key: SecretStr | None = Field(default=None, description="Its API key; `model_key` when not set.")
