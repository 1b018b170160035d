"""A producer as these tests drive it: awaitable sends, and every callback written down."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aioparallel.delivery.producer import OnDelivered, PendingOutput, Producer
from aioparallel.records.errors import ProduceFailed
from aioparallel.records.record import Outgoing, Produced

__all__ = ["Sender"]


class _Single(PendingOutput):
    """One output, reported as by :meth:`Producer.send`."""

    __slots__ = ("delivered",)

    def __init__(self, output: Outgoing, delivered: OnDelivered) -> None:
        super().__init__(output)
        self.delivered = delivered

    def placed(self, place: Produced) -> None:
        self.delivered([place])

    def failed(self, failure: ProduceFailed) -> None:
        self.delivered(failure)


class Sender:
    """Sends through a producer: several outputs with one call of ``send``, one with ``send_one``. ``calls`` counts the
    callbacks of each; each must come once."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.calls: list[int] = []
        self._is_sending = False

    def send(self, *outputs: Outgoing) -> asyncio.Future[Sequence[Produced] | ProduceFailed]:
        """Send them together; the future has what the callback was given."""
        ended: asyncio.Future[Sequence[Produced] | ProduceFailed] = asyncio.get_running_loop().create_future()
        number = len(self.calls)
        self.calls.append(0)

        def delivered(result: Sequence[Produced] | ProduceFailed) -> None:
            assert not self._is_sending, "called within send"
            self.calls[number] += 1
            if not ended.done():
                ended.set_result(result)

        self._is_sending = True
        if len(outputs) == 1:
            self.producer.send_one(_Single(outputs[0], delivered))
        else:
            self.producer.send(outputs, delivered)
        self._is_sending = False
        return ended

    async def written(self, *outputs: Outgoing, deadline: float = 30.0) -> Sequence[Produced]:
        """Send them. Returns where they are stored."""
        async with asyncio.timeout(deadline):
            result = await self.send(*outputs)
        assert not isinstance(result, ProduceFailed), result
        return result

    async def failed(self, *outputs: Outgoing, deadline: float = 30.0) -> ProduceFailed:
        """Send them, and why they failed."""
        async with asyncio.timeout(deadline):
            result = await self.send(*outputs)
        assert isinstance(result, ProduceFailed), f"it was written: {result}"
        return result
