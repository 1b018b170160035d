"""A tracker as a process: it runs until it is told to end, and says what it does."""

from __future__ import annotations

import asyncio
import logging

from aioparallel.cli.cluster import connecting_options
from aioparallel.cli.console import counted, say
from aioparallel.cli.kmq.commands import QueueAccess, Trackers
from aioparallel.engine.own_loop import own_runner
from aioparallel.event_loop import stopping_signals
from aioparallel.policies import Producing
from aioparallel.queues.kmq import RedeliveryTracker

__all__ = ["track", "tracker_of"]

_LOOK = 1.0


def tracker_of(queue: str, how: Trackers, where: QueueAccess) -> RedeliveryTracker:
    """As it was asked for. Raises ConfigurationError."""
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
    """Run one. Raises what ends it before it is told to."""
    logging.getLogger("aioparallel").setLevel(logging.WARNING)
    tracker = tracker_of(queue, how, where)

    async def main() -> None:
        with stopping_signals(asyncio.get_running_loop(), tracker.stop):
            async with tracker:
                say(f"Tracking {queue} by {tracker.topics.markers}; Ctrl-C ends it.")
                telling = asyncio.create_task(_tell(tracker))
                try:
                    await tracker.run()
                finally:
                    telling.cancel()
        say("Stopped.")

    with own_runner() as runner:
        runner.run(main())


async def _tell(tracker: RedeliveryTracker) -> None:
    told = (0, 0, 0)
    while True:
        await asyncio.sleep(_LOOK)
        if not tracker.health().running:
            continue
        stats = tracker.stats()
        now = (stats.redelivered, stats.dead_lettered, stats.gone)
        if now != told:
            again, away, gone = (after - before for after, before in zip(now, told, strict=True))
            parts = [f"{counted(again, 'record')} delivered again"] if again else []
            parts += [f"{counted(away, 'record')} put away as undeliverable"] if away else []
            parts += [f"{counted(gone, 'record')} gone"] if gone else []
            say(f"{', '.join(parts)}; {stats.open:,} open.")
            told = now
