"""Leases on extensions: what a process does with a channel or a service that it gains, loses or cannot run."""

from pathlib import Path

from tests.extensions.harness import PLAIN, LocalHome, running, write_extension
from tests.serving import saying, until


async def test_message_to_a_channel_that_is_being_left_is_not_accepted(tmp_path: Path) -> None:
    accepting = """
    async def stop(self):
        try:
            await self.context.accept("too late", "ann", message_id="1")
        except Exception as error:
            self.calls.append(("refused", type(error).__name__))
"""
    write_extension(tmp_path / "x", "chat", PLAIN + accepting)
    home = LocalHome(tmp_path / "d", "chat")
    async with running(tmp_path / "x", saying("hello"), shared=home) as kernel:
        assert await kernel.say("chat") == "hello"
        home.leases.granted.clear()
        await until(lambda: kernel.calls("chat", "refused"))
        # Not an error of the message: whoever sent it tries again, at the process that runs the channel then.
        assert kernel.calls("chat", "refused") == [("refused", "ShuttingDownError")]
