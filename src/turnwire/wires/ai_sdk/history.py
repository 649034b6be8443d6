"""The messages of a chat, for a page that is opened again: what a client would have built from the streams."""

import asyncio
from collections.abc import Iterator
from typing import Any

from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.events import AttachedFile
from turnwire.core.log.files import attached_files
from turnwire.core.log.history import imported_history
from turnwire.core.log.turns import Message, TurnRecord, TurnState
from turnwire.server.auth import Caller
from turnwire.server.services import Services
from turnwire.server.streams.resume import EncodedWalk, walk_log
from turnwire.server.turns import newest_branch, turn_state
from turnwire.wires.ai_sdk.conversation import question_id
from turnwire.wires.ai_sdk.encoder import AiSdk, chunks_of, read_chunk, source_chunk
from turnwire.wires.frames import omit_none

_MAX_TURNS = 100_000
_RESULT = ("output", "errorText", "preliminary")
"""The fields of a call's part that an output or an error replaces."""


class MessageBuilder:
    """Builds a message from the chunks of its stream by the rules of the SDK's clients.

    It knows the chunks that the encoder writes. A text is kept in pieces until the message is complete.
    """

    def __init__(self, version: int) -> None:
        self._version = version
        self._id: str | None = None
        self._metadata: dict[str, Any] = {}
        self._parts: list[dict[str, Any]] = []
        self._texts: dict[str, tuple[dict[str, Any], list[str]]] = {}
        self._calls: dict[str, dict[str, Any]] = {}
        self._data_parts: dict[tuple[str, str], dict[str, Any]] = {}

    def take(self, chunk: dict[str, Any]) -> None:
        kind: str = chunk["type"]
        if kind.startswith("data-"):
            self._take_data(chunk)
        elif kind.startswith("tool-"):
            self._take_tool(kind, chunk)
        elif kind.startswith(("text-", "reasoning-")):
            self._take_text(kind, chunk)
        elif kind.startswith("source-"):
            self._parts.append(chunk)
        elif kind == "start-step":
            self._parts.append({"type": "step-start"})
        else:
            self._id = chunk.get("messageId", self._id)
            self._metadata |= chunk.get("messageMetadata", {})

    def _take_data(self, chunk: dict[str, Any]) -> None:
        if chunk.get("transient"):
            return
        name = chunk["type"], chunk.get("id", "")
        if "id" in chunk and name in self._data_parts:
            self._data_parts[name]["data"] = chunk["data"]
            return
        self._data_parts[name] = chunk
        self._parts.append(chunk)

    def _take_text(self, kind: str, chunk: dict[str, Any]) -> None:
        kind, _, phase = kind.partition("-")
        if phase == "start":
            part = {"type": kind, "text": "", "state": "streaming"}
            if kind == "reasoning":
                part["id"] = chunk["id"]
            self._texts[chunk["id"]] = part, []
            self._parts.append(part)
        elif phase == "delta":
            self._texts[chunk["id"]][1].append(chunk["delta"])
        else:
            self._texts[chunk["id"]][0]["state"] = "done"

    def _take_tool(self, kind: str, chunk: dict[str, Any]) -> None:
        # The encoder gives an approval the id of its call.
        call_id: str = chunk.get("toolCallId") or chunk["approvalId"]
        if kind == "tool-input-start":
            tool: str = chunk["toolName"]
            named = {"type": "dynamic-tool", "toolName": tool} if chunk.get("dynamic") else {"type": f"tool-{tool}"}
            self._calls[call_id] = {**named, "toolCallId": call_id, "state": "input-streaming"}
            self._parts.append(self._calls[call_id])
            return
        part = self._calls[call_id]
        match kind:
            case "tool-input-available":
                metadata = omit_none(callProviderMetadata=chunk.get("providerMetadata"))
                part |= {"state": "input-available", "input": chunk["input"], **metadata}
            case "tool-approval-request":
                reason = chunk.get("reason") if self._version >= 7 else None
                part |= {"state": "approval-requested", "approval": {"id": call_id, **omit_none(requestReason=reason)}}
            case "tool-approval-response":
                decision = omit_none(approved=chunk["approved"], reason=chunk.get("reason"))
                part |= {"state": "approval-responded", "approval": {**part["approval"], **decision}}
            case "tool-output-denied":
                part["state"] = "output-denied"
            case _:
                for name in _RESULT:
                    part.pop(name, None)
                result = {name: chunk[name] for name in _RESULT if name in chunk}
                part |= {"state": kind.removeprefix("tool-"), **result}

    def message(self) -> dict[str, Any] | None:
        """Return the message so far; None if it has not started."""
        if self._id is None:
            return None
        for part, pieces in self._texts.values():
            part["text"] = "".join(pieces)
        return {"id": self._id, "role": "assistant", "metadata": self._metadata, "parts": self._parts}


class _MessageWalk(EncodedWalk):
    """Builds the message of a turn from its log."""

    def __init__(self, wire: AiSdk) -> None:
        super().__init__(wire)
        self._version = wire.sdk_version

    def begin(self) -> None:
        super().begin()
        self.builder = MessageBuilder(self._version)

    def see(self, logged: LoggedEvent, frame: bytes) -> None:
        for chunk in chunks_of(frame):
            self.builder.take(read_chunk(chunk))


async def chat_messages(services: Services, caller: Caller, name: str, wire: AiSdk, root: str) -> list[dict[str, Any]]:
    """Return the messages of the newest branch of a chat; `root` is the path where the app is mounted.

    The answer of the newest turn is left out while the turn is queued or runs: its stream brings it. An earlier turn
    that still runs is shown with its answer so far. Raises SessionNotFoundError.
    """
    session = await services.store.find_session(caller.principal, name)
    turns = newest_branch(await services.store.list_turns(caller.principal, session_id=session.id, limit=_MAX_TURNS))
    if not turns:
        return []
    earlier = await imported_history(services.store, turns[0])
    messages = list(_earlier_messages(session.id, earlier, root))
    for turn in turns:
        await asyncio.sleep(0)  # Other requests run between two turns, also on a store that never waits.
        parts = _question_parts(turn.session_id, turn.message, attached_files(turn.options), root)
        messages.append({"id": question_id(turn), "role": "user", "parts": parts})
        is_shown = turn.phase in ("waiting", "ended") or (turn.phase == "running" and turn is not turns[-1])
        if is_shown and (answer := await _answer(services, turn, wire)) is not None:
            messages.append(answer)
    return messages


def _earlier_messages(session_id: str, history: tuple[Message, ...], root: str) -> Iterator[dict[str, Any]]:
    """Yield the texts and files of the messages from before the session."""
    for number, message in enumerate(history):
        parts = _question_parts(session_id, message.content, message.attachments, root)
        if message.role != "tool" and parts:
            yield {"id": f"{session_id}-history-{number}", "role": message.role, "parts": parts}


def _question_parts(session_id: str, text: str, files: tuple[AttachedFile, ...], root: str) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    for file in files:
        url = file.url or f"{root}/v1/sessions/{session_id}/files/{file.digest}"
        parts.append({"type": "file", "mediaType": file.media_type, "url": url, **omit_none(filename=file.name)})
    return parts


async def _answer(services: Services, turn: TurnRecord, wire: AiSdk) -> dict[str, Any] | None:
    if turn.first_kept > 1:
        return _kept_message(await turn_state(services.store, turn))
    walk = _MessageWalk(wire)
    await walk_log(services.store, turn.id, walk)
    return walk.builder.message()


def _kept_message(state: TurnState) -> dict[str, Any]:
    """Return the text and the sources of an answer whose log is past its retention."""
    metadata = {"turnId": state.turn_id, "sessionId": state.session_id, "agent": state.agent}
    sources: dict[int, bytes] = {}
    for citation in state.citations:
        sources.setdefault(citation.index, source_chunk(citation))
    return {
        "id": state.turn_id,
        "role": "assistant",
        "metadata": {**metadata, **omit_none(outcome=state.outcome)},
        "parts": [
            {"type": "step-start"},
            {"type": "text", "text": state.text, "state": "done"},
            *map(read_chunk, sources.values()),
        ],
    }
