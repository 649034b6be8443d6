"""The plugin `scheduler`."""

from turnwire.plugins import Plugin

plugin = Plugin(
    name="scheduler",
    description="turns at set times",
    settings="turnwire.scheduler.settings:SchedulerSettings",
    service="turnwire.scheduler.service:SchedulerService",
    routes=["turnwire.scheduler.routes:routes"],
    commands="turnwire.scheduler.commands:add_commands",
)
