"""What one consumer needs to commit in transactions, put together."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Collection, Mapping
from typing import Any, cast

from aioparallel.batches import BatchHandler
from aioparallel.delivery.dead_letters import DeadLetters
from aioparallel.delivery.producer import Producer
from aioparallel.errors import ConfigurationError
from aioparallel.group.committing import Keeping, Member
from aioparallel.group.companions import AccompaniedPositions
from aioparallel.group.stores import Positions
from aioparallel.handlers import Handlers
from aioparallel.options import Options
from aioparallel.policies import Transactions
from aioparallel.transactions.committer import TransactionCommitter
from aioparallel.transactions.outbox import Letters, TransactionOutbox
from aioparallel.transactions.positions import StablePositions
from aioparallel.transactions.producer import TransactionalProducer
from aioparallel.transactions.refusals import Refusals

__all__ = ["TransactionKeeping", "keeping_of"]


def keeping_of(producer: Producer | None, options: Options, group_id: str) -> TransactionKeeping | None:
    """None where positions are committed without transactions. Raises ConfigurationError where the producer cannot, and
    where it can do nothing else."""
    policy = options.commits if isinstance(options.commits, Transactions) else None
    is_transactional = hasattr(producer, "commit_offsets")
    if policy is None:
        if is_transactional:
            raise ConfigurationError(
                "producer", producer, "writes in transactions alone: it needs commits=Transactions(...) beside it"
            )
        return None
    if not is_transactional:
        raise ConfigurationError(
            "commits", policy, "needs a producer beside a client of your own that can write in transactions"
        )
    return TransactionKeeping(cast("TransactionalProducer", producer), options, policy, group_id)


class TransactionKeeping:
    """One for each consumer. ``policy``: the consumer's ``commits``."""

    def __init__(self, producer: TransactionalProducer, options: Options, policy: Transactions, group_id: str) -> None:
        self._producer = producer
        self._options = options
        self._policy = policy
        self._group_id = group_id
        self.outbox = TransactionOutbox(producer, options.producing.max_unacknowledged_bytes)
        self.letters = Letters(self.outbox)
        self.dead_letter_sink: DeadLetters | None = None
        """Where records go that cannot be produced for."""
        instance = options.client_options.get("group_instance_id")
        self._instance = None if instance is None else str(instance)

    async def check(self, topics: Collection[str], timeout: float) -> None:
        """See that the brokers can, and remember that these topics are there. Raises TransactionsUnsupported, and what
        connecting raises."""
        await self._producer.start(timeout)
        await self._producer.check_transactions(timeout)
        if topics:
            await self.outbox.know(topics, timeout)

    def __call__(self, member: Member) -> Keeping:
        """For one run, within its event loop."""
        refusals = Refusals(
            self.outbox.waiting, self._options.failures, self.dead_letter_sink, member.scheduler.counters, member.fatal
        )
        committer = TransactionCommitter(self._producer, self.outbox, refusals, member, self._policy, self._new_id)
        timeout = self._policy.transaction_timeout
        positions = StablePositions(self._producer, member.client, self._group_id, timeout, committer.released)
        committer.positions = positions
        kept: Positions = positions
        if member.companion is not None:
            kept = AccompaniedPositions(positions, member.companion)
        return Keeping(kept, committer, refuses_unreadable_maps=True, refuses_resets=self._options.state is not None)

    @staticmethod
    def within_partitions(handlers: Handlers) -> Handlers:
        """The same handlers, where each batch is of one partition: what a batch lets leave is committed with all its
        offsets, or with none of them, and partitions may go to different members."""
        made: dict[int, BatchHandler[Any, Any]] = {}

        def within(handler: Any) -> Any:
            if not isinstance(handler, BatchHandler) or handler.by != "any":
                return handler
            if id(handler) not in made:
                made[id(handler)] = copy.copy(handler)
                made[id(handler)].by = "partition"
            return made[id(handler)]

        return (
            {topic: within(one) for topic, one in handlers.items()}
            if isinstance(handlers, Mapping)
            else within(handlers)
        )

    def plain_producer(self) -> Producer:
        """One of the same cluster that writes outside of transactions. Who asks for it closes it."""
        return self._producer.plain()

    async def close(self) -> None:
        """After the last drain."""
        await self.outbox.close()

    def _new_id(self) -> str:
        """A static member takes over at once what it has left open. Any other one has a name that nobody has."""
        instance, self._instance = self._instance, None
        return f"{self._policy.id_prefix or self._group_id}-{instance or secrets.token_hex(8)}"
