"""Our tools, and those of a turn's client, as LangChain tools.

graph = create_agent(model, tools=langchain_tools([weather, delete_file]), checkpointer=saver)
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, cast

from langchain_core.tools import BaseTool, ToolException
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt

from turnwire.core.journal.waits import ClientTool, check_names
from turnwire.tools import Tool, ToolOutcome, run_tool
from turnwire.tools.declaration import Function, as_tool
from turnwire.tools.invocation import run_client_tool, running_call_id


def langchain_tools(tools: Iterable[Tool | Function]) -> list[BaseTool]:
    """Convert tools to LangChain's tools, which keep their limits, schema and `needs_approval`.

    A tool with `needs_approval` needs a graph with a checkpointer.
    """
    return [_LangChainTool.of(as_tool(item)) for item in tools]


class _AsyncTool(BaseTool):
    handle_tool_error: Any = True

    def _to_args_and_kwargs(self, tool_input: Any, tool_call_id: str | None) -> tuple[tuple[()], dict[str, Any]]:
        # Pass the arguments as one value: a parameter may have a name that LangChain reserves.
        return (), {"arguments": tool_input, "call_id": tool_call_id}

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{self.name} can only be called from async code")

    def _text_of(self, outcome: ToolOutcome) -> str:
        if not outcome.success:
            raise ToolException(outcome.text)
        return outcome.text


class _LangChainTool(_AsyncTool):
    ours: Any

    @classmethod
    def of(cls, tool: Tool) -> BaseTool:
        return cls(name=tool.name, description=tool.description, args_schema=tool.parameters, ours=tool)

    async def _arun(self, arguments: dict[str, Any], call_id: str | None) -> str:
        tool: Tool = self.ours
        if tool.requires_approval(arguments):
            # The format of LangChain's own middleware, so that clients that can answer it can answer this.
            request = {"type": "tool_approval", "tool_call_id": call_id, "name": tool.name, "args": arguments}
            decision: Any = interrupt({**request, "description": tool.description, "editable": tool.editable})
            if decision["type"] == "edit":
                arguments = decision["edited_action"]["args"]
            elif decision["type"] != "approve":
                raise ToolException(f"Denied: {decision.get('message') or 'the user did not allow this.'}")
        return self._text_of(await run_tool(tool, arguments, call_id=call_id))


class _LangChainClientTool(_AsyncTool):
    async def _arun(self, arguments: dict[str, Any], call_id: str | None) -> str:
        # In the log, a call has another id if its own was taken before.
        return self._text_of(await run_client_tool(running_call_id() or call_id or "", self.name, arguments))


# Tools that the client runs


def tool_nodes(graph: Any) -> Iterator[tuple[str, ToolNode]]:
    """Yield the nodes of a graph, but not of its subgraphs, that run the tools which a model requests."""
    nodes: Mapping[str, Any] = getattr(graph, "nodes", {})
    for name, node in nodes.items():
        bound: object = getattr(node, "bound", None)
        if isinstance(bound, ToolNode):
            yield name, bound


class OfferedTools:
    """The client's tools of a turn, and how they are added to a graph whose model and tools are fixed.

    They are offered in every model call of the graph's own nodes that offers tools of its tool nodes, and these nodes
    run them.
    """

    def __init__(self, graph: Any, tools: Sequence[ClientTool]) -> None:
        self._own = {name for _, node in tool_nodes(graph) for name in node.tools_by_name}
        check_names(self._own, tools)
        self._tools = [
            _LangChainClientTool(name=tool.name, description=tool.description, args_schema=tool.parameters)
            for tool in tools
        ]
        self._specs = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
            }
            for tool in tools
        ]
        self._names = {tool.name for tool in tools}

    def add_to_graph(self, graph: Any) -> Any:
        """Return a copy of the graph whose tool nodes run the client's tools too."""
        if not self._tools:
            return graph
        nodes: dict[str, Any] = dict(graph.nodes)
        for name, node in tool_nodes(graph):
            nodes[name] = nodes[name].copy({"bound": self._extended(node)})
        return graph.copy({"nodes": nodes})

    def _extended(self, node: ToolNode) -> ToolNode:
        added: Any = ToolNode(self._tools)
        extended: Any = copy(node)
        extended._tools_by_name = {**extended._tools_by_name, **added._tools_by_name}
        extended._injected_args = {**extended._injected_args, **added._injected_args}
        # These are methods of the node that was copied.
        extended.func, extended.afunc = extended._func, extended._afunc
        return extended

    def add_to_request(self, model: Any, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options of a model call with the client's tools in the provider's own form."""
        bound = options.get("tools")
        names = set(map(_name_of, cast("list[Any]", bound))) if isinstance(bound, list) else set[str | None]()
        if not self._tools or not names & self._own or names & self._names:
            return options
        return {**options, "tools": [*cast("list[Any]", bound), *model.bind_tools(self._specs).kwargs["tools"]]}


def _name_of(tool: Any) -> str | None:
    """Return the name in a provider's form of a tool."""
    if not isinstance(tool, dict):
        return None
    fields = cast("dict[str, Any]", tool)
    inner: Any = fields.get("function") or fields.get("toolSpec") or {}
    return fields.get("name") or inner.get("name")
