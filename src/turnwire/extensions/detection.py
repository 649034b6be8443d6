"""Detection of what an extension provides, from the protocols that its class fits.

A class fits a protocol when it has all of its methods, each `async` where the protocol's is and callable with the
kernel's arguments. A class that has only some of them, or with other arguments, does not fit; that is reported as a
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
    "buffered_channel": contract.BufferedChannel,
    "tools": contract.ToolProvider,
    "service": contract.ServiceProvider,
    "context": contract.ContextProvider,
    "agents": contract.AgentProvider,
}
"""The protocols by their names in a manifest's `provides`."""

# A base comes before what is built on it.
_NEEDS = {
    "streaming_channel": "channel",
    "approval_channel": "channel",
    "buffered_channel": "channel",
    "cancellable_channel": "streaming_channel",
    "restartable_channel": "streaming_channel",
    "step_channel": "streaming_channel",
}


class Detected(Struct, frozen=True):
    """The abilities of a class, and its near misses."""

    provides: frozenset[str]
    problems: tuple[str, ...] = ()


def check_extension(cls: type) -> list[str]:
    """Return the reasons why a class is not an extension; none if it is one."""
    has, problems = _compare(cls, contract.Extension)
    missing = [name for name in _methods(contract.Extension) if name not in has]
    if missing:
        problems.append(f"{cls.__name__} is no extension: {_listed(missing)} missing")
    return problems


def detect(cls: type) -> Detected:
    provides: set[str] = set()
    problems: list[str] = []
    for name, protocol in PROTOCOLS.items():
        has, misfits = _compare(cls, protocol)
        methods = _methods(protocol)
        problems += misfits
        if has and len(has) < len(methods):
            missing = [method for method in methods if method not in has]
            problems.append(
                f"{len(has)} of {len(methods)} methods of {protocol.__name__}; {_listed(missing)} missing, "
                "so it is not used as one"
            )
        elif has and not misfits:
            provides.add(name)
    for name, needed in _NEEDS.items():
        if name in provides and needed not in provides:
            provides.remove(name)
            problems.append(f"{PROTOCOLS[name].__name__} without {PROTOCOLS[needed].__name__}, so it is not used")
    return Detected(frozenset(provides), (*problems, *_unknown_hooks(cls)))


def check_provides(declared: tuple[str, ...], detected: Detected) -> str | None:
    """Return why the manifest's `provides` is wrong, or None. An empty one asserts nothing."""
    lacking = [name for name in declared if name not in detected.provides]
    if not lacking:
        return None
    reason = "; ".join(detected.problems) or "the class has none of its methods"
    return f"the manifest says that it provides {', '.join(lacking)}, and it does not: {reason}"


def _methods(protocol: type) -> dict[str, Callable[..., Any]]:
    return {name: value for name, value in vars(protocol).items() if inspect.isfunction(value) and name[0] != "_"}


def _compare(cls: type, protocol: type) -> tuple[list[str], list[str]]:
    """Return the protocol's methods that the class has, and the problems of those that do not fit."""
    has: list[str] = []
    misfits: list[str] = []
    for name, expected in _methods(protocol).items():
        # Looked up statically: neither a property nor a `__getattr__` may run.
        actual = inspect.getattr_static(cls, name, None)
        if actual is None:
            continue
        has.append(name)
        if problem := _misfit(cls, name, actual, expected):
            misfits.append(f"`{name}` of {protocol.__name__} {problem}, so it is not used as one")
    return has, misfits


def _misfit(cls: type, name: str, actual: Any, expected: Callable[..., Any]) -> str | None:
    is_plain = inspect.isfunction(actual)
    if not is_plain and type(actual) not in (staticmethod, classmethod):
        return "is not a method"
    function: Any = getattr(cls, name)
    if inspect.iscoroutinefunction(expected) and not inspect.iscoroutinefunction(function):
        return "is not `async def`"
    if not inspect.iscoroutinefunction(expected) and inspect.iscoroutinefunction(function):
        return "must not be `async`"
    # Arguments are passed by position, so their names may differ.
    names = [name for name in inspect.signature(expected).parameters if name != "self"]
    try:
        inspect.signature(function).bind(*range(len(names) + is_plain))
    except TypeError:
        return f"cannot be called with ({', '.join(names)})"
    return None


def _unknown_hooks(cls: type) -> list[str]:
    """Return a problem for every `on_…` method whose name is close to a known one."""
    hooks = [name for protocol in PROTOCOLS.values() for name in _methods(protocol)]
    problems: list[str] = []
    for name in dir(cls):
        if name.startswith("on_") and name not in hooks:
            close = difflib.get_close_matches(name, hooks, 1, 0.75)
            if close:
                problems.append(f"nobody calls `{name}`; is it meant to be `{close[0]}`?")
    return problems


def _listed(names: list[str]) -> str:
    return f"{', '.join(f'`{name}`' for name in names)} {'is' if len(names) == 1 else 'are'}"
