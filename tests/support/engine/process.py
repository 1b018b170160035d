"""The engine without Kafka: records of any iterable, under the same order, bounds and failure policy."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from aioparallel.config.options import Options
from aioparallel.engine.run.processor import Processor
from aioparallel.engine.schedule.scheduler import AnyRecord
from aioparallel.engine.signals import Signals
from aioparallel.engine.sources import Source
from aioparallel.handlers.batches import BatchHandler
from aioparallel.handlers.stack import Batchings, Handler, Stack, together
from aioparallel.records.record import Record, TopicPartition

__all__ = ["process"]


async def process(
    records: Iterable[Record[Any, Any]], handler: Handler, options: Options | None = None, *, chunk: int = 100
) -> None:
    """Run ``handler`` on every record of an iterable, in the order and within the bounds of ``options``.

    Reads ``chunk`` records at a time, only while fewer than ``max_buffered`` wait. Offsets must ascend within
    each partition. Returns when every record has ended; failed ones follow ``options.failures``.
    Raises what ended it otherwise (KeyboardInterrupt, SystemExit, RecordStopped).
    """
    options = options or Options()
    turn = asyncio.Event()
    fatal: list[BaseException] = []

    def end(error: BaseException) -> None:
        processor.scheduler.pause()
        fatal.append(error)
        turn.set()

    signals = Signals()
    signals.fatal, signals.idle, signals.taken = end, turn.set, turn.set
    processor = Processor(_stack(handler), options, options.failures.retry_budget, signals)
    sources: dict[TopicPartition, Source] = {}
    items = iter(records)
    exhausted = False
    try:
        while not fatal and not (exhausted and not processor.scheduler.unfinished):
            room = options.max_buffered - processor.scheduler.buffered
            if not exhausted and room > 0:
                exhausted = not _feed(processor, sources, items, min(chunk, room))
                for source in sources.values() if exhausted else ():
                    processor.set_no_more_input(source, True)
                await asyncio.sleep(0)
                continue
            processor.scheduler.counters.taken_left = 1
            turn.clear()
            await turn.wait()
    finally:
        await processor.close(timeout=options.drain_timeout)
    if fatal:
        raise fatal[0]


def _stack(handler: Handler) -> Stack:
    if isinstance(handler, BatchHandler):
        return Stack(handler, Batchings({}, together(handler, (), ())))
    return Stack(handler)


def _feed(
    processor: Processor, sources: dict[TopicPartition, Source], items: Iterable[Record[Any, Any]], count: int
) -> bool:
    """Admit up to ``count`` records; False when the source has ended."""
    taken: dict[TopicPartition, list[AnyRecord]] = {}
    ended = True
    for record in items:
        taken.setdefault(record.topic_partition, []).append(record)
        count -= 1
        if not count:
            ended = False
            break
    for partition, batch in taken.items():
        source = sources.get(partition)
        if source is None:
            source = sources[partition] = Source(partition)
        processor.admit(source, batch)
    return not ended
