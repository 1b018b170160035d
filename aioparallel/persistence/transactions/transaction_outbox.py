"""The outbox of a consumer that commits in transactions: what handlers return waits here for the next one.

A record is complete when its outputs stand in the list of its session: nothing is *producing*, and its key goes on. So
all that can be known of an output is looked at before: its size, its headers, its topic. What only a broker refuses
comes too late for the record to be run again; see :mod:`aioparallel.persistence.transactions.refused_outputs`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, cast

from aioparallel.delivery.outputs import changed_since, outputs_in, size_of
from aioparallel.delivery.producer import TooLarge
from aioparallel.delivery.waiters import Waiters
from aioparallel.engine.sinks import DeliveryListener, Offered
from aioparallel.group.sessions import Session
from aioparallel.persistence.transactions.pending_outputs import Entry, Waiting
from aioparallel.persistence.transactions.producer import TransactionalProducer
from aioparallel.records.errors import ClientError, InvalidOutput, ProduceFailed
from aioparallel.records.record import Outgoing, Record

__all__ = ["Letters", "TransactionOutbox"]

AnyRecord = Record[Any, Any]

_LOOK_UP: Final = 5.0
"""Seconds to find out whether a topic exists."""


class TransactionOutbox:
    """An :class:`~aioparallel.engine.sinks.OutputSink`. ``bound``: bytes that may wait; then handlers that have ended
    wait as well. ``on_much()``: half of that waits, a transaction should begin."""

    is_exact = True

    def __init__(self, producer: TransactionalProducer, bound: int) -> None:
        self._producer = producer
        self._bound = bound
        self._plain_size = producer.unchecked_bytes
        self._waiters = Waiters()
        self._partitions: dict[str, int] = {}  # of the topics that are known to exist
        self._doubtful: set[str] = set()  # of those, which may be gone
        self._unknown: set[str] = set()
        self._looking: asyncio.Task[None] | None = None
        self._trouble = ""
        self.waiting = Waiting()
        self.on_much: Callable[[], None] | None = None
        self._tell_at = bound // 2
        self._left_behind = 0

    # -- the engine's side ------------------------------------------------------------------------------

    def offer(self, record: AnyRecord, value: object, listener: DeliveryListener) -> Offered | None:
        """See :class:`~aioparallel.engine.sinks.OutputSink`."""
        if type(value) is not Outgoing or self._is_full:
            return None
        try:
            value.check()
        except TypeError:
            return None  # deliver() comes next, and tells it
        size = size_of(value)
        if value.topic in self._doubtful:
            return None
        if value.topic not in self._partitions or value.partition is not None or size > self._plain_size:
            if self._refusal(value) is not None:
                return None
        elif value.headers and self._producer.refusal(value) is not None:
            return None
        self._add(record, Entry(record, value, size))
        return Offered.LEFT

    def collect(self, record: AnyRecord, value: object) -> Sequence[Outgoing] | None:
        """See :class:`~aioparallel.engine.sinks.OutputSink`."""
        outputs = outputs_in(record, value)
        self._unknown.update(output.topic for output in outputs or () if not self._is_known(output))
        return outputs

    def room(self) -> Awaitable[None] | None:
        """See :class:`~aioparallel.engine.sinks.OutputSink`. Who has outputs for a topic that was never seen waits here
        until it is known whether that exists."""
        if self._unknown:
            if self._looking is None:
                self._looking = asyncio.get_running_loop().create_task(self._look_up(), name="aioparallel-topics")
            return asyncio.shield(self._looking)
        return self._waiters.enter() if self._is_full else None

    def deliver(
        self, record: AnyRecord, collected: object, listener: DeliveryListener, together: Sequence[AnyRecord] = ()
    ) -> None:
        """See :class:`~aioparallel.engine.sinks.OutputSink`."""
        outputs = cast("Sequence[Outgoing]", collected)
        if self._take(record, outputs, listener, together=together) and not self._is_full:
            self._waiters.wake(1)

    def deliver_letter(self, record: AnyRecord, letter: Sequence[Outgoing], listener: DeliveryListener) -> None:
        """The record itself leaves, to where it is put away."""
        self._take(record, letter, listener, is_letter=True)

    def _take(
        self,
        record: AnyRecord,
        outputs: Sequence[Outgoing],
        listener: DeliveryListener,
        *,
        together: Sequence[AnyRecord] = (),
        is_letter: bool = False,
    ) -> bool:
        """Whether all of it may leave. Then it waits for that, and its record is complete; else it fails."""
        if (failure := self._failure(record, outputs)) is not None:
            listener.undelivered(record, failure)
            return False
        if is_letter:
            self.waiting.add_letter(cast("Session", record._source), record, outputs)
            self._look_at_bytes()
        else:
            more = outputs if len(outputs) > 1 else ()
            self._add(record, Entry(record, outputs[0], together=together, more=more))
        listener.delivered((record,))
        return True

    def _add(self, record: AnyRecord, entry: Entry) -> None:
        self.waiting.add(cast("Session", record._source), entry)
        self._look_at_bytes()

    def _look_at_bytes(self) -> None:
        waiting = self.waiting
        if waiting.bytes >= self._tell_at:
            self._tell_at = waiting.bytes + self._bound // 2
            if self.on_much is not None:
                self.on_much()

    # -- the committer's side ---------------------------------------------------------------------------

    def cutting(self) -> None:
        """A transaction takes what waits now."""
        self._tell_at = self.waiting.bytes + self._bound // 2

    def left(self) -> None:
        """Some of it has left."""
        self._tell_at = min(self._tell_at, self.waiting.bytes + self._bound // 2)
        if not self._is_full:
            self._waiters.wake_all()

    def left_behind(self, size: int) -> None:
        """So many bytes wait for more than the next transaction: their records are above what a cut map can say. They
        take no room, or those that they wait for would wait for them."""
        self._left_behind = size
        self.left()

    @property
    def bytes(self) -> int:
        """That wait and may go with the next transaction."""
        return self.waiting.bytes - self._left_behind

    @property
    def _is_full(self) -> bool:
        return self.bytes >= self._bound

    async def close(self) -> None:
        """Look nothing up any more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    # -- what may leave ---------------------------------------------------------------------------------

    def _failure(self, record: AnyRecord, outputs: Iterable[Outgoing]) -> InvalidOutput | ProduceFailed | None:
        if (changed := changed_since(record, outputs)) is not None:
            return changed
        for output in outputs:
            if (reason := self._refusal(output)) is not None:
                passing = bool(self._trouble) and output.topic not in self._partitions
                too_large = isinstance(reason, TooLarge)
                return ProduceFailed(output.topic, output.partition, reason, passing=passing, too_large=too_large)
        return None

    def _refusal(self, output: Outgoing) -> str | None:
        """Why it cannot leave, as far as is known here."""
        reason = self._producer.refusal(output)
        return self._missing(output) if reason is None else reason

    def _missing(self, output: Outgoing) -> str | None:
        """Why the cluster has no place for it, as far as is known here."""
        partitions = self._partitions.get(output.topic)
        if partitions is None:
            return self._trouble or "topic not found: create it, or check the name (nothing was created)"
        if output.partition is not None and output.partition >= partitions:
            return f"the topic has no partition {output.partition}, it has {partitions} (0 to {partitions - 1})"
        return None

    def _is_known(self, output: Outgoing) -> bool:
        # With what is wrong by itself nothing is to be looked up; deliver() tells it.
        if self._producer.refusal(output) is not None:
            return True
        return output.topic not in self._doubtful and self._missing(output) is None

    def doubt(self, topics: Iterable[str]) -> None:
        """Look these up anew when the next output for them comes. Who has done that already goes by what was found."""
        self._doubtful.update(topic for topic in topics if topic in self._partitions)

    async def know(self, topics: Iterable[str], timeout: float) -> None:
        """Find out about these topics before they are used. Raises TimeoutError, ClientError."""
        await self._ask(frozenset(topics), timeout)

    async def _look_up(self) -> None:
        topics = frozenset(self._unknown)
        try:
            await self._ask(topics, _LOOK_UP)
            self._trouble = ""
        except (ClientError, TimeoutError, OSError) as error:
            self._trouble = f"the cluster does not tell whether the topic exists: {str(error) or 'no answer'}"
        finally:
            # Not before: who asked while others were looked up would find its own gone and not yet known.
            self._unknown -= topics
            self._looking = None

    async def _ask(self, topics: frozenset[str], timeout: float) -> None:
        found = await self._producer.partitions(topics, timeout)
        self._doubtful -= topics
        for topic in topics:
            numbers = [partition.partition for partition in found if partition.topic == topic]
            if numbers:
                self._partitions[topic] = max(numbers) + 1
            else:
                self._partitions.pop(topic, None)


class Letters:
    """Where dead letters and records for retry topics go: into the next transaction."""

    def __init__(self, outbox: TransactionOutbox) -> None:
        self._outbox = outbox

    def room(self) -> Awaitable[None] | None:
        """See :class:`~aioparallel.engine.sinks.OutputSink`."""
        return self._outbox.room()

    def deliver(self, record: AnyRecord, letter: Sequence[Outgoing], listener: DeliveryListener) -> None:
        """Let this one leave."""
        self._outbox.deliver_letter(record, letter, listener)
