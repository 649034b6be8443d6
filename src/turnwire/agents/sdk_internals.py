"""The one way to an SDK's internals: methods that are wrapped, private attributes and private modules.

Each is checked when an agent is built, so that another version of the SDK is noticed then, and not by the first turn.
"""

import functools
import inspect
import re
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

_INNER = "turnwire_inner"
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def wrap(
    sdk: str, owner: Any, name: str, signature: str | None = None, make: Callable[[Any], Any] | None = None
) -> Any:
    """Return the attribute of a class or module of an SDK, once it is known to be the one that the adapter expects.

    `sdk` is the name of the SDK's package on PyPI, `owner` a class, an instance, a module or the name of a module.
    `signature` has the names of a function's parameters, as in `self, messages, **kwargs`; others may follow if they
    are optional. With `make` the function is replaced with `make(function)`, once in a process; the original is
    returned. An attribute that only the instances of a class have is returned as None. Raises RuntimeError for another
    version of the SDK.
    """
    if isinstance(owner, str):
        owner = _module(sdk, owner, name)
    if not _has(owner, name):
        raise _unsupported(sdk, f"there is no {_title(owner, name)}")
    found: Any = inspect.getattr_static(owner, name, None)
    inner: Any = getattr(found, _INNER, None) or getattr(owner, name, None)
    if signature is not None and not _fits(inner, signature.split(", ") if signature else []):
        raise _unsupported(sdk, f"{_title(owner, name)} does not take ({signature})")
    if make is not None and not hasattr(found, _INNER):
        wrapper: Any = functools.wraps(inner)(make(inner))
        setattr(wrapper, _INNER, inner)
        setattr(owner, name, wrapper)
    return inner


def _module(sdk: str, module: str, name: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise _unsupported(sdk, f"there is no {module}.{name}") from error


def _has(owner: Any, name: str) -> bool:
    """Return True if a module, a class or the instances of a class have an attribute, as far as it is declared."""
    kinds: tuple[Any, ...] = getattr(owner, "__mro__", (owner,))
    declared = ("__annotations__", "__private_attributes__")
    return hasattr(owner, name) or any(name in getattr(kind, names, ()) for kind in kinds for names in declared)


def _fits(function: Any, expected: list[str]) -> bool:
    """Return True if a function has these parameters in this order, and any others are optional."""
    if not callable(function):
        return False
    parameters = inspect.signature(function).parameters.values()
    needed = [_spelled(each) for each in parameters if _spelled(each) in expected or _is_required(each)]
    return needed == expected


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in _VARIADIC


def _spelled(parameter: inspect.Parameter) -> str:
    return str(parameter.replace(annotation=parameter.empty, default=parameter.empty))


def _title(owner: Any, name: str) -> str:
    return f"{getattr(owner, '__name__', type(owner).__name__)}.{name}"


def _unsupported(sdk: str, difference: str) -> RuntimeError:
    try:
        installed = version(sdk)
    except PackageNotFoundError:
        installed = "of an unknown version"
    return RuntimeError(
        f"{sdk} {installed} is not supported: {difference}; install {sdk}{supported_versions(sdk)}, or a newer Turnwire"
    )


def supported_versions(sdk: str) -> str:
    """Return the versions of an SDK that Turnwire's own package asks for, such as `>=3.1,<4`."""
    for requirement in requires("turnwire") or ():
        if match := re.match(rf"{re.escape(sdk)}(?:\[.*?\])?\s*([<>=!~][^;]*)?(?:;|$)", requirement):
            return ",".join(sorted((match[1] or "").strip().split(","), reverse=True))
    return ""
