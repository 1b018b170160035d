"""Detects event loops that start tasks eagerly (``asyncio.eager_task_factory``, Python 3.12 and newer)."""

from __future__ import annotations

import asyncio

from aioparallel.records.errors import ClientError

__all__ = ["refuse_eager_tasks"]


def refuse_eager_tasks() -> None:
    """Raise ClientError in such a loop: aiokafka's constructors create tasks that must not run before they return."""
    has_begun = False

    async def begin() -> None:
        nonlocal has_begun
        has_begun = True

    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is None:
        return
    task = loop.create_task(begin())
    if has_begun:
        raise ClientError(
            "the event loop starts tasks eagerly (asyncio.eager_task_factory), which aiokafka does not support: do not "
            "set that task factory in the loop that runs Kafka clients, or run them in a loop of their own"
        )
    task.cancel()
