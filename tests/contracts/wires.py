"""Every wire there is."""

from turnwire.core.contracts import Wire
from turnwire.wires.sse_chat import SseChat
from turnwire.wires.three_phase_text import ThreePhaseText

WIRES: dict[str, Wire] = {"sse_chat": SseChat(), "three_phase_text": ThreePhaseText()}
