"""``aioparallel bench``: its options, what it says limits, and a whole run on the embedded broker."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest
from rich.console import Console

from aioparallel import ParallelConsumer, Record
from aioparallel.cli.bench import measuring
from aioparallel.cli.bench.command import BenchSettings
from aioparallel.cli.bench.measuring import measure, unfinished
from aioparallel.cli.bench.showing import Seen, limit_of
from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.records.errors import ConfigurationError
from aioparallel.testing import EmbeddedBroker
from aioparallel.testing.filling import Message, fill
from tests.support.command_line import invoke


@pytest.mark.parametrize(
    ("wrong", "option"),
    [
        ({"records": 0}, "records"),
        ({"concurrency": -1}, "concurrency"),
        ({"handler_ms": -0.1}, "handler_ms"),
        ({"topic": "orders"}, "topic"),
        ({"records": 1_000_000}, "records"),
        ({"share": True}, "share"),
    ],
)
def test_wrong_options_are_named(wrong: dict[str, Any], option: str) -> None:
    """One message names the option; the embedded broker has little room, and no topics of yours."""
    with pytest.raises(ConfigurationError, match=option):
        BenchSettings(**wrong)


@pytest.mark.parametrize(
    ("seen", "hot", "limit"),
    [
        (Seen(handled=100, seconds=1.0, cpu=0.9, busy=50.0), 20, "CPU: the event loop's core is 90% busy"),
        (Seen(handled=100, seconds=1.0, cpu=0.1, busy=5.0), 20, "the order of keys: 20 records of key b'hot'"),
        (Seen(handled=1800, seconds=1.0, cpu=0.0, busy=9.0), 2, "concurrency: 10 handlers run nearly all the time"),
        (
            Seen(handled=400, seconds=1.0, cpu=0.6, busy=9.2),
            2,
            "the event loop is late: handlers that sleep 5 ms take 23.0 ms, while its core is 60% busy",
        ),
        (Seen(handled=100, seconds=9.0, cpu=0.1, busy=5.0), 20, "reading: neither CPU nor handlers"),
    ],
)
def test_it_says_what_limits(seen: Seen, hot: int, limit: str) -> None:
    """From the CPU of the loop, the longest lane and what handlers took. Records without a key have no lane."""
    seen.keys = {(0, at): b"hot" if at < hot else None if at < 60 else b"%d" % at for at in range(100)}
    assert limit_of(BenchSettings(concurrency=10), seen).startswith(limit)


def test_a_share_group_has_no_order_that_limits() -> None:
    """The longest lane of a key says nothing there."""
    seen = Seen(handled=100, seconds=1.0, cpu=0.1, busy=5.0, keys={(0, at): b"hot" for at in range(100)})
    assert limit_of(BenchSettings(concurrency=10), seen).startswith("the order of keys")
    shared = BenchSettings(bootstrap_servers="localhost:9092", concurrency=10, share=True)
    assert limit_of(shared, seen).startswith("reading")


async def test_a_broker_without_share_groups() -> None:
    """One sentence, before anything is written."""
    async with EmbeddedBroker() as broker:
        ran = await asyncio.to_thread(invoke, "bench", "--share", "--bootstrap-servers", broker.bootstrap_servers)
        assert (ran.exit_code, ran.stdout) == (1, "")
        assert "`aioparallel broker --kafka` starts Apache Kafka" in ran.stderr


async def test_a_run_is_checked_and_shown() -> None:
    """On the embedded broker: rates of both, latency, the verdict."""
    shown = io.StringIO()
    settings = BenchSettings(records=500, keys=20, partitions=2, handler_ms=1.0, concurrency=20)
    assert await measure(settings, Console(file=shown, width=160))
    text = shown.getvalue()
    for part in ("plain loop", "ParallelConsumer", "µs a record", "p50", "what limits", "passed: each record once"):
        assert part in text


async def filled_orders(broker: EmbeddedBroker) -> None:
    """A topic of 300 records in two partitions."""
    await broker.create_topic("orders", 2)
    messages: list[tuple[int, Message]] = [
        (number % 2, {"key": b"%d" % (number % 7), "value": b"x"}) for number in range(300)
    ]
    await asyncio.to_thread(fill, broker.bootstrap_servers, "orders", messages)


@pytest.mark.parametrize("more", [[], ["--topic", "orders"]])
@pytest.mark.parametrize(
    ("servers", "code", "sentence"),
    [
        ("127.0.0.1:1", 1, "no Kafka broker answered at 127.0.0.1:1 within 1 s"),
        ("a:b", 2, "--bootstrap-servers='a:b'"),
    ],
)
def test_brokers_that_are_not_there(
    servers: str, code: int, sentence: str, more: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence, which names the option as it is typed."""
    monkeypatch.setattr(measuring, "_ANSWER", 1.0)
    ran = invoke("bench", "--bootstrap-servers", servers, *more)
    assert ran.exit_code == code
    assert sentence in ran.stderr
    assert "--bootstrap-servers" in ran.stderr


async def test_a_mistyped_topic_is_not_made_by_asking() -> None:
    """One sentence says that it does not exist, and it does not afterwards."""
    async with EmbeddedBroker() as broker:
        await filled_orders(broker)
        ran = await asyncio.to_thread(
            invoke, "bench", "--bootstrap-servers", broker.bootstrap_servers, "--topic", "ordres"
        )
        assert (ran.exit_code, ran.stdout) == (1, "")
        assert "topic not found" in ran.stderr
        async with Admin(broker.bootstrap_servers) as admin:
            assert await admin.topics() == {"orders": 2}


async def test_what_was_measured_is_shown_though_the_group_stays(capsys: pytest.CaptureFixture[str]) -> None:
    """The embedded broker cannot delete groups: the measurement counts all the same, and a warning names the group."""
    shown = io.StringIO()
    async with EmbeddedBroker() as broker:
        await filled_orders(broker)
        settings = BenchSettings(bootstrap_servers=broker.bootstrap_servers, topic="orders", handler_ms=0.0)
        assert await measure(settings, Console(file=shown, width=160))
    assert "passed: once, keys in order" in shown.getvalue()
    assert "WARNING group aioparallel-bench-" in (said := capsys.readouterr().err)
    assert "remove it by hand" in said


async def test_a_consumer_that_stops_halfway_is_told_from_gaps() -> None:
    """What the group has not committed is named by partition; where all is committed, missing records were gaps."""

    async def handle(_record: Record) -> None: ...

    async with EmbeddedBroker() as broker:
        await filled_orders(broker)
        servers = broker.bootstrap_servers
        assert await unfinished(servers, "orders", "half") == [
            f"orders-{number}: the last 150 offsets are not committed" for number in (0, 1)
        ]
        async with ParallelConsumer("orders", bootstrap_servers=servers, group_id="half", until="end") as consumer:
            await consumer.run(handle)
        assert await unfinished(servers, "orders", "half") == []
