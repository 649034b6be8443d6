"""The request body of the `/v1/rag` routes."""

from pydantic import AliasChoices, ConfigDict, Field

from turnwire.server.messages import MessageBody


class RagMessageBody(MessageBody):
    """A message on the `/v1/rag` routes, which have the session in the path and older names for two fields."""

    model_config = ConfigDict(title="RagMessage")

    message: str = Field(
        validation_alias=AliasChoices("message", "prompt"),
        description="The text to answer; or `prompt`.",
        json_schema_extra={"minLength": 1},
    )
    review: bool | None = Field(
        None,
        validation_alias=AliasChoices("review", "review_enabled"),
        description="Whether evidence is reviewed, for agents that do; or `review_enabled`.",
    )
