"""The outbox of a consumer that commits in transactions: returned outputs wait here for the next transaction.

A record is complete as soon as its outputs are in the list of its assignment. It is never in the state *producing*, and
the next record of its key can run. So size, headers and topic of an output are checked before. If only a broker refuses
an output, the record cannot run again; see :mod:`aioparallel.persistence.transactions.refused_outputs`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, cast

from aioparallel.delivery.outputs import changed_since, outputs_in, size_of
from aioparallel.delivery.producer import TooLarge
from aioparallel.delivery.shrinking import SentLetter
from aioparallel.delivery.waiters import Waiters
from aioparallel.engine.sinks import DeliveryListener, Offered
from aioparallel.group.assignment import Assignment
from aioparallel.persistence.transactions.pending_outputs import Entry, Waiting
from aioparallel.persistence.transactions.producer import TransactionalProducer
from aioparallel.records.errors import ClientError, InvalidOutput, ProduceFailed
from aioparallel.records.record import Outgoing, Record

__all__ = ["TransactionOutbox"]

AnyRecord = Record[Any, Any]

_LOOK_UP: Final = 5.0
"""Seconds to look up whether a topic exists."""


class TransactionOutbox:
    """An :class:`~aioparallel.engine.sinks.OutputSink`. ``bound``: the most waiting bytes; above it, finished handlers
    wait as well. ``on_much()`` is called when half of it waits, to begin a transaction."""

    is_exact = True

    def __init__(self, producer: TransactionalProducer, bound: int) -> None:
        self._producer = producer
        self._bound = bound
        self._plain_size = producer.unchecked_bytes
        self._waiters = Waiters()
        self._partitions: dict[str, int] = {}  # partition counts of topics that exist
        self._doubtful: set[str] = set()  # topics in _partitions that may be gone
        self._unknown: set[str] = set()
        self._looking: asyncio.Task[None] | None = None
        self._trouble = ""
        self.waiting = Waiting()
        self.on_much: Callable[[], None] | None = None
        self._tell_at = bound // 2
        self._left_behind = 0

    # -- the engine's side ------------------------------------------------------------------------------

    def offer(self, record: AnyRecord, value: object, listener: DeliveryListener) -> Offered | None:
        """Add a single output of a known topic at once, if there is capacity."""
        if type(value) is not Outgoing or self._is_full:
            return None
        try:
            value.check()
        except TypeError:
            return None  # deliver() comes next, and reports it
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
        """Return the outputs in a value; None if there are none. Raises InvalidOutput."""
        outputs = outputs_in(record, value)
        self._unknown.update(output.topic for output in outputs or () if not self._is_known(output))
        return outputs

    def room(self) -> Awaitable[None] | None:
        """Return None if there is capacity and all topics of outputs are known, else what to await before asking
        again."""
        if self._unknown:
            if self._looking is None:
                self._looking = asyncio.get_running_loop().create_task(self._look_up(), name="aioparallel-topics")
            return asyncio.shield(self._looking)
        return self._waiters.enter() if self._is_full else None

    def deliver(
        self, record: AnyRecord, collected: object, listener: DeliveryListener, together: Sequence[AnyRecord] = ()
    ) -> None:
        """Add the outputs or the dead letter of a record, even without capacity, which completes the record."""
        outputs = cast("Sequence[Outgoing]", collected)
        if (failure := self._failure(record, outputs)) is not None:
            listener.undelivered(record, failure)
            return
        if isinstance(outputs[0], SentLetter):  # a dead letter, or the record for a retry topic
            self.waiting.add_letter(cast("Assignment", record._source), record, outputs[0])
            self._look_at_bytes()
        else:
            more = outputs if len(outputs) > 1 else ()
            self._add(record, Entry(record, outputs[0], together=together, more=more))
        listener.delivered((record,))
        if not self._is_full:
            self._waiters.wake(1)

    def _add(self, record: AnyRecord, entry: Entry) -> None:
        self.waiting.add(cast("Assignment", record._source), entry)
        self._look_at_bytes()

    def _look_at_bytes(self) -> None:
        waiting = self.waiting
        if waiting.bytes >= self._tell_at:
            self._tell_at = waiting.bytes + self._bound // 2
            if self.on_much is not None:
                self.on_much()

    # -- the committer's side ---------------------------------------------------------------------------

    def cutting(self) -> None:
        """Note that a transaction takes all waiting outputs."""
        self._tell_at = self.waiting.bytes + self._bound // 2

    def left(self) -> None:
        """Note that outputs were removed."""
        self._tell_at = min(self._tell_at, self.waiting.bytes + self._bound // 2)
        if not self._is_full:
            self._waiters.wake_all()

    def left_behind(self, size: int) -> None:
        """Note how many bytes wait for a later transaction, because their records are above the end of a cut map. They
        do not count towards the bound: records below would wait for them, and they for those records."""
        self._left_behind = size
        self.left()

    @property
    def bytes(self) -> int:
        """Bytes that may go into the next transaction."""
        return self.waiting.bytes - self._left_behind

    @property
    def _is_full(self) -> bool:
        return self.bytes >= self._bound

    async def close(self) -> None:
        """Cancel the look-up of topics."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    # -- checks -----------------------------------------------------------------------------------------

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
        """Return why the output cannot be sent, or None. It does not ask a broker."""
        reason = self._producer.refusal(output)
        return self._missing(output) if reason is None else reason

    def _missing(self, output: Outgoing) -> str | None:
        """Return why the topic or partition is missing, or None. It does not ask a broker."""
        partitions = self._partitions.get(output.topic)
        if partitions is None:
            return self._trouble or "topic not found: create it, or check the name (nothing was created)"
        if output.partition is not None and output.partition >= partitions:
            return f"the topic has no partition {output.partition}, it has {partitions} (0 to {partitions - 1})"
        return None

    def _is_known(self, output: Outgoing) -> bool:
        # An invalid output needs no look-up; deliver() reports it.
        if self._producer.refusal(output) is not None:
            return True
        return output.topic not in self._doubtful and self._missing(output) is None

    def doubt(self, topics: Iterable[str]) -> None:
        """Look these topics up again at their next output. Outputs that were checked before are not affected."""
        self._doubtful.update(topic for topic in topics if topic in self._partitions)

    async def know(self, topics: Iterable[str], timeout: float) -> None:
        """Look these topics up before they are used. Raises TimeoutError, ClientError."""
        await self._ask(frozenset(topics), timeout)

    async def _look_up(self) -> None:
        topics = frozenset(self._unknown)
        try:
            await self._ask(topics, _LOOK_UP)
            self._trouble = ""
        except (ClientError, TimeoutError, OSError) as error:
            self._trouble = f"the cluster does not tell whether the topic exists: {str(error) or 'no answer'}"
        finally:
            # Not earlier: topics added during the look-up must stay for the next one.
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
