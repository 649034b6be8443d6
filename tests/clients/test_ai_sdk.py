"""Tests of the AI SDK's own chat client: versions 5, 6 and 7 over HTTP, version 7 with its other transports."""

import json
from typing import Any

import pytest

from tests.clients.conftest import Run
from tests.clients.scenes import COLOUR, RICH, TwoWayAgent, play
from tests.server.conftest import Serve
from tests.serving import Puppet

pytestmark = pytest.mark.timeout(300)


ROTATED = pytest.mark.rotated("transport")
TRANSPORTS = ("http5", "http6", "http7", "ws7", "workflow7")


@pytest.fixture(params=[pytest.param(name, marks=ROTATED) for name in TRANSPORTS])
def transport(request: pytest.FixtureRequest) -> str:
    return request.param


def parts_of(message: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [part for part in message["parts"] if part["type"] == kind]


def text_of(message: dict[str, Any]) -> str:
    return "".join(part["text"] for part in parts_of(message, "text"))


async def test_every_event_of_a_turn_becomes_a_message_part(serve: Serve, run: Run, transport: str) -> None:
    async with serve(play) as server, run("chat.mjs", server.url, transport, "ask", "rich") as script:
        report = await script.next()
        await script.ended()
    message = report["message"]
    assert (report["status"], report.get("error")) == ("ready", None)
    assert text_of(message) == RICH
    assert "".join(part["text"] for part in parts_of(message, "reasoning")) == "Where is it sunny?"
    good, bad = parts_of(message, "dynamic-tool")
    assert (good["state"], good["input"], good["output"]) == (
        "output-available",
        {"city": "Zürich"},
        {"sky": "sunny"},
    )
    assert (bad["state"], bad["errorText"]) == ("output-error", "no such city")
    (link,), (document,) = parts_of(message, "source-url"), parts_of(message, "source-document")
    assert (link["sourceId"], link["url"], document["title"]) == ("1", "https://example.org/sun", "Notes")
    assert message["metadata"]["outcome"] == "completed"
    assert message["metadata"]["usage"]["inputTokens"] == 11
    assert "to myself" not in str(parts_of(message, "text"))


async def test_failed_turn_is_an_error_with_partial_text(serve: Serve, run: Run, transport: str) -> None:
    async with serve(play) as server, run("chat.mjs", server.url, transport, "ask", "fail") as script:
        report = await script.next()
    assert (report["status"], report["error"]) == ("error", "the model is away")
    assert text_of(report["message"]) == "It begins "


async def test_regenerate_starts_a_second_turn(serve: Serve, run: Run, transport: str) -> None:
    async with serve(play) as server, run("chat.mjs", server.url, transport, "again", "plain") as script:
        report = await script.next()
        assert (report["status"], report["count"], text_of(report["message"])) == ("ready", 2, "Plain answer.")
        assert report["message"]["id"] != report["first"]
        assert await server.written() == (1, 2)


@pytest.mark.parametrize("approved", [True, False])
@ROTATED
@pytest.mark.parametrize("transport", TRANSPORTS[1:])  # Version 5 has no approvals.
async def test_approval_decision_continues_the_same_message(
    serve: Serve, run: Run, transport: str, approved: bool
) -> None:
    decision = str(approved).lower()
    async with serve(play) as server, run("chat.mjs", server.url, transport, "decide", "pay", decision) as script:
        request = await script.next()
        assert (request["status"], request["approval"]["state"]) == ("ready", "approval-requested")
        assert request["approval"]["input"] == {"amount": 40}
        report = await script.next()
        await script.ended()
        assert await server.written() == (1, 1)
    assert (report["status"], report["count"]) == ("ready", 2)
    assert report["message"]["id"] == request["message"]["id"]
    (call,) = parts_of(report["message"], "dynamic-tool")
    assert call["state"] == ("output-available" if approved else "output-denied")
    assert text_of(report["message"]) == ("Paid." if approved else "Denied: as I like")


async def test_stop_cancels_the_turn(serve: Serve, run: Run, puppet: Puppet, transport: str) -> None:
    async with serve() as server, run("chat.mjs", server.url, transport, "stop", "slow") as script:
        part = await puppet.part()
        part.say("Partial")
        assert await script.next() == {"begun": "Partial"}
        report = await script.next()
        assert (report["status"], text_of(report["message"])) == ("ready", "Partial")
        assert (await server.ended(report["message"]["id"]))["outcome"] == "cancelled"


async def test_question_after_stop_does_not_wait_for_the_answer_before_it(
    serve: Serve, run: Run, transport: str
) -> None:
    async with serve(play) as server, run("chat.mjs", server.url, transport, "hang-up") as script:
        report = await script.next()  # The first turn would never end by itself.
        assert await server.written() == (1, 2)
    assert (report["status"], text_of(report["message"])) == ("ready", "Plain answer.")


async def test_reloaded_page_resumes_the_answer(serve: Serve, run: Run, puppet: Puppet, transport: str) -> None:
    async with serve() as server, run("chat.mjs", server.url, transport, "resume", "slow") as script:
        part = await puppet.part()
        part.say("Hello ")
        assert await script.next() == {"begun": "Hello "}
        part.say("again")
        part.end()
        report, idle = await script.next(), await script.next()
        await script.ended()
    assert (report["status"], text_of(report["message"]), report["same"]) == ("ready", "Hello again", True)
    assert (idle["status"], idle["count"]) == ("ready", 2)


async def test_workflow_transport_of_the_guide_fetches_the_rest_of_an_answer(
    serve: Serve, run: Run, puppet: Puppet
) -> None:
    async with serve() as server, run("chat.mjs", server.url, "workflow7", "cut", "slow") as script:
        part = await puppet.part()
        part.say("Hello ")
        assert await script.next() == {"begun": "Hello "}
        part.say("again")
        part.end()
        report = await script.next()
        await script.ended()
        assert await server.written() == (1, 1)
    assert (report["status"], report["count"], text_of(report["message"])) == ("ready", 2, "Hello again")
    run_id = report["message"]["id"]
    assert report["requests"][0] == "POST /api/chat"
    assert report["requests"][1].startswith(f"GET /api/chat/{run_id}/stream?startIndex=")


async def test_answer_that_ended_while_the_client_was_away_is_resumed_whole(
    serve: Serve, run: Run, puppet: Puppet, transport: str
) -> None:
    async with serve() as server, run("chat.mjs", server.url, transport, "late", "slow") as script:
        part = await puppet.part()
        part.say("Hello ")
        assert await script.next() == {"begun": "Hello "}
        part.say("again")
        part.end()
        report = await script.next()
        await script.ended()
    assert (report["status"], report["count"], text_of(report["message"])) == ("ready", 2, "Hello again")
    assert (report["same"], report["finished"]) == (True, 1)


async def test_page_that_is_reloaded_while_a_question_is_queued_gets_the_answer_to_it(
    serve: Serve, run: Run, puppet: Puppet, transport: str
) -> None:
    async with serve() as server, run("chat.mjs", server.url, transport, "queued") as script:
        first = await puppet.part()
        first.say("One ")
        begun = (await script.next())["loaded"]
        first.say("and more")
        first.end()
        second = await puppet.part()
        second.say("Two")
        second.end()
        report, ended = await script.next(), (await script.next())["loaded"]
        await script.ended()
        assert await server.written() == (1, 2)
    # The answer that runs is not the one that the stream brings, so it is loaded as far as it is.
    assert [text_of(message) for message in begun] == ["first", "One ", "second"]
    assert [text_of(message) for message in report["messages"]] == ["first", "One ", "second", "Two"]
    assert (report["status"], report["same"]) == ("ready", True)
    assert [text_of(message) for message in ended] == ["first", "One and more", "second", "Two"]
    assert [message["id"] for message in ended] == [message["id"] for message in report["messages"]]


async def test_history_of_the_guide_is_continued(serve: Serve, run: Run, transport: str) -> None:
    async with serve(play) as server, run("chat.mjs", server.url, transport, "reload", "plain") as script:
        report = await script.next()
        turns = (await server.http.get("/v1/sessions/chat-1")).json()["turns"]
    assert report["fresh"] == []
    assert [(message["role"], text_of(message)) for message in report["loaded"]] == [
        ("user", "plain"),
        ("assistant", "Plain answer."),
    ]
    first, second, regenerated, stopped = turns
    parents = [turn["parent_turn_id"] for turn in turns]
    assert parents == [None, first["turn_id"], first["turn_id"], regenerated["turn_id"]]
    # The regenerated answer replaces the one beside it.
    answers = [message["id"] for message in report["shown"] if message["role"] == "assistant"]
    assert answers == [first["turn_id"], regenerated["turn_id"], stopped["turn_id"]]
    assert report["last"] == regenerated["turn_id"] != second["turn_id"]
    # A running answer is brought by the stream, not by the history.
    assert (report["before"], report["after"]) == (["user", "assistant"] * 2 + ["user"], 6)


async def test_loaded_messages_are_those_that_the_client_has_built(serve: Serve, run: Run, transport: str) -> None:
    version = int(transport[-1])
    scenes = ("rich", "fail", "plain", "pay")
    async with (
        serve(play, ai_sdk={"version": version}) as server,
        run("chat.mjs", server.url, transport, "load", *scenes) as script,
    ):
        waiting = await script.next()
        if version > 5:  # Version 5 has no approvals.
            decided = await script.next()
            assert decided["text"] == "Paid."
            assert decided["loaded"] == decided["built"]
        await script.ended()
    assert waiting["loaded"] == waiting["built"]
    assert [text_of(message) for message in waiting["loaded"][:-2:2]] == list(scenes[:-1])
    rich, pay = waiting["loaded"][1], waiting["loaded"][-1]
    kinds = {part["type"] for part in rich["parts"]}
    assert kinds >= {"step-start", "text", "reasoning", "dynamic-tool", "source-url", "source-document", "data-agent"}
    (call,) = parts_of(pay, "dynamic-tool")
    assert call["state"] == ("approval-requested" if version > 5 else "input-available")


async def test_loaded_calls_of_the_client_are_those_that_it_has_answered(
    serve: Serve, run: Run, transport: str
) -> None:
    async with (
        serve(TwoWayAgent(), ai_sdk={"version": int(transport[-1])}) as server,
        run("chat.mjs", server.url, transport, "load", "mixed", "colour") as script,
    ):
        report = await script.next()
        await script.ended()
    assert report["loaded"] == report["built"]
    (question,) = parts_of(report["loaded"][-1], "tool-question")
    assert (question["state"], question["input"]["prompt"]) == ("input-available", "Which colour?")
    assert [part["output"] for part in parts_of(report["loaded"][1], "tool-locate")] == ["Bern", "Bern"]


# Tools that the client runs, and questions


async def test_client_runs_its_tools_and_the_same_message_goes_on(serve: Serve, run: Run, transport: str) -> None:
    async with serve(TwoWayAgent()) as server, run("chat.mjs", server.url, transport, "tools", "mixed") as script:
        report = await script.next()
        await script.ended()
        assert await server.written() == (1, 1)
    message = report["message"]
    assert (report["status"], report["count"], report["calls"]) == ("ready", 2, ["locate", "clock", "locate"])
    assert text_of(message) == "Wait. You are in Bern at noon. Still in Bern."
    outputs = [part["output"] for part in message["parts"] if part["type"] in ("tool-locate", "tool-clock")]
    assert outputs == ["Bern", "noon", "Bern"]
    assert [part["output"] for part in parts_of(message, "dynamic-tool")] == ["3 entries"]


async def test_call_is_answered_after_a_restart_of_the_server_and_a_reload_of_the_page(
    serve: Serve, run: Run, transport: str
) -> None:
    async with (
        serve(TwoWayAgent(), store="sqlite") as server,
        run("chat.mjs", server.url, transport, "call", "locate") as script,
    ):
        report = await script.next()
        await script.ended()
    (call,) = parts_of(report["message"], "tool-locate")
    assert (report["status"], report["calls"]) == ("ready", [])
    assert (call["state"], call["input"]) == ("input-available", {"exact": True})
    messages = json.dumps(report["messages"])
    async with (
        serve(TwoWayAgent(), store="sqlite") as server,
        run("chat.mjs", server.url, transport, "reopen", messages) as script,
    ):
        report = await script.next()
        await script.ended()
        assert await server.written() == (1, 1)
    assert (report["status"], report["calls"]) == ("ready", ["locate"])
    assert text_of(report["message"]) == "Wait. You are in Bern."


@pytest.mark.parametrize("answer", ["blue", "decline", "green"])
async def test_question_is_answered_as_a_tool_of_the_client(
    serve: Serve, run: Run, transport: str, answer: str
) -> None:
    async with serve(TwoWayAgent()) as server, run("chat.mjs", server.url, transport, "question", answer) as script:
        waiting, report = await script.next(), await script.next()
        assert await server.written() == (1, 1)
    assert (waiting["status"], waiting["part"]["state"]) == ("ready", "input-available")
    assert waiting["part"]["input"] == {"prompt": "Which colour?", "schema": COLOUR}
    if answer == "blue":
        assert (report["status"], text_of(report["message"])) == ("ready", "Wait. You want blue.")
    elif answer == "decline":
        assert "did not answer the question (not now)" in report["error"]
    else:
        assert "value: this must be one of red, blue" in report["error"]
