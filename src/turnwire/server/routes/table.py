"""Which plain ASGI endpoint answers a request; one family of routes a protocol."""

from turnwire.server.errors import HttpError
from turnwire.server.routes.ag_ui import AgUiRoutes
from turnwire.server.routes.ai_sdk import AiSdkRoutes
from turnwire.server.routes.exchange import Endpoint
from turnwire.server.routes.openai_chat import CompletionRoutes
from turnwire.server.routes.openai_responses import ResponseRoutes
from turnwire.server.routes.rag import RagRoutes
from turnwire.server.routes.sockets import SocketRoutes
from turnwire.server.routes.streams import StreamRoutes
from turnwire.server.turnwire import Turnwire


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
