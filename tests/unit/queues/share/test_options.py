"""What a share consumer takes and refuses, always with the reason."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest

from aioparallel import (
    ConfigurationError,
    Deduplicate,
    Extension,
    FailurePolicy,
    Ordering,
    Record,
    RetryPolicy,
    State,
    Transactions,
)
from aioparallel.config.extension import ConsumerContext
from aioparallel.queues.share import ShareConsumer
from aioparallel.records.history import history_of
from tests.support.share_group import FakeShareClient, ShareGroup
from tests.unit.queues.share.conftest import consumer_of

STATE = State(initial="", apply=lambda state, record: state, dump=str.encode, load=bytes.decode)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"ordering": Ordering.KEY}, "keeps no order"),
        ({"ordering": Ordering.PARTITION}, "keeps no order"),
        ({"order_by": lambda record: record.key}, "keeps no order"),
        ({"commits": Transactions()}, "cannot be part of a transaction"),
        ({"state": STATE}, "may be at several members"),
        ({"deduplicate": Deduplicate("seen")}, "a partition has several members"),
        ({"failures": FailurePolicy()}, "set retry="),
        ({"commit_interval": 1.0}, "commits nothing"),
        ({"commit_after": 1}, "commits nothing"),
        ({"when_map_is_full": "block"}, "commits nothing"),
        ({"offset_map_formats": "java"}, "commits nothing"),
        ({"auto_offset_reset": "latest"}, "share.auto.offset.reset"),
        ({"auto_offset_reset_new_partitions": "latest"}, "share.auto.offset.reset"),
        ({"start_at": dt.datetime.now(dt.UTC)}, "aioparallel share reset"),
        ({"skip_unreadable": []}, "share.delivery.count.limit"),
        ({"session_timeout": 30.0}, "share.session.timeout.ms"),
        ({"heartbeat_interval": 3.0}, "share.heartbeat.interval.ms"),
        ({"rebalance_timeout": 60.0}, "no partition is given away"),
        ({"stalled_after": 60.0}, "where its partitions end"),
        ({"max_deliveries": 0}, "at least 1"),
        ({"max_deliveries": 3}, "needs dead_letter="),
        ({"stalled_after": 30.0}, "`aioparallel share describe g` shows"),
        ({"retry": 3}, "must be a RetryPolicy or a plain function"),
        ({"retry": asyncio.sleep}, "must be a RetryPolicy or a plain function"),
        ({"on_late": asyncio.sleep}, "on_late"),
        ({"on_late": 3}, "on_late"),
        ({"dead_letter": "dead"}, "need a producer"),
        ({"drain_timeout": -1}, "drain_timeout"),
        ({"group_instance_id": "w1"}, "no static members"),
        ({"client_id": "w1"}, 'aiokafka has it: client_options={"client_id": ...}'),
        ({"maxconcurrency": 3}, "did you mean 'max_concurrency'"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], reason: str) -> None:
    """The error names the option and the reason."""
    name = next(iter(options))
    with pytest.raises(ConfigurationError, match=re.escape(reason)) as found:
        make(**options)
    assert name in str(found.value) or name == "dead_letter"


def make(**options: Any) -> ShareConsumer[Any, Any]:
    async def made() -> ShareConsumer[Any, Any]:
        return consumer_of(ShareGroup(), **options)

    return asyncio.run(made())


def test_what_is_refused_is_not_in_the_signature() -> None:
    """Nor in the manual; everything else is."""
    parameters = inspect.signature(ShareConsumer).parameters
    assert {"commits", "failures", "auto_offset_reset", "session_timeout", "ordering"}.isdisjoint(parameters)
    assert {"max_concurrency", "drain_timeout", "retry", "on_late", "until", "security"} <= set(parameters)


def test_a_pattern_is_refused() -> None:
    """Members of a share group subscribe by name."""

    async def made() -> None:
        client = FakeShareClient(ShareGroup())
        ShareConsumer(re.compile("t.*"), group_id="g", client=client)  # type: ignore[arg-type]

    with pytest.raises(ConfigurationError, match="must be a name or a list of names"):
        asyncio.run(made())


def test_another_client_is_refused() -> None:
    """It lacks methods of the interface."""
    with pytest.raises(ConfigurationError, match="ShareClient"):
        ShareConsumer("t", group_id="g", client=object())  # type: ignore[arg-type]


def test_a_dead_letter_topic_that_is_read() -> None:
    """The option is named as this class has it."""
    with pytest.raises(ConfigurationError, match=r"^dead_letter='t': is one of the topics that are read"):
        make(dead_letter="t")


def test_a_long_drain_is_allowed() -> None:
    """No rebalance waits for it."""
    assert make(drain_timeout=3_600.0).options.drain_timeout == 3_600


def test_keys_cannot_be_paused() -> None:
    """There are no keys that order records."""
    with pytest.raises(ConfigurationError, match="has no keys that could be paused"):
        make().pause_keys("t", b"k")


class _Commits(Extension):
    async def before_commit(self, positions: Any, timeout: float) -> Any:
        return {}


class _Reads(Extension):
    def attach(self, consumer: ConsumerContext) -> None:
        self.client_found = consumer.client


@pytest.mark.parametrize(
    ("extension", "reason"), [(_Commits, "which a share group never calls"), (_Reads, "This is a share group")]
)
def test_extensions_of_consumer_groups_are_refused(extension: Callable[[], Extension], reason: str) -> None:
    """Those that rely on commits, and those that use the client of a consumer group."""
    with pytest.raises(ConfigurationError, match=reason):
        make(extensions=[extension()])


def test_the_delivery_count_of_a_record() -> None:
    """It is 1 without any history. A copy in another process has it as well."""
    record: Record = Record("t", 0, 1)
    assert record.delivery_count == 1
    assert record._history is None
    history_of(record).delivery_count = 3
    copied = pickle.loads(pickle.dumps(record))
    assert (copied.delivery_count, copied.attempt) == (3, 1)


def test_options_of_a_retry() -> None:
    """A policy or a function."""
    assert make(retry=RetryPolicy(max_attempts=3)).options.ordering is Ordering.UNORDERED
    assert make(retry=lambda record, error, attempts: "release").options.failures.dead_letter is None
