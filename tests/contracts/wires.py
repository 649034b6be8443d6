"""The wires that the contract suites run over."""

from turnwire.core.contracts.wires import Wire
from turnwire.wires.a2a.encoder import A2a
from turnwire.wires.ag_ui.encoder import AgUi
from turnwire.wires.ai_sdk.encoder import AiSdk
from turnwire.wires.openai.chat.encoder import OpenAIChat
from turnwire.wires.openai.responses.encoder import OpenAIResponses
from turnwire.wires.sse_chat.encoder import SseChat
from turnwire.wires.three_phase_text.encoder import ThreePhaseText
from turnwire.wires.websocket.encoder import WebSocket

WIRES: dict[str, Wire] = {
    "a2a": A2a(),
    "ag_ui": AgUi(),
    "ai_sdk": AiSdk(),
    "openai_chat": OpenAIChat(),
    "openai_responses": OpenAIResponses(),
    "sse_chat": SseChat(),
    "three_phase_text": ThreePhaseText(),
    "websocket": WebSocket("t1"),
}
