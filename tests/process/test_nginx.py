"""Tests behind nginx with `deploy/nginx.conf`, and with a minimal configuration.

The read timeout of 60 s is shortened to 4 s, and the heartbeat of 15 s to 0.25 s.
"""

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from tests.process.server_process import ServerProcess, served, working
from tests.process.shared_database import NEW_CONNECTION, Follower, temporary_database
from tests.server.socket_client import talking, text_of
from tests.serving import PATIENCE, Client, listen, until, within

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nginx.conf"
READ_TIMEOUT, HEARTBEAT = 4.0, 0.25

NGINX_CONF = """
daemon off;
{user}
pid nginx.pid;
worker_processes 1;
error_log stderr;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    # Instead of the default of 60 s.
    proxy_read_timeout {read_timeout};
    {site}
    # A minimal configuration, with which nginx speaks HTTP/1.0 to the servers.
    server {{
        listen 127.0.0.1:{bare_port};
        location / {{ proxy_pass http://turnwire; proxy_set_header Host $host; }}
    }}
}}
"""


def program() -> str:
    path = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    assert path, "this test needs nginx; on Debian and Ubuntu: apt-get install nginx"
    return path


def site(port: int, upstreams: Sequence[int]) -> str:
    """Return the deployed file with the test's addresses and without a certificate."""
    text = CONFIGURATION.read_text()
    text, listens = re.subn(r"listen 443 ssl http2;", f"listen 127.0.0.1:{port};", text)
    text, certificates = re.subn(r"^ *ssl_.*\n", "", text, flags=re.MULTILINE)
    for example, upstream in zip((8420, 8421), upstreams, strict=True):
        assert f"127.0.0.1:{example} " in text
        text = text.replace(f"127.0.0.1:{example} ", f"127.0.0.1:{upstream} ")
    assert (listens, certificates) == (1, 2)
    return text


@asynccontextmanager
async def nginx(folder: Path, upstreams: Sequence[int]) -> AsyncIterator[tuple[Client, Client]]:
    """Yield a client of the deployed configuration and a client of the minimal one."""
    # nginx inherits the listening sockets, so nobody else can take their ports before it starts.
    listening = [listen(), listen()]
    port, bare_port = (listener.getsockname()[1] for listener in listening)
    text = NGINX_CONF.format(
        user="user root;" if os.geteuid() == 0 else "",
        read_timeout=f"{READ_TIMEOUT:g}s",
        site=site(port, upstreams),
        bare_port=bare_port,
    )
    (folder / "nginx.conf").write_text(text)
    descriptors = [listener.fileno() for listener in listening]
    process = await asyncio.create_subprocess_exec(
        *(program(), "-p", folder, "-c", "nginx.conf", "-e", "stderr"),
        env={**os.environ, "NGINX": "".join(f"{descriptor};" for descriptor in descriptors)},
        pass_fds=descriptors,
    )
    for listener in listening:
        listener.close()
    client, bare = (Client(f"http://127.0.0.1:{number}") for number in (port, bare_port))
    try:
        async with asyncio.timeout(PATIENCE):
            while not await is_ready(client):
                assert process.returncode is None
        yield client, bare
    finally:
        await client.http.aclose()
        await bare.http.aclose()
        process.terminate()
        await within(process.wait())


async def is_ready(client: Client) -> bool:
    try:
        return (await client.http.get("/healthz", headers=NEW_CONNECTION)).status_code == 200
    except httpx.TransportError:
        return False


async def test_streams_behind_nginx_are_unbuffered_kept_alive_and_resumable(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "nginx"):
        (tmp_path / name).mkdir()
    with temporary_database() as url:
        front = {"database_url": url, "max_worker_turns": "0", "heartbeat": str(HEARTBEAT)}
        async with (
            working(tmp_path / "c" / "data", database_url=url),
            served(tmp_path / "a" / "data", **front) as first,  # type: ignore[arg-type]
            served(tmp_path / "b" / "data", **front) as second,  # type: ignore[arg-type]
            nginx(tmp_path / "nginx", (first.port, second.port)) as (client, bare),
        ):
            await asyncio.gather(*(check_unbuffered_stream(each) for each in (client, bare)))
            await check_websocket(client)
            await check_readers_reconnect(client, first, tmp_path / "release")
            for _ in range(4):
                assert await is_ready(client)


async def check_unbuffered_stream(client: Client) -> None:
    async with client.ask("1", agent="silent") as stream:
        # A buffer would hold the only token back.
        await stream.until("token")
        beats = 0
        async with asyncio.timeout(PATIENCE):
            while beats < 1.5 * READ_TIMEOUT / HEARTBEAT:
                block = await stream.next_block()
                assert block is not None, "nginx gave up on a silent server"
                beats += block.comment is not None
        await client.http.post(f"/v1/turns/{stream.turn_id}/cancel")
        assert (await stream.rest())[-1].event["outcome"] == "cancelled"


async def check_websocket(client: Client) -> None:
    async with talking(client) as talk:
        turn_id = (await talk.ask("start", message="3", agent="slow"))["turn_id"]
        assert text_of(await talk.events(turn_id)) == "0 1 2 "


async def check_readers_reconnect(client: Client, doomed: ServerProcess, release: Path) -> None:
    turn_id = await client.start(str(release), agent="held")
    followers = [Follower(turn_id) for _ in range(4)]
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as reading:
        for follower in followers:
            reading.create_task(follower.follow(lambda: [client]))
        await until(lambda: all(len(follower.seen) == 3 for follower in followers))
        await doomed.kill()
        release.touch()
    for follower in followers:
        follower.check("Well, done.")
    assert {follower.moves > 1 for follower in followers} == {True, False}, "each server had readers"
