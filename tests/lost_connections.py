"""For tests that lose workers in the middle of an SDK's request.

Nobody closes the connections to the model then, and nobody ends the loop of a LlamaIndex run: the garbage collector
finds them, where a real process would be gone.
"""

import gc
import warnings
from collections.abc import Iterator

import pytest

IGNORED = pytest.mark.filterwarnings(
    "ignore:unclosed <socket:ResourceWarning",
    "ignore:unclosed transport:ResourceWarning",
    "ignore:Exception ignored in. <coroutine object BasicRuntime.run_workflow:pytest.PytestUnraisableExceptionWarning",
)


@pytest.fixture(autouse=True)
def lost_connections_are_collected() -> Iterator[None]:
    """Collect them at the end of the test, so that no later test is blamed for them."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    # What is left is in use; the next collection need not look through it again.
    gc.freeze()
