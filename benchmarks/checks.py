"""What is wrong with a run: the order of records, their completeness, its output, and the committed offsets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.errors import AioparallelError
from aioparallel.records import TopicPartition
from aioparallel.testing import DeliveryChecker, OrderChecker
from aioparallel.testing.event_log import Event, EventKind, replay
from benchmarks.workload import Lane, Workload, read_topic

__all__ = ["check_commits", "check_events", "check_output", "ended_at_once", "peak_in_flight"]

SHOWN: Final = 3
"""Problems of one kind that are told one by one."""


def peak_in_flight(events: Sequence[Event]) -> int:
    """The most handlers that ran at once."""
    steps = (1 if event.kind is EventKind.BEGAN else -1 for event in events)
    return max(itertools.accumulate(steps), default=0)


def check_events(
    lives: Sequence[Sequence[Event]],
    workload: Workload,
    order: Lane,
    *,
    stopped: bool = False,
    repeats: bool = False,
    together: bool = False,
) -> list[str]:
    """What is wrong with what handlers did, in sentences that name partition and offset; empty if nothing is.

    ``lives``: the events of each process of the group, one after the other with a crash between, or ``together`` at the
    same time, when the order is that of each process alone. A ``stopped`` run may have left records out, and handlers
    without an end. ``repeats``: records may run again, after a crash or a rebalance.
    """
    keys, delivery = workload.keys_by_offset, DeliveryChecker[tuple[int, int]]()

    def key_of(partition: int, offset: int) -> bytes | None:
        known = partition < len(keys) and offset < len(keys[partition])
        return keys[partition][offset] if known else None

    def new_order() -> OrderChecker | None:
        return None if order == "unordered" else OrderChecker(order)

    for partition, planned in enumerate(keys):
        for offset in range(len(planned)):
            delivery.produced((partition, offset))
    found, checker = list[str](), new_order()
    checkers = [checker]
    for number, events in enumerate(lives):
        if number and together:
            checkers.append(checker := new_order())
        elif number and checker is not None:
            checker.crashed()
        replay(events, key_of, checker, delivery)
        began, ended = (sum(event.kind is kind for event in events) for kind in (EventKind.BEGAN, EventKind.ENDED))
        if ended > began:
            found.append(f"{ended - began:,} handlers ended that had not begun")
    for one in checkers:
        found += told("records out of order", one.violations if one is not None else ())
    if not stopped:
        found += told("records whose handler never ended", sorted(delivery.lost()))
    found += told("records that the topic does not have", sorted(delivery.unknown()))
    if not repeats:
        found += told("records handled more than once", sorted(delivery.duplicates()))
    return found


def told(kind: str, wrong: Sequence[object]) -> list[str]:
    """The first problems of a kind, and how many there are."""
    if not wrong:
        return []
    shown = "; ".join(
        f"partition {one[0]}, offset {one[1]}" if type(one) is tuple else str(one) for one in wrong[:SHOWN]
    )
    return [f"{len(wrong):,} {kind}: {shown}{', ...' if len(wrong) > SHOWN else ''}"]


def check_output(bootstrap_servers: str, topic: str, workload: Workload, order: Lane) -> list[str]:
    """Whether an output topic has one record for each, those of a key in order."""
    produced: list[Event] = []
    for kept in read_topic(bootstrap_servers, topic, workload.shape.partitions):
        partition, offset = map(int, (kept.value or b"-1 -1").split(maxsplit=2)[:2])
        produced.append(Event(EventKind.BEGAN, partition, offset))
    return [f"its output: {problem}" for problem in check_events([ended_at_once(produced)], workload, order)]


def ended_at_once(events: Sequence[Event]) -> list[Event]:
    """Each of them, and its end."""
    return [both for one in events for both in (one, Event(EventKind.ENDED, one.partition, one.offset))]


async def check_commits(bootstrap_servers: str, topic: str, group: str, workload: Workload) -> list[str]:
    """Where the group's committed offsets are not the end offsets, in sentences."""
    ends = {TopicPartition(topic, partition): len(places) for partition, places in enumerate(workload.places)}
    try:
        async with Admin(bootstrap_servers) as admin:
            found = await admin.committed(group, list(ends))
    except (AioparallelError, TimeoutError) as error:
        return [f"the group's committed offsets could not be read: {error}"]
    committed = {place: found[place].offset if place in found else 0 for place in ends}
    wrong = [
        f"partition {place.partition}: committed up to offset {committed[place]} of {end}"
        for place, end in ends.items()
        if committed[place] != end
    ]
    return wrong if len(wrong) <= SHOWN else [*wrong[:SHOWN], f"partitions not committed: {len(wrong)} in all"]
