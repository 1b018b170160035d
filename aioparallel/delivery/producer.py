"""The producing Kafka client as the engine sees it. The engine owns this interface; clients implement it.

What a producer promises:

* Idempotent, ``acks=all``: what one producer sent to one partition stands there in the order of the ``send`` calls,
  each output once, whatever was sent anew in between.
* It never gives up on what passes by itself (a leader moves, a broker is away) before ``delivery_timeout``
  seconds, which are given to its constructor.
* One output that the broker refuses fails by itself: not the others that shared its batch, nor those sent later.
* Everything happens on the event loop that first used it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from aioparallel.errors import ProduceFailed
from aioparallel.observe.health import Problem
from aioparallel.observe.stats import BrokerOutputs
from aioparallel.records import Outgoing, Produced, TopicPartition

__all__ = ["OnDelivered", "PendingOutput", "Producer", "TooLarge"]

OnDelivered = Callable[[Sequence[Produced] | ProduceFailed], None]
"""Hears how one :meth:`Producer.send` ended: where each output stands, in their order; or why not all do."""


class TooLarge(str):
    """Why an output cannot be written, where that is its size: with less in it, it can."""

    __slots__ = ()


class PendingOutput:
    """One output that is sent by itself, as whoever sends it makes it: a class below this one says what follows.

    ``timestamp`` and ``deadline`` are the producer's: it sets them when it takes the output.
    """

    __slots__ = ("deadline", "output", "timestamp")

    timestamp: int
    """Milliseconds since the epoch: the output's own, or when it was taken."""
    deadline: float
    """The event loop's time at which it fails. Ascends in the order of sending."""

    def __init__(self, output: Outgoing) -> None:
        self.output = output

    def placed(self, place: Produced) -> None:
        """It stands in the log."""
        raise NotImplementedError

    def failed(self, failure: ProduceFailed) -> None:
        """It does not, as far as is known."""
        raise NotImplementedError


class Producer(Protocol):
    """Sends records. See the module for what it promises."""

    async def start(self, timeout: float) -> None:
        """Connect within ``timeout`` seconds; may be left out: the first ``send`` connects by itself, in the
        background. Raises BrokerUnreachable or NotAuthorized."""

    async def stop(self, timeout: float) -> None:
        """Give what is outstanding ``timeout`` seconds to be acknowledged, then fail the rest and close all
        connections. Takes a second more at most, never raises, may be called whether or not it was started."""

    async def partitions(self, topics: Collection[str], timeout: float) -> set[TopicPartition]:
        """All partitions of these topics. Creates nothing; topics that do not exist are not in the result.
        Raises TimeoutError."""

    def outputs(self) -> Sequence[BrokerOutputs]:
        """What is not acknowledged yet, by broker. Nothing is asked of the cluster."""

    def problems(self) -> Sequence[Problem]:
        """What somebody should look at now: that nothing can be sent, and why; a broker that does not answer. Nothing
        is asked of the cluster."""

    def send(self, outputs: Sequence[Outgoing], delivered: OnDelivered) -> None:
        """Take these outputs, at least one; returns at once.

        ``delivered`` is called exactly once, later, from the event loop, never within this call: with the places
        of all of them when the last is acknowledged, or with the first failure when none is outstanding any
        more. It must not raise. After a failure some of them may have been written.
        """

    def send_one(self, delivery: PendingOutput) -> None:
        """Take one output; returns at once. The same as :meth:`send` with less ado.

        ``placed`` or ``failed`` of the delivery is called exactly once, later, from the event loop, never within this
        call. It must not raise. Those of one batch are told one after the other, in one step.
        """
