"""What the consumers of a group did with a topic, as their event logs and the group's commits say."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from aioparallel.offsets import decode_offset_map
from aioparallel.records.record import Record
from aioparallel.testing import DeliveryChecker, OrderChecker
from aioparallel.testing.event_log import EventKind, EventTail, replay
from tests.support.kafka.reading import committed

__all__ = ["NOWHERE", "Account", "Place", "complete_by_commit"]

NOWHERE: Final = (1 << 18) - 1
"""The partition of an event which says that the consumer has lost its partitions."""

Place = tuple[int, int]
"""A record's partition and offset."""


class Account:
    """Reads the logs of one child after the other, as they grow, and has them checked: ``order`` and ``delivery``.

    ``ended``: the places whose handler has ended well, in any child.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self._keys = {(record.partition, record.offset): record.key for record in records}
        self._partitions = {partition for partition, _ in self._keys}
        self._tail = EventTail(Path())
        self.order = OrderChecker()
        self.delivery: DeliveryChecker[Place] = DeliveryChecker()
        self.ended: set[Place] = set()
        for place in self._keys:
            self.delivery.produced(place)

    @property
    def places(self) -> Iterable[Place]:
        """Of all records."""
        return self._keys.keys()

    def follow(self, events: Path) -> None:
        """The next child writes here; the one before it was killed, if there was one."""
        self._tail = EventTail(events)
        self.order.crashed()

    def read(self) -> list[Place]:
        """Take in what is new; the places whose handlers began in it."""
        began = []
        for is_lost, events in itertools.groupby(self._tail.new(), key=lambda event: event.partition == NOWHERE):
            if is_lost:
                for partition in self._partitions:
                    self.order.reassigned(partition)
                continue
            new = list(events)
            replay(new, lambda *place: self._keys[place], self.order, self.delivery)
            began += [(one.partition, one.offset) for one in new if one.kind is EventKind.BEGAN]
            self.ended.update((one.partition, one.offset) for one in new if one.kind is EventKind.ENDED)
        return began


async def complete_by_commit(servers: str, group: str) -> Callable[[Place], bool]:
    """What the group's commits say is complete, as a question to ask of each place."""
    maps = {
        partition: decode_offset_map(one.offset, one.metadata)
        for partition, one in (await committed(servers, group)).items()
    }
    incompletes = {(partition, offset) for partition, one in maps.items() for offset in one.incompletes}

    def complete(place: Place) -> bool:
        one = maps.get(place[0])
        return (
            one is not None and place[1] <= max(one.base_offset - 1, one.highest_succeeded) and place not in incompletes
        )

    return complete
