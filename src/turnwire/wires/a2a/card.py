"""Agent cards: what an agent is called, what it does, and where it is reached.

A card has the fields of A2A 1.0 and those of 0.3, so that clients of both can read it.
"""

from typing import Any
from urllib.parse import quote

from turnwire.core.contracts.agents import Agent, description_of, starters_of, takes_attachments
from turnwire.wires.a2a.frames import EVENT

WELL_KNOWN = "/.well-known/agent-card.json"
PREFIX = "/a2a/"


def agent_card(name: str, agent: Agent, base_url: str, version: str, *, needs_key: bool) -> dict[str, Any]:
    """Return the card of an agent of the server at `base_url`."""
    url = f"{base_url}{PREFIX}{quote(name, safe='')}"
    description = description_of(agent) or f"The agent {name}."
    card: dict[str, Any] = {
        "name": name,
        "description": description,
        "version": version,
        "supportedInterfaces": [
            {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
            {"url": url, "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"},
            {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "0.3"},
        ],
        "capabilities": {
            "streaming": True,
            "pushNotifications": True,
            "extendedAgentCard": False,
            "extensions": [
                {"uri": EVENT, "description": "Status updates have the event of the turn's log.", "required": False}
            ],
        },
        "defaultInputModes": ["text/plain", "application/json", *(["*/*"] if takes_attachments(agent) else [])],
        "defaultOutputModes": ["text/plain"],
        "skills": [
            {
                "id": name,
                "name": name,
                "description": description,
                "tags": ["chat"],
                "examples": starters_of(agent),
            }
        ],
        # Of 0.3.
        "protocolVersion": "0.3.0",
        "url": url,
        "preferredTransport": "JSONRPC",
        "supportsAuthenticatedExtendedCard": False,
    }
    if needs_key:
        card["securitySchemes"] = {
            "apiKey": {
                "httpAuthSecurityScheme": {"scheme": "Bearer"},
                "type": "http",
                "scheme": "bearer",
            }
        }
        card["securityRequirements"] = [{"schemes": {"apiKey": {"list": []}}}]
        card["security"] = [{"apiKey": []}]
    return card
