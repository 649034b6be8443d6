"""Manifests: errors name the file and the field, and never repeat a secret."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ConfigDict

from turnwire.extensions.host import Overrides
from turnwire.extensions.manifest import Manifest, ManifestError, read_manifest

SMALLEST = {"id": "kv", "name": "KV", "version": "1.0", "api": "1", "entrypoint": "main:Main"}


def read(folder: Path, text: str | None = None, **fields: Any) -> Manifest:
    path = folder / "manifest.yaml"
    path.write_text(text if text is not None else yaml.safe_dump({**SMALLEST, **fields}))
    return read_manifest(path, "kv")


def test_minimal_manifest_is_valid(tmp_path: Path) -> None:
    manifest = read(tmp_path)
    assert (manifest.id, manifest.enabled, manifest.config, manifest.depends_on) == ("kv", "auto", {}, ())


def test_all_manifest_fields_are_read(tmp_path: Path) -> None:
    manifest = read(
        tmp_path,
        description="Keeps things",
        depends_on=["disk"],
        after=["memory"],
        requires=["httpx>=0.27"],
        provides=["tools", "streaming_channel", "channel"],
        secrets=[{"env": "KV_TOKEN", "required": False, "description": "ask Ann", "url": "https://example.org"}],
        config={"streaming_enabled": False, "stream_edit_interval_ms": 500, "stream_min_chunk_chars": 20},
        enabled=False,
    )
    assert manifest.secrets[0].env == "KV_TOKEN"
    assert manifest.config["stream_edit_interval_ms"] == 500


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"id": "Key Value"}, "id: use lower-case letters, digits and _"),
        ({"depends_on": ["extension"]}, "depends_on.0: this name is reserved"),
        ({"id": "other"}, "id: is 'other', but it is found as 'kv'"),
        ({"api": "2"}, "api: is '2', and this Turnwire supports '1' only"),
        ({"entrypoint": "main"}, "entrypoint: write module:Class"),
        ({"entrypoint": "../evil:Main"}, "entrypoint: write module:Class"),
        ({"provides": ["streams"]}, "provides.0: there is no 'streams'; there is channel"),
        ({"depends_on": "disk"}, "depends_on: "),
        ({"colour": "red"}, "colour: there is no such field"),
        ({"version": 0.1}, "version: must be a text; put it in quotes"),
        ({"name": None}, "name: must be a text"),
        ({"enabled": "perhaps"}, "enabled"),
        ({"secrets": [{"environment": "X"}]}, "secrets.0.env: is missing"),
    ],
)
def test_invalid_field_is_reported_with_its_file(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError) as refused:
        read(tmp_path, **fields)
    assert str(tmp_path / "manifest.yaml") in str(refused.value)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "secret",
    [
        "123456789:AAF-abcdefghijklmnop",
        "sk-proj-abcdef",
        "AKIAIOSFODNN7EXAMPLE",
        "hunter2",
        "ghp_16C7e42F292c",
    ],
)
def test_secret_in_place_of_a_variable_name_is_refused_and_not_repeated(tmp_path: Path, secret: str) -> None:
    with pytest.raises(ManifestError, match="never a secret") as refused:
        read(tmp_path, secrets=[{"env": secret}])
    assert secret not in str(refused.value)
    assert secret not in repr(refused.value)


@pytest.mark.parametrize("text", ["id: [", "- a list", "", "!!python/object/apply:os.system ['true']", "\x00"])
def test_file_that_is_no_manifest_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ManifestError):
        read(tmp_path, text)


def test_huge_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="64 KiB"):
        read(tmp_path, "x: " + "y" * 70_000)


# Configuration


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid")

    interval: float = 1.0
    greeting: str = "hello"
    users: list[int] = []


def configured(model: type[BaseModel] | None = Model, config: dict[str, Any] | None = None, **environment: str) -> Any:
    manifest = Manifest.model_validate({**SMALLEST, "config": config or {}})
    return Overrides(
        manifest, {f"TURNWIRE_EXTENSION_KV_{name}": value for name, value in environment.items()}
    ).configure(model)


def test_environment_overrides_the_manifest_and_both_are_validated() -> None:
    config, unknown = configured(config={"interval": 2}, USERS="[1, 2]", GREETING="yes")
    assert config == {"interval": 2.0, "greeting": "yes", "users": [1, 2]}
    assert unknown == []


def test_values_without_a_config_model_are_read_as_yaml() -> None:
    config, _ = configured(None, {"on": True, "n": 1, "name": "x"}, ON="false", N="2", NAME="3")
    assert config == {"on": False, "n": 2, "name": "3"}


def test_numbers_with_a_colon_are_text(tmp_path: Path) -> None:
    config, _ = configured(None, {"chat": None, "at": None, "ratio": 1}, CHAT="-1001:42", AT="12:30:15.5", RATIO="1.5")
    assert config == {"chat": "-1001:42", "at": "12:30:15.5", "ratio": 1.5}
    path = tmp_path / "manifest.yaml"
    path.write_text("id: kv\nname: KV\nversion: 1\napi: 1\nentrypoint: main:KV\nconfig: {chat: -1001:42, n: 7}\n")
    assert read_manifest(path, "kv").config == {"chat": "-1001:42", "n": 7}


def test_unknown_variable_is_reported() -> None:
    assert configured(INTERVALL="3")[1] == ["TURNWIRE_EXTENSION_KV_INTERVALL"]


@pytest.mark.parametrize("environment", [{"INTERVAL": "often"}, {"USERS": "[1"}, {"USERS": "ann"}])
def test_invalid_value_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(ManifestError):
        configured(Model, None, **environment)


def test_invalid_default_is_refused() -> None:
    with pytest.raises(ManifestError, match="config of 'kv': speed: there is no such field"):
        configured(config={"speed": 1})
