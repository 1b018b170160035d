"""Positions that are committed in transactions, as they are read at a take-over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from aioparallel.group.client import Client, Committed, Generation
from aioparallel.observe.health import Problem, ProblemKind
from aioparallel.persistence.transactions.producer import StableOffsets, TransactionalProducer
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import NotAuthorized
from aioparallel.records.record import TopicPartition

__all__ = ["StablePositions"]

_ONE: Final = 3.0
"""Seconds for one request."""
_PAUSE: Final = 0.1
"""Seconds between two, where nothing was answered."""
_LATE: Final = 15.0
"""Seconds after a transaction's timeout at which the brokers have ended it for certain: they look every 10."""
_NOT_ALLOWED: Final = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED)


class StablePositions:
    """Reads positions only where no transaction under way may change them (KIP-447). The member before may have died in
    one: its offsets are decided when the brokers have ended it. :class:`~aioparallel.group.offset_stores.Positions`.

    ``timeout``: seconds of a transaction. ``on_release``: hears of partitions that went.
    """

    def __init__(
        self,
        producer: TransactionalProducer,
        client: Client,
        group_id: str,
        timeout: float,
        on_release: Callable[[TopicPartition], None],
    ) -> None:
        self._producer = producer
        self._client = client
        self._group_id = group_id
        self._timeout = timeout
        self._on_release = on_release
        self._undecided: dict[TopicPartition, float] = {}  # and since when

    async def take_over(
        self, partitions: Collection[TopicPartition], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, Committed | None]:
        """See :class:`~aioparallel.group.offset_stores.Positions`. The generation has shut out the owner before
        already."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout
        while (left := ends - loop.time()) > 0:
            answer = await self._producer.stable_offsets(partitions, min(_ONE, left))
            if answer.code == ErrorCode.NONE and answer.found:
                return self._decided(partitions, answer, loop.time())
            if answer.code in _NOT_ALLOWED:
                raise NotAuthorized(f"reading the offsets of group {self._group_id!r}")
            await asyncio.sleep(_PAUSE)
        raise TimeoutError

    def _decided(
        self, partitions: Collection[TopicPartition], answer: StableOffsets, now: float
    ) -> Mapping[TopicPartition, Committed | None]:
        decided: dict[TopicPartition, Committed | None] = {}
        for partition in partitions:
            found = answer.found.get(partition, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            if isinstance(found, int):
                if found in _NOT_ALLOWED:
                    raise NotAuthorized(f"reading the offsets of {partition}")
                self._undecided.setdefault(partition, now)
            else:
                self._undecided.pop(partition, None)
                decided[partition] = found
        return decided

    async def stored(self, partitions: Collection[TopicPartition], timeout: float) -> Collection[TopicPartition]:
        """See :class:`~aioparallel.group.offset_stores.Positions`. Whether transactions under way may change them or
        not: a position that was committed before counts."""
        return (await self._client.committed(partitions, timeout)).keys()

    def release(self, partition: TopicPartition) -> None:
        """See :class:`~aioparallel.group.offset_stores.Positions`."""
        self._undecided.pop(partition, None)
        self._on_release(partition)

    def problems(self, now: float) -> Sequence[Problem]:
        """What has been undecided for longer than it can be. ``now``: by the loop's clock."""
        late = {place: now - since for place, since in self._undecided.items() if now - since > self._timeout + _LATE}
        if not late:
            return ()
        partition, seconds = max(late.items(), key=lambda one: one[1])
        more = f" and {len(late) - 1} more partitions" if len(late) > 1 else ""
        text = (
            f"{partition}{more}: the committed offset is part of a transaction that has not ended for {seconds:.0f} s"
        )
        return (Problem(ProblemKind.OFFSETS_UNSTABLE, text),)
