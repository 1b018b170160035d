"""``http_handler`` in a consumer: outputs, order, dead letters, hosts that throttle, and ends at any time."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from typing import Any

import pytest
from aiohttp import web

from aioparallel import ConfigurationError, FailurePolicy, Outgoing, Record, RetryPolicy
from aioparallel.config.handling import CallNext
from aioparallel.engine.outcomes import throttling
from aioparallel.http import Request, Response, http_handler, session
from aioparallel.queues.share import ShareConsumer
from aioparallel.testing.memory import InMemoryBroker
from tests.support.http.service import Answer, Service
from tests.support.memory.consuming import consumer_of, produce
from tests.support.share_group import FakeShareClient, ShareGroup
from tests.support.waiting import until


@pytest.fixture
def broker() -> InMemoryBroker:
    made = InMemoryBroker()
    made.create_topic("t", 2)
    return made


def post(record: Record) -> Request:
    """To where its key says."""
    assert record.key is not None
    return Request("POST", f"/{record.key.decode()}", content=b"%d" % record.offset)


async def test_answers_become_outputs_in_order_of_keys(broker: InMemoryBroker, served: Service) -> None:
    """Each answer is produced; records of one key ask one after the other; a host of one request holds up no worker."""
    broker.create_topic("out", 1)
    produce(broker, [b"%d" % (number % 7) for number in range(100)], 0)
    served.answer = lambda _: 0.001

    def enriched(record: Record, response: Response) -> Outgoing:
        return Outgoing("out", response.content, key=record.key)

    async with asyncio.timeout(60), consumer_of(broker, until="end", max_concurrency=10) as consumer:
        await consumer.run(http_handler(post, enriched, base_url=served.url, max_per_host=2))
        assert consumer.stats().succeeded == 100
        assert not consumer.stats().waiting
    assert len(broker.records("out")) == 100
    assert served.most == 2
    by_path = defaultdict[str, list[int]](list)
    for request, body in zip(served.asked, served.bodies, strict=True):
        by_path[request.path].append(int(body))
    assert len(by_path) == 7
    assert all(offsets == sorted(offsets) for offsets in by_path.values())


async def test_the_key_stays_through_retry_topics(broker: InMemoryBroker, served: Service) -> None:
    """Each attempt of a record has one Idempotency-Key, here and in its retry topic; each record another."""
    for topic in ("t.retry", "t.dlq"):
        broker.create_topic(topic, 1)
    produce(broker, [b"a", b"b", b"c"], 0)
    failures = FailurePolicy(
        retry=RetryPolicy(max_attempts=2, first_delay=0.01), retry_topics={"t.retry": 0.01}, dead_letter="t.dlq"
    )

    def answer(request: web.BaseRequest) -> Answer:
        return web.Response(status=404 if request.path == "/c" else 500 if served.paths[request.path] < 4 else 200)

    served.answer = answer
    async with asyncio.timeout(60), consumer_of(broker, failures=failures) as consumer:
        running = asyncio.create_task(consumer.run(http_handler(post, base_url=served.url)))
        await until(lambda: served.paths["/a"] == served.paths["/b"] == 4 and len(broker.records("t.dlq")) == 1)
        await until(lambda: not consumer.stats().in_flight)
        consumer.stop()
        await running
    assert served.paths == {"/a": 4, "/b": 4, "/c": 1}
    keys = {(request.path, request.headers["Idempotency-Key"]) for request in served.asked}
    assert len(keys) == 3


async def test_a_host_that_throttles_is_seen(broker: InMemoryBroker, served: Service) -> None:
    """Who waits for it is counted by host, and is a problem after `stuck_after` seconds; the end does not wait."""
    produce(broker, [b"a", b"b", b"c"], 0)
    served.answer = lambda _: web.Response(status=429, headers={"Retry-After": "120"})
    async with asyncio.timeout(60), consumer_of(broker, stuck_after=2.0) as consumer:
        running = asyncio.create_task(consumer.run(http_handler(post, base_url=served.url)))
        await until(lambda: consumer._engine and [one.records for one in consumer.stats().waiting] == [3])
        (waiting,) = consumer.stats().waiting
        assert waiting.place == served.url
        assert 100 < waiting.opens_in <= 120
        assert consumer.health().healthy
        await until(lambda: consumer.health().problems)
        problem = next(one for one in consumer.health().problems if one.kind == "no_room")
        assert f"{served.url}: 3 records wait for it" in problem.message
        assert "it requests a delay" in problem.message
        consumer.stop()
        await running


@pytest.mark.parametrize("headers", [{}, {"Retry-After": "0.1"}], ids=["record by record", "with a delay for all"])
async def test_a_host_throttled_to_a_fraction_is_a_problem(
    broker: InMemoryBroker, served: Service, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    """Each record waits for a moment only, but most requests are refused: the message has the rate that is left."""
    monkeypatch.setattr(throttling, "_LEAST", 0.3)
    monkeypatch.setattr(session, "_BUSY", 0.05)
    produce(broker, [b"%d" % number for number in range(1_000)], 0)
    asked = itertools.count()
    served.answer = lambda _: web.Response(status=200 if next(asked) % 10 == 0 else 429, headers=headers)
    async with asyncio.timeout(60), consumer_of(broker) as consumer:
        running = asyncio.create_task(consumer.run(http_handler(post, base_url=served.url)))
        await until(lambda: consumer._engine and "throttled" in {one.kind for one in consumer.health().problems})
        problem = next(one for one in consumer.health().problems if one.kind == "throttled")
        assert problem.message.startswith(f"{served.url} throttles: it refused ")
        assert problem.message.endswith(" requests a second succeed")
        consumer.stop()
        await running


async def test_a_partition_that_is_taken_away_leaves_its_place(broker: InMemoryBroker, served: Service) -> None:
    """Records wait at a host of one request while the consumer drains, and starts again with what is left."""
    produce(broker, [b"%d" % number for number in range(20)], 0)
    served.answer = lambda _: 0.05
    done = 0
    for _ in range(4):
        async with asyncio.timeout(60), consumer_of(broker) as consumer:
            running = asyncio.create_task(consumer.run(http_handler(post, base_url=served.url, max_per_host=1)))
            await until(lambda: consumer._engine and consumer.stats().succeeded >= 3)
            consumer.stop()
            await running
            done += consumer.stats().succeeded
    assert served.most == 1
    async with asyncio.timeout(60), consumer_of(broker, until="end") as consumer:
        await consumer.run(http_handler(post, base_url=served.url, max_per_host=1))
        done += consumer.stats().succeeded
    assert done == 20
    assert set(served.paths.values()) == {1}


async def test_what_cannot_be_opened_ends_the_run(broker: InMemoryBroker) -> None:
    """A function that makes no client: the run says so, and the consumer is closed as ever."""
    produce(broker, [b"a"], 0)

    def broken(_connections: int) -> Any:
        raise OSError("no certificate")

    async with asyncio.timeout(60), consumer_of(broker) as consumer:
        with pytest.raises(OSError, match="no certificate"):
            await consumer.run(http_handler(post, client=broken))
    async with asyncio.timeout(60), consumer_of(broker) as other:
        with pytest.raises(ConfigurationError, match="which cannot be opened"):
            await other.run(http_handler(post, client=lambda _: object()))  # type: ignore[arg-type, return-value]


async def test_who_fails_before_it_is_asked_keeps_no_place(broker: InMemoryBroker, served: Service) -> None:
    """Woken at a host, and then something before the handler fails it: the next one has its place at once."""
    served.answer = lambda _: 0.01
    produce(broker, [b"%d" % number for number in range(60)], 0)
    seen: Counter[object] = Counter()

    async def fails(record: Record, call_next: CallNext) -> object:
        seen[record.offset] += 1
        if seen[record.offset] == 2 and record.offset % 2:
            raise ValueError("the second time")
        return await call_next(record)

    failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), give_up="skip")
    options: dict[str, Any] = {"middleware": [fails], "failures": failures, "max_concurrency": 10, "until": "end"}
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60), consumer_of(broker, **options) as consumer:
        began = loop.time()
        await consumer.run(http_handler(post, base_url=served.url, max_per_host=1))
        assert loop.time() - began < 10  # a second for each of them otherwise
        assert consumer.stats().skipped >= 20


async def test_in_a_share_group(served: Service) -> None:
    """Records that wait for a host keep their locks; those that it refuses are delivered again."""
    group = ShareGroup()
    group.produce([b"%d" % number for number in range(20)])
    refused = set[str]()

    def once_refused(request: web.BaseRequest) -> Answer:
        if request.path in refused:
            return None
        refused.add(request.path)
        return web.Response(status=500)

    def numbered(record: Record) -> Request:
        return Request("POST", f"/{record.offset}", content=b"")

    served.answer = once_refused
    handler = http_handler(numbered, base_url=served.url, max_per_host=2)
    consumer: ShareConsumer[Any, Any] = ShareConsumer("t", group_id="g", client=FakeShareClient(group))
    async with asyncio.timeout(60), consumer:
        running = asyncio.create_task(consumer.run(handler))
        await until(lambda: group.states() == ["accepted"] * 20)
        consumer.stop()
        await running
    assert set(group.counts()) == {2}
    assert served.most <= 2
