"""The routes of the Vercel AI SDK's chat clients: `/api/chat`.

`endpoints` answers; `messages` is what clients send, `conversation` where in a chat it belongs, `places` where in a
stream they are.
"""

from turnwire.server.routes.ai_sdk.endpoints import AiSdkRoutes
from turnwire.server.routes.ai_sdk.paths import PATHS

__all__ = ["PATHS", "AiSdkRoutes"]
