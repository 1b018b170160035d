"""One record from an HTTP request through attempts, dead letter, replay and output: one trace."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry.trace import SpanKind

from aioparallel import FailurePolicy, Outgoing, Record, RetryPolicy, TopicPartition, batches
from aioparallel.cli.dlq.replaying import Destination
from aioparallel.http import Request, Response, http_handler
from aioparallel.observe.traces import OpenTelemetryTraces
from aioparallel.queues.kmq import KmqConsumer, RedeliveryTracker
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient, InMemoryProducer
from tests.support.http.service import service
from tests.support.memory.consuming import consumer_of
from tests.support.spans import Spans, attributes_of, context_of, linked, span_id
from tests.support.waiting import until

TWICE = RetryPolicy(max_attempts=2, first_delay=0.01)
DEAD = FailurePolicy(retry=TWICE, dead_letter="t.dlq")


@pytest.fixture
def broker() -> InMemoryBroker:
    made = InMemoryBroker()
    for topic in ("t", "t.dlq", "t.retry", "out"):
        made.create_topic(topic, 1)
    return made


@pytest.fixture
def spans() -> Spans:
    return Spans()


def from_request(broker: InMemoryBroker, spans: Spans, *values: bytes, topic: str = "t") -> None:
    """Records that a service sends as it handles a request."""
    with spans.tracer.start_as_current_span("POST /orders", kind=SpanKind.SERVER):
        for value in values:
            with spans.sending(topic) as headers:
                broker.append(topic, value, headers=(*headers, ("kept", b"1")))


def replay(broker: InMemoryBroker) -> None:
    """As ``aioparallel dlq replay`` does."""
    for letter in broker.records("t.dlq"):
        outgoing = Destination(None, False, {TopicPartition("t", 0)}).outgoing(letter)
        assert isinstance(outgoing, Outgoing)
        broker.append("t", outgoing.value, key=outgoing.key, headers=tuple(outgoing.headers))


async def run(broker: InMemoryBroker, spans: Spans, handler: Any, topic: str = "t", **options: Any) -> None:
    """To the end of the topic."""
    traces = OpenTelemetryTraces(tracer_provider=spans.provider)
    async with asyncio.timeout(20), consumer_of(broker, topic, until="end", extensions=[traces], **options) as consumer:
        await consumer.run(handler)
    assert not traces._attempts
    assert not traces.sending


async def fails(record: Record) -> None:
    raise ValueError("no")


async def makes(record: Record) -> Outgoing:
    return Outgoing("out", record.value, headers=(("own", b"1"),))


async def reads(record: Record) -> None:
    assert dict(record.headers)["own"] == b"1"


async def test_dead_letter_replay_and_output(broker: InMemoryBroker, spans: Spans) -> None:
    """All attempts are children of the producer's span, and what they send is below them. The dead letter's own headers
    are those of the record."""
    from_request(broker, spans, b"1")
    (record,) = broker.records("t")
    await run(broker, spans, fails, failures=DEAD)
    (letter,) = broker.records("t.dlq")
    assert letter.headers[: len(record.headers)] == record.headers
    assert all(name.startswith("aioparallel.") for name, _ in letter.headers[len(record.headers) :])
    replay(broker)
    await run(broker, spans, makes)
    await run(broker, spans, reads, topic="out")
    assert len(spans.traces) == 1
    assert (
        spans.tree()
        == """\
POST /orders [SERVER]
  send t [PRODUCER]
    process t [CONSUMER], attempt 1, retried, ValueError
    process t [CONSUMER], attempt 2, dead-lettered, ValueError
      send t.dlq [CLIENT]
    process t [CONSUMER], attempt 1, succeeded
      send out [PRODUCER]
        process out [CONSUMER], attempt 1, succeeded"""
    )
    first, second, _ = spans.named("process t")
    creation = span_id(spans.named("send t")[0])
    assert linked(first) == [creation]
    assert linked(second) == [creation, span_id(first)]
    assert attributes_of(first) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "g",
        "messaging.destination.name": "t",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 0,
        "aioparallel.attempt": 1,
        "aioparallel.outcome": "retried",
        "aioparallel.delay": pytest.approx(0.01, rel=0.5),
        "error.type": "ValueError",
    }
    (event,) = first.events
    assert event.name == "exception"
    assert (event.attributes or {})["exception.message"] == "no"
    assert not first.status.is_ok
    (dead,) = spans.named("send t.dlq")
    assert linked(dead) == [creation]


async def test_retry_topics(broker: InMemoryBroker, spans: Spans) -> None:
    """The attempts in a retry topic belong to the same trace, and name the first place of the record."""
    from_request(broker, spans, b"1")
    failures = FailurePolicy(retry=TWICE, retry_topics={"t.retry": 0.01}, dead_letter="t.dlq")
    traces = OpenTelemetryTraces(tracer_provider=spans.provider)
    async with asyncio.timeout(20), consumer_of(broker, failures=failures, extensions=[traces]) as consumer:
        running = asyncio.create_task(consumer.run(fails))
        await until(lambda: broker.records("t.dlq"))
        consumer.stop()
        await running
    assert len(spans.traces) == 1
    assert (
        spans.tree()
        == """\
POST /orders [SERVER]
  send t [PRODUCER]
    process t [CONSUMER], attempt 1, retried, ValueError
    process t [CONSUMER], attempt 2, retry topic, ValueError
      send t.retry [CLIENT]
    process t.retry [CONSUMER], attempt 3, retried, ValueError
    process t.retry [CONSUMER], attempt 4, dead-lettered, ValueError
      send t.dlq [CLIENT]"""
    )
    assert attributes_of(spans.named("process t.retry")[0])["aioparallel.origin"] == "t-0 offset 0"


async def test_a_record_without_a_context(broker: InMemoryBroker, spans: Spans) -> None:
    """Its trace begins with its first attempt here, and goes on from its dead letter."""
    broker.append("t", b"1")
    await run(broker, spans, fails, failures=FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter="t.dlq"))
    replay(broker)
    await run(broker, spans, makes)
    assert (
        spans.tree()
        == """\
process t [CONSUMER], attempt 1, dead-lettered, ValueError
  send t.dlq [PRODUCER]
    process t [CONSUMER], attempt 1, succeeded
      send out [PRODUCER]"""
    )
    assert len(spans.traces) == 1


async def test_batches(broker: InMemoryBroker, spans: Spans) -> None:
    """One span with a link to each record, below the first one that is sampled; failures of records are events."""
    from_request(broker, spans, b"1", b"2", b"3")

    async def handle(batch: Any) -> Any:
        batch.fail(batch[1], ValueError("no"))
        return {batch[0]: Outgoing("out", b"1"), batch[2]: [Outgoing("out", b"2"), Outgoing("out", b"3")]}

    failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter="t.dlq")
    await run(broker, spans, batches(handle, size=3), failures=failures)
    assert (
        spans.tree()
        == """\
POST /orders [SERVER]
  send t [PRODUCER]
    process t [CONSUMER], 3 records, succeeded
      send out [PRODUCER]
      send out [PRODUCER]
      send out [PRODUCER]
      send t.dlq [CLIENT]
  send t [PRODUCER]
  send t [PRODUCER]"""
    )
    (batch,) = spans.named("process t")
    assert linked(batch) == [span_id(span) for span in spans.named("send t")]
    assert [attributes_of(link)["messaging.kafka.offset"] for link in batch.links] == [0, 1, 2]
    assert attributes_of(batch)["aioparallel.batch.failed_count"] == 1
    (event,) = batch.events
    assert (event.attributes or {})["messaging.kafka.offset"] == 1


async def test_redeliveries_of_a_queue(spans: Spans) -> None:
    """KMQ copies a record with its headers."""
    broker = InMemoryBroker()
    for topic in ("q", "q-markers", "q__undelivered"):
        broker.create_topic(topic, 1)
    from_request(broker, spans, b"1", topic="q")
    traces = OpenTelemetryTraces(tracer_provider=spans.provider)
    consumer = KmqConsumer(
        "q",
        group_id="g",
        lease=0.3,
        commit_interval=0.02,
        client=InMemoryClient(broker, "g", session_timeout=2, heartbeat_interval=0.02),
        producer=InMemoryProducer(broker),
        extensions=[traces],
    )
    tracker = RedeliveryTracker(
        "q",
        group_id="trackers",
        client=InMemoryClient(broker, "trackers", session_timeout=2, heartbeat_interval=0.02),
        producer=InMemoryProducer(broker),
        max_redeliveries=1,
        use_now_after=0.1,
    )
    async with asyncio.timeout(30), tracker, consumer:
        running = asyncio.create_task(consumer.run(fails)), asyncio.create_task(tracker.run())
        await until(lambda: broker.records("q__undelivered"))
        consumer.stop()
        tracker.stop()
        await asyncio.gather(*running)
    assert (
        spans.tree()
        == """\
POST /orders [SERVER]
  send q [PRODUCER]
    process q [CONSUMER], attempt 1, released, ValueError
    process q [CONSUMER], attempt 1, released, ValueError"""
    )
    assert not traces._attempts


async def test_requests_of_http_handlers(broker: InMemoryBroker, spans: Spans) -> None:
    """Each request is a span that its traceparent names; the output is below the attempt."""
    from_request(broker, spans, b"1")
    async with service() as served:

        def ask(record: Record) -> list[Request]:
            return [
                Request("GET", "/a", params={"token": "secret"}),
                Request("GET", "/own", headers={"traceparent": "x"}),
            ]

        def answered(record: Record, responses: list[Response]) -> Outgoing:
            return Outgoing("out", responses[0].content)

        await run(broker, spans, http_handler(ask, answered, base_url=served.url))
        first, second = served.asked
    assert (
        spans.tree()
        == """\
POST /orders [SERVER]
  send t [PRODUCER]
    process t [CONSUMER], attempt 1, succeeded
      GET [CLIENT]
      GET [CLIENT]
      send out [PRODUCER]"""
    )
    span = spans.named("GET")[0]
    context = context_of(span)
    assert first.headers.getall("traceparent") == [
        f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    ]
    assert second.headers.getall("traceparent") == ["x"]
    assert attributes_of(span) == {
        "http.request.method": "GET",
        "server.address": "127.0.0.1",
        "server.port": int(served.url.rpartition(":")[2]),
        "url.full": f"{served.url}/a",
        "http.response.status_code": 200,
    }
