"""The model that the settings name."""

from turnwire.models.contract import Model
from turnwire.models.openai_client import OpenAIModel
from turnwire.settings import Settings


def build_model(settings: Settings) -> Model | None:
    """Return the model of the settings; None if there is none. Raises ModelUnusableError."""
    if not settings.model:
        return None
    return OpenAIModel(
        settings.model,
        base_url=settings.model_url,
        api_key=settings.model_key.get_secret_value() if settings.model_key else None,
        api=settings.model_api,
        timeout=settings.model_timeout,
    )
