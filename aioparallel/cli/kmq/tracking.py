"""Runs a tracker until a signal, and prints what it delivers again."""

from __future__ import annotations

import asyncio
import logging

from aioparallel.cli.cluster import connecting_options
from aioparallel.cli.console import counted, say
from aioparallel.cli.kmq.commands import QueueAccess, Trackers
from aioparallel.config.policies import Producing
from aioparallel.event_loop.loop import stopping_signals
from aioparallel.event_loop.own_loop import own_runner
from aioparallel.queues.kmq import RedeliveryTracker

__all__ = ["track", "tracker_of"]

_INTERVAL = 1.0  # seconds


def tracker_of(queue: str, how: Trackers, where: QueueAccess) -> RedeliveryTracker:
    """The tracker for these options. Raises ConfigurationError."""
    larger = {} if how.max_request_size is None else {"max_request_size": how.max_request_size}
    return RedeliveryTracker(
        queue,
        group_id=where.group or f"{queue}-trackers",
        bootstrap_servers=where.bootstrap_servers,
        marker_topic=where.marker_topic,
        dead_letter=how.dead_letter,
        dead_letter_too_large=how.dead_letter_too_large,
        max_redeliveries=how.max_redeliveries,
        use_now_after=how.use_now_after,
        producing=Producing(client_options=larger),
        skip_unreadable=where.skipped,
        client_options=connecting_options(where),
    )


def track(queue: str, how: Trackers, where: QueueAccess) -> None:
    """Run a tracker. Raises the error that ends it."""
    logging.getLogger("aioparallel").setLevel(logging.WARNING)
    tracker = tracker_of(queue, how, where)

    async def main() -> None:
        with stopping_signals(asyncio.get_running_loop(), tracker.stop):
            async with tracker:
                say(f"Tracking {queue} by {tracker.topics.markers}; Ctrl-C ends it.")
                reporting = asyncio.create_task(_report(tracker))
                try:
                    await tracker.run()
                finally:
                    reporting.cancel()
        say("Stopped.")

    with own_runner() as runner:
        runner.run(main())


async def _report(tracker: RedeliveryTracker) -> None:
    reported = (0, 0, 0)
    while True:
        await asyncio.sleep(_INTERVAL)
        if not tracker.health().running:
            continue
        stats = tracker.stats()
        now = (stats.redelivered, stats.dead_lettered, stats.gone)
        if now != reported:
            again, dead, gone = (after - before for after, before in zip(now, reported, strict=True))
            parts = [f"{counted(again, 'record')} delivered again"] if again else []
            parts += [f"{counted(dead, 'record')} dead-lettered as undeliverable"] if dead else []
            parts += [f"{counted(gone, 'record')} gone"] if gone else []
            say(f"{', '.join(parts)}; {stats.open:,} open.")
            reported = now
