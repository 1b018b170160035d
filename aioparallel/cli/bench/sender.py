"""The process that fills a topic: as fast as it can, or so many records a second.

Its job: ``bootstrap_servers``, ``topic``, the fields of :class:`~aioparallel.cli.bench.stream.Stream`, ``size`` (bytes
of a value) and ``rate`` (records a second, or None). It tells ``sent``, ``seconds``, and ``latest``: how many
milliseconds the most delayed record was behind its turn. Raises when the broker has not acknowledged all.
"""

from __future__ import annotations

import struct
import time
from typing import Any, Final

from confluent_kafka import KafkaError, Message, Producer

from aioparallel.cli.bench.stream import STAMP_BYTES, Stream
from aioparallel.cli.bench.worker import end_with_parent, job, tell

__all__ = ["main"]

_FLUSH_TIMEOUT: Final = 60.0
_TURN: Final = 1_000
"""At most so many records are sent without a look at the clock."""
_PAUSE: Final = 0.0005
"""Seconds between two looks when nothing is due."""


class _Sender:
    """Hands record after record to librdkafka."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._stream = Stream(order["records"], order["partitions"], order["keys"], order["seed"])
        self._topic: str = order["topic"]
        self._padding = b"x" * (order["size"] - STAMP_BYTES)
        self._keys = [self._stream.key(number) for number in range(self._stream.keys)]
        self._sent = 0
        self._failed: KafkaError | None = None
        self._producer = Producer(
            {
                "bootstrap.servers": order["bootstrap_servers"],
                # The topic's order is the stream's order, whatever is sent again.
                "enable.idempotence": True,
                "linger.ms": 1 if order["rate"] else 50,
                "batch.size": 1 << 20,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 1 << 20,
                "delivery.report.only.error": True,
                "on_delivery": self._on_failure,
            }
        )

    def _on_failure(self, error: KafkaError | None, _: Message) -> None:
        self._failed = self._failed or error

    def send(self, until: int) -> None:
        """Send up to that record."""
        produce, topic, keys, padding = self._producer.produce, self._topic, self._keys, self._padding
        numbers = self._stream.key_numbers[self._sent : until].tolist()
        partition_of, pack, clock = self._stream.partition_of_key, struct.Struct("<qI").pack, time.monotonic_ns
        for serial, number in enumerate(numbers, self._sent):
            value = pack(clock(), serial) + padding
            while True:
                try:
                    produce(topic, value, keys[number], partition_of[number])
                    break
                except BufferError:
                    self._producer.poll(0.01)
        self._sent = until

    def all_at_once(self) -> None:
        """Send everything now."""
        while self._sent < self._stream.records:
            self.send(min(self._sent + _TURN, self._stream.records))
            self._producer.poll(0)

    def paced(self, rate: float) -> float:
        """Send so many a second; how many seconds the most delayed one was late."""
        began, records, latest = time.monotonic(), self._stream.records, 0.0
        while self._sent < records:
            now = time.monotonic() - began
            due = min(int(now * rate), records, self._sent + _TURN)
            if due > self._sent:
                latest = max(latest, now - self._sent / rate)
                self.send(due)
            else:
                time.sleep(_PAUSE)
            self._producer.poll(0)
        return latest

    def finish(self) -> None:
        """Wait until the broker has acknowledged everything."""
        left = self._producer.flush(_FLUSH_TIMEOUT)
        if left or self._failed:
            raise RuntimeError(f"{left} of {self._sent} records not acknowledged; {self._failed}")


def main() -> None:
    """The process."""
    end_with_parent()
    order = job()
    sender = _Sender(order)
    began, latest = time.monotonic(), 0.0
    if order["rate"]:
        latest = sender.paced(order["rate"])
    else:
        sender.all_at_once()
    seconds = time.monotonic() - began
    sender.finish()
    tell(sent=order["records"], seconds=seconds, latest=latest * 1e3)


if __name__ == "__main__":
    main()
