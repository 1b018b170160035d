"""Event loops that start tasks eagerly, as Python can from 3.12 on and a task factory can before."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from aioparallel import ParallelConsumer
from aioparallel.clients.aiokafka.eager_tasks import refuse_eager_tasks
from aioparallel.records.errors import ClientError


class Begun(asyncio.Future[None]):
    """The task of a coroutine that has ended within the call that created it."""


def eager(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **_: object) -> Any:
    """Behaves like ``asyncio.eager_task_factory`` for a coroutine that does not suspend."""
    task = Begun(loop=loop)
    try:
        work.send(None)
    except StopIteration:
        task.set_result(None)
    return task


def plain(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
    """A factory that starts nothing."""
    return asyncio.Task(work, loop=loop, **options)


async def test_it_is_refused_in_words() -> None:
    """Before any connection is opened."""
    loop = asyncio.get_running_loop()
    factory: Any = vars(asyncio).get("eager_task_factory", eager)
    loop.set_task_factory(factory)
    try:
        with pytest.raises(ClientError, match="starts tasks eagerly"):
            refuse_eager_tasks()
    finally:
        loop.set_task_factory(None)


@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="from Python 3.12 on")
async def test_a_consumer_raises_it_at_once() -> None:
    """At once, and not after ``connect_timeout``."""
    loop = asyncio.get_running_loop()
    loop.set_task_factory(vars(asyncio)["eager_task_factory"])
    try:
        async with asyncio.timeout(10):
            with pytest.raises(ClientError, match="starts tasks eagerly"):
                await ParallelConsumer("t", bootstrap_servers="127.0.0.1:1", group_id="g").__aenter__()
    finally:
        loop.set_task_factory(None)


async def test_other_factories_are_left_alone() -> None:
    """One that names tasks, say."""
    loop = asyncio.get_running_loop()
    refuse_eager_tasks()
    factory: Any = plain
    loop.set_task_factory(factory)
    try:
        refuse_eager_tasks()
        await asyncio.sleep(0)
    finally:
        loop.set_task_factory(None)
