"""The scope of a running turn: what code inside the turn finds through one context variable.

Asyncio tasks and `asyncio.to_thread` inherit it. The modules that own the parts have typed functions to get them, such
as `current_journal` and `current_inputs`.
"""

import asyncio
import gc
import sys
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

from turnwire.core.log.events import Event

if TYPE_CHECKING:
    from turnwire.core.log.turn_log import TurnLog


class TurnScope:
    """One running turn. Before its agent begins, there are only the names; the other parts are set then."""

    __slots__ = (
        "check",
        "files",
        "inputs",
        "journal",
        "log",
        "loop",
        "principal",
        "requests",
        "session_id",
        "turn_id",
        "waits",
    )

    def __init__(self, turn_id: str, session_id: str, principal: str) -> None:
        self.turn_id = turn_id
        self.session_id = session_id
        self.principal = principal
        self.loop: asyncio.AbstractEventLoop | None = None
        self.log: TurnLog | None = None
        self.check: Callable[[Event], None] | None = None
        self.requests: dict[str, str] | None = None
        """The requests to models, as JSON by fingerprint, if they are to be kept."""
        # The types of these belong to rooms above this one.
        self.journal: Any = None
        self.waits: Any = None
        self.inputs: Any = None
        self.files: Any = None

    def enter(self) -> None:
        """Make this the scope of the current task and of everything that is started from it."""
        _scope.set(self)

    def open(self, log: "TurnLog", check: Callable[[Event], None]) -> None:
        """Let tools emit to the log of the turn, which runs on the current event loop.

        `check` is called with each event that a tool emits, and may raise to refuse it.
        """
        self.loop = asyncio.get_running_loop()
        self.log, self.check = log, check

    @property
    def is_on_its_loop(self) -> bool:
        """Return False in a thread, also in one with an event loop of its own."""
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False


_scope: ContextVar[TurnScope | None] = ContextVar("turnwire_turn", default=None)


def current_turn() -> TurnScope | None:
    """Return the turn that the current code belongs to, or None outside a turn."""
    return _scope.get()


def turn_of_task(task: "asyncio.Task[Any]") -> TurnScope | None:
    """Return the turn of a task, from any thread."""
    if sys.version_info >= (3, 12):
        return task.get_context().get(_scope)
    # Python 3.11 has no other way to get at the context of a task that runs.
    context = next((item for item in gc.get_referents(task) if isinstance(item, Context)), None)
    return None if context is None else context.get(_scope)


def weak_callback(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a method while its object is alive, and otherwise returns None.

    The parts of a turn call its execution this way: it owns them, and is freed without the garbage collector.
    """
    reference = WeakMethod(method)

    def call(*args: Any) -> Any:
        bound = reference()
        return None if bound is None else bound(*args)

    return call
