"""Three more members in the process of the worker: with transactions and state, with a throttled host, and with batches
and copies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from aiohttp import web
from prometheus_client import CollectorRegistry

from aioparallel import Deduplicate, Outgoing, ParallelConsumer, Record, Transactions, batches
from aioparallel.clients.aiokafka.group_admin import GroupAdmin
from aioparallel.group.client import Committed
from aioparallel.http import Request, http_handler
from aioparallel.observe.metrics import PrometheusMetrics
from aioparallel.observe.metrics.prometheus import exposition
from aioparallel.records.record import TopicPartition
from aioparallel.testing import LocalKafka
from tests.load.metrics_books import Book, member
from tests.support.children.keeping_state import sums
from tests.support.http.service import Service, service
from tests.support.kafka.filling import Message, fill, numbered
from tests.support.kafka.reading import read_all
from tests.support.scraping import Scraped, parsed
from tests.support.waiting import until

__all__ = ["Figure", "Others", "others"]

PAID, ASKED, COPIED, COPIES, KEYS = 2_000, 200, 1_000, 300, 50
COMPACTED: Final = {"cleanup.policy": "compact"}
Figure = tuple[str, float, float] | tuple[str, float, float, float]
"""Name, scraped, seen, and by how much they may differ."""


class Others:
    """The three members. ``books``: by their groups."""

    def __init__(self, kafka: LocalKafka, registry: CollectorRegistry, host: Service) -> None:
        self.books = {"paying": Book(), "asking": Book(), "copying": Book()}
        self._kafka = kafka
        self._registry = registry
        self._host = host
        self._sizes: Counter[int] = Counter()
        self._responses: Counter[int] = Counter()
        host.answer = self._answer
        self.throttles = False

    def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        status = 429 if self.throttles else 200
        self._responses[status] += 1
        return web.Response(status=status, headers={"Retry-After": "2"} if self.throttles else {})

    async def begin(self, stack: AsyncExitStack) -> None:
        """Make their topics, and start them."""
        servers = self._kafka.bootstrap_servers
        for topic in ("paid-out", "asked", "copied"):
            await self._kafka.create_topic(topic, 1)
        await self._kafka.create_topic("paid", 2)
        for topic in ("paid-state", "paid-snapshots"):
            await self._kafka.create_topic(topic, 2, COMPACTED)
        await self._kafka.create_topic("copied-seen", 1, COMPACTED)
        async with GroupAdmin(servers) as admin:
            await admin.commit("asking", {TopicPartition("asked", 0): Committed(10_000, "")})  # above the end
            await admin.commit("copying", {TopicPartition("copied", 0): Committed(0, "no map")})
        await asyncio.to_thread(fill, servers, "paid", numbered(PAID, KEYS))
        await asyncio.to_thread(fill, servers, "asked", numbered(ASKED, ASKED))
        written = [Message(b"k%d" % (n % KEYS), b"%d" % n, _source(n)) for n in range(COPIED)]
        await asyncio.to_thread(fill, servers, "copied", written + written[:COPIES])
        state = sums("paid")

        async def pay(record: Record[Any, Any]) -> Outgoing:
            await asyncio.sleep(0.2)
            return Outgoing("paid-out", b"%d" % state.of(record), record.key)

        async def copy(records: Any) -> None:
            self._sizes[len(records)] += 1
            await asyncio.sleep(0.01)

        def ask(record: Record[Any, Any]) -> Request:
            return Request("GET", f"/{record.offset}")

        self.throttles = True
        ways = {
            "paying": self._member("paid", "paying", state=state, commits=Transactions(), session_timeout=20.0),
            "asking": self._member("asked", "asking"),
            "copying": self._member("copied", "copying", deduplicate=Deduplicate("copied-seen")),
        }
        handlers: dict[str, Any] = {
            "paying": self.books["paying"].counted(pay),
            "asking": http_handler(ask, base_url=self._host.url),
            "copying": batches(self.books["copying"].counted_batches(copy), size=50),
        }
        for group, consumer in ways.items():
            await stack.enter_async_context(member(consumer, handlers[group]))
        self._consumers = ways

    def _member(self, topic: str, group: str, **options: Any) -> ParallelConsumer[Any, Any]:
        options = {"session_timeout": 6.0, "heartbeat_interval": 0.3, "max_concurrency": 20} | options
        return ParallelConsumer(
            topic,
            bootstrap_servers=self._kafka.bootstrap_servers,
            group_id=group,
            extensions=[PrometheusMetrics(registry=self._registry)],
            **options,
        )

    def _scrape(self) -> Scraped:
        return parsed(exposition("", self._registry)[0])

    async def throttled(self) -> list[Figure]:
        """Gauges while the host requests delays."""
        await until(lambda: self._scrape().sum("waiting_records", group="asking") == ASKED, what="all wait")
        found = self._scrape()
        figures: list[Figure] = [
            ("waiting_shut", found.sum("waiting_shut", group="asking"), 1.0),
            ("waiting_records", found.sum("waiting_records", group="asking"), float(ASKED)),
            ("partition_parked", found.sum("partition_parked", group="asking"), float(ASKED)),
        ]
        self.throttles = False
        return figures

    async def ended(self) -> list[Figure]:
        """Their counters, when all records are done."""
        goal = {"paying": PAID, "asking": ASKED, "copying": COPIED}
        await until(lambda: all(self._consumers[group].stats().ended == count for group, count in goal.items()))
        await until(lambda: self._scrape().sum("transactions_waiting", group="paying") == 0)
        servers = self._kafka.bootstrap_servers
        await asyncio.to_thread(fill, servers, "paid-out", [Message(None, b"end")])
        outputs = await read_all(servers, "paid-out")
        found, paying, asking, copying = self._scrape(), *({"group": group} for group in goal)
        # Each transaction ends with a marker, if it has outputs. The first ones only commit where the partitions start.
        ended = found.sum("transactions_total", outcome="committed", **paying)
        aborted = found.sum("transactions_total", **paying) - ended
        return [
            ("records_ended_total{succeeded}, transactions",
             found.sum("records_ended_total", outcome="succeeded", **paying), PAID),
            ("handler_duration_seconds_count, transactions",
             found.sum("handler_duration_seconds_count", **paying), self.books["paying"].calls.total()),
            (f"transactions_total ({aborted:.0f} aborted)", ended + aborted, outputs[-1].offset + 1 - len(outputs), 2),
            ("state_keys", found.sum("state_keys", **paying), KEYS),
            ("records_ended_total{succeeded}, http",
             found.sum("records_ended_total", outcome="succeeded", **asking), self._responses[200]),
            ("offset_resets_total", found.sum("offset_resets_total", **asking), 1),
            ("waiting_records", found.sum("waiting_records", **asking), 0),
            ("records_ended_total{succeeded}, batches",
             found.sum("records_ended_total", outcome="succeeded", **copying),
             self.books["copying"].calls["succeeded"]),
            ("batch_size_count", found.sum("batch_size_count", **copying), self._sizes.total()),
            ("batch_size_sum", found.sum("batch_size_sum", **copying), sum(k * v for k, v in self._sizes.items())),
            ("handler_duration_seconds_count, batches",
             found.sum("handler_duration_seconds_count", **copying), self._sizes.total()),
            ("records_copies_total", found.sum("records_copies_total", **copying), COPIES),
            ("maps_unreadable_total", found.sum("maps_unreadable_total", **copying), 1),
        ]  # fmt: skip


def _source(number: int) -> list[tuple[str, bytes]]:
    return [("src-topic", b"orders"), ("src-partition", b"0"), ("src-offset", b"%d" % number)]


@asynccontextmanager
async def others(kafka: LocalKafka, registry: CollectorRegistry) -> AsyncIterator[Others]:
    """The three, while they run."""
    async with AsyncExitStack() as stack:
        found = Others(kafka, registry, await stack.enter_async_context(service()))
        await found.begin(stack)
        yield found
