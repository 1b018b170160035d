"""Writes a full snapshot piece by piece, while the state changes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any, Final

from aioparallel.config.state import State
from aioparallel.delivery.producer import Producer, sent
from aioparallel.persistence.state.increments import Named
from aioparallel.persistence.state.pieces import (
    LARGEST_VALUE,
    PIECE_BYTES,
    EntryWriter,
    Head,
    PieceKey,
    encode_head,
    encode_piece_key,
)
from aioparallel.persistence.state.view import Taken
from aioparallel.records.errors import ProduceFailed
from aioparallel.records.record import Outgoing, Produced, TopicPartition
from aioparallel.records.user_errors import RAISED, refuse_coroutine, repr_of

__all__ = ["DumpFailed", "Unwanted", "write_snapshot"]

_AT_ONCE: Final = 250
"""Values that are dumped in one turn of the event loop: about a millisecond. A pause of equal length follows."""
_ANSWER: Final = 5.0
"""Seconds for the acknowledgement of a piece. The snapshots of other partitions wait for this one."""
_UNACKNOWLEDGED: Final = 4
"""Pieces that may be unacknowledged."""


class Unwanted(Exception):
    """The partition was released. Its next owner may write to the same slot."""


class DumpFailed(Exception):
    """``State.dump`` raised, did not return bytes, or returned too many."""


async def write_snapshot(
    producer: Producer,
    topic: str,
    group_id: str,
    partition: TopicPartition,
    taken: Taken,
    policy: State[Any],
    piece_bytes: int = PIECE_BYTES,
) -> Named:
    """Write a snapshot in pieces of ``piece_bytes`` bytes. Returns its location.

    Raises ProduceFailed, DumpFailed, Unwanted.
    """
    writing = _Writing(producer, topic, PieceKey(group_id, partition, taken.slot, 0), taken)
    await writing.write(encode_head(Head(taken.position, taken.frozen.count)))
    entries = EntryWriter(piece_bytes)
    loop = asyncio.get_running_loop()
    for shard in taken.frozen.shards():
        for start in range(0, len(shard), _AT_ONCE):
            began = loop.time()
            entries.add([(key, _dumped(policy, key, value)) for key, value in shard[start : start + _AT_ONCE]])
            for piece in entries.full_pieces():
                await writing.write(piece)
            await asyncio.sleep(min(0.01, loop.time() - began))
    for piece in entries.last_piece():
        await writing.write(piece)
    first, after = await writing.finish()
    return Named(taken.slot, writing.id, round(taken.at * 1000), first, after, writing.pieces, taken.frozen.count)


def _dumped(policy: State[Any], key: bytes, value: Any) -> bytes:
    try:
        dumped = policy.dump(value)
        refuse_coroutine(dumped)
    except RAISED as error:
        raise DumpFailed(f"State dump raised {repr_of(error)} for the value of key {key!r}") from error
    if type(dumped) is not bytes:
        raise DumpFailed(f"State dump returned {type(dumped).__name__} for the value of key {key!r}; must return bytes")
    if len(dumped) > LARGEST_VALUE:
        raise DumpFailed(
            f"State dump returned {len(dumped):,} bytes for the value of key {key!r}; a full snapshot allows "
            f"{LARGEST_VALUE:,} at most: keep less for the key"
        )
    return dumped


class _Writing:
    """Sends the pieces of one snapshot in order."""

    def __init__(self, producer: Producer, topic: str, place: PieceKey, taken: Taken) -> None:
        self._taken = taken
        self.id = secrets.token_hex(8)
        self.pieces = 0
        self._producer = producer
        self._topic = topic
        self._place = place
        self._sent: list[asyncio.Future[Sequence[Produced] | ProduceFailed]] = []
        self._offsets: list[int] = []

    async def write(self, value: bytes) -> None:
        """Send the next piece. Raises ProduceFailed if an earlier one failed, and Unwanted."""
        while len(self._sent) >= _UNACKNOWLEDGED:
            await self._take_first()
        if self._taken.assignment.dropped:
            raise Unwanted
        key = encode_piece_key(self._place._replace(number=self.pieces))
        number = self._place.partition.partition
        output = Outgoing(self._topic, value, key, (("id", self.id.encode()),), partition=number)
        self.pieces += 1
        self._sent.append(sent(self._producer, (output,)))

    async def _take_first(self) -> None:
        try:
            async with asyncio.timeout(_ANSWER):
                result = await self._sent.pop(0)
        except TimeoutError:
            place = self._place.partition.partition
            raise ProduceFailed(self._topic, place, f"no answer within {_ANSWER:g} s", passing=True) from None
        if isinstance(result, ProduceFailed):
            raise result
        self._offsets.append(result[0].offset)

    async def finish(self) -> tuple[int, int]:
        """Wait for all pieces. Returns the first offset, and the one after the last. Raises ProduceFailed."""
        while self._sent:
            await self._take_first()
        if min(self._offsets) < 0:  # the broker recognised a batch as a duplicate, and no longer has its offset
            place = self._place.partition.partition
            raise ProduceFailed(self._topic, place, "the brokers no longer know the offset of a piece", passing=True)
        return self._offsets[0], self._offsets[-1] + 1
