"""Tests of the commands without a server: help, keys, turns, tail and doctor on a data folder."""

import asyncio
import json
import socket
import sqlite3
import zlib
from collections.abc import AsyncIterator, Callable
from functools import cache
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer.main
from rich.text import Text
from typer.testing import CliRunner, Result

from tests.channels.console.typist import serving_agents, typing
from tests.serving import PATIENCE, quick_settings, serving, within
from turnwire import Turn, Turnwire
from turnwire.cli.main import app
from turnwire.cli.serve import welcome
from turnwire.cli.web_server import listen, url_of
from turnwire.core.log.events import Event, UsageEvent
from turnwire.core.log.follow import follow
from turnwire.server.messages import MessageBody
from turnwire.stores.sqlite import SqliteStore

LEAVE_ALTERNATE_SCREEN = "\x1b[?1049l"
COMMANDS = (
    *("serve", "chat", "ask", "index", "compare", "turns", "tail", "inspect", "top", "backup", "move"),
    *("dev", "worker", "acp", "mcp", "doctor", "record", "replay", "eval", "fork", "verify"),
    *("keys", "keys create", "keys list", "keys revoke"),
    *("schedules", "schedules add", "schedules list", "schedules pause", "schedules resume", "schedules remove"),
    *("extensions", "extensions list", "extensions check", "extensions new"),
)


def call(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@cache
def help_of(command: str) -> Result:
    return call(*command.split(), "--help")


def filled_folder(folder: Path, *messages: str, usage: UsageEvent | None = None) -> Path:
    """Return a new data folder with a turn for each message."""

    async def echo(turn: Turn) -> AsyncIterator[Event | str]:
        yield turn.message.upper()
        if usage is not None:
            yield usage

    async def fill() -> None:
        turnwire = Turnwire(echo, settings=quick_settings(folder))
        await turnwire.open()
        for message in messages:
            accepted = await turnwire.start("anna", MessageBody.model_validate({"message": message}))
            async with asyncio.timeout(PATIENCE):
                async for _ in follow(turnwire.store, accepted.record.id):
                    pass
        await turnwire.close()

    asyncio.run(fill())
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return filled_folder(tmp_path / "data", "One line", "Two\nlines")


def failing_with(error: type[BaseException]) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error("the disk is full")

    return fail


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_every_command_has_help(command: str) -> None:
    shown = help_of(command)
    assert shown.exit_code == 0
    assert "Usage" in shown.output
    assert "--help" in shown.output


def test_list_of_commands_is_complete() -> None:
    group = typer.main.get_command(app)
    names = set()
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        names |= {name, *(f"{name} {below}" for below in getattr(command, "commands", ()))}
    assert names == set(COMMANDS)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_shows_no_type_for_flags(command: str) -> None:
    shown = help_of(command).output
    assert "<bool>" not in shown


def test_help_has_groups_and_examples() -> None:
    shown = help_of("").output
    assert all(group in shown for group in ("Run agents", "Talk to them", "Look at turns", "Operate"))
    for command in COMMANDS:
        if " " not in command and command not in ("keys", "schedules", "extensions"):
            assert f"turnwire {command}" in help_of(command).output.partition("Examples")[2], command


def test_version_is_that_of_the_package() -> None:
    assert call("--version").output == f"turnwire {version('turnwire')}\n"


def test_unknown_command_is_refused() -> None:
    assert call("fly").exit_code == 2


def test_turns_lists_the_newest_first(data: Path) -> None:
    lines = [line.split("\t") for line in call("turns", "--data", data).output.splitlines()]
    assert [line[1:] for line in lines] == [
        ["completed", "5", "default", "Two lines"],
        ["completed", "5", "default", "One line"],
    ]
    assert len(call("turns", "--data", data, "--limit", "1").output.splitlines()) == 1
    assert call("turns", "--data", data, "--limit", "0").exit_code == 2


@pytest.mark.process
def test_turns_in_a_terminal_shows_a_message_that_looks_like_markup(tmp_path: Path) -> None:
    data = filled_folder(tmp_path / "data", "Close [/b] and [red]open[/red]")
    with typing("turns", "--data", data, cwd=tmp_path, size=(200, 24)) as terminal:
        terminal.see("Close [/b] and [red]open[/red]", "completed")
        assert terminal.exit_code() == 0


@pytest.mark.parametrize(
    "arguments", [("keys", "list"), ("index", "--no-embed"), ("compare", "Why?")], ids=lambda arguments: arguments[0]
)
def test_command_with_an_invalid_setting_is_refused_with_a_reason(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNWIRE_PORT", "harbour")
    refused = call(*arguments, "--data", tmp_path)
    assert refused.exit_code == 1
    assert "port" in refused.output


@pytest.mark.process
def test_top_that_loses_its_server_leaves_the_reason_on_the_screen(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving_agents(data, tmp_path) as server:
        with typing("top", "--data", data, "--interval", "0.2", cwd=tmp_path) as terminal:
            terminal.see("turnwire top", "0 running")
            server.kill()
            assert terminal.exit_code() == 1
            _, _, left = terminal.emulator.written.rpartition(LEAVE_ALTERNATE_SCREEN)
        assert "does not answer" in left
        server.start()


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("existed", [True, False])
def test_failed_backup_leaves_nothing(
    error: type[BaseException], existed: bool, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    if existed:
        copy.mkdir()
    (data / "extensions").mkdir()
    (data / "extensions" / "notes.txt").touch()
    monkeypatch.setattr("turnwire.stores.sqlite.transfer._sync", failing_with(error))
    failed = call("backup", copy, "--data", data)
    assert failed.exit_code == 1
    assert "was removed" in failed.output
    assert copy.exists() == existed
    assert not existed or list(copy.iterdir()) == []


def test_unknown_log_level_is_refused(tmp_path: Path) -> None:
    refused = call("serve", "--data", tmp_path, "--log-level", "loud")
    assert refused.exit_code == 2
    assert "debug, info" in refused.output


def test_welcome_shows_an_ipv6_address_that_looks_like_markup(tmp_path: Path) -> None:
    lines = welcome(Turnwire(settings=quick_settings(tmp_path)), "http://[fd00::1]:8420")
    shown = [Text.from_markup(line).plain for line in lines]
    assert "http://[fd00::1]:8420" in shown[0]
    assert "http://[fd00::1]:8420/docs" in shown[-1]


async def test_welcome_shows_the_key_and_an_address_that_clients_can_open(tmp_path: Path) -> None:
    turnwire = Turnwire(settings=quick_settings(tmp_path))
    await turnwire.open()
    assert not any("Authorization" in line for line in welcome(turnwire, "http://localhost"))
    await turnwire.keys.create("anna", ("read",))
    commands = [line for line in welcome(turnwire, "http://localhost") if "curl" in line and "http" in line]
    assert len(commands) == 2
    assert all('-H "Authorization: Bearer $TURNWIRE_API_KEY"' in command for command in commands)
    await turnwire.close()
    for host in ("0.0.0.0", "127.0.0.1"):
        listening = listen(host, 0)
        address = url_of(host, listening).removeprefix("http://").partition(":")[0]
        assert ip_address(address) != ip_address("0.0.0.0")
        with socket.create_connection((address, listening.getsockname()[1])):
            pass
        listening.close()


async def test_small_writes_of_a_server_are_sent_at_once() -> None:
    connected = asyncio.get_running_loop().create_future()

    class Server(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            connected.set_result(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    listening = listen("127.0.0.1", 0)
    # The event loop of asyncio itself, which is what a machine without uvloop has.
    async with await asyncio.get_running_loop().create_server(Server, sock=listening):
        with socket.create_connection(listening.getsockname()[:2]):
            assert await within(connected)


def test_object_that_is_no_agent_is_named_shortly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no_agents_here.py").write_text("lengthy = ['word'] * 1000")
    refused = call("serve", "--data", tmp_path / "data", "--agent", "no_agents_here:lengthy")
    assert refused.exit_code == 1
    assert "an object of type `list` is not an agent" in refused.output
    assert "'word', 'word'" not in refused.output


def test_tail_prints_one_event_per_line(data: Path) -> None:
    events = [json.loads(line) for line in call("tail", "--data", data).output.splitlines()]
    assert [event["type"] for event in events] == ["session", "message", "token", "response", "done"]
    assert events[2]["content"] == "TWO\nLINES"
    turn_id = call("turns", "--data", data).output.splitlines()[1].partition("\t")[0]
    events = [json.loads(line) for line in call("tail", turn_id, "--data", data, "--after", "2").output.splitlines()]
    assert [event["type"] for event in events] == ["token", "response", "done"]
    assert events[0]["content"] == "ONE LINE"
    assert call("tail", turn_id, "--data", data, "--after", "5").output == ""


def test_tail_of_unknown_turn_wire_or_folder_is_refused(data: Path, tmp_path: Path) -> None:
    for arguments, message in (
        (("tail", "nothing", "--data", data), "no turn has the id 'nothing'"),
        (("tail", "--data", data, "--wire", "morse"), "there is no wire 'morse'"),
        (("tail", "--data", tmp_path / "elsewhere"), "no such file"),
        (("turns", "--data", tmp_path / "elsewhere"), "no such file"),
    ):
        refused = call(*arguments)
        assert refused.exit_code == 1
        assert message in refused.output
    assert call("tail", "--data", data, "--after", "-1").exit_code == 2


def test_beginning_or_end_of_an_id_is_enough(data: Path) -> None:
    newest, oldest = [line.partition("\t")[0] for line in call("turns", "--data", data).output.splitlines()]
    for part in (oldest, oldest[-7:], f"…{oldest[-7:]}", oldest[:24]):
        assert "ONE LINE" in call("tail", part, "--data", data).output
        assert json.loads(call("inspect", part, "--json", "--data", data).output)["turn_id"] == oldest
    several = call("tail", oldest[:4], "--data", data)
    assert several.exit_code == 1
    assert "2 ids begin or end with" in several.output
    assert newest in several.output
    assert oldest in several.output
    assert "no turn has the id 'ffff'" in call("tail", "ffff", "--data", data).output


def test_inspect_shows_the_cost_where_prices_are_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = filled_folder(tmp_path / "data", "Hello", usage=UsageEvent("big", input_tokens=500_000, output_tokens=0))
    assert json.loads(call("inspect", "--json", "--data", data).output)["cost_usd"] is None
    monkeypatch.setenv("TURNWIRE_MODEL_PRICES", '{"big": {"input": 2, "output": 8}}')
    assert json.loads(call("inspect", "--json", "--data", data).output)["cost_usd"] == 1
    assert "$1.00" in call("inspect", "--data", data).output


@pytest.mark.process
def test_tables_fit_a_narrow_terminal(tmp_path: Path) -> None:
    data, size = tmp_path / "data", (46, 24)
    with serving_agents(data, tmp_path) as server:
        httpx.post(f"{server.url}/v1/sessions", json={"id": "s"}).raise_for_status()
        body = {"message": "When does the ferry to Norderney leave?", "agent": "waiting"}
        turn_id = httpx.post(f"{server.url}/v1/sessions/s/turns", json=body).raise_for_status().json()["turn_id"]
        end = f"…{turn_id[-7:]}"
        with typing("top", "--data", data, "--interval", "0.2", cwd=tmp_path, size=size) as terminal:
            terminal.until(lambda: any(end in line and "running" in line for line in terminal.lines), "the turn")
            line = next(line for line in terminal.lines if end in line)
            assert line.split()[:2] + line.split()[3:] == [end, "running", "waiting", "3"]
        with typing("turns", "--data", data, cwd=tmp_path, size=size) as terminal:
            assert terminal.exit_code() == 0
            assert any(line.startswith(f"{end}  running") for line in map(str.strip, terminal.lines))
        with typing("inspect", end, "--data", data, cwd=tmp_path, size=size) as terminal:
            assert terminal.exit_code() == 0
            assert any(line.startswith("phases") and line.rstrip()[-1] == "s" for line in terminal.lines)


def test_keys_are_created_listed_and_revoked_without_a_server(tmp_path: Path) -> None:
    data = tmp_path / "data"
    created = call("keys", "create", "anna", "--data", data, "--scope", "read", "--scope", "write")
    assert created.exit_code == 0
    key = created.stdout.strip()
    assert key.startswith("tw_")
    assert "not shown again" in created.stderr
    listed = call("keys", "list", "--data", data).output
    assert key.removeprefix("tw_").partition("_")[2] not in listed
    assert [*listed.split("\t")[1:3], listed.split("\t")[4].strip()] == ["anna", "read,write", "valid"]
    assert call("keys", "revoke", key.split("_")[1], "--data", data).exit_code == 0
    assert call("keys", "list", "--data", data).output.strip().endswith("revoked")
    assert not any(key.encode() in path.read_bytes() for path in data.iterdir())


def test_invalid_keys_are_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for arguments, message in (
        (("keys", "create", "anna", "--scope", "everything"), "there is no everything"),
        (("keys", "create", "not a name"), "principal"),
        (("keys", "create", ""), "principal"),
        (("keys", "create", "anna", "--days", "1e9"), "days"),
        (("keys", "revoke", "nothing"), "no API key has the id 'nothing'"),
    ):
        refused = call(*arguments, "--data", data)
        assert refused.exit_code in (1, 2), arguments
        assert message in refused.output
    empty = call("keys", "list", "--data", data)
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert "There are no API keys" in empty.stderr


def test_beginning_of_a_key_id_is_enough_to_revoke_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    ids = [call("keys", "create", name, "--data", data).stdout.split("_")[1] for name in ("anna", "ben")]
    for part in ("", ids[0][:3]):
        assert call("keys", "revoke", part, "--data", data).exit_code == 1
    assert call("keys", "revoke", ids[0][:6], "--data", data).output == f"Key {ids[0]} of anna is revoked.\n"


def test_doctor_accepts_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    report = call("doctor", "--data", tmp_path / "new")
    assert report.exit_code == 0
    assert "will be created" in report.output
    assert "none yet" in report.output


def test_doctor_reports_a_missing_full_text_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "FTS5" in call("doctor", "--data", tmp_path).output

    class WithoutFts5(sqlite3.Connection):
        def execute(self, query: str, *values: Any) -> sqlite3.Cursor:
            return super().execute(query.replace("fts5", "fts5_that_is_missing"), *values)

    connect = sqlite3.connect
    monkeypatch.setattr(
        "turnwire.cli.doctor.sqlite3.connect",
        lambda path, **options: connect(path, **options, factory=WithoutFts5) if path == ":memory:" else connect(path),
    )
    report = call("doctor", "--data", tmp_path)
    assert report.exit_code == 1
    assert "SQLite has no FTS5" in report.output


def test_doctor_reports_a_corrupt_database(data: Path) -> None:
    assert "sound" in call("doctor", "--data", data).output
    (data / "turnwire.db").write_bytes(b"This is no database at all. " * 200)
    report = call("doctor", "--data", data)
    assert report.exit_code == 1
    assert "not a SQLite database" in report.output


def test_doctor_reports_a_data_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    report = call("doctor", "--data", tmp_path / "data")
    assert report.exit_code == 1
    assert "cannot be written to" in report.output


def test_data_folder_is_read_from_the_environment(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNWIRE_DATA", str(data))
    assert len(call("turns").output.splitlines()) == 2
    monkeypatch.delenv("TURNWIRE_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", str(data.parent))
    data.rename(data.parent / "turnwire")
    assert len(call("turns").output.splitlines()) == 2


async def seal_all(folder: Path, key: str) -> None:
    store = SqliteStore(folder, seal_key=key.encode())
    await store.open()
    await store.maintain(expire_before=0)
    await store.close()


def test_verify_names_the_turn_and_the_position_that_were_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "k" * 32
    folder = filled_folder(tmp_path / "data", "one", "two", "three")
    assert "3 unsealed" in call("verify", "--all", "--data", folder).output
    asyncio.run(seal_all(folder, key))
    assert call("verify", "--data", folder).exit_code == 2
    result = call("verify", "--all", "--data", folder)
    assert (result.exit_code, result.output) == (0, "3 intact.\n")
    monkeypatch.setenv("TURNWIRE_SEAL_KEY", key)
    assert call("verify", "--all", "--data", folder).exit_code == 0
    with sqlite3.connect(folder / "turnwire.db") as connection:
        rows = connection.execute("SELECT turn, body, id FROM sealed_log JOIN turn ON turn = number").fetchall()
        number, body, turn_id = rows[1]
        lines = zlib.decompress(body).replace(b'"TWO"', b'"TOO"')
        connection.execute("UPDATE sealed_log SET body = ? WHERE turn = ?", (zlib.compress(lines), number))
    connection.close()
    result = call("verify", "--all", "--data", folder)
    assert result.exit_code == 1
    assert f"{turn_id}: its log was changed" in result.output
    assert "from position 3 on" in result.output
    assert "2 intact, 1 broken" in result.output
    (line,) = call("verify", turn_id[-8:], "--json", "--data", folder).output.splitlines()
    assert (json.loads(line)["state"], json.loads(line)["position"]) == ("broken", 3)
    monkeypatch.setenv("TURNWIRE_SEAL_KEY", "another" * 5)
    assert "3 broken" in call("verify", "--all", "--data", folder).output
    assert "2 intact, 1 broken" in call("verify", "--all", "--data", folder, "--seal-key", key).output


def test_fork_without_a_server_says_what_to_do(tmp_path: Path) -> None:
    folder = filled_folder(tmp_path / "data", "one")
    result = call("fork", "01a1e348", "--at", "3", "--data", folder)
    assert result.exit_code == 1
    assert "turnwire serve" in result.output


async def test_fork_starts_a_turn_on_the_server(tmp_path: Path) -> None:
    async def echo(turn: Turn) -> AsyncIterator[Event | str]:
        yield turn.message.upper()

    async with serving(Turnwire(echo, settings=quick_settings(tmp_path))) as server:
        turn_id = await server.start("one")
        await server.ended(turn_id)
        arguments = ("fork", turn_id[-10:], "--at", "3", "--message", "two", "--url", server.url, "--data", tmp_path)
        result = await asyncio.to_thread(call, *arguments)
        fork = await server.ended(result.output.strip())
        assert (fork["message"], fork["state"]["forked_from"]) == ("two", turn_id)
        assert fork["state"]["text"] == "ONE\n\nTWO"
