"""The settings of an operator, with their defaults.

A setting is an argument of `Settings(...)`, an environment variable `TURNWIRE_<NAME>`, or an entry of a TOML file.
Times are in seconds. A released name keeps its meaning for ever.
"""

import os
import re
import tomllib
from base64 import b64decode
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    FilePath,
    PrivateAttr,
    SecretStr,
    StringConstraints,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from turnwire.plugins import installed


def default_data_folder() -> Path:
    """Return the default data folder, inside the user's own."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "turnwire"


class AgentSettings(BaseModel):
    """An agent made of a model and tools. Omitted model fields default to the settings of the same name."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    model: str | None = None
    model_url: str | None = None
    model_key_env: str | None = None
    """The environment variable with the key, which keeps the key out of files."""
    model_api: Literal["chat", "responses"] | None = None
    instructions: str = ""
    tools: list[str] = []
    """Tools as `module:name`, or names of bundled tools."""
    mcp: list[str] = []
    """Names of `mcp_servers`."""
    max_steps: int = Field(default=20, gt=0)
    on_crash: Literal["close", "resume"] = "resume"
    on_divergence: Literal["end", "continue"] = "end"
    takes_attachments: list[str] | None = None
    """The media types of files that its model can read; by default images, PDFs and text."""
    takes_model_options: bool | list[str] | None = None
    """The model options that clients may send; by default all but `instructions`."""
    description: str = ""
    starters: list[str] = []
    """Messages that a page offers to begin with."""


class ModelPrice(BaseModel):
    """The price of a model in US dollars per million tokens; cached input costs as much as other input by default."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached_input: float | None = Field(default=None, ge=0)

    def cost(self, input_tokens: int | None, output_tokens: int | None, cached_input_tokens: int | None) -> float:
        """Return the cost of a model call in US dollars; an unknown number counts as none."""
        cached = min(cached_input_tokens or 0, input_tokens or 0)
        cached_price = self.input if self.cached_input is None else self.cached_input
        uncached = (input_tokens or 0) - cached
        return (uncached * self.input + cached * cached_price + (output_tokens or 0) * self.output) / 1_000_000


class McpServerSettings(BaseModel):
    """An MCP server, in the format of most MCP clients. `${NAME}` in a value is an environment variable."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    type: Literal["stdio", "http", "streamable-http"] | None = None
    """Accepted for compatibility; `command` or `url` decides."""
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
    def _check_transport(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("needs either a command that starts it, or its url")
        if self.url is not None and (self.args or self.env or self.cwd):
            raise ValueError("args, env and cwd are for a command, not for a url")
        if self.command is not None and self.headers:
            raise ValueError("headers are for a url, not for a command")
        return self


_REFERENCE, _MODEL = "module:name", "{...}"


def _agent_form(value: Any) -> str:
    return _REFERENCE if isinstance(value, str) else _MODEL


Name = Annotated[str, StringConstraints(pattern="^[a-zA-Z0-9_-]{1,64}$")]
AnyAgentSettings = Annotated[
    Annotated[str, Tag(_REFERENCE)] | Annotated[AgentSettings, Tag(_MODEL)], Discriminator(_agent_form)
]


class PluginSettings(BaseSettings):
    """Base class of the settings of a plugin: `class EchoSettings(PluginSettings, env_prefix="TURNWIRE_ECHO_")`."""

    model_config = SettingsConfigDict(env_ignore_empty=True, extra="forbid", hide_input_in_errors=True)


AnySection = TypeVar("AnySection", bound=PluginSettings)


class Settings(BaseSettings):
    """The settings of a server, and the sections of its plugins: `Settings(port=80, echo={"loud": True})`."""

    # An empty variable counts as not set. Errors hide the input, because it may have a key.
    model_config = SettingsConfigDict(
        env_prefix="TURNWIRE_", env_ignore_empty=True, extra="forbid", hide_input_in_errors=True
    )

    data: Path = Field(default_factory=default_data_folder, description="The data folder, with the logs.")
    database_url: SecretStr | None = Field(
        default=None, description="A PostgreSQL database for the logs instead, as `postgresql://user@host/name`."
    )
    database_hints: bool = Field(
        default=True, description="Wake other processes with LISTEN and NOTIFY; turn it off behind a pooler."
    )
    host: str = Field(default="127.0.0.1", description="The address to listen on. All but loopback need an API key.")
    port: int = Field(default=8420, ge=0, le=65535, description="The port to listen on; 0 picks a free one.")

    allowed_hosts: list[str] = Field(default=[], description="Host names that requests may use, beside loopback.")
    allowed_origins: list[str] = Field(default=[], description="Web origins that may call from a browser (CORS).")
    login_secret: SecretStr | None = Field(
        default=None,
        min_length=32,
        description="The key that login cookies are signed with; by default the file `login_secret` in the data folder"
        " or, with PostgreSQL, a value that is made of one in the database and the password in its URL.",
    )
    brand_name: str = Field(
        default="Turnwire", min_length=1, max_length=60, description="The name on the web pages, instead of Turnwire."
    )
    brand_logo: FilePath | None = Field(default=None, description="The logo on the web pages: an SVG or PNG file.")
    brand_colour: str | None = Field(
        default=None,
        pattern="^#[0-9a-fA-F]{6}$",
        description="The accent colour of the web pages, such as `#0b5fff`; made readable on light and dark.",
    )
    brand_welcome: str | None = Field(
        default=None, max_length=300, description="The heading of the web page before the first message."
    )
    brand_starters: list[str] = Field(
        default=[], max_length=8, description="Messages that the web page offers to begin with."
    )
    push_contact: str | None = Field(
        default=None,
        pattern="^(mailto:|https://).+",
        description="Your `mailto:` or `https://` address for push services. With it, the page offers notifications.",
    )

    max_body_bytes: int = Field(
        default=1024 * 1024, gt=0, description="The largest request body; a larger one is a 413."
    )
    max_file_bytes: int = Field(
        default=10 * 1024 * 1024, gt=0, description="The largest file of a message; a larger one is a 413."
    )
    max_message_bytes: int = Field(
        default=32 * 1024 * 1024,
        gt=0,
        description="The largest request body of a message with files, and the most bytes of its files together;"
        " more are a 413.",
    )
    max_queued_turns: int = Field(default=8, ge=0, description="The most queued turns of a session; more are a 409.")
    max_running_turns: int = Field(
        default=64, gt=0, description="The most unfinished turns of a principal; more are a 429."
    )
    max_worker_turns: int = Field(
        default=1_000,
        ge=0,
        description="The most turns that a process runs at once; others stay queued. With 0 it runs none.",
    )
    max_open_streams: int = Field(default=64, gt=0, description="The most open streams of a principal; more are a 429.")
    max_steps_per_turn: int = Field(
        default=100, gt=0, description="The most tool calls and searches of a turn; more end it."
    )
    max_tokens_per_day: int = Field(
        default=0, ge=0, description="The most tokens of a principal in a day (UTC); more are a 429. 0 is no limit."
    )
    history_turns: int = Field(default=50, ge=0, description="The most earlier turns in an agent's history.")
    history_tokens: int = Field(
        default=32_000, ge=0, description="The most tokens in an agent's history, estimated. 0 is no limit."
    )
    compaction: Literal["trim", "summarise"] = Field(
        default="trim",
        description="What happens to older turns: `trim` drops them, `summarise` has `model` summarise them.",
    )

    turn_timeout: float = Field(default=600, gt=0, description="The longest time a turn may run.")
    approval_timeout: float = Field(
        default=86_400, gt=0, description="How long a turn waits for an approval; then it counts as denied."
    )
    cancel_patience: float = Field(default=5, ge=0, description="How long a cancelled agent may take to stop.")
    drain_delay: float = Field(
        default=0, ge=0, description="How long the server serves after SIGTERM while `/readyz` is 503 already."
    )
    shutdown_grace: float = Field(default=10, ge=0, description="How long running turns may go on after SIGTERM.")
    lease: float = Field(
        default=10, gt=0, description="A worker that does not renew its lease for this long counts as lost."
    )
    heartbeat: float = Field(default=15, gt=0, description="The interval of heartbeats on idle streams.")
    write_timeout: float = Field(
        default=30, gt=0, description="A reader that accepts no bytes for this long is dropped."
    )
    stream_lifetime: float = Field(default=900, gt=0, description="A stream is asked to reconnect after this long.")
    keep_logs: float = Field(default=30 * 86_400, gt=0, description="How long the events of an ended turn are kept.")

    seal_key: SecretStr | None = Field(
        default=None,
        min_length=32,
        description="The key that the seals of logs are signed with: at least 32 random characters.",
    )

    open_metrics: bool = Field(
        default=False, description="Serve `/metrics` without a key, to every client that reaches the port."
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="The format of the server log: lines for people, or JSON objects."
    )
    content_in: list[Literal["log", "spans", "webhooks"]] = Field(
        default=[],
        description="What may have messages and answers: `log` (and the text of errors), `spans` (and the arguments and"
        " results of tools), `webhooks`.",
    )
    access_log: bool = Field(
        default=False, description="Log a line for each request: method, path without its query, status."
    )
    telemetry_url: str | None = Field(
        default=None,
        description="The OTLP endpoint for OpenTelemetry spans of turns, such as `http://localhost:4318`.",
    )
    webhook_url: str | None = Field(
        default=None, description="The URL that is called when a turn has ended, whatever its outcome."
    )
    webhook_secret: SecretStr | None = Field(
        default=None, description="The key that webhooks are signed with: `whsec_` and base64 of 24 to 64 random bytes."
    )

    webhook_waiting: bool = Field(
        default=False,
        description="Whether it is also called when a turn waits: for an approval, an answer, a client's tool.",
    )

    model: str | None = Field(default=None, description="The language model, by its server's name for it.")
    model_url: str | None = Field(
        default=None, description="The URL of the model server, such as `http://localhost:8080/v1`; by default OpenAI."
    )
    model_key: SecretStr | None = Field(
        default=None, description="The model server's API key; by default `OPENAI_API_KEY`."
    )
    model_api: Literal["chat", "responses"] = Field(
        default="chat", description="The model server's API: `chat` is Chat Completions, which all servers have."
    )
    model_timeout: float = Field(default=60, gt=0, description="A model that sends nothing for this long has failed.")

    model_prices: dict[str, ModelPrice] = Field(
        default={},
        description="Prices by the model's name, for the inspector: `input`, `output` and `cached_input`, in US dollars"
        " per million tokens.",
    )

    agents: dict[Name, AnyAgentSettings] = Field(
        default={}, description="Agents by name: `module:name`, or a model with instructions and tools."
    )
    mcp_servers: dict[Name, McpServerSettings] = Field(
        default={},
        description="MCP servers by name, for the agents above; in the format of `mcpServers` elsewhere.",
    )

    extensions: list[Path] = Field(
        default=[], description="Folders to search for extensions, before the user's own folder."
    )
    allowed_extensions: list[str] = Field(
        default=[],
        description="Ids of extensions in the user's own folder and of installed packages that run; no others do.",
    )
    session_timeout: float = Field(
        default=1800, ge=0, description="A user of a channel who was idle for longer starts a new session; 0 for never."
    )
    extension_context: Literal["all", "extensions"] = Field(
        default="all",
        description="The turns that the context providers of extensions are asked for: all, or those of extensions.",
    )

    _sections: dict[type[PluginSettings], PluginSettings] = PrivateAttr(
        default_factory=dict[type[PluginSettings], PluginSettings]
    )

    def __init__(self, **values: Any) -> None:
        sections = [
            _read_section(name, plugin.load(plugin.settings), values.pop(name, {}))
            for name, plugin in installed().items()
            if plugin.settings is not None
        ]
        super().__init__(**values)
        self._sections = {type(section): section for section in sections}

    def of(self, kind: type[AnySection]) -> AnySection:
        """Return the section of a plugin."""
        section = self._sections[kind]
        assert isinstance(section, kind)
        return section

    @model_validator(mode="after")
    def _check_webhook_secret(self) -> Self:
        if self.webhook_url is None:
            return self
        if not self.webhook_url.startswith(("http://", "https://")):
            raise ValueError("webhook_url: the URL must begin with http:// or https://")
        text = self.webhook_secret.get_secret_value() if self.webhook_secret else ""
        try:
            length = len(b64decode(text.removeprefix("whsec_"), validate=True))
        except ValueError:
            length = 0
        if not text.startswith("whsec_") or not 24 <= length <= 64:
            raise ValueError(
                "webhook_url needs a webhook_secret, `whsec_` and base64 of 24 to 64 bytes; "
                'create one with: echo "whsec_$(openssl rand -base64 32)"'
            )
        return self

    @model_validator(mode="after")
    def _check_brand_logo(self) -> Self:
        if self.brand_logo is not None and self.brand_logo.suffix.lower() not in (".svg", ".png"):
            raise ValueError("brand_logo: the file must be an .svg or a .png")
        return self

    @model_validator(mode="after")
    def _check_mcp_servers(self) -> Self:
        for name, agent in self.agents.items():
            unknown = (
                [] if isinstance(agent, str) else [server for server in agent.mcp if server not in self.mcp_servers]
            )
            if unknown:
                servers = ", ".join(self.mcp_servers) or "none"
                raise ValueError(f"the agent {name!r} uses the MCP server {unknown[0]!r}; mcp_servers has {servers}")
        return self


def _read_section(name: str, kind: type[PluginSettings], values: Any) -> PluginSettings:
    if isinstance(values, kind):
        return values
    if not isinstance(values, dict):
        raise ValueError(f"{name}: these are the settings of a plugin, so it must be a table")
    try:
        return kind(**cast("dict[str, Any]", values))
    except ValidationError as error:
        raise ValueError("; ".join(f"{name}.{problem}" for problem in _problems(error))) from None


def read_settings(file: Path | None = None, **options: Any) -> Settings:
    """Read the settings. Options override the environment, which overrides the TOML file. Raise ValueError."""
    entries = {} if file is None else _read_file(file)
    variables = {name.upper() for name, value in os.environ.items() if value}
    sections = {name for name, plugin in installed().items() if plugin.settings is not None}
    for name in sections & entries.keys():
        section = _unless_in(variables, f"TURNWIRE_{name.upper()}_", entries[name])
        entries[name] = section | options.pop(name, {})
    entries = _unless_in(variables, "TURNWIRE_", entries)
    try:
        return Settings(**{**entries, **options})
    except ValidationError as error:
        raise ValueError("; ".join(_problems(error))) from None
    except SettingsError as error:
        # The message names the setting; the cause would quote the input.
        name = re.search('field "(.*?)"', str(error))
        raise ValueError(f"TURNWIRE_{name[1].upper() if name else '...'} is not JSON") from None


def _unless_in(variables: Container[str], prefix: str, entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that no environment variable overrides."""
    return {name: value for name, value in entries.items() if f"{prefix}{name.upper()}" not in variables}


def _read_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not TOML: {error}") from error


def _problems(error: ValidationError) -> list[str]:
    return [_explain(detail) for detail in error.errors(include_url=False, include_input=False)]


def _explain(error: Any) -> str:
    name = ".".join(str(part) for part in error["loc"] if part not in (_REFERENCE, _MODEL, "[key]"))
    message = error["msg"].removeprefix("Value error, ")
    return f"{name}: {message}" if name else message
