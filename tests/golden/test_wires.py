"""The bytes of every wire for three fixed logs, one golden file a wire. `UPDATE_GOLDEN=1` writes them again."""

import re

import pytest

from tests.golden.files import compare
from tests.golden.scenes import PAUSES, SCENES
from turnwire.core.contracts.wires import Control, Gap, Reconnect, Reset, Wire
from turnwire.core.errors import RestartedError
from turnwire.core.log.state import fold_events
from turnwire.wires.a2a.encoder import A2a
from turnwire.wires.ag_ui.encoder import AgUi
from turnwire.wires.ai_sdk.encoder import AiSdk
from turnwire.wires.openai.chat.encoder import OpenAIChat
from turnwire.wires.openai.responses.encoder import OpenAIResponses
from turnwire.wires.sse_chat.encoder import SseChat
from turnwire.wires.three_phase_text.encoder import ThreePhaseText
from turnwire.wires.websocket.encoder import WebSocket

WIRES: dict[str, Wire] = {
    "a2a": A2a.of_query({}),
    "ag_ui": AgUi.of_query({"version": "1"}),
    "ai_sdk": AiSdk.of_query({"sdk_version": "6"}),
    "openai_chat": OpenAIChat(include_usage=True),
    "openai_responses": OpenAIResponses(),
    "sse_chat": SseChat(),
    "three_phase_text": ThreePhaseText(),
    "websocket": WebSocket("turn-1"),
}
OTHER_VERSIONS: dict[str, Wire] = {
    "a2a 0.3": A2a.of_query({"version": "0.3"}),
    "ag_ui 0": AgUi.of_query({"version": "0"}),
    "ai_sdk 5": AiSdk.of_query({"sdk_version": "5"}),
    "ai_sdk 7": AiSdk.of_query({"sdk_version": "7"}),
}


def visible(body: bytes) -> str:
    """Return the bytes as text in which every control character but the line feed can be seen."""
    text = body.decode("utf-8", "backslashreplace")
    return re.sub(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff]", lambda found: f"«{ord(found[0]):02x}»", text)


def encoded(wire: Wire, scene: str) -> str:
    """Return the frames of a scene, with the frames that end a stream where the turn waits."""
    encoder, lines = wire.encoder(), list[str]()
    for logged in SCENES[scene]:
        try:
            lines.append(visible(encoder.frame(logged)))
        except RestartedError:
            lines.append("(the connection is broken, and the client replays the log)\n")
            break
        if logged.position in PAUSES.get(scene, ()):
            lines.append(f"(the stream may end here with: {visible(encoder.pause())!r})\n")
    return "".join(lines)


def controls(wire: Wire) -> str:
    """Return the frames that are not part of a log."""
    gap = Gap(4, 9, fold_events(SCENES["answer"][:8]).state())
    frames: dict[str, Control] = {"gap": gap, "reset": Reset(), "reconnect": Reconnect(1000)}
    lines = [f"opening: {visible(wire.opening)!r}", f"heartbeat: {visible(wire.heartbeat)!r}"]
    for name, control in frames.items():
        frame = wire.control(control)
        lines.append(f"{name}: {'(none: the connection is broken)' if frame is None else repr(visible(frame))}")
    return "\n".join(lines)


@pytest.mark.parametrize("name", WIRES)
def test_wire_encodes_the_scenes_as_before(name: str) -> None:
    wire = WIRES[name]
    parts = [f"=== {scene}\n{encoded(wire, scene)}" for scene in SCENES]
    compare(f"wires/{name}.txt", "\n".join([f"=== control frames\n{controls(wire)}\n", *parts]))


@pytest.mark.parametrize("name", OTHER_VERSIONS)
def test_other_version_of_a_wire_encodes_an_answer_as_before(name: str) -> None:
    wire = OTHER_VERSIONS[name]
    parts = [f"=== {scene}\n{encoded(wire, scene)}" for scene in ("answer", "wait")]
    compare(f"wires/{name.replace(' ', '_')}.txt", "\n".join(parts))
