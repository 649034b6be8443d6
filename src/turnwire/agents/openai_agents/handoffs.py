"""The agent that a conversation was handed over to."""

from collections.abc import Iterator, Sequence
from typing import Any

from agents import Agent

from turnwire.core.turns import Message


def last_agent(first: Agent[Any], history: Sequence[Message]) -> Agent[Any]:
    """Return the agent of the last handoff in the history, or the first one if it cannot be reached any more."""
    name = next((message.agent for message in reversed(history) if message.agent is not None), None)
    return next((agent for agent in reachable_agents(first) if agent.name == name), first)


def reachable_agents(first: Agent[Any]) -> Iterator[Agent[Any]]:
    """Yield an agent and those that a conversation can be handed over to from there."""
    pending, seen = [first], {id(first)}
    while pending:
        agent = pending.pop(0)
        yield agent
        for handoff in agent.handoffs:
            target: Any = handoff if isinstance(handoff, Agent) else _target(handoff)
            if target is not None and id(target) not in seen:
                seen.add(id(target))
                pending.append(target)


def _target(handoff: Any) -> Any:
    # The SDK keeps only a weak reference to the agent of a `handoff(...)`, which has no public name.
    reference = getattr(handoff, "_agent_ref", None)
    return reference() if callable(reference) else None
