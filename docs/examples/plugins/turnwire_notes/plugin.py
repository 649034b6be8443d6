from turnwire.plugins import Plugin

plugin = Plugin(
    name="notes",
    description="notes of each user",
    service="turnwire_notes.service:NotesService",
    routes=["turnwire_notes.service:routes"],
    commands="turnwire_notes.commands:add_commands",
)
