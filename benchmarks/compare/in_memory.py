"""Runs a case without Kafka, for counting instructions: ``in_memory.py CASE COUNT FOLDER``.

CASE is JSON, see ``instructions.told``; the library must be imported from FOLDER. Only public names are used, so it
runs with the library of any revision. It prints nothing; a wrong count ends it with an error.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any, Final

import aioparallel
from aioparallel import Ordering, Outgoing, ParallelConsumer, Record, batches
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient, InMemoryProducer

PARTITIONS: Final = 8
# Of this revision: the package benchmarks that is imported is of the library's, which may be an older one.
OBSERVING: Final = runpy.run_path(str(Path(__file__).parents[1] / "contestants" / "observing.py"))


async def consume(case: dict[str, Any], count: int) -> int:
    """Run so many records through a consumer. Returns how many the handler got."""
    broker = InMemoryBroker()
    for topic in ("in", "in-markers", "out"):
        broker.create_topic(topic, PARTITIONS)
    broker.create_topic("in__undelivered", 1)
    for number in range(count):
        headers = (OBSERVING["traceparent"](number),) if case["traced"] else ()
        key = b"key-%d" % (number % case["keys"])
        broker.append("in", b"v" * 100, key=key, headers=headers, partition=number % PARTITIONS)
    seen = 0

    async def handle(record: Record) -> Outgoing | None:
        nonlocal seen
        seen += 1
        return Outgoing("out", record.value, record.key) if case["handler"] in ("produce", "transactions") else None

    async def handle_batch(records: Any) -> None:
        nonlocal seen
        seen += len(records)

    common: dict[str, Any] = {
        "group_id": "g", "client": InMemoryClient(broker, "g"), "max_concurrency": case["concurrency"], "until": "end",
        **OBSERVING["extensions"](os.environ.get(OBSERVING["OBSERVED"], "")),
    }  # fmt: skip
    consumer: ParallelConsumer[Any, Any]
    if case["handler"] == "queue":
        from aioparallel.queues.kmq import KmqConsumer  # noqa: PLC0415 - a revision may not have it

        consumer = KmqConsumer("in", lease=600, tracker=False, producer=InMemoryProducer(broker), **common)
    elif case["handler"] == "transactions":
        from aioparallel import Transactions  # noqa: PLC0415
        from aioparallel.testing.memory import InMemoryTransactionalProducer  # noqa: PLC0415

        common["producer"] = InMemoryTransactionalProducer(broker, "g")
        consumer = ParallelConsumer("in", commits=Transactions(), **common)
    else:
        common |= {"producer": InMemoryProducer(broker), "ordering": Ordering(case["ordering"])}
        consumer = ParallelConsumer("in", **common)
    async with consumer:
        await consumer.run(batches(handle_batch, size=case["batch"]) if case["batch"] else handle)
    return seen


async def map_items(case: dict[str, Any], count: int) -> int:
    """Run so many items through :func:`parallel_map`. Returns the number of outcomes."""
    from aioparallel import parallel_map  # noqa: PLC0415

    async def handle(item: int) -> int:
        return item

    keys, seen = case["keys"], 0
    async for outcome in parallel_map(
        handle, range(count), key=lambda item: item % keys, max_concurrency=case["concurrency"]
    ):
        seen += outcome.result() >= 0
    return seen


def main() -> None:
    """Do one run."""
    case, count, folder = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    if not Path(aioparallel.__file__).is_relative_to(folder):
        raise SystemExit(f"{aioparallel.__file__} is imported, which is not in {folder}")
    gc.disable()  # its collections depend on the other objects of the process
    seen = asyncio.run((map_items if case["handler"] == "map" else consume)(case, count))
    if seen != count:
        raise SystemExit(f"the handler was called for {seen:,} of {count:,} records")


if __name__ == "__main__":
    main()
