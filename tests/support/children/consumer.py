"""A consumer process: ``python -m tests.support.children.consumer JOB EVENTS``. SIGTERM ends it well.

Writes what its handlers do to an event log, and to standard output a JSON object for each sample of ``stats()``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal, cast

from aioparallel import Batch, Deduplicate, FailurePolicy, ParallelConsumer, Record, RetryPolicy, batches
from aioparallel.config.options import OptionFields
from aioparallel.records.errors import ConsumerStateError
from aioparallel.testing.event_log import EventLog
from aioparallel.testing.processes import tell
from tests.support.children.account import NOWHERE
from tests.support.children.job import Job

_TOLD = ("buffered", "buffered_bytes", "in_flight")


def main(text: str, events: str) -> None:  # noqa: C901
    """Do the job."""
    job, rng = Job.of(text), random.Random(os.getpid())
    # What JSON made of the options is checked there.
    options = cast("OptionFields", dict(job.options))
    if job.deduplicate is not None:
        topic, by = job.deduplicate
        options["deduplicate"] = Deduplicate(topic, by=cast("Literal['record', 'key']", by))
    if job.failing:
        options["failures"] = FailurePolicy(retry=RetryPolicy(first_delay=3_600, max_delay=3_600))

    @contextlib.asynccontextmanager
    async def samples() -> AsyncIterator[None]:
        telling = asyncio.create_task(_tell_samples(consumer, job.sample_interval))
        yield
        telling.cancel()

    if job.sample_interval:
        options["resources"] = {"samples": samples}
    with EventLog(Path(events), times=True) as log:
        logging.getLogger("aioparallel").addHandler(_Losses(log))

        async def handle(record: Record) -> None:
            with log.handling(record):
                if record.offset == job.stuck:
                    await asyncio.Event().wait()
                await asyncio.sleep(rng.uniform(*job.seconds))
                if rng.random() < job.failing:
                    raise ValueError

        consumer = ParallelConsumer[Any, Any](
            job.topic, bootstrap_servers=job.bootstrap_servers, group_id=job.group_id, **options
        )

        async def handle_batch(batch: Batch[Record]) -> None:
            # Of a key the first begins before the work, each other one when that before it has ended.
            begun: set[tuple[int, bytes | None]] = set()
            heads = []
            for record in batch:
                if (record.partition, record.key) not in begun:
                    begun.add((record.partition, record.key))
                    heads.append(record)
                    log.began(record.partition, record.offset)
            await asyncio.sleep(rng.uniform(*job.seconds))
            for record in batch:
                if record not in heads:
                    log.began(record.partition, record.offset)
                log.ended(record.partition, record.offset)

        consumer.run_sync(batches(handle_batch, size=job.batch) if job.batch else handle)


class _Losses(logging.Handler):
    """Notes each time that partitions were lost, or given away without a commit: what was not committed runs again
    here. A busy machine does that to a short session."""

    def __init__(self, log: EventLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "action", None) in {"partitions_lost", "settle_uncommitted"}:
            self._log.failed(NOWHERE, 0)


async def _tell_samples(consumer: ParallelConsumer[Any, Any], interval: float) -> None:
    while True:
        await asyncio.sleep(interval)
        with contextlib.suppress(ConsumerStateError):  # not running yet
            stats = consumer.stats()
            tell(json.dumps({name: getattr(stats, name) for name in _TOLD} | {"partitions": len(stats.partitions)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
