"""Tests of commands while a server runs, and of what `serve` refuses."""

import asyncio
import json
import os
import stat
from pathlib import Path

import httpx
import pytest

from tests.process.server_process import run, served, start
from tests.serving import PATIENCE, error_of


async def test_server_announces_its_address_in_a_private_file(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with served(data) as server:
        announcement = json.loads((data / "server.json").read_text())
        assert announcement["url"] == server.url
        assert announcement["pid"] == server.process.pid
        assert stat.S_IMODE((data / "server.json").stat().st_mode) == 0o600
        assert stat.S_IMODE(data.stat().st_mode) & 0o077 == 0
        async with httpx.AsyncClient(
            base_url=server.url, headers={"X-API-Key": announcement["control_token"]}
        ) as operator:
            assert (await operator.get("/v1/keys")).json() == {"keys": []}


async def test_second_server_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with served(data) as server:
        second = await run("serve", "--data", data, "--port", "0")
        assert second.code != 0
        assert "another turnwire server is using it" in second.err
        assert len(second.err.splitlines()) == 1
        assert "Traceback" not in second.err
        # The first server is not affected.
        assert json.loads((data / "server.json").read_text())["url"] == server.url
        assert (await server.http.get("/healthz")).status_code == 200


async def test_taken_port_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path / "data") as server:
        second = await run("serve", "--data", tmp_path / "other", "--port", str(server.port))
        assert second.code == 1
        assert f"cannot listen on 127.0.0.1:{server.port}" in second.err


REFUSALS = {
    ("--host", "0.0.0.0"): "there is no API key yet",
    ("--host", "::"): "there is no API key yet",
    ("--workers", "2"): "PostgreSQL",
    ("--agent", "nowhere:answer"): "'nowhere' cannot be imported",
    ("--agent", "json:nothing"): "has no 'nothing'",
    ("--agent", "json:dumps"): "takes more than a turn: write `def dumps(turn)`",
    ("--agent", "json"): "not of the form module:name",
}


async def test_invalid_options_are_refused_with_a_reason(tmp_path: Path) -> None:
    data = tmp_path / "data"
    refused = await asyncio.gather(*(run("serve", "--data", data, "--port", "0", *options) for options in REFUSALS))
    for answer, message in zip(refused, REFUSALS.values(), strict=True):
        assert answer.code == 1
        assert message in answer.err
        assert "Traceback" not in answer.err
    assert not (data / "server.json").exists()


async def test_server_with_a_key_may_listen_on_every_address(tmp_path: Path) -> None:
    data = tmp_path / "data"
    created = await run("keys", "create", "anna", "--data", data)
    assert created.code == 0
    async with served(data, "--host", "0.0.0.0") as server:
        url = f"http://127.0.0.1:{server.port}"
        async with httpx.AsyncClient(base_url=url) as anybody:
            error_of(await anybody.get("/v1/sessions"), 401)
            response = await anybody.get("/v1/sessions", headers={"X-API-Key": created.out.strip()})
            assert response.json()["sessions"] == []
        assert (await run("keys", "list", "--data", data)).out.count("anna") == 1


async def test_tail_follows_a_running_turn_to_its_end(tmp_path: Path) -> None:
    data, release = tmp_path / "data", tmp_path / "release"
    async with served(data) as server, server.ask(str(release), agent="held") as stream:
        await stream.until("token")
        newest = await start("tail", "--data", data)
        as_wire = await start("tail", stream.turn_id, "--data", data, "--wire", "sse_chat", "--after", "2")
        assert newest.stdout is not None
        assert as_wire.stdout is not None
        async with asyncio.timeout(PATIENCE):
            first = [await newest.stdout.readline(), await as_wire.stdout.readline()]
        release.touch()
        frames = [*stream.seen, *await stream.rest()]
        async with asyncio.timeout(PATIENCE):
            (lines, _), (wire, _) = await asyncio.gather(newest.communicate(), as_wire.communicate())
    assert (newest.returncode, as_wire.returncode) == (0, 0)
    assert (first[0] + lines).decode().splitlines() == [frame.data for frame in frames]
    assert first[1] + wire == stream.raw[stream.raw.index(b"id: 3.") :]


async def test_tail_of_a_killed_turn_waits_and_the_next_server_ends_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with served(data) as server, server.ask("1", agent="silent") as stream:
        await stream.until("token")
        tailing = await start("tail", "--data", data)
        assert tailing.stdout is not None
        first = [await asyncio.wait_for(tailing.stdout.readline(), PATIENCE) for _ in range(3)]
        await server.kill()
    async with served(data):
        rest, _ = await asyncio.wait_for(tailing.communicate(), PATIENCE)
    assert [json.loads(line)["type"] for line in first] == ["session", "message", "token"]
    assert [json.loads(line)["type"] for line in rest.splitlines()] == ["error", "done"]


async def test_turns_are_listed_while_the_server_runs(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with served(data) as server:
        async with server.ask("2", agent="slow") as ended:
            await ended.rest()
        async with server.ask("1", agent="silent") as running:
            await running.until("token")
            listed = await run("turns", "--data", data)
            assert [line.split("\t") for line in listed.out.splitlines()] == [
                [running.turn_id, "running", "3", "silent", "1"],
                [ended.turn_id, "completed", "6", "slow", "2"],
            ]
            assert len((await run("turns", "-n", "1", "--data", data)).out.splitlines()) == 1


async def test_keys_are_managed_through_the_running_server(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with served(data) as server:
        assert (await server.http.get("/v1/sessions")).status_code == 200
        created = await run("keys", "create", "anna", "--scope", "read", "--days", "1", "--data", data)
        assert created.code == 0
        key = created.out.strip()
        error_of(await server.http.get("/v1/sessions"), 401)
        assert (await server.http.get("/v1/sessions", headers={"X-API-Key": key})).status_code == 200
        error_of(await server.http.post("/v1/sessions", json={}, headers={"X-API-Key": key}), 403)
        (line,) = (await run("keys", "list", "--data", data)).out.splitlines()
        key_id, principal, scopes, _, state = line.split("\t")
        assert (principal, scopes, state.split()[0]) == ("anna", "read", "expires")
        assert key.split("_")[1] == key_id
        revoked = await run("keys", "revoke", key_id, "--data", data)
        assert (revoked.code, revoked.out.strip()) == (0, f"Key {key_id} of anna is revoked.")
        error_of(await server.http.get("/v1/sessions", headers={"X-API-Key": key}), 401)
        unknown = await run("keys", "revoke", "nothing", "--data", data)
        assert unknown.code == 1
        assert "no API key has the id 'nothing'" in unknown.err
        invalid = [run("keys", "revoke", name, "--data", data) for name in ("a b", "../sessions", "", "\n", "ä")]
        for refused in await asyncio.gather(*invalid, run("keys", "create", "not a name", "--data", data)):
            assert refused.code == 1
            assert refused.err.startswith("turnwire: ")
    # Without a server the same commands use the store.
    assert (await run("keys", "list", "--data", data)).out.splitlines()[0].endswith("revoked")


async def test_server_is_found_despite_proxy_and_allowed_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    await run("keys", "create", "anna", "--data", data)
    async with served(data, "--host", "0.0.0.0", allowed_hosts='["agent.example"]'):
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        listed = await run("keys", "list", "--data", data)
        assert (listed.code, listed.err) == (0, "")
        assert "anna" in listed.out


async def test_commands_work_on_the_folder_of_a_killed_server(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with served(data) as server:
        await server.kill()
    assert (data / "server.json").exists()
    assert (await run("keys", "create", "anna", "--data", data)).code == 0
    turns, health = await asyncio.gather(run("turns", "--data", data), run("doctor", "--data", data))
    assert turns.code == 0
    assert "none is using the folder" in health.out


async def test_doctor_reports_the_running_server(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with served(data) as server:
        await server.start("1", agent="silent")
        report = await run("doctor", "--data", data)
        assert report.code == 0
        assert "running, 1 unfinished turn(s)" in report.out
        assert "sound" in report.out
        server.process.send_signal(19)  # SIGSTOP: the server runs but does not answer.
        os.truncate(data / "server.json", 0)
        report = await run("doctor", "--data", data)
        assert report.code == 1
        assert "does not answer" in report.out
        assert "Traceback" not in report.err
