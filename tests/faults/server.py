"""One server of the campaign: `turnwire serve` with the agents of the campaign and more frequent maintenance."""

from tests.faults import agents
from turnwire.app import Turnwire
from turnwire.cli.serve import configure_logging, serve_alone
from turnwire.settings import read_settings

_MAINTENANCE_INTERVAL = 2.0


def main() -> None:
    settings = read_settings()
    configure_logging(settings, "warning")
    turnwire = Turnwire(
        agents={name: getattr(agents, name) for name in agents.ALL},
        store="postgres",
        settings=settings,
        extensions=[],
        maintenance_interval=_MAINTENANCE_INTERVAL,
    )
    serve_alone(turnwire)


if __name__ == "__main__":
    main()
