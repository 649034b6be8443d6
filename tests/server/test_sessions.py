"""Sessions over HTTP: created, listed, searched, renamed, exported, deleted."""

import pytest

from tests.serving import Puppet, Served, error_of


async def talk(server: Served, puppet: Puppet, session_id: str, message: str, answer: str) -> str:
    async with server.ask(message, session_id=session_id) as stream:
        part = await puppet.part()
        part.say(answer)
        part.end()
        await stream.rest()
        return stream.turn_id


async def test_session_with_a_client_id_is_created_once(server: Served) -> None:
    made = await server.http.post("/v1/sessions", json={"id": "trip", "title": "  To the sea "})
    assert made.status_code == 201
    assert set(made.json()) == {"id", "external_id", "title", "turn_count", "created_at", "updated_at"}
    assert (made.json()["external_id"], made.json()["title"]) == ("trip", "To the sea")
    again = await server.http.post("/v1/sessions", json={"id": "trip", "title": "Elsewhere"})
    assert (again.status_code, again.json()) == (200, made.json())
    nameless = await server.http.post("/v1/sessions")
    assert (nameless.status_code, nameless.json()["title"]) == (201, None)


async def test_sessions_are_listed_with_the_newest_activity_first(server: Served, puppet: Puppet) -> None:
    for name in ("one", "two", "three"):
        await talk(server, puppet, name, f"Hello from {name}", "Hi")
    await talk(server, puppet, "one", "Once more", "Hi")
    listed = (await server.http.get("/v1/sessions")).json()
    names = [session["external_id"] for session in listed["sessions"]]
    assert sorted(names) == ["one", "three", "two"]
    times = [session["updated_at"] for session in listed["sessions"]]
    assert times == sorted(times, reverse=True)
    assert listed["next"] is None


async def test_sessions_are_listed_page_by_page(server: Served) -> None:
    made = [(await server.http.post("/v1/sessions", json={})).json()["id"] for _ in range(7)]
    ids, before = [], None
    while True:
        page = (
            await server.http.get("/v1/sessions", params={"limit": 3} | ({"before": before} if before else {}))
        ).json()
        ids += [session["id"] for session in page["sessions"]]
        before = page["next"]
        if before is None:
            break
    assert len(ids) == 7
    assert set(ids) == set(made)


async def test_sessions_are_searched_by_their_texts(server: Served, puppet: Puppet) -> None:
    await talk(server, puppet, "birds", "Which birds stay in winter?", "The ÜBERWINTERNDE robin.")
    await talk(server, puppet, "trees", "Which trees are evergreen?", "The yew.")
    await server.http.patch("/v1/sessions/trees", json={"title": "100% wood_work"})
    for search, names in (
        ("winter", ["birds"]),
        ("überwinternde", ["birds"]),
        ("YEW", ["trees"]),
        ("which", ["birds", "trees"]),
        ("100%", ["trees"]),
        ("wood_", ["trees"]),
        ("wood-", []),
        ("%", ["trees"]),
        ("fish", []),
    ):
        listed = (await server.http.get("/v1/sessions", params={"search": search})).json()["sessions"]
        assert sorted(session["external_id"] for session in listed) == names, search


async def test_a_session_is_shown_with_its_turns(server: Served, puppet: Puppet) -> None:
    turn_ids = [await talk(server, puppet, "s", message, "Yes.") for message in ("One?", "Two?", "Three?")]
    session = (await server.http.get("/v1/sessions/s")).json()
    assert [turn["turn_id"] for turn in session["turns"]] == turn_ids
    assert [turn["outcome"] for turn in session["turns"]] == ["completed"] * 3
    assert [turn["parent_turn_id"] for turn in session["turns"]] == [None, *turn_ids[:-1]]
    assert session["turn_count"] == 3
    newest = (await server.http.get("/v1/sessions/s", params={"limit": 1})).json()
    assert [turn["turn_id"] for turn in newest["turns"]] == turn_ids[-1:]


async def test_session_is_renamed(server: Served, puppet: Puppet) -> None:
    await talk(server, puppet, "s", "A rather long first message, of which only the start becomes the title", "Yes.")
    session = (await server.http.get("/v1/sessions/s")).json()
    assert session["title"].startswith("A rather long first message")
    assert len(session["title"]) <= 60
    renamed = await server.http.patch("/v1/sessions/s", json={"title": "Short \u2028 – 👋"})
    assert renamed.json()["title"] == "Short \u2028 – 👋"
    assert (await server.http.get("/v1/sessions/s")).json()["title"] == "Short \u2028 – 👋"


@pytest.mark.parametrize("title", ["", "   ", "x" * 201, None, 5])
async def test_invalid_title_is_refused(server: Served, title: object) -> None:
    await server.http.post("/v1/sessions", json={"id": "s", "title": "Kept"})
    assert "title" in error_of(await server.http.patch("/v1/sessions/s", json={"title": title}), 422)["message"]
    assert (await server.http.get("/v1/sessions/s")).json()["title"] == "Kept"


async def test_a_session_is_exported_whole(server: Served, puppet: Puppet) -> None:
    for message, answer in (("One?", "1."), ("Two?", "2.")):
        await talk(server, puppet, "s", message, answer)
    exported = (await server.http.get("/v1/sessions/s/export")).json()
    assert [turn["state"]["text"] for turn in exported["turns"]] == ["1.", "2."]
    assert [(entry["role"], entry["content"]) for entry in exported["transcript"]] == [
        ("user", "One?"),
        ("assistant", "1."),
        ("user", "Two?"),
        ("assistant", "2."),
    ]


async def test_a_deleted_session_is_gone_with_its_turns_and_its_name_is_free(server: Served, puppet: Puppet) -> None:
    turn_id = await talk(server, puppet, "s", "One?", "1.")
    assert (await server.http.delete("/v1/sessions/s")).status_code == 204
    for path in ("/v1/sessions/s", "/v1/sessions/s/export", f"/v1/turns/{turn_id}", f"/v1/turns/{turn_id}/events"):
        error_of(await server.http.get(path), 404)
    error_of(await server.http.delete("/v1/sessions/s"), 404)
    assert await server.written() == (0, 0)
    assert (await server.http.post("/v1/sessions", json={"id": "s"})).status_code == 201


async def test_welcome_probes_and_docs_are_answered(server: Served, puppet: Puppet) -> None:
    assert "curl -N" in (await server.http.get("/")).text
    assert (await server.http.get("/healthz")).json() == {"status": "ok"}
    assert (await server.http.get("/readyz")).json() == {"status": "ready", "running_turns": 0}
    await server.start()
    await puppet.part()
    assert (await server.http.get("/readyz")).json()["running_turns"] == 1
    paths = (await server.http.get("/openapi.json")).json()["paths"]
    assert {"/chat", "/chat/stream", "/v1/turns/{id}/events", "/v1/sessions/{id}/events"} <= set(paths)
    assert "/assets/docs.js" in (await server.http.get("/docs")).text
    server.turnwire.drain()
    assert (await server.http.get("/readyz")).status_code == 503
    for path in ("/chat", "/chat/stream"):
        response = await server.http.post(path, json={"message": "Too late"})
        assert error_of(response, 503)["code"] == "shutting_down"
        assert int(response.headers["retry-after"]) > 0
