"""One server of the campaign against agents: `turnwire serve` with the office of one SDK.

The tools write what they do to a file, which outlives the process.
"""

import os
from importlib import import_module
from types import ModuleType

from tests.contracts.office import office_tools
from tests.faults.server import fork_servers
from turnwire import app
from turnwire.app import Turnwire
from turnwire.cli.serve import configure_logging, serve_alone
from turnwire.core.contracts.agents import Agent
from turnwire.settings import read_settings

_TOOL_SECONDS = 0.15


def serve(agent: Agent) -> None:
    app.MAINTENANCE_INTERVAL = 1.0
    settings = read_settings()
    configure_logging(settings, "warning")
    store = "postgres" if settings.database_url else "sqlite"
    serve_alone(Turnwire(agent=agent, store=store, settings=settings, extensions=[]))


def build_agent(case: ModuleType) -> Agent:
    ledger = os.open(os.environ["FAULTS_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str, call: str) -> None:
        os.write(ledger, f"{what} {call}\n".encode())

    return case.adapt_office(case.build_office(os.environ["FAULTS_MODEL"], office_tools(note, _TOOL_SECONDS)))


if __name__ == "__main__":
    # Once for all servers: to build an agent imports the rest of its SDK.
    office = build_agent(import_module(f"tests.contracts.agent_cases.{os.environ['FAULTS_SDK']}"))
    fork_servers(lambda: serve(office))
