"""The consumer process: ``python -m tests.support.children.consumer JOB`` runs a job until its standard input ends.

Prints a JSON object a line: ``{"sample": {...}}`` while it runs, ``{"report": {...}}`` at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from typing import Any, Self, cast
from unittest import mock

from aioparallel import ParallelConsumer
from aioparallel.cli.bench.loop_holds import LoopHolds
from aioparallel.errors import ConsumerStateError
from aioparallel.options import OptionFields
from tests.support.children.job import Job
from tests.support.children.probes import probe_of

_TOLD = (
    "admitted",
    "buffered",
    "buffered_bytes",
    "parked",
    "in_flight",
    "succeeded",
    "ready_lanes",
    "lanes",
    "intake",
    "commits",
    "failed_commits",
    "cut_maps",
)


def main() -> None:
    """Run the job of the command line."""
    job = Job.of(sys.argv[1])
    consumer = _Watched(job)
    probe = probe_of(job, lambda: consumer.stop(drain=False))
    holds = LoopHolds()
    with contextlib.ExitStack() as stack:
        if job.watch_loop:
            stack.enter_context(mock.patch("aioparallel.consumer.loop_factory", return_value=asyncio.new_event_loop))
            stack.enter_context(holds.watching())
        consumer.run_sync(probe.handle)
    _tell("report", {**probe.report(), "stats": _shown(consumer), "holds": holds.report(), "cpu": time.process_time()})


class _Watched(ParallelConsumer[Any, Any]):
    """Tells its statistics now and then, and stops when standard input ends."""

    def __init__(self, job: Job) -> None:
        super().__init__(
            job.topic,
            bootstrap_servers=job.bootstrap_servers,
            group_id=job.group_id,
            # What JSON made of the options is checked there.
            **cast("OptionFields", dict(job.options)),
        )
        self._interval = job.stats_interval
        self._beside: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        loop, end = asyncio.get_running_loop(), sys.stdin.fileno()

        def stop() -> None:
            loop.remove_reader(end)
            self.stop(drain=False)

        loop.add_reader(end, stop)  # nothing is ever written: readable means closed
        self._beside = loop.create_task(self._tell_samples())
        return self

    async def _tell_samples(self) -> None:
        while self._interval:
            await asyncio.sleep(self._interval)
            with contextlib.suppress(ConsumerStateError):  # not running yet
                _tell("sample", _shown(self))


def _shown(consumer: ParallelConsumer) -> dict[str, object]:
    stats = consumer.stats()
    longest = stats.longest_lane
    return {
        "at": time.monotonic(),
        "cpu": time.process_time(),
        "longest_lane": longest and [str(longest.partition), repr(longest.key), longest.length],
        "partitions_open": sum(one.state == "open" for one in stats.partitions),
        **{name: getattr(stats, name) for name in _TOLD},
    }


def _tell(kind: str, content: dict[str, object]) -> None:
    print(json.dumps({kind: content}), flush=True)


if __name__ == "__main__":
    main()
