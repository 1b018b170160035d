"""Batches in transactions: what a batch lets leave, where some of its records run again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from aioparallel import FailurePolicy, Outgoing, Record, RetryPolicy, Transactions
from aioparallel.handlers.batches import Batch, batches
from tests.support.transactions.consuming import broker_of, consumer_of

Handle = Callable[[Batch[Record]], Coroutine[Any, Any, object]]


async def written(handle: Handle, keys: Sequence[bytes | None], *, on_error: Any = "one_by_one") -> list[bytes | None]:
    """What stands in "out" after a batch of records "0", "1" and so on with these keys. Three attempts each."""
    broker = broker_of()
    for number, key in enumerate(keys):
        broker.append("in", b"%d" % number, key=key)
    consumer = consumer_of(
        broker,
        commits=Transactions(interval=0.05),
        failures=FailurePolicy(retry=RetryPolicy(first_delay=0.1, max_attempts=3)),
        until="end",
    )
    async with asyncio.timeout(60), consumer:
        await consumer.run(batches(handle, size=len(keys), linger=0.1, on_error=on_error))
    return [record.value for record in broker.records("out")]


@pytest.mark.parametrize("on_error", ["one_by_one", "together"])
async def test_outputs_of_a_whole_batch_hold_none_of_a_record_that_runs_again(on_error: Any) -> None:
    """What is behind a failed record in its key goes back. Nobody knows which outputs of the batch as a whole are of
    it, so they are refused, and the records run one by one."""
    refused: list[str] = []

    async def handle(batch: Batch[Record]) -> list[Outgoing]:
        for record in batch:
            if record.value == b"0" and record.attempt == 1:
                batch.fail(record, ValueError("once"))
            elif record.last_failure is not None:
                refused.append(record.last_failure.message)
        return [Outgoing("out", record.value, record.key) for record in batch]

    keys = [b"k", b"other", b"k"]
    assert sorted(await written(handle, keys, on_error=on_error), key=str) == [b"0", b"1", b"2"]
    assert any("{record: outputs}" in one for one in refused)


async def test_outputs_of_a_whole_batch_stand_where_nothing_goes_back() -> None:
    """Without a key nothing is behind a failed record: all others are complete."""
    runs: list[list[bytes | None]] = []

    async def handle(batch: Batch[Record]) -> list[Outgoing]:
        runs.append([record.value for record in batch])
        failed = {record for record in batch if record.value == b"0" and record.attempt == 1}
        for record in failed:
            batch.fail(record, ValueError("once"))
        return [Outgoing("out", record.value) for record in batch if record not in failed]

    assert sorted(await written(handle, [None] * 3), key=str) == [b"0", b"1", b"2"]
    assert runs == [[b"0", b"1", b"2"], [b"0"]]


@pytest.mark.parametrize("value", [b"0", b"1", b"2"])
async def test_outputs_behind_a_refused_one_go_back_with_their_record(value: bytes) -> None:
    """An output that is refused at the hand-over fails its record; what is behind that in its key runs again, and so
    nothing of it leaves yet."""

    async def handle(batch: Batch[Record]) -> dict[Record, Outgoing]:
        return {
            record: Outgoing(
                "out", record.value, record.key, partition=9 if (record.value, record.attempt) == (value, 1) else None
            )
            for record in batch
        }

    assert await written(handle, [b"k"] * 3) == [b"0", b"1", b"2"]
