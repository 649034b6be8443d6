"""The manifest of the Telegram channel."""

from pathlib import Path

from turnwire.channels.telegram import channel
from turnwire.channels.telegram.channel import TelegramChannel
from turnwire.channels.telegram.config import TelegramConfig
from turnwire.extensions.host import detect
from turnwire.extensions.manifest import read_manifest

MANIFEST = read_manifest(Path(channel.__file__).parent / "manifest.yaml", "telegram")


def test_manifest_provides_what_the_class_provides() -> None:
    assert set(MANIFEST.provides) == detect(TelegramChannel)


def test_manifest_config_equals_the_models_defaults() -> None:
    assert MANIFEST.config == TelegramConfig.model_validate({}).model_dump()
    assert TelegramChannel.ConfigModel is TelegramConfig
