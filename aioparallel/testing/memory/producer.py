"""The in-memory producer: queues and retries of the real producer, with the in-memory broker."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from aioparallel.clients.producing import QueueingProducer, TransactionalQueueingProducer
from aioparallel.clients.producing.numbering import Identity
from aioparallel.clients.producing.partition_queue import Unencodable
from aioparallel.clients.producing.queues import PartitionQueues
from aioparallel.delivery.producer import PendingOutput
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import Outgoing
from aioparallel.testing.memory.broker import InMemoryBroker
from aioparallel.testing.memory.broker_connections import NAME, InMemoryBrokers
from aioparallel.testing.memory.link import RETRY_BACKOFF
from aioparallel.testing.memory.transactional_connections import InMemoryTransactionalBrokers

__all__ = ["InMemoryProducer", "InMemoryTransactionalProducer"]

_BATCH_BYTES: Final = 16 * 1024
_OVERHEAD: Final = 10


class InMemoryProducer(QueueingProducer):
    """A :class:`~aioparallel.delivery.producer.Producer` of an :class:`InMemoryBroker`.

    Queueing, batching, retries, splits and timeouts use the same code as with a real cluster. Only the requests are
    answered in memory, over one connection to each node. Faults of ``Request.PRODUCE`` apply to all batches of a
    request. Faults of ``Request.IDENTIFY`` (producer ids), ``Request.METADATA`` and ``Request.CONNECT`` apply to the
    other requests. All times come from the running event loop.

    ``delivery_timeout``: seconds from ``send`` until an unacknowledged output fails.
    ``request_timeout``: seconds until an unanswered request breaks its connection and is retried, at most
    ``delivery_timeout``. Real clients wait 30 or 40 s, and move to a new leader after 3 s of silence, which the default
    of 1 s never reaches."""

    def __init__(
        self, broker: InMemoryBroker, *, delivery_timeout: float = 120.0, request_timeout: float = 1.0
    ) -> None:
        timeout = _checked_timeout(delivery_timeout, request_timeout)
        super().__init__(
            _partition_queues(),
            lambda on_metadata: InMemoryBrokers(broker, on_metadata, timeout),
            servers=NAME,
            delivery_timeout=delivery_timeout,
            retry_backoff=RETRY_BACKOFF,
        )


class InMemoryTransactionalProducer(TransactionalQueueingProducer):
    """A :class:`~aioparallel.persistence.transactions.TransactionalProducer` of an :class:`InMemoryBroker`, for a
    consumer with ``commits=Transactions(...)`` and an :class:`InMemoryClient` that reads ``read_committed``.

    ``group_id``: the consumer's. Other arguments: see :class:`InMemoryProducer`. Faults of ``Request.TXN_OFFSETS``,
    ``Request.END_TXN``, ``Request.IDENTIFY`` and ``Request.OFFSET_FETCH`` apply to requests to coordinators.
    """

    def __init__(
        self,
        broker: InMemoryBroker,
        group_id: str,
        *,
        delivery_timeout: float = 120.0,
        request_timeout: float = 1.0,
        group_instance_id: str | None = None,
    ) -> None:
        timeout = _checked_timeout(delivery_timeout, request_timeout)
        self.plain = partial(
            InMemoryProducer, broker, delivery_timeout=delivery_timeout, request_timeout=request_timeout
        )
        """Makes a producer without transactions; see
        :class:`~aioparallel.persistence.transactions.TransactionalProducer`."""
        super().__init__(
            _partition_queues(),
            lambda on_metadata: InMemoryTransactionalBrokers(broker, on_metadata, timeout, group_id, group_instance_id),
            servers=NAME,
            delivery_timeout=delivery_timeout,
            retry_backoff=RETRY_BACKOFF,
        )


def _checked_timeout(delivery_timeout: float, request_timeout: float) -> float:
    """The timeout of a request in seconds. Raises ConfigurationError."""
    for option, seconds in (("delivery_timeout", delivery_timeout), ("request_timeout", request_timeout)):
        if not seconds > 0:
            raise ConfigurationError(option, seconds, "seconds, more than 0")
    return min(request_timeout, delivery_timeout)


def _partition_queues() -> PartitionQueues:
    return PartitionQueues(_encode, lambda output: None, batch_bytes=_BATCH_BYTES, unchecked_bytes=2**31)


def _encode(entries: Iterable[PendingOutput], identity: Identity, sequence: int, limit: int) -> tuple[bytes, int]:
    """Make a batch of the right size without content."""
    size = count = 0
    for entry in entries:
        try:
            entry.output.check()
            more = _size(entry.output)
        except TypeError as error:
            if not count:
                raise Unencodable(f"it cannot be encoded as a record: {error}") from error
            break  # the entries before it are a batch; it is then the first entry of the next one
        if count and size + more > limit:
            break
        size += more
        count += 1
    return bytes(size), count


def _size(output: Outgoing) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in output.headers)
    return _OVERHEAD + len(output.key or b"") + len(output.value or b"") + headers
