"""The address of a model: its server, its name there and its key; and whether such a model answers at all.

`ollama/qwen3` names a well-known server and a model. With a URL of its own, a model's name is used as it is, because
names such as `openai/gpt-oss-20b` have a slash too.
"""

import os
from urllib.parse import urlsplit

from msgspec import Struct

from turnwire.core.errors import ModelUnusableError

OPENAI_URL = "https://api.openai.com/v1"
_CHECK_SECONDS = 3.0
_LOCAL_SECONDS = 0.5
_MAX_LISTED = 8


class KnownServer(Struct, frozen=True):
    """A model server with a usual URL. `key_variable` names the environment variable of its key, if it needs one."""

    url: str
    title: str
    key_variable: str | None = None
    remedy: str = "start it"
    takes_any_name: bool = False


SERVERS = {
    "ollama": KnownServer("http://127.0.0.1:11434/v1", "Ollama", remedy="start it with `ollama serve`"),
    "llamacpp": KnownServer(
        "http://127.0.0.1:8080/v1", "llama.cpp", remedy="start it with `llama-server -m FILE`", takes_any_name=True
    ),
    "vllm": KnownServer("http://127.0.0.1:8000/v1", "vLLM", remedy="start it with `vllm serve MODEL`"),
    "openai": KnownServer(OPENAI_URL, "OpenAI", "OPENAI_API_KEY"),
    "anthropic": KnownServer("https://api.anthropic.com/v1", "Anthropic", "ANTHROPIC_API_KEY"),
}
"""The prefixes of a model's name that choose a server."""


class ModelAddress(Struct, frozen=True):
    """Where a model is: its name for its server, the server's URL, and the key or None."""

    name: str
    url: str
    key: str | None
    server: KnownServer | None = None


def locate_model(model: str, url: str | None = None, key: str | None = None) -> ModelAddress:
    """Return the address of a model. Raise ModelUnusableError if its URL, name or key cannot be right."""
    url = url or os.environ.get("OPENAI_BASE_URL") or None
    prefix, slash, name = model.partition("/")
    server = SERVERS.get(prefix) if slash and url is None else None
    if server is None:
        own_key = _checked_key(key or os.environ.get("OPENAI_API_KEY"))
        if url is None and own_key is None:
            raise ModelUnusableError("OpenAI's service needs an API key; give one, or the address of another server")
        return ModelAddress(model, _checked_url(url or OPENAI_URL), own_key)
    if not name:
        raise ModelUnusableError(f"{model!r} has no name of a model; write it as {prefix}/NAME")
    own_key = _checked_key(key or (os.environ.get(server.key_variable) if server.key_variable else None))
    if server.key_variable and own_key is None:
        raise ModelUnusableError(f"{server.title} needs an API key; set {server.key_variable} in the environment")
    return ModelAddress(name, server.url, own_key, server)


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ModelUnusableError("its address must be like http://localhost:8080/v1")
    return url


def _checked_key(key: str | None) -> str | None:
    # A key that was read from a file ends with a line break. Checked here, because a later error would quote it.
    key = (key or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ModelUnusableError("its API key has characters that a key cannot have")
    return key or None


def check_model(address: ModelAddress, seconds: float = _CHECK_SECONDS) -> str | None:
    """Return why the model cannot be used, in one line that says what to do; None if nothing speaks against it.

    Only the server's list of models is read, so this costs nothing. A server without such a list is not judged, unless
    it has one below `/v1`, the part of a URL that people forget most often.
    """
    host = urlsplit(address.url).netloc
    title = address.server.title if address.server else "the model's server"
    status, names = _models(address.url, address.key, seconds)
    if status is None:
        remedy = address.server.remedy if address.server and not address.server.key_variable else "check the URL"
        return f"{title} cannot be reached at {host}; {remedy}"
    if status in (401, 403):
        return f"{title} at {host} refused the API key; check it"
    better = f"{address.url.rstrip('/')}/v1"
    if names is None and _models(better, address.key, seconds)[1] is not None:
        return f"{title} at {host} has no model API at this URL; use {better}"
    if names is None or (address.server and address.server.takes_any_name):
        return None
    if any(_is_same(address.name, name) for name in names):
        return None
    available = f"it has {', '.join(names[:_MAX_LISTED])}" if names else "it has none"
    pull = f"; `ollama pull {address.name}` fetches it" if address.server is SERVERS["ollama"] else ""
    return f"{title} at {host} has no model {address.name!r}; {available}{pull}"


def local_models() -> list[str]:
    """Return the models, as names for `--model`, of an Ollama or llama.cpp server at its usual port on this machine."""
    found: list[str] = []
    for prefix in ("ollama", "llamacpp"):
        owner = "llamacpp" if prefix == "llamacpp" else None
        names = _models(SERVERS[prefix].url, None, _LOCAL_SECONDS, owner)[1] or ()
        found += [f"{prefix}/{name.removesuffix(':latest')}" for name in names]
    return found


def _models(url: str, key: str | None, seconds: float, owner: str | None = None) -> tuple[int | None, list[str] | None]:
    """Return the status and the names in a server's list of models, or None for what it does not have.

    With `owner`, only models with this `owned_by` count: any program may listen at a usual port.
    """
    import httpx

    headers = {"Authorization": f"Bearer {key}", "x-api-key": key, "anthropic-version": "2023-06-01"} if key else {}
    is_local = (urlsplit(url).hostname or "") in ("localhost", "127.0.0.1", "::1")
    try:
        with httpx.Client(timeout=seconds, trust_env=not is_local) as client:
            response = client.get(f"{url.rstrip('/')}/models", headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError):
        return None, None
    try:
        listed = response.json()["data"]
        names = [str(entry["id"]) for entry in listed if owner is None or entry.get("owned_by") == owner]
    except (ValueError, LookupError, TypeError, AttributeError):
        names = None
    return response.status_code, names if response.is_success else None


def _is_same(name: str, listed: str) -> bool:
    """Return True if the server means this model, also where it adds the default tag or a prefix to the name."""
    return name == listed or f"{name}:latest" == listed or listed.rpartition("/")[2] == name
