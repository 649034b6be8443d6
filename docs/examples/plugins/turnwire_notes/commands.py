from turnwire.cli.client import find_server, request
from turnwire.cli.commands import LOOK, Commands
from turnwire.cli.options import Data, Key, Url, fail


def notes(data: Data, url: Url = None, key: Key = None) -> None:
    """Print the notes of a running server."""
    server = find_server(data, url, key)
    if server is None:
        fail("no server runs on this data folder; start one with: turnwire serve")
    for name, text in request(server, "GET", "/v1/notes")["notes"].items():
        print(f"{name}: {text}")


def add_commands(commands: Commands) -> None:
    commands.add("notes", notes, LOOK, "--data ./data")
