"""The loader: order, lifecycle, health and failures of extensions."""

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.extensions.harness import BASE, LIMITS, PLAIN, running, write_extension
from tests.serving import PATIENCE, saying, until
from turnwire.extensions.contract import Health
from turnwire.extensions.loader import start_order
from turnwire.extensions.manifest import Manifest

ECHO = saying("hello")


# Order


def order(**depends: list[str]) -> tuple[list[str], dict[str, str]]:
    fields = {"name": "x", "version": "1", "api": "1", "entrypoint": "main:Main"}
    manifests = {
        name: Manifest.model_validate(
            {
                "id": name,
                **fields,
                "depends_on": [id for id in needed if id[0] != "~"],
                "after": [id[1:] for id in needed if id[0] == "~"],
            }
        )
        for name, needed in depends.items()
    }
    return start_order(manifests)


def test_start_order_puts_dependencies_first() -> None:
    assert order(c=["b"], b=["a"], a=[]) == (["a", "b", "c"], {})


def test_start_order_respects_after_where_possible() -> None:
    assert order(a=["~b"], b=[], c=["~nobody"])[0].index("b") < order(a=["~b"], b=[], c=["~nobody"])[0].index("a")
    assert set(order(a=["~b"], b=["a"])[0]) == {"a", "b"}
    assert order(a=["~b"], b=["a"])[1] == {}


def test_dependency_cycle_stops_only_its_members() -> None:
    started, wrong = order(a=["b"], b=["a"], c=[], d=["c"])
    assert set(started) == {"a", "b", "c", "d"}
    assert set(wrong) == {"a", "b"}
    assert "a → b → a" in wrong["a"] or "b → a → b" in wrong["a"]


# Dependencies


async def test_missing_dependency_stops_only_its_dependents(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "lost", depends_on=["nowhere"])
    write_extension(tmp_path / "x", "led_astray", depends_on=["lost"])
    write_extension(tmp_path / "x", "well")
    async with running(tmp_path / "x", ECHO) as kernel:
        assert kernel.states() == {"lost": "failed", "led_astray": "failed", "well": "running"}
        assert "'nowhere'" in kernel["lost"].message
        assert kernel["led_astray"].message == "it depends on 'lost', which failed"


async def test_extension_that_depends_on_an_unconfigured_one_is_unconfigured(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "keyed", secrets=[{"env": "NO_SUCH_KEY"}])
    write_extension(tmp_path / "x", "user", depends_on=["keyed"])
    async with running(tmp_path / "x", ECHO) as kernel:
        assert kernel.states() == {"keyed": "unconfigured", "user": "unconfigured"}


# Failures


PHASES = {
    "import": ("import no_such_module_anywhere", "it cannot be imported: ModuleNotFoundError", "install 'no_such_mod"),
    "syntax": ("class Main(", "it cannot be imported: SyntaxError", "its own code"),
    "exit": ("raise SystemExit(1)", "it cannot be imported: SystemExit", "its own code"),
    "no class": (BASE, "main.py has no class 'Main'", "its own code"),
    "no extension": ("class Main: ...", "Main is not an extension", "an extension has initialize"),
    "constructor": (BASE + "class Main(Base):\n    def __init__(self, token): ...", "Main() failed: TypeError", "argu"),
    "initialize": (
        BASE + "class Main(Base):\n    async def initialize(self, context): raise ValueError('no')",
        "initialize failed: ValueError: no",
        "check its configuration",
    ),
    "start": (
        BASE + "class Main(Base):\n    async def start(self): raise OSError('port taken')",
        "start failed: OSError: port taken",
        "other extensions go on",
    ),
    "start that exits": (
        BASE + "class Main(Base):\n    async def start(self): raise SystemExit(3)",
        "start failed: RuntimeError: tried to exit with 3",
        "other extensions go on",
    ),
    "start that hangs": (
        BASE + "class Main(Base):\n    async def start(self): await asyncio.Event().wait()",
        "start failed: TimeoutError: it took longer than 1 s",
        "other extensions go on",
    ),
    "start that will not let go": (
        BASE
        + """
class Main(Base):
    async def start(self):
        for _ in range(2):
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                pass
""",
        "start failed: TimeoutError",
        "other extensions go on",
    ),
    "tools": (
        BASE + "class Main(Base):\n    def get_tools(self): raise KeyError('x')",
        "what it provides cannot be used: KeyError",
        "its own code",
    ),
}


@pytest.mark.parametrize("phase", PHASES)
async def test_failing_extension_has_a_hint_and_others_run(phase: str, tmp_path: Path) -> None:
    code, message, hint = PHASES[phase]
    write_extension(tmp_path / "x", "bad", code)
    write_extension(tmp_path / "x", "good", PLAIN)
    async with running(tmp_path / "x", ECHO) as kernel:
        assert kernel.states() == {"bad": "failed", "good": "running"}
        assert message in kernel["bad"].message
        assert hint in kernel["bad"].hint
        assert await kernel.say("good") == "hello"


@pytest.mark.parametrize("phase", ["stop", "destroy"])
@pytest.mark.parametrize("how", ["raise ValueError('no')", "await asyncio.Event().wait()"])
async def test_extension_that_fails_to_stop_does_not_block_shutdown(
    phase: str, how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_extension(tmp_path / "x", "bad", BASE + f"class Main(Base):\n    async def {phase}(self): {how}")
    write_extension(tmp_path / "x", "good", BASE + "class Main(Base):\n    async def stop(self): self.calls.append(1)")
    async with asyncio.timeout(PATIENCE):
        async with running(tmp_path / "x", ECHO) as kernel:
            good = kernel.extension("good")
    assert good.calls == [1]
    assert kernel.states() == {"bad": "stopped", "good": "stopped"}
    assert f"{phase} failed" in kernel["bad"].message
    assert any(f"{phase} failed" in record.getMessage() for record in caplog.records)


async def test_invalid_manifest_is_reported_and_no_code_runs(tmp_path: Path) -> None:
    trap = f"open({str(tmp_path / 'sprung')!r}, 'w').close()"
    write_extension(tmp_path / "x", "bad", trap, api="7")
    write_extension(tmp_path / "x", "needy", depends_on=["bad"])
    write_extension(tmp_path / "x", "good")
    async with running(tmp_path / "x", ECHO) as kernel:
        assert kernel.states() == {"bad": "failed", "needy": "failed", "good": "running"}
        assert "api: is '7'" in kernel["bad"].message
    assert not (tmp_path / "sprung").exists()


async def test_false_provides_fails_the_extension(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "boastful", PLAIN, provides=["channel", "streaming_channel"])
    async with running(tmp_path / "x", ECHO) as kernel:
        assert kernel["boastful"].state == "failed"
        assert "streaming_channel" in kernel["boastful"].message


async def test_almost_streaming_channel_runs_as_a_channel_with_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_extension(tmp_path / "x", "almost", PLAIN + "\n    async def on_stream_start(self, user_id): ...\n")
    async with running(tmp_path / "x", ECHO) as kernel:
        assert await kernel.say("almost") == "hello"
        assert kernel.calls("almost") == [("send", "ann", "hello")]
        assert "not used as a StreamingChannelProvider: it has no on_stream_chunk" in kernel["almost"].notes[0]
    assert any("not used as a StreamingChannelProvider" in record.getMessage() for record in caplog.records)


# What is needed


async def test_missing_requirement_is_reported(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "needy", requires=["no-such-package-at-all>=2", "msgspec>=0.1"])
    write_extension(tmp_path / "x", "newer", requires=["msgspec>=1000"])
    write_extension(tmp_path / "x", "odd", requires=["what is this"])
    write_extension(tmp_path / "x", "fine", requires=["msgspec", 'nowhere; python_version < "3"'])
    async with running(tmp_path / "x", ECHO) as kernel:
        assert kernel.states() == {"needy": "failed", "newer": "failed", "odd": "failed", "fine": "running"}
        assert kernel["needy"].hint == "pip install 'no-such-package-at-all>=2'"
        assert kernel["newer"].hint == "pip install 'msgspec>=1000'"


async def test_extension_is_enabled_when_its_secrets_are_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = {"env": "KV_TOKEN", "description": "Ask Ann.", "url": "https://example.org/token"}
    write_extension(tmp_path / "x", "kv", secrets=[secret, {"env": "KV_EXTRA", "required": False}])
    monkeypatch.setenv("KV_TOKEN", "")  # An empty secret counts as missing.
    async with running(tmp_path / "x", ECHO) as kernel:
        assert kernel["kv"].state == "unconfigured"
        assert kernel["kv"].hint == "set KV_TOKEN. Ask Ann. https://example.org/token"
    monkeypatch.setenv("KV_TOKEN", "s3cret")
    async with running(tmp_path / "x", ECHO) as kernel:
        assert kernel["kv"].state == "running"
        context = kernel.extension("kv").context
        assert (context.get_secret("KV_TOKEN"), context.get_secret("KV_EXTRA")) == ("s3cret", None)
        with pytest.raises(LookupError, match="names no secret 'PATH'"):
            context.get_secret("PATH")


async def test_extension_is_switched_off_and_on_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_extension(tmp_path / "x", "off", enabled=False)
    write_extension(tmp_path / "x", "on")
    async with running(tmp_path / "x", ECHO) as kernel:
        assert kernel.states() == {"off": "discovered", "on": "running"}
        assert kernel["off"].hint == "set TURNWIRE_EXTENSION_OFF_ENABLED=true to use it"
    monkeypatch.setenv("TURNWIRE_EXTENSION_OFF_ENABLED", "true")
    monkeypatch.setenv("TURNWIRE_EXTENSION_ON_ENABLED", "false")
    async with running(tmp_path / "x", ECHO) as kernel:
        assert kernel.states() == {"off": "running", "on": "discovered"}


async def test_invalid_configuration_fails_only_its_extension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from pydantic import BaseModel\n" + BASE + "class Main(Base):\n    class ConfigModel(BaseModel): n: int = 1"
    write_extension(tmp_path / "x", "kv", code)
    write_extension(tmp_path / "x", "other")
    monkeypatch.setenv("TURNWIRE_EXTENSION_KV_N", "many")
    async with running(tmp_path / "x", ECHO) as kernel:
        assert kernel.states() == {"kv": "failed", "other": "running"}
    monkeypatch.setenv("TURNWIRE_EXTENSION_KV_N", "7")
    async with running(tmp_path / "x", ECHO) as kernel:
        assert kernel.extension("kv").context.config == {"n": 7}
        with pytest.raises(TypeError):
            kernel.extension("kv").context.config["n"] = 8


# Where they are


async def test_modules_of_a_folder_import_each_other_without_sys_path(tmp_path: Path) -> None:
    extension = write_extension(tmp_path / "x", "pair", "from .part import Main")
    (extension / "part.py").write_text(BASE + "from . import deep\nclass Main(Base):\n    word = deep.WORD")
    (extension / "deep").mkdir()
    (extension / "deep" / "__init__.py").write_text("from ..part import Base\nWORD = 'deep'")
    (extension / "__init__.py").write_text("")
    before = list(sys.path)
    async with running(tmp_path / "x", ECHO) as kernel:
        assert kernel["pair"].state == "running", kernel["pair"].message
        assert kernel.extension("pair").word == "deep"
        assert type(kernel.extension("pair")).__module__ == "turnwire_ext.pair.part"
    assert sys.path == before
    assert "main" not in sys.modules


async def test_folder_of_one_extension_is_accepted(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "one")
    write_extension(tmp_path / "x", "two")
    async with running(tmp_path / "x" / "one", ECHO) as kernel:
        assert kernel.states() == {"one": "running"}


async def test_configured_folder_wins_over_the_user_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = tmp_path / "config" / "turnwire" / "extensions"
    write_extension(own, "mine")
    write_extension(own, "twice", version="own")
    write_extension(own, "telegram", BASE + "class Main(Base): ...", version="own")
    write_extension(tmp_path / "x", "twice", version="given")
    async with running(tmp_path / "x", ECHO) as kernel:
        assert kernel["mine"].state == "running"
        assert kernel["twice"].manifest.version == "given"
        assert kernel["telegram"].manifest.version == "own"
    record = [record.getMessage() for record in caplog.records if "is hidden by" in record.getMessage()]
    assert [line for line in record if "'twice'" in line]
    assert [line for line in record if "'telegram'" in line and "Turnwire" in line]


# While they run


SERVICE = (
    BASE
    + """
class Main(Base):
    runs = 0
    async def run_background(self):
        Main.runs += 1
        if Main.runs < {healed_at}:
            raise OSError("lost")
        await asyncio.Event().wait()
"""
)


async def test_failing_service_is_restarted(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "service", SERVICE.format(healed_at=4))
    async with running(tmp_path / "x", ECHO) as kernel:
        await until(lambda: kernel.extension("service").runs == 4)
        await until(lambda: kernel["service"].state == "running")


async def test_service_that_keeps_failing_fails_its_extension(tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "service", SERVICE.format(healed_at=10_000))
    async with running(tmp_path / "x", ECHO) as kernel:
        await until(lambda: kernel["service"].state == "failed")
        assert "run_background failed: OSError: lost" in kernel["service"].message
        assert kernel.extension("service").runs == 8
        await kernel.runtime.loader.check_all()
        assert kernel["service"].state == "failed"


async def test_service_waits_for_a_failing_store_as_long_as_it_takes(tmp_path: Path) -> None:
    code = SERVICE.format(healed_at=12).replace("OSError", "StoreError")
    write_extension(tmp_path / "x", "service", f"from turnwire.core.errors import StoreError\n{code}")
    async with running(tmp_path / "x", ECHO) as kernel:
        await until(lambda: kernel.extension("service").runs == 12)
        await until(lambda: kernel["service"].state == "running")


async def test_service_is_cancelled_before_its_extension_stops(tmp_path: Path) -> None:
    code = (
        BASE
        + """
class Main(Base):
    async def run_background(self):
        self.calls.append("service begins")
        try:
            await asyncio.Event().wait()
        finally:
            self.calls.append("service ends")
    async def stop(self): self.calls.append("stop")
    async def destroy(self): self.calls.append("destroy")
"""
    )
    write_extension(tmp_path / "x", "service", code)
    async with running(tmp_path / "x", ECHO) as kernel:
        extension = kernel.extension("service")
        await until(lambda: extension.calls == ["service begins"])
    assert extension.calls == ["service begins", "service ends", "stop", "destroy"]


async def test_extensions_stop_in_reverse_order(tmp_path: Path) -> None:
    stopped: list[str] = []

    class StopRecorder:
        def __init__(self, name: str) -> None:
            self.name = name

        async def initialize(self, context: Any) -> None: ...
        async def start(self) -> None: ...
        async def stop(self) -> None:
            stopped.append(self.name)

        async def destroy(self) -> None: ...
        async def health_check(self) -> Health:
            return Health("running")

    (tmp_path / "x").mkdir()
    async with running(tmp_path / "x", ECHO, attach={"a": StopRecorder("a"), "b": StopRecorder("b")}) as kernel:
        assert kernel.states() == {"a": "running", "b": "running"}
    assert stopped == ["b", "a"]


@pytest.mark.parametrize(
    ("answer", "state", "message"),
    [
        ("return Health('degraded', 'slow', 'wait')", "degraded", "slow"),
        ("return Health('failed', 'broken')", "failed", "broken"),
        ("return True", "degraded", "health_check returned bool"),
        ("raise OSError('gone')", "degraded", "health_check failed: OSError: gone"),
        ("await asyncio.Event().wait()", "degraded", "health_check failed: TimeoutError"),
    ],
)
async def test_health_check_sets_the_state(answer: str, state: str, message: str, tmp_path: Path) -> None:
    write_extension(tmp_path / "x", "ill", BASE + f"class Main(Base):\n    async def health_check(self): {answer}")
    async with running(tmp_path / "x", ECHO) as kernel:
        assert kernel["ill"].state == state
        assert message in kernel["ill"].message


async def test_health_check_is_repeated(tmp_path: Path) -> None:
    code = (
        BASE
        + """
class Main(Base):
    async def health_check(self):
        self.calls.append(1)
        return Health("running")
"""
    )
    write_extension(tmp_path / "x", "one", code)
    async with running(tmp_path / "x", ECHO, limits=replace(LIMITS, health_interval=0.01)) as kernel:
        await until(lambda: len(kernel.extension("one").calls) >= 3)


async def test_failure_is_logged_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_extension(tmp_path / "x", "bad", "import no_such_module_anywhere")
    async with running(tmp_path / "x", ECHO):
        pass
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.getMessage().startswith("extension 'bad': failed: it cannot be imported: ModuleNotFoundError")
    assert record.exc_info is None
