"""What can be configured; the values here and in `manifest.yaml` are the same."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class TelegramConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    allowed_users: list[int] = []
    """People, and groups of which everybody may ask, by their numeric ids."""
    pairing: bool = True
    """Whether, while nobody may ask, the server's log shows a code with which somebody can pair."""
    pairing_minutes: float = Field(15, gt=0, le=1440)
    default_chat: int | str | None = None
    """Where messages go that are for nobody in particular; by default to the first who may ask."""
    streaming_enabled: bool = True
    stream_edit_interval_ms: int = Field(1200, ge=250)
    stream_group_edit_interval_ms: int = Field(3500, ge=1000)
    stream_min_chunk_chars: int = Field(30, ge=1)
    transport: Literal["edit", "draft"] = "edit"
    """How answers grow: `edit` everywhere; `draft` with Telegram's own drafts, in private chats."""
    polling_timeout: int = Field(30, ge=1, le=50)
    api_url: str = Field("https://api.telegram.org", pattern=r"^https?://\S+$")
    webhook_url: str | None = Field(None, pattern=r"^https?://\S+$")
    """Where Telegram reaches this server; without it, updates are polled."""
    webhook_host: str = "127.0.0.1"
    webhook_port: int = Field(8443, ge=0, le=65535)
