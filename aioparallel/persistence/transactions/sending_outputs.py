"""Sends the outputs of one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from aioparallel.delivery.producer import PendingOutput, TooLarge
from aioparallel.persistence.transactions.pending_outputs import Entry
from aioparallel.persistence.transactions.producer import TransactionalProducer
from aioparallel.records.errors import ProduceFailed
from aioparallel.records.record import Outgoing, Produced

__all__ = ["Sending"]

_AT_ONCE: Final = 500
"""Outputs that are given to the producer in one turn of the event loop, about a millisecond's worth."""


class Sending:
    """Sends outputs and collects their results. ``keeps_places``: whether to fill :attr:`places`."""

    def __init__(self, producer: TransactionalProducer, *, keeps_places: bool) -> None:
        self._producer = producer
        self._given = 0
        self.first: float | None = None
        """When the first output was acknowledged, in the event loop's time."""
        self._left = 0
        self._is_sending = True
        self._changed = asyncio.Event()
        self.places: list[tuple[Entry, Outgoing, Produced]] | None = [] if keeps_places else None
        """The partition and offset of each output."""
        self.refused: dict[Entry, ProduceFailed] = {}
        """Entries that the brokers refuse, each for a reason of its own."""
        self.are_others_too_large = False
        """Whether an output that belongs to no record was refused for its size."""
        self.trouble: str | None = None
        """Why the transaction fails although its outputs may be accepted later; None if it does not."""

    async def send(self, entries: Iterable[Entry], others: Iterable[Outgoing] = ()) -> None:
        """Give all outputs to the producer, in order. Stops early if the transaction has failed.

        ``others``: outputs that belong to no record. If one of them is refused, the transaction fails.
        """
        portion: list[PendingOutput] = []
        for entry in entries:
            for output in entry.outputs:
                portion.append(_Output(self, entry, output))
                if len(portion) >= _AT_ONCE:
                    self._give(portion)
                    portion = []
                    await asyncio.sleep(0)
                    if self.trouble is not None:
                        return
        for output in others:
            if (reason := self._producer.refusal(output)) is not None:
                self.are_others_too_large = isinstance(reason, TooLarge)
                self.give_up(f"{output.topic}: {reason}")
                return
            portion.append(_Output(self, None, output))
        self._give(portion)
        self._is_sending = False
        self._look()

    def _give(self, portion: Sequence[PendingOutput]) -> None:
        self._given += len(portion)
        self._left += len(portion)
        if portion:
            self._producer.send_all(portion)

    async def wait(self) -> None:
        """Wait until all outputs have a result, or the transaction has failed. Refused outputs do not end the wait:
        otherwise each of them would cost a transaction."""
        await self._changed.wait()

    def give_up(self, why: str) -> None:
        """Stop waiting: the transaction has failed."""
        self.trouble = self.trouble or why
        self._look()

    @property
    def is_done(self) -> bool:
        """Whether all are acknowledged."""
        return self.part_answered == 1 and self.trouble is None and not self.refused

    @property
    def part_answered(self) -> float:
        """The part of the outputs that has a result, 0 to 1."""
        if self._is_sending:
            return 0.0
        return 1 - self._left / self._given if self._left else 1.0

    def ended(self) -> None:
        """Note that an output is acknowledged."""
        if self.first is None:
            self.first = asyncio.get_running_loop().time()
        self._left -= 1
        if not self._left:
            self._look()

    def failed(self, entry: Entry | None, failure: ProduceFailed) -> None:
        """Note that an output has failed."""
        self._left -= 1
        if entry is None and failure.too_large:
            self.are_others_too_large = True
        if failure.passing or entry is None:
            self.trouble = self.trouble or str(failure)
        else:
            self.refused.setdefault(entry, failure)
        self._look()

    def _look(self) -> None:
        if self.trouble is not None or not (self._left or self._is_sending):
            self._changed.set()


class _Output(PendingOutput):
    """One output of a transaction."""

    __slots__ = ("_entry", "_sending")

    def __init__(self, sending: Sending, entry: Entry | None, output: Outgoing) -> None:
        self.output = output
        self._sending = sending
        self._entry = entry

    def placed(self, place: Produced) -> None:
        if self._sending.places is not None and self._entry is not None:
            self._sending.places.append((self._entry, self.output, place))
        self._sending.ended()

    def failed(self, failure: ProduceFailed) -> None:
        self._sending.failed(self._entry, failure)
