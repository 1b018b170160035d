"""Cancelled metadata requests, as when a client stops: they leave no task and delay nothing."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

import pytest

from aioparallel.clients.aiokafka import first_answer, metadata_updates
from aioparallel.clients.aiokafka.bootstrapping import Bootstrap
from aioparallel.clients.aiokafka.metadata_updates import MetadataUpdates
from tests.support.waiting import until


class Silent:
    """A cluster of two brokers, and configured addresses, that do not answer and are slow to be cancelled."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.cluster = self
        self._conns: dict[object, object] = {}
        self.is_resting = False

    def update_metadata(self, metadata: object) -> None:
        raise AssertionError("nobody answers")

    async def ask(self, *what: object) -> None:
        self.asked.append(what)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)


@pytest.mark.parametrize("asked", [1, 2, 3], ids=["one broker", "both brokers", "the configured addresses"])
async def test_a_cancelled_update_leaves_no_task(asked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No task is pending after it, so closing the loop reports none."""
    monkeypatch.setattr(first_answer, "NEXT", 0.05)
    monkeypatch.setattr(metadata_updates, "_KNOWN_FIRST", 0.1)
    silent, before = Silent(), asyncio.all_tasks()
    updates = MetadataUpdates(
        cast("Any", silent), cast("Bootstrap", silent), cast("Any", None), lambda: [1, 2], silent.ask, 300.0, print
    )
    updating = asyncio.create_task(updates.update(cast("Any", silent), ["topic"]))
    await until(lambda: len(silent.asked) == asked, what="the question")
    updating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await updating
    assert asyncio.all_tasks() == before


async def test_one_that_lets_no_cancellation_pass_holds_up_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A login may run user code that suppresses the cancellation. It ends later."""
    monkeypatch.setattr(first_answer, "NEXT", 0.01)
    monkeypatch.setattr(first_answer, "_CANCEL_TIMEOUT", 0.05)
    go_on, before = asyncio.Event(), asyncio.all_tasks()

    async def ask(node: str) -> str | None:
        while node == "stubborn" and not go_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go_on.wait()
        return node

    async with asyncio.timeout(10):
        assert await first_answer.first_answer(["stubborn", "quick"], ask) == "quick"
    go_on.set()
    await until(lambda: asyncio.all_tasks() == before, what="the end of the other")
