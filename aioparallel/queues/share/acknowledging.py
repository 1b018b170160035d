"""Sends acknowledgements and renewals, and handles their answers."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from aioparallel.group.share_client import Acknowledged, AcknowledgeType, ShareClient
from aioparallel.observe.record_logging import coordinates
from aioparallel.queues.share.locks import Lock, Locks
from aioparallel.records.record import Record, TopicPartition
from aioparallel.records.user_errors import RAISED, refuse_coroutine

__all__ = ["Acknowledgements", "OnLate", "RareLines"]

logger = logging.getLogger(__name__)

OnLate = Callable[[Record[Any, Any]], None]
"""A function of a record that was handled and may be, or may have been, delivered again."""

_LOG_PAUSE: Final = 5.0
"""Seconds between two lines of a kind."""
_LOST: Final = (
    ", and it is LOST: set dead_letter=, or let the brokers write dead letters (errors.deadletterqueue.topic.name, "
    "from Kafka 4.4 on)"
)
_LATE: Final[Mapping[Acknowledged, str]] = {
    Acknowledged.NOT_HELD: "its lock had ended",
    Acknowledged.NOT_SENT: "its acknowledgement could not be sent before its lock ended",
    Acknowledged.DONE: "its lock had ended by this member's clock, and the broker has not said whether it still held",
}


class RareLines:
    """Limits the lines of one kind."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._at = -math.inf
        self._left_out = 0

    def more(self) -> str | None:
        """Return what to append to a line that may be written now: how many were left out. None: it may not."""
        now = self._now()
        if now - self._at < _LOG_PAUSE:
            self._left_out += 1
            return None
        more = f" ({self._left_out} more such records were not logged)" if self._left_out else ""
        self._at, self._left_out = now, 0
        return more


class Acknowledgements:
    """The acknowledgements of a run. Make it within the running loop.

    ``on_settled()`` is called when the last one is answered. ``on_renewed()``: a lock begins anew. ``on_lost(lock)``:
    the broker refused to renew a lock, because it has ended. ``fatal(error)``: ends the run with an error of
    ``on_late`` that is no Exception.
    """

    def __init__(
        self,
        client: ShareClient,
        locks: Locks,
        on_late: OnLate | None,
        *,
        on_settled: Callable[[], None],
        on_renewed: Callable[[], None],
        on_lost: Callable[[Lock], None],
        fatal: Callable[[BaseException], None],
    ) -> None:
        self._client = client
        self._locks = locks
        self._on_late = on_late
        self._on_settled = on_settled
        self._on_renewed = on_renewed
        self._on_lost = on_lost
        self._fatal = fatal
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._answer = asyncio.Event()  # to the last of a portion
        self._late_lines = RareLines(self._time)
        self._given_up_lines = RareLines(self._time)
        self._portion = 0
        # How many are not answered, by partition and portion. Who waits for all that were sent so far begins a new
        # portion.
        self._unanswered: dict[tuple[int, TopicPartition], int] = {}
        self.done = dict.fromkeys(AcknowledgeType, 0)
        """Acknowledgements that the broker has, by type."""
        self.late = 0
        """Records that were handled and acknowledged too late."""
        self.given_up = 0
        """Records that were released in their last delivery, or whose lock ended in it."""
        self.unknown = 0
        """Records that were handled and of which it is unknown whether they are acknowledged."""
        self.again_at = -math.inf
        """When a record was last released, or its lock was seen to have ended: it may be acquired again."""
        self.doubtful_until = -math.inf
        """The last end of a lock whose acknowledgement may not have arrived. Its record may come again until then."""

    def accept(self, lock: Lock) -> None:
        """The record of this lock has ended well."""
        if lock.is_lost:
            # Not within this call: the engine is in the middle of a step, and on_late may be the user's.
            self._loop.call_soon(self._is_late, lock, Acknowledged.NOT_HELD)
        else:
            self._send(lock, AcknowledgeType.ACCEPT)

    def release(self, lock: Lock) -> None:
        """The record of this lock is to be delivered again."""
        if lock.is_last:
            self._is_given_up(lock)
        if not lock.is_lost:
            self._send(lock, AcknowledgeType.RELEASE)

    def reject(self, lock: Lock) -> None:
        """The record of this lock is not to be delivered again."""
        if not lock.is_lost:
            self._send(lock, AcknowledgeType.REJECT)

    def renew(self, lock: Lock) -> None:
        """Let this lock begin anew. It is not waited for."""
        lock.is_renewing = True
        self._client.acknowledge(lock.partition, lock.offset, AcknowledgeType.RENEW, partial(self._renewed, lock))

    @property
    def unanswered(self) -> int:
        """How many acknowledgements are not answered."""
        return sum(self._unanswered.values())

    async def settled(self, ends: float) -> Counter[TopicPartition]:
        """Wait until all acknowledgements that were sent so far are answered. Returns how many of them are not, by
        partition, at ``ends`` on the loop's clock."""
        last, self._portion = self._portion, self._portion + 1
        try:
            async with asyncio.timeout_at(ends):
                while self._owing(last):
                    self._answer.clear()
                    await self._answer.wait()
        except TimeoutError:
            pass
        return self._owing(last)

    def _owing(self, last: int) -> Counter[TopicPartition]:
        found = Counter[TopicPartition]()
        for (portion, partition), count in self._unanswered.items():
            if portion <= last:
                found[partition] += count
        return found

    def _send(self, lock: Lock, kind: AcknowledgeType) -> None:
        self._locks.remove(lock)
        partition = lock.partition
        portion = self._portion, partition
        self._unanswered[portion] = self._unanswered.get(portion, 0) + 1
        self._client.acknowledge(partition, lock.offset, kind, partial(self._answered, lock, kind, portion))

    def _answered(
        self,
        lock: Lock,
        kind: AcknowledgeType,
        portion: tuple[int, TopicPartition],
        answer: Acknowledged,
        _: float,
    ) -> None:
        if answer is Acknowledged.DONE:
            self.done[kind] += 1
        elif answer is not Acknowledged.NOT_HELD:
            self.doubtful_until = max(self.doubtful_until, lock.ends)
        if answer is Acknowledged.NOT_HELD or kind is AcknowledgeType.RELEASE:
            self.again_at = self._time()
        if kind is AcknowledgeType.ACCEPT:
            if answer is Acknowledged.UNKNOWN:
                self.unknown += 1
            elif answer is not Acknowledged.DONE or self._time() >= lock.ends:
                # What arrives below the group's start offset is DONE, even if another member has handled the record
                # since. The request may have left long after the handler's end: the process may have hung.
                self._is_late(lock, answer)
        left = self._unanswered[portion] - 1
        if left:
            self._unanswered[portion] = left
            return
        del self._unanswered[portion]
        self._answer.set()
        if not self._unanswered:
            self._on_settled()

    def _renewed(self, lock: Lock, answer: Acknowledged, ends: float) -> None:
        if answer is Acknowledged.DONE:
            self.done[AcknowledgeType.RENEW] += 1
            self._locks.renewed(lock, ends, self._time())
            self._on_renewed()
            return
        lock.is_renewing = False
        if answer is Acknowledged.NOT_HELD and lock in self._locks:  # else its record has ended meanwhile
            self._on_lost(lock)

    def _is_late(self, lock: Lock, answer: Acknowledged) -> None:
        record = lock.record
        assert record is not None
        self.late += 1
        self._log(record, answer)
        if self._on_late is None:
            return
        try:
            returned: object = self._on_late(record)
            refuse_coroutine(returned)
        except RAISED:
            logger.exception("on_late failed for %s", record.place, extra={"action": "on_late_failed"})
        except BaseException as error:
            error.add_note(f"in on_late, for {record.place}")
            self._fatal(error)

    def _is_given_up(self, lock: Lock) -> None:
        record = lock.record
        assert record is not None
        self.given_up += 1
        more = self._given_up_lines.more()
        if more is None:
            return
        topic = self._client.dead_letter_topic
        logger.log(
            logging.ERROR if topic is None else logging.WARNING,
            "%s did not end in delivery %d, the last one: the share group gives it up%s%s",
            record.place,
            record.delivery_count,
            _LOST if topic is None else f", and a broker writes it to {topic}",
            more,
            extra={"action": "share_given_up", "delivery_count": record.delivery_count, **coordinates(record)},
        )

    def _log(self, record: Record[Any, Any], answer: Acknowledged) -> None:
        more = self._late_lines.more()
        if more is None:
            return
        logger.warning(
            "%s was handled, but acknowledged too late: %s; it may be handled again, or has been, by any member%s",
            record.place,
            _LATE.get(answer, answer.value),
            more,
            extra={"action": "acknowledged_late", **coordinates(record)},
        )
