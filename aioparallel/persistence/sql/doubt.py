"""Finds out whether a transaction was committed when its COMMIT got no answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from aioparallel.persistence.sql.database_errors import NO_ANSWER, describe
from aioparallel.persistence.sql.opened import CompleteAlready, Opening
from aioparallel.persistence.sql.taking import Taken
from aioparallel.records.errors import NotToBlame
from aioparallel.records.record import TopicPartition

__all__ = ["Fenced", "InDoubt", "PartlyDone", "are_done"]

logger = logging.getLogger(__name__)

_FENCED: Final = 1.0
"""Seconds until a record of a lost partition is retried. Its assignment ends before that."""
_ANSWER: Final = 10.0
"""Seconds for one query, which may wait for the end of another transaction. After that, it is retried."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


class Fenced(NotToBlame):
    """Another member owns the partition now. Nothing of this transaction is in the database. The other member processes
    the record, so this does not count as a failure of it."""

    is_bounded = False

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(_FENCED)
        self.partition = partition

    def __str__(self) -> str:
        return f"another member owns {self.partition} now; nothing of this transaction was written"


class InDoubt(NotToBlame):
    """It is unknown whether the transaction was committed. The next run of the record finds out."""

    is_bounded = False


class PartlyDone(Exception):
    """Some records of a batch are complete already. Another batch, whose COMMIT was in doubt, committed them."""

    def __init__(self, done: Collection[tuple[TopicPartition, int]]) -> None:
        super().__init__(done)
        self.done = done


async def are_done(
    opening: Opening,
    offsets: Mapping[TopicPartition, Sequence[int]],
    taken: Mapping[TopicPartition, Taken],
    on_trouble: Callable[[Exception], object],
) -> bool:
    """Whether all these records are complete, or none. Retries until the database answers, and calls
    ``on_trouble(error)`` when it does not. Raises Fenced, and PartlyDone if only some are complete."""
    done: set[tuple[TopicPartition, int]] = set()
    for partition, of_it in offsets.items():
        done |= {
            (partition, offset) for offset in await _done_of(opening, partition, taken[partition], of_it, on_trouble)
        }
    if done and len(done) < sum(map(len, offsets.values())):
        raise PartlyDone(done)
    return bool(done)


async def _done_of(
    opening: Opening,
    partition: TopicPartition,
    taken: Taken,
    offsets: Sequence[int],
    on_trouble: Callable[[Exception], object],
) -> set[int]:
    """Return the offsets that are complete. An open transaction may be completing some of them. Inserting their rows
    waits for its end, and then reports that one of them exists, but not which."""
    done: set[int] = set()
    pause = _FIRST_PAUSE
    while left := [offset for offset in offsets if offset not in done]:
        try:
            async with asyncio.timeout(_ANSWER):
                if not await _would_be_done(opening, partition, taken, left):
                    break
                async with opening.engine.connect() as connection:
                    transaction = await opening.open(connection)
                    try:
                        done |= await transaction.done_among(taken.owned, left)
                    finally:
                        await transaction.roll_back()
        except NO_ANSWER as error:
            on_trouble(error)
            logger.log(
                logging.WARNING if pause == _FIRST_PAUSE else logging.DEBUG,
                "%s offset %d and %d more: in doubt: %s",
                partition,
                left[0],
                len(left) - 1,
                describe(error),
                extra={"action": "commit_in_doubt"},
            )
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)
    return done


async def _would_be_done(opening: Opening, partition: TopicPartition, taken: Taken, offsets: Sequence[int]) -> bool:
    """Whether one of these is complete once all open transactions have ended. Raises Fenced."""
    async with opening.engine.connect() as connection:
        transaction = await opening.open(connection)
        try:
            if not await transaction.add_done(taken.owned, offsets):
                raise Fenced(partition)
        except CompleteAlready:
            return True
        finally:
            await transaction.roll_back()
    return False
