"""How text that somebody else wrote is put before a model: as data that cannot speak for itself.

It is written as JSON, so no text can end the frame it stands in. What chat templates use as control tokens is escaped
inside it, so no text can pose as a turn, a tool call or a system message.
"""

import re
from typing import Any

import msgspec

# <|im_end|>, </s>, <tool_call>, <｜Assistant｜>, [INST], [/TOOL_CALLS] and their like.
_CONTROL_TOKEN = re.compile(r"<(?=[|/a-zA-Z_｜])|\[(?=/?[A-Z_]+\])")
_ESCAPES = {"<": "\\u003c", "[": "\\u005b"}


def framed(value: Any) -> str:
    """A value as JSON in which no string can be taken for a control token."""
    return escaped(msgspec.json.encode(value).decode())


def escaped(text: str) -> str:
    """The text with no control token in it."""
    return _CONTROL_TOKEN.sub(lambda found: _ESCAPES[found[0]], text)
