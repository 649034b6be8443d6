"""A channel as the kernel calls it: within limits, and never so that a failure reaches anybody else."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from turnwire.extensions.bounded import call, reason
from turnwire.extensions.contract import (
    ApprovalAsk,
    ApprovalChannel,
    CancellableChannel,
    ChannelProvider,
    RestartableChannel,
    StepChannel,
    StreamingChannelProvider,
    StreamStep,
)
from turnwire.extensions.steps import status_line

logger = logging.getLogger("turnwire.extensions")

_MOST_FAILURES = 3


class Channel:
    """One extension's channel. `provides` is what was detected of it, not what it looks like."""

    def __init__(self, id: str, extension: Any, provides: frozenset[str], *, streams: bool, timeout: float) -> None:
        self.id = id
        self.streams = streams and "streaming_channel" in provides
        self.timeout = timeout
        self.extension: ChannelProvider = extension
        self._provides = provides

    def show(self, user_id: str) -> "Showing":
        return Showing(self, user_id)

    async def send_to_user(self, user_id: str, message: str) -> None:
        """Raises what the channel raises, and TimeoutError."""
        await call(self.timeout, self.extension.send_to_user, user_id, message)

    async def send_message(self, message: str) -> None:
        await call(self.timeout, self.extension.send_message, message)

    @property
    def streaming(self) -> StreamingChannelProvider | None:
        return self.extension if self.streams else None  # pyright: ignore[reportReturnType]

    @property
    def stepping(self) -> StepChannel | None:
        return self.extension if self.streams and "step_channel" in self._provides else None  # pyright: ignore[reportReturnType]

    @property
    def cancelling(self) -> CancellableChannel | None:
        return self.extension if self.streams and "cancellable_channel" in self._provides else None  # pyright: ignore[reportReturnType]

    @property
    def restarting(self) -> RestartableChannel | None:
        return self.extension if self.streams and "restartable_channel" in self._provides else None  # pyright: ignore[reportReturnType]

    @property
    def approving(self) -> ApprovalChannel | None:
        return self.extension if "approval_channel" in self._provides else None  # pyright: ignore[reportReturnType]


class Showing:
    """One answer on one channel while it is made. A method that fails is logged and changes nothing but what is seen
    meanwhile; after one that hangs, or several that fail, there is nothing more until the end.
    """

    def __init__(self, channel: Channel, user_id: str) -> None:
        self._channel = channel
        self._user_id = user_id
        self._failures = 0

    async def start(self) -> None:
        if streaming := self._channel.streaming:
            await self._attempt(streaming.on_stream_start)

    async def chunk(self, text: str) -> None:
        if streaming := self._channel.streaming:
            await self._attempt(streaming.on_stream_chunk, text)

    async def step(self, step: StreamStep) -> None:
        if stepping := self._channel.stepping:
            await self._attempt(stepping.on_stream_step, step)
        elif line := status_line(step):
            await self.status(line)

    async def status(self, line: str) -> None:
        if streaming := self._channel.streaming:
            await self._attempt(streaming.on_stream_status, line)

    async def restart(self, text: str) -> bool:
        """Whether only this text is shown now."""
        restarting = self._channel.restarting
        return restarting is not None and await self._attempt(restarting.on_stream_restart, text)

    async def ask(self, ask: ApprovalAsk) -> None:
        """Asked also when other calls have failed: somebody waits for the answer."""
        line = f"Waiting for approval: {ask.tool}"
        if approving := self._channel.approving:
            if not await self._attempt(approving.on_approval_request, ask, always=True):
                await self._attempt(self._channel.extension.send_to_user, line, always=True)
        elif self._channel.streams:
            await self.status(line)
        else:
            await self._attempt(self._channel.extension.send_to_user, line, always=True)

    async def end(self, full_text: str, *, cancelled_text: str | None) -> bool:
        """Brings the whole answer, by one way or another. False if none worked.

        `cancelled_text` is given when the answer was stopped: what there was of it.
        """
        cancelling, streaming = self._channel.cancelling, self._channel.streaming
        if cancelled_text is not None and cancelling:
            if await self._attempt(cancelling.on_stream_cancel, cancelled_text, always=True):
                return True
        elif streaming and await self._attempt(streaming.on_stream_end, full_text, always=True):
            return True
        return await self.send(full_text)

    async def send(self, text: str) -> bool:
        return await self._attempt(self._channel.extension.send_to_user, text, always=True)

    async def _attempt(self, method: Callable[..., Awaitable[None]], *args: Any, always: bool = False) -> bool:
        if self._failures >= _MOST_FAILURES and not always:
            return False
        name = getattr(method, "__name__", "a method")
        try:
            await call(self._channel.timeout, method, self._user_id, *args)
        except TimeoutError as error:
            self._failures = _MOST_FAILURES
            logger.warning("%s of channel %r: %s", name, self._channel.id, reason(error))
            return False
        except Exception as error:
            self._failures += 1
            logger.warning("%s of channel %r failed: %s", name, self._channel.id, reason(error))
            logger.debug("%s of channel %r failed", name, self._channel.id, exc_info=True)
            return False
        return True
