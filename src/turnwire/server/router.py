"""Which plain ASGI endpoint answers a request; one family of routes a protocol."""

from turnwire.app import Turnwire
from turnwire.server.errors import HttpError
from turnwire.server.exchange import Endpoint
from turnwire.server.sockets import SocketRoutes
from turnwire.wires.ag_ui.routes import AgUiRoutes
from turnwire.wires.ai_sdk.routes import AiSdkRoutes
from turnwire.wires.openai.chat_routes import CompletionRoutes
from turnwire.wires.openai.responses_routes import ResponseRoutes
from turnwire.wires.sse_chat.routes import StreamRoutes
from turnwire.wires.three_phase_text.routes import RagRoutes


class RouteTable:
    def __init__(self, turnwire: Turnwire) -> None:
        families = (
            StreamRoutes(turnwire),
            SocketRoutes(turnwire),
            RagRoutes(turnwire),
            AiSdkRoutes(turnwire),
            AgUiRoutes(turnwire),
            CompletionRoutes(turnwire),
            ResponseRoutes(turnwire),
        )
        self._routes = [route for family in families for route in family.routes]

    def find(self, method: str, path: str) -> Endpoint | None:
        """None if the path is not of these. Raises HttpError 405."""
        found = {known: endpoint for known, pattern, endpoint in self._routes if pattern.fullmatch(path)}
        if not found:
            return None
        if method not in found:
            wanted = ", ".join(sorted(found))
            raise HttpError(405, "method_not_allowed", f"only {wanted} is answered here", headers={"Allow": wanted})
        return found[method]
