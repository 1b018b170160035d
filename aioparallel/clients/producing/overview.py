"""Outstanding outputs by broker, for statistics and health."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from aioparallel.clients.producing.partition_queue import PartitionQueue
from aioparallel.observe.health import Problem, ProblemKind
from aioparallel.observe.stats import BrokerOutputs

__all__ = ["by_broker", "silence_of"]


def by_broker(
    queues: Iterable[PartitionQueue],
    leader_of: Callable[[PartitionQueue], int | None],
    address_of: Callable[[int], str],
    silent_since: Mapping[int, float],
    now: float,
    delivery_timeout: float,
) -> tuple[BrokerOutputs, ...]:
    """Group unacknowledged outputs by broker: the one with the request in flight, else the partition's leader.

    Times are seconds on the loop's clock."""
    found: dict[int | None, list[PartitionQueue]] = {}
    for queue in queues:
        if not queue.is_empty:
            leader = leader_of(queue) if queue.partition >= 0 else None
            under_way = queue.batch is not None and queue.batch.is_in_flight
            node = queue.batch.node if queue.batch is not None and under_way else leader
            found.setdefault(None if node is None or node < 0 else node, []).append(queue)
    return tuple(
        BrokerOutputs(
            broker=node,
            address="" if node is None else address_of(node),
            outputs=sum(queue.outstanding for queue in own),
            waiting=sum(len(queue.waiting) for queue in own),
            batches=sum(queue.batch is not None for queue in own),
            oldest=max(now - ((queue.next_deadline or now) - delivery_timeout) for queue in own),
            silent=None if node is None or node not in silent_since else now - silent_since[node],
        )
        for node, own in sorted(found.items(), key=lambda item: (item[0] is None, item[0] or 0))
    )


def silence_of(outputs: Iterable[BrokerOutputs]) -> tuple[Problem, ...]:
    """A health problem for each broker that does not answer."""
    return tuple(
        Problem(
            ProblemKind.BROKER_SILENT,
            f"broker {one.broker} ({one.address}) has not answered for {one.silent:.0f} s; {one.outputs} outputs wait "
            "for it, or for another leader of their partitions",
        )
        for one in outputs
        if one.silent is not None
    )
