"""The outbox: what handlers return, on its way to the brokers.

A record is *producing* from the handler's end until the last of its outputs is acknowledged: its worker is free, its
lane is closed. So the outputs of one lane keep the order of its records whatever fails in between, and a lane makes
one record per round trip to the broker, while others use the wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Sequence
from functools import partial
from typing import Any, cast

from aioparallel.delivery.producer import PendingOutput, Producer
from aioparallel.delivery.waiters import Waiters
from aioparallel.engine.outlets import Receipts
from aioparallel.errors import InvalidOutput, ProduceFailed
from aioparallel.policies import OnProduced, Producing
from aioparallel.records import Outgoing, Produced, Record
from aioparallel.wording import kind_of

__all__ = ["Outbox"]

logger = logging.getLogger(__name__)

# What an output costs beside its bytes: objects, its place in a batch.
_OVERHEAD = 256


class _Sent(PendingOutput):
    """An output that was sent by itself, and the record whose only one it is."""

    __slots__ = ("outbox", "receipts", "record", "size")

    def __init__(
        self, outbox: Outbox, record: Record[Any, Any], output: Outgoing, size: int, receipts: Receipts
    ) -> None:
        self.output = output
        self.outbox = outbox
        self.record = record
        self.size = size
        self.receipts = receipts

    def placed(self, place: Produced) -> None:
        outbox = self.outbox
        if outbox.on_produced is not None:
            outbox.tell(outbox.on_produced, self.record, self.output, place)
        # They come by hundreds, a whole batch at once: the engine is told when that is through.
        if not outbox.acknowledged:
            asyncio.get_running_loop().call_soon(outbox.end_acknowledged)
        outbox.acknowledged.append(self)

    def failed(self, failure: ProduceFailed) -> None:
        self.outbox.ended(self.size, 1)
        self.receipts.undelivered(self.record, failure)


class Outbox:
    """Counts what is not acknowledged, sends through one producer. An :class:`~aioparallel.engine.outlets.Outlet`."""

    def __init__(self, producer: Producer, options: Producing) -> None:
        self._producer = producer
        self.on_produced = options.on_produced
        self._bound = options.max_unacknowledged_bytes
        self._waiters = Waiters()
        self.unacknowledged_bytes = 0
        """Of outputs sent and not acknowledged, with what they cost beside their bytes."""
        self.acknowledged: list[_Sent] = []
        """And not told yet."""

    def offer(self, record: Record[Any, Any], value: object, receipts: Receipts) -> bool:
        """See :class:`~aioparallel.engine.outlets.Outlet`."""
        if type(value) is not Outgoing or self.unacknowledged_bytes >= self._bound:
            return False
        try:
            value.check()
        except TypeError:
            return False  # deliver() comes next, and tells it
        self._send_one(record, value, receipts)
        return True

    def collect(self, record: Record[Any, Any], value: object) -> Sequence[Outgoing] | None:
        """See :class:`~aioparallel.engine.outlets.Outlet`."""
        if isinstance(value, Outgoing):
            return (value,)
        if value is None:
            return None
        if not isinstance(value, Iterable) or isinstance(value, str | bytes | dict):
            raise _wrong(record, kind_of(value))
        outputs = list(cast("Iterable[object]", value))
        for output in outputs:
            if not isinstance(output, Outgoing):
                raise _wrong(record, f"{kind_of(value)} with {kind_of(output)} in it")
        return cast("list[Outgoing]", outputs) or None

    def room(self) -> Awaitable[None] | None:
        """See :class:`~aioparallel.engine.outlets.Outlet`."""
        if self.unacknowledged_bytes < self._bound:
            return None
        return self._waiters.enter()

    def deliver(self, record: Record[Any, Any], collected: object, receipts: Receipts) -> None:
        """See :class:`~aioparallel.engine.outlets.Outlet`."""
        outputs = cast("Sequence[Outgoing]", collected)
        if (changed := _changed(record, outputs)) is not None:
            asyncio.get_running_loop().call_soon(receipts.undelivered, record, changed)
        elif len(outputs) == 1:
            self._send_one(record, outputs[0], receipts)
        else:
            size = sum(map(_size, outputs))
            self.unacknowledged_bytes += size
            self._producer.send(outputs, partial(self._delivered, record, outputs, size, receipts))
        if self.unacknowledged_bytes < self._bound:
            self._waiters.wake(1)

    def _send_one(self, record: Record[Any, Any], output: Outgoing, receipts: Receipts) -> None:
        size = _size(output)
        self.unacknowledged_bytes += size
        self._producer.send_one(_Sent(self, record, output, size, receipts))

    # -- what became of it ------------------------------------------------------------------------------

    def end_acknowledged(self) -> None:
        """Tell the engine of a batch."""
        acknowledged, self.acknowledged = self.acknowledged, []
        self.ended(sum([sent.size for sent in acknowledged]), len(acknowledged))
        records: defaultdict[Receipts, list[Record[Any, Any]]] = defaultdict(list)
        for sent in acknowledged:
            records[sent.receipts].append(sent.record)
        for receipts, delivered in records.items():
            receipts.delivered(delivered)

    def _delivered(
        self,
        record: Record[Any, Any],
        outputs: Sequence[Outgoing],
        size: int,
        receipts: Receipts,
        result: Sequence[Produced] | ProduceFailed,
    ) -> None:
        if isinstance(result, ProduceFailed):
            receipts.undelivered(record, result)
        else:
            if self.on_produced is not None:
                for output, place in zip(outputs, result, strict=True):
                    self.tell(self.on_produced, record, output, place)
            receipts.delivered((record,))
        self.ended(size, 1)

    def ended(self, size: int, records: int) -> None:
        """So many bytes of so many records are not on their way any more."""
        self.unacknowledged_bytes -= size
        if self.unacknowledged_bytes:
            self._waiters.wake(records)  # a record less makes room for one more
        else:
            self._waiters.wake_all()

    def tell(self, on_produced: OnProduced, record: Record[Any, Any], output: Outgoing, place: Produced) -> None:
        """Call it; nothing comes of what it raises."""
        try:
            on_produced(record, output, place)
        except (Exception, asyncio.CancelledError):  # nothing is awaited: a cancellation is its own
            logger.exception(
                "on_produced failed for the output of %s at %s-%d offset %d, which stands there all the same",
                record,
                place.topic,
                place.partition,
                place.offset,
                extra={"action": "on_produced_failed"},
            )


def _size(output: Outgoing) -> int:
    size = _OVERHEAD + (len(output.value) if output.value is not None else 0)
    if output.key is not None:
        size += len(output.key)
    for name, value in output.headers:
        size += len(name) + (len(value) if value is not None else 0)
    return size


def _changed(record: Record[Any, Any], outputs: Iterable[Outgoing]) -> InvalidOutput | None:
    """They were right when they were made, and may have been changed since."""
    try:
        for output in outputs:
            output.check()
    except TypeError as error:
        return InvalidOutput(f"of {record.topic_partition} offset {record.offset}, changed after it was made: {error}")
    return None


def _wrong(record: Record[Any, Any], found: str) -> InvalidOutput:
    return InvalidOutput(
        f"the handler returned {found} for {record.topic_partition} offset {record.offset}: it may return None, an "
        "Outgoing, or an iterable of them; to get other results use `async for result in consumer.results(handler)`",
        found,
    )
