"""A steady load of numbered records in all partitions of a topic."""

from __future__ import annotations

import asyncio
import time
from typing import Final, Self

from confluent_kafka import Producer

__all__ = ["SteadyLoad"]

_FLUSH: Final = 60.0


class SteadyLoad:
    """Each ``1 / rate`` seconds it writes one record to each partition. The records of a partition are numbered from 0,
    and number ``n`` has the key ``k<n % keys>``. An async context manager that writes until :meth:`end`.

    ``produced``: when each number was written to all partitions (CLOCK_MONOTONIC, seconds). ``latest``: the most
    seconds that the event loop kept it waiting, which it did to everything else in this process as well.
    """

    def __init__(self, servers: str, topic: str, partitions: int, *, rate: float, keys: int) -> None:
        self.produced: list[float] = []
        self.latest = 0.0
        self._topic = topic
        self._partitions = partitions
        self._rate = rate
        self._keys = keys
        self._failed: list[object] = []
        self._ending = False
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": int(_FLUSH * 1000),
                "delivery.report.only.error": True,
                "log_level": 0,  # connections break when brokers are killed
            }
        )

    def key(self, number: int) -> bytes:
        """The key of a record."""
        return b"k%d" % (number % self._keys)

    async def end(self) -> None:
        """Stop. Raises AssertionError if the brokers have not acknowledged every record."""
        self._ending = True
        await self._task
        left = await asyncio.to_thread(self._producer.flush, _FLUSH)
        assert (left, self._failed[:1]) == (0, []), "records were not acknowledged"

    async def _run(self) -> None:
        due = time.monotonic()
        while not self._ending:
            number, now = len(self.produced), time.monotonic()
            self.latest = max(self.latest, now - due)
            self.produced.append(now)
            for partition in range(self._partitions):
                self._producer.produce(self._topic, b"%d" % number, self.key(number), partition, self._delivered)
            self._producer.poll(0)
            due = max(due + 1 / self._rate, now)
            await asyncio.sleep(due - time.monotonic())

    def _delivered(self, error: object, _: object) -> None:
        self._failed.append(error)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
