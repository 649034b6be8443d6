"""A heartbeat: at an interval, the agent speaks to a user, in the user's own conversation on a channel.

The channel shows the answer while it is written, as if the user had asked, and the user can reply to it.
"""

import asyncio

from pydantic import BaseModel, ConfigDict, Field

from turnwire.extensions.contract import ExtensionContext, Health


class Heartbeat:
    class ConfigModel(BaseModel):
        model_config = ConfigDict(extra="forbid")

        channel: str
        user_id: str
        prompt: str = Field(min_length=1)
        every_minutes: float = Field(gt=0)

    async def initialize(self, context: ExtensionContext) -> None:
        self._context = context
        self._problem = ""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def destroy(self) -> None: ...

    async def health_check(self) -> Health:
        return Health("degraded", self._problem) if self._problem else Health("running")

    async def run_background(self) -> None:
        """Run until it is cancelled. The kernel restarts it if it fails."""
        while True:
            await asyncio.sleep(self._context.get_config("every_minutes") * 60)
            await self.beat()

    async def beat(self) -> None:
        """Speak once."""
        config = self._context.get_config
        try:
            await self._context.speak_to_user(config("channel"), config("user_id"), config("prompt"))
            self._problem = ""
        except LookupError as error:
            self._problem = str(error)
