"""Plugins: what a package declares to add agents, wires, channels or a store, and how the installed ones are found.

    plugin = Plugin(
        name="echo",
        description="The message, echoed",
        routes="turnwire_echo.routes:routes",
        wires={"echo": "turnwire_echo.encoder:Echo.of_query"},
    )

The package registers the object as an entry point of one of the `GROUPS`; Turnwire's own plugins do the same. Each part
is a reference `module:name`, which is imported when the part is first needed. So a module that declares a plugin
imports nothing else, and an SDK that nobody uses costs nothing.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from turnwire.core.contracts.agents import Agent

logger = logging.getLogger("turnwire.plugins")

# Dataclasses, because `turnwire --help` reads the plugins, and msgspec would cost it 20 ms.

GROUPS = ("turnwire.agents", "turnwire.wires", "turnwire.channels", "turnwire.stores")
"""The entry point groups. They sort plugins for people; a plugin of any group may declare any part."""

Reference = str
"""Something to import when it is needed: `module:name`, where the name may have dots."""


def load(reference: Reference) -> Any:
    """Import what a reference names. Raises ImportError and AttributeError."""
    module, _, name = reference.partition(":")
    return attrgetter(name)(import_module(module))


def lazy_exports(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package: each name is imported from the module of the package that has it.

    A package with a plugin in it imports nothing itself, because the plugin is read when the package may not be used.
    """

    def look_up(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return load(f"{package}.{modules[name]}:{name}")

    return look_up


@dataclass(frozen=True, kw_only=True)
class AgentKind:
    """Objects of other people's classes that are accepted as agents, recognised without importing the classes.

    `classes` are pairs of a package and a class name; an object of a subclass counts too. `adapter` makes an agent of
    the object. `hook` records the runs of the same SDK in agents that are plain functions; it is called once the SDK
    is imported, and may raise RuntimeError if its version does not fit.
    """

    description: str
    classes: frozenset[tuple[str, str]]
    adapter: Reference
    hook: Reference | None = None


@dataclass(frozen=True)
class Check:
    """A line of `turnwire doctor`. `note` is something to improve; `bad` keeps something from working."""

    name: str
    verdict: Literal["ok", "note", "bad"]
    text: str


class Service:
    """Base class of what a plugin runs beside the turns of a server. A method that is not overridden does nothing."""

    def agents(self) -> "Mapping[str, Agent]":
        """Return the agents that the operator wants of this plugin, by name. The operator's own of that name win."""
        return {}

    def default_agents(self) -> "Mapping[str, Agent]":
        """Return agents for a server that has no other."""
        return {}

    def tools(self) -> Sequence[Any]:
        """Return tools for the agents that are made of a model and tools."""
        return ()

    @property
    def origins(self) -> Sequence[str]:
        """The web origins that may call the server from a browser."""
        return ()

    @property
    def notes(self) -> Sequence[str]:
        """The lines that a server shows when it has started, in the markup of rich."""
        return ()

    def advice(self) -> Sequence[str]:
        """Return lines for the operator about what to improve, in the same markup. Called first of all; may block."""
        return ()

    async def open(self) -> None:
        """Prepare, before any turn runs."""

    async def start(self) -> None:
        """Begin, now that turns run."""

    async def ready(self) -> None:
        """Wait until `open` is done with what it left to the background."""

    async def stop(self) -> None:
        """Stop what `start` began, while turns still run."""

    async def close(self) -> None:
        """Release everything, after the last turn. Also called if `open` failed or was not called."""


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """The declaration of what a package adds. Everything but the first two fields is optional."""

    name: str
    """Also the name of its settings: `[name]` in the settings file, `TURNWIRE_<NAME>_...` in the environment."""
    description: str
    """A noun phrase without a full stop, as in the list of plugins."""
    extra: str | None = None
    """What to install if its packages are missing, such as `turnwire[mcp]`."""
    kinds: Sequence[AgentKind] = ()
    routes: Sequence[Reference] = ()
    """Functions without arguments that return the routes of one server."""
    wires: Mapping[str, Reference] = field(default_factory=dict[str, Reference])
    """The wires that a client chooses with `?wire=`, each a function of the query that returns a `Wire`."""
    socket_wires: Mapping[str, Reference] = field(default_factory=dict[str, Reference])
    """The wires that only a socket carries, each a function of the turn's id."""
    channel: str | None = None
    """A package with a `manifest.yaml`: an extension, most often a channel. Its id is the plugin's name."""
    stores: Mapping[str, Reference] = field(default_factory=dict[str, Reference])
    """Stores by the name that `Turnwire(store=...)` takes: functions of the settings and of `StoreOptions`."""
    database: Reference | None = None
    """A function of the settings that returns the `BlockingDatabase` of a store that processes share."""
    move_from: Reference | None = None
    """A function of the settings that returns a `TransferSource`: a store that `turnwire move` copies."""
    move_to: Reference | None = None
    """A function of the settings and of `StoreOptions` that returns a `TransferTarget`, which gets the copy."""
    settings: Reference | None = None
    """A subclass of `turnwire.settings.PluginSettings`."""
    service: Reference | None = None
    """A function of the server's `Services` that returns a `Service`."""
    options: Reference | None = None
    """A list of `turnwire.cli.options.SettingOption`: options of the commands that run agents."""
    checks: Reference | None = None
    """A function of the data folder and the database's URL or None that returns a list of `Check`."""
    move: Reference | None = None
    """A function of a data folder and a `BlockingDatabase` that copies the plugin's files and returns their number."""
    commands: Reference | None = None
    """A function that adds commands to the command line's `Commands`."""

    def load(self, reference: Reference) -> Any:
        """Import a part of this plugin. Raises ImportError, which names the plugin and what to install."""
        try:
            return load(reference)
        except ImportError as error:
            remedy = f": pip install '{self.extra}'" if self.extra else f": {error}"
            raise ImportError(f"{self.description} needs packages that are not installed{remedy}") from error


@lru_cache(maxsize=1)
def installed() -> Mapping[str, Plugin]:
    """Return the installed plugins by name. One that cannot be imported is logged and left out."""
    found: dict[str, Plugin] = {}
    for group in GROUPS:
        for point in sorted(entry_points(group=group)):
            plugin = _load_plugin(point)
            if plugin is None:
                continue
            if plugin.name in found:
                logger.warning("the plugin %s of %s is left out: there is one of that name", plugin.name, point.value)
                continue
            found[plugin.name] = plugin
    return found


def _load_plugin(point: EntryPoint) -> Plugin | None:
    try:
        plugin = point.load()
    except Exception as error:
        # A plugin of another author must not keep the server from starting.
        logger.warning("the plugin %s (%s) cannot be loaded: %s", point.name, point.value, error)
        return None
    if not isinstance(plugin, Plugin):
        logger.warning("the plugin %s is left out: %s is not a Plugin", point.name, point.value)
        return None
    return plugin
