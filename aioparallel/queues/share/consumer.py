"""ShareConsumer: consumes topics as a member of a share group."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Unpack

from aioparallel.config.callables import check_interface, check_plain, is_async
from aioparallel.config.extension import Extension, overrides
from aioparallel.config.handling import Ordering, check_count, check_time
from aioparallel.config.option_docs import takes_options
from aioparallel.config.options import Options, PlainFields, checked_extensions, checked_topics
from aioparallel.config.policies import DeadLetterFunction, FailurePolicy, RetryPolicy, TooLargeLetters
from aioparallel.consumer import ParallelConsumer
from aioparallel.delivery.producer import Producer
from aioparallel.group.share_client import ShareClient
from aioparallel.queues.share.acknowledging import OnLate
from aioparallel.queues.share.redelivery import ShareRetry
from aioparallel.queues.share.sharing import Sharing
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import K_co, V_co

__all__ = ["ShareConsumer"]

_NO_OFFSETS: Final = (
    "does not apply to a share group, in which records are acknowledged one by one: it commits nothing; leave it out"
)
_NO_ORDER: Final = (
    "which keeps no order: records of a key may be at several members; leave it out, or use ParallelConsumer"
)
_BY_GROUP: Final = (
    "does not apply to a share group: it is a setting of the group, for all members: `aioparallel share configure "
    "{{group}} {}`, or kafka-configs.sh"
)
_START: Final = _BY_GROUP.format("share.auto.offset.reset=earliest")

# Options that a share group refuses, and why. "{group}": its name.
_REFUSED: Final[Mapping[str, str]] = {
    "order_by": f"does not apply to a share group, {_NO_ORDER}",
    "failures": "does not apply to a share group: set retry= for attempts within a delivery, and dead_letter= and "
    "max_deliveries= for what fails in all of them",
    "state": "does not work with a share group: records of a key may be at several members; use ParallelConsumer, in "
    "which a key has one",
    "deduplicate": "does not work with a share group: what was seen is remembered by the owner of a partition, and a "
    "partition has several members; use ParallelConsumer, or a handler that recognises what it has done",
    "commit_interval": _NO_OFFSETS,
    "commit_after": _NO_OFFSETS,
    "when_map_is_full": _NO_OFFSETS,
    "offset_map_formats": _NO_OFFSETS,
    "auto_offset_reset": _START,
    "auto_offset_reset_new_partitions": _START,
    "start_at": "does not apply to a share group: `aioparallel share reset {group} --to TIME` sets where the group "
    "starts, while it has no members",
    "skip_unreadable": "does not apply to a share group: what cannot be read is released, and the group gives it up "
    "after share.delivery.count.limit deliveries; leave it out",
    "group_protocol": "does not apply to a share group, which has a protocol of its own; leave it out",
    "group_remote_assignor": "does not apply to a share group: the brokers have one assignor for it; leave it out",
    "session_timeout": _BY_GROUP.format("share.session.timeout.ms=45000"),
    "heartbeat_interval": _BY_GROUP.format("share.heartbeat.interval.ms=5000"),
    "rebalance_timeout": "does not apply to a share group: no partition is given away, so nobody waits for a member; "
    "leave it out",
    "stalled_after": "does not apply to a share group: a member does not know where its partitions end; `aioparallel "
    "share describe {group}` shows the group's lag",
}

# Hooks that are never called here, although their extension relies on it.
_NEVER_CALLED: Final = (
    "client",
    "commit_strategy",
    "admission",
    "priorities",
    "restore",
    "before_commit",
    "commit_outputs",
)


@takes_options(
    Options,
    without=(*_REFUSED, "ordering", "commits"),
    refused={"group_instance_id": "does not apply to a share group, which has no static members; leave it out"},
)
class ShareConsumer(ParallelConsumer[K_co, V_co]):
    """A member of a share group (KIP-932): each record is locked for one member for a time, and acknowledged by itself.

    Members may be more than partitions, and a slow or failing record delays no other. There is no order, so
    ``ordering=Ordering.UNORDERED`` may be given and changes nothing. ``drain_timeout`` has no upper bound.

    ::

        async with ShareConsumer("jobs", bootstrap_servers="localhost:9092", group_id="workers") as consumer:
            await consumer.run(work)

    ``topics``: a name or several names.
    ``retry``: attempts here, while the lock of the record is renewed; by default one. A policy, or a function of the
    record, the exception and the number of attempts here, which returns the seconds until the next attempt,
    ``"release"``, ``"dead_letter"``, ``"skip"`` or ``"stop"``. After the last attempt the record is released: it is
    delivered again, to any member, until the group gives it up after ``share.delivery.count.limit`` deliveries (5),
    **and it is lost then**, unless it is dead-lettered before.
    ``dead_letter``: a topic, or an async function of the record and the exception. It gets records that a handler
    rejects, those that fail in delivery ``max_deliveries`` or a later one, those that do not end in the group's last
    delivery, because the run or their lock ends, and those that come in the last delivery after ``max_deliveries``:
    they are not begun, because they would be lost if the process died. When it has taken the record, the record is
    done. None: rejected and skipped records are rejected at the brokers, which do not deliver them again.
    ``dead_letter_too_large``: what happens to a record that is too large for that topic, as in
    :class:`~aioparallel.FailurePolicy`.
    ``max_deliveries``: with ``dead_letter``, the delivery whose failure is the last, unless ``retry`` is a function and
    returns ``"release"``: then the record is delivered again, up to the group's limit. At most the group's
    ``share.delivery.count.limit``, which is checked at the start from Kafka 4.3 on. None: one less, so that one is left
    for records whose processes have died. It is no number of failures: a delivery also counts if its record was
    released before it could begin, or its member was stopped or died.
    ``on_late``: a quick function of a record that was handled, but acknowledged too late: it may be handled again, or
    has been.
    ``client``: another client in place of aiokafka's.

    ``record.delivery_count`` says how often a record was delivered, this time included.

    Only as many records are acquired as begin soon. Locks of records that run, wait for a retry, or whose outputs are
    sent, are renewed. If that is refused or not answered, the handler is cancelled when the lock ends. What is paused
    is released; so is, at a stop, what was not begun, or is cut off by ``drain_timeout``. In its last delivery, after
    which nobody would get it, it is kept in a pause, and dead-lettered at a stop. With ``until="end"`` the run is over
    when nothing could be acquired for 5 seconds, and everything is acknowledged. ``commit_timeout`` limits the wait for
    acknowledgements in ``commit_now()`` and at the end. Outputs are produced at least once: before the record is
    acknowledged.

    All else is as in :class:`~aioparallel.ParallelConsumer`. Raises ConfigurationError.
    """

    def __init__(
        self,
        topics: str | Sequence[str],
        *,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        group_id: str,
        retry: ShareRetry | None = None,
        dead_letter: str | DeadLetterFunction | None = None,
        dead_letter_too_large: TooLargeLetters = "drop_value",
        max_deliveries: int | None = None,
        on_late: OnLate | None = None,
        client: ShareClient | None = None,
        producer: Producer | None = None,
        key_deserializer: Callable[[bytes], K_co] | None = None,
        value_deserializer: Callable[[bytes], V_co] | None = None,
        **options: Unpack[PlainFields],
    ) -> None:
        _refuse(topics, options, group_id)
        if max_deliveries is not None:
            check_count("max_deliveries", max_deliveries)
            if dead_letter is None:
                raise ConfigurationError(
                    "max_deliveries",
                    max_deliveries,
                    "needs dead_letter=, for what fails in that delivery. Without it the group's configuration says "
                    f"how often a record is delivered: `aioparallel share configure {group_id} "
                    f"share.delivery.count.limit={max_deliveries}`",
                )
        if on_late is not None:
            check_plain(on_late, "on_late", "the record")
        if client is not None:
            check_interface(client, "client", ShareClient)
        retry = RetryPolicy(max_attempts=1) if retry is None else retry
        _check_retry(retry)
        sharing = Sharing(client, retry, max_deliveries, on_late, has_letters=dead_letter is not None)
        options["ordering"] = Ordering.UNORDERED
        options["extensions"] = (sharing, *_checked(options.get("extensions", ())))
        options["failures"] = FailurePolicy(
            retry=RetryPolicy(max_attempts=1), dead_letter=dead_letter, dead_letter_too_large=dead_letter_too_large
        )
        options["rebalance_timeout"] = _long_enough(options)
        super().__init__(
            topics,
            bootstrap_servers=bootstrap_servers,
            group_id=group_id,
            producer=producer,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            **options,
        )

    def _own_topics(self) -> dict[str, str]:
        return {topic: option.removeprefix("FailurePolicy ") for topic, option in super()._own_topics().items()}


def _refuse(topics: object, options: PlainFields, group_id: str) -> None:
    if isinstance(checked_topics(topics), re.Pattern):
        raise ConfigurationError(
            "topics", topics, "must be a name or a list of names: members of a share group subscribe by name"
        )
    given: Mapping[str, Any] = options
    for name, why in _REFUSED.items():
        if name in given:
            raise ConfigurationError(name, given[name], why.replace("{group}", str(group_id)))
    if options.get("ordering", Ordering.UNORDERED) is not Ordering.UNORDERED:
        raise ConfigurationError(
            "ordering",
            options["ordering"],
            f"does not apply to a share group, {_NO_ORDER}",
        )
    if options.get("commits") is not None:
        raise ConfigurationError(
            "commits",
            options["commits"],
            "does not work with a share group: its acknowledgements cannot be part of a transaction, and a database "
            "cannot store them (KIP-1289 is not in Kafka yet); use ParallelConsumer, or handlers that may run twice",
        )


def _checked(given: object) -> tuple[Extension, ...]:
    extensions = checked_extensions(given)
    for one in extensions:
        for hook in _NEVER_CALLED:
            if overrides(one, Extension, hook):
                raise ConfigurationError(
                    "extensions", one, f"has a {hook}, which a share group never calls: it has no positions or commits"
                )
    return extensions


def _check_retry(retry: object) -> None:
    if not isinstance(retry, RetryPolicy) and (not callable(retry) or is_async(retry)):
        raise ConfigurationError("retry", retry, "must be a RetryPolicy or a plain function")


def _long_enough(options: PlainFields) -> float:
    """Return a ``rebalance_timeout`` that fits: there are no rebalances that a drain could last longer than."""
    defaults = Options()
    drain, commit = (options.get("drain_timeout", 0), options.get("commit_timeout", defaults.commit_timeout))
    check_time("drain_timeout", drain, zero=True)
    check_time("commit_timeout", commit)
    return min(defaults.rebalance_timeout + drain + commit, 1e7 - 1)
