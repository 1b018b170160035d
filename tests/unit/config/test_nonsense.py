"""Every option of every constructor refuses values that it cannot have, with a ConfigurationError that names it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from aioparallel import (
    Deduplicate,
    FailurePolicy,
    ParallelConsumer,
    Producing,
    RetryPolicy,
    State,
    Transactions,
    batches,
    parallel_map,
)
from aioparallel.config.options import Options
from aioparallel.http import http_handler
from aioparallel.queues.kmq import KmqConsumer, RedeliveryTracker
from aioparallel.queues.priority import PriorityConsumer, PriorityProducer
from aioparallel.records.errors import ConfigurationError
from aioparallel.web import ConsumerService, RestartPolicy

Right = Callable[[Any], bool]


class AnObject:
    """Nothing that an option takes."""


def plain(*arguments: object) -> Any:
    """A function."""


async def asks(*arguments: object) -> Any:
    """An async function."""


NONSENSE: list[Any] = [
    *(None, True, False, 0, -1, 3, 10**30, 1.5, -0.5, math.nan, math.inf, 1e300, 1 + 1j),
    *("", " ", "x", b"", b"x", bytearray(b"x")),
    *([], [3], [None], (), (3,), ("x", 3), range(3), set(), {3}, frozenset("x"), iter(())),
    *({}, {3: 3}, {"x": "x"}, {"x": None}, {"x": 3}, {("x", True): 3}, {("x", -1): 3}, {("x", 0): True}),
    *(AnObject, AnObject(), ValueError, ValueError(), plain, asks, inspect),
]

# What an option may be, of these values. It may refuse some of them all the same, by this or another name.


def never(value: object) -> bool:
    """None of them."""
    return False


def anything(value: object) -> bool:
    """Any value."""
    return True


def count(value: object) -> bool:
    """A number of things."""
    return type(value) is int and value >= 1


def whole(value: object) -> bool:
    """The same, or none."""
    return type(value) is int and value >= 0


def seconds(value: object) -> bool:
    """A time."""
    return type(value) in (int, float) and 0 < value < 1e7  # type: ignore[operator]


def seconds_or_zero(value: object) -> bool:
    """A time that may be none."""
    return seconds(value) or (value == 0 and type(value) is int)


def text(value: object) -> bool:
    """A name."""
    return isinstance(value, str) and bool(value.strip())


def flag(value: object) -> bool:
    """Yes or no."""
    return isinstance(value, bool)


def function(value: object) -> bool:
    """A plain function, or a class."""
    return callable(value) and value is not asks


def any_function(value: object) -> bool:
    """A function, async or not."""
    return callable(value)


def async_function(value: object) -> bool:
    """An async function."""
    return value is asks


def one_of(*values: object) -> Right:
    """One of these texts."""
    return lambda value: value in values


def empty(*kinds: type) -> Right:
    """An empty collection."""
    return lambda value: isinstance(value, kinds) and not value


def mapping(value: object) -> bool:
    """Whatever is in it: not all of these are looked into."""
    return isinstance(value, Mapping)


def optional(right: Right) -> Right:
    """None as well."""
    return lambda value: value is None or right(value)


HANDLING: dict[str, Right] = {
    "max_concurrency": count,
    "max_buffered": count,
    "middleware": empty(list, tuple),
    "resources": empty(dict),
}
OPTIONS: dict[str, Right] = {
    **HANDLING,
    "ordering": never,
    "order_by": optional(function),
    "max_parked": optional(count),
    "handler_timeout": optional(seconds),
    "drain_timeout": seconds_or_zero,
    "isolation": never,
    "max_buffered_bytes": count,
    "key_deserializer": optional(function),
    "value_deserializer": optional(function),
    "failures": never,
    "producing": never,
    "deduplicate": optional(never),
    "state": optional(never),
    "commits": optional(never),
    "commit_interval": seconds,
    "commit_after": count,
    "commit_timeout": seconds,
    "when_map_is_full": never,
    "offset_map_formats": never,
    "auto_offset_reset": never,
    "auto_offset_reset_new_partitions": never,
    "start_at": optional(empty(dict)),
    "until": optional(never),
    "skip_unreadable": empty(list, tuple, set, frozenset),
    "group_protocol": never,
    "group_remote_assignor": optional(text),
    "session_timeout": optional(seconds),
    "heartbeat_interval": optional(seconds),
    "rebalance_timeout": seconds,
    "connect_timeout": seconds,
    "stalled_after": seconds,
    "stuck_after": seconds,
    "security": optional(never),
    "client_options": mapping,
    "extensions": empty(list, tuple),
}
CONSUMER: dict[str, Right] = {
    **OPTIONS,
    "topics": lambda value: text(value) or value == {"x"},
    "bootstrap_servers": text,
    "group_id": text,
    "client": optional(never),
    "producer": optional(never),
}
QUEUE: dict[str, Right] = {
    "topic": text,
    "marker_topic": optional(text),
    "dead_letter": optional(text),
    "dead_letter_too_large": never,
    "max_redeliveries": whole,
}


def without(options: Mapping[str, Right], *names: str) -> dict[str, Right]:
    """All but these."""
    return {name: right for name, right in options.items() if name not in names}


GROUP: dict[str, Any] = {"group_id": "g"}
CASES: list[tuple[Callable[..., object], dict[str, Any], dict[str, Right]]] = [
    (Options, {}, OPTIONS),
    (ParallelConsumer, {"topics": "t", **GROUP}, CONSUMER),
    (
        KmqConsumer,
        {"topic": "t", **GROUP},
        {
            **without(
                CONSUMER,
                *("topics", "order_by", "failures", "state", "deduplicate", "when_map_is_full", "ordering", "commits"),
            ),
            **QUEUE,
            "lease": lambda value: seconds(value) or function(value),
            "retry": optional(never),
            "tracker": optional(flag),
        },
    ),
    (
        PriorityConsumer,
        {"topics": "t", "priorities": 2, **GROUP},
        {
            **without(CONSUMER, "client", "commits"),
            "priorities": count,
            "max_poll_records": count,
            "history_window": lambda value: value == 3,
            "burst_threshold": count,
            "weights": optional(never),
            "ageing": lambda value: seconds(value) or value == math.inf,
            "clients": optional(never),
        },
    ),
    (
        RedeliveryTracker,
        {"topic": "t", **GROUP},
        {
            **QUEUE,
            "group_id": text,
            "bootstrap_servers": text,
            "use_now_after": seconds_or_zero,
            "security": optional(never),
            "client_options": optional(mapping),
            "session_timeout": optional(seconds),
            "heartbeat_interval": optional(seconds),
            "group_protocol": never,
            "group_remote_assignor": optional(text),
            "producing": optional(never),
            "skip_unreadable": empty(list, tuple, set, frozenset),
            "client": optional(never),
            "producer": optional(never),
        },
    ),
    (
        PriorityProducer,
        {"priorities": 3},
        {
            "priorities": count,
            "bootstrap_servers": text,
            "producing": optional(never),
            "security": optional(never),
            "client_options": optional(mapping),
            "connect_timeout": seconds,
            "producer": optional(never),
        },
    ),
    (
        parallel_map,
        {"handler": asks, "items": []},
        {
            **HANDLING,
            "handler": async_function,
            "items": lambda value: hasattr(value, "__iter__") and not isinstance(value, str | bytes),
            "key": optional(function),
            "max_buffered_bytes": optional(count),
            "timeout": optional(seconds),
            "retry": optional(never),
            "on_error": never,
            "in_order": flag,
            "resources": optional(empty(dict)),
            "label": optional(function),
            "read_in_thread": flag,
        },
    ),
    (
        RetryPolicy,
        {},
        {
            "first_delay": seconds_or_zero,
            "multiplier": seconds,
            "max_delay": seconds_or_zero,
            "jitter": lambda value: type(value) is int and value == 0,
            "max_attempts": optional(count),
            "max_elapsed": optional(seconds_or_zero),
            "max_wait": optional(seconds_or_zero),
            "count_waits": flag,
            "retry_on": lambda value: value is ValueError or value == (),
        },
    ),
    (
        FailurePolicy,
        {"retry": RetryPolicy(max_attempts=1)},
        {
            "retry": function,
            "dead_letter": lambda value: value is None or text(value) or async_function(value),
            "give_up": never,
            "retry_topics": lambda value: value in ({}, {"x": 3}),
            "dead_letter_too_large": never,
        },
    ),
    (Deduplicate, {"topic": "t"}, {"topic": text, "by": never, "remember": count}),
    (
        Producing,
        {},
        {
            "max_unacknowledged_bytes": count,
            "delivery_timeout": seconds,
            "on_produced": optional(function),
            "client_options": mapping,
        },
    ),
    (Transactions, {}, {"interval": seconds, "transaction_timeout": seconds, "id_prefix": optional(text)}),
    (
        State,
        {"initial": None, "apply": plain, "dump": plain, "load": plain},
        {
            "initial": anything,
            "apply": function,
            "dump": function,
            "load": function,
            "topic": optional(text),
            "snapshots": optional(text),
            "snapshot_after": count,
            "snapshot_interval": seconds,
        },
    ),
    (
        batches,
        {"handler": asks},
        {
            "handler": optional(async_function),
            "size": count,
            "linger": seconds_or_zero,
            "by": never,
            "max_bytes": optional(count),
            "on_error": never,
        },
    ),
    (
        http_handler,
        {"request": plain},
        {
            "request": any_function,
            "on_response": optional(any_function),
            "client": function,
            "base_url": optional(never),
            "headers": lambda value: value in ({}, {"x": "x"}),
            "timeout": seconds,
            "max_per_host": optional(count),
            "statuses": empty(dict),
            "longest_wait": seconds,
            "max_response_bytes": count,
            "idempotency_key": optional(function),
            "trace": flag,
            "single_flight": flag,
            "cache": optional(never),
        },
    ),
    (
        ConsumerService,
        {"make_consumer": plain, "handler": asks},
        {
            "make_consumer": function,
            "handler": lambda value: async_function(value) or value == {},
            "name": lambda value: isinstance(value, str) and bool(value),
            "restart": optional(never),
            "on_failure": never,
        },
    ),
    (
        RestartPolicy,
        {},
        {
            "first_delay": seconds_or_zero,
            "max_delay": seconds_or_zero,
            "max_restarts": optional(count),
            "reset_after": seconds_or_zero,
        },
    ),
]


@pytest.mark.parametrize(("make", "given", "options"), CASES, ids=[case[0].__name__ for case in CASES])
def test_the_table_has_all_options(
    make: Callable[..., object], given: dict[str, Any], options: dict[str, Right]
) -> None:
    """A new option is tested as well."""
    assert options.keys() == inspect.signature(make).parameters.keys()


def refused(make: Callable[..., object], given: dict[str, Any]) -> str | None:
    """The name by which it is refused; None: it is accepted."""
    try:
        make(**given)
    except ConfigurationError as error:
        return error.option
    return None


@pytest.mark.parametrize(
    ("make", "given", "option", "right"),
    [
        pytest.param(make, given, option, right, id=f"{make.__name__}-{option}")
        for make, given, options in CASES
        for option, right in options.items()
    ],
)
def test_nonsense_is_refused_by_name(
    make: Callable[..., object], given: dict[str, Any], option: str, right: Right
) -> None:
    """Nothing else is raised, and nothing is accepted that fails later."""
    for value in NONSENSE:
        named = refused(make, {**given, option: value})
        assert right(value) or (named is not None and option in named), f"{option}={value!r}: refused as {named}"
