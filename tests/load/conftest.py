"""What the load tests share: they say what they measured, even when they pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Writes a line with figures to the terminal at once, although pytest captures."""
    terminal = request.config.pluginmanager.get_plugin("terminalreporter")
    capture = request.config.pluginmanager.get_plugin("capturemanager")

    def write(text: str) -> None:
        if terminal is not None and capture is not None:
            with capture.global_and_fixture_disabled():
                terminal.write_line(f"\n  {request.node.name}: {text}")

    return write
