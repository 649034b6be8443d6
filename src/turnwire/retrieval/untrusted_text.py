"""Untrusted text for models, framed as data.

JSON is the frame, which no text inside can close. Control tokens of chat templates are escaped, so that no text can
pose as a message or a tool call.
"""

import re
from typing import Any

import msgspec

# <|im_end|>, </s>, <tool_call>, <｜Assistant｜>, [INST], [/TOOL_CALLS] and similar.
_CONTROL_TOKEN = re.compile(r"<(?=[|/a-zA-Z_｜])|\[(?=/?[A-Z_]+\])")
_ESCAPES = {"<": "\\u003c", "[": "\\u005b"}


def framed(value: Any) -> str:
    """Return a value as JSON without control tokens."""
    return escaped(msgspec.json.encode(value).decode())


def escaped(text: str) -> str:
    """Return the text with its control tokens escaped."""
    return _CONTROL_TOKEN.sub(lambda match: _ESCAPES[match[0]], text)
