"""Statistics of a share consumer."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from aioparallel.engine.run.processor import Processor
from aioparallel.engine.sources import Source
from aioparallel.group.run_state import RunState
from aioparallel.group.share_client import AcknowledgeType
from aioparallel.group.snapshot import engine_stats
from aioparallel.observe.stats import BrokerOutputs, Contact, PartitionStats, ShareStats, Stats
from aioparallel.queues.share.acknowledging import Acknowledgements
from aioparallel.queues.share.acquiring import Acquirer
from aioparallel.queues.share.keeping import LockKeeper
from aioparallel.queues.share.locks import Lock
from aioparallel.records.record import TopicPartition

__all__ = ["share_stats"]


def share_stats(
    contact: Contact,
    processor: Processor,
    state: RunState,
    acquirer: Acquirer,
    keeper: LockKeeper,
    acknowledgements: Acknowledgements,
    outputs: tuple[BrokerOutputs, ...],
) -> Stats:
    """Return a snapshot. It walks all locks, so call it a few times a second at most."""
    locks = keeper.locks.held()
    by_partition: dict[TopicPartition, list[Lock]] = {partition: [] for partition in acquirer.assigned}
    for lock in locks:
        by_partition.setdefault(lock.partition, []).append(lock)
    done = acknowledgements.done
    sources: defaultdict[object, list[Source]] = defaultdict(list)
    for source in processor.scheduler.sources:
        sources[source.name].append(source)
    intake = acquirer.state if state.is_running else "stopped"
    return replace(
        engine_stats(contact, processor, state, intake, outputs, processor.scheduler.heads()),
        partitions=tuple(
            _partition_stats(partition, held, sources.get(partition, ()), state, acquirer)
            for partition, held in sorted(by_partition.items())
        ),
        share=ShareStats(
            locked=len(locks),
            unanswered=acknowledgements.unanswered,
            accepted=done[AcknowledgeType.ACCEPT],
            released=done[AcknowledgeType.RELEASE],
            rejected=done[AcknowledgeType.REJECT],
            renewed=done[AcknowledgeType.RENEW],
            released_unbegun=keeper.released_unbegun,
            lost=keeper.lost,
            given_up=acknowledgements.given_up,
            late=acknowledgements.late,
            unknown=acknowledgements.unknown,
            unreadable=acquirer.unreadable,
        ),
    )


def _partition_stats(
    partition: TopicPartition, locks: list[Lock], sources: Sequence[Source], state: RunState, acquirer: Acquirer
) -> PartitionStats:
    position = acquirer.positions.get(partition, 0)
    first = min((lock for lock in locks if lock.record is not None), key=lambda lock: lock.offset, default=None)
    timestamp: Any = -1 if first is None or first.record is None else first.record.timestamp
    return PartitionStats(
        topic=partition.topic,
        partition=partition.partition,
        epoch=1,
        state="open" if partition in acquirer.assigned else "draining",
        committed=None,
        position=position,
        highest_completed=position - 1,
        incompletes=len(locks),
        buffered=sum([source.buffered for source in sources]),
        parked=sum([len(source.parked) for source in sources]),
        retries_only=any(source.full for source in sources),
        lag=None,
        map_cut_at=None,
        oldest=None if timestamp < 0 else max(0.0, time.time() - timestamp / 1000),
        in_flight=sum([len(source.in_flight) for source in sources]),
        producing=sum([len(source.producing) for source in sources]),
        paused=state.is_paused or state.pauses.of(partition)[0],
    )
