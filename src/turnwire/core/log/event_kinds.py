"""The kinds of events by who writes them: Turnwire, the turn's own agent, or the code of its tools."""

from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    DoneEvent,
    ErrorEvent,
    HandoffEvent,
    InputEvent,
    MessageEvent,
    QuestionEvent,
    ReasoningEvent,
    ReplyEvent,
    ResponseEvent,
    RestartEvent,
    SessionEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)

RESERVED = (SessionEvent, MessageEvent, InputEvent, QuestionEvent, ReplyEvent, DoneEvent)
"""The user's messages, questions to the user, and the first and last events of a log: an agent must not yield them."""

_APPROVALS = (ApprovalRequestEvent, ApprovalResponseEvent)

NOT_EMITTED = (*RESERVED, *_APPROVALS, ResponseEvent)
"""Events that a tool must not emit."""

WRITTEN_BY_TURNWIRE = (*RESERVED, *_APPROVALS, ResponseEvent, ErrorEvent, RestartEvent)
"""Events that Turnwire writes at their place in the log, also if an agent yields or asks for them."""

NOT_COMPARED = (*WRITTEN_BY_TURNWIRE, TokenEvent, ReasoningEvent)
"""Events of a continued agent that are not looked for in the log: it does not yield them, or its journal decides
whether they are written again."""

NO_OUTPUTS = (*WRITTEN_BY_TURNWIRE, UsageEvent)
"""Events that no tool call emits, or that no restart makes void."""

TOOL_STEPS = (ToolCallEvent, ToolResultEvent)
"""Events that the agent itself writes, also while a tool runs."""

OWN = (*TOOL_STEPS, TokenEvent, ReasoningEvent, HandoffEvent)
"""Events that, without a sub-agent's path, come from the turn's own agent, and not from a tool."""
