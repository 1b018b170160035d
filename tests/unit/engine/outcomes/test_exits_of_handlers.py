"""Handlers that raise what ends a process: the log names the record, and the run ends with it."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

import pytest

from aioparallel import FailurePolicy, Record, RetryPolicy, in_threads
from aioparallel.handlers.batches import Batch, batches
from aioparallel.testing.memory import InMemoryBroker
from tests.support.memory.consuming import committed, consumer_of, produce


class NoException(BaseException):
    """Something that catches everything made it."""

    def __repr__(self) -> str:
        raise ValueError("a text that cannot be made")


async def exits(record: Record) -> None:
    if record.offset == 1:
        argparse.ArgumentParser(prog="handler").parse_args(["--unknown"])


def exits_in_a_thread(record: Record) -> None:
    if record.offset == 1:
        sys.exit(2)


async def exits_in_a_batch(batch: Batch[Record]) -> None:
    if any(record.offset == 1 for record in batch):
        sys.exit(2)


async def raises_no_exception(record: Record) -> None:
    if record.offset == 1:
        raise NoException


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (exits, SystemExit),
        (in_threads(exits_in_a_thread), SystemExit),
        (batches(exits_in_a_batch, size=1), SystemExit),
        (raises_no_exception, NoException),
    ],
    ids=["argparse", "in a thread", "in a batch", "no Exception"],
)
async def test_the_record_is_named(handler: Any, kind: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    """The run ends with what was raised; nothing is dead-lettered, the record is not committed."""
    broker = InMemoryBroker()
    broker.create_topic("t")
    broker.create_topic("dead")
    produce(broker, [b"a", b"a", b"a"])
    failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter="dead")
    with pytest.raises(kind):
        async with asyncio.timeout(60), consumer_of(broker, until="end", failures=failures) as consumer:
            await consumer.run(handler)
    (told,) = [one for one in caplog.records if getattr(one, "action", "") == "handler_exit"]
    assert "t-0 offset 1" in told.getMessage()
    assert kind.__name__ in told.getMessage()
    assert broker.records("dead") == []
    assert committed(broker) == 1


@pytest.mark.parametrize("suspends", [False, True])
async def test_the_record_of_a_generator_exit_is_named(suspends: bool) -> None:
    """The interpreter ends coroutines with it, so no log is written: the error says it."""

    async def ends(record: Record) -> None:
        if suspends:
            await asyncio.sleep(0)
        if record.offset == 1:
            raise GeneratorExit

    broker = InMemoryBroker()
    broker.create_topic("t")
    produce(broker, [b"a", b"a", b"a"])
    with pytest.raises(GeneratorExit) as caught:
        async with asyncio.timeout(60), consumer_of(broker, until="end") as consumer:
            await consumer.run(ends)
    assert "raised by the handler for t-0 offset 1" in caught.value.__notes__
    assert committed(broker) == 1
