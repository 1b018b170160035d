"""A Kafka broker and client in memory, to test handlers and consumers without either.

The broker does what real ones do to a consumer: rebalances (eager and cooperative), expired sessions, fenced
and late commits, transactions, gaps, truncated logs, requests that are slow, lost or refused. See
:class:`InMemoryBroker`, :class:`InMemoryClient` and :class:`Faults`.
"""

from aioparallel.testing.memory.broker import InMemoryBroker
from aioparallel.testing.memory.client import InMemoryClient
from aioparallel.testing.memory.codes import ErrorCode
from aioparallel.testing.memory.faults import Fault, Faults, Request
from aioparallel.testing.memory.log import Transaction

__all__ = ["ErrorCode", "Fault", "Faults", "InMemoryBroker", "InMemoryClient", "Request", "Transaction"]
