"""Every wire there is."""

from turnwire.core.contracts import Wire
from turnwire.wires.ag_ui.wire import AgUi
from turnwire.wires.ai_sdk.wire import AiSdk
from turnwire.wires.openai_chat import OpenAIChat
from turnwire.wires.openai_responses import OpenAIResponses
from turnwire.wires.sse_chat import SseChat
from turnwire.wires.three_phase_text import ThreePhaseText
from turnwire.wires.websocket import WebSocket

WIRES: dict[str, Wire] = {
    "ag_ui": AgUi(),
    "ai_sdk": AiSdk(),
    "openai_chat": OpenAIChat(),
    "openai_responses": OpenAIResponses(),
    "sse_chat": SseChat(),
    "three_phase_text": ThreePhaseText(),
    "websocket": WebSocket("t1"),
}
