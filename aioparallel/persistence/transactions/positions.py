"""Reads positions that are committed in transactions, at a take-over."""

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
"""Seconds between two requests if there was no answer."""
_LATE: Final = 15.0
"""Seconds after a transaction's timeout by which the brokers have aborted it. They check every 10 seconds."""
_NOT_ALLOWED: Final = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED)


class StablePositions:
    """Reads positions that no open transaction can change (KIP-447). It implements
    :class:`~aioparallel.group.offset_stores.Positions`.

    The previous owner may have died in a transaction. Its offsets are stable once the brokers have ended that.
    ``timeout``: transaction timeout in seconds. ``on_release(partition)`` is called when a partition is lost.
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
        self._undecided: dict[TopicPartition, float] = {}  # since when, by the loop's clock

    async def take_over(
        self, partitions: Collection[TopicPartition], generation: Generation, timeout: float
    ) -> Mapping[TopicPartition, Committed | None]:
        """Read the stable positions. The previous owner is fenced by the generation already."""
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
        """Return the partitions with a committed position, even if an open transaction may change it."""
        return (await self._client.committed(partitions, timeout)).keys()

    def release(self, partition: TopicPartition) -> None:
        """Forget a partition that this member no longer owns."""
        self._undecided.pop(partition, None)
        self._on_release(partition)

    def problems(self, now: float) -> Sequence[Problem]:
        """Report offsets that are unstable for longer than a transaction can last. ``now``: the event loop's time."""
        late = {place: now - since for place, since in self._undecided.items() if now - since > self._timeout + _LATE}
        if not late:
            return ()
        partition, seconds = max(late.items(), key=lambda one: one[1])
        more = f" and {len(late) - 1} more partitions" if len(late) > 1 else ""
        text = (
            f"{partition}{more}: the committed offset is part of a transaction that has not ended for {seconds:.0f} s"
        )
        return (Problem(ProblemKind.OFFSETS_UNSTABLE, text),)
