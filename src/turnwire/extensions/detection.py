"""What an extension provides: told by the protocols that its class fits, and checked before it is relied on.

A class fits a protocol when it has all of its methods, each `async` where the protocol's is and callable with what
the kernel passes. One that has only some of them, or has them in another shape, does not fit; that is told as a
problem, because silence would look like a channel that merely does not stream.
"""

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from turnwire.extensions import contract

PROTOCOLS: dict[str, type] = {
    "channel": contract.ChannelProvider,
    "streaming_channel": contract.StreamingChannelProvider,
    "cancellable_channel": contract.CancellableChannel,
    "restartable_channel": contract.RestartableChannel,
    "step_channel": contract.StepChannel,
    "approval_channel": contract.ApprovalChannel,
    "tools": contract.ToolProvider,
    "service": contract.ServiceProvider,
    "context": contract.ContextProvider,
    "agents": contract.AgentProvider,
}
"""By the names that a manifest's `provides` knows them by."""

_NEEDS_CHANNEL = ("streaming_channel", "approval_channel")
_NEEDS_STREAMING = ("cancellable_channel", "restartable_channel", "step_channel")


class Detected(Struct, frozen=True):
    """What a class provides, and what is nearly but not quite right with it."""

    provides: frozenset[str]
    problems: tuple[str, ...] = ()


def check_extension(cls: type) -> list[str]:
    """Why a class is not an extension at all; nothing if it is one."""
    has, problems = _compare(cls, contract.Extension)
    missing = [name for name in _methods(contract.Extension) if name not in has]
    if missing:
        problems.append(f"{cls.__name__} is no extension: {_listed(missing)} missing")
    return problems


def detect(cls: type) -> Detected:
    provides: set[str] = set()
    problems: list[str] = []
    for name, protocol in PROTOCOLS.items():
        has, wrong = _compare(cls, protocol)
        wanted = _methods(protocol)
        problems += wrong
        if has and len(has) < len(wanted):
            missing = [method for method in wanted if method not in has]
            problems.append(
                f"{len(has)} of {len(wanted)} methods of {protocol.__name__}; {_listed(missing)} missing, "
                "so it is not used as one"
            )
        elif has and not wrong:
            provides.add(name)
    for name, needed in [*((name, "channel") for name in _NEEDS_CHANNEL), *_streaming_needs()]:
        if name in provides and needed not in provides:
            provides.remove(name)
            problems.append(f"{PROTOCOLS[name].__name__} without {PROTOCOLS[needed].__name__}, so it is not used")
    return Detected(frozenset(provides), (*problems, *_unknown_hooks(cls)))


def check_provides(declared: tuple[str, ...], detected: Detected) -> str | None:
    """Why the manifest's `provides` is not true, or None. An empty one asserts nothing."""
    lacking = [name for name in declared if name not in detected.provides]
    if not lacking:
        return None
    why = "; ".join(detected.problems) or "the class has none of its methods"
    return f"the manifest says that it provides {', '.join(lacking)}, and it does not: {why}"


def _streaming_needs() -> list[tuple[str, str]]:
    return [(name, "streaming_channel") for name in _NEEDS_STREAMING]


def _methods(protocol: type) -> dict[str, Callable[..., Any]]:
    return {name: value for name, value in vars(protocol).items() if inspect.isfunction(value) and name[0] != "_"}


def _compare(cls: type, protocol: type) -> tuple[list[str], list[str]]:
    """The protocol's methods that the class has, and what is wrong with them."""
    has: list[str] = []
    wrong: list[str] = []
    for name, wanted in _methods(protocol).items():
        # Looked up without running anything: a property must not be evaluated, a `__getattr__` must not pretend.
        found = inspect.getattr_static(cls, name, None)
        if found is None:
            continue
        has.append(name)
        if problem := _misfit(cls, name, found, wanted):
            wrong.append(f"`{name}` of {protocol.__name__} {problem}, so it is not used as one")
    return has, wrong


def _misfit(cls: type, name: str, found: Any, wanted: Callable[..., Any]) -> str | None:
    is_plain = inspect.isfunction(found)
    if not is_plain and type(found) not in (staticmethod, classmethod):
        return "is not a method"
    function: Any = getattr(cls, name)
    if inspect.iscoroutinefunction(wanted) and not inspect.iscoroutinefunction(function):
        return "is not `async def`"
    if not inspect.iscoroutinefunction(wanted) and inspect.iscoroutinefunction(function):
        return "must not be `async`"
    # Arguments are passed by position: their names are the author's own.
    given = [object() for parameter in inspect.signature(wanted).parameters if parameter != "self"]
    if is_plain:
        given.insert(0, object())
    try:
        inspect.signature(function).bind(*given)
    except TypeError:
        names = [parameter for parameter in inspect.signature(wanted).parameters if parameter != "self"]
        return f"cannot be called with ({', '.join(names)})"
    return None


def _unknown_hooks(cls: type) -> list[str]:
    """Methods that look as if somebody would call them."""
    known = [name for protocol in PROTOCOLS.values() for name in _methods(protocol)]
    found: list[str] = []
    for name in dir(cls):
        if name.startswith("on_") and name not in known:
            close = difflib.get_close_matches(name, known, 1, 0.75)
            if close:
                found.append(f"nobody calls `{name}`; is it meant to be `{close[0]}`?")
    return found


def _listed(names: list[str]) -> str:
    return f"{', '.join(f'`{name}`' for name in names)} {'is' if len(names) == 1 else 'are'}"
