"""The extension that commits in transactions: what one consumer needs for it, put together."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Collection, Mapping
from typing import Any, cast

from aioparallel.config.extension import ConsumerContext, Extension
from aioparallel.config.policies import Transactions
from aioparallel.delivery.dead_letters import DeadLetters, LetterBox
from aioparallel.delivery.delivery import failure_topics
from aioparallel.delivery.producer import Producer
from aioparallel.engine.sinks import DeadLetterSink, OutputSink
from aioparallel.group.committing import CommitStrategy, GroupContext
from aioparallel.group.extensions import ExtendedPositions
from aioparallel.handlers.batches import BatchHandler
from aioparallel.handlers.stack import Handlers
from aioparallel.persistence.transactions.positions import StablePositions
from aioparallel.persistence.transactions.producer import TransactionalProducer
from aioparallel.persistence.transactions.refused_outputs import Refusals
from aioparallel.persistence.transactions.transaction_committer import TransactionCommitter
from aioparallel.persistence.transactions.transaction_outbox import TransactionOutbox
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import TopicPartition

__all__ = ["TransactionalCommits", "is_transactional"]


def is_transactional(producer: Producer | None) -> bool:
    """Whether this producer writes in transactions alone."""
    return hasattr(producer, "commit_offsets")


class TransactionalCommits(Extension):
    """Commits positions in transactions, with the outputs and dead letters of their records."""

    _consumer: ConsumerContext
    _producer: TransactionalProducer
    _outbox: TransactionOutbox

    def __init__(self, policy: Transactions) -> None:
        self._policy = policy
        self._dead_letters: DeadLetters | None = None  # for records whose outputs the brokers refuse
        self._instance: str | None = None

    def attach(self, consumer: ConsumerContext) -> None:
        """Find the producer."""
        if not is_transactional(consumer.producer):
            raise ConfigurationError(
                "commits", self._policy, "needs a producer that can write in transactions, if the client is your own"
            )
        self._consumer = consumer
        self._producer = cast("TransactionalProducer", consumer.producer)
        self._outbox = TransactionOutbox(self._producer, consumer.options.producing.max_unacknowledged_bytes)
        instance = consumer.options.client_options.get("group_instance_id")
        self._instance = None if instance is None else str(instance)

    async def check(self, partitions: Collection[TopicPartition], timeout: float) -> None:
        """Check that the brokers support transactions. Raises TransactionsUnsupported, and what connecting raises."""
        await self._producer.start(timeout)
        await self._producer.check_transactions(timeout)
        if topics := [*failure_topics(self._consumer.options.failures)]:
            await self._outbox.know(topics, timeout)

    def handlers(self, handlers: Handlers) -> Handlers:
        """Batches of one partition each: the outputs of a batch are committed with all its offsets or with none, and
        partitions may go to different members."""
        made: dict[int, BatchHandler[Any, Any]] = {}

        def within(handler: Any) -> Any:
            if not isinstance(handler, BatchHandler) or handler.by != "any":
                return handler
            if id(handler) not in made:
                made[id(handler)] = copy.copy(handler)
                made[id(handler)].by = "partition"
            return made[id(handler)]

        if isinstance(handlers, Mapping):
            return {topic: within(one) for topic, one in handlers.items()}
        return cast("Handlers", within(handlers))

    def output_sinks(self) -> tuple[OutputSink, LetterBox]:
        """Outputs wait for the next transaction."""
        return self._outbox, self._outbox

    def dead_letter_sink(self, sink: DeadLetterSink | None) -> DeadLetterSink | None:
        """Records whose outputs are refused go there, too."""
        self._dead_letters = cast("DeadLetters | None", sink)  # the first extension gets the sink of the consumer
        return sink

    def commit_strategy(self, group: GroupContext) -> CommitStrategy:
        """Positions are committed in transactions."""
        options = self._consumer.options
        refusals = Refusals(
            self._outbox.waiting, options.failures, self._dead_letters, group.scheduler.counters, group.fatal
        )
        committer = TransactionCommitter(self._producer, self._outbox, refusals, group, self._policy, self._new_id)
        timeout = self._policy.transaction_timeout
        positions = StablePositions(self._producer, group.client, group.group_id, timeout, committer.released)
        committer.positions = positions
        return CommitStrategy(
            ExtendedPositions(positions, group.extensions),
            committer,
            refuses_unreadable_maps=True,
            refuses_resets=options.state is not None,
        )

    async def close(self) -> None:
        """Look up no more topics."""
        await self._outbox.close()

    def _new_id(self) -> str:
        """A static member takes over at once the transaction that it has left open. Any other member has a new id."""
        instance, self._instance = self._instance, None
        return f"{self._policy.id_prefix or self._consumer.group_id}-{instance or secrets.token_hex(8)}"
