"""Every wire there is."""

from turnwire.core.contracts import Wire
from turnwire.wires.sse_chat import SseChat

WIRES: dict[str, Wire] = {"sse_chat": SseChat()}
