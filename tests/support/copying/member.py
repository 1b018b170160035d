"""One member of a group that copies: ``python -m tests.support.copying.member JOB EVENTS``, until SIGTERM.

SIGUSR1 tells it to hurry. Says ten times a second what is left, as JSON, and notes in EVENTS what was acknowledged and
what it tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from aioparallel import Outgoing, ParallelConsumer, Producing, Record
from aioparallel.records.errors import ConsumerStateError
from aioparallel.records.record import Produced
from aioparallel.testing.event_log import EventLog
from aioparallel.testing.processes import tell
from tests.support.copying.job import UNKNOWN, CopyJob
from tests.support.kafka.filling import number_of

_INTERVAL = 0.1


def main(job_text: str, events: str) -> None:
    """Copy."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    with EventLog(Path(events), times=True) as log:
        copier = _Copier(CopyJob.of(job_text), log)
        copier.consumer.run_sync(copier.copy)


class _Copier:
    """Copies, and tells what it did."""

    def __init__(self, job: CopyJob, log: EventLog) -> None:
        self._job = job
        self._pace = job.handler_seconds
        self._log = log
        self.consumer = ParallelConsumer(
            job.source,
            bootstrap_servers=job.bootstrap_servers,
            group_id=job.group_id,
            max_concurrency=job.max_concurrency,
            session_timeout=job.session_timeout,
            heartbeat_interval=job.heartbeat_interval,
            producing=Producing(delivery_timeout=job.delivery_timeout, on_produced=self._on_produced),
            resources={"telling": self._beside},
        )

    @contextlib.asynccontextmanager
    async def _beside(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self._hurry)
        telling = loop.create_task(self._tell())
        yield
        telling.cancel()

    def _hurry(self) -> None:
        self._pace = 0.0

    async def copy(self, record: Record) -> Outgoing:
        """The handler."""
        if record.attempt > 1:
            self._log.failed(0, number_of(record))
        if self._pace:
            await asyncio.sleep(self._pace)
        return Outgoing(self._job.target, record.value, record.key)

    def _on_produced(self, record: Record, _: Outgoing, place: Produced) -> None:
        self._log.began(0, number_of(record))
        self._log.ended(place.partition, UNKNOWN if place.offset < 0 else place.offset)

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL)
            with contextlib.suppress(ConsumerStateError):  # not running yet
                stats = self.consumer.stats()
                lag = {one.partition: one.lag for one in stats.partitions}
                tell(json.dumps({"succeeded": stats.succeeded, "lag": lag}))


if __name__ == "__main__":
    main(*sys.argv[1:])
