"""The plugin `claude`."""

from turnwire.plugins import AgentKind, Plugin

plugin = Plugin(
    name="claude",
    description="agents of the Claude Agent SDK",
    extra="turnwire[claude]",
    kinds=[
        AgentKind(
            description="the options of an agent of the Claude Agent SDK",
            classes=frozenset({("claude_agent_sdk", "ClaudeAgentOptions")}),
            adapter="turnwire.agents.claude:ClaudeAgent",
        )
    ],
)
