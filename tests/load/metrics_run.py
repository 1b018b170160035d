"""A worker through its day in a minute: start, load, a storm of retries, a stuck record, a rebalance, a dead broker, a
throttled host. Its handlers count what they see."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

from prometheus_client import CollectorRegistry

from aioparallel import FailurePolicy, Outgoing, ParallelConsumer, Record, RetryLater
from aioparallel.observe.metrics import PrometheusMetrics
from aioparallel.observe.metrics.prometheus import exposition
from aioparallel.testing import LocalKafka
from tests.load.metrics_books import Book
from tests.support.kafka.filling import Message, fill
from tests.support.scraping import Scraped, parsed
from tests.support.waiting import until

__all__ = ["FOLLOWERS", "GROUP", "KEYS", "PARTITIONS", "Worker"]

PARTITIONS: Final = 4
KEYS: Final = 200
GROUP: Final = "billing"
TOPIC: Final = "orders"
ATTEMPTS: Final = 4
FOLLOWERS: Final = 20
"""Records with the key of one that does not end."""
OPTIONS: Final = {
    "group_id": GROUP,
    "max_concurrency": 50,
    "commit_interval": 0.3,
    "session_timeout": 6.0,
    "heartbeat_interval": 0.3,
    "drain_timeout": 1.0,
    "stuck_after": 3.0,
}


class Worker:
    """One process with members of the group ``billing``. ``books``: of each member, by its label ``consumer``.

    ``wrong``: differences between samples and what the handlers knew at that moment.
    """

    def __init__(self, kafka: LocalKafka, registry: CollectorRegistry) -> None:
        self.kafka = kafka
        self.registry = registry
        self.books = {"1": Book(), "2": Book()}
        self.consumers: dict[str, ParallelConsumer[Any, Any]] = {}
        self.last: dict[str, Scraped] = {}
        """The last scrape of each member."""
        self.written: list[tuple[int, int, bytes]] = []
        """Key number, time in milliseconds and kind of each record; record n is in partition n % 4 at offset n // 4."""
        self.done: set[tuple[int, int]] = set()
        """Places of the records that have succeeded or were given up."""
        self.given_up: Counter[int] = Counter()
        self.outputs = 0
        self.samples = 0
        self.wrong: list[str] = []
        self.rebalances = False
        """While partitions move: a record that failed before is no retry for the consumer until it fails again."""
        self.scraped_at = 0.0
        """The time of the last scrape."""
        self.slowest = 0.05
        """The longest time of a scrape, in which the event loop is blocked."""
        self.blocked: list[float] = []
        """Seconds for which handlers blocked the event loop."""
        self.storm = 0.0
        """Probability of a failure."""
        self.release = asyncio.Event()
        self._chance = random.Random(7)
        self._patient: Counter[bytes] = Counter()

    # -- the members ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def member(self, name: str) -> AsyncIterator[ParallelConsumer[Any, Any]]:
        """A member with this label. It is scraped once more when it has ended."""
        consumer: ParallelConsumer[Any, Any] = ParallelConsumer(
            TOPIC,
            bootstrap_servers=self.kafka.bootstrap_servers,
            failures=FailurePolicy(retry=self._retry, dead_letter="orders-dead"),
            extensions=[PrometheusMetrics(name, registry=self.registry)],
            **OPTIONS,  # type: ignore[arg-type]
        )
        self.consumers[name] = consumer
        handler = self.books[name].counted(self._handle)
        async with consumer:
            running = asyncio.create_task(consumer.run(handler))
            await until(lambda: consumer.health().ready or running.done())
            try:
                yield consumer
            finally:
                consumer.stop()
                await running
                await asyncio.sleep(2.5)  # two scrapes of the last figures
                self.last[name] = self.scrape()
                del self.consumers[name]

    async def _handle(self, record: Record[bytes, bytes]) -> Outgoing | None:
        kind = record.value.rpartition(b" ")[2]
        place = record.partition, record.offset
        if kind == b"block":
            began = time.perf_counter()
            time.sleep(0.3)  # noqa: ASYNC251
            self.blocked.append(time.perf_counter() - began)
        elif kind == b"stuck":
            await self.release.wait()
        elif kind == b"stubborn" and not self.release.is_set():
            raise ValueError("not yet")
        elif kind == b"first" and record.attempt == 1 and not self._patient[record.value]:
            self._patient[record.value] += 1
            await asyncio.sleep(30)  # cancelled by the rebalance
        else:
            await asyncio.sleep(self._chance.uniform(0.02, 0.06))
        if kind == b"poison" or self._chance.random() < self.storm:
            raise ValueError("no")
        if kind == b"later" and self._patient[record.value] < 2:
            self._patient[record.value] += 1
            raise RetryLater(0.3)
        self.done.add(place)
        if kind == b"out":
            self.outputs += 1
            return Outgoing("orders-out", record.value, record.key)
        return None

    def _retry(self, record: Record[Any, Any], error: Exception, attempts: int) -> Any:
        if isinstance(error, RetryLater):
            return error.delay
        if record.value.endswith(b"stubborn"):
            return 0.5
        if attempts < ATTEMPTS:
            return 0.2 * 2.0**attempts * self._chance.uniform(0.8, 1.2)
        self.given_up[record.partition] += 1
        self.done.add((record.partition, record.offset))
        for book in self.books.values():
            book.failing.pop((record.partition, record.offset), None)
        return "dead_letter"

    # -- its records ------------------------------------------------------------------------------------

    async def write(self, count: int, *kinds: bytes) -> None:
        """Write records: these kinds, each followed by others of its key, and then usual ones."""
        first = len(self.written)
        await asyncio.to_thread(fill, self.kafka.bootstrap_servers, TOPIC, self._messages(first, count, kinds))

    def _messages(self, first: int, count: int, kinds: tuple[bytes, ...]) -> Iterator[Message]:
        special = {number * KEYS + number: kind for number, kind in enumerate(kinds)}
        for at in range(count):
            n = first + at
            kind = special.get(at) or (
                b"poison" if n % 1_000 == 707 else b"later" if n % 500 == 303 else b"out" if n % 10 == 0 else b"usual"
            )
            written = int(time.time() * 1000)
            self.written.append((n % KEYS, written, kind))
            yield Message(b"k%d" % (n % KEYS), b"%d %s" % (n, kind), timestamp=written, partition=n % PARTITIONS)

    @property
    def left(self) -> int:
        """Records that are not done."""
        return len(self.written) - len(self.done)

    # -- scrapes ----------------------------------------------------------------------------------------

    def scrape(self) -> Scraped:
        """What a scraper would get now."""
        began, self.scraped_at = time.perf_counter(), time.time()
        text, _ = exposition("", self.registry)
        self.slowest = max(self.slowest, time.perf_counter() - began)
        return parsed(text)

    async def sample(self) -> None:
        """Compare running handlers and failing records five times a second, with what the handlers know."""
        while True:
            await asyncio.sleep(0.2)
            now = time.perf_counter()
            found = self.scrape()
            for name in self.consumers:
                if name in found.values("handlers_running", "consumer", group=GROUP):
                    self._compare(found, name, now)

    def _compare(self, found: Scraped, name: str, now: float) -> None:
        book, where = self.books[name], {"group": GROUP, "consumer": name}
        self.samples += 1
        assigned = set(map(int, found.values("partition_lag", "partition", **where)))
        for place in [place for place in book.failing if place[0] not in assigned]:
            del book.failing[place]  # another member retries it
        waiting = [one for place, one in book.failing.items() if place not in book.active]
        seen = {
            "handlers_running": len(book.active),
            "partition_in_flight": len(book.active),
            "handlers_oldest_seconds": now - min(book.active.values(), default=now),
            "retrying_longest_seconds": now - min((first for first, _ in waiting), default=now),
            "attempts_failed_total": sum(book.failed.values()),
            "handler_duration_seconds_count": sum(book.calls.values()),
        }
        if self.rebalances:
            del seen["retrying_longest_seconds"]
        for instrument, value in seen.items():
            # Before the first assignment there are no samples of partitions.
            scraped = found.sum(instrument, **where) if found.values(instrument, "group", **where) else 0.0
            if abs(scraped - value) > (self.slowest if instrument.endswith("seconds") else 0):
                self.wrong.append(
                    f"{time.strftime('%X')} consumer {name}: {instrument} {scraped:.2f}, seen {value:.2f}"
                )
