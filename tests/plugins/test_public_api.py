"""Plugins import the modules of the kernel that the guide lists, and others from a list that may only get shorter."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from turnwire.plugins import GROUPS, installed

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
# Modules that our own plugins import beyond the public ones. A new row needs a reason; better, make what it has public
# in the guide, or move it into its only plugin.
NOT_PUBLIC = {
    "turnwire.agents.chat_completions",
    "turnwire.app",
    "turnwire.assembly",
    "turnwire.cli.embedded",
    "turnwire.core",
    "turnwire.core.log.approvals",
    "turnwire.core.log.history",
    "turnwire.core.log.scope",
    "turnwire.core.log.shared_state",
    "turnwire.core.log.state",
    "turnwire.core.people.fairness",
    "turnwire.core.run.inputs",
    "turnwire.core.run.runner",
    "turnwire.core.sentences",
    "turnwire.extensions.calls",
    "turnwire.extensions.tables",
    "turnwire.models",
    "turnwire.models.chat_completions",
    "turnwire.models.configuration",
    "turnwire.models.openai_client",
    "turnwire.models.openai_shared",
    "turnwire.models.responses",
    "turnwire.reporting.webhooks",
    "turnwire.server.forms",
    "turnwire.server.guard",
    "turnwire.server.guide",
    "turnwire.server.outbound",
    "turnwire.server.streams.connection",
    "turnwire.server.streams.stored_log",
    "turnwire.testing.client",
    "turnwire.testing.evaluation",
    "turnwire.tools.html",
    "turnwire.tools.mcp.transports",
    "turnwire.tools.threads",
}


def public_modules() -> set[str]:
    """Return the modules in the table of the guide."""
    guide = (ROOT / "docs" / "guides" / "plugins.md").read_text()
    section = guide.partition("## What to import\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {module for row in rows for module in re.findall(r"`([\w.]+)`", row)}


def plugin_packages() -> set[str]:
    """Return the packages of our plugins, but for the stores, which are built on the parts that stores share."""
    from importlib.metadata import entry_points

    points = [point for group in GROUPS if group != "turnwire.stores" for point in entry_points(group=group)]
    return {point.module.removesuffix(".plugin") for point in points if point.module.startswith("turnwire.")}


def kernel_imports(package: str) -> Iterator[str]:
    """Yield the modules outside of a plugin's package that its modules import."""
    for path in (SOURCE / Path(*package.split("."))).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            if node.module.split(".")[0] == "turnwire" and not f"{node.module}.".startswith(f"{package}."):
                yield node.module


def test_plugins_import_public_modules_and_a_shrinking_list_of_others() -> None:
    assert len(installed()) > 20
    used = {module for package in plugin_packages() for module in kernel_imports(package)}
    assert used - public_modules() - NOT_PUBLIC == set(), "make these public in docs/guides/plugins.md, or do without"
    assert NOT_PUBLIC - used == set(), "no plugin imports these any more; remove them from the list"
    assert NOT_PUBLIC & public_modules() == set()


def test_public_modules_exist() -> None:
    for module in public_modules():
        path = SOURCE / Path(*module.split("."))
        assert path.with_suffix(".py").exists() or (path / "__init__.py").exists(), module
