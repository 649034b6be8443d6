"""The nodes of a graph whose text is its answer, if the application does not name them.

In a graph that keeps `messages`, a node answers if it may write them. Text is streamed before the node returns, so the
source code of its function is read: a node does not answer if every `return` gives a dict without `messages`. In a
graph without `messages`, a node answers if the graph always ends after it.
"""

import ast
import inspect
import textwrap
from collections.abc import Collection, Iterator
from typing import Any, cast

from langgraph.graph import END, add_messages  # pyright: ignore[reportMissingTypeStubs]
from langgraph.graph.state import CompiledStateGraph  # pyright: ignore[reportMissingTypeStubs]

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def keeps_messages(graph: Any) -> bool:
    """Return False for a graph whose state has no `messages`."""
    builder = _builder(graph)
    return builder is None or "messages" in builder.channels


def has_message_ids(graph: Any) -> bool:
    """Return True for a graph whose `messages` are merged by id, so that they can be removed."""
    builder = _builder(graph)
    return builder is not None and getattr(builder.channels.get("messages"), "operator", None) is add_messages


def find_answer_nodes(graph: Any) -> Collection[str] | None:
    """Return the nodes that answer, or None if all do."""
    builder = _builder(graph)
    if builder is None:
        return None
    if keeps_messages(graph):
        return [name for name, node in builder.nodes.items() if _may_write_messages(node.runnable)]
    return [
        name
        for name, node in builder.nodes.items()
        if not node.ends and name not in builder.branches and _successors(builder, name) <= {END}
    ]


def _builder(graph: Any) -> Any:
    """Return the description of a graph of nodes, or None for anything else, such as an `@entrypoint`."""
    return cast("Any", graph).builder if isinstance(graph, CompiledStateGraph) else None


def _successors(builder: Any, name: str) -> set[str]:
    joined = {end for starts, end in builder.waiting_edges if name in starts}
    return joined | {end for start, end in builder.edges if start == name}


def _may_write_messages(runnable: Any) -> bool:
    function: Any = getattr(runnable, "afunc", None) or getattr(runnable, "func", None)
    try:
        module = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (TypeError, OSError, SyntaxError, ValueError):
        return True
    match module.body:
        case [ast.FunctionDef() | ast.AsyncFunctionDef() as definition]:
            statements = list(_own_nodes(definition))
        case _:
            return True
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in statements):
        return True
    return any(_may_have_messages(node.value) for node in statements if isinstance(node, ast.Return))


def _own_nodes(definition: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a function without those of functions inside it."""
    for child in ast.iter_child_nodes(definition):
        yield child
        if not isinstance(child, _FUNCTIONS):
            yield from _own_nodes(child)


def _may_have_messages(value: ast.expr | None) -> bool:
    match value:
        case None | ast.Constant(value=None):
            return False
        case ast.Dict(keys=keys):
            return not all(isinstance(key, ast.Constant) and key.value != "messages" for key in keys)
        case ast.Call(func=ast.Name(id="Command"), args=[], keywords=keywords):
            updates = [keyword.value for keyword in keywords if keyword.arg in ("update", None)]
            return any(map(_may_have_messages, updates))
        case _:
            return True
