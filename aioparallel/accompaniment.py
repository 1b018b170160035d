"""What a consumer keeps beside its positions, in topics of its own: what was seen, or a state of each key."""

from __future__ import annotations

from collections.abc import Collection

from aioparallel.deduplication.companion import Deduplication
from aioparallel.deduplication.seen_topic import SeenTopic
from aioparallel.delivery.producer import Producer
from aioparallel.engine.sinks import DeadLetterSink
from aioparallel.errors import ConfigurationError
from aioparallel.group.client import Client
from aioparallel.group.companions import Companion
from aioparallel.options import Options
from aioparallel.records import TopicPartition
from aioparallel.state.companion import KeyedState
from aioparallel.state.topics import StateTopics, TopicNames
from aioparallel.transactions import TransactionKeeping

__all__ = ["Accompaniment", "own_topics"]

# Seconds for pieces of a full snapshot that are on their way at the end. It is named by nothing yet.
_LAST_SNAPSHOT = 0.1


def own_topics(options: Options, group_id: str) -> dict[str, str]:
    """Topics that a consumer itself writes to, and the option that names each; without its retry topics, which it
    reads."""
    own: dict[str, str] = {}
    if isinstance(options.failures.dead_letter, str):
        own[options.failures.dead_letter] = "FailurePolicy dead_letter"
    if options.deduplicate is not None:
        own[options.deduplicate.topic] = "Deduplicate topic"
    if options.state is not None:
        own |= dict.fromkeys(TopicNames.of(options.state, group_id), "State topic")
    return own


class Accompaniment:
    """Of one consumer: what its options ``deduplicate`` and ``state``, of which one may be given, ask for.

    ``producer``: writes it. ``transactions``: of the consumer, where it has such. Raises ConfigurationError.
    """

    def __init__(
        self,
        group_id: str,
        options: Options,
        client: Client,
        producer: Producer | None,
        transactions: TransactionKeeping | None,
    ) -> None:
        self._options = options
        self._is_transactional = transactions is not None
        self._seen: SeenTopic | None = None
        self._of_state: tuple[StateTopics, Producer] | None = None
        self.state: KeyedState | None = None
        """That of the run, from its start on."""
        if (deduplicate := options.deduplicate) is not None and producer is not None:  # Delivery has refused it else
            self._seen = SeenTopic(deduplicate.topic, group_id, client, producer, options.skip_unreadable)
        if (state := options.state) is not None:
            if producer is None:
                raise ConfigurationError("producer", None, "state needs one beside a client of your own: producer=...")
            names = TopicNames.of(state, group_id)
            writer = producer if transactions is None else transactions.plain_producer()
            self._of_state = StateTopics(names, group_id, client), writer

    async def check(self, read: Collection[TopicPartition], timeout: float) -> None:
        """Whether its topics can hold what belongs to these partitions. Raises ConfigurationError, ClientError,
        TimeoutError."""
        if self._seen is not None:
            await self._seen.check(read, timeout)
        if self._of_state is not None:
            await self._of_state[0].check(read, timeout)

    def begin(self, dead_letter_sink: DeadLetterSink | None) -> tuple[Companion | None, DeadLetterSink | None]:
        """For a run, within its event loop: its companion, where there is any, and what records are put away through
        then."""
        if self._seen is not None and self._options.deduplicate is not None:
            seen = Deduplication(self._options.deduplicate, self._seen)
            return seen, None if dead_letter_sink is None else seen.around(dead_letter_sink)
        if self._of_state is not None:
            topics, writer = self._of_state
            self.state = KeyedState(topics, self._options, writer, is_transactional=self._is_transactional)
        return self.state, dead_letter_sink

    async def close(self) -> None:
        """After the last commit: what is its own is closed."""
        if self._of_state is not None and self._is_transactional:
            await self._of_state[1].stop(_LAST_SNAPSHOT)
