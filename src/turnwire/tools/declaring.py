"""`@tool`: a function with type hints and a docstring is all that a tool is."""

import inspect
import logging
import re
from collections.abc import Callable
from typing import Any, overload

from msgspec import Struct

from turnwire.tools.arguments import Arguments, BadArgumentsError, GivenArguments

logger = logging.getLogger("turnwire.tools")

Function = Callable[..., Any]
NeedsApproval = bool | Callable[[dict[str, Any]], bool]
NAME = re.compile("[a-zA-Z0-9_-]{1,64}")
"""What all model providers take as the name of a tool."""


class Tool(Struct, frozen=True, kw_only=True):
    """A function that a model may call. `timeout` is in seconds, `max_output` in characters.

    With `needs_approval` a person is asked before it runs; a function of the arguments says for which calls. One that
    is `idempotent` may be run again when it is not known whether it has run: twice does no more than once. The
    default for `max_output` is what fits into one event whatever the characters are.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    function: Function
    arguments: Arguments | GivenArguments
    timeout: float = 60.0
    max_output: int = 20_000
    needs_approval: NeedsApproval = False
    idempotent: bool = False

    def asks(self, args: dict[str, Any]) -> bool:
        """Whether a person must allow a call with these arguments. Those that do not fit will not run anyway."""
        try:
            self.arguments.check(args)
        except BadArgumentsError:
            return False
        if not callable(self.needs_approval):
            return self.needs_approval
        try:
            return self.needs_approval(args)
        except Exception:
            # Who cannot say that it is harmless has not said so.
            logger.exception("whether %s needs approval cannot be told; a person is asked", self.name)
            return True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function itself, as if it had never been made a tool."""
        return self.function(*args, **kwargs)


@overload
def tool(function: Function, /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float = 60.0,
    max_output: int = 20_000,
    needs_approval: NeedsApproval = False,
    idempotent: bool = False,
) -> Callable[[Function], Tool]: ...
def tool(
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float = 60.0,
    max_output: int = 20_000,
    needs_approval: NeedsApproval = False,
    idempotent: bool = False,
) -> Tool | Callable[[Function], Tool]:
    """Makes a tool of a function, sync or async. Its docstring tells the model what it is for.

    Raises TypeError for parameters that cannot be given by name, or of a type that JSON cannot hold, and ValueError
    for a name that model providers do not take.
    """

    def declare(function: Function) -> Tool:
        called = name or getattr(function, "__name__", type(function).__name__)
        if not NAME.fullmatch(called):
            raise ValueError(f"a tool cannot be called {called!r}: use letters, digits, _ and -, at most 64; name=...")
        arguments = Arguments(function)
        return Tool(
            name=called,
            description=inspect.cleandoc(description or inspect.getdoc(function) or ""),
            parameters=arguments.schema,
            function=function,
            arguments=arguments,
            timeout=timeout,
            max_output=max_output,
            needs_approval=needs_approval,
            idempotent=idempotent,
        )

    return declare if function is None else declare(function)


def as_tool(given: Tool | Function) -> Tool:
    return given if isinstance(given, Tool) else tool(given)
