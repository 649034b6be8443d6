"""The settings of the scheduler."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from turnwire.settings import PluginSettings


class ScheduleSettings(BaseModel):
    """A message and the times at which it is sent. Give `cron`, or `every` in seconds."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    message: str = Field(min_length=1)
    cron: str | None = None
    every: int | None = None
    timezone: str = "UTC"
    agent: str | None = None
    channel: str | None = None
    user_id: str | None = None
    missed: Literal["run_once", "skip"] = "run_once"


class SchedulerSettings(PluginSettings, env_prefix="TURNWIRE_SCHEDULER_"):
    schedules: dict[str, ScheduleSettings] = Field(
        default={}, description="Messages that are sent at set times, by name; they belong to the local user."
    )
    follow_ups: bool = Field(
        default=False,
        description="Whether our own agents may schedule a message to themselves, by a tool that needs approval.",
    )
