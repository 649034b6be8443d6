"""The response object: all the fields that the Open Responses specification requires, null where there is nothing."""

import re
from collections.abc import Mapping
from typing import Any

from turnwire.core.events import ErrorEvent, Usage

ECHOED: Mapping[str, Any] = {
    "background": False,
    "conversation": None,
    "frequency_penalty": 0.0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": None,
    "safety_identifier": None,
    "service_tier": "default",
    "temperature": 1.0,
    "tool_choice": "auto",
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""The fields of a request that its response repeats, and what they are where the request does not say."""

_RESPONSE_ID = re.compile(r"resp_([A-Za-z0-9.:@-]{1,128}?)(?:_([2-9]|[1-9][0-9]{1,3}))?")


def response_id(turn_id: str, segment: int = 1) -> str:
    return f"resp_{turn_id}" if segment == 1 else f"resp_{turn_id}_{segment}"


def parse_response_id(text: str) -> tuple[str, int] | None:
    """The turn and the segment that an id names; None for what is no id of a response."""
    found = _RESPONSE_ID.fullmatch(text)
    return None if found is None else (found[1], int(found[2] or 1))


def new_resource(turn_id: str, agent: str, at: int, echo: Mapping[str, Any], segment: int) -> dict[str, Any]:
    """A response that has just begun, at this time in milliseconds."""
    return {
        "id": response_id(turn_id, segment),
        "object": "response",
        "created_at": at // 1000,
        "completed_at": None,
        "status": "in_progress",
        "model": agent,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "usage": None,
        **ECHOED,
        **echo,
        **({"previous_response_id": response_id(turn_id, segment - 1)} if segment > 1 else {}),
        "text": {"format": {"type": "text"}},
        "tools": [],
        "store": True,
    }


def ended_resource(
    resource: Mapping[str, Any], status: str, at: int, output: list[Any], usage: Usage | None, error: ErrorEvent | None
) -> dict[str, Any]:
    return {
        **resource,
        "status": status,
        "completed_at": at // 1000 if status == "completed" else None,
        "output": output,
        "usage": usage and usage_object(usage),
        "error": {"code": error.code, "message": error.error} if error else None,
        "incomplete_details": {"reason": "cancelled"} if status == "cancelled" else None,
    }


def usage_object(usage: Usage) -> dict[str, Any]:
    """The protocol has no word for «not known» here, so that is 0."""
    taken, given = usage.input_tokens or 0, usage.output_tokens or 0
    return {
        "input_tokens": taken,
        "input_tokens_details": {"cached_tokens": usage.cached_input_tokens or 0, "cache_write_tokens": 0},
        "output_tokens": given,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": taken + given,
    }
