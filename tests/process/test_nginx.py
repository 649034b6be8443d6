"""Behind nginx as it comes from Debian, with `deploy/nginx.conf` and its own ideas of buffering.

A second stands for the minute after which it gives up on a silent server, a quarter of one for our heartbeat of 15 s.
"""

import asyncio
import os
import re
import shutil
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.process.running import Running, served, working
from tests.process.sharing import ANEW, Follower, a_database
from tests.server.socket_client import talking, text_of
from tests.serving import PATIENCE, Client, until, within

pytestmark = pytest.mark.timeout(180)

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nginx.conf"
READ_TIMEOUT, HEARTBEAT = 1.0, 0.25
WORDS = 60

AROUND = """
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
    # As little as it can be told: it speaks HTTP/1.0 to the servers then.
    server {{
        listen 127.0.0.1:{bare_port};
        location / {{ proxy_pass http://turnwire; proxy_set_header Host $host; }}
    }}
}}
"""


def program() -> str:
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    assert found, "this test needs nginx; on Debian and Ubuntu: apt-get install nginx"
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def site(port: int, upstreams: Sequence[int]) -> str:
    """The file as it is, at other addresses and without a certificate."""
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
    """Clients of our configuration, and of the least there can be."""
    port, bare_port = free_port(), free_port()
    written = AROUND.format(
        user="user root;" if os.geteuid() == 0 else "",
        read_timeout=f"{READ_TIMEOUT:g}s",
        site=site(port, upstreams),
        bare_port=bare_port,
    )
    (folder / "nginx.conf").write_text(written)
    process = await asyncio.create_subprocess_exec(program(), "-p", folder, "-c", "nginx.conf", "-e", "stderr")
    client, bare = (Client(f"http://127.0.0.1:{one}") for one in (port, bare_port))
    try:
        async with asyncio.timeout(PATIENCE):
            while not await answers(client):
                assert process.returncode is None
        yield client, bare
    finally:
        await client.http.aclose()
        await bare.http.aclose()
        process.terminate()
        await within(process.wait())


async def answers(client: Client) -> bool:
    try:
        return (await client.http.get("/healthz", headers=ANEW)).status_code == 200
    except httpx.TransportError:
        return False


async def test_streams_pass_unbuffered_stay_open_in_silence_and_survive_a_killed_server(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "nginx"):
        (tmp_path / name).mkdir()
    with a_database() as url:
        front = {"database_url": url, "max_worker_turns": "0", "heartbeat": str(HEARTBEAT)}
        async with (
            working(tmp_path / "c" / "data", database_url=url),
            served(tmp_path / "a" / "data", **front) as first,  # type: ignore[arg-type]
            served(tmp_path / "b" / "data", **front) as second,  # type: ignore[arg-type]
            nginx(tmp_path / "nginx", (first.port, second.port)) as (client, bare),
        ):
            await asyncio.gather(*(words_come_as_they_are_said(one) for one in (client, bare)))
            await sockets_pass(client)
            await readers_go_on_elsewhere(client, first)
            for _ in range(4):
                assert await answers(client)


async def words_come_as_they_are_said(client: Client) -> None:
    async with client.ask("1", agent="silent") as stream:
        # A buffer would keep this until there is more, and there is no more.
        await stream.until("token")
        beats = 0
        async with asyncio.timeout(PATIENCE):
            while beats < 3 * READ_TIMEOUT / HEARTBEAT:
                block = await stream.next_block()
                assert block is not None, "nginx gave up on a silent server"
                beats += block.comment is not None
        await client.http.post(f"/v1/turns/{stream.turn_id}/cancel")
        assert (await stream.rest())[-1].event["outcome"] == "cancelled"


async def sockets_pass(client: Client) -> None:
    async with talking(client) as talk:
        turn_id = (await talk.ask("start", message="3", agent="slow"))["turn_id"]
        assert text_of(await talk.events(turn_id)) == "0 1 2 "


async def readers_go_on_elsewhere(client: Client, doomed: Running) -> None:
    turn_id = await client.start(str(WORDS), agent="steady")
    followers = [Follower(turn_id) for _ in range(4)]
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as reading:
        for one in followers:
            reading.create_task(one.follow(lambda: [client]))
        await until(lambda: all(len(one.seen) > 3 for one in followers))
        await doomed.kill()
    for one in followers:
        one.check("".join(f"{number} " for number in range(WORDS)))
    assert {one.moves > 1 for one in followers} == {True, False}, "each server had readers"
