"""The event loop of each test: real, or with a simulated clock."""

from typing import Any

import pytest

from tests.simulated_time import loop_factories


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Any]:
    return loop_factories(item)
