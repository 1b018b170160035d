"""Shared by both commands of the benchmark: their broker's size, and how they end."""

from __future__ import annotations

import asyncio
import signal
from typing import Final

__all__ = ["HEAP", "INTERRUPTED", "TIMEOUT", "end_on_sigterm"]

HEAP: Final = "1g"
"""Heap of the broker."""
TIMEOUT: Final = 60.0
"""Seconds for a request of the admin client; one measurement has 500 partitions."""
INTERRUPTED: Final = 130  # 128 + SIGINT, as shells count


def end_on_sigterm() -> None:
    """Let SIGTERM cancel the calling task."""
    task = asyncio.current_task()
    assert task is not None  # called in a task
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
