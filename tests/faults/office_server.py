"""One server of the campaign against agents: `turnwire serve` with the office of one SDK.

The tools write what they do to a file, which outlives the process.

To import an SDK takes seconds, so this process imports it once, and each line of its input starts a new server, which
is a process of its own: it prints `pid 17`, what the server prints, and `ended` when that process has ended.
"""

import ctypes
import os
import signal
import sys
from importlib import import_module
from types import ModuleType

from tests.contracts.office import office_tools
from turnwire.app import Turnwire
from turnwire.cli.serve import configure_logging, serve_alone
from turnwire.settings import read_settings

_TOOL_SECONDS = 0.15
_PARENT_DEATH_SIGNAL = 1


def serve(case: ModuleType) -> None:
    settings = read_settings()
    configure_logging(settings, "warning")
    ledger = os.open(os.environ["FAULTS_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str, call: str) -> None:
        os.write(ledger, f"{what} {call}\n".encode())

    agent = case.adapt_office(case.build_office(os.environ["FAULTS_MODEL"], office_tools(note, _TOOL_SECONDS)))
    store = "postgres" if settings.database_url else "sqlite"
    serve_alone(Turnwire(agent=agent, store=store, settings=settings, extensions=[], maintenance_interval=1.0))


def main() -> None:
    _die_with_parent()
    case = import_module(f"tests.contracts.agent_cases.{os.environ['FAULTS_SDK']}")
    while sys.stdin.readline():
        if (pid := os.fork()) == 0:
            _die_with_parent()
            serve(case)
            return
        print(f"pid {pid}", flush=True)
        os.waitpid(pid, 0)
        print("ended", flush=True)


def _die_with_parent() -> None:
    """Leave no server behind, however the campaign ends. Only for Linux."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


if __name__ == "__main__":
    main()
