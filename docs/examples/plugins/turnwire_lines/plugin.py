from turnwire.plugins import Plugin

plugin = Plugin(
    name="lines",
    description="one line of JSON for each piece of the answer",
    routes=["turnwire_lines.routes:routes"],
    wires={"lines": "turnwire_lines.encoder:Lines.of_query"},
    settings="turnwire_lines.settings:LinesSettings",
)
