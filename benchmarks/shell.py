"""What both commands of the benchmark share: their broker's size, and how they end."""

from __future__ import annotations

import asyncio
import signal
from typing import Final

__all__ = ["HEAP", "INTERRUPTED", "TIMEOUT", "end_on_sigterm"]

HEAP: Final = "1g"
"""Of the broker."""
TIMEOUT: Final = 60.0
"""Seconds for a request of the admin client; one of the measurements has 500 partitions."""
INTERRUPTED: Final = 130  # 128 + SIGINT, as shells count


def end_on_sigterm() -> None:
    """SIGTERM cancels the task that calls this."""
    task = asyncio.current_task()
    assert task is not None  # a coroutine that runs has one
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
