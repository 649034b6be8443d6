"""The configuration. The defaults here and in `manifest.yaml` are the same."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class TelegramConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    allowed_users: list[int] = []
    """The numeric ids of people, and of groups whose members all have access."""
    pairing: bool = True
    """While nobody has access, log a code with which a person can pair."""
    pairing_minutes: float = Field(15, gt=0, le=1440)
    default_chat: int | str | None = None
    """The recipient of messages without one; by default the first user with access."""
    streaming_enabled: bool = True
    stream_edit_interval_ms: int = Field(1200, ge=250)
    stream_group_edit_interval_ms: int = Field(3500, ge=1000)
    stream_min_chunk_chars: int = Field(30, ge=1)
    transport: Literal["edit", "draft"] = "edit"
    """The display of a growing answer: `edit` edits messages; `draft` uses Telegram's drafts in private chats."""
    polling_timeout: int = Field(30, ge=1, le=50)
    api_url: str = Field("https://api.telegram.org", pattern=r"^https?://\S+$")
    webhook_url: str | None = Field(None, pattern=r"^https?://\S+$")
    """The public URL of the webhook; without it, updates are polled."""
    webhook_host: str = "127.0.0.1"
    webhook_port: int = Field(8443, ge=0, le=65535)
