"""The manifest of the Telegram channel."""

from pathlib import Path

from turnwire.channels.telegram import channel
from turnwire.channels.telegram.channel import TelegramChannel
from turnwire.channels.telegram.config import TelegramConfig
from turnwire.extensions.host import check_provides, detect
from turnwire.extensions.manifest import read_manifest

MANIFEST = read_manifest(Path(channel.__file__).parent / "manifest.yaml", "telegram")


def test_manifest_provides_what_the_class_provides() -> None:
    detected = detect(TelegramChannel)
    assert detected.problems == ()
    assert check_provides(MANIFEST.provides, detected) is None
    assert set(MANIFEST.provides) == detected.provides


def test_manifest_config_equals_the_models_defaults() -> None:
    assert MANIFEST.config == TelegramConfig.model_validate({}).model_dump()
    assert TelegramChannel.ConfigModel is TelegramConfig
