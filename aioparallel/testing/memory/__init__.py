"""An in-memory Kafka broker, client and producer, to test handlers and consumers without a real broker.

The broker does to a consumer what real brokers do: rebalances (in the classic and the new protocol), expired sessions,
static members, fenced and late commits, transactions, gaps, truncated logs, requests that are slow, lost or refused.
And to a producer: epochs and sequence numbers, leaders that move, nodes that hang or stop. And to members of share
groups: locks that end, sessions that are closed, leaders that forget locks. See :class:`InMemoryBroker`,
:class:`InMemoryClient`, :class:`InMemoryProducer`, :class:`InMemoryTransactionalProducer`, :class:`InMemoryShareClient`
and :class:`Faults`.

::

    broker.py               the broker's interface for tests  faults.py   injected faults
    client.py, producer.py  the clients                       connection.py, link.py   their connections
    topics.py, log.py       topics and their logs             reading.py  fetches
    groups.py, membership.py, assignor.py   groups, their members, the assignment
    consumer_groups.py, consumer_membership.py   the same in the new protocol
    nodes.py, broker_connections.py, produced.py   several nodes, and what producers send to them
    transactions.py, transactional_connections.py   transactions
    share_client.py, share_membership.py, share_session.py, share_acks.py   the client of share groups
    share_leaders.py, share_partition.py, share_records.py   share groups at the leaders: sessions and locks
    share_groups.py, share_assignor.py, share_options.py     and at their coordinator
    refused.py              refused requests
"""

from aioparallel.records.error_codes import ErrorCode
from aioparallel.testing.memory.broker import InMemoryBroker
from aioparallel.testing.memory.client import InMemoryClient
from aioparallel.testing.memory.faults import Fault, Faults, Request
from aioparallel.testing.memory.log import Transaction
from aioparallel.testing.memory.producer import InMemoryProducer, InMemoryTransactionalProducer
from aioparallel.testing.memory.share_client import InMemoryShareClient
from aioparallel.testing.memory.share_options import ShareGroupOptions

__all__ = [
    "ErrorCode",
    "Fault",
    "Faults",
    "InMemoryBroker",
    "InMemoryClient",
    "InMemoryProducer",
    "InMemoryShareClient",
    "InMemoryTransactionalProducer",
    "Request",
    "ShareGroupOptions",
    "Transaction",
]
