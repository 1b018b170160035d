"""The options of AiokafkaClient: which are refused, and what aiokafka gets."""

from __future__ import annotations

import re
from typing import cast

import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from aioparallel.clients import AiokafkaClient
from aioparallel.clients.aiokafka.connecting import close
from aioparallel.clients.aiokafka.internals import Consumer
from aioparallel.records.errors import ConfigurationError
from tests.support.clusters.aiokafka_member import coordinator_settings, fetch_settings

OPTION = "partition_assignment_strategy"


def client(**options: object) -> AiokafkaClient:
    """A client with these client_options."""
    return AiokafkaClient("127.0.0.1:1", "group", client_options=options)


async def built(**options: object) -> Consumer:
    """The consumer that is made with these options, closed."""
    consumer = client(**options)._settings.build()
    await close(consumer, 1.0)
    return consumer


@pytest.mark.parametrize(
    ("option", "value", "advice"),
    [
        ("group_id", "other", "use group_id of the consumer"),
        ("bootstrap_servers", "a:1", "use bootstrap_servers"),
        ("enable_auto_commit", True, "committed as records are completed"),
        ("auto_offset_reset", "latest", "use auto_offset_reset of the consumer"),
        ("session_timeout_ms", 6000, "use session_timeout (seconds)"),
        ("heartbeat_interval_ms", 1000, "use heartbeat_interval (seconds)"),
        ("rebalance_timeout_ms", 1000, "use rebalance_timeout (seconds)"),
        ("max_poll_interval_ms", 1000, "use a handler timeout"),
        ("max_poll_records", 10, "use max_buffered"),
        ("key_deserializer", bytes, "decode record.key in the handler"),
        ("value_deserializer", bytes, "decode record.value in the handler"),
        ("fetch_max_bites", 1, "aiokafka has no such option; did you mean 'fetch_max_bytes'?"),
        ("max_poll_record", 1, "did you mean 'max_poll_records'? Do not set that one either: leave it out, use max_bu"),
        ("linger_ms", 5, "it is an option of the producer: use producing=Producing(client_options=...)"),
        ("nope", 1, "aiokafka has no such option; it has .*fetch_max_bytes"),
        ("isolation_level", "serializable", '"read_uncommitted" or "read_committed"'),
        ("partition_assignment_strategy", [], "exactly one assignor"),
        (
            "partition_assignment_strategy",
            [RangePartitionAssignor, RoundRobinPartitionAssignor],
            "exactly one assignor",
        ),
        ("retry_backoff_ms", "100", "milliseconds, 0 to"),
    ],
)
def test_an_option_that_is_not_the_users_is_refused_by_name(option: str, value: object, advice: str) -> None:
    """Before anything connects; the message says what to use instead."""
    pattern = advice if ".*" in advice else re.escape(advice)
    with pytest.raises(ConfigurationError, match=rf"client_options\['{option}'\].*{pattern}"):
        client(**{option: value})


def test_durations_must_fit_together() -> None:
    """A heartbeat after the assignment's end, or a duration of 0, is refused."""
    with pytest.raises(ConfigurationError, match=r"heartbeat_interval=5: less than session_timeout=5 s"):
        AiokafkaClient("127.0.0.1:1", "group", session_timeout=5, heartbeat_interval=5)
    with pytest.raises(ConfigurationError, match="rebalance_timeout=0"):
        AiokafkaClient("127.0.0.1:1", "group", rebalance_timeout=0)


@pytest.mark.parametrize("servers", ["", "host:port", "host:1,:2", "http://host:9092", "host:1,https://host"])
def test_bootstrap_servers_must_be_hosts_and_ports(servers: str) -> None:
    """An invalid list is reported before anything connects."""
    with pytest.raises(ConfigurationError, match=f"bootstrap_servers='{servers}'"):
        AiokafkaClient(servers, "group")


async def test_what_aiokafka_gets() -> None:
    """Durations in milliseconds, no automatic commits or resets, short waits at the broker, one assignor."""
    consumer = AiokafkaClient(
        "127.0.0.1:1", "group", session_timeout=7.5, heartbeat_interval=0.25, rebalance_timeout=90
    )._settings.build()
    await close(consumer, 1.0)
    assert fetch_settings(consumer) == {"auto_offset_reset": "none", "fetch_max_wait_ms": 20}
    assert coordinator_settings(consumer) == {
        "enable_auto_commit": False,
        "group_id": "group",
        "heartbeat_interval_ms": 250,
        "max_poll_interval_ms": 2**31 - 1,
        "partition_assignment_strategy": (RangePartitionAssignor,),
        "rebalance_timeout_ms": 90_000,
        "session_timeout_ms": 7_500,
    }


async def test_a_fetch_wait_of_the_users_own_is_kept() -> None:
    """Then aiokafka's delay between fetches is kept as well."""
    consumer = await built(fetch_max_wait_ms=500)
    assert fetch_settings(consumer)["fetch_max_wait_ms"] == 500
    assert client(fetch_max_wait_ms=500)._settings.prefetch_backoff is None
    assert client()._settings.prefetch_backoff == 0.005


async def test_each_consumer_has_a_sticky_assignor_of_its_own() -> None:
    """aiokafka keeps a member's partitions on the class, so one class for two members would mix them up."""
    settings = [coordinator_settings(await built(**{OPTION: [StickyPartitionAssignor]})) for _ in range(2)]
    one, two = (cast("tuple[type[StickyPartitionAssignor]]", made[OPTION])[0] for made in settings)
    assert issubclass(one, StickyPartitionAssignor)
    assert one is not two
    one.member_assignment = ["something"]
    assert two.member_assignment is None
    assert StickyPartitionAssignor.member_assignment is None
