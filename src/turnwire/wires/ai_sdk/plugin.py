"""The plugin `ai_sdk`."""

from turnwire.plugins import Plugin

plugin = Plugin(
    name="ai_sdk",
    description="the UI message stream of Vercel's AI SDK",
    routes=["turnwire.wires.ai_sdk.routes:routes"],
    wires={"ai_sdk": "turnwire.wires.ai_sdk.encoder:AiSdk.of_query"},
    settings="turnwire.wires.ai_sdk.settings:AiSdkSettings",
)
