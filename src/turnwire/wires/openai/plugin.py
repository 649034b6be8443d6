"""The plugin `openai`."""

from turnwire.plugins import Plugin

plugin = Plugin(
    name="openai",
    description="OpenAI's Chat Completions and Responses APIs",
    routes=["turnwire.wires.openai.responses.routes:routes", "turnwire.wires.openai.chat.routes:routes"],
    wires={
        "openai_chat": "turnwire.wires.openai.chat.encoder:OpenAIChat.of_query",
        "openai_responses": "turnwire.wires.openai.responses.encoder:OpenAIResponses.of_query",
    },
    settings="turnwire.wires.openai.settings:OpenAISettings",
)
