"""The default agent: it answers from documents, from Turnwire's own documentation if there are no others."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.retrieval.shelf import GREEN, NOWHERE, TEA
from tests.server.conftest import Serve, StoreKind
from tests.server.readers import answer, listed, stored_counts
from tests.server.text_client import ask, phases
from tests.serving import PATIENCE, Puppet, Served, quick_settings, saying, serving
from turnwire import Turnwire
from turnwire.retrieval import indexer
from turnwire.retrieval.service import own_documentation
from turnwire.retrieval.synthesis import NOT_FOUND

OWN = own_documentation()
TOO_EARLY = "What happens to a message that comes too early?"
"""A question that only Turnwire's own documentation answers, and not its first page."""


@pytest.fixture(autouse=True)
def questions_wait_for_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a first question wait for all documents on a slow machine too."""
    for name in ("_EMPTY_WAIT_SECONDS", "_PARTIAL_WAIT_SECONDS"):
        monkeypatch.setattr(indexer, name, PATIENCE)


async def test_with_no_agent_it_answers_from_its_own_documentation_at_once(tmp_path: Path) -> None:
    turnwire = Turnwire(store="memory", settings=quick_settings(tmp_path))
    assert list(turnwire.agents) == ["documents"]
    async with serving(turnwire) as server:
        reply = await answer(server, TOO_EARLY)
        assert "sender's choice" in reply["content"]
        assert reply["mode"] == "extractive"
        assert "concepts.md" in await listed(server)


async def test_demo_is_offered_before_or_after_the_other_agents(tmp_path: Path) -> None:
    settings = quick_settings(tmp_path)
    assert list(Turnwire(store="memory", settings=settings, demo="last").agents) == ["documents", "demo"]
    turnwire = Turnwire(store="memory", settings=settings, demo="first")
    async with serving(turnwire) as server:
        agents = (await server.http.get("/v1/agents")).json()["agents"]
        assert [(agent["name"], agent["is_default"]) for agent in agents] == [("demo", True), ("documents", False)]
        assert agents[0]["description"].startswith("A scripted example")
        assert len(agents[0]["starters"]) == 2
    # An agent of that name stays as it is.
    turnwire = Turnwire(agents={"mine": saying("Hello."), "demo": saying("Mine.")}, store="memory", demo="first")
    async with serving(turnwire) as server:
        assert (await answer(server, "Hello?"))["content"] == "Mine."


async def test_functions_and_objects_declare_description_and_starters(tmp_path: Path) -> None:
    described, plain = saying("Hello."), saying("Hello.")
    described.description, described.starters = "Says hello.", ["Hello?"]
    agents = {"described": described, "plain": plain}
    async with serving(Turnwire(agents=agents, store="memory", settings=quick_settings(tmp_path))) as server:
        listed_agents = (await server.http.get("/v1/agents")).json()["agents"]
    assert [(agent["description"], agent["starters"]) for agent in listed_agents] == [
        ("Says hello.", ["Hello?"]),
        (None, []),
    ]


async def test_the_first_question_waits_for_the_rest_of_a_few_documents(
    serve_documents: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = OWN
    go_on, read = threading.Event(), indexer.sync_root

    def sync(library: Any, root: Path, **how: Any) -> Any:
        assert root == first or go_on.wait(PATIENCE)
        return read(library, root, **how)

    monkeypatch.setattr(indexer, "sync_root", sync)
    async with serve_documents([], settled=False) as server, asyncio.timeout(PATIENCE):
        while await stored_counts(server) == (0, 0):
            pass
        async with server.ask(TOO_EARLY) as stream:
            assert (await stream.until("status"))[-1].event["text"].startswith("The documents are still being read")
            assert last.name not in await listed(server)
            go_on.set()
            assert "sender's choice" in (await stream.rest())[-2].event["content"]


async def test_with_documents_it_answers_from_them_and_not_from_its_own(serve_documents: Serve) -> None:
    async with serve_documents() as server:
        assert "eighty degrees" in (await answer(server, GREEN))["content"]
        assert (await answer(server, TOO_EARLY))["mode"] == "not_found"
        assert await listed(server) == ["ferry.md", "lighthouse.md", "tea.md"]


async def test_a_single_file_may_be_given_and_a_path_as_text(tmp_path: Path, shelf: Path) -> None:
    turnwire = Turnwire(store="memory", settings=quick_settings(tmp_path, documents={"paths": [str(shelf / "tea.md")]}))
    async with serving(turnwire) as server:
        assert "eighty degrees" in (await answer(server, GREEN))["content"]
        assert await listed(server) == ["tea.md"]


async def test_question_without_evidence_gets_no_invented_answer(serve_documents: Serve) -> None:
    async with serve_documents() as server:
        reply = await answer(server, NOWHERE)
        assert reply["mode"] == "not_found"
        assert reply["content"].startswith(NOT_FOUND)


async def test_with_watch_a_changed_file_is_answered_from(serve_documents: Serve, shelf: Path) -> None:
    async with serve_documents(watch=True) as server, asyncio.timeout(PATIENCE):
        (shelf / "tea.md").write_text(f"{TEA}\n## White tea\n\nWhite tea is brewed with patience.\n")
        (shelf / "ferry.md").unlink()
        while "with patience" not in (await answer(server, "How is white tea brewed?"))["content"]:
            pass
        assert await listed(server) == ["lighthouse.md", "tea.md"]


async def test_an_agent_and_documents_are_two_agents(serve_documents: Serve, puppet: Puppet) -> None:
    async with serve_documents(agent=saying("Hello.")) as server:
        assert list(server.turnwire.agents) == ["default", "documents"]
        assert (await answer(server, GREEN))["content"] == "Hello."
        assert "eighty degrees" in (await answer(server, GREEN, agent="documents"))["content"]


async def test_an_agent_alone_has_no_library(serve: Serve, tmp_path: Path) -> None:
    async with serve(saying("Hello."), store="sqlite") as server:
        assert list(server.turnwire.agents) == ["default"]
        assert not list(tmp_path.glob("documents.*"))


@pytest.mark.one_store("PostgreSQL keeps everything")
async def test_the_library_of_a_server_that_keeps_nothing_goes_with_it(
    serve_documents: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("turnwire.app.gettempdir", lambda: str(scratch))
    async with serve_documents() as server:
        await answer(server, GREEN)
        (folder,) = scratch.iterdir()
        assert folder.stat().st_mode & 0o077 == 0
        assert (folder / "documents.db").exists()
    assert not list(scratch.iterdir())
    assert not (tmp_path / "data").exists()


# What a turn looks like


def steps(types: list[str]) -> list[str]:
    """Each type once for a run of it."""
    return [type for number, type in enumerate(types) if number == 0 or types[number - 1] != type]


@pytest.fixture
async def server(serve_documents: Serve, kind: StoreKind):
    async with serve_documents(store=kind) as served:
        yield served


async def test_turn_events_are_in_the_order_of_the_work(server: Served) -> None:
    async with server.ask(GREEN) as stream:
        events = [frame.event for frame in await stream.rest()]
    types = [event["type"] for event in events if event["type"] != "status"]
    assert steps(types)[:5] == ["session", "message", "search", "review", "token"]
    assert steps(types)[-3:] == ["citation", "response", "done"]
    assert set(types[types.index("token") : -2]) == {"token", "citation"}
    assert events[0]["agent"] == "documents"
    assert [event["phase"] for event in events if event["type"] == "search"] == ["started", "finished"]
    review = next(event for event in events if event["type"] == "review")
    assert (review["verdict"], review["method"]) == ("approved", "coverage")
    response = events[-2]
    assert response["content"] == "".join(event["content"] for event in events if event["type"] == "token")
    assert response["citations"] == [event for event in events if event["type"] == "citation"]
    for citation in response["citations"]:
        claim = response["content"][citation["answer_start"] : citation["answer_end"]]
        assert claim == citation["supporting_quote"]
        assert response["content"][citation["answer_end"] :].startswith(f" [{citation['index']}]")


async def test_turn_without_review_has_no_review_event(server: Served) -> None:
    async with server.ask(GREEN, review=False) as stream:
        types = [frame.type for frame in await stream.rest()]
    assert "search" in types
    assert "review" not in types


async def test_turn_has_timings_of_its_parts(server: Served) -> None:
    async with server.ask(GREEN) as stream:
        timings = (await stream.rest())[-2].event["timings"]
    assert set(timings) == {
        "first_event_ms",
        "first_evidence_ms",
        "first_token_ms",
        "total_ms",
        "retrieval_ms",
        "synthesis_ms",
    }
    assert 0 <= timings["first_event_ms"] <= timings["first_evidence_ms"] <= timings["first_token_ms"]
    assert timings["first_token_ms"] <= timings["total_ms"]
    # The log's clock counts whole milliseconds.
    assert timings["retrieval_ms"] + timings["synthesis_ms"] <= timings["total_ms"] + 2


async def test_a_turn_has_its_three_phases(server: Served) -> None:
    async with ask(server, GREEN) as stream:
        lines, text, trailer = phases(await stream.rest())
    assert steps([line["event"] for line in lines if line["event"] != "status"]) == ["search", "review"]
    assert "eighty degrees" in text
    assert trailer["tools_used"] == ["search_documents"]
    assert (trailer["mode"], trailer["outcome"]) == ("extractive", "completed")
    assert trailer["citations"]
    assert all(citation["supporting_quote"] in TEA for citation in trailer["citations"])
