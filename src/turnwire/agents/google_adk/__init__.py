"""Adapter for agents of Google's Agent Development Kit (ADK).

    from google.adk.agents import LlmAgent

    agent = GoogleADKAgent(LlmAgent(name="helper", model="gemini-3-flash", tools=[search]))

The SDK's own runner runs the model, the tools and the transfers. `events` has a plugin for that runner: its callbacks
turn the calls of models and tools into events, and answer finished calls from the journal. `runner` adds the plugin to
the runs that tools start too. A tool that needs confirmation does not end the SDK's run: the call itself waits.
"""

from typing import TYPE_CHECKING

from turnwire.plugins import lazy_exports

if TYPE_CHECKING:
    from turnwire.agents.google_adk.agent import GoogleADKAgent
    from turnwire.agents.google_adk.tools import adk_tools

__all__ = ["GoogleADKAgent", "adk_tools"]

__getattr__ = lazy_exports(__name__, {"GoogleADKAgent": "agent", "adk_tools": "tools"})
