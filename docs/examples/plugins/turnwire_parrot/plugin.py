from turnwire.plugins import AgentKind, Plugin

plugin = Plugin(
    name="parrot",
    description="agents of Parrot",
    kinds=[
        AgentKind(
            description="a bird of Parrot",
            classes=frozenset({("parrot_sdk", "Bird")}),
            adapter="turnwire_parrot.agent:ParrotAgent",
        )
    ],
)
