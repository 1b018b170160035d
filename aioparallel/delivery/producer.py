"""The interface that a producing Kafka client must implement.

What a producer promises:

* Idempotence and ``acks=all``: what one producer sends to one partition is written in the order of the ``send`` calls,
  each output once, even after repeated requests.
* It tries again after temporary problems (a leader moves, a broker is away) for ``delivery_timeout`` seconds, which its
  constructor gets.
* If the broker refuses an output, only that output fails: not others of its batch, and not those sent later.
* Everything happens on the event loop that first used it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from aioparallel.observe.health import Problem
from aioparallel.observe.stats import BrokerOutputs
from aioparallel.records.errors import ProduceFailed
from aioparallel.records.record import Outgoing, Produced, TopicPartition

__all__ = ["OnDelivered", "PendingOutput", "Producer", "SentOutput", "TooLarge", "sent"]

OnDelivered = Callable[[Sequence[Produced] | ProduceFailed], None]
"""Called with the result of one :meth:`Producer.send`: the places of all outputs in order, or the failure."""


class TooLarge(str):
    """The reason of a failure if the output is too large. A smaller one can be written."""

    __slots__ = ()


class PendingOutput:
    """One output that is sent by itself. The sender makes a subclass, which handles the result.

    The producer sets ``timestamp`` and ``deadline`` when it takes the output.
    """

    __slots__ = ("deadline", "output", "timestamp")

    timestamp: int
    """Milliseconds since the epoch: of the output, or when the producer took it."""
    deadline: float
    """The event loop's time at which it fails. Deadlines ascend in the order of sending."""

    def __init__(self, output: Outgoing) -> None:
        self.output = output

    def placed(self, place: Produced) -> None:
        """The output is written and acknowledged."""
        raise NotImplementedError

    def failed(self, failure: ProduceFailed) -> None:
        """The output was not written, or it is unknown whether it was."""
        raise NotImplementedError


class SentOutput(PendingOutput):
    """An output whose place or failure is passed to a function."""

    __slots__ = ("_ended",)

    def __init__(self, output: Outgoing, ended: Callable[[Produced | ProduceFailed], None]) -> None:
        self.output = output
        self._ended = ended

    def placed(self, place: Produced) -> None:
        """Pass on the place."""
        self._ended(place)

    def failed(self, failure: ProduceFailed) -> None:
        """Pass on the failure."""
        self._ended(failure)


class Producer(Protocol):
    """Sends records. The docstring of this module says what it promises."""

    async def start(self, timeout: float) -> None:
        """Connect within ``timeout`` seconds. Optional: otherwise the first ``send`` connects in the background. Raises
        BrokerUnreachable or NotAuthorized."""

    async def stop(self, timeout: float) -> None:
        """Wait ``timeout`` seconds for outstanding acknowledgements, then fail the rest and close all connections.
        Takes at most a second more. Never raises. May be called even if it was not started."""

    async def partitions(self, topics: Collection[str], timeout: float) -> set[TopicPartition]:
        """Return all partitions of these topics. Creates no topic; topics that do not exist are not in the result.
        Raises TimeoutError."""

    def outputs(self) -> Sequence[BrokerOutputs]:
        """Return unacknowledged outputs, by broker. Sends no request."""

    def problems(self) -> Sequence[Problem]:
        """Return health problems: that nothing can be sent, and why; brokers that do not answer. Sends no request."""

    def send(self, outputs: Sequence[Outgoing], delivered: OnDelivered) -> None:
        """Take these outputs, at least one, and return at once.

        ``delivered`` is called exactly once, later, on the event loop, never within this call. When the last output is
        acknowledged, it gets the places of all. If one failed, it gets the first failure when none is outstanding any
        more; then some of the others may have been written. It must not raise.
        """

    def send_one(self, delivery: PendingOutput) -> None:
        """Take one output and return at once. It costs less than :meth:`send`.

        ``placed`` or ``failed`` of the delivery is called exactly once, later, on the event loop, never within this
        call. It must not raise. All outputs of one batch are reported in one step.
        """


def sent(producer: Producer, outputs: Sequence[Outgoing]) -> asyncio.Future[Sequence[Produced] | ProduceFailed]:
    """Send these outputs. The future has the result of :meth:`Producer.send`; it may be cancelled."""
    result: asyncio.Future[Sequence[Produced] | ProduceFailed] = asyncio.get_running_loop().create_future()

    def delivered(found: Sequence[Produced] | ProduceFailed) -> None:
        if not result.done():
            result.set_result(found)

    producer.send(outputs, delivered)
    return result
