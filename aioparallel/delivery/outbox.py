"""The outbox: sends what handlers return to the brokers.

A record is *producing* from the end of its handler until its last output is acknowledged. Its worker is free, but its
lane is closed. So the outputs of a lane keep the order of its records, whatever fails in between. A lane completes one
record per round trip to the broker, and other lanes use the time.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, cast

from aioparallel.config.policies import Producing
from aioparallel.delivery.outputs import changed_since, outputs_in, size_of, tell
from aioparallel.delivery.producer import PendingOutput, Producer
from aioparallel.delivery.waiters import Waiters
from aioparallel.engine.sinks import DeliveryListener, Offered
from aioparallel.records.errors import ProduceFailed
from aioparallel.records.record import Outgoing, Produced, Record

__all__ = ["Outbox"]


class _Sent(PendingOutput):
    """The only output of a record, which is sent by itself."""

    __slots__ = ("listener", "outbox", "record", "size")

    def __init__(
        self, outbox: Outbox, record: Record[Any, Any], output: Outgoing, size: int, listener: DeliveryListener
    ) -> None:
        self.output = output
        self.outbox = outbox
        self.record = record
        self.size = size
        self.listener = listener

    def placed(self, place: Produced) -> None:
        outbox = self.outbox
        if outbox.on_produced is not None:
            tell(outbox.on_produced, self.record, self.output, place, outbox.fatal)
        # A whole batch is acknowledged at once, often hundreds of outputs: report them to the engine together.
        if not outbox.acknowledged:
            asyncio.get_running_loop().call_soon(outbox.end_acknowledged)
        outbox.acknowledged.append(self)

    def failed(self, failure: ProduceFailed) -> None:
        self.outbox.ended(self.size, 1)
        self.listener.undelivered(self.record, failure)


class Outbox:
    """Sends outputs through one producer and counts unacknowledged bytes. An
    :class:`~aioparallel.engine.sinks.OutputSink`.

    ``fatal(error)`` ends the run with an error of ``on_produced`` that is no Exception.
    """

    is_exact = False

    def __init__(self, producer: Producer, options: Producing, fatal: Callable[[BaseException], None]) -> None:
        self._producer = producer
        self.fatal = fatal
        self.on_produced = options.on_produced
        self._bound = options.max_unacknowledged_bytes
        self._waiters = Waiters()
        self.unacknowledged_bytes = 0
        """Bytes of unacknowledged outputs, with their overhead."""
        self.acknowledged: list[_Sent] = []
        """Acknowledged outputs that are not reported to the engine yet."""

    def offer(self, record: Record[Any, Any], value: object, listener: DeliveryListener) -> Offered | None:
        """Send a single output at once, if there is capacity."""
        if type(value) is not Outgoing or self.unacknowledged_bytes >= self._bound:
            return None
        try:
            value.check()
        except TypeError:
            return None  # deliver() follows and reports it
        self._send_one(record, value, listener)
        return Offered.LEAVING

    def collect(self, record: Record[Any, Any], value: object) -> Sequence[Outgoing] | None:
        """Return the outputs in a value; None if there are none. Raises InvalidOutput."""
        return outputs_in(record, value)

    def room(self) -> Awaitable[None] | None:
        """Return None if there is capacity, else what to await before asking again."""
        if self.unacknowledged_bytes < self._bound:
            return None
        return self._waiters.enter()

    def deliver(
        self,
        record: Record[Any, Any],
        collected: object,
        listener: DeliveryListener,
        together: Sequence[Record[Any, Any]] = (),
    ) -> None:
        """Send the outputs of a record, even without capacity."""
        outputs = cast("Sequence[Outgoing]", collected)
        if (changed := changed_since(record, outputs)) is not None:
            asyncio.get_running_loop().call_soon(listener.undelivered, record, changed)
        elif len(outputs) == 1:
            self._send_one(record, outputs[0], listener)
        else:
            size = sum(map(size_of, outputs))
            self.unacknowledged_bytes += size
            self._producer.send(outputs, partial(self._delivered, record, outputs, size, listener))
        if self.unacknowledged_bytes < self._bound:
            self._waiters.wake(1)

    def _send_one(self, record: Record[Any, Any], output: Outgoing, listener: DeliveryListener) -> None:
        size = size_of(output)
        self.unacknowledged_bytes += size
        self._producer.send_one(_Sent(self, record, output, size, listener))

    # -- delivery results -------------------------------------------------------------------------------

    def end_acknowledged(self) -> None:
        """Report acknowledged outputs to the engine."""
        acknowledged, self.acknowledged = self.acknowledged, []
        self.ended(sum([sent.size for sent in acknowledged]), len(acknowledged))
        records: defaultdict[DeliveryListener, list[Record[Any, Any]]] = defaultdict(list)
        for sent in acknowledged:
            records[sent.listener].append(sent.record)
        for listener, delivered in records.items():
            listener.delivered(delivered)

    def _delivered(
        self,
        record: Record[Any, Any],
        outputs: Sequence[Outgoing],
        size: int,
        listener: DeliveryListener,
        result: Sequence[Produced] | ProduceFailed,
    ) -> None:
        if isinstance(result, ProduceFailed):
            listener.undelivered(record, result)
        else:
            if self.on_produced is not None:
                for output, place in zip(outputs, result, strict=True):
                    tell(self.on_produced, record, output, place, self.fatal)
            listener.delivered((record,))
        self.ended(size, 1)

    def ended(self, size: int, records: int) -> None:
        """Subtract bytes that are no longer on their way, and wake waiters. ``records``: how many records had them."""
        self.unacknowledged_bytes -= size
        if self.unacknowledged_bytes:
            self._waiters.wake(records)
        else:
            self._waiters.wake_all()
