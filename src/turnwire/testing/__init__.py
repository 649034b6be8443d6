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
    "ModelRequest": "scripted_server",
    "RecordedTurn": "recordings",
    "ScriptedModel": "scripted_server",
    "breaks": "scripted_server",
    "calls": "scripted_server",
    "cuts": "scripted_server",
    "fails": "scripted_server",
    "filtered": "scripted_server",
    "garbles": "scripted_server",
    "hangs": "scripted_server",
    "open_client": "client",
    "recorded_turn": "recordings",
    "says": "scripted_server",
    "scripted_model": "scripted_server",
    "silent": "scripted_server",
    "thinks": "scripted_server",
    "too_long": "scripted_server",
    "truncates": "scripted_server",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'turnwire.testing' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"turnwire.testing.{home}"), name)
    return value
