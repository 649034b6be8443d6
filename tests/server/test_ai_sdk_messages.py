"""`GET /api/chat/{id}/messages`: the messages of a chat as its client has built them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from tests.server.chat_client import URL, answers, asks, decides, post, posting, read
from tests.server.conftest import Serve, StoreKind
from tests.server.readers import by_user, user
from tests.server.test_ai_sdk import LINES, recite
from tests.server.test_ai_sdk_approvals import BUY, FIRST, PAY, SECOND, careful
from tests.server.test_files import DATA_URL, DIGEST, LINK, PICTURE, ai_sdk, describe
from tests.serving import Client, Puppet, Served, error_of, quick_settings, saying, serving, within
from turnwire import Turn, Turnwire
from turnwire.core.errors import AgentError
from turnwire.core.log.events import (
    CitationEvent,
    CustomEvent,
    RestartEvent,
    TokenEvent,
    ToolCallEvent,
    ToolProgressEvent,
)

STEP = {"type": "step-start"}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content, "state": "done"}


async def load(client: Client, chat: str = "c", query: str = "") -> list[dict[str, Any]]:
    response = await within(client.http.get(f"{URL}/{chat}/messages{query}"))
    assert response.status_code == 200, response.text
    return response.json()["messages"]


def texts(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(message["role"], "".join(part.get("text", "") for part in message["parts"])) for message in messages]


async def test_messages_have_the_parts_and_metadata_of_the_stream(serve: Serve, kind: StoreKind) -> None:
    async with serve(saying(*LINES), store=kind) as server:
        streamed = read(await post(server, asks("When?", "u1")))
        session_id = streamed.metadata["sessionId"]
        question, answer = messages = await load(server)
        assert await load(server, session_id) == messages
    assert question == {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "When?"}]}
    assert (answer["id"], answer["role"], answer["metadata"]) == (streamed.id, "assistant", streamed.metadata)
    first, search, call, second, answered, source, citation = answer["parts"]
    assert first == second == STEP
    assert (search["type"], search["id"], search["data"]["phase"]) == ("data-search", "r1", "finished")
    assert call == {
        "type": "dynamic-tool",
        "toolName": "clock",
        "toolCallId": "t1",
        "state": "output-available",
        "input": {"zone": "é"},
        "output": "noon",
    }
    assert answered == text("High water is at noon – 正午.")
    assert source["type"] == "source-document"
    assert (citation["type"], citation["data"]["document_id"]) == ("data-citation", "tides.md")


async def test_later_chunks_of_a_part_replace_the_earlier_ones(serve: Serve) -> None:
    async def broken(turn: Turn) -> AsyncIterator[Any]:
        yield CustomEvent("count", {"id": "n", "value": 1})
        yield CustomEvent("count", {"id": "n", "value": 2})
        yield CustomEvent("note", {"value": 3})
        yield CustomEvent("note", {"value": 3})
        yield ToolCallEvent("t1", "clock", {}, agent_path=("helper",))
        yield ToolProgressEvent("t1", "half", 0.5)
        yield TokenEvent("aside", agent_path=("helper",))
        yield "Half an "
        yield "answer"
        raise AgentError("the clock has stopped")

    async with serve(broken) as server:
        assert read(await post(server, asks("When?"))).error == "the clock has stopped"
        _, answer = await load(server)
    first, count, note, again, call, agent, answered, *rest = answer["parts"]
    assert first == STEP
    assert count == {"type": "data-count", "id": "n", "data": {"id": "n", "value": 2}}
    assert note == again == {"type": "data-note", "data": {"value": 3}}
    assert (call["state"], call["callProviderMetadata"]) == ("output-error", {"turnwire": {"agentPath": ["helper"]}})
    assert not {"output", "preliminary"} & set(call)
    assert (agent["type"], agent["data"]["text"]) == ("data-agent", "aside")
    assert answered == text("Half an answer")
    assert rest == [STEP]
    assert answer["metadata"]["outcome"] == "failed"


async def test_only_the_newest_branch_is_shown(serve: Serve, kind: StoreKind) -> None:
    one, two = asks("one", "u1"), asks("two", "u2")
    async with serve(recite, store=kind) as server:
        first = read(await post(server, one)).id or ""
        second = read(await post(server, one, answers(first), two)).id
        again = {"trigger": "regenerate-message", "messageId": second}
        regenerated = read(await post(server, one, answers(first), two, **again)).id
        messages = await load(server)
    assert [message["id"] for message in messages] == ["u1", first, "u2", regenerated]


async def test_message_of_another_route_has_an_id_that_can_be_edited(serve: Serve) -> None:
    async with serve(recite) as server:
        first = (await server.http.post("/chat", json={"message": "one", "session_id": "c"})).json()["turn_id"]
        question, _ = await load(server)
        assert question["id"] == f"{first}-question"
        await post(server, asks("uno", question["id"]), messageId=question["id"])
        assert texts(await load(server)) == [("user", "uno"), ("assistant", "nothing")]


async def test_newest_answer_is_left_out_until_it_has_ended_and_one_before_it_is_shown_so_far(
    server: Served, puppet: Puppet
) -> None:
    async with posting(server, asks("one")) as running:
        part = await puppet.part()
        part.say("Hel")
        await running.until("text-delta")
        assert texts(await load(server)) == [("user", "one")]
        async with posting(server, asks("two")) as queued:
            question, so_far, waiting = await load(server)
            assert texts([question, so_far, waiting]) == [("user", "one"), ("assistant", "Hel"), ("user", "two")]
            assert so_far["parts"][-1]["state"] == "streaming"
            assert "outcome" not in so_far["metadata"]
            part.say("lo")
            part.end()
            (await puppet.part()).end()
            await queued.rest()
    assert texts(await load(server)) == [("user", "one"), ("assistant", "Hello"), ("user", "two"), ("assistant", "")]


@pytest.mark.parametrize("version", [5, 6, 7])
async def test_waiting_turn_shows_its_approvals_and_then_the_outcome(
    serve: Serve, kind: StoreKind, version: int
) -> None:
    query = f"?sdk_version={version}"
    async with serve(careful, store=kind) as server:
        turn_id = (await post(server, asks("Buy it"))).headers["x-turn-id"]
        _, waiting = await load(server, query=query)
        await post(server, decides(turn_id, *FIRST, reason="mine"), messageId=turn_id)
        await post(server, decides(turn_id, *SECOND), messageId=turn_id)
        _, ended = await load(server, query=query)
    calls = [part for part in waiting["parts"] if part["type"] == "dynamic-tool"]
    assert [(call["toolName"], call["input"]) for call in calls] == [("pay", PAY), ("buy", BUY)]
    reason = {"requestReason": "it costs money"} if version == 7 else {}
    approval, state = ({"id": "c1", **reason}, "approval-requested") if version > 5 else (None, "input-available")
    assert (calls[0]["state"], calls[0].get("approval")) == (state, approval)
    calls = [part for part in ended["parts"] if part["type"] == "dynamic-tool"]
    denied = "output-error" if version == 5 else "output-denied"
    assert [call["state"] for call in calls] == ["output-available", denied, "output-available"]
    if version == 7:
        assert calls[0]["approval"] == {"id": "c1", **reason, "approved": True, "reason": "mine"}
    assert texts([ended]) == [("assistant", "May I? One more. Done.")]
    assert waiting["metadata"].items() <= ended["metadata"].items()


async def test_restarted_answer_is_shown_without_its_void_events(server: Served, puppet: Puppet) -> None:
    async with posting(server, asks("Hello")) as stream:
        part = await puppet.part()
        part.say("Void ")
        await server.reached(stream.turn_id, 3)
        for line in (RestartEvent(2, "worker_lost"), "Good"):
            part.say(line)
        part.end()
        await server.ended(stream.turn_id)
    assert texts(await load(server)) == [("user", "Hello"), ("assistant", "Good")]


async def test_answer_whose_events_are_gone_has_its_text_and_sources(serve: Serve, kind: StoreKind) -> None:
    urls = ((2, "https://example.org/tides"), (1, "https://example.org/moon"), (2, "https://example.org/tides#noon"))
    cited = [CitationEvent(index, "tides.md", url=url, title="Tides") for index, url in urls]
    async with serve(saying("Noon", *cited), store=kind) as server:
        await post(server, asks("When?"))
        whole = await load(server)
        await server.turnwire.store.maintain(expire_before=2**60)
        question, answer = await load(server)
    assert question == whole[0]
    kept = [part for part in whole[1]["parts"] if part["type"] in ("step-start", "text", "source-url")]
    assert len(kept) == 4
    assert answer["parts"] == kept
    assert answer["metadata"].items() <= whole[1]["metadata"].items()
    assert answer["metadata"]["outcome"] == "completed"


async def test_messages_from_before_the_chat_come_first(serve: Serve) -> None:
    async with serve(recite) as server:
        first = read(await post(server, asks("one"), answers("elsewhere", "uno"), asks("two"))).id
        await post(server, answers(first or ""), asks("three"))
        messages = await load(server)
    assert texts(messages)[:3] == [("user", "one"), ("assistant", "uno"), ("user", "two")]
    assert len(messages) == 6
    assert len({message["id"] for message in messages}) == 6


async def test_file_of_a_loaded_message_is_read_and_sent_back_by_its_path(serve: Serve, kind: StoreKind) -> None:
    async with serve(describe, store=kind) as server:
        sent = ai_sdk("Look", DATA_URL)
        sent["messages"][0]["parts"].append({"type": "file", "mediaType": "image/png", "url": LINK})
        first = (await within(server.http.post(URL, json=sent))).headers["x-turn-id"]
        messages = await load(server, "chat")
        _, file, link = messages[0]["parts"]
        assert (file["type"], file["mediaType"], file["filename"]) == ("file", "image/png", "cat.png")
        assert link == {"type": "file", "mediaType": "image/png", "url": LINK}
        assert (await server.http.get(file["url"])).content == PICTURE
        again = {"id": "chat", "trigger": "regenerate-message", "messageId": first, "messages": messages[:1]}
        answer = read(await within(server.http.post(URL, json=again)))
        assert answer.text.splitlines()[0] == f"Look|image/png|cat.png|{DIGEST}"
        assert (await load(server, "chat"))[0] == messages[0]


async def test_paths_of_files_are_below_the_mount_point(tmp_path: Path) -> None:
    turnwire, host = Turnwire(describe, store="memory", settings=quick_settings(tmp_path)), FastAPI()
    host.mount("/agent", turnwire.asgi())
    async with serving(turnwire, host, lifespan="off", path="/agent") as server:
        await within(server.http.post(URL, json=ai_sdk("Look", DATA_URL)))
        question, _ = await load(server, "chat")
        path = question["parts"][1]["url"]
        assert path.startswith("/agent/v1/sessions/")
        assert (await server.http.get(f"http://127.0.0.1:{server.port}{path}")).content == PICTURE
        answer = read(await within(server.http.post(URL, json={"id": "chat", "message": {**question, "id": "new"}})))
        assert f"Look|image/png|cat.png|{DIGEST}" in answer.text


async def test_unknown_chat_is_not_found_and_a_session_without_turns_is_empty(server: Served) -> None:
    assert error_of(await server.http.get(f"{URL}/c/messages"), 404)["code"] == "session_not_found"
    await server.http.post("/v1/sessions", json={"id": "c"})
    assert await load(server) == []
    assert error_of(await server.http.get(f"{URL}/c/messages?sdk_version=4"), 422)["message"].startswith("sdk_version")


async def test_messages_of_another_principal_are_not_found(serve: Serve) -> None:
    async with (
        serve(saying("Hi"), authenticate=by_user) as server,
        user(server, "anna") as anna,
        user(server, "bob") as bob,
    ):
        session_id = read(await post(anna, asks("Hello"))).metadata["sessionId"]
        for chat in ("c", session_id):
            assert len(await load(anna, chat)) == 2
            assert error_of(await bob.http.get(f"{URL}/{chat}/messages"), 404)["code"] == "session_not_found"


@pytest.mark.parametrize("name", ["requests", "searches"])
async def test_messages_share_the_slots_of_reads(serve: Serve, name: str) -> None:
    async with serve(saying("Hi")) as server:
        await post(server, asks("Hello"))
        slots = getattr(server.turnwire.services, name)
        slots.each, slots.max_waiting = 1, 0
        async with slots.slot("local"):
            assert error_of(await server.http.get(f"{URL}/c/messages"), 429)["code"] == "too_many_requests"
        slots.max_waiting = 1  # For the rest after a search.
        assert len(await load(server)) == 2
