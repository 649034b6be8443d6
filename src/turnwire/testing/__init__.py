"""Tests of agents without a model, a key or a network: recorded turns, a scripted model, and a client in this process.

from turnwire.testing import recorded_turn

def test_weather() -> None:
    recorded_turn("recordings/weather.jsonl").check(agent)

`turnwire.testing.plugin` has the fixtures for pytest, which loads them itself. No part of the server imports this
package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnwire.testing.client import AgentClient, AgentTurn, open_client
    from turnwire.testing.recordings import RecordedTurn, recorded_turn
    from turnwire.testing.scripted_server import (
        ModelRequest,
        ScriptedModel,
        breaks,
        calls,
        cuts,
        fails,
        filtered,
        garbles,
        hangs,
        says,
        scripted_model,
        silent,
        thinks,
        too_long,
        truncates,
    )

__all__ = [
    "AgentClient",
    "AgentTurn",
    "ModelRequest",
    "RecordedTurn",
    "ScriptedModel",
    "breaks",
    "calls",
    "cuts",
    "fails",
    "filtered",
    "garbles",
    "hangs",
    "open_client",
    "recorded_turn",
    "says",
    "scripted_model",
    "silent",
    "thinks",
    "too_long",
    "truncates",
]

# Imported when first used: pytest loads the plugin in this package at every start.
_HOMES = {
    "AgentClient": "client",
    "AgentTurn": "client",
    "RecordedTurn": "recordings",
    "open_client": "client",
    "recorded_turn": "recordings",
}
"""The modules of the names that are not in `scripted_server`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'turnwire.testing' has no attribute {name!r}")
    home = import_module(f"turnwire.testing.{_HOMES.get(name, 'scripted_server')}")
    value = globals()[name] = getattr(home, name)
    return value
