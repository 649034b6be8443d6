"""The contract of agent adapters for files: what the model gets of them, in this turn and in later ones."""

import asyncio
import base64
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.agents import AgentCase, case_fixture
from tests.contracts.test_agent import outcome, seen
from tests.core.desk import Desk, lose_worker
from tests.lost_connections import IGNORED, lost_connections_are_collected
from tests.scripted_model import ScriptedModel, calls, model_server, says
from turnwire.core.contracts.agents import resumes
from turnwire.core.errors import AttachmentsNotTakenError
from turnwire.core.log.codec import now_ms
from turnwire.core.log.events import AttachedFile, MessageEvent, TokenEvent
from turnwire.core.log.files import Blob, new_blob
from turnwire.core.log.turns import TurnRecord
from turnwire.stores.memory import MemoryStore

__all__ = ["lost_connections_are_collected", "model_server"]
pytestmark = IGNORED
case = case_fixture("files")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png() -> bytes:
    """Return a picture of four pixels. Every byte is in it, so nothing that touches text can be on its way."""
    header, rows = struct.pack(">IIBBBBB", 2, 2, 8, 2, 0, 0, 0), zlib.compress(bytes(2 * (1 + 2 * 3)))
    chunks = (b"IHDR", header), (b"noTe", bytes(range(256)) * 3), (b"IDAT", rows), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


PICTURE = new_blob(_png(), "image/png", "cat.png")
PAPER = new_blob(b"%PDF-1.7\n" + bytes(range(256)), "application/pdf", "paper.pdf")
NOTES = new_blob("Ünïcode notes".encode(), "text/plain", "notes.txt")


async def send(desk: Desk, message: str, *blobs: Blob, **fields: Any) -> TurnRecord:
    return await desk.start(message, attachments=[blob.info for blob in blobs], blobs=blobs, **fields)


def user_messages(body: dict[str, Any]) -> list[Any]:
    """Return the contents of the user's messages in a request to the model, over every API."""
    if "contents" in body:
        # Gemini's API has the results of tools under the same role.
        contents = [content["parts"] for content in body["contents"] if content["role"] == "user"]
        return [parts for parts in contents if not all("functionResponse" in part for part in parts)]
    messages = body.get("messages") or body["input"]
    contents = [message["content"] for message in messages if message.get("role") == "user"]
    # So has Anthropic's.
    return [each for each in contents if isinstance(each, str) or any(part["type"] != "tool_result" for part in each)]


def texts(content: Any) -> list[str]:
    """Return the texts of a message, without those in which Claude Code says where it has put a picture."""
    found: list[str] = [content] if isinstance(content, str) else [part["text"] for part in content if "text" in part]
    return [text for text in found if not text.startswith("[Image: source: ")]


def files(content: Any) -> list[tuple[str, bytes]]:
    """Return the kinds and the bytes of the files in a message."""
    found: list[tuple[str, bytes]] = []
    for part in content if isinstance(content, list) else []:
        for kind, url in _urls(part):
            encoded = re.fullmatch(r"data:[a-z]+/[a-z]+;base64,(.*)", url)
            found.append((kind, base64.b64decode(encoded[1]) if encoded else url.encode()))
    return found


def _urls(part: dict[str, Any]) -> list[tuple[str, str]]:
    if file := part.get("inlineData") or part.get("fileData"):  # Gemini's
        media_type = file.get("mimeType") or file["mime_type"]
        kind = "image" if media_type.startswith("image/") else "file"
        data = file.get("data", "").replace("-", "+").replace("_", "/")  # The alphabet for URLs.
        return [(kind, file.get("file_uri") or f"data:{media_type};base64,{data}")]
    match part.get("type"):
        case "image_url":
            return [("image", part["image_url"]["url"])]
        case "input_image":
            return [("image", part["image_url"])]
        case "file":
            return [("file", part["file"]["file_data"])]
        case "input_file":
            return [("file", part["file_data"])]
        case "image" | "document" as kind:  # Anthropic's
            source = part["source"]
            url = source.get("url") or f"data:{source['media_type']};base64,{source['data']}"
            return [("image" if kind == "image" else "file", url)]
        case _:
            return []


async def test_image_reaches_the_model_byte_for_byte_and_again_in_the_next_turn(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    model_server.plan(says("A cat."), says("Black."))
    async with case.desk(model_server) as desk:
        turn = await send(desk, "What is it?", PICTURE)
        events = await desk.events(turn)
        assert outcome(events) == ("completed", None)
        assert isinstance(events[1], MessageEvent)
        assert events[1].attachments == (
            AttachedFile(media_type="image/png", name="cat.png", size=len(PICTURE.body), digest=PICTURE.digest),
        )
        await desk.events(await desk.start("Which colour?", session_id=turn.session_id))
    first, second = map(user_messages, model_server.bodies)
    assert [(texts(content), files(content)) for content in first] == [(["What is it?"], [("image", PICTURE.body)])]
    assert (texts(second[0]), files(second[0])) == (texts(first[0]), files(first[0]))
    assert texts(second[1]) == ["Which colour?"]


async def test_document_and_text_reach_the_model_and_a_message_needs_no_text(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    model_server.plan(says("Read."))
    async with case.desk(model_server) as desk:
        assert outcome(await desk.events(await send(desk, "", PAPER, NOTES))) == ("completed", None)
    (content,) = user_messages(model_server.bodies[0])
    assert files(content) == [("file", PAPER.body)]
    assert texts(content) == ["[notes.txt]\nÜnïcode notes"]


async def test_address_of_an_image_is_passed_on(case: AgentCase, model_server: ScriptedModel) -> None:
    model_server.plan(says("A dog."))
    linked = AttachedFile(media_type="image/jpeg", url="https://example.org/dog.jpg")
    async with case.desk(model_server) as desk:
        assert outcome(await desk.events(await desk.start("See?", attachments=[linked]))) == ("completed", None)
    (content,) = user_messages(model_server.bodies[0])
    assert files(content) == [("image", b"https://example.org/dog.jpg")]


async def test_file_that_the_model_cannot_read_starts_no_turn(case: AgentCase, model_server: ScriptedModel) -> None:
    linked = AttachedFile(media_type="application/pdf", url="https://example.org/paper.pdf")
    async with case.desk(model_server) as desk:
        with pytest.raises(AttachmentsNotTakenError, match="audio/mpeg"):
            await send(desk, "Listen", new_blob(b"ID3", "audio/mpeg"))
        with pytest.raises(AttachmentsNotTakenError, match="by its URL"):
            await desk.start("Read", attachments=[linked])
        assert await desk.store.list_turns("ann") == []


async def test_file_is_there_again_after_a_tool_and_the_loss_of_the_worker(
    case: AgentCase, model_server: ScriptedModel, tmp_path: Path
) -> None:
    async def look(place: str) -> str:
        """Look at a place."""
        return "nothing"

    looks = calls(("look", {"place": "left"}), ids=["call_look"])
    model_server.plan(looks, says("A", asyncio.Event(), " cat."), says("A cat."))
    data = MemoryStore()
    async with case.desk(model_server, look, store=MemoryStore(data), folder=tmp_path) as desk:
        turn = await send(desk, "What is it?", PICTURE)
        await seen(desk, turn, lambda event: event == TokenEvent("A"))
        await lose_worker(desk)
    async with case.desk(model_server, look, store=MemoryStore(data), folder=tmp_path) as desk:
        assert resumes(desk.runner.agents["agent"])
        assert outcome(await desk.events(turn)) == ("completed", None)
    assert len(model_server.bodies) == 3
    for body in model_server.bodies:
        # Claude Code adds a message of its own, which asks the model to continue.
        assert [found for content in user_messages(body) if (found := files(content))] == [[("image", PICTURE.body)]]


async def test_cancel_of_a_turn_with_a_file_keeps_it_in_the_history(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    model_server.plan(says("A", asyncio.Event(), " cat."), says("Black."))
    async with case.desk(model_server) as desk:
        turn = await send(desk, "What is it?", PICTURE)
        await seen(desk, turn, lambda event: event == TokenEvent("A"))
        await desk.cancel(turn)
        assert outcome(await desk.events(turn)) == ("cancelled", None)
        await desk.events(await desk.start("Which colour?", session_id=turn.session_id))
    picture, question = user_messages(model_server.bodies[1])
    assert (texts(picture), files(picture)) == (["What is it?"], [("image", PICTURE.body)])
    assert texts(question) == ["Which colour?"]


async def test_expired_file_of_an_earlier_turn_is_a_note_for_the_model(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    model_server.plan(says("A cat."), says("Black."))
    async with case.desk(model_server) as desk:
        turn = await send(desk, "What is it?", PICTURE)
        await desk.events(turn)
        await desk.store.maintain(expire_before=now_ms() + 60_000)
        await desk.events(await desk.start("Which colour?", session_id=turn.session_id))
    earlier, _ = user_messages(model_server.bodies[1])
    assert texts(earlier) == ["What is it?", "[The file cat.png was sent here, and is no longer kept.]"]
