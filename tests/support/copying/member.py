"""One member of a group that copies: ``python -m tests.support.copying.member JOB FILE AGAIN``, until its standard
input ends.

Says ten times a second what it is at, as JSON, and writes to FILE what was acknowledged, to AGAIN what was tried again;
see :mod:`tests.support.copying.members`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import time
from array import array

from aioparallel import Outgoing, ParallelConsumer, Producing, Record
from aioparallel.errors import ConsumerStateError
from aioparallel.records import Produced
from tests.support.copying.members import CopyJob, Sample
from tests.support.kafka.topics import number_of, on_uvloop

_INTERVAL = 0.1


def main(job_text: str, acknowledged: str, again: str) -> None:
    """Copy."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    on_uvloop(_Copier(CopyJob.of(job_text), acknowledged, again).run())


class _Numbers:
    """64-bit numbers on their way to a file."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._left = array("q")
        self.extend = self._left.extend

    def write(self) -> None:
        """Append what has come since."""
        os.write(self._file, self._left.tobytes())
        del self._left[:]


class _Copier:
    """Copies, and tells what it did."""

    def __init__(self, job: CopyJob, acknowledged: str, again: str) -> None:
        self._job = job
        self._pace = job.handler_seconds
        self._acknowledged, self._again = _Numbers(acknowledged), _Numbers(again)
        self._consumer = ParallelConsumer(
            job.source,
            bootstrap_servers=job.bootstrap_servers,
            group_id=job.group_id,
            max_concurrency=job.max_concurrency,
            session_timeout=job.session_timeout,
            heartbeat_interval=job.heartbeat_interval,
            producing=Producing(delivery_timeout=job.delivery_timeout, on_produced=self._on_produced),
        )

    async def run(self) -> None:
        loop, end = asyncio.get_running_loop(), sys.stdin.fileno()

        def listen() -> None:
            if os.read(end, 1024):
                self._pace = 0.0
            else:
                loop.remove_reader(end)
                self._consumer.stop()

        loop.add_reader(end, listen)
        async with self._consumer:
            telling = loop.create_task(self._tell())
            try:
                await self._consumer.run(self._copy)
            finally:
                telling.cancel()
        self._write()

    async def _copy(self, record: Record) -> Outgoing:
        if record.attempt > 1:
            self._again.extend((number_of(record),))
        if self._pace:
            await asyncio.sleep(self._pace)
        return Outgoing(self._job.target, record.value, record.key)

    def _on_produced(self, record: Record, _: Outgoing, place: Produced) -> None:
        self._acknowledged.extend((time.monotonic_ns() // 1_000_000, place.partition, place.offset, number_of(record)))

    def _write(self) -> None:
        self._acknowledged.write()
        self._again.write()

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL)
            self._write()
            with contextlib.suppress(ConsumerStateError):  # not running yet
                stats = self._consumer.stats()
                sample = Sample(
                    succeeded=stats.succeeded,
                    producing=stats.producing,
                    buffered=stats.buffered,
                    lag={str(one.partition): one.lag for one in stats.partitions},
                )
                print(json.dumps(sample), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
