"""Everything that can be configured, with its default.

A setting is given to `Settings(...)` in code, as an environment variable `TURNWIRE_<NAME>`, or in a TOML file.
Times are in seconds. A released name keeps its meaning for ever.
"""

import os
import re
import tomllib
from base64 import b64decode
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    DirectoryPath,
    Discriminator,
    Field,
    SecretStr,
    StringConstraints,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError


def default_data_folder() -> Path:
    """Where data goes when nobody says: the user's own data folder."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "turnwire"


class AgentSettings(BaseModel):
    """An agent that is a model with tools. What is not said of the model is as the settings of that name say."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    model: str | None = None
    model_url: str | None = None
    model_key_env: str | None = None
    """The environment variable that holds the key, so that no key need stand in a file."""
    model_api: Literal["chat", "responses"] | None = None
    instructions: str = ""
    tools: list[str] = []
    """`module:name` each, or the name of a tool that comes with Turnwire."""
    mcp: list[str] = []
    """Names of `mcp_servers`."""
    max_steps: int = Field(default=20, gt=0)
    on_crash: Literal["close", "resume"] = "close"


class McpServerSettings(BaseModel):
    """An MCP server, spelled as most of its clients spell it. `${NAME}` in a value is an environment variable's."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    type: Literal["stdio", "http", "streamable-http"] | None = None
    """Some write it down; the rest says it already."""
    command: str | None = None
    args: list[str] = []
    env: dict[str, SecretStr] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, SecretStr] = {}
    tools: list[str] | None = None
    prefix: str = ""
    timeout: float = Field(default=60, gt=0)
    connect_timeout: float = Field(default=30, gt=0)
    needs_approval: bool = False

    @model_validator(mode="after")
    def _is_one_of_two(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("needs a command that starts it, or its url, and not both")
        if self.url is not None and (self.args or self.env or self.cwd):
            raise ValueError("args, env and cwd are for a command, not for a url")
        if self.command is not None and self.headers:
            raise ValueError("headers are for a url, not for a command")
        return self


_REFERENCE, _MODEL = "module:name", "{...}"


def _how_it_is_given(value: Any) -> str:
    return _REFERENCE if isinstance(value, str) else _MODEL


Name = Annotated[str, StringConstraints(pattern="^[a-zA-Z0-9_-]{1,64}$")]
AnyAgentSettings = Annotated[
    Annotated[str, Tag(_REFERENCE)] | Annotated[AgentSettings, Tag(_MODEL)], Discriminator(_how_it_is_given)
]


class Settings(BaseSettings):
    # An empty variable is one that is not set. Errors hide what was given, because a key may be in it.
    model_config = SettingsConfigDict(
        env_prefix="TURNWIRE_", env_ignore_empty=True, extra="forbid", hide_input_in_errors=True
    )

    data: Path = Field(default_factory=default_data_folder, description="The folder that holds the logs.")
    database_url: SecretStr | None = Field(
        default=None, description="A PostgreSQL database that holds them instead, as `postgresql://user@host/name`."
    )
    database_connections: int = Field(
        default=8,
        gt=0,
        description="Connections a process may have to it, beside one that writes and one that listens.",
    )
    database_hints: bool = Field(
        default=True, description="Whether processes wake each other with LISTEN and NOTIFY; not so behind a pooler."
    )
    host: str = Field(
        default="127.0.0.1", description="The address to listen on. Anything but loopback needs an API key."
    )
    port: int = Field(default=8420, ge=0, le=65535, description="The port to listen on; 0 picks a free one.")

    allowed_hosts: list[str] = Field(default=[], description="Names, beside loopback, that a request's Host may have.")
    allowed_origins: list[str] = Field(default=[], description="Web origins that may call from a browser (CORS).")
    login_lifetime: float = Field(default=30 * 86_400, gt=0, description="How long a login on the web page lasts.")
    allow_obsidian: bool | None = Field(
        default=None,
        description="Whether Obsidian's apps may call (CORS). Not set, they may if there is a `vault`.",
    )
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
    max_worker_turns: int = Field(
        default=1_000, ge=0, description="Turns that one process runs at once; more wait for a free one. 0 runs none."
    )
    max_open_streams: int = Field(default=64, gt=0, description="Streams a principal may have open; more is a 429.")
    max_steps_per_turn: int = Field(
        default=100, gt=0, description="Tool calls and searches that an agent may make in a turn; more ends it."
    )
    max_tokens_per_day: int = Field(
        default=0, ge=0, description="Tokens a principal may use in a day (UTC); more is a 429. 0 is no limit."
    )
    max_socket_rate: float = Field(
        default=50, gt=0, description="Messages a second that are taken from one WebSocket; more have to wait."
    )
    history_turns: int = Field(default=50, ge=0, description="How many earlier turns an agent is given.")
    history_tokens: int = Field(
        default=32_000, ge=0, description="How long they may be together, in estimated tokens. 0 is no limit."
    )
    compaction: Literal["trim", "summarise"] = Field(
        default="trim",
        description="What happens to turns beyond that: `trim` leaves them out, `summarise` has `model` sum them up.",
    )

    turn_timeout: float = Field(default=600, gt=0, description="The longest a turn may run.")
    approval_timeout: float = Field(
        default=86_400, gt=0, description="How long a turn waits for a person to decide; then it is a denial."
    )
    cancel_patience: float = Field(default=5, ge=0, description="How long a cancelled agent may take to stop.")
    drain_delay: float = Field(
        default=0, ge=0, description="How long everything goes on after SIGTERM while `/readyz` is 503 already."
    )
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

    open_metrics: bool = Field(
        default=False, description="Answer `/metrics` without a key, to whoever reaches the port."
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="How `turnwire serve` writes its log: lines for people, or JSON objects."
    )
    log_content: bool = Field(
        default=False,
        description="Whether the log may have what was asked and answered, and what errors quote of it.",
    )
    access_log: bool = Field(
        default=False, description="A line in the log for each request: method, path without its query, status."
    )
    telemetry_url: str | None = Field(
        default=None,
        description="Where OpenTelemetry spans of turns are sent, by OTLP over HTTP, such as `http://localhost:4318`.",
    )
    telemetry_content: bool = Field(
        default=False, description="Whether spans have messages, answers, and the arguments and results of tools."
    )
    webhook_url: str | None = Field(
        default=None, description="The address that is called when a turn has ended, whatever its outcome."
    )
    webhook_secret: SecretStr | None = Field(
        default=None, description="What those calls are signed with: `whsec_` and base64 of 24 to 64 random bytes."
    )
    webhook_content: bool = Field(default=False, description="Whether those calls have the message and the answer.")
    webhook_timeout: float = Field(default=15, gt=0, description="How long one of those calls may take.")
    webhook_attempts: int = Field(default=12, gt=0, description="How often a call is tried before it is given up.")
    webhook_retry: float = Field(
        default=5, gt=0, description="The wait after a call that failed; three times as long each time, up to a day."
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

    agents: dict[Name, AnyAgentSettings] = Field(
        default={}, description="Agents by their names: `module:name` each, or a model with instructions and tools."
    )
    mcp_servers: dict[Name, McpServerSettings] = Field(
        default={}, description="MCP servers by their names, for the agents above; spelled like `mcpServers` elsewhere."
    )

    vault: DirectoryPath | None = Field(
        default=None, description="A folder of Markdown notes, such as an Obsidian vault, for an agent named `vault`."
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

    extensions: list[Path] = Field(
        default=[], description="Folders to look for extensions in, before the user's own folder."
    )
    session_timeout: float = Field(
        default=1800, ge=0, description="A channel's user who was silent for longer begins a new session; 0 for never."
    )
    extension_timeout: float = Field(
        default=10, gt=0, description="How long an extension may take to start, to stop, or to say how it is."
    )
    channel_timeout: float = Field(default=30, gt=0, description="How long a channel may take to show one thing.")
    health_interval: float = Field(default=30, gt=0, description="How often extensions are asked how they are.")

    @model_validator(mode="after")
    def _signs_webhooks(self) -> Self:
        if self.webhook_url is None:
            return self
        if not self.webhook_url.startswith(("http://", "https://")):
            raise ValueError("webhook_url: not an address that begins with http:// or https://")
        text = self.webhook_secret.get_secret_value() if self.webhook_secret else ""
        try:
            length = len(b64decode(text.removeprefix("whsec_"), validate=True))
        except ValueError:
            length = 0
        if not text.startswith("whsec_") or not 24 <= length <= 64:
            raise ValueError(
                "webhook_url needs a webhook_secret, `whsec_` and base64 of 24 to 64 bytes; "
                'make one with: echo "whsec_$(openssl rand -base64 32)"'
            )
        return self

    @model_validator(mode="after")
    def _knows_every_mcp_server(self) -> Self:
        for name, agent in self.agents.items():
            unknown = [] if isinstance(agent, str) else [one for one in agent.mcp if one not in self.mcp_servers]
            if unknown:
                there = ", ".join(self.mcp_servers) or "none"
                raise ValueError(f"the agent {name!r} wants the MCP server {unknown[0]!r}; mcp_servers has {there}")
        return self


def read_settings(file: Path | None = None, **given: Any) -> Settings:
    """What is given goes before the environment, and that before the TOML file. Raises ValueError, which says why."""
    told = {} if file is None else _read_file(file)
    in_environment = {name.upper() for name, value in os.environ.items() if value}
    told = {name: value for name, value in told.items() if f"TURNWIRE_{name.upper()}" not in in_environment}
    try:
        return Settings(**{**told, **given})
    except ValidationError as error:
        raise ValueError("; ".join(map(_explain, error.errors(include_url=False, include_input=False)))) from None
    except SettingsError as error:
        # The first of its words names the setting; the cause would quote what was given.
        name = re.search('field "(.*?)"', str(error))
        raise ValueError(f"TURNWIRE_{name[1].upper() if name else '...'} is not JSON") from None


def _read_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not TOML: {error}") from error


def _explain(error: Any) -> str:
    place = ".".join(str(part) for part in error["loc"] if part not in (_REFERENCE, _MODEL, "[key]"))
    message = error["msg"].removeprefix("Value error, ")
    return f"{place}: {message}" if place else message
