"""What a server's tool gave, as a tool of ours gives it: a value, or a `ToolError`.

A model is given text. Pictures, sounds and files stay where they are: it is told that they are there.
"""

import json
from collections.abc import Sequence
from typing import Any

import mcp_types as types

from turnwire.core.errors import ToolError


def value_of(result: types.CallToolResult) -> Any:
    """Raises ToolError if the server says that the tool failed."""
    text = "\n".join(map(_told, result.content))
    if result.is_error:
        raise ToolError(text or "the tool failed and did not say why")
    structured = result.structured_content
    if structured is not None and (not result.content or _says_the_same(result.content, structured)):
        return structured
    return text


def _says_the_same(content: Sequence[types.ContentBlock], structured: Any) -> bool:
    """Servers repeat structured content as text, for clients that know no better."""
    if len(content) != 1 or not isinstance(content[0], types.TextContent):
        return False
    try:
        return json.loads(content[0].text) == structured
    except (ValueError, RecursionError):
        return False


def _told(part: types.ContentBlock) -> str:
    match part:
        case types.TextContent():
            return part.text
        case types.ImageContent() | types.AudioContent():
            return f"[{part.type}, {part.mime_type}, {_size(part.data)}, not shown]"
        case types.ResourceLink():
            return f"[resource {part.uri}{f': {part.description}' if part.description else ''}]"
        case types.EmbeddedResource():
            inside = part.resource
            if isinstance(inside, types.TextResourceContents):
                return inside.text
            return f"[resource {inside.uri}, {_size(inside.blob)}, not shown]"


def _size(base64: str) -> str:
    return f"{len(base64) * 3 // 4:,} bytes"
