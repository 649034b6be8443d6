"""Turns over HTTP: listed with filters, page by page; and the prices of models."""

from tests.server.conftest import Serve
from tests.serving import Puppet, Served, error_of


async def answered(server: Served, puppet: Puppet, message: str, session_id: str = "s") -> str:
    async with server.ask(message, session_id=session_id) as stream:
        part = await puppet.part()
        part.say("Yes.")
        part.end()
        await stream.rest()
        return stream.turn_id


async def listed(server: Served, **query: str | int) -> tuple[list[str], bool]:
    """Return the ids of the turns that are listed, and whether there are more."""
    page = (await server.http.get("/v1/turns", params=query)).json()
    return [turn["turn_id"] for turn in page["turns"]], page["more"]


async def test_turns_are_listed_newest_first_and_filtered(serve: Serve, puppet: Puppet) -> None:
    async with serve() as server:
        first = await answered(server, puppet, "When does the ferry leave?")
        second = await answered(server, puppet, "And the bus?", "other")
        running = await server.start("Which FERRY?")
        await puppet.part()
        assert await listed(server) == ([running, second, first], False)
        assert await listed(server, session="other") == ([second], False)
        assert await listed(server, status="completed") == ([second, first], False)
        assert await listed(server, status="running") == ([running], False)
        assert await listed(server, search="ferry") == ([running, first], False)
        assert await listed(server, agent="nobody") == ([], False)
        turn = (await server.http.get("/v1/turns", params={"limit": 1})).json()["turns"][0]
        assert (turn["message"], turn["phase"], turn["outcome"]) == ("Which FERRY?", "running", None)


async def test_turns_are_listed_page_by_page_in_both_directions(serve: Serve, puppet: Puppet) -> None:
    async with serve() as server:
        ids = [await answered(server, puppet, f"{number}?") for number in range(5)][::-1]
        assert await listed(server, limit=2) == (ids[:2], True)
        assert await listed(server, limit=2, before=ids[1]) == (ids[2:4], True)
        assert await listed(server, limit=2, before=ids[3]) == (ids[4:], False)
        assert await listed(server, limit=2, after=ids[4]) == (ids[2:4], True)
        assert await listed(server, limit=2, after=ids[2]) == (ids[:2], False)


async def test_unknown_cursor_session_or_status_is_refused(serve: Serve) -> None:
    async with serve() as server:
        for query in ({"before": "nothing"}, {"after": "nothing"}, {"session": "nothing"}):
            error_of(await server.http.get("/v1/turns", params=query), 404)
        error_of(await server.http.get("/v1/turns", params={"status": "nonsense"}), 422)


async def test_list_has_only_the_turns_of_the_caller(serve: Serve, puppet: Puppet) -> None:
    async with serve() as server:
        await answered(server, puppet, "Mine?")
        _, key = await server.turnwire.keys.create("ann", ("read",))
        response = await server.http.get("/v1/turns", headers={"Authorization": f"Bearer {key}"})
        assert response.json() == {"turns": [], "more": False}


async def test_configured_prices_are_listed(serve: Serve) -> None:
    async with serve(model_prices={"big": {"input": 2, "output": 8, "cached_input": 0.5}}) as server:
        prices = (await server.http.get("/v1/prices")).json()
        assert prices == {"prices": {"big": {"input": 2.0, "output": 8.0, "cached_input": 0.5}}}
