"""The adapter of `adapter.py` that records its calls: a turn whose process is lost repeats no finished one."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from copy import copy
from dataclasses import asdict, replace

import acme_sdk as sdk
from adapter import AcmeAdapter

from turnwire import Event, ToolError, Turn
from turnwire.core.journal.turn_journal import ToolDeniedError, current_journal, fingerprint
from turnwire.tools.invocation import loggable, tool_error_text


class JournaledAcmeAdapter(AcmeAdapter):
    on_crash = "resume"
    place = ""  # The place of a run in the turn's journal.

    async def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        run, journal = copy(self), current_journal()
        assert journal is not None
        run.place = journal.place("run")
        async with aclosing(AcmeAdapter.answer(run, turn)) as events:
            async for event in events:
                yield event

    async def model(self, messages: list[sdk.ChatMessage], call: Callable[[], sdk.ModelEvents]) -> sdk.ModelEvents:
        journal = current_journal()
        assert journal is not None
        digest = fingerprint([asdict(message) for message in messages])
        with await journal.begin_model(self.place, names=(self.agent.model,), fingerprint=digest) as step:
            if not step.is_live:
                calls = [sdk.Call(**each) for each in step.result["calls"]]
                reply = sdk.Reply(**step.result | {"calls": calls, "tokens": None})  # Its usage is in the log.
                if not step.is_shown:
                    if reply.text:
                        yield sdk.TextDelta(reply.text)
                    step.show()
                yield reply
                return
            async for event in call():
                yield event
                if isinstance(event, sdk.Reply):  # Its text and its usage are in the log now.
                    step.finish(asdict(event))

    async def tool(self, started: sdk.ToolStarted, run: Callable[[], Awaitable[sdk.ToolEnded]]) -> sdk.ToolEnded:
        journal = current_journal()
        assert journal is not None
        try:
            step = await journal.begin_tool(self.place, started.id, started.name, started.arguments)
        except ToolDeniedError as denied:
            return sdk.ToolEnded(started.id, started.name, None, ToolError(str(denied)))
        with step:
            if not step.is_live:
                error = step.result["error"]
                return sdk.ToolEnded(started.id, started.name, step.result["output"], error and ToolError(error))
            ended = await super().tool(started, run)
            error = ended.error and tool_error_text(started.name, ended.error).removeprefix("Error: ")
            step.finish({"output": loggable(ended.output), "error": error})
            return replace(ended, error=error and ToolError(error))
