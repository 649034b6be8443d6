"""The plugin `three_phase_text`."""

from turnwire.plugins import Plugin

plugin = Plugin(
    name="three_phase_text",
    description="status lines, answer and a JSON trailer in one text",
    routes=["turnwire.wires.three_phase_text.routes:routes"],
    wires={"three_phase_text": "turnwire.wires.three_phase_text.encoder:ThreePhaseText.of_query"},
)
