"""Errors that the agents of all SDKs can end with."""

from turnwire.core.errors import AgentError


def step_limit_reached() -> AgentError:
    return AgentError("the agent reached its step limit; send a smaller request", code="max_turns")
