"""Options that do not exist: named, with the value, and with the one that was meant or all that there are."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer

from aioparallel import (
    Deduplicate,
    FailurePolicy,
    ParallelConsumer,
    Producing,
    RetryPolicy,
    Security,
    State,
    Transactions,
    batches,
    in_processes,
    in_threads,
    parallel_map,
)
from aioparallel.clients.aiokafka.settings import option_names
from aioparallel.config.handling import Handling
from aioparallel.config.options import Options
from aioparallel.config.unknown_options import OF_AIOKAFKA
from aioparallel.http import Cache, http_handler
from aioparallel.observe.metrics import PrometheusMetrics
from aioparallel.persistence.sql import SqlStore
from aioparallel.queues.kmq import KmqConsumer, RedeliveryTracker
from aioparallel.queues.priority import PriorityConsumer
from aioparallel.records.errors import ConfigurationError
from aioparallel.web import RestartPolicy


async def handle(record: Any) -> None: ...


def put(item: Any) -> Any: ...


@pytest.mark.parametrize(
    ("make", "given", "meant"),
    [
        (FailurePolicy, {"deadletter": "x"}, "FailurePolicy deadletter='x': there is no such option; .* 'dead_letter'"),
        (RetryPolicy, {"max_atempts": 3}, "RetryPolicy max_atempts=3: .* did you mean 'max_attempts'?"),
        (RetryPolicy, {"zzz": 3}, "RetryPolicy zzz=3: .*; the options are count_waits, first_delay, .*retry_on"),
        (Transactions, {"intervall": 3}, "Transactions intervall=3: .* did you mean 'interval'?"),
        (Producing, {"on_produce": 3}, "did you mean 'on_produced'?"),
        (Deduplicate, {"topik": "x"}, "did you mean 'topic'?"),
        (State[int], {"initiall": 0}, "State initiall=0: .* did you mean 'initial'?"),
        (Handling, {"max_concurency": 3}, "did you mean 'max_concurrency'?"),
        (RestartPolicy, {"max_restart": 3}, "did you mean 'max_restarts'?"),
        (Cache, {"second": 3}, "did you mean 'seconds'?"),
        (lambda **options: http_handler(put, **options), {"max_attemptz": 3}, "there is no such option"),
        (lambda **options: batches(handle, **options), {"siz": 3}, "siz=3: .* did you mean 'size'?"),
        (lambda **options: parallel_map(handle, [], **options), {"timeouts": 3}, "did you mean 'timeout'?"),
        (
            lambda **o: ParallelConsumer("t", group_id="g", **o),
            {"max_concurency": 3},
            "did you mean 'max_concurrency'?",
        ),
        (
            lambda **o: ParallelConsumer("t", group_id="g", **o),
            {"group_instance_id": "w1"},
            'aiokafka has it: client_options={"group_instance_id": ...}',
        ),
        (Producing, {"client_id": "w1"}, 'client_options={"client_id": ...}'),
        (lambda **o: in_threads(put, **o), {"thread": 3}, "thread=3: .* did you mean 'threads'?"),
        (lambda **o: in_processes(put, **o), {"process": 3}, "did you mean 'processes'?"),
        (lambda **o: SqlStore(None, **o), {"prefx": "a"}, "did you mean 'prefix'?"),  # type: ignore[arg-type]
        (PrometheusMetrics, {"bucket": ()}, "did you mean 'buckets'?"),
        (lambda **o: KmqConsumer("t", group_id="g", **o), {"leas": 3}, "leas=3: .* did you mean 'lease'?"),
        (lambda **o: KmqConsumer("t", group_id="g", **o), {"traker": True}, "did you mean 'tracker'?"),
        (
            lambda **o: KmqConsumer("t", group_id="g", **o),
            {"zzz": 3},
            "auto_offset_reset, .*lease, .*marker_topic, .*max_redeliveries, .*tracker",
        ),
        (lambda **o: RedeliveryTracker("t", group_id="g", **o), {"marker_topik": "x"}, "did you mean 'marker_topic'?"),
        (lambda **o: PriorityConsumer("t", group_id="g", priorities=2, **o), {"ageeing": 3}, "did you mean 'ageing'?"),
    ],
)
def test_the_option_that_was_meant_is_named(make: Callable[..., object], given: dict[str, Any], meant: str) -> None:
    with pytest.raises(ConfigurationError, match=meant) as raised:
        make(**given)
    assert raised.value.option.endswith(next(iter(given)))


def test_the_options_of_aiokafka() -> None:
    """Those that are suggested exist."""
    assert option_names(AIOKafkaConsumer) >= OF_AIOKAFKA
    assert {one.name for one in fields(Options)}.isdisjoint(OF_AIOKAFKA)


def test_a_queue_does_not_suggest_what_it_refuses() -> None:
    """And gives the reason if it is passed."""
    with pytest.raises(ConfigurationError) as raised:
        KmqConsumer("t", group_id="g", zzz=3)  # type: ignore[call-arg]
    options = raised.value.allowed.split(", ")
    assert not {"failures", "state", "ordering", "commits"} & set(options)
    with pytest.raises(ConfigurationError, match="set retry= for attempts within the lease"):
        KmqConsumer("t", group_id="g", failures=FailurePolicy())


def test_a_consumer_of_the_users_own_has_the_options_of_its_base() -> None:
    class Own(KmqConsumer[Any, Any]):
        def __init__(self, **options: Any) -> None:
            super().__init__("t", group_id="g", **options)

    with pytest.raises(ConfigurationError, match="did you mean 'lease'"):
        Own(leas=3)


def test_no_secret_is_shown() -> None:
    for make, given in (
        (lambda **o: Security("SASL_SSL", **o), "pasword"),
        (lambda **o: Security("SASL_SSL", **o), "usrname"),
        (lambda **o: ParallelConsumer("t", group_id="g", **o), "sasl_plain_password"),
    ):
        with pytest.raises(ConfigurationError, match=f"{given}=<str>: there is no such option") as raised:
            make(**{given: "hush"})
        assert "hush" not in str(raised.value)


def test_the_rest_is_as_before() -> None:
    """Signatures, copies and pickles; Python names arguments that are missing."""
    policy = FailurePolicy(dead_letter="x")
    assert replace(policy, dead_letter="y").dead_letter == "y"
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert "dead_letter" in inspect.signature(FailurePolicy).parameters
    assert "max_concurrency" in inspect.signature(KmqConsumer).parameters
    assert list(inspect.signature(parallel_map).parameters)[:2] == ["handler", "items"]
    with pytest.raises(TypeError, match="group_id"):
        ParallelConsumer("t")  # type: ignore[call-arg]
