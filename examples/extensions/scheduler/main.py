"""A scheduler: runs the agent at an interval and sends the answer through a channel.

No user has to write first. Its prompts and answers are a session of its own, with a log like any other.
"""

import asyncio

from pydantic import BaseModel, ConfigDict, Field

from turnwire import AgentError
from turnwire.extensions.contract import ExtensionContext, Health


class Scheduler:
    class ConfigModel(BaseModel):
        model_config = ConfigDict(extra="forbid")

        channel: str
        user_id: str | None = None
        prompt: str = Field(min_length=1)
        agent: str | None = None
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
            await self.speak()

    async def speak(self) -> None:
        """Run the agent once and send its answer. After a failure the next time may succeed."""
        context = self._context
        try:
            answer = await context.invoke_agent(context.get_config("prompt"), context.get_config("agent"))
        except AgentError as error:
            self._problem = f"the agent did not answer: {error}"
            context.logger.warning(self._problem)
            return
        try:
            await self._send(answer)
            self._problem = ""
        except (LookupError, OSError) as error:
            self._problem = f"the answer could not be sent: {error}"
            context.logger.warning(self._problem)

    async def _send(self, answer: str) -> None:
        channel, user_id = self._context.get_config("channel"), self._context.get_config("user_id")
        if user_id is None:
            await self._context.send_message(channel, answer)
        else:
            await self._context.send_to_user(channel, user_id, answer)
