"""Tools, arguments and schemas in the JSON that both OpenAI APIs share."""

import json
from typing import Any, cast

from turnwire.core.codec import clean_text
from turnwire.core.turns import ToolRequest
from turnwire.models.contract import ToolSpec


def function(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}


def arguments(call: ToolRequest) -> str:
    return text(json.dumps(call.args, ensure_ascii=False))


def text(content: str) -> str:
    """Return the text without lone surrogates, which would make the whole request unsendable."""
    return clean_text(content)


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    # Servers guarantee a `strict` schema, but refuse one that is not closed.
    return {"name": "answer", "schema": schema, "strict": _is_closed(schema)}


def _is_closed(schema: Any) -> bool:
    """Return True if every object allows only its own properties and requires all of them."""
    if isinstance(schema, list):
        return all(map(_is_closed, cast("list[Any]", schema)))
    if not isinstance(schema, dict):
        return True
    node = cast("dict[str, Any]", schema)
    if node.get("type") == "object" or "properties" in node:
        if node.get("additionalProperties") is not False:
            return False
        if set(node.get("required", ())) != set(node.get("properties", ())):
            return False
    return all(map(_is_closed, node.values()))
