"""An adapter for the agents of Acme, a made-up SDK. Copy it, and replace what is Acme's with your SDK's."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing

import acme_sdk as sdk
from openai import OpenAIError

from turnwire import AgentError, Event, Message, ReasoningEvent, ToolCallEvent, ToolResultEvent, Turn, UsageEvent
from turnwire.models.errors import explain, unfinished
from turnwire.tools.invocation import loggable, running_call, tool_error_text


class AcmeAdapter(sdk.Middleware):
    def __init__(self, agent: sdk.AcmeAgent) -> None:
        self.agent = agent
        self.takes_model_options = False  # The SDK's agent has no place for them, so they are refused.

    async def answer(self, turn: Turn) -> AsyncIterator[Event | str]:
        messages = [sdk_message(each) for each in (*turn.history, Message("user", turn.message))]
        separator = ""
        try:
            async with aclosing(self.agent.stream(messages, self)) as events:
                async for event in events:
                    for ours in self.convert(event):
                        if isinstance(ours, str):
                            ours, separator = separator + ours, ""
                        yield ours
                    if isinstance(event, sdk.Reply) and event.text:
                        separator = "\n\n"  # Text before and after tools are paragraphs of one answer.
        except sdk.TooManyRounds as error:
            raise AgentError("the agent reached its step limit; send a smaller request", code="max_turns") from error
        except (OpenAIError, ValueError) as error:
            raise explain(error, self.agent.model) from error

    def convert(self, event: sdk.AcmeEvent) -> list[Event | str]:
        match event:
            case sdk.TextDelta(text=text):
                return [text]
            case sdk.ThoughtDelta(text=text):
                return [ReasoningEvent(text)]
            case sdk.ToolStarted(id=call_id, name=name, arguments=arguments):
                return [ToolCallEvent(call_id, name, arguments)]
            case sdk.ToolEnded(id=call_id, name=name, error=error):
                result = tool_error_text(name, error) if error else loggable(event.output)
                return [ToolResultEvent(call_id, name, not error, result, event.ms)]
            case sdk.Reply(finish_reason=reason, tokens=tokens):
                if reason not in ("stop", "tool_calls"):
                    raise unfinished(reason)  # The tools of half an answer must not run.
                return [UsageEvent(self.agent.model, *tokens)] if tokens else []

    async def tool(self, started: sdk.ToolStarted, run: Callable[[], Awaitable[sdk.ToolEnded]]) -> sdk.ToolEnded:
        with running_call(started.id):  # The call that `progress()` in the tool belongs to.
            return await run()


def sdk_message(message: Message) -> sdk.ChatMessage:
    calls = [sdk.Call(call.call_id, call.tool, json.dumps(call.args)) for call in message.tool_calls]
    return sdk.ChatMessage(message.role, message.content, calls, message.call_id)
